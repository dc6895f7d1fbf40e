"""The end of an array: claimed by whoever appends, before the first of its objects is written.

Two appends to one array write the same objects, so that only one of them may be under way. The one
that has the claim says so in the place of the array, beside its hierarchy::

    run.zarr.zarr-dask/ocean/salt/         the place of the array ocean/salt
        __append/held                      who has the claim (`ClaimRecord`), while somebody has it

On local files all processes that work on the append lock this file (`zarr_dask.journal.lock`). The
kernel undoes that when a process dies: a claim that nobody holds is taken over by the next append.
Each one adds itself to those who had the claim before, so that tasks which come late
(``compute=False``) know that theirs was taken.

A process whose mount keeps its locks to itself (`zarr_dask.stores.file_lock`) locks nothing: its
record, made as in an object store, counts until that process is known to be gone. A record says
which of the two it is (`Owner.locked`). So a record without a lock is never taken over because its
file is not locked, and those who lock are seen by their records where locks are not.

An append with ``resume=`` leaves the record when it ends, with its report (`EndedAppend`): its
process may be killed after the journal has gone, and the same call must not append once more then.
The record goes with the next change of the length. A process that ends in good order says in it
that it knows of the end: the same call appends once more then, but one that was planned before the
end, or waited for it, is told.

Object stores create the record on the condition that there is none. It stays until the append has
ended, by success or by an error, or goes on (``resume=``), or until it is removed, by hand or by
``verify(sweep=True)`` on its host (`zarr_dask.journal.node_claims.sweep_remote_claims`). The next
append takes over that of a process that has gone (`ClaimRecord.has_died`), as on local files: on
the same host if that ran all tasks itself; on every host if it was to be renewed (``resume=``), and
was not while the next one waited. Arrays in memory are claimed in the process. A call with
``resume=`` that finds the record of an equal one, of a process that is at work
(`zarr_dask.journal.leases`), waits for that (`zarr_dask.journal.lock.SameJobRunningError`).

Nothing is claimed where there is no place for it: in archives, at the root of a bucket, in folders
that may not be written to, on file systems without locks, and in stores without conditions. There,
only the document is compared when the array grows: of two appends, one ends with an error. What
proves that is the error of a claim (`holds_no_claims`); any other one ends the job.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from random import uniform
from secrets import token_hex
from time import monotonic, sleep
from typing import Any, Literal
from zlib import crc32

from zarr_dask.errors import (
    AccessDeniedError,
    AppendConflictError,
    ConditionalWriteError,
    JobReplacedError,
    JournalError,
    LinkError,
    ReadOnlyError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.formats.base import where
from zarr_dask.journal.journal import is_described, remove_empty_folders
from zarr_dask.journal.leases import LEASES, Renewal, Watch, now_in_utc, watched
from zarr_dask.journal.location import (
    CLAIM,
    JOB,
    JournalLocation,
    check_behind_no_link,
    default_place,
    is_bare,
)
from zarr_dask.journal.lock import (
    HELD,
    LOOKS,
    JobLock,
    SameJobRunningError,
    check_not_locked,
    is_locked,
    pauses,
    sweep_turns,
    wait_out,
)
from zarr_dask.stores.backends.posix_io import close_read, fsync_names, read_at
from zarr_dask.stores.base import Buffer, Store, get_start, is_remote
from zarr_dask.stores.compare_and_swap import (
    ConditionalStore,
    as_cas_store,
    cas_store_or_none,
    folder_lock,
    is_at,
)
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.file_lock import folder_has_shared_locks, has_shared_locks, lock
from zarr_dask.stores.key_names import is_left_by_the_dead
from zarr_dask.stores.no_follow import open_folder, open_in
from zarr_dask.stores.open import unwrap_with_path
from zarr_dask.stores.patience import in_foreground
from zarr_dask.stores.process_identity import Owner
from zarr_dask.stores.real_location import folders_around
from zarr_dask.stores.sessions import job_session
from zarr_dask.stores.wrapper import forkable, is_in_memory

__all__ = [
    "ArrayEnd",
    "Claim",
    "ClaimRecord",
    "EndedAppend",
    "OnConflict",
    "check_no_job",
    "check_not_claimed",
    "check_not_same",
    "claimed",
    "end_of_array",
    "ended_append",
    "holds_no_claims",
    "remove_rests",
    "sweep_claims",
]

OnConflict = Literal["wait", "error"]
"""Ways of an append to act while another one is under way."""

_PATIENCE = 600.0  # seconds for one claim to go that nobody can see the life of
_LONGEST = 1.0  # seconds between two looks at it
_ATTEMPTS = 5
"""Times that a claim may change while a process tries to have it, or to change it."""
_FORMAT = "zarr-dask claim 1"
_START = f'{{"format": "{_FORMAT}", '.encode()
"""The first bytes of each record."""
_CHECK = "crc32"
"""The last field of a record, with the checksum of the others."""
_LONGEST_TEXT = 1 << 20  # bytes of a record
_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
"""Errors where nothing may be put beside the hierarchy."""
_IN_MEMORY: dict[tuple[str, str], _MemoryClaim] = {}
"""Appends to arrays in the memory of this process."""
_IN_JOURNAL = re.compile(f"(?:.*/)?{JOB}[0-9a-f]{{16}}/")
_MEMORY_LOCK = threading.Lock()
_LEFT: dict[tuple[str, str], tuple[int, ArrayEnd]] = {}
"""Ends of arrays that hold the record of an append which a process, by its number, has ended."""


@dataclass(frozen=True)
class EndedAppend:
    """An append that has ended, in the record of its claim."""

    shape: tuple[int, ...]
    """Of the array, which it has made so long."""
    at: str
    """Time of its end, in UTC."""
    report: Mapping[str, Any]
    """Fields of its report."""
    owner: Owner
    """The process that waited for it."""
    is_known: bool = False
    """True if its caller knows of it, and does not repeat it."""

    @staticmethod
    def parsed(fields: Any) -> EndedAppend | None:
        """Return what a record says of the end; None if it says nothing that this may have put."""
        if not isinstance(fields, dict):
            return None
        owner = Owner.of(fields.get("owner"))
        report, shape = fields["report"], tuple(fields["shape"])
        if owner is None or not isinstance(report, dict) or not all(type(n) is int for n in shape):
            return None
        is_known = fields.get("is_known") is True
        return EndedAppend(shape, str(fields["at"]), report, owner, is_known)


@dataclass(frozen=True)
class ClaimRecord:
    """Jobs that have a claim: the present one, and those before."""

    tokens: tuple[str, ...]
    """Of the jobs; the last one has the claim."""
    job: str = ""
    """Tells what is appended (`JobRecord.content_token`), or the job that makes a node
    (`JobRecord.token`), if it can be resumed."""
    owner: Owner = field(default_factory=lambda: Owner.here(locked=False))
    """The process that has begun it."""
    begun: str = field(default_factory=now_in_utc)
    ended: EndedAppend | None = None
    """Its end, if it may be called again; whoever comes next has the claim then."""
    makes: bool = False
    """True if the job makes a node (`zarr_dask.journal.node_claims`)."""
    given_up: bool = False
    """True if the job has failed in good order, so that none of its tasks runs."""
    alone: bool = False
    """True if all tasks of an append run in its process, and end with it."""
    renewed: str = ""
    """Time of its last renewal (`zarr_dask.journal.leases`), in UTC; empty if there are none."""

    @property
    def is_free(self) -> bool:
        """True if whoever comes next has the claim."""
        return self.given_up or self.ended is not None

    @property
    def has_died(self) -> bool:
        """True if the process is known to have gone, or is taken for dead, and all tasks with it.

        Those of an append that can be resumed look at its claim (`ArrayEnd.fence`).
        """
        if self.job:
            renews = bool(self.renewed) and not self.makes
            return renews and (self.owner.is_gone() or self.renewal.was_last)
        return self.alone and self.owner.is_gone()

    @property
    def stands_alone(self) -> bool:
        """True if the record counts though nobody holds its lock: its process has none to hold."""
        return not (self.is_free or self.owner.locked or self.owner.is_gone())

    def is_same_elsewhere(self, job: str) -> bool:
        """Return True if another process works on the same resumable job, as far as is known."""
        is_same = bool(job) and self.job == job and not self.is_free
        return is_same and self.renewal.is_of_another_at_work()

    @property
    def renewal(self) -> Renewal:
        """Return the last renewal of the claim."""
        return Renewal.of(self.owner, self.renewed)

    def is_renewed_by(self, token: str, job: str) -> bool:
        """Return True if it is the claim of a job that this process works on."""
        is_same = self.tokens[-1:] == (token,) and self.job == job
        return is_same and self.owner.is_this() and not self.is_free

    def __str__(self) -> str:
        return f"{self.owner} since {self.begun}"

    def to_json(self) -> bytes:
        """Return the record as a JSON text."""
        fields = {"format": _FORMAT, **vars(self), "owner": vars(self.owner)}
        if self.ended is not None:
            fields["ended"] = asdict(self.ended)
        text = json.dumps(fields).encode()  # once: every append makes a record
        return text[:-1] + f', "{_CHECK}": {crc32(text)}}}'.encode()

    @staticmethod
    def parsed(text: Buffer | None) -> ClaimRecord | None:
        """Return the claim that is stored; None if there is none, or none of ours."""
        if not text or len(text) > _LONGEST_TEXT:
            return None
        try:
            document = json.loads(bytes(text))
            if document.pop(_CHECK) != _checksum(document) or document["format"] != _FORMAT:
                return None
            told = {name: document[name] for name in ("job", "begun")}
            told["renewed"] = document.get("renewed", "")
            tokens, owner = tuple(document["tokens"]), Owner.of(document["owner"])
            ended = EndedAppend.parsed(document.get("ended"))
            is_lost = ended is None and document.get("ended") is not None
            if owner is None or is_lost or not _are_texts(*told.values(), *tokens):
                return None
            names = ("makes", "given_up", "alone")
            makes, given_up, alone = (document.get(name) is True for name in names)
            return ClaimRecord(
                tokens,
                owner=owner,
                ended=ended,
                makes=makes,
                given_up=given_up,
                alone=alone,
                **told,
            )
        except (
            ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
        ):  # fmt: skip
            return None


def _read(store: Store, key: str) -> Buffer | None:
    """Return a record as it is stored; the beginning of a file that is too large to be one.

    A file with holes costs its author nothing.
    """
    if isinstance(store, FileStore):
        return get_start(store, key, _LONGEST_TEXT + 1)
    return store.get(key)


def _checksum(fields: Mapping[str, Any]) -> int:
    return crc32(json.dumps(fields).encode())


def _are_texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


@dataclass
class _MemoryClaim:
    """Owner of an append to an array in memory, and the number of its tasks that run."""

    tokens: tuple[str, ...] = ()
    holders: int = 0


class Claim:
    """The end of an array, as one process has it until this is closed.

    Parameters
    ----------
    close
        Lets go of it.
    is_new
        Whether the append had no claim before.
    record
        The record, open and locked, in local files.
    is_first
        Whether the record names no append before.
    """

    def __init__(
        self,
        close: Callable[[], None] | None = None,
        *,
        is_new: bool = False,
        record: int | None = None,
        is_first: bool = False,
    ) -> None:
        self.is_new = is_new
        """True if the append had no claim before: the array may have changed until then."""
        self.record = record
        """The record, open and locked, in local files; None elsewhere."""
        self.is_first = is_first
        """True if the record names no append before."""
        self._close = close

    def close(self) -> None:
        """Let go of it. The append keeps the claim until another one takes it, or it leaves."""
        close, self._close = self._close, None
        if close is not None:
            close()


@dataclass(frozen=True)
class ArrayEnd:
    """The end of an array, as one append sees it; small, and a part of each of its tasks."""

    store: Store
    prefix: str
    """Location of the claim; the path of the array if it is in memory."""
    token: str
    """Of the append."""
    what: str
    """Is appended to, for messages."""
    job: str = ""
    """Tells what is appended (`JobRecord.content_token`), if the job can be resumed."""

    @property
    def lasts(self) -> bool:
        """True if a claim stays until the append leaves, whatever becomes of its processes."""
        if isinstance(self.store, FileStore):
            return not _trusts_locks(self.store.root)
        return not is_in_memory(self.store)

    @property
    def stays(self) -> bool:
        """True if the claim is the append's until its process leaves it, as far as is known.

        That of a resumable one in an object store is taken over if it is not renewed.
        """
        return self.lasts and not (self.job and is_remote(self.store))

    @property
    def _key(self) -> str:
        return f"{self.prefix}{HELD}"

    def claim(
        self, on_conflict: OnConflict = "error", *, renews: bool = False, alone: bool = False
    ) -> Claim:
        """Claim it for the append, or for one more process of the append that has it.

        Parameters
        ----------
        on_conflict
            Whether to wait for another append.
        renews
            True if this process runs all of the append, and shows other hosts that it is at work.
        alone
            True if all tasks of the append run in this process.

        Raises
        ------
        AppendConflictError
            If another append has it, or took it over from this one.
        """
        if is_in_memory(self.store):
            return self._waited(self._claim_memory, on_conflict)
        if self.lasts or not isinstance(self.store, FileStore):
            try:
                renews &= bool(self.job) and is_remote(self.store)
                claim = partial(self._claim_object, Watch(), renews=renews, alone=alone)
                return self._waited(claim, on_conflict)
            except StoreError as error:
                if not holds_no_claims(self.store, error):
                    raise
                return Claim()
        try:
            return self._claim_file(self.store, on_conflict)
        except ConditionalWriteError:
            return Claim()  # no locks here
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _NOT_OURS:
                return Claim()
            raise self.store.failed("lock", self._key, error) from error

    def leave(self, *, alone: bool = False, claim: Claim | None = None) -> None:
        """Give the claim back: the array is longer by now, or nothing is going to be written.

        Parameters
        ----------
        alone
            Not if another append had it before, whose tasks must find that out. (The next append
            takes it over.)
        claim
            The claim, still held, if no other process can have it for this append.
        """
        record = None if claim is None or self.job else claim.record
        if is_in_memory(self.store):
            self._leave_memory(alone=alone)
        elif isinstance(self.store, FileStore) and claim is not None and record is not None:
            self._leave_locked(self.store, record, is_kept=alone and not claim.is_first)
        elif isinstance(self.store, FileStore) and not self.lasts:
            self._leave_file(self.store, alone=alone)
        else:
            with suppress(StoreError):  # the array is as it must be; whoever comes next is told
                if cas_store_or_none(self.store, self._key) is not None and self._has():
                    self.store.delete(self._key)
            remove_empty_folders(self.store, self.prefix)

    def _has(self) -> bool:
        """True if the claim is this append's, as far as that is to be asked.

        Of those in object stores, an equal call may have taken over that of a resumable one.
        """
        if is_remote(self.store) and not self.job:
            return True
        found = ClaimRecord.parsed(_read(self.store, self._key))
        return found is None or found.tokens[-1:] == (self.token,)

    def fence(self, check_place: Callable[[], object]) -> None:
        """Look whether another process has taken the claim over, now and then.

        Parameters
        ----------
        check_place
            Called if there is no claim: raises if the array has changed, so that one has ended.

        Raises
        ------
        JobReplacedError
            If one has: this process could not renew its claim for too long.
        """
        if self.job and is_remote(self.store):
            check = partial(self._check_kept, check_place)
            LOOKS.now_and_then((self.store.url, self._key, self.token), check)

    def _check_kept(self, check_place: Callable[[], object]) -> None:
        found = ClaimRecord.parsed(_read(self.store, self._key))
        if found is None:
            check_place()
            return
        if found.tokens[-1:] == (self.token,):
            return
        is_same = found.job == self.job
        does = "an equal call of another process" if is_same else "another append"
        error = JobReplacedError(
            f"{does} ({found}) {'goes on with' if is_same else 'has taken the place of'} this "
            f"append to {self.what}, as {self.store.url}/{self._key} says: this process had not "
            f"renewed its claim for too long. It stops. Wait for the other one"
            f"{'.' if is_same else ', and append again.'}"
        )
        error.is_same_job = is_same
        raise error

    def note_ended(self, shape: tuple[int, ...], report: Mapping[str, Any]) -> None:
        """Record that the append has ended, in the place of its claim, which is free from then on.

        Where there is no record, or it cannot be written, none is kept.
        """
        ended = EndedAppend(shape, now_in_utc(), report, Owner.here(locked=False))
        self._change(lambda record: replace(record, ended=ended))
        if not _LEFT:
            atexit.register(_acknowledge)
        _LEFT[self.store.identity, self._key] = (os.getpid(), self)

    def acknowledge(self) -> None:
        """Say that the caller of an append that has ended knows of it, and does not repeat it."""
        self._change(
            lambda record: replace(
                record, ended=record.ended and replace(record.ended, is_known=True)
            )
        )

    def _change(self, change: Callable[[ClaimRecord], ClaimRecord]) -> None:
        """Change the record, if there is one, and it is still that of this append."""
        store = self.store
        if is_in_memory(store):
            return
        with suppress(StoreError, OSError):
            if self.lasts:
                tagged = cas_store_or_none(store, self._key)
                if tagged is None:
                    return
                change_claim(tagged, self._key, self.token, change)
            elif isinstance(store, FileStore):
                with folder_lock(f"{store.root}/{self.prefix}".rstrip("/")):
                    self._change_file(store, change)

    def _change_file(self, store: FileStore, change: Callable[[ClaimRecord], ClaimRecord]) -> None:
        """Change the record in its place: it is the file that is locked."""
        descriptor = open_in(store.root, self._key, os.O_RDWR)
        try:
            found = _record_in(descriptor)
            if found is not None and found.tokens[-1:] == (self.token,):
                _write(descriptor, change(found))
                os.fsync(descriptor)  # before the journal goes
                fsync_names(f"{store.root}/{self.prefix}".rstrip("/"), store.root)
        finally:
            close_read(descriptor)

    def _conflict(self, found: ClaimRecord | None, *, lives: bool) -> AppendConflictError:
        who = found or f"it has just {'begun' if lives else 'ended'}"
        if found is not None and found.makes:
            return AppendConflictError(
                f"{self.what} is being written anew by a job ({who}); nothing was written. Append "
                f"when it has ended. If its process has died, repeat its call, or remove "
                f"{self.store.url}/{self._key}."
            )
        how = (
            ""
            if lives
            else f" If its process has died, repeat its call with the same resume=, or remove "
            f"{self.store.url}/{self._key}."
        )
        return AppendConflictError(
            f"another append to {self.what} is under way ({who}); nothing was written. Both would "
            f"write the same elements. Wait until it has ended, or pass on_conflict='wait'.{how}"
        )

    # --- in memory --------------------------------------------------------------------------------

    @property
    def _name(self) -> tuple[str, str]:
        return self.store.identity, self.prefix

    def _claim_memory(self) -> Claim | AppendConflictError:
        with _MEMORY_LOCK:
            found = _IN_MEMORY.setdefault(self._name, _MemoryClaim())
            is_new = self._is_new(found.tokens)
            if is_new and found.holders:
                return self._conflict(ClaimRecord(found.tokens), lives=True)
            if is_new:
                found.tokens += (self.token,)
            found.holders += 1

        def close() -> None:
            with _MEMORY_LOCK:
                found.holders -= 1

        return Claim(close, is_new=is_new)

    def _leave_memory(self, *, alone: bool) -> None:
        with _MEMORY_LOCK:
            found = _IN_MEMORY.get(self._name, _MemoryClaim())
            if found.tokens[-1:] == (self.token,) and not (alone and len(found.tokens) > 1):
                del _IN_MEMORY[self._name]

    # --- local files ------------------------------------------------------------------------------

    def _claim_file(self, store: FileStore, on_conflict: OnConflict) -> Claim:
        path = self.prefix.rstrip("/")
        folder = f"{store.root}/{path}".rstrip("/")
        flags = os.O_RDWR | os.O_CREAT
        opened = partial(open_folder, store.root, path, make=True)  # which is behind no link
        deadline = monotonic() + _PATIENCE
        while True:
            descriptor = -1
            try:
                with folder_lock(folder, opened) as held:
                    with suppress(FileNotFoundError):
                        descriptor = open_in(store.root, self._key, flags, held.descriptor)
                    if descriptor < 0:  # it was removed with the array, after it was locked
                        continue
                    found, is_new, is_ours = self._taken(descriptor)
                    is_left = is_ours and not is_at(descriptor, f"{folder}/{HELD}")
            except BaseException:  # also if the lock of the folder cannot be given back
                if descriptor >= 0:
                    close_read(descriptor)
                raise
            if is_left:  # it was removed before it was locked: the lock is one of nothing
                JobLock(descriptor).close()
                continue
            if is_ours:
                is_first = is_new and not self._tokens_before(found)
                closing = JobLock(descriptor).close
                return Claim(closing, is_new=is_new, record=descriptor, is_first=is_first)
            try:
                unlocked = self._is_without_lock(found)
                if on_conflict == "error" or (unlocked and monotonic() > deadline):
                    raise self._conflict(found, lives=not unlocked)
                lock(descriptor, wait=True)  # until all who work on it have let go
            finally:
                close_read(descriptor)
            if unlocked:
                sleep(uniform(0, _LONGEST))  # noqa: S311  (it can only be asked for)

    def _is_without_lock(self, found: ClaimRecord | None) -> bool:
        """True if another append has the claim through a mount whose locks are not seen here."""
        is_same = found is not None and bool(self.job) and found.job == self.job
        return found is not None and found.stands_alone and not is_same

    def _taken(self, descriptor: int) -> tuple[ClaimRecord | None, bool, bool]:
        """Lock the record; return what it said, and whether the claim is new, and taken."""
        found = _record_in(descriptor)
        is_new = self._is_new(() if found is None else found.tokens)
        if is_new:
            if not _is_nobodys(descriptor) or self._is_without_lock(found):
                return found, True, False
            _write(descriptor, self._behind(found))
        lock(descriptor, shared=True, wait=True)
        return found, is_new, True

    def _is_new(self, tokens: tuple[str, ...]) -> bool:
        """Return True if the append does not have the claim yet; raise if it has it no more."""
        if self.token in tokens[:-1]:
            raise AppendConflictError(
                f"another append to {self.what} has begun while no task of this one ran, and may "
                "have written to the same elements. Look at the end of the array, and append one "
                "after the other."
            )
        return tokens[-1:] != (self.token,)

    def _behind(self, found: ClaimRecord | None) -> ClaimRecord:
        tokens = (*self._tokens_before(found), self.token)
        return ClaimRecord(tokens, self.job, Owner.here(locked=True))

    @staticmethod
    def _tokens_before(found: ClaimRecord | None) -> tuple[str, ...]:
        """Return the tokens of those whose tasks must find out that another append came."""
        return () if found is None or found.ended is not None else found.tokens

    def _leave_locked(self, store: FileStore, record: int, *, is_kept: bool) -> None:
        """Remove the record while it is locked: nobody takes it over, or puts another one.

        Whoever has opened it before, and locks it later, finds that it has gone. So the folder
        needs no lock.
        """
        file = f"{store.root}/{self._key}"
        with suppress(OSError):  # whoever comes next finds that nobody holds it
            if not is_kept and is_at(record, file):
                os.unlink(file)  # noqa: PTH108  (in a third of the time)
        remove_empty_folders(store, self.prefix)

    def _leave_file(self, store: FileStore, *, alone: bool) -> None:
        file = f"{store.root}/{self._key}"
        with suppress(OSError):  # whoever comes next finds that nobody holds it
            if not os.path.exists(file):  # noqa: PTH110
                return
            with folder_lock(f"{store.root}/{self.prefix}".rstrip("/")):
                found = ClaimRecord.parsed(_read(store, self._key))
                tokens = () if found is None else found.tokens
                if tokens[-1:] == (self.token,) and not (alone and len(tokens) > 1):
                    os.unlink(file)  # noqa: PTH108  (in a third of the time)
        remove_empty_folders(store, self.prefix)

    # --- object stores ----------------------------------------------------------------------------

    def _claim_of_object(self, *, is_new: bool, renews: bool) -> Claim:
        """Return the claim that this append has in an object store, renewed until it is closed."""
        if not renews:
            return Claim(is_new=is_new)
        job, key = (self.store.url, self.job), self._key
        LEASES.begin(job, key, partial(renew_claim, self.store, key, self.token, self.job))
        return Claim(partial(LEASES.end, job, key), is_new=is_new)

    def _claim_object(
        self, watch: Watch, *, renews: bool, alone: bool
    ) -> Claim | AppendConflictError:
        tagged = cas_store_or_none(self.store, self._key)
        if tagged is None:
            return Claim()
        renewed = now_in_utc() if renews else ""
        mine = [ClaimRecord((self.token,), self.job, renewed=renewed, alone=alone).to_json()]
        found = None
        for _ in range(_ATTEMPTS):  # others may come and go meanwhile
            if tagged.set_if(self._key, mine, None):
                return self._claim_of_object(is_new=True, renews=renews)
            value, tag = tagged.get_tagged(self._key)
            found = ClaimRecord.parsed(value)
            if found is not None and found.tokens[-1:] == (self.token,):
                return self._claim_of_object(is_new=False, renews=renews)
            if value is None:
                continue
            if not (self._may_be_taken(value, found) or _has_expired(found, watch)):
                break
            if tagged.set_if(self._key, mine, tag):
                if is_remote(self.store) and found is not None and self._is_from_the_dead(found):
                    wait_out()  # for what it has sent
                return self._claim_of_object(is_new=True, renews=renews)
        return self._conflict(found, lives=False)

    def _is_from_the_dead(self, found: ClaimRecord) -> bool:
        """Return True if a process that was killed had the claim for another append."""
        return found.has_died and not found.is_free

    def _may_be_taken(self, value: Buffer, found: ClaimRecord | None) -> bool:
        """Return True if the claim of another append, as it is stored, is to be taken over.

        Raises
        ------
        SameJobRunningError
            If another process works on the same append.
        """
        is_over = found is not None and (found.is_free or found.has_died)
        if isinstance(self.store, FileStore):  # empty: its maker, which had a lock, died over it
            is_over |= not value or (found is not None and found.owner.is_gone())
        if found is not None and is_remote(self.store):
            check_not_same(self.store, self._key, found, self.job, self.what)
        return is_over or (found is not None and bool(self.job) and found.job == self.job)

    def _waited(
        self, claim: Callable[[], Claim | AppendConflictError], on_conflict: OnConflict
    ) -> Claim:
        """A claim, as soon as it can be had, or the last reason why it cannot."""
        last, deadline = "", monotonic() + _PATIENCE
        waits = pauses()
        while True:
            found = claim()
            if isinstance(found, Claim):
                return found
            if str(found) != last:  # another one has it by now
                last, deadline = str(found), monotonic() + _PATIENCE
            if on_conflict == "error" or monotonic() > deadline:
                raise found
            sleep(next(waits))


def _has_expired(found: ClaimRecord | None, watch: Watch) -> bool:
    """Note a look at a claim; return True if its process is taken for dead by now."""
    is_renewed = found is not None and bool(found.renewed) and not found.owner.is_this()
    return found is not None and is_renewed and watch.has_expired(found.renewal) and found.has_died


def check_not_same(store: Store, key: str, found: ClaimRecord, job: str, what: str) -> None:
    """Raise if a claim is of another process that works on the same job, as far as is known.

    Parameters
    ----------
    store, key, found
        The claim.
    job
        Tells the job from others; empty if it cannot be resumed.
    what
        The node, for the message.

    Raises
    ------
    SameJobRunningError
        If it is.
    """

    def look() -> Renewal | None:
        now = ClaimRecord.parsed(store.get(key))
        return now.renewal if now is not None and now.is_same_elsewhere(job) else None

    if found.is_same_elsewhere(job):
        raise SameJobRunningError(what, f"{store.url}/{key}", found, watched(look))


def change_claim(
    store: ConditionalStore, key: str, token: str, change: Callable[[ClaimRecord], ClaimRecord]
) -> None:
    """Change the claim of a job, unless it is another one's; it may be renewed at the same time."""
    for _ in range(_ATTEMPTS):
        value, tag = store.get_tagged(key)
        found = ClaimRecord.parsed(value)
        if found is None or found.tokens[-1:] != (token,):
            return
        if store.set_if(key, [change(found).to_json()], tag):
            return


def renew_claim(store: Store, key: str, token: str, job: str) -> bool:
    """Renew the claim of a job that this process works on; return False if it is not there."""
    tagged = as_cas_store(store)
    value, tag = tagged.get_tagged(key)
    found = ClaimRecord.parsed(value)
    if found is None or not found.is_renewed_by(token, job):
        return False
    tagged.set_if(key, [replace(found, renewed=now_in_utc()).to_json()], tag)
    return True


def holds_no_claims(store: Store, error: StoreError) -> bool:
    """True if an error proves that nothing can be claimed in a store; False if it may pass.

    As with journals, what lies beside may not be the caller's to write.
    """
    if isinstance(store, FileStore):
        return getattr(error.__cause__, "errno", None) in _NOT_OURS
    if isinstance(error, AccessDeniedError):
        return not error.expired
    return isinstance(error, (ConditionalWriteError, ReadOnlyError, StoreKeyError))


def end_of_array(store: Store, path: str, token: str, job: str = "") -> ArrayEnd | None:
    """The end of an array; None where nothing can be claimed.

    Parameters
    ----------
    store, path
        The array.
    token
        Tells the append from all others.
    job
        Tells what is appended (`JobRecord.content_token`), if the job can be resumed.
    """
    if forkable(store) is not None and job_session(store) is None:
        return None  # its transactions are committed one after the other
    inner, below = unwrap_with_path(store, path)
    if is_in_memory(inner):
        return ArrayEnd(inner, below, token, where(store, path), job)
    place = default_place(store, path)
    if place is None:
        return None
    return ArrayEnd(place.store, f"{place.prefix}{CLAIM}", token, where(store, path), job)


@contextmanager
def claimed(
    store: Store,
    path: str,
    on_conflict: OnConflict = "error",
    job: str = "",
    *,
    removes: bool = False,
) -> Iterator[None]:
    """Claim the end of an array for what a ``with`` statement does.

    Parameters
    ----------
    store, path, on_conflict, job
        As for `end_of_array` and `ArrayEnd.claim`.
    removes
        True if the array is removed: a claim of an object store keeps nobody away then.

    Raises
    ------
    AppendConflictError
        If an append has it.
    """
    asks = not (removes and is_remote(store))
    end = end_of_array(store, path, token_hex(8), job) if asks else None
    if end is None:
        yield
        return
    claim = end.claim(on_conflict, renews=True, alone=True)
    has_ended = False
    try:
        yield
        has_ended = True
    finally:
        end.leave(alone=not has_ended, claim=claim)
        claim.close()


def check_not_claimed(place: JournalLocation | None, at: str) -> None:
    """Raise if a job in local files has claimed the end of an array, or the place of a new one.

    Parameters
    ----------
    place
        The location of the array's journals, if it is local and has one.
    at
        The array, for messages.

    Raises
    ------
    JobRunningError
        If one has.
    """
    if place is not None and not is_bare(place):
        check_not_locked(place.store, [f"{place.prefix}{CLAIM}{HELD}"], at)
        check_no_job(place, at)


def check_no_job(place: JournalLocation, at: str) -> None:
    """Raise if a running process writes to a node, by its journals; see `check_not_claimed`."""
    if isinstance(place.store, FileStore):
        folders = place.store.list_dir(place.prefix).prefixes
        jobs = (one for one in folders if one[len(place.prefix) :].startswith(JOB))
        check_not_locked(place.store, [f"{one}{HELD}" for one in jobs], at)


def ended_append(
    store: Store, path: str, job: str, shape: tuple[int, ...], *, was_awaited: bool = False
) -> EndedAppend | None:
    """Return the end of an append whose process was killed before it could say so; None if none is.

    Parameters
    ----------
    store, path, shape
        The array as it is now.
    job
        Tells what was appended (`JobRecord.content_token`).
    was_awaited
        True for an append that this process has waited for, whose process may have ended in order.

    Raises
    ------
    JournalError
        If the record says what no append says: it may have been one that has ended.
    """
    end = end_of_array(store, path, "")
    if end is None or is_in_memory(end.store):
        return None
    try:
        text = _read(end.store, f"{end.prefix}{HELD}")
    except StoreError:
        return None  # what lies beside may not be ours to read
    if text is None:
        return None
    found = ClaimRecord.parsed(text)
    # an object is put as a whole
    if found is None and (is_remote(end.store) or not _is_begun(bytes(text))):
        raise JournalError(
            f"{end.store.url}/{end.prefix}{HELD} is not what an append leaves there: nobody knows "
            f"whether the same one has ended. Look at the end of {end.what}, and remove that file."
        )
    if found is None or found.ended is None or found.job != job or found.ended.shape != shape:
        return None
    is_over = found.ended.is_known or found.ended.owner.is_running()
    return found.ended if was_awaited or not is_over else None


def _is_begun(text: bytes) -> bool:
    """True if a process may have left this that was killed while it made a record of a claim."""
    text = text.rstrip(b"\0 ")  # what a power cut has left
    is_whole = b'"ended": {' in text or text.endswith(b"}")
    return not is_whole and (text.startswith(_START) or _START.startswith(text))


def sweep_claims(store: Store, path: str) -> None:
    """Remove what killed jobs have left beside a node and those below it, in local files.

    Their claims, temporary files, and journals without a description: these were being removed.
    Beside the hierarchy, the folders in which they had their turn at a job.
    Claims of jobs with a journal stay with it, and so do records of appends that have ended.
    """
    place = default_place(store, path)
    if place is None or not isinstance(place.store, FileStore):
        return
    try:
        check_behind_no_link(place)
    except LinkError:
        return  # what lies there is not a job's
    sweep_turns(place.store.root)
    remove_rests(place.store, place.prefix)
    keys = list(place.store.list(place.prefix))
    for key in keys:
        node = f"/{key}".removesuffix(f"/{CLAIM}{HELD}")[1:]
        if key.endswith(f"{CLAIM}{HELD}") and not any(
            other.startswith(f"{node}/{JOB}" if node else JOB) for other in keys
        ):
            _sweep(place.store, key.removesuffix(HELD))
    remove_empty_folders(place.store, place.prefix)


def remove_rests(store: FileStore, prefix: str) -> None:
    """Remove temporary files of killed processes, and journals without a description."""
    for key, _ in store.list_temporaries(prefix):
        if is_left_by_the_dead(key.rpartition("/")[2]):
            store.delete(key)
            remove_empty_folders(store, f"{key.rpartition('/')[0]}/")
    folders = {found[0] for found in map(_IN_JOURNAL.match, store.list(prefix)) if found}
    for folder in folders:
        if not (is_locked(store, folder) or is_described(store, folder)):
            with suppress(LinkError):  # what lies there is not a job's
                store.delete_prefix(folder)
            remove_empty_folders(store, folder)


def _sweep(store: FileStore, folder: str) -> None:
    """Remove a claim that no process holds."""
    at = f"{store.root}/{folder}".rstrip("/")
    with suppress(OSError, ConditionalWriteError):
        with folder_lock(at):
            descriptor = open_in(store.root, f"{folder}{HELD}", os.O_RDWR)
            try:
                found = _record_in(descriptor)
                has_ended = found is not None and found.ended is not None
                # a process on another host may have it where locks are not shared
                counts = has_ended or (found is not None and found.stands_alone)
                if not counts and has_shared_locks(descriptor) and _is_nobodys(descriptor):
                    os.unlink(f"{at}/{HELD}")  # noqa: PTH108
            finally:
                close_read(descriptor)
        remove_empty_folders(store, folder)


def _acknowledge() -> None:
    """Say that this process, which ends in order, knows of the appends that it has ended."""
    while _LEFT:
        process, end = _LEFT.popitem()[1]
        # threads may not begin any more; a store that has gone holds no process up
        with in_foreground(), suppress(StoreError, OSError, RuntimeError):
            if process == os.getpid():
                end.acknowledge()


def _is_nobodys(descriptor: int) -> bool:
    return lock(descriptor)


def _trusts_locks(root: str) -> bool:
    """True if locks below a folder, which may still be to be made, hold between all hosts."""
    place = next(filter(os.path.isdir, chain([root], folders_around(root))))
    try:
        return folder_has_shared_locks(place)
    except OSError:
        return True  # it is refused where it is written to


def _record_in(descriptor: int) -> ClaimRecord | None:
    size = min(os.fstat(descriptor).st_size, _LONGEST_TEXT + 1)
    return ClaimRecord.parsed(read_at(descriptor, 0, size))


def _write(descriptor: int, record: ClaimRecord) -> None:
    """Write a record over the one before, which is there until then."""
    text = record.to_json()
    size = os.fstat(descriptor).st_size
    if size > _LONGEST_TEXT:  # no record was there
        os.ftruncate(descriptor, 0)
        size = 0
    os.pwrite(descriptor, text.ljust(size), 0)
