"""A store that keeps what was read: never anything old under "always", and never too much."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask.errors import StoreError
from zarr_dask.stores import (
    Cache,
    LocalStore,
    MemoryStore,
    Range,
    Recording,
    Retrying,
    open_store,
)
from zarr_dask.stores.config import to_config
from zarr_dask.stores.open import sibling_location
from zarr_dask.stores.wrappers.cache import _kept
from zarr_dask.testing.stores import StoreTests

VALUE = bytes(range(100))


class Versioned(MemoryStore):
    """Values in memory with a tag, as object stores have one."""

    def validator(self, key):
        value = self.get(key)
        return None if value is None else ("tag", bytes(value))


@pytest.fixture(autouse=True)
def nothing_kept():
    yield
    _kept.cache_clear()


def recorded(validate, max_bytes=1 << 20, values=None):
    recording = Recording(Versioned(values if values is not None else {"a": VALUE, "b/c": b"1"}))
    return Cache(recording, max_bytes, validate), recording


class TestCache(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return Cache(LocalStore(str(tmp_path)), 1 << 20)


def test_what_is_kept_is_not_read_again():
    store, recording = recorded("never")
    for _ in range(3):
        assert store.get("a") == VALUE
        assert store.get_ranges([("a", Range(3, 5)), ("a", Range(-4))]) == [VALUE[3:5], VALUE[-4:]]
        assert store.get_ranges([("b/c", Range(0, 50))]) == [b"1"]
        assert store.get_ranges([("b/c", Range(0, 1)), ("b/c", Range(7, 9))]) == [b"1", b""]
    assert recording.per_key() == {"a": 1, "b/c": 1}


def test_always_sees_every_change_and_never_sees_none():
    for validate, sees in (("always", True), ("never", False), (1000, False), (0, True)):
        store, recording = recorded(validate)
        assert store.get("a") == VALUE
        recording.store.set("a", [b"new"])
        assert store.get("a") == (b"new" if sees else VALUE)
        recording.store.delete("a")
        assert store.get("a") == (None if sees else VALUE)
        store.clear()
        assert store.get("a") is None


def test_what_has_no_tag_is_kept_only_if_nobody_asks():
    for validate, reads in (("always", 2), ("never", 1), (100, 1)):
        recording = Recording(MemoryStore({"a": VALUE}))
        store = Cache(recording, 1 << 20, validate)
        assert store.get("a") == store.get("a") == VALUE
        assert recording.per_key() == {"a": reads}


def test_changes_through_the_store_are_seen():
    store, _ = recorded("never")
    assert store.get("a") == VALUE
    store.set("a", [b"1", b"2"])
    assert store.get("a") == b"12"
    store.delete("a")
    assert store.get("a") is None
    assert store.get("b/c") == b"1"
    store.delete_prefix("b/")
    assert store.get("b/c") is None


def test_absence_is_not_kept():
    store, recording = recorded("never")
    assert store.get("new") is None
    recording.store.set("new", [b"1"])
    assert store.get("new") == b"1"


def test_bytes_are_bounded():
    values = {str(n): bytes(1000) for n in range(50)}
    store, recording = recorded("never", 10_000, values)
    for key in values:
        store.get(key)
        assert store.nbytes <= 10_000
    assert store.nbytes > 8000
    recording.clear()
    store.get("49")
    assert recording.per_key() == {}
    store.get("0")  # it went first
    assert recording.per_key() == {"0": 1}
    store, recording = recorded("never", 999, values)
    assert store.get("0") == store.get("0") == bytes(1000)
    assert store.nbytes == 0


def test_the_content_does_not_travel_but_is_found_again(tmp_path):
    LocalStore(str(tmp_path)).set("a", [bytes(100_000)])
    store = Cache(LocalStore(str(tmp_path)), 1 << 20, "never")
    store.get("a")
    text = pickle.dumps(store)
    assert len(text) < 300
    again = pickle.loads(text)
    assert again == store
    assert again.nbytes == store.nbytes > 100_000
    child = os.fork()
    if not child:
        os._exit(0 if store.nbytes == 0 and len(store.get("a")) == 100_000 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_jobs_know_where_a_wrapped_store_is(tmp_path):
    local = LocalStore(str(tmp_path / "a.zarr"))
    for store in (Cache(local, 1 << 20), Retrying(local)):
        assert to_config(store) == to_config(local)
        assert sibling_location(store, ".part") == sibling_location(local, ".part")
        assert zd.create_group(store, overwrite=True).store == store


@pytest.mark.parametrize(("max_bytes", "validate"), [(-1, "always"), (1, "often"), (1, None)])
def test_what_makes_no_sense_is_refused(max_bytes, validate):
    with pytest.raises(StoreError, match="makes no sense"):
        Cache(MemoryStore(), max_bytes, validate)


RANGES = st.one_of(
    st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda p: Range(p[0], p[0] + p[1])),
    st.integers(0, 30).map(Range),
    st.integers(-30, -1).map(Range),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.lists(st.tuples(st.sampled_from("ab"), RANGES), min_size=1)),
        st.tuples(st.just("set"), st.sampled_from("ab"), st.binary(max_size=25)),
        st.tuples(st.just("delete"), st.sampled_from("ab")),
        st.tuples(st.just("behind"), st.sampled_from("ab"), st.binary(max_size=25)),
    ),
    max_size=20,
)


@given(STEPS, st.sampled_from([400, 800, 5000]))
def test_reads_are_those_of_the_store_itself(steps, max_bytes):
    inner = Versioned({})
    store = Cache(inner, max_bytes)
    for what, *args in steps:
        if what == "read":
            got = store.get_ranges(args[0])
            assert [None if v is None else bytes(v) for v in got] == inner.get_ranges(args[0])
        elif what == "set":
            store.set(args[0], [args[1]])
        elif what == "behind":
            inner.set(args[0], [args[1]])
        else:
            store.delete(args[0])
        assert store.nbytes <= max_bytes


def test_threads_share_it():
    values = {str(n): bytes([n]) * 500 for n in range(20)}
    store, _ = recorded("always", 6000, values)
    wrong = []

    def work(seed):
        random = np.random.default_rng(seed)
        keys = [str(number) for number in random.integers(20, size=200)]
        wrong.extend(key for key in keys if store.get(key) != values[key])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.nbytes <= 6000


def test_arrays_in_s3_are_read_once():
    with s3_server() as server:
        remote = open_store("s3://bucket/cached", server.options)
        values = np.arange(4096, dtype="i4")
        made = zd.create_array(remote, shape=(4096,), chunks=64, shards=1024, dtype="i4")
        made[...] = values
        recording = Recording(remote)
        array = zd.open_array(Cache(recording, 1 << 24, validate=60))
        assert np.array_equal(array[100:2000], values[100:2000])
        recording.clear()
        assert np.array_equal(array[100:2000], values[100:2000])
        assert np.array_equal(array[130:1900], values[130:1900])
        assert recording.per_key() == {}
        made[...] = values + 1  # behind the back of the cache
        assert np.array_equal(array[100:2000], values[100:2000])
        always = zd.open_array(Cache(recording, 1 << 24))
        assert np.array_equal(always[100:2000], values[100:2000] + 1)
        made[...] = values
        assert np.array_equal(always[100:2000], values[100:2000])
