import subprocess
import sys

import pytest

import zarr_dask as zd

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
