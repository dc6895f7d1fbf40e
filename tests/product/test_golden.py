"""Golden vectors: stored bytes that must read, and be written, as they are for ever.

Each file of ``golden/`` is one array: its document, what its keys hold (hexadecimal), and its
values. The bytes come from the specifications, from the RFCs they name, and from what the other
implementations write; all of them were read by zarr-python 3.4.2 or tensorstore 0.1.86 with the
same result. ``reads_only`` marks what we need not write alike: compressed bytes, absent keys.
"""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import GOLDEN

MULTI_BYTE = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

NAMES = (
    "v2_0d",
    "v2_big_endian",
    "v2_bytes_fixed",
    "v2_complex_fill",
    "v2_crc32",
    "v2_datetime",
    "v2_dimension_separator",
    "v2_edge_chunk",
    "v2_edge_chunk_F",
    "v2_fill_null_missing_chunk",
    "v2_fixedscaleoffset",
    "v2_json2",
    "v2_lz4",
    "v2_order_F",
    "v2_order_F_delta",
    "v2_packbits",
    "v2_raw_bytes",
    "v2_struct_mixed",
    "v2_text_big_endian",
    "v2_timedelta",
    "v2_vlen_bytes",
    "v2_vlen_utf8",
    "v3_blosc",
    *(f"v3_bytes_{name}_{endian}" for name in MULTI_BYTE for endian in ("little", "big")),
    *("v3_bytes_bool", "v3_bytes_int8", "v3_bytes_uint8"),
    *("v3_crc32c_3", "v3_crc32c_8"),
    "v3_edge_chunk",
    "v3_fill_bits",
    *("v3_gzip", "v3_gzip_two_members"),
    *(
        f"v3_keys_{name}_{separator}_{shape}"
        for name in ("default", "v2")
        for separator in ("dot", "slash")
        for shape in ("0d", "3d")
    ),
    "v3_missing_chunk",
    "v3_sharding_after_transpose",
    "v3_sharding_index_big_endian",
    "v3_sharding_index_end",
    "v3_sharding_index_start",
    "v3_sharding_index_without_checksum",
    "v3_sharding_nested",
    "v3_sharding_over_the_edge",
    *("v3_transpose_2d", "v3_transpose_3d"),
    *("v3_zstd", "v3_zstd_without_content_size"),
)


def load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def test_no_vector_is_missing_and_none_unlisted():
    assert sorted(NAMES) == sorted(path.stem for path in GOLDEN.glob("*.json"))


def test_sharded_vectors_have_their_lengths():
    """A vector that someone shortened would still agree with itself."""
    sizes = {
        name: len(bytes.fromhex(load(name)["stored"][key]))
        for name, key in (
            ("v3_sharding_index_end", "c/0/0"),
            ("v3_sharding_index_start", "c/0/0"),
            ("v3_sharding_nested", "c/0"),
        )
    }
    assert list(sizes.values()) == [84, 84, 116]


@pytest.mark.parametrize("name", NAMES)
def test_golden_reads(name, tmp_path):
    golden = load(name)
    put(golden, tmp_path)
    array = zd.open_array(tmp_path)
    want = values(golden)
    assert array.shape == want.shape
    assert array.dtype.newbyteorder("=") == want.dtype
    assert same(array[...], want)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_golden_read(name, tmp_path):
    golden = load(name)
    put(golden, tmp_path)
    array = zd.open_array(tmp_path)
    want = values(golden)
    for index in np.ndindex(want.shape):
        assert same(array[index], want[index])
    if want.ndim:
        assert same(array[1:], want[1:])
        assert same(array[..., ::-1], want[..., ::-1])


WRITTEN = tuple(name for name in NAMES if not load(name).get("reads_only"))


@pytest.mark.parametrize("name", WRITTEN)
def test_golden_is_written(name, tmp_path):
    """Through ``create_array``: document and every key."""
    golden = load(name)
    array = create(golden["document"], tmp_path)
    array[...] = values(golden)
    stored = stored_objects(tmp_path)
    assert {key: raw.hex() for key, raw in stored.items()} == golden["stored"]
    assert steps(document(tmp_path)) == steps(golden["document"])


@pytest.mark.parametrize("name", WRITTEN)
def test_golden_is_written_element_by_element(name, tmp_path):
    """Through the same document, with every stored object read, changed and written."""
    golden = load(name)
    put(golden | {"stored": {}}, tmp_path)
    array = zd.open_array(tmp_path, mode="r+")
    want = values(golden)
    for index in np.ndindex(want.shape):
        array[index] = want[index]
    stored = stored_objects(tmp_path)
    assert {key: raw.hex() for key, raw in stored.items()} == golden["stored"]


def put(golden, root):
    """The files of a vector."""
    is_v3 = golden["document"]["zarr_format"] == 3
    (root / ("zarr.json" if is_v3 else ".zarray")).write_text(json.dumps(golden["document"]))
    for key, text in golden["stored"].items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(text))


def values(golden):
    """The values of a vector as an array in native byte order."""
    dtype = stored_type(golden["document"]).newbyteorder("=")
    shape = tuple(golden["document"]["shape"])
    nested = np.empty(shape, object)
    for index in np.ndindex(shape):
        value = golden["values"]
        for i in index:
            value = value[i]
        nested[index] = element(value, dtype)
    if dtype.hasobject:
        return nested
    return np.array(nested.tolist(), dtype).reshape(shape)


def stored_type(wanted):
    """The NumPy type of the elements as they are stored; objects where they have no fixed size."""
    name = wanted.get("data_type") or wanted["dtype"]
    if isinstance(name, list):
        return np.dtype([(field, kind, *map(tuple, shape)) for field, kind, *shape in name])
    return np.dtype(name)


def element(value, dtype):
    if dtype.names is not None:
        return tuple(map(element, value, (dtype[name].base for name in dtype.names)))
    if dtype.kind in "SV":
        return bytes.fromhex(value)
    if dtype.hasobject and str(value).startswith("hex:"):
        return bytes.fromhex(value[4:])
    if dtype.kind in "OUmM":
        return value
    if isinstance(value, str):
        if value.startswith("0x"):
            return np.array(int(value, 16), f"u{dtype.itemsize}").view(dtype)[()]
        return dtype.type(float(value))
    return complex(*map(float, value)) if dtype.kind == "c" else value


def same(got, want):
    """Equal bit by bit."""
    if isinstance(want, str | bytes | dict):  # an element of an array of objects
        return got == want
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.hasobject:
        return got.shape == want.shape and got.tolist() == want.tolist()
    return got.shape == want.shape and got.astype(want.dtype).tobytes() == want.tobytes()


def create(wanted, root):
    """``create_array`` for a document."""
    common = {
        "shape": tuple(wanted["shape"]),
        "fill_value": fill_value(wanted),
        "attributes": {},
    }
    if wanted["zarr_format"] == 2:
        compressor = [] if wanted["compressor"] is None else [wanted["compressor"]]
        dtype = stored_type(wanted)
        return zd.create_array(
            root,
            format="v2",
            dtype=_OBJECTS[wanted["filters"][0]["id"]] if wanted["dtype"] == "|O" else dtype,
            chunks=tuple(wanted["chunks"]),
            codecs=[*(wanted["filters"] or []), *compressor],
            order=wanted["order"],
            chunk_key_encoding={"name": "v2", "separator": wanted["dimension_separator"]},
            **common,
        )
    encoding = wanted["chunk_key_encoding"]
    return zd.create_array(
        root,
        format="v3",
        dtype=wanted["data_type"],
        chunks=tuple(wanted["chunk_grid"]["configuration"]["chunk_shape"]),
        codecs=wanted["codecs"],
        chunk_key_encoding={"name": encoding["name"], **encoding["configuration"]},
        **common,
    )


_OBJECTS = {"vlen-utf8": "string", "vlen-bytes": "bytes"}


def fill_value(wanted):
    fill, stored = wanted["fill_value"], stored_type(wanted)
    if isinstance(fill, str) and stored.kind in "SV":
        raw = base64.b64decode(fill).ljust(stored.itemsize, b"\0")
        return np.frombuffer(raw, stored).astype(stored.newbyteorder("="))[0]
    if stored.kind in "mM":
        return np.array(fill, "i8").view(stored.newbyteorder("="))[()]
    return complex(*map(float, fill)) if isinstance(fill, list) else fill


def stored_objects(root):
    """All keys but the documents."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in {"zarr.json", ".zarray", ".zattrs", ".zgroup"}
    }


def steps(wanted):
    """A v2 document with one list of codecs: the last one may be called filter or compressor."""
    if wanted["zarr_format"] == 3:
        return wanted
    rest = dict(wanted)
    filters, compressor = rest.pop("filters") or [], rest.pop("compressor")
    return rest | {"codecs": [*filters, *([] if compressor is None else [compressor])]}


def document(root):
    """The document as written, with the members that may be left out."""
    path = root / "zarr.json"
    if not path.exists():
        return {"dimension_separator": "."} | json.loads((root / ".zarray").read_text())
    found = json.loads(path.read_text())
    assert not found.pop("storage_transformers", [])
    return {"attributes": {}} | found
