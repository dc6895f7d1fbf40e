"""Plans of rechunkings as HTML: grids, memory, bytes and requests of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from zarr_dask._util.display import escape_control_chars
from zarr_dask.grid.grid import Dimension, Grid, Shape
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.jobs.engine.job import ArraysPlan, PlanStage
from zarr_dask.jobs.engine.plan import Costs, format_bytes, pluralize
from zarr_dask.jobs.engine.predict import held_by_process

__all__ = ["ArrayRow", "plan_html", "rows_of", "stages_html", "telling_dimensions"]

_SIDE = 110
"""Width and height of a picture of a grid, in pixels."""
_MOST_LINES = 48
"""Maximum number of borders drawn along a side; a finer grid is an even tone."""
_READ, _TASK, _WRITTEN = "#4477aa", "#222222", "#cc6677"  # as in the figures
_MOST_PICTURES = 12
"""Maximum number of arrays whose grids are drawn, the largest ones."""
_MOST_ROWS = 200
"""Maximum number of arrays that are listed."""


def stages_html(
    title: str,
    stages: Sequence[StagePlan],
    names: Sequence[str | None] | None,
    max_mem: int,
    threads: int,
) -> str:
    """Return a table with a row for each stage.

    Parameters
    ----------
    title
        Caption of the table.
    stages
        Stages in order.
    names
        Names of the dimensions, if they have any.
    max_mem
        Maximum bytes that one process may hold.
    threads
        Number of tasks that share a process.
    """
    rows = "".join(
        _cells(
            (
                str(number),
                *_pictures(stage, names),
                _memory(stage, max_mem, threads),
                _work(stage.costs),
            )
        )
        for number, stage in enumerate(stages, 1)
    )
    head = _head(("stage", "read", "tasks", "written", "memory", "work"))
    return f"<table><caption>{escape(title)}</caption>{head}{rows}</table>"


@dataclass(frozen=True, slots=True)
class ArrayRow:
    """One array of several, as a row of a table."""

    name: str
    how: str
    """Description of the work on it."""
    nbytes: int
    stages: Sequence[StagePlan]
    """Stages that copy boxes; none for an array whose stored objects are copied as they are."""
    grid: Grid
    """Its stored objects at the end."""
    names: Sequence[str | None] | None
    """Names of its dimensions, if they have any."""
    costs: Costs


def rows_of(plan: ArraysPlan, names: Sequence[str]) -> list[ArrayRow]:
    """Return the arrays of a plan as rows for plots and tables."""
    return [
        ArrayRow(
            name=name,
            how=member.how(),
            nbytes=member.nbytes,
            stages=member.copy_stages,
            grid=member.target.meta.grid,
            names=member.target.dimension_names,
            costs=member.costs,
        )
        for name, member in zip(names, plan.members, strict=True)
    ]


def plan_html(plan: ArraysPlan, title: str, names: Sequence[str]) -> str:
    """Return tables of the stages of a plan, and of its arrays.

    Parameters
    ----------
    plan
        The plan; only its largest arrays are listed, and fewer are drawn.
    title
        Caption of the tables.
    names
        Names of the arrays.
    """
    arrays, max_mem, threads = rows_of(plan, names), plan.max_mem, plan.threads_per_process
    rows = "".join(
        f"<tr><td>{number}</td><td>{stage.busy:,}</td><td>{_memory(stage, max_mem, threads)}</td>"
        f"<td>{_work(stage.costs)}</td></tr>"
        for number, stage in enumerate(plan.stages, 1)
    )
    shared = f"<table><caption>{escape(title)}</caption>{_head(_SHARED)}{rows}</table>"
    by_size = sorted(range(len(arrays)), key=lambda n: arrays[n].nbytes, reverse=True)
    shown, drawn = sorted(by_size[:_MOST_ROWS]), set(by_size[:_MOST_PICTURES])
    body = "".join(_array_rows(arrays[n], pictured=n in drawn) for n in shown)
    left = len(arrays) - len(shown)
    more = f"<p>and {left:,} smaller ones</p>" if left else ""
    return f"{shared}<table>{_head(_ARRAYS)}{body}</table>{more}"


_SHARED = ("stage", "tasks", "memory", "work")
_ARRAYS = ("array", "how", "read", "tasks", "written", "work")


def _head(names: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"


def _array_rows(one: ArrayRow, *, pictured: bool) -> str:
    """Return a row for each stage of an array, or one row for the whole array."""
    words = (escape(escape_control_chars(one.name)), escape(escape_control_chars(one.how)))
    if not pictured:
        return _cells((*words, "", "", "", _work(one.costs)))
    if not one.stages:
        picture = _picture(one.grid, *_seen((one.grid,), one.names), _WRITTEN)
        return _cells((*words, "", "", picture + _by(one.grid.largest_cell), _work(one.costs)))
    first, *others = ((*_pictures(stage, one.names), _work(stage.costs)) for stage in one.stages)
    rows = [(*words, *first), *(("", "", *other) for other in others)]
    return "".join(map(_cells, rows))


def _cells(cells: Sequence[str]) -> str:
    inside = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr style='vertical-align:top'>{inside}</tr>"


def _pictures(stage: StagePlan, names: Sequence[str | None] | None) -> tuple[str, str, str]:
    """Return pictures of the source, the boxes of the tasks, and the target."""
    source, target = stage.source, stage.target
    seen = _seen((source.grid, target.grid, stage.boxes), names)
    return (
        _picture(source.grid, *seen, _READ) + _by(source.object_shape),
        _picture(stage.boxes, *seen, _TASK) + f"{stage.tasks:,} of {_by(stage.box)}",
        _picture(target.grid, *seen, _WRITTEN) + _by(target.object_shape),
    )


def _memory(stage: PlanStage | StagePlan, max_mem: int, threads: int) -> str:
    held = held_by_process([stage], threads)
    return _bar(held, max_mem) + f"{format_bytes(held)} of {format_bytes(max_mem)}"


def _work(costs: Costs) -> str:
    return (
        f"decodes {format_bytes(costs.decoded)}<br>encodes {format_bytes(costs.written)}, about "
        f"{format_bytes(costs.stored)} stored<br>{pluralize(costs.requests, 'request')}"
    )


def telling_dimensions(grids: Sequence[Grid]) -> tuple[int, ...]:
    """Return the two dimensions along which some grids of one shape differ most."""

    def differ(axis: int) -> tuple[float, int]:
        counts = [max(grid.dimensions[axis].count, 1) for grid in grids]
        return max(counts) / min(counts), max(counts)

    axes = sorted(range(grids[0].ndim), key=differ, reverse=True)
    return tuple(sorted(axes[:2]))


def _seen(
    grids: Sequence[Grid], names: Sequence[str | None] | None
) -> tuple[tuple[int, ...], list[str]]:
    """Return the dimensions that are drawn, and their names."""
    pair = telling_dimensions(grids)
    return pair, [_label(names, dimension) for dimension in pair]


def _label(names: Sequence[str | None] | None, dimension: int) -> str:
    name = None if names is None else names[dimension]
    return f"dimension {dimension}" if name is None else name


def _picture(grid: Grid, pair: tuple[int, ...], labels: Sequence[str], colour: str) -> str:
    """Return the borders of a grid along two dimensions, the first of them vertical, as SVG."""
    title = escape(", ".join(labels), quote=True)
    shapes = [
        f"<rect width='{_SIDE}' height='{_SIDE}' fill='none' stroke='{colour}'/>",
        f"<title>{title}</title>",
    ]
    for place, axis in enumerate(reversed(pair)):
        borders = _borders(grid.dimensions[axis])
        if borders is None:
            shapes.append(
                f"<rect width='{_SIDE}' height='{_SIDE}' fill='{colour}' fill-opacity='0.15'/>"
            )
            continue
        ends = ("x1='{0}' x2='{0}' y1='0' y2='{1}'", "y1='{0}' y2='{0}' x1='0' x2='{1}'")[place]
        shapes.extend(
            f"<line {ends.format(round(border, 1), _SIDE)} stroke='{colour}'/>"
            for border in borders
        )
    return f"<svg width='{_SIDE + 2}' height='{_SIDE + 2}'>{''.join(shapes)}</svg><br>"


def _borders(dimension: Dimension) -> list[float] | None:
    """Return the ends of cells in pixels; None if there are too many."""
    if dimension.count > _MOST_LINES:
        return None
    starts = (dimension.start(cell) for cell in range(1, dimension.count))
    return [start * _SIDE / dimension.extent for start in starts]


def _bar(held: int, max_mem: int) -> str:
    share = min(100 * held / max(max_mem, 1), 100)
    return (
        f"<div style='width:{_SIDE}px;border:1px solid #888'>"
        f"<div style='width:{share:.0f}%;height:0.8em;background:{_READ}'></div></div>"
    )


def _by(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one element"
