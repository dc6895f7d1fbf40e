"""How writes are run: failures, progress in bytes, windows and batches."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import collections_to_expr
from distributed import Client

import zarr_dask as zd
from zarr_dask.errors import ConsolidatedMetadataWarning, StoreError
from zarr_dask.graph import independent_writes, is_embarrassingly_parallel
from zarr_dask.jobs.engine import AdaptiveBatches
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording

VALUES = np.arange(1, 241, dtype="int32").reshape(12, 20)
THREADS = {"scheduler": "threads", "num_workers": 2}


def lazy(values=VALUES, chunks=(4, 5)) -> da.Array:
    return da.from_array(np.asarray(values), chunks=chunks)


def computed(side: int, block: int) -> da.Array:
    """An array without a source: each block is made by its own task."""
    return da.ones((side, side), chunks=block, dtype="f4").map_blocks(
        lambda block, block_id: block * (1 + block_id[0] * 1000 + block_id[1]), dtype="f4"
    )


def stored(values=VALUES, **options) -> zd.Array:
    options = {"chunks": (4, 5), **options}
    array = zd.create_array(
        Recording(MemoryStore()), shape=values.shape, dtype=values.dtype, **options
    )
    array[...] = values
    array.store.clear()
    return array


# --- sizes -------------------------------------------------------------------------------------


def test_a_hundred_thousand_tasks_are_submitted_in_10_kb(tmp_path):
    later = zd.to_zarr(da.zeros((3160, 3170), chunks=10), tmp_path, compute=False)
    assert later.__dask_graph__().layers
    sent = pickle.dumps(collections_to_expr([later]).optimize())
    assert len(sent) < 10_000
    assert len(pickle.dumps(later.__dask_graph__())) < 10_000
    assert not any(layer.is_materialized() for layer in later.__dask_graph__().layers.values())


def test_annotations_stay_with_every_way_to_run(tmp_path):
    with dask.annotate(retries=3, priority=5):
        later = zd.to_zarr(computed(8, 4), tmp_path, compute=False)
    graph = later.__dask_optimize__(later.__dask_graph__(), later.__dask_keys__())
    found = [layer.annotations for layer in graph.layers.values()]
    assert {"retries": 3, "priority": 5} in found
    assert independent_writes(later).annotations == {"retries": 3, "priority": 5}


# --- failures ----------------------------------------------------------------------------------


def test_running_tasks_are_waited_for_and_no_new_ones_begin():
    """One writer fails while another one is in the middle of its object."""
    store = MemoryStore()
    begun, failed = threading.Event(), threading.Event()
    after: list[str] = []

    def before(method: str, key: str) -> None:
        if method != "set" or key.endswith(".json"):
            return
        if failed.is_set():
            after.append(key)
        elif not begun.is_set():
            begun.set()
            assert failed.wait(20)
            time.sleep(0.2)  # long enough for the error to reach the caller, if nobody waited
            after.append(key)
        else:
            failed.set()
            raise StoreError("the disk is full")

    with dask.config.set(**THREADS), pytest.raises(StoreError, match="full"):
        zd.to_zarr(lazy(), HookStore(store, before))
    assert len(after) == 1  # what had begun has ended, and nothing has begun since
    objects = set(store.list())
    assert len([key for key in objects if not key.endswith(".json")]) == 1


@pytest.mark.parametrize("kind", ["threads", "sync", "pool"])
def test_errors_come_through_every_scheduler(kind):
    from concurrent.futures import ThreadPoolExecutor

    def fail(block):
        raise RuntimeError("no such luck")

    x = lazy().map_blocks(fail, dtype="int32", meta=np.empty((0, 0), "int32"))
    with ThreadPoolExecutor(2) as pool:
        options = {"scheduler": "threads", "pool": pool} if kind == "pool" else {"scheduler": kind}
        with dask.config.set(**options), pytest.raises(RuntimeError, match="luck"):
            zd.to_zarr(x, {})
        with dask.config.set(**options):
            assert zd.to_zarr(lazy(), {}).objects == 12


# --- progress ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "several"),
    [("sync", True), ("threads", False), ("threads", True), ("processes", False)],
)
def test_progress_in_bytes(tmp_path, scheduler, several):
    steps = []
    x = [lazy(), lazy(chunks=(5, 7))] if several else lazy()
    names = ["a", "b"] if several else "a"
    plan = zd.plan_write(x, tmp_path, names, **({} if several else {"chunks": (4, 5)}))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        plan.run(progress=steps.append)
    assert sum(step.nbytes for step in steps) == plan.nbytes == steps[0].total
    assert len(steps) == plan.tasks
    assert {(step.stage, step.stages) for step in steps} == {(0, 1)}


def test_progress_as_a_bar(capsys):
    zd.to_zarr(lazy(), {}, progress=True)
    assert "writing" in capsys.readouterr().err


# --- windows -----------------------------------------------------------------------------------


SEPARATE = {
    "from nothing": lambda a: computed(12, 4),
    "read": zd.from_zarr,
    "computed from one": lambda a: np.sqrt(zd.from_zarr(a) * 2.0) + 1,
    "computed from two": lambda a: zd.from_zarr(a) * zd.from_zarr(a, name="again"),
}
SHARING = {
    "a reduction": lambda a: zd.from_zarr(a) - zd.from_zarr(a).mean(axis=0),
    "an array in memory": lambda a: lazy(),
    "rechunked": lambda a: zd.from_zarr(a).rechunk((6, 10)),
    "a slice": lambda a: zd.from_zarr(a)[1:],
    "a transposed self": lambda a: zd.from_zarr(a)[:, :12] + zd.from_zarr(a)[:, :12].T,
}


@pytest.mark.parametrize("way", [*SEPARATE, *SHARING])
def test_windows_only_where_blocks_share_nothing(way):
    source = stored()
    x = {**SEPARATE, **SHARING}[way](source)
    target = Recording(MemoryStore())
    plan = zd.plan_write(x, target)
    assert is_embarrassingly_parallel(x) == (way in SEPARATE)
    if way in SHARING:
        with pytest.raises(ValueError, match="in common"):
            plan.run(window=4)
        assert not target.per_key("set")
        source.store.clear()
        plan.run()
    else:
        source.store.clear()
        plan.run(window=2)
    if way != "computed from two":
        assert set(source.store.per_key().values()) <= {1}  # nothing is read again
    np.testing.assert_array_equal(zd.open_array(target)[...], x.compute(scheduler="sync"))


def test_what_is_subtracted_is_read_once_on_a_cluster(tmp_path, client):
    """16 windows would read the source 16 times; as one graph it is read once."""
    place, read = tmp_path / "source", tmp_path / "read"
    zd.create_array(place, shape=(64, 8), dtype="f8", chunks=(4, 8))[...] = 1
    read.mkdir()

    def note(method: str, key: str) -> None:
        if method == "get" and key.startswith("c/"):
            (read / f"{key.replace('/', '-')}-{time.monotonic_ns()}").touch()

    source = zd.from_zarr(zd.open_array(HookStore(LocalStore(str(place)), note)))
    zd.to_zarr(source - source.mean(axis=0), tmp_path / "target")
    keys = Counter(path.name.rpartition("-")[0] for path in read.iterdir())
    assert len(keys) == 16
    assert set(keys.values()) == {1}


@pytest.mark.parametrize(
    ("scheduler", "window"),
    [("sync", 1), ("sync", 1000), ("threads", 1), ("threads", 3), ("processes", 50)],
)
def test_windows_on_local_schedulers(tmp_path, scheduler, window):
    steps = []
    x = computed(20, 2) if scheduler != "processes" else da.ones((20, 20), chunks=2, dtype="f4")
    with dask.config.set(scheduler=scheduler, num_workers=2):
        report = zd.to_zarr(x, tmp_path, window=window, progress=steps.append)
    assert report.objects == 100
    assert sum(step.nbytes for step in steps) == x.nbytes
    np.testing.assert_array_equal(zd.open_array(tmp_path)[...], x.compute(scheduler="sync"))


def test_no_progress_is_shown_unless_it_is_wanted(capsys):
    zd.to_zarr(lazy(), {}, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("window", [0, -1, "3", True, 1.5])
def test_windows_of_nothing(window):
    with pytest.raises(ValueError, match="window"):
        zd.to_zarr(computed(4, 2), {}, window=window)
    with pytest.raises(ValueError, match="window"):
        zd.to_zarr([computed(4, 2)] * 2, {}, ["a", "b"], window=window)


def test_windows_of_several_arrays(tmp_path):
    """Where nothing is made for two of them; each is written in windows of its own."""
    source, steps = stored(), []
    x, y = zd.from_zarr(source) + 1, computed(20, 2)
    source.store.clear()
    with dask.config.set(**THREADS):
        reports = zd.to_zarr([x, y], tmp_path, ["x", "y"], window=4, progress=steps.append)
    assert [report.objects for report in reports] == [12, 100]
    assert sum(step.nbytes for step in steps) == x.nbytes + y.nbytes
    assert set(source.store.per_key().values()) == {1}
    np.testing.assert_array_equal(zd.open_array(tmp_path, "x")[...], VALUES + 1)
    np.testing.assert_array_equal(zd.open_array(tmp_path, "y")[...], y.compute(scheduler="sync"))
    with pytest.raises(ValueError, match="two of the arrays are made from"):
        zd.to_zarr([x, x * 2], tmp_path, ["a", "b"], window=4)
    assert not list(tmp_path.glob("[ab]"))


def test_a_failed_window_leaves_no_document():
    store = MemoryStore()

    def fail(method: str, key: str) -> None:
        if key == "c/3/3":
            raise StoreError("the disk is full")

    with dask.config.set(**THREADS), pytest.raises(StoreError, match="full"):
        zd.to_zarr(computed(20, 2), HookStore(store, fail), window=8)
    assert "zarr.json" not in set(store.list())


def test_batches_take_about_half_a_second():
    batches = AdaptiveBatches(10_000, threads=4)
    assert [len(batches.next()) for _ in range(3)] == [1, 1, 1]
    batches.note(3, 0.3)
    assert len(batches.next()) == 5  # 0.1 s each
    batches.note(5, 0.005)
    sizes = []
    while batch := batches.next():
        sizes.append(len(batch))
        batches.note(len(batch), len(batch) * 0.001)
    assert sum(sizes) == 10_000 - 8
    assert 100 <= max(sizes) <= 700
    assert sizes[-16:] == [1] * 16  # all threads have something to do to the end


def test_long_tasks_are_not_put_together():
    batches = AdaptiveBatches(100, threads=2)
    sizes = []
    while batch := batches.next():
        sizes.append(len(batch))
        batches.note(len(batch), 2.0 * len(batch))
    assert sizes == [1] * 100


# --- on a cluster ------------------------------------------------------------------------------


def test_windows_on_a_cluster(tmp_path, client):
    steps = []
    x = computed(40, 2)
    report = zd.to_zarr(x, tmp_path, window=16, progress=steps.append)
    assert report.objects == 400
    assert sum(step.nbytes for step in steps) == x.nbytes
    np.testing.assert_array_equal(zd.open_array(tmp_path)[...], x.compute(scheduler="sync"))


def test_progress_through_a_cluster(tmp_path, client):
    steps = []
    plan = zd.plan_write(lazy(chunks=(5, 7)), tmp_path, chunks=(4, 5))
    plan.run(progress=steps.append)
    assert sum(step.nbytes for step in steps) == plan.nbytes
    assert len(steps) >= 1


def test_progress_of_several_arrays_through_a_cluster(tmp_path, client):
    """Blocks at one place of two arrays are two blocks: each is counted."""
    steps = []
    plan = zd.plan_write([lazy(), lazy() + 1], tmp_path, ["a", "b"])

    def note(step):
        steps.append(step)
        time.sleep(0.001)

    plan.run(progress=note)
    assert sum(step.nbytes for step in steps) == plan.nbytes
    assert max(step.nbytes for step in steps) < plan.nbytes // 2


def test_a_client_that_is_not_the_default_one(tmp_path, cluster):
    with Client(cluster, set_as_default=False) as client:
        x = computed(8, 4)
        zd.plan_write(x, tmp_path / "a").run(client)
        zd.plan_write(x, tmp_path / "b").run(client, window=2)
    for name in "ab":
        np.testing.assert_array_equal(
            zd.open_array(tmp_path / name)[...], x.compute(scheduler="sync")
        )


def test_a_configured_scheduler_goes_before_a_client(client):
    """A memory store: a worker of the cluster could not write to it."""
    store = MemoryStore()
    with dask.config.set(scheduler="sync"):
        assert zd.to_zarr(computed(8, 4), store).objects == 4


def test_a_failure_on_a_cluster_is_waited_for(tmp_path, client):
    """When the error is raised, no worker writes any more."""

    def fail(block, block_id):
        if block_id == (0, 0):
            raise RuntimeError("no such luck")
        time.sleep(0.05)
        return block

    x = da.ones((40, 40), chunks=4, dtype="f4").map_blocks(
        fail, dtype="f4", meta=np.empty((0, 0), "f4")
    )
    with pytest.raises(RuntimeError, match="luck"):
        zd.to_zarr(x, tmp_path)
    names = [str(key) for keys in client.call_stack().values() for key in keys]
    assert not [name for name in names if "zarr-write" in name]
    before = sorted(p.name for p in tmp_path.rglob("*"))
    time.sleep(0.2)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("where", ["cluster", "threads"])
def test_whoever_appends_is_told_of_consolidated_metadata_once(tmp_path, request, where, recwarn):
    """Not only the process of the worker that shows the new length."""
    zd.create_group(tmp_path / "r")
    zd.to_zarr(da.zeros((4, 3), dtype="i8"), tmp_path / "r", "u", chunks=2)
    zd.consolidate(tmp_path / "r")
    if where == "cluster":
        request.getfixturevalue("client")
    recwarn.clear()
    zd.to_zarr(da.ones((2, 3), dtype="i8"), tmp_path / "r", "u", append=0)
    told = [one for one in recwarn if one.category is ConsolidatedMetadataWarning]
    assert [str(one.message).split(" has changed")[0] for one in told] == [f"{tmp_path}/r/u"]
