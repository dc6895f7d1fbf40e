"""Requests, waits and rates in reports, and what the logger says."""

import logging

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.object_stores import s3_server
from zarr_dask.stores.base import Range
from zarr_dask.stores.open import open_store
from zarr_dask.stores.retry import counting_retries


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def options(request, server):
    return {**server.options, "backend": request.param}


def test_requests_are_counted_by_kind(options):
    store = open_store("s3://bucket/kinds", options)
    with counting_retries() as counted:
        store.set("a", [b"12345"])
        store.set("b", [b"12345"])
        assert store.get("a") == b"12345"
        assert len(store.get_ranges([("a", Range(0, 2)), ("b", Range(1, 3))])) == 2
        assert store.size("a") == 5
        store.delete("a")
    found = dict(counted.requests)
    assert (found["write"], found["read"], found["delete"]) == (2, 3, 1)
    assert found["inspect"] >= 1
    assert (counted.count, counted.seconds) == (0, 0)


def test_a_web_server_has_seen_as_many():
    with serving(Files, {"a": b"12345", "b": b"1"}) as (url, seen), counting_retries() as counted:
        store = open_store(url)
        assert [store.get(key) for key in ("a", "b", "none")] == [b"12345", b"1", None]
        assert store.size("a") == 5
        found = len(seen)
    assert counted.requests == {"read": 3, "inspect": 1}
    assert found == 4


def test_reports_of_jobs_have_time_and_requests(options):
    x = da.ones((8, 6), chunks=(4, 6), dtype="i4")
    url = f"s3://bucket/report-{options['backend']}"
    write = zd.plan_write(x, f"{url}/a", storage_options=options).run()
    assert write.requests["write"] == write.objects == 2
    assert write.seconds > 0
    assert write.rate == write.nbytes / write.seconds
    assert "2 write" in write.explain()
    assert write.to_json()["requests"] == write.requests

    source = zd.open_array(f"{url}/a", storage_options=options)
    report = zd.rechunk(source, f"{url}/b", chunks=(8, 2), storage_options=options)
    assert report.objects == 3
    assert report.requests["write"] == report.objects  # receipts of so short a job are not stored
    assert report.requests["read"] >= 2
    assert report.to_json()["requests"] == report.requests
    assert "requests to services:" in report.explain()
    copied = zd.copy(f"{url}/b", f"{url}/c", storage_options=options, target_options=options)
    assert sum(copied.requests.values()) >= 3


def test_files_have_no_requests(tmp_path):
    report = zd.plan_write(da.ones(4), tmp_path / "a").run()
    assert (report.requests, report.waited) == ({}, 0)
    assert report.seconds > 0


def test_an_image_has_time_and_requests(server):
    report = zd.ome.write(
        np.ones((8, 8), "u1"), "s3://bucket/image", axes="yx", storage_options=server.options
    )
    assert report.seconds > 0
    assert report.requests["write"] >= 1


def test_the_logger_tells_plans_and_fallbacks(server, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="zarr_dask"):
        zd.plan_write(da.ones(4), tmp_path / "a").run()
        zd.rechunk(tmp_path / "a", tmp_path / "b", chunks=2)
        open_store("s3://bucket/x", {**server.options, "version_aware": True})
    said = caplog.text
    for words in ("written:", "begin:", "done:", "is served by fsspec, not by obstore"):
        assert words in said
    assert server.secret not in said
