"""Rechunkings whose worker or client is killed at a random moment.

After it the array equals its source, and no more was done twice than was in flight at the kill:
begun, or ended by a killed worker with a result that had not reached the client.
Set ``ZARR_DASK_KILL_SEED`` to repeat a round.
"""

from __future__ import annotations

import os
import random
import time
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.kill_roles import (
    PATIENCE,
    SLABS,
    WORK,
    Cluster,
    RechunkFolder,
    kill,
    run_rechunk,
    start,
    until,
)
from zarr_dask.journal import default_place, open_journals
from zarr_dask.stores import LocalStore

VICTIMS = ["a worker", "the client"]
THREADS = 2
"""Of both workers: tasks that run at a time."""


def play(folder: RechunkFolder, victim: str, seed: int) -> None:
    """One round: copy, kill, go on, compare."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    source = zd.create_array(
        f"{folder.root}/source", shape=SLABS, dtype="f8", chunks=(1, *SLABS[1:])
    )
    source[...] = folder.values()
    plan = folder.plan()
    total = sum(stage.costs.writes for stage in plan.stages)
    after = draw.randrange(1, total)
    cluster = Cluster(folder, "first")
    client = start(run_rechunk, cluster.address, folder)
    try:
        assert until(lambda: len(folder.computed()) >= after, client) or client.exitcode == 0
        wait([client.sentinel], timeout=draw.random() * WORK)
        if victim == "a worker":
            kill(cluster.workers[draw.randrange(2)])  # the other one does the rest
        else:
            kill(client)
            client = start(run_rechunk, cluster.address, folder)
        killed = time.monotonic()
        client.join(PATIENCE)
        assert client.exitcode == 0
    finally:
        kill(client)
        cluster.kill()
    np.testing.assert_array_equal(zd.open_array(folder.target)[...], folder.values())
    assert open_journals(default_place(LocalStore(folder.target), "")) == []
    assert list(Path(folder.root, "between").rglob("c/*")) == []
    each = max(-(-stage.costs.writes // stage.tasks) for stage in plan.stages)
    times = written(folder)
    twice = {key: found for key, found in times.items() if len(found) > 1}
    # what a client has left that was killed is told by receipts, which are there at once
    bound = THREADS * each if victim == "the client" else unknown(folder, times, killed)
    assert len(twice) <= bound, f"{twice}, {bound} in flight at {killed}, of {plan}"
    assert max(map(len, times.values())) <= 2


def written(folder: RechunkFolder) -> dict[str, list[float]]:
    """When each stored object was written, whichever array it is of."""
    found: dict[str, list[float]] = {}
    for line in Path(folder.log).read_text().splitlines():
        when, key = line.split()
        # the document is written once more by whoever goes on with a job that has just ended
        if not key.endswith("zarr.json"):
            found.setdefault(key, []).append(float(when))
    return found


def unknown(folder: RechunkFolder, times: dict[str, list[float]], when: float) -> int:
    """How many stored objects had been written of which the client had no result."""
    begun = sum(first <= when for first, *_ in times.values())
    path = Path(folder.known)
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    stages = folder.plan().stages
    known = [stages[int(stage)] for reached, stage in lines if float(reached) <= when]
    return begun - sum(stage.costs.writes // stage.tasks for stage in known)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("victim", "staged"),
    [("a worker", True), ("the client", False)],
    ids=["a worker-in stages", "the client-directly"],
)
def test_killed_rechunkings_go_on(tmp_path, victim, staged):
    seed = int(os.environ.get("ZARR_DASK_KILL_SEED", "0")) or random.randrange(1, 2**32)
    play(RechunkFolder(str(tmp_path), staged), victim, seed)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("number", range(13))
@pytest.mark.parametrize("staged", [False, True], ids=["directly", "in stages"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_rechunkings_go_on_52_times(tmp_path, victim, staged, number):
    folder = RechunkFolder(str(tmp_path), staged)
    play(folder, victim, random.randrange(1, 2**32))
