"""The threads of this process that read and write stored objects side by side.

One bounded pool per process, made on first use and again in a child after a fork. Tasks of dask
never enter it: the scheduler's threads are enough.

Threads that only wait, for answers of services, are others: `waiting_threads`, more than there are
cores and shared by all tasks. Whatever threads they come from, a process never has more than
`SIDE_BY_SIDE` requests on their way (`in_flight`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from itertools import chain, islice
from typing import Any, TypeVar

from zarr_dask.flags import check_count

__all__ = [
    "SIDE_BY_SIDE",
    "abreast",
    "cores",
    "for_each",
    "has_work_meanwhile",
    "in_flight",
    "in_turn",
    "meanwhile",
    "wait_for_each",
    "waiting_threads",
]

T = TypeVar("T")
R = TypeVar("R")

SIDE_BY_SIDE = 32
"""Requests that a process has on their way at most."""


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Thread(threading.local):
    """Whether the current thread is one of the pool; those do not wait for others of it."""

    is_ours = False


_THREAD = _Thread()


def _mark_thread() -> None:
    _THREAD.is_ours = True


class _InFlight:
    """How many more requests this process may have on their way."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a new process no request is on its way."""
        self._changed = threading.Condition()
        self._free = SIDE_BY_SIDE

    def take(self, most: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0)
            taken = min(most, self._free)
            self._free -= taken
            return taken

    def give_back(self, count: int) -> None:
        with self._changed:
            self._free += count
            self._changed.notify(count)


class _Pool:
    """The pool of this process, if it has one yet."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a new process the threads of the old one are not there."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: ThreadPoolExecutor | None = None

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(cores(), "zarr_dask", _mark_thread)
            return self._executor

    def waiting(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._waiting is None:
                self._waiting = ThreadPoolExecutor(SIDE_BY_SIDE, "zarr_dask-waiting")
            return self._waiting


_POOL = _Pool()
_IN_FLIGHT = _InFlight()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.forget)
    os.register_at_fork(after_in_child=_IN_FLIGHT.forget)


def waiting_threads() -> ThreadPoolExecutor:
    """The threads of this process that wait for answers; their work must not wait for others."""
    return _POOL.waiting()


def wait_for_each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What a function that waits for answers returns for every item, asked side by side.

    Each call sees the context variables of the caller.

    Parameters
    ----------
    function
        Its work must not wait for other work of `waiting_threads`.
    items
        What to call it on.

    Raises
    ------
    Exception
        The error of the first item that has one.

    Examples
    --------
    >>> wait_for_each(len, ["a", "", "abc"])
    [1, 0, 3]
    """
    return list(in_turn(function, items))


def in_turn(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """As `wait_for_each`, each result as soon as it and those before it are there.

    The calls begin at once, whenever the first result is taken. If no more are taken, calls that
    have not begun by then are not made.

    Examples
    --------
    >>> next(in_turn(len, ["a", "", "abc"]))
    1
    """
    threads = waiting_threads()
    return _results([threads.submit(copy_context().run, function, item) for item in items])


def _results(futures: Sequence[Future[R]]) -> Iterator[R]:
    try:
        _MEANWHILE.do()
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()  # after an error; what has begun goes on


class _Meanwhile(threading.local):
    """What the current thread is to do when it waits the next time."""

    work: Callable[[], object] | None = None

    def do(self) -> None:
        """Do it, if there is anything, and not once more."""
        work, self.work = self.work, None
        if work is not None:
            work()


_MEANWHILE = _Meanwhile()


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Let this thread do something while it waits within for the first time (`wait_for_each`).

    It is not done where nothing is waited for so: what needs it does not depend on it.

    Examples
    --------
    >>> with meanwhile(lambda: print("waiting")):
    ...     print(wait_for_each(len, ["a"]), wait_for_each(len, [""]))
    waiting
    [1] [0]
    """
    _MEANWHILE.work = work
    try:
        yield
    finally:
        _MEANWHILE.work = None


def has_work_meanwhile() -> bool:
    """Whether this thread has something to do while it waits."""
    return _MEANWHILE.work is not None


@contextmanager
def in_flight(most: int = 1) -> Iterator[int]:
    """Wait until this process may send a request, or some at a time.

    Held while they are on their way, and not while anything else is waited for, such as another
    request or the next attempt.

    Parameters
    ----------
    most
        Requests that there are to be sent.

    Yields
    ------
    int
        How many of them may be on their way at a time; at least one.
    """
    taken = _IN_FLIGHT.take(most)
    try:
        yield taken
    finally:
        _IN_FLIGHT.give_back(taken)


def abreast(*functions: Callable[[], Any]) -> list[Any]:
    """What functions return that wait for answers, called at the same time in threads of their own.

    Raises
    ------
    Exception
        The error of the first function that has one, when all have ended.
    """
    with ThreadPoolExecutor(len(functions), "zarr_dask-abreast") as threads:
        futures = [threads.submit(copy_context().run, function) for function in functions]
    return [future.result() for future in futures]


def for_each(function: Callable[[T], object], items: Iterable[T], threads: int | None) -> None:
    """Call `function` on every item.

    Parameters
    ----------
    function
        Safe to call from many threads.
    items
        What to call it on.
    threads
        1 for the calling thread; None for the pool of this process, which one item never enters.

    Raises
    ------
    TypeError, ValueError
        If `threads` is no number, or below 1.
    Exception
        The first error of a call; calls that have not begun by then are not made.
    """
    check_count("threads", threads, "one per core")
    waiting = iter(items)
    if threads == 1 or cores() == 1 or _THREAD.is_ours:
        for item in waiting:
            function(item)
        return
    first = list(islice(waiting, 2))
    if len(first) < 2:
        for item in first:
            function(item)
        return
    _side_by_side(function, chain(first, waiting), min(threads or cores(), cores()))


def _side_by_side(function: Callable[[T], object], items: Iterator[T], count: int) -> None:
    lock = threading.Lock()
    stopped = threading.Event()

    numbered = enumerate(items)
    failed: list[tuple[int, BaseException]] = []

    def next_item() -> tuple[int, T] | None:
        with lock:
            return None if stopped.is_set() else next(numbered, None)

    def drain() -> None:
        while (taken := next_item()) is not None:
            number, item = taken
            try:
                function(item)
            except BaseException as error:
                stopped.set()
                failed.append((number, error))
                raise

    executor = _POOL.executor()
    futures = [executor.submit(copy_context().run, drain) for _ in range(count)]
    try:
        wait(futures)
    except BaseException:  # Ctrl-C: nothing more is begun, and nothing goes on behind our back
        stopped.set()
        wait(futures)
        raise
    if failed:  # of several errors the same one every time: that of the first item
        raise min(failed, key=lambda pair: pair[0])[1]
    for future in futures:
        future.result()  # an error of the iterable itself
