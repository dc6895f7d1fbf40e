"""Slow requests to stores, made concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from zarr_dask.stores.base import Store

__all__ = ["abreast", "waiting_for"]

T = TypeVar("T")
R = TypeVar("R")

_AT_A_TIME = 16
"""As many as a walk uses to list groups."""


def waiting_for(store: Store) -> int:
    """Return the number of concurrent listings for a store: 1 if its requests have no latency."""
    return 1 if store.coalescing.requests == 1 else _AT_A_TIME


def abreast(function: Callable[[T], R], items: Iterable[T], at_a_time: int) -> list[R]:
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
    >>> abreast(len, ["a", "", "abc"], 2)
    [1, 0, 3]
    """
    if at_a_time == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(at_a_time, "zarr_dask-asking") as threads:
        futures = [threads.submit(copy_context().run, function, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # after an error
