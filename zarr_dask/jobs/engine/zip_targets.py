"""Targets that are there when the job has ended: zip archives, and branches that are committed.

A plan whose target is the path of an archive holds a `JobArchive`. The file is not created before
the plan is run. Every function that runs the plan also ends the archive (`closes_zip_targets`). A
plan whose target is the URL of a branch holds a `JobSession`, which that function commits.
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
from zarr_dask.stores.sessions import JobSession, session_to_write
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
    """The stores that one plan writes to; each archive or branch among them is opened once.

    Parameters
    ----------
    replaces
        True if the plan replaces everything at its target, so that an archive need not be added to.
    """

    def __init__(self, *, replaces: bool = False) -> None:
        self._replaces = replaces
        self._opened: dict[str, JobArchive] = {}
        self._sessions: dict[str, Any] = {}

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
        if not _is_path(url):
            return store
        session = session_to_write(store)
        if session is not None:
            opened: Store = self._sessions.setdefault(session.url, session)
            return opened
        found = job_archive(store, replaces=self._replaces)
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
        """Return an opened archive or branch for its location; return others unchanged."""
        if isinstance(url, list | tuple):
            return [self.instead_of(one, storage_options)[0] for one in url], storage_options
        if not _is_path(url):
            return url, storage_options
        store = self.open(url, storage_options)
        is_opened = isinstance(store, JobArchive | JobSession)
        return (store, None) if is_opened else (url, storage_options)


def closes_zip_targets(
    stores: Callable[[Any], Iterable[Store]],
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a method of a plan end the archives of the plan, and commit to its branches.

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
                    if isinstance(store, JobSession):
                        store.message = _message(args[0])
                    if isinstance(store, JobArchive | JobSession):
                        stack.enter_context(store)
                return run(*args, **options)

        return ending

    return decorate


def _message(plan: Any) -> str:
    """Return what a plan does, in a few words, for the history of a branch."""
    parts = getattr(plan, "plans", None) or getattr(plan, "members", None) or [plan]
    paths = [one.target.path if hasattr(one, "target") else one.path for one in parts]
    names = ", ".join(path or "the root array" for path in paths[:_NAMED])
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    job = plan.as_job() if hasattr(plan, "as_job") else plan
    return f"{getattr(job, 'kind', 'write')} {names}{more}"


_NAMED = 5
"""Number of arrays that a message names."""


def check_archive_open(store: Store) -> None:
    """Refuse to hand out tasks that would run after the plan has ended its archive or session.

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
    if isinstance(unwrap(store), JobSession):
        raise ValueError(
            f"{store.url} is a branch, which this call commits to at its end: leave compute=False "
            "out, or pass the store of a session, and commit it afterwards."
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
