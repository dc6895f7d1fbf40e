"""Jobs whose workers are gone, paused or silent: they say so, and do not wait for ever."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import SchedulerError, WorkerLostError
from zarr_dask.jobs.engine import cluster as engine
from zarr_dask.jobs.engine.cluster import SubmissionWindow, run_window
from zarr_dask.jobs.engine.progress_bars import _wait_column
from zarr_dask.jobs.engine.worker_watch import WorkerWatch, no_workers_timeout
from zarr_dask.jobs.engine.workers import ask_workers
from zarr_dask.journal.receipts import GATHERED, Batch
from zarr_dask.stores.patience import SERVICES

WATCH = "zarr_dask.jobs.engine.worker_watch"
NOBODY = "no workers for 2 s|2.00 s waiting without any running workers"  # us or the scheduler


def worker(status: str = "running", last_seen: float = 0.0, executing: int = 0) -> dict:
    metrics = {"task_counts": {"executing": executing} if executing else {}}
    return {"status": status, "last_seen": last_seen, "metrics": metrics}


def warnings_in(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


# --- what is said of workers ----------------------------------------------------------------------


def test_workers_that_go_and_come_back(caplog):
    caplog.set_level(logging.INFO, WATCH)
    watch = WorkerWatch("tcp://s:1", limit=600)
    watch.see({"tcp://a:1": worker(), "tcp://b:2": worker()}, now=0)
    for now in range(2, 50, 2):
        watch.see({}, now)
    told = warnings_in(caplog)
    assert [int(one.split(" for ")[1].split()[0]) for one in told] == [6, 12, 24]
    assert "scheduler tcp://s:1 has had no workers" in told[0]
    assert "tcp://a:1, tcp://b:2" in told[0]
    assert "at most 600 s" in told[0]
    assert SERVICES.waiting >= 40
    shown = _wait_column().render(SimpleNamespace(finished=False)).plain
    assert shown.endswith("s for workers")
    watch.see({"tcp://c:3": worker()}, now=50)
    assert caplog.records[-1].getMessage() == "workers run tasks again"
    assert SERVICES.waiting == 0
    watch.see({}, now=52)
    watch.see({}, now=640)
    watch.check()
    watch.see({}, now=652)
    with pytest.raises(WorkerLostError, match=r"no workers for 600 s \(the last ones: tcp://c:3"):
        watch.check()
    SERVICES.hear("", 0.0)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (lambda now: {"tcp://a:1": worker("paused", now)}, r"tcp://a:1 \(paused, as their memory"),
        (lambda now: {"tcp://a:1": worker("closing", now)}, r"60 s: tcp://a:1 \(closing\)"),
        (lambda _: {"tcp://a:1": worker()}, r"tcp://a:1 \(not heard of\)"),
        (lambda _: None, "the scheduler tcp://s:1 has not answered for 60 s"),
    ],
)
def test_workers_that_run_nothing(seen, said):
    watch = WorkerWatch("tcp://s:1", limit=60)
    now = 0
    while watch.error is None:
        watch.see(seen(now), now)
        now += 2
    assert now <= 100
    with pytest.raises(WorkerLostError, match=said):
        watch.check()
    SERVICES.hear("", 0.0)


def test_a_paused_worker_that_runs_a_task_is_waited_for():
    watch = WorkerWatch("tcp://s:1", limit=60)
    for now in range(0, 200, 2):
        watch.see({"tcp://a:1": worker("paused", float(now), executing=1)}, now)
    watch.check()


@pytest.mark.parametrize(
    ("other", "state"),
    [(lambda _: worker(), "not heard of"), (lambda now: worker("paused", now), "paused, as")],
)
def test_one_of_several_workers_runs_nothing(caplog, other, state):
    caplog.set_level(logging.INFO, WATCH)
    watch = WorkerWatch("tcp://s:1", limit=60)
    for now in range(0, 200, 2):
        watch.see({"tcp://a:1": worker(last_seen=now), "tcp://b:2": other(now)}, now)
    watch.see({"tcp://a:1": worker(last_seen=200)}, 200)
    watch.check()
    told, gone = (one.getMessage() for one in caplog.records)
    assert f"nothing for 30 s, and may have tasks: tcp://b:2 ({state}" in told
    assert gone == "workers have gone, 1 left: tcp://b:2"


def test_the_time_is_an_option_of_dask():
    assert no_workers_timeout() == 600
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "2 h"}):
        assert no_workers_timeout() == 7200


# --- real processes -------------------------------------------------------------------------------


@contextmanager
def new_worker(client):
    """A worker process without a nanny: no other one comes when it dies."""
    command = (sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address)
    options = ("--no-nanny", "--nthreads", "1", "--no-dashboard")
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            client.wait_for_workers(1, timeout=60)
            yield process
        finally:
            process.kill()


@pytest.fixture
def alone(make_cluster):
    """A client of a scheduler without workers."""
    from distributed import Client

    with Client(make_cluster(n_workers=0)) as client:
        yield client


@pytest.fixture
def soon(monkeypatch):
    """Waits are short, and told at once."""
    monkeypatch.setattr(f"{WATCH}._LOOK", 0.1)
    monkeypatch.setattr(f"{WATCH}._SILENT", 0.3)
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "2s"}):
        yield


def test_a_rechunking_whose_last_worker_has_died(alone, soon, tmp_path, caplog):
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    old = zd.create_array(tmp_path / "a", shape=(64, 64), dtype="i4", chunks=(1, 64))
    old[...] = values
    with new_worker(alone) as process:
        plan = zd.plan_rechunk(tmp_path / "a", tmp_path / "b", chunks=(8, 8), max_mem="4MB")
        plan = replace(plan, stages=(replace(plan.stages[0], box=(8, 8)),))
        with pytest.raises(WorkerLostError, match=f"({NOBODY}).*with resume=True"):
            plan.run(alone, lambda _: process.kill(), resume=True)
    told = warnings_in(caplog)
    assert any("has had no workers for" in one and "at most 2 s" in one for one in told)
    with new_worker(alone):
        report = plan.run(alone, resume=True)
    assert 0 < report.tasks < plan.tasks == 64
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values)


@pytest.mark.cluster
def test_workers_that_a_local_cluster_gives_up(soon, tmp_path):
    """The cluster of dask ends a worker's nanny if a new worker does not come within 15 s."""
    from distributed import Client, LocalCluster

    x = da.ones((4, 4), chunks=2)
    options = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    lost = {"distributed.deploy.lost-worker-timeout": "50ms"}
    with (
        dask.config.set(lost),
        LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster,
        Client(cluster),
    ):
        (process,) = [nanny.pid for nanny in cluster.workers.values()]

        def kills(block):
            os.kill(process, signal.SIGKILL)
            return block

        with pytest.raises(WorkerLostError, match=NOBODY):
            zd.to_zarr(x.map_blocks(kills, meta=np.empty((0, 0))), tmp_path / "x")
    zd.to_zarr(x, tmp_path / "x")


def test_a_result_that_was_lost_with_a_worker_after_it_came(client, monkeypatch):
    """It is not waited for once more: there may be no worker that would make it again."""
    as_completed = engine._as_completed

    class Losing:
        def __init__(self, *given):
            self._completed = as_completed(*given)

        def __getattr__(self, name):
            return getattr(self._completed, name)

        def __iter__(self):
            for future, result in self._completed:
                future._state.reset()  # as the scheduler's news of the worker do
                yield future, result

    monkeypatch.setattr(engine, "_as_completed", Losing)
    found: list[int] = []
    window = SubmissionWindow(client, 2)
    run_window(abs, iter([-1, 2, -3]), client, window, found.append, "made", {})
    assert sorted(found) == [1, 2, 3]


def test_a_write_whose_only_worker_dies_of_it(alone, soon, tmp_path):
    here = os.getpid()

    def dies(block):
        if os.getpid() != here and not (tmp_path / "safe").exists():
            os._exit(1)
        return block

    x = da.ones((4, 4), chunks=2).map_blocks(dies, meta=np.empty((0, 0)), name="dies")
    with new_worker(alone), pytest.raises(WorkerLostError, match=NOBODY):
        zd.to_zarr(x, tmp_path / "x", resume=True)
    (tmp_path / "safe").touch()
    with new_worker(alone):
        zd.to_zarr(x, tmp_path / "x", resume=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "x")[...], 1)


def test_a_comparison_of_a_dask_array_whose_worker_dies(alone, soon, tmp_path):
    here = os.getpid()

    def dies(block):
        if os.getpid() != here:
            os._exit(1)
        return block

    zd.create_array(tmp_path / "x", shape=(4, 4), dtype="f8", chunks=(2, 2), fill_value=1)
    x = da.ones((4, 4), chunks=2).map_blocks(dies, meta=np.empty((0, 0)), name="dies too")
    with new_worker(alone), pytest.raises(WorkerLostError, match=NOBODY):
        zd.compare(x, tmp_path / "x", client=alone)


@contextmanager
def stopped(process: int):
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def own_pid() -> int:
    GATHERED.keep(("a job",), Batch([b"line"], 1, 0.0))
    return os.getpid()


def test_a_stopped_worker_keeps_no_others_answers_back(client, monkeypatch, caplog):
    pids = ask_workers(client, own_pid, seconds=20)
    assert len(pids) == 2
    first, second = sorted(pids)
    monkeypatch.setattr(engine, "_ANSWER", 1.0)
    monkeypatch.setattr(engine, "_PATIENCE", 1.0)
    with stopped(pids[first]):
        answers = ask_workers(client, os.getpid, seconds=1.0)
        assert answers[second] == pids[second]
        assert isinstance(answers[first], TimeoutError)
        assert engine.take_receipts(SimpleNamespace(batch_key=("a job",)), client) == {second}
        engine._wait_for_workers(client, "zarr-copy")
    lost, busy = warnings_in(caplog)[-2:]
    assert f"written again: {first}" in lost
    assert f"may still run tasks of the failed job: {first}" in busy
    assert len(GATHERED.take(("a job",)).lines) == 1


def test_a_stopped_scheduler(client, monkeypatch, tmp_path):
    monkeypatch.setattr("zarr_dask.jobs.engine.workers._ANSWER", 0.2)

    async def nothing(*_, **__):
        import asyncio

        await asyncio.sleep(60)

    handlers = client.cluster.scheduler.handlers
    identity, handlers["identity"] = handlers["identity"], nothing
    try:
        for ask in (
            lambda: ask_workers(client, os.getpid, seconds=20),
            lambda: zd.to_zarr(da.ones(4, chunks=2), tmp_path / "x"),
        ):
            with pytest.raises(SchedulerError, match="has not answered within 0 s"):
                ask()
    finally:
        handlers["identity"] = identity
