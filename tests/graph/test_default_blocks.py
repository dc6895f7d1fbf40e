"""Blocks of arrays in stores that are far away: small stored objects are read many at a time."""

import dask
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.stores import MemoryStore, Recording
from zarr_dask.stores.base import ReadPolicy

MIB = 1 << 20


class Far(MemoryStore):
    """A store each request to which takes its time; it notes the size of each batch."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=32)

    def __init__(self):
        super().__init__()
        self.batches = []

    def get_ranges(self, requests):
        self.batches.append(len(requests))
        return super().get_ranges(requests)


def declared(store, shape, chunks, **options):
    return zd.create_array(store, shape=shape, chunks=chunks, **{"dtype": "f4", **options})


def test_small_objects_of_a_remote_store_are_read_32_at_a_time():
    store = Far()
    array = declared(store, (600, 8), (1, 8))
    array[...] = values = np.arange(4800, dtype="f4").reshape(600, 8)
    x = zd.from_zarr(store)
    assert x.npartitions == 17
    with dask.config.set(scheduler="sync"):
        store.batches.clear()
        np.testing.assert_array_equal(x, values)
        assert sum(store.batches) >= 600
        assert max(store.batches) == 32
        store.batches.clear()
        np.testing.assert_array_equal(x[:, 3], values[:, 3])
        assert max(store.batches) == 32


def test_blocks_are_whole_objects_of_at_most_16_mib():
    x = zd.from_zarr(declared(Far(), (2000 * 50, 1000), (50, 1000)))
    sizes = x.chunks[0]
    assert max(sizes) * 1000 * 4 <= 16 * MIB < (max(sizes) + 50) * 1000 * 4
    assert {size % 50 for size in sizes} == {0}
    assert x.npartitions == 25


@pytest.mark.parametrize(
    ("made", "chunks"),
    [
        (lambda: declared(MemoryStore(), (600,), 1), None),  # nothing to gain
        (lambda: declared(Recording(MemoryStore()), (600,), 1), None),
        (lambda: declared(Far(), (600,), 1), {}),
        (lambda: declared(Far(), (600,), 1), "shards"),
        (lambda: declared(Far(), (600,), 1), "chunks"),
        (lambda: declared(Far(), (600,), 1, dtype="str"), None),  # of any size
        (lambda: declared(Far(), (600 * 9 * MIB,), 9 * MIB, dtype="u1"), None),
    ],
    ids=["near", "recorded", "mapping", "shards", "chunks", "texts", "large"],
)
def test_one_object_per_block(made, chunks):
    assert zd.from_zarr(made(), chunks=chunks).numblocks == (600,)


def test_few_objects_are_not_merged():
    assert zd.from_zarr(declared(Far(), (7,), 1)).numblocks == (7,)
    assert zd.from_zarr(declared(Far(), (8,), 1)).numblocks == (4,)
    large = declared(Far(), (31 * MIB,), MIB, dtype="u1")
    assert zd.from_zarr(large).numblocks == (16,)
    assert zd.from_zarr(declared(Far(), (31 * 2 * MIB,), 2 * MIB, dtype="u1")).numblocks == (31,)


def test_blocks_of_small_objects_have_as_many_as_two_tasks_ask_for_at_a_time():
    x = zd.from_zarr(declared(Far(), (140,), 1))
    assert x.chunks == ((16,) * 8 + (12,),)


def test_objects_count_as_far_as_they_lie_in_the_array():
    store = Far()
    array = declared(store, (8, 1000), (1, 1_000_000), shards=(4, 40_000_000))
    assert zd.from_zarr(store).numblocks == (2, 1)
    assert array.lazy[:, 5].to_dask().numblocks == (2,)


def test_names_are_the_same_each_time():
    store = Far()
    declared(store, (600, 8), (1, 8))
    assert zd.from_zarr(store).name == zd.from_zarr(store).name
    assert zd.from_zarr(store).name != zd.from_zarr(store, chunks="shards").name


def test_selected_parts_of_large_objects_are_merged():
    store = Far()
    array = declared(store, (64, 500 * 4), (64, 4))
    array[...] = values = np.arange(64 * 2000, dtype="f4").reshape(64, 2000)
    row = array.lazy[5].to_dask()
    assert row.numblocks == (17,)
    assert array.lazy[5].to_dask("shards").numblocks == (500,)
    np.testing.assert_array_equal(row.compute(scheduler="sync"), values[5])
