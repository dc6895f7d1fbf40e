"""The common part of stores whose responses have the tag of the value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence

from zarr_dask._util.threads import has_work_meanwhile, in_turn
from zarr_dask.stores.base import WHOLE, Buffer, Range, Version, VersionRequest, check_key

__all__ = ["Versioned"]


class Versioned(ABC):
    """Batches made of single requests, which run concurrently and are returned in order."""

    __slots__ = ()

    @abstractmethod
    def _version(self, key: str, wanted: Range, tag: Hashable) -> Version | None:
        """Return a part of a value, with retries; see `read_versions`."""

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
        """See `zarr_dask.stores.base.read_versions`: by ``If-Match``, if values have tags."""
        for key, _, _ in requests:
            check_key(key)
        if len(requests) < 2 and not has_work_meanwhile():
            return [self._version(*request) for request in requests]
        return in_turn(lambda request: self._version(*request), requests)
