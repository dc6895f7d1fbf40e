"""A dimension that is cut into cells: their boundaries, and the cell that holds an element.

There are two kinds. `Fixed`: every cell has the same size, and the last may reach beyond the
extent. `Edges`: each cell has its own declared size. Pure integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from math import gcd, lcm
from struct import pack, unpack
from typing import TYPE_CHECKING, Any
from zlib import compress, decompress

from zarr_dask.errors import GridError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Dimension", "Edges", "Fixed", "overlaps", "pairs", "pairs_length", "uncut"]


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
        """True if the last cell reaches beyond the extent."""
        return self.start(self.count) > self.extent

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of the dimension in each cell, without the part of a cell beyond the extent."""
        whole, rest = divmod(self.extent, self.size)
        return (self.size,) * whole + ((rest,) if rest else ())

    def size_of(self, index: int) -> int:  # noqa: ARG002  (every cell has the same size)
        """Return the declared size of a cell, which may reach beyond the extent."""
        return self.size

    def start(self, index: int) -> int:
        """Return the first element of a cell; for the cell after the last, the end of the last."""
        return index * self.size

    def find(self, position: int) -> int:
        """Return the cell that holds an element."""
        return position // self.size

    def around(self, start: int, stop: int) -> tuple[int, int, int] | None:
        """Return the cell that holds an interval, and its start and end within the extent.

        None if the interval is empty or overlaps several cells.
        """
        index = start // self.size
        origin = index * self.size
        end = min(origin + self.size, self.extent)
        return (index, origin, end) if start < stop <= end else None

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells that hold many elements, and the offsets of these in their cells."""
        cells = positions // self.size
        return cells, positions - cells * self.size

    def meetings(self, length: int) -> int:
        """Return the number of overlapping pairs of a cell and an interval of one length.

        Each cell counts once, plus once for every interval border inside it.
        """
        borders = max(-(-self.extent // length) - 1, 0)
        on_cells = borders // (lcm(length, self.size) // length)
        return self.count + borders - on_cells

    def met_length(self, length: int) -> int:
        """Return the sum of the declared cell sizes over all pairs that `meetings` counts."""
        return self.meetings(length) * self.size

    def uncut(self, length: int, *, first: bool = False, last: bool = False) -> int:
        """Return the number of cells that lie in one interval, for intervals of one length.

        `first` and `last` exclude the first or last cell from the count.
        """
        run = (0, self.size, self.count, self.meetings(length))
        return _uncut([run], self, length, first=first, last=last)

    def window(self, start: int, stop: int) -> Dimension:
        """Return the cells that overlap an interval, as a dimension of its own.

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
        """Merge whole cells into groups of at most `length`, which is a multiple of their size."""
        return Fixed(length, self.extent)

    def boundary_at_or_before(self, position: int) -> int:
        """Return the last cell boundary at or before `position`; the extent counts as one."""
        return position if position >= self.extent else position - position % self.size

    def is_boundary(self, position: int) -> bool:
        """True if no cell lies on both sides of `position`."""
        return position >= self.extent or position % self.size == 0


@dataclass(frozen=True)
class Edges:
    """A dimension cut into cells of declared sizes.

    Stored as runs of equal sizes, so that any number of equal cells takes the memory of one.

    Examples
    --------
    >>> Edges.of([31, 28, 31, 31], 120)
    Edges(runs=((31, 1), (28, 1), (31, 2)), extent=120)
    """

    runs: tuple[tuple[int, int], ...]
    """Size and number of consecutive cells, each at least 1. Adjacent runs of equal size are
    merged; together the cells reach the extent or go beyond it."""
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
        """Return cells of the given sizes, one after the other.

        Raises
        ------
        GridError
            If a size is below 1, or their sum below the extent.
        """
        return Edges(tuple((size, 1) for size in sizes), extent)

    @cached_property
    def _starts(self) -> list[int]:
        """First element of each run, and the end of the last run."""
        return list(accumulate((size * count for size, count in self.runs), initial=0))

    @cached_property
    def _indices(self) -> list[int]:
        """First cell of each run, and the total number of cells."""
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
        """True if the last cell reaches beyond the extent."""
        return self.start(self.count) > self.extent

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of the dimension in each cell, without the part of a cell beyond the extent."""
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
        """End of the last cell, at the extent or beyond it."""
        return self._starts[-1]

    def size_of(self, index: int) -> int:
        """Return the declared size of a cell, which may reach beyond the extent."""
        return self.runs[bisect_right(self._indices, index) - 1][0]

    def start(self, index: int) -> int:
        """Return the first element of a cell; for the cell after the last, the end of the last."""
        if index >= self._indices[-1]:
            return self.end
        run = bisect_right(self._indices, index) - 1
        return self._starts[run] + (index - self._indices[run]) * self.runs[run][0]

    def find(self, position: int) -> int:
        """Return the cell that holds an element."""
        run = bisect_right(self._starts, position) - 1
        return self._indices[run] + (position - self._starts[run]) // self.runs[run][0]

    def around(self, start: int, stop: int) -> tuple[int, int, int] | None:
        """Return the cell that holds an interval, and its start and end within the extent.

        None if the interval is empty or overlaps several cells.
        """
        if start >= stop:
            return None
        index = self.find(start)
        origin = self.start(index)
        end = min(origin + self.size_of(index), self.extent)
        return (index, origin, end) if stop <= end else None

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells that hold many elements, and the offsets of these in their cells."""
        import numpy as np

        starts = np.array(self._starts, np.int64)
        run = starts.searchsorted(positions, "right") - 1
        cells, offsets = np.divmod(
            positions - starts[run], np.array([size for size, _ in self.runs] or [1])[run]
        )
        return np.array(self._indices, np.int64)[run] + cells, offsets

    def meetings(self, length: int) -> int:
        """Return the number of overlapping pairs of a cell and an interval of one length."""
        return sum(pairs for _, pairs in self._pairs(length))

    def _pairs(self, length: int) -> tuple[tuple[int, int], ...]:
        """Return, for each run, the size of its cells and the number of their pairs with intervals.

        Each cell counts once, plus once for every interval border inside it.
        """
        known: dict[int, tuple[tuple[int, int], ...]] = self.__dict__.setdefault("_known", {})
        if length not in known:  # planning calls this often
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
        """Return the sum of the declared cell sizes over all pairs that `meetings` counts."""
        return sum(size * pairs for size, pairs in self._pairs(length))

    def uncut(self, length: int, *, first: bool = False, last: bool = False) -> int:
        """Same as `Fixed.uncut`."""
        runs: list[tuple[int, int, int, int]] = []
        for (size, count), start, (_, pairs) in zip(
            self.runs, self._starts, self._pairs(length), strict=False
        ):
            runs.append((start, size, min(count, -(-(self.extent - start) // size)), pairs))
        return _uncut(runs, self, length, first=first, last=last)

    def window(self, start: int, stop: int) -> Dimension:
        """Same as `Fixed.window`.

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
        """Merge whole cells into groups of at most `length`; no cell may be longer."""
        known: dict[int, Edges] = self.__dict__.setdefault("_groups", {})  # a cache for planning
        if length not in known:
            known[length] = Edges(tuple(self._grouped(length)), self.extent)
        return known[length]

    def _grouped(self, length: int) -> Iterator[tuple[int, int]]:
        """Yield runs of groups: all groups inside a run of cells at once, the others one by one."""
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
        """Return the last cell boundary at or before `position`; the extent counts as one."""
        return position if position >= self.extent else self.start(self.find(position))

    def is_boundary(self, position: int) -> bool:
        """True if no cell lies on both sides of `position`."""
        return self.boundary_at_or_before(position) == position

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without computed attributes: an array is part of each of its tasks."""
        return _unpacked, (_packed(self.runs), self.extent)


def _uncut(
    runs: Sequence[tuple[int, int, int, int]],
    dimension: Fixed | Edges,
    length: int,
    *,
    first: bool,
    last: bool,
) -> int:
    """Return the number of cells that no interval border cuts.

    `runs` holds, for each run, its start, the size and number of its cells, and the number of their
    pairs with intervals.
    """
    # a cell that is not longer than an interval contains at most one border
    found = sum(2 * count - pairs for _, size, count, pairs in runs if size <= length)
    cells = sum(count for _, _, count, _ in runs)
    if not cells:
        return 0

    def is_uncut(start: int, stop: int) -> bool:
        return (stop - 1) // length * length <= start

    final = dimension.start(cells - 1)
    if runs[-1][1] > length and is_uncut(final, dimension.extent):
        found += 1  # its part inside the dimension is shorter
    dropped = ({0} if first else set()) | ({cells - 1} if last else set())
    for cell in dropped:
        stop = min(dimension.start(cell + 1), dimension.extent)
        found -= is_uncut(dimension.start(cell), stop)
    return found


def _multiples(start: int, step: int, count: int, length: int) -> int:
    """Return how many of `start`, `start + step`, ... are multiples of a length."""
    divisor = gcd(step, length)
    if start % divisor:
        return 0
    period = length // divisor
    first = -(start // divisor) * pow(step // divisor, -1, period) % period
    return max(-(-(count - first) // period), 0)


_LONGEST = 1 << 63
"""Upper limit of the length of a dimension."""
_FEW_RUNS = 16
_MOST_LISTED = 1 << 25
"""Maximum number of cells of differing sizes along a dimension that are listed one by one."""


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


# --- two partitions of one extent -----------------------------------------------------------------


def pairs(cells: Dimension, intervals: Dimension) -> int:
    """Return the number of overlapping pairs of a cell and an interval.

    Examples
    --------
    >>> pairs(Fixed(4, 10), Edges.of([3, 7], 10))
    4
    """
    if isinstance(intervals, Fixed):
        return cells.meetings(intervals.size)
    return cells.count + len(_cut_cells(cells, intervals))


def pairs_length(cells: Dimension, intervals: Dimension, lead: int = 0) -> int:
    """Return the sum of the declared cell sizes over all pairs that `pairs` counts.

    `lead` is added to the size of the first cell: elements of it that lie before the dimension.
    """
    if not cells.count:
        return 0
    stop = min(cells.start(1), cells.extent)
    before = lead * (intervals.find(stop - 1) + 1)
    if isinstance(intervals, Fixed):
        return before + cells.met_length(intervals.size)
    again = sum(cells.size_of(int(cell)) for cell in _cut_cells(cells, intervals))
    return before + cells.start(cells.count) + again


def uncut(
    cells: Dimension, intervals: Dimension, *, first: bool = False, last: bool = False
) -> int:
    """Return the number of cells that lie in one interval; see `Fixed.uncut`."""
    if isinstance(intervals, Fixed):
        return cells.uncut(intervals.size, first=first, last=last)
    dropped = ({0} if first else set()) | ({cells.count - 1} if last else set())
    return cells.count - len({*map(int, _cut_cells(cells, intervals)), *dropped} - {-1})


def _cut_cells(cells: Dimension, intervals: Edges) -> np.ndarray:
    """Return the numbers of cells with borders of intervals inside, once for each border."""
    found, offsets = cells.locate(_borders(intervals, cells.extent)[:-1])
    inside: np.ndarray = found[offsets > 0]
    return inside


def overlaps(
    cells: Dimension, intervals: Dimension, *, last: bool = False
) -> tuple[Counter[int], Counter[int]]:
    """Return the lengths of all overlaps of a cell and an interval, each with its number.

    Parameters
    ----------
    cells, intervals
        Two ways to cut the same elements.
    last
        The last cell goes on after the extent, so that no overlap has all of it.

    Returns
    -------
    tuple
        All overlaps, and those that have everything of a cell that lies within the extent.

    Examples
    --------
    >>> overlaps(Fixed(4, 10), Fixed(6, 10))
    (Counter({2: 3, 4: 1}), Counter({2: 1, 4: 1}))
    """
    import numpy as np

    every: Counter[int] = Counter()
    whole: Counter[int] = Counter()
    period = cells.extent
    if isinstance(cells, Fixed) and isinstance(intervals, Fixed) and not last:
        period = min(lcm(cells.size, intervals.size), period)
    repeats, rest = divmod(cells.extent, period) if period else (0, 0)
    for stop, times in ((period, repeats), (rest, 1)):
        if not stop:
            continue
        starts = _borders(cells, stop)
        borders = np.union1d(starts, _borders(intervals, stop))
        lengths = np.diff(borders)
        ends = np.isin(borders, starts)
        ends[-1] = not last
        for found, some in ((every, lengths), (whole, lengths[ends[:-1] & ends[1:]])):
            values, counts = np.unique(some, return_counts=True)
            for length, count in zip(values.tolist(), counts.tolist(), strict=True):
                found[length] += count * times
    return every, whole


def _borders(dimension: Dimension, stop: int) -> np.ndarray:
    """Return the starts of cells before an element, and this element."""
    import numpy as np

    runs = dimension.runs if isinstance(dimension, Edges) else ((dimension.size, dimension.count),)
    starts = [0, *accumulate(size * count for size, count in runs)]
    inside = [
        np.arange(a, min(b, stop), size)
        for (size, _), a, b in zip(runs, starts, starts[1:], strict=False)
        if a < stop
    ]
    return np.concatenate([*inside, np.array([stop], np.int64)])


def _few(values: Sequence[object], limit: int = 6) -> str:
    shown = ", ".join(str(value) for value in values[:limit])
    return f"({shown}, ...)" if len(values) > limit else f"({shown})"
