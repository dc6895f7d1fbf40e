"""Cases through ``zarr_dask``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import zarr_dask as zd
from tests.support.interop import documents
from tests.support.interop.cases import CHUNK_KEYS, Case
from tests.support.interop.seen import Seen


def create(case: Case, path: Path) -> zd.Array:
    """Create the array of a case, with nothing written."""
    return zd.create_array(
        path,
        shape=case.shape,
        dtype=case.dtype,
        fill_value=case.fill_value,
        dimension_names=case.dimension_names,
        attributes=dict(case.attributes),
        format=case.format,
        chunk_key_encoding=CHUNK_KEYS[case.keys],
        **(_v3_options(case) if case.format == "v3" else _v2_options(case)),
    )


def _v3_options(case: Case) -> dict[str, Any]:
    """The short way of saying it where there is one, else the whole codec list."""
    if case.shards is not None:
        if case.shards.plain:
            inner = documents.v3_inner_codecs(case)
            return {"chunks": case.chunks, "shards": case.shards.shape, "codecs": inner}
        return {"chunks": case.stored, "codecs": documents.v3_codecs(case)}
    codecs = documents.v3_inner_codecs(case)
    options: dict[str, Any] = {"chunks": case.chunks}
    if case.ndim > 1 and case.order == tuple(reversed(range(case.ndim))):
        options["order"] = "F"
        codecs = [codec for codec in codecs if codec["name"] != "transpose"]
    if case.endian == "little" and case.order is None:
        codecs = [codec for codec in codecs if codec["name"] != "bytes"]
    return options | {"codecs": codecs}


def _v2_options(case: Case) -> dict[str, Any]:
    compressor = documents.v2_compressor(case)
    compressors = [] if compressor is None else [compressor]
    return {
        "chunks": case.chunks,
        "codecs": [*documents.v2_filters(case), *compressors],
        "order": documents.v2_order(case),
    }


def write(case: Case, path: Path, values: np.ndarray[Any, Any]) -> None:
    """Create the array of a case and write the case's region of ``values``."""
    array = create(case, path)
    if case.region is not None:
        array[case.region] = values[case.region]


def read(case: Case, path: Path) -> Seen:
    """Open the array of a case and read all of it."""
    array = zd.open_array(path)
    return Seen(
        values=array[...],
        dtype=array.dtype,
        fill=array.fill_value,
        attributes=array.attributes,
        dimension_names=array.dimension_names,
    )
