"""Documents of arrays for tests of codecs: opened with stored bytes, or refused."""

from __future__ import annotations

import json

import pytest

import zarr_dask as zd
from zarr_dask.errors import MetadataError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def codec(name, **configuration):
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def document(shape, dtype, codecs, chunks=None, fill=0):
    """A v3 document of one array, by default of one chunk."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(chunks or shape)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }


def opened(wanted, stored=(), mode="r+", **options):
    """An array of a document and its stored objects (key to bytes, or hexadecimal)."""
    store = {"zarr.json": json.dumps(wanted).encode()}
    for key, raw in dict(stored).items():
        store[key] = bytes.fromhex(raw) if isinstance(raw, str) else raw
    return zd.open_array(store, mode=mode, **options), store


def refused(wanted, *words):
    """The problems of a document that does not open."""
    with pytest.raises(MetadataError) as caught:
        opened(wanted)
    for word in words:
        assert word in str(caught.value)
    return [problem.field for problem in caught.value.problems]
