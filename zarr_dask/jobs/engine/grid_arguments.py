"""Grids and regions as users pass them: by position or by name, for all dimensions or some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dask.array.cells import by_axis
from zarr_dask.errors import SelectionError
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.indexing.basic import expanded
from zarr_dask.jobs.engine.plan import pluralize

__all__ = ["check_not_empty", "clipped_slices", "parse_region_argument"]


def parse_region_argument(given: Any, shape: Shape, names: Sequence[str | None], where: str) -> Any:
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
    >>> parse_region_argument({"y": slice(3)}, (5, 4), ("t", "y"), "here")
    (slice(None, None, None), slice(None, 3, None))
    >>> parse_region_argument((..., -1), (5, 4), (), "here")
    (slice(None, None, None), slice(3, 4, None))
    """
    ndim = len(shape)
    if isinstance(given, Mapping):
        given_by = by_axis(given, names, ndim, "region", where)
        given = tuple(given_by.get(axis, slice(None)) for axis in range(ndim))
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
            f"{where}, which has {pluralize(length, 'element')}. Give a slice within 0:{length}."
        )


def clipped_slices(given: Any, shape: Shape, names: Sequence[str | None], where: str) -> list[str]:
    """Return the slices of a region that reach beyond an array, in words; an index would cut them.

    Examples
    --------
    >>> clipped_slices({"t": slice(8, 12)}, (10, 4), ("t", "y"), "here")
    ["8:12 reaches beyond the 10 elements of the dimension 't'"]
    """
    if isinstance(given, Mapping):
        given = parse_region_argument(given, shape, names, where)
    items = given if isinstance(given, tuple) else () if given is None else (given,)
    return [
        f"{_said(item)} reaches beyond the {pluralize(shape[axis], 'element')} of the dimension "
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


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
