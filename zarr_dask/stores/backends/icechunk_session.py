"""Branches of Icechunk that jobs write by URL: one session each, committed when the job ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from zarr_dask.errors import CommitConflictError, ReadOnlyError, StoreError
from zarr_dask.stores.backends.zarr_python import SessionStore, words_of
from zarr_dask.stores.base import Buffer
from zarr_dask.stores.sessions import JobSession

__all__ = ["BranchSession"]

_LOG = logging.getLogger(__name__)
_TRIES = 100
"""Number of times that a commit is put behind those of others."""
_NAMED = 5
"""Number of conflicts that a message names."""


class BranchSession(SessionStore, JobSession):
    """A branch that a job writes to; before and after the job, what the branch held then.

    Parameters
    ----------
    repository
        The repository.
    place
        Its URL.
    branch
        Name of the branch.
    shown
        The store of a session for reading.
    options
        Storage options. ``message`` is that of the commit; by default it says what the job did.
    """

    def __init__(
        self, repository: Any, place: str, branch: str, shown: Any, options: Mapping[str, Any]
    ) -> None:
        self._repository = repository
        self._place = place
        self._branch = branch
        self._shown = shown
        self._options = options
        self._session: Any = None
        self._entered = 0

    @property
    def store(self) -> Any:
        """The store of the session, as of zarr-python."""
        return self._shown if self._session is None else self._session.store

    @property
    def url(self) -> str:
        """The URL of the branch."""
        return f"{self._place}@branch.{self._branch}"

    @property
    def identity(self) -> str:
        """The URL of the branch."""
        return self.url

    def description(self) -> dict[str, Any]:
        """See `zarr_dask.stores.config.DescribedStore`; there are no secrets among the options."""
        return {"url": self.url, **({"options": self._options} if self._options else {})}

    # --- the transaction --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Open the session, at what the branch holds now."""
        if not self._entered:
            try:
                self._session = self._repository.writable_session(self._branch)
            except _errors() as error:
                raise self._failed("opened for writing", error) from error
        self._entered += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit what was written, or drop it if the block has raised."""
        self._entered -= 1
        if self._entered:
            return
        session, self._session = self._session, None
        if kind is None and session.has_uncommitted_changes:
            self._commit(session)

    def _commit(self, session: Any) -> None:
        import icechunk

        message = self._options.get("message") or self.message or "written by zarr_dask"
        try:
            made = session.commit(
                message, rebase_with=icechunk.ConflictDetector(), rebase_tries=_TRIES
            )
        except icechunk.ConflictError as error:
            raise CommitConflictError(
                f"{self.url} got other commits while this job wrote to it, which changed the same: "
                f"{_conflicts(error)}. Nothing of this job was committed, and the branch is as the "
                "others have left it. Repeat the call, which begins with what is there now."
            ) from error
        except _errors() as error:
            raise self._failed("committed", error) from error
        _LOG.info("committed to %s: %s (%s)", self.url, message, made)
        self._shown = self._repository.readonly_session(snapshot_id=made).store

    def _failed(self, what: str, error: Exception) -> StoreError:
        return StoreError(f"{self.url} cannot be {what}: {words_of(error)}")

    # --- changes ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self._check_open(key)
        super().set(key, buffers)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self._check_open(key)
        super().delete(key)

    def _check_open(self, key: str) -> None:
        if self._session is None:
            raise ReadOnlyError(
                f"{self.url} is written by one call, which commits: {key!r} was not changed "
                "outside of it. To write step by step, open a session of Icechunk, pass "
                "session.store, and commit it."
            )


def _errors() -> tuple[type[Exception], ...]:
    import icechunk

    return icechunk.IcechunkError, ValueError


def _conflicts(error: Exception) -> str:
    """Return the first conflicts that Icechunk has found."""
    found = [
        f"{one.path} ({str(one.conflict_type).rpartition('.')[2]})"
        for one in getattr(error, "conflicts", None) or ()
    ]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more or words_of(error)
