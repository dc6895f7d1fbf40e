"""``zarr-dask script``: commands that submit a plan file to a batch system."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from zarr_dask.cli.batch_scripts import SCRIPTS, BatchJob, Submission
from zarr_dask.cli.options import SizeType
from zarr_dask.cli.output import answer, echo
from zarr_dask.cli.plan_file import FILE, JOURNAL, load
from zarr_dask.cli.settings import is_remote, settings

if TYPE_CHECKING:
    from zarr_dask.jobs.engine.execute import Plan
    from zarr_dask.jobs.engine.job import PlanStage

__all__ = ["script"]

_MOST_PARTS = 1000
"""Default of the parts of a stage, and of the jobs in an array: the limit of most sites."""
_IDLE = 300 << 20
"""Memory of an idle process with the package imported, and a small reserve."""
_RECEIPT = 1 << 10
"""Memory per stored object in the process that finishes a plan: receipts, and a listing."""
_LISTED = 500
"""Stored objects per second that the process which finishes a plan can look at, at the least."""
_LEAST_MINUTES = 10
_TIME = re.compile(r"(?:(?:([0-9]{1,3})-)?([0-9]{1,4}):(?=[0-9]{2}:))?([0-9]{1,6})(?::([0-9]{2}))?")
_DAYS = re.compile("([0-9]{1,3})-([0-9]{1,4})(?::([0-9]{2}))?")
_MOUNTED = "/etc/zarr-dask/plan.json"
"""Path of the plan in containers."""
_CONFIG_MAP = 1 << 20
"""Bytes that a ConfigMap of Kubernetes can hold."""
_NOT_FOR_KUBERNETES = {
    "account": "jobs belong to the namespace of kubectl's context",
    "partition": "jobs belong to the namespace of kubectl's context",
    "array_limit": "an indexed job has all parts of a stage; --throttle bounds those that run",
    "logs": "kubectl logs job/NAME shows what a job prints",
    "option": "edit the manifests that are printed",
}
"""Options of batch systems, and what there is instead."""


class TimeOption(click.ParamType[int]):
    """Minutes, or ``[DAYS-]HH:MM:SS``."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType.convert`."""
        found = _TIME.fullmatch(str(value)) or _DAYS.fullmatch(str(value))
        if found is None or not re.search("[1-9]", found[0]):
            self.fail(
                f"{value!r} is no time limit: expected minutes, [DAYS-]HH:MM:SS or DAYS-HH[:MM].",
                param,
                ctx,
            )
        days, hours, minutes, seconds = (int(n or 0) for n in (*found.groups(), 0)[:4])
        return (days * 24 + hours) * 60 + minutes + (seconds > 0)


class MemoryOption(click.ParamType[int]):
    """MiB, or a size such as ``4G``, which is 4 GiB as for ``sbatch``, or ``4GB``."""

    name = "MEMORY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType.convert`."""
        text = str(value).strip()
        size = f"{text}iB" if text[-1:] in {"K", "M", "G", "T"} else text
        found = ceil(
            SizeType().convert(f"{text}MiB" if text.isdecimal() else size, param, ctx) / 2**20
        )
        if found < 1:
            self.fail(f"{value!r} is no memory: expected MiB, or a size such as 4G.", param, ctx)
        return found


class ClaimOption(click.ParamType[tuple[str, str]]):
    """``NAME=FOLDER``: a persistent volume claim, and the folder to mount it at."""

    name = "NAME=FOLDER"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """See `click.ParamType.convert`."""
        name, equals, folder = str(value).partition("=")
        if not (equals and name and folder.startswith("/")):
            self.fail(f"{value!r} is not NAME=FOLDER, such as data=/data.", param, ctx)
        return name, folder


@click.command(
    epilog="""\b
Examples:
  zarr-dask script plan.json --slurm --account ab12 > submit.sh
  zarr-dask script plan.json --pbs --setup "module load python" > submit.sh
  zarr-dask script plan.json --k8s --image registry/zarr:1 > submit.sh
"""
)
@FILE
@click.option("--slurm", is_flag=True, help="For Slurm; the default.")
@click.option("--pbs", is_flag=True, help="For PBS Professional or OpenPBS.")
@click.option("--lsf", is_flag=True, help="For LSF.")
@click.option("--k8s", is_flag=True, help="For indexed jobs of Kubernetes.")
@click.option("--parts", type=click.IntRange(min=1), help="Parts of a stage at most; 1000.")
@click.option("--account", help="Account or project to charge.")
@click.option("--partition", help="Partition or queue.")
@click.option(
    "--mem",
    type=MemoryOption(),
    help="Of a part: MiB, or a size such as 4G; as planned by default.",
)
@click.option("--time", type=TimeOption(), help="Of a part at most: minutes, or [DAYS-]HH:MM:SS.")
@click.option(
    "--time-factor",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="Without --time: times the predicted time of a part, 10 minutes at least.",
)
@click.option("--throttle", type=click.IntRange(min=1), help="Parts that run at a time at most.")
@click.option(
    "--array-limit",
    type=click.IntRange(min=1),
    default=_MOST_PARTS,
    show_default=True,
    help="Jobs in an array at most, as your site limits them. More parts are several arrays.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Times that a part is done again after it has failed or run out of time.",
)
@click.option("--logs", metavar="FOLDER", help="For what jobs print; by default PLAN.logs.")
@click.option("--setup", multiple=True, help="Command that each job runs first; repeatable.")
@click.option("--python", metavar="FILE", help="Interpreter of the jobs; by default this one.")
@click.option("--option", multiple=True, help="Further option of sbatch, qsub or bsub; repeatable.")
@click.option("--image", help="Container image, for --k8s.")
@click.option(
    "--claim", type=ClaimOption(), multiple=True, help="Volume claim to mount, for --k8s."
)
@click.option("--verify", is_flag=True, help="Compare source and target in the last job.")
@JOURNAL
def script(
    plan_file: Path,
    *,
    slurm: bool,
    pbs: bool,
    lsf: bool,
    k8s: bool,
    parts: int | None,
    mem: int | None,
    time: int | None,
    time_factor: float,
    logs: str | None,
    python: str | None,
    option: tuple[str, ...],
    claim: tuple[tuple[str, str], ...],
    verify: bool,
    journal: str | None,
    **given: Any,
) -> None:
    """Print commands that submit a plan to a batch system.

    Slurm, PBS, LSF and Kubernetes have scripts of their own. The commands submit an array of jobs
    for each stage, one after the other, and a job that finishes the plan. Save them in a file and
    run it with sh. Run it again to do what is missing.
    """
    flags = {"slurm": slurm, "pbs": pbs, "lsf": lsf, "k8s": k8s}
    system = _only([name for name, is_given in flags.items() if is_given])
    _check_options(system, plan_file)
    plan = load(plan_file)
    path = str(plan_file.absolute())
    file = shlex.quote(_MOUNTED if system == "k8s" else path)
    if journal is not None:
        place = journal if is_remote(journal) else str(Path(journal).absolute())
        file += f" --journal {shlex.quote(place)}"
    file = " ".join([file, *map(shlex.quote, settings().store_words())])
    most = parts or _MOST_PARTS
    jobs = [
        _stage_job(plan, number, stage, file, most, time_factor)
        for number, stage in enumerate(plan.stages, 1)
    ]
    jobs.append(_finish_job(plan, file, time_factor, verify=verify))
    interpreter = python or ("python" if system == "k8s" else sys.executable)
    submission = Submission(
        plan=path,
        jobs=[
            BatchJob(
                job.name,
                job.arguments,
                job.parts,
                job.cpus,
                mem or job.mebibytes,
                time or job.minutes,
            )
            for job in jobs
        ],
        program=f"{shlex.quote(interpreter)} -m zarr_dask.cli",
        logs=str(Path(logs).absolute()) if logs else f"{path}.logs",
        key=plan.run_id[:12],
        options=option,
        claims=claim,
        **given,
    )
    lines = SCRIPTS[system](submission)
    for line in lines:
        echo(line)
    answer({"system": system, "script": "\n".join([*lines, ""])})


def _only(systems: Sequence[str]) -> str:
    """Return the batch system that is asked for."""
    if len(systems) > 1:
        flags = [f"--{name}" for name in systems]
        raise click.UsageError(
            f"{' and '.join(flags)} exclude each other: a script is for one batch system. "
            "Print one script for each."
        )
    return systems[0] if systems else "slurm"


def _check_options(system: str, plan_file: Path) -> None:
    """Refuse options that contradict each other, or that a script of this kind has no use for."""
    if str(plan_file) == "-":
        raise click.UsageError("jobs read the plan when they run: PLAN is a file, not -.")
    if _is_given("time") and _is_given("time_factor"):
        raise click.UsageError("--time and --time-factor exclude each other: leave one out.")
    given = click.get_current_context().params
    if system == "k8s":
        _check_for_kubernetes(plan_file, given["image"], given["claim"])
    elif given["image"] is not None or given["claim"]:
        raise click.UsageError(f"--image and --claim are for --k8s, not for --{system}.")
    elif given["option"] and not given["option"][0].startswith("-"):
        raise click.UsageError(
            f"--option {given['option'][0]}: expected an option of the command that submits, such "
            "as --option=--qos=long."
        )


def _check_for_kubernetes(
    plan_file: Path, image: str | None, claims: Sequence[tuple[str, str]]
) -> None:
    for name, instead in _NOT_FOR_KUBERNETES.items():
        if _is_given(name):
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is not for --k8s: {instead}. Leave {flag} out.")
    if image is None:
        raise click.UsageError("--k8s needs the --image that jobs run in.")
    folders = {folder.rstrip("/") for _, folder in claims} - {str(Path(_MOUNTED).parent)}
    if len(folders) < len(claims):
        raise click.UsageError(
            "--claim: two volumes cannot be mounted at one folder, and the plan is mounted at "
            f"{Path(_MOUNTED).parent}. Give each --claim a folder of its own."
        )
    size = plan_file.stat().st_size
    if size > _CONFIG_MAP:
        raise click.UsageError(
            f"{plan_file} has {size:,} bytes, and --k8s hands the plan to jobs in a ConfigMap, "
            f"which holds {_CONFIG_MAP:,}. Plan fewer arrays at a time."
        )


def _is_given(name: str) -> bool:
    context = click.get_current_context()
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _stage_job(
    plan: Plan, number: int, stage: PlanStage, file: str, parts: int, factor: float
) -> BatchJob:
    count = max(min(stage.tasks, parts), 1)  # even without tasks: it starts the job
    rounds = ceil(ceil(stage.tasks / count) / plan.threads_per_process)
    each = stage.work(plan.model) / max(stage.busy, 1)
    return BatchJob(
        f"zarr-stage-{number}",
        f'run {file} --stage {number} --part "$part/{count}"',
        count,
        plan.threads_per_process,
        _mebibytes(plan.max_mem),
        _minutes(factor * rounds * each),
    )


def _finish_job(plan: Plan, file: str, factor: float, *, verify: bool) -> BatchJob:
    objects = sum(member.target.meta.grid.ncells for member in plan.members)
    threads = plan.threads_per_process if verify else 1
    compares = factor * 2 * sum(stage.work(plan.model) for stage in plan.stages) / threads
    return BatchJob(
        "zarr-finish",
        f"finish {file}" + (f" --verify --threads {threads}" if verify else ""),
        1,
        threads,
        _mebibytes((plan.max_mem if verify else 0) + objects * _RECEIPT),
        _minutes(objects / _LISTED + (compares if verify else 0)),
    )


def _mebibytes(needed: int) -> int:
    return ceil((needed + _IDLE) / 2**20)


def _minutes(seconds: float) -> int:
    return max(ceil(seconds / 60), _LEAST_MINUTES)
