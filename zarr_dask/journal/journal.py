"""The description of a job, and its journal: a folder with metadata and the receipts of its tasks.

A journal is a folder of its own in a `zarr_dask.journal.location.JournalLocation`::

    __job-<16 hex digits>/
        job.json                       the description of the job (`JobRecord`), while it is open
        receipts-<host>-<pid>-<..>     one file per process, append-only
        receipts-batch-<..>            in stores that cannot append: receipts of some seconds
        receipts-<stage>@<from>-<to>@<..>  of a process that does these tasks of a stage only
        held                           locked by the processes that work on it
        held-<16 hex digits>           which process that is, where locks are known to one host

Each receipt is appended in one call, so that a killed process leaves whole lines and at most a torn
last one, which is ignored. No two processes share a file: appending from two hosts is not safe on
network file systems. A journal is removed when its job has succeeded. A task that ends later (on a
worker that was thought dead) then finds no journal, and has written the same bytes again.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from secrets import token_hex
from time import monotonic
from typing import Any

from zarr_dask._util.threads import run_concurrently
from zarr_dask.errors import JobReplacedError, MetadataError, StoreError
from zarr_dask.formats.base import Limits, load_json, read_documents, where
from zarr_dask.formats.documents import real_path
from zarr_dask.journal.leases import LEASES, Renewal, now_in_utc, watched
from zarr_dask.journal.lock import (
    HELD,
    LOOKS,
    Fence,
    JobLock,
    SameJobRunningError,
    check_not_locked,
    is_locked,
    lock_job,
)
from zarr_dask.journal.receipts import (
    GATHERED,
    Batch,
    MostReceipts,
    Receipt,
    Receipts,
    collect,
    parse_receipts,
    receipts_at,
)
from zarr_dask.journal.validate_record import checked_members
from zarr_dask.stores.backends.posix_io import forget_folders
from zarr_dask.stores.base import Buffer, Store, append_or_none, is_remote
from zarr_dask.stores.compare_and_swap import (
    as_cas_store,
    cas_store_or_none,
    content_tag,
    until_put,
)
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.no_follow import folders_on, remove_empty
from zarr_dask.stores.patience import in_foreground, task_begun
from zarr_dask.stores.process_identity import Owner
from zarr_dask.stores.put_tags import Version
from zarr_dask.stores.sessions import JobSession, SessionFork

__all__ = [
    "LAST",
    "STAGES",
    "TARGETS",
    "JobRecord",
    "Journal",
    "StagePart",
    "is_described",
    "job_at",
    "publish_jobs",
    "remove_empty_folders",
]

STAGES = "stages"
"""Fact of a job whose receipts have a creation for each of its stages or arrays."""
TARGETS = "targets"
"""Fact of a job of several arrays: their paths, if it does not make everything below its node."""
LAST = "-target"
"""Suffix of the creation of the receipts of a last stage."""
_FORMAT = "zarr-dask job 1"
_DOCUMENT = "job.json"
_RECEIPTS = "receipts-"
_COMMIT = "commit-"
"""Start of the names of receipts that count with a checkpoint of their session."""
_OF_PART = re.compile(r"([0-9]+)@([0-9]+)-([0-9]+)@")
"""Start of the name of a part's receipts; names of hosts contain no "@"."""
_PROCESS = token_hex(4)  # with the process id: hosts may share a name, and ids are reused


@dataclass(frozen=True)
class JobRecord:
    """The description of a job, to recognise and finish it."""

    kind: str
    """The kind of job, such as ``"write"``."""
    token: str
    """Equal only for the same job; random if the job cannot be resumed."""
    run_id: str
    """A random id of the array written to, which no later array at the same location has."""
    resume: str = ""
    """Way to resume the job: ``"token"``, ``"name"``, or "" if it cannot be resumed."""
    creates: bool = False
    """True if the array or group does not exist before the job ends."""
    data: str = ""
    """Prefix of the keys of its stored objects, if that is not their node; as in drafts."""
    objects: int = 0
    """Number of stored objects that it writes, including those that turn out to be empty."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """Metadata that is written last, by key."""
    layers: tuple[tuple[str, str], ...] = ()
    """Name and token of every layer of the graph, inputs first."""
    region: tuple[tuple[int, int], ...] = ()
    """First element and the one after the last along each dimension; empty for all."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further values that a kind of job must keep."""
    begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    append_committed: bool = False
    """True if an append has begun to write the new length, or has written it."""
    ended: bool = False
    """True if it has ended with all that began with it, except that journals remain."""
    content_token: str = ""
    """Identifies the values and their destination, whatever the region, for appends."""
    finished_with: tuple[str, ...] = ()
    """The `content_token` of the jobs that have ended with it."""
    swap: str = ""
    """Identifies the folder of an array that replaces another one at the end."""
    session: str = ""
    """Name of its checkpoints, where its store commits; see `zarr_dask.stores.sessions`."""
    process: str = ""
    """The only process that works on it (`Owner`), where no lock or claim tells; see
    `Journal.note_as_only`."""
    renewed: str = ""
    """Time at which it said so last (`zarr_dask.journal.leases`), in UTC."""

    @property
    def renewal(self) -> Renewal | None:
        """Return what tells if the only process that works on it lives; None if there is none."""
        owner = Owner.parse(self.process)
        return None if owner is None else Renewal.of(owner, self.renewed)

    def to_json(self) -> bytes:
        """Return the JSON that the journal stores."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1).encode()

    def meets(self, region: tuple[tuple[int, int], ...]) -> bool:
        """True if the job writes to some element of a region."""
        pairs = zip(self.region, region, strict=False)  # an empty region means all
        return all(a < d and c < b for (a, b), (c, d) in pairs)


@dataclass(frozen=True, slots=True)
class StagePart:
    """Tasks of one stage that a process does, of all that a job has."""

    stage: int
    tasks: range
    """Consecutive numbers."""

    @property
    def label(self) -> str:
        """Start of the names of its receipts."""
        return f"{self.stage}@{self.tasks.start}-{self.tasks.stop}@"

    def may_have(self, name: str) -> bool:
        """True if a file of receipts, by the rest of its name, may concern these tasks.

        Examples
        --------
        >>> part = StagePart(0, range(10, 20))
        >>> part.may_have("0@15-25@h-1"), part.may_have("0@20-30@h-1"), part.may_have("1@10-20@h")
        (True, False, False)
        >>> part.may_have("host-1-ab"), part.may_have(part.label)
        (True, True)
        """
        found = _OF_PART.match(name)
        if found is None:
            return True
        stage, first, stop = map(int, found.groups())
        return stage == self.stage and first < self.tasks.stop and self.tasks.start < stop


@dataclass(frozen=True)
class Journal:
    """The journal of one job; small, and a part of each of its tasks."""

    store: Store
    prefix: str
    """Ends in "/"."""
    token: str
    run_id: str
    part: StagePart | None = None
    """The only tasks whose receipts are read and written; None for all of the job."""
    gathers: bool = True
    """True if receipts are stored together where the store cannot append; see
    `zarr_dask.journal.receipts`. False where nobody could ask the processes for theirs."""
    claim: Fence | None = None
    """The claim of the job to what it makes, in remote stores; it tells sooner than the journal."""
    session: SessionFork | None = field(default=None, compare=False, repr=False)
    """The session that the job writes to, if its store commits: receipts wait for checkpoints."""

    @property
    def url(self) -> str:
        """The location, for messages."""
        return f"{self.store.url}/{self.prefix}"

    def begin(self, job: JobRecord, *, is_bare: bool = False) -> None:
        """Open the journal, removing what an older job has left in it.

        A caller that knows that nothing is beside the hierarchy says so (`is_bare`).
        """
        GATHERED.take(self.batch_key)
        if not is_bare:
            self.store.delete_prefix(self.prefix)
        self.note(job)
        LOOKS.note(self.batch_key)
        self._put_readme()

    def put_outside(self, key: str, text: bytes) -> None:
        """Put an object into a folder above the journal, where nothing else sweeps.

        In local files it is written in the journal and moved: what a killed process leaves of it
        goes with the journal.
        """
        if isinstance(self.store, FileStore):
            draft = f"{self.prefix}{key.rpartition('/')[2]}"
            self.store.set(draft, [text])
            if self.store.move_prefix(draft, key):
                return
        self.store.set(key, [text])

    def _put_readme(self) -> None:
        """Say in the folder beside a local hierarchy what it is, and whether it may be removed."""
        folder = self.prefix.partition("/")[0]
        if not isinstance(self.store, FileStore) or not folder.endswith(_BESIDE):
            return
        key = f"{folder}/{README}"
        with suppress(StoreError):  # nothing depends on it
            if self.store.size(key) is None:
                self.put_outside(key, _README)

    def note(self, job: JobRecord) -> None:
        """Write the description of the job."""
        session = self.session
        if isinstance(session, JobSession):
            job = replace(job, session=session.name)
        self.store.set(f"{self.prefix}{_DOCUMENT}", [job.to_json()])

    def note_if_none(self, job: JobRecord) -> bool:
        """Write the description unless there is one already; return True if it was written.

        Stores without conditional writes cannot tell, and are written to.
        """
        key = f"{self.prefix}{_DOCUMENT}"
        store = cas_store_or_none(self.store, key)
        if store is not None:
            return store.set_if(key, [job.to_json()], content_tag(None))
        self.note(job)
        return True

    def note_as_only(self, job: JobRecord, what: str) -> None:
        """Write the description for this process, which alone runs all of the job.

        For jobs in remote stores that claim nothing, because others may write to the same array.

        Raises
        ------
        SameJobRunningError
            If another process does so; `what` is written to.
        """
        key = f"{self.prefix}{_DOCUMENT}"
        process = Owner.here(locked=False).to_json().decode()
        text = replace(job, process=process, renewed=now_in_utc()).to_json()

        def look() -> Renewal | None:
            now = self.job()
            return None if now is None else now.renewal

        def put(tags: dict[str, Hashable]) -> bool:
            tagged = as_cas_store(self.store)
            value, tags[key] = tagged.get_tagged(key)
            found = None if value is None else _parsed(self.store, key, bytes(value))
            other = None if found is None else found.renewal
            if other is not None and other.is_of_another_at_work():
                at = f"{self.store.url}/{key}"
                raise SameJobRunningError(what, at, other.owner, watched(look))
            return tagged.set_if(key, [text], tags[key])

        tagged = cas_store_or_none(self.store, key)
        if tagged is None:
            self.note(job)
        elif not tagged.set_if(key, [text], content_tag(None)):
            until_put(self.url, put)
        LOOKS.note(self.batch_key)
        if tagged is not None:
            LEASES.begin(self._lease, key, self._renew)

    @property
    def _lease(self) -> tuple[str, ...]:
        return self.url, self.run_id

    def _renew(self) -> bool:
        """Say that this process works on the job; return False if it does no more."""
        key = f"{self.prefix}{_DOCUMENT}"
        tagged = as_cas_store(self.store)
        value, tag = tagged.get_tagged(key)
        job = None if value is None else _parsed(self.store, key, bytes(value))
        found = None if job is None else job.renewal
        if job is None or found is None or job.run_id != self.run_id or not found.owner.is_this():
            return False
        tagged.set_if(key, [replace(job, renewed=now_in_utc()).to_json()], tag)
        return True

    def leave(self) -> None:
        """Say that this process works no more on a job that it was the only one to work on."""
        LEASES.end(self._lease, f"{self.prefix}{_DOCUMENT}")
        with suppress(StoreError):  # the first error is what matters
            job = self.job()
            if job is not None and job.run_id == self.run_id and job.process:
                self.note(replace(job, process=""))

    def add(self, receipt: Receipt) -> None:
        """Store a receipt; do nothing if the job has ended and its journal is gone.

        Raises
        ------
        StoreError
            If it cannot be written. The task must fail then, because its work would be lost.
        """
        line = receipt.to_line()
        if self.session is not None:
            self.session.carry(self.batch_key, line, len(receipt.objects) + len(receipt.empty))
            self.checkpoint_if_due()
            return
        appendable = append_or_none(self.store)
        if appendable is not None:
            appendable.append(f"{self._files}{_name_of_process(os.getpid())}", line)
        elif self.gathers:
            count = len(receipt.objects) + len(receipt.empty)
            due = GATHERED.add(self.batch_key, Batch([line], count, task_begun()))
            if due is not None:
                self._put(due)
        else:
            # a task that runs again replaces its own, and not those of other arrays or stages
            names = [receipt.run_id, *(item.key for item in receipt.objects), *receipt.empty]
            name = sha256(",".join(names).encode()).hexdigest()[:16]
            self.store.set(f"{self._files}task-{name}", [line])

    # --- stores that commit -----------------------------------------------------------------------

    def checkpoint_if_due(self) -> None:
        """Commit what was written for some seconds, if the job can go on from there."""
        session = self.session
        if not isinstance(session, JobSession) or not session.name:
            return
        carried = session.carried.get(self.batch_key, [])
        begun = session.since.setdefault(self.batch_key, monotonic())
        waiting = Batch([line for line, _ in carried], sum(n for _, n in carried), begun)
        if carried and waiting.is_due:
            self._checkpoint(session)

    def _checkpoint(self, session: JobSession) -> None:
        """Commit, with the receipts of what is committed; all of it was put before."""
        with session.committing, self.putting_carried() as name:
            if name:
                session.checkpoint(name)

    @contextmanager
    def putting_carried(self) -> Iterator[str]:
        """Store receipts of what is committed within a ``with`` statement.

        Yields the name of the checkpoint; empty if there are no receipts.
        """
        session = self.session
        if not isinstance(session, JobSession) or not session.name:
            yield ""
            return
        lines = session.take(self.batch_key)
        if not lines:
            yield ""
            return
        name = f"{_COMMIT}{_name_of_process(os.getpid())}-{token_hex(4)}"
        try:
            self.store.set(f"{self._files}{name}", [line for line, _ in lines])
            yield name
        except BaseException:
            for line, objects in lines:
                session.carry(self.batch_key, line, objects)
            raise

    def attach(self, job: JobRecord) -> bool:
        """Show what the job has committed for itself; False if its store commits, and nothing is.

        Then there is nothing to resume.
        """
        session = self.session
        if not isinstance(session, JobSession):
            return True
        if job.session:
            session.resume(job.session)
        return bool(job.session) and session.has_checkpoints

    def discard_session(self) -> None:
        """Remove what the job has committed for itself."""
        if isinstance(self.session, JobSession):
            job = self.job()
            name = "" if job is None else job.session
            self.session.discard(name)

    def remove_if_dropped(self) -> None:
        """Remove the journal of a job that was not committed, if nothing of it is left."""
        if isinstance(self.session, JobSession) and not self.session.name:
            self.remove()

    def flush(self) -> None:
        """Store the receipts that this process has gathered."""
        if self.session is not None:
            if isinstance(self.session, JobSession):
                self._checkpoint(self.session)
            return
        batch = GATHERED.take(self.batch_key)
        if batch.lines:
            self._put(batch)

    def flush_after_failure(self) -> None:
        """Store the receipts that this process has gathered, if the store responds soon."""
        with suppress(StoreError), in_foreground():  # the first error is what matters
            self.flush()

    def _put(self, batch: Batch) -> None:
        name = f"batch-{_name_of_process(os.getpid())}-{token_hex(4)}"
        try:
            self.store.set(f"{self._files}{name}", batch.lines)
        except BaseException:
            GATHERED.keep(self.batch_key, batch)  # other tasks have ended, relying on it
            raise

    @property
    def _files(self) -> str:
        """Start of the keys of receipts."""
        return f"{self.prefix}{_RECEIPTS}{'' if self.part is None else self.part.label}"

    @property
    def batch_key(self) -> tuple[str, ...]:
        """Identifies the receipts of this job that a process has gathered."""
        return self.store.url, self._files, self.run_id

    def receipts(self) -> Iterator[Receipt]:
        """Yield the receipts, including those of other creations; some may be repeated.

        Receipts that another process merges meanwhile are found in the merged object. Those that
        this process has gathered are included, those of others are not.
        """
        if self.session is None:
            yield from parse_receipts(GATHERED.lines(self.batch_key))
        else:
            for line, _ in [*self.session.carried.get(self.batch_key, ())]:
                yield from parse_receipts(line)
        asked: set[str] = set()
        while True:
            found = {key for key in self.store.list(self.prefix) if self._is_receipts(key)}
            absent = False
            for key in sorted(found - asked):
                there = receipts_at(self.store, key)
                absent |= there is None
                yield from there or ()
            if not absent:
                return
            asked |= found

    def _is_receipts(self, key: str) -> bool:
        start = f"{self.prefix}{_RECEIPTS}"
        if not key.startswith(start):
            return False
        name = key[len(start) :]
        if name.startswith(_COMMIT):  # its process may have been killed before the commit
            session = self.session
            return isinstance(session, JobSession) and session.has_checkpoint(name)
        return self.part is None or self.part.may_have(name)

    def valid_receipts(
        self, listed: Mapping[str, Version], job: JobRecord | None = None
    ) -> Receipts:
        """Return the receipts that are valid for stored objects as a listing shows them.

        Raises
        ------
        JournalError
            If there are more than the `job` can have left, as the journal, which may be a
            stranger's, tells of it.
        """
        most = None if job is None else MostReceipts(self.url, job.objects)
        return collect(self.receipts(), self.run_id, listed, most)

    def merge(self) -> None:
        """Merge the receipts of single tasks into one object, if the store cannot append."""
        if append_or_none(self.store) is not None or self.session is not None:
            return
        keys = [key for key in self.store.list(self.prefix) if self._is_receipts(key)]
        texts: list[Buffer] = [text for text in map(self.store.get, keys) if text is not None]
        if len(texts) < 2:
            return
        merged = f"{self.prefix}{_RECEIPTS}merged-{token_hex(8)}"
        self.store.set(merged, texts)
        for key in keys:
            self.store.delete(key)

    def job(self) -> JobRecord | None:
        """Return the job that has its journal here now; None if it has ended."""
        return job_at(self.store, self.prefix)

    def fence(self) -> None:
        """Check right before a task puts an object that another job has not taken its place.

        That is `check_ours`, each time for journals in local files, now and then for others. A
        claim is looked at instead, where there is one.

        Raises
        ------
        JobReplacedError
            If it has.
        """
        if self.claim is not None:
            self.claim.fence()
        else:
            self.fenced(self.check_ours)

    def fenced(self, check: Callable[[], None]) -> None:
        """Do the same by another check, which knows of more ways to end."""
        if isinstance(self.store, FileStore):
            check()
        else:
            LOOKS.now_and_then(self.batch_key, check)

    def is_ours(self) -> bool:
        """Return True if the journal is there, and still that of the run that has this value."""
        text = self.store.get(f"{self.prefix}{_DOCUMENT}")
        said = f'"run_id": {json.dumps(self.run_id)}'.encode()
        return text is not None and said in bytes(text)

    def check_ours(self) -> None:
        """Refuse to go on where another job has begun anew, or this one was ended elsewhere.

        Raises
        ------
        JobReplacedError
            If the journal has gone, or is that of another run.
        """
        if self.is_ours():
            return
        other = self.job()
        if other is not None and other.run_id != self.run_id:
            what = f"is that of a job by now that began anew at {other.begun}"
        else:
            what = (
                "has gone: another process has ended this job, or what it had written was removed, "
                "or written anew by another job, while it was stopped or out of reach"
            )
        raise JobReplacedError(
            f"the journal of this job, {self.url}, {what}. This one stops, so that it does not "
            "write over later values. Look at what is there, and let only one of them run."
        )

    def note_end(self, others: Iterable[Journal]) -> None:
        """Record the end of the job and those that began with it, before journals are removed."""
        job = self.job()
        if job is None:
            return
        found = [other.job() for other in others]
        written = [other.content_token for other in found if other is not None]
        together = dict.fromkeys((*job.finished_with, *written))  # some journals may be gone
        self.note(replace(job, ended=True, finished_with=tuple(together)))

    def lock(self) -> JobLock:
        """Hold the job for this process, until the result is closed."""
        return lock_job(self.store, self.prefix)

    def is_locked(self) -> bool:
        """True if a running process holds the job."""
        return is_locked(self.store, self.prefix)

    def check_not_locked(self, what: str) -> None:
        """Raise if a running process writes what is to be replaced; see `check_not_locked`."""
        check_not_locked(self.store, [f"{self.prefix}{HELD}"], what)

    def remove_replaced(self) -> None:
        """Remove the journal in a remote store after a later job has replaced this one.

        That job has removed all that was there; what this one has put since is nobody's.
        """
        with suppress(StoreError):  # the first error is what matters
            if is_remote(self.store) and self.is_ours():
                self.remove()

    def remove(self) -> None:
        """End the job: remove the journal, and folders that have become empty."""
        self.discard_session()
        GATHERED.take(self.batch_key)
        document = f"{self.prefix}{_DOCUMENT}"
        is_alone = False
        if is_remote(self.store):  # in one round trip, if there are no receipts
            delete = partial(self.store.delete, document)
            is_alone = run_concurrently(delete, partial(self._has_only, document))[1]
        else:
            self.store.delete(document)
        if not is_alone:
            with suppress(StoreError):  # a late task may add to it; the job is over anyway
                self.store.delete_prefix(self.prefix)
        remove_empty_folders(self.store, self.prefix)

    def _has_only(self, document: str) -> bool:
        """True if it is known that nothing lies beside the description of the job."""
        try:
            return all(key == document for key in self.store.list(self.prefix))
        except StoreError:
            return False


def is_described(store: Store, prefix: str) -> bool:
    """True if a journal has the description of a job, which is the first to come and to go."""
    return store.size(f"{prefix}{_DOCUMENT}") is not None


def publish_jobs(journals: Sequence[Journal]) -> None:
    """Commit what jobs have written for everybody, where their store commits.

    Raises
    ------
    CommitConflictError
        If others have committed changes of the same meanwhile.
    """
    by_session: dict[int, list[Journal]] = {}
    for journal in journals:
        by_session.setdefault(id(journal.session), []).append(journal)
    for one in by_session.values():
        session = one[0].session
        if isinstance(session, JobSession):
            with session.committing, ExitStack() as stack:
                put = [stack.enter_context(journal.putting_carried()) for journal in one]
                session.publish([name for name in put if name])
                session.run_after()


def job_at(store: Store, prefix: str) -> JobRecord | None:
    """The job that keeps its journal below a prefix; None if there is none, or it has ended.

    Raises
    ------
    JournalError
        If the document says what no job says.
    """
    key = f"{prefix}{_DOCUMENT}"
    text = read_documents(store, [key], Limits())[key]
    if text is None:
        return None
    return _parsed(store, key, text)


def _parsed(store: Store, key: str, text: bytes) -> JobRecord | None:
    """Return the job that a document describes; None if it describes none."""
    try:
        document = load_json(store, key, text)
    except MetadataError:
        return None  # nothing that this package has written: no job of ours
    if document.pop("format", None) != _FORMAT:
        return None
    members: dict[str, Any] = checked_members(document, where(store, key))
    for name in ("layers", "region"):
        members[name] = tuple(map(tuple, members.get(name, ())))
    return JobRecord(**{**members, "finished_with": tuple(members.get("finished_with", ()))})


@lru_cache(maxsize=1)
def _name_of_process(number: int) -> str:
    """Return a unique name of a process; a forked one has another number."""
    return f"{socket.gethostname()}-{number}-{_PROCESS}"


README = "README.txt"
_BESIDE = ".zarr-dask"
_README = b"""This folder belongs to the Zarr hierarchy of the same name, without ".zarr-dask".

zarr_dask keeps here what running jobs have written so far (__job-...), so that a job
that was killed can go on (resume=True), and small records of jobs that have ended
(__done-...), so that the same call answers "already done" instead of writing again,
and the checksums of stored objects (__manifest) that manifest=True asks for.

May it be removed? Yes, if no job is running: the data do not need it. A job that was
killed then begins anew, and reads cannot be verified. Not while a simulation writes or
is to go on (__output): its ranks could not attach, and steps that are stored could not
be shown. "zarr-dask status" tells which jobs there are.
"""


def _remove_readme(store: FileStore, folder: str) -> bool:
    """Remove the text from a folder that holds nothing else; return False if it holds more."""
    if not folder.endswith(_BESIDE) or "/" in folder:
        return False
    with suppress(StoreError):
        listing = store.list_dir(f"{folder}/")
        if not listing.prefixes and list(listing.keys) == [f"{folder}/{README}"]:
            store.delete(f"{folder}/{README}")
            return True
    return False


def remove_empty_folders(store: Store, prefix: str) -> None:
    """Remove the folders on the path to a journal that are empty."""
    if not isinstance(store, FileStore):
        return
    path, root = prefix.rstrip("/"), real_path(store.root)  # no link leads on from there
    with suppress(OSError), folders_on(store.root, path) as places:
        for count, (name, around) in reversed([*enumerate(places, 1)]):
            folder = "/".join(one for one, _ in places[:count])
            forget_folders(f"{root}/{folder}", is_real=True)
            try:
                remove_empty(name, around)
            except FileNotFoundError:
                continue
            except OSError:
                if not _remove_readme(store, folder):
                    return  # other journals are in it, or links lead to it
                remove_empty(name, around)
