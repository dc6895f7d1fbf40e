"""Writing of stored objects: every encoded object is made here.

An object that is covered only in part is read, changed and written as a whole; no other writer may
work on it meanwhile. If there is none yet, the document of the array must still stand. One whose
elements all have the fill value is not stored.

An object that the end of an array cuts is shared by a region write and an append, which puts more
elements into it. Both read it, change their part, and put it back if it has not changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from typing import Protocol

import numpy as np

from zarr_dask._util.arguments import check_count
from zarr_dask._util.buffers import SegmentedBuffer
from zarr_dask._util.threads import parallel_for
from zarr_dask.array.revalidate import Confirmation
from zarr_dask.codecs.base import WORTH_A_THREAD, DecodeOptions
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.codecs.throughput import speeds_of
from zarr_dask.errors import ConditionalWriteError, CorruptObjectError, StoreError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid.grid import Grid, Part, view_region
from zarr_dask.stores.base import WHOLE, Buffer, Range, Store, get_start, is_remote
from zarr_dask.stores.compare_and_swap import (
    LockKeeper,
    Refusals,
    as_cas_store,
    cas_store_or_none,
    pause_before,
)
from zarr_dask.stores.streaming_put import (
    MOST_WAITING,
    concurrent_puts,
    put_later,
    put_stream,
    puts_wait,
    remove,
)

__all__ = [
    "OpenedArray",
    "WrittenArray",
    "decoded",
    "is_shared",
    "swap_object",
    "takes_small_puts",
    "updated",
    "write_later",
    "write_object",
    "write_object_part",
    "write_parts",
]


_PLAIN = DecodeOptions()
_ATTEMPTS = 1000
"""Maximum number of attempts. Each failure means that another writer has succeeded, so at most this
many may share an object.
"""


_MOST_READ_LATER = MOST_WAITING // 4
"""Bytes of all elements of an object that is read, changed and put while others are."""


class WrittenArray(Protocol):
    """Interface that writing needs of an array."""

    @property
    def store(self) -> Store:
        """Store to write to."""
        ...

    @property
    def meta(self) -> ArrayMeta:
        """Parsed metadata of the array."""
        ...

    @property
    def where(self) -> str:
        """Store and path, for messages."""
        ...

    def key(self, coords: Sequence[int]) -> str:
        """Return the key of the stored object at some coordinates."""
        ...


class OpenedArray(WrittenArray, Protocol):
    """Interface of an array that was opened, and is written to by its caller."""

    def check_no_output(self) -> None:
        """Raise if the ranks of a simulation write to the array."""
        ...

    def confirmation(self) -> Confirmation:
        """Return the check of a call: the array must still be there."""
        ...

    @property
    def takes_small_puts(self) -> bool:
        """See `takes_small_puts`."""
        ...


def write_parts(
    array: OpenedArray,
    parts: Callable[[], Iterable[Part]],
    values: np.ndarray,
    threads: int | None,
    visible: Grid | None = None,
    fence: Callable[[], None] | None = None,
) -> None:
    """Write parts of a region to their stored objects.

    Parameters
    ----------
    array
        Array to write to.
    parts
        Returns the objects, and the part of the region that each holds.
    values
        Values of the whole region.
    threads
        1 for the calling thread only; by default all threads of this process, one per core, or the
        calling one where chunks are so small that others would not help.
    visible
        Grid of the array as others see it, if it has grown since; see `is_shared`.
    fence
        As for `write_object_part`.

    Raises
    ------
    NodeNotFoundError
        If the array was removed or moved meanwhile, and some came too late.
    MetadataChangedError
        If it was migrated, so that its objects have other keys.
    """
    array.check_no_output()
    confirm = array.confirmation()
    seen = array.meta.grid if visible is None else visible
    has_emptied = False

    def write(part: Part) -> None:
        if is_shared(array, part.coords, seen):
            put_later(view_region(values, part.out).nbytes, partial(put, part, shared=True))
            return
        write_later(array, part, put)
        if keeper is not None:
            keeper.count()

    def put(part: Part, *, shared: bool = False) -> None:
        nonlocal has_emptied
        written = write_object_part(
            array, part, values, confirm=confirm, fence=fence, shared=shared, threads=threads
        )
        if not written:
            has_emptied = True

    check_count("threads", threads, "one per core")
    hurries = threads in {None, 1} and array.takes_small_puts
    if hurries:
        threads = 1
    # nobody waits long for a lock that is kept while a small chunk is encoded
    keeping = LockKeeper() if hurries else nullcontext()
    with concurrent_puts(array.store), keeping as keeper:
        parallel_for(write, parts(), threads)
    confirm.check_written(
        lambda: (
            has_emptied
            or any(array.store.size(array.key(part.coords)) is not None for part in parts())
        )
    )


def write_later(array: WrittenArray, part: Part, write: Callable[[Part], object]) -> None:
    """Call what writes a part; see `zarr_dask.stores.streaming_put.concurrent_puts`.

    A small object of a remote store that is read and changed is waited for twice, so all of it is
    left to a thread that waits, while others are read.
    """
    if not part.whole and is_remote(array.store):
        nbytes = prod(array.meta.bound(part.coords).spec.shape) * array.meta.dtype.itemsize
        if nbytes <= _MOST_READ_LATER:
            put_later(nbytes, partial(write, part))
            return
    write(part)


def takes_small_puts(array: WrittenArray) -> bool:
    """True if a chunk is encoded and put in less time than threads need to hand on the interpreter.

    Where puts wait for something, the threads wait together.
    """
    meta = array.meta
    nbytes = prod(meta.chunk_shape) * meta.dtype.itemsize
    is_short = nbytes < WORTH_A_THREAD * speeds_of(meta.codecs).encode
    return is_short and not puts_wait(array.store)


def is_shared(array: WrittenArray, coords: Sequence[int], visible: Grid) -> bool:
    """Return True if an append may put more elements into an object while a region is written.

    In a store without conditional writes no two writers can share an object.

    Parameters
    ----------
    array
        Array to write to.
    coords
        Coordinates of the object.
    visible
        Grid of the array as others see it.
    """
    key = array.key(coords) if visible.cuts(coords) else None
    return key is not None and cas_store_or_none(array.store, key) is not None


def write_object_part(
    array: WrittenArray,
    part: Part,
    values: np.ndarray,
    note: Callable[[Buffer], None] | None = None,
    waiting: AbstractContextManager[None] | None = None,
    confirm: Confirmation | None = None,
    fence: Callable[[], None] | None = None,
    *,
    shared: bool = False,
    confirms: bool = False,
    threads: int | None = 1,
) -> bool:
    """Write a part of a region to one stored object.

    Parameters
    ----------
    array
        Array to write to.
    part
        The object, and the part of the region that it holds.
    values
        Values of the whole region.
    note
        Called with the stored bytes, piece by piece.
    waiting
        Held while a store is waited for, where that holds nobody else up.
    confirm
        Called where an object that is kept in part is absent, before anything is written; raises
        if that is because the array has gone.
    fence
        Called right before the object is put or removed; raises if that must not be.
    shared
        True if others may be writing other parts of the object, so that it is put on the condition
        that it has not changed since it was read. It is not removed then, because another writer
        may be about to put it back. The store must have conditional writes.
    confirms
        True to look whether a shared object was changed, if the store's word is not enough.
    threads
        Threads that may encode the chunks of a shard that is written as a whole; see `write_parts`.

    Returns
    -------
    bool
        False if all elements have the fill value and nothing is stored.

    Raises
    ------
    ConditionalWriteError
        If the object is shared, and the store has no conditional writes, or others have been faster
        again and again.
    UnknownCodecError
        If the array is read-only because unknown codecs were skipped.
    CorruptObjectError
        If existing elements are kept and do not decode.
    """
    meta = array.meta
    if meta.skipped or meta.codecs.skipped:
        meta.check_writable(array.where)
    elements = view_region(values, part.out)
    bound = meta.bound(part.coords)
    if elements.shape == bound.spec.shape:
        return write_object(array, part.coords, elements, note, waiting, fence, threads)
    if shared:
        return _write_shared(array, part, elements, note, confirm, fence, confirms=confirms)
    key = array.key(part.coords)
    stored = None if part.whole else _stored(array.store, key, bound)
    if stored is None and not part.whole and confirm is not None:
        confirm()
        if confirm.may_be_there():
            stored = _stored(array.store, key, bound)
    pieces = updated(array, part, elements, stored, threads)
    if pieces is not None:
        put_stream(array.store, key, pieces, note, waiting, fence)
        return True
    chunk = decoded(meta, part.coords, stored, array.where, key)
    chunk[part.inside] = elements
    return write_object(array, part.coords, chunk, note, waiting, fence, threads)


def _stored(store: Store, key: str, bound: BoundCodecChain) -> Buffer | None:
    """Return the bytes of an object; those of a chunk are valid until the thread borrows memory."""
    if not bound.partial:  # decoded at once, where a shard's are copied into the new one
        return get_start(store, key, bound.size.most + 1)
    (stored,) = store.get_ranges([(key, bound.wanted)])
    return stored


def write_object(
    array: WrittenArray,
    coords: Sequence[int],
    elements: np.ndarray,
    note: Callable[[Buffer], None] | None = None,
    waiting: AbstractContextManager[None] | None = None,
    fence: Callable[[], None] | None = None,
    threads: int | None = 1,
) -> bool:
    """Write as `write_object_part`, given all elements of an object, beyond the array too.

    The caller must have checked that the array can be written.
    """
    key = array.key(coords)
    if array.meta.is_all_fill(elements):
        if fence is not None:
            fence()
        remove(array.store, key)
        return False
    pieces = array.meta.bound(coords).pieces(elements, threads)
    put_stream(array.store, key, pieces, note, waiting, fence)
    return True


def _write_shared(
    array: WrittenArray,
    part: Part,
    elements: np.ndarray,
    note: Callable[[Buffer], None] | None,
    confirm: Confirmation | None,
    fence: Callable[[], None] | None,
    *,
    confirms: bool,
) -> bool:
    wanted = array.meta.bound(part.coords).wanted

    def change(stored: Buffer | None) -> list[Buffer] | None:
        if stored is None and not part.whole and confirm is not None:
            confirm()
        return _changed(array, part, elements, stored)

    key = array.key(part.coords)
    buffers = swap_object(array.store, key, change, array.where, fence, wanted, confirms)
    if note is not None:
        for buffer in buffers or ():
            note(buffer)
    return buffers is not None


def swap_object(
    store: Store,
    key: str,
    change: Callable[[Buffer | None], list[Buffer] | None],
    where: str,
    fence: Callable[[], None] | None = None,
    wanted: Range = WHOLE,
    confirms: bool = False,
) -> list[Buffer] | None:
    """Read an object, and put a changed one if it has not changed meanwhile; else read it again.

    Parameters
    ----------
    store, key
        Its location; the store has conditional writes.
    change
        Returns the bytes to put for those that are there, if any; None to put nothing.
    where
        Store and path of the array, for messages.
    fence
        Called right before the object is put; raises if that must not be.
    wanted
        Bytes to read; `change` refuses an object that has more than a correct one.
    confirms
        True to look at the object once more when it was put.

    Returns
    -------
    list of buffers or None
        The bytes stored, or None.

    Raises
    ------
    ConditionalWriteError
        If the store has no conditional writes, or others have been faster again and again.
    StoreError
        If the store acknowledges the put, and has the old object (`confirms`).
    """
    conditional = as_cas_store(store)
    refusals = Refusals(f"the stored object {key!r} of {where}")
    refused: Hashable = None
    unexplained = 0
    for number in range(_ATTEMPTS):
        pause_before(unexplained)
        stored, tag = conditional.get_tagged(key, wanted)
        buffers = change(stored)
        if buffers is None:
            return None
        if number and stored is not None and tag != refused and _is_same(buffers, stored):
            return buffers  # the put that was refused has been made, or another one like it
        refused = tag
        if fence is not None:
            fence()
        if conditional.set_if(key, buffers, tag):
            is_old = confirms and conditional.get_tagged(key, wanted)[1] == tag
            if is_old and (stored is None or b"".join(buffers) != stored):
                raise StoreError(
                    f"{where}: the store acknowledged a change of {key!r}, expected another object "
                    f"than before, got {'none' if stored is None else 'the old one'}. It has lost "
                    "the change. Look at the store, then write again with the same call."
                )
            return buffers
        unexplained = refusals.note((tag,))
    raise ConditionalWriteError(
        f"the stored object {key!r} of {where} was changed by other jobs {_ATTEMPTS} times while "
        "this one tried to. Run the job again when they have ended."
    )


def _is_same(buffers: Sequence[Buffer], stored: Buffer) -> bool:
    """True if buffers, one after the other, are a value."""
    view, start = memoryview(stored).cast("B"), 0
    for buffer in buffers:
        if view[start : start + len(buffer)] != memoryview(buffer).cast("B"):
            return False
        start += len(buffer)
    return start == len(view)


def _changed(
    array: WrittenArray, part: Part, own: np.ndarray, stored: Buffer | None
) -> list[Buffer] | None:
    """Return the bytes of an object after a part has changed; None if nothing is to be stored."""
    pieces = updated(array, part, own, stored)
    if pieces is not None:
        with SegmentedBuffer() as gathered:
            for piece in pieces:
                gathered.add(piece)
        return gathered.buffers()
    chunk = decoded(array.meta, part.coords, stored, array.where, array.key(part.coords))
    chunk[part.inside] = own
    if stored is None and array.meta.is_all_fill(chunk):
        return None
    return array.meta.bound(part.coords).encode(chunk)


def updated(
    array: WrittenArray,
    part: Part,
    elements: np.ndarray,
    stored: Buffer | None,
    threads: int | None = 1,
) -> Iterator[Buffer] | None:
    """Return the bytes of an object after a part of it has changed; None if all must be decoded.

    Chunks of a shard outside the part are neither decoded nor made: their bytes are copied.

    Parameters
    ----------
    array
        Array that the object belongs to.
    part
        The object, and the part of it that changes.
    elements
        New elements of the part.
    stored
        Bytes of the object as it is; None if it is not stored, or nothing of it stays.
    threads
        As for `write_object_part`.

    Raises
    ------
    CorruptObjectError
        If an index, or a chunk that changes in part, does not decode; while pieces are taken, too.
    """
    coords = tuple(part.coords)
    try:
        bound = array.meta.bound(coords)
        if stored is not None:
            bound.check_length(len(stored))
        pieces = bound.updated(stored, part.inside, elements, threads)
    except CorruptObjectError as error:
        raise error.at(array.where, array.key(coords), coords) from error
    return None if pieces is None else _located(pieces, array, coords)


def _located(
    pieces: Iterator[Buffer], array: WrittenArray, coords: tuple[int, ...]
) -> Iterator[Buffer]:
    try:
        yield from pieces
    except CorruptObjectError as error:
        raise error.at(array.where, array.key(coords), coords) from error


def decoded(
    meta: ArrayMeta, coords: Sequence[int], stored: Buffer | None, where: str, key: str
) -> np.ndarray:
    """Return all elements of a stored object, in new memory.

    Parameters
    ----------
    meta
        Metadata of the array.
    coords
        Coordinates of the object.
    stored
        Its bytes; None if there is none.
    where, key
        The array and the object, for messages.

    Raises
    ------
    CorruptObjectError
        If it does not decode.
    """
    bound = meta.bound(coords)
    if stored is None:
        return meta.full_of_fill(bound.spec.shape)
    chunk = np.empty(bound.spec.shape, meta.dtype)
    try:
        bound.decode(stored, None, chunk, _PLAIN)
    except CorruptObjectError as error:
        raise error.at(where, key, tuple(coords)) from error
    return chunk
