"""Running plans of arrays: stage by stage, then the comparison, then the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.lazy_names import hides
from zarr_dask._util.threads import cpu_count, parallel_for
from zarr_dask.errors import JobReplacedError, MemoryBudgetError, StoreError, ZarrDaskError
from zarr_dask.jobs.engine import Workers, check_reachable_from_workers, find_workers, run_tasks
from zarr_dask.jobs.engine.array_job import ComparedElements, CopyComparison
from zarr_dask.jobs.engine.cluster import take_receipts
from zarr_dask.jobs.engine.job import ArraysPlan, BoundJob, Calls, IndexedTask, calls_of_arrays
from zarr_dask.jobs.engine.lifecycle import (
    alone,
    finished,
    go_on,
    job_lock,
    resume,
    start_job,
    waiting_for_same,
)
from zarr_dask.jobs.engine.local_schedulers import may_overlap, shared_processes
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.predict import seconds
from zarr_dask.jobs.engine.probe import check_workers
from zarr_dask.jobs.engine.progress_bars import given_progress, rechunk_bars
from zarr_dask.jobs.engine.report import (
    ArrayCopyReport,
    JointReport,
    Progress,
    StageEstimate,
    TaskStatistics,
)
from zarr_dask.jobs.engine.workers import known_workers, runs_processes
from zarr_dask.jobs.engine.zip_targets import closes_zip_targets
from zarr_dask.journal.finished import put_record
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.retry import counting_retries

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Execution",
    "Plan",
    "check_process_memory",
    "execute_plan",
    "verify_copies",
    "verify_copies_locally",
]

_LOG = logging.getLogger(__name__)


@hides(
    "as_job",
    "bound",
    "check_room",
    "comparisons",
    "described",
    "home",
    "inspect",
    "is_ours",
    "kind",
    "make_room",
    "memory_line",
    "publish",
    "run_id",
    "token",
    "totals",
    "where",
    "withdraw",
    "writes_to",
)
@dataclass(frozen=True, kw_only=True)
class Plan(ArraysPlan):
    """The work on N arrays, as a value that can be run."""

    def as_job(self) -> Plan:
        """Return the plan itself: plans of one array are run as one of these."""
        return self

    @in_job()
    @closes_zip_targets(lambda plan: plan.writes_to)
    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | bool | None = None,
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
            If another process runs the same job with ``resume=True``, wait for its end.
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
        ran = execute_plan(self, client, progress, resuming=resume, journal=journal, verify=verify)
        return JointReport(
            arrays=tuple(
                ArrayCopyReport(target.where, target.nbytes, stored, tasks, target.meta.grid.ncells)
                for target, stored, tasks in zip(
                    [member.target for member in self.members], ran.stored, ran.tasks, strict=True
                )
            ),
            **ran.measured,
        )


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
    plan: ArraysPlan,
    client: Client | None,
    progress: Callable[[Progress], None] | bool | None,
    *,
    resuming: bool,
    journal: Location | None,
    verify: bool,
) -> Execution:
    """Run a plan; see `zarr_dask.jobs.rechunk.plan.RechunkPlan.run`."""
    check_bools(resume=resuming, verify=verify)
    progress = given_progress(progress)
    for member in plan.members:
        check_reachable_from_workers(member.source.store, client)
        check_reachable_from_workers(member.target.store, client)
    begun = perf_counter()
    workers = find_workers(client)
    check_process_memory(plan, workers)
    written = [(member.target.store, member.target.path) for member in plan.members]
    files = sum(member.target.meta.grid.ncells for member in plan.members)
    check_workers(workers.client, written, nbytes=plan.stages[-1].costs.stored, files=files)
    comparisons = plan.comparisons(workers.threads_per_process) if verify else []
    if progress is True:
        with rechunk_bars(plan.totals, verify=plan.nbytes if verify else None) as advance:
            return execute_plan(
                plan, client, advance, resuming=resuming, journal=journal, verify=verify
            )
    tasks = ", ".join(f"{stage.tasks:,}" for stage in plan.stages)
    said = "begin: %s: %s, tasks of each stage: %s"
    _LOG.info(said, plan.where, format_bytes(plan.nbytes), tasks)
    with counting_retries() as retries, shared_processes():  # tasks count their own retries
        ledger, stored = _carry_out(
            plan, workers, progress, comparisons, resuming=resuming, journal=journal, verify=verify
        )
    expected = [
        StageEstimate(
            stage.busy,
            stage.costs,
            seconds(stage, workers.threads, plan.model),
            stage.estimated,
            stage.requests_at_most,
        )
        for stage in plan.stages
    ]
    measured = {
        "seconds": perf_counter() - begun,
        "already_done": ledger.already_done,
        "stages": ledger.stages(expected),
        "bound": plan.held_by(workers.threads_per_process + overlapping_of(plan, workers)),
        "peaks": ledger.peaks,
        "repeated": ledger.repeated,
        "retried_besides": ledger.retried_comparing + retries.count,
        "waited": ledger.waited + retries.seconds,
        "requests": dict(ledger.requests),
    }
    _LOG.info("done: %s in %.1f s", plan.where, measured["seconds"])
    return Execution(measured, tuple(map(ledger.tasks_of, range(len(plan.members)))), tuple(stored))


def _carry_out(
    plan: ArraysPlan,
    workers: Workers,
    progress: Callable[[Progress], None] | None,
    comparisons: Sequence[CopyComparison],
    *,
    resuming: bool,
    journal: Location | None,
    verify: bool,
) -> tuple[TaskStatistics, Sequence[int]]:
    """Run the job from start to end; return the ledger, and the encoded bytes of each target."""
    steps = len(plan.stages) + verify
    if not resuming:
        run = _PlanRun(plan, start_job(plan, journal), workers, progress, steps)
        return run.to_its_end(comparisons, resumed=False, resumable=False)
    tries = count()

    def carry_out() -> tuple[TaskStatistics, Sequence[int]]:
        has_waited = next(tries) > 0
        return _carry_on(
            plan, workers, progress, comparisons, journal=journal, steps=steps, waited=has_waited
        )

    return waiting_for_same(carry_out, plan.where)


def _carry_on(
    plan: ArraysPlan,
    workers: Workers,
    progress: Callable[[Progress], None] | None,
    comparisons: Sequence[CopyComparison],
    *,
    journal: Location | None,
    steps: int,
    waited: bool,
) -> tuple[TaskStatistics, Sequence[int]]:
    """Run a job that may be resumed, as the only process; as `_carry_out`.

    Another process may have worked on it until now (`waited`).
    """
    with alone(plan, journal) as was_running:
        found = resume(plan, journal)
        record = finished(plan, journal) if found is None else None
        if record is not None:
            done = TaskStatistics(len(plan.stages))
            done.already_done = record.ended
            stored = record.report.get("stored", ())
            is_right = isinstance(stored, list) and all(type(one) is int for one in stored)
            return done, stored if is_right else ()
        if found is None and (was_running or waited) and plan.is_finished():
            return TaskStatistics(len(plan.stages)), plan.stored()
        job = start_job(plan, journal, alone=True) if found is None else go_on(found, alone=True)
        run = _PlanRun(plan, job, workers, progress, steps)
        try:
            return run.to_its_end(comparisons, resumed=found is not None, resumable=True)
        except JobReplacedError:
            if finished(plan, journal) is None:  # what is there is another job's
                raise
            return run.ledger, plan.stored()
        except (ZarrDaskError, FileNotFoundError):
            if _has_ended(job) and plan.is_finished():
                return run.ledger, plan.stored()  # the parts of a plan file were faster
            raise


def _has_ended(job: BoundJob) -> bool:
    return job.journal is not None and job.journal.job() is None


def check_process_memory(plan: ArraysPlan, workers: Workers) -> None:
    """Refuse to run if more tasks share a process than the plan was made for.

    Raises
    ------
    MemoryBudgetError
        If they would hold more than `max_mem`.
    """
    needed = plan.held_by(workers.threads_per_process)
    if needed > plan.max_mem:
        raise MemoryBudgetError(
            f"the plan was made for {pluralize(plan.threads_per_process, 'thread')} per process; "
            f"{workers.threads_per_process} would hold {format_bytes(needed)}, more than "
            f"max_mem={format_bytes(plan.max_mem)}. Make the plan again for these workers."
        )


def overlapping_of(plan: ArraysPlan, workers: Workers) -> int:
    """Return the number of tasks that are begun while others wait; see `ArraysPlan.overlapping`."""
    return plan.overlapping if may_overlap(workers, plan.threads_per_process) else 0


@dataclass
class _PlanRun:
    """One run of a plan."""

    plan: ArraysPlan
    job: BoundJob
    workers: Workers
    progress: Callable[[Progress], None] | None
    steps: int
    """Number of stages, including the comparison if there is one."""
    ledger: TaskStatistics = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = TaskStatistics(len(self.plan.stages))
        journal = self.job.journal
        if journal is not None:
            can_append = capabilities_of(journal.store).append or journal.session is not None
            gathers = not (can_append or runs_processes())
            self.job = replace(self.job, journal=replace(journal, gathers=gathers))

    def to_its_end(
        self, comparisons: Sequence[CopyComparison], *, resumed: bool, resumable: bool
    ) -> tuple[TaskStatistics, Sequence[int]]:
        """Copy, compare and finish; return the ledger, and the encoded bytes of each target."""
        plan, job = self.plan, self.job
        with job_lock(job.journal):
            try:
                self.copy(is_new=not resumed)
                self.compare(comparisons)
            except BaseException as error:
                with suppress(OSError, RuntimeError):  # the cluster may have gone
                    self._take_receipts()
                if not resumable or job.journal is None or not isinstance(error, Exception):
                    with suppress(StoreError):  # the first error is what matters
                        job.remove_intermediates()
                job.give_up(tasks_run=self.workers.client is not None)
                with suppress(StoreError):
                    plan.withdraw()
                raise
            if resumed and job.journal is not None:
                stored = job.stored()
            else:
                members = enumerate(plan.members)
                stored = [self.ledger.stored_of(n, len(one.stages) - 1) for n, one in members]
            if resumable and job.journal is not None:
                put_record(job.journal, job.journal.token, {"stored": list(stored)}, {})
            job.finish()
        return self.ledger, stored

    def copy(self, *, is_new: bool) -> None:
        """Run all remaining tasks, stage by stage; all of them if the job has just begun."""
        totals = self.plan.totals
        for number, left in enumerate(self.job.left(is_new=is_new)):
            tasks = left
            while tasks:
                known = self._workers()
                self._stage(number, tasks, totals[number])
                is_lost = not known <= self._take_receipts()  # with a worker that has died
                tasks = self.job.missing(number) if is_lost else ()
            if left:
                self.job.tidy_up(number)

    def _workers(self) -> set[str]:
        """Return the addresses of the workers of a cluster, if they gather receipts."""
        client, journal = self.workers.client, self.job.journal
        if client is None or journal is None or not journal.gathers:
            return set()
        return {*known_workers(client)}

    def _take_receipts(self) -> set[str]:
        """Take over the receipts that workers have gathered; return the addresses of these."""
        client, journal = self.workers.client, self.job.journal
        if client is None or journal is None or not journal.gathers:
            return set()
        return take_receipts(journal, client)

    def _stage(self, number: int, tasks: Sequence[int], total: int) -> None:
        def note(result: tuple[int, Any]) -> None:
            array, one = result
            self.ledger.note(array, number, one)
            self._tell(number, one.nbytes, total)

        name = f"zarr-copy-{number + 1}"
        calls = self.job.stage(number).calls(tasks)
        into = self.plan.writes_to
        journal = self.job.journal
        merged = None if journal is None else journal.checkpoint_if_due
        overlapping = overlapping_of(self.plan, self.workers)
        run_tasks(*calls, self.workers, note, name, self.ledger.begin, into, merged, overlapping)

    def compare(self, comparisons: Sequence[CopyComparison]) -> None:
        """Compare sources and targets, if that is to be done."""
        if self.steps == len(self.plan.stages):
            return
        self.plan.check_complete()

        def note(one: ComparedElements) -> None:
            self.ledger.retried_comparing += one.retried
            self._tell(self.steps - 1, one.nbytes, self.plan.nbytes)

        verify_copies(comparisons, self.workers, note)

    def _tell(self, stage: int, nbytes: int, total: int) -> None:
        if self.progress is not None:
            self.progress(Progress(stage, self.steps, nbytes, total))


def verify_copies(
    comparisons: Sequence[CopyComparison],
    workers: Workers,
    note: Callable[[ComparedElements], None],
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
    plan: ArraysPlan, threads: int | None = None, stop: Callable[[], bool] | None = None
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


def _side_by_side(plan: ArraysPlan, threads: int | None) -> tuple[int, Sequence[CopyComparison]]:
    """Return the number of threads for the comparison, and the comparisons."""
    count = threads or cpu_count()
    while True:
        try:
            return count, plan.comparisons(count)
        except MemoryBudgetError:
            if threads is not None or count == 1:
                raise
            count //= 2


def _calls(comparisons: Sequence[CopyComparison]) -> Calls:
    if len(comparisons) == 1:
        return IndexedTask(0, comparisons[0]), comparisons[0].numbers

    def calls() -> Iterator[tuple[int, CopyComparison, int]]:
        for array, comparison in enumerate(comparisons):
            for number in comparison.numbers:
                yield array, comparison, number

    return calls_of_arrays(calls())
