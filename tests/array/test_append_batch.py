"""Appends in a batch: the array grows once, and by everything that was appended."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from zarr_dask.array import append_batch
from zarr_dask.array.append_batch import AppendBatch
from zarr_dask.errors import AppendConflictError, GridError, ReadOnlyError, StoreError
from zarr_dask.stores import MemoryStore

LAYOUTS = [
    {"chunks": (4, 3)},
    {"chunks": (2, 3), "shards": (8, 3)},
    {"chunks": ((3, 2, 5), (3,))},
]


def _rows(begin, stop):
    return np.arange(3 * begin, 3 * stop, dtype="i4").reshape(-1, 3)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("lengths", [[1] * 23, [3, 9, 1, 0, 17], []], ids=str)
def test_the_array_holds_what_was_appended(layout, lengths, tmp_path):
    path = tmp_path / "a.zarr"
    begin = 10 if isinstance(layout["chunks"][0], tuple) else 5
    array = zd.create_array(path, shape=(begin, 3), dtype="i4", **layout)
    array[...] = _rows(0, begin)
    end = begin
    with array.batch() as same:
        assert same is array
        for length in lengths:
            array.append(_rows(end, end + length))
            end += length
            assert array.shape == zd.open_array(path).shape == (begin, 3)
    assert array.shape == (end, 3)
    np.testing.assert_array_equal(array[...], _rows(0, end))
    np.testing.assert_array_equal(zd.open_array(path)[...], _rows(0, end))
    if begin == 5:
        np.testing.assert_array_equal(zarr.open_array(path)[...], _rows(0, end))


def test_along_several_dimensions():
    array = zd.create_array({}, shape=(2, 2), dtype="i4", chunks=(4, 3))
    expected = np.ones((2, 2), "i4")
    array[...] = expected
    with array.batch():
        for axis, value in ((0, 2), (1, 3), (-1, 4), (0, 5)):
            more = np.full([1 if d == axis % 2 else n for d, n in enumerate(expected.shape)], value)
            expected = np.concatenate([expected, more], axis)
            array.append(more, axis)
    np.testing.assert_array_equal(array[...], expected)


class _Puts(MemoryStore):
    """Counts writes by key."""

    def __init__(self):
        super().__init__()
        self.puts = []

    def set(self, key, *args, **kwargs):
        self.puts.append(key)
        return super().set(key, *args, **kwargs)

    def set_if(self, key, *args, **kwargs):
        self.puts.append(key)
        return super().set_if(key, *args, **kwargs)


def test_each_object_and_the_metadata_are_written_once():
    store = _Puts()
    array = zd.create_array(store, shape=(0, 3), dtype="i4", chunks=(10, 3))
    store.puts.clear()
    with array.batch():
        for row in range(30):
            array.append(_rows(row + 1, row + 2))
    assert sorted(set(store.puts)) == ["c/0/0", "c/1/0", "c/2/0", "zarr.json"]
    assert [store.puts.count(f"c/{i}/0") for i in range(3)] == [1, 1, 1]
    one_by_one = _Puts()
    array = zd.create_array(one_by_one, shape=(0, 3), dtype="i4", chunks=(10, 3))
    for row in range(30):
        array.append(_rows(row + 1, row + 2))
    assert one_by_one.puts.count("zarr.json") > 10 * store.puts.count("zarr.json")


def test_what_was_appended_before_an_exception_is_kept():
    array = zd.create_array({}, shape=(0, 3), dtype="i4", chunks=(4, 3))
    with pytest.raises(KeyError), array.batch():
        array.append(_rows(0, 6)).attrs["none"]
    np.testing.assert_array_equal(array[...], _rows(0, 6))
    with array.batch(), pytest.raises(GridError, match="dimensions must be equal"):
        array.append(np.ones((1, 4), "i4"))
    assert array.append(_rows(6, 7)).shape == (7, 3)


class _Full(MemoryStore):
    """Takes no object of the second row of chunks."""

    broken = True

    def set(self, key, *args, **kwargs):
        if self.broken and key.startswith("c/1/"):
            raise StoreError("disk full")
        return super().set(key, *args, **kwargs)


def test_an_append_that_fails_ends_the_batch():
    store = _Full()
    array = zd.create_array(store, shape=(0, 3), dtype="i4", chunks=(4, 3))
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(StoreError, match="ends with the elements that were"))
        stack.enter_context(array.batch())
        array.append(_rows(0, 4))
        with pytest.raises(StoreError, match="disk full"):
            array.append(_rows(4, 8))
        store.broken = False
        with pytest.raises(StoreError, match=r"shape \(4, 3\)"):
            array.append(_rows(4, 8))
    assert array.shape == zd.open_array(store).shape == (4, 3)
    np.testing.assert_array_equal(array.append(_rows(4, 8))[...], _rows(0, 8))


def test_nobody_else_appends_meanwhile(tmp_path):
    path = tmp_path / "a.zarr"
    array = zd.create_array(path, shape=(0, 3), dtype="i4", chunks=(4, 3))
    other = zd.open_array(path, mode="r+")
    with array.batch():
        array.append(_rows(0, 2))
        with pytest.raises(AppendConflictError, match="under way"):
            other.append(_rows(0, 2))
        with pytest.raises(AppendConflictError, match="under way"):
            array.resize((9, 3))
        with pytest.raises(AppendConflictError, match="not ended"), array.batch("wait"):
            pass
    assert other.shape == (2, 3)
    with pytest.raises(ReadOnlyError), zd.open_array(path).batch() as read_only:
        read_only.append(_rows(0, 1))


def test_a_batch_that_waits_appends_behind_the_other(tmp_path):
    path = tmp_path / "a.zarr"
    array = zd.create_array(path, shape=(0, 3), dtype="i4", chunks=(4, 3))
    begun = threading.Event()

    def append():
        other = zd.open_array(path, mode="r+")
        begun.set()
        with other.batch("wait"):
            other.append(_rows(3, 5))

    thread = threading.Thread(target=append)
    with array.batch():
        thread.start()
        begun.wait()
        array.append(_rows(0, 3))
    thread.join()
    np.testing.assert_array_equal(zd.open_array(path)[...], _rows(0, 5))


def test_attributes_that_change_meanwhile_stay():
    array = zd.create_array({}, shape=(0, 3), dtype="i4", chunks=(4, 3))
    with array.batch():
        array.append(_rows(0, 2))
        array.update_attributes({"unit": "K"})
        array.append(_rows(2, 3))
    found = zd.open_array(array.store)
    assert found.attributes == {"unit": "K"}
    np.testing.assert_array_equal(found[...], _rows(0, 3))


def test_the_memory_that_is_held_is_bounded(monkeypatch):
    monkeypatch.setattr(append_batch, "_MOST_HELD", 100)
    written = []
    batch = AppendBatch((0, 3), (1000, 3), lambda shape, region, values: written.append(values))
    for row in range(40):
        batch.append(_rows(row, row + 1), 0)
        assert sum(map(len, written)) >= row + 1 - 100 // 12
    batch.close()
    np.testing.assert_array_equal(np.concatenate(written), _rows(0, 40))


def test_values_may_be_changed_after_they_were_appended():
    array = zd.create_array({}, shape=(0, 3), dtype="i4", chunks=(4, 3))
    row = _rows(1, 2)
    with array.batch():
        for _ in range(3):
            array.append(row)
            row += 1
    np.testing.assert_array_equal(array[...], _rows(1, 2) + np.arange(3)[:, None])
