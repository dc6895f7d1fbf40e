"""Running plans of rechunkings: stage by stage, then the comparison, then the end.

Plans of one array and of several differ only in their tasks (`Calls`) and in how the job ends. The
choice of workers, the handling of failed jobs and the sums for reports are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.threads import cpu_count, parallel_for
from zarr_dask.errors import MemoryBudgetError, StoreError
from zarr_dask.jobs.engine import Workers, find_workers, run_tasks
from zarr_dask.jobs.engine.lifecycle import BoundJob, JobPlan, finished, job_lock, resume, start_job
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.progress_bars import rechunk_bars
from zarr_dask.jobs.engine.report import Progress, StageEstimate, TaskStatistics
from zarr_dask.jobs.rechunk.cost_model import CostModel, Working, held_by_process, seconds
from zarr_dask.journal import Journal
from zarr_dask.journal.finished import put_record
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.retry import counting_retries

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Calls",
    "Execution",
    "IndexedTask",
    "call_indexed",
    "check_process_memory",
    "execute_plan",
    "verify_copies",
    "verify_copies_locally",
]

Calls = tuple[Callable[[Any], tuple[int, Any]], Iterable[Any]]
"""A function, and the arguments of its calls; it returns the number of an array and the result."""


@dataclass(frozen=True)
class IndexedTask:
    """Tasks of one array, by their numbers."""

    array: int
    """Number of the array."""
    function: Callable[[int], Any]

    def __call__(self, number: int) -> tuple[int, Any]:
        """Run the task with this number."""
        return self.array, self.function(number)


class PlannedStage(Working, Protocol):
    """A stage of a plan."""

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        ...


class Matched(Protocol):
    """Result of comparing some elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of the source that were compared."""
        ...

    @property
    def retried(self) -> int:
        """Requests that were retried."""
        ...


class VerificationTask(Protocol):
    """The comparison of a source and its target; called with the number of a task."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the tasks."""
        ...

    def __call__(self, number: int) -> Any:
        """Compare some elements."""
        ...

    def check(self, results: Sequence[Any]) -> None:
        """Refuse a target that differs from the source."""
        ...


class RunningJob(BoundJob, Protocol):
    """A job whose tasks are run here."""

    @property
    def journal(self) -> Journal | None:
        """Journal with the receipts; None if there is no location for one."""
        ...

    def left(self) -> list[Sequence[int]]:
        """Return the numbers of the tasks that are still to be done, for each stage."""
        ...

    def calls(self, stage: int, numbers: Sequence[int]) -> Calls:
        """Return a function for tasks of a stage, and its arguments."""
        ...

    def tidy_up(self, stage: int) -> None:
        """Remove intermediate arrays that no later stage reads."""
        ...

    def stored(self) -> list[int]:
        """Return the encoded bytes of each target that have valid receipts."""
        ...

    def finish(self) -> None:
        """Make all targets visible, and remove everything else."""
        ...


J_co = TypeVar("J_co", bound=RunningJob, covariant=True)
J = TypeVar("J", bound=RunningJob)


class Runnable(Protocol[J_co]):
    """The parts of a plan that running it needs."""

    @property
    def stages(self) -> Sequence[PlannedStage]: ...
    @property
    def totals(self) -> Sequence[int]: ...
    @property
    def stage_counts(self) -> Sequence[int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def max_mem(self) -> int: ...
    @property
    def threads_per_process(self) -> int: ...
    @property
    def model(self) -> CostModel: ...
    @property
    def writes_to(self) -> Sequence[Store]: ...
    def matchings(self, threads: int) -> Sequence[VerificationTask]: ...
    def withdraw(self) -> None: ...
    def as_job(self) -> JobPlan[J_co]: ...


@dataclass(frozen=True)
class Execution:
    """Result of running a plan."""

    measured: Mapping[str, Any]
    """The members of `zarr_dask.jobs.engine.report.ReportBase`."""
    tasks: tuple[int, ...]
    """Number of tasks that were run for each array."""
    stored: tuple[int, ...]
    """Encoded bytes of each target, including those written by an earlier run of the job."""


def execute_plan(
    plan: Runnable[J],
    client: Client | None,
    progress: Callable[[Progress], None] | Literal[True] | None,
    *,
    resuming: bool,
    journal: Location | None,
    verify: bool,
) -> Execution:
    """Run a plan; see `zarr_dask.jobs.rechunk.plan.RechunkPlan.run`."""
    check_bools(resume=resuming, verify=verify)
    if progress not in (None, True) and not callable(progress):
        raise TypeError(f"progress={progress!r}: expected a function, True for bars, or None.")
    begun = perf_counter()
    workers = find_workers(client)
    check_process_memory(plan, workers)
    comparisons = plan.matchings(workers.threads_per_process) if verify else []
    if progress is True:
        with rechunk_bars(plan.totals, verify=plan.nbytes if verify else None) as advance:
            return execute_plan(
                plan, client, advance, resuming=resuming, journal=journal, verify=verify
            )
    with counting_retries() as retries:  # tasks count their own retries
        ledger, stored = _carry_out(
            plan, workers, progress, comparisons, resuming=resuming, journal=journal, verify=verify
        )
    expected = [
        StageEstimate(stage.busy, stage.costs, seconds(stage, workers.threads, plan.model))
        for stage in plan.stages
    ]
    measured = {
        "seconds": perf_counter() - begun,
        "already_done": ledger.already_done,
        "stages": ledger.stages(expected),
        "bound": held_by_process(plan.stages, workers.threads_per_process),
        "peaks": ledger.peaks,
        "repeated": ledger.repeated,
        "retried_besides": ledger.retried_comparing + retries.count,
    }
    return Execution(
        measured, tuple(map(ledger.tasks_of, range(len(plan.stage_counts)))), tuple(stored)
    )


def _carry_out(
    plan: Runnable[Any],
    workers: Workers,
    progress: Callable[[Progress], None] | None,
    comparisons: Sequence[VerificationTask],
    *,
    resuming: bool,
    journal: Location | None,
    verify: bool,
) -> tuple[TaskStatistics, Sequence[int]]:
    """Run the job from start to end; return the ledger, and the encoded bytes of each target."""
    found = resume(plan.as_job(), journal) if resuming else None
    record = finished(plan.as_job(), journal) if resuming and found is None else None
    if record is not None:
        done = TaskStatistics(len(plan.stages))
        done.already_done = record.ended
        return done, [int(nbytes) for nbytes in record.report.get("stored", ())]
    job = start_job(plan.as_job(), journal) if found is None else found
    run = _Run(plan, job, workers, progress, len(plan.stages) + verify)
    with job_lock(job.journal):
        try:
            run.copy()
            run.compare(comparisons)
        except BaseException as error:
            if job.journal is None or not isinstance(error, Exception):
                with suppress(StoreError):  # the first error is what matters
                    job.remove_intermediates()
            with suppress(StoreError):
                plan.withdraw()
            raise
        arrays = range(len(plan.stage_counts))
        ledger = run.ledger
        if found is None or job.journal is None:
            stored = [ledger.stored_of(array, plan.stage_counts[array] - 1) for array in arrays]
        else:
            stored = job.stored()
        if resuming and job.journal is not None:
            put_record(job.journal, job.journal.token, {"stored": list(stored)}, {})
        job.finish()
    return ledger, stored


def check_process_memory(plan: Runnable[Any], workers: Workers) -> None:
    """Refuse to run if more tasks share a process than the plan was made for.

    Raises
    ------
    MemoryBudgetError
        If they would hold more than `max_mem`.
    """
    needed = held_by_process(plan.stages, workers.threads_per_process)
    if needed > plan.max_mem:
        raise MemoryBudgetError(
            f"the plan was made for {pluralize(plan.threads_per_process, 'thread')} per process; "
            f"{workers.threads_per_process} would hold {format_bytes(needed)}, more than "
            f"max_mem={format_bytes(plan.max_mem)}. Make the plan again for these workers."
        )


@dataclass
class _Run:
    """One run of a plan."""

    plan: Runnable[Any]
    job: RunningJob
    workers: Workers
    progress: Callable[[Progress], None] | None
    steps: int
    """Number of stages, including the comparison if there is one."""
    ledger: TaskStatistics = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = TaskStatistics(len(self.plan.stages))

    def copy(self) -> None:
        """Run all remaining tasks, stage by stage."""
        totals = self.plan.totals
        for number, tasks in enumerate(self.job.left()):
            if tasks:
                self._stage(number, tasks, totals[number])
                self.job.tidy_up(number)

    def _stage(self, number: int, tasks: Sequence[int], total: int) -> None:
        def note(result: tuple[int, Any]) -> None:
            array, one = result
            self.ledger.note(array, number, one)
            self._tell(number, one.nbytes, total)

        name = f"zarr-copy-{number + 1}"
        calls = self.job.calls(number, tasks)
        into = self.plan.writes_to
        run_tasks(*calls, self.workers, note, name, self.ledger.begin, into)

    def compare(self, comparisons: Sequence[VerificationTask]) -> None:
        """Compare sources and targets."""

        def note(one: Matched) -> None:
            self.ledger.retried_comparing += one.retried
            self._tell(self.steps - 1, one.nbytes, self.plan.nbytes)

        verify_copies(comparisons, self.workers, note)

    def _tell(self, stage: int, nbytes: int, total: int) -> None:
        if self.progress is not None:
            self.progress(Progress(stage, self.steps, nbytes, total))


def verify_copies(
    comparisons: Sequence[VerificationTask], workers: Workers, note: Callable[[Matched], None]
) -> None:
    """Compare sources and targets, of all arrays concurrently.

    Parameters
    ----------
    comparisons
        One comparison for each array.
    workers
        Workers that run the tasks.
    note
        Called with the result of each task.

    Raises
    ------
    ValuesDifferError
        If a target differs from its source.
    """
    results: list[list[Any]] = [[] for _ in comparisons]

    def keep(result: tuple[int, Any]) -> None:
        array, one = result
        results[array].append(one)
        note(one)

    run_tasks(*_calls(comparisons), workers, keep, "zarr-compare")
    for comparison, found in zip(comparisons, results, strict=True):
        comparison.check(found)


def verify_copies_locally(
    plan: Runnable[Any], threads: int | None = None, stop: Callable[[], bool] | None = None
) -> bool:
    """Compare sources and targets on threads of this process, without dask.

    Parameters
    ----------
    plan
        Plan that has been run.
    threads
        Number of threads; by default one for each core, or as many as can share `max_mem`.
    stop
        Called before each task; returns True to leave the rest.

    Returns
    -------
    bool
        True if everything was compared.

    Raises
    ------
    ValuesDifferError
        If a target differs from its source.
    MemoryBudgetError
        If this many threads cannot share `max_mem`.
    """
    count, comparisons = _side_by_side(plan, threads)
    results: list[list[Any]] = [[] for _ in comparisons]
    function, calls = _calls(comparisons)

    def compare(call: Any) -> None:
        if stop is None or not stop():
            array, found = function(call)
            results[array].append(found)

    parallel_for(compare, calls, count)
    for comparison, found in zip(comparisons, results, strict=True):
        comparison.check(found)
    return stop is None or not stop()


def _side_by_side(
    plan: Runnable[Any], threads: int | None
) -> tuple[int, Sequence[VerificationTask]]:
    """Return the number of threads for the comparison, and the comparisons."""
    count = threads or cpu_count()
    while True:
        try:
            return count, plan.matchings(count)
        except MemoryBudgetError:
            if threads is not None or count == 1:
                raise
            count //= 2


def _calls(comparisons: Sequence[VerificationTask]) -> Calls:
    if len(comparisons) == 1:
        return IndexedTask(0, comparisons[0]), comparisons[0].numbers

    def calls() -> Iterator[tuple[int, VerificationTask, int]]:
        for array, comparison in enumerate(comparisons):
            for number in comparison.numbers:
                yield array, comparison, number

    return call_indexed, calls()


def call_indexed(call: tuple[int, Callable[[int], Any], int]) -> tuple[int, Any]:
    """Run a task of one array among others; return the number of the array and the result."""
    array, function, number = call
    return array, function(number)
