"""Buffer of one array in one rank: steps are collected until stored objects are whole.

A stored object with several steps is kept in memory, decoded, until its last step has arrived. Then
it is written at once, under a temporary name that is changed afterwards. If it is flushed earlier,
it is written with its steps so far, and again when it is whole; the steps that readers see already
stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from zarr_dask._util.arguments import to_numpy
from zarr_dask._util.threads import parallel_for
from zarr_dask.array.writer import write_object
from zarr_dask.errors import DataTypeError, GridError, StepError
from zarr_dask.grid.grid import Region, Shape, view_region
from zarr_dask.jobs.simulation.decomposition import BlockPiece, RankShare
from zarr_dask.jobs.simulation.output import OutputArray
from zarr_dask.jobs.simulation.progress import RankProgress, StoredObjects
from zarr_dask.jobs.simulation.rank_log import Record
from zarr_dask.journal.receipts import ObjectDigest

__all__ = ["RankBuffer"]

Coords = tuple[int, ...]


class RankBuffer:
    """Buffer for the steps of one array in one rank.

    Parameters
    ----------
    series
        Array of the output.
    share
        Work of this rank for the array.
    progress
        Steps that the rank has stored so far.
    say
        Appends a record to the file of the rank.
    check
        Called before stored objects are written; raises if this process must not write any more.
    threads
        Number of threads that encode and write; None for the thread pool of the process.
    """

    def __init__(
        self,
        series: OutputArray,
        share: RankShare,
        progress: RankProgress,
        say: Callable[[Record], None],
        check: Callable[[], None],
        threads: int | None,
    ) -> None:
        self.series = series
        self.share = share
        self.stored = progress.stored.get(series.name, 0)
        """Number of stored steps."""
        self._receipts = progress.receipts.get(series.name, {})
        self._say = say
        self._check = check
        self._threads = threads
        self._index = -1
        self._steps = 0
        """Number of steps that are stored or in memory."""
        self._objects: dict[Coords, np.ndarray] = {}
        self._block = tuple(one.stop - one.start for one in share.region or ())
        self._is_plain = series.array.dtype.kind in "biufc"
        """True if blocks of the array's data type need no look at their elements."""
        self._shapes: dict[tuple[int, Coords], Shape] = {}
        """Shapes of objects, by their steps and coordinates."""

    # --- blocks -----------------------------------------------------------------------------------

    def checked(self, block: Any, casting: Any) -> np.ndarray:
        """Return the block of a step, checked against this rank's region, in the array's data type.

        Raises
        ------
        GridError
            If it has another shape.
        DataTypeError
            If the array cannot hold its values.
        """
        array, shape = self.series.array, self._block
        if self._is_plain and type(block) is np.ndarray:
            plain: np.ndarray = block
            if (plain.shape, plain.dtype) == (shape, array.dtype):
                return plain
        found = to_numpy(block, f"array {self.series.name!r}: the block of this rank")
        if found.shape != shape:
            raise GridError(
                f"array {self.series.name!r}: the block of this rank has the shape "
                f"{found.shape}, but its region of a step has {shape}."
            )
        if hasattr(block, "dtype") and not array.meta.data_type.accepts(block.dtype, casting):
            raise DataTypeError(
                f"array {self.series.name!r} holds {array.meta.data_type.label}, the block of this "
                f"rank {block.dtype}, which does not always fit: convert it with astype, or attach "
                "with casting='same_kind'."
            )
        return array.cast(found if hasattr(block, "dtype") else block)

    def add(self, step: int, pieces: Sequence[tuple[BlockPiece, np.ndarray]]) -> None:
        """Put the pieces of a step into the objects of this rank; write objects that are whole."""
        if not self.share.own or step < self.stored:
            return
        index = self.series.steps.find(step)
        start = self.series.steps.start(index)
        end = min(self.series.steps.start(index + 1), self.series.steps.extent)
        one_step = (*(slice(None),) * self.series.axis, np.newaxis)
        if end == step + 1 == start + 1 and (whole := self._whole(index, pieces, one_step)):
            self._write_all(index, end, whole.__getitem__)
            return
        if index != self._index:
            self._begin(index, step)
        for piece, values in pieces:
            place = self._within(piece.inside, slice(step - start, step - start + 1))
            target = self._objects[piece.coords][place]
            target[...] = values[one_step]
        self._steps = step + 1
        if self._steps == end:
            self.flush()
            self._index = -1

    def _whole(
        self, index: int, pieces: Sequence[tuple[BlockPiece, np.ndarray]], one_step: Any
    ) -> dict[Coords, np.ndarray] | None:
        """Return the objects of a step, uncopied, if each is one piece; else None."""
        found = {piece.coords: values[one_step] for piece, values in pieces}
        fits = all(self._shape(index, coords) == found[coords].shape for coords in found)
        return found if fits and len(found) == len(self.share.own) else None

    def flush(self) -> None:
        """Write the steps in memory that are not stored yet."""
        if self._steps <= self.stored or self._index < 0:
            return
        steps = self._steps - self.series.steps.start(self._index)
        self._write_all(self._index, self._steps, partial(self._held, steps))

    def _write_all(self, index: int, stop: int, elements: Callable[[Coords], np.ndarray]) -> None:
        """Write the objects of this rank at an index, and their receipt."""
        self._check()
        found: dict[Coords, tuple[int, int]] = {}

        def write(coords: Coords) -> None:
            found[coords] = self._write(index, coords, elements(coords))

        parallel_for(write, self.share.own, self._threads)
        receipts = tuple((coords, *found[coords]) for coords in self.share.own)
        stored = StoredObjects(self.series.steps.start(index), stop, receipts)
        self._say(stored.record(self.series.name, index))
        self._receipts = {index: stored}
        self.stored = stop

    # --- stored objects ---------------------------------------------------------------------------

    def _within(self, region: Region, steps: slice) -> Region:
        axis = self.series.axis
        return (*region[:axis], steps, *region[axis:])

    def _begin(self, index: int, step: int) -> None:
        """Allocate the objects at an index, and load their steps before `step`."""
        meta = self.series.array.meta
        for coords in self.share.own:
            shape = self._shape(index, coords)
            if coords not in self._objects or self._objects[coords].shape != shape:
                self._objects[coords] = meta.full_of_fill(shape)
        if step > self.series.steps.start(index):
            for coords in self.share.own:
                self._load(index, coords, step)
        self._index = index

    def _shape(self, index: int, coords: Coords) -> Shape:
        kind = self.series.steps.size_of(index), coords
        if kind not in self._shapes:
            grid = self.series.array.meta.grid
            self._shapes[kind] = grid.shape_of(self.series.coords(index, coords))
        return self._shapes[kind]

    def _load(self, index: int, coords: Coords, step: int) -> None:
        """Load the steps of an object that this rank stored before it was restarted."""
        series = self.series
        key = series.key(index, coords)
        receipt = self._receipts.get(index)
        sizes = {} if receipt is None else {one: nbytes for one, nbytes, _ in receipt.objects}
        present = series.array.store.size(key)
        if coords not in sizes or (sizes[coords] > 0) != (present is not None):
            raise StepError(
                f"{series.array.where}: the stored object {key!r}, which held the steps before "
                f"{step}, is not there any more. Attach with from_step="
                f"{series.steps.start(index)} and begin there."
            )
        steps = slice(series.steps.start(index), step, 1)
        region = self._within(series.grid.region_of(coords), steps)
        values = series.array.read(region, threads=1)
        inside = tuple(slice(0, n) for n in values.shape)
        self._objects[coords][inside] = values

    def _held(self, steps: int, coords: Coords) -> np.ndarray:
        """Return an object with its first steps, and the fill value behind them."""
        chunk = self._objects[coords]
        if steps == chunk.shape[self.series.axis]:
            return chunk
        everything = tuple(slice(None) for _ in self.series.grid.dimensions)
        held = self._within(everything, slice(0, steps))
        filled = self.series.array.meta.full_of_fill(chunk.shape)
        filled[held] = chunk[held]
        return filled

    def _write(self, index: int, coords: Coords, chunk: np.ndarray) -> tuple[int, int]:
        """Write one object; return its bytes and CRC-32C, or zeros if it is all fill value."""
        array = self.series.array
        noting = ObjectDigest(with_crc32=False)
        if not write_object(array, self.series.coords(index, coords), chunk, noting):
            return 0, 0
        return noting.nbytes, noting.crc32c


def pieces_of(
    block: np.ndarray, pieces: Iterable[BlockPiece]
) -> list[tuple[BlockPiece, np.ndarray]]:
    """Return the pieces of a rank's block, with their values."""
    return [(piece, view_region(block, piece.block)) for piece in pieces]
