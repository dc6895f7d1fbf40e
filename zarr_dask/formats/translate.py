"""Translation of metadata to another format, for the same stored bytes.

`translate` converts the metadata of a node to another format without reading stored objects. Byte
order becomes part of the ``bytes`` codec, memory order a ``transpose``. Filters of numbers become
array codecs before it, all other filters and the compressor bytes codecs after it. Anything that
has no such form is a `ValidationProblem`; visible differences for readers (no fill value, for
instance) are notes. Each new codec chain is tested on a few values that the old one has encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from zarr_dask.codecs.arrays import Bytes, StructBytes, endian_of
from zarr_dask.codecs.base import BytesCodec, ChunkSpec, Codec, DecodeOptions, concat_buffers
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.codec_config import PREFIX
from zarr_dask.codecs.compress.blosc import BLOSC_LARGEST_TYPESIZE, Blosc
from zarr_dask.codecs.compress.deflate import Gzip
from zarr_dask.codecs.numcodecs import ARRAY_FILTERS, Filter
from zarr_dask.codecs.registry import chain_from_v3
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.errors import CorruptObjectError, DataTypeError, MetadataError, ValidationProblem
from zarr_dask.formats.base import (
    DIMENSIONS,
    ArrayMeta,
    ChunkKeyEncoding,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
)
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.missing_values import FILL_VALUE, has_mask
from zarr_dask.formats.v1 import V1
from zarr_dask.formats.v2 import V2
from zarr_dask.formats.v3 import V3
from zarr_dask.formats.v3draft import draft_at
from zarr_dask.grid.grid import Shape
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import open_store

__all__ = [
    "DIMENSIONS",
    "TARGETS",
    "Translation",
    "default_keys",
    "legacy_key_encodings",
    "names_problems",
    "older_formats",
    "translate",
    "xarray_mask_differences",
]

TARGETS: tuple[Format, ...] = (V3, V2)
"""Formats that a node can be migrated to."""


def older_formats(target: Format, store: Store, options: ReadOptions) -> tuple[Format, ...]:
    """Return the formats that can be migrated to another one, with the draft named by the root.

    Raises
    ------
    MetadataError
        If the entry point of a draft is wrong.
    """
    if target != V3:
        return (V1,)
    draft = draft_at(store, options)
    others = tuple(one for one in FORMATS if one != V3)
    return others if draft is None else (draft, *others)


def default_keys(target: Format, keys: ChunkKeyEncoding) -> ChunkKeyEncoding:
    """Return the layout of keys for stored objects that are copied anyway.

    Examples
    --------
    >>> default_keys(V3, ChunkKeyEncoding("v2", "."))
    ChunkKeyEncoding(name='default', separator='/')
    >>> default_keys(V2, ChunkKeyEncoding("default", "/"))
    ChunkKeyEncoding(name='v2', separator='/')
    """
    if target != V3:
        return ChunkKeyEncoding("v2", keys.separator)
    return ChunkKeyEncoding("default", "/" if keys.name == "v2" else keys.separator)


def legacy_key_encodings(ndim: int) -> tuple[ChunkKeyEncoding, ...]:
    """Return the layouts of keys that an array of `ndim` dimensions may have in an older format.

    Examples
    --------
    >>> legacy_key_encodings(1)  # nothing to separate
    (ChunkKeyEncoding(name='v2', separator='.'),)
    """
    dots = ChunkKeyEncoding("v2", ".")
    return (dots, ChunkKeyEncoding("v2", "/")) if ndim > 1 else (dots,)


@dataclass(frozen=True)
class Translation:
    """A node in another format, or the reasons why that is not possible."""

    meta: NodeMeta | None
    """None if there are problems."""
    problems: tuple[ValidationProblem, ...] = ()
    """Properties that the other format cannot express for the same stored bytes."""
    notes: tuple[str, ...] = ()
    """Information for users: values that are expressed differently, or more exactly than before."""


def translate(meta: NodeMeta, target: Format, keys: ChunkKeyEncoding | None) -> Translation:
    """Translate a node to another format.

    Parameters
    ----------
    meta
        Metadata of the node.
    target
        The other format.
    keys
        Layout of the keys of its stored objects; None for a group.
    """
    if isinstance(meta, GroupMeta) or keys is None:
        return Translation(GroupMeta(meta.attributes))
    if target != V3:
        return _without_new_codecs(replace(meta, chunk_key_encoding=keys, extra={}), target)
    work = _Translation()
    work.problems.extend(_type_problems(meta))
    codecs = None if work.problems else _chain(meta.codecs, meta, work)
    if codecs is None:
        return Translation(None, tuple(work.problems), tuple(work.notes))
    fill = meta.fill_value
    if fill is None:
        fill = meta.data_type.zero
        work.notes.append("fill value: there is none (null); it becomes zero, as which it is read")
    translated = replace(
        meta,
        codecs=codecs,
        chunk_key_encoding=keys,
        fill_value=fill,
        attributes=_attributes(meta, work),
        extra={},
    )
    checked = _checked(translated, target)
    return replace(checked, notes=(*work.notes, *checked.notes))


def _without_new_codecs(meta: ArrayMeta, target: Format) -> Translation:
    """Return the metadata in a format that names codecs as numcodecs does."""
    problems = tuple(names_problems(meta.attributes, meta.dimension_names, target))
    if problems:
        return Translation(None, problems)
    attributes = target.attributes(meta.attributes, meta.dimension_names)
    checked = _checked(replace(meta, attributes=attributes), target)
    if not isinstance(checked.meta, ArrayMeta):
        return checked
    found = target.documents(checked.meta, "")
    texts: dict[str, bytes | None] = {key: found.get(key) for key in target.node_keys("")}
    again = target.read(open_store({}), "", ReadOptions(), found=texts)
    if isinstance(again, ArrayMeta) and _same_values(meta.codecs, again.codecs, meta):
        return checked
    names = [codec.name for codec in meta.codecs.codecs]
    expected = f"codecs whose {target.name} form decodes to the same values"
    return Translation(None, (ValidationProblem("codecs", names, expected, "codec"),))


def names_problems(
    attributes: Mapping[str, Any], names: Sequence[str | None] | None, target: Format
) -> Iterator[ValidationProblem]:
    """Yield the attribute of a user that the names of dimensions would replace in a format."""
    kept = target.names_attribute
    if kept is None or names is None or attributes.get(kept, list(names)) == list(names):
        return
    expected = f"{list(names)}: in {target.name} it holds the names of dimensions; remove it"
    yield ValidationProblem(f"attributes.{kept}", attributes[kept], expected)


def _checked(meta: ArrayMeta, target: Format) -> Translation:
    """Return the metadata if their documents can be written; otherwise the problems."""
    try:
        target.documents(meta, "")
    except MetadataError as error:
        return Translation(None, error.problems)
    return Translation(meta)


@dataclass
class _Translation:
    """Problems and notes of a translation in progress."""

    problems: list[ValidationProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def xarray_mask_differences(
    old: NodeMeta, old_format: Format, new: NodeMeta, new_format: Format
) -> tuple[str, ...]:
    """Return notes about an array in which xarray masks other elements in the other format.

    Parameters
    ----------
    old, old_format
        Metadata and format before.
    new, new_format
        Metadata and format after.
    """
    if not (isinstance(old, ArrayMeta) and isinstance(new, ArrayMeta)):
        return ()
    was_v3, is_v3 = old_format == V3, new_format == V3
    if is_v3 and not was_v3 and has_mask(old) and FILL_VALUE not in new.attributes:
        return (
            f"fill value: xarray takes elements equal to {new.fill_value} for missing values "
            "before v3, and in v3 the attribute _FillValue, which there is none of: they become "
            "numbers to it. If they are missing values, "
            f'update_attributes({{"_FillValue": {new.fill_value}}}) afterwards',
        )
    if was_v3 and not is_v3 and has_mask(new) and FILL_VALUE not in old.attributes:
        return (
            f"fill value: xarray takes elements equal to {new.fill_value} for missing values "
            "before v3, and in v3 only where the attribute _FillValue says so: they are no numbers "
            "to it any more. If they are numbers, open with use_zarr_fill_value_as_mask=False",
        )
    return ()


def _attributes(meta: ArrayMeta, work: _Translation) -> dict[str, Any]:
    """Return the attributes without the names of dimensions, which v3 stores in a field."""
    attributes = dict(meta.attributes)
    names = attributes.get(DIMENSIONS)
    if meta.dimension_names is not None and names == list(meta.dimension_names):
        del attributes[DIMENSIONS]
        work.notes.append(f"attribute {DIMENSIONS} becomes dimension_names {names}")
    return attributes


# --- data types -----------------------------------------------------------------------------------


def _type_problems(meta: ArrayMeta) -> Iterator[ValidationProblem]:
    data_type = meta.data_type
    rewrite = "write the array anew (zarr_dask.to_zarr) to migrate it"
    if meta.skipped:
        expected = f"a data type that is known, not one to be read as its fallback; {rewrite}"
        yield ValidationProblem("data_type", ", ".join(meta.skipped), expected, "data_type")
    if data_type.name == "object":
        codec = meta.codecs.serializer.name
        expected = f"a data type of v3: it has none for objects of codec {codec!r}; {rewrite}"
        yield ValidationProblem("dtype", "|O", expected, "data_type")
    for name in _subarray_fields(data_type.dtype):
        expected = f"fields without a shape: v3 has none that are arrays; {rewrite}"
        yield ValidationProblem(
            f"dtype field {name!r}", str(data_type.dtype), expected, "data_type"
        )
    serializer = meta.codecs.serializer
    if isinstance(serializer, StructBytes):
        orders = ", ".join(f"{name!r} {order}" for name, order in _byte_orders(serializer.dtype))
        expected = (
            f"fields of one byte order: v3 has one for all of them, and here are {orders}; "
            f"{rewrite}"
        )
        yield ValidationProblem("dtype", serializer.stored, expected, "data_type")


def _subarray_fields(dtype: np.dtype[Any], place: str = "") -> Iterator[str]:
    for name, entry in (dtype.fields or {}).items():
        at = f"{place}{name}"
        if entry[0].subdtype is not None:
            yield at
        else:
            yield from _subarray_fields(entry[0], f"{at}.")


def _byte_orders(stored: np.dtype[Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield fields of several bytes and their byte orders."""
    for name, entry in (stored.fields or {}).items():
        at = f"{place}{name}"
        if entry[0].fields:
            yield from _byte_orders(entry[0], f"{at}.")
        elif entry[0].str[0] in "<>":
            yield at, "big" if entry[0].str[0] == ">" else "little"


# --- codecs ---------------------------------------------------------------------------------------


def _chain(chain: CodecChain, meta: ArrayMeta, work: _Translation) -> CodecChain | None:
    """Return the same codec chain in v3; None if there are problems."""
    documents = _documents(chain, meta, work)
    if work.problems:
        return None
    made = chain_from_v3(documents)
    if isinstance(made, list):
        work.problems.extend(made)
        return None
    problems = list(
        made.problems(ChunkSpec(meta.grid.largest_cell, meta.data_type, meta.fill_value))
    )
    work.problems.extend(problems)
    if not problems and not chain.serializer.is_sharding and not _same_values(chain, made, meta):
        found = [codec.name for codec in chain.codecs]
        expected = "codecs whose v3 form decodes to the same values"
        work.problems.append(ValidationProblem("codecs", found, expected, "codec"))
    return None if work.problems else made


def _documents(chain: CodecChain, meta: ArrayMeta, work: _Translation) -> list[Any]:
    serializer = chain.serializer
    if isinstance(serializer, Sharding):
        inner = _documents(serializer.codecs, meta, work)
        configuration = {**serializer.configuration(), "codecs": inner}
        document = {"name": serializer.name, "configuration": configuration}
        return [*chain.arrays, document, *chain.bytes]
    stored = _stored(chain, meta)
    numbers, others = _filters(chain.bytes, work)
    running = stored
    for codec in numbers:
        running = _after(codec, running, work)
    first = serializer if not numbers or running is None else Bytes(endian_of(running))
    itemsize = meta.data_type.itemsize if running is None else running.itemsize
    return [
        *chain.arrays,
        *(_v3_form(codec, itemsize, work) for codec in numbers),
        first,
        *(_v3_form(codec, itemsize, work) for codec in others),
    ]


def _stored(chain: CodecChain, meta: ArrayMeta) -> np.dtype[Any] | None:
    """Return the dtype given to the serializer, with its byte order; None if not fixed."""
    if not isinstance(chain.serializer, Bytes):
        return None
    return meta.dtype.newbyteorder(">" if chain.serializer.endian == "big" else "<")


def _filters(
    codecs: Sequence[BytesCodec], work: _Translation
) -> tuple[list[Filter], list[BytesCodec]]:
    """Split codecs into filters of numbers and the codecs after them."""
    numbers = [codec for codec in takewhile(_is_of_numbers, codecs) if isinstance(codec, Filter)]
    others = list(codecs[len(numbers) :])
    for position, codec in enumerate(others, len(numbers)):
        if _is_of_numbers(codec):
            before = _name(others[0])
            expected = (
                f"filters of numbers before all others: {before!r} comes first and makes bytes of "
                "them, which v3 cannot take for numbers again. Write the array anew"
            )
            work.problems.append(
                ValidationProblem(f"filters[{position}]", _name(codec), expected, "codec")
            )
    return numbers, others


def _is_of_numbers(codec: Codec) -> bool:
    return isinstance(codec, Filter) and codec.id in ARRAY_FILTERS


def _name(codec: Codec) -> str:
    return codec.id if isinstance(codec, Filter) else codec.name


_INPUT = {"astype": "decode_dtype", "bitround": "", "packbits": ""}
"""Option that names the input type of a filter, if not ``dtype``."""


def _after(codec: Filter, given: np.dtype[Any] | None, work: _Translation) -> np.dtype[Any] | None:
    """Return the dtype of a filter's output, with its byte order."""
    options = codec.configuration()
    member = _INPUT.get(codec.id, "dtype")
    if codec.id == "categorize" or given is None:
        expected = "a filter that v3 has for this data type. Write the array anew"
        work.problems.append(ValidationProblem("filters", codec.id, expected, "codec"))
        return None
    if member and options.get(member) and np.dtype(options[member]) != given:
        # in v2 its input is bytes, interpreted as any type; in v3 its input is numbers
        expected = f"{given.str!r}, the type of what the filter {codec.id!r} is given"
        work.problems.append(
            ValidationProblem(f"filters.{member}", options[member], expected, "codec")
        )
        return None
    return np.dtype(codec.output_dtype(given.str))


def _v3_form(codec: BytesCodec, itemsize: int, work: _Translation) -> Any:
    """Return a filter or a compressor as a codec of v3, or its document."""
    if isinstance(codec, Blosc):
        if codec.shuffle is None:
            how = codec.resolved(itemsize).shuffle
            work.notes.append(f"blosc: automatic shuffle (-1) is {how!r} for {itemsize} bytes")
        return codec.resolved(itemsize if itemsize <= BLOSC_LARGEST_TYPESIZE else 1)
    if isinstance(codec, Gzip) and codec.level < 0:
        work.notes.append("gzip: level -1 becomes 6, which is what it means")
        return Gzip(6)
    configuration = codec.configuration()
    if isinstance(codec, Filter):
        del configuration["id"]
        if codec.id == "crc32c" and configuration.get("location", "end") == "end":
            return {"name": "crc32c"}
        return {"name": f"{PREFIX}{codec.id}", "configuration": _without_order(configuration)}
    if codec.name in _NUMCODECS_ONLY:
        return {"name": f"{PREFIX}{codec.name}", "configuration": configuration}
    return codec


def _without_order(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a filter for numbers as they are in memory.

    In v2 its types have the byte order of the stored elements. In v3 the ``bytes`` codec has it,
    and the types have the one order that all readers interpret as none.
    """
    types = {name: configuration[name] for name in _TYPES if configuration.get(name)}
    orderless = {name: np.dtype(text).newbyteorder("<").str for name, text in types.items()}
    return {**configuration, **orderless}


_TYPES = ("dtype", "astype", "encode_dtype", "decode_dtype")
"""Options of filters that are types."""

_NUMCODECS_ONLY = frozenset({"bz2", "lz4", "lzma", "zlib"})
"""Compressors without a registered name in v3."""


# --- testing --------------------------------------------------------------------------------------

_TRIED = 5
"""Maximum number of elements along each dimension of the chunk that a chain is tested on."""
_MOST_TRIED = 4096
"""Maximum number of its elements; further dimensions have a length of 1."""


def _same_values(old: CodecChain, new: CodecChain, meta: ArrayMeta) -> bool:
    """True if the new chain decodes the encoding of the old one to the same values."""
    shape = _small(meta.chunk_shape)
    spec = ChunkSpec(shape, meta.data_type, meta.fill_value)
    with np.errstate(all="ignore"):  # lossy filters are not made for these values
        buffer = concat_buffers(old.bind(spec).encode(_sample(shape, meta)))
        before, after = (np.empty(shape, meta.dtype) for _ in range(2))
        old.bind(spec).decode(buffer, None, before, DecodeOptions())
        try:
            new.bind(spec).decode(buffer, None, after, DecodeOptions())
        except (CorruptObjectError, DataTypeError):
            return False
    return _identical(before, after)


def _small(shape: Shape) -> Shape:
    """Return the shape of the tested part of a chunk.

    Examples
    --------
    >>> _small((2, 1000, 1000)), _small((9,) * 30)[:8]
    ((2, 5, 5), (5, 5, 5, 5, 5, 1, 1, 1))
    """
    lengths: list[int] = []
    for length in shape:
        tried = min(length, _TRIED)
        lengths.append(tried if prod(lengths) * tried <= _MOST_TRIED else 1)
    return tuple(lengths)


def _identical(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.hasobject:
        return bool(a.tolist() == b.tolist())
    return a.tobytes() == b.tobytes()


def _sample(shape: Shape, meta: ArrayMeta) -> np.ndarray:
    """Return different values of a data type."""
    count = prod(shape)
    if meta.data_type.variable:
        texts = [str(number) for number in range(count)]
        values = np.empty(count, object)
        values[:] = texts if meta.data_type.name == "string" else [t.encode() for t in texts]
        return values.reshape(shape)
    return _counted(count, meta.dtype).reshape(shape)


def _counted(count: int, dtype: np.dtype[Any]) -> np.ndarray:
    values = np.zeros(count, dtype)
    if dtype.names:
        for name in dtype.names:
            values[name] = _counted(count, dtype[name])
    elif dtype.kind == "V":
        values = np.arange(count * dtype.itemsize).astype("u1").view(dtype)
    elif dtype.kind in "mM":
        values = np.arange(count, dtype="i8").view(dtype)
    elif dtype.kind in "SU":
        values[:] = [str(number) for number in range(count)]
    else:
        values[:] = np.arange(count) % (2 if dtype.kind == "b" else 7)
    return values
