"""Memory that a decoder is given for as long as it works, with bytes around it that must stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from zarr_dask._util.buffers import thread_buffer
from zarr_dask.codecs import base
from zarr_dask.codecs.base import DecodedBytes
from zarr_dask.codecs.compress import blosc_frames

GUARD = 64


@contextmanager
def guarded_memory(before: int) -> Iterator[None]:
    """While parts of chunks are decoded: `before` is in every byte of the memory at first."""
    made = []

    def guarded(use, nbytes):
        if use != "decoded":
            return thread_buffer(use, nbytes)
        made.append(np.full(nbytes + 2 * GUARD, before, np.uint8))
        return made[-1][GUARD:-GUARD]

    with ExitStack() as stack:
        for module in (base, blosc_frames):
            stack.enter_context(mock.patch.object(module, "thread_buffer", guarded))
        yield
    for memory in made:
        assert (memory[:GUARD] == before).all(), "written before the destination"
        assert (memory[-GUARD:] == before).all(), "written after the destination"


def spread(found: DecodedBytes, nbytes: int, before: int) -> np.ndarray:
    """All bytes of a chunk, of which only those that were decoded are known."""
    out = np.full(nbytes, before, np.uint8)
    out[found.first : found.first + found.memory.size] = found.memory
    return out
