"""Documents of February 2023: the layout of the final v3 with the fields of the draft.

Between the draft and the final v3 there was a specification with one ``zarr.json`` per node and
today's chunk keys, but with the fields of the draft: type strings, codecs by URI, the separator of
keys in the chunk grid. Such documents can be read; only the final form is written.

Source: zarr-specs at 4536d19 (2023-02-09) and fca4d7c (2023-02-21), "Array metadata".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarr_dask._util.json_fields import FieldReader, is_list
from zarr_dask.codecs.base import BytesCodec
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.errors import MetadataError
from zarr_dask.formats.base import ArrayMeta, ChunkKeyEncoding, NodeMeta, ReadOptions
from zarr_dask.formats.v3draft_document import array_from_json, group_from_json

__all__ = ["node_of_2023"]

_KINDS = {
    "https://purl.org/zarr/spec/v3#array": "array",
    "https://purl.org/zarr/spec/v3#group": "group",
}


def node_of_2023(document: Mapping[str, Any], at: str, options: ReadOptions) -> NodeMeta | None:
    """Parse a document of February 2023; None for documents of other specifications.

    Raises
    ------
    MetadataError
        With all problems of the document.
    """
    kind = _kind(document)
    if kind is None:
        return None
    members = {k: v for k, v in document.items() if k not in {"zarr_format", "node_type"}}
    if kind == "group":
        return group_from_json(members, "2022-12", at)
    names = members.pop("dimension_names", None)
    members |= {
        "attributes": members.get("attributes", {}),
        "chunk_grid": _grid(members.get("chunk_grid")),
        "codecs": _codecs(members.get("codecs", [])),
    }
    meta = array_from_json(members, "2022-12", at, options)
    steps = tuple(_resolved(codec, meta.data_type.itemsize) for codec in meta.codecs.bytes)
    return replace(
        meta,
        codecs=replace(meta.codecs, bytes=steps),
        chunk_key_encoding=ChunkKeyEncoding("default", meta.chunk_key_encoding.separator),
        dimension_names=_names(names, meta, at),
    )


def _kind(document: Mapping[str, Any]) -> str | None:
    version = document.get("zarr_format")
    if isinstance(version, str):
        return _KINDS.get(version)
    grid = document.get("chunk_grid")
    configuration = grid.get("configuration") if isinstance(grid, Mapping) else None
    separated = isinstance(configuration, Mapping) and "separator" in configuration
    return "array" if separated and "chunk_key_encoding" not in document else None


def _grid(document: Any) -> Any:
    """Return the grid without the nesting that was added two weeks later."""
    if isinstance(document, Mapping) and isinstance(document.get("configuration"), Mapping):
        return {"type": document.get("name", document.get("type")), **document["configuration"]}
    return document


def _codecs(documents: Any) -> Any:
    """Return the codecs with their URIs, which were shortened to names two weeks later."""
    return [_codec(item) for item in documents] if isinstance(documents, list) else documents


def _codec(document: Any) -> Any:
    if not isinstance(document, Mapping):
        return document
    name = document.get("type", document.get("name"))
    if isinstance(name, str) and "/" not in name:
        name = f"https://purl.org/zarr/spec/codecs/{name}/1.0"
    rest = {k: v for k, v in document.items() if k not in {"type", "name"}}
    return {"type": name, **rest}


def _resolved(codec: BytesCodec, itemsize: int) -> BytesCodec:
    """Return the codec as in the final v3, which requires an explicit shuffle for blosc."""
    return codec.resolved(itemsize) if isinstance(codec, Blosc) else codec


def _names(names: Any, meta: ArrayMeta, at: str) -> tuple[str | None, ...] | None:
    members = FieldReader({"dimension_names": names})
    members.take(
        "dimension_names",
        lambda v: is_list(v) and all(n is None or isinstance(n, str) for n in v),
        "a list of strings and nulls",
        None,
    )
    if names is not None and not members.problems and len(names) != len(meta.shape):
        members.blame("dimension_names", names, f"{len(meta.shape)} names, one per dimension")
    if members.problems:
        raise MetadataError.of(at, members.problems)
    return None if names is None else tuple(names)
