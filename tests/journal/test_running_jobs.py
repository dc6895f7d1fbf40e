"""Who may begin anew where a job has not ended: nobody while its process lives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import open_below
from tests.support.running import Stopped, running
from tests.support.scripts import Script
from zarr_dask.errors import JobRunningError, NodeNotFoundError, ResumeError
from zarr_dask.journal.lock import turns_folder
from zarr_dask.stores.compare_and_swap import RECORD_OF_FOLDER
from zarr_dask.stores.process_identity import Owner

VALUES = np.arange(1, 49, dtype="f8").reshape(8, 6)


def blocks() -> da.Array:
    return da.from_array(VALUES, chunks=(2, 6), name=False)


def write(path: Path, **options: Any) -> Callable[[Stopped], object]:
    return lambda stopped: zd.to_zarr(blocks(), path, chunks=(2, 6), progress=stopped, **options)


def rechunk(path: Path) -> Callable[[Stopped], object]:
    source = zd.create_array({}, shape=VALUES.shape, dtype="f8", chunks=(8, 1))
    source[...] = VALUES
    return lambda stopped: zd.rechunk(
        source, path, chunks=(2, 6), max_mem="50MB", resume=True, progress=stopped
    )


def write_image(path: Path, stopped: Stopped | None = None, **options: Any) -> None:
    zd.ome.write(
        blocks(),
        path,
        axes="yx",
        scale=(1, 1),
        chunks=(2, 6),
        levels=1,
        progress=stopped,
        **options,
    )


JOBS = {"write": write, "rechunk": rechunk}
OTHERS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: zd.to_zarr(blocks() + 1, path, chunks=(2, 6)),
    "overwrite": lambda path: zd.to_zarr(blocks() + 1, path, chunks=(2, 6), overwrite=True),
    "swap": lambda path: zd.to_zarr(blocks() + 1, path, chunks=(2, 6), mode="swap"),
    "create": lambda path: zd.create_array(path, shape=3, dtype="i4"),
    "replace": lambda path: zd.create_array(path, shape=3, dtype="i4", overwrite=True),
    "group": lambda path: zd.create_group(path.parent, overwrite=True),
    "rechunk": lambda path: zd.rechunk(
        zd.create_array({}, shape=(8, 6), dtype="f8", chunks=1), path, chunks=2, max_mem="50MB"
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("kind", JOBS)
def test_nobody_begins_anew_while_a_job_runs(kind: str, other: str, tmp_path: Path) -> None:
    zd.create_group(tmp_path / "g.zarr")
    path = tmp_path / "g.zarr" / "x"
    with running(JOBS[kind](path)) as raised:
        with pytest.raises(JobRunningError, match="still running") as found:
            OTHERS[other](path)
        assert str(tmp_path / "g.zarr.zarr-dask") in str(found.value)
    assert not raised
    np.testing.assert_array_equal(zd.open_array(path)[...], VALUES)
    assert not open_below(tmp_path / "g.zarr.zarr-dask")


def test_a_running_image_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "image.zarr"
    with running(lambda stopped: write_image(path, stopped)) as raised:
        with pytest.raises(JobRunningError):
            write_image(path, overwrite=True)
        with pytest.raises(JobRunningError):
            write_image(path)
    assert not raised
    np.testing.assert_array_equal(zd.open_array(path, "0")[...], VALUES)


def test_a_job_beside_it_may_begin(tmp_path: Path) -> None:
    zd.create_group(tmp_path / "g.zarr")
    with running(write(tmp_path / "g.zarr" / "x")) as raised:
        zd.to_zarr(blocks() + 1, tmp_path / "g.zarr" / "y")
    assert not raised
    np.testing.assert_array_equal(zd.open_array(tmp_path / "g.zarr", "y")[...], VALUES + 1)


def test_the_same_job_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    with ThreadPoolExecutor(1) as pool:
        with running(write(path, resume="run")) as raised:
            second = pool.submit(zd.to_zarr, blocks(), path, chunks=(2, 6), resume="run")
        assert not raised
        assert second.result().already_done
    np.testing.assert_array_equal(zd.open_array(path)[...], VALUES)


def test_a_sweep_takes_folders_away_in_which_killed_jobs_had_their_turn(tmp_path: Path) -> None:
    """One that is at work, and what has another name, stays."""
    zd.create_group(tmp_path / "g.zarr")
    job = write(tmp_path / "g.zarr" / "x", resume=True)
    dead = Path(turns_folder(str(tmp_path), "of a killed job"))
    dead.mkdir()
    gone = replace(Owner.here(locked=True), pid=1 << 30, began="0")
    (dead / RECORD_OF_FOLDER).write_bytes(gone.to_json())
    other = tmp_path / ".zarr-dask-of-another.lock"
    other.mkdir()
    elsewhere = Path(turns_folder(str(tmp_path), "of another host"))
    elsewhere.mkdir()
    at_work = replace(Owner.here(locked=False), host="other", kernel="other", machine="other")
    (elsewhere / RECORD_OF_FOLDER).write_bytes(at_work.to_json())
    with running(job):
        before = {path.name for path in tmp_path.glob(".zarr-dask-*.lock")}
        zd.verify(tmp_path / "g.zarr", sweep=True)
        after = {path.name for path in tmp_path.glob(".zarr-dask-*.lock")}
    assert len(before) == 4
    assert before - after == {dead.name}
    assert other.name in after
    assert elsewhere.name in after


def test_verify_says_that_a_job_runs(tmp_path: Path) -> None:
    zd.create_group(tmp_path / "g.zarr")
    with running(write(tmp_path / "g.zarr" / "x")):
        (finding,) = [f for f in zd.verify(tmp_path / "g.zarr").findings if f.kind == "journal"]
    assert finding.reason.endswith("has not ended: it is running")


def test_a_job_that_failed_is_in_nobodys_way(tmp_path: Path) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError(block.shape)

    path = tmp_path / "x.zarr"
    broken = blocks().map_blocks(fail, dtype="f8", meta=np.empty((0, 0)))
    with pytest.raises(ZeroDivisionError):
        zd.to_zarr(broken, path, chunks=(2, 6))
    zd.to_zarr(blocks(), path, chunks=(2, 6))
    np.testing.assert_array_equal(zd.open_array(path)[...], VALUES)


KILLED = """
import sys, threading
import dask.array as da, numpy as np, zarr_dask as zd

def stop(step):
    print("begun", flush=True)
    threading.Event().wait()

x = da.from_array(np.zeros((8, 6)), chunks=(2, 6), name=False)
zd.to_zarr(x, sys.argv[1], chunks=(2, 6), progress=stop)
"""


def test_a_job_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    with Script(KILLED, path) as process:
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(JobRunningError):
            zd.to_zarr(blocks(), path, chunks=(2, 6))
        process.kill()
    zd.to_zarr(blocks(), path, chunks=(2, 6))
    np.testing.assert_array_equal(zd.open_array(path)[...], VALUES)


@pytest.mark.parametrize("again", [False, True], ids=["removed", "written anew"])
def test_what_was_removed_meanwhile_is_not_shown(again: bool, tmp_path: Path) -> None:
    """Other programs know no journals; what a job has written before may be gone."""
    path = tmp_path / "x.zarr"
    with running(write(path)) as raised:
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "x.zarr.zarr-dask")
        if again:
            zd.create_array(path, shape=3, dtype="i4")
    (error,) = raised
    assert isinstance(error, ResumeError)
    assert "was removed, or written anew by another job" in str(error)
    if again:
        assert zd.open_array(path).shape == (3,)
    else:
        with pytest.raises(NodeNotFoundError):
            zd.open_array(path)
