"""Tasks that wait for a service let others compute meanwhile.

A task that writes a stored object computes and encodes it, and then waits until a service has taken
it. dask's threads would wait with it: of two threads on two cores none would compute. So dask is
given twice as many threads as tasks may compute at a time, and a task that begins to send lends its
place to another one. As many tasks send at a time as compute, and what waits to be sent is bounded
in bytes: a task with a larger block keeps its place, as if there were no lending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from zarr_dask.stores.base import Store, is_far

__all__ = ["LendingPool", "sending"]

_Result = TypeVar("_Result")

_MOST_SENT = 1 << 26
"""Decoded bytes of the blocks whose tasks have lent their places, of each pool."""


class _Places:
    """The places in which tasks compute, and those in which they send."""

    def __init__(self, count: int) -> None:
        self._computing = threading.BoundedSemaphore(count)
        self._sending = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()
        self._left = _MOST_SENT

    def compute(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """Call a function in a place."""
        with self._computing:
            _THREAD.places = self
            try:
                return function(*args, **kwargs)
            finally:
                _THREAD.places = None

    def lend(self, nbytes: int) -> bool:
        """Begin to send; False if there is no room for so many bytes."""
        with self._lock:
            if nbytes > self._left:
                return False
            self._left -= nbytes
        self._sending.acquire()  # in the place for computing, so that no more blocks are made
        self._computing.release()
        return True

    def return_to(self, nbytes: int) -> None:
        """Go on computing."""
        self._sending.release()
        with self._lock:
            self._left += nbytes
        self._computing.acquire()


class _Thread(threading.local):
    """Where the current thread computes."""

    places: _Places | None = None


_THREAD = _Thread()


@contextmanager
def sending(store: Store, nbytes: int) -> Iterator[None]:
    """Wait for a store that is far away, and let another task of the pool compute.

    Parameters
    ----------
    store
        What is waited for.
    nbytes
        Decoded bytes of the block that this task holds meanwhile.
    """
    places = _THREAD.places
    if places is None or not is_far(store) or not places.lend(nbytes):
        yield
        return
    try:
        yield
    finally:
        places.return_to(nbytes)


class LendingPool(ThreadPoolExecutor):
    """Threads for dask's scheduler, of which so many compute at a time as it is told.

    Parameters
    ----------
    threads
        That compute.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(2 * threads, "zarr-dask")
        self._places = _Places(threads)

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """As `concurrent.futures.Executor.submit`."""
        return super().submit(self._places.compute, fn, *args, **kwargs)
