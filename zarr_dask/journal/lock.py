"""Advisory locks held by running jobs, so that no other job overwrites their output.

A process that works on a job locks a file in its journal (`zarr_dask.stores.file_lock`), and makes
a record beside it that names the process. The kernel undoes the lock when the process dies, however
it dies, so that a job that has died is told from one that runs. Where locks are known to one host,
or to one mount, alone (`stores.file_lock`), the record tells: its process is at work unless
it is known to be gone. Several processes may hold one job, as the parts of a plan do. That is so
for journals in local files; of other ones nobody can tell, and no job counts as held.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from random import uniform
from secrets import token_hex
from typing import Protocol

from zarr_dask.errors import JobRunningError
from zarr_dask.stores.backends.posix_io import LIST, close_read, fresh_bytes
from zarr_dask.stores.base import Store
from zarr_dask.stores.compare_and_swap import RECORD_OF_FOLDER
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.file_lock import (
    Record,
    RecordTakenError,
    has_shared_locks,
    lock,
    make_record,
    owner_of,
    unlock,
)
from zarr_dask.stores.no_follow import open_in
from zarr_dask.stores.process_identity import Owner

__all__ = [
    "HELD",
    "INTERVAL",
    "LOOKS",
    "Fence",
    "JobLock",
    "JobLooks",
    "SameJobRunningError",
    "check_not_locked",
    "is_locked",
    "lock_job",
    "pauses",
    "sweep_turns",
    "turns_folder",
    "wait_out",
]

HELD = "held"
"""The file that is locked; names of records begin so."""
_TURNS = re.compile(r"\.zarr-dask-[0-9a-f]{16}\.lock")
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class JobLock:
    """A held job, until this is closed or its process dies."""

    def __init__(self, descriptor: int | None, record: Record | None = None) -> None:
        self._descriptor = descriptor
        self._record = record

    @property
    def has_record(self) -> bool:
        """True if a record shows the held job to those who do not see the lock, too."""
        return self._record is not None

    def close(self) -> None:
        """Let go of it."""
        if self._record is not None:
            with suppress(OSError):  # whoever finds it later sees that its process is gone
                self._record.remove()
            self._record = None
        if self._descriptor is not None:
            unlock(self._descriptor)
            close_read(self._descriptor)
            self._descriptor = None


def lock_job(store: Store, prefix: str) -> JobLock:
    """Hold the job whose journal is below a prefix, for this process."""
    if not isinstance(store, FileStore):
        return JobLock(None)
    try:
        descriptor = open_in(store.root, f"{prefix}{HELD}", os.O_RDWR | os.O_CREAT)
    except OSError:
        return JobLock(None)  # somebody else's job, or one that has ended
    locked = False
    with suppress(OSError):
        locked = has_shared_locks(descriptor) and lock(descriptor, shared=True, wait=True)
    if not locked:
        close_read(descriptor)
    record = None
    with suppress(OSError, RecordTakenError):
        record = make_record(f"{_path(store, prefix)}-{token_hex(8)}", locked=locked)
    return JobLock(descriptor if locked else None, record)


def is_locked(store: Store, prefix: str) -> bool:
    """True if some process is at work on the job whose journal lies below a prefix.

    Or if nobody here can tell that it is not.
    """
    return isinstance(store, FileStore) and _held_by(store, prefix) is not None


def _held_by(store: FileStore, prefix: str) -> str | None:
    """The file that says that somebody holds a job; None if there is none."""
    path = _path(store, prefix)
    trusted = False
    with suppress(OSError):  # else there is none, or it is not ours to open
        descriptor = open_in(store.root, f"{prefix}{HELD}", os.O_RDWR)
        try:
            trusted = has_shared_locks(descriptor)
            if trusted and not lock(descriptor):
                return path
        except OSError:
            trusted = False
        finally:
            close_read(descriptor)
    for record in (path, *_records(path)):
        owner = _owner_of_claim(path) if record == path else owner_of(record)
        # where nobody has the lock, those who had it are gone
        if owner is not None and not (trusted and owner.locked) and not owner.is_gone():
            return record
    return None


def _owner_of_claim(path: str) -> Owner | None:
    """Return the owner of a claim that has not ended (`zarr_dask.journal.claims`), if it is one."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        claim = json.loads(fresh_bytes(path) or b"")
        if claim.get("ended") is None and claim.get("given_up") is not True:
            return Owner.of(claim["owner"])
    return None


def _records(path: str) -> Iterator[str]:
    folder, _, start = path.rpartition("/")
    with suppress(OSError):
        names = os.listdir(folder)  # noqa: PTH208  (in a tenth of the time)
        yield from (f"{folder}/{name}" for name in sorted(names) if name.startswith(f"{start}-"))


def check_not_locked(store: Store, keys: Iterable[str], what: str) -> None:
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
        if name != HELD or not isinstance(store, FileStore):
            continue
        found = _held_by(store, f"{folder}/")
        if found is None:
            continue
        owner = owner_of(found) or _owner_of_claim(found)
        who = (
            ""
            if owner is None
            else (
                f" It is held by {owner}, as {found} says. If that process has died on a host that "
                "cannot be asked, remove that file."
            )
        )
        raise JobRunningError(
            f"{what} is being written by a job of a process that is still running (its journal "
            f"is {store.url}/{folder}). Wait until it has ended, or stop it; to write at the "
            f"same time would mix the values of both.{who}"
        )


def _path(store: FileStore, prefix: str) -> str:
    return f"{store.root}/{prefix}{HELD}"


# --- equal calls, which take turns in a folder of local files -------------------------------------


def turns_folder(root: str, prefix: str) -> str:
    """Return the folder in which equal calls of a job, by its journal's prefix, take turns."""
    return f"{root}/.zarr-dask-{sha256(prefix.encode()).hexdigest()[:16]}.lock"


def sweep_turns(root: str) -> None:
    """Remove such folders in which killed processes had their turn, and no other one is at work."""
    with suppress(OSError):
        for name in os.listdir(root):  # noqa: PTH208  (in a tenth of the time)
            if _TURNS.fullmatch(name):
                _sweep_turn(f"{root}/{name}")


def _sweep_turn(folder: str) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, LIST | os.O_NOFOLLOW)
        try:
            if has_shared_locks(descriptor) and lock(descriptor):
                record = f"{folder}/{RECORD_OF_FOLDER}"
                owner = owner_of(record)
                if owner is not None and (owner.locked or owner.is_gone()):
                    os.unlink(record)  # noqa: PTH108
                os.rmdir(folder)  # noqa: PTH106
        finally:
            close_read(descriptor)


# --- remote stores, where no job is held ----------------------------------------------------------

INTERVAL = 1.0
"""Seconds for which a process relies on what it has seen of its job: a process that was stopped
looks again when it goes on.
"""
_LATE = 2.0
"""Seconds that a request may take in which a stopped process had been, above that."""
_MOST_LOOKS = 256
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0  # seconds between two looks at a record


def _now() -> float:
    """Return a time that goes on while the process, or the host, is stopped."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def wait_out() -> None:
    """Wait as long as a job that was fenced a moment ago may rely on its last look."""
    _wait(INTERVAL + _LATE)


class SameJobRunningError(JobRunningError):
    """Another process works on the same resumable job; nothing was written.

    Parameters
    ----------
    what
        The node, for the message.
    record
        The location of the record that says so.
    owner
        The process.
    is_at_work
        Looks at the record again; returns True while the process works on the job.
    """

    def __init__(self, what: str, record: str, owner: object, is_at_work: Callable[[], bool]):
        super().__init__(
            f"the same job is at work on {what} ({owner}), as {record} says; nothing was written. "
            "Wait until it has ended."
        )
        self._is_at_work = is_at_work

    def wait(self) -> None:
        """Wait until the other process has ended the job, has failed, or has died."""
        for pause in pauses():
            if not self._is_at_work():
                return
            _wait(pause)


def pauses() -> Iterator[float]:
    """Yield the seconds between looks at a record: nobody is told, it can only be asked for."""
    longest = _SHORTEST_PAUSE
    while True:
        yield uniform(0, longest)  # noqa: S311
        longest = min(2 * longest, _LONGEST_PAUSE)


class JobLooks:
    """Times at which this process has looked at its last jobs."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset; the new lock is free, also in a forked process, which has looked at nothing."""
        self._lock = threading.Lock()
        self._times: dict[tuple[str, ...], float] = {}
        self._begun: dict[tuple[str, ...], tuple[float, Future[None]]] = {}
        """Looks that have not ended: when each began, and its end."""

    def now(self) -> float:
        """Return the time, to be noted if the look that begins now finds nothing wrong."""
        return _now()

    def note(self, job: tuple[str, ...], at: float | None = None) -> None:
        """Say that this process sees a job, as one that it has just begun."""
        with self._lock:
            while len(self._times) >= _MOST_LOOKS:
                del self._times[next(iter(self._times))]
            self._times[job] = _now() if at is None else at

    def now_and_then(self, job: tuple[str, ...], check: Callable[[], None]) -> None:
        """Call the check of a job, unless this process has done so a moment ago.

        Threads for which it is due at the same time share one look, and its error.

        Parameters
        ----------
        job
            Tells it from others.
        check
            Raises if another job has taken its place.
        """
        before = _now()
        while self._is_due(job, before):
            with self._lock:
                begun, look = self._begun.setdefault(job, (before, Future[None]()))
                is_own = look.set_running_or_notify_cancel() if not look.running() else False
            if not is_own:
                look.result()
                if before - begun <= INTERVAL:
                    return
                continue  # it was older than that
            try:
                check()
            except BaseException as error:
                del self._begun[job]
                look.set_exception(error)
                raise
            self.note(job, before)
            del self._begun[job]
            look.set_result(None)
            return

    def _is_due(self, job: tuple[str, ...], now: float) -> bool:
        last = self._times.get(job)
        return last is None or now - last > INTERVAL


class Fence(Protocol):
    """A look by which a job finds out that another one has taken its place."""

    def fence(self) -> None:
        """Look, unless this process has done so a moment ago.

        Raises
        ------
        JobReplacedError
            If one has.
        """
        ...


LOOKS = JobLooks()
"""The looks of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOKS.forget)
