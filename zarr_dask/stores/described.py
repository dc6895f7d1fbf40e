"""Stores in files that people keep and pass on, such as plans: where they are, without secrets.

What a description leaves out (keys, tokens, passwords, headers) whoever opens it has in the
environment or gives again as ``storage_options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Store, check_key
from zarr_dask.stores.cache import Cache
from zarr_dask.stores.fsspec import FsspecStore
from zarr_dask.stores.http import HTTPStore
from zarr_dask.stores.local import LocalStore
from zarr_dask.stores.obstore import ObstoreStore
from zarr_dask.stores.retry import Retrying, described_policy
from zarr_dask.stores.urls import open_store
from zarr_dask.stores.wrappers import Below, ReadOnly
from zarr_dask.stores.zip import ZipStore
from zarr_dask.stores.zip_writer import ZipWriter

__all__ = ["describe", "open_described"]

_PUBLIC = {
    "account_name",
    "anon",
    "client_kwargs",
    "endpoint_url",
    "fsync",
    "host",
    "port",
    "profile",
    "project",
    "region",
    "region_name",
    "requester_pays",
    "use_ssl",
}
"""Options that say where something is and hold no secret, at the top or in ``client_kwargs``."""


def describe(store: Store) -> dict[str, Any]:
    """Where a store is, as a JSON object without secrets.

    Raises
    ------
    StoreError
        If it is in the memory of this process, or of a kind that has no URL.

    Examples
    --------
    >>> describe(FsspecStore("s3://bucket/a.zarr", '{"anon": false, "secret": "x"}'))
    {'url': 's3://bucket/a.zarr', 'options': {'anon': False}}
    """
    if isinstance(store, ReadOnly | Cache | Retrying):
        return describe(store.store)
    if isinstance(store, Below):
        return {**describe(store.store), "below": store.prefix}
    if isinstance(store, LocalStore):
        return {"url": store.root, **({"options": {"fsync": True}} if store.fsync else {})}
    if isinstance(store, ZipStore):
        return {"url": _without_login(store.url)}
    if isinstance(store, FsspecStore | HTTPStore | ObstoreStore):
        retry = described_policy(store.policy)
        options = {} if isinstance(store, HTTPStore) else _public(store.settings())
        options |= {"retry": retry} if retry else {}
        return {"url": _without_login(store.url), **({"options": options} if options else {})}
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
    """A URL without user, password and query: all of them may let somebody in."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, place, parts.path, "", "")) if parts.netloc else url


def _public(options: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if name in _PUBLIC:
            kept[name] = _public(value) if isinstance(value, Mapping) else value
    return kept


def open_described(
    description: Mapping[str, Any], storage_options: Mapping[str, Any] | None = None
) -> Store:
    """The store that `describe` has described.

    A description may come from a stranger: options that `describe` would not have kept are refused,
    because they could send the credentials of whoever opens it elsewhere.

    Parameters
    ----------
    description
        What `describe` returned.
    storage_options
        What it left out, such as credentials.

    Raises
    ------
    StoreError
        If there is no such store, or the description has other options than those.
    StoreKeyError
        If what it says to be below the store is not.
    """
    given, below = description.get("options", {}), description.get("below")
    unknown = [*given.keys() - _PUBLIC - {"retry"}]
    unknown += [*given.get("client_kwargs", {}).keys() - _PUBLIC]
    if unknown:
        raise StoreError(
            f"the description of {description['url']} has the options {sorted(unknown)}, which no "
            "description has. If they are needed, give them as storage_options."
        )
    store = open_store(str(description["url"]), {**given, **(storage_options or {})})
    if not below:
        return store
    check_key(below.removesuffix("/"))
    return Below(store, f"{below.removesuffix('/')}/")
