"""Seeing that a process which writes for a job sees what the job was begun in.

A new array has no document before it is whole, so that its tasks have nothing to look for but the
journal. A worker with a file system of its own would make the folders of the array there, and
report stored objects that no other process sees.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from zarr_dask.array.array import Array
from zarr_dask.array.revalidate import this_process
from zarr_dask.errors import StoreOutOfReachError
from zarr_dask.journal import Journal
from zarr_dask.stores.base import is_remote

__all__ = ["BoundedSet", "check_array_seen", "check_begun_once", "check_job_seen_once"]

_MOST_REMEMBERED = 256


class BoundedSet:
    """A set of the tokens that were added last."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, token: object) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """Add a token; the oldest one is removed if there are too many."""
        self._tokens[token] = None
        while len(self._tokens) > _MOST_REMEMBERED:
            self._tokens.popitem(last=False)

    def discard(self, token: str) -> None:
        """Forget one."""
        self._tokens.pop(token, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._tokens.clear()


def check_job_seen_once(journal: Journal, array: Array) -> None:
    """See the journal of a job, or that its array has been made visible since; once per process.

    Nothing is asked of a store that is far away, which is the same for all processes.

    Raises
    ------
    StoreOutOfReachError
        If there is neither.
    """
    if not is_remote(journal.store):
        token = f"{journal.url} {journal.run_id}"
        check_begun_once(token, lambda: journal.job() is not None, journal.url, array)


def check_begun_once(token: str, is_begun: Callable[[], bool], place: str, array: Array) -> None:
    """As `check_job_seen_once`, of a job that is known by something else.

    Parameters
    ----------
    token
        Tells the job from others.
    is_begun
        Looks for what it was begun in.
    place
        Where that is, for messages.
    array
        What it writes, in the place where it will be seen.
    """
    if is_remote(array.store) or token in _SEEN:
        return
    # a task that runs again after the end of its job finds the array
    if not is_begun() and not _is_shown(array):
        raise StoreOutOfReachError(
            f"{array.where} cannot be written by {this_process()}: what the job was begun in, "
            f"{place}, is not there. Either this process does not see that file system, and what "
            "it writes would be lost, or the job has been removed. Give all workers the same file "
            "system, or write to an object store."
        )
    _SEEN.add(token)


def check_array_seen(array: Array) -> None:
    """See the document of an array that other processes have written.

    Raises
    ------
    StoreOutOfReachError
        If this process does not see it.
    """
    if not _is_shown(array):
        raise StoreOutOfReachError(
            f"{array.where} was written, but {this_process()} does not see it: its document is "
            "not there. The workers have another file system, or it has been removed. Give "
            "all processes the same file system, or write to an object store."
        )


def _is_shown(array: Array) -> bool:
    keys = array.node_format.node_keys(array.path)
    return any(array.store.size(key) is not None for key in keys)


_SEEN = BoundedSet()
"""The last jobs that this process has seen."""
