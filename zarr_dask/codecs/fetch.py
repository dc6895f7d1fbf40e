"""Requests for bytes without knowledge of their location.

A codec that needs only some bytes of a value requests them through a `Fetch`: a generator that
yields ranges and receives the buffers. The codec never sees a store or a key; the driver of the
generator decides where to read and how to batch requests. A chunk inside a shard is the same
generator with its ranges moved (`fetch_within`), and many chunks are generators run together
(`interleave`), so nested shards need no code of their own.

Spans tell a codec that can decode a part of its bytes which part is wanted. They cover the regions
of a chunk in C order and may cover more: any gap between them is long enough to be worth skipping.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice, product
from typing import TypeVar

from zarr_dask.errors import CorruptObjectError
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import BoundedRange, Buffer, Range

__all__ = [
    "Fetch",
    "Spans",
    "byte_ranges_of",
    "check_length",
    "drive_fetch",
    "drive_fetch_from_bytes",
    "fetch_within",
    "interleave",
]


T = TypeVar("T")

Fetch = Generator[Sequence[Range], Iterable[Buffer] | None, T]
"""Yields ranges of one value, receives a buffer for each (None: there is no value), returns T.

A buffer is valid until the next one is taken: it may be read from a file only then. A codec must
request many ranges in ascending order, and use each buffer at once.
"""


def drive_fetch(fetch: Fetch[T], read: Callable[[Sequence[Range]], Iterable[Buffer] | None]) -> T:
    """Run `fetch` to its end, with `read` returning the bytes that it requests."""
    try:
        wanted = next(fetch)
        while True:
            wanted = fetch.send(read(wanted))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def drive_fetch_from_bytes(fetch: Fetch[T], value: Buffer) -> T:
    """Run `fetch` on bytes in memory."""
    view = memoryview(value)
    return drive_fetch(fetch, lambda wanted: [_cut(view, item) for item in wanted])


def _cut(view: memoryview, wanted: Range) -> memoryview:
    start, stop = wanted
    return view[start:stop]


def fetch_within(fetch: Fetch[T], start: int, length: int) -> Fetch[T]:
    """Return the same `fetch` on bytes that are part of a longer value."""
    try:
        wanted = next(fetch)
        while True:
            moved = [_moved(item, start, length) for item in wanted]
            received = yield moved
            wanted = fetch.send(None if received is None else _checked(moved, received))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _checked(ranges: Sequence[Range], buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    for wanted, buffer in zip(ranges, buffers, strict=True):
        check_length(buffer, wanted)
        yield buffer


def check_length(buffer: Buffer, wanted: Range) -> None:
    """Raise if there are fewer bytes than the index states.

    Raises
    ------
    CorruptObjectError
        If the value ends before them, or too few have arrived.
    """
    start, stop = wanted
    if stop is not None and len(buffer) < stop - start:
        raise CorruptObjectError(
            f"it ends within bytes {start} to {stop}, which its index points to"
        )


def _moved(wanted: Range, start: int, length: int) -> Range:
    first = wanted.start if wanted.start >= 0 else max(length + wanted.start, 0)
    last = length if wanted.stop is None else wanted.stop
    if isinstance(wanted, BoundedRange):
        return Range(start, start + min(last, length))
    if last > length:
        raise CorruptObjectError(
            f"it has {length} bytes, but its index points to bytes {first} to {last}"
        )
    return type(wanted)(start + first, start + last)


def interleave(fetches: Sequence[Fetch[T]]) -> Fetch[list[T]]:
    """Run many fetches on one value, with joint requests for their ranges."""
    results: list[T | None] = [None] * len(fetches)
    waiting: list[tuple[int, Sequence[Range]]] = []
    for number, fetch in enumerate(fetches):
        _advance(number, fetch, None, results, waiting, first=True)
    while waiting:
        received = yield [item for _, wanted in waiting for item in wanted]
        asked, waiting = waiting, []
        buffers = None if received is None else iter(received)
        for number, wanted in asked:
            share = None if buffers is None else islice(buffers, len(wanted))
            _advance(number, fetches[number], share, results, waiting)
            for _ in share or ():
                pass  # skip unused buffers
    return results  # type: ignore[return-value]


def _advance(
    number: int,
    fetch: Fetch[T],
    share: Iterable[Buffer] | None,
    results: list[T | None],
    waiting: list[tuple[int, Sequence[Range]]],
    *,
    first: bool = False,
) -> None:
    try:
        waiting.append((number, next(fetch) if first else fetch.send(share)))
    except StopIteration as stop:
        results[number] = stop.value


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
