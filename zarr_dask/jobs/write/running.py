"""Running one write or several, and ending their jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from zarr_dask.formats.handles import tell_growth
from zarr_dask.jobs.engine.probe import check_workers
from zarr_dask.jobs.engine.workers import find_workers
from zarr_dask.jobs.write.start import StartedWrite, start_write, withdraw_write
from zarr_dask.jobs.write.submit import BegunWrites, WriteProgress, compute_writes
from zarr_dask.jobs.write.target import Commit, Finalizer, WriteReport
from zarr_dask.journal import (
    NodeClaim,
)
from zarr_dask.stores.base import is_remote
from zarr_dask.stores.retry import counting_requests

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.jobs.write.plan import WritePlan

__all__ = ["make_finalizer", "run_plans"]

_LOG = logging.getLogger(__name__)


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


def _packages(plans: Sequence[WritePlan]) -> set[str]:
    """Return the packages that functions in the graphs are of."""
    from zarr_dask.graph.requirements import packages_of

    return set().union(*(packages_of(plan.values.dask) for plan in plans))


def _reports(
    plans: Sequence[WritePlan],
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
    plans: Sequence[WritePlan],
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
    plans: Sequence[WritePlan],
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
        begun.extend(
            start_write(plan, topic, ends=False, held=True, client=client) for plan in plans
        )
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
            withdraw_write(plan)
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
