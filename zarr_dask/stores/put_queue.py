"""Puts to a remote store that go on while the next stored object is encoded.

A task that writes several objects would otherwise wait for each of them, and a process have no more
requests in flight than it has threads. Within `concurrent_puts`, `put` and `remove` return before
the store has responded; the end of the context waits for all, and raises what has failed.

The bytes that wait in a process are limited: they are copies, of which the store's library may hold
two more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial

from zarr_dask._util.threads import waiting_threads
from zarr_dask.stores.base import Buffer, Store, is_remote

__all__ = [
    "COPIES",
    "MOST_WAITING",
    "PutQueue",
    "concurrent_puts",
    "put",
    "put_later",
    "remove",
    "room_within",
]

MOST_WAITING = 1 << 24
"""Bytes of values that a process may have waiting at a time."""
COPIES = 3
"""Times these bytes that may be held for them, with what a store's library holds."""
_MOST_PUTS = 64
"""Values that a process may have waiting; fewer than there are threads that wait."""


class _Waiting:
    """Number and bytes of the values that wait in this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset in a new process, where nothing waits."""
        self._changed = threading.Condition()
        self._nbytes = self._count = 0

    def enter(self, nbytes: int, most: int) -> None:
        """Wait for room; a value that is larger than that waits until it is alone."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not self._count or (self._nbytes + nbytes <= most and self._count < _MOST_PUTS)
                )
            )
            self._nbytes += nbytes
            self._count += 1

    def leave(self, nbytes: int) -> None:
        with self._changed:
            self._nbytes -= nbytes
            self._count -= 1
            self._changed.notify_all()


_WAITING = _Waiting()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WAITING.forget)


class PutQueue:
    """The puts of one task or call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._futures: list[Future[None]] = []

    def add(self, nbytes: int, request: Callable[[], object]) -> None:
        """Send a request as soon as there is room.

        Raises
        ------
        Exception
            The error of an earlier request, if one is known to have failed.
        """
        self._raise_failed()
        _WAITING.enter(nbytes, self._most)
        try:
            future = waiting_threads().submit(copy_context().run, _send, nbytes, request)
        except BaseException:
            _WAITING.leave(nbytes)
            raise
        with self._lock:
            self._futures.append(future)

    def _raise_failed(self) -> None:
        with self._lock:
            ended = [one for one in self._futures if one.done()]
            self._futures = [one for one in self._futures if not one.done()]
        for one in ended:
            one.result()

    def wait(self) -> None:
        """Wait for all requests; raise the error of the first that has failed."""
        with self._lock:
            futures, self._futures = self._futures, []
        wait(futures)
        for one in futures:
            one.result()


_QUEUE: ContextVar[PutQueue | None] = ContextVar("zarr_dask_put_queue", default=None)


def _send(nbytes: int, request: Callable[[], object]) -> None:
    _QUEUE.set(None)  # of this call's own copy of the context: a store may put other values itself
    try:
        request()
    finally:
        _WAITING.leave(nbytes)


@contextmanager
def concurrent_puts(store: Store, most: int = MOST_WAITING) -> Iterator[PutQueue | None]:
    """Let `put` and `remove` in this context return early; the end waits for all of them.

    Parameters
    ----------
    store
        Store that is written to. Nothing changes where requests have no latency.
    most
        Bytes that may wait in this process.

    Yields
    ------
    PutQueue or None
        The queue, for those who wait for it themselves; None if puts wait as ever.

    Raises
    ------
    Exception
        The error of the first request that has failed.
    """
    if not is_remote(store) or most <= 0:
        yield None
        return
    queue = PutQueue(most)
    token = _QUEUE.set(queue)
    try:
        yield queue
    except BaseException:
        with suppress(Exception):  # the first error is what matters; nothing is left running
            queue.wait()
        raise
    finally:
        _QUEUE.reset(token)
    queue.wait()


def room_within(spare: int) -> int:
    """Return the bytes that may wait in a process that may grow by so many bytes more.

    Examples
    --------
    >>> room_within(10**9) == MOST_WAITING, room_within(3000), room_within(-1)
    (True, 1000, 0)
    """
    return min(MOST_WAITING, max(spare, 0) // COPIES)


def put(store: Store, key: str, buffers: Sequence[Buffer]) -> None:
    """Put a value; see `concurrent_puts`."""
    queue = _QUEUE.get()
    if queue is None:
        store.set(key, buffers)
        return
    value = b"".join(buffers)  # the buffers may be used again when this returns
    queue.add(len(value), partial(store.set, key, [value]))


def remove(store: Store, key: str) -> None:
    """Delete a value; see `concurrent_puts`."""
    put_later(0, partial(store.delete, key))


def put_later(nbytes: int, request: Callable[[], object]) -> None:
    """Call what puts a value, of which so many bytes are held; see `concurrent_puts`."""
    queue = _QUEUE.get()
    if queue is None:
        request()
    else:
        queue.add(nbytes, request)
