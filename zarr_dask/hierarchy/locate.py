"""Resolves the location of a node to a store and a path in it.

All functions with a location accept the same values: everything that `open_store` accepts, and open
nodes of this package and of zarr-python, whose path is the start of the resulting path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from zarr_dask.formats.base import Format, normalise_path
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import (
    Location,
    open_store,
    split_zarr_python_node,
    substore,
    without_folder,
)

__all__ = ["Node", "resolve_node", "resolve_store", "source_and_target"]


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
    if isinstance(url, Node):
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
    source, path = resolve_store(src, storage_options), normalise_path(path)
    return source, resolve_store(dst, target_options), path
