"""Consolidated metadata of a group, written by one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.stores.open import Location
from zarr_dask.stores.sessions import transaction

__all__ = ["consolidate"]


@takes_habits(component="path", name="path")
def consolidate(
    url: Location | Array | Group,
    path: str = "",
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Write all metadata below a group into one object, so that it opens with one request.

    v2 gets ``.zmetadata``; v3 gets ``consolidated_metadata`` in the metadata of the group, as
    zarr-python and xarray read them. Run it again when the hierarchy has changed: readers of
    consolidated metadata see the state at the time of writing (`Group.stale` compares).

    Parameters
    ----------
    url, path
        The group.
    storage_options
        Options of the store.

    Returns
    -------
    Group
        The group, reopened for reading.

    Raises
    ------
    NodeNotFoundError, NodeTypeError
        If there is no group.
    MetadataError
        If metadata are not a JSON object, or the format has no consolidated metadata.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "ocean/salt", shape=(4,), dtype="f4")
    >>> group = zd.consolidate(values)
    >>> [path for path, _ in group.arrays(recursive=True)]  # no request
    ['ocean/salt']
    """
    from zarr_dask.hierarchy.edit import consolidate_group

    found, path = resolve_node(url, path, storage_options)
    with transaction(url, found, f"consolidate {path}") as store:
        group = open_group(store, path, "r+")
        consolidate_group(store, path, group.node_format)
    return open_group(store, path)
