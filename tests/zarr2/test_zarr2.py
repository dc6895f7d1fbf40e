"""zarr-python 2.18, the last of its line, reads what we write and writes what we read."""

import json
import os
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parent.parent / ".venv-zarr2" / "bin" / "python"

DTYPES = [
    *("|b1", "|i1", "<i2", ">i4", "<i8", "|u1", ">u2"),
    *("<f2", "<f4", ">f4", ">f8", "<c8", ">c16"),
]
COMPRESSORS = [
    None,
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": -1, "blocksize": 0},
    {"id": "zlib", "level": 1},
    {"id": "gzip", "level": 5},
    {"id": "bz2", "level": 1},
    {"id": "lz4", "acceleration": 1},
    {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
    {"id": "zstd", "level": 3},
]
FILTERS = {
    "delta": lambda dtype: {"id": "delta", "dtype": dtype},
    "shuffle": lambda dtype: {"id": "shuffle", "elementsize": np.dtype(dtype).itemsize},
    "crc32": lambda dtype: {"id": "crc32"},
}
SHAPES = [((), ()), ((7,), (3,)), ((5, 6), (2, 4)), ((4, 3, 5), (3, 3, 2)), ((0, 3), (1, 2))]


def _jobs():
    """Every dtype with every compressor; orders, separators, shapes and filters in turn."""
    turns = list(product("CF", "./", SHAPES))
    for number, (dtype, compressor) in enumerate(product(DTYPES, COMPRESSORS)):
        order, separator, (shape, chunks) = turns[number % len(turns)]
        name = (None, "delta", "shuffle", "crc32")[number % 4]
        if name == "delta" and np.dtype(dtype).kind not in "iuf":
            name = None
        yield {
            "dtype": dtype,
            "compressor": compressor,
            "order": order,
            "separator": separator,
            "shape": shape,
            "chunks": chunks,
            "filters": [FILTERS[name](dtype)] if name else [],
            "fill": True if dtype == "|b1" else 0,
        }


JOBS = list(_jobs())


@pytest.fixture(scope="module")
def peer():
    if not PYTHON.exists():
        assert os.environ.get("CI") != "true", f"{PYTHON} is missing: make test makes it"
        pytest.skip(f"zarr 2.18 is not installed in {PYTHON.parent.parent.name}: run make test")

    def run(what, jobs, folder):
        path = folder / f"{what}.json"
        path.write_text(json.dumps(jobs))
        done = subprocess.run(
            [PYTHON, HERE / "peer.py", what, path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["version"].startswith("2.18.")
        return answer["answers"]

    return run


def _values(job):
    rng = np.random.default_rng(len(job["shape"]))
    values = rng.integers(0, 2 if job["dtype"] == "|b1" else 100, job["shape"])
    return values.astype(np.dtype(job["dtype"]))


def test_the_matrix_is_whole():
    assert len(JOBS) == len(DTYPES) * len(COMPRESSORS) == 117
    for key in ("order", "separator", "shape"):
        assert len({str(job[key]) for job in JOBS}) == {"order": 2, "separator": 2, "shape": 5}[key]


def test_it_reads_what_we_write(peer, tmp_path):
    jobs = []
    for number, job in enumerate(JOBS):
        path = tmp_path / f"{number}.zarr"
        codecs = [*job["filters"], *([job["compressor"]] if job["compressor"] else [])]
        array = zd.create_array(
            path, shape=job["shape"], dtype=job["dtype"], chunks=job["chunks"], codecs=codecs,
            order=job["order"], fill_value=job["fill"], format="v2", attributes={"unit": "m"},
            chunk_key_encoding={"name": "v2", "separator": job["separator"]},
        )  # fmt: skip
        array[...] = _values(job)
        jobs.append({"path": str(path), "values": str(tmp_path / f"{number}.npy")})
    for job, place, answer in zip(JOBS, jobs, peer("read", jobs, tmp_path), strict=True):
        np.testing.assert_array_equal(np.load(place["values"]), _values(job), err_msg=str(job))
        assert answer["dtype"] == job["dtype"]
        assert answer["attributes"] == {"unit": "m"}
        assert answer["order"] == (job["order"] if len(job["shape"]) > 1 else "C")


def test_we_read_what_it_writes(peer, tmp_path):
    jobs = []
    for number, job in enumerate(JOBS):
        values = tmp_path / f"{number}.npy"
        np.save(values, _values(job))
        jobs.append({**job, "path": str(tmp_path / f"{number}.zarr"), "values": str(values)})
    peer("write", jobs, tmp_path)
    for job in jobs:
        array = zd.open_array(job["path"])
        np.testing.assert_array_equal(array[...], _values(job), err_msg=str(job))
        assert array.dtype == np.dtype(job["dtype"]).newbyteorder("=")
        assert array.attributes == {"unit": "m"}
