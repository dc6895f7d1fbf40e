"""Codecs in numcodecs' spelling: objects with an ``id``, in v1, v2 and drafts of v3.

The counterpart of `zarr_dask.codecs.registry`, with the same results. Compressors and filters are
steps from bytes to bytes; codecs for objects are steps from array to bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from zarr_dask._util.class_registry import load_class
from zarr_dask.codecs.base import BytesCodec, Codec, Serializer
from zarr_dask.codecs.codec_config import PREFIX
from zarr_dask.codecs.registry import CODECS, codec_class
from zarr_dask.errors import ValidationProblem

__all__ = [
    "WHOLE_CHUNK_CODECS",
    "codec_from_numcodecs",
    "example_of_numcodecs",
    "is_object_codec",
    "numcodecs_from_codec",
    "numcodecs_names",
    "object_serializer_from_numcodecs",
]

WHOLE_CHUNK_CODECS = ("pcodec", "zfpy")
"""Ids of codecs that take the numbers and the shape of a chunk; they come before all others."""

_FILTERS = (
    *("astype", "bitround", "categorize", "delta", "fixedscaleoffset", "packbits", "quantize"),
    *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "base64", "shuffle"),
)
_BYTES = {
    "blosc": "zarr_dask.codecs.compress.blosc:Blosc",
    "bz2": "zarr_dask.codecs.compress.deflate:Bz2",
    "gzip": "zarr_dask.codecs.compress.deflate:Gzip",
    "lz4": "zarr_dask.codecs.compress.lz4:Lz4",
    "lzma": "zarr_dask.codecs.compress.deflate:Lzma",
    "zlib": "zarr_dask.codecs.compress.deflate:Zlib",
    "zstd": "zarr_dask.codecs.compress.zstd:Zstd",
    **dict.fromkeys(_FILTERS, "zarr_dask.codecs.numcodecs:Filter"),
}
_OBJECTS = {
    "vlen-utf8": "zarr_dask.codecs.objects.vlen:VlenUtf8",
    "vlen-bytes": "zarr_dask.codecs.objects.vlen:VlenBytes",
    "vlen-array": "zarr_dask.codecs.objects.vlen:VlenArray",
    "json2": "zarr_dask.codecs.objects.object_json:Json2",
    "msgpack2": "zarr_dask.codecs.objects.object_json:Msgpack2",
    "categorize": "zarr_dask.codecs.objects.categorize:Categorize",
    "pickle": "zarr_dask.codecs.objects.object_json:Pickle",
}
_PICKLE = "pickle"


def _bytes_class(name: str) -> type[Codec] | None:
    """Return the class of codecs from bytes to bytes with an id; None for unknown ids."""
    if name in _BYTES:
        found: type[Codec] = load_class(_BYTES[name])
        return found
    cls = None if name in CODECS.own_names() else codec_class(name)
    return cls if cls is not None and cls.in_numcodecs and issubclass(cls, BytesCodec) else None


def example_of_numcodecs(name: str, dtype: str) -> dict[str, Any]:
    """Return a configuration with an id, for elements of a NumPy type string.

    Examples
    --------
    >>> example_of_numcodecs("delta", "<i4")
    {'id': 'delta', 'dtype': '<i4'}
    """
    cls = _bytes_class(name) or codec_class(f"{PREFIX}{name}") or load_class(_OBJECTS[name])
    return {"id": name, **cls.example(name, dtype)}


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
        expected = "a codec: an object with an 'id', as {'id': 'zstd', 'level': 3}"
        return [ValidationProblem(place, document, expected)]
    document = {member: _number(member, value) for member, value in document.items()}
    config = dict(document)
    name = config.pop("id")
    try:
        cls = _bytes_class(name)
        if cls is not None:
            codec = cls.from_numcodecs(name, config, dtype)
            if config:
                return [ValidationProblem(place, sorted(config), f"no such members of {name!r}")]
            return cast("BytesCodec", codec)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        return [
            ValidationProblem(
                place, dict(document), f"a configuration that {name!r} takes ({error})"
            )
        ]
    known = ", ".join(sorted({*_BYTES, *WHOLE_CHUNK_CODECS}))
    return [ValidationProblem(f"{place}.id", name, f"a known codec ({known})", "codec")]


_NUMBERS = frozenset({"level", "clevel", "shuffle", "blocksize", "elementsize"})
_DIGITS = re.compile(r"-?[0-9]{1,9}")


def _number(member: str, value: Any) -> Any:
    """Return the integer for a string, as written by the netCDF library; others unchanged."""
    said = member in _NUMBERS and isinstance(value, str) and _DIGITS.fullmatch(value)
    return int(value) if said else value


# --- object codecs of numcodecs -------------------------------------------------------------------


def is_object_codec(document: Any) -> bool:
    """True if a numcodecs configuration is that of a codec for objects."""
    return isinstance(document, Mapping) and document.get("id") in [*_OBJECTS]


def numcodecs_names() -> tuple[str, ...]:
    """Return the ids of the codecs that v2 metadata may have."""
    return tuple(sorted({*_BYTES, *_OBJECTS, *WHOLE_CHUNK_CODECS}))


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
    if name == _PICKLE and not allow_pickle:
        expected = (
            "a codec that runs no code: a pickle runs that of whoever wrote it. If you trust them, "
            "read with ReadOptions(allow_pickle=True)"
        )
        return [ValidationProblem(f"{place}.id", name, expected, "codec")]
    try:
        codec: Serializer = load_class(_OBJECTS[name]).from_numcodecs(name, config, None)
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
    >>> from zarr_dask.codecs.compress.deflate import Zlib
    >>> numcodecs_from_codec(Zlib(3))
    {'id': 'zlib', 'level': 3}
    """
    return codec.to_numcodecs()
