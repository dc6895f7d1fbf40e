"""The interface of codecs: three kinds of steps between a chunk and its stored bytes.

``array -> array`` (`ArrayCodec`), ``array -> bytes`` (`Serializer`), ``bytes -> bytes``
(`BytesCodec`). Codecs are frozen values made of their configuration. Anything that depends on the
shape and the data type of a chunk takes a `ChunkSpec`. A codec never sees a store, a key, a path, a
format or global settings.

If possible, a chunk is decoded straight into its destination: a bytes codec whose result is the
elements' memory is given the memory to fill.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zarr_dask._util.buffers import thread_buffer
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.fetch import Fetch, Spans
from zarr_dask.dtypes import VARIABLE_BYTES, DataType, bits_of
from zarr_dask.errors import CorruptObjectError, ValidationProblem
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import WHOLE, Buffer

__all__ = [
    "ABSENT_PLACE",
    "WORTH_A_THREAD",
    "ArrayCodec",
    "BoundSerializer",
    "ByteRequest",
    "BytesCodec",
    "ChunkRead",
    "ChunkSpec",
    "Codec",
    "CodecMemory",
    "DecodeOptions",
    "DecodedBytes",
    "EncodedSize",
    "Serializer",
    "ShardIndex",
    "Speeds",
    "concat_buffers",
    "largest_partial_read",
]


@dataclass(frozen=True)
class ChunkSpec:
    """Shape, data type and fill value of the input of a codec."""

    shape: Shape
    data_type: DataType
    fill_value: np.ndarray | None = field(compare=False)
    """A 0-d array, or None if absent chunks have no defined value."""
    variable_bytes: int = VARIABLE_BYTES
    """Most encoded bytes, if the elements have no fixed size."""
    fill_bytes: bytes = field(init=False, repr=False)
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """The NumPy type of the elements in memory, in native byte order."""
    nbytes: int = field(init=False, repr=False, compare=False)
    """Bytes of the decoded chunk in memory."""

    def __post_init__(self) -> None:
        dtype = self.data_type.dtype
        object.__setattr__(self, "fill_bytes", bits_of(self.fill_value))
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "nbytes", prod(self.shape) * dtype.itemsize)

    def with_shape(self, shape: Shape) -> ChunkSpec:
        """Return the same for chunks of another shape."""
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True)
class EncodedSize:
    """The number of bytes of an encoded chunk."""

    exact: int | None
    """The exact number, if it does not depend on the values."""
    most: int
    """An upper bound for any correct encoder; decoders refuse to produce more."""

    @staticmethod
    @lru_cache(maxsize=256)  # asked for each small chunk
    def of(nbytes: int) -> EncodedSize:
        """Return an exact size."""
        return EncodedSize(nbytes, nbytes)

    def compressed(self) -> EncodedSize:
        """Return the size after a compressor, which can make random data slightly longer."""
        return EncodedSize(None, self.most + self.most // 32 + (1 << 16))

    def plus(self, nbytes: int) -> EncodedSize:
        """Return the size with a few more bytes."""
        return EncodedSize(None if self.exact is None else self.exact + nbytes, self.most + nbytes)

    def check(self, what: str, nbytes: int) -> None:
        """Raise if a number of bytes, found or claimed by a header, is another or too large.

        Raises
        ------
        CorruptObjectError
            With `what`, a noun such as "gzip stream".
        """
        if self.exact is not None and nbytes != self.exact:
            raise CorruptObjectError(
                f"its {what} holds {nbytes} bytes, but the chunk has {self.exact}"
            )
        if nbytes > self.most:
            raise CorruptObjectError(
                f"its {what} claims {nbytes} bytes, but the chunk can have {self.most} at most"
            )


@dataclass(frozen=True, slots=True)
class CodecMemory:
    """Bytes that codecs hold besides a chunk and its encoded form."""

    workspace: int = 0
    """While they decode or encode."""
    decode_workspace: int = 0
    """While they decode; at most `workspace`."""
    encoder_state: int = 0
    """Besides `workspace`; see `BytesCodec.encoder_state_nbytes`."""
    decoder_state: int = 0
    """Besides `decode_workspace`; see `BytesCodec.decoder_state_nbytes`."""
    byteswap: int = 0
    """A copy of a chunk in the other byte order, which only encoding makes."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Options for reading, passed along with every fetch."""

    absent_is_error: bool = False
    """Raise `ChunkMissingError` for absent chunks, including those inside shards."""
    before_whole: Callable[[], None] | None = None
    """For chunks that are read block by block, hold only the wanted blocks.

    Called where that is impossible, before all bytes of a chunk are fetched; it may wait.
    """
    threads: int | None = 1
    """Threads that may decode the chunks of one shard; None for one per core."""


class ChunkRead(NamedTuple):
    """The wanted part of a chunk, and its destination."""

    region: Region | None
    """The elements of the chunk; None for all of them."""
    out: np.ndarray
    """Memory of the region's shape."""


class ByteRequest(NamedTuple):
    """The wanted part of the bytes that a chunk decodes to."""

    nbytes: int
    """Number of bytes of the whole chunk."""
    first: int
    stop: int
    """The end of the range for which memory is needed, whether decoded or not."""
    spans: Spans
    """The parts of that range that must be decoded."""


class DecodedBytes(NamedTuple):
    """Bytes that a chunk, or a part of it, decodes to."""

    memory: np.ndarray
    """1-d, uint8; owned by the thread until it decodes something else."""
    first: int
    """Offset in the chunk of its first byte."""


class Speeds(NamedTuple):
    """Bytes of elements per second that a thread decodes and encodes."""

    decode: float
    encode: float


WORTH_A_THREAD = 50e-6
"""Seconds of decoding or encoding from which a chunk gains by another thread.

Reading a chunk takes 30 us with the interpreter held, which threads pass to each other 5 times in
that; for chunks of 128 kB of lz4, two threads take 1.6 times the CPU of one, and as long. Writing
chunks of 4 kB to 128 kB that are encoded in less takes 1.2 to 1.7 times the CPU, and longer.
"""


class Codec(ABC):
    """A step of a chain; its fields are its configuration.

    Concrete classes are frozen dataclasses, which `zarr_dask.register_codec` makes known by their
    name.
    """

    is_unknown: ClassVar[bool] = False
    """True for placeholders of codecs that are not known, but may be skipped in reading."""
    in_numcodecs: ClassVar[bool] = False
    """True if v2 metadata may have it as well, with its name as ``id``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in Zarr v3 spelling."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """Return the configuration as JSON values, in Zarr v3 spelling."""

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec | None:
        """Return the codec of a configuration; note problems in `config` and return None.

        By default the members are the fields of the class, which refuses wrong values by a
        ValueError or TypeError.
        """
        names = inspect.signature(cls).parameters if config.rest() else ()
        given = {name: config.rest().pop(name) for name in names if name in config.rest()}
        try:
            return cls(**given)
        except (TypeError, ValueError) as error:
            expected = f"a configuration that {config.name!r} takes ({error})"
            config.problems.append(ValidationProblem(config.place, given, expected))
            return None

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """Return the codec of a configuration in numcodecs' spelling.

        Parameters
        ----------
        name
            The ``id``.
        config
            All other members; those that are known are removed.
        dtype
            Type string of the elements that the codec is given, if known.

        Raises
        ------
        ValueError, TypeError, KeyError
            If the configuration is wrong.
        """
        given = dict(config)
        config.clear()
        return cls(**given)

    def to_numcodecs(self) -> dict[str, Any] | None:
        """Return the configuration in numcodecs' spelling; None for codecs without one."""
        return {"id": self.name, **self.configuration()} if self.in_numcodecs else None

    @classmethod
    def with_defaults(
        cls,
        name: str,  # noqa: ARG003
        configuration: dict[str, Any],
        itemsize: int,  # noqa: ARG003
    ) -> dict[str, Any]:
        """Return a user's configuration with members that metadata must have."""
        return configuration

    def resolved(self, itemsize: int) -> Codec:  # noqa: ARG002
        """Return the codec with all that depends on the size of elements decided."""
        return self

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """Return a configuration under one of its names, for elements of a NumPy type string.

        The table of compatibility, tests of hostile inputs and `CodecTests` use it.
        """
        return {}

    def speeds(self) -> Speeds:
        """Return the speeds, as measured once; plans of rechunkings compare their ratios."""
        return Speeds(0.5e9, 0.3e9)

    def document(self) -> dict[str, Any]:
        """Return name and configuration as in Zarr v3 metadata."""
        configuration = self.configuration()
        return {"name": self.name, **({"configuration": configuration} if configuration else {})}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:  # noqa: ARG002
        """Yield problems of using this codec on such chunks; fields are relative to the codec."""
        return iter(())


class ArrayCodec(Codec):
    """From an array to an array.

    A codec that only moves elements has a `view`, through which decoding writes straight into the
    destination. One that changes values has `encode` and `decode`; if it does so element by element
    (`pointwise`), a region can be decoded without the rest of its chunk.
    """

    moves: ClassVar[bool] = False
    """True if it only moves elements and has a `view`."""
    pointwise: ClassVar[bool] = True
    """True if a region of the chunk is also a region of its encoded form."""

    @abstractmethod
    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec of encoded chunks, including the fill value."""

    def encoded_ndim(self, ndim: int) -> int:
        """Return the number of dimensions of the encoded form of a chunk of `ndim` dimensions."""
        return ndim

    def view(self, array: np.ndarray) -> np.ndarray | None:  # noqa: ARG002
        """Return the encoded form as a view of the same memory, to read from or to decode into."""
        return None

    def inverse_view(self, encoded: np.ndarray) -> np.ndarray | None:  # noqa: ARG002
        """Return the array whose `view` is `encoded`, in the same memory."""
        return None

    @abstractmethod
    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """Return the encoded form of a chunk.

        Raises
        ------
        DataTypeError
            If it has values that cannot be encoded.
        """

    @abstractmethod
    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:
        """Decode `encoded` into `out`; a region of both if the codec is pointwise.

        Raises
        ------
        CorruptObjectError
            If it has values that no chunk is encoded to.
        """

    def region(self, region: Region) -> Region:
        """Return the encoded form's region for one of the chunk, if the codec is pointwise."""
        return region

    def inner_shape(self, shape: Shape) -> Shape:
        """Return the shape with the encoded form `shape`: that of chunks in an encoded shard."""
        return shape


class ShardIndex(NamedTuple):
    """The contents of a shard's index."""

    places: np.ndarray
    """Offset and number of bytes of each chunk; both are `ABSENT_PLACE` for absent ones."""
    chunk: Any
    """The codecs of a chunk: a `zarr_dask.codecs.chain.BoundCodecChain`."""
    index_nbytes: int
    """Bytes of the index itself."""
    index_first: bool
    """True if it is at the start of the shard, and not at its end."""


ABSENT_PLACE = (1 << 64) - 1
"""Value of both numbers for a chunk that a shard does not hold."""


class BoundSerializer(ABC):
    """A serializer for chunks of one `ChunkSpec`."""

    spec: ChunkSpec
    size: EncodedSize
    """Bytes of an encoded chunk."""
    is_memory_layout: bool = False
    """True if the bytes are the memory of a C-contiguous array, unchanged."""
    byteswapped_dtype: np.dtype[Any] | None = None
    """The type whose bytes are swapped, if it is otherwise `is_memory_layout`; else None."""
    partial: bool = False
    """True if `read` may need only some of the bytes."""
    streams_chunks: bool = False
    """True if `pieces` holds only one chunk at a time, and never all of its results."""

    @property
    def memory(self) -> CodecMemory:
        """Bytes that decoding and encoding need besides the chunk and its encoded form."""
        return CodecMemory()

    @abstractmethod
    def encode(self, array: np.ndarray) -> list[Buffer]:
        """Return the bytes of a chunk, in pieces that are stored one after the other."""

    def pieces(
        self,
        array: np.ndarray,
        threads: int | None = 1,  # noqa: ARG002  (only what holds chunks of its own can use more)
    ) -> list[Buffer] | Iterator[Buffer]:
        """Return the same as `encode`, or yield pieces, each valid until the next one is taken.

        At most `threads` threads encode the chunks of a shard; None for one per core where that
        takes less time.
        """
        return self.encode(array)

    def updated(
        self,
        buffer: Buffer | None,  # noqa: ARG002  (only what holds chunks of its own can keep some)
        region: Region,  # noqa: ARG002
        elements: np.ndarray,  # noqa: ARG002
        threads: int | None = 1,  # noqa: ARG002
    ) -> Iterator[Buffer] | None:
        """Return the bytes after some elements have changed, without decoding what stays.

        Parameters
        ----------
        buffer
            All bytes of the chunk as it is; None if it is not stored, or nothing of it stays.
        region
            Region of the chunk that changes; along some dimensions there may be indices, which
            NumPy broadcasts.
        elements
            New elements of the region.
        threads
            As for `pieces`.

        Returns
        -------
        iterator of buffers, or None
            Pieces as of `pieces`; None if the chunk must be decoded and encoded as a whole.
        """
        return None

    @abstractmethod
    def decode(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: DecodeOptions
    ) -> None:
        """Decode a region of the chunk (None: all of it) into `out`, from all of its bytes."""

    def worth_reading_whole(
        self,
        cuts: Sequence[ChunkRead],  # noqa: ARG002  (only what is read in two rounds can save one)
        nbytes: int,  # noqa: ARG002
    ) -> bool:
        """True if asking for all bytes at once saves a round trip, for at most `nbytes` more."""
        return False

    def read(self, cuts: Sequence[ChunkRead], reading: DecodeOptions) -> Fetch[bool]:
        """Decode some cuts like `decode`, requesting the bytes; return False if there are none."""
        received = yield (WHOLE,)
        if received is None:
            return False
        (buffer,) = received
        for region, out in cuts:
            self.decode(buffer, region, out, reading)
        return True

    def read_index(self) -> Fetch[ShardIndex | None]:
        """Return the index of a shard; None if there are no bytes or no inner chunks.

        Raises
        ------
        CorruptObjectError
            If the index cannot be read.
        """
        yield from ()
        return None


class Serializer(Codec):
    """From an array to bytes."""

    is_sharding: ClassVar[bool] = False
    """True if it divides its chunk into smaller ones: the array's stored objects are shards."""

    @property
    def inner_codecs(self) -> tuple[Codec, ...] | None:
        """The codecs of the inner chunks, if there are any."""
        return None

    @abstractmethod
    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """Return the serializer for chunks of a spec."""

    def inner_shape(self, shape: Shape) -> Shape:
        """Return the shape of the unit of decoding within a chunk of this shape."""
        return shape


class BytesCodec(Codec):
    """From bytes to bytes."""

    may_alias: ClassVar[bool] = False
    """True if the result of `encode` may share memory with its argument."""
    peak_copies: ClassVar[int] = 1
    """Number of copies of the chunk's bytes during this step; streams grow by doubling."""
    supports_partial_decode: ClassVar[bool] = False
    """True if `partial_decode` may need only some of the bytes."""

    def decode_into_peak_nbytes(self, nbytes: int) -> int:
        """Return the bytes that `decode_into` holds for a size; at most `peak_copies` times it."""
        return self.peak_copies * nbytes

    def encoder_state_nbytes(self, nbytes: int) -> int:  # noqa: ARG002
        """Return the most bytes that `encode` needs besides its input and its result.

        This covers all tables for finding repetitions; a few hundred kilobytes are not counted.
        """
        return 0

    def decoder_state_nbytes(self, nbytes: int) -> int:  # noqa: ARG002
        """Return the most bytes that `decode_into` needs besides its input and its result."""
        return 0

    def partial_decode_nbytes(self, nbytes: int) -> int:  # noqa: ARG002
        """Return the bytes of a block of `partial_decode`; 0 if it always decodes everything."""
        return 0

    @abstractmethod
    def size(self, size: EncodedSize) -> EncodedSize:
        """Return the size of the result of `encode` for a size of its input."""

    @abstractmethod
    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """Return the encoded bytes; `itemsize` is that of the elements in them."""

    def encode_pieces(self, buffer: Buffer, itemsize: int) -> list[Buffer]:
        """Return the encoded bytes in pieces, of which some may share memory with `buffer`."""
        return [self.encode(buffer, itemsize)]

    @abstractmethod
    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """Return the decoded bytes.

        Raises
        ------
        CorruptObjectError
            If they cannot be decoded, or have a size other than `size`.
        """

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """Decode like `decode`, into memory (1-d, uint8) that the result must fill exactly."""
        decoded = self.decode(buffer, EncodedSize.of(out.size))
        out[:] = np.frombuffer(decoded, np.uint8)

    def partial_decode(
        self, wanted: ByteRequest, before_whole: Callable[[], None] | None = None
    ) -> Fetch[DecodedBytes | None]:
        """Decode like `decode_into`, requesting the bytes; only those in some spans must be right.

        Damage to other bytes may go unnoticed, and their place in the memory may hold anything.

        Parameters
        ----------
        wanted
            The wanted bytes.
        before_whole
            Use no memory for others, except for a few blocks; called where that is impossible, see
            `DecodeOptions.before_whole`.

        Returns
        -------
        DecodedBytes or None
            None if there is nothing to decode.
        """
        if before_whole is not None:
            before_whole()
        received = yield (WHOLE,)
        if received is None:
            return None
        (buffer,) = received
        memory = thread_buffer("decoded", wanted.nbytes)
        self.decode_into(buffer, memory)
        return DecodedBytes(memory, 0)


_EACH_REGION = 1 << 15  # bytes decoded in the time it takes to locate a region's bytes
_WORTH_DIVIDING = 1 << 18  # bytes of a chunk from which locating a region can pay


def largest_partial_read(nbytes: int, regions: int = 1) -> int:
    """Return the most bytes for which it pays to decode only a part of a chunk.

    Parameters
    ----------
    nbytes
        Decoded size of the chunk. If it is small, the answer is 0.
    regions
        Number of regions that these bytes are in.
    """
    return nbytes * 5 // 8 - regions * _EACH_REGION if nbytes >= _WORTH_DIVIDING else 0


def concat_buffers(buffers: Sequence[Buffer]) -> Buffer:
    """Join buffers into one."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)
