"""What a data type is: `DataType`, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LARGEST_ITEM", "VARIABLE_BYTES", "DataType"]

VARIABLE_BYTES = 1 << 27
"""Encoded bytes of one chunk at most, for types whose elements have no fixed size."""

LARGEST_ITEM = 1 << 22
"""Bytes of one element at most, where elements have a fixed size."""


_TYPICAL_BYTES = 64
"""A short text of Python, and the reference to it."""


@dataclass(frozen=True)
class DataType(ABC):
    """What an element is: its name, the NumPy type that holds it in memory, its JSON form.

    Several data types may be held by one NumPy type (texts and byte strings by ``object``), so
    that the name is needed to tell them apart.
    """

    name: str
    """As in the registry of data types of Zarr v3, without configuration."""
    dtype: np.dtype[Any]
    """In native byte order, fields included; ``object`` where elements have no fixed size."""

    @property
    def variable(self) -> bool:
        """Whether elements have no fixed size."""
        return self.dtype.hasobject

    @property
    def itemsize(self) -> int:
        """Bytes of an element as it is stored; 1 where they differ."""
        return 1 if self.variable else self.dtype.itemsize

    @property
    def typical_itemsize(self) -> int:
        """Bytes of an element in memory; a guess where elements have no fixed size."""
        return _TYPICAL_BYTES if self.variable else self.dtype.itemsize

    @property
    def label(self) -> str:
        """How the type is called in messages, with its size or unit where it has one."""
        return self.name

    @property
    def zero(self) -> np.ndarray:
        """The value of elements that have no other: a 0-d array of NumPy's zero.

        Raises
        ------
        ValueError
            If the data type has no zero.
        """
        return np.zeros((), self.dtype)

    def unwritten(self, fill: np.ndarray | None) -> np.ndarray:
        """The value of elements that were never written: the fill value, zero if there is none."""
        return self.zero if fill is None else fill

    def document(self) -> str | dict[str, Any]:
        """The data type as it stands in a Zarr v3 document.

        Raises
        ------
        ValueError
            If Zarr v3 has no such data type.
        """
        return self.name

    @abstractmethod
    def from_json(self, value: Any) -> np.ndarray:
        """A 0-d array from the JSON form of a scalar (its "fill value" in the specifications).

        Raises
        ------
        ValueError, TypeError, OverflowError
            If it is no value of this data type.
        """

    @abstractmethod
    def to_json(self, value: np.ndarray) -> Any:
        """The JSON form of a 0-d array, from which `from_json` makes the same bits.

        Raises
        ------
        ValueError
            If JSON cannot say it.
        """

    @abstractmethod
    def scalar(self, value: Any) -> np.ndarray:
        """A 0-d array from a Python or NumPy value, with every bit kept.

        Raises
        ------
        ValueError, TypeError, OverflowError
            If it is no value of this data type.
        """

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """Whether every value of a NumPy type is one of this data type."""
        return np.can_cast(dtype, self.dtype, "safe")

    def cast(self, values: Any) -> np.ndarray:
        """Values as an array of this data type, as NumPy casts on assignment.

        Raises
        ------
        ValueError, TypeError, OverflowError
            If they cannot be cast.
        """
        if hasattr(values, "__array__"):
            return np.asarray(values).astype(self.dtype, copy=False)
        return np.asarray(values, self.dtype)

    def same(self, value: Any) -> np.ndarray | None:
        """A 0-d array of a NumPy value that has this data type already; None for others."""
        if isinstance(value, np.ndarray | np.generic) and value.dtype == self.dtype:
            if value.ndim:
                raise TypeError(f"an array of shape {value.shape} is not a scalar")
            result = np.empty((), self.dtype)
            result[...] = value
            return result
        return None

    def described(self, **configuration: Any) -> dict[str, Any]:
        """A document with a configuration."""
        return {"name": self.name, "configuration": configuration}
