"""Locks of the operating system on open files: the only module that knows how they are asked for.

They are `flock` on POSIX, and on Windows a lock of one byte far behind the end of the file. The
system releases them when their holder dies. A system, or a file system, that has none says so by an
`OSError` of a number in `NO_LOCKS`; `zarr_dask.stores.mounts` tells where one cannot be trusted.
"""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import Any

__all__ = ["HAS_LOCKS", "NO_LOCKS", "lock", "unlock"]

NO_LOCKS = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)
"""Numbers of errors that say that there are no locks."""


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


_POSIX, _WINDOWS = _module("fcntl"), _module("msvcrt")
HAS_LOCKS = _POSIX is not None or _WINDOWS is not None
"""True on systems that have any locks."""
_BYTE = 1 << 62  # of a file that is locked on Windows: no value has it


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until it is unlocked, or its process dies.

    Parameters
    ----------
    descriptor
        Of the file, or of a folder on POSIX.
    shared
        Let others lock it so as well. Windows has no such locks: the first one holds it.
    wait
        Until nobody else holds the lock.

    Returns
    -------
    bool
        False if somebody else holds it.

    Raises
    ------
    OSError
        If there are no locks (`NO_LOCKS`), or something else is wrong.
    """
    if _POSIX is not None:
        kind = _POSIX.LOCK_SH if shared else _POSIX.LOCK_EX
        try:
            _POSIX.flock(descriptor, kind | (0 if wait else _POSIX.LOCK_NB))
        except BlockingIOError:
            return False
        return True
    if _WINDOWS is not None:
        return _lock_on_windows(descriptor, wait=wait)
    raise OSError(errno.ENOLCK, "this system has no locks on files")


def unlock(descriptor: int) -> None:
    """Give up the lock of an open file; nothing happens where there are no locks.

    Closing the file is not enough where a process was forked meanwhile, which has it open too.
    """
    try:
        if _POSIX is not None:
            _POSIX.flock(descriptor, _POSIX.LOCK_UN)
        elif _WINDOWS is not None:
            _at_byte(descriptor, _WINDOWS.LK_UNLCK)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _lock_on_windows(descriptor: int, *, wait: bool) -> bool:
    while True:
        try:
            _at_byte(descriptor, _WINDOWS.LK_LOCK if wait else _WINDOWS.LK_NBLCK)
        except OSError as error:
            if error.errno == errno.EDEADLK and wait:
                continue  # the system gives up after ten seconds
            if error.errno in {errno.EACCES, errno.EDEADLK}:
                return False
            raise
        return True


def _at_byte(descriptor: int, how: int) -> None:
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _BYTE, os.SEEK_SET)
    try:
        _WINDOWS.locking(descriptor, how, 1)
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
