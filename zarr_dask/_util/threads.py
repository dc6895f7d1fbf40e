"""The threads of this process that read and write stored objects concurrently.

One bounded pool per process, made on first use and again in a child after a fork. Tasks of dask
never use it: the scheduler's threads are enough.

Threads that only wait for responses of services are separate: `waiting_threads`, more than there
are cores and shared by all tasks. From all its threads, a process never has more requests in flight
than `request_slots` allows: `MAX_CONCURRENT_REQUESTS`, up to `MOST_AT_ONCE` of a service that takes
long to respond, fewer while a service reports that it is too busy (`slow_down`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from itertools import chain, islice
from math import inf
from typing import Any, TypeVar

from zarr_dask._util.arguments import check_count

__all__ = [
    "MAX_CONCURRENT_REQUESTS",
    "MOST_AT_ONCE",
    "cpu_count",
    "has_overlap_work",
    "imap_unbuffered",
    "is_pool_thread",
    "map_waiting",
    "marking_waits",
    "most_requests",
    "overlap_with_wait",
    "parallel_for",
    "request_slots",
    "run_concurrently",
    "slow_down",
    "take_done",
    "wait_context",
    "waiting_threads",
]

T = TypeVar("T")
R = TypeVar("R")

MAX_CONCURRENT_REQUESTS = 32
"""Number of requests of a process in flight, of services that respond quickly."""

MOST_AT_ONCE = 80
"""Number of requests of a process in flight, of services that take 0.1 s and more."""

REQUESTS = "ZARR_DASK_REQUESTS"
"""The environment variable for another number of requests in flight, whatever the latency is."""
_QUICK, _SLOW = (
    0.02,
    0.1,
)  # seconds to respond, for `MAX_CONCURRENT_REQUESTS` and for `MOST_AT_ONCE`
_FADING = 0.02  # share by which a longer time replaces the shortest one with each request
_EASE = 1.0  # seconds between two steps of slowing down, for the effect of the first to show


def cpu_count() -> int:
    """Return the number of cores that this process may use, in its container or batch job."""
    allowed = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if allowed else os.cpu_count() or 1
    return min(cores, _cores_of_groups() or cores)


@cache
def _cores_of_groups() -> int | None:
    from zarr_dask._util.control_groups import cpu_limit

    return cpu_limit()


class _PoolThread(threading.local):
    """Marks threads of the pool, which do not wait for other threads of the pool."""

    is_ours = False


_THREAD = _PoolThread()


def _mark_thread() -> None:
    _THREAD.is_ours = True


class _InFlight:
    """The requests of this process in flight, and how many there may be.

    The number is halved when a service reports that it is too busy, and grows by one with each
    round of successful requests.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset in a new process, which has no request in flight."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._sent = 0
        self._given = _given_requests()
        self._slowed = float("-inf")
        self._latency = inf  # the shortest time of recent requests, which is that of small ones
        self.limit = float(self.most)

    @property
    def most(self) -> int:
        """The number of requests in flight if no service is too busy."""
        if self._given or self._latency == inf:
            return self._given or MAX_CONCURRENT_REQUESTS
        share = (self._latency - _QUICK) / (_SLOW - _QUICK)
        return MAX_CONCURRENT_REQUESTS + round(
            min(max(share, 0), 1) * (MOST_AT_ONCE - MAX_CONCURRENT_REQUESTS)
        )

    def take(self, most: int) -> int:
        with self._lock:
            while self._sent >= int(self.limit):
                self._room.wait()
            taken = min(most, int(self.limit) - self._sent)
            self._sent += taken
            return taken

    def give_back(self, count: int, seconds: float | None = None) -> None:
        """End some requests that took so long together; None if they have failed."""
        with self._lock:  # once: many threads compete for it
            before = int(self.limit)
            if seconds is not None:
                self._note_success(count, seconds)
            self._sent -= count
            self._room.notify(count + int(self.limit) - before)

    def _note_success(self, count: int, seconds: float) -> None:
        if seconds < self._latency:
            self._latency = seconds
        elif count == 1:  # several take longer together
            self._latency += (seconds - self._latency) * _FADING
        self.limit = min(self.limit + count / self.limit, float(self.most))

    def slow_down(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._slowed >= _EASE:
                self._slowed = now
                self.limit = max(self.limit / 2, 1.0)


def _given_requests() -> int | None:
    """Return the number of requests in flight that the environment asks for.

    Raises
    ------
    ValueError
        If it is not a whole number above 0.
    """
    given = os.environ.get(REQUESTS)
    if not given:
        return None
    if not given.isdecimal() or not int(given):
        raise ValueError(f"the environment's {REQUESTS} is {given!r}: expected a number above 0.")
    return int(given)


class _Pool:
    """The pool of this process, if it has been made."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset in a new process, which does not have the threads of the old one."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: ThreadPoolExecutor | None = None

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(cpu_count(), "zarr_dask", _mark_thread)
            return self._executor

    def waiting(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._waiting is None:
                self._waiting = ThreadPoolExecutor(
                    max(MOST_AT_ONCE, _given_requests() or 0), "zarr_dask-waiting"
                )
            return self._waiting


_POOL = _Pool()
_IN_FLIGHT = _InFlight()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.forget)
    os.register_at_fork(after_in_child=_IN_FLIGHT.forget)


def waiting_threads() -> ThreadPoolExecutor:
    """Return the threads that wait for responses; their work must not wait for others of them."""
    return _POOL.waiting()


def map_waiting(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function that waits for responses on every item, concurrently; return the results.

    Each call sees the context variables of the caller.

    Parameters
    ----------
    function
        Function to call; it must not wait for other work of `waiting_threads`.
    items
        Items to call it on.

    Raises
    ------
    Exception
        The error of the first item that fails.

    Examples
    --------
    >>> map_waiting(len, ["a", "", "abc"])
    [1, 0, 3]
    """
    return list(imap_unbuffered(function, items))


def imap_unbuffered(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results of `map_waiting` in order, each as soon as it is available.

    The calls begin immediately, not when the first result is taken. If the caller stops taking
    results, calls that have not begun are cancelled.

    Examples
    --------
    >>> next(imap_unbuffered(len, ["a", "", "abc"]))
    1
    """
    threads = waiting_threads()
    return _results(deque(threads.submit(copy_context().run, function, item) for item in items))


def _results(futures: deque[Future[R]]) -> Iterator[R]:
    try:
        _MEANWHILE.do()
        while futures:
            if not futures[0].done():
                with wait_context():
                    wait([futures[0]])
            yield futures.popleft().result()  # which is not kept when it has been used
    finally:
        for future in futures:
            future.cancel()  # after an error; calls that have begun continue


def take_done(futures: list[Future[T]]) -> list[Future[T]]:
    """Remove the futures that are done from a list, and return them.

    Each is asked once. One that ends between two questions, such as a put that fails, would be
    neither returned nor kept, and its error be lost.

    Examples
    --------
    >>> from concurrent.futures import Future
    >>> waits, ended = Future(), Future()
    >>> ended.set_result(1)
    >>> futures = [waits, ended]
    >>> take_done(futures) == [ended], futures == [waits]
    (True, True)
    """
    done: list[Future[T]] = []
    left: list[Future[T]] = []
    for one in futures:
        (done if one.done() else left).append(one)
    futures[:] = left
    return done


class _WorkWhileWaiting(threading.local):
    """Work for the current thread to do the next time it waits."""

    work: Callable[[], object] | None = None

    def do(self) -> None:
        """Do the work once, if there is any."""
        work, self.work = self.work, None
        if work is not None:
            work()


_MEANWHILE = _WorkWhileWaiting()


@contextmanager
def overlap_with_wait(work: Callable[[], object]) -> Iterator[None]:
    """Let this thread do some work when it first waits in the block (`map_waiting`).

    The work is skipped if the thread never waits, so nothing may depend on it.

    Examples
    --------
    >>> with overlap_with_wait(lambda: print("waiting")):
    ...     print(map_waiting(len, ["a"]), map_waiting(len, [""]))
    waiting
    [1] [0]
    """
    _MEANWHILE.work = work
    try:
        yield
    finally:
        _MEANWHILE.work = None


def has_overlap_work() -> bool:
    """True if this thread has work to do while it waits."""
    return _MEANWHILE.work is not None


class _Waits(threading.local):
    """Context in which the current thread waits for responses."""

    context: Callable[[], AbstractContextManager[None]] = nullcontext


_WAITS = _Waits()


@contextmanager
def marking_waits(context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let this thread enter a context at each wait in the block (`wait_context`).

    Examples
    --------
    >>> @contextmanager
    ... def told():
    ...     print("waits")
    ...     yield
    >>> with marking_waits(told), wait_context():
    ...     pass
    waits
    """
    before, _WAITS.context = _WAITS.context, context
    try:
        yield
    finally:
        _WAITS.context = before


def wait_context() -> AbstractContextManager[None]:
    """Return a context in which this thread only waits: for responses, or for a lock."""
    return _WAITS.context()


@contextmanager
def request_slots(most: int = 1) -> Iterator[int]:
    """Wait until this process may send one or more requests.

    Hold it only while the requests are in flight, not while waiting for anything else, such as
    another request or the next attempt.

    Parameters
    ----------
    most
        Number of requests to send.

    Yields
    ------
    int
        Number of them that may be in flight at a time; at least one.
    """
    with wait_context():
        taken = _IN_FLIGHT.take(most)
        begun, seconds = time.monotonic(), None
        try:
            yield taken
            seconds = time.monotonic() - begun
        finally:
            _IN_FLIGHT.give_back(taken, seconds)


def most_requests() -> int:
    """Return the number of requests that this process may have in flight at the latency so far."""
    return _IN_FLIGHT.most


def slow_down() -> None:
    """Send half as many requests at a time, because a service has reported too many.

    The number grows again with requests that succeed.
    """
    _IN_FLIGHT.slow_down()


def run_concurrently(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions that wait for responses, each in a thread of its own; return the results.

    Raises
    ------
    Exception
        The error of the first function that fails, after all have returned.
    """
    with ThreadPoolExecutor(len(functions), "zarr_dask-abreast") as threads:
        futures = [threads.submit(copy_context().run, function) for function in functions]
    return [future.result() for future in futures]


def is_pool_thread() -> bool:
    """True if this thread is one of several in `parallel_for`, or works for it alone."""
    return _THREAD.is_ours


def parallel_for(function: Callable[[T], object], items: Iterable[T], threads: int | None) -> None:
    """Call `function` on every item.

    Parameters
    ----------
    function
        Function to call; it must be thread-safe.
    items
        Items to call it on.
    threads
        1 for the calling thread; None for as many as there are cores, the calling one among them.

    Raises
    ------
    TypeError, ValueError
        If `threads` is not a whole number, or below 1.
    Exception
        The first error of a call; calls that have not begun by then are skipped.
    """
    check_count("threads", threads, "one per core")
    waiting = iter(items)
    if threads == 1 or cpu_count() == 1 or _THREAD.is_ours:
        for item in waiting:
            function(item)
        return
    first = list(islice(waiting, 2))
    if len(first) < 2:
        for item in first:
            function(item)
        return
    _side_by_side(function, chain(first, waiting), min(threads or cpu_count(), cpu_count()))


def _side_by_side(function: Callable[[T], object], items: Iterator[T], count: int) -> None:
    lock = threading.Lock()
    stopped = threading.Event()

    numbered = enumerate(items)
    failed: list[tuple[float, BaseException]] = []

    def drain() -> None:
        while True:
            number = inf  # of an error of the iterable itself
            try:
                with lock:
                    taken = None if stopped.is_set() else next(numbered, None)
                if taken is None:
                    return
                number, item = taken
                function(item)
            except BaseException as error:
                stopped.set()
                failed.append((number, error))
                if isinstance(error, Exception):
                    return
                raise

    # the caller works, too: waking another thread takes as long as some short items
    executor = _POOL.executor()
    futures = [executor.submit(copy_context().run, drain) for _ in range(count - 1)]
    _THREAD.is_ours = True
    try:
        drain()
        for future in futures:  # one that has not begun has nothing left to do
            if not future.cancel():
                future.exception()
    except BaseException:  # Ctrl-C: begin nothing more, and leave nothing running
        stopped.set()
        wait(futures)
        raise
    finally:
        _THREAD.is_ours = False
    if failed:  # of several errors always raise that of the first item
        raise min(failed, key=lambda pair: pair[0])[1]
