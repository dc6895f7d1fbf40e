"""Census of stored objects: the tasks of `zarr_dask.verify`.

A task checks a batch of the stored objects of one array. Each object gets one of `STATES`; chunks
inside shards, including nested shards, are counted one by one. There are three depths:

- ``"index"`` reads the indices of shards, and checks that the chunks they point to can exist; for
  other objects it checks only the size, if that is known in advance.
- ``"decode"`` reads all bytes and decodes every chunk; if there are receipts, it computes checksums
  as well.
- ``"receipts"`` reads all bytes and computes checksums; the caller compares them with receipts.

Of a store without latency one object and one decoded chunk are held at a time; of others the
objects of a task, which are a few megabytes or one object.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.codecs.base import ABSENT_PLACE, DecodeOptions, Serializer, ShardIndex
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.codecs.fetch import Fetch, drive_fetch, fetch_within
from zarr_dask.errors import ChecksumError, CorruptObjectError, DamagedValueError
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.jobs.engine.thread_map import imap_concurrently, transfers_for
from zarr_dask.journal.receipts import StoredObject, stored_object
from zarr_dask.stores.base import (
    BoundedRange,
    Buffer,
    Range,
    Store,
    get_ranges_if_match,
    get_start,
    read_ranges,
)

__all__ = ["STATES", "CellRuns", "Depth", "Finding", "ObjectScan", "ScanResult", "State"]

Depth = Literal["index", "decode", "receipts"]
State = Literal["ok", "empty", "absent", "torn", "checksum", "undecodable"]
STATES: tuple[State, ...] = ("ok", "empty", "absent", "torn", "checksum", "undecodable")
"""States of a stored object or a chunk, from best to worst.

``empty`` is absent on purpose, which only receipts show; ``torn`` is truncated, or a shard whose
index cannot be read or points outside of it; ``checksum`` has other bytes than were stored;
``undecodable`` is anything else that cannot be decoded.
"""


@dataclass(frozen=True)
class Finding:
    """One problem that was found."""

    kind: str
    """A state, or ``"document"``, ``"orphan"``, ``"stray"``, ``"temporary"``, ``"stale"`` ..."""
    path: str
    """Path of the node."""
    key: str = ""
    """Key of the stored object."""
    coords: tuple[tuple[int, ...], ...] = ()
    """Coordinates of the stored object, then of the chunk inside it."""
    reason: str = ""

    def __str__(self) -> str:
        chunk = " / ".join(map(str, self.coords))
        place = f"{self.key!r}" if self.key else self.path or "/"
        return f"{self.kind}: {place}{f' (chunk {chunk})' if chunk else ''}: {self.reason}"


@dataclass(frozen=True)
class CellRuns:
    """Numbers of some cells of a grid, in C order, as runs of consecutive numbers."""

    runs: tuple[tuple[int, int], ...]
    """First number, and length of the run."""

    @staticmethod
    def of(numbers: Sequence[int] | np.ndarray) -> CellRuns:
        """Return the cells with some numbers, given in any order.

        Examples
        --------
        >>> CellRuns.of([7, 3, 4, 5]).runs
        ((3, 3), (7, 1))
        """
        ordered = np.unique(np.asarray(numbers, np.int64))
        if not ordered.size:
            return CellRuns(())
        starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) != 1)
        lengths = np.diff(starts, append=ordered.size)
        return CellRuns(tuple(zip(ordered[starts].tolist(), lengths.tolist(), strict=True)))

    @property
    def count(self) -> int:
        """Number of cells."""
        return sum(length for _, length in self.runs)

    def part(self, first: int, stop: int) -> Iterator[int]:
        """Yield the numbers from one position of the list up to another.

        Examples
        --------
        >>> list(CellRuns(((3, 3), (7, 1))).part(2, 4))
        [5, 7]
        """
        ends = list(accumulate(length for _, length in self.runs))
        for position in range(bisect_right(ends, first), len(self.runs)):
            start, length = self.runs[position]
            before = ends[position] - length
            if before >= stop:
                return
            yield from range(start + max(first - before, 0), start + min(stop - before, length))


class ScanResult(NamedTuple):
    """Result of a task."""

    array: int
    """Number of the array."""
    first: int
    """Position of its first object in the list of cells."""
    states: bytes
    """Index in `STATES` for each object."""
    chunks: dict[State, int]
    """Number of chunks inside shards by state, if they were checked."""
    nbytes: int
    """Bytes that were read, or sizes that were looked up."""
    sums: list[StoredObject | None]
    """Checksums of each object, if requested; None if it is absent."""
    findings: list[Finding]


@dataclass(frozen=True)
class ObjectScan:
    """The tasks for some arrays; called with the number of a task."""

    arrays: tuple[Array, ...]
    cells: tuple[CellRuns, ...]
    """The stored objects of each array to check."""
    depth: Depth
    sha256: bool = False
    """True to compute the SHA-256 as well, if checksums are computed."""
    sums: bool = False
    """True to compute checksums of chunks that are decoded, too."""

    @property
    def batches(self) -> list[int]:
        """Number of tasks for each array."""
        return [-(-cells.count // self._size(n)) for n, cells in enumerate(self.cells)]

    def _size(self, which: int) -> int:
        """Return the number of objects of one task: few if each is a lot of work."""
        array = self.arrays[which]
        if self.depth == "index":
            return _MOST_PER_TASK
        nbytes = prod(array.write_chunks) * array.meta.data_type.typical_itemsize
        return max(1, min(_MOST_PER_TASK, _BYTES_PER_TASK // max(nbytes, 1)))

    def __call__(self, number: int) -> ScanResult:
        """Run one task."""
        ends = list(accumulate(self.batches))
        which = bisect_right(ends, number)
        size = self._size(which)
        first = (number - (ends[which - 1] if which else 0)) * size
        array = self.arrays[which]
        states, chunks = bytearray(), Counter[State]()
        sums: list[StoredObject | None] = []
        findings: list[Finding] = []
        nbytes = 0
        confirm = array.confirmation()

        def look(cell: int) -> _CheckedObject:
            return _look_at(array, array.meta.grid.coords_of(cell), self)

        cells = self.cells[which].part(first, first + size)
        for found in imap_concurrently(look, cells, transfers_for(array.store)):
            found.finish()
            if found.state == "absent":
                confirm()
            states.append(STATES.index(found.state))
            chunks.update(found.chunks)
            nbytes += found.nbytes
            sums.append(found.summed)
            findings.extend(found.findings[: _MOST_NAMED - len(findings)])
        return ScanResult(which, first, bytes(states), dict(chunks), nbytes, sums, findings)


_MOST_PER_TASK = 256
_BYTES_PER_TASK = 1 << 26
_MOST_NAMED = 100
"""Maximum number of findings that one task names; all are counted."""


# --- one stored object ----------------------------------------------------------------------------

_Read = Callable[[Sequence[Range]], Sequence[Buffer] | None]
"""Reads parts of one value."""


def _look_at(array: Array, coords: tuple[int, ...], scan: ObjectScan) -> _CheckedObject:
    """Ask for the stored object at some coordinates; decoding is left to `_CheckedObject.finish`.

    Many threads ask at a time. If all of them decoded, they would mostly wait for each other.
    """
    look = _CheckedObject(array, coords, decoding=scan.depth == "decode")
    with look.blaming_damage():
        _look_into(look, scan)
    if look.asks:
        look.finish()
    return look


def _look_into(look: _CheckedObject, scan: ObjectScan) -> None:
    array, coords, depth = look.array, look.coords, scan.depth
    key, bound = array.key(coords), array.meta.bound(coords)
    read: _Read
    if depth == "index":
        (size, read, is_here), view = _sized(array, coords, key), memoryview(b"")
        look.asks = not is_here or _has_shards_in_shards(array)
    else:
        most = bound.size.most
        value = _whole(array.store, key, most + 1)
        size = None if value is None else len(value)
        view = memoryview(value or b"")
        read = lambda wanted: [view[one.start : one.stop] for one in wanted]  # noqa: E731
        if size is not None and size > most and bound.partial:  # a shard may have gaps of any size
            (size, read, _), view = _sized(array, coords, key), view[:most]
    if size is None:
        look.state = "absent"
        return
    look.nbytes = size
    if depth == "receipts" or (depth == "decode" and scan.sums):
        look.summed = stored_object(key, [view], with_sha256=scan.sha256)
    if depth == "receipts":
        return
    valid = tuple(slice(0, s.stop - s.start, 1) for s in array.meta.grid.region_of(coords))
    look.rest = partial(look.at, bound, read, size, valid, ())


def _whole(store: Store, key: str, nbytes: int) -> Buffer | None:
    """Return the first bytes of a value, which stay valid if other values are read meanwhile."""
    if store.coalescing.max_concurrent_requests == 1:
        return get_start(store, key, nbytes)
    return store.get_ranges([(key, BoundedRange(0, nbytes))])[0]


def _has_shards_in_shards(array: Array) -> bool:
    inner = array.meta.codecs.serializer.inner_codecs or ()
    return any(isinstance(codec, Serializer) and codec.is_sharding for codec in inner)


def _sized(array: Array, coords: Shape, key: str) -> tuple[int | None, _Read, bool]:
    """Return the size of an object (None if it is absent), and what reads its parts.

    The response to the request for the index of a shard tells its size in many stores. The third
    value is True if the index need not be asked for.
    """
    store = array.store

    def read(wanted: Sequence[Range]) -> Sequence[Buffer] | None:
        return read_ranges(store, key, wanted)

    index = _index_range(array.meta.bound(coords))
    if index is None or store.coalescing.max_concurrent_requests == 1:
        return store.size(key), read, index is None
    (found,) = get_ranges_if_match(store, [(key, index, None)])
    if found is None:
        return None, read, True
    content = found.content
    if content is None:
        return store.size(key), read, False
    size = store.size(key) if found.size is None else found.size
    return size, lambda wanted: [content] if [*wanted] == [index] else read(wanted), True


def _index_range(bound: BoundCodecChain) -> Range | None:
    """Return the range of the index of a shard; None for what is no shard."""
    fetch = bound.read_index()
    try:
        wanted = [*next(fetch)]
    except StopIteration:
        return None
    finally:
        fetch.close()
    return wanted[0] if len(wanted) == 1 else None


class _CheckedObject:
    """One stored object, and the results of checking it."""

    def __init__(self, array: Array, coords: tuple[int, ...], *, decoding: bool) -> None:
        self.array = array
        self.coords = coords
        self.decoding = decoding
        self.state: State = "ok"
        self.chunks = Counter[State]()
        self.nbytes = 0
        self.summed: StoredObject | None = None
        self.findings: list[Finding] = []
        self.rest: Callable[[], object] | None = None
        """Check of the bytes that have been read, if it is still to be made."""
        self.asks = False
        """True if that asks the store for more."""

    def finish(self) -> None:
        """Check what remains to be checked."""
        rest, self.rest = self.rest, None
        if rest is not None:
            with self.blaming_damage():
                rest()

    @contextmanager
    def blaming_damage(self) -> Iterator[None]:
        """Record that the store has found the value damaged, if it raises that."""
        try:
            yield
        except DamagedValueError as error:
            state: State = "checksum" if error.by_checksum else "undecodable"
            self.blame(state, (), str(error))

    def blame(self, state: State, inside: tuple[Shape, ...], reason: str) -> State:
        """Record a problem with the object, or with a chunk inside it."""
        self.state = max(self.state, state, key=STATES.index)
        if len(self.findings) < _MOST_NAMED:
            key, path = self.array.key(self.coords), self.array.path
            self.findings.append(Finding(state, path, key, (self.coords, *inside), reason))
        return state

    def at(
        self,
        bound: BoundCodecChain,
        read: _Read,
        size: int,
        valid: Region,
        inside: tuple[Shape, ...],
    ) -> State:
        """Check a chunk, or a shard and the chunks in it.

        Parameters
        ----------
        bound
            Codecs of the chunk or shard.
        read
            Reads parts of its bytes.
        size
            Number of its bytes.
        valid
            Part of it that lies inside the array.
        inside
            Coordinates in the shards around it.
        """
        expected = bound.size.exact
        if size == 0 or (expected is not None and size != expected):
            wanted = "some" if expected is None else f"{expected}"
            return self.blame("torn", inside, f"it has {size} bytes, expected {wanted}")
        try:
            found = drive_fetch(bound.read_index(), read)
        except CorruptObjectError as error:
            return self.blame("torn", inside, error.reason)
        if found is not None:
            state = self._overlaps(found, size, inside)
            other = self._chunks(found.places, found.chunk, bound, read, size, valid, inside)
            return max(state, other, key=STATES.index)
        if self.decoding:
            out = np.empty(bound.spec.shape, bound.spec.dtype)
            try:
                drive_fetch(bound.read(None, out, _READING, whole=True), read)
            except ChecksumError as error:
                return self.blame("checksum", (*inside, *error.coords), error.reason)
            except CorruptObjectError as error:
                return self.blame("undecodable", (*inside, *error.coords), error.reason)
        return "ok"

    def _overlaps(self, found: ShardIndex, size: int, inside: tuple[Shape, ...]) -> State:
        """Record chunks that overlap each other, or the index, according to the index.

        Two chunks may lie at exactly the same position: equal bytes need to be stored only once.
        """
        starts, counts = found.places.reshape(-1, 2).T
        held = (counts <= size - np.minimum(starts, size)) & (counts > 0)
        starts, counts = starts[held], counts[held]
        stops = starts + counts
        is_apart = not (starts[1:] < stops[:-1]).any()
        if not is_apart:
            order = np.argsort(starts)
            starts, stops = starts[order], stops[order]
        state: State = "ok"
        first = found.index_nbytes if found.index_first else 0
        last = size if found.index_first else size - found.index_nbytes
        if len(starts) and (starts[0] < first or stops.max() > last):
            reason = "its index gives bytes of the index itself to a chunk"
            state = self.blame("torn", inside, reason)
        if is_apart or not (starts[1:] < np.maximum.accumulate(stops)[:-1]).any():
            return state
        places = np.unique(np.stack([starts, stops], axis=-1), axis=0)
        met = np.flatnonzero(places[1:, 0] < np.maximum.accumulate(places[:, 1])[:-1])
        if met.size:
            at = int(places[met[0] + 1, 0])
            state = self.blame("torn", inside, f"its index gives byte {at} to two chunks")
        return state

    def _chunks(
        self,
        places: np.ndarray,
        chunk: BoundCodecChain,
        bound: BoundCodecChain,
        read: _Read,
        size: int,
        valid: Region,
        inside: tuple[Shape, ...],
    ) -> State:
        """Check the chunks in an index, as far as they lie inside the array."""
        region = bound.encoded_region(valid)
        shape = chunk.spec.shape
        box = tuple(slice(0, -(-s.stop // n)) for s, n in zip(region, shape, strict=True))
        starts, counts = places[box][..., 0], places[box][..., 1]
        absent = (starts == ABSENT_PLACE) & (counts == ABSENT_PLACE)
        within = np.minimum(counts, size)  # sums of larger numbers would wrap around
        wrong = (counts > size) | (starts > size - within)
        if chunk.size.exact is not None:
            wrong |= counts != chunk.size.exact
        wrong &= ~absent
        self.chunks["absent"] += int(absent.sum())
        worst: State = "ok"
        for coords in _coordinates(wrong):
            start, count = int(starts[coords]), int(counts[coords])
            reason = (
                f"the index of its shard gives it {count} bytes from byte {start} on; the shard "
                f"has {size}, and a chunk at most {chunk.size.most}"
            )
            worst = self.blame("torn", (*inside, coords), reason)
            self.chunks["torn"] += 1
        held = ~absent & ~wrong
        if not self.decoding and not chunk.partial:
            self.chunks["ok"] += int(held.sum())
            return worst
        for coords in _coordinates(held):
            start, count = int(starts[coords]), int(counts[coords])
            rest = tuple(
                slice(0, min(n, s.stop - i * n), 1)
                for i, n, s in zip(coords, shape, region, strict=True)
            )
            part = _within(read, start, count)
            before = sum(self.chunks.values())
            state = self.at(chunk, part, count, rest, (*inside, coords))
            if sum(self.chunks.values()) == before:  # unless it is a shard itself
                self.chunks[state] += 1
            worst = max(worst, state, key=STATES.index)
        return worst


_READING = DecodeOptions()


def _coordinates(mask: np.ndarray) -> Iterator[Shape]:
    """Return the coordinates where a mask is true, in C order; `()` if it has no dimensions."""
    if not mask.any():
        return iter(())
    if not mask.ndim:
        return iter([()])
    return (tuple(row) for row in np.argwhere(mask).tolist())


def _within(read: _Read, start: int, length: int) -> _Read:
    """Return a reader for parts of a range within a longer value."""
    return lambda wanted: drive_fetch(fetch_within(_asking(wanted), start, length), read)


def _asking(wanted: Sequence[Range]) -> Fetch[Sequence[Buffer] | None]:
    received = yield wanted
    return None if received is None else list(received)
