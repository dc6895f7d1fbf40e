"""``numpy.datetime64`` and ``numpy.timedelta64``: counts of a unit, from 1970 or between two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask.dtypes.base import DataType
from zarr_dask.dtypes.numbers import integer_from_json

__all__ = ["UNITS", "Time"]

UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")
"""Units by their name in documents, which is NumPy's."""

_NAT = -(1 << 63)


@dataclass(frozen=True)
class Time(DataType):
    """Points in time or differences of them: 64-bit counts of so many of a unit."""

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
        """See `DataType.to_json`; NaT as its count, which every reader takes."""
        return int(value.view("i8"))

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`; whatever NumPy makes a time of, integers are counts."""
        same = self.same(value)
        if same is not None:
            return same
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return self._of(int(value))
        result = np.array(value, self.dtype)
        if result.ndim:
            raise TypeError(f"an array of shape {result.shape} is not a scalar")
        return result

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`."""
        array = super().cast(values)
        if array.dtype.str != self.dtype.str:  # NumPy takes types without a unit for the same
            array = array.view(f"{array.dtype.str[0]}i8").astype("i8").view(self.dtype)
        return array

    def _of(self, count: int) -> np.ndarray:
        if not _NAT <= count < -_NAT:
            raise OverflowError(f"{count} is outside the range of 64-bit counts")
        return np.array(count, "i8").view(self.dtype)
