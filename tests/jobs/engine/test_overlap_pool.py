"""Tasks that wait for a store that is far away, and those that compute meanwhile."""

from __future__ import annotations

import threading

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask._util.threads import MAX_CONCURRENT_REQUESTS, wait_context
from zarr_dask.errors import StoreError
from zarr_dask.jobs.engine import overlap_pool as lending
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import ReadPolicy


class Counter:
    """How many there are at a time, at most."""

    def __init__(self):
        self.changed = threading.Condition()
        self.now = self.most = self.begun = 0

    def __enter__(self):
        with self.changed:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)
            self.changed.notify_all()

    def __exit__(self, *_):
        with self.changed:
            self.now -= 1


class Far(MemoryStore):
    """A store that answers when so many are waiting that it seems worth its while."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)

    def __init__(self, patience=1):
        super().__init__()
        self.sent, self.patience = Counter(), patience

    def set(self, key, buffers):
        if "c/" in key:
            with self.sent:
                with self.sent.changed:
                    self.sent.changed.wait_for(lambda: self.sent.most >= self.patience, timeout=5)
                super().set(key, buffers)
                return
        super().set(key, buffers)


def slowly(computing, waits_for=1):
    """A function of a block that counts, and waits until as many compute."""

    def compute(block):
        with computing:
            with computing.changed:
                computing.changed.wait_for(lambda: computing.most >= waits_for, timeout=5)
            return block + 1

    return compute


def write(store, x, threads=2):
    with dask.config.set(scheduler="threads", num_workers=threads):
        zd.to_zarr(x, store)


@pytest.mark.slow
def test_others_compute_while_some_send():
    """Six wait at a time, which two threads alone could not do; no more than two compute."""
    computing = Counter()
    store = Far(patience=6)
    x = da.zeros((36, 4), chunks=(1, 4), dtype="i4").map_blocks(slowly(computing, 2), dtype="i4")
    write(store, x)
    assert store.sent.most >= 6
    assert computing.most == 2
    assert (zd.open(MemoryStore(store.values))[...] == 1).all()


@pytest.mark.parametrize("near", [True, False])
def test_no_more_send_than_fit(monkeypatch, near):
    """Blocks of 16 bytes: two of them may be waiting besides those that keep their places."""
    monkeypatch.setattr(lending, "_MOST_BYTES", 32)
    store = Far(patience=4)
    if near:
        monkeypatch.setattr(Far, "coalescing", ReadPolicy(gap=0, largest=1 << 20))
        store = Far(patience=2)
    write(store, da.ones((24, 4), chunks=(1, 4), dtype="i4"))
    assert store.sent.most == (2 if near else 4)


class Weighing(Far):
    """One that weighs what it is being sent at a time."""

    def __init__(self, patience):
        super().__init__(patience)
        self.nbytes = self.most_bytes = 0

    def set(self, key, buffers):
        nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        with self.sent.changed:
            self.nbytes += nbytes
            self.most_bytes = max(self.most_bytes, self.nbytes)
        super().set(key, buffers)
        with self.sent.changed:
            self.nbytes -= nbytes


def test_a_plan_counts_the_blocks_that_are_sent():
    """Two threads compute, 14 more hold a block of 1 MiB and the bytes that are sent of it."""
    x = da.ones((24, 1 << 18), chunks=(1, 1 << 18), dtype="i4").map_blocks(np.negative)
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]

    def plan(store):
        return zd.plan_rechunk(x, store, chunks=(1, 1 << 18), codecs=codecs, max_mem="100MB")

    store = Weighing(patience=10)
    with dask.config.set(scheduler="threads", num_workers=2):
        far, near = plan(store), plan(MemoryStore())
        far.run()
    blocks = store.sent.most * x.nbytes // x.npartitions
    assert near.block_memory < blocks + store.most_bytes <= far.block_memory
    assert far.block_memory == 8 * near.block_memory


def test_no_more_blocks_are_made_than_can_be_written():
    """Where blocks are made by tasks of their own, nobody lends."""
    made = Counter()
    ahead = []
    store = Far()

    @dask.delayed(pure=False)
    def make(number):
        with made:
            ahead.append(made.begun - store.sent.begun)
            return np.full((1, 4), number + 1, "i4")

    blocks = [da.from_delayed(make(n), (1, 4), dtype="i4") for n in range(60)]
    write(store, da.concatenate(blocks))
    assert store.sent.begun == 60
    assert max(ahead) <= 8


def test_after_a_failure_no_task_begins():
    store = Far()
    computing = Counter()

    at_failure = []

    def fail(block, block_info=None):
        with computing:
            if block_info[None]["chunk-location"][0] == 200:
                at_failure.append(computing.begun)
                raise StoreError("it fails")
            return block

    x = da.zeros((400, 4), chunks=(1, 4), dtype="i4").map_blocks(fail, dtype="i4")
    with pytest.raises(StoreError, match="it fails"):
        write(store, x)
    begun = computing.begun
    assert begun - at_failure[0] < 40
    assert computing.now == store.sent.now == 0
    assert not any(thread.name.startswith("zarr-dask_") for thread in threading.enumerate())
    assert computing.begun == begun


def test_places_are_lent_as_soon_as_there_is_room(monkeypatch):
    """One lends its place, two keep theirs: when the first is done, one of them lends its own."""
    monkeypatch.setattr(lending, "_MOST_BYTES", 4)
    together, fourth = threading.Barrier(3), threading.Event()

    def send(waits):
        with lending.release_compute_slot(Far(), 4):
            together.wait(5)
            return not waits or fourth.wait(5)

    with lending.OverlapExecutor(2, lending.max_uploading(4)) as pool:
        sent = [pool.submit(send, waits) for waits in (False, True, True)]
        pool.submit(fourth.set)
        assert [one.result(10) for one in sent] == [True, True, True]


def test_who_has_sent_needs_no_place_to_end():
    with lending.OverlapExecutor(1, lending.max_uploading(4)) as pool:
        lent = threading.Event()

        def send():
            with lending.release_compute_slot(Far(), 4):
                lent.set()
                begun.wait(5)

        begun = threading.Event()
        first = pool.submit(send)
        assert lent.wait(5)

        def compute():
            begun.set()
            first.result(5)
            return True

        assert pool.submit(compute).result(10)


def test_who_computes_again_waits_for_a_place():
    with lending.OverlapExecutor(1, lending.max_uploading(4)) as pool:
        lent, order = threading.Event(), []

        def send():
            with lending.release_compute_slot(Far(), 4):
                lent.set()
                begun.wait(5)
            sent.set()
            lending.acquire_compute_slot()
            order.append("again")

        begun, sent = threading.Event(), threading.Event()
        first = pool.submit(send)
        assert lent.wait(5)

        def compute():
            begun.set()
            assert sent.wait(5)
            order.append("other")

        pool.submit(compute).result(10)
        first.result(10)
        assert order == ["other", "again"]


def test_of_small_blocks_more_are_sent_at_a_time():
    """What bounds them is how many there are, and leaves requests for tasks that read."""
    store = Far(patience=16)
    write(store, da.ones((96, 4), chunks=(1, 4), dtype="i4"))
    assert 16 <= store.sent.most <= 2 + lending.MOST_SENDING < MAX_CONCURRENT_REQUESTS


def test_who_waits_goes_on_beside_those_that_wait_for_its_lock():
    """With a single slot, that the second has."""
    lock, held, begun = threading.Lock(), threading.Event(), threading.Event()

    def first():
        with lock:
            held.set()
            with wait_context():
                return begun.wait(5)

    def second():
        begun.set()
        return lock.acquire(timeout=5)

    with lending.OverlapExecutor(1, 1) as pool:
        one = pool.submit(first)
        assert held.wait(5)
        assert pool.submit(second).result(10)
        assert one.result(10)


def rechunked(store, **options):
    """64 rows of 512 kB, by 8 tasks that each send 8 objects."""
    source = zd.create_array({}, shape=(64, 1 << 17), dtype="i4", chunks=(1, 1 << 17))
    source[...] = np.arange(64).reshape(64, 1)
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = zd.plan_rechunk(source, store, chunks=(2, 1 << 16), **options)
        assert plan.tasks == 8
        return plan, plan.run()


def test_tasks_of_a_rechunking_begin_while_others_wait():
    """Two threads alone would send 16 objects at a time."""
    store = Far(patience=20)
    plan, report = rechunked(store)
    assert store.sent.most >= 20
    assert "2 tasks at a time, 6 others may wait for the store" in plan.explain()
    assert plan.peak == report.bound
    stored = zd.open(MemoryStore(store.values))
    assert (stored[...] == np.arange(64).reshape(64, 1)).all()


def test_tasks_that_wait_count_in_the_memory_of_a_plan():
    plans = [rechunked(store, max_mem="100MB")[0] for store in (Far(), MemoryStore())]
    tight, near = plans
    assert near.peak < tight.peak <= tight.max_mem
    assert "2 others may wait" in tight.explain()
    assert "wait" not in near.explain()


def test_a_task_of_a_pyramid_sends_all_its_objects_before_it_waits():
    """Two planes of the first level, and one of the second."""
    store = Far(patience=3)
    pixels = np.arange(8 * 16 * 16, dtype="u2").reshape(8, 16, 16)
    with dask.config.set(scheduler="sync"):
        zd.ome.write(pixels, store, axes="zyx", chunks=(1, 16, 16), levels=2)
    assert store.sent.most == 3
    image = zd.ome.open(MemoryStore(store.values))
    np.testing.assert_array_equal(image.level(0)[...], pixels)
