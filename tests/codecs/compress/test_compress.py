"""Compressors: what foreign encoders write, what each format's text demands, bounds."""

import bz2
import contextlib
import gzip
import itertools
import json
import lzma
import struct
import time
import zlib

import numcodecs
import numpy as np
import pytest
from numcodecs import blosc as nc_blosc
from numcodecs import lz4 as nc_lz4
from numcodecs import zstd as nc_zstd

import zarr_dask as zd
from zarr_dask.codecs.base import EncodedSize
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.compress import blosc
from zarr_dask.codecs.compress.blosc import DEFAULT_BLOSC, Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Gzip, Lzma, Zlib
from zarr_dask.codecs.compress.lz4 import Lz4
from zarr_dask.codecs.compress.zstd import Zstd
from zarr_dask.codecs.registry import chain_from_v3, codec_from_v3
from zarr_dask.codecs.registry_numcodecs import codec_from_numcodecs
from zarr_dask.errors import CorruptObjectError, MetadataError
from zarr_dask.stores.backends.memory import MemoryStore

DATA = np.arange(3000, dtype="<i4").tobytes()
SKIPPABLE = bytes.fromhex("502a4d18 05000000") + b"hello"


def unsized(data, level=1):
    """A zstd frame as streaming encoders write it: without the size of its content."""
    frame = nc_zstd.compress(data, level)
    descriptor = frame[4]
    single = descriptor & 0x20
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 if single else 6
    window = b"\x88" if single else frame[5:6]
    return frame[:4] + bytes([descriptor & 0x1F]) + window + frame[start + width :]


def sizes(nbytes):
    return EncodedSize.of(nbytes), EncodedSize(None, nbytes + 100_000)


# --- numbered statements ---


@pytest.mark.conformance("C104")
@pytest.mark.parametrize("level", [*range(10), -1, 10, 1.0, "1", None, True], ids=repr)
def test_gzip_levels(level):
    made = codec_from_v3({"name": "gzip", "configuration": {"level": level}}, "codecs[1]")
    if type(level) is int and 0 <= level <= 9:
        assert gzip.decompress(made.encode(DATA, 4)) == DATA
        assert bytes(made.decode(gzip.compress(DATA, level), EncodedSize.of(len(DATA)))) == DATA
    else:
        assert [problem.field for problem in made] == ["codecs[1].configuration.level"]


@pytest.mark.conformance("C104")
def test_gzip_has_a_level():
    assert codec_from_v3("gzip", "c")[0].field == "c.configuration.level"
    assert codec_from_v3({"name": "gzip", "configuration": {"level": 1, "x": 1}}, "c")


@pytest.mark.conformance("C040")
@pytest.mark.parametrize("shuffle", [-1, 0, 1, 2])
@pytest.mark.parametrize("cname", nc_blosc.list_compressors())
def test_blosc_shuffles_and_compressors(cname, shuffle):
    config = {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0}
    codec = codec_from_numcodecs(config, "compressor")
    array = np.frombuffer(DATA, "<i4")
    theirs = numcodecs.Blosc(cname, 5, shuffle).encode(array)
    for size in sizes(len(DATA)):
        assert bytes(codec.decode(theirs, size)) == DATA
    out = np.empty(len(DATA), np.uint8)
    codec.decode_into(theirs, out)
    assert out.tobytes() == DATA
    ours = codec.encode(DATA, 4)
    assert numcodecs.Blosc().decode(ours) == DATA
    assert bytes(ours)[2:4] == bytes(theirs)[2:4]  # flags and type size


@pytest.mark.conformance("C041")
def test_lz4_chunks_begin_with_their_length():
    encoded = bytes(Lz4(1).encode(DATA, 4))
    assert encoded[:4] == len(DATA).to_bytes(4, "little")
    assert encoded == bytes(nc_lz4.compress(DATA, 1))
    assert bytes(Lz4().decode(nc_lz4.compress(DATA, 1), EncodedSize.of(len(DATA)))) == DATA


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC = {"cname": "zstd", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}


@pytest.mark.conformance("C105")
def test_blosc_says_its_type_size():
    def made(**changes):
        members = {name: value for name, value in (BLOSC | changes).items() if value is not None}
        return codec_from_v3({"name": "blosc", "configuration": members}, "c")

    assert made().configuration() == BLOSC
    assert made(typesize=None)[0].field == "c.configuration.typesize"
    assert isinstance(made(typesize=None, shuffle="noshuffle"), Blosc)
    for shuffle in (0, 1, 2, -1, "auto", None):
        assert "c.configuration.shuffle" in [p.field for p in made(shuffle=shuffle)]
    for typesize in (0, -1, 4.0, "4", 1 << 31):
        assert made(typesize=typesize)[0].field == "c.configuration.typesize"


@pytest.mark.conformance("C105")
@pytest.mark.parametrize("dtype", ["u1", "f8", "c16"])
def test_the_type_size_of_blosc_is_always_written(dtype):
    store = MemoryStore()
    for shuffle in ("shuffle", "noshuffle"):
        given = {"name": "blosc", "configuration": {"cname": "lz4", "shuffle": shuffle}}
        path = shuffle
        zd.create_array(store, path, shape=8, chunks=8, dtype=dtype, codecs=[LITTLE, given])
        document = json.loads(store.get(f"{path}/zarr.json"))
        written = document["codecs"][-1]["configuration"]
        assert written["typesize"] == np.dtype(dtype).itemsize
        assert written["shuffle"] == shuffle


@pytest.mark.parametrize(
    "values", [np.ones(500, "f4"), np.arange(500) % 9 // 8, np.arange(500) // 3]
)
def test_a_small_chunk_that_repeats_is_compressed_at_most_twice(monkeypatch, values):
    library, frames = nc_blosc, []

    class Counting:
        list_compressors = library.list_compressors

        def compress(self, *given):
            frames.append(library.compress(*given))
            return frames[-1]

    monkeypatch.setattr(blosc, "blosc_library", Counting)
    encoded = DEFAULT_BLOSC.encode(values.tobytes(), values.itemsize)
    assert len(frames) == 2
    assert len(encoded) == min(map(len, frames))
    monkeypatch.undo()
    decoded = DEFAULT_BLOSC.decode(encoded, EncodedSize.of(values.nbytes))
    assert bytes(decoded) == values.tobytes()


def _sparse(share, decimals):
    random = np.random.default_rng(7)
    values = np.round(random.normal(size=1 << 17) * 10, decimals)
    return np.where(random.random(values.size) < share, values, 0)


def _some(values):
    return np.random.default_rng(2).choice(values, 1 << 17)


RANDOM = np.random.default_rng(1)
KINDS = {
    **{
        f"{share:%} with {decimals} decimals": _sparse(share, decimals)
        for share, decimals in itertools.product((0.01, 0.1, 0.3), (0, 1, 2, 17))
    },
    "prices": np.round(RANDOM.normal(50, 20, 1 << 17), 2),
    "names": _some(RANDOM.integers(0, 2**60, 50)),
    "few values": _some(RANDOM.normal(size=20)).astype("f4"),
    "smooth": np.sin(np.arange(1 << 17) / 1000),
    "steps": np.arange(1 << 17) // 100,
    **{
        f"labels enlarged, {dtype}": np.repeat(
            np.repeat(RANDOM.integers(0, 500, (50, 50)), 20, axis=0), 20, axis=1
        )[: 1000 // np.dtype(dtype).itemsize].astype(dtype)
        for dtype in ("u2", "u4")
    },
}


@pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)
def test_the_default_is_no_larger_than_zstd_of_level_3(values):
    encoded = DEFAULT_BLOSC.encode(values.tobytes(), values.itemsize)
    assert len(encoded) < 1.01 * len(nc_zstd.compress(values.tobytes(), 3))
    decoded = DEFAULT_BLOSC.decode(encoded, EncodedSize.of(values.nbytes))
    assert bytes(decoded) == values.tobytes()


@pytest.mark.conformance("C106")
@pytest.mark.parametrize(
    ("data", "encoded"),
    [("010203", "0102031ef230f1"), ("0001020304050607", "00010203040506073bbc2c8a")],
)
def test_crc32c_golden_bytes(data, encoded):
    codec = Crc32c()
    raw, stored = bytes.fromhex(data), bytes.fromhex(encoded)
    assert bytes(codec.encode(raw, 1)) == stored
    assert bytes(codec.decode(stored, EncodedSize.of(len(raw)))) == raw
    for position in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptObjectError, match="crc32c"):
                codec.decode(bytes(damaged), EncodedSize.of(len(raw)))


@pytest.mark.conformance("C106")
def test_a_flipped_byte_of_a_chunk_raises_when_it_is_read():
    store = MemoryStore()
    array = zd.create_array(store, "a", shape=8, chunks=8, dtype="u1", codecs=["bytes", "crc32c"])
    array[:] = np.arange(8, dtype="u1")
    stored = bytearray(store.get("a/c/0"))
    stored[3] ^= 1
    store.set("a/c/0", [bytes(stored)])
    with pytest.raises(CorruptObjectError, match="crc32c"):
        array[2:3]


@pytest.mark.conformance("C107")
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("level", [-131072, -5, 0, 3, 22])
def test_zstd_levels_and_checksums(level, checksum):
    configuration = {"level": level, "checksum": checksum}
    codec = codec_from_v3({"name": "zstd", "configuration": configuration}, "c")
    assert codec.configuration() == configuration
    encoded = bytes(codec.encode(DATA, 4))
    assert encoded == nc_zstd.compress(DATA, level, checksum)
    assert bool(encoded[4] & 4) == checksum
    assert bytes(codec.decode(encoded, EncodedSize.of(len(DATA)))) == DATA
    if checksum:
        damaged = encoded[:-1] + bytes([encoded[-1] ^ 1])
        with pytest.raises(CorruptObjectError):
            codec.decode(damaged, EncodedSize.of(len(DATA)))


@pytest.mark.conformance("C107")
def test_zstd_configurations():
    def made(**members):
        return codec_from_v3({"name": "zstd", "configuration": members}, "c")

    assert made(level=1) == Zstd(1, checksum=False)
    for level in (-131073, 23, 1.5, "1", None, True):
        assert [problem.field for problem in made(level=level)] == ["c.configuration.level"]
    assert made(level=1, checksum=1)[0].field == "c.configuration.checksum"
    assert isinstance(chain_from_v3(["bytes", "zstd"]), list)


# --- what others write ---

ZSTD_FRAMES = {
    "unsized": unsized(DATA),
    "skippable first": SKIPPABLE + nc_zstd.compress(DATA, 1),
    "skippable last": nc_zstd.compress(DATA, 1) + SKIPPABLE,
    "skippable around unsized": SKIPPABLE + unsized(DATA) + SKIPPABLE,
    "two": nc_zstd.compress(DATA[:5000], 1) + nc_zstd.compress(DATA[5000:], 3),
    "two and an empty one": nc_zstd.compress(DATA[:5], 1)
    + nc_zstd.compress(b"", 1)
    + nc_zstd.compress(DATA[5:], 1, checksum=True),
    "sized and unsized": nc_zstd.compress(DATA[:500], 1) + unsized(DATA[500:]),
    "unsized and sized": unsized(DATA[:500]) + nc_zstd.compress(DATA[500:], 1),
    "two unsized": unsized(DATA[:500]) + unsized(DATA[500:]),
    "with a checksum": nc_zstd.compress(DATA, 1, checksum=True),
}


@pytest.mark.parametrize("encoded", ZSTD_FRAMES.values(), ids=ZSTD_FRAMES)
def test_zstd_frames_of_other_encoders(encoded):
    for size in sizes(len(DATA)):
        assert bytes(Zstd().decode(encoded, size)) == DATA
    out = np.full(len(DATA) + 16, 7, np.uint8)
    Zstd().decode_into(encoded, out[8:-8])
    assert out.tobytes() == b"\7" * 8 + DATA + b"\7" * 8
    for wrong in (0, 1, len(DATA) - 1, len(DATA) + 1, 5000):
        with pytest.raises(CorruptObjectError):
            Zstd().decode(encoded, EncodedSize.of(wrong))
        with pytest.raises(CorruptObjectError):
            Zstd().decode_into(encoded, np.empty(wrong, np.uint8))
    for cut in range(0, len(encoded) - 1, 7):
        try:  # cut between frames, it may be whole
            assert DATA.startswith(bytes(Zstd().decode(encoded[:cut], EncodedSize(None, 100_000))))
        except CorruptObjectError:
            continue


def test_zstd_of_nothing():
    for encoded in (nc_zstd.compress(b"", 1), unsized(b""), SKIPPABLE + unsized(b"")):
        for size in (EncodedSize.of(0), EncodedSize(None, 100)):
            assert bytes(Zstd().decode(encoded, size)) == b""
        Zstd().decode_into(encoded, np.empty(0, np.uint8))
        with pytest.raises(CorruptObjectError):
            Zstd().decode(encoded, EncodedSize.of(1))


def test_zstd_that_cannot_be_bounded():
    block = unsized(bytes(200_000))
    many = block * 100  # each block may hold 128 KiB
    with pytest.raises(CorruptObjectError, match="cannot be bounded"):
        Zstd().decode(many, EncodedSize(None, 1000))
    assert len(Zstd().decode(many, EncodedSize(None, 1 << 27))) == 20_000_000


@pytest.mark.parametrize("junk", [SKIPPABLE, unsized(b""), nc_zstd.compress(b"", 1)])
def test_zstd_of_ever_so_many_frames(junk):
    start = time.process_time()
    with pytest.raises(CorruptObjectError, match="more than 16384 zstd frames"):
        Zstd().decode(junk * 200_000, EncodedSize.of(5))
    assert time.process_time() - start < 1


STREAMS = {
    "gzip": (Gzip(), gzip.compress),
    "zlib": (Zlib(), zlib.compress),
    "bz2": (Bz2(), bz2.compress),
    "lzma": (Lzma(), lzma.compress),
    "lzma of 1998": (Lzma(format=2), lambda data: lzma.compress(data, lzma.FORMAT_ALONE)),
}


@pytest.mark.parametrize(("codec", "compress"), STREAMS.values(), ids=STREAMS)
def test_streams_one_after_the_other(codec, compress):
    noise = np.random.default_rng(0).bytes(20_000)
    for data in ([b"abc", b"", b"defg"], [b"a", noise, b"", DATA, b"z"], [b""], [noise, b"x"] * 3):
        encoded, whole = b"".join(map(compress, data)), b"".join(data)
        for size in sizes(len(whole)):
            assert bytes(codec.decode(encoded, size)) == whole
        with pytest.raises(CorruptObjectError):
            codec.decode(encoded[:-1], EncodedSize(None, 100_000))
        with pytest.raises(CorruptObjectError):
            codec.decode(encoded + b"\1\2\3", EncodedSize(None, 100_000))


@pytest.mark.parametrize(("codec", "compress"), STREAMS.values(), ids=STREAMS)
def test_ever_so_many_streams(codec, compress):
    start = time.process_time()
    with pytest.raises(CorruptObjectError):
        codec.decode(compress(b"") * 300_000, EncodedSize.of(5))
    assert time.process_time() - start < 3  # no copy of the rest for each


def test_lzma_dictionaries_are_bounded():
    header = bytearray(lzma.compress(DATA, lzma.FORMAT_ALONE))
    header[1:5] = struct.pack("<I", (1 << 32) - 1)
    with pytest.raises(CorruptObjectError, match=r"[Mm]emory"):
        Lzma(format=2).decode(bytes(header), EncodedSize.of(len(DATA)))
    raw = {"id": "lzma", "format": 3, "check": -1, "preset": None}
    for filters in (
        None,
        [],
        [{"id": 33, "dict_size": 1 << 31}],
        [{"id": 99}],
        [{"id": 33, "x": 1}],
        [{"id": [33]}],
        [33],
        33,
        [{"id": 33, "preset": 99}],
        [{"id": 33}] * 9,
    ):
        assert isinstance(codec_from_numcodecs({**raw, "filters": filters}, "c"), list)
    made = codec_from_numcodecs({**raw, "filters": [{"id": 33, "preset": 1}]}, "c")
    assert bytes(made.decode(made.encode(DATA, 4), EncodedSize.of(len(DATA)))) == DATA


@pytest.mark.parametrize("typesize", [0, 1, 3, 255])
@pytest.mark.parametrize("blocksize", [0, 1, 16, 1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize("flags", [0, 1, 3, 5, 0x35, 0xFF])
def test_blosc_headers_that_lie(typesize, blocksize, flags):
    frame = bytearray(nc_blosc.compress(np.frombuffer(DATA, "<i4"), b"lz4", 5, 1))
    frame[2], frame[3] = flags, typesize
    frame[8:12] = struct.pack("<I", blocksize)
    out = np.full(len(DATA) + 4096, 7, np.uint8)
    with contextlib.suppress(CorruptObjectError):
        Blosc().decode_into(bytes(frame), out[2048:-2048])
    assert (out[:2048] == 7).all()
    assert (out[-2048:] == 7).all()


def test_blosc_type_sizes_that_no_element_has():
    for typesize, nbytes in itertools.product((1, 3, 4, 7, 255, 256, 1 << 20), (0, 1, 12, 1000)):
        data = DATA[:nbytes]
        codec = Blosc("lz4", 5, "shuffle", typesize)
        assert bytes(codec.decode(codec.encode(data, 4), EncodedSize.of(nbytes))) == data


def test_documents_that_are_wrong_are_metadata_errors():
    with pytest.raises(MetadataError, match="level"):
        zd.create_array(
            MemoryStore(), "a", shape=1, chunks=1, dtype="u1",
            codecs=["bytes", {"name": "gzip", "configuration": {"level": 11}}],
        )  # fmt: skip


@pytest.mark.parametrize("name", ["gzip", "zlib"])
def test_large_streams_are_decoded_in_place(name):
    """Whatever number of streams a chunk is made of; what is wrong with them is an error."""
    codec, compress = STREAMS[name]
    noise = np.random.default_rng(1).bytes(2_000_000)
    for data in ([noise], [noise, b"", noise[:5]], [b"ab"] * 2000 + [noise], [bytes(3_000_000)]):
        encoded, whole = b"".join(map(compress, data)), b"".join(data)
        out = np.zeros(len(whole), np.uint8)
        codec.decode_into(encoded, out)
        assert out.tobytes() == whole
        for wrong, size in (
            (encoded[:-1], len(whole)),
            (encoded + b"\1\2\3", len(whole)),
            (encoded, len(whole) - 1),
            (encoded, len(whole) + 1),
            (b"", len(whole)),
        ):
            with pytest.raises(CorruptObjectError):
                codec.decode_into(wrong, np.zeros(size, np.uint8))
    start = time.process_time()
    with pytest.raises(CorruptObjectError, match="more than 262144"):
        codec.decode_into(compress(b"") * 300_000, np.zeros(2_000_000, np.uint8))
    assert time.process_time() - start < 3


def gzip_member(data, extra=b"", name=b"", comment=b""):
    """A member with a header that has all that RFC 1952 knows, a checksum too."""
    header = b"\x1f\x8b\x08\x1e\0\0\0\0\0\xff" + struct.pack("<H", len(extra)) + extra
    header += name + b"\0" + comment + b"\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    return header + zlib.compress(data, wbits=-15) + struct.pack("<II", zlib.crc32(data), len(data))


@pytest.mark.parametrize("sizes", [(0, 0, 0), (65_535, 0, 0), (65_510, 0, 0), (9, 60_000, 200_000)])
def test_headers_of_gzip_of_any_length(sizes):
    """However large what is handed to the library at a time."""
    texts = [b"x" * size for size in sizes]
    noise = np.random.default_rng(1).bytes(1_500_000)
    for data in ([noise], [b"", noise[:5], noise], [noise[:5000]] * 3):
        encoded = b"".join(gzip_member(one, *texts) for one in data)
        whole = gzip.decompress(encoded)
        assert whole == b"".join(data)
        assert bytes(Gzip().decode(encoded, EncodedSize.of(len(whole)))) == whole
        out = np.zeros(len(whole), np.uint8)
        Gzip().decode_into(encoded, out)
        assert out.tobytes() == whole
    damaged = bytearray(gzip_member(noise, *texts))
    damaged[4] ^= 1
    for wrong in (bytes(damaged), gzip_member(noise, *texts)[: 12 + sum(sizes)]):
        with pytest.raises(CorruptObjectError):
            Gzip().decode_into(wrong, np.zeros(len(noise), np.uint8))
