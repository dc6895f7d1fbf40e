"""Errors say what failed, where, what was found and expected, and what to do; nothing is written.

Damage to stored bytes is located by key and coordinates, a failure of the store is never read as
fill values, and bytes that claim to be huge are refused before memory is taken.
"""

from __future__ import annotations

import bz2
import gzip
import inspect
import io
import json
import lzma
import pickle
import struct
import threading
import tracemalloc
import warnings
import zlib

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask import errors
from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import (
    ABSENT,
    CorruptObjectError,
    GridError,
    MemoryBudgetError,
    MetadataError,
    MixedFormatsWarning,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    PartialWriteError,
    ReadOnlyError,
    SchedulerError,
    SourceIsTargetError,
    StoreError,
    StoreKeyError,
    UnknownCodecError,
    UnknownDataTypeError,
    UnknownGridError,
    ValidationProblem,
    ZarrDaskError,
)
from zarr_dask.stores import HookStore, LocalStore, MemoryStore

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def place(tmp_path):
    """A hierarchy with one array of each format, and other people's files."""
    root = tmp_path / "root"
    for version in ("v3", "v2"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MixedFormatsWarning)
            options = {"dtype": "i4", "chunks": 4, "format": version}
            array = zd.create_array(root, version, shape=(8, 8), **options)
        array[...] = np.arange(64).reshape(8, 8)
    (root / "notes.txt").write_text("not ours")
    return root


def listing(place) -> dict[str, bytes | None]:
    """Everything below a folder, with what is in it."""
    paths = sorted(place.rglob("*"))
    return {str(p.relative_to(place)): p.read_bytes() if p.is_file() else None for p in paths}


def document(place, **changes) -> None:
    """Change members of the v3 array's document; `...` removes one."""
    path = place / "v3" / "zarr.json"
    members = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in members.items() if v is not ...}))


def document_v2(place, **changes) -> None:
    path = place / "v2" / ".zarray"
    members = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in members.items() if v is not ...}))


def refused(place, action, error, *says):
    """The error of an action that leaves everything as it was."""
    before = listing(place)
    with pytest.raises(error) as caught:
        action()
    assert listing(place) == before
    assert isinstance(caught.value, ZarrDaskError)
    for words in says:
        assert str(words) in str(caught.value)
    return caught.value


# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opener", [zd.open, zd.open_array, zd.open_group, zd.from_zarr])
def test_no_such_node(place, opener):
    error = refused(
        place,
        lambda: opener(place, "nothing/here"),
        NodeNotFoundError,
        f"{place}/nothing/here",
        "nothing/here/zarr.json",
        "Check the path",
    )
    assert isinstance(error, FileNotFoundError)
    assert len(error.looked_for) == 6


def test_no_such_place(place):
    refused(place, lambda: zd.open(place / "nothing"), NodeNotFoundError, place / "nothing")


def test_no_node_of_that_format(place):
    error = refused(
        place, lambda: zd.open(place, "v2", format="v3"), NodeNotFoundError, "leave format out"
    )
    assert error.looked_for == ("v2/zarr.json",)
    assert zd.open(place, "v2").format == "v2"


def test_no_such_format(place):
    with pytest.raises(ValueError, match=r"'v7'.*'v3'"):
        zd.open(place, "v3", format="v7")


def test_no_such_mode(place):
    with pytest.raises(ValueError, match=r"'x'.*'r\+'"):
        zd.open(place, "v3", mode="x")


def test_the_other_kind_of_node(place):
    error = refused(place, lambda: zd.open_array(place), NodeTypeError, place, "open_group")
    assert isinstance(error, TypeError)
    refused(place, lambda: zd.open_group(place, "v3"), NodeTypeError, f"{place}/v3", "open_array")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"not json", b"\xff\xfe", b"[]", b"3", b'"text"', b"null", b"[" * 100_000],
    ids=["empty", "cut", "words", "binary", "list", "number", "string", "null", "deep"],
)
@pytest.mark.parametrize("name", ["v3/zarr.json", "v2/.zarray", "v2/.zattrs"])
def test_a_document_that_is_no_json_object(place, name, text):
    (place / name).write_bytes(text)
    path, key = name.split("/")
    error = refused(place, lambda: zd.open(place, path), MetadataError, f"{place}/{name}", "JSON")
    assert [problem.field for problem in error.problems] == [key]


def test_a_document_that_is_too_large(place):
    limits = zd.ReadOptions(limits=zd.Limits(metadata_bytes=100))
    for path, name in (("v3", "zarr.json"), ("v2", ".zarray")):
        refused(
            place,
            lambda path=path: zd.open(place, path, read=limits),
            MetadataError,
            f"{path}/{name}",
            "at most 100 bytes",
        )


V3_MEMBERS = {
    "zarr_format": (..., None, 2, 3.0, "3", True),
    "node_type": (..., None, "matrix", 3, []),
    "shape": (..., None, 8, "8", [8, 8.0], [8, True], [8, -1], [[8]], {"0": 8}),
    "data_type": (..., None, 5, {}, [], {"name": 7}, {"name": "int32", "configuration": 1}),
    "chunk_grid": (
        ...,
        None,
        5,
        {},
        {"name": "regular"},
        {"name": "regular", "configuration": {}},
        {"name": "regular", "configuration": {"chunk_shape": None}},
        {"name": "regular", "configuration": {"chunk_shape": [4, 0]}},
        {"name": "regular", "configuration": {"chunk_shape": [4, -4]}},
        {"name": "regular", "configuration": {"chunk_shape": [4, 4.0]}},
        {"name": "regular", "configuration": {"chunk_shape": [4]}},
        {"name": "regular", "configuration": {"chunk_shape": [4, 4], "more": 1}},
    ),
    "chunk_key_encoding": (
        ...,
        None,
        5,
        {"name": "default", "configuration": {"separator": "-"}},
        {"name": "default", "configuration": {"seperator": "/"}},
        {"name": "default", "separator": None, "configuration": []},
    ),
    "fill_value": (..., None, "0", 1.5, 1 << 31, -(1 << 31) - 1, True, [0], "NaN", "0x0"),
    "codecs": (
        ...,
        None,
        [],
        {},
        "bytes",
        [None],
        [{}],
        [{"name": 5}],
        [CRC],
        [BYTES, BYTES],
        [CRC, BYTES],
        [BYTES, {"name": "gzip"}],
        [BYTES, {"name": "gzip", "configuration": {}}],
        [BYTES, {"name": "gzip", "configuration": {"level": "high"}}],
        [BYTES, {"name": "gzip", "configuration": {"level": 10}}],
        [BYTES, {"name": "gzip", "configuration": {"level": 1.0}}],
        [BYTES, {"name": "gzip", "configuration": {"level": True}}],
        [BYTES, {"name": "gzip", "configuration": {"level": 1, "wbits": 3}}],
        [BYTES, {"name": "zstd", "configuration": {"level": 23, "checksum": False}}],
        [BYTES, {"name": "zstd", "configuration": {"level": 1, "checksum": 1}}],
        [BYTES, {"name": "blosc", "configuration": {"cname": "lzma"}}],
        [{"name": "bytes", "configuration": {"endian": "middle"}}],
        [{"name": "bytes"}],
        [{"name": "transpose", "configuration": {"order": [0, 0]}}, BYTES],
        [{"name": "transpose", "configuration": {"order": [0]}}, BYTES],
        [{"name": "transpose", "configuration": {"order": "K"}}, BYTES],
        [{"name": "transpose", "configuration": {"order": [0, 2]}}, BYTES],
        [BYTES, {"name": "transpose", "configuration": {"order": [1, 0]}}],
    ),
    "dimension_names": (5, "xy", ["x"], ["x", 5], ["x", "y", "z"], {}),
    "attributes": (None, 5, [], "text"),
    "storage_transformers": ({}, [{"name": "indirection"}], [5]),
    "something_new": (5, {}, {"must_understand": True}, {"must_understand": 0}, None),
}


@pytest.mark.parametrize(
    ("member", "value"),
    [
        pytest.param(member, value, id=f"{member}-{number}")
        for member, values in V3_MEMBERS.items()
        for number, value in enumerate(values)
    ],
)
def test_a_wrong_member_of_v3(place, member, value):
    document(place, **{member: value})
    for action in (
        lambda: zd.open(place, "v3"),
        lambda: zd.open(place, "v3", mode="r+", format="v3"),
        lambda: zd.to_zarr(da.zeros((8, 8), chunks=4, dtype="i4"), place, "v3", mode="r+"),
    ):
        error = refused(place, action, MetadataError, f"{place}/v3/zarr.json", member)
        assert isinstance(error, ValueError)
        assert error.problems, "an error without a reason"
        problem = error.problems[0]
        assert problem.field.split(".", 1)[0].split("[", 1)[0] == member
        assert problem.expected
        assert "expected" in str(problem)
        assert (": absent" if problem.found is ABSENT else ": got") in str(problem)


V2_MEMBERS = {
    "zarr_format": (..., None, 3, 2.0, "2"),
    "shape": (..., None, 8, [8, 8.0], [8, -1], [8, True], "8,8"),
    "chunks": (..., None, 4, [4], [4, 0], [4, -4], [4, 4.0], [[4, 4]]),
    "dtype": (..., None, 4),
    "fill_value": (..., "zero", 1.5, 1 << 31, [0], {}),
    "order": (..., None, "K", 0),
    "filters": ("delta", {}, 5, [None], [{}], [{"id": 5}], [{"id": "delta", "dtype": "<x9"}]),
    "compressor": (
        ...,
        5,
        "zlib",
        {},
        {"id": None},
        {"id": "zlib", "level": 1, "more": 2},
        {"id": "zlib", "level": "high"},
        {"id": "blosc", "shuffle": 7},
        {"id": "blosc", "cname": "lzma"},
        [],
    ),
    "dimension_separator": (None, "-", 5, ""),
}


@pytest.mark.parametrize(
    ("member", "value"),
    [
        pytest.param(member, value, id=f"{member}-{number}")
        for member, values in V2_MEMBERS.items()
        for number, value in enumerate(values)
    ],
)
def test_a_wrong_member_of_v2(place, member, value):
    document_v2(place, **{member: value})
    error = refused(
        place, lambda: zd.open(place, "v2"), MetadataError, f"{place}/v2/.zarray", member
    )
    assert error.problems
    assert error.problems[0].field.split(".", 1)[0].split("[", 1)[0] == member


def test_all_problems_are_listed(place):
    document(
        place,
        shape=[8, "8"],
        data_type="int33",
        fill_value=...,
        codecs=[BYTES, {"name": "gzip", "configuration": {"level": 11, "more": 1}}, {"name": "lz"}],
        dimension_names=5,
        surprise={"must_understand": True},
    )
    error = refused(place, lambda: zd.open(place, "v3"), MetadataError, "problems")
    fields = [problem.field for problem in error.problems]
    assert set(fields) >= {
        "shape",
        "data_type",
        "fill_value",
        "codecs[1].configuration.level",
        "codecs[1].configuration.more",
        "codecs[2].name",
        "dimension_names",
        "surprise",
    }
    assert f"{len(fields)} problems" in str(error)
    assert str(error).count("\n  - ") == len(fields)
    document_v2(place, shape=5, dtype="<i3", order="K", filters=[{"id": "no"}], compressor={})
    error = refused(place, lambda: zd.open(place, "v2"), MetadataError)
    assert len(error.problems) >= 3


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"codecs": [BYTES, {"name": "lz77"}]}, UnknownCodecError, "'lz77'"),
        ({"codecs": ["bytes", "https://example.org/c"]}, UnknownCodecError, "example.org"),
        ({"data_type": "int33"}, UnknownDataTypeError, "'int33'"),
        (
            {"data_type": {"name": "numpy.datetime65", "configuration": {"unit": "s"}}},
            UnknownDataTypeError,
            "numpy.datetime65",
        ),
        ({"chunk_grid": {"name": "hexagonal"}}, UnknownGridError, "'hexagonal'"),
        ({"chunk_key_encoding": {"name": "morton"}}, UnknownGridError, "morton"),
    ],
    ids=["codec", "codec url", "data type", "extension type", "grid", "keys"],
)
def test_what_is_not_known(place, changes, kind, says):
    document(place, **changes)
    error = refused(place, lambda: zd.open(place, "v3"), kind, says, "known", f"{place}/v3")
    assert isinstance(error, MetadataError)


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"compressor": {"id": "lz77"}}, UnknownCodecError, "'lz77'"),
        ({"filters": [{"id": "pickle"}]}, UnknownCodecError, "'pickle'"),
        ({"dtype": "|O"}, MetadataError, "object"),
        ({"dtype": "<f3"}, UnknownDataTypeError, "f3"),
    ],
    ids=["compressor", "filter", "object", "size"],
)
def test_what_is_not_known_in_v2(place, changes, kind, says):
    document_v2(place, **changes)
    refused(place, lambda: zd.open(place, "v2"), kind, says, f"{place}/v2/.zarray")


def sharding(**changes):
    configuration = {"chunk_shape": [2, 2], "codecs": [BYTES], "index_codecs": [BYTES, CRC]}
    return {"name": "sharding_indexed", "configuration": configuration | changes}


@pytest.mark.parametrize(
    ("codec", "field"),
    [
        (sharding(chunk_shape=[3, 2]), "chunk_shape"),
        (sharding(chunk_shape=[8, 8]), "chunk_shape"),
        (sharding(chunk_shape=[2]), "chunk_shape"),
        (sharding(chunk_shape=[2, 0]), "chunk_shape"),
        (sharding(chunk_shape=None), "chunk_shape"),
        (sharding(codecs=[]), "codecs"),
        (sharding(codecs=None), "codecs"),
        (sharding(codecs=[BYTES, {"name": "lz77"}]), "codecs[1].name"),
        (sharding(codecs=[sharding(chunk_shape=[3, 3])]), "codecs[0].configuration.chunk_shape"),
        (sharding(index_codecs=[]), "index_codecs"),
        (sharding(index_codecs=[BYTES, {"name": "gzip", "configuration": {"level": 1}}]), "index"),
        (sharding(index_location="middle"), "index_location"),
        (sharding(surprise=1), "surprise"),
    ],
    ids=[
        "not dividing",
        "too large",
        "too few dimensions",
        "zero",
        "null",
        "no codecs",
        "codecs null",
        "unknown codec",
        "nested, not dividing",
        "no index codecs",
        "index of no known size",
        "location",
        "surprise",
    ],
)
def test_shards_that_cannot_be(place, codec, field):
    document(place, codecs=[codec])
    error = refused(place, lambda: zd.open(place, "v3"), MetadataError, field)
    assert error.problems[0].field.startswith("codecs[0].configuration")


def test_chunks_that_claim_too_much(place):
    document(
        place,
        shape=[1 << 40, 8],
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1 << 30, 8]}},
        codecs=[BYTES],
    )
    refused(place, lambda: zd.open(place, "v3"), MetadataError, "decoded bytes per chunk", "Limits")
    options = zd.ReadOptions(limits=zd.Limits(chunk_bytes=1 << 40))
    assert zd.open(place, "v3", read=options).chunks == (1 << 30, 8)


# --- writing --------------------------------------------------------------------------------------


def lazy(shape=(8, 8)):
    return da.ones(shape, chunks=3, dtype="i4")


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("create", NodeExistsError, ["exists already", "overwrite=True"]),
        ("create group", NodeExistsError, ["exists already", "overwrite=True"]),
        ("create inside", NodeExistsError, ["inside the array", "another path"]),
        ("to_zarr", NodeExistsError, ["exists already", "overwrite=True"]),
        ("rechunk", NodeExistsError, ["exists already", "overwrite=True"]),
        ("source", SourceIsTargetError, ["/v3", "another place"]),
        ("rechunk source", SourceIsTargetError, ["/v3", "another target"]),
        ("rechunk above", SourceIsTargetError, ["another target"]),
        ("shards", GridError, ["(3, 3)", "(4, 4)", "multiple"]),
        ("rechunk shards", GridError, ["(3, 3)", "(4, 4)", "multiple"]),
        ("chunks", GridError, ["(4, 0)", "at least 1"]),
        ("dimensions", GridError, ["(4, 4, 4)", "2 integers"]),
        ("region shape", GridError, ["(5, 8)", "(4, 8)", "/v3"]),
        ("part", PartialWriteError, ["only in part", "(0, 0)", 'partial="own"']),
        ("memory", MemoryBudgetError, ["(8, 8)", "max_mem"]),
        ("memory text", MemoryBudgetError, ["'lots'", "256MB"]),
        ("read only", ReadOnlyError, ["v3/c/0/0", "reading only"]),
        ("read only to_zarr", ReadOnlyError, ["/v3", "r+"]),
        ("key", StoreKeyError, ["'../v3'", "names joined by '/'"]),
    ],
)
def test_what_is_refused(place, name, error, says):
    def source():
        return zd.from_zarr(place, "v3") + 1

    actions = {
        "create": lambda: zd.create_array(place, "v3", shape=1, dtype="i4"),
        "create group": lambda: zd.create_group(place, "v2"),
        "create inside": lambda: zd.create_array(place, "v3/a/b", shape=1, dtype="i4"),
        "to_zarr": lambda: zd.to_zarr(lazy(), place, "v2"),
        "rechunk": lambda: zd.rechunk(place / "v3", place, path="v2", chunks=(1, 8)),
        "source": lambda: zd.to_zarr(source(), place, "v3", mode="w"),
        "rechunk source": lambda: zd.rechunk(
            place / "v3", place / "v3", chunks=(1, 8), overwrite=True
        ),
        "rechunk above": lambda: zd.rechunk(place / "v3", place, chunks=(1, 8), overwrite=True),
        "shards": lambda: zd.to_zarr(lazy(), place, "new", chunks=(3, 3), shards=(4, 4)),
        "rechunk shards": lambda: zd.rechunk(
            place / "v3", place, path="new", chunks=(3, 3), shards=(4, 4)
        ),
        "chunks": lambda: zd.create_array(place, "new", shape=(8, 8), dtype="i4", chunks=(4, 0)),
        "dimensions": lambda: zd.create_array(
            place, "new", shape=(8, 8), dtype="i4", chunks=(4, 4, 4)
        ),
        "region shape": lambda: zd.to_zarr(lazy((5, 8)), place, "v3", region=np.s_[0:4]),
        "part": lambda: zd.to_zarr(lazy((3, 8)), place, "v3", region=np.s_[0:3]),
        "memory": lambda: zd.rechunk(place / "v3", place, path="new", chunks=-1, max_mem=100),
        "memory text": lambda: zd.rechunk(
            place / "v3", place, path="new", chunks=-1, max_mem="lots"
        ),
        "read only": lambda: zd.open(place, "v3").__setitem__(0, 1),
        "read only to_zarr": lambda: zd.to_zarr(lazy(), zd.open_array(place, "v3")),
        "key": lambda: zd.create_array(place, "../v3", shape=1, dtype="i4"),
    }
    refused(place, actions[name], error, *says)


@pytest.mark.parametrize("action", ["rechunk", "to_zarr"])
def test_a_group_above_that_cannot_be_read_is_not_overwritten(place, action):
    (place / "zarr.json").write_text("{")
    do = {
        "rechunk": lambda: zd.rechunk(place / "v3", place, path="a/b", chunks=(1, 8)),
        "to_zarr": lambda: zd.to_zarr(lazy(), place, "a/b", mode="w"),
    }[action]
    refused(place, do, MetadataError, f"{place}/zarr.json")


def test_no_scheduler_at_the_address(place):
    from zarr_dask.jobs.engine.connect import connect

    def enter(**where):
        with connect(timeout=0.3, **where):
            raise AssertionError("there is a scheduler")

    address = "tcp://127.0.0.1:9"
    error = refused(
        place, lambda: enter(scheduler=address), SchedulerError, address, "dask scheduler"
    )
    assert isinstance(error, ConnectionError)
    nothing = str(place / "scheduler.json")
    refused(place, lambda: enter(scheduler_file=nothing), SchedulerError, nothing)
    broken = place / "notes.txt"
    refused(place, lambda: enter(scheduler_file=str(broken)), SchedulerError, broken)
    refused(place, lambda: enter(scheduler="nonsense://x"), SchedulerError, "nonsense")


# --- damaged data ---------------------------------------------------------------------------------

VALUES = np.arange(1, 65, dtype="i4").reshape(8, 8)
LAYOUTS = {
    "bytes": {"codecs": []},
    "crc32c": {"codecs": ["crc32c"]},
    "gzip": {"codecs": ["gzip"]},
    "zstd": {"codecs": ["zstd"]},
    "zstd, checked": {
        "codecs": [{"name": "zstd", "configuration": {"level": 1, "checksum": True}}]
    },
    "blosc": {"codecs": ["blosc"]},
    "v2 zlib": {"format": "v2", "codecs": [{"id": "zlib"}]},
    "v2 bz2": {"format": "v2", "codecs": [{"id": "bz2"}]},
    "v2 lzma": {"format": "v2", "codecs": [{"id": "lzma"}]},
    "v2 lz4": {"format": "v2", "codecs": [{"id": "lz4"}]},
    "v2 filters": {"format": "v2", "codecs": [{"id": "delta", "dtype": "<i4"}, {"id": "crc32"}]},
    "shards": {"chunks": (4, 4), "codecs": [sharding()]},
    "shards, index first": {"chunks": (4, 4), "codecs": [sharding(index_location="start")]},
    "shards of zstd": {"chunks": (4, 4), "codecs": [sharding(codecs=[BYTES, CRC])]},
    "gzip of shards": {"chunks": (4, 4), "codecs": [sharding(), "gzip"]},
}


def written(layout: str, **more) -> tuple[MemoryStore, zd.Array, str]:
    """An array, and the key of its object at (1, 0)."""
    store = MemoryStore()
    options = {"chunks": (4, 4), "dtype": "i4", **LAYOUTS[layout], **more}
    array = zd.create_array(store, "a", shape=(8, 8), **options)
    array[...] = VALUES
    return store, zd.open_array(store, "a"), f"a/{array.meta.chunk_key_encoding.key((1, 0))}"


def damaged_reads(array):
    """Ways of reading the object at (1, 0), whole and in part."""
    yield lambda: array[...]
    yield lambda: array[4:8, 0:4]
    yield lambda: array[4, 0]
    yield lambda: array[5:7, 1:3]
    yield zd.from_zarr(array)[6, 2].compute
    yield zd.from_zarr(array).sum().compute


def assert_corrupt_at(region, array, key, coords):
    assert_corrupt(lambda: array[region], array, key, coords)


def assert_corrupt(read, array, key, coords=None):
    with pytest.raises(CorruptObjectError) as caught:
        read()
    error = caught.value
    assert error.key == key
    assert error.coords[0] == (1, 0)
    assert error.reason
    for words in (array.where, repr(key), "(1, 0)", "Restore it"):
        assert words in str(error)
    if coords is not None:
        assert error.coords == coords


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_truncated_object(layout):
    store, array, key = written(layout)
    whole = store.values[key]
    for length in {0, 1, 3, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
        store.values[key] = whole[:length]
        assert_corrupt(lambda: array[...], array, key)
        assert_corrupt(lambda: array[4:8, 0:4], array, key)
        assert_corrupt(lambda: zd.from_zarr(array).sum().compute(), array, key)
    store.values[key] = whole
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("layout", ["bytes", "crc32c", "v2 filters", "shards of zstd"])
def test_an_object_that_is_too_long(layout):
    store, array, key = written(layout)
    store.values[key] += b"\0" * 7
    assert_corrupt(lambda: array[...], array, key)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_object_of_other_bytes(layout):
    store, array, key = written(layout)
    random = np.random.default_rng(5)
    for length in (1, 16, 68, 200):
        store.values[key] = random.bytes(length)
        for read in damaged_reads(array):
            assert_corrupt(read, array, key)


CHECKED = ("crc32c", "zstd, checked", "gzip", "v2 zlib", "v2 bz2", "v2 lzma", "v2 filters")


@pytest.mark.parametrize("layout", CHECKED)
def test_one_changed_bit_is_found(layout):
    store, array, key = written(layout)
    whole = store.values[key]
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        store.values[key] = bytes(changed)
        try:
            got = array[4:8, 0:4]
        except CorruptObjectError as error:
            assert error.key == key  # noqa: PT017  (some bits of a header mean nothing)
        else:
            np.testing.assert_array_equal(got, VALUES[4:8, 0:4])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changed_bits_crash_nothing(layout):
    store, array, key = written(layout)
    whole = store.values[key]
    for position in range(len(whole)):
        for mask in (0xFF, 0x80, 0x01):
            changed = bytearray(whole)
            changed[position] ^= mask
            store.values[key] = bytes(changed)
            for region in (np.s_[4:8, 0:4], np.s_[5, 1]):
                try:
                    array[region]
                except CorruptObjectError as error:
                    assert error.coords[0] == (1, 0)  # noqa: PT017  (or they are other values)


# --- damaged shards -------------------------------------------------------------------------------


def index_of(shard: bytes, entries: int) -> np.ndarray:
    """A copy of the index at the end of a shard."""
    return np.frombuffer(shard[-16 * entries - 4 : -4], "<u8").reshape(-1, 2).copy()


def with_index(shard: bytes, index: np.ndarray) -> bytes:
    text = index.astype("<u8").tobytes()
    return shard[: -len(text) - 4] + text + crc32c(text).to_bytes(4, "little")


def test_a_changed_shard_index_is_found():
    for layout in ("shards", "shards, index first"):
        store, array, key = written(layout)
        whole = store.values[key]
        places = range(-68, 0) if layout == "shards" else range(68)
        for position in places:
            changed = bytearray(whole)
            changed[position] ^= 0x20
            store.values[key] = bytes(changed)
            for read in damaged_reads(array):
                assert_corrupt(read, array, key, coords=((1, 0),))
            with pytest.raises(CorruptObjectError, match="shard index"):
                array[...]


POINTERS = {
    "beyond the end": (10_000, 16),
    "over the end": (120, 1000),
    "far beyond": (1 << 40, 16),
    "huge": (0, 1 << 40),
    "beyond signed integers": (1 << 63, 16),
    "around": ((1 << 64) - 8, 16),
    "almost absent": ((1 << 64) - 1, 16),
    "almost absent too": (0, (1 << 64) - 1),
    "too short": (0, 3),
    "empty": (0, 0),
}


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("pointer", POINTERS)
def test_a_shard_index_that_points_elsewhere(tmp_path, pointer, where):
    store, array, key = written("shards")
    index = index_of(store.values[key], 4)
    index[3] = POINTERS[pointer]
    damaged = with_index(store.values[key], index)
    store.values[key] = damaged
    if where == "local":
        local = LocalStore(str(tmp_path))
        for name, value in store.values.items():
            local.set(name, [value])
        array = zd.open_array(local, "a")
    for region in (np.s_[...], np.s_[4:8, 0:4], np.s_[7, 3], np.s_[5:7, 1:3]):
        tracemalloc.start()
        try:
            assert_corrupt_at(region, array, key, ((1, 0), (1, 1)))
            assert tracemalloc.get_traced_memory()[1] < 1 << 22
        finally:
            tracemalloc.stop()
    np.testing.assert_array_equal(array[4:6, 0:4], VALUES[4:6, 0:4])


@pytest.mark.parametrize("location", ["end", "start"])
def test_a_damaged_chunk_of_a_shard_is_named(location):
    codec = sharding(codecs=[BYTES, CRC], index_location=location)
    store, array, key = written("shards", codecs=[codec])
    changed = bytearray(store.values[key])
    changed[25 + (68 if location == "start" else 0)] ^= 1  # in the second of chunks of 20 bytes
    store.values[key] = bytes(changed)
    for region in (np.s_[...], np.s_[4:6, 2:4], np.s_[4, 3]):
        assert_corrupt_at(region, array, key, ((1, 0), (0, 1)))
    np.testing.assert_array_equal(array[4:8, 0:2], VALUES[4:8, 0:2])
    np.testing.assert_array_equal(array[6:8, 2:4], VALUES[6:8, 2:4])


def test_a_truncated_shard_names_the_chunks_it_has_lost():
    store, array, key = written("shards", codecs=[sharding(index_location="start")])
    store.values[key] = store.values[key][:-5]
    for region in (np.s_[...], np.s_[6:8, 2:4], np.s_[7, 3], np.s_[4:8, 3]):
        assert_corrupt_at(region, array, key, ((1, 0), (1, 1)))
    np.testing.assert_array_equal(array[4:6, 0:4], VALUES[4:6, 0:4])


def test_damage_in_nested_shards_is_named():
    inner = sharding(chunk_shape=[1, 2], codecs=[BYTES, CRC], index_location="start")
    outer = sharding(chunk_shape=[2, 4], codecs=[inner])
    store = MemoryStore()
    array = zd.create_array(store, "a", shape=(8, 8), dtype="i4", chunks=(4, 8), codecs=[outer])
    array[...] = VALUES
    key = "a/c/1/0"
    changed = bytearray(store.values[key])
    size = 4 * 16 + 4 + 4 * (8 + 4)  # an inner shard: index, its checksum, chunks with theirs
    changed[size + 68 + 2 * 12 + 3] ^= 1  # second inner shard, third chunk
    store.values[key] = bytes(changed)
    for region in (np.s_[...], np.s_[4:8], np.s_[5, 4], np.s_[5:6, 4:6]):
        assert_corrupt_at(region, array, key, ((1, 0), (0, 1), (1, 0)))
    changed[size + 5] ^= 1  # the index of the second inner shard
    store.values[key] = bytes(changed)
    for region in (np.s_[...], np.s_[4, 7]):
        assert_corrupt_at(region, array, key, ((1, 0), (0, 1)))
    np.testing.assert_array_equal(array[4:6, 0:4], VALUES[4:6, 0:4])


@pytest.mark.parametrize("layout", ["crc32c", "shards of zstd"])
def test_damage_is_not_written_over(layout):
    """Changing a part of a damaged object must not make the rest of it look whole."""
    store, _, key = written(layout)
    store.values[key] = store.values[key][:-1]
    before = dict(store.values)
    array = zd.open_array(store, "a", mode="r+")
    with pytest.raises(CorruptObjectError):
        array[4, 0] = 7
    with pytest.raises(CorruptObjectError):
        zd.to_zarr(lazy((1, 1)), array, region=np.s_[4:5, 0:1], partial="own")
    assert dict(store.values) == before
    array[4:8, 0:4] = 7  # all of it may be replaced
    assert (array[4:8, 0:4] == 7).all()


# --- bombs ----------------------------------------------------------------------------------------

HUGE = 3 << 30
CHUNK = 1 << 16


def zstd_claims(nbytes: int) -> bytes:
    """A zstd frame whose header says how much it holds, and one empty block."""
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, nbytes) + b"\x01\0\0"


def zstd_without_a_claim(nbytes: int) -> bytes:
    """A frame of unknown size: blocks that repeat a byte 128 kB at a time."""
    window = 7 << 3  # 128 kB
    blocks = -(-nbytes // (1 << 17))
    block = [(1 << 17) << 3 | 1 << 1] * (blocks - 1) + [(1 << 17) << 3 | 1 << 1 | 1]
    body = b"".join(number.to_bytes(3, "little") + b"\0" for number in block)
    return struct.pack("<IBB", 0xFD2FB528, 0, window) + body


def blosc_claims(nbytes: int) -> bytes:
    frame = bytearray(numcodecs.Blosc().encode(b"\0" * CHUNK))
    frame[4:8] = min(nbytes, (1 << 32) - 1).to_bytes(4, "little")
    return bytes(frame)


def zeros(mebibytes: int) -> bytes:
    return bytes(mebibytes << 20)


def shard_with(frame: bytes, shard: bytes) -> bytes:
    """The same shard with another first chunk."""
    index = index_of(shard, 4)
    index[0] = (0, len(frame))
    return with_index(frame + shard[len(frame) :], index)


ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
SHARD_OF_ZSTD = sharding(chunk_shape=[1 << 12], codecs=[BYTES, ZSTD])
BOMBS = {
    "zstd": (["zstd"], lambda _: zstd_claims(HUGE)),
    "zstd, more than memory": (["zstd"], lambda _: zstd_claims(1 << 62)),
    "zstd, no claim": (["zstd"], lambda _: zstd_without_a_claim(1 << 28)),
    "blosc": (["blosc"], lambda _: blosc_claims(HUGE)),
    "gzip": (["gzip"], lambda _: gzip.compress(zeros(64))),
    "gzip, many members": (["gzip"], lambda _: gzip.compress(bytes(CHUNK)) * 5000),
    "gzip in gzip": (["gzip", "gzip"], lambda _: gzip.compress(gzip.compress(zeros(64)))),
    "zlib": ([{"id": "zlib"}], lambda _: zlib.compress(zeros(64))),
    "bz2": ([{"id": "bz2"}], lambda _: bz2.compress(zeros(64))),
    "lzma": ([{"id": "lzma"}], lambda _: lzma.compress(zeros(64), preset=0)),
    "lz4": ([{"id": "lz4"}], lambda whole: struct.pack("<I", (1 << 31) - 1) + whole[4:]),
    "zstd in a shard": ([SHARD_OF_ZSTD], lambda whole: shard_with(zstd_claims(HUGE), whole)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bytes_that_claim_to_be_huge(bomb):
    codecs, frame_of = BOMBS[bomb]
    store = MemoryStore()
    version = "v2" if "id" in codecs[0] else "v3"
    length = CHUNK // 4
    array = zd.create_array(
        store, shape=length, dtype="i4", chunks=length, codecs=codecs, format=version
    )
    array[...] = 1
    key = "0" if version == "v2" else "c/0"
    frame = store.values[key] = frame_of(store.values[key])
    for read in (lambda: array[...], lambda: array[5]):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptObjectError) as caught:
                read()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert caught.value.key == key
        assert peak < (1 << 22) + 2 * len(frame), f"{peak} bytes were taken"


# --- a store that fails ---------------------------------------------------------------------------

FAILURES = [
    StoreError("the wire is cut"),
    OSError(5, "Input/output error"),
    PermissionError(13, "Permission denied"),
    TimeoutError("no answer"),
    ConnectionResetError("reset by peer"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("layout", ["bytes", "shards", "v2 zlib"])
def test_a_failed_read_is_never_a_fill_value(layout, failure):
    store, _, key = written(layout)

    def fail(method, wanted):
        if method == "get" and wanted == key:
            raise failure

    array = zd.open_array(HookStore(store, fail), "a", mode="r+")
    before = dict(store.values)
    reads = [*damaged_reads(array), lambda: array.read(threads=2), lambda: np.asarray(array)]
    writes = [
        lambda: array.__setitem__((4, 0), 7),
        lambda: zd.to_zarr(lazy((1, 1)), array, region=np.s_[4:5, 0:1], partial="own"),
        lambda: zd.rechunk(array, MemoryStore(), chunks=(8, 8)),
    ]
    for action in (*reads, *writes):
        with pytest.raises(type(failure)) as caught:
            action()
        assert str(failure) in str(caught.value)
    assert dict(store.values) == before
    np.testing.assert_array_equal(array[0:4], VALUES[0:4])


@pytest.mark.parametrize("failure", FAILURES, ids=lambda e: type(e).__name__)
def test_a_failed_read_of_a_document_is_no_absence(failure):
    store, _, _ = written("bytes")

    def fail(method, wanted):
        if wanted.endswith("zarr.json"):
            raise failure

    faulty = HookStore(store, fail)
    before = dict(store.values)
    for action in (
        lambda: zd.open(faulty, "a"),
        lambda: zd.open(faulty, "a", format="v3"),
        lambda: zd.create_array(faulty, "a", shape=3, dtype="i4"),
        lambda: zd.create_array(faulty, "a/b/c", shape=3, dtype="i4"),
        lambda: zd.create_array(faulty, "a", shape=3, dtype="i4", overwrite=True),
        lambda: zd.to_zarr(lazy(), faulty, "a"),
        lambda: zd.to_zarr(lazy(), faulty, "new/b"),
        lambda: "a" in zd.open_group(faulty),
    ):
        with pytest.raises(type(failure)):
            action()
    assert dict(store.values) == before


def test_the_index_of_a_shard_may_fail_too():
    store, _, key = written("shards")
    asked = []

    def fail(method, wanted):
        if wanted == key:
            asked.append(wanted)
            if len(asked) == 2:  # the index was read, the chunks cannot be
                raise StoreError("the wire is cut")

    array = zd.open_array(HookStore(store, fail), "a")
    with pytest.raises(StoreError, match="wire"):
        array[4, 0]
    assert len(asked) == 2


def test_a_failure_in_one_of_many_threads_is_raised():
    store, _, key = written("bytes")
    seen = set()

    def fail(method, wanted):
        seen.add(threading.current_thread().name)
        if wanted == key:
            raise StoreError("the wire is cut")

    array = zd.open_array(HookStore(store, fail), "a")
    for _ in range(20):
        with pytest.raises(StoreError, match="wire"):
            array.read()


# --- the exceptions themselves --------------------------------------------------------------------

PROBLEMS = [
    ValidationProblem("shape", ABSENT, "a list of integers"),
    ValidationProblem("codecs[0].name", "lz77", "a known codec", "codec"),
]
EXAMPLES = {
    zd.errors.OmeVersionError: zd.errors.OmeVersionError("image.zarr", "0.1", ("0.4", "0.5")),
    errors.NodeKeyError: errors.NodeKeyError("/a/b", ["b/zarr.json"], "Check the path."),
    NodeNotFoundError: NodeNotFoundError("/a/b", ["zarr.json", ".zarray"], "Check the path."),
    **{
        kind: kind("/a/zarr.json", PROBLEMS)
        for kind in (MetadataError, UnknownCodecError, UnknownDataTypeError, UnknownGridError)
    },
    errors.MigrationError: errors.MigrationError("/a", [("b/c", PROBLEMS[1])]),
    errors.SharedObjectError: errors.SharedObjectError("u/c/0", (0, 1), "Use other chunks."),
    errors.CopyError: errors.CopyError("/a", [("x", "no such codec")]),
    errors.ValuesDifferError: errors.ValuesDifferError("/a", "/b", 1, [((0, 4), "1", "2")]),
    errors.StepsMissingError: errors.StepsMissingError("/a", 3, [(1, "u", "u/c/0")]),
    CorruptObjectError: CorruptObjectError("too short", "/a", "c/0", ((0,), (1, 2))),
}
CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, ZarrDaskError)
]


def pickled(value, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """As in a process where nobody taught pickle about exceptions (distributed does)."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol)
    pickler.dispatch_table = {}
    pickler.dump(value)
    return stream.getvalue()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_exceptions_survive_pickling(kind):
    error = EXAMPLES[kind] if kind in EXAMPLES else kind("what, where and what to do")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickled(error, protocol))
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args
        assert repr(again) == repr(error)
        assert vars(again).keys() == vars(error).keys()
        for name, value in vars(error).items():
            assert repr(getattr(again, name)) == repr(value)


def test_what_is_absent_stays_absent_when_pickled():
    assert pickle.loads(pickled(ABSENT)) is ABSENT
    error = pickle.loads(pickled(EXAMPLES[MetadataError]))
    assert error.problems[0].found is ABSENT
    assert "shape: absent, expected" in str(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_exceptions_are_public_and_documented(kind):
    assert kind.__name__ in errors.__all__
    assert kind.__doc__
    assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (NodeNotFoundError, FileNotFoundError),
        (errors.NodeKeyError, KeyError),
        (errors.NodeKeyError, NodeNotFoundError),
        (NodeExistsError, FileExistsError),
        (MetadataError, ValueError),
        (GridError, ValueError),
        (errors.MigrationError, ValueError),
        (errors.SelectionError, IndexError),
        (CorruptObjectError, ValueError),
        (errors.ChunkMissingError, FileNotFoundError),
        (StoreError, OSError),
        (ReadOnlyError, PermissionError),
        (errors.AccessDeniedError, PermissionError),
        (errors.StoreUnavailableError, ConnectionError),
        (SchedulerError, ConnectionError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_exceptions_are_those_of_python_too(kind, builtin):
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("scheduler", ["processes"])
def test_errors_come_back_from_other_processes(tmp_path, scheduler):
    array = zd.create_array(tmp_path, shape=(8, 8), dtype="i4", chunks=(4, 4), codecs=["crc32c"])
    array[...] = VALUES
    path = tmp_path / "c" / "1" / "0"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptObjectError, match="c/1/0") as caught:
        zd.from_zarr(tmp_path).sum().compute(scheduler=scheduler, num_workers=1)
    assert caught.value.key == "c/1/0"
    assert caught.value.coords == ((1, 0),)


def test_missing_chunks_may_be_an_error():
    store, _, key = written("shards")
    del store.values[key]
    strict = zd.ReadOptions(missing="error")
    array = zd.open_array(store, "a", read=strict)
    for read in damaged_reads(array):
        with pytest.raises(errors.ChunkMissingError, match=key):
            read()
    np.testing.assert_array_equal(array[0:4], VALUES[0:4])
    assert not zd.open_array(store, "a")[4:8, 0:4].any()
