"""Metering of requests and bytes between a task and a store."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from zarr_dask.stores.base import (
    Buffer,
    OpenValue,
    PeekRange,
    Range,
    Store,
    Version,
    VersionRequest,
    abandon,
    can_peek,
    open_value,
    read_versions,
)
from zarr_dask.stores.wrappers.base import Wrapper

__all__ = ["Tally", "Traffic", "unmetered"]


@dataclass
class Traffic:
    """The amount of data read."""

    requests: int = 0
    """Number of read requests; a batch from an open file counts as one, a peek as none."""
    nbytes: int = 0
    """Number of bytes received."""


@dataclass(frozen=True)
class Tally(Wrapper):
    """A wrapper that counts what one thread reads.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> store = Tally(MemoryStore({"a": b"123"}))
    >>> store.get("a"), store.get("b")
    (b'123', None)
    >>> store.traffic
    Traffic(requests=2, nbytes=3)
    """

    traffic: Traffic = field(default_factory=Traffic, compare=False)

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self._came(self.store.get(key))

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self._came(self.store.borrow(key))

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return [self._came(buffer) for buffer in self.store.get_ranges(requests)]

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """See `zarr_dask.stores.base.read_versions`."""
        return self._versions(read_versions(self.store, requests))

    def _versions(self, found: Iterable[Version | None]) -> Iterator[Version | None]:
        try:
            for part in found:
                self._came(None if part is None else part.content)
                yield part
        finally:
            abandon(found)

    @property
    def can_peek(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.can_peek`."""
        return can_peek(self.store)

    def open_value(self, key: str) -> OpenValue:
        """See `zarr_dask.stores.base.open_value`."""
        return _TalliedValue(open_value(self.store, key), self.traffic)

    def _came(self, buffer: Buffer | None) -> Buffer | None:
        self.traffic.requests += 1
        self.traffic.nbytes += 0 if buffer is None else len(buffer)
        return buffer


def unmetered(store: Store) -> Store:
    """Return the store below a `Tally`, for metadata that no plan counts as a read."""
    return store.store if isinstance(store, Tally) else store


class _TalliedValue:
    """An open value whose reads are counted."""

    def __init__(self, value: OpenValue, traffic: Traffic) -> None:
        self._value, self._traffic = value, traffic

    def __enter__(self) -> Self:
        self._value.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._value.__exit__(*error)

    def validator(self) -> Hashable:
        """See `zarr_dask.stores.base.OpenValue.validator`."""
        return self._value.validator()

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `zarr_dask.stores.base.OpenValue.get_ranges`."""
        self._traffic.requests += not all(isinstance(wanted, PeekRange) for wanted in ranges)
        received = self._value.get_ranges(ranges)
        return None if received is None else self._counting(received)

    def _counting(self, buffers: Iterable[Buffer]) -> Iterator[Buffer]:
        for buffer in buffers:
            self._traffic.nbytes += len(buffer)
            yield buffer
