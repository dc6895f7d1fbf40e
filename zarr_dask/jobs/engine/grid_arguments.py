"""Grids and regions as users pass them: by position or by name, for all dimensions or some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dask.errors import GridError, SelectionError
from zarr_dask.grid.grid import Cells, Region, Shape
from zarr_dask.indexing.basic import expanded
from zarr_dask.jobs.engine.plan import counted

__all__ = ["cells_given", "check_not_empty", "cut_off", "region_given"]


def cells_given(
    given: Any, shape: Shape, names: Sequence[str | None], present: Cells, what: str, where: str
) -> Cells:
    """Return the lengths or sizes of the cells of a grid.

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
        Used for dimensions that a mapping does not name.
    what, where
        For messages.

    Raises
    ------
    GridError
        If that is not a grid of such an array, or names a dimension twice.

    Examples
    --------
    >>> cells_given({"t": -1, 1: 5}, (10, 20, 30), ("t", "y", "x"), (1, 2, 3), "chunks", "here")
    (10, 5, 3)
    """
    ndim = len(shape)
    if isinstance(given, Mapping):
        by_axis = _by_axis(given, names, ndim, what, where)
        items: Sequence[Any] = [by_axis.get(axis, present[axis]) for axis in range(ndim)]
    elif isinstance(given, int | np.integer):
        items = [given] * ndim
    else:
        items = list(given) if isinstance(given, Iterable) else [given]
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


def region_given(given: Any, shape: Shape, names: Sequence[str | None], where: str) -> Any:
    """Return a region as an index of slices; `given` may name dimensions, and may have integers.

    Parameters
    ----------
    given
        An index, or a mapping from names or positions to slices. An integer is a slice of one
        element.
    shape
        Of the array.
    names
        Of its dimensions, as far as they have any.
    where
        For messages.

    Raises
    ------
    GridError
        If it names unknown dimensions, or one of them twice.
    SelectionError
        If it names elements that do not exist, or has too many dimensions.

    Examples
    --------
    >>> region_given({"y": slice(3)}, (5, 4), ("t", "y"), "here")
    (slice(None, None, None), slice(None, 3, None))
    >>> region_given((..., -1), (5, 4), (), "here")
    (slice(None, None, None), slice(3, 4, None))
    """
    ndim = len(shape)
    if isinstance(given, Mapping):
        by_axis = _by_axis(given, names, ndim, "region", where)
        given = tuple(by_axis.get(axis, slice(None)) for axis in range(ndim))
    items = given if isinstance(given, tuple) else () if given is None else (given,)
    if not any(map(_is_length, items)) or any(item is None for item in items):
        return given
    return tuple(
        _one_element(item, length, where) if _is_length(item) else item
        for item, length in zip(expanded(items, shape), shape, strict=True)
    )


def _one_element(number: int, length: int, where: str) -> slice:
    if not -length <= number < length:
        raise SelectionError(
            f"region names the element {number} of a dimension of {where} that has {length}."
        )
    first = int(number) % length
    return slice(first, first + 1)


def _by_axis(
    given: Mapping[Any, Any], names: Sequence[str | None], ndim: int, what: str, where: str
) -> dict[int, Any]:
    known = [*(n for n in names if n is not None), *range(ndim)]
    unknown = [key for key in given if key not in known]
    if unknown:
        raise GridError(
            f"{what} names {unknown}, which are no dimensions of {where}; it has {known}."
        )
    named = list(names)
    keys: dict[int, Any] = {}
    for key in given:
        axis = named.index(key) if isinstance(key, str) else int(key)
        if isinstance(key, str) and named.count(key) > 1:
            raise GridError(
                f"{what} names {key!r}, which {named.count(key)} dimensions of {where} are called; "
                f"it has {named}. Give positions."
            )
        if axis in keys:
            raise GridError(
                f"{what} names one dimension of {where} twice, as {keys[axis]!r} and as {key!r}."
            )
        keys[axis] = key
    return {axis: given[key] for axis, key in keys.items()}


def check_not_empty(
    given: Any, region: Region, shape: Shape, names: Sequence[str | None], where: str
) -> None:
    """Refuse empty slices of non-empty dimensions, unless they are written as empty, like ``5:5``.

    NumPy cuts slices at the end of an array, so a wrong slice would silently give an empty array.

    Parameters
    ----------
    given
        An index of slices.
    region
        The region of the array that it selects.
    shape, names
        Of the array.
    where
        For messages.

    Raises
    ------
    SelectionError
        If there are such slices.

    Examples
    --------
    >>> check_not_empty(slice(3, 3), (slice(0, 0, 1),), (5,), (), "here")
    """
    items = given if isinstance(given, tuple) else () if given is None else (given,)
    for axis, item in enumerate(expanded(items, shape)):
        length, part = shape[axis], region[axis]
        if part.start < part.stop or not length or (item.start or 0) == item.stop:
            continue
        raise SelectionError(
            f"region {_said(item)} holds nothing of the dimension {_name(names, axis)!r} of "
            f"{where}, which has {counted(length, 'element')}. Give a slice within 0:{length}."
        )


def cut_off(given: Any, shape: Shape, names: Sequence[str | None], where: str) -> list[str]:
    """Return the slices of a region that reach beyond an array, in words; an index would cut them.

    Examples
    --------
    >>> cut_off({"t": slice(8, 12)}, (10, 4), ("t", "y"), "here")
    ["8:12 reaches beyond the 10 elements of the dimension 't'"]
    """
    if isinstance(given, Mapping):
        given = region_given(given, shape, names, where)
    items = given if isinstance(given, tuple) else () if given is None else (given,)
    return [
        f"{_said(item)} reaches beyond the {counted(shape[axis], 'element')} of the dimension "
        f"{_name(names, axis)!r}"
        for axis, item in enumerate(expanded(items, shape))
        if isinstance(item, slice) and _reaches_beyond(item, shape[axis])
    ]


def _reaches_beyond(item: slice, length: int) -> bool:
    ends = [end for end in (item.start, item.stop) if end is not None]
    return any(not -length <= int(end) <= length for end in ends)


def _said(item: slice) -> str:
    return ":".join("" if end is None else str(end) for end in (item.start, item.stop))


def _name(names: Sequence[str | None], axis: int) -> str | int:
    """Return the name of a dimension for messages, or its position."""
    name = names[axis] if axis < len(names) else None
    return axis if name is None else name


def _is_cell(item: Any) -> bool:
    """True if an item is a length, -1, or the sizes of all cells of a dimension."""
    if isinstance(item, Sequence) and not isinstance(item, str):
        return len(item) > 0 and all(_is_length(size) and size >= 0 for size in item)
    return _is_length(item) and (item == -1 or item >= 1)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
