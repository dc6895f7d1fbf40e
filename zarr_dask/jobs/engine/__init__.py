"""Running jobs: a graph as a whole, or many similar tasks, in windows.

==================  ==============================================================
`workers`           a cluster, or dask's configured scheduler
`connect`           a client of a running scheduler, or of new local processes
`tasks`             a graph as a whole, or a function of many numbers or arguments
`pickled_once`      functions of many tasks, pickled and unpickled once
`local_schedulers`  on threads and processes of this machine
`cluster`           on ``distributed``
==================  ==============================================================
"""

from zarr_dask.jobs.engine.cluster import ask_scheduler, subscribe_events
from zarr_dask.jobs.engine.connect import connect
from zarr_dask.jobs.engine.tasks import AdaptiveBatches, compute, run_batches, run_tasks
from zarr_dask.jobs.engine.workers import (
    Workers,
    check_reachable_from_workers,
    find_workers,
    forks_for,
    runs_elsewhere,
    runs_processes,
)

__all__ = [
    "AdaptiveBatches",
    "Workers",
    "ask_scheduler",
    "check_reachable_from_workers",
    "compute",
    "connect",
    "find_workers",
    "forks_for",
    "run_batches",
    "run_tasks",
    "runs_elsewhere",
    "runs_processes",
    "subscribe_events",
]
