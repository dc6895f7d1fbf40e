"""Tasks that wait for a service let others compute meanwhile.

A task that writes a stored object computes and encodes it, and then waits until a service has taken
it. dask's threads would wait with it: of two threads on two cores none would compute. So dask is
given more threads than tasks may compute at a time, and a task that begins to send lends its place
to another one. What waits to be sent is bounded, in number and in bytes: a task with a larger block
keeps its place, as if there were no lending.

dask begins tasks that have no place yet. They hold nothing, as long as all of them write: this is
not for graphs whose blocks are made by tasks of their own, which would run ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from heapq import heapify, heappush
from itertools import count
from typing import Any, TypeVar

from zarr_dask.stores.base import Store, is_far

__all__ = ["MOST_SENDING", "LendingPool", "sending"]

_Result = TypeVar("_Result")

MOST_SENDING = 8
"""Tasks that have lent their places, of each pool, whatever they hold."""
_MOST_BYTES = 1 << 23
"""Decoded bytes of their blocks; a service's library may hold each of them twice more."""
_BACK, _NEW = range(2)
"""Who gets a place first."""


class _StoppedError(Exception):
    """No further task is to begin; nobody waits for those that were about to."""


class _Places:
    """The places in which tasks compute, and what those that have lent theirs may hold."""

    def __init__(self, places: int, more: int) -> None:
        self._changed = threading.Condition()
        self._free = places
        self._more = more
        self._waiting: list[tuple[int, int]] = []
        self._numbers = count()
        self._sending = 0
        self._nbytes = 0
        self._stopped = False

    def compute(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """Call a function in a place."""
        self._take(_NEW)
        _THREAD.places = self
        try:
            return function(*args, **kwargs)
        finally:
            _THREAD.places = None
            self._give_back()

    def stop(self) -> None:
        """Let no task begin that has no place yet."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def lend(self, nbytes: int) -> bool:
        """Begin to send; False if there is no room for so many bytes."""
        with self._changed:
            if self._sending == self._more or self._nbytes + nbytes > _MOST_BYTES:
                return False
            self._sending += 1
            self._nbytes += nbytes
        self._give_back()
        return True

    def resume(self, nbytes: int) -> None:
        """Go on computing."""
        with self._changed:
            self._sending -= 1
            self._nbytes -= nbytes
        self._take(_BACK)

    def _take(self, rank: int) -> None:
        with self._changed:
            ticket = (rank, next(self._numbers))
            heappush(self._waiting, ticket)
            self._changed.wait_for(lambda: self._is_next(ticket))
            self._waiting.remove(ticket)
            heapify(self._waiting)
            if self._stopped and rank != _BACK:
                raise _StoppedError
            self._free -= 1
            self._changed.notify_all()

    def _is_next(self, ticket: tuple[int, int]) -> bool:
        if self._stopped:
            return True  # those that come back only end what they have begun
        return self._free > 0 and self._waiting[0] == ticket

    def _give_back(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()


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
        places.resume(nbytes)


class LendingPool(ThreadPoolExecutor):
    """Threads for dask's scheduler, of which so many compute at a time as it is told.

    Parameters
    ----------
    threads
        That compute.
    nbytes
        Decoded bytes of the largest block. There are no more threads than can hold such blocks:
        malloc keeps freed memory for each of them.
    """

    def __init__(self, threads: int, nbytes: int) -> None:
        more = min(MOST_SENDING, _MOST_BYTES // max(nbytes, 1))
        super().__init__(threads + more, "zarr-dask")
        self._places = _Places(threads, more)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As `concurrent.futures.Executor.submit`."""
        return super().submit(self._places.compute, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `concurrent.futures.Executor.shutdown`; tasks that have no place yet never begin."""
        if cancel_futures:
            self._places.stop()
        super().shutdown(wait, cancel_futures=cancel_futures)
