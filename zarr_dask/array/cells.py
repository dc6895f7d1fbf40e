"""Grids as users pass them: in lengths, names, sizes in bytes, or left to be chosen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.errors import GridError
from zarr_dask.grid.grid import Cells, Shape

__all__ = [
    "CHUNK_BYTES",
    "INNER_CHUNK_BYTES",
    "SHARD_BYTES",
    "auto_chunks",
    "by_axis",
    "chunks_in_words",
    "dividing_chunks",
    "is_in_words",
    "items_by_axis",
    "parse_chunks_argument",
    "shards_in_words",
    "whole_chunks",
    "with_auto_lengths",
]

CHUNK_BYTES = 4 << 20
"""Bytes of a chunk that is an object of its own, by default."""
INNER_CHUNK_BYTES = 1 << 20
"""Bytes of a chunk in a shard, by default."""
SHARD_BYTES = 64 << 20
"""Bytes of a shard of ``shards="auto"``."""
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(|[kmgt]|[kmgt]i)b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def is_in_words(given: Any) -> bool:
    """True for grids that are not given in lengths: ``"auto"``, ``"10MB"``, or False."""
    return isinstance(given, str) or given is False


def chunks_in_words(given: Any, shape: Shape, itemsize: int, nbytes: int = CHUNK_BYTES) -> Shape:
    """Return the shape of a chunk that is not given in lengths.

    Parameters
    ----------
    given
        ``"auto"`` for chunks of about `nbytes`, a size such as ``"10MB"``, or False for one chunk
        that is the whole array.
    shape, itemsize
        Of the array.
    nbytes
        What ``"auto"`` means.

    Raises
    ------
    GridError
        If a text is no size.

    Examples
    --------
    >>> chunks_in_words("1MB", (1000, 1000), 4), chunks_in_words(False, (10, 0), 4)
    ((500, 500), (10, 1))
    """
    if given is False:
        return tuple(max(n, 1) for n in shape)
    budget = nbytes if given == "auto" else _bytes(given, "chunks")
    return auto_chunks(shape, itemsize, budget)


def with_auto_lengths(
    given: Any, shape: Shape, itemsize: int, names: Sequence[str | None], nbytes: int
) -> Any:
    """Return chunks with lengths for their "auto" items, and -1 for None, as dask has them.

    Parameters
    ----------
    given
        Items by position or by name; all else is returned unchanged.
    shape, itemsize, names
        Of the array.
    nbytes
        Bytes of a chunk that the lengths lead to.

    Examples
    --------
    >>> with_auto_lengths((10, "auto"), (1000, 1000), 4, ("y", "x"), 4000)
    (10, 100)
    >>> with_auto_lengths({"x": "auto", "y": None}, (1000, 1000), 4, ("y", "x"), 4000)
    {1: 1, 0: -1}
    """
    if isinstance(given, Mapping):
        by_position = by_axis(given, names, len(shape), "chunks", "the new array")
        items = tuple(by_position.get(axis, "auto") for axis in range(len(shape)))
        lengths = with_auto_lengths(items, shape, itemsize, names, nbytes)
        return {axis: lengths[axis] for axis in by_position}
    if not isinstance(given, list | tuple) or len(given) != len(shape):
        return given
    if not any(item is None or isinstance(item, str) for item in given):
        return given
    items = tuple(-1 if item is None else item for item in given)
    auto = [axis for axis, item in enumerate(items) if isinstance(item, str) and item == "auto"]
    others = [(items[axis], n) for axis, n in enumerate(shape) if axis not in auto]
    if not auto or not all(isinstance(item, int | np.integer) for item, _ in others):
        return items
    fixed = prod(min(item, n) if item > 0 else max(n, 1) for item, n in others)
    found = auto_chunks(tuple(shape[axis] for axis in auto), itemsize * max(fixed, 1), nbytes)
    lengths = dict(zip(auto, found, strict=True))
    return tuple(lengths.get(axis, item) for axis, item in enumerate(items))


def shards_in_words(given: Any, shape: Shape, itemsize: int, chunks: Shape) -> Shape:
    """Return the shape of a shard that is not given in lengths: several chunks, near-cubic.

    Parameters
    ----------
    given
        ``"auto"`` for shards of about 64 MiB, or a size such as ``"256MB"``.
    shape, itemsize
        Of the array.
    chunks
        Shape of a chunk.

    Raises
    ------
    GridError
        If a text is no size.

    Examples
    --------
    >>> shards_in_words("256kB", (1000, 1000), 4, (64, 64))
    (256, 192)
    """
    budget = SHARD_BYTES if given == "auto" else _bytes(given, "shards")
    counts = tuple(-(-max(n, 1) // chunk) for n, chunk in zip(shape, chunks, strict=True))
    several = auto_chunks(counts, itemsize * prod(chunks), budget)
    return tuple(count * chunk for count, chunk in zip(several, chunks, strict=True))


def items_by_axis(
    given: Any, names: Sequence[str | None], present: Cells, what: str, where: str
) -> Any:
    """Return the items of all dimensions for a mapping; other grids are unchanged.

    Raises
    ------
    GridError
        If it names unknown dimensions, or one of them twice.
    """
    if not isinstance(given, Mapping):
        return given
    found = by_axis(given, names, len(present), what, where)
    return tuple(found.get(axis, item) for axis, item in enumerate(present))


def whole_chunks(shards: Cells, chunks: Cells, given: Any) -> Cells:
    """Return shards, those of a whole dimension (-1) rounded up to whole chunks.

    Examples
    --------
    >>> whole_chunks((10, 6), (4, 3), (-1, 6))
    (12, 6)
    """
    items = given if isinstance(given, list | tuple) else (given,) * len(shards)
    return tuple(
        -(-length // chunk) * chunk
        if item == -1 and isinstance(length, int) and isinstance(chunk, int)
        else length
        for length, chunk, item in zip(shards, chunks, items, strict=True)
    )


def _bytes(text: str, what: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise GridError(
            f"{what}={text!r}: expected lengths, 'auto', or a size such as '10MB' or '1MiB'."
        )
    return max(int(float(match[1]) * {**_UNITS, **_BINARY}[match[2].lower()]), 1)


def auto_chunks(shape: Shape, itemsize: int, nbytes: int) -> Shape:
    """Return near-cubic chunks of about `nbytes`, none longer than the array.

    Examples
    --------
    >>> auto_chunks((1000, 1000, 3), 4, 4 << 20)
    (591, 591, 3)
    """
    chunk = [max(n, 1) for n in shape]
    budget = max(nbytes // itemsize, 1)
    for remaining, axis in enumerate(sorted(range(len(chunk)), key=chunk.__getitem__)):
        edge = max(round(budget ** (1 / (len(chunk) - remaining))), 1)
        chunk[axis] = min(chunk[axis], edge)
        budget = max(budget // chunk[axis], 1)
    return tuple(chunk)


def dividing_chunks(shards: Shape, itemsize: int, nbytes: int) -> Shape:
    """Return the largest near-cubic chunks of about `nbytes` or less that divide the shards.

    Examples
    --------
    >>> dividing_chunks((256, 256, 256), 4, 1 << 20)
    (64, 64, 64)
    """
    target = auto_chunks(shards, itemsize, nbytes)
    return tuple(
        max(d for d in range(1, limit + 1) if length % d == 0)
        for length, limit in zip(shards, target, strict=True)
    )


def parse_chunks_argument(
    given: Any, shape: Shape, names: Sequence[str | None], present: Cells, what: str, where: str
) -> Cells:
    """Return the lengths or sizes of the cells of a grid.

    Parameters
    ----------
    given
        A length for all dimensions, items for all of them, or a mapping from names or positions
        to items. An item is a length, -1 for the whole dimension, or the sizes of all cells.
    shape
        Of the array.
    names
        Of its dimensions, as far as they have any.
    present
        Used for dimensions that a mapping does not name.
    what, where
        For messages.

    Raises
    ------
    GridError
        If that is not a grid of such an array, or names a dimension twice.

    Examples
    --------
    >>> names, default = ("t", "y", "x"), (1, 2, 3)
    >>> parse_chunks_argument({"t": -1, 1: 5}, (10, 20, 30), names, default, "chunks", "here")
    (10, 5, 3)
    """
    ndim = len(shape)
    if isinstance(given, Mapping):
        given_by = by_axis(given, names, ndim, what, where)
        items: Sequence[Any] = [given_by.get(axis, present[axis]) for axis in range(ndim)]
    elif isinstance(given, int | np.integer):
        items = [given] * ndim
    else:
        items = list(given) if isinstance(given, Iterable) else [given]
    if len(items) != ndim or not all(map(_is_cell, items)):
        raise GridError(
            f"{what}={given!r}: expected {ndim} lengths of at least 1, or -1 for a whole "
            f"dimension, or the sizes of all of them, for the shape {shape}; or one of 'auto', "
            "a size such as '10MB', and False, for all of them."
        )
    return tuple(
        tuple(map(int, item))
        if isinstance(item, Sequence)
        else (max(extent, 1) if item == -1 else int(item))
        for item, extent in zip(items, shape, strict=True)
    )


def by_axis(
    given: Mapping[Any, Any], names: Sequence[str | None], ndim: int, what: str, where: str
) -> dict[int, Any]:
    """Return items by position, from a mapping of names or positions to items.

    Raises
    ------
    GridError
        If it names unknown dimensions, or one of them twice.
    """
    known = [*(n for n in names if n is not None), *range(ndim)]
    unknown = [key for key in given if key not in known]
    if unknown:
        called = [n for n in names if n is not None]
        has = (
            f"it has {called}"
            if called
            else f"its {ndim} dimensions have no names: use 0 to {ndim - 1}"
        )
        raise GridError(
            f"{what} names {unknown}, which are no dimensions of {where}; {has}."
            f"{did_you_mean(unknown[0], called)}"
        )
    named = list(names)
    keys: dict[int, Any] = {}
    for key in given:
        axis = named.index(key) if isinstance(key, str) else int(key)
        if isinstance(key, str) and named.count(key) > 1:
            raise GridError(
                f"{what} names {key!r}, which {named.count(key)} dimensions of {where} are called; "
                f"it has {named}. Give positions."
            )
        if axis in keys:
            raise GridError(
                f"{what} names one dimension of {where} twice, as {keys[axis]!r} and as {key!r}."
            )
        keys[axis] = key
    return {axis: given[key] for axis, key in keys.items()}


def _is_cell(item: Any) -> bool:
    """True if an item is a length, -1, or the sizes of all cells of a dimension."""
    if isinstance(item, Sequence) and not isinstance(item, str):
        return len(item) > 0 and all(_is_length(size) and size >= 0 for size in item)
    return _is_length(item) and (item == -1 or item >= 1)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
