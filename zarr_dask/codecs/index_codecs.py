"""The codecs of a new shard's index."""

from __future__ import annotations

from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.checksum import Crc32c

__all__ = ["DEFAULT_INDEX_CODECS"]

DEFAULT_INDEX_CODECS = CodecChain((), Bytes("little"), (Crc32c(),))
"""The codecs that the specification recommends: little-endian integers and a checksum."""
