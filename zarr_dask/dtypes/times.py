"""``numpy.datetime64`` and ``numpy.timedelta64``: counts of a unit, from 1970 or between times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np

from zarr_dask.dtypes.base import DataType
from zarr_dask.dtypes.numbers import integer_from_json

__all__ = ["UNITS", "Time"]

UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")
"""Units by their name in metadata, which is NumPy's."""

_NAT = -(1 << 63)

_WITH_OWN_UNIT = (str, bytes, date, timedelta)
"""Python types with a unit of their own; datetimes are dates."""


@dataclass(frozen=True)
class Time(DataType):
    """Points in time or differences of them: 64-bit counts of a multiple of a unit."""

    @property
    def default_fill(self) -> np.ndarray:
        """See `DataType.default_fill`: a time that was not written is none, and not 1970."""
        return np.full((), np.iinfo("i8").min, "i8").view(self.dtype)  # also without a unit

    @property
    def label(self) -> str:
        """See `DataType.label`."""
        return self.dtype.name

    def document(self) -> dict[str, Any]:
        """See `DataType.document`."""
        unit, count = np.datetime_data(self.dtype)
        return self.described(unit=unit, scale_factor=count)

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: the count, or ``"NaT"``, which is the count -2**63."""
        if value == "NaT":
            return self._of(_NAT)
        if isinstance(value, str):
            raise ValueError(f"{value!r} is neither an integer nor 'NaT'")
        return self._of(integer_from_json(value))

    def to_json(self, value: np.ndarray) -> int:
        """See `DataType.to_json`; NaT is written as its count, which every reader accepts."""
        return int(value.view("i8"))

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`; integers are counts, times of other units must fit exactly."""
        same = self.same(value)
        if same is not None:
            return same
        if hasattr(value, "__array__"):
            array = np.asarray(value)
            if array.ndim:
                raise TypeError(f"an array of shape {array.shape} is not a scalar")
            value = array[()]
        if isinstance(value, np.datetime64 | np.timedelta64):  # NumPy regards these as integers
            return self._exact(np.asarray(value))
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return self._of(int(value))
        if value is None or isinstance(value, _WITH_OWN_UNIT):
            return self._exact(self._parsed(value))
        raise TypeError(f"{value!r} is neither a time nor a count")

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`; counts that would wrap around raise, whatever their form."""
        if hasattr(values, "__array__"):
            array = np.asarray(values)
            if array.dtype.kind in "OSTU":
                return self._each(array.ravel().tolist(), array.shape)
            return self._converted(array)
        if isinstance(values, _WITH_OWN_UNIT):
            unit, _ = np.datetime_data(self.dtype)
            return self._converted(self._parsed(values, f"[{unit}]"))
        if isinstance(values, Sequence):
            return self._listed(values)
        return super().cast(values)

    def _listed(self, values: Sequence[Any]) -> np.ndarray:
        """Cast a list item by item: NumPy would wrap around if it finds a unit for all of them."""
        if all(type(value) is int for value in values):
            return np.asarray(values, self.dtype)
        return np.stack([self.cast(value) for value in values])

    def _each(self, values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Return objects or texts as an array of a shape."""
        result = np.empty(len(values), self.dtype)
        for index, value in enumerate(values):
            result[index] = self.cast(value)
        return result.reshape(shape)

    def _parsed(self, value: Any, unit: str = "") -> np.ndarray:
        """Return a Python time in a unit, such as ``"[s]"``; by default in its own unit."""
        kind = self.dtype.kind
        if not isinstance(value, str | bytes):
            return np.array(value, f"{kind}8")
        text = value.decode("ascii") if isinstance(value, bytes) else value
        if text.lower() in ("", "nat"):
            return self._of(_NAT)
        return _point(text, f"M8{unit}") if kind == "M" else self._of(int(text))

    def _exact(self, time: np.ndarray) -> np.ndarray:
        """Return a time of any unit in the unit of this type.

        Raises
        ------
        ValueError
            If it is of the other type, or between two counts.
        OverflowError
            If it is outside the range.
        """
        if not np.can_cast(time.dtype, self.dtype, "same_kind"):
            raise ValueError(f"{time.dtype} cannot be turned into {self.dtype}")
        if np.isnat(time):
            return self._of(_NAT)
        if np.datetime_data(time.dtype)[0] == "generic":
            return self._of(int(time.view("i8")))
        result = time.astype(self.dtype)
        if result.dtype != self.dtype or result.astype(time.dtype) != time:
            raise ValueError(f"{time} ({time.dtype}) is not a whole count of {self.dtype}")
        return result

    def _converted(self, array: np.ndarray) -> np.ndarray:
        """Return an array cast by NumPy; before 2.5 it does not check the range between times."""
        given, array = array, array.astype(self.dtype, copy=False)
        if _is_exact(given.dtype, self.dtype):
            back = array.astype(given.dtype)
            if not np.array_equal(back.view("i8"), given.view("i8")):
                raise OverflowError(f"a {given.dtype} is outside the range of {self.dtype}")
        if array.dtype.str != self.dtype.str:  # NumPy treats types without a unit as equal
            array = array.view(f"{array.dtype.str[0]}i8").astype("i8").view(self.dtype)
        return array

    def _of(self, count: int) -> np.ndarray:
        if not _NAT <= count < -_NAT:
            raise OverflowError(f"{count} is outside the range of 64-bit counts")
        return np.array(count, "i8").view(self.dtype)


def _is_exact(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """True if the unit of times is finer than that of given times, and divides it."""
    if given.kind != dtype.kind:
        return False
    unit, (finer, count) = np.datetime_data(given)[0], np.datetime_data(dtype)
    known = unit in UNITS and finer in UNITS[:-1]
    return known and count == 1 and UNITS.index(unit) < UNITS.index(finer)


def _point(text: str, dtype: str) -> np.ndarray:
    """Return a point in time from a text, which NumPy parses without checking the unit's range.

    Raises
    ------
    ValueError
        If it is not one.
    OverflowError
        If the unit cannot hold it.
    """
    point = np.array(text, dtype)
    unit, _ = np.datetime_data(point.dtype)
    checked = point
    for coarser in ("ms", "s", "Y"):  # none wraps around within the next, and years never do
        if UNITS.index(coarser) <= UNITS.index(unit):
            whole = np.array(text, f"M8[{coarser}]")
            if checked.astype(whole.dtype) != whole:
                raise OverflowError(f"{text!r} is outside the range of {point.dtype}")
            checked = whole
    return point
