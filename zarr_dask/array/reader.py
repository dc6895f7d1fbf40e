"""Reading of stored objects into memory; all elements are read here.

`Reader.read_region` reads a region of an array; `read_pieces` reads any pieces of any stored
objects, which is how selections are read. However many pieces are taken of a stored object, its
bytes, and the index of a shard, are requested once.

Objects of a local store are read one by one, concurrently on threads. If each request has latency
(`ReadPolicy.max_concurrent_requests`), they are read in batches: the indices of many shards by one
call of the store, then the chunks of all of them by another.

An object that does not decode is fetched once more, because transfers are cut off more often than
files are damaged; only then is it an error, which names its key and its coordinates. So is one that
turns out to have been replaced between its index and its chunks, where the store can tell.

Where an object is absent, the document of the array is looked at once more at the end of the call
(`zarr_dask.array.revalidate`): only while that stands is absence a value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from math import prod
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from zarr_dask._util.arguments import check_count
from zarr_dask._util.buffers import prefault
from zarr_dask._util.threads import cpu_count, overlap_with_wait, parallel_for
from zarr_dask.array.revalidate import Standing, is_since
from zarr_dask.codecs.base import WORTH_A_THREAD, ChunkRead, DecodeOptions, largest_partial_read
from zarr_dask.codecs.chain import BoundCodecChain, fill_missing_chunk
from zarr_dask.codecs.fetch import Fetch, drive_fetch, drive_fetch_from_bytes
from zarr_dask.errors import (
    ChunkMissingError,
    CorruptObjectError,
    MetadataChangedError,
    NodeNotFoundError,
    ObjectReplacedError,
    ZarrDaskError,
)
from zarr_dask.formats.base import ArrayMeta, ReadOptions, where
from zarr_dask.grid.grid import Part, Region, Shape, view_region
from zarr_dask.stores.base import (
    Buffer,
    IndexRange,
    Range,
    RangeReader,
    ReadPolicy,
    StandsForFiles,
    Store,
    TaggedBytes,
    cancel_reads,
    coalesce,
    etag_of,
    get_ranges_if_match,
    get_start,
    is_whole,
    iter_split_coalesced,
    open_value,
    require_same_etag,
    supports_cheap_random_reads,
)
from zarr_dask.stores.index_prefetch import INDICES, CacheKey
from zarr_dask.stores.wrapper import unwrap

if TYPE_CHECKING:
    from zarr_dask.array.object_versions import ObjectVersions
    from zarr_dask.array.verification import ObjectCheck

__all__ = ["ObjectSlice", "Reader", "read_pieces"]


T = TypeVar("T")


class ObjectSlice(NamedTuple):
    """A part of one stored object, and the memory to read it into."""

    coords: tuple[int, ...]
    """Coordinates of the stored object."""
    inside: Region | None
    """Elements of the object; None for all of its declared shape."""
    out: np.ndarray
    """Memory of the shape of `inside`, of the array's data type."""
    whole: bool = False
    """True if all of it that lies in the array is taken: its bytes are requested at once."""


class HasReader(Protocol):
    """Interface of an array that can be read."""

    @property
    def reader(self) -> Reader:
        """Reader of its elements."""
        ...


def read_pieces(
    array: HasReader, pieces: Iterable[ObjectSlice], threads: int | None = None
) -> None:
    """Read pieces of stored objects into their memory.

    Parameters
    ----------
    array
        Array to read from.
    pieces
        Pieces in any order; those of one stored object are read together, and a chunk that several
        of them overlap is decoded once. Their memory must not overlap.
    threads
        1 for the calling thread only; by default one per core, or the calling one where chunks are
        so small that others would not help.

    Raises
    ------
    CorruptObjectError
        If stored bytes do not decode; the error names key and coordinates.
    ChunkMissingError
        If a chunk is absent and the array was opened with ``missing="error"``.
    StoreError
        If the store fails, or an object is replaced each time it is read.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(1, 1), shards=(4, 3))
    >>> a[...] = np.arange(24).reshape(4, 6)
    >>> out = np.empty((2, 1, 1), "i2")
    >>> inside = (slice(2, 3, 1), slice(0, 1, 1))
    >>> read_pieces(a, [ObjectSlice((0, 1), inside, out[0]), ObjectSlice((0, 0), inside, out[1])])
    >>> out.ravel()
    array([15, 12], dtype=int16)
    """
    array.reader.read_pieces(pieces, threads)


class _Call:
    """One call that reads stored objects, on any number of threads."""

    __slots__ = ("begun", "found_absent", "reading")

    def __init__(self, reading: DecodeOptions) -> None:
        self.reading = reading
        self.begun = time_ns()
        self.found_absent = False
        """True if anything was absent; set by any of its threads."""


class _Object(NamedTuple):
    """A stored object and the parts of it to read."""

    key: str
    coords: tuple[int, ...]
    bound: BoundCodecChain
    cuts: Sequence[ChunkRead]
    whole: bool
    """True if all of its bytes are requested at once."""
    call: _Call

    @property
    def regions(self) -> Sequence[ChunkRead]:
        """The parts, each with its region."""
        everything = tuple(slice(0, length, 1) for length in self.bound.spec.shape)
        return [ChunkRead(region or everything, out) for region, out in self.cuts]


class Reader:
    """Reader of one array, with everything that its stored objects share.

    Parameters
    ----------
    store, path
        Location of the array.
    prefix
        Common prefix of the keys of its stored objects.
    meta
        Parsed metadata of the array.
    options
        How to read.
    standing
        The document that the array was opened with; None for an array that has none yet.
    before_whole
        See `sparing`; None for a reader that holds whole chunks.
    check
        Compares objects with a manifest; None for `ReadOptions.verify` False.
    versions
        Compares objects with those at opening; None for `ReadOptions.consistent` False.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        prefix: str,
        meta: ArrayMeta,
        options: ReadOptions,
        *,
        standing: Standing | None = None,
        before_whole: Callable[[], None] | None = None,
        check: ObjectCheck | None = None,
        versions: ObjectVersions | None = None,
    ) -> None:
        self._check, self._versions = check, versions
        self._is_checked = check is not None or versions is not None
        self._store, self._path, self._prefix = store, path, prefix
        self._meta, self._grid, self._keys = meta, meta.grid, meta.chunk_key_encoding
        self._options = options
        self._standing = standing
        self._unseen = standing is not None and not standing.shown.here
        self._reading = replace(options.reading, before_whole=before_whole)
        self._dtype = meta.dtype
        largest = meta.largest_bound()
        self._reorders, self._divides = largest.reorders, largest.partial
        self._most_kept = options.index_cache
        self._identity = store.identity if self._most_kept else ""
        self._together = store.coalescing.max_concurrent_requests
        self._sparing = before_whole is not None
        self._peeks = supports_cheap_random_reads(store)
        self._get_start = getattr(store, "get_start", None) or partial(get_start, store)
        self._open_value = getattr(store, "open_value", None) or partial(open_value, store)

    def allocate(self, region: Region, shape: Shape) -> np.ndarray:
        """Return memory for a region.

        If the region is one stored object whose elements are not in C order (columns first, for
        instance), the memory has the order of the object, so that it is decoded directly.

        Raises
        ------
        ValueError, MemoryError
            Raised by NumPy if there is not enough memory.
        """
        if self._reorders:
            only = self._grid.single_chunk(region)
            bound = None if only is None else self._meta.bound(only[0])
            if bound is not None and bound.spec.shape == shape:
                return bound.empty_chunk()
        return np.empty(shape, self._dtype)

    def key_of(self, coords: tuple[int, ...]) -> str:
        """Return the key of the stored object at some coordinates."""
        return self._prefix + self._keys.key(coords)

    def sparing(self, before_whole: Callable[[], None]) -> Reader:
        """Return a reader that holds only the required blocks of a chunk, not the whole chunk.

        This needs chunks that can be read block by block (`BoundCodecChain.partial_decode_nbytes`).

        Parameters
        ----------
        before_whole
            Called before a chunk that cannot be read so is held whole; it may wait for memory.
        """
        place = (self._store, self._path, self._prefix)
        return Reader(
            *place,
            self._meta,
            self._options,
            standing=self._standing,
            before_whole=before_whole,
            check=self._check,
            versions=self._versions,
        )

    def read_region(self, region: Region, out: np.ndarray, threads: int | None) -> None:
        """Put a region of the array into `out`, which has its shape and the array's data type."""
        self._see()
        self._until_confirmed(partial(self._read_region, region, out, threads), threads)

    def _read_region(
        self, region: Region, out: np.ndarray, threads: int | None, call: _Call
    ) -> None:
        only = None if self._sparing else self._grid.single_chunk(region)
        if only is not None:
            self._read_one(out, *only, call)
        elif self._together == 1 and not self._sparing:

            def read(part: Part) -> None:
                place = view_region(out, part.out)
                self._read_one(place, part.coords, part.inside, part.whole, call)

            self._one_by_one(read, self._grid.parts(region), threads)
        else:
            objects = (
                self._part(view_region(out, part.out), part.coords, part.inside, part.whole, call)
                for part in self._grid.parts(region)
            )
            self._read_all(objects, partial(self._grid.count_parts, region), threads)

    def read_into_fresh(self, region: Region, out: np.ndarray, threads: int | None) -> None:
        """Read a region as `read_region`, into memory that has not been written to yet.

        If requests have latency, the system provides that memory while waiting for the responses.
        """
        fits = _WORTH_PROVIDING <= out.nbytes <= self._store.coalescing.max_bytes_in_flight
        if self._together == 1 or not fits:
            self.read_region(region, out, threads)
            return
        with overlap_with_wait(partial(prefault, out)):
            self.read_region(region, out, threads)

    def read_pieces(self, pieces: Iterable[ObjectSlice], threads: int | None) -> None:
        """See `read_pieces`."""
        self._see()
        by_object: dict[tuple[int, ...], list[ObjectSlice]] = {}
        for piece in pieces:
            by_object.setdefault(piece.coords, []).append(piece)

        def read(call: _Call) -> None:
            objects = (self._object(coords, some, call) for coords, some in by_object.items())
            self._read_all(objects, by_object.__len__, threads)

        self._until_confirmed(read, threads)

    def read_each(
        self,
        jobs: Callable[[], Iterable[T]],
        memory_of: Callable[[T], Sequence[ObjectSlice]],
        take: Callable[[T, Sequence[ObjectSlice]], None],
        threads: int | None,
    ) -> None:
        """Read pieces of stored objects, job by job, each of which uses them at once.

        Parameters
        ----------
        jobs
            Returns jobs, each for pieces of one stored object; called again if absent objects are
            to be looked for again.
        memory_of
            Returns the pieces of a job; called by the thread that reads them.
        take
            Called with a job and its pieces when they have been read, by the same thread.
        threads
            See `read_pieces`.
        """
        self._see()

        def read(job: T, call: _Call) -> None:
            pieces = memory_of(job)
            coords, inside, out, whole = pieces[0]
            if inside is None:
                self._read_one(out, coords, None, whole, call)
            else:
                self._read(self._object(coords, pieces, call))
            take(job, pieces)

        self._until_confirmed(
            lambda call: self._one_by_one(partial(read, call=call), jobs(), threads), threads
        )

    @property
    def takes_whole_chunks(self) -> bool:
        """True if chunks have one shape, and are decoded as a whole however little is taken."""
        nbytes = prod(self._meta.chunk_shape) * self._dtype.itemsize
        fixed = self._grid.cell_shape is not None and self._dtype.kind not in "OTV"
        return fixed and nbytes > 0 and not largest_partial_read(nbytes)

    def _see(self) -> None:
        """See the document, where the array has travelled to this process."""
        if self._unseen and self._standing is not None:
            self._standing.see()
            self._unseen = False

    def _call(self, threads: int | None) -> _Call:
        """Return a call, of which several threads may decode one shard."""
        if threads == 1 or not self._divides or (threads is None and self._hurries):
            return _Call(self._reading)
        check_count("threads", threads, "one per core")
        return _Call(replace(self._reading, threads=threads))

    def _until_confirmed(self, read: Callable[[_Call], None], threads: int | None) -> None:
        """Read until what was absent is absent from the array that was opened.

        It may have been away when that was looked for, and be there again.
        """
        seen: tuple[int, ...] | None = None
        for _ in range(_MOST_LOOKS):
            call = self._call(threads)
            read(call)
            if not call.found_absent or self._standing is None:
                return
            self._standing.check()
            moves = self._standing.last_moves()
            if moves == seen or not is_since(moves, call.begun):
                return
            seen = moves

    def _read_one(
        self,
        out: np.ndarray,
        coords: tuple[int, ...],
        inside: Region | None,
        whole: bool,
        call: _Call,
    ) -> None:
        """Read a region of one object: a short form of `_read` that saves small reads a third."""
        bound = self._meta.bound(coords)
        if self._is_checked:
            self._read(self._part(out, coords, inside, whole, call))
            return
        if out.shape == bound.spec.shape:
            inside = None
        elif not whole and (
            bound.partial
            or (bound.peeks and self._peeks and bound.worth_partial_read((ChunkRead(inside, out),)))
        ):
            self._read(self._part(out, coords, inside, whole, call))
            return
        try:
            buffer = self._get_start(self.key_of(coords), bound.size.most + 1)
            if buffer is not None:
                bound.decode(buffer, inside, out, call.reading)
                return
        except CorruptObjectError:
            self._read_again(self._part(out, coords, inside, whole, call))
            return
        except ChunkMissingError as error:
            raise self._located(error, self._part(out, coords, inside, whole, call)) from None
        if self._reading.absent_is_error:
            raise self._absent(self._part(out, coords, inside, whole, call))
        self._fill(bound, (ChunkRead(inside, out),), call)

    def _part(
        self,
        out: np.ndarray,
        coords: tuple[int, ...],
        inside: Region | None,
        whole: bool,
        call: _Call,
    ) -> _Object:
        """Return an object of which one region is read."""
        bound = self._meta.bound(coords)
        if out.shape == bound.spec.shape:
            inside, whole = None, True
        key, cuts = self.key_of(coords), (ChunkRead(inside, out),)
        whole = whole and not self._sparing  # it may be little of a chunk at the border
        whole = whole or not self._in_part(bound, cuts)
        return _Object(key, coords, bound, cuts, whole, call)

    def _in_part(self, bound: BoundCodecChain, cuts: Sequence[ChunkRead]) -> bool:
        """True if an object can be read without requesting all of its bytes."""
        if self._check is not None:
            return False
        waits = self._together > 1 and not self._sparing and not self._most_kept
        if waits and bound.worth_reading_whole(cuts, self._store.coalescing.worth_a_round_trip):
            return False
        peeks = self._peeks or self._sparing
        return bound.partial or (peeks and bound.worth_partial_read(cuts))

    def _object(
        self, coords: tuple[int, ...], pieces: Sequence[ObjectSlice], call: _Call
    ) -> _Object:
        """The object that some pieces are of."""
        bound = self._meta.bound(coords)
        shape = bound.spec.shape
        cuts, whole = [], False
        for _, inside, out, taken in pieces:
            if taken or inside is None or out.shape == shape:
                whole = True
            cuts.append(ChunkRead(None if out.shape == shape else inside, out))
        whole = whole or not self._in_part(bound, cuts)
        return _Object(self.key_of(coords), coords, bound, cuts, whole, call)

    def _read_all(
        self, objects: Iterator[_Object], count: Callable[[], int], threads: int | None
    ) -> None:
        """Read objects one by one or in batches, as the store requires; `count` counts them."""
        if self._together == 1:
            self._one_by_one(self._read, objects, threads)
            return
        check_count("threads", threads, "one per core")
        workers = 1 if threads == 1 else min(threads or cpu_count(), cpu_count())
        size = max(1, min(_BATCH, -(-count() // workers)))
        parallel_for(self._read_batch, iter(lambda: list(islice(objects, size)), []), threads)

    def _one_by_one(
        self, read: Callable[[T], object], items: Iterable[T], threads: int | None
    ) -> None:
        parallel_for(read, items, 1 if threads is None and self._hurries else threads)

    @cached_property
    def _hurries(self) -> bool:
        """True if a chunk is decoded in less time than threads need to hand on the interpreter.

        Threads that wait for a network file system wait together.
        """
        from zarr_dask.codecs.throughput import speeds_of
        from zarr_dask.stores.file_backed import is_behind_network

        nbytes = prod(self._meta.chunk_shape) * self._dtype.itemsize
        is_short = nbytes < WORTH_A_THREAD * speeds_of(self._meta.codecs).decode
        return is_short and not is_behind_network(self._store)

    # --- one object -------------------------------------------------------------------------------

    def _read(self, wanted: _Object) -> None:
        try:
            self._attempt(wanted, again=False)
        except (CorruptObjectError, ObjectReplacedError):
            self._read_again(wanted)
        except ChunkMissingError as error:
            raise self._located(error, wanted) from None

    def _read_again(self, wanted: _Object) -> None:
        """Retry an object that did not decode: it may have been truncated on its way, or replaced.

        A network may fail several times in a row, a disk does not.
        """
        try:
            for _ in range(_MORE_FROM_AFAR if self._together > 1 else 0):
                with suppress(CorruptObjectError):
                    self._attempt(wanted, again=True)
                    return
            self._attempt(wanted, again=True)
        except ObjectReplacedError as error:
            raise ObjectReplacedError(
                f"{wanted.key!r} of {self._where} (chunk {wanted.coords}) was replaced each time "
                "while it was read; read it when nobody writes it."
            ) from error
        except CorruptObjectError as error:
            self._explain(error)
            located = error.at(self._where, wanted.key, wanted.coords)
            store = unwrap(self._store)
            raise (
                store.of_file(located) if isinstance(store, StandsForFiles) else located
            ) from error
        except ChunkMissingError as error:
            raise self._located(error, wanted) from None

    def _explain(self, error: CorruptObjectError) -> None:
        """Say that the array has gone or is another one, if that is why it does not decode."""
        try:
            if self._standing is not None:
                self._standing.check()
        except (MetadataChangedError, NodeNotFoundError) as reason:
            raise reason from error
        except ZarrDaskError:
            return  # what is wrong with the document does not matter here

    def _attempt(self, wanted: _Object, *, again: bool) -> None:
        """Read an object; `again` ignores cached indices."""
        whole, bound, cuts, present = wanted.whole, wanted.bound, wanted.cuts, False
        if self._is_checked:
            with self._open_value(wanted.key) as value:
                present = drive_fetch(self._fetch(wanted), value.get_ranges)
            if self._versions is not None:
                self._versions.check(wanted.key, present=present)
            whole = True
        elif whole:
            most = bound.size.most
            buffer = self._get_start(wanted.key, most + 1)
            present = buffer is not None
            if buffer is not None and len(buffer) > most and bound.partial:
                whole = False  # a shard may have gaps of any size
                cuts = wanted.regions
            elif buffer is not None:
                bound.decode_cuts(buffer, cuts, wanted.call.reading)
        if not whole:
            with self._open_value(wanted.key) as value:
                ask = partial(self._ask, value, wanted.key, again) if self._most_kept else None
                fetch = bound.read_cuts(cuts, wanted.call.reading, whole=False)
                present = drive_fetch(fetch, ask or value.get_ranges)
        if not present and again:
            raise CorruptObjectError("it was removed while it was being read")
        if not present:
            self._fill_all(wanted)

    def _fetch(self, wanted: _Object) -> Fetch[bool]:
        if self._check is not None:
            return self._fetch_checked(wanted, self._check)
        return wanted.bound.read_cuts(wanted.cuts, wanted.call.reading, whole=wanted.whole)

    def _fetch_checked(self, wanted: _Object, check: ObjectCheck) -> Fetch[bool]:
        """Request all bytes of an object, and decode them if they are what the manifest says."""
        received = yield (check.wanted(wanted.key),)
        buffer = None if received is None else next(iter(received))
        check.compare(wanted.key, buffer)
        if buffer is None:
            return False
        bound = wanted.bound
        if len(buffer) > bound.size.most and bound.partial:  # a shard may have gaps of any size
            fetch = bound.read_cuts(wanted.regions, wanted.call.reading, whole=False)
            return drive_fetch_from_bytes(fetch, buffer)
        bound.decode_cuts(buffer, wanted.cuts, wanted.call.reading)
        return True

    def _fill_all(self, wanted: _Object) -> None:
        """Fill the parts of an absent object, if that is no error."""
        if self._reading.absent_is_error:
            raise self._absent(wanted)
        self._fill(wanted.bound, wanted.cuts, wanted.call)

    def _fill(self, bound: BoundCodecChain, cuts: Sequence[ChunkRead], call: _Call) -> None:
        """Fill parts of an absent object with the fill value."""
        call.found_absent = True
        for _, out in cuts:
            fill_missing_chunk(out, bound.spec, self._reading)

    def _absent(self, wanted: _Object) -> ChunkMissingError:
        return self._located(ChunkMissingError(self._meta.missing_chunks_hint), wanted)

    def _located(self, error: ChunkMissingError, wanted: _Object) -> ChunkMissingError:
        return error if error.key else error.at(self._where, wanted.key, wanted.coords)

    @property
    def _where(self) -> str:
        return where(self._store, self._path)

    # --- cached indices ---------------------------------------------------------------------------

    def _ask(
        self, value: RangeReader, key: str, again: bool, ranges: Sequence[Range]
    ) -> Iterable[Buffer] | None:
        """Return bytes of a value; indices may come from the cache."""
        # the validator is fetched before the bytes, so that these are never older than it
        validator = value.validator() if _are_indices(ranges) else None
        if validator is None:
            return value.get_ranges(ranges)
        found = None if again else self._kept(key, ranges, validator)
        if found is None:
            received = value.get_ranges(ranges)
            if received is None:
                return None
            found = [bytes(content) for content in received]
            self._keep(key, ranges, validator, found)
        return found

    def _kept(
        self, key: str, ranges: Sequence[Range], validator: Hashable
    ) -> Sequence[Buffer] | None:
        """Return indices from the cache of this process, if it holds all of them."""
        found: list[Buffer] = []
        for wanted in ranges:
            content = INDICES.get(CacheKey(self._identity, key, wanted), validator)
            if content is None:
                return None
            found.append(content)
        return found

    def _keep(
        self,
        key: str,
        ranges: Sequence[Range],
        validator: Hashable,
        found: Sequence[Buffer] | None,
    ) -> None:
        for wanted, content in zip(ranges, found or (), strict=found is not None):
            place = CacheKey(self._identity, key, wanted)
            INDICES.put(place, validator, bytes(content), self._most_kept)

    # --- objects in batches -----------------------------------------------------------------------

    def _read_batch(self, objects: Sequence[_Object]) -> None:
        """Read objects concurrently: their next requests are sent by one call of the store.

        If the store yields responses as they arrive, the next ones are sent when half of the last
        have been used, so that some are always in flight.
        """
        if len(objects) == 1:
            self._read(objects[0])
            return
        waiting, begun, failed = deque(objects), deque[_ObjectRead](), list[_Object]()
        window = _RequestWindow(self._store.coalescing)
        try:
            while True:
                if window.has_room_for(len(waiting) + len(begun)):
                    taken = self._next_round(begun, waiting, failed, window)
                    if taken:
                        window.rounds.append(self._send(taken))
                found = window.next_response()
                if found is None:
                    break
                if self._go_on(*found, failed):
                    begun.append(found[0])
        finally:
            window.cancel()
        for wanted in failed:
            self._read_again(wanted)

    def _next_round(
        self,
        begun: deque[_ObjectRead],
        waiting: deque[_Object],
        failed: list[_Object],
        window: _RequestWindow,
    ) -> list[_ObjectRead]:
        """Return the objects to request next: started ones first, as many as the store allows."""
        taken: list[_ObjectRead] = []
        while not window.is_full and (begun or waiting):
            if begun:
                one = begun.popleft()
            else:
                wanted = waiting.popleft()
                one = _ObjectRead(wanted, self._fetch(wanted))
                if self._versions is not None:
                    one.tag = self._versions.tags.get(wanted.key)
                if not self._skip_kept(one, failed):
                    continue
            taken.append(one)
            window.add(one)
        return taken

    def _skip_kept(self, one: _ObjectRead, failed: list[_Object]) -> bool:
        """Read on as long as indices are cached; True if there is more to request."""
        key = one.wanted.key
        while self._most_kept and _are_indices(one.ranges):
            one.tag = etag_of(self._store, key)
            if one.tag is None:
                return True
            found = self._kept(key, one.ranges, one.tag)
            if found is None:
                return True
            if not self._go_on(one, found, failed):
                return False
        return True

    def _send(self, taken: Sequence[_ObjectRead]) -> _RequestBatch:
        """Send what some objects request, by one call of the store."""
        joint = [coalesce(one.ranges, self._store.coalescing) for one in taken]
        requests = [
            (one.wanted.key, wanted, one.tag)
            for one, (ranges, _) in zip(taken, joint, strict=True)
            for wanted in ranges
        ]
        fetched = get_ranges_if_match(self._store, requests)
        return _RequestBatch(fetched, self._responses(taken, joint, iter(fetched)))

    def _responses(
        self,
        taken: Sequence[_ObjectRead],
        joint: Sequence[tuple[Sequence[Range], Sequence[tuple[int, int]]]],
        coming: Iterator[TaggedBytes | None],
    ) -> Iterator[_Response]:
        """Yield the bytes that some objects have requested, in this order."""
        for one, (ranges, places) in zip(taken, joint, strict=True):
            share = islice(coming, len(ranges))
            yield one, self._received(one, share, places)
            deque(share, maxlen=0)  # skip the rest that was not consumed

    def _received(
        self,
        one: _ObjectRead,
        share: Iterator[TaggedBytes | None],
        places: Sequence[tuple[int, int]],
    ) -> Iterable[Buffer] | None:
        """Return the bytes that an object requested, as they arrive."""
        try:
            found, tag = require_same_etag(share, one.tag, repr(one.wanted.key))
            coming = None if found is None else iter_split_coalesced(found, places, one.ranges)
            if one.tag is None or not _are_indices(one.ranges) or not self._most_kept:
                one.tag = tag
                return coming
            indices = None if coming is None else [*coming]
        except ObjectReplacedError:
            return _REPLACED
        self._keep(one.wanted.key, one.ranges, one.tag, indices)
        one.tag = tag
        return indices

    def _go_on(
        self, one: _ObjectRead, received: Iterable[Buffer] | None, failed: list[_Object]
    ) -> bool:
        """Pass an object the bytes that it requested; True if it requests more."""
        if received is _REPLACED:
            failed.append(one.wanted)
            return False
        try:
            one.ranges = one.fetch.send(received)
        except StopIteration as stop:
            if self._versions is not None:
                self._versions.check(one.wanted.key, present=bool(stop.value), tag=one.tag)
            if not stop.value:
                self._fill_all(one.wanted)
            return False
        except (CorruptObjectError, ObjectReplacedError):
            failed.append(one.wanted)
            return False
        except ChunkMissingError as error:
            raise self._located(error, one.wanted) from None
        return True


class _ObjectRead:
    """An object that is being read."""

    __slots__ = ("fetch", "ranges", "tag", "wanted")

    def __init__(self, wanted: _Object, fetch: Fetch[bool]) -> None:
        self.wanted, self.fetch = wanted, fetch
        self.ranges = next(fetch)
        """Ranges that it requests now."""
        self.tag: Hashable = None
        """Validator of the value that is read, once known; see `get_ranges_if_match`."""

    @property
    def nbytes(self) -> int:
        """Bytes that it requests; for a whole object, at most its decoded size."""
        most = self.wanted.bound.spec.nbytes
        if len(self.ranges) == 1 and is_whole(self.ranges[0]):
            return most
        return sum(
            max(-start, most if start >= 0 else 0) if stop is None else stop - start
            for start, stop in self.ranges
        )


_Response = tuple[_ObjectRead, Iterable[Buffer] | None]
"""An object, and the bytes that it has requested, as they arrive; None if it is absent."""


class _RequestBatch(NamedTuple):
    """Requests that one call of the store has sent."""

    fetched: Iterable[TaggedBytes | None]
    responses: Iterator[_Response]


class _RequestWindow:
    """The requests of a batch of objects that have been sent and whose responses are not used yet.

    Parameters
    ----------
    policy
        How many there may be.
    """

    def __init__(self, policy: ReadPolicy) -> None:
        self.rounds: deque[_RequestBatch] = deque()
        self._policy = policy
        self._loads: deque[tuple[int, int]] = deque()
        """Requests and bytes of each object, in the order of the responses."""
        self._requests = self._nbytes = 0

    @property
    def is_full(self) -> bool:
        """True if no further object may be requested."""
        policy = self._policy
        return (
            self._requests >= policy.max_concurrent_requests
            or self._nbytes >= policy.max_bytes_in_flight
        )

    def has_room_for(self, objects: int) -> bool:
        """True if it is worth a call of the store to request some objects now."""
        if not self._loads:
            return objects > 0
        policy = self._policy
        return (
            objects >= _WORTH_A_CALL
            and 2 * self._requests <= policy.max_concurrent_requests
            and 2 * self._nbytes <= policy.max_bytes_in_flight
            and isinstance(self.rounds[-1].fetched, Iterator)  # else all of them have arrived
        )

    def add(self, one: _ObjectRead) -> None:
        """Count an object that is about to be requested."""
        load = (len(one.ranges), one.nbytes)
        self._loads.append(load)
        self._requests += load[0]
        self._nbytes += load[1]

    def next_response(self) -> _Response | None:
        """Return the next object and its bytes, which are taken as used; None at the end."""
        while self.rounds:
            found = next(self.rounds[0].responses, None)
            if found is not None:
                requests, nbytes = self._loads.popleft()
                self._requests -= requests
                self._nbytes -= nbytes
                return found
            self.rounds.popleft()
        return None

    def cancel(self) -> None:
        """Drop the requests that are not needed any more."""
        for one in self.rounds:
            cancel_reads(one.fetched)


_BATCH = 1024
"""Maximum number of objects that one thread reads concurrently before it takes others."""
_WORTH_A_CALL = 8
"""Number of objects from which it pays to request them while others are still on their way."""
_WORTH_PROVIDING = 1 << 20
"""Size in bytes from which the system takes longer to provide memory than to get a response."""
_MOST_LOOKS = 3
"""Times that a call reads an array that is moved, or whose metadata change, again and again."""
_MORE_FROM_AFAR = 2  # further attempts to read an object that still does not decode
_REPLACED: Sequence[Buffer] = ()  # marks an object that was replaced meanwhile


def _are_indices(ranges: Sequence[Range]) -> bool:
    return bool(ranges) and all(isinstance(wanted, IndexRange) for wanted in ranges)
