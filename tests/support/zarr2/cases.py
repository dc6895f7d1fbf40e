"""Arrays that zarr-python 2.18 and this package exchange, and the values they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, product
from typing import Any

import numpy as np

from zarr_dask.formats.numpy_dtype_json import dtype_from_json

NUMBERS = [
    *("|b1", "|i1", "<i2", ">i4", "<i8", "|u1", ">u2", "<u4", ">u8"),
    *("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16"),
]
TIMES = ["<M8[ns]", ">M8[s]", "<M8[10us]", ">m8[D]", "<m8[Y]", "<M8[h]", "<m8[as]"]
TEXTS = ["|S1", "|S12", "<U1", "<U5", ">U3", "|V1", "|V7"]
STRUCTS = [
    [["x", "<f4"], ["y", "<f4"], ["z", "<f4", [2, 2]]],
    [["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]],
    [["a", ">i2"], ["b", "<i2"], ["c", ">f8"]],
    [["flag", "|b1"], ["when", ">M8[s]"], ["name", "<U3"], ["raw", "|V3"], ["key", "|S4"]],
    [["größe", "|i1"], ["x", ">c8", [2]]],
]
COMPRESSORS = [
    None,
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": -1, "blocksize": 0},
    {"id": "blosc", "cname": "blosclz", "clevel": 9, "shuffle": 2, "blocksize": 0},
    {"id": "blosc", "cname": "zlib", "clevel": 1, "shuffle": 0, "blocksize": 0},
    {"id": "blosc", "cname": "lz4hc", "clevel": 1, "shuffle": 1, "blocksize": 64},
    {"id": "zlib", "level": 1},
    {"id": "gzip", "level": 5},
    {"id": "bz2", "level": 1},
    {"id": "lz4", "acceleration": 1},
    {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
    {"id": "lzma", "format": 3, "check": -1, "preset": None, "filters": [{"id": 33, "preset": 1}]},
    {"id": "zstd", "level": 3},
]
FILTERS = {
    "delta": ("<i4", {"id": "delta", "dtype": "<i4"}),
    "delta of times": ("<m8[s]", {"id": "delta", "dtype": "<i8"}),
    "delta, smaller": (">i4", {"id": "delta", "dtype": ">i4", "astype": "<i2"}),
    "fixedscaleoffset": (
        "<f8",
        {"id": "fixedscaleoffset", "scale": 1, "offset": 3, "dtype": "<f8", "astype": "|u1"},
    ),
    "quantize": ("<f4", {"id": "quantize", "digits": 2, "dtype": "<f4"}),
    "bitround": ("<f4", {"id": "bitround", "keepbits": 20}),
    "astype": ("<i4", {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"}),
    "packbits": ("|b1", {"id": "packbits"}),
    "categorize": (
        "<U4",
        {"id": "categorize", "labels": ["ab", "größ"[:4]], "dtype": "<U4", "astype": "|u1"},
    ),
    "shuffle": ("<f8", {"id": "shuffle", "elementsize": 8}),
    "crc32": ("<i2", {"id": "crc32"}),
    "crc32, end": ("<i2", {"id": "crc32", "location": "end"}),
    "adler32": ("<i2", {"id": "adler32"}),
    "fletcher32": ("<i2", {"id": "fletcher32"}),
    "jenkins_lookup3": ("<i2", {"id": "jenkins_lookup3", "initval": 3}),
    "a compressor": ("<i2", {"id": "zlib", "level": 1}),
}
OBJECTS = {
    "vlen-utf8": {"id": "vlen-utf8"},
    "vlen-bytes": {"id": "vlen-bytes"},
    "vlen-array": {"id": "vlen-array", "dtype": "<i4"},
    "json2": {"id": "json2"},
    "categorize": {
        "id": "categorize", "labels": ["a", "bé"], "dtype": "|O", "astype": "|u1"
    },
}  # fmt: skip
SHAPES = [((), ()), ((7,), (3,)), ((5, 6), (2, 4)), ((4, 3, 5), (3, 3, 2)), ((0, 3), (1, 2))]


@dataclass(frozen=True)
class Case:
    """An array, and how it is stored."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    fill: Any = 0
    order: str = "C"
    separator: str = "."
    compressor: Any = None
    filters: tuple[Any, ...] = ()
    simple: bool = False
    """Whether values are small, as lossy filters need them."""
    attributes: dict[str, Any] = field(default_factory=lambda: {"größe": "ß", "unit": "m"})

    def __str__(self) -> str:
        return self.name

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype with its byte orders."""
        return dtype_from_json(self.dtype)

    @property
    def zarr_dask_dtype(self) -> Any:
        """What `zarr_dask.create_array` is given."""
        if self.dtype != "|O":
            return self.stored
        names = {"vlen-bytes": "bytes", "vlen-utf8": "string", "categorize": "string"}
        return names.get(self.filters[0]["id"], "object")

    @property
    def fill_array(self) -> np.ndarray:
        """The fill value in an array of one element, None for none."""
        if self.fill is None or self.dtype == "|O":
            result = np.empty(1, object)
            result[0] = self.fill
            return result
        result = np.zeros(1, self.stored.newbyteorder("="))
        if type(self.fill) is not int or self.fill:
            result[0] = self.fill
        return result

    @property
    def written(self) -> tuple[slice, ...]:
        """The region that is written: all but the last rows, so that chunks are absent."""
        if not self.shape or self.simple:
            return tuple(slice(0, n) for n in self.shape)
        rows = self.shape[0] - self.shape[0] % self.chunks[0] if len(self.shape) > 1 else None
        return (slice(0, rows), *(slice(0, n) for n in self.shape[1:]))

    @cached_property
    def values(self) -> np.ndarray:
        """What is written into that region, in native byte order."""
        shape = np.empty(self.shape, "V1")[self.written].shape
        if self.dtype == "|O":
            return objects(self.filters[0]["id"], shape)
        if self.simple:
            small = np.arange(3, 3 + int(np.prod(shape))).reshape(shape) % 100
            if self.stored.kind == "U":
                return np.array(["ab", "größ", ""])[small % 3].astype(self.stored)
            return (small % 2 if self.stored.kind == "b" else small).astype(
                self.stored.newbyteorder("=")
            )
        return anything(self.stored.newbyteorder("="), shape)

    @property
    def expected(self) -> np.ndarray:
        """All values, with the fill value where none were written."""
        result = np.empty(self.shape, self.values.dtype)
        fill = self.fill_array
        if self.dtype == "|O":
            zero = {"string": "", "bytes": b""}.get(self.zarr_dask_dtype)
            result[...] = zero if self.fill in (None, 0) and zero is not None else self.fill
        else:
            result[...] = np.zeros((), result.dtype) if self.fill is None else fill[0]
        result[self.written] = self.values[()]
        return result


def anything(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Random bits, where all bits are values: NaN of any payload, NaT, -0.0."""
    rng = np.random.default_rng(len(shape) + dtype.itemsize)
    if dtype.names is not None:
        result = np.zeros(shape, dtype)
        for name in dtype.names:
            inner = dtype[name]
            result[name] = anything(inner.base, shape + inner.shape)
        return result
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "SU":
        alphabet = np.array(["", "a", "ab", "größe", "\U0001f600x"])
        texts = alphabet[rng.integers(0, 5 if dtype.kind == "U" else 3, shape)]
        return np.asarray(texts.astype(dtype))
    count = int(np.prod(shape))
    raw = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()
    if dtype.kind == "f" and raw.size > 1:
        raw.flat[0], raw.flat[1] = -0.0, np.inf
    return raw


def objects(codec: str, shape: tuple[int, ...]) -> np.ndarray:
    items = {
        "vlen-utf8": ["a", "bé", "", "\U0001f600"],
        "vlen-bytes": [b"a", b"\xff\0", b""],
        "vlen-array": [np.array([1, 2], "i4"), np.array([], "i4"), np.array([-1], "i4")],
        "json2": ["a", 1, None, [1, 2], {"ß": 1.5}],
        "categorize": ["a", "bé"],
    }[codec]
    result = np.empty(shape, object)
    supply = cycle(items)
    for index in np.ndindex(shape):
        result[index] = next(supply)
    return result


def _fills(document: Any) -> list[Any]:
    """Fill values for a data type, none included."""
    stored = dtype_from_json(document)
    kind = stored.kind
    if stored.names is not None:
        return [0, None]
    return {
        "b": [True, 0, None],
        "f": [np.nan, np.inf, -np.inf, 1.5, None],
        "c": [1 + 2j, complex(np.nan, -np.inf), None],
        "M": [np.array(-(1 << 63), "i8").view("M8[s]")[()], 0, None],
        "m": [np.array(-(1 << 63), "i8").view("m8[s]")[()], 0, None],
        "S": [b"a", 0, None],
        "U": ["ß", 0, None],
        "V": [np.void(b"\1" * stored.itemsize), None],
    }.get(kind, [7, 0, None])


def cases() -> list[Case]:
    """All cases; orders and separators in turn, shapes where they are not given."""
    orders, separators, shapes = cycle("CFCCF"), cycle(".//"), cycle(SHAPES)

    def made(given: dict[str, Any]) -> Case:
        shape, chunks = given.pop("at", None) or next(shapes)
        turn = {"order": next(orders), "separator": next(separators)}
        if given["name"] == "bitround":  # zarr-python 2 does not read its own in order F
            turn["order"] = "C"
        return Case(shape=shape, chunks=chunks, **turn, **given)

    return [made(given) for given in (*_numbers(), *_others(), *_filters(), *_objects())]


def _numbers() -> Iterator[dict[str, Any]]:
    """Every type with every compressor."""
    for dtype in NUMBERS:
        fills = cycle(_fills(dtype))
        for number, compressor in enumerate(COMPRESSORS):
            name = f"{dtype} with compressor {number}"
            yield {"name": name, "dtype": dtype, "compressor": compressor, "fill": next(fills)}


def _others() -> Iterator[dict[str, Any]]:
    """Every type with every fill value and shape."""
    compressors = cycle(COMPRESSORS)
    for dtype in (*TIMES, *TEXTS, *STRUCTS):
        for fill, shape in product(_fills(dtype), SHAPES):
            name = f"{dtype} filled with {fill}"
            compressor = next(compressors)
            yield {
                "name": name,
                "dtype": dtype,
                "compressor": compressor,
                "fill": fill,
                "at": shape,
            }


def _filters() -> Iterator[dict[str, Any]]:
    compressors = cycle(COMPRESSORS)
    chains = {name: (dtype, (config,)) for name, (dtype, config) in FILTERS.items()}
    chains["three"] = (
        "<i4",
        (FILTERS["delta"][1], {"id": "shuffle", "elementsize": 4}, {"id": "crc32"}),
    )
    for (name, (dtype, configs)), shape in product(chains.items(), SHAPES[:4]):
        yield {
            "name": name, "dtype": dtype, "filters": configs, "compressor": next(compressors),
            "at": shape, "simple": True, "fill": None if dtype == "<U4" else 0,
        }  # fmt: skip


def _objects() -> Iterator[dict[str, Any]]:
    compressors = cycle(COMPRESSORS)
    for (name, config), shape, fill in product(OBJECTS.items(), SHAPES, (0, None)):
        yield {
            "name": name, "dtype": "|O", "filters": (config,), "compressor": next(compressors),
            "at": shape, "fill": fill,
        }  # fmt: skip
