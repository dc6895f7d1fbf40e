"""Puts to far stores that go on while the next object is encoded."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import StoreError
from zarr_dask.stores import MemoryStore, streaming_put
from zarr_dask.stores.base import ReadPolicy
from zarr_dask.stores.streaming_put import concurrent_puts, put

VALUES = np.arange(64 * 8, dtype="i4").reshape(64, 8) + 1
WANTED = 16


class Far(MemoryStore):
    """A store that answers when so many puts are waiting, and counts them and their bytes."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)

    def __init__(self, wanted=WANTED, fails=()):
        super().__init__()
        self.wanted, self.fails = wanted, fails
        self.changed = threading.Condition()
        self.now = self.most = self.nbytes = self.most_bytes = self.begun = 0
        self.reading = self.most_read = self.reads_wanted = 0

    def get_ranges(self, requests):
        if not self.reads_wanted or "c/" not in requests[0][0]:
            return super().get_ranges(requests)
        with self.changed:
            self.reading += 1
            self.most_read = max(self.most_read, self.reading)
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: self.most_read >= self.reads_wanted, timeout=5):
                self.reads_wanted = 0  # the others need not wait as well
            self.reading -= 1
        return super().get_ranges(requests)

    get_start = None

    def set(self, key, buffers):
        if "c/" not in key:
            super().set(key, buffers)
            return
        nbytes = sum(map(len, buffers))
        with self.changed:
            self.begun += 1
            self.now += 1
            self.nbytes += nbytes
            self.most, self.most_bytes = max(self.most, self.now), max(self.most_bytes, self.nbytes)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most >= self.wanted, timeout=5)
        if key in self.fails:
            with self.changed:
                self.now -= 1
                self.nbytes -= nbytes
            raise StoreError(f"no room for {key}")
        super().set(key, buffers)
        with self.changed:
            self.now -= 1
            self.nbytes -= nbytes


def assigned(store, source):
    array = zd.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(1, 8))
    array[...] = VALUES


def points(store, source):
    array = zd.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(1, 8))
    array.oindex[[*range(64)], :] = VALUES


def written(store, source):
    zd.to_zarr(da.from_array(VALUES, chunks=(32, 8)), store, chunks=(1, 8))


def written_whole(store, source):
    zd.to_zarr(da.from_array(VALUES, chunks=(1, 8)), store)


def rechunked(store, source):
    zd.rechunk(source, store, chunks=(1, 8))


def copied(store, source):
    zd.copy(source, store, chunks=(1, 8))


@pytest.mark.parametrize("how", [assigned, points, written, written_whole, rechunked, copied])
def test_many_puts_are_in_flight_on_two_threads(how):
    source, store = MemoryStore(), Far()
    zd.create_array(source, shape=VALUES.shape, dtype="i4", chunks=(64, 1))[...] = VALUES
    with dask.config.set(scheduler="threads", num_workers=2):
        how(store, source)
    assert store.most >= WANTED
    assert store.now == 0
    assert np.array_equal(zd.open_array(store)[...], VALUES)


def assigned_in_part(store):
    array = zd.open_array(store, mode="r+")
    array[:, 3:5] = -VALUES[:, 3:5]


def region_in_part(store):
    x = da.from_array(-VALUES[:, 3:5], chunks=(32, 2))
    zd.to_zarr(x, store, region=(slice(None), slice(3, 5)), partial="own")


@pytest.mark.parametrize("how", [assigned_in_part, region_in_part])
def test_many_objects_are_read_and_changed_at_a_time(how):
    store = Far(wanted=1)
    zd.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(1, 8))[...] = VALUES
    store.reads_wanted = WANTED
    with dask.config.set(scheduler="threads", num_workers=2):
        how(store)
    assert store.most_read >= WANTED
    assert store.now == 0
    wanted = VALUES.copy()
    wanted[:, 3:5] *= -1
    assert np.array_equal(zd.open_array(store)[...], wanted)


@pytest.mark.parametrize("how", [assigned, written, rechunked])
def test_a_put_that_fails_is_an_error_and_nothing_is_left_running(how):
    source, store = MemoryStore(), Far(wanted=1, fails={"c/7/0"})
    zd.create_array(source, shape=VALUES.shape, dtype="i4", chunks=(64, 1))[...] = VALUES
    with (
        dask.config.set(scheduler="threads", num_workers=2),
        pytest.raises(StoreError, match="no room for c/7/0"),
    ):
        how(store, source)
    assert store.now == 0
    assert "c/7/0" not in store.values
    if how is not assigned:
        assert "zarr.json" not in store.values


class EndsMeanwhile(Future):
    """The future of a put that fails between two looks at it."""

    looks = 0

    def done(self):
        self.looks += 1
        return self.looks > 1


def test_a_put_that_fails_between_two_looks_is_an_error(monkeypatch):
    futures = [EndsMeanwhile(), Future()]
    futures[0].set_exception(StoreError("no room"))
    futures[1].set_result(None)
    pool = SimpleNamespace(submit=lambda *_: futures.pop(0))
    monkeypatch.setattr(streaming_put, "waiting_threads", lambda: pool)
    monkeypatch.setattr(streaming_put, "_WAITING", streaming_put._WaitingValues())

    def puts():
        store = Far(wanted=1)
        with concurrent_puts(store):
            put(store, "c/0", [b"0"])
            put(store, "c/1", [b"1"])

    with pytest.raises(StoreError, match="no room"):
        puts()
    assert not futures


def test_only_so_many_bytes_wait():
    store = Far(wanted=3)
    with concurrent_puts(store, 100):
        for number in range(20):
            put(store, f"c/{number}", [b"0" * 16, b"1" * 16])
        put(store, "c/large", [b"2" * 1000])
    assert store.most == 3
    assert store.most_bytes == 1000
    assert len(store.values) == 21


def test_memory_of_the_caller_may_be_used_again():
    store = Far(wanted=2)
    memory = bytearray(b"first")
    with concurrent_puts(store):
        put(store, "c/0", [memory])
        memory[:] = b"other"
        put(store, "c/1", [memory])
    assert (bytes(store.get("c/0")), bytes(store.get("c/1"))) == (b"first", b"other")


def test_an_error_in_between_waits_for_what_has_begun():
    store = Far(wanted=1)

    def fail():
        with concurrent_puts(store):
            put(store, "c/0", [b"0"])
            raise KeyError("in between")

    with pytest.raises(KeyError, match="in between"):
        fail()
    assert store.values.keys() == {"c/0"}
    assert store.now == 0


def test_near_stores_and_plans_without_room_wait_for_each_put():
    near, far = MemoryStore(), Far(wanted=1)
    for store, most in ((near, streaming_put.MOST_WAITING), (far, 0)):
        with concurrent_puts(store, most) as queue:
            assert queue is None
            put(store, "c/0", [b"0"])
            assert bytes(store.get("c/0")) == b"0"
