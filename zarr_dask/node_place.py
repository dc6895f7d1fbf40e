"""From what names a node, or the place of one, to a store and a path in it.

All functions that take a place take the same things: what `open_store` makes a store of, and open
nodes, of this package and of zarr-python, from whose paths theirs go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from zarr_dask.formats.base import Format, normalise_path
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.urls import Location, inside, located, open_store

__all__ = ["Node", "node_place", "node_store", "source_and_target"]


@runtime_checkable
class Node(Protocol):
    """An open array or group, of which nothing but its place matters here."""

    @property
    def store(self) -> Store:
        """Where the bytes are."""

    @property
    def path(self) -> str:
        """Path below the root of the store."""

    @property
    def node_format(self) -> Format:
        """How documents are spelled."""


def node_place(
    url: Location | Node, path: str = "", storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, str]:
    """The store that is meant by a place, and the path in it.

    The store of a node is without its consolidated metadata, which say what there was: changes must
    see what there is.

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
        If it names no store, or an option is unknown.
    StoreKeyError
        If the path is none.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> store, path = node_place(zd.create_group(values, "a"), "b")
    >>> store.url == zd.open(values).store.url, path
    (True, 'a/b')
    """
    below = normalise_path(path)
    if isinstance(url, Node):
        store = open_store(without_consolidated(url.store), storage_options)
        return store, join(url.path, below)
    place, below = located(url, below)
    return open_store(place, storage_options), below


def node_store(url: Location | Node, storage_options: Mapping[str, Any] | None = None) -> Store:
    """The store that is meant by a place, of which a node that is given is the root.

    For two places that one path leads into.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = node_store(zd.create_group({}, "a"))
    >>> list(store.list(""))
    ['zarr.json']
    """
    store, path = node_place(url, "", storage_options)
    return inside(store, path) if path else store


def source_and_target(
    src: Location | Node,
    dst: Location | Node | None,
    path: str,
    storage_options: Mapping[str, Any] | None,
    target_options: Mapping[str, Any] | None,
) -> tuple[Store, Store, str]:
    """The stores that are meant by two places, and the path in both; without `dst` it is one."""
    if dst is None:
        source, path = node_place(src, path, storage_options)
        return source, source, path
    source, path = node_store(src, storage_options), normalise_path(path)
    return source, node_store(dst, target_options), path
