"""Starting, resuming and finishing a job that writes images.

One journal beside the new node holds the receipts of all levels of all images; each super-cell
leaves one receipt. A resumed job therefore repeats only the super-cells that have a stored object
without a valid receipt. Metadata are written at the end, those of the outermost group last. A job
with ``resume=`` leaves a record of its end, by which the same call is answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from secrets import token_hex
from typing import Any

import numpy as np

from zarr_dask._util.arguments import check_resume
from zarr_dask._util.threads import parallel_for
from zarr_dask.array.array import Array
from zarr_dask.errors import (
    ListingError,
    NodeExistsError,
    ResumeError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.formats.base import Limits, prefix_of, read_documents, where
from zarr_dask.hierarchy.edit import (
    check_can_create,
    consolidate_group,
    create_parent_groups,
    make_room_for_node,
    puts_metadata_first,
    write_documents,
)
from zarr_dask.hierarchy.locate import PrefetchedLocation, prefetch_location
from zarr_dask.jobs.engine.array_job import metadata_hash
from zarr_dask.jobs.engine.lifecycle import alone_at, waiting_for_same
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.journal import (
    JobRecord,
    Journal,
    JournalLocation,
    NodeClaims,
    check_resumable,
    claim_nodes,
    default_place,
    discard_journals,
    given_place,
    new_journal,
    open_journals,
)
from zarr_dask.journal.finished import FinishedJob, finished_job, put_record
from zarr_dask.journal.receipts import Receipts
from zarr_dask.ome.pyramid_plan import PyramidJobPlan, PyramidPlan
from zarr_dask.ome.pyramid_task import PyramidRecords
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.open import Location, canonical_location
from zarr_dask.stores.put_tags import versions_below

__all__ = ["PyramidJob", "is_empty", "started_or_resumed", "unfinished_arrays"]

_KIND = "pyramid"
_ARRAYS = "arrays"
"""The field of a job that lists the arrays it writes."""


@dataclass(frozen=True, eq=False)
class PyramidJob:
    """A plan, and the journal of its tasks."""

    plan: PyramidJobPlan
    journal: Journal | None
    """The journal; while it exists, the job is not finished."""
    keeps_receipts: bool
    is_resumed: bool = False
    claims: NodeClaims = field(default_factory=NodeClaims)
    """Claims to the locations of the new nodes, in a remote store."""
    finished: FinishedJob | None = None
    """The record of the same job, if it has ended and there is nothing to do."""

    @property
    def records(self) -> PyramidRecords | None:
        """Looks and receipts of tasks; None if there are neither."""
        journal = self.journal if self.keeps_receipts else None
        if journal is None and not self.claims.claims:
            return None
        return PyramidRecords(journal, prefix_of(self.plan.path), self.claims)

    def receipts(self) -> Receipts | None:
        """Return the valid receipts of a resumed job."""
        return self._valid() if self.is_resumed else None

    def _valid(self) -> Receipts | None:
        plan = self.plan
        if self.journal is None:
            return None
        return self.journal.valid_receipts(versions_below(plan.store, prefix_of(plan.path)))

    def finish(self, report: Mapping[str, Any]) -> None:
        """Make the images visible, and finish the job.

        Parameters
        ----------
        report
            Fields of the job's report, for the record of its end.

        Raises
        ------
        ResumeError
            If another job has started to write to the same location, or something is missing.
        """
        plan = self.plan
        job = None
        self.claims.fence()
        if self.journal is not None:
            job = self.journal.job()
            if job is not None and job.run_id != self.journal.run_id:
                raise ResumeError(
                    f"{where(plan.store, plan.path)} is being written anew by a job that began at "
                    f"{job.begun}, so that this one cannot end. Let only one of them run."
                )
            self.journal.fence()
        if self.keeps_receipts:
            valid = self._valid()
            left = plan.objects - (0 if valid is None else len(valid))
            if left:
                raise ResumeError(
                    f"{where(plan.store, plan.path)} is not complete: {pluralize(left, 'object')} "
                    f"of {plan.objects} have no valid receipt. The same call does what is missing."
                )
        self.claims.fence()
        _put_nodes(plan.store, plan.documents)
        for amend in plan.amends:
            amend()
        for path in sorted(plan.consolidated, key=len, reverse=True):
            consolidate_group(plan.store, path, plan.node_format)
        if self.journal is not None:
            if job is not None and job.resume:
                put_record(self.journal, job.token, report, _recorded(plan))
            self.journal.remove()
        self.claims.release()

    def give_up(self, *, tasks_run: bool) -> None:
        """Leave the locations to others, after a failure; see `NodeClaim.give_up`."""
        self.claims.give_up(leaves_journal=self.journal is not None, tasks_run=tasks_run)


def _put_nodes(store: Store, nodes: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write the metadata of nodes, the deepest first and the outermost last."""
    by_depth: dict[int, list[str]] = {}
    for path in nodes:
        by_depth.setdefault(path.count("/") + bool(path), []).append(path)
    for depth in sorted(by_depth, reverse=True):
        parallel_for(lambda path: write_documents(store, nodes[path]), by_depth[depth], None)


@contextmanager
def started_or_resumed(
    plan: PyramidJobPlan, resume: bool | str, journal: Location | None
) -> Iterator[PyramidJob]:
    """Resume the same job if requested and possible; otherwise start a new one.

    While another process works on the same resumable job, its end is waited for.

    Raises
    ------
    JobRunningError
        As `zarr_dask.jobs.engine.lifecycle.alone`.
    """
    check_resume(resume)
    at = where(plan.store, plan.path)
    if resume:
        check_resumable(plan.store, at, by_checkpoints=False)
    required = bool(resume) or journal is not None
    place = default_place(plan.store, plan.path)
    if journal is not None:
        place = given_place(journal, plan.store, plan.path)
    if place is None and required:
        raise ResumeError(
            f"{at} has no place beside it for a journal, which resume= needs: it is in memory, in "
            "an archive, or the root of a bucket. Say where with journal=, a path or URL outside "
            "the hierarchy."
        )
    job = JobRecord(
        kind=_KIND,
        token=_token(plan, resume),
        run_id="",
        resume="name" if isinstance(resume, str) and resume else "token" if resume else "",
        creates=plan.creates,
        objects=plan.objects,
        extra={_ARRAYS: [array.path for one in plan.pyramids for array in one.arrays]},
    )
    if place is None or not resume:
        yield _started(plan, job, place, resume=resume, is_required=required)
        return
    with alone_at(place.store, new_journal(place, job).prefix, at):
        start = partial(_started, plan, job, place, resume=resume, is_required=required)
        yield waiting_for_same(start, at)


def _started(
    plan: PyramidJobPlan,
    job: JobRecord,
    place: JournalLocation | None,
    *,
    resume: bool | str,
    is_required: bool,
) -> PyramidJob:
    """Return the job that is resumed, or a new one."""
    found = [] if place is None else open_journals(place, needed=is_required)
    same = [pair for pair in found if resume and pair[1].token == job.token]
    if same:
        kept, old = same[0]
        kept.merge()
        resumed = PyramidJob(plan, kept, keeps_receipts=True, is_resumed=True)
        if _may_go_on(resumed):
            resumed = replace(resumed, claims=_claimed(plan, old.run_id, job))
            if resumed.claims.claims:
                kept.check_ours()
            kept.note(replace(job, run_id=old.run_id, begun=old.begun))
            create_parent_groups(plan.store, plan.path, plan.node_format)
            return resumed
    elif resume:
        _refuse_other(where(plan.store, plan.path), found)
        if not plan.overwrite and place is not None:
            described = replace(job, documents=_recorded(plan))
            ended = finished_job(place.store, place.prefix, plan.store, described)
            if ended is not None:
                return PyramidJob(plan, None, keeps_receipts=False, finished=ended)
    return _anew(plan, job, place, found, is_required=is_required)


def _recorded(plan: PyramidJobPlan) -> dict[str, str]:
    """Return the metadata by which a job is known to have ended: those that it writes last."""
    of_one = plan.documents.get(plan.path)
    written = plan.documents.values() if of_one is None else (of_one,)
    return {key: text.decode() for documents in written for key, text in documents.items()}


def _anew(
    plan: PyramidJobPlan,
    job: JobRecord,
    place: JournalLocation | None,
    found: Sequence[tuple[Journal, JobRecord]],
    *,
    is_required: bool,
) -> PyramidJob:
    """Start a new job, with a journal where one is required or costs nothing."""
    opened = None if place is None else new_journal(place, job)
    if is_remote(plan.store):  # one that may not be written stops no other job
        left = _left_behind(plan, [other for _, other in found])
        _check_places(plan, _located(plan).store, overwrite=plan.overwrite, left=left)
    claims = _claimed(plan, token_hex(16) if opened is None else opened.run_id, job)
    try:
        with fenced_deletes(claims.fence):
            _replace(plan, where(plan.store, plan.path), found, claims)
        keeps_one = is_required or (place is not None and capabilities_of(place.store).append)
        if opened is None or not keeps_one:
            return PyramidJob(plan, None, keeps_receipts=False, claims=claims)
        described = replace(job, run_id=opened.run_id)
        if is_required:
            opened.begin(described)
            return PyramidJob(plan, opened, keeps_receipts=True, claims=claims)
        with suppress(StoreError):  # beside a target that we cannot write to there is no journal
            opened.begin(described)
            return PyramidJob(plan, opened, keeps_receipts=False, claims=claims)
        return PyramidJob(plan, None, keeps_receipts=False, claims=claims)
    except BaseException:
        claims.give_up(leaves_journal=False)
        raise


def _claimed(plan: PyramidJobPlan, run_id: str, job: JobRecord) -> NodeClaims:
    """Claim the location of the new node, or of the groups around new levels, where claims are."""
    same = job.token if job.resume else ""
    if plan.creates:
        return claim_nodes(plan.store, [plan.path], run_id, same)
    levels = (array.path for pyramid in plan.pyramids for array in pyramid.arrays)
    return claim_nodes(plan.store, {path.rpartition("/")[0] for path in levels}, run_id, same)


def _located(plan: PyramidJobPlan, claims: NodeClaims | None = None) -> PrefetchedLocation:
    """Return the location of new images as it is now; the one of new levels is asked as needed."""
    if not plan.creates or plan.first:  # which may change it
        return PrefetchedLocation(plan.store)
    own = [] if claims is None else [claim.key for claim in claims.claims]
    return prefetch_location(plan.store, plan.path, own=own)


def _replace(
    plan: PyramidJobPlan,
    at: str,
    found: Sequence[tuple[Journal, JobRecord]],
    claims: NodeClaims,
) -> None:
    """Prepare the location of the images; remove leftovers of jobs, unless one is running."""
    for journal, _ in found:
        journal.check_not_locked(at)
    _make_room(plan, _left_behind(plan, [job for _, job in found]), _located(plan, claims))
    for journal, job in found:
        _remove_leftovers(plan, job)
        journal.remove()


def _refuse_other(at: str, found: Sequence[tuple[Journal, JobRecord]]) -> None:
    for journal, other in found:
        if other.resume:
            raise ResumeError(
                f"another job that began to write to {at} at {other.begun} has not ended. Its "
                f"journal is {journal.url}. Repeat the call as it was, or pass resume=False to "
                "begin anew and write over its work."
            )


def _may_go_on(job: PyramidJob) -> bool:
    """True if no other writer has created a node at the location since the job started.

    If all work of the job is done, only its journal was left, and the job can be resumed as well.
    So can one whose images are visible, if a power cut took some of their objects.
    """
    plan = job.plan
    try:
        _check_places(plan, plan.store, overwrite=False)
    except NodeExistsError:
        valid = job.receipts()
        return (valid is not None and len(valid) == plan.objects) or _is_shown(plan)
    return True


def _is_shown(plan: PyramidJobPlan) -> bool:
    """True if the metadata of new images are there: another job would have taken the journal."""
    keys = {key: text for documents in plan.documents.values() for key, text in documents.items()}
    return plan.creates and read_documents(plan.store, [*keys], Limits()) == keys


def _left_behind(plan: PyramidJobPlan, jobs: Sequence[JobRecord]) -> frozenset[str]:
    """Return paths of nodes left by a job that died while it wrote metadata.

    These are nodes of unfinished jobs whose metadata equal those of the plan. If the outermost node
    is among them and nothing remains to be done after it, the job was complete.
    """
    if not any(job.kind == _KIND for job in jobs):
        return frozenset()
    keys = [key for documents in plan.documents.values() for key in documents]
    there = read_documents(plan.store, keys, Limits())
    left = {
        path
        for path, documents in plan.documents.items()
        if all(there[key] == text for key, text in documents.items())
    }
    return frozenset() if plan.path in left and not plan.amends else frozenset(left)


def unfinished_arrays(store: Store, path: str, journal: Location | None = None) -> frozenset[str]:
    """Return paths of the arrays that unfinished jobs at a location write."""
    place = default_place(store, path) if journal is None else given_place(journal, store, path)
    jobs = [job for _, job in open_journals(place)] if place is not None else []
    told = [job.extra.get(_ARRAYS, ()) for job in jobs if job.kind == _KIND]
    return frozenset(
        one for of_one in told if isinstance(of_one, list) for one in of_one if isinstance(one, str)
    )


def _check_places(
    plan: PyramidJobPlan, store: Store, *, overwrite: bool, left: Collection[str] = frozenset()
) -> None:
    """Refuse images where nodes are that may not be replaced; the store may be prefetched."""
    node_format = plan.node_format
    if plan.creates and is_empty(store, plan.path):
        check_can_create(store, plan.path, node_format, overwrite=overwrite, is_group=True)
        return
    for pyramid in plan.pyramids:
        for array in pyramid.arrays:
            if array.path not in left:
                check_can_create(store, array.path, node_format, overwrite=overwrite)
    for path in plan.groups:
        if path not in left:
            check_can_create(store, path, node_format, overwrite=overwrite, is_group=True)


def _make_room(plan: PyramidJobPlan, left: Collection[str], located: PrefetchedLocation) -> None:
    """Remove replaced nodes, and the leftovers of a job that has died."""
    store, node_format = plan.store, plan.node_format
    _check_places(plan, located.store, overwrite=plan.overwrite, left=left)
    is_free = plan.creates and not plan.first and is_empty(located.store, plan.path)
    for begin in plan.first:
        begin()
    if plan.creates:
        make_room_for_node(
            store,
            plan.path,
            node_format,
            overwrite=plan.overwrite or plan.path in left,
            is_group=True,
            warns=not plan.consolidated,
            prefetched=None if plan.first else located,
        )
        if not located.free_beside:
            discard_journals(store, plan.path)
    if not (is_free or (plan.creates and is_empty(store, plan.path))):
        for pyramid in plan.pyramids:
            for array in pyramid.arrays:
                store.delete_prefix(prefix_of(array.path))
    if puts_metadata_first(store):
        _put_nodes(store, plan.documents)


def is_empty(store: Store, path: str) -> bool:
    """True if nothing exists at or below a path; False if it cannot be listed."""
    try:
        return next(iter(store.list(prefix_of(path))), None) is None
    except ListingError:
        return False


def _remove_leftovers(plan: PyramidJobPlan, job: JobRecord) -> None:
    """Remove the leftovers of a dead job in arrays that are not written now."""
    told = job.extra.get(_ARRAYS, ()) if job.kind == _KIND else ()
    for path in told if isinstance(told, list | tuple) else ():
        if not isinstance(path, str) or not path.startswith(prefix_of(plan.path)):
            continue
        with suppress(NodeExistsError, StoreKeyError):  # a node was created there since
            check_can_create(plan.store, path, plan.node_format, overwrite=False)
            plan.store.delete_prefix(prefix_of(path))


# --- identifying jobs -----------------------------------------------------------------------------


def _token(plan: PyramidJobPlan, resume: bool | str) -> str:
    """Return a token that is equal for jobs that write the same pixels to the same location."""
    if isinstance(resume, str) and resume:
        return f"name:{resume}"
    if not resume:
        return f"new:{token_hex(16)}"
    facts: list[Any] = [canonical_location(plan.store, plan.path), sorted(plan.documents.items())]
    for pyramid in plan.pyramids:
        facts += [_token_of(pyramid), pyramid.factors, _token_of_method(pyramid)]
    return sha256(repr(facts).encode()).hexdigest()[:32]


def _token_of(pyramid: PyramidPlan) -> Any:
    values = pyramid.pixels.values
    if isinstance(values, Array):
        return canonical_location(values.store, values.path), metadata_hash(values)
    if isinstance(values, np.ndarray):
        plain = np.ascontiguousarray(values).reshape(-1).view("u1")
        return values.shape, values.dtype.str, sha256(plain.data).hexdigest()
    from zarr_dask.graph.tokens import layer_tokens

    return layer_tokens(values), str(values.dtype)


def _token_of_method(pyramid: PyramidPlan) -> Any:
    from dask.tokenize import TokenizationError, tokenize

    method = pyramid.method
    try:
        return method.name, tokenize(method.reduce, method.margin, ensure_deterministic=True)
    except TokenizationError as error:
        raise ResumeError(
            f"resume=True must know whether a job is the same one, but the method {method.name!r} "
            f"looks different in each process ({error}). Pass a name, such as resume='run-7', if "
            "you see to it that calls with this name write the same pixels."
        ) from error
