"""What a stage of a rechunking is, and what it costs: pure arithmetic on grids.

A *stage* copies an index space box by box; a box is a union of whole stored objects of what it
writes, so that no two tasks touch one. Every source chunk that a box meets is decoded for it, so
that chunks which several boxes meet are decoded several times. `planner` chooses
the boxes. No store, no array, no dask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from math import ceil, inf, prod
from numbers import Real
from typing import Protocol, Self

from zarr_dask.grid import Dimension, Fixed, Grid, Shape
from zarr_dask.jobs.plan import Costs
from zarr_dask.stores.pieces import TOGETHER

__all__ = [
    "BLOCKS",
    "KEPT_AT_MOST",
    "OVERHEAD",
    "CostModel",
    "Layout",
    "StagePlan",
    "Working",
    "block_memory",
    "held_by_process",
    "left_for_tasks",
    "needed_for_tasks",
    "seconds",
]


@dataclass(frozen=True, slots=True)
class CostModel:
    """How long things take besides decoding and encoding, for choosing between plans.

    Raises
    ------
    ValueError
        If a number makes no sense.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> object_store = zd.CostModel(request=0.03, read=90e6, write=60e6)
    """

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

    def __post_init__(self) -> None:
        for one in fields(self):
            value, is_rate = getattr(self, one.name), one.name in _RATES
            good = isinstance(value, Real) and not isinstance(value, bool)
            if not (good and (value > 0 if is_rate else 0 <= value < inf)):
                expected = "above 0" if is_rate else "of at least 0 that is finite"
                raise ValueError(f"CostModel {one.name}={value!r}: expected a number {expected}.")
            object.__setattr__(self, one.name, float(value))  # what NumPy has JSON does not know

    def facts(self) -> dict[str, float | None]:
        """The model as values that JSON knows; what is unbounded is None."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, facts: Mapping[str, float | None]) -> Self:
        """The model that `facts` has described.

        Raises
        ------
        TypeError
            If it has members that no model has.
        ValueError
            If a number makes no sense.
        """
        return cls(**{name: inf if value is None else value for name, value in facts.items()})


_RATES = frozenset({"read", "write", "limit"})
"""What is per second."""


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
    clipped: tuple[tuple[bool, bool], ...] | None = None
    """For each dimension, whether the first and the last stored object lie in the layout in part
    only, as in a region."""
    indices: int = 0
    """How many indices lie around a chunk of a shard, where that is known: more than one where
    shards are nested, one where a shard holds a single chunk, too."""
    compressed: bool = False
    """Of an intermediate array: whether it is compressed, so that it takes room for a chunk."""
    in_flight: int = 0
    """Encoded bytes that the store is asked for at a time; 0 where objects are read one by one."""
    in_pieces: bool = False
    """Whether the chunks of a stored object go to the store one by one, as they are encoded."""
    tables: int = 0
    """Bytes that its codecs hold besides while they encode, to look for repetitions."""
    decoding: int = 0
    """Bytes that its codecs hold besides while they decode, of blocks."""
    reading: int | None = None
    """As `working`, while chunks are decoded; None where it is the same."""
    block: int = 0
    """Bytes of a block at most, where parts of a chunk are read block by block; else 0."""
    turned: int = 0
    """Bytes of a chunk in the other byte order, of which encoding makes a copy; else 0."""

    @property
    def working_to_read(self) -> int:
        """Bytes that the codecs hold besides a chunk and its encoded form while they decode."""
        return self.working if self.reading is None else self.reading

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
    def encoded_bytes(self) -> int:
        """Bytes that are held encoded while an object is written, if nothing were compressed."""
        return self.chunk_bytes if self.in_pieces else self.object_bytes

    @property
    def waiting(self) -> int:
        """Encoded bytes of small chunks that wait for others on their way to the store."""
        return min(TOGETHER, self.object_bytes) if self.in_pieces else 0

    @property
    def sharded(self) -> bool:
        """Whether the chunks of a stored object can be read one by one."""
        return self.indices > 0 or self.chunk != self.object_shape

    @property
    def padded(self) -> bool:
        """Whether stored objects reach beyond the array."""
        return any(dimension.overhangs for dimension in self.grid.dimensions)

    @property
    def is_cut(self) -> bool:
        """Whether it is no more than a part of an array, which may cut chunks."""
        return self.chunks is not None or self.stored is not None

    def with_cell(self, shape: Shape, cell: Shape) -> Layout:
        """The layout of an intermediate array with stored objects of this shape."""
        nbytes = prod(cell) * self.itemsize
        return replace(
            self,
            grid=Grid.regular(shape, cell),
            chunk=cell,
            working=nbytes if self.compressed else self.working,
            tables=min(self.tables, BLOCKS * nbytes),
            decoding=min(self.decoding, BLOCKS * nbytes),
        )

    def fits_into(self, box: Shape) -> bool:
        """Whether each chunk lies in one piece in the memory of a box, and whole."""
        shape = self.grid.shape
        if self.is_cut or self.uneven or any(n % c for n, c in zip(shape, self.chunk, strict=True)):
            return False
        pairs = list(zip(box, self.chunk, strict=True))
        first = next((d for d, (_, chunk) in enumerate(pairs) if chunk > 1), len(pairs) - 1)
        return all(
            length == chunk if d > first else length % chunk == 0
            for d, (length, chunk) in enumerate(pairs)
        )

    def part(self, box: Shape) -> int | None:
        """Bytes of a chunk that are decoded for a box, of chunks of which much is left out.

        The rows that the box has of it, whole, and whole blocks of them; see `Reader.sparing`.
        """
        taken = tuple(map(min, box, self.chunk))
        axis = next((axis for axis, length in enumerate(self.chunk) if length > 1), None)
        if not self.block or axis is None:
            return None
        rows = self.chunk_bytes // self.chunk[axis] * taken[axis] + 2 * self.block
        return rows if rows <= self.chunk_bytes // 2 else None

    def whole_in(self, box: Shape) -> int:
        """How many stored objects lie in one box of such a grid with all that they hold."""
        ends = self.clipped or ((False, False),) * len(box)
        return prod(
            dimension.uncut(length, first=first, last=last)
            for dimension, length, (first, last) in zip(
                self.grid.dimensions, box, ends, strict=True
            )
        )


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
    def busy(self) -> int:
        """Tasks that have something to do: all of them."""
        return self.tasks

    def work(self, model: CostModel) -> float:
        """Seconds that one thread would need for all its tasks."""
        source, target, costs = self.source, self.target, self.costs
        return (
            costs.decoded * (1 / source.decode + source.ratio / model.read)
            + costs.written * (1 / target.encode + target.ratio / model.write)
            + costs.requests * model.request
            + self.tasks * model.task
        )

    @property
    def sparing(self) -> bool:
        """Whether tasks hold no more of a chunk than they need.

        One that must hold a whole chunk, because it is not stored as was expected, does so while no
        other one of its process does.
        """
        return self.source.part(self.box) is not None

    @property
    def peak(self) -> int:
        """Bytes that one task holds at most: the box, and what reading or writing adds to it."""
        return self._peak(self._largest)

    @property
    def _largest(self) -> Shape:
        """Shape of the largest box."""
        return tuple(map(min, self.box, self.source.grid.shape))

    def memory(self, threads: int) -> int:
        """Bytes that tasks on so many threads hold together at most: those of the largest boxes."""
        most = self._together(threads)
        return most + self.peak - self._peak(self._largest, self.source.part(self.box))

    def _together(self, threads: int) -> int:
        """As `memory`, if no task must hold more of a chunk than was expected."""
        part = self.source.part(self.box)
        lengths = [_most_frequent(dimension, threads) for dimension in self.boxes.dimensions]
        of_boxes = sorted(
            (
                (
                    self._peak(tuple(length for length, _ in box), part),
                    prod(count for _, count in box),
                )
                for box in product(*lengths)
            ),
            reverse=True,
        )
        largest = self._peak(self._largest, part)
        left, total, least = min(threads, self.tasks), 0, largest
        for least, count in of_boxes:
            total += least * min(count, left)
            left -= min(count, left)
        return max(total + left * least, largest)

    def _peak(self, box: Shape, part: int | None = None) -> int:
        """Bytes that a task for a box of this shape holds at most; `part` of a chunk, or all."""
        source, target = self.source, self.target
        # one decoded chunk of the source, later one of the target in contiguous memory: a thread
        # keeps the larger; chunks that lie in the box as they are decoded need no room
        reading = source.working_to_read - source.chunk_bytes * source.fits_into(box)
        writing = target.working - target.chunk_bytes * target.fits_into(box)
        encoded = self._encoded(box)
        if part is not None:
            reading, encoded = part, 2 * max(source.block, PIECE)
        encoded = max(encoded, target.waiting)  # in the same memory, one after the other
        room = max(reading, writing, 0)
        # an object in the other data type, one with what reaches beyond the array
        objects = target.padded + (source.kind != target.kind)
        made = objects * target.object_bytes + target.encoded_bytes
        made += max(source.decoding, target.tables)
        if source.kind != target.kind:  # a byte for each element says whether it fits
            made += prod(target.object_shape)
        made += target.turned
        copied = prod(box) * source.itemsize
        kept = min(KEPT_AT_MOST, copied // 4, max(target.encoded_bytes, KEPT_AT_LEAST))
        return copied + encoded + room + made + kept + OVERHEAD

    def _encoded(self, box: Shape) -> int:
        """Encoded bytes of the source that are held at a time, if nothing were compressed."""
        source = self.source
        around = [
            -(-n // chunk) * chunk + chunk for n, chunk in zip(box, source.chunk, strict=True)
        ]
        one = prod(map(min, source.object_shape, around)) * source.itemsize
        if not source.in_flight:
            return one
        whole = source.chunk if source.sharded else source.object_shape
        all_of_it = prod(-(-n // size) * size + size for n, size in zip(box, whole, strict=True))
        return min(all_of_it * source.itemsize, source.in_flight + one)

    @property
    def reads(self) -> int:
        """How often a stored object of the source is read, as a whole or in part."""
        pairs = zip(self.source.grid.dimensions, self.box, strict=True)
        return prod(dimension.meetings(length) for dimension, length in pairs)

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
        # of a shard that a box meets in part, the index is asked for first
        reads = self.reads
        if source.sharded:
            reads += max(source.indices, 1) * (self.reads - source.whole_in(self.box))
        written = prod(d.start(d.count) for d in target.grid.dimensions)
        return Costs(
            decoded=decoded * source.itemsize,
            written=written * target.itemsize,
            reads=reads,
            writes=target.grid.ncells,
            read=round(decoded * source.itemsize * source.ratio),
            stored=round(written * target.itemsize * target.ratio),
        )


class Holding(Protocol):
    """A stage as its memory is reckoned."""

    def memory(self, threads: int) -> int:
        """Bytes that tasks on so many threads hold together at most."""
        ...


def held_by_process(stages: Iterable[Holding], threads: int) -> int:
    """Bytes that a process of so many threads grows by at most while it works on stages.

    Tasks hold most of it. With its first job a process also loads libraries, and each thread makes
    a heap of its own; beside small tasks the idle process is looked at after that.
    """
    return needed_for_tasks(max(stage.memory(threads) for stage in stages))


def needed_for_tasks(nbytes: int) -> int:
    """Bytes that a process may have to grow by whose tasks hold so many together."""
    return nbytes + min(LOADED, -(-max(nbytes - _SMALL, 0) // _SHARE))


def left_for_tasks(nbytes: int) -> int:
    """Bytes that tasks may hold together in a process that may grow by so many."""
    if nbytes <= _SMALL:
        return nbytes
    return max(nbytes - LOADED, (_SHARE * nbytes + _SMALL) // (_SHARE + 1))


def block_memory(written: Layout, nbytes: int) -> int:
    """Bytes that a task holds at most which writes a block that it is given.

    Parameters
    ----------
    written
        What it writes to.
    nbytes
        Of the block.
    """
    made = written.padded * written.object_bytes + written.tables
    made += written.encoded_bytes + written.waiting + written.turned
    kept = min(KEPT_AT_MOST, nbytes // 4)
    return nbytes + max(written.working, 0) + made + kept + OVERHEAD


def _most_frequent(dimension: Dimension, most: int) -> list[tuple[int, int]]:
    """The largest lengths of groups along a dimension, and how many groups have each."""
    if isinstance(dimension, Fixed):
        whole, rest = divmod(dimension.extent, dimension.size)
        return [(length, count) for length, count in ((dimension.size, whole), (rest, 1)) if count]
    counts = Counter(dimension.lengths)
    return sorted(counts.items(), reverse=True)[: min(most, _MOST_LENGTHS)]


_MOST_LENGTHS = 8
"""Of boxes along a dimension that are told apart; shorter ones count as the last of them."""


LOADED = 8 << 20
"""What a process holds besides after its first job at most; 7.4 MB were seen."""
_SMALL, _SHARE = 1 << 25, 16
"""Of tasks that take little more than `_SMALL` bytes together, it is a part of what is more."""
BLOCKS = 2
"""Of what lies between stages, how many are held besides; none is larger than a chunk."""
KEPT_AT_MOST = 8 << 20
"""What malloc keeps of the codecs' freed buffers (`scratch.keeping_freed_memory`), as measured;
small boxes have small buffers."""
KEPT_AT_LEAST = 1 << 21
"""The same where what is encoded at a time is smaller; else it is no more than that."""
PIECE = 1 << 20
"""Encoded bytes that are asked for at once where chunks are read block by block, at most, unless a
block has more; one piece is held besides that of the blocks before it."""
OVERHEAD = 1 << 20
"""Indices, buffers of the codecs, the interpreter's own."""


class Working(Protocol):
    """A stage as its time is reckoned."""

    @property
    def busy(self) -> int:
        """Tasks that have something to do."""
        ...

    @property
    def costs(self) -> Costs:
        """What all its tasks together do."""
        ...

    def work(self, model: CostModel) -> float:
        """Seconds that one thread would need for all its tasks."""
        ...


def seconds(stage: Working, threads: int, model: CostModel) -> float:
    """How long a stage takes by the model; the last round of tasks may leave threads idle."""
    tasks = stage.busy
    rounds = ceil(tasks / threads) / max(tasks, 1)
    answered = stage.costs.requests / model.limit
    return model.stage + max(stage.work(model) * rounds, tasks * model.schedule, answered)
