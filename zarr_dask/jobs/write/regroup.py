"""Ways of a write whose blocks cross stored objects: in the graph, or through an array between.

In the graph, a writing task gathers what it needs of all blocks that it overlaps; blocks wait in
memory until each of their pieces has been taken. Through an array between, blocks are written as
they come, and each writing task reads its values from there, so that nothing waits. Both are
estimated, and the faster one within the budget is taken. Pure arithmetic on grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import accumulate, chain, repeat
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.grid.grid import Blocks, Grid, Region, Shape, intersect_chunks
from zarr_dask.jobs.engine.cost_model import Layout, StagePlan, block_memory
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.predict import CostModel, JobBudget, left_for_tasks, needed_for_tasks
from zarr_dask.stores.base import Store, is_remote

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "Regrouping",
    "Way",
    "WrittenBlocks",
    "check_fits_budget",
    "check_held_together",
    "cost_model_for",
    "held_together",
    "left_beside",
    "ways",
    "written_blocks",
]

Way = Literal["direct", "graph", "staged"]

_FEW = 1 << 25
"""Bytes of small stored objects that one task writes together."""
_LARGE = 1 << 28
"""Bytes above which larger boxes save no more time."""
_GATHER = 1.5e-4
"""Seconds that dask's threads spend on a task."""
_SHIP = 1.5e-3
"""Seconds that a cluster spends on a piece that goes to another worker."""
_NETWORK = 5e8
"""Bytes per second that a worker receives from others."""
_JOINED = 1 << 24
"""Maximum bytes besides of ranges of a stored object that are read together, and of its index."""
_DISK = 1.0
"""Seconds that must be saved for an array between to be worth its space."""
_ROUGH = 2.0
"""Time of an array between, as a multiple of the estimate, that must be saved by it."""
_STEP = 1 << 20
"""Bytes in which memory for new bytes of a shard is taken."""
_UNEVEN = 1.75
"""Share of the waiting blocks that a process may hold, as a multiple of its equal share; 1.5 was
measured."""


@dataclass(frozen=True, slots=True)
class WrittenBlocks:
    """The values of a write, and what they are written to."""

    source: Blocks
    """Blocks of the dask array."""
    itemsize: int
    """Bytes of an element of these."""
    aligned: Blocks
    """Smallest unions of whole blocks that are unions of stored objects."""
    grid: Grid
    region: Region
    target: Layout
    changed: int = 0
    """Bytes held besides while an object is changed that is shared, or kept in part."""

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return prod(map(sum, self.source)) * self.itemsize

    def memory(self, shape: Shape, written: Layout | None = None) -> int:
        """Return the maximum bytes of a task that writes a block of this shape."""
        layout = written or self.target
        cast = 0 if layout.itemsize == self.itemsize else prod(shape) * layout.itemsize
        changed = 0 if written else self.changed
        return block_memory(layout, prod(shape) * self.itemsize) + cast + changed


@dataclass(frozen=True, slots=True)
class Regrouping:
    """One way to write the blocks, with its memory and time."""

    way: Way
    blocks: Blocks
    """Sizes of the blocks that are written, each a union of stored objects."""
    task: int
    """Maximum bytes that a task holds."""
    process: int
    """Maximum bytes that the tasks of a process hold together, with blocks that wait."""
    waiting: int = 0
    """Bytes of blocks that wait in all processes together until others are there."""
    held: int = 0
    """Maximum bytes of these that one process holds."""
    pieces: int = 0
    """Number of pieces that blocks are cut into, or of reads of the array between."""
    seconds: float = 0.0
    """Time besides computing and encoding the values, to compare with other ways."""

    def words(self) -> str:
        """Return the numbers of this way as text."""
        if self.way == "direct":
            return f"as they are: {format_bytes(self.process)} per process"
        name = "in the graph" if self.way == "graph" else "through an array between"
        noun = "piece" if self.way == "graph" else "read"
        return f"{name}: {format_bytes(self.process)} per process, {pluralize(self.pieces, noun)}"


def written_blocks(
    values: da.Array,
    target: Array,
    region: Region,
    aligned: Blocks,
    *,
    keeps: bool = False,
    shares: bool = False,
) -> WrittenBlocks:
    """Return what the estimates need of the values of a write and of its target.

    Parameters
    ----------
    values, target, region, aligned
        As in `WrittenBlocks`.
    keeps, shares
        True if parts of some object are kept, and if some object is put on the condition that it
        has not changed.
    """
    itemsize = max(values.dtype.itemsize, 1)
    if values.dtype.hasobject:
        itemsize = target.meta.data_type.typical_itemsize
    grid = target.meta.grid
    layout = layout_of(target)
    changed = _changed_bytes(layout, target, shares=shares) if keeps or shares else 0
    return WrittenBlocks(values.chunks, itemsize, aligned, grid, region, layout, changed)


def _changed_bytes(layout: Layout, target: Array, *, shares: bool) -> int:
    """Return the bytes held while an object is read, changed and put, as if nothing compressed.

    These are the old bytes, all elements where they are decoded, and the new bytes where they are
    not sent one by one.
    """
    decodes = not (target.meta.largest_bound().partial or layout.padded)
    gathered = layout.object_bytes + _STEP if shares and layout.streams_chunks else 0
    return layout.object_bytes * (1 + decodes) + gathered


def cost_model_for(store: Store) -> CostModel:
    """Return the cost model for choosing between ways to write into a store."""
    return CostModel(request=0.03, read=90e6, write=60e6) if is_remote(store) else CostModel()


def ways(
    values: WrittenBlocks, budget: JobBudget, model: CostModel, between: Layout | None
) -> tuple[Regrouping, ...]:
    """Return the ways to write the blocks, those within the budget first, the fastest before.

    Parameters
    ----------
    values
        The blocks, and the target.
    budget
        Memory of each process.
    model
        Cost model.
    between
        Layout of the array between; None if there is no place for one.
    """
    if values.aligned == values.source or not values.nbytes:
        return (_directly(values, budget),)
    found = [_in_graph(values, budget)]
    if between is not None:
        found.append(_staged(values, budget, model, between))
    return tuple(sorted(found, key=lambda way: (way.process > budget.max_mem, way.seconds)))


def check_fits_budget(found: Sequence[Regrouping], budget: JobBudget, where: str) -> None:
    """Refuse a write that needs more memory than there is.

    Raises
    ------
    MemoryBudgetError
        If no way fits, unless the blocks are written as they are and no budget was given.
    """
    best = found[0]
    if best.process <= budget.max_mem or (best.way == "direct" and not budget.given):
        return
    least = min(way.process for way in found)
    threads = pluralize(budget.workers.threads_per_process, "thread")
    told = "max_mem is" if budget.given else "without max_mem= it may hold"
    advice = "smaller blocks (x.rechunk)" if best.way == "direct" else "smaller chunks or shards"
    raise MemoryBudgetError(
        f"writing {where} takes {format_bytes(least)} in each process of {threads}, but "
        f"{told} {format_bytes(budget.max_mem)} ({'; '.join(way.words() for way in found)}). Give "
        f"max_mem={least:,} or more, fewer threads per process, or {advice}.",
        needed=least,
    )


def held_together(found: Iterable[Regrouping], threads: int) -> int:
    """Return the maximum bytes that a process holds while it writes several arrays at a time.

    Blocks of all of them wait; each thread writes one of any.
    """
    chosen = list(found)
    return needed_for_tasks(sum(way.held for way in chosen) + _largest_tasks(chosen, threads))


def _largest_tasks(found: Iterable[Regrouping], count: int) -> int:
    """Return the bytes that so many of the largest tasks of several arrays hold together."""
    tasks = (repeat(way.task, min(count, prod(map(len, way.blocks)))) for way in found)
    return sum(nlargest(count, chain.from_iterable(tasks)))


def left_beside(found: Iterable[Regrouping], budget: JobBudget) -> JobBudget:
    """Return the budget that is left for tasks of other arrays beside those of some.

    Blocks of these wait, and their largest tasks may run on any number of the threads.
    """
    chosen = list(found)
    threads = budget.workers.threads_per_process
    left = left_for_tasks(budget.max_mem) - sum(way.held for way in chosen)
    each = min((left - _largest_tasks(chosen, n)) // (threads - n) for n in range(threads))
    return replace(budget, max_mem=needed_for_tasks(max(each, 0) * threads))


def check_held_together(plans: Sequence[Regrouping], budget: JobBudget) -> None:
    """Refuse a write of several arrays whose blocks would wait in more memory than there is.

    Raises
    ------
    MemoryBudgetError
        If they would. Each array alone fits the budget.
    """
    threads = budget.workers.threads_per_process
    needed = held_together(plans, threads)
    if needed <= budget.max_mem or not any(way.held for way in plans):
        return
    told = "max_mem is" if budget.given else "without max_mem= it may hold"
    raise MemoryBudgetError(
        f"writing {pluralize(len(plans), 'array')} at a time takes {format_bytes(needed)} in each "
        f"process of {pluralize(threads, 'thread')}, but {told} {format_bytes(budget.max_mem)}: "
        f"blocks of all of them wait for others. Give max_mem={needed:,} or more, a location for "
        "arrays between (temp=), or write fewer arrays at a time.",
        needed=needed,
    )


def _directly(values: WrittenBlocks, budget: JobBudget) -> Regrouping:
    task = values.memory(_largest(values.aligned))
    busy = min(budget.workers.threads_per_process, prod(map(len, values.aligned)))
    return Regrouping("direct", values.aligned, task, needed_for_tasks(task * busy))


# --- in the graph ---------------------------------------------------------------------------------


def _in_graph(values: WrittenBlocks, budget: JobBudget) -> Regrouping:
    """Return the way through the graph, with unions as small as the budget asks for."""
    itemsize = max(values.itemsize, values.target.itemsize)
    cells = _cells(values)
    one = prod(_largest(cells)) * itemsize
    limit = max(prod(_largest(values.source)) * itemsize, one, _FEW)
    while True:
        blocks = _cut(cells, values.aligned, limit // itemsize)
        found = _graph_of(values, blocks, budget)
        if found.process <= budget.max_mem or limit <= one:
            return found
        limit = max(limit // 4, one)


def _graph_of(values: WrittenBlocks, blocks: Blocks, budget: JobBudget) -> Regrouping:
    workers = budget.workers
    local = workers.in_this_process
    largest = _largest(blocks)
    task = values.memory(largest)
    if not local:  # pieces that come from other processes are copies
        task += prod(largest) * values.itemsize
    waiting = min(values.nbytes, _waiting(values.source, blocks, workers.threads) * values.itemsize)
    processes = max(workers.threads // workers.threads_per_process, 1)
    share = waiting if local else min(int(waiting / processes * _UNEVEN), waiting)
    busy = min(workers.threads_per_process, prod(map(len, blocks)))
    pieces = prod(map(_pairs, values.source, blocks))
    tasks = pieces + 2 * prod(map(len, blocks))  # each is written, and its report is merged
    seconds = tasks * (_GATHER if local else _SHIP)
    if not local:
        seconds += values.nbytes / _NETWORK / processes
    process = needed_for_tasks(share + task * busy)
    return Regrouping("graph", blocks, task, process, waiting, share, pieces, seconds)


def _waiting(sources: Blocks, blocks: Blocks, threads: int) -> int:
    """Return the elements of blocks that wait at a time if blocks are written in C order.

    Along a dimension, a source block that two written blocks need stays until the second of them
    is written, with all others along the dimensions after this one.
    """
    along = [_met(one, other) for one, other in zip(sources, blocks, strict=True)]
    extents = [sum(sizes) for sizes in sources]
    held = 1
    for axis in reversed(range(len(blocks))):
        met, shared = along[axis]
        held = shared * prod(extents[axis + 1 :]) + (met - shared) * held
    return held + max(threads - 1, 0) * prod(met for met, _ in along)


def _met(sources: Sequence[int], blocks: Sequence[int]) -> tuple[int, int]:
    """Return the most elements of source blocks that one block overlaps, and how many are shared.

    Shared are those of source blocks that another block overlaps, too.
    """
    ends = np.cumsum(sources)
    starts = ends - np.array(sources)
    stops = np.cumsum(blocks)
    begins = stops - np.array(blocks)
    first = np.searchsorted(ends, begins, "right")
    last = np.searchsorted(starts, stops, "left") - 1
    met = ends[last] - starts[first]
    cut = np.where(starts[first] < begins, ends[first] - starts[first], 0)
    both = (ends[last] > stops) & ((first != last) | (starts[first] >= begins))
    cut = cut + np.where(both, ends[last] - starts[last], 0)
    return int(met.max(initial=0)), int(cut.max(initial=0))


# --- through an array between ---------------------------------------------------------------------


def _staged(
    values: WrittenBlocks, budget: JobBudget, model: CostModel, between: Layout
) -> Regrouping:
    workers = budget.workers
    threads = workers.threads_per_process
    cells = _cells(values)
    most = left_for_tasks(budget.max_mem) // threads
    itemsize = max(values.itemsize, values.target.itemsize)

    def peak(shape: Shape) -> int:
        joined = min(between.object_bytes, _JOINED)
        return StagePlan(between, values.target, shape).peak + joined

    def fits(shape: Shape) -> bool:
        return prod(shape) * itemsize <= _LARGE and peak(shape) <= most

    def cost(blocks: Blocks) -> float:
        reads = prod(map(_pairs, values.source, blocks))
        return reads * model.request + prod(map(len, blocks)) * model.task

    blocks = _grown(cells, fits, cost, 2 * workers.threads)
    task = max(peak(_largest(blocks)), values.memory(_largest(values.source), between))
    busy = min(threads, max(prod(map(len, blocks)), prod(map(len, values.source))))
    reads = prod(map(_pairs, values.source, blocks))
    work = cost(blocks) + values.nbytes * (1 / model.write + 1 / model.read)
    seconds = _DISK + _ROUGH * work / workers.threads
    process = needed_for_tasks(task * busy)
    return Regrouping("staged", blocks, task, process, 0, 0, reads, seconds)


def _grown(
    cells: Blocks,
    fits: Callable[[Shape], bool],
    cost: Callable[[Blocks], float],
    tasks: int,
) -> Blocks:
    """Return unions of cells, doubled along one dimension after the other while that saves time."""
    counts = [1] * len(cells)
    best = cells
    while True:
        found = []
        for axis, count in enumerate(counts):
            if count >= len(cells[axis]):
                continue
            merged = _merged(cells[axis], 2 * count)
            blocks = (*best[:axis], merged, *best[axis + 1 :])
            if prod(map(len, blocks)) >= tasks and fits(_largest(blocks)):
                found.append((cost(blocks), -axis, blocks))
        if not found or min(found)[0] >= cost(best):
            return best
        _, axis, best = min(found)
        counts[-axis] *= 2


# --- borders --------------------------------------------------------------------------------------


def _cells(values: WrittenBlocks) -> Blocks:
    """Return what the region takes of each stored object, along each dimension."""
    return tuple(
        tuple(span.out.stop - span.out.start for span in intersect_chunks(dimension, part))
        for dimension, part in zip(values.grid.dimensions, values.region, strict=True)
    )


def _cut(cells: Blocks, blocks: Blocks, most: int) -> Blocks:
    """Cut blocks at borders of cells until none has more than `most` elements, or several cells."""
    found = list(blocks)
    counts = [max(_counts(one, sizes)) for one, sizes in zip(cells, blocks, strict=True)]
    while prod(map(max, found)) > most and max(counts) > 1:
        axis = max(range(len(found)), key=lambda axis: counts[axis])
        counts[axis] = -(-counts[axis] // 2)
        found[axis] = _split(cells[axis], blocks[axis], counts[axis])
    return tuple(found)


def _counts(cells: Sequence[int], blocks: Sequence[int]) -> list[int]:
    """Return the number of cells in each block."""
    ends = np.searchsorted(np.cumsum(cells), np.cumsum(blocks), "left") + 1
    return list(map(int, np.diff(ends, prepend=0)))


def _split(cells: Sequence[int], blocks: Sequence[int], most: int) -> tuple[int, ...]:
    """Cut blocks into pieces of at most so many cells, of about equal numbers."""
    found: list[int] = []
    first = 0
    for count in _counts(cells, blocks):
        within = cells[first : first + count]
        pieces = -(-count // most)
        found += _merged(within, -(-count // pieces))
        first += count
    return tuple(found)


def _merged(cells: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the sizes of groups of so many cells."""
    return tuple(sum(cells[first : first + count]) for first in range(0, len(cells), count))


def _pairs(sizes: Iterable[int], others: Iterable[int]) -> int:
    """Return the number of overlapping pairs of two divisions of a dimension."""
    borders = {*accumulate(sizes), *accumulate(others)} - {0}
    return max(len(borders), 1)


def _largest(blocks: Blocks) -> Shape:
    return tuple(max(sizes, default=0) for sizes in blocks)
