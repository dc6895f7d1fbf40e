"""Codecs by name, and their configurations checked once at the edge.

`from_v3` and `from_numcodecs` are the two spellings in which documents name codecs; both end in
the same frozen values. A name that is not known, or a configuration that does not fit, becomes a
`Problem` with its place in the document.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dask.codecs.arrays import Bytes, Transpose
from zarr_dask.codecs.base import ArrayCodec, BytesCodec, Codec, Serializer
from zarr_dask.codecs.chain import Chain, build
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress import (
    BLOSC_CNAMES,
    BLOSC_SHUFFLES,
    ZSTD_LEVELS,
    Blosc,
    Bz2,
    Gzip,
    Lz4,
    Lzma,
    Zlib,
    Zstd,
)
from zarr_dask.codecs.numcodecs import FILTERS, Filter
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.codecs.vlen import (
    Json2,
    Msgpack2,
    ObjectSerializer,
    Pickle,
    VlenArray,
    VlenBytes,
    VlenUtf8,
)
from zarr_dask.errors import ABSENT, Problem
from zarr_dask.members import Members, between, is_ints, is_list, one_of

__all__ = [
    "chain_from_v3",
    "codec_from_numcodecs",
    "codec_from_v3",
    "completed",
    "is_array_codec",
    "is_serializer",
    "numcodecs_from_codec",
    "object_serializer_from_numcodecs",
    "v3_names",
]


def _bytes(members: Members) -> Codec:
    endian = members.take("endian", one_of("little", "big"), "'little' or 'big'", None)
    return Bytes(endian)


def _transpose(members: Members) -> Codec:
    order = members.take("order", is_ints, "a list of the dimensions in their new order")
    return Transpose(tuple(order or ()))


def _gzip(members: Members) -> Codec:
    return Gzip(members.take("level", between(range(10)), "an integer from 0 to 9"))


def _zstd(members: Members) -> Codec:
    level = members.take("level", between(ZSTD_LEVELS), "an integer from -131072 to 22")
    checksum = members.take("checksum", lambda v: isinstance(v, bool), "true or false", False)
    return Zstd(level, checksum)


def _crc32c(members: Members) -> Codec:  # noqa: ARG001  (nothing to configure)
    return Crc32c()


def _blosc(members: Members) -> Codec:
    shuffle = members.take("shuffle", one_of(*BLOSC_SHUFFLES), f"one of {list(BLOSC_SHUFFLES)}")
    # the type size may be left out where nothing is shuffled
    typesize_default = None if shuffle == "noshuffle" else ABSENT
    return Blosc(
        members.take("cname", one_of(*BLOSC_CNAMES), f"one of {list(BLOSC_CNAMES)}"),
        members.take("clevel", between(range(10)), "an integer from 0 to 9"),
        shuffle,
        members.take(
            "typesize", between(range(1, 1 << 31)), "a positive integer", typesize_default
        ),
        members.take("blocksize", between(range(1 << 31)), "an integer of at least 0", 0),
    )


def _sharding(members: Members) -> Codec | None:
    shape = members.take("chunk_shape", is_ints, "a list of integers, one per dimension")
    codecs = members.take("codecs", is_list, "a list of codecs")
    index_codecs = members.take("index_codecs", is_list, "a list of codecs")
    location = members.take("index_location", one_of("start", "end"), "'start' or 'end'", "end")
    chains = []
    for name, documents in (("codecs", codecs), ("index_codecs", index_codecs)):
        chain = chain_from_v3(documents, f"{members.place}.{name}") if documents else None
        if isinstance(chain, list):
            members.problems.extend(chain)
        elif chain is not None:
            chains.append(chain)
        elif documents is not None:
            members.problems.append(
                Problem(f"{members.place}.{name}", documents, "at least one codec")
            )
    if len(chains) != 2 or shape is None:
        return None
    return Sharding(tuple(shape), chains[0], chains[1], location)


_V3: dict[str, Callable[[Members], Codec | None]] = {
    "bytes": _bytes,
    "transpose": _transpose,
    "gzip": _gzip,
    "zstd": _zstd,
    "blosc": _blosc,
    "crc32c": _crc32c,
    "sharding_indexed": _sharding,
    "vlen-utf8": lambda members: VlenUtf8(),  # noqa: ARG005  (nothing to configure)
    "vlen-bytes": lambda members: VlenBytes(),  # noqa: ARG005
}


_DEEPEST = 32
"""Shards within shards; more can only be meant to exhaust the stack."""


def v3_names() -> tuple[str, ...]:
    """Names of the codecs that a v3 document may hold."""
    return tuple(sorted(_V3))


def codec_from_v3(document: Any, place: str) -> Codec | list[Problem]:
    """A codec from its v3 form: a name, or an object of ``name`` and ``configuration``."""
    if isinstance(document, Codec):  # a value may hold what no document can
        document = {"name": document.name, "configuration": document.configuration()}
    if isinstance(document, str):
        document = {"name": document}
    if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
        return [Problem(place, document, "a codec: an object with a 'name'")]
    name = document["name"]
    if name not in _V3:
        known = ", ".join(v3_names())
        return [Problem(f"{place}.name", name, f"a known codec ({known})", "codec")]
    configuration = document.get("configuration", {})
    if not isinstance(configuration, Mapping):
        return [Problem(f"{place}.configuration", configuration, "an object")]
    members = Members(configuration, f"{place}.configuration")
    if place.count("configuration") > _DEEPEST:
        return [Problem(place, name, f"shards nested at most {_DEEPEST} deep")]
    codec = _V3[name](members)
    members.refuse_rest()
    return members.problems or codec  # type: ignore[return-value]


def chain_from_v3(documents: Sequence[Any], place: str = "codecs") -> Chain | list[Problem]:
    """A chain from a list of codecs in v3 form, or everything that is wrong with it."""
    codecs: list[Codec] = []
    problems: list[Problem] = []
    for position, document in enumerate(documents):
        made = codec_from_v3(document, f"{place}[{position}]")
        if isinstance(made, Codec):
            codecs.append(made)
        else:
            problems.extend(made)
    if problems:
        return problems
    chain = build(codecs)
    if isinstance(chain, Problem):
        return [Problem(place, chain.found, chain.expected)]
    return chain


# --- what a user may leave out --------------------------------------------------------------------

_ARRAY_CODECS = frozenset({"transpose"})
_SERIALIZERS = frozenset({"bytes", "sharding_indexed", "vlen-bytes", "vlen-utf8"})


def name_of(item: Any) -> str:
    """Name of a codec, or of the document of one."""
    if isinstance(item, Codec):
        return item.name
    return str(item.get("name", "")) if isinstance(item, Mapping) else str(item)


def is_serializer(item: Any) -> bool:
    """Whether a codec, or the document of one, makes bytes of an array."""
    return isinstance(item, Serializer) or name_of(item) in _SERIALIZERS


def is_array_codec(item: Any) -> bool:
    """Whether a codec, or the document of one, makes an array of an array."""
    return isinstance(item, ArrayCodec) or name_of(item) in _ARRAY_CODECS


def completed(item: Any, itemsize: int) -> Any:
    """A codec with what a document must say and a user may leave out."""
    if isinstance(item, Blosc):
        return item.resolved(itemsize)
    if name_of(item) == Blosc.name:
        given = item.get("configuration", {}) if isinstance(item, Mapping) else {}
        if not isinstance(given, Mapping):
            return item
        default = Blosc(shuffle=None).resolved(itemsize).configuration()
        return {"name": Blosc.name, "configuration": {**default, **given}}
    if item == "gzip":
        return {"name": "gzip", "configuration": {"level": 5}}
    if item == "zstd":
        return {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    return item


# --- numcodecs spelling ---------------------------------------------------------------------------


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
) -> BytesCodec | list[Problem]:
    """A codec from a numcodecs configuration: an object with an ``id``.

    Parameters
    ----------
    document
        The configuration.
    place
        Where it stands in its document.
    dtype
        Type string of the elements that the codec is given.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("id"), str):
        return [Problem(place, document, "a codec: an object with an 'id'")]
    config = dict(document)
    name = config.pop("id")
    try:
        if name in _COMPRESSORS:
            codec = _COMPRESSORS[name](config)
            if config:
                return [Problem(place, sorted(config), f"no such members of {name!r}")]
            return codec
        if name in FILTERS:
            return Filter.of(document, dtype)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        return [Problem(place, dict(document), f"a configuration that {name!r} takes ({error})")]
    known = ", ".join(sorted({*_COMPRESSORS, *FILTERS}))
    return [Problem(f"{place}.id", name, f"a known codec ({known})", "codec")]


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


_OBJECTS: dict[str, Callable[[dict[str, Any]], ObjectSerializer]] = {
    "vlen-utf8": lambda config: VlenUtf8(),  # noqa: ARG005  (nothing to configure)
    "vlen-bytes": lambda config: VlenBytes(),  # noqa: ARG005
    "vlen-array": _vlen_array,
    "json2": _json2,
    "msgpack2": _msgpack2,
    "pickle": lambda config: Pickle(_int(config, "protocol", 5, range(6))),
}


def object_serializer_from_numcodecs(
    document: Any, place: str, *, allow_pickle: bool
) -> Serializer | list[Problem]:
    """The codec that makes bytes of the objects of a v2 array, from its numcodecs configuration.

    Parameters
    ----------
    document
        The configuration: that of the first filter, or of the compressor if there are no filters.
    place
        Where it stands in its document.
    allow_pickle
        Whether the reader trusts whoever wrote the chunks to run code
        (``ReadOptions.allow_pickle``).

    Returns
    -------
    ObjectSerializer or list of Problem
        The codec, whose ``data_type`` is that of the array, or what is wrong with it.

    Examples
    --------
    >>> object_serializer_from_numcodecs({"id": "vlen-utf8"}, "filters[0]", allow_pickle=False)
    VlenUtf8()
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("id"), str):
        return [Problem(place, document, "an object codec: an object with an 'id'")]
    config = dict(document)
    name = config.pop("id")
    if name not in _OBJECTS:
        known = ", ".join(sorted(_OBJECTS))
        return [Problem(f"{place}.id", name, f"a known object codec ({known})", "codec")]
    if name == Pickle.name and not allow_pickle:
        expected = (
            "a codec that runs no code: a pickle runs that of whoever wrote it. If you trust them, "
            "read with ReadOptions(allow_pickle=True)"
        )
        return [Problem(f"{place}.id", name, expected, "codec")]
    try:
        codec = _OBJECTS[name](config)
    except (TypeError, ValueError, KeyError) as error:
        return [Problem(place, dict(document), f"a configuration that {name!r} takes ({error})")]
    if config:
        return [Problem(place, sorted(config), f"no such members of {name!r}")]
    return codec


def numcodecs_from_codec(codec: Codec) -> dict[str, Any] | None:
    """The numcodecs configuration of a codec; None for codecs that have none.

    Examples
    --------
    >>> numcodecs_from_codec(Zlib(3))
    {'id': 'zlib', 'level': 3}
    """
    if isinstance(codec, Filter):
        return codec.configuration()
    if isinstance(codec, ObjectSerializer):
        return {"id": codec.name, **codec.configuration()}
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
