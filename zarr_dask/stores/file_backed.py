"""Stores whose values are files below a folder: these can be locked, and renamed together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Store
from zarr_dask.stores.wrapper import unwrap

__all__ = ["FileStore", "is_behind_network"]


class FileStore(Store):
    """A store whose value at a key is the file of that name below a folder."""

    __slots__ = ()
    root: str
    """The folder, as an absolute path."""
    fsync: bool
    """True if each value is on the disk when its put has ended."""

    @abstractmethod
    def move_prefix(self, old: str, new: str) -> bool:
        """Rename everything below a prefix at once, or the value at a key; False if that failed.

        Then nothing was done: there are other file systems below the folder.
        """

    @abstractmethod
    def list_temporaries(self, prefix: str | None) -> Iterator[tuple[str, float]]:
        """Yield the keys of temporary files and the times of their last change, in seconds."""

    @abstractmethod
    def failed(self, doing: str, key: str, error: OSError, hint: str = "") -> StoreError:
        """Return the error of the store for one of the operating system."""


def is_behind_network(store: Store) -> bool:
    """True if a store is a folder in a network file system, or in one that is not known."""
    from zarr_dask.stores.mounts import is_on_this_host

    inner = unwrap(store)
    return isinstance(inner, FileStore) and not is_on_this_host(inner.root)
