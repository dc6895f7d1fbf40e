"""A rechunking that is carried out: what is done, what is left, and how it ends.

A `RechunkJob` binds a plan to the creation that its receipts are for. Whoever has the plan makes
the same job again: processes that each do a part of a stage need nothing but its file. Whatever
is done leaves a receipt in the journal beside the target, so that a job that has died goes on
with what is missing, and the end checks that nothing is.

A stage whose tasks all have valid receipts needs none of the stages before it, so that their
intermediate arrays may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic, sleep
from typing import Protocol

from zarr_dask.array import Array
from zarr_dask.create import plain_chain
from zarr_dask.errors import NodeExistsError, ResumeError
from zarr_dask.formats.base import ArrayMeta, ChunkKeys, ReadOptions, prefix_of
from zarr_dask.grid import Region, Shape
from zarr_dask.hierarchy import check_place, prepare_array_place, prepare_place, put_documents
from zarr_dask.jobs.copying import Records, Stage
from zarr_dask.jobs.plan import counted
from zarr_dask.jobs.stages import StagePlan
from zarr_dask.journal import Job, Journal, Place, default_place, given_place, new_journal
from zarr_dask.journal import open_journals as journals_at
from zarr_dask.receipts import Receipt, Receipts, collect
from zarr_dask.stores.base import Store, list_sizes
from zarr_dask.stores.conditional import ConditionalStore
from zarr_dask.stores.urls import Location, beside, open_store

__all__ = ["RechunkJob", "begin_anew", "begin_shared", "narrower", "resume"]

_KIND = "rechunk"
_READY = "ready"
_PATIENCE = 60.0  # seconds for another process to make room at the target
_POLL = 0.1  # nobody is told when it has: it can only be asked for


class Planned(Protocol):
    """What a job needs to know of its plan (`zarr_dask.jobs.rechunk_plan.RechunkPlan`)."""

    @property
    def source(self) -> Array: ...
    @property
    def region(self) -> Region: ...
    @property
    def target(self) -> Array: ...
    @property
    def stages(self) -> tuple[StagePlan, ...]: ...
    @property
    def overwrite(self) -> bool: ...
    @property
    def temp(self) -> Location | None: ...
    @property
    def creation(self) -> str: ...
    @property
    def token(self) -> str: ...
    def is_finished(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class RechunkJob:
    """A plan and the receipts of its tasks."""

    plan: Planned
    creation: str
    """Tells what this job writes from what may be at the same place later."""
    journal: Journal | None
    """Where receipts are kept; None where there is no place for them."""

    # --- stages -----------------------------------------------------------------------------------

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The source, what lies between the stages, the target."""
        kept = narrower(self.plan.source, self.plan.target).meta
        between = []
        for stage in self.plan.stages[:-1]:
            store, folder = self._temporary_place()
            path = f"{folder}/{_shown(stage.target.object_shape)}"
            meta = ArrayMeta(
                stage.target.grid,
                kept.data_type,
                None,
                plain_chain(kept),
                ChunkKeys("default", "/"),
            )
            strict = ReadOptions(missing="error")  # every object of it was written
            between.append(Array(store, path, meta, self.plan.target.node_format, strict))
        return (self.plan.source, *between, self.plan.target)

    def stage(self, number: int) -> Stage:
        """A stage, bound to what it reads, writes and leaves behind."""
        plan = self.plan
        origin = tuple(s.start if number == 0 else 0 for s in plan.region)
        records = None if self.journal is None else Records(self.journal, self._creation(number))
        return Stage(
            plan.stages[number], self.arrays[number], self.arrays[number + 1], origin, records
        )

    def _creation(self, stage: int) -> str:
        """Tells the receipts of stages apart, also from those of a plan with other stages."""
        cell = self.plan.stages[stage].target.object_shape
        is_last = stage + 1 == len(self.plan.stages)
        return f"{self.creation}-{'target' if is_last else _shown(cell)}"

    # --- what is left -----------------------------------------------------------------------------

    def done(self, stage: int, receipts: list[Receipt] | None = None) -> Receipts:
        """The valid receipts of a stage."""
        if self.journal is None:
            return Receipts({}, frozenset())
        kept = list(self.journal.receipts()) if receipts is None else receipts
        target = self.arrays[stage + 1]
        prefix = target.node_format.data_prefix(target.path)
        sizes = {key[len(prefix) :]: size for key, size in list_sizes(target.store, prefix)}
        return collect(kept, self._creation(stage), sizes)

    def left(self) -> list[Sequence[int]]:
        """For each stage the numbers of its tasks that are still to be done."""
        receipts = None if self.journal is None else list(self.journal.receipts())
        found: list[Sequence[int]] = [() for _ in self.plan.stages]
        for number in reversed(range(len(self.plan.stages))):
            found[number] = self.missing(number, receipts)
            if not found[number]:
                break  # what it has read is no longer needed
        return found

    def missing(self, stage: int, receipts: list[Receipt] | None = None) -> Sequence[int]:
        """The numbers of a stage's tasks with an object that has no valid receipt."""
        done = self.done(stage, receipts)
        bound = self.stage(stage)
        if not len(done):
            return range(bound.plan.tasks)
        return [n for n in range(bound.plan.tasks) if not all(k in done for k in bound.keys(n))]

    def is_ours(self) -> bool:
        """Whether nobody else has put something at the target since the job began.

        It may be there: if all tasks are done, the job has died after making it visible.
        """
        if not _is_there(self.plan.target):
            return True
        return self.plan.is_finished() and not self.missing(len(self.plan.stages) - 1)

    # --- the end ----------------------------------------------------------------------------------

    def check_complete(self) -> None:
        """Refuse to end what is not complete; without a journal that cannot be told.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        target = self.plan.target
        if self.journal is not None:
            last = len(self.plan.stages) - 1
            missing = self.missing(last)
            if missing:
                raise ResumeError(
                    f"{target.where} is not complete: {counted(len(missing), 'task')} of "
                    f"{self.plan.stages[last].tasks} of the last stage left no valid receipt, the "
                    f"first of them number {missing[0]}. Run the plan again; it does what is "
                    "missing."
                )

    def finish(self) -> None:
        """Make the target visible, and remove what lay between the stages and the journal.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        self.check_complete()
        target = self.plan.target
        put_documents(target.store, target.node_format.documents(target.meta, target.path))
        self.remove_intermediates()
        if self.journal is not None:
            self.journal.remove()

    def _temporary_place(self) -> tuple[Store, str]:
        """Where intermediate arrays lie: the same whoever asks."""
        name = f"zarr-dask-temporary-{self.creation[:12]}"
        if self.plan.temp is not None:
            return open_store(self.plan.temp), name
        store = self.plan.target.store
        return beside(store, f".{name}") or (store, f".{name}")

    def remove_intermediates(self) -> None:
        """Remove what lies between the stages, of this plan or of another one of the same job."""
        store, path = self._temporary_place()
        store.delete_prefix(prefix_of(path))

    def tidy_up(self, stage: int) -> None:
        """Remove what no stage after this one reads."""
        for array in self.arrays[1 : stage + 1]:
            array.store.delete_prefix(prefix_of(array.path))


def narrower(source: Array, target: Array) -> Array:
    """The array whose data type takes fewer bytes, which is that of what lies between."""
    sizes = (array.meta.data_type.typical_itemsize for array in (source, target))
    return target if next(sizes) > next(sizes) else source


def _shown(shape: Shape) -> str:
    return "x".join(map(str, shape))


# --- beginning ------------------------------------------------------------------------------------


def begin_anew(plan: Planned, journal: Location | None = None) -> RechunkJob:
    """A job of its own: whatever another one has left at the target goes.

    Raises
    ------
    NodeExistsError
        If there is something at the target.
    StoreError
        If nothing can be written there.
    """
    target = plan.target
    place = _place(plan, journal)
    check_place(target.store, target.path, target.node_format, overwrite=plan.overwrite)
    for other, job in journals_at(place) if place is not None else ():
        if job.kind == _KIND:
            RechunkJob(plan, job.creation, other).remove_intermediates()
        other.remove()
    prepare_array_place(
        target.store, target.path, target.node_format, target.meta, overwrite=plan.overwrite
    )
    if place is None:
        return RechunkJob(plan, plan.creation, None)
    kept = _journal(plan, place)
    kept.begin(_job(plan, ready=True))
    return RechunkJob(plan, plan.creation, kept)


def resume(plan: Planned, journal: Location | None = None) -> RechunkJob | None:
    """The same job that has died, if there is one.

    What another job has put at the target meanwhile is not this one's: it is left alone, or
    replaced from the beginning. (Objects may have equal sizes and other values.)

    Raises
    ------
    NodeExistsError
        If there is something at the target that may not be replaced.
    ResumeError
        If there is no place for a journal.
    """
    place = _place(plan, journal)
    if place is None:
        raise ResumeError(
            f"{plan.target.where} has no place beside it for a journal: it is in memory, in an "
            "archive, or the root of a bucket. Say where with journal=, a path or URL outside the "
            "hierarchy."
        )
    for other, job in journals_at(place):
        if job.kind == _KIND and job.token == plan.token:
            other.merge()
            found = RechunkJob(plan, job.creation, other)
            if found.is_ours():
                return found
            check = plan.target
            check_place(check.store, check.path, check.node_format, overwrite=plan.overwrite)
    ended = _journal(plan, place)
    if ended.job() is None and plan.is_finished():
        ended.remove()  # what is left of it, if the job was killed while it removed its journal
    return None


def begin_shared(plan: Planned, journal: Location | None = None) -> RechunkJob:
    """The job of a plan in a file, which several processes may begin at the same time.

    The first of them makes room at the target, the others wait for that.

    Raises
    ------
    NodeExistsError
        If there is something at the target.
    ResumeError
        If there is no place for a journal, or another run of the same plan is open there.
    """
    found = resume(plan, journal)
    place = _place(plan, journal)
    if found is not None and found.creation != plan.creation:
        raise ResumeError(
            f"another run of this plan was begun at {plan.target.where} and has not ended. Use its "
            "plan file, or remove its journal."
        )
    kept = _journal(plan, place) if place is not None else None
    if kept is None:
        raise ResumeError(f"{plan.target.where} has no place for a journal. Give one (journal=).")
    target = plan.target
    if kept.job() is None:
        if plan.is_finished():  # a part that comes late must not make room once more
            raise NodeExistsError(f"{target.where} is finished; there is nothing left to do.")
        check_place(target.store, target.path, target.node_format, overwrite=plan.overwrite)
        if _is_first(kept, _job(plan, ready=False)):
            prepare_place(
                target.store,
                target.path,
                target.node_format,
                overwrite=plan.overwrite,
                is_group=False,
            )
            kept.note(_job(plan, ready=True))
    _wait_until_ready(kept, plan)
    job = RechunkJob(plan, plan.creation, kept)
    if not job.is_ours():
        raise NodeExistsError(
            f"{target.where} was created by somebody else since this plan was begun. Delete it, or "
            "make a plan for another target."
        )
    return job


def _is_there(target: Array) -> bool:
    try:
        check_place(target.store, target.path, target.node_format, overwrite=False)
    except NodeExistsError:
        return True
    return False


def _is_first(journal: Journal, job: Job) -> bool:
    """Note a job, unless another process has just done so."""
    if isinstance(journal.store, ConditionalStore):
        return journal.note_if_none(job)
    journal.note(job)
    return True


def _wait_until_ready(journal: Journal, plan: Planned) -> None:
    deadline = monotonic() + _PATIENCE
    while True:
        job = journal.job()
        if job is not None and job.facts.get(_READY):
            return
        if monotonic() > deadline:
            raise NodeExistsError(
                f"another process began to make room at {plan.target.where} and has not come to "
                f"its end within {_PATIENCE:.0f} s. If it has died, remove {journal.url} and run "
                "the plan again."
            )
        sleep(_POLL)


def _place(plan: Planned, journal: Location | None) -> Place | None:
    target = plan.target
    if journal is not None:
        return given_place(journal, target.path)
    return default_place(target.store, target.path)


def _journal(plan: Planned, place: Place) -> Journal:
    return replace(new_journal(place, _job(plan, ready=False)), creation=plan.creation)


def _job(plan: Planned, *, ready: bool) -> Job:
    target = plan.target
    prefix = target.node_format.data_prefix(target.path)
    documents = target.node_format.documents(target.meta, target.path)
    return Job(
        kind=_KIND,
        token=plan.token,
        creation=plan.creation,
        resume="token",
        creates=True,
        data="" if prefix == prefix_of(target.path) else prefix,
        objects=target.meta.grid.ncells,
        documents={key: text.decode() for key, text in documents.items()},
        facts={_READY: ready, "stages": len(plan.stages)},
    )
