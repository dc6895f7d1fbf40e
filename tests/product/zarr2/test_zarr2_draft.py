"""The v3 draft of May 2022 as zarr-python 2.18 has it behind a switch: each reads the other."""

import json
import os
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import ZARR2, ZARR2_SCRIPTS

FORMAT = "v3draft-2022-05"

TEXTS = np.array(["ab", "", "d\u00e9f", "g", "hi"], object)
STRUCT = [("a", ">i4"), ("b", "<f8")]

DTYPES = [
    *("|b1", "|i1", "<i2", ">i4", "<i8", "|u1", ">u2", "<u4", ">u8"),
    *("<f2", "<f4", ">f4", ">f8", "<c8", ">c16"),
    *("<M8[ns]", "<m8[s]", "|S3", "<U3", ">U3"),
]
COMPRESSORS = [
    None,
    {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": -1, "blocksize": 0},
    {"id": "zlib", "level": 1},
    {"id": "gzip", "level": 5},
    {"id": "bz2", "level": 1},
    {"id": "lz4", "acceleration": 1},
    {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
    {"id": "zstd", "level": 3},
]
SHAPES = [((), ()), ((7,), (3,)), ((5, 6), (2, 4)), ((4, 3, 5), (3, 3, 2)), ((0, 3), (1, 2))]


def _jobs():
    """Every dtype, compressor and shape; orders and separators in turn."""
    turns = list(product("CF", "./", SHAPES))
    count = max(len(DTYPES), len(turns)) * 2
    for number in range(count):
        order, separator, (shape, chunks) = turns[number % len(turns)]
        yield _job(
            DTYPES[number % len(DTYPES)], shape, chunks, order=order, separator=separator,
            compressor=COMPRESSORS[number % len(COMPRESSORS)],
        )  # fmt: skip
    yield _job("<i2", (4, 5), (2, 2), filters=[{"id": "delta", "dtype": "<i2"}], order="F")
    yield _job(">f4", (5,), (2,), filters=[{"id": "shuffle", "elementsize": 4}])
    yield _job("|V3", (4,), (3,))
    for separator in "/.":
        shards = {"chunks_per_shard": [2, 2], "separator": separator}
        yield _job("|u1", (4, 4), (1, 2), **shards)
        yield _job(
            ">i4", (5, 7), (2, 2), order="F", compressor={"id": "gzip", "level": 1}, **shards
        )
    yield _job("<i2", (9,), (2,), chunks_per_shard=[3])


def _job(dtype, shape, chunks, **members):
    return {
        "dtype": dtype,
        "shape": list(shape),
        "chunks": list(chunks),
        "compressor": None,
        "filters": [],
        "order": "C",
        "separator": "/",
        "fill": None if np.dtype(dtype).kind in "mMSUV" else 0,
        "name": "a/b",
    } | members


JOBS = list(_jobs())


@pytest.fixture(scope="module")
def peer():
    if not ZARR2.exists():
        assert os.environ.get("CI") != "true", f"{ZARR2} is missing: make test makes it"
        pytest.skip(f"zarr 2.18 is not installed in {ZARR2.parent.parent.name}: run make test")
    switches = {"ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}

    def run(what, jobs, folder):
        path = folder / f"{what}.json"
        path.write_text(json.dumps(jobs))
        done = subprocess.run(
            [ZARR2, ZARR2_SCRIPTS / "draft_peer.py", what, path],
            capture_output=True, text=True, check=False, env={**os.environ, **switches},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["version"].startswith("2.18.")
        return answer["answers"]

    return run


def _values(job):
    dtype, shape = np.dtype(job["dtype"]), job["shape"]
    rng = np.random.default_rng(len(shape))
    if dtype.kind in "mM":
        return rng.integers(0, 1 << 40, shape).astype("i8").view(dtype)
    if dtype.kind == "V":
        raw = rng.bytes(int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(shape)
    if dtype.kind in "SU":
        return rng.integers(0, 1000, shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def _places(jobs, folder):
    """The jobs with their places, and their values as files."""
    placed = []
    for number, job in enumerate(jobs):
        values = folder / f"{number}.npy"
        np.save(values, job["data"] if "data" in job else _values(job), allow_pickle=True)
        rest = {name: value for name, value in job.items() if name != "data"}
        placed.append(rest | {"path": str(folder / f"{number}.zr3"), "values": str(values)})
    return placed


def _wanted(job):
    return np.load(job["values"], allow_pickle=True)


def test_the_matrix_is_whole():
    assert {job["dtype"] for job in JOBS} == {*DTYPES, "|V3"}
    assert {str(job["compressor"]) for job in JOBS} >= set(map(str, COMPRESSORS))
    turns = {(job["order"], job["separator"], len(job["shape"])) for job in JOBS}
    assert turns >= set(product("CF", "./", range(4)))


@pytest.mark.conformance("C080")
def test_it_reads_what_we_write(peer, tmp_path):
    jobs = _places(JOBS, tmp_path)
    for job in jobs:
        counts = job.get("chunks_per_shard")
        array = zd.create_array(
            job["path"], "a/b", shape=job["shape"], dtype=job["dtype"], chunks=job["chunks"],
            shards=counts and [n * c for n, c in zip(counts, job["chunks"], strict=True)],
            codecs=[*job["filters"], *([job["compressor"]] if job["compressor"] else [])],
            order=job["order"], attributes={"unit": "m"}, format=FORMAT,
            fill_value=False if job["dtype"] == "|b1" else job["fill"] or _zero(job["dtype"]),
            chunk_key_encoding={"name": "draft", "separator": job["separator"]},
        )  # fmt: skip
        array[...] = _wanted(job)
        zd.create_group(job["path"], "g", format=FORMAT)  # it sees no groups without documents
        zd.create_group(job["path"], "g/h", format=FORMAT, attributes={"title": "beside"})
        entry = json.loads((Path(job["path"]) / "zarr.json").read_text())
        assert list(entry) == [
            "zarr_format", "metadata_encoding", "metadata_key_suffix", "extensions"
        ]  # fmt: skip
        job["wanted"] = _wanted(job)
    read = [{k: v for k, v in job.items() if k != "wanted"} for job in jobs]
    for job, answer in zip(jobs, peer("read", read, tmp_path), strict=True):
        got = np.load(job["values"], allow_pickle=True)
        np.testing.assert_array_equal(got, job["wanted"], err_msg=str(job))
        assert answer["dtype"] == job["dtype"]
        filters = {"filters": job["filters"]} if job["filters"] else {}
        assert answer["attributes"] == {"unit": "m"} | filters
        assert answer["chunks"] == job["chunks"]
    groups = [{"path": read[0]["path"], "group": path} for path in ("g/h", "g")]
    assert peer("group", groups, tmp_path) == [
        {"attributes": {"title": "beside"}, "children": {}},
        {"attributes": {}, "children": {"h": "Group"}},
    ]


def _zero(dtype):
    return np.zeros((), dtype)[()]


OBJECTS = [
    _job("|O", (5,), (2,), object={"id": "vlen-utf8"}, fill="") | {"data": TEXTS},
    _job("|O", (2,), (2,), object={"id": "vlen-bytes"}, fill=None)
    | {"data": np.array([b"a\0", b""], object)},
    _job("|O", (2,), (1,), object={"id": "json2"}, fill=None)
    | {"data": np.array([{"x": 1}, "y"], object)},
    _job(None, (3,), (2,), fill=None) | {"data": np.array([(1, 2.5), (3, 4.5), (5, 6.5)], STRUCT)},
    _job("<f4", (3,), (2,), fill=None),
    _job("<f4", (3,), (2,), fill="Infinity"),
    _job("<i4", (3,), (2,), consolidate=True),
]


@pytest.mark.conformance("C079")
def test_we_read_what_it_writes(peer, tmp_path):
    jobs = _places([*JOBS, *OBJECTS], tmp_path)
    peer("write", jobs, tmp_path)
    for job in jobs:
        root = zd.open_group(job["path"])
        assert root.format == FORMAT
        array = root["a/b"]
        wanted = _wanted(job)
        np.testing.assert_array_equal(array[...], wanted, err_msg=str(job))
        if wanted.dtype != object:
            assert array.dtype == wanted.dtype.newbyteorder("=")
        assert array.attributes == {"unit": "m"}
        assert (array.shards is not None) == ("chunks_per_shard" in job)
        paths = [path for path, _ in root.walk() if path != "consolidated"]
        assert paths == ["a", "a/b", "g", "g/h"]
        assert root["g/h"].attributes == {"title": "beside"}
