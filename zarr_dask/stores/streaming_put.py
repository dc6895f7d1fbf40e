"""Values that are put piece by piece, or while the next stored object is encoded.

A shard is encoded chunk by chunk. If the store is a folder, each chunk is written to the file while
it is in the processor's cache, small ones in batches, and the whole shard is never in memory. Other
stores need the whole value before they begin: for these the pieces are collected.

A task that writes several objects to a remote store would otherwise wait for each of them, and a
process have no more requests in flight than it has threads. Within `concurrent_puts`, `put` and
`remove` return before the store has responded; the end of the context waits for all, and raises
what has failed.

The bytes that wait in a process are limited: they are copies, of which the store's library may hold
two more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import chain
from typing import Protocol, cast

from zarr_dask._util.buffers import SegmentedBuffer, reserve_buffer
from zarr_dask._util.threads import take_done, wait_context, waiting_threads
from zarr_dask.errors import StoreError
from zarr_dask.stores.backends.posix_io import fsync_names, names_later
from zarr_dask.stores.base import Buffer, Store, is_remote
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.file_backed import is_behind_network
from zarr_dask.stores.no_follow import FolderKeeper
from zarr_dask.stores.wrapper import unwrap

__all__ = [
    "COPIES",
    "MOST_WAITING",
    "TOGETHER",
    "PutQueue",
    "SupportsStreamingPut",
    "concurrent_puts",
    "put",
    "put_later",
    "put_stream",
    "puts_wait",
    "remove",
    "room_within",
    "supports_streaming_put",
]


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
    is_queued = _QUEUE.get() is not None
    streams = is_queued or not isinstance(pieces, list) or _any_large(pieces)
    streams = streams and supports_streaming_put(store)
    if streams and is_queued:
        pieces = _small(pieces)
        streams = not isinstance(pieces, list)
    if streams:
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


def _small(pieces: Iterable[Buffer]) -> list[Buffer] | Iterator[Buffer]:
    """Return all pieces of a small value in memory of their own, or those of a large one."""
    taken: list[Buffer] = []
    left, nbytes = iter(pieces), 0
    for piece in left:
        taken.append(bytes(piece))
        nbytes += len(piece)
        if nbytes > _MOST_TAKEN:
            return chain(taken, left)
    return taken


_NOTHING = nullcontext()
_LARGE = 1 << 20
"""Size in bytes of a piece that no longer fits in the processor's cache."""
_SLICE = 1 << 19
_MOST_TAKEN = 1 << 22
"""Bytes of a value that is queued rather than put piece by piece."""


def _any_large(pieces: Iterable[Buffer]) -> bool:
    return max(map(len, pieces), default=0) > _LARGE


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


MOST_WAITING = 1 << 24
"""Bytes of values that a process may have waiting at a time."""
COPIES = 3
"""Times these bytes that may be held for them, with what a store's library holds."""
_MOST_PUTS = 64
"""Values that a process may have waiting; fewer than there are threads that wait."""


class _WaitingValues:
    """Number and bytes of the values that wait in this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset in a new process, where nothing waits."""
        self._changed = threading.Condition()
        self._nbytes = self._count = 0

    def enter(self, nbytes: int, most: int) -> None:
        """Wait for room; a value that is larger than that waits until it is alone."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not self._count or (self._nbytes + nbytes <= most and self._count < _MOST_PUTS)
                )
            )
            self._nbytes += nbytes
            self._count += 1

    def leave(self, nbytes: int) -> None:
        with self._changed:
            self._nbytes -= nbytes
            self._count -= 1
            self._changed.notify_all()


_WAITING = _WaitingValues()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WAITING.forget)


class PutQueue:
    """The puts of one task or call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._futures: list[Future[None]] = []
        self.folders: dict[str, str] = {}
        """Folders of local files with new names that are to be synced, with their roots."""

    def add(self, nbytes: int, request: Callable[[], object]) -> None:
        """Send a request as soon as there is room.

        Raises
        ------
        Exception
            The error of an earlier request, if one is known to have failed.
        """
        self._raise_failed()
        with wait_context():
            _WAITING.enter(nbytes, self._most)
        try:
            future = waiting_threads().submit(copy_context().run, _send, nbytes, request)
        except BaseException:
            _WAITING.leave(nbytes)
            raise
        with self._lock:
            self._futures.append(future)

    def _raise_failed(self) -> None:
        with self._lock:
            ended = take_done(self._futures)
        for one in ended:
            one.result()

    def wait(self) -> None:
        """Wait for all requests; raise the error of the first that has failed."""
        with self._lock:
            futures, self._futures = self._futures, []
        with wait_context():
            wait(futures)
        for one in futures:
            one.result()
        self._sync_folders()

    def _sync_folders(self) -> None:
        with self._lock:
            folders = dict(self.folders)
            self.folders.clear()
        syncs = [waiting_threads().submit(fsync_names, *one) for one in folders.items()]
        wait(syncs)
        for folder, sync in zip(folders, syncs, strict=True):
            try:
                sync.result()
            except OSError as error:
                raise StoreError(
                    f"could not sync the folder {folder}: {error.strerror or error}. What was "
                    "written there may be lost in a power cut; write it again."
                ) from error


_QUEUE: ContextVar[PutQueue | None] = ContextVar("zarr_dask_put_queue", default=None)


def _send(nbytes: int, request: Callable[[], object]) -> None:
    _QUEUE.set(None)  # of this call's own copy of the context: a store may put other values itself
    try:
        request()
    finally:
        _WAITING.leave(nbytes)


def concurrent_puts(
    store: Store, most: int = MOST_WAITING
) -> AbstractContextManager[PutQueue | None]:
    """Let `put` and `remove` in a context return early; the end waits for all of them.

    Parameters
    ----------
    store
        Store that is written to. Puts wait as ever where they have no latency: those of remote
        stores have, and those that end when the disk has the value, of which a disk takes many
        in the time of one. Where they wait, the thread keeps the folder of the last file open.
    most
        Bytes that may wait in this process.

    Returns
    -------
    context manager
        Yields the queue, for those who wait for it themselves; None if puts wait as ever.

    Raises
    ------
    Exception
        The error of the first request that has failed.
    """
    if most <= 0 or not (is_remote(store) or _waits_for_disk(store)):
        return FolderKeeper()
    return _queued_puts(PutQueue(most))


@contextmanager
def _queued_puts(queue: PutQueue) -> Iterator[PutQueue]:
    token = _QUEUE.set(queue)
    try:
        with names_later(queue.folders):
            yield queue
    except BaseException:
        with suppress(Exception):  # the first error is what matters; nothing is left running
            queue.wait()
        raise
    finally:
        _QUEUE.reset(token)
    queue.wait()


def puts_wait(store: Store) -> bool:
    """True if puts wait for a network or a disk, so that several at a time take less time."""
    return is_remote(store) or _waits_for_disk(store) or is_behind_network(store)


def _waits_for_disk(store: Store) -> bool:
    return bool(getattr(unwrap(store), "fsync", False))


def room_within(spare: int) -> int:
    """Return the bytes that may wait in a process that may grow by so many bytes more.

    Examples
    --------
    >>> room_within(10**9) == MOST_WAITING, room_within(3000), room_within(-1)
    (True, 1000, 0)
    """
    return min(MOST_WAITING, max(spare, 0) // COPIES)


def put(store: Store, key: str, buffers: Sequence[Buffer]) -> None:
    """Put a value; see `concurrent_puts`."""
    queue = _QUEUE.get()
    if queue is None:
        store.set(key, buffers)
        return
    value = b"".join(buffers)  # the buffers may be used again when this returns
    queue.add(len(value), partial(store.set, key, [value]))


def remove(store: Store, key: str) -> None:
    """Delete a value; see `concurrent_puts`."""
    put_later(0, partial(store.delete, key))


def put_later(nbytes: int, request: Callable[[], object]) -> None:
    """Call what puts a value, of which so many bytes are held; see `concurrent_puts`."""
    queue = _QUEUE.get()
    if queue is None:
        request()
    else:
        queue.add(nbytes, request)
