"""Starting a write: claims, room at the target, the journal, and the tasks (`start_write`).

In this order: the end of what grows is claimed, the place is checked against the plan and claimed
where it is new, what is replaced is removed, the journal is opened. Only then there are tasks,
which `zarr_dask.jobs.write.running` computes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.array.revalidate import Shown
from zarr_dask.errors import AppendConflictError, StoreError
from zarr_dask.formats.base import ArrayMeta, Format
from zarr_dask.formats.concurrent_edit import write_changed_documents
from zarr_dask.formats.consolidated import warn_stale_consolidated
from zarr_dask.hierarchy.edit import (
    clear_room,
    create_parent_groups,
    make_room_for_array,
    puts_metadata_first,
    rollback_metadata,
    warn_mixed_formats,
)
from zarr_dask.hierarchy.exclusive import editing
from zarr_dask.hierarchy.key_swap import KeySwap, Swap
from zarr_dask.hierarchy.locate import is_still_free
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.engine import (
    check_reachable_from_workers,
    forks_for,
    runs_elsewhere,
    runs_processes,
)
from zarr_dask.jobs.engine.cluster import take_receipts
from zarr_dask.jobs.engine.resume import Runs, missing_blocks
from zarr_dask.jobs.engine.session_forks import ForkResult, SessionForks
from zarr_dask.jobs.engine.visibility import check_array_seen
from zarr_dask.jobs.write.staging import StagingFolder
from zarr_dask.jobs.write.target import ArrayTarget, WriteReceipts, WriteReport
from zarr_dask.journal import (
    ArrayEnd,
    Claim,
    JobLock,
    JobRecord,
    Journal,
    NodeClaim,
    OnConflict,
    SeenFolder,
    check_no_job,
    claim_node,
    end_of_array,
    see_folder,
)
from zarr_dask.journal.finished import record_end
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.sessions import job_session, when_committed
from zarr_dask.stores.streaming_put import room_within

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

    from zarr_dask.graph import Target, WriteCollection
    from zarr_dask.jobs.write.plan import PlannedWrite


__all__ = ["StartedWrite", "start_write", "withdraw_write"]

_ONE_STEP = sys.maxsize
"""Multiple of its tasks that a regrouping may have before dask puts steps between."""


@dataclass(frozen=True)
class StartedWrite:
    """A write whose target is ready."""

    write: WriteCollection
    journal: Journal | None
    """Journal of its job."""
    done: int
    """Decoded bytes written earlier by the job that it resumes."""
    held: tuple[BinaryIO | JobLock, ...] = ()
    """Locks and marks that show other jobs, while they are open, that this job is running."""
    swap: Swap | None = None
    """Swap that puts the array in place of another one, if any."""
    forks: SessionForks | None = None
    """Journals that its tasks write to, where those must be merged."""
    shown: Array | None = None
    """The new array that its last task makes visible, where that runs in another process."""
    token: str = ""
    """Tells the write from all others."""
    end: ArrayEnd | None = None
    """Of an array that grows: what this process has claimed."""
    claim: Claim = field(default_factory=Claim)
    """Says so while it is open."""
    node: NodeClaim | None = None
    """The claim to the location of a new array, or of a group with it, in a remote store."""
    deferred: ArrayTarget | None = None
    """Changes that become visible only together with the other arrays of the same call."""
    finished: WriteReport | None = None
    """Report of the same job, if it has ended earlier."""
    staged: WriteCollection | None = None
    """Tasks that write the array between, which have to be done before the others."""
    staging: StagingFolder | None = None
    """Folder of the array between, which goes when the job ends."""
    resumes: bool = False
    """True if the same call may go on with what is left after a failure."""
    marked: bool = False
    """True if its journal says that this process works on it; see `Journal.note_as_only`."""
    appended: JobRecord | None = None
    """The job, if it makes an array longer and may be called again."""

    def record(self, report: WriteReport) -> None:
        """Keep the report of a job that may be called again after its end."""
        if self.journal is not None:
            call = partial(record_end, self.journal, self.journal.job(), asdict(report))
            when_committed(self.journal.session, call)

    def merged(self, result: Any) -> WriteReport:
        """Return the report of the tasks, after merging all their changes into the store."""
        if self.finished is not None:
            return self.finished
        if self.forks is None:
            report: WriteReport = result
            return report
        report = self.forks.take(result) if isinstance(result, ForkResult) else result
        self.forks.merge()
        return report

    def check_shown(self) -> None:
        """See the array that another process has made visible.

        Raises
        ------
        StoreOutOfReachError
            If this process does not see it.
        """
        if self.shown is not None:
            check_array_seen(self.shown)

    def keep_receipts(self, client: Client | None) -> None:
        """Store the receipts that have been gathered, after a failure."""
        if self.journal is None:
            return
        if client is not None and self.journal.gathers:
            with suppress(OSError, RuntimeError):  # the cluster may have gone
                take_receipts(self.journal, client)
        self.journal.flush_after_failure()

    def remove_replaced(self) -> None:
        """Remove the journal after a later job has replaced this one."""
        if self.journal is not None:
            self.journal.remove_replaced()

    def stop(self) -> None:
        """Remove output that cannot be resumed."""
        if self.swap is not None and self.journal is None:
            self.swap.remove()
        if self.staging is not None and not self.resumes:
            with suppress(StoreError):  # the first error is what matters
                self.staging.remove()

    def note_append(self, target: Array, report: WriteReport) -> bool:
        """Record the end of an append that may be called again; return True if a record stays.

        Its journal is about to go, and nothing else tells the same call that the array has grown.
        """
        job = self.appended
        if job is None:
            return False
        end, claim = self.end, Claim()
        if end is None:  # only the end was left to do
            end = end_of_array(target.store, target.path, token_hex(8), job.content_token)
            with suppress(StoreError):  # an append that is under way makes it longer
                claim = Claim() if end is None else end.claim()
        if end is not None:
            end.note_ended(target.shape, asdict(report))
        claim.close()
        return end is not None

    def give_up(self, *, tasks_run: bool = False) -> None:
        """Leave the location of a new array to others, after a failure; see `NodeClaim.give_up`."""
        if self.node is not None:
            leaves_journal = self.resumes and self.journal is not None
            self.node.give_up(leaves_journal=leaves_journal, tasks_run=tasks_run)
        elif self.marked and self.journal is not None:
            self.journal.leave()

    def let_go(self, *, alone: bool = False, keeps: bool = False) -> None:
        """Let others append to an array that grows; see `ArrayEnd.leave`.

        The record of an append that has ended stays (`keeps`).
        """
        if self.end is not None and not keeps:
            self.end.leave(alone=alone)
        self.claim.close()


def start_write(
    plan: PlannedWrite, topic: str, *, ends: bool, held: bool, client: Client | None = None
) -> StartedWrite:
    """Return the tasks, after making room at the target, or claiming the end of what grows.

    Parameters
    ----------
    plan
        The write.
    topic
        As for `WritePlan.collection`.
    ends
        True if the last task ends the job; otherwise the process that waits for it does.
    held
        True if this process lives as long as the job.
    client
        As for `WritePlan.run`.
    """
    check_reachable_from_workers(plan.target.store, client)
    start = _WriteStart(plan, token_hex(16), topic, ends, held, client)
    end = start.end_to_claim()
    if end is None or not held:
        return start.behind(end)
    on_conflict: OnConflict = "error" if plan.again is None else "wait"
    claim = end.claim(on_conflict, renews=True, alone=not runs_elsewhere(client))
    try:
        start = start if plan.again is None else replace(start, plan=plan.again())
        return replace(start.behind(end), claim=claim, end=end)
    except BaseException:
        end.leave(alone=True)
        claim.close()
        raise


def withdraw_write(plan: PlannedWrite) -> None:
    """Undo metadata changes that were made before the values, because the job has failed."""
    target = plan.target
    if plan.creates:
        rollback_metadata(target.store, target.path)
    elif (
        plan.before is not None
        and puts_metadata_first(target.store)
        and job_session(target.store) is None
    ):
        _put_length(target, target.meta, plan.before)


def _put_length(target: Array, before: ArrayMeta, after: ArrayMeta) -> None:
    write_changed_documents(
        target.store,
        target.path,
        target.node_format,
        before,
        lambda now: replace(after, attributes=now.attributes),
        target.options,
        warns=False,  # `_WriteStart._make_room` has done so
    )


@dataclass(frozen=True)
class _WriteStart:
    """One write that is being started; parameters as for `start_write`."""

    plan: PlannedWrite
    token: str
    """Tells the write from all others."""
    topic: str
    ends: bool
    held: bool
    client: Client | None

    @property
    def _place(self) -> tuple[Store, str, Format]:
        target = self.plan.target
        return target.store, target.path, target.node_format

    # --- claims -----------------------------------------------------------------------------------

    def end_to_claim(self) -> ArrayEnd | None:
        """Return the end of an array that grows, where it can be claimed."""
        if self.plan.before is None:
            return None
        job, target = self.plan.resume.job, self.plan.target
        content = job.content_token if job.resume else ""
        return end_of_array(target.store, target.path, self.token, content)

    def behind(self, end: ArrayEnd | None) -> StartedWrite:
        """Start it where an append knows its end: one that is held has claimed that."""
        plan = self.plan
        if plan.has_ended:
            return self._nothing()
        self._check_place()
        node, is_as_seen = self._claimed_node()
        own, claim = None, Claim()
        try:
            with fenced_deletes(None if node is None else node.fence):
                self._make_room(node, is_as_seen=is_as_seen)
            own, claim = self._claimed_place() if self.held else (None, Claim())
            started = self._started(end, node)
        except BaseException:
            if own is not None:
                own.leave(alone=True)
            claim.close()
            if node is not None and node is not plan.group_claim:
                node.give_up(leaves_journal=bool(plan.resume.options.resume))
            raise
        if own is not None and self._is_seen_by_journal(started):
            own.leave()
            claim.close()
            return started
        return started if own is None else replace(started, claim=claim, end=own)

    def _is_seen_by_journal(self, started: StartedWrite) -> bool:
        """Return True if others see by the journal that this process makes the array.

        One file stands for the job then, to be removed by hand where nobody knows of its process.
        An array that is replaced at the end is there for appends, which do not look for journals.
        """
        is_beside = started.journal is not None and self.plan.resume.options.journal is None
        has_record = any(isinstance(one, JobLock) and one.has_record for one in started.held)
        return self.plan.swap is None and is_beside and has_record

    def _claimed_node(self) -> tuple[NodeClaim | None, bool]:
        """Claim the location of a new array in a remote store.

        Returns the claim, if there is one, and whether what planning has seen there still counts.
        """
        plan, resumed = self.plan, self.plan.resume.resumed
        if not plan.creates or plan.is_between or plan.group_claim is not None:
            return plan.group_claim, True
        job = self.token if resumed is None else resumed[0].run_id
        same = plan.resume.same_job if self.held else ""
        node, was_others = claim_node(plan.target.store, plan.target.path, job, job=same)
        is_looked_at = plan.swap is None and plan.reuse_prefetched_place
        if node is None or resumed is not None or not is_looked_at:
            if was_others and resumed is not None:
                resumed[0].check_ours()
            return node, True
        return node, not was_others and is_still_free(*self._place)

    def _claimed_place(self) -> tuple[ArrayEnd | None, Claim]:
        """Claim the place of a new array, which is empty then.

        Nobody else makes room there meanwhile, which removes what lies beside, and a new claim too.
        """
        own, target = self._claimable(), self.plan.target
        if own is None:
            return None, Claim()
        is_new = self.plan.resume.resumed is None
        with editing(target.store, target.path) as place:
            claim = own.claim()
            try:
                if place is not None and is_new:
                    check_no_job(place, target.where)  # which has given up its claim by now
                if self.plan.swap is None and is_new:
                    clear_room(*self._place, target.meta)
            except BaseException:
                own.leave(alone=True)
                claim.close()
                raise
        return own, claim

    def _claimable(self) -> ArrayEnd | None:
        """Return the place of a new array as one job claims it at a time, where claims pass."""
        plan = self.plan
        if plan.is_between or not (plan.creates or plan.swap is not None):
            return None
        if is_remote(plan.target.store):
            return None
        return end_of_array(plan.target.store, plan.target.path, self.token)

    # --- the place --------------------------------------------------------------------------------

    def _check_place(self) -> None:
        """Raise unless the array is as planned; tasks of this process need not check again.

        Tasks that are computed later do check.
        """
        plan, target = self.plan, self.plan.target
        if plan.reuse_prefetched_place and plan.prefetched is not None and plan.before is None:
            target = replace(target, store=plan.prefetched.store)
        before = None if self._is_longer_already() else plan.before
        confirms = plan.resume.options.confirm
        asked = ArrayTarget(target, plan.creates, before, token=self.token, confirms=confirms)
        if self.held:
            asked.check_place_once()
        else:
            asked.check_place()

    def _is_longer_already(self) -> bool:
        """True if a checkpoint of the job that is resumed has the new length."""
        plan, target = self.plan, self.plan.target
        if plan.before is None or plan.resume.resumed is None or job_session(target.store) is None:
            return False
        return open_array(target.store, target.path, format=target.format).shape == target.shape

    def _make_room(self, node: NodeClaim | None, *, is_as_seen: bool) -> None:
        """Remove what is replaced, and make the groups above; warn of what will not fit.

        The location is looked at again if it may not be as planning has seen it (`is_as_seen`).
        """
        plan, place = self.plan, self._place
        if isinstance(plan.swap, KeySwap):
            if not plan.deferred:  # else the group has begun
                warn_mixed_formats(*place)
                plan.swap.begin(node, resumed=plan.resume.resumed is not None)
        elif plan.swap is not None:
            if not plan.deferred:
                self._warn_of_stale()
                warn_mixed_formats(*place)
        elif plan.before is not None:  # here: what a worker warns of, nobody at the client sees
            if not plan.deferred:
                warn_stale_consolidated(*place)
        elif not plan.creates:
            return
        elif plan.resume.resumed is not None:
            if not plan.deferred:
                create_parent_groups(*place)
        else:
            make_room_for_array(
                *place,
                plan.target.meta,
                overwrite=plan.overwrite,
                prefetched=plan.prefetched if plan.reuse_prefetched_place and is_as_seen else None,
                alone=not plan.deferred,
                is_claimed=node is not None,
            )

    def _warn_of_stale(self) -> None:
        """Warn if existing consolidated metadata will not match the new array."""
        target = self.plan.target
        documents = target.node_format.documents(target.meta, target.path)
        if any(target.store.get(key) != text for key, text in documents.items()):
            warn_stale_consolidated(*self._place)

    def _left_to_show(self) -> tuple[bool, ArrayMeta | None]:
        """Return the metadata changes left for the last task: a new array, or a new length.

        Some stores accept no values before these changes; they are made here for such a store.
        """
        plan = self.plan
        if not puts_metadata_first(plan.target.store):
            return plan.creates, plan.before
        if plan.before is not None and not self._is_longer_already():
            _put_length(plan.target, plan.before, plan.target.meta)
        return False, None

    # --- what the tasks write to ------------------------------------------------------------------

    def _started(self, end: ArrayEnd | None, node: NodeClaim | None) -> StartedWrite:
        """Return the tasks that write to the place that has been made ready."""
        plan, resume = self.plan, self.plan.resume
        # what lands late from the job before is found by receipts (`ArrayTarget._check_landed`)
        was_others = node is not None and node.was_others
        run_id = None if node is None else node.token
        marks_itself = self.held and not (plan.creates or plan.before)
        journal = resume.begin(
            plan.target.where, run_id, needed=was_others, marks=marks_itself and resume.may_mark
        )
        marks, target = self._held_marks(journal), plan.target
        if plan.swap is not None:
            path = plan.swap.path_beside(target.path)
            target = replace(target, store=plan.swap.store, path=path)
        folder, opened = self._seen_folder(journal)
        marks += opened
        done = resume.receipts(target)
        only = None if done is None else missing_blocks(target, plan.blocks, plan.region, done)
        journal, records = self._records(journal, was_others=was_others)
        staging = self._staging_folder()
        made = self._target(target, end, node, records, folder, staging)
        if end is not None and self.held:
            made.claim_for_tasks()
        made.note_begun()
        forks = forks_for([target.store], self.client)
        if forks is not None and journal is not None and journal.session is not None:
            forks = forks.committing(journal.checkpoint_if_due)
        values, first = self._values(staging, nothing_left=only == ())
        write = self._write(values, made if forks is None else forks.target(made), target, only)
        return StartedWrite(
            write,
            journal,
            self._done(only),
            (*marks, *(() if first is None else first.held)),
            plan.swap,
            forks,
            plan.target if made.counts and not plan.deferred else None,
            self.token,
            deferred=made if plan.deferred else None,
            staged=None if first is None or self._is_chained else first.write,
            staging=staging,
            node=node,
            resumes=bool(resume.options.resume),
            marked=marks_itself and resume.may_mark,
            appended=self._appended,
        )

    def _target(
        self,
        target: Array,
        end: ArrayEnd | None,
        node: NodeClaim | None,
        records: WriteReceipts | None,
        folder: SeenFolder | None,
        staging: StagingFolder | None,
    ) -> ArrayTarget:
        """Return what the tasks write to; `target` is the array, where it is until the end."""
        plan, options = self.plan, self.plan.resume.options
        creates, before = self._left_to_show()
        is_elsewhere = not is_remote(target.store) and runs_elsewhere(self.client)
        return ArrayTarget(
            target,
            creates,
            before,
            plan.casting,
            plan.uses_cas,
            records,
            None if isinstance(plan.swap, KeySwap) and plan.deferred else plan.swap,
            None if plan.swap is None else plan.target,
            self.token,
            counts=creates and is_elsewhere,
            end=None if end is not None and self.held and end.stays else end,
            leaves=not self.held,
            deferred=plan.deferred,
            confirms=options.confirm,
            verifies=options.verify,
            staging=staging if self.ends else None,
            waiting=room_within(plan.spare),
            beside=plan.resume.beside,
            claim=node,
            releases=self.ends,
            folder=folder,
        )

    def _held_marks(self, journal: Journal | None) -> list[BinaryIO | JobLock]:
        """Return what shows others, while it is open, that this process works on the job."""
        swap = self.plan.swap
        marks: list[BinaryIO | JobLock] = []
        if self.held and journal is not None:
            marks.append(journal.lock())
        if isinstance(swap, AtomicReplace) and not self.plan.deferred:  # else it is a group's
            resumed = self.plan.resume.resumed is not None
            mark = swap.begin(held=self.held, journal=journal, resumed=resumed)
            marks += () if mark is None else (mark,)
        return marks

    def _seen_folder(self, journal: Journal | None) -> tuple[SeenFolder | None, list[JobLock]]:
        """Return the folder of an existing array, if no journal tells of later jobs, held open."""
        if journal is not None or self.plan.creates or self.plan.swap is not None:
            return None, []
        folder, opened = see_folder(*self._place)
        if opened is not None and not self.held:
            opened.close()
        return folder, [opened] if opened is not None and self.held else []

    def _records(
        self, journal: Journal | None, *, was_others: bool
    ) -> tuple[Journal | None, WriteReceipts | None]:
        """Return the journal as tasks use it, and what they leave behind besides the array."""
        if journal is None:
            return None, None
        plan, options = self.plan, self.plan.resume.options
        # the last task reads the receipts of all processes
        is_read = runs_elsewhere(self.client) and (options.manifest or was_others)
        gathers = self.held and not is_read
        can_append = capabilities_of(journal.store).append or journal.session is not None
        journal = replace(journal, gathers=gathers and not (can_append or runs_processes()))
        return journal, WriteReceipts(
            journal,
            options.needs_journal or was_others,
            options.manifest_place(plan.target),
            options.sha256,
            self.ends,
            plan.creates,
            plan.region if plan.partial and plan.before is None else None,
        )

    # --- the values -------------------------------------------------------------------------------

    def _values(
        self, staging: StagingFolder | None, *, nothing_left: bool
    ) -> tuple[da.Array, StartedWrite | None]:
        """Return the values in the blocks of the plan, and the write into an array between."""
        plan = self.plan
        if plan.staged and staging is not None and not nothing_left:
            return self._staged(staging)
        if plan.regrouped:
            # in one step, as estimated: dask's steps between hold whole blocks of their own
            return plan.values.rechunk(plan.blocks, _ONE_STEP, method="tasks"), None
        return plan.values, None

    def _write(
        self, values: da.Array, writer: Target, target: Array, only: Runs | None
    ) -> WriteCollection:
        from zarr_dask.graph import write_array

        origin = tuple(s.start for s in self.plan.region)
        waits = self.plan.regrouped and not self.plan.staged
        # a write is an effect: what a scheduler still knows of an equal one must not stand for it
        token = f"{target.token}-{self.token}"
        return write_array(values, writer, origin, token, only, self.topic, in_order=waits)

    def _staging_folder(self) -> StagingFolder | None:
        """Return the folder of the array between, if there is or may be one."""
        plan, resume = self.plan, self.plan.resume.options.resume
        if plan.between is None or not (plan.staged or resume):
            return None
        # a call that died may have left one where none is needed now
        return plan.between.staging(
            plan.values, plan.target, resume=resume, region=plan.region, held=self.held
        )

    def _staged(self, staging: StagingFolder) -> tuple[da.Array, StartedWrite]:
        """Return the values as they are read from the array between, and the write into that."""
        from zarr_dask.graph import read_after

        if self.plan.plan_blocks is None:
            raise TypeError("a plan with an array between has no plan for it.")
        plan = self.plan.plan_blocks(staging, self.plan.values)
        first = start_write(plan, self.topic, ends=True, held=self.held, client=self.client)
        between = replace(plan.target, shown=Shown(plan.target.path))
        if not self._is_chained:
            return between.to_dask(self.plan.blocks), first
        source = between.source(None)
        return read_after(first.write, source, self.plan.blocks, between.token), first

    @property
    def _is_chained(self) -> bool:
        """True if one graph writes the array between and reads it; else it is written before."""
        return self.plan.in_one_graph or not self.held

    def _done(self, missing: Runs | None) -> int:
        """Return the decoded bytes of the blocks that are already written."""
        plan = self.plan
        if missing is None:
            return 0
        ends = np.cumsum(reduce(np.multiply.outer, map(np.array, plan.blocks), np.array(1)))
        ends = np.concatenate([[0], ends])
        left = sum(int(ends[first + count] - ends[first]) for first, count in missing)
        return plan.nbytes - left * plan.target.meta.data_type.typical_itemsize

    def _nothing(self) -> StartedWrite:
        """Return a write of nothing, and the journal that is left to be removed."""
        plan, resume = self.plan, self.plan.resume
        resume.remove_rests()
        nobody = ArrayTarget(plan.target, creates=False, token=self.token)
        own, claim = self._left_claim()
        is_shown = self.held and isinstance(plan.swap, KeySwap)
        return StartedWrite(
            self._write(plan.values, nobody, plan.target, ()),
            None if resume.resumed is None else resume.resumed[0],
            plan.nbytes,
            swap=plan.swap,
            finished=None if resume.finished is None else WriteReport.of_record(resume.finished),
            appended=self._appended,
            end=own,
            claim=claim,
            node=self._claimed_node()[0] if is_shown else None,
            resumes=is_shown,
        )

    def _left_claim(self) -> tuple[ArrayEnd | None, Claim]:
        """Take over the claim of the process that died after it had put an array in its place."""
        own = self._claimable() if self.held and self.plan.swap is not None else None
        if own is not None:
            with suppress(AppendConflictError):  # the new array is being appended to by now
                return own, own.claim()
        return None, Claim()

    @property
    def _appended(self) -> JobRecord | None:
        """The job, if it makes the array longer and may be called again."""
        job = self.plan.resume.job
        return job if job.resume and job.extra.get("grows") else None
