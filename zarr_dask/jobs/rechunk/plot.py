"""Plots of plans, with matplotlib if it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zarr_dask._util.display import escape_control_chars
from zarr_dask.errors import MissingDependencyError
from zarr_dask.grid.grid import Grid, Shape
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.jobs.engine.figures import TASK_COLOUR, label_axes
from zarr_dask.jobs.engine.job import ArraysPlan, PlanStage
from zarr_dask.jobs.engine.plan import Costs, format_bytes, pluralize
from zarr_dask.jobs.engine.predict import held_by_process
from zarr_dask.jobs.rechunk.html import ArrayRow, rows_of, telling_dimensions

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_plan", "plot_rechunk"]

_MAX_LINES = 256
"""Maximum grid lines along a side; a finer grid is drawn as an even tone."""
_BOLD_LINES = 32
"""Maximum grid lines along a side at full width; more lines are drawn thinner."""
_MOST_ARRAYS = 6
"""Maximum number of arrays that are drawn, the largest ones."""
_SOURCE, _TARGET = "#4477aa", "#cc6677"  # of Paul Tol's bright set


def plot_rechunk(
    stages: Sequence[StagePlan],
    names: Sequence[str | None] | None,
    title: str,
    max_mem: int,
    threads: int,
) -> Figure:
    """Plot the stored objects before and after, and the tasks' boxes, along pairs of dimensions.

    Beside them is the memory of a process.

    Parameters
    ----------
    stages
        Stages, one row of panels each.
    names
        Names of the dimensions, if they have any.
    title
        Title of the figure.
    max_mem
        Maximum bytes that one process may hold.
    threads
        Number of tasks that share a process.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    ndim = stages[0].source.grid.ndim
    named = names or (None,) * ndim
    labels = [name or f"dimension {d}" for d, name in enumerate(named)]
    pairs = _pairs(ndim)
    rows = len(stages)
    figure = _figure(4.4 * len(pairs) + 1.4, 4.2 * rows + 1.1)
    widths = [*[1.0] * len(pairs), 0.18]
    axes = figure.subplots(rows, len(pairs) + 1, squeeze=False, width_ratios=widths)
    for row, stage in enumerate(stages):
        for column, pair in enumerate(pairs if ndim else []):
            axis = axes[row][column]
            _draw(axis, stage.source.grid, _SOURCE, pair, "read")
            _draw(axis, stage.target.grid, _TARGET, pair, "written")
            _draw(axis, stage.boxes, TASK_COLOUR, pair, "task")
            label_axes(axis, ["" if d is None else labels[d] for d in pair])
        costs = stage.costs
        axes[row][0].set_title(
            f"stage {row + 1}: {stage.tasks} tasks of {_by(stage.box)}, "
            f"{format_bytes(stage.peak)} each\n"
            f"decodes {format_bytes(costs.decoded)}, writes {costs.writes} objects of "
            f"{_by(stage.target.object_shape)}; {pluralize(costs.requests, 'request')}",
            loc="left",
            fontsize=9,
        )
        _draw_memory(axes[row][-1], held_by_process([stage], threads), max_mem)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.suptitle(title)
    return figure


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure with a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: install zarr-dask[plots].") from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_plan(plan: ArraysPlan, title: str, names: Sequence[str]) -> Figure:
    """Plot the stored objects of the largest arrays before and after, and the tasks' boxes.

    Below them is the memory of a process in each stage, for all arrays together.

    Parameters
    ----------
    plan
        The plan; its largest arrays get one row of panels each, its stages one column each.
    title
        Title of the figure.
    names
        Names of the arrays.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    stages, max_mem, threads = plan.stages, plan.max_mem, plan.threads_per_process
    largest = sorted(rows_of(plan, names), key=lambda one: one.nbytes, reverse=True)[:_MOST_ARRAYS]
    rows, columns = len(largest), len(stages)
    figure = _figure(5.2 * columns + 0.6, 4.2 * rows + 2.4)
    heights = [*[1.0] * rows, 0.2]
    axes = figure.subplots(rows + 1, columns, squeeze=False, height_ratios=heights)
    drawn: dict[str, Artist] = {}
    for row, one in enumerate(largest):
        for column in range(columns):
            _draw_array(axes[row][column], one, column)
            handles, labels = axes[row][column].get_legend_handles_labels()
            drawn.update(zip(labels, handles, strict=True))
    for column, stage in enumerate(stages):
        _draw_shared(
            axes[-1][column], column + 1, stage, max_mem, held_by_process([stage], threads)
        )
    figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=3, frameon=False)
    left = len(plan.members) - rows
    figure.suptitle(title + (f"\nand {pluralize(left, 'smaller array')}" if left else ""))
    return figure


def _draw_array(axis: Axes, one: ArrayRow, stage: int) -> None:
    """Draw one stage of one array; draw nothing if the array does not have this stage."""
    grids = {"written": (one.grid, _TARGET)}
    said = [one.name, one.how]
    if one.stages and stage < len(one.stages):
        plan = one.stages[stage]
        grids = {
            "read": (plan.source.grid, _SOURCE),
            "written": (plan.target.grid, _TARGET),
            "task": (plan.boxes, TASK_COLOUR),
        }
        said[1:] = [f"{pluralize(plan.tasks, 'task')} of {_by(plan.box)}", _work(plan.costs)]
    elif stage:
        axis.set_axis_off()
        return
    axis.set_title("\n".join(map(escape_control_chars, said)), loc="left", fontsize=8)
    seen = telling_dimensions([grid for grid, _ in grids.values()])
    if not seen:
        axis.set_axis_off()
        return
    pair = (seen[0] if len(seen) > 1 else None, seen[-1])
    for name, (grid, colour) in grids.items():
        _draw(axis, grid, colour, pair, name)
    named = one.names or (None,) * one.grid.ndim
    label_axes(
        axis,
        ["" if d is None else escape_control_chars(named[d] or f"dimension {d}") for d in pair],
    )


def _draw_shared(axis: Axes, number: int, stage: PlanStage, max_mem: int, held: int) -> None:
    """Draw a bar as long as the memory limit of a process, filled up to the memory held."""
    axis.barh([0], [max_mem / 1e6], height=1, fill=False, edgecolor=TASK_COLOUR)
    axis.barh([0], [held / 1e6], height=1, color=_SOURCE)
    axis.set_yticks([])
    axis.set_xlabel("MB of each process")
    axis.spines[:].set_visible(False)
    axis.set_title(
        f"stage {number} of all arrays: {pluralize(stage.busy, 'task')}\n{_work(stage.costs)}",
        loc="left",
        fontsize=9,
    )


def _work(costs: Costs) -> str:
    return (
        f"decodes {format_bytes(costs.decoded)}, about {format_bytes(costs.stored)} stored, "
        f"{pluralize(costs.requests, 'request')}"
    )


def _draw_memory(axis: Axes, held: int, max_mem: int) -> None:
    """Draw a bar as high as the memory limit of a process, filled up to the memory held."""
    axis.bar([0], [max_mem / 1e6], width=1, fill=False, edgecolor=TASK_COLOUR)
    axis.bar([0], [held / 1e6], width=1, color=_SOURCE)
    axis.set_xticks([])
    axis.set_ylabel("MB of each process")
    axis.spines[:].set_visible(False)


_Pair = tuple[int | None, int]
"""Two dimensions, vertical and horizontal; the first is None if there is only one."""


def _pairs(ndim: int) -> Sequence[_Pair]:
    """Return the dimensions of each panel."""
    if ndim < 2:
        return [(None, 0)]
    return [(first, ndim - 1) for first in range(ndim - 1)][:3] + ([(1, 0)] if ndim == 3 else [])


def _draw(axis: Axes, grid: Grid, colour: str, pair: _Pair, name: str) -> None:
    down, across = ([0, 1] if d is None else _borders(grid, d) for d in pair)
    height, width = down[-1], across[-1]
    widest = 2.2 if name == "task" else 0.9
    drawn = False
    for borders, draw, length in ((down, axis.hlines, width), (across, axis.vlines, height)):
        if len(borders) > _MAX_LINES:
            axis.fill_between([0, width], 0, height, color=colour, alpha=0.12, linewidth=0)
            continue
        label = "" if drawn else name
        linewidth = widest * min(1, _BOLD_LINES / len(borders))
        draw(borders, 0, length, colors=colour, linewidth=linewidth, label=label)
        drawn = True
    if not drawn:
        axis.plot([], [], color=colour, label=name)


def _borders(grid: Grid, dimension: int) -> list[int]:
    cut = grid.dimensions[dimension]
    return [min(cut.start(i), cut.extent) for i in range(cut.count + 1)]


def _by(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "1"
