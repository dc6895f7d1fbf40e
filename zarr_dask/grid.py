"""Chunk arithmetic: which chunks a region touches, and where.

A `Grid` cuts an index space into cells; a cell is a stored object of an array, or a chunk of a
shard. `Grid.parts` is the only chunk arithmetic of the package and `Grid.align` its only
alignment: reads, writes, the sharding codec and every plan call them. Pure integers; knows no
store, codec or array.

Two kinds of dimension: `Fixed` (every cell has one size, the last may reach beyond the extent)
and `Edges` (each cell has its own declared size).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise, product
from math import gcd, lcm, prod
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import compress, decompress

from zarr_dask.errors import GridError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Blocks",
    "Cells",
    "Dimension",
    "Edges",
    "Fixed",
    "Grid",
    "Part",
    "Region",
    "Shape",
    "Span",
    "cut",
]

Shape = tuple[int, ...]
"""One length per dimension."""
Region = tuple[slice, ...]
"""One slice per dimension, with non-negative bounds and a positive step."""


class Span(NamedTuple):
    """One cell of one dimension, met by a slice."""

    coord: int
    """Coordinate of the cell."""
    inside: slice
    """Which elements of the cell, counted from its start."""
    out: slice
    """Where they go in the result."""
    whole: bool
    """Whether every element of the cell that lies in the array is taken."""


class Part(NamedTuple):
    """One cell of a grid, met by a region."""

    coords: tuple[int, ...]
    """Coordinates of the cell."""
    inside: Region
    """Which elements of the cell."""
    out: Region
    """Where they go in the result, whose shape is that of the region."""
    whole: bool
    """Whether all of the cell that lies in the array is taken."""


def shifted(region: Region, origin: Shape) -> Region:
    """A region counted from another element."""
    pairs = zip(region, origin, strict=True)
    return tuple(slice(s.start + start, s.stop + start, s.step) for s, start in pairs)


def cut(array: np.ndarray, region: Region) -> np.ndarray:
    """A region of an array as a view; of a 0-d array too, where indexing gives a scalar."""
    return array[region] if region else array


@dataclass(frozen=True, slots=True)
class Fixed:
    """A dimension cut into cells of one size."""

    size: int
    """Elements per cell, at least 1."""
    extent: int
    """Elements of the dimension."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.extent < 0:
            raise GridError(
                f"a dimension of {self.extent} elements cannot be cut into cells of {self.size}: "
                "cells need at least one element, extents at least zero."
            )

    @property
    def count(self) -> int:
        """Number of cells."""
        return -(-self.extent // self.size)

    @property
    def largest(self) -> int:
        """Size of the largest cell."""
        return self.size

    @property
    def common(self) -> int:
        """The largest length that divides the size of every cell."""
        return self.size

    @property
    def overhangs(self) -> bool:
        """Whether the last cell reaches beyond the extent."""
        return self.start(self.count) > self.extent

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of the dimension in each cell; less than its size where that reaches beyond."""
        whole, rest = divmod(self.extent, self.size)
        return (self.size,) * whole + ((rest,) if rest else ())

    def size_of(self, index: int) -> int:  # noqa: ARG002  (every cell has the same size)
        """Declared size of a cell, which may reach beyond the extent."""
        return self.size

    def start(self, index: int) -> int:
        """First element of a cell; of the cell after the last, where the last one ends."""
        return index * self.size

    def find(self, position: int) -> int:
        """The cell that holds an element."""
        return position // self.size

    def around(self, start: int, stop: int) -> tuple[int, int, int] | None:
        """The cell that holds an interval, and where it begins and ends within the extent.

        None if the interval is empty or lies in several cells.
        """
        index = start // self.size
        origin = index * self.size
        end = min(origin + self.size, self.extent)
        return (index, origin, end) if start < stop <= end else None

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For many elements at once, the cells that hold them and where in these they lie."""
        cells = positions // self.size
        return cells, positions - cells * self.size

    def meetings(self, length: int) -> int:
        """How many pairs of a cell and an interval overlap, for intervals of one length.

        Each cell counts once, and once more for every border between intervals inside it.
        """
        borders = max(-(-self.extent // length) - 1, 0)
        on_cells = borders // (lcm(length, self.size) // length)
        return self.count + borders - on_cells

    def met_length(self, length: int) -> int:
        """Declared sizes of all pairs that `meetings` counts, added up."""
        return self.meetings(length) * self.size

    def uncut(self, length: int, *, first: bool = False, last: bool = False) -> int:
        """How many cells lie in one interval, for intervals of one length.

        `first` and `last` say that the first or last cell is not counted, whatever it meets.
        """
        run = (0, self.size, self.count, self.meetings(length))
        return _uncut([run], self, length, first=first, last=last)

    def window(self, start: int, stop: int) -> Dimension:
        """The cells that an interval meets, as a dimension of its own.

        Examples
        --------
        >>> Fixed(10, 95).window(20, 95), Fixed(10, 95).window(17, 95)
        (Fixed(size=10, extent=75), Edges(runs=((3, 1), (10, 8)), extent=78))
        """
        extent = stop - start
        first = -start % self.size
        if not first or not extent:
            return Fixed(self.size, extent)
        rest = -(-max(extent - first, 0) // self.size)
        return Edges(((first, 1), *(((self.size, rest),) if rest else ())), extent)

    def groups(self, length: int) -> Dimension:
        """Whole cells put together to groups of at most `length`, which is a multiple of theirs."""
        return Fixed(length, self.extent)

    def boundary_at_or_before(self, position: int) -> int:
        """The last cell boundary that is not after `position`; the extent counts as one."""
        return position if position >= self.extent else position - position % self.size

    def is_boundary(self, position: int) -> bool:
        """Whether no cell lies on both sides of `position`."""
        return position >= self.extent or position % self.size == 0


@dataclass(frozen=True)
class Edges:
    """A dimension cut into cells of declared sizes.

    Kept as runs of equal sizes, so that any number of equal cells takes the memory of one.

    Examples
    --------
    >>> Edges.of([31, 28, 31, 31], 120)
    Edges(runs=((31, 1), (28, 1), (31, 2)), extent=120)
    """

    runs: tuple[tuple[int, int], ...]
    """Size and number of consecutive cells, each at least 1. Neighbours of equal size are joined;
    together the cells reach the extent or go beyond it."""
    extent: int
    """Elements of the dimension."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", _joined(self.runs))
        if not 0 <= self.extent <= self.end < _LONGEST:
            raise GridError(
                f"cells of {_few(self.runs)} elements (size and number) reach to {self.end}: they "
                f"must reach the end of the dimension, which has {self.extent} elements, and stay "
                f"below {_LONGEST}."
            )

    @staticmethod
    def of(sizes: Iterable[int], extent: int) -> Edges:
        """Cells of these sizes, one after the other.

        Raises
        ------
        GridError
            If a size is below 1, or their sum below the extent.
        """
        return Edges(tuple((size, 1) for size in sizes), extent)

    @cached_property
    def _starts(self) -> list[int]:
        """First element of each run, and where the last one ends."""
        return list(accumulate((size * count for size, count in self.runs), initial=0))

    @cached_property
    def _indices(self) -> list[int]:
        """First cell of each run, and the number of all cells."""
        return list(accumulate((count for _, count in self.runs), initial=0))

    @cached_property
    def count(self) -> int:
        """Number of cells that hold an element of the dimension."""
        return self.find(self.extent - 1) + 1 if self.extent else 0

    @cached_property
    def largest(self) -> int:
        """Size of the largest cell."""
        return max((size for size, _ in self.runs), default=1)

    @cached_property
    def common(self) -> int:
        """The largest length that divides the size of every cell."""
        return gcd(*(size for size, _ in self.runs)) or 1

    @property
    def overhangs(self) -> bool:
        """Whether the last cell reaches beyond the extent."""
        return self.start(self.count) > self.extent

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of the dimension in each cell; less than its size where that reaches beyond."""
        if self.count > _MOST_LISTED:
            raise GridError(
                f"{self.count} cells along one dimension are more than can be listed, which is "
                f"{_MOST_LISTED}: cut it into larger cells."
            )
        lengths: list[int] = []
        left = self.extent
        for size, count in self.runs:
            whole = min(count, left // size)
            lengths.extend([size] * whole)
            left -= whole * size
            if whole < count:
                break
        return (*lengths, left) if left else tuple(lengths)

    @property
    def end(self) -> int:
        """Where the last cell ends, at the extent or beyond it."""
        return self._starts[-1]

    def size_of(self, index: int) -> int:
        """Declared size of a cell, which may reach beyond the extent."""
        return self.runs[bisect_right(self._indices, index) - 1][0]

    def start(self, index: int) -> int:
        """First element of a cell; of the cell after the last, where the last one ends."""
        if index >= self._indices[-1]:
            return self.end
        run = bisect_right(self._indices, index) - 1
        return self._starts[run] + (index - self._indices[run]) * self.runs[run][0]

    def find(self, position: int) -> int:
        """The cell that holds an element."""
        run = bisect_right(self._starts, position) - 1
        return self._indices[run] + (position - self._starts[run]) // self.runs[run][0]

    def around(self, start: int, stop: int) -> tuple[int, int, int] | None:
        """The cell that holds an interval, and where it begins and ends within the extent.

        None if the interval is empty or lies in several cells.
        """
        if start >= stop:
            return None
        index = self.find(start)
        origin = self.start(index)
        end = min(origin + self.size_of(index), self.extent)
        return (index, origin, end) if stop <= end else None

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For many elements at once, the cells that hold them and where in these they lie."""
        import numpy as np

        starts = np.array(self._starts, np.int64)
        run = starts.searchsorted(positions, "right") - 1
        cells, offsets = np.divmod(
            positions - starts[run], np.array([size for size, _ in self.runs] or [1])[run]
        )
        return np.array(self._indices, np.int64)[run] + cells, offsets

    def meetings(self, length: int) -> int:
        """How many pairs of a cell and an interval overlap, for intervals of one length."""
        return sum(pairs for _, pairs in self._pairs(length))

    def _pairs(self, length: int) -> tuple[tuple[int, int], ...]:
        """For each run, the size of its cells and how many pairs they make with intervals.

        Each cell counts once, and once more for every border between intervals inside it.
        """
        known: dict[int, tuple[tuple[int, int], ...]] = self.__dict__.setdefault("_known", {})
        if length not in known:  # plans ask often
            known[length] = tuple(self._counted_pairs(length))
        return known[length]

    def _counted_pairs(self, length: int) -> Iterator[tuple[int, int]]:
        for (size, count), start in zip(self.runs, self._starts, strict=False):
            if start >= self.extent:
                return
            present = min(count, -(-(self.extent - start) // size))
            stop = min(start + size * present, self.extent)
            borders = -(-stop // length) - -(-start // length)
            yield size, present + borders - _multiples(start, size, present, length)

    def met_length(self, length: int) -> int:
        """Declared sizes of all pairs that `meetings` counts, added up."""
        return sum(size * pairs for size, pairs in self._pairs(length))

    def uncut(self, length: int, *, first: bool = False, last: bool = False) -> int:
        """As `Fixed.uncut`."""
        runs: list[tuple[int, int, int, int]] = []
        for (size, count), start, (_, pairs) in zip(
            self.runs, self._starts, self._pairs(length), strict=False
        ):
            runs.append((start, size, min(count, -(-(self.extent - start) // size)), pairs))
        return _uncut(runs, self, length, first=first, last=last)

    def window(self, start: int, stop: int) -> Dimension:
        """As `Fixed.window`.

        Examples
        --------
        >>> Edges.of([31, 28, 31], 90).window(30, 60)
        Edges(runs=((1, 1), (28, 1), (31, 1)), extent=30)
        """
        if start == stop:
            return Fixed(self.largest, 0)
        first, last = self.find(start), self.find(stop - 1)
        lead = self.start(first + 1) - start
        runs = [(lead, 1)]
        for (size, count), index in zip(self.runs, self._indices, strict=False):
            inside = min(index + count, last + 1) - max(index, first + 1)
            if inside > 0:
                runs.append((size, inside))
        return Edges(tuple(runs), stop - start)

    def groups(self, length: int) -> Dimension:
        """Whole cells put together to groups of at most `length`, no cell being longer."""
        known: dict[int, Edges] = self.__dict__.setdefault("_groups", {})  # plans ask often
        if length not in known:
            known[length] = Edges(tuple(self._grouped(length)), self.extent)
        return known[length]

    def _grouped(self, length: int) -> Iterator[tuple[int, int]]:
        """Runs of groups: those that end inside a run of cells at once, others one by one."""
        start = 0
        while start < self.extent:
            run = bisect_right(self._starts, start) - 1
            size = self.runs[run][0]
            group = length // size * size
            cells_left = (self._starts[run + 1] - start) // size
            inside = (cells_left - 1) // (group // size)
            before_end = -(-(self.extent - length - start) // group)
            same = min(inside, before_end)
            if same < 1:
                group, same = self.boundary_at_or_before(start + length) - start, 1
            yield group, same
            start += group * same

    def boundary_at_or_before(self, position: int) -> int:
        """The last cell boundary that is not after `position`; the extent counts as one."""
        return position if position >= self.extent else self.start(self.find(position))

    def is_boundary(self, position: int) -> bool:
        """Whether no cell lies on both sides of `position`."""
        return self.boundary_at_or_before(position) == position

    def __reduce__(self) -> tuple[Any, ...]:
        """Small, because an array is part of each of its tasks: without what can be worked out."""
        return _unpacked, (_packed(self.runs), self.extent)


def _uncut(
    runs: Sequence[tuple[int, int, int, int]],
    dimension: Fixed | Edges,
    length: int,
    *,
    first: bool,
    last: bool,
) -> int:
    """Cells that no border between intervals cuts.

    `runs` say where cells begin, their size, their number, how many pairs they make with intervals.
    """
    # a cell that is not longer than an interval has one border inside at most
    found = sum(2 * count - pairs for _, size, count, pairs in runs if size <= length)
    cells = sum(count for _, _, count, _ in runs)
    if not cells:
        return 0

    def is_uncut(start: int, stop: int) -> bool:
        return (stop - 1) // length * length <= start

    final = dimension.start(cells - 1)
    if runs[-1][1] > length and is_uncut(final, dimension.extent):
        found += 1  # what lies in the dimension of it is shorter
    dropped = ({0} if first else set()) | ({cells - 1} if last else set())
    for cell in dropped:
        stop = min(dimension.start(cell + 1), dimension.extent)
        found -= is_uncut(dimension.start(cell), stop)
    return found


def _multiples(start: int, step: int, count: int, length: int) -> int:
    """How many of `start`, `start + step`, ... are multiples of a length."""
    divisor = gcd(step, length)
    if start % divisor:
        return 0
    period = length // divisor
    first = -(start // divisor) * pow(step // divisor, -1, period) % period
    return max(-(-(count - first) // period), 0)


_LONGEST = 1 << 63
"""No dimension has that many elements."""
_FEW_RUNS = 16
_MOST_LISTED = 1 << 25
"""Cells of differing sizes along a dimension that are listed at most, each with its size."""


def _joined(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for size, count in runs:
        if size < 1 or count < 1:
            raise GridError(
                f"{count} cells of {size} elements: a dimension is cut into cells of at least one "
                "element each."
            )
        if joined and joined[-1][0] == size:
            joined[-1] = (size, joined[-1][1] + count)
        else:
            joined.append((size, count))
    return tuple(joined)


def _packed(runs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...] | bytes:
    if len(runs) <= _FEW_RUNS:
        return runs
    return compress(pack(f"<{2 * len(runs)}q", *chain.from_iterable(runs)), 1)


def _unpacked(packed: tuple[tuple[int, int], ...] | bytes, extent: int) -> Edges:
    if not isinstance(packed, bytes):
        return Edges(packed, extent)
    content = decompress(packed)
    numbers = unpack(f"<{len(content) // 8}q", content)
    return Edges(tuple(zip(numbers[::2], numbers[1::2], strict=True)), extent)


Dimension = Fixed | Edges


Cells = tuple[int | tuple[int, ...], ...]
"""For each dimension the size of its cells, or the sizes of all of them, in order."""


def _dimension(sizes: int | tuple[int, ...], extent: int) -> Dimension:
    if isinstance(sizes, int):
        return Fixed(sizes, extent)
    if sizes == (0,) and extent == 0:  # as dask spells a dimension without elements
        return Fixed(1, 0)
    edges = Edges.of(sizes, extent)
    if not sizes:
        return edges
    regular = Fixed(sizes[0], extent)
    same = regular.count == edges.count == len(sizes) and regular.lengths == edges.lengths
    return regular if same else edges


def spans(dimension: Dimension, selected: slice) -> list[Span]:
    """The cells of one dimension that a slice of positive step meets, in order.

    Examples
    --------
    >>> spans(Fixed(4, 10), slice(3, 9, 1))[0]
    Span(coord=0, inside=slice(3, 4, 1), out=slice(0, 1, 1), whole=False)
    """
    start, stop, step = selected.start, selected.stop, selected.step or 1
    found: list[Span] = []
    done = 0
    while start < stop:
        index = dimension.find(start)
        origin = dimension.start(index)
        end = min(origin + dimension.size_of(index), dimension.extent)
        last = min(end, stop)
        taken = -(-(last - start) // step)
        whole = step == 1 and start == origin and last == end
        found.append(
            Span(
                index,
                slice(start - origin, last - origin, step),
                slice(done, done + taken, 1),
                whole or (taken == end - origin),
            )
        )
        done += taken
        start += taken * step
    return found


@dataclass(frozen=True)
class Grid:
    """An index space cut into cells along each of its dimensions."""

    dimensions: tuple[Dimension, ...]

    @staticmethod
    def regular(shape: Sequence[int], cell: Sequence[int]) -> Grid:
        """Cells of one shape.

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
        """Cells of one size along some dimensions, and of declared sizes along others.

        Declared sizes that are equal, save a smaller last one, are one size: every reader knows
        such grids.

        Parameters
        ----------
        shape
            Extent of each dimension.
        cells
            For each of them the size of its cells, or the sizes of all of them, in order.

        Raises
        ------
        GridError
            If a cell has no element, or the cells of a dimension end before it.

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
        """The one shape of every cell, or None where cells differ."""
        if all(isinstance(dimension, Fixed) for dimension in self.dimensions):
            return self.largest_cell
        return None

    @cached_property
    def largest_cell(self) -> Shape:
        """The largest size of a cell along each dimension."""
        return tuple(dimension.largest for dimension in self.dimensions)

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
        """Whether there is a cell at some coordinates, which are not negative."""
        return all(at < count for at, count in zip(coords, self.counts, strict=True))

    @property
    def everything(self) -> Region:
        """The region that covers the whole index space."""
        return tuple(slice(0, n, 1) for n in self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return Grid, (self.dimensions,)  # without what can be worked out

    def window(self, region: Region) -> Grid:
        """The cells that a region of step 1 meets, as a grid of its own."""
        pairs = zip(self.dimensions, region, strict=True)
        return Grid(tuple(dimension.window(s.start, s.stop) for dimension, s in pairs))

    def shape_of(self, coords: Sequence[int]) -> Shape:
        """Declared shape of a cell, which may reach beyond the extents."""
        return tuple(d.size_of(i) for d, i in zip(self.dimensions, coords, strict=True))

    def region_of(self, coords: Sequence[int]) -> Region:
        """The elements of the index space that a cell holds."""
        return tuple(
            slice(d.start(i), min(d.start(i) + d.size_of(i), d.extent), 1)
            for d, i in zip(self.dimensions, coords, strict=True)
        )

    def parts(self, region: Region) -> Iterator[Part]:
        """The cells that a region meets, in C order of their coordinates.

        Examples
        --------
        >>> [part.coords for part in Grid.regular((4, 4), (2, 2)).parts((slice(1, 3), slice(0, 1)))]
        [(0, 0), (1, 0)]
        """
        per_dimension = [spans(d, s) for d, s in zip(self.dimensions, region, strict=True)]
        for combination in product(*per_dimension):
            if combination:
                coords, inside, out, whole = zip(*combination, strict=True)
                yield Part(coords, inside, out, all(whole))
            else:
                yield Part((), (), (), True)

    def only_cell(self, region: Region) -> tuple[tuple[int, ...], Region, bool] | None:
        """The one cell that a region lies in, as `Part` without `out`; None if it is not one.

        Examples
        --------
        >>> Grid.regular((9,), (4,)).only_cell((slice(5, 7, 1),))
        ((1,), (slice(1, 3, 1),), False)
        >>> Grid.regular((9,), (4,)).only_cell((slice(3, 5, 1),)) is None
        True
        """
        coords: list[int] = []
        inside: list[slice] = []
        whole = True
        for dimension, selected in zip(self.dimensions, region, strict=True):
            start, stop = selected.start, selected.stop
            found = dimension.around(start, stop)
            if found is None:
                return None
            index, origin, end = found
            step = selected.step or 1
            coords.append(index)
            inside.append(slice(start - origin, stop - origin, step))
            if whole and (start != origin or stop != end or step != 1):
                whole = -(-(stop - start) // step) == end - origin
        return tuple(coords), tuple(inside), whole

    def count_parts(self, region: Region) -> int:
        """How many cells a region meets, without listing them."""
        return prod(len(spans(d, s)) for d, s in zip(self.dimensions, region, strict=True))

    def align(self, blocks: Sequence[Sequence[int]], origin: Sequence[int] = ()) -> Blocks:
        """Move the borders between blocks so that no cell lies in two of them.

        Each border moves down to the nearest cell boundary; blocks left without an element
        vanish. Blocks that fit are returned as they are.

        Parameters
        ----------
        blocks
            Sizes of consecutive blocks along each dimension.
        origin
            Where the first block starts; zeros by default. A cell that begins before the
            origin belongs to the first block.

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


def _few(values: Sequence[object], limit: int = 6) -> str:
    shown = ", ".join(str(value) for value in values[:limit])
    return f"({shown}, ...)" if len(values) > limit else f"({shown})"
