"""From the arguments of a user to the metadata of a new array; the defaults are here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from zarr_dask._util.arguments import check_unmasked
from zarr_dask._util.keywords import did_you_mean
from zarr_dask._util.warnings import warn
from zarr_dask.array.cells import (
    CHUNK_BYTES,
    INNER_CHUNK_BYTES,
    SHARD_BYTES,
    chunks_in_words,
    dividing_chunks,
    is_by_dimension,
    is_in_words,
    items_by_axis,
    parse_chunks_argument,
    shards_in_words,
    whole_chunks,
)
from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.base import ArrayCodec, Codec, Serializer
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.objects.object_arrays import ObjectSerializer
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.dtypes import DataType, data_type_of
from zarr_dask.dtypes.base import DefaultFill
from zarr_dask.dtypes.bits import bits_of
from zarr_dask.dtypes.variable import data_type_of_objects
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MetadataError,
    ValidationProblem,
)
from zarr_dask.formats.base import ArrayMeta, ChunkKeyEncoding, Format, checked_attributes
from zarr_dask.formats.detect import DEFAULT_FORMAT, format_named
from zarr_dask.formats.missing_values import carry_missing_value
from zarr_dask.formats.translate import TARGETS, names_problems, translate
from zarr_dask.grid.grid import Cells, Grid, Shape
from zarr_dask.indexing.basic import checked_cells, checked_shape

__all__ = [
    "ArraySpec",
    "array_meta",
    "codec_configuration",
    "convert_metadata",
    "fast_chain",
    "given_names",
    "given_shape",
    "same_bytes_metadata",
    "uncompressed_chain",
    "unsharded_chain",
    "with_grid",
]


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """An array as a user describes it; see `zarr_dask.create_array`."""

    shape: Any
    dtype: Any
    chunks: Any = "auto"
    shards: Any = None
    codecs: Any = None
    fill_value: Any = DefaultFill.OF_DTYPE
    dimension_names: Sequence[str | None] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    format: str | None = None
    """None for the default: v3, or the format of the surrounding group."""
    order: Literal["C", "F"] = "C"
    chunk_key_encoding: Any = None
    allow_nan: bool = False
    """True if attributes may have NaN and infinities."""


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
    node_format = format_named(spec.format or DEFAULT_FORMAT.name)
    shape = given_shape(spec.shape)
    names = given_names(spec.dimension_names, len(shape))
    _warn_of_repeated_names(names, at)
    data_type, stored = _data_type(spec.dtype, at)
    grid, inner = _grids(spec, shape, data_type.typical_itemsize)
    if spec.order not in ("C", "F"):
        raise ValueError(f"order={spec.order!r}: expected 'C' or 'F'.")
    chain = node_format.chain(_listed(spec.codecs), data_type, stored, spec.order, len(shape))
    if isinstance(chain, list):
        raise MetadataError.of(at, chain)
    data_type = _named_by_codec(data_type, chain)
    if inner is not None:
        chain = CodecChain((), Sharding(inner, chain, node_format.shard_index_codecs))
    given = checked_attributes(spec.attributes, at, allow_nan=spec.allow_nan)
    meta = ArrayMeta(
        grid,
        data_type,
        _fill(spec.fill_value, data_type, node_format, at),
        chain,
        _keys(spec.chunk_key_encoding, node_format, at),
        node_format.attributes(given, names),
        names,
    )
    problems = list(meta.problems())
    if problems:
        raise MetadataError.of(at, problems)
    return meta


def given_values(data: Any) -> tuple[np.ndarray, Any]:
    """Return values as given by a caller as a NumPy array, and the data type to store them as.

    Raises
    ------
    TypeError
        If they are lazy, an open node, a mapping, or not values of one type.
    DataTypeError
        If elements are masked.
    """
    if hasattr(data, "coords") and hasattr(data, "dims"):
        raise TypeError(
            f"the values are an xarray.{type(data).__name__}: zarr_dask.to_zarr(values, url) "
            "writes it with its coordinates and attributes; .values has the values alone."
        )
    if hasattr(data, "__dask_graph__"):
        raise TypeError(
            "the values are a dask collection, which is computed and written in parallel by "
            "zarr_dask.to_zarr(x, group, 'name')."
        )
    if hasattr(data, "node_format"):
        raise TypeError(
            "the values are an open node: zarr_dask.copy(source, target) copies arrays and groups, "
            "array[...] reads the values."
        )
    if isinstance(data, Mapping):
        raise TypeError(
            "the values are a mapping: zarr_dask.save(url, **values) saves several arrays in a "
            "group."
        )
    check_unmasked(data, "data")
    try:
        values = np.asarray(data)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise DataTypeError(
            "the values are lists of different lengths, which no array has: fill the short ones, "
            "or store each under a name: zarr_dask.save(url, a=..., b=...)."
        ) from error
    if values.dtype.kind in "US" and not hasattr(data, "dtype"):
        values = values.astype(object)  # texts in a list have any length
    if values.dtype != object:
        return values, values.dtype
    try:
        return values, data_type_of_objects(values)
    except TypeError as error:
        raise DataTypeError(
            f"the values are Python objects, and neither texts nor byte strings only ({error}): "
            f"{_conversion_of(next(iter(values.flat), None))}."
        ) from error


def _conversion_of(value: object) -> str:
    """Return what makes values of one type of Python objects such as one of them."""
    if hasattr(value, "isoformat") and not hasattr(value, "calendar"):
        return "numpy.array(values, 'datetime64[us]') makes times of them"
    if hasattr(value, "calendar"):
        return "xarray has calendars: zarr_dask.write_dataset(dataset, url) writes them"
    if isinstance(value, Iterator | AbstractSet):
        return "list(values) makes a list of them"
    return "fill what is missing, or convert with astype"


def shape_of_values(values: np.ndarray, shape: Any) -> Shape:
    """Return the shape of a new array with values, which fill it, or are one value for all.

    Raises
    ------
    GridError
        If they have another shape.
    """
    wanted = values.shape if shape is None else given_shape(shape)
    if values.shape not in {wanted, ()}:
        raise GridError(f"data has the shape {values.shape}, the array {wanted}.")
    return wanted


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


_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "string", "bytes"),
    *("datetime64[ns]", "datetime64[s]", "datetime64[D]", "timedelta64[ns]"),
)
"""Names of usual data types, of which a misspelt one may be meant."""


def _data_type(dtype: Any, at: str) -> tuple[DataType, np.dtype[Any]]:
    """Return the data type, and the dtype with the byte order in which it is stored."""
    if isinstance(dtype, DataType):
        return dtype, dtype.dtype
    if hasattr(dtype, "to_native_dtype"):  # a data type of zarr-python, which need not be imported
        native = np.dtype(dtype.to_native_dtype())
        dtype = "bytes" if native.kind == "O" else native
    try:
        data_type = data_type_of(dtype)
    except (TypeError, ValueError) as error:
        hint = did_you_mean(dtype, _DTYPES) if isinstance(dtype, str) else ""
        raise DataTypeError(f"{at}: dtype={dtype!r} is not a data type ({error}).{hint}") from error
    try:
        stored: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        return data_type, data_type.dtype  # not a dtype of NumPy
    same = stored.itemsize == data_type.dtype.itemsize and stored.kind == data_type.dtype.kind
    return data_type, stored if same else data_type.dtype


def _named_by_codec(data_type: DataType, chain: CodecChain) -> DataType:
    """Return the data type of an object array as given by its codec: texts for ``vlen-utf8``."""
    if data_type.name == "object" and isinstance(chain.serializer, ObjectSerializer):
        return chain.serializer.data_type
    return data_type


def _listed(codecs: Any) -> Any:
    """Return codecs as formats take them: objects of other libraries by their configuration."""
    if codecs is None or codecs == "auto":
        return None
    if isinstance(codecs, str | Codec | Mapping):
        return codecs
    items = codecs if isinstance(codecs, Iterable) else [codecs]
    return [codec_configuration(item) for item in items]


def codec_configuration(codec: Any) -> Any:
    """Return the configuration of a codec of zarr-python or numcodecs; others are unchanged.

    Only the configuration is used, so neither package needs to be imported here.

    Raises
    ------
    TypeError
        If it is the class of a codec.
    """
    if isinstance(codec, type):
        raise TypeError(
            f"codecs: got the class {codec.__name__}; pass an instance: {codec.__name__}()."
        )
    if isinstance(codec, str | Codec | Mapping):
        return codec
    for method in ("to_dict", "get_config"):
        if hasattr(codec, method):
            document = dict(getattr(codec, method)())
            open_ = getattr(codec, "_tunable_attrs", ())  # filled in later by zarr-python
            if "configuration" in document:
                configuration = json.loads(json.dumps(document["configuration"]))
                document["configuration"] = {
                    k: v for k, v in configuration.items() if k not in open_
                }
            return document
    return codec


def _grids(spec: ArraySpec, shape: Shape, itemsize: int) -> tuple[Grid, Shape | None]:
    """Return the grid of stored objects, and the shape of inner chunks if they are shards."""
    ndim = len(shape)
    at, names = "the new array", given_names(spec.dimension_names, ndim) or (None,) * ndim

    def cells(given: Any, present: Callable[[], Cells], what: str, nbytes: int) -> Cells:
        if not is_by_dimension(given):
            return checked_cells(given, ndim, what)
        of_bytes = {"itemsize": itemsize, "nbytes": nbytes}
        return parse_chunks_argument(given, shape, names, present(), what, at, **of_bytes)

    wanted = "auto" if spec.chunks is None else spec.chunks
    if spec.shards is None or spec.shards is False:
        if is_in_words(wanted):
            return Grid.regular(shape, chunks_in_words(wanted, shape, itemsize)), None
        present = partial(chunks_in_words, "auto", shape, itemsize)
        return Grid.of(shape, cells(wanted, present, "chunks", CHUNK_BYTES)), None
    node_format = format_named(spec.format or DEFAULT_FORMAT.name)
    if not node_format.has_shards:
        raise GridError(
            f"shards={spec.shards!r}: format {node_format.name!r} has no shards; "
            f"use {DEFAULT_FORMAT.name!r}."
        )
    if is_in_words(wanted) and not is_in_words(spec.shards):
        longest = tuple(max(n, 1) for n in shape)
        shards = Grid.of(shape, cells(spec.shards, lambda: longest, "shards", SHARD_BYTES))
        if wanted in {False, "auto"}:
            nbytes = INNER_CHUNK_BYTES if wanted else itemsize * prod(shards.common_cell)
            return shards, dividing_chunks(shards.common_cell, itemsize, nbytes)
        edges = chunks_in_words(wanted, shards.common_cell, itemsize)
        return shards, dividing_chunks(shards.common_cell, itemsize, itemsize * prod(edges))
    in_words = wanted if is_in_words(wanted) else "auto"
    present = partial(chunks_in_words, in_words, shape, itemsize, INNER_CHUNK_BYTES)
    if is_in_words(wanted):
        inner = present()
    else:
        inner = checked_shape(cells(wanted, present, "chunks", INNER_CHUNK_BYTES), ndim, "chunks")
    if is_in_words(spec.shards):
        return Grid.regular(shape, shards_in_words(spec.shards, shape, itemsize, inner)), inner
    given = items_by_axis(spec.shards, names, inner, "shards", at)
    whole = whole_chunks(cells(given, lambda: inner, "shards", SHARD_BYTES), inner, given)
    shards = Grid.of(shape, whole)
    check_divides(inner, shards)
    return shards, inner


def check_divides(chunks: Shape, shards: Grid) -> None:
    """Raise if chunks do not fill every shard.

    Raises
    ------
    GridError
        If the length of a shard is not a multiple of that of the chunks.
    """
    if any(outer % inner for outer, inner in zip(shards.common_cell, chunks, strict=True)):
        raise GridError(
            f"shards={shards.common_cell} are not a multiple of chunks={chunks}, which do not "
            "divide the shards: along each dimension a shard holds a whole number of chunks."
        )


def with_grid(
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
    chain = unsharded_chain(meta)
    cells: Cells = present if chunks is None else chunks
    if shards is not None:
        outer = Grid.of(meta.shape, shards)
        inner = checked_shape(cells, meta.grid.ndim, "chunks")
        if chunks is not None:
            check_divides(inner, outer)
        elif any(length % size for length, size in zip(outer.common_cell, inner, strict=True)):
            itemsize = meta.data_type.typical_itemsize
            inner = dividing_chunks(outer.common_cell, itemsize, INNER_CHUNK_BYTES)
        chain = CodecChain((), Sharding(inner, chain, node_format.shard_index_codecs))
        cells = shards
    grid = Grid.of(meta.shape, cells)
    changed = replace(meta, grid=grid, codecs=chain)
    problems = list(changed.problems())
    if problems:
        raise MetadataError.of("the new array", problems)
    return changed


def convert_metadata(
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
    changed = _known_checksums(replace(meta, codecs=unsharded_chain(meta)), new)
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
    fill = None if changed.fill_value is None else _fill(changed.fill_value[()], data_type, new, at)
    return replace(changed, data_type=data_type, codecs=chain, fill_value=fill)


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


def same_bytes_metadata(meta: ArrayMeta, old: Format, new: Format, at: str) -> ArrayMeta | None:
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
    if meta.codecs.serializer.is_sharding and not new.has_shards:
        return None
    if _known_checksums(meta, new) != meta:
        return None
    try:
        translated = _translated(meta, old, new, at, any_codecs=False)
    except MetadataError:
        return None
    # objects that are absent stand for the fill value, which may be another one then
    fills = [
        meta.data_type.zero if one.fill_value is None else one.fill_value
        for one in (meta, translated)
    ]
    return translated if bits_of(fills[0]) == bits_of(fills[1]) else None


def _known_checksums(meta: ArrayMeta, new: Format) -> ArrayMeta:
    """Return metadata without a CRC-32C after a compressor, if readers of the format lack it.

    Formats without shards have it only as a filter of numcodecs, as which few readers have it.
    """
    chain = meta.codecs
    if new.has_shards or len(chain.bytes) < 2 or not isinstance(chain.bytes[-1], Crc32c):
        return meta
    return replace(meta, codecs=replace(chain, bytes=chain.bytes[:-1]))


def _translated(
    meta: ArrayMeta, old: Format, new: Format, at: str, *, any_codecs: bool
) -> ArrayMeta:
    """Return the metadata of an array that is rewritten in another format."""
    keys = _keys(None, new, at)
    meta = carry_missing_value(meta, old, new)
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
    elif meta.fill_value is None and not new.has_undefined_fill:
        meta = replace(meta, fill_value=meta.data_type.zero)
    problems = list(names_problems(attributes, names, new))
    if problems:
        raise MetadataError.of(at, problems)
    attributes = new.attributes(attributes, names)
    return replace(
        meta, chunk_key_encoding=keys, attributes=attributes, dimension_names=names, extra={}
    )


def _for_type(chain: CodecChain, data_type: DataType) -> CodecChain:
    """Return the same codecs, with a byte order if elements grow from one byte to several."""
    if chain.serializer == Bytes(None) and data_type.itemsize > 1:
        return replace(chain, serializer=Bytes("little"))
    return chain


def uncompressed_chain(meta: ArrayMeta) -> CodecChain:
    """Return the fastest codecs for the elements of an array, whatever its own codecs are."""
    chain = unsharded_chain(meta)
    return chain if meta.data_type.variable else CodecChain((), Bytes("little"))


def fast_chain(meta: ArrayMeta) -> CodecChain:
    """Return codecs that shrink the elements of an array at little cost in time."""
    plain = uncompressed_chain(meta)
    return plain if meta.data_type.variable else replace(plain, bytes=(Blosc("lz4"),))


def unsharded_chain(meta: ArrayMeta) -> CodecChain:
    """Return the codecs of a chunk without sharding; array codecs around shards come first."""
    meta.check_writable("codecs of the source")
    codecs = meta.codecs.codecs
    around: list[Codec] = []
    while (inner := _serializer(codecs).inner_codecs) is not None:
        around += [codec for codec in codecs if isinstance(codec, ArrayCodec)]
        codecs = inner
    chain = make_chain([*around, *codecs])
    if isinstance(chain, ValidationProblem):
        raise MetadataError.of("codecs of the source", [chain])
    return chain


def _serializer(codecs: Sequence[Codec]) -> Serializer:
    return next(codec for codec in codecs if isinstance(codec, Serializer))


def _keys(wanted: Any, node_format: Format, at: str) -> ChunkKeyEncoding:
    keys = node_format.chunk_keys({"separator": wanted} if wanted in ("/", ".") else wanted)
    if isinstance(keys, ValidationProblem):
        raise MetadataError.of(at, [keys])
    return keys


def _fill(value: Any, data_type: DataType, node_format: Format, at: str) -> np.ndarray | None:
    if value is None:
        if not node_format.has_undefined_fill:
            raise DataTypeError(
                f"{at}: fill_value=None: format {node_format.name!r} has no undefined values. "
                "Give a value, or leave it out for zeros."
            )
        return None
    try:
        if value is DefaultFill.OF_DTYPE:
            return data_type.default_fill
        if type(value) is int and value == 0:  # the zero of any data type
            return data_type.zero
        return data_type.scalar(value)
    except (ValueError, TypeError, OverflowError) as error:
        shown = 0 if value is DefaultFill.OF_DTYPE else value
        raise DataTypeError(
            f"{at}: fill_value={shown!r} is not a value of {data_type.label} ({error})."
        ) from error


def _warn_of_repeated_names(names: tuple[str | None, ...] | None, at: str) -> None:
    """Warn if two dimensions have one name: Zarr allows that, xarray does not."""
    known = [name for name in names or () if name is not None]
    if len({*known}) < len(known):
        warn(
            f"{at}: two dimensions have one name in dimension_names={list(names or ())}. xarray "
            "cannot select by such names, and regions by name are ambiguous. Rename one of them."
        )


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
