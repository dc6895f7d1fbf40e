"""From the arguments of a user to the metadata of a new array; the defaults are here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.base import ArrayCodec, Codec, Serializer
from zarr_dask.codecs.chain import Chain, build
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.objects.object_arrays import ObjectSerializer
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.dtypes import DataType, data_type_of
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MetadataError,
    Problem,
)
from zarr_dask.formats.base import ArrayMeta, ChunkKeys, Format, checked_attributes
from zarr_dask.formats.detect import format_named
from zarr_dask.formats.translate import TARGETS, translate
from zarr_dask.grid.grid import Cells, Grid, Shape
from zarr_dask.indexing.basic import checked_cells, checked_shape

__all__ = [
    "DEFAULT_FORMAT",
    "ArraySpec",
    "array_meta",
    "as_stored",
    "auto_chunks",
    "chunk_chain",
    "converted",
    "dividing_chunks",
    "given_names",
    "given_shape",
    "plain_chain",
    "quick_chain",
    "regridded",
]

DEFAULT_FORMAT = "v3"
_CHUNK_BYTES = 4 << 20
_INNER_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """An array as a user describes it; see `zarr_dask.create_array`."""

    shape: Any
    dtype: Any
    chunks: Any = "auto"
    shards: Any = None
    codecs: Any = None
    fill_value: Any = 0
    dimension_names: Sequence[str | None] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    format: str | None = None
    """None for the default: v3, or the format of the surrounding group."""
    order: Literal["C", "F"] = "C"
    chunk_key_encoding: Any = None


def array_meta(spec: ArraySpec, at: str) -> ArrayMeta:
    """Return the metadata of a new array.

    Parameters
    ----------
    spec
        Description of the array.
    at
        Location of the array, for messages.

    Raises
    ------
    GridError, DataTypeError, MetadataError
        If the array cannot be created.
    """
    node_format = format_named(spec.format or DEFAULT_FORMAT)
    shape = given_shape(spec.shape)
    names = given_names(spec.dimension_names, len(shape))
    data_type, stored = _data_type(spec.dtype, at)
    grid, inner = _grids(spec, shape, data_type.typical_itemsize)
    if spec.order not in ("C", "F"):
        raise ValueError(f"order={spec.order!r}: expected 'C' or 'F'.")
    chain = node_format.chain(_listed(spec.codecs), data_type, stored, spec.order, len(shape))
    if isinstance(chain, list):
        raise MetadataError.of(at, chain)
    data_type = _named_by_codec(data_type, chain)
    if inner is not None:
        chain = Chain((), Sharding(inner, chain, node_format.shard_index_codecs))
    meta = ArrayMeta(
        grid,
        data_type,
        _fill(spec.fill_value, data_type, node_format, at),
        chain,
        _keys(spec.chunk_key_encoding, node_format, at),
        node_format.attributes(checked_attributes(spec.attributes, at), names),
        names,
    )
    problems = list(meta.problems())
    if problems:
        raise MetadataError.of(at, problems)
    return meta


def given_shape(shape: Any) -> Shape:
    """Return the lengths of an array as given by a caller.

    Raises
    ------
    GridError
        If they are not integers of at least 0.
    """
    try:
        lengths = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    except TypeError as error:
        raise GridError(f"shape={shape!r}: expected integers, one per dimension.") from error
    if any(not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 0 for n in lengths):
        raise GridError(f"shape={shape!r}: expected integers of at least 0, one per dimension.")
    return tuple(int(n) for n in lengths)


def _data_type(dtype: Any, at: str) -> tuple[DataType, np.dtype[Any]]:
    """Return the data type, and the dtype with the byte order in which it is stored."""
    if isinstance(dtype, DataType):
        return dtype, dtype.dtype
    try:
        data_type = data_type_of(dtype)
    except (TypeError, ValueError) as error:
        raise DataTypeError(f"{at}: dtype={dtype!r} is not a data type ({error}).") from error
    try:
        stored: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        return data_type, data_type.dtype  # not a dtype of NumPy
    same = stored.itemsize == data_type.dtype.itemsize and stored.kind == data_type.dtype.kind
    return data_type, stored if same else data_type.dtype


def _named_by_codec(data_type: DataType, chain: Chain) -> DataType:
    """Return the data type of an object array as given by its codec: texts for ``vlen-utf8``."""
    if data_type.name == "object" and isinstance(chain.serializer, ObjectSerializer):
        return chain.serializer.data_type
    return data_type


def _listed(codecs: Any) -> Any:
    """Return codecs as formats take them: a single object of another library is put in a list."""
    return codecs if codecs is None or isinstance(codecs, Iterable | Codec) else [codecs]


def _grids(spec: ArraySpec, shape: Shape, itemsize: int) -> tuple[Grid, Shape | None]:
    """Return the grid of stored objects, and the shape of inner chunks if they are shards."""
    ndim = len(shape)
    automatic = isinstance(spec.chunks, str) and spec.chunks == "auto"
    if spec.shards is None:
        if automatic:
            return Grid.regular(shape, auto_chunks(shape, itemsize, _CHUNK_BYTES)), None
        return Grid.of(shape, checked_cells(spec.chunks, ndim, "chunks")), None
    node_format = format_named(spec.format or DEFAULT_FORMAT)
    if not node_format.has_shards:
        raise GridError(
            f"shards={spec.shards!r}: format {node_format.name!r} has no shards; use 'v3'."
        )
    shards = Grid.of(shape, checked_cells(spec.shards, ndim, "shards"))
    if automatic:
        return shards, dividing_chunks(shards.common_cell, itemsize, _INNER_CHUNK_BYTES)
    chunks = checked_shape(spec.chunks, ndim, "chunks")
    check_divides(chunks, shards)
    return shards, chunks


def check_divides(chunks: Shape, shards: Grid) -> None:
    """Raise if chunks do not fill every shard.

    Raises
    ------
    GridError
        If the length of a shard is not a multiple of that of the chunks.
    """
    if any(outer % inner for outer, inner in zip(shards.common_cell, chunks, strict=True)):
        raise GridError(
            f"chunks={chunks} do not divide the shards, whose lengths are multiples of "
            f"{shards.common_cell}: along each dimension the length of a shard must be a multiple "
            "of that of its chunks."
        )


def auto_chunks(shape: Shape, itemsize: int, nbytes: int) -> Shape:
    """Return near-cubic chunks of about `nbytes`, none longer than the array.

    Examples
    --------
    >>> auto_chunks((1000, 1000, 3), 4, 4 << 20)
    (591, 591, 3)
    """
    chunk = [max(n, 1) for n in shape]
    budget = max(nbytes // itemsize, 1)
    for remaining, axis in enumerate(sorted(range(len(chunk)), key=chunk.__getitem__)):
        edge = max(round(budget ** (1 / (len(chunk) - remaining))), 1)
        chunk[axis] = min(chunk[axis], edge)
        budget = max(budget // chunk[axis], 1)
    return tuple(chunk)


def dividing_chunks(shards: Shape, itemsize: int, nbytes: int) -> Shape:
    """Return the largest near-cubic chunks of about `nbytes` or less that divide the shards.

    Examples
    --------
    >>> dividing_chunks((256, 256, 256), 4, 1 << 20)
    (64, 64, 64)
    """
    target = auto_chunks(shards, itemsize, nbytes)
    return tuple(
        max(d for d in range(1, limit + 1) if length % d == 0)
        for length, limit in zip(shards, target, strict=True)
    )


def regridded(
    meta: ArrayMeta,
    node_format: Format,
    chunks: Cells | None,
    shards: Cells | None,
    present: Shape,
) -> ArrayMeta:
    """Return the metadata of the same array on other grids.

    Parameters
    ----------
    meta
        Metadata of the array as it is.
    node_format
        Its format.
    chunks
        Shape of a chunk, or sizes of all chunks along some dimensions. None for the present shape,
        or for one that divides the shards if the present shape does not.
    shards
        Shape of a shard, or sizes; None for an array without shards.
    present
        Present shape of chunks.

    Raises
    ------
    GridError, MetadataError
        If the grids do not fit together, or the codecs do not fit the grids.
    """
    chain = chunk_chain(meta)
    cells: Cells = present if chunks is None else chunks
    if shards is not None:
        outer = Grid.of(meta.shape, shards)
        inner = checked_shape(cells, meta.grid.ndim, "chunks")
        if chunks is not None:
            check_divides(inner, outer)
        elif any(length % size for length, size in zip(outer.common_cell, inner, strict=True)):
            itemsize = meta.data_type.typical_itemsize
            inner = dividing_chunks(outer.common_cell, itemsize, _INNER_CHUNK_BYTES)
        chain = Chain((), Sharding(inner, chain, node_format.shard_index_codecs))
        cells = shards
    grid = Grid.of(meta.shape, cells)
    changed = replace(meta, grid=grid, codecs=chain)
    problems = list(changed.problems())
    if problems:
        raise MetadataError.of("the new array", problems)
    return changed


def converted(
    meta: ArrayMeta,
    old: Format,
    new: Format,
    at: str,
    *,
    dtype: Any = None,
    codecs: Any = None,
    default_codecs: bool = False,
) -> ArrayMeta:
    """Return the metadata of the same array, on its grid, in another format, data type or encoding.

    Parameters
    ----------
    meta
        Metadata of the array as it is.
    old, new
        Present format and new format.
    at
        Location of the new array, for messages.
    dtype
        New data type; unchanged by default.
    codecs
        New codecs of a chunk, as the new format spells them; unchanged by default.
    default_codecs
        True to take the default codecs of the new format if `codecs` is None.

    Raises
    ------
    DataTypeError, MetadataError
        If the new format lacks the data type or a codec, or the data type cannot hold the fill
        value.
    """
    changed = replace(meta, codecs=chunk_chain(meta))
    encoded_anew = codecs is not None or default_codecs
    if new != old:
        changed = _translated(changed, old, new, at, any_codecs=encoded_anew)
    if dtype is None and not encoded_anew:
        return changed
    data_type, stored = (
        (changed.data_type, changed.dtype) if dtype is None else _data_type(dtype, at)
    )
    chain = (
        new.chain(_listed(codecs), data_type, stored, "C", meta.grid.ndim)
        if encoded_anew
        else _for_type(changed.codecs, data_type)
    )
    if isinstance(chain, list):
        raise MetadataError.of(at, chain)
    _check_convertible(changed.data_type, data_type, at)
    fill = None if changed.fill is None else _fill(changed.fill[()], data_type, new, at)
    return replace(changed, data_type=data_type, codecs=chain, fill=fill)


_KINDS = {**dict.fromkeys("biufc", "numbers"), "U": "texts", "S": "byte strings"}
_VARIABLE_KINDS = {"string": "texts", "bytes": "byte strings"}


def _check_convertible(old: DataType, new: DataType, at: str) -> None:
    """Raise if texts would become numbers or the like: the user must state what a text means."""
    kinds = [_VARIABLE_KINDS.get(t.name) or _KINDS.get(t.dtype.kind) for t in (old, new)]
    if None not in kinds and kinds[0] != kinds[1]:
        raise DataTypeError(
            f"{at}: {kinds[0]} ({old.label}) do not become {kinds[1]} ({new.label}) by dtype=. "
            "Say what they mean with dask: "
            "zarr_dask.to_zarr(zarr_dask.from_zarr(source).astype(...), target, chunks=...)."
        )


def as_stored(meta: ArrayMeta, old: Format, new: Format, at: str) -> ArrayMeta | None:
    """Return metadata in another format that describe the same stored bytes.

    Parameters
    ----------
    meta
        Metadata of the array as it is.
    old, new
        Present format and new format; they may be the same.
    at
        Location of the new array, for messages.

    Returns
    -------
    ArrayMeta or None
        None if the other format cannot express it.

    Raises
    ------
    UnknownCodecError
        If an unknown codec was skipped in reading, so that its effect is not known.
    """
    meta.check_writable("codecs of the source")
    if new == old:
        return meta
    if meta.codecs.serializer.divides and not new.has_shards:
        return None
    try:
        return _translated(meta, old, new, at, any_codecs=False)
    except MetadataError:
        return None


def _translated(
    meta: ArrayMeta, old: Format, new: Format, at: str, *, any_codecs: bool
) -> ArrayMeta:
    """Return the metadata of an array that is rewritten in another format."""
    keys = _keys(None, new, at)
    names = meta.dimension_names
    hidden = None if names is None else old.names_attribute
    attributes = {name: value for name, value in meta.attributes.items() if name != hidden}
    if not meta.shape and old.names_attribute is None:
        names = ()  # formats with a field for names then omit it; xarray requires it of the others
    if not any_codecs and new in TARGETS:
        translation = translate(meta, new, keys)
        if not isinstance(translation.meta, ArrayMeta):
            raise MetadataError.of(f"{at} (give other codecs=)", list(translation.problems))
        meta = translation.meta
    elif meta.fill is None and not new.has_undefined_fill:
        meta = replace(meta, fill=meta.data_type.zero)
    attributes = new.attributes(attributes, names)
    return replace(meta, keys=keys, attributes=attributes, dimension_names=names, extra={})


def _for_type(chain: Chain, data_type: DataType) -> Chain:
    """Return the same codecs, with a byte order if elements grow from one byte to several."""
    if chain.serializer == Bytes(None) and data_type.itemsize > 1:
        return replace(chain, serializer=Bytes("little"))
    return chain


def plain_chain(meta: ArrayMeta) -> Chain:
    """Return the fastest codecs for the elements of an array, whatever its own codecs are."""
    chain = chunk_chain(meta)
    return chain if meta.data_type.variable else Chain((), Bytes("little"))


def quick_chain(meta: ArrayMeta) -> Chain:
    """Return codecs that shrink the elements of an array at little cost in time."""
    plain = plain_chain(meta)
    return plain if meta.data_type.variable else replace(plain, bytes=(Blosc("lz4"),))


def chunk_chain(meta: ArrayMeta) -> Chain:
    """Return the codecs of a chunk without sharding; array codecs around shards come first."""
    meta.check_writable("codecs of the source")
    codecs = meta.codecs.codecs
    around: list[Codec] = []
    while (inner := _serializer(codecs).inner_codecs) is not None:
        around += [codec for codec in codecs if isinstance(codec, ArrayCodec)]
        codecs = inner
    chain = build([*around, *codecs])
    if isinstance(chain, Problem):
        raise MetadataError.of("codecs of the source", [chain])
    return chain


def _serializer(codecs: Sequence[Codec]) -> Serializer:
    return next(codec for codec in codecs if isinstance(codec, Serializer))


def _keys(wanted: Any, node_format: Format, at: str) -> ChunkKeys:
    keys = node_format.chunk_keys(wanted)
    if isinstance(keys, Problem):
        raise MetadataError.of(at, [keys])
    return keys


def _fill(value: Any, data_type: DataType, node_format: Format, at: str) -> np.ndarray | None:
    if value is None:
        if not node_format.has_undefined_fill:
            raise DataTypeError(
                f"{at}: fill_value=None: format {node_format.name!r} has no undefined values. "
                "Give a value."
            )
        return None
    try:
        if type(value) is int and value == 0:  # the default: the zero of any data type
            return data_type.zero
        return data_type.scalar(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataTypeError(
            f"{at}: fill_value={value!r} is not a value of {data_type.label} ({error})."
        ) from error


def given_names(names: Any, ndim: int) -> tuple[str | None, ...] | None:
    """Return the names of dimensions as given by a caller.

    Raises
    ------
    GridError
        If they are not one text or None per dimension. A single text is not taken as a list of its
        letters, and a set has no order.
    """
    if names is None:
        return None
    if isinstance(names, str | bytes | AbstractSet) or not isinstance(names, Iterable):
        raise GridError(
            f"dimension_names={names!r}: expected a list of {ndim} strings or None, one per "
            "dimension."
        )
    wanted = tuple(names)
    if len(wanted) != ndim or any(n is not None and not isinstance(n, str) for n in wanted):
        raise GridError(
            f"dimension_names={wanted!r}: expected {ndim} strings or None, one per dimension."
        )
    return wanted
