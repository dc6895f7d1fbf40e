"""Which boxes to copy, so that a new layout costs least within a bound of memory.

A *stage* copies an index space box by box; a box is a union of whole stored objects of what it
writes, so that no two tasks touch one. *Direct*: each box decodes every source chunk that it
meets and keeps its part; chunks that several boxes meet are decoded several times. *Staged*: a
first stage writes an intermediate array in boxes that suit the source, a second one reads it in
boxes that suit the target. Decoding twice is often cheaper than writing and reading an
intermediate, so both are costed and the cheaper one is taken.

Pure integer arithmetic: no store, no array, no dask. The boxes of the staged plan follow the
idea of the rechunker package (consolidate reads and writes up to the memory bound, meet in the
element-wise minimum), with intermediates restricted to regular grids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from zarr_dask.errors import MemoryBudgetError
from zarr_dask.grid import Fixed, Grid, Shape
from zarr_dask.jobs.plan import Costs, format_bytes

__all__ = ["CostModel", "Layout", "StagePlan", "plan_stages"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """How long things take, for choosing between plans; only ratios matter."""

    decode: float = 2.0e9
    """Bytes per second that a thread reads and decodes."""
    encode: float = 0.6e9
    """Bytes per second that a thread encodes and writes."""
    request: float = 1.0e-4
    """Seconds per request."""
    task: float = 5.0e-3
    """Seconds per task in the scheduler."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array is stored, as far as a plan needs to know."""

    grid: Grid
    """The stored objects."""
    chunk: Shape
    """Shape of what is decoded at once."""
    itemsize: int
    working: int = 0
    """Bytes that the codecs hold besides a chunk and its encoded form."""

    @property
    def object_shape(self) -> Shape:
        """Largest shape of a stored object."""
        return self.grid.largest_cell

    @property
    def object_bytes(self) -> int:
        """Decoded bytes of a stored object."""
        return prod(self.object_shape) * self.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of a chunk."""
        return prod(self.chunk) * self.itemsize

    @property
    def sharded(self) -> bool:
        """Whether a stored object holds several chunks."""
        return self.chunk != self.object_shape


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One pass over the index space."""

    source: Layout
    target: Layout
    box: Shape
    """What one task copies; at the edges, and where stored objects differ, it is less."""

    @property
    def boxes(self) -> Grid:
        """The tasks as a grid: whole stored objects of the target."""
        dimensions = zip(self.target.grid.dimensions, self.box, strict=True)
        return Grid(tuple(dimension.groups(length) for dimension, length in dimensions))

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.boxes.ncells

    @property
    def peak(self) -> int:
        """Bytes that one task holds at most: the box, and what reading or writing adds to it."""
        return _peak(self.source, self.target, self.box)

    @property
    def costs(self) -> Costs:
        """What all tasks together do."""
        return _costs(self.source, self.target, self.box)


def _peak(source: Layout, target: Layout, box: Shape) -> int:
    itemsize = source.itemsize
    # an encoded object, or as much of a shard as the box meets; memory that a thread keeps
    met = (
        min(stored, -(-length // chunk) * chunk + chunk)
        for stored, length, chunk in zip(source.object_shape, box, source.chunk, strict=True)
    )
    encoded = prod(met) * itemsize
    # one decoded chunk of the source, later one of the target in contiguous memory: a thread keeps
    # the larger; and the whole object where it is padded
    decoded = max(source.chunk_bytes, source.working, target.chunk_bytes, target.working)
    padded = any(dimension.overhangs for dimension in target.grid.dimensions)
    contiguous = target.object_bytes if padded else 0
    copied = prod(box) * itemsize
    kept = min(_MOST_KEPT, copied // 4)
    return copied + encoded + decoded + target.object_bytes + contiguous + kept + _OVERHEAD


_MOST_KEPT = 8 << 20
"""What malloc keeps of the codecs' freed buffers (`scratch.keeping_freed_memory`), as measured;
small boxes have small buffers."""
_OVERHEAD = 1 << 20
"""Indices, buffers of the codecs, the interpreter's own."""


def _costs(source: Layout, target: Layout, box: Shape) -> Costs:
    decoded = prod(
        Fixed(chunk, extent).meetings(length) * chunk
        for extent, chunk, length in zip(source.grid.shape, source.chunk, box, strict=True)
    )
    objects = prod(
        dimension.meetings(length)
        for dimension, length in zip(source.grid.dimensions, box, strict=True)
    )
    written = prod(d.start(d.count) for d in target.grid.dimensions)
    return Costs(
        decoded=decoded * source.itemsize,
        written=written * target.itemsize,
        reads=objects * (2 if source.sharded else 1),
        writes=target.grid.ncells,
    )


# --- choosing -------------------------------------------------------------------------------------


def plan_stages(
    source: Layout, target: Layout, budget: int, threads: int, model: CostModel
) -> tuple[StagePlan, ...]:
    """The cheapest stages from one layout to another.

    Parameters
    ----------
    source, target
        The layouts.
    budget
        Bytes that one task may hold.
    threads
        Tasks that run at the same time.
    model
        How long things take.

    Raises
    ------
    MemoryBudgetError
        If no task fits, however small.
    """
    direct = _best(source, target, _fitting(source, target, budget), threads, model)
    if direct is None:
        smallest = _peak(source, target, target.object_shape)
        raise MemoryBudgetError(
            f"a stored object of {target.object_shape} and what reading it takes need "
            f" {format_bytes(smallest)}, but a task may hold "
            f"{format_bytes(budget)}: raise max_mem, use fewer threads per process, or choose "
            "smaller chunks or shards."
        )
    plans = [(direct,), *_staged(source, target, budget)]
    return min(plans, key=lambda stages: sum(seconds(stage, threads, model) for stage in stages))


def seconds(stage: StagePlan, threads: int, model: CostModel) -> float:
    """How long a stage takes by the model; the last round of tasks may leave threads idle."""
    costs = stage.costs
    work = (
        costs.decoded / model.decode
        + costs.written / model.encode
        + (costs.reads + costs.writes) * model.request
    )
    rounds = ceil(stage.tasks / threads)
    return work * rounds / max(stage.tasks, 1) + stage.tasks * model.task / threads


def _best(
    source: Layout, target: Layout, boxes: Iterator[Shape], threads: int, model: CostModel
) -> StagePlan | None:
    candidates = (StagePlan(source, target, box) for box in boxes)
    # among equals, boxes that are long in the fastest dimensions copy in longer runs
    return min(
        candidates,
        key=lambda stage: (
            round(seconds(stage, threads, model), 6),
            [-n for n in reversed(stage.box)],
        ),
        default=None,
    )


def _fitting(source: Layout, target: Layout, budget: int) -> Iterator[Shape]:
    """Boxes of whole target objects that fit into the budget."""
    for box in _multiples(target.grid.shape, target.object_shape):
        if _peak(source, target, box) <= budget:
            yield box


_MAX_BOXES = 50_000


def _multiples(shape: Shape, unit: Shape) -> Iterator[Shape]:
    """Boxes of 1, 2, 3, 4, 6, 8, 12, ... units along each dimension, and of all of them."""
    per_dimension = [_lengths(extent, size) for extent, size in zip(shape, unit, strict=True)]
    while prod(map(len, per_dimension)) > _MAX_BOXES:  # many dimensions: take coarser steps
        longest = max(per_dimension, key=len)
        longest[:] = [*longest[:-1:2], longest[-1]]
    yield from product(*per_dimension)


def _lengths(extent: int, unit: int) -> list[int]:
    lengths = []
    count = 1
    while count * unit < extent:
        lengths.append(count * unit)
        count = count * 3 // 2 if count & (count - 1) == 0 and count > 1 else -(-count * 4 // 3)
    return [*lengths, max(ceil(extent / unit), 1) * unit]


def _staged(source: Layout, target: Layout, budget: int) -> Iterator[tuple[StagePlan, ...]]:
    """Plans of two stages with a regular, unsharded intermediate array."""
    shape = source.grid.shape
    # what reading or writing the intermediate adds to a box is known only for a pair of boxes, so
    # boxes of several sizes are tried
    shares = [budget, budget * 2 // 3, budget // 2, budget // 3, budget // 4]
    reads, writes = (
        _largest_of_each(_multiples(shape, layout.object_shape), layout.itemsize, shares)
        for layout in (source, target)
    )
    seen: set[tuple[Shape, Shape, Shape]] = set()
    for read_box, write_box in product(reads, writes):
        cell = tuple(map(min, read_box, write_box))
        first_box = tuple(r // c * c for r, c in zip(read_box, cell, strict=True))
        middle = Layout(Grid.regular(shape, cell), cell, source.itemsize)
        if (first_box, cell, write_box) in seen:
            continue
        seen.add((first_box, cell, write_box))
        stages = (StagePlan(source, middle, first_box), StagePlan(middle, target, write_box))
        if all(stage.peak <= budget for stage in stages):
            yield stages


def _largest_of_each(boxes: Iterator[Shape], itemsize: int, limits: list[int]) -> list[Shape]:
    """For each limit in bytes, the boxes below it that lie in no other one."""
    every = list(boxes)
    chosen = [_largest([b for b in every if prod(b) * itemsize <= limit]) for limit in limits]
    return list(dict.fromkeys(box for boxes in chosen for box in boxes))


def _largest(boxes: Sequence[Shape]) -> list[Shape]:
    """Boxes that lie in no other one: more memory never costs more."""
    most = sorted(boxes, key=prod, reverse=True)
    kept: list[Shape] = []
    for box in most:
        if not any(all(a <= b for a, b in zip(box, other, strict=True)) for other in kept):
            kept.append(box)
        if len(kept) == _MAX_KEPT:
            break
    return kept


_MAX_KEPT = 24
