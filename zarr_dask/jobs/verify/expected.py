"""Receipts for `zarr_dask.verify`: of a manifest, of open jobs and of outputs of simulations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from zarr_dask.array.array import Array
from zarr_dask.errors import (
    ManifestError,
    MetadataChangedError,
    MetadataError,
    NodeNotFoundError,
    ResumeError,
    WriterNotFoundError,
)
from zarr_dask.formats.base import Limits, ancestors, prefix_of, read_documents, where
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.hierarchy.edit import puts_metadata_first
from zarr_dask.jobs.engine.resume import is_done, versions_of
from zarr_dask.jobs.simulation.output import Output, open_output
from zarr_dask.jobs.simulation.progress import OutputProgress
from zarr_dask.journal import (
    LAST,
    STAGES,
    JobRecord,
    Journal,
    JournalLocation,
    default_place,
    given_place,
    open_journals,
)
from zarr_dask.journal.manifest import Manifest
from zarr_dask.journal.receipts import MostReceipts, StoredObject, collect
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.wrappers.base import is_read_only

__all__ = ["ExpectedObjects", "OpenJobs", "ReceiptedObject", "sha256_of"]


class ReceiptedObject(Protocol):
    """One stored object as it was written."""

    @property
    def key(self) -> str:
        """Key below the root of the store."""
        ...

    @property
    def nbytes(self) -> int:
        """Encoded bytes."""
        ...

    @property
    def crc32c(self) -> int:
        """CRC-32C of the encoded bytes."""
        ...


def sha256_of(one: ReceiptedObject) -> str | None:
    """Return the SHA-256 of the bytes as written, if the receipt has it."""
    found = getattr(one, "sha256", None)
    return None if found is None else str(found)


@runtime_checkable
class ExpectedObjects(Protocol):
    """Receipts of jobs, such as a manifest."""

    @property
    def objects(self) -> Iterable[ReceiptedObject]:
        """Stored objects; metadata may be among them."""
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
    """The node itself, or the arrays below it."""
    journal: Location | None
    """Location of journals of jobs and outputs that are not beside the hierarchy."""

    def __iter__(self) -> Iterator[tuple[str, Journal, JobRecord]]:
        """Yield each job with its journal and the path of its target."""
        yield from self._beside()
        yield from self._elsewhere()

    def receipts(self) -> Manifest:
        """Return the receipts of jobs that have not ended, and of ranks of open outputs.

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
                most = MostReceipts(journal.url, job.objects)
                receipts = collect(journal.receipts(), job.run_id, most=most)
                objects += (replace(r, key=prefix + r.key) for r in receipts.objects.values())
                empty |= {prefix + key for key in receipts.empty}
                found = True
        for kept in _receipts_of_outputs(self.store, (a.path for a in self.arrays), self.journal):
            objects += kept.objects
            empty |= kept.empty
            found = True
        if not found:
            raise ManifestError(
                f"deep='receipts': there are no receipts for {where(self.store, self.path)}. Jobs "
                "that have ended keep them only in a manifest: give manifest=."
            )
        return Manifest(tuple(objects), frozenset(empty))

    def is_done(self, path: str, journal: Journal, job: JobRecord) -> bool:
        """True if a job died when only its journal was left.

        A job of several stages may have left intermediate arrays, so it is never done.
        """
        if job.ended:
            return True
        array = next((one for one in self.arrays if one.path == path), None)
        if array is None or journal.is_locked() or job.swap or job.extra.get(STAGES, 1) != 1:
            return False
        if STAGES in job.extra:
            listed, most = versions_of(array), MostReceipts(journal.url, job.objects)
            found = collect(journal.receipts(), f"{job.run_id}{LAST}", listed, most)
            return _has_documents(array, job) and len(found) == job.objects
        keeps_none = job.creates and not job.resume and not puts_metadata_first(array.store)
        return (keeps_none and _has_documents(array, job)) or is_done(journal, job, array)

    def _beside(self) -> Iterator[tuple[str, Journal, JobRecord]]:
        """Yield jobs with journals beside the hierarchy, by the path of their target."""
        place = default_place(self.store, self.path)
        if place is None:
            return
        keys = [key for key in place.store.list(place.prefix) if "/__job-" in f"/{key}"]
        for folder in sorted({key[: f"/{key}".rindex("/__job-")] for key in keys}):
            path = f"{self.path}/{folder[len(place.prefix) :]}".strip("/")
            for journal, job in open_journals(JournalLocation(place.store, folder)):
                yield path, journal, job

    def _elsewhere(self) -> Iterator[tuple[str, Journal, JobRecord]]:
        """Yield jobs with journals at the given location, for arrays and their parent groups."""
        if self.journal is None:
            return
        paths = {self.path, *(one.path for one in self.arrays)}
        paths |= {above for one in self.arrays for above in ancestors(one.path)}
        for path in sorted(one for one in paths if f"{one}/".startswith(prefix_of(self.path))):
            for journal, job in self._given(path):
                yield path, journal, job

    def _given(self, path: str) -> list[tuple[Journal, JobRecord]]:
        """Return the jobs at a node whose journals are at the given location."""
        if self.journal is None:
            return []
        try:
            return open_journals(given_place(self.journal, self.store, path))
        except ResumeError:  # the location is inside the node, so no job there can have used it
            return []

    def _at(self, path: str) -> Iterator[tuple[Journal, JobRecord]]:
        """Yield the jobs that write to a node, with journals at either location."""
        place = default_place(self.store, path)
        if place is not None:
            yield from open_journals(place)
        yield from self._given(path)


def _has_documents(array: Array, job: JobRecord) -> bool:
    """True if the metadata that a job writes last exists, exactly as the job would write it."""
    there = read_documents(array.store, list(job.documents), Limits())
    written = [there[key] == text.encode() for key, text in job.documents.items()]
    return bool(written) and all(written)


_NO_OUTPUT = (
    WriterNotFoundError,
    ResumeError,  # the journal lies inside the target
    NodeNotFoundError,  # the state of the arrays is checked elsewhere
    MetadataError,
    MetadataChangedError,
)


def _receipts_of_outputs(
    store: Store, paths: Iterable[str], journal: Location | None
) -> list[Manifest]:
    """Return the receipts of the outputs that some arrays belong to, found by their parent groups.

    Objects that are not complete along the steps are left out, because their rank may write them
    again at any time.
    """
    store = without_consolidated(store)
    while is_read_only(store):
        store = without_consolidated(store.store)
    groups = sorted({above for path in paths for above in ancestors(path)})
    found = [_output_at(store, group, journal) for group in groups]
    return [_receipts(output) for output in found if output is not None]


def _output_at(store: Store, path: str, journal: Location | None) -> Output | None:
    places: list[Location | None] = [] if journal is None else [journal]
    if default_place(store, path) is not None:
        places.append(None)
    for place in places:
        with suppress(*_NO_OUTPUT):
            return open_output(store, path, place, None)
    return None


def _receipts(output: Output) -> Manifest:
    survey = OutputProgress(output)
    survey.update()
    objects: list[StoredObject] = []
    empty: set[str] = set()
    for name, index, receipt in survey.receipts():
        series = output.series[name]
        if receipt.stop < min(series.steps.start(index + 1), series.steps.extent):
            continue
        for coords, nbytes, checksum in receipt.objects:
            key = series.key(index, coords)
            if nbytes:
                objects.append(StoredObject(key, nbytes, checksum))
            else:
                empty.add(key)
    return Manifest(tuple(objects), frozenset(empty))
