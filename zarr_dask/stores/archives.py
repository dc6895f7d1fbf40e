"""Zip archives that jobs write, as the stores of their files."""

from __future__ import annotations

from typing import Literal, TypeVar

from zarr_dask.stores.backends.zip import ZipStore
from zarr_dask.stores.backends.zip_writer import ZipWriter
from zarr_dask.stores.base import Store
from zarr_dask.stores.wrapper import unwrap

__all__ = ["JobArchive", "archive_file", "archive_to_write", "job_archive"]

_Writer = TypeVar("_Writer", bound=ZipWriter)


class JobArchive(ZipWriter):
    """An archive that its plan opens and ends."""


def job_archive(store: Store, *, replaces: bool) -> JobArchive | None:
    """Return the same as `archive_to_write`, opened and ended by a plan."""
    return _writer_of(store, JobArchive, replaces=replaces)


def archive_to_write(store: Store, *, replaces: bool) -> ZipWriter | None:
    """Return the writer of an archive that was opened by its path; None for other stores.

    Parameters
    ----------
    store
        The opened archive, or another store.
    replaces
        True if everything at the place is replaced, so that the archive need not be added to.
    """
    return _writer_of(store, ZipWriter, replaces=replaces)


def _writer_of(store: Store, kind: type[_Writer], *, replaces: bool) -> _Writer | None:
    if not isinstance(store, ZipStore):
        return None
    folder = store.folder.rstrip("/")
    mode: Literal["w", "a"] = "w" if replaces and not folder else "a"
    return kind(store.root, mode, folder=folder)


def archive_file(store: Store) -> str | None:
    """Return the path of the archive behind all wrappers; None for other stores."""
    found = unwrap(store)
    return found.root if isinstance(found, ZipStore | ZipWriter) else None
