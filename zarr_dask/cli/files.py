"""Files that commands write: none of them goes where arrays are, or will be."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from zarr_dask.errors import StoreError
from zarr_dask.formats.detect import formats_at
from zarr_dask.stores.local import LocalStore
from zarr_dask.stores.urls import open_store, overlap
from zarr_dask.stores.zip import ZipStore

__all__ = ["check_outside"]


def check_outside(file: Path | None, option: str, *urls: str) -> None:
    """Refuse a file in a place that a job reads or writes, or in another hierarchy.

    It could replace a document there, or be in the way of what is to come.

    Raises
    ------
    click.BadParameter
        If it lies there.
    """
    if file is None:
        return
    place = os.path.realpath(file)
    for url in urls:
        root = _local_root(url)
        if root is not None and overlap(root, place):
            raise _inside(file, option, url)
    for above in Path(place).parents:
        with suppress(StoreError):  # a folder that may not be looked into
            if any(meta is not None for _, meta in formats_at(LocalStore(str(above)), "")):
                raise _inside(file, option, str(above))


def _local_root(url: str) -> str | None:
    """The folder or the archive that a place is; None for one that is far away."""
    if "::" in url or ("://" in url and not url.startswith("file://")):
        return None
    store = open_store(url)
    return os.path.realpath(store.root) if isinstance(store, LocalStore | ZipStore) else None


def _inside(file: Path, option: str, where: str) -> click.BadParameter:
    return click.BadParameter(
        f"{str(file)!r} would lie in {where}, among arrays; nothing was written. Choose another "
        "place.",
        param_hint=f"'{option}'",
    )
