"""Values that a service copies itself, so that their bytes do not travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from zarr_dask.stores.base import Store
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.wrappers.base import ReadOnly
from zarr_dask.stores.wrappers.metered import unmetered

__all__ = ["LARGEST_SERVER_COPY", "ServerCopy", "SupportsServerCopy", "server_copy_or_none"]

LARGEST_SERVER_COPY = 5 << 30
"""Maximum bytes of a value that S3 copies in one request."""

ServerCopy = Callable[[str, str, int], bool]
"""Copies one value; see `SupportsServerCopy.copy_from`, without its first argument."""


class SupportsServerCopy(Protocol):
    """A store whose service copies values within itself."""

    def can_copy_from(self, source: Store) -> bool:
        """True if the service holds the values of another store, too, for the same credentials."""
        ...

    def copy_from(self, source: Store, old: str, key: str, nbytes: int) -> bool:
        """Copy the value at `old` in another store to `key`, all or nothing.

        Parameters
        ----------
        source
            A store for which `can_copy_from` is true.
        old, key
            Keys in the source, and in this store.
        nbytes
            Maximum bytes of the value, which determine how long the service may take.

        Returns
        -------
        bool
            False if there is no value at `old`; then nothing changes.
        """
        ...


def server_copy_or_none(source: Store, target: Store) -> ServerCopy | None:
    """Return what copies a value of one store to another within their service.

    Returns
    -------
    callable or None
        None if they do not share a service that can, or if a wrapper is to see the requests.
    """
    source = unmetered(source)
    if isinstance(source, ReadOnly):
        source = source.store
    if not capabilities_of(target).server_copy:
        return None
    copier = cast("SupportsServerCopy", target)
    if not copier.can_copy_from(source):
        return None
    return lambda old, key, nbytes: copier.copy_from(source, old, key, nbytes)
