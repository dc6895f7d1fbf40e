"""Planner: chooses boxes so that a rechunking costs least within a memory limit.

*Directly*: one stage. Its boxes fit the target or, if the source's objects are whole multiples of
the target's, the source. *Staged*: a first stage writes an intermediate array in boxes that fit the
source, a last one reads it in boxes that fit the target. With more than two stages, the boxes
between them change from one shape to the other by equal ratios. Decoding twice is often cheaper
than writing and reading an intermediate array, so the costs of all are estimated and the cheapest
is chosen; the others are kept as alternatives.

The staged plans follow the idea of the rechunker package (consolidate reads and writes up to the
memory bound, meet in the element-wise minimum), with intermediates restricted to regular grids.

Candidates are rows of NumPy arrays, estimated together in floating point, which is exact for the
numbers of bytes of any budget. A `StagePlan` itself uses integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod

import numpy as np

from zarr_dask.errors import MemoryBudgetError
from zarr_dask.grid.dimension import pairs, pairs_length, uncut
from zarr_dask.grid.grid import Dimension, Fixed, Shape
from zarr_dask.jobs.engine.cost_model import (
    BLOCKS,
    KEPT_AT_LEAST,
    KEPT_AT_MOST,
    OVERHEAD,
    Layout,
    StagePlan,
)
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.predict import CostModel, needed_for_tasks, seconds
from zarr_dask.stores.streaming_put import TOGETHER

__all__ = ["CandidatePlan", "alternatives", "plan_stages"]

_MOST_STAGES = 4


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """A sequence of stages from one layout to another, and its time by the model."""

    name: str
    stages: tuple[StagePlan, ...]
    seconds: float

    def words(self) -> str:
        """Return the costs as text."""
        decoded = sum(stage.costs.decoded for stage in self.stages)
        requests = sum(stage.costs.reads + stage.costs.writes for stage in self.stages)
        return f"{format_bytes(decoded)} decoded and {pluralize(requests, 'request')}"


def plan_stages(
    source: Layout,
    target: Layout,
    budget: int,
    threads: int,
    model: CostModel,
    middles: Sequence[Layout] = (),
) -> tuple[StagePlan, ...]:
    """Return the cheapest stages from one layout to another; see `alternatives`."""
    return alternatives(source, target, budget, threads, model, middles)[0].stages


def alternatives(
    source: Layout,
    target: Layout,
    budget: int,
    threads: int,
    model: CostModel,
    middles: Sequence[Layout] = (),
    threads_per_process: int = 1,
    name: str = "",
    sharing: int = 1,
) -> list[CandidatePlan]:
    """Return alternatives from one layout to another that fit into the budget, the cheapest first.

    Parameters
    ----------
    source, target
        The layouts.
    budget
        Bytes that one task may hold.
    threads
        Number of concurrent tasks.
    model
        Cost model.
    middles
        Layouts of intermediate arrays, whose grids are ignored. By default they are not compressed.
    threads_per_process
        Tasks that share the memory of a process; used in the error message.
    name
        The begin of the error message.
    sharing
        Number of threads that may share one task, which then holds the whole array.

    Raises
    ------
    MemoryBudgetError
        If no task fits, however small.
    """
    direct = _direct(source, target, budget, threads, model)
    found = [] if direct is None else [direct]
    shared = _shared(source, target, budget * threads_per_process, sharing, model)
    if shared and (direct is None or shared.seconds <= _MUCH_LESS * direct.seconds):
        found.append(shared)
    if direct is None or not _reads_once(direct.stages[0]):
        plain = Layout(
            target.grid,
            target.object_shape,
            source.itemsize,
            decode=6e9,
            encode=6e9,
            kind=source.kind,
        )
        for encoded in middles or [plain]:
            found.extend(_staged(source, target, encoded, budget, threads, model))
    if not found:
        smallest = StagePlan(source, target, target.object_shape).peak
        enough = needed_for_tasks(smallest * threads_per_process)
        raise MemoryBudgetError(
            f"{name}a stored object of {target.object_shape} and what reading it takes need "
            f"{smallest:,} bytes, but a task may hold {budget:,} (its share of max_mem), which is "
            f"too little in several stages, too: raise max_mem (to {enough:,} for processes of "
            f"{pluralize(threads_per_process, 'thread')}), use fewer threads per process, or "
            "choose smaller chunks or shards.",
            needed=enough,
        )
    return sorted(found, key=lambda alternative: alternative.seconds)


def _reads_once(stage: StagePlan) -> bool:
    """True if an intermediate array cannot save anything."""
    source = stage.source
    once = source.decoded_once * source.itemsize
    return stage.costs.decoded == once and stage.reads == source.grid.ncells


# --- directly -------------------------------------------------------------------------------------


def _direct(
    source: Layout, target: Layout, budget: int, threads: int, model: CostModel
) -> CandidatePlan | None:
    boxes = _candidates(source, target)
    if len(boxes) == 1:  # there is nothing to choose, and groups have many such arrays
        only = StagePlan(source, target, _shape(boxes[0]))
        return _one_stage(only, threads, model) if only.peak <= budget else None
    peak, cost = _judge(_StageSide(source), _StageSide(target), boxes, threads, model)
    boxes, cost = boxes[peak <= budget], cost[peak <= budget]
    if not len(boxes):
        return None
    # among equals, boxes that are long in the fastest dimensions copy in longer runs
    best = np.lexsort((*-boxes.T, cost.round(6)))[0]
    return _one_stage(StagePlan(source, target, _shape(boxes[best])), threads, model)


def _one_stage(stage: StagePlan, threads: int, model: CostModel) -> CandidatePlan:
    name = "directly, each source object read once" if _reads_once(stage) else "directly"
    return CandidatePlan(name, (stage,), seconds(stage, threads, model))


def _shared(
    source: Layout, target: Layout, budget: int, threads: int, model: CostModel
) -> CandidatePlan | None:
    """Return the plan of one task on several threads, which decodes every source object once.

    None if it does not fit into the budget of a process, or would save nothing.
    """
    if threads == 1:
        return None
    whole = tuple(
        max(ceil(extent / unit), 1) * unit
        for extent, unit in zip(target.grid.shape, target.object_shape, strict=True)
    )
    stage = StagePlan(source, target, whole, threads)
    worth = stage.costs.decoded >= _WORTH_SHARING and min(stage.reads, stage.costs.writes) > 1
    if not worth or stage.peak > budget:
        return None
    name = f"directly, in one task on {threads} threads"
    return CandidatePlan(name, (stage,), seconds(stage, threads, model))


_MUCH_LESS = 0.9
"""Share of the time of several tasks, which show progress and leave receipts, for which one pays.
"""
_WORTH_SHARING = 1 << 24
"""Decoded bytes of an array from which several threads save time in one task."""


def _candidates(source: Layout, target: Layout) -> np.ndarray:
    """Return boxes of whole target objects: multiples, and sizes close to source objects."""
    per_dimension = [
        sorted({*_lengths(extent, unit), *_lengths_about(extent, unit, stored)})
        for extent, unit, stored in zip(
            target.grid.shape, target.object_shape, source.object_shape, strict=True
        )
    ]
    return _products(per_dimension)


def _lengths(extent: int, unit: int) -> list[int]:
    """Return lengths of 1, 2, 3, 4, 6, 8, 12, ... units, and the whole dimension."""
    lengths = []
    count = 1
    while count * unit < extent:
        lengths.append(count * unit)
        count = count * 3 // 2 if count & (count - 1) == 0 and count > 1 else -(-count * 4 // 3)
    return [*lengths, max(ceil(extent / unit), 1) * unit]


def _lengths_about(extent: int, unit: int, stored: int) -> Iterator[int]:
    """Yield multiples of the unit next to 1, 2, 4 ... source objects."""
    length = stored
    while length < extent:
        yield max(length // unit, 1) * unit
        yield -(-length // unit) * unit
        length *= 2


_MOST_BOXES = 50_000


def _products(per_dimension: list[list[int]]) -> np.ndarray:
    """Return all combinations of lengths, as rows; with many dimensions the steps are coarser."""
    while prod(map(len, per_dimension)) > _MOST_BOXES:
        longest = max(per_dimension, key=len)
        longest[:] = [*longest[:-1:2], longest[-1]]
    mesh = np.meshgrid(*per_dimension, indexing="ij")
    rows = [axis.reshape(-1) for axis in mesh]
    return np.stack(rows, axis=1) if rows else np.empty((1, 0), np.int64)


# --- in stages ------------------------------------------------------------------------------------


def _staged(
    source: Layout,
    target: Layout,
    encoded: Layout,
    budget: int,
    threads: int,
    model: CostModel,
) -> Iterator[CandidatePlan]:
    """Yield the best plan for each number of stages, with regular, unsharded intermediates."""
    shape = source.grid.shape
    # the memory for reading or writing an intermediate array is known only for a sequence of boxes,
    # so boxes of several sizes are tried
    shares = [budget, budget * 2 // 3, budget // 2, budget // 3, budget // 4]
    reads, writes = (
        _largest_of_each(
            _products([_lengths(*pair) for pair in zip(shape, side.object_shape, strict=True)]),
            side.itemsize,
            shares,
        )
        for side in (source, target)
    )
    if not len(reads) or not len(writes):
        return
    first = np.repeat(reads, len(writes), axis=0)
    last = np.tile(writes, (len(reads), 1))
    for count in range(2, _MOST_STAGES + 1):
        boxes, cells = _between(first, last, count)
        sides = [
            _StageSide(source),
            *(_StageSide(encoded, grid) for grid in cells),
            _StageSide(target),
        ]
        judged = [
            _judge(reading, writing, box, threads, model)
            for (reading, writing), box in zip(pairwise(sides), boxes, strict=True)
        ]
        fits = np.all([peak <= budget for peak, _ in judged], axis=0)
        if not fits.any():
            continue
        removed = np.sum([_StageSide(encoded, grid).objects(shape) for grid in cells], axis=0)
        total = np.sum([cost for _, cost in judged], axis=0) + removed * model.listing
        best = int(np.argmin(np.where(fits, total, np.inf)))
        stages = _stages_of(source, target, encoded, boxes, cells, best)
        if all(stage.peak <= budget for stage in stages):
            name = f"in {count} stages{', compressed between' if encoded.compressed else ''}"
            yield CandidatePlan(name, stages, float(total[best]))


def _between(
    first: np.ndarray, last: np.ndarray, count: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return boxes of `count` stages from the first to the last, and the intermediate cells."""
    weights = [number / (count - 1) for number in range(count)]
    logs = np.log(first), np.log(last)
    between = [
        np.maximum(np.rint(np.exp((1 - w) * logs[0] + w * logs[1])), 1).astype(np.int64)
        for w in weights[1:-1]
    ]
    boxes = [first, *between, last]
    cells = [np.minimum(a, b) for a, b in pairwise(boxes)]
    boxes[:-1] = [box // cell * cell for box, cell in zip(boxes, cells, strict=False)]
    return boxes, cells


def _stages_of(
    source: Layout,
    target: Layout,
    encoded: Layout,
    boxes: Sequence[np.ndarray],
    cells: Sequence[np.ndarray],
    row: int,
) -> tuple[StagePlan, ...]:
    middles = [encoded.with_cell(source.grid.shape, _shape(grid[row])) for grid in cells]
    layouts = [source, *middles, target]
    return tuple(
        StagePlan(reading, writing, _shape(box[row]))
        for (reading, writing), box in zip(pairwise(layouts), boxes, strict=True)
    )


def _largest_of_each(boxes: np.ndarray, itemsize: int, limits: list[int]) -> np.ndarray:
    """Return some of the largest boxes below each limit in bytes that lie in no other one."""
    volumes = boxes.astype(float).prod(axis=1) * itemsize
    order = np.argsort(-volumes, kind="stable")
    boxes, volumes = boxes[order], volumes[order]
    chosen = [_largest(boxes[volumes <= limit]) for limit in limits]
    return np.unique(np.concatenate(chosen), axis=0)


def _largest(boxes: np.ndarray) -> np.ndarray:
    """Return boxes that lie in no other one, the largest first: more memory never costs more."""
    kept = np.empty((_MOST_KEPT, boxes.shape[1]), np.int64)
    count = 0
    for box in boxes:
        if not (box <= kept[:count]).all(axis=1).any():
            kept[count] = box
            count += 1
        if count == _MOST_KEPT:
            break
    return kept[:count]


_MOST_KEPT = 24


# --- many stages at once --------------------------------------------------------------------------


class _StageSide:
    """Source or target of stages: one layout, or one regular grid for each row."""

    def __init__(self, layout: Layout, cells: np.ndarray | None = None) -> None:
        self.layout = layout
        self._dimensions = layout.grid.dimensions if cells is None else None
        shape = np.array([layout.object_shape]) if cells is None else cells
        self.cells = shape.astype(np.int64)
        self.chunks = np.array([layout.chunk], np.int64) if cells is None else self.cells
        self.sharded = layout.sharded and cells is None
        self.workspace_nbytes, self.decode_workspace_nbytes = (
            _volume(self.chunks) * layout.itemsize if layout.compressed else np.array(float(held))
            for held in (layout.memory.workspace, layout.memory.decode_workspace)
        )
        self.encoder_state_nbytes, self.decoder_state_nbytes = (
            np.array(float(held))
            if cells is None
            else np.minimum(held, BLOCKS * _volume(self.chunks) * layout.itemsize)
            for held in (layout.memory.encoder_state, layout.memory.decoder_state)
        )
        ends = -(-np.array(layout.grid.shape) // self.cells) * self.cells
        self.padded = (
            np.array([layout.padded])
            if cells is None
            else (ends > np.array(layout.grid.shape)).any(axis=1)
        ).astype(np.int64)  # objects are counted: True + True would be one

    def objects(self, shape: Shape) -> np.ndarray:
        """Return the number of stored objects."""
        if self._dimensions is not None:
            return np.array([float(self.layout.grid.ncells)])
        return _volume(-(-np.array(shape, np.int64) // self.cells))

    def tasks(self, boxes: np.ndarray) -> np.ndarray:
        """Return the number of boxes, which are whole stored objects of this side."""
        if _are_fixed(self._dimensions):
            return _volume(-(-np.array(self.layout.grid.shape) // boxes))
        return self._product(lambda _, intervals: intervals.count, boxes)

    def reads(self, boxes: np.ndarray, target: _StageSide) -> np.ndarray:
        """Return the number of read requests for boxes; see `StagePlan.costs`.

        A chunk that is read in part counts once, not twice: only stores whose requests take little
        time are read so, and the way that is chosen states both.
        """
        met = self._meetings(self._dimensions, self.cells, boxes, target)
        if not self.sharded:
            return met
        asked: np.ndarray = met + max(self.layout.indices, 1) * (
            met - self._whole_in(boxes, target)
        )
        return asked

    def _whole_in(self, boxes: np.ndarray, target: _StageSide) -> np.ndarray:
        """Compute `Layout.whole_in`; only for layouts, as intermediate arrays have no shards."""
        ends = self.layout.clipped or ((False, False),) * boxes.shape[1]
        cells = self.layout.grid.dimensions

        def whole(axis: int, intervals: Dimension) -> int:
            first, last = ends[axis]
            return uncut(cells[axis], intervals, first=first, last=last)

        return target._product(whole, boxes)

    def _product(self, function: Callable[[int, Dimension], int], boxes: np.ndarray) -> np.ndarray:
        """Return the product over axes of a function of boxes as intervals of this side's cells."""
        counts = np.empty(boxes.shape)
        for axis, extent in enumerate(self.layout.grid.shape):
            lengths, places = np.unique(boxes[:, axis], return_inverse=True)
            cells = None if self._dimensions is None else self._dimensions[axis]
            known = [
                function(axis, Fixed(n, extent) if cells is None else cells.groups(n))
                for n in map(int, lengths)
            ]
            counts[:, axis] = np.array(known)[places]
        return _volume(counts)

    def held(self, boxes: np.ndarray) -> np.ndarray:
        """Return the number of encoded elements held at a time for boxes."""
        around = -(-boxes // self.chunks) * self.chunks + self.chunks
        one = _volume(np.minimum(self.cells, around))
        if not self.layout.in_flight:
            return one
        whole = self.chunks if self.sharded else self.cells
        all_of_it = _volume(-(-boxes // whole) * whole + whole)
        most = one + self.layout.in_flight / self.layout.itemsize
        held: np.ndarray = np.minimum(all_of_it, most)
        return held

    def fit_into(self, boxes: np.ndarray) -> np.ndarray:
        """Compute `Layout.fits_into`."""
        shape = np.array(self.layout.grid.shape, np.int64)
        cut = self._dimensions is not None and (self.layout.is_cut or self.layout.uneven)
        if cut or not boxes.shape[1]:
            return np.full(len(boxes), not cut)
        fits = ((shape % self.chunks == 0) & (boxes % self.chunks == 0)).all(axis=1)
        long = np.cumsum(self.chunks > 1, axis=1)
        after = np.concatenate([np.zeros((len(long), 1), bool), long[:, :-1] > 0], axis=1)
        contiguous: np.ndarray = fits & (~after | (boxes == self.chunks)).all(axis=1)
        return contiguous

    def decoded(self, boxes: np.ndarray, target: _StageSide) -> np.ndarray:
        """Return the number of elements decoded for boxes."""
        cut = None if self._dimensions is None else self.layout.chunk_grid.dimensions
        if cut is not None and self.layout.uneven:
            leads = self.layout.lead or (0,) * len(cut)
            return target._product(
                lambda axis, intervals: pairs_length(cut[axis], intervals, leads[axis]), boxes
            )
        elements: np.ndarray = self._meetings(cut, self.chunks, boxes, target) * _volume(
            self.chunks
        )
        return elements

    def _meetings(
        self,
        dimensions: tuple[Dimension, ...] | None,
        cells: np.ndarray,
        boxes: np.ndarray,
        target: _StageSide,
    ) -> np.ndarray:
        if dimensions is None or _are_fixed(dimensions, target._dimensions):
            shape = np.array(self.layout.grid.shape, np.int64)
            return _volume(_meetings(shape, cells, boxes))
        return target._product(lambda axis, intervals: pairs(dimensions[axis], intervals), boxes)


def _are_fixed(*sides: tuple[Dimension, ...] | None) -> bool:
    return all(isinstance(one, Fixed) for side in sides for one in side or ())


def _judge(
    source: _StageSide, target: _StageSide, boxes: np.ndarray, threads: int, model: CostModel
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `StagePlan.peak` and `seconds` of many stages."""
    read, written = source.layout, target.layout
    shape = np.array(read.grid.shape, np.int64)
    item = float(read.itemsize)
    new_item = float(written.itemsize)
    held = np.minimum(boxes, shape)
    copied = _volume(held) * item
    reading = source.decode_workspace_nbytes - _volume(source.chunks) * item * source.fit_into(held)
    writing = target.workspace_nbytes - _volume(target.chunks) * new_item * target.fit_into(held)
    room = np.maximum(reading, writing)
    object_bytes = _volume(target.cells) * new_item
    encoded = _volume(target.chunks) * new_item if written.streams_chunks else object_bytes
    waiting = np.minimum(TOGETHER, object_bytes) * written.streams_chunks
    peak = (
        copied
        + np.maximum(source.held(held) * item, waiting)
        + np.maximum(room, 0)
        + object_bytes * (target.padded + (read.kind != written.kind))
        + _volume(target.cells) * (read.kind != written.kind)
        + written.memory.byteswap
        + encoded
        + np.maximum(source.decoder_state_nbytes, target.encoder_state_nbytes)
        + np.minimum(np.minimum(KEPT_AT_MOST, copied // 4), np.maximum(encoded, KEPT_AT_LEAST))
        + OVERHEAD
    )
    tasks = target.tasks(boxes)
    decoded = source.decoded(boxes, target) * item
    stored = _volume(-(-shape // target.cells) * target.cells) * new_item
    requests = source.reads(boxes, target) + target.objects(read.grid.shape)
    work = (
        decoded * (1 / read.decode + read.ratio / model.read)
        + stored * (1 / written.encode + written.ratio / model.write)
        + requests * model.request
        + tasks * model.task
    )
    rounds = np.ceil(tasks / threads) / np.maximum(tasks, 1)
    slowest = np.maximum(tasks * model.schedule, requests / model.limit)
    return peak, model.stage + np.maximum(work * rounds + peak / model.touch, slowest)


def _meetings(shape: np.ndarray, cells: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Compute `Fixed.meetings` for many cells and lengths."""
    borders = np.maximum(-(-shape // lengths) - 1, 0)
    on_cells = borders // (np.lcm(lengths, cells) // lengths)
    met: np.ndarray = -(-shape // cells) + borders - on_cells
    return met


def _volume(shapes: np.ndarray) -> np.ndarray:
    product: np.ndarray = np.prod(shapes.astype(float), axis=-1)
    return product


def _shape(row: np.ndarray) -> Shape:
    return tuple(map(int, row))
