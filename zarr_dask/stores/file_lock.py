"""Locks on open files, and records that stand in for them where they are not shared.

They are `flock` on POSIX, and on Windows a lock of one byte far behind the end of the file. The
system releases them when their holder dies. A system, or a file system, that has none says so by an
`OSError` of a number in `NO_LOCKS`; `has_shared_locks` tells where one cannot be trusted.

Records are files that one process alone has made; they stand in for locks that are not trusted.
Creating a file that must not exist yet is exclusive on every file system, however it is mounted and
between all hosts that see it. Locks are not (`has_shared_locks`): one party may be a host
whose mount keeps them to itself, another the server behind it, whose locks are good. So everybody
makes the record, and whoever can takes the lock besides, which costs nothing to wait for and goes
with its holder.

A record names its process (`zarr_dask.stores.process_identity`). One whose process is known to be
gone is taken away by the next that wants it; of another host that cannot be known, so that an error
names the record, and it is removed by hand. There is no time after which a record is taken for
dead: a process that was stopped and goes on would write beside its successor then.

A lock of the operating system on a file in FUSE, or in a Lustre with the option ``localflock``, is
known to its own host, or to its own mount, alone: another process writes behind it. The mount tells
(`zarr_dask.stores.mounts`), once per device and process. What is not known for certain to share its
locks is taken not to, and nothing is lost by that: a record in the store stands in for the lock
then. A probe would not tell more: two processes of one host agree on locks that another host knows
nothing of.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from zarr_dask.stores.backends.posix_io import LIST, close_read, fresh_bytes
from zarr_dask.stores.key_names import temporary_name
from zarr_dask.stores.mounts import mount_of
from zarr_dask.stores.process_identity import Owner

__all__ = [
    "HAS_LOCKS",
    "NO_LOCKS",
    "Record",
    "RecordTakenError",
    "folder_has_shared_locks",
    "has_shared_locks",
    "lock",
    "make_record",
    "owner_of",
    "unlock",
]


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


_PATIENCE = 60.0
"""Seconds to wait for one and the same holder that is not known to run."""
_SETTLED = 2.0
"""Seconds after which a record that names nobody yet, and whose lock is free, has nobody."""
_FIRST_POLL, _LAST_POLL = 0.001, 0.05  # a file tells nobody when it goes: it can only be asked for


class RecordTakenError(Exception):
    """Another process has the record, or nobody knows that it has not."""

    def __init__(self, path: str, owner: Owner | None) -> None:
        self.path, self.owner = path, owner
        who = "a process that it does not name" if owner is None else f"{owner}"
        super().__init__(
            f"{path} says that {who} is at work. If that process is known to have died, remove "
            "the file, and try again."
        )


_LEFT: set[str] = set()
"""Tokens of records of this process that it could not remove."""
_LOG = logging.getLogger(__name__)


@dataclass
class Record:
    """A record of this process, until it is removed."""

    path: str
    owner: Owner
    pid: int = field(default_factory=os.getpid)

    def is_ours(self) -> bool:
        """True if it is still there, and still that of this process."""
        found = owner_of(self.path)
        return found is not None and found.token == self.owner.token

    def remove(self) -> None:
        """Remove it, if it is still that of this process; a forked process leaves it alone.

        One that cannot be removed is told of by the log: what it was made for is done, and an error
        would make the caller do it once more.
        """
        if self.pid == os.getpid() and (self.owner.locked or self.is_ours()):
            try:
                os.unlink(self.path)  # noqa: PTH108  (in a third of the time)
            except FileNotFoundError:
                pass
            except OSError as error:
                if not self.owner.locked:  # else its lock tells
                    _LEFT.add(self.owner.token)
                _LOG.warning(
                    "%s, which says that this process is at work, could not be removed: %s. "
                    "Nothing else was left undone; remove the file when the process has ended.",
                    self.path,
                    error.strerror,
                )


def owner_of(path: str) -> Owner | None:
    """The owner that a record names; None if there is none, or it names nobody."""
    text = fresh_bytes(path)
    return None if text is None else Owner.parse(text)


def make_record(path: str, *, locked: bool, wait: bool = False) -> Record:
    """Make a record, as the only process that has it.

    Parameters
    ----------
    path
        Of the record.
    locked
        Whether this process holds the lock that goes with it, which is shared by all who lock:
        others who had it are gone then.
    wait
        For others that have the record, as long as they change or run.

    Raises
    ------
    RecordTakenError
        If another process has it.
    OSError
        If the file cannot be made.
    """
    owner = Owner.here(locked=locked)
    before: bytes | None = None
    since, pause = monotonic(), _FIRST_POLL
    while not _created(path, owner.to_json()):
        found = fresh_bytes(path)
        if found is None:
            continue  # it has just gone
        if found != before:
            before, since, pause = found, monotonic(), _FIRST_POLL
        other, waited = Owner.parse(found), monotonic() - since
        if _is_dead(other, locked=locked, waited=waited):
            _take_away(path, found)
        elif _is_in_vain(other, waited, wait=wait):
            raise RecordTakenError(path, other)
        else:
            sleep(pause)
            pause = min(2 * pause, _LAST_POLL)
    return Record(path, owner)


def _created(path: str, text: bytes) -> bool:
    """Create a file that is not there yet; returns False if it is."""
    try:
        _create(path, text)
    except FileExistsError:
        return False
    return True


def _create(path: str, text: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)
    except OSError:
        with suppress(OSError):  # a record that names nobody would be in the way of all
            Path(path).unlink()
        raise


def _is_dead(owner: Owner | None, *, locked: bool, waited: float) -> bool:
    if owner is None:
        return locked and waited > _SETTLED
    return (locked and owner.locked) or owner.token in _LEFT or owner.is_gone()


def _is_in_vain(owner: Owner | None, waited: float, *, wait: bool) -> bool:
    """Return True if a record is not waited for any longer."""
    if not wait:  # but for one that is being made
        return owner is not None or waited > _SETTLED
    return waited > _PATIENCE and not (owner is not None and owner.is_running())


def _take_away(path: str, expected: bytes) -> None:
    """Remove a record of a process that is gone; put back one that another has made meanwhile."""
    aside = Path(path).with_name(temporary_name())
    try:
        Path(path).rename(aside)
    except FileNotFoundError:
        return  # another has been faster
    if fresh_bytes(str(aside)) != expected:
        with suppress(OSError):  # its maker looks again before it puts anything
            Path(path).hardlink_to(aside)
    with suppress(FileNotFoundError):
        aside.unlink()


def has_shared_locks(descriptor: int) -> bool:
    """True if locks on an open file hold between all processes that see it.

    The answer is kept for the device: looking is done once.
    """
    device = os.fstat(descriptor).st_dev
    found = _KNOWN.get(device)
    if found is None:
        found = _KNOWN[device] = _looked_up(descriptor)
    return found


def folder_has_shared_locks(folder: str) -> bool:
    """Return `has_shared_locks` of a folder, which is opened only where that is not known yet."""
    found = _KNOWN.get(os.stat(folder).st_dev)  # noqa: PTH116  (each append asks)
    if found is not None:
        return found
    descriptor = os.open(folder, LIST)
    try:
        return has_shared_locks(descriptor)
    finally:
        close_read(descriptor)


_KNOWN: dict[int, bool] = {}


def _looked_up(descriptor: int) -> bool:
    mount = mount_of(descriptor) if HAS_LOCKS else None
    return mount is not None and mount.has_shared_locks
