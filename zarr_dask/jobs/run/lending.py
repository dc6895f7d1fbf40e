"""Tasks that wait for a service let others compute meanwhile.

A task that writes a stored object computes and encodes it, and then waits until a service has taken
it. dask's threads would wait with it: of two threads on two cores none would compute. So dask is
given more threads than tasks may compute at a time, and a task that begins to send lends its place
to another one; it takes one again when it has more to compute. What waits to be sent is bounded, in
number and in bytes: a task for whose block there is no room keeps its place until there is, as if
there were no lending.

dask begins tasks that have no place yet. They hold nothing, as long as all of them write: this is
not for graphs whose blocks are made by tasks of their own, which would run ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from zarr_dask.stores.base import Store, is_far

__all__ = ["MOST_SENDING", "LendingPool", "computing", "most_sending", "sending"]

_Result = TypeVar("_Result")

MOST_SENDING = 14
"""Tasks that have lent their places, of each pool, however little they hold.

Each has encoded its block in a thread of its own, in which malloc keeps the tables of the codec:
some megabytes where it compresses well. And of the requests that a process may have on their way
(`zarr_dask.pool.SIDE_BY_SIDE`) some are left for tasks that read what they compute."""
_MOST_BYTES = 1 << 23
"""Decoded bytes of their blocks; a service's library may hold each of them twice more."""
_BACK, _NEW = range(2)
"""Who gets a place first."""


class _StoppedError(Exception):
    """No further task is to begin; nobody waits for those that were about to."""


class _Loan:
    """That a task sends, and whether it has lent its place for as long."""

    __slots__ = ("lent", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.lent = False


class _Ticket:
    """A task that waits for a place."""

    __slots__ = ("rank", "refused", "turn")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.turn = threading.Event()
        """That it has one, or gets none."""
        self.refused = False


class _Places:
    """The places in which tasks compute, and what those that have lent theirs may hold."""

    def __init__(self, places: int, more: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._more = more
        self._waiting: list[tuple[int, int, _Ticket]] = []
        self._numbers = count()
        self._keeping: list[_Loan] = []
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
            loan, _THREAD.loan = _THREAD.loan, None
            if loan is None or not self._ended(loan):
                self._give_back()

    def stop(self) -> None:
        """Let no task begin that has no place yet."""
        with self._lock:
            self._stopped = True
            self._serve()

    def lend(self, nbytes: int) -> _Loan:
        """Lend a place as soon as there is room for so many bytes, at once or while they are sent.

        A task that waits for room keeps its place, and others may be waiting for that.
        """
        loan = _Loan(nbytes)
        with self._lock:
            self._keeping.append(loan)
            self._let()
        return loan

    def keep(self, loan: _Loan) -> None:
        """All is sent: who has kept its place until now does not lend it any more."""
        with self._lock:
            if not loan.lent:
                self._keeping.remove(loan)

    def resume(self, loan: _Loan) -> None:
        """Go on computing."""
        if self._ended(loan):
            self._take(_BACK)

    def _let(self) -> None:
        """Let those lend their places for whom there is room now."""
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

    def _ended(self, loan: _Loan) -> bool:
        """End a loan; whether there was one."""
        with self._lock:
            if loan.lent:
                self._sending -= 1
                self._nbytes -= loan.nbytes
                self._let()
            return loan.lent

    def _take(self, rank: int) -> None:
        """Wait for a place."""
        ticket = _Ticket(rank)
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
        """Wake those that get a place, and nobody else: each thread that looks takes its time.

        After a stop those that come back only end what they have begun, and need none.
        """
        while self._waiting and (self._stopped or self._free > 0):
            _, _, ticket = heappop(self._waiting)
            ticket.refused = self._stopped and ticket.rank != _BACK
            self._free -= not ticket.refused
            ticket.turn.set()


class _Thread(threading.local):
    """Where the current thread computes."""

    places: _Places | None = None
    loan: _Loan | None = None
    """Of its place, if it sends, or has sent and not computed since."""


_THREAD = _Thread()


@contextmanager
def sending(store: Store, nbytes: int) -> Iterator[None]:
    """Wait for a store that is far away, and let another task of the pool compute.

    Afterwards the task may note and report what it has done, but must not compute before it has
    called `computing`.

    Parameters
    ----------
    store
        What is waited for.
    nbytes
        Decoded bytes of the block that this task holds meanwhile.
    """
    places = _THREAD.places
    if places is None or not is_far(store):
        yield
        return
    computing()
    loan = places.lend(nbytes)
    try:
        yield
    finally:
        places.keep(loan)
        if loan.lent:
            _THREAD.loan = loan


def computing() -> None:
    """Wait for a place to compute in, if this task has lent its own."""
    places, loan = _THREAD.places, _THREAD.loan
    if places is not None and loan is not None:
        _THREAD.loan = None
        places.resume(loan)


def most_sending(nbytes: int) -> int:
    """How many threads a pool has for tasks that send, besides those that compute.

    Parameters
    ----------
    nbytes
        Decoded bytes of the largest block.
    """
    return min(MOST_SENDING, _MOST_BYTES // max(nbytes, 1))


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
        more = most_sending(nbytes)
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
