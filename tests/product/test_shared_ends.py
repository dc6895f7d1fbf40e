"""A region write and an append share the stored object that the end of an array cuts.

One of the two runs as a whole between what the other one does for this object: nothing that either
has acknowledged may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.base import WHOLE, Buffer, Range, Store

LAYOUTS = {"chunks": {"chunks": 4}, "shards": {"chunks": 2, "shards": 4}}
FIRST = [1, 2, 3, 4, 5]
END = "c/1"
"""Key of the object that holds the last element, and room for three more."""
Change = Callable[[Store], Any]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def opened(store: Store) -> zd.Array:
    return zd.open_array(store, "a", mode="r+")


def batch(store: Store) -> None:
    array = opened(store)
    with array.batch():
        array.append([8])


def dataset(values: list[int]) -> xr.Dataset:
    return xr.Dataset({"a": ("x", np.array(values, "i4"))})


APPENDS: dict[str, Change] = {
    "append": lambda store: opened(store).append([8]),
    "batch": batch,
    "to_zarr": lambda store: zd.to_zarr(da.full(1, 8, dtype="i4"), store, "a", append=0),
    "dataset": lambda store: zd.write_dataset(dataset([8]), store, append="x", consolidated=False),
}


def region(value: int) -> Change:
    values = da.full(1, value, dtype="i4", chunks=1)
    return lambda store: zd.to_zarr(values, store, "a", region=np.s_[4:5])


def assigned(value: int) -> Change:
    return lambda store: opened(store).__setitem__(slice(4, 5), value)


def picked(value: int) -> Change:
    return lambda store: opened(store).oindex.__setitem__([0, 4], [1, value])


WRITES = {"region": region, "assigned": assigned, "picked": picked}


def between(store: Store, change: Change) -> Store:
    """The store, in which a change happens right before the object at the end changes first."""
    left = [change]

    def before(method: str, key: str) -> None:
        if method in {"set", "set_if", "delete"} and key.endswith(END) and left:
            left.pop()(store)

    return HookStore(store, before)


def made(folder, kind: str, layout: str) -> Store:
    store: Store = MemoryStore() if kind == "memory" else LocalStore(str(folder))
    names = {"dimension_names": ("x",)}
    zd.create_group(store)
    zd.create_array(store, "a", shape=5, dtype="i4", **names, **LAYOUTS[layout])[...] = FIRST
    return store


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [7, 0])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("first", ["write", "append"])
def test_neither_loses_what_the_other_has_acknowledged(
    tmp_path, kind, layout, value, write, append, first
):
    store = made(tmp_path, kind, layout)
    changes = [WRITES[write](value), APPENDS[append]]
    outer, inner = changes if first == "write" else changes[::-1]
    outer(between(store, inner))
    assert zd.open_array(store, "a")[...].tolist() == [*FIRST[:4], value, 8]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("append", APPENDS)
def test_where_the_write_has_seen_no_object(tmp_path, layout, append):
    """Its elements are fill values, so that it has nothing to store."""
    store = made(tmp_path, "local", layout)
    store.delete(f"a/{END}")
    left = [APPENDS[append]]

    def before(method: str, key: str) -> None:
        if method == "get" and key.endswith(END) and left:
            left.pop()(store)

    opened(HookStore(store, before))[...] = [*FIRST[:4], 0]
    assert zd.open_array(store, "a")[...].tolist() == [*FIRST[:4], 0, 8]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_that_is_pruned(tmp_path, layout):
    store = made(tmp_path, "local", layout)
    APPENDS["append"](store)
    opened(between(store, region(7))).resize(5, prune=True)
    assert opened(store).resize(6)[...].tolist() == [*FIRST[:4], 7, 0]


def test_along_every_dimension(tmp_path):
    store = LocalStore(str(tmp_path))
    array = zd.create_array(store, "a", shape=(5, 7), dtype="i4", chunks=(4, 4))
    array[...] = expected = np.arange(35, dtype="i4").reshape(5, 7)
    left = [lambda: opened(store).append(np.full((5, 2), -1), 1)]

    def before(method: str, key: str) -> None:
        if method in {"set", "set_if"} and key.endswith("c/0/1") and left:
            left.pop()()

    opened(HookStore(store, before))[:, 1:] = expected[:, 1:] * 2
    more = np.concatenate([expected * [1, *[2] * 6], np.full((5, 2), -1)], 1)
    np.testing.assert_array_equal(opened(store)[...], more)


def test_only_objects_at_the_end_are_read(tmp_path):
    """The others are put at once, those of a new array as well, and those behind the end."""
    values = np.arange(35, dtype="i4").reshape(5, 7) + 1
    store = Recording(LocalStore(str(tmp_path)))
    x = da.from_array(values, chunks=(4, 4))
    zd.to_zarr(x, store, "a")
    assert not any("/c/" in key for key in store.per_key())
    array = zd.open_array(store, "a", mode="r+")
    ends = {"a/c/0/1": 1, "a/c/1/0": 1, "a/c/1/1": 1}
    for change in (
        lambda: array.__setitem__(..., values),
        lambda: zd.to_zarr(x, array, region=np.s_[:, :]),
    ):
        store.clear()
        change()
        assert {key: count for key, count in store.per_key().items() if "/c/" in key} == ends
        assert store.per_key("set_if") == ends
    assert zd.plan_write(x, array, region=np.s_[:, :]).requests == {"read": 3, "write": 4}
    rows = da.ones((4, 7), dtype="i4", chunks=(4, 4))
    assert zd.plan_write(rows, array, append=0).requests == {"read": 2, "write": 4}
    zd.to_zarr(da.ones((3, 7), dtype="i4"), array, append=0)
    store.clear()
    zd.open_array(store, "a", mode="r+").append(np.ones((4, 7)))  # the end cuts no row any more
    assert not any("/c/" in key for key in store.per_key())
    assert [*store.per_key("set_if")] == ["a/zarr.json"]


def test_a_store_without_conditions_is_written_as_ever():
    store = FsspecStore.from_url("memory://shared-ends", {})
    array = zd.create_array(store, "a", shape=5, dtype="i4", chunks=4)
    array[...] = FIRST
    array.append([6])
    array.resize(5, prune=True)
    np.testing.assert_array_equal(array.resize(6)[...], [*FIRST, 0])


class BoundedStore(MemoryStore):
    """A store that notes how many bytes were asked for to change an object."""

    asked: list[int | None]

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        if "/c/" in key:
            self.asked.append(wanted.stop)
        return super().get_tagged(key, wanted)


CHANGES: dict[str, Change] = {
    "assignment": lambda store: opened(store).__setitem__(slice(4, 5), 7),
    "region": region(7),
    "append": APPENDS["append"],
    "batch": batch,
    "resize": lambda store: opened(store).resize((2,), prune=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", CHANGES)
def test_no_more_is_read_than_a_correct_object_has(change: str, layout: str) -> None:
    store = BoundedStore()
    store.asked = []
    array = zd.create_array(store, "a", shape=5, dtype="i4", **LAYOUTS[layout])
    array[...] = FIRST
    at = "a/c/0" if change == "resize" else f"a/{END}"
    store.values[at] = bytes(10_000_000)
    store.asked.clear()
    with pytest.raises(CorruptObjectError, match="bytes or more"):
        CHANGES[change](store)
    assert store.asked
    assert all(stop is not None and stop < 1_000_000 for stop in store.asked)
