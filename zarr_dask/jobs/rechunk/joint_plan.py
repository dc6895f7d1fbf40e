"""Rechunking several arrays by one plan: one memory limit, submission, journal and report.

The tasks of all arrays share the workers. A process never holds more than `max_mem`, because no
task of any array holds more than its share. `JointPlan` is the common part of such plans. The plan
here is for arrays at separate locations; `zarr_dask.jobs.copy.plan` copies hierarchies.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import nlargest
from html import escape
from itertools import pairwise, takewhile
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal

from zarr_dask._util.display import printable
from zarr_dask.errors import PlanError
from zarr_dask.hierarchy.edit import check_place, prepare_array_place, prepare_place, withdraw
from zarr_dask.jobs.engine import check_in_reach
from zarr_dask.jobs.engine.plan import Costs, counted, format_bytes
from zarr_dask.jobs.engine.report import ArrayReport, JointReport
from zarr_dask.jobs.engine.zip_targets import ends_archives
from zarr_dask.jobs.rechunk.cost_model import CostModel, held_by_process, seconds
from zarr_dask.jobs.rechunk.execute import carry_out
from zarr_dask.jobs.rechunk.html import ArrayRow, joint_html
from zarr_dask.jobs.rechunk.joint_job import JointJob, Member, MemberJob, StageLike
from zarr_dask.jobs.rechunk.plan import VERSION, Progress, RechunkPlan
from zarr_dask.jobs.rechunk.plot import plot_joint
from zarr_dask.journal import STAGES, TARGETS, Job, Journal
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

__all__ = ["JointPlan", "JointRechunkPlan", "JointReport", "JointStagePlan"]


@dataclass(frozen=True, slots=True)
class JointStagePlan:
    """One stage of all arrays that have this many stages."""

    tasks: int
    nbytes: int
    """Bytes of these arrays, as counted by progress."""
    parts: tuple[StageLike, ...]
    """The stages of the arrays."""

    @property
    def busy(self) -> int:
        """Number of tasks that have something to do."""
        return sum(part.busy for part in self.parts)

    @property
    def costs(self) -> Costs:
        """Costs of all its tasks together."""
        return sum((part.costs for part in self.parts), Costs())

    def work(self, model: CostModel) -> float:
        """Return the seconds that one thread would need for all its tasks."""
        return sum(part.work(model) for part in self.parts)

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        largest: list[int] = []
        # if the largest task of an array is not among the largest, none of its tasks is
        parts = nlargest(threads, self.parts, key=lambda part: part.memory(1))
        for part in parts:
            together = [0, *(part.memory(count) for count in range(1, threads + 1))]
            largest = sorted([*largest, *(b - a for a, b in pairwise(together))])[-threads:]
        return sum(largest)


@dataclass(frozen=True, kw_only=True)
class JointPlan(ABC):
    """The work on several arrays, as a value."""

    members: tuple[Member, ...]
    """The plans of the arrays."""
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    threads: int
    """Maximum number of concurrent tasks."""
    threads_per_process: int
    overwrite: bool = False
    creation: str = field(default_factory=lambda: token_hex(16), compare=False)
    """Identifier that separates the output of this plan from later output at its location."""
    model: CostModel = field(default_factory=CostModel, compare=False)
    """Cost model, for predictions in the report."""

    # --- properties -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def kind(self) -> str:
        """Kind of the job, as the journal names it."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Targets of the plan, for messages."""

    @property
    @abstractmethod
    def home(self) -> tuple[Store, str]:
        """Store and path of the node beside whose hierarchy the journal lies."""

    @property
    def targets(self) -> Sequence[tuple[Store, str]]:
        """Store and path of each node that is written; only `home` if they all lie in it."""
        return (self.home,)

    @property
    def stages(self) -> tuple[JointStagePlan, ...]:
        """The stages in order; each is a stage of every array that has this many."""
        count = max((len(member.stages) for member in self.members), default=1)
        return tuple(map(self._stage, range(count)))

    def _stage(self, number: int) -> JointStagePlan:
        having = [member for member in self.members if len(member.stages) > number]
        stages = [member.stages[number] for member in having]
        return JointStagePlan(
            tasks=sum(stage.tasks for stage in stages),
            nbytes=sum(member.nbytes for member in having),
            parts=tuple(stages),
        )

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        return sum(member.nbytes for member in self.members)

    @property
    def tasks(self) -> int:
        """Number of tasks of all stages."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def totals(self) -> list[int]:
        """Bytes of each stage, as counted by progress."""
        return [stage.nbytes for stage in self.stages]

    @property
    def depths(self) -> list[int]:
        """Number of stages of each array."""
        return [len(member.stages) for member in self.members]

    @property
    def seconds(self) -> float:
        """Predicted time by the cost model."""
        return sum(seconds(stage, self.threads, self.model) for stage in self.stages)

    @property
    def peak(self) -> int:
        """Maximum bytes that one process holds."""
        return held_by_process(self.stages, self.threads_per_process)

    @property
    def costs(self) -> Costs:
        """Costs of all tasks together."""
        return sum((stage.costs for stage in self.stages), Costs())

    @property
    def token(self) -> str:
        """Token that is equal for plans that write the same bytes to the same locations."""
        facts = (self.kind, self.where, [member.token for member in self.members])
        return sha256(repr(facts).encode()).hexdigest()[:32]

    def is_finished(self) -> bool:
        """True if all targets are there with the metadata of the plan."""
        return all(member.is_finished() for member in self.members)

    def __str__(self) -> str:
        return self.explain()

    @abstractmethod
    def explain(self) -> str:
        """Return the plan in words and numbers."""

    @abstractmethod
    def title(self) -> str:
        """Return a one-line summary."""

    @abstractmethod
    def name_of(self, member: Member) -> str:
        """Return the name of an array among the others."""

    def plot(self) -> Figure:
        """Plot the grids of the largest arrays in all stages as a matplotlib figure.

        Below them are memory, bytes and requests of each stage, for all arrays together.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        return plot_joint(self._drawn(), self.stages, self.title(), *self._memory)

    def _repr_html_(self) -> str:
        return joint_html(self.title(), self.stages, self._drawn(), *self._memory)

    @property
    def _memory(self) -> tuple[int, int]:
        return self.max_mem, self.threads_per_process

    def _drawn(self) -> list[ArrayRow]:
        """Return the arrays as rows for plots and tables."""
        return [
            ArrayRow(
                name=self.name_of(member),
                how=member.how(),
                nbytes=member.nbytes,
                stages=member.boxed,
                grid=member.target.meta.grid,
                names=member.target.dimension_names,
                costs=member.costs,
            )
            for member in self.members
        ]

    def _memory_line(self) -> str:
        return (
            f"  memory  {format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process "
            f"({counted(self.threads_per_process, 'thread')}), "
            f"{counted(self.threads, 'task')} at a time"
        )

    # --- starting and ending; see `zarr_dask.jobs.engine.lifecycle` -------------------------

    @abstractmethod
    def check_room(self) -> None:
        """Refuse to write where something exists that may not be replaced."""

    @abstractmethod
    def make_room(self, *, keep_journals: bool) -> None:
        """Remove what is to be replaced."""

    def is_ours(self) -> bool:
        """True if the content around the arrays, if any, was put there by this plan."""
        return True

    def publish(self, jobs: Sequence[MemberJob]) -> None:
        """Make all targets visible."""
        for job in jobs:
            job.publish()

    @property
    def writes_to(self) -> list[Store]:
        """The stores of all targets."""
        return [self.home[0], *(member.target.store for member in self.members)]

    def withdraw(self) -> None:
        """Undo metadata changes that were made before the values, because the job has failed."""
        for member in self.members:
            withdraw(member.target.store, member.target.path)

    def bound(self, creation: str, journal: Journal | None) -> JointJob:
        """Return the job with its receipts; `journal` is None if there is no location for them."""
        return JointJob(self, creation, journal)

    def as_job(self) -> JointPlan:
        """Return the plan in the form that `zarr_dask.jobs.engine.lifecycle` needs."""
        return self

    def described(self) -> Job:
        """Return the description of the job for the journal."""
        return Job(
            kind=self.kind,
            token=self.token,
            creation=self.creation,
            resume="token",
            creates=True,
            objects=sum(member.target.meta.grid.ncells for member in self.members),
            facts={STAGES: len(self.stages), "arrays": len(self.members)},
        )

    # --- running ----------------------------------------------------------------------------------

    @ends_archives(lambda plan: plan.writes_to)
    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | Literal[True] | None = None,
        *,
        resume: bool = False,
        journal: Location | None = None,
        verify: bool = False,
    ) -> JointReport:
        """Run the plan.

        A job that fails or is killed leaves its receipts; the same call with ``resume=True`` does
        the missing work. Nothing becomes visible before all of it is complete.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task; True for bars that count bytes, one for each stage.
        resume
            True to resume the same job if it has died. By default all that it has left is removed.
        journal
            Location of the receipts; beside the target's hierarchy by default.
        verify
            Compare sources and targets at the end, before they become visible.

        Raises
        ------
        ValuesDifferError
            If the comparison finds a difference.
        MemoryBudgetError
            If more tasks share a process than the plan was made for.
        NodeExistsError
            If something exists at a target by now.
        ResumeError
            If a job cannot be resumed because there is no location for a journal.
        CorruptObjectError, StoreError
            If a source cannot be read or a target not be written.
        """
        for member in self.members:
            check_in_reach(member.source.store, client)
            check_in_reach(member.target.store, client)
        ran = carry_out(self, client, progress, resuming=resume, journal=journal, verify=verify)
        return JointReport(
            arrays=tuple(
                ArrayReport(member.target.where, member.target.nbytes, stored, tasks)
                for member, stored, tasks in zip(self.members, ran.stored, ran.tasks, strict=True)
            ),
            **ran.measured,
        )

    def matchings(self, threads: int) -> list[Any]:
        """Return the comparisons of all sources and targets; see `RechunkPlan.matching`."""
        return [member.matching(threads) for member in self.members]


# --- arrays at separate locations -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JointRechunkPlan(JointPlan):
    """Rechunkings of several arrays; made by `zarr_dask.plan_rechunk` of a list of them."""

    members: tuple[RechunkPlan, ...]

    @property
    def kind(self) -> str:
        """See `JointPlan`."""
        return "rechunk several"

    @property
    def plans(self) -> tuple[RechunkPlan, ...]:
        """Plans of the arrays, one by one."""
        return self.members

    @property
    def where(self) -> str:
        """The targets, for messages."""
        first, *others = (member.target.where for member in self.members)
        return f"{first} and {counted(len(others), 'other')}" if others else first

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

    def described(self) -> Job:
        """Return the description of the job for the journal."""
        job = super().described()
        targets = [member.target.path for member in self.members]
        return replace(job, facts={**job.facts, TARGETS: targets})

    def title(self) -> str:
        """Return a one-line summary."""
        return f"rechunk {counted(len(self.members), 'array')}, {format_bytes(self.nbytes)}"

    def name_of(self, member: Member) -> str:
        """Return the name of an array among the others: its path, or else its location."""
        return member.target.path or member.target.where

    def explain(self) -> str:
        """Return the plans in words and numbers."""
        lines = [self.title()]
        lines.append(self._memory_line())
        for number, stage in enumerate(self.stages, 1):
            lines.append(f"  stage {number}: {counted(stage.tasks, 'task')} of all arrays")
        return "\n".join([*lines, *(member.explain() for member in self.members)])

    def _repr_html_(self) -> str:
        said = [printable(note) for member in self.members for note in member.notes]
        return super()._repr_html_() + "".join(f"<p>{escape(note)}</p>" for note in said)

    def check_room(self) -> None:
        """Refuse to write where something exists that may not be replaced."""
        for member in self.members:
            target = member.target
            place = (target.store, target.path, target.node_format)
            check_place(*place, overwrite=self.overwrite)

    def make_room(self, *, keep_journals: bool) -> None:
        """Remove existing nodes at the targets, and create the parent groups."""
        for member in self.members:
            target = member.target
            place = (target.store, target.path, target.node_format)
            if keep_journals:
                prepare_place(*place, overwrite=self.overwrite, is_group=False)
            else:
                prepare_array_place(*place, target.meta, overwrite=self.overwrite)

    def to_json(self) -> str:
        """Return the plans as JSON, which `zarr_dask.load_plan` can load.

        Raises
        ------
        PlanError, StoreError
            As `RechunkPlan.to_json`.
        """
        if self.is_finished():
            raise PlanError(
                f"{self.where} have the metadata that the plan would write, so that nobody could "
                "tell whether it has been carried out. Delete them before, or use other targets."
            )
        return json.dumps(
            {
                "job": self.kind,
                "version": VERSION,
                "arrays": [member.facts() for member in self.members],
                "max_mem": self.max_mem,
                "threads": self.threads,
                "threads_per_process": self.threads_per_process,
                "overwrite": self.overwrite,
                "model": self.model.facts(),
                "creation": self.creation,
                "explained": self.explain().splitlines(),
            },
            indent=1,
        )
