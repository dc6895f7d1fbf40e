"""Targets that are committed when a job ends: sessions that the job opens and ends itself."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from zarr_dask.stores.base import Store
from zarr_dask.stores.wrapper import unwrap

__all__ = ["JobSession", "session_to_write", "transaction"]


class JobSession(ABC):
    """A store whose changes are committed at the end of a ``with`` statement, all or none.

    Outside of one it can be read. If the statement raises, nothing is committed.
    """

    message = ""
    """Description of the job, for the history of the store."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


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
