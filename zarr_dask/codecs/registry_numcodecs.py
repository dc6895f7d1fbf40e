"""Codecs in numcodecs' spelling: objects with an ``id``, in v1, v2 and drafts of v3.

The counterpart of `zarr_dask.codecs.registry`, with the same results. Compressors and filters are
steps from bytes to bytes; codecs for objects are steps from array to bytes.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zarr_dask.codecs.base import BytesCodec, Codec, Serializer
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress.blosc import BLOSC_CNAMES, BLOSC_SHUFFLES, Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Gzip, Lzma, Zlib
from zarr_dask.codecs.compress.lz4 import Lz4
from zarr_dask.codecs.compress.zstd import ZSTD_LEVELS, Zstd
from zarr_dask.codecs.numcodecs import FILTERS, Filter
from zarr_dask.codecs.numeric.filters import PREFIX, NumcodecsBytesCodec
from zarr_dask.codecs.numeric.pcodec import Pcodec
from zarr_dask.codecs.numeric.zfp import Zfpy
from zarr_dask.codecs.objects.categorize import Categorize
from zarr_dask.codecs.objects.object_arrays import ObjectSerializer
from zarr_dask.codecs.objects.object_json import Json2, Msgpack2, Pickle
from zarr_dask.codecs.objects.vlen import VlenArray, VlenBytes, VlenUtf8
from zarr_dask.errors import ValidationProblem

__all__ = [
    "WHOLE_CHUNK_CODECS",
    "codec_from_numcodecs",
    "is_object_codec",
    "numcodecs_from_codec",
    "numcodecs_names",
    "object_serializer_from_numcodecs",
]


def _int(config: dict[str, Any], name: str, default: int, allowed: range) -> int:
    value = config.pop(name, default)
    if type(value) is not int or value not in allowed:
        raise ValueError(f"{name} is {value!r}, not an integer from {allowed[0]} to {allowed[-1]}")
    return value


def _numcodecs_blosc(config: dict[str, Any]) -> BytesCodec:
    cname = config.pop("cname", "lz4")
    if cname not in BLOSC_CNAMES:
        raise ValueError(f"cname is {cname!r}, not one of {list(BLOSC_CNAMES)}")
    shuffle = _int(config, "shuffle", 1, range(-1, 3))
    return Blosc(
        cname,
        _int(config, "clevel", 5, range(10)),
        None if shuffle == -1 else BLOSC_SHUFFLES[shuffle],
        None,
        _int(config, "blocksize", 0, range(1 << 31)),
    )


def _numcodecs_lzma(config: dict[str, Any]) -> BytesCodec:
    filters = config.pop("filters", None)
    chain = None if filters is None else tuple(_lzma_filter(item) for item in filters)
    preset = config.pop("preset", None)
    if preset is not None and type(preset) is not int:
        raise ValueError(f"preset is {preset!r}, not an integer")
    form = _int(config, "format", lzma.FORMAT_XZ, range(1, 4))
    codec = Lzma(form, _int(config, "check", -1, range(-1, 17)), preset, chain)
    if form == lzma.FORMAT_RAW:
        try:
            lzma.LZMADecompressor(form, None, codec.configuration()["filters"])
        except lzma.LZMAError as error:
            raise ValueError(f"filters are {filters!r}: {error}") from error
    return codec


_LZMA_LARGEST = 1 << 28  # bytes of a dictionary; also above every other option


def _lzma_filter(item: Any) -> tuple[tuple[str, int], ...]:
    options = tuple(item.items())
    for name, value in options:
        if type(value) is not int or not (name == "id" or value in range(_LZMA_LARGEST + 1)):
            raise ValueError(f"{name} of a filter is {value!r}, not an integer that it can be")
    return options


_SAYS_NOTHING = {"blosc": ("nthreads", "typesize")}
"""Members that n5-zarr writes and that are redundant or unused."""

WHOLE_CHUNK_CODECS = tuple(codec.name.removeprefix(PREFIX) for codec in (Pcodec, Zfpy))
"""Ids of codecs that take the numbers and the shape of a chunk; they come before all others."""

_COMPRESSORS: dict[str, Callable[[dict[str, Any]], BytesCodec]] = {
    "blosc": _numcodecs_blosc,
    "zlib": lambda config: Zlib(_int(config, "level", 1, range(-1, 10))),
    "gzip": lambda config: Gzip(_int(config, "level", 1, range(-1, 10))),
    "bz2": lambda config: Bz2(_int(config, "level", 1, range(1, 10))),
    "lzma": _numcodecs_lzma,
    "lz4": lambda config: Lz4(_int(config, "acceleration", 1, range(-(1 << 31), 1 << 31))),
    "zstd": lambda config: Zstd(
        _int(config, "level", 0, ZSTD_LEVELS), bool(config.pop("checksum", False))
    ),
}


def codec_from_numcodecs(
    document: Any, place: str, dtype: str | None = None
) -> BytesCodec | list[ValidationProblem]:
    """Return a codec from a numcodecs configuration: an object with an ``id``.

    Parameters
    ----------
    document
        The configuration.
    place
        Its location in the metadata.
    dtype
        Type string of the elements that the codec is given.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("id"), str):
        return [ValidationProblem(place, document, "a codec: an object with an 'id'")]
    document = {member: _number(member, value) for member, value in document.items()}
    config = dict(document)
    name = config.pop("id")
    try:
        if name in _COMPRESSORS:
            for member in _SAYS_NOTHING.get(name, ()):
                config.pop(member, None)
            codec = _COMPRESSORS[name](config)
            if config:
                return [ValidationProblem(place, sorted(config), f"no such members of {name!r}")]
            return codec
        if name in FILTERS:
            return Filter.of(document, dtype)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        return [
            ValidationProblem(
                place, dict(document), f"a configuration that {name!r} takes ({error})"
            )
        ]
    known = ", ".join(sorted({*_COMPRESSORS, *FILTERS, *WHOLE_CHUNK_CODECS}))
    return [ValidationProblem(f"{place}.id", name, f"a known codec ({known})", "codec")]


_NUMBERS = frozenset({"level", "clevel", "shuffle", "blocksize", "elementsize"})
_DIGITS = re.compile(r"-?[0-9]{1,9}")


def _number(member: str, value: Any) -> Any:
    """Return the integer for a string, as written by the netCDF library; others unchanged."""
    said = member in _NUMBERS and isinstance(value, str) and _DIGITS.fullmatch(value)
    return int(value) if said else value


# --- object codecs of numcodecs -------------------------------------------------------------------


def _vlen_array(config: dict[str, Any]) -> ObjectSerializer:
    dtype = config.pop("dtype")
    made = np.dtype(dtype) if isinstance(dtype, str) else None
    if made is None or made.kind not in "biufcmM":
        raise ValueError(f"dtype is {dtype!r}, not the type string of numbers")
    return VlenArray(made.str)


def _json2(config: dict[str, Any]) -> ObjectSerializer:
    encoding = config.pop("encoding", "utf-8")
    if encoding not in _ENCODINGS:
        raise ValueError(f"encoding is {encoding!r}, not one of {list(_ENCODINGS)}")
    indent = config.pop("indent", None)
    if indent is not None and (type(indent) is not int or indent not in range(17)):
        raise ValueError(f"indent is {indent!r}, not null or an integer from 0 to 16")
    separators = config.pop("separators", None)
    if separators is None:
        separators = [",", ":"] if indent is None else [", ", ": "]
    item, key = separators
    if not isinstance(item, str) or not isinstance(key, str):
        raise ValueError(f"separators are {separators!r}, not two texts")
    return Json2(
        encoding,
        _flag(config, "skipkeys", default=False),
        _flag(config, "ensure_ascii", default=True),
        _flag(config, "check_circular", default=True),
        _flag(config, "allow_nan", default=True),
        _flag(config, "sort_keys", default=True),
        indent,
        (item, key),
        _flag(config, "strict", default=True),
    )


_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1", "utf-16", "utf-32")


def _msgpack2(config: dict[str, Any]) -> ObjectSerializer:
    return Msgpack2(
        _flag(config, "raw", default=False),
        _flag(config, "use_single_float", default=False),
        _flag(config, "use_bin_type", default=True),
    )


def _flag(config: dict[str, Any], name: str, *, default: bool) -> bool:
    value = config.pop(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not true or false")
    return value


def _categorize(config: dict[str, Any]) -> ObjectSerializer:
    labels, astype = config.pop("labels"), config.pop("astype", "|u1")
    dtype = config.pop("dtype", "|O")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels are {labels!r:.80}, not a list of texts")
    made = np.dtype(astype) if isinstance(astype, str) else None
    if made is None or made.kind not in "iu" or len(labels) > np.iinfo(made).max:
        raise ValueError(f"astype is {astype!r}, not integers that count {len(labels)} labels")
    if dtype not in {"|O", "O", "object"}:
        raise ValueError(f"dtype is {dtype!r}, but the array is of objects")
    return Categorize(tuple(labels), made.str)


_OBJECTS: dict[str, Callable[[dict[str, Any]], ObjectSerializer]] = {
    "vlen-utf8": lambda config: VlenUtf8(),  # noqa: ARG005  (nothing to configure)
    "vlen-bytes": lambda config: VlenBytes(),  # noqa: ARG005
    "vlen-array": _vlen_array,
    "json2": _json2,
    "msgpack2": _msgpack2,
    "categorize": _categorize,
    "pickle": lambda config: Pickle(_int(config, "protocol", 5, range(6))),
}


def is_object_codec(document: Any) -> bool:
    """True if a numcodecs configuration is that of a codec for objects."""
    return isinstance(document, Mapping) and document.get("id") in [*_OBJECTS]


def numcodecs_names() -> tuple[str, ...]:
    """Return the ids of the codecs that v2 metadata may have."""
    return tuple(sorted({*_COMPRESSORS, *FILTERS, *_OBJECTS, *WHOLE_CHUNK_CODECS}))


def object_serializer_from_numcodecs(
    document: Any, place: str, *, allow_pickle: bool
) -> Serializer | list[ValidationProblem]:
    """Return the codec from objects to bytes of a v2 array, from its numcodecs configuration.

    Parameters
    ----------
    document
        The configuration: that of the first filter, or of the compressor if there are no filters.
    place
        Its location in the metadata.
    allow_pickle
        True if the reader trusts the author of the chunks to run code
        (``ReadOptions.allow_pickle``).

    Returns
    -------
    ObjectSerializer or list of ValidationProblem
        The codec, whose ``data_type`` is that of the array, or the problems with it.

    Examples
    --------
    >>> object_serializer_from_numcodecs({"id": "vlen-utf8"}, "filters[0]", allow_pickle=False)
    VlenUtf8()
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("id"), str):
        return [ValidationProblem(place, document, "an object codec: an object with an 'id'")]
    config = dict(document)
    name = config.pop("id")
    if name not in _OBJECTS:
        known = ", ".join(sorted(_OBJECTS))
        return [ValidationProblem(f"{place}.id", name, f"a known object codec ({known})", "codec")]
    if name == Pickle.name and not allow_pickle:
        expected = (
            "a codec that runs no code: a pickle runs that of whoever wrote it. If you trust them, "
            "read with ReadOptions(allow_pickle=True)"
        )
        return [ValidationProblem(f"{place}.id", name, expected, "codec")]
    try:
        codec = _OBJECTS[name](config)
    except (TypeError, ValueError, KeyError) as error:
        return [
            ValidationProblem(
                place, dict(document), f"a configuration that {name!r} takes ({error})"
            )
        ]
    if config:
        return [ValidationProblem(place, sorted(config), f"no such members of {name!r}")]
    return codec


def numcodecs_from_codec(codec: Codec) -> dict[str, Any] | None:
    """Return the numcodecs configuration of a codec; None for codecs without one.

    Examples
    --------
    >>> numcodecs_from_codec(Zlib(3))
    {'id': 'zlib', 'level': 3}
    """
    if isinstance(codec, Filter):
        return codec.configuration()
    if isinstance(codec, ObjectSerializer):
        return {"id": codec.name, **codec.configuration()}
    if isinstance(codec, NumcodecsBytesCodec):
        return {"id": codec.id, **codec.configuration()}
    if isinstance(codec, Pcodec | Zfpy):
        return {"id": codec.name.removeprefix(PREFIX), **codec.configuration()}
    if isinstance(codec, Crc32c):
        return {"id": "crc32c"}
    if isinstance(codec, Blosc):
        shuffle = -1 if codec.shuffle is None else BLOSC_SHUFFLES.index(codec.shuffle)
        return {
            "id": "blosc",
            "cname": codec.cname,
            "clevel": codec.clevel,
            "shuffle": shuffle,
            "blocksize": codec.blocksize,
        }
    if codec.name not in _COMPRESSORS:
        return None
    configuration = codec.configuration()
    if isinstance(codec, Zstd) and not codec.checksum:
        del configuration["checksum"]  # older readers do not know this member
    return {"id": codec.name, **configuration}
