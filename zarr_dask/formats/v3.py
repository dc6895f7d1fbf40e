"""Zarr v3, final (3.0 and 3.1): one ``zarr.json`` per node.

Read by the core specification, and written in the form that readers of 3.0 understand: extension
points as objects with a name, data types of the core as strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from zarr_dask._util.json_fields import (
    FieldReader,
    any_value,
    are_names,
    is_codec_list,
    is_int,
    is_lengths,
    is_list,
    is_object,
)
from zarr_dask._util.warnings import warn
from zarr_dask.codecs.arrays import Bytes, Transpose, element_bytes, endian_of
from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.codec_config import ParseContext, StrictParseContext
from zarr_dask.codecs.registry import (
    chain_from_v3,
    encoded_data_type,
    is_array_codec,
    is_serializer,
    with_codec_defaults,
)
from zarr_dask.dtypes import DataType, Struct, data_type_from_v3, leaves
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import (
    ArrayMeta,
    BesideData,
    ChunkKeyEncoding,
    FetchedDocuments,
    GroupMeta,
    Limits,
    NodeMeta,
    ReadOptions,
    dump_json,
    load_json,
    read_documents,
    where,
)
from zarr_dask.formats.parse_cache import (
    MOST_KNOWN,
    as_bytes,
    from_bytes,
    is_plain_shape,
    with_shape,
)
from zarr_dask.formats.v3_grids import (
    chunk_keys_from_v3,
    chunk_keys_to_v3,
    grid_to_v3,
    may_be_ignored,
    take_chunk_keys,
    take_extension,
    take_grid,
)
from zarr_dask.stores.base import Store, join

__all__ = ["V3", "chunk_keys_from_v3"]

_DOCUMENT = "zarr.json"


@dataclass(frozen=True, slots=True)
class FormatV3(BesideData):
    """See `zarr_dask.formats.base.Format`."""

    name: str = "v3"
    document_names: tuple[str, ...] = (_DOCUMENT,)
    has_shards: bool = True
    has_undefined_fill: bool = False
    key_layouts: tuple[ChunkKeyEncoding, ...] = (
        ChunkKeyEncoding("default", "/"),
        ChunkKeyEncoding("default", "."),
        ChunkKeyEncoding("v2", "."),
        ChunkKeyEncoding("v2", "/"),
    )

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """See `Format.read`."""
        key = join(path, _DOCUMENT)
        text = found[key] if key in found else read_documents(store, [key], options.limits)[key]
        if text is None:
            return None
        document = load_json(store, key, text, options.limits)
        alike = _like_a_known_one(document, options.limits)
        if alike is not None:
            return alike
        at = where(store, key)
        early = _early_node(document, at, options)
        return parse(document, at, options.limits) if early is None else early

    def documents(self, meta: NodeMeta, path: str) -> dict[str, bytes]:
        """See `Format.documents`."""
        problems = list(_cannot_be_said(meta)) if isinstance(meta, ArrayMeta) else []
        if problems:
            raise MetadataError.of(join(path, _DOCUMENT), problems)
        document = _array_document(meta) if isinstance(meta, ArrayMeta) else _group_document(meta)
        key = join(path, _DOCUMENT)
        return {key: dump_json(document)}

    def is_node_name(self, name: str) -> bool:
        """False for names with two leading underscores, which are reserved (core, "Node names").

        Those two that xarray gives to variables without a name are taken all the same.
        """
        if name.startswith("__"):
            return name in _OF_XARRAY
        return bool(name) and name != _DOCUMENT and name.strip(".") != ""

    def chain(
        self, wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
    ) -> CodecChain | list[ValidationProblem]:
        """See `Format.chain`; chains of codecs in JSON are made once."""
        key = as_bytes({"codecs": wanted})
        made = None if key is None else _known_chain(key, data_type, stored, order, ndim)
        return made or _chain(wanted, data_type, stored, order, ndim)

    def chunk_keys(self, wanted: Any) -> ChunkKeyEncoding | ValidationProblem:
        """See `Format.chunk_keys`."""
        if wanted is None:
            return self.key_layouts[0]
        if isinstance(wanted, Mapping) and "separator" in wanted:  # as in zarr-python
            name = wanted.get("name", "default")
            wanted = {"name": name, "configuration": {"separator": wanted["separator"]}}
        keys = chunk_keys_from_v3(wanted)
        if keys is None:
            expected = "'default' or 'v2', with a separator of '/' or '.'"
            return ValidationProblem("chunk_key_encoding", wanted, expected, "grid")
        return keys

    def attributes(
        self,
        attributes: Mapping[str, Any],
        names: Sequence[str | None] | None,  # noqa: ARG002  (they have a member of their own)
    ) -> dict[str, Any]:
        """See `Format.attributes`."""
        return dict(attributes)


V3 = FormatV3()


@lru_cache(maxsize=MOST_KNOWN)
def _known_chain(
    key: bytes, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
) -> CodecChain | None:
    """Return the chain of codecs that a caller gives in JSON; None if there is something wrong.

    None also for codecs of others, whose classes may be registered anew.
    """
    made = _chain(from_bytes(key)["codecs"], data_type, stored, order, ndim)
    return made if isinstance(made, CodecChain) and _are_own(made.codecs) else None


def _are_own(codecs: Sequence[Codec]) -> bool:
    """True if codecs are of this package, also those within shards."""
    package = __name__.partition(".")[0]
    return all(
        type(one).__module__.partition(".")[0] == package
        and _are_own(getattr(one, "inner_codecs", None) or ())
        for one in codecs
    )


def _chain(
    wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
) -> CodecChain | list[ValidationProblem]:
    try:
        data_type.document()
    except ValueError as error:
        return [
            ValidationProblem("dtype", data_type.label, f"a data type of v3 ({error})", "data_type")
        ]
    items = _default_codecs(data_type) if wanted is None else wanted
    if isinstance(items, str | Codec | Mapping):
        items = [items]
    items = [_of_v3(item) for item in items]
    encoded = encoded_data_type(items, data_type, ndim)
    documents = [with_codec_defaults(item, _shuffled_bytes(encoded)) for item in items]
    if not any(is_serializer(item) for item in documents):
        position = sum(is_array_codec(item) for item in documents)
        elements = stored if encoded == data_type else encoded.dtype
        documents.insert(position, _default_serializer(encoded, elements))
    if order == "F" and ndim > 1:
        documents.insert(0, Transpose(tuple(reversed(range(ndim)))))
    if wanted is None:  # which need no check
        made = make_chain(documents)
        return [made] if isinstance(made, ValidationProblem) else made
    return chain_from_v3(documents)


_OF_XARRAY = ("__xarray_dataarray_variable__", "__values__")
"""Names that xarray gives to arrays without a name, although v3 reserves them."""


def _of_v3(item: Any) -> Any:
    """Return a codec that is given in numcodecs' spelling, an object with an ``id``, in that of v3.

    Compressors that v3 has keep their name, all others have the prefix of numcodecs.
    """
    from zarr_dask.codecs.registry_numcodecs import codec_from_numcodecs

    if not isinstance(item, Mapping) or "name" in item or not isinstance(item.get("id"), str):
        return item
    name = item["id"]
    if name in {"zstd", "gzip", "blosc"}:
        codec = codec_from_numcodecs(item, "codecs")
        return item if isinstance(codec, list) else codec
    if name in {"vlen-utf8", "vlen-bytes"} or item == {"id": "crc32c"}:
        return {"name": name}
    configuration = {member: value for member, value in item.items() if member != "id"}
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def _default_codecs(data_type: DataType) -> list[Codec]:
    """Return the default compressor, which shuffles elements of several bytes, and a checksum.

    The checksum is of the compressed bytes, because that of zstd is of more bytes.
    """
    from zarr_dask.codecs.compress.blosc import DEFAULT_BLOSC
    from zarr_dask.codecs.compress.zstd import Zstd

    shuffles = data_type.itemsize > 1 and not data_type.variable
    return [DEFAULT_BLOSC if shuffles else Zstd(), Crc32c()]


def _shuffled_bytes(data_type: DataType) -> int:
    """Return the element size that blosc should assume."""
    from zarr_dask.codecs.compress.blosc import BLOSC_LARGEST_TYPESIZE

    size = data_type.itemsize
    return size if size <= BLOSC_LARGEST_TYPESIZE else element_bytes(data_type.dtype)


def _default_serializer(data_type: DataType, stored: np.dtype[Any]) -> Codec:
    from zarr_dask.codecs.objects.vlen import VlenBytes, VlenUtf8

    if data_type.variable:
        return VlenUtf8() if data_type.name == "string" else VlenBytes()
    if element_bytes(stored) == 1:
        return Bytes(None)
    orders = {endian_of(leaf) for _, leaf in leaves(stored)} - {None}
    return Bytes("big" if orders == {"big"} else "little")  # v3 has one byte order for all fields


# --- reading --------------------------------------------------------------------------------------


def parse(
    document: Mapping[str, Any],
    at: str,
    limits: Limits,
    *,
    stored_as: type[ParseContext] | None = ParseContext,
) -> NodeMeta:
    """Parse a document; deprecated forms are accepted only if they are stored.

    `stored_as` tells codecs that they are read from a store; None if a user gives the document.

    Raises
    ------
    MetadataError
        With all problems of the document.
    """
    members = FieldReader(document)
    expected = "the integer 3"
    if str(document.get("zarr_format")).startswith("https://purl.org/zarr/"):
        expected += ": this hierarchy is of a draft of v3, and is opened by its own path"
    members.take("zarr_format", lambda value: value == 3 and is_int(value), expected)
    kind = members.take(
        "node_type", lambda value: value in ("array", "group"), "'array' or 'group'"
    )
    attributes = members.take("attributes", is_object, "an object", {})
    if kind == "group":
        members.take(
            "consolidated_metadata", lambda v: v is None or is_object(v), "an object", None
        )
        extra = _ignorable(members)
        if document.get("consolidated_metadata") is not None:
            extra["consolidated_metadata"] = document["consolidated_metadata"]
        if members.problems:
            raise MetadataError.of(at, members.problems)
        return GroupMeta(attributes, extra)
    if kind is None and "shape" not in document:  # neither an array nor a group
        raise MetadataError.of(at, members.problems)
    meta = _array(members, attributes, limits, at, stored_as)
    problems = members.problems or (list(meta.problems()) if meta else [])
    if meta is None or problems:
        raise MetadataError.of(at, problems)
    return meta


def _early_node(document: Mapping[str, Any], at: str, options: ReadOptions) -> NodeMeta | None:
    """Parse a document of February 2023; None for others, which mostly show at a glance."""
    has_no_keys = "chunk_grid" in document and "chunk_key_encoding" not in document
    if not has_no_keys and not isinstance(document.get("zarr_format"), str):
        return None
    from zarr_dask.formats.v3draft_2023 import node_of_2023

    return node_of_2023(document, at, options)


def _like_a_known_one(document: Mapping[str, Any], limits: Limits) -> ArrayMeta | None:
    """Return the metadata if a known document has the same grid, type and codecs, or None."""
    common = dict(document)
    shape = common.pop("shape", None)
    attributes = common.pop("attributes", {})
    names = common.pop("dimension_names", None)
    if not is_plain_shape(shape) or not isinstance(attributes, dict):
        return None
    if names is not None and not (are_names(names) and len(names) == len(shape)):
        return None
    key = as_bytes(common)
    known = None if key is None else _known(key, len(shape), limits)
    if known is None:
        return None
    return with_shape(known, shape, attributes, None if names is None else tuple(names))


@lru_cache(maxsize=MOST_KNOWN)
def _known(common: bytes, ndim: int, limits: Limits) -> ArrayMeta | None:
    """Return an array of one cell; None unless its document has no problems."""
    document = from_bytes(common)
    grid = _object_at(document, "chunk_grid")
    shape = _object_at(grid, "configuration").get("chunk_shape")
    if grid.get("name") != "regular" or not is_plain_shape(shape) or len(shape) != ndim:
        return None
    is_old = _object_at(document, "data_type").get("name") == "structured"
    if is_old or document.get("storage_transformers"):
        return None
    try:
        meta = parse({**document, "shape": shape}, "", limits, stored_as=StrictParseContext)
    except MetadataError:
        return None  # the caller reports the problem with its location
    return None if isinstance(meta, GroupMeta) or meta.extra else meta


def _object_at(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _array(
    members: FieldReader,
    attributes: Mapping[str, Any],
    limits: Limits,
    at: str,
    stored_as: type[ParseContext] | None,
) -> ArrayMeta | None:
    shape = members.take("shape", is_lengths, "a list of integers of at least 0")
    data_type = _data_type(members)
    stored = None if stored_as is None or shape is None else stored_as(at, len(shape))
    codecs = _codecs(members, data_type, stored)
    grid = take_grid(members, shape, codecs)
    keys = take_chunk_keys(members)
    fill = _fill_value(members, data_type, codecs)
    names = _dimension_names(members, shape)
    transformers = _storage_transformers(members)
    extra = {"storage_transformers": transformers} if transformers else {}
    extra |= _ignorable(members)
    if data_type is None or grid is None or keys is None or fill is None or codecs is None:
        return None
    skipped = tuple(f"storage transformer {item.get('name')!r}" for item in transformers)
    meta = ArrayMeta(grid, data_type, fill, codecs, keys, attributes, names, extra, limits)
    return replace(meta, skipped=skipped) if skipped else meta


def _data_type(members: FieldReader) -> DataType | None:
    named = take_extension(members, "data_type")
    if named is None:
        return None
    data_type = data_type_from_v3({"name": named.name, "configuration": named.configuration})
    if isinstance(data_type, list):
        members.problems.extend(data_type)
        return None
    return data_type


def _fill_value(
    members: FieldReader, data_type: DataType | None, codecs: CodecChain | None
) -> np.ndarray | None:
    value = members.take("fill_value", any_value, "a value of the data type")
    if data_type is None or (value is None and members.problems):
        return None
    try:
        if isinstance(data_type, Struct) and data_type.legacy and isinstance(value, str):
            return data_type.from_packed(value, _packed_order(codecs))
        return data_type.from_json(value)
    except (ValueError, TypeError, OverflowError) as error:
        members.blame("fill_value", value, f"a {data_type.label} ({error})")
        return None


def _packed_order(codecs: CodecChain | None) -> Literal["<", ">"]:
    """Return the byte order of the chunks, and of a packed legacy ``structured`` fill value."""
    from zarr_dask.codecs.sharding import Sharding

    inner = codecs
    while inner is not None and isinstance(inner.serializer, Sharding):
        inner = inner.serializer.codecs
    return ">" if inner is not None and getattr(inner.serializer, "endian", "") == "big" else "<"


def _codecs(
    members: FieldReader, data_type: DataType | None, stored: ParseContext | None
) -> CodecChain | None:
    documents = members.take(
        "codecs", lambda v: is_codec_list(v) and v, "a list of 1 to 1000 codecs"
    )
    if documents is None:
        return None
    if isinstance(data_type, Struct) and data_type.legacy and element_bytes(data_type.dtype) > 1:
        documents = [_with_byte_order(document) for document in documents]
    chain = chain_from_v3(documents, stored=stored)
    if isinstance(chain, list):
        members.problems.extend(chain)
        return None
    return chain


def _with_byte_order(document: Any) -> Any:
    """Return a codec with the byte order that legacy ``structured`` arrays may omit."""
    from zarr_dask.codecs.sharding import Sharding

    name, configuration = document, {}
    if is_object(document):
        name, configuration = document.get("name"), document.get("configuration", {})
    if not is_object(configuration):
        return document
    if name == Bytes.name and "endian" not in configuration:
        warn(
            "an array of the legacy data type 'structured' does not say its byte order; it is read "
            "as little-endian, as the registry of data types demands."
        )
        return {"name": name, "configuration": {**configuration, "endian": "little"}}
    if name == Sharding.name and is_list(configuration.get("codecs")):
        codecs = [_with_byte_order(item) for item in configuration["codecs"]]
        return {"name": name, "configuration": {**configuration, "codecs": codecs}}
    return document


def _dimension_names(
    members: FieldReader, shape: Sequence[int] | None
) -> tuple[str | None, ...] | None:
    names = members.take(
        "dimension_names",
        are_names,
        "a list of strings and nulls",
        None,
    )
    if names is None:
        return None
    if shape is not None and len(names) != len(shape):
        members.blame("dimension_names", names, f"{len(shape)} names, one per dimension")
    return tuple(names)


def _storage_transformers(members: FieldReader) -> list[Mapping[str, Any]]:
    """Return the storage transformers to skip; none is known, so all others are problems."""
    transformers = (
        members.take("storage_transformers", is_codec_list, "a list of at most 1000", []) or []
    )
    for position, transformer in enumerate(transformers):
        place = f"storage_transformers[{position}]"
        if may_be_ignored(transformer):
            warn(
                f"{place} is unknown, {transformer.get('name')!r}, and need not be understood. It "
                "is skipped in reading; nothing can be written."
            )
        else:
            expected = 'none that is unknown, or an object with "must_understand": false'
            members.blame(place, transformer, expected)
    return [transformer for transformer in transformers if may_be_ignored(transformer)]


_LEFT_OVER = dict.fromkeys(("extensions", "chunk_memory_layout"), "drafts of 2022 had it")
"""Fields of other versions, for messages."""


def _ignorable(members: FieldReader) -> dict[str, Any]:
    """Return unknown fields; those that must be understood are noted as problems."""
    extra = dict(members.rest())
    members.blame_all(
        (name for name, value in extra.items() if not may_be_ignored(value)), _expected_instead
    )
    return extra


def _expected_instead(name: str) -> str:
    known = f" ({_LEFT_OVER[name]})" if name in _LEFT_OVER else ""
    return f'no such member{known}, or an object with "must_understand": false'


# --- writing --------------------------------------------------------------------------------------


def _group_document(meta: GroupMeta) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": dict(meta.attributes),
        **meta.extra,
    }


def _array_document(meta: ArrayMeta) -> dict[str, Any]:
    names = meta.dimension_names
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(meta.shape),
        "data_type": meta.data_type.document(),
        "chunk_grid": grid_to_v3(meta.grid),
        "chunk_key_encoding": chunk_keys_to_v3(meta.chunk_key_encoding),
        "fill_value": None if meta.fill_value is None else meta.data_type.to_json(meta.fill_value),
        "codecs": [codec.document() for codec in meta.codecs.codecs],
        "attributes": dict(meta.attributes),
        **({} if names is None else {"dimension_names": list(names)}),
        **meta.extra,
    }


def _cannot_be_said(meta: ArrayMeta) -> Iterator[ValidationProblem]:
    """Yield everything of arrays from other formats that v3 cannot express."""
    if meta.chunk_key_encoding.name not in {"default", "v2"}:
        expected = "'default' or 'v2': v3 has no keys such as c1/23"
        yield ValidationProblem(
            "chunk_key_encoding", meta.chunk_key_encoding.name, expected, "grid"
        )
    try:
        meta.data_type.document()
    except ValueError as error:
        yield ValidationProblem(
            "data_type", meta.data_type.label, f"one of v3 ({error})", "data_type"
        )
    if meta.fill_value is None:
        yield ValidationProblem(
            "fill_value", None, "a value: v3 has no arrays without a fill value"
        )
