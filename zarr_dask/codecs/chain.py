"""A chain of codecs, bound to a kind of chunk: all encoding and decoding of chunks.

`CodecChain` is the value that metadata holds; `CodecChain.bind` returns the `BoundCodecChain` for
one `ChunkSpec`, cached by chunk shape. A bound chain encodes a chunk, decodes it into a given
array, and reads a region of it through a `Fetch` that requests as few bytes as the codecs allow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.buffers import thread_buffer
from zarr_dask.codecs.base import (
    ArrayCodec,
    BoundSerializer,
    BytesCodec,
    ChunkRead,
    ChunkSpec,
    Codec,
    CodecMemory,
    DecodeOptions,
    EncodedSize,
    Serializer,
    ShardIndex,
    concat_buffers,
    largest_partial_read,
)
from zarr_dask.codecs.chunk_batches import fast_copyto
from zarr_dask.codecs.fetch import Fetch, drive_fetch_from_bytes
from zarr_dask.errors import (
    ChunkMissingError,
    CorruptObjectError,
    UnknownCodecError,
    ValidationProblem,
)
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import BoundedRange, Buffer

if TYPE_CHECKING:
    from zarr_dask.codecs.partial_decode import PartialDecoder

__all__ = [
    "BoundCodecChain",
    "CodecChain",
    "fill_missing_chunk",
    "make_chain",
    "thread_absent_pieces",
    "thread_decoded_nbytes",
]


@dataclass(frozen=True)
class CodecChain:
    """Array codecs, one serializer, bytes codecs, in the order of encoding."""

    arrays: tuple[ArrayCodec, ...]
    serializer: Serializer
    bytes: tuple[BytesCodec, ...] = ()

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """All codecs in the order of encoding."""
        return (*self.arrays, self.serializer, *self.bytes)

    @cached_property
    def skipped(self) -> tuple[str, ...]:
        """Names of unknown codecs, also within shards; they make the array read-only."""
        inner = self.serializer.inner_codecs or ()
        names = [codec.name for codec in self.codecs if codec.is_unknown]
        chain = make_chain(inner) if inner else None
        return (*names, *chain.skipped) if isinstance(chain, CodecChain) else tuple(names)

    def check_writable(self, at: str) -> None:
        """Raise if a codec is not known; `at` is the location, for the message.

        Raises
        ------
        UnknownCodecError
            If there is such a codec.
        """
        if self.skipped:
            expected = "known codecs: unknown ones may be skipped in reading, but not in writing"
            raise UnknownCodecError(
                at, [ValidationProblem("codecs", list(self.skipped), expected, "codec")]
            )

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Yield problems of using this chain on such chunks."""
        if len(self.codecs) > _MOST_CODECS:
            yield ValidationProblem(
                "codecs", f"{len(self.codecs)} codecs", f"at most {_MOST_CODECS}"
            )
            return
        position = 0
        for array_codec in self.arrays:
            found = list(_placed(array_codec.problems(spec), position))
            yield from found
            if found:
                return  # the next codecs cannot be checked against an invalid shape
            spec = array_codec.output(spec)
            position += 1
        for codec in (self.serializer, *self.bytes):
            yield from _placed(codec.problems(spec), position)
            position += 1

    def largest_item(self, spec: ChunkSpec) -> int:
        """Return the most bytes that an element has in memory at any step, also within shards."""
        largest = spec.dtype.itemsize
        for codec in self.arrays:
            spec = codec.output(spec)
            largest = max(largest, spec.dtype.itemsize)
        inner = make_chain(self.serializer.inner_codecs) if self.serializer.inner_codecs else None
        return max(largest, inner.largest_item(spec)) if isinstance(inner, CodecChain) else largest

    def inner_shape(self, shape: Shape) -> Shape:
        """Return the shape of the unit of decoding within a chunk of `shape`."""
        if not all(codec.pointwise for codec in self.arrays):
            return shape
        encoded = shape
        for codec in self.arrays:
            encoded = _shape_of(codec.region(tuple(slice(0, n, 1) for n in encoded)))
        inner = self.serializer.inner_shape(encoded)
        for codec in reversed(self.arrays):
            inner = codec.inner_shape(inner)
        return inner

    def bind(self, spec: ChunkSpec) -> BoundCodecChain:
        """Return the chain for chunks of a spec; cached."""
        cache: dict[tuple[Any, ...], BoundCodecChain] = self.__dict__.setdefault("_bound", {})
        key = (spec.shape, spec.data_type, spec.fill_bytes, spec.variable_bytes)
        bound = cache.get(key)
        if bound is None:
            if len(cache) >= _KEPT:
                cache.clear()
            bound = cache[key] = BoundCodecChain(self, spec)
        return bound

    def __getstate__(self) -> dict[str, Any]:
        worked_out = {"_bound", "_speeds", "skipped"}
        return {name: value for name, value in self.__dict__.items() if name not in worked_out}


_BYTE = np.dtype(np.uint8)
_MOST_CODECS = 64  # each may make the bytes a little longer, and takes time
_KEPT = 256  # chunk shapes of one array: one if regular, otherwise rarely more than a few dozen


def _placed(problems: Iterator[ValidationProblem], position: int) -> Iterator[ValidationProblem]:
    for problem in problems:
        field = f"codecs[{position}].{problem.field}".rstrip(".")
        yield ValidationProblem(field, problem.found, problem.expected, problem.kind)


def _shape_of(region: Region) -> Shape:
    return tuple(len(range(s.start, s.stop, s.step)) for s in region)


class _DecodeCounters(threading.local):
    """The amount that the current thread has decoded."""

    nbytes = 0
    absent = 0
    """Pieces that it has filled instead."""


_DECODED = _DecodeCounters()


def thread_decoded_nbytes() -> int:
    """Return the full bytes of all chunks that the current thread has decoded so far.

    Each chunk counts as a whole, even if only some of its blocks were decoded: the set of chunks
    can be predicted, the parts that a codec skips cannot.
    """
    return _DECODED.nbytes


def thread_absent_pieces() -> int:
    """Return how many absent chunks, or parts of absent objects, the current thread has filled."""
    return _DECODED.absent


class BoundCodecChain:
    """A chain for chunks of one shape, data type and fill value."""

    def __init__(self, chain: CodecChain, spec: ChunkSpec) -> None:
        self.spec = spec
        stages: list[tuple[ArrayCodec, ChunkSpec]] = []
        for codec in chain.arrays:
            stages.append((codec, spec))
            spec = codec.output(spec)
        self._stages = tuple(stages)
        """Each array codec and the spec of its input."""
        self._encoded = spec
        self._serializer: BoundSerializer = chain.serializer.bind(spec)
        sizes = [self._serializer.size]
        for bytes_codec in chain.bytes:
            sizes.append(bytes_codec.size(sizes[-1]))
        self.size: EncodedSize = sizes[-1]
        self._most = self.size.most
        self._bytes = chain.bytes
        self._decoders = tuple(zip(reversed(chain.bytes), reversed(sizes[:-1]), strict=True))
        pointwise = all(codec.pointwise for codec in chain.arrays)
        self.partial = self._serializer.partial and not chain.bytes and pointwise
        self.streams_chunks = self._serializer.streams_chunks and not chain.bytes
        self._swapped = self._serializer.byteswapped_dtype
        in_place = self._serializer.is_memory_layout or self._swapped is not None
        self._to_memory = bool(chain.bytes) and in_place
        self.reorders = bool(self._stages) and all(codec.moves for codec, _ in self._stages)
        """True if the encoded elements are in another order."""
        self.counted = 0 if self._serializer.partial else self.spec.nbytes
        """The increment of `thread_decoded_nbytes`; 0 for a shard, whose chunks are counted."""
        only = self._to_memory and len(chain.bytes) == 1 and self._swapped is None
        self._straight = only and not self._stages
        """True if one codec turns bytes directly into elements: the fast path for small reads."""
        self.decodes_to_memory = self._to_memory and not self._stages
        """True if a chunk is decoded into memory that has its elements in order."""
        packs = self.decodes_to_memory and self._serializer.is_memory_layout
        self.encodes_from_memory = packs and not self._bytes[0].may_alias
        """True if a chunk is encoded from such memory, which may be reused afterwards."""
        if self._to_memory:
            *self._first_decoders, (self._last_decoder, _) = self._decoders
        self._blocks = self._partial_decoder() if pointwise else None
        """The decoder of only the wanted blocks of a chunk, if that may pay."""
        self.peeks = self._blocks is not None and len(chain.bytes) == 1
        """True if it may pay to request only some bytes of a chunk; see `worth_partial_read`."""

    def _partial_decoder(self) -> PartialDecoder | None:
        if not (self._to_memory and self._last_decoder.supports_partial_decode):
            return None
        if not largest_partial_read(self._encoded.nbytes):
            return None
        from zarr_dask.codecs.partial_decode import PartialDecoder  # which few arrays need

        return PartialDecoder(self._last_decoder, self._encoded, self._swapped)

    @property
    def memory(self) -> CodecMemory:
        """Bytes that decoding and encoding need besides the chunk and its encoded form."""
        held, largest, codecs = self._serializer.memory, self._largest, self._bytes
        changes = sum(
            codec.output(given).nbytes + given.nbytes
            for codec, given in self._stages
            if not codec.moves
        )
        steps = changes + sum(codec.peak_copies for codec in codecs) * largest
        in_place = 0  # that the last step of decoding does not copy
        if self._to_memory:
            last = self._last_decoder
            in_place = last.peak_copies * largest - last.decode_into_peak_nbytes(largest)
        swaps = self._swapped is not None and bool(codecs)
        return CodecMemory(
            workspace=held.workspace + steps,
            decode_workspace=held.decode_workspace + steps - in_place,
            encoder_state=max(
                held.encoder_state, *(codec.encoder_state_nbytes(largest) for codec in codecs), 0
            ),
            decoder_state=max(
                held.decoder_state, *(codec.decoder_state_nbytes(largest) for codec in codecs), 0
            ),
            byteswap=self._encoded.nbytes if swaps else held.byteswap,
        )

    @property
    def _largest(self) -> int:
        return max(self.spec.nbytes, self._encoded.nbytes)

    @property
    def partial_decode_nbytes(self) -> int:
        """Largest block in bytes, if rows of a chunk can be read block by block; else 0."""
        as_they_are = self.peeks and not self._stages
        return self._blocks.block_nbytes if as_they_are and self._blocks else 0

    @property
    def partial_read_nbytes(self) -> int:
        """Largest region in bytes for which only some bytes of a chunk are requested; else 0."""
        return largest_partial_read(self._encoded.nbytes) if self.peeks else 0

    # --- writing --------------------------------------------------------------------------------

    def encode(self, array: np.ndarray) -> list[Buffer]:
        """Return the bytes of a chunk, in pieces that are stored one after the other."""
        array = self._changed(array)
        return self._compressed(array) if self._bytes else self._serializer.encode(array)

    def pieces(self, array: np.ndarray, threads: int | None = 1) -> list[Buffer] | Iterator[Buffer]:
        """See `BoundSerializer.pieces`."""
        array = self._changed(array)
        return self._compressed(array) if self._bytes else self._serializer.pieces(array, threads)

    def updated(
        self,
        buffer: Buffer | None,
        region: Region,
        elements: np.ndarray,
        threads: int | None = 1,
    ) -> Iterator[Buffer] | None:
        """See `BoundSerializer.updated`; array codecs would have to encode parts of a chunk."""
        if not self.partial or self._stages:
            return None
        return self._serializer.updated(buffer, region, elements, threads)

    def _changed(self, array: np.ndarray) -> np.ndarray:
        """Return a chunk after the array codecs."""
        for codec, spec in self._stages:
            array = codec.encode(array, spec)
        return array

    def _compressed(self, array: np.ndarray) -> list[Buffer]:
        buffer = concat_buffers(self._serializer.encode(self._contiguous(array)))
        itemsize = self._encoded.data_type.itemsize
        for bytes_codec in self._bytes[:-1]:
            buffer = bytes_codec.encode(buffer, itemsize)
        if self._encodes_at_once:
            return [self._bytes[-1].encode(buffer, itemsize)]
        return self._bytes[-1].encode_pieces(buffer, itemsize)

    @cached_property
    def _encodes_at_once(self) -> bool:
        """True if the last codec may be given the array's memory, which it must not keep."""
        return all(codec.may_alias for codec in self._bytes[:-1])

    def _contiguous(self, array: np.ndarray) -> np.ndarray:
        """Return the elements in C order, in memory of this thread if possible."""
        if (
            array.flags.c_contiguous
            or not self._serializer.is_memory_layout
            or self._bytes[0].may_alias
        ):
            return array
        memory = thread_buffer("decoded", array.nbytes).view(array.dtype).reshape(array.shape)
        fast_copyto(array, into=memory)
        return memory

    # --- reading --------------------------------------------------------------------------------

    def decode(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: DecodeOptions
    ) -> None:
        """Decode a region of a chunk (None: all of it) into `out`, from all of its bytes.

        Raises
        ------
        CorruptObjectError
            If the bytes do not decode to a chunk.
        """
        if len(buffer) > self._most:
            self.check_length(len(buffer))
        _DECODED.nbytes += self.counted
        if region is None and self._straight and out.flags.c_contiguous:
            self._last_decoder.decode_into(buffer, out.ravel().view(_BYTE))
        elif self._stages:
            self._decode_from(0, buffer, region, out, reading)
        else:
            self._decode_encoded(buffer, region, out, reading)

    @property
    def wanted(self) -> BoundedRange:
        """All bytes of an encoded chunk, and one more, which a correct one does not have."""
        return BoundedRange(0, self.size.most + 1)

    def check_length(self, nbytes: int) -> None:
        """Raise if there are more bytes than a chunk can be encoded to.

        Raises
        ------
        CorruptObjectError
            If there are.
        """
        most = self.size.most
        if nbytes > most:
            raise CorruptObjectError(
                f"it has {most + 1} bytes or more, and a chunk of {self.spec.nbytes} bytes has "
                f"{most} at most when it is encoded"
            )

    def _decode_from(
        self,
        stage: int,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: DecodeOptions,
    ) -> None:
        """Decode like `decode`, from an array codec on, with `region` and `out` of its input."""
        for position, (codec, spec) in enumerate(self._stages[stage:], stage):
            if region is not None and not codec.pointwise:
                whole = np.empty(spec.shape, spec.dtype)
                self._decode_from(position, buffer, None, whole, reading)
                out[...] = whole[region]
                return
            inner = None if region is None else codec.region(region)
            view = codec.view(out)
            if view is None:
                encoded = self._memory_after(position, inner)
                self._decode_from(position + 1, buffer, inner, encoded, reading)
                codec.decode(encoded, spec, out)
                return
            out, region = view, inner
        self._decode_encoded(buffer, region, out, reading)

    def _memory_after(self, stage: int, region: Region | None) -> np.ndarray:
        """Return memory for a region (None: all) of the result of an array codec."""
        last = stage + 1 == len(self._stages)
        spec = self._encoded if last else self._stages[stage + 1][1]
        return np.empty(spec.shape if region is None else _shape_of(region), spec.dtype)

    def _decode_encoded(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: DecodeOptions
    ) -> None:
        """Decode like `decode`, after the array codecs; all arguments are in encoded terms."""
        if not self._to_memory:
            for codec, size in self._decoders:
                buffer = codec.decode(buffer, size)
            self._serializer.decode(buffer, region, out, reading)
            return
        if self._first_decoders:
            for codec, size in self._first_decoders:
                buffer = codec.decode(buffer, size)
        if region is None and out.flags.c_contiguous:
            self._decode_last(buffer, out.ravel().view(_BYTE))
            return
        if region is not None and self._blocks is not None:
            cuts = (ChunkRead(region, out),)
            if self._blocks.pays(cuts) and drive_fetch_from_bytes(self._blocks.read(cuts), buffer):
                return
        encoded = self._encoded
        memory = thread_buffer("decoded", encoded.nbytes)
        self._decode_last(buffer, memory)
        chunk = memory.view(encoded.dtype).reshape(encoded.shape)
        fast_copyto(chunk if region is None else chunk[region], into=out)

    def read_index(self) -> Fetch[ShardIndex | None]:
        """Return the index of a shard; None if there is none, or it must be decoded."""
        if not self.partial:
            return None
        return (yield from self._serializer.read_index())

    def encoded_region(self, region: Region) -> Region:
        """Return a region in the serializer's terms, if all array codecs are pointwise."""
        for codec, _ in self._stages:
            region = codec.region(region)
        return region

    def _decode_last(self, buffer: Buffer, memory: np.ndarray) -> None:
        """Fill the memory of a whole chunk."""
        self._last_decoder.decode_into(buffer, memory)
        if self._swapped is not None:
            memory.view(self._swapped).byteswap(inplace=True)

    def empty_chunk(self) -> np.ndarray:
        """Return memory for a chunk, in the stored order of its elements if possible."""
        array = np.empty(self._encoded.shape, self._encoded.dtype)
        for codec, _ in reversed(self._stages):
            decoded = codec.inverse_view(array)
            if decoded is None:
                return np.empty(self.spec.shape, self.spec.dtype)
            array = decoded
        return array

    def read(
        self, region: Region | None, out: np.ndarray, reading: DecodeOptions, *, whole: bool
    ) -> Fetch[bool]:
        """Fetch one region of a chunk (None: all of it) into `out`; see `read_cuts`."""
        return self.read_cuts((ChunkRead(region, out),), reading, whole=whole)

    def read_cuts(
        self, cuts: Sequence[ChunkRead], reading: DecodeOptions, *, whole: bool
    ) -> Fetch[bool]:
        """Fetch some regions of a chunk, each byte of it at most once.

        Parameters
        ----------
        cuts
            The regions and their destinations.
        reading
            Options for reading.
        whole
            Request all bytes at once, because everything of the chunk within the array is wanted.

        Returns
        -------
        bool
            False if there is nothing stored; the memory is then unchanged.
        """
        in_part = not whole and (self.partial or self.worth_partial_read(cuts))
        if not in_part or any(cut.region is None for cut in cuts):
            received = yield (self.wanted,)
            if received is None:
                return False
            (buffer,) = received
            self.decode_cuts(buffer, cuts, reading)
            return True
        return (yield from self._read_parts(cuts, reading))

    def worth_reading_whole(self, cuts: Sequence[ChunkRead], nbytes: int) -> bool:
        """See `BoundSerializer.worth_reading_whole`."""
        simple = self.partial and not self._stages
        return simple and self._serializer.worth_reading_whole(cuts, nbytes)

    def worth_partial_read(self, cuts: Sequence[ChunkRead]) -> bool:
        """True if reading these may take only some bytes, of a value that can be peeked at."""
        return self.peeks and self._blocks is not None and self._blocks.pays(cuts)

    def decode_cuts(
        self, buffer: Buffer, cuts: Sequence[ChunkRead], reading: DecodeOptions
    ) -> None:
        """Decode some cuts like `decode`, from bytes that are decoded once.

        Raises
        ------
        CorruptObjectError
            If the bytes do not decode to a chunk.
        """
        if len(cuts) == 1 or self.partial:
            for region, out in cuts:
                self.decode(buffer, region, out, reading)
            return
        self.check_length(len(buffer))
        if self._blocks is not None and self._blocks.pays(cuts):
            for codec, size in self._first_decoders:
                buffer = codec.decode(buffer, size)
            drive_fetch_from_bytes(self._read_parts(cuts, reading), buffer)
            return
        spec = self.spec
        if spec.dtype.hasobject:
            chunk = np.empty(spec.shape, spec.dtype)
        else:
            chunk = thread_buffer("chunk", spec.nbytes).view(spec.dtype).reshape(spec.shape)
        self.decode(buffer, None, chunk, reading)
        for region, out in cuts:
            fast_copyto(chunk if region is None else chunk[region], into=out)

    def _read_parts(self, cuts: Sequence[ChunkRead], reading: DecodeOptions) -> Fetch[bool]:
        """Read through the array codecs, all of which are pointwise."""
        decoding: list[tuple[ArrayCodec, ChunkSpec, np.ndarray, np.ndarray]] = []
        for position, (codec, spec) in enumerate(self._stages):
            inner: list[ChunkRead] = []
            for region, out in cuts:
                within = None if region is None else codec.region(region)
                encoded = codec.view(out)
                if encoded is None:
                    encoded = self._memory_after(position, within)
                    decoding.append((codec, spec, encoded, out))
                inner.append(ChunkRead(within, encoded))
            cuts = inner
        if self._blocks is not None:
            present = yield from self._blocks.read(cuts, reading.before_whole)
            _DECODED.nbytes += self.counted * present
        else:
            present = yield from self._serializer.read(cuts, reading)
        if present:
            for codec, spec, encoded, out in reversed(decoding):
                codec.decode(encoded, spec, out)
        return present


def fill_missing_chunk(out: np.ndarray, spec: ChunkSpec, reading: DecodeOptions) -> None:
    """Fill the memory of an absent chunk with the fill value; with zeros if the array has none.

    Raises
    ------
    ChunkMissingError
        If the reader has set that absence is an error.
    """
    if reading.absent_is_error:
        raise ChunkMissingError
    _DECODED.absent += 1
    out[...] = spec.data_type.fill_or_zero(spec.fill_value)


def make_chain(codecs: Sequence[Codec]) -> CodecChain | ValidationProblem:
    """Return a chain of codecs in a valid order, or the problem with their order."""
    arrays = [codec for codec in codecs if isinstance(codec, ArrayCodec)]
    serializers = [codec for codec in codecs if isinstance(codec, Serializer)]
    compressors = [codec for codec in codecs if isinstance(codec, BytesCodec)]
    names = [codec.name for codec in codecs]
    if len(serializers) != 1:
        return ValidationProblem(
            "",
            names,
            "exactly one codec from array to bytes ('bytes' or 'sharding_indexed')",
        )
    chain = CodecChain(tuple(arrays), serializers[0], tuple(compressors))
    if list(chain.codecs) != list(codecs):
        return ValidationProblem(
            "", names, "array-to-array codecs first, then array-to-bytes, then bytes-to-bytes"
        )
    return chain
