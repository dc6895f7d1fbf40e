"""A case in the words of the specifications: codec lists and fill values, as JSON values.

Nothing here comes from an implementation, so what both sides are asked for is the same text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.interop.cases import CHUNK_KEYS, V2_COMPRESSORS, V2_FILTERS, V3_CODECS, Case

Document = dict[str, Any]


def v3_array(case: Case) -> Document:
    """The array document of a v3 case."""
    document: Document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(case.shape),
        "data_type": case.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(case.stored)}},
        "chunk_key_encoding": v3_keys(case),
        "fill_value": v3_fill(case),
        "codecs": v3_codecs(case),
        "attributes": dict(case.attributes),
    }
    if case.dimension_names is not None:
        document["dimension_names"] = list(case.dimension_names)
    return document


def v3_keys(case: Case) -> Document:
    """The chunk key encoding."""
    encoding = CHUNK_KEYS[case.keys]
    return {
        "name": encoding["name"],
        "configuration": {"separator": encoding["separator"]},
    }


def v3_codecs(case: Case) -> list[Document]:
    """The codec list of the whole array."""
    inner = v3_inner_codecs(case)
    shards = case.shards
    if shards is None:
        return inner
    sharding = _sharding(_permuted(case.chunks, shards.order), inner, case)
    if shards.nested is not None:
        sharding = _sharding(_permuted(shards.nested, shards.order), [sharding], case)
    return [*_transpose(shards.order), sharding, *_filled_in(shards.after, 1)]


def v3_inner_codecs(case: Case) -> list[Document]:
    """The codecs of one chunk."""
    # The codecs inside a shard see the dimensions as the transposition before it left them.
    return [*_transpose(case.order), _bytes(case), *_filled_in(case.codecs, case.dtype.itemsize)]


def _sharding(chunk_shape: Sequence[int], codecs: list[Document], case: Case) -> Document:
    index: list[Document] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if case.shards is not None and case.shards.checksum:
        index.append({"name": "crc32c"})
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk_shape),
            "codecs": codecs,
            "index_codecs": index,
            "index_location": "end" if case.shards is None else case.shards.location,
        },
    }


def _permuted(shape: Sequence[int], order: Sequence[int] | None) -> list[int]:
    return list(shape) if order is None else [shape[axis] for axis in order]


def _transpose(order: Sequence[int] | None) -> list[Document]:
    if order is None:
        return []
    return [{"name": "transpose", "configuration": {"order": list(order)}}]


def _bytes(case: Case) -> Document:
    if case.dtype.itemsize == 1:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": case.endian}}


def _filled_in(name: str, itemsize: int) -> list[Document]:
    """The named codecs, with the item size of the elements where blosc asks for one."""
    codecs: list[Document] = []
    for codec in V3_CODECS[name]:
        document = dict(codec)
        if codec["name"] == "blosc":
            document["configuration"] = {"typesize": itemsize, **codec["configuration"]}
        codecs.append(document)
    return codecs


def v3_fill(case: Case) -> Any:
    """The fill value; a NaN that is not the canonical one as the hexadecimal of its bits."""
    return _fill(case.fill_value, payloads=True)


def v2_array(case: Case) -> Document:
    """The ``.zarray`` of a v2 case."""
    return {
        "zarr_format": 2,
        "shape": list(case.shape),
        "chunks": list(case.chunks),
        "dtype": case.dtype.str,
        "compressor": v2_compressor(case),
        "fill_value": _fill(case.fill_value, payloads=False),
        "order": v2_order(case),
        "filters": v2_filters(case) or None,
        "dimension_separator": CHUNK_KEYS[case.keys]["separator"],
    }


def v2_compressor(case: Case) -> Document | None:
    """The compressor, or None."""
    config = V2_COMPRESSORS[case.codecs]
    return None if config is None else dict(config)


def v2_filters(case: Case) -> list[Document]:
    """The filters, possibly none."""
    if case.filters == "none":
        return []
    return [dict(config) for config in V2_FILTERS[case.filters][1]]


def v2_order(case: Case) -> str:
    """``"C"`` or ``"F"``."""
    return "C" if case.order is None else "F"


def _fill(value: np.generic | None, payloads: bool) -> Any:
    if value is None:
        return None
    if value.dtype.kind == "b":
        return bool(value)
    if value.dtype.kind in "iu":
        return int(value)
    if value.dtype.kind == "c":
        return [_float(value.real, payloads), _float(value.imag, payloads)]
    return _float(value, payloads)


def _float(value: Any, payloads: bool) -> float | str:
    bits = value.view(f"u{value.itemsize}")
    if math.isnan(value):
        canonical = np.array(math.nan, value.dtype).view(bits.dtype)
        if bits == canonical or not payloads:
            return "NaN"
        return f"0x{int(bits):0{2 * value.itemsize}x}"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)
