"""Metadata that a store acknowledges and does not keep: `Confirmed` finds it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.lies import LIES, Put
from tests.support.object_stores import s3_server
from zarr_dask.errors import ConditionalWriteError, MetadataChangedError, StoreError
from zarr_dask.stores import Confirmed, MemoryStore, Recording
from zarr_dask.stores.backends.memory import MemoryStore as Values
from zarr_dask.stores.base import WHOLE
from zarr_dask.stores.wrapper import StoreWrapper

DOCUMENT = "a/zarr.json"


@dataclass(frozen=True)
class LosingDocuments(StoreWrapper):
    """A store that acknowledges the metadata of one node and does something else with them."""

    key: str = DOCUMENT
    lie: str = "lost"

    def set(self, key, buffers):
        before = self.store.get(key)
        self.store.set(key, buffers)
        self._lie(key, before)

    def set_if(self, key, buffers, tag):
        before = self.store.get(key)
        done = super().set_if(key, buffers, tag)
        if done:
            self._lie(key, before)
        return done

    def _lie(self, key, before):
        if key != self.key:
            return
        if self.lie == "the older" and before is None:
            self.store.delete(key)
            return
        value = bytes(self.store.get(key))
        LIES[self.lie](Put(self.store, key, value, bytes(before or b""), key))


def made() -> Values:
    values = MemoryStore()
    zd.create_group(values)
    array = zd.create_array(values, "a", shape=(4,), chunks=2, dtype="i4", attributes={"k": 1})
    array[...] = 7
    return values


CHANGES = {
    "attributes": lambda store: zd.open_array(store, "a", mode="r+").attrs.update(k=2),
    "removal": lambda store: zd.open_array(store, "a", mode="r+").attrs.clear(),
    "resize": lambda store: zd.open_array(store, "a", mode="r+").resize((9,)),
    "append": lambda store: zd.open_array(store, "a", mode="r+").append(np.ones(2, "i4")),
    "creation": lambda store: zd.create_array(
        store, "a", shape=(5,), chunks=2, dtype="i4", overwrite=True
    ),
}


@pytest.mark.parametrize(
    "lie", ["lost", "halved", "the older", "empty", "a byte more", "zeroed", "a byte flipped"]
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_lost_change_of_metadata_is_an_error(change, lie):
    CHANGES[change](LosingDocuments(made(), lie=lie))  # which is not noticed
    with pytest.raises(StoreError, match=f"acknowledged '{DOCUMENT}'.*got"):
        CHANGES[change](Confirmed(LosingDocuments(made(), lie=lie)))
    CHANGES[change](Confirmed(made()))


def test_a_lost_consolidation_is_an_error():
    with pytest.raises(StoreError, match=r"acknowledged 'zarr\.json'.*there before"):
        zd.consolidate(Confirmed(LosingDocuments(made(), "zarr.json", "the older")))


def test_a_change_that_another_process_has_followed_is_no_error():
    values = made()

    @dataclass(frozen=True)
    class Followed(StoreWrapper):
        def set_if(self, key, buffers, tag):
            done = super().set_if(key, buffers, tag)
            zd.open_array(values, "a", mode="r+").attrs["other"] = 3
            return done

    zd.open_array(Confirmed(Followed(values)), "a", mode="r+").attrs["k"] = 2
    assert zd.open_array(values, "a").attributes == {"k": 2, "other": 3}


def test_large_values_are_compared_by_their_length():
    store = Confirmed(LosingDocuments(MemoryStore(), "large", "halved"))
    with pytest.raises(StoreError, match=r"expected 2,000,000 bytes, got 1,000,000 bytes\."):
        store.set("large", [bytes(1_000_000), bytes(1_000_000)])
    Confirmed(store.store.store).set("large", [bytes(2_000_000)])


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_attributes_that_a_server_acknowledges_and_loses(backend):
    with s3_server() as server, fault_proxy(server.endpoint) as proxy:
        url = f"{server.root}/{backend}.zarr"
        direct = zd.create_group(url, storage_options=server.options).store
        zd.create_array(direct, "a", shape=(4,), dtype="i4", attributes={"k": 1})
        before = bytes(direct.get(DOCUMENT))
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        options = {**server.options, "client_kwargs": client, "backend": backend}
        store = Confirmed(zd.stores.open_store(url, options))
        array = zd.open_array(store, "a", mode="r+")
        proxy.faults.lie = lambda path: (
            direct.set(DOCUMENT, [before]) if path.split("?")[0].endswith(DOCUMENT) else None
        )
        with pytest.raises(StoreError, match="acknowledged"):
            array.attrs["k"] = 2
        proxy.faults.lie = None
        array.attrs["k"] = 3
        assert zd.open_array(direct, "a").attributes == {"k": 3}


def test_a_write_that_confirms_its_objects_confirms_its_metadata():
    x = da.from_array(np.arange(4), chunks=2)
    dataset = xr.Dataset({"v": ("x", np.arange(4))}).chunk({"x": 2})
    with dask.config.set(scheduler="sync"):
        for key, append in (("a/zarr.json", None), ("a/zarr.json", 0)):
            store = LosingDocuments(MemoryStore(), key, "the older")
            if append is not None:
                zd.to_zarr(x, store.store, "a")
            with pytest.raises(StoreError, match="acknowledged"):
                zd.to_zarr(x, store, "a", append=append, confirm=True)
        for key in ("zarr.json", "v/zarr.json"):
            with pytest.raises(StoreError, match="acknowledged"):
                zd.write_dataset(dataset, LosingDocuments(MemoryStore(), key), confirm=True)
        zd.write_dataset(dataset, Confirmed(MemoryStore()), confirm=True)


class Late(MemoryStore):
    """Answers with documents as they were, for a number of reads; conditions are kept."""

    reads = 0
    old: Mapping[str, bytes] = MappingProxyType({})

    def _now(self, key, found):
        if self.reads and key in self.old:
            self.reads -= 1
            return self.old[key]
        return found

    def get(self, key):
        return self._now(key, super().get(key))

    def get_ranges(self, requests):
        found = super().get_ranges(requests)
        return [self._now(key, one) for (key, _), one in zip(requests, found, strict=True)]

    def get_tagged(self, key, wanted=WHOLE):
        value, tag = super().get_tagged(key, wanted)
        now = self._now(key, value)
        return (value, tag) if now is value else (now, bytes(now))

    def set_if(self, key, buffers, tag):
        reads, self.reads = self.reads, 0
        try:
            return super().set_if(key, buffers, tag)
        finally:
            self.reads = reads


APPENDS = {
    "append": lambda store: zd.open_array(store, mode="r+").append([9, 9]),
    "wrapped": lambda store: zd.open_array(Recording(store), mode="r+").append([9, 9]),
    "batch": lambda store: in_a_batch(zd.open_array(store, mode="r+")),
    "to_zarr": lambda store: zd.to_zarr(np.array([9, 9], "i4"), store, append=0),
    "confirm": lambda store: zd.to_zarr(
        np.array([9, 9], "i4"), store.store, append=0, confirm=True
    ),
}


def in_a_batch(array):
    with array.batch():
        array.append([9, 9])


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("way", APPENDS)
@pytest.mark.parametrize("reads", range(1, 14))
def test_an_append_to_a_store_that_answers_late_writes_over_no_other_one(way, reads, format):
    store = Late()
    array = zd.create_array(store, shape=(4,), dtype="i4", chunks=2, fill_value=-1, format=format)
    array[...] = 1
    document = "zarr.json" if format == "v3" else ".zarray"
    store.old = {document: bytes(store.get(document))}
    zd.open_array(store, mode="r+").append([7, 7])
    store.reads = reads
    with suppress(MetadataChangedError, ConditionalWriteError):
        APPENDS[way](Confirmed(store))
    store.reads = 0
    found = zd.open_array(store)[...].tolist()
    assert found in ([1, 1, 1, 1, 7, 7], [1, 1, 1, 1, 7, 7, 9, 9])
