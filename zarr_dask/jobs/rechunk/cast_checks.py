"""Check that values fit another data type: fractions may be lost, numbers and texts may not change.

NumPy silently wraps integers, cuts texts and drops imaginary parts when it casts. All checks
process few elements at a time, so they need negligible memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["describe_uncastable"]

_AT_A_TIME = 1 << 14


def describe_uncastable(values: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    """Describe values that a data type cannot hold; None if it can hold all.

    This does not check for floating-point numbers that become infinite in NumPy's own types; use
    ``numpy.errstate(over="raise")`` for them.

    Examples
    --------
    >>> describe_uncastable(np.array([1.5, 256.0]), np.dtype("u1"))
    'values from 1.5 to 256.0'
    >>> describe_uncastable(np.array([1.5, 255.5]), np.dtype("u1"))
    >>> describe_uncastable(np.array(["abc"]), np.dtype("U2"))
    "texts such as 'abc'"
    """
    names = values.dtype.names
    if names is not None and dtype.names is not None:
        found = (
            describe_uncastable(values[name], dtype[other])
            for name, other in zip(names, dtype.names, strict=False)
        )
        return next((one for one in found if one is not None), None)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _AT_A_TIME):
        said = _misfit(flat[start : start + _AT_A_TIME], dtype)
        if said is not None:
            return said
    return None


def _misfit(values: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    if dtype.kind in "US" and values.dtype.kind == dtype.kind:
        cut = values[values.astype(dtype) != values]
        return f"texts such as {cut[0].item()!r}" if cut.size else None
    if dtype.type is np.void and values.dtype.type is np.void:
        return f"elements of {values.dtype.itemsize} bytes" if _shrinks(values, dtype) else None
    if not (_is_number(values.dtype) and _is_number(dtype)) or dtype.kind == "c":
        return None
    if values.dtype.kind == "c":
        if values.imag.any():
            return "complex numbers"
        values = values.real
    if values.dtype.type.__module__ != "numpy":
        values = values.astype("f8")
    return _number_misfit(values, dtype)


def _number_misfit(values: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    if dtype.kind == "b":
        return None if ((values == 0) | (values == 1)).all() else "values besides 0 and 1"
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return _outside(values, int(bounds.min), int(bounds.max))
    if dtype.type.__module__ == "numpy":
        return None
    if dtype.name.startswith(("int", "uint")):  # of a few bits
        bits = int(dtype.name.partition("int")[2])
        low = 0 if dtype.name.startswith("uint") else -(1 << (bits - 1))
        return _outside(values, low, low + (1 << bits) - 1)
    with np.errstate(over="ignore"):
        cast = values.astype(dtype).astype("f8")
    if (np.isfinite(values.astype("f8")) & ~np.isfinite(cast)).any():
        return "values that would become infinite"
    return None


def _is_number(dtype: np.dtype[Any]) -> bool:
    """True if NumPy, or an extension of it (kind ``V``, but not void), can calculate with it."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)


def _shrinks(values: np.ndarray, dtype: np.dtype[Any]) -> bool:
    return values.dtype.names is None and dtype.itemsize < values.dtype.itemsize


def _outside(values: np.ndarray, lowest: int, highest: int) -> str | None:
    """Describe the range of some values, unless all fit between two integers once truncated."""
    low, high = values.min(), values.max()
    if values.dtype.kind == "f":  # powers of two are exact as floating-point numbers
        fits = np.trunc(low) >= float(lowest) and high < float(highest + 1)  # NaN is in no range
    else:
        fits = int(low) >= lowest and int(high) <= highest
    if fits:
        return None
    if np.isnan(low):
        return "NaN"
    return f"values from {low} to {high}"
