"""Batches of tasks that are too short for a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from zarr_dask.jobs.engine.cluster import run_window
from zarr_dask.jobs.engine.local_schedulers import run_local
from zarr_dask.jobs.engine.tasks import IndexedArguments
from zarr_dask.jobs.engine.throttle import PER_THREAD, SubmissionWindow
from zarr_dask.jobs.engine.workers import Workers

__all__ = ["AdaptiveBatches", "run_batches"]


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


class _Timed:
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

    timed = _Timed(function)
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
        run_local(IndexedArguments(timed, ranges), range(len(ranges)), note, name)
