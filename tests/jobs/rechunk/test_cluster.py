"""The judged cases of rechunking on a cluster: little memory, many tasks, workers come and go."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.process_memory import begin_peak, status
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.jobs.engine import Workers
from zarr_dask.jobs.engine.cluster import PER_THREAD, SubmissionWindow
from zarr_dask.jobs.engine.predict import IDLE_WORKER, memory_budget
from zarr_dask.jobs.write.write import plan_blocks

MB = 1_000_000
LIMIT = 350 << 20
BLOSC = [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle",
                                             "typesize": 4, "blocksize": 0}}]  # fmt: skip

pytestmark = pytest.mark.cluster


def noise(rows: int, columns: int, seed: int) -> np.ndarray:
    """Values that compress a little, as those of simulations do."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 1 << 20, (rows, columns), "i4").astype("f4")


def source_of(place: Path, n: int, rows: int) -> zd.Array:
    """An n x n array in chunks of whole rows."""
    array = zd.create_array(place, shape=(n, n), dtype="f4", chunks=(rows, n), codecs=BLOSC)
    for start in range(0, n, rows):
        array[start : start + rows] = noise(rows, n, start)
    return array


def noisy_block(block_info=None):
    """A block that takes no more than itself to compute."""
    info = block_info[None]
    made = np.empty(info["chunk-shape"], "f4")
    np.random.default_rng(info["chunk-location"]).random(out=made, dtype="f4")
    return made


def noisy(block: tuple[int, ...], shape: tuple[int, ...]) -> da.Array:
    blocks = da.core.normalize_chunks(block, shape)
    return da.map_blocks(noisy_block, chunks=blocks, dtype="f4", meta=np.empty((0, 0, 0), "f4"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "chunks"), [((8, 512, 512), (64, 64, 64)), ((32, 512, 512), (128, 32, 32))]
)
def test_writing_blocks_takes_what_the_plan_states(tmp_path, small_workers, block, chunks):
    """The first stage of a dask array, on workers: their peak above idle."""
    client = small_workers
    x = noisy(block, (128, 512, 512))
    # workers import this module with the function that makes its blocks
    zd.rechunk(noisy((1, 8, 8), (8, 8, 8)), tmp_path / "warm", chunks=(8, 1, 8), client=client)
    plan = zd.plan_rechunk(x, tmp_path / "b", chunks=chunks, max_mem="140MB", client=client)
    idle = client.run(begin_peak)
    room = plan.between.staging(x, plan.target, resume=False)
    plan_blocks(room, x, resume=False).run(client)
    peaks = client.run(status, "VmHWM")
    held = max(peaks[worker] - idle[worker] for worker in idle)
    assert 0.6 * plan.block_memory <= held <= plan.block_memory, str(plan)
    idle = client.run(begin_peak)
    report = plan.run(client)
    peaks = client.run(status, "VmHWM")
    held = max(peaks[worker] - idle[worker] for worker in idle)
    assert held <= max(plan.block_memory, report.bound) <= plan.then.max_mem, str(plan)
    assert (zd.open_array(tmp_path / "b")[:, :8, :8] == x[:, :8, :8].compute()).all()


def assert_equal(place: Path, n: int, rows: int) -> None:
    new = zd.open_array(place)
    for start in range(0, n, rows):
        assert (new[start : start + rows] == noise(rows, n, start)).all()


@pytest.fixture(scope="module")
def small_workers():
    """Two worker processes that may use 350 MiB each."""
    from distributed import Client, LocalCluster

    options = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=LIMIT, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def all_to_all(client, folder: Path, n: int, rows: int) -> None:
    source_of(folder / "a", n, rows)
    plan = zd.plan_rechunk(folder / "a", folder / "b", chunks=(n, rows))
    assert plan.max_mem < LIMIT - IDLE_WORKER
    idle = client.run(begin_peak)
    processes = client.run(os.getpid)
    report = plan.run()
    peaks = client.run(status, "VmHWM")
    assert client.run(os.getpid) == processes  # no worker has died
    for worker, peak in peaks.items():
        assert peak - idle[worker] <= plan.max_mem, str(plan)
        assert peak < LIMIT
    assert report.peak <= plan.peak
    assert report.repeated == 0
    assert_equal(folder / "b", n, rows)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured on Linux")
def test_all_to_all_in_workers_of_350_mib(small_workers, tmp_path):
    """A seventh of the judged array."""
    all_to_all(small_workers, tmp_path, 6144, 512)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured on Linux")
def test_a_gibibyte_all_to_all_in_workers_of_350_mib(small_workers, tmp_path):
    all_to_all(small_workers, tmp_path, 16384, 512)


def test_the_scheduler_knows_of_few_tasks_at_a_time(small_workers, tmp_path):
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    old = zd.create_array(tmp_path / "a", shape=(64, 64), dtype="i4", chunks=(64, 64))
    old[...] = values
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(4, 8), max_mem="4MB")
    plan = replace(plan, stages=(replace(plan.stages[0], box=(4, 8)),))
    assert plan.tasks == 128

    def known(dask_scheduler) -> int:
        ended = {"memory", "released", "forgotten"}
        return sum(task.state not in ended for task in dask_scheduler.tasks.values())

    seen = []
    plan.run(progress=lambda _: seen.append(small_workers.run_on_scheduler(known)))
    threads = sum(small_workers.nthreads().values())
    assert len(seen) == 128
    assert max(seen) <= threads * PER_THREAD
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values)


def test_workers_come_and_go(tmp_path):
    from distributed import Client, LocalCluster

    values = np.arange(256 * 64, dtype="i4").reshape(256, 64)
    old = zd.create_array(tmp_path / "a", shape=(256, 64), dtype="i4", chunks=(1, 64))
    old[...] = values
    options = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **options) as cluster,
        Client(cluster) as client,
    ):
        plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(8, 8), max_mem="4MB")
        plan = replace(plan, stages=(replace(plan.stages[0], box=(8, 8)),))
        seen = 0

        def scale(_) -> None:
            nonlocal seen
            seen += 1
            if seen in (20, 120):
                cluster.scale(3 if seen == 20 else 1)
                client.wait_for_workers(3 if seen == 20 else 1, timeout=50)

        report = plan.run(progress=scale)
    assert report.tasks == plan.tasks == 32 * 8
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_adaptive_cluster(tmp_path):
    """It begins without workers, gets more while the job runs, and loses them all after it."""
    from distributed import Client, LocalCluster

    values = np.arange(512 * 64, dtype="i4").reshape(512, 64)
    old = zd.create_array(tmp_path / "a", shape=(512, 64), dtype="i4", chunks=(1, 64))
    old[...] = values
    options = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, memory_limit=LIMIT, **options) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=1, maximum=3, interval="50ms", target_duration="50ms", wait_count=2)
        plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(8, 8), max_mem="4MB")
        plan = replace(plan, stages=(replace(plan.stages[0], box=(8, 8)),))
        seen = set()
        report = plan.run(progress=lambda _: seen.add(len(client.nthreads())), verify=True)
        assert max(seen) > 1
        assert report.tasks == plan.tasks == 512
        assert len(report.peaks) > 1
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values)


def test_the_window_follows_the_workers(monkeypatch):
    class Cluster:
        threads = 2

        def nthreads(self):
            return {"a": self.threads}

        def sync(self, function, callback_timeout):
            return function()

    cluster = Cluster()
    now = 0.0
    monkeypatch.setattr("zarr_dask.jobs.engine.cluster.monotonic", lambda: now)
    window = SubmissionWindow(cluster, 2)
    assert window.tasks() == 2 * PER_THREAD
    cluster.threads = 100
    assert window.tasks() == 2 * PER_THREAD
    now = 2.0
    assert window.tasks() == 100 * PER_THREAD
    now, cluster.threads = 4.0, 0
    assert window.tasks() == 100 * PER_THREAD  # they wait for the next worker
    assert SubmissionWindow(cluster, 2, fixed=3).tasks() == 3


# --- what workers have -------------------------------------------------------------------------


def test_a_bound_that_no_worker_has_is_refused_when_planning(small_workers, tmp_path):
    old = zd.create_array(tmp_path / "a", shape=(64, 64), dtype="i4", chunks=(1, 64))
    with pytest.raises(MemoryBudgetError, match=r"367 MB.*at most 217 MB"):
        zd.plan_rechunk(old, tmp_path / "b", chunks=(64, 1), max_mem="300MB")
    assert not (tmp_path / "b").exists()


def test_the_bound_comes_from_the_limit_of_the_workers(small_workers, tmp_path):
    old = zd.create_array(tmp_path / "a", shape=(64, 64), dtype="i4", chunks=(1, 64))
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(64, 1))
    assert plan.max_mem == int(LIMIT * 0.8) - IDLE_WORKER
    large = Workers(None, 2, 1, memory_limit=8_000 * MB)
    assert memory_budget(None, large) == 4_800 * MB
    assert memory_budget(None, Workers(None, 2, 1)) == 1_000 * MB
    assert memory_budget("2GB", Workers(None, 2, 1)) == 2_000 * MB
