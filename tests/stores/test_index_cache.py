"""Shards that are replaced while, and between, they are read; indices that are kept."""

from __future__ import annotations

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.settle import settled
from zarr_dask.stores import MemoryStore, Recording, ZipStore, open_store
from zarr_dask.stores.backends import local
from zarr_dask.stores.base import Range, etag_of
from zarr_dask.stores.index_prefetch import INDICES, CacheKey, ShardIndexCache
from zarr_dask.stores.wrappers.base import PrefixStore, ReadOnly

SHAPE, KEY = (8, 8), "c/0/0"
OLD = np.arange(1, 65, dtype="i4").reshape(SHAPE)
NEW = OLD + 1000
KEEPING = zd.ReadOptions(index_cache=1 << 20)


@pytest.fixture(autouse=True)
def nothing_kept():
    INDICES.forget()
    yield
    INDICES.forget()


def sharded(place, values=OLD, codecs=("zstd",)) -> zd.Array:
    array = zd.create_array(
        place,
        shape=SHAPE,
        dtype="i4",
        chunks=(2, 2),
        shards=SHAPE,
        codecs=list(codecs),
        overwrite=True,
    )
    array[...] = values
    return array


def keeping(store) -> tuple[Recording, zd.Array]:
    recording = Recording(store)
    array = zd.open_array(recording, read=KEEPING)
    settled(store)
    recording.clear()
    return recording, array


PLACES = {
    "local": lambda folder: str(folder / "a"),
    "fsspec": lambda folder: f"file://{folder}/a",
    "fsspec memory": lambda folder: f"memory://{folder}/a",
}


@pytest.mark.parametrize("place", PLACES)
def test_an_index_is_kept_until_its_shard_is_replaced(tmp_path, place):
    store = open_store(PLACES[place](tmp_path))
    sharded(store)
    recording, array = keeping(store)
    for number in range(3):
        assert array[0, number] == OLD[0, number]
        assert recording.per_key() == {KEY: 2 + number}  # one index, and a chunk each time
    holes = NEW.copy()
    holes[0:2, 0:2] = 0  # chunks lie elsewhere than before
    sharded(store, holes)
    np.testing.assert_array_equal(array[0:3, 0:3], holes[0:3, 0:3])
    store.delete(KEY)
    assert not array[0:3, 0:3].any()


@pytest.mark.parametrize("codecs", [["zstd"], []], ids=["zstd", "uncompressed"])
def test_kept_indices_and_ever_new_shards(tmp_path, codecs):
    """Values of equal size one after the other, as fast as they can be written."""
    store = open_store(tmp_path)
    sharded(store, codecs=codecs)
    array = zd.open_array(store, read=KEEPING)
    rng = np.random.default_rng(1)
    for number in range(60):
        values = OLD + number * 100
        corner = tuple(slice(start, start + 2) for start in 2 * rng.integers(0, 4, 2))
        values[corner] = 0  # one chunk is absent, always another one
        sharded(store, values, codecs)
        np.testing.assert_array_equal(array[1:7, 1:7], values[1:7, 1:7])


def test_nothing_is_kept_where_the_store_cannot_tell():
    store = MemoryStore()
    sharded(store)
    recording = Recording(store)
    array = zd.open_array(recording, read=KEEPING)
    recording.clear()
    for values in (OLD, NEW):
        sharded(store, values)
        assert array[0, 0] == values[0, 0]
    assert recording.per_key() == {KEY: 4}
    assert not INDICES.nbytes


def test_nothing_is_kept_unless_asked_for(tmp_path):
    sharded(tmp_path)
    settled(open_store(tmp_path))
    zd.open_array(tmp_path)[0, 0]
    assert not INDICES.nbytes
    zd.open_array(tmp_path, read=KEEPING)[0, 0]
    assert INDICES.nbytes == 16 * 16 + 4


def test_what_is_kept_is_bounded():
    cache = ShardIndexCache()
    for number in range(10):
        cache.put(CacheKey("", str(number), Range(-4)), 0, b"1234", most=12)
        assert cache.get(CacheKey("", "0", Range(-4)), 0) == (b"1234" if number < 9 else None) or (
            number > 8
        )
        assert cache.nbytes <= 12
    kept = [n for n in range(10) if cache.get(CacheKey("", str(n), Range(-4)), 0)]
    assert kept == [0, 8, 9]  # the one that was used all the time, and the newest
    cache.put(CacheKey("", "large", Range(-4)), 0, bytes(100), most=12)
    assert cache.nbytes == 12
    cache.put(CacheKey("", "none", Range(-4)), 0, b"1", most=0)
    assert cache.nbytes == 0


def test_a_bound_below_zero_is_refused():
    with pytest.raises(ValueError, match="index_cache=-1"):
        zd.ReadOptions(index_cache=-1)


@pytest.mark.parametrize("options", [KEEPING, zd.ReadOptions()], ids=["kept", "not kept"])
@pytest.mark.parametrize("codecs", [["zstd"], []], ids=["zstd", "uncompressed"])
def test_a_file_replaced_while_it_is_read_is_read_as_it_was(tmp_path, monkeypatch, options, codecs):
    """The index and the chunks are those of one file, whatever has its name by then."""
    store = open_store(tmp_path)
    sharded(store, codecs=codecs)
    settled(store)
    array = zd.open_array(store, read=options)
    holes = NEW.copy()
    holes[0:2, 0:4] = 0
    reads = []
    original = local._transient_part

    def replacing(descriptor, wanted):
        copy = bytes(original(descriptor, wanted))
        if not reads:
            sharded(store, holes, codecs)
        reads.append(wanted)
        return memoryview(copy)

    monkeypatch.setattr(local, "_transient_part", replacing)
    np.testing.assert_array_equal(array[1:7, 1:7], OLD[1:7, 1:7])
    assert len(reads) == 2
    np.testing.assert_array_equal(array[1:7, 1:7], holes[1:7, 1:7])


def test_validators_go_through_wrappers(tmp_path):
    store = open_store(tmp_path)
    sharded(store)
    settled(store)
    same = etag_of(store, KEY)
    assert same is not None
    for wrapper in (
        ReadOnly(store),
        Recording(store),
        PrefixStore(store, "c/"),
        ReadOnly(ReadOnly(store)),
    ):
        key = KEY.removeprefix("c/") if isinstance(wrapper, PrefixStore) else KEY
        assert etag_of(wrapper, key) == same
        assert etag_of(wrapper, "none") is None


def test_a_file_that_fuse_says_nothing_of_has_no_validator(tmp_path, monkeypatch):
    """One that was open when another process replaced it."""
    store = open_store(tmp_path)
    sharded(store)
    settled(store)

    def gone(descriptor):
        raise FileNotFoundError(2, "No such file or directory")

    with monkeypatch.context() as patched:
        patched.setattr(local.os, "fstat", gone)
        found = etag_of(store, KEY)
    assert found is None


def test_entries_of_archives_have_validators(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("zarr.json", "{}")
        archive.writestr("c/0", "old")
    store = ZipStore.from_path(str(tmp_path / "a.zip"))
    assert etag_of(store, "c/0") is not None
    assert etag_of(store, "c/1") is None


# --- remote stores --------------------------------------------------------------------------------


class Tagged(Files):
    """Says what a value can be told by."""

    says = staticmethod(lambda value: [("ETag", f'"{hash(value)}"')])

    def answer(self, status, body=b"", headers=()):
        told = self.says(body) if self.command == "HEAD" else []
        super().answer(status, body, [*headers, *told])


class Timed(Tagged):
    """Says when a value was changed; a weak tag is not what counts."""

    says = staticmethod(lambda value: [("ETag", 'W/"same"'), ("Last-Modified", f"{hash(value)}")])


class Weak(Tagged):
    """Has tags only that are the same for values that are not."""

    says = staticmethod(lambda value: [("ETag", 'W/"same"')])


@pytest.mark.parametrize("server", [Tagged, Timed, Weak, Files])
def test_indices_over_http_are_kept_as_far_as_the_server_tells(server):
    values: dict[str, bytes] = {}
    made = zd.create_array(
        MemoryStore(values), shape=(8, 16), dtype="i4", chunks=(2, 2), shards=SHAPE
    )
    wide = np.concatenate([OLD, OLD], axis=1)
    made[...] = wide
    with serving(server, values) as (url, seen):
        array = zd.open_array(url, read=KEEPING, format="v3")

        def gets() -> int:
            del seen[:]
            np.testing.assert_array_equal(array.read(np.s_[0:2, 6:10], threads=1), wide[0:2, 6:10])
            return [method for method, *_ in seen].count("GET")

        assert gets() == 4  # two shards: index and chunk
        keeps = server in {Tagged, Timed}
        assert gets() == (2 if keeps else 4)
        wide = wide + 1000
        wide[0:2, 0:2] = 0
        made[...] = wide
        assert gets() == 4
        assert bool(INDICES.nbytes) == keeps


def test_shards_over_http_are_asked_for_side_by_side():
    """All indices before any chunk: two times the latency, however many shards there are."""
    values: dict[str, bytes] = {}
    made = zd.create_array(
        MemoryStore(values), shape=(2048, 512), dtype="i4", chunks=(64, 64), shards=(256, 512)
    )
    made[...] = np.arange(1, 2048 * 512 + 1).reshape(2048, 512)
    with serving(Files, values) as (url, seen):
        array = zd.open_array(url, format="v3")
        del seen[:]
        np.testing.assert_array_equal(array.read(np.s_[:, 60:70], threads=1), made[:, 60:70])
        kinds = ["index" if wanted.startswith("bytes=-") else "chunk" for _, _, wanted in seen]
        assert kinds[:8] == ["index"] * 8
        assert set(kinds[8:]) == {"chunk"}


def test_blocks_of_many_objects_through_fsspec(tmp_path):
    import dask

    values = np.arange(1, 513, dtype="i4").reshape(64, 8)
    for number, layout in enumerate(({"chunks": (8, 4)}, {"chunks": (2, 2), "shards": (8, 4)})):
        url = f"memory://{tmp_path}/{number}"
        zd.create_array(url, shape=values.shape, dtype="i4", **layout)[...] = values
        recording = Recording(open_store(url))
        array = zd.open_array(recording)
        recording.clear()
        with dask.config.set(scheduler="sync"):
            found = zd.from_zarr(array, chunks=(32, 8))[1:].compute()
        np.testing.assert_array_equal(found, values[1:])
        assert recording.batches["get_ranges"] <= 4  # two blocks, and at most two rounds each
        assert "get" not in recording.batches
