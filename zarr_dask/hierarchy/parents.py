"""Checks around a location, before anything is written there.

For local files they find problems that no request to the store itself can show: a file in place of
a folder, or an array that contains the root of the store. All other checks use the store alone
(`hierarchy.check_can_create`).
"""

from __future__ import annotations

import os
from pathlib import Path

from zarr_dask.errors import StoreError
from zarr_dask.formats.base import ArrayMeta, Format, ancestors
from zarr_dask.formats.detect import DEFAULT_FORMAT, FORMATS, formats_at
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import folder_store, local_path

__all__ = [
    "enclosing_array",
    "format_of_group_around",
    "parent_format",
]


def parent_format(store: Store, path: str) -> str:
    """Return the default format of a new node: that of the surrounding group, if there is one."""
    return format_of_group_around(store, path) or DEFAULT_FORMAT.name


def format_of_group_around(store: Store, path: str) -> str | None:
    """Return the name of the format of the group around a new node; None if there is no group.

    A group shows only nodes of its own format. The groups of the store are searched; if a local
    store begins below another group, that one counts as well.
    """
    for above in reversed(ancestors(path)):
        found = _groups_at(store, above)
        if found:
            return found[0].name
    place = local_path(store, "")
    around = next((p for p in Path(place).parents if os.path.lexists(p)), None) if place else None
    if around is None:
        return None
    try:
        present = _groups_at(folder_store(str(around)), "")
    except StoreError:
        return None  # a folder that cannot be read counts as no group
    return next((one.name for one in present if one in FORMATS), None)


def _groups_at(store: Store, path: str) -> list[Format]:
    """Return the formats of the groups at a path."""
    return [one for one, meta in formats_at(store, path) if not isinstance(meta, ArrayMeta)]


def enclosing_array(store: Store) -> str | None:
    """Return the array that contains the root of a local store; None if there is none.

    Folders above are searched as long as they hold nodes, or do not exist yet.
    """
    place = local_path(store, "")
    for above in () if place is None else Path(place).parents:
        if not os.path.lexists(above):
            continue
        try:
            found = [meta for _, meta in formats_at(folder_store(str(above)), "")]
        except StoreError:
            return None  # a folder that cannot be read counts as no array
        if any(isinstance(meta, ArrayMeta) for meta in found):
            return str(above)
        if not found:
            return None
    return None
