"""The parts of stored objects that a selection takes, and their positions in the result.

A `SelectionPlan` splits a selection (`zarr_dask.indexing.transform.IndexTransform`) into groups of
dimensions that do not depend on each other: one for each dimension that is sliced or has a list of
its own, one for the dimensions that points index together. For each group it lists the cells of the
grid that overlap the selection, and within each cell the chunks that hold selected elements
(`points`). A stored object is then one cell of every group. The pieces are put together in an array
with one axis for each group, so that every piece is a rectangle of it (`SelectionPlan.gathered`).
Pure; knows grids and shapes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, product
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np

from zarr_dask.grid.dask_blocks import check_count
from zarr_dask.grid.grid import Blocks, Dimension, Grid, Part, Region, Shape, intersect_chunks
from zarr_dask.indexing.points import (
    PointsByChunk,
    PointsInChunk,
    cells_of_points,
    places_by_cell,
    points_of_chunks,
    sorted_runs,
)
from zarr_dask.indexing.transform import (
    ConstantMap,
    IndexArrayMap,
    IndexTransform,
    StridedMap,
    axes_of,
    parse_numpy,
    positions_of,
)

__all__ = [
    "ChunkSelection",
    "SelectionPlan",
    "WholeChunkSelection",
    "blocks_of_selection_grid",
    "output_index",
    "split_assignment",
]


class ChunkSelection(NamedTuple):
    """The elements that a selection takes of one stored object, or of one chunk of it."""

    coords: tuple[int, ...]
    """Coordinates of the stored object."""
    box: Region
    """The smallest region of the stored object that holds all selected elements."""
    picks: tuple[tuple[np.ndarray, ...] | None, ...]
    """For each group the selected elements of the box: indices for each of its dimensions, or None
    for all of them in order."""
    out: tuple[slice | np.ndarray, ...]
    """Their positions along the axis of each group."""

    @property
    def exact(self) -> bool:
        """True if the whole box is taken, and goes to a region."""
        return all(pick is None for pick in self.picks) and all(
            isinstance(place, slice) for place in self.out
        )


class WholeChunkSelection(NamedTuple):
    """The elements that a selection takes of one chunk, which is decoded as a whole."""

    coords: tuple[int, ...]
    """Coordinates of the stored object."""
    origin: tuple[int, ...]
    """First element of the chunk in the stored object."""
    numbers: np.ndarray
    """Numbers of the elements in the chunk, in C order; one axis for each group."""
    out: tuple[slice | np.ndarray, ...]
    """Their positions along the axis of each group."""


class _ElementsByCell(NamedTuple):
    """The elements that are assigned to cells, along the dimensions of one group."""

    coords: tuple[int, ...]
    """Coordinates of the cells, along the dimensions of the group."""
    sides: tuple[slice | np.ndarray, ...]
    """Their positions in the cells along each of these dimensions."""
    mesh: tuple[np.ndarray, ...]
    """The same, to be broadcast against those of other groups."""
    listed: bool
    """True if they are selected by lists."""
    out: slice | np.ndarray
    """Their positions along the axis of the group."""
    out_mesh: np.ndarray
    """The same, to be broadcast."""
    whole: bool
    """True if they are all of the cells."""


@dataclass(frozen=True)
class _Group:
    """Dimensions of the array that are indexed together, and independently of all others."""

    dims: tuple[int, ...]
    """The dimensions, ascending."""
    axes: tuple[int, ...]
    """The axes of the result that they depend on, ascending."""
    lengths: Shape
    """Lengths of these axes."""
    turned: bool
    """True if the axis runs backwards through its dimension, and is reversed at the end."""
    listed: bool
    """True if elements are selected by lists."""

    @property
    def size(self) -> int:
        return prod(self.lengths)


class SelectionPlan:
    """A selection of an array, split into groups of dimensions that are processed independently.

    Parameters
    ----------
    transform
        The selection.

    Examples
    --------
    >>> from zarr_dask.indexing.transform import parse_outer
    >>> rows = SelectionPlan(parse_outer(([5, 0, 1], slice(2, 4)), (8, 4)))
    >>> for taking in rows.chunk_selections(Grid.regular((8, 4), (4, 4)), (2, 4)):
    ...     print(taking.coords, taking.box, taking.out)
    (0, 0) (slice(0, 2, 1), slice(2, 4, 1)) (slice(1, 3, None), slice(0, 2, 1))
    (1, 0) (slice(1, 2, 1), slice(2, 4, 1)) (slice(0, 1, None), slice(0, 2, 1))
    """

    def __init__(self, transform: IndexTransform) -> None:
        self.transform = transform
        self.groups = tuple(_groups(transform))
        self.shape: Shape = tuple(group.size for group in self.groups)
        """Shape of the gathered array: one axis per group, of length 1 for an integer."""

    # --- from the gathered array to the result, and back ------------------------------------------

    @property
    def viewable(self) -> bool:
        """True if memory of the result's shape can always be viewed as memory to gather in."""
        owned = {axis for group in self.groups for axis in group.axes}
        stretched = any(n != 1 for axis, n in enumerate(self.transform.shape) if axis not in owned)
        return not stretched and all(len(group.axes) < 2 for group in self.groups)

    def result(self, gathered: np.ndarray) -> np.ndarray:
        """Return the result of the selection from the gathered array; a view of it if possible."""
        turned = gathered[self._turns]
        split = turned.reshape([n for group in self.groups for n in group.lengths])
        owned = [axis for group in self.groups for axis in group.axes]
        order = [owned.index(axis) for axis in sorted(owned)]
        index = [slice(None) if axis in owned else None for axis in range(self.transform.ndim)]
        values: np.ndarray = split.transpose(order)[*index, ...]
        if values.shape != self.transform.shape:
            values = np.broadcast_to(values, self.transform.shape).copy()
        return values

    def gathered(self, result: np.ndarray) -> np.ndarray:
        """Return the inverse of `result`: a view of it if `viewable`, else a copy."""
        owned = [axis for group in self.groups for axis in group.axes]
        index = [slice(None) if axis in owned else 0 for axis in range(self.transform.ndim)]
        kept = result[*index, ...]
        in_order = sorted(owned)
        split = kept.transpose([in_order.index(axis) for axis in owned])
        gathered: np.ndarray = split.reshape(self.shape)[self._turns]
        return gathered

    @property
    def _turns(self) -> tuple[Any, ...]:
        turns = (slice(None, None, -1 if group.turned else None) for group in self.groups)
        return (*turns, ...)

    @property
    def region(self) -> Region | None:
        """The selected region of the array, in the shape of `shape`; None if it is no region."""
        if any(len(group.dims) > 1 for group in self.groups) or self.transform.has_lists:
            return None
        return tuple(_forward(one, self.transform.shape) for one in self.transform.maps)

    # --- reading and writing ----------------------------------------------------------------------

    def chunk_selections(
        self, grid: Grid, chunk_shape: Shape | None = None, sparse: int | None = None
    ) -> Iterator[ChunkSelection]:
        """Yield the selected part of each stored object, one after the other.

        Parameters
        ----------
        grid
            The stored objects.
        chunk_shape
            If given, elements selected by lists are split by chunks of this shape in stored
            objects.
        sparse
            If given, points are read one by one if the smallest box around those of one chunk has
            more than this number of elements per point.
        """
        dims = [dim for group in self.groups for dim in group.dims]
        order = sorted(range(len(dims)), key=dims.__getitem__)
        in_order = order == list(range(len(dims)))
        per_group = [self._cells(group, grid, chunk_shape, sparse) for group in self.groups]
        # a product stores all cells of all its groups; a single group can be iterated lazily
        for cells in zip(per_group[0], strict=True) if len(per_group) == 1 else product(*per_group):
            coords = tuple(at for cell in cells for at in cell.coords)
            if not in_order:
                coords = tuple(coords[at] for at in order)
            for shares in product(*(cell.shares for cell in cells)):
                box = tuple(side for share in shares for side in share.box)
                if not in_order:
                    box = tuple(box[at] for at in order)
                yield ChunkSelection(
                    coords,
                    box,
                    tuple(share.pick for share in shares),
                    tuple(share.out for share in shares),
                )

    @property
    def lists_only(self) -> bool:
        """True if elements are selected by lists along every dimension."""
        return all(group.listed for group in self.groups)

    def whole_chunk_selections(
        self, grid: Grid, chunk_shape: Shape
    ) -> Iterator[WholeChunkSelection]:
        """Yield the selected part of each chunk, ordered by stored objects, if `lists_only`.

        Parameters
        ----------
        grid
            The stored objects.
        chunk_shape
            Shape of the chunks in them.
        """
        strides = [prod(chunk_shape[dim + 1 :]) for dim in range(len(chunk_shape))]
        per_group = [
            points_of_chunks(
                [grid.dimensions[dim] for dim in group.dims],
                [chunk_shape[dim] for dim in group.dims],
                [strides[dim] for dim in group.dims],
                self._positions(group),
            )
            for group in self.groups
        ]
        if len(per_group) == 1:
            for one in per_group[0]:
                yield WholeChunkSelection(one.coords, one.origin, one.numbers, (one.out,))
            return
        by_object = [
            [list(chunks) for _, chunks in groupby(one, attrgetter("coords"))] for one in per_group
        ]
        dims = [dim for group in self.groups for dim in group.dims]
        order = sorted(range(len(dims)), key=dims.__getitem__)
        for objects in product(*by_object):
            placed = [at for chunks in objects for at in chunks[0].coords]
            coords = tuple([placed[at] for at in order])
            for taken in product(*objects):
                origin = [at for one in taken for at in one.origin]
                yield WholeChunkSelection(
                    coords,
                    tuple([origin[at] for at in order]),
                    reduce(np.add.outer, [one.numbers for one in taken]),
                    tuple([one.out for one in taken]),
                )

    def assignments(self, grid: Grid) -> Iterator[Part]:
        """Yield the affected stored objects, with the elements that are assigned to them.

        Regions of a part may be indices that NumPy broadcasts. If a list of one dimension names an
        element more than once, the last value is assigned.
        """
        ndim = sum(len(group.dims) for group in self.groups)
        if len(self.groups) == 1 and ndim > 1:
            (group,) = self.groups
            positions = dict(zip(group.dims, self._positions(group), strict=True))
            yield from _parts_of_points([positions[dim] for dim in range(ndim)], grid)
            return
        per_group = [self._assigned(number, grid) for number in range(len(self.groups))]
        only = per_group[0] if len(per_group) == 1 else None
        for shares in product(*per_group) if only is None else zip(only, strict=True):
            # NumPy keeps the axis of a single list in its position
            meshed = ndim != len(shares) or sum(share.listed for share in shares) > 1
            coords, inside = [0] * ndim, list[Any]([None] * ndim)
            for group, share in zip(self.groups, shares, strict=True):
                sides = share.mesh if meshed else share.sides
                for dim, at, side in zip(group.dims, share.coords, sides, strict=True):
                    coords[dim], inside[dim] = at, side
            several = sum(isinstance(share.out, np.ndarray) for share in shares) > 1
            out: Any = tuple([share.out_mesh if several else share.out for share in shares])
            whole = all(share.whole for share in shares)
            yield Part(tuple(coords), tuple(inside), out, whole)

    def _assigned(self, number: int, grid: Grid) -> Iterator[_ElementsByCell]:
        """Yield what one group of dimensions has in the cells that it meets along them."""
        group = self.groups[number]
        dimensions = [grid.dimensions[dim] for dim in group.dims]

        def along_axis(positions: np.ndarray) -> np.ndarray:
            if len(self.groups) == 1:
                return positions  # which have no other axis
            lengths = [1] * len(self.groups)
            lengths[number] = positions.size
            return positions.reshape(lengths)

        for cell in self._cells(group, grid, None, None):
            for taken in cell.shares:
                pick, out = taken.pick, taken.out
                share = _last_of_each(taken, *pick) if pick and len(pick) == 1 else taken
                pick, out = share.pick, share.out
                picked = share.box if pick is None else pick
                sides = tuple(
                    [
                        s.start + p if isinstance(p, np.ndarray) else s
                        for s, p in zip(share.box, picked, strict=True)
                    ]
                )
                mesh = tuple(
                    [along_axis(s if isinstance(s, np.ndarray) else _spread(s)) for s in sides]
                )
                places = out if isinstance(out, np.ndarray) else _spread(out)
                whole = _is_all(share, dimensions, cell.coords)
                is_listed = pick is not None
                yield _ElementsByCell(
                    cell.coords, sides, mesh, is_listed, out, along_axis(places), whole
                )

    def picked(self, taking: ChunkSelection, box: np.ndarray) -> np.ndarray:
        """Return the selected elements of a box, one axis for each group."""
        owners = [0] * box.ndim
        for number, group in enumerate(self.groups):
            for dim in group.dims:
                owners[dim] = number
        for number, (group, pick) in enumerate(zip(self.groups, taking.picks, strict=True)):
            axes = [axis for axis, owner in enumerate(owners) if owner == number]
            if len(group.dims) == 1:
                if pick is not None:
                    box = box.take(pick[0], axes[0])
                continue
            index = pick or tuple(np.zeros(1, np.int64) for _ in axes)
            if len(axes) == box.ndim and box.flags.c_contiguous:
                return _taken(box, index)
            box = np.moveaxis(np.moveaxis(box, axes, range(len(axes)))[index], 0, axes[0])
            owners = [owner for owner in owners if owner != number]
            owners.insert(axes[0], number)
        return box

    def in_source_order(self, taking: ChunkSelection, gathered: np.ndarray) -> np.ndarray:
        """Return the target of an exact taking's box: a view, one axis for each dimension."""
        index: list[Any] = [None] * len(taking.box)
        for group, place in zip(self.groups, taking.out, strict=True):
            index[group.dims[0]] = place
        view: np.ndarray = gathered[*index, ...]
        return view

    def _cells(
        self, group: _Group, grid: Grid, chunk_shape: Shape | None, sparse: int | None
    ) -> Iterable[PointsByChunk]:
        maps = [self.transform.maps[dim] for dim in group.dims]
        dimensions = [grid.dimensions[dim] for dim in group.dims]
        if len(maps) == 1 and not isinstance(maps[0], IndexArrayMap):
            region = _forward(maps[0], self.transform.shape)
            return [
                PointsByChunk((span.coord,), [PointsInChunk((span.inside,), None, span.out)])
                for span in intersect_chunks(dimensions[0], region)
            ]
        sizes = None if chunk_shape is None else [chunk_shape[dim] for dim in group.dims]
        # several lists combine all their shares with each other: too many if taken one by one
        alone = sum(other.listed for other in self.groups) == 1
        return cells_of_points(dimensions, sizes, self._positions(group), sparse if alone else None)

    def _positions(self, group: _Group) -> list[np.ndarray]:
        """Return the selected elements of each dimension of a group, in the order of its axis."""
        maps = [self.transform.maps[dim] for dim in group.dims]
        shape = self.transform.shape
        return [_stretched(positions_of(one, shape), axes_of(one), group) for one in maps]


def split_assignment(
    index: tuple[Any, ...], values: np.ndarray, grid: Grid
) -> tuple[np.ndarray, Iterator[Part]]:
    """Split ``array[index] = values`` by the cells of a grid that covers the array.

    Returns
    -------
    values : array
        The values, as parts refer to them.
    parts : iterator of Part
        The cells and what is assigned to them; see `SelectionPlan.assignments`.

    Examples
    --------
    >>> grid = Grid.regular((6, 4), (3, 4))
    >>> values, parts = split_assignment(([5, 0], slice(0, 2)), np.ones((2, 2)), grid)
    >>> [part.coords for part in parts]
    [(0, 0), (1, 0)]
    """
    if len(index) > 1 and all(isinstance(side, np.ndarray) and side.ndim == 1 for side in index):
        return values, _parts_of_points(index, grid)
    plan = SelectionPlan(parse_numpy(index, grid.shape))
    return plan.gathered(values), plan.assignments(grid)


def _parts_of_points(positions: Sequence[np.ndarray], grid: Grid) -> Iterator[Part]:
    """Yield the cells of a grid that hold points, given along all of its dimensions."""
    for coords, inside, out in places_by_cell(grid.dimensions, positions):
        whole = _name_all(inside, grid.dimensions, coords)
        yield Part(coords, cast("Region", tuple(inside)), cast("Region", (out,)), whole)


def output_index(places: Sequence[slice | np.ndarray], shape: Shape) -> tuple[Any, ...]:
    """Return an index of the gathered array from indices along each of its axes."""
    if len([place for place in places if isinstance(place, np.ndarray)]) < 2:
        return tuple(places)
    return np.ix_(
        *(
            place if isinstance(place, np.ndarray) else np.arange(n)[place]
            for place, n in zip(places, shape, strict=True)
        )
    )


def blocks_of_selection_grid(transform: IndexTransform, grid: Grid) -> Blocks:
    """Return sizes of blocks along the axes of a selection, which follow the cells of a grid.

    Along an axis that slices a dimension, or selects from it by a list in order, each block holds
    the selected elements of one cell. Along other lists, and points, blocks have one size: about
    one block per affected cell, and for points at least about `_FEW_POINTS` points per block.

    Examples
    --------
    >>> from zarr_dask.indexing.transform import parse_outer
    >>> grid = Grid.regular((10, 10), (4, 4))
    >>> blocks_of_selection_grid(parse_outer((slice(None, 1, -1), [1, 2, 9]), grid.shape), grid)
    ((2, 4, 2), (2, 1))
    """
    blocks: list[tuple[int, ...]] = [(n,) for n in transform.shape]
    for group in _groups(transform):
        if not group.axes or not group.size:
            continue
        dimensions = [grid.dimensions[dim] for dim in group.dims]
        maps = [transform.maps[dim] for dim in group.dims]
        only = maps[0] if len(maps) == 1 else None
        if only is not None and not isinstance(only, IndexArrayMap):
            check_count(min(dimensions[0].count, group.size), "stored objects")
            sizes = [
                s.out.stop - s.out.start
                for s in intersect_chunks(dimensions[0], _forward(only, transform.shape))
            ]
            blocks[group.axes[0]] = tuple(sizes[::-1] if group.turned else sizes)
            continue
        positions = [
            _stretched(positions_of(one, transform.shape), axes_of(one), group) for one in maps
        ]
        cells = [d.locate(p)[0] for d, p in zip(dimensions, positions, strict=True)]
        order, starts = sorted_runs(cells)
        if only is not None and len(group.axes) == 1 and order is None:
            blocks[group.axes[0]] = tuple(np.diff(starts, append=group.size).tolist())
            continue
        points = (
            -(-group.size // len(starts))
            if only is not None
            else max(-(-group.size // len(starts)), _FEW_POINTS)
        )
        length = group.lengths[0]
        rows = min(max(points // (group.size // length), 1), length)
        blocks[group.axes[0]] = tuple(min(rows, length - at) for at in range(0, length, rows))
    return tuple(blocks)


_FEW_POINTS = 1024
"""Points in a block, each of which may lie in a different chunk."""


def _groups(transform: IndexTransform) -> Iterator[_Group]:
    """Yield groups of dimensions that share an axis of the result, directly or indirectly."""
    found: list[tuple[list[int], set[int]]] = []
    for dim, one in enumerate(transform.maps):
        axes = set(axes_of(one))
        touching = [pair for pair in found if pair[1] & axes]
        merged = ([], set()) if not touching else touching[0]
        for other in touching[1:]:
            merged[0].extend(other[0])
            merged[1].update(other[1])
            found.remove(other)
        merged[0].append(dim)
        merged[1].update(axes)
        if not touching:
            found.append(merged)
    for dims, axes in found:
        ordered = tuple(sorted(axes))
        only = transform.maps[dims[0]] if len(dims) == 1 else None
        turned = isinstance(only, StridedMap) and only.step < 0
        lengths = tuple(transform.shape[axis] for axis in ordered)
        listed = len(dims) > 1 or isinstance(only, IndexArrayMap)
        yield _Group(tuple(sorted(dims)), ordered, lengths, turned, listed)


def _forward(one: StridedMap | ConstantMap | IndexArrayMap, shape: Shape) -> slice:
    """Return the selected elements of a sliced dimension, in ascending order."""
    if isinstance(one, ConstantMap):
        return slice(one.position, one.position + 1, 1)
    if isinstance(one, IndexArrayMap):
        raise TypeError("a list is no slice")
    count = shape[one.axis]
    if not count:
        return slice(0, 0, 1)
    last = one.start + (count - 1) * one.step
    return slice(min(one.start, last), max(one.start, last) + 1, abs(one.step))


def _stretched(positions: np.ndarray, axes: tuple[int, ...], group: _Group) -> np.ndarray:
    """Return positions for every element of a group, in the order of its gathered axis."""
    lengths = [n if axis in axes else 1 for axis, n in zip(group.axes, group.lengths, strict=True)]
    return np.broadcast_to(positions.reshape(lengths), group.lengths).reshape(-1)


def _spread(places: slice) -> np.ndarray:
    return np.arange(places.start, places.stop, places.step)


def _last_of_each(share: PointsInChunk, pick: np.ndarray) -> PointsInChunk:
    """Sort the elements of a list of one dimension, keeping the last occurrence of each."""
    out: slice | np.ndarray
    if (pick[1:] > pick[:-1]).all():
        positions, out = pick, share.out
    else:
        positions, at = np.unique(pick[::-1], return_index=True)
        out = share.out
        places = out if isinstance(out, np.ndarray) else np.arange(out.start, out.stop)
        out = places[::-1][at]
    low = share.box[0].start
    box = slice(low + int(positions[0]), low + int(positions[-1]) + 1, 1)
    evenly = box.stop - box.start == len(positions)
    once = None if evenly else (positions - int(positions[0]),)
    return PointsInChunk((box,), once, out)


def _taken(box: np.ndarray, index: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return ``box[index]``; many elements are found faster by one number each."""
    if index[0].size < _MANY:
        return cast("np.ndarray", box[index])
    numbers = index[0]
    for length, positions in zip(box.shape[1:], index[1:], strict=True):
        numbers = numbers * length
        numbers += positions
    return cast("np.ndarray", box.reshape(-1)[numbers])


_MANY = 1 << 10
"""Elements from which computing their numbers pays."""


def _name_all(
    positions: Sequence[np.ndarray], dimensions: Sequence[Dimension], coords: Sequence[int]
) -> bool:
    """True if points contain every element of their cell that lies in the array."""
    lengths = _lengths(dimensions, coords)
    number = prod(lengths)
    if positions[0].size < number:
        return False
    return len(np.unique(np.ravel_multi_index(tuple(positions), lengths))) == number


def _lengths(dimensions: Sequence[Dimension], coords: Sequence[int]) -> list[int]:
    """Return the lengths of a cell, as far as it lies in the array."""
    return [
        min(d.size_of(at), d.extent - d.start(at)) for d, at in zip(dimensions, coords, strict=True)
    ]


def _is_all(share: PointsInChunk, dimensions: Sequence[Dimension], coords: Sequence[int]) -> bool:
    """True if a share contains every element of its cell."""
    lengths = _lengths(dimensions, coords)
    if share.pick is None:
        taken = prod(len(range(s.start, s.stop, s.step)) for s in share.box)
    elif share.pick[0].size < prod(lengths):
        return False
    else:
        spans_of_box = [s.stop - s.start for s in share.box]
        taken = len(np.unique(np.ravel_multi_index(share.pick, spans_of_box)))
    return taken == prod(lengths)
