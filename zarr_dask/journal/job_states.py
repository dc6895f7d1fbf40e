"""Jobs that have left something beside a hierarchy: running, killed, or ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zarr_dask.errors import MetadataError
from zarr_dask.formats.base import Limits, load_json, read_documents
from zarr_dask.journal.finished import is_record
from zarr_dask.journal.journal import Journal
from zarr_dask.journal.location import JournalLocation, default_place, open_journals
from zarr_dask.journal.open_outputs import OUTPUT
from zarr_dask.stores.base import Store

__all__ = ["JobState", "job_states"]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job that is running, was killed, or has ended."""

    path: str
    """Path of its node, below the one that was asked for."""
    state: str
    """``"running"``, ``"not ended"``, ``"ended"``, or ``"open"`` for the output of a simulation."""
    kind: str
    """Kind of job, such as ``"write"``; empty if its record does not say."""
    time: str
    """Time of its end, else of its beginning, in UTC; empty if its record does not say."""
    objects: int = 0
    """Number of stored objects that it writes; 0 if its record does not say."""
    branch: str = ""
    """Branch of its own that it commits to until its end, where its store has branches."""


def job_states(store: Store, path: str) -> tuple[JournalLocation | None, list[JobState]]:
    """Return where jobs keep their records, and those that write at or below a node.

    The place is None for memory, archives and the roots of buckets. Jobs with a journal elsewhere
    (``journal=``) are not found.
    """
    place = default_place(store, path)
    if place is None:
        return None, []
    return place, sorted(_states(place), key=lambda one: (one.path, one.time))


def _states(place: JournalLocation) -> Iterator[JobState]:
    folders = set()
    for key in place.store.list(place.prefix):
        below = key[len(place.prefix) :]
        folder, _, name = f"/{below}".rpartition("/")
        if below == OUTPUT or below.endswith(f"/{OUTPUT}"):
            yield JobState(below[: -len(OUTPUT)].strip("/"), "open", "simulation", "")
        elif "/__job-" in f"/{below}":
            folders.add(below[: f"/{below}".rindex("/__job-")])
        elif is_record(name):
            yield JobState(folder.strip("/"), "ended", "", _ended(place.store, key))
    for below in folders:
        for journal, job in open_journals(JournalLocation(place.store, place.prefix + below)):
            state = _state(journal)
            facts = (state, job.kind, job.begun, job.objects, job.session)
            yield JobState(below.strip("/"), *facts)


def _state(journal: Journal) -> str:
    return "running" if journal.is_locked() else "not ended"


def _ended(store: Store, key: str) -> str:
    text = read_documents(store, [key], Limits())[key]
    try:
        return "" if text is None else str(load_json(store, key, text).get("ended", ""))
    except MetadataError:
        return ""
