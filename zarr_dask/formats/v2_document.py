"""Reading and writing of ``.zarray``, the document of a Zarr v2 array.

``order: "F"`` is a ``transpose`` codec, the byte order of the type string belongs to a ``bytes``
codec, filters and compressor are bytes codecs: a v2 array has a chain of the same codecs as any
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from zarr_dask._util.json_fields import (
    FieldReader,
    any_value,
    are_names,
    is_int,
    is_ints,
    is_lengths,
    is_list,
    is_one_of,
)
from zarr_dask.codecs.arrays import Bytes, StructBytes, Transpose, serializer_of
from zarr_dask.codecs.base import ArrayCodec, BytesCodec, Serializer
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.codec_config import PREFIX
from zarr_dask.codecs.numcodecs import ARRAY_FILTERS, Filter
from zarr_dask.codecs.numeric.pcodec import Pcodec
from zarr_dask.codecs.numeric.zfp import Zfpy
from zarr_dask.codecs.objects.categorize import Categorize
from zarr_dask.codecs.objects.object_arrays import ObjectSerializer
from zarr_dask.codecs.objects.object_json import Json2, Msgpack2, Pickle
from zarr_dask.codecs.registry import codec_from_v3
from zarr_dask.codecs.registry_numcodecs import (
    WHOLE_CHUNK_CODECS,
    codec_from_numcodecs,
    numcodecs_from_codec,
    object_serializer_from_numcodecs,
)
from zarr_dask.dtypes import DataType
from zarr_dask.errors import GridError, MetadataError, ValidationProblem
from zarr_dask.formats.base import (
    DIMENSIONS,
    ArrayMeta,
    ChunkKeyEncoding,
    Limits,
    ReadOptions,
    stored_grid,
)
from zarr_dask.formats.numpy_dtype_json import (
    dtype_from_json,
    dtype_to_json,
    fill_from_json,
    fill_to_json,
    memory_type,
    object_fill_from_json,
    without_unit,
)
from zarr_dask.formats.parse_cache import (
    MOST_KNOWN,
    as_bytes,
    from_bytes,
    is_plain_shape,
    with_shape,
)
from zarr_dask.grid.grid import Grid

__all__ = [
    "array_document",
    "cached_parse",
    "chain_from_v2",
    "data_type_in_memory",
    "dimension_names",
    "names_of_nczarr",
    "numcodecs_steps",
    "order_of",
    "parse",
    "stored_dtype",
    "take_dtype",
    "take_grid",
    "unsupported_fields",
]

# --- reading --------------------------------------------------------------------------------------


def cached_parse(
    document: Mapping[str, Any], attributes: Mapping[str, Any], options: ReadOptions
) -> ArrayMeta | None:
    """Return the metadata if a known document differs only in shape and attributes, or None."""
    common = dict(document)
    shape = common.pop("shape", None)
    key = as_bytes(common) if is_plain_shape(shape) else None
    known = None if key is None else _known(key, len(shape), *_matters(options))
    if known is None:
        return None
    return with_shape(known, shape, attributes, _names(document, attributes, len(shape)))


def _matters(options: ReadOptions) -> tuple[Literal[".", "/"] | None, bool, Limits]:
    """Return the options that affect parsing; they are compared much faster than all options."""
    return options.dimension_separator, options.allow_pickle, options.limits


@lru_cache(maxsize=MOST_KNOWN)
def _known(
    common: bytes,
    ndim: int,
    separator: Literal[".", "/"] | None,
    allow_pickle: bool,
    limits: Limits,
) -> ArrayMeta | None:
    """Return an array of one cell; None unless its document has no problems."""
    document = from_bytes(common)
    options = ReadOptions(dimension_separator=separator, allow_pickle=allow_pickle, limits=limits)
    shape = document.get("chunks")
    if not is_plain_shape(shape) or len(shape) != ndim:
        return None
    try:
        return parse({**document, "shape": shape}, {}, "", options)
    except MetadataError:
        return None  # the caller reports the problem with its location


def parse(
    document: Mapping[str, Any], attributes: Mapping[str, Any], at: str, options: ReadOptions
) -> ArrayMeta:
    """Parse a ``.zarray`` document; unknown fields are ignored.

    Raises
    ------
    MetadataError
        With all problems of the document.
    """
    members = FieldReader(document)
    members.take("zarr_format", lambda value: value == 2 and is_int(value), "the integer 2")
    grid = take_grid(members)
    stored = take_dtype(members)
    order = members.take("order", is_one_of("C", "F"), "'C' or 'F'")
    separator = members.take("dimension_separator", is_one_of(".", "/"), "'.' or '/'", ".")
    ndim = 0 if grid is None else grid.ndim
    codecs = _codecs(members, order, stored, ndim, allow_pickle=options.allow_pickle)
    data_type = data_type_in_memory(members, "dtype", stored, codecs)
    fill = _fill_value(members, stored, data_type)
    if members.problems or grid is None or codecs is None or data_type is None:
        raise MetadataError.of(at, members.problems)
    names = _names(document, attributes, grid.ndim)
    unsaid = "dimension_separator" not in document and options.dimension_separator is None
    meta = ArrayMeta(
        grid,
        data_type,
        fill,
        codecs,
        ChunkKeyEncoding("v2", options.dimension_separator or separator),
        attributes,
        names,
        limits=options.limits,
        missing_chunks_hint=_UNSAID_SEPARATOR if unsaid and grid.ndim > 1 else "",
    )
    problems = list(meta.problems())
    if problems:
        raise MetadataError.of(at, problems)
    return meta


_UNSAID_SEPARATOR = (
    "If all chunks seem to be absent: the document does not say what joins the coordinates in "
    "keys, which means '.'; where keys are like '0/0', open the array with "
    "ReadOptions(dimension_separator='/')."
)


def take_grid(members: FieldReader) -> Grid | None:
    """Return the grid given by ``shape`` and ``chunks``."""
    shape = members.take("shape", is_lengths, "a list of integers of at least 0")
    cell = members.take("chunks", is_ints, "a list of integers, one per dimension")
    if shape is None or cell is None:
        return None
    try:
        return stored_grid(shape, cell)
    except GridError as error:
        members.blame("chunks", cell, str(error), "grid")
        return None


def take_dtype(members: FieldReader) -> np.dtype[Any] | None:
    """Return the dtype as stored, which ``dtype`` names."""
    expected = "a NumPy type string, or a list of fields"
    document = members.take("dtype", lambda value: isinstance(value, str | list), expected)
    if document is None:
        return None
    stored = dtype_from_json(document, members.at("dtype"))
    if isinstance(stored, list):
        members.problems.extend(stored)
        return None
    return stored


def data_type_in_memory(
    members: FieldReader, name: str, stored: np.dtype[Any] | None, codecs: CodecChain | None
) -> DataType | None:
    """Return the data type of a stored dtype named by `name`; for objects, that of their codec."""
    if stored is None:
        return None
    if stored.hasobject:
        serializer = None if codecs is None else codecs.serializer
        return serializer.data_type if isinstance(serializer, ObjectSerializer) else None
    made = memory_type(stored, members.at(name))
    if isinstance(made, ValidationProblem):
        members.problems.append(made)
        return None
    return made


def _fill_value(
    members: FieldReader, stored: np.dtype[Any] | None, data_type: DataType | None
) -> np.ndarray | None:
    value = members.take("fill_value", any_value, "a value of the data type, or null")
    if stored is None or data_type is None or value is None:
        return None
    try:
        if stored.hasobject:
            return object_fill_from_json(value, data_type)
        return fill_from_json(value, stored)
    except (ValueError, TypeError, OverflowError) as error:
        name = data_type.name if stored.hasobject else str(stored)
        members.blame("fill_value", value, f"a value of {name} ({error}), or null")
        return None


def _codecs(
    members: FieldReader,
    order: str | None,
    stored: np.dtype[Any] | None,
    ndim: int,
    *,
    allow_pickle: bool,
) -> CodecChain | None:
    expected = f"a list of at most {_MOST_FILTERS} filters, or null"
    filters = members.take("filters", _is_filter_list, expected)
    compressor = members.take("compressor", any_value, "an object with an 'id', or null")
    if stored is None or order is None:
        return None
    documents = [(f"filters[{i}]", item) for i, item in enumerate(filters or [])]
    if compressor is not None:
        documents.append(("compressor", compressor))
    chain = chain_from_v2(documents, stored, order, ndim, allow_pickle=allow_pickle)
    if isinstance(chain, list):
        members.problems.extend(chain)
        return None
    return chain


_MOST_FILTERS = 64


def _is_filter_list(value: Any) -> bool:
    return value is None or (is_list(value) and len(value) <= _MOST_FILTERS)


def chain_from_v2(
    documents: Sequence[tuple[str, Any]],
    stored: np.dtype[Any],
    order: str,
    ndim: int,
    *,
    allow_pickle: bool = False,
) -> CodecChain | list[ValidationProblem]:
    """Return the codec chain of a v2 array.

    Parameters
    ----------
    documents
        Position and numcodecs configuration of each filter, then of the compressor.
    stored
        The dtype as stored, with its byte orders.
    order
        ``"C"`` or ``"F"``.
    ndim
        Number of dimensions.
    allow_pickle
        True to allow pickled objects.
    """
    serializer, documents, running = _serializer(documents, stored, allow_pickle=allow_pickle)
    problems: list[ValidationProblem] = [] if isinstance(serializer, Serializer) else serializer
    steps: list[BytesCodec] = []
    for place, document in documents:
        made = codec_from_numcodecs(document, place, running)
        if isinstance(made, list):
            problems.extend(made)
            continue
        steps.append(made)
        if isinstance(made, Filter):
            running = made.output_dtype(running)
    if problems or not isinstance(serializer, Serializer):
        return problems
    arrays: tuple[ArrayCodec, ...] = ()
    if order == "F" and ndim > 1 and not isinstance(serializer, _NESTING):
        arrays = (Transpose(tuple(reversed(range(ndim)))),)
    return CodecChain(arrays, serializer, tuple(steps))


_NESTING = (Json2, Msgpack2, Pickle)
"""Codecs that preserve the shape of a chunk, whatever the order of its elements in memory."""


def _serializer(
    documents: Sequence[tuple[str, Any]], stored: np.dtype[Any], *, allow_pickle: bool
) -> tuple[Serializer | list[ValidationProblem], Sequence[tuple[str, Any]], str]:
    """Return the serializer, the remaining codecs, and their input type."""
    if not stored.hasobject:
        whole = _whole_chunk_codec(documents, stored)
        if whole is not None:
            return whole, documents[1:], "|u1"
        return serializer_of(stored), documents, stored.str
    if not documents:
        expected = "an object codec, such as 'vlen-utf8', because the data type is '|O'"
        return [ValidationProblem("filters", None, expected, "codec")], documents, "|u1"
    (place, document), *rest = documents
    made = object_serializer_from_numcodecs(document, place, allow_pickle=allow_pickle)
    running = made.astype if isinstance(made, Categorize) else "|u1"
    return made, rest, running


def _whole_chunk_codec(
    documents: Sequence[tuple[str, Any]], stored: np.dtype[Any]
) -> Serializer | list[ValidationProblem] | None:
    """Return the first codec if its input is numbers and the shape of a chunk, not bytes."""
    place, document = documents[0] if documents else ("", None)
    if not isinstance(document, Mapping) or document.get("id") not in WHOLE_CHUNK_CODECS:
        return None
    if stored.str[0] == ">":
        expected = "a codec for big-endian numbers: this one takes little-endian ones only"
        return [ValidationProblem(place, document["id"], expected, "codec")]
    configuration = {name: value for name, value in document.items() if name != "id"}
    made = codec_from_v3({"name": PREFIX + document["id"], "configuration": configuration}, place)
    return made if isinstance(made, Serializer | list) else None


def _names(
    document: Mapping[str, Any], attributes: Mapping[str, Any], ndim: int
) -> tuple[str | None, ...] | None:
    """Return names of dimensions, by the convention of xarray or that of the netCDF library."""
    names = dimension_names(attributes, ndim)
    return names_of_nczarr(document, attributes, ndim) if names is None else names


def dimension_names(attributes: Mapping[str, Any], ndim: int) -> tuple[str | None, ...] | None:
    """Return names of dimensions by xarray's convention; null for a dimension without a name."""
    names = attributes.get(DIMENSIONS)
    return tuple(names) if are_names(names) and len(names) == ndim else None


def names_of_nczarr(
    document: Mapping[str, Any], attributes: Mapping[str, Any], ndim: int
) -> tuple[str, ...] | None:
    """Return names of dimensions as the netCDF library writes them: paths of dimensions.

    They are in ``.zarray``, or since later versions in the attributes, under several names. A
    scalar is written as an array of one element, whose dimension had no name at first and is now
    ``_scalar_``.
    """
    for holder in (attributes, document):
        for member, references in _NCZARR:
            described = holder.get(member)
            paths = described.get(references) if isinstance(described, Mapping) else None
            if paths == [] and document.get("shape") == [1]:
                return ("_scalar_",)
            if not isinstance(paths, list) or len(paths) != ndim:
                continue
            if all(isinstance(path, str) for path in paths):
                return tuple(path.rpartition("/")[2] for path in paths)
    return None


_NCZARR = (
    ("_nczarr_array", "dimension_references"),
    ("_nczarr_array", "dimrefs"),
    ("_NCZARR_ARRAY", "dimrefs"),
)

# --- writing --------------------------------------------------------------------------------------


def array_document(meta: ArrayMeta, at: str) -> dict[str, Any]:
    """Return the ``.zarray`` document of an array.

    Raises
    ------
    MetadataError
        With everything that v2 cannot express.
    """
    problems = unsupported_fields(meta, "v2")
    stored = stored_dtype(meta)
    if not problems and meta.fill_value is not None:
        problems = _fill_problems(meta, stored)
    if problems:
        raise MetadataError.of(at, problems)
    filters, compressor = numcodecs_steps(meta)
    return {
        "zarr_format": 2,
        "shape": list(meta.shape),
        "chunks": list(meta.grid.largest_cell),
        "dtype": dtype_to_json(stored),
        "compressor": compressor,
        "fill_value": _fill_document(meta, stored),
        "order": order_of(meta),
        "filters": filters or None,
        "dimension_separator": meta.chunk_key_encoding.separator,
    }


def numcodecs_steps(meta: ArrayMeta) -> tuple[list[Any], Any]:
    """Return the numcodecs configurations of the filters, and of the compressor if there is one."""
    compressor = None
    steps = list(meta.codecs.bytes)
    if steps and not _is_filter(steps[-1]):
        compressor = numcodecs_from_codec(steps.pop())
    filters = [numcodecs_from_codec(codec) for codec in steps]
    first = meta.codecs.serializer
    if isinstance(first, _WHOLE_CHUNK) and not filters and compressor is None:
        compressor = numcodecs_from_codec(first)
    elif isinstance(first, ObjectSerializer | _WHOLE_CHUNK):
        filters.insert(0, numcodecs_from_codec(first))
    return filters, compressor


_WHOLE_CHUNK = Pcodec | Zfpy
"""The codecs of `WHOLE_CHUNK_CODECS`."""


def _is_filter(codec: BytesCodec) -> bool:
    return isinstance(codec, Filter) and (codec.id in ARRAY_FILTERS or codec.id == "shuffle")


def _fill_document(meta: ArrayMeta, stored: np.dtype[Any]) -> Any:
    if meta.fill_value is None:
        return None
    if stored.hasobject:
        return meta.data_type.to_json(meta.fill_value)
    return fill_to_json(meta.fill_value, stored)


def _fill_problems(meta: ArrayMeta, stored: np.dtype[Any]) -> list[ValidationProblem]:
    try:
        _fill_document(meta, stored)
    except ValueError as error:
        return [
            ValidationProblem(
                "fill_value", str(meta.fill_value), f"a value that v2 can say ({error})"
            )
        ]
    return []


def stored_dtype(meta: ArrayMeta) -> np.dtype[Any]:
    """Return the dtype of the elements as stored, with the byte order of the serializer."""
    serializer = meta.codecs.serializer
    if isinstance(serializer, StructBytes):
        return serializer.dtype
    endian = serializer.endian if isinstance(serializer, Bytes) else None
    return meta.dtype.newbyteorder(">" if endian == "big" else "<")


def order_of(meta: ArrayMeta) -> str:
    """Return the order of the elements of a chunk; "F" reverses the dimensions."""
    return "F" if meta.codecs.arrays else "C"


def _would_read_as(stored: np.dtype[Any], data_type: DataType) -> bool:
    """True if a document can name a dtype so that readers get this data type."""
    found = dtype_from_json(dtype_to_json(stored))
    return not isinstance(found, list) and type(memory_type(found)) is type(data_type)


def unsupported_fields(meta: ArrayMeta, name: str) -> list[ValidationProblem]:
    """Return everything that v1 and v2 cannot express of an array; `name` is that of the format."""
    problems = []
    if meta.grid.cell_shape is None:
        expected = f"chunks of one shape: {name} has no others. Use v3"
        problems.append(ValidationProblem("chunks", "chunks of several shapes", expected, "grid"))
    reverse = (Transpose(tuple(reversed(range(meta.grid.ndim)))),)
    if meta.codecs.arrays not in ((), reverse):
        names = [codec.name for codec in meta.codecs.arrays]
        expected = f"order 'C' or 'F': {name} has no other array codecs"
        problems.append(ValidationProblem("order", names, expected))
    serializer = meta.codecs.serializer
    if serializer.is_sharding:
        expected = f"no shards: {name} has none. Use v3"
        problems.append(ValidationProblem("shards", serializer.name, expected, "codec"))
    elif not isinstance(serializer, Bytes | StructBytes | ObjectSerializer | _WHOLE_CHUNK):
        expected = f"a codec that {name} can name"
        problems.append(ValidationProblem("codecs", serializer.name, expected, "codec"))
    for position, codec in enumerate(meta.codecs.bytes):
        if numcodecs_from_codec(codec) is None:
            place = f"codecs[{position}]"
            problems.append(
                ValidationProblem(place, codec.name, f"a codec that {name} can name", "codec")
            )
    if meta.chunk_key_encoding.name != "v2":
        expected = f"'v2' in format {name}"
        problems.append(
            ValidationProblem("chunk_key_encoding", meta.chunk_key_encoding.name, expected)
        )
    stored = stored_dtype(meta)
    if not stored.hasobject and not _would_read_as(stored, meta.data_type):
        expected = f"a data type that {name} can name"
        problems.append(ValidationProblem("dtype", meta.data_type.name, expected, "data_type"))
    elif without_unit(stored):
        expected = "datetimes and timedeltas with a unit, such as '<M8[ns]'"
        problems.append(ValidationProblem("dtype", str(meta.dtype), expected, "data_type"))
    return problems
