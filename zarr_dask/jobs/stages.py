"""What a stage of a rechunking is, and what it costs: pure arithmetic on grids.

A *stage* copies an index space box by box; a box is a union of whole stored objects of what it
writes, so that no two tasks touch one. Every source chunk that a box meets is decoded for it, so
that chunks which several boxes meet are decoded several times. `zarr_dask.jobs.planner` chooses
the boxes. No store, no array, no dask.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, prod

from zarr_dask.grid import Grid, Shape
from zarr_dask.jobs.plan import Costs

__all__ = ["KEPT_AT_MOST", "OVERHEAD", "CostModel", "Layout", "StagePlan", "seconds"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """How long things take besides decoding and encoding, for choosing between plans."""

    request: float = 1.0e-4
    """Seconds from a request to its answer, whatever its size."""
    read: float = 4.0e9
    """Stored bytes per second that a thread reads."""
    write: float = 1.0e9
    """Stored bytes per second that a thread writes."""
    limit: float = inf
    """Requests per second that the store answers at most, to all threads together."""
    listing: float = 0.0
    """Seconds per stored object that listing an intermediate array takes when it is removed."""
    task: float = 2.0e-3
    """Seconds that a thread spends on a task besides its work."""
    schedule: float = 5.0e-4
    """Seconds that the scheduler spends on a task, one after the other."""
    stage: float = 0.1
    """Seconds that a stage takes besides its tasks: the last of them ends later than the others,
    and what the stage before has written is removed."""


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
    decode: float = 3.0e9
    """Decoded bytes per second that a thread decodes."""
    encode: float = 1.0e9
    """Decoded bytes per second that a thread encodes."""
    ratio: float = 1.0
    """Stored bytes per decoded byte, as far as that is known."""
    kind: str = ""
    """Tells data types apart: where they differ, a task holds its box in both."""
    chunks: Grid | None = None
    """The chunks, where they do not all begin at a multiple of their shape, as in a region."""
    uneven: bool = False
    """Whether chunks have shapes of their own; `chunk` is then the largest."""
    stored: Shape | None = None
    """Largest shape of a stored object, where a region meets none of them whole."""

    @property
    def object_shape(self) -> Shape:
        """Largest shape of a stored object."""
        return self.stored or self.grid.largest_cell

    @property
    def object_bytes(self) -> int:
        """Decoded bytes of a stored object."""
        return prod(self.object_shape) * self.itemsize

    @property
    def chunk_grid(self) -> Grid:
        """The chunks."""
        return self.chunks or Grid.regular(self.grid.shape, self.chunk)

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of a chunk."""
        return prod(self.chunk) * self.itemsize

    @property
    def sharded(self) -> bool:
        """Whether a stored object holds several chunks."""
        return self.chunk != self.object_shape

    @property
    def padded(self) -> bool:
        """Whether stored objects reach beyond the array."""
        return any(dimension.overhangs for dimension in self.grid.dimensions)


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
        source, target = self.source, self.target
        # an encoded object, or as much of a shard as the box meets; memory that a thread keeps
        met = (
            min(stored, -(-length // chunk) * chunk + chunk)
            for stored, length, chunk in zip(
                source.object_shape, self.box, source.chunk, strict=True
            )
        )
        encoded = prod(met) * source.itemsize
        # one decoded chunk of the source, later one of the target in contiguous memory: a thread
        # keeps the larger; and the whole object where it is padded
        decoded = max(source.chunk_bytes, source.working, target.chunk_bytes, target.working)
        contiguous = target.object_bytes if target.padded else 0
        copied = prod(self.box) * source.itemsize
        if source.kind != target.kind:
            copied += prod(self.box) * target.itemsize
        kept = min(KEPT_AT_MOST, copied // 4)
        return copied + encoded + decoded + target.object_bytes + contiguous + kept + OVERHEAD

    @property
    def costs(self) -> Costs:
        """What all tasks together do."""
        source, target = self.source, self.target
        decoded = prod(
            chunks.met_length(length) if source.uneven else chunks.meetings(length) * chunk
            for chunks, chunk, length in zip(
                source.chunk_grid.dimensions, source.chunk, self.box, strict=True
            )
        )
        objects = prod(
            dimension.meetings(length)
            for dimension, length in zip(source.grid.dimensions, self.box, strict=True)
        )
        written = prod(d.start(d.count) for d in target.grid.dimensions)
        return Costs(
            decoded=decoded * source.itemsize,
            written=written * target.itemsize,
            reads=objects * (2 if source.sharded else 1),
            writes=target.grid.ncells,
        )


KEPT_AT_MOST = 8 << 20
"""What malloc keeps of the codecs' freed buffers (`scratch.keeping_freed_memory`), as measured;
small boxes have small buffers."""
OVERHEAD = 1 << 20
"""Indices, buffers of the codecs, the interpreter's own."""


def seconds(stage: StagePlan, threads: int, model: CostModel) -> float:
    """How long a stage takes by the model; the last round of tasks may leave threads idle."""
    source, target, costs, tasks = stage.source, stage.target, stage.costs, stage.tasks
    work = (
        costs.decoded * (1 / source.decode + source.ratio / model.read)
        + costs.written * (1 / target.encode + target.ratio / model.write)
        + (costs.reads + costs.writes) * model.request
        + tasks * model.task
    )
    rounds = ceil(tasks / threads) / max(tasks, 1)
    answered = (costs.reads + costs.writes) / model.limit
    return model.stage + max(work * rounds, tasks * model.schedule, answered)
