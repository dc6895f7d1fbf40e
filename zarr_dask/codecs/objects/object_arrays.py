"""The common part of serializers for elements without a fixed size: texts, byte strings, lists.

In memory the elements are an object array. The sizes that a chunk claims are checked before memory
is allocated: the number of elements against that of the chunk, every length against the available
bytes. ``Limits.variable_bytes`` bounds the number of encoded bytes and, for elements of any type,
an estimate of their memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from zarr_dask.codecs.base import (
    BoundSerializer,
    ChunkSpec,
    CodecMemory,
    DecodeOptions,
    EncodedSize,
    Serializer,
)
from zarr_dask.dtypes import DataType, data_type_of
from zarr_dask.errors import CorruptObjectError, DataTypeError, ValidationProblem
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import Buffer

__all__ = ["OBJECT", "WIDEST", "WORD", "ObjectSerializer", "too_large"]

OBJECT = np.dtype(object)
WORD = 4
"""Bytes of a little-endian unsigned integer: the number of elements, or the length of one."""
WIDEST = 4
"""Most bytes of a character of a text in memory."""


class ObjectSerializer(Serializer):
    """From an object array to bytes."""

    element: ClassVar[str]
    """Name of the data type of its elements: ``"string"``, ``"bytes"`` or ``"object"``."""

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        return {"id": self.name, **self.configuration()}

    @property
    def data_type(self) -> DataType:
        """The data type of arrays that are stored this way."""
        return data_type_of(self.element)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the elements have its own data type."""
        if spec.data_type.name != self.element:
            yield ValidationProblem(
                "name",
                self.name,
                f"a codec for elements of type {spec.data_type.name!r}; this one is for "
                f"{self.element!r}",
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundObjects(spec, self)

    @abstractmethod
    def encode_elements(self, array: np.ndarray) -> Buffer:
        """Return the bytes of an object array.

        Raises
        ------
        DataTypeError
            If it has elements that cannot be encoded.
        """

    @abstractmethod
    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:
        """Return the elements of a chunk as a 1-d object array, in C order.

        Parameters
        ----------
        buffer
            The bytes of the chunk.
        shape
            Its shape.
        most
            Most bytes of memory for elements whose size is not known.

        Raises
        ------
        CorruptObjectError
            If the bytes are not those of such a chunk.
        """


class _BoundObjects(BoundSerializer):
    def __init__(self, spec: ChunkSpec, codec: ObjectSerializer) -> None:
        self.spec = spec
        self.size = EncodedSize(None, spec.variable_bytes)
        self._codec = codec

    @property
    def memory(self) -> CodecMemory:
        """See `BoundSerializer.memory`."""
        return CodecMemory(self.spec.nbytes, self.spec.nbytes)

    def encode(self, array: np.ndarray) -> list[Buffer]:
        encoded = self._codec.encode_elements(array)
        if len(encoded) > self.size.most:
            raise DataTypeError(
                f"a chunk of shape {self.spec.shape} takes {len(encoded)} bytes as "
                f"{self._codec.name!r}, and readers accept {self.size.most}: make the chunks "
                "smaller."
            )
        return [encoded]

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: DecodeOptions,  # noqa: ARG002  (no chunk in here can be absent)
    ) -> None:
        view = memoryview(buffer)
        if len(view) > self.size.most:
            raise too_large(self._codec.name, len(view), self.size.most)
        most = _SWELLING * self.spec.variable_bytes
        elements = self._codec.decode_elements(view, self.spec.shape, most)
        chunk = elements.reshape(self.spec.shape)
        out[...] = chunk if region is None else chunk[region]


_SWELLING = 2
"""Memory of decoded elements of any type, as a multiple of the limit of encoded bytes."""


def too_large(name: str, nbytes: int, most: int) -> CorruptObjectError:
    """Return the error for elements that take more memory than the reader's limit."""
    return CorruptObjectError(
        f"it has {name} elements of {nbytes} bytes, more than {most} "
        "(ReadOptions(limits=Limits(variable_bytes=...)) sets another bound)"
    )
