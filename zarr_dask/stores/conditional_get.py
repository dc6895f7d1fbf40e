"""The common part of stores whose responses have the tag of the value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence

from zarr_dask._util.threads import has_overlap_work, imap_unbuffered
from zarr_dask.stores.base import WHOLE, Buffer, Range, TaggedBytes, VersionRequest, check_key

__all__ = ["ConditionalGetMixin"]


class ConditionalGetMixin(ABC):
    """Batches made of single requests, which run concurrently and are returned in order."""

    __slots__ = ()

    @abstractmethod
    def _version(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        """Return a part of a value, with retries; see `get_ranges_if_match`."""

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.get_versions([(key, wanted, None) for key, wanted in requests])
        return [None if one is None else one.content for one in found]

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`: by ``If-Match``, if values have tags."""
        for key, _, _ in requests:
            check_key(key)
        if len(requests) < 2 and not has_overlap_work():
            return [self._version(*request) for request in requests]
        return imap_unbuffered(lambda request: self._version(*request), requests)
