"""Checks of files that commands write: they must stay out of existing and new arrays."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from zarr_dask.errors import StoreError
from zarr_dask.formats.detect import formats_at
from zarr_dask.stores.open import contains_or_equal, folder_store, local_root, open_store

__all__ = ["check_outside"]


def check_outside(file: Path | None, option: str, *urls: str) -> None:
    """Raise if a file would be inside the source or target of a job, or in another hierarchy.

    It could replace metadata there, or conflict with new objects.

    Raises
    ------
    click.BadParameter
        If the file would be there.
    """
    if file is None:
        return
    place = os.path.realpath(file)
    for url in urls:
        root = _local_root(url)
        if root is not None and contains_or_equal(root, place):
            raise _inside(file, option, url)
    for above in Path(place).parents:
        with suppress(StoreError):  # a folder that cannot be read
            if any(meta is not None for _, meta in formats_at(folder_store(str(above)), "")):
                raise _inside(file, option, str(above))


def _local_root(url: str) -> str | None:
    """Return the folder or archive of a local location; None for a remote one."""
    if "::" in url or ("://" in url and not url.startswith("file://")):
        return None
    return local_root(open_store(url))


def _inside(file: Path, option: str, where: str) -> click.BadParameter:
    return click.BadParameter(
        f"{str(file)!r} would lie in {where}, among arrays; nothing was written. Choose another "
        "place.",
        param_hint=f"'{option}'",
    )
