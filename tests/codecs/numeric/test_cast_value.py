"""``cast_value`` and ``scale_offset``: against exact fractions, and their documents' examples."""

from __future__ import annotations

import json
from bisect import bisect_right
from fractions import Fraction
from functools import cache
from math import ceil, floor, inf, nan, trunc

import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.codec_documents import LITTLE, codec, document, opened, refused
from zarr_dask.codecs.numeric.cast_value import CastValue
from zarr_dask.codecs.numeric.casting import convert
from zarr_dask.dtypes import data_type_from_v3
from zarr_dask.errors import CorruptObjectError, DataTypeError

INTEGERS = ["int2", "int4", "int8", "int16", "int32", "int64"]
INTEGERS += [f"u{name}" for name in INTEGERS]
SMALL_FLOATS = [
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
]
FLOATS = [*SMALL_FLOATS, "bfloat16", "float16", "float32", "float64"]
MODES = ["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]


# --- what fractions say ---------------------------------------------------------------------------


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def between(value, low, high, low_is_even, mode):
    """Whether a positive number between two neighbours becomes the higher one."""
    if mode in ("towards-zero", "towards-negative"):
        return False
    if mode == "towards-positive":
        return True
    middle = (low + high) / 2
    if value == middle:
        return mode == "nearest-away" or not low_is_even
    return value > middle


@cache
def positive(name):
    """All finite numbers of at least 0 of a float type of 16 bits at most, ascending."""
    dtype = dtype_of(name)
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        found = bits.view(dtype).astype("f8")
    return sorted({Fraction(float(v)) for v in found[np.isfinite(found) & (found >= 0)]})


def neighbours(value, name):
    """The numbers around a positive one, whether the lower is even, and the greatest of all.

    As if there were numbers beyond the greatest, as far apart as those just below it are.
    """
    if name in ("float32", "float64"):
        kind = np.dtype(name).type
        greatest = Fraction(float(np.finfo(kind).max))
        if value >= greatest:
            step = greatest - Fraction(float(np.nextafter(np.finfo(kind).max, kind(0))))
            return greatest, greatest + step, False, greatest
        low = kind(float(value))
        if Fraction(float(low)) > value:
            low = np.nextafter(low, kind(0))
        high = np.nextafter(low, kind(inf))
        even = int(low.view(f"u{low.itemsize}")) % 2 == 0
        return Fraction(float(low)), Fraction(float(high)), even, greatest
    numbers = positive(name)
    index = bisect_right(numbers, value) - 1
    greatest = numbers[-1]
    if index == len(numbers) - 1:
        return greatest, greatest + (greatest - numbers[-2]), index % 2 == 0, greatest
    return numbers[index], numbers[index + 1], index % 2 == 0, greatest


def as_float(value, name, mode, out_of_range):
    sign = -1 if value < 0 else 1
    mirrored = {"towards-positive": "towards-negative", "towards-negative": "towards-positive"}
    mode = mirrored.get(mode, mode) if sign < 0 else mode
    low, high, even, greatest = neighbours(abs(value), name)
    magnitude = abs(value)
    if magnitude > high:
        result = high
    elif magnitude in (low, high):
        result = magnitude
    else:
        result = high if between(magnitude, low, high, even, mode) else low
    if result <= greatest:
        return sign * result
    if out_of_range != "clamp":
        return None
    with np.errstate(all="ignore"):
        has_infinity = bool(np.isinf(np.array(inf).astype(dtype_of(name)).astype("f8")))
    return sign * (inf if has_infinity else greatest)


def as_integer(value, name, mode, out_of_range):
    bits = int(name.strip("uint"))
    least, greatest = (0, (1 << bits) - 1)
    if name.startswith("int"):
        least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    away = floor(abs(value) + Fraction(1, 2)) * (1 if value > 0 else -1)
    whole = {
        "nearest-even": round(value),
        "towards-zero": trunc(value),
        "towards-positive": ceil(value),
        "towards-negative": floor(value),
        "nearest-away": away,
    }[mode]
    if least <= whole <= greatest or out_of_range is None:
        return whole if least <= whole <= greatest else None
    if out_of_range == "clamp":
        return max(least, min(greatest, whole))
    return (whole - least) % (1 << bits) + least


def numbers_of(name):
    """Values of a data type, as far as possible where something happens."""
    dtype = dtype_of(name)
    if "int" in name:
        bits = int(name.strip("uint"))
        low = 0 if name.startswith("u") else -(1 << (bits - 1))
        return st.integers(low, low + (1 << bits) - 1)
    if name in SMALL_FLOATS or name in ("bfloat16", "float16"):
        numbers = positive(name)
        last = len(numbers) - 1
        return st.integers(-last, last).map(lambda i: float(numbers[abs(i)]) * (-1 if i < 0 else 1))
    width = 8 * dtype.itemsize
    exact = st.integers(-(1 << 66), 1 << 66).map(lambda n: float(dtype.type(n)))
    halves = st.integers(-1000, 1000).map(lambda n: n / 4)
    return st.floats(width=width, allow_nan=False, allow_infinity=False) | exact | halves


@st.composite
def casts(draw, targets):
    source = draw(st.sampled_from(INTEGERS + FLOATS))
    target = draw(st.sampled_from(targets))
    values = draw(st.lists(numbers_of(source), min_size=1, max_size=4))
    if "float" in target and draw(st.booleans()):  # numbers just beside two of the target's
        largest = np.finfo("f8").max  # beside which lies infinity
        values = [
            float(np.nextafter(v, inf)) if source == "float64" and v < largest else v
            for v in values
        ]
    return source, target, values, draw(st.sampled_from(MODES))


def checked_cast(source, target, values, mode, out_of_range, expected):
    before, after = data_type_from_v3(source), data_type_from_v3(target)
    for value in values:  # one by one, so that an error is that of one value
        array = np.array([value], "f8" if "float" in source else None).astype(before.dtype)
        exact = Fraction(float(array[0])) if "float" in source else Fraction(int(array[0]))
        want = expected(exact, target, mode, out_of_range)
        if want is None:
            with pytest.raises(ValueError, match="outside the range"):
                convert(array, before, after, mode, out_of_range)
            continue
        got = convert(array, before, after, mode, out_of_range)
        assert got.dtype == after.dtype
        if "float" in target:
            assert float(got[0]) == want, (value, exact)
        else:
            assert int(got[0]) == want, (value, exact)


@pytest.mark.conformance("C120")
@given(casts(INTEGERS), st.sampled_from([None, "clamp", "wrap"]))
def test_numbers_to_integers(case, out_of_range):
    source, target, values, mode = case
    checked_cast(source, target, values, mode, out_of_range, as_integer)


@pytest.mark.conformance("C120")
@given(casts(FLOATS), st.sampled_from([None, "clamp"]))
def test_numbers_to_floats(case, out_of_range):
    source, target, values, mode = case
    checked_cast(source, target, values, mode, out_of_range, as_float)


@pytest.mark.conformance("C120")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3", "float32"])
def test_numbers_beside_the_middle_of_two(target, mode):
    """Where a cast by way of float32 would round twice."""
    dtype = dtype_of(target)
    low = np.array([1.0, 1.5, 2.0, 0.001]).astype(dtype)
    high = (low.view(f"u{dtype.itemsize}") + 1).view(dtype)
    middle = (low.astype("f8") + high.astype("f8")) / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, inf), -middle])
    checked_cast("float64", target, values.tolist(), mode, None, as_float)
    long = [(1 << 62) + (1 << 30), (1 << 62) + (1 << 38) + 1, -(1 << 62) - (1 << 53) - 1]
    out_of_range = "clamp" if "16" in target or "8" in target else None
    checked_cast("int64", target, long, mode, out_of_range, as_float)


# --- the codec ------------------------------------------------------------------------------------


def cast_in(values, dtype, fill=0, **configuration):
    """An array in memory with the values written through the codec, and its one object."""
    store = {}
    values = np.asarray(values, dtype)
    codecs = [codec("cast_value", **configuration), LITTLE]
    array = zd.create_array(store, shape=values.shape, dtype=dtype, codecs=codecs, fill_value=fill)
    array[...] = values
    (raw,) = (bytes(raw) for key, raw in store.items() if key != "zarr.json")
    return raw, zd.open_array(store)


@pytest.mark.conformance("C120")
def test_examples_of_the_document():
    for value, out_of_range, want in (
        (128.0, "clamp", 127),
        (128.0, "wrap", -128),
        (32768.0, "wrap", 0),
    ):
        raw, _ = cast_in([value, 1], "f8", data_type="int8", out_of_range=out_of_range)
        assert np.frombuffer(raw, "i1").tolist() == [want, 1]
    raw, _ = cast_in([32768, 32769, -32769], "i4", data_type="int16", out_of_range="wrap")
    assert np.frombuffer(raw, "<i2").tolist() == [-32768, -32767, 32767]
    with pytest.raises(DataTypeError, match=r"128\.0 is outside the range of int8"):
        cast_in([128.0], "f8", data_type="int8")


@pytest.mark.conformance("C120")
def test_scalars_are_mapped_first():
    """The document's model of NumPy's casts, and mapped scalars that could be cast as well."""
    numpy_like = {
        "data_type": "uint8",
        "rounding": "towards-zero",
        "out_of_range": "wrap",
        "scalar_map": {"encode": [["NaN", 0], ["+Infinity", 0], ["-Infinity", 0]]},
    }
    raw, array = cast_in([nan, inf, -inf, 257.9, -1, 3.7], "f8", **numpy_like)
    assert list(raw) == [0, 0, 0, 1, 255, 3]
    assert array[...].tolist() == [0, 0, 0, 1, 255, 3]
    swapped = {
        "data_type": "int16",
        "scalar_map": {"encode": [[5, -1], [5, 7], [6, 5]], "decode": [[-1, 5], [5, 6]]},
    }
    raw, array = cast_in([5, 6, 4], "i4", **swapped)
    assert np.frombuffer(raw, "<i2").tolist() == [-1, 5, 4]  # the first of equal keys counts
    assert array[...].tolist() == [5, 6, 4]


@pytest.mark.conformance("C120")
def test_nan_becomes_a_number_and_back():
    """The last example of the document of ``scale_offset``."""
    codecs = [
        codec("scale_offset", offset=-10, scale=0.1),
        codec(
            "cast_value",
            data_type="uint8",
            rounding="nearest-even",
            scalar_map={"encode": [["NaN", 0]], "decode": [[0, "NaN"]]},
        ),
        "bytes",
    ]
    store = {}
    array = zd.create_array(
        store, shape=(2, 4), chunks=(1, 4), dtype="f8", codecs=codecs, fill_value=nan
    )
    array[0] = [0, 100, 2540, nan]
    assert list(store["c/0/0"]) == [1, 11, 255, 0]
    np.testing.assert_allclose(array[0], [0, 100, 2540, nan], atol=1e-9)
    assert np.isnan(array[1]).all()


@pytest.mark.conformance("C120")
def test_values_that_are_no_numbers_of_the_target():
    for value in (nan, inf, -inf):
        for target in ("int8", "float6_e2m3fn", *(["float8_e4m3fnuz"] if value == inf else [])):
            with pytest.raises(DataTypeError, match=f"is no {target}"):
                cast_in([value], "f4", data_type=target, out_of_range="clamp")
    raw, array = cast_in([nan, inf, -inf, -0.0], "f8", data_type="float16")
    assert raw.hex() == "007e007c00fc0080"
    np.testing.assert_array_equal(array[...], [nan, inf, -inf, 0.0])
    assert np.signbit(array[3])


@pytest.mark.conformance("C120")
@pytest.mark.parametrize(
    ("dtype", "fill", "configuration", "words"),
    [
        ("float64", 0.1, {"data_type": "float32"}, "it would become 0.1"),
        ("float64", "NaN", {"data_type": "int8"}, "nan is no int8"),
        ("int16", 300, {"data_type": "uint8"}, "300 is outside"),
        ("int16", 300, {"data_type": "uint8", "out_of_range": "clamp"}, "it would become 255"),
        ("int16", -1, {"data_type": "uint8", "out_of_range": "wrap"}, "it would become 255"),
        (
            "float64",
            "NaN",
            {"data_type": "uint8", "scalar_map": {"encode": [["NaN", 0]]}},
            "it would become 0.0",
        ),
    ],
)
def test_the_fill_value_must_come_back(dtype, fill, configuration, words):
    wanted = document((4,), dtype, [codec("cast_value", **configuration), LITTLE], fill=fill)
    refused(wanted, words, "the fill value comes back")


@pytest.mark.conformance("C120")
@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({}, "data_type: absent"),
        ({"data_type": "int8", "must": 1}, "configuration.must: got 1, expected no such member"),
        ({"data_type": "int8", "rounding": "up"}, "rounding: got 'up'"),
        ({"data_type": "int8", "out_of_range": "error"}, "'clamp' or 'wrap'"),
        ({"data_type": "float32", "out_of_range": "wrap"}, "floats do not wrap"),
        ({"data_type": "complex64"}, "a type of integers or floats"),
        ({"data_type": "bool"}, "a type of integers or floats"),
        ({"data_type": "int7"}, "a known data type"),
        ({"data_type": "int8", "scalar_map": {"both": []}}, "an object of 'encode' and 'decode'"),
        ({"data_type": "int8", "scalar_map": {"encode": [[1]]}}, "lists of pairs"),
        ({"data_type": "int8", "scalar_map": {"encode": {"1": 2}}}, "lists of pairs"),
        ({"data_type": "int8", "scalar_map": {"encode": [[0.5, 1]]}}, "encode[0][0]: got 0.5"),
        ({"data_type": "int8", "scalar_map": {"encode": [[1, 200]]}}, "encode[0][1]: got 200"),
        ({"data_type": "int8", "scalar_map": {"decode": [[1, "NaN"]]}}, "decode[0][1]: got 'NaN'"),
    ],
)
def test_configurations_of_cast_value_that_are_refused(configuration, words):
    wanted = document(
        (4,), "int16", [{"name": "cast_value", "configuration": configuration}, LITTLE]
    )
    refused(wanted, words)


def test_other_elements_are_not_cast():
    for name, fill in (("bool", False), ("complex64", [0, 0])):
        wanted = document((4,), name, [codec("cast_value", data_type="int8"), LITTLE], fill=fill)
        refused(wanted, "integers or floats to cast")


def test_stored_values_that_cannot_be_decoded():
    wanted = document((2,), "uint8", [codec("cast_value", data_type="int16"), LITTLE])
    array, _ = opened(wanted, {"c/0": "0100ffff"})
    with pytest.raises(CorruptObjectError, match="-1 is outside the range of uint8"):
        array[...]


@pytest.mark.conformance("C120")
def test_the_document_of_cast_value_is_kept():
    """zarr-python takes it as well (what it cannot do here is to cast)."""
    configuration = {
        "data_type": "uint8",
        "rounding": "towards-zero",
        "out_of_range": "clamp",
        "scalar_map": {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]},
    }
    wanted = document((4,), "float64", [codec("cast_value", **configuration), "bytes"], fill="NaN")
    array, store = opened(wanted)
    array.update_attributes({"title": "run 7"})
    assert json.loads(store["zarr.json"])["codecs"][0] == codec("cast_value", **configuration)
    assert zarr.codecs.CastValue.from_dict(array.codecs[0].document()).to_dict()["name"]


def test_casts_of_large_chunks_are_done_in_blocks():
    values = np.random.default_rng(0).normal(size=(300, 301)) * 1000
    raw, array = cast_in(np.asfortranarray(values), "f8", data_type="int16")
    assert raw == np.rint(values).astype("<i2").tobytes()
    np.testing.assert_array_equal(array[5:200:7, ::-3], np.rint(values)[5:200:7, ::-3])


# --- scale_offset ---------------------------------------------------------------------------------


def scaled_in(values, dtype, fill=0, **configuration):
    store = {}
    values = np.asarray(values, dtype)
    codecs = [codec("scale_offset", **configuration), LITTLE]
    array = zd.create_array(store, shape=values.shape, dtype=dtype, codecs=codecs, fill_value=fill)
    array[...] = values
    return bytes(store["c/0"]), zd.open_array(store)


@pytest.mark.conformance("C121")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scaled_floats_are_those_of_numpy_and_zarr_python(dtype, tmp_path):
    values = np.random.default_rng(0).normal(size=50).astype(dtype) * 100
    offset, scale = 5, 0.1
    raw, array = scaled_in(values, dtype, offset=offset, scale=scale)
    kind = np.dtype(dtype).type
    encoded = (values - kind(offset)) * kind(scale)
    assert raw == encoded.astype(encoded.dtype.newbyteorder("<")).tobytes()
    np.testing.assert_array_equal(array[...], encoded / kind(scale) + kind(offset))
    theirs = zarr.create_array(
        tmp_path,
        shape=50,
        dtype=dtype,
        filters=[zarr.codecs.ScaleOffset(offset=offset, scale=scale)],
        compressors=None,
        fill_value=0,
    )
    theirs[...] = values
    assert (tmp_path / "c/0").read_bytes() == raw
    ours = zd.open_array(tmp_path, mode="r+")
    np.testing.assert_array_equal(ours[...], theirs[...])
    ours[...] = values
    assert (tmp_path / "c/0").read_bytes() == raw


@pytest.mark.conformance("C121")
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_scaled_integers(dtype, tmp_path):
    values = np.arange(10, 50, dtype=dtype)
    raw, array = scaled_in(values, dtype, fill=10, offset=10, scale=3)
    want = ((values - 10) * 3).astype(dtype)
    assert raw == want.astype(want.dtype.newbyteorder("<")).tobytes()
    np.testing.assert_array_equal(array[...], values)
    limits = np.iinfo(dtype)
    raw, array = scaled_in(
        [limits.max, limits.max - 1], dtype, fill=limits.max, offset=limits.max - 1
    )
    assert np.frombuffer(raw, array.dtype).tolist() == [1, 0]
    assert array[...].tolist() == [limits.max, limits.max - 1]


@pytest.mark.conformance("C121")
@pytest.mark.parametrize(
    ("dtype", "value", "configuration", "words"),
    [
        ("u1", 5, {"offset": 10}, "-5 is outside the range of uint8"),
        ("i1", 100, {"offset": -100}, "200 is outside the range of int8"),
        ("i1", 50, {"scale": 3}, "150 is outside the range of int8"),
        ("i8", 1 << 62, {"scale": 2}, "9223372036854775808 is outside"),
        ("u8", 1 << 63, {"scale": 2}, "18446744073709551616 is outside"),
        ("i8", -(1 << 63), {"scale": -1}, "9223372036854775808 is outside"),
        ("f4", 3e38, {"scale": 10}, "no finite float32"),
        ("f2", 6e4, {"offset": -6e4}, "no finite float16"),
    ],
)
def test_scaled_values_that_do_not_fit(dtype, value, configuration, words):
    with pytest.raises(DataTypeError, match=words):
        scaled_in([value], dtype, fill=configuration.get("offset", 0), **configuration)


@pytest.mark.conformance("C121")
def test_stored_values_that_cannot_be_scaled_back():
    for configuration, raw, words in (
        ({"scale": 3}, "03000400", "4 is not a multiple of 3"),
        ({"offset": 32767}, "01000200", "32768 is outside the range of int16"),
        ({"scale": -1}, "00800000", "32768 is outside the range of int16"),
    ):
        wanted = document((2,), "int16", [codec("scale_offset", **configuration), LITTLE], fill=3)
        array, _ = opened(wanted, {"c/0": raw})
        with pytest.raises(CorruptObjectError, match=words):
            array[...]


@pytest.mark.conformance("C121")
def test_the_fill_value_is_scaled():
    """An inner chunk that is absent holds the scaled fill value, and is left out for it."""
    shard = codec("sharding_indexed", chunk_shape=[2], codecs=[LITTLE])
    store = {}
    array = zd.create_array(
        store,
        shape=6,
        chunks=6,
        dtype="i2",
        codecs=[codec("scale_offset", offset=7, scale=2), shard],
        fill_value=9,
    )
    array[:2] = [8, 9]
    raw = bytes(store["c/0"])
    assert raw[:4].hex() == "02000400"
    assert len(raw) == 4 + 3 * 16 + 4
    assert array[...].tolist() == [8, 9, 9, 9, 9, 9]
    wanted = document((4,), "uint8", [codec("scale_offset", offset=1), "bytes"])
    refused(wanted, "-1 is outside the range of uint8", "takes the fill value")


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"scale": 0}, "an int16 other than 0"),
        ({"scale": 0.5}, "scale: got 0.5"),
        ({"offset": 40000}, "offset: got 40000"),
        ({"offset": "NaN"}, "offset: got 'NaN'"),
        ({"offset": None}, "offset: got None"),
        ({"offset": 1, "dtype": "<i2"}, "no such member"),
    ],
)
def test_configurations_of_scale_offset_that_are_refused(configuration, words):
    codecs = [{"name": "scale_offset", "configuration": configuration}, LITTLE]
    refused(document((4,), "int16", codecs), words.replace("an int16", "a int16"))


def test_scale_offset_of_nothing_changes_nothing():
    for codecs in (["scale_offset", LITTLE], [codec("scale_offset"), LITTLE]):
        store = {}
        array = zd.create_array(store, shape=3, dtype="i2", codecs=codecs)
        array[...] = [1, -2, 3]
        assert bytes(store["c/0"]).hex() == "0100feff0300"
        assert json.loads(store["zarr.json"])["codecs"][0] == {"name": "scale_offset"}


@pytest.mark.conformance("C121")
@pytest.mark.parametrize("name", [*SMALL_FLOATS, "bfloat16", "int4", "uint2"])
def test_scaled_numbers_of_few_bits(name):
    data_type = data_type_from_v3(name)
    store = {}
    configuration = {"offset": 1} if "int" in name else {"offset": 0.5, "scale": 2}
    array = zd.create_array(
        store,
        shape=3,
        dtype=name,
        codecs=[codec("scale_offset", **configuration), LITTLE],
        fill_value=1,
    )
    values = np.array([1, 1.5, 2] if "float" in name else [1, 1, 2]).astype(data_type.dtype)
    array[...] = values
    stored = np.frombuffer(bytes(store["c/0"]), data_type.dtype).astype("f8")
    assert stored.tolist() == ([1, 2, 3] if "float" in name else [0, 0, 1])
    assert array[...].tolist() == values.tolist()
    beyond = {"int4": -8, "uint2": 0}.get(name)
    beyond = float(ml_dtypes.finfo(array.dtype).max) if beyond is None else beyond
    with pytest.raises(DataTypeError, match=r"outside the range|no finite"):
        array[...] = np.array(beyond).astype(array.dtype)


def test_cast_values_are_equal_when_their_documents_are():
    one, two = (CastValue(data_type_from_v3("int8"), scalar_map=None) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one.configuration() == {"data_type": "int8"}
