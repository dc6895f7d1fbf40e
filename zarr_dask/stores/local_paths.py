"""Checks of local paths that no request to a store can show: files where folders must be."""

from __future__ import annotations

import os
from pathlib import Path

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import local_path

__all__ = ["blocking_file", "check_file", "check_folder"]


def blocking_file(store: Store, path: str) -> str | None:
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
    found = blocking_file(store, path)
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
