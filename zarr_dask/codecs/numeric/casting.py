"""Conversion of real numbers between data types, with exact rounding.

`convert` rounds once, from the exact value to one of the target type, and then treats values
outside its range. No step goes through a third type that would round as well: numbers are held in
float64, or as integers if they are too long for that. Values that cannot be converted raise
``ValueError``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from zarr_dask.dtypes import DataType, is_small
from zarr_dask.dtypes.bits import FLOAT_FORMATS
from zarr_dask.dtypes.numbers import Float, Integer

__all__ = ["OutOfRange", "Rounding", "bit_lengths", "convert", "is_integer_or_float", "promote"]

Rounding = Literal[
    "nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"
]
OutOfRange = Literal["clamp", "wrap"]

_FAST = frozenset({"float16", "float32", "float64"})
"""Types between which NumPy itself rounds once, to nearest even."""


def is_integer_or_float(data_type: DataType) -> bool:
    """True if elements are integers or floats."""
    return isinstance(data_type, Integer | Float)


def promote(values: np.ndarray, data_type: DataType) -> np.ndarray:
    """Return the same numbers in a type that NumPy can compute with: float64, or integers."""
    if isinstance(data_type, Float):
        with np.errstate(invalid="ignore"):  # signalling NaN
            return values.astype(np.float64)
    if is_small(data_type.dtype):
        return values.astype(np.uint8 if data_type.name.startswith("u") else np.int8)
    return values


def convert(
    values: np.ndarray,
    source: DataType,
    target: DataType,
    rounding: Rounding = "nearest-even",
    out_of_range: OutOfRange | None = None,
) -> np.ndarray:
    """Convert numbers from one data type to another.

    Parameters
    ----------
    values
        Values of `source`, with at least one dimension.
    source, target
        The data types, integers or floats each.
    rounding
        Rounding of numbers between two that the target has.
    out_of_range
        Treatment of numbers outside its range after rounding: ``"clamp"`` gives infinity, or the
        limit if there is none; ``"wrap"`` takes an integer modulo 2 to its number of bits; None
        raises. Undefined results raise, too.

    Raises
    ------
    ValueError
        If a value cannot be converted.
    """
    if isinstance(target, Integer):
        return _to_integers(promote(values, source), target, rounding, out_of_range)
    fast = rounding == "nearest-even" and target.name in _FAST and source.name in _FAST
    if fast:
        with np.errstate(over="ignore", invalid="ignore"):
            result = values.astype(target.dtype)
        if np.isfinite(result).all() or not (np.isinf(result) & np.isfinite(values)).any():
            return result
    return _to_floats(promote(values, source), target, rounding, out_of_range)


# --- to integers ----------------------------------------------------------------------------------


def _to_integers(
    values: np.ndarray, target: Integer, rounding: Rounding, out_of_range: OutOfRange | None
) -> np.ndarray:
    least, greatest = target.limits
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        if not finite.all():
            raise ValueError(f"{values[~finite][0]} is no {target.name}")
        values = _ROUND[rounding](values)
        # the limits of 64 bits are not floats, but one more than the greatest is
        below, above = values < float(least), values >= float(greatest + 1)
    else:
        below, above = values < least, values > greatest
    outside = below | above
    if not outside.any():
        return _as_integers(values, target)
    if out_of_range is None:
        raise ValueError(f"{values[outside][0]} is outside the range of {target.name}")
    if out_of_range == "wrap":
        return _wrapped(values, target)
    result = _as_integers(np.where(outside, values.dtype.type(0), values), target)
    result[below] = np.array(least).astype(target.dtype)
    result[above] = np.array(greatest, np.uint64).astype(target.dtype)
    return result


def _as_integers(values: np.ndarray, target: Integer) -> np.ndarray:
    """Return whole numbers within the range as integers."""
    if is_small(target.dtype):
        values = values.astype(np.int8)
    return values.astype(target.dtype)


def _wrapped(values: np.ndarray, target: Integer) -> np.ndarray:
    """Return whole numbers modulo 2 to the number of bits, in two's complement."""
    if values.dtype.kind == "f":
        rest = np.fmod(values, 2.0**64)
        bits = np.abs(rest).astype(np.uint64)
        bits = np.where(rest < 0, ~bits + np.uint64(1), bits)
    else:
        bits = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    least, greatest = target.limits
    unused = 64 - (greatest - least).bit_length()
    bits = bits << np.uint64(unused)
    if least < 0:
        return _as_integers(bits.view(np.int64) >> unused, target)
    return _as_integers(bits >> np.uint64(unused), target)


# --- to floats ------------------------------------------------------------------------------------


class _FloatLimits(NamedTuple):
    mantissa: int
    """Bits after the first."""
    exponent: int
    """Exponent of the smallest number that has all of them."""
    least: float
    greatest: float
    infinity: bool
    nan: bool


@cache
def _limits_of(dtype: np.dtype[Any]) -> _FloatLimits:
    info: Any = np.finfo(dtype) if not is_small(dtype) else _ml_dtypes_finfo(dtype)
    form = FLOAT_FORMATS[dtype.name]
    ends = float(info.min), float(info.max)
    return _FloatLimits(
        int(info.nmant), int(info.minexp), *ends, form.infinity, form.nan is not None
    )


def _ml_dtypes_finfo(dtype: np.dtype[Any]) -> Any:
    from ml_dtypes import finfo

    return finfo(dtype)  # type: ignore[no-untyped-call]


def _to_floats(
    values: np.ndarray, target: DataType, rounding: Rounding, out_of_range: OutOfRange | None
) -> np.ndarray:
    limits = _limits_of(target.dtype)
    if values.dtype.kind != "f":
        values = _floats_of(values, limits.mantissa + 1, rounding)
    finite = np.isfinite(values)
    if not finite.all():
        has = (np.isnan(values) & limits.nan) | (np.isinf(values) & limits.infinity)
        lost = ~(finite | has)
        if lost.any():
            raise ValueError(f"{values[lost][0]} is no {target.name}")
    if limits.mantissa < 52:
        values = np.where(finite, _on_grid(values, limits, rounding), values)
    below, above = finite & (values < limits.least), finite & (values > limits.greatest)
    outside = below | above
    if outside.any():
        if out_of_range != "clamp":
            raise ValueError(f"{values[outside][0]} is outside the range of {target.name}")
        values = values.copy()
        values[below] = -np.inf if limits.infinity else limits.least
        values[above] = np.inf if limits.infinity else limits.greatest
    return values.astype(target.dtype)


def _on_grid(values: np.ndarray, limits: _FloatLimits, rounding: Rounding) -> np.ndarray:
    """Return numbers with as many bits as the type has, as if its range had no upper end."""
    exponents = np.frexp(values)[1] - 1
    last = np.maximum(exponents, limits.exponent) - limits.mantissa
    with np.errstate(invalid="ignore", over="ignore"):  # infinity is out of range, too
        rounded: np.ndarray = np.ldexp(_ROUND[rounding](np.ldexp(values, -last)), last)
    return rounded


def _floats_of(values: np.ndarray, bits: int, rounding: Rounding) -> np.ndarray:
    """Return integers as float64, the longest rounded to `bits` significant bits."""
    if values.itemsize < 8 or values.size == 0:
        return values.astype(np.float64)
    if max(-int(values.min()), int(values.max())) <= 1 << 53:
        return values.astype(np.float64)
    negative = values < 0
    magnitude = values.astype(np.uint64)  # modulo 2 to 64, so that the next line negates
    magnitude = np.where(negative, ~magnitude + np.uint64(1), magnitude)
    lost = np.maximum(bit_lengths(magnitude) - bits, 0)
    shift = lost.astype(np.uint64)
    kept = magnitude >> shift
    rest = magnitude - (kept << shift)
    half = np.where(lost > 0, np.uint64(1) << np.maximum(lost - 1, 0).astype(np.uint64), 1)
    if rounding == "nearest-even":
        up = (rest > half) | ((rest == half) & (kept & np.uint64(1) == 1) & (lost > 0))
    elif rounding == "nearest-away":
        up = (rest >= half) & (lost > 0)
    else:
        upward = {"towards-zero": False, "towards-positive": ~negative}.get(rounding, negative)
        up = (rest > 0) & upward
    result: np.ndarray = np.ldexp((kept + up).astype(np.float64), lost)
    return np.where(negative, -result, result)


def bit_lengths(values: np.ndarray) -> np.ndarray:
    """Return the number of bits of each unsigned integer, from its most significant one on."""
    lengths: np.ndarray = np.frexp(values.astype(np.float64))[1]
    if values.itemsize == 8:  # the nearest float of a long integer may be the next power of two
        below = np.maximum(lengths - 1, 0).astype(np.uint64)
        np.subtract(lengths, (lengths > 0) & (values >> below == 0), out=lengths)
    return lengths


def _nearest_away(values: np.ndarray) -> np.ndarray:
    whole = np.trunc(values)
    result: np.ndarray = whole + np.copysign(np.abs(values - whole) >= 0.5, values)
    return result


_ROUND: dict[Rounding, Callable[[np.ndarray], np.ndarray]] = {
    "nearest-even": np.rint,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
    "nearest-away": _nearest_away,
}
"""Rounding to whole numbers, of any size."""
