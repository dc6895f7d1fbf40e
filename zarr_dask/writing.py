"""How stored objects are made: the one way from elements in memory to what a store is given.

An object that is covered only in part is read, changed and written as a whole; no other writer may
work on it meanwhile. One whose elements all have the fill value is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from zarr_dask.codecs.base import Reading
from zarr_dask.errors import CorruptObjectError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid import Part, cut
from zarr_dask.stores.base import Buffer, Store

__all__ = ["WrittenArray", "decoded", "encode_part", "write_part"]


class WrittenArray(Protocol):
    """What writing needs to know of an array."""

    @property
    def store(self) -> Store:
        """Where the bytes go."""
        ...

    @property
    def meta(self) -> ArrayMeta:
        """What the metadata document says."""
        ...

    @property
    def where(self) -> str:
        """Store and path, for messages."""
        ...

    def key(self, coords: Sequence[int]) -> str:
        """Key of the stored object at some coordinates."""
        ...


def write_part(array: WrittenArray, part: Part, values: np.ndarray) -> int:
    """Write what lies in one stored object.

    Parameters
    ----------
    array
        Where to write.
    part
        Which object, and what of it.
    values
        Of the whole region.

    Returns
    -------
    int
        Bytes stored; 0 where all elements have the fill value and nothing is stored.

    Raises
    ------
    UnknownCodecError
        If the array can be read only, with steps skipped that are not known.
    CorruptObjectError
        If what is there is kept in part and does not decode.
    """
    key, buffers = array.key(part.coords), encode_part(array, part, values)
    if buffers is None:
        array.store.delete(key)
        return 0
    array.store.set(key, buffers)
    return sum(len(buffer) for buffer in buffers)


def encode_part(array: WrittenArray, part: Part, values: np.ndarray) -> list[Buffer] | None:
    """The bytes of one stored object; see `write_part`.

    Returns
    -------
    list of buffers or None
        Good until the same thread encodes again; None where all elements have the fill value,
        so that nothing is to be stored.

    Raises
    ------
    UnknownCodecError
        If the array can be read only, with steps skipped that are not known.
    CorruptObjectError
        If what is there is kept in part and does not decode.
    """
    meta = array.meta
    meta.check_writable(array.where)
    bound, elements = meta.bound(part.coords), cut(values, part.out)
    if elements.shape != bound.spec.shape:
        elements = _completed(array, part, elements)
    return None if meta.is_unwritten(elements) else bound.encode(elements)


def _completed(array: WrittenArray, part: Part, elements: np.ndarray) -> np.ndarray:
    """All elements of a stored object: what is there, or nothing yet, with these in their place."""
    key = array.key(part.coords)
    stored = None if part.whole else array.store.get(key)
    chunk = decoded(array.meta, part.coords, stored, array.where, key)
    chunk[part.inside] = elements
    return chunk


def decoded(
    meta: ArrayMeta, coords: Sequence[int], stored: Buffer | None, where: str, key: str
) -> np.ndarray:
    """All elements of a stored object, in new memory.

    Parameters
    ----------
    meta
        Of the array.
    coords
        Which object.
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
    chunk = meta.unwritten(bound.spec.shape)
    if stored is not None:
        try:
            bound.decode(stored, None, chunk, Reading())
        except CorruptObjectError as error:
            raise error.at(where, key, tuple(coords)) from error
    return chunk
