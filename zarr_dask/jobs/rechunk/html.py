"""A plan of a rechunking as HTML: grids, memory, bytes and requests of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from zarr_dask.grid import Dimension, Grid, Shape
from zarr_dask.jobs.plan import counted, format_bytes
from zarr_dask.jobs.rechunk.stages import StagePlan

__all__ = ["stages_html"]

_SIDE = 110
"""Pixels of a picture of a grid."""
_MOST_LINES = 48
"""Borders along a side that are drawn; a finer grid is an even tone."""
_READ, _TASK, _WRITTEN = "#4477aa", "#222222", "#cc6677"  # as in the figures


def stages_html(
    title: str,
    stages: Sequence[StagePlan],
    names: Sequence[str | None] | None,
    max_mem: int,
    threads: int,
) -> str:
    """A table with a row for each stage.

    Parameters
    ----------
    title
        Above it.
    stages
        One after the other.
    names
        Of the dimensions, if they have any.
    max_mem
        Bytes that one process may hold.
    threads
        Tasks that share a process.
    """
    head = "".join(
        f"<th>{name}</th>" for name in ("stage", "read", "tasks", "written", "memory", "work")
    )
    rows = "".join(
        f"<tr>{_row(number, stage, names, max_mem, threads)}</tr>"
        for number, stage in enumerate(stages, 1)
    )
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{rows}</table>"


def _row(
    number: int,
    stage: StagePlan,
    names: Sequence[str | None] | None,
    max_mem: int,
    threads: int,
) -> str:
    source, target, costs = stage.source, stage.target, stage.costs
    pair = _pair(stage)
    labels = [_label(names, dimension) for dimension in pair]
    held = stage.memory(threads)
    cells = (
        str(number),
        _picture(source.grid, pair, _READ, labels) + _by(source.object_shape),
        _picture(stage.boxes, pair, _TASK, labels) + f"{stage.tasks:,} of {_by(stage.box)}",
        _picture(target.grid, pair, _WRITTEN, labels) + _by(target.object_shape),
        _bar(held, max_mem) + f"{format_bytes(held)} of {format_bytes(max_mem)}",
        f"decodes {format_bytes(costs.decoded)}<br>writes {format_bytes(costs.written)}, about "
        f"{format_bytes(costs.stored)} stored<br>{counted(costs.requests, 'request')}",
    )
    return "".join(f"<td style='vertical-align:top'>{cell}</td>" for cell in cells)


def _pair(stage: StagePlan) -> tuple[int, ...]:
    """The two dimensions along which the grids differ most."""
    grids = (stage.source.grid, stage.target.grid, stage.boxes)

    def differ(axis: int) -> float:
        counts = [max(grid.dimensions[axis].count, 1) for grid in grids]
        return max(counts) / min(counts)

    axes = sorted(range(stage.source.grid.ndim), key=differ, reverse=True)
    return tuple(sorted(axes[:2]))


def _label(names: Sequence[str | None] | None, dimension: int) -> str:
    name = None if names is None else names[dimension]
    return f"dimension {dimension}" if name is None else name


def _picture(grid: Grid, pair: tuple[int, ...], colour: str, labels: Sequence[str]) -> str:
    """The borders of a grid along two dimensions, the first of them downwards."""
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
    """Where cells end, in pixels; None if there are too many."""
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
