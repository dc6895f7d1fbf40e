"""Verification of stored data: missing, damaged and unexpected objects.

One listing finds the existing stored objects, and keys that belong to nothing (`orphans`), such as
temporary output of killed writers. The tasks of a `scan` check the objects, on dask's schedulers or
a cluster. The result is a `VerifyReport` (`report`).

Only receipts (`expected`) show which absent objects are absent on purpose. They come from a
manifest of a job, from any object with ``objects`` and ``empty`` (`ExpectedObjects`), or from the
journals of jobs that have not ended.
"""

from __future__ import annotations

import warnings
from array import array as numbers_of
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from zarr_dask._util.arguments import check_bools, check_type
from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask.array.array import Array
from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import (
    GridError,
    JournalError,
    LinkError,
    ListingError,
    ManifestError,
    MetadataError,
    NodeNotFoundError,
)
from zarr_dask.formats.base import Format, ReadOptions, check_listed, where
from zarr_dask.formats.consolidated import consolidated_key, without_consolidated
from zarr_dask.formats.detect import FORMATS
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.key_swap import is_of_other_version, may_have_versions, sweep_versions
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.jobs.engine import find_workers, run_tasks
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.jobs.engine.prices import measuring
from zarr_dask.jobs.verify.expected import ExpectedObjects, OpenJobs, ReceiptedObject, sha256_of
from zarr_dask.jobs.verify.object_states import ObjectStates
from zarr_dask.jobs.verify.orphans import OrphanedKeys, find_leftovers
from zarr_dask.jobs.verify.report import ArrayReport, VerifyReport
from zarr_dask.jobs.verify.scan import (
    STATES,
    CellRuns,
    Depth,
    Finding,
    ObjectScan,
    ScanResult,
    State,
)
from zarr_dask.jobs.write.commit import finish_left_swap
from zarr_dask.journal import (
    output_of,
)
from zarr_dask.journal.manifest import Manifest, ManifestPlace
from zarr_dask.journal.receipts import StoredObject
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ExpectedObjects", "verify"]

_ARRAYS_AT_ONCE = 32
"""Number of arrays checked by one run of tasks; each array is part of each task."""
_MOST_NAMED = 10_000
"""Maximum number of findings that a report names; all are counted."""
_MOST_CELLS = 1 << 30
"""Maximum number of stored objects of one array."""
_LOST = "a receipt says that it has been stored"
_UNKNOWN = "no receipt says that it is empty on purpose"
_OF_VERSION = (
    "no document, and no stored object of the version of the array that is shown. A job with "
    "mode='swap' leaves such ones until it has ended; sweep=True removes them if none is at work, "
    "and none has a journal beside the hierarchy"
)


@in_job()
@takes_habits(component="path")
@explained_by(open_node)
def verify(
    url: Location | Array | Group,
    path: str = "",
    deep: Depth = "index",
    *,
    manifest: ExpectedObjects | str | PathLike[str] | bool | None = None,
    journal: Location | None = None,
    sweep: bool = False,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> VerifyReport:
    """Check every stored object below a location, down to the chunks inside shards.

    Parameters
    ----------
    url, path
        An array or a group, and a path below it.
    deep
        How much is read. ``"index"`` reads the indices of shards, looks which objects are there
        and checks their sizes, but reads no chunk: bytes that changed inside one stay unseen.
        ``"decode"`` decodes every chunk, and with `manifest` compares its bytes as well;
        ``"receipts"`` computes checksums of all bytes and compares them with `manifest`, or else
        with the journals of jobs that have not ended and of open outputs of simulations.
    manifest
        Manifest of the jobs that wrote the arrays, or its path or URL; True for those that are kept
        beside the arrays. With it, an absent object is known to be absent on purpose or lost;
        without it, this is unknown.
    journal
        Value of ``journal=`` of jobs that have not ended, or of an open output of a simulation, so
        that their journals are found. Journals beside the hierarchy are always found.
    sweep
        Remove what killed writers have left, if it is older than an hour: temporary files, and
        unfinished uploads to S3. There need not be a node at the location then.
    client
        A cluster; by default the current client, or else dask's configured scheduler.
    storage_options, read
        As for `zarr_dask.open`.

    Returns
    -------
    VerifyReport
        ``report.ok``, which is also ``bool(report)``, is false if anything is wrong. Absent
        objects alone are not wrong, because they read as the fill value: without receipts a lost
        object cannot be told from one that was never written.

    Raises
    ------
    NodeNotFoundError
        If there is no node.
    ManifestError
        If the manifest is missing or incomplete, or there is nothing to compare with.
    StoreError
        If the store fails; a failed read is not a finding.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> zd.create_array(values, shape=(6,), dtype="i4", chunks=2, codecs=["crc32c"])[...] = range(6)
    >>> values["c/1"] = values["c/1"][:-1] + b"!"
    >>> report = zd.verify(values, deep="decode")
    >>> report.ok, [(f.kind, f.key) for f in report.findings]
    (False, [('checksum', 'c/1')])
    """
    if deep not in get_args(Depth):
        depths = ", ".join(map(repr, get_args(Depth)))
        raise ValueError(f"deep={deep!r}: expected one of {depths}; 'decode' reads every chunk.")
    check_bools(sweep=sweep)
    expected = "a path or URL, or what a job has stored (zarr_dask.Manifest)"
    if not isinstance(manifest, bool):
        check_type("manifest", manifest, str | PathLike | ExpectedObjects, expected)
    with measuring() as measured:
        try:
            job = _VerificationState.of(url, path, deep, storage_options, read)
        except NodeNotFoundError:
            if not sweep:
                raise
            job = _VerificationState.of_leftovers(url, path, deep, storage_options)
            job.journal = journal
            if not job.sweep_leftovers():
                raise
            report = job.report()
        else:
            ended = job.end_swaps() if sweep else 0
            if ended:  # the arrays are others
                job = _VerificationState.of(url, path, deep, storage_options, read)
            job.journal, job.swept = journal, ended
            report = _verified(job, manifest, client, sweep=sweep)
    return replace(report, traffic=measured.traffic)


def _verified(
    job: _VerificationState,
    manifest: ExpectedObjects | str | PathLike[str] | bool | None,
    client: Client | None,
    *,
    sweep: bool,
) -> VerifyReport:
    """Return the report about a node."""
    kept = job.kept(manifest)
    job.check_numbers()
    begun = job.open_jobs.receipts() if kept is None and job.deep == "receipts" else None
    job.list_keys()
    receipts = begun if kept is None else kept
    objects = () if receipts is None else tuple(receipts.objects)  # it may be an iterator
    job.look(client, sha256=any(map(sha256_of, objects)), sums=receipts is not None)
    if receipts is not None:
        job.compare(objects, receipts.empty, complete=kept is not None)
    job.look_at_documents()
    job.find_open_jobs(sweep=sweep)
    job.find_ownerless()
    job.find_leftovers(sweep=sweep)
    return replace(job.report(), receipts=kept is not None)


@dataclass
class _VerificationState:
    """State of a verification."""

    store: Store
    path: str
    """Full path of the node."""
    deep: Depth
    node: Array | Group | None
    """None where there is none, and only leftovers are looked for."""
    arrays: list[Array]
    findings: list[Finding]
    counts: Counter[str]
    """Number of findings of each kind."""
    ownerless: OrphanedKeys
    """Keys that look like stored objects, below no array."""
    groups: list[Group] = field(default_factory=list)
    """The node, if it is a group, and the groups below it."""
    cells: list[CellRuns] = field(default_factory=list)
    states: list[ObjectStates] = field(default_factory=list)
    """States of the stored objects of each array."""
    chunks: list[Counter[State]] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    sums: list[dict[int, StoredObject]] = field(default_factory=list)
    unpublished: Counter[int] = field(default_factory=Counter)
    """Number of objects of unpublished steps, by array."""
    versions: dict[int, list[str]] = field(default_factory=dict)
    """Keys of stored objects of other versions, by array; see `zarr_dask.hierarchy.key_swap`."""
    axes: dict[int, int] = field(default_factory=dict)
    """For arrays with objects outside: the dimension along which an open output grows, or -1."""
    listed: bool = True
    swept: int = 0
    claims: tuple[str, ...] = ()
    leftovers: int = 0
    journal: Location | None = None
    """Location of journals of jobs and outputs that are not beside the hierarchy."""

    @property
    def open_jobs(self) -> OpenJobs:
        return OpenJobs(self.store, self.path, tuple(self.arrays), self.journal)

    @staticmethod
    def of(
        url: Location | Array | Group,
        path: str,
        deep: Depth,
        storage_options: Mapping[str, Any] | None,
        read: ReadOptions | None,
    ) -> _VerificationState:
        options = replace(ReadOptions.given(read), consolidated=False)  # read own metadata
        if not isinstance(url, Array | Group):
            url, path = resolve_node(url, path, storage_options)
            storage_options = None
        node = open_node(url, path, "r", None, storage_options, options)
        arrays: list[Array] = []
        groups: list[Group] = []
        findings: list[Finding] = []
        if isinstance(node, Array):
            arrays.append(node)
        else:
            groups.append(node)
            findings.extend(_without_document(node))
            for below, one in node.walk():
                if isinstance(one, Group):
                    groups.append(one)
                    findings.extend(_without_document(one))
                elif isinstance(one, Array):
                    arrays.append(one)
                elif isinstance(one, MetadataError):
                    reason = "; ".join(map(str, one.problems))
                    findings.append(
                        Finding("document", f"{node.path}/{below}".lstrip("/"), reason=reason)
                    )
        layouts = (
            node.node_format.chunk_keys(None),
            *(one.meta.chunk_key_encoding for one in arrays),
        )
        ownerless = OrphanedKeys.among(layouts)
        job = _VerificationState(
            node.store, node.path, deep, node, arrays, [], Counter(), ownerless, groups
        )
        for finding in findings:
            job.add(finding)
        return job

    @staticmethod
    def of_leftovers(
        url: Location | Array | Group,
        path: str,
        deep: Depth,
        storage_options: Mapping[str, Any] | None,
    ) -> _VerificationState:
        """Return the state for a location without a node."""
        store, path = resolve_node(url, path, storage_options)
        return _VerificationState(store, path, deep, None, [], [], Counter(), OrphanedKeys(False))

    def kept(
        self, manifest: ExpectedObjects | str | PathLike[str] | bool | None
    ) -> ExpectedObjects | None:
        """Return the receipts that were given, or are kept at a location."""
        if isinstance(manifest, str | PathLike):
            return Manifest.at(ManifestPlace.of(manifest, self.store))
        if not isinstance(manifest, bool):
            return manifest
        return Manifest.beside(self.arrays) if manifest else None

    def add(self, finding: Finding) -> None:
        """Record a problem."""
        self.counts[finding.kind] += 1
        if len(self.findings) < _MOST_NAMED:
            self.findings.append(finding)

    def check_numbers(self) -> None:
        """Refuse arrays with too many stored objects, before any is numbered."""
        for array in self.arrays:
            if array.meta.grid.ncells > _MOST_CELLS:
                raise GridError(
                    f"{array.where} has {array.meta.grid.ncells} stored objects; verify keeps a "
                    f"byte for each, and no more than {_MOST_CELLS}."
                )

    # --- keys -------------------------------------------------------------------------------------

    def list_keys(self) -> None:
        """List the stored objects, and the keys below an array that belong to nothing."""
        places = {one.node_format.data_prefix(one.path): n for n, one in enumerate(self.arrays)}
        present = [numbers_of("q") for _ in self.arrays]
        last, documents = -1, frozenset[str]()  # keys of an array come one after the other
        try:
            for key in self._keys():
                which = _owner(key, places)
                if which is not None and which != last:
                    last, documents = which, frozenset(_documents(self.arrays[which]))
                if which is not None and key not in documents:
                    self._place(key, which, present[which])
                elif self.arrays or isinstance(self.node, Group):
                    self.ownerless.note(key)
        except ListingError:
            self.listed = False
            self.cells = [_all_cells(one) for one in self.arrays]
        else:
            self.cells = [CellRuns.of(np.frombuffer(one, np.int64)) for one in present]

    def find_ownerless(self) -> None:
        """Report stored objects without an array: its metadata was lost, or never written.

        Objects of arrays that are reported for another reason are not reported again.
        """
        told = {one.path for one in self.findings if one.kind in {"document", "journal"}}
        for path, count, first in self.ownerless.lost(self.store, told):
            reason = (
                f"{pluralize(count, 'stored object')} of no array: {path or 'the root'!r} has no "
                "document of one. It was lost, or the job that writes the array has not ended"
            )
            self.add(Finding("orphan", path, first, reason=reason))

    def _keys(self) -> Iterator[str]:
        nodes = [*self.arrays] if self.node is None else [self.node, *self.arrays]
        formats = {one.node_format.name: one.node_format for one in nodes}
        prefixes = {p for one in formats.values() for p in one.prefixes(self.path)}
        listed = False
        for prefix in sorted(prefixes):
            if not any(prefix != other and prefix.startswith(other) for other in prefixes):
                for key in self.store.list(prefix):
                    listed = True
                    yield key
        if not listed:
            documents = (key for one in nodes for key in one.node_format.node_keys(one.path))
            check_listed(self.store, min(prefixes, default=""), documents)

    def _place(self, key: str, which: int, present: numbers_of[int]) -> None:
        array = self.arrays[which]
        name = key[len(array.node_format.data_prefix(array.path)) :]
        coords = array.meta.chunk_key_encoding.coords(name, array.ndim)
        if coords is None and is_of_other_version(name, array.meta) and may_have_versions(array):
            self.versions.setdefault(which, []).append(key)
        elif coords is None:
            reason = "no document, and no stored object of the array"
            self.add(Finding("orphan", array.path, key, reason=reason))
        elif self._is_unpublished(which, coords):
            self.unpublished[which] += 1
        elif not array.meta.grid.has_cell(coords):
            reason = f"it lies outside the array, whose shape is {array.shape}"
            self.add(Finding("stray", array.path, key, (coords,), reason))
        else:
            present.append(array.meta.grid.number_of(coords))

    def _is_unpublished(self, which: int, coords: tuple[int, ...]) -> bool:
        """True if an object belongs to a step that the ranks of a simulation have not published."""
        array = self.arrays[which]
        outside = {n for n, count in enumerate(array.meta.grid.counts) if coords[n] >= count}
        if len(outside) != 1:
            return False
        if which not in self.axes:
            output = output_of(array.store, array.path)
            if output is None and self.journal is not None:
                output = output_of(array.store, array.path, self.journal)
            self.axes[which] = -1 if output is None else output.axis
        return outside == {self.axes[which]}

    # --- stored objects ---------------------------------------------------------------------------

    def look(self, client: Client | None, *, sha256: bool, sums: bool) -> None:
        """Check the stored objects; compute checksums if there are receipts with them."""
        self.states = [
            ObjectStates(one.meta.grid.counts, cells.count)
            for one, cells in zip(self.arrays, self.cells, strict=True)
        ]
        self.chunks = [Counter() for _ in self.arrays]
        self.nbytes = [0] * len(self.arrays)
        self.sums = [{} for _ in self.arrays]
        workers = find_workers(client)
        for start in range(0, len(self.arrays), _ARRAYS_AT_ONCE):
            some = slice(start, start + _ARRAYS_AT_ONCE)
            census = ObjectScan(
                tuple(self.arrays[some]), tuple(self.cells[some]), self.deep, sha256, sums
            )
            count = sum(census.batches)
            if count:
                run_tasks(census, range(count), workers, partial(self._take, start), "verify")

    def _take(self, start: int, batch: ScanResult) -> None:
        which = start + batch.array
        count = len(batch.states)
        places = list(self.cells[which].part(batch.first, batch.first + count))
        self.states[which].put(places, batch.states)
        self.chunks[which].update(batch.chunks)
        self.nbytes[which] += batch.nbytes
        for place, summed in zip(places, batch.sums, strict=True):
            if summed is not None:
                self.sums[which][place] = summed
        for finding in batch.findings:
            self.add(finding)

    def compare(
        self, objects: Iterable[ReceiptedObject], empty: Iterable[str], *, complete: bool
    ) -> None:
        """Compare the results with the receipts of jobs.

        Parameters
        ----------
        objects, empty
            Contents of a `ExpectedObjects`.
        complete
            True if objects without a receipt must not be absent.

        Raises
        ------
        ManifestError
            If no receipt is for an existing object.
        """
        places = {one.node_format.data_prefix(one.path): n for n, one in enumerate(self.arrays)}
        absent = STATES.index("absent")
        for key in empty:
            self._compare_empty(key, places)
        known, lost = 0, set[tuple[int, int]]()
        documents = {key: a.path for a in self.arrays for key in a.node_format.node_keys(a.path)}
        for one in objects:
            found = self._cell(one.key, places)
            if found is not None:
                known += 1
                self._compare_object(*found, one, complete=complete)
                if complete and self.states[found[0]][found[1]] == absent:
                    lost.add(found)
            elif self.deep != "index" and one.key in documents:
                self._compare_document(documents[one.key], one)
        if complete and not known and any(cells.count for cells in self.cells):
            raise ManifestError(
                f"the receipts name no stored object of {where(self.store, self.path)}: their keys "
                "are those below the store that was written to. Open that, and give path=."
            )
        for which in range(len(self.arrays)) if complete else ():
            total = self.states[which].tally()[absent]
            named = min(total, _MOST_NAMED - len(self.findings))
            for cell in islice(self.states[which].absent(), named):
                self._blame(which, cell, "absent", _LOST if (which, cell) in lost else _UNKNOWN)
            if total > named:
                self.counts["absent"] += total - named

    def _cell(self, key: str, places: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the numbers of the array and the cell that a key belongs to, or None."""
        which = _owner(key, places)
        if which is None:
            return None
        array = self.arrays[which]
        coords = array.meta.coords(key[len(array.node_format.data_prefix(array.path)) :])
        if coords is None:
            return None
        return which, array.meta.grid.number_of(coords)

    def _compare_object(
        self, which: int, cell: int, one: ReceiptedObject, *, complete: bool
    ) -> None:
        summed = self.sums[which].get(cell)
        if self.states[which][cell] == STATES.index("absent") or summed is None:
            if not complete and self.states[which][cell] == STATES.index("absent"):
                self._blame(which, cell, "absent", _LOST)
            return
        if self.states[which][cell] != STATES.index("ok"):  # named already
            return
        reason = summed.difference(one)
        if reason:
            state: State = "torn" if summed.nbytes != one.nbytes else "checksum"
            self._blame(which, cell, state, reason)

    def _compare_empty(self, key: str, places: Mapping[str, int]) -> None:
        found = self._cell(key, places)
        if found is None:
            return
        if self.states[found[0]][found[1]] == STATES.index("absent"):
            self.states[found[0]][found[1]] = STATES.index("empty")
        elif self.deep != "index":
            reason = "its receipt says that all its elements have the fill value: it was absent"
            self._blame(*found, "checksum", reason)

    def _compare_document(self, path: str, one: ReceiptedObject) -> None:
        text = self.store.get(one.key) or b""
        same = (memoryview(text).nbytes, crc32c(text)) == (one.nbytes, one.crc32c)
        if not same or sha256_of(one) not in {None, sha256(text).hexdigest()}:
            reason = "it does not say what its receipt says that the job has written"
            self.add(Finding("document", path, one.key, reason=reason))

    def _blame(self, which: int, cell: int, state: State, reason: str) -> None:
        array = self.arrays[which]
        coords = array.meta.grid.coords_of(cell)
        self.states[which][cell] = STATES.index(state)
        self.add(Finding(state, array.path, array.key(coords), (coords,), reason))

    # --- metadata and leftovers -------------------------------------------------------------------

    def look_at_documents(self) -> None:
        """Check that consolidated metadata agrees with the metadata of the nodes."""
        for group in self.groups:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about implicit groups
                try:
                    stale = group.stale()
                except MetadataError as error:
                    self.add(Finding("stale", group.path, reason=str(error)))
                    continue
            for below in stale:
                reason = "the consolidated metadata do not say what its documents say"
                self.add(Finding("stale", f"{group.path}/{below}".strip("/"), reason=reason))

    def find_open_jobs(self, *, sweep: bool) -> None:
        """Report journals of jobs that have not ended, or died with only the journal left."""
        jobs = self.open_jobs
        try:
            found = list(jobs)
        except (LinkError, JournalError) as error:
            self.add(Finding("journal", self.path, reason=str(error)))
            return
        for path, journal, job in found:
            how = "has not ended: it is running" + (
                "" if journal.is_locked() else ", or was killed"
            )
            if jobs.is_done(path, journal, job):
                if sweep:
                    journal.remove()
                    self.swept += 1
                    continue
                how = "has written all, and was killed before its journal was removed; sweep=True"
                how += " removes it"
            reason = f"a job of kind {job.kind!r}, begun {job.begun}, {how}"
            self.add(Finding("journal", path, journal.prefix, reason=reason))

    def end_swaps(self) -> int:
        """Do what is left of swaps of groups in an object store; return the number of them."""
        found = (
            (without_consolidated(one.store), one.path, one.node_format) for one in self.groups
        )
        return sum(finish_left_swap(*one) for one in found)

    def sweep_leftovers(self) -> bool:
        """Remove leftovers of jobs and writers; return True if there are or were any."""
        self.find_open_jobs(sweep=True)
        self.find_leftovers(sweep=True)
        return bool(self.swept or self.claims or self.findings)

    def find_leftovers(self, *, sweep: bool) -> None:
        """Report leftovers of killed writers."""
        left = find_leftovers(self.store, self.path, sweep=sweep)
        self.swept += left.swept
        self.leftovers = left.dead
        self.claims = left.claims
        for finding in left.findings:
            self.add(finding)
        for which, keys in self.versions.items():
            swept = sweep_versions(self.arrays[which]) if sweep else None
            self.swept += swept or 0
            for key in keys if swept is None else ():
                self.add(Finding("orphan", self.arrays[which].path, key, reason=_OF_VERSION))

    def report(self) -> VerifyReport:
        """Return the report."""
        arrays = tuple(
            ArrayReport(
                array.path,
                array.where,
                array.shape,
                array.meta.grid.counts,
                states,
                dict(chunks),
                nbytes,
                self.unpublished[which],
            )
            for which, (array, states, chunks, nbytes) in enumerate(
                zip(self.arrays, self.states, self.chunks, self.nbytes, strict=True)
            )
        )
        return VerifyReport(
            where(without_consolidated(self.store), self.path),
            self.deep,
            arrays,
            tuple(sorted(self.findings, key=lambda one: (one.path, one.key, one.coords))),
            dict(self.counts),
            self.listed,
            self.swept,
            self.claims,
            self.leftovers,
        )


def _without_document(group: Group) -> Iterator[Finding]:
    """Yield a finding for a group that exists only because nodes lie below it."""
    if group.meta.implicit and not group.node_format.has_implicit_groups:
        keys = " or ".join(map(repr, group.node_format.node_keys(group.path)))
        reason = (
            f"nodes lie below it, but there is no {keys}: it was lost, or never written, and other "
            "libraries find no group here. zarr_dask.create_group writes one"
        )
        yield Finding("group", group.path, reason=reason)


def _documents(array: Array) -> Iterator[str]:
    """Yield the keys of documents that an array may have, in any format."""
    formats: tuple[Format, ...] = (*FORMATS, array.node_format)
    for node_format in formats:
        yield from node_format.node_keys(array.path)
        yield from node_format.root_documents()
        consolidated = consolidated_key(array.path, node_format)
        if consolidated is not None:
            yield consolidated


def _owner(key: str, places: Mapping[str, int]) -> int | None:
    """Return the array with the longest prefix that a key has; None if there is none."""
    end = key.rfind("/") + 1
    while end:
        if key[:end] in places:
            return places[key[:end]]
        end = key.rfind("/", 0, end - 1) + 1
    return places.get("")


def _all_cells(array: Array) -> CellRuns:
    count = prod(array.meta.grid.counts)
    return CellRuns(((0, count),)) if count else CellRuns(())
