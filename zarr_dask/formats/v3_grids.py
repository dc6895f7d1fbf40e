"""Chunk grids, chunk key encodings and other extension points of Zarr v3 documents.

Sources: core specification, "Chunk grids" and "Chunk key encodings"; the registered extension
``rectilinear``, whose cells have declared sizes.

An extension point is an object with a name, or only the name (core specification 3.1,
"Extensions"). Version 3.0 allowed the name alone only for data types, so it is read everywhere and
written only there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from zarr_dask._util.json_fields import (
    FieldReader,
    is_int_in,
    is_ints,
    is_list,
    is_object,
    is_one_of,
)
from zarr_dask.codecs.arrays import Transpose
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.errors import GridError
from zarr_dask.formats.base import ChunkKeyEncoding, stored_grid
from zarr_dask.grid.grid import Dimension, Edges, Fixed, Grid, Shape

__all__ = [
    "Extension",
    "chunk_keys_from_v3",
    "chunk_keys_to_v3",
    "grid_to_v3",
    "may_be_ignored",
    "take_chunk_keys",
    "take_extension",
    "take_grid",
]


_LONGEST = 1 << 63
_MOST_RUNS = 1 << 18
"""Maximum number of runs of equal cells, along all dimensions; real arrays have thousands."""

_is_length = is_int_in(range(1, _LONGEST))


# --- grids ----------------------------------------------------------------------------------------


def take_grid(
    members: FieldReader, shape: Sequence[int] | None, codecs: CodecChain | None
) -> Grid | None:
    """Parse the grid of stored objects of an array.

    Parameters
    ----------
    members
        Fields of its document.
    shape
        Shape of the array; None if it is wrong.
    codecs
        Codecs of a stored object; None if they are wrong.
    """
    extension = take_extension(members, "chunk_grid")
    if extension is None:
        return None
    configuration = FieldReader(extension.configuration, "chunk_grid.configuration")
    if extension.name == "regular":
        grid = _regular(configuration, shape, codecs)
    elif extension.name == "rectilinear":
        grid = _rectilinear(configuration, shape)
    else:
        expected = "a known chunk grid (regular, rectilinear)"
        members.blame("chunk_grid", extension.name, expected, "grid")
        return None
    configuration.refuse_rest()
    members.problems.extend(configuration.problems)
    return grid


def _regular(
    configuration: FieldReader, shape: Sequence[int] | None, codecs: CodecChain | None
) -> Grid | None:
    cell = configuration.take("chunk_shape", is_ints, "a list of integers, one per dimension")
    if shape is None or cell is None:
        return None
    smallest = _divisor(codecs)
    if smallest is not None and len(smallest) == len(cell) == len(shape):
        # a length of 0, written by some for dimensions without elements
        cell = [s if c == n == 0 else c for c, n, s in zip(cell, shape, smallest, strict=True)]
    try:
        return stored_grid(shape, cell)
    except GridError as error:
        configuration.blame("chunk_shape", cell, str(error), "grid")
        return None


def _divisor(codecs: CodecChain | None) -> Shape | None:
    """Return the lengths that must divide those of a stored object if it is a shard."""
    if codecs is None or not codecs.serializer.is_sharding:
        return None
    from zarr_dask.codecs.sharding import Sharding

    if not isinstance(codecs.serializer, Sharding):
        return None
    shape = codecs.serializer.chunk_shape
    for codec in reversed(codecs.arrays):
        if not codec.pointwise:
            return None
        if isinstance(codec, Transpose) and sorted(codec.order) != [*range(len(shape))]:
            return None
        shape = codec.inner_shape(shape)
    return shape


def _rectilinear(configuration: FieldReader, shape: Sequence[int] | None) -> Grid | None:
    kind = configuration.take("kind", is_one_of("inline"), "'inline'")
    expected = "a list of integers and lists, one per dimension"
    edges = configuration.take("chunk_shapes", is_list, expected)
    if kind is None or shape is None or edges is None:
        return None
    if len(edges) != len(shape):
        configuration.blame("chunk_shapes", edges, f"{len(shape)} items, one per dimension", "grid")
        return None
    many = sum(len(item) for item in edges if isinstance(item, list))
    if many > _MOST_RUNS:
        expected = f"lists of at most {_MOST_RUNS} items, together"
        configuration.blame("chunk_shapes", f"{many} items", expected, "grid")
        return None
    made = [
        _dimension(configuration, f"chunk_shapes[{axis}]", item, extent)
        for axis, (item, extent) in enumerate(zip(edges, shape, strict=True))
    ]
    dimensions = [dimension for dimension in made if dimension is not None]
    return Grid(tuple(dimensions)) if len(dimensions) == len(made) else None


def _dimension(configuration: FieldReader, place: str, item: Any, extent: int) -> Dimension | None:
    if _is_length(item):
        return Fixed(item, extent)
    if not isinstance(item, list):
        configuration.blame(place, item, "a length of at least 1, or a list of them", "grid")
        return None
    runs = []
    for position, run in enumerate(item):
        pair = run if isinstance(run, list) else [run, 1]
        if len(pair) != 2 or not all(map(_is_length, pair)):
            expected = "a length of at least 1, or a pair of one and how often it is repeated"
            configuration.blame(f"{place}[{position}]", run, expected, "grid")
            return None
        runs.append((pair[0], pair[1]))
    try:
        return Edges(tuple(runs), extent)
    except GridError as error:
        configuration.blame(place, item, str(error), "grid")
        return None


def grid_to_v3(grid: Grid) -> dict[str, Any]:
    """Return a grid as in documents; a regular one in the form that every reader supports.

    Examples
    --------
    >>> grid_to_v3(Grid((Edges.of((4, 4, 6), 14), Fixed(5, 10))))["configuration"]
    {'kind': 'inline', 'chunk_shapes': [[[4, 2], 6], 5]}
    """
    if grid.cell_shape is not None:
        return {"name": "regular", "configuration": {"chunk_shape": list(grid.cell_shape)}}
    edges = [
        dimension.size
        if isinstance(dimension, Fixed)
        else [size if count == 1 else [size, count] for size, count in dimension.runs]
        for dimension in grid.dimensions
    ]
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": edges}}


# --- keys -----------------------------------------------------------------------------------------

_SEPARATORS = {"default": "/", "v2": "."}


def chunk_keys_from_v3(value: Any) -> ChunkKeyEncoding | None:
    """Parse a chunk key encoding in v3 form; None if it is not valid."""
    members = FieldReader({"chunk_key_encoding": value})
    keys = take_chunk_keys(members)
    return None if members.problems else keys


def take_chunk_keys(members: FieldReader) -> ChunkKeyEncoding | None:
    """Return the layout of keys that a document states."""
    extension = take_extension(members, "chunk_key_encoding")
    if extension is None:
        return None
    if extension.name not in _SEPARATORS:
        expected = "a known chunk key encoding (default, v2)"
        members.blame("chunk_key_encoding", extension.name, expected, "grid")
        return None
    configuration = FieldReader(extension.configuration, "chunk_key_encoding.configuration")
    default = _SEPARATORS[extension.name]
    separator = configuration.take("separator", is_one_of("/", "."), "'/' or '.'", default)
    configuration.refuse_rest()
    members.problems.extend(configuration.problems)
    if configuration.problems:
        return None
    name = cast('Literal["default", "v2"]', extension.name)
    return ChunkKeyEncoding(name, separator)


def chunk_keys_to_v3(keys: ChunkKeyEncoding) -> dict[str, Any]:
    """Return a layout of keys as in documents."""
    return {"name": keys.name, "configuration": {"separator": keys.separator}}


@dataclass(frozen=True, slots=True)
class Extension:
    """The value of an extension point."""

    name: str
    configuration: Mapping[str, Any]

    @staticmethod
    def of(value: Any, members: FieldReader) -> Extension | None:
        """Parse an extension in its short or its long form; None if it is neither.

        Parameters
        ----------
        value
            Value in the document.
        members
            Collects the problems; its position is that of the extension.
        """
        if isinstance(value, str):
            return Extension(value, {})
        form = FieldReader(value, members.place)
        name = form.take("name", lambda v: isinstance(v, str) and v != "", "a name")
        configuration = form.take("configuration", is_object, "an object", {})
        form.take("must_understand", lambda v: isinstance(v, bool), "true or false", True)
        form.refuse_rest()
        members.problems.extend(form.problems)
        return None if form.problems else Extension(name, configuration)


def take_extension(members: FieldReader, name: str) -> Extension | None:
    """Return the extension in a field of a document; None, with problems added, if it has none."""
    expected = "a name, or an object with a 'name'"
    value = members.take(name, lambda v: isinstance(v, str) or is_object(v), expected)
    if value is None:
        return None
    inside = FieldReader({}, members.at(name))
    extension = Extension.of(value, inside)
    members.problems.extend(inside.problems)
    return extension


def may_be_ignored(value: Any) -> bool:
    """True if readers may ignore an unknown value."""
    return isinstance(value, Mapping) and value.get("must_understand") is False
