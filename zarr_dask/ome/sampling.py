"""A picture of a large array with bounded work: which of its chunks are looked at.

Where all chunks would be too many, some are taken at equal distances: first fewer of those that are
projected, then fewer of those side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, isqrt, prod

import numpy as np

from zarr_dask.array import Array

__all__ = ["Sampling", "mean_to", "nearest_to", "sampled"]

_FINER = 4
"""Elements that are looked at for one of the picture, along each side, at most."""


_LEAST = 1 << 16
"""Bytes that every chunk counts as, at least: many small ones take their time, too."""


@dataclass(frozen=True)
class Sampling:
    """Elements along the axes of a picture, and pieces of what is projected."""

    across: tuple[np.ndarray, np.ndarray]
    """Indices along the vertical and the horizontal axis."""
    projected: tuple[tuple[slice, ...], ...]
    """Slices of each projected axis."""

    @property
    def pieces(self) -> list[tuple[slice, ...]]:
        """All combinations of the slices of projected axes."""
        return list(product(*self.projected))


def sampled(
    array: Array,
    across: tuple[int, int],
    projected: Sequence[int],
    side: int,
    max_bytes: int,
) -> Sampling:
    """What to look at of an array.

    Parameters
    ----------
    array
        The array.
    across
        Its vertical and its horizontal axis.
    projected
        Axes of which the largest values are taken; of all others, one element.
    side
        Length of the longest side of the picture, in elements.
    max_bytes
        Decoded bytes that may be looked at, unless one chunk is larger. A chunk counts as 64 KiB at
        least.
    """
    chunk = _decoded_at_once(array)
    itemsize = max(array.dtype.itemsize, 1)
    counts = {axis: max(1, ceil(array.shape[axis] / chunk[axis])) for axis in (*across, *projected)}
    most = max(1, min(max_bytes // (prod(chunk) * itemsize), max_bytes // _LEAST))
    taken = _fewer(counts, across, projected, most)
    indices = [_indices(array.shape[axis], chunk[axis], taken[axis], side) for axis in across]
    plane = len(indices[0]) * len(indices[1]) * itemsize
    slices = tuple(
        _joined(_chosen(array.shape[axis], chunk[axis], taken[axis]), _PIECE // plane)
        for axis in projected
    )
    return Sampling((indices[0], indices[1]), slices)


_PIECE = 1 << 24
"""Bytes that are projected at a time, at most, unless they are of one chunk."""


def _decoded_at_once(array: Array) -> tuple[int, ...]:
    """Shape of the largest chunk, or of stored objects that can only be decoded as a whole."""
    if array.meta.largest_bound().partial:
        return array.meta.chunk_shape
    return array.meta.grid.largest_cell


def _fewer(
    counts: Mapping[int, int], across: tuple[int, int], projected: Sequence[int], most: int
) -> dict[int, int]:
    """Chunks to take along each axis, so that there are at most so many in all.

    Examples
    --------
    >>> _fewer({0: 50, 1: 8, 2: 8}, (1, 2), [0], 640)
    {0: 10, 1: 8, 2: 8}
    >>> _fewer({0: 50, 1: 80, 2: 20}, (1, 2), [0], 400)
    {0: 1, 1: 40, 2: 10}
    """
    taken = dict(counts)
    for axis in projected:
        others = prod(count for other, count in taken.items() if other != axis)
        taken[axis] = max(1, min(taken[axis], most // others))
    rows, columns = (taken[axis] for axis in across)
    if rows * columns > most:
        # both sides become shorter by the same factor
        taken[across[0]] = max(1, min(rows, isqrt(most * rows // columns)))
        taken[across[1]] = max(1, min(columns, most // taken[across[0]]))
    return taken


def _chosen(extent: int, chunk: int, count: int) -> list[tuple[int, int]]:
    """So many chunks at equal distances, as where they begin and end.

    Examples
    --------
    >>> _chosen(100, 10, 3)
    [(10, 20), (50, 60), (80, 90)]
    """
    chunks = max(1, ceil(extent / chunk))
    starts = [(2 * i + 1) * chunks // (2 * count) * chunk for i in range(count)]
    return [(start, min(start + chunk, extent)) for start in starts]


def _joined(slices: Sequence[tuple[int, int]], most: int) -> tuple[slice, ...]:
    """The same as fewer slices, where one begins at the end of another.

    Examples
    --------
    >>> _joined([(0, 2), (2, 4), (4, 6), (8, 10)], 4)
    (slice(0, 4, None), slice(4, 6, None), slice(8, 10, None))
    """
    done: list[slice] = []
    for start, stop in slices:
        if done and done[-1].stop == start and stop - done[-1].start <= most:
            done[-1] = slice(done[-1].start, stop)
        else:
            done.append(slice(start, stop))
    return tuple(done)


def _indices(extent: int, chunk: int, count: int, side: int) -> np.ndarray:
    """Elements in so many chunks at equal distances, not more than the picture needs."""
    if count * chunk >= extent:
        return np.arange(0, extent, max(1, extent // (side * _FINER)))
    step = max(1, count * chunk // (side * _FINER))
    return np.concatenate([np.arange(a, b, step) for a, b in _chosen(extent, chunk, count)])


# --- making it smaller ----------------------------------------------------------------------------


def mean_to(plane: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A plane of other lengths: means where it gets smaller, repeated elements where larger.

    Examples
    --------
    >>> mean_to(np.array([[0.0, 2.0, 10.0, 20.0]]), (2, 2))
    array([[ 1., 15.],
           [ 1., 15.]])
    """
    for axis, length in enumerate(shape):
        present = plane.shape[axis]
        if length < present:
            starts = np.arange(length) * present // length
            counts = np.diff(np.append(starts, present))
            sums = np.add.reduceat(plane, starts, axis=axis)
            plane = sums / (counts[:, None] if axis == 0 else counts)
        else:
            plane = nearest_to(plane, axis, length)
    return plane


def nearest_to(plane: np.ndarray, axis: int, length: int) -> np.ndarray:
    """A plane of another length along one axis, of elements that it has."""
    present = plane.shape[axis]
    taken: np.ndarray = plane.take((2 * np.arange(length) + 1) * present // (2 * length), axis)
    return taken
