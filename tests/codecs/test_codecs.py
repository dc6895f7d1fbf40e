"""Codecs by themselves: round trips, bounds on what they produce, what they refuse."""

import struct
import subprocess
import sys
import tracemalloc

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_dask.codecs import checksum
from zarr_dask.codecs.arrays import Bytes, Transpose
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions, EncodedSize
from zarr_dask.codecs.chain import CodecChain, make_chain
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Gzip, Lzma, Zlib
from zarr_dask.codecs.compress.lz4 import Lz4
from zarr_dask.codecs.compress.zstd import Zstd
from zarr_dask.codecs.fetch import drive_fetch_from_bytes
from zarr_dask.codecs.numcodecs import Filter
from zarr_dask.codecs.registry import chain_from_v3, codec_from_v3
from zarr_dask.codecs.registry_numcodecs import codec_from_numcodecs, numcodecs_from_codec
from zarr_dask.codecs.sharding import Sharding
from zarr_dask.dtypes import data_type_of
from zarr_dask.errors import CorruptObjectError, ValidationProblem
from zarr_dask.stores.base import Range

COMPRESSORS = [
    *(Blosc(cname, 5, shuffle) for cname in ("lz4", "zstd", "zlib", "blosclz", "lz4hc")
      for shuffle in ("noshuffle", "shuffle", "bitshuffle", None)),
    Zstd(1), Zstd(-5, checksum=True), *(Gzip(level) for level in range(10)), Zlib(1), Zlib(6),
    Bz2(1), Lzma(), Lzma(format=3, filters=((("id", 33), ("preset", 1)),)), Lz4(1), Crc32c(),
]  # fmt: skip


def name(codec):
    return f"{codec.name}-{'-'.join(str(value) for value in codec.configuration().values())}"


@pytest.mark.parametrize("codec", COMPRESSORS, ids=name)
def test_compressors_round_trip(codec):
    data = np.arange(1000, dtype="i4").tobytes()
    encoded = codec.encode(data, 4)
    assert bytes(codec.decode(encoded, EncodedSize.of(len(data)))) == data
    assert bytes(codec.decode(encoded, EncodedSize(None, 5000))) == data
    out = np.empty(len(data), np.uint8)
    codec.decode_into(encoded, out)
    assert out.tobytes() == data


@pytest.mark.parametrize("codec", COMPRESSORS, ids=name)
@pytest.mark.parametrize("wrong", [3999, 4001, 10])
def test_decoders_produce_what_is_expected_or_nothing(codec, wrong):
    encoded = codec.encode(np.arange(1000, dtype="i4").tobytes(), 4)
    with pytest.raises(CorruptObjectError):
        codec.decode(encoded, EncodedSize.of(wrong))
    with pytest.raises(CorruptObjectError):
        codec.decode_into(encoded, np.empty(wrong, np.uint8))


@pytest.mark.parametrize("codec", COMPRESSORS, ids=name)
def test_decoders_refuse_truncated_and_foreign_bytes(codec):
    encoded = bytes(codec.encode(np.random.default_rng(0).bytes(4000), 4))
    for damaged in (encoded[: len(encoded) // 2], encoded[:3], b"", b"\xff" * 50):
        with pytest.raises(CorruptObjectError):
            codec.decode(damaged, EncodedSize.of(4000))


@pytest.mark.parametrize("codec", [Zstd(1), Gzip(9), Bz2(9), Lzma(), Zlib(9)], ids=name)
def test_bombs_are_cut_off(codec):
    bomb = codec.encode(bytes(60_000_000), 1)
    tracemalloc.start()
    with pytest.raises(CorruptObjectError):
        codec.decode(bomb, EncodedSize.of(1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_headers_that_lie_are_refused_before_memory_is_taken():
    header = struct.pack("<BBBBIII", 2, 1, 1, 4, 2**31 - 20, 4096, 16)
    with pytest.raises(CorruptObjectError, match="2147483628 bytes, but the chunk has 1000"):
        Blosc().decode(header, EncodedSize.of(1000))
    with pytest.raises(CorruptObjectError, match="lz4 block"):
        Lz4().decode(struct.pack("<I", 2**31), EncodedSize(None, 1000))
    zstd = struct.pack("<IBQ", 0xFD2FB528, 0xE0, 2**40) + b"\0" * 20
    with pytest.raises(CorruptObjectError, match="1099511627776"):
        Zstd().decode(zstd, EncodedSize(None, 1000))


def test_several_streams_after_one_another_are_one():
    first, second = Gzip(1).encode(b"abc", 1), Gzip(1).encode(b"defg", 1)
    assert bytes(Gzip().decode(first + second, EncodedSize.of(7))) == b"abcdefg"


def test_crc32c_of_a_flipped_bit():
    encoded = bytearray(Crc32c().encode(b"\1\2\3", 1))
    assert encoded.hex() == "0102031ef230f1"
    encoded[1] ^= 4
    with pytest.raises(CorruptObjectError, match="crc32c is 0x"):
        Crc32c().decode(bytes(encoded), EncodedSize.of(3))


@pytest.mark.parametrize(
    ("size", "says"),
    [(EncodedSize.of(3), "have 7$"), (EncodedSize(None, 100), "have from 4 to 104$")],
)
def test_a_number_of_bytes_that_no_checksum_can_end(size, says):
    with pytest.raises(CorruptObjectError, match=f"it has 2 bytes, .* {says}"):
        Crc32c().decode(b"ab", size)


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_crc32c_is_the_same_from_every_library(data, cut):
    known = google_crc32c.value(data)
    for buffer in (data, bytearray(data), memoryview(bytearray(data)), np.frombuffer(data, "u1")):
        for sum_up in (checksum.crc32c, checksum._with_google):
            assert sum_up(buffer, 0) == known
            assert sum_up(buffer[cut:], sum_up(buffer[:cut], 0)) == known


def test_crc32c_sums_up_elements_of_any_size():
    for dtype in ("i1", "<i4", ">f8", "c16"):
        values = np.arange(10_000).astype(dtype).reshape(100, 100)
        for sum_up in (checksum.crc32c, checksum._with_google):
            assert sum_up(values, 7) == google_crc32c.extend(7, values.tobytes())


def test_crc32c_without_fastcrc():
    code = """
import sys
sys.modules["fastcrc.crc32"] = None
from zarr_dask.codecs.checksum import crc32c
assert "google_crc32c" not in sys.modules
assert crc32c(b"123456789") == 0xE3069283
assert "google_crc32c" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "config",
    [
        {"id": "delta", "dtype": "<i4", "astype": "<i2"},
        {"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<i4", "astype": "<u2"},
        {"id": "shuffle", "elementsize": 4},
        {"id": "crc32"},
        {"id": "adler32"},
        {"id": "fletcher32"},
        {"id": "jenkins_lookup3", "initval": 0, "prefix": None},
        {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"},
    ],
    ids=lambda config: config["id"],
)
def test_filters_round_trip_and_know_their_sizes(config):
    codec = Filter.of(config)
    data = np.arange(100, dtype="<i4").tobytes()
    encoded = codec.encode(data, 4)
    assert codec.size(EncodedSize.of(400)).exact == len(encoded)
    assert bytes(codec.decode(encoded, EncodedSize.of(400))) == data
    with pytest.raises(CorruptObjectError):
        codec.decode(encoded, EncodedSize.of(396))


def test_numcodecs_configurations_round_trip():
    for config in (
        {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": -1, "blocksize": 0},
        {"id": "zlib", "level": 4},
        {"id": "zstd", "level": 3},
        {"id": "zstd", "level": 3, "checksum": True},
        {"id": "lz4", "acceleration": 2},
        {"id": "lzma", "format": 1, "check": -1, "preset": 2, "filters": None},
        {"id": "delta", "dtype": "<i4"},
    ):
        codec = codec_from_numcodecs(config, "compressor")
        assert numcodecs_from_codec(codec) == config


# --- chains ---


CHAIN_CODECS = [
    [],
    [Crc32c()],
    [Blosc(typesize=4)],
    [Gzip(1), Zstd(1)],
    [Zstd(1), Blosc(typesize=1), Crc32c()],
]


@st.composite
def bound_chains(draw):
    """A chain with any nesting of shards, and a chunk it is made for."""
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    codecs = draw(st.sampled_from(CHAIN_CODECS))
    endian = draw(st.sampled_from(["little", "big"]))
    chain = CodecChain((), Bytes(endian), tuple(codecs))
    for _ in range(draw(st.integers(0, 2))):
        index = CodecChain((), Bytes("little"), draw(st.sampled_from([(), (Crc32c(),)])))
        location = draw(st.sampled_from(["start", "end"]))
        arrays = (Transpose(tuple(draw(st.permutations(range(ndim))))),)
        outer = tuple(n * draw(st.integers(1, 3)) for n in shape)
        behind = draw(st.sampled_from([(), (), (Gzip(1),)]))
        chain = CodecChain(arrays, Sharding(shape, chain, index, location), behind)
        shape = arrays[0].inner_shape(outer)
    dtype = np.dtype(draw(st.sampled_from(["f4", "i8", "c8", "bool", "u1"])))
    fill = np.zeros((), dtype)
    values = np.array(draw(st.lists(st.integers(0, 2), min_size=1, max_size=5)))
    chunk = np.resize(values, shape).astype(dtype)
    return chain, ChunkSpec(shape, data_type_of(dtype), fill), chunk


@given(bound_chains(), st.data())
def test_chains_decode_what_they_encode_whole_and_in_part(case, data):
    chain, spec, chunk = case
    assert list(chain.problems(spec)) == []
    bound = chain.bind(spec)
    encoded = b"".join(bound.encode(chunk))
    if bound.size.exact is not None:
        assert len(encoded) == bound.size.exact
    assert len(encoded) <= bound.size.most
    out = np.empty(spec.shape, spec.dtype)
    bound.decode(encoded, None, out, DecodeOptions())
    np.testing.assert_array_equal(out, chunk)
    region = []
    for n in spec.shape:
        start = data.draw(st.integers(0, n))
        region.append(slice(start, data.draw(st.integers(start, n)), data.draw(st.integers(1, 2))))
    region = tuple(region)
    out = np.empty_like(chunk[region] if region else chunk)
    assert drive_fetch_from_bytes(bound.read(region, out, DecodeOptions(), whole=False), encoded)
    np.testing.assert_array_equal(out, chunk[region] if region else chunk)


def test_scratch_memory_is_not_handed_out():
    """Two chunks of a shard decoded one after the other must not share memory."""
    inner = CodecChain((), Bytes("little"), (Zstd(1),))
    chain = CodecChain((), Sharding((2, 2), inner))
    bound = chain.bind(ChunkSpec((4, 4), data_type_of("f4"), np.zeros((), "f4")))
    chunk = np.arange(16, dtype="f4").reshape(4, 4) + 1
    out = np.empty((4, 4), "f4")
    bound.decode(b"".join(bound.encode(chunk)), None, out, DecodeOptions())
    np.testing.assert_array_equal(out, chunk)


def test_a_shard_asks_for_its_index_and_then_for_the_chunks_it_needs():
    chain = CodecChain((), Sharding((1, 2), CodecChain((), Bytes("little"))))
    bound = chain.bind(ChunkSpec((2, 4), data_type_of("u1"), np.zeros((), "u1")))
    chunk = np.arange(8, dtype="u1").reshape(2, 4) + 1
    encoded = b"".join(bound.encode(chunk))
    out = np.empty((1, 4), "u1")
    fetch = bound.read((slice(1, 2, 1), slice(0, 4, 1)), out, DecodeOptions(), whole=False)
    assert next(fetch) == (Range(-68, None),)
    assert fetch.send([encoded[-68:]]) == [Range(4, 6), Range(6, 8)]
    with pytest.raises(StopIteration) as stop:
        fetch.send([encoded[4:6], encoded[6:8]])
    assert stop.value.value is True
    assert out.tolist() == [[5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("document", "place", "kind"),
    [
        ({"name": "zlib"}, "codecs[0].name", "codec"),
        ({"name": "gzip"}, "codecs[0].configuration.level", "value"),
        ({"name": "gzip", "configuration": {"level": 10}}, "codecs[0].configuration.level",
         "value"),
        ({"name": "gzip", "configuration": {"level": True}}, "codecs[0].configuration.level",
         "value"),
        ({"name": "gzip", "configuration": {"level": 1, "x": 1}}, "codecs[0].configuration.x",
         "value"),
        ({"name": "gzip", "configuration": 3}, "codecs[0].configuration", "value"),
        ({"name": "bytes", "configuration": {"endian": "middle"}},
         "codecs[0].configuration.endian", "value"),
        ({"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": [],
          "index_codecs": ["bytes"]}}, "codecs[0].configuration.codecs", "value"),
        ({"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs":
          [{"name": "bytes"}, {"name": "nope"}], "index_codecs": ["bytes"]}},
         "codecs[0].configuration.codecs[1].name", "codec"),
        (7, "codecs[0]", "value"),
    ],
)  # fmt: skip
def test_wrong_codecs_are_located(document, place, kind):
    problems = codec_from_v3(document, "codecs[0]")
    assert [(problem.field, problem.kind) for problem in problems] == [(place, kind)]


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        (["crc32c"], "exactly one codec"),
        (["bytes", "bytes"], "exactly one codec"),
        (["crc32c", {"name": "bytes", "configuration": {"endian": "little"}}], "array-to-array"),
    ],
)
def test_codecs_in_a_wrong_order(documents, words):
    (problem,) = chain_from_v3(documents)
    assert words in problem.expected


@pytest.mark.parametrize(
    ("chain", "shape", "place"),
    [
        (CodecChain((), Bytes(None)), (4,), "codecs[0].configuration.endian"),
        (CodecChain((Transpose((0, 0)),), Bytes()), (2, 2), "codecs[0].configuration.order"),
        (
            CodecChain((), Sharding((3,), CodecChain((), Bytes()))),
            (4,),
            "codecs[0].configuration.chunk_shape",
        ),
        (
            CodecChain((), Sharding((2,), CodecChain((), Sharding((3,), CodecChain((), Bytes()))))),
            (4,),
            "codecs[0].configuration.codecs[0].configuration.chunk_shape",
        ),
        (
            CodecChain(
                (), Sharding((2,), CodecChain((), Bytes()), CodecChain((), Bytes(), (Gzip(1),)))
            ),
            (4,),
            "codecs[0].configuration.index_codecs",
        ),
    ],
)
def test_chains_that_do_not_fit_their_chunks(chain, shape, place):
    spec = ChunkSpec(shape, data_type_of("f4"), np.zeros((), "f4"))
    assert [problem.field for problem in chain.problems(spec)] == [place]


def test_build_wants_one_serializer():
    assert isinstance(make_chain([Gzip(1)]), ValidationProblem)
    assert make_chain([Transpose((0,)), Bytes(), Gzip(1)]) == CodecChain(
        (Transpose((0,)),), Bytes(), (Gzip(1),)
    )
