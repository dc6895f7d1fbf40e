"""Compact serialisation of a node's metadata: an array is part of each of its tasks.

The bytes are a compressed pickle, made and read by this package only. Unpacking is cached per
process: all tasks of an array share one `ArrayMeta`, and with it the codecs that are bound to it.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from zlib import compress, decompress

from zarr_dask.formats.base import ArrayMeta, Format, ReadOptions

__all__ = ["Described", "pack", "unpack"]

Described = tuple[ArrayMeta, Format, ReadOptions]
"""Metadata, their format, and the options that they were read with."""


def pack(described: Described) -> bytes:
    """Serialise metadata to bytes."""
    return compress(pickle.dumps(described, protocol=5), 9)


@lru_cache(maxsize=256)
def unpack(packed: bytes) -> Described:
    """Return the packed metadata; the same objects for the same bytes, cached for the last 256."""
    described: Described = pickle.loads(decompress(packed))  # noqa: S301  (see `pack`)
    return described
