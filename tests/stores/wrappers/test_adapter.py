"""Stores of other people, with seven methods: what `StoreAdapter` makes of them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.stores import MemoryStore, open_store
from zarr_dask.testing.stores import StoreTests


@dataclass
class Seven:
    """The methods that a store must have, and nothing else."""

    values: dict[str, bytes] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list, repr=False)

    def get(self, key):
        self.calls.append(("get", key))
        return self.values.get(key)

    def get_ranges(self, requests):
        self.calls.append(("get_ranges", *(key for key, _ in requests)))
        found = [(self.values.get(key), start, stop) for key, (start, stop) in requests]
        return [None if value is None else value[start:stop] for value, start, stop in found]

    def set(self, key, buffers):
        self.values[key] = b"".join(buffers)

    def delete(self, key):
        self.values.pop(key, None)

    def delete_prefix(self, prefix):
        for key in list(self.list(prefix)):
            del self.values[key]

    def list(self, prefix):
        return iter([key for key in self.values if key.startswith(prefix)])

    def list_dir(self, prefix):
        rest = [key[len(prefix) :].partition("/") for key in self.list(prefix)]
        keys = {prefix + name for name, slash, _ in rest if not slash}
        return keys, {f"{prefix}{name}/" for name, slash, _ in rest if slash}


class Unprinted(Seven):
    __repr__ = object.__repr__


class Shared(Seven):
    """One whose pickle is its place, as that of a store should be."""

    living: ClassVar[list[Shared]] = []

    def __reduce__(self):
        self.living.append(self)
        return _living, (len(self.living) - 1,)


def _living(number):
    return Shared.living[number]


class Delegating:
    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self.__dict__["_store"], name)


class TestCompleted(StoreTests):
    @pytest.fixture
    def store(self):
        return Shared()  # as a third party would give it


def test_a_hierarchy_in_a_store_of_seven_methods():
    store = Seven()
    values = np.arange(6400).reshape(80, 80)
    array = zd.create_array(store, "a/b", shape=(80, 80), dtype="i8", chunks=8, shards=40)
    array[...] = values
    store.calls.clear()
    array = zd.open_array(store, "a/b", format="v3")
    assert store.calls == [("get_ranges", "a/b/zarr.json")]
    store.calls.clear()
    assert array.read((slice(5, 6),), threads=1).tolist() == values[5:6].tolist()
    assert store.calls == [("get_ranges", "a/b/c/0/0", "a/b/c/0/1")] * 2  # indices, then chunks
    assert zd.from_zarr(store, "a/b").compute().tolist() == values.tolist()
    group = zd.open_group(store, mode="r+")
    group.rename("a/b", "c")
    assert [path for path, _ in group.arrays(recursive=True)] == ["c"]
    group.delete("c")
    assert not [key for key in store.values if key.startswith("c/")]
    with pytest.raises(zd.errors.StoreKeyError):
        zd.open(store, "../b")


def test_its_name_is_how_it_prints_itself():
    assert open_store(Seven()).url == "Seven(values={})"
    first, second = open_store(Unprinted()), open_store(Unprinted())
    assert first.identity != second.identity
    assert pickle.loads(pickle.dumps(first)).identity == first.identity


def test_what_delegates_to_a_store_is_one():
    store = Delegating(MemoryStore())
    assert open_store(store) is store
    zd.create_array(store, shape=3, dtype="i1")[...] = 5
    assert zd.open_array(store)[...].tolist() == [5, 5, 5]


@pytest.mark.parametrize("other", [5, None, object(), ["a"], {"a"}])
def test_what_is_no_store(other):
    with pytest.raises(TypeError, match="does not name a store"):
        open_store(other)
