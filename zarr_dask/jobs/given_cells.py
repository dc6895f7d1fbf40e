"""Grids as users give them: lengths or sizes, by position or by name, of all dimensions or some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dask.errors import GridError
from zarr_dask.grid import Cells, Shape

__all__ = ["cells_given"]


def cells_given(
    given: Any, shape: Shape, names: Sequence[str | None], present: Cells, what: str, where: str
) -> Cells:
    """Lengths or sizes of the cells of a grid.

    Parameters
    ----------
    given
        A length for all dimensions, items for all of them, or a mapping from names or positions
        to items. An item is a length, -1 for the whole dimension, or the sizes of all cells.
    shape
        Of the array.
    names
        Of its dimensions, as far as they have any.
    present
        Holds where a mapping says nothing.
    what, where
        For messages.

    Raises
    ------
    GridError
        If that is no grid of such an array.

    Examples
    --------
    >>> cells_given({"t": -1, 1: 5}, (10, 20, 30), ("t", "y", "x"), (1, 2, 3), "chunks", "here")
    (10, 5, 3)
    """
    ndim = len(shape)
    if isinstance(given, Mapping):
        known = [*(n for n in names if n is not None), *range(ndim)]
        unknown = [key for key in given if key not in known]
        if unknown:
            raise GridError(
                f"{what} names {unknown}, which are no dimensions of {where}; it has {known}."
            )
        named = list(names)
        by_axis = {named.index(key) if isinstance(key, str) else key: v for key, v in given.items()}
        items: Sequence[Any] = [by_axis.get(axis, present[axis]) for axis in range(ndim)]
    elif isinstance(given, int | np.integer):
        items = [given] * ndim
    else:
        items = list(given)
    if len(items) != ndim or not all(map(_is_cell, items)):
        raise GridError(
            f"{what}={given!r}: expected {ndim} lengths of at least 1, or -1 for a whole "
            f"dimension, or the sizes of all of them, for the shape {shape}."
        )
    return tuple(
        tuple(map(int, item))
        if isinstance(item, Sequence)
        else (max(extent, 1) if item == -1 else int(item))
        for item, extent in zip(items, shape, strict=True)
    )


def _is_cell(item: Any) -> bool:
    """Whether an item is a length, -1, or the sizes of all cells of a dimension."""
    if isinstance(item, Sequence) and not isinstance(item, str):
        return len(item) > 0 and all(_is_length(size) and size >= 0 for size in item)
    return _is_length(item) and (item == -1 or item >= 1)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
