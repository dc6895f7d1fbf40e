"""Runs: neighbouring chunks of a shard in an array, copied by one call.

Chunks are encoded and decoded in contiguous memory. Each copy from or to an array releases the
interpreter lock and takes it again; with several threads, waiting for it takes longer than copying.
So neighbours along one dimension are copied together, as many as fit in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import numpy as np

from zarr_dask._util.buffers import reserve_buffer
from zarr_dask.codecs.base import largest_partial_read
from zarr_dask.grid.grid import Part, Region, Shape, view_region

__all__ = [
    "LARGEST_RUN",
    "PlaceOf",
    "batch_decoder",
    "batch_length",
    "batches_of_runs",
    "chunks_of_runs",
    "contiguous_batch",
    "contiguous_runs",
    "decode_in_place",
    "fast_copyto",
    "iter_chunk_batches",
]


LARGEST_RUN = 1 << 19
"""Largest run in bytes, unless one chunk is larger."""


def iter_chunk_batches(array: np.ndarray, chunk_shape: Shape) -> Iterator[np.ndarray]:
    """Yield the chunks of an array in C order, as views of several chunks each.

    Parameters
    ----------
    array
        An array of whole chunks.
    chunk_shape
        Their shape.

    Examples
    --------
    >>> [run.tolist() for run in iter_chunk_batches(np.arange(8).reshape(2, 4), (2, 2))]
    [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]
    """
    counts = tuple(map(int.__floordiv__, array.shape, chunk_shape))
    # the dimensions of the grid first, then those of a chunk; splitting a dimension makes a view
    split = array.reshape([n for pair in zip(counts, chunk_shape, strict=True) for n in pair])
    grid = split.transpose(*range(0, split.ndim, 2), *range(1, split.ndim, 2))
    last = max((dim for dim, count in enumerate(counts) if count > 1), default=0)
    most = max(1, LARGEST_RUN // max(array.itemsize * prod(chunk_shape), 1))
    for place in product(*map(range, counts[:last])):
        index: tuple[Any, ...] = (*place, ...)
        row = grid[index].reshape(-1, *chunk_shape)
        for first in range(0, len(row), most):
            yield row[first : first + most]


@contextmanager
def contiguous_batch(run: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the chunks with each in contiguous memory, valid until the end of the context.

    A single chunk is not copied.
    """
    if len(run) == 1 or run[0, ...].flags.c_contiguous:
        yield run
        return
    with reserve_buffer("run", run.nbytes) as memory:
        chunks = memory.view(run.dtype).reshape(run.shape)
        fast_copyto(run, into=chunks)
        yield chunks


Run = tuple[int, np.ndarray]
"""Number of the first chunk of a run, and the chunks."""


def batches_of_runs(runs: Iterable[np.ndarray]) -> Iterator[list[Run]]:
    """Number runs by their first chunks, and yield as many at a time as one thread decodes."""
    batch: list[Run] = []
    number = nbytes = 0
    for run in runs:
        batch.append((number, run))
        number, nbytes = number + len(run), nbytes + run.nbytes
        if nbytes >= LARGEST_RUN:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def chunks_of_runs(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield each chunk of runs with its number."""
    for first, run in runs:
        for number in range(len(run)):
            yield first + number, run[number, ...]


@contextmanager
def contiguous_runs(runs: Sequence[Run]) -> Iterator[Iterator[Run]]:
    """As `chunks_of_runs`, with each chunk in contiguous memory, to be filled before the next one.

    Examples
    --------
    >>> out = np.zeros((2, 4))
    >>> with contiguous_runs([*enumerate(iter_chunk_batches(out, (2, 2)))]) as chunks:
    ...     for number, chunk in chunks:
    ...         chunk[...] = number + 1
    >>> out
    array([[1., 1., 2., 2.],
           [1., 1., 2., 2.]])
    """
    longest = max((run for _, run in runs), key=len)
    if longest[0, ...].flags.c_contiguous:
        yield chunks_of_runs(runs)
        return
    with reserve_buffer("run", longest.nbytes) as memory:
        chunks = memory.view(longest.dtype).reshape(longest.shape)
        yield _copied_runs(runs, chunks)


def _copied_runs(runs: Iterable[Run], chunks: np.ndarray) -> Iterator[Run]:
    places = list(chunks)
    for first, run in runs:
        yield from enumerate(places[: len(run)], first)
        fast_copyto(chunks[: len(run)], into=run)


PlaceOf = Callable[[Part], np.ndarray]
"""Returns the memory for decoding what goes to ``part.out``: that part, or all of its chunk.

It must be filled before the next call.
"""


def decode_in_place(out: np.ndarray) -> PlaceOf:
    """Return a function for decoding parts directly into `out`."""
    return lambda part: view_region(out, part.out)


@contextmanager
def batch_decoder(out: np.ndarray, chunk_shape: Shape) -> Iterator[PlaceOf]:
    """Decode chunks in runs; their parts are in `out` when the context ends without an error.

    Parameters
    ----------
    out
        The array for chunks and parts of chunks.
    chunk_shape
        Shape of a whole chunk.

    Examples
    --------
    >>> out, inside = np.zeros((2, 4)), (slice(0, 2, 1), slice(0, 2, 1))
    >>> right = (slice(0, 2, 1), slice(2, 4, 1))
    >>> with batch_decoder(out, (2, 2)) as place_of:
    ...     place_of(Part((0, 1), inside, right, whole=True))[...] = 5
    >>> out
    array([[0., 0., 5., 5.],
           [0., 0., 5., 5.]])
    """
    axis, count = _longest_run(out, chunk_shape)
    if count < 2:
        yield decode_in_place(out)
        return
    with reserve_buffer("run", count * prod(chunk_shape) * out.itemsize) as memory:
        run = _ChunkBatch(out, axis, memory.view(out.dtype).reshape(count, *chunk_shape))
        yield run.place_of
        run.settle()


def batch_length(out: np.ndarray, chunk_shape: Shape) -> int:
    """Return how many chunks in C order one thread decodes at a time: whole runs.

    Parameters
    ----------
    out
        The array for chunks and parts of chunks.
    chunk_shape
        Shape of a whole chunk.

    Examples
    --------
    >>> batch_length(np.empty((256, 256), "f4"), (64, 64)), batch_length(np.empty(9), (3,))
    (32, 21845)
    """
    axis, count = _longest_run(out, chunk_shape)
    most = max(1, LARGEST_RUN // max(out.itemsize * prod(chunk_shape), 1))
    if count < 2:
        return most
    row = -(-out.shape[axis] // chunk_shape[axis])
    return count if count < row else most // row * row


def _longest_run(out: np.ndarray, chunk_shape: Shape) -> tuple[int, int]:
    """Return the dimension of runs of chunks in an array, and the most chunks of a run.

    Chunks that are contiguous in the array, too, need no runs.
    """
    nbytes = prod(chunk_shape) * out.itemsize
    longer = [dim for dim, n in enumerate(chunk_shape) if out.shape[dim] > n]
    if not longer or not nbytes or largest_partial_read(nbytes):
        return 0, 1
    axis = longer[-1]
    count = -(-out.shape[axis] // chunk_shape[axis])
    if any(map(int.__lt__, out.shape, chunk_shape)):
        if count < _MANY_PARTS:
            return 0, 1
    elif out[tuple(slice(0, n, 1) for n in chunk_shape)].flags.c_contiguous:
        return 0, 1
    return axis, min(LARGEST_RUN // nbytes, count)


_MANY_PARTS = 16
"""Number of neighbours from which one copy of their parts takes less time than one of each."""


class _ChunkBatch:
    """Decoded chunks of which parts, the same of each, are neighbours in an array.

    Parameters
    ----------
    out
        The array.
    axis
        The dimension along which they are neighbours.
    room
        Memory for some chunks, as one array.
    """

    def __init__(self, out: np.ndarray, axis: int, room: np.ndarray) -> None:
        self._out, self._axis, self._room = out, axis, room
        self._places: list[np.ndarray] = list(room)
        self._regions: list[Region] = []
        """The regions in the array that the chunks in `room` go to."""
        self._inside: Region = ()
        """The part of each of these chunks that goes there."""

    def place_of(self, part: Part) -> np.ndarray:
        """See `PlaceOf`."""
        if not self._goes_on(part):
            self.settle()
            self._inside = part.inside
        self._regions.append(part.out)
        return self._places[len(self._regions) - 1]

    def _goes_on(self, part: Part) -> bool:
        """True if a part follows the last one of the run, and there is room for it."""
        regions, axis = self._regions, self._axis
        if not 0 < len(regions) < len(self._places) or part.inside != self._inside:
            return False
        region, last = part.out, regions[-1]
        return (
            region[axis].start == last[axis].stop
            and region[:axis] == last[:axis]
            and region[axis + 1 :] == last[axis + 1 :]
        )

    def settle(self) -> None:
        """Copy the parts of decoded chunks to the array."""
        if not self._regions:
            return
        first, last, axis = self._regions[0], self._regions[-1], self._axis
        count = len(self._regions)
        if count == 1:
            fast_copyto(self._places[0][self._inside], into=self._out[first])
        else:
            along = slice(first[axis].start, last[axis].stop, 1)
            joint = self._out[(*first[:axis], along, *first[axis + 1 :])]
            shape = joint.shape
            # one dimension becomes two, without a copy whatever the strides are
            split = joint.reshape(*shape[:axis], count, -1, *shape[axis + 1 :])
            parts = self._room[(slice(count), *self._inside)]
            fast_copyto(parts, into=np.moveaxis(split, axis, 0))
        self._regions.clear()


_MANY = 1 << 15  # bytes: deciding how to copy takes 3 us, which is little compared to that
_LONGEST = (1 << 31) - 1  # largest size in bytes of an element in NumPy


def fast_copyto(elements: np.ndarray, into: np.ndarray) -> None:
    """Do ``into[...] = elements``, which takes NumPy up to twice as long for short rows.

    NumPy copies a row element by element. If the row is one element, it is copied at once.

    Examples
    --------
    >>> values = np.arange(1 << 16, dtype="f4").reshape(-1, 64)
    >>> part = np.empty((1024, 16), "f4")
    >>> fast_copyto(values[:, 16:32], into=part)
    >>> bool((part == values[:, 16:32]).all())
    True
    """
    if elements.nbytes >= _MANY and _have_rows(elements, into):
        row = np.dtype((np.void, elements.shape[-1] * elements.itemsize))
        into.view(row)[...] = elements.view(row)
    else:
        into[...] = elements


def _have_rows(elements: np.ndarray, into: np.ndarray) -> bool:
    """True if both have rows of the same elements, each of them contiguous."""
    return (
        elements.ndim > 1
        and elements.shape == into.shape
        and 1 < elements.shape[-1] <= _LONGEST // elements.itemsize
        and elements.strides[-1] == elements.itemsize == into.strides[-1]
        and elements.dtype == into.dtype
        and not elements.dtype.hasobject
        and elements.dtype.kind != "T"  # texts of any length, which are stored elsewhere
    )
