"""NetCDF-3 files (classic, 64-bit offset and CDF-5): headers with the places of all values.

The format is described in NetCDF's "Classic Format Specification". A header comes from a stranger:
all counts are checked against the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from zarr_dask.jobs.ingest.hdf5 import pieces
from zarr_dask.jobs.ingest.header import Variable, decoded, encoded

__all__ = ["MAGIC", "ShortHeaderError", "read_header"]

MAGIC = b"CDF"

_TYPES = {
    1: ">i1",
    2: "|S1",
    3: ">i2",
    4: ">i4",
    5: ">f4",
    6: ">f8",
    7: ">u1",
    8: ">u2",
    9: ">u4",
    10: ">i8",
    11: ">u8",
}
_DEFAULT_FILLS = {
    ">i1": -127,
    "|S1": b"",
    ">i2": -32767,
    ">i4": -2147483647,
    ">f4": 9.969209968386869e36,
    ">f8": 9.969209968386869e36,
    ">u1": 255,
    ">u2": 65535,
    ">u4": 4294967295,
    ">i8": -9223372036854775806,
    ">u8": 18446744073709551614,
}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_MOST = 1 << 20
"""Most dimensions, attributes or variables, and most bytes of a name."""
_SPAN = 1 << 22
"""Bytes of the file that one piece of records may span."""


class ShortHeaderError(ValueError):
    """The header is longer than the bytes at hand."""


@dataclass
class _Reader:
    data: bytes
    at: int = 4
    wide: bool = False
    """True for CDF-5, whose counts have 64 bits."""

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise ShortHeaderError(f"the header ends at byte {len(self.data)}, or a count is wrong")
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, wide: bool | None = None) -> int:
        return int.from_bytes(self.take(8 if (self.wide if wide is None else wide) else 4), "big")

    def name(self) -> str:
        length = self.integer()
        if length > _MOST:
            raise ValueError(f"a name of {length} bytes")
        text, _, _ = self.padded(length).partition(b"\0")  # some writers count the end of a text
        return text.decode("utf-8", "replace")

    def padded(self, length: int) -> bytes:
        value = self.take(length)
        self.take(-length % 4)
        return value

    def listed(self, tag: int, item: Callable[[], Any]) -> list[Any]:
        found, count = self.integer(wide=False), self.integer()
        if count == 0 and found in {0, tag}:
            return []
        if found != tag or count > _MOST:
            raise ValueError(f"a list of {count} items with the tag {found}, expected {tag}")
        return [item() for _ in range(count)]


def read_header(data: bytes, size: int) -> tuple[dict[str, dict[str, Any]], dict[str, Variable]]:
    """Return the attributes of the root group, and the variables.

    Parameters
    ----------
    data
        The first bytes of the file.
    size
        Bytes of the whole file.

    Raises
    ------
    ShortHeaderError
        If more bytes are needed.
    ValueError
        If it is no such header.
    """
    version = data[3] if len(data) > 3 else 0
    if not data.startswith(MAGIC) or version not in {1, 2, 5}:
        raise ValueError("it does not begin with b'CDF' and 1, 2 or 5")
    reader = _Reader(data, wide=version == 5)
    records = reader.integer()
    streaming = records == (1 << (64 if reader.wide else 32)) - 1

    def attribute() -> tuple[str, Any]:
        return reader.name(), _attribute(reader)

    def variable() -> tuple[str, list[int], list[Any], int, int]:
        name = reader.name()
        ids = [reader.integer() for _ in range(min(reader.integer(), _MOST))]
        attrs = reader.listed(_ATTRIBUTES, attribute)
        code = reader.integer(wide=False)
        reader.integer()  # its size, which is wrong where it has more than 4 GiB
        return name, ids, attrs, code, reader.integer(wide=version > 1)

    dims = reader.listed(_DIMENSIONS, lambda: (reader.name(), reader.integer()))
    attrs = reader.listed(_ATTRIBUTES, attribute)
    read = reader.listed(_VARIABLES, variable)
    for _, ids, _, code, _ in read:
        if code not in _TYPES or any(number >= len(dims) for number in ids):
            raise ValueError("a variable has an unknown data type or dimension")
    unlimited = next((number for number, (_, length) in enumerate(dims) if length == 0), None)
    recorded = [one for one in read if one[1] and one[1][0] == unlimited]
    strides = [_record_bytes(one, dims) for one in recorded]
    stride = sum(-(-n // 4) * 4 for n in strides) if len(strides) > 1 else sum(strides)
    if streaming and recorded:
        first = min(one[4] for one in recorded)
        records = max(size - first, 0) // max(stride, 1)
    lengths = [records if number == unlimited else n for number, (_, n) in enumerate(dims)]
    _check_apart(read, dims, [min(n, 1) if at == unlimited else n for at, n in enumerate(lengths)])
    variables = {
        name: _variable(
            [dims[n][0] for n in ids],
            [lengths[n] for n in ids],
            dict(given),
            code,
            begin,
            stride if ids and ids[0] == unlimited else 0,
            size,
        )
        for name, ids, given, code, begin in read
    }
    return {"": dict(attrs)}, variables


def _check_apart(read: Sequence[Any], dims: list[Any], lengths: Sequence[int]) -> None:
    """Raise if variables overlap, with the lengths of dimensions in the first record.

    Raises
    ------
    ValueError
        If one begins within another one.
    """
    spans = sorted(
        (one[4], _record_bytes(one, dims) * (lengths[one[1][0]] if one[1] else 1)) for one in read
    )
    for (begin, nbytes), (following, _) in pairwise(spans):
        if begin + nbytes > following:
            raise ValueError(f"the header is damaged: variables overlap at byte {following}")


def _record_bytes(one: tuple[str, list[int], list[Any], int, int], dims: list[Any]) -> int:
    """Return the bytes of one record of a variable, without padding."""
    _, ids, _, code, _ = one
    return prod(int(dims[n][1]) for n in ids[1:]) * np.dtype(_TYPES[code]).itemsize


def _attribute(reader: _Reader) -> Any:
    code, count = reader.integer(wide=False), reader.integer()
    if code not in _TYPES:
        raise ValueError(f"an attribute of the unknown data type {code}")
    dtype = np.dtype(_TYPES[code])
    data = reader.padded(count * dtype.itemsize)
    if dtype.kind == "S":
        return data.rstrip(b"\0").decode("utf-8", "replace")
    values = np.frombuffer(data, dtype)
    return encoded(values[0] if len(values) == 1 else values)


def _fill(given: Any, code: str) -> Any:
    """Return a fill value in a data type; the default one if it is of another kind."""
    value, dtype = decoded(given), np.dtype(code)
    if dtype.kind == "S" and isinstance(value, str):
        return value.encode()[: dtype.itemsize]
    if isinstance(value, np.generic) and value.dtype.kind in "iuf":
        return value.astype(dtype)
    return np.array(_DEFAULT_FILLS[code], dtype)[()]


def _variable(
    dims: list[str],
    lengths: list[int],
    attrs: dict[str, Any],
    code: int,
    begin: int,
    stride: int,
    size: int,
) -> Variable:
    """Return one variable; `stride` is 0 if it has no records."""
    dtype = np.dtype(_TYPES[code])
    shape = tuple(lengths)
    fill = encoded(_fill(attrs.get("_FillValue"), _TYPES[code]))
    record = prod(shape[1:]) * dtype.itemsize
    if stride and stride != record:
        end = begin + max(shape[0] - 1, 0) * stride + record if shape[0] else begin
        layout, chunks = "records", (max(min(shape[0], _SPAN // stride), 1), *shape[1:])
    else:
        end = begin + prod(shape) * dtype.itemsize
        layout, chunks = "range", pieces(shape, dtype.itemsize)
        stride = 0
    cut = end > size and prod(shape) > 0  # records that are not there begin behind the file
    short = f"ends at byte {end} of a file of {size}: the file is cut off" if cut else ""
    return Variable(
        tuple(dims),
        shape,
        dtype.str,
        attrs,
        layout,
        tuple(max(n, 1) for n in chunks),
        (),
        fill,
        begin,
        stride,
        unsupported=short,
    )
