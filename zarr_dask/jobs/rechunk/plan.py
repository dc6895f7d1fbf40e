"""What a rechunking will do, as a value: in words and numbers, and carried out.

The target's metadata document is written last: until then no reader can take the target for whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from html import escape
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from zarr_dask.array import Array
from zarr_dask.errors import (
    MemoryBudgetError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    PlanError,
)
from zarr_dask.grid import Region
from zarr_dask.group import open_array
from zarr_dask.jobs.bars import rechunk_bars
from zarr_dask.jobs.plan import Costs, counted, format_bytes, format_region
from zarr_dask.jobs.rechunk.copying import Copied
from zarr_dask.jobs.rechunk.html import stages_html
from zarr_dask.jobs.rechunk.job import Lone, RechunkJob, begin_anew
from zarr_dask.jobs.rechunk.job import resume as resumed
from zarr_dask.jobs.rechunk.matching import Matched, Matching, boxes_to_match
from zarr_dask.jobs.rechunk.planner import Alternative
from zarr_dask.jobs.rechunk.plot import plot_rechunk
from zarr_dask.jobs.rechunk.report import Ledger, Progress, RechunkReport
from zarr_dask.jobs.rechunk.sampling import Ratios
from zarr_dask.jobs.rechunk.stages import CostModel, StagePlan, seconds
from zarr_dask.jobs.run import Workers, find_workers, run_tasks
from zarr_dask.journal import Journal
from zarr_dask.stores.described import describe
from zarr_dask.stores.urls import Location, open_store, real_place

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

__all__ = ["VERSION", "Progress", "RechunkPlan", "RechunkReport", "digest", "is_there_as_planned"]

VERSION = 1
"""Of plans in JSON."""


@dataclass(frozen=True)
class RechunkPlan:
    """Everything that a rechunking will do; made by `plan_rechunk`."""

    source: Array
    region: Region
    """Which elements of it."""
    target: Array
    """As it will be; it does not exist yet."""
    stages: tuple[StagePlan, ...]
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    threads: int
    """Tasks that run at the same time."""
    threads_per_process: int
    overwrite: bool = False
    temp: Location | None = None
    ways: tuple[Alternative, ...] = field(default=(), compare=False)
    """All that were costed, the chosen one first."""
    model: CostModel = field(default_factory=CostModel, compare=False)
    """How long things take, for saying what was to be expected."""
    ratios: Ratios = field(default_factory=Ratios, compare=False)
    """Stored bytes per decoded byte, from a sample of the source."""
    creation: str = field(default_factory=lambda: token_hex(16), compare=False)
    """Tells what the plan writes from what may be at the same place later."""

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
        """Bytes that one process holds at most."""
        return max(stage.memory(self.threads_per_process) for stage in self.stages)

    @property
    def costs(self) -> Costs:
        """What all stages together do."""
        return sum((stage.costs for stage in self.stages), Costs())

    @property
    def seconds(self) -> float:
        """How long it takes by the cost model."""
        return sum(seconds(stage, self.threads, self.model) for stage in self.stages)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        source, target = self.source, self.target
        how = "directly" if len(self.stages) == 1 else f"in {len(self.stages)} stages"
        lines = [
            f"rechunk {source.where}",
            f"     to {target.where}",
            f"  array   {source.shape} {source.meta.data_type.label}, "
            f"{format_bytes(source.nbytes)}{self._changes()}",
            *self._part_of_source(),
            f"  chunks  {_grids(source)} -> {_grids(target)}",
            f"  memory  {format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process "
            f"({counted(self.threads_per_process, 'thread')}), "
            f"{counted(self.threads, 'task')} at a time",
            f"  copied  {how}, by {counted(self.tasks, 'task')}",
        ]
        for number, stage in enumerate(self.stages):
            costs = stage.costs
            lines.append(
                f"  stage {number + 1}: {counted(stage.tasks, 'task')} of {stage.box}, "
                f"{format_bytes(stage.peak)} each; decodes {format_bytes(costs.decoded)} "
                f"({costs.decoded / max(self.nbytes, 1):.1f} x the array) in {costs.reads} "
                f"requests, writes {format_bytes(costs.written)} in {costs.writes} "
                f"objects of {stage.target.object_shape}"
            )
        return "\n".join([*lines, *self._reasons()])

    def _part_of_source(self) -> list[str]:
        if self.target.shape == self.source.shape:
            return []
        return [f"  region  {format_region(self.region)}, {format_bytes(self.nbytes)}"]

    def _changes(self) -> str:
        """What becomes of the array besides its grid."""
        source, target = self.source, self.target
        facts = {
            "data type": (source.meta.data_type.label, target.meta.data_type.label),
            "format": (source.format, target.format),
        }
        return "".join(f"; {name} {a} -> {b}" for name, (a, b) in facts.items() if a != b)

    def _reasons(self) -> list[str]:
        """Why these stages: what the other ways would cost."""
        if len(self.ways) < 2:
            return []
        chosen, *others = self.ways
        said = (
            f"{way.name} {_duration(way.seconds)}, "
            f"{format_bytes(sum(stage.costs.decoded for stage in way.stages))} decoded, "
            f"{sum(stage.costs.reads + stage.costs.writes for stage in way.stages):,} requests"
            for way in others
        )
        took = f"  why     {chosen.name}: {_duration(chosen.seconds)} by the model; others: "
        return [took + "; ".join(said)]

    def to_json(self) -> str:
        """The plan as a JSON document, from which `zarr_dask.load_plan` makes it again.

        It holds no list of tasks and no secrets; what opens the stores besides their URLs has to be
        in the environment, or given again.

        Raises
        ------
        PlanError
            If the array that is to be replaced has the very metadata of the new one: nobody could
            tell then whether the plan has been carried out.
        StoreError
            If an array is in the memory of this process.
        """
        if self.is_finished():
            raise PlanError(
                f"{self.target.where} has the metadata that the plan would write, so that nobody "
                "could tell whether it has been carried out. Delete it before, or use another "
                "target."
            )
        return json.dumps(self.facts(), indent=1)

    def facts(self) -> dict[str, Any]:
        """What `to_json` says, as values that JSON knows."""
        source, target = self.source, self.target
        documents = target.node_format.documents(target.meta, target.path)
        return {
            "job": "rechunk",
            "version": VERSION,
            "source": {
                "store": describe(source.store),
                "path": source.path,
                "format": source.format,
                "digest": digest(source),
                "region": [[s.start, s.stop] for s in self.region],
            },
            "target": {
                "store": describe(target.store),
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
                }
                for stage in self.stages
            ],
            "ratios": [self.ratios.source, self.ratios.between, self.ratios.target],
            "max_mem": self.max_mem,
            "threads": self.threads,
            "threads_per_process": self.threads_per_process,
            "overwrite": self.overwrite,
            "temp": None if self.temp is None else describe(open_store(self.temp)),
            "creation": self.creation,
            "explained": self.explain().splitlines(),
        }

    def plot(self) -> Figure:
        """The grids of all stages as a matplotlib figure.

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
        why = "".join(f"<p>{escape(line.strip())}</p>" for line in self._reasons())
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
        """Equal for plans that write the same bytes of the same source to the same place.

        How they do it does not matter: another number of workers may go on with what is done.
        """
        target = self.target
        facts = (
            real_place(self.source.store, self.source.path),
            digest(self.source),
            [(s.start, s.stop) for s in self.region],
            real_place(target.store, target.path),
            digest(target),
        )
        return sha256(repr(facts).encode()).hexdigest()[:32]

    def is_finished(self) -> bool:
        """Whether the target is there with the metadata of the plan."""
        return is_there_as_planned(self.target)

    @property
    def where(self) -> str:
        """The target, for messages."""
        return self.target.where

    def matchings(self, threads: int) -> list[Matching]:
        """As `matching`, as plans of several arrays have it."""
        return [self.matching(threads)]

    def as_job(self) -> Lone:
        """The plan as `zarr_dask.jobs.beginning` takes it."""
        return Lone(self)

    def bound(self, creation: str, journal: Journal | None) -> RechunkJob:
        """The job with its receipts; `journal` is None where there is no place for them."""
        return RechunkJob(self, creation, journal)

    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | Literal[True] | None = None,
        *,
        resume: bool = False,
        journal: Location | None = None,
        verify: bool = False,
    ) -> RechunkReport:
        """Do it.

        A job that fails or is killed leaves its receipts and what lies between its stages; the same
        call with ``resume=True`` does what is missing. One that is cancelled (Ctrl-C) removes what
        lies between.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task; True for bars that count bytes, one for each stage.
        resume
            Go on with the same job, if it has died; by default whatever it has left goes.
        journal
            Where receipts are kept; beside the root of the target's hierarchy by default.
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
            If the target has come into being since the plan was made.
        ResumeError
            If a job cannot be resumed because there is no place for a journal.
        CorruptObjectError, StoreError
            If the source cannot be read or the target not be written. No metadata document of
            the target is there then.
        """
        begun = perf_counter()
        workers = find_workers(client)
        self._check_memory(workers)
        matching = self.matching(workers.threads_per_process) if verify else None
        if progress is True:
            totals = [self.nbytes] * len(self.stages)
            with rechunk_bars(totals, verify=self.nbytes if verify else None) as advance:
                return self.run(client, advance, resume=resume, journal=journal, verify=verify)
        job = (resumed(self, journal) if resume else None) or begin_anew(self, journal)
        ledger = Ledger(len(self.stages))
        try:
            for number, tasks in enumerate(job.left()):
                if tasks:
                    on_result = partial(self._note, number, ledger, progress)
                    name = f"zarr-copy-{number + 1}"
                    copy = job.stage(number).copy
                    run_tasks(copy, tasks, workers, on_result, name, ledger.begin)
                    job.tidy_up(number)
            if matching is not None:
                self._match(matching, workers, progress)
        except BaseException as error:
            if job.journal is None or not isinstance(error, Exception):
                job.remove_intermediates()
            raise
        stored = self._stored(job, ledger)
        job.finish()
        return RechunkReport(
            nbytes=self.nbytes,
            stored=stored,
            objects=self.target.meta.grid.ncells,
            tasks=ledger.tasks,
            seconds=perf_counter() - begun,
            stages=ledger.stages(
                [stage.tasks for stage in self.stages],
                [stage.costs for stage in self.stages],
                [seconds(stage, workers.threads, self.model) for stage in self.stages],
            ),
            bound=max(stage.memory(workers.threads_per_process) for stage in self.stages),
            peaks=ledger.peaks,
            repeated=ledger.repeated,
        )

    def matching(self, threads: int) -> Matching:
        """The comparison of source and target, for processes of so many threads.

        Raises
        ------
        MemoryBudgetError
            If there is too little memory for it.
        """
        first, last = self.stages[0], self.stages[-1]
        boxes = boxes_to_match(first.source, last.target, self.max_mem // threads)
        origin = tuple(s.start for s in self.region)
        return Matching(self.source, self.target, origin, boxes)

    def _match(
        self,
        matching: Matching,
        workers: Workers,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        """Compare source and target."""
        results: list[Matched] = []
        stages = len(self.stages)

        def note(one: Matched) -> None:
            results.append(one)
            if progress is not None:
                progress(Progress(stages, stages + 1, one.nbytes, self.nbytes))

        run_tasks(matching, matching.numbers, workers, note, "zarr-compare")
        matching.check(results)

    def _stored(self, job: RechunkJob, ledger: Ledger) -> int:
        """Encoded bytes of the target, what a job that died before has written included."""
        last = len(self.stages) - 1
        if job.journal is None:
            return ledger.stored(last)
        return sum(item.nbytes for item in job.done(last).objects.values())

    def _check_memory(self, workers: Workers) -> None:
        """Refuse to run where more tasks share a process than the plan was made for."""
        needed = max(stage.memory(workers.threads_per_process) for stage in self.stages)
        if needed > self.max_mem:
            raise MemoryBudgetError(
                f"the plan was made for {counted(self.threads_per_process, 'thread')} per process; "
                f"{workers.threads_per_process} would hold {format_bytes(needed)}, more than "
                f"max_mem={format_bytes(self.max_mem)}. Make the plan again for these workers."
            )

    def _note(
        self,
        stage: int,
        ledger: Ledger,
        progress: Callable[[Progress], None] | None,
        one: Copied,
    ) -> None:
        ledger.note(stage, one)
        if progress is not None:
            # what lies between may have a narrower data type than the source
            first, here = self.stages[0].source.itemsize, self.stages[stage].source.itemsize
            nbytes = one.nbytes // here * first
            progress(Progress(stage, len(self.stages), nbytes, self.nbytes))


def digest(array: Array) -> str:
    """Tells an array from itself with other metadata, whoever opens it."""
    documents = array.node_format.documents(array.meta, array.path)
    return sha256(b"\0".join(documents.values())).hexdigest()


def is_there_as_planned(target: Array) -> bool:
    """Whether an array is there with the metadata that were planned for it."""
    try:
        found = open_array(target.store, target.path, format=target.format)
    except (NodeNotFoundError, NodeTypeError, MetadataError):
        return False
    return digest(found) == digest(target)


def _duration(seconds: float) -> str:
    """A time for people, with as many digits as a model is worth."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.2g} s"


def _grids(array: Array) -> str:
    return f"{array.chunks}" + (f" in shards {array.shards}" if array.shards else "")
