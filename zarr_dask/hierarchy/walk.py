"""Walking a hierarchy: the nodes below a path, level by level.

Each level takes one batch of requests for the metadata of all its nodes. Everything below the
groups is listed at once if that costs no more than listing a folder
(`zarr_dask.stores.listing.has_paged_listing`) or if `ReadOptions.walk_by_full_listing` is set.
Otherwise there is one listing per group: folders of arrays are then never listed, and the cost
depends on the groups only, not on the number of stored objects. With consolidated metadata there
are no requests.

A prefix without metadata but with nodes below is a group too: the final v3 had such groups before
2024, and other writers create them. Reading treats them as groups without attributes and warns;
writing creates the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from zarr_dask._util.warnings import warn
from zarr_dask.errors import (
    LinkError,
    ListingError,
    MetadataError,
    MissingGroupWarning,
    NodeNotFoundError,
    ValidationProblem,
)
from zarr_dask.formats.base import (
    DEFAULT_OPTIONS,
    Format,
    GroupMeta,
    NodeMeta,
    NodeReader,
    ReadOptions,
    ancestors,
    checked_documents,
    document_range,
    where,
)
from zarr_dask.formats.consolidated import Consolidated, with_consolidated
from zarr_dask.formats.detect import FORMATS, FoundNode, find_node, format_named, formats_at
from zarr_dask.stores.base import Range, Store, is_key, join
from zarr_dask.stores.listing import ListingCache, has_cheap_recursive_listing
from zarr_dask.stores.open import canonical_location, location_below

__all__ = [
    "NodeOrError",
    "consolidated_above",
    "read_as",
    "read_node_or_implicit_group",
    "walk",
    "walk_documents",
]

NodeOrError = NodeMeta | MetadataError
"""A node, or the error for its metadata."""

_Found = tuple[str, NodeOrError | None, dict[str, bytes]]
"""A path, its node if there is one, and its metadata by key."""
_KEYS_PER_BATCH = 1024
_BATCH_BYTES = 1 << 26
_START_BYTES = 1 << 20
"""Maximum bytes that are read of all documents of a batch together, and of each of them. Larger
ones are read one by one, unless their start holds zeros, as that of a file with holes does."""
_LISTINGS_AT_ONCE = 32
_MOST_BROKEN = 10_000
"""Maximum number of nodes with wrong metadata in a walk. A hierarchy may have thousands of arrays
with a codec that is not installed, and each of them should be reported. A malicious document can
name a hundred thousand, which would take minutes and gigabytes."""
_MOST_BARE = 1000
"""Prefixes without a document that are looked into, level by level, for nodes that would make a
group of the one above: a wrong path must not cost a walk through a whole disk or bucket."""
_MOST_LINKS = 10_000
"""Links of a walk that are followed at most: groups full of links to one another are not followed
along all of the ways that lead through them."""
_LIKE_CHUNK = re.compile(r"c?[0-9]*")


def walk(
    store: Store,
    path: str,
    node_format: NodeReader,
    options: ReadOptions,
    *,
    recursive: bool = True,
) -> dict[str, NodeOrError]:
    """Return the nodes below a group.

    Links to a group above are shown as groups, and not followed.

    Parameters
    ----------
    store, path, node_format
        The group.
    options
        Options for reading.
    recursive
        True to include the groups below.

    Returns
    -------
    dict
        Nodes by path below the group, parents before children, siblings by name.

    Raises
    ------
    StoreError
        If the store fails, or cannot list its keys.
    """
    levels = _levels(_listed(store, options) if recursive else store, path, node_format, options)
    nodes: dict[str, NodeOrError] = {}
    bare: list[str] = []
    for level in levels:
        nodes.update(level.nodes)
        if not recursive:
            bare = [p for p in level.bare if _holds_nodes(store, p, node_format, options)]
            break
    for missing in sorted({*_implied_above(path, nodes), *bare}):
        _warn_of_missing(store, missing)
        nodes[missing] = GroupMeta(implicit=True)
    start = len(path) + 1 if path else 0
    return {p[start:]: nodes[p] for p in sorted(nodes, key=_order)}


def consolidated_above(
    store: Store, path: str, node_format: Format, options: ReadOptions
) -> Consolidated | None:
    """Return the store with the consolidated metadata of a group above, if it cannot list its keys.

    This happens with read-only HTTP, where only the root of a hierarchy has consolidated metadata.
    """
    for above in ancestors(path) if options.consolidated else ():
        try:
            found = find_node(store, above, node_format.name, options, consolidated=True)
        except (NodeNotFoundError, MetadataError):
            continue
        known = with_consolidated(store, above, *found[:2], options, found[2])
        if isinstance(known, Consolidated):
            return known
    return None


def _implied_above(path: str, nodes: Mapping[str, object]) -> set[str]:
    """Return paths between a group and nodes below it that have no node."""
    implied: set[str] = set()
    for node in nodes:
        above = _parent(node)
        while len(above) > len(path) and above not in nodes and above not in implied:
            implied.add(above)
            above = _parent(above)
    return implied


def _order(path: str) -> str:
    """Return a sort key that orders paths as lists of names; no name contains a null byte."""
    return path.replace("/", "\0")


def walk_documents(
    store: Store, path: str, node_format: NodeReader, options: ReadOptions
) -> dict[str, bytes]:
    """Return the metadata of all nodes below a group, readable or not, by full key."""
    return {
        key: text
        for level in _levels(_listed(store, options), path, node_format, options, as_texts=True)
        for key, text in level.documents.items()
    }


def read_node_or_implicit_group(
    store: Store, path: str, format: str | None, options: ReadOptions, *, consolidated: bool = False
) -> FoundNode:
    """Read the node at a path, as `find_node`; a prefix with nodes below it is a group.

    Raises
    ------
    NodeNotFoundError
        If there is neither a node nor such a prefix, or a job is making a group there.
    MetadataError
        If the metadata are wrong.
    """
    try:
        return find_node(store, path, format, options, consolidated=consolidated)
    except NodeNotFoundError:
        from zarr_dask.journal import jobs_creating

        candidates = FORMATS if format is None else (format_named(format),)
        for candidate in _implied(store, path, candidates, options):
            if next(jobs_creating(store, path), None) is not None:
                raise  # a job has not come to the document of its group, which it puts last
            _warn_of_missing(store, path)
            return FoundNode(candidate, GroupMeta(implicit=True), {})
        raise


def read_as(store: Store, path: str, node_format: Format, options: ReadOptions) -> NodeMeta:
    """Read the node at a path in a hierarchy of a known format.

    Otherwise as `read_node_or_implicit_group`.
    """
    found = store.parsed(node_format.node_keys(path)) if isinstance(store, Consolidated) else None
    meta = node_format.read(store, path, options, found=found or {})
    if meta is not None:
        return meta
    for _ in _implied(store, path, [node_format], options):
        _warn_of_missing(store, path)
        return GroupMeta(implicit=True)
    keys = node_format.node_keys(path)
    hint = f"The hierarchy is one of format {node_format.name!r}."
    raise NodeNotFoundError(where(store, path), keys, hint)


def _implied(
    store: Store, path: str, candidates: Sequence[Format], options: ReadOptions
) -> Iterator[Format]:
    """Yield the formats of nodes that lie below a path."""
    candidates = [candidate for candidate in candidates if not candidate.has_implicit_groups]
    try:
        if not any(
            store.list_dir(p).prefixes for p in {p for c in candidates for p in c.prefixes(path)}
        ):
            return
    except ListingError:
        return  # the nodes below cannot be known
    for candidate in candidates:
        if _holds_nodes(store, path, candidate, options):
            yield candidate


def implicit_group_formats(
    store: Store, path: str, documented: Sequence[Format], known: Collection[str]
) -> list[Format]:
    """Return the formats of nodes below a path that has no metadata in these formats.

    Parameters
    ----------
    store, path
        Path to search below.
    documented
        Formats of the metadata at the path.
    known
        Prefixes that need not be searched.
    """
    names = {candidate.name for candidate in documented}
    candidates = [
        candidate
        for candidate in FORMATS
        if candidate.name not in names and not set(candidate.prefixes(path)) <= set(known)
    ]
    return list(_implied(store, path, candidates, DEFAULT_OPTIONS)) if candidates else []


def is_implied(store: Store, path: str) -> bool:
    """True if a path has no metadata, but nodes below it."""
    present = formats_at(store, path)
    if present:
        return all(isinstance(meta, GroupMeta) and meta.implicit for _, meta in present)
    return any(True for _ in _implied(store, path, FORMATS, DEFAULT_OPTIONS))


def _warn_of_missing(store: Store, path: str) -> None:
    warn(
        f"{where(store, path)} has no metadata document but nodes below it; it is taken as a group "
        "without attributes. create_group writes the document.",
        MissingGroupWarning,
    )


# --- level by level -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Level:
    """Nodes by their full path, their metadata by key, and prefixes without metadata."""

    nodes: dict[str, NodeOrError] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    bare: list[str] = field(default_factory=list)


def _levels(
    store: Store,
    path: str,
    node_format: NodeReader,
    options: ReadOptions,
    *,
    is_bare: bool = False,
    as_texts: bool = False,
) -> Iterator[_Level]:
    """The nodes below a path; their documents too where they are wanted as texts."""
    ways = _RealFolders(store, path)
    bare = {path} if is_bare else set()
    groups = [path]
    bearable = _UnreadableLimit(where(store, path))
    while groups:
        level = _Level()
        candidates = _children(store, groups, node_format)
        if isinstance(store, Consolidated) and not as_texts:
            found = _read_parsed(store, candidates, node_format, options)
        else:
            found = _read_texts(store, candidates, node_format, options)
        for candidate, node, documents in bearable.of(found):
            if node is not None:
                level.nodes[candidate] = node
                if as_texts:
                    level.documents.update(documents)
            elif not (_parent(candidate) in bare and _LIKE_CHUNK.fullmatch(_name(candidate))):
                level.bare.append(candidate)  # but no chunk folder of an array without metadata
        yield level
        bare = set() if node_format.has_implicit_groups else set(level.bare)
        below = (
            candidate
            for candidate in candidates
            if candidate in bare or isinstance(level.nodes.get(candidate), GroupMeta)
        )
        # consolidated metadata name every node that there is: no link among them leads further
        groups = [*below] if isinstance(store, Consolidated) else ways.followed(below)


class _RealFolders:
    """Real folders of the groups of one level of a walk, and of those above them."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path, self._links = store, path, 0
        place = canonical_location(store, path)
        self._known = {path: (place, frozenset({place}))}

    def followed(self, groups: Iterator[str]) -> list[str]:
        """Those of the groups below the last ones that are none of the groups above them.

        Raises
        ------
        LinkError
            If too many links would be followed.
        """
        found: dict[str, tuple[str, frozenset[str]]] = {}
        for group in groups:
            around, above = self._known[_parent(group)]
            place = location_below(self._store, group, around)
            if place in above:
                continue
            found[group] = place, above | {place}
            self._links += place != f"{around.rstrip('/')}/{_name(group)}"
            if self._links > _MOST_LINKS:
                raise LinkError(
                    f"{where(self._store, self._path)} has more than {_MOST_LINKS} ways through "
                    "links to groups. Remove links that lead to one another."
                )
        self._known = found
        return list(found)


class _UnreadableLimit:
    """Passes on the results of a walk, unless too many of them cannot be read."""

    def __init__(self, at: str) -> None:
        self._at, self._broken = at, 0

    def of(self, found: Iterator[_Found]) -> Iterator[_Found]:
        """Yield the results of one level; raise if there are too many broken ones."""
        for item in found:
            self._broken += isinstance(item[1], MetadataError)
            if self._broken > _MOST_BROKEN:
                said = f"more than {_MOST_BROKEN} nodes that cannot be read"
                raise MetadataError.of(self._at, [ValidationProblem("", said, "a hierarchy")])
            yield item


def _listed(store: Store, options: ReadOptions) -> Store:
    """Return the store, listed at once if that is cheap or requested, and not known already."""
    if isinstance(store, Consolidated):
        return store
    return (
        ListingCache(store)
        if options.walk_by_full_listing or has_cheap_recursive_listing(store)
        else store
    )


def _holds_nodes(store: Store, path: str, node_format: NodeReader, options: ReadOptions) -> bool:
    """True if nodes lie below a prefix without metadata, searched within limits."""
    seen = 0
    for level in _levels(store, path, node_format, options, is_bare=True):
        seen += len(level.bare)
        if level.nodes or seen > _MOST_BARE:
            return bool(level.nodes)
    return False


def _children(store: Store, groups: Sequence[str], node_format: NodeReader) -> list[str]:
    """Return the paths directly below some groups, by one listing for each."""
    if len(groups) == 1 or isinstance(store, ListingCache | Consolidated):  # no need for threads
        found = [node_format.child_names(store, group) for group in groups]
    else:
        with ThreadPoolExecutor(min(len(groups), _LISTINGS_AT_ONCE)) as threads:
            found = list(threads.map(lambda group: node_format.child_names(store, group), groups))
    are_keys = isinstance(store, Consolidated)  # which holds valid keys only
    return [
        join(group, name)
        for group, names in zip(groups, found, strict=True)
        for name in dict.fromkeys(  # a service may list one twice
            names if are_keys else _keys_of(store, group, names)
        )
    ]


def _keys_of(store: Store, group: str, names: Sequence[str]) -> list[str]:
    """Return the names that are valid keys; warn of others, which may be those of nodes."""
    keys = [name for name in names if is_key(name)]
    if len(keys) < len(names):
        others = [name for name in names if not is_key(name)]
        warn(
            f"{where(store, group)} holds {others[0]!r}, which is no name of a node (valid Unicode "
            "without backslashes): it is left out with all below it"
            + (f", as are {len(others) - 1} others. " if others[1:] else ". ")
            + "Rename it with the tools of the store."
        )
    return keys


def _read_parsed(
    store: Consolidated, paths: Sequence[str], node_format: NodeReader, options: ReadOptions
) -> Iterator[_Found]:
    """Yield the nodes at some paths, from metadata that are parsed already."""
    for path in paths:
        found = store.parsed(node_format.node_keys(path))
        if found is None:
            yield from _read_texts(store, [path], node_format, options)
            continue
        try:
            node: NodeOrError | None = node_format.read(store, path, options, found=found)
        except MetadataError as error:
            node = _without_frames(error)
        yield path, node, {}


def _read_texts(
    store: Store, paths: Sequence[str], node_format: NodeReader, options: ReadOptions
) -> Iterator[_Found]:
    """Yield the nodes at some paths and their metadata, fetched a batch at a time."""
    keys = {path: node_format.node_keys(path) for path in paths}
    part = document_range(options.limits)
    step = max(1, _KEYS_PER_BATCH // max((len(k) for k in keys.values()), default=1))
    for first in range(0, len(paths), step):
        batch = paths[first : first + step]
        asked = [key for path in batch for key in keys[path]]
        most = min(part.stop or 0, _START_BYTES, _BATCH_BYTES // max(len(asked), 1))
        start = Range(0, most)
        values = dict(zip(asked, store.get_ranges([(key, start) for key in asked]), strict=True))
        for path in batch:
            found: dict[str, bytes | None] = {}
            try:
                raw = {key: values.pop(key) for key in keys[path]}
                for key, value in raw.items():
                    is_large = value is not None and len(value) == most < (part.stop or 0)
                    if is_large and b"\0" not in bytes(value or b""):
                        (raw[key],) = store.get_ranges([(key, part)])
                found = checked_documents(store, raw, options.limits)
                node: NodeOrError | None = node_format.read(store, path, options, found=found)
            except MetadataError as error:
                node = _without_frames(error)
            yield path, node, {key: text for key, text in found.items() if text is not None}


def _without_frames(error: MetadataError) -> MetadataError:
    """Return an error without tracebacks, whose frames hold all that was fetched."""
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None:
            one.__traceback__ = None
            pending.append(one.__cause__ or one.__context__)
    return error


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
