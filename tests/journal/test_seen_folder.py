"""Region writes that are stopped while another job replaces their array: they put nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import ROOT
from tests.support.running import running
from zarr_dask.errors import JobReplacedError


def values(number: int) -> da.Array:
    return da.full((8, 6), float(number), chunks=(1, 6))


def replace(root: Path) -> None:
    zd.to_zarr(values(2), root, "a", mode="w")


def swap(root: Path) -> None:
    zd.to_zarr(values(2), root, "a", mode="swap")


def delete_and_write(root: Path) -> None:
    zd.delete(root, "a")
    zd.to_zarr(values(2), root, "a")


def rename_and_write(root: Path) -> None:
    zd.open_group(root, mode="r+").rename("a", "b")
    zd.to_zarr(values(2), root, "a")


LATER = [replace, swap, delete_and_write, rename_and_write]


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("later", LATER)
def test_a_region_write_that_was_stopped_puts_nothing(
    tmp_path: Path, later: Callable[[Path], None], format: str
) -> None:
    root = tmp_path / "run.zarr"
    zd.to_zarr(values(0), root, "a", format=format)
    write = {"region": np.s_[:], "mode": "r+"}
    with running(lambda stopped: zd.to_zarr(values(1), root, "a", progress=stopped, **write)) as (
        raised
    ):
        later(root)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    assert set(np.unique(zd.open_array(root, "a")[...])) == {2.0}


def test_other_attributes_are_no_other_array(tmp_path: Path) -> None:
    root = tmp_path / "run.zarr"
    zd.to_zarr(values(0), root, "a")
    with running(
        lambda stopped: zd.to_zarr(values(1), root, "a", mode="r+", progress=stopped)
    ) as raised:
        zd.open_array(root, "a", mode="r+").attrs["n"] = 1
    assert not raised
    assert set(np.unique(zd.open_array(root, "a")[...])) == {1.0}
    assert zd.open_array(root, "a").attrs["n"] == 1


def test_no_folder_stays_open(tmp_path: Path) -> None:
    root = tmp_path / "run.zarr"
    zd.to_zarr(values(0), root)
    for compute in (True, False):
        before = [*Path("/proc/self/fd").iterdir()]
        written = zd.to_zarr(values(1), root, mode="r+", compute=compute)
        if not compute:
            written.compute(scheduler="sync")
        assert len([*Path("/proc/self/fd").iterdir()]) == len(before)


WRITE = """
import sys
import dask, dask.array as da, zarr_dask as zd

def wait(block, block_info):
    if block_info[None]["chunk-location"] == (4, 0):
        print("ready", flush=True)
        sys.stdin.readline()
    return block

dask.config.set(scheduler="sync")
x = da.ones((8, 6), chunks=(1, 6)).map_blocks(wait, dtype="f8", meta=da.ones(1).compute())
zd.to_zarr(x, sys.argv[1], "a", mode="r+")
"""


def test_a_process_that_is_stopped_and_woken_ends_with_an_error(tmp_path: Path) -> None:
    root = tmp_path / "run.zarr"
    zd.to_zarr(values(0), root, "a")
    job = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGSTOP)
        replace(root)
        job.send_signal(signal.SIGCONT)
        _, said = job.communicate("go on\n", timeout=50)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 1
    assert "JobReplacedError" in said
    assert set(np.unique(zd.open_array(root, "a")[...])) == {2.0}
