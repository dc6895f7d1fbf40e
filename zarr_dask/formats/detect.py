"""Which format a node has, found out with one batch of requests, or two.

Where requests cost nothing, the documents of v3 and v2 are asked for together, and a second batch
is made where these are not there, for formats that hardly anyone has: v1, and the v3 draft, of
which the root of a store tells. Where every request takes its time and its price, ``zarr.json`` is
asked for alone, and is all that is needed of most nodes; the second batch has all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from zarr_dask.errors import MetadataError, NodeNotFoundError
from zarr_dask.formats.base import Format, Found, NodeMeta, ReadOptions, read_documents, where
from zarr_dask.formats.consolidated import consolidated_key
from zarr_dask.formats.draft import (
    DRAFTS,
    ENTRY,
    FormatDraft,
    draft_at,
    draft_for_new,
    existing_draft,
)
from zarr_dask.formats.v1 import V1
from zarr_dask.formats.v2 import V2
from zarr_dask.formats.v3 import V3
from zarr_dask.notices import warn
from zarr_dask.stores.base import Store, is_far

__all__ = [
    "FORMATS",
    "FoundNode",
    "find_node",
    "format_at",
    "format_for_new",
    "format_named",
    "formats_at",
    "read_node",
]

_Batch = tuple[tuple[Format, ...], ...]
"""Formats whose documents are asked for together; of those in one tuple it is looked whether
several lie side by side, those in the next one matter only where they are not there."""

_BATCHES: tuple[_Batch, ...] = (((V3, V2),), ((V1,),))
"""Each batch is asked for if those before have found nothing."""
_FAR_BATCHES: tuple[_Batch, ...] = (((V3,),), ((V2,), (V1,)))
"""The same of stores that are far away."""

FORMATS: tuple[Format, ...] = (V3, V2, V1)
"""Formats that the documents of a node tell; where those of several lie at one path, the first
wins. The v3 draft is not among them: its entry point at the root of a store tells."""


def format_named(name: str) -> Format:
    """A format by its name.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    known_formats = (*FORMATS, *DRAFTS)
    for candidate in known_formats:
        if candidate.name == name:
            return candidate
    known = ", ".join(repr(candidate.name) for candidate in known_formats)
    raise ValueError(f"format={name!r}: expected one of {known}, or None to find it out.")


def format_at(store: Store, name: str, options: ReadOptions) -> Format:
    """A format by its name, as the root of a hierarchy says it.

    Raises
    ------
    ValueError
        If there is none of that name.
    NodeNotFoundError
        If the format needs an entry point at the root of the store, and there is none.
    """
    chosen = format_named(name)
    return existing_draft(store, options) if isinstance(chosen, FormatDraft) else chosen


def format_for_new(store: Store, name: str, path: str) -> Format:
    """A format by its name, for a new node of a hierarchy that may exist already.

    Raises
    ------
    ValueError
        If there is none of that name.
    NodeExistsError
        If the root of the store is that of a hierarchy of another format, which rules this out.
    """
    chosen = format_named(name)
    return draft_for_new(store, chosen, path) if isinstance(chosen, FormatDraft) else chosen


class FoundNode(NamedTuple):
    """What is at a path."""

    format: Format
    meta: NodeMeta
    documents: Found
    """What was fetched to know it, by key."""


def read_node(
    store: Store, path: str, format: str | None, options: ReadOptions
) -> tuple[Format, NodeMeta]:
    """The node at a path and its format.

    Parameters
    ----------
    store, path
        Where it is.
    format
        Name of the format; None to ask for the documents of all formats.
    options
        How to read.

    Raises
    ------
    NodeNotFoundError
        If there is no node.
    MetadataError
        If its documents are wrong.
    """
    return find_node(store, path, format, options)[:2]


def find_node(
    store: Store, path: str, format: str | None, options: ReadOptions, *, consolidated: bool = False
) -> FoundNode:
    """As `read_node`, with the documents that were fetched.

    Parameters
    ----------
    store, path, format, options
        As for `read_node`.
    consolidated
        Whether the document that holds nothing but consolidated metadata is wanted besides, where
        the node would be one of a format that has it; only of stores that are far away, because a
        request for itself costs nothing elsewhere.
    """
    far = is_far(store)
    if format is not None:
        chosen = format_at(store, format, options)
        found: Found = {}
        if far and consolidated and (besides := consolidated_key(path, chosen)) is not None:
            found = read_documents(store, [*chosen.node_keys(path), besides], options.limits)
        meta = chosen.read(store, path, options, found=found)
        if meta is None:
            raise NodeNotFoundError(
                where(store, path),
                chosen.node_keys(path),
                f"Only format {format!r} was asked for; leave format out to try all of them.",
            )
        return FoundNode(chosen, meta, found)
    for batch in _FAR_BATCHES if far else _BATCHES:
        node = _node_of(batch, store, path, options, consolidated=far and consolidated)
        if node is not None:
            return node
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Check the path, and the mode of opening.")


def _node_of(
    batch: _Batch, store: Store, path: str, options: ReadOptions, *, consolidated: bool
) -> FoundNode | None:
    """The node of one of some formats, whose documents are asked for in one batch."""
    formats = [candidate for together in batch for candidate in together]
    keys = [key for candidate in formats for key in candidate.node_keys(path)]
    if path and V1 in formats:
        keys.append(ENTRY)
    if consolidated:
        keys += [key for one in formats if (key := consolidated_key(path, one)) is not None]
    found = read_documents(store, keys, options.limits)
    for together in batch:
        node = _first_of(together, store, path, options, found)
        if node is not None:
            return node
    return None


def _first_of(
    formats: Sequence[Format],
    store: Store,
    path: str,
    options: ReadOptions,
    found: dict[str, bytes | None],
) -> FoundNode | None:
    """The node of the first of some formats that has one among documents."""
    own = {key: found[key] for candidate in formats for key in candidate.node_keys(path)}
    entry = {ENTRY: found[ENTRY]} if ENTRY in own or (V1 in formats and ENTRY in found) else {}
    draft = draft_at(store, options, entry) if entry else None
    if draft is not None:
        meta = draft.read(store, path, options, found={})
        if any(own[key] is not None for key in own.keys() - {ENTRY}):
            warn(
                f"{where(store, path)} has documents of another format beside those of "
                f"{draft.name}, which is used. Pass format= to choose."
            )
        return None if meta is None else FoundNode(draft, meta, found)
    present = [c for c in formats if any(own[key] is not None for key in c.node_keys(path))]
    for chosen in present:
        meta = chosen.read(store, path, options, found=own)
        if meta is None:
            continue
        if len(present) > 1:
            warn(
                f"{where(store, path)} has documents of the formats "
                f"{', '.join(c.name for c in present)}; {chosen.name} is used. "
                f"Pass format= to choose."
            )
        return FoundNode(chosen, meta, found)
    return None


def formats_at(store: Store, path: str) -> list[tuple[Format, NodeMeta | None]]:
    """Formats that have a node at a path, with what it is; None where it cannot be read."""
    options = ReadOptions()
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    found = read_documents(store, list(dict.fromkeys([*keys, ENTRY])), options.limits)
    draft = None
    with suppress(MetadataError):  # then it is the document of a node that cannot be read
        draft = draft_at(store, options, found)
    candidates: list[Format] = [*FORMATS]
    if draft is not None:
        found = {key: text for key, text in found.items() if key != ENTRY} | {ENTRY: None}
        candidates.insert(0, draft)
    present: list[tuple[Format, NodeMeta | None]] = []
    for candidate in candidates:
        try:
            meta = candidate.read(store, path, options, found=found)
        except MetadataError:
            present.append((candidate, None))
            continue
        if meta is not None:
            present.append((candidate, meta))
    return present
