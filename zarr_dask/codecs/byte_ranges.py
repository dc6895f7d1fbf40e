"""The byte ranges of a chunk in C order that contain some regions of it.

Spans tell a codec that can decode a part of its bytes which part is wanted. They cover the regions
and may cover more: any gap between them is long enough to be worth skipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from zarr_dask.grid.grid import Region, Shape

__all__ = ["Spans", "byte_ranges_of"]

Spans = Sequence[tuple[int, int]]
"""Offset of the first byte and of the one after the last, in ascending order, without contact."""

_MOST = 256
"""Approximate limit of spans of one region, as each of them takes time."""
_SHORTEST = 1 << 14
"""Shortest gap in bytes that is worth skipping."""


def byte_ranges_of(shape: Shape, itemsize: int, regions: Sequence[Region]) -> Spans:
    """Return the bytes that contain all elements of some regions.

    Parameters
    ----------
    shape, itemsize
        Shape and bytes of an element of the chunk, in C order.
    regions
        Slices with ascending steps, within the shape.

    Examples
    --------
    >>> rows = (slice(0, 4, 1), slice(128, 256, 1), slice(0, 512, 1))
    >>> byte_ranges_of((4, 512, 512), 4, [rows])[:2]
    [(262144, 524288), (1310720, 1572864)]
    """
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    strides.reverse()
    least = max(_SHORTEST, strides[0] * shape[0] // _MOST) if shape else _SHORTEST
    found: list[tuple[int, int]] = []
    for region in regions:
        found.extend(_spans(strides, itemsize, region, least))
    found.sort()
    return _joined(found, least)


def _spans(
    strides: Sequence[int], itemsize: int, region: Region, least: int
) -> list[tuple[int, int]]:
    """Return the bytes of one region, without gaps of at least a length."""
    ranges = [range(one.start, one.stop, one.step) for one in region]
    if not all(ranges):
        return []
    # from the last dimension outwards: the extent within one element of the dimension before
    first, stop, deep = 0, itemsize, 0
    inner = (first, stop)
    for dim in range(len(ranges) - 1, -1, -1):
        taken, stride = ranges[dim], strides[dim]
        if not deep and len(taken) > 1 and taken.step * stride - (stop - first) >= least:
            deep, inner = dim + 1, (first, stop)
        first, stop = first + taken[0] * stride, stop + taken[-1] * stride
    if not deep:
        return [(first, stop)]
    first, stop = inner
    places = [
        [index * stride for index in taken]
        for taken, stride in zip(ranges[:deep], strides, strict=False)
    ]
    return [(start + first, start + stop) for start in map(sum, product(*places))]


def _joined(spans: Sequence[tuple[int, int]], least: int) -> list[tuple[int, int]]:
    """Return spans in ascending order, without short gaps between them."""
    joined: list[tuple[int, int]] = []
    for first, stop in spans:
        if joined and first - joined[-1][1] < least:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((first, stop))
    return joined
