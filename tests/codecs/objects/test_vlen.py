"""Serializers for elements without fixed size; numcodecs is the oracle of their bytes."""

import json
import warnings

import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs import JSON, MsgPack, VLenUTF8
from numcodecs import VLenArray as NcArray
from numcodecs import VLenBytes as NcBytes

import zarr_dask as zd
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions
from zarr_dask.codecs.objects.object_json import Json2, Msgpack2, Pickle
from zarr_dask.codecs.objects.vlen import VlenArray, VlenBytes, VlenUtf8
from zarr_dask.codecs.registry_numcodecs import (
    numcodecs_from_codec,
    object_serializer_from_numcodecs,
)
from zarr_dask.errors import CorruptObjectError, DataTypeError, MetadataError
from zarr_dask.stores.backends.memory import MemoryStore


def objects(*items, shape=None):
    array = np.empty(len(items), object)
    for position, item in enumerate(items):
        array[position] = item
    return array if shape is None else array.reshape(shape)


def bound(codec, shape, most=1 << 20):
    return codec.bind(ChunkSpec(shape, codec.data_type, None, most))


def encode(codec, array):
    return b"".join(map(bytes, bound(codec, array.shape).encode(array)))


def decode(codec, encoded, shape, region=None, most=1 << 20):
    result = shape if region is None else np.empty(shape, object)[region].shape
    out = np.empty(result, object)
    bound(codec, shape, most).decode(encoded, region, out, DecodeOptions())
    return out


def assert_equal(found, expected):
    assert found.shape == expected.shape
    for a, b in zip(found.ravel(), expected.ravel(), strict=True):
        assert type(a) is type(b)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


TEXTS = objects("a", "", "é", "日本", "\U0001f600", "x" * 300)
BYTES = objects(b"a", b"", b"\0\xff", b"x" * 70000)
ARRAYS = objects(*(np.arange(n, dtype="i4") for n in (0, 1, 5)))
NESTED = objects("a", 1, 2.5, None, True, [1, [2]], {"k": ["v"]}, -(2**60), "é")

CASES = [
    (VlenUtf8(), VLenUTF8(), TEXTS),
    (VlenUtf8(), VLenUTF8(), objects(*"abcdef", shape=(2, 3))),
    (VlenUtf8(), VLenUTF8(), objects()),
    (VlenUtf8(), VLenUTF8(), objects("one", shape=())),
    (VlenBytes(), NcBytes(), BYTES),
    (VlenBytes(), NcBytes(), objects(*[b"ab", b"c"] * 4, shape=(2, 2, 2))),
    (VlenArray("<i4"), NcArray("<i4"), ARRAYS),
    (Json2(), JSON(), NESTED),
    (Json2(), JSON(), objects(*"abcdef", shape=(3, 2))),
    (Json2(), JSON(), objects("one", shape=())),
    (Json2(), JSON(), objects()),
    (Json2(ensure_ascii=False, indent=1, separators=(", ", ": ")),
     JSON(ensure_ascii=False, indent=1), NESTED),
    (Json2(encoding="utf-16"), JSON(encoding="utf-16"), NESTED),
    (Msgpack2(), MsgPack(), objects(*NESTED, b"raw")),
    (Msgpack2(), MsgPack(), objects(*"abcdef", shape=(3, 2))),
    (Msgpack2(), MsgPack(), objects()),
    (Msgpack2(use_single_float=True), MsgPack(use_single_float=True), objects(0.5, 1.25)),
]  # fmt: skip


@pytest.mark.conformance("C042")
@pytest.mark.parametrize(("codec", "oracle", "array"), CASES)
def test_bytes_are_those_of_numcodecs(codec, oracle, array):
    theirs = bytes(oracle.encode(array))
    assert encode(codec, array) == theirs
    assert_equal(decode(codec, theirs, array.shape), array)
    config = json.loads(json.dumps(oracle.get_config()))
    assert numcodecs_from_codec(codec) == config
    assert object_serializer_from_numcodecs(config, "x", allow_pickle=False) == codec


@pytest.mark.conformance("C042")
@pytest.mark.parametrize("codec", [VlenUtf8(), VlenBytes(), Json2(), Msgpack2(), Pickle()])
def test_regions_and_column_major_arrays(codec):
    items = [str(n) if codec.element != "bytes" else str(n).encode() for n in range(12)]
    array = objects(*items, shape=(3, 4))
    encoded = encode(codec, array)
    assert encode(codec, np.asfortranarray(array)) == encoded
    region = (slice(1, 3, 1), slice(0, 4, 2))
    assert_equal(decode(codec, encoded, (3, 4), region), array[region])


@pytest.mark.conformance("C113", "C042")
@pytest.mark.parametrize(
    ("codec", "items", "golden"),
    [
        (VlenUtf8(), ("a", "bé"), "02000000 01000000 61 03000000 62c3a9"),
        (VlenUtf8(), ("a", "", "é"), "03000000 01000000 61 00000000 02000000 c3a9"),
        (VlenBytes(), (b"a", b"", b"\xc3\xa9"), "03000000 01000000 61 00000000 02000000 c3a9"),
    ],
)
def test_golden_bytes(codec, items, golden):
    assert encode(codec, objects(*items)) == bytes.fromhex(golden)
    assert_equal(decode(codec, bytes.fromhex(golden), (len(items),)), objects(*items))


def test_arrays_within_arrays_have_native_order_in_memory():
    codec = VlenArray(">u2")
    encoded = encode(codec, objects([1, 2], np.array([3], "u1"), None, 0, []))
    expected = objects(*(np.array(item, "u2") for item in ([1, 2], [3], [], [], [])))
    assert encoded.hex() == "050000000400000000010002020000000003" + "00000000" * 3
    found = decode(codec, encoded, (5,))
    assert_equal(found, expected)
    assert all(item.dtype == np.dtype("u2") and item.dtype.isnative for item in found)


@pytest.mark.conformance("C042")
def test_pickles_are_read_by_those_who_say_so():
    config = numcodecs.Pickle(protocol=4).get_config()
    refused = object_serializer_from_numcodecs(config, "filters[0]", allow_pickle=False)
    assert "allow_pickle=True" in refused[0].expected
    codec = object_serializer_from_numcodecs(config, "filters[0]", allow_pickle=True)
    assert codec == Pickle(4)
    array = objects({1, 2}, "a", 2j)
    theirs = numcodecs.Pickle(protocol=4).encode(array)
    assert encode(codec, array) == theirs
    assert_equal(decode(codec, theirs, (3,)), array)
    for wrong in (theirs[:-3], b"", numcodecs.Pickle().encode(array[:2]), b"N."):
        with pytest.raises(CorruptObjectError):
            decode(codec, wrong, (3,))


@pytest.mark.parametrize(
    ("codec", "item"),
    [
        (VlenUtf8(), None),
        (VlenUtf8(), 0),
        (VlenUtf8(), b"a"),
        (VlenUtf8(), "\ud800"),
        (VlenBytes(), None),
        (VlenBytes(), "a"),
        (VlenArray("<i4"), "a"),
        (VlenArray("<i4"), 1),
        (VlenArray("<i4"), [1.5]),
        (VlenArray("<i4"), [1 << 40]),
        (VlenArray("<i4"), [[1]]),
        (Json2(), b"a"),
        (Json2(allow_nan=False), np.nan),
        (Msgpack2(), object()),
        (Msgpack2(), 1 << 70),
        (Pickle(), lambda: 0),
    ],
)
def test_elements_that_cannot_be_stored(codec, item):
    with pytest.raises(DataTypeError):
        encode(codec, objects(item))


def test_chunks_that_readers_would_refuse_are_not_written():
    with pytest.raises(DataTypeError, match="make the chunks smaller"):
        bound(VlenUtf8(), (1,), most=100).encode(objects("x" * 100))


@pytest.mark.parametrize(
    "config",
    [
        {"id": "vlen-array", "dtype": "|O"},
        {"id": "vlen-array", "dtype": "<U3"},
        {"id": "vlen-array", "dtype": [["a", "<i4"]]},
        {"id": "vlen-array"},
        {"id": "json2", "encoding": "zip"},
        {"id": "json2", "indent": 10**9},
        {"id": "json2", "separators": 3},
        {"id": "json2", "strict": 1},
        {"id": "msgpack2", "raw": "yes"},
        {"id": "vlen-utf8", "level": 1},
        {"id": "marshal"},
        {"id": ["vlen-utf8"]},
        {"id": "json2", "encoding": ["utf-8"]},
        "vlen-utf8",
        None,
    ],
    ids=str,
)
def test_configurations_that_are_refused(config):
    problems = object_serializer_from_numcodecs(config, "filters[0]", allow_pickle=True)
    assert problems[0].field.startswith("filters[0]")


@pytest.mark.conformance("C042")
@pytest.mark.parametrize("codec", [VlenUtf8(), VlenBytes(), VlenArray("|u1")])
@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "020000",
        "03000000 01000000 61 01000000 62",
        "ffffffff 01000000 61 01000000 62",
        "02000000",
        "02000000 01000000 61",
        "02000000 ffffffff 61 01000000 62",
        "02000000 01000000 61 02000000 62",
        "02000000 01000000 61 01000000 62 00",
    ],
)
def test_framing_that_lies(codec, damaged):
    with pytest.raises(CorruptObjectError):
        decode(codec, bytes.fromhex(damaged), (2,))


def test_texts_that_are_not_utf8():
    for wrong in (b"\xff", b"\xc3", b"\xed\xa0\x80"):
        with pytest.raises(CorruptObjectError, match="vlen-utf8 cannot decode"):
            decode(VlenUtf8(), b"\1\0\0\0" + len(wrong).to_bytes(4, "little") + wrong, (1,))


def test_numbers_cut_in_half():
    with pytest.raises(CorruptObjectError, match="no whole number of '<i4'"):
        decode(VlenArray("<i4"), b"\1\0\0\0\3\0\0\0abc", (1,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '["|O"]',
        '["a","|O"]',
        '["a","|O",[2]]',
        '["a",1,[1]]',
        '["a","|O",[-1]]',
        '["a","|O",[true]]',
        '["a","|O","1"]',
        '["a","b","|O",[1]]',
        '["|O",[1]]',
        '["a","|O",[1,1]]',
        '[["a","b"],"|O",[1,1]]',
        "[" * 100000,
        "1" * 5000,
        '["a","|O",[1]] ,',
    ],
    ids=lambda text: text[:30],
)
def test_json_that_is_no_chunk(text):
    with pytest.raises(CorruptObjectError):
        decode(Json2(), text.encode(), (1,))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc0",
        b"\xc1",
        b"\x93\xa1a\xa2|O\x91\x02",
        b"\x93\xa1a\xa2|O\x91\x01\x00",
        b"\xdd\xff\xff\xff\xff\x01",
        b"\xdd\x00\xff\xff\xff" * 1000,
        b"\xdf\xff\xff\xff\xff\x01",
        b"\xdb\xff\xff\xff\xff\x01",
        b"\x91" * 100000,
        b"\x93\xa1\xff\xa2|O\x91\x01",
        b"\x93\x81\x90\x01\xa2|O\x91\x01",
    ],
    ids=lambda encoded: encoded[:8].hex(),
)
def test_msgpack_that_is_no_chunk(encoded):
    with pytest.raises(CorruptObjectError):
        decode(Msgpack2(), encoded, (1,))


@pytest.mark.parametrize(
    ("codec", "encoded"),
    [
        (Json2(), b"[" + b"[]," * 100_000 + b'"|O",[1]]'),
        (Msgpack2(), b"\xdd\0\1\x86\xa0" + b"\x90" * 100_000),
        (VlenUtf8(), b"\1\0\0\0\xff\xff\0\0" + b"\xf0\x9f\x98\x80" + b"a" * 65531),
        (VlenUtf8(), bytes(70_000)),
    ],
)
def test_elements_that_would_swell_in_memory(codec, encoded):
    with pytest.raises(CorruptObjectError, match="variable_bytes"):
        decode(codec, encoded, (1,), most=1 << 16)


def test_large_texts_of_one_byte_characters_are_read():
    array = objects("x" * 200, "y" * 40_000)
    assert_equal(decode(VlenUtf8(), encode(VlenUtf8(), array), (2,), most=1 << 16), array)


# --- arrays ---

STRINGS = objects("a", "", "é", "日本", "\U0001f600", "x" * 300)
OCTETS = objects(b"a", b"", b"\xff\0", b"x" * 300, b"b", b"c")


@pytest.mark.conformance("C113")
@pytest.mark.parametrize(("dtype", "values"), [("string", STRINGS), ("bytes", OCTETS)])
def test_stored_chunks_are_the_golden_bytes(dtype, values):
    store = MemoryStore()
    codec = {"string": "vlen-utf8", "bytes": "vlen-bytes"}[dtype]
    array = zd.create_array(store, "a", shape=2, chunks=2, dtype=dtype, codecs=[codec])
    array[:] = objects("a", "bé") if dtype == "string" else objects(b"a", b"b\xc3\xa9")
    assert bytes(store.get("a/c/0")).hex() == "0200000001000000610300000062c3a9"
    document = json.loads(store.get("a/zarr.json"))
    assert document["codecs"] == [{"name": codec}]
    assert document["data_type"] == dtype
    for alias in (dtype, {"name": dtype}, *(["variable_length_bytes"] if dtype == "bytes" else [])):
        fills = ["", "é"] if dtype == "string" else ["", "w6k=", [195, 169], []]
        for fill in fills:
            for spelled in (codec, {"name": codec}, {"name": codec, "configuration": {}}):
                changed = {"data_type": alias, "fill_value": fill, "codecs": [spelled]}
                store.set("a/zarr.json", [json.dumps(document | changed).encode()])
                read = zd.open(store, "a")
                assert read[1] == ("bé" if dtype == "string" else b"b\xc3\xa9")
                nothing = zd.open({"zarr.json": bytes(store.get("a/zarr.json"))})
                expected = "é" if dtype == "string" else b"\xc3\xa9"
                assert nothing[0] == (expected if fill else expected[:0])


@pytest.mark.parametrize("shards", [None, 4])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(("dtype", "values"), [("string", STRINGS), ("bytes", OCTETS)])
def test_zarr_python_and_we_share_texts(tmp_path, dtype, values, shards, compressed):
    """As far as it goes: its arrays of byte strings are in no registry, which it says."""
    codec = {"string": "vlen-utf8", "bytes": "vlen-bytes"}[dtype]
    codecs = [codec, *([{"name": "zstd", "configuration": {"level": 1}}] if compressed else [])]
    ours = zd.create_array(
        tmp_path / "ours", shape=7, chunks=2, shards=shards, dtype=dtype, codecs=codecs
    )
    ours[:6] = values
    expected = [*values, "" if dtype == "string" else b""]
    assert list(ours[:]) == expected
    assert ours[3] == values[3]
    with warnings.catch_warnings(action="ignore"):
        assert list(zarr.open_array(tmp_path / "ours", mode="r")[:]) == expected
        theirs = zarr.create_array(
            tmp_path / "theirs",
            shape=(7,),
            chunks=(2,),
            shards=shards and (shards,),
            dtype="string" if dtype == "string" else zarr.dtype.VariableLengthBytes(),
            compressors="auto" if compressed else None,
            fill_value=expected[6],
        )
        theirs[:6] = values
    assert list(zd.open(tmp_path / "theirs")[:]) == expected
    assert zd.open(tmp_path / "theirs")[5] == values[5]


@pytest.mark.parametrize(
    ("dtype", "codecs"),
    [
        ("string", [{"name": "bytes"}]),
        ("string", [{"name": "bytes", "configuration": {"endian": "little"}}]),
        ("bytes", [{"name": "bytes"}]),
        ("string", ["vlen-bytes"]),
        ("bytes", ["vlen-utf8"]),
        ("int32", ["vlen-utf8"]),
        ("uint8", ["vlen-bytes"]),
        ("string", [{"name": "vlen-utf8", "configuration": {"level": 1}}]),
    ],
)
def test_codecs_that_do_not_fit_the_data_type(dtype, codecs):
    with pytest.raises(MetadataError, match=r"codecs\[0\]"):
        zd.create_array(MemoryStore(), shape=2, chunks=2, dtype=dtype, codecs=codecs)


@pytest.mark.parametrize("value", [None, 0, b"a", np.nan, "\ud800"])
def test_nothing_is_written_of_what_is_no_text(value):
    store = MemoryStore()
    array = zd.create_array(store, shape=2, chunks=2, dtype="string")
    before = set(store.values)
    with pytest.raises(DataTypeError):
        array[:] = objects("a", value)
    assert set(store.values) == before


def test_a_million_texts_in_a_chunk():
    store = MemoryStore()
    texts = np.array([f"text {n}" for n in range(1_000_000)], object)
    array = zd.create_array(store, shape=1_000_000, chunks=1_000_000, dtype="string")
    array[:] = texts
    assert (array[:] == texts).all()
    assert array[777_777] == "text 777777"
