"""Which format a node has, found out with one batch of requests.

A second one is made where the first finds nothing, for the documents of formats that hardly anyone
has: v1, and the v3 draft, of which the root of a store tells.
"""

from __future__ import annotations

from contextlib import suppress

from zarr_dask.errors import MetadataError, NodeNotFoundError
from zarr_dask.formats.base import Format, NodeMeta, ReadOptions, read_documents, where
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
from zarr_dask.stores.base import Store

__all__ = ["FORMATS", "format_at", "format_for_new", "format_named", "formats_at", "read_node"]

_BATCHES: tuple[tuple[Format, ...], ...] = ((V3, V2), (V1,))
"""Formats whose documents are asked for together; each batch if those before have found nothing."""

FORMATS: tuple[Format, ...] = tuple(known for batch in _BATCHES for known in batch)
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
    if format is not None:
        chosen = format_at(store, format, options)
        meta = chosen.read(store, path, options, found={})
        if meta is None:
            raise NodeNotFoundError(
                where(store, path),
                chosen.node_keys(path),
                f"Only format {format!r} was asked for; leave format out to try all of them.",
            )
        return chosen, meta
    for batch in _BATCHES:
        node = _node_of(batch, store, path, options)
        if node is not None:
            return node
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Check the path, and the mode of opening.")


def _node_of(
    batch: tuple[Format, ...], store: Store, path: str, options: ReadOptions
) -> tuple[Format, NodeMeta] | None:
    """The node of one of some formats, whose documents are asked for in one batch."""
    keys = [key for candidate in batch for key in candidate.node_keys(path)]
    if path and V1 in batch:
        keys.append(ENTRY)
    found = read_documents(store, keys, options.limits)
    draft = draft_at(store, options, found) if ENTRY in found else None
    if draft is not None:
        meta = draft.read(store, path, options, found={})
        if any(found[key] is not None for key in found.keys() - {ENTRY}):
            warn(
                f"{where(store, path)} has documents of another format beside those of "
                f"{draft.name}, which is used. Pass format= to choose."
            )
        return None if meta is None else (draft, meta)
    present = [c for c in batch if any(found[key] is not None for key in c.node_keys(path))]
    for chosen in present:
        meta = chosen.read(store, path, options, found=found)
        if meta is None:
            continue
        if len(present) > 1:
            warn(
                f"{where(store, path)} has documents of the formats "
                f"{', '.join(c.name for c in present)}; {chosen.name} is used. "
                f"Pass format= to choose."
            )
        return chosen, meta
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
