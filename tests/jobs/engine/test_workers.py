"""Workers of jobs: the scheduler that dask is configured to use, and scripts without a guard."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import dask
import pytest
from dask.base import get_scheduler

import zarr_dask as zd
from zarr_dask.jobs.engine.workers import begin_imports, configured_scheduler

SCRIPT = """
import os
from multiprocessing import get_context

import dask.array as da
import zarr_dask as zd

if __name__ != "__main__":  # the process that is started below, which imports this script
    print("sum", zd.from_zarr("a.zarr").sum().compute(), flush=True)
zd.to_zarr(da.full(6, os.getpid(), chunks=3), "a.zarr", mode="w")
print("written by", os.getpid(), flush=True)
process = get_context("spawn").Process(target=print)
process.start()
process.join()
print("exit", process.exitcode)
"""


@pytest.mark.timeout(200)  # two interpreters, on a machine that others use
def test_a_script_without_guard_writes_once(tmp_path):
    """Where the script is imported by a process that it has started, it can read, not write."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    writer = int(done.stdout.splitlines()[0].removeprefix("written by "))
    assert done.stdout.splitlines()[1:] == [f"sum {6 * writer}", "exit 1"]
    assert "WorkerSetupError: a job begins while a new process imports" in done.stderr
    assert str(script) in done.stderr
    assert list(zd.open_array(str(tmp_path / "a.zarr"))[:]) == [writer] * 6


@pytest.mark.parametrize("name", [None, "threads", "Sync", "processes"])
@pytest.mark.parametrize("loaded", [True, False])
def test_the_scheduler_is_what_dask_says(monkeypatch, name, loaded):
    if not loaded:
        monkeypatch.delitem(sys.modules, "distributed", raising=False)
    with dask.config.set(scheduler=name):
        found = configured_scheduler()
        assert loaded or "distributed" not in sys.modules
        assert found is get_scheduler()


def test_a_function_or_pool_is_a_scheduler():
    def get(*_):
        return None

    with dask.config.set(scheduler=get):
        assert configured_scheduler() is get
    with ThreadPoolExecutor(1) as pool, dask.config.set(scheduler=pool):
        assert callable(configured_scheduler())
    with dask.config.set(scheduler="nothing"), pytest.raises(ValueError, match="Expected one of"):
        configured_scheduler()


def has_loaded(name: str) -> bool:
    return name in sys.modules


def test_workers_import_while_the_client_goes_on():
    """Modules that do not exist are no matter: the tasks that need them say so."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.Client(**options) as client:
        assert not any(client.run(has_loaded, "plistlib").values())
        begin_imports(client, ["no_such_module", "plistlib"])
        deadline = monotonic() + 60
        while not all(client.run(has_loaded, "plistlib").values()):
            assert monotonic() < deadline
    with pytest.raises(TypeError, match=r"expected a distributed\.Client"):
        begin_imports("tcp://127.0.0.1:1", [])


CODE = """
import sys
import numpy as np
import zarr_dask as zd
zd.create_array({path!r}, shape=(4,), dtype="u1", chunks=2)[...] = np.arange(4)
zd.rechunk({path!r}, {path!r} + "2", chunks=(4,))
assert list(zd.open_array({path!r} + "2")[...]) == [0, 1, 2, 3]
print("distributed" in sys.modules)
"""


def test_a_job_on_threads_does_not_load_distributed(tmp_path):
    code = CODE.format(path=str(tmp_path / "a.zarr"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
