"""Codecs named ``numcodecs.*`` in v3 documents: zarr-python reads ours, and we read its."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import zarr
from zarr.codecs import TransposeCodec
from zarr.codecs import numcodecs as theirs
from zarr.storage import MemoryStore as ZarrStore

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError, DataTypeError, MetadataError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
VALUES = np.arange(48, dtype="i4").reshape(6, 8) * 3
FLOATS = np.linspace(-3, 3, 48, dtype="f4").reshape(6, 8)
BOOLS = np.random.default_rng(0).random((6, 8)) > 0.5
SMALL = np.resize(np.arange(-100, 100), (6, 8))

FILTERS = {
    "delta": (VALUES, [theirs.Delta(dtype="<i4")]),
    "delta astype": (VALUES, [theirs.Delta(dtype="<i4", astype="<i2")]),
    "delta of floats": (FLOATS, [theirs.Delta(dtype="<f4")]),
    "bitround": (FLOATS, [theirs.BitRound(keepbits=5)]),
    "fixedscaleoffset": (
        FLOATS,
        [theirs.FixedScaleOffset(offset=-3, scale=1000, dtype="<f4", astype="<u2")],
    ),
    "fixedscaleoffset of no type": (FLOATS, [theirs.FixedScaleOffset(offset=0, scale=8)]),
    "quantize": (FLOATS, [theirs.Quantize(digits=2, dtype="<f4")]),
    "packbits": (BOOLS, [theirs.PackBits()]),
    "astype": (VALUES, [theirs.AsType(encode_dtype="<i8", decode_dtype="<i4")]),
    "astype big-endian": (VALUES, [theirs.AsType(encode_dtype=">i2", decode_dtype="<i4")]),
    "two": (
        VALUES,
        [theirs.Delta(dtype="<i4"), theirs.AsType(encode_dtype="|i1", decode_dtype="<i4")],
    ),
    "after transpose": (VALUES, [TransposeCodec(order=(1, 0)), theirs.Delta(dtype="<i4")]),
}
COMPRESSORS = {
    "adler32": [theirs.Adler32()],
    "adler32 at the end": [theirs.Adler32(location="end")],
    "crc32": [theirs.CRC32()],
    "crc32c": [theirs.CRC32C()],
    "fletcher32": [theirs.Fletcher32()],
    "jenkins_lookup3": [theirs.JenkinsLookup3()],
    "shuffle": [theirs.Shuffle()],
    "blosc": [theirs.Blosc(cname="zstd", clevel=3, shuffle=2)],
    "blosc auto": [theirs.Blosc(shuffle=-1)],
    "bz2": [theirs.BZ2(level=5)],
    "gzip": [theirs.GZip(level=2)],
    "lz4": [theirs.LZ4()],
    "lzma": [theirs.LZMA(preset=1)],
    "zlib": [theirs.Zlib(level=9)],
    "zstd": [theirs.Zstd(level=4)],
    "several": [theirs.Shuffle(elementsize=4), theirs.Zlib(), theirs.CRC32()],
}
OTHER_BYTES = {"blosc", "blosc auto", "gzip", "several"}
"""Cases whose compressors choose other matches than those of zarr-python do."""
LOSSY = {"delta of floats"}
"""Cases that round: what lies beyond the end of the array is kept, and rounded once more."""
CASES = {name: (values, filters, None) for name, (values, filters) in FILTERS.items()} | {
    name: (VALUES, None, compressors) for name, compressors in COMPRESSORS.items()
}


def by_zarr_python(values, filters, compressors, path):
    """An array that zarr-python has written, in a directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these codecs are not in the specification
        array = zarr.create_array(
            path,
            shape=values.shape,
            chunks=(3, 5),
            dtype=values.dtype,
            filters=filters,
            compressors=compressors,
            fill_value=0,
        )
        array[...] = values
        return array[...]


def stored(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "zarr.json"
    }


@pytest.mark.conformance("C124")
@pytest.mark.parametrize("case", CASES)
def test_numcodecs_of_zarr_python(case, tmp_path):
    """Read; then written again through the same document: the same bytes, the same spelling."""
    values, filters, compressors = CASES[case]
    want = by_zarr_python(values, filters, compressors, tmp_path)
    array = zd.open_array(tmp_path, mode="r+")
    np.testing.assert_array_equal(array[...], want)
    np.testing.assert_array_equal(array[1:5:2, 2:7], want[1:5:2, 2:7])
    before = stored(tmp_path)
    spelled = json.loads((tmp_path / "zarr.json").read_text())["codecs"]
    array[...] = values
    array.update_attributes({"title": "run 7"})
    assert json.loads((tmp_path / "zarr.json").read_text())["codecs"] == spelled
    if case not in OTHER_BYTES | LOSSY:
        assert stored(tmp_path) == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], want)


@pytest.mark.conformance("C124")
@pytest.mark.parametrize("case", CASES)
def test_numcodecs_for_zarr_python(case, tmp_path):
    """Written by ``create_array``, from any memory; zarr-python writes the same bytes."""
    values, filters, compressors = CASES[case]
    want = by_zarr_python(values, filters, compressors, tmp_path / "theirs")
    document = json.loads((tmp_path / "theirs/zarr.json").read_text())
    array = zd.create_array(
        tmp_path / "ours",
        shape=values.shape,
        chunks=(3, 5),
        dtype=values.dtype,
        codecs=document["codecs"],
        fill_value=0,
    )
    assert json.loads((tmp_path / "ours/zarr.json").read_text())["codecs"] == document["codecs"]
    array[...] = np.asfortranarray(values.astype(values.dtype.newbyteorder(">")))
    if case not in OTHER_BYTES:
        assert stored(tmp_path / "ours") == stored(tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours")[...], want)


@pytest.mark.conformance("C124")
def test_columns_first_is_flattened_rows_first(tmp_path):
    values = np.arange(6, dtype="i4").reshape(2, 3)
    array = zd.create_array(
        tmp_path,
        shape=(2, 3),
        chunks=(2, 3),
        dtype="i4",
        codecs=[
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}},
            LITTLE,
        ],
    )
    array[...] = np.asfortranarray(values)
    flat = np.frombuffer((tmp_path / "c/0/0").read_bytes(), "<i4")
    assert flat.tolist() == [0, 3, -2, 3, -2, 3]
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[...], values)


@pytest.mark.conformance("C124")
def test_astype_outside_shards(tmp_path):
    """The fill value of the shards is the converted one; zarr-python does the same."""
    store = {}
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2, 2), codecs=[zarr.codecs.BytesCodec()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            ZarrStore(store),
            shape=(4, 4),
            chunks=(4, 4),
            dtype="i4",
            filters=[theirs.AsType(encode_dtype="<i2", decode_dtype="<i4")],
            serializer=inner,
            compressors=None,
            fill_value=7,
        )
        array[:2, :2] = 5
    copied = {key: value.to_bytes() for key, value in store.items()}
    ours = zd.open_array(copied, mode="r+")
    want = np.full((4, 4), 7)
    want[:2, :2] = 5
    np.testing.assert_array_equal(ours[...], want)
    before = copied["c/0/0"]
    del copied["c/0/0"]
    ours[:2, :2] = 5
    assert bytes(copied["c/0/0"]) == before


def refused(codecs, dtype="int32", fill=0):
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill,
        "codecs": codecs,
    }
    with pytest.raises(MetadataError) as caught:
        zd.open_array({"zarr.json": json.dumps(document).encode()})
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "configuration", "words"),
    [
        ("delta", {}, "dtype: absent"),
        ("delta", {"dtype": "<i2"}, "the type it is given, int32"),
        ("delta", {"dtype": ">i4"}, "a little-endian type"),
        ("delta", {"dtype": "<x4"}, "a NumPy type of numbers"),
        ("delta", {"dtype": "|O"}, "a NumPy type of numbers"),
        ("delta", {"dtype": 4}, "a NumPy type of numbers"),
        ("delta", {"dtype": "<i4", "axis": 0}, "no such member"),
        ("fixedscaleoffset", {"offset": 0, "scale": 0, "dtype": "<i4"}, "a number other than 0"),
        ("fixedscaleoffset", {"offset": "0", "scale": 1, "dtype": "<i4"}, "offset: got '0'"),
        ("fixedscaleoffset", {"scale": 1, "dtype": "<i4"}, "offset: absent"),
        ("quantize", {"digits": 1, "dtype": "<f4"}, "the type it is given, int32"),
        ("quantize", {"digits": 1}, "floats to quantize"),
        ("quantize", {"digits": 1.5, "dtype": "<i4"}, "digits: got 1.5"),
        ("packbits", {}, "bools to pack"),
        ("astype", {"decode_dtype": "<i4"}, "encode_dtype: absent"),
        ("astype", {"decode_dtype": "<i8", "encode_dtype": "<i2"}, "the type it is given"),
        ("astype", {"decode_dtype": "<i4", "encode_dtype": "<V2"}, "a NumPy type of numbers"),
        ("bitround", {"keepbits": 3}, "float16, float32 or float64"),
        ("zlib", {"level": 10}, "a configuration that 'zlib' takes"),
        ("zlib", {"levels": 1}, "no such members of 'zlib'"),
        ("shuffle", {}, "elementsize: absent"),
        ("categorize", {}, "a known codec"),
        ("vlen-utf8", {}, "a known codec"),
    ],
)
def test_numcodecs_that_do_not_fit_are_refused(name, configuration, words):
    document = {"name": f"numcodecs.{name}", "configuration": configuration}
    before = name in ("zlib", "shuffle")
    assert words in refused([LITTLE, document] if before else [document, LITTLE])


def test_what_numcodecs_cannot_encode_or_decode():
    document = {"name": "numcodecs.packbits", "configuration": {}}
    store = {}
    array = zd.create_array(
        store, shape=9, dtype=bool, codecs=[document, "bytes"], fill_value=False
    )
    store["c/0"] = bytes.fromhex("feb080")
    with pytest.raises(CorruptObjectError, match=r"numcodecs.packbits.*cannot decode"):
        array[...]
    quantize = {"name": "numcodecs.quantize", "configuration": {"digits": 400, "dtype": "<f4"}}
    array = zd.create_array({}, shape=4, dtype="f4", codecs=[quantize, LITTLE])
    with pytest.raises(DataTypeError, match=r"numcodecs.quantize.*cannot encode"):
        array[...] = 1.5
