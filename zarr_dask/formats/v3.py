"""Zarr v3, final (3.0 and 3.1): one ``zarr.json`` per node.

Read as the core specification says, and written in the form that readers of 3.0 understand:
extension points as objects with a name, data types of the core as strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from zarr_dask.codecs.arrays import Bytes, Transpose, endian_of
from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import Chain
from zarr_dask.codecs.compress import Blosc, Zstd
from zarr_dask.codecs.registry import (
    chain_from_v3,
    completed,
    is_array_codec,
    is_serializer,
)
from zarr_dask.dtypes import (
    CORE_NAMES,
    DataType,
    data_type_of,
    float_from_json,
    float_to_json,
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
from zarr_dask.grid import Grid
from zarr_dask.members import Members, anything, is_int, is_ints, is_lengths, is_list, is_object
from zarr_dask.stores.base import Store, join

__all__ = ["V3", "chunk_keys_from_v3"]

_DOCUMENT = "zarr.json"


@dataclass(frozen=True)
class FormatV3:
    """See `zarr_dask.formats.base.Format`."""

    name: str = "v3"
    has_shards: bool = True
    has_undefined_fill: bool = False
    has_implicit_groups: bool = False

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        return (join(path, _DOCUMENT),)

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: Mapping[str, bytes | None]
    ) -> NodeMeta | None:
        """See `Format.read`."""
        key = join(path, _DOCUMENT)
        text = found[key] if key in found else read_documents(store, [key], options.limits)[key]
        if text is None:
            return None
        return parse(load_json(store, key, text), where(store, key), options.limits)

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
        document = _array_document(meta) if isinstance(meta, ArrayMeta) else _group_document(meta)
        key = join(path, _DOCUMENT)
        return {key: dump_json(document)}

    def is_node_name(self, name: str) -> bool:
        """Names that start with two underscores are kept for other uses (core, "Node names")."""
        return (
            bool(name) and not name.startswith("__") and name != _DOCUMENT and name.strip(".") != ""
        )

    def chain(
        self, wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
    ) -> Chain | list[Problem]:
        """See `Format.chain`."""
        items = [Blosc(shuffle=None)] if wanted is None else wanted
        if isinstance(items, str | Codec | Mapping):
            items = [items]
        documents = [completed(item, data_type.itemsize) for item in items]
        if not any(is_serializer(item) for item in documents):
            position = sum(is_array_codec(item) for item in documents)
            documents.insert(position, Bytes(endian_of(stored)))
        if order == "F" and ndim > 1:
            documents.insert(0, Transpose(tuple(reversed(range(ndim)))))
        return chain_from_v3(documents)

    def chunk_keys(self, wanted: Any) -> ChunkKeys | Problem:
        """See `Format.chunk_keys`."""
        if wanted is None:
            return ChunkKeys("default", "/")
        if isinstance(wanted, Mapping) and "separator" in wanted:  # as zarr-python spells it
            name = wanted.get("name", "default")
            wanted = {"name": name, "configuration": {"separator": wanted["separator"]}}
        keys = chunk_keys_from_v3(wanted)
        if keys is None:
            expected = "'default' or 'v2', with a separator of '/' or '.'"
            return Problem("chunk_key_encoding", wanted, expected, "grid")
        return keys

    def attributes(
        self,
        attributes: Mapping[str, Any],
        names: Sequence[str | None] | None,  # noqa: ARG002  (they have a member of their own)
    ) -> dict[str, Any]:
        """See `Format.attributes`."""
        return dict(attributes)


V3 = FormatV3()


# --- reading --------------------------------------------------------------------------------------


def parse(document: Mapping[str, Any], at: str, limits: Limits) -> NodeMeta:
    """What a document says.

    Raises
    ------
    MetadataError
        With every problem of the document.
    """
    members = Members(document)
    members.take("zarr_format", lambda value: value == 3 and is_int(value), "the integer 3")
    kind = members.take(
        "node_type", lambda value: value in ("array", "group"), "'array' or 'group'"
    )
    attributes = members.take("attributes", is_object, "an object", {})
    if kind is None:
        raise MetadataError.of(at, members.problems)
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
    meta = _array(members, attributes, limits)
    problems = members.problems or (list(meta.problems()) if meta else [])
    if meta is None or problems:
        raise MetadataError.of(at, problems)
    return meta


def _array(members: Members, attributes: Mapping[str, Any], limits: Limits) -> ArrayMeta | None:
    data_type = _data_type(members)
    grid = _grid(members)
    keys = _chunk_key_encoding(members)
    fill = _fill_value(members, data_type)
    codecs = _codecs(members)
    names = _dimension_names(members, grid)
    _storage_transformers(members)
    extra = _ignorable(members)
    if data_type is None or grid is None or keys is None or fill is None or codecs is None:
        return None
    return ArrayMeta(grid, data_type, fill, codecs, keys, attributes, names, extra, limits)


def _named(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Name and configuration of an extension point, in its short or its long form."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    configuration = value.get("configuration", {})
    return (value["name"], configuration) if isinstance(configuration, Mapping) else None


def _extension(members: Members, name: str, kind: str) -> tuple[str, Mapping[str, Any]] | None:
    value = members.take(name, lambda v: v is not None, "a name, or an object with one")
    if value is None:
        return None
    named = _named(value)
    if named is None:
        members.blame(name, value, "a name, or an object with a 'name'", kind)
    return named


def _data_type(members: Members) -> DataType | None:
    named = _extension(members, "data_type", "data_type")
    if named is None:
        return None
    if named[0] not in CORE_NAMES or named[1]:
        members.blame(
            "data_type", named[0], f"a known data type ({', '.join(CORE_NAMES)})", "data_type"
        )
        return None
    return data_type_of(CORE_NAMES[named[0]])


def _grid(members: Members) -> Grid | None:
    shape = members.take("shape", is_lengths, "a list of integers of at least 0")
    named = _extension(members, "chunk_grid", "grid")
    if named is None:
        return None
    if named[0] != "regular":
        members.blame("chunk_grid", named[0], "a known chunk grid (regular)", "grid")
        return None
    configuration = Members(named[1], "chunk_grid.configuration")
    cell = configuration.take("chunk_shape", is_ints, "a list of integers, one per dimension")
    configuration.refuse_rest()
    members.problems.extend(configuration.problems)
    if shape is None or cell is None:
        return None
    try:
        return stored_grid(shape, cell)
    except GridError as error:
        members.blame("chunk_grid.configuration.chunk_shape", cell, str(error), "grid")
        return None


def chunk_keys_from_v3(value: Any) -> ChunkKeys | None:
    """A chunk key encoding in v3 form; None if it is not one."""
    named = _named(value)
    if named is None or named[0] not in {"default", "v2"}:
        return None
    name = cast('Literal["default", "v2"]', named[0])
    configuration = dict(named[1])
    separator = configuration.pop("separator", "/" if name == "default" else ".")
    if configuration or separator not in ("/", "."):
        return None
    return ChunkKeys(name, separator)


def _chunk_key_encoding(members: Members) -> ChunkKeys | None:
    value = members.take("chunk_key_encoding", lambda v: v is not None, "'default' or 'v2'")
    if value is None:
        return None
    keys = chunk_keys_from_v3(value)
    if keys is None:
        expected = "'default' or 'v2', with a 'separator' of '/' or '.' at most"
        members.blame("chunk_key_encoding", value, expected, "grid")
    return keys


def _fill_value(members: Members, data_type: DataType | None) -> np.ndarray | None:
    value = members.take("fill_value", anything, "a value of the data type")
    if data_type is None or (value is None and members.problems):
        return None
    try:
        return fill_from_json(value, data_type.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        members.blame("fill_value", value, f"a {data_type.name} ({error})")
        return None


def _codecs(members: Members) -> Chain | None:
    documents = members.take("codecs", lambda v: is_list(v) and v, "a list of at least one codec")
    if documents is None:
        return None
    chain = chain_from_v3(documents)
    if isinstance(chain, list):
        members.problems.extend(chain)
        return None
    return chain


def _dimension_names(members: Members, grid: Grid | None) -> tuple[str | None, ...] | None:
    names = members.take(
        "dimension_names",
        lambda v: is_list(v) and all(n is None or isinstance(n, str) for n in v),
        "a list of strings and nulls",
        None,
    )
    if names is None:
        return None
    if grid is not None and len(names) != grid.ndim:
        members.blame("dimension_names", names, f"{grid.ndim} names, one per dimension")
    return tuple(names)


def _storage_transformers(members: Members) -> None:
    transformers = members.take("storage_transformers", is_list, "a list", [])
    for transformer in transformers or []:
        if not _may_be_ignored(transformer):
            members.blame("storage_transformers", transformer, "a known storage transformer (none)")


def _ignorable(members: Members) -> dict[str, Any]:
    """Members that are not known; all of them must say that they may be ignored."""
    extra = dict(members.rest())
    for name, value in extra.items():
        if not _may_be_ignored(value):
            members.blame(name, value, 'no such member, or an object with "must_understand": false')
    return extra


def _may_be_ignored(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("must_understand") is False


# --- writing --------------------------------------------------------------------------------------


def _group_document(meta: GroupMeta) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": dict(meta.attributes),
        **meta.extra,
    }


def _array_document(meta: ArrayMeta) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(meta.shape),
        "data_type": meta.data_type.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(meta.grid.largest_cell)},
        },
        "chunk_key_encoding": {
            "name": meta.keys.name,
            "configuration": {"separator": meta.keys.separator},
        },
        "fill_value": fill_to_json(meta.fill),
        "codecs": [_codec_document(codec) for codec in meta.codecs.codecs],
        "attributes": dict(meta.attributes),
        **({"dimension_names": list(meta.dimension_names)} if meta.dimension_names else {}),
        **meta.extra,
    }


def _codec_document(codec: Codec) -> dict[str, Any]:
    configuration = codec.configuration()
    if isinstance(codec, Zstd) and not codec.checksum:
        configuration["checksum"] = False
    return {"name": codec.name, **({"configuration": configuration} if configuration else {})}


# --- fill values ----------------------------------------------------------------------------------


def fill_from_json(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """A fill value from its JSON form (core specification, "Data types").

    Raises
    ------
    ValueError, TypeError, OverflowError
        If it is none of the data type.

    Examples
    --------
    >>> fill_from_json([1, "-Infinity"], np.dtype("complex64")).item()
    (1-infj)
    """
    if dtype.kind == "b":
        if not isinstance(value, bool):
            raise TypeError(f"{value!r} is neither true nor false")
        return scalar(value, dtype)
    if dtype.kind in "iu":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{value!r} is not an integer")
        return scalar(value, dtype)
    if dtype.kind == "f":
        return float_from_json(value, dtype)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{value!r} is not a pair of a real and an imaginary part")
    part = parts_of_complex(dtype)
    return np.array([float_from_json(item, part) for item in value], part).view(dtype).reshape(())


def fill_to_json(fill: np.ndarray | None) -> Any:
    """The JSON form of a fill value.

    Raises
    ------
    ValueError
        If there is none: v3 has no arrays without a fill value.
    """
    if fill is None:
        raise ValueError("v3 needs a fill value")
    if fill.dtype.kind in "biu":
        return fill.item()
    if fill.dtype.kind == "f":
        return float_to_json(fill)
    pair = fill.reshape(1).view(parts_of_complex(fill.dtype))
    return [float_to_json(pair[0:1].reshape(())), float_to_json(pair[1:2].reshape(()))]
