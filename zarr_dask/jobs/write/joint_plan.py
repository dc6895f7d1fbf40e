"""Several writes as one plan and one graph: common inputs of the arrays are computed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from secrets import token_hex
from typing import TYPE_CHECKING

from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.jobs.engine import check_reachable_from_workers, find_workers
from zarr_dask.jobs.engine.plan import LISTED, add_requests, format_bytes, more_line
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.zip_targets import check_archive_open, closes_zip_targets
from zarr_dask.jobs.write.commit import GroupCommit
from zarr_dask.jobs.write.plot import plot_writes
from zarr_dask.jobs.write.regroup import held_together
from zarr_dask.jobs.write.running import (
    WritePlan,
    make_finalizer,
    noting_removal,
    run_alone,
    run_plans,
)
from zarr_dask.jobs.write.start import start_write
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.journal import Journal, NodeClaims, new_journal
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client
    from matplotlib.figure import Figure

    from zarr_dask.graph import WriteCollection

__all__ = ["JointWritePlan"]


@hides("anew", "at_once", "commit", "run_alone")
@dataclass(frozen=True, eq=False, repr=False)
class JointWritePlan(Priced, InWords):
    """Several writes by one graph, without a stored object in common; made by `plan_write`."""

    plans: tuple[WritePlan, ...]
    commit: GroupCommit | None = None
    """Makes all arrays visible together; None if each one is shown when it is written."""
    anew: Callable[[], JointWritePlan] | None = None
    """Plans the same resumable job again, after another process has worked on it; None for others,
    and for plans whose maker does so."""

    def at_once(self) -> JointWritePlan:
        """Return the plan as `WritePlan.at_once` does, unless it makes new arrays.

        One new array may replace the location of another one, so they are started one after the
        other.
        """
        if any(plan.creates for plan in self.plans):
            return self
        return replace(self, plans=tuple(plan.at_once() for plan in self.plans))

    @property
    def tasks(self) -> int:
        """Number of writing tasks."""
        return sum(plan.tasks for plan in self.plans)

    @property
    def objects(self) -> int:
        """Number of stored objects that are written."""
        return sum(plan.objects for plan in self.plans)

    @property
    def nbytes(self) -> int:
        """Decoded bytes that are written."""
        return sum(plan.nbytes for plan in self.plans)

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of the writing tasks by kind."""
        return add_requests(plan.requests for plan in self.plans)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plans in words and numbers, of the first arrays."""
        lines = [plan.explain() for plan in self.plans[:LISTED]]
        lines += more_line(len(self.plans), "array")
        if any(plan.memory.held for plan in self.plans):
            lines.append(f"all arrays together: {format_bytes(self.process_memory)} per process")
        return "\n".join(lines)

    @property
    def process_memory(self) -> int:
        """Maximum bytes that a process holds while all arrays are written."""
        budgets = [plan.budget for plan in self.plans if plan.budget is not None]
        threads = (budgets[0].workers if budgets else find_workers()).threads_per_process
        return held_together([plan.memory for plan in self.plans], threads)

    def _repr_html_(self) -> str:
        return "".join(plan._repr_html_() for plan in self.plans)

    def to_json(self) -> str:
        """Return the plans as JSON; see `WritePlan.to_json`."""
        arrays = [plan.facts() for plan in self.plans]
        return json.dumps({"job": "write", "arrays": arrays}, indent=2)

    def plot(self) -> Figure:
        """Plot a panel for each array; see `WritePlan.plot`."""
        return plot_writes([plan.panel() for plan in self.plans])

    def collection(self, topic: str = "") -> WriteCollection:
        """Return the tasks of all, after making room at the targets; see `WritePlan.collection`."""
        from zarr_dask.graph import join_writes

        for plan in self.plans:
            check_archive_open(plan.target.store)
            check_reachable_from_workers(plan.target.store, merges=False)
        if self.commit is None:
            begun = [start_write(plan, topic, ends=False, held=False) for plan in self.plans]
            return join_writes([one.write for one in begun], make_finalizer(begun))
        with self._in_place(self.commit, held=False) as (plans, commit):
            begun = [start_write(plan, topic, ends=False, held=False) for plan in plans]
            finalizer = make_finalizer(begun, commit, commit.claims)
            return join_writes([one.write for one in begun], finalizer)

    @in_job()
    @closes_zip_targets(lambda plan: [one.target.store for one in plan.plans])
    def run(
        self,
        client: Client | None = None,
        progress: WriteProgress | None = None,
        window: int | None = None,
    ) -> tuple[WriteReport, ...]:
        """Run the plan; see `WritePlan.run`. Several arrays are one submission, unless in windows.

        If another process runs the same job with ``resume=``, its end is waited for.

        Raises
        ------
        ValueError
            If `window` is given, but blocks share intermediate results, including blocks of two
            arrays.
        """
        for plan in self.plans:
            plan.check_window(window)
        if window is not None:
            self._check_apart()
        return run_alone(
            self,
            lambda joint: joint.plans,
            self.anew,
            lambda joint: joint.run_alone(client, progress, window),
        )

    def run_alone(
        self, client: Client | None, progress: WriteProgress | None, window: int | None
    ) -> tuple[WriteReport, ...]:
        """Run the plan while no other process works on the same job."""
        if self.commit is None:
            return run_plans(self.plans, client, progress, window)
        with self.commit.claimed(), self._in_place(self.commit, held=True) as (plans, commit):
            return run_plans(plans, client, progress, window, commit, commit.claims)

    @contextmanager
    def _in_place(
        self, commit: GroupCommit, *, held: bool
    ) -> Iterator[tuple[Sequence[WritePlan], GroupCommit]]:
        """Make room for the arrays of a group; yield their plans, and the end with its claim."""
        resumed = (plan.resume.resumed for plan in self.plans)
        run_id = next((found[0].run_id for found in resumed if found is not None), token_hex(16))
        same = self.plans[0].resume.same_job if self.plans and held else ""
        group, is_as_seen = commit.claim_group(run_id, same)
        commit = replace(commit, claims=() if group is None else (group,))
        plans = self.plans
        if group is not None:
            plans = tuple(replace(plan, group_claim=group) for plan in plans)
        if not is_as_seen:
            plans = tuple(replace(plan, prefetched=None) for plan in plans)
        try:
            with fenced_deletes(None if group is None else group.fence):
                commit.make_room(resumed=self.is_resumed, is_as_seen=is_as_seen)
                made = [plan.target.path for plan in plans]
                commit = commit.with_version(made, resumed=self.is_resumed)
            gone = [(commit.store, commit.path)] if commit.overwrite else []
            if commit.swap is not None:  # else folders of such jobs would still be theirs
                for plan in plans:
                    plan.resume.remove_replaced()
            swapping = commit.beside(self._first_journal, resumed=self.is_resumed, held=held)
            with noting_removal(() if self.is_resumed else gone, plans), swapping:
                yield plans, commit
        except BaseException:
            if group is not None and not commit.is_half_shown():
                resumes = any(plan.resume.options.resume for plan in self.plans)
                tasks_run = find_workers(None).client is not None
                claims = NodeClaims(commit.claims)
                claims.give_up(leaves_journal=resumes, tasks_run=tasks_run)
            raise

    @property
    def _first_journal(self) -> Journal | None:
        """The journal that is removed last, if the arrays have some."""
        resume = self.plans[0].resume if self.plans else None
        if resume is None or resume.place is None:
            return None
        if resume.resumed is not None:
            return resume.resumed[0]
        return new_journal(resume.place, resume.job)

    @property
    def is_resumed(self) -> bool:
        """True if an earlier call has begun to write these arrays."""
        return any(plan.resume.resumed is not None for plan in self.plans)

    def _check_apart(self) -> None:
        """Refuse arrays that share an intermediate result."""
        for one, other in combinations(self.plans, 2):
            common = set(one.values.dask.layers) & set(other.values.dask.layers)
            if common:
                raise ValueError(
                    f"window= was given, but two of the arrays are made from {min(common)!r}, "
                    "which would be computed again for the second one. Leave window out, or write "
                    "one array after the other."
                )

    def stored(self) -> tuple[da.Array, ...]:
        """Return the targets as dask arrays."""
        return tuple(plan.stored() for plan in self.plans)
