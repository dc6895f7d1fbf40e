"""Scripts that submit a plan to a batch system: Slurm, PBS, LSF, and Kubernetes.

A script is text for ``sh``. It submits an array of jobs for each stage, one stage after the other,
and a job that finishes the plan. Submitting it again does what is missing, because every part
begins by reading its receipts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

__all__ = ["SCRIPTS", "BatchJob", "Submission"]


@dataclass(frozen=True)
class BatchJob:
    """One stage, or the end of a plan."""

    name: str
    arguments: str
    """Arguments of ``zarr-dask``, quoted; ``$part`` is the number of the part."""
    parts: int
    cpus: int
    mebibytes: int
    minutes: int


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A plan and the resources of its jobs."""

    plan: str
    """Absolute path of the plan's file."""
    jobs: Sequence[BatchJob]
    """The stages in order, then the end."""
    program: str
    """Command that runs ``zarr-dask``, quoted."""
    logs: str
    key: str
    """Name that no other plan has, for systems with one job of a name."""
    setup: Sequence[str] = ()
    """Commands that each job runs first."""
    account: str | None = None
    partition: str | None = None
    throttle: int | None = None
    """Maximum number of parts that run at a time."""
    array_limit: int = 1000
    """Maximum number of jobs in an array."""
    retries: int = 3
    """Times that a part is done again after it has failed."""
    options: Sequence[str] = ()
    """Further options of the command that submits."""
    image: str | None = None
    """Container image, for Kubernetes."""
    claims: Sequence[tuple[str, str]] = ()
    """Names of persistent volume claims and the folders to mount them at, for Kubernetes."""

    def arrays(self, job: BatchJob) -> Iterator[tuple[int, int]]:
        """Yield the number of jobs of each array of a stage, and the parts before them."""
        for before in range(0, job.parts, self.array_limit):
            yield min(self.array_limit, job.parts - before), before

    def header(self, system: str) -> list[str]:
        """Return the first lines of a script."""
        return [
            "#!/bin/sh",
            _comment(f"Submits {self.plan} to {system}."),
            f"# A part that fails is done again, up to {self.retries} times. Run this script again",
            "# to do what is missing for any other reason; what is done is not repeated.",
            "set -eu",
        ]

    def command(self, job: BatchJob) -> str:
        """Return the command of a part."""
        return f"{self.program} {job.arguments}"


def _comment(text: str) -> str:
    """Return a comment; names of files may contain anything."""
    return "# " + "".join(c if c.isprintable() else "?" for c in text)


def _words(*words: str | None) -> str:
    return " ".join(shlex.quote(word) for word in words if word is not None)


def _option(name: str, value: object) -> str | None:
    return None if value is None else f"{name}{value}"


def _here(text: str, body: Sequence[str]) -> list[str]:
    """Return a command with its input."""
    return [f"{text} <<'END_OF_JOB'", *body, "END_OF_JOB"]


# --- Slurm ----------------------------------------------------------------------------------------

_WARNING = 120
"""Seconds before its time limit when a part stops and is queued again."""


def _slurm(submission: Submission) -> list[str]:
    """Return the lines of a script for Slurm."""
    lines = [*submission.header("Slurm"), f"mkdir -p {shlex.quote(submission.logs)}"]
    after = ""
    for job in submission.jobs:
        lines += ["", *(["before=$ids"] if after else []), "ids="]
        for count, before in submission.arrays(job):
            array = f"1-{count}" + (f"%{submission.throttle}" if submission.throttle else "")
            warning = min(_WARNING, job.minutes * 15)
            log = "%x-%A_%a.log" if job.parts > 1 else "%x-%j.log"
            options = _words(
                "--parsable",
                f"--job-name={job.name}",
                f"--array={array}" if job.parts > 1 else None,
                f"--cpus-per-task={job.cpus}",
                f"--mem={job.mebibytes}M",
                f"--time={job.minutes}",
                f"--signal=B:USR1@{warning}",
                "--requeue",
                "--open-mode=append",
                f"--output={submission.logs.replace('%', '%%')}/{log}",
                _option("--account=", submission.account),
                _option("--partition=", submission.partition),
                *submission.options,
            )
            body = _slurm_job(submission, job, before, warning)
            lines += _here(f"id=$(sbatch {options}{after}", body)
            lines += [")", 'ids="$ids:${id%%;*}"']
        lines.append(f'echo "{job.name}$ids"')
        after = ' --dependency="afterok$before" --kill-on-invalid-dep=yes'
    return lines


def _slurm_job(submission: Submission, job: BatchJob, before: int, warning: int) -> list[str]:
    """Return the lines of a job.

    The shell forwards signals. It queues the job again itself: Slurm does that only for nodes that
    fail. A part that is cancelled stays cancelled.
    """
    number = ["part=$((${SLURM_ARRAY_TASK_ID:-1} + " + f"{before}))"]
    return [
        "#!/bin/sh",
        *submission.setup,
        *(number if job.parts > 1 else ["part=1"] if "$part" in job.arguments else []),
        f"{submission.command(job)} &",
        "process=$!",
        "# the id of the last part is that of its array, too, and names all parts",
        "job=$SLURM_JOB_ID",
        'test -z "${SLURM_ARRAY_JOB_ID:-}" || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID',
        "# a part that is cancelled stays cancelled",
        "again() {",
        '    state=$(squeue --noheader --job "$job" --format=%T)',
        '    test "$state" = RUNNING &&',
        f'        test "${{SLURM_RESTART_COUNT:-0}}" -lt {submission.retries} &&',
        '        scontrol requeue "$job"',
        "}",
        "# the time limit comes: stop after the objects at hand",
        f"trap 'kill -TERM $process; {{ sleep {max(warning // 2, 5)}; again; }} &' USR1",
        "trap 'kill -TERM $process' TERM",
        "code=0",
        'wait "$process" || code=$?',
        "# a signal ends wait, not the process",
        'while kill -0 "$process" 2>/dev/null; do',
        "    code=0",
        '    wait "$process" || code=$?',
        "done",
        'if test "$code" -ne 0 && test "$code" -ne 2; then',
        '    echo "ended with code $code" >&2',
        "    again",
        "fi",
        'exit "$code"',
    ]


# --- PBS and LSF ----------------------------------------------------------------------------------


def _retried(submission: Submission, job: BatchJob, index: str, before: int) -> list[str]:
    """Return the lines of a job that does its part again by itself."""
    return [
        "#!/bin/sh",
        *submission.setup,
        *([f"part=$(({index} + {before}))"] if "$part" in job.arguments else []),
        "tries=0",
        f"until {submission.command(job)}; do",
        "    code=$?",
        "    tries=$((tries + 1))",
        f'    if test "$code" -eq 2 || test "$tries" -gt {submission.retries}; then',
        '        exit "$code"',
        "    fi",
        "done",
    ]


def _pbs(submission: Submission) -> list[str]:
    """Return the lines of a script for PBS Professional and OpenPBS."""
    lines = [*submission.header("PBS"), f"mkdir -p {shlex.quote(submission.logs)}"]
    after = ""
    for job in submission.jobs:
        lines += ["", *(["before=$ids"] if after else []), "ids="]
        for count, before in submission.arrays(job):
            array = f"1-{count}" + (f"%{submission.throttle}" if submission.throttle else "")
            hours, minutes = divmod(job.minutes, 60)
            words = [
                *("-N", job.name),
                *(("-J", array) if count > 1 else ()),
                *("-l", f"select=1:ncpus={job.cpus}:mem={job.mebibytes}mb"),
                *("-l", f"walltime={hours:02}:{minutes:02}:00"),
                *("-r", "y", "-j", "oe", "-o", submission.logs),
                *(() if submission.account is None else ("-A", submission.account)),
                *(() if submission.partition is None else ("-q", submission.partition)),
                *submission.options,
            ]
            body = _retried(submission, job, "${PBS_ARRAY_INDEX:-1}", before)
            lines += _here(f"id=$(qsub {_words(*words)}{after}", body)
            lines += [")", 'ids="$ids:$id"']
        lines.append(f'echo "{job.name}$ids"')
        after = ' -W depend="afterok$before"'
    return lines


def _lsf(submission: Submission) -> list[str]:
    """Return the lines of a script for LSF."""
    lines = [*submission.header("LSF"), f"mkdir -p {shlex.quote(submission.logs)}"]
    after = ""
    for job in submission.jobs:
        lines += ["", *(["before=$ids"] if after else []), "ids="]
        for count, before in submission.arrays(job):
            array = f"[1-{count}]" + (f"%{submission.throttle}" if submission.throttle else "")
            words = [
                *("-J", job.name + (array if count > 1 else "")),
                *("-n", str(job.cpus), "-W", str(job.minutes), "-M", f"{job.mebibytes}MB"),
                *("-R", f"span[hosts=1] rusage[mem={job.mebibytes}MB]"),
                *("-r", "-o", f"{submission.logs}/%J-%I.log"),
                *(() if submission.account is None else ("-P", submission.account)),
                *(() if submission.partition is None else ("-q", submission.partition)),
                *submission.options,
            ]
            index = "${LSB_JOBINDEX:-1}" if count > 1 else "1"
            body = _retried(submission, job, index, before)
            lines += _here(f"said=$(bsub {_words(*words)}{after}", body)
            lines += [")", "id=${said#*<}", 'ids="$ids${ids:+ && }done(${id%%>*})"']
        lines.append(f'echo "{job.name}: $ids"')
        after = ' -w "$before"'
    return lines


# --- Kubernetes -----------------------------------------------------------------------------------

_WAIT = """\
finished() {
    while :; do
        state=$(kubectl get job "$1" -o 'jsonpath={.status.conditions[?(@.status=="True")].type}')
        case " $state " in
            *" Complete "*) return 0 ;;
            *" Failed "*) echo "job $1 has failed: kubectl logs job/$1" >&2 && return 1 ;;
        esac
        sleep 5
    done
}"""


def _kubernetes(submission: Submission) -> list[str]:
    """Return the lines of a script for Kubernetes.

    Jobs cannot wait for one another, so that the script does.
    """
    plan = shlex.quote(submission.plan)
    lines = [
        *submission.header("Kubernetes, and waits for its end"),
        *_WAIT.splitlines(),
        f"kubectl create configmap zarr-{submission.key} --dry-run=client -o yaml "
        f"--from-file=plan.json={plan} | kubectl apply -f -",
    ]
    for job in submission.jobs:
        name = f"{job.name}-{submission.key}"
        lines += ["", f"kubectl delete job {name} --ignore-not-found"]
        # JSON is YAML, and quotes whatever is in it
        lines += _here(
            "kubectl apply -f -", json.dumps(_manifest(submission, job), indent=2).splitlines()
        )
        lines.append(f"finished {name}")
    return lines


def _manifest(submission: Submission, job: BatchJob) -> Mapping[str, object]:
    """Return the manifest of an indexed job."""
    number = "part=$((JOB_COMPLETION_INDEX + 1)); " if "$part" in job.arguments else ""
    resources = {"cpu": str(job.cpus), "memory": f"{job.mebibytes}Mi"}
    names = dict.fromkeys(name for name, _ in submission.claims)
    volumes = {name: f"claim-{number}" for number, name in enumerate(names)}
    shell = "\n".join([*submission.setup, f"{number}exec {submission.command(job)}"])
    container = {
        "name": "zarr-dask",
        "image": submission.image,
        "command": ["/bin/sh", "-c", shell],
        "resources": {"requests": resources, "limits": {"memory": resources["memory"]}},
        "volumeMounts": [
            {"name": "plan", "mountPath": "/etc/zarr-dask"},
            *({"name": volumes[name], "mountPath": path} for name, path in submission.claims),
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "plan", "configMap": {"name": f"zarr-{submission.key}"}},
            *(
                {"name": volume, "persistentVolumeClaim": {"claimName": name}}
                for name, volume in volumes.items()
            ),
        ],
    }
    parallel = min(job.parts, submission.throttle or job.parts)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{job.name}-{submission.key}"},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.parts,
            "parallelism": parallel,
            "backoffLimit": submission.retries * job.parts,
            "activeDeadlineSeconds": 60
            * job.minutes
            * ceil(job.parts / parallel)
            * (1 + submission.retries),
            "template": {"spec": pod},
        },
    }


SCRIPTS: Mapping[str, Callable[[Submission], list[str]]] = {
    "slurm": _slurm,
    "pbs": _pbs,
    "lsf": _lsf,
    "k8s": _kubernetes,
}
"""Functions that return the lines of a script, by the option of the command line."""
