"""Values that are produced piece by piece, and stores that accept them so.

A shard is encoded chunk by chunk. If the store is a folder, each chunk is written to the file while
it is in the processor's cache, small ones in batches, and the whole shard is never in memory. Other
stores need the whole value before they begin: for these the pieces are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

from zarr_dask._util.buffers import SegmentedBuffer, reserve_buffer
from zarr_dask.stores.base import Buffer, Store
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.put_queue import put

__all__ = ["TOGETHER", "SupportsStreamingPut", "put_stream", "supports_streaming_put"]

TOGETHER = 1 << 19
"""Size in bytes of a batch of small pieces, which are checksummed and written in one call.

In each call a thread releases the interpreter lock and waits to get it back, which takes as long as
copying a chunk of 100 kB here. A piece of more than half of that size is not batched.
"""


class SupportsStreamingPut(Protocol):
    """A store that can begin to write a value before all of it is known."""

    def set_pieces(self, key: str, pieces: Iterable[Buffer]) -> None:
        """Put the joined pieces at `key`, all or nothing.

        Each piece is valid until the next one is taken. If producing them fails, the old value
        stays.
        """
        ...


def supports_streaming_put(store: Store) -> bool:
    """True if a store accepts values piece by piece."""
    return capabilities_of(store).streaming_put


def put_stream(
    store: Store,
    key: str,
    pieces: list[Buffer] | Iterator[Buffer],
    note: Callable[[Buffer], None] | None = None,
    waiting: AbstractContextManager[None] | None = None,
    fence: Callable[[], None] | None = None,
) -> None:
    """Put a value into a store, possibly one that is known only in pieces.

    Parameters
    ----------
    store, key
        Its location.
    pieces
        The bytes: all of them, or one after the other, each valid until the next one is taken.
    note
        Called with all bytes in order, in these pieces or others, before or after they are written.
        The calls count only after all pieces are written.
    waiting
        Held while a store is waited for to which nothing can be given before all of it is known.
    fence
        Called right before the value gets its name; what it raises keeps it from that.
    """
    if (not isinstance(pieces, list) or _any_large(pieces)) and supports_streaming_put(store):
        known = isinstance(pieces, list)
        noted = _noted(pieces if known else _together(pieces), note)
        cast("SupportsStreamingPut", store).set_pieces(
            key, noted if fence is None else _fenced(noted, fence)
        )
        return
    if isinstance(pieces, list):
        buffers = pieces if note is None else list(_noted(pieces, note))
    else:
        with SegmentedBuffer() as gathered:
            for piece in _noted(pieces, note):
                gathered.add(piece)
        buffers = gathered.buffers()
    with waiting or _NOTHING:
        if fence is not None:
            fence()
        put(store, key, buffers)


_NOTHING = nullcontext()
_LARGE = 1 << 20
"""Size in bytes of a piece that no longer fits in the processor's cache."""
_SLICE = 1 << 19


def _any_large(pieces: Iterable[Buffer]) -> bool:
    return any(len(piece) > _LARGE for piece in pieces)


def _together(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the same bytes in larger pieces."""
    with reserve_buffer("encoded", TOGETHER) as memory:
        room, used = memory.data, 0
        for piece in pieces:
            nbytes = len(piece)
            waits = 2 * nbytes <= TOGETHER
            if used and (used + nbytes > TOGETHER or not waits):
                yield room[:used]
                used = 0
            if waits:
                room[used : used + nbytes] = piece
                used += nbytes
            else:
                yield piece
        if used:
            yield room[:used]


def _noted(pieces: Iterable[Buffer], note: Callable[[Buffer], None] | None) -> Iterator[Buffer]:
    """Yield the pieces and call `note` with each while it is in the cache.

    That is before it is written. A piece that has left the cache is noted in slices after writing.
    """
    for piece in pieces:
        if note is None:
            yield piece
        elif len(piece) <= _LARGE:
            note(piece)
            yield piece
        else:
            for part in _slices(piece):
                yield part
                note(part)


def _fenced(pieces: Iterable[Buffer], fence: Callable[[], None]) -> Iterator[Buffer]:
    """Yield the pieces, and call the fence when all of them are written."""
    yield from pieces
    fence()


def _slices(piece: Buffer) -> Iterator[Buffer]:
    view = memoryview(piece).cast("B")
    return (view[start : start + _SLICE] for start in range(0, len(view), _SLICE))
