"""Running on dask's own schedulers: threads, processes, or synchronous.

dask raises the first error at once while its threads finish their running tasks. Here these tasks
are waited for, so that nothing is written after the job is cleaned up. A second interrupt ends the
waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zarr_dask.jobs.engine.credentials import references_in_graph
from zarr_dask.jobs.engine.overlap_pool import OverlapExecutor
from zarr_dask.jobs.engine.workers import Workers, runs_processes
from zarr_dask.stores.secrets import CredentialsInitializer, references_of

__all__ = ["LOCAL_WINDOW", "compute_local", "run_local"]

LOCAL_WINDOW = 512
"""Number of tasks that dask gets at a time."""


def run_local(
    function: Callable[[int], Any],
    numbers: Sequence[int],
    on_result: Callable[[Any], None],
    name: str,
) -> None:
    """Call a function on every number; see `zarr_dask.jobs.engine.run_tasks`."""
    import dask
    from dask.base import get_scheduler
    from dask.callbacks import Callback
    from dask.task_spec import Task
    from dask.threaded import get as threaded_get

    get = get_scheduler() or threaded_get

    def report(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:  # noqa: ARG001
        on_result(result)

    tracked = function if runs_processes() else _Tracked(function)
    options = {}
    if runs_processes() and dask.config.get("pool", None) is None:
        options = {"initializer": _Initializer(references_of(function))}
    try:
        with Callback(posttask=report):
            for first in range(0, len(numbers), LOCAL_WINDOW):
                keys = [(name, number) for number in numbers[first : first + LOCAL_WINDOW]]
                get({key: Task(key, tracked, key[1]) for key in keys}, keys, **options)
    except BaseException:
        if isinstance(tracked, _Tracked):
            tracked.stop()
        raise


class _Initializer:
    """Initializer that gives dask's processes credentials, then calls the user's own."""

    def __init__(self, references: Iterable[str]) -> None:
        import dask

        self._credentials = CredentialsInitializer(tuple(sorted(references)))
        self._wanted = dask.config.get("multiprocessing.initializer", None)

    def __call__(self) -> None:
        self._credentials()
        if self._wanted is not None:
            self._wanted()


class _Tracked:
    """A function whose calls can be stopped and waited for."""

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

    def stop(self) -> None:
        """Stop new calls, and wait for those that are running."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: self._running == 0)


_OURS = ("zarr-write-", "zarr-finish-", "zarr-join-")
"""Prefixes of layers whose tasks write, or merge results of writing."""


def _is_made_by_writing(collection: Any, threads: int) -> bool:
    """True if nearly all tasks write, so that no other task's result has to wait in memory.

    At most as many other tasks are allowed as compute at a time; values in memory do not count.
    """
    graph = collection.__dask_graph__()
    optimized = collection.__dask_optimize__(graph, collection.__dask_keys__())
    others = (layer for name, layer in optimized.layers.items() if not name.startswith(_OURS))
    return sum(map(_tasks_of, others)) <= threads


def _tasks_of(layer: Any) -> int:
    from dask.core import istask
    from dask.task_spec import DataNode, GraphNode

    if not hasattr(layer, "mapping"):
        return len(layer)
    nodes = layer.mapping.values()
    return sum(
        not isinstance(node, DataNode) if isinstance(node, GraphNode) else bool(istask(node))
        for node in nodes
    )


def compute_local(
    collection: Any,
    workers: Workers,
    names: Sequence[str],
    on_result: Callable[[Any], None] | None,
    *,
    lends: int,
) -> Any:
    """Compute a collection of one output; see `zarr_dask.jobs.engine.compute`."""
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
        options = {}
        if runs_processes() and own_pool:
            options = {"initializer": _Initializer(references_in_graph(collection))}
        with Callback(posttask=report):
            return collection.compute(**options)
    pool: ThreadPoolExecutor
    if lends and _is_made_by_writing(collection, workers.threads):
        pool = OverlapExecutor(workers.threads, lends)
    else:
        pool = ThreadPoolExecutor(workers.threads, "zarr-dask")
    try:
        with Callback(posttask=report):
            return collection.compute(pool=pool)
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=False)
