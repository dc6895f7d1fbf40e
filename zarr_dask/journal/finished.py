"""Records of finished jobs, so that the same call answers instead of failing.

A batch system starts a job again after its end. With ``resume=`` the second call finds a small
record beside the hierarchy, with the token of the job and its report, and has nothing to do::

    run.zarr.zarr-dask/ocean/salt/__done-<16 hex digits>.json

The record holds as long as the metadata of the node are those that the job has written, but for
lengths that have grown: a script that makes an array and appends to it may be begun again. A job
that replaces the node discards it, as it discards journals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from zarr_dask.errors import MetadataError, StoreError
from zarr_dask.formats.base import Limits, load_json, read_documents
from zarr_dask.journal.journal import JobRecord, Journal
from zarr_dask.stores.base import Store

__all__ = [
    "FinishedJob",
    "discard_record",
    "finished_job",
    "is_record",
    "is_still_there",
    "put_output_record",
    "put_record",
    "record_end",
    "record_of",
    "was_ended",
]

_FORMAT = "zarr-dask finished job 1"
_NAME = "__done-"


@dataclass(frozen=True)
class FinishedJob:
    """A job that has ended."""

    ended: str
    """Time of its end, in UTC."""
    report: Mapping[str, Any]
    """Fields of its report."""
    documents: Mapping[str, str]
    """Metadata that it has written, by key."""


def record_end(journal: Journal, job: JobRecord | None, report: Mapping[str, Any]) -> None:
    """Record the end of a job that makes an array and may be resumed; see `put_record`."""
    if job is None or not (job.resume and job.creates):
        return
    put_record(journal, job.token, report, job.documents)


def put_record(
    journal: Journal, token: str, report: Mapping[str, Any], documents: Mapping[str, str]
) -> None:
    """Record the end of a job beside its journal; a store that fails here is passed over."""
    place = journal.prefix.rstrip("/").rpartition("/")[0]
    with suppress(StoreError):
        key = _key(f"{place}/" if place else "", token)
        journal.put_outside(key, _as_json(token, report, documents))


def put_output_record(
    records: Store,
    prefix: str,
    token: str,
    report: Mapping[str, Any],
    documents: Mapping[str, str],
) -> None:
    """Record the end of the output of a simulation, which has no journal; see `put_record`."""
    with suppress(StoreError):
        records.set(_key(prefix, token), [_as_json(token, report, documents)])


def discard_record(records: Store, prefix: str, token: str) -> None:
    """Remove the record of a job that begins anew."""
    records.delete(_key(prefix, token))


def _as_json(token: str, report: Mapping[str, Any], documents: Mapping[str, str]) -> bytes:
    record = {
        "format": _FORMAT,
        "token": token,
        "documents": dict(documents),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "report": dict(report),
    }
    return json.dumps(record, indent=1).encode()


def record_of(records: Store, prefix: str, token: str) -> FinishedJob | None:
    """Return the record of the job with a token; None if there is none."""
    key = _key(prefix, token)
    text = read_documents(records, [key], Limits())[key]
    if text is None:
        return None
    try:
        record = load_json(records, key, text)
    except MetadataError:
        return None  # nothing that this package has written
    report, documents = record.get("report"), record.get("documents")
    if record.get("format") != _FORMAT or record.get("token") != token:
        return None
    if not isinstance(report, dict) or not isinstance(documents, dict):
        return None
    return FinishedJob(str(record.get("ended", "")), report, documents)


def is_record(name: str) -> bool:
    """True for the file name of a record."""
    return name.startswith(_NAME) and name.endswith(".json")


def was_ended(journal: Journal) -> bool:
    """True if the job of a journal that is gone has ended, by a process that had joined it."""
    if journal.job() is not None:
        return False
    place = journal.prefix.rstrip("/").rpartition("/")[0]
    return record_of(journal.store, f"{place}/" if place else "", journal.token) is not None


def finished_job(records: Store, prefix: str, store: Store, job: JobRecord) -> FinishedJob | None:
    """Return the record of the same job, if what it has made is still there; None if not.

    Parameters
    ----------
    records, prefix
        Where the journals of the node are.
    store
        Of the node.
    job
        The job as it is if it starts now.
    """
    found = record_of(records, prefix, job.token)
    if found is None or dict(found.documents) != dict(job.documents):
        return None
    return found if is_still_there(store, job.documents) else None


def is_still_there(store: Store, documents: Mapping[str, str]) -> bool:
    """True if a store has these metadata, but for lengths that have grown."""
    present = read_documents(store, list(documents), Limits())
    return all(_is_still(store, name, present[name], said) for name, said in documents.items())


def _is_still(store: Store, key: str, present: bytes | None, said: str) -> bool:
    """True if a document is the one that a job has written, or says only of more elements."""
    if present is None or present == said.encode():
        return present is not None
    try:
        now, then = (dict(load_json(store, key, text)) for text in (present, said.encode()))
    except MetadataError:
        return False
    length, before = now.pop("shape", None), then.pop("shape", None)
    if now != then or not isinstance(length, list) or not isinstance(before, list):
        return False
    return len(length) == len(before) and all(
        type(new) is int and new >= old for new, old in zip(length, before, strict=True)
    )


def _key(prefix: str, token: str) -> str:
    return f"{prefix}{_NAME}{sha256(token.encode()).hexdigest()[:16]}.json"
