"""Compression ratio of an array, from a sample of its stored objects.

A plan uses it to estimate stored bytes, and to decide about compressing intermediate arrays. The
sample is limited to the sizes of some stored objects, one decoded chunk, and one block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, prod

import numpy as np

from zarr_dask._util.buffers import task_memory_scope
from zarr_dask._util.threads import run_concurrently
from zarr_dask.array.array import Array
from zarr_dask.array.create import fast_chain, unsharded_chain
from zarr_dask.codecs.base import ChunkSpec
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.errors import ChunkMissingError, CorruptObjectError, DataTypeError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid.grid import Grid, Region
from zarr_dask.jobs.engine.cost_model import Layout
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.engine.thread_map import map_concurrently, transfers_for
from zarr_dask.jobs.rechunk.copy_task import cast_to_target
from zarr_dask.stores.base import is_remote

__all__ = ["LARGEST", "CompressionRatios", "ratios"]

_OBJECTS = 8
"""Number of stored objects whose size is requested."""
LARGEST = 1 << 25
"""Maximum decoded bytes of a chunk in the sample; larger ones would take too long."""
_SAMPLE = 1 << 22
"""Bytes of the sample that are encoded."""
_WORTHWHILE = 1 << 16
"""Decoded bytes of a region below which encoding a sample would take as long as the copy."""


@dataclass(frozen=True, slots=True)
class CompressionRatios:
    """Stored bytes per decoded byte, estimated from a sample."""

    source: float = 1.0
    between: float = 1.0
    """Ratio of a compressed intermediate array."""
    target: float = 1.0
    in_blocks: bool = True
    """False if a chunk of the source had to be decoded whole, though its codec reads blocks."""

    def __post_init__(self) -> None:
        for ratio in (self.source, self.between, self.target):
            if not (isfinite(ratio) and ratio >= 0):
                raise ValueError(f"{ratio!r} is no ratio of stored to decoded bytes")

    def layout_of_source(self, source: Array, region: Region) -> Layout:
        """Return the layout of the source, or of a region of it, as it was found."""
        found = replace(layout_of(source, region), ratio=self.source)
        return found if self.in_blocks else replace(found, partial_decode_nbytes=0)


def ratios(source: Array, region: Region, target: Array) -> CompressionRatios:
    """Sample the source, or a region of it; nothing is written, and no memory is kept.

    Parameters
    ----------
    source, region
        Array and region to copy.
    target
        The new array, of which codecs and data type are used.
    """
    with task_memory_scope(("sample", source.where)):
        return replace(_ratios(source, region, target), in_blocks=_in_blocks(source, region))


def _ratios(source: Array, region: Region, target: Array) -> CompressionRatios:
    """Return the ratios, with the caches of the thread in use."""
    if is_remote(source.store):
        looks = (partial(_stored, source, region), partial(_values, source, region))
        stored, values = run_concurrently(*looks)
    else:
        stored, values = _stored(source, region), _values(source, region)
    if values is None:
        return CompressionRatios(stored, 1.0, stored)
    narrow = min(source, target, key=lambda array: array.meta.data_type.typical_itemsize)
    between = _encoded(source, values, narrow, fast_chain(narrow.meta))
    same = _chain(source.meta) == _chain(target.meta)
    if same and source.meta.data_type == target.meta.data_type:
        return CompressionRatios(stored, between or stored, stored)
    made = _encoded(source, values, target, unsharded_chain(target.meta))
    return CompressionRatios(stored, between or stored, stored if made is None else made)


class _WholeChunkError(Exception):
    """The chunk cannot be read block by block."""


def _in_blocks(array: Array, region: Region) -> bool:
    """Return False if an element in the middle of a region cannot be read without its chunk.

    Writers may make blosc frames without blocks that can be told apart; no document says so.
    """
    nbytes = prod(s.stop - s.start for s in region) * array.meta.data_type.typical_itemsize
    if nbytes < _WORTHWHILE or not layout_of(array, region).partial_decode_nbytes:
        return True

    def refuse() -> None:
        raise _WholeChunkError

    middle = [(s.start + s.stop) // 2 for s in region]
    element = tuple(slice(place, place + 1, 1) for place in middle)
    try:
        array.reader.sparing(refuse).read_region(
            element, np.empty([1] * array.ndim, array.dtype), 1
        )
    except _WholeChunkError:
        return False
    except (CorruptObjectError, ChunkMissingError):
        return True  # copying it will raise
    return True


def _chain(meta: ArrayMeta) -> list[object]:
    return [codec.document() for codec in unsharded_chain(meta).codecs]


def _stored(array: Array, region: Region) -> float:
    """Return the stored bytes per decoded byte of some stored objects, evenly spread."""
    meta = array.meta
    grid = meta.grid
    ranges = [
        (dimension.find(s.start), dimension.find(s.stop - 1) + 1)
        for dimension, s in zip(grid.dimensions, region, strict=True)
        if s.stop > s.start
    ]
    if len(ranges) < len(region):
        return 1.0
    met = Grid.regular([last - first for first, last in ranges], [1] * len(ranges))
    total = met.ncells
    objects = [
        tuple(first + n for (first, _), n in zip(ranges, met.coords_of(number), strict=True))
        for number in {total * n // _OBJECTS for n in range(_OBJECTS)}
    ]
    at_a_time = transfers_for(array.store)
    sizes = map_concurrently(array.store.size, map(array.key, objects), at_a_time)
    stored = sum(size or 0 for size in sizes)
    decoded = sum(meta.bound(coords).spec.nbytes for coords in objects)
    return stored / decoded if decoded else 1.0


def _values(array: Array, region: Region) -> np.ndarray | None:
    """Return values from the middle of a region; None if there are none, or they take too long.

    That is longer than the copy may take, or more than `LARGEST`.
    """
    meta = array.meta
    bound = meta.largest_bound()
    chunk = array.chunks if bound.partial else array.write_chunks
    shape = [s.stop - s.start for s in region]
    if meta.data_type.variable or not prod(shape):
        return None
    if prod(shape) * meta.data_type.typical_itemsize < _WORTHWHILE:
        return None
    if prod(chunk) * meta.data_type.typical_itemsize > LARGEST:
        return None
    wanted: list[slice] = []
    left = _SAMPLE // meta.data_type.typical_itemsize
    for s, length in zip(reversed(region), reversed(chunk), strict=True):
        middle = (s.start + s.stop) // 2
        first = max(middle - middle % length, s.start)
        size = max(min(length, s.stop - first, left), 1)
        left //= size
        wanted.append(slice(first, first + size, 1))
    try:
        return array.read(tuple(reversed(wanted)), threads=1)
    except (CorruptObjectError, ChunkMissingError):
        return None  # copying it will raise


def _encoded(source: Array, values: np.ndarray, target: Array, chain: CodecChain) -> float | None:
    """Return the ratio of a chain of codecs for the values; None if it cannot encode them."""
    meta = target.meta
    spec = ChunkSpec(values.shape, meta.data_type, meta.fill_value, meta.limits.variable_bytes)
    if meta.data_type.variable or any(chain.problems(spec)):
        return None
    region = tuple(slice(0, n, 1) for n in values.shape)
    try:
        converted = cast_to_target(target, values, source, region)
    except DataTypeError:
        return None  # as above
    buffers = chain.bind(spec).encode(converted)
    return sum(len(buffer) for buffer in buffers) / max(spec.nbytes, 1)
