"""Data types and fill values in documents of the v3 draft.

A data type is given by its own name (``float64``, ``r24``), or by a NumPy type string (``<f8``: the
names of May 2022, and of the examples in December 2022). It can also be an extension: an object
whose ``type`` is such a string, or a list of fields for structs. The name of the extension is
ignored, because writers disagree on it (zarr-python 2 wrote a placeholder); only its type counts.

Source: v3 draft, "Core data types", "Array metadata" (data_type, fill_value), and its extensions
for datetimes, strings and structs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import is_int
from zarr_dask._util.warnings import warn
from zarr_dask.codecs.arrays import Endian, endian_of
from zarr_dask.dtypes import float_from_json, float_to_json, native, parts_of_complex, scalar
from zarr_dask.errors import ValidationProblem
from zarr_dask.formats import numpy_dtype_json as typestr
from zarr_dask.formats.base import ReadOptions

__all__ = [
    "NamedType",
    "fill_from_json",
    "fill_to_json",
    "is_core",
    "name_to_json",
    "numpy_name_to_json",
    "type_from_json",
]

_CORE = {
    "bool": "|b1",
    **{f"{sign}int{8 * n}": f"<{sign[:1] or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": f"<f{n}" for n in (2, 4, 8)},
    **{f"complex{8 * n}": f"<c{n}" for n in (8, 16)},
}
"""NumPy type strings by core name. The table in the specification lacks int64 and uint64."""
_NAMES = {np.dtype(text): name for name, text in _CORE.items()}
_RAW = re.compile(r"r([1-9][0-9]{0,9})")
_LARGEST_RAW = 1 << 24
_MOST_FALLBACKS = 64
_EXTENSIONS = "https://purl.org/zarr/spec/extensions/data-types"
_PAGES = {
    "c": "complex",
    "m": "datetime",
    "M": "datetime",
    "S": "string",
    "U": "string",
    "V": "struct",
    "O": "object",  # only written by zarr-python 2
}

_EXPECTED = (
    f"a known data type ({', '.join(_CORE)}, r and a number of bits that is a multiple of 8, or a "
    "type string such as '<f8'), or an object with the 'type' of an extension"
)


@dataclass(frozen=True, slots=True)
class NamedType:
    """Data type in a document."""

    stored: np.dtype[Any]
    """The NumPy type as stored; little-endian by default."""
    endian: Endian | None = None
    """Byte order stated by the name, if any."""
    is_fallback: bool = False
    """True if the elements have another, unknown type that may be read as this one."""


def type_from_json(
    document: Any, options: ReadOptions, at: str
) -> NamedType | list[ValidationProblem]:
    """Return the type that ``data_type`` names, or the problems with it.

    Parameters
    ----------
    document
        The field of the document.
    options
        ``fallback_dtypes`` allows the first known fallback of an unknown type, with a warning.
    at
        Store and key, for the warning.

    Examples
    --------
    >>> type_from_json(">f8", ReadOptions(), "")
    NamedType(stored=dtype('>f8'), endian='big', is_fallback=False)
    """
    if not isinstance(document, Mapping):
        named = _of_name(document)
        return named or [ValidationProblem("data_type", document, _EXPECTED, "data_type")]
    named = _of_extension(document.get("type"))
    if named is not None:
        return named
    fallback = document.get("fallback")
    candidates = fallback if isinstance(fallback, list) else [fallback]
    known = next(filter(None, map(_of_name, candidates[:_MOST_FALLBACKS])), None)
    if known is None:
        return [ValidationProblem("data_type", dict(document), _EXPECTED, "data_type")]
    if not options.fallback_dtypes:
        expected = (
            f"a known data type. ReadOptions(fallback_dtypes=True) reads its elements as their "
            f"fallback {fallback!r}"
        )
        return [ValidationProblem("data_type", dict(document), expected, "data_type")]
    warn(
        f"{at}: the data type {document.get('type')!r} is unknown; its elements are read as "
        f"{known.stored}, its fallback, and need not mean what they seem to.",
    )
    return NamedType(known.stored, known.endian, is_fallback=True)


def _of_name(name: Any) -> NamedType | None:
    if not isinstance(name, str):
        return None
    if name in _CORE:
        return NamedType(np.dtype(_CORE[name]))
    raw = _RAW.fullmatch(name)
    if raw is not None:
        bits = int(raw[1])
        return NamedType(np.dtype(f"V{bits // 8}")) if _is_raw(bits) else None
    # "u1" and "i1" are names of May 2022; zarr-python 2 accepted "|u1" as well
    return _of_numpy(f"|{name}" if name in {"i1", "u1"} else name, kinds="biufc")


def _is_raw(bits: int) -> bool:
    return bits % 8 == 0 and bits // 8 <= _LARGEST_RAW


def _of_extension(name: Any) -> NamedType | None:
    if isinstance(name, str):
        full = f"|{name}" if name[:1] in {"S", "V"} else name  # the draft has "S4", NumPy "|S4"
        return _of_name(name) or _of_numpy(full, kinds="mMSUVO")
    if isinstance(name, list) and len(name) == 1 and _is_unnamed(name[0]):
        return _of_numpy(name[0][1], kinds="V")
    return _of_numpy(name, kinds="V") if isinstance(name, list) else None


def _is_unnamed(field: Any) -> bool:
    """True for a field of raw bytes as zarr-python 2 writes it: ``["", "|V4"]``."""
    return isinstance(field, list) and len(field) == 2 and field[0] == ""


def _of_numpy(name: Any, kinds: str) -> NamedType | None:
    made = typestr.dtype_from_json(name, "data_type")
    if isinstance(made, list) or made.kind not in kinds:
        return None
    return NamedType(
        made, endian_of(made) if made.names is None and made.kind in "iufcmMU" else None
    )


def name_to_json(stored: np.dtype[Any]) -> Any:
    """Return the ``data_type`` of December 2022 for a type as stored.

    Returns
    -------
    str or dict
        A core name, which leaves the byte order to a codec, or an extension, which states it.

    Examples
    --------
    >>> name_to_json(np.dtype(">f8")), name_to_json(np.dtype("V3"))
    ('float64', 'r24')
    """
    if is_core(stored):
        return _NAMES.get(stored.newbyteorder("<"), f"r{8 * stored.itemsize}")
    # the core name of an integer implies little-endian
    is_integer = stored.kind in "mM" and stored.str[0] == "<"
    fallback = "int64" if is_integer else f"r{8 * stored.itemsize}"
    return _extension(stored, None if stored.hasobject else fallback)


def is_core(stored: np.dtype[Any]) -> bool:
    """True if a type as stored has a core name in the specification of December 2022."""
    return stored.newbyteorder("<") in _NAMES or (stored.kind == "V" and stored.names is None)


def numpy_name_to_json(stored: np.dtype[Any]) -> Any:
    """Return the ``data_type`` of May 2022 for a type as stored, as zarr-python 2 reads it.

    Examples
    --------
    >>> numpy_name_to_json(np.dtype("u1")), numpy_name_to_json(np.dtype(">f8"))
    ('u1', '>f8')
    """
    if stored.names is None and stored.kind in "biuf":
        return "bool" if stored.kind == "b" else stored.str.lstrip("|")
    return _extension(stored, None)


def _extension(stored: np.dtype[Any], fallback: str | None) -> dict[str, Any]:
    uri = f"{_EXTENSIONS}/{_PAGES[stored.kind]}/1.0"
    named = stored.str if stored.names is None else typestr.dtype_to_json(stored)
    return {"extension": uri, "type": named, **({"fallback": fallback} if fallback else {})}


# --- fill values ----------------------------------------------------------------------------------


def fill_from_json(value: Any, stored: np.dtype[Any]) -> np.ndarray:
    r"""Return a fill value as a 0-d array in native byte order.

    Parameters
    ----------
    value
        Value in the document; not null.
    stored
        The type as stored, other than that of objects.

    Raises
    ------
    ValueError, TypeError, OverflowError
        If it is not a value of that type.

    Examples
    --------
    >>> fill_from_json("+Infinity", np.dtype("<f4")), fill_from_json("0x0102", np.dtype("V2"))
    (array(inf, dtype=float32), array(b'\x01\x02', dtype='|V2'))
    """
    dtype = native(stored)
    if dtype.kind == "b":
        if not isinstance(value, bool):
            raise TypeError(f"{value!r} is neither true nor false")
        return scalar(value, dtype)
    if dtype.kind in "iu":
        if not is_int(value):
            raise TypeError(f"{value!r} is not a number without fraction and exponent")
        return scalar(value, dtype)
    if dtype.kind == "f":
        return _float(value, dtype)
    if dtype.kind == "c":
        # unspecified; writers use a pair, or a real number if the fill value is real
        pair = value if isinstance(value, list) and len(value) == 2 else [value, 0]
        part = parts_of_complex(dtype)
        return np.array([_float(item, part) for item in pair], part).view(dtype).reshape(())
    if dtype.kind == "V" and dtype.names is None and isinstance(value, str):
        raw = _bit_pattern(value, dtype.itemsize)
        if raw is not None:
            return np.frombuffer(raw, dtype).reshape(())
    return typestr.fill_from_json(value, stored)


def _float(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if isinstance(value, str):
        raw = _bit_pattern(value, dtype.itemsize)
        if raw is not None:
            return np.frombuffer(raw, dtype.newbyteorder(">")).astype(dtype).reshape(())
        if value == "+Infinity":
            value = "Infinity"
    return float_from_json(value, dtype)


_PATTERN = re.compile(r"0b(?P<binary>[01]+)|0x(?P<hexadecimal>[0-9a-fA-F]+)")


def _bit_pattern(text: str, nbytes: int) -> bytes | None:
    """Return the bytes of "0x..." or "0b...", most significant first; None for another width."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    base, digits = (2, match["binary"]) if match["binary"] else (16, match["hexadecimal"])
    if len(digits) * (1 if base == 2 else 4) != 8 * nbytes:
        return None
    if base == 16:
        return bytes.fromhex(digits)
    return int(digits, 2).to_bytes(nbytes, "big")


def fill_to_json(value: np.ndarray, stored: np.dtype[Any]) -> Any:
    """Return a fill value as in a document of December 2022.

    Parameters
    ----------
    value
        A 0-d array in native byte order.
    stored
        The type as stored, other than that of objects.

    Examples
    --------
    >>> fill_to_json(np.array(np.inf), np.dtype("<f8"))
    '+Infinity'
    >>> fill_to_json(np.array(b"ab", "V2"), np.dtype("V2"))
    '0x6162'
    """
    if stored.kind == "f":
        return _float_to_json(value)
    if stored.kind == "c":
        parts = value.reshape(1).view(parts_of_complex(value.dtype))
        return [_float_to_json(part) for part in parts.reshape(2, 1)]
    if stored.kind == "V" and stored.names is None:
        return f"0x{value.tobytes().hex()}"
    return typestr.fill_to_json(value, stored)


def _float_to_json(value: np.ndarray) -> float | str:
    document = float_to_json(value.reshape(()))
    return "+Infinity" if document == "Infinity" else document
