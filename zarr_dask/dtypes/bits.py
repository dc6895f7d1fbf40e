"""Bitwise operations on NumPy arrays: byte order, comparison with a fill value, constant arrays.

NaN equals itself and -0.0 differs from 0.0 here, for every type whose memory is its value,
including those of ml_dtypes. Objects are compared by type and value.

ml_dtypes has integers and floats of few bits, each held in one or two bytes in memory. It is
optional and is imported when one of its types is named. Everything needed before (or without) that
is in the tables here, by the names of the Zarr v3 registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.errors import MissingDependencyError

if TYPE_CHECKING:
    from zarr_dask.grid.grid import Shape

__all__ = [
    "FLOAT_FORMATS",
    "SMALL_FLOATS",
    "SMALL_INTEGERS",
    "FloatFormat",
    "bits_of",
    "full_of",
    "is_full_of",
    "is_small",
    "leaves",
    "native",
    "parts_of_complex",
    "small_dtype",
    "swappable",
    "value_bits",
    "which_are_full_of",
]


def native(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in the byte order of this machine, fields included, and without padding.

    Examples
    --------
    >>> native([("a", ">i4"), ("b", "u1")])
    dtype([('a', '<i4'), ('b', 'u1')])
    """
    made: np.dtype[Any] = np.dtype(dtype)
    if is_small(made) or made.kind == "T":  # StringDType has no byte order
        return made
    if made.names is not None and made.fields is not None:
        formats = [native(made.fields[name][0]) for name in made.names]
        return np.dtype({"names": list(made.names), "formats": formats})
    if made.subdtype is not None:
        return np.dtype((native(made.base), made.shape))
    return made.newbyteorder("=")


def swappable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype with integers in place of types whose bytes NumPy cannot always swap.

    It has the same layout, so that an array of one can be viewed as the other. NumPy has no byte
    order for types of ml_dtypes, and treats ``<m8`` and ``>m8`` without a unit as the same.
    """
    if dtype.kind in "mM":
        return np.dtype(np.int64)
    if is_small(dtype):
        return np.dtype(f"u{dtype.itemsize}")
    if dtype.names is not None and dtype.fields is not None:
        formats = [swappable(dtype.fields[name][0]) for name in dtype.names]
        return np.dtype({"names": list(dtype.names), "formats": formats})
    if dtype.subdtype is not None:
        return np.dtype((swappable(dtype.base), dtype.shape))
    return dtype


def leaves(
    dtype: np.dtype[Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], np.dtype[Any]]]:
    """Yield the parts of a dtype: the names of the fields that lead to each, and its dtype.

    Examples
    --------
    >>> list(leaves(np.dtype([("a", "u1"), ("b", [("c", "S2", (3,))])])))
    [(('a',), dtype('uint8')), (('b', 'c'), dtype('S2'))]
    """
    if dtype.subdtype is not None:
        yield from leaves(dtype.base, path)
    elif dtype.names is not None and dtype.fields is not None:
        for name in dtype.names:
            yield from leaves(dtype.fields[name][0], (*path, name))
    else:
        yield path, dtype


def parts_of_complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type of the two parts of a complex type."""
    return np.dtype(f"f{dtype.itemsize // 2}")


# --- comparison with a fill value ---------------------------------------------------------------


def _as_bits(array: np.ndarray) -> np.ndarray:
    """Return the same memory as unsigned integers: NaN equals itself, and -0.0 is not 0.0."""
    itemsize = array.dtype.itemsize
    if itemsize in (1, 2, 4, 8):
        return array.view(f"u{itemsize}")
    return array.view(np.dtype((np.void, itemsize)))


_PROBE = 1 << 16


def is_full_of(array: np.ndarray, fill: np.ndarray) -> bool:
    """True if every element has the bits of `fill`.

    Most data differ from fill in their first element, so the cost is one comparison, and most
    others, such as masks, in their first row. Otherwise the array is compared slab by slab until
    the first difference.

    Examples
    --------
    >>> is_full_of(np.zeros(3), np.array(0.0)), is_full_of(np.array([-0.0]), np.array(0.0))
    (True, False)
    """
    if array.size == 0:
        return True
    if array.dtype.hasobject:
        wanted = fill[()]
        return all(_same_object(item, wanted) for item in array.flat)
    if array[(0,) * array.ndim + (...,)].tobytes() != fill.tobytes():
        return False
    if array.dtype.kind == "c":
        pair = fill.reshape(1).view(parts_of_complex(fill.dtype))
        return is_full_of(array.real, pair[0:1].reshape(())) and is_full_of(
            array.imag, pair[1:2].reshape(())
        )
    bits, wanted = _as_bits(array), _as_bits(fill)
    if array.ndim > 1 and not bool((bits[(0,) * (array.ndim - 1)] == wanted).all()):
        return False
    if array.ndim == 0 or array.size <= _PROBE:
        return bool((bits == wanted).all())
    if bits.flags.c_contiguous:
        bits = bits.reshape(-1)
    rows = max(_PROBE * bits.shape[0] // bits.size, 1)
    return all(
        bool((bits[first : first + rows] == wanted).all())
        for first in range(0, bits.shape[0], rows)
    )


def which_are_full_of(arrays: np.ndarray, fill: np.ndarray) -> list[bool]:
    """Return for each array along the first dimension the result of `is_full_of`.

    Examples
    --------
    >>> which_are_full_of(np.array([[0, 0], [0, 1], [1, 0]]), np.array(0))
    [True, False, False]
    """
    numbers = range(len(arrays))
    if arrays.size == 0 or arrays.dtype.hasobject or arrays.dtype.kind == "T":
        return [is_full_of(arrays[number, ...], fill) for number in numbers]
    # most differ from fill in their first elements, which are compared together
    wanted, size = fill.tobytes(), fill.itemsize
    first: tuple[Any, ...] = (slice(None), *(0,) * (arrays.ndim - 1))
    firsts = arrays[first].tobytes()
    return [
        firsts[number * size : (number + 1) * size] == wanted
        and is_full_of(arrays[number, ...], fill)
        for number in numbers
    ]


def _same_object(item: object, wanted: object) -> bool:
    """True if two objects are the same value; False for types that cannot be compared exactly."""
    if isinstance(item, str) and isinstance(wanted, str):  # NumPy's str_ counts as a str
        return item == wanted
    if type(item) is not type(wanted):
        return False
    return isinstance(item, bytes | int | None) and item == wanted


def bits_of(value: np.ndarray | None) -> bytes:
    """Return the bits of a 0-d array to compare it with others; for an object, its repr."""
    if value is None:
        return b""
    return repr(value[()]).encode() if value.dtype.hasobject else value.tobytes()


def full_of(shape: Shape, dtype: np.dtype[Any], fill: np.ndarray | None) -> np.ndarray:
    """Return a new array of the fill value; of NumPy's zeros if there is none."""
    if fill is None or not (dtype.hasobject or any(fill.tobytes())):
        return np.zeros(shape, dtype)
    return np.full(shape, fill, dtype)


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


@lru_cache(maxsize=256)  # NumPy takes long to make the name of a dtype
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
