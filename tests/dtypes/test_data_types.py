"""Data types and fill values as Zarr v3 documents spell them, read and written again."""

import base64
import itertools
import json
import struct
import subprocess
import sys
import warnings

import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.dtypes import data_type_from_v3, data_type_of, v3_names
from zarr_dask.errors import (
    DataTypeError,
    MetadataError,
    MissingDependencyError,
    NodeExistsError,
    UnknownDataTypeError,
)
from zarr_dask.formats.v3 import V3

LITTLE = [{"name": "bytes", "configuration": {"endian": "little"}}]
BIG = [{"name": "bytes", "configuration": {"endian": "big"}}]


def document(data_type, fill, codecs=None):
    codec = {"string": [{"name": "vlen-utf8"}]}.get(str(data_type), LITTLE)
    if data_type in ("bytes", "variable_length_bytes"):
        codec = [{"name": "vlen-bytes"}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill,
        "codecs": codecs or codec,
    }


def stored(*arguments):
    return {"zarr.json": json.dumps(document(*arguments)).encode()}


def opened(*arguments):
    return zd.open_array(stored(*arguments))


def rewritten(*arguments):
    """What stands in the document of an array when its attributes have changed."""
    store = stored(*arguments)
    zd.open_array(store, mode="r+").update_attributes({"a": 1})
    return json.loads(bytes(store["zarr.json"]))


def refused(*arguments):
    with pytest.raises(MetadataError) as caught:
        opened(*arguments)
    return [problem.field for problem in caught.value.problems]


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


# --- fill values ----------------------------------------------------------------------------------


@pytest.mark.conformance("C108")
@pytest.mark.parametrize(
    ("name", "fill", "bits", "written"),
    [
        ("float16", "NaN", 0x7E00, "NaN"),
        ("float32", "NaN", 0x7FC00000, "NaN"),
        ("float64", "NaN", 0x7FF8000000000000, "NaN"),
        ("float32", "Infinity", 0x7F800000, "Infinity"),
        ("float64", "-Infinity", 0xFFF0000000000000, "-Infinity"),
        ("float16", "0x7e00", 0x7E00, "NaN"),
        ("float16", "0xfe01", 0xFE01, "0xfe01"),
        ("float32", "0x7FC00001", 0x7FC00001, "0x7fc00001"),
        ("float32", "0xffc00000", 0xFFC00000, "0xffc00000"),
        ("float64", "0x7ff0000000000001", 0x7FF0000000000001, "0x7ff0000000000001"),
        ("float32", "0x3f800000", 0x3F800000, 1.0),
        ("float64", -0.0, 1 << 63, -0.0),
        ("float32", -0.0, 1 << 31, -0.0),
        # ties go to the even one: halfway between 1 and the next number, and the one after it
        ("float32", 1 + 2**-24, 0x3F800000, 1.0),
        ("float32", 1 + 3 * 2**-24, 0x3F800002, 1 + 2**-22),
        ("float16", 2049, 0x6800, 2048.0),
        ("float16", 2051, 0x6802, 2052.0),
        ("float32", (1 << 24) + 1, 0x4B800000, 16777216.0),
        ("float32", (1 << 60) + (1 << 36) + 1, 0x5D800001, float((1 << 60) + (1 << 37))),
        ("bfloat16", 1 + 2**-8 + 2**-40, 0x3F81, 1 + 2**-7),
        ("float32", 1e300, 0x7F800000, "Infinity"),
        ("float32", 5e-324, 0, 0.0),
    ],
)
def test_fill_values_of_floats(name, fill, bits, written):
    array = opened(name, fill)
    assert int(array.meta.fill_value.view(f"u{array.dtype.itemsize}")) == bits
    again = rewritten(name, fill)["fill_value"]
    assert again == written
    assert str(again) == str(written)  # -0.0 equals 0.0
    assert array[...].tobytes() == 2 * array.meta.fill_value.tobytes()


@pytest.mark.conformance("C108")
@pytest.mark.parametrize(
    "fill", ["+Infinity", "nan", "inf", "0x1", "0x7fc000000", "7fc00000", "1.5", True, None, [1]]
)
def test_what_is_no_float(fill):
    assert refused("float32", fill) == ["fill_value"]


@pytest.mark.conformance("C109")
@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("int8", 1.5),
        ("int8", 128),
        ("int8", -129),
        ("uint8", -1),
        ("uint16", 65536),
        ("int64", 1 << 63),
        ("uint64", 1 << 64),
        ("int32", "1"),
        ("int32", True),
        ("int32", None),
        ("int32", float("nan")),
        ("int4", 8),
        ("int4", -9),
        ("uint4", 16),
        ("int2", 2),
        ("uint2", 4),
        ("bool", 0),
        ("bool", 1),
        ("bool", "true"),
        ("bool", None),
    ],
)
def test_what_is_no_integer_and_no_bool(name, fill):
    assert refused(name, fill) == ["fill_value"]


@pytest.mark.conformance("C109")
@pytest.mark.parametrize(
    ("name", "fill", "value"),
    [
        ("int8", -128, -128),
        ("uint64", (1 << 64) - 1, (1 << 64) - 1),
        ("int64", -(1 << 63), -(1 << 63)),
        ("int16", 1.0, 1),
        ("bool", True, True),
        ("bool", False, False),
        ("int4", -8, -8),
        ("uint2", 3, 3),
    ],
)
def test_fill_values_of_integers_and_bools(name, fill, value):
    array = opened(name, fill)
    assert int(array.fill_value) == value
    written = rewritten(name, fill)["fill_value"]
    assert (type(written), written) == (type(value), value)


@pytest.mark.conformance("C110")
@pytest.mark.parametrize(
    ("name", "fill", "raw"),
    [
        ("complex64", [1, -2.5], struct.pack("<ff", 1, -2.5)),
        ("complex128", [0.0, -0.0], struct.pack("<dd", 0, -0.0)),
        ("complex64", ["NaN", "-Infinity"], struct.pack("<II", 0x7FC00000, 0xFF800000)),
        ("complex64", ["0x7fc00001", 0.0], struct.pack("<If", 0x7FC00001, 0)),
    ],
)
def test_fill_values_of_complex_numbers(name, fill, raw):
    assert opened(name, fill).meta.fill_value.tobytes() == raw
    assert rewritten(name, fill)["fill_value"] == fill


@pytest.mark.conformance("C110")
@pytest.mark.parametrize(
    "fill", [0, [1], [1, 2, 3], "1+2j", {"real": 1}, [True, 0], [1, "+Infinity"]]
)
def test_what_is_no_complex_number(fill):
    assert refused("complex64", fill) == ["fill_value"]


# --- raw bytes ------------------------------------------------------------------------------------


@pytest.mark.conformance("C111")
@pytest.mark.parametrize("fill", [[1, 2, 255], "AQL/"])
def test_raw_bits(fill):
    array = opened("r24", fill)
    assert array.dtype == np.dtype("V3")
    assert array.fill_value.tobytes() == b"\1\2\xff"
    again = rewritten("r24", fill)
    assert (again["data_type"], again["fill_value"]) == ("r24", [1, 2, 255])


@pytest.mark.conformance("C111")
@pytest.mark.parametrize("fill", [[1, 2], [1, 2, 256], [1, 2, -1], "AQ==", "AQL", "?", 0, None])
def test_what_is_not_as_many_bytes(fill):
    assert refused("r24", fill) == ["fill_value"]


@pytest.mark.conformance("C111")
@pytest.mark.parametrize("name", ["r7", "r0", "r", "r-8", "r08", "r99999999999", "r8589934592"])
def test_what_is_no_number_of_bytes(name):
    with pytest.raises(UnknownDataTypeError):
        opened(name, [])


def test_raw_bytes_under_their_other_name():
    again = rewritten(named("raw_bytes", length_bytes=3), "AQL/")
    assert again["data_type"] == named("raw_bytes", length_bytes=3)
    assert again["fill_value"] == "AQL/"


def test_null_terminated_bytes():
    data_type = named("null_terminated_bytes", length_bytes=3)
    array = opened(data_type, base64.b64encode(b"ab").decode())
    assert (array.dtype, array.fill_value) == (np.dtype("S3"), b"ab")
    assert rewritten(data_type, "YWI=")["fill_value"] == "YWI="
    assert refused(data_type, base64.b64encode(b"abcd").decode()) == ["fill_value"]


# --- times ----------------------------------------------------------------------------------------

UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic"]


@pytest.mark.conformance("C112")
@pytest.mark.parametrize("factor", [1, 10, 2147483647])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("name", "kind"), [("datetime64", "M8"), ("timedelta64", "m8")])
def test_times(name, kind, unit, factor):
    data_type = named(f"numpy.{name}", unit=unit, scale_factor=factor)
    array = opened(data_type, 3)
    assert np.datetime_data(array.dtype) == (unit, factor)
    assert array.dtype.str == np.dtype(f"{kind}[{factor}{unit}]").str
    assert array[...].view("i8").tolist() == [3, 3]
    assert rewritten(data_type, 3)["data_type"] == data_type


@pytest.mark.conformance("C112")
@pytest.mark.parametrize("unit", ["\u03bcs", "\u00b5s"])
def test_microseconds_in_greek(unit):
    data_type = named("numpy.timedelta64", unit=unit, scale_factor=1)
    assert opened(data_type, 0).dtype == np.dtype("m8[us]")


@pytest.mark.conformance("C112")
@pytest.mark.parametrize("name", ["numpy.datetime64", "numpy.timedelta64"])
def test_no_time(name):
    data_type = named(name, unit="s", scale_factor=1)
    arrays = [opened(data_type, fill) for fill in ("NaT", -(1 << 63))]
    assert all(np.isnat(array.fill_value) for array in arrays)
    assert arrays[0].meta.fill_value.tobytes() == arrays[1].meta.fill_value.tobytes()
    assert opened(data_type, (1 << 63) - 1).meta.fill_value.view("i8") == (1 << 63) - 1


@pytest.mark.conformance("C112")
@pytest.mark.parametrize("fill", [1.5, "now", 1 << 63, -(1 << 63) - 1, True, None, "2020-01-01"])
def test_what_is_no_time(fill):
    assert refused(named("numpy.datetime64", unit="s", scale_factor=1), fill) == ["fill_value"]


@pytest.mark.conformance("C112")
@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        ({"unit": "s"}, "scale_factor"),
        ({"scale_factor": 1}, "unit"),
        ({"unit": "min", "scale_factor": 1}, "unit"),
        ({"unit": "s", "scale_factor": 0}, "scale_factor"),
        ({"unit": "s", "scale_factor": 1 << 31}, "scale_factor"),
        ({"unit": "s", "scale_factor": 1.0}, "scale_factor"),
        ({"unit": "s", "scale_factor": 1, "zone": "UTC"}, "zone"),
    ],
)
def test_configurations_of_times(configuration, field):
    place = f"data_type.configuration.{field}"
    assert refused(named("numpy.datetime64", **configuration), 0) == [place]


# --- texts and byte strings -----------------------------------------------------------------------


@pytest.mark.conformance("C114")
def test_texts_of_a_fixed_length():
    data_type = named("fixed_length_utf32", length_bytes=12)
    array = opened(data_type, "H\u00e9\U0001f600")
    assert (array.dtype, array.fill_value) == (np.dtype("U3"), "H\u00e9\U0001f600")
    assert array[...].tolist() == ["H\u00e9\U0001f600"] * 2
    again = rewritten(data_type, "Hi\0")
    assert (again["data_type"], again["fill_value"]) == (data_type, "Hi")


@pytest.mark.conformance("C114")
@pytest.mark.parametrize("fill", ["four", 0, None, ["a"]])
def test_what_is_no_text_of_three(fill):
    assert refused(named("fixed_length_utf32", length_bytes=12), fill) == ["fill_value"]


@pytest.mark.conformance("C114")
@pytest.mark.parametrize("length", [0, 1, 6, -4, 4.0, "4", None, 1 << 40])
def test_lengths_of_texts_are_multiples_of_four(length):
    place = "data_type.configuration.length_bytes"
    assert refused(named("fixed_length_utf32", length_bytes=length), "") == [place]


@pytest.mark.conformance("C114")
def test_byte_order_of_texts_must_be_said():
    fields = refused(named("fixed_length_utf32", length_bytes=4), "", [{"name": "bytes"}])
    assert fields == ["codecs[0].configuration.endian"]


@pytest.mark.conformance("C113")
@pytest.mark.parametrize("name", ["bytes", "variable_length_bytes"])
@pytest.mark.parametrize("fill", [[1, 2, 3], "AQID"])
def test_both_forms_and_both_names_of_byte_strings(name, fill):
    array = opened(name, fill)
    assert array[...].tolist() == [b"\1\2\3"] * 2
    again = rewritten(name, fill)
    assert (again["data_type"], again["fill_value"]) == ("bytes", "AQID")


@pytest.mark.conformance("C113")
@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("bytes", [256]),
        ("bytes", "A"),
        ("bytes", 0),
        ("string", 0),
        ("string", None),
        ("string", [1]),
    ],
)
def test_what_is_no_text_or_byte_string(name, fill):
    assert refused(name, fill) == ["fill_value"]


@pytest.mark.conformance("C113")
def test_texts_of_any_length():
    array = opened("string", "\u00e9")
    assert array.dtype == object
    assert array[...].tolist() == ["\u00e9"] * 2
    assert rewritten("string", "\u00e9")["fill_value"] == "\u00e9"


# --- records --------------------------------------------------------------------------------------

POINT = named(
    "struct",
    fields=[
        {"name": "x", "data_type": "float32"},
        {"name": "t", "data_type": named("numpy.datetime64", unit="s", scale_factor=1)},
        {
            "name": "in",
            "data_type": named("struct", fields=[{"name": "x", "data_type": {"name": "r16"}}]),
        },
    ],
)
POINT_FILL = {"x": "NaN", "t": -(1 << 63), "in": {"x": [1, 2]}}


@pytest.mark.conformance("C115")
def test_records():
    array = opened(POINT, POINT_FILL)
    assert array.dtype == np.dtype([("x", "f4"), ("t", "M8[s]"), ("in", [("x", "V2")])])
    assert array.meta.fill_value.tobytes() == struct.pack("<Iq2B", 0x7FC00000, -(1 << 63), 1, 2)
    again = rewritten(POINT, POINT_FILL)
    assert again["fill_value"] == POINT_FILL
    inner = again["data_type"]["configuration"]["fields"][2]["data_type"]
    assert inner["configuration"]["fields"] == [{"name": "x", "data_type": "r16"}]


@pytest.mark.conformance("C115")
@pytest.mark.parametrize(
    "fill",
    [
        {"x": 0, "t": 0},
        {"x": 0, "in": {"x": [1, 2]}},
        {**POINT_FILL, "in": {}},
        {**POINT_FILL, "more": 0},
        {**POINT_FILL, "x": "zero"},
        0,
        None,
        [0, 0, 0],
        "AAAA",
    ],
    ids=str,
)
def test_every_field_must_have_its_value(fill):
    assert refused(POINT, fill) == ["fill_value"]


def fields(*names, data_type="uint8"):
    return [{"name": name, "data_type": data_type} for name in names]


@pytest.mark.conformance("C115")
@pytest.mark.parametrize(
    ("items", "place"),
    [
        (fields("a", "b", "a"), "fields"),
        ([], "fields"),
        (None, "fields"),
        (fields(""), "fields[0]"),
        (fields(1), "fields[0]"),
        ([{"name": "a"}], "fields[0]"),
        ([{"name": "a", "data_type": "uint8", "more": 1}], "fields[0]"),
        (["uint8"], "fields[0]"),
        (fields("a", data_type="string"), "fields[0].data_type"),
        (fields("a", data_type="bytes"), "fields[0].data_type"),
        (fields("a", data_type="int9"), "fields[0].data_type"),
        (fields("a", data_type=named("struct", fields=fields("x", "x"))), None),
    ],
    ids=str,
)
def test_what_are_no_fields(items, place):
    inner = "fields[0].data_type.configuration.fields"
    assert refused(named("struct", fields=items), 0) == [
        f"data_type.configuration.{place or inner}"
    ]


@pytest.mark.conformance("C115")
def test_byte_order_of_records():
    one = named("struct", fields=fields("a", "b"))
    array = opened(one, {"a": 1, "b": 2}, [{"name": "bytes"}])
    assert array[...].tolist() == [(1, 2)] * 2
    two = named("struct", fields=fields("a", data_type="int16"))
    place = "codecs[0].configuration.endian"
    assert refused(two, {"a": 1}, [{"name": "bytes"}]) == [place]


def test_records_that_are_meant_to_exhaust_us():
    deep = "uint8"
    for _ in range(100):
        deep = named("struct", fields=fields("a", data_type=deep))
    with pytest.raises(MetadataError, match="nested at most"):
        opened(deep, {})
    with pytest.raises(MetadataError, match="fields"):
        opened(named("struct", fields=fields(*map(str, range(100_000)))), {})
    with pytest.raises(MetadataError, match="int9") as caught:
        opened(named("struct", fields=fields(*map(str, range(8000)), data_type="int9")), {})
    assert len(str(caught.value)) < 100_000
    large = named("raw_bytes", length_bytes=1 << 22)
    with pytest.raises(MetadataError, match="bytes for an element"):
        opened(named("struct", fields=fields(*"abcdef", data_type=large)), {})


# --- the legacy name of records -------------------------------------------------------------------

LEGACY = named("structured", fields=[["x", "int16"], ["y", "float32"]])


@pytest.mark.conformance("C116")
@pytest.mark.parametrize(
    ("codecs", "order"),
    [
        (LITTLE, "<"),
        (BIG, ">"),
        (
            [
                named(
                    "sharding_indexed",
                    chunk_shape=[1],
                    codecs=BIG,
                    index_codecs=[*LITTLE, {"name": "crc32c"}],
                )
            ],
            ">",
        ),
    ],
    ids=["little", "big", "sharded"],
)
def test_legacy_records(codecs, order):
    fill = base64.b64encode(struct.pack(f"{order}hf", 258, -1.5)).decode()
    array = opened(LEGACY, fill, codecs)
    assert array.dtype == np.dtype([("x", "i2"), ("y", "f4")])
    assert array[0].item() == (258, -1.5)
    assert opened(LEGACY, {"x": 258, "y": -1.5}, codecs)[0].item() == (258, -1.5)
    again = rewritten(LEGACY, fill, codecs)
    assert again["data_type"] == named(
        "struct",
        fields=[{"name": "x", "data_type": "int16"}, {"name": "y", "data_type": "float32"}],
    )
    assert again["fill_value"] == {"x": 258, "y": -1.5}


@pytest.mark.conformance("C116")
def test_legacy_records_without_a_byte_order_are_little_endian():
    fill = base64.b64encode(struct.pack("<hf", 258, -1.5)).decode()
    store = stored(LEGACY, fill, [{"name": "bytes"}])
    store["c/0"] = struct.pack("<hfhf", 1, 2, 3, 4)
    with pytest.warns(UserWarning, match="little-endian"):
        array = zd.open_array(store, mode="r+")
    assert array.fill_value.item() == (258, -1.5)
    assert array[...].tolist() == [(1, 2), (3, 4)]
    with pytest.warns(UserWarning, match="little-endian"):
        array.update_attributes({"a": 1})
    again = json.loads(bytes(store["zarr.json"]))
    assert (again["data_type"]["name"], again["codecs"]) == ("struct", LITTLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert zd.open_array(store)[...].tolist() == [(1, 2), (3, 4)]


@pytest.mark.conformance("C116")
def test_legacy_records_of_single_bytes_need_no_warning():
    data_type = named("structured", fields=[["x", "uint8"], ["y", "int8"]])
    assert opened(data_type, "AQI=", [{"name": "bytes"}])[0].item() == (1, 2)
    assert refused(data_type, "AQ==", [{"name": "bytes"}]) == ["fill_value"]


# --- types of few bits ----------------------------------------------------------------------------

NAN_BITS = {
    "bfloat16": 0x7FC0,
    "float8_e3m4": 0x78,
    "float8_e4m3": 0x7C,
    "float8_e5m2": 0x7E,
    "float8_e4m3fn": 0x7F,
    "float8_e4m3fnuz": 0x80,
    "float8_e4m3b11fnuz": 0x80,
    "float8_e5m2fnuz": 0x80,
    "float8_e8m0fnu": 0xFF,
}
NO_NAN = ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]
NO_INFINITY = [n for n in (*NAN_BITS, *NO_NAN) if n.endswith(("fn", "fnuz", "fnu"))]


@pytest.mark.conformance("C117")
@pytest.mark.parametrize("name", NAN_BITS)
def test_nan_of_small_floats(name):
    array = opened(name, "NaN")
    assert int(array.meta.fill_value.view(f"u{array.dtype.itemsize}")) == NAN_BITS[name]
    assert np.isnan(float(array.fill_value))
    assert rewritten(name, "NaN")["fill_value"] == "NaN"
    pair = opened(f"complex_{name}", ["NaN", 1])
    assert int(pair.meta.fill_value["real"].view(f"u{array.dtype.itemsize}")) == NAN_BITS[name]


@pytest.mark.conformance("C117")
@pytest.mark.parametrize(
    ("name", "fill"),
    [
        *((name, "NaN") for name in NO_NAN),
        *((name, "Infinity") for name in NO_INFINITY),
        *((name, "-Infinity") for name in NO_INFINITY),
        ("float4_e2m1fn", 7),
        ("float4_e2m1fn", "0x10"),
        ("float6_e2m3fn", "0x40"),
        ("float8_e4m3fn", 1000),
        ("float8_e8m0fnu", 0),
        ("float8_e8m0fnu", -1.0),
        ("bfloat16", "0x7fc"),
    ],
)
def test_what_small_floats_cannot_hold(name, fill):
    assert refused(name, fill) == ["fill_value"]
    assert refused(f"complex_{name}", [fill, 1]) == ["fill_value"]


@pytest.mark.conformance("C117")
@pytest.mark.parametrize("name", [*NAN_BITS, *NO_NAN])
def test_every_value_of_small_floats_survives_its_document(name):
    data_type = data_type_of(name)
    bits = {"6": 6, "4": 4}.get(name[5], 8 * data_type.dtype.itemsize)
    patterns = np.arange(1 << bits, dtype=f"u{data_type.dtype.itemsize}").view(data_type.dtype)
    for pattern in patterns[:: max(1, len(patterns) // 512)]:
        value = np.array(pattern)
        text = json.dumps(data_type.to_json(value), allow_nan=False)
        assert data_type.from_json(json.loads(text)).tobytes() == value.tobytes()


@pytest.mark.conformance("C117")
@pytest.mark.parametrize("name", [*NAN_BITS, *NO_NAN])
def test_numbers_are_rounded_to_the_nearest_even(name):
    """Against the values of all bit patterns, as ml_dtypes gives them."""
    dtype = data_type_of(name).dtype
    bits = {"6": 6, "4": 4}.get(name[5], 8 * dtype.itemsize)
    every = np.arange(1 << bits, dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        numbers = every.astype(float)
    known = {float(v): i for i, v in reversed(list(enumerate(numbers))) if np.isfinite(v)}
    values = sorted(known)
    for low, high in list(itertools.pairwise(values))[:: max(1, len(values) // 300)]:
        half = low + (high - low) / 2
        even = low if known[low] % 2 == 0 else high
        from_json = data_type_of(name).from_json
        assert float(from_json(half)) == even
        assert float(from_json(np.nextafter(half, np.inf).item())) == high
        assert float(from_json(np.nextafter(half, -np.inf).item())) == low


def test_a_type_without_zero_needs_a_fill_value():
    store = {}
    with pytest.raises(DataTypeError, match=r"fill_value=0 .* no zero"):
        zd.create_array(store, shape=2, dtype="float8_e8m0fnu", chunks=2)
    assert not store
    array = zd.create_array(store, shape=2, dtype="float8_e8m0fnu", chunks=2, fill_value=0.5)
    assert array[...].astype(float).tolist() == [0.5, 0.5]


def test_without_ml_dtypes(monkeypatch):
    from zarr_dask.dtypes import bits

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    bits.small_dtype.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"zarr-dask\[ml\]"):
        opened("bfloat16", 0)
    assert opened("complex_float16", [0, 0]).dtype.names == ("real", "imag")


def test_core_types_do_not_load_ml_dtypes():
    code = (
        "import sys, zarr_dask as zd; zd.create_array({}, shape=2, dtype='U3')[...] = 'a';"
        "sys.exit('ml_dtypes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what users give ------------------------------------------------------------------------------


_NAT = -(1 << 63)


@pytest.mark.parametrize(
    ("given", "written", "fill"),
    [
        (bool, "bool", False),
        ("<i2", "int16", 0),
        ("float32", "float32", 0.0),
        (complex, "complex128", [0.0, 0.0]),
        (str, "string", ""),
        ("string", "string", ""),
        ("str", "string", ""),
        (np.dtypes.StringDType(), "string", ""),
        (np.dtypes.StringDType(na_object=None), "string", ""),
        (bytes, "bytes", ""),
        ("bytes", "bytes", ""),
        ("U3", named("fixed_length_utf32", length_bytes=12), ""),
        ("S3", named("null_terminated_bytes", length_bytes=3), ""),
        ("V3", named("raw_bytes", length_bytes=3), "AAAA"),
        ("r24", "r24", [0, 0, 0]),
        ("M8[ns]", named("numpy.datetime64", unit="ns", scale_factor=1), _NAT),
        ("m8[5m]", named("numpy.timedelta64", unit="m", scale_factor=5), _NAT),
        ("int4", "int4", 0),
        (ml_dtypes.bfloat16, "bfloat16", 0.0),
        ("complex_bfloat16", "complex_bfloat16", [0.0, 0.0]),
        ("complex_float32", "complex_float32", [0.0, 0.0]),
        (named("raw_bytes", length_bytes=2), named("raw_bytes", length_bytes=2), "AAA="),
        ([("a", "u1"), ("b", ">i4")], None, {"a": 0, "b": 0}),
    ],
    ids=str,
)
def test_data_types_that_users_name(given, written, fill):
    store = {}
    array = zd.create_array(store, shape=2, dtype=given, chunks=2)
    made = json.loads(bytes(store["zarr.json"]))
    if written is not None:
        assert made["data_type"] == written
        assert data_type_from_v3(written) == array.meta.data_type
    assert json.dumps(made["fill_value"]) == json.dumps(fill)
    opened = zd.open_array(store).meta
    assert opened.is_stored_as(array.meta)
    assert opened == array.meta or fill == _NAT  # which differs from itself
    assert zd.open_array(store)[...].tobytes() == array[...].tobytes()


@pytest.mark.parametrize(
    ("dtype", "fill", "value"),
    [
        (str, "none", "none"),
        (bytes, b"\0", b"\0"),
        ("U3", "abc", "abc"),
        ("S3", b"abc", b"abc"),
        ("M8[s]", "NaT", np.datetime64("NaT", "s")),
        ("M8[s]", "1970-01-02", np.datetime64("1970-01-02")),
        ("m8[s]", 60, np.timedelta64(1, "m")),
        ("m8[s]", "120", np.timedelta64(2, "m")),
        ("m8[ns]", np.timedelta64(5, "D"), np.timedelta64(5, "D")),
        ("m8[s]", np.timedelta64("NaT", "ns"), np.timedelta64("NaT", "s")),
        ("M8[ns]", np.datetime64("NaT", "D"), np.datetime64("NaT", "ns")),
        ("M8[s]", np.datetime64("2000-01-01", "ns"), np.datetime64("2000-01-01")),
        ("M8[25s]", "1970-01-01T00:00:50", np.datetime64(50, "s")),
        ("bfloat16", 1.5, 1.5),
        ("int4", -8, -8),
        ([("a", "u1"), ("b", "U2")], (1, "x"), (1, "x")),
        ([("a", "u1"), ("b", "U2")], {"a": 1, "b": "x"}, (1, "x")),
    ],
    ids=repr,
)
def test_fill_values_that_users_give(dtype, fill, value):
    array = zd.create_array({}, shape=2, dtype=dtype, chunks=2, fill_value=fill)
    got = array.fill_value
    got = got.item() if isinstance(got, np.void) else got
    assert got == value or (got != got and value != value)  # noqa: PLR0124  (NaT)


@pytest.mark.parametrize("format", ["v1", "v2", "v3", "v3draft", "v3draft-2022-05"])
@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[ms]", ">M8[25s]"])
def test_times_that_were_never_written_are_not_1970(dtype, format):
    """As in zarr-python, and in xarray, where NaT is what is missing."""
    array = zd.create_array({}, shape=4, dtype=dtype, chunks=2, format=format)
    array[0] = np.array(0, array.dtype)
    array.append(array[:1])
    assert np.isnat(array.fill_value)
    assert np.isnat(array[:]).tolist() == [False, True, True, True, False]
    given = zd.create_array({}, shape=1, dtype=dtype, format=format, fill_value=0)
    assert not np.isnat([given[0], given.fill_value]).any()


def test_all_ways_to_make_an_array_fill_times_with_nat():
    group = zd.create_group({})
    zd.to_zarr(da.zeros(2, dtype="M8[s]", chunks=1), group, "graph")
    zd.rechunk(da.zeros(2, dtype="M8[s]", chunks=1), rechunked := {}, chunks=2)
    group.create_array("made", shape=2, dtype="M8[s]")
    group.require_array("found", shape=2, dtype="M8[s]")
    arrays = [*dict(group.arrays()).values(), zd.open_array(rechunked)]
    arrays += [zd.empty(2, dtype="M8[s]"), zd.empty_like(group["made"])]
    assert len(arrays) == 6
    assert all(np.isnat(array.fill_value) for array in arrays)
    assert zd.zeros(1, dtype="M8[s]")[0] == zd.zeros_like(group["made"])[0] == np.datetime64(0, "s")


def test_a_fill_value_given_for_an_array_that_exists_is_refused():
    group = zd.create_group({})
    values = da.zeros(2, dtype="M8[s]", chunks=1)
    zd.to_zarr(values, group, "a")
    zd.to_zarr(values, group, "a", mode="r+")
    with pytest.raises(NodeExistsError, match=r"\['fill_value'\] describe a new array"):
        zd.to_zarr(values, group, "a", mode="r+", fill_value="NaT")


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (str, b"x"),
        (str, 1),
        (bytes, "x"),
        ("U3", "abcd"),
        ("S3", b"abcd"),
        ("V3", b"abcd"),
        ("M8[s]", 1.5),
        ("M8[s]", "yesterday"),
        ("M8[ns]", np.datetime64("9999-01-01")),
        ("M8[ns]", "9999-01-01"),
        ("M8[ns]", "1600-01-01T00:00:00.000000000"),
        ([("t", "M8[ns]")], (np.datetime64("9999-01-01"),)),
        ("M8[s]", np.datetime64("2000-01-01T00:00:00.5")),
        ("M8[s]", "2000-01-01T00:00:00.5"),
        ("M8[25s]", np.datetime64(51, "s")),
        ("M8[D]", np.timedelta64(5, "ns")),
        ("M8[D]", True),
        ("m8[ns]", True),
        ("m8[s]", np.timedelta64(5, "ns")),
        ("m8[ns]", np.timedelta64(5, "ps")),
        ("m8[s]", np.datetime64("2000-01-01")),
        ("m8[s]", np.timedelta64(1, "Y")),
        ("m8[s]", "99999999999999999999"),
        ("m8[s]", np.datetime64("NaT", "s")),
        ("i8", np.timedelta64(5, "ns")),
        ("f8", np.timedelta64(5, "ns")),
        ("bool", np.timedelta64(1, "ns")),
        ("c16", np.timedelta64(5, "ns")),
        ("int4", 8),
        ("bool", 2),
        ([("a", "u1")], {"b": 1}),
        ([("a", "u1")], (256,)),
        ([("a", "u1")], "x"),
        ("f4", [1, 2]),
    ],
    ids=repr,
)
def test_fill_values_that_do_not_fit(dtype, fill):
    store = {}
    with pytest.raises(DataTypeError, match="fill_value="):
        zd.create_array(store, shape=2, dtype=dtype, chunks=2, fill_value=fill)
    assert not store


FAR = np.datetime64("9999-01-01")


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("M8[ns]", "9999-01-01"),
        ("M8[ns]", b"9999-01-01"),
        ("M8[ns]", [FAR, FAR]),
        ("M8[ns]", [FAR, np.datetime64("2000-01-01", "ns")]),
        ("M8[ns]", [0, "9999-01-01"]),
        ("M8[ns]", FAR.item()),
        ("M8[ns]", np.array(["9999-01-01", "NaT"])),
        ("M8[ns]", np.array([FAR, None], object)),
        ("M8[ns]", np.array([FAR, FAR])),
        ("M8[ns]", "1600-01-01T00:00:00.000000000"),
        ("M8[ps]", "2000-01-01"),
        ("M8[as]", "1970-01-01T00:01"),
        ("m8[ns]", [np.timedelta64(1 << 40, "D"), 7]),
        ("m8[ns]", ["99999999999999999999", "NaT"]),
    ],
    ids=repr,
)
def test_times_out_of_range_are_not_written(dtype, values):
    store = {}
    array = zd.create_array(store, shape=2, dtype=dtype, chunks=2)
    before = dict(store)
    with pytest.raises(DataTypeError, match="cannot hold"):
        array[...] = values
    with pytest.raises(DataTypeError, match="cannot hold"):
        array.append(values)
    assert store == before


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("M8[s]", "1600-01-01T00:00:01.500000000"),
        ("M8[D]", ["2000-01-01T23:59:59.999999999999", None]),
        ("M8[25s]", ["1970-01-01T00:01:07", 3]),
        ("M8[ns]", [FAR.astype("M8[s]") - np.timedelta64(8000 * 366, "D"), "NaT"]),
        ("M8[ps]", "1970-01-01T00:00:01.000000000001"),
        ("M8[as]", "1970-01-01T00:00:01.000000000000000001"),
        ("M8[us]", [[FAR.item()], ["0001-01-01"]]),
        ("M8[s]", np.array(["9999-01-01", ""])),
        ("m8[s]", [np.timedelta64(5, "D"), "7"]),
        ("m8[s]", np.timedelta64(5, "ms").item()),
        ("m8[s]", range(2)),
    ],
    ids=repr,
)
def test_times_are_cast_as_numpy_does(dtype, values):
    array = zd.create_array(
        {}, shape=np.shape(values) or 2, dtype=dtype, chunks=2 if np.ndim(values) < 2 else (2, 1)
    )
    expected = np.zeros(array.shape, dtype)
    array[...] = expected[...] = values
    np.testing.assert_array_equal(array[...], expected)
    assert array.dtype == expected.dtype


@pytest.mark.parametrize(
    "dtype", ["nope", "r7", "V", "g", "struct", 7, [], "f3", [("a", object)], "V99999999"], ids=str
)
def test_what_is_no_data_type(dtype):
    with pytest.raises(DataTypeError, match="dtype="):
        zd.create_array({}, shape=2, dtype=dtype, chunks=2)


@pytest.mark.parametrize("dtype", [object, [("a", "f4", (2,))]], ids=str)
def test_what_v3_has_no_name_for(dtype):
    with pytest.raises(UnknownDataTypeError, match="v3"):
        zd.create_array({}, shape=2, dtype=dtype, chunks=2)


def test_what_no_document_of_v3_can_say():
    """Arrays of v2 may hold objects and records with arrays in them, and have no fill value."""
    store = {}
    for dtype in ([("a", "f4", (2,))], "i4"):
        array = zd.create_array(
            store, shape=2, dtype=dtype, chunks=2, format="v2", fill_value=None, overwrite=True
        )
        with pytest.raises(MetadataError) as caught:
            V3.documents(array.meta, "")
        fields = [problem.field for problem in caught.value.problems]
        assert fields == (["fill_value"] if dtype == "i4" else ["data_type", "fill_value"])


# --- documents of strangers -----------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*v3_names(), "r16", "r-1", "ns", "generic", "NaN", "0x7fc0", "AAAA", "x"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "configuration",
                    "fields",
                    "data_type",
                    "unit",
                    "scale_factor",
                    "length_bytes",
                    "must_understand",
                    "x",
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_data_type_or_its_problems(document):
    made = data_type_from_v3(document)
    if isinstance(made, list):
        assert made
        assert all(str(problem) for problem in made)
    else:
        assert data_type_from_v3(made.document()) == made


@given(
    st.sampled_from([*v3_names(), "r16", POINT, named("fixed_length_utf32", length_bytes=8)]), JSON
)
def test_any_json_is_a_fill_value_or_refused(document, value):
    made = data_type_from_v3(document)
    if isinstance(made, list):
        return
    try:
        fill = made.from_json(value)
    except (ValueError, TypeError, OverflowError):
        return
    again = made.from_json(json.loads(json.dumps(made.to_json(fill), allow_nan=False)))
    assert again.dtype == fill.dtype == made.dtype
    assert again[()] == fill[()] if made.variable else again.tobytes() == fill.tobytes()
