"""Zip archives and branches as targets of one call: opened by location, ended with the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from zarr_dask.formats.archive_comment import archive_comment
from zarr_dask.stores.archives import archive_to_write
from zarr_dask.stores.open import open_store
from zarr_dask.stores.sessions import session_to_write

__all__ = ["open_target_or_archive"]


@contextmanager
def open_target_or_archive(
    url: Any,
    storage_options: Mapping[str, Any] | None,
    *,
    replaces: bool = False,
    message: str = "",
) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield the target of a job: a new archive for the path of one, else the target unchanged.

    The archive appears at the end of the block; if the block raises, it does not appear. The URL of
    a branch yields a session, which is committed then.

    Parameters
    ----------
    url, storage_options
        Target and options of the user.
    replaces
        True if the job replaces everything at `url`, so that an archive need not be added to.
    message
        What the job does, for the history of a branch.

    Yields
    ------
    tuple
        Target to write to, and its options.
    """
    opened = open_store(url, storage_options) if isinstance(url, str | PathLike) else url
    session = session_to_write(opened) if opened is not url else None
    if session is not None:
        session.message = message
        with session:
            yield session, None
        return
    archive = archive_to_write(opened, replaces=replaces)
    if archive is None:
        yield url, storage_options
        return
    archive.comment_of = archive_comment
    with archive as writer:
        yield writer, None
