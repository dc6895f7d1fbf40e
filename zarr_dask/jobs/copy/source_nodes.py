"""The nodes of the source of a copy, as they are listed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

from zarr_dask.array.array import Array
from zarr_dask.errors import ListingError, MissingGroupWarning
from zarr_dask.formats.consolidated import consolidated_holder
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.jobs.copy.node_plans import Node
from zarr_dask.stores.base import join

__all__ = ["nodes_of"]


def nodes_of(root: Array | Group) -> Iterator[tuple[str, Node]]:
    """Yield all nodes by their paths below the source, parents first; "" is the source itself."""
    yield "", root
    if isinstance(root, Array):
        return
    left_out = consolidated_holder(root.store, root.node_format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)  # the copy writes their metadata
        try:
            below = list(root.walk())
        except ListingError:
            options = replace(root.options, consolidated=True)
            recorded = open_node(root.store, root.path, format=root.format, read=options)
            below = list(recorded.walk()) if isinstance(recorded, Group) else []
    for name, node in below:
        if join(root.path, name) != left_out:
            yield name, node
