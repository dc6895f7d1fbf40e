"""Resuming a job that has died: find its journal and determine what is left to do.

`plan_resume` decides, before anything is written, whether an open journal at the target belongs to
the same job. `ResumePlan.begin` opens a new journal or continues that one; `missing_blocks` finds
the blocks with objects that have no valid receipt, and only those enter the graph.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate, product
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from zarr_dask._util.arguments import check_resume
from zarr_dask.array.array import Array
from zarr_dask.errors import AppendConflictError, NodeNotFoundError, ResumeError, StoreError
from zarr_dask.formats.base import ArrayMeta, ReadOptions, prefix_of, where
from zarr_dask.formats.detect import read_node
from zarr_dask.formats.documents import are_stored
from zarr_dask.grid.grid import Blocks, Region
from zarr_dask.journal import (
    EndedAppend,
    JobRecord,
    Journal,
    JournalLocation,
    check_resumable,
    default_place,
    ended_append,
    given_place,
    new_journal,
)
from zarr_dask.journal import open_journals as journals_at
from zarr_dask.journal.claims import remove_rests
from zarr_dask.journal.finished import FinishedJob, finished_job
from zarr_dask.journal.manifest import ManifestPlace
from zarr_dask.journal.receipts import Receipts
from zarr_dask.stores.base import append_or_none, is_remote
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.open import Location, canonical_location
from zarr_dask.stores.put_tags import Version, versions_below
from zarr_dask.stores.real_location import check_file

if TYPE_CHECKING:
    import dask.array as da

    from zarr_dask.hierarchy.key_swap import Swap

__all__ = [
    "Resume",
    "ResumeOptions",
    "ResumePlan",
    "Runs",
    "find_finished_append",
    "has_shown_swap",
    "is_done",
    "missing_blocks",
    "plan_resume",
    "remove_ended",
    "versions_of",
]

Resume = bool | str
"""Start anew, resume the same job, or resume the job of this name."""

Runs = tuple[tuple[int, int], ...]
"""Runs of block numbers in C order: the first number, and the length of the run."""


@dataclass(frozen=True)
class ResumeOptions:
    """Options of a write that concern journals; see `zarr_dask.plan_write`."""

    resume: Resume = False
    journal: Location | None = None
    manifest: bool | str | os.PathLike[str] | None = None
    sha256: bool = False
    ended: tuple[str, ...] = ()
    """`JobRecord.content_token` of the arrays that the first array of the same call records as
    written."""
    until: tuple[int, ...] | None = None
    """Shape that an append was to make the array when it was planned, before another process was
    found at work on the same one; None if none was."""
    confirm: bool = False
    """True to ask the store for the size of each object after it was put."""
    verify: bool = False
    """True to read each object back, and compare it with what was computed."""

    @property
    def needs_journal(self) -> bool:
        """True if the job must not run without a journal."""
        return bool(self.resume) or self.journal is not None or self.manifest is not None

    def check(self) -> None:
        """Check `resume`.

        Raises
        ------
        TypeError, ValueError
            If `resume` is neither a truth value nor a name.
        """
        check_resume(self.resume)

    def manifest_place(self, target: Array) -> ManifestPlace | None:
        """Return the location of the manifest, which keeps the receipts after the job."""
        if self.manifest is None:
            return None
        return ManifestPlace.of_node(self.manifest, target.store, target.path)


@dataclass(frozen=True)
class ResumePlan:
    """Journal of a job, and the job that it resumes."""

    job: JobRecord
    """The job as it is if it starts now."""
    place: JournalLocation | None
    """Location of its journal; None for none."""
    options: ResumeOptions
    resumed: tuple[Journal, JobRecord] | None
    """The journal and the job that it resumes; None for a new job."""
    replaced: tuple[Journal, ...]
    """Journals of jobs whose work this one overwrites."""
    beside: JournalLocation | None = None
    """Location where other jobs for the same node keep theirs; None for none."""
    is_told: bool = False
    """True if another array of the same call records that this one is written, and it exists."""
    finished: FinishedJob | None = None
    """Record of the same job, if it has ended and what it has made is there."""

    @property
    def has_ended(self) -> bool:
        """True if everything is written and only journals are left."""
        if self.is_told or self.finished is not None:
            return True
        return self.resumed is not None and self.resumed[1].ended

    @property
    def same_job(self) -> str:
        """Text that is equal only for the same job; empty if it cannot be resumed."""
        return self.job.token if self.job.resume else ""

    @property
    def may_mark(self) -> bool:
        """True if only the journal could tell that a process works on the job."""
        place = self.place
        return (
            bool(self.same_job)
            and place is not None
            and place.session is None
            and is_remote(place.store)
        )

    @property
    def ended_with(self) -> tuple[str, ...]:
        """The arrays of the same call, if the resumed job has ended (`JobRecord.finished_with`)."""
        job = None if self.resumed is None else self.resumed[1]
        return job.finished_with if job is not None and job.ended else ()

    def explain(self) -> str | None:
        """Return a line for the plan; None if there is nothing to say."""
        if self.finished is not None:
            return f"  done    the same job ended at {self.finished.ended}: nothing is left to do"
        if self.resumed is not None:
            journal, job = self.resumed
            return f"  resumes the job that began at {job.begun}; its journal is {journal.url}"
        if self.place is not None and self.options.needs_journal:
            files = (
                "at most 2 files for each process and 5 for all"
                if append_or_none(self.place.store)
                else "an object for each process and at least 2 s of its work"
            )
            found = "; no job to resume: everything is written" if self.options.resume else ""
            return f"  journal {self.place.url}, {files}{found}"
        return None

    def begin(
        self, what: str, run_id: str | None = None, *, needed: bool = False, marks: bool = False
    ) -> Journal | None:
        """Open the journal, or continue the one that was found.

        Parameters
        ----------
        what
            The array, for messages.
        run_id
            That of a new job, if it has one already.
        needed
            True if the job must have a journal, whatever its options are.
        marks
            True to say in the journal that this process works on the job; see
            `zarr_dask.journal.journal.Journal.note_as_only`.

        Raises
        ------
        StoreError
            If the job must have a journal, and none can be written.
        JobRunningError
            If a running process holds a job whose work this one overwrites.
        """
        self.remove_replaced()
        if self.resumed is not None:
            journal, job = self.resumed
            described = replace(self.job, run_id=job.run_id, begun=job.begun, swap=job.swap)
            if marks:
                journal.note_as_only(described, what)
                journal.merge()
            else:
                journal.merge()
                journal.note(described)
            return journal
        place = self.beside if needed and self.place is None else self.place
        if place is None:
            return None
        journal = new_journal(place, self.job)
        journal = replace(journal, run_id=run_id or journal.run_id)
        job = replace(self.job, run_id=journal.run_id)
        if marks:
            journal.note_as_only(job, what)
            return journal
        if needed or self.options.needs_journal:
            journal.begin(job)
            return journal
        with suppress(StoreError):  # beside a target that is not ours no journal can be written
            journal.begin(job)
            return journal
        return None

    def remove_replaced(self) -> None:
        """Remove the journals of jobs whose work this one overwrites.

        Raises
        ------
        JobRunningError
            If a running process holds one of them.
        """
        for old in self.replaced:
            old.check_not_locked("what this job writes over")
        for old in self.replaced:
            old.remove()

    def remove_rests(self) -> None:
        """Remove the journal of a job that was killed while it removed that, in local files."""
        place = self.place
        if self.resumed is None and place is not None and isinstance(place.store, FileStore):
            with suppress(StoreError):  # it keeps nobody away
                remove_rests(place.store, new_journal(place, self.job).prefix)

    def receipts(self, target: Array) -> Receipts | None:
        """Return the valid receipts of the job so far; None for a new job."""
        if self.resumed is None:
            return None
        return self.resumed[0].valid_receipts(versions_of(target))


def versions_of(target: Array) -> dict[str, Version]:
    """Return every object below the data prefix, by its key below the prefix."""
    return versions_below(target.store, target.node_format.data_prefix(target.path))


def plan_resume(
    values: da.Array,
    target: Array,
    region: Region,
    *,
    creates: bool,
    options: ResumeOptions,
    grows: bool = False,
    grown: bool = False,
    swap: Swap | None = None,
    free_beside: bool = False,
    waits: bool = False,
    anew: bool = False,
    unfinished: bool = False,
) -> ResumePlan:
    """Decide which journals a write opens, resumes or replaces; nothing is written.

    Parameters
    ----------
    values, target, region
        The values to write, and where they are in the end.
    creates, grows
        True if the write makes an array, or makes one longer.
    grown
        True if this job has made it longer already.
    options
        Options of the call.
    swap
        How the array replaces another one, if it does.
    free_beside
        True if it is known that no job keeps a journal beside the hierarchy.
    waits
        True if appends that processes work on are waited for.
    anew
        True if a job that has ended is done once more.
    unfinished
        True if another job may be making the same array, which finds out by the journal.

    Raises
    ------
    ResumeError
        If the job cannot be told from others, another one is open at the target, or a required
        journal has no location.
    """
    resume, required = options.resume, options.needs_journal
    if resume:
        check_resumable(target.store, target.where)
    manifest = options.manifest_place(target)
    if manifest is not None:
        _check_outside(target, manifest)
        check_file(manifest.store, manifest.key, "manifest=")
        manifest.check_free()
    place = _place(target, options.journal, required=required)
    job = _job(values, target, region, creates=creates, grows=grows, resume=resume, swap=swap)
    job = replace(job, append_committed=grown)  # it may be killed once more before it ends
    present = _open_at(target, place, needed=required, free_beside=free_beside)
    others = [pair for pair in present if _in_the_way(pair[1], job)]
    same = next((pair for pair in others if resume and _is_same(job, pair[1])), None)
    if resume and same is None:
        running = [pair for pair in others if waits and pair[0].is_locked()]
        open_ones = [pair for pair in others if pair not in running and not is_done(*pair, target)]
        _refuse_other(job, target, open_ones, swap)
    if same is not None:
        same = _unless_taken(same, target) if same[0].attach(same[1]) else None
    kept = None if same is None else same[0]
    local = place is not None and capabilities_of(place.store).append
    keeps_one = required or unfinished or ((creates or grows) and local)
    finished = None
    if resume and same is None and creates and not anew and place is not None:
        finished = finished_job(place.store, place.prefix, target.store, job)
    if resume and same is None and grown:
        ended = _ended_append(target, job, options)
        finished = None if ended is None else FinishedJob(ended.at, ended.report, {})
    return ResumePlan(
        finished=finished,
        job=job,
        place=place if keeps_one else None,
        options=options,
        resumed=same,
        replaced=tuple(found for found, _ in others if found != kept),
        beside=place if options.journal is None else default_place(target.store, target.path),
        is_told=job.content_token in options.ended and (not creates or _is_there(target)),
    )


def _place(target: Array, journal: Location | None, *, required: bool) -> JournalLocation | None:
    if journal is not None:
        return given_place(journal, target.store, target.path)
    place = default_place(target.store, target.path)
    if place is None and required:
        raise ResumeError(
            f"{target.where} has no place beside it for a journal, which resume= and manifest= "
            "need: it is in memory, in an archive, or the root of a bucket. Say where with "
            "journal=, a path or URL outside the hierarchy."
        )
    return place


def _check_outside(target: Array, manifest: ManifestPlace) -> None:
    """Refuse a manifest inside the array, where it would confuse other libraries."""
    place = canonical_location(manifest.store, manifest.key)
    node = canonical_location(target.store, target.path)
    if f"{place}/".startswith(f"{node}/"):
        raise ResumeError(
            f"manifest= names a place inside of {target.where}, which is to be written: "
            f"{where(manifest.store, manifest.key)}. Choose one outside of it."
        )


def _open_at(
    target: Array, place: JournalLocation | None, *, needed: bool, free_beside: bool = False
) -> list[tuple[Journal, JobRecord]]:
    """Return the jobs that have not ended; `needed` requires that `place` can be listed."""
    default = default_place(target.store, target.path)
    if place is None or (place == default and free_beside):
        found = []
    else:
        found = journals_at(place, needed=needed)
    if default is None or default == place or free_beside:
        return found
    return [*found, *journals_at(default)]


def _in_the_way(other: JobRecord, job: JobRecord) -> bool:
    """True if two jobs write to the same elements, or if both would make the array longer."""
    grow = other.extra.get("grows") and job.extra.get("grows")
    return bool(grow) or other.meets(job.region)


def _is_same(job: JobRecord, other: JobRecord) -> bool:
    facts = (job.token, job.region, dict(job.extra))
    return facts == (other.token, other.region, dict(other.extra))


def has_shown_swap(present: Array, options: ResumeOptions) -> bool:
    """True if a job with ``mode="swap"`` in an object store died after it had shown its version.

    Parameters
    ----------
    present
        The array as it is now.
    options
        Tells whether to resume a job.
    """
    if not options.resume:
        return False
    place = _place(present, options.journal, required=True)
    layout = _layout(present)
    found = _open_at(present, place, needed=True)
    return any(job.swap and job.extra.get("layout") == layout for _, job in found)


def find_finished_append(
    values: da.Array, present: Array, region: Region, options: ResumeOptions
) -> Region | None:
    """Return the region of an append that died after the array had grown; None if there is none.

    Otherwise the same call would append the values once more. Only the end of the job is left to
    do, or the other arrays of the same call; nothing if its process was killed after that.

    Parameters
    ----------
    values
        The values to append.
    present
        The array as it is now.
    region
        The region for the values.
    options
        Tells whether to resume a job.

    Raises
    ------
    AppendConflictError
        If the array is longer than it was before another process was found at work on the same
        append, and nothing tells that this one has made it so.
    """
    if not options.resume:
        return None
    back = tuple(
        slice(s.start - (s.stop - extent), extent, 1) if s.stop > extent else s
        for s, extent in zip(region, present.shape, strict=True)
    )
    if back == region:
        return None
    if any(s.start < 0 for s in back):
        _check_as_awaited(present, region, options)
        return None
    job = _job(values, present, back, creates=False, grows=True, resume=options.resume)
    if job.content_token in options.ended:
        return back
    place = _place(present, options.journal, required=True)
    found = _open_at(present, place, needed=True)
    if any(_is_same(job, other) and other.append_committed for _, other in found):
        return back
    if _ended_append(present, job, options) is not None:
        return back
    _check_as_awaited(present, region, options)
    return None


def _check_as_awaited(present: Array, region: Region, options: ResumeOptions) -> None:
    """Refuse to append behind what may be the same values, after another process was awaited."""
    if options.until not in (None, tuple(s.stop for s in region)):
        raise AppendConflictError(
            f"{where(present.store, present.path)} has been made longer while this append waited "
            "for the process that worked on the same one, which may have ended; nothing was "
            f"written. Look at the end of the array, whose shape is {present.shape} by now, and "
            "append again if the values are not there."
        )


def _ended_append(present: Array, job: JobRecord, options: ResumeOptions) -> EndedAppend | None:
    """Return the end of the same append, if it is known to have ended."""
    store, path, shape = present.store, present.path, present.shape
    was_awaited = options.until == shape
    return ended_append(store, path, job.content_token, shape, was_awaited=was_awaited)


def _job(
    values: da.Array,
    target: Array,
    region: Region,
    *,
    creates: bool,
    grows: bool,
    resume: Resume,
    swap: Swap | None = None,
) -> JobRecord:
    documents = target.node_format.documents(target.meta, target.path)
    prefix = target.node_format.data_prefix(target.path)
    layers: tuple[tuple[str, str], ...] = ()
    if isinstance(resume, str) and resume:
        token, how = f"name:{resume}", "name"
    elif resume:
        from zarr_dask.graph.tokens import layer_tokens

        layers = layer_tokens(values)
        token, how = _token(layers, values, target, region), "token"
    else:
        token, how = f"new:{token_hex(16)}", ""
    shape = list(values.shape)
    told = (token, "", shape) if not layers else (layers[-1][1], sorted(layers), shape)
    return JobRecord(
        kind="write",
        token=token,
        run_id="",
        resume=how,
        creates=creates,
        data="" if prefix == prefix_of(target.path) else prefix,
        objects=target.meta.grid.count_parts(region),
        documents={key: text.decode() for key, text in documents.items()},
        layers=layers,
        region=tuple((s.start, s.stop) for s in region),
        extra={
            "layout": _layout(target),
            "dtype": str(values.dtype),
            "shape": shape,
            "grows": grows,
            "swaps": _swapped(target, swap),
        },
        swap="" if swap is None else swap.token,
        content_token=_digest(
            [*told, str(values.dtype), canonical_location(target.store, target.path)]
        ),
    )


def _swapped(target: Array, swap: Swap | None) -> bool | str:
    """Return a fact of a job that puts an array, or a group with it, in place of another one."""
    if swap is None or not swap.path_beside(target.path):
        return swap is not None
    return f"/{swap.path}"


def _digest(facts: Any) -> str:
    return sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _token(
    layers: Sequence[tuple[str, str]], values: da.Array, target: Array, region: Region
) -> str:
    """Return a token that is equal for the same values, form and location."""
    facts = (
        sorted(token for _, token in layers),
        layers[-1][1] if layers else values.name,
        str(values.dtype),
        canonical_location(target.store, target.path),
        [(s.start, s.stop) for s in region],
        _layout(target),
    )
    return _digest(facts)


def _layout(target: Array) -> str:
    """Return a digest of the metadata that the bytes of stored objects depend on."""
    meta = replace(target.meta, attributes={}, dimension_names=None)
    texts = target.node_format.documents(meta, target.path)
    joined = b"\n".join(texts[key] for key in sorted(texts))
    return sha256(joined).hexdigest()[:32]


def _refuse_other(
    job: JobRecord,
    target: Array,
    others: Sequence[tuple[Journal, JobRecord]],
    swap: Swap | None,
) -> None:
    """Refuse to resume another job, or to overwrite its work without being told."""
    for journal, other in others:
        if other.swap and swap is not None and replace(swap, token=other.swap).is_done:
            raise ResumeError(
                f"the job with mode='swap' that began at {other.begun} has put its array at "
                f"{target.where}, and died before it could remove its journal. This call is "
                "another one: what reads that array reads the new one by now. If nothing is left "
                f"to do, remove {journal.url}; else pass resume=False to begin anew."
            )
        if other.resume:
            raise ResumeError(
                f"another job that began to write to {target.where} at {other.begun} has not "
                f"ended: {_difference(job, other)} Its journal is {journal.url}. Repeat the call "
                "as it was, or pass resume=False to begin anew and write over its work."
            )


def _difference(job: JobRecord, other: JobRecord) -> str:
    if job.resume != other.resume or (job.resume == "name" and job.token != other.token):
        return f"it was called with {_call(other)}, and now with {_call(job)}."
    known = set(other.layers)
    changed = [name for name, token in job.layers if (name, token) not in known]
    if changed:
        more = f" and {len(changed) - 1} that follow from it" if len(changed) > 1 else ""
        return (
            f"the layer {changed[0]!r} of its graph{more} was another one. It has been changed "
            "since, or is made anew each time, as unseeded random numbers are; if the values are "
            "the same all the same, a name such as resume='run-7' says so from the first call on."
        )
    if len(known) > len(set(job.layers)):
        return "its graph had more layers."
    if job.extra.get("grows") and job.region != other.region:
        return "the array has grown since, by other means."
    changed = [name for name, value in job.extra.items() if other.extra.get(name) != value]
    if not changed and job.region == other.region:
        return "its target had another address, such as another endpoint."
    words = [_WORDS.get(name, name) for name in changed]
    return f"its {' and '.join(words) or 'region'} was another one."


_WORDS = {"grows": "append=", "swaps": "mode="}
"""Names of a job's facts in the words of users."""


def _call(job: JobRecord) -> str:
    return f"resume={job.token.partition(':')[2]!r}" if job.resume == "name" else "resume=True"


def is_done(journal: Journal, other: JobRecord, target: Array) -> bool:
    """True if a job that writes an array died when only its journal was left.

    Such a job must not stop the next step of the same work (the next append, by the length of the
    array).
    """
    if other.ended:
        return True
    if other.kind != "write" or other.swap:
        return False
    try:
        _, meta = read_node(target.store, target.path, None, ReadOptions())
    except NodeNotFoundError:
        return False
    if not isinstance(meta, ArrayMeta) or len(meta.grid.shape) != len(other.region):
        return False
    if other.extra.get("grows") and not other.append_committed:
        return False
    reaches = all(
        stop <= extent for (_, stop), extent in zip(other.region, meta.grid.shape, strict=True)
    )
    if other.extra.get("grows") and not other.resume:
        return reaches  # it keeps no receipts, and all was stored before it said that it grows
    return reaches and len(journal.valid_receipts(versions_of(target), other)) == other.objects


def remove_ended(target: Array) -> None:
    """Remove journals beside an array of jobs that died when only these were left."""
    place = default_place(target.store, target.path)
    for journal, job in [] if place is None else journals_at(place):
        if is_done(journal, job, target) and not journal.is_locked():
            journal.remove()


def _is_there(target: Array) -> bool:
    """True if an array with the layout of the target exists at its location."""
    try:
        found, meta = read_node(target.store, target.path, None, ReadOptions())
    except NodeNotFoundError:
        return False
    if not isinstance(meta, ArrayMeta):
        return False
    return _layout(replace(target, meta=meta, node_format=found)) == _layout(target)


def _unless_taken(
    found: tuple[Journal, JobRecord], target: Array
) -> tuple[Journal, JobRecord] | None:
    """Return the journal and job to resume; None if another process has created the array.

    If all of the job's work is there, only its journal was left. A job that has ended starts again
    if its array was removed since.
    """
    journal, job = found
    if not job.creates:
        return found
    if job.ended:
        return found if _is_there(target) else (journal, replace(job, ended=False))
    try:
        read_node(target.store, target.path, None, ReadOptions())
    except NodeNotFoundError:
        return found
    done = journal.valid_receipts(versions_of(target), job)
    if len(done) == job.objects:
        return found
    # whoever else makes an array here removes the journal, or writes other bytes as its document: a
    # power cut has left this job's document, and not all of the objects that were written before
    ours = {key: text.encode() for key, text in job.documents.items()}
    return found if are_stored(target.store, ours) else None


# --- what is left ---------------------------------------------------------------------------------


def missing_blocks(target: Array, blocks: Blocks, region: Region, receipts: Receipts) -> Runs:
    """Return the runs of blocks that have a stored object without a valid receipt."""
    runs: list[tuple[int, int]] = []
    key = target.meta.chunk_key_encoding.key
    for number, part in enumerate(_regions(blocks, region)):
        if all(key(one.coords) in receipts for one in target.meta.grid.parts(part)):
            continue
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return tuple(runs)


def _regions(blocks: Blocks, region: Region) -> Iterator[Region]:
    """Yield the region of each block, in C order."""
    along = []
    for sizes, whole in zip(blocks, region, strict=True):
        starts = accumulate(sizes, initial=whole.start)
        along.append(
            [slice(start, start + size, 1) for start, size in zip(starts, sizes, strict=False)]
        )
    return product(*along)
