"""Zarr v1: stores put together here, byte by byte, as zarr-python 1.1 wrote them.

That package cannot be installed any more; what it wrote is known from its source and from the
example of the specification.
"""

from __future__ import annotations

import bz2
import json
import lzma
import math
import zlib

import numcodecs
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask import errors
from zarr_dask.stores import MemoryStore, Recording

META = {
    "chunks": [2, 3],
    "compression": "none",
    "compression_opts": None,
    "dtype": "<i4",
    "fill_value": 42,
    "order": "C",
    "shape": [4, 6],
    "zarr_format": 1,
}
ROWS = np.arange(6, dtype="<i4").reshape(2, 3)

RAW_LZMA = [{"id": lzma.FILTER_DELTA, "dist": 4}, {"id": lzma.FILTER_LZMA2, "preset": 1}]
XZ = {"format": lzma.FORMAT_XZ, "check": lzma.CHECK_NONE, "preset": 1, "filters": None}


def store_of(objects=None, **members):
    """A v1 store as a mapping: its documents and stored objects."""
    document = {**META, **members}
    store = {"meta": json.dumps(document).encode(), "attrs": b"{}"}
    return store | (objects or {})


def without(name):
    document = {key: value for key, value in META.items() if key != name}
    return {"meta": json.dumps(document).encode(), "attrs": b"{}"}


@pytest.mark.conformance("C001")
def test_every_member_must_be_there():
    for name in META:
        with pytest.raises(errors.MetadataError) as failure:
            zd.open_array(without(name))
        assert [problem.field for problem in failure.value.problems] == [name]
        assert failure.value.problems[0].found is errors.ABSENT
    with pytest.raises(errors.MetadataError) as failure:
        zd.open_array({"meta": b"{}"}, format="v1")
    assert {problem.field for problem in failure.value.problems} == set(META)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zarr_format", 2),
        ("zarr_format", True),
        ("shape", [4.0, 6]),
        ("shape", [4, -1]),
        ("chunks", [2]),
        ("chunks", [0, 3]),
        ("dtype", "i4"),
        ("dtype", "|O"),
        ("compression", "snappy"),
        ("compression", 1),
        ("fill_value", "abc"),
        ("fill_value", 1 << 40),
        ("order", "A"),
    ],
)
def test_members_that_are_wrong(name, value):
    with pytest.raises(errors.MetadataError) as failure:
        zd.open_array(store_of(**{name: value}))
    assert failure.value.problems[0].field == name


@pytest.mark.parametrize(
    ("compression", "options"),
    [("zlib", 17), ("blosc", 5), ("blosc", {"cname": "lz9"}), ("lzma", {"format": 9}), ("bz2", 0)],
)
def test_options_that_are_wrong(compression, options):
    with pytest.raises(errors.MetadataError, match="compression"):
        zd.open_array(store_of(compression=compression, compression_opts=options))


@pytest.mark.conformance("C002")
def test_other_members_are_ignored():
    array = zd.open_array(store_of(dimension_separator="/", filters=[{"id": "?"}], foo=1))
    assert array.format == "v1"
    assert array.key((1, 1)) == "1.1"
    assert array.codecs[1:] == ()


@pytest.mark.conformance("C003")
def test_creating_writes_two_documents():
    store = MemoryStore()
    zd.create_array(
        store, shape=(20, 20), dtype="<i4", chunks=10, fill_value=42, format="v1",
        codecs={"id": "zlib", "level": 1},
    )  # fmt: skip
    assert sorted(store.list()) == ["attrs", "meta"]
    assert json.loads(bytes(store.get("attrs"))) == {}
    assert json.loads(bytes(store.get("meta"))) == {
        "chunks": [10, 10],
        "compression": "zlib",
        "compression_opts": 1,
        "dtype": "<i4",
        "fill_value": 42,
        "order": "C",
        "shape": [20, 20],
        "zarr_format": 1,
    }
    zd.open_array(store, mode="r+").update_attributes({"foo": 42, "bar": "apples"})
    assert json.loads(bytes(store.get("attrs"))) == {"foo": 42, "bar": "apples"}
    assert zd.open_array(store).attributes == {"foo": 42, "bar": "apples"}


@pytest.mark.conformance("C004")
def test_keys_are_joined_by_dots_at_the_root():
    store = MemoryStore()
    array = zd.create_array(
        store, shape=(2, 24, 4), dtype="u1", chunks=(1, 2, 4), codecs=[], format="v1", fill_value=0
    )
    array[...] = 1
    written = set(store.list()) - {"meta", "attrs"}
    assert written == {f"{i}.{j}.0" for i in range(2) for j in range(12)}
    line = zd.open_array(store_of({"11": b"\7"}, shape=[12], chunks=[1], dtype="|u1"))
    assert line[11] == 7


@pytest.mark.conformance("C005")
@pytest.mark.parametrize(("fill", "want"), [(42, 42), (None, 0)])
def test_absent_chunks(fill, want):
    array = zd.open_array(store_of({"1.1": ROWS.tobytes()}, fill_value=fill))
    np.testing.assert_array_equal(array[2:, 3:], ROWS)
    np.testing.assert_array_equal(array[:2], np.full((2, 6), want))
    assert array.fill_value == fill


@pytest.mark.conformance("C006")
def test_edge_chunks_have_full_size():
    array = zd.open_array(store_of({"1.1": ROWS.tobytes()}, shape=[3, 5]))
    np.testing.assert_array_equal(array[2:, 3:], ROWS[:1, :2])
    with pytest.raises(errors.CorruptObjectError):
        zd.open_array(store_of({"1.1": ROWS[:1, :2].tobytes()}, shape=[3, 5]))[...]
    store = MemoryStore()
    made = zd.create_array(
        store, shape=(3, 5), dtype="<i4", chunks=(2, 3), codecs=[], format="v1", fill_value=42
    )
    made[...] = 7
    overhang = np.full((2, 3), 42, "<i4")
    overhang[:1, :2] = 7
    assert bytes(store.get("1.1")) == overhang.tobytes()


@pytest.mark.conformance("C007")
def test_the_example_of_the_specification():
    meta = b"""{
        "chunks": [
            10,
            10
        ],
        "compression": "zlib",
        "compression_opts": 1,
        "dtype": "<i4",
        "fill_value": 42,
        "order": "C",
        "shape": [
            20,
            20
        ],
        "zarr_format": 1
    }"""
    store = {"meta": meta, "attrs": b"{}", "0.0": zlib.compress(np.ones(100, "<i4").tobytes(), 1)}
    array = zd.open_array(store, mode="r+")
    want = np.full((20, 20), 42)
    want[:10, :10] = 1
    np.testing.assert_array_equal(array[...], want)
    array[:10, 10:] = 2
    array[10:] = 3
    assert sorted(store) == ["0.0", "0.1", "1.0", "1.1", "attrs", "meta"]
    array[:10, :10] = 1
    inflated = np.frombuffer(zlib.decompress(bytes(store["0.0"])), "<i4")
    np.testing.assert_array_equal(inflated, np.ones(100, "<i4"))
    assert array.update_attributes({"foo": 42}).attributes == {"foo": 42}


@pytest.mark.conformance("C008")
def test_structs_are_lists_of_pairs():
    rgb = [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]]
    array = zd.open_array(
        store_of({"0": bytes(range(6))}, dtype=rgb, shape=[4], chunks=[2], fill_value=[1, 2, 3])
    )
    assert array.dtype == np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])
    assert array[...].tolist() == [(0, 1, 2), (3, 4, 5), (1, 2, 3), (1, 2, 3)]
    store = MemoryStore()
    made = zd.create_array(
        store, shape=4, dtype=array.dtype, chunks=2, codecs=[], fill_value=0, format="v1"
    )
    made[...] = array[...]
    assert json.loads(bytes(store.get("meta")))["dtype"] == rgb
    assert bytes(store.get("0")) == bytes(range(6))


def test_structs_of_both_byte_orders():
    pairs = [["a", ">i2"], ["b", "<i2"]]
    body = bytes.fromhex("0001 0100 0002 0200")
    store = store_of({"0": body}, dtype=pairs, shape=[2], chunks=[2], fill_value=0)
    array = zd.open_array(store, mode="r+")
    assert array[...].tolist() == [(1, 1), (2, 2)]
    array[...] = array[::-1]
    assert store["0"] == body[4:] + body[:4]


BODIES = {
    "none": ("none", None, ROWS.tobytes()),
    "null": (None, None, ROWS.tobytes()),
    "zlib": ("zlib", 1, zlib.compress(ROWS.tobytes(), 1)),
    "zlib by default": ("zlib", None, zlib.compress(ROWS.tobytes(), 1)),
    "gzip, which is zlib": ("gzip", 9, zlib.compress(ROWS.tobytes(), 9)),
    "bz2": ("bz2", 9, bz2.compress(ROWS.tobytes(), 9)),
    "lzma": ("lzma", XZ, lzma.compress(ROWS.tobytes(), check=lzma.CHECK_NONE, preset=1)),
    "lzma alone": (
        "lzma",
        {**XZ, "format": lzma.FORMAT_ALONE},
        lzma.compress(ROWS.tobytes(), lzma.FORMAT_ALONE, preset=1),
    ),
    "lzma raw": (
        "lzma",
        {"format": lzma.FORMAT_RAW, "check": 0, "preset": None, "filters": RAW_LZMA},
        lzma.compress(ROWS.tobytes(), lzma.FORMAT_RAW, filters=RAW_LZMA),
    ),
    **{
        f"blosc {cname} {shuffle}": (
            "blosc",
            {"cname": cname, "clevel": 5, "shuffle": shuffle},
            numcodecs.Blosc(cname, 5, shuffle).encode(ROWS),
        )
        for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in (0, 1, 2)
    },
}


@pytest.mark.conformance("C009")
@pytest.mark.parametrize("name", BODIES)
def test_compressors(name):
    compression, options, body = BODIES[name]
    store = store_of({"0.0": body}, compression=compression, compression_opts=options)
    array = zd.open_array(store, mode="r+")
    np.testing.assert_array_equal(array[:2, :3], ROWS)
    array[2:, 3:] = ROWS  # and they write what they read
    np.testing.assert_array_equal(zd.open_array(store)[2:, 3:], ROWS)


@pytest.mark.parametrize(
    ("codecs", "compression", "options"),
    [
        ([], "none", None),
        (None, "blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1}),
        ([{"id": "zlib", "level": 4}], "zlib", 4),
        ({"id": "bz2", "level": 2}, "bz2", 2),
        ({"id": "lzma", **XZ}, "lzma", XZ),
        ({"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2}, "blosc",
         {"cname": "zstd", "clevel": 1, "shuffle": 2}),
    ],
)  # fmt: skip
def test_compressors_are_written(codecs, compression, options):
    store = MemoryStore()
    array = zd.create_array(store, shape=5, dtype=">f8", chunks=2, codecs=codecs, format="v1")
    array[...] = np.arange(5)
    document = json.loads(bytes(store.get("meta")))
    assert (document["compression"], document["compression_opts"]) == (compression, options)
    assert document["dtype"] == ">f8"
    np.testing.assert_array_equal(zd.open_array(store)[...], np.arange(5.0))


@pytest.mark.conformance("C010")
@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1.5"])
def test_special_floats_are_bare_tokens(token):
    document = json.dumps({**META, "dtype": ">f8", "fill_value": "?"}).replace('"?"', token)
    array = zd.open_array({"meta": document.encode(), "attrs": b'{"level": NaN}'})
    want = float(token)
    assert array.fill_value == want or (math.isnan(array.fill_value) and math.isnan(want))
    assert np.array_equal(array[0], np.full(6, want), equal_nan=True)
    assert math.isnan(array.attributes["level"])
    store = MemoryStore()
    zd.create_array(store, shape=2, dtype="f4", chunks=1, fill_value=want, format="v1")
    assert f'"fill_value": {token}'.encode() in bytes(store.get("meta"))


@pytest.mark.conformance("C011")
def test_chunks_of_order_f():
    columns, rows = ROWS.tobytes("F"), ROWS.tobytes("C")
    legacy = zd.ReadOptions(v1_f_order="legacy")
    with pytest.warns(UserWarning, match="v1_f_order"):
        by_text = zd.open_array(store_of({"0.0": columns}, order="F"))
    np.testing.assert_array_equal(by_text[:2, :3], ROWS)
    for compression, options, body in BODIES.values():
        if compression != "blosc":
            store = store_of({"0.0": body}, order="F", compression=compression,
                             compression_opts=options)  # fmt: skip
            np.testing.assert_array_equal(zd.open_array(store, read=legacy)[:2, :3], ROWS)
    packed = numcodecs.Blosc("lz4", 5, 1).encode(np.frombuffer(columns, "<i4"))
    options = {"cname": "lz4", "clevel": 5, "shuffle": 1}
    blosc = store_of({"0.0": packed}, order="F", compression="blosc", compression_opts=options)
    for read in (None, legacy):  # without a warning: this one nobody got wrong
        np.testing.assert_array_equal(zd.open_array(blosc, read=read)[:2, :3], ROWS)
    assert rows != columns
    store = MemoryStore()
    made = zd.create_array(
        store, shape=(2, 3), dtype="<i4", chunks=(2, 3), codecs=[], order="F", format="v1"
    )
    made[...] = ROWS
    assert bytes(store.get("0.0")) == columns
    assert json.loads(bytes(store.get("meta")))["order"] == "F"


def test_v1_f_order_is_one_of_two():
    with pytest.raises(ValueError, match="v1_f_order"):
        zd.ReadOptions(v1_f_order="c")


@pytest.mark.parametrize(
    ("dtype", "fill", "want"),
    [
        ("|b1", True, True),
        ("<U3", "äb", "äb"),
        ("|S4", "ab", b"ab"),
        ("|S4", 0, b""),
        ("<M8[s]", 5, np.datetime64(5, "s")),
        (">c8", 1.5, 1.5 + 0j),
        ("|V2", 0, np.void(b"\0\0")),
    ],
)
def test_fill_values(dtype, fill, want):
    array = zd.open_array(store_of(dtype=dtype, fill_value=fill))
    assert array.fill_value == want
    assert (array[0] == np.full(6, want, array.dtype)).all()
    store = MemoryStore()
    zd.create_array(store, shape=2, dtype=dtype, chunks=1, fill_value=array.fill_value, format="v1")
    written = json.loads(bytes(store.get("meta")))["fill_value"]
    assert zd.open_array(store).fill_value == want
    assert written == ("" if (dtype, fill) == ("|S4", 0) else fill)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": ()},
        {"codecs": [{"id": "zstd", "level": 1}]},
        {"codecs": [{"id": "delta", "dtype": "<i4"}, {"id": "zlib", "level": 1}]},
        {"codecs": {"id": "blosc", "shuffle": -1}},
        {"codecs": {"id": "blosc", "blocksize": 128}},
        {"chunk_key_encoding": {"separator": "/"}},
        {"dtype": "c8", "fill_value": 1j},
        {"dtype": [("a", "i4"), ("b", "i4", (2,))]},
        {"dtype": [("a", "i4")], "fill_value": (1,)},
        {"dtype": "f4", "fill_value": np.array(0x7FC00001, "u4").view("f4")[()]},
        {"dtype": "S3", "fill_value": b"\xff"},
    ],
)
def test_what_v1_cannot_say(options):
    store = MemoryStore()
    given = {"shape": (4, 6), "dtype": "<i4", "fill_value": 0, **options}
    with pytest.raises(errors.MetadataError):
        zd.create_array(store, format="v1", **given)
    assert list(store.list()) == []


def test_no_dimensions_are_refused():
    with pytest.raises(errors.MetadataError, match="at least one dimension"):
        zd.open_array(store_of(shape=[], chunks=[]))


def test_there_are_no_groups():
    with pytest.raises(errors.MetadataError, match="v1 has no groups"):
        zd.create_group({}, format="v1")
    store = MemoryStore()
    zd.create_array(store, "a/b", shape=3, dtype="u1", chunks=3, format="v1")[...] = 1
    assert sorted(store.list()) == ["a/b/0", "a/b/attrs", "a/b/meta"]
    assert zd.open_array(store, "a/b")[...].tolist() == [1, 1, 1]
    with pytest.raises(errors.NodeNotFoundError):
        zd.open(store, "a")
    with pytest.raises(errors.NodeExistsError):
        zd.create_array(store, "a/b", shape=3, dtype="u1")


def test_dimension_names_are_an_attribute():
    store = MemoryStore()
    zd.create_array(
        store, shape=(2, 2), dtype="u1", dimension_names=("y", None), format="v1",
        attributes={"unit": "m"},
    )  # fmt: skip
    array = zd.open_array(store)
    assert array.dimension_names == ("y", None)
    assert array.attributes == {"unit": "m", "_ARRAY_DIMENSIONS": ["y", None]}


@pytest.mark.parametrize("text", [b"not JSON", b"[1]", b'{"title": 1}', b"\xff"])
def test_a_file_that_is_called_meta_is_no_array(text):
    with pytest.raises(errors.NodeNotFoundError):
        zd.open({"meta": text})
    store = {"meta": text}
    zd.create_array(store, shape=3, dtype="u1")
    assert store["meta"] == text
    with pytest.raises(errors.MetadataError):
        zd.open({"meta": text}, format="v1")


def test_it_is_asked_for_last():
    for version in ("v2", "v3"):
        recording = Recording(MemoryStore())
        zd.create_array(recording, shape=3, dtype="u1", format=version)
        recording.clear()
        zd.open(recording)
        assert not {"meta", "attrs"} & recording.per_key().keys()
        assert sum(recording.batches.values()) == 1
    recording = Recording(MemoryStore())
    zd.create_array(recording, shape=3, dtype="u1", format="v1")
    recording.clear()
    zd.open(recording)
    assert sum(recording.batches.values()) == 2
    recording.clear()
    zd.open(recording, format="v1")
    assert recording.per_key() == {"meta": 1, "attrs": 1}
