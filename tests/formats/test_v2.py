"""Zarr v2: its documents, and the bytes of its chunks, statement by statement.

What other implementations make of the same arrays is in ``tests/product/zarr2`` and
``tests/product/interop``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import sys
import warnings
import zlib
from itertools import product

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import zarr_dask as zd
from tests.support.paths import SNAPPY_FRAMES
from zarr_dask import errors
from zarr_dask.codecs.compress.snappy import decompress_frame
from zarr_dask.formats.numpy_dtype_json import (
    dtype_from_json,
    dtype_to_json,
    fill_from_json,
    fill_to_json,
)
from zarr_dask.stores import MemoryStore

DOCUMENT = {
    "zarr_format": 2,
    "shape": [4, 6],
    "chunks": [2, 3],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}
ROWS = np.arange(6, dtype="<i4").reshape(2, 3)


def store_of(objects=None, attributes=None, **members):
    """A v2 array as a mapping."""
    store = {".zarray": json.dumps({**DOCUMENT, **members}).encode(), **(objects or {})}
    return store if attributes is None else store | {".zattrs": json.dumps(attributes).encode()}


def opened(objects=None, attributes=None, read=None, **members):
    return zd.open_array(store_of(objects, attributes, **members), mode="r+", read=read)


def line(dtype, body=None, **members):
    """An array of one chunk of two elements."""
    objects = {} if body is None else {"0": body}
    return opened(objects, shape=[2], chunks=[2], dtype=dtype, **{"fill_value": None, **members})


def problems_of(**members):
    with pytest.raises(errors.MetadataError) as failure:
        opened(**members)
    return {problem.field: problem for problem in failure.value.problems}


def created(**options):
    """A new array, and its documents."""
    store = MemoryStore()
    array = zd.create_array(store, format="v2", **{"shape": 2, "chunks": 2, **options})
    return array, json.loads(bytes(store.get(".zarray"))), store


# --- documents ------------------------------------------------------------------------------------


@pytest.mark.conformance("C012")
def test_documents_have_all_members_and_no_others():
    for options in (
        {"dtype": "f4"},
        {"dtype": "i2", "order": "F", "shape": (2, 2), "chunks": (1, 1), "codecs": []},
        {"dtype": "S3", "fill_value": None, "chunk_key_encoding": {"separator": "/"}},
        {"dtype": "string", "dimension_names": ["x"], "attributes": {"a": 1}},
    ):
        _, document, _ = created(**options)
        assert set(document) - {"dimension_separator"} == set(DOCUMENT)
    missing = [{}, *({k: v for k, v in DOCUMENT.items() if k != name} for name in DOCUMENT)]
    for document in missing:
        with pytest.raises(errors.MetadataError) as failure:
            zd.open_array({".zarray": json.dumps(document).encode()})
        named = {p.field for p in failure.value.problems if p.found is errors.ABSENT}
        assert named == set(DOCUMENT) - set(document)


@pytest.mark.conformance("C013")
def test_unknown_members_are_ignored():
    array = opened(
        {"0.0": ROWS.tobytes()},
        _NCZARR_ARRAY={"dimrefs": ["/y", "/x"], "storage": "chunked"},
        _nczarr_array={},
        storage_transformers=[],
        must_understand=True,
    )
    np.testing.assert_array_equal(array[:2, :3], ROWS)
    before = array.store.get(".zarray")
    array.update_attributes({"unit": "m"})
    assert array.store.get(".zarray") == before


@pytest.mark.conformance("C014")
def test_keys_are_joined_by_dots_unless_it_is_said():
    array = opened({"1.1": ROWS.tobytes(), "1/1": bytes(24)})
    np.testing.assert_array_equal(array[2:, 3:], ROWS)
    assert array.key((1, 1)) == "1.1"


@pytest.mark.conformance("C015")
def test_keys_joined_by_slashes():
    array = opened({"1/1": ROWS.tobytes()}, dimension_separator="/")
    np.testing.assert_array_equal(array[2:, 3:], ROWS)
    made, document, store = created(
        shape=(2, 2), chunks=(1, 2), dtype="u1", chunk_key_encoding={"separator": "/"}, codecs=[]
    )
    made[...] = 1
    assert document["dimension_separator"] == "/"
    assert {"0/0", "1/0"} < set(store.list())
    for separator in ("", "-", "..", None, 1, ["."]):
        assert list(problems_of(dimension_separator=separator)) == ["dimension_separator"]
    for separator in ("", "-", "_"):
        with pytest.raises(errors.MetadataError):
            created(dtype="u1", chunk_key_encoding={"separator": separator})


def test_the_separator_can_be_overridden():
    objects = {"1/1": ROWS.tobytes()}
    np.testing.assert_array_equal(opened(objects)[2:, 3:], np.zeros((2, 3)))
    read = zd.ReadOptions(dimension_separator="/")
    np.testing.assert_array_equal(opened(objects, read=read)[2:, 3:], ROWS)
    strict = zd.ReadOptions(missing="error")
    with pytest.raises(errors.ChunkMissingError, match="dimension_separator='/'"):
        opened(objects, read=strict)[2:, 3:]
    with pytest.raises(errors.ChunkMissingError) as failure:
        opened(objects, read=strict, dimension_separator=".")[2:, 3:]
    assert "dimension_separator" not in str(failure.value)
    with pytest.raises(ValueError, match="dimension_separator"):
        zd.ReadOptions(dimension_separator="-")


@pytest.mark.conformance("C016")
def test_the_compressor_is_null_or_has_an_id():
    array = opened({"0.0": ROWS.tobytes()}, compressor=None)
    np.testing.assert_array_equal(array[:2, :3], ROWS)
    for compressor in ({}, {"name": "zlib"}, {"id": 1}, "zlib", [], {"level": 1}):
        assert list(problems_of(compressor=compressor)) == ["compressor"]
    with pytest.raises(errors.UnknownCodecError, match=r"compressor\.id"):
        opened(compressor={"id": "snake-oil"})


@pytest.mark.conformance("C017")
def test_filters_are_null_or_a_list_of_objects_with_ids():
    for filters in ({}, "delta", 1, True):
        assert list(problems_of(filters=filters)) == ["filters"]
    for wrong in ({}, {"name": "delta"}, "delta", None):
        found = problems_of(filters=[{"id": "delta", "dtype": "<i4"}, wrong])
        assert list(found) == ["filters[1]"]
    np.testing.assert_array_equal(opened({"0.0": ROWS.tobytes()}, filters=[])[:2, :3], ROWS)
    for codecs in ([], [{"id": "zlib", "level": 1}], None):
        assert created(dtype="i4", codecs=codecs)[1]["filters"] is None
    array = opened(filters=[])
    rewritten = array.node_format.documents(array.meta, "")[".zarray"]
    assert json.loads(rewritten)["filters"] is None


@pytest.mark.conformance("C018")
def test_filters_run_in_order_and_then_the_compressor():
    filters = [
        {"id": "delta", "dtype": "<i4"},
        {"id": "shuffle", "elementsize": 4},
        {"id": "crc32"},
    ]
    compressor = {"id": "zlib", "level": 1}
    encoded = ROWS.reshape(-1)
    for config in (*filters, compressor):
        encoded = numcodecs.get_codec(config).encode(encoded)
    array = opened({"0.0": bytes(encoded)}, filters=filters, compressor=compressor)
    np.testing.assert_array_equal(array[:2, :3], ROWS)
    made, document, store = created(
        shape=(2, 3), chunks=(2, 3), dtype="<i4", codecs=[*filters, compressor]
    )
    made[...] = ROWS
    body = zlib.decompress(bytes(encoded))
    assert zlib.decompress(bytes(store.get("0.0"))) == body
    assert body[4:] == bytes(numcodecs.Shuffle(4).encode(numcodecs.Delta("<i4").encode(ROWS)))
    assert [item["id"] for item in document["filters"]] == ["delta", "shuffle", "crc32"]
    assert document["compressor"]["id"] == "zlib"


# --- data types -----------------------------------------------------------------------------------

NUMBERS = [
    *("|b1", "|i1", "|u1"),
    *(f"{order}{kind}" for order in "<>" for kind in ("i2", "i4", "i8", "u2", "u4", "u8")),
    *(f"{order}{kind}" for order in "<>" for kind in ("f2", "f4", "f8", "c8", "c16")),
]
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
TIMES = [
    *(f"{order}{kind}8[{unit}]" for order in "<>" for kind in "mM" for unit in UNITS),
    *("<M8[10us]", ">m8[25s]", "<m8[100ns]"),
]
TEXTS = ["|S1", "|S12", "<U1", "<U5", ">U3", "|V1", "|V4", "|V7"]
STRUCTS = [
    [["x", "<f4"], ["y", "<f4"], ["z", "<f4", [2, 2]]],
    [["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]],
    [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]],
    [["a", ">i2"], ["b", "<i2"], ["c", ">f8"]],
    [["flag", "|b1"], ["when", ">M8[s]"], ["name", "<U3"], ["raw", "|V3"], ["key", "|S4"]],
    [["inner", [["deep", [["x", ">c8", [2]], ["y", "<u4"]], [3]]]], ["größe", "|i1"]],
]


@pytest.mark.conformance("C019")
@pytest.mark.parametrize("text", [*NUMBERS, *TIMES, *TEXTS])
def test_type_strings_round_trip(text):
    stored = np.dtype(text)
    body = np.frombuffer(np.random.default_rng(1).bytes(2 * stored.itemsize), stored)
    if stored.kind == "b":
        body = np.array([True, False])
    if stored.kind == "U":
        body = np.array(["a\u00df\U0001f600"[: stored.itemsize // 4], "b"], stored)
    array = line(text, body.tobytes())
    assert array.dtype == stored.newbyteorder("=")
    assert array.dtype.isnative
    assert array[...].astype(stored).tobytes() == body.tobytes()
    made, document, store = created(dtype=stored, codecs=[], fill_value=None)
    made[...] = array[...]
    assert document["dtype"] == text
    assert bytes(store.get("0")) == body.tobytes()


@pytest.mark.conformance("C020")
@pytest.mark.parametrize(
    "text",
    ["i4", "f8", "=i4", "int32", "float64", "|i4", "|f2", "|c8", "|U3", "|M8[s]", "b1", "u1"],
)
def test_a_type_string_says_its_byte_order(text):
    with pytest.raises(errors.UnknownDataTypeError, match="byte order"):
        opened(dtype=text)


@pytest.mark.parametrize(
    "document",
    [
        *("", "<", "<f3", "<f16", "<c32", "|b2", "<i3", "<q8", "|S0", "<U0", "|V0", "<f4x"),
        *("<M8[]", "<M8[sec]", "<M8[0s]", "<M4[s]", "<f4[s]", "|S99999999999", "<U999999999"),
        *(3, [], {}, None, True, [[]], ["<f4"], [["a"]], [["a", "<f4", [2], 1]], [[1, "<f4"]]),
        *([["a", "f4"]], [["a", "|O"]], [["a", "<f4"], ["a", "<f4"]], [["a", []]]),
        *([["a", "<f4", [0]]], [["a", "<f4", [-1]]], [["a", "<f4", "2"]], [["a", "<f4", [2.0]]]),
        [["a", "|u1", [1 << 20, 1 << 20]]],
        [["a", [["b", "|u1", [1 << 16]]], [1 << 16]]],
    ],
)
def test_data_types_that_are_none(document):
    with pytest.raises(errors.MetadataError) as failure:
        opened(dtype=document)
    assert all(problem.field.startswith("dtype") for problem in failure.value.problems)


def test_structs_nested_without_end_are_refused():
    document = "<f4"
    for _ in range(80):
        document = [["a", document]]
    with pytest.raises(errors.UnknownDataTypeError, match="nested at most"):
        opened(dtype=document)


@pytest.mark.conformance("C021")
def test_times_have_a_unit():
    for wanted in ("M8", "m8", [("a", "M8")], [("a", "M8", (2,))]):
        with pytest.raises(errors.MetadataError, match="with a unit"):
            created(dtype=wanted)
    array = line("<M8", np.array([5, -(1 << 63)], "<i8").tobytes())
    assert array[...].view("i8").tolist() == [5, -(1 << 63)]
    with pytest.raises(errors.MetadataError, match="with a unit"):
        array.node_format.documents(array.meta, "")


@pytest.mark.conformance("C022")
@pytest.mark.parametrize("document", STRUCTS, ids=lambda document: "-".join(f[0] for f in document))
def test_structs_round_trip(document):
    stored = dtype_from_json(document)
    assert stored.itemsize == sum(np.dtype(stored[name]).itemsize for name in stored.names)
    values = np.zeros(2, stored)
    for number, name in enumerate(_leaves(stored)):
        leaf = values
        for part in name:
            leaf = leaf[part]
        leaf[...] = number + 1 if leaf.dtype.kind != "V" else b"\1\2\3"
    array = line(document, values.tobytes())
    assert array.dtype.isnative
    assert array[...].astype(stored).tobytes() == values.tobytes()
    assert np.array_equal(array[...], values)
    array[1:] = array[:1]
    assert bytes(array.store.get("0")) == 2 * values[:1].tobytes()
    made, written, store = created(dtype=stored, codecs=[], fill_value=None)
    made[...] = values
    assert written["dtype"] == document
    assert bytes(store.get("0")) == values.tobytes()
    rewritten = made.node_format.documents(made.meta, "")[".zarray"]
    assert json.loads(rewritten)["dtype"] == document


def _leaves(dtype):
    for name in dtype.names:
        field = dtype[name].base
        if field.names is None:
            yield (name,)
        else:
            yield from ((name, *below) for below in _leaves(field))


def test_the_byte_order_of_a_struct_field_matters():
    array = line([["a", ">i2"], ["b", "<i2"]], bytes.fromhex("0001010000020200"))
    assert array[...].tolist() == [(1, 1), (2, 2)]
    assert array.dtype.isnative
    assert array.update_attributes({"a": 1})[0].item() == (1, 1)


def test_subarrays_at_the_top_are_no_elements():
    with pytest.raises(errors.DataTypeError):
        created(dtype=("f4", (2, 2)))


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "float8_e4m3fn", "complex_float16"])
def test_data_types_that_v2_cannot_name(dtype):
    with pytest.raises(errors.MetadataError, match="data type that v2 can name"):
        created(dtype=dtype, codecs=[])


# --- fill values ----------------------------------------------------------------------------------


def fill_of(dtype, document):
    array = line(dtype, fill_value=document)
    assert (array[...].astype(array.dtype).tobytes()) == 2 * array.meta.fill_value.tobytes()
    return array.meta.fill_value


def written_fill(dtype, value):
    _, document, store = created(dtype=dtype, fill_value=value, codecs=[])
    text = bytes(store.get(".zarray")).decode()
    json.loads(text, parse_constant=lambda token: pytest.fail(f"a bare {token}"))
    return document["fill_value"]


@pytest.mark.conformance("C023")
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_special_floats(dtype):
    for name, value in (("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf)):
        native = np.dtype(dtype).newbyteorder("=")
        assert fill_of(dtype, name).tobytes() == np.array(value, native).tobytes()
        assert written_fill(dtype, value) == name
    assert fill_of(dtype, -0.0).tobytes() == np.array(-0.0, native).tobytes()
    assert math.copysign(1, written_fill(dtype, -0.0)) == -1
    for wrong in ("nan", "inf", "Infinity ", "+Infinity", "1.5.1", [1.0], True, {}):
        assert list(problems_of(dtype=dtype, fill_value=wrong)) == ["fill_value"]


def test_a_nan_that_v2_cannot_say_is_refused():
    odd = np.array(0x7FC00001, "u4").view("f4")[()]
    with pytest.raises(errors.MetadataError, match="one NaN"):
        created(dtype="f4", fill_value=odd)


@pytest.mark.conformance("C024")
def test_bytes_and_structs_are_base64():
    assert fill_of("|S4", "YWI=").item() == b"ab"
    assert fill_of("|S4", "+/8=").item() == b"\xfb\xff"
    assert written_fill("S4", b"ab") == "YWI="
    assert written_fill("S2", b"\xfb\xff") == "+/8="
    struct = [["a", ">i2"], ["b", "<i2"], ["c", "|S1"]]
    text = base64.standard_b64encode(bytes.fromhex("0001020063")).decode()
    assert fill_of(struct, text).item() == (1, 2, b"c")
    assert written_fill(dtype_from_json(struct), (1, 2, b"c")) == text
    for wrong in ("YWI", "YW_=", "äöü=", "YWJjZGU=", 1, [1], 0.5, True):
        assert list(problems_of(dtype="|S4", fill_value=wrong)) == ["fill_value"]
    for wrong in ("AAA=", text + "AAAA", 1, [1, 2, "c"]):
        assert list(problems_of(dtype=struct, fill_value=wrong)) == ["fill_value"]
    assert fill_of(struct, {"a": 1, "b": 2, "c": "Yw=="}).item() == (1, 2, b"c")


@pytest.mark.conformance("C025")
@pytest.mark.parametrize("dtype", ["<c8", ">c16"])
def test_complex_numbers_are_pairs(dtype):
    assert fill_of(dtype, [1.5, -2.0]).item() == 1.5 - 2j
    assert fill_of(dtype, 3).item() == 3
    special = fill_of(dtype, ["NaN", "-Infinity"]).item()
    assert math.isnan(special.real)
    assert special.imag == -math.inf
    assert written_fill(dtype, 1.5 - 2j) == [1.5, -2.0]
    assert written_fill(dtype, complex(math.nan, -math.inf)) == ["NaN", "-Infinity"]
    for wrong in ([1], [1, 2, 3], ["1", 2], [None, 0], "1+2j"):
        assert list(problems_of(dtype=dtype, fill_value=wrong)) == ["fill_value"]


@pytest.mark.conformance("C026")
@pytest.mark.parametrize("dtype", ["<M8[ns]", ">m8[10us]"])
def test_times_are_counts(dtype):
    not_a_time = -(2**63)
    assert fill_of(dtype, 7).view("i8") == 7
    assert fill_of(dtype, not_a_time).view("i8") == not_a_time
    assert fill_of(dtype, "NaT").view("i8") == not_a_time
    native = np.dtype(dtype).newbyteorder("=")
    for count in (7, not_a_time):
        assert written_fill(dtype, np.array(count, "i8").view(native)[()]) == count
    for wrong in ("nat", 1.5, [1], 2**63, True):
        assert list(problems_of(dtype=dtype, fill_value=wrong)) == ["fill_value"]


@pytest.mark.conformance("C027")
def test_texts_are_plain_and_raw_bytes_base64():
    assert fill_of(">U3", "aß").item() == "aß"
    assert written_fill("<U3", "aß") == "aß"
    assert fill_of("|V3", "AQID").tobytes() == b"\1\2\3"
    assert written_fill("V3", np.void(b"\1\2\3")) == "AQID"
    for dtype, wrong in (("<U3", "abcd"), ("<U3", 1), ("|V3", "AQIDBA=="), ("|V3", "?")):
        assert list(problems_of(dtype=dtype, fill_value=wrong)) == ["fill_value"]


@pytest.mark.conformance("C028")
@pytest.mark.parametrize("dtype", ["|S3", "<U3", "|V3", [["a", ">i4"], ["b", "|S2"]]])
def test_zero_stands_for_zeros(dtype):
    assert fill_of(dtype, 0).tobytes() == bytes(dtype_from_json(dtype).itemsize)


@pytest.mark.conformance("C029")
@pytest.mark.parametrize("dtype", ["<f4", "|b1", "|S3", "<U2", "<M8[s]", "|V2", [["a", "<i4"]]])
def test_no_fill_value_reads_as_zeros_and_stays_none(dtype):
    array = line(dtype, fill_value=None)
    assert array.fill_value is None
    assert array[...].tobytes() == np.zeros(2, array.dtype).tobytes()
    array.update_attributes({"unit": "m"})
    assert json.loads(bytes(array.store.get(".zarray")))["fill_value"] is None
    rewritten = array.node_format.documents(array.meta, "")[".zarray"]
    assert json.loads(rewritten)["fill_value"] is None
    assert created(dtype="f4", fill_value=None)[1]["fill_value"] is None


@pytest.mark.conformance("C030")
def test_absent_chunks_are_not_created_by_reading():
    array = opened({"1.1": ROWS.tobytes()}, fill_value=42)
    assert array[:2].tolist() == [[42] * 6] * 2
    assert np.asarray(array.to_dask())[0, 0] == 42
    assert set(array.store.list()) == {".zarray", "1.1"}


# --- chunks ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C031")
@pytest.mark.parametrize(("dtype", "fill"), [("<i2", -1), ("|S2", b"xy"), (">f4", np.nan)])
def test_what_hangs_over_the_edge_is_fill(dtype, fill):
    array, _, store = created(shape=(3,), chunks=(2,), dtype=dtype, fill_value=fill, codecs=[])
    value = b"ab" if dtype == "|S2" else 7
    array[...] = np.full(3, value, dtype)
    want = np.array([value, fill], dtype).tobytes()
    assert bytes(store.get("1")) == want


@pytest.mark.conformance("C032")
def test_order_f():
    plain = np.array([[0, 1, 2], [3, 4, 5]], "u1")
    array, document, store = created(
        shape=(2, 3), chunks=(2, 3), dtype="u1", order="F", codecs=[], fill_value=9
    )
    array[...] = plain
    assert document["order"] == "F"
    assert bytes(store.get("0.0")) == bytes([0, 3, 1, 4, 2, 5])
    array, _, store = created(
        shape=(2, 3), chunks=(2, 3), dtype="<i4", order="F", fill_value=9,
        codecs=[{"id": "delta", "dtype": "<i4"}],
    )  # fmt: skip
    array[...] = plain
    body = bytes(store.get("0.0"))
    assert np.frombuffer(body, "<i4").tolist() == [0, 3, -2, 3, -2, 3]
    members = {"order": "F", "filters": [{"id": "delta", "dtype": "<i4"}]}
    np.testing.assert_array_equal(opened({"0.0": body}, **members)[:2, :3], plain)


@pytest.mark.conformance("C033")
def test_no_dimensions():
    array = opened({"0": b"\7\0\0\0"}, shape=[], chunks=[])
    assert array[()] == 7
    made, _, store = created(shape=(), chunks=(), dtype="<i4", codecs=[])
    made[...] = 7
    assert bytes(store.get("0")) == b"\7\0\0\0"


@pytest.mark.conformance("C037")
def test_the_document_of_a_group():
    store = MemoryStore()
    zd.create_group(store, "a/b", format="v2", attributes={"title": "run 7"})
    for key in (".zgroup", "a/.zgroup", "a/b/.zgroup"):
        assert json.loads(bytes(store.get(key))) == {"zarr_format": 2}


@pytest.mark.conformance("C038")
def test_absent_attributes_are_empty():
    assert opened().attributes == {}
    assert zd.open_group({".zgroup": b'{"zarr_format": 2}'}).attributes == {}
    assert opened(attributes={"a": [1]}).attributes == {"a": [1]}


SNAPPY = json.loads(SNAPPY_FRAMES.read_text())
CNAMES = numcodecs.blosc.list_compressors()


@pytest.mark.conformance("C040")
@pytest.mark.parametrize(("cname", "shuffle"), list(product(CNAMES, (-1, 0, 1, 2))))
def test_blosc(cname, shuffle):
    values = (np.arange(600, dtype="<i4") // 3).reshape(20, 30)
    for dtype in ("<i4", "|u1"):
        typed = values.astype(dtype)
        body = numcodecs.Blosc(cname, 5, shuffle).encode(typed)
        config = {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0}
        array = opened({"0.0": body}, shape=[20, 30], chunks=[20, 30], dtype=dtype,
                       compressor=config)  # fmt: skip
        np.testing.assert_array_equal(array[...], typed)
        array[...] = typed
        assert bytes(array.store.get("0.0")) == bytes(body)
        rewritten = array.node_format.documents(array.meta, "")[".zarray"]
        assert json.loads(rewritten)["compressor"] == config


@pytest.mark.conformance("C040")
@pytest.mark.parametrize("name", ["0 whole", "0 split", "1 whole", "1 split", "2 whole", "2 split"])
def test_blosc_with_snappy(name):
    """Frames of blocks by cramjam's snappy, which c-blosc with snappy reads."""
    body = bytes.fromhex(SNAPPY[name])
    config = {"id": "blosc", "cname": "snappy", "clevel": 5, "shuffle": int(name[0])}
    array = opened({"0": body}, shape=[600], chunks=[600], compressor=config)
    np.testing.assert_array_equal(array[...], np.arange(600) // 3)
    assert array.codecs[-1].cname == "snappy"
    if "snappy" not in CNAMES:
        with pytest.raises(errors.UnknownCodecError, match="snappy"):
            array[...] = 1
    cut = opened({"0": body[:-9]}, shape=[600], chunks=[600], compressor=config)
    with pytest.raises(errors.CorruptObjectError):
        cut[...]


@given(st.data())
def test_frames_of_blosc_are_read_as_blosc_reads_them(data):
    """The frame is the same for all compressors; zlib stands for snappy, which nobody writes."""
    itemsize = data.draw(st.sampled_from([1, 2, 3, 4, 8, 20]))
    count = data.draw(st.integers(1, 3000))
    rng = np.random.default_rng(count)
    values = np.cumsum(rng.integers(0, 2, count * itemsize)).astype("u1").view(f"V{itemsize}")
    shuffle, blocksize = data.draw(st.sampled_from(list(product((0, 1, 2), (0, 300, 1024, 4096)))))
    frame = numcodecs.blosc.compress(values, b"zlib", 5, shuffle, blocksize)
    if frame[2] & 2:  # stored: nothing to decompress
        return
    out = np.empty(values.nbytes, np.uint8)
    decompress_frame(frame, out)
    assert out.tobytes() == values.tobytes()


def test_snappy_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    frame = bytes.fromhex(SNAPPY["0 whole"])
    with pytest.raises(errors.MissingDependencyError, match=r"zarr-dask\[snappy\]"):
        decompress_frame(frame, np.empty(int.from_bytes(frame[4:8], "little"), "u1"))


@given(st.binary(max_size=60), st.integers(0, 500))
def test_damaged_snappy(block, nbytes):
    frame = bytes([2, 1, 0x50, 4]) + nbytes.to_bytes(4, "little") + (64).to_bytes(4, "little")
    frame += (16 + len(block)).to_bytes(4, "little") + block
    try:
        decompress_frame(frame, np.empty(nbytes, np.uint8))
    except errors.CorruptObjectError:
        return
    assert nbytes == 0 or len(block) > 8


@pytest.mark.conformance("C041")
def test_lz4_has_its_length_in_front():
    array, _, store = created(dtype="<i4", shape=100, chunks=100, codecs=[{"id": "lz4"}])
    array[...] = 5
    body = bytes(store.get("0"))
    assert body[:4] == (400).to_bytes(4, "little")
    assert numcodecs.lz4.decompress(body) == np.full(100, 5, "<i4").tobytes()
    config = {"id": "lz4", "acceleration": 1}
    body = numcodecs.LZ4().encode(ROWS)
    np.testing.assert_array_equal(opened({"0.0": body}, compressor=config)[:2, :3], ROWS)


FILTERS = {
    "delta": {"id": "delta", "dtype": "<i4"},
    "delta, astype": {"id": "delta", "dtype": "<i4", "astype": "<i2"},
    "fixedscaleoffset": {
        "id": "fixedscaleoffset", "scale": 1, "offset": 3, "dtype": "<i4", "astype": "|u1"
    },
    "astype": {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"},
    "shuffle": {"id": "shuffle", "elementsize": 4},
    "crc32": {"id": "crc32"},
    "crc32, end": {"id": "crc32", "location": "end"},
    "crc32c": {"id": "crc32c"},
    "crc32c, start": {"id": "crc32c", "location": "start"},
    "adler32": {"id": "adler32"},
    "adler32, end": {"id": "adler32", "location": "end"},
    "fletcher32": {"id": "fletcher32"},
    "jenkins_lookup3": {"id": "jenkins_lookup3"},
    "jenkins_lookup3, seeded": {"id": "jenkins_lookup3", "initval": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_filters(name, order):
    values = np.arange(3, 9, dtype="<i4").reshape(2, 3)
    config = FILTERS[name]
    body = bytes(numcodecs.get_codec(config).encode(np.frombuffer(values.tobytes(order), "<i4")))
    array = opened({"0.0": body}, filters=[config], order=order)
    np.testing.assert_array_equal(array[:2, :3], values)
    array[2:, 3:] = values
    assert bytes(array.store.get("1.1")) == body
    document = json.loads(array.node_format.documents(array.meta, "")[".zarray"])
    said = [*(document["filters"] or []), document["compressor"]]
    assert numcodecs.get_codec(said[0]) == numcodecs.get_codec(config)


@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"])
def test_rounded_bits(dtype):
    values = np.linspace(1, 2, 7).astype(np.dtype(dtype).newbyteorder("="))
    config = {"id": "bitround", "keepbits": 5}
    want = numcodecs.BitRound(5).decode(numcodecs.BitRound(5).encode(values.copy()))
    array, _, store = created(shape=7, chunks=7, dtype=dtype, codecs=[config])
    array[...] = values
    assert bytes(store.get("0")) == want.view(values.dtype).astype(dtype).tobytes()
    np.testing.assert_array_equal(zd.open_array(store)[...], want.view(values.dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("S3", b"ab"), ("U3", "ab"), ("string", "ab"), ("V2", np.void(b"ab")), ([("a", "i2")], (5,))],
)
def test_elements_of_any_type_without_dimensions(dtype, value):
    array, _, _ = created(shape=(), chunks=(), dtype=dtype)
    array[...] = np.array(value, array.dtype)
    assert array[()] == np.array(value, array.dtype)[()]
    assert array[...].shape == ()


def test_categories():
    labels = ["red", "grün"]
    config = {"id": "categorize", "labels": labels, "dtype": "|O", "astype": "|u1"}
    array = line("|O", bytes([2, 0]), filters=[config])
    assert array[...].tolist() == ["grün", ""]
    array[...] = np.array(["red", "blue"], object)
    assert bytes(array.store.get("0")) == bytes([1, 0])
    document = json.loads(array.node_format.documents(array.meta, "")[".zarray"])
    assert document["filters"] == [config]
    fixed = {**config, "dtype": "<U4"}
    array = line("<U4", bytes([2, 0]), filters=[fixed])
    assert array[...].tolist() == ["grün", ""]
    array[...] = ["red", "blue"]
    assert bytes(array.store.get("0")) == bytes([1, 0])
    for wrong in ({"labels": "red"}, {"astype": "<f4"}, {"labels": ["a"] * 300}, {"dtype": "<U3"}):
        assert "filters[0]" in problems_of(dtype="|O", filters=[config | wrong], fill_value=None)
    with pytest.raises(errors.CorruptObjectError):
        line("|O", bytes(3), filters=[config])[...]


# --- objects --------------------------------------------------------------------------------------


@pytest.mark.conformance("C042")
@pytest.mark.parametrize(
    ("config", "body", "want"),
    [
        (
            {"id": "vlen-utf8"},
            bytes.fromhex("02000000 01000000 61 03000000 62c3a9"),
            ["a", "b\u00e9"],
        ),
        ({"id": "vlen-bytes"}, bytes.fromhex("02000000 01000000 ff 00000000"), [b"\xff", b""]),
        (
            {"id": "vlen-array", "dtype": ">i2"},
            bytes.fromhex("02000000 04000000 00010002 00000000"),
            [[1, 2], []],
        ),
        ({"id": "json2"}, b'["a",{"b":[1,null]},"|O",[2]]', ["a", {"b": [1, None]}]),
        ({"id": "msgpack2"}, bytes.fromhex("94 a161 c0 a27c4f 9102"), ["a", None]),
    ],
)
def test_objects(config, body, want):
    array = line("|O", body, filters=[config])
    assert [x.tolist() if isinstance(x, np.ndarray) else x for x in array[...]] == want
    assert array.dtype == object
    array[...] = array[...]
    assert bytes(array.store.get("0")) == body
    document = json.loads(array.node_format.documents(array.meta, "")[".zarray"])
    assert document["dtype"] == "|O"
    assert [item["id"] for item in document["filters"]] == [config["id"]]
    assert line("|O", body, compressor=config)[...].shape == (2,)  # as the compressor, too
    packed = line("|O", zlib.compress(body), filters=[config], compressor={"id": "zlib"})
    assert str(packed[...].tolist()) == str(array[...].tolist())


@pytest.mark.conformance("C042")
def test_pickles_are_refused_unless_opted_in():
    body = numcodecs.Pickle().encode(np.array(["a", 1], object))
    config = {"id": "pickle", "protocol": 4}
    with pytest.raises(errors.UnknownCodecError, match="allow_pickle"):
        line("|O", body, filters=[config])
    array = line("|O", body, filters=[config], read=zd.ReadOptions(allow_pickle=True))
    assert array[...].tolist() == ["a", 1]


def test_objects_need_an_object_codec():
    assert "filters" in problems_of(dtype="|O", fill_value=None)
    for wrong in ({"id": "zlib", "level": 1}, {"id": "delta", "dtype": "<i4"}, {}):
        with pytest.raises(errors.MetadataError, match="object codec"):
            opened(dtype="|O", filters=[wrong], fill_value=None)


@pytest.mark.parametrize(
    ("dtype", "codec", "values"),
    [
        ("string", "vlen-utf8", ["a", "bé", ""]),
        ("bytes", "vlen-bytes", [b"\xff", b"", b"abc"]),
    ],
)
def test_elements_of_any_length_are_created(dtype, codec, values):
    array, document, store = created(dtype=dtype, shape=3, chunks=2)
    assert document["dtype"] == "|O"
    assert [item["id"] for item in document["filters"]] == [codec]
    assert document["compressor"]["id"] == "zstd"
    array[...] = np.array(values, object)
    assert zd.open_array(store)[...].tolist() == values
    named, document, _ = created(dtype=dtype, codecs=[{"id": codec}, {"id": "zlib", "level": 1}])
    assert [item["id"] for item in document["filters"]] == [codec]
    assert named.meta.codecs.codecs[-1].name == "zlib"


def test_objects_are_what_their_codec_says():
    for codec, name in (("vlen-utf8", "string"), ("vlen-bytes", "bytes"), ("json2", "object")):
        array, document, _ = created(dtype=object, codecs=[{"id": codec}])
        assert array.meta.data_type.name == name
        assert document["dtype"] == "|O"
    for codecs in (None, [], [{"id": "zlib", "level": 1}]):
        with pytest.raises(errors.UnknownCodecError, match="an object codec first"):
            created(dtype=object, codecs=codecs)


@pytest.mark.parametrize(
    ("config", "fill", "want"),
    [
        ({"id": "vlen-utf8"}, "x", "x"),
        ({"id": "vlen-utf8"}, 0, ""),
        ({"id": "vlen-utf8"}, None, ""),
        ({"id": "vlen-bytes"}, "YWI=", b"ab"),
        ({"id": "vlen-bytes"}, "", b""),
        ({"id": "json2"}, {"a": 1}, {"a": 1}),
        ({"id": "vlen-array", "dtype": "<i4"}, 0, 0),
    ],
)
def test_fill_values_of_objects(config, fill, want):
    array = line("|O", filters=[config], fill_value=fill)
    assert array[...].tolist() == [want, want]
    document = json.loads(array.node_format.documents(array.meta, "")[".zarray"])
    assert document["fill_value"] == ("" if (config["id"], fill) == ("vlen-utf8", 0) else fill)


def test_wrong_fill_values_of_objects():
    for codec, wrong in (("vlen-utf8", 1), ("vlen-utf8", ["a"]), ("vlen-bytes", "?")):
        found = problems_of(dtype="|O", filters=[{"id": codec}], fill_value=wrong)
        assert list(found) == ["fill_value"]


def test_objects_in_order_f():
    texts = np.array([["a", "b", "c"], ["d", "e", "f"]], object)
    columns = np.asfortranarray(texts)
    for codec in (numcodecs.VLenUTF8(), numcodecs.JSON(), numcodecs.MsgPack()):
        body = bytes(codec.encode(columns))
        array = opened(
            {"0.0": body}, dtype="|O", filters=[codec.get_config()], order="F", fill_value=None
        )
        np.testing.assert_array_equal(array[:2, :3], texts)
        array[2:, 3:] = texts
        assert bytes(array.store.get("1.1")) == body


# --- names of dimensions --------------------------------------------------------------------------


@pytest.mark.conformance("C045")
def test_dimension_names_are_an_attribute():
    array = opened(attributes={"_ARRAY_DIMENSIONS": ["y", "x"], "unit": "m"})
    assert array.dimension_names == ("y", "x")
    assert array.attributes == {"_ARRAY_DIMENSIONS": ["y", "x"], "unit": "m"}
    assert array.user_attributes == {"unit": "m"}
    array = array.update_attributes({"unit": "km"})
    assert array.dimension_names == ("y", "x")
    assert array.user_attributes == {"unit": "km"}
    assert zd.open_array(array.store).dimension_names == ("y", "x")
    for wrong in (["y"], "yx", [1, 2], {"y": 1}, None):
        array = opened(attributes={"_ARRAY_DIMENSIONS": wrong})
        assert array.dimension_names is None
        assert array.user_attributes == {"_ARRAY_DIMENSIONS": wrong}
    made, _, store = created(dtype="f4", dimension_names=["t"], attributes={"unit": "m"})
    assert json.loads(bytes(store.get(".zattrs"))) == {"_ARRAY_DIMENSIONS": ["t"], "unit": "m"}
    assert made.user_attributes == {"unit": "m"}
    v3 = zd.create_array({}, shape=2, dtype="f4", dimension_names=["t"], attributes={"unit": "m"})
    assert v3.user_attributes == v3.attributes == {"unit": "m"}


def test_dimensions_without_a_name_survive():
    _, _, store = created(shape=(2, 2), chunks=(1, 1), dtype="f4", dimension_names=[None, "x"])
    assert zd.open_array(store).dimension_names == (None, "x")


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_names_change_with_their_attribute(version):
    array = zd.create_array({}, shape=2, dtype="f4", dimension_names=["t"], format=version)
    for names, want in ((["time"], ("time",)), (["a", "b"], None), ([None], (None,))):
        array = array.update_attributes({"_ARRAY_DIMENSIONS": names})
        assert array.dimension_names == want == zd.open_array(array.store).dimension_names


def test_names_given_twice_are_those_of_the_argument():
    _, _, store = created(
        dtype="f4", dimension_names=["t"], attributes={"_ARRAY_DIMENSIONS": ["x"], "a": 1}
    )
    assert zd.open_array(store).dimension_names == ("t",)


# --- round trips of anything ----------------------------------------------------------------------

SIMPLE = st.one_of(
    st.sampled_from([*NUMBERS, *TIMES, *TEXTS]).map(np.dtype),
    st.integers(1, 40).map(lambda n: np.dtype(f"S{n}")),
    st.integers(1, 20).map(lambda n: np.dtype(f">U{n}")),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def _structs(inner):
    field = st.tuples(inner, st.lists(st.integers(1, 3), max_size=2))
    return st.dictionaries(NAMES, field, min_size=1, max_size=4).map(
        lambda fields: np.dtype(
            [(name, field, tuple(shape)) for name, (field, shape) in fields.items()]
        )
    )


DTYPES = st.recursive(SIMPLE, _structs, max_leaves=8)


@given(DTYPES)
def test_any_dtype_round_trips(stored):
    document = json.loads(json.dumps(dtype_to_json(stored)))
    assert dtype_from_json(document) == stored
    assert dtype_to_json(dtype_from_json(document)) == document


@given(st.data())
def test_any_fill_value_round_trips(data):
    stored = data.draw(DTYPES)
    native = stored.newbyteorder("=")
    raw = data.draw(st.binary(min_size=stored.itemsize, max_size=stored.itemsize))
    value = np.frombuffer(raw, native).reshape(())
    if stored.kind == "b":
        value = np.array(bool(raw[0]))
    if stored.kind == "U":
        value = data.draw(arrays.from_dtype(native)).astype(native)
        value = np.array(value, native)
    if stored.kind in "fc" and np.isnan(value):  # v2 has one NaN, and other tests for it
        return
    document = json.dumps(fill_to_json(value, stored), allow_nan=False)
    assert fill_from_json(json.loads(document), stored).tobytes() == value.tobytes()


# --- documents from strangers ---------------------------------------------------------------------

HOSTILE = {
    "many fields": {"dtype": [[f"f{i}", "|u1"] for i in range(20_000)]},
    "many fields in fields": {
        "dtype": [[f"g{j}", [[f"f{i}", "|u1"] for i in range(1000)]] for j in range(50)]
    },
    "many filters": {"filters": [{"id": "crc32"}] * 100_000},
    "a dtype of many parts": {"filters": [{"id": "delta", "dtype": "i4," * 100_000}]},
    "many dimensions": {"shape": [1] * 10_000, "chunks": [1] * 10_000},
    "huge chunks": {"shape": [1 << 62] * 2, "chunks": [1 << 62] * 2},
    "huge elements": {"dtype": "|V2147483647"},
    "a huge number": {"fill_value": 10**4000},
    "a compressor that takes 4 GiB": {
        "compressor": {"id": "lzma", "format": 3, "filters": [{"id": 33, "dict_size": 1 << 32}]}
    },
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(10)
def test_documents_that_want_too_much_are_refused(name):
    with pytest.raises(errors.MetadataError):
        opened(**HOSTILE[name])


@pytest.mark.parametrize("initval", [-1, 1 << 40, "x", [], 1.5, None])
def test_filters_with_senseless_options(initval):
    with contextlib.suppress(errors.MetadataError, errors.CorruptObjectError):  # and no others
        opened({"0.0": bytes(28)}, filters=[{"id": "jenkins_lookup3", "initval": initval}])[...]


KEYS = st.sampled_from(["id", "dtype", "level", "cname", "labels"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["<f4", "|O", "F", "zlib", "delta", "vlen-utf8", "NaN", "blosc", "none"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(st.data())
def test_no_document_ends_in_an_error_without_a_type(data):
    """One or two members of a document replaced by any JSON."""
    v1 = {
        "chunks": [2, 3], "compression": "zlib", "compression_opts": 1, "dtype": "<i4",
        "fill_value": 0, "order": "C", "shape": [4, 6], "zarr_format": 1,
    }  # fmt: skip
    key, document = data.draw(st.sampled_from([(".zarray", DOCUMENT), ("meta", v1)]))
    names = st.sampled_from([*sorted(document.keys() - {"zarr_format"}), "dimension_separator"])
    changed = document | data.draw(st.dictionaries(names, JSON, min_size=1, max_size=2))
    body = data.draw(st.binary(max_size=40))
    store = {key: json.dumps(changed).encode(), "0.0": body, "0": body}
    with warnings.catch_warnings(), contextlib.suppress(errors.MetadataError):
        warnings.simplefilter("ignore", UserWarning)  # of order F in v1
        array = zd.open_array(store, mode="r+")
        assert array.format == ("v2" if key == ".zarray" else "v1")
        with contextlib.suppress(errors.CorruptObjectError):
            array[tuple(slice(0, 1) for _ in array.shape)]
        array.update_attributes({"a": 1})
