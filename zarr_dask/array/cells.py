"""Grids as users pass them: in lengths, names, sizes in bytes, or left to be chosen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isqrt, prod
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
    "is_by_dimension",
    "is_in_words",
    "items_by_axis",
    "one_by_one",
    "parse_chunks_argument",
    "shards_in_words",
    "size_in_bytes",
    "whole_chunks",
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


def is_by_dimension(given: Any) -> bool:
    """True for grids with an item to be parsed: by name, -1, None, ``"auto"`` or ``"10MB"``."""
    items = given if isinstance(given, list | tuple) else [given]
    return isinstance(given, Mapping | bool) or any(
        item is None or isinstance(item, str) or (_is_length(item) and item == -1) for item in items
    )


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
    budget = nbytes if given == "auto" else size_in_bytes(given, "chunks")
    return auto_chunks(shape, itemsize, budget)


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
    budget = SHARD_BYTES if given == "auto" else size_in_bytes(given, "shards")
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
    """Return shards of whole chunks: -1 is rounded up to them, a size or "auto" down.

    Examples
    --------
    >>> whole_chunks((10, 6, 11), (4, 3, 5), (-1, 6, "auto"))
    (12, 6, 10)
    """

    def rounded(length: Any, chunk: Any, item: Any) -> Any:
        if not (isinstance(length, int) and isinstance(chunk, int)):
            return length
        if isinstance(item, str):
            return max(length // chunk, 1) * chunk
        return -(-length // chunk) * chunk if item == -1 else length

    return tuple(map(rounded, shards, chunks, one_by_one(given, len(shards))))


def one_by_one(given: Any, ndim: int) -> tuple[Any, ...]:
    """Return an item for each dimension; what is no sequence is the same for all of them.

    Examples
    --------
    >>> one_by_one(-1, 2), one_by_one([3, "auto"], 2)
    ((-1, -1), (3, 'auto'))
    """
    is_one = given is None or isinstance(given, str | int | np.integer)
    return (given,) * ndim if is_one else tuple(given)


def size_in_bytes(text: str, what: str) -> int:
    """Return the number of bytes that a text such as ``"10MB"`` stands for.

    Raises
    ------
    GridError
        If it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is not None and not match[2] and not text.strip().upper().endswith("B"):
        raise GridError(
            f"{what}={text!r}: a size has a unit, as in '{text.strip()}MB' or '{text.strip()}B'; a "
            "length is a number, not a text."
        )
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

    Lengths with few divisors, such as primes, may leave them far smaller than that. Then they grow
    along the last axes, and are no longer near-cubic. Chunks of some elements would be worse than
    large ones.

    Examples
    --------
    >>> dividing_chunks((256, 256, 256), 4, 1 << 20)
    (64, 64, 64)
    >>> dividing_chunks((4001, 4001), 4, 1 << 20), dividing_chunks((1_000_003,), 4, 1 << 20)
    ((1, 4001), (1000003,))
    """
    target = auto_chunks(shards, itemsize, nbytes)
    divisors = [_divisors(max(n, 1)) for n in shards]
    found = [max(filter(limit.__ge__, ds)) for ds, limit in zip(divisors, target, strict=True)]
    while (size := prod(found) * itemsize) * _FAR_SMALLER < nbytes:
        most = nbytes if size * _TINY >= nbytes else size * max(shards)
        for axis, ds in reversed([*enumerate(divisors)]):
            longer = next((d for d in ds if d > found[axis]), 0)
            if longer and size // found[axis] * longer <= most:
                found[axis] = longer
                break
        else:
            break
    return tuple(found)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


_FAR_SMALLER = 8
"""Times that a chunk may be smaller than it should be, before it is made longer."""
_TINY = 4096
"""The same, before it is made longer whatever its size is then."""


def parse_chunks_argument(
    given: Any,
    shape: Shape,
    names: Sequence[str | None],
    present: Cells,
    what: str,
    where: str,
    *,
    itemsize: int,
    nbytes: int = CHUNK_BYTES,
) -> Cells:
    """Return the lengths or sizes of the cells of a grid.

    Parameters
    ----------
    given
        A length for all dimensions, items for all of them, or a mapping from names or positions
        to items. An item is a length, -1 or None for the whole dimension, ``"auto"``, a size in
        bytes of the whole cell, or the sizes of all cells.
    shape
        Of the array.
    names
        Of its dimensions, as far as they have any.
    present
        Used for dimensions that a mapping does not name.
    what, where
        For messages.
    itemsize
        Bytes of an element.
    nbytes
        Bytes of a cell that ``"auto"`` leads to.

    Raises
    ------
    GridError
        If that is not a grid of such an array, or names a dimension twice.

    Examples
    --------
    >>> names, present = ("t", "y", "x"), (1, 2, 3)
    >>> rest = {"what": "chunks", "where": "here", "itemsize": 4}
    >>> parse_chunks_argument({"t": -1, 1: 5}, (10, 20, 30), names, present, **rest)
    (10, 5, 3)
    >>> parse_chunks_argument({"t": "4kB"}, (10_000, 20, 10), names, (1, 20, 10), **rest)
    (5, 20, 10)
    >>> parse_chunks_argument((10, "auto"), (100, 10_000_000), ("y", "x"), (1, 1), **rest)
    (10, 104857)
    """
    ndim = len(shape)
    if isinstance(given, Mapping):
        given_by = by_axis(given, names, ndim, what, where)
        items = [given_by.get(axis, present[axis]) for axis in range(ndim)]
    elif isinstance(given, int | np.integer):
        items = [given] * ndim
    else:
        items = list(given) if isinstance(given, Iterable) else [given]
    items = [-1 if item is None else item for item in items]
    chosen = [axis for axis, item in enumerate(items) if isinstance(item, str)]
    cells = [item for axis, item in enumerate(items) if axis not in chosen]
    if len(items) != ndim or not all(map(_is_cell, cells)):
        raise GridError(
            f"{what}={given!r}: expected {ndim} lengths of at least 1, for the shape {shape}; or "
            "for a dimension -1 (all of it), 'auto', a size of the whole chunk such as '10MB', or "
            "the sizes of all chunks; or one of 'auto', a size, and False, for all dimensions."
        )
    lengths = [
        tuple(map(int, item))
        if isinstance(item, Sequence)
        else (max(extent, 1) if item == -1 else int(item))
        for item, extent in zip(cells, _others(shape, chosen), strict=True)
    ]
    if chosen:
        fixed = prod(max(one) if isinstance(one, tuple) else one for one in lengths)
        budget = _budget([items[axis] for axis in chosen], nbytes, given, what)
        free = tuple(shape[axis] for axis in chosen)
        found = auto_chunks(free, itemsize * max(fixed, 1), budget)
        for axis, length in zip(chosen, found, strict=True):
            lengths.insert(axis, length)
    return tuple(lengths)


def _others(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def _budget(items: Sequence[str], nbytes: int, given: Any, what: str) -> int:
    """Return the bytes of a cell of which some lengths are "auto" or follow from its size."""
    sizes = {size_in_bytes(item, what) for item in items if item != "auto"}
    if len(sizes) > 1:
        raise GridError(
            f"{what}={given!r}: a size is that of the whole chunk, so that it is given once; the "
            "other dimensions take lengths, -1 or 'auto'."
        )
    return sizes.pop() if sizes else nbytes


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
