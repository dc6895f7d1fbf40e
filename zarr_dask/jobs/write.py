"""Writing a dask array: planned so that every stored object has exactly one writing task.

Blocks that do not fit the stored objects of the target are regrouped by the graph, so that one
task gathers all that an object needs; no two tasks ever touch one object. What would cut through
objects is refused. The metadata document of a new array is written last, by the last task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zarr_dask.array import Array, ArraySource
from zarr_dask.create import ArraySpec, array_meta
from zarr_dask.dtypes import DataType, data_type_of_objects
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    NodeExistsError,
    PartialWriteError,
    ReadOnlyError,
)
from zarr_dask.formats.base import normalise_path, where
from zarr_dask.formats.detect import format_for_new
from zarr_dask.grid import Blocks, Region
from zarr_dask.group import open_array
from zarr_dask.hierarchy import check_place
from zarr_dask.indexing import checked_region
from zarr_dask.jobs.dialect import spec_from_keywords
from zarr_dask.jobs.guards import check_not_read
from zarr_dask.jobs.plan import format_region
from zarr_dask.jobs.write_plan import WritePlan
from zarr_dask.stores.urls import Location, open_store
from zarr_dask.stores.wrappers import ReadOnly

if TYPE_CHECKING:
    import dask.array as da


__all__ = ["plan_write", "to_zarr"]

WriteMode = Literal["a", "w", "w-", "r+"]


# --- making a plan --------------------------------------------------------------------------------


def plan_write(
    arr: da.Array,
    url: Location | Array,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    mode: WriteMode = "a",
    *,
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    fill_value: Any = 0,
    dimension_names: Any = None,
    attributes: Mapping[str, Any] | None = None,
    format: str = "v3",
    overwrite: bool = False,
    partial: Literal["refuse", "own"] = "refuse",
    **keywords: Any,
) -> WritePlan:
    """Plan how to write a dask array; nothing is written.

    Parameters
    ----------
    arr
        The dask array.
    url
        Where: a path, a URL, a store, a mapping, or an `Array` opened with ``mode="r+"``.
    component
        Path below it.
    storage_options
        Options of the store.
    region
        Slices of an existing array to write into; all of it by default.
    mode
        ``"a"`` creates, ``"w"`` replaces what is there, ``"w-"`` creates where nothing is,
        ``"r+"`` writes into an existing array.
    chunks, shards
        Grids of a new array. By default one stored object per block where blocks are regular.
    codecs, fill_value, dimension_names, attributes, format
        Of a new array; see `zarr_dask.create_array`.
    overwrite
        Replace what is there; the same as ``mode="w"``.
    partial
        What to do where a region covers stored objects only in part: ``"refuse"``, or let their
        single writing task of this job read and change them (``"own"``). The caller then sees
        to it that no other job writes into the same objects meanwhile.
    **keywords
        What dask hands on to zarr-python: ``compressor``, ``compressors``, ``filters``,
        ``serializer``, ``order``, ``zarr_format``, ``dimension_separator``,
        ``chunk_key_encoding``.

    Raises
    ------
    GridError
        If shapes or grids do not fit, or blocks have no known size.
    DataTypeError
        If the target cannot hold every value of the dask array's data type.
    NodeExistsError
        If there is something at the place of a new array.
    PartialWriteError
        If the region cuts through stored objects.
    SourceIsTargetError
        If the dask array reads what would be written.
    TypeError
        For keywords that mean nothing here.
    """
    from zarr_dask.graph import checked_array

    values = checked_array(arr)
    if mode not in {"a", "w", "w-", "r+"}:
        raise ValueError(f"mode={mode!r}: expected 'a', 'w', 'w-' or 'r+'.")
    if overwrite and (mode == "r+" or region is not None or isinstance(url, Array)):
        raise ValueError("overwrite=True replaces an array; mode='r+' and region= keep it.")
    creates = not isinstance(url, Array) and mode != "r+" and region is None
    if isinstance(url, Array) or not creates:
        target = _existing_array(url, component, storage_options)
        _check_existing(target, chunks, shards, codecs, keywords)
    else:
        given = ArraySpec(
            shape=values.shape,
            dtype=_type_to_store(values, codecs, keywords),
            chunks=chunks,
            shards=shards,
            codecs=codecs,
            fill_value=fill_value,
            dimension_names=dimension_names,
            attributes=attributes or {},
            format=format,
        )
        spec = _with_grids(spec_from_keywords(given, keywords), values.chunks)
        target = _new_array(spec, url, component, storage_options)
    replaces = creates and (overwrite or mode == "w")
    check_not_read(values, target.store, target.path)
    if creates:
        check_place(target.store, target.path, target.node_format, overwrite=replaces)
    where_to = checked_region(region, target.shape)
    _check_fits(values, target, where_to)
    origin = tuple(s.start for s in where_to)
    cut = _partial_objects(target, where_to)
    if cut and partial != "own":
        raise _partial_write(target, where_to, cut)
    return WritePlan(
        values=values,
        target=target,
        region=where_to,
        blocks=target.meta.grid.align(values.chunks, origin),
        partial=cut,
        creates=creates,
        overwrite=replaces,
    )


def to_zarr(
    arr: da.Array,
    url: Location | Array,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    compute: bool = True,
    return_stored: bool = False,
    mode: WriteMode = "a",
    *,
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    fill_value: Any = 0,
    dimension_names: Any = None,
    attributes: Mapping[str, Any] | None = None,
    format: str = "v3",
    overwrite: bool = False,
    partial: Literal["refuse", "own"] = "refuse",
    **keywords: Any,
) -> Any:
    """Write a dask array so that no value can be lost: `plan_write`, then run.

    Parameters
    ----------
    arr, url, component, storage_options, region, mode
        As for `plan_write`.
    compute
        Write now; otherwise make room at the target and return a collection whose ``compute()``
        writes.
    return_stored
        Return the stored array as a dask array; it is written first.
    chunks, shards, codecs, fill_value, dimension_names, attributes, format, overwrite, partial
        As for `plan_write`.
    **keywords
        As for `plan_write`.

    Returns
    -------
    WriteReport or StoredWrite or dask.array.Array
        As `compute` and `return_stored` say.

    Raises
    ------
    ZarrDaskError
        As `plan_write`; nothing is written then.

    Examples
    --------
    >>> import dask.array as da
    >>> import zarr_dask as zd
    >>> store = {}
    >>> zd.to_zarr(da.ones((400, 400), chunks=50), store, shards=(200, 200)).objects
    4
    >>> float(zd.from_zarr(store).sum().compute())
    160000.0
    """
    plan = plan_write(
        arr,
        url,
        component,
        storage_options,
        region,
        mode,
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        fill_value=fill_value,
        dimension_names=dimension_names,
        attributes=attributes,
        format=format,
        overwrite=overwrite,
        partial=partial,
        **keywords,
    )
    if not compute and not return_stored:
        return plan.collection()
    report = plan.run()
    return plan.target.to_dask() if return_stored else report


def _partial_write(
    target: Array, region: Region, cut: tuple[tuple[int, ...], ...]
) -> PartialWriteError:
    return PartialWriteError(
        f"the region {format_region(region)} covers {len(cut)} stored objects of {target.where} "
        f"only in part (the first at {cut[0]}; they have the shape {target.write_chunks}), so that "
        "another job may be writing to the same ones. Extend the region to whole stored objects, "
        'or pass partial="own" if no other job writes there.'
    )


def _existing_array(
    url: Location | Array, component: str | None, storage_options: Mapping[str, Any] | None
) -> Array:
    if isinstance(url, Array) and not component:
        return url
    return open_array(url, component or "", "r+", None, storage_options)


def _with_grids(spec: ArraySpec, blocks: Blocks) -> ArraySpec:
    """The array with chunks that divide the blocks where the user left them open."""
    if spec.chunks is not None:
        return spec
    if spec.shards is not None:
        return replace(spec, chunks="auto")
    return replace(spec, chunks=tuple(map(_dividing, blocks)))


def _dividing(sizes: tuple[int, ...]) -> int:
    """A length whose multiples meet the borders between blocks, unless it would be tiny."""
    if len(sizes) == 1:
        return max(sizes[0], 1)
    common = gcd(*sizes[:-1])
    if sizes[-1] <= common or common * 8 >= max(sizes):
        return max(common, 1)
    return max(Counter(sizes).most_common(1)[0][0], 1)


def _new_array(
    spec: ArraySpec,
    url: Location,
    component: str | None,
    storage_options: Mapping[str, Any] | None,
) -> Array:
    store, path = open_store(url, storage_options), normalise_path(component or "")
    if isinstance(store, ReadOnly):
        raise ReadOnlyError(f"{where(store, path)} is open for reading only.")
    node_format = format_for_new(store, spec.format, path)
    meta = array_meta(spec, where(store, path))
    node_format.documents(meta, path)  # raises where the format cannot say it
    return Array(store, path, meta, node_format)


def _type_to_store(values: da.Array, codecs: Any, keywords: Mapping[str, Any]) -> Any:
    """The data type of a new array: that of an array that is copied, else that of the dtype.

    Of objects it is told by the elements of their first block. Later blocks are checked when they
    are written; the array is not visible before all of them are. Whoever names codecs says what
    becomes of objects.
    """
    copied = _data_type_of_copied(values)
    if copied is not None:
        return copied
    if values.dtype != object or codecs is not None or keywords.get("filters"):
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
    """The data type of the one array that a graph reads, where it does nothing else to it.

    Several data types share a dtype: ``r24`` and ``raw_bytes``, records and pairs of floats.
    """
    from zarr_dask.graph import sources_of

    if len(values.__dask_graph__().layers) != 1:
        return None
    found = {source.array.meta.data_type for source in sources_of(values, ArraySource)}
    data_type = found.pop() if len(found) == 1 else None
    return None if data_type is None or data_type.name == "object" else data_type


def _check_existing(
    target: Array, chunks: Any, shards: Any, codecs: Any, keywords: Mapping[str, Any]
) -> None:
    if isinstance(target.store, ReadOnly):
        raise ReadOnlyError(f"{target.where} is open for reading only; open it with mode='r+'.")
    target.check_writable()
    given = {"chunks": chunks, "shards": shards, "codecs": codecs, **keywords}
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise NodeExistsError(
            f"{named} describe a new array, but {target.where} exists and keeps its own; leave "
            "them out, or write to another place."
        )


def _check_fits(values: da.Array, target: Array, region: Region) -> None:
    shape = tuple(len(range(s.start, s.stop, s.step)) for s in region)
    if any(s.step != 1 for s in region):
        raise GridError(
            f"region {format_region(region)} has steps; regions to write are contiguous."
        )
    if values.shape != shape:
        raise GridError(
            f"the dask array has shape {values.shape}, the region {format_region(region)} of "
            f"{target.where} has {shape}."
        )
    if not target.meta.data_type.holds(values.dtype):
        raise DataTypeError(
            f"{target.where} holds {target.meta.data_type.label}, which cannot hold every value of "
            f"{values.dtype.name}; convert with x.astype({target.dtype.name!r}) if that is meant."
        )


def _partial_objects(target: Array, region: Region) -> tuple[tuple[int, ...], ...]:
    """Stored objects that the region covers only in part: they lie at its borders."""
    grid = target.meta.grid
    clean = all(
        d.is_boundary(s.start) and d.is_boundary(s.stop)
        for d, s in zip(grid.dimensions, region, strict=True)
    )
    if clean:
        return ()
    return tuple(part.coords for part in grid.parts(region) if not part.whole)
