"""The S3 server of the benchmarks is one, as far as the benchmarks use it."""

from __future__ import annotations

import numpy as np
import pytest

import zarr_dask as zd
from benchmarks.remote import options
from benchmarks.s3_nginx import find_nginx, s3_nginx
from benchmarks.s3_server import s3_server
from tests.support.object_stores import missing
from zarr_dask.stores import Range, open_store
from zarr_dask.stores.base import get_ranges_if_match


@pytest.fixture(scope="module", params=[s3_server, s3_nginx])
def endpoint(request):
    if request.param is s3_nginx and find_nginx() is None:
        missing("nginx with Lua", "tools/servers.sh nginx-lua")
    with request.param(0.0) as running:
        yield running


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_it_serves(endpoint, backend):
    store = open_store(f"s3://bucket/{backend}", {**options(endpoint), "backend": backend})
    store.set("a/b", [b"0123456789"])
    asked = [("a/b", Range(2, 5)), ("a/b", Range(-3)), ("a/b", Range(20)), ("none", Range(0))]
    assert store.get_ranges(asked) == [b"234", b"789", b"", None]
    (found,) = get_ranges_if_match(store, [("a/b", Range(0, 1), None)])
    store.set("a/b", [b"other"])
    (now,) = get_ranges_if_match(store, [("a/b", Range(0, 1), found.tag)])
    assert now.content is None
    assert ([*store.list()], store.list_dir("").prefixes) == (["a/b"], ["a/"])
    store.delete_prefix("a/")
    assert store.get("a/b") is None


def test_arrays(endpoint):
    values = np.arange(64, dtype="i4")
    given = options(endpoint)
    array = zd.create_array(
        "s3://bucket/x", shape=64, chunks=4, shards=16, dtype="i4", storage_options=given
    )
    array[...] = values
    assert np.array_equal(zd.open("s3://bucket/x", storage_options=given)[3:50], values[3:50])
