"""Texts and bytes of a fixed length.

``fixed_length_utf32`` (NumPy's ``U``), ``null_terminated_bytes`` (``S``), and uninterpreted
bytes (``V``), which are ``r<bits>`` in the core specification and ``raw_bytes`` elsewhere.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask.dtypes.base import DataType

__all__ = ["NullTerminatedBytes", "RawBytes", "Utf32", "base64_of", "bytes_from_json"]


def base64_of(value: bytes) -> str:
    """Return bytes as base64 of the standard alphabet."""
    return base64.b64encode(value).decode("ascii")


def bytes_from_json(value: Any) -> bytes:
    """Return bytes from base64 or a list of integers.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if isinstance(value, str):
        try:
            return base64.b64decode(value.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ValueError(f"{value[:60]!r} is not base64 ({error})") from error
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 256 for item in value):
        return bytes(value)
    raise ValueError(f"{str(value)[:60]} is neither base64 nor a list of integers from 0 to 255")


@dataclass(frozen=True)
class Utf32(DataType):
    """Texts of a limited number of code points, padded with zeros."""

    @property
    def label(self) -> str:
        """See `DataType.label`."""
        return f"{self.name} ({self.length} code points)"

    @property
    def length(self) -> int:
        """Largest number of code points."""
        return self.dtype.itemsize // 4

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """See `DataType.holds`; numbers do not count, although NumPy would convert them."""
        return dtype.kind == "U" and super().holds(dtype)

    def document(self) -> dict[str, Any]:
        """See `DataType.document`."""
        return self.described(length_bytes=self.dtype.itemsize)

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: a text."""
        return self.scalar(value)

    def to_json(self, value: np.ndarray) -> str:
        """See `DataType.to_json`."""
        return str(value[()])

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`."""
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value[()]
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not a text")
        if len(value) > self.length:
            raise ValueError(f"{value[:60]!r} has {len(value)} code points, not {self.length}")
        return np.array(str(value), self.dtype)


@dataclass(frozen=True)
class NullTerminatedBytes(DataType):
    """Byte strings of a limited number of bytes, padded with zeros."""

    @property
    def label(self) -> str:
        """See `DataType.label`."""
        return f"{self.name} ({self.dtype.itemsize} bytes)"

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """See `DataType.holds`."""
        return dtype.kind == "S" and super().holds(dtype)

    def document(self) -> dict[str, Any]:
        """See `DataType.document`."""
        return self.described(length_bytes=self.dtype.itemsize)

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: base64, or a list of integers."""
        return self.scalar(bytes_from_json(value))

    def to_json(self, value: np.ndarray) -> str:
        """See `DataType.to_json`."""
        return base64_of(bytes(value[()]))

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`."""
        return _fitting(value, self.dtype)


@dataclass(frozen=True)
class RawBytes(DataType):
    """Uninterpreted bytes, of a fixed number."""

    @property
    def label(self) -> str:
        """See `DataType.label`."""
        return f"{self.name} ({self.dtype.itemsize} bytes)"

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """See `DataType.holds`: only uninterpreted bytes of the same number."""
        return dtype == self.dtype

    def document(self) -> str | dict[str, Any]:
        """See `DataType.document`; of two spellings the one that was read."""
        if self._is_core:
            return self.name
        return self.described(length_bytes=self.dtype.itemsize)

    @property
    def _is_core(self) -> bool:
        return self.name != "raw_bytes"

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: base64, or a list of integers, of all bytes."""
        found = bytes_from_json(value)
        if len(found) != self.dtype.itemsize:
            raise ValueError(f"{len(found)} bytes where {self.label} has {self.dtype.itemsize}")
        return self.scalar(found)

    def to_json(self, value: np.ndarray) -> str | list[int]:
        """See `DataType.to_json`: a list of integers for the core type, base64 otherwise."""
        found = value.tobytes()
        return list(found) if self._is_core else base64_of(found)

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`."""
        same = self.same(value)
        return _fitting(value, self.dtype) if same is None else same


def _fitting(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return bytes no longer than an element, padded with zeros."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, np.void):
        value = value.tobytes()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{value!r} is not a byte string")
    found = bytes(value)
    if len(found) > dtype.itemsize:
        raise ValueError(f"{found[:60]!r} has {len(found)} bytes, not {dtype.itemsize}")
    return np.frombuffer(found.ljust(dtype.itemsize, b"\0"), dtype).reshape(()).copy()
