"""One array in every layout of its stored objects, in stores that count requests."""

from __future__ import annotations

import numpy as np

from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import ReadPolicy

SHAPE = (12, 16)
VALUES = np.arange(1, 193, dtype="int32").reshape(SHAPE)
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}


def sharding(chunk_shape, codecs=(BYTES,), location="end"):
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk_shape),
            "codecs": list(codecs),
            "index_codecs": [BYTES, CRC],
            "index_location": location,
        },
    }


LAYOUTS = {
    "v2": {"format": "v2", "chunks": (4, 4)},
    "v2 F": {"format": "v2", "chunks": (4, 4), "order": "F"},
    "v3": {"chunks": (4, 4)},
    "v3 uncompressed": {"chunks": (4, 4), "codecs": []},
    "v3 over the edge": {"chunks": (5, 7)},
    "shards": {"chunks": (2, 2), "shards": (4, 8)},
    "shards, index first": {"chunks": (4, 8), "codecs": [sharding((2, 2), location="start")]},
    "shards over the edge": {"chunks": (3, 2), "shards": (9, 10)},
    "shards in gzip": {"chunks": (4, 8), "codecs": [sharding((2, 2)), "gzip"]},
    "nested shards": {"chunks": (12, 8), "codecs": [sharding((6, 4), [sharding((2, 2))])]},
}


class Far(MemoryStore):
    """A store that wants as few requests as possible, whatever lies between the bytes."""

    coalescing = ReadPolicy(gap=1 << 30, largest=1 << 40)


class Exact(MemoryStore):
    """A store that wants to be asked for no byte in vain."""

    coalescing = ReadPolicy(gap=0, largest=1 << 40)
