"""Checks around a location, before anything is written there.

For local files they find problems that no request to the store itself can show: a file in place of
a folder, or an array that contains the root of the store. All other checks use the store alone
(`hierarchy.check_place`).
"""

from __future__ import annotations

import os
from pathlib import Path

from zarr_dask.errors import StoreError
from zarr_dask.formats.base import ArrayMeta, Format, ancestors
from zarr_dask.formats.detect import FORMATS, formats_at
from zarr_dask.formats.v1 import V1
from zarr_dask.formats.v3 import V3
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.no_follow import link_error
from zarr_dask.stores.open import bare, local_path

__all__ = [
    "array_around",
    "check_file",
    "check_folder",
    "check_no_link",
    "file_in_the_way",
    "format_around",
    "format_of_group_around",
]


def file_in_the_way(store: Store, path: str) -> str | None:
    """Return the file at a local path or above it that prevents folders; None if there is none."""
    place = local_path(store, path)
    if place is None:
        return None
    found = next(one for one in (Path(place), *Path(place).parents) if os.path.lexists(one))
    return None if found.is_dir() else str(found)


def check_folder(store: Store, path: str, what: str) -> None:
    """Raise if a folder cannot be created; `what` names the option that needs it.

    Raises
    ------
    StoreError
        If a file is in the way.
    """
    found = file_in_the_way(store, path)
    if found is not None:
        raise StoreError(
            f"{what} needs a folder at {local_path(store, path)}, but {found} is a file, or a link "
            "that leads nowhere; nothing was written. Choose another place."
        )


def check_file(store: Store, key: str, what: str) -> None:
    """Raise if a file cannot be written; `what` names the option that needs it.

    Raises
    ------
    StoreError
        If there is a folder, or a file is in place of its parent folder.
    """
    place = local_path(store, key)
    if place is None:
        return
    if Path(place).is_dir():
        raise StoreError(
            f"{what} names {place}, which is a folder; nothing was written. Name a file."
        )
    check_folder(store, key.rpartition("/")[0], what)


def check_no_link(store: Store, path: str) -> None:
    """Refuse to replace, remove or rename a node in whose place, or above which, a link stands.

    What the link leads to may be anybody's. The root of a hierarchy may be a link, and what lies
    above it; a store that begins at a link in a group is such a node.

    Raises
    ------
    LinkError
        If one does.
    """
    store, path = bare(store, path)
    if not isinstance(store, LocalStore):
        return
    done = ""
    for name in path.split("/") if path else ():
        done = join(done, name)
        if Path(store.root, done).is_symlink():
            raise link_error(store.root, done)
    for place in (Path(store.root), *Path(store.root).parents):
        if place.is_symlink() and _is_node(str(place.parent)):
            raise link_error(str(place.parent), place.name)


def _is_node(folder: str) -> bool:
    try:
        return bool(formats_at(LocalStore(folder), ""))
    except StoreError:
        return False  # a folder that may not be looked into is nobody's hierarchy


def format_around(store: Store, path: str) -> str:
    """Return the default format of a new node: that of the surrounding group.

    It is v3 if there is no group.
    """
    return format_of_group_around(store, path) or V3.name


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
        present = _groups_at(LocalStore(str(around)), "")
    except StoreError:
        return None  # a folder that cannot be read counts as no group
    return next((one.name for one in present if one in FORMATS), None)


def _groups_at(store: Store, path: str) -> list[Format]:
    """Return the formats of the groups at a path; v1 has none."""
    found = formats_at(store, path)
    return [one for one, meta in found if not isinstance(meta, ArrayMeta) and one is not V1]


def array_around(store: Store) -> str | None:
    """Return the array that contains the root of a local store; None if there is none.

    Folders above are searched as long as they hold nodes, or do not exist yet.
    """
    place = local_path(store, "")
    for above in () if place is None else Path(place).parents:
        if not os.path.lexists(above):
            continue
        try:
            found = [meta for _, meta in formats_at(LocalStore(str(above)), "")]
        except StoreError:
            return None  # a folder that cannot be read counts as no array
        if any(isinstance(meta, ArrayMeta) for meta in found):
            return str(above)
        if not found:
            return None
    return None
