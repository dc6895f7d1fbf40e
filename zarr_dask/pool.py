"""The threads of this process that read and write stored objects side by side.

One bounded pool per process, made on first use and again in a child after a fork. Tasks of dask
never enter it: the scheduler's threads are enough.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["cores", "for_each"]

T = TypeVar("T")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool:
    """The pool of this process, if it has one yet."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a new process the threads of the old one are not there."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(cores(), "zarr_dask")
            return self._executor


_POOL = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.forget)


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
    Exception
        The first error of a call; calls that have not begun by then are not made.
    """
    work = list(items)
    if threads == 1 or len(work) < 2 or cores() == 1:
        for item in work:
            function(item)
        return
    shared = iter(work)
    lock = threading.Lock()

    def drain() -> None:
        while True:
            with lock:
                item = next(shared, done)
            if item is done:
                return
            try:
                function(item)  # type: ignore[arg-type]
            except BaseException:
                with lock:
                    for _ in shared:  # leave nothing to the others
                        pass
                raise

    done = object()
    executor = _POOL.executor()
    count = min(threads or cores(), cores(), len(work))
    futures = [executor.submit(drain) for _ in range(count)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
