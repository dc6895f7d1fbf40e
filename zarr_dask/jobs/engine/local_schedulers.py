"""Running on dask's own schedulers: threads, processes, or synchronous.

dask raises the first error at once while its threads finish their running tasks. Here these tasks
are waited for, so that nothing is written after the job is cleaned up. A second interrupt ends the
waiting.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from zarr_dask.jobs.engine.credentials import references_in_graph
from zarr_dask.jobs.engine.overlap_pool import OverlapExecutor, max_uploading
from zarr_dask.jobs.engine.pickled_once import PickledOnce
from zarr_dask.jobs.engine.workers import Workers, configured_scheduler, runs_processes
from zarr_dask.stores.secrets import CredentialsInitializer, references_of

__all__ = [
    "LOCAL_WINDOW",
    "compute_local",
    "may_overlap",
    "overlap_pool",
    "run_local",
    "shared_processes",
]

LOCAL_WINDOW = 512
"""Number of tasks that dask gets at a time."""


def run_local(
    function: Callable[[Any], Any],
    arguments: Sequence[Any],
    on_result: Callable[[Any], None],
    name: str,
    pool: Executor | None = None,
) -> None:
    """Call a function with each argument; see `zarr_dask.jobs.engine.run_tasks`.

    On threads, those of `pool`, if one is given.
    """
    import dask
    from dask.callbacks import Callback
    from dask.task_spec import Task
    from dask.threaded import get as threaded_get

    get = configured_scheduler() or threaded_get

    def report(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:  # noqa: ARG001
        on_result(result)

    def compute(call: Callable[[Any], Any], **options: Any) -> None:
        with Callback(posttask=report):
            for first in range(0, len(arguments), LOCAL_WINDOW):
                some = enumerate(arguments[first : first + LOCAL_WINDOW])
                tasks = {(name, number): Task((name, number), call, one) for number, one in some}
                get(tasks, [*tasks], **options)

    if runs_processes():
        function = PickledOnce(function)
        # one task at a time: with dask's default of six, some processes would have none
        if dask.config.get("pool", None) is not None:
            compute(function, chunksize=1)
            return
        with shared_processes() as processes:
            pool = processes.for_references(references_of(function, arguments))
            try:
                with dask.config.set({"multiprocessing.initializer": None}):  # they have run it
                    compute(function, chunksize=1, pool=pool)
            except BaseException:
                processes.close()  # when the tasks that are running have ended
                raise
        return
    tracked = _Tracked(function)
    try:
        compute(tracked, **({} if pool is None else {"pool": pool}))
    except BaseException:
        tracked.stop()
        raise


@contextmanager
def overlap_pool(workers: Workers, overlapping: int) -> Iterator[Executor | None]:
    """Yield threads for tasks of which some wait while others compute; None for dask's own.

    Parameters
    ----------
    workers
        Workers that run the tasks.
    overlapping
        Number of tasks that may begin while others wait.
    """
    if not overlapping:
        yield None
        return
    with OverlapExecutor(workers.threads, overlapping) as pool:
        yield pool


def may_overlap(workers: Workers, threads: int) -> bool:
    """True if tasks of a plan for processes with so many threads may begin while others wait."""
    as_planned = workers.threads_per_process <= threads
    return as_planned and workers.in_this_process and _runs_threads()


def _runs_threads() -> bool:
    """True if tasks run in threads that are made for them: dask's own, not those of a user."""
    import dask
    from dask.threaded import get as threaded_get

    own_pool = not isinstance(dask.config.get("pool", None), Executor)
    return (configured_scheduler() or threaded_get) is threaded_get and own_pool


class _Processes:
    """Processes that several calls use, and the names of the credentials that they were given."""

    executor: Executor | None = None
    references: frozenset[str] = frozenset()

    def for_references(self, references: Iterable[str]) -> Executor:
        """Return the processes, made as dask does; new ones if these lack credentials."""
        import dask
        from dask.multiprocessing import get_context, initialize_worker_process
        from dask.system import CPU_COUNT

        needed = frozenset(references)
        if self.executor is not None and needed <= self.references:
            return self.executor
        self.close()
        if os.environ.get("PYTHONHASHSEED") in {None, "0"}:
            os.environ["PYTHONHASHSEED"] = "6640"  # as dask, for equal hashes in all processes
        self.references |= needed
        begin = partial(initialize_worker_process, user_initializer=_Initializer(self.references))
        number = dask.config.get("num_workers", None) or CPU_COUNT
        self.executor = ProcessPoolExecutor(number, get_context(), begin)
        return self.executor

    def close(self) -> None:
        """End the processes when their tasks have ended."""
        if self.executor is not None:
            self.executor.shutdown()
            self.executor = None


_PROCESSES: ContextVar[_Processes | None] = ContextVar("_PROCESSES", default=None)


@contextmanager
def shared_processes() -> Iterator[_Processes]:
    """Let all calls of `run_local` within a ``with`` statement use the same processes.

    New ones take about a second each to import what the tasks need.
    """
    held = _PROCESSES.get()
    if held is not None:
        yield held
        return
    held = _Processes()
    token = _PROCESSES.set(held)
    try:
        yield held
    finally:
        _PROCESSES.reset(token)
        held.close()


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

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._changed = threading.Condition()
        self._running = 0
        self._stopped = False

    def __call__(self, argument: Any) -> Any:
        with self._changed:
            if self._stopped:
                return None
            self._running += 1
        try:
            return self._function(argument)
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
    import dask
    from dask.callbacks import Callback

    def report(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:  # noqa: ARG001
        if on_result is not None and isinstance(key, tuple) and key[0] in names:
            on_result(result)

    if not _runs_threads():
        options = {}
        if runs_processes() and not isinstance(dask.config.get("pool", None), Executor):
            options = {"initializer": _Initializer(references_in_graph(collection))}
        with Callback(posttask=report):
            return collection.compute(**options)
    pool: ThreadPoolExecutor
    if lends and _is_made_by_writing(collection, workers.threads):
        pool = OverlapExecutor(workers.threads, max_uploading(lends))
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
