"""The matrix: every combination of features that is tried against every peer.

Six families, each a full product over the features it is about; the other features walk
through their values in turn (`Turns`), so that no family repeats one fixed background.

==============  ==============================================================================
family          full product over
==============  ==============================================================================
``v3-codecs``   data type and stored byte order x codecs after ``bytes``
``v3-layout``   shape and chunk shape x element order x chunk keys
``v3-names``    dimension names out of the common
``v3-shards``   index place x index checksum x codecs inside x nesting x codecs before x after
``v3-fill``     data type x its fill values x how much is written
``v2-codecs``   data type and byte order x compressor x order
``v2-layout``   shape and chunk shape x order x separator
``v2-filters``  filter chains x order x compressor
``v2-fill``     data type x its fill values (null too) x how much is written
==============  ==============================================================================

A case knows nothing of any implementation: it is shapes, names and codec configurations in
the words of the specifications.  What it must read as is `expected`.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numcodecs
import numpy as np

Codecs = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The sharding codec of a case and what stands around it."""

    shape: tuple[int, ...]
    """Shape of the stored object."""
    location: Literal["end", "start"] = "end"
    checksum: bool = True
    """Whether the index ends in a crc32c."""
    nested: tuple[int, ...] | None = None
    """Shape of the shards inside the shard."""
    order: tuple[int, ...] | None = None
    """Transposition before the sharding codec."""
    after: str = "none"
    """Codecs over the whole shard, a key of `V3_CODECS`."""

    @property
    def plain(self) -> bool:
        """Whether a shape alone says it all: one level, checked index at the end."""
        return self == Shards(shape=self.shape)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One array: how it is stored, and how much of it is written."""

    id: str
    format: Literal["v2", "v3"]
    dtype: np.dtype[Any]
    """In v2 with the stored byte order; in v3 native (``endian`` has the stored one)."""
    endian: Literal["little", "big"] = "little"
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    """Shape of what is decoded at once, in the array's dimensions."""
    shards: Shards | None = None
    codecs: str = "none"
    """A key of `V3_CODECS` or `V2_COMPRESSORS`."""
    filters: str = "none"
    """A key of `V2_FILTERS`."""
    order: tuple[int, ...] | None = None
    """Transposition of each chunk before its elements are stored; None is C order."""
    keys: str = "default/"
    """A key of `CHUNK_KEYS`."""
    fill: str = "zero"
    """A key of `FILLS`."""
    written: Literal["all", "part", "nothing"] = "all"
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of what one key holds."""
        return self.chunks if self.shards is None else self.shards.shape

    @property
    def fill_value(self) -> np.generic | None:
        """The fill value as an element of the array."""
        return FILLS[self.fill](self.dtype)

    @property
    def region(self) -> tuple[slice, ...] | None:
        """What is written: whole, or from the middle of the first stored objects to the next."""
        if self.written == "nothing":
            return None
        if self.written == "all":
            return tuple(slice(0, size) for size in self.shape)
        return tuple(
            slice(min(1, size - 1), min(size, step + 1))
            for size, step in zip(self.shape, self.stored, strict=True)
        )


# --- names -------------------------------------------------------------------------------------

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

CHUNK_KEYS = {
    "default/": {"name": "default", "separator": "/"},
    "default.": {"name": "default", "separator": "."},
    "v2.": {"name": "v2", "separator": "."},
    "v2/": {"name": "v2", "separator": "/"},
}


def _named(name: str, **configuration: Any) -> Mapping[str, Any]:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def _blosc(cname: str, shuffle: str, clevel: int = 5) -> Mapping[str, Any]:
    # "typesize" is left out: `documents` puts the item size of the data type in.
    return _named("blosc", cname=cname, clevel=clevel, shuffle=shuffle, blocksize=0)


_CRC = _named("crc32c")

V3_CODECS: Mapping[str, Codecs] = {
    "none": (),
    "gzip": (_named("gzip", level=1),),
    "zstd": (_named("zstd", level=3, checksum=False),),
    "zstd-checksum": (_named("zstd", level=-1, checksum=True),),
    "crc32c": (_CRC,),
    "blosc-lz4": (_blosc("lz4", "shuffle"),),
    "blosc-lz4hc": (_blosc("lz4hc", "noshuffle"),),
    "blosc-blosclz": (_blosc("blosclz", "bitshuffle"),),
    "blosc-zlib": (_blosc("zlib", "shuffle", 1),),
    "blosc-zstd": (_blosc("zstd", "bitshuffle", 9),),
    "blosc-stored": (_blosc("zstd", "noshuffle", 0),),
    "gzip+crc32c": (_named("gzip", level=9), _CRC),
    "crc32c+zstd": (_CRC, _named("zstd", level=0, checksum=False)),
    "blosc+zstd+crc32c": (_blosc("lz4", "shuffle"), _named("zstd", level=1, checksum=True), _CRC),
}
"""Codecs after ``bytes`` (or after the sharding codec), by name."""

V2_COMPRESSORS: Mapping[str, Mapping[str, Any] | None] = {
    "none": None,
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 5},
    "bz2": {"id": "bz2", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None},
    "zstd": {"id": "zstd", "level": 1},
    "zstd-checksum": {"id": "zstd", "level": 3, "checksum": True},
    "blosc-lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc-zstd": {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0},
    "blosc-auto": {"id": "blosc", "cname": "blosclz", "clevel": 5, "shuffle": -1, "blocksize": 0},
}

V2_FILTERS: Mapping[str, tuple[str, tuple[Mapping[str, Any], ...]]] = {
    "delta": ("<i4", ({"id": "delta", "dtype": "<i4"},)),
    "delta-big": (">i2", ({"id": "delta", "dtype": ">i2"},)),
    "delta-narrow": ("<i8", ({"id": "delta", "dtype": "<i8", "astype": "<i2"},)),
    "delta-float": ("<f8", ({"id": "delta", "dtype": "<f8"},)),
    "fixedscaleoffset": (
        "<f8",
        ({"id": "fixedscaleoffset", "scale": 4, "offset": 2, "dtype": "<f8", "astype": "<i2"},),
    ),
    "fixedscaleoffset-int": (
        "<i4",
        ({"id": "fixedscaleoffset", "scale": 1, "offset": 1000, "dtype": "<i4", "astype": "<i4"},),
    ),
    "quantize": ("<f4", ({"id": "quantize", "digits": 1, "dtype": "<f4"},)),
    "quantize-big": (">f8", ({"id": "quantize", "digits": 2, "dtype": ">f8"},)),
    "bitround": ("<f4", ({"id": "bitround", "keepbits": 5},)),
    "packbits": ("|b1", ({"id": "packbits"},)),
    "astype": ("<f8", ({"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f8"},)),
    "astype-big": (">i4", ({"id": "astype", "encode_dtype": ">i2", "decode_dtype": ">i4"},)),
    "shuffle": ("<u4", ({"id": "shuffle", "elementsize": 4},)),
    "shuffle-big": (">f8", ({"id": "shuffle", "elementsize": 8},)),
    "crc32": ("<u2", ({"id": "crc32"},)),
    "crc32-end": ("<u2", ({"id": "crc32", "location": "end"},)),
    "crc32c": ("<f4", ({"id": "crc32c"},)),
    "adler32": ("|u1", ({"id": "adler32"},)),
    "fletcher32": ("<i8", ({"id": "fletcher32"},)),
    "jenkins_lookup3": ("<i4", ({"id": "jenkins_lookup3"},)),
    "delta+zlib": ("<u4", ({"id": "delta", "dtype": "<u4"}, {"id": "zlib", "level": 1})),
    "delta+shuffle": (
        "<i4",
        ({"id": "delta", "dtype": "<i4"}, {"id": "shuffle", "elementsize": 4}),
    ),
    "delta+crc32": ("<i8", ({"id": "delta", "dtype": "<i8"}, {"id": "crc32"})),
    "fixedscaleoffset+delta": (
        "<f4",
        (
            {"id": "fixedscaleoffset", "scale": 8, "offset": 0, "dtype": "<f4", "astype": "<i4"},
            {"id": "delta", "dtype": "<i4"},
        ),
    ),
    "astype+delta+shuffle+adler32": (
        "<f8",
        (
            {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<f8"},
            {"id": "delta", "dtype": "<i2"},
            {"id": "shuffle", "elementsize": 2},
            {"id": "adler32"},
        ),
    ),
}
"""Filter chains by name, each with the data type it is for."""


def _integer_limit(which: str) -> Any:
    return lambda dtype: dtype.type(getattr(np.iinfo(dtype), which))


def _float_bits(bits16: int, bits32: int, bits64: int) -> Any:
    patterns = {2: bits16, 4: bits32, 8: bits64}

    def fill(dtype: np.dtype[Any]) -> np.generic:
        pattern = np.array(patterns[dtype.itemsize], f"u{dtype.itemsize}")
        return pattern.view(dtype.newbyteorder("="))[()]

    return fill


def _complex(real: float, imag: float) -> Any:
    # Put together part by part: arithmetic on complex numbers loses signs of zeros.
    def fill(dtype: np.dtype[Any]) -> np.generic:
        parts = np.array([real, imag], f"f{dtype.itemsize // 2}")
        return parts.view(dtype.newbyteorder("="))[0]

    return fill


def _constant(value: Any) -> Any:
    return lambda dtype: dtype.type(value)


FILLS: Mapping[str, Any] = {
    "zero": _constant(0),
    "true": _constant(True),
    "one": _constant(1),
    "42": _constant(42),
    "max": _integer_limit("max"),
    "min": _integer_limit("min"),
    "0.1": _constant(0.1),
    "-0.0": _constant(-0.0),
    "nan": _float_bits(0x7E00, 0x7FC00000, 0x7FF8000000000000),
    "nan-payload": _float_bits(0x7E01, 0x7FC00123, 0x7FF8000000000123),
    "nan-negative": _float_bits(0xFE00, 0xFFC00000, 0xFFF8000000000000),
    "inf": _constant(np.inf),
    "-inf": _constant(-np.inf),
    "1-2j": _complex(1.0, -2.0),
    "nan+1j": _complex(np.nan, 1.0),
    "-0+infj": _complex(-0.0, np.inf),
    "null": lambda dtype: None,
}
"""Fill values by name, each a function of the data type; ``null`` is v2's undefined one."""


def _fills(dtype: np.dtype[Any]) -> tuple[str, ...]:
    match dtype.kind:
        case "b":
            return ("zero", "true")
        case "i" | "u":
            return ("zero", "42", "max", "min")
        case "f":
            return ("zero", "0.1", "-0.0", "nan", "inf", "-inf")
        case _:
            return ("zero", "1-2j", "nan+1j", "-0+infj")


# --- what the matrix is made of ----------------------------------------------------------------

LAYOUTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "0d": ((), ()),
    "1d": ((6,), (3,)),
    "1d-edge": ((7,), (3,)),
    "1d-one": ((3,), (8,)),
    "1d-empty": ((0,), (4,)),
    "2d": ((4, 6), (2, 3)),
    "2d-edge": ((5, 7), (3, 4)),
    "2d-empty": ((3, 0), (2, 2)),
    "3d-edge": ((3, 4, 5), (2, 3, 2)),
    "3d-thin": ((1, 5, 2), (1, 2, 2)),
    "4d-edge": ((2, 3, 2, 3), (2, 2, 1, 2)),
}
"""Shape and chunk shape, by name."""

ATTRIBUTES: Sequence[Mapping[str, Any]] = (
    {},
    {"units": "m s-1", "scale": 0.5, "count": 3},
    {"nested": {"list": [1, 2.5, None, True, "ü"], "empty": {}}, "": "empty name"},
)


class Turns:
    """Hand out the values of each feature in turn, independent of the others."""

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[Any]] = {}

    def __call__(self, feature: str, values: Sequence[Any]) -> Any:
        return next(self._turns.setdefault(feature, itertools.cycle(values)))


def _reversed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(range(len(shape))))


def _rolled(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(np.roll(range(len(shape)), 1).tolist())


ORDERS: Mapping[str, Any] = {"C": lambda shape: None, "F": _reversed, "rolled": _rolled}


def _names(turn: Turns, ndim: int) -> tuple[str | None, ...] | None:
    if ndim == 0:
        return None
    choices: Sequence[tuple[str | None, ...] | None] = (
        None,
        ("t", "y", "x", "w"),
        ("t", None, "x", None),
        ("über länge", "a.b/c", "x", " "),
    )
    names = turn("names", choices)
    return None if names is None else names[:ndim]


def _stored_dtypes() -> Iterator[tuple[str, np.dtype[Any], Literal["little", "big"]]]:
    """Label, native data type, and stored byte order, of every core data type."""
    for name in DTYPES:
        dtype = np.dtype(name)
        if dtype.itemsize == 1:
            yield name, dtype, "little"
            continue
        yield f"{name}-little", dtype, "little"
        yield f"{name}-big", dtype, "big"


def _v3_codecs(turn: Turns) -> Iterator[Case]:
    for (label, dtype, endian), codecs in itertools.product(_stored_dtypes(), V3_CODECS):
        shape, chunks = LAYOUTS[turn("layout", ("1d-edge", "2d-edge", "3d-edge"))]
        yield Case(
            id=f"v3-codecs-{label}-{codecs}",
            format="v3",
            dtype=dtype,
            endian=endian,
            shape=shape,
            chunks=chunks,
            codecs=codecs,
            order=ORDERS[turn("order", ("C", "C", "F", "rolled"))](shape),
            keys=turn("keys", tuple(CHUNK_KEYS)),
            fill=turn(f"fill-{dtype.kind}", _fills(dtype)),
            written=turn("written", ("all", "all", "part")),
            dimension_names=_names(turn, len(shape)),
            attributes=turn("attributes", ATTRIBUTES),
        )


def _v3_layout(turn: Turns) -> Iterator[Case]:
    for layout, order, keys in itertools.product(LAYOUTS, ORDERS, CHUNK_KEYS):
        shape, chunks = LAYOUTS[layout]
        dtype = np.dtype(turn("dtype", DTYPES))
        yield Case(
            id=f"v3-layout-{layout}-{order}-{keys}",
            format="v3",
            dtype=dtype,
            endian=turn("endian", ("little", "big")),
            shape=shape,
            chunks=chunks,
            codecs=turn("codecs", tuple(V3_CODECS)),
            order=ORDERS[order](shape),
            keys=keys,
            fill=turn(f"fill-{dtype.kind}", _fills(dtype)),
            written=turn("written", ("all", "part", "nothing")) if 0 not in shape else "all",
            dimension_names=_names(turn, len(shape)),
            attributes=turn("attributes", ATTRIBUTES),
        )


_SHARDED = {
    # shape, shard, shard inside the shard, chunk
    "1d": ((21,), (8,), (4,), (2,)),
    "2d": ((10, 9), (4, 8), (4, 4), (2, 1)),
    "2d-square": ((9, 9), (4, 4), (2, 2), (1, 1)),
    "2d-wide": ((6, 20), (4, 12), (2, 12), (2, 6)),
    "3d": ((5, 6, 4), (4, 4, 4), (2, 4, 2), (2, 2, 1)),
}


def _v3_names(turn: Turns) -> Iterator[Case]:
    shape, chunks = LAYOUTS["2d-edge"]
    for label, names in (
        ("same", ("x", "x")),
        ("empty", ("", "y")),
    ):
        yield Case(
            id=f"v3-names-{label}",
            format="v3",
            dtype=np.dtype(turn("dtype", DTYPES)),
            shape=shape,
            chunks=chunks,
            dimension_names=names,
            attributes=turn("attributes", ATTRIBUTES),
        )


def _v3_shards(turn: Turns) -> Iterator[Case]:
    for location, checksum, inside, nested, before, after in itertools.product(
        ("end", "start"),
        (True, False),
        ("none", "gzip", "blosc-zstd", "zstd", "crc32c"),
        (False, True),
        ("C", "F"),
        ("none", "crc32c", "gzip"),
    ):
        layout = turn("layout", tuple(_SHARDED))
        shape, shard, middle, chunk = _SHARDED[layout]
        dtype = np.dtype(turn("dtype", DTYPES))
        name = "-".join(
            [
                location,
                "crc" if checksum else "bare",
                inside,
                *(["nested"] if nested else []),
                *(["transposed"] if before == "F" else []),
                *([f"then-{after}"] if after != "none" else []),
                layout,
            ]
        )
        yield Case(
            id=f"v3-shards-{name}",
            format="v3",
            dtype=dtype,
            endian=turn("endian", ("little", "big", "little")),
            shape=shape,
            chunks=chunk,
            shards=Shards(
                shape=shard,
                location=location,  # type: ignore[arg-type]
                checksum=checksum,
                nested=middle if nested else None,
                order=ORDERS[before](shape),
                after=after,
            ),
            codecs=inside,
            order=ORDERS[turn("order", ("C", "C", "C", "F", "rolled"))](shape),
            keys=turn("keys", tuple(CHUNK_KEYS)),
            fill=turn(f"fill-{dtype.kind}", _fills(dtype)),
            written=turn("written", ("all", "part")),
            dimension_names=_names(turn, len(shape)),
            attributes=turn("attributes", ATTRIBUTES),
        )


def _v3_fill(turn: Turns) -> Iterator[Case]:
    for name in DTYPES:
        dtype = np.dtype(name)
        fills = _fills(dtype)
        if dtype.kind == "f":
            fills += ("nan-payload", "nan-negative")
        for fill, written in itertools.product(fills, ("part", "nothing")):
            sharded = turn("sharded", (False, True))
            yield Case(
                id=f"v3-fill-{name}-{fill}-{written}",
                format="v3",
                dtype=dtype,
                shape=(5, 9),
                chunks=(2, 2),
                shards=Shards(shape=(4, 4)) if sharded else None,
                codecs=turn("codecs", ("none", "zstd")),
                fill=fill,
                written=written,  # type: ignore[arg-type]
                dimension_names=_names(turn, 2),
                attributes=turn("attributes", ATTRIBUTES),
            )


def _v2_codecs(turn: Turns) -> Iterator[Case]:
    for (label, native, endian), codecs, order in itertools.product(
        _stored_dtypes(), V2_COMPRESSORS, ("C", "F")
    ):
        shape, chunks = LAYOUTS[turn("layout", ("1d-edge", "2d-edge", "3d-edge"))]
        yield Case(
            id=f"v2-codecs-{label}-{codecs}-{order}",
            format="v2",
            dtype=native.newbyteorder({"little": "<", "big": ">"}[endian]),
            endian=endian,
            shape=shape,
            chunks=chunks,
            codecs=codecs,
            order=ORDERS[order](shape),
            keys=turn("keys", ("v2.", "v2/")),
            fill=turn(f"fill-{native.kind}", _fills(native)),
            written=turn("written", ("all", "all", "part")),
            attributes=turn("attributes", ATTRIBUTES),
        )


def _v2_layout(turn: Turns) -> Iterator[Case]:
    for layout, order, keys in itertools.product(LAYOUTS, ("C", "F"), ("v2.", "v2/")):
        shape, chunks = LAYOUTS[layout]
        _, native, endian = turn("dtype", tuple(_stored_dtypes()))
        yield Case(
            id=f"v2-layout-{layout}-{order}-{keys}",
            format="v2",
            dtype=native.newbyteorder({"little": "<", "big": ">"}[endian]),
            endian=endian,
            shape=shape,
            chunks=chunks,
            codecs=turn("codecs", ("none", "zlib", "blosc-lz4", "zstd")),
            order=ORDERS[order](shape),
            keys=keys,
            fill=turn(f"fill-{native.kind}", _fills(native)),
            written=turn("written", ("all", "part", "nothing")) if 0 not in shape else "all",
            attributes=turn("attributes", ATTRIBUTES),
        )


def _v2_filters(turn: Turns) -> Iterator[Case]:
    for filters, order, codecs in itertools.product(V2_FILTERS, ("C", "F"), ("none", "zlib")):
        shape, chunks = LAYOUTS[turn("layout", ("1d-edge", "2d-edge"))]
        dtype = np.dtype(V2_FILTERS[filters][0])
        yield Case(
            id=f"v2-filters-{filters}-{order}-{codecs}",
            format="v2",
            dtype=dtype,
            endian="big" if dtype.str[0] == ">" else "little",
            shape=shape,
            chunks=chunks,
            codecs=codecs,
            filters=filters,
            order=ORDERS[order](shape),
            keys=turn("keys", ("v2.", "v2/")),
            fill=turn(f"fill-{dtype.kind}", ("zero", "one")),
            written=turn("written", ("all", "part")),
            attributes=turn("attributes", ATTRIBUTES),
        )


def _v2_fill(turn: Turns) -> Iterator[Case]:
    for name in DTYPES:
        native = np.dtype(name)
        for fill, written in itertools.product((*_fills(native), "null"), ("part", "nothing")):
            endian = turn("endian", ("little", "big")) if native.itemsize > 1 else "little"
            yield Case(
                id=f"v2-fill-{name}-{fill}-{written}",
                format="v2",
                dtype=native.newbyteorder({"little": "<", "big": ">"}[endian]),
                endian=endian,
                shape=(5, 9),
                chunks=(2, 4),
                codecs=turn("codecs", ("none", "zlib")),
                keys=turn("keys", ("v2.", "v2/")),
                fill=fill,
                written=written,  # type: ignore[arg-type]
                attributes=turn("attributes", ATTRIBUTES),
            )


def matrix() -> list[Case]:
    """Every case, in a fixed order."""
    families = (
        _v3_codecs,
        _v3_layout,
        _v3_names,
        _v3_shards,
        _v3_fill,
        _v2_codecs,
        _v2_layout,
        _v2_filters,
        _v2_fill,
    )
    return [case for family in families for case in family(Turns())]


# --- what a case holds ---------------------------------------------------------------------------


def data(case: Case) -> np.ndarray[Any, Any]:
    """Values for the whole array: any bit pattern, small numbers where filters do arithmetic."""
    random = np.random.default_rng(zlib.crc32(case.id.encode()))
    native = case.dtype.newbyteorder("=")
    if native.kind == "b":
        return random.integers(0, 2, case.shape).astype(bool)
    if case.filters != "none":
        return random.integers(0, 100, case.shape).astype(native)
    size = int(np.prod(case.shape)) * native.itemsize
    values = np.frombuffer(random.bytes(size), native).reshape(case.shape).copy()
    if native.kind in "fc":
        _put_specials(values, case)
    return values


def _put_specials(values: np.ndarray[Any, Any], case: Case) -> None:
    """Every seventh element one of the numbers that implementations differ about."""
    numbers = values.reshape(-1).view(values.real.dtype)
    places = numbers[::7]
    places[:] = np.resize((0.0, -0.0, np.inf, -np.inf, np.nan), len(places))
    fill = case.fill_value
    if fill is not None and np.isnan(fill):
        # zarr-python takes a chunk of any NaNs for one of its fill value (see `refusals`).
        values[np.isnan(values)] = 1


def expected(case: Case) -> np.ndarray[Any, Any]:
    """What every implementation must read: `data` through the filters, fill elsewhere."""
    native = case.dtype.newbyteorder("=")
    fill = case.fill_value
    values = np.full(case.shape, native.type(0) if fill is None else fill, native)
    if case.region is not None:
        values[case.region] = _through_filters(case, data(case)[case.region])
    return values


def _through_filters(case: Case, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Lossy filters (quantize, bitround, astype) work on single elements, so that passing the
    # whole region through them gives what passing every chunk through them gives.
    chain = V2_FILTERS[case.filters][1] if case.filters != "none" else ()
    for config in chain:
        if config["id"] in ("quantize", "bitround"):
            codec = numcodecs.get_codec(dict(config))
            stored = np.ascontiguousarray(values, case.dtype)
            values = np.asarray(codec.decode(codec.encode(stored))).view(case.dtype)
            values = values.reshape(stored.shape)
    return values.astype(case.dtype.newbyteorder("="))
