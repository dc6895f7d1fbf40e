"""Pieces of stored objects, against NumPy, in every kind of layout; requests in batches."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.layouts import CRC, LAYOUTS, SHAPE, VALUES, Exact, Far, sharding
from tests.support.threads import threads_at_work
from zarr_dask._util.buffers import prefault
from zarr_dask._util.threads import MOST_AT_ONCE, map_waiting
from zarr_dask.array import reader as reading
from zarr_dask.array.reader import ObjectSlice, read_pieces
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores import HookStore, MemoryStore, Recording
from zarr_dask.stores.base import ReadPolicy, TaggedBytes, require_same_etag
from zarr_dask.stores.conditional_get import ConditionalGetMixin
from zarr_dask.stores.wrapper import StoreWrapper
from zarr_dask.stores.wrappers.metered import MeteredStore

TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
SCALED = {"name": "scale_offset", "configuration": {"offset": 1, "scale": 2}}
PIECES_LAYOUTS = {
    **LAYOUTS,
    "v2 F gzip": {"format": "v2", "chunks": (4, 4), "order": "F", "compressor": {"id": "gzip"}},
    "transposed": {"chunks": (4, 8), "codecs": [TRANSPOSE, BYTES, CRC]},
    "transposed shards": {"chunks": (4, 8), "codecs": [TRANSPOSE, sharding((4, 2))]},
    "shards of transposed": {"chunks": (4, 8), "codecs": [sharding((2, 4), [TRANSPOSE, BYTES])]},
    "scaled shards": {
        "dtype": "float64",
        "fill_value": 1.0,
        "chunks": (4, 8),
        "codecs": [SCALED, sharding((2, 2), [TRANSPOSE, BYTES, CRC])],
    },
    "irregular": {"chunks": ((3, 5, 4), 6)},
}


def array_of(layout: str, store: MemoryStore | None = None) -> zd.Array:
    """An array of `VALUES`, of which the first rows were never written."""
    store = MemoryStore() if store is None else store
    options = {"dtype": "int32", "fill_value": 0, **PIECES_LAYOUTS[layout]}
    if "compressor" in options:
        options["codecs"] = [options.pop("compressor")]
    array = zd.create_array(store, "a", shape=SHAPE, **options)
    array[...] = expected(array)
    return array


def expected(array: zd.Array) -> np.ndarray:
    values = VALUES.astype(array.dtype)
    values[:4] = array.fill_value
    values[8:10, 3:5] = array.fill_value
    return values


def slices(length: int) -> st.SearchStrategy[slice]:
    def of(start: int, stop: int, step: int) -> slice:
        low, high = sorted((start, stop))
        last = low + (high - low) // step * step
        return slice(low, last + 1, step)

    position = st.integers(0, length - 1)
    return st.builds(of, position, position, st.integers(1, 3))


@st.composite
def lists_of_pieces(draw, array: zd.Array):
    """Pieces with room for what they take, and what that is."""
    grid = array.meta.grid
    coords = st.tuples(*(st.integers(0, count - 1) for count in grid.counts))
    values = expected(array)
    pieces, wanted = [], []
    for at in draw(st.lists(coords, min_size=1, max_size=8)):
        cell = values[grid.region_of(at)]
        inside = tuple(draw(slices(n)) for n in cell.shape)
        want = cell[inside]
        order = draw(st.sampled_from("CF"))
        out = np.full_like(want, -1, order=order)
        pieces.append(ObjectSlice(at, inside, out))
        wanted.append(want)
    return pieces, wanted


class Remote(Exact):
    """A store that wants to be asked for many values at a time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 40, max_concurrent_requests=64)


class Narrow(Exact):
    """A store that wants few requests at a time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 40, max_concurrent_requests=3)


class Cramped(Exact):
    """A store that wants few bytes at a time."""

    coalescing = ReadPolicy(
        gap=0, largest=1 << 40, max_concurrent_requests=6, max_bytes_in_flight=200
    )


@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
@given(
    data=st.data(),
    threads=st.sampled_from([1, None]),
    store=st.sampled_from([Exact, Far, Remote, Narrow, Cramped]),
)
@settings(max_examples=12)
def test_any_pieces(layout, data, threads, store):
    array = array_of(layout, store())
    pieces, wanted = data.draw(lists_of_pieces(array))
    read_pieces(array, pieces, threads)
    for piece, want in zip(pieces, wanted, strict=True):
        np.testing.assert_array_equal(piece.out, want)


@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_all_of_an_object_is_a_piece_of_it(layout):
    array = array_of(layout)
    at = (1, 0)
    out = np.empty(array.meta.grid.shape_of(at), array.dtype)
    read_pieces(array, [ObjectSlice(at, None, out)])
    region = array.meta.grid.region_of(at)
    inside = tuple(slice(s.stop - s.start) for s in region)
    np.testing.assert_array_equal(out[inside], expected(array)[region])


def point(array: zd.Array, row: int, column: int) -> ObjectSlice:
    (part,) = array.meta.grid.parts((slice(row, row + 1, 1), slice(column, column + 1, 1)))
    return ObjectSlice(part.coords, part.inside, np.empty((1, 1), array.dtype))


POINTS = [(5, 5), (4, 5), (7, 0), (5, 5), (6, 14), (11, 11)]


@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_points_of_one_object_share_its_requests(layout):
    array = array_of(layout, Far())
    recording = Recording(array.store)
    array = zd.open_array(recording, "a", format=array.format)
    recording.clear()
    pieces = [point(array, *at) for at in POINTS]
    read_pieces(array, pieces, threads=1)
    assert [p.out[0, 0] for p in pieces] == [expected(array)[at] for at in POINTS]
    levels = {"nested shards": 3}.get(layout, 2 if "shards" in layout else 1)
    levels = 1 if layout == "shards in gzip" else levels
    objects = {piece.coords for piece in pieces}
    assert recording.per_key() == {array.key(coords): levels for coords in objects}


def test_points_of_one_chunk_ask_for_it_once():
    array = array_of("shards", Exact())
    recording = Recording(array.store)
    array = zd.open_array(recording, "a")
    recording.clear()
    read_pieces(array, [point(array, 4, 0), point(array, 5, 1), point(array, 4, 1)])
    assert len(recording.requests) == 2


# --- batches --------------------------------------------------------------------------------------


def opened(store: MemoryStore, layout: str) -> tuple[Recording, zd.Array]:
    """An array in a store that begins to record now."""
    made = array_of(layout, store)
    recording = Recording(store)
    array = zd.open_array(recording, "a", format=made.format)
    recording.clear()
    return recording, array


@pytest.mark.parametrize("threads", [1, None])
@pytest.mark.parametrize("store", [Remote, Cramped])
@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_a_whole_read_in_batches(layout, store, threads):
    recording, array = opened(store(), layout)
    np.testing.assert_array_equal(array.read(threads=threads), expected(array))
    assert set(recording.per_key().values()) == {1}
    if store is Remote and threads == 1:
        missing = layout not in {"v3 over the edge", "shards over the edge", "nested shards"}
        assert sum(recording.batches.values()) == 1 + missing  # of objects, then the document


LEVELS = {"nested shards": 3, "shards": 2, "transposed shards": 2, "scaled shards": 2, "v3": 1}


@pytest.mark.parametrize("layout", LEVELS)
def test_parts_of_many_objects_are_one_batch_per_level(layout):
    recording, array = opened(Remote(), layout)
    np.testing.assert_array_equal(
        array.read(np.s_[1:11:3, 1:15], threads=1), expected(array)[1:11:3, 1:15]
    )
    # and the document, as objects are missing; the one object of nested shards is there
    missing = layout != "nested shards"
    assert recording.batches == {"get_ranges": LEVELS[layout] + missing}
    assert len(recording.per_key()) > 1 + missing


def test_pieces_of_many_objects_are_one_batch_per_level():
    recording, array = opened(Remote(), "shards")
    pieces = [point(array, *at) for at in POINTS]
    read_pieces(array, pieces, threads=1)
    assert [p.out[0, 0] for p in pieces] == [expected(array)[at] for at in POINTS]
    assert recording.batches == {"get_ranges": 2}


def test_dask_reads_a_block_in_one_batch():
    recording, array = opened(Remote(), "v3")
    zd.from_zarr(array, chunks=(12, 8)).compute(scheduler="sync")
    # one for each of two blocks, and the document for each, as objects are missing in both
    assert recording.batches == {"get_ranges": 4}


def test_batches_are_bounded():
    recording, array = opened(Narrow(), "v3 uncompressed")
    array.read(threads=1)
    assert recording.batches == {"get_ranges": 4 + 1}  # of twelve objects, and the document
    recording, array = opened(Cramped(), "shards in gzip")  # objects of 128 bytes when decoded
    array.read(threads=1)
    assert recording.batches == {"get_ranges": 3 + 1}  # of six


# --- transfers that are cut off -------------------------------------------------------------------


class CutOff(MemoryStore):
    """Sends too few bytes of one key, so many times."""

    key = ""
    times = 0

    def _cut(self, key: str, value: bytes | None) -> bytes | None:
        if key != self.key or not self.times or not value:
            return value
        self.times -= 1
        return value[: len(value) // 2]

    def get(self, key):
        return self._cut(key, super().get(key))

    def get_ranges(self, requests):
        found = [super(CutOff, self).get_ranges([one])[0] for one in requests]
        return [self._cut(key, value) for (key, _), value in zip(requests, found, strict=True)]


class RemoteCutOff(CutOff):
    """The same, asked in batches."""

    coalescing = Remote.coalescing


FIRST = {"nested shards": (0, 1)}  # there is one row of them
READS = {"all": np.s_[0:12, 0:16], "part": np.s_[1:11, 1:15]}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("store", [CutOff, RemoteCutOff])
@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_what_was_cut_off_is_fetched_again(layout, store, read):
    recording, array = opened(store(), layout)
    sound = array[READS[read]]
    once = recording.per_key()
    recording.clear()
    key = array.key(FIRST.get(layout, (1, 0)))
    recording.store.key, recording.store.times = key, 1
    out = np.full_like(sound, -1)
    np.testing.assert_array_equal(array.read(READS[read], out=out), sound)
    assert recording.store.times == 0
    again = recording.per_key()
    assert once[key] < again[key] <= 2 * once[key]
    assert {k: n for k, n in again.items() if k != key} == {
        k: n for k, n in once.items() if k != key
    }


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("store", [CutOff, RemoteCutOff])
@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_what_is_always_cut_off_is_corrupt_after_some_fetches(layout, store, read):
    recording, array = opened(store(), layout)
    array[READS[read]]
    coords = FIRST.get(layout, (1, 0))
    key = array.key(coords)
    once = recording.per_key()[key]
    recording.clear()
    recording.store.key, recording.store.times = key, 1 << 30
    with pytest.raises(zd.errors.CorruptObjectError, match=key) as caught:
        array.read(READS[read], threads=1)
    assert caught.value.key == key
    assert caught.value.coords[0] == coords
    most = 4 if store is RemoteCutOff else 2  # a network cuts off several times in a row
    assert most <= recording.per_key()[key] <= most * once


def test_a_damaged_file_is_read_twice(tmp_path):
    array = zd.create_array(tmp_path, shape=(4, 4), dtype="i4", chunks=(2, 2), shards=(4, 4))
    array[...] = VALUES[:4, :4]
    path = tmp_path / "c" / "0" / "0"
    damaged = bytearray(path.read_bytes())
    damaged[20] ^= 1  # in the frame of the first chunk
    damaged[0:4] = b"\0\0\0\0"
    path.write_bytes(damaged)
    recording = Recording(array.store)
    array = zd.open_array(recording)
    for selection, requests in ((np.s_[0, 0], 4), (np.s_[0:4, 0:4], 2)):
        recording.clear()
        with pytest.raises(zd.errors.CorruptObjectError) as caught:
            array[selection]
        assert caught.value.coords == ((0, 0), (0, 0))
        found = recording.per_key()
        assert found.pop("c/0/0") == requests
        assert found.keys() <= {"zarr.json"}  # the array may have been replaced


def test_errors_of_the_store_are_not_tried_again():
    calls = []

    def fail(method: str, key: str) -> None:
        if "c/" in key:
            calls.append(key)
            raise zd.errors.StoreError("the wire is cut")

    for store in (Exact(), Remote()):
        array_of("shards", store)
        array = zd.open_array(HookStore(store, fail), "a")
        for selection in READS.values():
            calls.clear()
            with pytest.raises(zd.errors.StoreError, match="wire"):
                array.read(selection, threads=1)
            assert len(calls) == 1


# --- absence --------------------------------------------------------------------------------------

INSIDE = {  # a chunk inside a shard, and its coordinates on the way down
    "shards": (np.s_[8:10, 2:4], ((2, 0), (0, 1))),
    "shards, index first": (np.s_[8:10, 2:4], ((2, 0), (0, 1))),
    "shards in gzip": (np.s_[8:10, 2:4], ((2, 0), (0, 1))),
    "nested shards": (np.s_[8:10, 2:4], ((0, 0), (1, 0), (1, 1))),
    "transposed shards": (np.s_[8:10, 4:8], ((2, 0), (1, 0))),
}


@pytest.mark.parametrize("store", [Exact, Remote])
@pytest.mark.parametrize("layout", INSIDE)
def test_an_absent_chunk_of_a_shard_is_named(layout, store):
    region, coords = INSIDE[layout]
    made = array_of(layout, store())
    made[...] = VALUES
    made[region] = 0
    array = zd.open_array(made.store, "a", read=zd.ReadOptions(missing="error"))
    key = array.key(coords[0])
    for selection in (np.s_[...], np.s_[8, region[1].start], np.s_[7:10, 1:5], np.s_[:, 2:5]):
        with pytest.raises(zd.errors.ChunkMissingError, match=f"{key}.*lost data") as caught:
            array[selection]
        assert caught.value.coords == coords
        assert caught.value.key == key
    np.testing.assert_array_equal(array[0:4, 0:8], VALUES[0:4, 0:8])
    assert not zd.open_array(made.store, "a")[region].any()


@pytest.mark.parametrize("store", [Exact, Remote])
@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_an_absent_object_is_named(layout, store):
    made = array_of(layout, store())
    made[...] = VALUES
    key = made.key(FIRST.get(layout, (1, 0)))
    del made.store.values[key]
    options = zd.ReadOptions(missing="error")
    array = zd.open_array(made.store, "a", read=options, format=made.format)
    for selection in (np.s_[...], np.s_[4:10, :9]):
        with pytest.raises(zd.errors.ChunkMissingError, match="lost data") as caught:
            array[selection]
        assert caught.value.key == key


def test_an_absent_object_is_an_error_for_all_its_pieces():
    array = zd.create_array({}, shape=SHAPE, dtype="i4", chunks=(4, 4))
    strict = zd.open_array(array.store, read=zd.ReadOptions(missing="error"))
    with pytest.raises(zd.errors.ChunkMissingError):
        read_pieces(strict, [point(array, 0, 0), point(array, 3, 3)])


class Answering(MemoryStore):
    """A service whose answers come when `asked_for` is set, which is another thread's to do."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)
    get_versions = ConditionalGetMixin.get_versions
    get_ranges = ConditionalGetMixin.get_ranges
    get = ConditionalGetMixin.get

    def __init__(self, values=None):
        super().__init__(values)
        self.asked_for = threading.Event()

    def _version(self, key, wanted, tag):
        if "c/" in key:
            assert self.asked_for.wait(20), "nothing was done while this was waited for"
        value = self.values.get(key)
        return TaggedBytes(None if value is None else value[wanted.start : wanted.stop], 1)


@pytest.mark.parametrize("selection", [np.s_[:], np.s_[:, 128:], np.s_[:512, :512]])
@pytest.mark.parametrize("shards", [None, (512, 512)])
def test_memory_is_provided_while_answers_are_waited_for(monkeypatch, selection, shards):
    """Of whole objects, and of parts of shards, whose chunks come after the index."""
    values = np.random.default_rng(4).random((512, 1024))
    grid = {"chunks": (128, 128), "shards": shards} if shards else {"chunks": (512, 512)}
    zd.create_array(made := MemoryStore(), shape=values.shape, dtype="f8", **grid)[...] = values
    store = Answering(made.values)
    array = zd.open_array(store)
    provided = []

    def provide_and_say(memory):
        prefault(memory)
        provided.append(memory.nbytes)
        store.asked_for.set()

    monkeypatch.setattr(reading, "prefault", provide_and_say)
    found = array.read(np.index_exp[selection], threads=1)
    np.testing.assert_array_equal(found, values[selection])
    assert provided == [found.nbytes]
    array.read(out=found[:1], region=np.s_[:1, : found.shape[1]])  # memory of others is theirs
    assert len(provided) == 1


class LastOneLate(Answering):
    """A service whose answer to the last range comes when `asked_for` is set, not before."""

    def _version(self, key, wanted, tag):
        value = self.values.get(key)
        if wanted.start > len(value) // 3 and wanted.stop is not None:
            assert self.asked_for.wait(20), "nothing was decoded while this was waited for"
        return TaggedBytes(value[wanted.start : wanted.stop], 1)


@pytest.mark.parametrize("shards", [1, 2])
def test_what_has_come_is_decoded_while_the_rest_is_waited_for(monkeypatch, shards):
    values = np.random.default_rng(5).random((shards * 64, 64))
    grid = {"chunks": (32, 32), "shards": (64, 64)}
    zd.create_array(made := MemoryStore(), shape=values.shape, dtype="f8", **grid)[...] = values
    store = LastOneLate(made.values)
    array = zd.open_array(store)
    decode_into = Blosc.decode_into

    def decode_and_say(self, buffer, out):
        decode_into(self, buffer, out)
        store.asked_for.set()

    monkeypatch.setattr(Blosc, "decode_into", decode_and_say)
    found = array.read(np.s_[:, :32], threads=1)
    np.testing.assert_array_equal(found, values[:, :32])
    assert store.asked_for.is_set()


class SecondHalfLate(Answering):
    """A service whose later answers come when more has been asked for."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=16)

    def __init__(self, values=None):
        super().__init__(values)
        self.calls = []

    def get_versions(self, requests):
        if "c/" in requests[0][0]:
            self.calls.append(len(requests))
        return super().get_versions(requests)

    def _version(self, key, wanted, tag):
        number = int(key.partition("c/")[2] or 0)
        if number >= 16:
            self.asked_for.set()
        elif number >= 8:
            assert self.asked_for.wait(20), "nothing more was asked for while this was waited for"
        value = self.values.get(key)
        return TaggedBytes(None if value is None else value[wanted.start : wanted.stop], 1)


def test_the_next_objects_are_asked_for_when_half_of_the_last_are_used():
    """With bounds, as always: no more of them are on their way."""
    values = np.random.default_rng(5).random(40 * 8)
    zd.create_array(made := MemoryStore(), shape=values.shape, dtype="f8", chunks=8)[...] = values
    store = SecondHalfLate(made.values)
    assert np.array_equal(zd.open_array(store).read(threads=1), values)
    assert store.calls == [16, 8, 8, 8]


class FirstOneFast(Answering):
    """A service whose answers come when `asked_for` is set, but for the first range of a value."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=1000)

    def __init__(self, values=None):
        super().__init__(values)
        self.asked = []

    def _version(self, key, wanted, tag):
        value = self.values.get(key)
        if "c/" in key and wanted.start > 0:
            self.asked.append(wanted)
            assert self.asked_for.wait(20)
        return TaggedBytes(value[wanted.start : wanted.stop], 1)


@pytest.mark.parametrize("wrapped", [lambda store: store, MeteredStore], ids=["bare", "tallied"])
@pytest.mark.parametrize("shards", [1, 2])
def test_what_nobody_will_take_is_not_asked_for_while_an_error_is_kept(
    monkeypatch, shards, wrapped
):
    values = np.random.default_rng(6).random((shards * 512, 16))
    grid = {"chunks": (4, 8), "shards": (512, 16)}
    zd.create_array(made := MemoryStore(), shape=values.shape, dtype="f8", **grid)[...] = values
    store = FirstOneFast(made.values)
    array = zd.open_array(wrapped(store))

    def interrupt(self, buffer, out):
        raise KeyboardInterrupt

    monkeypatch.setattr(Blosc, "decode_into", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:
        array.read(np.s_[:, :8], threads=1)
    store.asked_for.set()
    together = threading.Barrier(MOST_AT_ONCE)  # when all threads are here, no request is left
    map_waiting(lambda _: together.wait(20), range(MOST_AT_ONCE))
    assert kept.value is not None
    assert len(store.asked) < MOST_AT_ONCE + 10


class Silent(Remote):
    """A store that forgets the last one of several answers, or the only one."""

    forgets = False

    def get_ranges(self, requests):
        found = super().get_ranges(requests)
        return found[:-1] if self.forgets else found


@pytest.mark.parametrize("grid", [{}, {"shards": (6, 9)}, {"shards": (12, 18)}], ids=str)
def test_a_store_that_gives_no_answer_has_not_said_that_nothing_is_there(grid):
    store = Silent()
    array = zd.create_array(store, shape=(12, 18), dtype="i4", chunks=(3, 3), **grid)
    array[...] = 1
    store.forgets = True
    with pytest.raises(zd.errors.StoreError, match="no answer"):
        array[4:11, 1:17]  # not of all chunks of any shard


def test_parts_are_of_one_value_though_the_first_one_has_no_tag():
    parts = [
        TaggedBytes(b"a", None),
        TaggedBytes(b"b", 1),
        TaggedBytes(b"c", None),
        TaggedBytes(b"d", 1),
    ]
    found, tag = require_same_etag(parts, None, "it")
    assert ([*found], tag) == ([b"a", b"b", b"c", b"d"], None)
    found, _ = require_same_etag([*parts, TaggedBytes(b"e", 2)], None, "it")
    with pytest.raises(zd.errors.ObjectReplacedError, match="it was replaced"):
        list(found)


@pytest.mark.parametrize("codecs", [None, "gzip"])
@pytest.mark.parametrize("wrap", [None, "batch"])
def test_no_more_is_read_of_a_chunk_than_its_codecs_can_have_made(codecs, wrap):
    values = MemoryStore()
    array = zd.create_array(
        values, shape=(2, 64), dtype="u1", chunks=(1, 64),
        compressors=[{"name": "gzip", "configuration": {"level": 1}}] if codecs else None,
    )  # fmt: skip
    array[...] = 7
    values.set("c/1/0", [bytes(1 << 20)])
    store = Recording(values)
    policy = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)
    read = Together(store, policy) if wrap == "batch" else store
    opened = zd.open_array(read)
    assert (opened[0] == 7).all()
    store.clear()
    with pytest.raises(CorruptObjectError, match=r"'c/1/0'.* bytes or more, and a chunk of 64 "):
        opened[...]
    ranges = [request.range for request in store.requests if request.key == "c/1/0"]
    assert max((wanted.stop for wanted in ranges if wanted), default=0) < 1 << 17


@dataclass(frozen=True)
class Together(StoreWrapper):
    """A store whose values are read many at a time."""

    policy: ReadPolicy

    @property
    def coalescing(self):
        return self.policy


def test_a_shard_with_a_gap_longer_than_all_of_its_chunks_is_read_by_its_index():
    values = MemoryStore()
    array = zd.create_array(values, shape=64, dtype="u1", chunks=16, shards=64, compressors=None)
    array[...] = np.arange(64)
    shard = bytes(values.get("c/0"))
    values.set("c/0", [shard[:-68], bytes(1 << 20), shard[-68:]])  # the index stays at the end
    assert np.array_equal(zd.open_array(values)[...], np.arange(64))


def test_no_more_is_read_of_a_chunk_that_is_written_in_part(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=64, dtype="u1", chunks=64, compressors=None)
    array[...] = 7
    with (tmp_path / "a" / "c" / "0").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptObjectError, match="bytes or more, and a chunk of 64"):
        array[3:5] = 1
    values = da.ones(5, dtype="u1", chunks=5)
    with pytest.raises(CorruptObjectError, match="bytes or more, and a chunk of 64"):
        zd.to_zarr(values, tmp_path / "a", region=slice(3, 8), partial="compare")


CHUNK_OF_SHARD = (1, 1 << 15)


@pytest.fixture
def large_shard(tmp_path):
    """Return an array of one shard, which takes some milliseconds to decode, and its values."""
    values = np.arange(1 << 20, dtype="f4").reshape(16, -1) ** 0.5
    values[7] = 0  # chunks that are not stored
    array = zd.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype="f4",
        chunks=CHUNK_OF_SHARD,
        shards=values.shape,
        codecs=["zstd", "crc32c"],
    )
    array.write((slice(16), slice(1 << 16)), values, threads=1)
    return array, values


WIDE_READS = {
    "whole": np.s_[...],
    "region": np.s_[1:, 5 : 1 << 16],
    "lists": (np.arange(16), np.arange(0, 1 << 16, 2)),
}


@pytest.mark.parametrize("how", WIDE_READS)
def test_threads_share_the_chunks_of_one_shard(large_shard, monkeypatch, how):
    array, values = large_shard
    found, at = threads_at_work(monkeypatch, "decode", CHUNK_OF_SHARD, abreast=2), WIDE_READS[how]
    read = array.oindex[at] if how == "lists" else array[at]
    np.testing.assert_array_equal(read, values[np.ix_(*at)] if how == "lists" else values[at])
    assert len(set(found)) >= 2
    assert len(found) == (28 if how == "region" else 30)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_a_task_of_dask_decodes_a_shard_on_its_own_thread(large_shard, monkeypatch, scheduler):
    array, values = large_shard
    found = threads_at_work(monkeypatch, "decode", CHUNK_OF_SHARD)
    read = zd.from_zarr(array, chunks=values.shape)[1:].compute(scheduler=scheduler)
    np.testing.assert_array_equal(read, values[1:])
    assert len(set(found)) == 1


@pytest.mark.parametrize("how", WIDE_READS)
def test_threads_name_the_first_damaged_chunk_of_a_shard(large_shard, monkeypatch, how):
    array, _ = large_shard
    monkeypatch.setattr("zarr_dask._util.threads.cpu_count", lambda: 2)
    shard = Path(array.store.root, array.path, array.key((0, 0)))
    stored = bytearray(shard.read_bytes())
    index = np.frombuffer(stored[-(32 * 16 + 4) : -4], "<u8").reshape(16, 2, 2)
    for chunk in [(9, 0), (3, 1), (12, 1)]:
        offset = int(index[chunk][0])
        stored[offset : offset + 4] = b"none"
    shard.write_bytes(stored)
    at = WIDE_READS[how]
    with pytest.raises(CorruptObjectError, match=r"\(0, 0\) / \(3, 1\)"):
        array.oindex[at] if how == "lists" else array[at]


def stored(array: zd.Array) -> bytes:
    return Path(array.store.root, array.path, array.key((0, 0))).read_bytes()


def test_threads_share_encoding_the_chunks_of_one_shard(large_shard, monkeypatch):
    array, values = large_shard
    by_one_thread = stored(array)
    array[...] = 1
    found = threads_at_work(monkeypatch, "pieces", CHUNK_OF_SHARD, abreast=2)
    array[...] = values
    assert len(set(found)) >= 2
    assert len(found) == 30
    assert stored(array) == by_one_thread


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_a_task_of_dask_encodes_a_shard_on_its_own_thread(large_shard, monkeypatch, scheduler):
    array, values = large_shard
    found = threads_at_work(monkeypatch, "pieces", CHUNK_OF_SHARD)
    with dask.config.set(scheduler=scheduler):
        zd.to_zarr(da.from_array(values, chunks=values.shape), array)
    assert len(set(found)) == 1
    assert len(found) == 30
