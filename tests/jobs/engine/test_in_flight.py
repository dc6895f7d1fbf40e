"""Jobs at a distance: how many requests are in flight, and how many there are."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import s3_server
from zarr_dask.errors import StoreError
from zarr_dask.jobs.engine.thread_map import each_abreast

NUMBERS = count()
AT_ONCE = 24  # of 32, because a small machine takes its time to begin them


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def proxy(server):
    with fault_proxy(server.endpoint, latency=0.2) as running:
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def options(request, server, proxy):
    client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
    return {**server.options, "client_kwargs": client, "backend": request.param}


def shards(server, number):
    url = f"s3://bucket/flight-{next(NUMBERS)}"
    array = zd.create_array(
        url,
        "a",
        shape=(number * 4,),
        chunks=2,
        shards=4,
        dtype="i4",
        storage_options=server.options,
    )
    array[...] = np.arange(number * 4)
    return url


def test_verify_asks_once_for_each_shard_and_for_many_at_a_time(server, proxy, options):
    url = shards(server, 96)
    proxy.faults.counted()
    proxy.faults.most.clear()
    with dask.config.set(scheduler="threads", num_workers=2):
        assert zd.verify(url, "a", storage_options=options).ok
    assert proxy.faults.most["GET"] >= AT_ONCE
    seen = [one for one in proxy.faults.counted() if "/c/" in one.path and "list" not in one.path]
    assert [one.method for one in seen] == ["GET"] * 96
    assert all(one.range.startswith("bytes=-") for one in seen)


def test_verify_finds_what_is_wrong_with_shards(server, proxy, options):
    url = shards(server, 8)
    key = url.removeprefix("s3://bucket/")
    server.admin.put_object(Bucket="bucket", Key=f"{key}/a/c/3", Body=b"short")
    server.admin.put_object(Bucket="bucket", Key=f"{key}/a/c/5", Body=b"")
    report = zd.verify(url, "a", storage_options=options)
    assert {(one.kind, one.key) for one in report.findings} == {
        ("torn", "a/c/3"),
        ("torn", "a/c/5"),
    }


def test_a_copy_reads_and_writes_many_at_a_time(server, proxy, options):
    url = shards(server, 64)
    with dask.config.set(scheduler="threads", num_workers=2):
        zd.copy(url, f"{url}-copied", storage_options=options, target_options=options)
    seen = [one.method for one in proxy.faults.counted() if "-copied/a/c/" in one.path]
    assert seen.count("PUT") == 64
    assert proxy.faults.most[""] >= AT_ONCE
    if options["backend"] == "obstore":  # the service copies, and a listing tells the sizes
        assert "HEAD" not in seen
    copied = zd.open_array(f"{url}-copied", "a", storage_options=server.options)
    assert np.array_equal(copied[...], np.arange(256))


def test_parts_of_many_objects_are_read_and_put_at_a_time(server, proxy, options):
    url = shards(server, 96)
    array = zd.open_array(url, "a", mode="r+", storage_options=options)
    proxy.faults.counted()
    proxy.faults.most.clear()
    array[1:-1:4] = -1
    assert proxy.faults.most["GET"] >= AT_ONCE
    seen = [one.method for one in proxy.faults.counted() if "/a/c/" in one.path]
    assert seen.count("GET") == seen.count("PUT") == 96
    wanted = np.arange(384)
    wanted[1:-1:4] = -1
    assert np.array_equal(zd.open_array(url, "a", storage_options=server.options)[...], wanted)


def test_a_copy_looks_at_its_place_once_before_each_step(server, proxy, options):
    """What lies there is asked for at once: round trips do not add up."""
    url = shards(server, 1)
    proxy.faults.counted()
    zd.copy(url, f"{url}-copied", storage_options=options, target_options=options)
    asked = Counter(one.path for one in proxy.faults.counted() if one.path.endswith("/.zarray"))
    assert max(asked.values()) == 2  # by the plan and when it is run


def test_items_are_taken_when_a_thread_is_free():
    together = threading.Barrier(4)
    seen = []

    def work(number):
        if number < 4:
            together.wait(20)
        if number == 9:
            raise StoreError("the ninth")
        seen.append(number)

    each_abreast(work, range(9), 4)
    assert sorted(seen) == [*range(9)]
    taken = iter(range(10_000))
    with pytest.raises(StoreError, match="the ninth"):
        each_abreast(work, taken, 4)
    assert next(taken) < 10_000 - 1


def test_a_copy_from_icechunk_asks_once_for_each_chunk(server, proxy, tmp_path):
    icechunk = pytest.importorskip("icechunk")
    storage = icechunk.s3_storage(
        bucket="bucket",
        prefix=f"icechunk-{next(NUMBERS)}",
        region="us-east-1",
        endpoint_url=proxy.endpoint,
        allow_http=True,
        access_key_id=server.key,
        secret_access_key=server.secret,
        force_path_style=True,
    )
    values = np.random.default_rng(0).integers(0, 255, (32, 4096), dtype="u1")
    session = icechunk.Repository.create(storage).writable_session("main")
    zd.create_array(session, "a", shape=values.shape, dtype="u1", chunks=(1, 4096))[...] = values
    session.commit("all")
    reading = icechunk.Repository.open(storage).readonly_session("main")
    proxy.faults.counted()
    zd.copy(reading, tmp_path / "copy")
    asked = [one for one in proxy.faults.counted() if "/chunks/" in one.path]
    assert len(asked) == 32
    assert zd.verify(reading, "a").ok
    assert not [one for one in proxy.faults.counted() if "/chunks/" in one.path]
    assert np.array_equal(zd.open_array(tmp_path / "copy", "a")[...], values)
