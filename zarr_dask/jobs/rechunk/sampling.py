"""How well an array compresses, from a few of its stored objects.

A plan estimates stored bytes by it, and whether what lies between two stages is better compressed.
What is looked at is bounded: the sizes of some stored objects, and one chunk that is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from zarr_dask.array import Array
from zarr_dask.codecs.base import ChunkSpec
from zarr_dask.codecs.chain import Chain
from zarr_dask.create import chunk_chain, quick_chain
from zarr_dask.errors import ChunkMissingError, CorruptObjectError, DataTypeError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid import Grid, Region
from zarr_dask.jobs.rechunk.copying import as_in
from zarr_dask.scratch import working_for

__all__ = ["LARGEST", "Ratios", "ratios"]

_OBJECTS = 8
"""Stored objects whose size is asked for."""
LARGEST = 1 << 25
"""Decoded bytes of a chunk that is looked at; larger ones would take too long."""
_SAMPLE = 1 << 22
"""Bytes of it that are encoded."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Stored bytes per decoded byte, as far as a sample tells."""

    source: float = 1.0
    between: float = 1.0
    """Of an intermediate array that is compressed."""
    target: float = 1.0

    def __post_init__(self) -> None:
        for ratio in (self.source, self.between, self.target):
            if not (isfinite(ratio) and ratio >= 0):
                raise ValueError(f"{ratio!r} is no ratio of stored to decoded bytes")


def ratios(source: Array, region: Region, target: Array) -> Ratios:
    """Sample the source, or a region of it; nothing is written, and no memory is kept.

    Parameters
    ----------
    source, region
        What is to be copied.
    target
        What it is to become: its codecs and data type.
    """
    with working_for(("sample", source.where)):
        return _ratios(source, region, target)


def _ratios(source: Array, region: Region, target: Array) -> Ratios:
    """As `ratios`, with what the thread keeps."""
    stored = _stored(source, region)
    values = _values(source, region)
    if values is None:
        return Ratios(stored, 1.0, stored)
    narrow = min(source, target, key=lambda array: array.meta.data_type.typical_itemsize)
    between = _encoded(source, values, narrow, quick_chain(narrow.meta))
    same = _chain(source.meta) == _chain(target.meta)
    if same and source.meta.data_type == target.meta.data_type:
        return Ratios(stored, between or stored, stored)
    made = _encoded(source, values, target, chunk_chain(target.meta))
    return Ratios(stored, between or stored, stored if made is None else made)


def _chain(meta: ArrayMeta) -> list[object]:
    return [codec.document() for codec in chunk_chain(meta).codecs]


def _stored(array: Array, region: Region) -> float:
    """Sizes of some stored objects, evenly spread, by what they hold decoded."""
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
    stored = decoded = 0
    for number in {total * n // _OBJECTS for n in range(_OBJECTS)}:
        places = met.coords_of(number)
        coords = tuple(first + n for (first, _), n in zip(ranges, places, strict=True))
        stored += array.store.size(array.key(coords)) or 0
        decoded += meta.bound(coords).spec.nbytes
    return stored / decoded if decoded else 1.0


def _values(array: Array, region: Region) -> np.ndarray | None:
    """Some values from the middle; None where there are none, or they would take too long."""
    meta = array.meta
    bound = meta.largest_bound()
    chunk = array.chunks if bound.partial else array.write_chunks
    shape = [s.stop - s.start for s in region]
    if meta.data_type.variable or not prod(shape):
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
        return None  # whoever copies it will say so


def _encoded(source: Array, values: np.ndarray, target: Array, chain: Chain) -> float | None:
    """What a chain of codecs makes of the values; None where it cannot take a chunk of them."""
    meta = target.meta
    spec = ChunkSpec(values.shape, meta.data_type, meta.fill, meta.limits.variable_bytes)
    if meta.data_type.variable or any(chain.problems(spec)):
        return None
    region = tuple(slice(0, n, 1) for n in values.shape)
    try:
        converted = as_in(target, values, source, region)
    except DataTypeError:
        return None  # as above
    buffers = chain.bind(spec).encode(converted)
    return sum(len(buffer) for buffer in buffers) / max(spec.nbytes, 1)
