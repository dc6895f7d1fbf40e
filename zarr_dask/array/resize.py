"""Resizing of an array: its new grid, and stored objects outside the new shape.

Objects keep their coordinates and their shapes, so resizing changes the metadata only. Objects
outside the new shape are kept unless they are cleared. Clearing deletes objects that lie completely
outside, and sets the outside part of objects at the border to the fill value. (Zarr v3 core
specification, "Resizing"; the older formats do the same.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from zarr_dask._util.keywords import did_you_mean
from zarr_dask._util.threads import parallel_for
from zarr_dask.array.writer import decoded, swap_object
from zarr_dask.dtypes import is_full_of
from zarr_dask.errors import GridError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid.grid import Dimension, Edges, Fixed, Grid, Region, Shape
from zarr_dask.indexing.basic import index_of
from zarr_dask.stores.base import Buffer, Store
from zarr_dask.stores.compare_and_swap import cas_store_or_none

__all__ = ["append_region", "axis_of", "checked_extents", "prune_outside", "resize_grid"]


def checked_extents(shape: Any, ndim: int) -> Shape:
    """Return the lengths of an array from a caller: integers of at least 0, one per dimension.

    Raises
    ------
    GridError
        If they are not valid lengths.
    """
    try:
        items = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        lengths = tuple(map(index_of, items))
    except TypeError as error:
        raise GridError(f"shape={shape!r}: expected integers, one per dimension.") from error
    if len(lengths) != ndim or any(n < 0 for n in lengths):
        raise GridError(f"shape={shape!r}: expected {ndim} integers of at least 0.")
    return lengths


class _NamedDimensions(Protocol):
    """An array, as far as names of dimensions are concerned."""

    @property
    def where(self) -> str: ...

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None: ...


def axis_of(target: _NamedDimensions, along: Any, option: str) -> int:
    """Return the position of a dimension that an option gives by position or by name.

    Raises
    ------
    GridError
        If there is no such dimension.
    """
    if isinstance(along, bool) or not isinstance(along, int | np.integer | str):
        raise GridError(f"{option}={along!r}: expected a dimension, by position or by name.")
    if not isinstance(along, str):
        return int(along)
    names = target.dimension_names or ()
    if along not in names:
        raise GridError(
            f"{option}={along!r} is no dimension of {target.where}: expected "
            f"{f'one of {list(names)}' if names else 'a position, as they have no names'}."
            f"{did_you_mean(along, filter(None, names))}"
        )
    return names.index(along)


def append_region(shape: Shape, more: Shape, axis: int) -> tuple[Shape, Region]:
    """Return the shape with more elements at the end of one dimension, and the region they fill.

    Raises
    ------
    GridError
        If the other dimensions differ, or the dimension does not exist.

    Examples
    --------
    >>> append_region((2, 3), (5, 3), 0)
    ((7, 3), (slice(2, 7, 1), slice(0, 3, 1)))
    """
    ndim = len(shape)
    if not -ndim <= axis < ndim:
        raise GridError(
            f"values of shape {more} cannot be appended to an array of shape {shape} along "
            f"dimension {axis}: there is no such dimension."
        )
    if len(more) != ndim or _without(shape, axis) != _without(more, axis):
        one = " For one element along it, append values[None]." * (not axis and more == shape[1:])
        raise GridError(
            f"values of shape {more} cannot be appended to an array of shape {shape} along "
            f"dimension {axis}: all other dimensions must be equal.{one}"
        )
    axis %= ndim
    end = shape[axis] + more[axis]
    region = [slice(0, n, 1) for n in shape]
    region[axis] = slice(shape[axis], end, 1)
    return (*shape[:axis], end, *shape[axis + 1 :]), tuple(region)


def _without(shape: Shape, axis: int) -> Shape:
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def resize_grid(grid: Grid, shape: Shape, *, sharded: bool) -> Grid:
    """Return the grid of the same stored objects for another shape.

    If cells of declared sizes end before the new extent, one more cell is added that reaches it.
    For shards its size is a multiple of the common divisor of the others, because chunks must
    divide every shard.

    Examples
    --------
    >>> grid = Grid((Edges.of((2, 4), 6), Fixed(4, 8)))
    >>> resize_grid(grid, (9, 3), sharded=False).dimensions
    (Edges(runs=((2, 1), (4, 1), (3, 1)), extent=9), Fixed(size=4, extent=3))
    >>> resize_grid(grid, (9, 3), sharded=True).dimensions[0]
    Edges(runs=((2, 1), (4, 2)), extent=9)
    """
    return Grid(tuple(_resized(d, n, sharded) for d, n in zip(grid.dimensions, shape, strict=True)))


def _resized(dimension: Dimension, extent: int, sharded: bool) -> Dimension:
    if isinstance(dimension, Fixed):
        return Fixed(dimension.size, extent)
    missing = extent - dimension.end
    if missing <= 0:
        return Edges(dimension.runs, extent)
    unit = dimension.common if sharded else 1
    return Edges((*dimension.runs, (-(-missing // unit) * unit, 1)), extent)


def prune_outside(store: Store, prefix: str, meta: ArrayMeta, where: str) -> None:
    """Clear all stored elements outside the shape of an array.

    Objects completely outside are deleted; the outside part of objects at the border gets the fill
    value.

    Parameters
    ----------
    store, prefix
        Location of its stored objects.
    meta
        Metadata of the array.
    where
        Store and path, for messages.

    Raises
    ------
    CorruptObjectError
        If an object at the border does not decode.
    """
    met = []
    for key in store.list(prefix):
        coords = meta.chunk_key_encoding.coords(key[len(prefix) :], meta.grid.ndim)
        if coords is not None and not _is_inside(meta.grid, coords):
            met.append((key, coords))

    def clear(item: tuple[str, tuple[int, ...]]) -> None:
        _clear(store, *item, meta, where)

    parallel_for(clear, met, None)


def _is_inside(grid: Grid, coords: Sequence[int]) -> bool:
    """True if all elements of a cell lie in the array."""
    return all(
        d.start(i) < d.extent and d.start(i + 1) <= d.extent
        for d, i in zip(grid.dimensions, coords, strict=True)
    )


def _clear(store: Store, key: str, coords: Sequence[int], meta: ArrayMeta, where: str) -> None:
    inside = tuple(
        slice(0, max(d.extent - d.start(i), 0), 1)
        for d, i in zip(meta.grid.dimensions, coords, strict=True)
    )
    if any(kept.stop == 0 for kept in inside):
        store.delete(key)
        return

    def change(stored: Buffer | None) -> list[Buffer] | None:
        if stored is None:
            return None
        chunk = decoded(meta, coords, stored, where, key)
        if _is_filled_outside(chunk, inside, meta.data_type.fill_or_zero(meta.fill_value)):
            return None
        kept = meta.full_of_fill(chunk.shape)
        kept[inside] = chunk[inside]
        return meta.bound(coords).encode(kept)

    wanted = meta.bound(coords).wanted
    if cas_store_or_none(store, key) is not None:  # it is not removed: others may be writing to it
        swap_object(store, key, change, where, wanted=wanted)
    elif (kept := change(store.get_ranges([(key, wanted)])[0])) is not None:
        store.set(key, kept)


def _is_filled_outside(chunk: np.ndarray, inside: Region, fill: np.ndarray) -> bool:
    return all(
        is_full_of(chunk[(slice(None),) * axis + (slice(kept.stop, None),)], fill)
        for axis, kept in enumerate(inside)
    )
