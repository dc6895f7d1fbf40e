"""The process of the kill tests that writes an image."""

from __future__ import annotations

import os
import time
from typing import Any

import dask
import dask.array as da
import numpy as np

import zarr_dask as zd

SHAPE = (2, 300, 300)
BLOCK = (1, 50, 50)
WORK = 0.004  # seconds that a block takes

OPTIONS: dict[str, Any] = {
    "axes": "cyx",
    "chunks": (1, 25, 25),
    "shards": (1, 50, 50),
    "levels": 4,
    "max_mem": "20MB",
    "version": "0.5",
}


def expected() -> np.ndarray:
    """Pixels that do not compress, none of them the fill value."""
    return np.random.default_rng(5).integers(1, 60000, SHAPE, "u2")


def noted(block, log, block_info=None):
    """The work of a task: it leaves a line, and takes a while."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{block_info[0]['chunk-location']}\n".encode())
    os.close(descriptor)
    time.sleep(WORK)
    return block


def source(root: str, *, shares: bool) -> da.Array:
    """The pixels; with an ancestor that blocks share, or each by its own task."""
    values = zd.from_zarr(f"{root}/source", chunks=BLOCK)
    if shares:
        values = values + (values.max() - values.max()).astype("u2")
    return values.map_blocks(noted, f"{root}/log", dtype="u2", meta=np.empty((0, 0, 0), "u2"))


def write_image(root: str, shares: bool) -> None:
    """Write the image, or go on with it."""
    with dask.config.set(scheduler="threads", num_workers=2):
        zd.ome.write(source(root, shares=shares), f"{root}/image", resume=True, **OPTIONS)
