"""Codec throughput for choosing between plans, in bytes of elements per second and thread.

Measured once, with 4 MB chunks of smooth float32 values with a little noise, on one core of a 2020
server (``python -m benchmarks.codecs`` prints the table again). Only ratios matter to a plan, such
as for decoding a chunk four times instead of writing and reading an intermediate array.

The throughput of a codec includes the serializer ``bytes`` before it where that does nothing: a
compressor takes elements of native byte order as they are, and decodes into the result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.compressor import Compressor

__all__ = ["Speeds", "speeds_of"]


class Speeds(NamedTuple):
    """Bytes of elements per second that a thread decodes and encodes."""

    decode: float
    encode: float


_MEASURED = {
    "blosc lz4": Speeds(5.7e9, 2.4e9),
    "blosc blosclz": Speeds(5.0e9, 2.4e9),
    "blosc lz4hc": Speeds(3.4e9, 0.04e9),
    "blosc snappy": Speeds(1.5e9, 0.7e9),
    "blosc zstd": Speeds(1.9e9, 0.2e9),
    "blosc zstd 1": Speeds(1.9e9, 1.2e9),
    "blosc zlib": Speeds(0.45e9, 0.04e9),
    "bytes": Speeds(16e9, 30e9),
    "bytes swapped": Speeds(8e9, 12e9),
    "bz2": Speeds(0.02e9, 0.007e9),
    "crc32c": Speeds(24e9, 24e9),
    "gzip": Speeds(0.3e9, 0.05e9),
    "lz4": Speeds(3.0e9, 1.0e9),
    "lzma": Speeds(0.02e9, 0.002e9),
    "transpose": Speeds(0.7e9, 0.7e9),
    "zlib": Speeds(0.3e9, 0.05e9),
    "zstd": Speeds(0.9e9, 0.6e9),
}
_OTHER = Speeds(0.5e9, 0.3e9)
"""Throughput of codecs that were not measured."""


def speeds_of(chain: CodecChain) -> Speeds:
    """Return the throughput of a chain of codecs; for a shard, of the codecs of its chunks.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4,), dtype="f4", codecs=["zstd"])
    >>> speeds = speeds_of(a.meta.codecs)
    >>> speeds
    Speeds(decode=900000000.0, encode=600000000.0)
    """
    each = [_MEASURED.get(_label(codec), _OTHER) for codec in _working(chain)]
    return Speeds(
        1 / sum(1 / speeds.decode for speeds in each),
        1 / sum(1 / speeds.encode for speeds in each),
    )


def _working(chain: CodecChain) -> Iterator[Codec]:
    """Yield the codecs that take time; for shards, the codecs of their chunks."""
    yield from chain.arrays
    inner = chain.serializer.inner_codecs
    made = make_chain(inner) if inner else None
    if isinstance(made, CodecChain):
        yield from _working(made)
    elif not _is_free(chain):
        yield chain.serializer
    yield from chain.bytes


def _is_free(chain: CodecChain) -> bool:
    """True if the serializer changes nothing and another codec copies the elements anyway."""
    if not isinstance(chain.serializer, Bytes) or _swaps(chain.serializer):
        return False
    return bool(chain.arrays) or any(isinstance(one, Compressor) for one in chain.bytes)


def _swaps(codec: Bytes) -> bool:
    return codec.endian not in {None, sys.byteorder}


def _label(codec: Codec) -> str:
    if isinstance(codec, Bytes) and _swaps(codec):
        return "bytes swapped"
    inner = getattr(codec, "cname", "")
    if isinstance(codec, Blosc) and (inner, codec.clevel) == ("zstd", 1):
        inner = "zstd 1"
    return f"{codec.name.removeprefix('numcodecs.')} {inner}".rstrip()
