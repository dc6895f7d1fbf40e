"""Arrays as variables of xarray: names of dimensions, attributes, masks, and the ``encoding``.

Names, masks and attributes follow two conventions. In v3 a field of the metadata names dimensions,
and an attribute ``_FillValue`` in base64 gives the masked value. In older formats an attribute
names dimensions (or NCZarr's own metadata do), and the fill value of the array is masked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numcodecs
import xarray as xr
from xarray.core import indexing

from zarr_dask.array.array import Array
from zarr_dask.codecs.base import Codec, Serializer
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import DIMENSIONS
from zarr_dask.formats.missing_values import decoded_fill
from zarr_dask.formats.v2_document import (
    dimension_names,
    names_of_nczarr,
    numcodecs_steps,
    stored_dtype,
)
from zarr_dask.grid.dask_blocks import MOST_BLOCKS, block_budget, merged_sides
from zarr_dask.grid.grid import Fixed, Grid
from zarr_dask.stores.base import is_remote
from zarr_dask.xarray.elements import OBJECTS, StoredArray, dtype_of

__all__ = ["is_of_netcdf", "shared_blocks", "variable"]


def is_of_netcdf(attribute: str) -> bool:
    """True if an attribute is for the netCDF library only: ``_NCZARR_...``, ``_NCProperties``."""
    return attribute.lower().startswith("_nc")


def variable(
    array: Array,
    fill_is_mask: bool | None,
    largest_block: int | None = None,
    blocks: tuple[int, ...] | None = None,
) -> xr.Variable:
    """Return an array as a lazy variable of xarray.

    Parameters
    ----------
    array
        Array to read.
    fill_is_mask
        True if elements with the array's fill value are missing values; None for the default of its
        convention.
    largest_block
        Bytes of a block: shards are read piece by piece where they are larger. None for whole ones.
    blocks
        Blocks of several stored objects each (`shared_blocks`).

    Raises
    ------
    MetadataError
        If a dimension has no name.
    """
    names = _dimension_names(array)
    attributes = array.user_attributes
    if not _has_names_in_document(array) or (array.dimension_names is None and array.ndim):
        attributes = {
            k: v for k, v in attributes.items() if k != DIMENSIONS and not is_of_netcdf(k)
        }
    encoding = _encoding(array, names, largest_block, blocks)
    if _has_names_in_document(array):
        encoding["fill_value"] = array.fill_value
        encoding |= _codecs_of_v3(array)
    else:
        encoding |= _codecs_of_numcodecs(array)
    if fill_is_mask is None:
        fill_is_mask = not _has_names_in_document(array)
    if fill_is_mask and array.fill_value is not None:
        attributes["_FillValue"] = array.fill_value
    elif "_FillValue" in attributes:
        attributes["_FillValue"] = decoded_fill(attributes["_FillValue"], array.meta.data_type)
    data = indexing.LazilyIndexedArray(StoredArray(array))
    return xr.Variable(names, data, attributes, encoding)


def _has_names_in_document(array: Array) -> bool:
    """True if the array follows the convention of v3, described in the module docstring."""
    return array.node_format.names_attribute is None


def _dimension_names(array: Array) -> tuple[str, ...]:
    names: Sequence[str | None] | None = array.dimension_names
    if names is None:  # v3 metadata that were converted from v2
        attributes, ndim = array.attributes, array.ndim
        names = dimension_names(attributes, ndim) or names_of_nczarr({}, attributes, ndim)
    found = tuple(name for name in names or () if name is not None)
    if len(found) == array.ndim:
        return found
    attribute = array.node_format.names_attribute
    place = "dimension_names" if attribute is None else f"attributes.{attribute}"
    expected = (
        f"{array.ndim} names: xarray's dimensions have names. drop_variables= leaves the variable "
        "out, zarr_dask.from_zarr reads it without them"
    )
    present = None if array.dimension_names is None else list(array.dimension_names)
    if present is None and attribute is not None:
        present = array.attributes.get(attribute)
    raise MetadataError(array.where, [ValidationProblem(place, present, expected)])


def shared_blocks(arrays: Mapping[str, Array], largest: int) -> dict[str, tuple[int, ...]]:
    """Return blocks of several small stored objects each, by name of the array.

    Dimensions that arrays share are divided alike, those of arrays with large objects first: else
    a dataset would have no chunks in common.

    Parameters
    ----------
    arrays
        Arrays of a group.
    largest
        Bytes of a block at most.
    """
    merged: dict[str, tuple[int, ...]] = {}
    shared: dict[tuple[str, int], int] = {}
    for name, array in sorted(arrays.items(), key=lambda item: -_object_size(item[1])):
        grid, names = array.meta.grid, _dimension_names(array)
        if len(set(names)) < grid.ndim or not all(isinstance(d, Fixed) for d in grid.dimensions):
            continue
        keys = list(zip(names, grid.largest_cell, strict=True))
        size = max(array.meta.data_type.typical_itemsize, 1)
        sides = {axis: shared[key] for axis, key in enumerate(keys) if key in shared}
        budget = block_budget(grid, size, largest, remote=is_remote(array.store))
        free = {axis: n for axis, n in enumerate(grid.shape) if axis not in sides}
        sides |= merged_sides(grid, free, budget // max(math.prod(sides.values()), 1))
        if math.prod(sides.values()) * size > largest:  # of two others, or one object is so large
            sides = dict(enumerate(grid.largest_cell))
        for axis, key in enumerate(keys):
            shared.setdefault(key, sides[axis])
        merged[name] = tuple(sides[axis] for axis in range(grid.ndim))
    return merged


def _object_size(array: Array) -> int:
    return math.prod(array.meta.grid.largest_cell) * array.meta.data_type.typical_itemsize


def _encoding(
    array: Array,
    names: tuple[str, ...],
    largest_block: int | None,
    blocks: tuple[int, ...] | None,
) -> dict[str, Any]:
    """Return the storage options of the array that all formats share."""
    sizes = _sizes(array.meta.grid)
    preferred = _sizes(array.meta.grid, MOST_BLOCKS)
    sharded = array.shards is not None
    if sharded and largest_block is not None and _object_size(array) > largest_block:
        preferred = _pieces_of_shards(array, preferred, largest_block)
    elif blocks is not None and all(
        n <= side * MOST_BLOCKS for n, side in zip(array.shape, blocks, strict=True)
    ):
        preferred = blocks
    encoding: dict[str, Any] = {
        "chunks": array.chunks if sharded else sizes,
        "shards": sizes if sharded else None,
        "preferred_chunks": dict(zip(names, preferred, strict=True)),
    }
    if array.meta.data_type.name in OBJECTS:
        encoding["dtype"] = dtype_of(array)
    return encoding


def _sizes(grid: Grid, most: int | None = None) -> tuple[int | tuple[int, ...], ...]:
    """Return sizes of stored objects along each dimension: one number, or all if they differ.

    If there are more than `most`, adjacent objects are merged until there are no more than that.

    Examples
    --------
    >>> from zarr_dask.grid.grid import Edges
    >>> _sizes(Grid((Fixed(4, 10), Edges.of([3, 4], 6))))
    (4, (3, 3))
    >>> _sizes(Grid((Fixed(4, 100),)), most=10)
    (12,)
    """
    return tuple(
        dimension.size * (-(-dimension.count // most) if most and dimension.count else 1)
        if isinstance(dimension, Fixed)
        else dimension.lengths or (0,)
        for dimension in grid.dimensions
    )


def _pieces_of_shards(
    array: Array, shards: tuple[int | tuple[int, ...], ...], largest: int
) -> tuple[int | tuple[int, ...], ...]:
    """Return blocks of whole chunks that divide shards and have so many bytes, if chunks allow."""
    lengths = [size for size in shards if isinstance(size, int)]
    if len(lengths) < array.ndim:
        return shards
    for axis, (chunk, extent) in enumerate(zip(array.chunks, array.shape, strict=True)):
        whole = lengths[axis] // chunk  # chunks side by side
        one = math.prod(lengths) // whole * array.dtype.itemsize
        if one * whole <= largest:
            break
        most = [
            n
            for n in range(1, whole + 1)
            if whole % n == 0 and (n == whole or extent <= n * chunk * MOST_BLOCKS)
        ]
        lengths[axis] = chunk * max((n for n in most if one * n <= largest), default=most[0])
    return tuple(lengths)


def _codecs_of_v3(array: Array) -> dict[str, Any]:
    """Return codecs by the keywords of zarr-python; for shards, those of their chunks."""
    codecs = _innermost(array.codecs)
    at = next(i for i, codec in enumerate(codecs) if isinstance(codec, Serializer))
    return {
        "filters": tuple(codec.document() for codec in codecs[:at]),
        "serializer": codecs[at].document(),
        "compressors": tuple(codec.document() for codec in codecs[at + 1 :]),
    }


def _innermost(codecs: Sequence[Codec]) -> Sequence[Codec]:
    """Return the codecs of the innermost chunks."""
    for codec in codecs:
        if isinstance(codec, Serializer) and codec.inner_codecs is not None:
            return _innermost(codec.inner_codecs)
    return codecs


def _codecs_of_numcodecs(array: Array) -> dict[str, Any]:
    """Return filters and compressor as numcodecs objects, which zarr-python accepts for v2.

    They are omitted if numcodecs lacks one of them.
    """
    stored = stored_dtype(array.meta)
    encoding: dict[str, Any] = {} if stored.isnative else {"dtype": stored}
    filters, compressor = numcodecs_steps(array.meta)
    try:
        made = [numcodecs.get_codec(item) for item in [*filters, compressor] if item is not None]
    except (ValueError, ImportError):
        return encoding
    count = len(made) if compressor is None else len(made) - 1
    return {**encoding, "filters": tuple(made[:count]), "compressors": tuple(made[count:])}
