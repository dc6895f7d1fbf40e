"""Receipts as `zarr_dask.verify` takes them: of a manifest, of jobs and outputs that are open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from zarr_dask.array import Array
from zarr_dask.errors import ManifestError, ResumeError
from zarr_dask.formats.base import Limits, ancestors, prefix_of, read_documents, where
from zarr_dask.hierarchy import is_shown_first
from zarr_dask.jobs.resume import is_done, sizes_of
from zarr_dask.jobs.verify.outputs import receipts_of_outputs
from zarr_dask.journal import (
    LAST,
    STAGES,
    Job,
    Journal,
    Place,
    default_place,
    given_place,
    open_journals,
)
from zarr_dask.manifest import Manifest
from zarr_dask.receipts import StoredObject, collect
from zarr_dask.stores.base import Store
from zarr_dask.stores.urls import Location

__all__ = ["OpenJobs", "Receipted", "ReceiptedObject", "sha256_of"]


class ReceiptedObject(Protocol):
    """One stored object as it was written."""

    @property
    def key(self) -> str:
        """Its key, below the root of the store."""
        ...

    @property
    def nbytes(self) -> int:
        """Encoded bytes."""
        ...

    @property
    def crc32c(self) -> int:
        """CRC-32C of all of them."""
        ...


def sha256_of(one: ReceiptedObject) -> str | None:
    """Of the bytes as they were written, if the receipt has it."""
    found = getattr(one, "sha256", None)
    return None if found is None else str(found)


@runtime_checkable
class Receipted(Protocol):
    """What jobs have stored, such as a manifest."""

    @property
    def objects(self) -> Iterable[ReceiptedObject]:
        """Stored objects; metadata documents may be among them."""
        ...

    @property
    def empty(self) -> Collection[str]:
        """Keys of objects that are absent on purpose."""
        ...


@dataclass(frozen=True)
class OpenJobs:
    """The jobs that write to a node, or below it, and have not ended."""

    store: Store
    path: str
    """Full path of the node."""
    arrays: tuple[Array, ...]
    """That node, or those below it."""
    journal: Location | None
    """Where jobs and outputs keep their journals that do not lie beside the hierarchy."""

    def __iter__(self) -> Iterator[tuple[str, Journal, Job]]:
        """Each with the path of what it writes."""
        yield from self._beside()
        yield from self._elsewhere()

    def receipts(self) -> Manifest:
        """What jobs have stored that have not ended, and ranks of outputs that are open.

        Raises
        ------
        ManifestError
            If there are none.
        """
        objects: list[StoredObject] = []
        empty: set[str] = set()
        found = False
        for array in self.arrays:
            prefix = array.node_format.data_prefix(array.path)
            for journal, job in self._at(array.path):
                receipts = collect(journal.receipts(), job.creation)
                objects += (replace(r, key=prefix + r.key) for r in receipts.objects.values())
                empty |= {prefix + key for key in receipts.empty}
                found = True
        for kept in receipts_of_outputs(self.store, (a.path for a in self.arrays), self.journal):
            objects += kept.objects
            empty |= kept.empty
            found = True
        if not found:
            raise ManifestError(
                f"deep='receipts': there are no receipts for {where(self.store, self.path)}. Jobs "
                "that have ended keep them only in a manifest: give manifest=."
            )
        return Manifest(tuple(objects), frozenset(empty))

    def is_done(self, path: str, journal: Journal, job: Job) -> bool:
        """Whether nothing is left of a job but its journal: it died when that was to be removed.

        What lies between the stages of a rechunking may be left besides: such are not done.
        """
        if job.ended:
            return True
        array = next((one for one in self.arrays if one.path == path), None)
        if array is None or journal.is_held() or job.swap or job.facts.get(STAGES, 1) != 1:
            return False
        if STAGES in job.facts:
            found = collect(journal.receipts(), f"{job.creation}{LAST}", sizes_of(array))
            return _has_documents(array, job) and len(found) == job.objects
        keeps_none = job.creates and not job.resume and not is_shown_first(array.store)
        return (keeps_none and _has_documents(array, job)) or is_done(journal, job, array)

    def _beside(self) -> Iterator[tuple[str, Journal, Job]]:
        """Jobs with journals beside the hierarchy, by the path of what they write."""
        place = default_place(self.store, self.path)
        if place is None:
            return
        keys = [key for key in place.store.list(place.prefix) if "/__job-" in f"/{key}"]
        for folder in sorted({key[: f"/{key}".rindex("/__job-")] for key in keys}):
            path = f"{self.path}/{folder[len(place.prefix) :]}".strip("/")
            for journal, job in open_journals(Place(place.store, folder)):
                yield path, journal, job

    def _elsewhere(self) -> Iterator[tuple[str, Journal, Job]]:
        """The same of the journal that was named, of arrays that exist and groups around them."""
        if self.journal is None:
            return
        paths = {self.path, *(one.path for one in self.arrays)}
        paths |= {above for one in self.arrays for above in ancestors(one.path)}
        for path in sorted(one for one in paths if f"{one}/".startswith(prefix_of(self.path))):
            for journal, job in self._given(path):
                yield path, journal, job

    def _given(self, path: str) -> list[tuple[Journal, Job]]:
        """Jobs at a node whose journals are at the place that was named."""
        if self.journal is None:
            return []
        try:
            return open_journals(given_place(self.journal, self.store, path))
        except ResumeError:  # the place is in the node: no job there can have used it
            return []

    def _at(self, path: str) -> Iterator[tuple[Journal, Job]]:
        """Jobs that write to a node, wherever their journals are."""
        place = default_place(self.store, path)
        if place is not None:
            yield from open_journals(place)
        yield from self._given(path)


def _has_documents(array: Array, job: Job) -> bool:
    """Whether the documents are there that a job writes last, just as it would write them."""
    there = read_documents(array.store, list(job.documents), Limits())
    written = [there[key] == text.encode() for key, text in job.documents.items()]
    return bool(written) and all(written)
