"""Documents of the v3 draft: the entry point of a hierarchy, arrays and groups.

Two generations of the specification are supported, named after the month of their last change.
2022-12 is the text that is still published under the name of the draft. 2022-05 was implemented by
zarr-python 2 behind a switch, with its own additions, and before that by GDAL and zarrita. Metadata
that a generation cannot express are refused; readers accept everything that those writers have
written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from zarr_dask._util.json_fields import (
    FieldReader,
    any_value,
    is_codec_list,
    is_ints,
    is_lengths,
    is_object,
    is_one_of,
)
from zarr_dask._util.warnings import warn
from zarr_dask.codecs.arrays import Transpose
from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.objects.object_arrays import ObjectSerializer
from zarr_dask.codecs.registry_numcodecs import numcodecs_from_codec
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.dtypes import DataType, data_type_of, native
from zarr_dask.errors import ABSENT, GridError, MetadataError, ValidationProblem
from zarr_dask.formats import numpy_dtype_json as typestr
from zarr_dask.formats import v3draft_types as draft_types
from zarr_dask.formats.base import ArrayMeta, ChunkKeyEncoding, GroupMeta, ReadOptions, stored_grid
from zarr_dask.formats.v2_document import (
    data_type_in_memory,
    dimension_names,
    order_of,
    stored_dtype,
)
from zarr_dask.formats.v3draft_codecs import (
    SHARD_INDEX_CODECS,
    chain_from_codecs,
    chain_from_compressor,
    compressor_to_json,
    filters_of,
    sharded,
    sharding_to_json,
    steps_to_json,
)
from zarr_dask.formats.v3draft_types import NamedType
from zarr_dask.grid.grid import Grid, Shape

__all__ = [
    "KEYS_NAMES",
    "EntryPoint",
    "Generation",
    "array_from_json",
    "array_to_json",
    "entry_from_json",
    "entry_to_json",
    "group_from_json",
    "group_to_json",
]

Generation = Literal["2022-05", "2022-12"]
KEYS_NAMES: Mapping[Generation, Literal["draft", "draft_c0"]] = {
    "2022-05": "draft_c0",  # zarr-python 2 has c0 instead of c
    "2022-12": "draft",
}
"""Layouts of the keys of stored objects; see `zarr_dask.formats.base.ChunkKeyEncoding`."""


# --- the entry point ------------------------------------------------------------------------------

_CORE_URI = "https://purl.org/zarr/spec/core/3.0"
_CORE_URI_OF_MAY = "https://purl.org/zarr/spec/protocol/core/3.0"  # required by its readers
_SUFFIX = re.compile(r"[a-zA-Z0-9._-]{0,64}")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The contents of a hierarchy's entry point."""

    generation: Generation
    suffix: str
    """Ending of the keys of metadata documents."""


def entry_from_json(document: Mapping[str, Any], at: str) -> EntryPoint:
    """Parse the entry point (``zarr.json`` at the root); unknown fields are ignored.

    Raises
    ------
    MetadataError
        With all problems of the document, including required unknown extensions.
    """
    members = FieldReader(document)
    members.take("zarr_format", _is_version_3, "a URI that ends in a version number 3.x")
    encoding = members.take(
        "metadata_encoding", lambda v: isinstance(v, str) or is_object(v), "an object, or a URI"
    )
    _check_extensions(members, ABSENT)
    entry = EntryPoint("2022-12", "")
    if isinstance(encoding, str):
        entry = EntryPoint("2022-05", _suffix_of_may(members, encoding))
    elif encoding is not None:
        entry = EntryPoint("2022-12", _suffix_of_december(members, encoding))
    if members.problems:
        raise MetadataError.of(at, members.problems)
    return entry


def _suffix_of_may(members: FieldReader, encoding: str) -> str:
    if not _is_version_3(encoding) and encoding != "application/json":
        members.blame("metadata_encoding", encoding, "the URI of the core specification 3.0")
    return _suffix(members)


def _suffix_of_december(members: FieldReader, encoding: Mapping[str, Any]) -> str:
    inside = FieldReader(encoding, "metadata_encoding")
    inside.take("extension", lambda _: False, "no extension: none is known", None)
    inside.take("type", is_one_of("json"), "'json'")
    suffix = _suffix(inside)
    members.problems.extend(inside.problems)
    return suffix


def _is_version_3(value: Any) -> bool:
    """True if a URI ends in a version that is compatible with version 3."""
    return isinstance(value, str) and re.search(r"/3(?:\.[0-9]+)*\Z", value) is not None


def _suffix(members: FieldReader) -> str:
    expected = "letters, digits, '-', '_' and '.'"
    suffix = members.take(
        "metadata_key_suffix",
        lambda v: isinstance(v, str) and _SUFFIX.fullmatch(v) is not None,
        expected,
        ".json",
    )
    return suffix or ""


def _check_extensions(members: FieldReader, default: Any) -> list[Any]:
    """Return the extensions of a document, and note required ones as problems: none is known."""
    extensions = members.take(
        "extensions", is_codec_list, "a list of at most 1000 extensions", default
    )
    for position, extension in enumerate(extensions or []):
        place = members.at(f"extensions[{position}]")
        if not is_object(extension):
            members.problems.append(
                ValidationProblem(place, extension, "an object with an 'extension'")
            )
            continue
        inside = FieldReader(extension, place)
        inside.take("extension", lambda v: isinstance(v, str), "the URI of an extension")
        inside.take(
            "must_understand",
            lambda v: v is False,
            "false: no extension is known, and this one must be understood",
        )
        members.problems.extend(inside.problems)
    return extensions or []


def entry_to_json(entry: EntryPoint) -> dict[str, Any]:
    """Return the document that makes a location the root of a hierarchy.

    Examples
    --------
    >>> entry_to_json(EntryPoint("2022-12", ".json"))["metadata_encoding"]
    {'type': 'json', 'metadata_key_suffix': '.json'}
    """
    if entry.generation == "2022-05":  # exactly these fields: zarr-python 2 rejects others
        return {
            "zarr_format": _CORE_URI_OF_MAY,
            "metadata_encoding": _CORE_URI_OF_MAY,
            "metadata_key_suffix": entry.suffix,
            "extensions": [],
        }
    return {
        "zarr_format": _CORE_URI,
        "metadata_encoding": {"type": "json", "metadata_key_suffix": entry.suffix},
        "extensions": [],
    }


# --- groups ---------------------------------------------------------------------------------------


def group_from_json(document: Mapping[str, Any], generation: Generation, at: str) -> GroupMeta:
    """Parse the document of a group.

    Raises
    ------
    MetadataError
        With all problems of the document.
    """
    members = FieldReader(document)
    attributes = _attributes(members, {})
    extra = _rest(members, generation)
    if members.problems:
        raise MetadataError.of(at, members.problems)
    return GroupMeta(attributes, extra)


def group_to_json(meta: GroupMeta) -> dict[str, Any]:
    """Return the document of a group."""
    return {"attributes": dict(meta.attributes), **meta.extra}


def _attributes(members: FieldReader, default: Any) -> dict[str, Any]:
    # GDAL wrote null if there are none
    attributes = members.take(
        "attributes", lambda v: v is None or is_object(v), "an object", default
    )
    return attributes or {}


def _rest(members: FieldReader, generation: Generation) -> dict[str, Any]:
    """Return unknown fields that a writer must preserve."""
    extensions = _check_extensions(members, [])
    # zarr-python 2 repeats the separator of the grid
    members.take("dimension_separator", any_value, "", None)
    if generation == "2022-12":
        members.refuse_rest()
    return {**({"extensions": extensions} if extensions else {}), **members.rest()}


# --- reading arrays -------------------------------------------------------------------------------


def array_from_json(
    document: Mapping[str, Any], generation: Generation, at: str, options: ReadOptions
) -> ArrayMeta:
    """Parse the document of an array.

    Raises
    ------
    MetadataError
        With all problems of the document.
    """
    members = FieldReader(document)
    grid, separator = _grid(members)
    named = _type(members, options, at)
    # the specification of January 2023 has no such field
    layout = members.take("chunk_memory_layout", is_one_of("C", "F"), "'C' or 'F'", "C")
    attributes = _attributes(members, ABSENT)
    ndim = 0 if grid is None else grid.ndim
    chain = _chain(members, generation, named, layout, ndim, attributes, options)
    stored = None if named is None else named.stored
    data_type = data_type_in_memory(members, "data_type", stored, chain)
    fill = _fill(members, named, data_type, generation, at)
    if grid is not None and chain is not None:
        grid, chain = _gathered(members, grid, chain)
    else:
        members.take("storage_transformers", any_value, "", [])
    extra = _rest(members, generation)
    skipped: tuple[str, ...] = ()
    if named is not None and named.is_fallback:
        # only readers that know the type can convert it and its fill value
        extra |= {name: document.get(name) for name in ("data_type", "fill_value")}
        if generation == "2022-12":  # its codecs would state the byte order of the fallback
            extra["codecs"] = document.get("codecs", [])
        skipped = (f"data type {document['data_type'].get('type')!r}, read as {named.stored}",)
    if members.problems or grid is None or data_type is None or chain is None or fill is None:
        raise MetadataError.of(at, members.problems)
    filters = filters_of(attributes) if generation == "2022-05" else []
    meta = ArrayMeta(
        grid,
        data_type,
        fill,
        chain,
        ChunkKeyEncoding(KEYS_NAMES[generation], separator),
        {name: value for name, value in attributes.items() if not (filters and name == "filters")},
        dimension_names(attributes, grid.ndim),
        extra,
        options.limits,
        skipped=skipped,
    )
    problems = list(meta.problems())
    if problems:
        raise MetadataError.of(at, problems)
    return meta


def _grid(members: FieldReader) -> tuple[Grid | None, Literal["/", "."]]:
    """Return the grid of chunks, and the separator of coordinates in keys."""
    shape = members.take("shape", is_lengths, "a list of integers of at least 0")
    document = members.take("chunk_grid", is_object, "an object with a 'type'")
    if document is None:
        return None, "/"
    inside = FieldReader(document, "chunk_grid")
    kind = inside.take("type", is_one_of("regular"), "'regular', the only known chunk grid")
    if kind is None:
        found = document.get("type", ABSENT)
        members.blame("chunk_grid.type", found, "'regular', the only known chunk grid", "grid")
        return None, "/"
    cell = inside.take("chunk_shape", is_ints, "a list of integers, one per dimension")
    separator = inside.take("separator", is_one_of("/", "."), "'/' or '.'")
    inside.refuse_rest()
    members.problems.extend(inside.problems)
    if shape is None or cell is None or separator is None:
        return None, "/"
    try:
        return stored_grid(shape, cell), separator
    except GridError as error:
        members.blame("chunk_grid.chunk_shape", cell, str(error), "grid")
        return None, "/"


def _type(members: FieldReader, options: ReadOptions, at: str) -> NamedType | None:
    document = members.take("data_type", lambda v: v is not None, "a name, or an object")
    if document is None:
        return None
    named = draft_types.type_from_json(document, options, at)
    if isinstance(named, list):
        members.problems.extend(named)
        return None
    return named


def _chain(
    members: FieldReader,
    generation: Generation,
    named: NamedType | None,
    layout: str | None,
    ndim: int,
    attributes: Mapping[str, Any],
    options: ReadOptions,
) -> CodecChain | None:
    codecs = members.take("codecs", is_codec_list, "a list of at most 1000 codecs", [])
    compressor = None
    if generation == "2022-05":
        compressor = members.take("compressor", any_value, "an object with a 'codec'", None)
    if named is None or layout is None or codecs is None:
        return None
    if codecs or generation == "2022-12":
        chain = chain_from_codecs(codecs, named, layout, ndim, allow_pickle=options.allow_pickle)
    else:
        chain = chain_from_compressor(
            compressor,
            filters_of(attributes),
            named.stored,
            layout,
            ndim,
            allow_pickle=options.allow_pickle,
        )
    if isinstance(chain, list):
        members.problems.extend(chain)
        return None
    return chain


def _fill(
    members: FieldReader,
    named: NamedType | None,
    data_type: DataType | None,
    generation: Generation,
    at: str,
) -> np.ndarray | None:
    value = members.take("fill_value", any_value, "a value of the data type")
    if named is None or data_type is None or (value is None and members.problems):
        return None
    if value is None:
        if generation == "2022-12":
            warn(f"{at}: fill_value is null, which the text forbids; it is read as zero.")
        return data_type.zero
    try:
        if named.stored.hasobject:
            return typestr.object_fill_from_json(value, data_type)
        return draft_types.fill_from_json(value, named.stored)
    except (ValueError, TypeError, OverflowError) as error:
        if named.is_fallback:  # it is a value of the unknown type
            return data_type.zero
        members.blame("fill_value", value, f"a value of {data_type.name} ({error})")
        return None


def _gathered(members: FieldReader, grid: Grid, chain: CodecChain) -> tuple[Grid, CodecChain]:
    """Return grid and chain of stored objects, after storage transformers made shards."""
    transformers = members.take("storage_transformers", is_codec_list, "a list of at most 1000", [])
    if not transformers:
        return grid, chain
    cell, chain = sharded(transformers, grid.largest_cell, chain, members.problems)
    return Grid.regular(grid.shape, cell), chain


# --- writing arrays -------------------------------------------------------------------------------

_SHARDING = "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0"
_SHARDING_OF_MAY = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"


def array_to_json(meta: ArrayMeta, generation: Generation, at: str) -> dict[str, Any]:
    """Return the document of an array.

    Raises
    ------
    MetadataError
        If the draft cannot express `meta`.
    """
    chunk, shards = _chunk_and_shards(meta)
    problems = [*_inexpressible(meta, chunk), *_inexpressible_type(chunk)]
    if problems:
        raise MetadataError.of(at, problems)
    stored = stored_dtype(chunk)
    try:
        fill = _fill_to_json(chunk, stored, generation)
    except ValueError as error:
        problem = ValidationProblem(
            "fill_value", str(meta.fill_value), f"a value that the draft can say ({error})"
        )
        raise MetadataError.of(at, [problem]) from error
    codecs = _codecs_to_json(chunk, stored, generation)
    if isinstance(codecs, ValidationProblem):
        raise MetadataError.of(at, [codecs])
    members, attributes = codecs
    uri = _SHARDING if generation == "2022-12" else _SHARDING_OF_MAY
    name_of = (
        draft_types.name_to_json if generation == "2022-12" else draft_types.numpy_name_to_json
    )
    grid = {
        "type": "regular",
        "chunk_shape": list(chunk.grid.largest_cell),
        "separator": meta.chunk_key_encoding.separator,
    }
    return {
        "shape": list(meta.shape),
        "data_type": name_of(stored),
        "chunk_grid": grid,
        "chunk_memory_layout": order_of(chunk),
        **members,
        "fill_value": fill,
        "extensions": [],
        "attributes": {**meta.attributes, **attributes},
        **({"storage_transformers": [sharding_to_json(n, uri) for n in shards]} if shards else {}),
        **meta.extra,  # including the fields of an unknown data type
    }


def _chunk_and_shards(meta: ArrayMeta) -> tuple[ArrayMeta, list[Shape]]:
    """Return the array without sharding, and the chunks in each shard, from the inside out."""
    cell, chain = meta.grid.largest_cell, meta.codecs
    shards: list[Shape] = []
    while isinstance(chain.serializer, Sharding) and not (chain.arrays or chain.bytes):
        inner = chain.serializer.chunk_shape
        shards.insert(0, tuple(n // m for n, m in zip(cell, inner, strict=True)))
        cell, chain = inner, chain.serializer.codecs
    return replace(meta, grid=Grid.regular(meta.shape, cell), codecs=chain), shards


def _inexpressible(meta: ArrayMeta, chunk: ArrayMeta) -> list[ValidationProblem]:
    problems = []
    if meta.grid.cell_shape is None:
        problems.append(ValidationProblem("chunk grid", "rectilinear", "a regular grid", "grid"))
    if meta.chunk_key_encoding.name not in KEYS_NAMES.values():
        expected = "'draft': keys such as c1/23, without a separator after c"
        problems.append(
            ValidationProblem("chunk_key_encoding", meta.chunk_key_encoding.name, expected, "grid")
        )
    for codec in _shardings(meta.codecs):
        if (codec.index_codecs, codec.index_location) != (SHARD_INDEX_CODECS, "end"):
            expected = "an index of little-endian integers without a checksum, at the end"
            problems.append(ValidationProblem("shards", codec.configuration(), expected, "codec"))
    reverse = (Transpose(tuple(reversed(range(meta.grid.ndim)))),)
    if chunk.codecs.arrays not in ((), reverse):
        names = [codec.name for codec in chunk.codecs.arrays]
        expected = "order 'C' or 'F': the draft has no other array codecs"
        problems.append(ValidationProblem("order", names, expected))
    return problems


def _shardings(chain: CodecChain) -> list[Sharding]:
    codec: Codec = chain.serializer
    return [codec, *_shardings(codec.codecs)] if isinstance(codec, Sharding) else []


def _inexpressible_type(chunk: ArrayMeta) -> list[ValidationProblem]:
    """Return problems of types without a type string in NumPy: ml_dtypes, and their structs."""
    if chunk.codecs.serializer.is_sharding:
        expected = "shards that hold chunks, without codecs around them"
        return [ValidationProblem("shards", chunk.codecs.serializer.name, expected, "codec")]
    if isinstance(chunk.codecs.serializer, ObjectSerializer):
        return []
    stored = stored_dtype(chunk)
    again = typestr.dtype_from_json(typestr.dtype_to_json(stored))
    names = {chunk.data_type.name, f"r{8 * chunk.dtype.itemsize}"}
    if again != stored or data_type_of(native(stored)).name not in {*names, "raw_bytes"}:
        expected = "a core type, or one that NumPy has a type string for"
        return [ValidationProblem("data_type", chunk.data_type.name, expected, "data_type")]
    return []


def _fill_to_json(chunk: ArrayMeta, stored: np.dtype[Any], generation: Generation) -> Any:
    fill = chunk.data_type.fill_or_zero(chunk.fill_value)
    if stored.hasobject:
        return chunk.data_type.to_json(fill)
    if generation == "2022-12" and draft_types.is_core(stored):
        return draft_types.fill_to_json(fill, stored)
    return typestr.fill_to_json(fill, stored)


def _codecs_to_json(
    chunk: ArrayMeta, stored: np.dtype[Any], generation: Generation
) -> tuple[dict[str, Any], dict[str, Any]] | ValidationProblem:
    """Return the field that names the codecs, and additional attributes."""
    objects = chunk.codecs.serializer if stored.hasobject else None
    if generation == "2022-12":
        if objects is not None:
            expected = "elements of a fixed size: the draft has no other"
            return ValidationProblem("data_type", chunk.data_type.name, expected, "data_type")
        endian = getattr(chunk.codecs.serializer, "endian", None)
        says_its_own = not draft_types.is_core(stored)
        steps = steps_to_json(chunk.codecs.bytes, None if says_its_own else endian)
        return steps if isinstance(steps, ValidationProblem) else ({"codecs": steps}, {})
    made = compressor_to_json(chunk.codecs.bytes)
    if isinstance(made, ValidationProblem):
        return made
    compressor, filters = made
    if objects is not None:
        filters.insert(0, numcodecs_from_codec(objects))
    if "filters" in chunk.attributes and (filters or filters_of(chunk.attributes)):
        expected = "no such attribute: zarr-python 2 reads codecs there"
        return ValidationProblem("attributes.filters", chunk.attributes["filters"], expected)
    members = {} if compressor is None else {"compressor": compressor}
    return members, {"filters": filters} if filters else {}
