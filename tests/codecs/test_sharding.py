"""Order of codecs, ``transpose`` and ``sharding_indexed`` against what the specifications say."""

from __future__ import annotations

import struct

import dask
import dask.array as da
import google_crc32c
import numpy as np
import pytest
import tensorstore
import zarr

import zarr_dask as zd
from tests.support.codec_documents import LITTLE, codec, document, opened, refused
from zarr_dask.errors import MetadataError
from zarr_dask.stores import MemoryStore, Range, Recording
from zarr_dask.stores.base import ReadPolicy

CRC = {"name": "crc32c"}
ABSENT = (1 << 64) - 1


def sharding(chunk_shape, codecs=(LITTLE,), index_codecs=(LITTLE, CRC), **options):
    members = {"chunk_shape": list(chunk_shape), "codecs": list(codecs), **options}
    return codec("sharding_indexed", **members, index_codecs=list(index_codecs))


def index_of(*places):
    """An index in the default codecs; None for an inner chunk that is absent."""
    pairs = b"".join(struct.pack("<QQ", *(place or (ABSENT, ABSENT))) for place in places)
    return pairs + struct.pack("<I", google_crc32c.value(pairs))


# --- order of codecs, transpose -------------------------------------------------------------------


@pytest.mark.conformance("C098")
@pytest.mark.parametrize(
    ("codecs", "words"),
    [
        ([], "a list of 1 to"),
        ([CRC], "exactly one codec from array to bytes"),
        ([codec("transpose", order=[1, 0])], "exactly one codec from array to bytes"),
        ([LITTLE, LITTLE], "exactly one codec from array to bytes"),
        ([LITTLE, sharding([1, 1])], "exactly one codec from array to bytes"),
        ([codec("packbits"), LITTLE], "exactly one codec from array to bytes"),
        ([LITTLE, codec("transpose", order=[1, 0])], "array-to-array codecs first"),
        ([CRC, LITTLE], "array-to-array codecs first"),
        ([CRC, codec("bitround", keepbits=3), LITTLE], "array-to-array codecs first"),
    ],
)
def test_codecs_in_a_wrong_order_are_refused(codecs, words):
    refused(document((2, 3), "int16", codecs), words)
    with pytest.raises(MetadataError):
        opened(document((2, 3), "int16", [sharding([1, 3], codecs)]))
    if codecs and "exactly" in words and CRC not in codecs and len(codecs) < 2:
        return  # create_array puts in a serializer where there is none
    if codecs not in ([], [CRC]):
        with pytest.raises(MetadataError, match=words):
            zd.create_array({}, shape=(2, 3), dtype="i2", codecs=codecs)


@pytest.mark.conformance("C102")
@pytest.mark.parametrize(
    ("shape", "order", "want"),
    [
        ((2, 3), [1, 0], "000301040205"),
        ((2, 3), [0, 1], "000102030405"),
        ((2, 3, 4), [2, 0, 1], "0004080c10140105090d111502060a0e121603070b0f1317"),
        ((2, 3, 4), [2, 1, 0], "000c04100814010d05110915020e06120a16030f07130b17"),
    ],
)
def test_transposed_bytes(shape, order, want):
    values = np.arange(np.prod(shape), dtype="u1").reshape(shape)
    wanted = document(shape, "uint8", [codec("transpose", order=order), "bytes"], fill=255)
    key = "c/" + "/".join("0" * len(shape))
    array, store = opened(wanted, {key: want})
    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(array[1:, ::-2], values[1:, ::-2])
    del store[key]
    array[...] = np.asfortranarray(values)
    assert bytes(store[key]).hex() == want


@pytest.mark.conformance("C102")
@pytest.mark.parametrize(
    "order", [[0], [0, 0], [1, 2], [0, 1, 2], [-1, 0], [0.0, 1], [True, 0], "K"]
)
def test_orders_that_are_no_permutations_are_refused(order):
    fields = refused(document((2, 3), "uint8", [codec("transpose", order=order), "bytes"]))
    assert fields == ["codecs[0].configuration.order"]
    with pytest.raises(MetadataError):
        zd.create_array({}, shape=(2, 3), dtype="u1", codecs=[codec("transpose", order=order)])


def test_a_transpose_without_an_order_is_refused():
    refused(document((2, 3), "uint8", [codec("transpose"), "bytes"]), "order: absent")


# --- the bytes of shards --------------------------------------------------------------------------

BLOCKS = "01000200030004000500060007000800"
FILLED = np.array([[1, 2, 9, 9], [3, 4, 9, 9], [9, 9, 5, 6], [9, 9, 7, 8]])
_ABSENT = "ff" * 16


def pair(offset, nbytes):
    return struct.pack("<QQ", offset, nbytes).hex()


GOLDEN = {
    "end": BLOCKS + pair(0, 8) + _ABSENT * 2 + pair(8, 8) + "6729498b",
    "start": pair(68, 8) + _ABSENT * 2 + pair(76, 8) + "a45840a0" + BLOCKS,
}


@pytest.mark.conformance("C127", "C132")
@pytest.mark.parametrize("location", GOLDEN)
def test_two_of_four_chunks_in_84_bytes(location):
    raw = bytes.fromhex(GOLDEN[location])
    assert len(raw) == 84
    wanted = document((4, 4), "uint16", [sharding([2, 2], index_location=location)], fill=9)
    array, store = opened(wanted, {"c/0/0": raw})
    np.testing.assert_array_equal(array[...], FILLED)
    assert array[3, 2] == 7
    del store["c/0/0"]
    array[:2, :2] = FILLED[:2, :2]
    array[2:, 2:] = FILLED[2:, 2:]
    assert bytes(store["c/0/0"]) == raw


@pytest.mark.conformance("C127")
def test_shards_in_a_shard_in_116_bytes():
    inner = pair(0, 2) + pair(2, 2) + "04526e88"
    raw = "01020304" + inner + "05060708" + inner + pair(0, 40) + pair(40, 40) + "f2ee9aae"
    assert len(bytes.fromhex(raw)) == 116
    wanted = document((8,), "uint8", [sharding([4], [sharding([2], ["bytes"])])])
    array, store = opened(wanted, {"c/0": raw})
    assert array[...].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [int(array[i]) for i in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    del store["c/0"]
    array[...] = np.arange(1, 9)
    assert bytes(store["c/0"]).hex() == raw


@pytest.mark.conformance("C132")
def test_an_index_is_at_the_end_unless_said_otherwise():
    wanted = document((4, 4), "uint16", [sharding([2, 2])], fill=9)
    assert "index_location" not in wanted["codecs"][0]["configuration"]
    array, _ = opened(wanted, {"c/0/0": GOLDEN["end"]})
    np.testing.assert_array_equal(array[...], FILLED)
    refused(document((4, 4), "uint16", [sharding([2, 2], index_location="middle")]), "'start'")


@pytest.mark.conformance("C133")
def test_shards_of_a_transposed_chunk():
    """As tensorstore has them: inner chunks of the shape of the transposed chunk."""
    raw = "0006010702080c120d130e140309040a050b0f1510161117"
    index = b"".join(struct.pack("<QQ", 6 * n, 6) for n in range(4)).hex()
    codecs = [codec("transpose", order=[1, 0]), sharding([3, 2], ["bytes"], [LITTLE])]
    array, store = opened(document((4, 6), "uint8", codecs, fill=255), {"c/0/0": raw + index})
    values = np.arange(24).reshape(4, 6)
    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(array[1:3, 2:5], values[1:3, 2:5])
    assert array.chunks == (2, 3)
    del store["c/0/0"]
    array[...] = values
    assert bytes(store["c/0/0"]).hex() == raw + index


@pytest.mark.conformance("C133")
def test_shards_of_a_transposed_chunk_by_tensorstore(tmp_path):
    codecs = [codec("transpose", order=[1, 0]), sharding([3, 2], ["bytes"], [LITTLE])]
    metadata = document((4, 6), "uint8", codecs, fill=255)
    for name in ("node_type", "zarr_format", "attributes"):
        del metadata[name]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    theirs = tensorstore.open({**spec, "metadata": metadata, "create": True}).result()
    values = np.arange(24, dtype="u1").reshape(4, 6)
    theirs.write(values).result()
    ours = zd.open_array(tmp_path, mode="r+")
    np.testing.assert_array_equal(ours[...], values)
    ours[...] = values[::-1]
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), values[::-1])


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.conformance("C128")
@pytest.mark.parametrize(
    "inner", [[3, 2], [4, 4], [2], [2, 2, 2], [0, 2], [-2, 2], [8, 8], [], [2.0, 2], None]
)
def test_inner_chunks_that_do_not_divide_their_shard_are_refused(inner):
    wanted = sharding([1])
    wanted["configuration"]["chunk_shape"] = inner
    place = "codecs[0].configuration.chunk_shape"
    assert refused(document((4, 6), "uint8", [wanted])) == [place]
    outer = sharding([4, 6], [wanted])
    fields = refused(document((8, 6), "uint8", [outer]))
    assert fields == ["codecs[0].configuration.codecs[0].configuration.chunk_shape"]
    with pytest.raises((MetadataError, zd.errors.GridError)):
        zd.create_array({}, shape=(4, 6), chunks=(4, 6), dtype="u1", codecs=[wanted])


@pytest.mark.conformance("C129")
@pytest.mark.parametrize(
    "compressor",
    [
        codec("gzip", level=1),
        codec("zstd", level=1),
        codec("blosc", cname="lz4", clevel=5, shuffle="noshuffle"),
        codec("numcodecs.zlib", level=1),
    ],
    ids=lambda compressor: compressor["name"],
)
def test_indices_of_a_size_that_varies_are_refused(compressor):
    wanted = document((4,), "uint8", [sharding([2], ["bytes"], [LITTLE, compressor, CRC])])
    assert refused(wanted, "a fixed size") == ["codecs[0].configuration.index_codecs"]
    with pytest.raises(MetadataError, match="a fixed size"):
        zd.create_array({}, shape=4, dtype="u1", codecs=wanted["codecs"])


@pytest.mark.conformance("C129")
@pytest.mark.parametrize(
    "index_codecs",
    [
        [LITTLE],
        [codec("bytes", endian="big"), CRC],
        [codec("transpose", order=[1, 0]), LITTLE, CRC],
        [LITTLE, codec("numcodecs.shuffle", elementsize=8), codec("numcodecs.crc32")],
        ["packbits"],
    ],
    ids=["bare", "big-endian", "transposed", "numcodecs", "packbits"],
)
def test_indices_of_a_size_that_does_not_vary(index_codecs):
    wanted = document((6,), "uint8", [sharding([2], ["bytes"], index_codecs)])
    array, store = opened(wanted)
    array[:5] = [1, 2, 0, 0, 3]
    again, _ = opened(wanted, {"c/0": bytes(store["c/0"])})
    assert again[...].tolist() == [1, 2, 0, 0, 3, 0]
    assert again[4] == 3


# --- where inner chunks lie -----------------------------------------------------------------------


@pytest.mark.conformance("C130")
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("seed", range(6))
def test_inner_chunks_in_any_order_with_gaps(location, seed):
    random = np.random.default_rng(seed)
    values = random.integers(1, 200, (4, 6), "u1")
    places = [None] * 6
    body = random.bytes(seed)
    lead = 6 * 16 + 4 if location == "start" else 0
    for number in random.permutation(6).tolist():
        row, column = divmod(number, 3)
        places[number] = (lead + len(body), 4)
        body += values[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].tobytes()
        body += random.bytes(int(random.integers(0, 9)))
    index = index_of(*places)
    raw = index + body if location == "start" else body + index
    wanted = document((4, 6), "uint8", [sharding([2, 2], ["bytes"], index_location=location)])
    array, _ = opened(wanted, {"c/0/0": raw})
    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(array[1:3, 1::2], values[1:3, 1::2])
    np.testing.assert_array_equal([array[i, j] for i in range(4) for j in range(6)], values.flat)


@pytest.mark.conformance("C130")
def test_inner_chunks_may_share_bytes():
    """Nothing says that they may not overlap; what the index says counts."""
    raw = b"\1\2\3" + index_of((0, 2), (1, 2))
    array, _ = opened(document((4,), "uint8", [sharding([2], ["bytes"])]), {"c/0": raw})
    assert array[...].tolist() == [1, 2, 2, 3]


@pytest.mark.conformance("C130")
@pytest.mark.parametrize("location", ["start", "end"])
def test_the_orders_of_zarr_python_and_tensorstore(tmp_path, location):
    values = np.arange(64, dtype="i4").reshape(8, 8)
    theirs = zarr.create_array(
        tmp_path / "morton",
        shape=(8, 8),
        chunks=(8, 8),
        dtype="i4",
        serializer=zarr.codecs.ShardingCodec(chunk_shape=(2, 2), index_location=location),
        compressors=None,
    )
    theirs[...] = values
    metadata = document((8, 8), "int32", [sharding([2, 2], index_location=location)])
    for name in ("node_type", "zarr_format", "attributes"):
        del metadata[name]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "c_order")}}
    tensorstore.open({**spec, "metadata": metadata, "create": True}).result().write(values).result()
    for name in ("morton", "c_order"):
        ours = zd.open_array(tmp_path / name, mode="r+")
        np.testing.assert_array_equal(ours[...], values)
        np.testing.assert_array_equal(ours[3:5, 1:8:3], values[3:5, 1:8:3])
        ours[2:5, 3] = -1
        values_now = values.copy()
        values_now[2:5, 3] = -1
        np.testing.assert_array_equal(zarr.open_array(tmp_path / name)[...], values_now)
        reopened = {**spec, "kvstore": {"driver": "file", "path": str(tmp_path / name)}}
        np.testing.assert_array_equal(
            tensorstore.open(reopened).result().read().result(), values_now
        )


@pytest.mark.conformance("C131")
def test_empty_inner_chunks_and_shards():
    wanted = document((4, 8), "uint8", [sharding([2, 2], ["bytes"])], (4, 4), fill=9)
    array, store = opened(wanted)
    array[...] = 9
    assert list(store) == ["zarr.json"]
    array[0, 0] = 1
    array[2, 6] = 2
    assert sorted(store) == ["c/0/0", "c/0/1", "zarr.json"]
    first = b"\1\x09\x09\x09"
    assert bytes(store["c/0/0"]) == first + index_of((0, 4), None, None, None)
    assert bytes(store["c/0/1"])[4:] == index_of(None, None, None, (0, 4))
    assert array[...].sum() == 30 * 9 + 3
    array[0, 0] = 9
    assert sorted(store) == ["c/0/1", "zarr.json"]
    nothing, _ = opened(wanted, {"c/0/0": index_of(None, None, None, None)})
    assert (nothing[...] == 9).all()
    with pytest.raises(zd.errors.ChunkMissingError):
        opened(
            wanted,
            {"c/0/0": index_of(None, None, None, None)},
            read=zd.ReadOptions(missing="error"),
        )[0][0, 0]


@pytest.mark.conformance("C131")
def test_an_index_that_is_half_absent_is_corrupt():
    raw = b"\1\2" + index_of((0, 2), None)[:-20] + struct.pack("<QQ", ABSENT, 2)
    raw += struct.pack("<I", google_crc32c.value(raw[2:]))
    array, _ = opened(document((4,), "uint8", [sharding([2], ["bytes"])]), {"c/0": raw})
    assert array[0] == 1
    with pytest.raises(zd.errors.CorruptObjectError):
        array[2]


# --- how much is read -----------------------------------------------------------------------------


class Exact(MemoryStore):
    """A store that wants to be asked for no byte in vain."""

    coalescing = ReadPolicy(gap=0, largest=1 << 40)


CHANGED = {
    "nothing": ([], "int16", 2),
    "transpose": ([codec("transpose", order=[1, 0])], "int16", 2),
    "scale_offset": ([codec("scale_offset", offset=1)], "int16", 2),
    "cast_value": ([codec("cast_value", data_type="int8")], "int16", 1),
    "bitround": ([codec("bitround", keepbits=8)], "int16", 2),
    "numcodecs.astype": (
        [codec("numcodecs.astype", decode_dtype="<i2", encode_dtype="<i4")],
        "int16",
        4,
    ),
    "all": (
        [
            codec("scale_offset", offset=-1),
            codec("transpose", order=[1, 0]),
            codec("cast_value", data_type="float64"),
            codec("bitround", keepbits=20),
        ],
        "int16",
        8,
    ),
}


@pytest.mark.conformance("C134")
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("changed", CHANGED)
def test_one_inner_chunk_is_read_by_two_ranges(changed, location):
    arrays, dtype, itemsize = CHANGED[changed]
    wanted = document((8, 8), dtype, [*arrays, sharding([4, 4], index_location=location)], fill=1)
    store = Exact()
    zd.create_array(
        store, shape=(8, 8), chunks=(8, 8), dtype=dtype, codecs=wanted["codecs"], fill_value=1
    )[...] = (values := np.arange(2, 66).reshape(8, 8))
    recording = Recording(store)
    array = zd.open_array(recording)
    recording.clear()
    np.testing.assert_array_equal(array[5:7, 1:3], values[5:7, 1:3])
    index, body = [(request.key, request.range) for request in recording.requests]
    size = 4 * 16 + 4
    assert index == ("c/0/0", Range(-size, None) if location == "end" else Range(0, size))
    nbytes = 16 * itemsize
    # the inner chunk is the third of four, or the second where the chunk is transposed
    first = nbytes * (1 if arrays and codec("transpose", order=[1, 0]) in arrays else 2)
    first += size if location == "start" else 0
    assert body == ("c/0/0", Range(first, first + nbytes))


@pytest.mark.conformance("C134")
def test_an_absent_inner_chunk_is_known_by_the_index():
    recording = Recording(Exact())
    wanted = [sharding([4, 4])]
    array = zd.create_array(recording, shape=(8, 8), chunks=(8, 8), dtype="i2", codecs=wanted)
    array[0, 0] = 1
    recording.clear()
    assert array[5, 5] == 0
    assert [request.range for request in recording.requests] == [Range(-68, None)]


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.conformance("C136")
@pytest.mark.parametrize("changed", ["nothing", "all"])
def test_blocks_that_cut_shards_lose_no_neighbours(changed):
    """One task writes each shard, whatever the blocks are; what lies beside the region stays."""
    arrays, dtype, _ = CHANGED[changed]
    shard = sharding([2, 5] if arrays else [5, 2])  # of a transposed chunk, or not
    target = zd.create_array(
        {}, shape=(30, 40), chunks=(10, 8), dtype=dtype, codecs=[*arrays, shard], fill_value=1
    )
    before = np.random.default_rng(0).integers(2, 1000, (30, 40))
    target[...] = before
    region = (slice(3, 28), slice(5, 37))
    new = np.random.default_rng(1).integers(2, 1000, (25, 32)).astype(dtype)
    values = da.from_array(new, chunks=(4, 3))
    with dask.config.set(scheduler="threads", num_workers=4):
        zd.to_zarr(values, target, region=region, partial="own")
    want = before.copy()
    want[region] = new
    np.testing.assert_array_equal(target[...], want)
