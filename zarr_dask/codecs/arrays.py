"""``bytes`` and ``transpose``: elements in memory order (Zarr v3 codecs of these names)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from zarr_dask.codecs.base import (
    ArrayCodec,
    BoundSerializer,
    ChunkSpec,
    Reading,
    Serializer,
    Size,
)
from zarr_dask.errors import ABSENT, CorruptObjectError, Problem
from zarr_dask.grid import Region, Shape
from zarr_dask.stores.base import Buffer

__all__ = ["Bytes", "Endian", "Transpose", "element_bytes", "endian_of"]

Endian = Literal["little", "big"]


@dataclass(frozen=True)
class Bytes(Serializer):
    """Elements one after the other in C order.

    Parameters
    ----------
    endian
        Byte order; None for data types of single bytes.
    """

    endian: Endian | None = "little"
    name: ClassVar[str] = "bytes"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {} if self.endian is None else {"endian": self.endian}

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:
        """The byte order of elements of several bytes must be said."""
        if self.endian is None and element_bytes(spec.dtype) > 1:
            yield Problem(
                "configuration.endian",
                ABSENT,
                f"'little' or 'big', because {spec.dtype.name} has several bytes",
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundBytes(spec, self.endian)


def element_bytes(dtype: np.dtype[Any]) -> int:
    """Bytes of what has a byte order: a part of a complex number, else the element."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def endian_of(dtype: np.dtype[Any]) -> Endian | None:
    """Byte order of a dtype; None where it has single bytes only."""
    if element_bytes(dtype) == 1:
        return None
    return "big" if dtype.str[0] == ">" else "little"


class _BoundBytes(BoundSerializer):
    def __init__(self, spec: ChunkSpec, endian: Endian | None) -> None:
        self.spec = spec
        self.size = Size.of(spec.nbytes)
        swapped = endian is not None and endian != sys.byteorder and element_bytes(spec.dtype) > 1
        self._stored = spec.dtype.newbyteorder(">" if endian == "big" else "<")
        # a stored bool may be any byte; only 0 and 1 are bools in memory
        self.direct = not swapped and spec.dtype.kind != "b"

    def encode(self, array: np.ndarray) -> list[Buffer]:
        contiguous = np.ascontiguousarray(array, dtype=self._stored)
        return [contiguous.reshape(-1).view(np.uint8).data]

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: Reading,  # noqa: ARG002  (there is nothing to be absent in here)
    ) -> None:
        raw = np.frombuffer(buffer, np.uint8)
        if raw.size != self.size.exact:
            raise CorruptObjectError(
                f"it has {raw.size} bytes where a chunk of shape {self.spec.shape} and type "
                f"{self.spec.dtype.name} has {self.size.exact}"
            )
        if self.spec.dtype.kind == "b":
            chunk = (raw != 0).reshape(self.spec.shape)
        else:
            chunk = raw.view(self._stored).reshape(self.spec.shape)
        out[...] = chunk if region is None else chunk[region]


@dataclass(frozen=True)
class Transpose(ArrayCodec):
    """The dimensions in another order: ``i`` of the result is ``order[i]`` of the input."""

    order: tuple[int, ...]
    name: ClassVar[str] = "transpose"
    moves: ClassVar[bool] = True

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"order": list(self.order)}

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:
        """The order must name every dimension once."""
        if sorted(self.order) != list(range(len(spec.shape))):
            yield Problem(
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
