"""Codecs and storage transformers of the v3 draft: named by URIs, in two generations.

December 2022 has a list of ``codecs``, some of which work on arrays and some on bytes, with an
implicit step between them. May 2022 has one ``compressor``, and zarr-python 2, its writer, put
filters of numcodecs into the attributes. Both become a codec chain like that of every other array.
The storage transformer ``sharding`` becomes a sharding codec with an index at the end, without a
checksum.

Source: v3 draft, "Chunk encoding", and its pages on gzip, blosc, endian and transpose; extension
"Sharding storage transformer".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import (
    FieldReader,
    any_value,
    is_codec_list,
    is_ints,
    is_object,
    is_one_of,
)
from zarr_dask.codecs.arrays import Bytes, Endian, Transpose
from zarr_dask.codecs.base import ArrayCodec, BytesCodec, Codec
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.compress.blosc import BLOSC_SHUFFLES
from zarr_dask.codecs.registry import codec_from_v3, with_codec_defaults
from zarr_dask.codecs.registry_numcodecs import is_object_codec, numcodecs_from_codec
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.dtypes import DataType
from zarr_dask.errors import ValidationProblem
from zarr_dask.formats.v2 import OBJECT_CODECS, numcodecs_form
from zarr_dask.formats.v2_document import chain_from_v2
from zarr_dask.formats.v3draft_types import NamedType
from zarr_dask.grid.grid import Shape

__all__ = [
    "SHARD_INDEX_CODECS",
    "chain_from_codecs",
    "chain_from_compressor",
    "chain_from_names",
    "compressor_to_json",
    "filters_of",
    "sharded",
    "sharding_to_json",
    "steps_to_json",
]

_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z0-9_-]+)(?:/[0-9.]+)?")
_SHARDING_URI = re.compile(
    r"https?://purl\.org/zarr/spec/(?:extensions/)?storage[_-]transformers/sharding/1\.0"
)
_COMPRESSORS = ("gzip", "blosc", "zlib", "bz2", "lz4", "lzma", "zstd")
_KNOWN = (
    f"the URI of a known codec (https://purl.org/zarr/spec/codecs/... of {', '.join(_COMPRESSORS)}"
)
_MOST_TRANSFORMERS = 32

SHARD_INDEX_CODECS = CodecChain((), Bytes("little"))
"""Pairs of little-endian integers, without a checksum."""


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Swap:
    """The ``endian`` codec: converts an array to bytes of a byte order."""

    endian: Endian


_Config = tuple[str, dict[str, Any]]
"""Position and numcodecs configuration of a bytes codec."""


def chain_from_codecs(
    documents: Sequence[Any], named: NamedType, layout: str, ndim: int, *, allow_pickle: bool
) -> CodecChain | list[ValidationProblem]:
    """Return the codec chain of an array whose document has ``codecs``.

    A bytes codec that follows array codecs implies serialisation in C order, little-endian. An
    array codec that follows ``endian`` works on the bytes taken apart the same way, so a
    transposition moves the bytes of elements without changing them.

    Parameters
    ----------
    documents
        The list of codecs.
    named
        Data type in the document.
    layout
        ``chunk_memory_layout``: "F" reverses the dimensions before the first codec.
    ndim
        Number of dimensions.
    allow_pickle
        See `zarr_dask.ReadOptions`.
    """
    problems: list[ValidationProblem] = []
    arrays: list[ArrayCodec] = []
    swap: _Swap | None = None
    configs: list[_Config] = []
    for position, document in enumerate(documents):
        place = f"codecs[{position}]"
        step = _step(document, place, ndim)
        if isinstance(step, list):
            problems.extend(step)
        elif isinstance(step, tuple):
            configs.append(step)
        elif configs:
            expected = "codecs on arrays before those on bytes, whose number of bytes is unknown"
            problems.append(ValidationProblem(place, document, expected))
        elif isinstance(step, ArrayCodec):
            arrays.append(step)
        elif swap is None:
            swap = step
        else:
            problems.append(ValidationProblem(place, document, "one 'endian' codec at most"))
    stored = _ordered(named, swap)
    if isinstance(stored, ValidationProblem):
        problems.append(stored)
    if problems or isinstance(stored, ValidationProblem):
        return problems
    chain = chain_from_v2(configs, stored, layout, ndim, allow_pickle=allow_pickle)
    return chain if isinstance(chain, list) else replace(chain, arrays=(*chain.arrays, *arrays))


def _ordered(named: NamedType, swap: _Swap | None) -> np.dtype[Any] | ValidationProblem:
    """Return the type as stored, with the byte order of the ``endian`` codec."""
    if swap is None:
        return named.stored
    says_its_own = named.stored.names is not None or named.stored.hasobject
    if says_its_own or named.endian not in (None, swap.endian):
        expected = "the byte order that the data type says, or a data type that says none"
        return ValidationProblem("codecs", f"endian codec with {swap.endian!r}", expected)
    return named.stored.newbyteorder(">" if swap.endian == "big" else "<")


def _step(
    document: Any, place: str, ndim: int
) -> _Swap | Transpose | _Config | list[ValidationProblem]:
    if not is_object(document):
        return [ValidationProblem(place, document, "an object with the 'type' of a codec")]
    members = FieldReader(document, place)
    key = "type" if "type" in document else "codec"
    uri = members.take(key, lambda v: isinstance(v, str), "the URI of a codec")
    configuration = members.take("configuration", is_object, "an object", {})
    members.refuse_rest()
    if members.problems:
        return members.problems
    match = _URI.fullmatch(uri)
    name = match[1] if match else ""
    inside = FieldReader(configuration, f"{place}.configuration")
    # in the specification, transpose has the URI of endian
    if name == "transpose" or (name == "endian" and "order" in configuration):
        return _transpose(inside, ndim)
    if name == "endian":
        return _endian(inside)
    if name in _COMPRESSORS:
        return place, _numcodecs_form(name, configuration)
    return [ValidationProblem(f"{place}.{key}", uri, f"{_KNOWN}, endian, transpose)", "codec")]


def _endian(members: FieldReader) -> _Swap | list[ValidationProblem]:
    endian = members.take("endian", is_one_of("little", "big"), "'little' or 'big'")
    members.refuse_rest()
    return members.problems or _Swap(endian)


def _transpose(members: FieldReader, ndim: int) -> Transpose | list[ValidationProblem]:
    order = members.take(
        "order", lambda v: is_ints(v) or v in ("C", "F"), "a list of the dimensions, 'C' or 'F'"
    )
    members.refuse_rest()
    if isinstance(order, str):
        order = range(ndim) if order == "C" else reversed(range(ndim))
    return members.problems or Transpose(tuple(order))


def _numcodecs_form(name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in the form of numcodecs, which the draft adopted."""
    form = {"id": name, **configuration}
    if name == "blosc":
        form.pop("typesize", None)  # recorded since 2023; the frame itself contains it
        if form.get("shuffle") in BLOSC_SHUFFLES:
            form["shuffle"] = BLOSC_SHUFFLES.index(form["shuffle"])
    return form


def chain_from_compressor(
    compressor: Any,
    filters: list[Any],
    stored: np.dtype[Any],
    layout: str,
    ndim: int,
    *,
    allow_pickle: bool,
) -> CodecChain | list[ValidationProblem]:
    """Return the codec chain of an array of May 2022.

    Parameters
    ----------
    compressor
        The field of the document, or None.
    filters
        Filters that zarr-python 2 put into the attributes: numcodecs configurations.
    stored
        The type as stored.
    layout
        ``chunk_memory_layout``, "C" or "F".
    ndim
        Number of dimensions.
    allow_pickle
        See `zarr_dask.ReadOptions`.
    """
    if not is_codec_list(filters):
        found, expected = f"{len(filters)} filters", "a list of at most 1000"
        return [ValidationProblem("attributes.filters", found, expected)]
    documents = [(f"attributes.filters[{i}]", item) for i, item in enumerate(filters)]
    if compressor is not None:
        step = _step(compressor, "compressor", ndim)
        if isinstance(step, list):
            return step
        if not isinstance(step, tuple):
            return [ValidationProblem("compressor", compressor, f"{_KNOWN})", "codec")]
        documents.append(step)
    return chain_from_v2(documents, stored, layout, ndim, allow_pickle=allow_pickle)


def filters_of(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the filters among the attributes, where zarr-python 2 stored them."""
    filters = attributes.get("filters")
    if isinstance(filters, list) and all(is_object(f) and "id" in f for f in filters):
        return filters
    return []


def sharded(
    transformers: Sequence[Any], cell: Shape, chain: CodecChain, problems: list[ValidationProblem]
) -> tuple[Shape, CodecChain]:
    """Return shape and chain of stored objects, from those of chunks; add to `problems`.

    The first transformer is next to the array: it combines chunks, the next combines its shards.
    """
    if len(transformers) > _MOST_TRANSFORMERS:
        expected = f"{_MOST_TRANSFORMERS} storage transformers at most"
        problems.append(ValidationProblem("storage_transformers", len(transformers), expected))
        return cell, chain
    for position, document in enumerate(transformers):
        members = FieldReader({}, f"storage_transformers[{position}]")
        counts = _chunks_per_shard(document, members, len(cell))
        problems.extend(members.problems)
        if counts is None:
            return cell, chain
        chain = CodecChain((), Sharding(cell, chain, SHARD_INDEX_CODECS))
        cell = tuple(length * count for length, count in zip(cell, counts, strict=True))
    return cell, chain


def _chunks_per_shard(document: Any, outer: FieldReader, ndim: int) -> Shape | None:
    if not is_object(document):
        outer.problems.append(
            ValidationProblem(outer.place, document, "an object with an 'extension'")
        )
        return None
    members = FieldReader(document, outer.place)
    uri = members.take("extension", lambda v: isinstance(v, str), "the URI of an extension")
    kind = members.take("type", any_value, "'indexed'")
    configuration = members.take("configuration", is_object, "an object", {})
    outer.problems.extend(members.problems)
    if uri is None or configuration is None:
        return None
    if not _SHARDING_URI.fullmatch(uri) or kind != "indexed":
        expected = "sharding of type 'indexed', the only known storage transformer"
        outer.problems.append(ValidationProblem(outer.place, dict(document), expected, "codec"))
        return None
    inside = FieldReader(configuration, f"{outer.place}.configuration")
    expected = f"a list of {ndim} integers of at least 1"
    counts = inside.take("chunks_per_shard", is_ints, expected)
    if ndim == 0 and counts == [1]:
        counts = []  # zarr-python 2 does not write an empty list here
    if counts is not None and (len(counts) != ndim or min(counts, default=1) < 1):
        inside.blame("chunks_per_shard", counts, expected, "grid")
    outer.problems.extend(inside.problems)
    return None if inside.problems else tuple(counts)


# --- writing --------------------------------------------------------------------------------------


def chain_from_names(
    wanted: Any, data_type: DataType, stored: np.dtype[Any], order: str, ndim: int
) -> CodecChain | list[ValidationProblem]:
    """Return the codec chain of a new array; see `zarr_dask.formats.base.Format.chain`.

    Codecs may be given by their URI, by name as in v3, as numcodecs configurations or as values. A
    byte order among them overrides that of the data type.
    """
    if wanted is None:
        shuffle = 2 if data_type.itemsize == 1 and not data_type.variable else 1
        wanted = [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": shuffle}]
    elif isinstance(wanted, str | Codec | Mapping):
        wanted = [wanted]
    configs: list[_Config] = []
    for position, item in enumerate(wanted):
        keeps = isinstance(item, str | Codec | Mapping)  # a name is that of v3
        form = item if keeps else numcodecs_form(item)
        step = _wanted_step(form, f"codecs[{position}]", data_type, ndim)
        if isinstance(step, list):
            return step
        if isinstance(step, _Swap):
            stored = stored.newbyteorder(">" if step.endian == "big" else "<")
        else:
            configs.append(step)
    if data_type.variable and not (configs and is_object_codec(configs[0][1])):
        configs.insert(0, ("codecs", {"id": OBJECT_CODECS.get(data_type.name, data_type.name)}))
    return chain_from_v2(configs, stored, order, ndim)


def _wanted_step(
    item: Any, place: str, data_type: DataType, ndim: int
) -> _Swap | _Config | list[ValidationProblem]:
    """Parse a codec given by a user in any spelling."""
    if isinstance(item, Mapping) and "id" in item:
        return place, dict(item)
    expected = "a codec that the draft can name; the layout of chunks is that of order="
    if isinstance(item, Mapping) and ("type" in item or "codec" in item):
        step = _step(item, place, ndim)
        return [ValidationProblem(place, item, expected)] if isinstance(step, Transpose) else step
    made = codec_from_v3(with_codec_defaults(item, data_type.itemsize), place)
    if isinstance(made, list):
        return made
    if isinstance(made, Bytes):
        return _Swap(made.endian or "little")
    config = numcodecs_from_codec(made) if isinstance(made, BytesCodec) else None
    return (
        [ValidationProblem(place, item, expected, "codec")] if config is None else (place, config)
    )


def steps_to_json(
    codecs: Sequence[BytesCodec], endian: Endian | None
) -> list[Any] | ValidationProblem:
    """Return the ``codecs`` of December 2022, whose specification has gzip, blosc and endian.

    Parameters
    ----------
    codecs
        Bytes codecs.
    endian
        Byte order of the elements, if the data type does not state it; otherwise None.
    """
    steps: list[Any] = []
    if endian == "big":  # little is the default
        steps.append(_named("codecs", "endian", {"endian": "big"}))
    for position, codec in enumerate(codecs):
        if codec.name not in {"gzip", "blosc"}:
            expected = "gzip or blosc: the draft has no other compressors"
            return ValidationProblem(f"codecs[{position}]", codec.name, expected, "codec")
        steps.append(_named("codecs", codec.name, _configuration(codec)))
    return steps


def compressor_to_json(
    codecs: Sequence[BytesCodec],
) -> tuple[dict[str, Any] | None, list[Any]] | ValidationProblem:
    """Return the ``compressor`` of May 2022, and the filters that go into the attributes."""
    documents = [numcodecs_from_codec(codec) for codec in codecs]
    for position, document in enumerate(documents):
        if document is None:
            name = codecs[position].name
            return ValidationProblem(
                f"codecs[{position}]", name, "a codec that numcodecs has", "codec"
            )
    if not documents or codecs[-1].name not in _COMPRESSORS:
        return None, documents
    codec = codecs[-1]
    named = _named("codec", codec.name, _configuration(codec))
    return {"codec": named["type"], "configuration": named["configuration"]}, documents[:-1]


def _named(folder: str, name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    uri = f"https://purl.org/zarr/spec/{folder}/{name}/1.0"
    return {"type": uri, "configuration": configuration}


def _configuration(codec: BytesCodec) -> dict[str, Any]:
    config = dict(numcodecs_from_codec(codec) or {})
    config.pop("id", None)
    return config


def sharding_to_json(counts: Shape, uri: str) -> dict[str, Any]:
    """Return the storage transformer that combines `counts` chunks along each dimension."""
    configuration = {"chunks_per_shard": list(counts)}
    return {"extension": uri, "type": "indexed", "configuration": configuration}
