"""Cache of parsed metadata for arrays that differ only in lengths, names and attributes.

The arrays of a hierarchy often share one data type, one grid and one list of codecs. These are
parsed and checked once; the documents of other arrays are compared with them byte for byte.
Everything that depends on the lengths is made, and checked, for every array.

The cache is bounded, holds values only, and does not depend on the caller: a document either equals
one that was read before, or it is parsed.

Compact serialisation of a node's metadata: an array is part of each of its tasks.

The bytes are a compressed pickle, made and read by this package only. Unpacking is cached per
process: all tasks of an array share one `ArrayMeta`, and with it the codecs that are bound to it.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard
from zlib import compress, decompress

from zarr_dask._util.json_fields import is_lengths
from zarr_dask.formats.base import ArrayMeta, Format, ReadOptions
from zarr_dask.grid.grid import Fixed, Grid, Shape

__all__ = [
    "MOST_KNOWN",
    "Described",
    "as_bytes",
    "from_bytes",
    "is_plain_shape",
    "pack",
    "unpack",
    "with_shape",
]


MOST_KNOWN = 256
"""Maximum number of kinds of arrays cached by each format."""
_MOST_BYTES = 1 << 13
"""Maximum size of a cached document."""
_VERSION = 2  # of marshal: later versions write equal values in several ways


def as_bytes(common: dict[str, Any]) -> bytes | None:
    """Serialise a JSON object to unique bytes: types, order and spelling count; None if large.

    Examples
    --------
    >>> as_bytes({"a": 1}) == as_bytes({"a": True}), as_bytes({"a": 1}) == as_bytes({"a": 1.0})
    (False, False)
    """
    try:
        key = marshal.dumps(common, _VERSION)
    except ValueError:  # nested too deeply
        return None
    return key if len(key) <= _MOST_BYTES else None


def from_bytes(key: bytes) -> dict[str, Any]:
    """Return the JSON object that was given to `as_bytes`."""
    document: dict[str, Any] = marshal.loads(key)  # noqa: S302  (made here, never read from a store)
    return document


def is_plain_shape(shape: Any) -> TypeGuard[list[int]]:
    """True if a value is a valid shape of an array with elements."""
    return is_lengths(shape) and 0 not in shape


def with_shape(
    known: ArrayMeta,
    shape: Sequence[int],
    attributes: Mapping[str, Any],
    names: tuple[str | None, ...] | None,
) -> ArrayMeta:
    """Return an array like another one with other lengths, cut into the same cells."""
    grid = _grid(known.grid.largest_cell, tuple(shape))
    return known.with_shape(grid, attributes, names)


@lru_cache(maxsize=MOST_KNOWN)
def _grid(cells: Shape, shape: Shape) -> Grid:
    """Return a grid with cells of one shape; cached, because arrays of a group often share it."""
    return Grid(tuple([Fixed(size, n) for size, n in zip(cells, shape, strict=True)]))


Described = tuple[ArrayMeta, Format, ReadOptions]
"""Metadata, their format, and the options that they were read with."""


def pack(described: Described) -> bytes:
    """Serialise metadata to bytes."""
    return compress(pickle.dumps(described, protocol=5), 9)


@lru_cache(maxsize=256)
def unpack(packed: bytes) -> Described:
    """Return the packed metadata; the same objects for the same bytes, cached for the last 256."""
    described: Described = pickle.loads(decompress(packed))  # noqa: S301  (see `pack`)
    return described
