"""Reading back what a task has put, to compare it with what was computed.

That is done object by object, after all objects of the task are put and before its receipt says so.
"""

from __future__ import annotations

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.errors import ValuesDifferError
from zarr_dask.grid.grid import Region, translate_region, view_region
from zarr_dask.jobs.engine.block_diff import BlockDiff, differing

__all__ = ["check_read_back"]


def check_read_back(array: Array, values: np.ndarray, region: Region) -> None:
    """Read a region of an array, and compare it with the values that were written into it.

    Raises
    ------
    ValuesDifferError
        If they differ.
    CorruptObjectError
        If an object does not decode.
    """
    found, origin = BlockDiff(), tuple(one.start for one in region)
    for part in array.meta.grid.parts(region):
        place = translate_region(part.out, origin)
        stored = array.read(place, threads=1)
        wanted, first = view_region(values, part.out), tuple(one.start for one in place)
        found.add(differing(wanted, stored, first, equal_nan=True))
    if found.differing:
        raise ValuesDifferError("the dask array", array.where, found.differing, found.named())
