"""Lookup of a `DataType` by its Zarr v3 metadata, NumPy type or Python type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import FieldReader, is_int, is_int_in, is_list
from zarr_dask.dtypes.base import LARGEST_ITEM, DataType
from zarr_dask.dtypes.bits import (
    FLOAT_FORMATS,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    is_small,
    native,
    small_dtype,
)
from zarr_dask.dtypes.fixed import NullTerminatedBytes, RawBytes, Utf32
from zarr_dask.dtypes.numbers import Bool, Complex, Float, Integer, complex_of, parts_of
from zarr_dask.dtypes.registry import DATA_TYPES
from zarr_dask.dtypes.structs import Subarray, struct_of
from zarr_dask.dtypes.times import UNITS, Time
from zarr_dask.dtypes.variable import BYTES, OBJECTS, TEXTS
from zarr_dask.errors import ValidationProblem

__all__ = ["CORE_NAMES", "data_type_from_v3", "data_type_of", "scalar", "v3_names"]

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


# --- names and NumPy types ------------------------------------------------------------------------


def data_type_of(dtype: Any) -> DataType:
    """Return the data type for a user's value.

    Parameters
    ----------
    dtype
        A NumPy dtype or anything that NumPy converts to one, a type of ml_dtypes, the name of a
        data type (``"string"``, ``"bfloat16"``), its Zarr v3 metadata, ``str``, ``bytes`` or a
        `DataType`.

    Raises
    ------
    TypeError
        If there is no data type for it.
    MissingDependencyError
        If it needs ml_dtypes and that is not installed.

    Examples
    --------
    >>> data_type_of(">f4")
    Float(name='float32', dtype=dtype('float32'))
    >>> data_type_of(str).name, data_type_of("r24").dtype
    ('string', dtype('V3'))
    """
    if isinstance(dtype, DataType):
        return dtype
    if isinstance(dtype, Mapping) or (isinstance(dtype, str) and _is_known(dtype)):
        made = data_type_from_v3(dtype, "dtype")
        if isinstance(made, list):
            raise TypeError("; ".join(map(str, made)))
        return made
    if isinstance(dtype, type) and issubclass(dtype, str | bytes):
        return TEXTS if issubclass(dtype, str) else BYTES
    try:
        known = native(dtype)
    except TypeError:
        if not isinstance(dtype, str) or DATA_TYPES.find(dtype) is None:
            raise
        return data_type_of({"name": dtype})
    return _of_numpy(known)


def _of_numpy(dtype: np.dtype[Any]) -> DataType:
    """Return the data type of a native dtype."""
    if dtype.subdtype is not None:
        raise TypeError(f"{dtype} is an array of fields; give the array more dimensions instead")
    if dtype.names is not None:
        return _struct_of_numpy(dtype)
    if dtype.itemsize == 0 and dtype.kind == "V":
        raise TypeError(f"{dtype} has no bytes")
    _check_size(dtype)
    number = _number_of_numpy(dtype)
    if number is not None:
        return number
    if dtype.kind in _BY_KIND:
        return _BY_KIND[dtype.kind](dtype)
    raise TypeError(f"{dtype} is none of {', '.join(v3_names())}")


@lru_cache(maxsize=256)
def _number_of_numpy(dtype: np.dtype[Any]) -> DataType | None:
    name = dtype.name
    return _number(name, dtype) if is_small(dtype) or name in CORE_NAMES else None


_BY_KIND: dict[str, Callable[[np.dtype[Any]], DataType]] = {
    "M": lambda dtype: Time("numpy.datetime64", dtype),
    "m": lambda dtype: Time("numpy.timedelta64", dtype),
    "U": lambda dtype: Utf32("fixed_length_utf32", dtype) if dtype.itemsize else TEXTS,
    "S": lambda dtype: (
        NullTerminatedBytes("null_terminated_bytes", dtype) if dtype.itemsize else BYTES
    ),
    "V": lambda dtype: RawBytes("raw_bytes", dtype),
    "T": lambda dtype: TEXTS,  # noqa: ARG005  (NumPy's StringDType in all its variants)
    "O": lambda dtype: OBJECTS,  # noqa: ARG005
}


def _struct_of_numpy(dtype: np.dtype[Any]) -> DataType:
    fields: list[tuple[str, DataType]] = []
    _check_size(dtype)
    for name in dtype.names or ():
        item = dtype[name]
        if item.hasobject:
            raise TypeError(f"the field {name!r} has no fixed size")
        element = _of_numpy(item.base)
        if item.subdtype is not None:
            element = Subarray("subarray", item, element)
        fields.append((name, element))
    if not fields:
        raise TypeError(f"{dtype} has no fields")
    return struct_of(fields)


def _check_size(dtype: np.dtype[Any]) -> None:
    if dtype.itemsize > LARGEST_ITEM:
        raise TypeError(f"an element of {dtype.itemsize} bytes; {LARGEST_ITEM} are the most")


def _number(name: str, dtype: np.dtype[Any]) -> DataType:
    if name == "bool":
        return Bool(name, dtype)
    if name in FLOAT_FORMATS:
        return Float(name, dtype)
    if dtype.kind == "c":
        return Complex(name, dtype, parts_of(dtype))
    return Integer(name, dtype)


def scalar(value: object, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a 0-d array of `value`, with every bit kept.

    Raises
    ------
    ValueError, TypeError, OverflowError
        If the value does not fit the dtype.

    Examples
    --------
    >>> scalar(-0.0, np.dtype("float32")).view("u4").item() == 1 << 31
    True
    """
    return data_type_of(dtype).scalar(value)


# --- Zarr v3 metadata -----------------------------------------------------------------------------

_RAW = re.compile(r"r([1-9][0-9]{0,9})")
_COMPLEX = {f"complex_{name}": name for name in FLOAT_FORMATS}
_DEEPEST = 32
"""Limit of nested structs; more could only be an attack on the stack."""
_MOST_FIELDS = 1 << 13
"""Limit of fields of a struct, nested ones included; more could only be an attack on our time."""


_MOST_PROBLEMS = 20
"""Most invalid fields that a message lists."""


@dataclass
class _Nesting:
    """The nesting depth of a data type within structs, and the number of fields seen so far."""

    depth: int = 0
    fields: int = 0


def v3_names() -> tuple[str, ...]:
    """Return the names of the data types that v3 metadata may have."""
    small = (*SMALL_INTEGERS, *SMALL_FLOATS)
    own = (*CORE_NAMES, "r<bits>", *_PLAIN, *_CONFIGURED, *small, *_COMPLEX)
    return (*own, *DATA_TYPES.names())


def _is_known(name: str) -> bool:
    if name in CORE_NAMES or _RAW.fullmatch(name) is not None:
        return True
    return name in {*_PLAIN, *_COMPLEX, *SMALL_INTEGERS, *SMALL_FLOATS}


def data_type_from_v3(
    document: Any, place: str = "data_type"
) -> DataType | list[ValidationProblem]:
    """Return a data type from its v3 form: a name, or an object of ``name`` and ``configuration``.

    Parameters
    ----------
    document
        The data type as in the metadata.
    place
        Its location in the metadata, for messages.

    Returns
    -------
    DataType or list of ValidationProblem
        All problems, if it is not a data type.

    Raises
    ------
    MissingDependencyError
        If it needs ml_dtypes and that is not installed.

    Examples
    --------
    >>> data_type_from_v3({"name": "raw_bytes", "configuration": {"length_bytes": 8}}).dtype
    dtype('V8')
    """
    return _from_v3(document, place, _Nesting())


def _from_v3(document: Any, place: str, nesting: _Nesting) -> DataType | list[ValidationProblem]:
    form = document if isinstance(document, Mapping) else {"name": document}
    name, configuration = form.get("name"), form.get("configuration", {})
    extra = set(form) - {"name", "configuration", "must_understand"}
    if not isinstance(name, str) or not isinstance(configuration, Mapping) or extra:
        expected = "a name, or an object with a 'name'"
        return [ValidationProblem(place, document, expected, "data_type")]
    members = FieldReader(configuration, f"{place}.configuration")
    made = _configured(name, members, nesting) if name in _CONFIGURED else _plain(name, members)
    if made is None and not members.problems:
        expected = f"a known data type ({', '.join(v3_names())})"
        return [ValidationProblem(place, name, expected, "data_type")]
    members.refuse_rest()
    if made is None or members.problems:
        return members.problems
    return made


def _plain(name: str, members: FieldReader) -> DataType | None:
    """Return a data type without configuration; None if there is none of this name."""
    if name in CORE_NAMES:
        return _number(name, CORE_NAMES[name])
    if name in SMALL_INTEGERS or name in SMALL_FLOATS:
        return _number(name, small_dtype(name))
    if name in _COMPLEX:
        part = _COMPLEX[name]
        dtype = CORE_NAMES[part] if part in CORE_NAMES else small_dtype(part)
        return complex_of(name, Float(part, dtype))
    raw = _RAW.fullmatch(name)
    if raw is not None:
        return _raw(name, int(raw[1]), members)
    if name in _PLAIN:
        return _PLAIN[name]
    cls = DATA_TYPES.find(name)
    made: DataType | None = None if cls is None else cls.from_config(name, members)
    return made


def _raw(name: str, bits: int, members: FieldReader) -> DataType | None:
    if bits % 8 or bits // 8 > LARGEST_ITEM:
        expected = f"a multiple of 8 bits, {8 * LARGEST_ITEM} at most"
        members.problems.append(ValidationProblem(members.place, name, expected, "data_type"))
        return None
    return RawBytes(name, np.dtype(f"V{bits // 8}"))


_PLAIN: dict[str, DataType] = {
    "string": TEXTS,
    "bytes": BYTES,
    "variable_length_bytes": BYTES,  # the spelling of zarr-python
}


def _configured(name: str, members: FieldReader, nesting: _Nesting) -> DataType | None:
    if name in ("struct", "structured"):
        return _struct(name, members, nesting)
    if name in _TIMES:
        return _time(name, members)
    return _sized(name, members)


_TIMES = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}
_SIZED: dict[str, tuple[type[DataType], str, int]] = {
    "fixed_length_utf32": (Utf32, "U", 4),
    "null_terminated_bytes": (NullTerminatedBytes, "S", 1),
    "raw_bytes": (RawBytes, "V", 1),
}
_CONFIGURED = (*_TIMES, *_SIZED, "struct", "structured")


def _time(name: str, members: FieldReader) -> DataType | None:
    unit = members.take(
        "unit", lambda v: v in (*UNITS, "\u03bcs", "\u00b5s"), f"one of {', '.join(UNITS)}"
    )
    factor = members.take("scale_factor", is_int_in(range(1, 1 << 31)), "1 to 2**31 - 1")
    if unit is None or factor is None:
        return None
    spelled = "us" if unit in ("\u03bcs", "\u00b5s") else unit
    return Time(name, np.dtype(f"{_TIMES[name]}[{factor}{spelled}]"))


def _sized(name: str, members: FieldReader) -> DataType | None:
    cls, kind, unit = _SIZED[name]
    length = members.take(
        "length_bytes",
        lambda v: is_int(v) and 0 < v <= LARGEST_ITEM and v % unit == 0,
        f"a multiple of {unit} from {unit} to {LARGEST_ITEM}",
    )
    return None if length is None else cls(name, np.dtype(f"{kind}{length // unit}"))


def _struct(name: str, members: FieldReader, nesting: _Nesting) -> DataType | None:
    items = members.take("fields", lambda v: is_list(v) and v, "a list of at least one field")
    if items is None:
        return None
    nesting.fields += len(items)
    if nesting.depth >= _DEEPEST or nesting.fields > _MOST_FIELDS:
        expected = f"at most {_MOST_FIELDS} fields in structs nested at most {_DEEPEST} deep"
        members.blame("fields", name, expected)
        return None
    nesting.depth += 1
    fields = []
    for position, item in enumerate(items):
        made = _field(item, members.at(f"fields[{position}]"), members, nesting)
        if made is not None:
            fields.append(made)
        elif len(members.problems) >= _MOST_PROBLEMS:
            break
    nesting.depth -= 1
    names = [field for field, _ in fields]
    if len(set(names)) != len(names):
        members.blame("fields", names, "names that differ")
    if sum(item.dtype.itemsize for _, item in fields) > LARGEST_ITEM:
        members.blame("fields", "more", f"at most {LARGEST_ITEM} bytes for an element")
    if members.problems:
        return None
    return struct_of(fields, legacy=name == "structured")


def _field(
    item: Any, place: str, members: FieldReader, nesting: _Nesting
) -> tuple[str, DataType] | None:
    """Return one field: an object, or a pair as in zarr-python before ``struct`` was registered."""
    if isinstance(item, Mapping):
        field, document, extra = item.get("name"), item.get("data_type"), set(item)
        extra -= {"name", "data_type"}
    elif isinstance(item, list) and len(item) == 2:
        (field, document), extra = item, set()
    else:
        field, document, extra = None, None, set()
    if not isinstance(field, str) or not field or document is None or extra:
        expected = "an object of a 'name' that is not empty and a 'data_type'"
        members.problems.append(ValidationProblem(place, item, expected))
        return None
    made = _from_v3(document, f"{place}.data_type", nesting)
    if isinstance(made, list):
        members.problems.extend(made)
        return None
    if made.variable:
        expected = "a data type of a fixed size"
        members.problems.append(ValidationProblem(f"{place}.data_type", document, expected))
        return None
    return field, made
