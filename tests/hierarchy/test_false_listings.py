"""Stores whose listings are empty, as libraries read the page of a gateway with status 200."""

from collections.abc import Callable, Iterator, Sequence

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from zarr_dask.errors import StoreError
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import Buffer, Listing, ReadPolicy, Store
from zarr_dask.stores.open import substore
from zarr_dask.stores.wrapper import StoreWrapper

VALUES = np.arange(12)


class Far(MemoryStore):
    """A store each request to which takes its time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)


class NothingListed(StoreWrapper):
    """A store that lists nothing, and therefore deletes nothing below a prefix."""

    def delete_prefix(self, prefix: str) -> None:
        pass

    def list(self, prefix: str = "") -> Iterator[str]:
        return iter(())

    def list_dir(self, prefix: str = "") -> Listing:
        return Listing([], [])


CALLS: dict[str, Callable[[Store], object]] = {
    "members": lambda store: list(zd.open_group(store)),
    "tree": lambda store: zd.open_group(store).tree(),
    "consolidate": zd.consolidate,
    "copy": lambda store: zd.copy(store, MemoryStore()),
    "copy of an array": lambda store: zd.copy(zd.open_array(store, "a"), MemoryStore()),
    "verify": zd.verify,
    "verify of an array": lambda store: zd.verify(store, "a"),
    "inventory": zd.inventory,
    "bytes": lambda store: zd.open_array(store, "a").nbytes_stored(),
    "rename": lambda store: zd.open_group(store, mode="r+").rename("a", "z"),
}


@pytest.mark.parametrize("format", ["v3", "v2"])
@pytest.mark.parametrize("call", CALLS)
def test_an_empty_listing_is_not_believed_where_metadata_are(format, call):
    values = {}
    store = MemoryStore(values)
    zd.create_group(store, format=format)
    zd.to_zarr(da.from_array(VALUES, chunks=4), store, "a", format=format)
    zd.create_group(store, "empty", format=format)
    before = dict(values)
    with pytest.raises(StoreError, match=r"could not list .* nothing was listed, but .* is there"):
        CALLS[call](NothingListed(store))
    assert {key: bytes(values[key]) for key in values} == before
    assert list(zd.open_group(store, "empty")) == []
    np.testing.assert_array_equal(zd.open_array(store, "a")[...], VALUES)


CHANGES: dict[str, Callable[[Store], object]] = {
    "delete": lambda store: zd.delete(store, "a"),
    "delete of all": zd.delete,
    "new array": lambda store: zd.create_array(store, "a", shape=9, dtype="i1", overwrite=True),
    "new group": lambda store: zd.create_group(store, "a", overwrite=True),
    "new hierarchy": lambda store: zd.create_group(store, overwrite=True),
    "write": lambda store: zd.to_zarr(da.zeros(4, "i8"), store, "a", mode="w"),
    "copy": lambda store: zd.copy(MADE, store, overwrite=True),
    "rechunk": lambda store: zd.rechunk(MADE["a"], substore(store, "a"), chunks=3, overwrite=True),
}
NEW: dict[str, Callable[[Store, str], object]] = {
    "write": lambda store, _: zd.to_zarr(da.zeros(12, "i8", chunks=4), store, "a", mode="w-"),
    "copy": lambda store, _: zd.copy(MADE, store),
    "dataset": lambda store, name: zd.write_dataset(
        xr.Dataset({"a": ("x", -VALUES)}), store, format=name
    ),
}
MADE = zd.create_group({})
zd.create_array(MADE, "a", data=-VALUES, chunks=4)


def filled(store: Store, format: str) -> dict[str, bytes]:
    zd.create_group(store, format=format)
    zd.create_array(store, "a", data=VALUES, chunks=4, format=format)
    return stored(store)


def stored(store: Store) -> dict[str, bytes]:
    return {key: bytes(store.get(key) or b"") for key in store.list()}


@pytest.mark.parametrize("format", ["v3", "v2"])
@pytest.mark.parametrize("kind", [MemoryStore, Far])
@pytest.mark.parametrize("call", CHANGES)
def test_nothing_is_removed_where_a_listing_denies_what_is_there(call, kind, format):
    """The stored objects would stay, and be values of the next array there."""
    store = kind({})
    before = filled(store, format)
    with pytest.raises(StoreError, match=r"could not list .* nothing was listed, but .* is there"):
        CHANGES[call](NothingListed(store))
    assert stored(store) == before


@pytest.mark.parametrize("format", ["v3", "v2"])
@pytest.mark.parametrize("call", NEW)
def test_nothing_is_written_over_what_a_listing_denies(call, format):
    store = Far({})
    before = filled(store, format)
    with pytest.raises(StoreError, match=r"could not list .* nothing was listed, but .* is there"):
        NEW[call](NothingListed(store), format)
    assert stored(store) == before


@pytest.mark.parametrize("format", ["v3", "v2"])
@pytest.mark.parametrize("call", CHANGES)
def test_what_a_deletion_has_left_is_told(call, format):
    """The listing by which all is deleted is empty; the ones before were not."""

    class Kept(StoreWrapper):
        def delete_prefix(self, prefix: str) -> None:
            pass

    store = Far({})
    filled(store, format)
    with pytest.raises(StoreError, match=r"could not remove all .* is still there"):
        CHANGES[call](Kept(store))


def test_a_rename_loses_no_object_that_the_store_denies():
    """Else the chunk would be fill values at the new path, and nothing at the old one."""

    class Denying(StoreWrapper):
        def get(self, key: str) -> Buffer | None:
            return None if key == "a/c/1" else self.store.get(key)

    store = Far({})
    before = filled(store, "v3")
    with pytest.raises(StoreError, match="is listed, but the store says that it is not there"):
        zd.open_group(Denying(store), mode="r+").rename("a", "z")
    assert stored(store) == before


class Cut(MemoryStore):
    """Answers with half of a chunk, as a gateway does whose upstream was cut off."""

    def get(self, key: str) -> Buffer | None:
        value = super().get(key)
        return value[: len(value) // 2] if value is not None and key.endswith("c/0") else value

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        return ((key, len(self.values[key])) for key in self.list(prefix))

    def size(self, key: str) -> int | None:
        return len(self.values[key]) if key in self.values else None


class Losing(Far):
    """Acknowledges values at one key and does not keep them."""

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key != "b/c/1":
            super().set(key, buffers)


@pytest.mark.parametrize(("lying", "key"), [(Cut, "a/c/0"), (Losing, "b/c/1")])
def test_a_rename_removes_nothing_of_which_there_is_no_whole_copy(lying, key):
    values = {}
    zd.to_zarr(da.from_array(VALUES, chunks=4), values, "a")
    before = dict(values)
    group = zd.open_group(lying(values), mode="r+")
    with pytest.raises(StoreError, match=rf"'{key}'.*nothing was renamed"):
        group.rename("a", "b")
    assert values == before
