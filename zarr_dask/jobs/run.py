"""Running many like tasks: on dask's own schedulers, or on a cluster in windows.

A task is a function of its number, so that what is submitted stays small, and at most a window
of tasks is known to the scheduler at any time.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from zarr_dask.errors import SchedulerError, StoreOutOfReachError, WorkerLostError
from zarr_dask.pool import cores
from zarr_dask.stores.base import Store
from zarr_dask.stores.memory import MemoryStore
from zarr_dask.stores.wrappers import Wrapper

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Workers", "check_in_reach", "connect", "find_workers", "run_tasks"]

_WINDOW_PER_THREAD = 8
_LOCAL_WINDOW = 512
_PATIENCE = 60.0  # seconds to wait for workers that start, or that end tasks of a failed job


@dataclass(frozen=True)
class Workers:
    """Where tasks run."""

    client: Client | None
    """A cluster; None for the scheduler that dask is configured to use."""
    threads: int
    """Tasks that run at the same time."""
    threads_per_process: int
    """How many of them share the memory of a process."""
    memory_limit: int | None = None
    """Bytes that the smallest process may use, where that is known."""


def find_workers(client: Client | None = None) -> Workers:
    """The given client's cluster, the current client's, or dask's configured scheduler.

    Raises
    ------
    SchedulerError
        If the cluster has no workers.
    """
    client = client or _current_client()
    return _local_workers() if client is None else _cluster_workers(client)


def _current_client() -> Client | None:
    if "distributed" not in sys.modules:
        return None  # nobody in this process can have made one
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def check_in_reach(store: Store) -> None:
    """Refuse a store in the memory of this process where tasks run in other processes.

    Raises
    ------
    StoreOutOfReachError
        If a cluster is the current scheduler, or dask's own processes are.
    """
    while isinstance(store, Wrapper):
        store = store.store
    if not isinstance(store, MemoryStore):
        return
    client = _current_client()
    if client is None:
        elsewhere = _runs_processes()
    else:
        workers = client.scheduler_info(n_workers=-1).get("workers") or {}
        elsewhere = any(not address.startswith("inproc://") for address in workers)
    if elsewhere:
        raise StoreOutOfReachError(
            f"{store.url} lives in the memory of this process, and dask's processes or the "
            "distributed scheduler run each task in another process: what it writes would be lost. "
            "Write to a local or remote store."
        )


def _cluster_workers(client: Client) -> Workers:
    workers = client.scheduler_info(n_workers=-1).get("workers")
    if workers is None:
        raise SchedulerError(f"the scheduler of {client!r} is gone. Connect to another one.")
    if not workers:
        workers = _first_workers(client)
    threads = [worker["nthreads"] for worker in workers.values()]
    limits = [worker["memory_limit"] for worker in workers.values() if worker["memory_limit"]]
    return Workers(client, sum(threads), max(threads), min(limits, default=None))


def _first_workers(client: Client) -> dict[str, Any]:
    """Wait a while for workers that are still starting."""
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        raise SchedulerError(
            f"the scheduler at {client.scheduler.address if client.scheduler else '?'} has no "
            f"workers, and none came within {_PATIENCE:.0f} s. Start some with 'dask worker'."
        ) from error
    found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def _local_workers() -> Workers:
    import dask
    from dask.base import get_scheduler
    from dask.local import get_sync

    if get_scheduler() is get_sync:
        return Workers(None, 1, 1)
    pool = dask.config.get("pool", None)  # a number, or an executor that dask will use
    size = pool if isinstance(pool, int) else getattr(pool, "_max_workers", None)
    threads = size or dask.config.get("num_workers", None) or cores()
    one_process = not _runs_processes()
    return Workers(None, threads, threads if one_process else 1)


def _runs_processes() -> bool:
    from dask.base import get_scheduler
    from dask.multiprocessing import get as get_processes

    return get_scheduler() is get_processes


def run_tasks(
    function: Callable[[int], Any],
    count: int,
    workers: Workers,
    on_result: Callable[[Any], None],
    name: str,
) -> None:
    """Call ``function(0)`` to ``function(count - 1)``, in any order.

    Parameters
    ----------
    function
        A pure function that can be pickled; it may be called more than once with a number.
    count
        How many calls.
    workers
        Where.
    on_result
        Called with what each call returns, as soon as it is there.
    name
        Of the tasks, for dashboards.
    """
    if workers.client is None:
        _run_local(function, count, on_result, name)
    else:
        window = max(workers.threads * _WINDOW_PER_THREAD, 1)
        _run_cluster(function, count, workers.client, window, on_result, name)


def _run_local(
    function: Callable[[int], Any], count: int, on_result: Callable[[Any], None], name: str
) -> None:
    from dask.base import get_scheduler
    from dask.callbacks import Callback
    from dask.task_spec import Task
    from dask.threaded import get as threaded_get

    get = get_scheduler() or threaded_get

    def report(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:  # noqa: ARG001
        on_result(result)

    tracked = function if _runs_processes() else _Tracked(function)
    try:
        with Callback(posttask=report):
            for first in range(0, count, _LOCAL_WINDOW):
                last = min(first + _LOCAL_WINDOW, count)
                keys = [(name, number) for number in range(first, last)]
                get({key: Task(key, tracked, key[1]) for key in keys}, keys)
    except BaseException as error:
        # dask raises the first error at once and lets the threads go on with what they have begun;
        # who interrupts the job does not want to wait for them
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


def _run_cluster(
    function: Callable[[int], Any],
    count: int,
    client: Client,
    window: int,
    on_result: Callable[[Any], None],
    name: str,
) -> None:
    from distributed import as_completed

    numbers = iter(range(count))
    job = token_hex(8)  # two clients of one scheduler must not name tasks alike

    def start(number: int) -> Any:
        return client.submit(function, number, key=f"{name}-{job}-{number}", pure=False)

    first = [start(number) for number in islice(numbers, window)]
    running = as_completed(first, loop=client.loop)
    try:
        for future in running:
            on_result(_result(future, client))
            future.release()
            for number in islice(numbers, 1):
                running.add(start(number))
    finally:
        left = list(running.futures)
        client.cancel(left, reason="another task of the job failed")
        if left:
            _wait_for_workers(client, job)


def _wait_for_workers(client: Client, job: str) -> None:
    """Wait until no worker runs a task of the job any more, cancelled ones included."""
    deadline = monotonic() + _PATIENCE
    while monotonic() < deadline:
        stacks = client.call_stack()
        if not any(job in str(key) for keys in stacks.values() for key in keys):
            return
        sleep(0.05)  # nobody is told when a cancelled task ends: it can only be asked for


def _result(future: Any, client: Client) -> Any:
    """What a task has returned; what went wrong with the cluster as an error of ours."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    try:
        return future.result()
    except KilledWorker as error:
        raise WorkerLostError(
            f"several workers died of the task {error.task!r}, the last one {error.last_worker}; "
            "the likely reason is memory: lower max_mem, or raise the workers' limit, and look "
            "into their logs."
        ) from error
    except FutureCancelledError as error:
        raise SchedulerError(
            f"the scheduler {client.scheduler.address if client.scheduler else ''} was lost while "
            f"the job was running ({error})."
        ) from error


@contextmanager
def connect(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    workers: int | None = None,
    timeout: float = 10.0,
) -> Iterator[Client | None]:
    """A client for a job: of a running scheduler, of new local processes, or none.

    Parameters
    ----------
    scheduler
        Address of a running scheduler.
    scheduler_file
        File that a running scheduler has written.
    workers
        Number of local processes to start, of one thread each, for as long as the job runs.
    timeout
        Seconds to wait for the scheduler to answer.

    Raises
    ------
    SchedulerError
        If no scheduler answers.
    """
    if scheduler is None and scheduler_file is None:
        if not workers:
            yield None
            return
        yield from _local_cluster(workers)
        return
    from distributed import Client
    from distributed.comm import parse_address
    from distributed.comm.registry import get_backend

    place = scheduler_file or scheduler
    try:
        if scheduler_file is not None:
            scheduler = json.loads(Path(scheduler_file).read_text(encoding="utf-8"))["address"]
        get_backend(parse_address(scheduler)[0])  # a Client that fails on this ends noisily
        client = Client(scheduler, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchedulerError(
            f"no dask scheduler answers at {place} within {timeout:g} s ({error}). Start one with "
            "'dask scheduler', or let the job start local processes with --workers."
        ) from error
    with client:
        yield client


def _local_cluster(workers: int) -> Iterator[Client]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
