"""Claims in an object store that fail: jobs go on without only where there can be no claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.fault_proxy import Proxy, fault_proxy
from tests.support.object_stores import s3_server
from zarr_dask.errors import StoreError
from zarr_dask.stores import RetryPolicy

HELD = "__append/held"
ONES = da.ones((4,), chunks=2, dtype="i4")
PASSING = ("failed", "unavailable", "bad gateway", "throttled", "expired", "astray", "hung")
"""Refusals of the claim that say nothing of whether there can be one."""


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[Proxy, dict[str, Any]]]:
    """A proxy that may refuse claims alone, and options to reach it."""
    with s3_server() as server, fault_proxy(server.endpoint, only=HELD, methods="PUT") as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        retry = RetryPolicy(attempts=2, wait=0.002, timeout=1)
        yield proxy, {**server.options, "client_kwargs": client, "retry": retry}


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("refusal", PASSING)
def test_nothing_is_written_without_a_claim_that_there_may_be(refusing, refusal, backend):
    proxy, options = refusing[0], {**refusing[1], "backend": backend}
    url = f"s3://bucket/{refusal}-{backend}.zarr"
    zd.to_zarr(ONES, url, "a", storage_options=options)
    proxy.faults.kinds, proxy.faults.rate, proxy.faults.hang = {refusal: 1}, 1.0, 1.5
    try:
        with pytest.raises(StoreError, match=HELD):
            zd.to_zarr(ONES, url, "a", append=0, storage_options=options)
        with pytest.raises(StoreError, match=HELD):
            zd.to_zarr(ONES * 2, url, "a", mode="w", storage_options=options)
        with pytest.raises(StoreError, match=HELD):
            zd.to_zarr(ONES, url, "b", storage_options=options)
    finally:
        proxy.faults.rate = 0.0
    found = zd.open(url, storage_options=options)
    np.testing.assert_array_equal(found["a"][...], 1)
    assert list(found) == ["a"]


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_what_lies_beside_may_not_be_ours_to_write(refusing, backend):
    proxy, options = refusing[0], {**refusing[1], "backend": backend}
    url = f"s3://bucket/denied-{backend}.zarr"
    proxy.faults.kinds, proxy.faults.rate = {"denied": 1}, 1.0
    try:
        zd.to_zarr(ONES, url, "a", storage_options=options)
        zd.to_zarr(ONES, url, "a", append=0, storage_options=options)
    finally:
        proxy.faults.rate = 0.0
    np.testing.assert_array_equal(zd.open_array(url, "a", storage_options=options)[...], [1] * 8)
