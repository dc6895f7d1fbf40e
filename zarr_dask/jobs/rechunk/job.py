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
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from zarr_dask.array import Array
from zarr_dask.create import plain_chain, quick_chain
from zarr_dask.errors import ListingError, ResumeError
from zarr_dask.formats.base import ArrayMeta, ChunkKeys, ReadOptions, prefix_of
from zarr_dask.grid import Region
from zarr_dask.hierarchy import (
    check_place,
    is_free,
    prepare_array_place,
    prepare_place,
    put_documents,
)
from zarr_dask.jobs import beginning
from zarr_dask.jobs.archives import beside_archive
from zarr_dask.jobs.plan import counted
from zarr_dask.jobs.rechunk.copying import Records, Stage
from zarr_dask.jobs.rechunk.running import Calls, Numbered
from zarr_dask.jobs.rechunk.stages import Layout, StagePlan
from zarr_dask.journal import LAST, STAGES, Job, Journal
from zarr_dask.receipts import Receipt, Receipts, collect
from zarr_dask.stores.base import Store, list_sizes
from zarr_dask.stores.urls import Location, beside, open_alike

__all__ = ["Lone", "RechunkJob", "begin_anew", "begin_shared", "narrower", "resume"]


_LARGE_FOLDER = 10_000
"""Files of a folder from which on file systems may become slow."""


class Planned(Protocol):
    """What a job needs to know of its plan (`zarr_dask.jobs.rechunk.plan.RechunkPlan`)."""

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

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.plan.stages)

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The source, what lies between the stages, the target."""
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
        """A stage, bound to what it reads, writes and leaves behind."""
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
        """What does some tasks of a stage, and what with."""
        return Numbered(0, self.stage(stage).copy), numbers

    def stored(self) -> list[int]:
        """Encoded bytes of the target that have valid receipts."""
        last = len(self.plan.stages) - 1
        return [sum(item.nbytes for item in self.done(last).objects.values())]

    def _creation(self, stage: int) -> str:
        """Tells the receipts of stages apart, also from those of a plan with other stages."""
        between = self.plan.stages[stage].target
        is_last = stage + 1 == len(self.plan.stages)
        return f"{self.creation}{LAST if is_last else f'-{_name(between)}'}"

    # --- what is left -----------------------------------------------------------------------------

    def done(self, stage: int, receipts: Sequence[Receipt] | None = None) -> Receipts:
        """The valid receipts of a stage."""
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
        """For each stage the numbers of its tasks that are still to be done.

        Parameters
        ----------
        receipts
            Those in the journal, where they were read already.
        """
        if receipts is None and self.journal is not None:
            receipts = list(self.journal.receipts())
        found: list[Sequence[int]] = [() for _ in self.plan.stages]
        for number in reversed(range(len(self.plan.stages))):
            found[number] = self.missing(number, receipts)
            if not found[number]:
                break  # what it has read is no longer needed
        return found

    def missing(self, stage: int, receipts: Sequence[Receipt] | None = None) -> Sequence[int]:
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
        target = self.plan.target
        if is_free(target.store, target.path, target.node_format):
            return True
        return self.plan.is_finished() and not self.missing(len(self.plan.stages) - 1)

    # --- the end ----------------------------------------------------------------------------------

    def check_complete(self, receipts: Sequence[Receipt] | None = None) -> None:
        """Refuse to end what is not complete; without a journal that cannot be told.

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
        """Make the target visible, and remove what lay between the stages and the journal.

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
        """Where intermediate arrays lie: the same whoever asks."""
        name = f"zarr-dask-temporary-{self.creation[:12]}"
        if self.plan.temp is not None:
            return open_alike(self.plan.temp, self.plan.target.store), name
        store = self.plan.target.store
        archive = beside_archive(store)
        if archive is not None:
            return archive[0], f"{archive[1]}.{name}"
        return beside(store, f".{name}") or (store, f".{name}")

    def remove_intermediates(self) -> None:
        """Remove what lies between the stages, of this plan or of another one of the same job."""
        store, path = self._temporary_place()
        try:
            store.delete_prefix(prefix_of(path))
        except ListingError:
            if len(self.plan.stages) > 1:  # else there is nothing
                raise

    def tidy_up(self, stage: int) -> None:
        """Remove what no stage after this one reads."""
        for array in self.arrays[1 : stage + 1]:
            array.store.delete_prefix(prefix_of(array.path))


def narrower(source: Array, target: Array) -> Array:
    """The array whose data type takes fewer bytes, which is that of what lies between."""
    sizes = (array.meta.data_type.typical_itemsize for array in (source, target))
    return target if next(sizes) > next(sizes) else source


def _keys(between: Layout) -> ChunkKeys:
    """All objects of an intermediate array in one folder, unless that would be a large one.

    A folder for each coordinate must be made and removed, which may take longer than a file.
    """
    return ChunkKeys("default", "." if between.grid.ncells <= _LARGE_FOLDER else "/")


def _name(between: Layout) -> str:
    """Tells an intermediate array from those of other plans: what it is made of."""
    shape = "x".join(map(str, between.object_shape))
    return f"{shape}-compressed" if between.compressed else shape


# --- beginning ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lone:
    """What beginning the job of one array needs to know; see `zarr_dask.jobs.beginning`."""

    plan: Planned

    kind = "rechunk"

    @property
    def token(self) -> str:
        """The plan's."""
        return self.plan.token

    @property
    def creation(self) -> str:
        """The plan's."""
        return self.plan.creation

    @property
    def where(self) -> str:
        """The target, for messages."""
        return self.plan.target.where

    @property
    def home(self) -> tuple[Store, str]:
        """The target: its journal lies beside the hierarchy that it is in."""
        return self.plan.target.store, self.plan.target.path

    @property
    def targets(self) -> tuple[tuple[Store, str]]:
        """The one that it has."""
        return (self.home,)

    def is_finished(self) -> bool:
        """The plan's."""
        return self.plan.is_finished()

    def check_room(self) -> None:
        """Refuse to write where something is that may not be replaced."""
        target = self.plan.target
        overwrite = self.plan.overwrite
        check_place(target.store, target.path, target.node_format, overwrite=overwrite)

    def make_room(self, *, keep_journals: bool) -> None:
        """Remove what is at the target, create the groups above."""
        target, overwrite = self.plan.target, self.plan.overwrite
        place = (target.store, target.path, target.node_format)
        if keep_journals:
            prepare_place(*place, overwrite=overwrite, is_group=False)
        else:
            prepare_array_place(*place, target.meta, overwrite=overwrite)

    def bound(self, creation: str, journal: Journal | None) -> RechunkJob:
        """The job with its receipts."""
        return RechunkJob(self.plan, creation, journal)

    def described(self) -> Job:
        """What its journal says."""
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
    """A job of its own; see `zarr_dask.jobs.beginning.begin_anew`."""
    return beginning.begin_anew(Lone(plan), journal)


def resume(plan: Planned, journal: Location | None = None) -> RechunkJob | None:
    """The same job that has died; see `zarr_dask.jobs.beginning.resume`."""
    return beginning.resume(Lone(plan), journal)


def begin_shared(plan: Planned, journal: Location | None = None) -> RechunkJob:
    """The job of a plan in a file; see `zarr_dask.jobs.beginning.begin_shared`."""
    return beginning.begin_shared(Lone(plan), journal)
