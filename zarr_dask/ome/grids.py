"""Chunks and shards of the levels of an image, and the arrays that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from zarr_dask.array.array import Array
from zarr_dask.array.cells import (
    dividing_chunks,
    items_by_axis,
    parse_chunks_argument,
    size_in_bytes,
    whole_chunks,
)
from zarr_dask.array.create import ArraySpec, array_meta
from zarr_dask.dtypes import DataType
from zarr_dask.errors import GridError
from zarr_dask.formats.base import Format, where
from zarr_dask.grid.grid import Shape
from zarr_dask.indexing.basic import checked_shape
from zarr_dask.ome.build_metadata import AxesAndTransforms
from zarr_dask.stores.base import Store, join

__all__ = ["default_chunks", "level_arrays", "level_grids"]

_CHUNK = 1 << 20
_SHARD = 1 << 25
"""Approximate decoded bytes of a chunk and of a shard, if they are not given."""


def level_grids(
    chunks: Any, shards: Any, shape: Shape, frame: AxesAndTransforms, itemsize: int
) -> tuple[Shape, Shape | None]:
    """Return the chunks of level 0, and its shards, if there are any.

    Parameters
    ----------
    chunks, shards
        As `zarr_dask.create_array` takes them. ``"auto"`` and sizes grow along space.
    shape, frame, itemsize
        Of level 0.

    Raises
    ------
    GridError
        If they are not valid lengths, or chunks do not divide the shards.
    """
    names, present = frame.names, default_chunks(shape, frame, itemsize)
    if chunks is None or chunks is False or isinstance(chunks, str):
        inner = _in_words(chunks, shape, frame, itemsize)
    else:
        inner = _lengths(chunks, shape, names, present, "chunks", itemsize)
    if shards is None or shards is False:
        return inner, None
    if isinstance(shards, str):
        nbytes = _SHARD if shards == "auto" else size_in_bytes(shards, "shards")
        return inner, _automatic_shards(inner, shape, frame, itemsize, nbytes)
    outer = _lengths(shards, shape, names, inner, "shards", itemsize)
    items = items_by_axis(shards, names, inner, "shards", "the image")
    outer = checked_shape(whole_chunks(outer, inner, items), len(shape), "shards")
    if any(length % size for length, size in zip(outer, inner, strict=True)):
        if chunks is None or isinstance(chunks, str):
            return dividing_chunks(outer, itemsize, itemsize * prod(inner)), outer
        raise GridError(
            f"shards={outer} are no multiples of chunks={inner}: along each axis the length of a "
            "shard must be a multiple of that of its chunks."
        )
    return inner, outer


def _in_words(given: Any, shape: Shape, frame: AxesAndTransforms, itemsize: int) -> Shape:
    if given is False:
        return tuple(max(n, 1) for n in shape)
    nbytes = _CHUNK if given in {None, "auto"} else size_in_bytes(given, "chunks")
    return default_chunks(shape, frame, itemsize, nbytes)


def _lengths(
    given: Any, shape: Shape, names: Sequence[str], present: Shape, what: str, itemsize: int
) -> Shape:
    cells = parse_chunks_argument(
        given, shape, names, present, what, "the image", itemsize=itemsize, nbytes=_CHUNK
    )
    if any(isinstance(one, tuple) for one in cells):
        raise GridError(
            f"{what}={given!r}: all {what} of a level have one size; give a length for each of the "
            f"axes {list(names)}."
        )
    return checked_shape(cells, len(shape), what)


def default_chunks(
    shape: Shape, frame: AxesAndTransforms, itemsize: int, nbytes: int = _CHUNK
) -> Shape:
    """Return the default chunks of level 0, of at most `nbytes` together.

    They have one element along axes that are not space, and powers of two along those of space.
    """
    space = frame.space or tuple(range(len(shape)))[-2:]
    chunk = [1] * len(shape)
    growing = list(space)
    while growing:
        axis = min(growing, key=lambda one: (chunk[one], -one))
        doubled = prod(chunk) * itemsize * 2
        if chunk[axis] >= shape[axis]:
            growing.remove(axis)
        elif doubled > nbytes:
            break
        else:
            chunk[axis] *= 2
    return tuple(chunk)


def _automatic_shards(
    chunks: Shape, shape: Shape, frame: AxesAndTransforms, itemsize: int, nbytes: int
) -> Shape:
    shard = list(chunks)
    growing = list(frame.space or range(len(shape)))
    while growing and prod(shard) * itemsize * 2 <= nbytes:
        axis = min(growing, key=lambda one: (shard[one], -one))
        if shard[axis] >= shape[axis]:
            growing.remove(axis)
        else:
            shard[axis] *= 2
    return tuple(shard)


def level_arrays(
    store: Store,
    path: str,
    node_format: Format,
    names: Sequence[str],
    shapes: Sequence[Shape],
    data_type: DataType | Any,
    chunks: Shape,
    shards: Shape | None,
    axes: Sequence[str],
    codecs: Any,
) -> tuple[Array, ...]:
    """Return the arrays of some levels, as they will be stored.

    No chunk is longer than its level, and no shard longer than the chunks that its level has.

    Raises
    ------
    DataTypeError, GridError, MetadataError
        If such arrays are not possible.
    """
    arrays = []
    for name, shape in zip(names, shapes, strict=True):
        cut = tuple(max(min(c, n), 1) for c, n in zip(chunks, shape, strict=True))
        outer = None
        if shards is not None:
            whole = (max(-(-n // c) * c, c) for c, n in zip(cut, shape, strict=True))
            outer = tuple(map(min, shards, whole))
        spec = ArraySpec(
            shape=shape,
            dtype=data_type,
            chunks=cut,
            shards=outer,
            codecs=codecs,
            dimension_names=tuple(axes),
            format=node_format.name,
            chunk_key_encoding={"separator": "/"},
        )
        at = join(path, name)
        meta = array_meta(spec, where(store, at))
        node_format.documents(meta, at)  # raises if the format cannot express it
        arrays.append(Array(store, at, meta, node_format))
    return tuple(arrays)
