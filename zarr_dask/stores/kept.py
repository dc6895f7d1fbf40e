"""Indices of shards that this process keeps, each with what tells whether it is still true.

A kept index is handed out only for the validator that it came with (see
`zarr_dask.stores.base.validator_of`), so that a shard that was replaced is noticed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from zarr_dask.stores.base import Range

__all__ = ["INDICES", "IndexCache", "Place"]


class Place(NamedTuple):
    """Which bytes of which value."""

    store: str
    """Identity of the store."""
    key: str
    wanted: Range


class IndexCache:
    """Bytes by their place, the least recently used first to go; safe from many threads.

    Examples
    --------
    >>> cache = IndexCache()
    >>> place = Place("somewhere", "c/0", Range(-16))
    >>> cache.put(place, "version 1", b"0123", most=100)
    >>> cache.get(place, "version 1"), cache.get(place, "version 2")
    (b'0123', None)
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing any more; in a new process nobody else holds the lock."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[Place, tuple[Hashable, bytes]] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self._nbytes

    def get(self, place: Place, validator: Hashable) -> bytes | None:
        """What is kept of a place, if the validator is still the same; else it is dropped."""
        with self._lock:
            found = self._kept.get(place)
            if found is None:
                return None
            if found[0] != validator:
                self._drop(place)
                return None
            self._kept.move_to_end(place)
            return found[1]

    def put(self, place: Place, validator: Hashable, content: bytes, most: int) -> None:
        """Keep some bytes, and at most `most` bytes in all."""
        with self._lock:
            self._drop(place)
            if len(content) <= most:
                self._kept[place] = (validator, content)
                self._nbytes += len(content)
            while self._nbytes > most:
                self._drop(next(iter(self._kept)))

    def _drop(self, place: Place) -> None:
        found = self._kept.pop(place, None)
        if found is not None:
            self._nbytes -= len(found[1])


INDICES = IndexCache()
"""Those of this process; how many is said by whoever puts one in (`ReadOptions.index_cache`)."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=INDICES.forget)
