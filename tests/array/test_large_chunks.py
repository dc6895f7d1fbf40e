"""Every data type through chunks that are so large that they are read and written in other ways.

Small chunks are decoded whole and copied element by element. Of larger ones single blocks are
decoded, rows are copied at once, streams are decompressed piece by piece, bytes are turned around
in place and files get slices of them, all of which must know what the bits of an element are.
"""

from __future__ import annotations

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.sample import sampled
from zarr_dask.codecs.base import _WORTH_DIVIDING
from zarr_dask.codecs.chunk_batches import _MANY
from zarr_dask.codecs.compress.deflate import _PIECE
from zarr_dask.dtypes import leaves, value_bits
from zarr_dask.stores.streaming_put import _LARGE

SMALL = [
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn"),
    *("float4_e2m1fn", "int2", "int4", "uint2", "uint4"),
]
TYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *SMALL,
    *("complex_float16", "complex_bfloat16", "complex_float8_e5m2", "complex_float4_e2m1fn"),
    *("r8", "r24", "r64", "V3", "S7", "U5", "M8[ns]", "m8[25s]", "string", "bytes"),
    [("a", "i4"), ("b", "f8")],
    [("a", "?"), ("b", "f2"), ("c", "S3"), ("d", "u1")],
]
COLUMNS = 48
REGIONS = (
    (slice(None), slice(None)),
    (slice(5, 9), slice(3, 40)),
    (slice(2, None, 700), slice(None, None, 5)),
    (slice(None, None, -1), slice(30, 12, -3)),
    (slice(100, None), slice(0, COLUMNS - 1)),
)


def some(dtype, text, shape, rng):
    """Any bits that the elements may have; half of the rows compress."""
    count = int(np.prod(shape))
    if dtype.hasobject:
        made = np.empty(count, object)
        numbers = rng.integers(0, 9, count).tolist()
        made[:] = [("é" * n if text else b"\0\xff" * n) for n in numbers]
        return made.reshape(shape)
    raw = rng.integers(0, 256, count * dtype.itemsize, "u1")
    raw[: raw.size // 2] = np.arange(raw.size // 2) // 999
    values = raw.view(dtype).reshape(shape)
    for path, leaf in leaves(dtype):
        field = values
        for name in path:
            field = field[name]
        bits = 1 if leaf.kind == "b" else value_bits(leaf)
        if leaf.kind == "U":
            width = leaf.itemsize // 4
            letters = rng.integers(32, 0xD7FF, (*shape, width), "u4")
            field[...] = letters.view(leaf)[..., 0]
        elif bits is not None:
            masked = np.ascontiguousarray(field).view("u1") & ((1 << bits) - 1)
            field[...] = masked.view(leaf).reshape(shape)
    return values


def bits_of(values):
    return values.tolist() if values.dtype.hasobject else np.ascontiguousarray(values).tobytes()


def chains(itemsize, text, fixed):
    """Least sizes of a chunk, codecs that such a one takes another way through, whether sharded."""
    settings = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 1 << 14}
    blosc = {"name": "blosc", "configuration": settings | {"typesize": itemsize}}
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    turned = {"name": "transpose", "configuration": {"order": [1, 0]}}
    if fixed:
        little, big = ({"name": "bytes", "configuration": {"endian": e}} for e in ("little", "big"))
    else:
        little = big = {"name": "vlen-utf8" if text else "vlen-bytes"}
    yield _WORTH_DIVIDING, [little, blosc], False
    yield _WORTH_DIVIDING, [turned, big, blosc, "crc32c"], False
    yield max(_PIECE, _LARGE), [turned, big, gzip], True
    yield _LARGE, [big], True


@pytest.mark.parametrize("name", sampled(TYPES, 3, always=("int32", "string", "bytes")))
def test_large_chunks_are_what_numpy_has(name, tmp_path):
    rng = np.random.default_rng(len(str(name)))
    fill = 1 if name == "float8_e8m0fnu" else 0
    dtype = zd.create_array({}, shape=1, dtype=name, fill_value=fill).dtype
    itemsize = 1 if dtype.hasobject else dtype.itemsize
    for number, (least, codecs, sharded) in enumerate(
        chains(itemsize, name == "string", not dtype.hasobject)
    ):
        rows = max(least, _MANY) // (itemsize * COLUMNS) + 1
        if dtype.hasobject:
            rows = rows // 16 + 1
        layout = {"chunks": (rows, COLUMNS), "shards": (2 * rows, COLUMNS) if sharded else None}
        place = tmp_path / f"{number}.zarr" if number % 2 else {}
        shape = (rows + 7, COLUMNS)
        values = some(dtype, name == "string", shape, rng)
        array = zd.create_array(
            place, shape=shape, dtype=name, codecs=codecs, fill_value=fill, **layout
        )
        array[...] = values
        array = zd.open_array(place, mode="r+")
        for region in REGIONS:
            assert bits_of(array[region]) == bits_of(values[region]), (codecs, region)
        points = rng.integers(0, shape[0], 9), rng.integers(0, shape[1], 9)
        assert bits_of(array.vindex[points]) == bits_of(values[points]), codecs
        part = slice(rows - 9, rows + 3), slice(5, 30)
        values[part] = values[:12, 10:35].copy()
        array[part] = values[part]
        assert bits_of(zd.open_array(place)[...]) == bits_of(values), codecs
