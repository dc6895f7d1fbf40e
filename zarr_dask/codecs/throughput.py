"""Codec throughput, in bytes of elements per second and thread.

It was measured once with 4 MB chunks of smooth float32 values with a little noise, on one core of a
2020 server (``python -m benchmarks.codecs`` prints the table again). Only ratios matter to a plan,
such as for decoding a chunk four times instead of writing and reading an intermediate array.

The throughput of a codec includes the serializer ``bytes`` before it where that does nothing: a
compressor takes elements of native byte order as they are, and decodes into the result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.base import Codec, Speeds
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.compress.compressor import Compressor

__all__ = ["speeds_of"]


def speeds_of(chain: CodecChain) -> Speeds:
    """Return the throughput of a chain of codecs; for a shard, of the codecs of its chunks. Cached.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4,), dtype="f4", codecs=["zstd"])
    >>> speeds = speeds_of(a.meta.codecs)
    >>> speeds
    Speeds(decode=900000000.0, encode=600000000.0)
    """
    found: Speeds | None = chain.__dict__.get("_speeds")  # which the chain leaves out elsewhere
    if found is None:
        each = [codec.speeds() for codec in _working(chain)]
        found = chain.__dict__["_speeds"] = Speeds(
            1 / sum(1 / speeds.decode for speeds in each),
            1 / sum(1 / speeds.encode for speeds in each),
        )
    return found


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
