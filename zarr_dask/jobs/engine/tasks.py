"""Running a graph as a whole, or many similar tasks, in windows.

Most such tasks are functions of their number, so that little is submitted. The scheduler knows of
at most a window of tasks at any time. Calls that take milliseconds are sent to a cluster several at
a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from time import perf_counter
from typing import Any, NamedTuple

from zarr_dask.jobs.engine.cluster import (
    PER_THREAD,
    LoggedTask,
    SubmissionWindow,
    compute_on_cluster,
    run_window,
    subscribe_events,
)
from zarr_dask.jobs.engine.local_schedulers import (
    LOCAL_WINDOW,
    compute_local,
    overlap_pool,
    run_local,
)
from zarr_dask.jobs.engine.session_forks import ForkResult, SessionForks
from zarr_dask.jobs.engine.workers import Workers, forks_for
from zarr_dask.stores.base import Store
from zarr_dask.stores.retry import Retries, counting_retries, current_count

__all__ = ["AdaptiveBatches", "InTask", "compute", "run_batches", "run_tasks"]


def run_tasks(
    function: Callable[[Any], Any],
    arguments: Iterable[Any],
    workers: Workers,
    on_result: Callable[[Any], None],
    name: str,
    on_begin: Callable[[Any], None] | None = None,
    writes_to: Iterable[Store] = (),
    on_merge: Callable[[], None] | None = None,
    overlapping: int = 0,
) -> None:
    """Call a function with each of many arguments, mostly numbers, in any order.

    Parameters
    ----------
    function
        A pure function that can be pickled; it may be called more than once with an argument.
    arguments
        Arguments of the calls; read one window at a time.
    workers
        Workers that run the tasks.
    on_result
        Called with the result of each call, as soon as it is available.
    name
        Name of the tasks, for dashboards.
    on_begin
        Called with None, in a thread of the client, whenever a worker of a cluster starts a call:
        once more for each call that was lost with a worker.
    writes_to
        Stores that the calls write to. Changes in forks (`zarr_dask.jobs.engine.session_forks`) are
        merged when all calls have ended.
    on_merge
        Called now and then when changes in forks have been merged; None to merge all at the end.
    overlapping
        Number of calls that may begin while others wait for responses, on threads of this process.
    """
    forks = forks_for(writes_to, workers.client)
    if forks is not None:
        forks = forks if on_merge is None else forks.committing(on_merge)
        calls = (forks.call(function, argument) for argument in arguments)
        run_tasks(_called, calls, workers, _taking(forks, on_result), name, on_begin)
        forks.merge()
        return
    waiting, function = iter(arguments), InTask(function)
    counted = current_count()

    def take(found: Any) -> None:
        if counted is not None:
            counted.add(found.counted)
        on_result(found.result)

    if workers.client is None:
        with overlap_pool(workers, overlapping) as pool:
            while some := list(islice(waiting, LOCAL_WINDOW)):
                run_local(function, some, take, name, pool)
        return
    client, several = workers.client, _ShortCalls(waiting)
    window = SubmissionWindow(client, workers.threads)

    def take_several(found: tuple[list[Any], float]) -> None:
        results, seconds = found
        several.note(seconds)
        for one in results:
            take(one)

    if on_begin is None:
        run_window(_OneByOne(function), several, client, window, take_several, name, {})
        return
    topic = f"{name}-{token_hex(8)}"
    with subscribe_events(workers, topic, on_begin):
        logged = _OneByOne(LoggedTask(function, topic))
        run_window(logged, several, client, window, take_several, name, {})


_TOGETHER = 0.03
"""Seconds of calls that a cluster is sent as one task. It takes dask 4 ms to send one, on all
sides. What runs when a worker dies is done again, so no more than short calls are sent together."""


class _ShortCalls(Iterator[tuple[Any, ...]]):
    """Arguments of calls: as many at a time as take `_TOGETHER`, one at first.

    The slowest of the last calls counts: those of a small array may come before long ones.

    Parameters
    ----------
    arguments
        The arguments; read as they are sent.
    """

    def __init__(self, arguments: Iterator[Any]) -> None:
        self._arguments = arguments
        self._last = deque([_TOGETHER] * _LOOKED_AT, _LOOKED_AT)

    def note(self, seconds: float) -> None:
        """Note the duration of a call."""
        self._last.append(seconds)

    def __next__(self) -> tuple[Any, ...]:
        number = int(_TOGETHER / max(*self._last, _TOGETHER / _MOST_TOGETHER))
        found = tuple(islice(self._arguments, max(number, 1)))
        if not found:
            raise StopIteration
        return found


_LOOKED_AT = 8
"""Number of the last tasks whose calls are the measure."""
_MOST_TOGETHER = 64
"""Maximum number of calls that are sent as one task."""


@dataclass(frozen=True)
class _OneByOne:
    """A function that is called with each of several arguments."""

    function: Callable[[Any], Any]

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[Any], float]:
        """Return the results, and the mean duration of a call in seconds."""
        begun = perf_counter()
        results = [self.function(one) for one in arguments]
        return results, (perf_counter() - begun) / len(arguments)


def _taking(forks: SessionForks, on_result: Callable[[Any], None]) -> Callable[[ForkResult], None]:
    return lambda forked: on_result(forks.take(forked))


class _CountedResult(NamedTuple):
    """The result of a task, and the requests that it has not counted itself."""

    result: Any
    counted: Retries


@dataclass(frozen=True)
class InTask:
    """A function whose requests to stores are those of a task; see `zarr_dask.stores.patience`."""

    function: Callable[[Any], Any]

    def __call__(self, argument: Any) -> _CountedResult:
        """Call the function."""
        with counting_retries() as counted:
            return _CountedResult(self.function(argument), counted)


def _called(call: Callable[[], Any]) -> Any:
    return call()


def compute(
    collection: Any,
    workers: Workers,
    names: Sequence[str],
    on_result: Callable[[Any], None] | None = None,
    *,
    lends: int = 0,
) -> Any:
    """Compute a collection of one output; on failure, wait for the running tasks.

    Parameters
    ----------
    collection
        Collection to compute.
    workers
        Workers that run the tasks.
    names
        Names of the layers whose tasks are waited for on a cluster.
    on_result
        Called with the result of each task of these layers; not on a cluster, where results stay.
    lends
        Decoded bytes of the largest block if tasks wait for a remote store, so that other tasks may
        compute meanwhile; else 0.
    """
    if workers.client is None:
        return compute_local(collection, workers, names, on_result, lends=lends)
    return compute_on_cluster(collection, workers.client, names)


class AdaptiveBatches:
    """Consecutive numbers in batches that take about half a second each.

    The duration of a task is learned from finished ones: the first batches have one task each.
    Enough batches are kept for all threads.

    Parameters
    ----------
    count
        Number of tasks.
    threads
        Number of threads that work on them.

    Examples
    --------
    >>> batches = AdaptiveBatches(1000, threads=2)
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
        """Return the next batch; an empty one at the end."""
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
        """Record finished tasks and their total duration in seconds."""
        self._done += tasks
        self._spent += seconds


class _TimedFunction:
    """A function that also returns its duration."""

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
        Length of the range.
    workers
        Workers that run the tasks.
    on_result
        Called with the result of each call, as soon as it is available.
    name
        Name of the tasks, for dashboards.
    window
        Maximum number of tasks that the scheduler knows of; by default eight per thread.
    options
        Options of the tasks on a cluster: ``retries``, ``priority`` and others of
        ``Client.submit``.
    """
    batches = AdaptiveBatches(count, workers.threads)

    def note(timed: tuple[Any, int, float]) -> None:
        result, tasks, seconds = timed
        batches.note(tasks, seconds)
        on_result(result)

    timed = _TimedFunction(function)
    if workers.client is not None:
        upcoming = iter(batches.next, range(count, count))
        most = SubmissionWindow(workers.client, workers.threads, window)
        run_window(timed, upcoming, workers.client, most, note, name, options or {})
        return
    window = max(window or workers.threads * PER_THREAD, 1)
    while True:
        ranges = [batch for _ in range(window) if (batch := batches.next())]
        if not ranges:
            return
        run_local(timed, ranges, note, name)
