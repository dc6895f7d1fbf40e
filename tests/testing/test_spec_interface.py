"""The abstract store interface of the specifications: natively, and by its fallbacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask import errors
from zarr_dask.stores import LocalStore, MemoryStore, ReadOnly, Recording
from zarr_dask.testing.spec_interface import AbstractStore, StoreWithPartialAccess


class Simple(StoreWithPartialAccess):
    """What somebody writes who has a dict and the text."""

    def __init__(self):
        self.values = {}

    def get(self, key):
        return self.values.get(key)

    def set(self, key, value):
        self.values[key] = value

    def erase(self, key):
        self.values.pop(key, None)

    def list(self):
        return frozenset(self.values)


@pytest.fixture(params=["memory", "local", "simple"])
def store(request, tmp_path):
    if request.param == "simple":
        return Simple()
    return AbstractStore(MemoryStore() if request.param == "memory" else LocalStore(tmp_path))


def filled(store, *keys):
    for key in keys:
        store.set(key, key.encode())
    return store


@pytest.mark.conformance("C072")
def test_the_examples_of_the_text(store):
    filled(store, "a/b", "a/c/d", "e/f/g")
    assert store.list_prefix("a/") == {"a/b", "a/c/d"}
    store.erase_prefix("")
    assert store.list() == frozenset()
    filled(store, "a/b", "a/c", "a/d/e", "a/f/g")
    assert store.list_dir("a/") == ({"a/b", "a/c"}, {"a/d/", "a/f/"})
    assert store.list_dir("b/") == (frozenset(), frozenset())
    assert store.list_prefix("b/") == frozenset()
    assert store.list_dir("") == (frozenset(), {"a/"})


def test_keys_are_case_sensitive(store):
    store.set("foo", b"1")
    store.set("FOO", b"2")
    assert (store.get("foo"), store.get("FOO")) == (b"1", b"2")


@pytest.mark.parametrize("key", ["", "a/", "/", "a b", "é", "a:b", "a\n"])
def test_what_is_no_key(store, key):
    for operation in (
        lambda: store.get_partial_values([(key, 0, None)]),
        lambda: store.set_partial_values([(key, 0, b"")]),
    ):
        with pytest.raises(errors.StoreKeyError):
            operation()


def test_what_is_no_prefix(store):
    filled(store, "a/b")
    for prefix in ("a", "a/b", "a b/"):
        for operation in (store.list_dir, store.list_prefix, store.erase_prefix):
            with pytest.raises(errors.StoreKeyError, match="prefix"):
                operation(prefix)
    assert store.list() == {"a/b"}


@pytest.mark.conformance("C073")
def test_parts_of_values(store):
    store.set("a", b"0123456789")
    store.set("b/c", b"abc")
    wanted = [
        ("b/c", 1, 1),
        ("a", 8, None),
        ("missing", 0, None),
        ("a", 0, 3),
        ("b", 0, None),  # a prefix is no key
        ("a", 2, 3),
        ("a", 0, None),
        ("a", 8, 9),
        ("a", 0, 3),
        ("a", 4, 0),
        ("a", 10, None),
        ("b/c", 7, 2),
    ]
    assert store.get_partial_values(wanted) == [
        b"b", b"89", None, b"012", None, b"234", b"0123456789", b"89", b"012", b"", b"", b""
    ]  # fmt: skip
    assert store.get_partial_values(iter(wanted[:2])) == [b"b", b"89"]
    assert store.get_partial_values([]) == []
    for wrong in (("a", -1, None), ("a", 0, -1)):
        with pytest.raises(ValueError, match="negative"):
            store.get_partial_values([wrong])


@pytest.mark.conformance("C074")
@pytest.mark.parametrize(
    "parts",
    [
        [("a", 0, b"123"), ("a", 2, b"4")],
        [("a", 2, b"4"), ("a", 0, b"123")],
        [("a", 1, b"1"), ("a", 1, b"1")],
        [("a", 0, b"1"), ("a", 5, b"1"), ("a", 3, b"123")],
        [("b", 0, b"1"), ("a", 0, b"12"), ("a", 1, b"1")],
    ],
)
def test_parts_that_overlap_are_refused(store, parts):
    store.set("a", b"before")
    with pytest.raises(ValueError, match="overlap; nothing was written"):
        store.set_partial_values(parts)
    assert store.get("a") == b"before"
    assert store.get("b") is None


@pytest.mark.conformance("C074")
def test_parts_that_touch_are_not_overlapping(store):
    store.set("a", b"0123456789")
    store.set_partial_values(
        [("a", 5, b"FG"), ("a", 2, b"CDE"), ("b", 2, b"x"), ("a", 9, b"JKL"), ("a", 6, b"")]
    )
    assert store.get("a") == b"01CDEFG78JKL"
    assert store.get("b") == b"\0\0x"
    with pytest.raises(ValueError, match="before the first byte"):
        store.set_partial_values([("a", -1, b"x")])


def test_erasing(store):
    filled(store, "a/b", "a/c", "ab", "a/d/e", "f")
    store.erase("f")
    store.erase("f")
    store.erase_values(["a/b", "missing", "a/b"])
    assert store.list() == {"a/c", "ab", "a/d/e"}
    store.erase_prefix("a/")
    assert store.list() == {"ab"}


KEYS = st.sampled_from(["a", "b/c", "b/d/e", "b/d/f"])
PARTS = st.tuples(KEYS, st.integers(0, 12), st.binary(max_size=6))
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.binary(max_size=10)),
    st.tuples(st.just("erase"), KEYS),
    st.tuples(st.just("erase_values"), st.lists(KEYS)),
    st.tuples(st.just("erase_prefix"), st.sampled_from(["", "b/", "b/d/"])),
    st.tuples(st.just("set_partial_values"), st.lists(PARTS, max_size=4)),
)
RANGES = st.lists(st.tuples(KEYS, st.integers(0, 12), st.none() | st.integers(0, 12)))


@pytest.mark.conformance("C075")
@given(st.lists(STEPS, max_size=8), RANGES)
def test_fallbacks_do_what_the_store_does(steps, ranges):
    stores = [Simple(), AbstractStore(MemoryStore())]
    for name, *arguments in steps:
        outcomes = []
        for store in stores:
            try:
                outcomes.append(getattr(store, name)(*arguments))
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
    simple, native = stores
    assert simple.values == native.store.values
    assert simple.get_partial_values(ranges) == native.get_partial_values(ranges)
    assert [native.get(key) for key, *_ in ranges] == [simple.get(key) for key, *_ in ranges]
    for prefix in ("", "b/", "b/d/", "c/"):
        assert simple.list_dir(prefix) == native.list_dir(prefix)
        assert simple.list_prefix(prefix) == native.list_prefix(prefix)


def test_parts_are_asked_for_as_such():
    recording = Recording(MemoryStore({"a": b"0123456789"}))
    AbstractStore(recording).get_partial_values([("a", 2, 3), ("a", 7, None)])
    assert dict(recording.batches) == {"get_ranges": 1}
    assert [tuple(request.range) for request in recording.requests] == [(2, 5), (7, None)]


def test_a_store_for_reading_only():
    store = AbstractStore(ReadOnly(MemoryStore({"a": b"1"})))
    for operation in (
        lambda: store.set("a", b"2"),
        lambda: store.set_partial_values([("a", 0, b"2")]),
        lambda: store.erase("a"),
        lambda: store.erase_prefix(""),
    ):
        with pytest.raises(errors.ReadOnlyError):
            operation()


def test_a_hierarchy_by_the_words_of_the_text():
    """Operations, "Discover children of a group" and "Retrieve chunk data"."""
    store = AbstractStore(MemoryStore())
    array = zd.create_array(
        store.store, "foo/baz/qux", shape=4, dtype="u1", chunks=2, codecs=[], format="v3draft"
    )
    array[...] = [1, 2, 3, 4]
    zd.create_group(store.store, "foo/bar", format="v3draft")
    listed = store.list_dir("meta/foo/")
    assert listed == ({"meta/foo/bar.group.json"}, {"meta/foo/baz/"})
    assert store.get("data/foo/baz/qux/c1") == b"\3\4"
    store.set("data/foo/baz/qux/c0", b"\5\6")
    assert array[...].tolist() == [5, 6, 3, 4]
