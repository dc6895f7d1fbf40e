"""Processes that write datasets, and are killed at it; forked from one that has imported all."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from random import Random

import dask
import dask.array as da
import numpy as np
import xarray as xr
from distributed import Client

import zarr_dask as zd
from zarr_dask.errors import ZarrDaskError
from zarr_dask.jobs.write import commit, target
from zarr_dask.journal import journal

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "zarr_dask.xarray.write", "zarr_dask.graph.tokens"])

AT = 2, 3  # lat, lon
PATIENCE = 60.0


def steps(first, last, size=2, value=None):
    """Days of temperatures that say which day it is, with their coordinates."""
    days = np.arange(first, last)
    t = da.from_array(np.multiply.outer(days, np.ones(AT)).astype("f4"), chunks=(size, *AT))
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), t if value is None else t * 0 + value, {"units": "K"}),
            "n": (("time",), days.astype("i2")),
        },
        coords={
            "time": np.datetime64("2000-01-01", "ns") + days * np.timedelta64(1, "D"),
            "lat": [10.0, 20.0],
            "lon": [1, 2, 3],
        },
        attrs={"title": "days"},
    )


def dying(block, at, block_info=None):
    if block_info[None]["chunk-location"][0] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def deadly(ds, at):
    """The same dataset, one block of which kills the process that computes it."""
    t = ds["t"].data.map_blocks(dying, at, dtype="f4", meta=np.empty((0, 0, 0), "f4"))
    return ds.assign(t=(ds["t"].dims, t, ds["t"].attrs))


def write(
    place,
    first,
    last,
    dies_at=None,
    shows=None,
    shown=False,
    ends=None,
    drops=(),
    options=None,
    scheduler="synchronous",
    swaps=False,
):
    """Write days; die at a block, after metadata of arrays or of the group, or some journals.

    The scheduler is dask's own, or at an address. The days take the place of others (`swaps`).
    """
    ds = steps(first, last).drop_vars(drops)
    if dies_at is not None:
        ds = deadly(ds, dies_at)
    if shows is not None:
        target.ArrayTarget.show = mortal(target.ArrayTarget.show, shows)
    if shown:
        commit.GroupCommit.consolidate = mortal(commit.GroupCommit.consolidate, 0)
    if ends is not None:
        journal.Journal.remove = mortal(journal.Journal.remove, ends)
    is_cluster = "://" in scheduler
    with Client(scheduler) if is_cluster else dask.config.set(scheduler=scheduler):
        if swaps:
            swap(ds, place)
        else:
            zd.write_dataset(ds, place, **(options or {}))


def swap(ds, place):
    """Put the temperatures in the place of those that are there, in one step."""
    stored = zd.open_array(f"{place}/t")
    names = "chunks", "codecs", "fill_value", "dimension_names", "attributes"
    layout = {name: getattr(stored, name) for name in names}
    zd.to_zarr(ds["t"].data, f"{place}/t", mode="swap", resume=True, **layout)


def mortal(show, after):
    count = 0

    def counted(one, **options):
        nonlocal count
        if count == after:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        show(one, **options)

    return counted


def begin_changes(*args):
    job = PROCESSES.Process(target=_change, args=args)
    job.start()
    return job


def _change(place, count, seed, swaps, options):
    """Replace a dataset of days by others, or append to it, as often as it is not refused."""
    random = Random(seed)
    for number in range(count):
        first, days = random.randrange(50), random.randint(1, 9)
        with suppress(ZarrDaskError), dask.config.set(scheduler="threads"):
            if random.random() < swaps:
                ds = steps(first, first + days).assign_attrs(
                    title=f"{seed} {number} {first} {days}"
                )
                resume = random.random() < 0.5
                zd.write_dataset(ds, place, mode="swap", resume=resume, **options)
                continue
            last = int(zd.open_dataset(place, **options)["n"][-1]) + 1
            more = steps(last, last + days).drop_attrs(deep=False)
            zd.write_dataset(more, place, append="time", **options)


def start(*args, **options):
    job = PROCESSES.Process(target=write, args=args, kwargs=options)
    job.start()
    return job


def killed(*args, **options):
    """Write in a process that kills itself."""
    job = start(*args, **options)
    job.join(PATIENCE)
    assert job.exitcode == -signal.SIGKILL


def together(jobs):
    """Run writes of days in a process each, begun at once; return the name of each one's error."""
    barrier, errors = PROCESSES.Barrier(len(jobs)), PROCESSES.SimpleQueue()
    running = [
        PROCESSES.Process(target=attempt, args=(barrier, errors, number, *job))
        for number, job in enumerate(jobs)
    ]
    for one in running:
        one.start()
    found = dict(errors.get() for _ in running)
    for one in running:
        one.join(PATIENCE)
    return [found[number] for number in range(len(jobs))]


def attempt(barrier, errors, number, place, first, last, drops, options):
    barrier.wait(PATIENCE)
    try:
        write(place, first, last, drops=drops, options=options)
    except zd.errors.ZarrDaskError as error:
        errors.put((number, type(error).__name__))
    except BaseException:
        errors.put((number, "another error"))
        raise
    else:
        errors.put((number, None))
