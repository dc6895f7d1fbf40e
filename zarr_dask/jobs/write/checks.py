"""Checks that refuse invalid writes.

They refuse values that do not fit the array, objects that other jobs may write, locations that a
graph still reads lazily, and two writes to one location.
"""

from __future__ import annotations

from itertools import combinations, permutations, product
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zarr_dask._util.display import format_dtype
from zarr_dask.array.array import Array
from zarr_dask.dtypes.base import Casting, DefaultFill
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    NodeExistsError,
    PartialWriteError,
    SourceIsTargetError,
)
from zarr_dask.formats.base import ChunkKeyEncoding
from zarr_dask.grid.grid import Dimension, Region, cells_overlapping
from zarr_dask.hierarchy.key_swap import KeySwap
from zarr_dask.jobs.engine.find_sources import find_lazy_arrays, is_file, places_of_source
from zarr_dask.jobs.engine.grid_arguments import clipped_slices
from zarr_dask.jobs.engine.plan import format_region, pluralize
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import contains_or_equal
from zarr_dask.stores.real_location import place_of_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import dask.array as da

    from zarr_dask.jobs.write.plan import PlannedWrite
    from zarr_dask.jobs.write.request import WriteRequest

__all__ = [
    "check_disjoint_targets",
    "check_existing",
    "check_fits",
    "check_not_read",
    "check_whole",
    "partial_objects",
]


def check_existing(target: Array, request: WriteRequest) -> None:
    """Refuse arguments of a new array for an array that exists.

    Raises
    ------
    NodeExistsError
        If there are such arguments.
    """
    wanted = request.wanted
    given = {
        "chunks": wanted.chunks,
        "shards": wanted.shards,
        "codecs": wanted.codecs,
        "dimension_names": wanted.dimension_names,
        "attributes": wanted.attributes or None,
    }
    named = [name for name, value in given.items() if value is not None]
    said = {"compressor", "compressors"}  # None has a meaning for them: no compressor
    named += [key for key, value in request.keywords.items() if value is not None or key in said]
    is_number = isinstance(wanted.fill_value, Number | np.bool_)  # others may not compare
    is_zero = is_number and wanted.fill_value == 0  # the default of zarr-python 2
    if not is_zero and wanted.fill_value is not DefaultFill.OF_DTYPE:
        named.append("fill_value")
    if wanted.format not in (None, target.format):
        named.append("format")
    if f"v{request.keywords.get('zarr_format')}" == target.format:
        named.remove("zarr_format")
    if named:
        raise NodeExistsError(
            f"{named} describe a new array, but {target.where} exists and keeps its own; leave "
            "them out, or write to another place."
        )


def check_fits(
    values: da.Array, target: Array, region: Region, casting: Casting, given: Any = None
) -> None:
    """Refuse values that do not fit a region; `given` is the region as the user gave it.

    Raises
    ------
    GridError
        If the region has steps, or another shape.
    DataTypeError
        If the array cannot hold every value of their data type.
    """
    shape = tuple(len(range(s.start, s.stop, s.step)) for s in region)
    if any(s.step != 1 for s in region):
        steps = tuple(s.step for s in region)
        raise GridError(
            f"region {given if isinstance(given, dict) else format_region(region)} has steps "
            f"{steps}; regions to write are contiguous. array[...] = values writes others."
        )
    if values.shape != shape:
        cut = clipped_slices(given, target.shape, target.dimension_names or (), target.where)
        raise GridError(
            f"the dask array has shape {values.shape}, the region {format_region(region)} of "
            f"{target.where} has {shape}"
            + "".join(f"; {one}" for one in cut)
            + (". Make the array longer (resize), or append to it." if cut else ".")
        )
    if not target.meta.data_type.accepts(values.dtype, casting):
        raise DataTypeError(
            f"{target.where} holds {target.meta.data_type.label}, which cannot hold every value of "
            f"{format_dtype(values.dtype)}; convert with x.astype({format_dtype(target.dtype)!r}) "
            "if that is meant, "
            "or pass casting='unsafe'."
        )


def partial_objects(target: Array, region: Region) -> tuple[tuple[int, ...], ...]:
    """Return the stored objects that a region covers only in part; they lie at its borders."""
    pairs = zip(target.meta.grid.dimensions, region, strict=True)
    return tuple(_cut_cells([_along(dimension, selected) for dimension, selected in pairs]))


class _CellsAlong(NamedTuple):
    """The cells along one dimension that a region overlaps."""

    cells: range
    cut: tuple[int, ...]
    """Those that it covers only in part: none but the first and the last one can be."""


def _along(dimension: Dimension, selected: slice) -> _CellsAlong:
    cells = cells_overlapping(dimension, selected)
    borders = dict.fromkeys((cells[0], cells[-1])) if cells else {}
    return _CellsAlong(cells, tuple(at for at in borders if _is_cut(dimension, at, selected)))


def _is_cut(dimension: Dimension, at: int, selected: slice) -> bool:
    begin = dimension.start(at)
    end = min(begin + dimension.size_of(at), dimension.extent)
    return bool(selected.start > begin or selected.stop < end)


def _cut_cells(along: Sequence[_CellsAlong]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of the cells that are not whole along each dimension, in C order."""
    if not any(one.cut for one in along):
        return
    first, rest = along[0], along[1:]
    everything = [one.cells for one in rest]
    for index in first.cells if any(one.cut for one in rest) else first.cut:
        others = product(*everything) if index in first.cut else _cut_cells(rest)
        yield from ((index, *other) for other in others)


def check_whole(plan: PlannedWrite) -> None:
    """Refuse to write part of a stored object, the rest of which another job may be writing.

    Raises
    ------
    PartialWriteError
        If the region cuts through an object.
    """
    if not plan.partial:
        return
    target, cut = plan.target, plan.partial
    raise PartialWriteError(
        f"the region {format_region(plan.region)} covers {pluralize(len(cut), 'stored object')} of "
        f"{target.where} only in part (the first at {cut[0]}; they have the shape "
        f"{target.write_chunks}), so that another job may be writing to the same ones. Extend the "
        'region to whole stored objects, pass partial="own" if no other job writes there, or '
        'partial="compare" if the others pass it too.'
    )


def check_not_read(
    values: da.Array,
    store: Store,
    path: str,
    keys: ChunkKeyEncoding | None = None,
    *,
    removes: bool = True,
    moves: bool = False,
) -> None:
    """Refuse to overwrite data that a graph reads lazily, and to remove files that it reads.

    Parameters
    ----------
    values, store, path
        The dask array, and the node that is written.
    keys
        The keys of a new version that is written beside the node itself; None where it is
        overwritten.
    removes
        True if all that lies below the node is removed.
    moves
        True if the node is moved away until everything is written, so that it may be read.

    Raises
    ------
    SourceIsTargetError
        If the graph reads the node at the path, or one above or below it.
    """
    place = place_of_target(store, path)
    for source in find_lazy_arrays(values):
        for read in places_of_source(source):
            if not contains_or_equal(read, place):
                continue
            if is_file(source):
                if not removes:
                    continue
                raise SourceIsTargetError(
                    f"the dask array reads {read}, which lies where {place} would be replaced, "
                    "and would be removed. Write to another place."
                )
            if moves:
                continue
            if keys is not None:
                _check_other_keys(source, keys, read)
                continue
            raise SourceIsTargetError(
                f"the dask array reads {read}, which would be written: values would be lost "
                "before they are read. Write to another place, and replace the array by it "
                "afterwards; mode='swap' does that for local files, and for format v3 in object "
                "stores."
            )


def _check_other_keys(source: Any, keys: ChunkKeyEncoding, read: str) -> None:
    """Refuse to write objects of the names that an array had two versions ago, if it is read."""
    if isinstance(source, Array) and source.meta.chunk_key_encoding == keys:
        raise SourceIsTargetError(
            f"the dask array reads {read} as it was before it was replaced, under keys that the "
            "new version has, too. Open the array again, and make the dask array from that."
        )


# --- several arrays -------------------------------------------------------------------------------


def check_disjoint_targets(plans: Sequence[PlannedWrite]) -> None:
    """Refuse writes that conflict with each other.

    Raises
    ------
    NodeExistsError
        If two of them make the same array, or one array inside another.
    PartialWriteError
        If two of them would write one stored object.
    SourceIsTargetError
        If one reads what another writes.
    """
    for one, other in permutations(plans, 2):
        target, swap = other.target, other.swap if other.deferred else None  # else it goes at once
        keys = target.meta.chunk_key_encoding if isinstance(swap, KeySwap) else None
        is_moved = isinstance(swap, AtomicReplace)
        check_not_read(one.values, target.store, target.path, keys, moves=is_moved)
    for one, other in combinations(plans, 2):
        _check_pair(one, other)


def _check_pair(one: PlannedWrite, other: PlannedWrite) -> None:
    here, there = (place_of_target(plan.target.store, plan.target.path) for plan in (one, other))
    if not contains_or_equal(here, there):
        return
    if here != there or one.creates or other.creates:
        raise NodeExistsError(
            f"two of the arrays go to {one.target.where} and {other.target.where}: one would "
            "replace the other. Give each a place of its own, as component=['a', 'b']."
        )
    if one.before is not None or other.before is not None:
        raise PartialWriteError(
            f"two of the arrays go to {one.target.where}, which one of them makes longer; join "
            "them with dask.array.concatenate and append the whole."
        )
    shared = _shared_object(one, other)
    if shared is not None:
        raise PartialWriteError(
            f"the regions {format_region(one.region)} and {format_region(other.region)} of "
            f"{one.target.where} meet in the stored object {shared}, which would have two writers. "
            "Choose regions of whole stored objects, or join the arrays with "
            "dask.array.concatenate and write them as one."
        )


def _shared_object(one: PlannedWrite, other: PlannedWrite) -> tuple[int, ...] | None:
    """Return the coordinates of a stored object that two regions of one array share, or None."""
    coords = []
    for dimension, a, b in zip(
        one.target.meta.grid.dimensions, one.region, other.region, strict=True
    ):
        if a.start >= a.stop or b.start >= b.stop:
            return None
        first = max(dimension.find(a.start), dimension.find(b.start))
        if first > min(dimension.find(a.stop - 1), dimension.find(b.stop - 1)):
            return None
        coords.append(first)
    return tuple(coords)
