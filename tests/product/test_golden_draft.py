"""Hierarchies of the draft of May 2022 as zarr-python 2.18.7 wrote them, read and written again.

`golden/draft/zarr2.json` holds everything that ``zarr2/draft_peer.py write`` left behind for some
jobs: documents as JSON, data as hexadecimal.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import GOLDEN

GOLDEN = json.loads((GOLDEN / "draft" / "zarr2.json").read_text())
DOCUMENT = "meta/root/a/b.array.json"
FORMAT = "v3draft-2022-05"

NAMES = (
    *("core_bool", "core_int8", "core_int16", "core_int32", "core_int64", "core_uint8"),
    *("core_uint16", "core_uint64", "core_float16", "core_float32", "core_float64"),
    *("complex64", "complex128", "datetime", "timedelta", "bytes", "text", "struct", "raw"),
    *("objects", "no_dimensions", "infinite", "null", "filters", "order_f", "edge", "zlib"),
    *("gzip", "shards", "consolidated"),
)


def test_no_vector_is_missing_and_none_unlisted():
    assert sorted(NAMES) == sorted(GOLDEN)
    assert len(bytes.fromhex(GOLDEN["shards"]["stored"]["data/root/a/b/c0.0"])) == 72


def store_of(name):
    return {
        key: bytes.fromhex(value) if key.startswith("data/") else json.dumps(value).encode()
        for key, value in GOLDEN[name]["stored"].items()
    }


def values_of(name):
    golden = GOLDEN[name]
    if golden["dtype"] is None:
        return np.array(golden["values"], object)
    fields = golden["dtype"]
    dtype = np.dtype(fields if isinstance(fields, str) else [tuple(field) for field in fields])
    return np.frombuffer(bytes.fromhex(golden["values"]), dtype).reshape(golden["shape"])


FILLS = {
    "bytes": b"xy",
    "complex128": 1,
    "core_bool": False,
    "edge": 9,
    "infinite": np.inf,
    "objects": "",
    "text": "xy",
    "timedelta": np.timedelta64(7, "s"),
    **{name: 3 for name in NAMES if name.startswith("core_") and name != "core_bool"},
}
"""Where they are not zero."""


@pytest.mark.conformance("C079")
@pytest.mark.parametrize("name", NAMES)
def test_golden_reads(name):
    store = store_of(name)
    root = zd.open_group(store)
    assert root.format == FORMAT
    array, wanted = root["a/b"], values_of(name)
    if wanted.dtype != object:
        assert array.dtype == wanted.dtype.newbyteorder("=")
    np.testing.assert_array_equal(array[...], wanted)
    assert array.attributes == {"unit": "m"}
    assert root["g/h"].attributes == {"title": "beside"}
    del store[
        "data/root/a/b/c" + {"filters": "0/0", "order_f": "0.0", "shards": "0.0"}.get(name, "0")
    ]
    first = (0,) * wanted.ndim
    fill = FILLS.get(name, np.zeros((), array.dtype)[()])
    assert array[first] == np.array(fill, array.dtype)[()]


@pytest.mark.conformance("C080")
@pytest.mark.parametrize("name", sorted({*NAMES} - {"shards", "consolidated"}))
def test_golden_is_written(name):
    """Documents and data alike, so that zarr-python 2 reads ours as it reads its own."""
    golden, theirs = GOLDEN[name]["stored"], GOLDEN[name]["stored"][DOCUMENT]
    wanted = values_of(name)
    store = {}
    compressor = {name: {"id": name, "level": 1}}.get(name) if name in {"zlib", "gzip"} else None
    codecs = [*theirs["attributes"].get("filters", []), *([compressor] if compressor else [])]
    array = zd.create_array(
        store, "a/b", shape=wanted.shape, chunks=theirs["chunk_grid"]["chunk_shape"],
        dtype=str if name == "objects" else wanted.dtype, codecs=codecs,
        fill_value=FILLS.get(name, 0 if wanted.dtype.kind in "biufc" else _zero(wanted.dtype)),
        order=theirs["chunk_memory_layout"], attributes={"unit": "m"}, format=FORMAT,
        chunk_key_encoding={"separator": theirs["chunk_grid"]["separator"]},
    )  # fmt: skip
    array[...] = wanted
    zd.create_group(store, "g/h", attributes={"title": "beside"}, format=FORMAT)
    documents = {k: json.loads(v) for k, v in store.items() if not k.startswith("data/")}
    ours = documents.pop(DOCUMENT)
    assert documents == {k: golden[k] for k in ("zarr.json", "meta/root/g/h.group.json")}
    assert list(documents["zarr.json"]) == [
        "zarr_format", "metadata_encoding", "metadata_key_suffix", "extensions"
    ]  # fmt: skip
    assert _plain(ours) == _plain(theirs)
    data = {k: bytes(v) for k, v in store.items() if k.startswith("data/")}
    assert data.keys() == {key for key in golden if key.startswith("data/")}
    if compressor is None:  # other versions of zlib make other bytes
        assert data == {key: bytes.fromhex(golden[key]) for key in data}


def _zero(dtype):
    return np.zeros((), dtype)[()]


def _plain(document):
    """Without what differs on purpose: names of extensions, null, a separator said twice."""
    plain = {k: v for k, v in document.items() if k != "dimension_separator"}
    if isinstance(plain["data_type"], dict):
        plain["data_type"] = plain["data_type"]["type"]
    if plain["data_type"] == [["", "|V3"]]:
        plain["data_type"] = "|V3"
    zeros = (0, 0.0, "AAAA", "AAAAAAAAAAAAAAAA")
    if plain["fill_value"] is None or plain["fill_value"] in zeros:
        plain["fill_value"] = None
    return plain
