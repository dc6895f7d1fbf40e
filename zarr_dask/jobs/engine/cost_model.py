"""Stages of a rechunking and their costs: pure arithmetic on grids.

A *stage* copies an index space box by box. A box is a union of whole stored objects of the target,
so that no two tasks write the same object. Every source chunk that a box overlaps is decoded for
it, so a chunk that overlaps several boxes is decoded several times. `planner` chooses the boxes. No
store, no array, no dask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from zarr_dask.codecs.base import CodecMemory, largest_partial_read
from zarr_dask.grid.dimension import overlaps, pairs, pairs_length, uncut
from zarr_dask.grid.grid import Dimension, Fixed, Grid, Shape
from zarr_dask.jobs.engine.plan import Costs
from zarr_dask.jobs.engine.predict import CostModel
from zarr_dask.stores.streaming_put import TOGETHER

__all__ = [
    "BLOCKS",
    "KEPT_AT_MOST",
    "OVERHEAD",
    "Layout",
    "StagePlan",
    "block_memory",
]


@dataclass(frozen=True, slots=True)
class Layout:
    """Storage layout of an array, as far as a plan needs it."""

    grid: Grid
    """The stored objects."""
    chunk: Shape
    """Shape of the unit of decoding."""
    itemsize: int
    memory: CodecMemory = field(default_factory=CodecMemory)
    decode: float = 3.0e9
    """Decoded bytes per second that a thread decodes."""
    encode: float = 1.0e9
    """Decoded bytes per second that a thread encodes."""
    ratio: float = 1.0
    """Stored bytes per decoded byte; an estimate."""
    kind: str = ""
    """Identifies the data type: if the types of source and target differ, a task holds its box in
    both.
    """
    chunks: Grid | None = None
    """The chunks, if they do not all start at a multiple of their shape, as in a region."""
    uneven: bool = False
    """True if chunks have different shapes; `chunk` is then the largest."""
    stored: Shape | None = None
    """Largest shape of a stored object, if a region covers none of them whole."""
    clipped: tuple[tuple[bool, bool], ...] | None = None
    """For each dimension, two flags: the first and the last stored object are only partly in the
    layout, as in a region.
    """
    lead: tuple[int, ...] | None = None
    """For each dimension, elements of the first chunk that lie before the layout, as in a region;
    given if chunks are `uneven`.
    """
    indices: int = 0
    """Number of index levels above a chunk of a shard: more than one for nested shards, and one
    also for a shard that holds a single chunk; 0 if there is none or it is unknown.
    """
    compressed: bool = False
    """True for an intermediate array that is compressed, which needs memory for a chunk."""
    in_flight: int = 0
    """Maximum encoded bytes in flight from the store; 0 if objects are read one by one."""
    streams_chunks: bool = False
    """True if the chunks of a stored object are sent to the store one by one, as they are
    encoded.
    """
    partial_decode_nbytes: int = 0
    """Maximum bytes of a block, if parts of a chunk are read block by block; else 0."""
    partial_read_nbytes: int = 0
    """Largest region in bytes for which a chunk is read in part, in two requests: the places of its
    blocks, then blocks. 0 if chunks are always read whole.
    """
    variable: bool = False
    """True if elements have no fixed length, so that numbers of decoded bytes are estimates."""

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
        """Maximum encoded bytes held while an object is written, as if nothing were compressed."""
        return self.chunk_bytes if self.streams_chunks else self.object_bytes

    @property
    def waiting(self) -> int:
        """Encoded bytes of small chunks that wait to be sent to the store together."""
        return min(TOGETHER, self.object_bytes) if self.streams_chunks else 0

    @property
    def sharded(self) -> bool:
        """True if the chunks of a stored object can be read one by one."""
        return self.indices > 0 or self.chunk != self.object_shape

    @property
    def padded(self) -> bool:
        """True if stored objects extend beyond the array."""
        return any(dimension.overhangs for dimension in self.grid.dimensions)

    @property
    def is_cut(self) -> bool:
        """True if it is only a part of an array, which may cut chunks."""
        return self.chunks is not None or self.stored is not None

    def with_cell(self, shape: Shape, cell: Shape) -> Layout:
        """Return the layout of an intermediate array with stored objects of this shape."""
        nbytes = prod(cell) * self.itemsize
        memory = replace(
            self.memory,
            encoder_state=min(self.memory.encoder_state, BLOCKS * nbytes),
            decoder_state=min(self.memory.decoder_state, BLOCKS * nbytes),
        )
        if self.compressed:
            memory = replace(memory, workspace=nbytes, decode_workspace=nbytes)
        return replace(
            self,
            grid=Grid.regular(shape, cell),
            chunk=cell,
            memory=memory,
            partial_read_nbytes=self.partial_read_nbytes and largest_partial_read(nbytes),
        )

    def fits_into(self, box: Shape) -> bool:
        """True if each chunk lies whole and contiguous in the memory of a box."""
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
        """Return the bytes of a chunk that are decoded for a box if much is skipped, else None.

        They are the rows of the chunk in the box, and the whole blocks around them; see
        `Reader.sparing`.
        """
        taken = tuple(map(min, box, self.chunk))
        axis = next((axis for axis, length in enumerate(self.chunk) if length > 1), None)
        if not self.partial_decode_nbytes or axis is None:
            return None
        rows = self.chunk_bytes // self.chunk[axis] * taken[axis] + 2 * self.partial_decode_nbytes
        return rows if rows <= self.chunk_bytes // 2 else None

    def whole_in(self, boxes: Grid) -> int:
        """Return the number of stored objects that lie entirely in one box."""
        ends = self.clipped or ((False, False),) * boxes.ndim
        return prod(
            uncut(dimension, intervals, first=first, last=last)
            for dimension, intervals, (first, last) in zip(
                self.grid.dimensions, boxes.dimensions, ends, strict=True
            )
        )

    def partly_read_for(self, boxes: Grid, *, sparing: bool) -> int:
        """Return the number of reads for boxes that are made in two requests.

        A chunk is read whole if a box has everything of it that lies within the array, unless
        readers are `sparing`.
        """
        if not self.partial_read_nbytes:
            return 0
        most = self.partial_read_nbytes // self.itemsize
        ends = self.clipped or ((False, False),) * boxes.ndim
        found = [
            overlaps(dimension, intervals, last=last)
            for dimension, intervals, (_, last) in zip(
                self.grid.dimensions, boxes.dimensions, ends, strict=True
            )
        ]
        small = _products_up_to(most, [every for every, _ in found])
        return small if sparing else small - _products_up_to(most, [whole for _, whole in found])

    def decoded_for(self, boxes: Grid) -> int:
        """Return the elements of all chunks that boxes overlap, for each box anew."""
        leads = self.lead or (0,) * boxes.ndim
        return prod(
            pairs_length(chunks, intervals, lead)
            if self.uneven
            else pairs(chunks, intervals) * chunk
            for chunks, chunk, intervals, lead in zip(
                self.chunk_grid.dimensions, self.chunk, boxes.dimensions, leads, strict=True
            )
        )

    @property
    def decoded_once(self) -> int:
        """Elements of all chunks, each counted once."""
        leads = self.lead or (0,) * len(self.chunk)
        return prod(
            chunks.start(chunks.count) + lead if self.uneven else chunks.count * chunk
            for chunks, chunk, lead in zip(
                self.chunk_grid.dimensions, self.chunk, leads, strict=True
            )
        )


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One pass over the index space."""

    source: Layout
    target: Layout
    box: Shape
    """Box of one task; smaller at the edges, and where stored objects differ in size."""
    threads: int = 1
    """Number of threads that share its only task; 1 if there are several tasks."""

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
        """Number of tasks that have something to do: all of them."""
        return self.tasks

    def work(self, model: CostModel) -> float:
        """Return the seconds that one thread, or those of its only task, would need for all."""
        source, target, costs = self.source, self.target, self.costs
        alone = (
            costs.decoded * (1 / source.decode + source.ratio / model.read)
            + costs.written * (1 / target.encode + target.ratio / model.write)
            + costs.requests * model.request
            + self.tasks * model.task
        )
        return alone / self.threads

    @property
    def estimated(self) -> bool:
        """True if decoded bytes are estimates, because elements have no fixed length."""
        return self.source.variable or self.target.variable

    @property
    def requests_at_most(self) -> bool:
        """True if there may be fewer requests than stated.

        A small chunk that is read in part takes one, and so does a remote shard of which little is
        not wanted.
        """
        source, boxes = self.source, self.boxes
        cut = source.sharded and source.in_flight and self.reads > source.whole_in(boxes)
        return bool(cut) or source.partly_read_for(boxes, sparing=self.sparing) > 0

    @property
    def sparing(self) -> bool:
        """True if tasks hold no more of a chunk than they need.

        If a task must hold a whole chunk, because it is not stored as expected, no other task of
        its process does so at the same time.
        """
        return self.source.part(self.box) is not None

    @property
    def peak(self) -> int:
        """Maximum bytes that one task holds: the box, and the memory for reading or writing it."""
        return self._peak(self._largest)

    @property
    def _largest(self) -> Shape:
        """Shape of the largest box."""
        return tuple(map(min, self.box, self.source.grid.shape))

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        if self.tasks == 1:  # of a group of many small arrays, each is one task
            return self.peak
        most = self._together(threads)
        return most + self.peak - self._peak(self._largest, self.source.part(self.box))

    def _together(self, threads: int) -> int:
        """Return the same as `memory`, if no task must hold more of a chunk than expected."""
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
        """Return the maximum bytes of a task for a box; `part` is the part of a chunk it needs."""
        source, target = self.source, self.target
        # one decoded chunk of the source, later one of the target in contiguous memory: a thread
        # keeps the larger; chunks that lie in the box as they are decoded need no room
        reading = source.memory.decode_workspace - source.chunk_bytes * source.fits_into(box)
        writing = target.memory.workspace - target.chunk_bytes * target.fits_into(box)
        encoded = self._encoded(box)
        if part is not None:
            pieces = 2 * max(source.partial_decode_nbytes, PIECE)
            reading, encoded = part, min(pieces, encoded)  # a small chunk has no more
        # these use the same memory, one after the other
        encoded = max(encoded, self.threads * target.waiting)
        room = max(reading, writing, 0)
        # an object in the other data type, and one padded beyond the edge of the array
        objects = target.padded + (source.kind != target.kind)
        made = objects * target.object_bytes + target.encoded_bytes
        made += max(source.memory.decoder_state, target.memory.encoder_state)
        if source.kind != target.kind:  # one byte per element tells whether it fits
            made += prod(target.object_shape)
        made += target.memory.byteswap
        copied = prod(box) * source.itemsize
        kept = min(KEPT_AT_MOST, copied // 4, max(target.encoded_bytes, KEPT_AT_LEAST))
        return copied + encoded + self.threads * (room + made + kept) + OVERHEAD

    def _encoded(self, box: Shape) -> int:
        """Return the encoded source bytes held at a time, as if nothing were compressed."""
        source = self.source
        around = [
            -(-n // chunk) * chunk + chunk for n, chunk in zip(box, source.chunk, strict=True)
        ]
        one = prod(map(min, source.object_shape, around)) * source.itemsize
        if not source.in_flight:
            return self.threads * one
        whole = source.chunk if source.sharded else source.object_shape
        all_of_it = prod(-(-n // size) * size + size for n, size in zip(box, whole, strict=True))
        return min(all_of_it * source.itemsize, self.threads * (source.in_flight + one))

    @property
    def reads(self) -> int:
        """Number of reads of stored objects of the source, whole or in part."""
        return prod(map(pairs, self.source.grid.dimensions, self.boxes.dimensions))

    @property
    def costs(self) -> Costs:
        """Costs of all tasks together."""
        source, target = self.source, self.target
        boxes = self.boxes
        decoded = source.decoded_for(boxes)
        # if a box overlaps only a part of a shard, the index is read first
        reads = self.reads
        if source.sharded:
            reads += max(source.indices, 1) * (reads - source.whole_in(boxes))
        reads += source.partly_read_for(boxes, sparing=self.sparing)
        written = prod(d.start(d.count) for d in target.grid.dimensions)
        return Costs(
            decoded=decoded * source.itemsize,
            written=written * target.itemsize,
            reads=reads,
            writes=target.grid.ncells,
            read=round(decoded * source.itemsize * source.ratio),
            stored=round(written * target.itemsize * target.ratio),
        )


def block_memory(written: Layout, nbytes: int) -> int:
    """Return the maximum bytes that a task holds while it writes a given block.

    Parameters
    ----------
    written
        Layout of the target.
    nbytes
        Size of the block.
    """
    held = written.memory
    made = written.padded * written.object_bytes + held.encoder_state
    made += written.encoded_bytes + written.waiting + held.byteswap
    kept = min(KEPT_AT_MOST, nbytes // 4)
    return nbytes + max(held.workspace, 0) + made + kept + OVERHEAD


def _products_up_to(most: int, factors: Sequence[Counter[int]]) -> int:
    """Return the number of products of one number of each counter that do not exceed `most`."""
    found = Counter({1: 1})
    for lengths in factors:
        products: Counter[int] = Counter()
        for (a, m), (b, n) in product(found.items(), lengths.items()):
            if a * b <= most:
                products[a * b] += m * n
        found = products
    return found.total()


def _most_frequent(dimension: Dimension, most: int) -> list[tuple[int, int]]:
    """Return the largest lengths of groups along a dimension, each with its number of groups."""
    if isinstance(dimension, Fixed):
        whole, rest = divmod(dimension.extent, dimension.size)
        found = ((dimension.size, whole), (rest, 1))
        return [(length, count) for length, count in found if length and count]
    counts = Counter(dimension.lengths)
    return sorted(counts.items(), reverse=True)[: min(most, _MOST_LENGTHS)]


_MOST_LENGTHS = 8
"""Maximum number of box lengths along a dimension that are distinguished; shorter ones count as the
last.
"""


BLOCKS = 2
"""Number of blocks of intermediate arrays held besides; none is larger than a chunk."""
KEPT_AT_MOST = 8 << 20
"""Maximum bytes of the codecs' freed buffers that malloc keeps (`buffers.malloc_keep_freed`), as
measured; small boxes have small buffers.
"""
KEPT_AT_LEAST = 1 << 21
"""A tighter limit: the bytes that are encoded at a time, but not less than this."""
PIECE = 1 << 20
"""Maximum encoded bytes per request when chunks are read block by block, unless a block has more.
One piece is held besides the piece of the blocks before it.
"""
OVERHEAD = 1 << 20
"""Memory for indices, buffers of the codecs, and the interpreter."""
