"""The base class of data types: `DataType`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np

from zarr_dask._util.json_fields import FieldReader

__all__ = ["LARGEST_ITEM", "VARIABLE_BYTES", "Casting", "DataType", "DefaultFill"]

Casting = Literal["safe", "same_kind", "unsafe"]
"""Casts that are allowed when values are written to an array, in NumPy's words."""

VARIABLE_BYTES = 1 << 27
"""Most encoded bytes of one chunk, for types whose elements have no fixed size."""

LARGEST_ITEM = 1 << 22
"""Most bytes of one element, for types whose elements have a fixed size."""


_TYPICAL_BYTES = 64
"""Bytes of a short Python text, and the reference to it."""


class DefaultFill(Enum):
    """The value of `fill_value` if none is given; None and 0 have meanings of their own."""

    OF_DTYPE = "the default of the data type"

    def __repr__(self) -> str:
        """Return what signatures in the help show."""
        return f"<{self.value}>"


@dataclass(frozen=True)
class DataType(ABC):
    """The description of an element: its name, its NumPy type in memory, its JSON form.

    Several data types may have the same NumPy type (texts and byte strings have ``object``), so the
    name is needed to distinguish them.
    """

    name: str
    """As in the registry of data types of Zarr v3, without configuration."""
    dtype: np.dtype[Any]
    """In native byte order, fields included; ``object`` if elements have no fixed size."""

    @classmethod
    def from_config(cls, name: str, config: FieldReader) -> DataType | None:
        """Return the type of a name and a configuration; note problems in `config`, return None.

        Types of other packages define it; by default there is no such type.
        """
        config.blame("", name, "a data type that can be made from metadata", "data_type")
        return None

    @property
    def variable(self) -> bool:
        """True if elements have no fixed size."""
        return self.dtype.hasobject

    @property
    def itemsize(self) -> int:
        """Bytes of a stored element; 1 if their sizes vary."""
        return 1 if self.variable else self.dtype.itemsize

    @property
    def typical_itemsize(self) -> int:
        """Bytes of an element in memory; an estimate if elements have no fixed size."""
        return _TYPICAL_BYTES if self.variable else self.dtype.itemsize

    @property
    def label(self) -> str:
        """The name of the type in messages, with its size or unit if it has one."""
        return self.name

    @property
    def zero(self) -> np.ndarray:
        """The default value of elements: a 0-d array of NumPy's zero.

        Raises
        ------
        ValueError
            If the data type has no zero.
        """
        return np.zeros((), self.dtype)

    @property
    def default_fill(self) -> np.ndarray:
        """The fill value of a new array for which none is given: zero, or NaT for times.

        Raises
        ------
        ValueError
            If the data type has no zero.
        """
        return self.zero

    def fill_or_zero(self, fill: np.ndarray | None) -> np.ndarray:
        """Return the value of elements that were never written: the fill value, or else zero."""
        return self.zero if fill is None else fill

    def document(self) -> str | dict[str, Any]:
        """Return the data type as in Zarr v3 metadata.

        Raises
        ------
        ValueError
            If Zarr v3 has no such data type.
        """
        return self.name

    @abstractmethod
    def from_json(self, value: Any) -> np.ndarray:
        """Return a 0-d array from the JSON form of a scalar ("fill value" in the specifications).

        Raises
        ------
        ValueError, TypeError, OverflowError
            If it is not a value of this data type.
        """

    @abstractmethod
    def to_json(self, value: np.ndarray) -> Any:
        """Return the JSON form of a 0-d array, from which `from_json` restores the same bits.

        Raises
        ------
        ValueError
            If JSON cannot express it.
        """

    @abstractmethod
    def scalar(self, value: Any) -> np.ndarray:
        """Return a 0-d array of a Python or NumPy value, with every bit kept.

        Raises
        ------
        ValueError, TypeError, OverflowError
            If it is not a value of this data type.
        """

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """True if every value of a NumPy type is also one of this data type."""
        return np.can_cast(dtype, self.dtype, "safe")

    def accepts(self, dtype: np.dtype[Any], casting: Casting = "safe") -> bool:
        """True if values of a NumPy type may be cast to this data type."""
        return self.holds(dtype) or (
            casting != "safe" and bool(np.can_cast(dtype, self.dtype, casting))
        )

    def cast(self, values: Any) -> np.ndarray:
        """Return values as an array of this data type, cast as NumPy does on assignment.

        Raises
        ------
        ValueError, TypeError, OverflowError
            If they cannot be cast.
        """
        if hasattr(values, "__array__"):
            return np.asarray(values).astype(self.dtype, copy=False)
        return np.asarray(values, self.dtype)

    def same(self, value: Any) -> np.ndarray | None:
        """Return a 0-d array of a NumPy value that already has this data type; None for others."""
        if isinstance(value, np.ndarray | np.generic) and value.dtype == self.dtype:
            if value.ndim:
                raise TypeError(f"an array of shape {value.shape} is not a scalar")
            result = np.empty((), self.dtype)
            result[...] = value
            return result
        return None

    def described(self, **configuration: Any) -> dict[str, Any]:
        """Return metadata with a configuration."""
        return {"name": self.name, "configuration": configuration}
