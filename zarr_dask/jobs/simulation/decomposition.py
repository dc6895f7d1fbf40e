"""Assignment of stored objects to the ranks of a simulation.

A rank computes a block of every step; a stored object must have exactly one writer. `Decomposition`
holds the region of each rank. `shared_objects` finds the objects that would have two writers.
`RankShare` is the work of one rank for one array: the objects that it owns, the pieces of its block
that go into them, and, if objects are shared on purpose, the pieces for other ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.errors import GridError
from zarr_dask.grid.grid import Blocks, Dimension, Grid, Region, Shape

__all__ = [
    "BlockPiece",
    "Decomposition",
    "RankShare",
    "Shared",
    "decompose",
    "share_of",
    "shared_objects",
    "suggest_decomposition",
]

Box = tuple[tuple[int, int], ...]
"""First element and the one after the last, for each dimension."""


@dataclass(frozen=True)
class Decomposition:
    """The region of each rank in one step of an array; made by `zarr_dask.decompose`."""

    shape: Shape
    """Shape of one step."""
    boxes: tuple[Box, ...]
    """Region of each rank, by its number; ranks beyond the last have no elements."""
    sizes: Blocks | None = None
    """Lengths of the blocks along each dimension, if the ranks form a grid of blocks."""

    @staticmethod
    def single(shape: Shape) -> Decomposition:
        """Return owners with everything on rank 0."""
        return Decomposition(shape, (tuple((0, n) for n in shape),))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.boxes)

    def region(self, rank: int) -> Region | None:
        """Return the region of a rank in each step; None if it has no elements.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> zd.decompose((4, 6), (2, 1)).region(1)
        (slice(2, 4, 1), slice(0, 6, 1))
        """
        if rank >= self.ranks or any(start >= stop for start, stop in self.boxes[rank]):
            return None
        return tuple(slice(start, stop, 1) for start, stop in self.boxes[rank])

    @cached_property
    def _bounds(self) -> np.ndarray:
        """All boxes: rank, dimension, start or stop."""
        return np.array(self.boxes, np.int64).reshape(self.ranks, len(self.shape), 2)

    def cells(self, grid: Grid) -> np.ndarray:
        """Return the cells that each rank overlaps, as boxes of coordinates, possibly empty.

        Returns
        -------
        numpy.ndarray
            Array of shape (ranks, dimensions, 2): the first cell, and the one after the last.
        """
        found = np.empty_like(self._bounds)
        for axis, dimension in enumerate(grid.dimensions):
            found[:, axis, 0] = _found(dimension, self._bounds[:, axis, 0])
            found[:, axis, 1] = _found(dimension, self._bounds[:, axis, 1] - 1) + 1
        found[(self._bounds[:, :, 0] >= self._bounds[:, :, 1]).any(axis=1)] = 0
        return found

    def __repr__(self) -> str:
        return f"<zarr_dask.Decomposition of {self.shape}, {self.ranks} ranks>"


def _found(dimension: Dimension, positions: np.ndarray) -> np.ndarray:
    """Return the cells that contain some elements of a dimension."""
    unique, places = np.unique(positions, return_inverse=True)
    last = max(dimension.extent - 1, 0)
    cells = [dimension.find(min(max(int(at), 0), last)) for at in unique]
    return np.array(cells, np.int64)[places.reshape(-1)]


# --- making a map ---------------------------------------------------------------------------------


@takes_habits()
def decompose(grid: Any, decomposition: Any, *, holes: bool = False) -> Decomposition:
    """Assign the parts of each step of a simulation to ranks.

    Parameters
    ----------
    grid
        Shape of one step, in elements and without time; or a `zarr_dask.grid.grid.Grid`, whose
        cells are then not divided between ranks.
    decomposition
        For each dimension the number of ranks, with the elements divided evenly among them (the
        first ranks get one element more if there is a remainder), or the lengths of their blocks.
        Ranks are numbered in C order, as in ``MPI_Cart_create``. Or a list with the region of each
        rank, as tuples of slices.
    holes
        Allow elements without a rank; they read as the fill value.

    Raises
    ------
    GridError
        If blocks do not fill the step, or regions overlap, exceed the step or leave holes.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.decompose((100, 60), (3, 2)).sizes
    ((34, 33, 33), (30, 30))
    >>> zd.decompose((4,), [slice(0, 1), slice(1, 4)]).region(1)
    (slice(1, 4, 1),)
    """
    grid = grid if isinstance(grid, Grid) else _elements(grid)
    items = decomposition if isinstance(decomposition, list | tuple) else (decomposition,)
    if any(_is_region(item) for item in items):
        found = Decomposition(grid.shape, tuple(_box(item, grid.shape) for item in items))
        _check_disjoint(found, holes)
        return found
    if len(items) != grid.ndim:
        raise GridError(
            f"decomposition={decomposition!r}: expected one item for each of the {grid.ndim} "
            f"dimensions of a step of shape {grid.shape}: a number of ranks, or lengths of blocks."
        )
    sizes = tuple(map(_sizes, items, grid.dimensions))
    return _of_sizes(grid.shape, sizes)


def _of_sizes(shape: Shape, sizes: Blocks) -> Decomposition:
    spans = [tuple(pairwise(accumulate(lengths, initial=0))) for lengths in sizes]
    return Decomposition(shape, tuple(product(*spans)), sizes)


def _elements(shape: Any) -> Grid:
    try:
        items = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        lengths = tuple(map(operator.index, items))
    except TypeError as error:
        raise GridError(f"{shape!r}: expected the shape of one step, or a Grid.") from error
    return Grid.regular(lengths, (1,) * len(lengths))


def _is_region(item: Any) -> bool:
    return isinstance(item, slice) or (
        isinstance(item, list | tuple) and any(isinstance(one, slice) for one in item)
    )


def _sizes(item: Any, dimension: Dimension) -> tuple[int, ...]:
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        if item < 1:
            raise GridError(f"{item} ranks along a dimension: expected at least one.")
        whole, rest = divmod(dimension.count, int(item))
        counts = [whole + (rank < rest) for rank in range(int(item))]
        cells = list(accumulate(counts, initial=0))
        borders = [min(dimension.start(cell), dimension.extent) for cell in cells]
        return tuple(b - a for a, b in pairwise(borders))
    try:
        lengths = tuple(map(int, item))
    except (TypeError, ValueError) as error:
        raise GridError(
            f"{item!r}: expected a number of ranks, or the lengths of their blocks."
        ) from error
    if any(n < 0 for n in lengths) or sum(lengths) != dimension.extent:
        raise GridError(
            f"blocks of {lengths} elements add up to {sum(lengths)}, the dimension has "
            f"{dimension.extent}."
        )
    return lengths


def _box(item: Any, shape: Shape) -> Box:
    region = (item,) if isinstance(item, slice) else tuple(item)
    if len(region) != len(shape) or not all(isinstance(one, slice) for one in region):
        raise GridError(
            f"the region {item!r} of a rank: expected {len(shape)} slices, one per dimension."
        )
    box = []
    for one, length in zip(region, shape, strict=True):
        start = 0 if one.start is None else int(one.start)
        stop = length if one.stop is None else int(one.stop)
        if one.step not in {None, 1} or not 0 <= start <= stop <= length:
            raise GridError(
                f"the region {item!r} of a rank: expected slices of step 1 within the shape "
                f"{shape} of a step."
            )
        box.append((start, stop))
    return tuple(box)


def _check_disjoint(found: Decomposition, holes: bool) -> None:
    pair = next(overlapping(found._bounds), None)  # noqa: SLF001  (this module's own)
    if pair is not None:
        raise GridError(
            f"the regions of ranks {pair[0]} and {pair[1]} overlap: {found.region(pair[0])} and "
            f"{found.region(pair[1])}. Each element of a step must come from one rank."
        )
    covered = sum(prod(stop - start for start, stop in box) for box in found.boxes)
    missing = prod(found.shape) - covered
    if missing and not holes:
        raise GridError(
            f"{missing} of the {prod(found.shape)} elements of a step belong to no rank. If they "
            "shall read as the fill value, pass holes=True."
        )


def overlapping(boxes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield pairs of boxes that overlap.

    Parameters
    ----------
    boxes
        Array of shape (boxes, dimensions, 2): start and stop.
    """
    if boxes.shape[1] == 0:
        yield from ((0, other) for other in range(1, len(boxes)))
        return
    filled = np.flatnonzero((boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1))
    order = filled[np.argsort(boxes[filled, 0, 0], kind="stable")]
    ordered = boxes[order]
    firsts = ordered[:, 0, 0]
    for place, box in enumerate(ordered):
        # boxes that start later, but before this one ends
        end = int(np.searchsorted(firsts, box[0, 1]))
        later = ordered[place + 1 : end]
        meets = ((later[:, :, 0] < box[:, 1]) & (later[:, :, 1] > box[:, 0])).all(axis=1)
        for other in np.flatnonzero(meets):
            a, b = int(order[place]), int(order[place + 1 + other])
            yield min(a, b), max(a, b)


# --- objects of two ranks -------------------------------------------------------------------------


class Shared(NamedTuple):
    """A stored object that two ranks overlap."""

    coords: tuple[int, ...]
    """Coordinates in the grid of one step."""
    ranks: tuple[int, int]


def shared_objects(found: Decomposition, grid: Grid) -> Iterator[Shared]:
    """Yield stored objects of a step that two ranks overlap: one for each such pair of ranks."""
    cells = found.cells(grid)
    for a, b in overlapping(cells):
        first = np.maximum(cells[a, :, 0], cells[b, :, 0])
        yield Shared(tuple(map(int, first)), (a, b))


def suggest_decomposition(found: Decomposition, grid: Grid) -> tuple[Shape, Blocks | None]:
    """Return the nearest regular cells that fit these ranks, and blocks that fit these cells.

    Examples
    --------
    >>> grid = Grid.regular((120,), (50,))
    >>> suggest_decomposition(decompose((120,), (3,)), grid)
    ((40,), ((50, 50, 20),))
    """
    cell = tuple(
        _nearest_divisor(
            gcd(*(int(at) for at in np.unique(found._bounds[:, axis]) if at < length)),  # noqa: SLF001
            size,
            length,
        )
        for axis, (size, length) in enumerate(zip(grid.largest_cell, grid.shape, strict=True))
    )
    if found.sizes is None:
        return cell, None
    return cell, tuple(_sizes(len(n), d) for n, d in zip(found.sizes, grid.dimensions, strict=True))


def _nearest_divisor(number: int, size: int, length: int) -> int:
    """Return the divisor of a number that is nearest to a size; any size divides 0."""
    if number == 0:
        return max(min(size, length), 1)
    divisors = {
        d
        for low in range(1, int(number**0.5) + 1)
        if number % low == 0
        for d in (low, number // low)
    }
    return min(divisors, key=lambda d: (abs(d - size), d))


# --- the work of one rank -------------------------------------------------------------------------


class BlockPiece(NamedTuple):
    """A part of a rank's block that lies in one stored object."""

    coords: tuple[int, ...]
    """Coordinates of the object in the grid of one step."""
    inside: Region
    """Region of the piece in the object."""
    block: Region
    """Region of the piece in the block of its rank."""


@dataclass(frozen=True)
class RankShare:
    """The work of one rank for one array."""

    region: Region | None
    """Region of the rank in each step; None for no elements."""
    own: tuple[tuple[int, ...], ...]
    """Coordinates of the objects that it writes, in the grid of one step."""
    keep: tuple[BlockPiece, ...]
    """Pieces of its block that go into its own objects."""
    send: dict[int, tuple[BlockPiece, ...]] = field(default_factory=dict)
    """Pieces of its block that go to other ranks."""
    receive: dict[int, tuple[BlockPiece, ...]] = field(default_factory=dict)
    """Pieces that other ranks send, in the terms of the sender."""


def share_of(found: Decomposition, grid: Grid, rank: int, *, shared: bool = False) -> RankShare:
    """Return the work of a rank for an array.

    Parameters
    ----------
    found
        The regions of the ranks.
    grid
        The stored objects of one step.
    rank
        Number of the rank.
    shared
        True if objects may be shared: the first rank that overlaps an object owns it.
    """
    region = found.region(rank)
    if region is None:
        return RankShare(None, (), ())
    mine = _pieces(grid, region)
    if not shared:
        return RankShare(region, tuple(piece.coords for piece in mine), mine)
    meeting = _ranks_by_cell(found, grid, rank)
    own = tuple(piece.coords for piece in mine if meeting[piece.coords][0] == rank)
    send: dict[int, list[BlockPiece]] = {}
    for piece in mine:
        send.setdefault(meeting[piece.coords][0], []).append(piece)
    keep = tuple(send.pop(rank, ()))
    receive: dict[int, list[BlockPiece]] = {}
    ours = set(own)
    for other in sorted({other for coords in own for other in meeting[coords]} - {rank}):
        theirs = _pieces(grid, found.region(other) or ())
        receive[other] = [piece for piece in theirs if piece.coords in ours]
    return RankShare(region, own, keep, _frozen(send), _frozen(receive))


def _frozen(pieces: dict[int, list[BlockPiece]]) -> dict[int, tuple[BlockPiece, ...]]:
    return {other: tuple(found) for other, found in sorted(pieces.items())}


def _pieces(grid: Grid, region: Region) -> tuple[BlockPiece, ...]:
    return tuple(BlockPiece(part.coords, part.inside, part.out) for part in grid.parts(region))


def _ranks_by_cell(found: Decomposition, grid: Grid, rank: int) -> dict[tuple[int, ...], list[int]]:
    """Return, for each cell that a rank overlaps, all ranks that overlap it, the lowest first."""
    cells = found.cells(grid)
    box = cells[rank]
    near = (cells[:, :, 0] < box[:, 1]) & (cells[:, :, 1] > box[:, 0])
    ranks: dict[tuple[int, ...], list[int]] = {}
    for other in np.flatnonzero(near.all(axis=1)):
        low = np.maximum(box[:, 0], cells[other, :, 0])
        high = np.minimum(box[:, 1], cells[other, :, 1])
        for coords in product(*(range(int(a), int(b)) for a, b in zip(low, high, strict=True))):
            ranks.setdefault(coords, []).append(int(other))
    return ranks
