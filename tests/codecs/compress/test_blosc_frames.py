"""Blocks of blosc frames that are decoded alone: as c-blosc decodes all of them, or not at all."""

import struct
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Shuffle, blosc

import zarr_dask as zd
from tests.support.guarded import guarded_memory, spread
from zarr_dask.codecs import numcodecs as filters
from zarr_dask.codecs.base import (
    ByteRequest,
    ChunkRead,
    ChunkSpec,
    DecodeOptions,
)
from zarr_dask.codecs.chain import thread_decoded_nbytes
from zarr_dask.codecs.compress import blosc_frames
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.blosc_frames import (
    UNSHUFFLED_FAST,
    FallbackRead,
    read_blocks,
    unshuffle,
)
from zarr_dask.codecs.fetch import byte_ranges_of, drive_fetch_from_bytes
from zarr_dask.codecs.numcodecs import Filter
from zarr_dask.codecs.registry import chain_from_v3
from zarr_dask.dtypes import data_type_of
from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrappers.metered import MeteredStore

BLOCK = 1 << 16  # the smallest that the library splits into pieces
RAW = 12 * BLOCK + 36  # bytes of thirteen blocks


@contextmanager
def at_no_cost():
    """Parts of small frames are decoded too, though it is not worth while."""
    with mock.patch.multiple(blosc_frames, _TO_LOOK=0, _EACH_BLOCK=0):
        yield


@contextmanager
def several_threads():
    """The library compresses in threads of its own, which write blocks as they are done."""
    before, blosc.use_threads = blosc.set_nthreads(4), True
    try:
        yield
    finally:
        blosc.set_nthreads(before)
        blosc.use_threads = None


def smooth(nbytes, seed=0):
    """Bytes that compress, some of them hardly."""
    rng = np.random.default_rng(seed)
    raw = (np.arange(nbytes) // 7 % 251).astype(np.uint8)
    noisy = rng.integers(0, nbytes + 1)
    raw[noisy : noisy + nbytes // 5] = rng.integers(0, 256, raw[noisy : noisy + nbytes // 5].size)
    return raw


def frame_of(raw, cname="lz4", clevel=5, shuffle=1, typesize=4, blocksize=0):
    items = raw[: raw.size // typesize * typesize].view(f"V{typesize}")
    return bytes(blosc.compress(items, cname.encode(), clevel, shuffle, blocksize))


def wanted_of(spans, nbytes):
    return ByteRequest(nbytes, spans[0][0], spans[-1][1], spans)


def in_part(frame, spans, nbytes, largest=None):
    """Whether `read_blocks` reads them, and all bytes as far as it has decoded them."""
    with guarded_memory(0xA5):
        found = drive_fetch_from_bytes(read_blocks(wanted_of(spans, nbytes), largest), frame)
    if found is FallbackRead.WHOLE:
        return False, None
    return True, spread(found, nbytes, 0xA5)


def header(frame):
    """Flags, typesize, nbytes, blocksize, cbytes."""
    return struct.unpack_from("<2x2B3I", frame)


CNAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")


@st.composite
def frames(draw):
    typesize = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 16, 17, 255]))
    raw = smooth(
        draw(st.integers(1, 40_000)) * typesize % 300_000 + typesize, draw(st.integers(0, 9))
    )
    raw = raw[: raw.size // typesize * typesize]
    made = frame_of(
        raw,
        draw(st.sampled_from(CNAMES)),
        draw(st.sampled_from([0, 1, 5, 9])),
        draw(st.integers(0, 2)),
        typesize,
        draw(st.sampled_from([0, 0, 128, 1000, 4096, 30_000, 1 << 16])),
    )
    return raw, made


@st.composite
def spans(draw, nbytes):
    borders = sorted(draw(st.sets(st.integers(0, nbytes), min_size=2, max_size=8)))
    pairs = list(zip(borders[::2], borders[1::2], strict=False))
    return [(start, stop) for start, stop in pairs if stop > start]


@given(st.data())
def test_wanted_blocks_are_those_of_the_whole_frame(data):
    raw, frame = data.draw(frames())
    if raw.size < 2:
        return
    wanted = data.draw(spans(raw.size))
    with at_no_cost():
        found, out = in_part(frame, wanted, raw.size)
    flags, typesize, nbytes, size, _ = header(frame)
    blocks = {at // size for start, stop in wanted for at in range(start, stop)}
    if not flags & 2 and len(blocks) * (size * 3 // 2) > nbytes:
        assert found is False, "nearly all is wanted"
        return
    whole = size % typesize == 0  # a block smaller than an element ends within it
    usual = bool(flags & 2) or whole
    assert found is usual, "it is as the library writes it"
    for start, stop in wanted if found else ():
        np.testing.assert_array_equal(out[start:stop], raw[start:stop])


@pytest.mark.parametrize("cname", CNAMES)
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_every_block_alone_the_last_one_too(cname, shuffle):
    raw = smooth(RAW)
    frame = frame_of(raw, cname, shuffle=shuffle, blocksize=BLOCK // 4)
    size = header(frame)[3]
    assert size == (BLOCK if cname != "zstd" else BLOCK // 4)
    with at_no_cost():
        for start in range(0, raw.size, size):
            end = min(start + size, raw.size)
            found, out = in_part(frame, [(start, end)], raw.size)
            assert found is True
            np.testing.assert_array_equal(out[start:end], raw[start:end])
            outside = np.delete(out, np.s_[start:end])
            assert (outside == 0xA5).all(), "more blocks were decoded than that"


def in_another_order(frame, order):
    """The same frame, its blocks in another order, as several threads may have written them."""
    *_, nbytes, size, stored = header(frame)
    count = -(-nbytes // size)
    starts = struct.unpack_from(f"<{count}i", frame, 16)
    ends = (*starts[1:], stored)
    body, at, table = b"", 16 + 4 * count, [0] * count
    for number in order:
        table[number] = at + len(body)
        body += frame[starts[number] : ends[number]]
    return frame[:16] + struct.pack(f"<{count}i", *table) + body


@given(st.permutations(range(13)), st.sets(st.integers(0, 12), min_size=1, max_size=8))
def test_blocks_lie_in_any_order(order, wanted):
    raw = smooth(RAW)
    frame = in_another_order(frame_of(raw, blocksize=BLOCK // 4), order)
    assert bytes(blosc.decompress(frame)) == raw.tobytes()
    pieces = [(BLOCK * number, min(BLOCK * number + 9, raw.size)) for number in sorted(wanted)]
    with at_no_cost():
        found, out = in_part(frame, pieces, raw.size)
    assert found is True
    for start, stop in pieces:
        np.testing.assert_array_equal(out[start:stop], raw[start:stop])


@pytest.mark.parametrize("cname", CNAMES)
def test_frames_that_threads_have_written(cname):
    raw = smooth(4 << 20)
    with several_threads():
        made = [frame_of(raw, cname, blocksize=1 << 16) for _ in range(5)]
    for frame in made:
        for start in (0, 1_300_000, raw.size - 70_000):
            found, out = in_part(frame, [(start, start + 70_000)], raw.size)
            assert found is True
            np.testing.assert_array_equal(out[start:][:70_000], raw[start:][:70_000])


def test_a_table_that_is_longer_than_what_is_read_at_first():
    raw = smooth(16 << 20)
    frame = frame_of(raw, "zstd", clevel=1, blocksize=1 << 12)
    assert -(-raw.size // header(frame)[3]) > 1024
    for start in (0, 9_000_001, raw.size - 70_000):
        found, out = in_part(frame, [(start, start + 70_000)], raw.size)
        assert found is True
        np.testing.assert_array_equal(out[start:][:70_000], raw[start:][:70_000])


# --- sparingly ------------------------------------------------------------------------------------


@given(st.data())
def test_sparing_reads_take_memory_for_no_more_than_whole_blocks(data):
    raw, frame = data.draw(frames())
    if raw.size < 2:
        return
    wanted = data.draw(spans(raw.size))
    flags, typesize, _, size, _ = header(frame)
    found = drive_fetch_from_bytes(read_blocks(wanted_of(wanted, raw.size), size), frame)
    if size % typesize and not flags & 2:
        assert found is FallbackRead.WHOLE, "a block ends within an element"
        return
    before, behind = wanted[0][0] - found.first, found.first + found.memory.size - wanted[-1][1]
    assert 0 <= before < size
    assert 0 <= behind < size
    out = spread(found, raw.size, 0)
    for start, stop in wanted:
        np.testing.assert_array_equal(out[start:stop], raw[start:stop])


def test_sparing_reads_refuse_blocks_that_are_larger_than_expected():
    raw = smooth(RAW)
    frame = frame_of(raw, blocksize=BLOCK // 4)
    size = header(frame)[3]
    wanted = wanted_of([(100, 200)], RAW)
    assert drive_fetch_from_bytes(read_blocks(wanted, size), frame).memory.size == size
    assert drive_fetch_from_bytes(read_blocks(wanted, size - 1), frame) is FallbackRead.WHOLE
    alone = frame_of(smooth(4 << 20), "zstd", blocksize=4 << 20)
    assert header(alone)[3] == 4 << 20
    calls = []
    reading = Blosc("zstd").partial_decode(wanted_of([(0, 9)], 4 << 20), lambda: calls.append(1))
    found = drive_fetch_from_bytes(reading, alone)
    assert calls == [1], "it is asked before all of the chunk is held"
    assert found.memory.size == 4 << 20


# --- what is left to those who decode all of it ---------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\x03"), (0, b"\x05"), (2, b"\x09"), (2, b"\x41"), (2, b"\xa1"), (3, b"\0"),
        (4, struct.pack("<I", 99_999)), (4, b"\0\0\0\0"), (8, b"\0\0\0\0"),
        (8, b"\xff\xff\xff\xff"),
        (8, struct.pack("<I", RAW + 1)), (8, struct.pack("<I", 64)), (12, struct.pack("<I", 17)),
        (12, b"\0\0\0\0"), (16, b"\0\0\0\0"), (16, b"\xff\xff\xff\xff"), (16, b"\xff\xff\xff\x7f"),
        (20, b"\xff\xff\xff\x7f"), (2, b"\x03"),
    ],
)  # fmt: skip
def test_headers_and_tables_that_lie(at, value):
    frame = bytearray(frame_of(smooth(RAW), blocksize=BLOCK // 4))
    frame[at : at + len(value)] = value
    with at_no_cost():
        assert in_part(bytes(frame), [(0, 100)], RAW)[0] is False


@pytest.mark.parametrize("length", [-1, -(1 << 31), (1 << 31) - 1, BLOCK // 4 + 1, 5000, 0, 3])
def test_a_wanted_block_whose_lengths_lie(length):
    frame = bytearray(frame_of(smooth(RAW), blocksize=BLOCK // 4))
    (start,) = struct.unpack_from("<i", frame, 16)
    struct.pack_into("<i", frame, start, length)
    with at_no_cost():
        assert in_part(bytes(frame), [(0, 100)], RAW)[0] is False
        assert in_part(bytes(frame), [(600_000, 600_100)], RAW)[0] is True, "others are there"


@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_elements_across_blocks_are_left_alone(shuffle):
    """The library does not write all of their bytes: memory of others would be taken for values."""
    frame = bytearray(frame_of(smooth(RAW), shuffle=shuffle, typesize=4, blocksize=BLOCK // 4))
    frame[3] = 3
    with at_no_cost():
        assert in_part(bytes(frame), [(0, 100)], RAW)[0] is False
    with pytest.raises(CorruptObjectError, match="which are no elements of 3"):
        Blosc().decode_into(bytes(frame), np.zeros(RAW, np.uint8))


def bits_of(raw, typesize):
    """What a block holds that has the same bits of all its elements side by side."""
    elements = len(raw) // typesize
    whole = elements * typesize
    if elements % 8:
        return raw
    rows = np.frombuffer(raw, np.uint8, whole).reshape(8 * typesize, elements // 8)
    bits = np.unpackbits(rows, axis=1, bitorder="little").T.reshape(elements, typesize, 8)
    return np.packbits(bits, axis=2, bitorder="little").tobytes() + raw[whole:]


@pytest.mark.parametrize("typesize", [2, 3, 4, 8, 16, 17, 255])
def test_bits_of_blocks_that_end_within_an_element(typesize):
    """As other libraries write them that take no heed of elements: every byte of them is there."""
    rng = np.random.default_rng(typesize)
    for elements in (8, 13, 136):
        first, last = (
            rng.bytes(elements * typesize + 8 * typesize),
            rng.bytes(elements * typesize + typesize - 1),
        )
        second = 24 + 4 + len(first)
        stored = second + 4 + len(last)
        fields = (2, 1, 1 << 5 | 16 | 4, typesize, len(first) + len(last), len(first), stored)
        frame = struct.pack("<4B3I2i", *fields, 24, second)
        for block in (first, last):
            frame += struct.pack("<i", len(block)) + block
        expected = bits_of(first, typesize) + bits_of(last, typesize)
        for before in (0xEE, 0x11):
            out = np.full(len(expected), before, np.uint8)
            Blosc().decode_into(frame, out)
            assert out.tobytes() == expected


def test_bits_of_any_number_of_bytes_that_tensorstore_writes():
    import tensorstore as ts

    settings = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4}
    codec = {"name": "blosc", "configuration": settings | {"blocksize": 1 << 14}}
    for nbytes in (65_536 + 33, (1 << 18) + 33, (1 << 20) + 97):
        metadata = {
            "shape": [nbytes],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes]}},
            "codecs": ["bytes", codec],
        }
        spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
        theirs = ts.open(spec, create=True).result()
        values = smooth(nbytes)
        theirs.write(values).result()
        found = {
            key.decode(): theirs.kvstore.read(key).result().value
            for key in theirs.kvstore.list().result()
        }
        ours = zd.open_array(found)
        for region in (slice(None), slice(70_000 % nbytes, nbytes), slice(9, 300, 7)):
            np.testing.assert_array_equal(ours[region], values[region])


def test_holes_of_split_blocks_are_not_taken_for_values():
    """A frame whose blocks of 1000 bytes have three pieces of 333: nothing says the last byte."""
    piece = struct.pack("<i", 333) + bytes(333)  # stored as it is
    blocks, starts = b"", []
    for _ in range(400):
        starts.append(16 + 4 * 400 + len(blocks))
        blocks += piece * 3
    stored = 16 + 4 * 400 + len(blocks)
    head = struct.pack("<4B3I", 2, 1, 1 << 5, 3, 400_000, 1000, stored)
    frame = head + struct.pack("<400i", *starts) + blocks
    with at_no_cost():
        assert in_part(frame, [(0, 100)], 400_000)[0] is False
    with pytest.raises(CorruptObjectError, match="which are no elements of 3"):
        Blosc().decode_into(frame, np.zeros(400_000, np.uint8))


def test_blocks_that_claim_to_be_long_are_not_read():
    """All blocks start at one place, and the next one is far behind."""
    raw = smooth(RAW)
    frame = bytearray(frame_of(raw, blocksize=BLOCK // 4))
    (first,) = struct.unpack_from("<i", frame, 16)
    struct.pack_into("<13i", frame, 16, *[first] * 13)
    frame += bytes(5 * RAW)
    struct.pack_into("<I", frame, 12, len(frame))
    with at_no_cost():
        assert in_part(bytes(frame), [(0, 100)], RAW)[0] is False


def test_snappy_is_left_to_who_knows_it():
    frame = bytearray(frame_of(smooth(RAW), blocksize=BLOCK // 4))
    frame[2] = frame[2] & 0x1F | 2 << 5
    with at_no_cost():
        assert in_part(bytes(frame), [(0, 100)], RAW)[0] is False


def test_cut_off_frames():
    frame = frame_of(smooth(RAW), blocksize=BLOCK // 4)
    with at_no_cost():
        for length in (0, 1, 15, 16, 17, 60, 67, 68, 100, len(frame) // 2):
            assert in_part(frame[:length], [(RAW - 100, RAW)], RAW)[0] is False
        stored = frame_of(smooth(RAW), clevel=0)
        for length in (0, 16, 600_000, 600_100):
            assert in_part(stored[:length], [(600_000, 600_100)], RAW)[0] is False
        assert in_part(stored[: 16 + 600_100], [(600_000, 600_100)], RAW)[0] is True


@given(st.data())
def test_damage_is_an_error_of_the_whole_frame_or_does_not_matter(data):
    """Whatever bytes are changed: what is wanted is right, or the error is that of all of it."""
    raw = smooth(RAW)
    cname, shuffle = data.draw(st.sampled_from(CNAMES)), data.draw(st.integers(0, 2))
    frame = bytearray(frame_of(raw, cname, shuffle=shuffle, blocksize=BLOCK // 4))
    near = st.integers(0, 80) | st.integers(0, len(frame) - 1)
    for at in data.draw(st.lists(near, min_size=1, max_size=3)):
        frame[at] = data.draw(st.integers(0, 255))
    wanted = data.draw(spans(raw.size))
    said, found = [None, None], [None, None]
    asked = wanted_of(wanted, raw.size)
    with at_no_cost():
        for number, fetch in enumerate(
            (super(Blosc, Blosc()).partial_decode(asked), Blosc().partial_decode(asked))
        ):
            try:
                with guarded_memory(0xDE):
                    found[number] = drive_fetch_from_bytes(fetch, bytes(frame))
                assert found[number] is not None
            except CorruptObjectError as error:
                said[number] = str(error)
    assert said[1] in (said[0], None)
    if said == [None, None]:
        whole, part = (spread(one, raw.size, 0xDE) for one in found)
        for start, stop in wanted:
            np.testing.assert_array_equal(part[start:stop], whole[start:stop])


# --- spans ----------------------------------------------------------------------------------------


@st.composite
def regions(draw, shape):
    found = []
    for length in shape:
        start = draw(st.integers(0, length))
        found.append(slice(start, draw(st.integers(start, length)), draw(st.integers(1, 5))))
    return tuple(found)


@given(st.data())
def test_spans_cover_all_elements_and_leave_out_what_is_long(data):
    shape = data.draw(
        st.sampled_from([(4, 256, 256), (300_000,), (40, 3, 70, 50), (1, 1, 200_000)])
    )
    some = data.draw(st.lists(regions(shape), min_size=1, max_size=4))
    found = byte_ranges_of(shape, 2, some)
    wanted = np.zeros(shape, "u2")
    for region in some:
        wanted[region] = 0xFFFF
    inside = wanted.reshape(-1).view(np.uint8) > 0
    covered = np.zeros(inside.size, bool)
    for start, stop in found:
        assert 0 <= start < stop <= inside.size
        assert not covered[start:stop].any()
        assert inside[start], "it begins with what is wanted"
        assert inside[stop - 1], "it ends with what is wanted"
        covered[start:stop] = True
    assert not (inside & ~covered).any()
    gaps = np.flatnonzero(np.diff(np.concatenate([[1], inside.astype("i1"), [1]])))
    for start, stop in zip(gaps[::2], gaps[1::2], strict=True):
        if found and stop - start >= 1 << 14:
            assert not covered[start:stop].any()
    assert list(found) == sorted(found)


# --- chunks ---------------------------------------------------------------------------------------

SHAPE = (4, 128, 256)
VALUES = np.cumsum(np.random.default_rng(3).integers(-9, 9, SHAPE), 2).astype("f4")
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 1 << 14
    },
}  # fmt: skip
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
OFFSET = {"name": "scale_offset", "configuration": {"offset": 2, "scale": 4}}
RESHAPE = {"name": "reshape", "configuration": {"shape": [-1]}}
CHAINS = {
    "little": [LITTLE, BLOSC],
    "big": [BIG, BLOSC],
    "checked": [LITTLE, BLOSC, "crc32c"],
    "transposed": [TRANSPOSE, BIG, BLOSC],
    "scaled": [OFFSET, TRANSPOSE, LITTLE, BLOSC],
    "reshaped": [RESHAPE, LITTLE, BLOSC],
}


@pytest.mark.parametrize("name", CHAINS)
@given(data=st.data())
def test_regions_of_chunks_through_all_ways_to_read(name, data):
    spec = ChunkSpec(SHAPE, data_type_of("f4"), np.zeros((), "f4"))
    bound = chain_from_v3(CHAINS[name]).bind(spec)
    encoded = b"".join(bound.encode(VALUES))
    some = [
        region
        for region in data.draw(st.lists(regions(SHAPE), min_size=1, max_size=3))
        if VALUES[region].size
    ]
    if not some:
        return
    order = data.draw(st.sampled_from("CF"))
    read = DecodeOptions()

    def destinations():
        return [ChunkRead(region, np.full(VALUES[region].shape, 7, "f4", order)) for region in some]

    with at_no_cost(), mock.patch("zarr_dask.codecs.base._EACH_REGION", 0):
        alone, joint, fetched = destinations(), destinations(), destinations()
        for region, out in alone:
            bound.decode(encoded, region, out, read)
        before = thread_decoded_nbytes()
        bound.decode_cuts(encoded, joint, read)
        assert thread_decoded_nbytes() - before == VALUES.nbytes
        assert drive_fetch_from_bytes(bound.read_cuts(fetched, read, whole=False), encoded) is True
    for region, out in (*alone, *joint, *fetched):
        np.testing.assert_array_equal(out, VALUES[region])


TYPES = [
    "bool", "int8", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "r24", "r64",
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}},
    {"name": "numpy.timedelta64", "configuration": {"unit": "ms", "scale_factor": 10}},
]  # fmt: skip


@pytest.mark.parametrize("endian", [LITTLE, BIG], ids=["little", "big"])
@pytest.mark.parametrize("name", TYPES, ids=str)
def test_regions_of_every_data_type(name, endian):
    data_type = data_type_of(name)
    dtype = data_type.dtype
    shape = (512 // dtype.itemsize, 128, 32)
    raw = np.random.default_rng(1).integers(0, 2, (*shape, dtype.itemsize), "u1")
    values = raw.view(dtype).reshape(shape)
    codec = {**BLOSC, "configuration": BLOSC["configuration"] | {"typesize": dtype.itemsize}}
    bound = chain_from_v3([endian, codec]).bind(ChunkSpec(shape, data_type, np.zeros((), dtype)))
    encoded = b"".join(bound.encode(values))
    region = (slice(3, 9, 1), slice(0, 128, 3), slice(1, 30, 1))
    for out in (np.zeros(values[region].shape, dtype), np.zeros(values[region].shape, dtype, "F")):
        for read in (
            lambda out: bound.decode(encoded, region, out, DecodeOptions()),
            lambda out: drive_fetch_from_bytes(
                bound.read_cuts([ChunkRead(region, out)], DecodeOptions(), whole=False), encoded
            ),
        ):
            out[...] = np.ones((), dtype)
            with at_no_cost(), mock.patch("zarr_dask.codecs.base._EACH_REGION", 0):
                read(out)
            assert np.ascontiguousarray(out).tobytes() == values[region].tobytes()


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    values = np.tile(VALUES, (2, 4, 2))
    array = zd.create_array(
        tmp_path / "a", shape=values.shape, chunks=(4, 512, 512), dtype="f4", codecs=[LITTLE, BLOSC]
    )
    array[...] = values
    return tmp_path / "a", values


REGIONS = [np.s_[1:2], np.s_[:, 128:256], np.s_[:, :, 3], np.s_[5, 6, 7], np.s_[2:6, ::300, :10]]


@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_files_are_read_in_part(stored, region):
    path, values = stored
    store = MeteredStore(LocalStore(str(path)))
    array = zd.open_array(store)
    whole = sum(file.stat().st_size for file in (path / "c").rglob("*") if file.is_file())
    store.traffic.requests = store.traffic.nbytes = 0
    np.testing.assert_array_equal(array[region], values[region])
    chunks = 1 if region in (np.s_[1:2], np.s_[5, 6, 7]) else 2
    assert store.traffic.requests == chunks, "what is looked at beforehand counts as no request"
    if region != np.s_[:, :, 3]:  # which all blocks have a piece of
        assert store.traffic.nbytes < whole * chunks / 2 / 1.9


def test_half_of_a_chunk_is_worth_reading_in_part(tmp_path):
    values = np.tile(VALUES, (1, 4, 2))
    large = {"name": "blosc", "configuration": BLOSC["configuration"] | {"blocksize": 0}}
    zd.create_array(
        tmp_path, shape=values.shape, chunks=values.shape, dtype="f4", codecs=[LITTLE, large]
    )[...] = values
    store = MeteredStore(LocalStore(str(tmp_path)))
    array = zd.open_array(store)
    store.traffic.nbytes = 0
    np.testing.assert_array_equal(array[1:3], values[1:3])
    assert store.traffic.nbytes < (tmp_path / "c/0/0/0").stat().st_size * 0.6


def test_points_of_a_file_are_read_in_part(stored):
    path, values = stored
    store = MeteredStore(LocalStore(str(path)))
    array = zd.open_array(store)
    store.traffic.nbytes = 0
    points = ([0, 0, 7, 7], [1, 300, 2, 511], [5, 500, 1, 511])
    np.testing.assert_array_equal(array.vindex[points], values[points])
    assert store.traffic.nbytes < sum(f.stat().st_size for f in (path / "c").rglob("0")) / 3


def test_a_file_that_is_cut_off_or_missing(stored):
    path, values = stored
    array = zd.open_array(path)
    file = path / "c/0/0/0"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    np.testing.assert_array_equal(array[0, :9], values[0, :9])
    with pytest.raises(CorruptObjectError, match=r"c/0/0/0.*bytes, but"):
        array[3]
    file.write_bytes(b"")
    with pytest.raises(CorruptObjectError, match="c/0/0/0"):
        array[3]
    file.unlink()
    assert (array[3] == 0).all()
    with pytest.raises(zd.errors.ChunkMissingError):
        zd.open_array(path, read=zd.ReadOptions(missing="error"))[3]


@given(st.data())
def test_bytes_are_unshuffled_as_numcodecs_does(data):
    itemsize = data.draw(st.sampled_from(sorted(UNSHUFFLED_FAST)))
    count = data.draw(st.integers(0, 300) | st.integers(1, 1 << 16).map(lambda n: n * 3 + 1))
    elements = np.random.default_rng(count).integers(0, 256, count * itemsize, np.uint8)
    shuffled = np.frombuffer(Shuffle(itemsize).encode(elements), np.uint8)
    memory = np.zeros(elements.size + 128, np.uint8)
    unshuffle(shuffled, itemsize, memory[64:-64])
    assert np.array_equal(memory[64:-64], elements)
    assert not memory[:64].any()
    assert not memory[-64:].any()


def test_the_filter_unshuffles_alike_in_both_ways(monkeypatch):
    """Large chunks go through frames, and small ones through numcodecs."""
    codec, elements = (
        Filter.of({"id": "shuffle", "elementsize": 4}),
        np.arange(1 << 15).view(np.uint8),
    )
    shuffled = codec.encode(elements, 4)
    for least in (0, 1 << 30):
        monkeypatch.setattr(filters, "_LEAST_FRAMED", least)
        out = np.empty_like(elements)
        codec.decode_into(shuffled, out)
        assert np.array_equal(out, elements)
