"""Zarr v2: ``.zarray``, ``.zgroup`` and ``.zattrs`` beside the chunks.

`zarr_dask.formats.v2_document` reads and writes ``.zarray``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import FieldReader, is_int
from zarr_dask._util.warnings import warn
from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.dtypes import DataType
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import (
    DIMENSIONS,
    ArrayMeta,
    BesideData,
    ChunkKeyEncoding,
    FetchedDocuments,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    dump_json,
    load_json,
    read_documents,
    where,
)
from zarr_dask.formats.v3_grids import chunk_keys_from_v3
from zarr_dask.stores.base import Store

__all__ = [
    "OBJECT_CODECS",
    "V2",
    "FormatV2",
    "chunk_keys_with_separator",
    "default_compressor",
    "numcodecs_form",
]


@dataclass(frozen=True, slots=True)
class FormatV2(BesideData):
    """See `zarr_dask.formats.base.Format`."""

    name: str = "v2"
    document_names: tuple[str, ...] = (".zarray", ".zattrs", ".zgroup")
    names_attribute: str | None = DIMENSIONS

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """See `Format.read`."""
        from zarr_dask.formats.v2_document import cached_parse, parse

        array_key, attributes_key, group_key = self.node_keys(path)
        documents = found
        if array_key not in documents:
            fetched = read_documents(store, [array_key, attributes_key], options.limits)
            documents = {**found, **fetched}
        if documents[array_key] is None and group_key not in documents:
            documents = {**documents, **read_documents(store, [group_key], options.limits)}
        attributes_text = documents[attributes_key]
        attributes: dict[str, Any] = {}
        if attributes_text is not None:
            attributes = load_json(store, attributes_key, attributes_text, options.limits)
        array_text = documents[array_key]
        if array_text is not None:
            if documents.get(group_key) is not None:
                warn(
                    f"{where(store, path)} is both an array and a group; the array is used, and "
                    "what lies below it is not."
                )
            document = load_json(store, array_key, array_text, options.limits)
            alike = cached_parse(document, attributes, options)
            if alike is not None:
                return alike
            return parse(document, attributes, where(store, array_key), options)
        group_text = documents[group_key]
        if group_text is None:
            return None
        members = FieldReader(load_json(store, group_key, group_text, options.limits))
        members.take("zarr_format", lambda value: value == 2 and is_int(value), "the integer 2")
        if members.problems:
            raise MetadataError(where(store, group_key), members.problems)
        return GroupMeta(attributes)

    def documents(self, meta: NodeMeta, path: str) -> dict[str, bytes]:
        """See `Format.documents`."""
        from zarr_dask.formats.v2_document import array_document

        array_key, attributes_key, group_key = self.node_keys(path)
        documents = {attributes_key: dump_json(meta.attributes)}
        if isinstance(meta, ArrayMeta):
            documents[array_key] = dump_json(array_document(meta, array_key))
        else:
            documents[group_key] = dump_json({"zarr_format": 2})
        return documents

    def is_node_name(self, name: str) -> bool:
        """True for all names except those of documents."""
        return bool(name) and not name.startswith(".z") and name.strip(".") != ""

    def chain(
        self, wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
    ) -> CodecChain | list[ValidationProblem]:
        """See `Format.chain`."""
        from zarr_dask.codecs.registry_numcodecs import is_object_codec
        from zarr_dask.formats.v2_document import chain_from_v2

        if wanted is None:
            wanted = [default_compressor(data_type)]
        elif isinstance(wanted, Mapping | str | Codec):
            wanted = [wanted]
        documents = [
            (f"codecs[{i}]", numcodecs_form(item, stored.itemsize)) for i, item in enumerate(wanted)
        ]
        if stored.hasobject and not any(is_object_codec(item) for _, item in documents[:1]):
            codec = OBJECT_CODECS.get(data_type.name)
            if codec is None:
                expected = (
                    "an object codec first, such as {'id': 'json2'}; or the data type 'string' or "
                    "'bytes', which have one"
                )
                return [
                    ValidationProblem("codecs", [item for _, item in documents], expected, "codec")
                ]
            documents.insert(0, ("codecs", {"id": codec}))
        # users who request pickles have accepted their risk
        return chain_from_v2(documents, stored, order, ndim, allow_pickle=True)

    def chunk_keys(self, wanted: Any) -> ChunkKeyEncoding | ValidationProblem:
        """See `Format.chunk_keys`."""
        return chunk_keys_with_separator(wanted)

    def attributes(
        self, attributes: Mapping[str, Any], names: Sequence[str | None] | None
    ) -> dict[str, Any]:
        """See `Format.attributes`."""
        if names is None:
            return dict(attributes)
        others = {name: value for name, value in attributes.items() if name != DIMENSIONS}
        return {DIMENSIONS: list(names), **others}


def chunk_keys_with_separator(wanted: Any) -> ChunkKeyEncoding | ValidationProblem:
    """Return a layout of keys that consist of coordinates only (None: joined by dots)."""
    if wanted is None:
        return ChunkKeyEncoding("v2", ".")
    if isinstance(wanted, Mapping) and "separator" in wanted:  # as in zarr-python
        configuration = {"separator": wanted["separator"]}
        wanted = {"name": wanted.get("name", "v2"), "configuration": configuration}
    keys = chunk_keys_from_v3(wanted)
    if keys is None or keys.name != "v2":
        expected = "'v2' in format v2, with a separator of '/' or '.'"
        return ValidationProblem("chunk_key_encoding", wanted, expected, "grid")
    return keys


def default_compressor(data_type: DataType) -> dict[str, Any]:
    """Return the numcodecs configuration of a new array's default compressor: that of v3."""
    from zarr_dask.codecs.compress.blosc import DEFAULT_BLOSC

    if data_type.itemsize == 1 or data_type.variable:
        return {"id": "zstd", "level": 0}
    best = DEFAULT_BLOSC
    sizes = {"clevel": best.clevel, "shuffle": 1, "blocksize": best.blocksize}
    return {"id": "blosc", "cname": best.cname, **sizes}


OBJECT_CODECS = {"string": "vlen-utf8", "bytes": "vlen-bytes"}
"""The default codec of elements of variable length."""


def numcodecs_form(item: Any, itemsize: int = 1) -> Any:
    """Return a user's codec in numcodecs' spelling: a name, or a codec of v3; others unchanged."""
    if isinstance(item, str):
        return {"id": item}
    get_config = getattr(item, "get_config", None)
    if get_config is not None:
        return get_config()
    if isinstance(item, Codec) or (isinstance(item, Mapping) and "name" in item):
        from zarr_dask.codecs.registry import codec_from_v3, with_codec_defaults

        codec = codec_from_v3(with_codec_defaults(item, itemsize), "codecs")
        form = codec.to_numcodecs() if isinstance(codec, Codec) else None
        return item if form is None else form
    return item


V2 = FormatV2()
