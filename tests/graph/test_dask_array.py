"""The external package dask-array over an open array: slices reach it, nothing is read twice."""

import pickle
from collections import Counter

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import DataTypeError
from zarr_dask.stores import MemoryStore, Recording

dask_array = pytest.importorskip("dask_array")

VALUES = np.arange(8000, dtype="f4").reshape(100, 80)


@pytest.fixture
def array():
    """Five by two shards of eight chunks each."""
    made = zd.create_array(
        Recording(MemoryStore()), shape=(100, 80), dtype="f4", chunks=10, shards=(20, 40)
    )
    made[...] = VALUES
    made.store.clear()
    return made


def lazy(array):
    return dask_array.from_array(array, chunks=array.write_chunks)


def test_making_an_array_reads_nothing(array):
    x = lazy(array)
    assert (x.shape, x.dtype, x.chunks) == ((100, 80), np.dtype("f4"), ((20,) * 5, (40, 40)))
    assert not array.store.requests
    assert lazy(array).name == x.name
    assert len(pickle.dumps(x)) < 2000


@pytest.mark.parametrize(
    ("name", "wanted", "requests"),
    [
        # a row of chunks in each of two shards: the index of each, then the chunks
        ("row", lambda x: x[5], {"c/0/0": 2, "c/0/1": 2}),
        ("row of a sum", lambda x: (x + 1)[5], {"c/0/0": 2, "c/0/1": 2}),
        ("row of a reduction", lambda x: (x + 1).sum(1)[3], {"c/0/0": 2, "c/0/1": 2}),
        ("row of a transpose", lambda x: x.T[5], {f"c/{i}/0": 2 for i in range(5)}),
        ("all", lambda x: x * 2, {f"c/{i}/{j}": 1 for i in range(5) for j in range(2)}),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_slices_are_pushed_into_the_reads(array, name, wanted, requests):
    result = wanted(lazy(array)).compute(scheduler="sync")
    np.testing.assert_allclose(result, wanted(VALUES))
    assert array.store.per_key() == Counter(requests)


def test_rechunked_reads_keep_to_stored_objects(array):
    x = lazy(array).rechunk((50, 50))
    np.testing.assert_array_equal(x.compute(scheduler="threads"), VALUES)
    assert set(array.store.per_key().values()) == {1}


def test_blocks_follow_stored_objects_by_default():
    array = zd.create_array({}, shape=(10**4, 10**4), dtype="f4", chunks=100, shards=1000)
    x = dask_array.from_array(array)
    assert all(size % 1000 == 0 for sizes in x.chunks for size in sizes[:-1])


def test_writing_one_says_what_it_is(array):
    with pytest.raises(DataTypeError, match="dask_array"):
        zd.to_zarr(lazy(array), {})
