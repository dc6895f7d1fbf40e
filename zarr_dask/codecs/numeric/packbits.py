"""``packbits``: elements of any number of bits, one directly after the other.

The first bit of the stream is the least significant bit of the first byte; in
``numcodecs.packbits`` it is the most significant one. Chunks are processed in blocks of elements,
because each bit takes a byte of memory meanwhile. (Zarr extensions, codec ``packbits``.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from zarr_dask._util.json_fields import is_int_in, is_one_of
from zarr_dask.codecs.base import (
    BoundSerializer,
    ChunkSpec,
    CodecMemory,
    DecodeOptions,
    EncodedSize,
    Serializer,
)
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.dtypes import DataType
from zarr_dask.errors import CorruptObjectError, ValidationProblem
from zarr_dask.grid.grid import Region
from zarr_dask.stores.base import Buffer

__all__ = ["PackBits", "Padding"]

Padding = Literal["none", "first_byte", "last_byte"]
_PADDINGS = ("none", "first_byte", "last_byte")

_BLOCK = 1 << 14  # elements; a multiple of 8, so that every block but the last ends with a byte


@dataclass(frozen=True)
class _Layout:
    """The numbers that an element consists of."""

    count: int
    bits: int
    """Bits of each number."""
    signed: bool


def _layout(data_type: DataType) -> _Layout | None:
    """Return the numbers to pack; None if packing is not defined for the type."""
    name = data_type.name
    if name == "bool":
        return _Layout(1, 1, signed=False)
    if integer := re.fullmatch(r"(u?)int(\d+)", name):
        return _Layout(1, int(integer[2]), signed=not integer[1])
    if whole := re.fullmatch(r"complex(\d+)", name):
        return _Layout(2, int(whole[1]) // 2, signed=False)
    if part := re.fullmatch(r"(complex_)?b?float(\d+)(?:_\w+)?", name):
        return _Layout(2 if part[1] else 1, int(part[2]), signed=False)
    return None


@dataclass(frozen=True)
class PackBits(Serializer):
    """Some bits of each element, packed.

    Parameters
    ----------
    padding_encoding
        Position of the byte with the number of padding bits in the last byte, if there is one.
    first_bit
        The least significant bit that is stored; None for the first.
    last_bit
        The most significant bit that is stored; None for the last.
    """

    padding_encoding: Padding = "none"
    first_bit: int | None = None
    last_bit: int | None = None
    name: ClassVar[str] = "packbits"

    @classmethod
    def from_config(cls, config: CodecConfig) -> PackBits:
        """See `Codec.from_config`."""
        expected = f"one of {list(_PADDINGS)}"
        padding = config.take("padding_encoding", is_one_of(*_PADDINGS), expected, "none")
        bits = [
            config.take(name, is_int_in(range(1 << 10)), "the number of a bit, from 0 on", None)
            for name in ("first_bit", "last_bit")
        ]
        if None not in bits and bits[0] > bits[1]:
            config.blame("last_bit", bits[1], f"at least the first_bit, {bits[0]}")
        return cls(padding, *bits)

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"padding_encoding": "first_byte"}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`; defaults are left out."""
        padding = self.padding_encoding
        members = {
            "padding_encoding": None if padding == "none" else padding,
            "first_bit": self.first_bit,
            "last_bit": self.last_bit,
        }
        return {name: value for name, value in members.items() if value is not None}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that `first_bit` and `last_bit` are bits of the elements."""
        layout = _layout(spec.data_type)
        if layout is None:
            expected = "bools, integers, floats or complex numbers to pack"
            yield ValidationProblem("", spec.data_type.name, expected, "data_type")
            return
        first, last = self._stored(layout)
        if not 0 <= first <= last < layout.bits:
            yield ValidationProblem(
                "configuration",
                self.configuration(),
                f"a first_bit and a last_bit in ascending order, from 0 to {layout.bits - 1}",
            )

    def _stored(self, layout: _Layout) -> tuple[int, int]:
        first = 0 if self.first_bit is None else self.first_bit
        return first, layout.bits - 1 if self.last_bit is None else self.last_bit

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        layout = _layout(spec.data_type)
        if layout is None:
            raise TypeError(f"{spec.data_type.name} has no bits to pack")
        return _BoundPackBits(spec, layout, *self._stored(layout), self.padding_encoding)


class _BoundPackBits(BoundSerializer):
    def __init__(
        self, spec: ChunkSpec, layout: _Layout, first: int, last: int, padding: Padding
    ) -> None:
        self.spec = spec
        self._numbers = prod(spec.shape) * layout.count
        self._are_bits = layout.bits == 1
        self._stored = slice(first, last + 1)
        self._sign = slice(last + 1, layout.bits if layout.signed else last + 1)
        self._itemsize = max(layout.bits // 8, 1)
        nbits = self._numbers * (last + 1 - first)
        self._nbytes = -(-nbits // 8)
        self._padding_bits = 8 * self._nbytes - nbits
        self._padding = padding
        self.size = EncodedSize.of(self._nbytes + (padding != "none"))

    @property
    def memory(self) -> CodecMemory:
        """See `BoundSerializer.memory`."""
        held = 2 * self.spec.nbytes + 4 * 8 * self._itemsize * _BLOCK
        return CodecMemory(held, held)

    # --- writing --------------------------------------------------------------------------------

    def encode(self, array: np.ndarray) -> list[Buffer]:
        contiguous = np.ascontiguousarray(array, dtype=self.spec.dtype)
        raw = contiguous.reshape(-1).view(np.uint8)
        if self._are_bits:
            packed = np.packbits(raw, bitorder="little")
        else:
            packed = self._pack(_little(raw, self._itemsize))
        padding = bytes([self._padding_bits])
        if self._padding == "first_byte":
            return [padding, packed.data]
        return [packed.data, padding] if self._padding == "last_byte" else [packed.data]

    def _pack(self, numbers: np.ndarray) -> np.ndarray:
        packed = np.empty(self._nbytes, np.uint8)
        start = 0
        for first in range(0, self._numbers, _BLOCK):
            bits = np.unpackbits(numbers[first : first + _BLOCK], axis=1, bitorder="little")
            some = np.packbits(bits[:, self._stored], bitorder="little")
            packed[start : start + some.size] = some
            start += some.size
        return packed

    # --- reading --------------------------------------------------------------------------------

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: DecodeOptions,  # noqa: ARG002  (no chunk in here can be absent)
    ) -> None:
        packed = self._body(np.frombuffer(buffer, np.uint8))
        if self._are_bits:
            raw = np.unpackbits(packed, count=self._numbers, bitorder="little")
        else:
            raw = _little(self._unpack(packed), self._itemsize).reshape(-1)
        chunk = raw.view(self.spec.dtype).reshape(self.spec.shape)
        out[...] = chunk if region is None else chunk[region]

    def _unpack(self, packed: np.ndarray) -> np.ndarray:
        numbers = np.empty((self._numbers, self._itemsize), np.uint8)
        width = self._stored.stop - self._stored.start
        step = _BLOCK * width // 8
        for first in range(0, self._numbers, _BLOCK):
            count = min(_BLOCK, self._numbers - first)
            start = first * width // 8
            bits = np.unpackbits(
                packed[start : start + step], count=count * width, bitorder="little"
            )
            numbers[first : first + count] = self._numbers_of(bits.reshape(count, width))
        return numbers.reshape(-1)

    def _body(self, raw: np.ndarray) -> np.ndarray:
        """Return the packed bits, without the byte for the padding."""
        if raw.size != self.size.exact:
            raise CorruptObjectError(
                f"it has {raw.size} bytes where a chunk of shape {self.spec.shape} has "
                f"{self.size.exact} in packed bits"
            )
        if self._padding == "none":
            return raw
        position = 0 if self._padding == "first_byte" else -1
        if raw[position] != self._padding_bits:
            raise CorruptObjectError(
                f"it says that {raw[position]} bits are padding, but {self._padding_bits} are"
            )
        return raw[1:] if self._padding == "first_byte" else raw[:-1]

    def _numbers_of(self, stored: np.ndarray) -> np.ndarray:
        """Return the bytes of numbers, least significant first, from their stored bits."""
        bits = np.zeros((len(stored), 8 * self._itemsize), np.uint8)
        bits[:, self._stored] = stored
        bits[:, self._sign] = stored[:, -1:]
        return np.packbits(bits, axis=1, bitorder="little")


def _little(raw: np.ndarray, itemsize: int) -> np.ndarray:
    """Return the bytes of each number in a row, from the machine's byte order to little or back."""
    words = raw.view(f"u{itemsize}")
    return words.astype(f"<u{itemsize}", copy=False).view(np.uint8).reshape(-1, itemsize)
