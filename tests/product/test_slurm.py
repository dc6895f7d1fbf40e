"""Plans on a real Slurm of several virtual nodes, as the printed script submits them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import zarr_dask as zd
from tests.support.slurm import slurm_cluster
from zarr_dask.cli import main

VALUES = np.arange(64 * 512, dtype="f4").reshape(64, 512)


@pytest.fixture(scope="module")
def slurm():
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def plan(tmp_path) -> Path:
    folder = tmp_path / "it's $HOME, of course"
    folder.mkdir()
    zd.create_array(folder / "a.zarr", shape=VALUES.shape, dtype="f4", chunks=(64, 16))[...] = (
        VALUES
    )
    file = folder / "plan.json"
    words = ["plan", f"{folder}/a.zarr", f"{folder}/b.zarr", "--chunks=64,4", "-o", str(file)]
    words += ["--max-mem", str((1 << 20) + 100_000), "--threads", "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return file


def script_of(plan: Path, *options: str) -> str:
    words = ["script", str(plan), "--slurm", "--mem", "400", *options]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.output


def submit(slurm, script: str) -> None:
    subprocess.run(["sh", "-c", script], env=slurm.environment, check=True, timeout=60)


def check(plan: Path) -> None:
    np.testing.assert_array_equal(zd.open_array(plan.parent / "b.zarr")[...], VALUES)
    names = {one.name for one in plan.parent.iterdir()}
    assert names == {"a.zarr", "b.zarr", "plan.json", "plan.json.logs"}


def test_a_script_runs_as_printed(slurm, plan):
    """More parts than an array may have are several arrays."""
    script = script_of(plan, "--parts", "3", "--array-limit", "2", "--partition", "main")
    submit(slurm, script)
    states = slurm.wait("COMPLETED")
    assert [*sorted(one.partition("/")[2] for one in states)][:1] == ["zarr-finish"]
    assert len(states) == 4
    check(plan)
    submit(slurm, script)  # once more: everything is done already
    slurm.wait("COMPLETED")
    check(plan)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_parts_that_are_killed_are_done_again(slurm, plan, tmp_path):
    """Two processes by SIGKILL, the last one too, one by SIGTERM; Slurm requeues another."""
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\nif test "${{SLURM_RESTART_COUNT:-0}}" = 0 && test "$4" != finish; then\n'
        f'  case "$SLURM_ARRAY_TASK_ID" in 1 | 4) kill -KILL $$ ;; 2) kill -TERM $$ ;;\n'
        f'  3) sleep 100 ;; esac\nfi\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    before = {*slurm.states()}
    submit(slurm, script_of(plan, "--parts", "4", "--python", str(wrapper)))
    third = _when(lambda: _running(slurm, before, "_3/"))
    slurm("scontrol", "requeue", third.partition("/")[0])
    slurm.wait("COMPLETED")
    check(plan)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cancelled_part_is_done_by_the_same_script(slurm, plan, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f"#!/bin/sh\ntest -e '{tmp_path}/go' || {{ sleep 100 & wait; }}\n"
        f'exec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    before = {*slurm.states()}
    script = script_of(plan, "--parts", "2", "--python", str(wrapper))
    submit(slurm, script)
    first = _when(lambda: _running(slurm, before, "_1/"))
    second = _when(lambda: _running(slurm, before, "_2/"))
    slurm("scancel", first.partition("/")[0])
    _when(lambda: slurm.states()[first] == "CANCELLED")
    (tmp_path / "go").touch()
    slurm("scancel", second.partition("/")[0])
    states = slurm.wait("COMPLETED", "CANCELLED")
    new = {one: state for one, state in states.items() if one not in before}
    assert new == dict.fromkeys(new, "CANCELLED")
    submit(slurm, script)
    slurm.wait("COMPLETED", "CANCELLED")
    check(plan)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_part_that_runs_out_of_time_is_done_again(slurm, plan, tmp_path):
    """Slurm looks at limits twice a minute."""
    wrapper = tmp_path / "python"
    wrapper.write_text(
        '#!/bin/sh\nif test "${SLURM_RESTART_COUNT:-0}" = 0; then\n'
        '  trap "" TERM; sleep 300 & wait\nfi\n'
        f'exec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    submit(slurm, script_of(plan, "--parts", "1", "--time", "1", "--python", str(wrapper)))
    slurm.wait("COMPLETED", "CANCELLED", seconds=280)
    check(plan)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_of_dask_jobqueue_that_adapts(slurm, tmp_path, monkeypatch):
    jobqueue = pytest.importorskip("dask_jobqueue")
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of the jobs
    options = {"cores": 1, "processes": 1, "memory": "600MB", "walltime": "00:10:00"}
    options |= {"interface": "lo", "python": sys.executable, "log_directory": str(tmp_path)}
    quiet = {"dashboard_address": "127.0.0.1:0"}
    with jobqueue.SLURMCluster(scheduler_options=quiet, **options) as cluster:
        cluster.adapt(minimum=1, maximum=3)
        with Client(cluster) as client:
            client.wait_for_workers(1, timeout=120)
            zd.to_zarr(da.from_array(VALUES, chunks=(16, 128)), tmp_path / "a.zarr")
            zd.rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=(64, 4))
    for name in ("a.zarr", "b.zarr"):
        np.testing.assert_array_equal(zd.open_array(tmp_path / name)[...], VALUES)


def _running(slurm, before: set[str], part: str) -> str | None:
    states = slurm.states().items()
    found = [
        one for one, state in states if one not in before and state == "RUNNING" and part in one
    ]
    return found[0] if found else None


def _when(holds, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found
