"""The plan of a pyramid: the stages and super-cells in which its levels are made.

A *stage* reads one array and writes several levels that are computed from it. It is cut into
*super-cells*: each is a union of whole stored objects on every level that the stage writes, so that
each object has one owner, and nothing is read twice. A task reads its super-cell in *pieces*,
writes each piece, keeps only its downsampled pixels, and makes all further levels from those. The
number of levels of a stage is limited by memory: with each further level the super-cells grow by
the factor along each axis. The remaining levels are made in another stage, from the last level that
was written.

Pure arithmetic; `zarr_dask.ome.pyramid_task` executes the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import lcm, prod

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.grid.grid import Fixed, Grid, Region, Shape
from zarr_dask.jobs.engine import Workers
from zarr_dask.jobs.engine.cost_model import KEPT_AT_MOST, OVERHEAD
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.engine.plan import format_bytes
from zarr_dask.ome.downsample import Method

__all__ = ["BlockedSource", "PyramidStage", "blocked", "plan_stages"]

_LIKED = 1 << 25
"""Preferred bytes of a super-cell: enough work for a task."""
_PER_THREAD = 4
"""Minimum number of super-cells for each thread when small ones are merged."""
_LITTLE = 16
"""Ratio of sizes from which reading the last level of a stage again costs little."""
_ROUNDS_OF_ONE_IDLE = 6
"""Minimum ratio of tasks to tasks that idle threads could have run while waiting for the last."""
_SLABS = 8 << 20
"""Additional memory for downsampling: a few slabs of the widest type."""
_READ_AGAIN = 2
"""Ratio of bytes read to bytes of the source above which fewer threads are tried."""


@dataclass(frozen=True)
class BlockedSource:
    """Properties of a source that a plan needs."""

    shape: Shape
    itemsize: int
    unit: Shape
    """Unit of decoding or computing, which is processed only once if pieces are unions of it."""
    liked: Shape
    """Preferred unit of reading: whole stored objects or blocks."""
    never_cut: bool = False
    """True if pieces must not cut units."""
    whole: bool = False
    """True if a graph passes each task its super-cell as a whole."""
    working: int = 0
    """Bytes that reading needs in addition to its result."""
    cut_unit: int = 0
    """Additional bytes of a unit that is decoded beside the result, because pieces cut it."""

    @property
    def nbytes(self) -> int:
        """Decoded bytes."""
        return prod(self.shape) * self.itemsize


def blocked(array: Array) -> BlockedSource:
    """Return a stored array as a source."""
    layout = layout_of(array)
    return BlockedSource(
        array.shape,
        layout.itemsize,
        layout.chunk,
        array.write_chunks,
        working=layout.object_bytes + layout.memory.decode_workspace,
        cut_unit=max(layout.chunk_bytes - layout.memory.decode_workspace, 0),
    )


@dataclass(frozen=True)
class PyramidStage:
    """One pass over a source: the levels that it writes and the super-cells of its tasks."""

    first: int
    """Number of the first array that it writes."""
    shapes: tuple[Shape, ...]
    """Shapes of the source, then of each array that it writes."""
    factors: tuple[Shape, ...]
    """Factors of each array that it writes, against the one before; the first may be a copy."""
    margins: Shape
    """Pixels of the source on both sides of a piece that contribute to it."""
    cell: Shape
    """Shape of a super-cell, in pixels of the source."""
    piece: Shape
    """Shape from which the first array is written at a time; super-cells are multiples of it."""
    step: Shape
    """Shape that is read at a time: a piece, or a part of it if the first array is downsampled."""
    peak: int = 0
    """Maximum number of bytes that a task holds."""
    read: int = 0
    """Bytes that all tasks read."""
    threads: int = 1
    """Number of tasks that run at the same time in a process."""

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
        """Return the task whose super-cell begins at a pixel of the source."""
        coords = [at // size for at, size in zip(start, self.cell, strict=True)]
        return int(np.ravel_multi_index(coords, self.cells.counts))

    def region(self, number: int, array: int) -> Region:
        """Return a task's region of an array; 0 is the first one written, -1 the source."""
        coords = np.unravel_index(number, self.cells.counts)
        return tuple(self._interval(axis, int(at), array) for axis, at in enumerate(coords))

    def _interval(self, axis: int, at: int, array: int) -> slice:
        extent, count = self.shapes[array + 1][axis], self.cells.counts[axis]
        size = self.cell[axis] // prod(factors[axis] for factors in self.factors[: array + 1])
        stop = extent if at + 1 == count else min((at + 1) * size, extent)
        return slice(min(at * size, extent), stop, 1)

    def meeting(self, region: Region) -> list[int]:
        """Return the tasks that read a region of the source."""
        along = []
        for s, margin, size, count in zip(
            region, self.margins, self.cell, self.cells.counts, strict=True
        ):
            first = max(s.start - margin, 0) // size
            along.append(range(first, min(-(-(s.stop + margin) // size), count)))
        if not all(along):
            return []
        found = np.ravel_multi_index(np.ix_(*along), self.cells.counts)
        return [int(number) for number in np.ravel(found)]

    def coarse(self, region: Region) -> Region:
        """Return the pixels of the first array that are made of a region of the source."""
        return tuple(
            slice(
                min(max(s.start - margin, 0) // factor, extent),
                min(-(-(s.stop + margin) // factor), extent),
                1,
            )
            for s, margin, factor, extent in zip(
                region, self.margins, self.factors[0], self.shapes[1], strict=True
            )
        )

    def pieces(self, number: int) -> Iterator[tuple[Region, Region]]:
        """Yield the pieces of a super-cell, each with its pixels of the first array."""
        return self._parts(self.region(number, -1), self.region(number, 0), self.piece)

    def steps(self, piece: Region, made: Region) -> Iterator[tuple[Region, Region]]:
        """Yield the regions of a piece to read, each with its pixels of the first array.

        The regions include the margins, as far as the source extends.
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
    """Return the coarse pixels of a part, among those that the whole makes."""
    low = min(made.start + (part.start - whole.start) // factor, made.stop)
    high = min(made.start + (part.stop - whole.start) // factor, made.stop)
    return slice(low, made.stop if part.stop == whole.stop else max(high, low), 1)


@dataclass(frozen=True)
class _StagePlanner:
    """Chooses the stages of a pyramid."""

    arrays: tuple[Array, ...]
    factors: tuple[Shape, ...]
    method: Method
    max_mem: int
    workers: Workers
    narrow: bool
    """True for stages of one level each, whose tasks write one stored object."""

    @property
    def budget(self) -> int:
        """Bytes that a task may hold."""
        return self.max_mem // self.workers.threads_per_process

    @property
    def threads(self) -> int:
        """Number of tasks that run at the same time."""
        return self.workers.threads

    def with_fewer_threads(self) -> Iterator[_StagePlanner]:
        """Yield planners that leave threads of this process idle, more and more of them."""
        threads = self.threads if self.workers.in_this_process else 1
        while threads := threads // 2:
            yield replace(
                self, workers=replace(self.workers, threads=threads, threads_per_process=threads)
            )

    def widest(self, source: BlockedSource, first: int) -> PyramidStage:
        """Return the stage with as many levels as memory and the number of threads allow.

        If even the smallest stage holds too much, it is returned.
        """
        chosen = self._stage(source, first, first)
        if self.narrow or chosen.peak > self.budget:
            return chosen
        if any(any(self.method.margins(factors)) for factors in self.factors):
            return self._grown(chosen, source)  # levels with margins are made one by one
        for last in range(first + 1, len(self.arrays)):
            wider = self._stage(source, first, last)
            if wider.peak > self.budget or not self._is_worth_it(wider, chosen, source):
                break
            chosen = wider
        return self._grown(chosen, source)

    def _is_worth_it(self, wider: PyramidStage, stage: PyramidStage, source: BlockedSource) -> bool:
        """True if larger super-cells cost less than reading the last level of a stage again.

        There should be many tasks, so that few threads are idle at the end, and little work is lost
        if a task dies. Reading level 0 twice is avoided if possible.
        """
        if wider.read > stage.read + self.arrays[stage.last].nbytes:
            return False
        if prod(wider.cell) * source.itemsize <= _LIKED or wider.tasks == stage.tasks:
            return True
        if prod(map(prod, stage.factors)) >= _LITTLE:
            return False
        rounds = -(-wider.tasks // self.threads)
        idle = rounds * self.threads - wider.tasks
        is_copy = stage.first == stage.last and set(stage.factors[0]) == {1}
        return is_copy or (rounds > 1 and idle * _ROUNDS_OF_ONE_IDLE <= wider.tasks)

    def _stage(self, source: BlockedSource, first: int, last: int) -> PyramidStage:
        """Return a stage with the smallest super-cells, without cutting units if possible."""
        stage = self._cut(source, first, last, source.unit)
        if stage.peak > self.budget and not source.never_cut:
            stage = self._cut(source, first, last, (1,) * len(source.shape))
            return self._in_larger_steps(stage, source)
        return stage

    def _in_larger_steps(self, stage: PyramidStage, source: BlockedSource) -> PyramidStage:
        """Return a stage that cuts units with larger steps, so that it decodes them less often."""
        for axis in reversed(range(len(stage.step))):
            while stage.read > _READ_AGAIN * source.nbytes:
                extent = source.shape[axis]
                longer = _clipped(2 * stage.step[axis], extent)
                piece = max(stage.piece[axis], longer)
                cell = _clipped(lcm(stage.cell[axis], piece), extent)
                wider = self._measured(
                    replace(
                        stage,
                        step=_with(stage.step, axis, longer),
                        piece=_with(stage.piece, axis, piece),
                        cell=_with(stage.cell, axis, cell),
                    ),
                    source,
                )
                if wider.peak > self.budget or wider.read >= stage.read:
                    break
                stage = wider
        return stage

    def _cut(self, source: BlockedSource, first: int, last: int, unit: Shape) -> PyramidStage:
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
            PyramidStage(first, shapes, factors, margins, tuple(cell), tuple(piece), step), source
        )
        if set(factors[0]) == {1} or (any(margins) and stage.peak <= self.budget):
            return stage
        step = tuple(
            min(lcm(liked, factor), length)
            for liked, factor, length in zip(source.liked, factors[0], piece, strict=True)
        )
        return self._measured(replace(stage, step=step), source)

    def _measured(self, stage: PyramidStage, source: BlockedSource) -> PyramidStage:
        """Return the stage with the bytes that it reads, and the most that a task holds."""
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
        # a thread keeps the memory of its last encoding, even while it reads
        working = source.working + max(map(_writing, arrays))
        if not _of_whole_units(stage, source):
            working += source.cut_unit
        kept = min(KEPT_AT_MOST, values // 4)
        met = prod(map(_met, source.shape, source.unit, stage.step, stage.margins))
        peak = handed + max(held) + working + kept + OVERHEAD + _SLABS
        return replace(
            stage,
            peak=peak,
            read=max(met * source.itemsize, source.nbytes),
            threads=self.workers.threads_per_process,
        )

    def _grown(self, stage: PyramidStage, source: BlockedSource) -> PyramidStage:
        """Return the stage with super-cells merged until a task has enough work."""
        for axis in reversed(range(len(stage.cell))):
            while stage.cell[axis] < source.shape[axis]:
                longer = _clipped(2 * stage.cell[axis], source.shape[axis])
                cell = _with(stage.cell, axis, longer)
                wider = self._measured(replace(stage, cell=cell), source)
                is_large = prod(cell) * source.itemsize > _LIKED
                if is_large or wider.peak > self.budget:
                    break
                if wider.tasks < _PER_THREAD * self.threads:
                    break
                stage = wider
        return stage


def _of_whole_units(stage: PyramidStage, source: BlockedSource) -> bool:
    """True if units are decoded in place: none extends beyond what is read at a time."""
    return not any(stage.margins) and all(
        extent % unit == 0 and (step % unit == 0 or step == extent)
        for extent, unit, step in zip(source.shape, source.unit, stage.step, strict=True)
    )


def _met(extent: int, unit: int, step: int, margin: int) -> int:
    """Return the pixels along an axis that are decoded when steps with margins are read."""
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


def _with(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _clipped(length: int, extent: int) -> int:
    return max(min(length, extent), 1)


def _bytes_of_cell(stage: PyramidStage, number: int, array: Array) -> int:
    """Return the bytes of a super-cell on a level."""
    factors = [prod(axis) for axis in zip(*stage.factors[: number + 1], strict=True)]
    lengths = [-(-size // factor) for size, factor in zip(stage.cell, factors, strict=True)]
    pixels: int = prod(lengths)
    return pixels * array.meta.data_type.typical_itemsize


def _writing(array: Array) -> int:
    """Return the bytes that encoding a stored object needs in addition to its pixels."""
    layout = layout_of(array)
    padded = layout.object_bytes if layout.padded else 0
    room = max(layout.chunk_bytes, layout.memory.workspace)
    made = layout.encoded_bytes + layout.waiting + layout.memory.byteswap
    return made + room + layout.memory.encoder_state + padded


def plan_stages(
    source: BlockedSource,
    arrays: Sequence[Array],
    factors: Sequence[Shape],
    method: Method,
    max_mem: int,
    workers: Workers,
    *,
    narrow: bool = False,
) -> tuple[PyramidStage, ...]:
    """Plan the stages of a pyramid.

    Parameters
    ----------
    source
        Source of the first stage.
    arrays
        Arrays to write, level by level.
    factors
        Factors of each of them against the one before, of the first against the source.
    method
        Method of downsampling.
    max_mem
        Bytes that a process may hold.
    workers
        Workers that run the tasks.
    narrow
        True for stages of one level each, whose tasks write one stored object.

    Raises
    ------
    MemoryBudgetError
        If one stored object is too large for a process.
    """
    planner = _StagePlanner(tuple(arrays), tuple(factors), method, max_mem, workers, narrow)
    stages: list[PyramidStage] = []
    first = 0
    while first < len(arrays):
        stages.append(_best_stage(planner, source, first))
        first = stages[-1].last + 1
        source = blocked(arrays[first - 1])
    return tuple(stages)


def _best_stage(planner: _StagePlanner, source: BlockedSource, first: int) -> PyramidStage:
    """Return the stage for all threads, or for fewer if they read much less.

    All threads together may have no room for units of a source that are large, such as pages in
    one strip: each unit would be decoded again for every part of it.
    """
    tried = [(planner, planner.widest(source, first))]
    for fewer in () if source.whole else planner.with_fewer_threads():
        before, stage = tried[-1]
        if stage.peak <= before.budget and stage.read <= _READ_AGAIN * source.nbytes:
            break
        tried.append((fewer, fewer.widest(source, first)))
    possible = [stage for by, stage in tried if stage.peak <= by.budget]
    if not possible:
        last, stage = tried[-1]
        raise MemoryBudgetError(
            f"one task of level {first} would hold {format_bytes(stage.peak)}, more than the "
            f"{format_bytes(last.budget)} that it may. Raise max_mem, choose smaller shards or "
            "chunks, or run fewer threads in a process."
        )
    return min(possible, key=lambda stage: stage.read / stage.threads)
