"""The writes by which others lose values, many times over, with writers made to overlap.

The cases are those of the public reports: shards or chunks that dask's blocks do not cover, an
existing sharded array whose shards exceed dask's chunk size, adjacent regions in one computation,
several processes, and the source itself as the target. Few runs are made every time, as many as are
promised (200 on threads, 20 on a process cluster) with ``make test-all``. In each run two writers
are held right before they store their objects until both are there.
"""

from __future__ import annotations

import threading
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import zarr_dask as zd
from tests.support.two_writers import PairsOfProcesses
from zarr_dask.errors import PartialWriteError, SourceIsTargetError
from zarr_dask.stores import HookStore, LocalStore

PATIENCE = 20.0
SHAPE = (40, 40)
VALUES = np.arange(1, 1601).reshape(SHAPE)
THREADS = {"scheduler": "threads", "num_workers": 2}


def numbers(blocks=5) -> da.Array:
    """Every value another one."""
    return da.arange(1, 1601, chunks=-1).reshape(SHAPE).rechunk(blocks)


class FirstTwo:
    """Holds the first writer of this process until there is a second one."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=PATIENCE)
        self.left = 2
        self.lock = threading.Lock()

    def __call__(self, method: str, key: str) -> None:
        if method not in {"set", "set_if"} or key.endswith(".json"):
            return
        with self.lock:
            self.left -= 1
            held = self.left >= 0
        if held:
            self.barrier.wait()


# --- the cases ---------------------------------------------------------------------------------


def with_shards(store):
    zd.to_zarr(numbers(), store, shards=(20, 20))
    return zd.open_array(store)


def with_misaligned_chunks(store):
    zd.to_zarr(numbers(), store, chunks=(8, 8))
    return zd.open_array(store)


def into_shards_larger_than_blocks_may_be(store):
    target = zd.create_array(store, shape=SHAPE, dtype="i8", chunks=(5, 5), shards=(20, 20))
    with dask.config.set({"array.chunk-size": "1 kiB"}):
        zd.to_zarr(numbers(), target)
    return target


def adjacent_regions(store):
    """Two regions that meet in a row of shards, in one computation."""
    target = zd.create_array(store, shape=SHAPE, dtype="i8", chunks=(5, 5), shards=(20, 20))
    rows = [np.s_[0:10], np.s_[10:30], np.s_[30:40]]
    dask.compute(
        *[
            zd.to_zarr(numbers()[r], target, region=r, partial="compare", compute=False)
            for r in rows
        ]
    )
    return target


def several_arrays(store):
    x = numbers()
    zd.to_zarr([x, x * 2], store, ["a", "b"], shards=(20, 20), chunks=(10, 10))
    np.testing.assert_array_equal(zd.open_array(store, "b").read(threads=1), VALUES * 2)
    return zd.open_array(store, "a")


def appended(store):
    """Blocks that meet neither each other's objects nor the old end."""
    zd.to_zarr(numbers()[:13], store, chunks=(5, 5), shards=(10, 20))
    zd.to_zarr(numbers()[13:], store, append=0)
    return zd.open_array(store)


CASES = {
    case.__name__: case
    for case in (
        with_shards,
        with_misaligned_chunks,
        into_shards_larger_than_blocks_may_be,
        adjacent_regions,
        several_arrays,
        appended,
    )
}


def assert_nothing_lost(array: zd.Array) -> None:
    found = array.read(threads=1)
    assert np.count_nonzero(found != VALUES) == 0


def run_on_threads(place: Path, case: str, runs: int) -> None:
    with dask.config.set(**THREADS):
        for run in range(runs):
            hold = FirstTwo()
            array = CASES[case](HookStore(LocalStore(str(place / str(run))), hold))
            assert hold.left <= 0, "no two writers have met"
            assert_nothing_lost(array)


@pytest.mark.conformance("C136")
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_on_threads(tmp_path, case):
    run_on_threads(tmp_path, case, 4)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_in_200_runs_on_threads(tmp_path, case):
    run_on_threads(tmp_path, case, 200)


@pytest.fixture(scope="module")
def processes(make_cluster):
    with Client(make_cluster(threads_per_worker=2)) as client:
        yield client


def run_on_processes(place: Path, case: str, runs: int) -> None:
    for run in range(runs):
        meeting = place / f"meeting{run}"
        meeting.mkdir()
        hold = PairsOfProcesses(str(meeting), 1)
        array = CASES[case](HookStore(LocalStore(str(place / str(run))), hold))
        # shared objects are put on a condition: there nobody is held, and many meet
        assert len(hold.met) == (0 if case == "adjacent_regions" else 1)
        assert_nothing_lost(array)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_on_processes(tmp_path, processes, case):
    run_on_processes(tmp_path, case, 1)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_in_20_runs_on_processes(tmp_path, processes, case):
    run_on_processes(tmp_path, case, 20)


# --- what is refused ---------------------------------------------------------------------------


def test_adjacent_regions_are_refused_if_nobody_says_how_to_share(tmp_path):
    target = zd.create_array(tmp_path, shape=SHAPE, dtype="i8", chunks=(5, 5), shards=(20, 20))
    with pytest.raises(PartialWriteError):
        zd.to_zarr(numbers()[0:10], target, region=np.s_[0:10], compute=False)
    with pytest.raises(PartialWriteError, match="two writers"):
        zd.to_zarr(
            [numbers()[0:10], numbers()[10:20]],
            [target, target],
            region=[np.s_[0:10], np.s_[10:20]],
            partial="own",
        )


def overwrite(place: Path, runs: int) -> None:
    """The source is the target: refused, or written beside and swapped."""
    zd.to_zarr(numbers(), place, chunks=(8, 8), shards=(16, 24))
    for run in range(1, runs + 1):
        x = zd.from_zarr(place) + 1
        with pytest.raises(SourceIsTargetError):
            zd.to_zarr(x, place, mode="w")
        zd.to_zarr(x, place, mode="swap", chunks=(5, 5) if run % 2 else (8, 8))
        found = zd.open_array(place).read(threads=1)
        assert np.count_nonzero(found != VALUES + run) == 0


def test_the_source_is_never_lost(tmp_path):
    with dask.config.set(**THREADS):
        overwrite(tmp_path / "a", 4)


@pytest.mark.slow
def test_the_source_is_never_lost_in_200_runs(tmp_path):
    with dask.config.set(**THREADS):
        overwrite(tmp_path / "a", 200)


@pytest.mark.slow
def test_the_source_is_never_lost_in_20_runs_on_processes(tmp_path, processes):
    overwrite(tmp_path / "a", 20)
