"""Job of a rechunking: its stages, its remaining tasks, and its end.

A `RechunkJob` binds a plan to the run id that its receipts are for. Every process with the plan
makes the same job, so processes that each do a part of a stage need only the plan's file. Every
finished task adds a receipt to the journal beside the target. A resumed job does the tasks without
receipts, and the end checks that none are missing.

If all tasks of a stage have valid receipts, no earlier stage is needed, and their intermediate
arrays may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Protocol

from zarr_dask.array.array import Array
from zarr_dask.array.create import fast_chain, uncompressed_chain
from zarr_dask.errors import ListingError
from zarr_dask.formats.base import ArrayMeta, ChunkKeyEncoding, ReadOptions, prefix_of
from zarr_dask.grid.grid import Region
from zarr_dask.hierarchy.edit import check_can_create, make_room_for_array, make_room_for_node
from zarr_dask.hierarchy.locate import PrefetchedLocation
from zarr_dask.jobs.engine.array_job import ArrayJob, ArrayPlan
from zarr_dask.jobs.engine.cost_model import Layout, StagePlan
from zarr_dask.jobs.engine.execute import Plan
from zarr_dask.jobs.engine.layouts import smaller_dtype_array
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.jobs.engine.zip_targets import archive_sibling
from zarr_dask.jobs.rechunk.copy_task import CopyReceipts, CopyStage
from zarr_dask.journal import LAST, TARGETS, JobRecord
from zarr_dask.journal.receipts import Receipt
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location, open_with_options_of, sibling_location
from zarr_dask.stores.streaming_put import room_within

__all__ = ["RechunkJob", "SeparateArrays"]


_LARGE_FOLDER = 10_000
"""Number of files above which file systems may become slow with a folder."""


class Planned(ArrayPlan, Protocol):
    """The plan of one array in boxes (`zarr_dask.jobs.rechunk.plan.RechunkPlan`)."""

    @property
    def region(self) -> Region: ...
    @property
    def stages(self) -> tuple[StagePlan, ...]: ...
    @property
    def temp(self) -> Location | None: ...
    @property
    def max_mem(self) -> int: ...
    @property
    def peak(self) -> int: ...


@dataclass(frozen=True, eq=False)
class RechunkJob(ArrayJob):
    """The rechunking of one array and the receipts of its tasks."""

    plan: Planned

    # --- stages -----------------------------------------------------------------------------------

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The source, the intermediate arrays, and the target."""
        kept = smaller_dtype_array(self.plan.source, self.plan.target).meta
        between = []
        for stage in self.plan.stages[:-1]:
            store, folder = self._temporary_place()
            path = f"{folder}/{_name(stage.target)}"
            meta = ArrayMeta(
                stage.target.grid,
                kept.data_type,
                None,
                fast_chain(kept) if stage.target.compressed else uncompressed_chain(kept),
                _keys(stage.target),
            )
            strict = ReadOptions(missing="error")  # every object of it was written
            between.append(Array(store, path, meta, self.plan.target.node_format, strict))
        return (self.plan.source, *between, self.plan.target)

    def stage(self, number: int) -> CopyStage:
        """Return a stage, bound to its source, target and receipts."""
        plan = self.plan
        origin = tuple(s.start if number == 0 else 0 for s in plan.region)
        records = (
            None if self.journal is None else CopyReceipts(self.journal, self.run_id_of(number))
        )
        return CopyStage(
            plan.stages[number],
            self.arrays[number],
            self.arrays[number + 1],
            origin,
            records,
            plan.stages[0].source.itemsize,
            between=number > 0,
            waiting=room_within(plan.max_mem - plan.peak),
        )

    def written(self, stage: int) -> Array:
        """Return the array that a stage writes."""
        return self.arrays[stage + 1]

    def run_id_of(self, stage: int) -> str:
        """Return an identifier of a stage's receipts, also unique among plans with other stages."""
        between = self.plan.stages[stage].target
        is_last = stage + 1 == len(self.plan.stages)
        return f"{self.run_id}{LAST if is_last else f'-{_name(between)}'}"

    def missing(
        self,
        stage: int,
        receipts: Sequence[Receipt] | None = None,
        within: range | None = None,
    ) -> Sequence[int]:
        """Return the numbers of a stage's tasks with an object that has no valid receipt."""
        bound = self.stage(stage)
        tasks = range(bound.plan.tasks) if within is None else within
        own = (key for number in tasks for key in bound.keys(number))
        done = self.done(stage, receipts, None if within is None else own)
        if not len(done):
            return tasks
        return [n for n in tasks if not all(k in done for k in bound.keys(n))]

    def _temporary_place(self) -> tuple[Store, str]:
        """Return the location of intermediate arrays, which is the same in all processes."""
        name = f"zarr-dask-temporary-{self.run_id[:12]}"
        if self.plan.temp is not None:
            return open_with_options_of(self.plan.temp, self.plan.target.store), name
        store = self.plan.target.store
        archive = archive_sibling(store)
        if archive is not None:
            return archive[0], f"{archive[1]}.{name}"
        return sibling_location(store, f".{name}") or (store, f".{name}")

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


def _keys(between: Layout) -> ChunkKeyEncoding:
    """Return keys that put all objects of an array in one folder, unless there are many.

    A folder for each coordinate would have to be made and removed, which may take longer than a
    file.
    """
    return ChunkKeyEncoding("default", "." if between.grid.ncells <= _LARGE_FOLDER else "/")


def _name(between: Layout) -> str:
    """Return the name of an intermediate array, which depends on its shape and compression."""
    shape = "x".join(map(str, between.object_shape))
    return f"{shape}-compressed" if between.compressed else shape


@dataclass(frozen=True, kw_only=True)
class SeparateArrays(Plan):
    """Rechunkings of arrays, each with a target of its own."""

    @property
    def kind(self) -> str:
        """Kind of the job, as the journal names it."""
        return "rechunk several" if len(self.members) > 1 else "rechunk"

    @property
    def where(self) -> str:
        """The targets, for messages."""
        first, *others = (member.target.where for member in self.members)
        return f"{first} and {pluralize(len(others), 'other')}" if others else first

    @property
    def home(self) -> tuple[Store, str]:
        """The group above all targets if they are in one store, else the first target."""
        targets = [member.target for member in self.members]
        if any(target.store != targets[0].store for target in targets):
            return targets[0].store, targets[0].path
        names = zip(*(target.path.split("/") for target in targets), strict=False)
        common = takewhile(lambda level: len(set(level)) == 1, names)
        return targets[0].store, "/".join(level[0] for level in common)

    @property
    def targets(self) -> Sequence[tuple[Store, str]]:
        """Targets of all arrays, which may be in several stores."""
        return [(member.target.store, member.target.path) for member in self.members]

    def described(self) -> JobRecord:
        """Return the description of the job for the journal."""
        job = super().described()
        if len(self.members) > 1:
            targets = [member.target.path for member in self.members]
            return replace(job, extra={**job.extra, TARGETS: targets})
        target = self.members[0].target
        prefix = target.node_format.data_prefix(target.path)
        documents = target.node_format.documents(target.meta, target.path)
        return replace(
            job,
            data="" if prefix == prefix_of(target.path) else prefix,
            documents={key: text.decode() for key, text in documents.items()},
        )

    def check_room(self, locations: Sequence[PrefetchedLocation] | None = None) -> None:
        """Refuse to write where something exists that may not be replaced."""
        for member, prefetched in zip(self.members, locations or self.inspect(), strict=True):
            target = member.target
            check_can_create(
                prefetched.store, target.path, target.node_format, overwrite=self.overwrite
            )

    def make_room(
        self, locations: Sequence[PrefetchedLocation] | None = None, *, keep_journals: bool
    ) -> None:
        """Remove existing nodes at the targets, and create the parent groups."""
        for member, prefetched in zip(self.members, locations or self.inspect(), strict=True):
            target = member.target
            place = (target.store, target.path, target.node_format)
            if keep_journals:
                make_room_for_node(
                    *place, overwrite=self.overwrite, is_group=False, prefetched=prefetched
                )
            else:
                make_room_for_array(
                    *place,
                    target.meta,
                    overwrite=self.overwrite,
                    prefetched=prefetched,
                    is_claimed=True,
                )
