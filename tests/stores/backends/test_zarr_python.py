"""Stores, arrays and groups of zarr-python where a place is asked for: both see the same values."""

import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore

import zarr_dask as zd
from zarr_dask.errors import (
    NodeTypeError,
    ReadOnlyError,
    SourceIsTargetError,
    StoreError,
    StoreOutOfReachError,
)
from zarr_dask.stores import open_store
from zarr_dask.stores.backends.zarr_python import ZarrPythonStore
from zarr_dask.testing.stores import StoreTests


class TestWrapped(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return open_store(WrapperStore(LocalStore(tmp_path)))


class TestMemory(StoreTests):
    @pytest.fixture
    def store(self):
        return open_store(MemoryStore())


class TestFsspec(StoreTests):
    atomic = False

    @pytest.fixture
    def store(self, tmp_path):
        options = {"auto_mkdir": True}
        return open_store(FsspecStore.from_url(f"file://{tmp_path}/a", storage_options=options))


@pytest.fixture(params=["memory", "local", "wrapped", "zip"])
def place(request, tmp_path):
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return LocalStore(tmp_path / "a.zarr")
    if request.param == "zip":
        return ZipStore(tmp_path / "a.zip", mode="w")
    return WrapperStore(MemoryStore())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_one_writes_the_other_reads(place):
    values = np.arange(60, dtype="i4").reshape(6, 10)
    zd.to_zarr(da.from_array(values, chunks=(3, 5)), place, "ours")
    theirs = zarr.create_array(place, name="theirs", shape=(6, 10), chunks=(2, 5), dtype="i4")
    theirs[...] = values + 1
    np.testing.assert_array_equal(zarr.open_array(place, path="ours", mode="r+")[...], values)
    for x in (zd.from_zarr(place, "theirs"), zd.from_zarr(theirs)):
        assert x.chunks == ((2, 2, 2), (5, 5))
        np.testing.assert_array_equal(x.compute(scheduler="threads"), values + 1)


def test_arrays_and_groups_are_places(tmp_path):
    group = zarr.create_group(tmp_path / "run")
    array = group.create_array("u", shape=(8,), chunks=(2,), shards=(4,), dtype="f4")
    zd.to_zarr(da.arange(8, chunks=3, dtype="f4"), array)
    assert array[:].tolist() == list(range(8))
    zd.to_zarr(-da.ones(4, chunks=2, dtype="f4"), array, region=slice(4, 8))
    assert array[:].tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    zd.to_zarr(da.ones(3), group, "v/w")
    zd.to_zarr(da.ones(3), group, name="x")
    assert sorted(zd.open(group)) == ["u", "v", "x"]
    assert zd.open(group, "u").shards == (4,)
    assert zd.open(StorePath(group.store, "v"))["w"].shape == (3,)
    with pytest.raises(NodeTypeError):
        zd.open_group(array)
    with pytest.raises(TypeError, match="choose one"):
        zd.to_zarr(da.ones(3), group, "a", name="b")


def test_what_is_read_only_there_is_so_here(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="f4")
    array = zarr.open_array(tmp_path / "a", mode="r")
    with pytest.raises(ReadOnlyError):
        zd.to_zarr(da.ones(4, dtype="f4"), array)
    with pytest.raises(ReadOnlyError):
        zd.to_zarr(da.ones(4), LocalStore(tmp_path, read_only=True), "b")


def test_an_array_that_is_read_is_not_written():
    array = zarr.create_array(MemoryStore(), shape=(4,), chunks=(2,), dtype="f4")
    for x in (da.from_array(array), da.from_zarr(array), zd.from_zarr(array)):
        with pytest.raises(SourceIsTargetError):
            zd.to_zarr(x + 1, array)


def test_stores_of_zarr_python_are_told_apart_and_known_again():
    one, other = MemoryStore(), MemoryStore()
    assert open_store(one).identity == open_store(one).identity != open_store(other).identity
    assert zd.open(zarr.create_array(one, shape=(4,), dtype="f4")).store.identity


def test_memory_does_not_travel(tmp_path):
    with pytest.raises(StoreError, match="lives in this process"):
        pickle.dumps(open_store(WrapperStore(MemoryStore())))
    remote = ZarrPythonStore(WrapperStore(LocalStore(tmp_path)))
    remote.set("a", [b"1"])
    assert pickle.loads(pickle.dumps(remote)).get("a") == b"1"


def test_memory_is_no_target_of_tasks_elsewhere(client):
    for place in ({}, MemoryStore()):
        plan = zd.plan_write(da.ones(4, chunks=2), place)
        with pytest.raises(StoreOutOfReachError, match="distributed scheduler"):
            plan.run()
        assert not list(open_store(place).list())


def test_a_dict_that_zarr_python_has_filled():
    values = {}
    da.arange(8, chunks=4).to_zarr(values)
    x = zd.from_zarr(values)
    np.testing.assert_array_equal(x.compute(scheduler="threads"), np.arange(8))
    one, same = zd.open(values), zd.open(values)
    assert one.store.identity == same.store.identity
    zd.open_array(values, mode="r+")[2:4] = -1
    assert zarr.open_array(values, mode="r")[...].tolist() == [0, 1, -1, -1, 4, 5, 6, 7]


def test_options_mean_nothing_to_a_store():
    with pytest.raises(StoreError, match="not taken"):
        zd.open(MemoryStore(), storage_options={"anon": True})


def test_a_store_is_asked_for_its_name_before_it_is_used():
    """Icechunk's waits for puts that are under way, and keeps the interpreter meanwhile."""
    asked = []

    class Named(MemoryStore):
        def __str__(self):
            asked.append(len(self._store_dict))
            return super().__str__()

    zd.to_zarr(da.ones((6, 6), chunks=(2, 2)), ZarrPythonStore(Named()), "a")
    assert set(asked) == {0}
