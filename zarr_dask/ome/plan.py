"""The plan of a job that writes images: described as text and JSON, and executed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array
from zarr_dask.formats.base import where
from zarr_dask.grid.grid import Shape
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.zip_targets import closes_zip_targets
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.journal import OnConflict, claimed
from zarr_dask.ome.job import ImageProgress, run_plan, run_without_journal
from zarr_dask.ome.pyramid_plan import PyramidJobPlan, PyramidPlan
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ImageUpdatePlan", "ImageWritePlan", "claim_images"]


@dataclass(frozen=True, eq=False, repr=False)
class _DescribedPlan(InWords, PyramidJobPlan):
    """A plan as text and JSON."""

    title: str = "write"

    @property
    def levels(self) -> tuple[Array, ...]:
        """The arrays of the first image, as they will be stored."""
        return self.pyramids[0].arrays

    @property
    def factors(self) -> tuple[Shape, ...]:
        """Factors of each level of the first image against the one before."""
        return self.pyramids[0].factors

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan as text."""
        lines = [
            f"{self.title} {where(self.store, self.path)}: {format_bytes(self.nbytes)} in "
            f"{pluralize(self.objects, 'stored object')}, {pluralize(self.tasks, 'task')}",
            f"  memory  {format_bytes(self.peak)} of {format_bytes(self.max_mem)} in each process "
            f"of {pluralize(self.threads_per_process, 'thread')}",
        ]
        for pyramid in self.pyramids[:_MOST_SHOWN]:
            path = pyramid.arrays[0].path.rpartition("/")[0]
            below = path[len(self.path) :].strip("/")
            lines.append(f" {below or 'image'}, {pyramid.method.name}")
            lines += pyramid.explain()
        if len(self.pyramids) > _MOST_SHOWN:
            lines.append(f" and {len(self.pyramids) - _MOST_SHOWN} more images")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the plan as JSON; its size does not depend on the number of tasks."""
        return json.dumps({"job": "pyramid", **self.facts()}, indent=2)

    def facts(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "target": where(self.store, self.path),
            "format": self.node_format.name,
            "nbytes": self.nbytes,
            "objects": self.objects,
            "tasks": self.tasks,
            "max_mem": self.max_mem,
            "peak": self.peak,
            "threads": self.threads,
            "threads_per_process": self.threads_per_process,
            "images": [_facts(pyramid) for pyramid in self.pyramids],
        }


@dataclass(frozen=True, eq=False, repr=False)
class ImageUpdatePlan(_DescribedPlan):
    """The plan of what brings coarser levels up to date; made by `zarr_dask.ome.plan_update`."""

    claims: tuple[str, ...] = ()
    """Paths of the images, which one update or append at a time may change."""

    @in_job()
    @closes_zip_targets(lambda plan: [plan.store])
    def run(
        self, client: Client | None = None, progress: ImageProgress | None = None
    ) -> WriteReport:
        """Execute the plan, after other updates and appends of the same image.

        A plan that has died is run again as a whole: the same pixels give the same bytes.

        Parameters
        ----------
        client, progress
            As for `ImageWritePlan.run`.

        Raises
        ------
        AppendConflictError
            If an append to the image does not end.
        MemoryBudgetError
            If more tasks share a process than the plan was made for.
        StoreError
            If the store cannot be written to.
        """
        with claim_images(self.store, self.claims, "wait"):
            return run_without_journal(self, client, progress)


@contextmanager
def claim_images(
    store: Store, paths: Sequence[str], on_conflict: OnConflict, job: str = ""
) -> Iterator[None]:
    """Keep other updates and appends of images away during a ``with`` statement.

    `job` as for `zarr_dask.journal.end_of_array`.

    Raises
    ------
    AppendConflictError
        If one is under way, and does not end.
    """
    with ExitStack() as stack:
        for path in sorted(paths):
            stack.enter_context(claimed(store, path, on_conflict, job))
        yield


@hides(
    "amends", "consolidated", "creates", "documents", "facts", "first", "groups", "total", "waiting"
)
@dataclass(frozen=True, eq=False, repr=False)
class ImageWritePlan(_DescribedPlan):
    """The plan of a job; made by `zarr_dask.ome.plan_write` and others."""

    def with_overwrite(self, overwrite: bool) -> ImageWritePlan:
        """Return the plan with permission to replace existing nodes, or without it."""
        check_bools(overwrite=overwrite)
        return replace(self, overwrite=overwrite)

    @in_job()
    @closes_zip_targets(lambda plan: [plan.store])
    def run(
        self,
        client: Client | None = None,
        progress: ImageProgress | None = None,
        *,
        resume: bool | str = False,
        journal: Location | None = None,
    ) -> WriteReport:
        """Execute the plan.

        Levels are written first, then their metadata, then those of the groups, the outermost last,
        so that readers never see an incomplete image.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler that dask is configured
            for.
        progress
            Called after each task with the bytes that it has read; True for a progress bar.
        resume
            True to resume the same call after a crash, and to keep receipts for that. A name states
            that all calls with this name write the same pixels. False starts a new job.
        journal
            Location of the receipts, outside the hierarchy; beside it by default.

        Raises
        ------
        NodeExistsError
            If a node was created at the location since the plan was made.
        MemoryBudgetError
            If more tasks share a process than the plan was made for.
        ResumeError
            If the job to be resumed differs or cannot be identified, or there is no location for a
            journal.
        StoreError
            If the store cannot be written to.
        """
        return run_plan(self, client, progress, resume, journal)


_MOST_SHOWN = 8


def _facts(pyramid: PyramidPlan) -> dict[str, Any]:
    return {
        "method": pyramid.method.name,
        "levels": [
            {
                "path": array.path,
                "shape": list(array.shape),
                "factors": list(factors),
                "chunks": list(array.chunks),
                "shards": None if array.shards is None else list(array.shards),
            }
            for array, factors in zip(pyramid.arrays, pyramid.factors, strict=True)
        ],
        "stages": [
            {
                "levels": [stage.first, stage.last],
                "super_cell": list(stage.cell),
                "piece": list(stage.step),
                "tasks": stage.tasks,
                "peak": stage.peak,
                "read": stage.read,
            }
            for stage in pyramid.stages
        ],
    }
