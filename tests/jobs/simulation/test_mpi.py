"""Ranks that are processes of MPI, of each MPI that there is: failures, deaths, restarts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.mpi import KINDS, run_python
from tests.support.ranks import SHAPE, field

PROGRAM = ("-m", "tests.support.mpi_ranks")


def create(url, decomposition, *, gather):
    """With `gather`, shards whose borders fit no rank; else blocks of the ranks."""
    blocks = tuple(n // ranks for n, ranks in zip(SHAPE, decomposition, strict=True))
    spec = {"shape": SHAPE, "dtype": "f4"}
    arrays = {
        "u": {**spec, "chunks": (2, 8, 8), "shards": (2, 24, 24)}
        if gather
        else {**spec, "chunks": (2, *blocks)},
        "v": {**spec, "chunks": (3, 30, 30) if gather else (1, *blocks)},
        "time": {"shape": (), "dtype": "f8"},
    }
    return zd.Writer.create(url, arrays, owners=zd.decompose(SHAPE, decomposition), gather=gather)


def check_prefix(url, steps):
    expected = np.array([field(step) for step in range(steps)]).reshape(-1, *SHAPE)
    group = zd.open_group(url)
    np.testing.assert_array_equal(group["u"][...], expected)
    np.testing.assert_array_equal(group["v"][...], -expected)
    np.testing.assert_array_equal(group["time"][...], np.arange(steps) / 4)


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "run.zarr")


def test_an_exception_in_one_rank_ends_all_and_they_go_on(url):
    """Without ``python -m mpi4py``, which would abort them all."""
    coordinator = create(url, (2, 2), gather=True)
    status, said = run_python("mpich", 4, *PROGRAM, url, 12, "gather", "raise=3.7")
    assert status != 0
    assert said.count("ValueError: no convergence\n") == 1, said
    assert said.count("RankError: rank 3 has failed (before its step 7: ValueError: no con") == 3
    assert coordinator.publish() == 6
    status, said = run_python("mpich", 4, *PROGRAM, url, 12, "gather")
    assert status == 0, said
    assert coordinator.publish() == 12
    check_prefix(url, 12)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gather", [False, True], ids=["whole", "gather"])
@pytest.mark.parametrize(
    ("ranks", "ends"),
    [((4, 2), ("kill=3.3", "kill=0.7", "raise=7.20")), ((8, 4), ("kill=3.3",))],
    ids=["8", "32"],
)
def test_ranks_are_killed_anywhere_and_readers_see_whole_steps(url, kind, gather, ranks, ends):
    """The launcher ends the other ranks; the same command goes on, or a checkpoint is restarted."""
    coordinator = create(url, ranks, gather=gather)
    count = ranks[0] * ranks[1]
    modes = ["gather"] if gather else []
    over = threading.Event()

    def follow():
        looks = 0
        while not over.wait(0.2):
            coordinator.publish()
            check_prefix(url, zd.open_group(url)["u"].shape[0])
            looks += 1
        return looks

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(follow)
        try:
            for end in ends:
                status, said = run_python(kind, count, *PROGRAM, url, 24, end, *modes, timeout=90)
                # without gather, the rank may have been ahead of one that was killed before it
                assert status or (end != ends[0] and not gather), said
                assert not end.startswith("raise") or not status or "no convergence" in said
            checkpoint = coordinator.stored() // 6 * 6
            restart = [f"from={checkpoint}", "run=second", *modes]
            status, said = run_python(kind, count, *PROGRAM, url, 24, *restart, timeout=90)
            assert status == 0, said
        finally:
            over.set()
        assert reader.result()
    assert coordinator.publish(flush=True) == 24
    check_prefix(url, 24)
    assert coordinator.finish() == 24
    status, said = run_python(kind, count, *PROGRAM, url, 24, *modes, timeout=90)
    assert status == 0, said  # a batch system starts a job again after its end
    assert {one.kind for one in zd.verify(url, deep="decode").findings} <= {"temporary"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_runs_with_mpi(tmp_path, kind):
    status, said = run_python(kind, 4, "examples/parallel_ranks.py", tmp_path, "mpi")
    assert status == 0, said
    assert "shards of (8, 256, 512), every value right: True" in said
