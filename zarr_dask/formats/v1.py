"""Zarr v1: one array per store, ``meta`` and ``attrs`` beside the chunks.

The specification has neither groups nor filters. A path below a store is treated as a store of its
own. Options of compressors have other names than in v2, but the codecs are the same.

Chunks of order "F" are ambiguous: in the specification the first dimension varies fastest, but the
only writer (zarr-python 1) did so for blosc alone, and wrote rows first for every other compressor.
Both layouts look alike. The specification is followed unless ``ReadOptions(v1_f_order="legacy")``
requests the layout of that writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.dtypes import DataType
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import (
    DIMENSIONS,
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
from zarr_dask.formats.documents import Document, Limits, parse_json
from zarr_dask.formats.v2 import chunk_keys_with_separator, numcodecs_form
from zarr_dask.stores.base import Store

__all__ = ["V1", "FormatV1"]

_MEMBERS = {"zarr_format", "shape", "chunks", "dtype", "compression"}


@dataclass(frozen=True, slots=True)
class FormatV1(BesideData):
    """See `zarr_dask.formats.base.Format`."""

    name: str = "v1"
    document_names: tuple[str, ...] = ("meta", "attrs")
    has_implicit_groups: bool = True
    names_attribute: str | None = DIMENSIONS

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """See `Format.read`."""
        from zarr_dask.formats.v1_document import parse

        array_key, attributes_key = self.node_keys(path)
        documents = dict(found) or read_documents(
            store, [array_key, attributes_key], options.limits
        )
        text = documents[array_key]
        if text is None or (found and not _claims_to_be_an_array(text, options.limits)):
            return None
        document = load_json(store, array_key, text, options.limits)
        attributes_text = documents[attributes_key]
        attributes: dict[str, Any] = {}
        if attributes_text is not None:
            attributes = load_json(store, attributes_key, attributes_text, options.limits)
        return parse(document, attributes, where(store, array_key), options)

    def child_names(self, store: Store, path: str) -> list[str]:  # noqa: ARG002
        """See `Format.child_names`; there are no groups."""
        return []

    def documents(self, meta: NodeMeta, path: str) -> dict[str, bytes]:
        """See `Format.documents`."""
        from zarr_dask.formats.v1_document import array_document

        array_key, attributes_key = self.node_keys(path)
        if isinstance(meta, GroupMeta):
            expected = "an array: v1 has no groups. Use v2 or v3"
            raise MetadataError(path or "/", [ValidationProblem("node", "group", expected)])
        return {
            attributes_key: dump_json(meta.attributes),
            array_key: dump_json(array_document(meta, array_key)),
        }

    def chain(
        self,
        wanted: Any,
        data_type: DataType,  # noqa: ARG002  (that it is stored at all is checked by its documents)
        stored: np.dtype[Any],
        order: str,
        ndim: int,
    ) -> CodecChain | list[ValidationProblem]:
        """See `Format.chain`."""
        from zarr_dask.formats.v2_document import chain_from_v2

        if wanted is None:
            wanted = [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}]
        elif isinstance(wanted, Mapping | str | Codec):
            wanted = [wanted]
        if stored.hasobject:
            return [
                ValidationProblem(
                    "dtype", str(stored), "elements of a fixed size in v1", "data_type"
                )
            ]
        documents = [
            (f"codecs[{i}]", numcodecs_form(item, stored.itemsize)) for i, item in enumerate(wanted)
        ]
        return chain_from_v2(documents, stored, order, ndim)

    def chunk_keys(self, wanted: Any) -> ChunkKeyEncoding | ValidationProblem:
        """See `Format.chunk_keys`."""
        keys = chunk_keys_with_separator(wanted)
        if isinstance(keys, ValidationProblem) or keys.separator != ".":
            return ValidationProblem(
                "chunk_key_encoding", wanted, "a separator of '.' in v1", "grid"
            )
        return keys

    def attributes(
        self, attributes: Mapping[str, Any], names: Sequence[str | None] | None
    ) -> dict[str, Any]:
        """See `Format.attributes`."""
        return dict(attributes) if names is None else {**attributes, DIMENSIONS: list(names)}


V1 = FormatV1()


def _claims_to_be_an_array(text: Document, limits: Limits) -> bool:
    """True if a file named ``meta`` is a metadata document."""
    try:
        document = text if isinstance(text, Mapping) else parse_json(text, limits, strictly=False)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, Mapping) and len(_MEMBERS & document.keys()) > 1
