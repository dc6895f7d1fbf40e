"""Detection of a node's format with one batch of requests, or two.

If requests cost nothing, the documents of v3 and v2 are requested together. If they are absent, a
second batch is for rare formats: v1, and the v3 draft, which the root of a store identifies. On
remote stores ``zarr.json`` is requested alone, which is enough for most nodes; the second batch has
all the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from zarr_dask._util.warnings import warn
from zarr_dask.errors import MetadataError, NodeNotFoundError
from zarr_dask.formats.base import (
    DEFAULT_OPTIONS,
    FetchedDocuments,
    Format,
    NodeMeta,
    ReadOptions,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import consolidated_key
from zarr_dask.formats.documents import looked_up_once, nodes_at_root
from zarr_dask.formats.v1 import V1
from zarr_dask.formats.v2 import V2
from zarr_dask.formats.v3 import V3
from zarr_dask.formats.v3draft_entry import ENTRY, may_be_entry
from zarr_dask.stores.base import Store, is_remote

__all__ = [
    "DEFAULT_FORMAT",
    "FORMATS",
    "OME_ZARR",
    "FoundNode",
    "find_node",
    "format_at",
    "format_for_new",
    "format_named",
    "formats_at",
    "is_early",
    "nodes_around",
    "read_node",
]


_Batch = tuple[tuple[Format, ...], ...]
"""Formats whose documents are requested together. If documents of several formats in one tuple
exist, this is noticed; those of the next tuple matter only if there are none."""

_RARE: tuple[Format, ...] = (V1,)
"""Formats that are looked for where there are no documents of others."""
_RARE_BATCH: _Batch = tuple((one,) for one in _RARE)
_BATCHES: tuple[_Batch, ...] = (((V3, V2),), _RARE_BATCH)
"""Each batch is requested if those before have found nothing."""
_FAR_BATCHES: tuple[_Batch, ...] = (((V3,),), ((V2,), *_RARE_BATCH))
"""Batches for remote stores."""

FORMATS: tuple[Format, ...] = (V3, V2, *_RARE)
"""Formats that are identified by the documents of a node; if a path has several, the first wins.
The v3 draft is not included: its entry point at the root of a store identifies it."""
DEFAULT_FORMAT: Format = V3
"""The format of a new node without a group around it."""


def format_named(name: str) -> Format:
    """Return a format by its name.

    Raises
    ------
    ValueError
        If there is no format of that name.
    """
    wanted = spelled_format(name)
    for candidate in FORMATS:
        if candidate.name == wanted:
            return candidate
    from zarr_dask.formats.v3draft import DRAFTS

    for candidate in DRAFTS:
        if candidate.name == wanted:
            return candidate
    known_formats = (*FORMATS, *DRAFTS)
    known = ", ".join(repr(candidate.name) for candidate in known_formats)
    raise ValueError(f"format={name!r}: expected one of {known}, or None to find it out.")


def spelled_format(name: object) -> object:
    """Return the name of a format that is given as a number or a text: 3 is ``"v3"``.

    Examples
    --------
    >>> spelled_format(3), spelled_format("2"), spelled_format("v3draft")
    ('v3', 'v2', 'v3draft')
    """
    is_number = isinstance(name, int) and not isinstance(name, bool)
    return f"v{name}" if is_number or (isinstance(name, str) and name.isdecimal()) else name


def is_early(node_format: Format) -> bool:
    """True for formats before v2 and drafts of v3, which few other libraries read."""
    return node_format in _RARE or node_format not in FORMATS


def format_at(store: Store, name: str, options: ReadOptions) -> Format:
    """Return a format by its name, with the details in the root of a hierarchy.

    Raises
    ------
    ValueError
        If there is no format of that name.
    NodeNotFoundError
        If the format needs an entry point at the root of the store, and there is none.
    """
    chosen = format_named(name)
    if chosen in FORMATS:
        return chosen
    from zarr_dask.formats.v3draft import existing_draft

    return existing_draft(store, options)


def format_for_new(store: Store, name: str, path: str) -> Format:
    """Return a format by its name, for a new node of a hierarchy that may already exist.

    Raises
    ------
    ValueError
        If there is no format of that name.
    NodeExistsError
        If the store holds a hierarchy of another format, which rules this one out.
    """
    chosen = format_named(name)
    if chosen in FORMATS:
        return chosen
    from zarr_dask.formats.v3draft import FormatDraft, draft_for_new

    return draft_for_new(store, chosen, path) if isinstance(chosen, FormatDraft) else chosen


class FoundNode(NamedTuple):
    """A node that was found at a path."""

    format: Format
    meta: NodeMeta
    documents: FetchedDocuments
    """Documents that were fetched to read it, by key."""


def read_node(
    store: Store, path: str, format: str | None, options: ReadOptions
) -> tuple[Format, NodeMeta]:
    """Return the node at a path and its format.

    Parameters
    ----------
    store, path
        Location of the node.
    format
        Name of the format; None to detect it from the documents of all formats.
    options
        Options for reading.

    Raises
    ------
    NodeNotFoundError
        If there is no node.
    MetadataError
        If the metadata are wrong.
    """
    return find_node(store, path, format, options)[:2]


def find_node(
    store: Store, path: str, format: str | None, options: ReadOptions, *, consolidated: bool = False
) -> FoundNode:
    """Find a node as `read_node`, and return the fetched documents as well.

    Parameters
    ----------
    store, path, format, options
        As for `read_node`.
    consolidated
        True to request the document with nothing but consolidated metadata as well, if the format
        may have one. This affects remote stores only, because requests cost nothing elsewhere.
    """
    far = is_remote(store)
    if format is not None:
        chosen = format_at(store, format, options)
        found: FetchedDocuments = {}
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
    raise NodeNotFoundError(where(store, path), keys, "Check the path.")


def _node_of(
    batch: _Batch, store: Store, path: str, options: ReadOptions, *, consolidated: bool
) -> FoundNode | None:
    """Find the node in one of several formats, whose documents are requested in one batch."""
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
    """Return the node in the first format that has one among the fetched documents."""
    own = {key: found[key] for candidate in formats for key in candidate.node_keys(path)}
    text = found.get(ENTRY) if ENTRY in own or V1 in formats else None
    draft = None if text is None else _draft_at(store, options, text)
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


def _draft_at(store: Store, options: ReadOptions, text: bytes) -> Format | None:
    """Return the draft that an entry point states; None if the document is that of a node."""
    if not may_be_entry(text, options.limits):
        return None
    from zarr_dask.formats.v3draft import draft_at

    return draft_at(store, options, {ENTRY: text})


FormatAndMeta = tuple[Format, NodeMeta | None]
"""A format that has a node at a path, and the node; None if it cannot be read."""


def formats_at(store: Store, path: str) -> list[FormatAndMeta]:
    """Return formats that have a node at a path, with the node; None if it cannot be read."""
    options = DEFAULT_OPTIONS
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    found = read_documents(store, list(dict.fromkeys([*keys, ENTRY])), options.limits)
    if not any(text is not None for text in found.values()):
        return []
    draft = None
    entry = found[ENTRY]
    if entry is not None:
        with suppress(MetadataError):  # then it is the unreadable document of a node
            draft = _draft_at(store, options, entry)
    candidates: list[Format] = [*FORMATS]
    if draft is not None:
        found = {key: text for key, text in found.items() if key != ENTRY} | {ENTRY: None}
        candidates.insert(0, draft)
    present: list[FormatAndMeta] = []
    for candidate in candidates:
        if candidate is not draft and all(found[key] is None for key in candidate.node_keys(path)):
            continue
        try:
            meta = candidate.read(store, path, options, found=found)
        except MetadataError:
            present.append((candidate, None))
            continue
        if meta is not None:
            present.append((candidate, meta))
    return present


def nodes_around(folder: Store) -> list[FormatAndMeta]:
    """Return `formats_at` the root of a folder that a store lies in."""
    return looked_up_once(nodes_at_root(folder.url), lambda: formats_at(folder, ""))


OME_ZARR: Mapping[str, Format] = {"0.4": V2, "0.5": V3}
"""The format of each version of OME-Zarr."""
