"""Chunks and shards of the levels of an image, and the arrays that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from zarr_dask._util.json_fields import is_int
from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec, array_meta
from zarr_dask.dtypes import DataType
from zarr_dask.errors import GridError
from zarr_dask.formats.base import Format, where
from zarr_dask.grid.grid import Shape
from zarr_dask.ome.build_metadata import AxesAndTransforms, plain
from zarr_dask.stores.base import Store, join

__all__ = ["default_chunks", "level_arrays", "shards_of"]

_CHUNK = 1 << 20
_SHARD = 1 << 25
"""Approximate decoded bytes of a chunk and of a shard, if they are not given."""


def default_chunks(given: Any, shape: Shape, frame: AxesAndTransforms, itemsize: int) -> Shape:
    """Return the chunks of level 0, with defaults for those that are not given.

    By default one element along axes that are not space, and powers of two along those of space,
    about 1 MiB in total.

    Raises
    ------
    GridError
        If they are not valid lengths.
    """
    automatic = _automatic(shape, frame, itemsize)
    return _lengths(given, frame.names, shape, automatic, "chunks")


def _automatic(shape: Shape, frame: AxesAndTransforms, itemsize: int) -> Shape:
    space = frame.space or tuple(range(len(shape)))[-2:]
    chunk = [1] * len(shape)
    growing = list(space)
    while growing:
        axis = min(growing, key=lambda one: (chunk[one], -one))
        doubled = prod(chunk) * itemsize * 2
        if chunk[axis] >= shape[axis]:
            growing.remove(axis)
        elif doubled > _CHUNK:
            break
        else:
            chunk[axis] *= 2
    return tuple(chunk)


def shards_of(
    given: Any, chunks: Shape, shape: Shape, frame: AxesAndTransforms, itemsize: int
) -> Shape | None:
    """Return the shards of level 0; None if there are none.

    ``"auto"`` makes shards of whole chunks, of about 32 MiB.

    Raises
    ------
    GridError
        If they are not valid lengths, or chunks do not divide them.
    """
    if given is None:
        return None
    if isinstance(given, str) and given == "auto":
        return _automatic_shards(chunks, shape, frame, itemsize)
    shards = _lengths(given, frame.names, shape, chunks, "shards", chunks)
    if any(outer % inner for outer, inner in zip(shards, chunks, strict=True)):
        raise GridError(
            f"shards={shards} are no multiples of chunks={chunks}: along each axis the length of a "
            "shard must be a multiple of that of its chunks."
        )
    return shards


def _automatic_shards(
    chunks: Shape, shape: Shape, frame: AxesAndTransforms, itemsize: int
) -> Shape:
    shard = list(chunks)
    growing = list(frame.space or range(len(shape)))
    while growing and prod(shard) * itemsize * 2 <= _SHARD:
        axis = min(growing, key=lambda one: (shard[one], -one))
        if shard[axis] >= shape[axis]:
            growing.remove(axis)
        else:
            shard[axis] *= 2
    return tuple(shard)


def _lengths(
    given: Any,
    names: Sequence[str],
    shape: Shape,
    default: Shape,
    what: str,
    multiple: Shape | None = None,
) -> Shape:
    given = plain(given)
    if given is None or given == "auto":
        return default
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in names]
        if unknown:
            raise GridError(f"{what} names {unknown}, which are no axes; there are {list(names)}.")
        items = [given.get(name, size) for name, size in zip(names, default, strict=True)]
    elif is_int(given):
        items = [given] * len(shape)
    else:
        items = list(given) if isinstance(given, Sequence) else []
    if len(items) != len(shape) or not all(is_int(n) and (n == -1 or n >= 1) for n in items):
        raise GridError(
            f"{what}={given!r}: expected {len(shape)} lengths of at least 1, or -1 for a whole "
            f"axis, by position or by name, for the axes {list(names)}."
        )
    steps = multiple or (1,) * len(shape)
    return tuple(
        int(item) if item != -1 else max(-(-extent // step) * step, 1)
        for item, extent, step in zip(items, shape, steps, strict=True)
    )


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
