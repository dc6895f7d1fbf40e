"""Storage options in fsspec's spelling, translated for obstore.

Users pass the same options for both libraries: those of s3fs, gcsfs and adlfs. Options that have no
translation, or would mean something else, are left to fsspec. Credentials and regions of AWS's
configuration files are read by boto3 where it is installed, else here; a region that nobody has
told is asked of S3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from zarr_dask.errors import StoreError
from zarr_dask.stores.credential_functions import function_of

__all__ = [
    "AWS_ENDPOINTS",
    "SCHEMES",
    "UNIMPORTANT",
    "WEB",
    "BucketPath",
    "check_names",
    "client_of",
    "environment_hash",
    "fsspec_configuration",
    "in_reach_of_obstore",
    "obstore_supports",
    "place_of",
    "refusal",
    "to_fsspec_options",
    "to_obstore_config",
]

_RETRY_SECONDS = 60
_CONNECT_SECONDS = 10
_REQUEST_SECONDS = 900  # also if bytes arrive slowly

_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_S3_KEYS = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "region": "region",
}
_ENCRYPTION = (
    ("server_side_encryption", "ServerSideEncryption", "server_side_encryption"),
    ("sse_kms_key_id", "SSEKMSKeyId", "sse_kms_key_id"),
    ("bucket_key_enabled", "BucketKeyEnabled", "sse_bucket_key_enabled"),
)
"""Names of options, of S3's own interface (``s3_additional_kwargs`` of s3fs), and of obstore."""
_S3_CLIENT_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "endpoint_url": "endpoint",
    "region_name": "region",
}
_BY_BOTO3 = (
    "credential_process",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
    "login_session",
)
"""Ways to get credentials in AWS's configuration files that boto3 knows, and obstore does not."""
_GOOGLE_CREDENTIALS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GCE_METADATA_HOST",
    "K_SERVICE",  # Cloud Run
)
_GCLOUD_FILE = "application_default_credentials.json"
_GOOGLES_MACHINE = Path("/sys/class/dmi/id/product_name")
_AZURE_KEYS = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "tenant_id": "tenant_id",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "endpoint_url": "endpoint",
}
_CONNECTION_KEYS = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}
_FSSPEC_AZURE = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_key": "sas_token",
}
_ANON = dict.fromkeys(("anonymous", "no_sign_request", "skip_signature", "unsigned"), "anon")
_FOREIGN = {
    **_ANON,
    "access_key": "key",
    "access_key_id": "key",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "aws_region": "region",
    "ACL": "s3_additional_kwargs={'ACL': ...}",
    "BucketKeyEnabled": "bucket_key_enabled",
    "RequestPayer": "requester_pays",
    "SSEKMSKeyId": "sse_kms_key_id",
    "ServerSideEncryption": "server_side_encryption",
    "StorageClass": "s3_additional_kwargs={'StorageClass': ...}",
    "acl": "s3_additional_kwargs={'ACL': ...}",
    "endpoint": "endpoint_url",
    "endpoint_override": "endpoint_url",
    "profile_name": "profile",
    "region_name": "region",
    "request_payer": "requester_pays",
    "sse_bucket_key_enabled": "bucket_key_enabled",
    "sse_customer_key_base64": "s3_additional_kwargs={'SSECustomerKey': ...}",
    "storage_class": "s3_additional_kwargs={'StorageClass': ...}",
    "secret_access_key": "secret",
    "secret_key": "secret",
    "session_token": "token",
}
"""Option names for S3 in obstore, boto3, pyarrow and zarr-python, and their names in fsspec."""
_AWS_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
AWS_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
UNIMPORTANT = {"asynchronous", "skip_instance_cache", "use_listings_cache"}
"""Options for fsspec's instance caching and event loop, which do not affect the service."""


class BucketPath(NamedTuple):
    """The location of values."""

    scheme: str
    bucket: str
    path: str
    """Path in the bucket, without leading or trailing slashes."""

    @property
    def url(self) -> str:
        """The location as a URL."""
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")


class ClientConfig(NamedTuple):
    """Arguments for an obstore client."""

    kind: str
    """Name of the class."""
    config: dict[str, Any]
    insecure: bool = False
    """True if requests use plain HTTP."""
    profile: str | None = None
    """Profile of AWS's configuration files; "" for boto3's default, None if boto3 is not used."""
    headers: Mapping[str, str] | None = None
    """HTTP headers of every request."""
    provider: str | None = None
    """A function that returns credentials, as "module:name"."""


def place_of(url: str) -> BucketPath:
    """Return the scheme, bucket and path of a URL.

    Examples
    --------
    >>> place_of("s3://bucket/data/a.zarr/")
    BucketPath(scheme='s3', bucket='bucket', path='data/a.zarr')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return BucketPath(scheme, bucket, path.strip("/"))


def share_bucket(url: str, other: str) -> bool:
    """True if two URLs name places in one bucket of an object store.

    Examples
    --------
    >>> share_bucket("s3://bucket/a", "s3://bucket/b"), share_bucket("s3://bucket", "s3://other")
    (True, False)
    >>> share_bucket("https://host/a", "https://host/b")
    False
    """
    places = {place_of(one)._replace(path="") for one in (url, other)}
    return len(places) == 1 and places.pop().scheme not in WEB


def to_obstore_config(url: str, options: Mapping[str, Any]) -> ClientConfig | None:
    """Return obstore's arguments for serving a URL as fsspec would; None if it cannot.

    Examples
    --------
    >>> options = {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}}
    >>> to_obstore_config("s3://bucket/a", options)
    ClientConfig(kind='S3Store', config={'region': 'eu-west-1', 'skip_signature': True}, ...)
    >>> to_obstore_config("s3://bucket/a", {"anon": True, "version_aware": True}) is None
    True
    """
    client, left = _parted(url, options)
    return None if left or isinstance(client, str) else client


def refusal(url: str, options: Mapping[str, Any]) -> str:
    """Return the reason why obstore cannot serve a URL as fsspec would; "" if it can.

    Examples
    --------
    >>> refusal("s3://bucket/a", {"key": "k"})
    "storage_options has one of 'key' and 'secret' and lacks the other"
    """
    client, left = _parted(url, options)
    if isinstance(client, str):
        return client
    return f"obstore does not know the options {sorted(_names(left))}" if left else ""


def check_names(url: str, options: Mapping[str, Any]) -> None:
    """Raise if options of a service have names of another library.

    Raises
    ------
    StoreError
        If one has; the message has fsspec's name.

    Examples
    --------
    >>> check_names("gs://bucket/a", {"skip_signature": True})
    Traceback (most recent call last):
    zarr_dask.errors.StoreError: gs://bucket/a: the storage option 'skip_signature' is not known \
here: it is called anon.
    """
    scheme = url.partition("://")[0]
    if "::" in url or scheme not in SCHEMES or scheme in WEB:
        return
    foreign = _FOREIGN if scheme in {"s3", "s3a"} else _ANON
    for name in options:
        if name in foreign:
            raise StoreError(
                f"{url}: the storage option {name!r} is not known here: it is called "
                f"{foreign[name]}."
            )


def _parted(url: str, options: Mapping[str, Any]) -> tuple[ClientConfig | str, dict[str, Any]]:
    """Return obstore's arguments for a URL, or why it cannot serve it, and untranslated options."""
    place = place_of(url)
    translate = SCHEMES.get(place.scheme)
    if translate is None or not place.bucket or any(sign in url for sign in ("::", "@", "?")):
        return (
            "obstore serves URLs like s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH",
            {},
        )
    given = {**fsspec_configuration(place.scheme), **options}
    left = {name: value for name, value in given.items() if name not in UNIMPORTANT}
    return translate(left), left


def in_reach_of_obstore(url: str) -> bool:
    """True if obstore serves locations of this kind, whatever the options are.

    Examples
    --------
    >>> in_reach_of_obstore("s3://bucket/a"), in_reach_of_obstore("zip::s3://bucket/a.zip")
    (True, False)
    """
    return "::" not in url and place_of(url).scheme in SCHEMES


def fsspec_configuration(scheme: str) -> dict[str, Any]:
    """Return options from fsspec's own configuration: its files and ``FSSPEC_...`` variables.

    They are read when a client is created, as fsspec does, so they are never pickled.
    """
    from fsspec.config import conf

    return dict(conf.get(scheme, {}))


def environment_hash(scheme: str) -> int:
    """Return a hash of the settings outside of options, so that changing them makes a new client.

    It covers the environment and fsspec's configuration, as far as they concern services.
    """
    # for each request: names and values are not decoded, as they would be by iterating
    variables = frozenset(getattr(os.environ, "_data", os.environ).items())
    return hash((_relevant(variables), repr(fsspec_configuration(scheme))))


@lru_cache(maxsize=4)
def _relevant(variables: frozenset[tuple[str | bytes, str | bytes]]) -> int:
    """Return a hash of the variables that concern services."""
    return hash(frozenset(one for one in variables if os.fsdecode(one[0]).startswith(_READ)))


_READ = ("AWS_", "AZURE_", "GOOGLE_", "SSL_", "HTTP", "http", "ALL_", "NO_P")  # prefixes


def obstore_supports(url: str, options: Mapping[str, Any]) -> bool:
    """True if obstore is installed and can serve a URL as fsspec would."""
    return find_spec("obstore") is not None and to_obstore_config(url, options) is not None


def client_of(place: BucketPath, options: str, timeout: float, retries: int) -> Any:
    """Return an obstore client for a bucket.

    Parameters
    ----------
    place
        The location.
    options
        In fsspec's spelling, as JSON text.
    timeout
        Seconds to wait for a response and each part of it.
    retries
        Number of retries of each request by the client itself.

    Raises
    ------
    ValueError
        If the options have no translation.
    """
    from obstore import store

    client, left = _parted(place.url, json.loads(options))
    if isinstance(client, str):
        raise ValueError(client)
    if left:
        names = sorted(_names(left))
        raise ValueError(f"obstore cannot do what the options {names} ask for; fsspec may")
    given: dict[str, Any] = {**client.config}
    if client.provider is not None:
        given["credential_provider"] = function_of(client.provider)
    if client.kind == "S3Store" and "region" not in given:
        from zarr_dask.stores.aws_files import bucket_region

        given["region"] = bucket_region(place.bucket)
    if client.profile is not None:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            session = boto3.Session(profile_name=client.profile or None)
        except BotoCoreError as error:  # no such profile
            raise ValueError(str(error)) from error
        if session.get_credentials() is None:
            raise ValueError(
                "no credentials were found: give key and secret, a profile, or anon=True for "
                "a bucket that everybody may read"
            )
        given["credential_provider"] = Boto3CredentialProvider(session)
    return getattr(store, client.kind)(
        place.url if place.scheme in WEB else place.bucket,
        **given,
        client_options={
            "allow_http": client.insecure,
            **({"default_headers": dict(client.headers)} if client.headers else {}),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, timeout)),
            "read_timeout": timedelta(seconds=timeout),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        },
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
        },
    )


def _names(options: Mapping[str, Any]) -> list[str]:
    """Return the names of options, including those of botocore's client."""
    inner = options.get("client_kwargs")
    outer = [name for name in options if name != "client_kwargs"]
    return outer + [f"client_kwargs[{name!r}]" for name in inner or ()]


# --- services -------------------------------------------------------------------------------------


def _s3(left: dict[str, Any]) -> ClientConfig | str:
    """Translate options of s3fs, removing those that were translated."""
    kwargs = dict(left.pop("client_kwargs", None) or {})
    config = _taken(left, _S3_KEYS) | _taken(kwargs, _S3_CLIENT_KEYS)
    profile = left.pop("profile", None)
    endpoint = config.get("endpoint") or _first(AWS_ENDPOINTS) or _endpoint_of(profile)
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        config.setdefault("region", _first(_AWS_REGIONS) or "us-east-1")
    insecure = left.pop("use_ssl", True) is False or str(endpoint).startswith("http:")
    config |= _encryption(left)
    if left.pop("requester_pays", False):
        config["request_payer"] = True
    if left.pop("anon", False):
        config["skip_signature"] = True
    if kwargs:
        left["client_kwargs"] = kwargs
    if ("access_key_id" in config) != ("secret_access_key" in config):
        return "storage_options has one of 'key' and 'secret' and lacks the other"
    provider = left.pop("credential_provider", None)
    own = bool({"skip_signature", "access_key_id"} & config.keys()) or provider is not None
    own = own or (not profile and _first(_AWS_CREDENTIALS) is not None)
    if not own and profile and _profile_settings(profile) is None:
        return _no_profile(profile)
    by_boto3 = not own and find_spec("boto3") is not None
    if not own and not by_boto3:
        found = _from_files(profile)
        if isinstance(found, str):
            return found
        config |= found
    region = config.get("region") or _first(_AWS_REGIONS) or (None if own else _region_of(profile))
    config |= {"region": region} if region else {}
    boto3s = profile or "" if by_boto3 else None
    return ClientConfig("S3Store", config, insecure, boto3s, provider=provider)


def _no_profile(name: str) -> str:
    return f"AWS's configuration files have no profile {name!r}"


def _from_files(profile: str | None) -> dict[str, str] | str:
    """Return credentials from AWS's configuration files, or a text that tells why there are none.

    They are empty if the files have none, so that obstore asks the machine for its role.
    """
    named = profile or os.environ.get("AWS_PROFILE")
    settings = _profile_settings(profile)
    if settings is None:
        if named:
            return _no_profile(named)
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return (
                "no credentials were found in storage_options (key and secret), the environment "
                'or AWS\'s files; what is public is read with storage_options={"anon": True}'
            )
        return {}
    if "aws_access_key_id" in settings:
        return _taken(dict(settings), _S3_CLIENT_KEYS)
    source = next((name for name in _BY_BOTO3 if name in settings), None)
    if source is not None:
        return (
            f"the profile {named or 'default'!r} gets its credentials by {source!r}, which takes "
            "boto3: pip install boto3"
        )
    return {}


def _encryption(left: dict[str, Any]) -> dict[str, Any]:
    """Remove options for encryption, also by the names of S3's own interface; return obstore's."""
    more = dict(left.pop("s3_additional_kwargs", None) or {})
    found = _taken(more, {theirs: ours for _, theirs, ours in _ENCRYPTION})
    found |= _taken(left, {name: ours for name, _, ours in _ENCRYPTION})
    if more:
        left["s3_additional_kwargs"] = more
    return found


def _taken(options: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Remove options by fsspec's names, and return them by obstore's."""
    found = {ours: options.pop(name, None) for name, ours in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _profile_settings(profile: str | None) -> dict[str, str] | None:
    from zarr_dask.stores.aws_files import profile_settings  # which loads clients of HTTP

    return profile_settings(profile)


def _region_of(profile: str | None) -> str | None:
    """Return the region from AWS's configuration files."""
    return (_profile_settings(profile) or {}).get("region")


def _endpoint_of(profile: str | None) -> str | None:
    """Return the S3 endpoint from AWS's configuration files, if there is one."""
    file = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return None
    if "endpoint_url" not in text:
        return None
    if find_spec("boto3") is None:
        return (_profile_settings(profile) or {}).get("endpoint_url")
    return _endpoint_in(text, profile or os.environ.get("AWS_PROFILE"))


@lru_cache(maxsize=16)
def _endpoint_in(text: str, profile: str | None) -> str | None:  # noqa: ARG001  (cache key)
    """Return the result of `_endpoint_of` by AWS's own rules, by making a client."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.Session(profile_name=profile)
        client = session.client("s3", region_name=session.region_name or "us-east-1")
    except BotoCoreError:
        return None
    endpoint = str(client.meta.endpoint_url)
    host = urlsplit(endpoint).hostname or ""
    return None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else endpoint


def _gcs(left: dict[str, Any]) -> ClientConfig | str:
    """Translate options of gcsfs."""
    config: dict[str, Any] = {}
    left.pop("project", None)  # only used to create buckets
    endpoint = left.pop("endpoint_url", None)
    if not endpoint and os.environ.get("STORAGE_EMULATOR_HOST"):
        return "STORAGE_EMULATOR_HOST is for gcsfs: give storage_options={'endpoint_url': ...}"
    if endpoint:
        config["base_url"] = endpoint.rstrip("/")
    token, provider = left.pop("token", None), left.pop("credential_provider", None)
    anon = left.pop("anon", False) or token == "anon"  # noqa: S105  (gcsfs's word for none)
    found = token is not None or provider is not None or _finds_google_credentials()
    if anon or not found:  # without credentials gcsfs is anonymous, too
        config["skip_signature"] = True
        # without it obstore requests a token from the machine's metadata server
        config["service_account_key"] = _nobody(config.get("base_url"))
    elif isinstance(token, Mapping):
        if "private_key" not in token:
            return "the token is of a user and not of a service account, which gcsfs knows"
        config["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str) and Path(token).is_file():
        config["application_credentials"] = token
    elif token not in (None, "google_default", "cloud"):
        return "the token is neither a file nor the key of a service account, which gcsfs may know"
    return ClientConfig("GCSStore", config, str(endpoint).startswith("http:"), provider=provider)


def _finds_google_credentials() -> bool:
    """True if the environment, gcloud's folder or a Google machine provides credentials."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    return (
        _first(_GOOGLE_CREDENTIALS) is not None
        or Path(folder, _GCLOUD_FILE).expanduser().is_file()
        or _is_googles_machine()
    )


@lru_cache(maxsize=1)
def _is_googles_machine() -> bool:
    try:
        return _GOOGLES_MACHINE.read_text(errors="replace").startswith("Google")
    except OSError:
        return False


def _nobody(base_url: str | None) -> str:
    """Return a Google Cloud account that needs no token."""
    account = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    return json.dumps({**account, **({"gcs_base_url": base_url} if base_url else {})})


def _azure(left: dict[str, Any]) -> ClientConfig | str:
    """Translate options of adlfs."""
    told = left.pop("connection_string", None) or _first(("AZURE_STORAGE_CONNECTION_STRING",))
    config = _taken(left, _AZURE_KEYS) | _connection(told)
    host = left.pop("account_host", None)
    if host:
        config.setdefault("endpoint", f"https://{host}")
    if "endpoint" in config:
        config["endpoint"] = config["endpoint"].rstrip("/")
    if left.pop("anon", False):
        config["skip_signature"] = True
    if "account_name" not in config and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        return (
            "the storage account is not named: give storage_options={'account_name': ...} or a "
            "'connection_string', or set AZURE_STORAGE_ACCOUNT_NAME in the environment"
        )
    insecure = str(config.get("endpoint")).startswith("http:")
    return ClientConfig(
        "AzureStore", config, insecure, provider=left.pop("credential_provider", None)
    )


def _connection(text: str | None) -> dict[str, str]:
    """Translate an Azure connection string."""
    told = dict(part.split("=", 1) for part in (text or "").split(";") if "=" in part)
    config = {ours: told[name] for name, ours in _CONNECTION_KEYS.items() if name in told}
    if "account_name" in config and "EndpointSuffix" in told:
        protocol = told.get("DefaultEndpointsProtocol", "https")
        host = f"{config['account_name']}.blob.{told['EndpointSuffix']}"
        config.setdefault("endpoint", f"{protocol}://{host}")
    return config


def to_fsspec_options(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for fsspec's file systems, translating those that one of them lacks.

    Examples
    --------
    >>> to_fsspec_options("gs://bucket/a", {"anon": True})
    {'token': 'anon'}
    >>> to_fsspec_options("az://c/a", {"account_name": "n", "endpoint_url": "http://host"})
    {'connection_string': 'BlobEndpoint=http://host;AccountName=n'}
    """
    given = {name: value for name, value in options.items() if name != "asynchronous"}
    scheme = url.partition("://")[0]
    if scheme in {"s3", "s3a"} and "::" not in url and given.get("region"):
        kwargs = given.get("client_kwargs") or {}
        given["client_kwargs"] = {"region_name": given.pop("region"), **kwargs}
    if scheme in {"s3", "s3a"} and "::" not in url:
        asked = _taken(given, {name: theirs for name, theirs, _ in _ENCRYPTION})
        if asked:
            given["s3_additional_kwargs"] = {**(given.get("s3_additional_kwargs") or {}), **asked}
    if scheme in {"gs", "gcs"} and "anon" in given and given.pop("anon"):
        given["token"] = "anon"  # noqa: S105  (gcsfs's word for none)
    if scheme in {"gs", "gcs"} and _names_no_file(given.get("token")):
        raise ValueError("storage_options['token'] names a file, and there is none")
    if scheme in {"az", "abfs"} and given.get("endpoint_url"):
        told = [f"BlobEndpoint={given.pop('endpoint_url').rstrip('/')}"]
        for name, ours in _CONNECTION_KEYS.items():
            value = given.pop(_FSSPEC_AZURE[ours], None) if ours in _FSSPEC_AZURE else None
            told += [f"{name}={value}"] if value else []
        given["connection_string"] = ";".join(told)
    return given


def _names_no_file(token: Any) -> bool:
    """True for a path without a file, which gcsfs would send to Google as a token."""
    is_path = isinstance(token, str) and (token.startswith(("/", "~", ".")) or ".json" in token)
    return is_path and not Path(token).expanduser().is_file()


def _http(left: dict[str, Any]) -> ClientConfig:
    """Translate options of `zarr_dask.stores.backends.http`."""
    return ClientConfig("HTTPStore", {}, insecure=True, headers=left.pop("headers", None))


WEB = {"http", "https"}
"""Schemes of servers that have no buckets, conditional requests or codes for missing objects."""

SCHEMES: Mapping[str, Callable[[dict[str, Any]], ClientConfig | str]] = {
    "s3": _s3,
    "s3a": _s3,
    "gs": _gcs,
    "gcs": _gcs,
    "az": _azure,
    "abfs": _azure,
    "http": _http,
    "https": _http,
}
"""The translator for each scheme that obstore serves."""


def _first(names: tuple[str, ...]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
