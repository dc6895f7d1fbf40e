"""Thread pool in which other tasks compute while tasks wait for a remote store.

A task that writes a stored object computes and encodes it, and then waits until a remote store has
received it. dask's threads would wait with it: with two threads on two cores none would compute. So
dask gets more threads than tasks may compute at a time. A task that starts to send lends its slot
to another one, and takes a slot again when it has more to compute. The data waiting to be sent is
limited in number and bytes. A task whose block exceeds the limit keeps its slot until there is
room, as if there were no lending.

dask starts tasks that have no slot yet. They hold nothing, as long as all of them write. So this is
not for graphs whose blocks are made by separate tasks, which would run ahead.

Tasks wait for what they read, too (`zarr_dask._util.threads.wait_context`). They lend their slots
meanwhile, and go on at once when the wait ends, if need be beside those that compute: a task may
hold a lock while it waits, for which those with slots wait. All tasks that are begun hold no more
than one block for each thread of the pool, which is what plans count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from zarr_dask._util.threads import marking_waits
from zarr_dask.stores.base import Store, is_remote

__all__ = [
    "MOST_SENDING",
    "OverlapExecutor",
    "acquire_compute_slot",
    "each_overlapping",
    "max_uploading",
    "release_compute_slot",
]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

MOST_SENDING = 24
"""Maximum number of tasks in a pool that have lent their slots, however little they hold.

Each has encoded its block in a thread of its own, in which malloc keeps the tables of the codec:
of a large block some megabytes, so that their bytes are limited, too. Some of a process's
concurrent requests (`zarr_dask._util.threads.MAX_CONCURRENT_REQUESTS`) are left for tasks that
read their input.
"""
_MOST_BYTES = 14 << 20
"""Decoded bytes of their blocks; the store's library may hold each of them twice more."""
_BACK, _NEW = range(2)
"""Priorities for a slot: returning tasks first, then new ones."""


class _StoppedError(Exception):
    """Raised in tasks that must not start any more; their results are not awaited."""


class _SendingTask:
    """A task that sends, and whether it has lent its slot."""

    __slots__ = ("lent", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.lent = False


class _WaitingTask:
    """A task that waits for a slot."""

    __slots__ = ("rank", "refused", "turn")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.turn = threading.Event()
        """Set when the task has a slot, or is refused one."""
        self.refused = False


class _Slots:
    """Slots for computing tasks, and limits for tasks that have lent theirs."""

    def __init__(self, places: int, more: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._more = more
        self._waiting: list[tuple[int, int, _WaitingTask]] = []
        self._numbers = count()
        self._keeping: list[_SendingTask] = []
        self._sending = 0
        self._nbytes = 0
        self._stopped = False

    def compute(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """Call a function in a slot."""
        self._take(_NEW)
        _THREAD.places = self
        try:
            with marking_waits(self.pause):
                return function(*args, **kwargs)
        finally:
            _THREAD.places = None
            loan, _THREAD.loan = _THREAD.loan, None
            if loan is None or not self._ended(loan):
                self._give_back()

    def stop(self) -> None:
        """Refuse all tasks that have no slot yet."""
        with self._lock:
            self._stopped = True
            self._serve()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let another task begin within the block; this one goes on at once after it.

        A task that sends has lent its slot, or keeps it until there is room.
        """
        if _THREAD.loan is not None:
            yield
            return
        self._give_back()
        try:
            yield
        finally:
            with self._lock:
                self._free -= 1

    def lend(self, nbytes: int) -> _SendingTask:
        """Lend a slot as soon as there is room for this many bytes, at once or while they are sent.

        A task that waits for room keeps its slot, and other tasks may be waiting for room.
        """
        loan = _SendingTask(nbytes)
        with self._lock:
            self._keeping.append(loan)
            self._let()
        return loan

    def keep(self, loan: _SendingTask) -> None:
        """End the sending: a slot that is not lent by now is kept."""
        with self._lock:
            if not loan.lent:
                self._keeping.remove(loan)

    def resume(self, loan: _SendingTask) -> None:
        """Continue computing, in a new slot if the old one was lent."""
        if self._ended(loan):
            self._take(_BACK)

    def _let(self) -> None:
        """Lend the slots of waiting tasks for which there is room now."""
        for loan in [*self._keeping]:
            if self._sending == self._more:
                return
            if self._nbytes + loan.nbytes > _MOST_BYTES:
                continue
            self._keeping.remove(loan)
            loan.lent = True
            self._sending += 1
            self._nbytes += loan.nbytes
            self._free += 1
            self._serve()

    def _ended(self, loan: _SendingTask) -> bool:
        """End a loan; True if the slot was lent."""
        with self._lock:
            if loan.lent:
                self._sending -= 1
                self._nbytes -= loan.nbytes
                self._let()
            return loan.lent

    def _take(self, rank: int) -> None:
        """Wait for a slot."""
        ticket = _WaitingTask(rank)
        with self._lock:
            heappush(self._waiting, (rank, next(self._numbers), ticket))
            self._serve()
        ticket.turn.wait()
        if ticket.refused:
            raise _StoppedError

    def _give_back(self) -> None:
        with self._lock:
            self._free += 1
            self._serve()

    def _serve(self) -> None:
        """Wake only the threads that get a slot, because each wake-up takes time.

        After a stop, returning tasks only finish their work, and need no slot.
        """
        while self._waiting and (self._stopped or self._free > 0):
            _, _, ticket = heappop(self._waiting)
            ticket.refused = self._stopped and ticket.rank != _BACK
            self._free -= not ticket.refused
            ticket.turn.set()


class _SlotHolder(threading.local):
    """Slots and loan of the current thread."""

    places: _Slots | None = None
    loan: _SendingTask | None = None
    """Loan of its slot while it sends, and afterwards until it computes again, if it was lent."""


_THREAD = _SlotHolder()


@contextmanager
def release_compute_slot(store: Store, nbytes: int) -> Iterator[None]:
    """Wait for a remote store within the block, and let another task of the pool compute.

    After the block the task may note and report its results, but must not compute before it has
    called `acquire_compute_slot`.

    Parameters
    ----------
    store
        Store that is waited for.
    nbytes
        Decoded bytes of the block that this task holds meanwhile.
    """
    places = _THREAD.places
    if places is None or not is_remote(store):
        yield
        return
    acquire_compute_slot()
    _THREAD.loan = loan = places.lend(nbytes)
    try:
        yield
    finally:
        places.keep(loan)
        if not loan.lent:
            _THREAD.loan = None


def acquire_compute_slot() -> None:
    """Wait for a slot to compute in, if this task has lent its own."""
    places, loan = _THREAD.places, _THREAD.loan
    if places is not None and loan is not None:
        _THREAD.loan = None
        places.resume(loan)


def max_uploading(nbytes: int) -> int:
    """Return the number of additional threads that a pool has for tasks that send.

    Parameters
    ----------
    nbytes
        Decoded bytes of the largest block. It limits the number, because malloc keeps freed memory
        for each thread.
    """
    return min(MOST_SENDING, _MOST_BYTES // max(nbytes, 1))


def each_overlapping(
    function: Callable[[_Item], object], items: Iterable[_Item], threads: int, more: int
) -> None:
    """Call a function on each item, in an `OverlapExecutor`.

    Raises
    ------
    Exception
        The error of the first item that has one, when all calls that have begun have ended.
    """
    pool = OverlapExecutor(threads, more)
    try:
        for called in [pool.submit(function, item) for item in items]:
            called.result()
    finally:
        pool.shutdown(cancel_futures=True)


class OverlapExecutor(ThreadPoolExecutor):
    """Thread pool for dask's scheduler, which limits the number of computing tasks.

    Parameters
    ----------
    threads
        Number of threads that compute.
    more
        Number of additional threads, for tasks that wait (`max_uploading`).
    """

    def __init__(self, threads: int, more: int) -> None:
        super().__init__(threads + more, "zarr-dask")
        self._places = _Slots(threads, more)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call; see `concurrent.futures.Executor.submit`."""
        return super().submit(self._places.compute, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `concurrent.futures.Executor.shutdown`; tasks without a slot never start."""
        if cancel_futures:
            self._places.stop()
        super().shutdown(wait, cancel_futures=cancel_futures)
