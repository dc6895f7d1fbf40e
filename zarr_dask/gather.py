"""What a selection takes of each stored object, and where that goes.

A `Gathering` splits a selection (`selection.IndexTransform`) into groups of dimensions that do not
depend on each other: one for each dimension that is sliced or has a list of its own, one for the
dimensions that points index together. For each group the cells of the grid that it meets are
listed, and within each cell the chunks that hold what is wanted (`points`); a stored object is
then one cell of every group. `Gathering.gathered` is what the pieces are put together in: one axis
for each group, so that every piece is a rectangle of it. Pure; knows grids and shapes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from zarr_dask.blocks import check_count
from zarr_dask.grid import Blocks, Dimension, Grid, Part, Region, Shape, spans
from zarr_dask.points import CellShares, Share, cells_of_points, sorted_runs
from zarr_dask.selection import Along, At, IndexTransform, Listed, axes_of, positions_of

__all__ = ["Gathering", "Taking", "out_index", "selected_blocks"]


class Taking(NamedTuple):
    """What a selection takes of one stored object, or of one chunk of it."""

    coords: tuple[int, ...]
    """Of the stored object."""
    box: Region
    """The smallest region of the stored object that holds all that is taken."""
    picks: tuple[tuple[np.ndarray, ...] | None, ...]
    """For each group which elements of the box: indices for each of its dimensions, or None for
    all of them in their order."""
    out: tuple[slice | np.ndarray, ...]
    """Where they go along the axis of each group."""

    @property
    def exact(self) -> bool:
        """Whether all of the box is taken, and goes to a region."""
        return all(pick is None for pick in self.picks) and all(
            isinstance(place, slice) for place in self.out
        )


@dataclass(frozen=True)
class _Group:
    """Dimensions of the array that are indexed together, and independently of all others."""

    dims: tuple[int, ...]
    """Which dimensions, ascending."""
    axes: tuple[int, ...]
    """The axes of the result that they depend on, ascending."""
    lengths: Shape
    """Of these axes."""
    turned: bool
    """Whether the axis goes backwards through its dimension, and is turned around at the end."""
    listed: bool
    """Whether elements are taken by lists."""

    @property
    def size(self) -> int:
        return prod(self.lengths)


class Gathering:
    """A selection of an array, split into what can be looked at dimension by dimension.

    Parameters
    ----------
    transform
        The selection.

    Examples
    --------
    >>> from zarr_dask.selection import parse_outer
    >>> rows = Gathering(parse_outer(([5, 0, 1], slice(2, 4)), (8, 4)))
    >>> for taking in rows.takings(Grid.regular((8, 4), (4, 4)), (2, 4)):
    ...     print(taking.coords, taking.box, taking.out)
    (0, 0) (slice(0, 2, 1), slice(2, 4, 1)) (slice(1, 3, None), slice(0, 2, 1))
    (1, 0) (slice(1, 2, 1), slice(2, 4, 1)) (slice(0, 1, None), slice(0, 2, 1))
    """

    def __init__(self, transform: IndexTransform) -> None:
        self.transform = transform
        self.groups = tuple(_groups(transform))
        self.shape: Shape = tuple(group.size for group in self.groups)
        """Of what is gathered: one axis for each group, of length 1 where an integer selects."""

    # --- from what is gathered to the result, and back --------------------------------------------

    @property
    def viewable(self) -> bool:
        """Whether memory of the result's shape can always be seen as memory to gather in."""
        owned = {axis for group in self.groups for axis in group.axes}
        stretched = any(n != 1 for axis, n in enumerate(self.transform.shape) if axis not in owned)
        return not stretched and all(len(group.axes) < 2 for group in self.groups)

    def result(self, gathered: np.ndarray) -> np.ndarray:
        """The result of the selection from what was gathered; a view of it."""
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
        """The inverse of `result`: a view of it if `viewable`, else a copy."""
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
        """The region of the array that is gathered, if it is one; in the shape of `shape`."""
        if any(len(group.dims) > 1 for group in self.groups) or self.transform.has_lists:
            return None
        return tuple(_forward(one, self.transform.shape) for one in self.transform.maps)

    # --- what to read -----------------------------------------------------------------------------

    def takings(
        self, grid: Grid, chunk_shape: Shape | None = None, sparse: int | None = None
    ) -> Iterator[Taking]:
        """What is taken of each stored object, one after the other.

        Parameters
        ----------
        grid
            The stored objects.
        chunk_shape
            Where given, what lists take is split by chunks of this shape within stored objects.
        sparse
            Where given, points are taken one by one if the smallest box around those of one chunk
            has more than so many elements for each of them.
        """
        dims = [dim for group in self.groups for dim in group.dims]
        order = sorted(range(len(dims)), key=dims.__getitem__)
        in_order = order == list(range(len(dims)))
        per_group = [self._cells(group, grid, chunk_shape, sparse) for group in self.groups]
        # a product keeps all cells of all its groups, which of one group need not be
        for cells in zip(per_group[0], strict=True) if len(per_group) == 1 else product(*per_group):
            coords = tuple(at for cell in cells for at in cell.coords)
            if not in_order:
                coords = tuple(coords[at] for at in order)
            for shares in product(*(cell.shares for cell in cells)):
                box = tuple(side for share in shares for side in share.box)
                if not in_order:
                    box = tuple(box[at] for at in order)
                yield Taking(
                    coords,
                    box,
                    tuple(share.pick for share in shares),
                    tuple(share.out for share in shares),
                )

    def assignments(self, grid: Grid) -> Iterator[Part]:
        """The stored objects that are met, with what is assigned to them.

        Regions of a part may be indices that NumPy broadcasts. Of elements that a list of one
        dimension names more than once, the last one is assigned.
        """
        for taking in self.takings(grid):
            once = self._once(taking)
            whole = all(
                _is_all(share, [grid.dimensions[dim] for dim in group.dims], coords)
                for group, share, coords in zip(
                    self.groups,
                    once,
                    ([taking.coords[dim] for dim in group.dims] for group in self.groups),
                    strict=True,
                )
            )
            inside = self._mesh(once)
            out = out_index([share.out for share in once], self.shape)
            yield Part(taking.coords, inside, out, whole)

    def _once(self, taking: Taking) -> list[Share]:
        shares = []
        for group, pick, out in zip(self.groups, taking.picks, taking.out, strict=True):
            share = Share(tuple(taking.box[dim] for dim in group.dims), pick, out)
            shares.append(_last_of_each(share, *pick) if pick and len(pick) == 1 else share)
        return shares

    def picked(self, taking: Taking, box: np.ndarray) -> np.ndarray:
        """What is wanted of the elements of a box, one axis for each group."""
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
            box = np.moveaxis(np.moveaxis(box, axes, range(len(axes)))[index], 0, axes[0])
            owners = [owner for owner in owners if owner != number]
            owners.insert(axes[0], number)
        return box

    def in_source_order(self, taking: Taking, gathered: np.ndarray) -> np.ndarray:
        """Where the box of an exact taking goes: a view, one axis for each dimension."""
        index: list[Any] = [None] * len(taking.box)
        for group, place in zip(self.groups, taking.out, strict=True):
            index[group.dims[0]] = place
        view: np.ndarray = gathered[*index, ...]
        return view

    def _mesh(self, shares: Sequence[Share]) -> tuple[Any, ...]:
        """An index of the stored object that gives what is taken, one axis for each group."""
        ndim = sum(len(group.dims) for group in self.groups)
        index: list[Any] = [None] * ndim
        # NumPy leaves the axis of one list in its place
        slices = ndim == len(shares) and sum(share.pick is not None for share in shares) < 2
        for number, (group, share) in enumerate(zip(self.groups, shares, strict=True)):
            for at, dim in enumerate(group.dims):
                side = share.box[at]
                if slices and share.pick is None:
                    index[dim] = side
                    continue
                positions = (
                    np.arange(side.start, side.stop, side.step)
                    if share.pick is None
                    else side.start + share.pick[at]
                )
                lengths = [1] * len(shares)
                lengths[number] = positions.size
                index[dim] = positions if slices else positions.reshape(lengths)
        return tuple(index)

    def _cells(
        self, group: _Group, grid: Grid, chunk_shape: Shape | None, sparse: int | None
    ) -> Iterable[CellShares]:
        maps = [self.transform.maps[dim] for dim in group.dims]
        dimensions = [grid.dimensions[dim] for dim in group.dims]
        if len(maps) == 1 and not isinstance(maps[0], Listed):
            region = _forward(maps[0], self.transform.shape)
            return [
                CellShares((span.coord,), [Share((span.inside,), None, span.out)])
                for span in spans(dimensions[0], region)
            ]
        sizes = None if chunk_shape is None else [chunk_shape[dim] for dim in group.dims]
        positions = [
            _stretched(positions_of(one, self.transform.shape), axes_of(one), group) for one in maps
        ]
        # several lists take every combination of their shares, which one by one would be too many
        alone = sum(other.listed for other in self.groups) == 1
        return cells_of_points(dimensions, sizes, positions, sparse if alone else None)


def out_index(places: Sequence[slice | np.ndarray], shape: Shape) -> tuple[Any, ...]:
    """An index of what is gathered for places along each of its axes."""
    if sum(isinstance(place, np.ndarray) for place in places) < 2:
        return tuple(places)
    return np.ix_(
        *(
            place if isinstance(place, np.ndarray) else np.arange(n)[place]
            for place, n in zip(places, shape, strict=True)
        )
    )


def selected_blocks(transform: IndexTransform, grid: Grid) -> Blocks:
    """Sizes of blocks along the axes of a selection, which follow the cells of a grid.

    Along an axis that slices a dimension, or takes it by a list in order, each block is what is
    selected of one cell. Along other lists, and points, blocks have one size: about as many of
    them as cells are met, and some `_FEW_POINTS` points each if these are more.

    Examples
    --------
    >>> from zarr_dask.selection import parse_outer
    >>> grid = Grid.regular((10, 10), (4, 4))
    >>> selected_blocks(parse_outer((slice(None, 1, -1), [1, 2, 9]), grid.shape), grid)
    ((2, 4, 2), (2, 1))
    """
    blocks: list[tuple[int, ...]] = [(n,) for n in transform.shape]
    for group in _groups(transform):
        if not group.axes or not group.size:
            continue
        dimensions = [grid.dimensions[dim] for dim in group.dims]
        maps = [transform.maps[dim] for dim in group.dims]
        only = maps[0] if len(maps) == 1 else None
        if only is not None and not isinstance(only, Listed):
            check_count(min(dimensions[0].count, group.size), "stored objects")
            sizes = [
                s.out.stop - s.out.start
                for s in spans(dimensions[0], _forward(only, transform.shape))
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
"""Points in a block, each of which may lie in a chunk of its own."""


def _groups(transform: IndexTransform) -> Iterator[_Group]:
    """Dimensions that share an axis of the result, directly or by way of others."""
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
        turned = isinstance(only, Along) and only.step < 0
        lengths = tuple(transform.shape[axis] for axis in ordered)
        listed = len(dims) > 1 or isinstance(only, Listed)
        yield _Group(tuple(sorted(dims)), ordered, lengths, turned, listed)


def _forward(one: Along | At | Listed, shape: Shape) -> slice:
    """The elements of a dimension that is sliced, in ascending order."""
    if isinstance(one, At):
        return slice(one.position, one.position + 1, 1)
    if isinstance(one, Listed):
        raise TypeError("a list is no slice")
    count = shape[one.axis]
    if not count:
        return slice(0, 0, 1)
    last = one.start + (count - 1) * one.step
    return slice(min(one.start, last), max(one.start, last) + 1, abs(one.step))


def _stretched(positions: np.ndarray, axes: tuple[int, ...], group: _Group) -> np.ndarray:
    """Positions for every element of a group, in the order of the axis it has when gathered."""
    lengths = [n if axis in axes else 1 for axis, n in zip(group.axes, group.lengths, strict=True)]
    return np.broadcast_to(positions.reshape(lengths), group.lengths).reshape(-1)


def _last_of_each(share: Share, pick: np.ndarray) -> Share:
    """Elements of a list of one dimension in ascending order, each once: its last occurrence."""
    positions, at = np.unique(pick[::-1], return_index=True)
    out = share.out
    places = out if isinstance(out, np.ndarray) else np.arange(out.start, out.stop)
    low = share.box[0].start
    box = slice(low + int(positions[0]), low + int(positions[-1]) + 1, 1)
    evenly = box.stop - box.start == len(positions)
    once = None if evenly else (positions - int(positions[0]),)
    return Share((box,), once, places[::-1][at])


def _is_all(share: Share, dimensions: Sequence[Dimension], coords: Sequence[int]) -> bool:
    """Whether a share is every element that its cell has."""
    lengths = [
        min(d.size_of(at), d.extent - d.start(at)) for d, at in zip(dimensions, coords, strict=True)
    ]
    if share.pick is None:
        taken = prod(len(range(s.start, s.stop, s.step)) for s in share.box)
    elif share.pick[0].size < prod(lengths):
        return False
    else:
        spans_of_box = [s.stop - s.start for s in share.box]
        taken = len(np.unique(np.ravel_multi_index(share.pick, spans_of_box)))
    return taken == prod(lengths)
