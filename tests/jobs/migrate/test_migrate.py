"""Migrating hierarchies: values, chunk bytes and new documents, refusals, interruptions.

The oracles are NumPy, zarr-python (which writes the old hierarchies where it can, and reads the
new ones) and tensorstore.
"""

from __future__ import annotations

import base64
import json
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr

import zarr_dask as zd
from zarr_dask.errors import (
    MetadataChangedError,
    MetadataError,
    MigrationError,
    NodeNotFoundError,
    ReadOnlyError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.stores import HookStore, MemoryStore

DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json", "meta", "attrs")
STRUCT = {"id": "i4", "x": "f8"}


def struct(order):
    return np.dtype([(name, f"{order}{kind}") for name, kind in STRUCT.items()])


def values_of(dtype, shape=(5, 4)):
    """Different values of a NumPy type."""
    dtype = np.dtype(dtype)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    if dtype.names:
        values = np.zeros(shape, dtype)
        for name in dtype.names:
            values[name] = values_of(dtype[name], shape)
        return values
    if dtype.kind in "mM":
        return numbers.astype("i8").view(dtype.newbyteorder("=")).astype(dtype)
    if dtype.kind == "V":
        return np.frombuffer(bytes(range(numbers.size * dtype.itemsize)), dtype).reshape(shape)
    if dtype.kind in "SU":
        return np.vectorize(lambda n: f"{n}\u00e9" if dtype.kind == "U" else str(n))(
            numbers
        ).astype(dtype)
    if dtype.kind == "b":
        return numbers % 3 == 0
    return (numbers + 1).astype(dtype)


def _descr(dtype):
    if not dtype.names:
        return dtype.str if dtype.subdtype is None else None
    return [
        [name, _descr(field.base), *([list(field.shape)] if field.shape else [])]
        for name in dtype.names
        for field in [dtype[name]]
    ]


def write_v2(path, values, *, chunks=(2, 3), compressor=None, filters=None, order="C", fill=None):
    """An array of v2: the document by hand, the chunks by NumPy and numcodecs."""
    import numcodecs

    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    descr = _descr(values.dtype)
    document = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": list(chunks[: values.ndim]),
        "dtype": "|O" if values.dtype.hasobject else descr,
        "compressor": compressor,
        "filters": filters,
        "fill_value": fill,
        "order": order,
    }
    steps = [
        numcodecs.get_codec(one)
        for one in [*(filters or []), *([compressor] * (compressor is not None))]
    ]
    counts = [-(-n // c) for n, c in zip(values.shape, document["chunks"], strict=True)]
    for coords in np.ndindex(*counts):
        region = tuple(
            slice(i * c, (i + 1) * c) for i, c in zip(coords, document["chunks"], strict=True)
        )
        part = values[region]
        chunk = np.zeros(document["chunks"], values.dtype)
        if values.dtype.hasobject:
            chunk[...] = part.flat[0]
        chunk[tuple(slice(0, n) for n in part.shape)] = part
        buffer = chunk.reshape(-1, order=order)
        for step in steps:
            buffer = step.encode(buffer)
        (path / (".".join(map(str, coords)) or "0")).write_bytes(
            bytes(memoryview(buffer).cast("B"))
            if not isinstance(buffer, np.ndarray)
            else buffer.tobytes()
        )
    (path / ".zarray").write_text(json.dumps(document))


def objects_of(root):
    """All files that are no documents, by name."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in Path(root).rglob("*")
        if path.is_file() and path.name not in DOCUMENTS
    }


def document_of(root):
    return json.loads((Path(root) / "zarr.json").read_text())


def by_zarr_python(root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_array(str(root), mode="r", zarr_format=3)[...]


def by_tensorstore(root):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root}/"}}
    return ts.open(spec, read=True).result().read().result()


def read(url, path=""):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zd.open_array(url, path)[...]


def same(a, b):
    """Whether two arrays hold the same values, bit by bit in native byte order."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.hasobject or b.dtype.hasobject:
        return a.shape == b.shape and a.tolist() == b.tolist()
    native = a.dtype.newbyteorder("=")
    return a.shape == b.shape and a.astype(native).tobytes() == b.astype(native).tobytes()


def migrated(root, values, **options):
    """Migrate an array in place: its new document, when values and bytes are as they were."""
    before = objects_of(root)
    assert same(read(root), values)
    zd.migrate(root, remove_old=True, **options)
    assert objects_of(root) == before
    assert not (root / ".zarray").exists()
    assert same(read(root), values)
    return document_of(root)


# --- rows of the first table: data types ----------------------------------------------------------

CORE = {
    "|b1": "bool",
    "|i1": "int8",
    "|u1": "uint8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}
ROWS = [
    (f"{order}{short}" if short[0] != "|" else short, name)
    for short, name in CORE.items()
    for order in ("<>" if short[0] != "|" else " ")
]


@pytest.mark.conformance("C160", "C165")
@pytest.mark.parametrize(("dtype", "name"), ROWS, ids=[dtype for dtype, _ in ROWS])
def test_core_types_keep_values_and_bytes(tmp_path, dtype, name):
    values = values_of(dtype)
    write_v2(tmp_path, values)
    document = migrated(tmp_path, values)
    assert document["data_type"] == name
    endian = {"<": {"endian": "little"}, ">": {"endian": "big"}}.get(dtype[0])
    assert document["codecs"] == [
        {"name": "bytes", **({"configuration": endian} if endian else {})}
    ]
    assert document["chunk_key_encoding"] == {"name": "v2", "configuration": {"separator": "."}}
    assert same(by_zarr_python(tmp_path), values)
    assert same(by_tensorstore(tmp_path), values)


EXTENSIONS = {
    "<M8[ns]": ("numpy.datetime64", {"unit": "ns", "scale_factor": 1}),
    ">m8[10us]": ("numpy.timedelta64", {"unit": "us", "scale_factor": 10}),
    "|S4": ("null_terminated_bytes", {"length_bytes": 4}),
    "<U3": ("fixed_length_utf32", {"length_bytes": 12}),
    ">U3": ("fixed_length_utf32", {"length_bytes": 12}),
    "|V5": ("raw_bytes", {"length_bytes": 5}),
}


@pytest.mark.conformance("C160", "C165")
@pytest.mark.parametrize("dtype", EXTENSIONS)
def test_extension_types_keep_values_and_bytes(tmp_path, dtype):
    name, configuration = EXTENSIONS[dtype]
    values = values_of(dtype)
    write_v2(tmp_path, values)
    document = migrated(tmp_path, values)
    assert document["data_type"] == {"name": name, "configuration": configuration}
    endian = {"<": {"endian": "little"}, ">": {"endian": "big"}}.get(dtype[0])
    assert document["codecs"] == [
        {"name": "bytes", **({"configuration": endian} if endian else {})}
    ]
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160")
def test_datetimes_without_a_unit_are_generic(tmp_path):
    values = values_of("<m8")
    write_v2(tmp_path, values)
    document = migrated(tmp_path, values)
    assert document["data_type"]["configuration"] == {"unit": "generic", "scale_factor": 1}
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160", "C161", "C165")
@pytest.mark.parametrize(("order", "endian"), [("<", "little"), (">", "big")])
def test_structs_of_one_byte_order(tmp_path, order, endian):
    dtype = np.dtype([("id", f"{order}i4"), ("flag", "|u1"), ("at", [("x", f"{order}f8")])])
    values = np.zeros((5, 4), dtype)
    values["id"] = np.arange(20).reshape(5, 4)
    values["at"]["x"] = 0.5
    values["flag"] = 7
    fill = base64.b64encode(values[1, 1].tobytes()).decode()
    write_v2(tmp_path, values, fill=fill)
    (tmp_path / "0.0").unlink()
    values[:2, :3] = values[1, 1]
    document = migrated(tmp_path, values)
    assert document["codecs"] == [{"name": "bytes", "configuration": {"endian": endian}}]
    assert document["data_type"]["name"] == "struct"
    assert document["fill_value"] == {"id": 5, "flag": 7, "at": {"x": 0.5}}
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160", "C161")
def test_structs_of_mixed_byte_orders_are_refused_by_field(tmp_path):
    dtype = np.dtype([("id", "<i4"), ("flag", "|u1"), ("at", [("x", ">f8")])])
    write_v2(tmp_path, np.zeros((5, 4), dtype))
    with pytest.raises(MigrationError) as caught:
        zd.migrate(tmp_path)
    assert "'id' little, 'at.x' big" in str(caught.value)
    assert "flag" not in str(caught.value).split("here are")[1]
    assert not (tmp_path / "zarr.json").exists()


@pytest.mark.conformance("C160")
def test_fields_that_are_arrays_are_refused_by_name(tmp_path):
    dtype = np.dtype([("id", "<i4"), ("at", [("xyz", "<f4", (3,))])])
    write_v2(tmp_path, np.zeros((5, 4), dtype))
    with pytest.raises(MigrationError, match=r"at\.xyz"):
        zd.migrate(tmp_path)


@pytest.mark.conformance("C160")
@pytest.mark.parametrize("dtype", ["<f16", "<c32"])
def test_long_doubles_are_refused_by_name(tmp_path, dtype):
    write_v2(tmp_path, values_of("<f4"))
    document = json.loads((tmp_path / ".zarray").read_text())
    (tmp_path / ".zarray").write_text(json.dumps({**document, "dtype": dtype}))
    with pytest.raises(MigrationError, match=dtype):
        zd.migrate(tmp_path)


@pytest.mark.conformance("C160", "C164", "C165")
@pytest.mark.parametrize("compressor", [None, {"id": "zstd", "level": 1}])
@pytest.mark.parametrize(
    ("codec", "name", "fill"),
    [("vlen-utf8", "string", "none"), ("vlen-utf8", "string", None), ("vlen-bytes", "bytes", None)],
)
def test_elements_without_a_fixed_size(tmp_path, codec, name, fill, compressor):
    texts = ["", "a", "h\u00e9", "\U0001f600" * 3, "0"] * 4
    values = np.empty((5, 4), object)
    values[...] = np.array(texts, object).reshape(5, 4)
    if name == "bytes":
        values[...] = [[text.encode() for text in row] for row in values]
    write_v2(tmp_path, values, filters=[{"id": codec}], compressor=compressor, fill=fill)
    (tmp_path / "0.0").unlink()
    values[:2, :3] = fill or ("" if name == "string" else b"")
    document = migrated(tmp_path, values)
    assert document["data_type"] == name
    assert [one["name"] for one in document["codecs"]] == [codec, *(["zstd"] if compressor else [])]
    assert by_zarr_python(tmp_path).tolist() == values.tolist()


@pytest.mark.conformance("C160")
@pytest.mark.parametrize("codec", ["json2", "msgpack2", "vlen-array", "pickle", "categorize"])
def test_objects_are_refused_by_codec(tmp_path, codec):
    options = {"dtype": "<i4"} if codec == "vlen-array" else {}
    options |= {"labels": ["a"], "dtype": "|O"} if codec == "categorize" else {}
    write_v2(tmp_path, values_of("<i4"))
    document = json.loads((tmp_path / ".zarray").read_text())
    document |= {"dtype": "|O", "filters": [{"id": codec, **options}], "fill_value": None}
    (tmp_path / ".zarray").write_text(json.dumps(document))
    with pytest.raises(MigrationError, match=codec):
        zd.migrate(tmp_path, read=zd.ReadOptions(allow_pickle=True))


# --- rows of the second table: codecs -------------------------------------------------------------

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def core(name, **configuration):
    return {"name": name, **({"configuration": configuration} if configuration else {})}


def blosc(shuffle, typesize):
    return core("blosc", cname="lz4", clevel=5, shuffle=shuffle, typesize=typesize, blocksize=0)


COMPRESSORS = {
    "none": (None, None),
    "blosc-0": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 0}, blosc("noshuffle", 4)),
    "blosc-1": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}, blosc("shuffle", 4)),
    "blosc-2": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2}, blosc("bitshuffle", 4)),
    "gzip": ({"id": "gzip", "level": 3}, core("gzip", level=3)),
    "zstd": ({"id": "zstd", "level": 3}, core("zstd", level=3, checksum=False)),
    "zstd-checksum": (
        {"id": "zstd", "level": 3, "checksum": True},
        core("zstd", level=3, checksum=True),
    ),
}


@pytest.mark.conformance("C160", "C165")
@pytest.mark.parametrize("case", COMPRESSORS)
def test_core_compressors_keep_values_and_bytes(tmp_path, case):
    old, new = COMPRESSORS[case]
    values = values_of("<f4")
    write_v2(tmp_path, values, compressor=old)
    document = migrated(tmp_path, values)
    assert document["codecs"] == [LITTLE, *([new] if new else [])]
    assert same(by_zarr_python(tmp_path), values)
    assert same(by_tensorstore(tmp_path), values)


@pytest.mark.conformance("C160", "C162")
@pytest.mark.parametrize(("dtype", "shuffle"), [("|u1", "bitshuffle"), ("<i8", "shuffle")])
def test_automatic_shuffle_is_resolved_and_absent_fill_is_zero(tmp_path, dtype, shuffle):
    values = values_of(dtype)
    compressor = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0}
    write_v2(tmp_path, values, compressor=compressor)
    (tmp_path / "0.0").unlink()
    values[:2, :3] = 0
    plan = zd.plan_migration(tmp_path)
    assert sum("(null)" in note for note in plan.nodes[0].notes) == 1
    assert sum(repr(shuffle) in note for note in plan.nodes[0].notes) == 1
    document = migrated(tmp_path, values)
    assert document["codecs"][-1] == blosc(shuffle, values.dtype.itemsize)
    assert document["fill_value"] == 0
    assert same(by_zarr_python(tmp_path), values)
    assert same(by_tensorstore(tmp_path), values)


NUMBERS = {
    "delta": ({"id": "delta", "dtype": "<i4"}, "<i4", {"dtype": "<i4"}, "little"),
    "delta-narrower": (
        {"id": "delta", "dtype": ">i4", "astype": ">i2"},
        ">i4",
        {"dtype": "<i4", "astype": "<i2"},
        "big",
    ),
    "fixedscaleoffset": (
        {"id": "fixedscaleoffset", "offset": 1, "scale": 10, "dtype": "<f8", "astype": "<u2"},
        "<f8",
        {"offset": 1, "scale": 10, "dtype": "<f8", "astype": "<u2"},
        "little",
    ),
    "quantize": (
        {"id": "quantize", "digits": 1, "dtype": "<f4"},
        "<f4",
        {"digits": 1, "dtype": "<f4"},
        "little",
    ),
    "astype": (
        {"id": "astype", "encode_dtype": ">i2", "decode_dtype": "<i4"},
        "<i4",
        {"encode_dtype": "<i2", "decode_dtype": "<i4"},
        "big",
    ),
    "packbits": ({"id": "packbits"}, "|b1", {}, None),
}


@pytest.mark.conformance("C160", "C163")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", NUMBERS)
def test_filters_of_numbers_come_before_the_bytes(tmp_path, case, order):
    old, dtype, configuration, endian = NUMBERS[case]
    values = values_of(dtype)
    compressor = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0}
    write_v2(tmp_path, values, filters=[old], compressor=compressor, order=order)
    values = read(tmp_path)
    document = migrated(tmp_path, values)
    codecs = document["codecs"]
    transposed = [core("transpose", order=[1, 0])] if order == "F" else []
    assert codecs[: len(transposed)] == transposed
    first, serializer, last = codecs[len(transposed) :]
    assert first["name"] == f"numcodecs.{old['id']}"
    assert configuration.items() <= first.get("configuration", {}).items()
    assert serializer.get("configuration", {}).get("endian") == endian
    entering = {"delta": 4, "delta-narrower": 2, "fixedscaleoffset": 2, "quantize": 4, "astype": 2}
    typesize = entering.get(case, 1)
    assert last["configuration"]["typesize"] == typesize
    assert last["configuration"]["shuffle"] == ("bitshuffle" if typesize == 1 else "shuffle")
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160")
def test_several_filters_keep_their_order(tmp_path):
    filters = [
        {"id": "fixedscaleoffset", "offset": 0, "scale": 10, "dtype": "<f8", "astype": "<i4"},
        {"id": "delta", "dtype": "<i4"},
        {"id": "shuffle", "elementsize": 4},
        {"id": "crc32c"},
    ]
    values = values_of("<f8")
    write_v2(tmp_path, values, filters=filters)
    document = migrated(tmp_path, values)
    assert [codec["name"] for codec in document["codecs"]] == [
        "numcodecs.fixedscaleoffset",
        "numcodecs.delta",
        "bytes",
        "numcodecs.shuffle",
        "crc32c",
    ]
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160", "C165")
def test_bitround_gets_the_name_that_zarr_python_knows(tmp_path):
    values = values_of("<f4")
    write_v2(tmp_path, values, filters=[{"id": "bitround", "keepbits": 10}])
    values = read(tmp_path)
    document = migrated(tmp_path, values)
    assert document["codecs"] == [core("numcodecs.bitround", keepbits=10), LITTLE]
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160", "C163")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"id": "shuffle", "elementsize": 4}, core("numcodecs.shuffle", elementsize=4)),
        ({"id": "crc32"}, {"name": "numcodecs.crc32", "configuration": {}}),
        ({"id": "crc32", "location": "end"}, core("numcodecs.crc32", location="end")),
        ({"id": "adler32"}, {"name": "numcodecs.adler32", "configuration": {}}),
        ({"id": "fletcher32"}, {"name": "numcodecs.fletcher32", "configuration": {}}),
        ({"id": "jenkins_lookup3"}, None),
        ({"id": "crc32c"}, core("crc32c")),
        ({"id": "crc32c", "location": "start"}, core("numcodecs.crc32c", location="start")),
    ],
    ids=lambda case: json.dumps(case) if case and "id" in case else "",
)
def test_filters_of_bytes_come_after_the_bytes(tmp_path, old, new):
    values = values_of("<i4")
    write_v2(tmp_path, values, filters=[old])
    document = migrated(tmp_path, values)
    assert document["codecs"][0] == LITTLE
    if new is not None:
        assert document["codecs"][1:] == [new]
    else:
        assert document["codecs"][1]["name"] == f"numcodecs.{old['id']}"
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C163")
@pytest.mark.parametrize("first", ["shuffle", "crc32", "zlib"])
def test_filters_of_numbers_after_others_are_refused(tmp_path, first):
    filters = [{"id": first}, {"id": "delta", "dtype": "<i4"}]
    values = values_of("<i4")
    write_v2(tmp_path, values)
    document = json.loads((tmp_path / ".zarray").read_text())
    (tmp_path / ".zarray").write_text(json.dumps({**document, "filters": filters}))
    with pytest.raises(MigrationError) as caught:
        zd.migrate(tmp_path)
    assert "filters[1]" in str(caught.value)
    assert "'delta'" in str(caught.value)
    assert f"'{first}' comes first" in str(caught.value)


def test_filters_for_another_type_than_the_array_has_are_refused(tmp_path):
    """v2 gives them bytes, which they take for what they like; v3 gives them numbers."""
    write_v2(tmp_path, values_of(">i4"), filters=[{"id": "delta", "dtype": "<i4"}])
    with pytest.raises(MigrationError, match=r"filters\.dtype: got '<i4', expected '>i4'"):
        zd.migrate(tmp_path)


@pytest.mark.conformance("C160")
@pytest.mark.parametrize("name", ["zlib", "lz4", "bz2", "lzma"])
def test_compressors_without_a_registered_name(tmp_path, name):
    values = values_of("<i4")
    write_v2(tmp_path, values, compressor={"id": name})
    document = migrated(tmp_path, values)
    assert [codec["name"] for codec in document["codecs"]] == ["bytes", f"numcodecs.{name}"]
    assert same(by_zarr_python(tmp_path), values)


@pytest.mark.conformance("C160", "C165")
@pytest.mark.parametrize(
    ("shape", "expected"), [((5, 4), [1, 0]), ((3, 4, 5), [2, 1, 0]), ((7,), None)]
)
def test_column_order_becomes_a_transposition(tmp_path, shape, expected):
    values = values_of("<i4", shape)
    write_v2(tmp_path, values, chunks=(2, 3, 2), order="F")
    document = migrated(tmp_path, values)
    transposed = [] if expected is None else [core("transpose", order=expected)]
    assert document["codecs"] == [*transposed, LITTLE]
    assert same(by_zarr_python(tmp_path), values)
    assert same(by_tensorstore(tmp_path), values)


@pytest.mark.conformance("C160")
def test_zero_dimensions(tmp_path):
    values = np.array(7, "<i4")
    write_v2(tmp_path, values)
    assert migrated(tmp_path, values)["shape"] == []
    assert same(by_zarr_python(tmp_path), values)
    assert same(by_tensorstore(tmp_path), values)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("<f8", "NaN"),
        ("<f4", "-Infinity"),
        ("<f4", -0.0),
        ("<c8", [1.0, "NaN"]),
        ("<i2", -5),
        ("|b1", True),
    ],
)
def test_fill_values_stay(tmp_path, dtype, fill):
    values = values_of(dtype)
    write_v2(tmp_path, values, fill=fill)
    (tmp_path / "0.0").unlink()
    before = read(tmp_path)
    document = migrated(tmp_path, before)
    assert document["fill_value"] == fill
    assert str(document["fill_value"]) == str(fill)  # -0.0 too
    assert same(by_zarr_python(tmp_path), before)


@pytest.mark.conformance("C160")
def test_unknown_codecs_are_refused_by_name(tmp_path):
    write_v2(tmp_path, values_of("<i4"))
    document = json.loads((tmp_path / ".zarray").read_text())
    (tmp_path / ".zarray").write_text(json.dumps({**document, "compressor": {"id": "lz77"}}))
    with pytest.raises(MigrationError, match="lz77"):
        zd.migrate(tmp_path)
    assert not (tmp_path / "zarr.json").exists()


@pytest.mark.conformance("C166")
def test_names_of_dimensions_move_to_where_readers_look(tmp_path):
    values = values_of("<f4")
    write_v2(tmp_path, values)
    attributes = {"units": "K", "_ARRAY_DIMENSIONS": ["y", "x"]}
    (tmp_path / ".zattrs").write_text(json.dumps(attributes))
    document = migrated(tmp_path, values)
    assert document["dimension_names"] == ["y", "x"]
    assert document["attributes"] == {"units": "K"}
    assert zarr.open_array(str(tmp_path), mode="r").metadata.dimension_names == ("y", "x")


def test_names_that_do_not_fit_stay_attributes(tmp_path):
    values = values_of("<f4")
    write_v2(tmp_path, values)
    attributes = {"_ARRAY_DIMENSIONS": ["y"]}
    (tmp_path / ".zattrs").write_text(json.dumps(attributes))
    document = migrated(tmp_path, values)
    assert document["attributes"] == attributes
    assert "dimension_names" not in document


# --- hierarchies ----------------------------------------------------------------------------------

VALUES = {"a/b": values_of(">f4"), "c": values_of("<i2", (5,)), "empty": np.zeros((0, 3))}


@pytest.fixture
def old():
    """A hierarchy of v2 by zarr-python, as a mapping, and what is in it."""
    store = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.create_group(
            zarr.storage.MemoryStore(), zarr_format=2, attributes={"title": "t"}
        )
        for path, values in VALUES.items():
            made = root.create_array(
                path,
                shape=values.shape,
                dtype=values.dtype,
                chunks=(2, 3)[: values.ndim],
                compressors=None,
            )
            made[...] = values
            made.attrs["path"] = path
    store.update({key: value.to_bytes() for key, value in root.store._store_dict.items()})
    return store


def check(store, root=""):
    """Everything can be read, from the root and by path, by whichever documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zd.open_group(store, root)
        assert group.attributes == {"title": "t"}
        found = dict(group.arrays(recursive=True))
        assert sorted(found) == sorted(VALUES)
        for path, values in VALUES.items():
            assert same(found[path][...], values)
            assert found[path].attributes == {"path": path}
            assert same(zd.open_array(store, f"{root}/{path}")[...], values)
    return group


@pytest.mark.parametrize("remove_old", [False, True])
@pytest.mark.parametrize("data", ["keep", "rename", "copy"])
def test_hierarchies(old, data, remove_old):
    before = dict(old)
    target = {} if data == "copy" else None
    if data == "copy" and remove_old:
        with pytest.raises(ValueError, match="copy leaves its source"):
            zd.migrate(old, target, data=data, remove_old=remove_old)
        return
    plan = zd.migrate(old, target, data=data, dry_run=True, remove_old=remove_old)
    assert old == before
    assert not target
    assert "from v2 to v3" in str(plan)
    zd.migrate(old, target, data=data, remove_old=remove_old)
    new = old if target is None else target
    assert check(new).format == "v3"
    names = {key.rsplit("/", 1)[-1] for key in new}
    assert (".zarray" in names) == (data != "copy" and not remove_old)
    encoding = json.loads(new["a/b/zarr.json"])["chunk_key_encoding"]["name"]
    assert encoding == ("v2" if data == "keep" else "default")
    if data == "keep":
        assert {k: v for k, v in new.items() if k.rsplit("/", 1)[-1] not in DOCUMENTS} == {
            k: v for k, v in before.items() if k.rsplit("/", 1)[-1] not in DOCUMENTS
        }
    if not remove_old:
        assert before.items() <= (old.items())
        assert check_old(old)
    elif data == "rename":
        assert "a/b/0.0" not in new
        assert new["a/b/c/0/0"] == before["a/b/0.0"]


def check_old(store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zd.open_group(store, format="v2")
        return all(same(group[path][...], values) for path, values in VALUES.items())


def test_the_newer_documents_win_with_a_warning(old):
    zd.migrate(old)
    with pytest.warns(UserWarning, match="v3 is used"):
        assert zd.open(old).format == "v3"
    assert zd.open(old, format="v2").format == "v2"


@pytest.mark.conformance("C167")
def test_one_refusal_refuses_all_and_names_every_one(old):
    bad = json.loads(old["c/.zarray"])
    old["c/.zarray"] = json.dumps({**bad, "filters": [{"id": "lz77"}]}).encode()
    bad = json.loads(old["a/b/.zarray"])
    old["a/b/.zarray"] = json.dumps({**bad, "dtype": "<f16"}).encode()
    before = dict(old)
    plan = zd.migrate(old, dry_run=True)
    assert [path for path, _ in plan.refusals] == ["a/b", "c"]
    assert "nothing will be written" in plan.explain()
    with pytest.raises(MigrationError) as caught:
        zd.migrate(old, remove_old=True)
    assert old == before
    assert caught.value.refusals == plan.refusals
    for words in ("a/b: dtype", "<f16", "c: filters[0].id", "lz77"):
        assert words in str(caught.value)


class InjectedError(StoreError):
    """The failure that a test injects."""


def interrupted(store, number, **options):
    """Run a migration whose store fails at one operation; whether it got that far."""
    seen = []

    def before(method, key):
        seen.append((method, key))
        if len(seen) > number:
            raise InjectedError(f"{method} {key}")

    try:
        zd.migrate(HookStore(MemoryStore.over(store), before), **options)
    except InjectedError:
        return True
    return False


@pytest.mark.conformance("C167")
@pytest.mark.parametrize("remove_old", [False, True])
@pytest.mark.parametrize("data", ["keep", "rename"])
def test_interrupted_anywhere_all_can_be_read_and_run_again(consolidated, data, remove_old):
    old = consolidated
    options = {"data": data, "remove_old": remove_old}
    finished = dict(old)
    zd.migrate(finished, **options)
    number = 0
    stopped = True
    states = set()
    while stopped:
        store = dict(old)
        stopped = interrupted(store, number, **options)
        if (state := tuple(sorted(store))) not in states:  # most operations only read
            states.add(state)
            check(store)
            zd.migrate(store, **options)
            assert store == finished
            check(store)
        number += 1
    assert len(states) > 4
    assert number > 20


def test_interrupted_copies_can_be_run_again(old):
    finished = {}
    zd.migrate(old, finished)
    for number in range(0, 200, 3):
        target = {}
        seen = []

        def before(method, key, seen=seen, number=number):
            seen.append(key)
            if len(seen) > number:
                raise InjectedError(f"{method} {key}")

        try:
            zd.migrate(old, HookStore(MemoryStore.over(target), before))
        except InjectedError:
            assert "zarr.json" not in target or target == finished
        zd.migrate(old, target)
        assert target == finished
    check(finished)


def test_a_store_that_loses_what_is_written_is_found_out(old):
    class Lossy(MemoryStore):
        def set(self, key, buffers):
            buffers = [b"" if key.endswith("c/1/0") else b"".join(buffers)]
            super().set(key, buffers)

    before = dict(old)
    with pytest.raises(StoreError, match="does not hold what was just written"):
        zd.migrate(Lossy(old), data="rename", remove_old=True)
    assert before.items() <= old.items()
    check(old)


def test_documents_that_change_meanwhile_are_noticed(old):
    plan = zd.plan_migration(old)
    old["c/.zattrs"] = b'{"new": 1}'
    with pytest.raises(MetadataChangedError, match="have changed"):
        plan.run()
    assert not any(key.endswith("zarr.json") for key in old)


@pytest.mark.parametrize("change", ["attributes", "append"])
@pytest.mark.parametrize("remove_old", [False, True])
def test_what_changes_when_the_new_document_comes_is_not_lost(old, remove_old, change):
    """Neither of both knows of the other one, whose plan was made before."""
    changes = {
        "attributes": lambda a: a.update_attributes({"late": 1}),
        "append": lambda a: a.append(a[:1]),
    }
    array = zd.open_array(old, "c", mode="r+")
    length = len(array)

    class Racing(MemoryStore):
        def set(self, key, buffers):
            if key == "c/zarr.json":
                changes[change](array)
            super().set(key, buffers)

    with pytest.raises(MetadataChangedError, match="have changed"):
        zd.migrate(Racing(old), remove_old=remove_old)
    assert "c/zarr.json" not in old
    zd.migrate(old, remove_old=remove_old)
    after = zd.open_array(old, "c", format="v3")
    assert (len(after), after.attributes.get("late")) in {(length, 1), (length + 1, None)}


@pytest.mark.parametrize("way", ["append", "batch", "to_zarr"])
def test_an_append_beside_new_metadata_writes_over_nothing(old, way):
    """Others may have appended through the new ones, whose objects are the same."""
    array = zd.open_array(old, "c", mode="r+")
    more = np.full_like(array[:1], 9)
    plan = zd.plan_write(da.from_array(more, chunks=-1), old, "c", append=0)
    zd.migrate(old)
    newer = zd.open_array(old, "c", mode="r+", format="v3")
    wanted = newer.append(newer[:2])[...]

    def append_in_a_batch():
        with array.batch():
            array.append(more)

    calls = {"append": lambda: array.append(more), "batch": append_in_a_batch, "to_zarr": plan.run}
    with pytest.raises(MetadataChangedError, match="newer metadata"):
        calls[way]()
    np.testing.assert_array_equal(zd.open_array(old, "c", format="v3")[...], wanted)


@pytest.mark.parametrize("change", ["attributes", "append"])
def test_a_change_that_a_migration_has_seen_is_acknowledged(old, change):
    """The migration begins after the change, and ends before its maker looks for it."""
    array = zd.open_array(old, "c", mode="r+")
    length = len(array)

    class Racing(MemoryStore):
        def set_if(self, key, buffers, tag):
            done = super().set_if(key, buffers, tag)
            if key in {"c/.zarray", "c/.zattrs"}:
                zd.migrate(old)
                newer = zd.open_array(old, "c", mode="r+", format="v3")
                newer.update_attributes({"later": 2})
            return done

    array = zd.open_array(Racing(old), "c", mode="r+")
    if change == "append":
        assert len(array.append(array[:1])) == length + 1
    else:
        array.update_attributes({"late": 1})
    after = zd.open_array(old, "c", format="v3")
    assert (len(after), after.attributes.get("late")) in {(length + 1, None), (length, 1)}


@pytest.mark.parametrize("remove_old", [False, True])
def test_an_array_that_is_replaced_by_one_of_the_same_metadata_is_not_shown_empty(old, remove_old):
    """Its objects do not lie under the new keys."""
    values = zd.open_array(old, "c")[...] + 1

    def replace_it():
        for key in [key for key in old if key.startswith("c/c/")]:
            del old[key]
        zd.open_array(old, "c", mode="r+", format="v2")[...] = values

    racing = Interrupting(old).interrupt("set", "a/b/zarr.json", replace_it)
    with suppress(MetadataChangedError):
        zd.migrate(racing, data="rename", remove_old=remove_old)
    shown = "v3" if "c/zarr.json" in old else "v2"
    np.testing.assert_array_equal(zd.open_array(old, "c", format=shown)[...], values)
    zd.migrate(old, data="rename", remove_old=remove_old)
    np.testing.assert_array_equal(zd.open_array(old, "c", format="v3")[...], values)


@pytest.mark.parametrize("change", ["attributes", "append", "to_zarr"])
def test_a_change_beside_new_metadata_is_refused_and_not_made(old, change):
    """A migration puts new metadata right before it, of what it has read."""
    document = "c/.zattrs" if change == "attributes" else "c/.zarray"
    old["c/.zattrs"] = b'{"early": 0}'
    array = zd.open_array(old, "c")
    length = len(array)
    taken = []

    class Racing(MemoryStore):
        def set_if(self, key, buffers, tag):
            if key == document and not taken:
                taken.append(key)
                zd.migrate(old)
            return super().set_if(key, buffers, tag)

    racing = Racing(old)
    calls = {
        "attributes": lambda a: a.update_attributes({"late": 1}),
        "append": lambda a: a.append(array[:1]),
        "to_zarr": lambda a: zd.to_zarr(da.from_array(array[:1], chunks=-1), racing, "c", append=0),
    }
    with pytest.raises(MetadataChangedError):
        calls[change](zd.open_array(racing, "c", mode="r+"))
    for format in ("v2", "v3"):
        found = zd.open_array(old, "c", format=format)
        assert (len(found), found.attributes) == (length, {"early": 0})


class Interrupting(MemoryStore):
    """Calls a function before the first use of a key by a method."""

    def interrupt(self, method: str, key: str, call) -> Interrupting:
        self.calls = {(method, key): call}
        return self

    def _look(self, method: str, key: str) -> None:
        call = getattr(self, "calls", {}).pop((method, key), None)
        if call is not None:
            call()

    def set(self, key, buffers):
        self._look("set", key)
        super().set(key, buffers)

    def delete(self, key):
        self._look("delete", key)
        super().delete(key)

    def size(self, key):
        self._look("size", key)
        return super().size(key)


@pytest.mark.parametrize("change", ["attributes", "append"])
def test_what_others_make_of_a_new_document_is_not_taken_for_a_fault(old, change):
    """They see it before the migration reads it again, and its end is not known to them."""
    changes = {
        "attributes": lambda a: a.update_attributes({"late": 1}),
        "append": lambda a: a.append(a[:1]),
    }
    length = len(zd.open_array(old, "c"))

    def change_it():
        changes[change](zd.open_array(old, "c", mode="r+", format="v3"))

    zd.migrate(Interrupting(old).interrupt("set", "zarr.json", change_it), remove_old=True)
    after = zd.open_array(old, "c")
    assert (len(after), after.attributes.get("late")) in {(length, 1), (length + 1, None)}
    assert not any(key.endswith((".zarray", ".zattrs", ".zgroup")) for key in old)


@pytest.mark.filterwarnings("ignore:.*has documents of the formats")
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.MixedFormatsWarning")
@pytest.mark.parametrize("removed", [False, True])
def test_a_node_that_goes_before_it_is_read_again_is_no_lie_of_the_store(old, removed):
    group = zd.open_group(old, mode="r+")

    def go():
        zd.delete(old, "c") if removed else group.rename("c", "d")

    with pytest.raises(MetadataChangedError, match="removed or renamed"):
        zd.migrate(Interrupting(old).interrupt("set", "zarr.json", go), remove_old=True)
    zd.migrate(old, remove_old=True)
    assert set(zd.open_group(old)) >= ({"a"} if removed else {"a", "d"})


@pytest.mark.filterwarnings("ignore:.*has documents of the formats")
def test_a_node_of_the_old_format_at_the_path_of_one_that_was_renamed_stays(old):
    """The migration removes the metadata of those that it has migrated."""
    group = zd.open_group(old, mode="r+")

    def replace_it():
        group.rename("c", "d")
        zd.create_array(old, "c", data=np.arange(3), format="v2")

    # the first old metadata that are removed
    first = min(key for key in old if key.startswith("a/b/.z"))
    zd.migrate(Interrupting(old).interrupt("delete", first, replace_it), remove_old=True)
    assert zd.open_array(old, "c", format="v2")[...].tolist() == [0, 1, 2]
    assert zd.open_array(old, "d").format == "v3"


def test_old_metadata_are_not_changed_in_silence_beside_new_ones(old):
    array = zd.open_array(old, "c", mode="r+")
    more = da.from_array(array[:1], chunks=-1)
    append = zd.plan_write(more, old, "c", append=0)
    zd.migrate(old)
    for change in (
        lambda: array.update_attributes({"late": 1}),
        lambda: array.attrs.put({}),
        lambda: array.append(array[:1]),
        lambda: array.resize(1),
        append.run,
    ):
        with pytest.raises(MetadataChangedError):
            change()


@pytest.mark.parametrize("remove_old", [False, True])
def test_objects_that_change_meanwhile_are_copied_again(old, remove_old):
    """What a writer of the old format puts into a chunk that was copied is not lost."""
    plan = zd.plan_migration(old, data="rename", remove_old=remove_old)
    wanted = zd.open_array(old, "c")[...]
    wanted[:2] = 7, 8

    def change(_):
        old["c/0"] = b"\x07\x00\x08\x00"

    plan.run(_once(plan, change))
    np.testing.assert_array_equal(zd.open_array(old, "c", format="v3")[...], wanted)


def _once(plan, change):
    """Call `change` when the last object has been copied."""
    left = [plan.objects]

    def progress(nbytes):
        left[0] -= 1
        if left[0] == 0:
            change(nbytes)

    return progress


def test_newer_documents_are_not_overwritten(old):
    zd.migrate(old)
    zd.open_array(old, "c", mode="r+", format="v3").update_attributes({"newer": True})
    plan = zd.migrate(old, dry_run=True)
    assert [path for path, _ in plan.refusals] == ["c"]
    with pytest.raises(MigrationError, match=r"c/zarr\.json"):
        zd.migrate(old, remove_old=True)
    assert zd.open_array(old, "c", format="v3").attributes["newer"]


@pytest.mark.parametrize("gone", [False, True])
def test_objects_that_are_newer_are_never_replaced(old, gone):
    """What was written through the new documents wins; nothing old is removed unseen."""
    zd.migrate(old, data="rename")
    zd.open_array(old, "c", mode="r+", format="v3")[0:2] = 0 if gone else 77
    assert gone == ("c/c/0" not in old)
    before = dict(old)
    zd.migrate(old, data="rename")
    assert old == before
    with pytest.raises(MetadataChangedError, match="written since"):
        zd.migrate(old, data="rename", remove_old=True)
    assert old == before


def test_objects_under_the_new_keys_are_not_taken_for_the_array(old):
    del old["a/b/1.1"]
    old["a/b/c/1/1"] = b"somebody else's"
    with pytest.raises(MigrationError, match="a/b/c/1/1"):
        zd.migrate(old, data="rename")
    assert old["a/b/c/1/1"] == b"somebody else's"


def test_objects_outside_the_array_are_not_copied(old):
    old["a/b/9.9"] = old["a/b/0.0"]
    zd.migrate(old, data="rename", remove_old=True)
    assert "a/b/c/9/9" not in old
    assert "a/b/9.9" in old
    check(old)


@pytest.mark.parametrize("missing", ["a/.zgroup", ".zgroup"])
def test_groups_without_documents_get_them(old, missing):
    del old[missing]
    if missing == ".zgroup":
        del old[".zattrs"]
    plan = zd.migrate(old)
    assert [n.path for n in plan.nodes if n.notes] == [missing[:-8].rstrip("/")]
    assert sorted(path for path, _ in zd.open_group(old, format="v3").arrays(recursive=True)) == [
        "a/b",
        "c",
        "empty",
    ]


@pytest.fixture
def consolidated(old):
    """The same hierarchy with consolidated metadata, by zarr-python."""
    store = zarr.storage.MemoryStore(
        {
            key: zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(v)
            for key, v in old.items()
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store, zarr_format=2)
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def test_consolidated_metadata_are_made_anew(consolidated, tmp_path):
    assert ".zmetadata" in consolidated
    target = tmp_path / "new"
    zd.migrate(consolidated, target)
    group = zarr.open_consolidated(str(target), zarr_format=3)
    assert sorted(path for path, _ in group.members(max_depth=None)) == ["a", "a/b", "c", "empty"]
    assert same(group["a/b"][...], VALUES["a/b"])
    assert zd.open_group(target).stale() == []
    zd.migrate(consolidated, remove_old=True)
    assert not any(".z" in key for key in consolidated)
    assert "consolidated_metadata" in json.loads(consolidated["zarr.json"])


def test_a_part_of_a_hierarchy(old):
    zd.migrate(old, path="a")
    assert "zarr.json" not in old
    with pytest.warns(UserWarning, match="v3 is used"):
        assert same(zd.open(old, "a")["b"][...], VALUES["a/b"])


def test_a_hierarchy_that_is_migrated_already(old):
    zd.migrate(old, remove_old=True)
    before = dict(old)
    plan = zd.migrate(old, remove_old=True)
    assert plan.route.source_format.name == "v3"
    assert old == before


@pytest.mark.parametrize("shape", [(), (4,), (4, 4)], ids=str)
@pytest.mark.parametrize("separator", [".", "/"])
def test_stored_objects_that_have_their_keys_already_are_not_removed(separator, shape):
    """Of one axis both layouts of v2 have the same keys, so each object was its own copy."""
    store = {}
    layout = {"name": "v2", "configuration": {"separator": separator}}
    values = values_of("i4", shape)
    chunks = (2,) * len(shape)
    zd.create_array(store, "a", data=values, chunks=chunks, chunk_key_encoding=layout)
    before = dict(store)
    zd.migrate(store, data="rename", remove_old=True)
    assert store == before
    old = {}
    zd.create_array(old, data=values, chunks=chunks, format="v2", chunk_key_encoding=layout)
    zd.migrate(old, remove_old=True)
    zd.migrate(old, data="rename", remove_old=True)
    assert np.array_equal(zd.open_array(old)[...], values)


def test_files_are_left_tidy(tmp_path):
    zd.create_array(
        tmp_path,
        "a",
        shape=(4, 4),
        dtype="i2",
        chunks=2,
        format="v2",
        chunk_key_encoding={"separator": "/"},
    )[...] = 1
    zd.migrate(tmp_path, data="rename", remove_old=True)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["c", "zarr.json"]
    assert (zd.open(tmp_path)["a"][...] == 1).all()


def test_names_that_v3_reserves_are_refused(old):
    for key in list(old):
        if key.startswith("c/"):
            old[f"__{key}"] = old.pop(key)
    with pytest.raises(MigrationError, match="__c"):
        zd.migrate(old)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "v1"}, "format='v1': expected 'v3' or 'v2'"),
        ({"data": "copy"}, "without it works in place"),
        ({"dst": {}, "data": "keep"}, "with dst it copies"),
        ({"dst": {}, "remove_old": True}, "a copy leaves its source"),
    ],
)
def test_arguments_that_do_not_go_together(old, options, message):
    with pytest.raises(ValueError, match=message):
        zd.migrate(old, **options)


def test_places_that_overlap(tmp_path):
    write_v2(tmp_path / "a", values_of("<i4"))
    with pytest.raises(SourceIsTargetError, match="lies in"):
        zd.migrate(tmp_path, tmp_path / "b")


def test_nothing_there(tmp_path):
    with pytest.raises(NodeNotFoundError, match="no Zarr array or group"):
        zd.migrate(tmp_path)


def test_newer_formats_are_not_turned_back(old):
    zd.migrate(old, remove_old=True)
    with pytest.raises(ValueError, match="has format v3, which cannot be migrated to v2"):
        zd.migrate(old, format="v2")


# --- v1 -------------------------------------------------------------------------------------------

V1_COMPRESSION = {
    "none": ("none", None, None, []),
    "null": (None, None, None, []),
    "zlib": ("zlib", 3, {"id": "zlib", "level": 3}, ["numcodecs.zlib"]),
    "gzip": ("gzip", 3, {"id": "zlib", "level": 3}, ["numcodecs.zlib"]),
    "bz2": ("bz2", 5, {"id": "bz2", "level": 5}, ["numcodecs.bz2"]),
    "lzma": (
        "lzma",
        {"format": 1, "check": 0, "preset": 1, "filters": None},
        {"id": "lzma", "format": 1, "check": 0, "preset": 1, "filters": None},
        ["numcodecs.lzma"],
    ),
    "blosc": (
        "blosc",
        {"cname": "lz4", "clevel": 5, "shuffle": 1},
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
        ["blosc"],
    ),
}


def write_v1(path, values, name, options, codec, *, fill="0", order="C", chunk_order=None):
    """An array of v1: documents by hand, chunks by NumPy and numcodecs."""
    path.mkdir(parents=True, exist_ok=True)
    write_v2(path, values, compressor=codec, order=chunk_order or order)
    descr = values.dtype.descr if values.dtype.names else values.dtype.str
    document = {
        "zarr_format": 1,
        "shape": list(values.shape),
        "chunks": json.loads((path / ".zarray").read_text())["chunks"],
        "dtype": descr,
        "compression": name,
        "compression_opts": options,
        "fill_value": "FILL",
        "order": order,
    }
    (path / ".zarray").unlink()
    (path / "meta").write_text(json.dumps(document).replace('"FILL"', fill))
    (path / "attrs").write_text('{"title": "t", "_ARRAY_DIMENSIONS": ["y", "x"]}')


@pytest.mark.conformance("C168")
@pytest.mark.parametrize("target", ["v2", "v3"])
@pytest.mark.parametrize("case", V1_COMPRESSION)
def test_v1_keeps_values_and_bytes(tmp_path, case, target):
    name, options, codec, codecs = V1_COMPRESSION[case]
    values = values_of("<i4")
    write_v1(tmp_path, values, name, options, codec)
    before = objects_of(tmp_path)
    assert same(read(tmp_path), values)
    plan = zd.migrate(tmp_path, format=target)
    assert (plan.route.source_format.name, plan.route.target_format.name) == ("v1", target)
    assert {"meta", "attrs"} <= {path.name for path in tmp_path.iterdir()}
    zd.migrate(tmp_path, format=target, remove_old=True)
    assert not {"meta", "attrs"} & {path.name for path in tmp_path.iterdir()}
    assert objects_of(tmp_path) == before
    array = zd.open_array(tmp_path)
    assert array.format == target
    assert same(array[...], values)
    if target == "v2":
        document = json.loads((tmp_path / ".zarray").read_text())
        assert document.pop("dimension_separator", ".") == "."
        assert document == {
            "zarr_format": 2,
            "shape": [5, 4],
            "chunks": [2, 3],
            "dtype": "<i4",
            "compressor": codec,
            "filters": None,
            "fill_value": 0,
            "order": "C",
        }
        assert json.loads((tmp_path / ".zattrs").read_text())["title"] == "t"
    else:
        document = document_of(tmp_path)
        assert [codec["name"] for codec in document["codecs"]] == ["bytes", *codecs]
        assert document["attributes"] == {"title": "t", "_FillValue": 0}  # which v1 has as fill
        assert document["dimension_names"] == ["y", "x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = zarr.open_array(str(tmp_path), mode="r", zarr_format=int(target[1]))
    assert same(peer[...], values)


@pytest.mark.conformance("C168")
@pytest.mark.parametrize(
    ("dtype", "old", "v2", "v3"),
    [
        ("<f8", "NaN", "NaN", "NaN"),
        ("<f4", "-Infinity", "-Infinity", "-Infinity"),
        ("<f4", "null", None, 0),
        ("|S3", '"ab"', "YWIA", "YWIA"),
        ("|S3", '""', "AAAA", "AAAA"),
    ],
)
def test_fill_values_of_v1(tmp_path, dtype, old, v2, v3):
    values = values_of(dtype)
    for target, expected in (("v2", v2), ("v3", v3)):
        root = tmp_path / target
        write_v1(root, values, "none", None, None, fill=old)
        (root / "0.0").unlink()
        before = read(root)
        zd.migrate(root, format=target, remove_old=True)
        name = ".zarray" if target == "v2" else "zarr.json"
        found = json.loads((root / name).read_text())["fill_value"]
        if dtype.startswith("|S") and isinstance(found, str):
            found = base64.b64encode(base64.b64decode(found).ljust(3, b"\0")).decode()
        assert found == expected
        assert same(read(root), before)


@pytest.mark.conformance("C168")
def test_structs_of_v1(tmp_path):
    values = np.zeros((5, 4), struct(">"))
    values["id"] = np.arange(20).reshape(5, 4)
    for target in ("v2", "v3"):
        root = tmp_path / target
        write_v1(root, values, "none", None, None)
        zd.migrate(root, format=target, remove_old=True)
        assert same(read(root), values)
    fill = json.loads((tmp_path / "v2" / ".zarray").read_text())["fill_value"]
    assert base64.b64decode(fill) == bytes(12)
    assert document_of(tmp_path / "v3")["codecs"][0]["configuration"] == {"endian": "big"}


@pytest.mark.conformance("C168")
@pytest.mark.parametrize("target", ["v2", "v3"])
@pytest.mark.parametrize("written", ["spec", "legacy"])
def test_column_order_of_v1_as_the_reader_says(tmp_path, written, target):
    values = values_of("<i4")
    rows = "C" if written == "legacy" else "F"
    write_v1(tmp_path, values, "none", None, None, order="F", chunk_order=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zd.migrate(tmp_path, format=target, read=zd.ReadOptions(v1_f_order=written))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zd.open_array(tmp_path, format=target)
    assert same(array[...], values)


@pytest.mark.parametrize("target", ["v2", "v3"])
def test_interrupted_migrations_of_v1(tmp_path, target):
    values = values_of("<i4")
    write_v1(tmp_path, values, "none", None, None)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    finished = dict(old)
    zd.migrate(finished, format=target, remove_old=True)
    number = 0
    stopped = True
    while stopped:
        store = dict(old)
        stopped = interrupted(store, number, format=target, remove_old=True)
        assert same(read(store), values)
        zd.migrate(store, format=target, remove_old=True)
        assert store == finished
        number += 1
    assert number > 5


# --- the draft ------------------------------------------------------------------------------------

CODECS = "https://purl.org/zarr/spec/codecs"
ENTRY = {
    "2022-12": {
        "zarr_format": "https://purl.org/zarr/spec/core/3.0",
        "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
        "extensions": [],
    },
    "2022-05": {
        "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_key_suffix": ".json",
        "extensions": [],
    },
}


def draft(generation, arrays, chunks, groups=()):
    """A hierarchy of the draft by hand, as a mapping."""
    above = {"2022-12": "", "2022-05": "root/"}[generation]
    store = {"zarr.json": json.dumps(ENTRY[generation]).encode()}
    for path, document in arrays.items():
        store[f"meta/{above}{path}.array.json"] = json.dumps(document).encode()
    for path in groups:
        store[f"meta/{above}{path}.group.json"] = b'{"attributes": {"of": "group"}}'
    store |= {f"data/{above}{key}": bytes(value) for key, value in chunks.items()}
    return store


def draft_array(shape, cell, data_type, **members):
    separator = members.pop("separator", "/")
    return {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"type": "regular", "chunk_shape": cell, "separator": separator},
        "chunk_memory_layout": "C",
        "fill_value": 0,
        "extensions": [],
        "attributes": {},
        **members,
    }


NUMBERS_2D = np.arange(6).reshape(2, 3)


@pytest.fixture(params=["2022-12", "2022-05"])
def drafted(request):
    """Arrays of the draft: byte orders, layouts, fill values, an implicit group, separators."""
    of_may = request.param == "2022-05"
    name = {"float64": "<f8", "int32": "<i4"} if of_may else {}
    swap = [{"type": f"{CODECS}/endian/1.0", "configuration": {"endian": "big"}}]
    arrays = {
        "implied/big": draft_array([2, 3], [2, 2], ">f8", fill_value="-Infinity", separator="."),
        "columns": draft_array(
            [2, 3], [2, 3], name.get("int32", "int32"), chunk_memory_layout="F", attributes={"a": 1}
        ),
        "bits": draft_array(
            [2], [1], name.get("float64", "float64"), fill_value="0x7ff8000000000001"
        ),
        "zero": draft_array([], [], name.get("int32", "int32"), fill_value=7),
    }
    if not of_may:
        arrays["swapped"] = draft_array([2, 3], [2, 3], "int32", codecs=swap)
    big = NUMBERS_2D.astype(">f8")
    chunks = {
        "implied/big/c0.0": np.ascontiguousarray(big[:, :2]),
        "columns/c0/0": NUMBERS_2D.astype("<i4").T.copy(),
        "swapped/c0/0": NUMBERS_2D.astype(">i4"),
    }
    if of_may:
        del chunks["swapped/c0/0"]
    values = {
        "implied/big": np.array([[0, 1, -np.inf], [3, 4, -np.inf]]),
        "columns": NUMBERS_2D.astype("i4"),
        "bits": np.full(2, 0x7FF8000000000001, "u8").view("f8"),
        "zero": np.array(7, "i4"),
    }
    if not of_may:
        values["swapped"] = NUMBERS_2D.astype("i4")
    return draft(request.param, arrays, chunks, ["said"]), values


def check_draft(store, values):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zd.open_group(store)
        for path, wanted in values.items():
            assert same(group[path][...], wanted), path
            assert same(zd.open_array(store, path)[...], wanted), path
        assert group["said"].attributes == {"of": "group"}
    return group


@pytest.mark.conformance("C169")
@pytest.mark.parametrize("way", ["rename", "rename and remove", "copy"])
def test_drafts(drafted, way, tmp_path):
    store, values = drafted
    before = dict(store)
    check_draft(store, values)
    if way == "copy":
        target = tmp_path / "new"
        zd.migrate(store, target)
        assert store == before
        new = {
            str(path.relative_to(target)): path.read_bytes()
            for path in target.rglob("*")
            if path.is_file()
        }
    else:
        zd.migrate(store, data="rename", remove_old=way != "rename")
        new = store
    assert check_draft(new, values).format == "v3"
    if way == "rename":
        old = {key: value for key, value in before.items() if key != "zarr.json"}
        assert old.items() < new.items()
        assert new["zarr.json.migrated"] == before["zarr.json"]
    else:
        assert not any(key.startswith(("meta/", "data/")) for key in new)
        assert "zarr.json.migrated" not in new
    for path in ("", "implied/", "implied/big/", "said/", "columns/", "bits/", "zero/"):
        document = json.loads(new[f"{path}zarr.json"])
        assert document["zarr_format"] == 3
    top = "root/" if "data/root/columns/c0/0" in before else ""
    assert new["columns/c/0/0"] == before[f"data/{top}columns/c0/0"]
    assert new["implied/big/c.0.0"] == before[f"data/{top}implied/big/c0.0"]
    documents = {path: json.loads(new[f"{path}/zarr.json"]) for path in values}
    big = documents["implied/big"]
    assert (big["data_type"], big["fill_value"]) == ("float64", "-Infinity")
    assert big["codecs"] == [core("bytes", endian="big")]
    assert documents["columns"]["codecs"] == [core("transpose", order=[1, 0]), LITTLE]
    assert documents["columns"]["attributes"] == {"a": 1}
    assert documents["bits"]["fill_value"] == "0x7ff8000000000001"
    if way == "copy":
        for path, wanted in values.items():
            assert same(by_zarr_python(target / path), wanted)
            assert same(by_tensorstore(target / path), wanted)


@pytest.mark.conformance("C169")
def test_drafts_with_compressors_and_filters(tmp_path):
    import numcodecs

    values = np.arange(1, 7, dtype="<i4")
    blosc_chunk = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE).encode(values)
    encoded = numcodecs.Zlib(1).encode(numcodecs.Delta("<i4").encode(values))
    infinite = {"fill_value": "+Infinity"}
    compressed = {
        "type": f"{CODECS}/blosc/1.0",
        "configuration": {"cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0},
    }
    last = draft(
        "2022-12",
        {
            "a": draft_array([6], [6], "int32", codecs=[compressed]),
            "b": draft_array([6], [6], "float32", **infinite),
        },
        {"a/c0": blosc_chunk},
    )
    first = draft(
        "2022-05",
        {
            "a": draft_array(
                [6],
                [6],
                "<i4",
                compressor={
                    "codec": "https://purl.org/zarr/spec/codec/zlib/1.0",
                    "configuration": {"level": 1},
                },
                attributes={"filters": [{"id": "delta", "dtype": "<i4"}], "kept": True},
                fill_value=None,
            )
        },
        {"a/c0": encoded},
    )
    zd.migrate(last, tmp_path / "last")
    zd.migrate(first, tmp_path / "first")
    assert same(read(tmp_path / "last", "a"), values)
    assert same(by_zarr_python(tmp_path / "last" / "a"), values)
    document = document_of(tmp_path / "last" / "a")
    assert document["codecs"] == [LITTLE, blosc("shuffle", 4)]
    assert document_of(tmp_path / "last" / "b")["fill_value"] == "Infinity"
    assert same(read(tmp_path / "first", "a"), values)
    assert same(by_zarr_python(tmp_path / "first" / "a"), values)
    document = document_of(tmp_path / "first" / "a")
    names = [codec["name"] for codec in document["codecs"]]
    assert names == ["numcodecs.delta", "bytes", "numcodecs.zlib"]
    assert document["attributes"] == {"kept": True}
    assert document["fill_value"] == 0


GOLDEN_SHARD = (
    bytes.fromhex("0708030405060102") + np.array([6, 2, 2, 2, 4, 2, 0, 2], "<u8").tobytes()
)


@pytest.mark.conformance("C170")
@pytest.mark.parametrize("way", ["rename", "copy"])
def test_shards_of_the_draft_are_shards_of_v3_as_they_are(tmp_path, way):
    transformer = {
        "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
        "type": "indexed",
        "configuration": {"chunks_per_shard": [2, 2]},
    }
    document = draft_array([2, 4], [1, 2], "|u1", separator=".", storage_transformers=[transformer])
    store = draft("2022-05", {"sh": document}, {"sh/c0.0": GOLDEN_SHARD})
    for key, value in store.items():
        (tmp_path / "old" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / key).write_bytes(value)
    values = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], "u1")
    root = tmp_path / "old"
    if way == "copy":
        root = tmp_path / "new"
        zd.migrate(tmp_path / "old", root)
    else:
        zd.migrate(root, data="rename", remove_old=True)
        assert sorted(path.name for path in root.iterdir()) == ["sh", "zarr.json"]
    assert (root / "sh" / "c.0.0").read_bytes() == GOLDEN_SHARD
    sharding = document_of(root / "sh")["codecs"]
    assert sharding == [
        core(
            "sharding_indexed",
            chunk_shape=[1, 2],
            codecs=[{"name": "bytes"}],
            index_codecs=[LITTLE],
            index_location="end",
        )
    ]
    assert document_of(root / "sh")["chunk_grid"]["configuration"] == {"chunk_shape": [2, 4]}
    assert same(read(root, "sh"), values)
    assert same(by_zarr_python(root / "sh"), values)
    assert same(by_tensorstore(root / "sh"), values)


@pytest.mark.conformance("C169")
def test_what_drafts_have_and_v3_has_not_is_refused():
    plain = draft_array([2], [2], "int32")
    store = draft("2022-12", {"__a": plain, "meta": plain, "fine": plain}, {})
    plan = zd.migrate(store, data="rename", dry_run=True)
    assert sorted(path for path, _ in plan.refusals) == ["__a", "meta"]
    assert [path for path, _ in zd.migrate(store, {}, dry_run=True).refusals] == ["__a"]
    entry = {
        **ENTRY["2022-12"],
        "extensions": [{"extension": "https://x", "must_understand": True}],
    }
    store["zarr.json"] = json.dumps(entry).encode()
    with pytest.raises(MetadataError, match="must be understood"):
        zd.migrate(store, {})
    entry["extensions"][0]["must_understand"] = False
    store = draft("2022-12", {"fine": plain}, {})
    store["zarr.json"] = json.dumps(entry).encode()
    target = {}
    zd.migrate(store, target)
    assert "extensions" not in json.loads(target["zarr.json"])


def with_consolidated(store):
    """The same with consolidated metadata where zarr-python 2 put them, if it knew the layout."""
    documents = {
        key: json.loads(value) for key, value in store.items() if key.startswith("meta/root/")
    }
    if not documents:
        return store
    text = json.dumps({"metadata": documents, "zarr_consolidated_format": 1}).encode()
    return {
        **store,
        "meta/root/consolidated/.zmetadata": text,
        "meta/root/consolidated.group.json": b'{"attributes": {}}',
    }


@pytest.mark.parametrize("way", ["rename", "copy"])
def test_consolidated_metadata_of_drafts(drafted, way):
    store, values = drafted
    store = with_consolidated(store)
    target = {} if way == "copy" else store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "copy":
            zd.migrate(store, target)
        else:
            zd.migrate(store, data="rename", remove_old=True)
    group = check_draft(target, values)
    assert "consolidated" not in group
    if way == "copy" and any(key.startswith("meta/root/") for key in store):
        assert "consolidated_metadata" in json.loads(target["zarr.json"])
        assert group.stale() == []
    assert not any(key.startswith("meta/") for key in target)


@pytest.mark.conformance("C167")
@pytest.mark.parametrize("remove_old", [False, True])
def test_interrupted_migrations_of_drafts(drafted, remove_old):
    old, values = drafted
    old = with_consolidated(old)
    options = {"data": "rename", "remove_old": remove_old}
    finished = dict(old)
    zd.migrate(finished, **options)
    number = 0
    stopped = True
    states = set()
    while stopped:
        store = dict(old)
        stopped = interrupted(store, number, **options)
        if (state := tuple(sorted(store))) not in states:
            states.add(state)
            check_draft(store, values)
            zd.migrate(store, **options)
            assert store == finished
        number += 1
    assert len(states) > 8


def test_newer_attributes_of_the_root_survive_the_removal_of_a_draft(drafted):
    store, _ = drafted
    zd.migrate(store, data="rename")
    zd.open_group(store, mode="r+").update_attributes({"newer": True})
    with pytest.raises(MigrationError, match=r"zarr\.json"):
        zd.migrate(store, data="rename", remove_old=True)
    assert zd.open_group(store).attributes == {"newer": True}


@pytest.mark.parametrize("generation", ["v3draft", "v3draft-2022-05"])
@pytest.mark.parametrize("root", ["group", "array"])
def test_a_removal_that_stopped_before_the_last_of_a_draft_is_finished(generation, root):
    store = {}
    if root == "group":
        zd.create_group(store, format=generation, attributes={"r": 1})
    path = "" if root == "array" else "a"
    zd.create_array(
        store, path, shape=(4,), dtype="i2", chunks=2, format=generation, attributes={"r": 1}
    )[...] = 1
    store = with_consolidated(store)
    left = {key: store[key] for key in store if "consolidated" in key and ".group" not in key}
    entry = store["zarr.json"]
    zd.migrate(store, data="rename", remove_old=True)
    finished = dict(store)
    assert not any(key.startswith(("meta", "data")) or "migrated" in key for key in store)

    for stopped in ({"zarr.json.migrated": entry}, {"zarr.json.migrated": entry, **left}):
        store.update(stopped)
        zd.migrate(store, data="rename")  # without remove_old there is nothing left to do
        assert store == {**finished, **stopped}
        zd.migrate(store, data="rename", remove_old=True)
        assert store == finished
    assert dict(zd.open(store).attributes) == {"r": 1}


@pytest.mark.parametrize("remove_old", [False, True])
def test_nodes_that_were_deleted_after_the_migration_of_a_draft_stay_deleted(remove_old):
    store = {}
    for path in ("a", "b", "g/c"):
        array = zd.create_array(store, path, shape=(4,), dtype="i2", chunks=2, format="v3draft")
        array[...] = 1
    zd.migrate(store, data="rename")
    zd.delete(store, "a")
    zd.delete(store, "g")
    before = dict(store)
    with pytest.raises(MigrationError) as caught:
        zd.migrate(store, data="rename", remove_old=remove_old)
    assert store == before
    assert [path for path, _ in caught.value.refusals] == ["a", "g", "g/c"]
    assert "deleted since" in str(caught.value)
    for key in [key for key in store if key.startswith(("meta/a", "data/a/", "meta/g", "data/g"))]:
        assert key in str(caught.value) or key.startswith(("data/a/", "data/g/"))
        del store[key]  # what the message says
    zd.migrate(store, data="rename", remove_old=True)
    assert sorted(store) == ["b/c/0", "b/c/1", "b/zarr.json", "zarr.json"]


def test_drafts_cannot_keep_their_keys_and_are_migrated_from_their_root(drafted):
    store, _ = drafted
    with pytest.raises(ValueError, match="data='rename'"):
        zd.migrate(store)
    with pytest.raises(ValueError, match="from its root"):
        zd.migrate(store, {}, path="implied")


def test_a_draft_that_gdal_wrote(public_data, tmp_path):
    source = public_data / "gdal_draft_v3" / "test.zr3"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = zd.open_array(source)[...]
        zd.migrate(source, tmp_path / "new")
    assert values.any()
    assert same(by_zarr_python(tmp_path / "new"), values)


# --- beside other implementations -----------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", ["none", "blosc", "gzip", "zstd", "zlib", "delta"])
def test_documents_are_those_of_zarr_python_where_it_is_right(tmp_path, case, order):
    import numcodecs
    from zarr.metadata.migrate_v3 import migrate_v2_to_v3

    codec = {
        "blosc": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
        "gzip": numcodecs.GZip(3),
        "zstd": numcodecs.Zstd(3),
        "zlib": numcodecs.Zlib(3),
    }.get(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("theirs", "ours"):
            zarr.create_array(
                str(tmp_path / name),
                shape=(5, 4),
                chunks=(2, 3),
                dtype="<i4",
                zarr_format=2,
                fill_value=1,
                compressors=codec,
                filters=[numcodecs.Delta("<i4")] if case == "delta" else None,
                order=order,
                attributes={"a": 1},
            )[...] = 7
        migrate_v2_to_v3(input_store=zarr.storage.LocalStore(tmp_path / "theirs"))
    zd.migrate(tmp_path / "ours")
    theirs, ours = document_of(tmp_path / "theirs"), document_of(tmp_path / "ours")
    assert theirs.pop("storage_transformers") == []
    assert ours == theirs


def test_archives_are_copied_from(old, tmp_path):
    with zipfile.ZipFile(tmp_path / "old.zip", "w") as archive:
        for key, value in old.items():
            archive.writestr(key, value)
    zd.migrate(tmp_path / "old.zip", tmp_path / "new")
    check(tmp_path / "new")
    with pytest.raises(ReadOnlyError, match="written in one go"):
        zd.migrate(tmp_path / "old.zip")


PUBLISHED = ["zarrita_js/v2/data.zarr", "zarr_python_v2_fixture/data.zip"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_stores_of_v2(public_data, tmp_path, name):
    source = public_data / name
    refused = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = [node.path for node in zd.inventory(source).arrays]
        for path in arrays:
            values = zd.open_array(source, path)[...]
            try:
                zd.migrate(source, tmp_path, path=path)
            except MigrationError:
                refused.append(path)
                continue
            assert same(zd.open_array(tmp_path, path)[...], values)
            assert same(by_zarr_python(tmp_path / path), values)
    assert len(arrays) > 30
    assert refused == [path for path in arrays if "json2" in path]


@pytest.mark.parametrize("fill", [-99, np.nan, None])
def test_missing_values_stay_missing_to_xarray(tmp_path, fill):
    xr = pytest.importorskip("xarray")
    values = xr.Dataset({"t": ("x", np.array([1.0, np.nan, 3.0]))})
    encoding = {"_FillValue": fill} if fill != -99 else {"dtype": "i2", "_FillValue": fill}
    values.to_zarr(tmp_path / "a", zarr_format=2, encoding={"t": encoding}, consolidated=False)
    plan = zd.plan_migration(tmp_path / "a", remove_old=True)
    assert not [note for node in plan.nodes for note in node.notes if "_FillValue" in note]
    plan.run()
    found = xr.open_dataset(tmp_path / "a", engine="zarr_dask")
    np.testing.assert_array_equal(found["t"], values["t"])
