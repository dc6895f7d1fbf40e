"""fsspec file systems that need special treatment for reading, or must not be written to.

Some send the whole value where a range was requested, which their interface does not show. Caches
of fsspec fail if many ranges are requested at once. Both are read through open files. Archives and
references seem to accept values, but change only in the memory of one process.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from zarr_dask.stores.error_mapping import library_errors

__all__ = [
    "RANGES",
    "as_absence",
    "is_in_memory",
    "is_read_only",
    "read_file",
    "reads_through_files",
    "turn_of",
]

_READ_ONLY = {"libarchive", "reference", "tar", "zip"}
_SFTP = ("asyncssh", "paramiko")  # servers use one code for many failures


class _RangeSupport:
    """Observations of this process about file systems: those that support ranges or ignore them."""

    def __init__(self) -> None:
        self.known: set[type] = set()
        self.ignored: set[type] = set()


RANGES = _RangeSupport()


class _ForkSafeLock:
    """A lock of this process, replaced in a forked child."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.lock = threading.Lock()


_TURN = _ForkSafeLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURN.renew)


def turn_of(fs: Any) -> AbstractContextManager[Any]:
    """Return what is held while a file system is asked: archives take one question at a time.

    All threads of an archive's file system share one open file, and its position: in some versions
    of Python `zipfile` then reads from where another thread has moved it. The table of its entries
    is filled by the first question, and lacks entries meanwhile.
    """
    from fsspec.archive import AbstractArchiveFileSystem

    while fs is not None and not isinstance(fs, AbstractArchiveFileSystem):
        fs = getattr(fs, "fs", None)  # of caches and folders
    return nullcontext() if fs is None else _TURN.lock


def is_read_only(fs: Any) -> bool:
    """True if written values would not be visible to other processes."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return bool(protocols & _READ_ONLY)


def is_in_memory(fs: Any) -> bool:
    """True if values are in the memory of this process, behind any wrapping file systems."""
    from fsspec.implementations.memory import MemoryFileSystem

    inner = fs
    while inner is not None and not isinstance(inner, MemoryFileSystem):
        inner = getattr(inner, "sync_fs", None) or getattr(inner, "fs", None)
    return inner is not None


def reads_through_files(fs: Any) -> bool:
    """True if ranges are read from open files: if ranges are ignored, or values are cached."""
    from fsspec.implementations.cached import CachingFileSystem

    return type(fs) in RANGES.ignored or CachingFileSystem in type(fs).__mro__


def read_file(fs: Any, path: str, start: int, stop: int | None) -> bytes | Exception:
    """Return a part of a file, or the exception if it cannot be read."""
    try:
        with _TURN.lock:  # fsspec's caches lose entries that two threads create at once
            size = int(fs.info(path)["size"] or 0)
            stop = size if stop is None else min(stop, size)
            if start >= stop:
                return b""
            with fs.open(path, "rb") as file:
                file.seek(start)
                content: bytes = file.read(stop - start)
                return content
    except library_errors() as error:
        return as_absence(fs, path, error)


def as_absence(fs: Any, path: str, error: Exception) -> Exception:
    """Return `IsADirectoryError` if SFTP failed because a path is a folder; else the error."""
    is_sftp = any(kind.__module__.startswith(_SFTP) for kind in type(error).__mro__)
    return IsADirectoryError(path) if is_sftp and fs.isdir(path) else error
