"""Laying an array out anew, within a bound of memory, on any of dask's schedulers.

`plan_rechunk` says everything that will be done; `RechunkPlan.run` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array import Array
from zarr_dask.create import converted, plain_chain, regridded
from zarr_dask.errors import GridError, SourceIsTargetError
from zarr_dask.formats.base import Format, normalise_path, where
from zarr_dask.formats.detect import format_for_new
from zarr_dask.grid import Cells, Fixed, Grid, Region
from zarr_dask.group import open_array
from zarr_dask.hierarchy import check_place
from zarr_dask.indexing import checked_region
from zarr_dask.jobs.plan import format_region, parse_bytes
from zarr_dask.jobs.planner import alternatives
from zarr_dask.jobs.rechunk_job import narrower
from zarr_dask.jobs.rechunk_plan import Progress, RechunkPlan, RechunkReport
from zarr_dask.jobs.run import Workers, find_workers
from zarr_dask.jobs.speeds import speeds_of
from zarr_dask.jobs.stages import CostModel, Layout
from zarr_dask.stores.base import Store
from zarr_dask.stores.urls import Location, open_store, overlap, real_place

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Progress",
    "RechunkPlan",
    "RechunkReport",
    "layout_between",
    "layout_of",
    "memory_budget",
    "plan_rechunk",
    "rechunk",
]

_DEFAULT_MEMORY = 10**9
_SHARE_OF_LIMIT = 0.6  # of a worker's memory limit; dask begins to spill at about that


# --- making a plan --------------------------------------------------------------------------------


def plan_rechunk(
    source: Location | Array,
    target: Location,
    *,
    chunks: Any = None,
    shards: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    path: str = "",
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    model: CostModel | None = None,
    dtype: Any = None,
    codecs: Any = None,
    format: str | None = None,
    region: Any = None,
    threads: int | None = None,
) -> RechunkPlan:
    """Plan how to lay an array out anew; nothing is written.

    Parameters
    ----------
    source
        The array, or where it is.
    target
        Where the new one will be.
    chunks
        Shape of its chunks: lengths by position, or by name or position of the dimension in a
        mapping; -1 is the whole dimension. What is not given stays as it is. The sizes of all
        chunks may stand for the length along a dimension, as for `zarr_dask.create_array`.
    shards
        Shape of its shards, in the same forms; none by default.
    max_mem
        Bytes that one process may hold above its size when idle, such as ``"2GB"``. By default
        what the workers' memory limit leaves, or 1 GB.
    temp
        Where to put intermediate data if there must be any; beside the target by default.
    overwrite
        Replace what is at the target.
    path
        Path of the target below its store.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    storage_options
        Options of the target's store.
    model
        How long things take, for choosing.
    dtype
        Data type of the new array; that of the source by default. Fractions may be lost in it;
        a number that it cannot hold is an error when it is met.
    codecs
        Codecs of its chunks, as for `zarr_dask.create_array`; those of the source by default.
    format
        Its format, such as ``"v3"``; that of the source by default.
    region
        Slices of the source, without steps; all of it by default.
    threads
        Tasks at a time in the one process that each part of the plan will run in; by default those
        of the workers there are now.

    Raises
    ------
    GridError
        If the grids do not fit the array.
    DataTypeError, MetadataError
        If the format has no such data type or codecs.
    SourceIsTargetError
        If the target is the source, or one lies within the other.
    NodeExistsError
        If there is something at the target.
    MemoryBudgetError
        If `max_mem` is too small for one stored object of the target.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64, 64), dtype="f4", chunks=(1, 64, 64))
    >>> plan = zd.plan_rechunk(a, {}, chunks=(-1, 16, 16), max_mem="8MB")
    >>> plan.target.chunks, len(plan.stages)
    ((8, 16, 16), 1)
    """
    array = source if isinstance(source, Array) else open_array(source)
    store, below = open_store(target, storage_options), normalise_path(path)
    node_format = format_for_new(store, format or array.format, below)
    changes = any(wanted is not None for wanted in (dtype, codecs, format, region))
    part = _contiguous(region, array)
    cut = replace(array, meta=replace(array.meta, grid=_cells_anew(array.meta.grid, part)))
    new_chunks, new_shards = _new_grids(cut, chunks, shards, node_format, changes=changes)
    base = converted(
        cut.meta, array.node_format, node_format, where(store, below), dtype=dtype, codecs=codecs
    )
    meta = regridded(base, node_format, new_chunks, new_shards, array.chunks)
    made = Array(store, below, meta, node_format)
    node_format.documents(meta, below)  # raises where the format cannot say it
    _check_apart(array, made)
    if temp is not None:
        open_store(temp)  # raises where it cannot be had
    check_place(store, below, node_format, overwrite=overwrite)
    workers = find_workers(client) if threads is None else Workers(None, threads, threads)
    memory = memory_budget(max_mem, workers)
    ways = alternatives(
        layout_of(array, part),
        layout_of(made),
        memory // workers.threads_per_process,
        workers.threads,
        model or CostModel(),
        layout_between(array, made, temp),
    )
    return RechunkPlan(
        source=array,
        region=part,
        target=made,
        stages=ways[0].stages,
        max_mem=memory,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        overwrite=overwrite,
        temp=temp,
        ways=tuple(ways),
    )


def rechunk(
    source: Location | Array,
    target: Location,
    *,
    chunks: Any = None,
    shards: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    path: str = "",
    client: Client | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dtype: Any = None,
    codecs: Any = None,
    format: str | None = None,
    region: Any = None,
    resume: bool = False,
    journal: Location | None = None,
    verify: bool = False,
) -> RechunkReport:
    """Lay an array out anew within a bound of memory: `plan_rechunk`, then run.

    Parameters
    ----------
    source, target, chunks, shards, max_mem, temp, overwrite, path, client, storage_options
        As for `plan_rechunk`.
    dtype, codecs, format, region
        As for `plan_rechunk`.
    resume, journal, verify
        As for `RechunkPlan.run`. The same arguments make the same job.
    progress
        Called after each task.

    Raises
    ------
    ZarrDaskError
        As `plan_rechunk` and `RechunkPlan.run`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64), dtype="f4", chunks=(1, 64))
    >>> a[...] = 2
    >>> target = {}
    >>> zd.rechunk(a, target, chunks=(8, 16)).objects
    4
    >>> float(zd.open_array(target)[...].sum())
    1024.0
    """
    plan = plan_rechunk(
        source,
        target,
        chunks=chunks,
        shards=shards,
        max_mem=max_mem,
        temp=temp,
        overwrite=overwrite or resume,  # a job that has died may have made it visible
        path=path,
        client=client,
        storage_options=storage_options,
        dtype=dtype,
        codecs=codecs,
        format=format,
        region=region,
    )
    plan = replace(plan, overwrite=overwrite)
    return plan.run(client, progress, resume=resume, journal=journal, verify=verify)


def _contiguous(region: Any, array: Array) -> Region:
    part = checked_region(region, array.shape)
    if any(s.step != 1 for s in part):
        raise GridError(f"region {format_region(part)} has steps; what is copied is contiguous.")
    return part


def _cells_anew(grid: Grid, region: Region) -> Grid:
    """Cells of the same sizes for what a region holds: equal ones begin anew, others are cut."""
    return Grid(
        tuple(
            Fixed(dimension.size, s.stop - s.start)
            if isinstance(dimension, Fixed)
            else dimension.window(s.start, s.stop)
            for dimension, s in zip(grid.dimensions, region, strict=True)
        )
    )


def layout_of(array: Array, region: Region | None = None) -> Layout:
    """How an array, or a region of it, is stored, for the planner."""
    part = array.meta.grid.everything if region is None else region
    region = None if part == array.meta.grid.everything else region
    grid = array.meta.grid.window(part)
    bound = array.meta.largest_bound()
    chunk = array.chunks if bound.partial else array.write_chunks
    cut = None
    if bound.partial:
        cut = Grid.regular(array.shape, chunk).window(part)
    elif not all(isinstance(dimension, Fixed) for dimension in grid.dimensions):
        cut = grid
    itemsize = array.meta.data_type.typical_itemsize
    speeds = speeds_of(array.meta.codecs)
    kind = repr(array.meta.data_type)
    stored = None if region is None else array.write_chunks
    clipped = None
    if region is not None:
        clipped = tuple(
            (not cells.is_boundary(s.start), not cells.is_boundary(s.stop))
            for cells, s in zip(array.meta.grid.dimensions, part, strict=True)
        )
    return Layout(
        grid,
        chunk,
        itemsize,
        bound.working,
        *speeds,
        kind=kind,
        chunks=cut,
        uneven=not bound.partial and array.meta.grid.cell_shape is None,
        stored=stored,
        clipped=clipped,
        in_flight=_in_flight(array.store),
    )


def _in_flight(store: Store) -> int:
    """Bytes that a store is asked for at a time; see `zarr_dask.stores.base.Coalescing`."""
    policy = store.coalescing
    return 0 if policy.requests == 1 else policy.in_flight + policy.largest


def layout_between(source: Array, target: Array, temp: Location | None = None) -> Layout:
    """How intermediate arrays are encoded; the grid is chosen by the planner."""
    meta = narrower(source, target).meta
    plain = replace(meta, codecs=plain_chain(meta))
    kind = repr(meta.data_type)
    itemsize = meta.data_type.typical_itemsize
    working = plain.largest_bound().working if meta.data_type.variable else 0
    return Layout(
        meta.grid,
        meta.grid.largest_cell,
        itemsize,
        working,
        *speeds_of(plain.codecs),
        kind=kind,
        in_flight=_in_flight(target.store if temp is None else open_store(temp)),
    )


def memory_budget(max_mem: str | int | None, workers: Workers) -> int:
    """Bytes that one process may hold: what was said, else a share of its limit, else 1 GB."""
    if max_mem is not None:
        return parse_bytes(max_mem)
    if workers.memory_limit is not None:
        return int(workers.memory_limit * _SHARE_OF_LIMIT)
    return _DEFAULT_MEMORY


def _new_grids(
    array: Array, chunks: Any, shards: Any, node_format: Format, *, changes: bool
) -> tuple[Cells | None, Cells | None]:
    """Chunks and shards to come, None for what is to stay or not to be."""
    stored = _stored_cells(array)
    if chunks is None and shards is None:
        if not changes:
            raise GridError("neither chunks nor shards are given: there is nothing to change.")
        if array.shards is None:
            return stored, None
        return (None, stored) if node_format.has_shards else (None, None)
    present = stored if array.shards is None else array.chunks
    new_chunks = None if chunks is None else _cells(array, chunks, present, "chunks")
    if shards is None:
        return new_chunks, None
    base = new_chunks or array.chunks if array.shards is None else stored
    cells = _cells(array, shards, base, "shards")
    if new_chunks is not None:  # a whole dimension is a whole number of chunks
        cells = tuple(
            -(-length // chunk) * chunk
            if isinstance(length, int) and isinstance(chunk, int) and length == extent
            else length
            for length, chunk, extent in zip(cells, new_chunks, array.shape, strict=True)
        )
    return new_chunks, cells


def _stored_cells(array: Array) -> Cells:
    """The size of stored objects along each dimension, or the sizes where they differ."""
    return tuple(
        dimension.size if isinstance(dimension, Fixed) else dimension.lengths or 1
        for dimension in array.meta.grid.dimensions
    )


def _cells(array: Array, given: Any, present: Cells, what: str) -> Cells:
    """Lengths or sizes by position or by name, -1 for a whole dimension."""
    names = array.dimension_names or (None,) * array.ndim
    if isinstance(given, Mapping):
        known = [*(n for n in names if n is not None), *range(array.ndim)]
        unknown = [key for key in given if key not in known]
        if unknown:
            raise GridError(
                f"{what} names {unknown}, which are no dimensions of {array.where}; it has {known}."
            )
        by_axis = {names.index(key) if isinstance(key, str) else key: v for key, v in given.items()}
        items: Sequence[Any] = [by_axis.get(axis, present[axis]) for axis in range(array.ndim)]
    elif isinstance(given, int | np.integer):
        items = [given] * array.ndim
    else:
        items = list(given)
    if len(items) != array.ndim or not all(map(_is_cell, items)):
        raise GridError(
            f"{what}={given!r}: expected {array.ndim} lengths of at least 1, or -1 for a whole "
            f"dimension, or the sizes of all of them, for the shape {array.shape}."
        )
    return tuple(
        tuple(map(int, item))
        if isinstance(item, Sequence)
        else (max(extent, 1) if item == -1 else int(item))
        for item, extent in zip(items, array.shape, strict=True)
    )


def _is_cell(item: Any) -> bool:
    """Whether an item is a length, -1, or the sizes of all cells of a dimension."""
    if isinstance(item, Sequence) and not isinstance(item, str):
        return len(item) > 0 and all(_is_length(size) and size >= 0 for size in item)
    return _is_length(item) and (item == -1 or item >= 1)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_apart(source: Array, target: Array) -> None:
    """Refuse a target that is, holds or lies within the source."""
    if overlap(real_place(source.store, source.path), real_place(target.store, target.path)):
        raise SourceIsTargetError(
            f"the target {target.where} is the source, or one lies within the other, so that "
            "writing would destroy what is still to be read. Choose another target, and replace "
            "the source by it afterwards."
        )
