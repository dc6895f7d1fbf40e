"""Colours and axes that the figures of all plans share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TASK_COLOUR", "label_axes"]

TASK_COLOUR = "#222222"


def label_axes(axis: Axes, names: Sequence[str]) -> None:
    """Label two dimensions, the first of them vertical; an empty name stands for no dimension."""
    axis.set_ylabel(names[0])
    axis.set_xlabel(names[1])
    for name, side in zip(names, (axis.yaxis, axis.xaxis), strict=True):
        if not name:
            side.set_ticks([])
    axis.invert_yaxis()
    axis.spines[:].set_visible(False)
    axis.margins(0.02)
