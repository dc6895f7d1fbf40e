"""The v3 draft of 2022: documents under ``meta/``, data under ``data/``, one entry point for both.

The final v3 has one ``zarr.json`` beside the data of every node. The draft has one at the root of a
hierarchy only, which determines the location and the endings of document keys, so that a hierarchy
can only be opened at its root. Groups need no documents: every path with something below it is a
group.

=================  ====================================================  ======================
name               keys of the array ``/foo``                            written by
=================  ====================================================  ======================
v3draft            ``meta/foo.array.json``, ``data/foo/c0/0``            the last draft
v3draft-2022-05    ``meta/root/foo.array.json``, ``data/root/foo/c0/0``  zarr-python 2, GDAL 3.4
=================  ====================================================  ======================

Source: v3 draft, "Storage", "Operations"; `v3draft_document` reads the documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarr_dask._util.warnings import warn
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.dtypes import DataType
from zarr_dask.errors import (
    ListingError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    ValidationProblem,
)
from zarr_dask.formats.base import (
    DIMENSIONS,
    ArrayMeta,
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
from zarr_dask.formats.v2 import V2
from zarr_dask.formats.v3draft_codecs import SHARD_INDEX_CODECS, chain_from_names
from zarr_dask.formats.v3draft_document import (
    KEYS_NAMES,
    EntryPoint,
    array_from_json,
    array_to_json,
    entry_from_json,
    entry_to_json,
    group_from_json,
    group_to_json,
)
from zarr_dask.formats.v3draft_entry import ENTRY, may_be_entry
from zarr_dask.stores.base import Store

__all__ = [
    "DRAFT",
    "DRAFTS",
    "DRAFT_OF_MAY",
    "FormatDraft",
    "draft_at",
    "draft_for_new",
    "existing_draft",
]

_NODE_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LONGEST_NAME = 255  # of May 2022


@dataclass(frozen=True)
class FormatDraft:
    """See `zarr_dask.formats.base.Format`."""

    name: str
    entry: EntryPoint
    """The entry point of the hierarchy."""
    has_shards: bool = True
    has_undefined_fill: bool = False
    key_layouts: tuple[ChunkKeyEncoding, ...] = ()
    has_implicit_groups: bool = True
    names_attribute: str | None = DIMENSIONS
    shard_index_codecs: CodecChain = SHARD_INDEX_CODECS

    # --- keys -------------------------------------------------------------------------------------

    @property
    def _root(self) -> str:
        return "root" if self.entry.generation == "2022-05" else ""

    def _document_key(self, path: str, kind: str) -> str:
        above = "/".join(part for part in ("meta", self._root) if part)
        if path:
            return f"{above}/{path}.{kind}{self.entry.suffix}"
        dot = "." if self._root else "/"  # meta/root.array.json, but meta/array.json
        return f"{above}{dot}{kind}{self.entry.suffix}"

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        return (self._document_key(path, "array"), self._document_key(path, "group"))

    def _below(self, top: str, path: str) -> str:
        return "".join(f"{part}/" for part in (top, self._root, path) if part)

    def data_prefix(self, path: str) -> str:
        """See `Format.data_prefix`."""
        return self._below("data", path)

    def prefixes(self, path: str) -> tuple[str, ...]:
        """See `Format.prefixes`."""
        return (self._below("meta", path), self._below("data", path))

    def is_node_name(self, name: str) -> bool:
        """True for letters, digits, "-", "_" and ".", but not periods alone."""
        too_long = self.entry.generation == "2022-05" and len(name) > _LONGEST_NAME
        return _NODE_NAME.fullmatch(name) is not None and name.strip(".") != "" and not too_long

    def child_names(self, store: Store, path: str) -> list[str]:
        """See `Format.child_names`: keys of documents, and prefixes with something below them."""
        prefix = self._below("meta", path)
        listing = store.list_dir(prefix)
        names = {below[len(prefix) :].rstrip("/") for below in listing.prefixes}
        for key in listing.keys:
            for ending in (f".array{self.entry.suffix}", f".group{self.entry.suffix}"):
                if key.endswith(ending):
                    names.add(key[len(prefix) : -len(ending)])
        return sorted(name for name in names if self.is_node_name(name))

    # --- documents --------------------------------------------------------------------------------

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """See `Format.read`: an array, or else a group, or else a group implied by nodes below."""
        keys = self.node_keys(path)
        documents = dict(found)
        missing = [key for key in keys if key not in documents]
        if missing:
            documents |= read_documents(store, missing, options.limits)
        array_text, group_text = (documents[key] for key in keys)
        generation = self.entry.generation
        if array_text is not None:
            if group_text is not None:
                warn(
                    f"{where(store, path)} is both an array and a group; the array is used. Nodes "
                    "below the group open by their paths."
                )
            document = load_json(store, keys[0], array_text, options.limits)
            meta = array_from_json(document, generation, where(store, keys[0]), options)
            return self._with_key_of_0d(store, path, meta)
        if group_text is not None:
            document = load_json(store, keys[1], group_text, options.limits)
            return group_from_json(document, generation, where(store, keys[1]))
        if not path or self._has_below(store, path):
            return GroupMeta(implicit=True)
        return None

    def _with_key_of_0d(self, store: Store, path: str, meta: ArrayMeta) -> ArrayMeta:
        """Return the array with the actual key of its one stored object.

        The specification has "c" for arrays without dimensions. zarr-python 2, which wrote nearly
        all hierarchies of May 2022, has "c0" and looks for that.
        """
        by_text = ChunkKeyEncoding("draft", meta.chunk_key_encoding.separator)
        if meta.shape or meta.chunk_key_encoding == by_text:
            return meta
        is_there = store.size(self.data_prefix(path) + by_text.key(())) is not None
        return replace(meta, chunk_key_encoding=by_text) if is_there else meta

    def _has_below(self, store: Store, path: str) -> bool:
        with suppress(ListingError):  # the nodes below cannot be known
            listing = store.list_dir(self._below("meta", path))
            return bool(listing.keys or listing.prefixes)
        return False

    def documents(self, meta: NodeMeta, path: str) -> dict[str, bytes]:
        """See `Format.documents`."""
        array_key, group_key = self.node_keys(path)
        if isinstance(meta, ArrayMeta):
            document = array_to_json(meta, self.entry.generation, array_key)
            return {array_key: dump_json(document)}
        return {group_key: dump_json(group_to_json(meta))}

    def root_documents(self) -> dict[str, bytes]:
        """See `Format.root_documents`."""
        return {ENTRY: dump_json(entry_to_json(self.entry))}

    # --- new arrays -------------------------------------------------------------------------------

    def chain(
        self, wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
    ) -> CodecChain | list[ValidationProblem]:
        """See `Format.chain`."""
        return chain_from_names(wanted, data_type, stored, order, ndim)

    def chunk_keys(self, wanted: Any) -> ChunkKeyEncoding | ValidationProblem:
        """See `Format.chunk_keys`."""
        form = wanted if isinstance(wanted, Mapping) else {"name": wanted}
        name = form.get("name") or "draft"
        separator = form.get("configuration", form).get("separator", "/")
        if name == "draft" and separator in ("/", "."):
            return ChunkKeyEncoding(KEYS_NAMES[self.entry.generation], separator)
        expected = "'draft' in this format, with a separator of '/' or '.'"
        return ValidationProblem("chunk_key_encoding", wanted, expected, "grid")

    def attributes(
        self, attributes: Mapping[str, Any], names: Sequence[str | None] | None
    ) -> dict[str, Any]:
        """See `Format.attributes`: xarray's convention, as the draft has no field for names."""
        return V2.attributes(attributes, names)


DRAFT = FormatDraft("v3draft", EntryPoint("2022-12", ".json"))
DRAFT_OF_MAY = FormatDraft("v3draft-2022-05", EntryPoint("2022-05", ".json"))
DRAFTS = (DRAFT, DRAFT_OF_MAY)
"""The draft as it is written to new locations; existing hierarchies state their own variant."""


# --- detection ------------------------------------------------------------------------------------


def draft_at(
    store: Store, options: ReadOptions, found: Mapping[str, bytes | None] | None = None
) -> FormatDraft | None:
    """Return the draft stated by the entry point of a hierarchy; None if there is none.

    Parameters
    ----------
    store
        Store whose root may have an entry point.
    options
        Options for reading.
    found
        Documents that were fetched already.

    Raises
    ------
    MetadataError
        If the entry point is wrong, or requires an unknown extension.
    """
    documents = found or {}
    if ENTRY not in documents:
        documents = read_documents(store, [ENTRY], options.limits)
    text = documents[ENTRY]
    if text is None or not may_be_entry(text, options.limits):
        return None
    entry = entry_from_json(load_json(store, ENTRY, text, options.limits), where(store, ENTRY))
    written = DRAFT if entry.generation == "2022-12" else DRAFT_OF_MAY
    return replace(written, entry=entry)


def draft_for_new(store: Store, wanted: FormatDraft, path: str) -> FormatDraft:
    """Return the draft for a new node: that of the hierarchy if it exists.

    Raises
    ------
    NodeExistsError
        If the store holds a hierarchy of another format.
    """
    options = ReadOptions()
    found = read_documents(store, [ENTRY], options.limits)
    try:
        present = draft_at(store, options, found)
    except MetadataError:
        if path:
            raise
        return wanted  # at the root the hierarchy may be replaced
    if present is not None and present.name == wanted.name:
        return present
    if path and found[ENTRY] is not None:
        kind = "v3" if present is None else present.name
        raise NodeExistsError(
            f"{where(store, path)} cannot be of format {wanted.name!r}: {where(store, ENTRY)} "
            f"makes the store a hierarchy of format {kind!r}. Pass format={kind!r}, or choose "
            "another store."
        )
    return wanted


def existing_draft(store: Store, options: ReadOptions) -> FormatDraft:
    """Return the draft stated by the entry point of a hierarchy.

    Raises
    ------
    NodeNotFoundError
        If there is no entry point.
    """
    present = draft_at(store, options)
    if present is None:
        raise NodeNotFoundError(
            where(store, ""),
            [ENTRY],
            "A hierarchy of the v3 draft has an entry point document at its root, and is opened "
            "there: path= names the node in it.",
        )
    return present
