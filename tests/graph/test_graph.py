"""Graphs: of constant size, with deterministic names, and slices that reach the store."""

import gc
import pickle

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.settle import settled
from zarr_dask.errors import GridError
from zarr_dask.stores import LocalStore, MemoryStore, Recording


@pytest.fixture
def values():
    return np.arange(100 * 70, dtype="f4").reshape(100, 70)


@pytest.fixture
def array(values):
    made = zd.create_array(
        Recording(MemoryStore()), shape=values.shape, dtype="f4", chunks=10, shards=(40, 40),
        dimension_names=("y", "x"),
    )  # fmt: skip
    made[...] = values
    made.store.clear()
    return made


def test_values(array, values):
    x = zd.from_zarr(array)
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            np.testing.assert_array_equal(x.compute(), values)
            np.testing.assert_array_equal((x[::-3, 5:7] * 2).compute(), values[::-3, 5:7] * 2)
            np.testing.assert_array_equal(x.T[3].compute(), values.T[3])
            np.testing.assert_array_equal(x[[5, 1, 70]].compute(), values[[5, 1, 70]])


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (None, ((40, 40, 20), (40, 30))),
        ("shards", ((40, 40, 20), (40, 30))),
        ("chunks", ((10,) * 10, (10,) * 7)),
        (50, ((50, 50), (50, 20))),
        ({"x": 35}, ((40, 40, 20), (35, 35))),
        ({0: -1}, ((100,), (40, 30))),
        ((-1, "auto"), ((100,), (70,))),
        (((60, 40), (70,)), ((60, 40), (70,))),
    ],
)
def test_blocks(array, values, chunks, expected):
    x = zd.from_zarr(array, chunks=chunks)
    assert x.chunks == expected
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_auto_blocks_are_unions_of_stored_objects(array):
    with dask.config.set({"array.chunk-size": "16 kiB"}):
        chunks = zd.from_zarr(array, chunks="auto").chunks
    assert all(size % 40 == 0 for sizes in chunks for size in sizes[:-1])


def test_blocks_of_objects_that_are_too_large_are_whole_chunks(array):
    with dask.config.set({"array.chunk-size": "1 kiB"}):
        x = zd.from_zarr(array)
    assert x.chunks == ((10,) * 10, (20, 20, 20, 10))


def test_indices_are_kept_where_blocks_are_parts_of_shards(tmp_path, values):
    """Each index is read once, though four blocks are read of each shard; and only then kept."""
    made = zd.create_array(tmp_path, shape=values.shape, dtype="f4", chunks=10, shards=(40, 40))
    made[...] = values
    store = Recording(LocalStore(str(tmp_path)))
    array = zd.open_array(store)
    for key in store.list("c/"):
        settled(store, key)

    def indices(x):
        store.clear()
        result = x.compute(scheduler="sync")
        np.testing.assert_array_equal(result, values[: x.shape[0]])
        return sum(r.range is not None and r.range.start < 0 for r in store.requests)

    with dask.config.set({"array.chunk-size": "1 kiB"}):
        x, part = zd.from_zarr(array), array.lazy[:20].to_dask()
    assert x.npartitions == 40
    assert indices(x) == 6
    assert indices(part) == 0  # they are kept already
    assert indices(zd.from_zarr(array, chunks="chunks")) == 70
    assert zd.from_zarr(array, chunks=x.chunks).name == x.name


@pytest.mark.parametrize("chunks", [{"z": 3}, {5: 3}, {"x": 3, 1: 5}, {0: 3, -2: 3}, (1, 2, 3)])
def test_blocks_that_cannot_be(array, chunks):
    with pytest.raises(GridError, match="chunks"):
        zd.from_zarr(array, chunks=chunks)


def test_words_for_blocks_that_are_none(array):
    with pytest.raises(GridError, match='"auto", "shards", "chunks" or bytes such as "64 MiB"'):
        zd.from_zarr(array, chunks="shard")


@pytest.mark.filterwarnings("ignore:.*two dimensions have one name")
def test_names_that_dimensions_share_or_lack():
    made = zd.create_array(
        {}, shape=(8, 8, 8), dtype="i1", chunks=4, dimension_names=["x", "x", None]
    )
    for chunks in ({"x": 2}, {None: 2}):
        with pytest.raises(GridError, match=r"give positions|no dimensions"):
            zd.from_zarr(made, chunks=chunks)
    assert zd.from_zarr(made, chunks={1: 2}).chunks == ((4, 4), (2, 2, 2, 2), (4, 4))


def test_names_tell_arrays_and_metadata_apart(array):
    name = zd.from_zarr(array).name
    assert zd.from_zarr(zd.open_array(array)).name == name
    assert zd.from_zarr(array, chunks=50).name != name
    assert zd.from_zarr(array.update_attributes({"a": 1})).name != name
    assert zd.from_zarr(array, name="mine").name == "mine"


def test_graphs_of_a_million_blocks_are_small():
    array = zd.create_array({}, shape=(10**5, 10**5), dtype="f4", chunks=100)
    x = zd.from_zarr(array)
    assert x.npartitions == 10**6
    assert len(x.__dask_graph__().layers) == 1
    layer = next(iter(x.__dask_graph__().layers.values()))
    assert not layer.is_materialized()
    assert len(pickle.dumps(x.__dask_graph__())) < 6000
    (optimised,) = dask.optimize(x[5, 7])
    assert len(optimised.__dask_graph__()) == 2  # the read, and dask's alias for the result


@pytest.mark.parametrize("key", [(5, 7), (slice(100, 200), slice(300, 400)), (Ellipsis, 3)])
def test_only_the_blocks_of_a_selection_become_tasks(key):
    x = zd.from_zarr(zd.create_array({}, shape=(10**5, 10**5), dtype="f4", chunks=100))[key]
    (optimised,) = dask.optimize(x)
    assert len(optimised.__dask_graph__()) == 2 * x.npartitions


def test_slices_reach_the_store(array, values):
    x = zd.from_zarr(array)
    np.testing.assert_array_equal(x[5].compute(scheduler="sync"), values[5])
    # two shards: the index of each, then one row of chunks
    assert array.store.per_key() == {"c/0/0": 2, "c/0/1": 2}
    wanted = [request.range for request in array.store.requests]
    assert sum(r.stop - r.start for r in wanted if r.start >= 0) < array.nbytes_stored() / 4


def test_tasks_read_each_stored_object_once(array):
    zd.from_zarr(array).sum().compute(scheduler="threads")
    assert set(array.store.per_key().values()) == {1}


def test_writing_10_000_aligned_blocks_is_one_small_graph():
    x = da.zeros((10_000, 10_000), chunks=100)
    collection = zd.to_zarr(x, {}, compute=False)
    graph = collection.__dask_graph__()
    assert collection.__dask_keys__() == [next(iter(collection.__dask_keys__()))]
    assert len(pickle.dumps(graph)) < 10_000
    assert not any(layer.is_materialized() for layer in graph.layers.values())
    tasks = collection.__dask_optimize__(graph, collection.__dask_keys__())
    assert len(dict(tasks)) == 10_000 + 313 + 10 + 1  # writes, and a tree of 32 each


def test_100_000_aligned_writing_tasks_are_a_graph_of_10_kb():
    x = da.zeros((316 * 10, 317 * 10), chunks=10)
    collection = zd.to_zarr(x, {}, compute=False)
    assert len(pickle.dumps(collection.__dask_graph__())) <= 10_000
    assert not any(la.is_materialized() for la in collection.__dask_graph__().layers.values())


def test_collections_can_be_persisted_and_joined():
    first, second = {}, {}
    x = da.ones((8, 8), chunks=4)
    writes = [zd.to_zarr(x, store, compute=False) for store in (first, second)]
    reports = dask.compute(*writes, scheduler="threads")
    assert [report.objects for report in reports] == [4, 4]
    again = zd.to_zarr(x + 1, {}, compute=False).persist(scheduler="sync")
    assert again.compute(scheduler="sync").objects == 4


def test_slices_of_dask_leave_the_garbage_collector_on():
    """dask puts it back as it was when dask was imported, which is while tests are collected."""
    assert da.ones(4, chunks=2)[1:3].chunks == ((1, 1),)
    assert gc.isenabled()
