"""Receipts that processes gather before they store them: none is missing at the end of a job."""

from __future__ import annotations

import os
from contextlib import suppress

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.journal import receipts as receipt_batches
from zarr_dask.stores import LocalStore, MemoryStore, Recording
from zarr_dask.stores.wrapper import StoreWrapper

VALUES = np.arange(80 * 6, dtype="i4").reshape(80, 6)


class FailingError(Exception):
    """What a block ends with."""


def without_append(folder):
    """A store that other processes reach and that cannot append, as those of services."""
    return StoreWrapper(LocalStore(str(folder)))


def stored(journal):
    return sum("receipts-" in key for key in journal.list())


def failing(block, block_info=None):
    if block_info[0]["chunk-location"][0] == 79:
        raise FailingError
    return block


@pytest.mark.parametrize("cost", ["none", "5 %"])
def test_receipts_cost_at_most_5_percent_more_requests(monkeypatch, cost):
    monkeypatch.setattr(receipt_batches, "_SHORT", 1000.0 if cost == "none" else 0.0)
    journal = Recording(MemoryStore())
    values = da.from_array(VALUES, chunks=(1, 6))
    with dask.config.set(scheduler="threads", num_workers=2):
        report = zd.to_zarr(values, MemoryStore(), resume=True, journal=journal)
    puts = [one.key for one in journal.requests if one.method == "set" and "receipts" in one.key]
    assert report.objects == 80
    assert len(puts) == (0 if cost == "none" else 4)


@pytest.mark.parametrize(
    "scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_what_was_done_before_a_failure_is_not_done_again(tmp_path, scheduler):
    journal, target = without_append(tmp_path / "j"), tmp_path / "a"
    where = {"resume": "job", "journal": journal}
    values = da.from_array(VALUES, chunks=(1, 6))
    with dask.config.set(scheduler=scheduler, num_workers=1):
        with pytest.raises(FailingError):
            zd.to_zarr(values.map_blocks(failing, dtype="i4"), target, **where)
        done = stored(journal)
        assert 1 <= done <= (1 if scheduler == "threads" else 79)
        report = zd.to_zarr(values, target, **where)
    assert 1 <= report.objects < 80
    assert np.array_equal(zd.open_array(target)[...], VALUES)


@pytest.mark.slow
def test_on_a_cluster(client, tmp_path):
    journal, target = without_append(tmp_path / "j"), tmp_path / "a"
    where = {"resume": "job", "journal": journal}
    values = da.from_array(VALUES, chunks=(1, 6))
    with pytest.raises(FailingError):
        zd.to_zarr(values.map_blocks(failing, dtype="i4"), target, **where)
    report = zd.to_zarr(values, target, **where)
    assert report.objects < 80
    manifest = tmp_path / "m"
    options = {"journal": without_append(tmp_path / "i"), "manifest": manifest, "resume": "with"}
    zd.to_zarr(values, tmp_path / "b", **options)
    assert zd.verify(tmp_path / "b", manifest=manifest).ok
    plan = zd.plan_rechunk(tmp_path / "a", tmp_path / "c", chunks=(80, 1))
    report = plan.run(client, journal=without_append(tmp_path / "k"), resume=True)
    assert report.tasks == sum(stage.tasks for stage in plan.stages)
    assert np.array_equal(zd.open_array(tmp_path / "c")[...], VALUES)


def leave(address, dask_worker):
    if dask_worker.address == address:
        os._exit(1)


@pytest.mark.slow
def test_what_dies_with_a_worker_is_done_again(make_cluster, tmp_path):
    """A worker that dies with receipts of tasks whose results had arrived."""
    from distributed import Client

    zd.create_array(tmp_path / "a", shape=VALUES.shape, dtype="i4", chunks=(1, 6))[...] = VALUES
    plan = zd.plan_rechunk(tmp_path / "a", tmp_path / "c", chunks=(8, 3))
    (stage,) = plan.stages
    tasks = []
    with make_cluster() as cluster, Client(cluster) as client:

        def progress(one):
            tasks.append(one)
            if len(tasks) == stage.tasks:
                address = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
                with suppress(OSError):
                    client.run(leave, address, on_error="ignore")

        report = plan.run(client, progress, journal=without_append(tmp_path / "k"), resume=True)
    assert stage.tasks < report.tasks <= 2 * stage.tasks
    assert np.array_equal(zd.open_array(tmp_path / "c")[...], VALUES)
