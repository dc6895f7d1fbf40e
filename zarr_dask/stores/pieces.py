"""Values that are made piece by piece, and stores that take them so.

A shard is encoded chunk by chunk. Where the store is a folder, each chunk goes into the file while
it is in the processor's cache, small ones some at a time, and the shard is never held in memory as
a whole. Other stores want to know all of a value before they begin: for these the pieces are
gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from zarr_dask.scratch import Gathered, borrowed
from zarr_dask.stores.base import Buffer, Store

__all__ = ["TOGETHER", "PieceTaker", "put_pieces", "takes_pieces"]

TOGETHER = 1 << 19
"""Bytes up to which small pieces wait for others, so that they are summed up and go by one call.

For each call a thread lets go of the interpreter and waits until it has it again, which for a chunk
of 100 kB takes as long as copying it here. A piece of more than half of that never waits."""


@runtime_checkable
class PieceTaker(Protocol):
    """A store that can begin to write a value before all of it is known."""

    def set_pieces(self, key: str, pieces: Iterable[Buffer]) -> None:
        """Put the joined pieces at `key`, all or nothing.

        Each piece is good until the next one is taken. An error while they are made leaves what was
        there.
        """
        ...


def takes_pieces(store: Store) -> bool:
    """Whether values go to a store piece by piece."""
    return isinstance(store, PieceTaker)


def put_pieces(
    store: Store,
    key: str,
    pieces: list[Buffer] | Iterator[Buffer],
    note: Callable[[Buffer], None] | None = None,
    waiting: AbstractContextManager[None] | None = None,
    fence: Callable[[], None] | None = None,
) -> None:
    """Put a value into a store that may be known in pieces only.

    Parameters
    ----------
    store, key
        Where.
    pieces
        The bytes: all of them, or one after the other, each good until the next one is taken.
    note
        Given all bytes in their order, in these pieces or others, before they go or afterwards;
        nothing counts before all have gone.
    waiting
        Held while a store is waited for to which nothing can be given before all of it is known.
    fence
        Called right before the value gets its name; what it raises keeps it from that.
    """
    if isinstance(store, PieceTaker) and (not isinstance(pieces, list) or _any_large(pieces)):
        known = isinstance(pieces, list)
        noted = _noted(pieces if known else _together(pieces), note)
        store.set_pieces(key, noted if fence is None else _fenced(noted, fence))
        return
    if isinstance(pieces, list):
        buffers = list(_noted(pieces, note))
    else:
        with Gathered() as gathered:
            for piece in _noted(pieces, note):
                gathered.add(piece)
        buffers = gathered.buffers()
    with waiting or nullcontext():
        if fence is not None:
            fence()
        store.set(key, buffers)


_LARGE = 1 << 20
"""Bytes of a piece that has left the processor's cache when it has been made."""
_SLICE = 1 << 19


def _any_large(pieces: Iterable[Buffer]) -> bool:
    return any(len(piece) > _LARGE for piece in pieces)


def _together(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in larger pieces, where they come in small ones."""
    with borrowed("encoded", TOGETHER) as memory:
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
    """The pieces, each noted while it is in the cache.

    That is before it goes; of what has left the cache, each slice is brought back when it goes.
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
