"""Layouts of arrays for the planner: how they are stored, and the memory of their codecs.

Makes the `Layout` of `zarr_dask.jobs.rechunk.cost_model` from arrays: sources, targets, and
intermediate arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zarr_dask.array.array import Array
from zarr_dask.array.create import plain_chain, quick_chain
from zarr_dask.codecs.base import Codec
from zarr_dask.grid.grid import Fixed, Grid, Region
from zarr_dask.jobs.rechunk.codec_throughput import speeds_of
from zarr_dask.jobs.rechunk.cost_model import Layout
from zarr_dask.jobs.rechunk.job import narrower
from zarr_dask.stores.base import Store, can_peek
from zarr_dask.stores.local_paths import check_folder
from zarr_dask.stores.open import Location, open_alike
from zarr_dask.stores.streaming_put import takes_pieces

__all__ = ["layout_between", "layout_of"]


def layout_of(array: Array, region: Region | None = None) -> Layout:
    """Return the layout of an array, or of a region of it, for the planner."""
    part = array.meta.grid.everything if region is None else region
    if [(s.start, s.stop) for s in part] == [(0, n) for n in array.shape]:
        region = None
    grid = array.meta.grid.window(part)
    bound = array.meta.largest_bound()
    chunk = array.chunks if bound.partial else array.write_chunks
    cut = None
    if bound.partial:
        cut = Grid.regular(array.shape, chunk).window(part)
    elif not all(isinstance(dimension, Fixed) for dimension in grid.dimensions):
        cut = grid
    uneven = not bound.partial and array.meta.grid.cell_shape is None
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
        uneven=uneven,
        stored=stored,
        clipped=clipped,
        indices=_depth(array.meta.codecs.codecs) if bound.partial else 0,
        in_flight=_in_flight(array.store),
        in_pieces=bound.in_pieces and takes_pieces(array.store),
        tables=bound.tables,
        decoding=bound.decoding,
        reading=bound.reading,
        turned=bound.turned,
        block=bound.block if can_peek(array.store) and cut is None and not uneven else 0,
    )


def _depth(codecs: Sequence[Codec]) -> int:
    """Return the number of nested shards around the innermost chunks."""
    inner = [getattr(codec, "inner_codecs", ()) for codec in codecs]
    return max((1 + _depth(within) for within in inner if within), default=0)


def _in_flight(store: Store) -> int:
    """Return the maximum bytes in flight from a store; see `zarr_dask.stores.base.Coalescing`."""
    policy = store.coalescing
    return 0 if policy.requests == 1 else policy.in_flight + policy.largest


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
        store = open_alike(temp, target.store)
        check_folder(store, "", "temp=")
    meta = narrower(source, target).meta
    chain = quick_chain(meta) if compressed else plain_chain(meta)
    working = 0
    if meta.data_type.variable:
        working = replace(meta, codecs=chain).largest_bound().working
    return Layout(
        meta.grid,
        meta.grid.largest_cell,
        meta.data_type.typical_itemsize,
        working,
        *speeds_of(chain),
        ratio=ratio,
        kind=repr(meta.data_type),
        compressed=compressed,
        in_flight=_in_flight(store),
        tables=max((codec.tables(_LARGE) for codec in chain.bytes), default=0),
        decoding=max((codec.decoding(_LARGE) for codec in chain.bytes), default=0),
    )


_LARGE = 1 << 30
"""Bytes of a chunk large enough to have blocks of all sizes."""
