"""Running one write or several, and ending their jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from zarr_dask.array.array import Array
from zarr_dask.errors import StoreError
from zarr_dask.formats.handles import tell_growth
from zarr_dask.jobs.engine.cluster import take_receipts
from zarr_dask.jobs.engine.probe import check_workers
from zarr_dask.jobs.engine.session_forks import SessionForks
from zarr_dask.jobs.engine.visibility import check_array_seen
from zarr_dask.jobs.engine.workers import find_workers
from zarr_dask.jobs.write.staging import StagingFolder
from zarr_dask.jobs.write.submit import BegunWrites, WriteProgress, compute_writes
from zarr_dask.jobs.write.target import ArrayTarget, Commit, Finalizer, WriteReport
from zarr_dask.journal import (
    ArrayEnd,
    Claim,
    JobLock,
    JobRecord,
    Journal,
    NodeClaim,
    end_of_array,
)
from zarr_dask.journal.finished import record_end
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import is_remote
from zarr_dask.stores.retry import counting_requests

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

    from zarr_dask.graph import WriteCollection

__all__ = ["Beginning", "StartedWrite", "make_finalizer", "run_plans"]

_LOG = logging.getLogger(__name__)


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
    swap: AtomicReplace | None = None
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
    room: StagingFolder | None = None
    """Folder of the array between, which goes when the job ends."""
    resumes: bool = False
    """True if the same call may go on with what is left after a failure."""
    appended: JobRecord | None = None
    """The job, if it makes an array longer and may be called again."""

    def record(self, report: WriteReport) -> None:
        """Keep the report of a job that may be called again after its end."""
        if self.journal is not None:
            record_end(self.journal, self.journal.job(), asdict(report))

    def merged(self, result: Any) -> WriteReport:
        """Return the report of the tasks, after merging all their changes into the store."""
        if self.finished is not None:
            return self.finished
        if self.forks is None:
            report: WriteReport = result
            return report
        report = self.forks.take(result)
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

    def stop(self) -> None:
        """Remove output that cannot be resumed."""
        if self.swap is not None and self.journal is None:
            self.swap.remove()
        if self.room is not None and not self.resumes:
            with suppress(StoreError):  # the first error is what matters
                self.room.remove()

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

    def give_up(self) -> None:
        """Leave the location of a new array to others, after a failure."""
        if self.node is not None:
            self.node.give_up(leaves_journal=self.resumes and self.journal is not None)

    def let_go(self, *, alone: bool = False, keeps: bool = False) -> None:
        """Let others append to an array that grows; see `ArrayEnd.leave`.

        The record of an append that has ended stays (`keeps`).
        """
        if self.end is not None and not keeps:
            self.end.leave(alone=alone)
        self.claim.close()


class Beginning(Protocol):
    """The parts of a write's plan that running it needs."""

    @property
    def target(self) -> Array:
        """Array to write to."""
        ...

    @property
    def values(self) -> da.Array:
        """Array to write."""
        ...

    @property
    def work_nbytes(self) -> int:
        """Decoded bytes that tasks write, those of an array between included."""
        ...

    @property
    def largest_block(self) -> int:
        """Decoded bytes of the largest block that a task writes."""
        ...

    def begun(
        self, topic: str, *, ends: bool, held: bool, client: Client | None = None
    ) -> StartedWrite:
        """Return the tasks, after making room at the target."""
        ...

    def withdraw(self) -> None:
        """Undo metadata changes that were made before the values, because the job has failed."""
        ...


def make_finalizer(
    begun: Iterable[StartedWrite], commit: Commit | None = None, group: NodeClaim | None = None
) -> Finalizer:
    """Return the end of the jobs of several arrays, to be called when all of them are written.

    The caller may have claimed the location of the group that they become visible with.
    """
    found = list(begun)
    journals = tuple(one.journal for one in found if one.journal is not None)
    swaps = tuple(one.swap for one in found if one.swap is not None)
    deferred = tuple(one.deferred for one in found if one.deferred is not None)
    rooms = tuple(one.room for one in found if one.room is not None)
    nodes = {one.node.key: one.node for one in found if one.node is not None and group is None}
    claims = tuple(nodes.values()) if group is None else (group,)
    tokens = tuple(one.token for one in found)
    return Finalizer(journals, swaps, tokens, commit, deferred, rooms, claims)


def _packages(plans: Sequence[Beginning]) -> set[str]:
    """Return the packages that functions in the graphs are of."""
    from zarr_dask.graph.requirements import packages_of

    return set().union(*(packages_of(plan.values.dask) for plan in plans))


def _reports(
    plans: Sequence[Beginning],
    begun: Sequence[StartedWrite],
    results: Iterable[Any],
    since: float,
) -> list[WriteReport]:
    """Return the report of each array, which is recorded if its job may be called again.

    The job has run since a time of `time.perf_counter`.
    """
    merged = [one.merged(result) for one, result in zip(begun, results, strict=True)]
    seconds = perf_counter() - since
    reports = [one if one.already_done else replace(one, seconds=seconds) for one in merged]
    for one in begun:
        one.check_shown()
    for plan, one, report in zip(plans, begun, reports, strict=True):
        one.record(report)
        if not report.already_done:
            tell_growth(plan.target.store, plan.target.path, plan.target.meta)
        _LOG.info("written: %s: %s", plan.target.where, report.explain())
    return reports


def run_plans(
    plans: Sequence[Beginning],
    client: Client | None,
    progress: WriteProgress | None,
    window: int | None,
    commit: Commit | None = None,
    group: NodeClaim | None = None,
) -> tuple[WriteReport, ...]:
    """Write one array or several, and end their jobs; `commit` and `group` as `make_finalizer`."""
    with counting_requests() as besides:
        reports = _run(plans, client, progress, window, commit, group)
    return (reports[0].with_waits(besides), *reports[1:]) if reports else reports


def _run(
    plans: Sequence[Beginning],
    client: Client | None,
    progress: WriteProgress | None,
    window: int | None,
    commit: Commit | None,
    group: NodeClaim | None,
) -> tuple[WriteReport, ...]:
    """Write one array or several, and end their jobs.

    The jobs end here, not in the last task: a task may be run again if a worker dies with its
    result, and an append is identified by its journal then.
    """
    begun: list[StartedWrite] = []
    since = perf_counter()

    def begin(topic: str) -> BegunWrites:
        begun.extend(plan.begun(topic, ends=False, held=True, client=client) for plan in plans)
        first = [one.staged for one in begun if one.staged is not None]
        return BegunWrites([one.write for one in begun], sum(one.done for one in begun), first)

    if _LOG.isEnabledFor(logging.INFO):  # a plan's words look at the workers
        _LOG.info("begin: %s", "; ".join(map(str, plans)))
    nbytes = sum(plan.work_nbytes for plan in plans)
    lends = max((plan.largest_block for plan in plans if is_remote(plan.target.store)), default=0)
    is_written = False
    targets = [(plan.target.store, plan.target.path) for plan in plans]
    cluster = find_workers(client).client
    check_workers(cluster, targets, packages=_packages(plans) if cluster else ())
    try:
        results = compute_writes(begin, nbytes, client, progress, window, lends=lends)
        reports = _reports(plans, begun, results, since)
        is_written = True
    except BaseException:
        for plan, one in zip(plans, begun, strict=False):
            one.keep_receipts(cluster)
            one.stop()
            plan.withdraw()
        raise
    finally:
        for one in begun:
            for held in one.held:
                held.close()
            if not is_written:
                one.let_go(alone=True)  # now: who waits must find nothing held
                if cluster is None:  # where tasks may run on, whoever comes next waits for them
                    one.give_up()
    kept: list[bool] = [False] * len(begun)
    try:
        finalizer = make_finalizer(begun, commit, group)
        finalizer.show()
        kept = [
            one.note_append(plan.target, report)
            for plan, one, report in zip(plans, begun, reports, strict=True)
        ]
        finalizer.end()
        return tuple(reports)
    finally:
        for one, is_kept in zip(begun, kept, strict=True):
            one.let_go(keeps=is_kept)
