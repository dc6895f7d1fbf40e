"""Jobs whose processes are killed at random moments, and which are then resumed.

After it the array equals its source; no reader has seen a torn object at any moment; and what had
a receipt before the kill was not computed again. Set ``ZARR_DASK_KILL_SEED`` to repeat a round.
"""

from __future__ import annotations

import os
import random
import time
from multiprocessing.connection import wait

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from distributed import wait as wait_for

import zarr_dask as zd
from tests.support.kill_roles import (
    BLOCK,
    BLOCKS,
    PATIENCE,
    PROCESSES,
    SHAPE,
    WORK,
    Cluster,
    Folder,
    expected,
    kill,
    run_client,
    run_reader,
    run_worker,
    start,
    until,
)
from zarr_dask.errors import NodeNotFoundError
from zarr_dask.journal import default_place, open_journals
from zarr_dask.journal.receipts import collect
from zarr_dask.stores import LocalStore

TASKS = BLOCKS[0] * BLOCKS[1]
VICTIMS = ["the client", "the scheduler", "both workers", "a worker"]


def receipted(folder: Folder) -> set[str]:
    """Keys with receipts in the open journal of the target, if there is one."""
    found = open_journals(default_place(LocalStore(folder.target), ""))
    return {
        key for journal, _ in found for key in collect(journal.receipts(), journal.run_id).objects
    }


def play(folder: Folder, victim: str, seed: int) -> None:
    """One round: write, kill, look, resume, compare."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    after = draw.randrange(TASKS - 4)
    zd.create_array(f"{folder.root}/source", shape=SHAPE, dtype="f8", chunks=BLOCK)[:] = expected()
    stop, whole = PROCESSES.Event(), PROCESSES.Value("i", 0)
    reader = start(run_reader, folder, folder.plan().target, stop, whole)
    cluster = Cluster(folder, "first")
    client = start(run_client, cluster.address, folder)
    try:
        assert until(lambda: len(receipted(folder)) >= after, client) or client.exitcode == 0
        wait([client.sentinel], timeout=draw.random() * WORK)
        cluster, client = kill_and_resume(folder, victim, cluster, client, draw)
        client.join(PATIENCE)
        assert client.exitcode == 0
        until(lambda: whole.value == TASKS, reader)
    finally:
        stop.set()
        reader.join(PATIENCE)
        kill(client)
        cluster.kill()
    assert reader.exitcode == 0
    np.testing.assert_array_equal(zd.open_array(folder.target)[...], expected())
    assert open_journals(default_place(LocalStore(folder.target), "")) == []


def kill_and_resume(folder: Folder, victim: str, cluster: Cluster, client, draw: random.Random):
    """Kill, and start again what the victim's death has ended."""
    if victim == "a worker":
        kill(cluster.workers[draw.randrange(2)])
        return cluster, client  # the other one does the rest, what was lost with it included
    processes = {
        "the client": [client],
        "the scheduler": [cluster.scheduler],
        "both workers": cluster.workers,
    }
    for process in processes[victim]:
        kill(process)
    kill(client)
    if victim != "the client":
        cluster.kill()
        cluster = Cluster(folder, "second")
    done = receipted(folder)  # tasks of the dead client may still be running, and add to them
    begun = time.monotonic()
    # a client may die between the end of all tasks and that of its journal: all is there then
    if len(done) < TASKS and open_journals(default_place(LocalStore(folder.target), "")):
        with pytest.raises(NodeNotFoundError, match=f"of {TASKS} stored objects have valid"):
            zd.open(folder.target)
    again = start(run_client, cluster.address, folder)
    again.join(PATIENCE)
    twice = {key for when, key in folder.computed() if when > begun} & done
    assert not twice, f"computed again although there were receipts: {sorted(twice)}"
    return cluster, again


@pytest.mark.cluster
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_jobs_are_resumed(tmp_path, victim):
    seed = int(os.environ.get("ZARR_DASK_KILL_SEED", "0")) or random.randrange(1, 2**32)
    play(Folder(str(tmp_path)), victim, seed)


@pytest.mark.cluster
def test_an_append_whose_result_is_lost_is_made_visible_once(tmp_path):
    """All workers die after the end, with the result, and others do it all over again."""
    folder = Folder(str(tmp_path))
    target = folder.target
    zd.create_array(target, shape=(3, 4), dtype="f8", chunks=2)[:] = -1
    cluster = Cluster(folder, "first")
    try:
        with Client(cluster.address) as client:
            future = client.compute(zd.to_zarr(da.ones((4, 4)), target, append=0, compute=False))
            assert wait_for([future]).done == {future}
            assert zd.open_array(target).shape == (7, 4)
            for worker in cluster.workers:
                kill(worker)
            cluster.workers.append(start(run_worker, cluster.address, str(tmp_path / "another")))
            assert future.result(PATIENCE).objects == 6
    finally:
        cluster.kill()
    found = zd.open_array(target)[...]
    np.testing.assert_array_equal(found, np.concatenate([np.full((3, 4), -1), np.ones((4, 4))]))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("number", range(25))
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_jobs_are_resumed_100_times(tmp_path, victim, number):
    play(Folder(str(tmp_path)), victim, random.randrange(1, 2**32))
