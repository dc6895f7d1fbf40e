"""Requests for bytes without knowledge of their location.

A codec that needs only some bytes of a value requests them through a `Fetch`: a generator that
yields ranges and receives the buffers. The codec never sees a store or a key; the driver of the
generator decides where to read and how to batch requests. A chunk inside a shard is the same
generator with its ranges moved (`fetch_within`), and many chunks are generators run together
(`interleave`), so nested shards need no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores.base import BoundedRange, Buffer, Range

__all__ = [
    "Fetch",
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
    for (start, stop), buffer in zip(ranges, buffers, strict=True):
        if stop is not None:
            check_length(buffer, start, stop - start)
        yield buffer


def check_length(buffer: Buffer, start: int, length: int) -> None:
    """Raise if there are fewer bytes than the index states.

    Raises
    ------
    CorruptObjectError
        If the value ends before them, or too few have arrived.
    """
    if len(buffer) < length:
        raise CorruptObjectError(
            f"it ends within bytes {start} to {start + length}, which its index points to"
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
