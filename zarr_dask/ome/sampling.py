"""Sampling of a large array for a picture, with a bounded number of chunks.

If there are too many chunks, some are read at equal distances. Chunks along projected axes are
reduced first, then those along the sides of the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, isqrt, prod

import numpy as np

from zarr_dask.array.array import Array

__all__ = ["Sampling", "mean_to", "nearest_to", "sampled"]

_FINER = 4
"""Maximum number of elements read per element of the picture, along each side."""


_LEAST = 1 << 16
"""Minimum bytes that every chunk counts as: small ones take time, too."""


@dataclass(frozen=True)
class Sampling:
    """Elements along the axes of a picture, and pieces of the projected axes."""

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
    """Choose the elements of an array to read for a picture.

    Parameters
    ----------
    array
        The array.
    across
        Its vertical and its horizontal axis.
    projected
        Axes that are reduced to their maximum; of all others, one element is read.
    side
        Length of the longest side of the picture, in elements.
    max_bytes
        Decoded bytes to read at most, unless one chunk is larger. A chunk counts as 64 KiB or more.
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
"""Maximum bytes that are projected at a time, unless one chunk has more."""


def _decoded_at_once(array: Array) -> tuple[int, ...]:
    """Return the largest chunk shape, or object shape if objects can only be decoded as a whole."""
    if array.meta.largest_bound().partial:
        return array.meta.chunk_shape
    return array.meta.grid.largest_cell


def _fewer(
    counts: Mapping[int, int], across: tuple[int, int], projected: Sequence[int], most: int
) -> dict[int, int]:
    """Return the number of chunks to read along each axis, at most `most` in total.

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
        # reduce both sides by the same factor
        taken[across[0]] = max(1, min(rows, isqrt(most * rows // columns)))
        taken[across[1]] = max(1, min(columns, most // taken[across[0]]))
    return taken


def _chosen(extent: int, chunk: int, count: int) -> list[tuple[int, int]]:
    """Return start and stop of `count` chunks at equal distances.

    Examples
    --------
    >>> _chosen(100, 10, 3)
    [(10, 20), (50, 60), (80, 90)]
    """
    chunks = max(1, ceil(extent / chunk))
    starts = [(2 * i + 1) * chunks // (2 * count) * chunk for i in range(count)]
    return [(start, min(start + chunk, extent)) for start in starts]


def _joined(slices: Sequence[tuple[int, int]], most: int) -> tuple[slice, ...]:
    """Merge adjacent slices into slices of at most `most` elements.

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
    """Return elements in `count` chunks at equal distances, no more than the picture needs."""
    if count * chunk >= extent:
        return np.arange(0, extent, max(1, extent // (side * _FINER)))
    step = max(1, count * chunk // (side * _FINER))
    return np.concatenate([np.arange(a, b, step) for a, b in _chosen(extent, chunk, count)])


# --- resizing -------------------------------------------------------------------------------------


def mean_to(plane: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Resize a plane: means along sides that shrink, repeated elements along sides that grow.

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
    """Resize a plane along one axis by picking the nearest elements."""
    present = plane.shape[axis]
    taken: np.ndarray = plane.take((2 * np.arange(length) + 1) * present // (2 * length), axis)
    return taken
