"""Locations of nodes: the store and the path, what lies around them, and requests for both.

All functions with a location accept the same values: everything that `open_store` accepts, and open
nodes of this package and of zarr-python, whose path is the start of the resulting path.

Checks before a write find, for local files, problems that no request to the store itself can show:
a file in place of a folder, or an array that contains the root of the store. All other checks use
the store alone (`zarr_dask.hierarchy.edit.check_can_create`).

If requests cost nothing, checks send them one by one. For remote stores everything is requested at
once, in one round trip, and passed on as a `PrefetchedLocation`. The checks are the same, in the
same order.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from zarr_dask._util.threads import run_concurrently
from zarr_dask.errors import StoreError
from zarr_dask.formats.base import (
    DEFAULT_OPTIONS,
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    ancestors,
    check_listed,
    document_range,
    normalise_path,
    prefix_of,
)
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.formats.detect import DEFAULT_FORMAT, FORMATS, formats_at, nodes_around
from zarr_dask.formats.documents import read_documents
from zarr_dask.formats.v3draft_entry import ENTRY, may_be_entry
from zarr_dask.stores.base import Range, Store, is_remote, join
from zarr_dask.stores.listing import has_paged_listing
from zarr_dask.stores.open import (
    Location,
    folder_store,
    local_path,
    open_store,
    split_zarr_python_node,
    substore,
    without_folder,
)

__all__ = [
    "Node",
    "PrefetchedLocation",
    "enclosing_array",
    "find_free_location",
    "find_replaced_location",
    "format_of_group_around",
    "has_no_folder",
    "is_still_free",
    "options_of_both",
    "parent_format",
    "prefetch_array",
    "prefetch_location",
    "resolve_node",
    "resolve_store",
    "source_and_target",
]


@runtime_checkable
class Node(Protocol):
    """Interface of an open array or group as a location."""

    @property
    def store(self) -> Store:
        """Store that holds the node."""

    @property
    def path(self) -> str:
        """Path below the root of the store."""

    @property
    def node_format(self) -> Format:
        """Format in which the metadata are written."""


def resolve_node(
    url: Location | Node, path: str = "", storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, str]:
    """Return the store that a location refers to, and the path in it.

    Consolidated metadata of a node's store are left out: they may be out of date, and changes must
    be based on the present metadata.

    Parameters
    ----------
    url
        A path, a URL, a store, a mapping, or an open node.
    path
        Path below it.
    storage_options
        Options of the store.

    Raises
    ------
    StoreError
        If the location refers to no store, or an option is unknown.
    StoreKeyError
        If the path is not valid.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> store, path = resolve_node(zd.create_group(values, "a"), "b")
    >>> store.url == zd.open(values).store.url, path
    (True, 'a/b')
    """
    below = normalise_path(path)
    if not isinstance(url, str | os.PathLike) and isinstance(url, Node):  # the quick check first
        store = open_store(without_consolidated(url.store), storage_options)
        return store, join(url.path, below)
    place, below = split_zarr_python_node(url, below)
    store = open_store(place, storage_options)
    return store, without_folder(store, below)


def resolve_store(url: Location | Node, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return the store that a location refers to; a given node becomes its root.

    It is used if two locations share one path below them.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = resolve_store(zd.create_group({}, "a"))
    >>> list(store.list(""))
    ['zarr.json']
    """
    store, path = resolve_node(url, "", storage_options)
    return substore(store, path) if path else store


def options_of_both(
    source: Any,
    storage_options: Mapping[str, Any] | None,
    target_options: Mapping[str, Any] | None,
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return the options of the stores of source and target.

    A source that is open, or values, takes none: `storage_options` are the target's then, unless
    there are `target_options`.

    Examples
    --------
    >>> options_of_both("s3://a", {"anon": True}, None)
    ({'anon': True}, None)
    >>> options_of_both({}, {"anon": True}, None)
    (None, {'anon': True})
    """
    if target_options is None and not isinstance(source, str | os.PathLike):
        return None, storage_options
    return storage_options, target_options


def source_and_target(
    src: Location | Node,
    dst: Location | Node | None,
    path: str,
    storage_options: Mapping[str, Any] | None,
    target_options: Mapping[str, Any] | None,
) -> tuple[Store, Store, str]:
    """Return the stores of two locations, and the path in both; the same store without `dst`."""
    if dst is None:
        source, path = resolve_node(src, path, storage_options)
        return source, source, path
    of_source, of_target = options_of_both(src, storage_options, target_options)
    return resolve_store(src, of_source), resolve_store(dst, of_target), normalise_path(path)


def parent_format(store: Store, path: str) -> str:
    """Return the default format of a new node: that of the surrounding group, if there is one."""
    return format_of_group_around(store, path) or DEFAULT_FORMAT.name


def format_of_group_around(store: Store, path: str) -> str | None:
    """Return the name of the format of the group around a new node; None if there is no group.

    A group shows only nodes of its own format. The groups of the store are searched; if a local
    store begins below another group, that one counts as well.
    """
    from zarr_dask.stores.real_location import folders_around

    for above in reversed(ancestors(path)):
        found = _groups(formats_at(store, above))
        if found:
            return found[0].name
    place = local_path(store, "")
    around = next(filter(os.path.lexists, folders_around(place)), None) if place else None
    if around is None:
        return None
    try:
        present = _groups(nodes_around(folder_store(around)))
    except StoreError:
        return None  # a folder that cannot be read counts as no group
    return next((one.name for one in present if one in FORMATS), None)


def _groups(found: Iterable[tuple[Format, NodeMeta | None]]) -> list[Format]:
    """Return the formats of the groups among nodes."""
    return [one for one, meta in found if not isinstance(meta, ArrayMeta)]


def enclosing_array(store: Store) -> str | None:
    """Return the array that contains the root of a local store; None if there is none.

    Folders above are searched as long as they hold nodes, or do not exist yet.
    """
    from zarr_dask.stores.real_location import folders_around

    place = local_path(store, "")
    for above in () if place is None else folders_around(place):
        if not os.path.lexists(above):
            continue
        try:
            found = [meta for _, meta in nodes_around(folder_store(above))]
        except StoreError:
            return None  # a folder that cannot be read counts as no array
        if any(isinstance(meta, ArrayMeta) for meta in found):
            return above
        if not found:
            return None
    return None


@dataclass(frozen=True)
class PrefetchedLocation:
    """A location where a node is to be created or written, as it was when it was inspected."""

    store: Store
    """The store, with its prefetched responses if there are any."""
    free_beside: bool = False
    """True if it is known that there is no journal and no open output beside the hierarchy."""


def prefetch_location(
    store: Store, path: str, *, below: bool = True, own: Collection[str] = ()
) -> PrefetchedLocation:
    """Prefetch the checks of a location, if that saves time.

    Parameters
    ----------
    store, path
        Location of the new node.
    below
        True if it matters what lies below the location. If finding out would take a walk through
        all of it, it is left to the checks, which need it only if there are no metadata.
    own
        The keys of the caller's claims beside the hierarchy, if there are any.

    Raises
    ------
    StoreError
        If nothing is listed where metadata are.
    """
    from zarr_dask.journal import no_open_journals
    from zarr_dask.stores.wrappers.prefetched import prefetching

    if not is_remote(store):
        return PrefetchedLocation(store)
    asked = prefetching(store)
    entry = (ENTRY, document_range(DEFAULT_OPTIONS.limits))
    documents = list(dict.fromkeys([*_documents_of(path), *_documents_above(path), entry]))
    prefixes: set[str] = set()
    if below and has_paged_listing(store):
        prefixes.update(prefix for candidate in FORMATS for prefix in candidate.prefixes(path))
    free_beside, *_ = run_concurrently(
        partial(no_open_journals, store, path, own),
        partial(asked.ask, documents),
        *(partial(asked.ask_below, prefix) for prefix in prefixes),
    )
    _check_emptiness(store, asked.denied())
    return PrefetchedLocation(asked, free_beside)


def find_free_location(store: Store, path: str, node_format: Format) -> PrefetchedLocation | None:
    """Return the location of a new hierarchy, if one listing tells that nothing is stored there.

    It answers the checks of all nodes below. None if something is there, or if requests cost
    nothing.

    Raises
    ------
    StoreError
        If nothing is listed where a group of the format is, which would be written over.
    """
    from zarr_dask.journal import no_open_journals
    from zarr_dask.stores.wrappers.prefetched import prefetching

    if not (is_remote(store) and has_paged_listing(store)):
        return None
    asked = prefetching(store)
    shown = [*node_format.documents(GroupMeta(), path)][-1]
    documents = [(shown, document_range(DEFAULT_OPTIONS.limits)), *_documents_above(path)]
    free_beside, is_free, _ = run_concurrently(
        partial(no_open_journals, store, path),
        partial(asked.ask_below, prefix_of(path)),
        partial(asked.ask, documents),
    )
    _check_emptiness(store, asked.denied())
    return PrefetchedLocation(asked, free_beside) if is_free else None


def _check_emptiness(store: Store, denied: Mapping[str, Iterable[str]]) -> None:
    """Raise if nothing was listed where metadata are: their node would be overwritten."""
    for prefix, keys in denied.items():
        check_listed(store, prefix, keys)


def find_replaced_location(store: Store, path: str) -> PrefetchedLocation | None:
    """Return the location of a hierarchy as it will be when all that is stored there has gone.

    It answers the checks of all nodes that are made below, once what is there has been removed.
    None if jobs may have left something beside, or if requests cost nothing.
    """
    from zarr_dask.journal import no_open_journals
    from zarr_dask.stores.wrappers.prefetched import prefetching

    if not (is_remote(store) and has_paged_listing(store)):
        return None
    asked = prefetching(store)
    free_beside, _ = run_concurrently(
        partial(no_open_journals, store, path), partial(asked.ask, _documents_above(path))
    )
    return PrefetchedLocation(asked.emptied(prefix_of(path)), True) if free_beside else None


def _documents_of(path: str) -> list[tuple[str, Range]]:
    """Return what is asked for of a node of any format."""
    part = document_range(DEFAULT_OPTIONS.limits)
    keys = (key for candidate in FORMATS for key in candidate.node_keys(path))
    return [(key, part) for key in dict.fromkeys(keys)]


def _documents_above(path: str) -> list[tuple[str, Range]]:
    """Return what is asked for of the nodes above a new one."""
    entry = [(ENTRY, document_range(DEFAULT_OPTIONS.limits))] if path else []
    return [*(one for above in ancestors(path) for one in _documents_of(above)), *entry]


def has_no_folder(store: Store, path: str, node_format: Format) -> bool:
    """True if the folder of a local node is not there yet: one look tells that it holds nothing.

    Nodes of the v3 draft are spread over folders, so that for them the store must not be there.
    """
    place = local_path(store, path)
    if place is None or os.path.lexists(place):
        return False
    root = local_path(store, "")
    if not path or root is None or not os.path.lexists(root):
        return True
    entry = read_documents(store, [ENTRY], DEFAULT_OPTIONS.limits)[ENTRY]
    is_draft = entry is not None and may_be_entry(entry, DEFAULT_OPTIONS.limits)
    return node_format in FORMATS and not is_draft


def is_still_free(store: Store, path: str, node_format: Format) -> bool:
    """Return True if it is known that nothing is at or below a location now."""
    from zarr_dask.stores.wrappers.prefetched import is_empty

    try:
        return all(is_empty(store, prefix) for prefix in node_format.prefixes(path))
    except StoreError:
        return False  # a caller that must know asks again


def prefetch_array(
    store: Store, path: str, likely: Format, options: ReadOptions | None = None
) -> PrefetchedLocation:
    """Prefetch the checks of an existing array, if that saves time.

    Parameters
    ----------
    store, path
        The array.
    likely
        The expected format; if the array has another one, its metadata are requested later.
    options
        Options for reading.
    """
    from zarr_dask.journal import no_open_journals
    from zarr_dask.stores.wrappers.prefetched import prefetching

    if not is_remote(store):
        return PrefetchedLocation(store)
    asked = prefetching(store)
    part = document_range((options or DEFAULT_OPTIONS).limits)
    free_beside, _ = run_concurrently(
        partial(no_open_journals, store, path),
        partial(asked.ask, [(key, part) for key in likely.node_keys(path)]),
    )
    return PrefetchedLocation(asked, free_beside)
