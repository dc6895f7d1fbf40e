"""Conditional writes: a value is put only if it has not changed since it was read.

Two jobs that change the same stored object each read it, change their part, and put it back if it
is unchanged; the second one reads again. No change is lost, and no job waits for one that has died.

A store that can do this is a `ConditionalStore`. Local files are compared and renamed under a lock
of the operating system on their folder (``flock``): there is no lock file that could be left behind
or removed at the wrong moment, and the kernel releases the lock when its holder dies. All writers
of an object must take part: a plain ``set`` does not check.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from zarr_dask.errors import ConditionalWriteError
from zarr_dask.stores.base import Buffer, Store
from zarr_dask.stores.files import MOST_REMOVED, make_folder

__all__ = [
    "ConditionalStore",
    "conditional",
    "conditional_at",
    "folder_lock",
    "put_latest",
    "tag_of",
]

_ATTEMPTS = 1000
"""Attempts before giving up; each one fails only if another writer has succeeded."""
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


@runtime_checkable
class ConditionalStore(Protocol):
    """A store that can put a value conditionally."""

    def check_conditional(self, key: str) -> None:
        """Raise if the store cannot put conditionally at `key`.

        Raises
        ------
        ConditionalWriteError
            If the location does not support it.
        """
        ...

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """Return the value at `key` and its tag; values with equal tags are equal."""
        ...

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """Put a value if the one at `key` still has the tag; return True if it was put."""
        ...


def conditional(store: Store) -> ConditionalStore:
    """Return the store as one that can put values conditionally.

    Raises
    ------
    ConditionalWriteError
        If it cannot.
    """
    if not isinstance(store, ConditionalStore):
        raise ConditionalWriteError(
            f"{store.url} cannot put a value on the condition that nobody has put another one "
            "meanwhile; write whole stored objects, or let one job alone write them."
        )
    return store


def conditional_at(store: Store, key: str) -> ConditionalStore | None:
    """Return the store as a `ConditionalStore`; None if it cannot put conditionally at this key."""
    try:
        found = conditional(store)
        found.check_conditional(key)
    except ConditionalWriteError:
        return None
    return found


def put_latest(store: Store, key: str, make: Callable[[], bytes]) -> None:
    """Put a value derived from other values; derive it again if another writer was faster.

    Of several concurrent writers, the last one has seen the changes of all others. A store without
    conditional writes is written unconditionally.

    Raises
    ------
    ConditionalWriteError
        If other writers were faster every time.
    """
    tagged = conditional_at(store, key)
    if tagged is None:
        store.set(key, [make()])
        return
    for _ in range(_ATTEMPTS):
        _, tag = tagged.get_tagged(key)
        if tagged.set_if(key, [make()], tag):
            return
    raise ConditionalWriteError(
        f"{key!r} in {store.url} was changed by others {_ATTEMPTS} times while this process tried "
        "to. Try again when they have ended."
    )


def tag_of(value: Buffer | None) -> Hashable:
    """Return a digest of a value; None for None.

    Modification times and inode numbers would not do: a value can be replaced twice within one tick
    of a clock, and inode numbers are reused.
    """
    return None if value is None else blake2b(value, digest_size=20).digest()


@contextmanager
def folder_lock(folder: str, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder, which is created if necessary.

    Parameters
    ----------
    folder
        Its path.
    wait
        Wait until the lock is free; else continue without it.

    Raises
    ------
    ConditionalWriteError
        If the file system has no such locks.
    OSError
        If the folder does not exist and cannot be created.
    """
    descriptor = _locked(folder, wait=wait)
    try:
        yield
    finally:
        # a process that was forked meanwhile shares the descriptor: closing it would not unlock
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _locked(folder: str, *, wait: bool) -> int:
    for _ in range(MOST_REMOVED):
        make_folder(folder)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            _lock(descriptor, folder, wait=wait)
            if _is(descriptor, folder):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed while this waited: the lock protects nothing
    raise ConditionalWriteError(f"{folder} is removed again and again while objects are put in it.")


def _lock(descriptor: int, folder: str, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return  # another process holds it, so there are locks
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise ConditionalWriteError(
            f"the file system of {folder} has no locks on folders ({error.strerror}), as NFS has "
            "none, so that two jobs cannot share a stored object there; write whole stored "
            "objects, or let one job alone write them."
        ) from error


def _is(descriptor: int, folder: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False
