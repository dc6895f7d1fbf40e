"""What is wrong for good is said at once and by its cause, whatever service and library it is."""

from __future__ import annotations

import ssl
import time
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.object_stores import AZURE_KEY
from zarr_dask.errors import AccessDeniedError, StoreError, StoreUnavailableError
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.base import WHOLE
from zarr_dask.stores.patience import SERVICES
from zarr_dask.stores.wrappers.prefetched import prefetching

S3_KEYS = {"key": "key", "secret": "secret"}
ACCOUNT = {"account_name": "account", "account_key": AZURE_KEY}
# each is a URL, and the storage options for a service at some address
SERVED_BY = {
    "s3, obstore": ("s3://bucket/a", {**S3_KEYS, "region": "us-east-1", "backend": "obstore"}),
    "s3, fsspec": ("s3://bucket/a", {**S3_KEYS, "region": "us-east-1", "backend": "fsspec"}),
    "gs, obstore": ("gs://bucket/a", {"anon": True, "backend": "obstore"}),
    "gs, fsspec": ("gs://bucket/a", {"anon": True, "backend": "fsspec"}),
    "az, obstore": ("az://bucket/a", {**ACCOUNT, "backend": "obstore"}),
    "az, fsspec": ("az://bucket/a", {**ACCOUNT, "backend": "fsspec"}),
    "http": ("", {}),
}


SLOW = {name for name in SERVED_BY if "fsspec" in name}  # its clients take 0.1 s each
SOON = 10.0  # seconds, on a busy machine; libraries' own retries take 30 or 60


@pytest.fixture(params=[pytest.param(s, marks=[pytest.mark.slow] * (s in SLOW)) for s in SERVED_BY])
def service(request):
    return request.param


def opened(service, endpoint):
    """Open an array that a service has at an address; return the error and its seconds."""
    url, options = SERVED_BY[service]
    given = {**options, "endpoint_url": endpoint} if url else options
    begun = time.monotonic()
    with pytest.raises(StoreError) as caught:
        zd.open(url or f"{endpoint}/bucket/a", storage_options=given)
    return caught.value, time.monotonic() - begun


# --- addresses ------------------------------------------------------------------------------------


@contextmanager
def tls_server(folder, days=(0, 1)):
    """A server that speaks TLS with a certificate that nobody else has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    since, until = (datetime.now(UTC) + timedelta(days=one) for one in days)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, since, until)
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + made.sign(key, SHA256()).public_bytes(Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with serving(Files, {}, context) as (endpoint, _):
        yield endpoint


@contextmanager
def expired_server(folder):
    with tls_server(folder, (-3, -1)) as endpoint:
        yield endpoint


@contextmanager
def plain_server(folder):
    with serving(Files, {}) as (endpoint, _):
        yield endpoint


ADDRESSES = {
    "no such host": (None, "http://no-such-host.invalid:9000", "no host of that name"),
    "nothing listens": (None, "http://127.0.0.1:9", "nothing has answered there so far"),
    "TLS against a plain port": (plain_server, "https", "does not speak TLS"),
    "no TLS against TLS": (tls_server, "http", "http:// or https://"),
    "a certificate that nobody trusts": (tls_server, "https", "cannot be trusted"),
    "an expired certificate": (expired_server, "https", "cannot be trusted"),
}
TEXTS = {
    "no scheme": ("127.0.0.1:9", "has no scheme: write 'https://127.0.0.1:9'"),
    "no scheme and no port": ("localhost", "has no scheme: write 'https://localhost'"),
    "another scheme": ("ftp://localhost", "expected http or https"),
    "no port of TCP": ("http://localhost:99999", "no URL: Port out of range"),
    "a space": ("http://local host:9000", "no URL: it has a space in it"),
    "nothing": ("", "no URL: it is empty"),
}
SLOWER = {"no such host", "nothing listens", "no TLS against TLS"}  # half a second each


@pytest.mark.parametrize(
    "what", [pytest.param(a, marks=[pytest.mark.slow] * (a in SLOWER)) for a in ADDRESSES]
)
def test_addresses_that_do_not_answer(service, what, tmp_path):
    serve, endpoint, words = ADDRESSES[what]
    with ExitStack() as stack:
        if serve is not None:
            address = stack.enter_context(serve(tmp_path)).replace("127.0.0.1", "localhost")
            endpoint = f"{endpoint}://{address.partition('://')[2]}"
        SERVICES.forget()  # of other tests: ports are used again
        error, seconds = opened(service, endpoint)
    assert words in str(error)
    assert seconds < SOON


@pytest.mark.parametrize("what", TEXTS)
def test_addresses_that_are_none(service, what):
    if service == "http":
        pytest.skip("the address is the URL itself")
    endpoint, words = TEXTS[what]
    assert words in str(opened(service, endpoint)[0])


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_two_addresses_are_one_too_many(backend):
    """One of them would be chosen without a word, and values written to the other service."""
    options = {**S3_KEYS, "endpoint_url": "http://h:1", "backend": backend}
    one = {**options, "client_kwargs": {"endpoint_url": "http://h:2"}}
    with pytest.raises(StoreError, match="are two addresses; give one"):
        zd.create_group("s3://bucket/a", storage_options=one)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("name", ["Bad_Bucket!", "a bucket", "bücket"])
def test_names_that_no_bucket_has(backend, name):
    """A gateway may answer 403 to them, as if the key were wrong."""
    with pytest.raises(StoreError, match="is not the name of a bucket"):
        zd.open(f"s3://{name}/a", storage_options={**S3_KEYS, "backend": backend})


@pytest.mark.parametrize("unreachable", [True, False])
def test_what_is_asked_for_before_a_write_is_given_up_where_nothing_answers(unreachable):
    """It would be asked for again, with the same waits; what is refused may not be needed."""
    asked = []

    class Gone(MemoryStore):
        def get_ranges(self, requests):
            asked.append(requests)
            error = StoreError("no")
            error.unreachable = unreachable
            raise error

    before = prefetching(Gone({}))
    with pytest.raises(StoreError) if unreachable else nullcontext():
        before.ask([("a", WHOLE)])
    assert len(asked) == 1


def test_a_host_that_is_none_is_unreachable(service):
    assert opened(service, "http://no-such-host.invalid:9000")[0].unreachable


def test_addresses_of_the_environment_are_looked_at(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(StoreError, match="environment's AWS_ENDPOINT_URL, 'localhost:9000' has no"):
        zd.open("s3://bucket/a", storage_options=S3_KEYS)


def test_addresses_in_connection_strings_are_looked_at():
    text = "AccountName=account;AccountKey=a2V5;BlobEndpoint=localhost:9000/account;"
    with pytest.raises(StoreError, match="BlobEndpoint of the connection_string 'localhost:9000"):
        zd.open("az://bucket/a", storage_options={"connection_string": text})


# --- answers --------------------------------------------------------------------------------------

ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>said by the service</Message></Error>"
ANSWERS = [
    (400, "InvalidArgument", StoreError),
    (400, "AuthorizationHeaderMalformed", StoreError),
    (401, "Unauthorized", AccessDeniedError),
    (403, "AccessDenied", AccessDeniedError),
    (403, "SignatureDoesNotMatch", AccessDeniedError),
    (404, "NoSuchBucket", StoreError),
    (405, "MethodNotAllowed", StoreError),
    (407, "ProxyAuthenticationRequired", StoreError),
    (411, "MissingContentLength", StoreError),
    (451, "UnavailableForLegalReasons", StoreError),
    (501, "NotImplemented", StoreError),
]


def answering(code, *headers):
    """A server that says the same to every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b"" if self.command == "HEAD" else ERROR.format(code[1]).encode()
            self.send_response(code[0])
            for name, value in (*headers, ("Content-Type", "application/xml")):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    for method in ("GET", "HEAD", "PUT", "POST"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler


@pytest.mark.parametrize(("status", "code", "kind"), ANSWERS, ids=lambda one: str(one)[:12])
def test_answers_that_refuse(service, status, code, kind):
    if service == "http" and status == 404:
        pytest.skip("there are no buckets")
    with serving(answering((status, code)), {}) as (endpoint, _):
        error, seconds = opened(service, endpoint)
    assert type(error) is kind
    told = {str(status), code, "said by the service", "no such bucket", "Forbidden"}
    assert any(words in str(error) for words in told)
    assert seconds < SOON


def test_an_answer_without_a_message_is_told_by_its_code(service, monkeypatch):
    """As Ceph's gateway sends them."""
    monkeypatch.setattr(f"{__name__}.ERROR", "<Error><Code>{}</Code></Error>")
    with serving(answering((403, "InvalidAccessKeyId")), {}) as (endpoint, _):
        error, _ = opened(service, endpoint)
    assert "None" not in str(error)
    if "s3" in service:
        assert "InvalidAccessKeyId" in str(error)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_expired_credentials_are_asked_for_again_and_then_named(backend):
    options = {**S3_KEYS, "region": "us-east-1", "token": "old", "backend": backend}
    with (
        serving(answering((400, "ExpiredToken")), {}) as (endpoint, _),
        pytest.raises(AccessDeniedError) as caught,
    ):
        zd.open("s3://bucket/a", storage_options={**options, "endpoint_url": endpoint})
    assert caught.value.expired


def test_a_bad_gateway_passes(service):
    """Each library has a word of its own for it; that of gcsfs is no status."""
    policy = {"attempts": 2, "wait": 0}
    url, options = SERVED_BY[service]
    with serving(answering((502, "BadGateway")), {}) as (endpoint, _):
        given = {**options, "retry": policy, **({"endpoint_url": endpoint} if url else {})}
        with pytest.raises(StoreUnavailableError, match="given up after 2 attempts"):
            zd.open(url or f"{endpoint}/bucket/a", storage_options=given)


def test_what_gcsfs_raises_as_a_value_error_is_a_store_error(monkeypatch):
    monkeypatch.setattr(f"{__name__}.ERROR", '{{"error": "invalid, {}"}}')
    with serving(answering((400, "no")), {}) as (endpoint, _):
        error, _ = opened("gs, fsspec", endpoint)
    assert "invalid, no" in str(error)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("/nowhere/key.json", "names a file, and there is none"),
        ({"access_token": "x"}, "'refresh_token' is missing in the options"),
    ],
)
def test_tokens_of_google_that_are_none(token, words):
    options = {"token": token, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StoreError, match=words) as caught:
        zd.open("gs://bucket/a", storage_options=options)
    assert "nowhere" not in str(caught.value)


def test_redirects_without_end(service):
    with serving(answering((307, "Redirect"), ("Location", "/again")), {}) as (endpoint, _):
        error, seconds = opened(service, endpoint)
    assert "redirect" in str(error).lower()
    assert seconds < SOON


def test_a_presigned_url_is_told_apart():
    words = "A presigned URL is for one object"
    with (
        serving(answering((403, "SignatureDoesNotMatch")), {}) as (endpoint, _),
        pytest.raises(AccessDeniedError, match=words) as caught,
    ):
        zd.open(f"{endpoint}/bucket/a?X-Amz-Signature=abc&X-Amz-Expires=9")
    assert "abc" not in str(caught.value)
