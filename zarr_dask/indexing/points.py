"""Assigns points to stored objects and chunks, by one sort.

Points are given by their positions along some dimensions of a grid; a list of one dimension counts
as points too. There may be as many points as an array has elements, so only a chunk number and a
position in the sorted order are stored for each. Pure; knows grids only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from zarr_dask.grid.grid import Dimension, Region

__all__ = [
    "PointsByChunk",
    "PointsInChunk",
    "PointsOfChunk",
    "cells_of_points",
    "places_by_cell",
    "points_of_chunks",
    "sorted_runs",
]


class PointsInChunk(NamedTuple):
    """The elements taken of one cell or one of its chunks, along some dimensions."""

    box: Region
    """The smallest region of the cell that holds all taken elements."""
    pick: tuple[np.ndarray, ...] | None
    """Taken elements: indices for each dimension, or None for all of them in order."""
    out: slice | np.ndarray
    """Positions of these elements among all points."""


class PointsByChunk(NamedTuple):
    """The elements taken of one cell."""

    coords: tuple[int, ...]
    """Coordinates of the cell along these dimensions."""
    shares: list[PointsInChunk]
    """One share for each chunk, or for each point if points are sparse."""


class PointsOfChunk(NamedTuple):
    """The elements taken of one chunk that is decoded as a whole, along some dimensions."""

    coords: tuple[int, ...]
    """Coordinates of the cell along these dimensions."""
    origin: tuple[int, ...]
    """First element of the chunk in its cell."""
    numbers: np.ndarray
    """The share of these dimensions in the numbers of the elements in the chunk, in C order."""
    out: slice | np.ndarray
    """Positions of these elements among all points."""


def points_of_chunks(
    dimensions: Sequence[Dimension],
    chunk_shape: Sequence[int],
    strides: Sequence[int],
    positions: Sequence[np.ndarray],
) -> Iterator[PointsOfChunk]:
    """Yield the chunks that hold points, ordered by cells, with their points.

    Parameters
    ----------
    dimensions, chunk_shape, positions
        As for `cells_of_points`.
    strides
        Elements of a chunk from one position to the next, along each of these dimensions.

    Examples
    --------
    >>> from zarr_dask.grid.grid import Fixed
    >>> points = [np.array([5, 0, 1])]
    >>> for chunk in points_of_chunks([Fixed(4, 8)], [2], [1], points):
    ...     print(chunk.coords, chunk.origin, chunk.numbers, chunk.out)
    (0,) (0,) [0 1] slice(1, 3, None)
    (1,) (0,) [1] slice(0, 1, None)
    """
    if not positions[0].size:
        return
    columns, numbers = _columns(dimensions, chunk_shape, positions, strides)
    order, starts = sorted_runs(columns)
    heads = starts
    if order is not None:
        heads, numbers = order[starts], numbers[order]
    coords, origins = [], []
    for d, p, size in zip(dimensions, positions, chunk_shape, strict=True):
        cells, offsets = d.locate(p[heads])
        coords.append(cells.tolist())
        origins.append((offsets // size * size).tolist())
    bounds = pairwise([*starts.tolist(), positions[0].size])
    for at, origin, (first, last) in zip(
        zip(*coords, strict=True), zip(*origins, strict=True), bounds, strict=True
    ):
        out = slice(first, last) if order is None else _as_slice(order[first:last])
        yield PointsOfChunk(at, origin, numbers[first:last], out)


def places_by_cell(
    dimensions: Sequence[Dimension], positions: Sequence[np.ndarray]
) -> Iterator[tuple[tuple[int, ...], list[np.ndarray], slice | np.ndarray]]:
    """Yield the cells that hold points, with their places in the cell and among all points.

    Parameters
    ----------
    dimensions, positions
        As for `cells_of_points`.

    Examples
    --------
    >>> from zarr_dask.grid.grid import Fixed
    >>> list(places_by_cell([Fixed(4, 8)], [np.array([5, 0, 1])]))
    [((0,), [array([0, 1])], slice(1, 3, None)), ((1,), [array([1])], slice(0, 1, None))]
    """
    if not positions[0].size:
        return
    columns, _ = _columns(dimensions, None, positions)
    order, starts = sorted_runs(columns)
    coords, offsets = [], []
    for d, p in zip(dimensions, positions, strict=True):
        cells, places = d.locate(p if order is None else p[order])
        coords.append(cells[starts].tolist())
        offsets.append(places)
    bounds = pairwise([*starts.tolist(), positions[0].size])
    for at, (first, last) in zip(zip(*coords, strict=True), bounds, strict=True):
        out = slice(first, last) if order is None else _as_slice(order[first:last])
        yield at, [places[first:last] for places in offsets], out


def cells_of_points(
    dimensions: Sequence[Dimension],
    chunk_shape: Sequence[int] | None,
    positions: Sequence[np.ndarray],
    sparse: int | None = None,
) -> Iterator[PointsByChunk]:
    """Yield the cells that hold points, in C order of their coordinates, with their points.

    Parameters
    ----------
    dimensions
        Dimensions of the grid.
    chunk_shape
        If given, points are grouped by chunks of these sizes within cells.
    positions
        Positions of the points, along each of these dimensions.
    sparse
        If given, points are taken one by one if the smallest box around those of one chunk has more
        than this number of elements per point.

    Examples
    --------
    >>> from zarr_dask.grid.grid import Fixed
    >>> points = [np.array([5, 0, 1])]
    >>> [(cell.coords, len(cell.shares)) for cell in cells_of_points([Fixed(4, 8)], None, points)]
    [((0,), 1), ((1,), 1)]
    """
    if not positions[0].size:
        return
    columns, _ = _columns(dimensions, chunk_shape, positions)
    order, starts = sorted_runs(columns)
    heads = starts if order is None else order[starts]
    coords = zip(
        *(d.locate(p[heads])[0].tolist() for d, p in zip(dimensions, positions, strict=True)),
        strict=True,
    )
    offsets = [
        d.locate(p if order is None else p[order])[1]
        for d, p in zip(dimensions, positions, strict=True)
    ]
    lows = zip(*(np.minimum.reduceat(offset, starts).tolist() for offset in offsets), strict=True)
    highs = zip(*(np.maximum.reduceat(offset, starts).tolist() for offset in offsets), strict=True)
    bounds = pairwise([*starts.tolist(), positions[0].size])
    cell: PointsByChunk | None = None
    for at, low, high, (first, last), head in zip(
        coords, lows, highs, bounds, heads.tolist(), strict=True
    ):
        if cell is None or cell.coords != at:
            if cell is not None:
                yield cell
            cell = PointsByChunk(at, [])
        if last - first == 1:
            cell.shares.append(_point(low, head))
            continue
        taken = [offset[first:last] for offset in offsets]
        places = slice(first, last) if order is None else _as_slice(order[first:last])
        box = prod(b - a + 1 for a, b in zip(low, high, strict=True))
        if sparse is not None and box > sparse * (last - first):
            numbers = range(first, last) if order is None else order[first:last].tolist()
            cell.shares.extend(
                map(_point, zip(*(one.tolist() for one in taken), strict=True), numbers)
            )
        else:
            cell.shares.append(_share(low, high, taken, places))
    if cell is not None:
        yield cell


def _point(position: Sequence[int], place: int) -> PointsInChunk:
    return PointsInChunk(tuple(slice(p, p + 1, 1) for p in position), None, slice(place, place + 1))


def _share(
    low: Sequence[int], high: Sequence[int], offsets: list[np.ndarray], out: slice | np.ndarray
) -> PointsInChunk:
    """Return some points of one cell or chunk, as a slice if they are evenly spaced in order."""
    if len(offsets) == 1:
        steps = np.diff(offsets[0])
        step = int(steps[0])
        if step > 0 and (steps == step).all():
            return PointsInChunk((slice(low[0], high[0] + 1, step),), None, out)
    box = tuple(slice(a, b + 1, 1) for a, b in zip(low, high, strict=True))
    pick = tuple(offset - a for offset, a in zip(offsets, low, strict=True))
    return PointsInChunk(box, pick, out)


def _as_slice(places: np.ndarray) -> slice | np.ndarray:
    """Return ascending positions as a slice, if they are contiguous."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first == len(places) - 1 else places


def _columns(
    dimensions: Sequence[Dimension],
    chunk_shape: Sequence[int] | None,
    positions: Sequence[np.ndarray],
    strides: Sequence[int] = (),
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return numbers of chunks, and with `strides` the numbers of the points in their chunks.

    Numbers of chunks are the same for all points of one chunk, and ascend with its cell. If
    possible there is one for each point, because there may be as many points as elements.
    """
    sizes = [d.largest for d in dimensions] if chunk_shape is None else chunk_shape
    counts = [d.count for d in dimensions]
    inside = [-(-d.largest // size) for d, size in zip(dimensions, sizes, strict=True)]
    nchunks = prod(counts) * prod(inside)
    cell = chunk = numbers = np.zeros((), np.int64)
    if nchunks >= _LARGEST_KEY:
        located = [d.locate(p) for d, p in zip(dimensions, positions, strict=True)]
        chunks = [offsets // size for (_, offsets), size in zip(located, sizes, strict=True)]
        for (_, offsets), size, stride in zip(located, sizes, strides, strict=bool(strides)):
            numbers = numbers + offsets % size * stride
        return [*(cells for cells, _ in located), *chunks], numbers
    for at, (d, p, size) in enumerate(zip(dimensions, positions, sizes, strict=True)):
        cells, offsets = d.locate(p)
        cell = cell * counts[at] + cells
        if inside[at] > 1:
            within = offsets // size
            chunk = chunk * inside[at] + within
            offsets -= within * size
        if strides:
            numbers = numbers + offsets * strides[at]
    keys = cell * prod(inside) + chunk if prod(inside) > 1 else cell
    # NumPy sorts numbers of 16 bits four times as fast
    return [keys.astype(np.min_scalar_type(nchunks), copy=False)], numbers


def sorted_runs(columns: Sequence[np.ndarray]) -> tuple[np.ndarray | None, np.ndarray]:
    """Return a stable order that groups equal rows (None if sorted), and the start of each run."""
    extents = [int(column.max()) + 1 for column in columns]
    if prod(extents) < _LARGEST_KEY:
        keys = columns[0]
        for column, extent in zip(columns[1:], extents[1:], strict=True):
            keys = keys * extent + column
        order = None if (keys[1:] >= keys[:-1]).all() else keys.argsort(kind="stable")
        in_order = keys if order is None else keys[order]
        changes = in_order[1:] != in_order[:-1]
    else:
        order = np.lexsort(columns[::-1])
        changes = np.zeros(len(order) - 1, bool)
        for column in columns:
            in_order = column[order]
            changes |= in_order[1:] != in_order[:-1]
    return order, np.concatenate(([0], changes.nonzero()[0] + 1))


_LARGEST_KEY = 1 << 62
