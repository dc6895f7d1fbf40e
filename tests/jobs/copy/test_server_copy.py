"""Stored objects that stay as they are: copied by the service that holds both places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import s3_server
from zarr_dask.jobs.copy.raw_copy import _FEWER, _folders_of
from zarr_dask.journal.receipts import StoredObject
from zarr_dask.stores import MemoryStore, Recording, open_store
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.server_copy import server_copy_or_none

NUMBERS = count()
VALUES = np.arange(64, dtype="i4")
ABSENT = frozenset(f"c/{n}" for n in range(10, 16))


class Copying(MemoryStore):
    """A store whose service copies, unless something else is said."""

    def __init__(self, refusal=None, *, ignores=False):
        super().__init__()
        self.refusal = refusal
        self.ignores = ignores
        self.copied = []
        self.seen = []

    def can_copy_from(self, source):
        return isinstance(source, Copying)

    def copy_from(self, source, old, key, nbytes):
        if self.refusal is not None:
            raise self.refusal
        value = source.values.get(old)
        if value is not None:
            assert nbytes >= len(value)
            self.copied.append(key)
            self.values[key] = b"" if self.ignores else value
        return value is not None

    def size(self, key):
        return len(self.values[key]) if key in self.values else None

    def get(self, key):
        self.seen.append(key)
        return super().get(key)


def filled():
    store = Copying()
    array = zd.create_array(store, shape=(64,), chunks=4, dtype="i4")
    array[:40] = VALUES[:40]
    store.seen.clear()
    return store


def expected():
    return np.where(VALUES < 40, VALUES, 0)


def data(store):
    return {key: value for key, value in store.values.items() if key.startswith("c/")}


class Receipts(NamedTuple):
    """What is known of stored objects."""

    objects: list[StoredObject]
    empty: frozenset[str]


@pytest.mark.parametrize("resume", [False, True])
def test_no_bytes_are_read(resume):
    source, target = filled(), Copying()
    journal = MemoryStore()
    options = {"resume": True, "journal": journal} if resume else {}
    with dask.config.set(scheduler="sync"):
        report = zd.copy(source, target, **options)
    assert sorted(target.copied) == sorted(data(source))
    assert data(target) == data(source)
    assert not [key for key in source.seen if key.startswith("c/")]
    assert report.stored == sum(map(len, data(source).values()))
    np.testing.assert_array_equal(zd.open_array(target)[...], expected())


@pytest.mark.parametrize(
    "target",
    [
        Copying(zd.errors.AccessDeniedError("tags may not be read")),
        Copying(zd.errors.StoreError("501 Not Implemented")),
        Copying(ignores=True),
    ],
    ids=["denied", "not implemented", "ignored"],
)
def test_what_a_service_does_not_copy_is_read_and_written(target):
    source = filled()
    target.values["c/3"] = b"left by a job that has died"
    with dask.config.set(scheduler="sync"):
        zd.copy(source, target, verify=True)
    assert data(target) == data(source)


def test_receipts_without_checksums_tell_sizes():
    store = filled()
    sizes = {key: len(value) for key, value in data(store).items()}
    rows = [StoredObject(key, nbytes, 0) for key, nbytes in sizes.items()]
    assert not any(one.has_checksum for one in rows)
    assert StoredObject("c/0", 4, 0, crc32=0).has_checksum
    assert zd.verify(store, deep="receipts", manifest=Receipts(rows, ABSENT)).ok
    rows[0] = replace(rows[0], nbytes=rows[0].nbytes + 1)
    report = zd.verify(store, deep="receipts", manifest=Receipts(rows, ABSENT))
    assert [one.kind for one in report.findings] == ["torn"]


def test_logs_and_other_services_see_the_bytes():
    source = filled()
    assert server_copy_or_none(source, Copying()) is not None
    assert server_copy_or_none(source, MemoryStore()) is None
    assert server_copy_or_none(MemoryStore(), Copying()) is None
    assert server_copy_or_none(Recording(source), Copying()) is None
    assert server_copy_or_none(source, Recording(Copying())) is None


def test_buckets_are_shared_by_stores_with_equal_options():
    options = {"key": "a", "secret": "b"}
    one = open_store("s3://bucket/a", options)
    assert capabilities_of(one).server_copy
    assert one.can_copy_from(open_store("s3://bucket/b", options))
    assert not one.can_copy_from(open_store("s3://other/b", options))
    assert not one.can_copy_from(open_store("s3://bucket/b", {**options, "key": "c"}))


def test_s3_copies_within_a_bucket():
    with s3_server() as server, fault_proxy(server.endpoint) as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        options = {**server.options, "client_kwargs": client}
        url, copied = (f"s3://bucket/server-copy-{next(NUMBERS)}" for _ in range(2))
        array = zd.create_array(
            url, shape=(64,), chunks=4, dtype="i4", storage_options=server.options
        )
        array[:40] = VALUES[:40]
        proxy.faults.counted()
        with dask.config.set(scheduler="sync"):
            report = zd.copy(url, copied, storage_options=options, target_options=options)
        seen = [one.method for one in proxy.faults.counted() if "/c/" in one.path.split("?")[0]]
        assert seen.count("GET") == 0
        assert seen.count("PUT") >= 10
        assert report.requests["copy"] == seen.count("PUT")
        found = zd.open_array(copied, storage_options=options)
        np.testing.assert_array_equal(found[...], expected())


def test_listings_of_a_copy():
    """What is known is not asked for again: each of them takes a round trip."""
    with s3_server() as server, fault_proxy(server.endpoint) as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        options = {**server.options, "client_kwargs": client}
        both = {"storage_options": options, "target_options": options}
        old, new = (f"listed-{next(NUMBERS)}" for _ in range(2))
        array = zd.create_array(
            f"s3://bucket/{old}", shape=64, chunks=4, dtype="i4", storage_options=options
        )
        array[:] = VALUES
        zd.copy(f"s3://bucket/{old}", f"s3://bucket/{new}-before", **both)  # tries conditions
        proxy.faults.counted()
        with dask.config.set(scheduler="sync"):
            zd.copy(f"s3://bucket/{old}", f"s3://bucket/{new}", **both)
        listed = Counter(
            one.path.partition("prefix=")[2].partition("__job")[0]
            for one in proxy.faults.counted()
            if "list-type" in one.path
        )
        assert listed == {
            f"{old}/c/": 1,
            f"{new}/": 3,  # planned, begun, ended
            f"{new}/c/": 1,  # the sizes of what the service has copied
            f"{new}.zarr-dask/": 4,  # planned and begun; receipts, and what is to be removed
        }


@pytest.mark.parametrize(
    ("counts", "separator", "number", "expected"),
    [
        ((64,), "/", 64, {"c/"}),
        ((64,), "/", 3, None),  # sizes one by one
        ((64,), ".", 64, {""}),
        ((500, 2000), ".", 200, None),
        ((500, 2000), "/", 200, {"c/0/"}),
        ((500, 60, 9), "/", 200, {"c/0/"}),
        ((500, 40, 9), "/", 720, {"c/0/", "c/1/"}),
        ((2000, 2, 3), "/", 200, {"c/"}),
    ],
)
def test_sizes_are_listed_where_that_is_fewer_requests(counts, separator, number, expected):
    keys = {"name": "default", "configuration": {"separator": separator}}
    target = zd.create_array({}, shape=counts, chunks=1, dtype="i1", chunk_key_encoding=keys)
    cells = [target.meta.grid.coords_of(n) for n in range(number)]
    folders, pages = _folders_of(target, cells)
    assert (folders if pages * _FEWER <= number else None) == expected
