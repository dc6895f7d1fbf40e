"""Jobs that share stored objects: two processes, threads, the locks between them.

The processes of a test meet at a barrier before every round, so that both change one object at the
same time. What a test of this kind would show if nothing were compared is shown, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.scripts import Script
from zarr_dask.errors import (
    ConditionalWriteError,
    LinkError,
    PartialWriteError,
    ReadOnlyError,
    StoreError,
)
from zarr_dask.stores import (
    HookStore,
    LocalStore,
    MemoryStore,
    ReadOnly,
    Recording,
    compare_and_swap,
    file_lock,
    open_store,
)
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.compare_and_swap import LockKeeper, as_cas_store, folder_lock
from zarr_dask.stores.wrappers.base import PrefixStore

VALUES = np.arange(1, 241, dtype="int32").reshape(12, 20)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def stores(tmp_path) -> dict:
    return {
        "local": LocalStore(str(tmp_path / "local")),
        "memory": MemoryStore(),
        "recorded": Recording(MemoryStore()),
        "below": PrefixStore(LocalStore(str(tmp_path / "below")), "a/b/"),
    }


STORES = ["local", "memory", "recorded", "below"]


# --- the stores --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
def test_a_value_is_put_only_where_it_was_read(tmp_path, kind):
    store = as_cas_store(stores(tmp_path)[kind])
    store.check_conditional("c/0")
    value, tag = store.get_tagged("c/0")
    assert (value, tag) == (None, None)
    assert store.set_if("c/0", [b"1", b"2"], tag)
    assert not store.set_if("c/0", [b"3"], tag)  # somebody has been faster
    value, tag = store.get_tagged("c/0")
    assert bytes(value) == b"12"
    store.set("c/0", [b"other"])
    assert not store.set_if("c/0", [b"3"], tag)
    store.set("c/0", [b"12"])
    assert store.set_if("c/0", [b"34"], tag)  # equal values are the same value
    store.delete("c/0")
    assert not store.set_if("c/0", [b"5"], tag)
    assert store.get("c/0") is None
    assert sorted(store.list()) == []


def test_a_lock_leaves_nothing_behind(tmp_path):
    store = LocalStore(str(tmp_path))
    store.set_if("a/c/0", [b"1"], None)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["0"]


def test_a_lock_is_that_of_the_folder_in_which_its_record_is_made(tmp_path, monkeypatch):
    """Another process removes the folder, and a third one makes it again, right before that."""
    folder, make, made = tmp_path / "c", file_lock.make_record, []

    def replaced(path, **options):
        if not made:
            folder.rmdir()
            folder.mkdir()
        made.append(path)
        return make(path, **options)

    monkeypatch.setattr(file_lock, "make_record", replaced)
    folder.mkdir()
    with folder_lock(str(folder)) as held:
        assert held.descriptor is None or os.path.samestat(os.fstat(held.descriptor), folder.stat())
        assert len(list(folder.iterdir())) == 1
    assert len(made) == (1 if held.descriptor is None else 2)
    assert not list(folder.iterdir())


def test_a_folder_that_goes_while_one_waits_for_its_lock(tmp_path):
    """The lock of a folder that is gone would be held against nobody."""
    folder = tmp_path / "c"
    entered = threading.Event()
    found: list[bool] = []

    def second() -> None:
        entered.set()
        with folder_lock(str(folder)):
            found.append(folder.is_dir())

    with folder_lock(str(folder)):
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait()
        shutil.rmtree(folder)
    thread.join(20)
    assert found == [True]


def is_free(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return not list(folder.glob(".*"))  # nor is there a record


def test_a_lock_that_is_kept_for_the_next_object(tmp_path):
    store, one, other = LocalStore(str(tmp_path)), tmp_path / "c" / "0", tmp_path / "c" / "1"
    with LockKeeper() as keeper:
        assert store.set_if("c/0/0", [b"1"], None)
        assert not is_free(one)
        assert store.set_if("c/0/1", [b"2"], None)
        assert store.set_if("c/1/0", [b"3"], None)
        assert is_free(one)
        assert not is_free(other)
        keeper.let_go()
        assert is_free(other)
        store.set_if("c/0/0", [b"4"], b"1")
        shutil.rmtree(one)  # with the record: the lock is one of nothing
        assert store.set_if("c/0/0", [b"5"], None)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(copy_context().run, keeper.let_go).result()  # which is not that thread's
        assert not is_free(one)
    assert is_free(one)
    store.set_if("c/0/1", [b"6"], None)
    assert is_free(one)


def test_a_value_is_compared_again_when_its_lock_was_let_go(tmp_path):
    store, other = LocalStore(str(tmp_path)), LocalStore(str(tmp_path))
    store.set("c/0", [b"1"])
    with LockKeeper() as keeper:
        value, tag = store.get_tagged("c/0")
        assert not is_free(tmp_path / "c")
        keeper.let_go()
        assert other.set_if("c/0", [b"2"], value)
        assert not store.set_if("c/0", [b"3"], tag)
        value, tag = store.get_tagged("c/0")
        assert store.set_if("c/0", [b"4"], tag)
        assert not store.set_if("c/0", [b"5"], tag)
        _, tag = store.get_tagged("c/0")
        store.get_tagged("c/1")
        store.set("c/0", [b"6"])
        assert not store.set_if("c/0", [b"7"], tag)
    assert store.get("c/0") == b"6"


def test_no_lock_is_taken_ahead_where_there_is_no_folder(tmp_path):
    store = LocalStore(str(tmp_path / "a"))
    with LockKeeper():
        assert store.get_tagged("c/0") == (None, None)
    assert not list(tmp_path.iterdir())


def test_no_lock_is_taken_ahead_behind_a_link(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "c").symlink_to(tmp_path / "b")
    with LockKeeper(), pytest.raises(LinkError):
        LocalStore(str(tmp_path / "a")).get_tagged("c/0")
    assert not list((tmp_path / "b").iterdir())


def test_an_object_that_the_end_cuts_is_opened_once_to_read_and_once_to_write(
    tmp_path, monkeypatch
):
    array = zd.create_array(tmp_path / "a", shape=(4, 128), dtype="f8", chunks=8)
    array[...] = 1
    opened, do_open = [], os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **how: opened.append(path) or do_open(path, *rest, **how)
    )
    array[...] = 2
    once = 2  # the folder, which is locked, and its record
    assert len(opened) == once + 2 * 16


def test_a_kept_lock_is_handed_on(tmp_path):
    store, kept = LocalStore(str(tmp_path)), []
    with LockKeeper():
        for number in range(2 * compare_and_swap._MOST_KEPT):
            assert store.set_if(f"c/{number}", [b"1"], None)
            kept.append(not is_free(tmp_path / "c"))
    assert kept.count(False) == 2


def test_a_kept_record_that_was_removed_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(file_lock, "has_shared_locks", lambda _: False)
    store, folder = LocalStore(str(tmp_path)), tmp_path / "c"
    with LockKeeper():
        assert store.set_if("c/0", [b"1"], None)
        shutil.rmtree(folder)
        assert store.set_if("c/0", [b"2"], None)
        assert len(list(folder.iterdir())) == 2
    assert [one.name for one in folder.iterdir()] == ["0"]


@pytest.mark.parametrize(("side", "locks"), [(8, 1), (512, 8)])
def test_small_chunks_in_one_folder_share_a_lock(tmp_path, monkeypatch, side, locks):
    made, make = [], file_lock.make_record
    monkeypatch.setattr(
        file_lock, "make_record", lambda path, **how: made.append(path) or make(path, **how)
    )
    array = zd.create_array(tmp_path / "a", shape=(side // 2, 8 * side), dtype="f8", chunks=side)
    made.clear()
    array[...] = 1
    assert len(made) == locks
    assert not list(tmp_path.rglob(".*"))
    assert (array[...] == 1).all()


def test_a_folder_that_goes_while_it_is_made(tmp_path, monkeypatch):
    """`os.makedirs` says that it is there, and when it looks what it is, it has gone."""
    folder, makedirs, gone = tmp_path / "c", os.makedirs, [True]

    def made_and_gone(name, *rest, **options):
        if gone:
            gone.pop()
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        makedirs(name, *rest, **options)

    monkeypatch.setattr(os, "makedirs", made_and_gone)
    with folder_lock(str(folder)):
        assert folder.is_dir()


def test_stores_that_cannot_compare_refuse():
    remote = FsspecStore.from_url("memory://shared", {})
    with pytest.raises(ConditionalWriteError, match="whole stored objects"):
        as_cas_store(remote).check_conditional("c/0")
    with pytest.raises(ConditionalWriteError):
        as_cas_store(Recording(remote)).check_conditional("c/0")
    with pytest.raises(ReadOnlyError):
        as_cas_store(ReadOnly(MemoryStore())).check_conditional("c/0")
    with pytest.raises(ConditionalWriteError, match="mapping over a file system"):
        as_cas_store(open_store(fsspec.get_mapper("memory://shared"))).check_conditional("c/0")
    target = zd.create_array(remote, shape=(12, 20), dtype="i4", chunks=(4, 5))
    with pytest.raises(ConditionalWriteError, match="memory://shared"):
        zd.to_zarr(da.ones((3, 20)), target, region=np.s_[0:3], partial="compare", casting="unsafe")
    assert not list(remote.list("c/"))


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.ENOTSUP])
def test_file_systems_without_locks_have_records(tmp_path, monkeypatch, number):
    target = zd.create_array(tmp_path, shape=(12, 20), dtype="i4", chunks=(4, 5))

    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    x = da.ones((3, 20), dtype="i4")
    zd.to_zarr(x, target, region=np.s_[0:3], partial="compare")
    assert (target[0:3] == 1).all()
    assert not [*tmp_path.rglob(".zarr-dask-*")]


# --- what a job does ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("grid", [{"chunks": (4, 5)}, {"chunks": (2, 5), "shards": (4, 10)}])
def test_two_jobs_one_after_the_other(tmp_path, kind, grid):
    target = zd.create_array(stores(tmp_path)[kind], shape=(12, 20), dtype="i4", **grid)
    for rows in (np.s_[0:6], np.s_[6:12]):
        x = da.from_array(VALUES[rows], chunks=(3, 7))
        plan = zd.plan_write(x, target, region=rows, partial="compare")
        assert "no other job has changed" in str(plan)
        plan.run()
    np.testing.assert_array_equal(target[...], VALUES)


def test_a_conflict_is_tried_again():
    """Another job writes its part between reading and putting back, three times."""
    store = MemoryStore()
    target = zd.create_array(store, shape=(4, 4), dtype="i4", chunks=(4, 4))
    left = [1, 2, 3]

    def interfere(method: str, key: str) -> None:
        if method == "set_if" and left:
            target.write(np.s_[2:3, left[0] : left[0] + 1], np.full((1, 1), 7, "i4"), 1)
            left.pop(0)

    faulty = Recording(HookStore(store, interfere))
    x = da.ones((2, 4), dtype="i4")
    zd.to_zarr(x, zd.open_array(faulty, mode="r+"), region=np.s_[0:2], partial="compare")
    assert target[...].tolist() == [[1] * 4, [1] * 4, [0, 7, 7, 7], [0] * 4]
    assert faulty.per_key("set_if") == {"c/0/0": 4}


def test_a_job_that_is_always_too_late_gives_up(monkeypatch):
    store = MemoryStore()
    target = zd.create_array(store, shape=(4, 4), dtype="i4", chunks=(4, 4))
    numbers = iter(range(1, 10**6))

    def interfere(method: str, key: str) -> None:
        if method == "set_if":
            target.write(np.s_[3:4, 0:1], np.full((1, 1), next(numbers), "i4"), 1)

    with pytest.raises(ConditionalWriteError, match="1000 times"):
        zd.to_zarr(
            da.ones((2, 4), dtype="i4"),
            zd.open_array(HookStore(store, interfere), mode="r+"),
            region=np.s_[0:2],
            partial="compare",
        )


def test_fill_values_are_no_reason_to_remove_a_shared_object():
    store = MemoryStore()
    target = zd.create_array(store, shape=(4, 4), dtype="i4", chunks=(4, 4))
    zeros = da.zeros((2, 4), dtype="i4")
    assert zd.to_zarr(zeros, target, region=np.s_[0:2], partial="compare").objects == 0
    assert not list(store.list("c/"))
    target[...] = 1
    zd.to_zarr(zeros, target, region=np.s_[0:2], partial="compare")
    zd.to_zarr(zeros, target, region=np.s_[2:4], partial="compare")
    assert store.get("c/0/0") is not None
    assert not target[...].any()


def test_sharing_is_refused_unless_it_is_asked_for(tmp_path):
    target = zd.create_array(tmp_path, shape=(12, 20), dtype="i4", chunks=(4, 5))
    with pytest.raises(PartialWriteError, match='partial="compare"'):
        zd.to_zarr(da.ones((3, 20), dtype="i4"), target, region=np.s_[0:3])


# --- two processes, one object -------------------------------------------------------------------

PEER = """
import sys
import dask, dask.array as da, numpy as np
import zarr_dask as zd

place, half, rounds, partial = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dask.config.set(scheduler="sync")
rows = slice(half * 3, half * 3 + 3)
for number in range(rounds):
    target = zd.open_array(place, str(number), mode="r+")
    plan = zd.plan_write(
        da.full((3, 20), 1 + half, dtype="i4", chunks=(3, 20)), target, region=(rows,),
        partial=partial,
    )
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()  # both begin at once
    plan.run()
"""


ROUNDS = 30
"""Without a comparison about every third of them loses values."""


def run_peers(place: Path, rounds: int, partial: str, grid: dict) -> int:
    """How many values were lost when two processes wrote the halves of one object at once."""
    for number in range(rounds):
        zd.create_array(place, str(number), shape=(6, 20), dtype="i4", **grid)
    with ExitStack() as stack:
        peers = [stack.enter_context(Script(PEER, place, half, rounds, partial)) for half in (0, 1)]
        for _ in range(rounds):
            for peer in peers:
                assert peer.stdout.readline() == "ready\n"
            for peer in peers:
                peer.stdin.write("go\n")
                peer.stdin.flush()
        assert [peer.wait() for peer in peers] == [0, 0]
    want = np.repeat([1, 2], 3)[:, None] + np.zeros((6, 20), int)
    values = [zd.open_array(place, str(number))[...] for number in range(rounds)]
    return sum(int(np.count_nonzero(found != want)) for found in values)


@pytest.mark.conformance("C136")
@pytest.mark.parametrize(
    "grid",
    [
        pytest.param({"chunks": (6, 20)}, marks=pytest.mark.slow),
        {"chunks": (2, 5), "shards": (6, 20)},
    ],
    ids=["chunk", "shard"],
)
def test_two_processes_share_an_object(tmp_path, grid):
    assert run_peers(tmp_path, ROUNDS, "compare", grid) == 0


@pytest.mark.slow
def test_two_processes_share_an_object_very_often(tmp_path):
    assert run_peers(tmp_path, 2000, "compare", {"chunks": (6, 20)}) == 0


@pytest.mark.slow
def test_the_same_two_processes_lose_values_if_nothing_is_compared(tmp_path):
    """So the rounds above do overlap."""
    lost = 0
    for attempt in range(5):
        lost += run_peers(tmp_path / str(attempt), ROUNDS, "own", {"chunks": (6, 20)})
        if lost:
            return
    pytest.fail(f"{5 * ROUNDS} rounds and no overlap")


def test_many_threads_share_one_object(tmp_path):
    """Eight jobs of one process; locks of the system are between descriptors, not processes."""
    target = zd.create_array(tmp_path, shape=(8, 16), dtype="i4", chunks=(8, 16))
    barrier = threading.Barrier(8, timeout=20)

    def job(number: int) -> None:
        for column in range(16):
            region = np.s_[number : number + 1, column : column + 1]
            x = da.full((1, 1), 1 + number * 16 + column, dtype="i4")
            plan = zd.plan_write(x, target, region=region, partial="compare")
            barrier.wait()
            plan.run()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(job, range(8)))
    np.testing.assert_array_equal(target[...], np.arange(1, 129).reshape(8, 16))


HOLDER = """
import sys
from zarr_dask.stores.compare_and_swap import folder_lock

with folder_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_job_that_is_killed_is_free(tmp_path):
    target = zd.create_array(tmp_path, shape=(6, 20), dtype="i4", chunks=(6, 20))
    done = threading.Event()

    def job() -> None:
        x = da.ones((3, 20), dtype="i4")
        zd.to_zarr(x, target, region=np.s_[0:3], partial="compare")
        done.set()

    with Script(HOLDER, tmp_path / "c" / "0") as holder:
        assert holder.stdout.readline() == "held\n"
        thread = threading.Thread(target=job)
        thread.start()
        assert not done.wait(0.3)  # it waits for the lock
        holder.kill()
        assert done.wait(20)
        thread.join(20)
    assert (target[:3] == 1).all()


def test_a_full_disk_leaves_the_shared_object_as_it_was(tmp_path):
    target = zd.create_array(tmp_path, shape=(6, 20), dtype="i4", chunks=(6, 20))
    target[...] = 5

    def fail(method: str, key: str) -> None:
        if method == "set_if":
            raise StoreError("the disk is full")

    x = da.ones((3, 20), dtype="i4")
    faulty = zd.open_array(HookStore(target.store, fail), mode="r+")
    with pytest.raises(StoreError, match="full"):
        zd.to_zarr(x, faulty, region=np.s_[0:3], partial="compare")
    assert (target[...] == 5).all()
