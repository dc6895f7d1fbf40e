"""Refusals to replace, remove or rename what lies behind a link."""

from __future__ import annotations

from pathlib import Path

from zarr_dask.errors import StoreError
from zarr_dask.formats.detect import formats_at
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.no_follow import link_error
from zarr_dask.stores.open import folder_store, local_path, unwrap_with_path

__all__ = ["check_no_link"]


def check_no_link(store: Store, path: str) -> None:
    """Refuse to replace, remove or rename a node in whose place, or above which, a link stands.

    What the link leads to may be anybody's. The root of a hierarchy may be a link, and what lies
    above it; a store that begins at a link in a group is such a node.

    Raises
    ------
    LinkError
        If one does.
    """
    store, path = unwrap_with_path(store, path)
    root = local_path(store, "")
    if root is None:
        return
    done = ""
    for name in path.split("/") if path else ():
        done = join(done, name)
        if Path(root, done).is_symlink():
            raise link_error(root, done)
    for place in (Path(root), *Path(root).parents):
        if place.is_symlink() and _is_node(str(place.parent)):
            raise link_error(str(place.parent), place.name)


def _is_node(folder: str) -> bool:
    try:
        return bool(formats_at(folder_store(folder), ""))
    except StoreError:
        return False  # a folder that may not be looked into is nobody's hierarchy
