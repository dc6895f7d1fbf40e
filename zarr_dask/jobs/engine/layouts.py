"""Layouts of arrays for the planner: how they are stored, and the memory of their codecs.

Makes the `Layout` of `zarr_dask.jobs.engine.cost_model` from arrays: sources, targets, and
intermediate arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zarr_dask.array.array import Array
from zarr_dask.array.create import fast_chain, uncompressed_chain
from zarr_dask.codecs.base import Codec, CodecMemory, largest_partial_read
from zarr_dask.codecs.throughput import speeds_of
from zarr_dask.grid.grid import Fixed, Grid, Region
from zarr_dask.jobs.engine.cost_model import Layout
from zarr_dask.stores.base import Store, supports_cheap_random_reads
from zarr_dask.stores.open import Location, open_with_options_of
from zarr_dask.stores.real_location import check_folder
from zarr_dask.stores.streaming_put import supports_streaming_put

__all__ = ["layout_between", "layout_of", "smaller_dtype_array"]


def layout_of(array: Array, region: Region | None = None) -> Layout:
    """Return the layout of an array, or of a region of it, for the planner."""
    part = array.meta.grid.everything if region is None else region
    if [(s.start, s.stop) for s in part] == [(0, n) for n in array.shape]:
        region = None
    grid = array.meta.grid.window(part)
    bound = array.meta.largest_bound()
    in_part = bound.partial and not array.options.verify  # which reads stored objects whole
    chunk = array.chunks if in_part else array.write_chunks
    cut = None
    if in_part:
        cut = Grid.regular(array.shape, chunk).window(part)
    elif not all(isinstance(dimension, Fixed) for dimension in grid.dimensions):
        cut = grid
    uneven = not in_part and array.meta.grid.cell_shape is None
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
    lead = tuple(
        s.start - cells.start(cells.find(s.start)) if s.start < s.stop else 0
        for cells, s in zip(array.meta.grid.dimensions, part, strict=True)
    )
    divides = supports_cheap_random_reads(array.store) and not (
        cut is not None or uneven or array.options.verify
    )
    return Layout(
        grid,
        chunk,
        itemsize,
        bound.memory,
        *speeds,
        kind=kind,
        chunks=cut,
        uneven=uneven,
        stored=stored,
        clipped=clipped,
        lead=lead if uneven else None,
        indices=_depth(array.meta.codecs.codecs) if in_part else 0,
        in_flight=_in_flight(array.store),
        streams_chunks=bound.streams_chunks and supports_streaming_put(array.store),
        variable=array.meta.data_type.variable,
        partial_decode_nbytes=bound.partial_decode_nbytes if divides else 0,
        partial_read_nbytes=bound.partial_read_nbytes if divides else 0,
    )


def _depth(codecs: Sequence[Codec]) -> int:
    """Return the number of nested shards around the innermost chunks."""
    inner = [getattr(codec, "inner_codecs", ()) for codec in codecs]
    return max((1 + _depth(within) for within in inner if within), default=0)


def _in_flight(store: Store) -> int:
    """Return the maximum bytes in flight from a store; see `zarr_dask.stores.base.ReadPolicy`."""
    policy = store.coalescing
    return 0 if policy.max_concurrent_requests == 1 else policy.max_bytes_in_flight + policy.largest


def layout_between(
    source: Array,
    target: Array,
    temp: Location | None = None,
    *,
    compressed: bool = False,
    ratio: float = 1.0,
) -> Layout:
    """Return the layout of intermediate arrays without their grid, which the planner chooses.

    Raises
    ------
    StoreError
        If there is no location for them.
    """
    store = target.store
    if temp is not None:
        store = open_with_options_of(temp, target.store)
        check_folder(store, "", "temp=")
    meta = smaller_dtype_array(source, target).meta
    chain = fast_chain(meta) if compressed else uncompressed_chain(meta)
    divides = len(chain.bytes) == 1 and chain.bytes[0].supports_partial_decode
    divides = divides and not meta.data_type.variable and supports_cheap_random_reads(store)
    working = 0
    if meta.data_type.variable:
        working = replace(meta, codecs=chain).largest_bound().memory.workspace
    memory = CodecMemory(
        working,
        working,
        max((codec.encoder_state_nbytes(_LARGE) for codec in chain.bytes), default=0),
        max((codec.decoder_state_nbytes(_LARGE) for codec in chain.bytes), default=0),
    )
    return Layout(
        meta.grid,
        meta.grid.largest_cell,
        meta.data_type.typical_itemsize,
        memory,
        *speeds_of(chain),
        ratio=ratio,
        kind=repr(meta.data_type),
        compressed=compressed,
        variable=meta.data_type.variable,
        in_flight=_in_flight(store),
        partial_read_nbytes=largest_partial_read(_LARGE) if divides else 0,
    )


def smaller_dtype_array(source: Array, target: Array) -> Array:
    """Return the array with the narrower data type, which intermediate arrays have too."""
    sizes = (array.meta.data_type.typical_itemsize for array in (source, target))
    return target if next(sizes) > next(sizes) else source


_LARGE = 1 << 30
"""Bytes of a chunk large enough to have blocks of all sizes."""
