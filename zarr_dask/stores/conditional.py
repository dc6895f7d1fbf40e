"""Putting a value only where nobody else has put another one since it was read.

Two jobs that change one stored object each read it, change their part, and put it back if it is
still what they have read; who comes second reads again. Nothing is lost, and nobody waits for a
job that has died.

A store that can do this is a `ConditionalStore`. Local files are compared and renamed under a lock
of the operating system on their folder (``flock``): there is no lock file that could be left behind
or removed at the wrong moment, and the kernel releases the lock when its holder dies. All writers
of an object must take part: a plain ``set`` asks nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from random import uniform
from time import sleep
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
    "until_put",
]

_ATTEMPTS = 100
"""Every failed one means that somebody else has succeeded."""
_UNEXPLAINED = 8
"""Refusals in a row of a store where nothing has changed: one that was asked at the same time as
others may refuse all of them."""
_SHORTEST, _LONGEST = 0.001, 1.0  # seconds, of the longest pause before another try
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


@runtime_checkable
class ConditionalStore(Protocol):
    """A store that can put a value on a condition."""

    def check_conditional(self, key: str) -> None:
        """Whether it can do so at `key`.

        Raises
        ------
        ConditionalWriteError
            If the place has no means for it.
        """
        ...

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """The value at `key` and its tag; values with equal tags are equal."""
        ...

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """As `Store.set`, if the value at `key` still has the tag; returns whether it was put."""
        ...


def conditional(store: Store) -> ConditionalStore:
    """The store, as one that puts values on a condition.

    Raises
    ------
    ConditionalWriteError
        If it is none.
    """
    if not isinstance(store, ConditionalStore):
        raise ConditionalWriteError(
            f"{store.url} cannot put a value on the condition that nobody has put another one "
            "meanwhile; write whole stored objects, or let one job alone write them."
        )
    return store


def conditional_at(store: Store, key: str) -> ConditionalStore | None:
    """The store, as one that puts values on a condition; None if it cannot at this key."""
    try:
        found = conditional(store)
        found.check_conditional(key)
    except ConditionalWriteError:
        return None
    return found


def put_latest(store: Store, key: str, make: Callable[[], bytes]) -> None:
    """Put what is made of other values, and make it again if somebody has put another meanwhile.

    Of several who do so, whoever comes last has seen what all the others had seen. A store that
    knows no conditions gets what was made at once.

    Raises
    ------
    ConditionalWriteError
        If others have been faster again and again.
    """
    tagged = conditional_at(store, key)
    if tagged is None:
        store.set(key, [make()])
        return

    def put(tags: dict[str, Hashable]) -> bool:
        _, tags[key] = tagged.get_tagged(key)
        return tagged.set_if(key, [make()], tags[key])

    until_put(f"{key!r} in {store.url}", put)


def until_put(what: str, put: Callable[[dict[str, Hashable]], bool]) -> None:
    """Try to change something that others change as well, with a pause before each new try.

    Who tries again at once would meet the same others again; pauses of random lengths take them
    apart.

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
    last: dict[str, Hashable] = {}
    unexplained = 0
    for number in range(_ATTEMPTS):
        if number:
            sleep(uniform(0, min(_SHORTEST * 2**number, _LONGEST)))  # noqa: S311  (no secret)
        tags: dict[str, Hashable] = {}
        if put(tags):
            return
        unexplained = unexplained + 1 if tags == last else 0
        if unexplained == _UNEXPLAINED:
            raise ConditionalWriteError(
                f"{what} cannot be changed: the store says again and again that another value has "
                "been put meanwhile, but the value is the same. Its conditional writes do not "
                "work as they must; let one job alone write there."
            )
        last = tags
    raise ConditionalWriteError(
        f"{what} was changed by others {_ATTEMPTS} times while this process tried to. Try again "
        "when they have ended."
    )


def tag_of(value: Buffer | None) -> Hashable:
    """A digest of a value; None for none.

    Times and inode numbers would not do: a value can be replaced twice within one tick of a clock,
    and inode numbers are used again.
    """
    return None if value is None else blake2b(value, digest_size=20).digest()


@contextmanager
def folder_lock(folder: str, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is not there.

    Parameters
    ----------
    folder
        Its path.
    wait
        Until nobody else holds the lock; else go on without it.

    Raises
    ------
    ConditionalWriteError
        If the file system has no such locks.
    OSError
        If there is no such folder, and none can be made.
    """
    descriptor = _locked(folder, wait=wait)
    try:
        yield
    finally:
        # a process that was forked meanwhile has the descriptor too: closing would not be enough
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
        os.close(descriptor)  # it was removed while this waited: the lock is one of nothing
    raise ConditionalWriteError(f"{folder} is removed again and again while objects are put in it.")


def _lock(descriptor: int, folder: str, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return  # somebody holds it: there are locks
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
