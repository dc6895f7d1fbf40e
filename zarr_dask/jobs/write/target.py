"""Target of the writing tasks: each task writes whole stored objects of an array, one at a time.

`ArrayTarget` is the part of a write that is sent to the workers. It does not depend on the origin
of the blocks; `zarr_dask.jobs.write.write` ensures that no stored object lies in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from zarr_dask._util.arguments import to_numpy
from zarr_dask._util.buffers import malloc_keep_freed
from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array, object_sizes
from zarr_dask.array.revalidate import Confirmation, this_process
from zarr_dask.array.writer import is_shared, write_later, write_object_part
from zarr_dask.dtypes.base import Casting
from zarr_dask.errors import (
    CommitConflictError,
    DataTypeError,
    GridError,
    JobReplacedError,
    JobRunningError,
    MetadataChangedError,
    ResumeError,
    StoreError,
    StoreOutOfReachError,
)
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.formats.concurrent_edit import (
    check_still_shown,
    reload_metadata,
    see_latest_node,
    write_changed_documents,
)
from zarr_dask.grid.grid import Part, Region
from zarr_dask.hierarchy.edit import put_new_node
from zarr_dask.hierarchy.key_swap import KeySwap, Swap
from zarr_dask.indexing.basic import checked_region
from zarr_dask.jobs.engine.overlap_pool import acquire_compute_slot, release_compute_slot
from zarr_dask.jobs.engine.plan import (
    add_requests,
    format_bytes,
    format_region,
    format_requests,
    pluralize,
)
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.visibility import BoundedSet, check_begun_once, check_job_seen_once
from zarr_dask.jobs.write.append_state import (
    forget_growth,
    has_ended,
    has_grown,
    has_released,
    mark_appended,
    note_end,
    release,
)
from zarr_dask.jobs.write.read_back import check_read_back
from zarr_dask.jobs.write.staging import StagingFolder
from zarr_dask.journal import (
    ArrayEnd,
    Claim,
    JobRecord,
    Journal,
    JournalLocation,
    NodeClaim,
    NodeClaims,
    SeenFolder,
    open_journals,
)
from zarr_dask.journal.finished import FinishedJob, record_end, was_ended
from zarr_dask.journal.group_changes import leave_changes
from zarr_dask.journal.journal import publish_jobs
from zarr_dask.journal.lock import LOOKS
from zarr_dask.journal.manifest import Manifest, ManifestPlace
from zarr_dask.journal.receipts import (
    ObjectDigest,
    Receipt,
    Receipts,
    StoredObject,
    collect,
    stored_object,
    with_tags,
)
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.patience import in_task
from zarr_dask.stores.put_tags import noting_tags, version_at, versions_below
from zarr_dask.stores.retry import Retries, counting_requests, counting_retries
from zarr_dask.stores.sessions import JobSession, job_session, when_committed
from zarr_dask.stores.streaming_put import concurrent_puts
from zarr_dask.stores.wrappers.confirmed import confirmed_if, is_confirmed

__all__ = ["ArrayTarget", "Commit", "Finalizer", "WriteReport"]


@hides("of_record", "with_waits")
@dataclass(frozen=True, slots=True, repr=False)
class WriteReport(Priced, InWords):
    """Result of a write."""

    objects: int = 0
    """Stored objects that were written."""
    empty: int = 0
    """Stored objects left out because all their values are the fill value."""
    nbytes: int = 0
    """Decoded bytes."""
    stored: int = 0
    """Encoded bytes."""
    retried: int = 0
    """Requests that were retried because a store was busy or slow, or cut off a reply."""
    already_done: str = ""
    """Time at which the same job ended earlier, so that this call wrote nothing; else empty."""
    seconds: float = field(default=0.0, compare=False)
    """Time of the whole job; 0 where tasks are computed by the caller."""
    waited: float = field(default=0.0, compare=False)
    """Seconds that retried requests have waited, of all threads together; also those that were
    sent before and after the tasks, for several arrays in the first report.
    """
    requests: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Requests of the writing tasks by kind: ``read``, ``write``, ``inspect``, ``list``,
    ``delete``. Repeated requests count again; files have none.
    """

    @staticmethod
    def of_record(record: FinishedJob) -> WriteReport:
        """Return the report of a job that ended earlier, as far as its record has it."""
        plain = asdict(WriteReport())
        said = {name: record.report.get(name) for name in plain}
        known = {name: value for name, value in said.items() if _is_like(value, plain[name])}
        members: dict[str, Any] = {**known, "already_done": record.ended}
        return WriteReport(**members)

    def with_waits(self, counted: Retries) -> WriteReport:
        """Return the report with the retries of requests that the tasks have not sent."""
        waited = self.waited + counted.seconds
        return replace(self, retried=self.retried + counted.count, waited=waited)

    @property
    def rate(self) -> float:
        """Decoded bytes per second; 0 if the time is not known."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def explain(self) -> str:
        """Return the report as text, with time, rate and requests."""
        lines = [str(self)]
        if self.seconds:
            lines.append(f"  time      {self.seconds:.3g} s ({format_bytes(self.rate)}/s)")
        if self.requests:
            lines.append(f"  requests  {format_requests(self.requests)}")
        if self.waited:
            lines.append(f"  waited    {self.waited:.3g} s")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        done = f"already done at {self.already_done}: " if self.already_done else ""
        return done + self._figures()

    def _figures(self) -> str:
        again = f", {pluralize(self.retried, 'request')} tried again" if self.retried else ""
        return (
            f"{format_bytes(self.nbytes)} in {pluralize(self.objects, 'stored object')} "
            f"({format_bytes(self.stored)}), {self.empty} left out as fill values{again}"
        )


def _is_like(value: Any, plain: Any) -> bool:
    """True if a value that a stranger may have put is of the kind of a member of a report."""
    if isinstance(plain, dict):
        return isinstance(value, dict) and all(_is_like(number, 0) for number in value.values())
    if isinstance(plain, str):
        return isinstance(value, str)
    kinds = (int, float) if isinstance(plain, float) else (int,)
    return type(value) in kinds and 0 <= value < 1 << 63


@dataclass(frozen=True)
class WriteReceipts:
    """Records of a job's work, besides the array itself."""

    journal: Journal
    """While it exists, the job has not ended."""
    receipts: bool = True
    """True if each task adds a receipt to the journal."""
    manifest: ManifestPlace | None = None
    """Location where the last task writes all receipts."""
    sha256: bool = False
    """True if receipts also have the SHA-256 of stored objects."""
    ends: bool = True
    """True if the last task ends the job; otherwise the process that waits for it does."""
    creates: bool = False
    """True if the job makes the array, so that the manifest contains its metadata too."""
    shares: Region | None = None
    """The region, if other jobs may write into stored objects that it covers in part."""


@dataclass(frozen=True, eq=False)
class ArrayTarget:
    """An array as the tasks of a graph write it; see `zarr_dask.graph.Target`."""

    array: Array
    creates: bool
    """True if the last task writes the metadata."""
    before: ArrayMeta | None = None
    """Metadata of a growing array until all is written."""
    casting: Casting = "safe"
    """Casts that are allowed."""
    uses_cas: bool = False
    """True if other jobs may be writing to stored objects that are written in part."""
    records: WriteReceipts | None = None
    """Records of the work, besides the array."""
    swap: Swap | None = None
    """Swap that puts the array, or a group with it, in place of another one at the end."""
    lasting: Array | None = None
    """The array at its final location; None for `array`, which may be written elsewhere."""
    token: str = ""
    """Tells this write from all others, those of the same values included."""
    counts: bool = False
    """True if the last task counts stored objects before it makes the array visible."""
    confirms: bool = False
    """True to ask the store for the size of each object after it was put."""
    verifies: bool = False
    """True to read each object back, and compare it with what was computed."""
    end: ArrayEnd | None = None
    """Of an array that grows: what tasks claim that run where no process has done so for them."""
    leaves: bool = False
    """True if the last task gives the claim back; otherwise the process that waits for it does."""
    deferred: bool = False
    """True if `show` changes the metadata, once other arrays are written too."""
    staging: StagingFolder | None = None
    """Folder of the array between that the last task removes; None where its caller does."""
    waiting: int = 0
    """Bytes of encoded objects that a process may have waiting for a remote store."""
    beside: JournalLocation | None = None
    """Location where other jobs for the array keep their journals; None for none."""
    claim: NodeClaim | None = None
    """The claim to the location of a new array, or of a group with it, in a remote store."""
    releases: bool = False
    """True if the last task ends that claim."""
    folder: SeenFolder | None = None
    """The folder of an existing array in local files, where no journal tells of later jobs."""

    @property
    def final(self) -> Array:
        """The array at its final location. As a truth value, an array is the one it holds."""
        return self.array if self.lasting is None else self.lasting

    def check_place(self) -> bool:
        """Refuse to write where an array is not the one any more that this was planned for.

        Returns whether it is still to grow, or to be made; else this is done once more.

        Raises
        ------
        MetadataChangedError
            If it is gone, has grown, or is another array, whose chunks this one must not write.
        """
        if self.creates:
            return True
        array = self.array
        place = (array.store, array.path, array.node_format)
        try:
            seen = None
            if self.before is not None and (self.confirms or is_confirmed(array.store)):
                seen = see_latest_node(*place, array.options)
            reload_metadata(*place, self.before or array.meta, array.options, seen)
        except MetadataChangedError:
            if self.before is None or not self._has_grown(self._open_job()):
                raise
            reload_metadata(
                *place, array.meta, array.options
            )  # this task runs again, after the end
            return False
        if self.before is not None:
            check_still_shown(*place)
        return True

    def _has_grown(self, job: JobRecord | None) -> bool:
        """True if this job, and no other one, has made the array longer."""
        return (job is not None and job.append_committed) or has_grown(self.token)

    def check_place_once(self) -> None:
        """As `check_place`, once in each process; of a new array, that its job is seen.

        Raises
        ------
        StoreOutOfReachError
            If this process does not see the job.
        """
        if self.creates:
            lasting, swap = self.final, self.swap
            if swap is not None:
                check_begun_once(swap.token, lambda: swap.is_begun, swap.beside, lasting)
            elif self.records is not None:
                check_job_seen_once(self.records.journal, lasting)
            return
        if self.token in _CHECKED:
            return
        try:
            self.check_place()
        except MetadataChangedError as error:
            raise MetadataChangedError(f"{error} So {this_process()} sees it.") from error
        _CHECKED.add(self.token)

    @in_task()
    def write(self, block: np.ndarray, region: tuple[slice, ...]) -> WriteReport:
        """Write the stored objects of a region, one after the other, then the receipt.

        The same block always gives the same bytes. So a task may be run again, run twice at the
        same time, and end late.
        """
        array = self.array
        computed = self._checked(block, region)
        values = array.cast(computed)
        with counting_requests() as besides:
            claim = self._claim()
            try:
                self.check_place_once()
                report = self._written(values, region)
            finally:
                claim.close()
        return report.with_waits(besides)

    def _claim(self) -> Claim:
        """Claim the end of an array that grows, as long as this task runs."""
        if self.end is None or self.token in _CLAIMED:
            if self.end is not None:
                self.end.fence(self.check_place)
            return Claim()
        claim = self.end.claim()
        try:
            if claim.is_new and not self.check_place():  # another append may have ended since
                self.end.leave(alone=True)
        except BaseException:
            self.end.leave(alone=True)
            claim.close()
            raise
        if self.end.lasts:
            _CLAIMED.add(self.token)
        return claim

    def claim_for_tasks(self) -> None:
        """Say that this process has the claim until the write has ended."""
        _CLAIMED.add(self.token)

    def _written(self, values: np.ndarray, region: tuple[slice, ...]) -> WriteReport:
        array = self.array
        found: dict[int, StoredObject | str] = {}
        confirm = array.confirmation()
        with malloc_keep_freed(), counting_retries() as retries, noting_tags() as tags:
            parts = array.meta.grid.parts(checked_region(region, array.shape))
            first = [*islice(parts, 2)]
            # a single object is waited for as it is, without a copy of its bytes
            waits = len(first) > 1 and not self.confirms
            with concurrent_puts(array.store, self.waiting if waits else 0) as puts:

                def put(number: int, part: Part) -> None:
                    found[number] = self._put(part, values, confirm, tags, lends=puts is None)

                for number, part in enumerate(chain(first, parts)):
                    write_later(array, part, partial(put, number))
                if puts is not None:
                    with release_compute_slot(array.store, values.nbytes):
                        puts.wait()
            confirm.check_not_migrated()
            if self.verifies:
                check_read_back(array, values, checked_region(region, array.shape))
        ordered = [found[number] for number in range(len(found))]
        written = [one for one in ordered if isinstance(one, StoredObject)]
        empty = [one for one in ordered if isinstance(one, str)]
        if self.records is not None and self.records.receipts:
            journal = self.records.journal
            prefix = array.node_format.data_prefix(array.path)
            objects = with_tags(written, array.store, prefix, tags)
            journal.add(Receipt(journal.token, journal.run_id, objects, tuple(empty)))
        return WriteReport(
            len(written),
            len(empty),
            values.nbytes,
            sum(one.nbytes for one in written),
            retries.count,
            waited=retries.seconds,
            requests=dict(retries.requests),
        )

    def _put(
        self,
        part: Part,
        values: np.ndarray,
        confirm: Confirmation,
        tags: Mapping[str, str],
        *,
        lends: bool,
    ) -> StoredObject | str:
        """Store one object; returns what a receipt says of it, or its key if it is empty."""
        acquire_compute_slot()
        array, key = self.array, self.array.meta.chunk_key_encoding.key(part.coords)
        noting = self._noting()
        shared = (self.uses_cas and not part.whole) or self._is_shared(part)
        waiting = release_compute_slot(array.store, values.nbytes) if lends else None
        stored = write_object_part(
            array,
            part,
            values,
            noting,
            waiting,
            confirm,
            self._fence,
            shared=shared,
            confirms=self.confirms,
        )
        return self._confirmed(noting.of(key), tags, shared=shared) if stored else key

    def _is_shared(self, part: Part) -> bool:
        """Return True if the end of an array that others see cuts an object."""
        array = self.array
        return not self.creates and is_shared(array, part.coords, (self.before or array.meta).grid)

    def _confirmed(
        self, put: StoredObject, tags: Mapping[str, str], *, shared: bool
    ) -> StoredObject:
        """Return an object after a look at the store, if the store's word is not enough."""
        if not self.confirms:
            return put
        array = self.array
        prefix = array.node_format.data_prefix(array.path)
        (put,) = with_tags([put], array.store, prefix, tags)
        found = version_at(array.store, prefix + put.key, put.tag)
        if found is not None and (shared or found.may_be(put.nbytes, put.tag)):
            return put  # other jobs may have changed what they share since
        got = "no such object" if found is None else f"{found.nbytes:,} bytes"
        if found is not None and found.nbytes == put.nbytes:
            got += f" with the ETag {found.tag!r} instead of {put.tag!r}"
        raise StoreError(
            f"{array.where}: the store acknowledged {put.key!r}, expected {put.nbytes:,} bytes, "
            f"got {got}. It has lost, cut or misplaced the object. Look at the store, then write "
            "again with the same call."
        )

    @property
    def _fence(self) -> Callable[[], None] | None:
        """Return the check that keeps this job from writing over what a later one has put."""
        if self.claim is not None:
            return self._check_claimed
        if self.records is not None:
            return partial(self.records.journal.fenced, self._check_ours)
        if self.folder is not None:
            return self.folder.check
        if self.creates and is_remote(self.array.store):
            return partial(LOOKS.now_and_then, self._name, self._check_not_made)
        return None

    @property
    def _name(self) -> tuple[str, ...]:
        return self.array.store.url, self.array.path, self.token

    def note_begun(self) -> None:
        """Say that this process has just seen that there is no array yet."""
        LOOKS.note(self._name)

    def _check_claimed(self) -> None:
        """Refuse to go on if a later job has the location, unless this write has ended."""
        claim, records = self.claim, self.records
        try:
            if claim is not None:
                claim.fence()
        except JobReplacedError:
            ended = records is not None and was_ended(records.journal)
            if claim is not None and not ended and not has_released(claim):
                raise

    def _check_not_made(self) -> None:
        """Refuse to go on where another job makes, or has made, the array that this one makes.

        A later job that finds objects of this one keeps a journal.
        """
        array = self.array
        key = array.node_format.node_keys(array.path)[0]
        others = array.store.get(key) is not None  # a size that is missing takes two requests
        others = others or (self.beside is not None and bool(open_journals(self.beside)))
        if others and not has_ended(self.token):
            raise JobReplacedError(
                f"{array.where} was made by another job while this one was writing it, and was "
                "stopped or out of reach. This one stops, so that it does not write over later "
                "values. Look at what is there, and let only one of them run."
            )

    def _check_ours(self) -> None:
        if self.end is not None:
            self.end.fence(self.check_place)
        if self.records is not None and not self.records.journal.is_ours():
            self._check_ended(self.records.journal)

    def _check_ended(self, journal: Journal) -> None:
        """Refuse to go on without the journal, unless this write has ended: a task runs again then.

        Scheduler and process know that; see `zarr_dask.jobs.write.append_state`.
        """
        if has_ended(self.token) or was_ended(journal):
            return
        if self.before is not None and journal.job() is None:
            self.check_place()  # of several appends that have begun, the first that ends counts
        else:
            journal.check_ours()

    def _noting(self) -> ObjectDigest:
        """Return the recorder of an object's receipt entry; without receipts it has no checksum."""
        if self.records is None or not self.records.receipts:
            return ObjectDigest(checksum=False)
        return ObjectDigest(with_sha256=self.records.sha256)

    def _checked(self, block: Any, region: tuple[slice, ...]) -> np.ndarray:
        """Return a block as a NumPy array; raise if its shape or dtype is not the announced one."""
        shape = tuple(s.stop - s.start for s in region)
        found = to_numpy(block, f"a block for {self.array.where}")
        if found.shape != shape:
            raise GridError(
                f"a block for the region {format_region(region)} of {self.array.where} has the "
                f"shape {found.shape}, but dask said {shape}; give map_blocks the right chunks=."
            )
        if not self.array.meta.data_type.accepts(found.dtype, self.casting):
            raise DataTypeError(
                f"a block for {self.array.where} has the data type {found.dtype}, but dask said "
                f"{self.array.dtype}; give map_blocks the right dtype=, or convert with astype."
            )
        return found

    def merge(self, results: Sequence[WriteReport]) -> WriteReport:
        """Add up reports."""
        return WriteReport(
            sum(r.objects for r in results),
            sum(r.empty for r in results),
            sum(r.nbytes for r in results),
            sum(r.stored for r in results),
            sum(r.retried for r in results),
            waited=sum(r.waited for r in results),
            requests=add_requests(r.requests for r in results),
        )

    @in_task()
    def finish(self, result: WriteReport) -> WriteReport:
        """Write the manifest, make a new array or a new length visible, and end the job.

        A job that dies in between can be resumed, with only this left to do. If this runs again
        after the end, it finds no journal, and writes the same metadata once more.

        Raises
        ------
        ResumeError
            If another job has started to write to the same location, or if the array was removed
            together with the journal of this job.
        """
        with counting_requests() as besides:
            found = self._finish(result)
        return found.with_waits(besides)

    def _finish(self, result: WriteReport) -> WriteReport:
        job = self._open_job()
        records = None if job is None else self.records
        if self._is_over(job):
            return result
        if records is not None and records.manifest is not None:
            self._keep(records, records.manifest)
        if self.creates and self.counts:
            self._check_stored(result)
        if self.claim is not None and self.claim.was_others and not has_ended(self.token):
            self._check_landed()
        if not self.deferred:
            self._show(job)
        if self.staging is not None:
            self.staging.remove()
        self._end(job, records, result)
        return result

    def _end(
        self, job: JobRecord | None, records: WriteReceipts | None, result: WriteReport
    ) -> None:
        """End the job, if this task does, after all is visible."""
        claim = self.claim if self.releases else None
        if claim is not None:
            self._check_claimed()
        if records is not None and records.ends:
            note_end(self.token)
            record_end(records.journal, job, asdict(result))
            records.journal.remove()  # after an array has grown: `plan_resume` knows such jobs
        if self._own_swap is not None and (records is None or records.ends):
            self._own_swap.forget()  # and after the journal, which it belongs to
        if claim is not None:
            release(claim)

    def announce(self) -> None:
        """Record that this write is about to make its array longer, together with others.

        If its process dies before all of them are, the same call knows which ones it has to append
        to no more.
        """
        job = self._open_job()
        if self.before is not None and job is not None and self.records is not None:
            self.records.journal.note(replace(job, append_committed=True))

    def show(self) -> None:
        """Make a new array or a new length visible, after `finish` has left that to the caller."""
        job = self._open_job()
        if not self._is_over(job):
            self._show(job)

    def is_over(self) -> bool:
        """Return True if the job of a new array has ended; see `_is_over`."""
        return self._is_over(self._open_job())

    def _is_over(self, job: JobRecord | None) -> bool:
        """Return True if the end of a job that makes an array runs again: it is visible then.

        Raises
        ------
        JobReplacedError
            If the journal has gone before the end.
        ResumeError
            If the array is not visible, or is another one.
        """
        if job is not None or self.records is None:
            return False
        self._check_ended(self.records.journal)
        if self.creates:
            self._check_shown()
        return self.creates

    def _show(self, job: JobRecord | None) -> None:
        array = self.array
        if self._may_follow:
            leave_changes(self.final.store, self.final.path)
        if self.creates:
            documents = array.node_format.documents(array.meta, array.path)
            again = job is not None or has_ended(self.token)
            if self._fence is not None and not (again and self.claim is None):
                self._fence()
            if not again:
                note_end(self.token)  # from here on it may be this job that has made the array
            if isinstance(self.swap, KeySwap):
                self.swap.show(self._shown_in, array.meta, self._check_claimed)
                with fenced_deletes(self._check_claimed):
                    self.swap.end(array.meta)
            else:
                put_new_node(self._shown_in, array.path, documents, again=again, claimed=True)
        if isinstance(self._own_swap, AtomicReplace):
            self._own_swap.end()
        if self.before is not None:
            self._grow_claimed(self.before, job)

    @property
    def _may_follow(self) -> bool:
        """True if there may have been another array here that changes of groups above name."""
        if self.claim is not None:
            return self.claim.was_others
        is_alone = self.creates and not self.deferred
        return is_alone and not is_remote(self.final.store)

    @property
    def _own_swap(self) -> Swap | None:
        """The swap of this array alone; that of a group is the caller's."""
        return None if self.deferred else self.swap

    @property
    def _shown_in(self) -> Store:
        """Return the store for the metadata, which are looked at if objects are."""
        return confirmed_if(self.confirms, self.array.store)

    def _grow_claimed(self, before: ArrayMeta, job: JobRecord | None) -> None:
        """Make the new length visible while the end of the array is claimed, then give it back."""
        claim = self._claim()
        try:
            self._grow(before, job)
        finally:
            claim.close()
        if self.end is not None and self.leaves:
            self.end.leave()

    def _check_stored(self, result: WriteReport) -> None:
        """See that there are as many stored objects as tasks have reported, by one listing."""
        found = sum(1 for _ in object_sizes(self.array))
        if found < result.objects:
            where = self.final.where
            raise StoreOutOfReachError(
                f"{where} has {pluralize(found, 'stored object')}, as {this_process()} sees it, "
                f"but tasks have reported {result.objects}: some worker does not see the same file "
                "system, or what it wrote has been removed. The array was not made visible. "
                "Give all workers the same file system, and write it again."
            )

    def _check_landed(self) -> None:
        """See by one listing that nothing has landed of the job that had the location before.

        The objects must be those of the receipts, which such a job always has.
        """
        if self.records is None:
            return
        array, journal = self.array, self.records.journal
        prefix = array.node_format.data_prefix(array.path)
        found = versions_below(array.store, prefix)
        there = {key for key in found if array.meta.coords(key) is not None}
        receipts = [*journal.receipts()]
        put = collect(receipts, journal.run_id).objects.keys()
        valid = collect(receipts, journal.run_id, found).objects.keys()
        if others := sorted(there - valid) or sorted(put - there):
            raise JobRunningError(
                f"{pluralize(len(others), 'stored object')} of {array.where}, {others[0]!r} the "
                "first, are not as this job has put them: what an earlier job had sent has landed "
                "among them, later than it may have. Nothing was made visible. See that the "
                "earlier job has ended, and write the array again."
            )

    def _check_shown(self) -> None:
        """Raise unless the array is visible, as it must be once its job's journal is gone."""
        array = self.array
        documents = array.node_format.documents(array.meta, array.path)
        if any(array.store.get(key) != text for key, text in documents.items()):
            raise ResumeError(
                f"{array.where} was removed, or written anew by another job, while this one was "
                "writing it: its journal has gone, so that its objects may be gone as well. "
                "Nothing of it was made visible; write it again, one job at a time."
            )

    def _grow(self, before: ArrayMeta, job: JobRecord | None) -> None:
        """Make the new length visible; journal and scheduler first record that this job does it."""
        array = self.array
        place = (self._shown_in, array.path, array.node_format)
        is_noted = False

        def longer(now: ArrayMeta) -> ArrayMeta:
            nonlocal is_noted
            if not is_noted:
                if job is not None and self.records is not None:
                    self.records.journal.note(replace(job, append_committed=True))
                mark_appended(self.token)
            is_noted = True
            return replace(array.meta, attributes=now.attributes)

        try:  # whoever began the job has been warned of consolidated metadata
            write_changed_documents(*place, before, longer, array.options, warns=False)
        except MetadataChangedError as error:
            if not is_noted and self._has_grown(job):  # this task runs again
                reload_metadata(*place, array.meta, array.options)
                return
            if is_noted and self.end is not None and self._is_longer():
                return  # nobody but a copy of this task can have done it: it has the claim
            if is_noted:
                forget_growth(self.token)
            if is_noted and job is not None and self.records is not None:
                self.records.journal.note(job)
            raise MetadataChangedError(
                f"{array.where} has changed since this job was planned to make it {array.shape} "
                f"from {before.grid.shape}: another job has appended to it or replaced it, and may "
                "have written to the same elements. Look at the end of the array, and append "
                "one after the other."
            ) from error

    def _is_longer(self) -> bool:
        array = self.array
        place = (array.store, array.path, array.node_format)
        try:
            reload_metadata(*place, array.meta, array.options)
            check_still_shown(*place, (self.before or array.meta, array.meta))
        except MetadataChangedError:
            return False
        return True

    def _open_job(self) -> JobRecord | None:
        """Return the job to end; None if there is none, or if it has already ended."""
        if self.records is None:
            return None
        job = self.records.journal.job()
        if job is not None and job.run_id != self.records.journal.run_id:
            raise ResumeError(
                f"{self.array.where} is being written anew by a job that began at {job.begun}, so "
                "that this one cannot end. Let only one of them run."
            )
        return job

    def _keep(self, records: WriteReceipts, place: ManifestPlace) -> None:
        """Write the manifest, with the metadata as it is, or is about to be."""
        array = self.final
        documents = [
            stored_object(key, [text], with_sha256=records.sha256)
            for key, text in array.node_format.documents(array.meta, array.path).items()
        ]
        receipts = collect(records.journal.receipts(), records.journal.run_id)
        if records.shares is not None:
            receipts = self._as_they_are(receipts, records.shares, with_sha256=records.sha256)
        prefix = array.node_format.data_prefix(array.path)
        # attributes may change later, which is no damage
        created = documents if records.creates and not place.beside else []
        manifest = Manifest.of(receipts, prefix, created, array.where)
        adds = place.beside and not records.creates
        write = manifest.add_to if adds else manifest.write
        when_committed(job_session(array.store), partial(write, place))

    def _as_they_are(self, receipts: Receipts, region: Region, *, with_sha256: bool) -> Receipts:
        """Return the receipts, with shared objects as they are now (other jobs may write them)."""
        array = self.array
        objects, empty = dict(receipts.objects), set(receipts.empty)
        for part in array.meta.grid.parts(region):
            if part.whole:
                continue
            name = array.meta.chunk_key_encoding.key(part.coords)
            value = array.store.get_transient(array.key(part.coords))
            if value is None:
                objects.pop(name, None)
                empty.add(name)
            else:
                objects[name] = stored_object(name, [value], with_sha256=with_sha256)
                empty.discard(name)
        return Receipts(objects, frozenset(empty))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "zarr_dask.ArrayTarget", self.array.token, self.creates


_CHECKED = BoundedSet()
"""The last writes for which this process has looked at what they write to."""
_CLAIMED = BoundedSet()
"""The last writes that have the end of their array claimed as long as this process may write."""


class Commit(Protocol):
    """The common end of several writes."""

    @property
    def swap(self) -> Swap | None:
        """Swap that puts a group of them in place of another one, if any."""
        ...

    def show(self, targets: Sequence[ArrayTarget]) -> None:
        """Make what they have written visible, in an order that readers can rely on."""
        ...


@dataclass(frozen=True)
class Finalizer:
    """Ends the jobs of several arrays when all of them are written.

    Until then the journal of each job stays, so that one call can resume all of them. The first
    journal records the end of all jobs before the others are removed, and is removed last. If the
    call is repeated after a crash in between, it finds this journal and writes nothing again.
    """

    journals: tuple[Journal, ...]
    swaps: tuple[Swap, ...] = ()
    tokens: tuple[str, ...] = ()
    """Of the writes."""
    commit: Commit | None = None
    """Makes all of them visible, where they become so together."""
    targets: tuple[ArrayTarget, ...] = ()
    """The change that it makes visible."""
    staging_folders: tuple[StagingFolder, ...] = ()
    """Folders of arrays between."""
    claims: tuple[NodeClaim, ...] = ()
    """Claims to the locations of new nodes, in remote stores."""

    @in_task()
    def __call__(self, reports: tuple[WriteReport, ...]) -> tuple[WriteReport, ...]:
        """Return the reports, the first of them with the retries of the end."""
        with counting_requests() as besides:
            self.show()
            self.end()
        return (reports[0].with_waits(besides), *reports[1:]) if reports else reports

    def show(self) -> None:
        """Make everything visible, and record the end in the first journal."""
        if self.commit is not None:
            self.commit.show(self.targets)
        if len(self.journals) > 1:
            self.journals[0].note_end(self.journals[1:])
        for journal in self.journals:
            found = journal.job()
            if found is not None and found.run_id != journal.run_id:
                journal.check_ours()
        for claim in self.claims:
            if not has_released(claim):
                claim.fence()
        self._publish()

    def _publish(self) -> None:
        """Commit, where the store does, after saying so of what has become longer."""
        for journal in self.journals:
            job = journal.job() if isinstance(journal.session, JobSession) else None
            if job is not None and job.extra.get("grows"):
                journal.note(replace(job, append_committed=True))
        try:
            publish_jobs(self.journals)
        except CommitConflictError:
            for journal in self.journals:
                journal.remove_if_dropped()
            raise

    def end(self) -> None:
        """Remove what the jobs have left, their journals last."""
        with fenced_deletes(NodeClaims(self.claims).fence):
            for swap in self.swaps:
                swap.remove()  # what a task that was killed has left of the old node
        for token in self.tokens:
            note_end(token)
        for staging in self.staging_folders:
            staging.remove()
        for journal in reversed(self.journals):
            journal.remove()
        for swap in self.swaps:
            swap.forget()
        for claim in self.claims:
            release(claim)
