"""Running the plan of one write (`WritePlan`) or several (`run_plans`), and ending their jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import starmap
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array
from zarr_dask.errors import JobReplacedError, NodeNotFoundError
from zarr_dask.formats.base import ArrayMeta, where
from zarr_dask.formats.handles import tell_growth
from zarr_dask.hierarchy.key_swap import Swap, may_have_versions
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.engine import check_reachable_from_workers, find_workers
from zarr_dask.jobs.engine.lifecycle import alone_at, waiting_for_same
from zarr_dask.jobs.engine.probe import check_workers
from zarr_dask.jobs.engine.zip_targets import check_archive_open, closes_zip_targets
from zarr_dask.jobs.write.plan import PlannedWrite
from zarr_dask.jobs.write.start import StartedWrite, start_write, withdraw_write
from zarr_dask.jobs.write.submit import ReadyWrites, WriteProgress, compute_writes
from zarr_dask.jobs.write.target import Commit, Finalizer, WriteReport
from zarr_dask.journal import JournalLocation, NodeClaim, new_journal
from zarr_dask.journal.finished import finished_job, record_of
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.open import local_path
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.retry import counting_requests

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

    from zarr_dask.graph import WriteCollection

__all__ = ["WritePlan", "make_finalizer", "noting_removal", "run_alone", "run_plans"]

P = TypeVar("P")
R = TypeVar("R")

_LOG = logging.getLogger(__name__)


@hides(
    "again",
    "anew",
    "at_once",
    "before",
    "between",
    "check_window",
    "copied",
    "deferred",
    "facts",
    "group_claim",
    "has_ended",
    "in_one_graph",
    "is_between",
    "panel",
    "plan_blocks",
    "reuse_prefetched_place",
    "prefetched",
    "spare",
    "staged",
    "staged_way",
    "staged_within",
    "swap",
    "ways_within",
    "with_array_between",
    "work_nbytes",
    "written",
)
@dataclass(frozen=True, eq=False, repr=False)
class WritePlan(PlannedWrite):
    """Everything that a write will do, as a value that can be run; made by `plan_write`."""

    def collection(self, topic: str = "") -> WriteCollection:
        """Return the tasks, after making room at the target: what it replaces is removed.

        Parameters
        ----------
        topic
            Topic under which tasks notify the clients of their cluster that they are done.
        """
        check_archive_open(self.target.store)
        check_reachable_from_workers(self.target.store, merges=False)
        return start_write(self, topic, ends=True, held=False).write

    @in_job()
    @closes_zip_targets(lambda plan: [plan.target.store])
    def run(
        self,
        client: Client | None = None,
        progress: WriteProgress | None = None,
        window: int | None = None,
    ) -> WriteReport:
        """Run the plan.

        If a task fails, no new ones start. The error is raised when the running ones have ended.
        If another process runs the same job with ``resume=``, its end is waited for.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task with its bytes, on a cluster in a thread of the client; True for
            a bar on the terminal or in the notebook.
        window
            Number of tasks that the scheduler may know of at a time, if each block is made from
            stores, or from nothing, by its own task alone. Short tasks are then run several at a
            time. By default this is done on a cluster with more than 20,000 such tasks.

        Raises
        ------
        ValueError
            If `window` is given, but blocks share intermediate results.
        JobRunningError
            If nobody can tell whether the process that works on the same job is still running.
        """
        self.check_window(window)
        return run_alone(
            self,
            lambda plan: (plan,),
            self.anew,
            lambda plan: run_plans((plan,), client, progress, window)[0],
        )

    def check_window(self, window: int | None) -> None:
        """Refuse windows of tasks that share intermediate results.

        Raises
        ------
        ValueError
            If they do.
        """
        from zarr_dask.graph import is_embarrassingly_parallel

        if window is None:
            return
        if not _is_number(window) or window < 1:
            raise ValueError(f"window={window!r}: expected a number of tasks of at least 1.")
        if self.regrouped or not is_embarrassingly_parallel(self.values):
            raise ValueError(
                "window= was given, but blocks are made from what they have in common (a "
                "reduction, a regrouping, an array in memory), which would be computed again in "
                "every window, or by tasks that dask lists one by one (dask.array.random, "
                "from_delayed). Leave window out, or store what they are made from first."
            )

    def stored(self) -> da.Array:
        """The target as a dask array."""
        target = self.target
        if self.again is not None:  # others may have made it longer before
            target = open_array(target.store, target.path)
        return target.to_dask()


def run_alone(
    planned: P,
    writes: Callable[[P], Sequence[PlannedWrite]],
    anew: Callable[[], P] | None,
    run: Callable[[P], R],
) -> R:
    """Run a job while no other process works on the same one; wait for that if it is resumable.

    Parameters
    ----------
    planned
        The plan of the job.
    writes
        Returns the writes in a plan.
    anew
        Plans the job again, after another process has worked on it; None if it is not resumable.
    run
        Runs a plan.

    Raises
    ------
    JobRunningError
        As `zarr_dask.jobs.engine.lifecycle.alone`.
    """

    def run_now() -> R:
        plan = plans.pop() if plans else again()
        with _alone_with(plan, writes(plan), again) as left:
            return run(left)

    if anew is None:
        return run(planned)
    plans, again = [planned], anew
    return waiting_for_same(run_now, ", ".join(one.target.where for one in writes(planned)[:1]))


@contextmanager
def _alone_with(planned: P, writes: Sequence[PlannedWrite], anew: Callable[[], P]) -> Iterator[P]:
    """Keep a process on this host from the same job in local files; yield what is to do then.

    Parameters as for `run_alone`.
    """
    kept = [(one.resume.place, one) for one in writes if one.resume.place is not None]
    if not kept:
        yield planned
        return
    place, first = kept[0]
    prefix = "\n".join(new_journal(at, one.resume.job).prefix for at, one in kept)
    with alone_at(place.store, prefix, first.target.where) as waited:
        if not waited and not any(_is_outdated(at, one, alone=len(kept) == 1) for at, one in kept):
            yield planned
            return
        if place.session is not None:
            place.session.refresh()  # it was opened before the other process had committed
        yield anew()


def _is_outdated(place: JournalLocation, write: PlannedWrite, *, alone: bool) -> bool:
    """True if another process has begun or ended the same job since a write was planned.

    In remote stores, where each look is a request, only the end of one write is looked for.
    """
    is_local = local_path(place.store, "") is not None
    if (is_local or alone) and _has_ended_since(place, write):
        return True
    if not is_local or place.session is not None:
        return False
    then, now = write.resume.resumed, new_journal(place, write.resume.job).job()
    if (None if then is None else then[1].run_id) != (None if now is None else now.run_id):
        return True
    return write.before is not None and not _is_as_long(write, write.before)


def _has_ended_since(place: JournalLocation, write: PlannedWrite) -> bool:
    """True if a job that makes an array has ended since it was planned."""
    job = write.resume.job
    if not write.creates or record_of(place.store, place.prefix, job.token) is None:
        return False
    if place.session is not None:  # it was opened before the other process may have committed
        return True
    return finished_job(place.store, place.prefix, write.target.store, job) is not None


def _is_as_long(write: PlannedWrite, before: ArrayMeta) -> bool:
    """True if an array that grows has the length with which its growth was planned."""
    target = write.target
    try:
        return open_array(target.store, target.path, format=target.format).shape == before.shape
    except NodeNotFoundError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def make_finalizer(
    begun: Iterable[StartedWrite], commit: Commit | None = None, group: Sequence[NodeClaim] = ()
) -> Finalizer:
    """Return the end of the jobs of several arrays, to be called when all of them are written.

    The caller may have claimed the location of the `group` that they become visible with.
    """
    found = list(begun)
    journals = tuple(one.journal for one in found if one.journal is not None)
    swaps: set[Swap] = {one.swap for one in found if one.swap is not None}
    if commit is not None and commit.swap is not None:
        swaps.add(commit.swap)
    deferred = tuple(one.deferred for one in found if one.deferred is not None)
    staging_folders = tuple(one.staging for one in found if one.staging is not None)
    nodes = {one.node.key: one.node for one in found if one.node is not None}
    claims = tuple(group or nodes.values())
    tokens = tuple(one.token for one in found)
    return Finalizer(journals, tuple(swaps), tokens, commit, deferred, staging_folders, claims)


def _packages(plans: Sequence[PlannedWrite]) -> set[str]:
    """Return the packages that functions in the graphs are of."""
    from zarr_dask.graph.requirements import packages_of

    return set().union(*(packages_of(plan.values.dask) for plan in plans))


def _reports(
    plans: Sequence[PlannedWrite],
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
    plans: Sequence[PlannedWrite],
    client: Client | None,
    progress: WriteProgress | None,
    window: int | None,
    commit: Commit | None = None,
    group: Sequence[NodeClaim] = (),
) -> tuple[WriteReport, ...]:
    """Write one array or several, and end their jobs; `commit` and `group` as `make_finalizer`."""
    with counting_requests() as besides:
        begun: list[StartedWrite] = []
        replaced = [] if commit is not None else [*filter(_removes, plans)]
        gone = [(one.target.store, one.target.path) for one in replaced]
        arrays = [one.target for one in replaced]
        with _leaving_no_journal(begun), noting_removal(gone, begun, arrays):
            reports = _run(begun, plans, client, progress, window, commit, group)
    return (reports[0].with_waits(besides), *reports[1:]) if reports else reports


@contextmanager
def _leaving_no_journal(begun: Sequence[StartedWrite]) -> Iterator[None]:
    """Remove the journals of writes that have begun if a later job replaces them."""
    try:
        yield
    except JobReplacedError as error:
        for one in () if error.is_same_job else begun:
            one.remove_replaced()
        raise


def _removes(plan: PlannedWrite) -> bool:
    """True if the location of a new array is freed before its first value is written."""
    is_in_place = plan.swap is None and not plan.is_between
    return plan.overwrite and is_in_place and plan.resume.resumed is None


@contextmanager
def noting_removal(
    gone: Sequence[tuple[Store, str]], begun: Sequence[object], arrays: Sequence[Array] = ()
) -> Iterator[None]:
    """Note at the error of a job that has begun that the nodes it replaces have been removed.

    The new ones are given if all of them are single `arrays`.
    """
    try:
        yield
    except Exception as error:
        if begun and gone:
            is_local = all(local_path(store, path) is not None for store, path in gone)
            can_swap = is_local or (bool(arrays) and all(map(may_have_versions, arrays)))
            instead = "Write to another location" + (", or pass mode='swap'," if can_swap else "")
            error.add_note(
                f"What was at {', '.join(starmap(where, gone))} before, if anything, was removed "
                f"when the job began: mode='w' frees the location first. {instead} to keep the "
                "old values until the new ones are whole."
            )
        raise


def _run(
    begun: list[StartedWrite],
    plans: Sequence[PlannedWrite],
    client: Client | None,
    progress: WriteProgress | None,
    window: int | None,
    commit: Commit | None,
    group: Sequence[NodeClaim],
) -> tuple[WriteReport, ...]:
    """Write one array or several, and end their jobs.

    The jobs end here, not in the last task: a task may be run again if a worker dies with its
    result, and an append is identified by its journal then.
    """
    since = perf_counter()

    def begin(topic: str) -> ReadyWrites:
        begun.extend(
            start_write(plan, topic, ends=False, held=True, client=client) for plan in plans
        )
        first = [one.staged for one in begun if one.staged is not None]
        done = sum(one.done for one in begun)
        return ReadyWrites([one.write for one in begun], done, first, [one.forks for one in begun])

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
            withdraw_write(plan)
        raise
    finally:
        for one in begun:
            for held in one.held:
                held.close()
            if not is_written:
                one.let_go(alone=True)  # now: who waits must find nothing held
                one.give_up(tasks_run=cluster is not None)
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
