"""Zstandard contexts that each thread keeps, for small chunks.

The functions of numcodecs make a context for each call, which takes four times as long as decoding
4 kB. Where the package ``zstandard`` is installed, small chunks go through contexts that are used
again; the frames are the same, and what it refuses is left to numcodecs.
"""

from __future__ import annotations

import threading
from functools import cache
from types import ModuleType
from typing import Any, cast

import numpy as np

from zarr_dask.stores.base import Buffer

__all__ = ["compress_small", "decompress_small"]

_SMALL = 1 << 16
"""Bytes of the largest chunk that gains from a kept context."""
_MOST_LEVELS = 4  # contexts of a thread; a process rarely writes with more than one level


class _Contexts(threading.local):
    """Contexts of the current thread; those of the library may not be shared between threads."""

    def __init__(self) -> None:
        self.decompressor: Any = None
        self.compressors: dict[tuple[int, bool], Any] = {}


_CONTEXTS = _Contexts()


@cache
def _library() -> ModuleType | None:
    """Return the package; imported late, because few processes need it."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def compress_small(buffer: Buffer | np.ndarray, level: int, *, checksum: bool) -> bytes | None:
    """Return a frame that states its size; None if the chunk is not small, or for numcodecs."""
    library = _library()
    if library is None or memoryview(buffer).nbytes > _SMALL:
        return None
    compressors = _CONTEXTS.compressors
    compressor = compressors.get((level, checksum))
    if compressor is None:
        if len(compressors) >= _MOST_LEVELS:
            compressors.clear()
        compressor = library.ZstdCompressor(level, write_checksum=checksum)
        compressors[level, checksum] = compressor
    return cast("bytes", compressor.compress(buffer))


def decompress_small(frame: Buffer, out: np.ndarray) -> bool:
    """Decompress one frame that states the size of `out`; False if numcodecs must try it."""
    library = _library()
    if library is None or not 0 < out.size <= _SMALL:  # it does not look into empty frames
        return False
    if _CONTEXTS.decompressor is None:
        _CONTEXTS.decompressor = library.ZstdDecompressor()
    try:
        decoded = _CONTEXTS.decompressor.decompress(frame, allow_extra_data=False)
    except library.ZstdError:
        return False
    if len(decoded) != out.size:
        return False
    out[:] = np.frombuffer(decoded, np.uint8)
    return True
