"""Headers of files: what a survey keeps of each, as values with a JSON form."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = [
    "MOST_PLACES",
    "NOT_FINITE",
    "Header",
    "Places",
    "Variable",
    "decoded",
    "encoded",
    "packed_places",
    "plain",
    "reason",
    "unpacked_places",
]

NOT_FINITE = 2
"""The direction of values of which one is NaN or infinite."""


@dataclass(frozen=True)
class Variable:
    """One variable of a file: its place in the file, and what its values mean."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    """Type string of NumPy with its byte order; ``"string"`` for texts of any length."""
    attrs: Mapping[str, Any]
    """Attributes in the form of `encoded`."""
    layout: str
    """``"chunks"`` (HDF5), ``"range"`` (one range of bytes), ``"records"`` (one range for each
    element of the first dimension), or ``"values"`` (read by the library of the file's format).
    """
    chunks: tuple[int, ...] = ()
    """Shape of the pieces that are decoded at once."""
    filters: tuple[Mapping[str, Any], ...] = ()
    """Filters of the chunks in the order of encoding, as numcodecs names them."""
    fill: Any = None
    """Value of elements that were never written, in the form of `encoded`."""
    offset: int | None = None
    """First byte of a range or of the first record; None if nothing is stored."""
    stride: int = 0
    """Bytes from one record to the next."""
    digest: str = ""
    """Digest of the values, of small variables only."""
    values: tuple[float, ...] = ()
    """First, last, smallest and largest value of a variable along its own dimension, and its
    direction: 1 or -1 if its values only rise or fall, else 0; or `NOT_FINITE`, and the others say
    nothing.
    """
    unsupported: str = ""
    """Reason why it cannot be read; empty if it can."""
    places: str = ""
    """Chunks in the file, if they are few, as `packed_places` returns them; empty to look for
    them in the file."""

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-n // size) for n, size in zip(self.shape, self.chunks, strict=True))

    def attribute(self, name: str) -> Any:
        """Return the value of an attribute, None if there is none."""
        return decoded(self.attrs[name]) if name in self.attrs else None

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 16 if self.dtype == "string" else np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Header:
    """Contents of a file without its values, or the reason why it cannot be read."""

    url: str
    size: int
    tag: str
    """Changes whenever the file does, as far as its place can tell."""
    kind: str = ""
    """``"hdf5"``, ``"netcdf3"``, or the name of an engine of xarray."""
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes of each group by path, the root's by the empty path."""
    variables: Mapping[str, Variable] = field(default_factory=dict)
    """Variables by path."""
    error: str = ""
    """Reason why the file cannot be read; empty if it can."""
    left_out: tuple[str, ...] = ()
    """Attributes that NumPy has no data type for, as ``PATH@NAME``, and links that lead to other
    files or to nothing, by path."""

    def to_json(self) -> dict[str, Any]:
        """Return the header as a JSON object."""
        variables = {
            path: {name: value for name, value in vars(one).items() if value != _DEFAULTS[name]}
            for path, one in self.variables.items()
        }
        return {**vars(self), "variables": variables}

    @staticmethod
    def of_json(facts: Mapping[str, Any]) -> Header:
        """Return the header that `to_json` has described.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is none.
        """
        variables = {path: _variable(one) for path, one in facts["variables"].items()}
        left_out = tuple(facts.get("left_out", ()))
        found = Header(**{**facts, "variables": variables, "left_out": left_out})
        texts = (found.url, found.tag, found.kind, found.error, *left_out)
        _require(
            all(isinstance(text, str) for text in texts), "url, tag, kind, error, left_out", texts
        )
        _require(_are_counts([found.size]), "size", found.size)
        for attrs in found.groups.values():
            _check_attributes(attrs)
        return found

    @property
    def dimensions(self) -> dict[str, int]:
        """Lengths of the dimensions of all variables."""
        found: dict[str, int] = {}
        for one in self.variables.values():
            found.update(zip(one.dims, one.shape, strict=True))
        return found


# --- places of chunks -----------------------------------------------------------------------------

Places = Mapping[tuple[int, ...], tuple[int, int, int]]
"""Offset, size and filter mask of each stored chunk, by its coordinates."""

_PLACE = np.dtype([("offset", "<u8"), ("size", "<u4"), ("skipped", "<u4")])
_NOT_STORED = 2**64 - 1
MOST_PLACES = 64
"""Most chunks of a variable whose places are kept with its header."""


def packed_places(places: Places, counts: tuple[int, ...]) -> str:
    """Return places of chunks as a text that takes 22 bytes for each.

    Empty if there are more than `MOST_PLACES`, or a number is too large.

    Examples
    --------
    >>> packed_places({(0,): (8, 2, 0)}, (2,))
    'CAAAAAAAAAACAAAAAAAAAP//////////AAAAAAAAAAA='
    >>> unpacked_places(packed_places({(0,): (8, 2, 0)}, (2,)), (2,))
    {(0,): (8, 2, 0)}
    """
    if math.prod(counts) > MOST_PLACES or any(
        n >= 2**32 for one in places.values() for n in one[1:]
    ):
        return ""
    found = np.zeros(counts, _PLACE)
    found["offset"] = _NOT_STORED
    for coords, place in places.items():
        found[coords] = place
    return base64.b64encode(found.tobytes()).decode()


def unpacked_places(
    text: str, counts: tuple[int, ...]
) -> dict[tuple[int, ...], tuple[int, int, int]]:
    """Return what `packed_places` was given.

    Raises
    ------
    ValueError
        If the text is of another number of chunks.
    """
    found = np.frombuffer(base64.b64decode(text), _PLACE)
    if len(found) != math.prod(counts):
        raise ValueError(f"{len(found)} places of {math.prod(counts)} chunks")
    numbers = zip(*(found[name].tolist() for name in _PLACE.names or ()), strict=True)
    pairs = zip(np.ndindex(counts), numbers, strict=True)
    return {at: place for at, place in pairs if place[0] != _NOT_STORED}


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("dims", "shape", "dtype", "attrs", "layout"), object()),
    **{
        name: one.default
        for name, one in Variable.__dataclass_fields__.items()
        if name not in {"dims", "shape", "dtype", "attrs", "layout"}
    },
}


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# --- surveys of strangers -------------------------------------------------------------------------

_LARGEST = 1 << 63
_LAYOUTS = {"chunks", "range", "records", "values"}


def _variable(facts: Mapping[str, Any]) -> Variable:
    """Return a variable of which every member is what a survey writes.

    Raises
    ------
    KeyError, TypeError, ValueError
        If one is not.
    """
    found = Variable(**{name: _tuples(value) for name, value in facts.items()})
    rank = len(found.shape)
    are_names = len(found.dims) == rank and all(isinstance(one, str) for one in found.dims)
    _require(are_names, "dims", found.dims)
    _require(_are_counts(found.shape), "shape", found.shape)
    _require(_are_counts(found.chunks) and len(found.chunks) in {0, rank}, "chunks", found.chunks)
    are_pieces = all(n or not size for n, size in zip(found.chunks, found.shape, strict=False))
    _require(are_pieces, "chunks", found.chunks)
    numbers = [found.stride, *(() if found.offset is None else (found.offset,))]
    _require(_are_counts(numbers), "offset and stride", numbers)
    texts = (found.dtype, found.layout, found.digest, found.unsupported, found.places)
    _require(all(isinstance(text, str) for text in texts), "texts", texts)
    if found.places:
        unpacked_places(found.places, found.chunk_counts)
    _require(found.dtype == "string" or not np.dtype(found.dtype).hasobject, "dtype", found.dtype)
    _require(found.layout in _LAYOUTS, "layout", found.layout)
    _require(all(isinstance(one, dict) for one in found.filters), "filters", found.filters)
    are_ends = all(type(one) in {int, float} for one in found.values)
    _require(are_ends and len(found.values) in {0, 5}, "values", found.values)
    _check_attributes({**found.attrs, "fill": found.fill})
    return found


def _check_attributes(attrs: Mapping[str, Any]) -> None:
    for value in attrs.values():
        if isinstance(value, Mapping):
            _require(not np.dtype(value["dtype"]).hasobject, "data type", value["dtype"])
            decoded(value)


def _are_counts(values: Sequence[Any]) -> bool:
    return all(type(one) is int and 0 <= one < _LARGEST for one in values)


def _require(is_right: bool, name: str, found: object) -> None:
    if not is_right:
        raise ValueError(f"its {name} {found!a:.80} is none")


# --- attributes and fill values -------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """Return an attribute as JSON that keeps its data type; texts are texts.

    Examples
    --------
    >>> encoded(np.float32(1.5)), encoded("K"), encoded(np.array([1, 2], "i2"))
    ({'dtype': '<f4', 'value': 1.5}, 'K', {'dtype': '<i2', 'value': [1, 2]})
    >>> encoded(float("nan"))
    {'dtype': '<f8', 'value': 'NaN'}
    """
    if isinstance(value, bytes):
        return {"dtype": f"|S{max(len(value), 1)}", "value": base64.b64encode(value).decode()}
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "OU":
        return [str(item) for item in array.ravel()]
    if array.dtype.kind == "S":
        return encoded(array.item()) if array.ndim == 0 else [_text(v) for v in array.ravel()]
    array = array.astype(array.dtype.newbyteorder("<"))
    return {"dtype": array.dtype.str, "value": _listed(array.tolist())}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def reason(error: Exception) -> str:
    """Return the text of an exception of another library.

    Examples
    --------
    >>> reason(KeyError("no such object")), reason(OSError())
    ('no such object', 'OSError')
    """
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return str(text) or type(error).__name__


def _listed(value: Any) -> Any:
    if isinstance(value, list):
        return [_listed(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return [value.real, value.imag] if isinstance(value, complex) else value


def decoded(value: Any) -> Any:
    """Return what `encoded` was given, numbers as NumPy's.

    Examples
    --------
    >>> decoded({"dtype": "<f4", "value": "NaN"})
    np.float32(nan)
    """
    if not isinstance(value, Mapping):
        return value
    dtype = np.dtype(value["dtype"])
    if dtype.kind == "S":
        return base64.b64decode(value["value"])
    if dtype.kind == "c":
        return np.array(value["value"], dtype.char.lower()).view(dtype)[..., 0]
    made = np.array(_numbers(value["value"]), dtype)
    return made[()] if made.ndim == 0 else made


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) else value


def plain(name: str, value: Any) -> Any:
    """Return an attribute as attributes of Zarr have it; masks as xarray writes them to v3.

    Examples
    --------
    >>> plain("scale_factor", {"dtype": "<f4", "value": 0.5})
    0.5
    >>> plain("_FillValue", {"dtype": "<f4", "value": "NaN"})
    'AAAAAAAA+H8='
    """
    if not isinstance(value, Mapping):
        return value
    number = decoded(value)
    kind = np.dtype(value["dtype"]).kind
    if name == "_FillValue" and np.ndim(number) == 0 and kind == "f":
        return base64.b64encode(np.array(number, "<f8").tobytes()).decode()
    if kind == "S":
        return value["value"] if name == "_FillValue" else _text(number)
    return _numbers(value["value"])
