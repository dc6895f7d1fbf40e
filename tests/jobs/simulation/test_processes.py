"""Output of a simulation from real processes: killed, restarted, and read while it grows."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.paths import ROOT
from tests.support.ranks import SHAPE, field, simulate


def create(url, decomposition, steps=4, **options):
    blocks = tuple(n // ranks for n, ranks in zip(SHAPE, decomposition, strict=True))
    spec = {"shape": SHAPE, "dtype": "f4"}
    arrays = {
        "u": {**spec, "chunks": (steps, *blocks)},
        "v": {**spec, "chunks": (1, *blocks), "shards": (steps, *blocks)},
        "time": {"shape": (), "dtype": "f8"},
    }
    owners = zd.decompose(SHAPE, decomposition)
    return zd.Writer.create(url, {**arrays, **options}, owners=owners)


def start(url, steps, *modes, **options):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.ranks", url, str(steps), *modes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    )


def check_prefix(group, steps):
    """All values of all arrays, as far as they are visible."""
    expected = np.array([field(step) for step in range(steps)]).reshape(-1, *SHAPE)
    np.testing.assert_array_equal(group["u"][...], expected)
    np.testing.assert_array_equal(group["v"][...], -expected)
    np.testing.assert_array_equal(group["time"][...], np.arange(steps) / 4)


def watch(url, script):
    """Read everything, by two readers in turn, for as long as a script runs; what was seen."""
    seen = [0]
    while script.poll() is None:
        for group in (zd.open_group(url), zarr.open_group(url, mode="r", use_consolidated=True)):
            length = group["u"].shape[0]
            assert length == group["v"].shape[0] == group["time"].shape[0]
            assert length >= seen[-1]
            check_prefix(group, length)
            if length > seen[-1]:
                seen.append(length)
    return seen


def ended(script):
    _, errors = script.communicate(timeout=50)
    assert script.returncode == 0, errors


@pytest.mark.parametrize("ranks", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_processes_put_and_readers_always_see_a_whole_prefix(tmp_path, ranks):
    url = str(tmp_path / "run.zarr")
    coordinator = create(url, (8, ranks // 8))
    assert coordinator.ranks == ranks
    script = start(url, 8, "publish")
    seen = watch(url, script)
    ended(script)
    assert all(length % 4 == 0 for length in seen)
    assert coordinator.visible == 8
    check_prefix(zd.open(url), 8)
    assert len(list((tmp_path / "run.zarr/u/c").rglob("[0-9]*"))) == 2 + 2 * 8 + 2 * ranks
    assert not list(tmp_path.rglob("*.tmp"))


def test_readers_see_whole_steps_while_objects_get_more_of_them(tmp_path):
    """Of objects that are flushed with every step, and replaced with one more."""
    url = str(tmp_path / "run.zarr")
    coordinator = create(url, (2, 2), 8)
    script = start(url, 24, "publish", "flush")
    watch(url, script)
    ended(script)
    assert coordinator.visible == 24
    check_prefix(zd.open(url), 24)


def killed_at_random(tmp_path, seed, ranks, steps):
    url = str(tmp_path / "run.zarr")
    coordinator = create(url, ranks)
    script = start(url, steps, "publish", f"mortal={seed}")
    watch(url, script)
    said, errors = script.communicate(timeout=50)
    assert script.returncode == 0, errors
    assert sorted(said.split()) == sorted(3 * [str(rank) for rank in range(coordinator.ranks)])
    assert coordinator.visible == steps
    check_prefix(zd.open(url), steps)


def test_ranks_killed_at_random_moments_go_on(tmp_path):
    killed_at_random(tmp_path, 7, (2, 2), 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_many_ranks_killed_at_random_moments_go_on(tmp_path, seed):
    killed_at_random(tmp_path, seed, (4, 2), 60)


@pytest.mark.slow
def test_a_thousand_ranks_in_one_process(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip(f"at most {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    url = str(tmp_path / "run.zarr")
    shape = (100, 40)
    spec = {"shape": shape, "dtype": "i4", "chunks": (2, 4, 1)}
    coordinator = zd.Writer.create(url, {"u": spec}, owners=zd.decompose(shape, (25, 40)))
    values = 1 + np.arange(4000, dtype="i4").reshape(shape)
    writers = [zd.Writer.attach(url, rank) for rank in range(1000)]
    for step in range(3):
        for writer in writers:
            writer.write_step(step, {"u": values[writer.region("u")] + 4000 * step})
    with pytest.raises(zd.errors.StepsMissingError) as caught:
        coordinator.publish(2, flush=True)
    assert [rank for rank, _, _ in caught.value.missing] == list(range(1000))
    assert "and 990 more" in str(caught.value)
    assert coordinator.publish() == 2
    for writer in writers:
        writer.close()
    assert coordinator.publish(flush=True) == 3
    expected = values + 4000 * np.arange(3).reshape(3, 1, 1)
    np.testing.assert_array_equal(zd.open(url)["u"][...], expected)


# --- stored objects larger than blocks ------------------------------------------------------------


def shared_output(url):
    """Shards of nearly four ranks, whose borders fit no rank."""
    spec = {"shape": SHAPE, "dtype": "f4"}
    arrays = {
        "u": {**spec, "chunks": (2, 8, 8), "shards": (2, 24, 24)},
        "v": {**spec, "chunks": (3, 30, 30)},
        "time": {"shape": (), "dtype": "f8"},
    }
    return zd.Writer.create(url, arrays, owners=zd.decompose(SHAPE, (3, 2)), gather=True)


def test_owners_gather_what_their_neighbours_have(tmp_path):
    url = str(tmp_path / "run.zarr")
    coordinator = shared_output(url)
    script = start(url, 7, "gather")
    ended(script)
    assert coordinator.publish() == 6
    assert coordinator.publish(flush=True) == 7
    check_prefix(zd.open(url), 7)
    ended(start(url, 12, "gather"))
    assert coordinator.publish() == 12
    check_prefix(zd.open(url), 12)


def test_a_job_that_shares_objects_is_killed_and_goes_on(tmp_path):
    """All of it at once, as MPI does; what some ranks have stored already is put once more."""
    url = str(tmp_path / "run.zarr")
    coordinator = shared_output(url)
    choose = random.Random(3)
    stored = [0]
    for _ in range(2):
        script = start(url, 36, "gather", start_new_session=True)
        for _ in range(coordinator.ranks):
            script.stdout.readline()
        end = choose.randrange(stored[-1], stored[-1] + 12)
        while coordinator.stored() < end:  # then somewhere in the next steps
            assert script.poll() is None
        os.killpg(script.pid, signal.SIGKILL)
        script.communicate(timeout=50)  # until no process has its end of the pipe any more
        stored.append(coordinator.stored())
        assert stored[-1] >= end
        visible = coordinator.publish()
        check_prefix(zd.open(url), visible)
    ended(start(url, 36, "gather"))
    assert coordinator.publish() == 36
    check_prefix(zd.open(url), 36)


def test_ranks_that_share_objects_need_a_communicator(tmp_path):
    url = str(tmp_path / "run.zarr")
    shared_output(url)
    with pytest.raises(zd.errors.RankError, match="gather="):
        zd.Writer.attach(url, 0)


# --- ranks that are tasks of dask -----------------------------------------------------------------


@pytest.mark.cluster
def test_ranks_may_be_futures_of_dask(client, tmp_path):
    url = str(tmp_path / "run.zarr")
    coordinator = create(url, (2, 2))
    for steps in (3, 8):
        futures = [client.submit(simulate, url, rank, steps, pure=False) for rank in range(4)]
        client.gather(futures)
    assert coordinator.publish(7) == 8
    check_prefix(zd.open(url), 8)
