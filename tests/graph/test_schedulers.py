"""Lazy arrays under every scheduler of dask, on workers, and in processes that were forked."""

import os
import pickle
import subprocess
import sys

import dask
import numpy as np
import pytest

import zarr_dask as zd

VALUES = np.arange(120 * 90, dtype="i4").reshape(120, 90)


@pytest.fixture
def array(tmp_path):
    made = zd.create_array(
        tmp_path / "a.zarr", shape=(120, 90), dtype="i4", chunks=10, shards=(40, 30)
    )
    made[...] = VALUES
    return made


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_local_schedulers(array, scheduler):
    x = zd.from_zarr(array)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        np.testing.assert_array_equal((x[::-2, 7:50] + 1).compute(), VALUES[::-2, 7:50] + 1)


def test_workers_read(array, client):
    x = zd.from_zarr(array)
    np.testing.assert_array_equal(x.compute(), VALUES)
    np.testing.assert_array_equal(x[5].compute(), VALUES[5])
    part = client.persist(x[:40])
    assert part.sum().compute() == VALUES[:40].sum()


def test_one_block_of_a_million_is_two_tasks_on_a_cluster(client, tmp_path):
    array = zd.create_array(tmp_path, shape=(10**5, 10**5), dtype="f4", chunks=100, fill_value=7)
    x = zd.from_zarr(array)
    block = x[100:200, 300:400]
    assert len(pickle.dumps(block.__dask_graph__())) < 6000
    assert block.compute().mean() == 7
    made = [event for _, event in client.get_events("scheduler") if "metrics" in event]
    assert made[-1]["metrics"]["tasks"] == 2  # the read, and dask's name for the slice of it


def test_workers_know_one_array_by_one_meaning(array, client):
    """Every task brings the array; a worker unpacks what its document said once."""

    def misses():
        from zarr_dask.formats.parse_cache import unpack

        return unpack.cache_info().misses

    before = client.run(misses)
    zd.from_zarr(array).sum().compute()
    zd.from_zarr(array).max().compute()
    after = client.run(misses)
    assert all(after[worker] - before[worker] <= 1 for worker in after)


FORK = """
import os, sys
import numpy as np
import zarr_dask as zd

array = zd.open_array(sys.argv[1], mode="r+")
expected = np.arange(120 * 90).reshape(120, 90)
assert (array.read(threads=2) == expected).all()  # the pool of this process has threads now
lazy = zd.from_zarr(array)
child = os.fork()
if child == 0:
    status = 1
    try:
        assert (array.read(threads=2) == expected).all()
        assert (lazy[3:50].compute(scheduler="threads") == expected[3:50]).all()  # of the child
        array.write((slice(0, 40), slice(0, 30)), expected[:40, :30] * 2)
        status = 0
    finally:
        os._exit(status)
_, ended = os.waitpid(child, 0)
assert ended == 0, ended
assert (array[:40, :30] == expected[:40, :30] * 2).all()
"""

POOL = """
import multiprocessing, sys
import numpy as np
import zarr_dask as zd

array = zd.open_array(sys.argv[1])
expected = np.arange(120 * 90).reshape(120, 90)
assert (array.read(threads=2) == expected).all()

def total(row):
    return int(array[row].sum()) + int(zd.from_zarr(array)[row].sum().compute())

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(total, range(20)) == [2 * int(expected[row].sum()) for row in range(20)]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("script", [FORK, POOL], ids=["os.fork", "multiprocessing"])
def test_after_a_fork(array, script):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, array.store.root],
        capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
