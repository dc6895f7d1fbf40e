"""What becomes of the nodes of a hierarchy that is migrated, and of their stored objects.

Reads a `Route`'s source and what former runs have left in its target; writes nothing. For every
node there is a `NodePlan`: its documents before and after, or why there are none after.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple

from zarr_dask.errors import ABSENT, MetadataError, MissingGroupWarning, Problem
from zarr_dask.formats.base import (
    ArrayMeta,
    ChunkKeys,
    Format,
    Found,
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
from zarr_dask.formats.draft import ENTRY
from zarr_dask.formats.migrate import (
    DIMENSIONS,
    default_keys,
    former_keys,
    masked_otherwise,
    older,
    translate,
)
from zarr_dask.stores.base import Buffer, Range, Store, join, list_sizes
from zarr_dask.stores.wrappers import Wrapper
from zarr_dask.walk import walk

__all__ = [
    "BACKUP",
    "Data",
    "Move",
    "NodePlan",
    "Rewrite",
    "Rewriting",
    "Rewritten",
    "Route",
    "as_before",
    "consolidated_node",
    "moves",
    "node_plans",
    "old_documents",
    "read_or_problems",
    "with_objects",
]

Data = Literal["keep", "rename", "copy"]


class Move(NamedTuple):
    """One stored object under its old and its new key."""

    old: str
    new: str


class Rewritten(NamedTuple):
    """A node whose attributes, or names of dimensions, are others in the new place."""

    meta: NodeMeta
    problems: tuple[Problem, ...] = ()
    """Why they cannot be."""


Rewrite = Callable[[str, NodeMeta], Rewritten]
"""Changes what the new documents of a node at a path say besides their spelling."""
Rewriting = Callable[[Mapping[str, NodeMeta]], Rewrite]
"""Makes a `Rewrite` of all nodes that have old documents, as those say them."""


@dataclass(frozen=True)
class Route:
    """From where to where, and how."""

    source: Store
    target: Store
    in_place: bool
    """Whether source and target are the same place."""
    path: str
    """Of the root of the hierarchy, in both stores."""
    source_format: Format
    target_format: Format
    data: Data
    """What happens to stored objects."""
    options: ReadOptions
    """How the old documents are read."""
    rewriting: Rewriting | None = None
    """What else changes in the metadata of nodes."""
    elsewhere: frozenset[str] = frozenset()
    """Paths of arrays that another job writes to the target, documents and all."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """Old documents whose keys new ones need: they are kept under another key."""
        return tuple(self.source_format.root_documents()) if self.in_place else ()


@dataclass(frozen=True)
class NodePlan:
    """What will become of one node."""

    path: str
    """Below the root of the store."""
    before: NodeMeta | None
    """What its documents say now; None if they cannot be read."""
    node_format: Format
    """How they are spelled now."""
    after: NodeMeta | None = None
    """What they will say; None if that is not possible."""
    documents: Mapping[str, bytes] = field(default_factory=dict)
    """Its new documents by key, the one that makes it visible last."""
    problems: tuple[Problem, ...] = ()
    """Why it cannot be migrated."""
    notes: tuple[str, ...] = ()
    """What users should know."""
    is_written: bool = False
    """Whether its new documents are there already: its objects must be as well, and are newer."""
    objects: int = 0
    """Stored objects to be copied."""
    nbytes: int = 0
    """Their bytes."""

    @property
    def format(self) -> str:
        """Name of the format that it has now."""
        return self.node_format.name


BACKUP = ".migrated"
"""Ends the key under which a document is kept that had to make room for a new one."""


def read_or_problems(
    store: Store, path: str, node_format: Format, options: ReadOptions
) -> NodeMeta | MetadataError | None:
    """The node of one format at a path, or what is wrong with it."""
    found = read_documents(store, node_format.node_keys(path), options.limits)
    try:
        return node_format.read(store, path, options, found=found)
    except MetadataError as error:
        return error


class _Found(NamedTuple):
    """A node of a hierarchy before it is migrated."""

    path: str
    node_format: Format
    meta: NodeMeta | MetadataError


@dataclass(frozen=True)
class _Either:
    """Nodes of two formats in one hierarchy: the old documents first, the new ones without them."""

    formats: tuple[Format, ...]
    by_path: dict[str, Format] = field(default_factory=dict)
    """Which of them a node has, as far as nodes were read."""

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
        self, store: Store, path: str, options: ReadOptions, *, found: Found
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


def _found(route: Route) -> Iterator[_Found]:
    """The nodes of a hierarchy, parents before children."""
    either = _Either(tuple(dict.fromkeys((route.source_format, route.target_format))))
    root_format = route.source_format
    root = read_or_problems(route.source, route.path, root_format, route.options)
    root = GroupMeta(implicit=True) if root is None else root
    new_root = _new_root(route)
    if new_root is not None and not _has_old_nodes(route):
        # a former run has removed them all: what the root said is in the new document only
        root_format, root = route.target_format, new_root
    yield _Found(route.path, root_format, root)
    if not isinstance(root, GroupMeta):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)  # they get documents
        below = walk(route.source, route.path, either, route.options)
    left_out = consolidated_node(route)
    for name, meta in below.items():
        path = join(route.path, name)
        if path == left_out:
            continue
        yield _Found(path, either.by_path.get(path, route.source_format), meta)


def _new_root(route: Route) -> NodeMeta | None:
    """The root as a former run has written it where the old entry point was; None if none has.

    It is written last: where it is there, all the other new documents were.
    """
    if not any(route.target.size(key + BACKUP) is not None for key in route.replaced):
        return None
    root = read_or_problems(route.target, route.path, route.target_format, route.options)
    return None if isinstance(root, MetadataError) else root


def _has_old_nodes(route: Route) -> bool:
    """Whether there is an old document, of the root or below, or an old node implied by one."""
    keys = route.source_format.node_keys(route.path)
    if any(route.source.size(key) is not None for key in keys):
        return True
    names = route.source_format.child_names(route.source, route.path)
    return any(join(route.path, name) != consolidated_node(route) for name in names)


def consolidated_node(route: Route) -> str | None:
    """Path of a group that is there for nothing but consolidated metadata, if there is one."""
    return consolidated_holder(route.source, route.source_format)


def node_plans(route: Route) -> tuple[NodePlan, ...]:
    """What becomes of every node, parents before children; stored objects are not looked at."""
    found = list(_found(route))
    rewrite = _rewrite(route, found)
    here = [one for one in found if one.path not in route.elsewhere]
    nodes: Sequence[NodePlan] = [_node_plan(route, rewrite, one) for one in here]
    if not route.elsewhere:  # else not all documents are known here
        nodes = _consolidated(route, nodes)
    is_complete = _new_root(route) is not None
    return tuple(_beside_present(route, node, is_complete=is_complete) for node in nodes)


def _rewrite(route: Route, found: Sequence[_Found]) -> Rewrite | None:
    """What changes the metadata of nodes; None if nothing does."""
    if route.rewriting is None:
        return None
    old = {
        one.path: one.meta
        for one in found
        if one.node_format == route.source_format and not isinstance(one.meta, MetadataError)
    }
    return route.rewriting(old)


def _node_plan(route: Route, rewrite: Rewrite | None, found: _Found) -> NodePlan:
    path, node_format, meta = found
    if isinstance(meta, MetadataError):
        return NodePlan(path, None, node_format, problems=meta.problems)
    node = NodePlan(path, meta, node_format)
    if node_format == route.target_format:
        return _as_it_is(route, node)
    translated = translate(meta, route.target_format, _new_keys(route, meta))
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
    notes += masked_otherwise(meta, node_format, translated.meta, route.target_format)
    return replace(node, after=after, documents=documents, notes=notes)


_CONSOLIDATED = "consolidated_metadata"


def _as_it_is(route: Route, node: NodePlan) -> NodePlan:
    """A node that has the new documents only."""
    if route.elsewhere and isinstance(node.before, GroupMeta):
        extra = {k: v for k, v in node.before.extra.items() if k != _CONSOLIDATED}
        after = GroupMeta(node.before.attributes, extra)
        documents = route.target_format.documents(after, node.path)
        return replace(node, after=after, documents=documents)
    keys = node.node_format.node_keys(node.path)
    # in place the source shows the old entry point under a key of the new root
    store = route.target if route.in_place else route.source
    texts = read_documents(store, keys, route.options.limits)
    documents = {key: text for key, text in texts.items() if text is not None}
    return replace(node, after=node.before, documents=documents)


def _consolidated(route: Route, nodes: Sequence[NodePlan]) -> Sequence[NodePlan]:
    """The same nodes; groups that have consolidated metadata of old documents get those of new."""
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


def _consolidated_groups(route: Route, nodes: Sequence[NodePlan]) -> Iterator[str]:
    """Paths of groups that have consolidated metadata, or had them when a former run began."""
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


def _new_keys(route: Route, meta: NodeMeta) -> ChunkKeys | None:
    """Where the stored objects of an array will be."""
    if isinstance(meta, GroupMeta):
        return None
    return meta.keys if route.data == "keep" else default_keys(route.target_format, meta.keys)


def _name_problems(route: Route, path: str) -> Iterator[Problem]:
    """Names that nodes of the new format may not have, or that would lie in the old layout."""
    below = path[len(route.path) :].lstrip("/")
    for name in below.split("/") if below else ():
        if not route.target_format.is_node_name(name):
            expected = f"a name that a node may have in {route.target_format.name}. Rename it"
            yield Problem("name", name, expected)
    if route.replaced and any(f"{path}/".startswith(p) for p in route.source_format.prefixes("")):
        expected = "a path that is not one of the old format's own keys: copy it to another place"
        yield Problem("name", path, expected)


def _beside_present(route: Route, node: NodePlan, *, is_complete: bool) -> NodePlan:
    """The plan of a node, where a former run may have written its documents already.

    If it has written all of them (`is_complete`), a node without has been deleted since.
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
            continue  # made for the arrays below it, or consolidated by who has written those
        if _same_json(text, node.documents[key]):
            chosen[key] = text
        else:
            expected = (
                "nothing there, or what the old documents say: it is newer, or another node's. "
                "Remove it to migrate from the old documents, or remove those"
            )
            problems.append(Problem(key, text[:60].decode("utf-8", "replace"), expected))
    return replace(
        node,
        documents=chosen,
        is_written=chosen == present,
        problems=(*node.problems, *problems),
    )


def _deleted_since(route: Route, node: NodePlan) -> Problem:
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
    return Problem(", ".join(node.documents), ABSENT, expected)


def _json(text: bytes) -> Any:
    """A document, or None if it is none."""
    try:
        return parse_json(text, DEFAULT_LIMITS, strictly=False)
    except (ValueError, RecursionError):
        return None


def _same_but_consolidated(text: bytes, others: Sequence[bytes | None]) -> bool:
    """Whether a document says what another one does, besides consolidated metadata."""
    document = _json(text)
    if isinstance(document, dict):
        document.pop(_CONSOLIDATED, None)
    return any(other is not None and document == _json(other) for other in others)


def _same_json(a: bytes, b: bytes) -> bool:
    first, second = (json.dumps(_json(text), sort_keys=True) for text in (a, b))
    return first == second


# --- old documents --------------------------------------------------------------------------------


def old_documents(route: Route, node: NodePlan) -> list[str]:
    """Keys of the old documents of a node, the one that makes it visible first."""
    if node.before is None or node.after is None:
        return []
    if node.node_format == route.target_format:
        return _orphans(route, node.path, node.after)
    keys = node.node_format.node_keys(node.path)
    if isinstance(node.before, GroupMeta):  # arrays have theirs first anyway
        group = node.node_format.documents(GroupMeta(), node.path)
        keys = tuple(dict.fromkeys((*reversed(group), *keys)))
    return [key for key in keys if key not in node.documents and key not in route.replaced]


def _orphans(route: Route, path: str, meta: NodeMeta) -> list[str]:
    """Attributes that an interrupted removal has left without the document of their node."""
    own = route.target_format.node_keys(path)
    rewrite = None if route.rewriting is None else route.rewriting({})
    orphans = []
    for one in older(route.target_format, route.source, route.options):
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
    """Whether a document is the attributes of a node, names of dimensions aside."""
    if not isinstance(said, dict):
        return False
    names = {DIMENSIONS}
    return said.keys() - names == attributes.keys() - names and all(
        said[name] == attributes[name] for name in said.keys() - names
    )


# --- stored objects -------------------------------------------------------------------------------


def with_objects(route: Route, node: NodePlan) -> NodePlan:
    """The plan of a node that knows how many stored objects there are to be copied."""
    if route.data == "keep" or node.problems:
        return node
    strays = tuple(islice(_strays(route, node), _SHOWN))
    sizes = () if node.is_written else (nbytes for _, nbytes in _moves(route, node, list_sizes))
    objects = nbytes = 0
    for size in sizes:
        objects, nbytes = objects + 1, nbytes + size
    return replace(node, objects=objects, nbytes=nbytes, problems=strays)


def moves(route: Route, node: NodePlan) -> Iterator[Move]:
    """The stored objects of a node that get another key, or another store."""
    return (move for move, _ in _moves(route, node, _list_keys))


def _list_keys(store: Store, prefix: str) -> Iterator[tuple[str, int]]:
    return ((key, 0) for key in store.list(prefix))


def _moves(
    route: Route, node: NodePlan, listing: Callable[[Store, str], Iterator[tuple[str, int]]]
) -> Iterator[tuple[Move, int]]:
    """As `moves`, with the sizes that a listing gives."""
    after, before = node.after, node.before
    if not isinstance(after, ArrayMeta) or not isinstance(before, ArrayMeta):
        return
    new_prefix = route.target_format.data_prefix(node.path)
    for old_prefix, keys in _old_layouts(route, node, before):
        if route.in_place and (old_prefix, keys) == (new_prefix, after.keys):
            continue
        laid_out = replace(before, keys=keys)
        for key, nbytes in listing(route.source, old_prefix):
            coords = laid_out.coords(key[len(old_prefix) :])
            if coords is not None:
                yield Move(key, new_prefix + after.keys.key(coords)), nbytes


def _old_layouts(
    route: Route, node: NodePlan, before: ArrayMeta
) -> Iterator[tuple[str, ChunkKeys]]:
    """Where stored objects may lie now: prefix and keys.

    A node that has the new documents only may have been left by an interrupted run between the
    removal of its old documents and that of its old keys.
    """
    prefix = node.node_format.data_prefix(node.path)
    yield prefix, before.keys
    if route.data == "rename" and node.node_format == route.target_format:
        for keys in former_keys(before.grid.ndim):
            yield prefix, keys


_SHOWN = 5
"""Stored objects that are named at most, of those in the way."""


def _strays(route: Route, node: NodePlan) -> Iterator[Problem]:
    """Objects under the new keys of an array that none of its old ones is."""
    before, after = node.before, node.after
    if not isinstance(before, ArrayMeta) or not isinstance(after, ArrayMeta):
        return
    old_prefix = node.node_format.data_prefix(node.path)
    new_prefix = route.target_format.data_prefix(node.path)
    if node.is_written or (
        route.in_place and (old_prefix, before.keys) == (new_prefix, after.keys)
    ):
        return
    for key in route.target.list(new_prefix + after.keys.folder(after.grid.ndim)):
        coords = after.coords(key[len(new_prefix) :])
        if coords is not None and route.source.size(old_prefix + before.keys.key(coords)) is None:
            expected = "no object there: the array has none at these coordinates. Remove it"
            yield Problem("stored object", key, expected)


# --- what an interrupted migration has left -------------------------------------------------------


@dataclass(frozen=True)
class _Before(Wrapper):
    """A store with documents that have been replaced since as they were."""

    texts: Mapping[str, bytes]

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.texts[key] if key in self.texts else self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.store.get_ranges(requests)
        whole = {n for n, (key, wanted) in enumerate(requests) if key in self.texts}
        return [self.texts[requests[n][0]] if n in whole else v for n, v in enumerate(found)]

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.texts[key] if key in self.texts else self.store.borrow(key)


def as_before(store: Store) -> Store:
    """The store as it was before a migration has replaced documents in it."""
    text = store.get(ENTRY + BACKUP)
    return store if text is None else _Before(store, {ENTRY: bytes(text)})
