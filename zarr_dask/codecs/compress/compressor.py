"""The common part of all compressors.

Every decoder is given the expected number of bytes and produces no more than that, whatever the
compressed bytes claim: sizes in headers are checked before memory is allocated, and streams are cut
off. blosc, zstd and lz4 (numcodecs) and gzip and zlib (isal) release the GIL.
"""

from __future__ import annotations

from zarr_dask.codecs.base import BytesCodec, EncodedSize
from zarr_dask.errors import CorruptObjectError

__all__ = ["Compressor", "check_size"]


class Compressor(BytesCodec):
    """A codec whose output size depends on the values."""

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        return size.compressed()


def check_size(what: str, nbytes: int, size: EncodedSize) -> None:
    """Raise if the size in a header is not the expected one, or larger than possible."""
    if size.exact is not None and nbytes != size.exact:
        raise CorruptObjectError(f"its {what} holds {nbytes} bytes, but the chunk has {size.exact}")
    if nbytes > size.most:
        raise CorruptObjectError(
            f"its {what} claims {nbytes} bytes, but the chunk can have {size.most} at most"
        )
