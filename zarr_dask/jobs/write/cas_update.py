"""Stored objects that several jobs write, each its own part of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.array.writer import decoded
from zarr_dask.errors import ConditionalWriteError
from zarr_dask.grid.grid import Part, cut
from zarr_dask.stores.base import Buffer
from zarr_dask.stores.compare_and_swap import conditional

__all__ = ["change_part"]

_ATTEMPTS = 1000
"""Maximum number of attempts. Each failure means that another job has succeeded, so at most this
many jobs may share an object.
"""


def change_part(
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
        Called where the object is absent; see `write_part`.
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
    store = conditional(array.store)
    own = cut(values, part.out)
    for _ in range(_ATTEMPTS):
        stored, tag = store.get_tagged(key)
        if stored is None:
            confirm()
        chunk = decoded(array.meta, part.coords, stored, array.where, key)
        chunk[part.inside] = own
        if stored is None and array.meta.is_unwritten(chunk):
            return None
        buffers = array.meta.bound(part.coords).encode(chunk)
        if fence is not None:
            fence()
        if store.set_if(key, buffers, tag):
            return buffers
    raise ConditionalWriteError(
        f"the stored object {key!r} of {array.where} was changed by other jobs {_ATTEMPTS} times "
        "while this one tried to. Run the job again when they have ended."
    )
