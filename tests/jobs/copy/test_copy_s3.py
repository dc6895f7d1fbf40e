"""Copies from and to buckets, and dask arrays that are laid out anew in them."""

from __future__ import annotations

from itertools import count

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask.errors import NodeNotFoundError, ResumeError, StoreError
from zarr_dask.stores import open_store

NUMBERS = count()
T = np.arange(32 * 8 * 12, dtype="f4").reshape(32, 8, 12)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(params=["fsspec", "obstore"])
def options(request, server):
    return {**server.options, "backend": request.param}


@pytest.fixture
def folder():
    return f"s3://bucket/copy-{next(NUMBERS)}"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place = tmp_path_factory.mktemp("source") / "a.zarr"
    group = zd.create_group(place, attributes={"title": "run"})
    names = ("time", "y", "x")
    t = group.create_array(
        "deep/t", shape=T.shape, dtype="f4", chunks=(1, 8, 12), dimension_names=names
    )
    t[:20] = T[:20]
    group.create_array("one", shape=(), dtype="i2")[...] = 3
    zd.consolidate(place)
    return place


class StopError(Exception):
    """What ends a job in the middle."""


def stop_after(tasks: int):
    left = iter(range(tasks - 1))

    def progress(_) -> None:
        if next(left, None) is None:
            raise StopError

    return progress


def test_there_and_back(source, folder, options, tmp_path):
    there = f"{folder}/b.zarr"
    grid = {"chunks": {"x": 6}, "max_mem": "1.3MB", "target_options": options}
    with pytest.raises(StopError):
        zd.copy(source, there, progress=stop_after(1), **grid)
    with pytest.raises(NodeNotFoundError, match="resume=True"):
        zd.open(there, storage_options=options)
    zd.copy(source, there, resume=True, verify=True, **grid)
    assert zd.compare(source, zd.open(there, storage_options=options))
    left = open_store(f"{folder}/b.zarr.zarr-dask", options).list()
    assert all(key.startswith("__done-") for key in left)
    zd.copy(there, tmp_path / "c.zarr", storage_options=options, verify=True)
    assert zd.compare(source, tmp_path / "c.zarr")
    assert zd.open_group(tmp_path / "c.zarr")["deep/t"].chunks == (1, 8, 6)


def test_dask_arrays(folder, options):
    x = da.from_array(T, chunks=(4, 8, 12), name="values")
    there = f"{folder}/b.zarr"
    grid = {"chunks": (-1, 4, 4), "storage_options": options}
    with pytest.raises(StopError):
        zd.rechunk(x, there, resume=True, progress=stop_after(5), **grid)
    zd.rechunk(x, there, resume=True, verify=True, **grid)
    np.testing.assert_array_equal(zd.open_array(there, storage_options=options)[...], T)
    keys = list(open_store(folder, options).list())
    assert all(key.startswith(("b.zarr/", "b.zarr.zarr-dask/__done-")) for key in keys)


def test_the_root_of_a_bucket_has_nothing_beside_it(source, server, options):
    with pytest.raises(ResumeError, match="journal="):
        zd.copy(source, "s3://bucket", path="x", target_options=options, resume=True)
    x = da.from_array(T, chunks=(4, 8, 12))
    with pytest.raises(StoreError, match="temp="):
        zd.rechunk(x, "s3://bucket", path="x", chunks=(-1, 4, 4), storage_options=options)
