"""Stores of other packages by the schemes of their URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from zarr_dask._util.class_registry import Registry
from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Store
from zarr_dask.stores.option_checks import check_options
from zarr_dask.stores.option_mapping import SCHEMES, WEB
from zarr_dask.stores.retry import Retrying, parse_retry_policy
from zarr_dask.stores.url_secrets import redact_url
from zarr_dask.stores.wrappers.adapter import adapt_store

__all__ = ["open_registered", "register_store"]

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_TAKEN = {*SCHEMES, *WEB, "file", "local"}
_Class = TypeVar("_Class")


def _check(scheme: str, cls: Any) -> None:
    """Raise for what cannot serve a scheme."""
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(
            f"scheme {scheme!r}: expected what URLs begin with, in lower case, such as 'mydb'."
        )
    if scheme in _TAKEN:
        raise ValueError(f"scheme {scheme!r} is served by this package: choose another one.")
    if not callable(getattr(cls, "from_url", None)):
        raise TypeError(
            f"store {scheme!r}: {cls!r} has no from_url(url, storage_options): define a class "
            "method that returns a store."
        )


_ICECHUNK = "zarr_dask.stores.backends.icechunk_urls:IcechunkURL"
_STORES = Registry(
    "store", "zarr_dask.stores", {"icechunk": _ICECHUNK, "icechunk+s3": _ICECHUNK}, _check
)


def register_store(scheme: str, cls: _Class) -> _Class:
    """Open URLs of a scheme with a class of stores, in this process.

    Where other processes read or write as well (workers of a cluster, ``zarr-dask run``), list the
    class in an installed package instead, under the entry points ``zarr_dask.stores``.

    Parameters
    ----------
    scheme
        What the URLs begin with: ``"mydb"`` for ``mydb://host/a.zarr``.
    cls
        A class with a class method ``from_url(url, storage_options)``, which returns a store: an
        object with the methods that `zarr_dask.stores.Store` describes, seven at least.

    Returns
    -------
    type
        The class.

    Raises
    ------
    TypeError, ValueError
        If it cannot be used, or the scheme belongs to another class.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> class Drawer(zd.stores.MemoryStore):
    ...     drawers = {}
    ...     @classmethod
    ...     def from_url(cls, url, storage_options):
    ...         return cls.drawers.setdefault(url, cls())
    >>> store = zd.register_store("drawer", Drawer)
    >>> a = zd.create_array("drawer://1/a", data=[1, 2, 3])
    >>> zd.open("drawer://1/a")[...].tolist()
    [1, 2, 3]
    """
    _STORES.register(scheme, cls)
    return cls


def open_registered(scheme: str, url: str, options: Mapping[str, Any]) -> Store | None:
    """Return the store at a URL whose scheme another package serves; None for other schemes.

    Raises
    ------
    StoreError
        If an option is wrong, or the class returns no store.
    """
    cls = None if scheme in _TAKEN else _STORES.find(scheme)
    if cls is None:
        return None
    given = dict(options)
    retry = given.pop("retry", None)
    check_options(redact_url(url), given)
    made = cls.from_url(url, given)
    store = adapt_store(made)
    if store is None:
        raise StoreError(
            f"{redact_url(url)}: from_url of {cls!r} returned {type(made).__name__}, expected a "
            "store, with the methods of zarr_dask.stores.Store."
        )
    return store if retry is None else Retrying(store, parse_retry_policy(retry))
