"""Running on dask's own schedulers: threads, processes, or one after the other.

dask raises the first error at once and lets the threads go on with what they have begun. Here they
are waited for, unless the job was interrupted: who does that does not want to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zarr_dask.jobs.run.workers import Workers, runs_processes

__all__ = ["LOCAL_WINDOW", "compute_local", "run_local"]

LOCAL_WINDOW = 512
"""Tasks that dask is given at a time."""


def run_local(
    function: Callable[[int], Any],
    numbers: Sequence[int],
    on_result: Callable[[Any], None],
    name: str,
) -> None:
    """Call a function on every number; see `zarr_dask.jobs.run.run_tasks`."""
    from dask.base import get_scheduler
    from dask.callbacks import Callback
    from dask.task_spec import Task
    from dask.threaded import get as threaded_get

    get = get_scheduler() or threaded_get

    def report(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:  # noqa: ARG001
        on_result(result)

    tracked = function if runs_processes() else _Tracked(function)
    try:
        with Callback(posttask=report):
            for first in range(0, len(numbers), LOCAL_WINDOW):
                keys = [(name, number) for number in numbers[first : first + LOCAL_WINDOW]]
                get({key: Task(key, tracked, key[1]) for key in keys}, keys)
    except BaseException as error:
        if isinstance(tracked, _Tracked):
            tracked.stop(wait=isinstance(error, Exception))
        raise


class _Tracked:
    """A function that can be told to begin no more calls, and waited for."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function = function
        self._changed = threading.Condition()
        self._running = 0
        self._stopped = False

    def __call__(self, number: int) -> Any:
        with self._changed:
            if self._stopped:
                return None
            self._running += 1
        try:
            return self._function(number)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def stop(self, *, wait: bool) -> None:
        """Begin no more calls, and wait for those that are running if told to."""
        with self._changed:
            self._stopped = True
            if wait:
                self._changed.wait_for(lambda: self._running == 0)


def compute_local(
    collection: Any,
    workers: Workers,
    names: Sequence[str],
    on_result: Callable[[Any], None] | None,
) -> Any:
    """Compute a collection of one output; see `zarr_dask.jobs.run.compute`."""
    from concurrent.futures import Executor

    import dask
    from dask.base import get_scheduler
    from dask.callbacks import Callback
    from dask.threaded import get as threaded_get

    def report(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:  # noqa: ARG001
        if on_result is not None and isinstance(key, tuple) and key[0] in names:
            on_result(result)

    own_pool = not isinstance(dask.config.get("pool", None), Executor)
    if (get_scheduler() or threaded_get) is not threaded_get or not own_pool:
        with Callback(posttask=report):
            return collection.compute()
    pool = ThreadPoolExecutor(workers.threads, "zarr-dask")
    try:
        with Callback(posttask=report):
            return collection.compute(pool=pool)
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=False)
