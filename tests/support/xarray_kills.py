"""Writers of datasets that are killed, and what readers see meanwhile."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import dask
import numpy as np
import xarray as xr
from distributed import Client

import zarr_dask as zd
from tests.support.xarray_roles import PATIENCE, start, steps, swap

__all__ = ["LAST", "is_half_way", "read", "survives_kills"]

FIRST, LAST = 5, 105
GIVEN = {
    "create": {"resume": True},
    "append": {"resume": True, "append": "time"},
    "region": {"region": "auto"},
    "swap": {},
    "replace": {"resume": True, "mode": "w"},
    "swap all": {"resume": True, "mode": "swap"},
}


def read(place, options=None, consolidated=True):
    """The dataset as a reader sees it; None for nothing, or lengths that differ.

    The client of a bucket keeps no listings: of a dataset that was gone, it would for ever say so.
    """
    options = None if options is None else {**options, "use_listings_cache": False}
    try:
        return xr.open_zarr(place, consolidated=consolidated, storage_options=options).load()
    except (FileNotFoundError, KeyError, ValueError):
        return None


def is_half_way(found, old, new):
    """True if each stored object of a region is as it was, or as it will be."""
    same = found.drop_vars(["t", "n"]).identical(new.drop_vars(["t", "n"]))
    steps_of = zip(found["t"], old["t"], new["t"], strict=True)
    return same and all(one.equals(was) or one.equals(will) for one, was, will in steps_of)


def survives_kills(root, what, count, *, options=None, last=LAST, cluster=None, seed=0):
    """Kill processes that write days, at random moments of the time that such a write takes.

    With a cluster, which runs their tasks, every second time one of its workers is killed as well.
    """
    for name in ("first", "whole"):  # the first one may import much
        begun = time.monotonic()
        job = _begin(f"{root}-{name}", what, options, last, cluster)[0]
        job.join(PATIENCE)
        assert job.exitcode == 0
        took = time.monotonic() - begun
    for number, moment in enumerate(np.random.default_rng(seed).uniform(0, took, size=count)):
        _survives_a_kill(f"{root}-{number}", what, moment, options, last, cluster, number % 2)


def _begin(place, what, options, last, cluster):
    """Begin to write days 5 to the last; return the process, and the dataset before and after."""
    before = {"create": None, "append": steps(0, FIRST)}.get(what, steps(FIRST, last, value=-1))
    after = steps(0 if what == "append" else FIRST, last).load()
    if before is not None:
        zd.write_dataset(before, place, storage_options=options)
        before = before.load()
    if what == "swap":
        after["n"] = before["n"]
    given = {**GIVEN[what], "storage_options": options}
    scheduler = "threads" if cluster is None else cluster.address
    job = start(
        place, FIRST, last, drops=_drops(what), options=given, scheduler=scheduler,
        swaps=what == "swap",
    )  # fmt: skip
    return job, before, after


def _drops(what):
    return ["lat", "lon"] if what == "region" else []


def _survives_a_kill(place, what, moment, options, last, cluster, takes_worker):
    """Kill a process that writes days, and write them again.

    A reader who polls sees the dataset as it was, or as it is in the end; of regions, and while an
    array is being exchanged, each stored object. A dataset of a bucket that is replaced is gone for
    a while; a reader of zarr-python that has opened it before may see fill values then, since it
    takes absent objects for such, but not if it opens the dataset again.
    """
    job, before, after = _begin(place, what, options, last, cluster)
    ends, is_new = time.monotonic() + moment, False
    while time.monotonic() < ends:
        is_new = _look(place, what, options, before, after, is_new)
        job.join(0.05)
    if cluster is not None and takes_worker:
        cluster.replace_worker()
    else:
        job.kill()
    job.join(PATIENCE)
    is_told = cluster is not None and takes_worker
    assert job.exitcode in ({0} if is_told else {0, -signal.SIGKILL})  # it may just have ended
    _look(place, what, options, before, after, is_new)
    # the same call also ends a job that died when all was visible, and answers one that has ended
    with dask.config.set(scheduler="threads") if cluster is None else Client(cluster.address):
        if what == "swap":
            swap(steps(FIRST, last), place)
        else:
            given = {**GIVEN[what], "storage_options": options}
            zd.write_dataset(steps(FIRST, last).drop_vars(_drops(what)), place, **given)
    for consolidated in (True, False):
        assert read(place, options, consolidated).identical(after)
    assert after["time"].to_index().is_unique
    assert zd.verify(place, storage_options=options).ok
    if what == "swap all" and options is None:
        assert not list(Path(place).parent.glob(f".{Path(place).name}.*"))
        assert not list(Path(f"{place}.zarr-dask").rglob("held"))


def _look(place, what, options, before, after, was_new):
    """Look at the dataset; return True if it is what it is in the end, and remains so."""
    for consolidated in (True, False):
        if what == "swap all" and options is not None and not consolidated:
            continue  # documents of variables are put one after the other
        found = read(place, options, consolidated)
        if what == "region":
            assert is_half_way(found, before, after)
            continue
        if what == "swap":  # zarr-python lists the folder of the array that was exchanged
            found = found.drop_vars([name for name in found if name.startswith(".t.zarr-dask-")])
        if what == "swap" and not found.identical(before) and not found.identical(after):
            assert is_half_way(found, before, after)  # it was exchanged while it was being read
            found = read(place, options, consolidated=True)
            assert found.identical(after)
        if what == "swap all" and not found.identical(before) and not found.identical(after):
            found = read(place, options)  # it was exchanged while it was being read
            assert found.identical(after)
        if what == "replace" and not was_new:
            if found is not None and not found.identical(before) and not found.identical(after):
                found = read(place, options)  # it was removed while it was being read
            if found is None:
                continue
        is_new = found is not None and found.identical(after)
        is_old = found is None if before is None else found is not None and found.identical(before)
        # single lengths are changed one after the other: readers of all metadata see an error
        between = what == "append" and not consolidated and found is None
        assert is_new or between or (is_old and not was_new)
        was_new = is_new or was_new
    return was_new
