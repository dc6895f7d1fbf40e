"""Documents in the spelling of implementations that are not among the peers, by hand."""

from __future__ import annotations

import base64
import bz2
import json
import zlib

import numcodecs
import numpy as np
import pytest
from numcodecs.pcodec import PCodec
from numcodecs.zfpy import ZFPY

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError, MetadataError, ZarrDaskWarning

VALUES = np.arange(4, dtype="<i4")
RAW = VALUES.tobytes()
SHUFFLED = bytes(numcodecs.Shuffle(4).encode(RAW))
V2 = {
    "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C",
    "compressor": None, "filters": None,
}  # fmt: skip
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
V3 = {
    "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int32", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [LITTLE],
}  # fmt: skip


def v2_array(chunk: bytes | None = RAW, /, **members):
    values = {".zarray": json.dumps(V2 | members).encode()}
    return zd.open_array(values | ({} if chunk is None else {"0": chunk}))


def v3_array(chunk: bytes | None = RAW, /, **members):
    values = {"zarr.json": json.dumps(V3 | members).encode()}
    return zd.open_array(values | ({} if chunk is None else {"c/0": chunk}))


@pytest.mark.parametrize(
    ("members", "chunk"),
    [
        ({"compressor": {"id": "zlib", "level": "4"}}, zlib.compress(RAW)),
        ({"compressor": {"id": "bz2", "level": "9"}}, bz2.compress(RAW)),
        ({"compressor": {"id": "zstd", "level": "-3"}}, numcodecs.Zstd().encode(RAW)),
        (
            {
                "compressor": {
                    "id": "blosc", "cname": "lz4", "clevel": "5", "shuffle": "1", "blocksize": "0",
                }
            },
            numcodecs.Blosc().encode(RAW),
        ),
        ({"filters": [{"id": "shuffle", "elementsize": "4"}]}, SHUFFLED),
        ({"node_type": "array", "_NCZARR_ARRAY": {"dimrefs": ["/x"]}}, RAW),
    ],
    ids=["zlib", "bz2", "zstd", "blosc", "shuffle", "other members"],
)  # fmt: skip
def test_v2_in_the_spelling_of_others(members, chunk):
    array = v2_array(chunk, **members)
    assert array[...].tolist() == VALUES.tolist()


@pytest.mark.parametrize("level", ["x", "", "1.5", "10", "9" * 30, "--1", None, [1]])
def test_what_is_no_level_stays_none(level):
    with pytest.raises(MetadataError, match="compressor"):
        v2_array(compressor={"id": "zlib", "level": level})


def test_numbers_that_were_strings_are_written_as_numbers():
    store = {".zarray": json.dumps(V2 | {"compressor": {"id": "zlib", "level": "4"}}).encode()}
    zd.open_array(store, mode="r+").resize((8,))
    assert json.loads(store[".zarray"])["compressor"] == {"id": "zlib", "level": 4}


@pytest.mark.parametrize(
    ("fill", "expected"), [("", b""), ("_", b"_"), ("\0", b""), ("eA==", b"x")]
)
def test_the_fill_value_of_a_character(fill, expected):
    """The netCDF library writes the character itself; base64 has four or none."""
    assert v2_array(None, dtype=">S1", fill_value=fill)[...].tolist() == [expected] * 4


def test_names_of_dimensions_that_are_null_are_absent():
    """So Icechunk, zarrita.js and zarr-js write them."""
    array = v3_array(dimension_names=None)
    assert array[...].tolist() == VALUES.tolist()
    assert array.dimension_names is None


@pytest.mark.parametrize("member", ["shape", "codecs", "fill_value", "chunk_grid", "data_type"])
def test_members_of_v3_that_must_be_there_are_not_null(member):
    with pytest.raises(MetadataError, match=member):
        v3_array(**{member: None})


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("https://codec.zarrs.dev/bytes_to_bytes/zlib", "numcodecs.zlib"),
        ("https://zarr.dev/numcodecs/zlib", "numcodecs.zlib"),
    ],
)
def test_codecs_that_were_named_by_uris(name, now):
    codecs = [LITTLE, {"name": name, "configuration": {"level": 3}}]
    with pytest.warns(ZarrDaskWarning, match=now):
        array = v3_array(zlib.compress(RAW), codecs=codecs)
    assert array[...].tolist() == VALUES.tolist()
    assert [codec.document()["name"] for codec in array.codecs][1] == now


def test_zarrs_and_the_registry_mean_the_same_bitround():
    name = "https://codec.zarrs.dev/array_to_array/bitround"
    codecs = [{"name": name, "configuration": {"keepbits": 3}}, LITTLE]
    with pytest.warns(ZarrDaskWarning, match="bitround"):
        array = v3_array(codecs=codecs)
    assert array.codecs[0].document() == {"name": "bitround", "configuration": {"keepbits": 3}}


@pytest.mark.parametrize(
    "name",
    [
        "https://codec.zarrs.dev/bytes_to_bytes/nope",
        "https://zarr.dev/numcodecs/gdeflate",
        "https://example.org/zlib",
    ],
)
def test_other_uris_are_unknown(name):
    with pytest.raises(zd.errors.UnknownCodecError, match=name):
        v3_array(codecs=[LITTLE, {"name": name}])


# --- codecs of numcodecs that few arrays of v2 have -----------------------------------------------

FLOATS = np.linspace(-3, 7, 24, dtype="<f4").reshape(4, 6)
WHOLE = {
    "zfpy": ZFPY(mode=4, tolerance=1e-3),
    "pcodec": PCodec(level=3),
}


@pytest.mark.parametrize("place", ["compressor", "filters"])
@pytest.mark.parametrize("name", WHOLE)
def test_v2_with_a_codec_that_knows_the_shape_of_a_chunk(name, place):
    codec = WHOLE[name]
    stored = bytes(codec.encode(FLOATS))
    expected = np.asarray(codec.decode(stored)).reshape(FLOATS.shape)
    config = codec.get_config()
    members = {
        "compressor": {"compressor": config},
        "filters": {"filters": [config], "compressor": {"id": "zlib", "level": 1}},
    }[place]
    shape = {"shape": [4, 6], "chunks": [4, 6], "dtype": "<f4"}
    text = json.dumps(V2 | shape | members).encode()
    chunk = stored if place == "compressor" else zlib.compress(stored)
    store = {".zarray": text, "0.0": chunk}
    array = zd.open_array(store, mode="r+")
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(array[1:3, 2], expected[1:3, 2])

    array[...] = FLOATS  # and back: numcodecs reads what is written
    written = store["0.0"] if place == "compressor" else zlib.decompress(store["0.0"])
    np.testing.assert_array_equal(np.asarray(codec.decode(written)).reshape(4, 6), expected)
    array.resize((4, 12))
    kept = json.loads(store[".zarray"])
    assert {name: kept[name] for name in members} == members


def test_the_same_in_a_new_array():
    store = {}
    codecs = [{"id": "pcodec", "level": 2}]
    array = zd.create_array(
        store, shape=(4, 6), chunks=(4, 6), dtype="f4", format="v2", codecs=codecs
    )
    array[...] = FLOATS
    assert json.loads(store[".zarray"])["compressor"] == {"id": "pcodec", "level": 2}
    assert np.asarray(PCodec().decode(store["0.0"])).tolist() == FLOATS.ravel().tolist()
    plan = zd.plan_migration(store)
    plan.run()
    assert zd.open_array(store, format="v3")[...].tolist() == FLOATS.tolist()
    assert json.loads(store["zarr.json"])["codecs"][0]["name"] == "numcodecs.pcodec"


@pytest.mark.parametrize("name", WHOLE)
def test_they_take_little_endian_numbers_only(name):
    config = WHOLE[name].get_config()
    with pytest.raises(zd.errors.UnknownCodecError, match="big-endian"):
        v2_array(None, dtype=">f4", compressor=config)
    with pytest.raises(MetadataError, match="elements of type"):
        v2_array(None, dtype="|b1", fill_value=False, compressor=config)


def test_base64():
    stored = base64.b64encode(RAW)
    array = v2_array(stored, compressor={"id": "base64"})
    assert array[...].tolist() == VALUES.tolist()
    store = {}
    codecs = [{"id": "base64"}]
    made = zd.create_array(store, shape=4, chunks=4, dtype="<i4", format="v2", codecs=codecs)
    made[...] = VALUES
    assert store["0"] == stored
    assert json.loads(store[".zarray"])["compressor"] == {"id": "base64"}
    for wrong in (b"!!!!", stored[:-1], b"A" * 4000, b""):
        with pytest.raises(CorruptObjectError):
            v2_array(wrong, compressor={"id": "base64"})[...]


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: zd.ReadOptions(consolidated="no"), "consolidated"),
        (lambda: zd.ReadOptions(allow_pickle=1), "allow_pickle"),
        (lambda: zd.ReadOptions(limits=5), "limits"),
        (lambda: zd.open({}, read={"missing": "error"}), "ReadOptions"),
        (lambda: zd.Limits(chunk_bytes=-1), "chunk_bytes"),
        (lambda: zd.Limits(metadata_bytes=1.5), "metadata_bytes"),
    ],
)
def test_options_that_mean_nothing_are_refused(make, word):
    with pytest.raises((TypeError, ValueError), match=word):
        make()
