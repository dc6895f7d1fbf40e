"""Arrays whose documents differ in nothing but their lengths, names and attributes.

The arrays of a hierarchy often have one data type, one grid and one list of codecs. What these
mean, and whether they fit together, is found out once; what other documents say of them is compared
byte for byte. What depends on the lengths is made, and checked, for every array.

The cache is bounded, holds values only, and is the same for whoever asks: a document is either one
that was read before, or it is read.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid import Fixed, Grid, Shape
from zarr_dask.members import is_lengths

__all__ = ["MOST_KNOWN", "as_bytes", "from_bytes", "like", "usual_shape"]

MOST_KNOWN = 256
"""Kinds of arrays that are kept by each format."""
_MOST_BYTES = 1 << 13
"""Of the document of an array that is kept."""
_VERSION = 2  # of marshal: later ones write equal values in several ways


def as_bytes(common: dict[str, Any]) -> bytes | None:
    """A JSON object as bytes that no other one has: types, order and spelling count; None if large.

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
    """The JSON object that `as_bytes` was given."""
    document: dict[str, Any] = marshal.loads(key)  # noqa: S302  (made here, never read from a store)
    return document


def usual_shape(shape: Any) -> TypeGuard[list[int]]:
    """Whether a member gives the lengths of an array that has elements."""
    return is_lengths(shape) and 0 not in shape


def like(
    known: ArrayMeta,
    shape: Sequence[int],
    attributes: Mapping[str, Any],
    names: tuple[str | None, ...] | None,
) -> ArrayMeta:
    """An array like another one, of other lengths, cut into the same cells."""
    grid = _grid(known.grid.largest_cell, tuple(shape))
    return known.in_other_lengths(grid, attributes, names)


@lru_cache(maxsize=MOST_KNOWN)
def _grid(cells: Shape, shape: Shape) -> Grid:
    """Cells of one shape in an array of some lengths, which those of one group often share."""
    return Grid(tuple([Fixed(size, n) for size, n in zip(cells, shape, strict=True)]))
