"""The common part of all compressors.

Every decoder is given the expected number of bytes and produces no more than that, whatever the
compressed bytes claim: sizes in headers are checked before memory is allocated, and streams are cut
off. blosc, zstd and lz4 (numcodecs) and gzip and zlib (isal) release the GIL.
"""

from __future__ import annotations

from typing import Any

from zarr_dask.codecs.base import BytesCodec, EncodedSize

__all__ = ["Compressor", "take_int"]


class Compressor(BytesCodec):
    """A codec whose output size depends on the values."""

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        return size.compressed()


def take_int(config: dict[str, Any], name: str, default: int, allowed: range) -> int:
    """Remove an integer from a configuration in numcodecs' spelling and return it.

    Raises
    ------
    ValueError
        If it is not one of those that are allowed.
    """
    value = config.pop(name, default)
    if type(value) is not int or value not in allowed:
        raise ValueError(f"{name} is {value!r}, not an integer from {allowed[0]} to {allowed[-1]}")
    return value
