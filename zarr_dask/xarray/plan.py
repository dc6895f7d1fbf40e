"""Plan of writing a dataset, and what has come of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.jobs.engine.plan import add_requests, format_bytes, pluralize
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.write.joint_plan import JointWritePlan
from zarr_dask.jobs.write.running import run_alone
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.graph import WriteCollection

__all__ = ["DatasetPlan", "DatasetReport"]


@dataclass(frozen=True, repr=False)
class DatasetReport(Priced, InWords):
    """Result of writing a dataset."""

    variables: Mapping[str, WriteReport]
    """Reports by path of the array below the group."""
    is_repeated: bool = False
    """True if an append found all of its labels stored already, and wrote nothing."""

    @property
    def objects(self) -> int:
        """Stored objects that were written."""
        return sum(one.objects for one in self.variables.values())

    @property
    def nbytes(self) -> int:
        """Decoded bytes that were written."""
        return sum(one.nbytes for one in self.variables.values())

    @property
    def stored(self) -> int:
        """Encoded bytes that were written."""
        return sum(one.stored for one in self.variables.values())

    @property
    def seconds(self) -> float:
        """Time of the whole job."""
        return max((one.seconds for one in self.variables.values()), default=0.0)

    @property
    def rate(self) -> float:
        """Decoded bytes per second; 0 if the time is not known."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def retried(self) -> int:
        """Requests that were retried because a store was busy or slow, or cut off a reply."""
        return sum(one.retried for one in self.variables.values())

    @property
    def waited(self) -> float:
        """Seconds that retried requests have waited, of all threads together."""
        return sum(one.waited for one in self.variables.values())

    @property
    def requests(self) -> dict[str, int]:
        """Requests of the writing tasks by kind; files have none."""
        return add_requests(one.requests for one in self.variables.values())

    def __str__(self) -> str:
        if self.is_repeated:
            return "nothing written: the labels to append are stored already"
        count = pluralize(len(self.variables), "variable")
        total = f"{count}, {format_bytes(self.nbytes)} ({format_bytes(self.stored)} stored)"
        return "\n".join([total, *(f"  {name}: {one}" for name, one in self.variables.items())])


@hides("anew", "at_once", "forget", "has_ended", "run_alone", "without_commit")
@dataclass(frozen=True, eq=False, repr=False)
class DatasetPlan(Priced, InWords):
    """Everything that writing a dataset will do; made by `plan_dataset`."""

    joint: JointWritePlan
    """The plans of the arrays, as one graph."""
    names: tuple[str, ...]
    """Paths of the arrays below the group, in the order of the plans."""
    where: str
    """Location of the group, for messages."""
    kept: tuple[str, ...] = ()
    """Variables that are stored, equal, and not written."""
    is_repeated: bool = False
    """True if the labels to append are stored already, so that nothing is written."""
    forget: Callable[[], None] | None = None
    """Removes the journals of an append that has ended, if nothing else is left of it."""
    anew: Callable[[], DatasetPlan] | None = None
    """Plans the same resumable job again, after another process has worked on it; None for others.
    """

    @property
    def tasks(self) -> int:
        """Number of writing tasks."""
        return self.joint.tasks

    @property
    def objects(self) -> int:
        """Number of stored objects that are written."""
        return self.joint.objects

    @property
    def nbytes(self) -> int:
        """Decoded bytes that are written."""
        return self.joint.nbytes

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of the writing tasks by kind."""
        return self.joint.requests

    @property
    def has_ended(self) -> bool:
        """True if the same call with ``resume=`` has written all arrays before."""
        plans = self.joint.plans
        return bool(plans) and all(plan.resume.has_ended for plan in plans)

    def without_commit(self) -> DatasetPlan:
        """Return the plan of a job that has ended: it changes no metadata."""
        return replace(self, joint=replace(self.joint, commit=None))

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan in words and numbers, variable by variable."""
        if self.is_repeated:
            return f"write nothing to {self.where}: the labels to append are stored already"
        lines = [
            f"write a dataset of {len(self.names)} arrays, {format_bytes(self.nbytes)}, to "
            f"{self.where}"
        ]
        commit = self.joint.commit
        if commit is not None and commit.bare:
            made = ", ".join(array.path for array in commit.bare)
            lines.append(f"  made without values: {made}")
        if self.kept:
            lines.append(f"  stored already: {', '.join(self.kept)}")
        if commit is not None:
            lines.append("  visible together, when all of it is written")
        if commit is not None and commit.swap is not None:
            lines.append("  written beside the old group, whose place it takes at the end")
        return "\n".join([*lines, self.joint.explain()])

    def _repr_html_(self) -> str:
        return self.joint._repr_html_()

    def to_json(self) -> str:
        """Return the plan as JSON."""
        arrays = [plan.facts() for plan in self.joint.plans]
        facts = {"job": "write dataset", "where": self.where, "kept": list(self.kept)}
        return json.dumps({**facts, "arrays": arrays}, indent=2)

    def at_once(self) -> DatasetPlan:
        """Return the plan to be run now, at locations that planning has found free."""
        plans = tuple(plan.at_once() for plan in self.joint.plans)
        return replace(self, joint=replace(self.joint, plans=plans))

    def collection(self) -> WriteCollection:
        """Return the tasks, after making room at the target; see `WritePlan.collection`."""
        return self.joint.collection()

    @in_job()
    def run(
        self,
        client: Client | None = None,
        progress: WriteProgress | None = None,
        window: int | None = None,
    ) -> DatasetReport:
        """Run the plan; see `WritePlan.run`.

        If another process runs the same job with ``resume=``, its end is waited for.
        """
        return run_alone(
            self,
            lambda plan: plan.joint.plans,
            self.anew,
            lambda plan: plan.run_alone(client, progress, window),
        )

    def run_alone(
        self, client: Client | None, progress: WriteProgress | None, window: int | None
    ) -> DatasetReport:
        """Run the plan while no other process works on the same job."""
        if self.is_repeated:
            if self.forget is not None:
                self.forget()
            return DatasetReport({}, is_repeated=True)
        reports: Any = self.joint.run(client, progress, window)
        return DatasetReport(dict(zip(self.names, reports, strict=True)))
