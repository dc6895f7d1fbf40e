"""Shard indices: a cache for the process, and their prefetch before the tasks of a graph.

A task that reads part of a shard requests its index first and then chunks: two requests in
sequence. A graph knows which parts its tasks are going to read. As soon as one task has requested
an index, others are prefetched, so that most later tasks wait only once. The order of tasks is up
to dask and has to be guessed: first parts next to the one that has just begun, then those that
follow in the order in which dask breaks ties. Wrong guesses cost only cache space, which grows with
the number of right guesses.

A task uses the prefetched index and requests no other. The index is older than the task, and is
trusted only if the chunks that it points to come from the same value (`get_ranges_if_match`). If it
points to none, the value's current tag is compared. What cannot be confirmed is never prefetched:
absent values, and whole ones. If a graph turns out to read such values, or fails, prefetching
stops.

A cached index is returned only for the validator that it was stored with (see
`zarr_dask.stores.base.etag_of`), so that a replaced shard is noticed.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from operator import add
from typing import NamedTuple

from zarr_dask._util.threads import waiting_threads
from zarr_dask.errors import ObjectReplacedError
from zarr_dask.stores.base import (
    Buffer,
    ConditionalRangeReader,
    IndexRange,
    Range,
    RangeReader,
    Store,
    TaggedBytes,
    VersionRequest,
    etag_of,
    get_ranges_if_match,
    is_remote,
)
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["INDICES", "CacheKey", "IndexPrefetcher", "Part", "ShardIndexCache", "can_read_ahead"]


_SIDE_BY_SIDE = 8
"""Prefetch requests in flight at a time; few, so that the requests of tasks need not wait."""
_FIRST, _MORE = 16, 2
"""Indices kept until their tasks begin: the initial limit, and the increase for each one used."""
_MOST, _MOST_BYTES = 1024, 1 << 22
"""Upper limits of the kept indices: their number, and their bytes."""
_SHARED = 16
"""Number of indices that are shared with further parts of their shards."""
_MOST_BESIDE = 4
"""Largest number of dimensions for which all neighbours of a part are tried."""

Part = tuple[int, ...]
"""Coordinates of a block of the graph."""


def can_read_ahead(store: Store) -> bool:
    """True if requests are slow, and the store can tell which version of a value it returned."""
    return is_remote(store) and capabilities_of(store).conditional_get


class _EarlyIndex(NamedTuple):
    """A prefetched index."""

    key: str
    wanted: Range
    answer: Future[TaggedBytes | None]

    def version(self) -> TaggedBytes | None:
        """Wait for the index and return it; None if the task should send its own request."""
        return None if self.answer.exception() is not None else self.answer.result()


class IndexPrefetcher:
    """Prefetch for the parts of stored objects that the tasks of a graph read in this process.

    Parameters
    ----------
    store
        The store that holds them.
    key_of
        Returns the key of the only stored object that a part lies in; None if there are several.
    """

    def __init__(self, store: Store, key_of: Callable[[Part], str | None]) -> None:
        self._store, self._key_of = store, key_of
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._parts: dict[Part, None] = {}
        self._begun = 0
        self._expected: set[Part] = set()
        self._new: list[Part] = []
        self._order: deque[Part] = deque()
        self._latest: Part = ()
        self._wanted: Range | None = None
        self._early: dict[Part, _EarlyIndex] = {}
        self._answers: dict[str, Future[TaggedBytes | None]] = {}
        self._most = _FIRST
        self._sending = 0
        self._useless = False

    def expect(self, part: Part) -> None:
        """Register a part that a task is going to read."""
        with self._lock:
            self._parts[part] = None
            self._expected.add(part)
            self._new.append(part)

    def expects(self, part: Part) -> bool:
        """True if the task that is going to read a part has not begun yet."""
        return part in self._expected

    @contextmanager
    def reading(self, part: Part) -> Iterator[Store]:
        """Yield the store from which a task reads a part; its index may be prefetched already."""
        if self._process != os.getpid():  # results arrive in the process that was forked
            yield self._store
            return
        turn = _PrefetchedIndex(self, self._begin(part))
        useful = False
        try:
            yield _AheadStore(self._store, turn)
            useful = turn.early is None
        finally:
            self._useless |= not useful

    def _begin(self, part: Part) -> _EarlyIndex | None:
        with self._lock:
            if not self._expected and self._begun % len(self._parts) == 0:  # all tasks run again
                self._new = [*self._parts]
                self._expected.update(self._new)
            self._begun += 1
            self._expected.discard(part)
            self._latest = part
            early = self._early.pop(part, None)
            if early is not None:
                self._most += _MORE
            self._ask()
            if not self._expected:  # nothing is kept for another run
                self._answers.clear()
        return early

    def ask_ahead(self, wanted: Range) -> None:
        """Prefetch the indices of other parts, as a task is about to request its own."""
        with self._lock:
            self._wanted = wanted
            self._ask()

    def _ask(self) -> None:
        """Send as many prefetch requests as the limits allow."""
        wanted = self._wanted
        if wanted is None:
            return
        nbytes = wanted.stop or -wanted.start
        most = min(self._most, _MOST, _MOST_BYTES // nbytes)
        parts = self._next_parts()
        while not self._useless and self._sending < _SIDE_BY_SIDE and len(self._early) < most:
            part = next(parts, None)
            if part is None:
                return
            key = self._key_of(part)
            if key is not None:
                self._early[part] = _EarlyIndex(key, wanted, self._answer(key, wanted))

    def _answer(self, key: str, wanted: Range) -> Future[TaggedBytes | None]:
        """Return one future for all parts of a stored object that are read at the same time."""
        answer = self._answers.pop(key, None)
        if answer is None:
            self._sending += 1
            answer = waiting_threads().submit(self._fetch, key, wanted)
        self._answers[key] = answer
        if len(self._answers) > _SHARED:
            del self._answers[next(iter(self._answers))]
        return answer

    def _next_parts(self) -> Iterator[Part]:
        """Yield parts that are neither begun nor prefetched, the most likely next part first."""
        at = self._latest
        for step in _steps(len(at)):
            part = tuple(map(add, at, step))
            if part in self._expected and part not in self._early:
                yield part
        if self._new:
            self._order.extend(_from_on(at, self._new))
            self._new = []
        while self._order:
            part = self._order.popleft()
            if part in self._expected and part not in self._early:
                yield part

    def _fetch(self, key: str, wanted: Range) -> TaggedBytes | None:
        useful = False
        try:
            (found,) = get_ranges_if_match(self._store, [(key, wanted, None)])
            useful = found is not None and None not in found
            return found if useful else None
        finally:
            with self._lock:
                self._useless |= not useful
                self._sending -= 1
                self._ask()


def _from_on(part: Part, parts: Iterable[Part]) -> Sequence[Part]:
    """Return parts in the order in which dask breaks ties between tasks, from one of them on."""
    ordered = sorted(parts, key=_text, reverse=True)
    first = bisect(ordered, -1, key=lambda one: -1 if _text(one) >= _text(part) else 0)
    return ordered[first:] + ordered[:first]


def _text(part: Part) -> tuple[str, ...]:
    return tuple(map(str, part))


@cache
def _steps(ndim: int) -> Sequence[Part]:
    """Return the offsets from a part to its neighbours, the nearest first."""
    steps = product((-1, 0, 1), repeat=ndim) if 0 < ndim <= _MOST_BESIDE else ()
    return sorted((step for step in steps if any(step)), key=lambda step: sum(map(abs, step)))


class _PrefetchedIndex:
    """The state of one task: its prefetched index, if there is one."""

    def __init__(self, ahead: IndexPrefetcher, early: _EarlyIndex | None) -> None:
        self._ahead = ahead
        self.early = early
        """The prefetched index, until it has been used."""

    def index(self, key: str, wanted: Range) -> TaggedBytes | None:
        """Return the prefetched index; if there is none, prefetch for the parts that follow."""
        early = self.early
        if early is None:
            self._ahead.ask_ahead(wanted)
            return None
        found = early.version() if (early.key, early.wanted) == (key, wanted) else None
        if found is not None:
            self.early = None
        return found


@dataclass(frozen=True)
class _AheadStore(StoreWrapper):
    """A store as seen by one task."""

    turn: _PrefetchedIndex = field(repr=False)

    def open_value(self, key: str) -> RangeReader:
        """See `zarr_dask.stores.base.open_value`."""
        return _AheadValue(self, key, self.turn)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        return get_ranges_if_match(self.store, requests)


class _AheadValue(ConditionalRangeReader):
    """An open value whose index may have been prefetched."""

    def __init__(self, store: Store, key: str, turn: _PrefetchedIndex) -> None:
        super().__init__(store, key)
        self._turn = turn
        self._confirmed = True

    def __exit__(self, *failed: object) -> None:
        super().__exit__(*failed)
        guessed = not self._confirmed and failed[0] is None
        if guessed and etag_of(self._store, self._key) != self._tag:
            raise ObjectReplacedError(f"{self._key!r} in {self._store.url} was replaced.")

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `zarr_dask.stores.base.RangeReader.get_ranges`."""
        if self._tag is None and len(ranges) == 1 and isinstance(ranges[0], IndexRange):
            index = self._turn.index(self._key, ranges[0])
            if index is not None and index.content is not None:
                self._tag, self._confirmed = index.tag, False
                return [index.content]
        found = super().get_ranges(ranges)
        self._confirmed = True
        return found


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
