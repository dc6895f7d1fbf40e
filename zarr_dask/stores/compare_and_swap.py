"""Conditional writes: a value is put only if it has not changed since it was read.

Two jobs that change the same stored object each read it, change their part, and put it back if it
is unchanged; the second one reads again. No change is lost, and no job waits for one that has died.

A store that can do this is a `ConditionalStore`. Local files are compared and renamed by who has
made a record in their folder (`zarr_dask.stores.file_lock`), which holds on every file system and
between all hosts. Where the system has a lock on folders that can be trusted, it is held besides
(``flock``): the kernel wakes who waits for it, and a record whose maker has died is in nobody's
way. All writers of an object must take part: a plain ``set`` asks nobody.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from random import uniform
from time import sleep
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, cast

from zarr_dask.errors import ConditionalWriteError
from zarr_dask.stores.backends.posix_io import LIST, MOST_REMOVED, close_read, make_folder
from zarr_dask.stores.base import WHOLE, Buffer, Range, Store
from zarr_dask.stores.capabilities import capabilities_of

if TYPE_CHECKING:
    from zarr_dask.stores.file_lock import Record

__all__ = [
    "RECORD_OF_FOLDER",
    "ConditionalStore",
    "FolderLock",
    "LockKeeper",
    "Refusals",
    "as_cas_store",
    "cas_store_or_none",
    "cas_update",
    "content_tag",
    "folder_lock",
    "is_at",
    "lock_keeper",
    "one_by_one",
    "pause_before",
    "until_put",
]

_LOCKS = 64
_ATTEMPTS = 60
"""Every failed one means that somebody else has succeeded."""
RECORD_OF_FOLDER = ".zarr-dask-0000000000000000.tmp"
"""Name of the record of a folder: one that no listing shows. That of a dead process is in nobody's
way: the next one takes it over."""
_UNEXPLAINED = 8
"""Refusals in a row of a store where nothing has changed: one that was asked at the same time as
others may refuse all of them."""
_SHORTEST, _LONGEST = 0.001, 1.0  # seconds, of the longest pause before another try


_MOST_KEPT = 64
"""Times that one lock is used before others get it."""


class FolderLock(NamedTuple):
    """The lock of a folder."""

    descriptor: int | None
    """The folder, open and locked; None where no lock can be trusted."""
    record: Record
    name: object
    """Tells the folder from others."""

    def check(self) -> None:
        """Raise if the lock was lost; to be called right before something is put.

        Raises
        ------
        ConditionalWriteError
            If it was.
        """
        if not (self.record.owner.locked or self.record.is_ours()):
            raise ConditionalWriteError(
                f"{self.record.path}, the record that lets this process alone change objects "
                "beside it, was removed or replaced while it was at work. Nothing was put; run "
                "the job again."
            )


_HELD: ContextVar[Mapping[object, FolderLock]] = ContextVar("_HELD", default=MappingProxyType({}))
"""The folders that are locked by whoever runs, who may lock them once more."""


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

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """Return the value at `key` and its tag; values with equal tags are equal.

        Of a value that is longer than a `BoundedRange` allows, the bytes of that, and any tag.
        """
        ...

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """Put a value if the one at `key` still has the tag; return True if it was put."""
        ...


def as_cas_store(store: Store) -> ConditionalStore:
    """Return the store as one that can put values conditionally.

    Raises
    ------
    ConditionalWriteError
        If it cannot.
    """
    if not capabilities_of(store).conditional_put:
        raise ConditionalWriteError(
            f"{store.url} cannot put a value on the condition that nobody has put another one "
            "meanwhile; write whole stored objects, or let one job alone write them."
        )
    return cast("ConditionalStore", store)


def cas_store_or_none(store: Store, key: str) -> ConditionalStore | None:
    """Return the store as a `ConditionalStore`; None if it cannot put conditionally at this key."""
    try:
        found = as_cas_store(store)
        found.check_conditional(key)
    except ConditionalWriteError:
        return None
    return found


def cas_update(store: Store, key: str, make: Callable[[], bytes]) -> None:
    """Put a value derived from other values; derive it again if another writer was faster.

    Of several concurrent writers, the last one has seen the changes of all others. In a store
    without conditional writes that holds for the threads of one process.

    Raises
    ------
    ConditionalWriteError
        If other writers were faster every time.
    """
    tagged = cas_store_or_none(store, key)
    if tagged is None:
        with one_by_one(store, key):
            store.set(key, [make()])
        return

    refused: list[bytes] = []

    def put(tags: dict[str, Hashable]) -> bool:
        value, tags[key] = tagged.get_tagged(key)
        text = make()
        if refused == [text] and value == text:
            return True  # the put that was refused has been made, or another one like it
        refused[:] = [text]
        return tagged.set_if(key, [text], tags[key])

    until_put(f"{key!r} in {store.url}", put)


class _ValueLocks:
    """Locks by which the threads of this process take turns at values."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset; the new locks are free, also in a forked process."""
        self._locks = tuple(threading.RLock() for _ in range(_LOCKS))

    def of(self, store: Store, key: str) -> threading.RLock:
        """Return the lock of a value, which it may share with others."""
        return self._locks[hash((store.identity, key)) % _LOCKS]


_TURNS = _ValueLocks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURNS.forget)


@contextmanager
def one_by_one(store: Store, key: str) -> Iterator[None]:
    """Let one thread of this process at a time change a value, where the store has no conditions.

    Other processes are not kept out; they must not change it at the same time.
    """
    with _TURNS.of(store, key):
        yield


class Refusals:
    """Refusals of conditional puts, counted as long as nothing has changed in between.

    Parameters
    ----------
    what
        Is changed, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: object = None
        self._unexplained = 0

    def note(self, tags: object) -> int:
        """Note a refusal; return how many before it, in a row, met the same values.

        Parameters
        ----------
        tags
            Of the values that were there when the put was tried.

        Raises
        ------
        ConditionalWriteError
            If nothing has explained the last ones, either.
        """
        self._unexplained = self._unexplained + 1 if tags == self._last else 0
        self._last = tags
        if self._unexplained == _UNEXPLAINED:
            raise ConditionalWriteError(
                f"{self._what} cannot be changed: the store says again and again that another "
                "value has been put meanwhile, but the value is the same. Its conditional writes "
                "do not work as they must; let one job alone write there."
            )
        return self._unexplained


def pause_before(number: int) -> None:
    """Sleep before a try, by its number, for a random time that becomes longer.

    Who tries again at once would meet the same others again; such pauses take them apart.
    """
    if number:
        sleep(uniform(0, min(_SHORTEST * 2**number, _LONGEST)))  # noqa: S311  (no secret)


def until_put(what: str, put: Callable[[dict[str, Hashable]], bool]) -> None:
    """Try to change something that others change as well, with a pause before each new try.

    Parameters
    ----------
    what
        Is changed, for messages.
    put
        Reads and puts values, and returns whether they were put. It is given a dict for the tags
        of what it has read.

    Raises
    ------
    ConditionalWriteError
        If others have been faster again and again, or the store refuses although nothing has
        changed.
    """
    refusals = Refusals(what)
    for number in range(_ATTEMPTS):
        pause_before(number)
        tags: dict[str, Hashable] = {}
        if put(tags):
            return
        refusals.note(tags)
    raise ConditionalWriteError(
        f"{what} was changed by others {_ATTEMPTS} times while this process tried to. Try again "
        "when they have ended."
    )


def content_tag(value: Buffer | None) -> bytes | None:
    """Return the tag of a value: the value itself, which is compared faster than it is hashed.

    Modification times and inode numbers would not do: a value can be replaced twice within one tick
    of a clock, and inode numbers are reused.
    """
    return None if value is None else bytes(value)


@contextmanager
def folder_lock(folder: str, opened: Callable[[], int] | None = None) -> Iterator[FolderLock]:
    """Hold the lock of a folder; wait until nobody else does.

    Parameters
    ----------
    folder
        Its path.
    opened
        Opens the folder, to be locked. By default it is opened by its path, whatever links lead
        there, and made if it is not there.

    Raises
    ------
    ConditionalWriteError
        If it is held by a process that does not let go, or that may have died on another host.
    OSError
        If the folder cannot be opened or created.
    """
    held = _HELD.get()
    mine = held.get(_name(folder)) if held else None
    if mine is not None and mine.record.pid == os.getpid():
        yield mine
        return
    keeper = lock_keeper()
    lock = None if keeper is None else keeper.taken(folder)
    if lock is None:
        lock = _locked(folder, opened or partial(_opened, folder))
    token = _HELD.set({**held, lock.name: lock})
    try:
        yield lock
    finally:
        _HELD.reset(token)
        if keeper is None:
            _unlock(lock)
        else:
            keeper.keep(folder, lock)


class LockKeeper:
    """A context manager that keeps the last `folder_lock` of this thread.

    Objects of one folder are changed in a row. The lock goes when another folder is locked, and
    after some uses, so that others get it. A value is read when its folder is locked, so that it
    need not be read again before it is put.
    """

    def __init__(self) -> None:
        self.thread, self.pid = threading.get_ident(), os.getpid()
        self._kept: tuple[str, FolderLock] | None = None
        self._uses = 0
        self._read: tuple[str, Hashable] | None = None

    def __enter__(self) -> Self:
        outer = lock_keeper()
        if outer is not None:  # of a call that writes while it is asked to put: it must not wait
            outer.let_go()
        self._token = _KEEPER.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _KEEPER.reset(self._token)
        self.let_go()

    def taken(self, folder: str) -> FolderLock | None:
        """Return the lock if it is that of a folder; any other one is let go."""
        if self._kept is None:
            return None
        kept, lock = self._kept
        if kept != folder or not _stands(folder, lock):
            self.let_go()
            return None
        self._kept = None
        return lock

    def keep(self, folder: str, lock: FolderLock) -> None:
        """Keep a lock, unless others have waited for it for long."""
        self._kept = folder, lock
        self.count()

    def count(self) -> None:
        """Count something that others wait for while a lock is kept."""
        self._uses += 1
        if self._uses >= _MOST_KEPT:
            self.let_go()

    def let_go(self) -> None:
        """Let go of the lock, if there is one; a forked process, or another thread, has none."""
        if threading.get_ident() != self.thread:
            return
        kept, self._kept, self._uses, self._read = self._kept, None, 0, None
        if kept is not None and self.pid == os.getpid():
            _unlock(kept[1])

    def lock_ahead(self, folder: str, opened: Callable[[], int]) -> bool:
        """Lock a folder before a value in it is read; True if that lock is kept."""
        if self._kept is None or self._kept[0] != folder:
            with folder_lock(folder, opened):
                pass
        return self._kept is not None

    def note_read(self, key: str, tag: Hashable) -> None:
        """Note the tag of a value that was read since its folder was locked."""
        self._read = key, tag

    def take_read(self, folder: str, key: str, tag: Hashable) -> FolderLock | None:
        """Return the lock, once, under which a value in the folder was read with this tag."""
        read, self._read = self._read, None
        is_same = read is not None and read[0] == key and read[1] is tag
        kept = self._kept
        stands = is_same and kept is not None and kept[0] == folder and _stands(*kept)
        return kept[1] if stands and kept is not None else None


_KEEPER: ContextVar[LockKeeper | None] = ContextVar("_KEEPER", default=None)


def lock_keeper() -> LockKeeper | None:
    """Return the keeper of this thread: others may have got its context."""
    keeper = _KEEPER.get()
    if keeper is None or keeper.thread != threading.get_ident() or keeper.pid != os.getpid():
        return None
    return keeper


def _stands(folder: str, lock: FolderLock) -> bool:
    """True if a kept lock is still that of its folder, which others may have removed."""
    if lock.descriptor is None:
        return lock.record.is_ours()
    return _name(folder) == lock.name


def _unlock(lock: FolderLock) -> None:
    try:
        lock.record.remove()
    finally:
        if lock.descriptor is not None:
            _let_go(lock.descriptor)


def _name(folder: str | int) -> object:
    """Return what tells a folder, or an open one, from others, whatever links lead to it."""
    try:
        found = os.stat(folder)
    except OSError:
        return folder
    return found.st_dev, found.st_ino


def _opened(folder: str) -> int:
    """Open a folder, which is made if it is not there."""
    for _ in range(MOST_REMOVED):
        with suppress(FileNotFoundError):
            return os.open(folder, LIST)
        make_folder(folder)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)


def _locked(folder: str, opened: Callable[[], int]) -> FolderLock:
    """The lock of a folder, where there is one to be trusted, and its record."""
    from zarr_dask.stores.file_lock import RecordTakenError, make_record

    for _ in range(MOST_REMOVED):
        descriptor = _trusted_lock(opened())
        try:
            name = _name(folder if descriptor is None else descriptor)
            if descriptor is None or name == _name(folder):
                path, is_locked = f"{folder}/{RECORD_OF_FOLDER}", descriptor is not None
                record = make_record(path, locked=is_locked, wait=True)
                if descriptor is None or name == _name(folder):
                    return FolderLock(descriptor, record, name)
                record.remove()  # another folder has taken the place of the locked one
        except BaseException as error:
            if descriptor is not None:
                _let_go(descriptor)
            if isinstance(error, RecordTakenError):
                raise ConditionalWriteError(
                    f"objects in {folder} cannot be changed together with others now: {error}"
                ) from error
            if isinstance(error, FileNotFoundError):
                continue
            raise
        _let_go(descriptor)  # it was removed while this waited: the lock is one of nothing
    raise ConditionalWriteError(f"{folder} is removed again and again while objects are put in it.")


def _trusted_lock(descriptor: int) -> int | None:
    """Lock an open folder; None where no lock can be trusted, and it is closed."""
    from zarr_dask.stores.file_lock import NO_LOCKS, has_shared_locks, lock

    try:
        if has_shared_locks(descriptor) and lock(descriptor, wait=True):
            return descriptor
    except OSError as error:
        if error.errno not in NO_LOCKS:
            close_read(descriptor)
            raise
    close_read(descriptor)
    return None


def _let_go(descriptor: int) -> None:
    from zarr_dask.stores.file_lock import unlock

    unlock(descriptor)
    close_read(descriptor)


def is_at(descriptor: int, path: str) -> bool:
    """Return True if an open file or folder is still what a path leads to."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
