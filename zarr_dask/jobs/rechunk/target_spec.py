"""Specification of the new array of a rechunking, and the resources for planning it.

Turns the arguments of users (grids by name or by position, a data type, codecs, a format, a region)
into the metadata of the new array, and two arrays into a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from zarr_dask.array.array import Array
from zarr_dask.array.cells import (
    CHUNK_BYTES,
    INNER_CHUNK_BYTES,
    SHARD_BYTES,
    chunks_in_words,
    dividing_chunks,
    is_in_words,
    items_by_axis,
    one_by_one,
    parse_chunks_argument,
    shards_in_words,
    whole_chunks,
)
from zarr_dask.array.create import convert_metadata, with_grid
from zarr_dask.dtypes import bits_of
from zarr_dask.errors import DataTypeError, GridError, MetadataError, StoreError
from zarr_dask.formats.base import Format, where
from zarr_dask.formats.detect import format_for_new
from zarr_dask.formats.translate import xarray_mask_differences
from zarr_dask.grid.grid import Cells, Fixed, Grid, Region
from zarr_dask.hierarchy.edit import puts_metadata_first
from zarr_dask.hierarchy.locate import format_of_group_around
from zarr_dask.indexing.basic import checked_region, checked_shape
from zarr_dask.jobs.engine import Workers
from zarr_dask.jobs.engine.grid_arguments import check_not_empty, parse_region_argument
from zarr_dask.jobs.engine.layouts import layout_between, layout_of
from zarr_dask.jobs.engine.plan import format_region
from zarr_dask.jobs.engine.predict import CostModel, left_for_tasks
from zarr_dask.jobs.rechunk.compression_sample import CompressionRatios, ratios
from zarr_dask.jobs.rechunk.plan import RechunkPlan
from zarr_dask.jobs.rechunk.planner import CandidatePlan, alternatives
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location

__all__ = [
    "RechunkBudget",
    "TargetArray",
    "TargetSpec",
    "format_can_express",
    "make_rechunk_plan",
    "new_array",
    "notes_of",
    "target_format",
]


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Requested differences from the source; see `plan_rechunk`."""

    chunks: Any = None
    shards: Any = None
    dtype: Any = None
    codecs: Any = None
    format: str | None = None
    region: Any = None

    @property
    def changes(self) -> bool:
        """True if there is something to do even if the grid stays the same."""
        others = (self.dtype, self.codecs, self.format, self.region)
        return any(wanted is not None for wanted in others)


@dataclass(frozen=True, slots=True)
class RechunkBudget:
    """Resources that a plan may use."""

    workers: Workers
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    model: CostModel
    temp: Location | None = None
    """Location of intermediate data."""
    sharing: int = 1
    """Number of threads that may share one task: several if there are one process and one array."""

    @property
    def budget(self) -> int:
        """Maximum bytes that one task may hold."""
        return left_for_tasks(self.max_mem) // self.workers.threads_per_process


@dataclass(frozen=True, slots=True)
class TargetArray:
    """Specification of a new array."""

    region: Region
    """The region of the source to copy."""
    array: Array
    """The new array; nothing of it exists yet."""
    notes: tuple[str, ...] = ()
    """Notes for users."""


def target_format(array: Array, store: Store, path: str, wanted: TargetSpec) -> Format:
    """Return the format of a new array: the requested one, or that of the parent group or source.

    A group shows only nodes of its own format. So the group's format is used if it can express the
    array completely.

    Raises
    ------
    ValueError, NodeExistsError
        As `zarr_dask.formats.detect.format_for_new`.
    """
    around = None if wanted.format else format_of_group_around(store, path)
    found = format_for_new(store, wanted.format or around or array.format, path)
    if around in {None, array.format} or format_can_express(array, store, path, found, wanted):
        return found
    return format_for_new(store, array.format, path)


def format_can_express(
    array: Array, store: Store, path: str, node_format: Format, wanted: TargetSpec
) -> bool:
    """True if a new array would be the same in another format as in the source's format."""
    wanted = replace(wanted, format=node_format.name)  # so that it counts as a change
    try:
        kept, made = (
            _new_array(_cut(array, wanted)[1], store, path, one, wanted)
            for one in (array.node_format, node_format)
        )
    except (MetadataError, DataTypeError, GridError):
        return False
    names = kept.dimension_names == made.dimension_names
    grids = kept.chunks == made.chunks and kept.meta.grid == made.meta.grid
    fills = bits_of(kept.meta.fill_value) == bits_of(made.meta.fill_value)
    return names and grids and fills and kept.dtype == made.dtype


def _cut(array: Array, wanted: TargetSpec) -> tuple[Region, Array]:
    """Return the region to copy, and the array as if it contained nothing else."""
    part = _contiguous(wanted.region, array)
    return part, replace(array, meta=replace(array.meta, grid=_cells_anew(array.meta.grid, part)))


def new_array(
    array: Array, store: Store, path: str, node_format: Format, wanted: TargetSpec
) -> TargetArray:
    """Return the region to copy of an array, and the new array; nothing is written.

    Codecs and byte orders that another format does not have are replaced by its defaults, unless
    codecs are requested.

    Raises
    ------
    GridError, DataTypeError, MetadataError
        If such an array is not possible.
    """
    part, cut = _cut(array, wanted)
    try:
        made = _new_array(cut, store, path, node_format, wanted)
        return TargetArray(part, made, notes_of(array, made))
    except MetadataError as error:
        if node_format == array.node_format or wanted.codecs is not None:
            raise
        try:
            made = _new_array(cut, store, path, node_format, wanted, default_codecs=True)
        except (MetadataError, DataTypeError):
            raise error from None  # the codecs were not the problem
        lost = "; ".join(map(str, error.problems))
        codecs = ", ".join(codec.name for codec in made.meta.codecs.codecs)
        note = f"{_named(array)} is encoded anew ({codecs}), because of {lost}"
        return TargetArray(part, made, (note, *notes_of(array, made)))


def notes_of(array: Array, made: Array) -> tuple[str, ...]:
    """Return notes on differences that readers of the new array will see."""
    notes = xarray_mask_differences(array.meta, array.node_format, made.meta, made.node_format)
    return tuple(f"{_named(array)}: {note}" for note in notes)


def _named(array: Array) -> str:
    """Return the name of an array for notes."""
    return array.path or "the array"


def _new_array(
    array: Array,
    store: Store,
    path: str,
    node_format: Format,
    wanted: TargetSpec,
    *,
    default_codecs: bool = False,
) -> Array:
    """Return the new array for a source that is already cut to the region."""
    grids = (wanted.chunks, wanted.shards)
    new_chunks, new_shards = _new_grids(array, *grids, node_format, changes=wanted.changes)
    chunks = Grid.of(array.shape, new_chunks or array.chunks)  # a format may not support the old
    array.meta.check_writable(array.where)  # skipped codecs of the source cannot be written
    base = convert_metadata(
        replace(array.meta, grid=chunks),
        array.node_format,
        node_format,
        where(store, path),
        dtype=wanted.dtype,
        codecs=wanted.codecs,
        default_codecs=default_codecs,
    )
    meta = with_grid(base, node_format, new_chunks, new_shards, array.chunks)
    node_format.documents(meta, path)  # raises if the format cannot express it
    made = Array(store, path, meta, node_format)
    _check_fields(array, made)
    return made


def _check_fields(array: Array, made: Array) -> None:
    """Refuse fields in a different order: NumPy converts structured values by position."""
    old, new = array.dtype.names, made.dtype.names
    if old is None or new is None:
        return
    moved = [name for place, name in enumerate(new) if name in old and old.index(name) != place]
    if moved:
        raise DataTypeError(
            f"dtype= has the fields {list(new)}, {array.where} has {list(old)}: values go "
            f"to the field in the same place, so that those of {moved} would be others. Give "
            "them in the order of the source."
        )


def make_rechunk_plan(
    array: Array,
    new: TargetArray,
    resources: RechunkBudget,
    *,
    overwrite: bool,
    sample: CompressionRatios | None = None,
) -> RechunkPlan:
    """Plan the copy of a region of an array into a new one.

    Parameters
    ----------
    array
        The source.
    new
        The region to copy, and the new array.
    resources
        Resources that the plan may use.
    overwrite
        True to replace existing data at the target.
    sample
        Compression ratios; by default they are sampled from the source.

    Raises
    ------
    MemoryBudgetError
        If there is too little memory for one stored object of the new array.
    StoreError
        If there is no location for intermediate arrays.
    """
    part, made = new.region, new.array
    workers = resources.workers
    sample = ratios(array, part, made) if sample is None else sample
    between = [layout_between(array, made, resources.temp)]
    if not made.meta.data_type.variable:
        between.append(
            layout_between(array, made, resources.temp, compressed=True, ratio=sample.between)
        )
    ways = alternatives(
        sample.layout_of_source(array, part),
        replace(layout_of(made), ratio=sample.target),
        resources.budget,
        workers.threads,
        resources.model,
        between,
        workers.threads_per_process,
        f"{array.where}: ",
        resources.sharing,
    )
    if resources.temp is None and puts_metadata_first(made.store):
        ways = _without_between(ways, made)
    return RechunkPlan(
        source=array,
        region=part,
        target=made,
        stages=ways[0].stages,
        max_mem=resources.max_mem,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        overwrite=overwrite,
        temp=resources.temp,
        candidates=tuple(ways),
        model=resources.model,
        ratios=sample,
        notes=new.notes,
    )


def _without_between(ways: Sequence[CandidatePlan], made: Array) -> list[CandidatePlan]:
    """Return the alternatives without intermediate arrays, for a store that cannot hold any."""
    direct = [way for way in ways if len(way.stages) == 1]
    if not direct:
        raise StoreError(
            f"{made.where} can be written within max_mem in several stages only, and the store "
            "takes no arrays between them. Say with temp=, a path or URL, where they go, or give "
            "more memory (max_mem=)."
        )
    return direct


def _contiguous(region: Any, array: Array) -> Region:
    names = array.dimension_names or ()
    index = parse_region_argument(region, array.shape, names, array.where)
    part = checked_region(index, array.shape)
    check_not_empty(index, part, array.shape, names, array.where)
    if any(s.step != 1 for s in part):
        raise GridError(f"region {format_region(part)} has steps; what is copied is contiguous.")
    return part


def _cells_anew(grid: Grid, region: Region) -> Grid:
    """Return the cells of a region: equal ones start at its edge, others are cut."""
    return Grid(
        tuple(
            Fixed(dimension.size, s.stop - s.start)
            if isinstance(dimension, Fixed)
            else dimension.window(s.start, s.stop)
            for dimension, s in zip(grid.dimensions, region, strict=True)
        )
    )


def _new_grids(
    array: Array, chunks: Any, shards: Any, node_format: Format, *, changes: bool
) -> tuple[Cells | None, Cells | None]:
    """Return the new chunks and shards; None for those that stay or are not used."""
    stored = _stored_cells(array)
    if shards is False:  # as in create_array
        chunks, shards = array.chunks if chunks is None else chunks, None
    if chunks is None and shards is None:
        if not changes:
            raise GridError("neither chunks nor shards are given: there is nothing to change.")
        if array.shards is None:
            return stored, None
        return (None, stored) if node_format.has_shards else (None, None)
    if is_in_words(chunks) and shards is not None and not is_in_words(shards):
        itemsize = array.meta.data_type.typical_itemsize
        edges = chunks_in_words(chunks, array.shape, itemsize, INNER_CHUNK_BYTES)
        cells = _cells(array, shards, stored, "shards")
        common = Grid.of(array.shape, cells).common_cell
        return dividing_chunks(common, itemsize, itemsize * prod(edges)), cells
    present = stored if array.shards is None else array.chunks
    new_chunks = None if chunks is None else _cells(array, chunks, present, "chunks")
    if shards is None:
        return new_chunks, None
    base = new_chunks or array.chunks if array.shards is None else stored
    if is_in_words(shards):
        inner = checked_shape(new_chunks or array.chunks, array.ndim, "chunks")
        itemsize = array.meta.data_type.typical_itemsize
        return new_chunks, shards_in_words(shards, array.shape, itemsize, inner)
    cells = _cells(array, shards, base, "shards")
    names = array.dimension_names or (None,) * array.ndim
    given = items_by_axis(shards, names, base, "shards", array.where)
    whole = [  # a whole dimension is rounded up to whole chunks
        -1 if n == extent and not isinstance(item, str) else item
        for n, extent, item in zip(cells, array.shape, one_by_one(given, array.ndim), strict=True)
    ]
    return new_chunks, whole_chunks(cells, new_chunks or array.chunks, whole)


def _stored_cells(array: Array) -> Cells:
    """Return the size of stored objects along each dimension, or the sizes if they differ."""
    return tuple(
        dimension.size if isinstance(dimension, Fixed) else dimension.lengths or 1
        for dimension in array.meta.grid.dimensions
    )


def _cells(array: Array, given: Any, present: Cells, what: str) -> Cells:
    """Return lengths or sizes from arguments by position, by name or in words."""
    itemsize = array.meta.data_type.typical_itemsize
    nbytes = CHUNK_BYTES if array.shards is None else INNER_CHUNK_BYTES
    if is_in_words(given):
        return chunks_in_words(given, array.shape, itemsize, nbytes)
    names = array.dimension_names or (None,) * array.ndim
    if what == "shards":
        nbytes = SHARD_BYTES
    return parse_chunks_argument(
        given, array.shape, names, present, what, array.where, itemsize=itemsize, nbytes=nbytes
    )
