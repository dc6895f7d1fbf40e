"""A wrapper claims what the store behind it can do and it forwards; no more, and no less."""

from dataclasses import fields

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.stores import Cache, LocalStore, MemoryStore, ReadOnly, Recording, Retrying
from zarr_dask.stores.base import list_sizes, open_value, supports_cheap_random_reads
from zarr_dask.stores.capabilities import Capabilities, capabilities_of
from zarr_dask.stores.compare_and_swap import cas_store_or_none
from zarr_dask.stores.open import open_store
from zarr_dask.stores.streaming_put import supports_streaming_put
from zarr_dask.stores.wrappers.base import HookStore, PrefixStore


class Minimal:
    """The seven methods, and nothing else."""

    def __init__(self):
        inner = MemoryStore()
        for name in ("get", "get_ranges", "set", "delete", "delete_prefix", "list", "list_dir"):
            setattr(self, name, getattr(inner, name))


def stores(tmp_path):
    local = LocalStore(str(tmp_path / "local"))
    with zd.ZipWriter(tmp_path / "a.zip", mode="w") as archive:
        zd.create_group(archive)
    return [local, MemoryStore(), open_store(Minimal()), open_store(tmp_path / "a.zip")]


def test_a_log_of_requests_can_do_what_its_store_can(tmp_path):
    found = [capabilities_of(store) for store in stores(tmp_path)]
    assert len(set(found)) >= 3
    assert [capabilities_of(Recording(store)) for store in stores(tmp_path)] == found
    assert [capabilities_of(Recording(Recording(s))) for s in stores(tmp_path)] == found


@pytest.mark.parametrize(
    "wrap",
    [
        ReadOnly,
        Retrying,
        lambda store: PrefixStore(store, "a/"),
        lambda store: HookStore(store, lambda *_: None),
    ],
    ids=["ReadOnly", "Retrying", "PrefixStore", "HookStore"],
)
def test_no_wrapper_claims_more_than_its_store(wrap, tmp_path):
    for store in stores(tmp_path):
        inner, outer = capabilities_of(store), capabilities_of(wrap(store))
        assert inner & outer == outer, store


def test_a_cache_reads_conditionally_by_validators():
    assert capabilities_of(Cache(MemoryStore(), 1000)).conditional_get


def test_jobs_through_a_log_run_as_without_it(tmp_path):
    x = da.arange(100, chunks=10)
    minimal = Recording(open_store(Minimal()))
    assert cas_store_or_none(minimal, "a") is None
    journal = Recording(open_store(Minimal()))
    zd.to_zarr(x, minimal, path="a", resume=True, journal=journal)
    assert (zd.open(minimal, "a")[...] == np.arange(100)).all()
    local = Recording(LocalStore(str(tmp_path / "x.zarr")))
    assert supports_cheap_random_reads(local)
    assert supports_streaming_put(local)
    zd.to_zarr(x, local)
    assert {request.method for request in local.requests if request.key == "c/0"} == {"set"}


def test_sizes_and_open_values_are_logged(tmp_path):
    store = Recording(LocalStore(str(tmp_path)))
    store.set("a/b", [b"0123456789"])
    store.append("a/b", b"more")
    store.clear()
    assert list(list_sizes(store, "a/")) == [("a/b", 14)]
    assert store.batches == {"list": 1}
    with open_value(store, "a/b") as value:
        assert [bytes(part) for part in value.get_ranges([zd.stores.Range(2, 4)])] == [b"23"]
    assert store.per_key() == {"a/b": 1}


def test_both_can_do_what_each_can():
    some, others = Capabilities(append=True, list_sizes=True), Capabilities(list_sizes=True)
    assert some & others == others
    assert Capabilities() & some == Capabilities()
    assert len(fields(Capabilities)) == 10
