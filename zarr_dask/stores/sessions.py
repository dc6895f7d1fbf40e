"""Targets that are committed when a job ends: sessions that the job opens and ends itself.

A job that can be resumed commits now and then, to a branch of its own: a checkpoint. Receipts of
its tasks are stored with the checkpoint that holds what they are about, and count with it alone.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from zarr_dask.stores.base import Store
from zarr_dask.stores.wrapper import unwrap

__all__ = [
    "CarriedReceipts",
    "JobSession",
    "SessionFork",
    "job_session",
    "session_to_write",
    "transaction",
    "when_committed",
]

CarriedReceipts = dict[tuple[str, ...], list[tuple[bytes, int]]]
"""Receipts as lines, and the number of stored objects of each, by the journal they are for."""


class SessionFork(ABC):
    """A session or a fork of one, which carries the receipts of what was put into it."""

    carried: CarriedReceipts

    def carry(self, journal: tuple[str, ...], line: bytes, objects: int) -> None:
        """Keep a receipt until what it is about is merged, and committed."""
        self.carried.setdefault(journal, []).append((line, objects))


class JobSession(SessionFork):
    """A store whose changes are committed at the end of a ``with`` statement, all or none.

    Outside of one it can be read. If the statement raises, nothing is committed but checkpoints,
    which readers of the branch do not see.
    """

    committing: threading.Lock
    """Held while receipts are stored and committed, one batch after the other."""
    carrying: threading.Lock
    """Held while receipts are added or taken, in many threads."""
    since: dict[tuple[str, ...], float]
    """Time of the first receipt after the last commit, by `time.monotonic` and journal."""
    message = ""
    """Description of the job, for the history of the store."""
    after: list[Callable[[], None]]
    """Functions that describe what was committed elsewhere, to be called once after the commit."""

    def carry(self, journal: tuple[str, ...], line: bytes, objects: int) -> None:
        """See `SessionFork.carry`."""
        with self.carrying:
            super().carry(journal, line, objects)

    def run_after(self) -> None:
        """Call the functions that wait for the commit."""
        while self.after:
            self.after.pop(0)()

    def take(self, journal: tuple[str, ...]) -> list[tuple[bytes, int]]:
        """Return the receipts for a journal, which are no longer carried."""
        with self.carrying:
            self.since.pop(journal, None)
            return self.carried.pop(journal, [])

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of its checkpoints; empty if it makes none."""

    @abstractmethod
    def resume(self, name: str = "") -> None:
        """Make checkpoints from now on; show what those of a name hold, if it is given.

        Raises
        ------
        ResumeError
            If it goes on with those of another name already, or has none.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Show what everybody sees now, without checkpoints; nothing was changed here yet."""

    @abstractmethod
    def checkpoint(self, name: str) -> None:
        """Commit all changes for this job alone, under a name of this checkpoint.

        Raises
        ------
        JobReplacedError
            If another process goes on with the job.
        """

    @abstractmethod
    def has_checkpoint(self, name: str) -> bool:
        """True if a checkpoint of this name was committed."""

    @property
    @abstractmethod
    def has_checkpoints(self) -> bool:
        """True if there is a checkpoint."""

    @abstractmethod
    def publish(self, names: Sequence[str] = ()) -> None:
        """Commit all changes for everybody, and these names as those of checkpoints.

        Raises
        ------
        CommitConflictError
            If others have committed changes of the same meanwhile.
        """

    @abstractmethod
    def discard(self, name: str) -> None:
        """Remove the checkpoints of a job."""


def job_session(store: Store) -> JobSession | None:
    """Return the session behind all wrappers that its job commits; None for other stores."""
    found = unwrap(store)
    return found if isinstance(found, JobSession) else None


def session_to_write(store: Store) -> Any:
    """Return a session for a store that was opened by URL, to be written; None for other stores.

    Returns
    -------
    JobSession or None
        The session, which is a store.

    Raises
    ------
    ReadOnlyError
        If the URL names a version that never changes.
    """
    opens = getattr(unwrap(store), "session_to_write", None)
    return None if opens is None else opens()


def when_committed(session: Any, call: Callable[[], None]) -> None:
    """Call a function after the commit, which may be refused; at once without a `JobSession`."""
    if isinstance(session, JobSession):
        session.after.append(call)
    else:
        call()


@contextmanager
def transaction(url: Any, store: Store, message: str) -> Iterator[Store]:
    """Yield the store of a location that was given as `url`; commit what a block writes to it.

    Stores without commits are yielded as they are.
    """
    is_url = isinstance(url, str | os.PathLike)
    session = session_to_write(store) if is_url else None
    if session is None:
        yield store
        return
    session.message = message
    with session:
        yield session
