"""Jobs that a living process works on: nobody may begin anew what they write.

A process that works on a job locks a file in its journal (``flock``). The kernel undoes that when
the process dies, however it dies, so that a job that has died is told from one that runs. Several
processes may hold one job, as the parts of a plan do. That is so for journals in local files; of
other ones, and on file systems without locks, nobody can tell, and no job counts as held.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable

from zarr_dask.errors import JobRunningError
from zarr_dask.stores.base import Store
from zarr_dask.stores.below import open_in
from zarr_dask.stores.local import LocalStore

__all__ = ["HELD", "Hold", "check_none_held", "hold", "is_held"]

HELD = "held"
"""The file that is locked."""


class Hold:
    """A job that is held until this is closed, or its process dies."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            # a process that was forked meanwhile has the descriptor too
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def hold(store: Store, prefix: str) -> Hold:
    """Say that this process works on the job whose journal lies below a prefix."""
    if not isinstance(store, LocalStore):
        return Hold(None)
    try:
        descriptor = open_in(store.root, f"{prefix}{HELD}", os.O_RDWR | os.O_CREAT)
    except OSError:
        return Hold(None)  # somebody else's job, or one that has ended
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        return Hold(None)  # no locks here
    return Hold(descriptor)


def is_held(store: Store, prefix: str) -> bool:
    """Whether some process is known to work on the job whose journal lies below a prefix."""
    if not isinstance(store, LocalStore):
        return False
    try:
        descriptor = open_in(store.root, f"{prefix}{HELD}", os.O_RDWR)
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
    """Refuse to begin anew, or to remove, what a process that lives is writing.

    Parameters
    ----------
    store
        Where journals lie.
    keys
        Of values in them, all of them or only some.
    what
        Is written, for the message.

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
