"""Zarr v2: ``.zarray``, ``.zgroup`` and ``.zattrs`` beside the chunks.

``order: "F"`` is a ``transpose`` codec, the byte order of the type string is that of a ``bytes``
codec, filters and compressor are steps from bytes to bytes: a v2 array is a chain of the same
codecs as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask.codecs.arrays import Bytes, Transpose, endian_of
from zarr_dask.codecs.base import ArrayCodec, BytesCodec
from zarr_dask.codecs.chain import Chain
from zarr_dask.codecs.numcodecs import ARRAY_FILTERS, Filter
from zarr_dask.codecs.registry import codec_from_numcodecs, numcodecs_from_codec
from zarr_dask.dtypes import (
    DataType,
    data_type_of,
    float_from_json,
    native,
    parts_of_complex,
    scalar,
)
from zarr_dask.errors import GridError, MetadataError, Problem
from zarr_dask.formats.base import (
    ArrayMeta,
    ChunkKeys,
    GroupMeta,
    Limits,
    NodeMeta,
    ReadOptions,
    child_prefixes,
    dump_json,
    load_json,
    prefix_of,
    read_documents,
    stored_grid,
    where,
)
from zarr_dask.formats.v3 import chunk_keys_from_v3, fill_to_json
from zarr_dask.grid import Grid
from zarr_dask.members import Members, anything, is_int, is_ints, is_lengths, is_list, one_of
from zarr_dask.stores.base import Store, join

__all__ = ["V2", "chain_from_v2"]

_SIZES = {"b": "1", "i": "1 2 4 8", "u": "1 2 4 8", "f": "2 4 8", "c": "8 16"}
_TYPE_STRING = re.compile(r"([<>|])([biufc])([0-9]+)")


@dataclass(frozen=True)
class FormatV2:
    """See `zarr_dask.formats.base.Format`."""

    name: str = "v2"
    has_shards: bool = False
    has_undefined_fill: bool = True
    has_implicit_groups: bool = False

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        return (join(path, ".zarray"), join(path, ".zattrs"), join(path, ".zgroup"))

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: Mapping[str, bytes | None]
    ) -> NodeMeta | None:
        """See `Format.read`."""
        array_key, attributes_key, group_key = self.node_keys(path)
        documents = dict(found)
        if array_key not in documents:
            documents |= read_documents(store, [array_key, attributes_key], options.limits)
        if documents[array_key] is None and group_key not in documents:
            documents |= read_documents(store, [group_key], options.limits)
        attributes_text = documents[attributes_key]
        attributes = (
            {} if attributes_text is None else load_json(store, attributes_key, attributes_text)
        )
        array_text = documents[array_key]
        if array_text is not None:
            document = load_json(store, array_key, array_text)
            return parse(document, attributes, where(store, array_key), options.limits)
        group_text = documents[group_key]
        if group_text is None:
            return None
        members = Members(load_json(store, group_key, group_text))
        members.take("zarr_format", lambda value: value == 2 and is_int(value), "the integer 2")
        if members.problems:
            raise MetadataError(where(store, group_key), members.problems)
        return GroupMeta(attributes)

    def data_prefix(self, path: str) -> str:
        """See `Format.data_prefix`."""
        return prefix_of(path)

    def prefixes(self, path: str) -> tuple[str, ...]:
        """See `Format.prefixes`."""
        return (prefix_of(path),)

    def child_names(self, store: Store, path: str) -> list[str]:
        """See `Format.child_names`."""
        return [n for n in child_prefixes(store, prefix_of(path)) if self.is_node_name(n)]

    def root_documents(self) -> dict[str, bytes]:
        """See `Format.root_documents`."""
        return {}

    def documents(self, meta: NodeMeta, path: str) -> dict[str, bytes]:
        """See `Format.documents`."""
        array_key, attributes_key, group_key = self.node_keys(path)
        documents = {attributes_key: dump_json(meta.attributes)}
        if isinstance(meta, ArrayMeta):
            documents[array_key] = dump_json(_array_document(meta, array_key))
        else:
            documents[group_key] = dump_json({"zarr_format": 2})
        return documents

    def is_node_name(self, name: str) -> bool:
        """Everything but the names of documents."""
        return bool(name) and not name.startswith(".z") and name.strip(".") != ""

    def chain(
        self, wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
    ) -> Chain | list[Problem]:
        """See `Format.chain`."""
        if wanted is None:
            shuffle = 2 if data_type.itemsize == 1 else 1
            wanted = [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": shuffle}]
        elif isinstance(wanted, Mapping):
            wanted = [wanted]
        documents = [(f"codecs[{i}]", _numcodecs_form(item)) for i, item in enumerate(wanted)]
        return chain_from_v2(documents, stored, order, ndim)

    def chunk_keys(self, wanted: Any) -> ChunkKeys | Problem:
        """See `Format.chunk_keys`."""
        if wanted is None:
            return ChunkKeys("v2", ".")
        if isinstance(wanted, Mapping) and "separator" in wanted:  # as zarr-python spells it
            configuration = {"separator": wanted["separator"]}
            wanted = {"name": wanted.get("name", "v2"), "configuration": configuration}
        keys = chunk_keys_from_v3(wanted)
        if keys is None or keys.name != "v2":
            expected = "'v2' in format v2, with a separator of '/' or '.'"
            return Problem("chunk_key_encoding", wanted, expected, "grid")
        return keys

    def attributes(
        self, attributes: Mapping[str, Any], names: Sequence[str | None] | None
    ) -> dict[str, Any]:
        """See `Format.attributes`."""
        if names is None:
            return dict(attributes)
        return {"_ARRAY_DIMENSIONS": list(names), **attributes}


def _numcodecs_form(item: Any) -> Any:
    """The configuration of a numcodecs codec object; anything else as it is."""
    get_config = getattr(item, "get_config", None)
    return get_config() if get_config is not None else item


V2 = FormatV2()


# --- reading --------------------------------------------------------------------------------------


def parse(
    document: Mapping[str, Any], attributes: Mapping[str, Any], at: str, limits: Limits
) -> ArrayMeta:
    """What a ``.zarray`` document says; members that are not known are ignored.

    Raises
    ------
    MetadataError
        With every problem of the document.
    """
    members = Members(document)
    members.take("zarr_format", lambda value: value == 2 and is_int(value), "the integer 2")
    shape = members.take("shape", is_lengths, "a list of integers of at least 0")
    cell = members.take("chunks", is_ints, "a list of integers, one per dimension")
    grid = _grid(members, shape, cell)
    stored = _type(members)
    fill = _fill_value(members, stored)
    order = members.take("order", one_of("C", "F"), "'C' or 'F'")
    separator = members.take("dimension_separator", one_of(".", "/"), "'.' or '/'", ".")
    codecs = _codecs(members, order, stored, len(shape or ()))
    if members.problems or grid is None or stored is None or codecs is None:
        raise MetadataError.of(at, members.problems)
    names = _dimension_names(attributes, grid.ndim)
    meta = ArrayMeta(
        grid,
        data_type_of(stored),
        fill,
        codecs,
        ChunkKeys("v2", separator),
        attributes,
        names,
        limits=limits,
    )
    problems = list(meta.problems())
    if problems:
        raise MetadataError.of(at, problems)
    return meta


def _grid(members: Members, shape: list[int] | None, cell: list[int] | None) -> Grid | None:
    if shape is None or cell is None:
        return None
    try:
        return stored_grid(shape, cell)
    except GridError as error:
        members.blame("chunks", cell, str(error), "grid")
        return None


def _type(members: Members) -> np.dtype[Any] | None:
    text = members.take("dtype", lambda value: isinstance(value, str | list), "a NumPy type string")
    if text is None:
        return None
    match = _TYPE_STRING.fullmatch(text) if isinstance(text, str) else None
    if (
        match is None
        or match[3] not in _SIZES[match[2]].split()
        or (match[1] == "|" and match[3] != "1")
    ):
        expected = "a type string with a byte order, of a bool, integer, float or complex type"
        members.blame("dtype", text, f"{expected}, such as '<f4'", "data_type")
        return None
    stored: np.dtype[Any] = np.dtype(text)
    return stored


def _fill_value(members: Members, dtype: np.dtype[Any] | None) -> np.ndarray | None:
    value = members.take("fill_value", anything, "a value of the data type, or null")
    if dtype is None or value is None:
        return None
    try:
        return _fill_from_json(value, native(dtype))
    except (ValueError, TypeError, OverflowError) as error:
        members.blame("fill_value", value, f"a {dtype.name} ({error}), or null")
        return None


def _fill_from_json(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "f":
        return float_from_json(value, dtype)
    if dtype.kind == "c":
        # the text is silent; writers use a pair, or a real number where the fill value is one
        pair = value if isinstance(value, list) and len(value) == 2 else [value, 0]
        part = parts_of_complex(dtype)
        parts = np.array([float_from_json(item, part) for item in pair], part)
        return parts.view(dtype).reshape(())
    return scalar(value, dtype)


def _codecs(
    members: Members, order: str | None, dtype: np.dtype[Any] | None, ndim: int
) -> Chain | None:
    filters = members.take("filters", lambda v: v is None or is_list(v), "a list or null")
    compressor = members.take("compressor", anything, "an object with an 'id', or null")
    if dtype is None or order is None:
        return None
    documents = [(f"filters[{i}]", item) for i, item in enumerate(filters or [])]
    if compressor is not None:
        documents.append(("compressor", compressor))
    chain = chain_from_v2(documents, dtype, order, ndim)
    if isinstance(chain, list):
        members.problems.extend(chain)
        return None
    return chain


def chain_from_v2(
    documents: list[tuple[str, Any]], dtype: np.dtype[Any], order: str, ndim: int
) -> Chain | list[Problem]:
    """The chain of a v2 array.

    Parameters
    ----------
    documents
        Place and numcodecs configuration of each filter, then of the compressor.
    dtype
        As stored, with its byte order.
    order
        ``"C"`` or ``"F"``.
    ndim
        Number of dimensions.
    """
    steps: list[BytesCodec] = []
    problems: list[Problem] = []
    running = dtype.str
    for place, document in documents:
        made = codec_from_numcodecs(document, place, running)
        if isinstance(made, list):
            problems.extend(made)
            continue
        steps.append(made)
        if isinstance(made, Filter):
            running = made.output_dtype(running)
    if problems:
        return problems
    arrays: tuple[ArrayCodec, ...] = ()
    if order == "F" and ndim > 1:
        arrays = (Transpose(tuple(reversed(range(ndim)))),)
    return Chain(arrays, Bytes(endian_of(dtype)), tuple(steps))


def _dimension_names(attributes: Mapping[str, Any], ndim: int) -> tuple[str | None, ...] | None:
    """Xarray's convention for names of dimensions in v2."""
    names = attributes.get("_ARRAY_DIMENSIONS")
    if (
        isinstance(names, list)
        and len(names) == ndim
        and all(isinstance(name, str) for name in names)
    ):
        return tuple(names)
    return None


# --- writing --------------------------------------------------------------------------------------


def _array_document(meta: ArrayMeta, at: str) -> dict[str, Any]:
    problems = list(_cannot_be_said(meta))
    if problems:
        raise MetadataError.of(at, problems)
    filters = [numcodecs_from_codec(codec) for codec in meta.codecs.bytes]
    compressor = None
    if filters and not _is_filter(meta.codecs.bytes[-1]):
        compressor = filters.pop()
    endian = getattr(meta.codecs.serializer, "endian", None)
    stored = meta.dtype.newbyteorder(">" if endian == "big" else "<")
    return {
        "zarr_format": 2,
        "shape": list(meta.shape),
        "chunks": list(meta.grid.largest_cell),
        "dtype": stored.str,
        "compressor": compressor,
        "fill_value": None if meta.fill is None else fill_to_json(meta.fill),
        "order": "F" if meta.codecs.arrays else "C",
        "filters": filters or None,
        "dimension_separator": meta.keys.separator,
    }


def _is_filter(codec: BytesCodec) -> bool:
    return isinstance(codec, Filter) and (codec.id in ARRAY_FILTERS or codec.id == "shuffle")


def _cannot_be_said(meta: ArrayMeta) -> list[Problem]:
    problems = []
    reverse = (Transpose(tuple(reversed(range(meta.grid.ndim)))),)
    if meta.codecs.arrays not in ((), reverse):
        names = [codec.name for codec in meta.codecs.arrays]
        problems.append(Problem("order", names, "order 'C' or 'F': v2 has no other transposition"))
    if not isinstance(meta.codecs.serializer, Bytes):
        problems.append(
            Problem(
                "shards", meta.codecs.serializer.name, "no shards: v2 has none. Use v3", "codec"
            )
        )
    for position, codec in enumerate(meta.codecs.bytes):
        if numcodecs_from_codec(codec) is None:
            place = f"codecs[{position}]"
            problems.append(Problem(place, codec.name, "a codec that v2 can name", "codec"))
    if meta.keys.name != "v2":
        problems.append(Problem("chunk_key_encoding", meta.keys.name, "'v2' in format v2"))
    return problems
