"""Values that references (kerchunk) hold themselves or place in files of this machine.

fsspec opens, seeks and reads such files on its event loop, which takes longer than decoding a small
chunk. Here the calling thread reads them with one system call; all others are left to fsspec.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from zarr_dask.errors import ZarrDaskError
from zarr_dask.stores.backends.posix_io import IS_COMPLETE, READ, close_read, read_at
from zarr_dask.stores.error_mapping import library_errors

__all__ = ["is_reference", "read_local_references"]


def is_reference(fs: Any) -> bool:
    """True if a file system of fsspec reads through references."""
    from fsspec.implementations.reference import ReferenceFileSystem

    return isinstance(fs, ReferenceFileSystem)


def read_local_references(
    fs: Any, parts: Sequence[tuple[str, int | None, int | None]]
) -> list[bytes | Exception] | None:
    """Return parts of values, or the exceptions of reading them; None if fsspec has to read them.

    Parameters
    ----------
    fs
        A file system of fsspec for references.
    parts
        Path, start and stop of each part.
    """
    if not IS_COMPLETE:
        return None
    found: list[bytes | Exception] = []
    failures: tuple[type[Exception], ...] = (*library_errors(), ZarrDaskError)
    for path, start, stop in parts:
        try:
            content = _content(fs, path, start, stop)
        except failures as error:
            found.append(error)
            continue
        if content is None:
            return None
        found.append(content)
    return found


def _content(fs: Any, path: str, start: int | None, stop: int | None) -> bytes | None:
    """Return a part of one value; None if it lies in a file system of another kind.

    Raises
    ------
    FileNotFoundError
        If the document has no such key.
    ReferenceNotReachable
        If the file that it leads to cannot be read.
    """
    from fsspec.core import split_protocol
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.reference import ReferenceNotReachable

    with getattr(fs.references, "loading", nullcontext()):
        target, first, end = fs._cat_common(path, start=start, end=stop)  # noqa: SLF001
    if isinstance(target, bytes):
        return target[start:stop]
    reached = fs.fss[split_protocol(target)[0]]
    local = getattr(reached, "sync_fs", reached)
    if type(local) is not LocalFileSystem:
        return None
    try:
        return _file_content(local._strip_protocol(target), first, end)  # noqa: SLF001
    except library_errors() as error:
        raise ReferenceNotReachable(path, target) from error


def _file_content(path: str, start: int | None, stop: int | None) -> bytes:
    descriptor = os.open(path, READ)
    try:
        size = os.fstat(descriptor).st_size
        first, end, _ = slice(start, stop).indices(size)
        return read_at(descriptor, first, max(end - first, 0))
    finally:
        close_read(descriptor)
