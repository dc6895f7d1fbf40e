"""Jobs of several arrays as one: one journal, tasks numbered consecutively, one end.

Stage n of the joint job is stage n of every array that has this many. All arrays become visible
together at the end, when each of them is complete. A job that is killed in between still has its
journal, by which it is found and ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from zarr_dask.array.array import Array
from zarr_dask.jobs.engine.plan import Costs
from zarr_dask.jobs.engine.task_result import Copied
from zarr_dask.jobs.engine.thread_map import abreast, waiting_for
from zarr_dask.jobs.rechunk.cost_model import CostModel, StagePlan
from zarr_dask.jobs.rechunk.execute import Calls, called
from zarr_dask.journal import Journal
from zarr_dask.journal.receipts import Receipt, Receipts

__all__ = ["JointJob", "JointStage"]

T = TypeVar("T")


class Copier(Protocol):
    """Runner for the tasks of one stage of one array."""

    def copy(self, number: int, stop: Callable[[], bool] | None = None) -> Copied:
        """Do one task; see `zarr_dask.jobs.rechunk.copy_task.Stage.copy`."""
        ...


class MemberJob(Protocol):
    """The job of one array among others."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        ...

    def stage(self, number: int) -> Copier:
        """Return a stage, bound to its source, target and receipts."""
        ...

    def left(self, receipts: Sequence[Receipt] | None = None) -> list[Sequence[int]]:
        """Return the numbers of the tasks that are still to be done, for each stage."""
        ...

    def missing(self, stage: int, receipts: Sequence[Receipt] | None = None) -> Sequence[int]:
        """Return the numbers of a stage's tasks that left no valid receipt."""
        ...

    def done(self, stage: int, receipts: Sequence[Receipt] | None = None) -> Receipts:
        """Return the valid receipts of a stage."""
        ...

    def is_ours(self) -> bool:
        """True if no other job has put anything at the target since this job started."""
        ...

    def check_complete(self, receipts: Sequence[Receipt] | None = None) -> None:
        """Refuse to end an incomplete job."""
        ...

    def publish(self) -> None:
        """Make the target visible."""
        ...

    def remove_intermediates(self) -> None:
        """Remove the intermediate arrays between the stages."""
        ...

    def tidy_up(self, stage: int) -> None:
        """Remove intermediate arrays that no later stage reads."""
        ...


class StageLike(Protocol):
    """One pass over an array."""

    @property
    def tasks(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def costs(self) -> Costs: ...
    def memory(self, threads: int) -> int: ...
    def work(self, model: CostModel) -> float: ...


class Member(Protocol):
    """The plan of one array among others."""

    @property
    def source(self) -> Array: ...
    @property
    def target(self) -> Array: ...
    @property
    def stages(self) -> Sequence[StageLike]: ...
    @property
    def boxed(self) -> Sequence[StagePlan]: ...
    @property
    def costs(self) -> Costs: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def token(self) -> str: ...
    def how(self) -> str: ...
    def is_finished(self) -> bool: ...
    def bound(self, creation: str, journal: Journal | None) -> MemberJob: ...
    def matching(self, threads: int) -> Any: ...


class JointPlanned(Protocol):
    """The parts of a plan that a job needs (`zarr_dask.jobs.rechunk.joint_plan.JointPlan`)."""

    @property
    def members(self) -> Sequence[Member]: ...
    def is_ours(self) -> bool: ...
    def publish(self, jobs: Sequence[MemberJob]) -> None: ...


@dataclass(frozen=True)
class JointStage:
    """A stage of several arrays, whose tasks are numbered consecutively."""

    copiers: tuple[tuple[int, Copier], ...]
    """Number of each array that has the stage, and the runner for its tasks."""
    starts: tuple[int, ...]
    """Number of the first task of each array, and the total number of tasks."""

    def _own(self, number: int) -> tuple[int, Copier, int]:
        """Return the array of a task, its runner, and the task's number in that array."""
        which = bisect_right(self.starts, number) - 1
        array, copier = self.copiers[which]
        return array, copier, number - self.starts[which]

    def call(self, number: int) -> tuple[int, Callable[[int], Copied], int]:
        """Return the argument of `zarr_dask.jobs.rechunk.execute.called` for a task."""
        array, copier, own = self._own(number)
        return array, copier.copy, own

    def copy(self, number: int, stop: Callable[[], bool] | None = None) -> Copied:
        """Do one task."""
        _, copier, own = self._own(number)
        return copier.copy(own, stop)


@dataclass(frozen=True, eq=False)
class JointJob:
    """A plan of several arrays and the receipts of its tasks."""

    plan: JointPlanned
    creation: str
    """Identifier that separates the output of this job from later output at its location."""
    journal: Journal | None
    """Journal with the receipts of all arrays; None if there is no location for one."""

    @cached_property
    def jobs(self) -> tuple[MemberJob, ...]:
        """The jobs of the arrays, each with a creation of its own in the one journal."""
        pairs = zip(self.creations, self.plan.members, strict=True)
        return tuple(member.bound(creation, self.journal) for creation, member in pairs)

    @cached_property
    def creations(self) -> tuple[str, ...]:
        """Identifiers that separate the receipts of the arrays."""
        names = (f"{self.creation}/{n}" for n in range(len(self.plan.members)))
        return tuple(sha256(name.encode()).hexdigest()[:32] for name in names)

    @property
    def stages(self) -> int:
        """The largest number of stages of an array."""
        return max((len(member.stages) for member in self.plan.members), default=1)

    def stage(self, number: int) -> JointStage:
        """Return a stage of all arrays that have this many."""
        having = self._having(number)
        copiers = tuple((which, self.jobs[which].stage(number)) for which in having)
        return JointStage(copiers, self._starts(number))

    def calls(self, stage: int, numbers: Sequence[int]) -> Calls:
        """Return a function for tasks of a stage, and its arguments."""
        return called, map(self.stage(stage).call, numbers)

    def _having(self, stage: int) -> list[int]:
        members = enumerate(self.plan.members)
        return [which for which, member in members if len(member.stages) > stage]

    def _starts(self, stage: int) -> tuple[int, ...]:
        counts = (self.plan.members[which].stages[stage].tasks for which in self._having(stage))
        return tuple(accumulate(counts, initial=0))

    # --- what is left -----------------------------------------------------------------------------

    def receipts(self) -> Mapping[str, list[Receipt]] | None:
        """Return the receipts in the journal by creation of the array; None without a journal."""
        if self.journal is None:
            return None
        found: dict[str, list[Receipt]] = {}
        for receipt in self.journal.receipts():
            found.setdefault(receipt.creation[:32], []).append(receipt)
        return found

    def left(self) -> list[Sequence[int]]:
        """Return the numbers of the tasks that are still to be done, for each stage."""
        each = self._of_each(lambda job, own: job.left(own))
        return [self._numbered(stage, each) for stage in range(self.stages)]

    def _numbered(self, stage: int, each: Sequence[Sequence[Sequence[int]]]) -> Sequence[int]:
        starts = self._starts(stage)
        pairs = list(zip(starts, self._having(stage), strict=False))
        if all(len(each[which][stage]) == self._tasks(which, stage) for _, which in pairs):
            return range(starts[-1])
        return [start + number for start, which in pairs for number in each[which][stage]]

    def _tasks(self, which: int, stage: int) -> int:
        return self.plan.members[which].stages[stage].tasks

    def missing(self, stage: int) -> Sequence[int]:
        """Return the numbers of a stage's tasks that left no valid receipt."""
        having = self._having(stage)
        each = self._of_each(lambda job, own: job.missing(stage, own), having)
        return [
            start + number
            for start, numbers in zip(self._starts(stage), each, strict=False)
            for number in numbers
        ]

    def is_ours(self) -> bool:
        """True if no other job has put anything at the targets since this job started."""
        return self.plan.is_ours() and all(self._of_each(lambda job, _: job.is_ours()))

    def stored(self) -> list[int]:
        """Return the encoded bytes of each target that have valid receipts."""

        def stored(job: MemberJob, receipts: list[Receipt] | None) -> int:
            done = job.done(job.stages - 1, receipts)
            return sum(item.nbytes for item in done.objects.values())

        return self._of_each(stored)

    def _of_each(
        self,
        function: Callable[[MemberJob, list[Receipt] | None], T],
        which: Iterable[int] | None = None,
    ) -> list[T]:
        """Call a function, which mostly waits, on each array's job and receipts concurrently."""
        found, jobs, creations = self.receipts(), self.jobs, self.creations

        def of_one(number: int) -> T:
            receipts = None if found is None else found.get(creations[number], [])
            return function(jobs[number], receipts)

        members = self.plan.members
        stores = (store for one in members for store in (one.source.store, one.target.store))
        at_a_time = max(map(waiting_for, stores), default=1)
        return abreast(of_one, range(len(members)) if which is None else which, at_a_time)

    # --- the end ----------------------------------------------------------------------------------

    def tidy_up(self, stage: int) -> None:
        """Remove intermediate arrays that no later stage reads."""
        for which in self._having(stage) if stage else ():
            self.jobs[which].tidy_up(stage)

    def remove_intermediates(self) -> None:
        """Remove the intermediate arrays between the stages."""
        for job in self.jobs:
            job.remove_intermediates()

    def check_complete(self) -> None:
        """Refuse to end an incomplete job; without a journal this cannot be checked.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        self._of_each(lambda job, own: job.check_complete(own))

    def finish(self) -> None:
        """Make all targets visible, then remove the intermediate arrays and the journal.

        Raises
        ------
        ResumeError
            If something is missing; nothing becomes visible then.
        """
        self.check_complete()
        self.plan.publish(self.jobs)
        self.remove_intermediates()
        if self.journal is not None:
            self.journal.remove()
