"""Slow requests to stores, made concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from threading import Event, Lock
from typing import TypeVar

from zarr_dask._util.threads import most_requests, parallel_for
from zarr_dask.stores.base import Store

__all__ = [
    "each_abreast",
    "imap_concurrently",
    "listing_concurrency",
    "map_concurrently",
    "transfers_for",
]

T = TypeVar("T")
R = TypeVar("R")

_AT_A_TIME = 32
"""As many as a walk uses to list groups."""


def listing_concurrency(store: Store) -> int:
    """Return the number of concurrent listings for a store: 1 if its requests have no latency."""
    return 1 if store.coalescing.max_concurrent_requests == 1 else _AT_A_TIME


def transfers_for(store: Store) -> int:
    """Return the number of objects of a store to read or write at a time; 1 without latency.

    The requests of all of them are still bounded by `zarr_dask._util.threads.request_slots`.
    """
    return 1 if store.coalescing.max_concurrent_requests == 1 else most_requests()


def each_abreast(function: Callable[[T], object], items: Iterable[T], at_a_time: int) -> None:
    """Call a function on each item concurrently; items are taken when a thread is free for them.

    Parameters
    ----------
    function
        Mostly waits; safe to call from many threads.
    items
        Arguments of the calls; there may be many.
    at_a_time
        Maximum number of concurrent calls; 1 for as many as there are cores.

    Raises
    ------
    Exception
        The first error of a call; calls that have not begun by then are not made.
    """
    if at_a_time == 1:
        parallel_for(function, items, None)
        return
    coming, lock, failed = iter(items), Lock(), Event()

    def next_items() -> list[T]:
        with lock:
            return [] if failed.is_set() else [*islice(coming, 1)]

    def drain(_: int) -> None:
        try:
            while taken := next_items():
                function(taken[0])
        except BaseException:
            failed.set()
            raise

    map_concurrently(drain, range(at_a_time), at_a_time)


def map_concurrently(function: Callable[[T], R], items: Iterable[T], at_a_time: int) -> list[R]:
    """Call a function on each item concurrently, and return the results in order.

    Parameters
    ----------
    function
        Mostly waits; safe to call from many threads.
    items
        Arguments of the calls.
    at_a_time
        Maximum number of concurrent calls.

    Raises
    ------
    Exception
        The error of the first item that has one; calls that have not begun by then are not made.

    Examples
    --------
    >>> map_concurrently(len, ["a", "", "abc"], 2)
    [1, 0, 3]
    """
    return list(imap_concurrently(function, items, at_a_time))


def imap_concurrently(
    function: Callable[[T], R], items: Iterable[T], at_a_time: int
) -> Iterator[R]:
    """Yield the results of `map_concurrently` in order, each as soon as it is available.

    Examples
    --------
    >>> next(imap_concurrently(len, ["a", "", "abc"], 2))
    1
    """
    if at_a_time == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(at_a_time, "zarr_dask-asking") as threads:
        futures = deque(threads.submit(copy_context().run, function, item) for item in items)
        try:
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()  # after an error
