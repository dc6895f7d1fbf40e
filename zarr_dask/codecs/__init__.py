"""Codecs: the steps between a chunk and its stored bytes.

===============  =============================================================================
all of them      `base`, `chain`, `registry`, `registry_numcodecs`, `codec_config`, `unknown`,
                 `throughput`
order of bytes   `arrays`, `reshape`, `checksum`, `conditional`, `numcodecs`
shards           `sharding`, `index_codecs`, `chunk_batches`
parts of chunks  `fetch`, `partial_decode`, `blockwise`
folders          `compress`, `numeric`, `objects`
===============  =============================================================================
"""

import sys
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.codecs.base import (
    ArrayCodec,
    BoundSerializer,
    BytesCodec,
    ChunkSpec,
    Codec,
    DecodeOptions,
    EncodedSize,
    Serializer,
    Speeds,
)
from zarr_dask.codecs.codec_config import CodecConfig

__all__ = [
    "ArrayCodec",
    "BoundSerializer",
    "BytesCodec",
    "ChunkSpec",
    "Codec",
    "CodecConfig",
    "DecodeOptions",
    "EncodedSize",
    "Serializer",
    "Speeds",
]


def __getattr__(name: str) -> Any:
    """Import the class of a codec, such as ``zarr_dask.codecs.Zstd``, when it is first used."""
    if not name.startswith("_"):
        from zarr_dask.codecs.registry import own_classes

        target = own_classes().get(name)
        if target is not None:
            return getattr(import_module(target), name)
        if name in _FILTERS:
            hint = (
                f" Codecs of numcodecs are taken as they are: codecs=[numcodecs.{name}(...), ...]."
            )
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
        if name in _INSTEAD:
            hint = f" {_INSTEAD[name]}"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
        hint = did_you_mean(name.removesuffix("Codec"), own_classes())
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_FILTERS = frozenset(
    {
        "Adler32", "AsType", "BZ2", "CRC32", "Categorize", "Delta", "FixedScaleOffset",
        "Fletcher32", "JenkinsLookup3", "LZ4", "LZMA", "PackBits", "Quantize", "Shuffle", "Zlib",
    }
)  # fmt: skip
_INSTEAD = {
    "BloscCname": "It is a word here, as in cname='zstd'.",
    "BloscShuffle": "It is a word here, as in shuffle='bitshuffle'.",
    "Endian": "It is a word here, as in endian='little'.",
    "ShardingCodecIndexLocation": "It is a word here, as in index_location='end'.",
    "register_codec": "zarr_dask.codecs.registry.register_codec is a decorator of a class.",
}
"""Names of zarr-python, and what to write instead."""


def __dir__() -> list[str]:
    """Return the public names, and the classes of codecs."""
    from zarr_dask.codecs.registry import own_classes

    return sorted({*__all__, *own_classes()})


def _hide_zfpy_of_unreadable_version() -> None:
    """Make numcodecs importable beside zfpy 1.0.1.post0.

    numcodecs parses the version of zfpy as integers, and if that fails, none of it can be imported.
    Without its module for zfpy, which is not used here, the rest can be imported.
    """
    folders = (Path(folder).glob("zfpy-*.dist-info") for folder in sys.path)
    found = next(chain.from_iterable(folders), None)  # importlib.metadata takes 40 ms
    if found is not None and not found.stem.partition("-")[2].replace(".", "").isdecimal():
        sys.modules.setdefault("numcodecs.zfpy", None)  # type: ignore[arg-type]


_hide_zfpy_of_unreadable_version()
