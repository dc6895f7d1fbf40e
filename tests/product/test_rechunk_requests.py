"""Requests that a plan states for chunks of which parts are read, against those that are made."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.grid.dimension import Edges, Fixed, overlaps
from zarr_dask.stores import LocalStore, Recording

MB = 10**6


@pytest.mark.parametrize(
    ("shape", "chunks", "new", "nbytes"),
    [
        ((16, 256, 512), (4, 256, 512), (16, 32, 512), 12 * MB),
        ((18, 256, 512), (4, 256, 512), (18, 32, 512), 12 * MB),  # the last chunk is cut
        ((18, 256, 512), (4, 256, 512), (6, 256, 128), 9 * MB),
        ((18, 256, 512), (4, 256, 512), (6, 256, 512), 14 * MB),  # and lies in one box
        ((32, 512, 512), (32, 256, 128), (2, 512, 512), 20 * MB),
    ],
)
def test_parts_of_chunks_take_two_requests(tmp_path, shape, chunks, new, nbytes):
    array = zd.create_array(tmp_path / "a", shape=shape, dtype="f4", chunks=chunks, codecs="blosc")
    array[...] = np.random.default_rng(1).random(shape, "f4")
    source, target, temp = (
        Recording(LocalStore(str(tmp_path / name))) for name in ("a", "b", "temp")
    )
    with dask.config.set(scheduler="threads", num_workers=1):
        plan = zd.plan_rechunk(source, target, temp=temp, chunks=new, max_mem=nbytes)
        for store in (source, target, temp):
            store.clear()
        plan.run()
    reads = sum(store.batches[name] for store in (source, temp) for name in ("get", "get_ranges"))
    assert plan.costs.reads == reads
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], array[...])


@pytest.mark.parametrize("extent", [0, 1, 7, 24, 61])
@pytest.mark.parametrize("last", [False, True])
def test_overlaps_are_those_of_every_pair(extent, last):
    """Against all pairs of intervals, one by one."""
    edges = [Edges.of(sizes, extent) for sizes in ([3, 50, 8], [1] * 20 + [41], [61])]
    for cells in (Fixed(4, extent), Fixed(7, extent), *edges):
        for intervals in (Fixed(6, extent), Fixed(4, extent), Fixed(100, extent), *edges):
            every, whole = [], []
            for cell in range(cells.count):
                start, stop = cells.start(cell), min(cells.start(cell + 1), extent)
                for other in range(intervals.count):
                    a, b = intervals.start(other), intervals.start(other + 1)
                    common = min(b, stop) - max(a, start)
                    if common > 0:
                        every.append(common)
                        goes_on = last and stop == extent
                        whole += [common] * (common == stop - start and not goes_on)
            found = overlaps(cells, intervals, last=last)
            assert [sorted(one.elements()) for one in found] == [sorted(every), sorted(whole)]
