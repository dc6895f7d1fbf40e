"""The life of a job: its plan, its tasks on any workers, its journal and its report.

==============  ==========================================================================
plans           `plan`, `job`, `array_job`, `layouts`, `map_regions`, `grid_arguments`,
                `find_sources`
costs           `cost_model`, `predict`, `rss`, `prices`
life            `lifecycle`, `resume`, `execute`, `visibility`, `zip_targets`
tasks           `tasks`, `thread_map`, `overlap_pool`, `local_schedulers`, `pickled_once`,
                `session_forks`
clusters        `workers`, `cluster`, `connect`, `probe`, `worker_watch`, `credentials`
what users see  `report`, `progress_bars`, `figures`, `block_diff`
==============  ==========================================================================
"""

from typing import TYPE_CHECKING

from zarr_dask._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarr_dask.jobs.engine.cluster import ask_scheduler, subscribe_events
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
    "find_workers",
    "forks_for",
    "run_batches",
    "run_tasks",
    "runs_elsewhere",
    "runs_processes",
    "subscribe_events",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cluster": ("ask_scheduler", "subscribe_events"),
        "tasks": ("AdaptiveBatches", "compute", "run_batches", "run_tasks"),
        "workers": (
            "Workers",
            "check_reachable_from_workers",
            "find_workers",
            "forks_for",
            "runs_elsewhere",
            "runs_processes",
        ),
    },
)
