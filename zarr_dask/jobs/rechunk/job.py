"""Job of a rechunking: its stages, its remaining tasks, and its end.

A `RechunkJob` binds a plan to the creation that its receipts are for. Every process with the plan
makes the same job, so processes that each do a part of a stage need only the plan's file. Every
finished task adds a receipt to the journal beside the target. A resumed job does the tasks without
receipts, and the end checks that none are missing.

If all tasks of a stage have valid receipts, no earlier stage is needed, and their intermediate
arrays may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from zarr_dask.array.array import Array
from zarr_dask.array.create import plain_chain, quick_chain
from zarr_dask.errors import ListingError, ResumeError
from zarr_dask.formats.base import ArrayMeta, ChunkKeys, ReadOptions, prefix_of
from zarr_dask.grid.grid import Region
from zarr_dask.hierarchy.edit import (
    check_place,
    is_free,
    prepare_array_place,
    prepare_place,
    put_documents,
)
from zarr_dask.jobs.engine import lifecycle as beginning
from zarr_dask.jobs.engine.plan import counted
from zarr_dask.jobs.engine.zip_targets import beside_archive
from zarr_dask.jobs.rechunk.copy_task import Records, Stage
from zarr_dask.jobs.rechunk.cost_model import Layout, StagePlan
from zarr_dask.jobs.rechunk.execute import Calls, Numbered
from zarr_dask.journal import LAST, STAGES, Job, Journal
from zarr_dask.journal.receipts import Receipt, Receipts, collect
from zarr_dask.stores.base import Store, list_sizes
from zarr_dask.stores.open import Location, beside, open_alike

__all__ = ["Lone", "RechunkJob", "begin_anew", "begin_shared", "narrower", "resume"]


_LARGE_FOLDER = 10_000
"""Number of files above which file systems may become slow with a folder."""


class Planned(Protocol):
    """The parts of a plan that a job needs (`zarr_dask.jobs.rechunk.plan.RechunkPlan`)."""

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
    """Identifier that separates the output of this job from later output at its location."""
    journal: Journal | None
    """Journal with the receipts; None if there is no location for one."""

    # --- stages -----------------------------------------------------------------------------------

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.plan.stages)

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The source, the intermediate arrays, and the target."""
        kept = narrower(self.plan.source, self.plan.target).meta
        between = []
        for stage in self.plan.stages[:-1]:
            store, folder = self._temporary_place()
            path = f"{folder}/{_name(stage.target)}"
            meta = ArrayMeta(
                stage.target.grid,
                kept.data_type,
                None,
                quick_chain(kept) if stage.target.compressed else plain_chain(kept),
                _keys(stage.target),
            )
            strict = ReadOptions(missing="error")  # every object of it was written
            between.append(Array(store, path, meta, self.plan.target.node_format, strict))
        return (self.plan.source, *between, self.plan.target)

    def stage(self, number: int) -> Stage:
        """Return a stage, bound to its source, target and receipts."""
        plan = self.plan
        origin = tuple(s.start if number == 0 else 0 for s in plan.region)
        records = None if self.journal is None else Records(self.journal, self._creation(number))
        return Stage(
            plan.stages[number],
            self.arrays[number],
            self.arrays[number + 1],
            origin,
            records,
            plan.stages[0].source.itemsize,
        )

    def calls(self, stage: int, numbers: Sequence[int]) -> Calls:
        """Return a function for tasks of a stage, and its arguments."""
        return Numbered(0, self.stage(stage).copy), numbers

    def stored(self) -> list[int]:
        """Return the encoded bytes of the target that have valid receipts."""
        last = len(self.plan.stages) - 1
        return [sum(item.nbytes for item in self.done(last).objects.values())]

    def _creation(self, stage: int) -> str:
        """Return an identifier of a stage's receipts, also unique among plans with other stages."""
        between = self.plan.stages[stage].target
        is_last = stage + 1 == len(self.plan.stages)
        return f"{self.creation}{LAST if is_last else f'-{_name(between)}'}"

    # --- what is left -----------------------------------------------------------------------------

    def done(self, stage: int, receipts: Sequence[Receipt] | None = None) -> Receipts:
        """Return the valid receipts of a stage."""
        if self.journal is None:
            return Receipts({}, frozenset())
        kept = list(self.journal.receipts()) if receipts is None else receipts
        if not kept:
            return Receipts({}, frozenset())
        target = self.arrays[stage + 1]
        prefix = target.node_format.data_prefix(target.path)
        sizes = {key[len(prefix) :]: size for key, size in list_sizes(target.store, prefix)}
        return collect(kept, self._creation(stage), sizes)

    def left(self, receipts: Sequence[Receipt] | None = None) -> list[Sequence[int]]:
        """Return the numbers of the tasks that are still to be done, for each stage.

        Parameters
        ----------
        receipts
            Receipts in the journal, if they were read already.
        """
        if receipts is None and self.journal is not None:
            receipts = list(self.journal.receipts())
        found: list[Sequence[int]] = [() for _ in self.plan.stages]
        for number in reversed(range(len(self.plan.stages))):
            found[number] = self.missing(number, receipts)
            if not found[number]:
                break  # its sources are no longer needed
        return found

    def missing(self, stage: int, receipts: Sequence[Receipt] | None = None) -> Sequence[int]:
        """Return the numbers of a stage's tasks with an object that has no valid receipt."""
        done = self.done(stage, receipts)
        bound = self.stage(stage)
        if not len(done):
            return range(bound.plan.tasks)
        return [n for n in range(bound.plan.tasks) if not all(k in done for k in bound.keys(n))]

    def is_ours(self) -> bool:
        """True if no other job has put anything at the target since this job started.

        The target of this job may exist: if all tasks are done, the job died after making it
        visible.
        """
        target = self.plan.target
        if is_free(target.store, target.path, target.node_format):
            return True
        return self.plan.is_finished() and not self.missing(len(self.plan.stages) - 1)

    # --- the end ----------------------------------------------------------------------------------

    def check_complete(self, receipts: Sequence[Receipt] | None = None) -> None:
        """Refuse to end an incomplete job; without a journal this cannot be checked.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        target = self.plan.target
        if self.journal is not None:
            last = len(self.plan.stages) - 1
            missing = self.missing(last, receipts)
            if missing:
                raise ResumeError(
                    f"{target.where} is not complete: {counted(len(missing), 'task')} of "
                    f"{self.plan.stages[last].tasks} of the last stage left no valid receipt, the "
                    f"first of them number {missing[0]}. Run the plan again; it does what is "
                    "missing."
                )

    def finish(self) -> None:
        """Make the target visible, then remove the intermediate arrays and the journal.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        self.check_complete()
        if self.journal is not None and self.journal.fence is not None:
            self.journal.fence()
        self.publish()
        self.remove_intermediates()
        if self.journal is not None:
            self.journal.remove()

    def publish(self) -> None:
        """Make the target visible."""
        target = self.plan.target
        put_documents(target.store, target.node_format.documents(target.meta, target.path))

    def _temporary_place(self) -> tuple[Store, str]:
        """Return the location of intermediate arrays, which is the same in all processes."""
        name = f"zarr-dask-temporary-{self.creation[:12]}"
        if self.plan.temp is not None:
            return open_alike(self.plan.temp, self.plan.target.store), name
        store = self.plan.target.store
        archive = beside_archive(store)
        if archive is not None:
            return archive[0], f"{archive[1]}.{name}"
        return beside(store, f".{name}") or (store, f".{name}")

    def remove_intermediates(self) -> None:
        """Remove the intermediate arrays of this plan, or of another plan of the same job."""
        store, path = self._temporary_place()
        try:
            store.delete_prefix(prefix_of(path))
        except ListingError:
            if len(self.plan.stages) > 1:  # else there is nothing
                raise

    def tidy_up(self, stage: int) -> None:
        """Remove intermediate arrays that no later stage reads."""
        for array in self.arrays[1 : stage + 1]:
            array.store.delete_prefix(prefix_of(array.path))


def narrower(source: Array, target: Array) -> Array:
    """Return the array with the narrower data type, which intermediate arrays have too."""
    sizes = (array.meta.data_type.typical_itemsize for array in (source, target))
    return target if next(sizes) > next(sizes) else source


def _keys(between: Layout) -> ChunkKeys:
    """Return keys that put all objects of an array in one folder, unless there are many.

    A folder for each coordinate would have to be made and removed, which may take longer than a
    file.
    """
    return ChunkKeys("default", "." if between.grid.ncells <= _LARGE_FOLDER else "/")


def _name(between: Layout) -> str:
    """Return the name of an intermediate array, which depends on its shape and compression."""
    shape = "x".join(map(str, between.object_shape))
    return f"{shape}-compressed" if between.compressed else shape


# --- beginning ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lone:
    """The plan of one array, as `zarr_dask.jobs.engine.lifecycle` needs it."""

    plan: Planned

    kind = "rechunk"

    @property
    def token(self) -> str:
        """Token of the plan."""
        return self.plan.token

    @property
    def creation(self) -> str:
        """Creation of the plan."""
        return self.plan.creation

    @property
    def where(self) -> str:
        """The target, for messages."""
        return self.plan.target.where

    @property
    def home(self) -> tuple[Store, str]:
        """The target: the journal lies beside its hierarchy."""
        return self.plan.target.store, self.plan.target.path

    @property
    def targets(self) -> tuple[tuple[Store, str]]:
        """The only target."""
        return (self.home,)

    def is_finished(self) -> bool:
        """True if the plan is finished."""
        return self.plan.is_finished()

    def check_room(self) -> None:
        """Refuse to write where something exists that may not be replaced."""
        target = self.plan.target
        overwrite = self.plan.overwrite
        check_place(target.store, target.path, target.node_format, overwrite=overwrite)

    def make_room(self, *, keep_journals: bool) -> None:
        """Remove an existing node at the target, and create the parent groups."""
        target, overwrite = self.plan.target, self.plan.overwrite
        place = (target.store, target.path, target.node_format)
        if keep_journals:
            prepare_place(*place, overwrite=overwrite, is_group=False)
        else:
            prepare_array_place(*place, target.meta, overwrite=overwrite)

    def bound(self, creation: str, journal: Journal | None) -> RechunkJob:
        """Return the job with its receipts."""
        return RechunkJob(self.plan, creation, journal)

    def described(self) -> Job:
        """Return the description of the job for its journal."""
        target = self.plan.target
        prefix = target.node_format.data_prefix(target.path)
        documents = target.node_format.documents(target.meta, target.path)
        return Job(
            kind=self.kind,
            token=self.token,
            creation=self.creation,
            resume="token",
            creates=True,
            data="" if prefix == prefix_of(target.path) else prefix,
            objects=target.meta.grid.ncells,
            documents={key: text.decode() for key, text in documents.items()},
            facts={STAGES: len(self.plan.stages)},
        )


def begin_anew(plan: Planned, journal: Location | None = None) -> RechunkJob:
    """Start a new job; see `zarr_dask.jobs.engine.lifecycle.begin_anew`."""
    return beginning.begin_anew(Lone(plan), journal)


def resume(plan: Planned, journal: Location | None = None) -> RechunkJob | None:
    """Return the same job if one has died; see `zarr_dask.jobs.engine.lifecycle.resume`."""
    return beginning.resume(Lone(plan), journal)


def begin_shared(plan: Planned, journal: Location | None = None) -> RechunkJob:
    """Start the job of a plan file; see `zarr_dask.jobs.engine.lifecycle.begin_shared`."""
    return beginning.begin_shared(Lone(plan), journal)
