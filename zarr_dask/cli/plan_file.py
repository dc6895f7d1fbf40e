"""``zarr-dask run``, ``status``, ``finish`` and ``script``: plans in files, executed in parts.

No dask is needed: each process reads the file, executes its part of a stage on its own threads and
leaves receipts. If several start at the same time, the first one prepares the target.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.errors import FINDING
from zarr_dask.cli.output import answer, echo, terminal_safe
from zarr_dask.cli.settings import settings
from zarr_dask.cli.signals import StopRequested, handle_signals, stop_requested
from zarr_dask.errors import PlanError
from zarr_dask.jobs.engine.lifecycle import job_lock
from zarr_dask.jobs.engine.plan import pluralize

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.jobs.engine.execute import Plan
    from zarr_dask.jobs.engine.job import BoundJob

__all__ = ["finish", "run", "script", "status"]

_MOST_PARTS = 1000
"""Maximum number of tasks of a Slurm array, the limit of most sites."""
_IDLE = 300 << 20
"""Memory of an idle process with the package imported, and a small reserve."""


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


_FILE = click.argument(
    "plan_file",
    metavar="PLAN",
    type=click.Path(exists=True, dir_okay=False, path_type=Path, allow_dash=True),
)
_JOURNAL = click.option(
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
@_FILE
@click.option("--stage", type=click.IntRange(min=1), help="Do this stage only, from 1.")
@click.option("--part", type=PartOption(), default="1/1", help="Do this part of the stage.")
@click.option("--threads", type=click.IntRange(min=1), help="Tasks at a time; as planned.")
@_JOURNAL
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
    plan = _load(plan_file)
    numbers = range(len(plan.stages)) if stage is None else [_checked(stage, plan)]
    if threads is not None and threads > plan.threads_per_process:
        raise PlanError(
            f"{threads} threads would hold more than the {plan.threads_per_process} that the plan "
            "was made for. Make it again with a larger max_mem."
        )
    if plan.is_finished() and _resumed(plan, journal) is None:
        if verify:
            _compare_here(plan, threads)
        echo(f"{terminal_safe(plan.where)} is finished already")
        answer({"target": plan.where, "finished": True, "stages": []})
        return
    stages: list[dict[str, int]] = []
    with stop_requested("the stored objects at hand") as stop:
        job = _begun(plan, journal)
        with job_lock(job.journal):
            for number in numbers:
                tasks = _share(job, plan, number, part, all_stages=stage is None)
                done, retried = _do(job, number, tasks, threads or plan.threads_per_process, stop)
                again = f", {pluralize(retried, 'request')} tried again" if retried else ""
                echo(f"stage {number + 1}: {done} of {len(tasks)} tasks done{again}")
                stages.append(
                    {"number": number + 1, "tasks": len(tasks), "done": done, "retried": retried}
                )
                stop.leave()
            if stage is None:
                _end(job, plan, verify=verify, threads=threads, stop=stop)
    answer({"target": plan.where, "finished": stage is None, "stages": stages})


def _begun(plan: Plan, journal: str | None) -> BoundJob:
    from zarr_dask.jobs.engine.lifecycle import join_job

    return join_job(plan, journal)


def _resumed(plan: Plan, journal: str | None) -> BoundJob | None:
    from zarr_dask.jobs.engine.lifecycle import resume

    return resume(plan, journal)


def _share(
    job: BoundJob, plan: Plan, stage: int, part: tuple[int, int], *, all_stages: bool
) -> Sequence[int]:
    """Return the numbers of a part's tasks that remain to be done."""
    if all_stages:
        return job.left()[stage]
    number, parts = part
    tasks = plan.stages[stage].tasks
    first, last = tasks * (number - 1) // parts, tasks * number // parts
    return [task for task in job.missing(stage) if first <= task < last]


def _do(
    job: BoundJob, stage: int, numbers: Sequence[int], threads: int, stop: Callable[[], bool]
) -> tuple[int, int]:
    """Return the number of tasks done, and of requests retried for them."""
    from zarr_dask._util.threads import parallel_for

    bound = job.stage(stage)
    done: list[int] = []
    retried: list[int] = []

    def copy(number: int) -> None:
        if not stop():
            retried.append(bound.copy(number, stop).retried)
            if not stop():
                done.append(number)

    parallel_for(copy, numbers, threads)
    return len(done), sum(retried)


@click.command()
@_FILE
@_JOURNAL
def status(plan_file: Path, *, journal: str | None) -> None:
    """Show the progress of a plan.

    The exit code is 0 if it is finished, 1 if something is missing.
    """
    plan = _load(plan_file)
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
@_FILE
@_JOURNAL
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
    plan = _load(plan_file)
    job = _resumed(plan, journal)
    if job is None and not plan.is_finished():
        raise PlanError("the plan has not been begun: run it first (zarr-dask run).")
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


@click.command()
@_FILE
@click.option("--slurm", is_flag=True, required=True, help="For the workload manager Slurm.")
@click.option("--parts", type=click.IntRange(min=1), help="Parts of a stage at most; 1000.")
@click.option("--time", "limit", metavar="TIME", help="Time limit of a part, as Slurm takes it.")
@_JOURNAL
def script(
    plan_file: Path,
    *,
    slurm: bool,  # noqa: ARG001
    parts: int | None,
    limit: str | None,
    journal: str | None,
) -> None:
    """Print commands that submit a plan to Slurm.

    The commands submit an array of jobs for each stage, one after the other, and a job that
    finishes the plan. Save them in a file, check the options that your site requires, and run the
    file with sh.
    """
    plan = _load(plan_file)
    memory = ceil((plan.max_mem + _IDLE) / 2**20)
    options = f"--cpus-per-task={plan.threads_per_process} --mem={memory}M"
    if limit:
        options += f" --time={shlex.quote(limit)}"
    file = shlex.quote(str(plan_file.absolute()))
    if journal is not None:
        file += f" --journal {shlex.quote(journal)}"
    echo("#!/bin/sh")
    echo("set -e")
    after = ""
    for number, stage in enumerate(plan.stages, 1):
        count = max(
            min(stage.tasks, parts or _MOST_PARTS), 1
        )  # even without tasks: it starts the job
        part = f"--stage {number} --part $SLURM_ARRAY_TASK_ID/{count}"
        command = _run_by_shell(f"zarr-dask run {file} {part}")
        echo(
            f"stage{number}=$(sbatch --parsable --job-name=zarr-stage-{number} "
            f"--array=1-{count} --signal=B:TERM@60 {options}{after} --wrap={command})"
        )
        after = f" --dependency=afterok:$stage{number}"
    command = _run_by_shell(f"zarr-dask finish {file}")
    echo(f"sbatch --job-name=zarr-finish{after} --wrap={command}")


def _run_by_shell(command: str) -> str:
    """Return a command as an argument; `exec` makes Slurm's signals reach it."""
    return shlex.quote(f"exec {command}")


def _load(file: Path) -> Plan:
    from zarr_dask.jobs.plan_file import load_plan

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        return load_plan(text, {**settings().of_buckets, **settings().options}).as_job()
    except UnicodeDecodeError as error:
        raise PlanError(f"{file}: expected the JSON of a plan, in UTF-8 ({error}).") from error
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from error


def _checked(stage: int, plan: Plan) -> int:
    if stage > len(plan.stages):
        raise PlanError(f"there is no stage {stage}: the plan has {len(plan.stages)}.")
    return stage - 1
