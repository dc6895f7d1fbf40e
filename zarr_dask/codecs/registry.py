"""Codecs by their names in Zarr v3 metadata, checked once when it is read.

A class is imported when its name is met for the first time, and reads its configuration itself
(`Codec.from_config`). `register_codec` and the entry points ``zarr_dask.codecs`` add codecs of
others. An unknown name or an invalid configuration becomes a `ValidationProblem` with its location
in the metadata. `zarr_dask.codecs.registry_numcodecs` does the same for the spelling of numcodecs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from zarr_dask._util.class_registry import Registry
from zarr_dask._util.keywords import did_you_mean
from zarr_dask.codecs.base import ArrayCodec, BytesCodec, ChunkSpec, Codec, Serializer
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.codec_config import PREFIX, CodecConfig, ParseContext
from zarr_dask.dtypes import DataType
from zarr_dask.errors import ValidationProblem

__all__ = [
    "CODECS",
    "chain_from_v3",
    "codec_class",
    "codec_from_v3",
    "encoded_data_type",
    "inner_chain",
    "is_array_codec",
    "is_serializer",
    "own_classes",
    "register_codec",
    "v3_names",
    "with_codec_defaults",
]

_FILTERS = ("astype", "delta", "fixedscaleoffset", "packbits", "quantize")
"""Filters of numcodecs for arrays, other than ``bitround``."""
_BYTES = (
    *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "shuffle"),
    *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"),
)
"""Codecs from bytes to bytes that zarr-python writes to v3 metadata by their ids in numcodecs."""
_OWN = {
    "bytes": "zarr_dask.codecs.arrays:Bytes",
    "endian": "zarr_dask.codecs.arrays:Bytes",
    "packbits": "zarr_dask.codecs.numeric.packbits:PackBits",
    "transpose": "zarr_dask.codecs.arrays:Transpose",
    "bitround": "zarr_dask.codecs.numeric.bitround:BitRound",
    "cast_value": "zarr_dask.codecs.numeric.cast_value:CastValue",
    "reshape": "zarr_dask.codecs.reshape:Reshape",
    "scale_offset": "zarr_dask.codecs.numeric.scale_offset:ScaleOffset",
    "gzip": "zarr_dask.codecs.compress.deflate:Gzip",
    "zstd": "zarr_dask.codecs.compress.zstd:Zstd",
    "blosc": "zarr_dask.codecs.compress.blosc:Blosc",
    "crc32c": "zarr_dask.codecs.checksum:Crc32c",
    "conditional": "zarr_dask.codecs.conditional:Conditional",
    "n5_default": "zarr_dask.codecs.compress.n5:N5Default",
    "zfp": "zarr_dask.codecs.numeric.zfp:Zfp",
    f"{PREFIX}zfpy": "zarr_dask.codecs.numeric.zfp:Zfpy",
    f"{PREFIX}pcodec": "zarr_dask.codecs.numeric.pcodec:Pcodec",
    "sharding_indexed": "zarr_dask.codecs.sharding:Sharding",
    "vlen-utf8": "zarr_dask.codecs.objects.vlen:VlenUtf8",
    "vlen-bytes": "zarr_dask.codecs.objects.vlen:VlenBytes",
    f"{PREFIX}bitround": "zarr_dask.codecs.numeric.bitround:BitRound",
    **{f"{PREFIX}{name}": "zarr_dask.codecs.numeric.filters:ArrayFilter" for name in _FILTERS},
    **{
        f"{PREFIX}{name}": "zarr_dask.codecs.numeric.filters:NumcodecsBytesCodec" for name in _BYTES
    },
}


def own_classes() -> dict[str, str]:
    """Return the module of each class of a codec of this package, by the name of the class."""
    return {name: module for module, _, name in (text.partition(":") for text in _OWN.values())}


_Class = TypeVar("_Class", bound=type[Codec])


def _check(name: str, cls: Any) -> None:
    """Raise for what is no codec of this name."""
    if not (isinstance(cls, type) and issubclass(cls, ArrayCodec | Serializer | BytesCodec)):
        raise TypeError(
            f"codec {name!r}: {cls!r} is no class derived from zarr_dask.codecs.BytesCodec, "
            "ArrayCodec or Serializer."
        )
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise TypeError(
            f"codec {name!r}: {cls.__qualname__} has no {', '.join(missing)}: define "
            f"{'it' if len(missing) == 1 else 'them'}."
        )
    if getattr(cls, "name", None) != name:
        raise ValueError(
            f"codec {name!r}: {cls.__qualname__}.name is {cls.name!r}, and both must be the name "
            "in the metadata."
        )


CODECS = Registry("codec", "zarr_dask.codecs", _OWN, _check)
"""All codecs by their names in v3 metadata."""


def register_codec(cls: _Class) -> _Class:
    """Make a codec known by its name, in this process.

    Metadata may then name it, and ``codecs=`` takes it. Where other processes read or write as
    well (workers of a cluster, ``zarr-dask run``), list the class in an installed package instead,
    under the entry points ``zarr_dask.codecs``, by its name.

    Parameters
    ----------
    cls
        A frozen dataclass derived from `zarr_dask.codecs.BytesCodec`, `ArrayCodec` or `Serializer`,
        with a text as its class attribute `name`.

    Returns
    -------
    type
        The class, so that this may be used as a decorator.

    Raises
    ------
    TypeError
        If it is not such a class.
    ValueError
        If another codec has its name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import zarr_dask as zd
    >>> @zd.register_codec
    ... @dataclass(frozen=True)
    ... class Reversed(zd.codecs.BytesCodec):
    ...     name = "example.reversed"
    ...     def configuration(self):
    ...         return {}
    ...     def size(self, size):
    ...         return size
    ...     def encode(self, buffer, itemsize):
    ...         return bytes(buffer)[::-1]
    ...     def decode(self, buffer, size):
    ...         size.check("reversed bytes", len(buffer))
    ...         return bytes(buffer)[::-1]
    >>> a = zd.create_array({}, data=[1, 2, 3], codecs="example.reversed")
    >>> zd.open(a.store)[...].tolist()
    [1, 2, 3]
    """
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"{cls!r} has no name: give the class a text, name = 'yourpackage.codec', by which "
            "metadata name the codec."
        )
    CODECS.register(name, cls)
    return cls


def codec_class(name: str) -> type[Codec] | None:
    """Return the class of codecs with a name in v3 metadata; None for unknown names."""
    found: type[Codec] | None = CODECS.find(name)
    return found


def inner_chain(
    config: CodecConfig, name: str, documents: list[Any], stored: ParseContext | None
) -> CodecChain | None:
    """Return the chain of codecs in a member of a configuration; note problems, return None."""
    place = config.at(name)
    if not documents:
        config.blame(name, documents, "at least one codec")
        return None
    chain = chain_from_v3(documents, place, stored)
    if isinstance(chain, list):
        config.problems.extend(chain)
        return None
    return chain


_DEEPEST = 32
"""Limit of nested shards; more could only be an attack on the stack."""


def v3_names() -> tuple[str, ...]:
    """Return the names of the codecs that v3 metadata may have."""
    return CODECS.names()


_URI = re.compile(
    r"https?://(codec\.zarrs\.dev/[a-z]+_to_[a-z]+|zarr\.dev/numcodecs)/([a-z0-9_-]+)"
)
"""Names of codecs that zarrs and numcodecs wrote before these had others."""


def _present_name(name: str, place: str, stored: ParseContext) -> str:
    """Return the present name of a codec that was named by a URI; other names unchanged."""
    match = _URI.fullmatch(name)
    if match is None:
        return name
    known = match[2] in _OWN and match[1] != "zarr.dev/numcodecs"
    now = match[2] if known else PREFIX + match[2]
    if now in _OWN:
        stored.warn(f"{place} names a codec {name!r}, which is now called {now!r}.")
    return now if now in _OWN else name


_MEMBERS = {"name", "configuration", "must_understand"}


def codec_from_v3(
    document: Any, place: str, stored: ParseContext | None = None
) -> Codec | list[ValidationProblem]:
    """Return a codec from its v3 form: a name, or an object of ``name`` and ``configuration``.

    Parameters
    ----------
    document
        The form, or a codec.
    place
        Its location in the metadata.
    stored
        Its source; None for a user's value.
    """
    if isinstance(document, Codec):  # an instance may have values that are invalid in metadata
        document = document.document()
    if isinstance(document, str):
        document = {"name": document}
    if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
        return [ValidationProblem(place, document, _form(document))]
    beside = sorted(set(document) - _MEMBERS)
    if stored is None and beside:  # stored ones are not understood, and ignored
        inside = {member: document[member] for member in beside}
        expected = f"'configuration': {inside} around what the codec is to do"
        return [ValidationProblem(place, dict(document), expected)]
    if not isinstance(document.get("must_understand", True), bool):
        found = document["must_understand"]
        return [ValidationProblem(f"{place}.must_understand", found, "true or false")]
    name = document["name"]
    if stored is not None:
        name = _present_name(name, place, stored)
    cls = codec_class(name)
    if cls is None:
        return [ValidationProblem(f"{place}.name", name, _known(name), "codec")]
    configuration = document.get("configuration", {})
    if not isinstance(configuration, Mapping):
        return [ValidationProblem(f"{place}.configuration", configuration, "an object")]
    config = CodecConfig(configuration, f"{place}.configuration", name, stored)
    if place.count("configuration") > _DEEPEST:
        return [ValidationProblem(place, name, f"shards nested at most {_DEEPEST} deep")]
    codec = cls.from_config(config)
    config.refuse_rest()
    return config.problems or codec  # type: ignore[return-value]


def chain_from_v3(
    documents: Sequence[Any], place: str = "codecs", stored: ParseContext | None = None
) -> CodecChain | list[ValidationProblem]:
    """Return a chain from a list of codecs in v3 form, or all problems with it.

    Parameters
    ----------
    documents
        The list.
    place
        Its location in the metadata.
    stored
        Its source; None for a user's value.
    """
    codecs: list[Codec] = []
    problems: list[ValidationProblem] = []
    on: Literal["arrays", "bytes"] = "arrays"
    for position, document in enumerate(documents):
        at = f"{place}[{position}]"
        skipped = None if stored is None else _skipped(document, at, on, stored)
        made = skipped or codec_from_v3(document, at, stored)
        if isinstance(made, list):
            problems.extend(made)
            continue
        codecs.append(made)
        if isinstance(made, ArrayCodec) and stored is not None:
            stored = replace(stored, ndim=made.encoded_ndim(stored.ndim))
        elif isinstance(made, Serializer):
            on = "bytes"
    if problems:
        return problems
    chain = make_chain(codecs)
    if isinstance(chain, ValidationProblem):
        return [ValidationProblem(place, chain.found, chain.expected)]
    return chain


def may_be_ignored(document: Any) -> bool:
    """True if this is the metadata of a codec that readers need not know."""
    return (
        isinstance(document, Mapping)
        and document.get("must_understand") is False
        and isinstance(document.get("name"), str)
        and isinstance(document.get("configuration", {}), Mapping)
    )


def _skipped(
    document: Any, place: str, on: Literal["arrays", "bytes"], stored: ParseContext
) -> Codec | None:
    """Return a placeholder for an unknown codec that may be skipped; None for all others."""
    if not may_be_ignored(document) or codec_class(document["name"]) is not None:
        return None
    stored.warn(
        f"{place} is an unknown codec, {document['name']!r}, that need not be understood. It is "
        "skipped in reading; nothing can be written."
    )
    from zarr_dask.codecs.unknown import UnknownArrayCodec, UnknownBytesCodec

    kind = UnknownArrayCodec if on == "arrays" else UnknownBytesCodec
    return kind(json.dumps(dict(document)))


# --- defaults for users' codecs -------------------------------------------------------------------


def name_of(item: Any) -> str:
    """Return the name of a codec or of its metadata."""
    if isinstance(item, Codec):
        return item.name
    return str(item.get("name", "")) if isinstance(item, Mapping) else str(item)


def _is(kind: Any, item: Any) -> bool:
    if isinstance(item, Codec):
        return isinstance(item, kind)
    cls = codec_class(name_of(item))
    return cls is not None and issubclass(cls, kind)


def is_serializer(item: Any) -> bool:
    """True if a codec, or its metadata, is one from array to bytes."""
    return _is(Serializer, item)


def is_array_codec(item: Any) -> bool:
    """True if a codec, or its metadata, is one from array to array."""
    return _is(ArrayCodec, item)


def encoded_data_type(items: Sequence[Any], data_type: DataType, ndim: int) -> DataType:
    """Return the data type of elements after the array codecs in a list of codecs or metadata."""
    spec = ChunkSpec((1,) * ndim, data_type, None)
    for item in filter(is_array_codec, items):
        made = codec_from_v3(item, "")
        if isinstance(made, ArrayCodec) and not any(made.problems(spec)):
            spec = replace(spec, data_type=made.output(spec).data_type)
    return spec.data_type


def with_codec_defaults(item: Any, itemsize: int) -> Any:
    """Return a codec with the members that metadata must have and a user may leave out."""
    if isinstance(item, Codec):
        return item.resolved(itemsize)
    name = name_of(item)
    if isinstance(item, Mapping) and set(item) - _MEMBERS:
        return item
    given = item.get("configuration", {}) if isinstance(item, Mapping) else {}
    cls = codec_class(name)
    if cls is None or not isinstance(given, Mapping):
        return item
    configuration = cls.with_defaults(name, dict(given), itemsize)
    return {"name": name, "configuration": configuration} if configuration != given else item


def _form(given: Any) -> str:
    """Return a phrase for the forms of a codec."""
    if given is False:
        return "a codec. codecs=[] stores chunks as they are"
    return (
        "a codec: an object with a 'name', as {'name': 'zstd', 'configuration': {'level': 3}}, "
        "or the name alone"
    )


def _known(name: str) -> str:
    """Return a phrase for the codecs that are known, the most similar one first."""
    names = v3_names()
    prefixed = f"{PREFIX}{name}"
    hint = f" Did you mean {prefixed!r}?" if prefixed in names else did_you_mean(name, names)
    if name.casefold() in {"lzf", "snappy", "szip"}:
        hint = " 'zstd', or 'numcodecs.lz4' where speed counts most, compresses instead."
    if name.casefold() in {"none", "null", "raw"}:
        hint = " codecs=[] stores chunks as they are."
    return f"a known codec.{hint}" if hint else f"a known codec ({', '.join(names)})"
