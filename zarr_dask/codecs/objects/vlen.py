"""Elements of any length in sequence: texts, byte strings, arrays of numbers.

``vlen-utf8`` and ``vlen-bytes`` are codecs of the Zarr v3 registry. The same names, and
``vlen-array``, are object codecs of Zarr v2, with the same bytes as in the numcodecs package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np
from numcodecs.vlen import VLenBytes as _VLenBytes
from numcodecs.vlen import VLenUTF8 as _VLenUTF8

from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.objects.object_arrays import OBJECT, WIDEST, WORD, ObjectSerializer, too_large
from zarr_dask.errors import CorruptObjectError, DataTypeError
from zarr_dask.grid.grid import Shape
from zarr_dask.stores.base import Buffer

__all__ = ["VlenArray", "VlenBytes", "VlenUtf8"]


def _check_frame(name: str, buffer: memoryview, count: int) -> None:
    """Raise if the number of elements is wrong, or there is no space for their lengths."""
    if len(buffer) < WORD:
        raise CorruptObjectError(f"{len(buffer)} bytes are fewer than a {name} header")
    claimed = int.from_bytes(buffer[:WORD], "little")
    if claimed != count:
        raise CorruptObjectError(f"its {name} header says {claimed} elements, not {count}")
    if len(buffer) < WORD * (1 + count):
        raise CorruptObjectError(
            f"{len(buffer)} bytes are too few for the lengths of its {count} {name} elements"
        )


def _check_all_used(name: str, buffer: memoryview, count: int, nbytes: int) -> None:
    used = WORD * (1 + count) + nbytes
    if used != len(buffer):
        raise CorruptObjectError(
            f"its {count} {name} elements take {used} bytes, but it has {len(buffer)}"
        )


def _check_types(name: str, elements: np.ndarray, wanted: type) -> None:
    wrong = {kind for kind in set(map(type, elements.tolist())) if not issubclass(kind, wanted)}
    if wrong:
        found = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise DataTypeError(
            f"{name!r} stores elements of type {wanted.__name__}, but the chunk has {found}."
        )


def _in_order(array: np.ndarray) -> np.ndarray:
    elements = np.ascontiguousarray(array, OBJECT).reshape(-1)
    return elements if elements.flags.writeable else elements.copy()  # required by numcodecs


@dataclass(frozen=True)
class VlenBytes(ObjectSerializer):
    """The number of elements, then the length and the bytes of each."""

    name: ClassVar[str] = "vlen-bytes"
    element: ClassVar[str] = "bytes"

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        elements = _in_order(array)
        _check_types(self.name, elements, bytes)
        return bytes(_VLenBytes().encode(elements))

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG002
        """See `ObjectSerializer.decode_elements`."""
        elements = _split(self.name, buffer, prod(shape))
        _check_all_used(self.name, buffer, elements.size, sum(map(len, elements.tolist())))
        return elements


def _split(name: str, buffer: memoryview, count: int) -> np.ndarray:
    _check_frame(name, buffer, count)
    try:
        return _object_array(_VLenBytes().decode(buffer))
    except ValueError as error:
        raise CorruptObjectError(f"{name} cannot decode it ({error})") from error


def _object_array(elements: Any) -> np.ndarray:
    result: np.ndarray = elements
    return result


@dataclass(frozen=True)
class VlenUtf8(ObjectSerializer):
    """The number of elements, then the length in bytes and the UTF-8 of each."""

    name: ClassVar[str] = "vlen-utf8"
    element: ClassVar[str] = "string"

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        elements = _in_order(array)
        _check_types(self.name, elements, str)
        try:
            return bytes(_VLenUTF8().encode(elements))
        except UnicodeEncodeError as error:
            raise DataTypeError(f"a text of the chunk is not Unicode ({error}).") from error

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:
        """See `ObjectSerializer.decode_elements`."""
        count = prod(shape)
        if len(buffer) * WIDEST > most:
            self._check_width(buffer, count, most)
        _check_frame(self.name, buffer, count)
        try:
            elements = _object_array(_VLenUTF8().decode(buffer))
        except ValueError as error:  # UnicodeDecodeError is one
            raise CorruptObjectError(f"{self.name} cannot decode it ({error})") from error
        texts = elements.tolist()
        nbytes = sum(map(len, texts))
        if WORD * (1 + count) + nbytes != len(buffer):  # some of it is not ASCII
            nbytes = sum(len(text.encode()) for text in texts)
        _check_all_used(self.name, buffer, count, nbytes)
        return elements

    def _check_width(self, buffer: memoryview, count: int, most: int) -> None:
        """Raise if the texts need too much memory: one wide character makes all of a text wide."""
        elements = _split(self.name, buffer, count).tolist()
        nbytes = sum(len(item) * (1 if item.isascii() else WIDEST) for item in elements)
        if nbytes > most:
            raise too_large(self.name, nbytes, most)


@dataclass(frozen=True)
class VlenArray(ObjectSerializer):
    """The number of elements, then the length in bytes and the numbers of each.

    Parameters
    ----------
    dtype
        Type string of the stored numbers; in memory they have native byte order.
    """

    dtype: str
    name: ClassVar[str] = "vlen-array"
    element: ClassVar[str] = "object"

    @classmethod
    def from_numcodecs(
        cls,
        name: str,  # noqa: ARG003
        config: dict[str, Any],
        dtype: str | None,  # noqa: ARG003
    ) -> Codec:
        """See `Codec.from_numcodecs`."""
        stored = config.pop("dtype")
        made = np.dtype(stored) if isinstance(stored, str) else None
        if made is None or made.kind not in "biufcmM":
            raise ValueError(f"dtype is {stored!r}, not the type string of numbers")
        return cls(made.str)

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"dtype": "<i4"}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"dtype": self.dtype}

    @cached_property
    def _stored(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`; None and 0 are arrays without elements."""
        elements = _in_order(array)
        pieces = [elements.size.to_bytes(WORD, "little")]
        for item in elements.tolist():
            numbers = self._numbers(item)
            pieces += (len(numbers).to_bytes(WORD, "little"), numbers)
        return b"".join(pieces)

    def _numbers(self, item: Any) -> bytes:
        if item is None or (type(item) is int and item == 0):  # absent, as in fill values
            return b""
        try:
            numbers = np.asarray(item)
            whole = numbers.dtype.kind in "iu" and self._stored.kind in "iu"
            # an empty list is of floats; whole numbers are compared
            anyway = whole or numbers.size == 0
            cast = numbers.astype(self._stored, casting="unsafe" if anyway else "same_kind")
        except (ValueError, TypeError) as error:
            raise DataTypeError(
                f"{self.name!r} cannot store an element as {self.dtype!r} ({error})."
            ) from error
        if numbers.ndim != 1 or (whole and not np.array_equal(cast, numbers)):
            raise DataTypeError(
                f"{self.name!r} stores 1-d arrays of {self.dtype!r}, but an element of the chunk "
                f"is a {numbers.ndim}-d array of {numbers.dtype.str!r} that is none."
            )
        return cast.tobytes()

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG002
        """See `ObjectSerializer.decode_elements`."""
        pieces = _split(self.name, buffer, prod(shape)).tolist()
        _check_all_used(self.name, buffer, len(pieces), sum(map(len, pieces)))
        native = self._stored.newbyteorder("=")
        elements = np.empty(len(pieces), OBJECT)
        for position, piece in enumerate(pieces):
            if len(piece) % self._stored.itemsize:
                raise CorruptObjectError(
                    f"element {position} has {len(piece)} bytes, no whole number of {self.dtype!r}"
                )
            elements[position] = np.frombuffer(piece, self._stored).astype(native)
        return elements
