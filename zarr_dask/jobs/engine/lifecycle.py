"""Starting a job with receipts, resuming one that has died, and joining one that runs.

A job starts from a plan (`ArraysPlan`) of one array, several arrays or a hierarchy. A journal
beside its *home* describes the job. Another process with the same plan finds the journal by the
plan's token. A plan that is `bound` to a journal is a job (`BoundJob`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock, RLock, Timer
from time import monotonic, sleep
from typing import TypeVar

from zarr_dask.errors import (
    ConditionalWriteError,
    JobReplacedError,
    JobRunningError,
    ListingError,
    NodeExistsError,
    ReadOnlyError,
    ResumeError,
)
from zarr_dask.jobs.engine.job import ArraysPlan, BoundJob
from zarr_dask.journal import (
    JobRecord,
    Journal,
    JournalLocation,
    check_resumable,
    default_place,
    given_place,
    jobs_creating,
    new_journal,
)
from zarr_dask.journal import open_journals as journals_at
from zarr_dask.journal.finished import FinishedJob, record_of
from zarr_dask.journal.lock import SameJobRunningError, turns_folder
from zarr_dask.stores.base import Store
from zarr_dask.stores.compare_and_swap import folder_lock
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.open import Location, local_path
from zarr_dask.stores.wrappers.base import is_read_only

__all__ = [
    "alone",
    "alone_at",
    "finished",
    "go_on",
    "is_known",
    "job_lock",
    "join_job",
    "resume",
    "start_job",
    "waiting_for_same",
]

T = TypeVar("T")

_READY = "ready"
_PATIENCE = 60.0  # seconds for another process to make room at the target
_POLL = 0.1  # there is no notification, so poll
_SILENT = 5.0  # seconds of waiting for another process that are worth a warning
_LOG = logging.getLogger(__name__)


class _Turns:
    """Jobs that threads of this process work on, one at a time on each."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset; the new locks are free, also in a forked process."""
        self._lock = Lock()
        self._jobs: dict[tuple[str, str], tuple[RLock, int]] = {}
        """Locks, and the number of threads that have or want them."""

    @contextmanager
    def taken(self, job: tuple[str, str], where: str) -> Iterator[bool]:
        """Wait for the turn at a job; yields True if another thread had it."""
        with self._lock:
            lock, count = self._jobs.get(job, (RLock(), 0))
            self._jobs[job] = lock, count + 1
        try:
            waits = not lock.acquire(blocking=False)
            if waits and not lock.acquire(timeout=_SILENT):
                _LOG.warning("%s: waiting for a thread that works on the same job", where)
                lock.acquire()
            try:
                yield waits
            finally:
                lock.release()
        finally:
            with self._lock:
                lock, count = self._jobs.pop(job)
                if count > 1:
                    self._jobs[job] = lock, count - 1


_TURNS = _Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURNS.forget)


def start_job(
    plan: ArraysPlan, journal: Location | None = None, *, alone: bool = False
) -> BoundJob:
    """Start a new job; anything that another job has left at the target is removed.

    `alone` as `BoundJob.claimed`.

    Raises
    ------
    NodeExistsError
        If there is something at the target.
    StoreError
        If nothing can be written there.
    JobRunningError
        If a running process holds a job there.
    """
    job, _ = plan.bound(plan.run_id, None).claimed(alone=alone)
    try:
        return _started(plan, job, journal)
    except BaseException:
        job.give_up()
        raise


def _started(plan: ArraysPlan, job: BoundJob, journal: Location | None) -> BoundJob:
    """Return a new job that has claimed its targets, after making room there."""
    place = _place(plan, journal)
    locations = plan.inspect(job.claim_keys)
    plan.check_room(locations)
    is_bare = journal is None and all(prefetched.free_beside for prefetched in locations)
    try:
        others = [] if place is None or is_bare else journals_at(place, needed=True)
    except ListingError:
        if journal is not None:
            raise
        place, others = None, []  # receipts that cannot be found are of no use
    for other, _ in others:
        other.check_not_locked(plan.where)
    for other, record in others:
        if record.kind == plan.kind:
            plan.bound(record.run_id, other).remove_intermediates()
        other.remove()
    with fenced_deletes(job.fence):
        plan.make_room(None if others else locations, keep_journals=False)
    if place is None:
        return job
    kept = _journal(plan, place)
    kept.begin(_job(plan, ready=True), is_bare=is_bare)
    return replace(job, journal=kept)


def go_on(job: BoundJob, *, alone: bool = False) -> BoundJob:
    """Return a job that is resumed, with claims to its targets in remote stores.

    `alone` as `BoundJob.claimed`.

    Raises
    ------
    JobReplacedError
        If another job has begun anew meanwhile.
    """
    claimed, was_others = job.claimed(alone=alone)
    if was_others and job.journal is not None:
        job.journal.check_ours()
    return claimed


def resume(
    plan: ArraysPlan, journal: Location | None = None, *, merges: bool = True
) -> BoundJob | None:
    """Return the same job if one has died, else None.

    Parameters
    ----------
    plan
        The plan of the job.
    journal
        Location of the receipts; beside the target's hierarchy by default.
    merges
        True to merge the receipts of single tasks; False if many processes come at the same time.

    Output that another job has put at the target meanwhile is left alone, or replaced from the
    beginning. (Its objects may have equal sizes and other values.)

    Raises
    ------
    NodeExistsError
        If there is something at the target that may not be replaced.
    ResumeError
        If there is no location for a journal, or the target cannot keep one.
    """
    check_resumable(plan.home[0], plan.where)
    place = _place(plan, journal)
    if place is None:
        raise ResumeError(
            f"{plan.where} has no place beside it for a journal: it is in memory, in an archive, "
            "or the root of a bucket. Say where with journal=, a path or URL outside the hierarchy."
        )
    for other, job in journals_at(place, needed=True):
        if job.kind == plan.kind and job.token == plan.token:
            if merges:
                other.merge()
            if not other.attach(job):
                continue
            found = plan.bound(job.run_id, other)
            if found.is_ours():
                return found
            plan.check_room()
    ended = _journal(plan, place)
    if ended.job() is None and plan.is_finished():
        ended.remove()  # what is left of it, if the job was killed while it removed its journal
    return None


def finished(plan: ArraysPlan, journal: Location | None = None) -> FinishedJob | None:
    """Return the record of the same job if it has ended and is not to be done once more."""
    place = _place(plan, journal)
    record = None if place is None else record_of(place.store, place.prefix, plan.token)
    if record is None or not plan.is_finished():
        return None
    try:
        plan.check_room()
    except NodeExistsError:
        return record
    return None  # it is to be replaced


def is_known(plan: ArraysPlan, journal: Location | None = None) -> bool:
    """True if the same job has left a journal, or a record of its end."""
    place = _place(plan, journal)
    if place is None:
        return False
    if _journal(plan, place).job() is not None:
        return True
    return record_of(place.store, place.prefix, plan.token) is not None


def join_job(plan: ArraysPlan, journal: Location | None = None) -> BoundJob:
    """Start the job of a plan file, which several processes may start at the same time.

    The first process makes room at the target; the others wait for it.

    Raises
    ------
    NodeExistsError
        If there is something at the target.
    ResumeError
        If there is no location for a journal, or another job is open there: another run of the same
        plan, or one that writes other values, whose receipts could not be told from these.
    ReadOnlyError
        If the target is a branch that is committed by the call that writes it.
    """
    if is_read_only(plan.home[0]):
        raise ReadOnlyError(
            f"{plan.where} is open for reading only, and a plan file is run by processes of which "
            "each would commit by itself. Make the plan in Python, and call its run()."
        )
    found = resume(plan, journal, merges=False)
    place = _place(plan, journal)
    if found is not None and found.run_id != plan.run_id:
        raise ResumeError(
            f"another run of this plan was begun at {plan.where} and has not ended. Use its plan "
            "file, or remove its journal."
        )
    kept = _journal(plan, place) if place is not None else None
    if kept is None:
        raise ResumeError(f"{plan.where} has no place for a journal. Give one (journal=).")
    if kept.job() is None:
        if plan.is_finished():  # a part that comes late must not make room once more
            raise NodeExistsError(f"{plan.where} is finished; there is nothing left to do.")
        plan.check_room()
        _check_alone(plan, place)
        plan.bound(plan.run_id, None).claimed()
        if kept.note_if_none(_job(plan, ready=False)):
            plan.make_room(keep_journals=True)
            kept.note(_job(plan, ready=True))
    _wait_until_ready(kept, plan)
    job = go_on(plan.bound(plan.run_id, kept))
    if not job.is_ours():
        raise NodeExistsError(
            f"{plan.where} was created by another job since this plan was begun. Delete it, or "
            "make a plan for another target."
        )
    return job


@contextmanager
def job_lock(journal: Journal | None) -> Iterator[None]:
    """Hold the journal of a job within a ``with`` statement: this process works on the job.

    Receipts that it has gathered are stored at the end, unless the journal was removed.
    """
    if journal is None:
        yield
        return
    with closing(journal.lock()):
        try:
            yield
        except JobReplacedError as error:
            if not error.is_same_job:
                journal.remove_replaced()
            raise
        except BaseException:
            journal.flush_after_failure()
            raise
        journal.flush()


@contextmanager
def alone(plan: ArraysPlan, journal: Location | None) -> Iterator[bool]:
    """Work on a resumable job as the only process that runs all of it; wait for another one.

    Yields True if another process was at work on it, which has ended or died. That can be told
    only of journals in local files; in object stores its claims tell (`waiting_for_same`). A wait
    of seconds is logged.

    Raises
    ------
    JobRunningError
        If it cannot be told whether the process that works on it is still running.
    """
    place = _place(plan, journal)
    if place is None:
        yield False
        return
    with alone_at(place.store, _journal(plan, place).prefix, plan.where) as was_running:
        if place.session is not None:
            place.session.refresh()  # it was opened before another process may have committed
        yield was_running


@contextmanager
def alone_at(store: Store, prefix: str, where: str) -> Iterator[bool]:
    """Work on the job with a journal at this prefix as the only process; see `alone`.

    In other stores than local files, threads of this process take turns.

    Raises
    ------
    JobRunningError
        As `alone`.
    """
    root = local_path(store, "")
    if root is None:
        with _TURNS.taken((store.identity, prefix), where) as was_running:
            yield was_running
        return
    folder = Path(turns_folder(root, prefix))
    was_running = folder.is_dir()
    try:
        with ExitStack() as stack:
            try:
                with _telling(f"{where}: waiting for the process that works on the same job"):
                    stack.enter_context(folder_lock(str(folder)))
            except ConditionalWriteError as error:
                raise JobRunningError(
                    f"the same job is at work on {where} in another process, of which it cannot "
                    f"be told here whether it is still running: {error}"
                ) from error
            except OSError:
                pass  # no folder can be made here: starting the job says why
            yield was_running
    finally:
        with suppress(OSError):  # another process waits in it, and removes it later
            folder.rmdir()


def waiting_for_same(call: Callable[[], T], where: str) -> T:
    """Call a function again whenever a process that works on the same job has ended."""
    while True:
        try:
            return call()
        except SameJobRunningError as same:
            with _telling(f"{where}: waiting for the process that works on the same job. {same}"):
                same.wait()


@contextmanager
def _telling(said: str) -> Iterator[None]:
    """Log a text if a ``with`` statement takes seconds."""
    timer = Timer(_SILENT, _LOG.warning, ("%s", said))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_alone(plan: ArraysPlan, place: JournalLocation | None) -> None:
    """Refuse to start while another job is open: both would write to the same objects."""
    found = [] if place is None else journals_at(place)
    with suppress(ListingError):  # without listing, no journal can exist there
        for target in dict.fromkeys((plan.home, *plan.targets)):
            found += jobs_creating(*target)
    for other, job in found:
        if job.run_id != plan.run_id:
            raise ResumeError(
                f"another job that writes to {plan.where} was begun at {job.begun} and has not "
                "ended, so that values of both could be mixed. End it, choose another target, or "
                f"remove its journal, {other.url}, if it has died."
            )


def _wait_until_ready(journal: Journal, plan: ArraysPlan) -> None:
    deadline = monotonic() + _PATIENCE
    while True:
        job = journal.job()
        if job is not None and job.extra.get(_READY):
            return
        if monotonic() > deadline:
            raise NodeExistsError(
                f"another process began to make room at {plan.where} and has not come to its end "
                f"within {_PATIENCE:.0f} s. If it has died, remove {journal.url} and run the plan "
                "again."
            )
        sleep(_POLL)


def _place(plan: ArraysPlan, journal: Location | None) -> JournalLocation | None:
    if journal is None:
        return default_place(*plan.home)
    for target in plan.targets:
        given_place(journal, *target)  # raises if it lies inside a target
    return given_place(journal, *plan.home)


def _journal(plan: ArraysPlan, place: JournalLocation) -> Journal:
    return replace(new_journal(place, _job(plan, ready=False)), run_id=plan.run_id)


def _job(plan: ArraysPlan, *, ready: bool) -> JobRecord:
    job = plan.described()
    return replace(job, extra={**job.extra, _READY: ready})
