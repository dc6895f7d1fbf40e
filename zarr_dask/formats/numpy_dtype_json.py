"""Data types and fill values in NumPy's form: in the documents of v1 and v2.

A data type is a type string (``"<f4"``: byte order, kind, size) or a list of fields. This module
reads and writes the dtype *as stored*, with the byte order of every field; in memory elements have
the native byte order. A fill value is JSON if JSON can express it, otherwise base64 of its stored
bytes. Sources: Zarr v2, "Data type encoding" and "Fill value encoding"; Zarr v1, "Data type
encoding"; where these are silent, existing writers are followed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import is_int, is_ints
from zarr_dask.dtypes import (
    DataType,
    data_type_of,
    float_from_json,
    float_to_json,
    native,
    parts_of_complex,
    scalar,
)
from zarr_dask.errors import ValidationProblem

__all__ = [
    "dtype_from_json",
    "dtype_to_json",
    "fill_from_json",
    "fill_to_json",
    "memory_type",
    "object_fill_from_json",
    "without_unit",
]

_TYPE_STRING = re.compile(
    r"([<>|])([biufcmMSUVO])([0-9]{0,10})(?:\[([1-9][0-9]{0,8})?([A-Za-z\u00b5\u03bc]+)\])?"
)
_SIZES = {
    "b": ("1",),
    "i": ("1", "2", "4", "8"),
    "u": ("1", "2", "4", "8"),
    "f": ("2", "4", "8"),
    "c": ("8", "16"),
    "m": ("8",),
    "M": ("8",),
    "O": ("", "4", "8"),  # pointers, as NumPy writes them; no data of that size are stored
}
_UNITS = frozenset(
    ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic"]
)
_LARGEST_ITEM = (1 << 31) - 1  # NumPy's limit
_MOST_FIELDS = 2048  # including those of nested structs
_DEEPEST = 32
_NOT_A_TIME = -(1 << 63)
_COUNT = np.dtype("i8")

_EXPECTED = (
    "a type string with a byte order, a kind of b, i, u, f, c, m, M, S, U, V or O, and a size that "
    "NumPy has for it, such as '<f4', '|S12' or '<M8[ns]'"
)


# --- data types -----------------------------------------------------------------------------------


def dtype_from_json(document: Any, place: str = "dtype") -> np.dtype[Any] | list[ValidationProblem]:
    """Return the dtype as stored that a document names, or all problems with it.

    Examples
    --------
    >>> dtype_from_json([["x", ">f4"], ["y", "<i2", [2]]])
    dtype([('x', '>f4'), ('y', '<i2', (2,))])
    >>> [str(problem.found) for problem in dtype_from_json("float32")]
    ['float32']
    """
    if _has_too_many_fields(document):
        return [ValidationProblem(place, "a struct", f"at most {_MOST_FIELDS} fields", "data_type")]
    problems = list(_type_problems(document, place, 0))
    if problems:
        return problems
    try:
        made: np.dtype[Any] = np.dtype(_numpy_form(document))
    except (TypeError, ValueError) as error:  # names that clash
        return [
            ValidationProblem(place, document, f"fields that NumPy takes ({error})", "data_type")
        ]
    return made


def _has_too_many_fields(document: Any) -> bool:
    """True if the lists in a document have more items than any valid dtype."""
    pending, count = [document], 0
    while pending and count <= _LISTED_PER_FIELD * _MOST_FIELDS:
        item = pending.pop()
        if isinstance(item, list):
            count += len(item)
            pending.extend(item)
    return bool(pending)


_LISTED_PER_FIELD = 4  # the field itself, its name, its type, its shape


def _type_problems(document: Any, place: str, depth: int) -> Iterator[ValidationProblem]:
    if isinstance(document, str):
        if _string_size(document) is None:
            yield ValidationProblem(place, document, _EXPECTED, "data_type")
        elif depth and document[1] == "O":
            yield ValidationProblem(place, document, "no objects within structs", "data_type")
        return
    if not isinstance(document, list) or not document:
        expected = f"{_EXPECTED}; or a list of fields"
        yield ValidationProblem(place, document, expected, "data_type")
        return
    if depth == _DEEPEST:
        yield ValidationProblem(
            place, "structs", f"structs nested at most {_DEEPEST} deep", "data_type"
        )
        return
    found = False
    for position, field in enumerate(document):
        for problem in _field_problems(field, f"{place}[{position}]", depth):
            found = True
            yield problem
    size = 0 if found else _size(document)
    if size > _LARGEST_ITEM:
        expected = f"elements of at most {_LARGEST_ITEM} bytes, not {size}"
        yield ValidationProblem(place, document, expected, "data_type")


def _field_problems(field: Any, place: str, depth: int) -> Iterator[ValidationProblem]:
    if not isinstance(field, list) or len(field) not in (2, 3) or not isinstance(field[0], str):
        expected = "a field: a list of its name, its type, and the shape if it has one"
        yield ValidationProblem(place, field, expected, "data_type")
        return
    if len(field) == 3 and not all(is_int(n) and n > 0 for n in _subarray(field)):
        expected = "the shape of a subarray: a list of integers of at least 1"
        yield ValidationProblem(f"{place}[2]", field[2], expected, "data_type")
    yield from _type_problems(field[1], f"{place}[1]", depth + 1)


def _subarray(field: list[Any]) -> list[Any]:
    """Return the shape of a field; a single number means one dimension."""
    if len(field) == 2:
        return []
    if is_ints(field[2]) and len(field[2]) <= _DEEPEST:
        return list(field[2])
    return [field[2]]


def _size(document: Any) -> int:
    """Return the bytes of an element, before NumPy makes its type."""
    if isinstance(document, str):
        return _string_size(document) or 0
    return sum(prod(_subarray(field)) * _size(field[1]) for field in document)


def _string_size(text: str) -> int | None:
    """Return the bytes of an element of a type string; None if it is not valid."""
    match = _TYPE_STRING.fullmatch(text)
    if match is None:
        return None
    order, kind, size, count, unit = match.groups()
    if kind in _SIZES and size not in _SIZES[kind]:
        return None
    has_order = kind in "mMU" or (kind in "iufc" and size != "1")
    if order == "|" and has_order:
        return None
    if unit is None:
        fits = True
    else:
        known = _ascii_unit(unit) in _UNITS
        fits = kind in "mM" and known and not (count and unit == "generic")
    nbytes = int(size or "8") * (4 if kind == "U" else 1)
    return nbytes if fits and 0 < nbytes <= _LARGEST_ITEM else None


def _ascii_unit(unit: str) -> str:
    return "us" if unit in {"\u00b5s", "\u03bcs"} else unit


def _numpy_form(document: Any) -> Any:
    if isinstance(document, str):
        return document.replace("\u00b5s", "us").replace("\u03bcs", "us")
    return [
        (field[0], _numpy_form(field[1]), *([tuple(_subarray(field))] if len(field) == 3 else []))
        for field in document
    ]


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as stored in the form of documents.

    Examples
    --------
    >>> dtype_to_json(np.dtype([("x", ">f4"), ("y", "u1", (2,))]))
    [['x', '>f4'], ['y', '|u1', [2]]]
    """
    if dtype.names is None:
        return dtype.str
    return [_field_to_json(name, dtype[name]) for name in dtype.names]


def _field_to_json(name: str, dtype: np.dtype[Any]) -> list[Any]:
    if dtype.subdtype is None:
        return [name, dtype_to_json(dtype)]
    base, shape = dtype.subdtype
    return [name, dtype_to_json(base), list(shape)]


def memory_type(stored: np.dtype[Any], place: str = "dtype") -> DataType | ValidationProblem:
    """Return the data type in memory of a stored dtype other than object."""
    try:
        return data_type_of(native(stored))
    except TypeError as error:
        return ValidationProblem(
            place, dtype_to_json(stored), f"a known data type ({error})", "data_type"
        )


def without_unit(dtype: np.dtype[Any]) -> bool:
    """True if a dtype is, or contains, a datetime or timedelta without a unit."""
    if dtype.subdtype is not None:
        return without_unit(dtype.subdtype[0])
    if dtype.names is not None:
        return any(without_unit(dtype[name]) for name in dtype.names)
    return dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic"


# --- fill values ----------------------------------------------------------------------------------


_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,4})?")


def fill_from_json(value: Any, stored: np.dtype[Any]) -> np.ndarray:
    """Return a fill value as a 0-d array in native byte order.

    Parameters
    ----------
    value
        Value in the document; not null.
    stored
        The dtype as stored, other than that of objects.

    Raises
    ------
    ValueError, TypeError, OverflowError
        If it is not a value of that type.

    Examples
    --------
    >>> fill_from_json("AQIAAAA=", np.dtype([("a", "u1"), ("b", "<i4")])).item()
    (1, 2)
    """
    dtype = native(stored)
    if dtype.kind in "SUV" and is_int(value) and value == 0:
        return np.zeros((), dtype)  # the default fill value of zarr-python
    if dtype.names is not None:
        return _struct_from_json(value, stored)
    if dtype.kind == "f":
        return float_from_json(_number(value), dtype)
    if dtype.kind == "c":
        # unspecified; writers use a pair, or a real number if the fill value is real
        pair = value if isinstance(value, list) and len(value) == 2 else [value, 0]
        part = parts_of_complex(dtype)
        parts = np.array([float_from_json(item, part) for item in pair], part)
        return parts.view(dtype).reshape(())
    if dtype.kind in "iu" and isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    if dtype.kind in "mM":
        return fill_from_json(_NOT_A_TIME if value == "NaT" else value, _COUNT).view(dtype)
    if dtype.kind == "U":
        return _text(value, dtype)
    if dtype.kind in "SV":
        return _raw(value, dtype)
    return scalar(_number(value), dtype)


def _number(value: Any) -> Any:
    """Return the number in a string, as n5-zarr writes them; other values unchanged."""
    return json.loads(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def object_fill_from_json(value: Any, data_type: DataType) -> np.ndarray:
    """Return a fill value of elements that have no fixed size.

    Raises
    ------
    ValueError, TypeError
        If it is not a value of that type.
    """
    if is_int(value) and value == 0:  # the default fill value of zarr-python
        return data_type.zero
    return data_type.from_json(value)


def _struct_from_json(value: Any, stored: np.dtype[Any]) -> np.ndarray:
    names = stored.names or ()
    if isinstance(value, Mapping) and value.keys() == set(names):  # as read by zarr-python 3
        result = np.zeros((), native(stored))
        for name in names:
            result[name] = fill_from_json(value[name], stored[name].base)
        return result
    raw = _from_base64(value)
    if len(raw) != stored.itemsize:
        raise ValueError(f"base64 of {len(raw)} bytes, not of {stored.itemsize}")
    return np.frombuffer(raw, stored).astype(native(stored)).reshape(())


def _text(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    most = dtype.itemsize // 4
    if len(value) > most:
        raise ValueError(f"a string of {len(value)} characters, not of {most} at most")
    return np.array(value, dtype)


def _raw(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return bytes from base64, or one character, which the netCDF library writes unencoded."""
    is_character = dtype == "S1" and isinstance(value, str) and len(value) == 1 and value.isascii()
    raw = value.encode() if is_character else _from_base64(value)
    if len(raw) > dtype.itemsize:
        raise ValueError(f"base64 of {len(raw)} bytes, not of {dtype.itemsize}")
    return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype).reshape(())


def _from_base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string in base64")
    try:
        return base64.b64decode(value.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError(f"{value!r} is not base64 ({error})") from error


def fill_to_json(value: np.ndarray, stored: np.dtype[Any]) -> Any:
    """Return a fill value in the form of documents.

    Parameters
    ----------
    value
        A 0-d array in native byte order.
    stored
        The dtype as stored, other than that of objects.

    Raises
    ------
    ValueError
        If no document can express it: these formats have only one NaN.

    Examples
    --------
    >>> fill_to_json(np.array(b"ab"), np.dtype("S4"))
    'YWI='
    >>> fill_to_json(np.array(1 - 2j), np.dtype("c16"))
    [1.0, -2.0]
    """
    if stored.kind == "c":
        parts = value.reshape(1).view(parts_of_complex(value.dtype))
        return [_float_to_json(part) for part in parts.reshape(2, 1)]
    if stored.kind == "f":
        return _float_to_json(value)
    if stored.kind in "mM":
        return int(value.view("i8"))
    if stored.kind == "U":
        return str(value)
    if stored.kind == "S":
        return base64.b64encode(value.item()).decode()
    if stored.kind == "V":
        return base64.b64encode(value.astype(stored).tobytes()).decode()
    return value.item()


def _float_to_json(value: np.ndarray) -> float | str:
    document = float_to_json(value.reshape(()))
    if isinstance(document, str) and document.startswith("0x"):
        raise ValueError(f"a NaN of bits {document}, but the format has one NaN, that of numpy.nan")
    return document
