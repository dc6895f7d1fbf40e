"""Stored objects that several jobs write, each its own part of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zarr_dask._util.buffers import SegmentedBuffer
from zarr_dask.array.array import Array
from zarr_dask.array.writer import decoded, updated
from zarr_dask.errors import ConditionalWriteError, CorruptObjectError
from zarr_dask.grid.grid import Part, view_region
from zarr_dask.stores.base import Buffer, supports_cheap_random_reads
from zarr_dask.stores.compare_and_swap import as_cas_store

__all__ = ["cas_update_part"]

_ATTEMPTS = 1000
"""Maximum number of attempts. Each failure means that another job has succeeded, so at most this
many jobs may share an object.
"""


def cas_update_part(
    array: Array,
    part: Part,
    values: np.ndarray,
    confirm: Callable[[], None],
    fence: Callable[[], None] | None = None,
) -> list[Buffer] | None:
    """Write a part of a stored object while other jobs may be writing other parts of it.

    The object is read, changed, and put back if it has not changed since; else it is read again. If
    there was an object before, it is stored even if all values are the fill value. It is not
    removed, because another job may be about to put it back.

    Parameters
    ----------
    array
        Array in a store with conditional writes.
    part
        The object, and the part of it to write.
    values
        Of the whole region.
    confirm
        Called where the object is absent; see `write_object_part`.
    fence
        Called right before the object is put; raises if that must not be.

    Returns
    -------
    list of buffers or None
        The bytes stored; None if there was no object and all elements have the fill value.

    Raises
    ------
    ConditionalWriteError
        If the store has no conditional writes, or other jobs have been faster again and again.
    CorruptObjectError
        If the existing object cannot be decoded.
    """
    key = array.key(part.coords)
    store = as_cas_store(array.store)
    own = view_region(values, part.out)
    if supports_cheap_random_reads(array.store):
        _check_length(array, part, array.store.size(key) or 0)
    for _ in range(_ATTEMPTS):
        stored, tag = store.get_tagged(key)
        if stored is None:
            confirm()
        buffers = _changed(array, part, own, stored)
        if buffers is None:
            return None
        if fence is not None:
            fence()
        if store.set_if(key, buffers, tag):
            return buffers
    raise ConditionalWriteError(
        f"the stored object {key!r} of {array.where} was changed by other jobs {_ATTEMPTS} times "
        "while this one tried to. Run the job again when they have ended."
    )


def _check_length(array: Array, part: Part, nbytes: int) -> None:
    """Raise before an object is read that is longer than any correct one."""
    try:
        array.meta.bound(part.coords).check_length(nbytes)
    except CorruptObjectError as error:
        raise error.at(array.where, array.key(part.coords), tuple(part.coords)) from error


def _changed(
    array: Array, part: Part, own: np.ndarray, stored: Buffer | None
) -> list[Buffer] | None:
    """Return the bytes of an object after a part has changed; None if nothing is to be stored."""
    pieces = None if stored is None else updated(array, part, own, stored)
    if pieces is not None:
        with SegmentedBuffer() as gathered:
            for piece in pieces:
                gathered.add(piece)
        return gathered.buffers()
    key = array.key(part.coords)
    chunk = decoded(array.meta, part.coords, stored, array.where, key)
    chunk[part.inside] = own
    if stored is None and array.meta.is_all_fill(chunk):
        return None
    return array.meta.bound(part.coords).encode(chunk)
