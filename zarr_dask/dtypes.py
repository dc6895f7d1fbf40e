"""Data types and values: names, JSON forms of scalars, comparison bit by bit.

The core data types of Zarr as NumPy dtypes, and the scalar encodings that the formats share
(special floats, hexadecimal bit patterns, complex pairs). In memory a value always has the byte
order of the machine; the order on disk belongs to a codec. Pure; knows no document.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from zarr_dask.grid import Shape

__all__ = [
    "CORE_NAMES",
    "VARIABLE_BYTES",
    "DataType",
    "bits_of",
    "data_type_of",
    "float_from_json",
    "float_to_json",
    "full_of",
    "is_full_of",
    "native",
    "scalar",
]

CORE_NAMES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(f"float{bits}" for bits in (16, 32, 64)),
        *(f"complex{bits}" for bits in (64, 128)),
    )
}
"""Zarr v3 core data types (data-types section of the core specification) by name."""


VARIABLE_BYTES = 1 << 27
"""Encoded bytes of one chunk at most, for types whose elements have no fixed size."""


@dataclass(frozen=True)
class DataType:
    """What an element is: its name, and the NumPy type that holds it in memory.

    Several data types may be held by one NumPy type (texts and byte strings by ``object``), so
    that the name is needed to tell them apart.
    """

    name: str
    """As in the registry of data types of Zarr v3, without configuration."""
    dtype: np.dtype[Any]
    """In native byte order; ``object`` where elements have no fixed size."""

    @property
    def variable(self) -> bool:
        """Whether elements have no fixed size."""
        return self.dtype.hasobject

    @property
    def itemsize(self) -> int:
        """Bytes of an element as it is stored; 1 where they differ."""
        return 1 if self.variable else self.dtype.itemsize

    @property
    def zero(self) -> np.ndarray:
        """The value of elements that have no other: a 0-d array."""
        return np.zeros((), self.dtype)


def data_type_of(dtype: Any) -> DataType:
    """The data type that a NumPy type stands for.

    Raises
    ------
    TypeError
        If it stands for none.

    Examples
    --------
    >>> data_type_of(">f4")
    DataType(name='float32', dtype=dtype('float32'))
    """
    made = native(dtype)
    if made.name not in CORE_NAMES:
        raise TypeError(f"{made} is not one of {', '.join(CORE_NAMES)}")
    return DataType(made.name, made)


def native(dtype: Any) -> np.dtype[Any]:
    """The dtype in the byte order of this machine."""
    made: np.dtype[Any] = np.dtype(dtype)
    return made.newbyteorder("=")


def scalar(value: object, dtype: np.dtype[Any]) -> np.ndarray:
    """A 0-d array that holds `value`, with every bit kept.

    Raises
    ------
    ValueError, TypeError, OverflowError
        NumPy's own, if the value does not fit the dtype.

    Examples
    --------
    >>> scalar(-0.0, np.dtype("float32")).view("u4").item() == 1 << 31
    True
    """
    result = np.empty((), dtype)
    if isinstance(value, np.ndarray | np.generic) and value.dtype == dtype:
        result[...] = value
        return result
    if dtype.kind in "iu":
        result[...] = _integer(value, dtype)
    elif dtype.kind == "b":
        if not isinstance(value, bool | np.bool_ | int) or int(value) not in (0, 1):
            raise ValueError(f"{value!r} is not a bool")
        result[...] = bool(value)
    else:
        with np.errstate(over="ignore"):  # a float too large for the type becomes infinity
            result[...] = value
    return result


def _integer(value: object, dtype: np.dtype[Any]) -> int:
    number = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        raise TypeError(f"{value!r} is not an integer")
    limits = np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise OverflowError(f"{number} is outside the range of {dtype.name}")
    return int(number)


# --- JSON forms of floating point numbers -------------------------------------------------------

_HEX = re.compile(r"0x[0-9a-fA-F]+")


def float_from_json(value: object, dtype: np.dtype[Any]) -> np.ndarray:
    """A float of `dtype` from a JSON number, a name, or a bit pattern in hexadecimal.

    Raises
    ------
    ValueError
        If it is none of them.

    Examples
    --------
    >>> float(float_from_json("0x7fc00000", np.dtype("float32")))
    nan
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    if not isinstance(value, str):
        return scalar(value, dtype)
    named = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if value in named:
        return scalar(named[value], dtype)
    if _HEX.fullmatch(value) and len(value) == 2 + 2 * dtype.itemsize:
        bits = np.array(int(value, 16), dtype=f"u{dtype.itemsize}")
        return bits.view(dtype)
    raise ValueError(
        f"{value!r} is neither 'NaN', 'Infinity', '-Infinity' nor '0x' with "
        f"{2 * dtype.itemsize} hexadecimal digits"
    )


def float_to_json(value: np.ndarray) -> float | str:
    """The JSON form of a 0-d float array: a number, a name, or the bits of an unusual NaN.

    Examples
    --------
    >>> float_to_json(np.array(np.nan, "f8")), float_to_json(np.array(1.5, "f8"))
    ('NaN', 1.5)
    """
    number = float(value)
    if math.isnan(number):
        bits = value.view(f"u{value.dtype.itemsize}")
        canonical = _canonical_nan_bits(value.dtype)
        digits = 2 * value.dtype.itemsize
        return "NaN" if int(bits) == canonical else f"0x{int(bits):0{digits}x}"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _canonical_nan_bits(dtype: np.dtype[Any]) -> int:
    """Quiet NaN: sign 0, exponent all ones, first mantissa bit one."""
    return {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}[dtype.itemsize]


def parts_of_complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The float type of the two parts of a complex type."""
    return np.dtype(f"f{dtype.itemsize // 2}")


# --- comparison with a fill value ---------------------------------------------------------------


def _as_bits(array: np.ndarray) -> np.ndarray:
    """The same memory as unsigned integers, so that NaN equals itself and -0.0 differs from 0.0."""
    itemsize = array.dtype.itemsize
    if itemsize in (1, 2, 4, 8):
        return array.view(f"u{itemsize}")
    return array.view(np.dtype((np.void, itemsize)))


_PROBE = 1 << 16


def is_full_of(array: np.ndarray, fill: np.ndarray) -> bool:
    """Whether every element has the bits of `fill`.

    Most data are told from fill by their first element, so the cost is one comparison; otherwise
    the array is compared slab by slab and the first difference ends the search.

    Examples
    --------
    >>> is_full_of(np.zeros(3), np.array(0.0)), is_full_of(np.array([-0.0]), np.array(0.0))
    (True, False)
    """
    if array.size == 0:
        return True
    if array.dtype.hasobject:
        wanted = fill[()]
        return all(type(item) is type(wanted) and item == wanted for item in array.flat)
    if array[(0,) * array.ndim].tobytes() != fill.tobytes():
        return False
    if array.dtype.kind == "c":
        pair = fill.reshape(1).view(parts_of_complex(fill.dtype))
        return is_full_of(array.real, pair[0:1].reshape(())) and is_full_of(
            array.imag, pair[1:2].reshape(())
        )
    bits, wanted = _as_bits(array), _as_bits(fill)
    if array.ndim == 0 or array.size <= _PROBE:
        return bool((bits == wanted).all())
    if bits.flags.c_contiguous:
        bits = bits.reshape(-1)
    rows = max(_PROBE * bits.shape[0] // bits.size, 1)
    return all(
        bool((bits[first : first + rows] == wanted).all())
        for first in range(0, bits.shape[0], rows)
    )


def bits_of(value: np.ndarray | None) -> bytes:
    """Tells a 0-d array from others by its bits; what an object is by its representation."""
    if value is None:
        return b""
    return repr(value[()]).encode() if value.dtype.hasobject else value.tobytes()


def full_of(shape: Shape, dtype: np.dtype[Any], fill: np.ndarray | None) -> np.ndarray:
    """A new array of the fill value; of zeros where there is none."""
    if fill is None or not (dtype.hasobject or any(fill.tobytes())):
        return np.zeros(shape, dtype)
    return np.full(shape, fill, dtype)
