"""Jobs of several arrays, copies and dask arrays on a cluster of processes."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.errors import StoreOutOfReachError

T = np.arange(64 * 16 * 16, dtype="f4").reshape(64, 16, 16)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place = tmp_path_factory.mktemp("source") / "a.zarr"
    group = zd.create_group(place, attributes={"title": "run"})
    names = ("time", "y", "x")
    for path in ("t", "deep/u"):
        array = group.create_array(
            path, shape=T.shape, dtype="f4", chunks=(1, 16, 16), dimension_names=names
        )
        array[...] = T
    group.create_array("x", shape=(16,), dtype="f8", chunks=4)[...] = np.arange(16)
    return place


def test_a_copy(client, source, tmp_path):
    plan = zd.plan_copy(source, tmp_path / "b.zarr", chunks={"time": -1, "y": 4}, max_mem="20MB")
    seen = []
    report = plan.run(progress=seen.append, verify=True)
    assert zd.compare(source, tmp_path / "b.zarr")
    assert report.tasks == plan.tasks
    assert sum(step.nbytes for step in seen if step.stage == 0) == plan.stages[0].nbytes


def test_several_arrays(client, source, tmp_path):
    arrays = [zd.open_array(source, path) for path in ("t", "deep/u")]
    zd.rechunk(
        arrays, tmp_path / "b.zarr", path=["t", "u"], chunks=[(-1, 4, 4), (8, 8, 8)], verify=True
    )
    for path in ("t", "u"):
        np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr", path)[...], T)


def test_a_dask_array(client, tmp_path):
    x = da.from_array(T, chunks=(4, 16, 16)) + 1
    zd.rechunk(x, tmp_path / "b.zarr", chunks=(-1, 4, 4), max_mem="20MB", verify=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], T + 1)
    assert left_in(tmp_path) == {"b.zarr"}


def test_memory_of_this_process_is_out_of_reach(client, source):
    with pytest.raises(StoreOutOfReachError):
        zd.copy(source, {})
