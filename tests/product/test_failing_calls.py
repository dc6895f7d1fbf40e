"""Every call of the system fails once, or is the last one of its process.

Whatever happens then: what a call has acknowledged is there, nothing half-done is read, the error
has a type of this package, the same call ends the job, and nothing is left behind.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.failing_calls import KILLED, NthCall, fail, kill_after, kill_before
from tests.support.small_jobs import HALF, JOBS, VALUES, Job, small, write
from zarr_dask.errors import IngestError, NodeNotFoundError, StoreError, WriterNotFoundError
from zarr_dask.stores import file_lock
from zarr_dask.stores.compare_and_swap import RECORD_OF_FOLDER


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def calls_of(job: Job, folder: Path) -> int:
    """Count the calls that a job makes."""
    job.prepare(folder)
    with NthCall(0, fail(errno.EIO)) as calls:
        job.run(folder)
    job.check_done(folder)
    return calls.count


def fails_once(job: Job, place: Path, number: int, error: int) -> None:
    job.prepare(place)
    told = None
    with NthCall(number, fail(error)):
        try:
            job.run(place)
        except (StoreError, IngestError) as raised:
            told = raised
    if told is None:  # what could not be tidied up stays until the next job
        job.check_values(place)
        return
    job.check_nothing_half_done(place)
    job.run(place)
    job.check_done(place)


def sample(calls: int, cases: int) -> range:
    return range(1, calls + 1, max(calls // cases, 1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", JOBS)
def test_every_call_that_fails(tmp_path, name, error):
    job = JOBS[name]
    for number in range(1, calls_of(job, tmp_path / "0") + 1):
        fails_once(job, tmp_path / str(number), number, error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", JOBS)
def test_some_calls_that_fail(tmp_path, name):
    job = JOBS[name]
    for number in sample(calls_of(job, tmp_path / "0"), 5):
        fails_once(job, tmp_path / str(number), number, errno.ENOSPC)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.parametrize("name", ["append", "swap"])
def test_records_that_cannot_be_removed_fail_no_call(
    tmp_path, monkeypatch, caplog, name, has_locks
):
    """A call that has done its work, and fails, is made again: an append has its values twice."""
    job, unlink = JOBS[name], os.unlink
    job.prepare(tmp_path / "0")

    def fail_at_records(path, **options):
        if str(path).endswith(RECORD_OF_FOLDER):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **options)

    monkeypatch.setattr(file_lock, "has_shared_locks", lambda _: has_locks)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", fail_at_records)
        job.run(tmp_path / "0")
    assert "could not be removed: Input/output error" in caplog.text
    job.check_values(tmp_path / "0")
    small(tmp_path / "0" / "a.zarr", VALUES, overwrite=True)


@pytest.mark.filterwarnings("ignore")
def test_a_delete_that_fails_leaves_nothing_locked(tmp_path):
    """The process goes on: what it holds would stand in the way of every later call."""
    for number in count(1):
        path = tmp_path / f"{number}.zarr"
        small(path, HALF)
        with NthCall(number, fail(errno.EIO)) as calls, suppress(StoreError):
            zd.delete(path)
        if path.exists():
            with suppress(NodeNotFoundError):
                zd.delete(path)
        small(path, VALUES, overwrite=True)
        if not calls.name:
            return


def simulate(url: Path) -> None:
    """Two ranks write what is missing of three steps, one after the other."""
    if not url.exists():
        owners = zd.decompose(HALF.shape, (2, 1))
        zd.Writer.create(
            url, {"u": {"shape": HALF.shape, "dtype": "i4", "chunks": (1, 3, 8)}}, owners=owners
        )
    for rank in (0, 1):
        with zd.Writer.attach(url, rank=rank) as writer:
            for step in range(writer.next_step, 3):
                writer.write_step(step, {"u": HALF[3 * rank : 3 * rank + 3] + step})
    with zd.Writer.attach(url) as writer:
        writer.finish()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 60])
def test_calls_of_a_simulation_that_fail(tmp_path, step):
    """The ranks go on; an output that could not be made is made anew."""
    for number in count(1, step):
        url = tmp_path / f"{number}.zarr"
        with NthCall(number, fail(errno.ENOSPC)) as calls, suppress(StoreError):
            simulate(url)
        try:
            simulate(url)
        except WriterNotFoundError:
            shutil.rmtree(url)
            simulate(url)
        steps = zd.open_array(url, "u")[...]
        np.testing.assert_array_equal(steps, [HALF + step for step in range(3)])
        if not calls.name:
            return


def _killed(job: Job, place: Path, number: int, act) -> None:
    with dask.config.set(scheduler="sync"), NthCall(number, act):
        job.run(place)


def is_killed_once(job: Job, place: Path, number: int, act) -> None:
    job.prepare(place)
    process = get_context("fork").Process(target=_killed, args=(job, place, number, act))
    process.start()
    process.join()
    assert process.exitcode in {0, KILLED}
    job.check_nothing_half_done(place)
    job.run(place)
    if job.run is write:  # receipts of a job that had ended already stay until the next job
        job.check_values(place)
    else:
        job.check_done(place)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("act", [kill_before, kill_after])
@pytest.mark.parametrize("name", ["write", "rechunk", "copy", "migrate"])
def test_a_process_killed_at_every_call(tmp_path, name, act):
    job = JOBS[name]
    for number in range(1, calls_of(job, tmp_path / "0") + 1):
        is_killed_once(job, tmp_path / str(number), number, act)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["rechunk", "write"])
def test_a_process_killed_at_some_calls(tmp_path, name):
    job = JOBS[name]
    for number in sample(calls_of(job, tmp_path / "0"), 6):
        is_killed_once(job, tmp_path / str(number), number, kill_before)


def _killed_removal(root: Path, path: str, number: int, act) -> None:
    with NthCall(number, act):
        zd.delete(root, path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("path", ["g", ""])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 25])
def test_a_removal_of_a_group_is_ended_by_the_same_call(tmp_path, step, path, format):
    """Its document goes first, so that the nodes below it have lost their group."""
    for number in count(step, step):
        root = tmp_path / f"{number}" / "h.zarr"
        options = {"dtype": "i4", "chunks": 3, "format": format}
        for name, values in (("a", VALUES), ("g/b", HALF), ("g/h/c", VALUES)):
            zd.create_array(root, name, shape=values.shape, **options)[...] = values
        process = get_context("fork").Process(
            target=_killed_removal, args=(root, path, number, kill_after)
        )
        process.start()
        process.join()
        for name, values in (("g/b", HALF), ("g/h/c", VALUES)):
            with suppress(NodeNotFoundError):
                np.testing.assert_array_equal(zd.open_array(root, name)[...], values)
        with suppress(NodeNotFoundError):
            zd.delete(root, path)
        left = [one.relative_to(root) for one in root.rglob("*")]
        if path:
            assert list(zd.open_group(root)) == ["a"]
            assert not any(one.parts[0] == path for one in left)
        else:
            assert not left
        beside = root.parent.rglob(f"{root.name}.zarr-dask/**/*")
        assert not any(one.is_file() for one in beside)
        if process.exitcode == 0:
            return
