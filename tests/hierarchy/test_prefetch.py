"""What is asked of stores that are far away before something new is written to them."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from functools import partial

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import MetadataChangedError, NodeExistsError, StoreError, ZarrDaskError
from zarr_dask.stores import HookStore, MemoryStore, Range, Recording
from zarr_dask.stores.base import ReadPolicy
from zarr_dask.stores.wrapper import unwrap
from zarr_dask.stores.wrappers.prefetched import PrefetchedStore

VALUES = np.arange(1, 17, dtype="i4")
DOCUMENTS = ("zarr.json", ".zarray", ".zattrs", ".zgroup", "meta", "attrs")


class Far(MemoryStore):
    """A store each request to which takes its time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)


class Meeting(Far):
    """One that answers when so many different requests are waiting, as long as nothing is put."""

    def __init__(self, parties):
        super().__init__()
        self.met = threading.Barrier(parties, timeout=20)
        self.has_values = False

    def get_ranges(self, requests):
        self._meet()
        return super().get_ranges(requests)

    def list(self, prefix=""):
        self._meet()
        return super().list(prefix)

    def set(self, key, buffers):
        self.has_values = True
        super().set(key, buffers)

    def _meet(self):
        if not self.has_values:
            self.met.wait()


def write(store, path="", **options):
    zd.to_zarr(da.from_array(VALUES, chunks=4), store, path, **options)


@pytest.mark.parametrize("mode", ["a", "w"])
def test_all_is_asked_at_once_where_nothing_is_there(mode):
    """A request that came alone would wait for another one, and break the barrier."""
    store = Recording(Meeting(2))
    write(store, mode=mode)
    before = [one.method for one in store.requests]
    before = before[: before.index("set")]
    assert before.count("list") == 1
    assert len(before) == 1 + len(DOCUMENTS)
    np.testing.assert_array_equal(zd.open(store)[...], VALUES)
    puts = [one.key for one in store.requests if one.method in {"set", "set_if"}]
    assert puts[-1] == "zarr.json"


def test_what_is_created_in_a_group_asks_for_what_lies_above_at_the_same_time():
    store = Recording(Meeting(2))
    write(store, "a/b")
    before = [one for one in store.requests if one.method not in {"set", "set_if"}]
    assert len(before) == 1 + 3 * len(DOCUMENTS)
    assert len({one.key for one in before}) == len(before)
    assert set(zd.open_group(store)) == {"a"}


MAKERS = [
    write,
    zd.create_group,
    lambda store, path, **options: zd.create_array(store, path, shape=3, dtype="i4", **options),
]


@pytest.mark.parametrize("make", MAKERS, ids=["to_zarr", "create_group", "create_array"])
@pytest.mark.parametrize("outer", ["v2", "v3"])
def test_the_format_of_the_group_is_known_without_another_request(make, outer):
    asked = []
    for options in ({"format": outer}, {}):
        far = Far()
        zd.create_group(far, "a", format=outer)
        store = Recording(far)
        make(store, "a/b", **options)
        assert zd.open(far, "a/b").format == outer
        asked.append(sorted((one.method, one.key) for one in store.requests))
    assert asked[0] == asked[1]


def array(store, path="", **options):
    zd.create_array(store, path, shape=(16,), chunks=4, dtype="i4", **options)[...] = VALUES


def stray(store):
    store.set("c/9", [b"of a job that never ended"])
    store.set("notes.txt", [b"of somebody else"])


def without_document(store):
    array(store, "a/b")
    store.delete("a/zarr.json")


def consolidated(store):
    array(store, "other")
    zd.consolidate(store)


def broken(store):
    store.set("a/zarr.json", [b"{"])


SITUATIONS = {
    "nothing": lambda _: None,
    "an array": array,
    "an array of v2": lambda store: array(store, format="v2"),
    "an array at the path": lambda store: array(store, "a"),
    "one of v1 at the path": lambda store: array(store, "a", format="v1"),
    "one of a draft at the path": lambda store: array(store, "a", format="v3draft"),
    "a group at the path": lambda store: zd.create_group(store, "a"),
    "a group of v2 above": lambda store: zd.create_group(store, format="v2"),
    "leftovers": stray,
    "nodes below without a document": without_document,
    "consolidated metadata above": consolidated,
    "a broken document": broken,
}


def outcome(store, action):
    """What an action says, and what is there afterwards."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            action(store)
            said = ""
        except ZarrDaskError as error:
            said = f"{type(error).__name__}: {error}"
    told = [said, *(str(one.message) for one in caught)]
    return [text.replace(store.url, "STORE") for text in told], dict(store.values)


@pytest.mark.parametrize("options", [{"mode": "a"}, {"mode": "w"}, {"mode": "w", "format": "v2"}])
@pytest.mark.parametrize("path", ["", "a", "a/b"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_asked_at_once_says_the_same(situation, path, options):
    """Stores that are asked for one thing after the other are the oracle."""

    def act(store):
        write(store, path, **options)

    found = []
    for store in (MemoryStore(), Far()):
        SITUATIONS[situation](store)
        found.append(outcome(store, act))
    assert found[0] == found[1]


def test_what_appears_after_a_plan_was_made_is_seen():
    store = Far()
    plan = zd.plan_write(da.from_array(VALUES, chunks=4), store)
    array(MemoryStore.over(store.values))
    with pytest.raises(NodeExistsError, match="exists already"):
        plan.run()


class Folders(Far):
    """One that knows what lies below a prefix when it has walked through all of it."""

    has_cheap_recursive_listing = False


def test_what_is_in_the_way_is_not_walked_through():
    store = Folders()
    array(store, "a/b")
    recording = Recording(store)
    with pytest.raises(NodeExistsError, match="exists already"):
        write(recording, "a/b")
    assert recording.batches == {"get_ranges": 1}
    recording.clear()
    write(recording, "c")
    assert recording.batches["list"] == 1  # for leftovers, where there is no node
    np.testing.assert_array_equal(zd.open(store, "c")[...], VALUES)


def test_groups_are_made_without_a_look_at_what_they_hold():
    store = Far()
    without_document(store)
    recording = Recording(store)
    zd.create_group(recording, "a")
    assert [one.method for one in recording.requests if one.method != "get"] == ["set_if"]


# --- arrays that are written into -----------------------------------------------------------------

X = da.from_array(VALUES, chunks=4)


def into(store, way):
    """A write into the array at the root of a store, named in one way or another."""
    if way == "open array":
        array = zd.open_array(MemoryStore.over(unwrap(store).values), mode="r+")
        return partial(zd.to_zarr, X, replace(array, store=store))
    options = {"mode": "r+"} if way == "r+" else {"region": np.s_[:16]}
    return partial(zd.to_zarr, X, store, **options)


@pytest.mark.parametrize("way", ["open array", "r+", "region"])
def test_of_an_array_that_is_there_the_document_is_asked_for_once(way):
    store = Recording(Far())
    array(store)
    write = into(store, way)
    for _ in range(2):  # no task of this process asks for it again, nor does the next write less
        store.clear()
        write()
        assert [(one.method, one.key) for one in store.requests[:1]] == [("get", "zarr.json")]
        assert sorted(one.key for one in store.requests[1:]) == [f"c/{n}" for n in range(4)]
        assert store.batches == {"get_ranges": 1, "set": 4}
    np.testing.assert_array_equal(zd.open(store)[...], VALUES)


def test_of_several_arrays_each_document_is_asked_for_once():
    store = Recording(Far())
    for path in "ab":
        array(store, path)
    store.clear()
    zd.to_zarr([X, X + 1], store, ["a", "b"], mode="r+")
    asked = [one.key for one in store.requests if one.method == "get"]
    assert asked == ["a/zarr.json", "b/zarr.json"]
    np.testing.assert_array_equal(zd.open_array(store, "b")[...], VALUES + 1)


def test_several_arrays_may_be_replaced_at_a_time():
    """Each is looked at again when it is begun, and nothing of what was there stays."""
    store = Far()
    for path in "ab":
        array(store, path)
    zd.to_zarr([X + 1, X + 2], store, ["a", "b"], mode="w", chunks=8)
    for more, path in enumerate("ab", 1):
        np.testing.assert_array_equal(zd.open_array(store, path)[...], VALUES + more)
        assert sorted(key for key in store.values if key.startswith(f"{path}/c")) == [
            f"{path}/c/0",
            f"{path}/c/1",
        ]


def test_an_append_asks_for_the_document_before_and_after():
    store = Recording(Far())
    array(store)
    store.clear()
    zd.to_zarr(X, store, append=0)
    asked = [(one.method, one.key) for one in store.requests if one.key == "zarr.json"]
    # when it is planned, when its end is claimed, and when it grows
    assert asked == [*[("get", "zarr.json")] * 3, ("set_if", "zarr.json")]
    np.testing.assert_array_equal(zd.open(store)[...], [*VALUES, *VALUES])


@pytest.mark.parametrize("way", ["plan", "collection"])
def test_who_writes_later_looks_again(way):
    store = Far()
    array(store)
    region = {"region": np.s_[:16]}
    if way == "plan":
        write = zd.plan_write(X, store, **region).run
    else:
        write = zd.to_zarr(X, store, compute=False, **region).compute
    zd.create_array(store, shape=(16,), chunks=8, dtype="i4", overwrite=True)
    before = dict(store.values)
    with pytest.raises(MetadataChangedError, match="Open it again"):
        write()
    assert store.values == before


def test_what_has_changed_since_it_was_opened_is_left_as_it_is():
    """Nothing is computed for it, and nothing written."""
    store = Recording(Far())
    array(store)
    opened = zd.open_array(store, mode="r+")
    zd.create_array(store, shape=(16,), chunks=8, dtype="i4", overwrite=True)
    before, computed = dict(store.store.values), []

    def note(block):
        computed.append(block)
        return block

    store.clear()
    with pytest.raises(MetadataChangedError, match="Open it again"):
        zd.to_zarr(X.map_blocks(note, dtype="i4", meta=VALUES[:0]), opened)
    assert (computed, store.store.values) == ([], before)
    assert store.batches == {"get_ranges": 1}


# --- the store that has been asked ----------------------------------------------------------------


def test_what_fails_is_asked_for_by_who_needs_it():
    def refuse(method, key):
        raise StoreError(f"no {method} of {key}")

    asked = PrefetchedStore(HookStore(MemoryStore(), refuse))
    asked.ask([("a", Range(0))])
    asked.ask_below("b/")
    with pytest.raises(StoreError, match="no get of a"):
        asked.get_ranges([("a", Range(0))])
    with pytest.raises(StoreError, match="no list of b/"):
        asked.list("b/")


def test_what_is_changed_is_asked_for_again():
    store = MemoryStore({"a": b"1", "d/e": b"2"})
    asked = PrefetchedStore(store)
    asked.ask([("a", Range(0)), ("b", Range(0)), ("d/e", Range(0))])
    for prefix in ("b/", "c/"):
        asked.ask_below(prefix)
    asked.set("a", [b"3", memoryview(b"")])
    asked.set("b/c", [b"4"])
    asked.delete_prefix("d/")
    found = asked.get_ranges([("a", Range(0)), ("b", Range(0)), ("d/e", Range(0))])
    assert found == [b"3", None, None]
    assert list(asked.list("b/")) == ["b/c"]
    assert asked.list_dir("b/").keys == ["b/c"]
    store.set("c/x", [b"by others"])
    assert list(asked.list("c/")) == []
    asked.delete("a")
    assert asked.get_ranges([("a", Range(0))]) == [None]
