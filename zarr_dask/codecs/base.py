"""What a codec is: three kinds of step between a chunk and the bytes that are stored.

``array -> array`` (`ArrayCodec`), ``array -> bytes`` (`Serializer`), ``bytes -> bytes``
(`BytesCodec`). Codecs are frozen values made of their configuration; what depends on the shape
and the data type of a chunk is asked for with a `ChunkSpec`. A codec never sees a store, a key,
a path, a format or global settings.

Decoding goes straight into its destination where that is possible: a bytes codec that ends at
the elements themselves is handed the memory to fill.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zarr_dask.codecs.fetch import Fetch
from zarr_dask.codecs.spans import Spans
from zarr_dask.dtypes import VARIABLE_BYTES, DataType, bits_of
from zarr_dask.errors import Problem
from zarr_dask.grid import Region, Shape
from zarr_dask.scratch import scratch
from zarr_dask.stores.base import WHOLE, Buffer

__all__ = [
    "ABSENT_PLACE",
    "ArrayCodec",
    "BoundSerializer",
    "BytesCodec",
    "ChunkSpec",
    "Codec",
    "Cut",
    "Decoded",
    "Inside",
    "Reading",
    "Serializer",
    "Size",
    "Wanted",
    "WholeNeededError",
    "joined",
]


@dataclass(frozen=True)
class ChunkSpec:
    """Shape, data type and fill value of what a codec works on."""

    shape: Shape
    data_type: DataType
    fill: np.ndarray | None = field(compare=False)
    """A 0-d array, or None where absent chunks have no defined value."""
    variable_bytes: int = VARIABLE_BYTES
    """Encoded bytes at most, where the elements have no fixed size."""
    fill_bytes: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill_bytes", bits_of(self.fill))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements in memory, in native byte order."""
        return self.data_type.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded chunk in memory."""
        return prod(self.shape) * self.dtype.itemsize

    def with_shape(self, shape: Shape) -> ChunkSpec:
        """The same for chunks of another shape."""
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True)
class Size:
    """How many bytes an encoded chunk has."""

    exact: int | None
    """The number, where it does not depend on the values."""
    most: int
    """A bound that no honest encoder exceeds; decoders refuse to produce more."""

    @staticmethod
    def of(nbytes: int) -> Size:
        """A known size."""
        return Size(nbytes, nbytes)

    def compressed(self) -> Size:
        """The size after a compressor, which can make hopeless data a few hundredths longer."""
        return Size(None, self.most + self.most // 32 + (1 << 16))

    def plus(self, nbytes: int) -> Size:
        """The size with a few more bytes."""
        return Size(None if self.exact is None else self.exact + nbytes, self.most + nbytes)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read; passed along with every fetch."""

    absent_is_error: bool = False
    """Raise `ChunkMissingError` for absent chunks, those inside shards included."""
    sparing: bool = False
    """Of chunks that are read block by block, hold no more than the blocks that are wanted; where
    that cannot be, raise `WholeNeededError`."""


class WholeNeededError(Exception):
    """A chunk cannot be read block by block; for whoever reads sparingly, and nobody else."""


class Cut(NamedTuple):
    """What is wanted of a chunk, and where it goes."""

    region: Region | None
    """Which elements of the chunk; None for all of them."""
    out: np.ndarray
    """Memory of the region's shape."""


class Wanted(NamedTuple):
    """Which of the bytes that a chunk decodes to are wanted."""

    nbytes: int
    """Of the whole chunk."""
    first: int
    stop: int
    """Where there is to be memory for all bytes, right or not."""
    spans: Spans
    """Which of these are to be right."""


class Decoded(NamedTuple):
    """Bytes that a chunk, or a part of it, decodes to."""

    memory: np.ndarray
    """1-d, uint8; the thread's own for as long as nothing else is decoded."""
    first: int
    """Which byte of the chunk the first of them is."""


class Codec(ABC):
    """A step of a chain; its fields are its configuration."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in Zarr v3 spelling."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The configuration as JSON values, in Zarr v3 spelling."""

    def document(self) -> dict[str, Any]:
        """Name and configuration as a Zarr v3 document has them."""
        configuration = self.configuration()
        return {"name": self.name, **({"configuration": configuration} if configuration else {})}

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:  # noqa: ARG002
        """What is wrong with using this codec on such chunks; field names start in the codec."""
        return iter(())


class ArrayCodec(Codec):
    """From an array to an array.

    A codec that only moves elements gives a `view`, and decoding goes through it straight into
    the destination. One that changes values has `encode` and `decode`; if it does so element by
    element (`pointwise`), a region can be decoded without the rest of its chunk.
    """

    moves: ClassVar[bool] = False
    """Whether it only moves elements and has a `view`."""
    pointwise: ClassVar[bool] = True
    """Whether a region of the chunk is a region of its encoded form as well."""

    @abstractmethod
    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """What `encode` makes of such a chunk, its fill value included."""

    def encoded_ndim(self, ndim: int) -> int:
        """Number of dimensions of the encoded form of a chunk of `ndim` dimensions."""
        return ndim

    def view(self, array: np.ndarray) -> np.ndarray | None:  # noqa: ARG002
        """The encoded form as a view of the same memory, to read from or to decode into."""
        return None

    def behind(self, encoded: np.ndarray) -> np.ndarray | None:  # noqa: ARG002
        """The array whose `view` is `encoded`, in the same memory."""
        return None

    @abstractmethod
    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """The encoded form of a chunk.

        Raises
        ------
        DataTypeError
            If it has values that cannot be encoded.
        """

    @abstractmethod
    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:
        """Put what `encoded` stands for into `out`; a region of both if the codec is pointwise.

        Raises
        ------
        CorruptObjectError
            If it has values that no chunk is encoded to.
        """

    def region(self, region: Region) -> Region:
        """Where a region of the chunk lies in its encoded form, if the codec is pointwise."""
        return region

    def inner_shape(self, shape: Shape) -> Shape:
        """The shape that becomes `shape` by encoding: that of chunks inside an encoded shard."""
        return shape


class Inside(NamedTuple):
    """What the index of a shard says."""

    places: np.ndarray
    """First byte and number of bytes of each chunk; `ABSENT_PLACE` twice for absent ones."""
    chunk: Any
    """The codecs of a chunk: a `zarr_dask.codecs.chain.BoundChain`, whose module is above this."""
    index_nbytes: int
    """Bytes of the index itself."""
    index_first: bool
    """Whether it lies at the start of the shard, and not at its end."""


ABSENT_PLACE = (1 << 64) - 1
"""Stands for both numbers of a chunk that a shard does not hold."""


class BoundSerializer(ABC):
    """A serializer for chunks of one `ChunkSpec`."""

    spec: ChunkSpec
    size: Size
    """Bytes of an encoded chunk."""
    direct: bool = False
    """Whether the bytes are the memory of a C-contiguous array, as they are."""
    swapped: np.dtype[Any] | None = None
    """As `direct`, if not None, but for the byte order: the type whose bytes are turned around."""
    partial: bool = False
    """Whether `read` can do with less than all of the bytes."""
    in_pieces: bool = False
    """Whether `pieces` holds one chunk after the other, and never all that it gives."""

    @property
    def working(self) -> int:
        """Bytes that decoding or encoding holds besides the chunk and its encoded form."""
        return 0

    @property
    def reading(self) -> int:
        """As `working`, of decoding alone."""
        return self.working

    @property
    def tables(self) -> int:
        """Bytes that encoding holds besides; see `BytesCodec.tables`."""
        return 0

    @property
    def decoding(self) -> int:
        """Bytes that decoding holds besides; see `BytesCodec.decoding`."""
        return 0

    @property
    def turned(self) -> int:
        """Bytes of the copy of an inner chunk in the other byte order; encoding alone makes it."""
        return 0

    @abstractmethod
    def encode(self, array: np.ndarray) -> list[Buffer]:
        """The bytes of a chunk, in pieces that are stored one after the other."""

    def pieces(self, array: np.ndarray) -> list[Buffer] | Iterator[Buffer]:
        """As `encode`, or one after the other, each good until the next one is taken."""
        return self.encode(array)

    @abstractmethod
    def decode(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: Reading
    ) -> None:
        """Put a region of the chunk (None: all of it) into `out`, from all of its bytes."""

    def read(self, cuts: Sequence[Cut], reading: Reading) -> Fetch[bool]:
        """As `decode` for each of some cuts, asking for the bytes; False if there are none."""
        received = yield (WHOLE,)
        if received is None:
            return False
        (buffer,) = received
        for region, out in cuts:
            self.decode(buffer, region, out, reading)
        return True

    def inside(self) -> Fetch[Inside | None]:
        """Where the chunks lie that the bytes hold; None if there are no bytes, or no chunks.

        Raises
        ------
        CorruptObjectError
            If the index cannot be read.
        """
        yield from ()
        return None


class Serializer(Codec):
    """From an array to bytes."""

    divides: ClassVar[bool] = False
    """Whether it cuts its chunk into smaller ones: the array's stored objects are shards."""

    @property
    def inner_codecs(self) -> tuple[Codec, ...] | None:
        """The codecs of the smaller chunks, where there are any."""
        return None

    @abstractmethod
    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """The serializer for chunks of this kind."""

    def inner_shape(self, shape: Shape) -> Shape:
        """Shape of what is decoded at once, within a chunk of this shape."""
        return shape


class BytesCodec(Codec):
    """From bytes to bytes."""

    may_alias: ClassVar[bool] = False
    """Whether what `encode` returns may be the memory that it was given."""
    copies: ClassVar[int] = 1
    """How many times the chunk's bytes are held while this step runs; streams grow by doubling."""
    divisible: ClassVar[bool] = False
    """Whether `read_spans` may do with less than all of the bytes."""

    def held_into(self, nbytes: int) -> int:
        """As `copies`, in bytes, of `decode_into` for so many: where it is less."""
        return self.copies * nbytes

    def tables(self, nbytes: int) -> int:  # noqa: ARG002
        """Bytes that `encode` holds, besides so many and what it makes of them, at most.

        Of all that looks for repetitions; a few hundred kilobytes are not counted.
        """
        return 0

    def decoding(self, nbytes: int) -> int:  # noqa: ARG002
        """Bytes that `decode_into` holds besides the bytes and so many that it makes, at most."""
        return 0

    def block(self, nbytes: int) -> int:  # noqa: ARG002
        """Bytes that `read_spans` decodes at once, of so many; 0 if these are always all."""
        return 0

    @abstractmethod
    def size(self, size: Size) -> Size:
        """Bytes that `encode` makes of so many."""

    @abstractmethod
    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """The encoded bytes; `itemsize` is that of the elements the bytes hold."""

    @abstractmethod
    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """The decoded bytes.

        Raises
        ------
        CorruptObjectError
            If they do not decode, or to another number of bytes than `size` says.
        """

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """As `decode`, into memory (1-d, uint8) that the result must fill exactly."""
        decoded = self.decode(buffer, Size.of(out.size))
        out[:] = np.frombuffer(decoded, np.uint8)

    def read_spans(self, wanted: Wanted, *, sparing: bool = False) -> Fetch[Decoded | None]:
        """As `decode_into`, asking for the bytes; only those in some spans need be right.

        Damage that concerns other bytes may go unnoticed; what is left in their place may be
        anything.

        Parameters
        ----------
        wanted
            Which bytes.
        sparing
            Take no memory for others, but for a few blocks.

        Returns
        -------
        Decoded or None
            None if there is nothing to decode.

        Raises
        ------
        WholeNeededError
            If that cannot be done sparingly.
        """
        if sparing:
            raise WholeNeededError
        received = yield (WHOLE,)
        if received is None:
            return None
        (buffer,) = received
        memory = scratch("decoded", wanted.nbytes)
        self.decode_into(buffer, memory)
        return Decoded(memory, 0)


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """One buffer of many."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)
