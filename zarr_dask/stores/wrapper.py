"""The base of stores around other stores, and what lies behind them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from zarr_dask.stores.base import (
    WHOLE,
    BoundedRange,
    Buffer,
    ConditionalRangeReader,
    ForkableSession,
    Listing,
    Range,
    RangeReader,
    ReadPolicy,
    Store,
    etag_of,
)
from zarr_dask.stores.capabilities import Capabilities, capabilities_of, of_methods
from zarr_dask.stores.compare_and_swap import as_cas_store

__all__ = ["StoreWrapper", "forkable", "is_in_memory", "unwrap"]


@dataclass(frozen=True)
class StoreWrapper:
    """A store that forwards every call to another one."""

    store: Store

    @property
    def url(self) -> str:
        """The wrapped store's location."""
        return self.store.url

    @property
    def identity(self) -> str:
        """The wrapped store's identity."""
        return self.store.identity

    @property
    def coalescing(self) -> ReadPolicy:
        """The wrapped store's limits."""
        return self.store.coalescing

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped store that the wrapper forwards."""
        return of_methods(self) & capabilities_of(self.store)

    @property
    def has_cheap_recursive_listing(self) -> bool:
        """The wrapped store's."""
        return capabilities_of(self.store).cheap_recursive_listing

    @property
    def has_paged_listing(self) -> bool:
        """The wrapped store's."""
        return capabilities_of(self.store).paged_listing

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.store.get(key)

    def get_transient(self, key: str) -> Buffer | None:
        """Return the same as `get`, which a wrapper may override."""
        return self.get(key)

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """Return the first bytes of a value by `get_ranges`, which a wrapper may override."""
        return self.get_ranges([(key, BoundedRange(0, nbytes))])[0]

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return self.store.get_ranges(requests)

    def open_value(self, key: str) -> RangeReader:
        """Open a value that is read by `get_ranges`, which a wrapper may override.

        The parts are known to be of the same value only if the wrapper has `get_versions`, too.
        """
        return ConditionalRangeReader(self, key)

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`."""
        return etag_of(self.store, key)

    def list_tags(
        self,
        prefix: str,  # noqa: ARG002
    ) -> Iterator[tuple[str, tuple[str, int] | None]] | None:
        """Return None, which a wrapper may override; see `SupportsListTags`."""
        return None

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self.store.set(key, buffers)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        as_cas_store(self.store).check_conditional(key)

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return as_cas_store(self.store).get_tagged(key, wanted)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return as_cas_store(self.store).set_if(key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self.store.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self.store.delete_prefix(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return self.store.list(prefix)

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return self.store.list_dir(prefix)

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        return self.store.size(key)


def unwrap(store: Store) -> Store:
    """Return the store behind all wrappers."""
    while isinstance(store, StoreWrapper):
        store = store.store
    return store


def forkable(store: Store) -> ForkableSession | None:
    """Return the store behind all wrappers if tasks write to forks that must be merged into it."""
    found = unwrap(store)
    # of the class, which is remembered; an object would be looked through each time
    return cast("ForkableSession", found) if issubclass(type(found), ForkableSession) else None


def is_in_memory(store: Store) -> bool:
    """True if only this process can reach the values that are put into a store."""
    return bool(getattr(unwrap(store), "is_in_memory", False))
