"""``sharding_indexed``: a chunk that holds a grid of smaller chunks and an index of them.

A shard is a codec that happens to contain a `Grid`. A whole shard is decoded from one buffer. A
region of it is fetched in two rounds: the index, and then the chunks that the region overlaps.
(Zarr v3 codec ``sharding_indexed``, version 1.0.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from math import prod
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np

from zarr_dask._util.buffers import SegmentedBuffer
from zarr_dask._util.json_fields import is_codec_list, is_ints, is_one_of
from zarr_dask._util.threads import cpu_count, is_pool_thread, parallel_for
from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.base import (
    ABSENT_PLACE,
    WORTH_A_THREAD,
    BoundSerializer,
    ChunkRead,
    ChunkSpec,
    Codec,
    CodecMemory,
    DecodeOptions,
    EncodedSize,
    Serializer,
    ShardIndex,
)
from zarr_dask.codecs.chain import CodecChain, fill_missing_chunk
from zarr_dask.codecs.chunk_batches import (
    LARGEST_RUN,
    batch_decoder,
    batch_length,
    batches_of_runs,
    chunks_of_runs,
    contiguous_batch,
    contiguous_runs,
    decode_in_place,
    iter_chunk_batches,
)
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.fetch import Fetch, check_length, fetch_within, interleave
from zarr_dask.codecs.index_codecs import DEFAULT_INDEX_CODECS
from zarr_dask.codecs.registry import inner_chain, with_codec_defaults
from zarr_dask.codecs.throughput import speeds_of
from zarr_dask.dtypes import data_type_of, is_full_of, which_are_full_of
from zarr_dask.errors import ChunkMissingError, CorruptObjectError, ValidationProblem
from zarr_dask.grid.grid import Grid, Part, Region, Shape, view_region
from zarr_dask.stores.base import Buffer, IndexRange, Range, make_range

__all__ = ["IndexLocation", "Sharding"]

IndexLocation = Literal["start", "end"]

Coords = tuple[int, ...]

_ABSENT = ABSENT_PLACE
_PLAIN = DecodeOptions()
_INDEX_DTYPE = np.dtype("uint64")
_NO_BYTES = np.array(_ABSENT, _INDEX_DTYPE)
"""`_ABSENT` as an array, which NumPy compares with in a quarter of the time."""
_FAST_ENCODER = 1.5e9
"""Bytes per second from which a second encoder would wait for memory and for the file, too."""
_WORTH_THREADS = 1 << 21
"""Decoded bytes of a shard from which a second thread saves more than it takes to wake it."""


@dataclass(frozen=True)
class Sharding(Serializer):
    """Chunks of one shape within a larger chunk.

    Parameters
    ----------
    chunk_shape
        Shape of the inner chunks; divides that of the shard.
    codecs
        The codecs of an inner chunk.
    index_codecs
        The codecs of the index; their output size must not depend on the values.
    index_location
        Position of the index in the shard.
    """

    chunk_shape: Shape
    codecs: CodecChain
    index_codecs: CodecChain = DEFAULT_INDEX_CODECS
    index_location: IndexLocation = "end"
    name: ClassVar[str] = "sharding_indexed"
    is_sharding: ClassVar[bool] = True

    @classmethod
    def with_defaults(
        cls,
        name: str,  # noqa: ARG003
        configuration: dict[str, Any],
        itemsize: int,
    ) -> dict[str, Any]:
        """See `Codec.with_defaults`; offsets in the index have 8 bytes."""
        inner = {
            member: [with_codec_defaults(item, size) for item in configuration[member]]
            for member, size in (("codecs", itemsize), ("index_codecs", 8))
            if is_codec_list(configuration.get(member))
        }
        return {**configuration, **inner}

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec | None:
        """See `Codec.from_config`."""
        shape = config.take("chunk_shape", is_ints, "a list of integers, one per dimension")
        expected = "a list of at most 1000 codecs"
        codecs = config.take("codecs", is_codec_list, expected)
        index_codecs = config.take("index_codecs", is_codec_list, expected, None)
        location = config.take(
            "index_location", is_one_of("start", "end"), "'start' or 'end'", "end"
        )
        chain = None if codecs is None else inner_chain(config, "codecs", codecs, config.stored)
        index: CodecChain | None
        if index_codecs is None:
            index = DEFAULT_INDEX_CODECS
            if not config.problems:
                _warn_of_index(
                    config, "no index_codecs", "bytes in little-endian order and a crc32c"
                )
        else:
            stored = config.stored
            inner = None if stored is None else replace(stored, ndim=stored.ndim + 1)
            made = inner_chain(config, "index_codecs", index_codecs, inner)
            index = _index_chain(config, made)
        if chain is None or index is None or shape is None:
            return None
        return cls(tuple(shape), chain, index, location)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.document() for codec in self.codecs.codecs],
            "index_codecs": [codec.document() for codec in self.index_codecs.codecs],
            "index_location": self.index_location,
        }

    @property
    def inner_codecs(self) -> tuple[Codec, ...]:
        """See `Serializer.inner_codecs`."""
        return self.codecs.codecs

    def inner_shape(self, shape: Shape) -> Shape:  # noqa: ARG002  (the inner grid is given)
        """See `Serializer.inner_shape`."""
        return self.codecs.inner_shape(self.chunk_shape)

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the inner chunks fill the shard, and the index has a fixed size."""
        if len(self.chunk_shape) != len(spec.shape) or any(
            inner < 1 or outer % inner
            for outer, inner in zip(spec.shape, self.chunk_shape, strict=True)
        ):
            yield ValidationProblem(
                "configuration.chunk_shape",
                list(self.chunk_shape),
                f"lengths that divide those of the shard, {list(spec.shape)}",
                "grid",
            )
            return
        inner = spec.with_shape(self.chunk_shape)
        for problem in self.codecs.problems(inner):
            yield _inside("codecs", problem)
        index = _index_spec(spec.shape, self.chunk_shape)
        index_problems = [_inside("index_codecs", p) for p in self.index_codecs.problems(index)]
        yield from index_problems
        if not index_problems and self.index_codecs.bind(index).size.exact is None:
            yield ValidationProblem(
                "configuration.index_codecs",
                [codec.name for codec in self.index_codecs.codecs],
                "codecs whose output has a fixed size, such as 'bytes' and 'crc32c'",
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundSharding(self, spec)


def _inside(member: str, problem: ValidationProblem) -> ValidationProblem:
    place = problem.field.removeprefix("codecs")
    return ValidationProblem(
        f"configuration.{member}{place}", problem.found, problem.expected, problem.kind
    )


def _index_spec(shape: Shape, chunk_shape: Shape) -> ChunkSpec:
    counts = tuple(outer // inner for outer, inner in zip(shape, chunk_shape, strict=True))
    return ChunkSpec((*counts, 2), data_type_of(_INDEX_DTYPE), np.array(_ABSENT, _INDEX_DTYPE))


class _BoundSharding(BoundSerializer):
    partial = True

    def __init__(self, codec: Sharding, spec: ChunkSpec) -> None:
        self.spec = spec
        self._grid = Grid.regular(spec.shape, codec.chunk_shape)
        self._codecs = codec.codecs
        self._inner = codec.codecs.bind(spec.with_shape(codec.chunk_shape))
        self._index_spec = _index_spec(spec.shape, codec.chunk_shape)
        self._index = codec.index_codecs.bind(self._index_spec)
        self._index.counted = 0  # it holds no elements
        self._index_size = self._index.size.most
        self._worth_runs = _WORTH_RUNS * prod(codec.chunk_shape)
        self._index_first = codec.index_location == "start"
        size = self._index_size
        self._index_range = IndexRange(0, size) if self._index_first else IndexRange(-size, None)
        self.streams_chunks = not self._index_first and not self._inner.partial
        # gaps between chunks are valid, so the bound is generous
        inner_most = self._inner.size.most
        self.size = EncodedSize(None, 2 * (prod(self._grid.counts) * inner_most + self._index_size))

    @property
    def memory(self) -> CodecMemory:
        """See `BoundSerializer.memory`; chunks are copied in runs."""
        inner = self._inner.memory
        runs = min(LARGEST_RUN, self.spec.nbytes) if self._inner.decodes_to_memory else 0
        return replace(
            inner,
            workspace=max(inner.workspace, runs),
            decode_workspace=max(inner.decode_workspace, runs),
        )

    # --- writing --------------------------------------------------------------------------------

    def encode(self, array: np.ndarray) -> list[Buffer]:
        with SegmentedBuffer() as gathered:
            for piece in self.pieces(array):
                gathered.add(piece)
        return gathered.buffers()

    def pieces(self, array: np.ndarray, threads: int | None = 1) -> Iterator[Buffer]:
        index = self._no_chunks()
        return self._with_index(self._chunks(array, index, threads), index)

    def _no_chunks(self) -> np.ndarray:
        """Return the index of a shard without chunks."""
        return np.full(self._index_spec.shape, _NO_BYTES)

    def _with_index(self, chunks: Iterator[Buffer], index: np.ndarray) -> Iterator[Buffer]:
        """Yield the bytes of chunks and of their index, which is complete when they are."""
        if not self._index_first:
            yield from chunks
            yield from self._index.encode(index)
            return
        with SegmentedBuffer() as gathered:
            for piece in chunks:
                gathered.add(piece)
        yield from self._index.encode(index)
        yield from gathered.buffers()

    @property
    def _first_byte(self) -> int:
        """Offset of the first chunk."""
        return self._index_size if self._index_first else 0

    def _chunks(
        self, array: np.ndarray, index: np.ndarray, threads: int | None
    ) -> Iterator[Buffer]:
        """Yield the bytes of the stored chunks in order, and note their positions in the index."""
        places, offset, first = index.reshape(-1, 2), self._first_byte, 0
        for count, chunks in self._encoded_runs(array, threads):
            for number, pieces in chunks:
                start = offset
                for piece in pieces:
                    offset += len(piece)
                    yield piece
                places[first + number] = start, offset - start
            first += count

    def _encoded_runs(
        self, array: np.ndarray, threads: int | None
    ) -> Iterator[tuple[int, _EncodedChunks]]:
        """Yield the number of chunks of each run of an array, and those that are stored."""
        runs = iter_chunk_batches(array, self._inner.spec.shape)
        if self._worth_encoding_abreast(array.nbytes, threads):
            return self._encoded_abreast(runs, threads)
        return ((len(run), self._encoded(run)) for run in runs)

    def _worth_encoding_abreast(self, nbytes: int, threads: int | None) -> bool:
        """True if several threads encode chunks, whose bytes are then in memory of their own."""
        large = nbytes >= _WORTH_THREADS and self._inner.encodes_from_memory
        if threads == 1 or not large or is_pool_thread():
            return False
        if threads is not None:
            return True
        speed = speeds_of(self._codecs).encode
        return speed < _FAST_ENCODER and self._inner.spec.nbytes >= WORTH_A_THREAD * speed

    def _encoded_abreast(
        self, runs: Iterator[np.ndarray], threads: int | None
    ) -> Iterator[tuple[int, _EncodedChunks]]:
        """Yield the numbers of chunks of runs, and those that are stored; some runs at a time."""
        count = _abreast(threads, max(self._inner.spec.nbytes, LARGEST_RUN))
        while taken := list(islice(runs, count)):
            found: list[_EncodedChunks] = [()] * len(taken)
            parallel_for(partial(self._encode_run, taken, found), range(len(taken)), threads)
            yield from zip(map(len, taken), found, strict=True)

    def _encode_run(
        self, taken: Sequence[np.ndarray], found: list[_EncodedChunks], at: int
    ) -> None:
        found[at] = [(number, list(pieces)) for number, pieces in self._encoded(taken[at])]

    def _encoded(self, run: np.ndarray) -> _EncodedChunks:
        """Yield the stored chunks of a run, each valid until the next one is taken."""
        fill, packs = self.spec.fill_value, self._inner.encodes_from_memory
        numbers: Sequence[int] = range(len(run))
        if fill is not None:
            absent = which_are_full_of(run, fill)
            numbers = [number for number in numbers if not absent[number]]
        if numbers:
            with contiguous_batch(run) if packs else nullcontext(run) as chunks:
                for number in numbers:
                    yield number, self._inner.pieces(chunks[number, ...])

    # --- changing some chunks -------------------------------------------------------------------

    def updated(
        self,
        buffer: Buffer | None,
        region: Region,
        elements: np.ndarray,
        threads: int | None = 1,
    ) -> Iterator[Buffer] | None:
        """See `BoundSerializer.updated`: the bytes of chunks outside the region stay as they are.

        None also if nothing may be left to store, or the index places chunks outside the shard.
        """
        many = elements.size >= self._worth_runs
        changed, parts = self._whole_chunks(region) if many else None, None
        if changed is None:
            found = self._changed_parts(region, elements, is_new=buffer is None)
            if found is None:
                return None
            elements, parts = found
            changed = [*parts]
        shard = memoryview(b"" if buffer is None else buffer)
        index = self._no_chunks() if buffer is None else self._decode_index(self._cut_index(shard))
        places, numbers = index.reshape(-1, 2), np.array(changed, np.intp)
        old = places[numbers]
        places[numbers] = _NO_BYTES
        kept = _KeptChunks.of(places, numbers)
        if kept.numbers.size:
            if not kept.lie_within(len(shard)):
                return None
        elif self.spec.fill_value is not None and is_full_of(elements, self.spec.fill_value):
            return None
        chunks: Iterable[Iterable[Buffer] | None]
        if parts is None:
            chunks = self._encoded_each(elements, threads)
        else:
            before = dict(zip(changed, old.tolist(), strict=True))
            one = partial(self._changed_chunk, shard, before, parts, elements)
            chunks = self._changed_chunks(one, changed, threads)
        return self._with_index(self._updated_chunks(shard, kept, changed, chunks, places), index)

    def _whole_chunks(self, region: Region) -> list[int] | None:
        """Return the numbers of the chunks in a region; None if it takes a part of any."""
        if not all(isinstance(side, slice) for side in region):
            return None  # lists
        taken: list[slice] = []
        for side, length in zip(region, self._inner.spec.shape, strict=True):
            start, stop = side.start, side.stop
            if side.step != 1 or start >= stop or start % length or stop % length:
                return None
            taken.append(slice(start // length, stop // length))
        numbers = np.arange(self._grid.ncells).reshape(self._grid.counts)
        return numbers[tuple(taken)].reshape(-1).tolist()

    def _encoded_each(
        self, elements: np.ndarray, threads: int | None
    ) -> Iterator[Iterable[Buffer] | None]:
        """Yield the bytes of each chunk of an array, run by run; None if it is all fill."""
        for count, chunks in self._encoded_runs(elements, threads):
            done = 0
            for number, pieces in chunks:
                yield from repeat(None, number - done)
                yield pieces
                done = number + 1
            yield from repeat(None, count - done)

    def _changed_parts(
        self, region: Region, elements: np.ndarray, *, is_new: bool
    ) -> tuple[np.ndarray, dict[int, Part]] | None:
        """Return elements, and the parts of them that go to each chunk, by the chunks' numbers.

        None for a new shard of which most is written, since runs of chunks are encoded sooner than
        one by one, and if finding the parts of lists takes more memory than the shard.
        """
        lists = sum(not isinstance(side, slice) for side in region)
        if not lists:
            if is_new and 2 * self._grid.count_parts(region) > self._grid.ncells:
                return None
            parts = self._grid.parts(region)
        else:
            if lists > 1 and 8 * (len(region) + 1) * elements.size > self.spec.nbytes:
                return None
            from zarr_dask.indexing.plan import split_assignment

            elements, parts = split_assignment(region, elements, self._grid)
        found = {self._grid.number_of(part.coords): part for part in parts}
        return elements, dict(sorted(found.items())) if lists else found

    def _updated_chunks(
        self,
        shard: memoryview,
        kept: _KeptChunks,
        changed: Sequence[int],
        chunks: Iterable[Iterable[Buffer] | None],
        places: np.ndarray,
    ) -> Iterator[Buffer]:
        """Yield the bytes of all chunks in their order, kept and changed, and note their places.

        The changed chunks, by their numbers, have gaps between them that hold the others.
        """
        ranges: list[list[tuple[int, int]]] = [[] for _ in range(len(changed) + 1)]
        for gap, first, stop in kept.joined_ranges():
            ranges[gap].append((first, stop))
        offset, written = self._first_byte, [self._first_byte]
        for before, number, pieces in zip(ranges, changed, chunks, strict=False):
            for first, stop in before:
                offset += stop - first
                yield shard[first:stop]
            start = offset
            if pieces is not None:
                for piece in pieces:
                    offset += len(piece)
                    yield piece
                places[number] = start, offset - start
            written.append(written[-1] + offset - start)
        for first, stop in ranges[-1]:
            yield shard[first:stop]
        if kept.numbers.size:
            places[kept.numbers, 0] = kept.offsets_after(written)

    def _changed_chunks(
        self,
        one: Callable[[int], Iterable[Buffer] | None],
        changed: Sequence[int],
        threads: int | None,
    ) -> Iterator[Iterable[Buffer] | None]:
        """Yield the bytes of changed chunks; several threads may encode them, some at a time."""
        if not self._worth_encoding_abreast(len(changed) * self._inner.spec.nbytes, threads):
            yield from map(one, changed)
            return
        found: dict[int, list[Buffer] | None] = {}

        def encode(number: int) -> None:
            pieces = one(number)
            found[number] = None if pieces is None else list(pieces)

        step = _abreast(threads, self._inner.spec.nbytes)
        for first in range(0, len(changed), step):
            taken = changed[first : first + step]
            parallel_for(encode, taken, threads)
            yield from map(found.pop, taken)

    def _changed_chunk(
        self,
        shard: memoryview,
        places: Mapping[int, Sequence[int]],
        parts: Mapping[int, Part],
        elements: np.ndarray,
        number: int,
    ) -> Iterable[Buffer] | None:
        """Return the bytes of one chunk after a part of it has changed; None if it is all fill."""
        place, part = places[number], parts[number]
        spec, chunk = self._inner.spec, view_region(elements, part.out)
        if chunk.shape != spec.shape or not all(isinstance(side, slice) for side in part.inside):
            new, found = chunk, self._place(part.coords, place)
            chunk = np.empty(spec.shape, spec.dtype)
            if found is None:
                chunk[...] = spec.data_type.fill_or_zero(spec.fill_value)
            else:
                stored = shard[slice(*found)]
                try:
                    check_length(stored, found)
                    pieces = self._inner.updated(stored, part.inside, new)
                    if pieces is not None:
                        return pieces
                    self._inner.decode(stored, None, chunk, _PLAIN)
                except CorruptObjectError as error:
                    raise error.inside(part.coords) from error
            chunk[part.inside] = new
        if spec.fill_value is not None and is_full_of(chunk, spec.fill_value):
            return None
        return self._inner.pieces(chunk)

    # --- reading from all bytes -----------------------------------------------------------------

    def decode(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: DecodeOptions
    ) -> None:
        shard = memoryview(buffer)
        index = self._decode_index(self._cut_index(shard))
        if region is None:
            self._decode_all(shard, index.reshape(-1, 2).tolist(), out, reading)
            return
        parts = self._present_parts(shard, region, index, out, reading)
        self._decode_parts(parts, self._grid.count_parts(region), out, reading)

    def _decode_all(
        self, shard: memoryview, places: list[list[int]], out: np.ndarray, reading: DecodeOptions
    ) -> None:
        """Decode all chunks, given their places in C order."""
        threads = reading.threads if self._worth_threads(len(places), reading) else 1
        shape, packs = self._inner.spec.shape, self._inner.decodes_to_memory

        def decode(runs: Sequence[tuple[int, np.ndarray]]) -> None:
            with contiguous_runs(runs) if packs else nullcontext(chunks_of_runs(runs)) as chunks:
                self._decode_chunks(shard, places, chunks, reading)

        parallel_for(decode, batches_of_runs(iter_chunk_batches(out, shape)), threads)

    def _decode_chunks(
        self,
        shard: memoryview,
        places: list[list[int]],
        chunks: Iterable[tuple[int, np.ndarray]],
        reading: DecodeOptions,
    ) -> None:
        """Decode whole chunks by their numbers; fill absent ones."""
        decode, length, coords_of = self._inner.decode, len(shard), self._grid.coords_of
        for number, chunk in chunks:
            offset, nbytes = places[number]
            if offset + nbytes <= length:
                try:
                    decode(shard[offset : offset + nbytes], None, chunk, reading)
                except (CorruptObjectError, ChunkMissingError) as error:
                    raise error.inside(coords_of(number)) from error
            elif offset == nbytes == _ABSENT:
                self._fill(coords_of(number), chunk, reading)
            else:
                raise _outside(offset, nbytes, length).inside(coords_of(number))

    def _present_parts(
        self,
        shard: memoryview,
        region: Region,
        index: np.ndarray,
        out: np.ndarray,
        reading: DecodeOptions,
    ) -> Iterator[tuple[Part, Buffer]]:
        """Yield the parts of a region with the bytes of their chunks; fill those of absent ones."""
        length = len(shard)
        for part in self._grid.parts(region):
            offset, nbytes = index[part.coords].tolist()
            if offset + nbytes <= length:
                yield part, shard[offset : offset + nbytes]
            elif offset == nbytes == _ABSENT:
                self._fill(part.coords, view_region(out, part.out), reading)
            else:
                raise _outside(offset, nbytes, length).inside(part.coords)

    def _decode_parts(
        self,
        parts: Iterator[tuple[Part, Buffer]],
        count: int,
        out: np.ndarray,
        reading: DecodeOptions,
    ) -> None:
        """Decode chunks, or parts of at most `count` chunks, each from its bytes, into `out`."""
        if not self._worth_threads(count, reading):
            self._decode_batch(parts, out, reading)
            return
        length = batch_length(out, self._inner.spec.shape)
        batches = iter(lambda: list(islice(parts, length)), [])
        parallel_for(lambda some: self._decode_batch(some, out, reading), batches, reading.threads)

    def _worth_threads(self, count: int, reading: DecodeOptions) -> bool:
        """True if several threads decode so many chunks."""
        return reading.threads != 1 and count * self._inner.spec.nbytes >= _WORTH_THREADS

    def _decode_batch(
        self, parts: Iterable[tuple[Part, Buffer]], out: np.ndarray, reading: DecodeOptions
    ) -> None:
        shape, decode = self._inner.spec.shape, self._inner.decode
        runs = self._inner.decodes_to_memory
        with batch_decoder(out, shape) if runs else nullcontext(decode_in_place(out)) as place_of:
            for part, buffer in parts:
                place = place_of(part)
                try:
                    decode(buffer, None if place.shape == shape else part.inside, place, reading)
                except (CorruptObjectError, ChunkMissingError) as error:
                    raise error.inside(part.coords) from error

    def _cut_index(self, shard: memoryview) -> memoryview:
        if len(shard) < self._index_size:
            raise CorruptObjectError(
                f"it has {len(shard)} bytes, fewer than the {self._index_size} of its index"
            )
        return shard[: self._index_size] if self._index_first else shard[-self._index_size :]

    def _decode_index(self, encoded: Buffer) -> np.ndarray:
        index = np.empty(self._index_spec.shape, _INDEX_DTYPE)
        try:
            self._index.decode(encoded, None, index, _PLAIN)
        except CorruptObjectError as error:
            raise CorruptObjectError(f"its shard index does not decode: {error.reason}") from error
        return index

    def _fill(self, coords: Coords, out: np.ndarray, reading: DecodeOptions) -> None:
        try:
            fill_missing_chunk(out, self.spec, reading)
        except ChunkMissingError as error:
            raise error.inside(coords) from None

    def read_index(self) -> Fetch[ShardIndex | None]:
        """See `BoundSerializer.read_index`."""
        index = yield from self._read_index()
        if index is None:
            return None
        return ShardIndex(index, self._inner, self._index_size, self._index_first)

    def _read_index(self) -> Fetch[np.ndarray | None]:
        received = yield (self._index_range,)
        if received is None:
            return None
        (encoded,) = received
        return self._decode_index(self._cut_index(memoryview(encoded)))

    # --- reading regions ------------------------------------------------------------------------

    def worth_reading_whole(self, cuts: Sequence[ChunkRead], nbytes: int) -> bool:
        """See `BoundSerializer.worth_reading_whole`: the index need not be waited for."""
        if self.spec.nbytes <= nbytes:
            return True
        if self._inner.partial:  # little may be wanted of each shard within
            return False
        skipped = prod(self._grid.counts) - self._count_chunks(cuts)
        return skipped * self._inner.spec.nbytes <= nbytes

    def _count_chunks(self, cuts: Sequence[ChunkRead]) -> int:
        """Return the number of inner chunks that some cuts overlap."""
        if len(cuts) > 1:
            return len(self._cuts_by_chunk(cuts))
        region = cuts[0].region
        return self._grid.count_parts(self._grid.everything if region is None else region)

    def read(self, cuts: Sequence[ChunkRead], reading: DecodeOptions) -> Fetch[bool]:
        index = yield from self._read_index()
        if index is None:
            return False
        if len(cuts) == 1 and not self._inner.partial:
            yield from self._read_region(*cuts[0], index, reading)
            return True
        chunks = self._present_chunks(cuts, index, reading)
        if not chunks:
            return True
        chunks.sort(key=attrgetter("place"))
        if self._inner.partial:
            yield from interleave([self._part_of(chunk, reading) for chunk in chunks])
            return True
        received = yield [chunk.place for chunk in chunks]
        if received is None:
            raise _removed().inside(chunks[0].coords)

        def decode(arrived: tuple[_Chunk, Buffer]) -> None:
            chunk, buffer = arrived
            try:
                check_length(buffer, chunk.place)
                self._inner.decode_cuts(buffer, chunk.cuts, reading)
            except (CorruptObjectError, ChunkMissingError) as error:
                raise error.inside(chunk.coords) from error

        together = self._worth_threads(len(chunks), reading)
        buffers = map(bytes, received) if together else received
        parallel_for(decode, zip(chunks, buffers, strict=True), reading.threads if together else 1)
        return True

    def _read_region(
        self, region: Region | None, out: np.ndarray, index: np.ndarray, reading: DecodeOptions
    ) -> Fetch[None]:
        """Read one region, from chunks that are read as a whole."""
        if region is None:
            region = self._grid.everything
        only = self._grid.single_chunk(region)
        if only is not None:
            yield from self._read_one(only[0], only[1], out, index, reading)
            return
        placed: list[tuple[Range, Part]] = []
        for part in self._grid.parts(region):
            place = self._place(part.coords, index[part.coords].tolist())
            if place is None:
                self._fill(part.coords, view_region(out, part.out), reading)
            else:
                placed.append((place, part))
        if not placed:
            return
        placed.sort(key=itemgetter(0))
        received = yield [place for place, _ in placed]
        if received is None:
            raise _removed().inside(placed[0][1].coords)
        # several threads take buffers, each of which is valid until the next one is taken
        copied = map(bytes, received) if self._worth_threads(len(placed), reading) else received
        self._decode_parts(_arrived(placed, copied), len(placed), out, reading)

    def _read_one(
        self,
        coords: Coords,
        inside: Region,
        out: np.ndarray,
        index: np.ndarray,
        reading: DecodeOptions,
    ) -> Fetch[None]:
        """Read a region of one chunk: the fast path of `_read_region` for small reads."""
        place = self._place(coords, index[coords].tolist())
        if place is None:
            self._fill(coords, out, reading)
            return
        received = yield (place,)
        if received is None:
            raise _removed().inside(coords)
        (buffer,) = received
        try:
            check_length(buffer, place)
            whole = out.shape == self._inner.spec.shape
            self._inner.decode(buffer, None if whole else inside, out, reading)
        except (CorruptObjectError, ChunkMissingError) as error:
            raise error.inside(coords) from error

    def _present_chunks(
        self, cuts: Sequence[ChunkRead], index: np.ndarray, reading: DecodeOptions
    ) -> list[_Chunk]:
        """Return the stored chunks that some cuts overlap; fill the cuts of absent chunks."""
        chunks: list[_Chunk] = []
        for coords, inner in self._cuts_by_chunk(cuts).items():
            place = self._place(coords, index[coords].tolist())
            if place is None:
                for _, out in inner:
                    self._fill(coords, out, reading)
            else:
                chunks.append(_Chunk(coords, place, inner))
        return chunks

    def _cuts_by_chunk(self, cuts: Sequence[ChunkRead]) -> dict[Coords, list[ChunkRead]]:
        """Return the wanted parts of each inner chunk."""
        found: dict[Coords, list[ChunkRead]] = {}
        shape = self._inner.spec.shape
        for region, out in cuts:
            region = self._grid.everything if region is None else region  # noqa: PLW2901
            only = self._grid.single_chunk(region)
            if only is not None:
                coords, inside, _ = only
                piece = ChunkRead(None if out.shape == shape else inside, out)
                found.setdefault(coords, []).append(piece)
                continue
            for part in self._grid.parts(region):
                destination = view_region(out, part.out)
                piece = ChunkRead(None if destination.shape == shape else part.inside, destination)
                found.setdefault(part.coords, []).append(piece)
        return found

    def _place(self, coords: Coords, place: Sequence[int]) -> Range | None:
        """Return the bytes of a chunk, given its offset and length; None if it is absent."""
        offset, nbytes = place
        if nbytes <= self._inner.size.most and offset + nbytes < 1 << 63:
            return make_range((offset, offset + nbytes))
        if offset == nbytes == _ABSENT:
            return None
        raise CorruptObjectError(
            f"the shard index gives it {nbytes} bytes from byte {offset} on"
        ).inside(coords)

    def _part_of(self, chunk: _Chunk, reading: DecodeOptions) -> Fetch[None]:
        """Read a chunk that need not be read as a whole."""
        inner = self._inner.read_cuts(chunk.cuts, reading, whole=False)
        try:
            start, stop = cast("tuple[int, int]", chunk.place)
            present = yield from fetch_within(inner, start, stop - start)
        except (CorruptObjectError, ChunkMissingError) as error:
            raise error.inside(chunk.coords) from error
        if not present:
            raise _removed().inside(chunk.coords)


_WORTH_RUNS = 8
"""Number of chunks from which encoding them in runs takes less time than one by one."""
_EncodedChunks = Iterable[tuple[int, Iterable[Buffer]]]
"""Numbers of chunks in a run, and their bytes."""
_ABREAST = 1 << 21
"""Bytes of elements that each thread encodes before what is encoded is written."""


def _abreast(threads: int | None, nbytes: int) -> int:
    """Return how many pieces of so many bytes threads encode before what is encoded is written."""
    return min(threads or cpu_count(), cpu_count()) * max(1, _ABREAST // nbytes)


class _Chunk(NamedTuple):
    """A stored chunk and its wanted parts."""

    coords: Coords
    place: Range
    cuts: list[ChunkRead]
    """The wanted parts."""


def _arrived(
    placed: Sequence[tuple[Range, Part]], received: Iterable[Buffer]
) -> Iterator[tuple[Part, Buffer]]:
    """Yield parts with the bytes of their chunks, and raise if bytes are missing."""
    for (place, part), buffer in zip(placed, received, strict=True):
        try:
            check_length(buffer, place)
        except CorruptObjectError as error:
            raise error.inside(part.coords) from error
        yield part, buffer


class _KeptChunks(NamedTuple):
    """The stored chunks of a shard that stay as they are when others change."""

    numbers: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    gaps: np.ndarray
    """Number of changing chunks that lie before each of them."""

    @classmethod
    def of(cls, places: np.ndarray, changed: np.ndarray) -> _KeptChunks:
        """Return the chunks that have places in an index; those that change are absent in it."""
        offsets, lengths = places.T
        (numbers,) = (
            offsets & lengths != _NO_BYTES
        ).nonzero()  # both of an absent one have all bits
        return cls(numbers, offsets[numbers], lengths[numbers], changed.searchsorted(numbers))

    def lie_within(self, nbytes: int) -> bool:
        """True if they lie within a shard, and are not longer than it all together.

        Chunks that overlap could make a new shard of any size.
        """
        if max(self.offsets.max(), self.lengths.max()) > nbytes:  # so that no sum overflows
            return False
        return bool(max((self.offsets + self.lengths).max(), self.lengths.sum()) <= nbytes)

    def joined_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield gaps and ranges of bytes in order; those of neighbours in a gap are one."""
        offsets, gaps, stops = self.offsets, self.gaps, self.offsets + self.lengths
        if not len(gaps):
            return iter(())
        (borders,) = ((offsets[1:] != stops[:-1]) | (gaps[1:] != gaps[:-1])).nonzero()
        edges = np.concatenate(((-1,), borders, (len(gaps) - 1,)))
        firsts, lasts = edges[:-1] + 1, edges[1:]
        return zip(
            gaps[firsts].tolist(), offsets[firsts].tolist(), stops[lasts].tolist(), strict=True
        )

    def offsets_after(self, written: Sequence[int]) -> np.ndarray:
        """Return their new offsets, given the bytes before each gap that are not theirs."""
        found: np.ndarray = np.array(written, _INDEX_DTYPE)[self.gaps]
        found += self.lengths.cumsum() - self.lengths
        return found


def _removed() -> CorruptObjectError:
    return CorruptObjectError("it was removed while it was being read")


def _outside(offset: int, nbytes: int, length: int) -> CorruptObjectError:
    return CorruptObjectError(
        f"the shard index points to bytes {offset} to {offset + nbytes} of {length}"
    )


def _index_chain(config: CodecConfig, chain: CodecChain | None) -> CodecChain | None:
    """Return the codecs of an index; its integers are little-endian by default."""
    if chain is None:
        return None
    if chain.skipped:
        config.blame("index_codecs", list(chain.skipped), "known codecs", "codec")
        return None
    if chain.serializer != Bytes(None):
        return chain
    _warn_of_index(config, "index_codecs without byte order", "little-endian order")
    return replace(chain, serializer=Bytes("little"))


def _warn_of_index(config: CodecConfig, found: str, taken: str) -> None:
    if config.stored is not None:
        config.stored.warn(f"{config.place} has {found}; {taken} is taken for granted.")
