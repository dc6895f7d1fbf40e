"""Destination array of a write: an existing one, one that grows, or a new one with its grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.array.cells import items_by_axis
from zarr_dask.array.create import ArraySpec, array_meta, given_names
from zarr_dask.array.resize import append_region, axis_of, resize_grid
from zarr_dask.array.source import ArraySource
from zarr_dask.dtypes import DataType, data_type_of_objects
from zarr_dask.errors import (
    AppendConflictError,
    DataTypeError,
    GridError,
    MetadataError,
)
from zarr_dask.formats.base import normalise_path, where
from zarr_dask.formats.concurrent_edit import reload_metadata
from zarr_dask.formats.detect import DEFAULT_FORMAT, format_for_new
from zarr_dask.grid.grid import Blocks, Region
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import PrefetchedLocation, prefetch_array, resolve_node
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.write.zarr_python_kwargs import spec_from_keywords
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location, open_store
from zarr_dask.stores.wrappers.base import check_writable

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["append_target", "existing_array", "new_array"]


def existing_array(
    url: Location | Array | Group,
    component: str | None,
    storage_options: Mapping[str, Any] | None,
    prefetched: PrefetchedLocation | None = None,
) -> tuple[Array, PrefetchedLocation]:
    """Return an array to write into, and the content of its location.

    A caller that has just opened the array passes what it knows of its location as `prefetched`.

    Raises
    ------
    NodeNotFoundError
        If there is no array.
    ReadOnlyError
        If it is open for reading only.
    UnknownCodecError
        If it cannot be written.
    """
    if isinstance(url, Array) and not component:
        target = replace(url)  # the user's handle may change before the plan is run
        open_store(url.store, storage_options)  # refuses storage options: an open store has its own
        prefetched = prefetched or prefetch_array(url.store, url.path, url.node_format, url.options)
    elif isinstance(url, Array | Group):
        target = open_array(url, component or "", "r+", None, storage_options)
        prefetched = prefetch_array(target.store, target.path, target.node_format, target.options)
    else:
        store, path = resolve_node(url, component or "", storage_options)
        prefetched = prefetch_array(store, path, DEFAULT_FORMAT)
        target = replace(open_array(prefetched.store, path, "r+"), store=store)
    check_writable(target.store, target.where)
    target.meta.check_writable(target.where)
    return target, prefetched


def append_target(
    target: Array,
    values: da.Array,
    along: int | str,
    prefetched: PrefetchedLocation,
    overlap: int = 0,
    length: int | None = None,
) -> tuple[Array, Region]:
    """Return an array as it will be with room at its end, and the region for the values in it.

    `prefetched` is the location of the array as it is now. The region begins `overlap` elements
    before the present end. `length` is that by which the caller has judged the values, if it has.

    Raises
    ------
    AppendConflictError
        If the array has not that length any more.
    GridError
        If the shapes do not fit together, or there is no such dimension.
    MetadataChangedError
        If the array in the store is a different one by now.
    """
    axis = axis_of(target, along, "append")
    meta = reload_metadata(
        prefetched.store, target.path, target.node_format, target.meta, target.options
    )
    kept = tuple(n - overlap if i == axis else n for i, n in enumerate(meta.shape))
    shape, region = append_region(kept, values.shape, axis)
    if length not in (None, meta.shape[axis]):
        raise AppendConflictError(
            f"{target.where} has {meta.shape[axis]} elements along dimension {axis}, and had "
            f"{length} when this append was checked: another one has ended meanwhile. "
            "Nothing was written; repeat the call."
        )
    longer = replace(
        meta, grid=resize_grid(meta.grid, shape, sharded=meta.codecs.serializer.is_sharding)
    )
    problems = list(longer.problems())
    if problems:
        raise MetadataError.of(target.where, problems)
    return replace(target, meta=longer, shown=None), region  # no document says so yet


# --- a new array ----------------------------------------------------------------------------------


def new_array(
    values: da.Array,
    store: Store,
    component: str,
    wanted: ArraySpec,
    keywords: Mapping[str, Any],
    around: str,
) -> Array:
    """Return the array to make for the values of a dask array; nothing is written.

    Parameters
    ----------
    values
        Values with the shape, data type and blocks of the array.
    store, component
        Store and path of the array.
    wanted
        Arguments of the user; chunks may be left open.
    keywords
        Additional keywords of zarr-python.
    around
        Name of the format if the user gives none.

    Raises
    ------
    GridError, DataTypeError, MetadataError
        If such an array is not possible.
    ReadOnlyError
        If the store is open for reading only.
    TypeError
        For unknown keywords.
    """
    path = normalise_path(component)
    check_writable(store, where(store, path))
    dtype = wanted.dtype
    if dtype is None:
        dtype = _type_to_store(values, wanted, keywords)
    typed = replace(wanted, shape=values.shape, dtype=dtype)
    said = spec_from_keywords(typed, keywords)
    node_format = format_for_new(store, said.format or around, path)
    named = replace(said, format=node_format.name)
    spec = _with_grids(named, values.chunks, where(store, path))
    meta = array_meta(spec, where(store, path))
    node_format.documents(meta, path)  # raises if the format cannot express it
    return Array(store, path, meta, node_format)


def _with_grids(spec: ArraySpec, blocks: Blocks, at: str) -> ArraySpec:
    """Return the specification with chunks that divide the blocks, if the user left them open."""
    if spec.chunks is None and spec.shards is not None:
        spec = replace(spec, chunks="auto")
    if isinstance(spec.shards, Mapping) and isinstance(spec.chunks, str | bool):
        raise GridError(
            f"shards={spec.shards!r} leave dimensions open that only chunks= could tell: give both."
        )
    dividing = tuple(map(_dividing, blocks))
    if spec.chunks is None:
        return replace(spec, chunks=dividing)
    ndim = len(blocks)
    names = given_names(spec.dimension_names, ndim) or (None,) * ndim
    return replace(spec, chunks=items_by_axis(spec.chunks, names, dividing, "chunks", at))


def _dividing(sizes: tuple[int, ...]) -> int:
    """Return a length whose multiples meet the block borders, or a common length if it is tiny."""
    if len(sizes) == 1:
        return max(sizes[0], 1)
    common = gcd(*sizes[:-1])
    if sizes[-1] <= common or common * 8 >= max(sizes):
        return max(common, 1)
    return max(Counter(sizes).most_common(1)[0][0], 1)


def _type_to_store(values: da.Array, wanted: ArraySpec, keywords: Mapping[str, Any]) -> Any:
    """Return the data type of a new array: that of a copied array, else that of the dtype.

    For objects, the elements of their first block determine it. Later blocks are checked when they
    are written; the array is not visible before all of them are. If the user names codecs, the
    codecs determine it.
    """
    copied = _data_type_of_copied(values)
    if copied is not None:
        return copied
    if values.dtype != object or wanted.codecs is not None or keywords.get("filters"):
        return values.dtype
    first = values.blocks[(0,) * values.ndim] if values.npartitions else values
    try:
        return data_type_of_objects(np.asarray(first.compute()))
    except TypeError as error:
        raise DataTypeError(
            f"the dask array holds Python objects, and its first block neither texts nor byte "
            f"strings only ({error}); fill what is missing, or convert with astype."
        ) from error


def _data_type_of_copied(values: da.Array) -> DataType | None:
    """Return the data type of the one array that a graph reads unchanged; None for other graphs.

    Several data types share a dtype: ``r24`` and ``raw_bytes``, records and pairs of floats.
    """
    from zarr_dask.graph import find_sources

    if len(values.__dask_graph__().layers) != 1:
        return None
    found = {source.array.meta.data_type for source in find_sources(values, ArraySource)}
    data_type = found.pop() if len(found) == 1 else None
    return None if data_type is None or data_type.name == "object" else data_type
