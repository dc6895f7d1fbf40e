"""Values that are made piece by piece, and stores that take them so.

A shard is encoded chunk by chunk. Where the store is a folder, each chunk goes into the file while
it is in the processor's cache, and the shard is never held in memory as a whole. Other stores want
to know all of a value before they begin: for these the pieces are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

from zarr_dask.scratch import Gathered
from zarr_dask.stores.base import Buffer, Store

__all__ = ["PieceTaker", "put_pieces", "takes_pieces"]


@runtime_checkable
class PieceTaker(Protocol):
    """A store that can begin to write a value before all of it is known."""

    def set_pieces(self, key: str, pieces: Iterable[Buffer]) -> None:
        """Put the joined pieces at `key`, all or nothing.

        Each piece is good until the next one is taken. An error while they are made is raised as it
        is, and leaves what was there.
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
) -> None:
    """Put a value into a store that may be known in pieces only.

    Parameters
    ----------
    store, key
        Where.
    pieces
        The bytes: all of them, or one after the other, each good until the next one is taken.
    note
        Given each piece before it goes.
    waiting
        Held while a store is waited for to which nothing can be given before all of it is known.
    """
    noted = pieces if note is None else _noted(pieces, note)
    if not isinstance(pieces, list) and isinstance(store, PieceTaker):
        store.set_pieces(key, noted)
        return
    if isinstance(pieces, list):
        buffers = list(noted)
    else:
        with Gathered() as gathered:
            for piece in noted:
                gathered.add(piece)
        buffers = gathered.buffers()
    with waiting or nullcontext():
        store.set(key, buffers)


def _noted(pieces: Iterable[Buffer], note: Callable[[Buffer], None]) -> Iterator[Buffer]:
    for piece in pieces:
        note(piece)
        yield piece
