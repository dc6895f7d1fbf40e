"""Zip archives as the target of a job: written in one go, and present when the job has ended.

A plan whose target is the path of an archive holds a `JobArchive`. The file is not created before
the plan is run. Every function that runs the plan also ends the archive (`closes_zip_targets`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from zarr_dask.errors import StoreError
from zarr_dask.formats.archive_comment import archive_comment
from zarr_dask.formats.base import normalise_path
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.stores.archives import (
    JobArchive,
    archive_file,
    job_archive,
)
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location, folder_store, open_store
from zarr_dask.stores.wrapper import unwrap

__all__ = [
    "Archives",
    "archive_sibling",
    "check_archive_open",
    "closes_zip_targets",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Archives:
    """The stores that one plan writes to; each archive among them is opened once.

    Parameters
    ----------
    replaces
        True if the plan replaces everything at its target, so that an archive need not be added to.
    """

    def __init__(self, *, replaces: bool = False) -> None:
        self._replaces = replaces
        self._opened: dict[str, JobArchive] = {}

    def place(
        self, url: Any, path: str, storage_options: Mapping[str, Any] | None = None
    ) -> tuple[Store, str]:
        """Return the store to write to, and the path in it; see `resolve_node`.

        Raises
        ------
        StoreError
            As `open`.
        """
        if _is_path(url):
            return self.open(url, storage_options), normalise_path(path)
        return resolve_node(url, path, storage_options)

    def open(self, url: Location, storage_options: Mapping[str, Any] | None = None) -> Store:
        """Return the store at a path or URL, to be written; see `zarr_dask.stores.open.open_store`.

        Raises
        ------
        StoreError
            If there can be no such store, or if two folders of one archive are named.
        """
        store = open_store(url, storage_options)
        found = job_archive(store, replaces=self._replaces) if _is_path(url) else None
        if found is None:
            return store
        found.comment_of = archive_comment
        present = self._opened.setdefault(found.root, found)
        if present.folder != found.folder:
            raise StoreError(
                f"{found.root} is a zip archive of which two folders are named, {present.folder!r} "
                f"and {found.folder!r}: name the archive alone, and give paths in it."
            )
        return present

    def instead_of(
        self, url: Any, storage_options: Mapping[str, Any] | None
    ) -> tuple[Any, Mapping[str, Any] | None]:
        """Return an opened archive for the path of one; return everything else unchanged."""
        if isinstance(url, list | tuple):
            return [self.instead_of(one, storage_options)[0] for one in url], storage_options
        if not _is_path(url):
            return url, storage_options
        store = self.open(url, storage_options)
        return (store, None) if isinstance(store, JobArchive) else (url, storage_options)


def closes_zip_targets(
    stores: Callable[[Any], Iterable[Store]],
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a method of a plan end the archives of the plan.

    They appear when the method returns; if it raises, they do not appear.

    Parameters
    ----------
    stores
        Returns the stores that a plan writes to.
    """

    def decorate(run: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(run)
        def ending(*args: _P.args, **options: _P.kwargs) -> _R:
            with ExitStack() as stack:
                for store in map(unwrap, stores(args[0])):
                    if isinstance(store, JobArchive):
                        stack.enter_context(store)
                return run(*args, **options)

        return ending

    return decorate


def check_archive_open(store: Store) -> None:
    """Refuse to hand out tasks that would run after the plan has ended its archive.

    Raises
    ------
    ValueError
        If the plan has one.
    """
    if isinstance(unwrap(store), JobArchive):
        raise ValueError(
            f"{store.url} is a zip archive, which is there when this call has ended: leave "
            "compute=False out, or write to a zarr_dask.ZipWriter and close it afterwards."
        )


def archive_sibling(store: Store) -> tuple[Store, str] | None:
    """Return the folder of an archive, and its name there; None for other stores."""
    found = archive_file(store)
    if found is None:
        return None
    folder, name = os.path.split(found)
    return folder_store(folder), name


def _is_path(url: Any) -> bool:
    return isinstance(url, str | os.PathLike)
