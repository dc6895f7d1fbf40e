"""Requests that a plan states for chunks of which parts are read, against those that are made."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import zarr_dask as zd
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
