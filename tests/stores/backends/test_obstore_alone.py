"""Object stores with obstore alone: no s3fs, gcsfs, adlfs or boto3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count

import pytest

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.http_server import Files, serving
from tests.support.object_stores import KEY, SECRET, s3_server
from zarr_dask.errors import AccessDeniedError, StoreError
from zarr_dask.stores import open_store
from zarr_dask.stores.config import to_config
from zarr_dask.stores.option_mapping import (
    environment_hash,
    to_fsspec_options,
    to_obstore_config,
)

NUMBERS = count()
ALONE = """
import json, os, sys
for name in ("s3fs", "gcsfs", "adlfs", "boto3", "botocore", "aiobotocore"):
    sys.modules[name] = None  # as where they are not installed
import zarr_dask as zd
from zarr_dask.stores import open_store
from zarr_dask.stores import aws_files

def answer(url, options, aws, do, environment):
    os.environ.clear()
    os.environ.update(environment)
    aws_files._S3 = aws
    store = open_store(url, options)
    if do == "config":
        client = store._served().client()[1]
        return [type(store).__name__, dict(client.config)]
    if do == "put":
        store.set("a", [b"1"])
        return bytes(store.get("a")).decode()
    return zd.open_array(url, storage_options=options)[...].tolist()

for line in sys.stdin:
    try:
        found = answer(*json.loads(line))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def process():
    command = [sys.executable, "-c", ALONE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as running:
        yield running
        running.stdin.close()


@pytest.fixture
def alone(tmp_path, process):
    """A process that has obstore alone, and nothing that tells it credentials."""

    def ask(url, options=None, do="read", aws="", **environment):
        names = ("AWS_", "AZURE_", "GOOGLE_", "FSSPEC_", "STORAGE_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(names)}
        kept |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
        given = {k: v for k, v in {**kept, **environment}.items() if v is not None}
        print(json.dumps([url, options or {}, aws, do, given]), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    return ask


class Regions(Files):
    """S3 of AWS, as it answers who asks for the region of a bucket."""

    def do_HEAD(self):  # noqa: N802
        bucket = self.path.strip("/")
        self.seen.append((self.command, bucket, None))
        known = {"open": 200, "closed": 403, "elsewhere": 301}
        told = [("x-amz-bucket-region", "eu-south-2")] if bucket in known else []
        self.answer(known.get(bucket, 404), headers=told)


def test_the_region_of_a_bucket_is_asked_for(alone):
    with serving(Regions, {}) as (aws, seen):
        for bucket in ("open", "closed", "elsewhere"):
            kind, config = alone(f"s3://{bucket}/a", {"anon": True}, "config", aws)
            assert kind == "ObstoreStore"
            assert config["region"] == "eu-south-2"
        assert [one[:2] for one in seen] == [("HEAD", b) for b in ("open", "closed", "elsewhere")]
        said = alone("s3://nobody/a", {"anon": True}, "config", aws)
        assert said.startswith("StoreError: AWS has no bucket 'nobody'. Give the region by")
        seen.clear()
        region = {"anon": True, "client_kwargs": {"region_name": "r"}}
        for options, environment in ((region, {}), ({"anon": True}, {"AWS_REGION": "r"})):
            _, config = alone("s3://open/a", options, "config", aws, **environment)
            assert config["region"] == "r"
        assert not seen
    said = alone("s3://far/a", {"anon": True}, "config", "http://127.0.0.1:9")
    assert "the region of the bucket 'far' is not given, and S3 could not be asked" in said


def test_what_is_public_is_read(server, alone):
    url = f"s3://bucket/public-{next(NUMBERS)}"
    array = zd.create_array(url, shape=(3,), dtype="i4", storage_options=server.options)
    array[...] = 7
    for key in array.store.list():
        at = f"{url.removeprefix('s3://bucket/')}/{key}"
        server.admin.put_object_acl(Bucket="bucket", Key=at, ACL="public-read")
    options = {"anon": True, "endpoint_url": server.endpoint}
    assert alone(url, options) == [7, 7, 7]


def test_credentials_of_the_environment(server, alone):
    environment = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    environment["AWS_ENDPOINT_URL"] = server.endpoint
    url = f"s3://bucket/environment-{next(NUMBERS)}"
    assert alone(url, do="put", **environment) == "1"


def test_credentials_of_files(server, alone, tmp_path):
    (tmp_path / ".aws").mkdir()
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / ".aws/credentials").write_text(f"[default]\n{keys}[lab]\n{keys}")
    (tmp_path / ".aws/config").write_text(
        f"[default]\nregion = us-east-1\nendpoint_url = {server.endpoint}\n"
        f"[profile lab]\nendpoint_url = {server.endpoint}\n"
        "[profile office]\nsso_start_url = https://office\nregion = r\n"
    )
    url = f"s3://bucket/files-{next(NUMBERS)}"
    assert alone(url, do="put") == "1"
    assert alone(url, {"profile": "lab"}, "put") == "1"
    assert alone(url, do="put", AWS_PROFILE="lab") == "1"
    said = alone(url, {"profile": "office"})
    assert "'office' gets its credentials by 'sso_start_url', which takes boto3: pip insta" in said
    assert "have no profile 'cellar'" in alone(url, {"profile": "cellar"})


class Machine(Files):
    """What a machine of EC2 tells of its role."""

    def do_PUT(self):  # noqa: N802
        self.answer(200, b"a token")

    def do_GET(self):  # noqa: N802
        folder = "/latest/meta-data/iam/security-credentials/"
        self.seen.append((self.command, self.path, None))
        role = {
            "AccessKeyId": KEY,
            "SecretAccessKey": SECRET,
            "Token": "t",
            "Expiration": "2099-01-01T00:00:00Z",
        }
        self.answer(200, b"role" if self.path == folder else json.dumps(role).encode())


def test_the_role_of_the_machine(server, alone):
    with serving(Machine, {}) as (endpoint, seen):
        environment = {"AWS_METADATA_ENDPOINT": endpoint, "AWS_EC2_METADATA_DISABLED": None}
        url = f"s3://bucket/role-{next(NUMBERS)}"
        options = {"endpoint_url": server.endpoint}
        assert alone(url, options, "put", **environment) == "1"
        assert seen


class NoRole(Files):
    """A machine that has no role."""

    def do_PUT(self):  # noqa: N802
        self.answer(403)


def test_a_machine_without_a_role_is_no_outage(alone):
    with serving(NoRole, {}) as (endpoint, _):
        environment = {"AWS_METADATA_ENDPOINT": endpoint, "AWS_EC2_METADATA_DISABLED": None}
        said = alone("s3://b/a", {"region": "r"}, **environment)
    assert said.startswith("AccessDeniedError")
    assert "No credentials were found: give them by the environment or storage_options" in said
    environment["AWS_METADATA_ENDPOINT"] = "http://127.0.0.1:9"
    assert "No credentials were found" in alone("s3://b/a", {"region": "r"}, **environment)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("s3://b/a", {"region": "r"}, "no credentials were found in storage_options"),
        ("s3://b/a", {"key": "k", "region": "r"}, "has one of 'key' and 'secret'"),
        ("s3://b/a", {"anon": True, "nonsense": 1}, r"does not know the options ['nonsense']"),
        ("s3://b/a", {"anon": True, "skip_signature": True}, "it is called anon"),
        ("gs://b/a", {"skip_signature": True}, "it is called anon"),
        ("gs://b/a", {"anonymous": True}, "it is called anon"),
        ("az://c/a", {}, "the storage account is not named: give storage_options={'account_name'"),
    ],
)
def test_what_is_missing_is_named(alone, url, options, says):
    said = alone(url, options)
    assert said.startswith("StoreError")
    assert says in said
    assert "Install" not in said
    assert "pip install 'zarr-dask[obstore]'" not in said


def test_other_services_without_options(alone):
    kind, config = alone("gs://b/a", do="config")
    assert (kind, config["skip_signature"]) == ("ObstoreStore", "true")
    kind, _ = alone("az://c/a", do="config", AZURE_STORAGE_ACCOUNT_NAME="n")
    assert kind == "ObstoreStore"


# --- credentials that change ----------------------------------------------------------------------

GIVEN = []


def provide():
    """Credentials, as obstore asks a function for them."""
    GIVEN.append(1)
    return {
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "token": f"token-{len(GIVEN)}",
        "expires_at": None,
    }


def test_a_function_gives_credentials_and_is_asked_again_whenever_they_expire(server):
    GIVEN.clear()
    with fault_proxy(server.endpoint) as proxy:
        options = {"endpoint_url": proxy.endpoint, "region": "us-east-1"}
        url = f"s3://bucket/function-{next(NUMBERS)}"
        store = open_store(url, {**options, "credential_provider": provide})
        store.set("a", [b"1"])
        store.set("b", [b"2"])
        assert len(GIVEN) == 1
        proxy.faults.rate, proxy.faults.kinds = 1.0, {"expired": 1}
        for number in (1, 2, 3):  # one after the other, within a second
            proxy.faults.times = 1
            assert bytes(store.get("a")) == b"1"
            assert len(GIVEN) == 1 + number
            assert proxy.faults.happened == {"expired": number}
        proxy.faults.times = 1 << 60
        with pytest.raises(PermissionError, match="has expired"):
            store.get("a")
    assert "credential_provider" not in json.dumps(to_config(store))
    again = open_store(url, {**options, "credential_provider": f"{__name__}:provide"})
    assert again == store


def provide_other():
    """Credentials in the words of s3fs."""
    return {"key": KEY, "secret": SECRET}


def test_a_function_that_gives_something_else_is_told_what_is_expected(server):
    options = {"endpoint_url": server.endpoint, "region": "us-east-1"}
    store = open_store("s3://bucket", {**options, "credential_provider": provide_other})
    with pytest.raises(AccessDeniedError, match=r"dictionary with access_key_id") as caught:
        store.get("a")
    assert SECRET not in str(caught.value)


def test_s3fs_reads_credentials_again_whenever_they_expire(server, tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    text = f"[default]\naws_access_key_id={server.key}\naws_secret_access_key={server.secret}\n"
    file.write_text(text)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with fault_proxy(server.endpoint) as proxy:
        options = {"endpoint_url": proxy.endpoint, "region": "us-east-1", "backend": "fsspec"}
        store = open_store(f"s3://bucket/file-{next(NUMBERS)}", options)
        changes = [
            lambda: store.set("a", [b"1"]),
            lambda: store.get("a"),
            lambda: store.size("a"),
            lambda: [*store.list()],
            lambda: store.set_if("b", [b"2"], None),
            lambda: store.delete("a"),
            lambda: store.delete_prefix(""),
        ]
        proxy.faults.kinds = {"expired": 1}
        for number, change in enumerate(changes):
            proxy.faults.rate, proxy.faults.times = 1.0, 1
            change()
            assert proxy.faults.happened == {"expired": 1 + number}
        assert not [*store.list()]


def test_functions_that_nobody_can_import_are_refused():
    for function in (lambda: None, print.__call__):
        with pytest.raises(StoreError, match="define a function at the top of a module"):
            open_store("s3://bucket/a", {"credential_provider": function})
    options = {"credential_provider": "nowhere:no", "region": "r", "backend": "obstore"}
    with pytest.raises(StoreError, match="there is no such function"):
        open_store("s3://bucket/a", options)


# --- encryption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_encryption_means_the_same_for_both_backends(server, backend):
    key = f"encrypted-{next(NUMBERS)}"
    asked = {"server_side_encryption": "aws:kms", "sse_kms_key_id": "key-7"}
    store = open_store(f"s3://bucket/{key}", {**server.options, **asked, "backend": backend})
    store.set("a", [b"1"])
    found = server.admin.head_object(Bucket="bucket", Key=f"{key}/a")
    assert found["ServerSideEncryption"] == "aws:kms"
    assert found["SSEKMSKeyId"].endswith("key-7")
    said = to_config(store)["options"]
    assert asked.items() <= said.items()


def test_encryption_in_the_words_of_s3():
    theirs = {"ServerSideEncryption": "AES256"}
    options = {"anon": True, "region": "r"}
    found = to_obstore_config("s3://b/a", {**options, "s3_additional_kwargs": theirs})
    assert found.config["server_side_encryption"] == "AES256"
    assert (
        to_obstore_config("s3://b/a", {**options, "s3_additional_kwargs": {"ACL": "private"}})
        is None
    )
    given = to_fsspec_options("s3://b/a", {"server_side_encryption": "AES256"})
    assert given == {"s3_additional_kwargs": theirs}


# --- the environment ------------------------------------------------------------------------------


def test_only_variables_that_concern_services_make_new_clients(monkeypatch):
    before = environment_hash("s3")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert environment_hash("s3") == before
    monkeypatch.setenv("AWS_REGION", "somewhere")
    changed = environment_hash("s3")
    assert changed != before
    monkeypatch.setenv("AWS_REGION", "elsewhere")
    assert environment_hash("s3") not in {before, changed}
    monkeypatch.delenv("AWS_REGION")
    assert environment_hash("s3") == before
