"""Uploads in parts that were begun and not ended, which a service keeps and charges for.

A killed process leaves them. No listing of values shows them, and no value comes of them. Azure
removes its own after a week; on S3 they stay until they are removed, or a rule of the bucket does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from zarr_dask.stores.base import Store
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["SupportsUploads", "UnfinishedUpload", "uploads_below"]


class UnfinishedUpload(NamedTuple):
    """An upload in parts that has not ended."""

    key: str
    upload_id: str
    begun: float
    """Seconds since the epoch."""


@runtime_checkable
class SupportsUploads(Protocol):
    """A store whose service keeps unfinished uploads."""

    def list_uploads(self, prefix: str) -> Iterable[UnfinishedUpload]:
        """Return the uploads whose keys begin with a prefix; none where the service has no such."""
        ...

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload; it cannot be ended any more."""
        ...


def uploads_below(store: Store, prefix: str) -> tuple[SupportsUploads, str] | None:
    """Return the store behind all wrappers with its own prefix, if it keeps unfinished uploads.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> uploads_below(MemoryStore(), "a/") is None
    True
    """
    while isinstance(store, StoreWrapper):
        prefix = f"{getattr(store, 'prefix', '')}{prefix}"
        store = store.store
    return (store, prefix) if isinstance(store, SupportsUploads) else None
