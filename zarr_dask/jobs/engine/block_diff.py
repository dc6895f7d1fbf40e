"""Differences between the elements of two blocks of one shape.

Values are equal if ``==`` is true. NaN equals NaN (and NaT NaT) unless ``equal_nan=False``; zeros
of both signs are equal. Complex numbers are compared part by part, records field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarr_dask.dtypes import is_small
from zarr_dask.grid.grid import Grid, Region, Shape, view_region

__all__ = ["BlockDiff", "differing", "mask_of_differences"]

_NAMED = 10
"""Maximum number of differing elements that are named."""
_AT_A_TIME = 1 << 17
"""Number of elements compared at a time: the mask of differences takes some bytes for each."""


@dataclass
class BlockDiff:
    """Differences found in one box or in all."""

    elements: int = 0
    differing: int = 0
    first: list[tuple[Shape, Any, Any]] = field(default_factory=list)

    def add(self, other: BlockDiff) -> None:
        """Add the differences found in another box."""
        self.elements += other.elements
        self.differing += other.differing
        if other.first:
            self.first = sorted(self.first + other.first, key=lambda one: one[0])[:_NAMED]

    def named(self) -> list[tuple[Shape, str, str]]:
        """Return the first differences with both values as texts."""
        return [(at, _shown(a), _shown(b)) for at, a, b in self.first]


def differing(a: np.ndarray, b: np.ndarray, origin: Shape, *, equal_nan: bool) -> BlockDiff:
    """Return the number of differing elements of two arrays of one shape, and the first of them.

    Parameters
    ----------
    a, b
        The arrays; few of their elements are compared at a time.
    origin
        Coordinates of the first element.
    equal_nan
        True if NaN equals NaN, and NaT equals NaT.

    Examples
    --------
    >>> differing(np.array([1, 2, 3]), np.array([1, 2, 7]), (40,), equal_nan=True).first
    [((42,), np.int64(3), np.int64(7))]
    """
    found = BlockDiff()
    for region in _pieces(a.shape):
        mask = mask_of_differences(
            view_region(a, region), view_region(b, region), equal_nan=equal_nan
        )
        count = int(np.count_nonzero(mask))
        first = []
        for at in np.argwhere(mask)[:_NAMED].tolist() if count else []:
            place = tuple(i + s.start for i, s in zip(at, region, strict=True))
            coords = tuple(i + start for i, start in zip(place, origin, strict=True))
            first.append((coords, a[place], b[place]))
        found.add(BlockDiff(mask.size, count, first))
    return found


def _shown(value: object) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _pieces(shape: Shape) -> Iterator[Region]:
    """Return regions of limited size, mostly contiguous in memory, that make up an array."""
    cell: list[int] = []
    room = _AT_A_TIME
    for length in reversed(shape):
        cell.insert(0, max(min(length, room), 1))
        room //= cell[0]
    grid = Grid.regular(shape, cell)
    return (grid.region_of(coords) for coords in np.ndindex(*grid.counts))


def mask_of_differences(a: np.ndarray, b: np.ndarray, *, equal_nan: bool) -> np.ndarray:
    """Return a mask of the elements that differ between two arrays of one shape.

    Examples
    --------
    >>> mask_of_differences(np.array([0.0, np.nan]), np.array([-0.0, np.nan]), equal_nan=True)
    array([False, False])
    """
    mask = np.zeros(a.shape, bool)
    if a.dtype.names is not None:
        for name in a.dtype.names:
            one = mask_of_differences(a[name], b[name], equal_nan=equal_nan)
            mask |= one.reshape((*a.shape, -1)).any(axis=-1)
        return mask
    if is_small(a.dtype):
        return mask_of_differences(a.astype(np.float32), b.astype(np.float32), equal_nan=equal_nan)
    if "c" in {a.dtype.kind, b.dtype.kind}:
        mask |= mask_of_differences(a.real, b.real, equal_nan=equal_nan)
        mask |= mask_of_differences(a.imag, b.imag, equal_nan=equal_nan)
        return mask
    if a.dtype.kind in "OT" or b.dtype.kind in "OT":
        return _objects_differ(a.astype(object), b.astype(object))
    mask |= a != b
    if equal_nan and a.dtype.kind in "fmM" and b.dtype.kind in "fmM":
        missing = np.isnat if a.dtype.kind in "mM" else np.isnan
        mask &= ~(missing(a) & missing(b))
    return mask


def _objects_differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    pairs = zip(a.flat, b.flat, strict=True)
    found = (not _same(one, other) for one, other in pairs)
    return np.fromiter(found, bool, a.size).reshape(a.shape)


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)  # type: ignore[arg-type]  # of variable length, in v2
    return bool(a == b)
