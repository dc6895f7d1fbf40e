"""The bytes of a chunk for every data type: against `struct` of Python, NumPy and ml_dtypes."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import zarr_dask as zd
from zarr_dask.codecs.arrays import Bytes, StructBytes, endian_of, serializer_of
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions, concat_buffers
from zarr_dask.dtypes import CORE_NAMES, data_type_of, full_of, is_full_of, leaves, native
from zarr_dask.errors import CorruptObjectError, MetadataError

READING = DecodeOptions()


def document(data_type, endian, fill=0, shape=(2,)):
    configuration = {} if endian is None else {"configuration": {"endian": endian}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill,
        "codecs": [{"name": "bytes", **configuration}],
    }


def stored(data_type, endian, fill=0, chunk=None, shape=(2,)):
    store = {"zarr.json": json.dumps(document(data_type, endian, fill, shape)).encode()}
    if chunk is not None:
        store["c/" + "/".join("0" * len(shape))] = chunk
    return store


# --- core types -----------------------------------------------------------------------------------

CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "complex64": "f",
    "complex128": "d",
}
"""Formats of Python's struct module, for a number or for a part of a complex one."""


def numbers(name):
    if name == "bool":
        return [True, False]
    if name.startswith("complex"):
        return [1.5 - 2j, complex(-0.0, float("inf"))]
    return [1.5, -0.0] if name.startswith("float") else [1, 100 if name.startswith("u") else -2]


def zero_of(name):
    return {"b": False, "c": [0, 0]}.get(CORE_NAMES[name].kind, 0)


def packed(name, values, order):
    parts = [p for v in values for p in ((v.real, v.imag) if isinstance(v, complex) else (v,))]
    return struct.pack(f"{order}{len(parts)}{CODES[name]}", *parts)


@pytest.mark.conformance("C100")
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("name", CORE_NAMES)
def test_core_types(name, endian):
    values = numbers(name)
    expected = packed(name, values, "<" if endian == "little" else ">")
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    store = {}
    zd.create_array(store, shape=2, dtype=name, chunks=2, codecs=codecs)[...] = values
    assert bytes(store["c/0"]) == expected
    read = zd.open_array(stored(name, endian, zero_of(name), expected))[...]
    assert read.dtype == CORE_NAMES[name]
    assert read.tobytes() == np.array(values, name).tobytes()


@pytest.mark.conformance("C099")
@pytest.mark.parametrize("name", CORE_NAMES)
def test_byte_order_must_be_said_of_several_bytes(name):
    store = stored(name, None, zero_of(name))
    if CORE_NAMES[name].itemsize == 1:
        assert zd.open_array(store).codecs == (Bytes(None),)
        return
    with pytest.raises(MetadataError) as caught:
        zd.open_array(store)
    assert [problem.field for problem in caught.value.problems] == [
        "codecs[0].configuration.endian"
    ]


@pytest.mark.conformance("C101")
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("given_order", ["<", ">"])
@pytest.mark.parametrize("kind", ["i4", "f8", "c8", "U2", "M8[s]"])
def test_byte_orders_of_array_and_store_are_independent(kind, given_order, endian):
    values = np.array([1, 2], "i4").astype(given_order + kind)
    store = {}
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    array = zd.create_array(store, shape=2, dtype=values.dtype, chunks=2, codecs=codecs)
    array[...] = values
    order = "<" if endian == "little" else ">"
    assert bytes(store["c/0"]) == values.astype(order + kind).tobytes()
    assert array.dtype == np.dtype("=" + kind)
    assert array[...].tobytes() == values.astype("=" + kind).tobytes()


def test_any_byte_but_zero_is_true():
    read = zd.open_array(stored("bool", None, False, b"\x00\x02\xff", (3,)))[...]
    assert read.view("u1").tolist() == [0, 1, 1]


# --- records, texts -------------------------------------------------------------------------------

THIRTEEN = [("id", "i4"), ("flags", "u1"), ("value", "f8")]


@pytest.mark.conformance("C115")
@pytest.mark.parametrize(("endian", "order"), [("little", "<"), ("big", ">")])
def test_records_have_no_padding(endian, order):
    """The example of 13 bytes of the registry's text."""
    expected = struct.pack(f"{order}iBd", 7, 255, -1.5) + struct.pack(f"{order}iBd", -1, 0, 0.25)
    assert len(expected) == 26
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    store = {}
    values = np.array([(7, 255, -1.5), (-1, 0, 0.25)], np.dtype(THIRTEEN, align=True))
    zd.create_array(store, shape=2, dtype=values.dtype, chunks=2, codecs=codecs)[...] = values
    assert bytes(store["c/0"]) == expected
    assert zd.open_array(store)[...].tolist() == values.tolist()


@pytest.mark.conformance("C115")
def test_records_in_records():
    inner = [("x", "f4"), ("y", "f4")]
    values = np.array([((1, 2), 3)], [("point", inner), ("value", "f8")])
    store = {}
    codecs = [{"name": "bytes", "configuration": {"endian": "big"}}]
    zd.create_array(store, shape=1, dtype=values.dtype, chunks=1, codecs=codecs)[...] = values
    assert bytes(store["c/0"]) == struct.pack(">ffd", 1, 2, 3)
    assert zd.open_array(store)[0].item() == ((1.0, 2.0), 3.0)


@pytest.mark.conformance("C114")
@pytest.mark.parametrize(
    ("endian", "expected"),
    [("little", "48000000 69000000 00000000"), ("big", "00000048 00000069 00000000")],
)
def test_texts_are_utf32_with_zeros_after_them(endian, expected):
    """The example ``Hi`` of the registry's text."""
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    store = {}
    zd.create_array(store, shape=1, dtype="U3", chunks=1, codecs=codecs)[...] = "Hi"
    assert bytes(store["c/0"]) == bytes.fromhex(expected)
    assert zd.open_array(store)[0] == "Hi"


@pytest.mark.parametrize("dtype", ["U2", [("a", "u1"), ("b", [("c", "U2")])]], ids=str)
@pytest.mark.parametrize("endian", ["little", "big"])
def test_code_units_that_are_no_code_points_are_corrupt(dtype, endian):
    data_type = data_type_of(dtype)
    bound = Bytes(endian).bind(ChunkSpec((1,), data_type, None))
    raw = b"\0" * (data_type.itemsize - 4) + struct.pack(
        "<I" if endian == "little" else ">I", 0x110000
    )
    with pytest.raises(CorruptObjectError, match="0x110000"):
        bound.decode(raw, None, np.empty(1, data_type.dtype), READING)


# --- types of ml_dtypes ---------------------------------------------------------------------------


@pytest.mark.conformance("C117")
@pytest.mark.parametrize(("endian", "order"), [("little", "<"), ("big", ">")])
def test_bfloat16_is_the_upper_half_of_float32(endian, order):
    values = np.array([1.0, -3.5, 2.0**100], "f4")
    expected = b"".join(
        struct.pack(f"{order}H", struct.unpack(">I", struct.pack(">f", v))[0] >> 16) for v in values
    )
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    store = {}
    zd.create_array(store, shape=3, dtype="bfloat16", chunks=3, codecs=codecs)[...] = values
    assert bytes(store["c/0"]) == expected
    assert zd.open_array(store)[...].astype("f4").tolist() == values.tolist()


EXAMPLES = {  # by the layout that each name describes: sign, exponent, mantissa
    "float8_e3m4": (1.0, 0x30),
    "float8_e4m3": (1.0, 0x38),
    "float8_e5m2": (1.0, 0x3C),
    "float8_e4m3fn": (1.0, 0x38),
    "float8_e4m3fnuz": (1.0, 0x40),
    "float8_e4m3b11fnuz": (1.0, 0x58),
    "float8_e5m2fnuz": (1.0, 0x40),
    "float8_e8m0fnu": (1.0, 0x7F),
    "float6_e2m3fn": (1.0, 0x08),
    "float6_e3m2fn": (-1.0, 0x2C),
    "float4_e2m1fn": (-1.5, 0x0B),
    "int2": (-1, 0x03),
    "int4": (-8, 0x08),
    "uint2": (3, 0x03),
    "uint4": (15, 0x0F),
}


@pytest.mark.conformance("C117")
@pytest.mark.parametrize("name", EXAMPLES)
def test_small_types_take_a_byte_each(name):
    value, raw = EXAMPLES[name]
    fill = 0 if "int" in name else 2
    store = {}
    array = zd.create_array(store, shape=2, dtype=name, chunks=2, codecs=["bytes"], fill_value=fill)
    array[...] = np.array([value, 1], "f4").astype(data_type_of(name).dtype)
    assert array.codecs == (Bytes(None),)
    assert store["c/0"][0] == raw
    assert float(zd.open_array(store)[0]) == value


@pytest.mark.conformance("C117")
@pytest.mark.parametrize(
    "name", ["int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn"]
)
def test_upper_bits_are_ignored(name):
    value, raw = EXAMPLES[name]
    bits = {"2": 2, "4": 4, "n": 4 if name == "float4_e2m1fn" else 6}[name[-1]]
    dirty = bytes([raw | (0xFF << bits & 0xFF), raw])
    read = zd.open_array(stored(name, None, 1, dirty))[...]
    assert [float(item) for item in read] == [value, value]
    assert read.view("u1").tolist() == [raw, raw]


@pytest.mark.conformance("C117")
@pytest.mark.parametrize(
    ("name", "endian", "expected"),
    [
        ("complex_bfloat16", "little", "803f 00c0"),
        ("complex_bfloat16", "big", "3f80 c000"),
        ("complex_float16", "little", "003c 00c0"),
        ("complex_float16", "big", "3c00 c000"),
        ("complex_float32", "big", "3f800000 c0000000"),
        ("complex_float64", "little", "000000000000f03f 00000000000000c0"),
        ("complex_float8_e4m3", None, "38 c0"),
        ("complex_float8_e5m2fnuz", None, "40 c4"),
        ("complex_float6_e2m3fn", None, "08 30"),
        ("complex_float4_e2m1fn", None, "02 0c"),
    ],
)
def test_complex_numbers_are_pairs(name, endian, expected):
    codec = {"name": "bytes", **({"configuration": {"endian": endian}} if endian else {})}
    store = {}
    array = zd.create_array(store, shape=1, dtype=name, chunks=1, codecs=[codec])
    array[...] = np.array([1 - 2j])
    assert bytes(store["c/0"]) == bytes.fromhex(expected)
    read = zd.open_array(store)[...]
    if read.dtype.names is None:
        assert read[0] == 1 - 2j
    else:
        assert (float(read["real"][0]), float(read["imag"][0])) == (1.0, -2.0)
    assert json.loads(bytes(store["zarr.json"]))["data_type"] == name


# --- any type, any region -------------------------------------------------------------------------

LEAVES = st.sampled_from(
    [
        "?",
        "i1",
        "u1",
        "i2",
        "u4",
        "i8",
        "f2",
        "f4",
        "f8",
        "c8",
        "c16",
        "S3",
        "U2",
        "V5",
        "M8[s]",
        "m8",
    ]
)
SMALL = st.sampled_from(
    [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.float6_e3m2fn]
)


def records(children):
    return st.lists(children, min_size=1, max_size=3).map(
        lambda types: [(f"f{i}", t) for i, t in enumerate(types)]
    )


TYPES = st.recursive(LEAVES | SMALL, records, max_leaves=5)


def random_values(dtype, shape, seed):
    """Values of any bits that the type allows."""
    rng = np.random.default_rng(seed)
    values = np.frombuffer(rng.bytes(dtype.itemsize * int(np.prod(shape))), dtype).reshape(shape)
    values = values.copy()
    for path, leaf in leaves(dtype):
        field = values
        for name in path:
            field = field[name]
        bits = {"bool": 1, "int4": 4, "float6_e3m2fn": 6}.get(leaf.name)
        if bits:
            field.view("u1")[...] &= (1 << bits) - 1
        elif leaf.kind == "U":
            field[...] = "\U0001f600"
    return values


def swapped(values):
    """Big-endian bytes of native values, leaf by leaf."""
    raw = values.tobytes()
    out, position = [], 0
    widths = [(leaf.itemsize, unit_of(leaf)) for _, leaf in leaves(values.dtype)]
    while position < len(raw):
        for size, unit in widths:
            firsts = range(position, position + size, unit)
            out.extend(raw[first : first + unit][::-1] for first in firsts)
            position += size
    return b"".join(out)


def unit_of(leaf):
    if leaf.kind in "SV" and leaf.name.startswith(("bytes", "void")):
        return 1
    return {"c": leaf.itemsize // 2, "U": 4}.get(leaf.kind, leaf.itemsize)


@given(TYPES, st.data())
def test_any_type_both_ways(dtype, data):
    data_type = data_type_of(dtype)
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=4))
    values = random_values(data_type.dtype, shape, data.draw(st.integers(0, 99)))
    spec = ChunkSpec(shape, data_type, None)
    bounds = {order: Bytes(order).bind(spec) for order in ("little", "big")}
    expected = {"little": values.tobytes(), "big": swapped(values)}
    region = tuple(slice(data.draw(st.integers(0, n - 1)), n, 2) for n in shape)
    for order, bound in bounds.items():
        for view in (values, np.asfortranarray(values)):
            assert bytes(concat_buffers(bound.encode(view))) == expected[order]
        out = np.empty((*shape, 2), data_type.dtype)[..., 0]  # not contiguous
        bound.decode(expected[order], None, out, READING)
        assert out.tobytes() == values.tobytes()
        part = np.empty_like(values[region])
        bound.decode(expected[order], region, part, READING)
        assert part.tobytes() == values[region].tobytes()


@given(TYPES, st.integers(0, 99))
def test_any_type_is_compared_by_bits(dtype, seed):
    data_type = data_type_of(dtype)
    values = random_values(data_type.dtype, (2,), seed)
    fill, other = values[0:1].reshape(()), values[1:2].reshape(())
    array = full_of((5, 6), data_type.dtype, fill)
    assert is_full_of(array, fill)
    assert is_full_of(array[::2, 1::2], fill)
    array[4, 4] = other
    assert is_full_of(array, fill) == (fill.tobytes() == other.tobytes())
    assert is_full_of(array[::2, ::2], fill) == (fill.tobytes() == other.tobytes())


@given(TYPES, st.integers(0, 99))
def test_any_type_through_an_array(dtype, seed):
    data_type = data_type_of(dtype)
    values = random_values(data_type.dtype, (5, 4), seed)
    fill = values[0:1, 0].reshape(())
    store = {}
    zd.create_array(
        store, shape=(5, 4), dtype=dtype, chunks=(2, 2), shards=(4, 4), fill_value=fill
    )[...] = values
    array = zd.open_array(store)
    assert array.meta.data_type == data_type
    assert array.meta.fill_value.tobytes() == fill.tobytes()
    assert array[...].tobytes() == values.tobytes()
    assert array[1:4, ::3].tobytes() == values[1:4, ::3].tobytes()
    assert array.to_dask().compute().tobytes() == values.tobytes()


# --- fields of different byte orders --------------------------------------------------------------

MIXED = np.dtype([("a", "<i4"), ("b", ">f8", (2,)), ("c", [("d", ">U2"), ("e", "?")])])


def test_fields_with_byte_orders_of_their_own():
    values = np.array([(1, [2, 3], ("xy", True)), (-4, [0.5, -0.0], ("", False))], MIXED)
    codec = serializer_of(MIXED)
    assert isinstance(codec, StructBytes)
    assert codec.dtype == MIXED
    bound = codec.bind(ChunkSpec((2,), data_type_of(MIXED), None))
    assert bytes(concat_buffers(bound.encode(values.astype(native(MIXED))))) == values.tobytes()
    out = np.empty(2, native(MIXED))
    bound.decode(values.tobytes(), None, out, READING)
    assert out.tobytes() == values.astype(native(MIXED)).tobytes()


@pytest.mark.parametrize(
    ("dtype", "endian"),
    [
        ("i1", None),
        ("S4", None),
        ("V4", None),
        (">i2", "big"),
        ("<U1", "little"),
        ([("a", "u1"), ("b", ">M8[s]")], "big"),
        ([("a", "u1"), ("b", "S3")], None),
        (ml_dtypes.bfloat16, "little"),
        (ml_dtypes.int4, None),
    ],
    ids=str,
)
def test_byte_order_of_a_dtype(dtype, endian):
    assert endian_of(np.dtype(dtype)) == endian
    assert serializer_of(np.dtype(dtype)) == Bytes(endian)


def test_no_single_byte_order_for_fields_of_both():
    with pytest.raises(ValueError, match="both"):
        endian_of(MIXED)


def test_bytes_are_not_for_elements_without_a_size():
    with pytest.raises(MetadataError, match="vlen-utf8"):
        zd.open_array(stored("string", "little", ""))


SHARDS = {"chunk_shape": [1], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}


@pytest.mark.parametrize(
    "codec",
    [
        "bytes",
        {"name": "bytes"},
        Bytes(None),
        {"name": "sharding_indexed", "configuration": SHARDS},
    ],
)
def test_users_need_not_write_out_the_byte_order(codec):
    store = {}
    array = zd.create_array(store, shape=(4,), chunks=(2,), dtype="f4", codecs=[codec])
    array[...] = [1, 2, 3, 4]
    assert array[...].tolist() == [1, 2, 3, 4]
    document = json.loads(bytes(store["zarr.json"]))["codecs"][0]["configuration"]
    inner = document.get("codecs", [{"configuration": document}])[0]
    assert inner["configuration"] == {"endian": "little"}
