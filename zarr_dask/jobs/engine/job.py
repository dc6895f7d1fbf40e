"""A plan of N arrays, and its job: one journal, tasks numbered consecutively, one end.

One array is N = 1. Stage n of a plan is stage n of every array that has this many. All arrays
become visible together at the end, when each of them is complete. A job that is killed in between
still has its journal, by which it is found and ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from functools import partial as bind
from hashlib import sha256
from heapq import nlargest
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from secrets import token_hex
from typing import Any, TypeVar

from zarr_dask._util.threads import run_concurrently
from zarr_dask.errors import CommitConflictError
from zarr_dask.hierarchy.edit import rollback_metadata
from zarr_dask.hierarchy.locate import PrefetchedLocation, prefetch_location
from zarr_dask.jobs.engine.array_job import (
    ArrayJob,
    ArrayPlan,
    ArrayStage,
    CopyComparison,
    TaskFunction,
)
from zarr_dask.jobs.engine.pickled_once import PickledOnce
from zarr_dask.jobs.engine.plan import CopyResult, Costs, format_bytes, pluralize
from zarr_dask.jobs.engine.predict import (
    CostModel,
    held_by_process,
    overlapping_tasks,
    plan_each,
    seconds,
)
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.thread_map import listing_concurrency, map_concurrently
from zarr_dask.journal import STAGES, JobRecord, Journal, NodeClaim, StagePart, claim_node
from zarr_dask.journal.journal import publish_jobs
from zarr_dask.journal.receipts import Receipt
from zarr_dask.stores.base import Store, is_remote

__all__ = [
    "ArraysPlan",
    "BoundJob",
    "BoundStage",
    "Calls",
    "IndexedTask",
    "PlanStage",
    "calls_of_arrays",
]

Calls = tuple[Callable[[Any], tuple[int, Any]], Iterable[Any]]
"""A function, and the arguments of its calls; it returns the number of an array and the result."""

T = TypeVar("T")


@dataclass(frozen=True)
class IndexedTask:
    """Tasks of one array, by their numbers."""

    array: int
    """Number of the array."""
    function: Callable[[int], Any]

    def __call__(self, number: int) -> tuple[int, Any]:
        """Run the task with this number."""
        return self.array, self.function(number)


def calls_of_arrays(tasks: Iterable[tuple[int, Callable[[int], Any], int]]) -> Calls:
    """Return a function, and its arguments, for tasks of several arrays.

    Parameters
    ----------
    tasks
        Number of the array, function, and number of the task, array by array.
    """
    return _run, _sharing(tasks)


def _sharing(
    tasks: Iterable[tuple[int, Callable[[int], Any], int]],
) -> Iterator[tuple[int, PickledOnce, int]]:
    for array, own in groupby(tasks, itemgetter(0)):
        shared: PickledOnce | None = None
        for _, function, number in own:
            shared = shared or PickledOnce(function)
            yield array, shared, number


def _run(call: tuple[int, Callable[[int], Any], int]) -> tuple[int, Any]:
    array, function, number = call
    return array, function(number)


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage of all arrays that have this many stages."""

    tasks: int
    nbytes: int
    """Bytes of these arrays, as progress counts them."""
    parts: tuple[ArrayStage, ...]
    """The stages of the arrays."""

    @property
    def busy(self) -> int:
        """Number of tasks that have something to do."""
        return sum(part.busy for part in self.parts)

    @property
    def costs(self) -> Costs:
        """Costs of all its tasks together."""
        return sum((part.costs for part in self.parts), Costs())

    @property
    def estimated(self) -> bool:
        """True if decoded bytes of some of the arrays are estimates."""
        return any(part.estimated for part in self.parts)

    @property
    def requests_at_most(self) -> bool:
        """True if there may be fewer requests for some of the arrays."""
        return any(part.requests_at_most for part in self.parts)

    @property
    def threads(self) -> int:
        """Number of threads that share its only task; 1 if there are several tasks."""
        return min((part.threads for part in self.parts), default=1)

    def work(self, model: CostModel) -> float:
        """Return the seconds that one thread, or those of its only task, would need for all."""
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
class ArraysPlan(Priced, ABC):
    """The work on N arrays, as a value."""

    members: tuple[ArrayPlan, ...]
    """The plans of the arrays."""
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    threads: int
    """Maximum number of concurrent tasks."""
    threads_per_process: int
    overwrite: bool = False
    run_id: str = field(default_factory=lambda: token_hex(16), compare=False)
    """Identifier that separates the output of this plan from later output at its location."""
    model: CostModel = field(default_factory=CostModel, compare=False)
    """Cost model, for predictions in the report."""
    besides: int = 0
    """Bytes that each process holds of its source and loads for it, besides what tasks hold."""

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
    def stages(self) -> tuple[PlanStage, ...]:
        """The stages in order; each is a stage of every array that has this many."""
        count = max((len(member.stages) for member in self.members), default=1)
        return tuple(map(self._stage, range(count)))

    def _stage(self, number: int) -> PlanStage:
        having = [member for member in self.members if len(member.stages) > number]
        stages = [member.stages[number] for member in having]
        return PlanStage(
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
        """Bytes of each stage, as progress counts them."""
        return [stage.nbytes for stage in self.stages]

    @property
    def seconds(self) -> float:
        """Time by the cost model, to compare with other plans: no machine was measured."""
        return sum(seconds(stage, self.threads, self.model) for stage in self.stages)

    @property
    def peak(self) -> int:
        """Maximum bytes that one process holds."""
        return self.held_by(self.threads_per_process + self.overlapping)

    @cached_property
    def overlapping(self) -> int:
        """Number of tasks that are begun while others wait for a remote store.

        They run on threads of this process.
        """
        stores = (store for one in self.members for store in (one.source.store, one.target.store))
        if self.threads != self.threads_per_process or not any(map(is_remote, stores)):
            return 0
        tasks = max(stage.tasks for stage in self.stages)
        return overlapping_tasks(self.held_by, self.threads, self.max_mem, tasks)

    def held_by(self, threads: int) -> int:
        """Return the maximum bytes that a process with these threads holds."""
        return held_by_process(self.stages, threads) + self.besides

    @property
    def costs(self) -> Costs:
        """Costs of all tasks together."""
        return sum((stage.costs for stage in self.stages), Costs())

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of all tasks by kind."""
        return self.costs.by_kind

    @property
    def token(self) -> str:
        """Token that is equal for plans that write the same bytes to the same locations."""
        facts = (self.kind, self.where, [member.token for member in self.members])
        return sha256(repr(facts).encode()).hexdigest()[:32]

    @property
    def memory_line(self) -> str:
        """Memory and concurrency as a line of `explain`."""
        more, tasks = self.overlapping, max((stage.tasks for stage in self.stages), default=1)
        waiting = f", {pluralize(more, 'other')} may wait for the store" if more else ""
        return (
            f"  memory  {format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process "
            f"({pluralize(self.threads_per_process, 'thread')}), "
            f"{pluralize(max(min(self.threads, tasks), 1), 'task')} at a time{waiting}"
        )

    def is_finished(self) -> bool:
        """True if all targets are there with the metadata of the plan."""
        return all(member.is_finished() for member in self.members)

    # --- starting and ending; see `zarr_dask.jobs.engine.lifecycle` -------------------------------

    def inspect(self, own: Collection[str] = ()) -> Sequence[PrefetchedLocation]:
        """Return each target as it is now; all are looked at concurrently.

        A caller that has claimed them gives the keys of its claims (`own`).
        """
        at_a_time = max(listing_concurrency(store) for store, _ in self.targets)
        return map_concurrently(
            lambda one: prefetch_location(*one, own=own), self.targets, at_a_time
        )

    @abstractmethod
    def check_room(self, locations: Sequence[PrefetchedLocation] | None = None) -> None:
        """Refuse to write where something exists that may not be replaced.

        A caller that has just inspected the targets passes them as `locations`.
        """

    @abstractmethod
    def make_room(
        self, locations: Sequence[PrefetchedLocation] | None = None, *, keep_journals: bool
    ) -> None:
        """Remove what is replaced, and the journals of other jobs unless they are kept."""

    def is_ours(self) -> bool:
        """True if the content around the arrays, if any, was put there by this plan."""
        return True

    def publish(self, jobs: Sequence[ArrayJob]) -> None:
        """Make all targets visible."""
        for job in jobs:
            job.publish()

    def check_complete(self) -> None:
        """Refuse to show a verified copy of a source that has more than was copied.

        Raises
        ------
        ValuesDifferError
            If it has.
        """

    @property
    def writes_to(self) -> list[Store]:
        """The stores of all targets."""
        return [self.home[0], *(member.target.store for member in self.members)]

    def stored(self) -> list[int]:
        """Return the encoded bytes of the targets, which are there."""
        return [member.target.nbytes_stored() for member in self.members]

    def withdraw(self) -> None:
        """Undo metadata changes that were made before the values, because the job has failed."""
        for member in self.members:
            rollback_metadata(member.target.store, member.target.path)

    def bound(self, run_id: str, journal: Journal | None) -> BoundJob:
        """Return the job with its receipts; `journal` is None if there is no location for them."""
        return BoundJob(self, run_id, journal)

    def described(self) -> JobRecord:
        """Return the description of the job for the journal."""
        return JobRecord(
            kind=self.kind,
            token=self.token,
            run_id=self.run_id,
            resume="token",
            creates=True,
            objects=sum(member.target.meta.grid.ncells for member in self.members),
            extra={STAGES: len(self.stages), "arrays": len(self.members)},
        )

    def comparisons(self, threads: int) -> list[CopyComparison]:
        """Return the comparisons of all sources and targets, for processes with these threads.

        Raises
        ------
        MemoryBudgetError
            If there is too little memory for one of them: the error of the one that needs most.
        """
        return plan_each(bind(member.matching, threads) for member in self.members)


# --- the job --------------------------------------------------------------------------------------


def _shifted(tasks: range, by: int, count: int) -> range:
    """Return consecutive numbers, shifted, as far as they are numbers from 0 to `count`."""
    return range(max(tasks.start + by, 0), max(min(tasks.stop + by, count), 0))


@dataclass(frozen=True)
class BoundStage:
    """A stage of the arrays of a job, whose tasks are numbered consecutively."""

    copiers: tuple[tuple[int, TaskFunction], ...]
    """Number of each array that has the stage, and the runner for its tasks."""
    starts: tuple[int, ...]
    """Number of the first task of each array, and the total number of tasks."""

    def calls(self, numbers: Sequence[int]) -> Calls:
        """Return a function for tasks, and its arguments."""
        if len(self.copiers) == 1:  # of one array the numbers alone are sent
            ((array, copier),) = self.copiers
            return IndexedTask(array, copier.copy), numbers
        return calls_of_arrays(map(self._call, numbers))

    def _own(self, number: int) -> tuple[int, TaskFunction, int]:
        """Return the array of a task, its runner, and the task's number in that array."""
        which = bisect_right(self.starts, number) - 1
        array, copier = self.copiers[which]
        return array, copier, number - self.starts[which]

    def _call(self, number: int) -> tuple[int, Callable[[int], CopyResult], int]:
        array, copier, own = self._own(number)
        return array, copier.copy, own

    def copy(self, number: int, stop: Callable[[], bool] | None = None) -> CopyResult:
        """Do one task."""
        _, copier, own = self._own(number)
        return copier.copy(own, stop)


@dataclass(frozen=True, eq=False)
class BoundJob:
    """A plan and the receipts of its tasks."""

    plan: ArraysPlan
    run_id: str
    """Identifier that separates the output of this job from later output at its location."""
    journal: Journal | None
    """Journal with the receipts of all arrays; None if there is no location for one."""
    claims: tuple[NodeClaim | None, ...] = ()
    """Claims to the targets of the plan, in remote stores."""

    @cached_property
    def jobs(self) -> tuple[ArrayJob, ...]:
        """The jobs of the arrays, each with a run id of its own in the one journal."""
        members = self.plan.members
        if self.journal is None:
            journals: list[Journal | None] = [None] * len(members)
        else:  # of several targets each array is one, else all of them lie in the one target
            claims = self.claims or (None,)
            each = claims if len(claims) == len(members) else claims[:1] * len(members)
            journals = [replace(self.journal, claim=claim) for claim in each]
        trios = zip(self.run_ids, members, journals, strict=True)
        return tuple(member.bound(run_id, journal) for run_id, member, journal in trios)

    @cached_property
    def run_ids(self) -> tuple[str, ...]:
        """Identifiers that separate the receipts of the arrays."""
        if len(self.plan.members) == 1:
            return (self.run_id,)
        names = (f"{self.run_id}/{n}" for n in range(len(self.plan.members)))
        return tuple(sha256(name.encode()).hexdigest()[:32] for name in names)

    @property
    def stages(self) -> int:
        """The largest number of stages of an array."""
        return max((len(member.stages) for member in self.plan.members), default=1)

    def stage(self, number: int) -> BoundStage:
        """Return a stage of all arrays that have this many."""
        having = self._having(number)
        copiers = tuple((which, self.jobs[which].stage(number)) for which in having)
        return BoundStage(copiers, self._starts(number))

    def _having(self, stage: int) -> list[int]:
        members = enumerate(self.plan.members)
        return [which for which, member in members if len(member.stages) > stage]

    def _starts(self, stage: int) -> tuple[int, ...]:
        counts = (self._tasks(which, stage) for which in self._having(stage))
        return tuple(accumulate(counts, initial=0))

    def _tasks(self, which: int, stage: int) -> int:
        return self.plan.members[which].stages[stage].tasks

    # --- what is left -----------------------------------------------------------------------------

    def receipts(self) -> Mapping[str, list[Receipt]] | None:
        """Return the receipts in the journal by run id of the array; None without a journal."""
        if self.journal is None:
            return None
        found: dict[str, list[Receipt]] = {}
        for receipt in self.journal.receipts():
            found.setdefault(receipt.run_id[:32], []).append(receipt)
        return found

    def left(self, *, is_new: bool = False) -> list[Sequence[int]]:
        """Return the numbers of the tasks that are still to be done, for each stage.

        A job that has just begun (`is_new`) has no receipts to look for.
        """
        found = {} if is_new and self.journal is not None else self.receipts()
        each = self._of_each(lambda job, own: job.left(own), receipts=found)
        return [self._numbered(stage, each) for stage in range(self.stages)]

    def _numbered(self, stage: int, each: Sequence[Sequence[Sequence[int]]]) -> Sequence[int]:
        starts = self._starts(stage)
        pairs = list(zip(starts, self._having(stage), strict=False))
        if all(len(each[which][stage]) == self._tasks(which, stage) for _, which in pairs):
            return range(starts[-1])
        return [start + number for start, which in pairs for number in each[which][stage]]

    def part(self, stage: int, tasks: range) -> BoundJob:
        """Return the job for a process that does these tasks of a stage only.

        It reads and writes receipts of theirs alone.
        """
        if self.journal is None:
            return self
        return replace(self, journal=replace(self.journal, part=StagePart(stage, tasks)))

    def missing(self, stage: int, within: range | None = None) -> Sequence[int]:
        """Return the numbers of a stage's tasks that left no valid receipt.

        With `within`, only these tasks count; stored objects of others are not looked at.
        """
        within = range(self._starts(stage)[-1]) if within is None else within
        starts = dict(zip(self._having(stage), self._starts(stage), strict=False))
        counts = {which: self._tasks(which, stage) for which in starts}
        own = {which: _shifted(within, -start, counts[which]) for which, start in starts.items()}
        having = [which for which in starts if own[which]]
        only = {  # all tasks of an array take one listing
            self.run_ids[which]: own[which] if len(own[which]) < counts[which] else None
            for which in having
        }
        each = self._of_each(
            lambda job, receipts: job.missing(stage, receipts, only[job.run_id]),
            self.receipts(),
            having,
        )
        return [
            starts[which] + number
            for which, numbers in zip(having, each, strict=True)
            for number in numbers
        ]

    def is_ours(self) -> bool:
        """True if no other job has put anything at the targets since this job started."""
        return self.plan.is_ours() and all(
            self._of_each(lambda job, own: job.is_ours(own), self.receipts())
        )

    def stored(self) -> list[int]:
        """Return the encoded bytes of each target that have valid receipts."""

        def stored(job: ArrayJob, receipts: list[Receipt] | None) -> int:
            done = job.done(job.stages - 1, receipts)
            return sum(item.nbytes for item in done.objects.values())

        return self._of_each(stored, self.receipts())

    def _of_each(
        self,
        function: Callable[[ArrayJob, list[Receipt] | None], T],
        receipts: Mapping[str, list[Receipt]] | None,
        which: Iterable[int] | None = None,
    ) -> list[T]:
        """Call a function, which mostly waits, on each array's job and receipts concurrently."""
        jobs, run_ids = self.jobs, self.run_ids

        def of_one(number: int) -> T:
            own = None if receipts is None else receipts.get(run_ids[number], [])
            return function(jobs[number], own)

        members = self.plan.members
        stores = (store for one in members for store in (one.source.store, one.target.store))
        at_a_time = max(map(listing_concurrency, stores), default=1)
        return map_concurrently(of_one, range(len(members)) if which is None else which, at_a_time)

    # --- the end ----------------------------------------------------------------------------------

    def tidy_up(self, stage: int) -> None:
        """Remove intermediate arrays that no later stage reads."""
        for which in self._having(stage) if stage else ():
            self.jobs[which].tidy_up(stage)

    def remove_intermediates(self) -> None:
        """Remove the intermediate arrays between the stages, or those of a job that is resumed."""
        if self.stages == 1 and self.run_id == self.plan.run_id:
            return  # they are named after the run
        for job in self.jobs:
            job.remove_intermediates()

    def check_complete(self) -> None:
        """Refuse to end an incomplete job; without a journal this cannot be checked.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        self._of_each(lambda job, own: job.check_complete(own), self.receipts())

    def finish(self) -> None:
        """Make all targets visible, then remove the intermediate arrays and the journal.

        Raises
        ------
        ResumeError
            If something is missing; nothing becomes visible then.
        JobReplacedError
            If another process has ended the job, or has begun anew.
        """
        # of two errors, that of a claim is raised: it says more than that receipts are missing
        run_concurrently(self.fence, self.check_complete)
        self._fence()
        self.plan.publish(self.jobs)
        if self.journal is not None:
            try:
                publish_jobs([self.journal])
            except CommitConflictError:
                self.journal.remove_if_dropped()
                raise
        self.remove_intermediates()
        self._fence()
        if self.journal is not None:
            self.journal.remove()
        for claim in reversed(self._claims):  # the first one is renewed
            claim.release()

    # --- the locations of the targets -------------------------------------------------------------

    @property
    def claim_keys(self) -> list[str]:
        """Keys of the claims to the locations of the targets."""
        return [claim.key for claim in self._claims]

    @property
    def _claims(self) -> list[NodeClaim]:
        return [claim for claim in self.claims if claim is not None]

    def fence(self) -> None:
        """Raise if a later job has taken the location of a target over; see `NodeClaim.fence`."""
        for claim in self._claims:
            claim.fence()

    def _fence(self) -> None:
        if self.journal is not None and not self._claims:
            self.journal.fence()
        self.fence()

    def claimed(self, *, alone: bool = False) -> tuple[BoundJob, bool]:
        """Claim the locations of the targets in remote stores.

        A process that runs all of a job which may be resumed says so (`alone`).

        Returns the job with its claims, and whether another job has been at one of them since the
        last one that succeeded.

        Raises
        ------
        JobReplacedError
            If a later job has taken one over meanwhile.
        SameJobRunningError
            If another process runs all of the same job.
        """
        same = self.plan.token if alone else ""
        found: list[tuple[NodeClaim | None, bool]] = []
        try:
            found.extend(claim_node(*to, self.run_id, job=same) for to in self.plan.targets)
        except BaseException:
            replace(self, claims=tuple(claim for claim, _ in found)).give_up()
            raise
        job = replace(self, claims=tuple(claim for claim, _ in found))
        return job, any(was_others for _, was_others in found)

    def give_up(self, *, tasks_run: bool = False) -> None:
        """Leave the locations of the targets to others, after a failure."""
        for claim in reversed(self._claims):
            claim.give_up(leaves_journal=self.journal is not None, tasks_run=tasks_run)
