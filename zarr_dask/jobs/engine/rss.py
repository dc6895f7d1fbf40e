"""Resident memory of this process, measured while a task runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from zarr_dask._util.buffers import malloc_trim, task_memory_scope
from zarr_dask.codecs.checksum import crc32c

__all__ = ["RssProbe", "measure_rss", "process_name"]

_FACTS = Path("/proc/self/statm")


class RssProbe:
    """Resident bytes of the process: when idle, and the maximum since a task started."""

    def __init__(self, idle: int) -> None:
        self.idle = idle
        self.peak = _resident()

    def look(self) -> None:
        """Measure again."""
        self.peak = max(self.peak, _resident())


@contextmanager
def measure_rss(
    stage: Hashable, rehearse: Callable[[], object] | None = None
) -> Iterator[RssProbe]:
    """Yield the memory of the process while a task runs; the last task frees what is cached.

    Parameters
    ----------
    stage
        Key that is equal for the tasks of one stage.
    rehearse
        Loads the libraries that the first task in a process would load.
    """

    def look(cleared: bool) -> None:
        _IDLE.look(stage, rehearse, cleared=cleared)

    with task_memory_scope(stage, look):
        yield RssProbe(_IDLE.nbytes)


class _IdleMemory:
    """The size of this process while no task runs.

    It is measured when a stage starts, and before each task if no memory of the last task is kept:
    a dask worker grows by itself, for instance by its records of tasks.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._stage: Hashable = None

    def look(
        self, stage: Hashable, rehearse: Callable[[], object] | None, *, cleared: bool
    ) -> None:
        """Measure the idle size before a task of this stage, while no task runs."""
        if stage == self._stage and not cleared:
            self.nbytes = min(self.nbytes, _resident())
            return
        if stage != self._stage:
            _load()
            if rehearse is not None:
                rehearse()
        malloc_trim()  # else a task would reuse it, or free it
        self._stage, self.nbytes = stage, _resident()


_IDLE = _IdleMemory()


@cache
def _load() -> None:
    """Load libraries that the first task would load: they stay, and belong to no task."""
    crc32c(b"")


def _resident() -> int:
    """Return the resident bytes of this process; 0 if the system does not report them.

    Pages of files are left out: they are libraries, which any thread of the process may touch for
    the first time while a task runs, and which the system drops when it needs the memory.
    """
    try:
        resident, of_files = map(int, _FACTS.read_bytes().split()[1:3])
        return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _host() -> str:
    return socket.gethostname()


def process_name() -> str:
    """Return a name for this process that is unique across machines."""
    return f"{_host()}:{os.getpid()}"
