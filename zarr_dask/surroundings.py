"""What lies around a place of local files, before anything is written there.

A file where a folder must be, or an array that the store begins inside of, is seen by no request
to the store itself. All else is asked of stores alone (`hierarchy.check_place`).
"""

from __future__ import annotations

import os
from pathlib import Path

from zarr_dask.errors import StoreError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.formats.detect import formats_at
from zarr_dask.stores.base import Store
from zarr_dask.stores.local import LocalStore
from zarr_dask.stores.urls import local_path

__all__ = ["array_around", "check_file", "check_folder", "file_in_the_way"]


def file_in_the_way(store: Store, path: str) -> str | None:
    """What is no folder, at a path of local files or above it; None if folders can be made."""
    place = local_path(store, path)
    if place is None:
        return None
    found = next(one for one in (Path(place), *Path(place).parents) if os.path.lexists(one))
    return None if found.is_dir() else str(found)


def check_folder(store: Store, path: str, what: str) -> None:
    """Refuse a folder that cannot be made; `what` asks for it.

    Raises
    ------
    StoreError
        If a file is in its way.
    """
    found = file_in_the_way(store, path)
    if found is not None:
        raise StoreError(
            f"{what} needs a folder at {local_path(store, path)}, but {found} is a file, or a link "
            "that leads nowhere; nothing was written. Choose another place."
        )


def check_file(store: Store, key: str, what: str) -> None:
    """Refuse a file that cannot be put; `what` asks for it.

    Raises
    ------
    StoreError
        If there is a folder, or a file is in the way of the one it would lie in.
    """
    place = local_path(store, key)
    if place is None:
        return
    if Path(place).is_dir():
        raise StoreError(
            f"{what} names {place}, which is a folder; nothing was written. Name a file."
        )
    check_folder(store, key.rpartition("/")[0], what)


def array_around(store: Store) -> str | None:
    """The array that local files begin inside of; None if there is none.

    Folders above are looked into as long as they hold nodes, or are still to be made.
    """
    place = local_path(store, "")
    for above in () if place is None else Path(place).parents:
        if not os.path.lexists(above):
            continue
        try:
            found = [meta for _, meta in formats_at(LocalStore(str(above)), "")]
        except StoreError:
            return None  # a folder that may not be looked into is nobody's array
        if any(isinstance(meta, ArrayMeta) for meta in found):
            return str(above)
        if not found:
            return None
    return None
