"""Bytes that the tasks of a job may hold in each process."""

from __future__ import annotations

from zarr_dask.errors import MemoryBudgetError
from zarr_dask.jobs.engine.plan import format_bytes, parse_bytes
from zarr_dask.jobs.engine.workers import Workers

__all__ = ["IDLE_WORKER", "memory_budget"]

_DEFAULT_MEMORY = 10**9
_SHARE_OF_LIMIT = 0.6  # fraction of a worker's memory limit; dask starts to spill at about this
_SHARE_OF_PAUSE = 0.8  # fraction at which a dask worker starts no more tasks
IDLE_WORKER = 150_000_000
"""Bytes of an idle dask worker that has imported the package."""


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
