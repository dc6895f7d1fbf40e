"""Blocks to read an array in, worked out from its grid.

Blocks consist of whole stored objects if possible, because two tasks must fetch an object that a
block border cuts. An object is cut only if it is larger than a block may be, and then at the
borders of its chunks. Pure integers; `graph.wanted` parses dask's forms of ``chunks=``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from zarr_dask.errors import GridError
from zarr_dask.grid.grid import Blocks, Dimension, Fixed, Grid, Shape

__all__ = [
    "MOST_BLOCKS",
    "block_budget",
    "bounded_blocks",
    "check_count",
    "elements_inside",
    "merged_blocks",
    "merged_sides",
    "one_block_per_chunk",
    "one_block_per_object",
]

_FEWEST_BLOCKS = 16
"""Number of blocks that merging leaves at least, because tasks also compute concurrently."""
_AT_A_TIME = 16
"""Objects of a block, so that two tasks have enough requests in flight."""
_SMALL_BYTES, _FEWEST_SMALL = 1 << 21, 4
"""Bytes of a block that is decoded in less time than a request takes, and the number of such blocks
that merging leaves at least."""
MOST_BLOCKS = 1 << 21
"""At most this many blocks along a dimension: dask takes about a second to add up their sizes."""


def one_block_per_object(grid: Grid) -> Blocks:
    """Return one block per stored object.

    Raises
    ------
    GridError
        If there are more than a dask array can list.

    Examples
    --------
    >>> one_block_per_object(Grid.regular((10, 4), (4, 4)))
    ((4, 4, 2), (4,))
    """
    return tuple(map(_lengths, grid.dimensions))


def one_block_per_chunk(grid: Grid, chunk_shape: Shape) -> Blocks:
    """Return one block per chunk.

    Parameters
    ----------
    grid
        The stored objects.
    chunk_shape
        Shape of a chunk; the largest if chunks are not sharded and differ.

    Examples
    --------
    >>> one_block_per_chunk(Grid.regular((10, 4), (4, 4)), (2, 4))
    ((2, 2, 2, 2, 2), (4,))
    """
    return tuple(map(_pieces, grid.dimensions, chunk_shape))


def bounded_blocks(grid: Grid, chunk_shape: Shape, itemsize: int, limit: int) -> Blocks:
    """Return one block per stored object, or whole chunks of objects larger than `limit` bytes.

    A block of chunks grows along the last dimension first, so that its chunks are contiguous in the
    object. It never extends beyond the object.

    Examples
    --------
    >>> bounded_blocks(Grid.regular((8, 8), (8, 8)), (2, 2), itemsize=1, limit=8)
    ((2, 2, 2, 2), (4, 4))
    """
    if elements_inside(grid) * itemsize <= limit or grid.largest_cell == chunk_shape:
        return one_block_per_object(grid)
    block = list(chunk_shape)
    for axis in reversed(range(grid.ndim)):
        room = max(limit // max(prod(block) * itemsize, 1), 1)
        count = grid.common_cell[axis] // chunk_shape[axis]
        block[axis] *= max(n for n in range(1, min(count, room) + 1) if count % n == 0)
    return tuple(map(_pieces, grid.dimensions, block))


def elements_inside(grid: Grid) -> int:
    """Return the elements of the largest stored object, as far as it lies in the array.

    Examples
    --------
    >>> elements_inside(Grid.regular((10, 4), (6, 1000)))
    24
    """
    return prod(map(min, grid.largest_cell, grid.shape))


def block_budget(grid: Grid, itemsize: int, limit: int, *, remote: bool) -> int:
    """Return the elements of a block of several stored objects, at most.

    Parameters
    ----------
    grid
        The stored objects.
    itemsize
        Bytes of an element.
    limit
        Bytes of a block, at most.
    remote
        True if requests take their time, so that a block should have some of them in flight.

    Examples
    --------
    >>> block_budget(Grid.regular((100,), (1,)), itemsize=1, limit=1000, remote=True)
    16
    >>> block_budget(Grid.regular((100,), (1,)), itemsize=1, limit=1000, remote=False)
    6
    """
    elements, small = prod(grid.shape), 0
    if remote:
        of_some = _AT_A_TIME * elements_inside(grid)
        small = min(_SMALL_BYTES // itemsize, elements // _FEWEST_SMALL, of_some)
    return min(limit // itemsize, max(elements // _FEWEST_BLOCKS, small))


def merged_blocks(grid: Grid, limits: Mapping[int, int], budget: int) -> dict[int, tuple[int, ...]]:
    """Merge whole stored objects along some dimensions, as far as a budget allows.

    The shortest side of a block grows first, so that blocks become about cubic. An object that is
    larger than the budget becomes a block of its own and is never cut.

    Parameters
    ----------
    grid
        The stored objects.
    limits
        Maximum number of elements for each dimension along which blocks may grow.
    budget
        Elements of a block, counted along these dimensions only.

    Returns
    -------
    dict
        Sizes of the blocks along each of these dimensions.

    Examples
    --------
    >>> merged_blocks(Grid.regular((100, 100), (10, 5)), {0: 100, 1: 100}, budget=1600)
    {0: (40, 40, 20), 1: (40, 40, 20)}
    """
    sides = merged_sides(grid, limits, budget)
    return {axis: _lengths(grid.dimensions[axis].groups(side)) for axis, side in sides.items()}


def merged_sides(grid: Grid, limits: Mapping[int, int], budget: int) -> dict[int, int]:
    """Return the lengths of `merged_blocks` along each dimension, of which the last may be shorter.

    Examples
    --------
    >>> merged_sides(Grid.regular((100, 100), (10, 5)), {0: 100, 1: 100}, budget=1600)
    {0: 40, 1: 40}
    """
    sides = {axis: grid.dimensions[axis].largest for axis in limits}
    growing = set(limits)
    while growing:
        axis = min(growing, key=lambda one: (sides[one], one))
        cell = grid.dimensions[axis].largest
        others = prod(side for other, side in sides.items() if other != axis)
        most = min(budget // max(others, 1), -(-limits[axis] // cell) * cell)
        wanted = min(2 * sides[axis], most // cell * cell)
        if wanted > sides[axis]:
            sides[axis] = wanted
        else:
            growing.discard(axis)
    return sides


def _pieces(dimension: Dimension, length: int) -> tuple[int, ...]:
    """Cut each cell into pieces of one length; the last piece may be shorter."""
    if isinstance(dimension, Fixed) and dimension.size % length == 0:
        return _lengths(Fixed(length, dimension.extent))
    check_count(dimension.count + dimension.extent // length, "chunks")
    return tuple(_cut(_lengths(dimension), length))


def _cut(cells: Sequence[int], length: int) -> Iterator[int]:
    for cell in cells:
        whole, rest = divmod(cell, length)
        yield from (length,) * whole
        if rest:
            yield rest


def _lengths(dimension: Dimension) -> tuple[int, ...]:
    check_count(dimension.count, "stored objects")
    return dimension.lengths or (0,)


def check_count(count: int, what: str) -> None:
    """Raise if there are more blocks along a dimension than a dask array can list.

    Raises
    ------
    GridError
        If there are more; the message names them by `what`.
    """
    if count > MOST_BLOCKS:
        raise GridError(
            f"{count} {what} along one dimension are more than a dask array can list, which is "
            f'{MOST_BLOCKS}; give larger blocks (chunks="auto", or numbers), or read '
            "regions of the array."
        )
