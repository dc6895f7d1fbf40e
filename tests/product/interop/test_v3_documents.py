"""What peers write of v3 when nothing special is asked for, read by us; and the other way round.

The matrix (`cases`) asks both sides for the same document. Here each side writes what it likes
best: its own defaults, and the data types that the matrix has not.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr

import zarr_dask as zd
from tests.support.interop.cases import DTYPES
from tests.support.interop.seen import bits

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

SHAPES = {
    "0-d": ((), ()),
    "one": ((1,), (1,)),
    "no elements": ((0, 3), (1, 2)),
    "edge chunks": ((5, 7), (2, 3)),
    "one chunk": ((5, 7), (8, 8)),
}
"""Shape and chunk shape."""


def values_of(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """All kinds of values: limits, NaN with payloads, signed zeros."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        kinds = np.array([True, False])
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        kinds = np.array([1, limits.max, limits.min, 0], dtype)
    else:
        part = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
        payload = {2: "7e01 fe00 7fff", 4: "7fc00001 ffc00000 7fffffff"}.get(
            part.itemsize, "7ff8000000000001 fff8000000000000 7fffffffffffffff"
        )
        patterns = [int(text, 16) for text in payload.split()]
        nans = np.array(patterns, f"u{part.itemsize}").view(part)
        finite = np.array([1.5, -0.0, 0.0, np.inf, -np.inf, np.finfo(part).max], part)
        parts = np.concatenate([finite, nans, np.finfo(part).tiny[None]]).astype(part)
        kinds = parts.view(dtype) if dtype.kind == "c" else parts
    count = int(np.prod(shape, dtype=int))
    return np.resize(kinds, count).reshape(shape)


def tensorstore_at(path):
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}


def seen_by(peer, path):
    if peer == "zarr-python":
        return np.asarray(zarr.open_array(path, mode="r")[...])
    return np.asarray(ts.open(tensorstore_at(path), open=True).result().read().result())


# --- core data types ------------------------------------------------------------------------------


@pytest.mark.conformance("C139")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_we_read_what_peers_write(dtype, shape, place):
    extent, chunks = SHAPES[shape]
    values = values_of(dtype, extent)
    sharded = {"chunks": chunks, "shards": tuple(2 * n for n in chunks)} if chunks else {}
    for name, options in {"a": {}, "b": {"chunks": chunks}, "c": sharded}.items():
        theirs = zarr.create_array(place / name, shape=extent, dtype=dtype, **options)
        theirs[...] = values
        assert bits(zd.open_array(place / name)[...]) == bits(values)
    metadata = {"shape": extent, "data_type": dtype}
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    for name, more in {"d": {}, "e": {"chunk_grid": grid}}.items():
        spec = tensorstore_at(place / name) | {"metadata": metadata | more}
        ts.open(spec, create=True).result().write(values).result()
        assert bits(zd.open_array(place / name)[...]) == bits(values)


@pytest.mark.conformance("C139")
@pytest.mark.parametrize("peer", ["zarr-python", "tensorstore"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_peers_read_what_we_write(dtype, shape, peer, place):
    extent, chunks = SHAPES[shape]
    values = values_of(dtype, extent)
    sharded = {"chunks": chunks, "shards": tuple(2 * n for n in chunks)} if chunks else {}
    fill = values.ravel()[-1] if values.size else 1
    for name, options in {
        "a": {},
        "b": {"chunks": chunks or "auto", "fill_value": fill},
        "c": sharded,
    }.items():
        ours = zd.create_array(place / name, shape=extent, dtype=dtype, **options)
        ours[...] = values
        assert bits(seen_by(peer, place / name)) == bits(values)


# --- the documents themselves ---------------------------------------------------------------------

ZARR_PYTHON = """{
  "shape": [5, 7],
  "data_type": "float32",
  "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
  "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
  "fill_value": 0.0,
  "codecs": [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "zstd", "configuration": {"level": 0, "checksum": false}}
  ],
  "attributes": {},
  "zarr_format": 3,
  "node_type": "array",
  "storage_transformers": []
}"""

ZARR_PYTHON_SHARDS = [
    {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [2, 3],
            "codecs": [
                {"name": "bytes"},
                {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
            ],
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            "index_location": "end",
        },
    }
]

TENSORSTORE = """{
  "chunk_grid": {"configuration": {"chunk_shape": [5, 7]}, "name": "regular"},
  "chunk_key_encoding": {"name": "default"},
  "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}],
  "data_type": "float32",
  "fill_value": 0.0,
  "node_type": "array",
  "shape": [5, 7],
  "zarr_format": 3
}"""


@pytest.mark.conformance("C139")
def test_the_documents_that_peers_write_by_default(place):
    """That they are still these, and that they read."""
    zarr.create_array(place / "a", shape=(5, 7), chunks=(2, 3), dtype="f4")
    document = json.loads((place / "a" / "zarr.json").read_text())
    assert json.dumps(document) == json.dumps(json.loads(ZARR_PYTHON))
    zarr.create_array(place / "b", shape=(5, 7), chunks=(2, 3), shards=(4, 6), dtype="u1")
    assert json.loads((place / "b" / "zarr.json").read_text())["codecs"] == ZARR_PYTHON_SHARDS
    metadata = {"shape": [5, 7], "data_type": "float32"}
    ts.open(tensorstore_at(place / "c") | {"metadata": metadata}, create=True).result()
    assert json.loads((place / "c" / "zarr.json").read_text()) == json.loads(TENSORSTORE)
    for name, chunks, codecs in (
        ("a", (2, 3), ["bytes", "zstd"]),
        ("b", (2, 3), ["sharding_indexed"]),
        ("c", (5, 7), ["bytes"]),
    ):
        array = zd.open_array(place / name)
        assert (array.chunks, [codec.name for codec in array.codecs]) == (chunks, codecs)
        assert array.key((1, 0)) == "c/1/0"
        assert array[...].tolist() == np.zeros((5, 7)).tolist()


@pytest.mark.conformance("C139")
def test_all_store_the_same_bytes(place):
    values = values_of("f4", (5, 7))
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}
    metadata = {"shape": [5, 7], "data_type": "float32", "chunk_grid": grid}
    same = {"shape": (5, 7), "chunks": (2, 3), "dtype": "f4"}
    zarr.create_array(place / "a", compressors=None, **same)[...] = values
    spec = tensorstore_at(place / "b") | {"metadata": metadata}
    ts.open(spec, create=True).result().write(values).result()
    ours = zd.create_array(place / "c", codecs=[], **same)
    ours[...] = values
    for coords in np.ndindex(3, 3):
        stored = {(place / name / ours.key(coords)).read_bytes() for name in "abc"}
        assert len(stored) == 1


# --- names ----------------------------------------------------------------------------------------

NAMES = ["größe", "長さ", "Größe", "a b", "é", "x.y-z_0", "😀"]


@pytest.mark.conformance("C090", "C139")
def test_names_of_any_script(place):
    """Case counts, and so does the form of composed letters."""
    theirs = zarr.create_group(place / "theirs")
    ours = zd.create_group(place / "ours")
    for number, name in enumerate(NAMES):
        path = f"{name}/{NAMES[number - 1]}"
        theirs.create_array(path, shape=(1,), dtype="i2", attributes={name: name})[...] = number
        ours.create_array(path, shape=(1,), dtype="i2", attributes={name: name})[...] = number
    for number, name in enumerate(NAMES):
        path = f"{name}/{NAMES[number - 1]}"
        seen = zd.open_array(place / "theirs", path)
        assert (seen[0], seen.attributes) == (number, {name: name})
        again = zarr.open_array(place / "ours", path=path, mode="r")
        assert (again[0], again.attrs.asdict()) == (number, {name: name})
        spec = tensorstore_at(place / "ours" / path)
        assert ts.open(spec, open=True).result().read().result().tolist() == [number]
    assert sorted(name for name, _ in zd.open_group(place / "theirs").groups()) == sorted(NAMES)
    assert sorted(zarr.open_group(place / "ours", mode="r").group_keys()) == sorted(NAMES)


# --- other data types -----------------------------------------------------------------------------

STRUCT = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "|u1")])

ZARR_PYTHON_TYPES: dict[str, tuple[Any, np.ndarray]] = {
    "datetime64[ns]": ("M8[ns]", np.array(["2020-01-01", "NaT", "1969-12-31"], "M8[ns]")),
    "datetime64[10s]": ("M8[10s]", np.array([1, -5, 7], "i8").view("M8[10s]")),
    "timedelta64[D]": ("m8[D]", np.array([1, -5, "NaT"], "m8[D]")),
    "fixed text": ("<U4", np.array(["a", "", "éß長😀"], "<U4")),
    "fixed bytes": ("|S3", np.array([b"a", b"", b"xyz"], "|S3")),
    "raw bytes": ("|V2", np.array([b"a\0", b"\0\0", b"\xff\1"], "|V2")),
    "struct": (STRUCT, np.array([(1, 0.5, 2), (-1, np.inf, 0), (0, -0.0, 255)], STRUCT)),
}


@pytest.mark.parametrize("name", ZARR_PYTHON_TYPES)
def test_types_that_zarr_python_has_too(name, place):
    dtype, values = ZARR_PYTHON_TYPES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(place / "a", shape=(3,), dtype=dtype, chunks=2)[...] = values
        ours = zd.create_array(place / "b", shape=(3,), dtype=dtype, chunks=2)
        ours[...] = values
        again = zarr.open_array(place / "b", mode="r")[...]
    assert bits(zd.open_array(place / "a")[...]) == bits(values)
    assert bits(again) == bits(values)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("string", ["a", "", "éß長😀", "x" * 300]), ("bytes", [b"a", b"", b"\0\xff", b"x" * 300])],
)
def test_texts_and_byte_strings(dtype, values, place):
    theirs = "str" if dtype == "string" else "variable_length_bytes"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(place / "a", shape=(4,), dtype=theirs, chunks=3)
        array[...] = np.array(values, object)
        ours = zd.create_array(place / "b", shape=(4,), dtype=dtype, chunks=3)
        ours[...] = np.array(values, object)
        again = zarr.open_array(place / "b", mode="r")[...]
    assert zd.open_array(place / "a")[...].tolist() == values
    assert again.tolist() == values


TENSORSTORE_TYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "int4": ml_dtypes.int4,
    "int2": ml_dtypes.int2,
}


@pytest.mark.parametrize("name", TENSORSTORE_TYPES)
def test_types_that_tensorstore_has_too(name, place):
    dtype = TENSORSTORE_TYPES[name]
    values = np.array([1, -1, 0, 1, 0], np.float32).astype(dtype)
    spec = tensorstore_at(place / "a") | {"metadata": {"shape": [5], "data_type": name}}
    ts.open(spec, create=True).result().write(values).result()
    seen = zd.open_array(place / "a")[...]
    assert (seen.dtype, seen.tobytes()) == (values.dtype, values.tobytes())
    ours = zd.create_array(place / "b", shape=(5,), dtype=name, chunks=2)
    ours[...] = values
    again = ts.open(tensorstore_at(place / "b"), open=True).result().read().result()
    assert (again.dtype, again.tobytes()) == (values.dtype, values.tobytes())
