"""Cases through zarr-python."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.registry import get_codec_class

from tests.support.interop import documents
from tests.support.interop.cases import CHUNK_KEYS, Case
from tests.support.interop.seen import Seen

NAME = "zarr-python"
VERSION = tuple(int(part) for part in zarr.__version__.split(".")[:2])
WRITES_ATTRIBUTES = ("v2", "v3")


@contextlib.contextmanager
def warnings_of_its_own() -> Iterator[None]:
    """Let through what zarr-python warns of when it is asked for something legal."""
    with warnings.catch_warnings():
        # Its remark on speed, for any codec around a sharding codec.
        warnings.filterwarnings(
            "ignore", "Combining a `sharding_indexed` codec disables partial", UserWarning
        )
        # It compares chunks with the fill value, and signalling NaNs object.
        warnings.filterwarnings("ignore", "invalid value encountered in equal", RuntimeWarning)
        yield


def create(case: Case, path: Path) -> zarr.Array[Any]:
    """Create the array of a case, with nothing written."""
    return _create_v3(case, path) if case.format == "v3" else _create_v2(case, path)


def write(case: Case, path: Path, values: np.ndarray[Any, Any]) -> None:
    """Create the array of a case and write the case's region of ``values``."""
    with warnings_of_its_own():
        array = create(case, path)
        if case.region is not None:
            array[case.region] = values[case.region]


def _create_v3(case: Case, path: Path) -> zarr.Array[Any]:
    codecs = [_codec(document) for document in documents.v3_codecs(case)]
    serializer = next(
        i for i, codec in enumerate(codecs) if isinstance(codec, zarr.abc.codec.ArrayBytesCodec)
    )
    return zarr.create_array(
        path,
        zarr_format=3,
        shape=case.shape,
        chunks=case.stored,
        dtype=case.dtype,
        filters=codecs[:serializer],
        serializer=codecs[serializer],
        compressors=codecs[serializer + 1 :],
        fill_value=case.fill_value,
        chunk_key_encoding=CHUNK_KEYS[case.keys],
        dimension_names=case.dimension_names,
        attributes=dict(case.attributes),
    )


def _codec(document: dict[str, Any]) -> Any:
    return get_codec_class(document["name"]).from_dict(document)


def _create_v2(case: Case, path: Path) -> zarr.Array[Any]:
    compressor = documents.v2_compressor(case)
    return zarr.create_array(
        path,
        zarr_format=2,
        shape=case.shape,
        chunks=case.chunks,
        dtype=case.dtype,
        filters=[numcodecs.get_codec(config) for config in documents.v2_filters(case)] or None,
        compressors=None if compressor is None else numcodecs.get_codec(compressor),
        fill_value=case.fill_value,
        order=documents.v2_order(case),
        chunk_key_encoding=CHUNK_KEYS[case.keys],
        attributes=dict(case.attributes),
    )


def read(case: Case, path: Path) -> Seen:
    """Open the array of a case and read all of it."""
    with warnings_of_its_own():
        array = zarr.open_array(path, mode="r", zarr_format=3 if case.format == "v3" else 2)
        values = np.asarray(array[...])
    return Seen(
        values=values,
        dtype=array.dtype,
        fill=array.metadata.fill_value,
        attributes=array.attrs.asdict(),
        dimension_names=getattr(array.metadata, "dimension_names", None),
    )


def overwrite(
    case: Case, path: Path, region: tuple[slice, ...], values: np.ndarray[Any, Any]
) -> None:
    """Write a region of an array that exists."""
    with warnings_of_its_own():
        array = zarr.open_array(path, mode="r+", zarr_format=3 if case.format == "v3" else 2)
        array[region] = values
