"""Running on a cluster: a window of tasks at a time; cluster failures raise typed errors."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from secrets import token_hex
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from zarr_dask.errors import SchedulerError, WorkerLostError, WorkerSetupError
from zarr_dask.jobs.engine.credentials import share_graph
from zarr_dask.jobs.engine.pickled_once import PickledOnce
from zarr_dask.jobs.engine.worker_watch import WorkerWatch, watch_workers
from zarr_dask.jobs.engine.workers import Workers, ask_workers, few
from zarr_dask.journal import Journal
from zarr_dask.journal.receipts import GATHERED, Batch, take_gathered
from zarr_dask.stores.patience import SERVICES
from zarr_dask.stores.secrets import references_of

if TYPE_CHECKING:
    from distributed import Client, Worker

__all__ = [
    "PER_THREAD",
    "LoggedTask",
    "SubmissionWindow",
    "ask_scheduler",
    "compute_each",
    "compute_on_cluster",
    "run_window",
    "subscribe_events",
    "take_receipts",
]


_ENDED = {"memory", "error", "released", "forgotten"}
"""States of finished tasks that a worker still keeps."""
_PATIENCE = 60.0
"""Maximum seconds to wait for workers to end tasks of a failed job."""
_ANSWER = 30.0
"""Maximum seconds to wait for the answer of a worker."""
_LOOK = 1.0
"""Seconds between two checks of the workers."""

_LOG = logging.getLogger(__name__)


def run_window(
    function: Callable[[Any], Any],
    arguments: Iterator[Any],
    client: Client,
    window: SubmissionWindow,
    on_result: Callable[[Any], None],
    name: str,
    options: Mapping[str, Any],
) -> None:
    """Call a function with each argument on a cluster; new calls are submitted as tasks end."""
    from zarr_dask.graph.credentials_plugin import share_references

    function = PickledOnce(function)
    share_references(client, references_of(function))
    numbers = itertools.count()
    job = token_hex(8)  # tasks of two clients need different names

    def start(argument: Any) -> Any:
        if not isinstance(argument, int | range):
            share_references(client, references_of(argument))
        key = f"{name}-{job}-{next(numbers)}"
        return client.submit(function, argument, key=key, pure=False, **options)

    first = [start(argument) for argument in islice(arguments, window.tasks())]
    running = _as_completed(client, first)
    try:
        with _waiting(client, running.futures) as watch:
            for _, result in _results(running, client, watch):
                on_result(result)
                for argument in islice(arguments, max(window.tasks() - running.count(), 0)):
                    running.add(start(argument))
    finally:
        left = list(running.futures)
        client.cancel(left, reason="another task of the job failed")
        if left:
            _wait_for_workers(client, job)


def compute_on_cluster(collection: Any, client: Client, names: Sequence[str]) -> Any:
    """Compute a collection of one output; on failure, wait for running tasks of these layers."""
    share_graph(client, collection)
    future = client.compute(collection)
    with _cancelling([future], client, names), _waiting(client, [future]) as watch:
        return _result(future, client, watch)


def compute_each(
    collection: Any,
    keys: Sequence[Any],
    client: Client,
    names: Sequence[str],
    on_result: Callable[[Any, Any], None],
) -> None:
    """Compute some keys of a collection's graph; on failure, wait for running tasks.

    Parameters
    ----------
    collection
        Collection with the graph.
    keys
        Keys to compute.
    client
        Client of the cluster.
    names
        Names of the layers whose tasks are waited for on failure.
    on_result
        Called with each key and its result, as soon as it is available.
    """
    share_graph(client, collection)
    graph = collection.__dask_optimize__(collection.__dask_graph__(), keys)
    futures = client.get(graph, [*keys], sync=False)
    running = _as_completed(client, futures)
    with _cancelling(futures, client, names), _waiting(client, running.futures) as watch:
        for key, result in _results(running, client, watch):
            on_result(key, result)


def _results(running: Any, client: Client, watch: WorkerWatch) -> Iterator[tuple[Any, Any]]:
    """Yield keys and results of futures as they end, and let go of these futures."""
    for future, result in running:
        watch.check()
        # else the result is here, also if the worker that has it has died since
        has_failed = future.status in {"error", "cancelled"}
        found = _result(future, client, watch) if has_failed else result
        future.release()
        yield future.key, found


@contextmanager
def _cancelling(futures: Sequence[Any], client: Client, names: Sequence[str]) -> Iterator[None]:
    """Cancel futures if a ``with`` statement fails; wait for running tasks of these layers then."""
    try:
        yield
    except BaseException as error:
        client.cancel(futures, reason="the job failed or was stopped")
        if isinstance(error, Exception) and not isinstance(error, SchedulerError):
            _wait_for_workers(client, *names)
        raise


def _as_completed(client: Client, futures: Sequence[Any]) -> Any:
    """Return dask's ``as_completed`` for a client that need not be the default one.

    It fetches results as soon as they are available: a task is done again if its worker dies
    before.
    """
    from distributed import as_completed

    return as_completed(futures, loop=client.loop, with_results=True, raise_errors=False)


def take_receipts(journal: Journal, client: Client) -> set[str]:
    """Take over the receipts that workers have gathered; see `zarr_dask.journal.receipts`.

    Returns
    -------
    set[str]
        The addresses of the workers that have handed over theirs. Those of other ones are lost.
    """
    job = journal.batch_key
    answers = ask_workers(client, take_gathered, job, seconds=_ANSWER)
    found = {at: batch for at, batch in answers.items() if isinstance(batch, Batch)}
    if lost := answers.keys() - found.keys():
        _LOG.warning("receipts of workers that do not answer are written again: %s", few(lost))
    for batch in found.values():
        GATHERED.keep(job, batch)
    return {*found}


def _wait_for_workers(client: Client, *names: str) -> None:
    """Wait until no worker has tasks with one of the names, including cancelled ones.

    This must hold twice in a row: a task may still be on its way to a worker when it is cancelled.
    """
    deadline = monotonic() + _PATIENCE
    quiet = 0
    while quiet < 2:
        left = deadline - monotonic()
        try:
            answers = ask_workers(client, _has_tasks, names=names, seconds=max(left, _LOOK))
        except OSError as error:
            _LOG.warning("workers may still run tasks of the failed job: %s", error)
            return
        # one that does not answer in time may have tasks; one out of reach has died
        busy = [at for at, one in answers.items() if one is True or isinstance(one, TimeoutError)]
        if busy and left < 0:
            _LOG.warning("workers that may still run tasks of the failed job: %s", few(busy))
            return
        quiet = 0 if busy else quiet + 1
        sleep(0.02)  # there is no notification when a cancelled task ends, so poll


def _has_tasks(dask_worker: Worker, names: Sequence[str]) -> bool:
    """True if a worker runs or will run tasks with one of the names in their keys."""
    return any(
        task.state not in _ENDED and any(name in str(key) for name in names)
        for key, task in dask_worker.state.tasks.items()
    )


def _result(future: Any, client: Client, watch: WorkerWatch) -> Any:
    """Return the result of a task; raise cluster failures as errors of this package."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError
    from distributed.scheduler import NoValidWorkerError, NoWorkerError

    try:
        return future.result()
    except (NoValidWorkerError, NoWorkerError) as error:
        raise WorkerLostError(
            f"{error} Start workers, and make the same call again: if it was and is made with "
            "resume=True, only missing objects are written."
        ) from error
    except KilledWorker as error:
        raise WorkerLostError(
            f"several workers died of the task {error.task!r}, the last one "
            f"{getattr(error.last_worker, 'address', error.last_worker)}; the likely reason is "
            "memory: lower max_mem, or raise the workers' limit, and look into their logs."
        ) from error
    except FutureCancelledError as error:
        watch.check()
        raise SchedulerError(
            f"the scheduler {client.scheduler.address if client.scheduler else ''} was lost while "
            f"the job was running ({error})."
        ) from error
    except RuntimeError as error:
        cause = error.__cause__
        if cause is None or not str(error).startswith("Error during deserialization"):
            raise
        raise WorkerSetupError(
            "the scheduler cannot load the graph, which may need a package or module that only the "
            f"client has ({type(cause).__name__}: {cause}). Install it where the scheduler and the "
            "workers run."
        ) from error


class LoggedTask:
    """A function that logs an event before each call, at no cost for the task."""

    def __init__(self, function: Callable[[Any], Any], topic: str) -> None:
        self._function, self._topic = function, topic

    def __call__(self, argument: Any) -> Any:
        """Log the start, then call the function."""
        from distributed import get_worker

        get_worker().log_event(self._topic, None)
        return self._function(argument)


@contextmanager
def subscribe_events(workers: Workers, topic: str, hear: Callable[[Any], None]) -> Iterator[None]:
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


_WAITS = "zarr-dask-waits"
"""Topic of what workers tell about waits for services."""


@contextmanager
def _waiting(client: Client, futures: Iterable[Any]) -> Iterator[WorkerWatch]:
    """Tell about waits of workers for services, and of futures for workers, while there are any.

    The futures are cancelled if workers do not come back.
    """

    async def cancel() -> None:
        await client.cancel([*futures], reason="no worker runs tasks")

    client.subscribe_topic(_WAITS, lambda event: SERVICES.hear(*event[1]))
    try:
        with watch_workers(client, cancel) as watch:
            yield watch
    finally:
        client.unsubscribe_topic(_WAITS)
        SERVICES.hear("", 0.0)


def _tell_clients(said: str, passed: float) -> None:
    """Forward a wait from a task to the clients of its cluster."""
    if "distributed" not in sys.modules:
        return
    from distributed import get_worker

    with suppress(ValueError):  # not in a task of a worker
        get_worker().log_event(_WAITS, [said, passed])


SERVICES.forward = _tell_clients


def ask_scheduler(operation: str, **message: Any) -> Any:
    """Call a handler of the scheduler and wait for it; return None outside a worker of a cluster.

    Parameters
    ----------
    operation
        Name of the handler, such as ``"log_event"`` and ``"events"``.
    **message
        Arguments of the handler.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker
    from distributed.utils import sync

    try:
        worker = get_worker()
    except ValueError:
        return None
    return sync(worker.loop, getattr(worker.scheduler, operation), **message)


PER_THREAD = 8
"""Number of tasks for each thread: enough that no thread waits for the client."""


class SubmissionWindow:
    """Limit of tasks for each thread of a cluster; it follows the size of an adaptive cluster.

    Parameters
    ----------
    client
        Client of the cluster.
    threads
        Number of threads at first.
    fixed
        Limit that does not depend on the workers.
    """

    def __init__(self, client: Client, threads: int, fixed: int | None = None) -> None:
        self._client = client
        self._fixed = fixed
        self._threads = threads
        self._looked = monotonic()
        _LOG.debug("window: at most %d tasks at a time on the cluster", self.tasks())

    def tasks(self) -> int:
        """Return the number of tasks that the scheduler may know of now."""
        if self._fixed is not None:
            return max(self._fixed, 1)
        if monotonic() > self._looked + _LOOK:
            # without workers the tasks wait for the next ones
            before = self._threads
            with suppress(TimeoutError):  # of silent schedulers `watch_workers` tells
                found = self._client.sync(self._client.nthreads, callback_timeout=_ANSWER)
                self._threads = sum(found.values()) or before
            if self._threads != before:
                _LOG.debug("window: the cluster has %d threads now", self._threads)
            self._looked = monotonic()
        return max(self._threads * PER_THREAD, 1)
