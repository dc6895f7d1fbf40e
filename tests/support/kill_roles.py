"""The processes of the kill tests: a scheduler, workers, a client that writes, and a reader.

They are forked from one process that has imported everything, so that a round takes seconds. Each
is a real process of its own, and is killed by SIGKILL.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, Scheduler, Worker

import zarr_dask as zd
from zarr_dask.grid.grid import Grid
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.jobs.engine.layouts import layout_between
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrapper import StoreWrapper

BLOCKS = (6, 5)
BLOCK = (240, 300)
SHAPE = (BLOCKS[0] * BLOCK[0], BLOCKS[1] * BLOCK[1])
WORK = 0.01  # seconds that a task takes
PATIENCE = 50.0

PROCESSES = multiprocessing.get_context("forkserver")  # conftest.py says what it imports first


def expected() -> np.ndarray:
    """Values that do not compress, none of them the fill value."""
    return np.random.default_rng(5).random(SHAPE) + 1


def noted(block, log, block_info=None):
    """The work of a task: it leaves a line with the time, and takes a while."""
    row, column = block_info[0]["chunk-location"]
    line = f"{time.monotonic():.6f} c/{row}/{column}\n".encode()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)
    time.sleep(WORK)
    return block


@dataclass(frozen=True)
class Folder:
    """What the processes of a round share."""

    root: str

    @property
    def target(self) -> str:
        return f"{self.root}/target"

    @property
    def log(self) -> str:
        return f"{self.root}/log"

    def source(self) -> da.Array:
        source = zd.from_zarr(f"{self.root}/source")
        return source.map_blocks(noted, self.log, dtype=source.dtype)

    def plan(self) -> Any:
        return zd.plan_write(self.source(), self.target, resume=True)

    def computed(self) -> list[tuple[float, str]]:
        """When each block was computed, and which."""
        lines = Path(self.log).read_text().splitlines(True) if Path(self.log).exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # one may be on its way
        return [(float(when), key) for when, key in map(str.split, whole)]


# --- rechunking -----------------------------------------------------------------------------------

SLABS = (96, 48, 40)


@dataclass(frozen=True)
class Noting(StoreWrapper):
    """A store that leaves a line for each value that is put, which takes a while."""

    log: str = ""

    def set(self, key: str, buffers: Any) -> None:
        super().set(key, buffers)
        line = f"{time.monotonic():.6f} {key}\n".encode()
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)
        time.sleep(WORK)


@dataclass(frozen=True)
class RechunkFolder(Folder):
    """What the processes of a round of rechunking share."""

    staged: bool = False

    @property
    def known(self) -> str:
        """A file with a line for each result that the client has: since when, of which stage."""
        return f"{self.root}/known"

    def values(self) -> np.ndarray:
        """Values that do not compress, none of them the fill value."""
        return np.random.default_rng(7).random(SLABS) + 1

    def plan(self) -> Any:
        """A plan in small boxes, so that there are many tasks."""
        target, temp = (
            Noting(LocalStore(f"{self.root}/{name}"), self.log) for name in ("target", "between")
        )
        options = {"chunks": (-1, 4, 4), "temp": temp, "max_mem": "40MB", "overwrite": True}
        plan = zd.plan_rechunk(f"{self.root}/source", target, **options)
        only = plan.stages[0]
        last = replace(only, box=(SLABS[0], 8, 8))
        if not self.staged:
            return replace(plan, stages=(last,))
        cell = (12, 12, 10)
        between = layout_between(plan.source, plan.target, temp)
        between = replace(between, grid=Grid.regular(SLABS, cell), chunk=cell)
        first = StagePlan(only.source, between, (12, *SLABS[1:]))
        return replace(plan, stages=(first, replace(last, source=between)))


def run_rechunk(address: str, folder: RechunkFolder) -> None:
    def note(progress: Any) -> None:
        with Path(folder.known).open("a") as file:
            file.write(f"{time.monotonic():.6f} {progress.stage}\n")

    with Client(address):
        report = folder.plan().run(resume=True, progress=note)
        _tell(f"{folder.root}/report", f"{report.tasks} {report.repeated}")


def _serve(server: Any, at: str | None = None) -> None:
    async def run() -> None:
        async with server() as served:
            if at is not None:
                _tell(at, served.address)
            await served.finished()

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    asyncio.run(run())


def _tell(at: str, address: str) -> None:
    Path(f"{at}.new").write_text(address)
    Path(f"{at}.new").rename(at)


def run_scheduler(at: str) -> None:
    _serve(lambda: Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0"), at)


def run_worker(address: str, folder: str) -> None:
    _serve(lambda: Worker(address, nthreads=1, local_directory=folder, dashboard=False))


def run_client(address: str, folder: Folder) -> None:
    with Client(address):
        folder.plan().run()


def run_reader(folder: Folder, target: zd.Array, stop: Any, whole: Any) -> None:
    """Look at each stored object as soon as it is there, and at all of them in the end.

    It is whole at every moment; and once the array can be opened, none is absent.
    """
    want = expected()
    parts = list(target.meta.grid.parts(tuple(slice(0, n, 1) for n in SHAPE)))
    waiting = {target.key(part.coords): part for part in parts}
    while not stop.wait(0.0005):
        opened = Path(folder.target, "zarr.json").exists()
        for key, part in list(waiting.items()):
            if opened or target.store.size(key) is not None:
                np.testing.assert_array_equal(target.read(part.out, threads=1), want[part.out])
                del waiting[key]
                whole.value += 1
    np.testing.assert_array_equal(target.read(threads=1), want)


class Cluster:
    """A scheduler and two workers, each a process."""

    def __init__(self, folder: Folder, name: str) -> None:
        at = f"{folder.root}/{name}"
        self._folder = at
        self.scheduler = start(run_scheduler, at)
        until(lambda: Path(at).exists(), self.scheduler)
        self.address = Path(at).read_text()
        self.workers = [
            start(run_worker, self.address, f"{folder.root}/{name}-{n}") for n in range(2)
        ]

    def replace_worker(self) -> None:
        """Kill the first worker, and start another one."""
        kill(self.workers.pop(0))
        self._folder += "+"
        self.workers.append(start(run_worker, self.address, self._folder))

    def kill(self) -> None:
        for process in (*self.workers, self.scheduler):
            kill(process)


def start(function: Callable[..., None], *args: Any) -> Any:
    process = PROCESSES.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def kill(process: Any) -> None:
    process.kill()
    process.join(PATIENCE)


def until(done: Callable[[], bool], process: Any) -> bool:
    """Wait until something is true; False if a process ends before."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if wait([process.sentinel], timeout=0.002):
            return done()
        if time.monotonic() > deadline:
            raise TimeoutError("nothing has happened")
    return True
