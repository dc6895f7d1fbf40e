"""Types of ml_dtypes: integers and floats of few bits, each held in one or two bytes in memory.

ml_dtypes is optional and is imported when one of its types is named. Everything needed before (or
without) that is in the tables here, by the names of the Zarr v3 registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from zarr_dask.errors import MissingDependencyError

__all__ = [
    "FLOAT_FORMATS",
    "SMALL_FLOATS",
    "SMALL_INTEGERS",
    "FloatFormat",
    "is_small",
    "small_dtype",
    "value_bits",
]


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The properties of a floating point type's bits."""

    bits: int
    """Number of bits of a value; higher ones in its last byte are unused."""
    nan: int | None
    """Bits of the NaN that is written as ``"NaN"``; None if there is no NaN."""
    infinity: bool
    """True if there are infinities."""


FLOAT_FORMATS = {
    "float16": FloatFormat(16, 0x7E00, infinity=True),
    "float32": FloatFormat(32, 0x7FC00000, infinity=True),
    "float64": FloatFormat(64, 0x7FF8000000000000, infinity=True),
    "bfloat16": FloatFormat(16, 0x7FC0, infinity=True),
    "float8_e3m4": FloatFormat(8, 0x78, infinity=True),
    "float8_e4m3": FloatFormat(8, 0x7C, infinity=True),
    "float8_e5m2": FloatFormat(8, 0x7E, infinity=True),
    "float8_e4m3fn": FloatFormat(8, 0x7F, infinity=False),
    "float8_e4m3fnuz": FloatFormat(8, 0x80, infinity=False),
    "float8_e4m3b11fnuz": FloatFormat(8, 0x80, infinity=False),
    "float8_e5m2fnuz": FloatFormat(8, 0x80, infinity=False),
    "float8_e8m0fnu": FloatFormat(8, 0xFF, infinity=False),
    "float6_e2m3fn": FloatFormat(6, None, infinity=False),
    "float6_e3m2fn": FloatFormat(6, None, infinity=False),
    "float4_e2m1fn": FloatFormat(4, None, infinity=False),
}
"""Floating point types by name; the bits of NaN are those of the registry."""

SMALL_FLOATS = tuple(FLOAT_FORMATS)[3:]
"""Floating point types that NumPy does not have."""

SMALL_INTEGERS = {"int2": 2, "int4": 4, "uint2": 2, "uint4": 4}
"""Integer types that NumPy does not have, and their number of bits."""


def is_small(dtype: np.dtype[Any]) -> bool:
    """True if a dtype is one of ml_dtypes."""
    return dtype.name in SMALL_INTEGERS or dtype.name in SMALL_FLOATS


def value_bits(dtype: np.dtype[Any]) -> int | None:
    """Return the bits of a value if they do not fill its bytes; None for all other types."""
    bits = SMALL_INTEGERS.get(dtype.name)
    if bits is None and dtype.name in SMALL_FLOATS:
        bits = FLOAT_FORMATS[dtype.name].bits
    return None if bits is None or bits % 8 == 0 else bits


@cache
def small_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of an ml_dtypes type.

    Raises
    ------
    MissingDependencyError
        If ml_dtypes is not installed, or too old to have the type.
    """
    hint = f"The data type {name!r} needs ml_dtypes: pip install 'zarr-dask[ml]'"
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError(f"{hint}.") from error
    if not hasattr(ml_dtypes, name):
        raise MissingDependencyError(f"{hint} --upgrade (got {ml_dtypes.__version__}).")
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
