"""Bytes of small files as they are now, where the system would believe what it has seen before.

FUSE and network file systems keep sizes and names of files for a while. What another host has
replaced meanwhile is then read with the size of its predecessor: cut off, or not at all.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from typing import Any

from zarr_dask.stores.backends.posix_io import close_read

__all__ = ["fresh_bytes", "refresh"]

_EMPTY_PATH, _FORCE_SYNC, _BASIC = 0x1000, 0x2000, 0x7FF  # flags of statx
_PIECE = 1 << 16


def fresh_bytes(path: str) -> bytes | None:
    """All bytes of a small file; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        refresh(descriptor)
        pieces = []
        while piece := os.read(descriptor, _PIECE):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        close_read(descriptor)


def refresh(descriptor: int) -> None:
    """Let the system ask for the size of an open file, whatever it believes; as far as it can."""
    call = _statx()
    if call is not None:
        call(descriptor, b"", _EMPTY_PATH | _FORCE_SYNC, _BASIC, ctypes.create_string_buffer(256))


@lru_cache(maxsize=1)
def _statx() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "statx", None)
