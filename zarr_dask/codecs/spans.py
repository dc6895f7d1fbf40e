"""Which bytes of a chunk some regions of it lie in, if its elements lie in C order.

A codec that can decode a part of its bytes is told by spans which part is wanted. They cover what
is wanted and may cover more: what lies between two of them is long enough to be worth leaving out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from zarr_dask.grid import Region, Shape

__all__ = ["Spans", "spans_of"]

Spans = Sequence[tuple[int, int]]
"""First byte and the one behind the last, in ascending order; they do not touch each other."""

_MOST = 256
"""Spans of one region at most, roughly: each of them takes its time."""
_SHORTEST = 1 << 14
"""Bytes that are not worth leaving out."""


def spans_of(shape: Shape, itemsize: int, regions: Sequence[Region]) -> Spans:
    """The bytes in which all elements of some regions lie.

    Parameters
    ----------
    shape, itemsize
        Of the chunk, in C order.
    regions
        Slices with ascending steps, within the shape.

    Examples
    --------
    >>> rows = (slice(0, 4, 1), slice(128, 256, 1), slice(0, 512, 1))
    >>> spans_of((4, 512, 512), 4, [rows])[:2]
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
    """The bytes of one region, leaving out what is at least so long."""
    ranges = [range(one.start, one.stop, one.step) for one in region]
    if not all(ranges):
        return []
    # from the last dimension outwards: all that is taken of one element of the dimension before
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
    """Spans in ascending order, without short gaps between them."""
    joined: list[tuple[int, int]] = []
    for first, stop in spans:
        if joined and first - joined[-1][1] < least:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((first, stop))
    return joined
