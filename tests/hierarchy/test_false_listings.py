"""Stores whose listings are empty, as libraries read the page of a gateway with status 200."""

from collections.abc import Callable, Iterator

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import StoreError
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import Listing, Store
from zarr_dask.stores.wrapper import StoreWrapper

VALUES = np.arange(12)


class NothingListed(StoreWrapper):
    """A store that lists nothing."""

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
