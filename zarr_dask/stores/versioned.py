"""Stores each answer of which says which value it is of: what is the same in all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence

from zarr_dask.pool import has_work_meanwhile, in_turn
from zarr_dask.stores.base import WHOLE, Buffer, Range, Version, VersionRequest, check_key

__all__ = ["Versioned"]


class Versioned(ABC):
    """Reads out of single requests; those of a batch run side by side, and come one by one."""

    __slots__ = ()

    @abstractmethod
    def _version(self, key: str, wanted: Range, tag: Hashable) -> Version | None:
        """One part of a value, tried again where that may help; see `read_versions`."""

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.get_versions([(key, wanted, None) for key, wanted in requests])
        return [None if one is None else one.content for one in found]

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """See `zarr_dask.stores.base.read_versions`: by ``If-Match``, where values have tags."""
        for key, _, _ in requests:
            check_key(key)
        if len(requests) < 2 and not has_work_meanwhile():
            return [self._version(*request) for request in requests]
        return in_turn(lambda request: self._version(*request), requests)
