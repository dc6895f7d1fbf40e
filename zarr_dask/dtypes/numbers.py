"""Numbers: bool, integers, floats and complex numbers, including those of ml_dtypes.

The JSON forms of floats are shared by all formats: a number, ``"NaN"``, ``"Infinity"``,
``"-Infinity"``, or the bits in hexadecimal, which is the only form of an unusual NaN.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from zarr_dask.dtypes.base import DataType
from zarr_dask.dtypes.bits import FLOAT_FORMATS, SMALL_INTEGERS, parts_of_complex

__all__ = [
    "Bool",
    "Complex",
    "Float",
    "Integer",
    "complex_of",
    "float_from_json",
    "float_to_json",
    "integer_from_json",
    "parts_of",
]


@dataclass(frozen=True)
class Bool(DataType):
    """``bool``: true or false, one byte."""

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`; numbers are not accepted."""
        if not isinstance(value, bool):
            raise TypeError(f"{value!r} is neither true nor false")
        return np.array(value, self.dtype)

    def to_json(self, value: np.ndarray) -> bool:
        """See `DataType.to_json`."""
        return bool(value)

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`; 0 and 1 are accepted."""
        _refuse_times(value)
        if isinstance(value, np.ndarray | np.generic) and not value.ndim:
            value = value.item()
        if not isinstance(value, int) or value not in (0, 1):
            raise ValueError(f"{value!r} is not a bool")
        return np.array(bool(value), self.dtype)


@dataclass(frozen=True)
class Integer(DataType):
    """Integers of 2 to 64 bits, with or without sign."""

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        bits = SMALL_INTEGERS.get(self.name, 8 * self.dtype.itemsize)
        if self.name.startswith("u"):
            return 0, (1 << bits) - 1
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`; 1.0 is read as 1, a fraction is refused."""
        return self._of(integer_from_json(value))

    def to_json(self, value: np.ndarray) -> int:
        """See `DataType.to_json`."""
        return int(value)

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`."""
        same = self.same(value)
        return self._of(_integer(value)) if same is None else same

    def _of(self, number: int) -> np.ndarray:
        least, greatest = self.limits
        if not least <= number <= greatest:
            raise OverflowError(f"{number} is outside the range of {self.name}")
        return np.array(number).astype(self.dtype) if self._small else np.array(number, self.dtype)

    @property
    def _small(self) -> bool:
        return self.name in SMALL_INTEGERS


def integer_from_json(value: Any) -> int:
    """Return an integer from a JSON number without a fraction.

    Raises
    ------
    TypeError
        If it is not one.
    """
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return _integer(value)


def _refuse_times(value: Any) -> None:
    """Raise for NumPy's datetimes and timedeltas, which convert to the count of their unit."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "mM":
        raise TypeError(f"{value!r} is a time, not a number")


def _integer(value: Any) -> int:
    _refuse_times(value)
    number = value
    if isinstance(value, np.ndarray | np.generic) and not value.ndim:
        number = value.item()
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        raise TypeError(f"{value!r} is not an integer")
    return int(number)


@dataclass(frozen=True)
class Float(DataType):
    """Floating point numbers of 4 to 64 bits."""

    @property
    def zero(self) -> np.ndarray:
        """See `DataType.zero`; ``float8_e8m0fnu`` has none."""
        return _zero(self.dtype).copy()

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json` and `float_from_json`."""
        return float_from_json(value, self.dtype)

    def to_json(self, value: np.ndarray) -> float | str:
        """See `DataType.to_json` and `float_to_json`."""
        return float_to_json(value)

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`; numbers are rounded to the nearest, ties to even."""
        same = self.same(value)
        return _float(value, self.dtype) if same is None else same


@dataclass(frozen=True)
class Complex(DataType):
    """Pairs of floats; a struct of ``real`` and ``imag`` if NumPy has no complex type."""

    part: Float
    """The data type of the real and the imaginary part."""

    @property
    def zero(self) -> np.ndarray:
        """See `DataType.zero`."""
        return self._of(self.part.zero, self.part.zero)

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: a pair of floats."""
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"{value!r} is not a pair of a real and an imaginary part")
        return self._of(*(self.part.from_json(item) for item in value))

    def to_json(self, value: np.ndarray) -> list[float | str]:
        """See `DataType.to_json`."""
        return [self.part.to_json(item) for item in self._parts(value)]

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`; a number or a pair of numbers."""
        same = self.same(value)
        if same is not None:
            return same
        if isinstance(value, list | tuple) and len(value) == 2:
            real, imag = value
        elif isinstance(value, np.ndarray | np.generic):
            real, imag = value.real, value.imag
        else:
            number = complex(value)
            real, imag = number.real, number.imag
        return self._of(self.part.scalar(real), self.part.scalar(imag))

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`; NumPy's complex numbers are cast part by part."""
        if self.dtype.names is None:
            return super().cast(values)
        array = np.asarray(values)
        if array.dtype.names is not None:
            return array.astype(self.dtype, copy=False)
        result = np.empty(array.shape, self.dtype)
        result["real"], result["imag"] = array.real, array.imag
        return result

    def _of(self, real: np.ndarray, imag: np.ndarray) -> np.ndarray:
        pair = np.empty(2, self.part.dtype)
        pair[0], pair[1] = real, imag
        return pair.view(self.dtype).reshape(())

    def _parts(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pair = value.reshape(1).view(self.part.dtype)
        return pair[0:1].reshape(()), pair[1:2].reshape(())


# --- floats -------------------------------------------------------------------------------------

_HEX = re.compile(r"0x[0-9a-fA-F]+")


def float_from_json(value: object, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a float of `dtype` from a JSON number, a name, or a bit pattern in hexadecimal.

    Raises
    ------
    ValueError
        If it is none of them.
    OverflowError
        If the type has no infinities and the number is beyond its range.

    Examples
    --------
    >>> float(float_from_json("0x7fc00000", np.dtype("float32")))
    nan
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    if not isinstance(value, str):
        return _float(value, dtype)
    form = FLOAT_FORMATS[dtype.name]
    if value == "NaN":
        return _nan(dtype)
    if value in ("Infinity", "-Infinity"):
        return _float(math.inf if value == "Infinity" else -math.inf, dtype)
    digits = 2 * dtype.itemsize
    if _HEX.fullmatch(value) and len(value) == 2 + digits:
        bits = int(value, 16)
        if bits >> form.bits:
            raise ValueError(f"{value!r} has more than the {form.bits} bits of {dtype.name}")
        return np.array(bits, f"u{dtype.itemsize}").view(dtype)
    raise ValueError(
        f"{value!r} is neither 'NaN', 'Infinity', '-Infinity' nor '0x' with "
        f"{digits} hexadecimal digits"
    )


def float_to_json(value: np.ndarray) -> float | str:
    """Return the JSON form of a 0-d float array: a number, a name, or the bits of an unusual NaN.

    Examples
    --------
    >>> float_to_json(np.array(np.nan, "f8")), float_to_json(np.array(1.5, "f8"))
    ('NaN', 1.5)
    """
    number = float(value)
    if math.isnan(number):
        bits = int(value.view(f"u{value.dtype.itemsize}"))
        digits = 2 * value.dtype.itemsize
        return "NaN" if bits == FLOAT_FORMATS[value.dtype.name].nan else f"0x{bits:0{digits}x}"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _nan(dtype: np.dtype[Any]) -> np.ndarray:
    nan = FLOAT_FORMATS[dtype.name].nan
    if nan is None:
        raise ValueError(f"{dtype.name} has no NaN")
    return np.array(nan, f"u{dtype.itemsize}").view(dtype)


def _float(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a float from a number of any type."""
    _refuse_times(value)
    if isinstance(value, str):
        return float_from_json(value, dtype)
    if isinstance(value, int):
        return _rounded(int(value), dtype)
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim:
            raise TypeError(f"an array of shape {value.shape} is not a scalar")
        if value.dtype.kind in "iu":
            return _rounded(int(value), dtype)
        if value.dtype.kind == "c":
            if value.imag:
                raise TypeError(f"{value!r} is complex")
            value = value.real
    number = float(value)
    if math.isnan(number):
        return _nan(dtype)
    return _rounded(number, dtype)


@cache
def _zero(dtype: np.dtype[Any]) -> np.ndarray:
    return _rounded(0.0, dtype)


def _rounded(number: float, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the nearest float, ties to even; a cast through another type would round twice.

    Raises
    ------
    OverflowError
        If the type has no infinities and the number is beyond its range.
    ValueError
        If the number is 0 and the type has no zero.
    """
    form = FLOAT_FORMATS[dtype.name]
    with np.errstate(over="ignore", under="ignore"):
        result = np.array(float(number)).astype(dtype)
    if not form.infinity:
        if number == 0 and float(result) != 0:
            raise ValueError(f"{dtype.name} has no zero; give another value")
        finite = np.arange(1 << form.bits, dtype="u1").view(dtype).astype(float)
        if not np.nanmin(finite) <= number <= np.nanmax(finite):
            raise OverflowError(f"{number} is outside the range of {dtype.name}")
    if math.isinf(number) or not math.isfinite(float(result)) or float(result) == number:
        return result
    return _nearest(number, result)


def _nearest(number: float, guess: np.ndarray) -> np.ndarray:
    """Return the float nearest to a number, among a guess and its two neighbours."""
    from fractions import Fraction

    unsigned = f"u{guess.dtype.itemsize}"
    sign = 1 << (FLOAT_FORMATS[guess.dtype.name].bits - 1) if number < 0 else 0
    magnitude = int(guess.view(unsigned)) & ~sign
    found = []
    for candidate in range(max(magnitude - 1, 0), magnitude + 2):
        value = float(np.array(candidate, unsigned).view(guess.dtype))
        if math.isfinite(value) and value >= 0:
            error = abs(Fraction(value) - abs(Fraction(number)))
            found.append((error, candidate & 1, candidate))
    nearest = min(found)[2]
    if nearest == 0 and number < 0:  # some types have no negative zero
        return np.array(-0.0).astype(guess.dtype)
    return np.array(nearest | sign, unsigned).view(guess.dtype)


def complex_of(name: str, part: Float) -> Complex:
    """Return the complex type of two floats."""
    if part.name in ("float32", "float64"):
        return Complex(name, np.dtype(f"c{2 * part.dtype.itemsize}"), part)
    pair = np.dtype([("real", part.dtype), ("imag", part.dtype)])
    return Complex(name, pair, part)


def parts_of(dtype: np.dtype[Any]) -> Float:
    """Return the data type of the parts of a NumPy complex dtype."""
    part = parts_of_complex(dtype)
    return Float(part.name, part)
