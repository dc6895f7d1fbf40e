"""``zarr-dask status URL``: the jobs that have left something beside a hierarchy."""

from __future__ import annotations

from dataclasses import asdict

from zarr_dask.cli.errors import FINDING
from zarr_dask.cli.output import answer, echo, terminal_safe
from zarr_dask.cli.settings import storage_options
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.journal.job_states import JobState, job_states

__all__ = ["jobs_at"]

_SAID = {
    "running": "running",
    "not ended": "not ended: killed, or running on another host; the same call with resume=True "
    "(--resume) ends it",
    "ended": "ended; the same call with resume=True (--resume) answers with its report",
    "open": "output of a simulation, not ended (zarr_dask.Writer.attach "
    "continues it, its finish() or zarr_dask.Writer.abandon ends it)",
}

_REMOVE = (
    "the data do not need that folder, and it may be removed when no job is running: killed jobs "
    "then begin anew"
)
_KEEP = (
    "keep that folder until the simulation has ended: without it no rank can attach, and stored "
    "steps that are not published yet cannot be shown"
)


def jobs_at(url: str) -> None:
    """Print the jobs at and below a node, and what their folder is."""
    store, path = resolve_node(url, "", storage_options(url))
    place, jobs = job_states(store, path)
    where = store.url if not path else f"{store.url}/{path}"
    left = [one for one in jobs if one.state != "ended"]
    said = f"{len(left)} of {len(jobs)} jobs have not ended" if jobs else "no jobs are recorded"
    echo(f"{terminal_safe(where)}: {said}")
    if not jobs and not any(store.list_dir(path and f"{path}/")):
        echo("nothing is stored there")
    if place is not None and not jobs:
        echo("a job that was given the URL of an array within it is found by that URL")
    for one in jobs:
        echo(terminal_safe(_line(one)))
    if place is None:
        echo("jobs keep no records beside it: it is an archive, in memory, or the root of a bucket")
    elif jobs:
        kept = any(one.state == "open" for one in jobs)
        echo(f"their records are in {terminal_safe(place.url)}; {_KEEP if kept else _REMOVE}")
    state = {"target": where, "records": place and place.url, "jobs": [asdict(one) for one in jobs]}
    answer(state, FINDING if left else 0)


def _line(job: JobState) -> str:
    facts = [one for one in (job.kind, job.time) if one]
    if job.objects:
        facts.append(pluralize(job.objects, "stored object"))
    if job.branch:
        facts.append(f"on the branch {job.branch}")
    return f"  {job.path or '/'}  {', '.join(facts)}: {_SAID[job.state]}"
