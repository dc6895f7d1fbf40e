"""Writers of datasets that are killed, and what readers see meanwhile."""

from __future__ import annotations

import time

import xarray as xr

import zarr_dask as zd
from tests.support.xarray_roles import start, steps

__all__ = ["is_half_way", "read", "survives_a_kill"]


def read(place, options=None):
    """The dataset as a reader with consolidated metadata sees it; None for nothing."""
    try:
        return xr.open_zarr(place, consolidated=True, storage_options=options).load()
    except (FileNotFoundError, KeyError, ValueError):
        return None


def is_half_way(found, old, new):
    """True if each stored object of a region is as it was, or as it will be."""
    same = found.drop_vars(["t", "n"]).identical(new.drop_vars(["t", "n"]))
    steps_of = zip(found["t"], old["t"], new["t"], strict=True)
    return same and all(one.equals(was) or one.equals(will) for one, was, will in steps_of)


def survives_a_kill(place, what, moment, options=None, last=105):
    """Kill a process that writes days 5 to the last after some seconds, and write them again.

    A reader who polls sees the dataset as it was, or as it is in the end; of regions each stored
    object.
    """
    given = {
        "create": {"resume": True},
        "append": {"resume": True, "append": "time"},
        "region": {"region": "auto"},
    }[what]
    given = {**given, "storage_options": options}
    drops = ["lat", "lon"] if what == "region" else []
    before = {"create": None, "append": steps(0, 5), "region": steps(5, last, value=-1)}[what]
    after = steps(0 if what == "append" else 5, last).load()
    if before is not None:
        zd.write_dataset(before, place, storage_options=options)
        before = before.load()

    def look():
        """Return True if it is as it was."""
        found = read(place, options)
        if what == "region":
            assert is_half_way(found, before, after)
            return True
        is_old = found is None if before is None else found.identical(before)
        assert is_old or found.identical(after)
        return is_old

    job = start(place, 5, last, drops=drops, options=given)
    ends = time.monotonic() + moment
    while time.monotonic() < ends:
        look()
        job.join(0.05)
    job.kill()
    job.join()
    look()
    # the same call also ends a job that died when all was visible, and answers one that has ended
    zd.write_dataset(steps(5, last).drop_vars(drops), place, **given)
    assert zd.verify(place, storage_options=options).ok
    assert read(place, options).identical(after)
    assert after["time"].to_index().is_unique
