"""``zarr-dask run``, ``status`` and ``finish``: plans in files, executed in parts.

No dask is needed: each process reads the file, executes its part of a stage on its own threads and
leaves receipts. If several start at the same time, the first one prepares the target.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.errors import FINDING, OWN_PROCESS
from zarr_dask.cli.job_status import jobs_at
from zarr_dask.cli.output import answer, echo, terminal_safe
from zarr_dask.cli.settings import settings
from zarr_dask.cli.signals import StopRequested, handle_signals, stop_requested
from zarr_dask.errors import NodeExistsError, PlanError
from zarr_dask.jobs.engine.lifecycle import job_lock
from zarr_dask.jobs.engine.plan import pluralize

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.jobs.engine.execute import Plan
    from zarr_dask.jobs.engine.job import BoundJob

__all__ = ["FILE", "JOURNAL", "finish", "load", "run", "status"]


class PartOption(click.ParamType[tuple[int, int]]):
    """``I/N``: the I-th of N parts."""

    name = "I/N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """See `click.ParamType.convert`."""
        if isinstance(value, tuple):
            return value
        part, slash, parts = str(value).partition("/")
        if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            self.fail(f"{value!r} is not I/N with I from 1 to N, such as 3/100.", param, ctx)
        return int(part), int(parts)


class _PlanPath(click.Path):
    """A file with a plan; a hierarchy in its place is answered."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """See `click.ParamType.convert`."""
        if Path(value).is_dir():
            self.fail(
                f"{value!r} is a folder, and PLAN is a file that zarr-dask plan -o has written. A "
                "job that was killed is ended by the same command with --resume, the output of a "
                "simulation by zarr_dask.Writer.attach(url).finish() in Python.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


FILE = click.argument(
    "plan_file",
    metavar="PLAN",
    type=_PlanPath(exists=True, dir_okay=False, path_type=Path, allow_dash=True),
)
JOURNAL = click.option(
    "--journal", metavar="URL", help="Location of the receipts; beside the target by default."
)


_VERIFY = click.option(
    "--verify", is_flag=True, help="Compare source and target before the target becomes visible."
)


@click.command(
    epilog="""\b
Examples:
  zarr-dask run plan.json
  zarr-dask run plan.json --stage 1 --part 3/100
"""
)
@FILE
@click.option("--stage", type=click.IntRange(min=1), help="Do this stage only, from 1.")
@click.option("--part", type=PartOption(), default="1/1", help="Do this part of the stage.")
@click.option("--threads", type=click.IntRange(min=1), help="Tasks at a time; as planned.")
@JOURNAL
@_VERIFY
def run(
    plan_file: Path,
    *,
    stage: int | None,
    part: tuple[int, int],
    threads: int | None,
    journal: str | None,
    verify: bool,
) -> None:
    """Execute a plan, or a part of one of its stages.

    PLAN is a file written by "zarr-dask plan -o". Work that has a receipt is not repeated. On
    SIGTERM or Ctrl-C the current stored objects are finished, and the command ends with code 143 or
    130; a second signal ends it at once. Without --stage all stages are executed one after the
    other, and the target is made visible.
    """
    if stage is None and part[1] > 1:
        raise click.UsageError("--part is a part of a stage: give --stage too.")
    if verify and stage is not None:
        raise click.UsageError("--verify is for the end of a plan: give it to finish.")
    plan = load(plan_file)
    numbers = range(len(plan.stages)) if stage is None else [_checked(stage, plan)]
    if threads is not None and threads > plan.threads_per_process:
        raise click.UsageError(
            f"{threads} threads would hold more than the {plan.threads_per_process} that the plan "
            "was made for. Make it again with a larger --max-mem."
        )
    if plan.is_finished() and _resumed(plan, journal) is None:
        if verify:
            _compare_here(plan, threads)
        echo(f"{terminal_safe(plan.where)} is finished already")
        answer({"target": plan.where, "finished": True, "stages": []})
        return
    stages: list[dict[str, int]] = []
    own_process = click.get_current_context().obj is OWN_PROCESS
    with stop_requested("the stored objects at hand", own_process=own_process) as stop:
        job = _begun(plan, journal)
        with job_lock(job.journal):
            for number in numbers:
                own, tasks = _share(job, plan, number, part, all_stages=stage is None)
                done, retried = _do(own, number, tasks, threads, stop)
                if stage is not None and done == len(tasks):
                    stop.ignore()
                again = f", {pluralize(retried, 'request')} tried again" if retried else ""
                echo(f"stage {number + 1}: {done} of {len(tasks)} tasks done{again}")
                stages.append(
                    {"number": number + 1, "tasks": len(tasks), "done": done, "retried": retried}
                )
                stop.leave()
            if stage is None:
                _end(job, plan, verify=verify, threads=threads, stop=stop)
                stop.ignore()
    answer({"target": plan.where, "finished": stage is None, "stages": stages})


def _begun(plan: Plan, journal: str | None) -> BoundJob:
    from zarr_dask.jobs.engine.lifecycle import join_job

    return join_job(plan, journal)


def _resumed(plan: Plan, journal: str | None) -> BoundJob | None:
    from zarr_dask.jobs.engine.lifecycle import resume

    return resume(plan, journal)


def _share(
    job: BoundJob, plan: Plan, stage: int, part: tuple[int, int], *, all_stages: bool
) -> tuple[BoundJob, Sequence[int]]:
    """Return the job as a part sees it, and the numbers of the tasks that remain to be done."""
    if all_stages:
        return job, job.left()[stage]
    number, parts = part
    tasks = plan.stages[stage].tasks
    within = range(tasks * (number - 1) // parts, tasks * number // parts)
    own = job.part(stage, within) if parts > 1 else job
    return own, own.missing(stage, within)


def _do(
    job: BoundJob,
    stage: int,
    numbers: Sequence[int],
    threads: int | None,
    stop: Callable[[], bool],
) -> tuple[int, int]:
    """Return the number of tasks done, and of requests retried for them."""
    from zarr_dask._util.threads import parallel_for
    from zarr_dask.jobs.engine.overlap_pool import each_overlapping

    overlapping = job.plan.overlapping if threads is None else 0
    count = threads or job.plan.threads_per_process
    bound = job.stage(stage)
    done: list[int] = []
    retried: list[int] = []

    def copy(number: int) -> None:
        if not stop():
            retried.append(bound.copy(number, stop).retried)
            if not stop():
                done.append(number)

    try:
        if overlapping:
            each_overlapping(copy, numbers, count, overlapping)
        else:
            parallel_for(copy, numbers, count)
    finally:
        if job.journal is not None:
            job.journal.flush()
    return len(done), sum(retried)


@click.command(
    epilog="""\b
Examples:
  zarr-dask status plan.json --watch
  zarr-dask status run.zarr
"""
)
@click.argument("plan_or_url", metavar="PLAN|URL")
@JOURNAL
@click.option("--watch", is_flag=True, help="Show it again and again, until the plan is finished.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two looks, with --watch.",
)
def status(plan_or_url: str, *, journal: str | None, watch: bool, every: float) -> None:
    """Show the progress of a plan, or the jobs at a URL.

    For a plan the exit code is 0 if it is finished, 1 if something is missing. For an array or a
    hierarchy it is 0 if every job has ended, 1 if one is running or was killed.
    """
    plan_file = Path(plan_or_url)
    if plan_or_url != "-" and not plan_file.is_file():
        if plan_file.suffix == ".json" and "://" not in plan_or_url:
            raise click.BadParameter(f"File {plan_or_url!r} does not exist.", param_hint="PLAN")
        if watch or journal is not None:
            raise click.UsageError("--watch and --journal are for plans.")
        jobs_at(plan_or_url)
        return
    plan = load(plan_file)
    if watch:
        _watch(plan, journal, every)
    job = _resumed(plan, journal)
    if job is None:
        if plan.is_finished():
            echo(f"{terminal_safe(plan.where)} is finished")
            answer({"target": plan.where, "state": "finished", "stages": []})
            return
        echo("not begun")
        answer({"target": plan.where, "state": "not begun", "stages": []}, FINDING)
        return
    left, stages = job.left(), []
    for number, stage in enumerate(plan.stages):
        done = stage.tasks - len(left[number])
        share = done / stage.tasks if stage.tasks else 1
        echo(f"stage {number + 1}: {done} of {stage.tasks} tasks done ({share:.0%})")
        stages.append({"number": number + 1, "tasks": stage.tasks, "done": done})
    if not any(left):
        echo('all tasks are done; "zarr-dask finish" makes the target visible')
    state = "begun" if any(left) else "tasks done"
    answer({"target": plan.where, "state": state, "stages": stages}, FINDING)


@click.command(
    epilog="""\b
Examples:
  zarr-dask finish plan.json
  zarr-dask finish plan.json --verify --scheduler tcp://10.0.0.1:8786
"""
)
@FILE
@JOURNAL
@_VERIFY
@click.option("--threads", type=click.IntRange(min=1), help="That compare; one for each core.")
@cluster_options("Compare")
def finish(
    plan_file: Path,
    *,
    journal: str | None,
    verify: bool,
    threads: int | None,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
) -> None:
    """Finish a plan whose tasks are all done.

    The target becomes visible; intermediate data and receipts are removed. --verify compares on all
    cores within the memory of the plan, or on a cluster.
    """
    places = [place for place in (scheduler, scheduler_file, workers, threads) if place is not None]
    if places and not verify:
        raise click.UsageError("--threads, --scheduler and --workers are for --verify.")
    if len(places) > 1:
        raise click.UsageError(
            "--threads, --scheduler, --scheduler-file and --workers exclude each other."
        )
    from zarr_dask.jobs.engine.lifecycle import go_on

    plan = load(plan_file)
    job = _resumed(plan, journal)
    if job is None and not plan.is_finished():
        raise PlanError("the plan has not been begun: run it first (zarr-dask run).")
    if job is not None:
        job = go_on(job)
    if job is not None and verify:
        job.check_complete()
    state = f"{plan.where} is not compared. Run the same command again."
    if len(places) == 1 and threads is None:
        with cluster(scheduler, scheduler_file, workers) as client, handle_signals(state):
            _compare_on(plan, client)
    elif verify:
        with handle_signals(state):
            _compare_here(plan, threads)
    if job is not None:
        job.finish()
    echo(f"{terminal_safe(plan.where)} is finished" + (" already" if job is None else ""))
    answer({"target": plan.where, "finished": True})


def _watch(plan: Plan, journal: str | None, every: float) -> None:
    """Print the progress of a plan whenever it has changed, until it is finished."""
    said = ""
    while (job := _watched(plan, journal)) is not None or not plan.is_finished():
        left = None if job is None else job.left()
        line = "not begun" if left is None else _progress(plan, left)
        if line != said:
            echo(line)
            said = line
        sleep(every)  # there is no notification, so poll


def _watched(plan: Plan, journal: str | None) -> BoundJob | None:
    """Return the job while others run it; nothing of it is changed."""
    from zarr_dask.jobs.engine.lifecycle import resume

    try:
        return resume(plan, journal, merges=False)
    except NodeExistsError:  # it became visible between two looks at it
        return None


def _progress(plan: Plan, left: Sequence[Sequence[int]]) -> str:
    pairs = enumerate(zip(plan.stages, left, strict=True), 1)
    shown = (f"stage {n}: {stage.tasks - len(rest)} of {stage.tasks}" for n, (stage, rest) in pairs)
    return f"{', '.join(shown)} tasks done"


def _compare_here(plan: Plan, threads: int | None, stop: StopRequested | None = None) -> None:
    """Compare sources and targets in this process."""
    from zarr_dask.jobs.engine.execute import verify_copies_locally

    verify_copies_locally(plan, threads, stop)
    if stop is not None:
        stop.leave()


def _compare_on(plan: Plan, client: Client | None) -> None:
    """Compare sources and targets on a cluster."""
    from zarr_dask.jobs.engine import find_workers
    from zarr_dask.jobs.engine.execute import verify_copies

    workers = find_workers(client)
    verify_copies(plan.comparisons(workers.threads_per_process), workers, lambda _: None)


def _end(
    job: BoundJob, plan: Plan, *, verify: bool, threads: int | None, stop: StopRequested
) -> None:
    """Finish a job, after comparing target and source if requested."""
    if verify:
        job.check_complete()
        _compare_here(plan, threads, stop)
    job.finish()


def load(file: Path) -> Plan:
    """Load the plan of a file; errors name the file."""
    from zarr_dask.jobs.plan_file import load_plan

    if settings().target_options:
        raise click.UsageError(
            "--target-option is not for plans, which keep the options of source and target. Give "
            "it to zarr-dask plan, or --storage-option for both."
        )
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        return load_plan(text, {**settings().of_buckets, **settings().options}).as_job()
    except UnicodeDecodeError as error:
        raise PlanError(f"{file}: expected the JSON of a plan, in UTF-8 ({error}).") from error
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from error


def _checked(stage: int, plan: Plan) -> int:
    if stage > len(plan.stages):
        have = pluralize(len(plan.stages), "stage")
        raise click.UsageError(f"--stage {stage}: the plan has {have}, counted from 1.")
    return stage - 1
