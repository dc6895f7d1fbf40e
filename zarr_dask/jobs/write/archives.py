"""Zip archives as the target of a job: written in one go, and there when the job has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from zarr_dask.stores.urls import open_store
from zarr_dask.stores.zip import ZipStore
from zarr_dask.stores.zip_writer import ZipWriter

__all__ = ["archive_or_place"]


@contextmanager
def archive_or_place(
    url: Any, storage_options: Mapping[str, Any] | None, *, replaces: bool = False
) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Where a job writes: a new archive for the path of one, all else as it was given.

    The archive appears at the end of the block, and not at all if that ends by an error.

    Parameters
    ----------
    url, storage_options
        What the user gave.
    replaces
        Whether the job replaces all that is at `url`, so that an archive need not be added to.

    Yields
    ------
    tuple
        What to write to, and its options.
    """
    archive = open_store(url, storage_options) if isinstance(url, str | os.PathLike) else url
    if not isinstance(archive, ZipStore):
        yield url, storage_options
        return
    mode: Literal["w", "a"] = "w" if replaces and not archive.folder else "a"
    with ZipWriter(archive.root, mode, folder=archive.folder.rstrip("/")) as writer:
        yield writer, None
