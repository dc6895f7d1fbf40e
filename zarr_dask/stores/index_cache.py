"""A cache of shard indices in this process, each with the validator of its shard.

A cached index is returned only for the validator that it was stored with (see
`zarr_dask.stores.base.etag_of`), so that a replaced shard is noticed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from zarr_dask.stores.base import Range

__all__ = ["INDICES", "CacheKey", "ShardIndexCache"]


class CacheKey(NamedTuple):
    """A range of bytes of a value."""

    store: str
    """Identity of the store."""
    key: str
    wanted: Range


class ShardIndexCache:
    """Bytes by location, the least recently used dropped first; safe from many threads.

    Examples
    --------
    >>> cache = ShardIndexCache()
    >>> place = CacheKey("somewhere", "c/0", Range(-16))
    >>> cache.put(place, "version 1", b"0123", most=100)
    >>> cache.get(place, "version 1"), cache.get(place, "version 2")
    (b'0123', None)
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Empty the cache; the new lock is free, also in a forked process."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[CacheKey, tuple[Hashable, bytes]] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Number of bytes in the cache."""
        return self._nbytes

    def get(self, place: CacheKey, validator: Hashable) -> bytes | None:
        """Return the cached bytes if the validator is unchanged; else drop them."""
        with self._lock:
            found = self._kept.get(place)
            if found is None:
                return None
            if found[0] != validator:
                self._drop(place)
                return None
            self._kept.move_to_end(place)
            return found[1]

    def put(self, place: CacheKey, validator: Hashable, content: bytes, most: int) -> None:
        """Cache some bytes, and at most `most` bytes in all."""
        with self._lock:
            self._drop(place)
            if len(content) <= most:
                self._kept[place] = (validator, content)
                self._nbytes += len(content)
            while self._nbytes > most:
                self._drop(next(iter(self._kept)))

    def _drop(self, place: CacheKey) -> None:
        found = self._kept.pop(place, None)
        if found is not None:
            self._nbytes -= len(found[1])


INDICES = ShardIndexCache()
"""The cache of this process; its size is passed to each `put` (`ReadOptions.index_cache`)."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=INDICES.forget)
