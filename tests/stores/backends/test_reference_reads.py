"""Values of references: files of this machine are read without fsspec's event loop."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.http_server import Files, serving
from zarr_dask.errors import CorruptObjectError, StoreError
from zarr_dask.formats import references
from zarr_dask.formats.references import parquet_files
from zarr_dask.stores.backends.parquet_references import ParquetReferences
from zarr_dask.stores.base import Range
from zarr_dask.stores.open import open_store

asyn = pytest.importorskip("fsspec.asyn")
pytest.importorskip("h5netcdf")
pytest.importorskip("pyarrow")
xr = pytest.importorskip("xarray")

FILES, STEPS, POINTS = 5, 4, 3000
ENDINGS = pytest.mark.parametrize("ending", [".json", ".parq"])


@pytest.fixture
def files(tmp_path):
    found = [str(tmp_path / f"{number}.nc") for number in range(FILES)]
    for number, file in enumerate(found):
        values = np.random.default_rng(number).random((STEPS, POINTS))
        one = xr.Dataset({"a": (("t", "x"), values)}, {"t": np.arange(STEPS) + STEPS * number})
        encoding = {"a": {"chunksizes": (1, POINTS), "zlib": True, "shuffle": True}}
        one.to_netcdf(file, engine="h5netcdf", encoding=encoding)
    return found


def referenced(files, tmp_path, ending):
    zd.reference(files, str(tmp_path / f"run{ending}"), concat="t")
    return f"reference::{tmp_path}/run{ending}"


@ENDINGS
def test_the_calling_thread_reads_files_of_this_machine(files, tmp_path, ending, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("fsspec's event loop was asked")

    opened = zd.open_dataset(referenced(files, tmp_path, ending))
    monkeypatch.setattr(asyn, "sync", refused)
    found = opened.load()
    with xr.open_mfdataset(files, engine="h5netcdf", chunks=None) as expected:
        xr.testing.assert_equal(found, expected)


@ENDINGS
@pytest.mark.parametrize("chunks", ["objects", None])
def test_one_step_reads_one_file(files, tmp_path, ending, chunks):
    place = referenced(files, tmp_path, ending)
    with xr.open_dataset(files[2], engine="h5netcdf") as one:
        expected = one.isel(t=1).load()
    for file in (*files[:2], *files[3:]):
        Path(file).unlink()
    opened = zd.open_dataset(place, chunks=chunks)
    xr.testing.assert_equal(opened.isel(t=2 * STEPS + 1).load(), expected)
    with pytest.raises(StoreError, match=r"could not read 'a/0\.0'"):
        opened.isel(t=0).load()


@ENDINGS
def test_one_step_of_files_on_a_server_is_one_request(files, tmp_path, ending):
    pytest.importorskip("aiohttp")
    referenced(files, tmp_path, ".json")
    with serving(Files, {Path(file).name: Path(file).read_bytes() for file in files}) as (
        url,
        seen,
    ):
        text = (tmp_path / "run.json").read_text().replace(f"file://{tmp_path}", url)
        (tmp_path / "remote.json").write_text(text)
        for key, content in parquet_files(json.loads(text)["refs"]):
            path = tmp_path / "remote.parq" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        opened = zd.open_dataset(f"reference::{tmp_path}/remote{ending}", chunks="objects")
        seen.clear()
        found = opened.isel(t=2 * STEPS + 1).load()
    assert Counter((method, path) for method, path, _ in seen) == {("GET", "2.nc"): 1}
    with xr.open_dataset(files[2], engine="h5netcdf") as one:
        xr.testing.assert_equal(found, one.isel(t=1).load())


def test_threads_load_a_table_once(files, tmp_path, monkeypatch):
    loaded, again = Counter(), threading.Event()
    table = ParquetReferences._table

    def counted(self, field, record):
        loaded[record] += 1
        if loaded[record] > 1:
            again.set()
        elif record:
            again.wait(0.5)  # long enough for another thread to ask for it too
        return table(self, field, record)

    monkeypatch.setattr(references, "_ROWS", 4)
    monkeypatch.setattr(ParquetReferences, "_table", counted)
    array = zd.open_array(referenced(files, tmp_path, ".parq"), "a")
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda step: array[step], range(4, 8))]
    assert loaded == {0: 1, 1: 1}


def test_a_file_that_was_cut_off_is_an_error(files, tmp_path):
    place = referenced(files, tmp_path, ".json")
    os.truncate(files[1], Path(files[1]).stat().st_size // 2)
    with pytest.raises(CorruptObjectError, match=r"a/[4-7]\.0"):
        zd.open_array(place, "a")[...]


def test_a_part_of_a_whole_file_is_read(tmp_path):
    (tmp_path / "raw").write_bytes(b"0123456789")
    refs = {"a": [f"file://{tmp_path}/raw"], "b": [str(tmp_path / "raw"), 2, 6]}
    store = open_store("reference://", {"fo": refs})
    wanted = [("a", Range(3, 5)), ("b", Range(-2, None))]
    wanted += [("b", Range(4, 9)), ("c", Range(0, None))]
    assert store.get_ranges(wanted) == [b"34", b"67", b"67", None]
    assert store.get("a") == b"0123456789"
