"""Consolidated metadata: all documents below a group in one; read by default, written on demand.

v2: ``.zmetadata`` beside the documents of the group, as zarr-python 2 and 3 write it, with the
documents by their keys. v3: ``consolidated_metadata`` in the document of the group (core
specification, "Additional fields"), with the documents by path, as zarr-python writes it; its
older form, with groups nested in each other, is read too. v3 draft of May 2022, read only:
``meta/root/consolidated/.zmetadata``, as zarr-python 2 wrote it for a whole hierarchy.

They are read as a store around a store (`Consolidated`) that serves documents and listings from
memory. They are copies, and the hierarchy may have changed since: only metadata are taken from
them, and only if a hierarchy is open for reading. `Group.stale` compares.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from zarr_dask._util.warnings import warn
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    MetadataError,
    StoreError,
    StoreKeyError,
    ValidationProblem,
)
from zarr_dask.formats.base import (
    FetchedDocuments,
    Format,
    GroupMeta,
    Limits,
    NodeMeta,
    ReadOptions,
    ancestors,
    load_json,
    prefix_of,
    read_documents,
    where,
)
from zarr_dask.formats.documents import DEFAULT_LIMITS, looked_up_before, nodes_at_root
from zarr_dask.stores.base import (
    Buffer,
    Listing,
    Range,
    Store,
    TaggedBytes,
    VersionRequest,
    check_key,
    get_ranges_if_match,
    join,
)
from zarr_dask.stores.listing import build_tree, list_from_tree
from zarr_dask.stores.open import folder_store, local_path
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = [
    "Consolidated",
    "Documents",
    "RecordedNode",
    "consolidated_documents",
    "consolidated_groups",
    "consolidated_holder",
    "consolidated_key",
    "consolidating_path",
    "has_consolidated",
    "is_consolidated",
    "read_consolidated",
    "recorded_documents",
    "warn_stale_consolidated",
    "with_consolidated",
    "without_consolidated",
    "without_recorded",
]

_INLINE = "consolidated_metadata"
_V2_KEY = ".zmetadata"
_DRAFT = "v3draft-2022-05"
_DRAFT_KEY = "meta/root/consolidated/.zmetadata"
_ENDINGS = {
    "v2": ("/.zarray", "/.zgroup", "/.zattrs"),
    "v3": ("/zarr.json",),
    _DRAFT: (".array.json", ".group.json"),
}
"""Endings of document keys, by format; other formats have no consolidated metadata."""
_MOST_BYTES = DEFAULT_LIMITS.metadata_bytes  # users with the default limits could not read more

Documents = Mapping[str, Mapping[str, Any]]
"""Documents as JSON objects, by full key."""


@dataclass(frozen=True)
class Consolidated(StoreWrapper):
    """A store whose documents below a prefix are known; other requests go to the wrapped store."""

    scope: str
    """The prefix."""
    endings: tuple[str, ...]
    """Endings of document keys."""
    documents: Documents
    """All documents below the prefix."""

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self._text(key) if self._knows(key) else self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        others = [request for request in requests if not self._knows(request[0])]
        fetched = iter(self.store.get_ranges(others) if others else [])
        return [self._part(*one) if self._knows(one[0]) else next(fetched) for one in requests]

    def get_versions(self, requests: Sequence[VersionRequest]) -> list[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        others = [request for request in requests if not self._knows(request[0])]
        fetched = iter(get_ranges_if_match(self.store, others) if others else [])
        return [
            self._known_version(key, wanted) if self._knows(key) else next(fetched)
            for key, wanted, _ in requests
        ]

    def _known_version(self, key: str, wanted: Range) -> TaggedBytes | None:
        content = self._part(key, wanted)
        return None if content is None else TaggedBytes(content, None)

    def list_dir(self, prefix: str = "") -> Listing:
        """List known documents directly below a prefix, and prefixes with any below."""
        if not prefix.startswith(self.scope):
            return self.store.list_dir(prefix)
        return list_from_tree(self._below, prefix)

    @property
    def has_cheap_recursive_listing(self) -> bool:
        """False, because every folder is in memory already."""
        return False

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        if not self._knows(key):
            return self.store.size(key)
        text = self._text(key)
        return None if text is None else len(text)

    def parsed(self, keys: Iterable[str]) -> FetchedDocuments | None:
        """Return known documents as JSON objects; None if one of them is not known."""
        found: dict[str, Mapping[str, Any] | None] = {}
        for key in keys:
            document = found[key] = self.documents.get(key)
            if document is None and not self._knows(key):
                return None
        return found

    def _knows(self, key: str) -> bool:
        return key.startswith(self.scope) and _is_document(key, self.endings)

    def _text(self, key: str) -> bytes | None:
        document = self.documents.get(key)
        try:
            return None if document is None else json.dumps(document).encode()
        except RecursionError as error:
            expected = "a document that is not nested so deeply"
            raise MetadataError(
                where(self, key), [ValidationProblem(key, "...", expected)]
            ) from error

    def _part(self, key: str, wanted: Range) -> bytes | None:
        text = self._text(key)
        return None if text is None else text[wanted.start : wanted.stop]

    @cached_property
    def _below(self) -> Mapping[str, set[str]]:
        """Keys and prefixes (with a "/") directly below each prefix."""
        return build_tree(self.documents, self.scope)


def _is_document(key: str, endings: tuple[str, ...]) -> bool:
    return f"/{key}".endswith(endings)


# --- reading --------------------------------------------------------------------------------------


def with_consolidated(
    store: Store,
    path: str,
    node_format: Format,
    meta: NodeMeta,
    options: ReadOptions,
    found: FetchedDocuments | None = None,
) -> Store:
    """Return the store with the consolidated metadata of a group, if they exist and are usable.

    `found` holds documents that were fetched already.
    """
    if isinstance(meta, GroupMeta) and not isinstance(store, Consolidated):
        try:
            documents = recorded_documents(store, path, node_format, meta, options.limits, found)
            _check_depth(where(store, path), documents or (), options.limits)
        except MetadataError as error:
            _warn(f"The consolidated metadata of {where(store, path)} are not used: {error}")
            return store
        if documents is not None:
            is_draft = node_format.name == _DRAFT
            scope = "meta/root/" if is_draft else prefix_of(path)
            return Consolidated(store, scope, _ENDINGS[node_format.name], documents)
    return store


def without_consolidated(store: Store) -> Store:
    """Return the store without consolidated metadata, as arrays send it to other processes."""
    return store.store if isinstance(store, Consolidated) else store


def consolidating_path(store: Store, path: str) -> str:
    """Path of the node whose document tells of the one at `path`: itself, or a group above."""
    if not isinstance(store, Consolidated):
        return path
    return "" if store.endings == _ENDINGS[_DRAFT] else store.scope.rstrip("/")


class RecordedNode(NamedTuple):
    """A node as consolidated metadata say."""

    meta: NodeMeta
    others: tuple[str, ...]
    """Keys that some of the other nodes which they name should have as their own documents."""


def read_consolidated(
    store: Store, group: str, node_format: Format, path: str, options: ReadOptions
) -> RecordedNode | None:
    """The node at `path` as the consolidated metadata of a group say now; None if they do not."""
    meta = node_format.read(store, group, options, found={}) or GroupMeta(implicit=True)
    consolidated = with_consolidated(store, group, node_format, meta, options)
    if not isinstance(consolidated, Consolidated):
        return None
    recorded = node_format.read(consolidated, path, options, found={})
    if recorded is None:
        return None
    own = {*node_format.node_keys(group), *node_format.node_keys(path)}
    others = [key for key in consolidated.documents if key not in own and ".zattrs" not in key]
    return RecordedNode(recorded, tuple(others[:: len(others) // _SOME + 1]))


_SOME = 3
"""Maximum number of other nodes of a `RecordedNode`."""


def recorded_documents(
    store: Store,
    path: str,
    node_format: Format,
    meta: GroupMeta,
    limits: Limits,
    found: FetchedDocuments | None = None,
) -> Documents | None:
    """Return the consolidated metadata of a group; None if it has none.

    `found` holds documents that were fetched already.

    Raises
    ------
    MetadataError
        If they are not valid.
    """
    if node_format.name == "v3":
        recorded = meta.extra.get(_INLINE)
        return None if recorded is None else _from_inline(store, path, recorded, limits)
    key = consolidated_key(path, node_format)
    if key is None:
        return None
    if found is None or key not in found:
        found = read_documents(store, [key], limits)
    text = found[key]
    if text is None:
        return None
    document = load_json(store, key, text, limits)
    if node_format.name == _DRAFT:
        return _from_draft(store, document, limits)
    return _from_v2(store, path, document, limits)


def consolidated_key(path: str, node_format: Format) -> str | None:
    """Return the key of a document with only consolidated metadata, if the format has one."""
    if node_format.name == "v2":
        return join(path, _V2_KEY)
    return _DRAFT_KEY if node_format.name == _DRAFT and not path else None


def is_consolidated(store: Store, path: str, node_format: Format, meta: GroupMeta) -> bool:
    """True if a group has consolidated metadata, valid or not."""
    key = consolidated_key(path, node_format)
    if key is not None:
        return store.size(key) is not None
    recorded = meta.extra.get(_INLINE)
    # groups inside consolidated metadata have an empty field of this kind, too
    return isinstance(recorded, Mapping) and (not path or bool(recorded.get("metadata")))


def consolidated_holder(store: Store, node_format: Format) -> str | None:
    """Return the path of a group that exists only for consolidated metadata, if there is one.

    zarr-python 2 made one for consolidated metadata of the draft.
    """
    key = consolidated_key("", node_format)
    if key is None or not node_format.root_documents():
        return None
    prefix = node_format.prefixes("")[0]
    return key[len(prefix) :].rpartition("/")[0] if store.size(key) is not None else None


def without_recorded(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a group's document without consolidated metadata."""
    return {name: value for name, value in extra.items() if name != _INLINE}


def _from_v2(store: Store, path: str, document: Mapping[str, Any], limits: Limits) -> Documents:
    key = join(path, _V2_KEY)
    if document.get("zarr_consolidated_format") != 1:
        found = document.get("zarr_consolidated_format")
        raise MetadataError(
            where(store, key),
            [ValidationProblem("zarr_consolidated_format", found, "the integer 1")],
        )
    entries = _objects(where(store, key), "metadata", document.get("metadata"), limits)
    prefix = prefix_of(path)
    return {
        prefix + name: entry
        for name, entry in entries.items()
        if _is_document(name, _ENDINGS["v2"]) and _is_key(prefix + name)
    }


def _from_draft(store: Store, document: Mapping[str, Any], limits: Limits) -> Documents:
    entries = _objects(where(store, _DRAFT_KEY), "metadata", document.get("metadata"), limits)
    return {
        key: entry
        for key, entry in entries.items()
        if key.startswith("meta/root/") and _is_document(key, _ENDINGS[_DRAFT]) and _is_key(key)
    }


def _from_inline(store: Store, path: str, recorded: Any, limits: Limits) -> Documents:
    at = where(store, join(path, "zarr.json"))
    if not isinstance(recorded, Mapping) or recorded.get("kind") != "inline":
        raise MetadataError(
            at, [ValidationProblem(_INLINE, recorded, 'an object of the kind "inline"')]
        )
    documents: dict[str, Mapping[str, Any]] = {}
    pending = [(path, recorded)]
    while pending:
        above, form = pending.pop()
        entries = _objects(at, f"{_INLINE}.metadata", form.get("metadata"), limits, documents)
        for name, entry in entries.items():
            below = join(above, name.strip("/"))
            if not _is_key(below):
                continue
            documents.setdefault(join(below, "zarr.json"), entry)
            if isinstance(entry.get(_INLINE), Mapping) and entry[_INLINE].get("metadata"):
                pending.append((below, entry[_INLINE]))
    return documents


def _objects(
    at: str, place: str, value: Any, limits: Limits, before: Documents | None = None
) -> Mapping[str, Mapping[str, Any]]:
    """Check a field that holds documents by key, and their number together with `before`."""
    if not isinstance(value, Mapping) or not all(
        isinstance(v, dict | Mapping)  # dict first: its check is much faster
        for v in value.values()
    ):
        raise MetadataError(at, [ValidationProblem(place, value, "an object of documents by key")])
    count, most = len(value) + len(before or ()), _most_documents(limits)
    if count > most:
        expected = (
            f"at most {most} (ReadOptions(limits=Limits(metadata_memory=...)) sets another bound)"
        )
        raise MetadataError(at, [ValidationProblem(place, f"{count} documents", expected)])
    return value


def _check_depth(at: str, keys: Iterable[str], limits: Limits) -> None:
    """Raise if folders above documents would take far more memory than the documents do.

    Raises
    ------
    MetadataError
        If there are too many, or they are named by too long paths.
    """
    most = limits.metadata_memory // 8
    seen, nbytes = {""}, 0
    for key in keys:
        above = key
        while (above := above.rpartition("/")[0]) not in seen:
            seen.add(above)
            nbytes += len(above) + _FOLDER_BYTES
            if nbytes > most:
                expected = (
                    f"folders that take at most {most} bytes "
                    "(ReadOptions(limits=Limits(metadata_memory=...)) sets another bound)"
                )
                found = f"{len(seen)} folders, some {key.count('/')} names deep"
                raise MetadataError(at, [ValidationProblem(_INLINE, found, expected)])


_FOLDER_BYTES = 100  # memory of a folder's name in a set and a list, besides its characters


def _most_documents(limits: Limits) -> int:
    """Return the maximum number of documents in one: real ones take more memory when parsed."""
    return limits.metadata_memory // 2560


_MOST_DOCUMENTS = _most_documents(DEFAULT_LIMITS)  # as for _MOST_BYTES


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except StoreKeyError:
        return False
    return True


# --- writing --------------------------------------------------------------------------------------


def consolidated_documents(
    store: Store, path: str, node_format: Format, documents: Documents
) -> dict[str, bytes]:
    """Return the documents to write for consolidated metadata of a group.

    Parameters
    ----------
    store, path, node_format
        The group.
    documents
        Documents of the group itself and of all nodes below it.

    Raises
    ------
    MetadataError
        If the format has no consolidated metadata, or the result would exceed the limits of
        readers.
    """
    make = {"v2": _to_v2, "v3": _to_inline}.get(node_format.name)
    if make is None:
        expected = "format v2 or v3: others have no consolidated metadata"
        raise MetadataError(
            where(store, path), [ValidationProblem("format", node_format.name, expected)]
        )
    key, document = make(path, documents)
    text = json.dumps(document, indent=2).encode()
    bounds = ((len(text), _MOST_BYTES, "bytes"), (len(documents), _MOST_DOCUMENTS, "documents"))
    for count, most, what in bounds:
        if count > most:
            expected = f"consolidated metadata of at most {most} {what}; consolidate groups below"
            raise MetadataError(
                where(store, path), [ValidationProblem(key, f"{count} {what}", expected)]
            )
    return {key: text}


def _to_v2(path: str, documents: Documents) -> tuple[str, dict[str, Any]]:
    start = len(prefix_of(path))
    entries = {key[start:]: documents[key] for key in _in_order(documents)}
    return join(path, _V2_KEY), {"metadata": entries, "zarr_consolidated_format": 1}


def _to_inline(path: str, documents: Documents) -> tuple[str, dict[str, Any]]:
    own, start = join(path, "zarr.json"), len(prefix_of(path))
    entries = {
        key[start:].removesuffix("/zarr.json"): _as_entry(documents[key])
        for key in _in_order(documents)
        if key != own
    }
    return own, {**documents[own], _INLINE: _inline(entries)}


def _as_entry(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as zarr-python writes it there: groups get empty consolidated metadata."""
    if document.get("node_type") != "group":
        return dict(document)
    return {**document, _INLINE: _inline({})}


def _inline(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "inline", "must_understand": False, "metadata": entries}


def _in_order(keys: Iterable[str]) -> list[str]:
    """Sort keys as zarr-python does: by depth, then by name, ignoring case."""
    return sorted(
        keys, key=lambda key: (key.count("/"), unicodedata.normalize("NFKC", key).casefold(), key)
    )


# --- out of date ----------------------------------------------------------------------------------


def warn_stale_consolidated(store: Store, path: str, node_format: Format) -> None:
    """Warn if consolidated metadata somewhere above describe a node that has just changed.

    This takes one batch of requests for the documents of the groups above. For local files, groups
    that contain the store are checked as well, because a node may have been opened by its own path.
    """
    found = [where(store, one) for one in consolidated_groups(store, path, node_format)]
    for above in (*found, *_consolidated_around(store, node_format)):
        _warn(
            f"{where(store, path)} has changed, the consolidated metadata of {above} "
            "have not: whoever reads those sees what was there before. "
            "zarr_dask.consolidate writes them anew."
        )


def consolidated_groups(store: Store, path: str, node_format: Format) -> list[str]:
    """Return paths of the groups whose consolidated metadata describe a node, the root first."""
    checks: dict[str, Callable[[Store, str], Iterator[str]]] = {
        "v2": _described_by_v2,
        "v3": _described_inline,
    }
    check = checks.get(node_format.name)
    return list(check(store, path)) if check else []


def _consolidated_around(store: Store, node_format: Format) -> Iterator[str]:
    """Yield groups with consolidated metadata that contain a folder, the innermost first.

    Folders above are searched as long as they hold nodes of the format.
    """
    place = local_path(store, "")
    if place is None or not has_consolidated(node_format):
        return
    below = place
    while (above := os.path.dirname(below)) != below:  # noqa: PTH120  (places are text)
        if looked_up_before(nodes_at_root(above)) == []:
            return
        around = folder_store(above)
        try:
            documents = read_documents(around, node_format.node_keys(""), DEFAULT_LIMITS)
            if all(text is None for text in documents.values()):
                return
            if "" in consolidated_groups(around, below.rpartition("/")[2], node_format):
                yield where(around, "")
        except (StoreError, MetadataError):  # unreadable, or not of this format
            return
        below = above


def has_consolidated(node_format: Format) -> bool:
    """True if groups of a format can have consolidated metadata."""
    return node_format.name in {"v2", "v3"}


def _described_by_v2(store: Store, path: str) -> Iterator[str]:
    groups = [*ancestors(path), path]
    found = store.get_ranges([(join(group, _V2_KEY), Range(0, 1)) for group in groups])
    return (group for group, value in zip(groups, found, strict=True) if value is not None)


def _described_inline(store: Store, path: str) -> Iterator[str]:
    groups = ancestors(path)
    keys = [join(group, "zarr.json") for group in groups]
    found = read_documents(store, keys, DEFAULT_LIMITS) if keys else {}
    for group, key in zip(groups, keys, strict=True):
        text = found[key]
        if text is None or f'"{_INLINE}"'.encode() not in text:
            continue
        if load_json(store, key, text).get(_INLINE) is not None:
            yield group


def _warn(message: str) -> None:
    warn(message, ConsolidatedMetadataWarning)
