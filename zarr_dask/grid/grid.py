"""Chunk arithmetic: the chunks that a region overlaps, and the overlaps.

A `Grid` cuts an index space into cells; a cell is a stored object of an array, or a chunk of a
shard. `Grid.parts` is the only chunk arithmetic of the package and `Grid.align` its only
alignment: reads, writes, the sharding codec and every plan call them. Pure integers; knows no
store, codec or array. Arithmetic of a single dimension is in `dimensions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, product
from math import prod
from operator import eq, lt
from typing import TYPE_CHECKING, Any, NamedTuple

from zarr_dask.errors import GridError
from zarr_dask.grid.dimension import Dimension, Edges, Fixed

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Blocks",
    "Cells",
    "ChunkSpan",
    "Dimension",
    "Edges",
    "Fixed",
    "Grid",
    "Part",
    "Region",
    "Shape",
    "cells_overlapping",
    "intersect_chunks",
    "view_region",
]

Shape = tuple[int, ...]
"""One length per dimension."""
Region = tuple[slice, ...]
"""One slice per dimension, with non-negative bounds and a positive step."""


class ChunkSpan(NamedTuple):
    """One cell of one dimension that a slice overlaps."""

    coord: int
    """Coordinate of the cell."""
    inside: slice
    """Selected elements of the cell, counted from its start."""
    out: slice
    """Their positions in the result."""
    whole: bool
    """True if every element of the cell that lies in the array is selected."""


class Part(NamedTuple):
    """One cell of a grid that a region overlaps."""

    coords: tuple[int, ...]
    """Coordinates of the cell."""
    inside: Region
    """Selected elements of the cell."""
    out: Region
    """Their positions in the result, whose shape is that of the region."""
    whole: bool
    """True if all of the cell that lies in the array is selected."""


_part = partial(tuple.__new__, Part)  # in a third of the time of calling the class


def translate_region(region: Region, origin: Shape) -> Region:
    """Return a region with its start and stop moved by `origin`."""
    pairs = zip(region, origin, strict=True)
    return tuple(slice(s.start + start, s.stop + start, s.step) for s, start in pairs)


def view_region(array: np.ndarray, region: Region) -> np.ndarray:
    """Return a region of an array as a view, even if 0-d, where indexing would return a scalar."""
    return array[region] if region else array


Cells = tuple[int | tuple[int, ...], ...]
"""For each dimension the size of its cells, or the sizes of all of them in order."""


def _dimension(sizes: int | tuple[int, ...], extent: int) -> Dimension:
    if isinstance(sizes, int):
        return Fixed(sizes, extent)
    if sizes == (0,) and extent == 0:  # dask's form of a dimension without elements
        return Fixed(1, 0)
    edges = Edges.of(sizes, extent)
    if not sizes:
        return edges
    regular = Fixed(sizes[0], extent)
    same = regular.count == edges.count == len(sizes) and regular.lengths == edges.lengths
    return regular if same else edges


def _range(runs: Sequence[tuple[int, int]]) -> str:
    sizes = [size for size, _ in runs] or [0]
    least, most = min(sizes), max(sizes)
    return str(most) if least == most else f"{least}..{most}"


def intersect_chunks(dimension: Dimension, selected: slice) -> list[ChunkSpan]:
    """Return the cells of one dimension that overlap a slice of positive step, in order.

    Examples
    --------
    >>> intersect_chunks(Fixed(4, 10), slice(3, 9, 1))[0]
    ChunkSpan(coord=0, inside=slice(3, 4, 1), out=slice(0, 1, 1), whole=False)
    """
    start, stop, step = selected.start, selected.stop, selected.step or 1
    only = dimension.around(start, stop)
    if only is not None:
        index, origin, end = only
        taken = -(-(stop - start) // step)
        inside = slice(start - origin, stop - origin, step)
        return [ChunkSpan(index, inside, slice(0, taken, 1), taken == end - origin)]
    found: list[ChunkSpan] = []
    done = 0
    while start < stop:
        if step == 1 and isinstance(dimension, Fixed) and not start % dimension.size:
            # most cells of a long slice: they differ in their position only
            size, begin = dimension.size, start - done
            full = range(start // size, stop // size)
            inside = slice(0, size, 1)
            found += [
                ChunkSpan(at, inside, slice(at * size - begin, (at + 1) * size - begin, 1), True)
                for at in full
            ]
            done += len(full) * size
            start += len(full) * size
            if start >= stop:
                break
        index = dimension.find(start)
        origin = dimension.start(index)
        end = min(origin + dimension.size_of(index), dimension.extent)
        last = min(end, stop)
        taken = -(-(last - start) // step)
        whole = step == 1 and start == origin and last == end
        found.append(
            ChunkSpan(
                index,
                slice(start - origin, last - origin, step),
                slice(done, done + taken, 1),
                whole or (taken == end - origin),
            )
        )
        done += taken
        start += taken * step
    return found


def cells_overlapping(dimension: Dimension, selected: slice) -> range:
    """Return the cells of one dimension that overlap a slice of step 1, without listing them.

    Examples
    --------
    >>> cells_overlapping(Fixed(4, 10), slice(3, 9, 1))
    range(0, 3)
    """
    if selected.start >= selected.stop:
        return range(0)
    return range(dimension.find(selected.start), dimension.find(selected.stop - 1) + 1)


def _count_overlapping(dimension: Dimension, selected: slice) -> int:
    if (selected.step or 1) == 1:
        return len(cells_overlapping(dimension, selected))
    return len(intersect_chunks(dimension, selected))


@dataclass(frozen=True)
class Grid:
    """An index space cut into cells along each of its dimensions."""

    dimensions: tuple[Dimension, ...]

    @staticmethod
    def regular(shape: Sequence[int], cell: Sequence[int]) -> Grid:
        """Return a grid with cells of one shape.

        Raises
        ------
        GridError
            If the lengths differ, or a cell has no element.

        Examples
        --------
        >>> Grid.regular((10, 6), (4, 6)).counts
        (3, 1)
        """
        if len(shape) != len(cell):
            raise GridError(
                f"a cell shape {tuple(cell)} has {len(cell)} dimensions, the array {tuple(shape)} "
                f"has {len(shape)}: give one length per dimension."
            )
        return Grid(tuple(Fixed(c, n) for c, n in zip(cell, shape, strict=True)))

    @staticmethod
    def of(shape: Sequence[int], cells: Cells) -> Grid:
        """Return a grid whose cells have, along each dimension, one size or declared sizes.

        Declared sizes that are equal, except for a smaller last one, become a single size: every
        reader supports such grids.

        Parameters
        ----------
        shape
            Extent of each dimension.
        cells
            For each of them the size of its cells, or the sizes of all of them, in order.

        Raises
        ------
        GridError
            If a cell has no element, or the cells of a dimension do not reach its end.

        Examples
        --------
        >>> Grid.of((60, 32), ((10, 20, 30), 16)).counts
        (3, 2)
        """
        return Grid(tuple(map(_dimension, cells, shape)))

    @cached_property
    def shape(self) -> Shape:
        """Extent of each dimension."""
        return tuple(dimension.extent for dimension in self.dimensions)

    @cached_property
    def counts(self) -> Shape:
        """Number of cells along each dimension."""
        return tuple(dimension.count for dimension in self.dimensions)

    @cached_property
    def cell_shape(self) -> Shape | None:
        """The shape of every cell; None if cells differ."""
        if all(isinstance(dimension, Fixed) for dimension in self.dimensions):
            return self.largest_cell
        return None

    @cached_property
    def largest_cell(self) -> Shape:
        """The largest size of a cell along each dimension."""
        return tuple(dimension.largest for dimension in self.dimensions)

    @property
    def words(self) -> str:
        """The shape of its cells as text; a range from smallest to largest if cells differ.

        Examples
        --------
        >>> Grid.of((10, 9, 9), ((2, 5, 3), 4, (9,))).words
        '(2..5, 4, 9)'
        """
        sizes = [
            dimension.size if isinstance(dimension, Fixed) else _range(dimension.runs)
            for dimension in self.dimensions
        ]
        return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"

    @cached_property
    def common_cell(self) -> Shape:
        """The largest shape whose lengths divide those of every cell."""
        return tuple(dimension.common for dimension in self.dimensions)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.dimensions)

    @property
    def ncells(self) -> int:
        """Number of cells."""
        return prod(self.counts)

    def has_cell(self, coords: Sequence[int]) -> bool:
        """True if there is a cell at the given non-negative coordinates."""
        return len(coords) == self.ndim and all(map(lt, coords, self.counts))

    def coords_of(self, number: int) -> tuple[int, ...]:
        """Return the coordinates of the cell with a number, in C order.

        There may be more cells than 64 bits can number.

        Examples
        --------
        >>> Grid.regular((10, 6), (4, 2)).coords_of(5)
        (1, 2)
        """
        found: list[int] = []
        for count in reversed(self.counts):
            number, index = divmod(number, count)
            found.append(index)
        return tuple(reversed(found))

    def number_of(self, coords: Sequence[int]) -> int:
        """Return the number of the cell at some coordinates.

        Examples
        --------
        >>> Grid.regular((10, 6), (4, 2)).number_of((1, 2))
        5
        """
        number = 0
        for index, count in zip(coords, self.counts, strict=True):
            number = number * count + index
        return number

    def cuts(self, coords: Sequence[int]) -> bool:
        """True if a cell reaches beyond the extents, so that more elements may follow in it.

        Examples
        --------
        >>> grid = Grid.regular((5, 6), (4, 6))
        >>> grid.cuts((1, 0)), grid.cuts((0, 0)), grid.cuts((2, 0))
        (True, False, False)
        """
        return any(map(eq, coords, self._cut_cells)) and self.has_cell(coords)

    @cached_property
    def _cut_cells(self) -> tuple[int, ...]:
        """The cell along each dimension that reaches beyond the extent; -1 where none does."""
        return tuple(d.count - 1 if d.overhangs else -1 for d in self.dimensions)

    @property
    def everything(self) -> Region:
        """The region that covers the whole index space."""
        return tuple(slice(0, n, 1) for n in self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return Grid, (self.dimensions,)  # without computed attributes

    def window(self, region: Region) -> Grid:
        """Return the cells that overlap a region of step 1, as a grid of its own."""
        pairs = zip(self.dimensions, region, strict=True)
        return Grid(tuple(dimension.window(s.start, s.stop) for dimension, s in pairs))

    def shape_of(self, coords: Sequence[int]) -> Shape:
        """Return the declared shape of a cell, which may reach beyond the extents."""
        return tuple(d.size_of(i) for d, i in zip(self.dimensions, coords, strict=True))

    def region_of(self, coords: Sequence[int]) -> Region:
        """Return the elements of the index space that a cell holds."""
        return tuple(
            slice(d.start(i), min(d.start(i) + d.size_of(i), d.extent), 1)
            for d, i in zip(self.dimensions, coords, strict=True)
        )

    def parts(self, region: Region) -> Iterator[Part]:
        """Return an iterator over the cells that overlap a region, in C order of coordinates.

        Examples
        --------
        >>> [part.coords for part in Grid.regular((4, 4), (2, 2)).parts((slice(1, 3), slice(0, 1)))]
        [(0, 0), (1, 0)]
        """
        per_dimension = list(map(intersect_chunks, self.dimensions, region))
        if not all(per_dimension):
            return iter(())
        if not per_dimension:
            return iter((Part((), (), (), True),))
        # products of each field, as a loop over products of spans takes more than twice as long
        fields = zip(*[zip(*spans) for spans in per_dimension])  # noqa: B905  (strict= takes its time)
        coords, inside, out, whole = [product(*columns) for columns in fields]
        return map(_part, zip(coords, inside, out, map(all, whole)))  # noqa: B905

    def single_chunk(self, region: Region) -> tuple[tuple[int, ...], Region, bool] | None:
        """Return the single cell that holds a region, as `Part` without `out`; None if several do.

        Examples
        --------
        >>> Grid.regular((9,), (4,)).single_chunk((slice(5, 7, 1),))
        ((1,), (slice(1, 3, 1),), False)
        >>> Grid.regular((9,), (4,)).single_chunk((slice(3, 5, 1),)) is None
        True
        """
        coords: list[int] = []
        inside: list[slice] = []
        whole = True
        for dimension, selected in zip(self.dimensions, region):  # noqa: B905  (small reads hurry)
            start, stop, step = selected.start, selected.stop, selected.step
            found = dimension.around(start, stop)
            if found is None:
                return None
            index, origin, end = found
            coords.append(index)
            if start == origin and stop == end and step == 1:
                inside.append(slice(0, end - origin, 1))
                continue
            inside.append(slice(start - origin, stop - origin, step or 1))
            if whole:
                whole = -(-(stop - start) // (step or 1)) == end - origin
        return tuple(coords), tuple(inside), whole

    def count_parts(self, region: Region) -> int:
        """Return the number of cells that overlap a region, without listing them."""
        return prod(_count_overlapping(d, s) for d, s in zip(self.dimensions, region, strict=True))

    def count_cut(self, region: Region) -> int:
        """Return the number of cells that overlap a region and reach beyond the extents (`cuts`).

        The region has steps of 1, and may reach beyond them too.

        Examples
        --------
        >>> grid = Grid.regular((5, 7), (4, 4))
        >>> grid.count_cut((slice(0, 5), slice(0, 7))), grid.count_cut((slice(5, 9), slice(0, 7)))
        (3, 2)
        """
        found, uncut = 1, 1
        for d, s in zip(self.dimensions, region, strict=True):
            end = d.start(d.count)
            cells = cells_overlapping(d, slice(s.start, min(s.stop, end)))
            found *= len(cells)
            uncut *= len(cells) - (end > d.extent and d.count - 1 in cells)
        return found - uncut

    def align(self, blocks: Sequence[Sequence[int]], origin: Sequence[int] = ()) -> Blocks:
        """Move the borders between blocks so that no cell lies in two of them.

        Each border moves down to the nearest cell boundary; blocks that become empty are dropped.
        Blocks that already fit are returned unchanged.

        Parameters
        ----------
        blocks
            Sizes of consecutive blocks along each dimension.
        origin
            Start of the first block; zeros by default. A cell that begins before the origin belongs
            to the first block.

        Examples
        --------
        >>> Grid.regular((400,), (80,)).align([(50,) * 8])
        ((80, 80, 80, 80, 80),)
        """
        starts = tuple(origin) or (0,) * self.ndim
        return tuple(
            _align(dimension, sizes, start)
            for dimension, sizes, start in zip(self.dimensions, blocks, starts, strict=True)
        )


Blocks = tuple[tuple[int, ...], ...]
"""Sizes of consecutive blocks along each dimension."""


def _align(dimension: Dimension, sizes: Sequence[int], origin: int) -> tuple[int, ...]:
    borders = [origin]
    position = origin
    end = origin + sum(sizes)
    for size in sizes:
        position += size
        border = end if position == end else dimension.boundary_at_or_before(position)
        if border > borders[-1]:
            borders.append(border)
    if len(borders) == 1:
        return tuple(sizes)[:1]  # a dimension without elements keeps its one empty block
    return tuple(b - a for a, b in pairwise(borders))
