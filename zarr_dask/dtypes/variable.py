"""Elements without a fixed size, held as Python objects: ``string``, ``bytes``, ``object``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask.dtypes.base import DataType
from zarr_dask.dtypes.fixed import base64_of, bytes_from_json

__all__ = ["BYTES", "OBJECTS", "TEXTS", "data_type_of_objects"]


def _boxed(value: Any) -> np.ndarray:
    """Return a 0-d array that holds one object, even if that is a sequence."""
    result = np.empty((), object)
    result[()] = value
    return result


def _unboxed(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


@dataclass(frozen=True)
class VariableLengthUTF8(DataType):
    """``string``: texts of any length."""

    @property
    def zero(self) -> np.ndarray:
        """See `DataType.zero`: the empty text."""
        return _boxed("")

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: a text."""
        return self.scalar(value)

    def to_json(self, value: np.ndarray) -> str:
        """See `DataType.to_json`."""
        return str(value[()])

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`."""
        text = _unboxed(value)
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a text")
        return _boxed(str(text))

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """See `DataType.holds`; objects are only checked in `cast`."""
        return dtype.kind in "UTO"

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`; every element must be a text."""
        return _all_of(values, str, "a text")


@dataclass(frozen=True)
class ByteStrings(DataType):
    """``bytes``: byte strings of any length."""

    @property
    def zero(self) -> np.ndarray:
        """See `DataType.zero`: the empty byte string."""
        return _boxed(b"")

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: base64, or a list of integers."""
        return _boxed(bytes_from_json(value))

    def to_json(self, value: np.ndarray) -> str:
        """See `DataType.to_json`: base64."""
        return base64_of(bytes(value[()]))

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`."""
        found = _unboxed(value)
        if not isinstance(found, bytes | bytearray | memoryview):
            raise TypeError(f"{found!r} is not a byte string")
        return _boxed(bytes(found))

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """See `DataType.holds`; objects are only checked in `cast`."""
        return dtype.kind in "SO"

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`; every element must be a byte string."""
        return _all_of(values, bytes, "a byte string")


@dataclass(frozen=True)
class Objects(DataType):
    """``object``: Python objects, which are encoded by codecs of v2 arrays."""

    def document(self) -> str:
        """See `DataType.document`; Zarr v3 has no such type."""
        raise ValueError("Zarr v3 has no arrays of Python objects; use 'string' or 'bytes'")

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: any JSON value."""
        return _boxed(value)

    def to_json(self, value: np.ndarray) -> Any:
        """See `DataType.to_json`: the object, if it is a JSON value."""
        try:
            json.dumps(value[()])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{value[()]!r} is not a JSON value ({error})") from error
        return value[()]

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`: any object."""
        return _boxed(_unboxed(value))


def data_type_of_objects(values: np.ndarray) -> DataType:
    """Return the data type for an array of objects: ``string`` or ``bytes``, ``string`` if empty.

    Raises
    ------
    TypeError
        If its elements are neither all texts nor all byte strings.
    """
    first = next(iter(values.flat), "")
    data_type: DataType = BYTES if isinstance(first, bytes) else TEXTS
    data_type.cast(values)
    return data_type


TEXTS = VariableLengthUTF8("string", np.dtype(object))
BYTES = ByteStrings("bytes", np.dtype(object))
OBJECTS = Objects("object", np.dtype(object))


def _all_of(values: Any, kind: type, what: str) -> np.ndarray:
    """Return an array of objects, all of one type.

    Raises
    ------
    TypeError
        If one is of another type.
    """
    array = np.asarray(values) if hasattr(values, "__array__") else np.asarray(values, object)
    objects = array.astype(object, copy=False)
    for position, item in enumerate(objects.flat):
        if not isinstance(item, kind):
            shown = f"{str(item)[:60]!r} ({type(item).__name__})"
            raise TypeError(f"element {position} is {shown}, not {what}")
    return objects
