"""Plots of writes: the owner of each stored object."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from zarr_dask.errors import MissingDependencyError
from zarr_dask.grid.grid import Blocks, Grid, Region, intersect_chunks
from zarr_dask.jobs.engine.figures import TASK_COLOUR, label_axes
from zarr_dask.jobs.engine.plan import pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["WritePanel", "plot_writes"]

_OWNERS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#bbcc33", "#44bb99", "#99ddff", "#77aadd",
           "#aaaa00")  # fmt: skip
_IN_PART = "#ee6677"
_MOST_CELLS = 256
"""Maximum number of stored objects along a side that are drawn."""


@dataclass(frozen=True)
class WritePanel:
    """Data for drawing one array."""

    title: str
    grid: Grid
    """The stored objects."""
    region: Region
    """The region that is written."""
    blocks: Blocks
    """Sizes of dask's blocks."""
    written: Blocks
    """Sizes of the blocks that are written, one task each."""
    in_part: int
    """Stored objects that the region covers only in part."""
    names: tuple[str | None, ...] | None
    """Names of the dimensions, if they have any."""


def plot_writes(panels: Sequence[WritePanel]) -> Figure:
    """Plot the owner of each stored object, one panel for each array.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: install zarr-dask[plots].") from error
    rows = -(-len(panels) // 3)
    columns = min(len(panels), 3)
    figure = Figure(figsize=(4.8 * columns + 0.4, 4.6 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.legend(
        handles=[
            Patch(facecolor=_OWNERS[0], label="written by one task"),
            Patch(facecolor=_OWNERS[1], label="by another one"),
            Patch(facecolor=_IN_PART, label="read, changed and written"),
            Patch(facecolor="none", edgecolor=TASK_COLOUR, label="dask block"),
        ],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
    )
    return figure


def _draw(axis: Axes, panel: WritePanel) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    grid, region = panel.grid, panel.region
    objects, tasks = grid.count_parts(region), prod(map(len, panel.written))
    shown = _longest(panel)
    sides = [_PlotAxis.of(panel, dimension) for dimension in shown]
    while len(sides) < 2:  # a line is drawn one element high
        sides.insert(0, _PlotAxis([(0, 1)], [0], [False], [0, 1], ""))
    down, across = sides
    boxes, colours = [], []
    for (top, bottom), row, row_cut in zip(down.cells, down.owners, down.cut, strict=True):
        for (left, right), column, cut in zip(across.cells, across.owners, across.cut, strict=True):
            boxes.append(Rectangle((left, top), right - left, bottom - top))
            owner = _OWNERS[row % 3 * 3 + column % 3]
            colours.append(_IN_PART if cut or row_cut else owner)
    patches = PatchCollection(boxes, facecolor=colours, edgecolor="white", linewidth=0.6)
    axis.add_collection(patches)
    width, height = across.borders[-1], down.borders[-1]
    start = across.borders[0], down.borders[0]
    axis.vlines(across.borders, start[1], height, colors=TASK_COLOUR, linewidth=1.4)
    axis.hlines(down.borders, start[0], width, colors=TASK_COLOUR, linewidth=1.4)
    axis.autoscale_view()
    label_axes(axis, [side.name for side in sides])
    others = [d for d in range(grid.ndim) if d not in shown]
    behind = f", {objects // max(prod(_met(panel, d) for d in shown), 1)} behind each other"
    left_out = any(_met(panel, d) > _MOST_CELLS for d in shown)
    axis.set_title(
        f"{panel.title}\n"
        f"{pluralize(tasks, 'task')} for {pluralize(objects, 'stored object')}"
        f"{behind if others else ''}, {panel.in_part} in part"
        f"{f', the first {_MOST_CELLS} along a side' if left_out else ''}",
        loc="left",
        fontsize=9,
    )
    if not all(s.stop > s.start for s in region):
        axis.set_axis_off()


def _longest(panel: WritePanel) -> list[int]:
    """Return the two longest dimensions of a region, in their order."""
    lengths = [s.stop - s.start for s in panel.region]
    longest = sorted(range(len(lengths)), key=lambda d: (-lengths[d], d))[:2]
    return sorted(longest)


def _met(panel: WritePanel, dimension: int) -> int:
    return len(intersect_chunks(panel.grid.dimensions[dimension], panel.region[dimension]))


@dataclass(frozen=True)
class _PlotAxis:
    """One dimension of a region, as drawn."""

    cells: list[tuple[int, int]]
    """Start and end of each stored object."""
    owners: list[int]
    """The written block that holds it."""
    cut: list[bool]
    """True for each stored object that the region covers only in part."""
    borders: list[int]
    """Borders between the blocks of dask."""
    name: str

    @staticmethod
    def of(panel: WritePanel, dimension: int) -> _PlotAxis:
        cut = panel.grid.dimensions[dimension]
        selected = panel.region[dimension]
        found = intersect_chunks(cut, selected)[:_MOST_CELLS]
        ends = list(accumulate(panel.written[dimension], initial=selected.start))[1:]
        cells = [(cut.start(one.coord), min(cut.start(one.coord + 1), cut.extent)) for one in found]
        owners = [bisect_right(ends, max(low, selected.start)) for low, _ in cells]
        last = max((high for _, high in cells), default=selected.start)
        borders = accumulate(panel.blocks[dimension], initial=selected.start)
        names = panel.names
        return _PlotAxis(
            cells,
            owners,
            [not one.whole for one in found],
            [border for border in borders if border <= last],
            (names[dimension] if names else None) or f"dimension {dimension}",
        )
