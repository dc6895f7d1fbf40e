"""Listing of an OME-Zarr hierarchy on a store that cannot list keys, by its metadata.

Images name their levels, plates their wells, wells their images, collections of bioformats2raw
their series, and the group of label images the label images; consolidated metadata name every node.
The stored objects of an array are found by one request for each possible key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, TypeVar

from zarr_dask._util.threads import map_waiting
from zarr_dask.errors import ListingError, MetadataError, StoreKeyError, ValidationProblem
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    ancestors,
    normalise_path,
    prefix_of,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import recorded_documents
from zarr_dask.hierarchy.group import Group
from zarr_dask.ome.model import members_of
from zarr_dask.ome.validate_metadata import series_of
from zarr_dask.stores.base import Listing, Store, join
from zarr_dask.stores.capabilities import Capabilities
from zarr_dask.stores.listing import ListingTree, build_tree, list_from_tree
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["MetadataListingStore", "with_metadata_listing"]

_DEEPEST = 24
"""Maximum number of groups above a node: untrusted metadata could nest groups endlessly."""
_MOST_NODES = 1 << 20
_BATCH = 1024
"""Number of metadata keys or stored objects that are requested together."""
_XML = "METADATA.ome.xml"


@dataclass(frozen=True)
class MetadataListingStore(StoreWrapper):
    """A store that lists the nodes of one hierarchy, because their paths are known."""

    node_format: Format
    arrays: Mapping[str, ArrayMeta]
    """Metadata of arrays by their paths."""
    below: ListingTree
    """Names directly below each prefix, without stored objects."""
    _sizes: dict[str, list[tuple[str, int]]] = field(default_factory=dict, compare=False)
    """Stored objects found so far, by path of the array."""

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`; does not include stored objects."""
        return list_from_tree(self.below, prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`; stored objects only."""
        return (key for key, _ in self.list_sizes(prefix))

    @property
    def capabilities(self) -> Capabilities:
        """As of every wrapper, and sizes, which it finds out itself."""
        return replace(super().capabilities, list_sizes=True)

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`; stored objects only."""
        for path, meta in self.arrays.items():
            data = self.node_format.data_prefix(path)
            if not (data.startswith(prefix) or prefix.startswith(data)):
                continue
            if path not in self._sizes:
                self._sizes[path] = list(_stored(self.store, data, meta))
            yield from (one for one in self._sizes[path] if one[0].startswith(prefix))


def _stored(store: Store, prefix: str, meta: ArrayMeta) -> Iterator[tuple[str, int]]:
    """Yield the stored objects of an array, with one request for each possible key."""
    every = product(*map(range, meta.grid.counts))
    for batch in _batches(prefix + meta.chunk_key_encoding.key(coords) for coords in every):
        sizes = map_waiting(store.size, batch)
        for key, size in zip(batch, sizes, strict=True):
            if size is not None:
                yield key, size


T = TypeVar("T")


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def with_metadata_listing(
    store: Store, path: str, node_format: Format, version: str, options: ReadOptions
) -> Store:
    """Return the store if it can list keys; otherwise one that lists the nodes named in metadata.

    Raises
    ------
    MetadataError
        If more nodes are named than is plausible.
    """
    if _lists(store, path):
        return store
    nodes = _nodes(store, path, node_format, version, options)
    keys = [key for node in nodes for key in node_format.node_keys(node)]
    xml = join(path, f"OME/{_XML}")
    if store.size(xml) is not None:
        keys.append(xml)
    arrays = {p: meta for p, meta in nodes.items() if isinstance(meta, ArrayMeta)}
    return MetadataListingStore(store, node_format, arrays, build_tree(keys))


def _lists(store: Store, path: str) -> bool:
    """True if listing works; some servers return empty listings, whatever they hold."""
    try:
        return bool(store.list_dir(prefix_of(path)).prefixes)
    except ListingError:
        return False


def _nodes(
    store: Store, path: str, node_format: Format, version: str, options: ReadOptions
) -> dict[str, NodeMeta]:
    """Return all existing nodes that metadata name, by path."""
    found: dict[str, NodeMeta] = {}
    wanted = {path, *_recorded(store, path, node_format, options)}
    asked: set[str] = set()
    for _ in range(_DEEPEST):
        new = sorted(wanted - asked)
        if not new:
            break
        if len(asked) + len(new) > _MOST_NODES:
            problem = ValidationProblem("", f"more than {_MOST_NODES} nodes", "a hierarchy")
            raise MetadataError(where(store, path), [problem])
        asked |= wanted
        for node, meta in _read(store, new, node_format, options):
            found[node] = meta
            if isinstance(meta, GroupMeta):
                group = Group(store, node, meta, node_format, options)
                wanted.update(_named_by(group, version))
    return found


def _recorded(store: Store, path: str, node_format: Format, options: ReadOptions) -> Iterator[str]:
    """Yield paths of the nodes in the consolidated metadata of a group, if they can be used."""
    root = node_format.read(store, path, options, found={})
    if not isinstance(root, GroupMeta):
        return
    try:
        documents = recorded_documents(store, path, node_format, root, options.limits)
    except MetadataError:
        return
    for key in documents or ():
        yield key.rpartition("/")[0]


def _read(
    store: Store, paths: Sequence[str], node_format: Format, options: ReadOptions
) -> Iterator[tuple[str, NodeMeta]]:
    """Yield the existing nodes; those that cannot be read are yielded as empty groups."""
    for batch in _batches(paths):
        keys = {path: node_format.node_keys(path) for path in batch}
        every = [key for of_one in keys.values() for key in of_one]
        texts = read_documents(store, every, options.limits)
        for path, own in keys.items():
            try:
                meta = node_format.read(store, path, options, found={k: texts[k] for k in own})
            except MetadataError:
                meta = GroupMeta(implicit=True)
            if meta is not None:
                yield path, meta


def _named_by(group: Group, version: str) -> Iterator[str]:
    """Yield paths that the metadata of a group name, and those of the groups in between."""
    for below in _below(group, members_of(group.meta.attributes, version)):
        try:
            named = join(group.path, normalise_path(below))
        except StoreKeyError:
            continue  # readers reject paths that leave the hierarchy
        yield named
        yield from (above for above in ancestors(named) if len(above) > len(group.path))


def _below(group: Group, members: Any) -> Iterator[str]:
    """Yield paths below a group that its OME-Zarr metadata name."""
    if not isinstance(members, Mapping):
        return
    for image in _objects(members.get("multiscales")):
        yield "labels"
        yield from _texts(one.get("path") for one in _objects(image.get("datasets")))
    yield from _texts(_listed(members.get("labels")))
    for member, name in (("plate", "wells"), ("well", "images")):
        owner = members.get(member)
        if isinstance(owner, Mapping):
            yield from _texts(one.get("path") for one in _objects(owner.get(name)))
    if "bioformats2raw.layout" in members:
        yield "OME"
        yield from series_of(group)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _listed(value) if isinstance(one, Mapping)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (one for one in values if isinstance(one, str))
