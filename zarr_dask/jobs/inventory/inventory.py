"""Survey of a store: every node of every format, its size, and the requirements for reading it.

For people who must keep data readable. Nothing that is found stops a survey. A node that cannot be
read is listed with its problems. A node that needs an option of `ReadOptions` or an optional
package is listed with the name of that option or package. Stored objects that belong to no array
are counted.

`Inventory.to_json` is stable: members are added, never renamed or removed, as long as
``"inventory_version"`` is 1. See there.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from zarr_dask._util.display import InWords
from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.codecs.base import Codec, Serializer
from zarr_dask.dtypes import is_small, leaves
from zarr_dask.errors import MetadataError, MissingDependencyError, ValidationProblem
from zarr_dask.formats.base import (
    ArrayMeta,
    FetchedDocuments,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    ancestors,
    check_listed,
    child_prefixes,
    prefix_of,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import consolidated_key
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.v3draft import draft_at
from zarr_dask.hierarchy.edit import stale_paths
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.hierarchy.walk import walk
from zarr_dask.jobs.engine.plan import LISTED, format_bytes, more_line, pluralize
from zarr_dask.stores.base import Buffer, Range, Store, is_remote, join, list_sizes
from zarr_dask.stores.open import Location, canonical_location, substore
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["Inventory", "NodeInventory", "inventory"]


@dataclass(frozen=True)
class NodeInventory:
    """A node, or an unreadable entry that looks like one."""

    path: str
    """Path below the root of the survey."""
    kind: str
    """``"array"``, ``"group"``, or ``"unreadable"``."""
    format: str | None
    """Name of the format; None if it is unknown."""
    shape: tuple[int, ...] | None = None
    chunks: tuple[int, ...] | None = None
    """Shape of the unit of decoding."""
    write_chunks: tuple[int, ...] | None = None
    """Shape of one stored object (the largest, if they differ)."""
    data_type: str | None = None
    codecs: tuple[str, ...] = ()
    """Names in the order of encoding, those inside shards after the shard's own."""
    objects: int = 0
    """Stored objects that exist."""
    expected_objects: int = 0
    """Stored objects that the array would have if all of them existed."""
    stored_bytes: int = 0
    """Total size of the stored objects that exist."""
    decoded_bytes: int | None = None
    """Size of the whole array in memory; None if elements have no fixed size."""
    stray_objects: int = 0
    """Objects under keys of chunks that lie outside the array."""
    needs: tuple[str, ...] = ()
    """Options and packages without which it cannot be read correctly."""
    warnings: tuple[str, ...] = ()
    """Oddities of the node."""
    problems: tuple[str, ...] = ()
    """Reasons why it cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON values; every member is always present."""
        return {
            "path": self.path,
            "kind": self.kind,
            "format": self.format,
            "shape": None if self.shape is None else list(self.shape),
            "chunks": None if self.chunks is None else list(self.chunks),
            "write_chunks": None if self.write_chunks is None else list(self.write_chunks),
            "data_type": self.data_type,
            "codecs": list(self.codecs),
            "objects": self.objects,
            "expected_objects": self.expected_objects,
            "stored_bytes": self.stored_bytes,
            "decoded_bytes": self.decoded_bytes,
            "stray_objects": self.stray_objects,
            "needs": list(self.needs),
            "warnings": list(self.warnings),
            "problems": list(self.problems),
        }


@dataclass(frozen=True, repr=False)
class Inventory(InWords):
    """Everything below a location; made by `inventory`."""

    where: str
    """Store and path."""
    nodes: tuple[NodeInventory, ...]
    """By path, parents before children."""
    other_objects: int = 0
    """Stored objects below the root that are neither chunks of an array nor metadata."""
    other_bytes: int = 0

    @property
    def arrays(self) -> tuple[NodeInventory, ...]:
        """The arrays that can be read."""
        return tuple(node for node in self.nodes if node.kind == "array")

    @property
    def unreadable(self) -> tuple[NodeInventory, ...]:
        """The nodes that cannot be read."""
        return tuple(node for node in self.nodes if node.kind == "unreadable")

    def __str__(self) -> str:
        totals: dict[str, int] = self.to_json()["totals"]
        lines = [
            f"inventory of {self.where}: {pluralize(len(self.arrays), 'array')}, "
            f"{pluralize(totals['groups'], 'group')}, "
            f"{pluralize(totals['objects'], 'stored object')} "
            f"({format_bytes(totals['stored_bytes'])})"
        ]
        for node in self.nodes[:LISTED]:
            facts = "group" if node.kind == "group" else "; ".join(node.problems)
            if node.shape is not None:
                facts = (
                    f"{node.shape} {node.data_type}, chunks {node.chunks}, {node.objects:,} of "
                    f"{node.expected_objects:,} objects, {format_bytes(node.stored_bytes)}"
                )
            lines.append(f"  {node.path or '/'}  {node.format or 'unreadable'}  {facts}")
        return "\n".join([*lines, *more_line(len(self.nodes), "node")])

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON values.

        Returns
        -------
        dict
            ``inventory_version`` (1), ``where``, ``nodes`` (a list with the members of
            `NodeInventory` for each node), ``totals`` with ``arrays``, ``groups``, ``unreadable``,
            ``objects``, ``stored_bytes``, ``decoded_bytes``, ``other_objects`` and ``other_bytes``.
        """
        return {
            "inventory_version": 1,
            "where": self.where,
            "nodes": [node.to_json() for node in self.nodes],
            "totals": {
                "arrays": len(self.arrays),
                "groups": sum(node.kind == "group" for node in self.nodes),
                "unreadable": len(self.unreadable),
                "objects": sum(node.objects for node in self.nodes),
                "stored_bytes": sum(node.stored_bytes for node in self.nodes),
                "decoded_bytes": sum(node.decoded_bytes or 0 for node in self.nodes),
                "other_objects": self.other_objects,
                "other_bytes": self.other_bytes,
            },
        }


@in_job()
@takes_habits(component="path")
def inventory(
    url: Location | Array | Group,
    path: str = "",
    *,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Inventory:
    """Survey everything below a location; no chunk is read.

    One listing finds all stored objects and their sizes. Before it, groups and folders that hold
    them are listed one by one; folders of arrays are not. Metadata is read in batches.

    Parameters
    ----------
    url
        A path, a URL, a store or a mapping; it may hold several hierarchies.
    path
        Path below it.
    storage_options
        Options of the store.
    read
        Options for reading; ``needs`` of a node lists what it needs besides.

    Raises
    ------
    StoreError
        If the store fails, or cannot list.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = {}
    >>> zd.create_array(store, "a/b", shape=(4,), dtype="i2", chunks=2)[:2] = 1
    >>> found = zd.inventory(store)
    >>> [(node.path, node.format, node.objects, node.expected_objects) for node in found.arrays]
    [('a/b', 'v3', 1, 2)]
    """
    store, path = resolve_node(url, path, storage_options)
    options = ReadOptions.given(read)
    if not is_remote(store):
        nodes, others = _with_sizes(store, path, _find(store, path, options), options)
    else:
        found = _find(_NewestFirst(store), path, options)
        nodes, others = _with_sizes(store, path, found, options)
    return Inventory(where(store, path), nodes, others.objects, others.nbytes)


# --- finding nodes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NewestFirst(StoreWrapper):
    """A store that is asked for documents of other formats only where the newest has none.

    A node has documents of one format but in rare cases, which the listing shows afterwards.
    """

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        newest, *_ = FORMATS
        folders = [key.rpartition("/")[0] for key, _ in requests]
        first = {key for folder in {*folders} for key in newest.node_keys(folder)}
        asked = [one for one in requests if one[0] in first]
        found = dict(zip(asked, self.store.get_ranges(asked), strict=True))
        settled = {key.rpartition("/")[0] for (key, _), value in found.items() if value is not None}
        rest = [
            one
            for one, folder in zip(requests, folders, strict=True)
            if one not in found and folder not in settled
        ]
        found |= dict(zip(rest, self.store.get_ranges(rest), strict=True))
        return [found.get(one) for one in requests]


@dataclass
class _NodeFindings:
    """Findings made while nodes were read, by path."""

    formats: dict[str, Format] = field(default_factory=dict)
    needs: dict[str, list[str]] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)

    def need(self, path: str, what: str) -> None:
        self.needs.setdefault(path, []).append(what)


_LENIENT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ReadOptions(allow_pickle=True): its objects are pickled", {"allow_pickle": True}),
    (
        "ReadOptions(fallback_dtypes=True): its data type is unknown, but names another one",
        {"fallback_dtypes": True},
    ),
)
"""Options that make some nodes readable."""


@dataclass(frozen=True)
class _AnyFormat:
    """Nodes of any of several formats."""

    formats: tuple[Format, ...]
    """One format, or several whose metadata lies in the same folders."""
    seen: _NodeFindings

    @property
    def has_implicit_groups(self) -> bool:
        """See `Format.has_implicit_groups`."""
        return len(self.formats) == 1 and self.formats[0].has_implicit_groups

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        return tuple(dict.fromkeys(key for one in self.formats for key in one.node_keys(path)))

    def child_names(self, store: Store, path: str) -> list[str]:
        """See `Format.child_names`."""
        if len(self.formats) == 1:
            return self.formats[0].child_names(store, path)
        names = child_prefixes(store, prefix_of(path), self.node_keys(path))
        return [name for name in names if any(one.is_node_name(name) for one in self.formats)]

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: FetchedDocuments
    ) -> NodeMeta | None:
        """See `Format.read`."""
        present: list[str] = []
        chosen: NodeMeta | MetadataError | None = None
        for one in self.formats:
            own = {key: found[key] for key in one.node_keys(path)}
            meta = self._read_as(one, store, path, options, own)
            if meta is not None:
                present.append(one.name)
                if chosen is None:
                    chosen = meta
                    self.seen.formats[path] = one
        if len(present) > 1:
            self._warn(path, f"documents of {' and '.join(present)}; {present[0]} is used")
        if isinstance(chosen, MetadataError):
            raise chosen
        return chosen

    def _read_as(
        self,
        one: Format,
        store: Store,
        path: str,
        options: ReadOptions,
        found: FetchedDocuments,
    ) -> NodeMeta | MetadataError | None:
        """Return the node of one format, if need be read with options that make it readable."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return one.read(store, path, options, found=found)
            except MissingDependencyError as error:
                self.seen.need(path, str(error))
                problem = ValidationProblem("package", "not installed", str(error))
                return MetadataError(where(store, path), [problem])
            except MetadataError as error:
                return self._leniently(one, store, path, options, found) or error
            finally:
                for warning in caught:
                    self._warn(path, str(warning.message))

    def _leniently(
        self,
        one: Format,
        store: Store,
        path: str,
        options: ReadOptions,
        found: FetchedDocuments,
    ) -> NodeMeta | None:
        for words, more in _LENIENT:
            try:
                meta = one.read(store, path, replace(options, **more), found=found)
            except (MetadataError, MissingDependencyError):
                continue
            self.seen.need(path, words)
            return meta
        return None

    def _warn(self, path: str, message: str) -> None:
        known = self.seen.warnings.setdefault(path, [])
        if message not in known:
            known.append(message)


@dataclass
class _ObjectTotals:
    """Objects and their bytes."""

    objects: int = 0
    nbytes: int = 0

    def add(self, nbytes: int) -> None:
        self.objects += 1
        self.nbytes += nbytes


@dataclass
class _Node:
    """A node, and its objects in the listing."""

    survey: NodeInventory
    meta: NodeMeta | None
    node_format: Format | None
    root: str
    """Path of the root of its hierarchy if that matters, else empty."""
    path: str
    """Path below that root."""
    tally: _ObjectTotals = field(default_factory=_ObjectTotals)
    strays: int = 0
    nested: int = 0
    """Objects that would be chunks if their keys used the other separator."""

    def count(self, key: str, nbytes: int) -> bool:
        """Count a stored object below the prefix of an array; False if it is not the array's."""
        meta = self.meta
        if not isinstance(meta, ArrayMeta):
            return False
        coords = meta.chunk_key_encoding.coords(key, meta.grid.ndim)
        if coords is None:
            other = meta.chunk_key_encoding.ambiguous_separator
            if other is None or other.coords(key, meta.grid.ndim) is None:
                return False
            self.nested += 1
        elif meta.grid.has_cell(coords):
            self.tally.add(nbytes)
        else:
            self.strays += 1
        return True


def _find(store: Store, path: str, options: ReadOptions) -> list[_Node]:
    """Return all nodes at and below a path, also in folders that are not nodes."""
    seen = _NodeFindings()
    formats = _AnyFormat(FORMATS, seen)
    options = replace(options, consolidated=False)
    nodes: dict[str, NodeMeta | MetadataError] = {}
    folders = [path]
    while folders:
        found = _read_all(store, folders, formats, options)
        nodes |= found
        for root in [p for p, meta in found.items() if isinstance(meta, GroupMeta)]:
            nodes |= _below(store, root, formats, options)
        listed = (
            below.removesuffix("/")
            for folder in folders
            if folder not in found
            for below in store.list_dir(prefix_of(folder)).prefixes
        )
        folders = [one for one in listed if not _is_circle(store, one)]
    found_nodes = [
        node
        for one, meta in nodes.items()
        if not (isinstance(meta, GroupMeta) and meta.implicit)  # a folder, not a node
        for node in _drafts(store, one, meta, options) or [_node("", one, meta, seen)]
    ]
    return sorted(found_nodes, key=lambda node: node.survey.path.split("/"))


def _is_circle(store: Store, path: str) -> bool:
    """True if a folder is a link to a folder that contains it."""
    place = canonical_location(store, path)
    return any(canonical_location(store, above) == place for above in ancestors(path))


def _drafts(
    store: Store, path: str, meta: NodeMeta | MetadataError, options: ReadOptions
) -> list[_Node]:
    """Return the nodes of a hierarchy of the v3 draft, whose entry point is not a node."""
    if not isinstance(meta, MetadataError):
        return []
    below = substore(store, path) if path else store
    try:
        draft = draft_at(below, options)
    except MetadataError:
        return []
    if draft is None:
        return []
    seen = _NodeFindings()
    formats = _AnyFormat((draft,), seen)
    nodes = _read_all(below, [""], formats, options)
    if isinstance(nodes.get(""), GroupMeta):
        nodes |= _below(below, "", formats, options)
    return [_node(path, one, found, seen) for one, found in nodes.items()]


def _read_all(
    store: Store, paths: Sequence[str], formats: _AnyFormat, options: ReadOptions
) -> dict[str, NodeMeta | MetadataError]:
    """Return the nodes at some paths, read by one batch of requests."""
    keys = {path: formats.node_keys(path) for path in paths}
    documents = read_documents(store, [key for own in keys.values() for key in own], options.limits)
    nodes: dict[str, NodeMeta | MetadataError] = {}
    for path, own in keys.items():
        try:
            meta = formats.read(store, path, options, found={key: documents[key] for key in own})
        except MetadataError as error:
            nodes[path] = error
            continue
        if meta is not None:
            nodes[path] = meta
    return nodes


def _below(
    store: Store, path: str, formats: _AnyFormat, options: ReadOptions
) -> dict[str, NodeMeta | MetadataError]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # implicit groups are not nodes of their own
        below = walk(store, path, formats, options)
    return {join(path, name): meta for name, meta in below.items()}


def _node(root: str, path: str, meta: NodeMeta | MetadataError, seen: _NodeFindings) -> _Node:
    """Return a node by its path below the root of its hierarchy."""
    node_format = seen.formats.get(path)
    found = NodeInventory(
        path=join(root, path),
        kind="group",
        format=None if node_format is None else node_format.name,
        needs=tuple(seen.needs.get(path, ())),
        warnings=tuple(seen.warnings.get(path, ())),
    )
    if isinstance(meta, MetadataError):
        problems = tuple(map(str, meta.problems))
        found = replace(found, kind="unreadable", problems=problems)
    elif isinstance(meta, ArrayMeta):
        found = _of_array(found, meta)
    known = None if isinstance(meta, MetadataError) else meta
    return _Node(found, known, node_format, root, path)


def _of_array(found: NodeInventory, meta: ArrayMeta) -> NodeInventory:
    return replace(
        found,
        kind="array",
        shape=meta.shape,
        chunks=meta.chunk_shape,
        write_chunks=meta.grid.largest_cell,
        data_type=meta.data_type.label,
        codecs=tuple(_codec_names(meta.codecs.codecs)),
        expected_objects=meta.grid.ncells,
        decoded_bytes=None
        if meta.data_type.variable
        else prod(meta.shape) * meta.data_type.itemsize,
        needs=(*found.needs, *_packages(meta)),
    )


def _codec_names(codecs: tuple[Codec, ...]) -> Iterator[str]:
    for codec in codecs:
        name = codec.configuration().get("id", codec.name)
        yield str(name)
        if isinstance(codec, Serializer) and codec.inner_codecs:
            yield from _codec_names(codec.inner_codecs)


_PACKAGES: Mapping[str, str] = {
    "zfp": "zarr-dask[zfp]: codec zfp",
    "numcodecs.zfpy": "zarr-dask[zfp]: codec numcodecs.zfpy",
    "numcodecs.pcodec": "zarr-dask[pcodec]: codec numcodecs.pcodec",
}
"""Optional packages that codecs need."""


def _packages(meta: ArrayMeta) -> Iterator[str]:
    if any(is_small(part) for _, part in leaves(meta.dtype)):
        yield f"zarr-dask[ml]: data type {meta.data_type.name}"
    for name in dict.fromkeys(_codec_names(meta.codecs.codecs)):
        if name in _PACKAGES:
            yield _PACKAGES[name]


# --- sizes from the listing -----------------------------------------------------------------------


def _with_sizes(
    store: Store, path: str, nodes: Sequence[_Node], options: ReadOptions
) -> tuple[tuple[NodeInventory, ...], _ObjectTotals]:
    """Return the nodes with their stored objects, and the objects of no node, from one listing."""
    arrays = {
        prefix_of(node.root) + node.node_format.data_prefix(node.path): node
        for node in nodes
        if isinstance(node.meta, ArrayMeta) and node.node_format is not None
    }
    documents = {key for node in nodes for key in _document_keys(node)}
    others = _ObjectTotals()
    seen: set[str] = set()
    listed = False
    for key, nbytes in list_sizes(store, prefix_of(path)):
        listed = True
        if key in documents:
            seen.add(key)
            continue
        prefix = _prefix_in(key, arrays)
        node = None if prefix is None else arrays[prefix]
        if node is None or not node.count(key[len(prefix or "") :], nbytes):
            others.add(nbytes)
    if not listed:
        check_listed(store, prefix_of(path), sorted(documents))
    start = len(path) + 1 if path else 0
    mixed = _mixed(store, nodes, seen, options)
    surveys = (_counted(store, mixed.get(node.path, node), seen) for node in nodes)
    return tuple(replace(one, path=one.path[start:]) for one in surveys), others


def _mixed(
    store: Store, nodes: Sequence[_Node], seen: Collection[str], options: ReadOptions
) -> dict[str, _Node]:
    """Return the nodes with documents of several formats, read once more with all of these.

    Only of remote stores: of others all have been read.
    """
    newest, *others = FORMATS
    paths = [
        node.path
        for node in nodes
        if node.node_format == newest
        and any(key in seen for one in others for key in one.node_keys(node.path))
    ]
    found = _NodeFindings()
    if not paths or not is_remote(store):
        return {}
    _read_all(store, paths, _AnyFormat(FORMATS, found), options)
    return {
        node.path: replace(
            node,
            survey=replace(node.survey, warnings=tuple(found.warnings[node.path])),
        )
        for node in nodes
        if node.path in found.warnings
    }


def _document_keys(node: _Node) -> Iterator[str]:
    formats = FORMATS if node.node_format in (None, *FORMATS) else (node.node_format,)
    for one in formats:
        if one is not None:
            others = (*one.root_documents(), consolidated_key(node.path, one))
            for key in (*one.node_keys(node.path), *others):
                if key is not None:
                    yield prefix_of(node.root) + key


def _prefix_in(key: str, prefixes: Mapping[str, object]) -> str | None:
    """Return the longest of some prefixes that a key has; None if it has none of them."""
    end = key.rfind("/") + 1
    while end:
        if key[:end] in prefixes:
            return key[:end]
        end = key.rfind("/", 0, end - 1) + 1
    return "" if "" in prefixes else None


def _counted(store: Store, node: _Node, seen: Collection[str]) -> NodeInventory:
    found = replace(
        node.survey,
        objects=node.tally.objects,
        stored_bytes=node.tally.nbytes,
        stray_objects=node.strays,
    )
    if node.nested and not node.tally.objects:
        words = (
            "ReadOptions(dimension_separator=...): all chunks have keys with the other separator"
        )
        found = replace(found, needs=(*found.needs, words))
    stale = _stale(store, node, seen)
    if stale:
        names = ", ".join(one or "/" for one in stale[:_SHOWN])
        more = f" and {len(stale) - _SHOWN} more" if len(stale) > _SHOWN else ""
        words = f"consolidated metadata are out of date for {names}{more}"
        found = replace(found, warnings=(*found.warnings, words))
    return found


_SHOWN = 5
"""Maximum number of paths to name."""


def _stale(store: Store, node: _Node, seen: Collection[str]) -> list[str]:
    """Return the paths for which a group's consolidated metadata is out of date."""
    if not isinstance(node.meta, GroupMeta) or node.node_format is None:
        return []
    path = node.path
    key = consolidated_key(path, node.node_format)
    if key not in seen and not node.meta.extra:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return stale_paths(store, path, node.node_format, node.meta)
        except MetadataError as error:
            return [f"everything ({error})"]
