"""Bytes that the tasks of a job may hold in each process."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from zarr_dask.errors import MemoryBudgetError
from zarr_dask.jobs.engine.plan import format_bytes, parse_bytes
from zarr_dask.jobs.engine.workers import Workers

__all__ = ["IDLE_WORKER", "JobBudget", "machine_memory", "memory_budget"]

_DEFAULT_MEMORY = 10**9
_SHARE_OF_LIMIT = 0.6  # fraction of a worker's memory limit; dask starts to spill at about this
_SHARE_OF_PAUSE = 0.8  # fraction at which a dask worker starts no more tasks
IDLE_WORKER = 150_000_000
"""Bytes of an idle dask worker that has imported the package."""
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_budget(max_mem: str | int | None, workers: Workers) -> int:
    """Return the bytes that one process may hold: as given, a share of the limit, or 1 GB.

    Raises
    ------
    MemoryBudgetError
        If it is not a size, or is more than a worker may use.
    """
    limit = workers.memory_limit
    if max_mem is not None:
        wanted = parse_bytes(max_mem, "max_mem")
        if limit is not None and wanted + IDLE_WORKER > limit:
            raise MemoryBudgetError(
                f"max_mem={format_bytes(wanted)} is more than the workers have: each may use "
                f"{format_bytes(limit)}, and takes some {format_bytes(IDLE_WORKER)} when idle. "
                f"Give at most {format_bytes(max(limit - IDLE_WORKER, 0))}, or workers more memory."
            )
        return wanted
    if limit is None:
        return _DEFAULT_MEMORY
    # a small worker has little left for tasks before dask pauses it
    left = int(limit * _SHARE_OF_PAUSE) - IDLE_WORKER
    return max(min(int(limit * _SHARE_OF_LIMIT), left), limit // 8)


@dataclass(frozen=True, slots=True)
class JobBudget:
    """Memory of each process that computes and writes the blocks of dask arrays."""

    workers: Workers
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    given: bool
    """True if the caller has said so."""

    @classmethod
    def of(cls, max_mem: str | int | None, workers: Workers) -> Self:
        """Return the budget that is given, or a share of what workers or the machine have.

        Raises
        ------
        MemoryBudgetError
            As `memory_budget`.
        """
        if max_mem is None and workers.memory_limit is None:
            processes = max(workers.threads // workers.threads_per_process, 1)
            return cls(workers, max(machine_memory() // 2 // processes, _DEFAULT_MEMORY), False)
        return cls(workers, memory_budget(max_mem, workers), max_mem is not None)


def machine_memory() -> int:
    """Return the bytes of memory that this machine, or the container around, has."""
    found = []
    with suppress(ValueError, OSError, AttributeError):  # not every system knows these names
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for place in _CGROUPS:
        with suppress(ValueError, OSError):  # no such limit, or the word "max"
            found.append(int(Path(place).read_text()))
    return min(found, default=_DEFAULT_MEMORY)
