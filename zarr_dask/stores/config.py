"""Descriptions of stores without secrets, for files that are kept and shared, such as plans.

Whatever a description leaves out (keys, tokens, passwords, headers) must be in the environment of
the user who opens it, or be passed again as ``storage_options``. Options that are no credentials
and are left out all the same are listed in the description and must be passed again. So nothing is
written unencrypted because a file lacks the option for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit, urlunsplit

from zarr_dask.errors import StoreError
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.http import HTTPStore
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.backends.zip import ZipStore
from zarr_dask.stores.backends.zip_writer import ZipWriter
from zarr_dask.stores.base import Store, check_key
from zarr_dask.stores.open import open_store
from zarr_dask.stores.option_mapping import SCHEMES, UNIMPORTANT, fsspec_configuration
from zarr_dask.stores.retry import Retrying, described_policy
from zarr_dask.stores.secrets import public_options
from zarr_dask.stores.url_secrets import QUERY_DIGEST
from zarr_dask.stores.wrappers.base import PrefixStore, ReadOnly
from zarr_dask.stores.wrappers.cache import Cache

__all__ = ["DescribedStore", "from_config", "to_config"]

_PUBLIC = {
    "account_name",
    "allow_http",
    "anon",
    "anonymous",
    "bucket_key_enabled",
    "client_kwargs",
    "endpoint_url",
    "force_path_style",
    "fsync",
    "host",
    "port",
    "profile",
    "project",
    "region",
    "region_name",
    "requester_pays",
    "server_side_encryption",
    "sse_kms_key_id",
    "use_ssl",
}
"""Options that tell the location and hold no secret, at the top or in ``client_kwargs``."""


@runtime_checkable
class DescribedStore(Protocol):
    """A store that a job has made of something else, and describes in the plan of that job."""

    def description(self) -> dict[str, Any]:
        """Return a JSON object without secrets."""


def to_config(store: Store) -> dict[str, Any]:
    """Return the location of a store as a JSON object without secrets.

    Raises
    ------
    StoreError
        If it is in the memory of this process, or of a kind that has no URL.

    Examples
    --------
    >>> to_config(FsspecStore("s3://bucket/a.zarr", '{"anon": false, "secret": "x"}'))
    {'url': 's3://bucket/a.zarr', 'options': {'anon': False}}
    """
    if isinstance(store, ReadOnly | Cache | Retrying):
        return to_config(store.store)
    if isinstance(store, PrefixStore):
        return {**to_config(store.store), "below": store.prefix}
    if isinstance(store, LocalStore):
        return {"url": store.root, **({"options": {"fsync": True}} if store.fsync else {})}
    if isinstance(store, ZipStore):
        return {"url": _without_login(store.url)}
    if isinstance(store, FsspecStore | HTTPStore | ObstoreStore):
        retry = described_policy(store.policy)
        options = {} if isinstance(store, HTTPStore) else _public(store.settings())
        options |= {"retry": retry} if retry else {}
        needed = [] if isinstance(store, HTTPStore) else _left_out(store.settings())
        return {
            "url": _without_login(store.url),
            **({"options": options} if options else {}),
            **({"needs": needed} if needed else {}),
        }
    if isinstance(store, DescribedStore):
        return store.description()
    if isinstance(store, ZipWriter):
        raise StoreError(
            f"{store.root} is a zip archive, which one process writes in one go, and not what runs "
            "a plan in parts: run the plan itself, or write into a folder and zip that."
        )
    raise StoreError(
        f"{store.url} cannot be named in a file: it is in the memory of this process, or a store "
        "that has no URL. Use a path or a URL."
    )


def _without_login(url: str) -> str:
    """Return a URL without user, password and query, all of which may be secrets."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, place, parts.path, "", "")) if parts.netloc else url


def _public(options: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if name in _PUBLIC:
            kept[name] = _public(value) if isinstance(value, Mapping) else value
    return kept


def _left_out(options: Mapping[str, Any]) -> list[str]:
    """Return the names of options that are neither credentials nor part of a description."""
    said = public_options(options)
    for name in (*UNIMPORTANT, QUERY_DIGEST):
        said.pop(name, None)
    return sorted(
        name for name, value in said.items() if value and _public({name: value}) != {name: value}
    )


def from_config(
    description: Mapping[str, Any], storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Open the store that `to_config` has described.

    A description may come from a stranger. Options that `to_config` would not have kept are
    refused, because they could send the user's credentials elsewhere.

    Parameters
    ----------
    description
        What `to_config` returned.
    storage_options
        Options that it left out, such as credentials; for remote stores. If keyed by scheme, as in
        ``{"s3": {...}}``, those of each service. Local files use none.

    Raises
    ------
    StoreError
        If there is no such store, or the description has options that no description may have, or
        lacks options that are not given.
    StoreKeyError
        If the path below the store is not a valid key.
    """
    given, below, url = (description.get(name) for name in ("options", "below", "url"))
    if not isinstance(url, str):  # its text would be the name of a file
        raise StoreError(f"the description of a store has the url {url!r:.80}, which is no text.")
    given = {} if given is None else given
    unknown = [*given.keys() - _PUBLIC - {"retry"}]
    unknown += [*given.get("client_kwargs", {}).keys() - _PUBLIC]
    if unknown:
        raise StoreError(
            f"the description of {url} has the options {sorted(unknown)}, which no "
            "description has. If they are needed, give them as storage_options."
        )
    own = _own(url, storage_options or {})
    _check_given(url, description.get("needs", ()), own)
    store = open_store(url, {**given, **own})
    if not below:
        return store
    check_key(below.removesuffix("/"))
    return PrefixStore(store, f"{below.removesuffix('/')}/")


def _own(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that apply to a location."""
    scheme, mark, _ = url.partition("://")
    if not mark or scheme == "file":
        return {}
    if "::" in url or not any(name in SCHEMES for name in options):
        return options
    own = options.get(scheme, {})
    if not isinstance(own, Mapping):
        raise StoreError(f"storage_options[{scheme!r}] is no mapping of options.")
    return own


def _check_given(url: str, needed: Any, own: Mapping[str, Any]) -> None:
    """Raise if options that the described location was opened with are missing."""
    missing = [str(name) for name in needed if name not in own]
    configured = fsspec_configuration(url.partition(":")[0]) if missing else {}
    missing = [name for name in missing if name not in configured]
    if missing:
        raise StoreError(
            f"{url} was used with the options {missing}, which are not kept in files: give them "
            "again as storage_options, or in fsspec's configuration (FSSPEC_S3='{...}')."
        )
