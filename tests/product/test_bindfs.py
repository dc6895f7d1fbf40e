"""Two parties at one folder: one through a FUSE mount with locks of its own, one behind it.

Skipped where bindfs is not installed (with CI=true that fails), or must not mount.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support import fuse
from tests.support.fuse import mounted
from tests.support.hanging_write import HANGING
from tests.support.histories.model import explained
from tests.support.histories.run import WEIGHTS, operations, workers
from tests.support.leftovers import left_in
from tests.support.scripts import Script
from zarr_dask.errors import JobRunningError, NodeNotFoundError, RankError

KEPT = {
    "fresh": "attr_timeout=0,entry_timeout=0",
    "cached": "attr_timeout=60,entry_timeout=60,ac_attr_timeout=60",
}
"""How long the kernel believes what the mount has said of sizes and names, in seconds."""
FOUND = (70002, 70004, 70035, 70047, 71044, 71064)
"""Seeds of histories that had no order, at times, before what they found was mended."""


@pytest.fixture(params=KEPT)
def folders(request, tmp_path) -> Iterator[tuple[Path, Path]]:
    """A folder, and a mount that shows it."""
    behind, mount = tmp_path / "behind", tmp_path / "mount"
    behind.mkdir()
    mount.mkdir()
    with mounted(behind, mount, KEPT[request.param]):
        yield behind, mount


def test_what_no_package_can_mend_is_told_apart(monkeypatch, tmp_path):
    monkeypatch.setattr(fuse, "DEVICE", tmp_path / "fuse")
    assert fuse.reason_against_mounts() == f"the machine has no {tmp_path / 'fuse'}"
    (tmp_path / "fuse").mkdir()
    assert "cannot be opened: Is a directory" in fuse.reason_against_mounts()


ROWS = """
import sys, dask, dask.array as da, zarr_dask as zd
array = zd.open_array(sys.argv[1] + "/a", mode="r+")
print("ready", flush=True)
sys.stdin.readline()
dask.config.set(scheduler="synchronous")
for row in range(int(sys.argv[2]), 48, 2):
    values = da.full((1, 64), row + 1, dtype="i4")
    zd.to_zarr(values, array, region=(slice(row, row + 1), slice(None)), partial="compare")
"""


@pytest.mark.timeout(300)
def test_rows_of_common_chunks_are_not_lost(folders):
    behind, _ = folders
    zd.create_array(behind / "a", shape=(48, 64), dtype="i4", chunks=(24, 64))
    both = [Script(ROWS, place, first) for first, place in enumerate(folders)]
    for one in both:
        assert one.stdout.readline() == "ready\n"
    for one in both:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in both:
        assert one.wait() == 0
        one.close()
    assert zd.open_array(behind / "a")[:, 0].tolist() == list(range(1, 49))
    assert left_in(behind) == {"a"}


WRITE = f"""{HANGING}
try:
    zd.to_zarr(x, sys.argv[1] + "/a", mode="w")
except zd.errors.JobReplacedError:
    print("replaced", flush=True)
"""


@pytest.mark.parametrize("first", [0, 1], ids=["behind", "mount"])
def test_a_job_that_wakes_after_one_of_the_other_party_puts_nothing(folders, first):
    mine, other = folders[first], folders[1 - first]
    later = da.zeros((8,), chunks=2, dtype="i4") + 2
    with Script(WRITE, mine) as job:
        assert job.stdout.readline() == "here\n"
        os.kill(job.pid, signal.SIGSTOP)
        with pytest.raises(JobRunningError, match=f"process {job.pid} on"):
            zd.to_zarr(later, other / "a", mode="w")
        (record,) = folders[0].glob("a.zarr-dask/*/held-*")
        record.unlink()  # by hand, as if it were dead
        zd.to_zarr(later, other / "a", mode="w")
        os.kill(job.pid, signal.SIGCONT)
        job.stdin.write("go\n")
        job.stdin.flush()
        assert job.stdout.read() == "replaced\n"
    for place in folders:
        np.testing.assert_array_equal(zd.open_array(place / "a")[...], 2)
    assert left_in(folders[0]) == {"a"}


ATTACH = """
import sys, zarr_dask as zd
with zd.Writer.attach(sys.argv[1] + "/run", rank=0) as writer:
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("first", [0, 1], ids=["behind", "mount"])
def test_one_process_is_a_rank(folders, first):
    arrays = {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 2)}}
    zd.Writer.create(folders[0] / "run", arrays, owners=zd.decompose((4,), (2,)))
    with Script(ATTACH, folders[first]) as rank:
        assert rank.stdout.readline() == "here\n"
        with pytest.raises(RankError, match=f"process {rank.pid} on"):
            zd.Writer.attach(folders[1 - first] / "run", rank=0)


REPLACE = """
import sys, zarr_dask as zd
array = zd.open_array(sys.argv[1] + "/a", mode="r+")
print("ready", flush=True)
for value in range(3000):
    array[...] = value + 1
"""


def test_what_is_being_replaced_is_not_missing(folders):
    _, mount = folders
    zd.create_array(mount / "a", shape=(4,), dtype="i4", chunks=(4,))[...] = 1
    array = zd.open_array(mount / "a")
    with Script(REPLACE, mount) as writer:
        assert writer.stdout.readline() == "ready\n"
        found = [int(array[0]) for _ in range(3000)]
        assert writer.wait() == 0
    assert found.count(0) == 0


def test_values_that_are_being_read_can_be_replaced_and_deleted(folders):
    """FUSE keeps a removed file that is open under a hidden name, as NFS does."""
    behind, mount = folders
    first = zd.create_array(mount / "a", data=np.arange(8), chunks=2)
    with first.store.open_value("c/1"):
        zd.to_zarr(da.full(8, 7, chunks=2), mount / "a", mode="w")
        assert list(zd.open(mount / "a").store.list("c/")) == [f"c/{n}" for n in range(4)]
        assert zd.verify(mount / "a", deep="decode").ok
    with zd.open(mount / "a").store.open_value("c/2"):
        zd.delete(mount / "a")
    left = {one.name for one in (behind / "a").rglob("*") if one.is_file()}
    assert not [name for name in left if not name.startswith(".fuse_hidden")]  # until it knows
    with pytest.raises(NodeNotFoundError):
        zd.open(mount / "a")


@pytest.mark.slow
@pytest.mark.timeout(550)
def test_histories_of_both_parties_have_an_order(folders):
    alone: list[list] = [[], []]
    with workers() as running:
        for seed in (*FOUND, *range(14)):
            random = Random(seed)
            roots = [f"{one}/h{seed}.zarr" for one in (*folders, random.choice(folders))]
            zd.create_group(roots[0])
            events = running.run(roots, {}, [[("create", "a", (999,))], *alone])
            events += running.run(roots, {}, operations(random, 5, list(WEIGHTS)))
            events += running.run(roots, {}, [[("read", path, ()) for path in "ab"], *alone])
            found = sorted(events, key=lambda one: one.began)
            assert explained(found), (seed, *found)
