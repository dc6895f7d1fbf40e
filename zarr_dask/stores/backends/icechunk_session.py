"""Branches of Icechunk that jobs write by URL: one session each, committed when the job ends.

A job that can be resumed has a branch of its own, ``zarr-dask.<id>``. It holds one commit behind
what the job began with, which each checkpoint replaces (`amend`). At the end the branch that the
job writes to is moved onto that commit, or gets its changes behind those of others (`_replay`).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from types import TracebackType
from typing import Any, Self

from zarr_dask._util.threads import MAX_CONCURRENT_REQUESTS, parallel_for
from zarr_dask.errors import (
    CommitConflictError,
    JobReplacedError,
    ReadOnlyError,
    ResumeError,
    StoreError,
)
from zarr_dask.stores.backends.zarr_python import SessionStore, ZarrPythonStore, words_of
from zarr_dask.stores.base import Buffer, Store
from zarr_dask.stores.sessions import CarriedReceipts, JobSession, SessionFork

__all__ = ["JOB_BRANCH", "BranchSession", "ForkOfBranch", "PlaceBeside"]

PlaceBeside = tuple[str, str, Mapping[str, Any]]
"""Path or URL of a repository, a suffix for the names of what lies beside it, and options."""
_LOG = logging.getLogger(__name__)
JOB_BRANCH = "zarr-dask."
"""Start of the names of branches that jobs have of their own."""
_TRIES = 100
"""Number of times that a commit is put behind those of others."""
_NAMED = 5
"""Number of conflicts that a message names."""
_OURS = "zarr_dask"
"""Member of a commit's metadata that says which job has made it."""
_LOOKED_AT = 1000
"""Number of commits among which that of a job is looked for."""


class ForkOfBranch(SessionStore, SessionFork):
    """A fork for a task in another process, with the receipts of what it has put there."""

    def __init__(self, store: Any, carried: CarriedReceipts | None = None) -> None:
        super().__init__(store)
        self.carried = {} if carried is None else carried

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkOfBranch, (self.store, self.carried)

    def fork(self) -> ForkOfBranch:
        """See `zarr_dask.stores.base.ForkableSession.fork`."""
        return ForkOfBranch(super().fork().store)

    def merge(self, forks: Sequence[Store]) -> None:
        """See `zarr_dask.stores.base.ForkableSession.merge`."""
        super().merge(forks)
        _take(self.carried, forks)


@dataclass(frozen=True)
class _JobBranch:
    """The branch that a job has of its own, as it is now."""

    name: str
    tip: str
    """Snapshot of its commit."""
    base: str
    """Snapshot that the job began with."""
    checkpoints: tuple[str, ...]


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
    beside
        Where jobs keep their journals.
    """

    def __init__(
        self,
        repository: Any,
        place: str,
        branch: str,
        shown: Any,
        options: Mapping[str, Any],
        beside: PlaceBeside | None,
    ) -> None:
        self._repository = repository
        self._place = place
        self._branch = branch
        self._shown = shown
        self._made = ""
        """Snapshot that is shown when it is asked for; often nothing is after the end of a job."""
        self._options = options
        self._beside = beside
        self._session: Any = None
        self._entered = 0
        self._name = ""
        self._own: _JobBranch | None = None
        self._published: tuple[str, ...] = ()
        self._changes = _SessionChanges()
        self.carried: CarriedReceipts = {}
        self.committing = threading.Lock()
        self.carrying = threading.Lock()
        self.since: dict[tuple[str, ...], float] = {}
        self.after: list[Callable[[], None]] = []

    @property
    def store(self) -> Any:
        """The store of the session, as of zarr-python; after a commit, of what was committed."""
        if self._session is not None:
            return self._session.store
        if self._made:
            self._show(self._made)
        return self._shown

    @property
    def url(self) -> str:
        """The URL of the branch."""
        return f"{self._place}@branch.{self._branch}"

    @property
    def identity(self) -> str:
        """The URL of the branch."""
        return self.url

    @property
    def place_beside(self) -> PlaceBeside | None:
        """See `zarr_dask.stores.open.sibling_location`."""
        return self._beside

    def description(self) -> dict[str, Any]:
        """See `zarr_dask.stores.config.DescribedStore`; there are no secrets among the options."""
        return {"url": self.url, **({"options": self._options} if self._options else {})}

    # --- the transaction --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Open the session, at what the branch holds now, or the checkpoints of the job."""
        if not self._entered:
            self._open()
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
        try:
            if kind is None:
                if self._session.has_uncommitted_changes:
                    with self._changes.none():
                        self._publish()
                self.run_after()
        finally:
            self._session = None
            self.carried, self.after = {}, []

    def _open(self) -> None:
        """Open a session for writing where the job stands."""
        self._own = self._found()
        branch = self._branch if self._own is None else self._own.name
        with self._failing("opened for writing"):
            self._session = self._repository.writable_session(branch)

    def _show(self, snapshot: str) -> None:
        self._made = ""
        self._shown = self._repository.readonly_session(snapshot_id=snapshot).store

    # --- checkpoints ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See `JobSession.name`."""
        return self._name

    def resume(self, name: str = "") -> None:
        """See `JobSession.resume`."""
        if not hasattr(self._session or self._shown.session, "flush"):
            raise ResumeError(
                f"{self.url}: jobs are resumed with Icechunk 2 or newer. Leave resume= out."
            )
        if not name:
            self._name = self._name or f"{JOB_BRANCH}{token_hex(8)}"
            return
        if self._own is not None and self._own.name != name:
            raise ResumeError(
                f"two jobs that write to {self.url} and were begun by different calls have not "
                "ended. Repeat these calls as they were, or pass resume=False to begin anew."
            )
        self._name = name
        self._reopen()

    def refresh(self) -> None:
        """See `JobSession.refresh`."""
        self._name = ""
        self._reopen()

    def _reopen(self) -> None:
        """Show what is there now, where nothing was changed here."""
        if self._session is not None:
            if not self._session.has_uncommitted_changes:
                self._open()
            return
        self._own = self._found()
        with self._failing("read"):
            self._show(self._own.tip if self._own else self._repository.lookup_branch(self._branch))

    def _found(self) -> _JobBranch | None:
        """Return the job's own branch; None if there is none, or if it has been published."""
        self._published = ()
        if not self._name:
            return None
        with self._failing("read"):
            self._published = self._checkpoints_in(self._branch)
            if self._published or self._name not in self._repository.list_branches():
                return None
            tip = self._repository.lookup_branch(self._name)
            info = self._repository.lookup_snapshot(tip)
        found = _checkpoints(info, self._name)
        return _JobBranch(self._name, tip, str(info.parent_id), found) if found else None

    def _checkpoints_in(self, branch: str) -> tuple[str, ...]:
        """Return the checkpoints that the commit of the job names; empty if there is none."""
        for number, info in enumerate(self._repository.ancestry(branch=branch)):
            found = _checkpoints(info, self._name)
            if found or number >= _LOOKED_AT:
                return found
        return ()

    def has_checkpoint(self, name: str) -> bool:
        """See `JobSession.has_checkpoint`."""
        own = () if self._own is None else self._own.checkpoints
        return name in own or name in self._published

    @property
    def has_checkpoints(self) -> bool:
        """See `JobSession.has_checkpoints`."""
        return self._own is not None or bool(self._published)

    def checkpoint(self, name: str) -> None:
        """See `JobSession.checkpoint`."""
        with self._changes.none():
            self._checkpoint((name,))

    def _checkpoint(self, names: Sequence[str]) -> None:
        """Commit to the job's own branch; nothing else is changed meanwhile."""
        session, own = self._session, self._own
        known = (*(() if own is None else own.checkpoints), *names)
        metadata = self._metadata(known)
        base = session.snapshot_id if own is None else own.base
        with self._failing("committed"):
            if own is None:
                if session.has_uncommitted_changes:
                    tip = session.flush(self._message, metadata=metadata)
                    self._make_branch(tip)
                else:
                    self._make_branch(base)
                    session = self._repository.writable_session(self._name)
                    tip = session.commit(self._message, metadata=metadata, allow_empty=True)
            else:
                tip = self._amended(session, metadata)
            self._session = self._repository.writable_session(self._name)
        if self._session.snapshot_id != tip:
            raise self._replaced()
        self._own = _JobBranch(self._name, tip, base, known)

    def _make_branch(self, snapshot: str) -> None:
        import icechunk

        try:
            self._repository.create_branch(self._name, snapshot)
        except icechunk.IcechunkError as error:
            if self._name in self._repository.list_branches():
                raise self._replaced() from error
            raise

    def _amended(self, session: Any, metadata: Mapping[str, Any]) -> str:
        import icechunk

        try:
            return str(session.amend(self._message, metadata=metadata, allow_empty=True))
        except icechunk.ConflictError as error:
            raise self._replaced() from error

    def _replaced(self) -> JobReplacedError:
        return JobReplacedError(
            f"another process goes on with this job, on the branch {self._name} of {self._place}, "
            "or has removed that. This one stops. Let only one of them run."
        )

    def discard(self, name: str) -> None:
        """See `JobSession.discard`."""
        with self._failing("cleared of a job's branch"):
            if name.startswith(JOB_BRANCH) and name in self._repository.list_branches():
                self._repository.delete_branch(name)

    # --- the commit -------------------------------------------------------------------------------

    @property
    def _message(self) -> str:
        return self._options.get("message") or self.message or "written by zarr_dask"

    def _metadata(self, checkpoints: Sequence[str]) -> dict[str, Any]:
        return {_OURS: {"job": self._name, "checkpoints": list(checkpoints)}} if self._name else {}

    def publish(self, names: Sequence[str] = ()) -> None:
        """See `JobSession.publish`."""
        with self._changes.none():
            if self._publish(names):
                self._open()

    def _publish(self, names: Sequence[str] = ()) -> bool:
        """Commit for everybody, which uses the session up; False if nothing has changed."""
        own = self._own
        if self._published:
            names = ()
        if own is None and self._session.has_uncommitted_changes:
            metadata = {} if self._published else self._metadata(names)
            made = self._committed(self._session, metadata)
        elif own is not None:
            if self._session.has_uncommitted_changes or names:
                self._checkpoint(names)
            made = self._moved()
        else:
            return False
        _LOG.info("committed to %s: %s (%s)", self.url, self._message, made)
        self._made = made
        return True

    def _committed(self, session: Any, metadata: Mapping[str, Any]) -> str:
        """Commit to the branch, behind the commits of others."""
        import icechunk

        with self._failing("committed"):
            try:
                return str(
                    session.commit(
                        self._message,
                        metadata,
                        rebase_with=icechunk.ConflictDetector(),
                        rebase_tries=_TRIES,
                    )
                )
            except icechunk.ConflictError as error:
                raise self._conflict(_conflicts(error)) from error

    def _moved(self) -> str:
        """Move the branch to the commit of the job, or put its changes behind those of others."""
        import icechunk

        own = self._own
        if own is None:
            raise ResumeError(f"{self.url}: the job has no checkpoint.")
        with self._failing("moved"):
            if self._repository.lookup_branch(self._branch) == own.base:
                try:
                    self._repository.reset_branch(self._branch, own.tip, from_snapshot_id=own.base)
                except icechunk.ConflictError:
                    pass  # it has got another commit just now
                else:
                    return own.tip
            return self._replayed(own)

    def _replayed(self, own: _JobBranch) -> str:
        """Put the changes of the job behind the commits of others; values are copied for that."""
        repository = self._repository
        session = repository.writable_session(self._branch)
        begun = session.snapshot_id
        ours = repository.diff(from_snapshot_id=own.base, to_snapshot_id=own.tip)
        theirs = repository.diff(from_snapshot_id=own.base, to_snapshot_id=begun)
        source = ZarrPythonStore(repository.readonly_session(snapshot_id=own.tip).store)
        target = SessionStore(session.store)
        both = {*ours.new_groups} & {*theirs.new_groups}
        same = {one for one in both if _parsed(source, one) == _parsed(target, one)}
        common = [one for one in _common(ours, theirs) if one not in same]
        if common:
            raise self._conflict(", ".join(common[:_NAMED]))
        _LOG.info("%s has got other commits: what was written is copied behind them", self.url)
        _replay(source, target, ours, same)
        return self._committed(session, self._metadata(own.checkpoints))

    def _conflict(self, what: str) -> CommitConflictError:
        own = self._own
        left = (
            "Repeat the call, which begins with what is there now."
            if own is None
            else f"What this job has written is on the branch {own.name}. To begin anew with what "
            "is there now, repeat the call with resume=False, which removes that branch."
        )
        return CommitConflictError(
            f"{self.url} got other commits while this job wrote to it, which changed the same: "
            f"{what}. Nothing of this job was committed to it, and it is as the others have left "
            f"it. {left}"
        )

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Raise errors of Icechunk as ours."""
        import icechunk

        try:
            yield
        except (icechunk.IcechunkError, ValueError) as error:
            if isinstance(error, CommitConflictError | ResumeError):
                raise
            raise StoreError(f"{self.url} cannot be {what}: {words_of(error)}") from error

    # --- changes ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        with self._change(key):
            super().set(key, buffers)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        with self._change(key):
            super().delete(key)

    def fork(self) -> ForkOfBranch:
        """See `zarr_dask.stores.base.ForkableSession.fork`."""
        return ForkOfBranch(super().fork().store)

    def merge(self, forks: Sequence[Store]) -> None:
        """See `zarr_dask.stores.base.ForkableSession.merge`."""
        with self._change(""):
            super().merge(forks)
        with self.carrying:
            _take(self.carried, forks)

    @contextmanager
    def _change(self, key: str) -> Iterator[None]:
        if self._session is None:
            raise ReadOnlyError(
                f"{self.url} is written by one call, which commits: {key!r} was not changed "
                "outside of it. To write step by step, open a session of Icechunk, pass "
                "session.store, and commit it."
            )
        with self._changes.one():
            yield


class _SessionChanges:
    """Changes of a session in many threads, and commits, for which none may be under way."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._running = 0
        self._is_waited_for = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Change something within a ``with`` statement."""
        with self._free:
            self._free.wait_for(lambda: not self._is_waited_for)
            self._running += 1
        try:
            yield
        finally:
            with self._free:
                self._running -= 1
                self._free.notify_all()

    @contextmanager
    def none(self) -> Iterator[None]:
        """Let nothing be changed within a ``with`` statement."""
        with self._free:
            self._free.wait_for(lambda: not self._is_waited_for)
            self._is_waited_for = True
            self._free.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._free:
                self._is_waited_for = False
                self._free.notify_all()


def _take(carried: CarriedReceipts, forks: Sequence[Store]) -> None:
    for fork in forks:
        if isinstance(fork, ForkOfBranch):
            for journal, lines in fork.carried.items():
                carried.setdefault(journal, []).extend(lines)


def _checkpoints(info: Any, job: str) -> tuple[str, ...]:
    """Return the checkpoints that a commit names; empty if it is not one of the job."""
    said = info.metadata.get(_OURS)
    if not isinstance(said, dict) or said.get("job") != job:
        return ()
    names = said.get("checkpoints")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _conflicts(error: Exception) -> str:
    """Return the first conflicts that Icechunk has found."""
    found = [
        f"{one.path} ({str(one.conflict_type).rpartition('.')[2]})"
        for one in getattr(error, "conflicts", None) or ()
    ]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more or words_of(error)


# --- changes of a job, behind those of others -----------------------------------------------------


def _nodes(diff: Any) -> set[str]:
    """Return the nodes whose metadata a job has made, changed or deleted."""
    return {
        *diff.new_arrays,
        *diff.new_groups,
        *diff.updated_arrays,
        *diff.updated_groups,
        *diff.deleted_arrays,
        *diff.deleted_groups,
    }


def _common(ours: Any, theirs: Any) -> list[str]:
    """Return what two jobs have both changed, for messages."""
    found = sorted(_nodes(ours) & _nodes(theirs))
    found += sorted(_nodes(ours) & theirs.updated_chunks.keys())
    found += sorted(_nodes(theirs) & ours.updated_chunks.keys())
    deleted = (*theirs.deleted_groups, *ours.deleted_groups)
    changed = {*_nodes(ours), *_nodes(theirs), *ours.updated_chunks, *theirs.updated_chunks}
    found += sorted(path for path in changed if any(path.startswith(f"{one}/") for one in deleted))
    for path in sorted(ours.updated_chunks.keys() & theirs.updated_chunks.keys()):
        both = {tuple(one) for one in ours.updated_chunks[path]} & {
            tuple(one) for one in theirs.updated_chunks[path]
        }
        found += [f"{path} (the stored objects at {sorted(both)[:_NAMED]})"] if both else []
    return list(dict.fromkeys(found))


def _document(path: str) -> str:
    """Return the key of the metadata of a node, by its path in Icechunk."""
    return f"{path.strip('/')}/zarr.json".lstrip("/")


def _parsed(store: Store, path: str) -> Any:
    """Return the metadata of a node, however they are formatted."""
    return json.loads(bytes(store.get(_document(path)) or b"null"))


def _replay(source: Store, target: Store, diff: Any, same: set[str]) -> None:
    """Make the changes of a job once more, in another session, which has some groups already."""
    for path in sorted({*diff.deleted_arrays, *diff.deleted_groups}):
        target.delete_prefix(f"{path.strip('/')}/")
    for path in sorted(_nodes(diff) - same, key=lambda path: path.count("/")):
        _copy(source, target, _document(path))
    for path, cells in diff.updated_chunks.items():
        start = f"{path.strip('/')}/c".lstrip("/")
        keys = ["/".join([start, *map(str, cell)]) for cell in cells]
        parallel_for(lambda key: _copy(source, target, key), keys, MAX_CONCURRENT_REQUESTS)


def _copy(source: Store, target: Store, key: str) -> None:
    value = source.get(key)
    if value is None:
        target.delete(key)
    else:
        target.set(key, [value])
