"""``bytes`` and ``transpose``: elements in memory order (Zarr v3 codecs of these names)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from zarr_dask._util.json_fields import is_ints, is_one_of
from zarr_dask.codecs.base import (
    ArrayCodec,
    BoundSerializer,
    ChunkSpec,
    Codec,
    DecodeOptions,
    EncodedSize,
    Serializer,
    Speeds,
)
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.dtypes import is_small, leaves, native, swappable, value_bits
from zarr_dask.errors import ABSENT, CorruptObjectError, ValidationProblem
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import Buffer

__all__ = [
    "Bytes",
    "Endian",
    "StructBytes",
    "Transpose",
    "element_bytes",
    "endian_of",
    "serializer_of",
]

Endian = Literal["little", "big"]


@dataclass(frozen=True)
class Bytes(Serializer):
    """Elements one after the other in C order.

    Parameters
    ----------
    endian
        Byte order of all parts of an element that have several bytes: numbers, their parts, code
        points, fields; None for data types of single bytes.
    """

    endian: Endian | None = "little"
    name: ClassVar[str] = "bytes"

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec | None:
        """See `Codec.from_config`; drafts of v3 called it ``endian``."""
        if config.name == "endian":
            if config.stored is None:
                place = config.place.removesuffix(".configuration")
                expected = "'bytes', as this codec is called now"
                config.problems.append(ValidationProblem(f"{place}.name", "endian", expected))
                return None
            _warn_of_old_spelling(config, "a codec 'endian', now called 'bytes'")
        endian = config.take("endian", is_one_of("little", "big"), "'little' or 'big'", None)
        return cls(endian)

    @classmethod
    def with_defaults(cls, name: str, given: dict[str, Any], itemsize: int) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.with_defaults`."""
        return {"endian": "little", **given} if itemsize > 1 else given

    def resolved(self, itemsize: int) -> Codec:
        """See `Codec.resolved`."""
        return Bytes("little") if self.endian is None and itemsize > 1 else self

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"endian": "big"} if np.dtype(dtype).itemsize > 1 else {}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        native_order = self.endian in {None, sys.byteorder}
        return Speeds(16e9, 30e9) if native_order else Speeds(8e9, 12e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {} if self.endian is None else {"endian": self.endian}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that elements have a fixed size, and a byte order if they have several bytes."""
        if spec.data_type.variable:
            yield _no_fixed_size(spec)
        elif self.endian is None and element_bytes(spec.dtype) > 1:
            yield ValidationProblem(
                "configuration.endian",
                ABSENT,
                f"'little' or 'big', because {spec.data_type.name} has several bytes",
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        stored = swappable(spec.dtype).newbyteorder(">" if self.endian == "big" else "<")
        return _BoundBytes(spec, stored)


@dataclass(frozen=True)
class StructBytes(Serializer):
    """Records whose fields have byte orders of their own; only v2 has these.

    Parameters
    ----------
    stored
        The dtype as JSON text, in the form used in a ``.zarray`` file: ``[["a", "<i4"], ["b",
        ">f8", [2]]]``.

    Examples
    --------
    >>> StructBytes.of(np.dtype([("a", "<i4"), ("b", ">f8", (2,))]))
    StructBytes(stored='[["a", "<i4"], ["b", ">f8", [2]]]')
    """

    stored: str
    name: ClassVar[str] = "mixed_bytes"

    @staticmethod
    def of(stored: np.dtype[Any]) -> StructBytes:
        """Return the serializer for stored records, with their byte orders."""
        return StructBytes(json.dumps(_descr(stored)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of stored records."""
        return _dtype_of_descr(json.loads(self.stored))

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"stored": json.loads(self.stored)}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the fields of the records are those of the array."""
        if native(self.dtype) != spec.dtype:
            yield ValidationProblem(
                "configuration.stored", self.stored, f"the fields of {spec.dtype}"
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundBytes(spec, self.dtype)


def serializer_of(stored: np.dtype[Any]) -> Bytes | StructBytes:
    """Return the serializer for stored elements, with their byte orders.

    Examples
    --------
    >>> serializer_of(np.dtype([("a", ">i2"), ("b", "u1")]))
    Bytes(endian='big')
    """
    if len(_endians(stored)) > 1:
        return StructBytes.of(stored)
    return Bytes(endian_of(stored))


def element_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of the largest part with a byte order: a number or code point."""
    return max(_unit(leaf) for _, leaf in leaves(dtype))


def endian_of(dtype: np.dtype[Any]) -> Endian | None:
    """Return the byte order of a dtype; None if it has only single bytes.

    Raises
    ------
    ValueError
        If its fields have different byte orders, which need `StructBytes`.
    """
    found = _endians(dtype)
    if len(found) > 1:
        raise ValueError(f"{dtype} has fields of both byte orders")
    return found.pop() if found else None


def _unit(leaf: np.dtype[Any]) -> int:
    """Return the bytes of the unit of byte order in a dtype without fields."""
    if leaf.kind == "c":
        return leaf.itemsize // 2
    if leaf.kind == "U":
        return 4
    if leaf.kind in "SV" and not is_small(leaf):
        return 1
    return leaf.itemsize


def _endians(dtype: np.dtype[Any]) -> set[Endian]:
    return {
        "big" if leaf.str[0] == ">" else "little" for _, leaf in leaves(dtype) if _unit(leaf) > 1
    }


def _no_fixed_size(spec: ChunkSpec) -> ValidationProblem:
    name = spec.data_type.name
    expected = f"a codec for elements without a fixed size ('vlen-utf8' for texts), as {name} has"
    return ValidationProblem("name", "bytes", expected)


def _descr(dtype: np.dtype[Any]) -> Any:
    """Return a dtype in the spelling of v2 metadata."""
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    items = ((name, dtype.fields[name][0]) for name in dtype.names)
    return [
        [name, _descr(item.base), *([list(item.shape)] if item.shape else [])]
        for name, item in items
    ]


def _dtype_of_descr(descr: Any) -> np.dtype[Any]:
    """Return the dtype for its spelling in v2 metadata."""
    if isinstance(descr, str):
        return np.dtype(descr)
    formats = [
        np.dtype((_dtype_of_descr(item), tuple(*shape))) if shape else _dtype_of_descr(item)
        for _, item, *shape in descr
    ]
    return np.dtype({"names": [name for name, *_ in descr], "formats": formats})


class _BoundBytes(BoundSerializer):
    def __init__(self, spec: ChunkSpec, stored: np.dtype[Any]) -> None:
        self.spec = spec
        self.size = EncodedSize.of(spec.nbytes)
        self._memory = swappable(spec.dtype)
        self._stored = stored
        self._loose = tuple(_loose(spec.dtype))
        self._texts = tuple(path for path, leaf in leaves(spec.dtype) if leaf.kind == "U")
        # if nothing is swapped or checked, the memory is stored unchanged
        plain = not self._loose and not self._texts
        self.is_memory_layout = plain and self._stored == self._memory
        turned = self._stored == self._memory.newbyteorder() and not self.is_memory_layout
        if plain and self._memory.kind in "iuf" and turned:
            self.byteswapped_dtype = self._memory

    def encode(self, array: np.ndarray) -> list[Buffer]:
        if not (self.is_memory_layout and array.flags.c_contiguous):
            array = np.ascontiguousarray(array.view(self._memory), dtype=self._stored)
        return [array.reshape(-1).view(np.uint8).data]

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: DecodeOptions,  # noqa: ARG002  (no chunk in here can be absent)
    ) -> None:
        if len(buffer) != self.size.exact:
            raise CorruptObjectError(
                f"it has {len(buffer)} bytes where a chunk of shape {self.spec.shape} and type "
                f"{self.spec.data_type.label} has {self.size.exact}"
            )
        chunk = np.ndarray(self.spec.shape, self._stored, buffer)
        if region is not None:
            chunk = chunk[region]
        for path in self._texts:
            _check_text(chunk, path)
        loose = [(path, bits) for path, bits in self._loose if not _is_tight(chunk, path, bits)]
        (out if self._memory is self.spec.dtype else out.view(self._memory))[...] = chunk
        for path, bits in loose:
            _tighten(out, path, bits)


def _loose(dtype: np.dtype[Any]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the fields of which only some bits of a byte are used, and the number of these bits.

    A stored bool may be any byte, but only 0 and 1 are bools in memory.
    """
    for path, leaf in leaves(dtype):
        bits = 1 if leaf.kind == "b" else value_bits(leaf)
        if bits is not None:
            yield path, bits


def _field(array: np.ndarray, path: tuple[str, ...]) -> np.ndarray:
    for name in path:
        array = array[name]
    return array


def _is_tight(chunk: np.ndarray, path: tuple[str, ...], bits: int) -> bool:
    """Return True if no unused bit is set, which is found in a tenth of the time of clearing."""
    return bool(_field(chunk, path).view(np.uint8).max(initial=0) >> bits == 0)


def _tighten(out: np.ndarray, path: tuple[str, ...], bits: int) -> None:
    """Make the values of a field with unused bits canonical."""
    raw = _field(out, path).view(np.uint8)
    if bits == 1:
        np.not_equal(raw, 0, out=raw.view(np.bool_))
    else:
        np.bitwise_and(raw, (1 << bits) - 1, out=raw)


_LAST_CODE_POINT = 0x10FFFF


def _check_text(chunk: np.ndarray, path: tuple[str, ...]) -> None:
    """Raise for code units that are not code points, on which Python's str would fail later."""
    text = _field(chunk, path)
    units = np.dtype((f"{text.dtype.str[0]}u4", (text.dtype.itemsize // 4,)))
    found = text[..., None].view(np.dtype([("units", units)]))["units"]
    if found.size and found.max() > _LAST_CODE_POINT:
        raise CorruptObjectError(
            f"a text has the code unit {int(found.max()):#x}, which is no Unicode code point"
        )


@dataclass(frozen=True)
class Transpose(ArrayCodec):
    """The dimensions in another order: ``i`` of the result is ``order[i]`` of the input."""

    order: tuple[int, ...]
    name: ClassVar[str] = "transpose"
    moves: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`; drafts of v3 had "C" and "F" as well."""
        expected = "a list of the dimensions in their new order"
        stored = config.stored
        if stored is None:
            order = config.take("order", is_ints, expected)
        else:
            order = config.take("order", lambda v: is_ints(v) or v in ("C", "F"), expected)
            if isinstance(order, str):
                _warn_of_old_spelling(config, f"an order of {order!r}, now a list of dimensions")
                order = range(stored.ndim)[:: 1 if order == "C" else -1]
        return cls(tuple(order or ()))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"order": [0]}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(0.7e9, 0.7e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"order": list(self.order)}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the order has every dimension once."""
        if sorted(self.order) != list(range(len(spec.shape))):
            yield ValidationProblem(
                "configuration.order",
                list(self.order),
                f"a permutation of the {len(spec.shape)} dimensions 0 to {len(spec.shape) - 1}",
            )

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        return spec.with_shape(tuple(spec.shape[i] for i in self.order))

    def view(self, array: np.ndarray) -> np.ndarray:
        """See `ArrayCodec.view`."""
        return array.transpose(self.order)

    def inverse_view(self, encoded: np.ndarray) -> np.ndarray:
        """See `ArrayCodec.inverse_view`."""
        return encoded.transpose([self.order.index(axis) for axis in range(len(self.order))])

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:  # noqa: ARG002
        """See `ArrayCodec.encode`."""
        return array.transpose(self.order)

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:  # noqa: ARG002
        """See `ArrayCodec.decode`."""
        out.transpose(self.order)[...] = encoded

    def region(self, region: Region) -> Region:
        """See `ArrayCodec.region`."""
        return tuple(region[i] for i in self.order)

    def inner_shape(self, shape: Shape) -> Shape:
        """See `ArrayCodec.inner_shape`."""
        back = [0] * len(shape)
        for position, dimension in enumerate(self.order):
            back[dimension] = shape[position]
        return tuple(back)


def _warn_of_old_spelling(config: CodecConfig, what: str) -> None:
    if config.stored is not None:
        config.stored.warn(f"{config.place} is of a draft of Zarr v3: it has {what}.")
