"""How elements are fetched: the one loop between stored objects and memory.

`read_region` reads a region of an array; `read_pieces` reads any pieces of any stored objects,
which is what selections are made of. Every stored object is one `Fetch`, whatever number of pieces
is taken of it: its bytes are asked for once, and so is the index of a shard.

Knows an array by its store, its metadata and how to read (`StoredArray`); codecs say which bytes
they need, and nothing but this module asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from zarr_dask.codecs.base import Cut
from zarr_dask.codecs.chain import fill_absent
from zarr_dask.codecs.fetch import answer
from zarr_dask.errors import CorruptObjectError
from zarr_dask.formats.base import ArrayMeta, ReadOptions
from zarr_dask.grid import Region, cut
from zarr_dask.pool import for_each
from zarr_dask.stores.base import Store, read_ranges

__all__ = ["Piece", "StoredArray", "read_pieces", "read_region"]


class StoredArray(Protocol):
    """What reading needs to know of an array."""

    @property
    def store(self) -> Store:
        """Where the bytes are."""
        ...

    @property
    def meta(self) -> ArrayMeta:
        """What the metadata document says."""
        ...

    @property
    def options(self) -> ReadOptions:
        """How to read."""
        ...

    @property
    def where(self) -> str:
        """Store and path, for messages."""
        ...

    def key(self, coords: Sequence[int]) -> str:
        """Key of the stored object at some coordinates."""
        ...


class Piece(NamedTuple):
    """What is taken of one stored object, and where it goes."""

    coords: tuple[int, ...]
    """Coordinates of the stored object."""
    inside: Region | None
    """Which of its elements; None for all of its declared shape."""
    out: np.ndarray
    """Memory of the shape of `inside`, of the array's data type."""
    whole: bool = False
    """Whether all of it that lies in the array is taken: its bytes are asked for at once."""


def read_region(
    array: StoredArray, region: Region, out: np.ndarray, threads: int | None = None
) -> None:
    """Put a region of an array into `out`, which has its shape and the array's data type."""

    def read(piece: Piece) -> None:
        _read_object(array, piece.coords, (piece,))

    pieces = (
        Piece(part.coords, part.inside, cut(out, part.out), part.whole)
        for part in array.meta.grid.parts(region)
    )
    for_each(read, pieces, threads)


def read_pieces(array: StoredArray, pieces: Iterable[Piece], threads: int | None = None) -> None:
    """Put pieces of stored objects where they belong.

    Parameters
    ----------
    array
        Where they are.
    pieces
        In any order; those of one stored object are read together, and a chunk that several of
        them meet is decoded once. Their memory must not overlap.
    threads
        1 for the calling thread only; by default the threads of this process, one per core.

    Raises
    ------
    CorruptObjectError
        If stored bytes do not decode; it names key and coordinates.
    ChunkMissingError
        If a chunk is absent and the array was opened with ``missing="error"``.
    StoreError
        If the store fails.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(1, 1), shards=(4, 3))
    >>> a[...] = np.arange(24).reshape(4, 6)
    >>> out = np.empty((2, 1, 1), "i2")
    >>> inside = (slice(2, 3, 1), slice(0, 1, 1))
    >>> read_pieces(a, [Piece((0, 1), inside, out[0]), Piece((0, 0), inside, out[1])])
    >>> out.ravel()
    array([15, 12], dtype=int16)
    """
    by_object: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        by_object.setdefault(piece.coords, []).append(piece)
    for_each(lambda item: _read_object(array, *item), by_object.items(), threads)


def _read_object(array: StoredArray, coords: tuple[int, ...], pieces: Sequence[Piece]) -> None:
    """Read some pieces of one stored object."""
    key = array.key(coords)
    bound = array.meta.bound(coords)
    reading = array.options.reading
    shape = bound.spec.shape
    cuts = [Cut(None if p.out.shape == shape else p.inside, p.out) for p in pieces]
    fetch = bound.read_cuts(cuts, reading, whole=any(piece.whole for piece in pieces))
    try:
        present = answer(fetch, lambda wanted: read_ranges(array.store, key, wanted))
    except CorruptObjectError as error:
        raise error.at(array.where, key, coords) from error
    if not present:
        what = f"{array.where}: the stored object {key!r} (chunk {coords})"
        for piece in pieces:
            fill_absent(piece.out, bound.spec, reading, what, array.meta.absence_hint)
