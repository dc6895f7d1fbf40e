"""Values that an encoding cannot hold: kinds without a meaning there, and numbers out of range.

xarray casts to the encoded type without a look: numbers beyond its range come back as others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from xarray import conventions

from zarr_dask.errors import DatasetMismatchError

__all__ = [
    "check_kinds",
    "in_calendar",
    "in_range",
    "texts_in_length",
    "times_in_range",
    "whole_numbers",
]

_NUMBERS, _TIMES, _TEXTS = "iufc", "mM", "UST"


def check_kinds(name: str, given: xr.Variable, stored: xr.Variable) -> None:
    """Refuse values of another kind than that of a stored variable.

    Parameters
    ----------
    name
        Name of the variable.
    given, stored
        What is to be written, and what is there, both decoded.

    Raises
    ------
    DatasetMismatchError
        If a part of their meaning would be lost.
    """
    new, old = given.dtype.kind, stored.dtype.kind
    is_lost = (
        (new == "c" and old in "biuf")
        or (new in _TIMES and old in "biufc" and "units" not in stored.attrs)
        or (new in _NUMBERS and old in f"b{_TIMES}{_TEXTS}O")
        or (new in _TEXTS and old in f"b{_NUMBERS}{_TIMES}")
    )
    if is_lost:
        raise DatasetMismatchError(
            f"Mismatched dtypes for variable {name!r}: it is stored as {stored.dtype}, and "
            f"{given.dtype} would lose its meaning there. Convert it with astype, write it under "
            "another name, or pass casting='unsafe'."
        )


def whole_numbers(name: str, given: xr.Variable, stored: xr.Variable) -> xr.Variable:
    """Return values that are checked for fractions if those that are stored are plain integers.

    xarray rounds them, also where masks make floats of the integers that are read. Values in memory
    are checked now, blocks of dask when they are computed.

    Raises
    ------
    DatasetMismatchError
        If a number in memory has a fraction.
    """
    packed = any(stored.encoding.get(key) is not None for key in ("scale_factor", "add_offset"))
    held = np.dtype(stored.encoding.get("dtype", stored.dtype))
    if given.dtype.kind != "f" or held.kind not in "iu" or packed:
        return given
    return _checked(given, _Whole(name, held).check)


@dataclass(frozen=True)
class _Whole:
    """Type of integers that numbers are stored as."""

    name: str
    held: np.dtype[Any]

    def check(self, values: np.ndarray) -> np.ndarray:
        """Return values if all of them are whole; infinite and missing ones are not looked at."""
        parted = values[np.isfinite(values) & (values != np.rint(values))]
        if parted.size:
            raise DatasetMismatchError(
                f"variable {self.name!r} is stored as {self.held}, and its new values have "
                f"fractions, such as {parted[0]}, which would be rounded. Round them (round), "
                "write all of it anew (mode='w'), or pass casting='unsafe'."
            )
        return values


def _checked(variable: xr.Variable, check: Callable[[np.ndarray], np.ndarray]) -> xr.Variable:
    """Check values in memory now, and blocks of dask when they are computed."""
    if variable.chunks is None:
        check(variable.to_numpy())
        return variable
    data: Any = variable.data
    if not hasattr(data, "map_blocks"):
        return variable
    meta = np.empty((0,) * data.ndim, data.dtype)
    return variable.copy(deep=False, data=data.map_blocks(check, dtype=data.dtype, meta=meta))


def in_range(name: str, variable: xr.Variable) -> xr.Variable:
    """Return a variable whose values are checked against the range of its encoding.

    Values in memory are checked now, blocks of dask when they are computed.

    Raises
    ------
    DatasetMismatchError
        If a value in memory is out of range, or missing where nothing can say so.
    """
    bounds = _bounds(name, variable.dtype, variable.encoding)
    if bounds is None or not variable.size:
        return variable
    return _checked(variable, bounds.check)


@dataclass(frozen=True)
class _CodeRange:
    """Range of numbers that have a code in the encoding of a variable."""

    name: str
    encoded: str
    low: float
    high: float
    takes_missing: bool
    factor: float = 1
    start: float = 0
    masks: tuple[int, ...] = ()
    """Codes of packed values that stand for missing ones."""

    def check(self, values: np.ndarray) -> np.ndarray:
        """Return values if all of them are in range."""
        if not values.size:
            return values
        low, high = values.min(), values.max()
        if np.isnan(low):
            if not self.takes_missing:
                raise DatasetMismatchError(
                    f"variable {self.name!r} has missing values (NaN), for which {self.encoded} "
                    "has no code: its encoding has no _FillValue. Fill them (fillna), or write it "
                    "with another encoding."
                )
            present = values[~np.isnan(values)]
            low, high = (present.min(), present.max()) if present.size else (self.low, self.low)
        if low < self.low or not high <= self.high:
            raise DatasetMismatchError(
                f"variable {self.name!r} has values from {low} to {high}; its encoding "
                f"({self.encoded}) holds {self.low:g} to {self.high:g}, and others would come back "
                "as other numbers. Clip them, or write it with another encoding."
            )
        for mask in self.masks:
            at, half = self.factor * mask + self.start, abs(self.factor) / 2
            if low <= at + half and high >= at - half:  # most packings have their mask outside
                self._check_unmasked(values, mask)
        return values

    def _check_unmasked(self, values: np.ndarray, mask: int) -> None:
        masked = values[np.rint((values - self.start) / self.factor) == mask]
        if masked.size:
            raise DatasetMismatchError(
                f"variable {self.name!r} has the value {masked[0]}, which its encoding "
                f"({self.encoded}) stores as {mask}, its mark of missing values: it would come "
                "back as NaN. Choose another _FillValue, or another scale_factor or add_offset."
            )


def texts_in_length(name: str, variable: xr.Variable) -> xr.Variable:
    """Return texts whose lengths are checked against the fixed one of their encoding.

    xarray cuts off their ends. Values in memory are checked now, blocks when they are computed.

    Raises
    ------
    DatasetMismatchError
        If a text in memory is too long.
    """
    try:
        held = np.dtype(variable.encoding["dtype"])
    except (KeyError, TypeError):
        return variable
    if held.kind != "U" or not held.itemsize or variable.dtype.kind not in "UTO":
        return variable
    return _checked(variable, _Length(name, held).check)


@dataclass(frozen=True)
class _Length:
    """Type of fixed length that texts are stored as."""

    name: str
    held: np.dtype[Any]

    def check(self, texts: np.ndarray) -> np.ndarray:
        """Return texts if all of them fit."""
        longest = max((len(text) for text in texts.flat if isinstance(text, str)), default=0)
        if longest > self.held.itemsize // 4:
            raise DatasetMismatchError(
                f"Mismatched dtypes for variable {self.name!r}: its encoding is {self.held}, which "
                f"is too short for texts of {longest} characters, whose ends would be cut off. "
                "Write it anew as texts of any length: as an array of objects, with no dtype in "
                "its encoding."
            )
        return texts


def in_calendar(name: str, variable: xr.Variable) -> xr.Variable:
    """Return times whose blocks are checked for those that xarray cannot encode in a calendar.

    It encodes a block without a single time in no calendar but that of NumPy.

    Raises
    ------
    DatasetMismatchError
        If all times in memory are missing, or blocks of times have another calendar, but no units.
    """
    calendar = variable.encoding.get("calendar", _OF_NUMPY)
    if variable.dtype.kind != "M" or calendar == _OF_NUMPY or not variable.size:
        return variable
    is_lazy = variable.chunks is not None
    if is_lazy and calendar not in _GREGORIAN and "units" not in variable.encoding:
        raise DatasetMismatchError(
            f"the encoding of {name!r} has the calendar {calendar!r} and no units, and xarray "
            "finds none for blocks of dask in this calendar. Give units and dtype, as "
            "encoding={'units': 'seconds since 2000-01-01', 'dtype': 'int64'}."
        )
    return _checked(variable, _Calendar(name, str(calendar)).check)


_OF_NUMPY = "proleptic_gregorian"
_GREGORIAN = {_OF_NUMPY, "gregorian", "standard"}


@dataclass(frozen=True)
class _Calendar:
    """Calendar that times are stored in."""

    name: str
    calendar: str

    def check(self, times: np.ndarray) -> np.ndarray:
        """Return times if one of them at least is there."""
        if times.size and np.isnat(times).all():
            raise DatasetMismatchError(
                f"the variable {self.name!r} has nothing but NaT in a block, which xarray cannot "
                f"encode in the calendar {self.calendar!r}. Write it with "
                f"encoding={{'calendar': {_OF_NUMPY!r}}}, or in larger blocks."
            )
        return times


def times_in_range(name: str, original: xr.Variable, encoded: xr.Variable) -> xr.Variable:
    """Return encoded times whose numbers are checked against the range of their type.

    xarray makes blocks of 64 bits and says that they are of the encoded type.

    Raises
    ------
    DatasetMismatchError
        If a time in memory is out of range.
    """
    of_times = original.dtype.kind in "mMO" and "units" in encoded.attrs
    if not of_times or encoded.dtype.kind not in "iu" or not encoded.size:
        return encoded
    codes = _TimeCodes(name, encoded.dtype, str(encoded.attrs["units"]))
    data: Any = encoded.data
    if encoded.chunks is None:
        if encoded.dtype.itemsize < 8:
            wide = original.copy(deep=False)
            wide.encoding = {**original.encoding, "dtype": np.dtype("i8")}
            codes.cast(conventions.encode_cf_variable(wide, name=name).to_numpy())
    elif hasattr(data, "map_blocks"):
        meta = np.empty((0,) * data.ndim, data.dtype)
        cast = data.map_blocks(codes.cast, dtype=data.dtype, meta=meta)
        return encoded.copy(deep=False, data=cast)
    return encoded


@dataclass(frozen=True)
class _TimeCodes:
    """Type of the numbers that times are stored as."""

    name: str
    dtype: np.dtype[Any]
    units: str

    def cast(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers in this type if all of them are in its range."""
        if not numbers.size or numbers.dtype == self.dtype:
            return numbers
        low, high, limits = numbers.min(), numbers.max(), np.iinfo(self.dtype)
        if not (low >= limits.min and high <= limits.max):  # NaN is not in range, either
            raise DatasetMismatchError(
                f"the times of {self.name!r} are numbers from {low} to {high} in its encoding "
                f"({self.units}), whose type {self.dtype} holds {limits.min} to {limits.max}. "
                "Write it with another dtype or other units in its encoding, and NaT with a "
                "_FillValue."
            )
        return numbers.astype(self.dtype)


def _bounds(name: str, dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> _CodeRange | None:
    """Return what to check, or None if every value has a code."""
    try:
        code = np.dtype(encoding["dtype"])
    except (KeyError, TypeError):
        return None
    if code.kind not in "iu" or dtype.kind not in "iuf":
        return None
    unsigned = str(encoding.get("_Unsigned", "")).lower()
    if unsigned in {"true", "false"}:
        code = np.dtype(f"{'u' if unsigned == 'true' else 'i'}{code.itemsize}")
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    is_plain = scale is None and offset is None
    if is_plain and np.can_cast(dtype, code):
        return None
    limits = np.iinfo(code)
    encoded = f"{code}" if is_plain else f"{code}, scale_factor={scale}, add_offset={offset}"
    missing = any(encoding.get(key) is not None for key in ("_FillValue", "missing_value"))
    if is_plain and dtype.kind in "iu":
        return _CodeRange(name, encoded, limits.min, limits.max, missing)
    try:
        factor, start = float(1 if scale is None else scale), float(0 if offset is None else offset)
    except (TypeError, ValueError):
        return None
    # codes are rounded; beyond 2**53 the next smaller number is the last that has one
    top = np.nextafter(limits.max + 0.5, 0)
    low, high = sorted((factor * (limits.min - 0.5) + start, factor * top + start))
    masks = () if is_plain or not factor else _mask_codes(encoding, code)
    return _CodeRange(name, encoded, low, high, missing, factor, start, masks)


def _mask_codes(encoding: Mapping[str, Any], code: np.dtype[Any]) -> tuple[int, ...]:
    """Return the codes that stand for missing values, some of which are of the other sign."""
    given = (np.asarray(encoding.get(key)) for key in ("_FillValue", "missing_value"))
    numbers = [mask.item() for mask in given if mask.ndim == 0 and mask.dtype.kind in "iuf"]
    bits = {int(one) % (1 << 8 * code.itemsize) for one in numbers if float(one).is_integer()}
    return tuple(int(np.array(one, f"u{code.itemsize}").view(code)) for one in bits)
