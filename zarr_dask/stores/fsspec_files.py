"""File systems of fsspec that must be read, or kept from being written, in ways of their own.

Some send all of a value where a part was asked for, which their interface does not show; caches of
fsspec fail where many parts are asked for at once. Both are read through open files. Archives and
references seem to take values, and change in the memory of one process alone.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from zarr_dask.stores.failures import library_errors

__all__ = [
    "RANGES",
    "as_absence",
    "is_in_memory",
    "is_read_only",
    "read_file",
    "reads_through_files",
]

_READ_ONLY = {"libarchive", "reference", "tar", "zip"}
_SFTP = ("asyncssh", "paramiko")  # servers have one and the same code for many failures


class _Ranges:
    """What was seen of kinds of file systems in this process: which of them know ranges."""

    def __init__(self) -> None:
        self.known: set[type] = set()
        self.ignored: set[type] = set()


RANGES = _Ranges()


class _Turn:
    """A lock of this process, which a child after a fork has anew."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.lock = threading.Lock()


_TURN = _Turn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURN.renew)


def is_read_only(fs: Any) -> bool:
    """Whether what is written would not be there for others."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return bool(protocols & _READ_ONLY)


def is_in_memory(fs: Any) -> bool:
    """Whether values are in the memory of this process, behind whatever file systems."""
    from fsspec.implementations.memory import MemoryFileSystem

    inner = fs
    while inner is not None and not isinstance(inner, MemoryFileSystem):
        inner = getattr(inner, "sync_fs", None) or getattr(inner, "fs", None)
    return inner is not None


def reads_through_files(fs: Any) -> bool:
    """Whether parts are read from open files: where ranges are ignored, or values are cached."""
    from fsspec.implementations.cached import CachingFileSystem

    return type(fs) in RANGES.ignored or CachingFileSystem in type(fs).__mro__


def read_file(fs: Any, path: str, start: int, stop: int | None) -> bytes | Exception:
    """A part of a file; or why it cannot be had."""
    try:
        with _TURN.lock:  # fsspec's caches forget entries that two threads make at once
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
    """`IsADirectoryError` for what a file system says of a folder where a value was asked for."""
    is_sftp = any(kind.__module__.startswith(_SFTP) for kind in type(error).__mro__)
    return IsADirectoryError(path) if is_sftp and fs.isdir(path) else error
