"""Executing a plan to write images: tasks on all levels, stage by stage.

`zarr_dask.ome.image_lifecycle` starts, resumes and finishes jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from secrets import token_hex
from threading import Lock, Semaphore
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.errors import MemoryBudgetError
from zarr_dask.hierarchy.edit import rollback_metadata
from zarr_dask.jobs.engine import (
    Workers,
    check_reachable_from_workers,
    find_workers,
    forks_for,
    run_tasks,
    runs_processes,
)
from zarr_dask.jobs.engine.lifecycle import job_lock
from zarr_dask.jobs.engine.local_schedulers import may_overlap
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.progress_bars import bar
from zarr_dask.jobs.rechunk.rechunk import Progress
from zarr_dask.jobs.write.submit import ReadyWrites, compute_writes
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.journal.receipts import Receipts
from zarr_dask.ome.image_lifecycle import PyramidJob, started_or_resumed
from zarr_dask.ome.pyramid_plan import PyramidJobPlan, PyramidPlan
from zarr_dask.ome.pyramid_task import (
    PyramidRecords,
    PyramidTarget,
    PyramidTask,
    PyramidTaskReport,
    merged,
)
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client


__all__ = ["ImageProgress", "run_plan", "run_without_journal"]

ImageProgress = Callable[[Progress], None] | bool
"""Called with every step; True for a progress bar, False for none."""


_WAVE = 16
"""Number of images whose tasks run at the same time; every task carries their description."""


@in_job()
def run_plan(
    plan: PyramidJobPlan,
    client: Client | None,
    progress: ImageProgress | None,
    resume: bool | str,
    journal: Location | None,
) -> WriteReport:
    """Execute a plan; see `zarr_dask.ome.plan.ImageWritePlan.run`."""
    begun = perf_counter()
    workers = find_workers(client)
    _check_memory(plan, workers)
    check_reachable_from_workers(plan.store, client)
    with started_or_resumed(plan, resume, journal) as job:
        if job.finished is not None:
            return WriteReport.of_record(job.finished)
        try:
            return _run_job(job, workers, progress, begun)
        except BaseException:
            job.give_up(tasks_run=workers.client is not None)
            raise


def _run_job(
    job: PyramidJob, workers: Workers, progress: ImageProgress | None, begun: float
) -> WriteReport:
    """Run the tasks that are left of a job, and end it."""
    plan = job.plan
    done = job.receipts()
    if job.journal is not None and (workers.client is not None or runs_processes()):
        job = replace(job, journal=replace(job.journal, gathers=False))
    with job_lock(job.journal):
        with ExitStack() as stack:
            told = progress
            if progress is True:
                told = stack.enter_context(bar("writing", plan.total))
            steps = _PyramidProgress(told if callable(told) else None, plan.total)
            stack.push(partial(_withdraw, plan))
            reports = _run_stages(plan, job.records, done, workers, steps)
            steps.end()
        report = _report(merged(reports), plan.nbytes, perf_counter() - begun)
        job.finish(asdict(report))
    return report


def _report(total: PyramidTaskReport, nbytes: int, seconds: float) -> WriteReport:
    """Return the report of a job that has written some bytes of pixels."""
    return WriteReport(
        total.objects,
        total.empty,
        nbytes,
        total.stored,
        total.retried,
        seconds=seconds,
        waited=total.waited,
        requests=total.requests,
    )


def run_without_journal(
    plan: PyramidJobPlan, client: Client | None, progress: ImageProgress | None
) -> WriteReport:
    """Write what the pyramids of a plan say into arrays that exist, and nothing else."""
    begun = perf_counter()
    workers = find_workers(client)
    _check_memory(plan, workers)
    check_reachable_from_workers(plan.store, client)
    with ExitStack() as stack:
        told = progress
        if progress is True:
            told = stack.enter_context(bar("updating", plan.total))
        steps = _PyramidProgress(told if callable(told) else None, plan.total)
        total = merged(_run_stages(plan, None, None, workers, steps))
        steps.end()
    return _report(total, total.nbytes, perf_counter() - begun)


def _withdraw(plan: PyramidJobPlan, failed: type[BaseException] | None, *_: object) -> None:
    """If a job fails, remove metadata that were written before the pixels."""
    if failed is None:
        return
    arrays = [array.path for pyramid in plan.pyramids for array in pyramid.arrays]
    for path in [plan.path] if plan.creates else [*arrays, *plan.groups]:
        rollback_metadata(plan.store, path)


def _waves(pyramids: Sequence[PyramidPlan]) -> Iterator[Sequence[PyramidPlan]]:
    for first in range(0, len(pyramids), _WAVE):
        yield pyramids[first : first + _WAVE]


def _check_memory(plan: PyramidJobPlan, workers: Workers) -> None:
    needed = plan.held_by_process(workers.threads_per_process)
    if needed > plan.max_mem:
        raise MemoryBudgetError(
            f"the plan was made for {pluralize(plan.threads_per_process, 'thread')} per process; "
            f"{workers.threads_per_process} would hold {format_bytes(needed)}, more than "
            f"max_mem={format_bytes(plan.max_mem)}. Make the plan again for these workers."
        )


class _PyramidProgress:
    """Converts the results of tasks to progress."""

    def __init__(self, told: Callable[[Progress], None] | None, total: int) -> None:
        self._told = told
        self._total = total
        self._done = 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        """Add a number of bytes that are done."""
        with self._lock:
            nbytes = min(nbytes, self._total - self._done)
            self._done += nbytes
        if nbytes > 0 and self._told is not None:
            self._told(Progress(0, 1, nbytes, self._total))

    def end(self) -> None:
        """Report all as done, including the work of an earlier run."""
        self.add(self._total - self._done)


# --- running --------------------------------------------------------------------------------------


def _run_stages(
    plan: PyramidJobPlan,
    records: PyramidRecords | None,
    done: Receipts | None,
    workers: Workers,
    steps: _PyramidProgress,
) -> list[PyramidTaskReport]:
    """Run all stages of all images, a wave of images at a time."""
    reports: list[PyramidTaskReport] = []
    for wave in _waves(plan.pyramids):
        for stage in range(max(len(pyramid.stages) for pyramid in wave)):
            reports += _run_stage(plan, records, wave, stage, done, workers, steps)
    return reports


def _run_stage(
    plan: PyramidJobPlan,
    records: PyramidRecords | None,
    wave: Sequence[PyramidPlan],
    stage: int,
    done: Receipts | None,
    workers: Workers,
    steps: _PyramidProgress,
) -> list[PyramidTaskReport]:
    """Run a stage of several images: super-cells that tasks read, and those that graphs compute."""
    reports: list[PyramidTaskReport] = []
    writers: list[PyramidTask] = []
    tasks: list[int] = []
    count = 0
    graphs: list[tuple[PyramidTask, da.Array, Sequence[int]]] = []
    for pyramid in wave:
        if stage >= len(pyramid.stages):
            continue
        writer = pyramid.writer(stage, records, plan.waiting)
        missing = _missing(writer, pyramid.numbers(stage), done)
        values = _handed_over(pyramid, stage, workers)
        if values is not None:
            graphs.append((replace(writer, source=None), values, missing))
            continue
        tasks += [count + number for number in missing]
        count += writer.stage.tasks
        writers.append(writer)

    def note(report: PyramidTaskReport) -> None:
        reports.append(report)
        steps.add(report.nbytes)

    if any(missing for _, _, missing in graphs):
        reports.append(_compute(plan.store, graphs, workers, steps))
    if tasks:
        name = f"zarr-pyramid-{stage + 1}"
        most = min(writer.stage.threads for writer in writers)
        limited = workers.in_this_process and most < plan.threads_per_process
        turns: AbstractContextManager[Any] = Semaphore(most) if limited else nullcontext()
        overlaps = not limited and may_overlap(workers, plan.threads_per_process)
        run_tasks(
            _StageTasks(tuple(writers), turns),
            tasks,
            workers,
            note,
            name,
            writes_to=[plan.store],
            overlapping=plan.overlapping if overlaps else 0,
        )
    return reports


@dataclass(frozen=True, eq=False)
class _StageTasks:
    """The tasks of a stage of several images, numbered consecutively; every task carries it."""

    writers: tuple[PyramidTask, ...]
    turns: AbstractContextManager[Any]
    """Entered by each task; a semaphore if the plan leaves threads of this process idle."""

    def __call__(self, number: int) -> PyramidTaskReport:
        for writer in self.writers:
            if number < writer.stage.tasks:
                with self.turns:
                    return writer(number)
            number -= writer.stage.tasks
        raise IndexError(f"there are not so many tasks that one has the number {number}.")


def _missing(writer: PyramidTask, tasks: Sequence[int], done: Receipts | None) -> Sequence[int]:
    """Return those tasks with a stored object that has no valid receipt."""
    if done is None or not len(done):
        return tasks
    return [n for n in tasks if not all(key in done for key in writer.keys(n))]


def _handed_over(pyramid: PyramidPlan, stage: int, workers: Workers) -> da.Array | None:
    """Return the dask array whose graph computes super-cells; None if tasks read them."""
    pixels, chosen = pyramid.pixels, pyramid.stages[stage]
    values: Any = pixels.values
    in_memory = isinstance(values, np.ndarray)
    told = not workers.in_this_process if in_memory else pixels.handed_over
    if chosen.first or not told:
        return None
    import dask.array as da  # takes a second, for which images of stored arrays do not wait

    if in_memory:
        return da.from_array(values, chunks=chosen.cell, name=False)
    cells = tuple(dimension.lengths or (0,) for dimension in chosen.cells.dimensions)
    regrouped: da.Array = values.rechunk(cells, method="tasks")
    return regrouped


def _compute(
    store: Store,
    graphs: Sequence[tuple[PyramidTask, da.Array, Sequence[int]]],
    workers: Workers,
    steps: _PyramidProgress,
) -> PyramidTaskReport:
    """Run tasks whose super-cells are computed by graphs, in one submission."""
    from zarr_dask.graph import write_array

    forks = forks_for([store], workers.client)
    total = sum(int(values.nbytes) for _, values, _ in graphs)

    def collection(topic: str) -> ReadyWrites:
        writes = [
            write_array(
                values,
                PyramidTarget(writer) if forks is None else forks.target(PyramidTarget(writer)),
                (0,) * values.ndim,
                f"{values.name}-{token_hex(8)}",
                None if len(missing) == writer.stage.tasks else _runs(missing),
                topic,
            )
            for writer, values, missing in graphs
        ]
        return ReadyWrites(writes, 0)

    def told(step: Progress) -> None:
        steps.add(step.nbytes)

    reports = compute_writes(collection, total, workers.client, told)
    if forks is not None:
        reports = tuple(map(forks.take, reports))
        forks.merge()
    return merged(reports)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
