"""How much memory this process has, looked at while a task runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.scratch import return_freed_memory, working_for

__all__ = ["Memory", "process_name", "watched"]

_FACTS = Path("/proc/self/statm")


class Memory:
    """Resident bytes of the process: when idle, and the most since a task began."""

    def __init__(self, idle: int) -> None:
        self.idle = idle
        self.peak = _resident()

    def look(self) -> None:
        """Look again."""
        self.peak = max(self.peak, _resident())


@contextmanager
def watched(stage: Hashable, rehearse: Callable[[], object] | None = None) -> Iterator[Memory]:
    """While a task runs, its memory; afterwards the process keeps none of it, if it was the last.

    Parameters
    ----------
    stage
        Equal for the tasks of one.
    rehearse
        Loads what its first task in a process would.
    """

    def look(cleared: bool) -> None:
        _IDLE.look(stage, rehearse, cleared=cleared)

    with working_for(stage, look):
        yield Memory(_IDLE.nbytes)


class _Idle:
    """The size of this process while no task runs.

    It is looked at when a stage begins, and before each task where nothing is left of the last one:
    a worker of dask grows by itself, by what it notes of tasks for instance.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._stage: Hashable = None

    def look(
        self, stage: Hashable, rehearse: Callable[[], object] | None, *, cleared: bool
    ) -> None:
        """No task runs, and one of this stage will."""
        if stage == self._stage and not cleared:
            self.nbytes = min(self.nbytes, _resident())
            return
        if stage != self._stage:
            _load()
            if rehearse is not None:
                rehearse()
        return_freed_memory()  # else a task would use it, or the system get it back from the task
        self._stage, self.nbytes = stage, _resident()


_IDLE = _Idle()


@cache
def _load() -> None:
    """Load what the first task of a process would load: libraries stay, and belong to no task."""
    crc32c(b"")


def _resident() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        return int(_FACTS.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _host() -> str:
    return socket.gethostname()


def process_name() -> str:
    """Tells this process from those of other machines too."""
    return f"{_host()}:{os.getpid()}"
