"""Lengths of arrays of one group that an append is changing one by one, or has left half changed.

Readers who find arrays of unequal lengths look for its record (`zarr_dask.journal.group_changes`),
and take all of them for as long as they were. Without a record the append may just have ended: they
open the arrays again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zarr_dask.array.array import Array
from zarr_dask.array.resize import resize_grid
from zarr_dask.formats.base import normalise_path
from zarr_dask.grid.grid import Shape
from zarr_dask.journal.group_changes import LengthChange, change_at
from zarr_dask.stores.base import Store, join

__all__ = ["LOOKS", "as_before", "growing_lengths"]

LOOKS = 4
"""Number of looks at arrays whose lengths an append may be changing one by one."""


def growing_lengths(store: Store, path: str) -> Mapping[str, tuple[Shape, Shape]]:
    """Return the shapes before and after of arrays whose lengths are being changed, by path."""
    record = change_at(store, path)
    lengths = record.lengths if isinstance(record, LengthChange) else {}
    return {normalise_path(join(path, name)): pair for name, pair in lengths.items()}


def as_before(array: Array, lengths: Mapping[str, tuple[Shape, Shape]]) -> Array:
    """Return an array with the length that it had before an append that has not ended."""
    before, after = lengths.get(array.path, (array.shape, array.shape))
    if array.shape != after or before == after:
        return array
    is_sharded = array.meta.codecs.serializer.is_sharding
    grid = resize_grid(array.meta.grid, before, sharded=is_sharded)
    return replace(array, meta=replace(array.meta, grid=grid), shown=None)
