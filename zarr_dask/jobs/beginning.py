"""Beginning a job that leaves receipts, going on with one that has died, joining one that runs.

What is begun is a plan (`JobPlan`): of one array, of several, or of a hierarchy. A journal beside
its *home* says what the job is; whoever has the same plan finds it again by the plan's token, and
`bound` to the journal the plan is a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Protocol, TypeVar

from zarr_dask.errors import ListingError, NodeExistsError, ResumeError
from zarr_dask.journal import (
    Job,
    Journal,
    Place,
    check_resumable,
    creating,
    default_place,
    given_place,
    new_journal,
)
from zarr_dask.journal import open_journals as journals_at
from zarr_dask.stores.base import Store
from zarr_dask.stores.conditional import ConditionalStore
from zarr_dask.stores.urls import Location

__all__ = ["BoundJob", "JobPlan", "begin_anew", "begin_shared", "held", "resume"]

_READY = "ready"
_PATIENCE = 60.0  # seconds for another process to make room at the target
_POLL = 0.1  # nobody is told when it has: it can only be asked for


class BoundJob(Protocol):
    """A plan and the receipts of its tasks."""

    @property
    def creation(self) -> str:
        """Tells what the job writes from what may be at the same place later."""
        ...

    def is_ours(self) -> bool:
        """Whether nobody else has put something at the target since the job began."""
        ...

    def remove_intermediates(self) -> None:
        """Remove what lies between its stages."""
        ...


J_co = TypeVar("J_co", bound=BoundJob, covariant=True)
J = TypeVar("J", bound=BoundJob)


class JobPlan(Protocol[J_co]):
    """What beginning a job needs to know of its plan."""

    @property
    def kind(self) -> str:
        """What does the work, as the journal says it."""
        ...

    @property
    def token(self) -> str:
        """Equal for plans that write the same bytes to the same places."""
        ...

    @property
    def creation(self) -> str:
        """Tells what the plan writes from what may be at the same place later."""
        ...

    @property
    def where(self) -> str:
        """What it writes to, for messages."""
        ...

    @property
    def home(self) -> tuple[Store, str]:
        """Store and path of the node beside whose hierarchy the journal lies."""
        ...

    @property
    def targets(self) -> Sequence[tuple[Store, str]]:
        """Store and path of each node that is written; `home` where they all lie in it."""
        ...

    def is_finished(self) -> bool:
        """Whether everything is there with the metadata of the plan."""
        ...

    def check_room(self) -> None:
        """Refuse to write where something is that may not be replaced."""
        ...

    def make_room(self, *, keep_journals: bool) -> None:
        """Remove what is to be replaced, and the journals of other jobs if that is asked for."""
        ...

    def bound(self, creation: str, journal: Journal | None) -> J_co:
        """The job with its receipts; `journal` is None where there is no place for them."""
        ...

    def described(self) -> Job:
        """What its journal says."""
        ...


def begin_anew(plan: JobPlan[J], journal: Location | None = None) -> J:
    """A job of its own: whatever another one has left at the target goes.

    Raises
    ------
    NodeExistsError
        If there is something at the target.
    StoreError
        If nothing can be written there.
    JobRunningError
        If a process that lives works on a job there.
    """
    place = _place(plan, journal)
    plan.check_room()
    try:
        others = [] if place is None else journals_at(place, needed=True)
    except ListingError:
        if journal is not None:
            raise
        place, others = None, []  # receipts that nobody can find are of no use
    for other, _ in others:
        other.check_not_held(plan.where)
    for other, job in others:
        if job.kind == plan.kind:
            plan.bound(job.creation, other).remove_intermediates()
        other.remove()
    plan.make_room(keep_journals=False)
    if place is None:
        return plan.bound(plan.creation, None)
    kept = _journal(plan, place)
    kept.begin(_job(plan, ready=True))
    return plan.bound(plan.creation, kept)


def resume(plan: JobPlan[J], journal: Location | None = None) -> J | None:
    """The same job that has died, if there is one.

    What another job has put at the target meanwhile is not this one's: it is left alone, or
    replaced from the beginning. (Objects may have equal sizes and other values.)

    Raises
    ------
    NodeExistsError
        If there is something at the target that may not be replaced.
    ResumeError
        If there is no place for a journal, or the target keeps nothing of a job that has died.
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
            other.merge()
            found = plan.bound(job.creation, other)
            if found.is_ours():
                return found
            plan.check_room()
    ended = _journal(plan, place)
    if ended.job() is None and plan.is_finished():
        ended.remove()  # what is left of it, if the job was killed while it removed its journal
    return None


def begin_shared(plan: JobPlan[J], journal: Location | None = None) -> J:
    """The job of a plan in a file, which several processes may begin at the same time.

    The first of them makes room at the target, the others wait for that.

    Raises
    ------
    NodeExistsError
        If there is something at the target.
    ResumeError
        If there is no place for a journal, or another job is open there: another run of the same
        plan, or one that writes other values, which receipts would not tell from these.
    """
    found = resume(plan, journal)
    place = _place(plan, journal)
    if found is not None and found.creation != plan.creation:
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
        if _is_first(kept, _job(plan, ready=False)):
            plan.make_room(keep_journals=True)
            kept.note(_job(plan, ready=True))
    _wait_until_ready(kept, plan)
    job = plan.bound(plan.creation, kept)
    if not job.is_ours():
        raise NodeExistsError(
            f"{plan.where} was created by somebody else since this plan was begun. Delete it, or "
            "make a plan for another target."
        )
    return job


def held(journal: Journal | None) -> AbstractContextManager[object]:
    """Say, within a ``with`` statement, that this process works on the job of a journal."""
    return nullcontext() if journal is None else closing(journal.hold())


def _check_alone(plan: JobPlan[J], place: Place | None) -> None:
    """Refuse to begin where another job has not ended: both would write to the same objects."""
    found = [] if place is None else journals_at(place)
    with suppress(ListingError):  # nobody can have kept a journal where nothing is listed
        for target in dict.fromkeys((plan.home, *plan.targets)):
            found += creating(*target)
    for other, job in found:
        if job.creation != plan.creation:
            raise ResumeError(
                f"another job that writes to {plan.where} was begun at {job.begun} and has not "
                "ended, so that values of both could be mixed. End it, choose another target, or "
                f"remove its journal, {other.url}, if it has died."
            )


def _is_first(journal: Journal, job: Job) -> bool:
    """Note a job, unless another process has just done so."""
    if isinstance(journal.store, ConditionalStore):
        return journal.note_if_none(job)
    journal.note(job)
    return True


def _wait_until_ready(journal: Journal, plan: JobPlan[BoundJob]) -> None:
    deadline = monotonic() + _PATIENCE
    while True:
        job = journal.job()
        if job is not None and job.facts.get(_READY):
            return
        if monotonic() > deadline:
            raise NodeExistsError(
                f"another process began to make room at {plan.where} and has not come to its end "
                f"within {_PATIENCE:.0f} s. If it has died, remove {journal.url} and run the plan "
                "again."
            )
        sleep(_POLL)


def _place(plan: JobPlan[BoundJob], journal: Location | None) -> Place | None:
    if journal is None:
        return default_place(*plan.home)
    for target in plan.targets:
        given_place(journal, *target)  # raises where it would lie in what is written
    return given_place(journal, *plan.home)


def _journal(plan: JobPlan[BoundJob], place: Place) -> Journal:
    return replace(new_journal(place, _job(plan, ready=False)), creation=plan.creation)


def _job(plan: JobPlan[BoundJob], *, ready: bool) -> Job:
    job = plan.described()
    return replace(job, facts={**job.facts, _READY: ready})
