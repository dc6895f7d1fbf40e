"""``n5_default`` and ``conditional``; tensorstore writes the N5."""

import json

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions, EncodedSize
from zarr_dask.codecs.compress.deflate import Gzip
from zarr_dask.codecs.compress.zstd import Zstd
from zarr_dask.codecs.conditional import Conditional
from zarr_dask.codecs.registry import chain_from_v3, codec_from_v3
from zarr_dask.dtypes import data_type_of
from zarr_dask.errors import CorruptObjectError, MetadataError
from zarr_dask.stores.backends.memory import MemoryStore

ARRAY = np.arange(6, dtype="u2").reshape(2, 3)
BLOCK = bytes.fromhex("0000 0002 00000002 00000003" + "0000 0003 0001 0004 0002 0005")
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


def reverse(ndim):
    return {"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}}


def n5(*codecs):
    return {"name": "n5_default", "configuration": {"codecs": list(codecs)}}


def bound(documents, shape=(2, 3), dtype="u2", fill=7):
    data_type = data_type_of(dtype)
    return chain_from_v3(documents).bind(ChunkSpec(shape, data_type, data_type.scalar(fill)))


def decode(chain, data, region=None):
    out = np.zeros(chain.spec.shape, chain.spec.dtype)
    out = out if region is None else out[region]
    chain.decode(data, region, out, DecodeOptions())
    return out


def block_of(*lengths):
    header = np.array([0, len(lengths)], ">u2").tobytes() + np.array(lengths, ">u4").tobytes()
    return header + np.arange(int(np.prod(lengths)), dtype=">u2").tobytes()


def test_golden_block():
    chain = bound([n5(reverse(2), BIG)])
    assert b"".join(map(bytes, chain.encode(ARRAY))) == BLOCK
    np.testing.assert_array_equal(decode(chain, BLOCK), ARRAY)
    part = (slice(1, 2, 1), slice(0, 3, 2))
    np.testing.assert_array_equal(decode(chain, BLOCK, part), ARRAY[part])


def test_blocks_that_are_shorter_or_longer_than_the_chunk():
    chain = bound([n5(reverse(2), BIG)])
    np.testing.assert_array_equal(decode(chain, block_of(1, 2)), [[0, 1, 7], [7, 7, 7]])
    np.testing.assert_array_equal(decode(chain, block_of(2, 4)), [[0, 2, 4], [1, 3, 5]])
    np.testing.assert_array_equal(decode(chain, block_of(1, 4)), [[0, 1, 2], [7, 7, 7]])
    part = (slice(0, 1, 1), slice(1, 3, 1))
    np.testing.assert_array_equal(decode(chain, block_of(1, 2), part), [[1, 7]])


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        BLOCK[:11],
        b"\0\1" + BLOCK[2:],
        b"\0\2" + BLOCK[2:],
        BLOCK[:3] + b"\3" + BLOCK[4:],
        BLOCK[:4] + b"\xff" * 8 + BLOCK[12:],
        BLOCK[:4] + bytes(8) + BLOCK[12:],
        BLOCK[:-1],
        BLOCK + b"\0",
        BLOCK[:7] + b"\3" + BLOCK[8:],
    ],
)
def test_blocks_that_lie(damaged):
    with pytest.raises(CorruptObjectError):
        decode(bound([n5(reverse(2), BIG)]), damaged)


@pytest.mark.parametrize(
    "codecs",
    [
        [BIG],
        [reverse(2), {"name": "bytes", "configuration": {"endian": "little"}}],
        [reverse(2), BIG, GZIP, "crc32c"],
        [reverse(3), BIG],
        [{"name": "transpose", "configuration": {"order": [0, 1]}}, BIG],
        [reverse(2), reverse(2), BIG],
        [reverse(2)],
        [],
        3,
    ],
    ids=str,
)
def test_codecs_that_n5_does_not_have(codecs):
    document = {"name": "n5_default", "configuration": {"codecs": codecs}}
    with pytest.raises(MetadataError, match="codecs"):
        zd.create_array(
            MemoryStore(), "a", shape=(2, 3), chunks=(2, 3), dtype="u2", codecs=[document]
        )


def test_data_types_that_n5_does_not_have():
    for dtype in ("f2", "c8", "bool"):
        with pytest.raises(MetadataError, match="N5 does not have"):
            zd.create_array(
                MemoryStore(), "a", shape=3, chunks=3, dtype=dtype, codecs=[n5(reverse(1), BIG)]
            )


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4"])
@pytest.mark.parametrize("compression", ["raw", "gzip"])
def test_tensorstore_and_we_share_n5(tmp_path, dtype, compression):
    import tensorstore as ts

    values = np.arange(7 * 5 * 3).reshape(7, 5, 3).astype(dtype)
    n5_metadata = {
        "dimensions": [7, 5, 3],
        "blockSize": [4, 3, 2],
        "dataType": values.dtype.name,
        "compression": {"type": compression},
    }
    spec = {
        "driver": "n5",
        "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"},
        "metadata": n5_metadata,
    }
    codecs = [reverse(3), BIG, *([GZIP] if compression == "gzip" else [])]
    ours = zd.create_array(
        tmp_path / "a", shape=(7, 5, 3), chunks=(4, 3, 2), dtype=dtype, codecs=[n5(*codecs)],
        chunk_key_encoding={"name": "v2", "configuration": {"separator": "/"}},
    )  # fmt: skip
    theirs = ts.open(spec, create=True).result()
    theirs[:4].write(values[:4]).result()
    np.testing.assert_array_equal(ours[:4], values[:4])
    assert not ours[4:].any()
    ours[4:] = values[4:]
    np.testing.assert_array_equal(ours[:], values)
    again = ts.open({**spec, "open": True}).result()
    np.testing.assert_array_equal(again.read().result(), values)


# --- conditional ---


def test_conditional_golden_bytes():
    chain = bound([BIG, {"name": "conditional", "configuration": {"codecs": ["crc32c", GZIP]}}])
    encoded = bytes(chain.encode(ARRAY)[0])
    assert encoded[:1] == b"\1"  # the checksum is applied, and gzip would make it longer
    assert encoded[1:13] == ARRAY.astype(">u2").tobytes()
    np.testing.assert_array_equal(decode(chain, encoded), ARRAY)
    np.testing.assert_array_equal(decode(chain, b"\0" + encoded[1:13]), ARRAY)
    both = b"\3" + Gzip(1).encode(encoded[1:], 1)
    np.testing.assert_array_equal(decode(chain, both), ARRAY)
    only_gzip = b"\2" + Gzip(1).encode(encoded[1:13], 1)
    np.testing.assert_array_equal(decode(chain, only_gzip), ARRAY)


def test_conditional_keeps_what_does_not_shrink():
    codec = Conditional((Zstd(1),), 16)
    noise, zeros = np.random.default_rng(0).bytes(5000), bytes(5000)
    assert codec.encode(noise, 1) == b"\0\0" + noise
    assert bytes(codec.encode(zeros, 1)[:2]) == b"\1\0"
    for data in (noise, zeros, b""):
        encoded = codec.encode(data, 1)
        assert len(encoded) <= len(data) + 2
        assert bytes(codec.decode(encoded, EncodedSize.of(len(data)))) == data
        assert bytes(codec.decode(encoded, EncodedSize(None, 9000))) == data


@pytest.mark.parametrize(
    "damaged", [b"", b"\4" + bytes(12), b"\xff" + bytes(12), b"\1" + bytes(12), b"\0" + bytes(13)]
)
def test_conditional_headers_that_lie(damaged):
    codec = Conditional((Gzip(1), Zstd(1)))
    with pytest.raises(CorruptObjectError):
        codec.decode(damaged, EncodedSize.of(12))


def test_conditional_bombs_are_cut_off():
    bomb = b"\1" + Gzip(9).encode(bytes(50_000_000), 1)
    with pytest.raises(CorruptObjectError):
        Conditional((Gzip(1),)).decode(bomb, EncodedSize.of(1000))


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"codecs": [BIG]},
        {"codecs": ["no such"]},
        {"codecs": [GZIP], "header_bits": 7},
        {"codecs": [GZIP], "header_bits": 0},
        {"codecs": [GZIP] * 9, "header_bits": 8},
        {"codecs": [GZIP], "header_bits": 1 << 20},
        {"codecs": [GZIP], "header_bits": 8.0},
        {"codecs": [GZIP], "mask": 1},
    ],
    ids=str,
)
def test_conditional_configurations_that_are_refused(configuration):
    made = codec_from_v3({"name": "conditional", "configuration": configuration}, "c")
    assert made[0].field.startswith("c.configuration")


def test_documents_say_what_was_given():
    store = MemoryStore()
    conditional = {"name": "conditional", "configuration": {"codecs": [ZSTD], "header_bits": 8}}
    codecs = [n5(reverse(1), BIG, ZSTD), conditional]
    zd.create_array(store, "a", shape=3, chunks=3, dtype="u2", codecs=codecs)
    assert json.loads(store.get("a/zarr.json"))["codecs"] == codecs
    assert zd.open(store, "a")[:].tolist() == [0, 0, 0]
