"""Metering of requests and bytes between a task and a store."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from zarr_dask.stores.base import (
    Buffer,
    HeaderRange,
    IOCounters,
    Range,
    RangeReader,
    Store,
    TaggedBytes,
    VersionRequest,
    cancel_reads,
    get_ranges_if_match,
    get_start,
    open_value,
    supports_cheap_random_reads,
)
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["MeteredStore", "metered", "unmetered"]


@dataclass(frozen=True)
class MeteredStore(StoreWrapper):
    """A wrapper that counts what one thread reads.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> store = MeteredStore(MemoryStore({"a": b"123"}))
    >>> store.get("a"), store.get("b")
    (b'123', None)
    >>> store.traffic
    IOCounters(requests=2, nbytes=3)
    """

    traffic: IOCounters = field(default_factory=IOCounters, compare=False)

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self._came(self.store.get(key))

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self._came(self.store.get_transient(key))

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`."""
        return self._came(get_start(self.store, key, nbytes))

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return [self._came(buffer) for buffer in self.store.get_ranges(requests)]

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        return self._versions(get_ranges_if_match(self.store, requests))

    def _versions(self, found: Iterable[TaggedBytes | None]) -> Iterator[TaggedBytes | None]:
        try:
            for part in found:
                self._came(None if part is None else part.content)
                yield part
        finally:
            cancel_reads(found)

    @property
    def supports_cheap_random_reads(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.supports_cheap_random_reads`."""
        return supports_cheap_random_reads(self.store)

    def open_value(self, key: str) -> RangeReader:
        """See `zarr_dask.stores.base.open_value`."""
        return _TalliedValue(open_value(self.store, key), self.traffic)

    def _came(self, buffer: Buffer | None) -> Buffer | None:
        self.traffic.requests += 1
        self.traffic.nbytes += 0 if buffer is None else len(buffer)
        return buffer


def metered(store: Store) -> MeteredStore:
    """Return a store that counts what is read through it."""
    return MeteredStore(store)


def unmetered(store: Store) -> Store:
    """Return the store below a `MeteredStore`, for metadata that no plan counts as a read."""
    return store.store if isinstance(store, MeteredStore) else store


class _TalliedValue:
    """An open value whose reads are counted."""

    def __init__(self, value: RangeReader, traffic: IOCounters) -> None:
        self._value, self._traffic = value, traffic

    def __enter__(self) -> Self:
        self._value.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._value.__exit__(*error)

    def validator(self) -> Hashable:
        """See `zarr_dask.stores.base.RangeReader.validator`."""
        return self._value.validator()

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `zarr_dask.stores.base.RangeReader.get_ranges`."""
        self._traffic.requests += not all(isinstance(wanted, HeaderRange) for wanted in ranges)
        received = self._value.get_ranges(ranges)
        return None if received is None else self._counting(received)

    def _counting(self, buffers: Iterable[Buffer]) -> Iterator[Buffer]:
        for buffer in buffers:
            self._traffic.nbytes += len(buffer)
            yield buffer
