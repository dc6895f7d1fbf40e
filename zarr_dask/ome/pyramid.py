"""A pyramid as a plan: the stages and super-cells in which its levels are made.

A *stage* reads one array and writes several levels that follow from it. It is cut into
*super-cells*: each is a union of whole stored objects on every level that the stage writes, so that
each object has one owner, and nothing is read twice. A task reads its super-cell in *pieces*,
writes what it has read, keeps only the coarser pixels of it, and makes all further levels from
those. How many levels a stage has is a matter of memory: with each one more the super-cells get
longer by the factor along each axis. What does not fit follows in another stage, from the last
level that was written.

Pure arithmetic; `zarr_dask.ome.cells` is what a task does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import lcm, prod

import numpy as np

from zarr_dask.array import Array
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.grid import Fixed, Grid, Region, Shape
from zarr_dask.jobs.plan import format_bytes
from zarr_dask.jobs.rechunk.layouts import layout_of
from zarr_dask.jobs.rechunk.stages import KEPT_AT_MOST, OVERHEAD
from zarr_dask.ome.downsample import Method

__all__ = ["Blocked", "Stage", "blocked", "plan_stages"]

_LIKED = 1 << 25
"""Bytes of a super-cell if it can have so many: enough for a task."""
_PER_THREAD = 4
"""Super-cells for each thread at least, where small ones could be put together."""
_LITTLE = 16
"""By how much the last level of a stage is smaller if reading it again hardly counts."""
_ROUNDS_OF_ONE_IDLE = 6
"""Tasks for each that threads could do besides while they wait for the last ones."""
_SLABS = 8 << 20
"""What making coarser pixels takes besides: a few slabs of the widest type."""


@dataclass(frozen=True)
class Blocked:
    """A source, as far as a plan needs to know it."""

    shape: Shape
    itemsize: int
    unit: Shape
    """What is decoded or computed at once: once only, if pieces are unions of these."""
    liked: Shape
    """What is best read at a time: whole stored objects or blocks."""
    never_cut: bool = False
    """Whether pieces that cut units are out of the question."""
    whole: bool = False
    """Whether a task is handed its super-cell as a whole, by a graph."""
    working: int = 0
    """Bytes that reading takes besides what is read."""


def blocked(array: Array) -> Blocked:
    """A stored array as a source."""
    layout = layout_of(array)
    working = layout.object_bytes + max(layout.chunk_bytes, layout.working_to_read)
    return Blocked(array.shape, layout.itemsize, layout.chunk, array.write_chunks, working=working)


@dataclass(frozen=True)
class Stage:
    """One pass over a source: the levels that it writes and the super-cells of its tasks."""

    first: int
    """Number of the first array that it writes."""
    shapes: tuple[Shape, ...]
    """Of the source, then of each array that it writes."""
    factors: tuple[Shape, ...]
    """Of each array that it writes, against the one before; the first may be a copy."""
    margins: Shape
    """Pixels of the source on both sides of a piece that count for it as well."""
    cell: Shape
    """Super-cell, in pixels of the source."""
    piece: Shape
    """What the first array is written from at a time; super-cells are whole numbers of it."""
    step: Shape
    """What is read at a time: a piece, or a part of it where the first array is coarser."""
    peak: int = 0
    """Bytes that a task holds at most."""
    read: int = 0
    """Bytes that all tasks read."""

    @property
    def last(self) -> int:
        """Number of the last array that it writes."""
        return self.first + len(self.factors) - 1

    @cached_property
    def cells(self) -> Grid:
        """The super-cells."""
        return Grid.regular(self.shapes[0], self.cell)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.cells.ncells

    def number(self, start: Sequence[int]) -> int:
        """The task whose super-cell begins at a pixel of the source."""
        coords = [at // size for at, size in zip(start, self.cell, strict=True)]
        return int(np.ravel_multi_index(coords, self.cells.counts))

    def region(self, number: int, array: int) -> Region:
        """What a task makes of an array, counted from the first that is written; -1: it reads."""
        coords = np.unravel_index(number, self.cells.counts)
        return tuple(self._interval(axis, int(at), array) for axis, at in enumerate(coords))

    def _interval(self, axis: int, at: int, array: int) -> slice:
        extent, count = self.shapes[array + 1][axis], self.cells.counts[axis]
        size = self.cell[axis] // prod(factors[axis] for factors in self.factors[: array + 1])
        stop = extent if at + 1 == count else min((at + 1) * size, extent)
        return slice(min(at * size, extent), stop, 1)

    def pieces(self, number: int) -> Iterator[tuple[Region, Region]]:
        """The pieces of a super-cell, and which pixels of the first array follow from each."""
        return self._parts(self.region(number, -1), self.region(number, 0), self.piece)

    def steps(self, piece: Region, made: Region) -> Iterator[tuple[Region, Region]]:
        """What is read of a piece at a time, and which pixels of the first array follow from it.

        What is read has its margins, as far as the source reaches.
        """
        for part, pixels in self._parts(piece, made, self.step):
            read = (
                slice(max(s.start - margin, 0), min(s.stop + margin, extent), 1)
                for s, margin, extent in zip(part, self.margins, self.shapes[0], strict=True)
            )
            yield tuple(read), pixels

    def _parts(
        self, whole: Region, made: Region, lengths: Shape
    ) -> Iterator[tuple[Region, Region]]:
        along = [
            [(part, _following(part, s, m, factor)) for part in _cut(s, length)]
            for s, m, factor, length in zip(whole, made, self.factors[0], lengths, strict=True)
        ]
        for pairs in product(*along):
            parts, pixels = zip(*pairs, strict=True)
            yield parts, pixels


def _cut(whole: slice, length: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, length):
        yield slice(start, min(start + length, whole.stop), 1)


def _following(part: slice, whole: slice, made: slice, factor: int) -> slice:
    """The coarse pixels of a part, of those that all of the whole makes."""
    low = min(made.start + (part.start - whole.start) // factor, made.stop)
    high = min(made.start + (part.stop - whole.start) // factor, made.stop)
    return slice(low, made.stop if part.stop == whole.stop else max(high, low), 1)


@dataclass(frozen=True)
class _Planner:
    """What the stages of a pyramid are chosen for."""

    arrays: tuple[Array, ...]
    factors: tuple[Shape, ...]
    method: Method
    budget: int
    threads: int

    def widest(self, source: Blocked, first: int) -> Stage:
        """The stage with as many levels as memory and the number of threads allow."""
        chosen = self._stage(source, first, first)
        if chosen.peak > self.budget:
            raise MemoryBudgetError(
                f"one task of level {first} would hold {format_bytes(chosen.peak)}, more than the "
                f"{format_bytes(self.budget)} that it may. Raise max_mem, choose smaller shards "
                "or chunks, or run fewer threads in a process."
            )
        if any(any(self.method.margins(factors)) for factors in self.factors):
            return self._grown(chosen, source)  # levels that wait for margins follow one by one
        for last in range(first + 1, len(self.arrays)):
            wider = self._stage(source, first, last)
            if wider.peak > self.budget or not self._is_worth_it(wider, chosen, source):
                break
            chosen = wider
        return self._grown(chosen, source)

    def _is_worth_it(self, wider: Stage, stage: Stage, source: Blocked) -> bool:
        """Whether larger super-cells cost less than reading the last level of a stage again.

        Tasks should be many, so that no thread waits for long while others work, and little is lost
        with a task that dies. Level 0 is never read again if that can be helped.
        """
        if prod(wider.cell) * source.itemsize <= _LIKED or wider.tasks == stage.tasks:
            return True
        if prod(map(prod, stage.factors)) >= _LITTLE:
            return False
        rounds = -(-wider.tasks // self.threads)
        idle = rounds * self.threads - wider.tasks
        is_copy = stage.first == stage.last and set(stage.factors[0]) == {1}
        return is_copy or (rounds > 1 and idle * _ROUNDS_OF_ONE_IDLE <= wider.tasks)

    def _stage(self, source: Blocked, first: int, last: int) -> Stage:
        """The stage of some levels with the smallest super-cells, cutting no unit if it can."""
        stage = self._cut(source, first, last, source.unit)
        if stage.peak > self.budget and not source.never_cut:
            return self._cut(source, first, last, (1,) * len(source.shape))
        return stage

    def _cut(self, source: Blocked, first: int, last: int, unit: Shape) -> Stage:
        arrays, factors = self.arrays[first : last + 1], self.factors[first : last + 1]
        products = list(accumulate(factors, _times))
        cell, piece = [], []
        for axis, (extent, length) in enumerate(zip(source.shape, unit, strict=True)):
            sizes = [
                array.write_chunks[axis] * product[axis]
                for array, product in zip(arrays, products, strict=True)
            ]
            cell.append(_clipped(lcm(length, *sizes), extent))
            further = products[1][axis] if len(products) > 1 else 1
            piece.append(_clipped(lcm(length, sizes[0], further), extent))
        shapes = (source.shape, *(array.shape for array in arrays))
        margins = self.method.margins(factors[0])
        step = tuple(piece)
        stage = self._measured(
            Stage(first, shapes, factors, margins, tuple(cell), tuple(piece), step), source
        )
        if set(factors[0]) == {1} or (any(margins) and stage.peak <= self.budget):
            return stage
        step = tuple(
            min(lcm(liked, factor), length)
            for liked, factor, length in zip(source.liked, factors[0], piece, strict=True)
        )
        return self._measured(replace(stage, step=step), source)

    def _measured(self, stage: Stage, source: Blocked) -> Stage:
        """The stage with what it reads, and what a task of it holds at most."""
        read = [
            length + 2 * margin for length, margin in zip(stage.step, stage.margins, strict=True)
        ]
        values = prod(read) * source.itemsize
        arrays = self.arrays[stage.first : stage.last + 1]
        sizes = [_bytes_of_cell(stage, i, array) for i, array in enumerate(arrays)]
        if set(stage.factors[0]) != {1}:
            cells = zip(stage.piece, stage.factors[0], strict=True)
            values += prod(-(-length // factor) for length, factor in cells) * source.itemsize
        held = [values + sum(sizes[1:2]), *(sum(pair) for pair in pairwise(sizes[1:]))]
        handed = 2 * prod(stage.cell) * source.itemsize if source.whole else 0
        # a thread keeps what it has encoded last, also while it reads
        working = source.working + max(map(_writing, arrays))
        kept = min(KEPT_AT_MOST, values // 4)
        met = prod(map(_met, source.shape, source.unit, stage.step, stage.margins))
        peak = handed + max(held) + working + kept + OVERHEAD + _SLABS
        return replace(stage, peak=peak, read=max(met, prod(source.shape)) * source.itemsize)

    def _grown(self, stage: Stage, source: Blocked) -> Stage:
        """The stage with super-cells put together until a task is worth its while."""
        for axis in reversed(range(len(stage.cell))):
            while stage.cell[axis] < source.shape[axis]:
                longer = _clipped(2 * stage.cell[axis], source.shape[axis])
                cell = (*stage.cell[:axis], longer, *stage.cell[axis + 1 :])
                wider = self._measured(replace(stage, cell=cell), source)
                is_large = prod(cell) * source.itemsize > _LIKED
                if is_large or wider.peak > self.budget:
                    break
                if wider.tasks < _PER_THREAD * self.threads:
                    break
                stage = wider
        return stage


def _met(extent: int, unit: int, step: int, margin: int) -> int:
    """Pixels along an axis that are decoded, when steps with margins are read one by one."""
    if not margin:
        cells = Fixed(unit, extent)
        return cells.met_length(step) - (cells.count * unit - extent)
    units = 0
    for start in range(0, extent, step):
        low, high = max(start - margin, 0), min(start + step + margin, extent)
        units += -(-high // unit) - low // unit
    return units * unit


def _times(one: Shape, other: Shape) -> Shape:
    return tuple(map(int.__mul__, one, other))


def _clipped(length: int, extent: int) -> int:
    return max(min(length, extent), 1)


def _bytes_of_cell(stage: Stage, number: int, array: Array) -> int:
    """What a super-cell is on a level."""
    factors = [prod(axis) for axis in zip(*stage.factors[: number + 1], strict=True)]
    lengths = [-(-size // factor) for size, factor in zip(stage.cell, factors, strict=True)]
    pixels: int = prod(lengths)
    return pixels * array.meta.data_type.typical_itemsize


def _writing(array: Array) -> int:
    """Bytes that encoding a stored object takes besides its pixels."""
    layout = layout_of(array)
    padded = layout.object_bytes if layout.padded else 0
    room = max(layout.chunk_bytes, layout.working)
    made = layout.encoded_bytes + layout.waiting + layout.turned
    return made + room + layout.tables + padded


def plan_stages(
    source: Blocked,
    arrays: Sequence[Array],
    factors: Sequence[Shape],
    method: Method,
    budget: int,
    threads: int,
) -> tuple[Stage, ...]:
    """The stages of a pyramid.

    Parameters
    ----------
    source
        What is read first.
    arrays
        What is written, level by level.
    factors
        Of each of them against the one before, of the first against the source.
    method
        How coarser pixels are made.
    budget
        Bytes that a task may hold.
    threads
        Tasks that run at the same time.

    Raises
    ------
    MemoryBudgetError
        If one stored object is too large for that.
    """
    planner = _Planner(tuple(arrays), tuple(factors), method, budget, threads)
    stages: list[Stage] = []
    first = 0
    while first < len(arrays):
        stages.append(planner.widest(source, first))
        first = stages[-1].last + 1
        source = blocked(arrays[first - 1])
    return tuple(stages)
