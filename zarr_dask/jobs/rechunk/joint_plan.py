"""Rechunking several arrays by one plan: one memory limit, submission, journal and report.

The tasks of all arrays share the workers. A process never holds more than `max_mem`, because no
task of any array holds more than its share.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from zarr_dask._util.display import InWords, escape_control_chars
from zarr_dask.errors import PlanError
from zarr_dask.jobs.engine.plan import LISTED, format_bytes, more_line, pluralize
from zarr_dask.jobs.engine.report import JointReport
from zarr_dask.jobs.rechunk.html import plan_html
from zarr_dask.jobs.rechunk.job import SeparateArrays
from zarr_dask.jobs.rechunk.plan import VERSION, RechunkPlan
from zarr_dask.jobs.rechunk.plot import plot_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["JointRechunkPlan", "JointReport"]


@dataclass(frozen=True, kw_only=True, repr=False)
class JointRechunkPlan(InWords, SeparateArrays):
    """Rechunkings of several arrays; made by `zarr_dask.plan_rechunk` of a list of them."""

    members: tuple[RechunkPlan, ...]

    @property
    def plans(self) -> tuple[RechunkPlan, ...]:
        """Plans of the arrays, one by one."""
        return self.members

    def title(self) -> str:
        """Return a one-line summary."""
        return f"rechunk {pluralize(len(self.members), 'array')}, {format_bytes(self.nbytes)}"

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plans in words and numbers, of the first arrays."""
        lines = [self.title()]
        lines.append(self.memory_line)
        for number, stage in enumerate(self.stages, 1):
            lines.append(f"  stage {number}: {pluralize(stage.tasks, 'task')} of all arrays")
        lines += [member.explain() for member in self.members[:LISTED]]
        return "\n".join([*lines, *more_line(len(self.members), "array")])

    def plot(self) -> Figure:
        """Plot the grids of the largest arrays in all stages as a matplotlib figure.

        Below them are memory, bytes and requests of each stage, for all arrays together.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        return plot_plan(self, self.title(), self._names())

    def _repr_html_(self) -> str:
        said = [escape_control_chars(note) for member in self.members for note in member.notes]
        table = plan_html(self, self.title(), self._names())
        return table + "".join(f"<p>{escape(note)}</p>" for note in said)

    def _names(self) -> list[str]:
        """Return the names of the arrays among the others: paths, or else locations."""
        return [member.target.path or member.target.where for member in self.members]

    def to_json(self) -> str:
        """Return the plans as JSON, which `zarr_dask.load_plan` can load.

        Raises
        ------
        PlanError, StoreError
            As `RechunkPlan.to_json`.
        """
        if self.is_finished():
            raise PlanError(
                f"{self.where} have the metadata that the plan would write, so that nobody could "
                "tell whether it has been carried out. Delete them before, or use other targets."
            )
        return json.dumps(
            {
                "job": "rechunk several",
                "version": VERSION,
                "arrays": [member.facts() for member in self.members],
                "max_mem": self.max_mem,
                "threads": self.threads,
                "threads_per_process": self.threads_per_process,
                "overwrite": self.overwrite,
                "model": self.model.facts(),
                "run_id": self.run_id,
                "explained": self.explain().splitlines(),
            },
            indent=1,
        )
