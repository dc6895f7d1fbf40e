"""Advisory locks held by running jobs, so that no other job overwrites their output.

A process that works on a job locks a file in its journal (``flock``). The kernel releases the lock
when the process dies for any reason, so that a dead job can be distinguished from a running one.
Several processes may hold one job, as the parts of a plan do. This applies to journals in local
files. In other stores, and on file systems without locks, no job counts as held.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable

from zarr_dask.errors import JobRunningError
from zarr_dask.stores.base import Store
from zarr_dask.stores.local import LocalStore

__all__ = ["HELD", "Hold", "check_none_held", "hold", "is_held"]

HELD = "held"
"""The file that is locked."""


class Hold:
    """A held job, until this is closed or its process dies."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the job."""
        if self._descriptor is not None:
            # a process that was forked meanwhile shares the descriptor
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def hold(store: Store, prefix: str) -> Hold:
    """Hold the job whose journal is below a prefix, for this process."""
    if not isinstance(store, LocalStore):
        return Hold(None)
    try:
        descriptor = os.open(_path(store, prefix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return Hold(None)  # another user's job, or one that has ended
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        return Hold(None)  # the file system has no locks
    return Hold(descriptor)


def is_held(store: Store, prefix: str) -> bool:
    """True if a running process holds the job whose journal is below a prefix."""
    if not isinstance(store, LocalStore):
        return False
    try:
        descriptor = os.open(_path(store, prefix), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def check_none_held(store: Store, keys: Iterable[str], what: str) -> None:
    """Raise if a running process is writing what is to be replaced or removed.

    Parameters
    ----------
    store
        The store that holds the journals.
    keys
        Keys of values in the journals, all of them or only some.
    what
        The data that is being written, for the message.

    Raises
    ------
    JobRunningError
        If one of them is held.
    """
    for key in keys:
        folder, _, name = key.rpartition("/")
        if name == HELD and is_held(store, f"{folder}/"):
            raise JobRunningError(
                f"{what} is being written by a job of a process that is still running (its journal "
                f"is {store.url}/{folder}). Wait until it has ended, or stop it; to write at the "
                "same time would mix the values of both."
            )


def _path(store: LocalStore, prefix: str) -> str:
    return f"{store.root}/{prefix}{HELD}"
