"""Locations as users give them: paths, URLs, and objects of other libraries.

Stores of obstore, UPath and file systems of fsspec are replaced by a URL and options, so that they
are pickled, described and retried like any other store. No library is imported here: a caller that
passes one of its objects has done so.
"""

from __future__ import annotations

import json
import os
import re
import sys
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar
from urllib.parse import unquote

from zarr_dask.errors import StoreArgumentError, StoreError
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.option_mapping import SCHEMES

__all__ = [
    "expand_path",
    "is_file_system",
    "is_local",
    "named_place",
    "parse_location",
    "path_on",
    "unwrapped",
    "values_of_obstore",
    "without_session",
]


_LOCAL = {"file", "local"}
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_LOST_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/?(?![/:])")
_OTHERS = {"abfss", "ftp", "gdrive", "github", "hf", "memory", "reference", "sftp", "ssh"}
_OTHERS |= {"icechunk", "icechunk+s3"}
_SERVICES = {*SCHEMES, *_OTHERS, "http", "https"} - {"reference"}
"""Schemes whose URLs name a location by themselves, without another file system behind them."""


def parse_location(text: str) -> tuple[str, str]:
    """Return the scheme of a location, in lower case, and the location; "" and a path if local.

    Raises
    ------
    StoreError
        If it is a URL with a missing slash.

    Examples
    --------
    >>> parse_location("S3://bucket/a"), parse_location("file:///data/a%20b")
    (('s3', 's3://bucket/a'), ('', '/data/a b'))
    >>> parse_location("zip::/data/a.zip")
    ('zip', 'zip::file:///data/a.zip')
    """
    if "::" in text and _is_chain(text):
        first, *others = text.split("::")
        return first.partition(":")[0], "::".join([first, *others[:-1], _end_of_chain(others[-1])])
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found and ("://" in text or found[1].lower() == "file") else ""
    if not scheme or found is None:
        _check_slashes(text)
        return "", text
    rest = text[found.end(1) + 1 :]
    if scheme not in _LOCAL:
        return scheme, f"{scheme}:{rest}"
    path = unquote(rest.removeprefix("//"))
    return "", path.removeprefix("localhost") if path.startswith("localhost/") else path


def expand_path(path: str) -> str:
    """Return an absolute local path, expanding "~" to the user's folder.

    Raises
    ------
    StoreArgumentError
        If it is relative to a working directory that has been removed.
    """
    try:
        root = os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError as error:
        raise StoreArgumentError(
            f"{path!r} is relative to the working directory, which has been removed. Pass an "
            "absolute path, or change to a directory that exists."
        ) from error
    return root if root == "/" else root.rstrip("/")


def _is_chain(text: str) -> bool:
    """True if a text begins with a file system of fsspec that wraps another one.

    Files may have "::" in their names, hosts in addresses (``http://[::1]/a``), keys anywhere.
    """
    scheme, mark, _ = text.partition("::")[0].partition("://")
    if "/" in scheme or (mark and scheme.lower() in _SERVICES):
        return False
    return _is_known(scheme) and not os.path.lexists(text)


def _is_known(scheme: str) -> bool:
    from fsspec import available_protocols

    return scheme in available_protocols()


def _end_of_chain(place: str) -> str:
    """Return the last part of a chain; for a path, a URL that is valid in any working folder."""
    return place if "://" in place or _is_known(place) else f"file://{expand_path(place)}"


def _check_slashes(text: str) -> None:
    """Raise for ``s3:/bucket/a``, which would be a local folder called "s3:"."""
    found = _LOST_SLASH.match(text)
    if found is None or found[1].lower() not in {*SCHEMES, *_OTHERS}:
        return
    if not os.path.lexists(text.partition("/")[0]):
        raise StoreError(
            f"{text!r} is a URL that has lost slashes, as pathlib takes them: give a text, "
            f"'{found[1]}://{text[found.end() :]}'."
        )


_S3 = {
    "access_key_id": "key",
    "endpoint": "endpoint_url",
    "region": "region",
    "request_payer": "requester_pays",
    "secret_access_key": "secret",
    "server_side_encryption": "server_side_encryption",
    "session_token": "token",
    "skip_signature": "anon",
    "sse_bucket_key_enabled": "bucket_key_enabled",
    "sse_kms_key_id": "sse_kms_key_id",
    "token": "token",
}
_GCS = {
    "application_credentials": "token",
    "base_url": "endpoint_url",
    "service_account": "token",
    "service_account_key": "token",
    "service_account_path": "token",
    "skip_signature": "anon",
}
_AZURE = {
    "account_key": "account_key",
    "account_name": "account_name",
    "client_id": "client_id",
    "client_secret": "client_secret",
    "endpoint": "endpoint_url",
    "sas_key": "sas_token",
    "skip_signature": "anon",
    "tenant_id": "tenant_id",
}
_KINDS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "S3Store": ("s3", "bucket", _S3),
    "GCSStore": ("gs", "bucket", _GCS),
    "AzureStore": ("az", "container_name", _AZURE),
}
"""For each of obstore's stores the scheme, the name of its bucket, and fsspec's option names."""
_UNIMPORTANT = {"allow_http", "connect_timeout", "read_timeout", "timeout", "user_agent"}
"""Options of obstore's clients that follow from the address and from the retry policy here."""
_DEFAULTS = {"conditional_put": "etag", "virtual_hosted_style_request": "false"}
"""Options of obstore's stores that ask for nothing else than what is done without them."""


def named_place(given: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the URL or path and the options of an object that names a place; None for others.

    Raises
    ------
    StoreError
        If it has options that cannot be kept as texts.
    """
    path: Any = getattr(sys.modules.get("upath"), "UPath", None)
    if path is not None and isinstance(given, path):
        return str(given), dict(given.storage_options)
    if _is_of_obstore(given):
        return _of_obstore(given)
    fs: Any = getattr(given, "fs", None)
    if fs is not None and hasattr(given, "root") and _is_fsspec_of_obstore(fs):
        return _of_obstores_file_system(fs, str(given.root))
    return None


def is_file_system(given: Any) -> bool:
    """True for a file system of fsspec, which names no place without a path."""
    kind: Any = getattr(sys.modules.get("fsspec.spec"), "AbstractFileSystem", None)
    return kind is not None and isinstance(given, kind)


def path_on(fs: Any, path: str) -> Any:
    """Return the location of a path on a file system of fsspec."""
    fs, path = unwrapped(fs, path)
    return f"/{path.lstrip('/')}" if is_local(fs) else fs.get_mapper(path)


def is_local(fs: Any) -> bool:
    """True for the file system of this machine."""
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def unwrapped(fs: Any, path: str) -> tuple[Any, str]:
    """Return the file system and path behind fsspec's wrappers, such as that of one folder."""
    while True:
        if hasattr(fs, "sync_fs"):
            fs = fs.sync_fs
        elif type(fs).__name__ == "DirFileSystem":
            fs, path = fs.fs, f"{fs.path.rstrip('/')}/{path.lstrip('/')}"
        else:
            return fs, path


def _is_of_obstore(given: Any) -> bool:
    kind = type(given)
    return kind.__module__ in {"obstore.store", "obstore._store"} and hasattr(given, "put")


def _of_obstore(store: Any) -> tuple[str, dict[str, Any]] | None:
    from zarr_dask.stores.credential_functions import PROVIDER, name_of

    kind = type(store).__name__
    if kind == "LocalStore":
        return str(store.prefix or "/"), {}
    if kind == "HTTPStore":
        client = dict(store.client_options or {})
        headers = client.pop("default_headers", None)
        _check_known(store, client, _UNIMPORTANT)
        return store.url, {"backend": "obstore", **({"headers": headers} if headers else {})}
    if kind not in _KINDS:
        return None
    scheme, bucket, names = _KINDS[kind]
    config = dict(store.config)
    _check_known(store, dict(store.client_options or {}), _UNIMPORTANT)
    for name, value in _DEFAULTS.items():
        if config.get(name) == value:
            del config[name]
    place = f"{scheme}://{config.pop(bucket)}/{store.prefix or ''}".rstrip("/")
    options = _options(store, config, names)
    provider = store.credential_provider
    if provider is not None:
        options |= _keys_of_session(provider) or {PROVIDER: name_of(provider, place)}
    return place, {**options, "backend": "obstore"}


def _keys_of_session(provider: Any) -> dict[str, str] | None:
    """Return the keys that a session of boto3 was made with, if a provider is of one."""
    kind = type(provider)
    if (kind.__module__, kind.__name__) != ("obstore.auth.boto3", "Boto3CredentialProvider"):
        return None
    found = provider.credentials
    if found.method == "env":
        return {}
    if found.method != "explicit":
        return None
    keys = {"key": found.access_key, "secret": found.secret_key, "token": found.token}
    return {name: value for name, value in keys.items() if value}


def without_session(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the keys or the profile of a session of boto3 or aiobotocore instead.

    A session itself belongs to one process. One that was given neither finds its credentials in the
    environment, as other processes do.
    """
    left = dict(options)
    session: Any = left.get("session")
    session = getattr(session, "_session", session)  # boto3's wraps one of botocore
    if type(session).__module__ not in {"aiobotocore.session", "botocore.session"}:
        return left
    del left["session"]
    # its method is a coroutine in aiobotocore, and may ask a service
    found = getattr(session, "_credentials", None)
    if found is not None and found.method == "explicit":
        keys = {"key": found.access_key, "secret": found.secret_key, "token": found.token}
        return {**left, **{name: value for name, value in keys.items() if value}}
    return {**left, "profile": session.profile} if session.profile else left


def _options(store: Any, config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return fsspec's options for the configuration of a store of obstore."""
    _check_known(store, config, names)
    options: dict[str, Any] = {}
    for name, value in config.items():
        text = str(value)
        known: Any = {"true": True, "false": False}.get(text.lower(), text)
        options[names[name]] = json.loads(text) if name == "service_account_key" else known
    return options


def _check_known(store: Any, config: Mapping[str, Any], known: Any) -> None:
    unknown = sorted(name for name in config if name not in known)
    if unknown:
        raise StoreError(
            f"the {type(store).__name__} of obstore was given with {unknown}, which have no names "
            "among storage_options here: open its URL with storage_options, or pass "
            "zarr.storage.ObjectStore(store)."
        )


def _is_fsspec_of_obstore(fs: Any) -> bool:
    return any(kind.__module__ == "obstore.fsspec" for kind in type(fs).__mro__)


def _of_obstores_file_system(fs: Any, root: str) -> tuple[str, dict[str, Any]] | None:
    from zarr_dask.stores.credential_functions import PROVIDER, name_of

    scheme = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    schemes = {"s3": "S3Store", "gs": "GCSStore", "gcs": "GCSStore", "az": "AzureStore"}
    if scheme not in schemes:
        return None
    given = dict(fs.storage_options)
    config = {**(given.pop("config", None) or {})}
    client = dict(given.pop("client_options", None) or {})
    for name in ("retry_config", "asynchronous", "protocol", "skip_instance_cache"):
        given.pop(name, None)
    provider = given.pop(PROVIDER, None)
    _check_known(fs, client, _UNIMPORTANT)
    options = _options(fs, {**config, **given}, _KINDS[schemes[scheme]][2])
    place = f"{scheme}://{root}"
    more = {} if provider is None else {PROVIDER: name_of(provider, place)}
    return place, {**options, **more, "backend": "obstore"}


# --- values in memory -----------------------------------------------------------------------------


def values_of_obstore(given: Any) -> MemoryStore | None:
    """Return the store for one of obstore in the memory of this process; None for others."""
    if not (_is_of_obstore(given) and type(given).__name__ == "MemoryStore"):
        return None
    return MemoryStore.over(_ObstoreMemory.over(given))


class _ObstoreMemory(MutableMapping[str, bytes]):
    """The values of obstore's store in memory."""

    _living: ClassVar[weakref.WeakValueDictionary[int, _ObstoreMemory]] = (
        weakref.WeakValueDictionary()
    )

    def __init__(self, store: Any) -> None:
        self._store = store
        self._living[id(store)] = self  # keeps the id of the store in use

    @staticmethod
    def over(store: Any) -> _ObstoreMemory:
        """Return the only view of a store, so that equal locations have equal stores."""
        return _ObstoreMemory._living.get(id(store)) or _ObstoreMemory(store)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: str) -> bytes:
        try:
            return bytes(self._store.get(key).bytes())
        except FileNotFoundError as error:
            raise KeyError(key) from error

    def __setitem__(self, key: str, value: bytes) -> None:
        self._store.put(key, bytes(value))

    def __delitem__(self, key: str) -> None:
        self[key]  # obstore deletes what is not there without an error
        self._store.delete(key)

    def __iter__(self) -> Iterator[str]:
        return iter([str(one["path"]) for page in self._store.list() for one in page])

    def __len__(self) -> int:
        return sum(len(page) for page in self._store.list())
