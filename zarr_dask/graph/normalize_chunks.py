"""The blocks that a reader requests: dask's forms of ``chunks=``, and some more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from dask import config
from dask.array.core import normalize_chunks
from dask.utils import parse_bytes

from zarr_dask.errors import GridError
from zarr_dask.grid.dask_blocks import (
    block_budget,
    bounded_blocks,
    check_count,
    elements_inside,
    merged_blocks,
    one_block_per_chunk,
    one_block_per_object,
)
from zarr_dask.grid.grid import Blocks, Grid, Shape
from zarr_dask.indexing.plan import blocks_of_selection_grid
from zarr_dask.indexing.transform import IndexTransform, axis_names

__all__ = ["blocks_of_selection", "normalize_blocks", "splits_objects"]

_MERGED_BYTES = 1 << 24
"""Maximum bytes of a block of small stored objects: two tasks request 64 of 512 kB at a time."""


def normalize_blocks(
    chunks: Any,
    grid: Grid,
    chunk_shape: Shape,
    itemsize: int,
    names: Sequence[str | None],
    *,
    merge: bool = False,
) -> Blocks:
    """Return the blocks that a reader requests.

    Parameters
    ----------
    chunks
        None, ``"shards"``, ``"chunks"``, ``"auto"``, or any form that dask accepts, with dimensions
        by position or by name.
    grid
        The stored objects.
    chunk_shape
        Shape of the unit of decoding.
    itemsize
        Bytes of an element in memory, as dask has no size for Python objects.
    names
        Names of the dimensions; empty if they have none.
    merge
        True to merge small stored objects where `chunks` is None, because requests are slow.

    Raises
    ------
    GridError
        If the array cannot be divided into these blocks.
    """
    if chunks is None:
        blocks = _merged(grid, itemsize) if merge else None
        return blocks or bounded_blocks(grid, chunk_shape, itemsize, _bytes_of_auto())
    try:
        wanted = _along_each(chunks, names, grid.ndim)
        return _blocks_along(wanted, grid, partial(_named, grid, chunk_shape), itemsize)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise _no_blocks(chunks, grid.shape, error) from error


def splits_objects(chunks: Any, grid: Grid, chunk_shape: Shape, itemsize: int) -> bool:
    """True if the default blocks are parts of stored objects, as no size was requested.

    Then many tasks read each object, and the index of a shard is worth caching.
    """
    if chunks is not None or grid.largest_cell == chunk_shape:
        return False
    return elements_inside(grid) * itemsize > _bytes_of_auto()


def blocks_of_selection(
    chunks: Any,
    transform: IndexTransform,
    grid: Grid,
    chunk_shape: Shape,
    itemsize: int,
    names: Sequence[str | None],
    *,
    merge: bool = False,
) -> Blocks:
    """Return the blocks that a reader of a selection requests.

    Parameters
    ----------
    chunks
        None, ``"shards"`` and ``"chunks"``: the selected part of each such block of the array. All
        other forms describe how to cut the selection; see `normalize_blocks`.
    transform
        The selection.
    grid, chunk_shape, itemsize, names
        As in `normalize_blocks`, for the whole array.
    merge
        As in `normalize_blocks`, for the selected parts of stored objects.

    Raises
    ------
    GridError
        If the selection cannot be divided into these blocks.
    """
    if chunks is None:
        if elements_inside(grid) * itemsize > _bytes_of_auto():
            blocks = normalize_blocks(None, grid, chunk_shape, itemsize, ())
            grid = Grid.of(grid.shape, blocks)
        blocks = blocks_of_selection_grid(transform, grid)
        merged = _merged(Grid.of(transform.shape, blocks), itemsize) if merge else None
        return merged or blocks
    selected = Grid.of(transform.shape, blocks_of_selection_grid(transform, grid))

    def named(name: str) -> Blocks:
        blocks = _named(grid, chunk_shape, name)
        return blocks_of_selection_grid(transform, Grid.of(grid.shape, blocks))

    try:
        wanted = _along_each(chunks, axis_names(transform, names), transform.ndim)
        return _blocks_along(wanted, selected, named, itemsize)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise _no_blocks(chunks, transform.shape, error) from error


def _merged(grid: Grid, itemsize: int) -> Blocks | None:
    """Return blocks of several stored objects each; None if objects are large, or few."""
    if not itemsize:
        return None
    limit = min(_bytes_of_auto(), _MERGED_BYTES)
    budget = block_budget(grid, itemsize, limit, remote=True)
    if 2 * elements_inside(grid) > budget:
        return None
    return tuple(merged_blocks(grid, dict(enumerate(grid.shape)), budget).values())


def _no_blocks(chunks: Any, shape: Shape, error: Exception) -> GridError:
    said = str(error)
    if "byte unit" in said:
        said += '; expected numbers, "auto", "shards", "chunks" or bytes such as "64 MiB"'
    return GridError(f"chunks={chunks!r} gives no blocks of shape {shape}: {said}")


def _named(grid: Grid, chunk_shape: Shape, name: str) -> Blocks:
    """Return the blocks with a name, "shards" or "chunks"."""
    return (
        one_block_per_object(grid) if name == "shards" else one_block_per_chunk(grid, chunk_shape)
    )


def _along_each(chunks: Any, names: Sequence[str | None], ndim: int) -> tuple[Any, ...]:
    """Return the requested sizes along each dimension."""
    if isinstance(chunks, Mapping):
        return _by_position(chunks, names, ndim)
    if isinstance(chunks, np.ndarray):
        chunks = chunks.tolist()
    if not isinstance(chunks, tuple | list):
        return (chunks,) * ndim
    if ndim == 1 and len(chunks) > 1 and not any(isinstance(one, str) for one in chunks):
        return (tuple(chunks),)  # sizes of all blocks, as dask accepts them
    if len(chunks) != ndim:
        raise ValueError(f"expected one item for each of {ndim} dimensions.")
    return tuple(chunks)


def _blocks_along(
    wanted: tuple[Any, ...], grid: Grid, blocks_named: Callable[[str], Blocks], itemsize: int
) -> Blocks:
    """Return the blocks, from the requested sizes along each dimension."""
    named = {name: blocks_named(name) for name in {*map(_text, wanted)} & {"shards", "chunks"}}
    limits = {axis: _byte_limit(one) for axis, one in enumerate(wanted) if _is_limit(one)}
    plain = tuple(
        named[one][axis] if _text(one) in named else (-1 if axis in limits else one)
        for axis, one in enumerate(wanted)
    )
    for one, extent in zip(plain, grid.shape, strict=True):
        _check_sizes(one, extent)
    blocks = list(normalize_chunks(plain, grid.shape, dtype=np.dtype((np.void, itemsize))))
    if limits:
        fixed = prod(max(sizes) for axis, sizes in enumerate(blocks) if axis not in limits)
        budget = min(limits.values()) // max(fixed * itemsize, 1)
        extents = {axis: grid.shape[axis] for axis in limits}
        for axis, sizes in merged_blocks(grid, extents, budget).items():
            blocks[axis] = sizes
    return tuple(blocks)


def _check_sizes(one: Any, extent: int) -> None:
    """Raise for sizes of blocks along a dimension that dask would misread or try to list."""
    numbers = one if isinstance(one, tuple | list) else (one,)
    if any(isinstance(size, int | np.integer) and size < 0 for size in numbers) and one != -1:
        raise ValueError(f"{one} is below 0; -1 stands for all of a dimension.")
    if isinstance(one, int | np.integer) and one == 0 and extent:
        raise ValueError("blocks of 0 elements do not fill a dimension.")
    if isinstance(one, int | np.integer) and one > 0:
        check_count(-(-extent // int(one)), "blocks")


def _text(one: Any) -> str:
    return one if isinstance(one, str) else ""


def _is_limit(one: Any) -> bool:
    return isinstance(one, str) and one not in {"shards", "chunks"}


def _byte_limit(text: str) -> int:
    """Return the bytes of ``"auto"``, or of a text such as ``"64 MiB"``."""
    return _bytes_of_auto() if text == "auto" else int(parse_bytes(text))


def _bytes_of_auto() -> int:
    return int(parse_bytes(config.get("array.chunk-size")))


def _by_position(
    chunks: Mapping[Any, Any], names: Sequence[str | None], ndim: int
) -> tuple[Any, ...]:
    places = {name: axis for axis, name in enumerate(names) if name is not None}
    unknown = [key for key in chunks if key not in places and key not in range(-ndim, ndim)]
    if unknown:
        raise ValueError(
            f"{unknown} are no dimensions of the array; it has "
            f"{list(names) or f'{ndim} dimensions without names'}."
        )
    wanted: dict[int, Any] = {}
    for key, value in chunks.items():
        axis = places[key] if key in places else int(key) % ndim
        if axis in wanted or (key in places and names.count(key) > 1):
            raise ValueError(f"{key!r} is not the only one that is called so; give positions.")
        wanted[axis] = "shards" if value is None else value
    return tuple(wanted.get(axis, "shards") for axis in range(ndim))
