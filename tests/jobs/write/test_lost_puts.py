"""Stores that acknowledge what they do not keep: `confirm=True` sees it."""

from dataclasses import dataclass

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import NodeNotFoundError, StoreError
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.wrapper import StoreWrapper

VALUES = np.random.default_rng(0).random((40, 40))
LIES = {
    "lost": lambda _store, _key, _value: None,
    "halved": lambda store, key, value: store.set(key, [value[: len(value) // 2]]),
    "elsewhere": lambda store, key, value: store.set(f"other/{key}", [value]),
}


@dataclass(frozen=True)
class LyingStore(StoreWrapper):
    """A store that acknowledges one object and does something else with it."""

    lie: str = ""

    def set(self, key, buffers):
        if key == "a/c/2/1" and self.lie:
            LIES[self.lie](self.store, key, b"".join(buffers))
        else:
            self.store.set(key, buffers)


@pytest.mark.parametrize(
    "options", [{}, {"shards": (10, 10), "chunks": 5}], ids=["chunks", "shards"]
)
@pytest.mark.parametrize("lie", LIES)
def test_what_a_store_has_not_kept_is_not_shown(lie, options):
    x = da.from_array(VALUES, chunks=10)
    store = LyingStore(MemoryStore(), lie)
    with dask.config.set(scheduler="sync"):
        with pytest.raises(StoreError, match=r"'c/2/1'.*(no such object|got \d)"):
            zd.to_zarr(x, store, "a", confirm=True, **options)
        with pytest.raises(NodeNotFoundError):
            zd.open_array(store, "a")
        zd.to_zarr(x, store, "a", overwrite=True, **options)  # nobody asks
        honest = LyingStore(store.store)
        zd.to_zarr(x, honest, "a", overwrite=True, confirm=True, **options)
        np.testing.assert_array_equal(zd.open_array(honest, "a")[...], VALUES)
        for lie_again in {lie} - {"halved"}:
            del store.store.values["a/c/2/1"]
            with pytest.raises(StoreError, match="no such object"):
                zd.to_zarr(x, LyingStore(store.store, lie_again), "a", mode="r+", confirm=True)
