"""Running jobs: a graph as a whole, or many like tasks, in windows.

A task of many is a function of its number, so that what is submitted stays small, and at most a
window of tasks is known to the scheduler at any time. Tasks that are too short for a scheduler are
run several at a time (`Batches`).
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from zarr_dask.errors import SchedulerError, StoreOutOfReachError, WorkerLostError
from zarr_dask.jobs.window import PER_THREAD, Window
from zarr_dask.pool import cores
from zarr_dask.stores.base import Store
from zarr_dask.stores.memory import MemoryStore
from zarr_dask.stores.wrappers import Wrapper
from zarr_dask.stores.zarr_python import is_session
from zarr_dask.stores.zip_writer import ZipWriter

if TYPE_CHECKING:
    from distributed import Client, Worker

__all__ = [
    "Batches",
    "Workers",
    "check_in_reach",
    "compute",
    "connect",
    "find_workers",
    "listening",
    "run_batches",
    "run_calls",
    "run_tasks",
]

_LOCAL_WINDOW = 512
_ENDED = {"memory", "error", "released", "forgotten"}  # states of tasks that a worker keeps
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

    @property
    def in_this_process(self) -> bool:
        """Whether tasks see the memory of this process; dask's own processes may be only one."""
        return self.client is None and self.threads == self.threads_per_process


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
    """The client that dask would use now; none where another scheduler is configured."""
    if "distributed" not in sys.modules:
        return None  # nobody in this process can have made one
    from dask.base import get_scheduler
    from distributed import Client

    owner = getattr(get_scheduler(), "__self__", None)  # of a client it is a method
    return owner if isinstance(owner, Client) else None


def check_in_reach(store: Store) -> None:
    """Refuse a store that this process alone can write where tasks run in other processes.

    Raises
    ------
    StoreOutOfReachError
        If a cluster is the current scheduler, or dask's own processes are.
    """
    while isinstance(store, Wrapper):
        store = store.store
    if not (isinstance(store, MemoryStore | ZipWriter) or is_session(store)):
        return
    client = _current_client()
    if client is None:
        elsewhere = _runs_processes()
    else:
        workers = client.scheduler_info(n_workers=-1).get("workers") or {}
        elsewhere = any(not address.startswith("inproc://") for address in workers)
    if elsewhere:
        raise StoreOutOfReachError(
            f"{store.url} can be written by this process alone, and dask's processes or the "
            "distributed scheduler run each task in another process: what it writes would be lost. "
            "Write to a local or remote store, or compute with threads."
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
    numbers: Sequence[int],
    workers: Workers,
    on_result: Callable[[Any], None],
    name: str,
    on_begin: Callable[[Any], None] | None = None,
) -> None:
    """Call a function on every number, in any order.

    Parameters
    ----------
    function
        A pure function that can be pickled; it may be called more than once with a number.
    numbers
        What to call it on.
    workers
        Where.
    on_result
        Called with what each call returns, as soon as it is there.
    name
        Of the tasks, for dashboards.
    on_begin
        Called with a number, in a thread of the client, whenever a worker of a cluster begins a
        call: once more for each that was lost with a worker.
    """
    if workers.client is None:
        _run_local(function, numbers, on_result, name)
        return
    client, left = workers.client, iter(numbers)
    window = Window(client, workers.threads)
    if on_begin is None:
        _run_window(function, left, client, window, on_result, name, {})
        return
    topic = f"{name}-{token_hex(8)}"
    with listening(workers, topic, on_begin):
        _run_window(_Announced(function, topic), left, client, window, on_result, name, {})


class _Announced:
    """A function that logs an event before each call; that costs a task nothing."""

    def __init__(self, function: Callable[[int], Any], topic: str) -> None:
        self._function, self._topic = function, topic

    def __call__(self, number: int) -> Any:
        from distributed import get_worker

        get_worker().log_event(self._topic, number)
        return self._function(number)


def run_calls(
    function: Callable[[Any], Any],
    arguments: Iterable[Any],
    workers: Workers,
    on_result: Callable[[Any], None],
    name: str,
) -> None:
    """Call a function with each of many arguments, in any order; as `run_tasks` besides.

    Parameters
    ----------
    function
        A pure function that can be pickled; it may be called more than once with an argument.
    arguments
        Asked for a window at a time.
    workers, on_result, name
        As for `run_tasks`.
    """
    waiting = iter(arguments)
    if workers.client is not None:
        window = Window(workers.client, workers.threads)
        _run_window(function, waiting, workers.client, window, on_result, name, {})
        return
    while some := list(islice(waiting, _LOCAL_WINDOW)):
        _run_local(_Chosen(function, some), range(len(some)), on_result, name)


def _run_local(
    function: Callable[[int], Any],
    numbers: Sequence[int],
    on_result: Callable[[Any], None],
    name: str,
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
            for first in range(0, len(numbers), _LOCAL_WINDOW):
                keys = [(name, number) for number in numbers[first : first + _LOCAL_WINDOW]]
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


def _run_window(
    function: Callable[[Any], Any],
    arguments: Iterator[Any],
    client: Client,
    window: Window,
    on_result: Callable[[Any], None],
    name: str,
    options: Mapping[str, Any],
) -> None:
    """Call a function with each argument on a cluster; the next are asked for as tasks end."""
    numbers = itertools.count()
    job = token_hex(8)  # two clients of one scheduler must not name tasks alike

    def start(argument: Any) -> Any:
        key = f"{name}-{job}-{next(numbers)}"
        return client.submit(function, argument, key=key, pure=False, **options)

    first = [start(argument) for argument in islice(arguments, window.tasks())]
    running = _as_completed(client, first)
    try:
        for future in running:
            on_result(_result(future, client))
            future.release()
            for argument in islice(arguments, max(window.tasks() - running.count(), 0)):
                running.add(start(argument))
    finally:
        left = list(running.futures)
        client.cancel(left, reason="another task of the job failed")
        if left:
            _wait_for_workers(client, job)


def _as_completed(client: Client, futures: Sequence[Any]) -> Any:
    """Dask's ``as_completed`` on a client that need not be the default one."""
    from distributed import as_completed

    return as_completed(futures, loop=client.loop)


def _wait_for_workers(client: Client, *names: str) -> None:
    """Wait until no worker has tasks with one of the names any more, cancelled ones included.

    Twice in a row: a task may be on its way to a worker that is told of its end right after.
    """
    deadline = monotonic() + _PATIENCE
    quiet = 0
    while quiet < 2 and monotonic() < deadline:
        answers = client.run(_has_tasks, names=names, on_error="ignore")
        quiet = 0 if any(answers.values()) else quiet + 1
        sleep(0.02)  # nobody is told when a cancelled task ends: it can only be asked for


def _has_tasks(dask_worker: Worker, names: Sequence[str]) -> bool:
    """Whether a worker runs or will run tasks whose keys have one of the names in them."""
    return any(
        task.state not in _ENDED and any(name in str(key) for name in names)
        for key, task in dask_worker.state.tasks.items()
    )


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


# --- a graph as a whole ---------------------------------------------------------------------------


def compute(
    collection: Any,
    workers: Workers,
    names: Sequence[str],
    on_result: Callable[[Any], None] | None = None,
) -> Any:
    """Compute a collection of one output; if that fails, wait for the tasks that are running.

    Parameters
    ----------
    collection
        What to compute.
    workers
        Where.
    names
        Of the layers whose tasks are waited for on a cluster.
    on_result
        Called with what each task of these layers returns; not on a cluster, where that stays.
    """
    if workers.client is None:
        return _compute_local(collection, workers, names, on_result)
    client = workers.client
    future = client.compute(collection)
    try:
        return _result(future, client)
    except BaseException as error:
        client.cancel([future], reason="the job failed or was stopped")
        if isinstance(error, Exception) and not isinstance(error, SchedulerError):
            _wait_for_workers(client, *names)
        raise


def _compute_local(
    collection: Any,
    workers: Workers,
    names: Sequence[str],
    on_result: Callable[[Any], None] | None,
) -> Any:
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
        # dask raises the first error at once and lets the threads go on with what they have begun;
        # who interrupts the job does not want to wait for them
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=False)


@contextmanager
def listening(workers: Workers, topic: str, hear: Callable[[Any], None]) -> Iterator[None]:
    """Call `hear`, in a thread of the client, with each message that tasks log under a topic."""
    client = workers.client
    if client is None:
        yield
        return
    client.subscribe_topic(topic, lambda event: hear(event[1]))
    try:
        yield
    finally:
        client.unsubscribe_topic(topic)


# --- batches --------------------------------------------------------------------------------------


class Batches:
    """Consecutive numbers in batches that take about half a second each.

    How long a task takes is learned from the ones that are done: the first batches have one task
    each. There stay enough batches for all threads.

    Parameters
    ----------
    count
        How many numbers.
    threads
        That work on them.

    Examples
    --------
    >>> batches = Batches(1000, threads=2)
    >>> batches.next()
    range(0, 1)
    >>> batches.note(1, seconds=0.01)
    >>> batches.next()
    range(1, 51)
    """

    seconds = 0.5

    def __init__(self, count: int, threads: int) -> None:
        self.count = count
        self.threads = threads
        self._first = 0
        self._done = 0
        self._spent = 0.0

    def next(self) -> range:
        """The next batch; empty at the end."""
        left = self.count - self._first
        size = 1
        if self._done:
            each = self._spent / self._done
            wanted = int(self.seconds / each) if each * left > self.seconds else left
            size = max(1, min(wanted, left // (4 * self.threads)))
        batch = range(self._first, min(self._first + size, self.count))
        self._first = batch.stop
        return batch

    def note(self, tasks: int, seconds: float) -> None:
        """Some tasks are done, and took so long together."""
        self._done += tasks
        self._spent += seconds


class _Timed:
    """A function that says how long it took."""

    def __init__(self, function: Callable[[range], Any]) -> None:
        self._function = function

    def __call__(self, numbers: range) -> tuple[Any, int, float]:
        begun = perf_counter()
        result = self._function(numbers)
        return result, len(numbers), perf_counter() - begun


def run_batches(
    function: Callable[[range], Any],
    count: int,
    workers: Workers,
    on_result: Callable[[Any], None],
    name: str,
    window: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Call a function with ranges of numbers that make up ``range(count)``, in any order.

    Parameters
    ----------
    function
        A pure function that can be pickled; it may be called more than once with a number.
    count
        How many numbers.
    workers
        Where.
    on_result
        Called with what each call returns, as soon as it is there.
    name
        Of the tasks, for dashboards.
    window
        Tasks that the scheduler knows of at most; by default eight per thread.
    options
        Of the tasks on a cluster: ``retries``, ``priority`` and others of ``Client.submit``.
    """
    batches = Batches(count, workers.threads)

    def note(timed: tuple[Any, int, float]) -> None:
        result, tasks, seconds = timed
        batches.note(tasks, seconds)
        on_result(result)

    timed = _Timed(function)
    if workers.client is not None:
        upcoming = iter(batches.next, range(count, count))
        most = Window(workers.client, workers.threads, window)
        _run_window(timed, upcoming, workers.client, most, note, name, options or {})
        return
    window = max(window or workers.threads * PER_THREAD, 1)
    while True:
        ranges = [batch for _ in range(window) if (batch := batches.next())]
        if not ranges:
            return
        _run_local(_Chosen(timed, ranges), range(len(ranges)), note, name)


class _Chosen:
    """A function of the number of one of its arguments."""

    def __init__(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> None:
        self._function = function
        self._arguments = arguments

    def __call__(self, number: int) -> Any:
        return self._function(self._arguments[number])


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
