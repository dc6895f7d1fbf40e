"""Error messages about a node that a job has not finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zarr_dask.errors import JournalError, NodeNotFoundError, StoreError
from zarr_dask.formats.base import ancestors, prefix_of
from zarr_dask.journal.journal import LAST, STAGES, TARGETS, JobRecord, Journal
from zarr_dask.journal.location import JOB, JournalLocation, default_place, open_journals
from zarr_dask.journal.receipts import MostReceipts
from zarr_dask.stores.base import Store
from zarr_dask.stores.put_tags import Version, versions_below

__all__ = ["explain_incomplete", "jobs_creating"]


def explain_incomplete(error: NodeNotFoundError, store: Store, path: str) -> NodeNotFoundError:
    """Return the error, with a hint if an unfinished job creates the node."""
    try:
        found = next(jobs_creating(store, path), None)
        below = [] if found else list(_jobs_below(store, path))
    except (StoreError, JournalError):
        return error  # what was asked for was not there; that is all that can be said
    if below:
        return NodeNotFoundError(error.where, error.looked_for, _what_is_below(below))
    if found is None:
        return error
    journal, job = found
    prefix = job.data or prefix_of(path)
    try:
        if job.extra.get(STAGES):
            hint = _what_is_left(journal, job)
        else:
            hint = _what_is_missing(journal, job, versions_below(store, prefix))
    except JournalError as reason:
        hint = f"A job that began to create it has not ended: {reason}"
    return NodeNotFoundError(error.where, error.looked_for, hint)


def jobs_creating(store: Store, path: str) -> Iterator[tuple[Journal, JobRecord]]:
    """Yield the open jobs that create a node, alone or with others below a group above it.

    Jobs with a journal elsewhere (``journal=``) are not found.
    """
    place = default_place(store, path)
    if place is None:
        return
    root = place.prefix.removesuffix(prefix_of(path))
    if not any(place.store.list_dir(root)):
        return  # no job writes to this hierarchy
    for above in (path, *reversed(ancestors(path))):
        for journal, job in open_journals(JournalLocation(place.store, root + prefix_of(above))):
            if job.creates and (above == path or _makes(job, path)):
                yield journal, job


def _jobs_below(store: Store, path: str) -> Iterator[tuple[str, JobRecord]]:
    """Yield path and record of the open jobs that create nodes below one, as those of a dataset."""
    place = default_place(store, path)
    if place is None or not place.store.list_dir(place.prefix).prefixes:
        return
    keys = (key[len(place.prefix) :] for key in place.store.list(place.prefix))
    paths = {key.partition(f"/{JOB}")[0] for key in keys if f"/{JOB}" in key}
    for below in sorted(paths):
        folder = JournalLocation(place.store, place.prefix + prefix_of(below))
        yield from ((below, job) for _, job in open_journals(folder) if job.creates)


def _what_is_below(jobs: list[tuple[str, JobRecord]]) -> str:
    """Return the hint for a group that becomes visible with the nodes below it."""
    names = sorted({path for path, _ in jobs})
    begun = min(job.begun for _, job in jobs)
    named = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    return (
        f"A job that began to create nodes below it at {begun} has not ended, or is still running: "
        f"{named}. The same call with resume=True ends it, and resume=False begins anew."
    )


_MOST_NAMED = 10
"""Names of nodes that an error lists at most."""


def _makes(job: JobRecord, path: str) -> bool:
    """True if a job of several arrays makes the node at a path below its own node."""
    targets = job.extra.get(TARGETS, [path])
    return bool(job.extra.get(STAGES)) and isinstance(targets, list) and path in targets


def _what_is_left(journal: Journal, job: JobRecord) -> str:
    """Return the hint for a job with receipts of several stages or arrays."""
    done: set[tuple[str, str]] = set()
    most = MostReceipts(journal.url, job.objects)
    for receipt in journal.receipts():
        if "-" not in receipt.run_id or receipt.run_id.endswith(LAST):
            keys = (*(item.key for item in receipt.objects), *receipt.empty)
            done.update((receipt.run_id, key) for key in keys)
            most.check(len(done))
    return (
        f"A job that began to create it at {job.begun} has not ended, or is still running: "
        f"{len(done)} of at most {job.objects} stored objects have receipts. The same call with "
        f"resume=True does what is missing and ends it. (Its journal: {journal.url})"
    )


def _what_is_missing(journal: Journal, job: JobRecord, listed: Mapping[str, Version]) -> str:
    begun = f"A job that began to create it at {job.begun} has not ended, or is still running: "
    if not job.resume:
        return (
            f"{begun}{len(listed)} stored objects of at most {job.objects} are there. It keeps no "
            "receipts, so that the same call must begin anew; with resume=True it would not have "
            f"to. (Its journal: {journal.url})"
        )
    done = len(journal.valid_receipts(listed, job))
    how = "resume=True" if job.resume == "token" else f"resume={job.token.partition(':')[2]!r}"
    return (
        f"{begun}{done} of {job.objects} stored objects have valid receipts, "
        f"{job.objects - done} are missing. The same call with {how} writes those and ends it. "
        f"(Its journal: {journal.url})"
    )
