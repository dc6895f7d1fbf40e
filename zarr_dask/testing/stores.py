"""Conformance tests for stores: `StoreTests` runs on each store and each wrapper.

A subclass provides an empty store as the fixture ``store`` (anything that `open_store` accepts;
seven methods are enough) and declares what its kind does not support::

    class TestMyStore(StoreTests):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)

The tests run in pytest, which the rest of this package does not need. In a ``conftest.py``, the
line ``pytest.register_assert_rewrite("zarr_dask.testing")`` lets failures show their values.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import pytest

from zarr_dask.errors import ListingError, StoreKeyError
from zarr_dask.stores.base import WHOLE, Buffer, Range, Store, list_sizes
from zarr_dask.stores.open import open_store
from zarr_dask.stores.streaming_put import put_stream

__all__ = ["BAD_KEYS", "RANGES", "VALUE", "StoreTests"]

BAD_KEYS = (
    "",
    ".",
    "..",
    "../secret",
    "a/../../secret",
    "a/..",
    "a/./b",
    "/etc/passwd",
    "a//b",
    "a/",
    "a\\..\\b",
    "a\0b",
)
VALUE = bytes(range(20))
RANGES = (
    WHOLE,
    Range(0, 20),
    Range(0, 1),
    Range(3, 7),
    Range(5, 5),
    Range(7),
    Range(19, 21),
    Range(10, 1000),
    Range(20),
    Range(20, 30),
    Range(500, 600),
    Range(500),
    Range(-1),
    Range(-20),
    Range(-21),
    Range(-1000),
)


class StoreTests:
    """Conformance tests of a store; a subclass provides `store`, an empty one."""

    atomic: ClassVar[bool] = True
    """True if a value is replaced atomically, which file systems of fsspec need not do."""
    lists: ClassVar[bool] = True
    """True if the store can list its keys; an HTTP server cannot."""
    rewrites: ClassVar[bool] = True
    """True if values can be replaced and removed; in an archive they cannot."""

    @pytest.fixture
    def store(self) -> Store:
        """Provide an empty store."""
        raise pytest.UsageError("a subclass gives the store")

    @pytest.fixture
    def tested(self, store: Any) -> Store:
        """Return the store as this package uses it, completed if it has only the seven methods."""
        return open_store(store)

    def test_is_a_store(self, tested: Store) -> None:
        """Check that it has everything in the protocol."""
        assert isinstance(tested, Store)
        assert tested.url
        assert tested.identity
        assert tested.coalescing.gap >= 0
        assert tested.coalescing.largest > 0

    # --- reading ----------------------------------------------------------------------------------

    def test_nothing_is_none(self, tested: Store) -> None:
        """Check that a missing value is None in all methods."""
        assert tested.get("a") is None
        assert tested.get("a/b/c") is None
        asked = [("a", Range(0, 4)), ("a/b", Range(-4)), ("c", WHOLE)]
        assert tested.get_ranges(asked) == [None] * 3
        assert tested.size("a") is None
        if self.lists:
            assert list(tested.list()) == []
            assert list(tested.list("a/")) == []
            assert tested.list_dir() == ([], [])
            assert tested.list_dir("a/b/") == ([], [])

    @pytest.mark.parametrize("wanted", RANGES, ids=str)
    def test_ranges_are_those_of_a_slice(self, tested: Store, wanted: Range) -> None:
        """Check ranges, including those that begin before the start or end behind the end."""
        tested.set("a/b", [VALUE])
        (got,) = tested.get_ranges([("a/b", wanted)])
        assert as_bytes(got) == VALUE[wanted.start : wanted.stop]

    def test_ranges_of_many_keys_in_order(self, tested: Store) -> None:
        """Check that results have the order of the requests."""
        tested.set("a", [VALUE])
        tested.set("b", [VALUE[::-1]])
        requests = [("a", Range(0, 2)), ("b", Range(-2)), ("x", Range(0, 2)), ("a", Range(4, 6))]
        got = tested.get_ranges(requests)
        assert [as_bytes(value) for value in got] == [b"\0\1", b"\1\0", None, b"\4\5"]
        assert tested.get_ranges([]) == []

    def test_ranges_of_an_empty_value(self, tested: Store) -> None:
        """Check that ranges of an empty value are empty, and not None."""
        tested.set("a", [])
        got = tested.get_ranges([("a", Range(0, 4)), ("a", Range(-4)), ("a", Range(2))])
        assert [as_bytes(value) for value in got] == [b"", b"", b""]

    def test_what_is_longer_than_it_was(self, tested: Store) -> None:
        """Check that sizes are up to date, also after a listing with the old ones."""
        if not self.rewrites:
            pytest.skip("values are written once")
        tested.set("a/b", [b"12"])
        if self.lists:
            assert dict(list_sizes(tested, "a/")) == {"a/b": 2}
            assert tested.list_dir("a/").keys == ["a/b"]
        tested.set("a/b", [b"12345"])
        assert tested.size("a/b") == 5
        assert as_bytes(tested.get_ranges([("a/b", Range(1, 100))])[0]) == b"2345"

    def test_a_folder_is_no_value(self, tested: Store) -> None:
        """Check that a key that is only a prefix of others has no value."""
        tested.set("a/b", [b"1"])
        assert tested.get("a") is None
        assert tested.get_ranges([("a", Range(0, 4)), ("a", Range(-4))]) == [None, None]
        assert tested.size("a") is None
        if self.rewrites:
            tested.delete("a")
        assert as_bytes(tested.get("a/b")) == b"1"

    # --- writing ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "buffers",
        [
            [],
            [b""],
            [b"abc"],
            [b"ab", b"", bytearray(b"cd"), memoryview(b"ef")],
            [memoryview(np.arange(6, dtype="f4").reshape(2, 3))],
            [memoryview(np.arange(6, dtype=">u2")), b"!"],
            [bytes([i % 256]) for i in range(3000)],
        ],
        ids=["none", "empty", "one", "kinds", "2-d", "typed", "many"],
    )
    def test_what_is_set_is_got(self, tested: Store, buffers: Sequence[Buffer]) -> None:
        """Check that buffers of any kind are joined."""
        want = b"".join(bytes(memoryview(b).cast("B")) if len(b) else b"" for b in buffers)
        tested.set("a/b", buffers)
        assert as_bytes(tested.get("a/b")) == want
        assert tested.size("a/b") == len(want)
        assert [as_bytes(v) for v in tested.get_ranges([("a/b", WHOLE)])] == [want]

    @pytest.mark.parametrize("pieces", [1, 2])
    def test_buffers_are_the_callers_again(self, tested: Store, pieces: int) -> None:
        """Check that memory that is reused by the caller does not change the value."""
        memory = bytearray(VALUE)
        tested.set("a/b", [memoryview(memory)] * pieces)
        memory[:] = bytes(len(memory))
        assert as_bytes(tested.get("a/b")) == VALUE * pieces

    def test_pieces_that_come_one_by_one(self, tested: Store) -> None:
        """Check small and large pieces, each in the memory of the one before it."""
        memory, sizes = bytearray(1 << 19), [1 << 18, 3, 1 << 16, 0, 70_000, 1]
        sizes += [1 << 19, 5, (1 << 18) + 1, *[90_000] * 12, 1 << 18, 1 << 18, 7]

        def pieces() -> Iterator[Buffer]:
            for number, size in enumerate(sizes):
                memory[:] = bytes([number]) * len(memory)
                yield memoryview(memory)[:size]

        seen: list[bytes] = []
        put_stream(tested, "a/b", pieces(), lambda piece: seen.append(bytes(piece)))
        want = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
        assert as_bytes(tested.get("a/b")) == want
        assert b"".join(seen) == want

    def test_an_error_between_pieces_leaves_what_was_there(self, tested: Store) -> None:
        """Check that the error is raised unchanged, and nothing of the new value is visible."""
        self._needs_rewriting()

        def pieces() -> Iterator[Buffer]:
            yield bytes(1 << 20)
            raise ArithmeticError("this chunk cannot be encoded")

        tested.set("a", [b"old"])
        for key in ("a", "b"):
            with pytest.raises(ArithmeticError, match="cannot be encoded"):
                put_stream(tested, key, pieces())
        assert as_bytes(tested.get("a")) == b"old"
        assert tested.get("b") is None
        if self.lists:
            assert list(tested.list()) == ["a"]

    def test_a_large_value(self, tested: Store) -> None:
        """Check some megabytes, whole and in part."""
        value = np.random.default_rng(1).bytes((1 << 22) + 7)
        tested.set("large", [value[:100], value[100:]])
        assert as_bytes(tested.get("large")) == value
        (part,) = tested.get_ranges([("large", Range(1 << 21, (1 << 21) + 5))])
        assert as_bytes(part) == value[1 << 21 : (1 << 21) + 5]

    def test_a_value_is_replaced_as_a_whole(self, tested: Store) -> None:
        """Check that nothing of a longer value remains."""
        self._needs_rewriting()
        tested.set("a", [b"long value"])
        tested.set("a", [b"short"])
        assert as_bytes(tested.get("a")) == b"short"
        tested.set("a", [])
        assert as_bytes(tested.get("a")) == b""

    def test_deleting_nothing_does_nothing(self, tested: Store) -> None:
        """Check that it is not an error either."""
        self._needs_rewriting()
        tested.delete("a/b")
        if self.lists:
            tested.delete_prefix("a/")
            tested.delete_prefix("")

    def test_delete(self, tested: Store) -> None:
        """Check that one value is removed and its neighbour stays."""
        self._needs_rewriting()
        tested.set("a/b", [b"1"])
        tested.set("a/c", [b"2"])
        tested.delete("a/b")
        assert tested.get("a/b") is None
        assert as_bytes(tested.get("a/c")) == b"2"

    def test_delete_prefix_takes_whole_names(self, tested: Store) -> None:
        """Check that keys that only begin alike stay."""
        self._needs_rewriting()
        self._needs_listing(tested)
        for key in ("a", "a2/x", "b/x", "b/y/z", "bb/x"):
            tested.set(key, [b"1"])
        tested.delete_prefix("b/")
        assert set(tested.list()) == {"a", "a2/x", "bb/x"}
        tested.delete_prefix("")
        assert list(tested.list()) == []
        tested.set("b/x", [b"again"])
        assert as_bytes(tested.get("b/x")) == b"again"

    # --- keys -------------------------------------------------------------------------------------

    def test_list(self, tested: Store) -> None:
        """Check that every key below a prefix is listed once."""
        self._needs_listing(tested)
        keys = {"zarr.json", "a/zarr.json", "a/c/0/0", "a/c/0/1", "ab/zarr.json"}
        for key in keys:
            tested.set(key, [b"1"])
        assert set(tested.list()) == keys
        assert set(tested.list("a/")) == {"a/zarr.json", "a/c/0/0", "a/c/0/1"}
        assert set(tested.list("a/c/")) == {"a/c/0/0", "a/c/0/1"}
        assert len(list(tested.list())) == len(keys)

    def test_list_dir(self, tested: Store) -> None:
        """Check the keys and prefixes directly below a prefix."""
        self._needs_listing(tested)
        for key in ("zarr.json", "b/zarr.json", "b/c/0/0", "b/c/1", "ba/x", ".zgroup"):
            tested.set(key, [b"1"])
        assert tested.list_dir() == ([".zgroup", "zarr.json"], ["b/", "ba/"])
        assert tested.list_dir("b/") == (["b/zarr.json"], ["b/c/"])
        assert tested.list_dir("b/c/") == (["b/c/1"], ["b/c/0/"])
        assert tested.list_dir("nothing/") == ([], [])

    def test_names_that_are_not_ascii(self, tested: Store) -> None:
        """Check that keys are listed as they were given, neither normalised nor escaped."""
        keys = ["größe/Δt.json", "日本/c/0", "a b/c%20d", "a#b?c=d", "a*[b]", "é", "e\u0301"]
        for number, key in enumerate(keys):
            tested.set(key, [str(number).encode()])
        got = [as_bytes(tested.get(key)) for key in keys]
        assert got == [str(number).encode() for number in range(len(keys))]
        if self.lists:
            assert set(tested.list()) == set(keys)

    @pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
    def test_keys_that_lead_outside(self, tested: Store, key: str) -> None:
        """Check that they are refused before anything is written."""
        with pytest.raises(StoreKeyError):
            tested.set(key, [b"1"])
        with suppress(StoreKeyError):
            assert tested.get(key) is None
        with suppress(StoreKeyError):
            assert tested.get_ranges([(key, WHOLE)]) == [None]
        if self.lists:
            assert list(tested.list()) == []

    # --- processes and threads --------------------------------------------------------------------

    def test_pickles_as_the_same_place(self, tested: Store) -> None:
        """Check that each of the two reads what the other writes."""
        self._needs_rewriting()
        tested.set("a", [b"1"])
        again = pickle.loads(pickle.dumps(tested))  # noqa: S301  (made on this line)
        assert again.url == tested.url
        assert as_bytes(again.get("a")) == b"1"
        again.set("a", [b"2"])
        assert as_bytes(tested.get("a")) == b"2"

    def test_a_reader_sees_old_or_new(self, tested: Store) -> None:
        """Check that a reader never sees a mixture, a part or nothing."""
        self._needs_rewriting()
        if not self.atomic:
            pytest.skip("this file system replaces a file in place")
        values = [b"a" * 50_000, b"b" * 200_000]
        tested.set("a/b", [values[0]])
        enough = threading.Event()

        def rewrite() -> None:
            number = 0
            while not enough.is_set():
                number += 1
                value = values[number % 2]
                tested.set("a/b", [value[:1000], value[1000:]])

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            seen = {as_bytes(tested.get("a/b")) for _ in range(150)}
            seen |= {as_bytes(tested.get_ranges([("a/b", WHOLE)])[0]) for _ in range(150)}
        finally:
            enough.set()
            writer.join()
        assert seen <= set(values)

    def test_many_writers(self, tested: Store) -> None:
        """Check that concurrent threads do not disturb each other."""

        def write(thread: int) -> None:
            for number in range(20):
                tested.set(f"folder{number}/{thread}", [f"{number} {thread}".encode()])

        threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        want = {f"folder{n}/{t}": f"{n} {t}".encode() for n in range(20) for t in range(4)}
        assert {key: as_bytes(tested.get(key)) for key in want} == want
        if self.lists:
            assert set(tested.list()) == set(want)

    def _needs_rewriting(self) -> None:
        if not self.rewrites:
            pytest.skip("values are written once")

    def _needs_listing(self, tested: Store) -> None:
        """Skip tests of listings if the store has none; it must raise an error then."""
        if not self.lists:
            with pytest.raises(ListingError):
                tested.list_dir()
            with pytest.raises(ListingError):
                list(tested.list())
            pytest.skip("the store has no listing")


def as_bytes(value: Buffer | None) -> bytes | None:
    """Return a value that can be compared."""
    return None if value is None else bytes(value)
