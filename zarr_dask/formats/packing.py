"""What a node's documents said, as few bytes: an array is part of each of its tasks.

The bytes are a compressed pickle, made and read by this package only. Unpacking is remembered per
process: all tasks of an array share one `ArrayMeta`, and with it the codecs that are bound to it.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from zlib import compress, decompress

from zarr_dask.formats.base import ArrayMeta, Format, ReadOptions

__all__ = ["Described", "pack", "unpack"]

Described = tuple[ArrayMeta, Format, ReadOptions]
"""What a document says, how it is spelled, and how it was read."""


def pack(described: Described) -> bytes:
    """The bytes that say all of it."""
    return compress(pickle.dumps(described, protocol=5), 9)


@lru_cache(maxsize=256)
def unpack(packed: bytes) -> Described:
    """What was packed; the same objects for the same bytes, of the last 256 different ones."""
    described: Described = pickle.loads(decompress(packed))  # noqa: S301  (see `pack`)
    return described
