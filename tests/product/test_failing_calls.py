"""Every call of the system fails once, or is the last one of its process.

Whatever happens then: what a call has acknowledged is there, nothing half-done is read, the error
has a type of this package, the same call ends the job, and nothing is left behind.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.failing_calls import KILLED, NthCall, fail, kill_after, kill_before
from tests.support.leftovers import left_in
from zarr_dask.errors import IngestError, NodeNotFoundError, StoreError

VALUES = np.arange(1, 97, dtype="i4").reshape(12, 8)
HALF = VALUES[:6]


def small(path: Path, values: np.ndarray, **options) -> None:
    zd.create_array(path, shape=values.shape, dtype="i4", chunks=(3, 8), **options)[...] = values


def write(place: Path) -> None:
    blocks = da.from_array(VALUES, chunks=(6, 8), name="values")
    zd.to_zarr(blocks, place / "a.zarr", resume=True, chunks=(3, 8))


def append(place: Path) -> None:
    more = da.from_array(VALUES[6:], chunks=(6, 8), name="more")
    zd.to_zarr(more, place / "a.zarr", append_dim=0, resume=True)


def rechunk(place: Path) -> None:
    zd.rechunk(place / "source.zarr", place / "a.zarr", chunks=(12, 4), resume=True)


def copy(place: Path) -> None:
    zd.copy(place / "source.zarr", place / "a.zarr", resume=True)


def ingest(place: Path) -> None:
    files = [str(place / f"{number}.nc") for number in (0, 1)]
    zd.ingest(files, place / "a.zarr", concat="y", resume=True, survey=False)


def image(place: Path) -> None:
    blocks = da.from_array(VALUES.astype("u1"), chunks=(6, 8), name="pixels")
    zd.ome.write(blocks, place / "a.zarr", axes="yx", chunks=(3, 8), levels=2, resume=True)


def append_image(place: Path) -> None:
    blocks = da.from_array(VALUES[6:].astype("u1"), chunks=(6, 8), name="pixels")
    zd.ome.append(place / "a.zarr", blocks, "y", resume=True)


def swap(place: Path) -> None:
    zd.to_zarr(da.from_array(VALUES, chunks=(6, 8)), place / "a.zarr", mode="swap", resume=True)


def array_in(place: Path) -> np.ndarray:
    return zd.open_array(place / "a.zarr")[...]


def check_visible(place: Path) -> None:
    """Raise if the group has no document yet, which comes after those of its arrays."""
    if not (place / "a.zarr/zarr.json").exists():
        raise NodeNotFoundError(str(place), [])


def ingested_in(place: Path) -> np.ndarray:
    check_visible(place)
    return zd.open_array(place / "a.zarr/v")[...]


def image_in(place: Path) -> np.ndarray:
    """Pixels; all levels are those of a fresh write."""
    check_visible(place)
    levels = [level.array[...] for level in zd.ome.open(place / "a.zarr").levels]
    fresh: dict[str, bytes] = {}
    zd.ome.write(levels[0], fresh, axes="yx", chunks=(3, 8), levels=2)
    for level, expected in zip(levels, zd.ome.open(fresh).levels, strict=True):
        np.testing.assert_array_equal(level, expected.array[...])
    return levels[0]


def files(place: Path) -> None:
    for number, values in enumerate((HALF, VALUES[6:])):
        xr.Dataset({"v": (("y", "x"), values)}).to_netcdf(place / f"{number}.nc")


def half_image(place: Path) -> None:
    zd.ome.write(HALF.astype("u1"), place / "a.zarr", axes="yx", chunks=(3, 8), levels=2)


def migrate(place: Path) -> None:
    zd.migrate(place / "a.zarr", format="v3")


@dataclass(frozen=True)
class Job:
    run: Callable[[Path], None]
    before: np.ndarray | None = None
    """What is at the target before; None if nothing is."""
    source: bool = False
    format: int = 3
    make: Callable[[Path], None] | None = None
    """Makes what is there before, if that is more than an array."""
    found: Callable[[Path], np.ndarray] = array_in

    def prepare(self, place: Path) -> None:
        place.mkdir()
        if self.source:
            small(place / "source.zarr", VALUES)
        if self.make is not None:
            self.make(place)
        elif self.before is not None:
            small(place / "a.zarr", self.before, format=self.format)

    def check_nothing_half_done(self, place: Path) -> None:
        try:
            found = self.found(place)
        except NodeNotFoundError:
            assert self.before is None
            return
        old = self.before if self.before is not None else VALUES
        assert np.array_equal(found, VALUES) or np.array_equal(found, old)

    def check_values(self, place: Path) -> None:
        np.testing.assert_array_equal(self.found(place), VALUES)

    def check_done(self, place: Path) -> None:
        self.check_values(place)
        assert left_in(place) - {"0.nc", "1.nc", "source.zarr"} == {"a.zarr"}
        assert not list(place.rglob("*.lock"))


JOBS = {
    "write": Job(write),
    "append": Job(append, HALF),
    "rechunk": Job(rechunk, source=True),
    "copy": Job(copy, source=True),
    "migrate": Job(migrate, VALUES, format=2),
    "swap": Job(swap, HALF),
    "ingest": Job(ingest, make=files, found=ingested_in),
    "image": Job(image, found=image_in),
    "append_image": Job(append_image, HALF, make=half_image, found=image_in),
}


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
