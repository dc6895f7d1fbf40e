"""Reading and writing of ``meta``, the document of a Zarr v1 array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import FieldReader, any_value, is_int, is_object, is_one_of
from zarr_dask._util.warnings import warn
from zarr_dask.codecs.base import BytesCodec
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.compress.blosc import BLOSC_SHUFFLES, Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Lzma, Zlib
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import ArrayMeta, ChunkKeyEncoding, ReadOptions
from zarr_dask.formats.numpy_dtype_json import (
    dtype_to_json,
    fill_from_json,
    fill_to_json,
    memory_type,
)
from zarr_dask.formats.v2_document import (
    chain_from_v2,
    dimension_names,
    order_of,
    stored_dtype,
    take_dtype,
    take_grid,
    unsupported_fields,
)

__all__ = ["array_document", "parse"]

_LZMA_XZ = 1

# --- reading --------------------------------------------------------------------------------------


def parse(
    document: Mapping[str, Any], attributes: Mapping[str, Any], at: str, options: ReadOptions
) -> ArrayMeta:
    """Parse a ``meta`` document; unknown fields are ignored.

    Raises
    ------
    MetadataError
        With all problems of the document.
    """
    members = FieldReader(document)
    members.take("zarr_format", lambda value: value == 1 and is_int(value), "the integer 1")
    grid = take_grid(members)
    if grid is not None and grid.ndim == 0:
        members.blame("shape", [], "at least one dimension: v1 has no key for the chunk of none")
    stored = _type(members)
    fill = _fill_value(members, stored)
    order = members.take("order", is_one_of("C", "F"), "'C' or 'F'")
    compressor = _compressor(members)
    if members.problems or grid is None or stored is None:
        raise MetadataError.of(at, members.problems)
    order = _order_in_chunks(order, compressor, grid.ndim, at, options)
    documents = [] if compressor is None else [("compression", compressor)]
    codecs = chain_from_v2(documents, stored, order, grid.ndim)
    data_type = memory_type(stored)
    if not isinstance(codecs, CodecChain) or isinstance(data_type, ValidationProblem):
        problems = [] if isinstance(codecs, CodecChain) else codecs
        problems += [data_type] if isinstance(data_type, ValidationProblem) else []
        raise MetadataError.of(at, problems)
    names = dimension_names(attributes, grid.ndim)
    meta = ArrayMeta(
        grid,
        data_type,
        fill,
        codecs,
        ChunkKeyEncoding("v2", "."),
        attributes,
        names,
        limits=options.limits,
    )
    problems = list(meta.problems())
    if problems:
        raise MetadataError.of(at, problems)
    return meta


def _type(members: FieldReader) -> np.dtype[Any] | None:
    stored = take_dtype(members)
    if stored is not None and stored.hasobject:
        members.blame("dtype", dtype_to_json(stored), "elements of a fixed size", "data_type")
        return None
    return stored


def _fill_value(members: FieldReader, stored: np.dtype[Any] | None) -> np.ndarray | None:
    value = members.take("fill_value", any_value, "a value of the data type, or null")
    if stored is None or value is None:
        return None
    try:
        return _fill_from_json(value, stored)
    except (ValueError, TypeError, OverflowError) as error:
        members.blame("fill_value", value, f"a value of {stored} ({error}), or null")
        return None


def _fill_from_json(value: Any, stored: np.dtype[Any]) -> np.ndarray:
    """Parse a scalar in JSON; v1 has no base64."""
    if stored.kind == "S" and isinstance(value, str):
        text = value.encode("ascii")
        if len(text) > stored.itemsize:
            raise ValueError(f"a string of {len(text)} bytes, not of {stored.itemsize} at most")
        return np.array(text, stored)
    if stored.names is not None and isinstance(value, list) and len(value) == len(stored.names):
        value = dict(zip(stored.names, value, strict=True))
    return fill_from_json(value, stored)


def _compressor(members: FieldReader) -> dict[str, Any] | None:
    """Return the numcodecs configuration of ``compression`` and ``compression_opts``."""
    expected = "the name of a compressor, or null"
    name = members.take("compression", lambda v: v is None or isinstance(v, str), expected)
    options = members.take(
        "compression_opts",
        lambda value: value is None or is_int(value) or isinstance(value, str) or is_object(value),
        "an integer, a string, an object or null",
    )
    if name in (None, "none"):
        return None
    if name in ("zlib", "gzip", "bz2"):
        # in v1, "gzip" is another name for zlib's format, not that of gzip files
        level = {} if options is None else {"level": options}
        return {"id": "bz2" if name == "bz2" else "zlib", **level}
    if options is not None and not is_object(options):
        members.blame("compression_opts", options, f"an object, as {name!r} takes")
        return None
    if name == "lzma":
        given = {"format": _LZMA_XZ, "check": 0, "preset": 1, **(options or {})}
        if given["format"] != _LZMA_XZ:
            given["check"] = -1  # only xz has one
        return {"id": "lzma", **given}
    if name == "blosc":
        return {"id": "blosc", **(options or {})}
    expected = "one of 'blosc', 'bz2', 'gzip', 'lzma', 'none', 'zlib'"
    members.blame("compression", name, expected, "codec")
    return None


def _order_in_chunks(
    order: str, compressor: dict[str, Any] | None, ndim: int, at: str, options: ReadOptions
) -> str:
    """Return the order of elements in the chunks; see the ambiguity in `zarr_dask.formats.v1`."""
    if order == "C" or ndim < 2 or (compressor is not None and compressor["id"] == "blosc"):
        return order
    if options.v1_f_order == "legacy":
        return "C"
    warn(
        f"{at} has order 'F' without blosc. It is read as the specification says, columns first; "
        "zarr-python 1 wrote such chunks rows first. If it wrote this array, open it with "
        "ReadOptions(v1_f_order='legacy')."
    )
    return order


# --- writing --------------------------------------------------------------------------------------


def array_document(meta: ArrayMeta, at: str) -> dict[str, Any]:
    """Return the ``meta`` document of an array; raise `MetadataError` if v1 cannot express it."""
    problems = [*unsupported_fields(meta, "v1"), *_v1_cannot_say(meta)]
    if problems:
        raise MetadataError.of(at, problems)
    stored = stored_dtype(meta)
    compression, options = _compression(meta.codecs.bytes)
    return {
        "chunks": list(meta.grid.largest_cell),
        "compression": compression,
        "compression_opts": options,
        "dtype": dtype_to_json(stored),
        "fill_value": None if meta.fill_value is None else _fill_to_json(meta.fill_value, stored),
        "order": order_of(meta),
        "shape": list(meta.shape),
        "zarr_format": 1,
    }


def _compression(codecs: Sequence[BytesCodec]) -> tuple[str, Any]:
    codec = codecs[0] if codecs else None
    if isinstance(codec, Blosc):
        shuffle = BLOSC_SHUFFLES.index(codec.shuffle or "shuffle")
        return "blosc", {"cname": codec.cname, "clevel": codec.clevel, "shuffle": shuffle}
    if isinstance(codec, Zlib | Bz2):
        return codec.name, codec.level
    if isinstance(codec, Lzma):
        return "lzma", codec.configuration()
    return "none", None


def _v1_cannot_say(meta: ArrayMeta) -> list[ValidationProblem]:
    problems = []
    if meta.grid.ndim == 0:
        problems.append(ValidationProblem("shape", [], "at least one dimension in v1"))
    if len(meta.codecs.bytes) > 1:
        names = [codec.name for codec in meta.codecs.bytes]
        problems.append(
            ValidationProblem("codecs", names, "one compressor at most: v1 has no filters")
        )
    for codec in meta.codecs.bytes[:1]:
        if not isinstance(codec, Blosc | Zlib | Bz2 | Lzma):
            expected = "one of blosc, bz2, lzma and zlib, which v1 has"
            problems.append(ValidationProblem("codecs[0]", codec.name, expected, "codec"))
        if isinstance(codec, Blosc) and (codec.shuffle is None or codec.blocksize):
            expected = "a shuffle of 0, 1 or 2 and no blocksize, all that v1 can say"
            problems.append(ValidationProblem("codecs[0]", codec.configuration(), expected))
    if meta.chunk_key_encoding.separator != ".":
        problems.append(
            ValidationProblem("chunk_key_encoding", meta.chunk_key_encoding.separator, "'.' in v1")
        )
    stored = stored_dtype(meta)
    if stored.names is not None and any(stored[name].subdtype for name in stored.names):
        problems.append(
            ValidationProblem("dtype", str(stored), "fields without shapes in v1", "data_type")
        )
    if not problems and meta.fill_value is not None:
        try:
            _fill_to_json(meta.fill_value, stored)
        except ValueError as error:
            expected = f"a value that v1 can say ({error})"
            problems.append(ValidationProblem("fill_value", str(meta.fill_value), expected))
    return problems


def _fill_to_json(value: np.ndarray, stored: np.dtype[Any]) -> Any:
    """Return a JSON scalar, with bare NaN and Infinity, which readers of v1 accept."""
    if stored.kind == "V":
        if any(value.tobytes()):
            raise ValueError("a struct or raw bytes that are not zero")
        return 0
    document = fill_to_json(value, stored)
    if stored.kind == "f":
        return float(value)
    if stored.kind == "S":
        return value.item().decode("ascii")
    if stored.kind == "c":
        if np.signbit(value.imag) or value.imag != 0:
            raise ValueError("a complex number that is not real")
        return float(value.real)
    return document
