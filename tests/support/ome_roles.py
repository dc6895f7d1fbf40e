"""The processes of the tests that write, add labels and migrate: some of them are killed."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import dask
import dask.array as da
import numpy as np

import zarr_dask as zd
from zarr_dask.journal import Journal
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrappers.base import HookStore

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


def write_labels(root: str, first: int, count: int) -> None:
    """Add label images to an image, one after the other."""
    cells = np.ones((8, 8), "u1")
    with dask.config.set(scheduler="sync"):
        for number in range(first, first + count):
            zd.ome.write_labels(root, cells, f"cells-{number}")


def migrate_until(root: str, removals: int) -> None:
    """Migrate in place, and be killed before an old document is removed."""
    left = [removals]

    def die(verb: str, key: str) -> None:
        if verb == "delete":
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    zd.ome.migrate(HookStore(LocalStore(root), die), remove_old=True)


TAKEN: dict[str, Any] = {
    "shape": {"c": 2, "z": 3, "y": 33, "x": 40},
    "dtype": "u2",
    "chunks": (1, 1, 2, 16, 16),
    "levels": 3,
    "name": "taken",
}
"""An image that is acquired; its chunks hold several planes."""


def taken(times: int) -> np.ndarray:
    """The pixels of such an image; some planes are dark."""
    values = np.random.default_rng(8).integers(1, 60000, (times, 2, 3, 33, 40), "u2")
    values[::2, 1, 2] = 0
    return values


def acquire(root: str, times: int, changes: int = -1, channels: tuple[int, ...] = (0, 1)) -> None:
    """Take what is missing of some channels, and be killed after so many changes of the image."""
    left = [changes]

    def die(verb: str, key: str) -> None:
        if verb in {"set", "set_if", "delete"}:
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGKILL)

    values = taken(times)
    store = HookStore(LocalStore(root), die) if changes >= 0 else LocalStore(root)
    with dask.config.set(scheduler="sync"), zd.ome.acquire(store, **TAKEN) as image:
        for time_point in range(times):
            for place in image.missing(time_point):
                if place["c"] in channels:
                    image.put(values[place["t"], place["c"], place["z"]], **place)


def acquire_until_grown(root: str) -> None:
    """Take the rest of a time point, and be killed when all levels have grown."""
    Journal.remove = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    acquire(root, 1)
