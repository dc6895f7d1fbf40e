"""How fast codecs are, for choosing between plans: bytes of elements per second and thread.

Measured once, with 4 MB chunks of smooth float32 values with a little noise, on one core of a
server of 2020 (``python -m benchmarks.codecs`` prints the table again). Only the ratios matter to a
plan: whether to decode a chunk four times or to write and read an intermediate array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.chain import Chain

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
    "blosc zlib": Speeds(0.45e9, 0.04e9),
    "bytes": Speeds(16e9, 30e9),
    "bz2": Speeds(0.02e9, 0.007e9),
    "crc32c": Speeds(24e9, 24e9),
    "gzip": Speeds(0.28e9, 0.02e9),
    "gzip fast": Speeds(0.28e9, 0.3e9),
    "lz4": Speeds(3.0e9, 1.0e9),
    "lzma": Speeds(0.02e9, 0.002e9),
    "shuffle": Speeds(1.9e9, 1.2e9),
    "transpose": Speeds(0.7e9, 0.7e9),
    "zlib": Speeds(0.28e9, 0.02e9),
    "zlib fast": Speeds(0.28e9, 0.3e9),
    "zstd": Speeds(0.9e9, 0.02e9),
    "zstd fast": Speeds(0.9e9, 0.6e9),
    "zstd medium": Speeds(0.9e9, 0.3e9),
}
_LEVELS: Mapping[str, Sequence[tuple[int, str]]] = {
    "gzip": ((3, "fast"),),  # up to there isal compresses
    "zlib": ((3, "fast"),),
    "zstd": ((3, "fast"), (9, "medium")),
}
"""Highest levels of compression that have a speed of their own."""
_OTHER = Speeds(0.5e9, 0.3e9)
"""Of a codec that was not measured."""


def speeds_of(chain: Chain) -> Speeds:
    """How fast a chain of codecs is; of a shard, how fast the codecs of its chunks are.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4,), dtype="f4", codecs=["zstd"])
    >>> speeds = speeds_of(a.meta.codecs)
    >>> 0.8e9 < speeds.decode < 0.9e9 and speeds.encode < speeds.decode
    True
    >>> def gzip(level):
    ...     codecs = [{"name": "gzip", "configuration": {"level": level}}]
    ...     return zd.create_array({}, shape=(4,), dtype="f4", codecs=codecs).meta.codecs
    >>> speeds_of(gzip(1)).encode > 10 * speeds_of(gzip(9)).encode
    True
    """
    codecs = _innermost(chain.codecs)
    each = [_MEASURED.get(_label(codec), _OTHER) for codec in codecs]
    return Speeds(
        1 / sum(1 / speeds.decode for speeds in each),
        1 / sum(1 / speeds.encode for speeds in each),
    )


def _innermost(codecs: Sequence[Codec]) -> list[Codec]:
    found: list[Codec] = []
    for codec in codecs:
        inner = getattr(codec, "inner_codecs", None)
        found.extend(_innermost(inner) if inner else [codec])
    return found


def _label(codec: Codec) -> str:
    name = codec.name.removeprefix("numcodecs.")
    level: Any = getattr(codec, "level", None)
    most = _LEVELS.get(name, ()) if isinstance(level, int) and level >= 0 else ()
    inner = next((label for highest, label in most if level <= highest), "")
    return f"{name} {getattr(codec, 'cname', inner)}".rstrip()
