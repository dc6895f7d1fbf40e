"""New metadata and keys of the nodes of a hierarchy that is migrated.

Reads a `MigrationOptions`'s source, and output of earlier runs in its target; writes nothing. Every
node gets a `NodePlan` with its metadata before and after, or the reasons why it cannot be migrated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from zarr_dask.errors import ABSENT, MetadataError, MissingGroupWarning, ValidationProblem
from zarr_dask.formats.base import (
    ArrayMeta,
    ChunkKeyEncoding,
    FetchedDocuments,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    load_json,
    prefix_of,
    read_documents,
)
from zarr_dask.formats.consolidated import (
    consolidated_documents,
    consolidated_holder,
    consolidated_key,
)
from zarr_dask.formats.documents import DEFAULT_LIMITS, parse_json
from zarr_dask.formats.missing_values import FILL_VALUE, carry_missing_value
from zarr_dask.formats.translate import (
    DIMENSIONS,
    default_keys,
    legacy_key_encodings,
    older_formats,
    translate,
    xarray_mask_differences,
)
from zarr_dask.formats.v3draft_entry import ENTRY
from zarr_dask.hierarchy.walk import walk
from zarr_dask.stores.base import Buffer, Range, Store, join, list_sizes, list_tags
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = [
    "BACKUP",
    "Data",
    "KeyMove",
    "MigrationOptions",
    "NodeOverrides",
    "NodePlan",
    "Rewrite",
    "Rewriting",
    "as_before",
    "consolidated_node",
    "moves",
    "node_plans",
    "old_documents",
    "read_or_problems",
    "tagged_moves",
    "with_objects",
]

_Told = TypeVar("_Told")

Data = Literal["keep", "rename", "copy"]


class KeyMove(NamedTuple):
    """One stored object under its old and its new key."""

    old: str
    new: str


class NodeOverrides(NamedTuple):
    """New metadata of a node, with other attributes or dimension names."""

    meta: NodeMeta
    problems: tuple[ValidationProblem, ...] = ()
    """Reasons why the metadata cannot be changed."""


Rewrite = Callable[[str, NodeMeta], NodeOverrides]
"""Changes the new metadata of a node at a path beyond converting its format."""
Rewriting = Callable[[Mapping[str, NodeMeta]], Rewrite]
"""Makes a `Rewrite` from all nodes that have old metadata."""


@dataclass(frozen=True)
class MigrationOptions:
    """Source, target, and manner of a migration."""

    source: Store
    target: Store
    in_place: bool
    """True if source and target are the same location."""
    path: str
    """Path of the hierarchy's root, in both stores."""
    source_format: Format
    target_format: Format
    data: Data
    """Treatment of stored objects."""
    options: ReadOptions
    """Options for reading the old metadata."""
    rewriting: Rewriting | None = None
    """Further changes to the metadata of nodes."""
    elsewhere: frozenset[str] = frozenset()
    """Paths of arrays that another job writes to the target, with their metadata."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """Old metadata keys that new metadata needs too; their content moves to another key."""
        return tuple(self.source_format.root_documents()) if self.in_place else ()


@dataclass(frozen=True)
class NodePlan:
    """Planned changes to one node."""

    path: str
    """Path below the root of the store."""
    before: NodeMeta | None
    """Its metadata now; None if it cannot be read."""
    node_format: Format
    """Its format now."""
    after: NodeMeta | None = None
    """Its new metadata; None if it cannot be migrated."""
    documents: Mapping[str, bytes] = field(default_factory=dict)
    """Its new metadata by key, the key that makes it visible last."""
    problems: tuple[ValidationProblem, ...] = ()
    """Reasons why it cannot be migrated."""
    notes: tuple[str, ...] = ()
    """Notes for users."""
    is_written: bool = False
    """True if its new metadata exists already: then its objects do too, and are newer."""
    objects: int = 0
    """Stored objects to copy."""
    nbytes: int = 0
    """Bytes of the stored objects to copy."""

    @property
    def format(self) -> str:
        """Name of its format now."""
        return self.node_format.name


BACKUP = ".migrated"
"""Suffix of the key that keeps metadata which had to make room for new metadata."""


def read_or_problems(
    store: Store, path: str, node_format: Format, options: ReadOptions
) -> NodeMeta | MetadataError | None:
    """Return the node of one format at a path, the error of reading it, or None."""
    found = read_documents(store, node_format.node_keys(path), options.limits)
    try:
        return node_format.read(store, path, options, found=found)
    except MetadataError as error:
        return error


class _OldNode(NamedTuple):
    """A node of a hierarchy before it is migrated."""

    path: str
    node_format: Format
    meta: NodeMeta | MetadataError


@dataclass(frozen=True)
class _OldOrNewReader:
    """Reader for nodes of two formats in one hierarchy: old metadata first, then new."""

    formats: tuple[Format, ...]
    by_path: dict[str, Format] = field(default_factory=dict)
    """Format of each node that has been read."""

    @property
    def has_implicit_groups(self) -> bool:
        """See `Format.has_implicit_groups`."""
        return self.formats[0].has_implicit_groups

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        return tuple(key for one in self.formats for key in one.node_keys(path))

    def child_names(self, store: Store, path: str) -> list[str]:
        """See `Format.child_names`."""
        return sorted({name for one in self.formats for name in one.child_names(store, path)})

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """See `Format.read`."""
        for one in self.formats:
            self.by_path[path] = one
            own = {key: found[key] for key in one.node_keys(path) if key in found}
            meta = one.read(store, path, options, found=own)
            if meta is not None:
                return meta
        del self.by_path[path]
        return None


def _found(route: MigrationOptions) -> Iterator[_OldNode]:
    """Yield the nodes of a hierarchy, parents before children."""
    either = _OldOrNewReader(tuple(dict.fromkeys((route.source_format, route.target_format))))
    root_format = route.source_format
    root = read_or_problems(route.source, route.path, root_format, route.options)
    root = GroupMeta(implicit=True) if root is None else root
    new_root = _new_root(route)
    if new_root is not None and not _has_old_nodes(route):
        # an earlier run removed them all, so only the new metadata describes the root
        root_format, root = route.target_format, new_root
    yield _OldNode(route.path, root_format, root)
    if not isinstance(root, GroupMeta):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)  # they get metadata
        below = walk(route.source, route.path, either, route.options)
    left_out = consolidated_node(route)
    for name, meta in below.items():
        path = join(route.path, name)
        if path == left_out:
            continue
        yield _OldNode(path, either.by_path.get(path, route.source_format), meta)


def _new_root(route: MigrationOptions) -> NodeMeta | None:
    """Return the root that an earlier run wrote at the old entry point; None if there is none.

    It is written last: if it exists, all other new metadata was written too.
    """
    if not any(route.target.size(key + BACKUP) is not None for key in route.replaced):
        return None
    root = read_or_problems(route.target, route.path, route.target_format, route.options)
    return None if isinstance(root, MetadataError) else root


def _has_old_nodes(route: MigrationOptions) -> bool:
    """True if old metadata exists, at the root or below, or old nodes imply a group."""
    keys = route.source_format.node_keys(route.path)
    if any(route.source.size(key) is not None for key in keys):
        return True
    names = route.source_format.child_names(route.source, route.path)
    return any(join(route.path, name) != consolidated_node(route) for name in names)


def consolidated_node(route: MigrationOptions) -> str | None:
    """Return the path of a group that exists only for consolidated metadata, or None."""
    return consolidated_holder(route.source, route.source_format)


def node_plans(route: MigrationOptions) -> tuple[NodePlan, ...]:
    """Plan every node, parents before children; stored objects are not inspected."""
    found = list(_found(route))
    rewrite = _rewrite(route, found)
    here = [one for one in found if one.path not in route.elsewhere]
    nodes: Sequence[NodePlan] = [_node_plan(route, rewrite, one) for one in here]
    if not route.elsewhere:  # else not all metadata is known here
        nodes = _consolidated(route, nodes)
    is_complete = _new_root(route) is not None
    return tuple(_beside_present(route, node, is_complete=is_complete) for node in nodes)


def _rewrite(route: MigrationOptions, found: Sequence[_OldNode]) -> Rewrite | None:
    """Return the function that changes the metadata of nodes; None if there are no changes."""
    if route.rewriting is None:
        return None
    old = {
        one.path: one.meta
        for one in found
        if one.node_format == route.source_format and not isinstance(one.meta, MetadataError)
    }
    return route.rewriting(old)


def _node_plan(route: MigrationOptions, rewrite: Rewrite | None, found: _OldNode) -> NodePlan:
    path, node_format, meta = found
    if isinstance(meta, MetadataError):
        return NodePlan(path, None, node_format, problems=meta.problems)
    node = NodePlan(path, meta, node_format)
    if node_format == route.target_format:
        return _as_it_is(route, node)
    said = meta
    if isinstance(meta, ArrayMeta):
        said = carry_missing_value(meta, node_format, route.target_format)
    translated = translate(said, route.target_format, _new_keys(route, meta))
    notes = translated.notes
    if isinstance(meta, GroupMeta) and meta.implicit:
        notes = ("group without a document: it gets one",)
    problems = (*_name_problems(route, path), *translated.problems)
    if translated.meta is None or problems:
        return replace(node, problems=problems, notes=notes)
    after, problems = (translated.meta, ()) if rewrite is None else rewrite(path, translated.meta)
    if problems:
        return replace(node, problems=problems, notes=notes)
    documents = route.target_format.documents(after, path)
    notes += xarray_mask_differences(meta, node_format, translated.meta, route.target_format)
    return replace(node, after=after, documents=documents, notes=notes)


_CONSOLIDATED = "consolidated_metadata"


def _as_it_is(route: MigrationOptions, node: NodePlan) -> NodePlan:
    """Return the plan of a node that has only new metadata."""
    if route.elsewhere and isinstance(node.before, GroupMeta):
        extra = {k: v for k, v in node.before.extra.items() if k != _CONSOLIDATED}
        after = GroupMeta(node.before.attributes, extra)
        documents = route.target_format.documents(after, node.path)
        return replace(node, after=after, documents=documents)
    keys = node.node_format.node_keys(node.path)
    # in place, the source shows the old entry point under a key of the new root
    store = route.target if route.in_place else route.source
    texts = read_documents(store, keys, route.options.limits)
    documents = {key: text for key, text in texts.items() if text is not None}
    return replace(node, after=node.before, documents=documents)


def _consolidated(route: MigrationOptions, nodes: Sequence[NodePlan]) -> Sequence[NodePlan]:
    """Return the nodes; groups with old consolidated metadata get new consolidated metadata."""
    changed = {node.path: node for node in nodes}
    for path in sorted(_consolidated_groups(route, nodes), key=len, reverse=True):
        inside = prefix_of(path)
        documents = {
            key: load_json(route.source, key, text)
            for node in changed.values()
            if node.path == path or node.path.startswith(inside)
            for key, text in node.documents.items()
        }
        made = consolidated_documents(route.target, path, route.target_format, documents)
        node = changed[path]
        after = route.target_format.read(route.target, path, route.options, found=made)
        note = "consolidated metadata are written anew, of the new documents"
        changed[path] = replace(node, after=after, documents=made, notes=(*node.notes, note))
    return list(changed.values())


def _consolidated_groups(route: MigrationOptions, nodes: Sequence[NodePlan]) -> Iterator[str]:
    """Yield paths of groups with consolidated metadata, now or when an earlier run started."""
    groups = [n for n in nodes if n.after is not None and isinstance(n.before, GroupMeta)]
    groups = [node for node in groups if node.node_format != route.target_format]
    keys = {consolidated_key(node.path, node.node_format): node.path for node in groups}
    requests = [(key, Range(0, 1)) for key in keys if key is not None]
    found = route.source.get_ranges(requests)
    old = {keys[key] for (key, _), value in zip(requests, found, strict=True) if value is not None}
    written = [key for node in groups for key in node.documents]
    texts = read_documents(route.target, written, route.options.limits) if written else {}
    for node in groups:
        new = [text for key, text in texts.items() if key in node.documents and text is not None]
        if node.path in old or any(_has_consolidated(text) for text in new):
            yield node.path


def _has_consolidated(text: bytes) -> bool:
    document = _json(text)
    return isinstance(document, dict) and document.get(_CONSOLIDATED) is not None


def _new_keys(route: MigrationOptions, meta: NodeMeta) -> ChunkKeyEncoding | None:
    """Return the new chunk keys of an array; None for a group."""
    if isinstance(meta, GroupMeta):
        return None
    return (
        meta.chunk_key_encoding
        if route.data == "keep"
        else default_keys(route.target_format, meta.chunk_key_encoding)
    )


def _name_problems(route: MigrationOptions, path: str) -> Iterator[ValidationProblem]:
    """Yield problems with names that are invalid in the new format or in the old layout."""
    below = path[len(route.path) :].lstrip("/")
    for name in below.split("/") if below else ():
        if not route.target_format.is_node_name(name):
            expected = f"a name that a node may have in {route.target_format.name}. Rename it"
            yield ValidationProblem("name", name, expected)
    if route.replaced and any(f"{path}/".startswith(p) for p in route.source_format.prefixes("")):
        expected = "a path that is not one of the old format's own keys: copy it to another place"
        yield ValidationProblem("name", path, expected)


def _beside_present(route: MigrationOptions, node: NodePlan, *, is_complete: bool) -> NodePlan:
    """Return the plan of a node, given metadata that an earlier run may have written.

    If that run has written all of it (`is_complete`), a node without new metadata was deleted
    since.
    """
    if not node.documents:
        return node
    present = read_documents(route.target, list(node.documents), route.options.limits)
    if is_complete and all(text is None for text in present.values()):
        return replace(node, problems=(*node.problems, _deleted_since(route, node)))
    empty = {} if route.in_place else route.target_format.documents(GroupMeta(), node.path)
    chosen, problems = dict(node.documents), []
    for key, text in present.items():
        if text is None or (key in route.replaced and text == route.source.get(key)):
            continue
        if route.elsewhere and _same_but_consolidated(text, (empty.get(key), node.documents[key])):
            continue  # made for the arrays below it, or consolidated by the job that wrote those
        if _same_json(text, node.documents[key]):
            chosen[key] = text
        else:
            expected = (
                "nothing there, or what the old documents say: it is newer, or another node's. "
                "Remove it to migrate from the old documents, or remove those"
            )
            problems.append(ValidationProblem(key, text[:60].decode("utf-8", "replace"), expected))
    return replace(
        node,
        documents=chosen,
        is_written=chosen == present,
        problems=(*node.problems, *problems),
    )


def _deleted_since(route: MigrationOptions, node: NodePlan) -> ValidationProblem:
    texts = read_documents(
        route.target, node.node_format.node_keys(node.path), route.options.limits
    )
    documents = [key for key, text in texts.items() if text is not None]
    left = [*documents, *node.node_format.prefixes(node.path)]
    expected = (
        f"its new document, which was written when the hierarchy was migrated: the node has been "
        f"deleted since, and is not brought back. Delete what is left of it in the old format, "
        f"{' and '.join(left)}, and run the migration again"
    )
    return ValidationProblem(", ".join(node.documents), ABSENT, expected)


def _json(text: bytes) -> Any:
    """Return parsed JSON, or None if it is not JSON."""
    try:
        return parse_json(text, DEFAULT_LIMITS, strictly=False)
    except (ValueError, RecursionError):
        return None


def _same_but_consolidated(text: bytes, others: Sequence[bytes | None]) -> bool:
    """True if metadata equals other metadata, ignoring consolidated metadata."""
    document = _json(text)
    if isinstance(document, dict):
        document.pop(_CONSOLIDATED, None)
    return any(other is not None and document == _json(other) for other in others)


def _same_json(a: bytes, b: bytes) -> bool:
    first, second = (json.dumps(_json(text), sort_keys=True) for text in (a, b))
    return first == second


# --- old metadata ---------------------------------------------------------------------------------


def old_documents(route: MigrationOptions, node: NodePlan) -> list[str]:
    """Return the keys of a node's old metadata, the key that makes it visible first."""
    if node.before is None or node.after is None:
        return []
    if node.node_format == route.target_format:
        return _orphans(route, node.path, node.after)
    keys = node.node_format.node_keys(node.path)
    if isinstance(node.before, GroupMeta):  # arrays have theirs first anyway
        group = node.node_format.documents(GroupMeta(), node.path)
        keys = tuple(dict.fromkeys((*reversed(group), *keys)))
    return [key for key in keys if key not in node.documents and key not in route.replaced]


def _orphans(route: MigrationOptions, path: str, meta: NodeMeta) -> list[str]:
    """Return keys of old attributes that an interrupted removal has left without their node."""
    own = route.target_format.node_keys(path)
    rewrite = None if route.rewriting is None else route.rewriting({})
    orphans = []
    for one in older_formats(route.target_format, route.source, route.options):
        texts = read_documents(route.target, one.node_keys(path), route.options.limits)
        for key, text in texts.items():
            if key in own or text is None:
                continue
            said = _json(text)
            if rewrite is not None and isinstance(said, dict):
                said = rewrite(path, replace(meta, attributes=said)).meta.attributes
            if _same_attributes(said, meta.attributes):
                orphans.append(key)
    return orphans


def _same_attributes(said: Any, attributes: Mapping[str, Any]) -> bool:
    """True if JSON is the attributes of a node, ignoring dimension names and missing values."""
    if not isinstance(said, dict):
        return False
    names = {DIMENSIONS, FILL_VALUE}
    return said.keys() - names == attributes.keys() - names and all(
        said[name] == attributes[name] for name in said.keys() - names
    )


# --- stored objects -------------------------------------------------------------------------------


def with_objects(route: MigrationOptions, node: NodePlan) -> NodePlan:
    """Return the plan of a node with the number of stored objects to copy."""
    if route.data == "keep" or node.problems:
        return node
    strays = tuple(islice(_strays(route, node), _SHOWN))
    sizes = () if node.is_written else (nbytes for _, nbytes in _moves(route, node, list_sizes))
    objects = nbytes = 0
    for size in sizes:
        objects, nbytes = objects + 1, nbytes + size
    return replace(node, objects=objects, nbytes=nbytes, problems=strays)


def moves(route: MigrationOptions, node: NodePlan) -> Iterator[KeyMove]:
    """Return the stored objects of a node that get another key, or another store."""
    return (move for move, _ in _moves(route, node, _list_untagged))


def tagged_moves(route: MigrationOptions, node: NodePlan) -> Iterator[tuple[KeyMove, Hashable]]:
    """Yield the moves of `moves`, with tags of the objects, None where the store has none.

    Nobody asks for tags where the old objects are not shared with readers of the new metadata.
    """
    return _moves(route, node, list_tags if route.in_place else _list_untagged)


def _list_untagged(store: Store, prefix: str) -> Iterator[tuple[str, None]]:
    return ((key, None) for key in store.list(prefix))


def _moves(
    route: MigrationOptions,
    node: NodePlan,
    listing: Callable[[Store, str], Iterator[tuple[str, _Told]]],
) -> Iterator[tuple[KeyMove, _Told]]:
    """Yield the moves of `moves`, with what a listing tells of the objects."""
    after, before = node.after, node.before
    if not isinstance(after, ArrayMeta) or not isinstance(before, ArrayMeta):
        return
    new_prefix = route.target_format.data_prefix(node.path)
    for old_prefix, keys in _old_layouts(route, node, before):
        if route.in_place and (old_prefix, keys) == (new_prefix, after.chunk_key_encoding):
            continue
        laid_out = replace(before, chunk_key_encoding=keys)
        for key, told in listing(route.source, old_prefix):
            coords = laid_out.coords(key[len(old_prefix) :])
            if coords is None:
                continue
            move = KeyMove(key, new_prefix + after.chunk_key_encoding.key(coords))
            if not (route.in_place and move.old == move.new):  # as in two layouts with one axis
                yield move, told


def _old_layouts(
    route: MigrationOptions, node: NodePlan, before: ArrayMeta
) -> Iterator[tuple[str, ChunkKeyEncoding]]:
    """Yield the possible locations of stored objects now: prefix and keys.

    An interrupted run may have removed a node's old metadata, but not yet its old keys.
    """
    prefix = node.node_format.data_prefix(node.path)
    yield prefix, before.chunk_key_encoding
    if route.data == "rename" and node.node_format == route.target_format:
        for keys in legacy_key_encodings(before.grid.ndim):
            yield prefix, keys


_SHOWN = 5
"""Maximum number of stored objects in the way that are named."""


def _strays(route: MigrationOptions, node: NodePlan) -> Iterator[ValidationProblem]:
    """Yield objects under the new keys of an array that have no old counterpart."""
    before, after = node.before, node.after
    if not isinstance(before, ArrayMeta) or not isinstance(after, ArrayMeta):
        return
    old_prefix = node.node_format.data_prefix(node.path)
    new_prefix = route.target_format.data_prefix(node.path)
    if node.is_written or (
        route.in_place
        and (old_prefix, before.chunk_key_encoding) == (new_prefix, after.chunk_key_encoding)
    ):
        return
    for key in route.target.list(new_prefix + after.chunk_key_encoding.folder(after.grid.ndim)):
        coords = after.coords(key[len(new_prefix) :])
        if (
            coords is not None
            and route.source.size(old_prefix + before.chunk_key_encoding.key(coords)) is None
        ):
            expected = "no object there: the array has none at these coordinates. Remove it"
            yield ValidationProblem("stored object", key, expected)


# --- leftovers of an interrupted migration --------------------------------------------------------


@dataclass(frozen=True)
class _StoreBefore(StoreWrapper):
    """A store that shows replaced metadata as it was before."""

    texts: Mapping[str, bytes]

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.texts[key] if key in self.texts else self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.store.get_ranges(requests)
        whole = {n for n, (key, wanted) in enumerate(requests) if key in self.texts}
        return [self.texts[requests[n][0]] if n in whole else v for n, v in enumerate(found)]

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.texts[key] if key in self.texts else self.store.get_transient(key)


def as_before(store: Store) -> Store:
    """Return the store as it was before a migration replaced metadata in it."""
    text = store.get(ENTRY + BACKUP)
    return store if text is None else _StoreBefore(store, {ENTRY: bytes(text)})
