"""Codecs from array to array, and ``packbits``: stored bytes, values, and what they refuse."""

from __future__ import annotations

import json

import dask.array as da
import numcodecs
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.codec_documents import LITTLE, codec, document, opened, refused
from zarr_dask.dtypes import data_type_from_v3
from zarr_dask.errors import CorruptObjectError, MetadataError


def written(values, codecs, fill=0, chunks=None):
    """The one stored object of an array with `values`, made by ``create_array`` and read back."""
    store = {}
    values = np.asarray(values)
    array = zd.create_array(
        store,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks or values.shape,
        codecs=codecs,
        fill_value=fill,
    )
    array[...] = values
    (raw,) = (bytes(raw) for key, raw in store.items() if key != "zarr.json")
    return raw, zd.open_array(store)[...]


# --- bitround -------------------------------------------------------------------------------------

FLOATS = {"f2": (10, "f2"), "f4": (23, "f4"), "f8": (52, "f8")}


@pytest.mark.conformance("C123")
@pytest.mark.parametrize("dtype", FLOATS)
def test_bitround_of_floats_is_that_of_numcodecs(dtype):
    bits = np.random.default_rng(0).integers(0, 1 << 63, 4000, "u8").view(dtype)
    values = bits[~np.isnan(bits)]
    values[:4] = [0.0, -0.0, np.inf, np.finfo(dtype).max]
    mantissa = np.finfo(dtype).nmant
    for keepbits in {1, 2, 5, mantissa - 1, mantissa}:
        raw, back = written(values, [codec("bitround", keepbits=keepbits), LITTLE])
        want = np.asarray(numcodecs.BitRound(keepbits).encode(values)).view(dtype)
        assert raw == want.tobytes()
        np.testing.assert_array_equal(back, want)


@pytest.mark.conformance("C123")
def test_bitround_of_integers_counts_from_the_most_significant_bit():
    values = [0, 1, 2, 7, 9, 10, 11, 13, 91, 106, 128, 200, 220, 255]
    raw, _ = written(np.array(values, "u1"), [codec("bitround", keepbits=3), "bytes"])
    # 9 = 0b1001 is halfway between 8 and 10 and becomes the even multiple of 2, and so on
    assert list(raw) == [0, 1, 2, 7, 8, 10, 12, 12, 96, 112, 128, 192, 224, 224]
    # of a negative integer the sign is the most significant bit, and nothing is rounded past -1
    signed, _ = written(np.array([-1, -3, -60, -128, 5], "i1"), [codec("bitround", keepbits=3)])
    assert np.frombuffer(signed, "i1").tolist() == [-32, -32, -64, -128, 5]
    wide, _ = written(np.array([(1 << 63) - 1, 1 << 53], "i8"), [codec("bitround", keepbits=1)])
    assert np.frombuffer(wide, "u8").tolist() == [1 << 63, 1 << 53]


@pytest.mark.conformance("C123")
@pytest.mark.parametrize("keepbits", [0, -1, True, "3", 2.0])
def test_bitround_keeps_at_least_one_bit(keepbits):
    wanted = document((4,), "float32", [codec("bitround", keepbits=keepbits), LITTLE])
    assert refused(wanted) == ["codecs[0].configuration.keepbits"]


def test_bitround_keeps_what_is_not_a_number():
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], "u4").view("f4")
    raw, back = written(nans, [codec("bitround", keepbits=3), LITTLE])
    assert np.isnan(back).all()
    assert raw.hex() == "0000c07f0000f07f0000f0ff0000c07f"


def test_bitround_rounds_both_parts_of_complex_numbers():
    parts = np.random.default_rng(0).random(20, "f4")
    _, back = written(parts.view("c8"), [codec("bitround", keepbits=4), LITTLE])
    want = np.asarray(numcodecs.BitRound(4).encode(parts)).view("c8")
    np.testing.assert_array_equal(back, want)


def test_bitround_of_texts_is_refused():
    wanted = document((4,), "bool", [codec("bitround", keepbits=3), "bytes"], fill=False)
    refused(wanted, "codecs[0]: got 'bool'")


@pytest.mark.conformance("C123")
def test_bitround_stored_by_zarrs_reads():
    """The bytes of the two sample arrays in the registry of extensions."""
    floats = "000000000000d03d0000a03f000040410000f0420000a0440000c07f0000807f"
    wanted = document((8,), "float32", [codec("bitround", keepbits=3), LITTLE])
    array, _ = opened(wanted, {"c/0": floats})
    want = np.array([0, 0.1015625, 1.25, 12, 120, 1280, np.nan, np.inf], "f4")
    np.testing.assert_array_equal(array[...], want)
    wanted = document((10,), "uint8", [codec("bitround", keepbits=3), LITTLE])
    array, _ = opened(wanted, {"c/0": "00010a0c6080c0c0e0e0"})
    assert array[...].tolist() == [0, 1, 10, 12, 96, 128, 192, 192, 224, 224]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        (
            "bitround_float32",
            [0, 0.1015625, 1.25, 12, 120, 1280, float("nan"), float("inf"), -float("inf")],
        ),
        ("bitround_uint8", [0, 1, 10, 12, 96, 128, 192, 192, 224, 224]),
    ],
)
def test_bitround_samples_of_the_registry(public_data, name, want):
    samples = public_data / "zarr_extensions/codecs/bitround/sample_data"
    array = zd.open_array(samples / f"{name}.zarr")
    np.testing.assert_array_equal(array[...], np.array(want, array.dtype))


# --- reshape --------------------------------------------------------------------------------------


@pytest.mark.conformance("C122")
@pytest.mark.parametrize(
    ("lengths", "encoded"),
    [
        ([[0, 1], [2], 3], (20, 4, 3)),
        ([[0, 1], [2], -1], (20, 4, 3)),
        ([[0, 1, 2], 3], (80, 3)),
        ([[0], -1, [2, 3]], (5, 4, 12)),
        ([[0], -1, [3]], (5, 16, 3)),
        ([-1, 2, 2, [3]], (20, 2, 2, 3)),
        ([[0, 1, 2, 3]], (240,)),
        ([5, [], -1], (5, 1, 48)),
        ([240], (240,)),
    ],
)
def test_reshape(lengths, encoded):
    """The order of the elements is that of C; the transpose behind it shows the shape."""
    values = np.arange(240, dtype="i2").reshape(5, 4, 4, 3)
    order = list(range(len(encoded)))[::-1]
    codecs = [codec("reshape", shape=lengths), codec("transpose", order=order), LITTLE]
    raw, back = written(values, codecs)
    assert raw == values.reshape(encoded).transpose(order).tobytes()
    np.testing.assert_array_equal(back, values)


@pytest.mark.conformance("C122")
@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([2, 2, 2], "a shape of the 240 elements"),
        ([-1, 7], "a shape of the 240 elements"),
        ([-1, -1], "-1 once at most"),
        ([0, 240], "a list of positive integers"),
        ([True, 240], "a list of positive integers"),
        ([[-1], 240], "a list of positive integers"),
        ([[1], [0], [2], [3]], "in ascending order"),
        ([[1, 0], [2, 3]], "in ascending order"),
        ([[2, 3], 1, [0, 1]], "in ascending order"),
        ([[0], [0], 12], "in ascending order"),
        ([[0, 1], [2, 4]], "dimensions from 0 to 3"),
        ([48, [0]], "1 elements before dimensions [0]"),
        ([[0, 2], [1, 3]], "in ascending order"),
        ([[0, 2], 12], "elements before dimensions [0, 2]"),
        ("240", "a list of positive integers"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(lengths, words):
    wanted = document((5, 4, 4, 3), "int16", [codec("reshape", shape=lengths), LITTLE])
    (field,) = refused(wanted, words)[:1]
    assert field.startswith("codecs[0].configuration.shape")


# --- packbits -------------------------------------------------------------------------------------

BOOLS = np.array([1, 0, 1, 1, 0, 0, 0, 0, 1], bool)


@pytest.mark.conformance("C118")
@pytest.mark.parametrize(
    ("padding", "want"),
    [
        ({}, "0d01"),
        ({"padding_encoding": "none"}, "0d01"),
        ({"padding_encoding": "first_byte"}, "070d01"),
        ({"padding_encoding": "last_byte"}, "0d0107"),
        ({"first_bit": None, "last_bit": None}, "0d01"),
    ],
)
def test_packbits_of_bools(padding, want):
    raw, back = written(BOOLS, [codec("packbits", **padding)], fill=False)
    assert raw.hex() == want
    np.testing.assert_array_equal(back, BOOLS)


def packed_by_hand(values, first, last):
    """Bit by bit, as the document of the codec says."""
    stream = [value >> bit & 1 for value in map(int, values) for bit in range(first, last + 1)]
    stream += [0] * (-len(stream) % 8)
    return bytes(
        sum(bit << i for i, bit in enumerate(stream[n : n + 8])) for n in range(0, len(stream), 8)
    )


@pytest.mark.conformance("C118")
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_packbits_of_integers(dtype):
    width = 8 * np.dtype(dtype).itemsize
    bits = np.random.default_rng(0).integers(0, 1 << 63, 50, "u8") * 3
    values = bits.astype(f"u{width // 8}").view(dtype)
    for first, last in ((0, width - 1), (0, 0), (0, 4), (2, 6), (width - 3, width - 1)):
        options = {"first_bit": first, "last_bit": last}
        raw, back = written(values, [codec("packbits", **options)])
        assert raw == packed_by_hand(values, first, last)
        left, right = width - 1 - last, width - 1 - last + first
        want = values << left >> right << first  # shifts of signed integers copy the sign
        np.testing.assert_array_equal(back, want.astype(dtype))


@pytest.mark.conformance("C118")
def test_packbits_of_whole_elements_are_their_little_endian_bytes():
    for dtype in ("<i4", "<f8", "<c8", "<u2", "<f2"):
        values = np.arange(1, 6).astype(dtype) / 1
        values = values.astype(dtype)
        raw, back = written(values, ["packbits"])
        assert raw == values.tobytes()
        np.testing.assert_array_equal(back, values)


@pytest.mark.conformance("C118")
def test_packbits_of_parts_of_complex_numbers():
    """The upper halves of real and imaginary parts, one after the other."""
    values = np.array([1 - 2j, 0.5 + 3j], "c8")
    raw, back = written(values, [codec("packbits", first_bit=16)])
    assert raw.hex() == "803f00c0003f4040"
    np.testing.assert_array_equal(back, values)


FEW_BITS = {
    "int2": (2, True),
    "int4": (4, True),
    "uint2": (2, False),
    "uint4": (4, False),
    "float4_e2m1fn": (4, False),
    "float6_e2m3fn": (6, False),
    "float6_e3m2fn": (6, False),
}


@pytest.mark.conformance("C118")
@pytest.mark.parametrize("name", FEW_BITS)
def test_packbits_of_types_of_few_bits(name):
    """Every value; stored whole, and only some of its bits."""
    width, signed = FEW_BITS[name]
    patterns = np.arange(1 << width, dtype="u1")
    dtype = data_type_from_v3(name).dtype
    values = patterns.view(dtype)
    store = {}
    for first, last in ((None, None), (0, width - 1), (0, width - 2), (1, width - 1)):
        bits = {"first_bit": first, "last_bit": last}
        array = zd.create_array(
            store,
            shape=values.shape,
            dtype=name,
            codecs=[codec("packbits", **bits)],
            overwrite=True,
        )
        array[...] = values
        low, high = first or 0, width - 1 if last is None else last
        assert bytes(store["c/0"]) == packed_by_hand(patterns, low, high)
        kept = patterns & ((1 << (high + 1)) - (1 << low))
        if signed:  # the highest bit that is stored is the sign
            kept = np.where(patterns >> high & 1, kept | (1 << width) - (1 << high), kept)
        back = array[...].view("u1") & (1 << width) - 1
        np.testing.assert_array_equal(back, kept)


@pytest.mark.conformance("C118")
def test_packbits_of_pairs_of_few_bits():
    store = {}
    array = zd.create_array(store, shape=3, dtype="complex_float4_e2m1fn", codecs=["packbits"])
    array[...] = np.array([1 - 2j, 0.5 + 6j, -1.5 + 0j])
    # 1, -2, 0.5, 6, -1.5, 0 are 2, c, 1, 7, b, 0; the first of two lies in the lower half
    assert bytes(store["c/0"]).hex() == "c2710b"
    assert array[...].view("u1").tolist() == [2, 12, 1, 7, 11, 0]


def test_packbits_of_many_elements():
    values = np.random.default_rng(0).integers(-1000, 1000, (300, 301), "i2")
    raw, back = written(values, [codec("packbits", last_bit=10), "crc32c"])
    assert len(raw) == -(-300 * 301 * 11 // 8) + 4
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first_bit": 3, "last_bit": 2}, "at least the first_bit, 3"),
        ({"last_bit": 16}, "from 0 to 15"),
        ({"first_bit": 16}, "from 0 to 15"),
        ({"first_bit": -1}, "the number of a bit"),
        ({"first_bit": True}, "the number of a bit"),
        ({"padding_encoding": "start_byte"}, "first_byte"),
        ({"endian": "little"}, "no such member"),
    ],
)
def test_packbits_that_are_not_there(options, words):
    refused(document((4,), "int16", [codec("packbits", **options)]), words)


def test_damaged_packbits():
    wanted = document((9,), "bool", [codec("packbits", padding_encoding="first_byte")], fill=False)
    for raw, words in (
        ("070d", "it has 2 bytes"),
        ("070d0100", "it has 4 bytes"),
        ("060d01", "says that 6 bits are padding, but 7 are"),
    ):
        array, _ = opened(wanted, {"c/0": raw})
        with pytest.raises(CorruptObjectError, match=words):
            array[...]


@pytest.mark.conformance("C119")
def test_packbits_and_that_of_numcodecs_are_two_codecs():
    ours, _ = written(BOOLS, [codec("packbits", padding_encoding="first_byte")], fill=False)
    theirs, back = written(BOOLS, [codec("numcodecs.packbits"), "bytes"], fill=False)
    assert (ours.hex(), theirs.hex()) == ("070d01", "07b080")
    np.testing.assert_array_equal(back, BOOLS)
    assert numcodecs.PackBits().encode(BOOLS).tobytes() == theirs
    for names in (["packbits"], ["numcodecs.packbits", "bytes"]):
        store = {}
        array = zd.create_array(store, shape=9, dtype=bool, codecs=names)
        assert json.loads(store["zarr.json"])["codecs"][0]["name"] == names[0]
        assert [made.name for made in array.codecs] == names


# --- what may be left out of create_array(codecs=...) ---------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "codecs", "want"),
    [
        ("u1", [codec("cast_value", data_type="int16")], [LITTLE]),
        ("f8", [codec("cast_value", data_type="int8")], [{"name": "bytes"}]),
        (">f8", [codec("scale_offset", offset=1)], [codec("bytes", endian="big")]),
        (">i4", [codec("numcodecs.delta", dtype="<i4", astype="<i2")], [LITTLE]),
        ("bool", ["numcodecs.packbits"], [{"name": "bytes"}]),
        ("f4", [codec("bitround", keepbits=3), codec("transpose", order=[0])], [LITTLE]),
        (
            "f8",
            [codec("cast_value", data_type="int16"), "numcodecs.shuffle"],
            [LITTLE, codec("numcodecs.shuffle", elementsize=2)],
        ),
    ],
    ids=str,
)
def test_the_serializer_is_that_of_the_encoded_elements(dtype, codecs, want):
    store = {}
    zd.create_array(store, shape=4, dtype=dtype, codecs=codecs)[...] = 1
    written = json.loads(store["zarr.json"])["codecs"]
    assert written[-len(want) :] == want
    assert (zd.open_array(store)[...] == 1).all()


def test_blosc_shuffles_the_encoded_elements():
    store = {}
    codecs = [codec("cast_value", data_type="int16"), "blosc"]
    zd.create_array(store, shape=4, dtype="f8", codecs=codecs)
    assert json.loads(store["zarr.json"])["codecs"][-1]["configuration"]["typesize"] == 2


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_codecs_of_zarr_python_are_taken_as_they_are(tmp_path):
    values = da.arange(20, chunks=5, dtype="i4")
    filters, names = [zarr.codecs.numcodecs.Delta(dtype="<i4")], ["numcodecs.delta"]
    if hasattr(zarr.codecs, "ScaleOffset"):  # not in the oldest that is tested
        filters.append(zarr.codecs.ScaleOffset(offset=1))
        names.append("scale_offset")
    compressors = [zarr.codecs.numcodecs.Zlib(level=2)]
    zd.to_zarr(values, tmp_path, filters=filters, compressors=compressors)
    found = [made.name for made in zd.open_array(tmp_path).codecs]
    assert found == [*names, "bytes", "numcodecs.zlib"]
    np.testing.assert_array_equal(zd.open_array(tmp_path)[...], np.arange(20))


# --- hostile documents ----------------------------------------------------------------------------


def test_codecs_that_would_need_too_much_are_refused():
    wide = codec("numcodecs.astype", decode_dtype="|u1", encode_dtype="<c16")
    refused(
        document((1 << 28,), "uint8", [wide, LITTLE]), "decoded bytes per chunk, not 4294967296"
    )
    inner = {"chunk_shape": [1 << 28], "codecs": [codec("cast_value", data_type="float64"), LITTLE]}
    shard = codec("sharding_indexed", **inner, index_codecs=[LITTLE])
    limits = zd.ReadOptions(limits=zd.Limits(chunk_bytes=1 << 30))
    with pytest.raises(MetadataError, match="decoded bytes per chunk, not 2147483648"):
        opened(document((1 << 28,), "uint8", [shard]), read=limits)
    refused(document((4,), "uint8", [codec("reshape", shape=[4] + [1] * 70), "bytes"]), "63 dim")
    pairs = {"encode": [[n % 100, 1] for n in range(5000)]}
    many = codec("cast_value", data_type="int8", scalar_map=pairs)
    refused(document((4,), "uint8", [many, "bytes"]), "4096 at most")


def test_maps_of_many_scalars():
    encode = [[n, (7 * n) % 256] for n in range(256)]
    decode = [[(7 * n) % 256, n] for n in range(256)]
    mapped = codec("cast_value", data_type="uint8", scalar_map={"encode": encode, "decode": decode})
    values = np.random.default_rng(0).integers(0, 256, (200, 500), "i4")
    raw, back = written(values, [mapped, "bytes"])
    assert raw == ((7 * values) % 256).astype("u1").tobytes()
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_an_object_that_stands_alone_is_a_list_of_one(format):
    array = zd.create_array({}, shape=4, dtype="i4", codecs=numcodecs.Zstd(3), format=format)
    assert [codec.name.removeprefix("numcodecs.") for codec in array.codecs] == ["bytes", "zstd"]
