"""Codecs by their names in Zarr v3 metadata, checked once when it is read.

An unknown name or an invalid configuration becomes a `ValidationProblem` with its location in the
metadata. `zarr_dask.codecs.registry_numcodecs` does the same for the spelling of numcodecs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from zarr_dask._util.json_fields import (
    FieldReader,
    any_value,
    is_codec_list,
    is_int,
    is_int_in,
    is_ints,
    is_one_of,
)
from zarr_dask._util.keywords import did_you_mean
from zarr_dask._util.warnings import warn
from zarr_dask.codecs.arrays import Bytes, Transpose
from zarr_dask.codecs.base import ArrayCodec, BytesCodec, ChunkSpec, Codec, Serializer
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress.blosc import BLOSC_CNAMES, BLOSC_SHUFFLES, Blosc
from zarr_dask.codecs.compress.deflate import Gzip
from zarr_dask.codecs.compress.n5 import N5Default
from zarr_dask.codecs.compress.zstd import ZSTD_LEVELS, Zstd
from zarr_dask.codecs.conditional import Conditional
from zarr_dask.codecs.numeric.bitround import BitRound
from zarr_dask.codecs.numeric.cast_value import CastValue
from zarr_dask.codecs.numeric.filters import (
    PREFIX,
    PREFIXED_FILTERS,
    ArrayFilter,
    NumcodecsBytesCodec,
)
from zarr_dask.codecs.numeric.packbits import PackBits
from zarr_dask.codecs.numeric.pcodec import Pcodec
from zarr_dask.codecs.numeric.scale_offset import ScaleOffset
from zarr_dask.codecs.numeric.zfp import Zfp, Zfpy
from zarr_dask.codecs.numeric.zfp_expert import ZfpExpertParams
from zarr_dask.codecs.objects.vlen import VlenBytes, VlenUtf8
from zarr_dask.codecs.registry_numcodecs import codec_from_numcodecs
from zarr_dask.codecs.reshape import Reshape
from zarr_dask.codecs.sharding import DEFAULT_INDEX_CODECS, Sharding
from zarr_dask.codecs.unknown import UnknownArrayCodec, UnknownBytesCodec, may_be_ignored
from zarr_dask.dtypes import DataType
from zarr_dask.errors import ABSENT, MetadataError, ValidationProblem

__all__ = [
    "ParseContext",
    "StrictParseContext",
    "chain_from_v3",
    "codec_from_v3",
    "encoded_data_type",
    "is_array_codec",
    "is_serializer",
    "v3_names",
    "with_codec_defaults",
]


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The source of stored codec metadata, which may have older spellings, with a warning."""

    at: str
    """The location of the metadata, for messages."""
    ndim: int
    """Number of dimensions of the codec's input."""

    def warn(self, message: str) -> None:
        """Warn of a problem with metadata that is read nevertheless."""
        warn(f"{self.at}: {message}")


@dataclass(frozen=True, slots=True)
class StrictParseContext(ParseContext):
    """Raises for metadata that would be read with a warning, if it is read only once."""

    def warn(self, message: str) -> None:
        """Raise for the metadata.

        Raises
        ------
        MetadataError
            Always.
        """
        raise MetadataError.of(self.at, [ValidationProblem("", message, "nothing to warn of")])


class CodecMembers(FieldReader):
    """The configuration of a codec.

    Parameters
    ----------
    members, place
        See `FieldReader`.
    stored
        Its source; None for a user's value.
    """

    def __init__(self, members: Mapping[str, Any], place: str, stored: ParseContext | None) -> None:
        super().__init__(members, place)
        self.stored = stored


def _bytes(members: FieldReader) -> Codec:
    endian = members.take("endian", is_one_of("little", "big"), "'little' or 'big'", None)
    return Bytes(endian)


def _endian(members: CodecMembers) -> Codec | None:
    if members.stored is None:
        place = members.place.removesuffix(".configuration")
        expected = "'bytes', as this codec is called now"
        members.problems.append(ValidationProblem(f"{place}.name", "endian", expected))
        return None
    _warn_of_old_spelling(members.stored, members, "a codec 'endian', now called 'bytes'")
    return _bytes(members)


def _transpose(members: CodecMembers) -> Codec | None:
    expected = "a list of the dimensions in their new order"
    stored = members.stored
    if stored is None:
        order = members.take("order", is_ints, expected)
    else:
        order = members.take("order", lambda v: is_ints(v) or v in ("C", "F"), expected)
        if isinstance(order, str):
            what = f"an order of {order!r}, now a list of dimensions"
            _warn_of_old_spelling(stored, members, what)
            order = range(stored.ndim)[:: 1 if order == "C" else -1]
    return Transpose(tuple(order or ()))


def _warn_of_old_spelling(stored: ParseContext, members: FieldReader, what: str) -> None:
    stored.warn(f"{members.place} is of a draft of Zarr v3: it has {what}.")


def _gzip(members: FieldReader) -> Codec:
    return Gzip(members.take("level", is_int_in(range(10)), "an integer from 0 to 9"))


def _zstd(members: FieldReader) -> Codec:
    level = members.take("level", is_int_in(ZSTD_LEVELS), "an integer from -131072 to 22")
    checksum = members.take("checksum", lambda v: isinstance(v, bool), "true or false", False)
    return Zstd(level, checksum)


def _crc32c(members: FieldReader) -> Codec:  # noqa: ARG001  (nothing to configure)
    return Crc32c()


def _blosc(members: FieldReader) -> Codec:
    shuffle = members.take("shuffle", is_one_of(*BLOSC_SHUFFLES), f"one of {list(BLOSC_SHUFFLES)}")
    # the type size may be left out if nothing is shuffled
    typesize_default = None if shuffle == "noshuffle" else ABSENT
    return Blosc(
        members.take("cname", is_one_of(*BLOSC_CNAMES), f"one of {list(BLOSC_CNAMES)}"),
        members.take("clevel", is_int_in(range(10)), "an integer from 0 to 9"),
        shuffle,
        members.take(
            "typesize", is_int_in(range(1, 1 << 31)), "a positive integer", typesize_default
        ),
        members.take("blocksize", is_int_in(range(1 << 31)), "an integer of at least 0", 0),
    )


def _sharding(members: CodecMembers) -> Codec | None:
    shape = members.take("chunk_shape", is_ints, "a list of integers, one per dimension")
    codecs = members.take("codecs", is_codec_list, "a list of at most 1000 codecs")
    index_codecs = members.take(
        "index_codecs", is_codec_list, "a list of at most 1000 codecs", None
    )
    location = members.take("index_location", is_one_of("start", "end"), "'start' or 'end'", "end")
    chain = None if codecs is None else _inner_chain(members, "codecs", codecs, members.stored)
    index: CodecChain | None
    if index_codecs is None:
        index = DEFAULT_INDEX_CODECS
        if members.stored is not None and not members.problems:
            taken = "bytes in little-endian order and a crc32c"
            _warn_of_index(members.stored, members, "no index_codecs", taken)
    else:
        stored = members.stored
        inner = None if stored is None else replace(stored, ndim=stored.ndim + 1)
        index = _index_chain(members, _inner_chain(members, "index_codecs", index_codecs, inner))
    if chain is None or index is None or shape is None:
        return None
    return Sharding(tuple(shape), chain, index, location)


def _inner_chain(
    members: CodecMembers, name: str, documents: list[Any], stored: ParseContext | None
) -> CodecChain | None:
    place = members.at(name)
    if not documents:
        members.blame(name, documents, "at least one codec")
        return None
    chain = chain_from_v3(documents, place, stored)
    if isinstance(chain, list):
        members.problems.extend(chain)
        return None
    return chain


def _index_chain(members: CodecMembers, chain: CodecChain | None) -> CodecChain | None:
    """Return the codecs of an index; its integers are little-endian by default."""
    if chain is None:
        return None
    if chain.skipped:
        members.blame("index_codecs", list(chain.skipped), "known codecs", "codec")
        return None
    if chain.serializer != Bytes(None):
        return chain
    if members.stored is not None:
        found = "index_codecs without byte order"
        _warn_of_index(members.stored, members, found, "little-endian order")
    return replace(chain, serializer=Bytes("little"))


def _warn_of_index(stored: ParseContext, members: FieldReader, found: str, taken: str) -> None:
    stored.warn(f"{members.place} has {found}; {taken} is taken for granted.")


def _n5_default(members: CodecMembers) -> Codec | None:
    codecs = members.take("codecs", is_codec_list, "a list of at most 1000 codecs")
    chain = None if codecs is None else _inner_chain(members, "codecs", codecs, members.stored)
    return None if chain is None else N5Default(chain)


def _conditional(members: CodecMembers) -> Codec | None:
    documents = members.take("codecs", is_codec_list, "a list of at most 1000 codecs")
    fewest = -(-len(documents or ()) // 8) * 8
    bits = members.take(
        "header_bits",
        is_int_in(range(fewest, _MOST_HEADER_BITS + 1, 8)),
        f"a multiple of 8 from {fewest} to {_MOST_HEADER_BITS}",
        None,
    )
    codecs = []
    for position, document in enumerate(documents or ()):
        place = members.at(f"codecs[{position}]")
        made = codec_from_v3(document, place, members.stored)
        if isinstance(made, list):
            members.problems.extend(made)
        elif isinstance(made, BytesCodec):
            codecs.append(made)
        else:
            members.problems.append(
                ValidationProblem(place, made.name, "a codec from bytes to bytes")
            )
    return Conditional(tuple(codecs), bits)


_MOST_HEADER_BITS = 1 << 16


def _zfp(members: FieldReader) -> Codec | None:
    modes = ("reversible", "expert", *Zfp.names)
    mode = members.take("mode", is_one_of(*modes), f"one of {list(modes)}")
    if mode is None:
        members.rest().clear()
        return None
    if mode == "reversible":
        return Zfp()
    if mode == "expert":
        numbers = [members.take(name, is_int, "an integer") for name in ZfpExpertParams._fields]
        return None if None in numbers else Zfp(mode, expert=ZfpExpertParams(*numbers))
    name = Zfp.names[mode]
    fits, expected = _ZFP_PARAMETERS[name]
    return Zfp(mode, members.take(name, fits, expected))


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value < math.inf


_ZFP_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tolerance": (_is_number, "a number of at least 0"),
    "rate": (lambda v: _is_number(v) and 0 < v <= 128, "a number above 0, up to 128"),
    "precision": (is_int_in(range(1, 129)), "an integer from 1 to 128"),
}


def _zfpy(members: FieldReader) -> Codec:
    options = dict(members.rest())
    mode = members.take("mode", lambda v: is_int(v) and v in Zfpy.modes, "2, 3 or 4", 4)
    for name, (fits, expected) in _ZFP_PARAMETERS.items():
        used = Zfpy.modes.get(mode) == name
        members.take(name, fits if used else any_value, expected, -1)
    members.take("compression_kwargs", any_value, "anything", None)
    return Zfpy(json.dumps(options))


def _pcodec(members: FieldReader) -> Codec:
    options = dict(members.rest())
    members.take("level", is_int_in(range(13)), "an integer from 0 to 12", 8)
    for name in ("mode_spec", "delta_spec", "paging_spec"):
        members.take(name, lambda v: isinstance(v, str), "a text", None)
    order = is_int_in(range(8))
    members.take("delta_encoding_order", lambda v: v is None or order(v), "0 to 7, or null", None)
    pages = is_int_in(range(1, 1 << 32))
    members.take("equal_pages_up_to", pages, "a positive integer", 1 << 18)
    return Pcodec(json.dumps(options))


def _prefixed(identifier: str, members: FieldReader) -> Codec | None:
    """Return a codec from bytes to bytes by its id in numcodecs, with the same spelling."""
    options = dict(members.rest())
    members.rest().clear()
    if identifier == "shuffle" and not is_int_in(range(1, 1 << 31))(options.get("elementsize")):
        found = options.get("elementsize", ABSENT)
        members.blame("elementsize", found, "a positive integer")
        return None
    codec = codec_from_numcodecs({**options, "id": identifier}, members.place)
    if isinstance(codec, list):
        members.problems.extend(codec)
        return None
    return NumcodecsBytesCodec.of(codec, identifier, options)


_PREFIXED = (
    *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "shuffle"),
    *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"),
)
"""Codecs from bytes to bytes that zarr-python writes to v3 metadata by these ids."""

_V3: dict[str, Callable[[CodecMembers], Codec | None]] = {
    "bytes": _bytes,
    "endian": _endian,
    "packbits": PackBits.of,
    "transpose": _transpose,
    "bitround": BitRound.of,
    "cast_value": CastValue.of,
    "reshape": Reshape.of,
    "scale_offset": ScaleOffset.of,
    "gzip": _gzip,
    "zstd": _zstd,
    "blosc": _blosc,
    "crc32c": _crc32c,
    "conditional": _conditional,
    "n5_default": _n5_default,
    "zfp": _zfp,
    f"{PREFIX}zfpy": _zfpy,
    f"{PREFIX}pcodec": _pcodec,
    "sharding_indexed": _sharding,
    "vlen-utf8": lambda members: VlenUtf8(),  # noqa: ARG005  (nothing to configure)
    "vlen-bytes": lambda members: VlenBytes(),  # noqa: ARG005
    f"{PREFIX}bitround": partial(BitRound.of, alias=True),
    **{f"{PREFIX}{name}": partial(ArrayFilter.of, name) for name in PREFIXED_FILTERS},
    **{f"{PREFIX}{name}": partial(_prefixed, name) for name in _PREFIXED},
}


_DEEPEST = 32
"""Limit of nested shards; more could only be an attack on the stack."""


def v3_names() -> tuple[str, ...]:
    """Return the names of the codecs that v3 metadata may have."""
    return tuple(sorted(_V3))


_URI = re.compile(
    r"https?://(codec\.zarrs\.dev/[a-z]+_to_[a-z]+|zarr\.dev/numcodecs)/([a-z0-9_-]+)"
)
"""Names of codecs that zarrs and numcodecs wrote before these had others."""


def _present_name(name: str, place: str, stored: ParseContext) -> str:
    """Return the present name of a codec that was named by a URI; other names unchanged."""
    match = _URI.fullmatch(name)
    if match is None:
        return name
    now = match[2] if match[2] in _V3 and match[1] != "zarr.dev/numcodecs" else PREFIX + match[2]
    if now in _V3:
        stored.warn(f"{place} names a codec {name!r}, which is now called {now!r}.")
    return now if now in _V3 else name


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
        return [ValidationProblem(place, document, "a codec: an object with a 'name'")]
    if not isinstance(document.get("must_understand", True), bool):
        found = document["must_understand"]
        return [ValidationProblem(f"{place}.must_understand", found, "true or false")]
    name = document["name"]
    if name not in _V3 and stored is not None:
        name = _present_name(name, place, stored)
    if name not in _V3:
        return [ValidationProblem(f"{place}.name", name, _known(name), "codec")]
    configuration = document.get("configuration", {})
    if not isinstance(configuration, Mapping):
        return [ValidationProblem(f"{place}.configuration", configuration, "an object")]
    members = CodecMembers(configuration, f"{place}.configuration", stored)
    if place.count("configuration") > _DEEPEST:
        return [ValidationProblem(place, name, f"shards nested at most {_DEEPEST} deep")]
    codec = _V3[name](members)
    members.refuse_rest()
    return members.problems or codec  # type: ignore[return-value]


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


def _skipped(
    document: Any, place: str, on: Literal["arrays", "bytes"], stored: ParseContext
) -> Codec | None:
    """Return a placeholder for an unknown codec that may be skipped; None for all others."""
    if not may_be_ignored(document) or document["name"] in _V3:
        return None
    stored.warn(
        f"{place} is an unknown codec, {document['name']!r}, that need not be understood. It is "
        "skipped in reading; nothing can be written."
    )
    kind = UnknownArrayCodec if on == "arrays" else UnknownBytesCodec
    return kind(json.dumps(dict(document)))


# --- defaults for users' codecs -------------------------------------------------------------------

_ARRAY_CODECS = frozenset(
    {
        *("transpose", "bitround", "cast_value", "reshape", "scale_offset"),
        *(f"{PREFIX}{name}" for name in ("bitround", *PREFIXED_FILTERS)),
    }
)
_SERIALIZERS = frozenset(
    {
        *("bytes", "endian", "n5_default", "packbits", "sharding_indexed", "vlen-bytes"),
        *("vlen-utf8", "zfp", f"{PREFIX}zfpy", f"{PREFIX}pcodec"),
    }
)


def name_of(item: Any) -> str:
    """Return the name of a codec or of its metadata."""
    if isinstance(item, Codec):
        return item.name
    return str(item.get("name", "")) if isinstance(item, Mapping) else str(item)


def is_serializer(item: Any) -> bool:
    """True if a codec, or its metadata, is one from array to bytes."""
    return isinstance(item, Serializer) or name_of(item) in _SERIALIZERS


def is_array_codec(item: Any) -> bool:
    """True if a codec, or its metadata, is one from array to array."""
    return isinstance(item, ArrayCodec) or name_of(item) in _ARRAY_CODECS


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
    if isinstance(item, Blosc):
        return item.resolved(itemsize)
    if name_of(item) == Blosc.name:
        given = item.get("configuration", {}) if isinstance(item, Mapping) else {}
        if not isinstance(given, Mapping):
            return item
        default = Blosc(shuffle=None).resolved(itemsize).configuration()
        return {"name": Blosc.name, "configuration": {**default, **given}}
    if name_of(item) == f"{PREFIX}shuffle" and not isinstance(item, Codec):
        given = item.get("configuration", {}) if isinstance(item, Mapping) else {}
        members = {"elementsize": itemsize, **given} if isinstance(given, Mapping) else given
        return {"name": f"{PREFIX}shuffle", "configuration": members}
    if item == "gzip":
        return {"name": "gzip", "configuration": {"level": 5}}
    if item == "zstd":
        return {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    return item


def _known(name: str) -> str:
    """Return a phrase for the codecs that are known, the most similar one first."""
    names = v3_names()
    prefixed = f"{PREFIX}{name}"
    hint = f" Did you mean {prefixed!r}?" if prefixed in names else did_you_mean(name, names)
    return f"a known codec ({', '.join(names)}).{hint}"
