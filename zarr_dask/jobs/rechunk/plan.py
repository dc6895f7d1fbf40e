"""Plan of a rechunking as a value: explained, saved as JSON, plotted, and run.

The target's metadata is written last: until then no reader can open an incomplete target.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from zarr_dask._util.display import InWords, escape_control_chars
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array
from zarr_dask.errors import PlanError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.grid.grid import Region
from zarr_dask.jobs.engine.array_job import is_there_as_planned, metadata_hash
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.jobs.engine.execute import execute_plan
from zarr_dask.jobs.engine.plan import Costs, format_bytes, format_region, format_times, pluralize
from zarr_dask.jobs.engine.predict import CostModel, seconds
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.report import Progress, RechunkReport
from zarr_dask.jobs.engine.zip_targets import closes_zip_targets
from zarr_dask.jobs.rechunk.compression_sample import CompressionRatios
from zarr_dask.jobs.rechunk.html import stages_html
from zarr_dask.jobs.rechunk.job import RechunkJob, SeparateArrays
from zarr_dask.jobs.rechunk.planner import CandidatePlan
from zarr_dask.jobs.rechunk.plot import plot_rechunk
from zarr_dask.jobs.rechunk.verify_copy import CopyVerification, boxes_to_match
from zarr_dask.journal import Journal
from zarr_dask.stores.config import to_config
from zarr_dask.stores.open import Location, canonical_location, open_with_options_of
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

__all__ = [
    "READ_OPTIONS",
    "VERSION",
    "Progress",
    "RechunkPlan",
    "RechunkReport",
    "source_facts",
]

VERSION = 2
"""Version of plans in JSON."""

READ_OPTIONS = ("missing", "v1_f_order", "dimension_separator", "fallback_dtypes", "verify")
"""The `ReadOptions` that determine the values read; the others only allow or refuse reading."""


@hides(
    "as_job",
    "bound",
    "copy_stages",
    "facts",
    "how",
    "matching",
    "run_id",
    "token",
    "totals",
    "where",
)
@dataclass(frozen=True, repr=False)
class RechunkPlan(Priced, InWords):
    """Everything that a rechunking will do; made by `plan_rechunk`."""

    source: Array
    region: Region
    """Elements of the source to copy."""
    target: Array
    """The target as it will be; it does not exist yet."""
    stages: tuple[StagePlan, ...]
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    threads: int
    """Maximum number of concurrent tasks."""
    threads_per_process: int
    overwrite: bool = False
    temp: Location | None = None
    candidates: tuple[CandidatePlan, ...] = field(default=(), compare=False)
    """All alternatives whose costs were estimated, the chosen one first."""
    model: CostModel = field(default_factory=CostModel, compare=False)
    """Cost model, for predictions in the report."""
    ratios: CompressionRatios = field(default_factory=CompressionRatios, compare=False)
    """Stored bytes per decoded byte, from a sample of the source."""
    run_id: str = field(default_factory=lambda: token_hex(16), compare=False)
    """Identifier that separates the output of this plan from later output at its location."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Notes for users, for instance about codecs that the new format does not have."""

    @property
    def nbytes(self) -> int:
        """Decoded bytes that are copied."""
        return self.target.size * self.source.meta.data_type.typical_itemsize

    @property
    def tasks(self) -> int:
        """Number of tasks of all stages."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def peak(self) -> int:
        """Maximum bytes that one process holds."""
        return self.as_job().peak

    @property
    def costs(self) -> Costs:
        """Costs of all stages together."""
        return sum((stage.costs for stage in self.stages), Costs())

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of all stages by kind."""
        return self.costs.by_kind

    @property
    def totals(self) -> list[int]:
        """Bytes of each stage, as counted by progress: those of the source."""
        return [self.nbytes] * len(self.stages)

    @property
    def seconds(self) -> float:
        """Time by the cost model, to compare with other plans: no machine was measured."""
        return sum(seconds(stage, self.threads, self.model) for stage in self.stages)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan in words and numbers."""
        source, target = self.source, self.target
        how = "directly" if len(self.stages) == 1 else f"in {len(self.stages)} stages"
        lines = [
            f"rechunk {source.where}",
            f"     to {target.where}",
            f"  array   {source.shape} {source.meta.data_type.label}, "
            f"{format_bytes(source.nbytes)}{self._changes()}",
            *self._part_of_source(),
            f"  chunks  {source.meta.grids} -> {target.meta.grids}",
            self.as_job().memory_line,
            f"  copied  {how}, by {pluralize(self.tasks, 'task')}",
            *(f"  note    {note}" for note in self.notes),
        ]
        for number, stage in enumerate(self.stages):
            costs = stage.costs
            about = "about " if stage.estimated else ""
            most = "at most " if stage.requests_at_most else ""
            shared = f" on {stage.threads} threads" if stage.threads > 1 else ""
            lines.append(
                f"  stage {number + 1}: {pluralize(stage.tasks, 'task')} of {stage.box}{shared}, "
                f"{format_bytes(stage.peak)} each; decodes {about}{format_bytes(costs.decoded)} "
                f"({costs.decoded / max(self.nbytes, 1):.1f} x the array) in {most}{costs.reads} "
                f"requests, writes {about}{format_bytes(costs.written)} in {costs.writes} "
                f"objects of {stage.target.object_shape}"
            )
        return "\n".join([*lines, *self._reasons()])

    def how(self) -> str:
        """Return a short description of the changes to the array."""
        source, target = self.source, self.target
        what = []
        before, after = source.meta.grids, target.meta.grids
        same_shape = source.shape == target.shape
        if before != after or (same_shape and source.meta.grid != target.meta.grid):
            what.append(f"chunks {before} -> {after}")
        if source.meta.data_type != target.meta.data_type:
            what.append(f"{source.meta.data_type.label} -> {target.meta.data_type.label}")
        stages = len(self.stages)
        how = "directly" if stages == 1 else f"in {stages} stages"
        return f"{', '.join(what) or 'encoded anew'}, {how}"

    @property
    def copy_stages(self) -> tuple[StagePlan, ...]:
        """Stages that copy boxes: all of them."""
        return self.stages

    def _part_of_source(self) -> list[str]:
        if self.target.shape == self.source.shape:
            return []
        return [f"  region  {format_region(self.region)}, {format_bytes(self.nbytes)}"]

    def _changes(self) -> str:
        """Return the changes to the array besides its grid."""
        source, target = self.source, self.target
        facts = {
            "data type": (source.meta.data_type.label, target.meta.data_type.label),
            "format": (source.format, target.format),
        }
        return "".join(f"; {name} {a} -> {b}" for name, (a, b) in facts.items() if a != b)

    def _reasons(self) -> list[str]:
        """Return the reasons for these stages, in three lines: the costs of the alternatives."""
        if not self.candidates:
            return []
        chosen, *others = self.candidates
        memory = f"within {format_bytes(self.max_mem)} per process"
        if not others:
            return [f"  why     {chosen.name}: the only way {memory}"]
        times = [format_times(way.seconds / (chosen.seconds or 1.0)) for way in others]
        lines = [
            f"  why     {chosen.name}: the least time by the cost model {memory}; {chosen.words()}",
            f"          {others[0].name}: {times[0]} times as long; {others[0].words()}",
        ]
        if len(others) > 1:
            rest = (
                f"{way.name}: {ratio}" for way, ratio in zip(others[1:], times[1:], strict=True)
            )
            lines.append(f"          and {'; '.join(rest)} times as long")
        return lines

    def to_json(self) -> str:
        """Return the plan as JSON, which `zarr_dask.load_plan` can load.

        It contains neither a list of tasks nor secrets. Credentials for the stores must be in the
        environment, or be given again.

        Raises
        ------
        PlanError
            If the array to replace has exactly the metadata of the new one: then a finished plan
            could not be told from an unfinished one.
        StoreError
            If an array is in the memory of this process.
        """
        if self.is_finished():
            raise PlanError(
                f"{self.target.where} has the metadata that the plan would write, so that nobody "
                "could tell whether it has been carried out. Delete it before, or use another "
                "target."
            )
        return json.dumps({**self.facts(), "model": self.model.facts()}, indent=1)

    def facts(self) -> dict[str, Any]:
        """Return the content of `to_json` as JSON values."""
        source, target = self.source, self.target
        documents = target.node_format.documents(target.meta, target.path)
        return {
            "job": "rechunk",
            "version": VERSION,
            "source": {
                **source_facts(source),
                "region": [[s.start, s.stop] for s in self.region],
            },
            "target": {
                "store": to_config(target.store),
                "path": target.path,
                "format": target.format,
                "documents": {key: text.decode() for key, text in documents.items()},
            },
            "stages": [
                {
                    "box": stage.box,
                    "cell": stage.target.object_shape,
                    "compressed": stage.target.compressed,
                    "tasks": stage.tasks,
                    "threads": stage.threads,
                }
                for stage in self.stages
            ],
            "ratios": [self.ratios.source, self.ratios.between, self.ratios.target],
            "in_blocks": self.ratios.in_blocks,
            "max_mem": self.max_mem,
            "threads": self.threads,
            "threads_per_process": self.threads_per_process,
            "overwrite": self.overwrite,
            "temp": None
            if self.temp is None
            else to_config(open_with_options_of(self.temp, target.store)),
            "run_id": self.run_id,
            "notes": list(self.notes),
            "explained": self.explain().splitlines(),
        }

    def plot(self) -> Figure:
        """Plot the grids of all stages as a matplotlib figure.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        names = self.source.dimension_names
        return plot_rechunk(
            self.stages, names, self._title(), self.max_mem, self.threads_per_process
        )

    def _repr_html_(self) -> str:
        names = self.source.dimension_names
        title = f"rechunk {self.source.where} to {self.target.where}: {self._title()}"
        said = [*map(str.strip, self._reasons()), *map(escape_control_chars, self.notes)]
        why = "".join(f"<p>{escape(line)}</p>" for line in said)
        table = stages_html(title, self.stages, names, self.max_mem, self.threads_per_process)
        return table + why

    def _title(self) -> str:
        return (
            f"{self.source.shape} {self.source.meta.data_type.label}, "
            f"{format_bytes(self.nbytes)}: "
            f"{format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process"
        )

    @property
    def token(self) -> str:
        """Token that is equal for plans with the same source, region, output and location.

        The stages do not matter: a job can be resumed with another number of workers.
        """
        target = self.target
        facts = (
            canonical_location(self.source.store, self.source.path),
            metadata_hash(self.source),
            [(s.start, s.stop) for s in self.region],
            canonical_location(target.store, target.path),
            metadata_hash(target),
        )
        return sha256(repr(facts).encode()).hexdigest()[:32]

    def is_finished(self) -> bool:
        """True if the target is there with the metadata of the plan."""
        return is_there_as_planned(self.target)

    @property
    def where(self) -> str:
        """The target, for messages."""
        return self.target.where

    def as_job(self) -> SeparateArrays:
        """Return the plan of one array, N = 1, as it is run."""
        return SeparateArrays(
            members=(self,),
            max_mem=self.max_mem,
            threads=self.threads,
            threads_per_process=self.threads_per_process,
            overwrite=self.overwrite,
            run_id=self.run_id,
            model=self.model,
        )

    def bound(self, run_id: str, journal: Journal | None) -> RechunkJob:
        """Return the job with its receipts; `journal` is None if there is no location for them."""
        return RechunkJob(self, run_id, journal)

    @in_job()
    @closes_zip_targets(lambda plan: [plan.target.store])
    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | bool | None = None,
        *,
        resume: bool = False,
        journal: Location | None = None,
        verify: bool = False,
    ) -> RechunkReport:
        """Run the plan.

        A job that fails or is killed leaves its receipts; the same call with ``resume=True`` does
        the missing work. Intermediate arrays stay only if it was called with ``resume=True`` or was
        killed; a job that is cancelled (Ctrl-C) removes them.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task; True for bars that count bytes, one for each stage.
        resume
            True to resume the same job if it has died. By default all that it has left is removed.
            If another process runs the same job with ``resume=True``, wait for its end.
        journal
            Location of the receipts; beside the root of the target's hierarchy by default.
        verify
            Compare source and target at the end, before the target becomes visible. The comparison
            reads both, holds no more than `max_mem`, and counts as one more stage of the progress.

        Raises
        ------
        ValuesDifferError
            If the comparison finds a difference; the target is not visible then.
        MemoryBudgetError
            If more tasks share a process than the plan was made for.
        NodeExistsError
            If something exists at the target by now.
        ResumeError
            If a job cannot be resumed because there is no location for a journal.
        CorruptObjectError, StoreError
            If the source cannot be read or the target not be written. The target then has no
            metadata.
        """
        plan = self.as_job()
        ran = execute_plan(plan, client, progress, resuming=resume, journal=journal, verify=verify)
        return RechunkReport(
            nbytes=self.nbytes,
            stored=ran.stored[0],
            objects=self.target.meta.grid.ncells,
            **ran.measured,
        )

    def matching(self, threads: int) -> CopyVerification:
        """Return the comparison of source and target, for processes with this many threads.

        Raises
        ------
        MemoryBudgetError
            If there is too little memory for it.
        """
        first, last = self.stages[0], self.stages[-1]
        boxes = boxes_to_match(first.source, last.target, self.max_mem, threads)
        origin = tuple(s.start for s in self.region)
        return CopyVerification(self.source, self.target, origin, boxes)


def source_facts(source: Array) -> dict[str, Any]:
    """Return what is needed to open a source again, as JSON values."""
    default = ReadOptions()
    read = {name: getattr(source.options, name) for name in READ_OPTIONS}
    read = {name: value for name, value in read.items() if value != getattr(default, name)}
    return {
        "store": to_config(source.store),
        "path": source.path,
        "format": source.format,
        "digest": metadata_hash(source),
        **({"read": read} if read else {}),
    }
