"""Credentials that are given in Python reach the workers of a cluster, and no graph."""

from __future__ import annotations

from itertools import count

import cloudpickle
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.object_stores import SECRET, s3_server
from zarr_dask.errors import CredentialsMissingError

VALUES = np.arange(60, dtype="f4").reshape(6, 10)
NUMBERS = count()


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def given(server):
    """Options that no other test has given to the cluster."""
    return {**server.options, "key": f"AKIA-{next(NUMBERS)}-EXAMPLE"}


@pytest.fixture
def url():
    return f"s3://bucket/{next(NUMBERS)}/a.zarr"


def test_lazy_arrays_and_jobs(client, given, url):
    x = da.from_array(VALUES, chunks=(3, 5))
    zd.to_zarr(x, url, storage_options=given)
    lazy = zd.from_zarr(url, storage_options=given)
    assert SECRET.encode() not in cloudpickle.dumps(lazy)
    assert np.array_equal(lazy.compute(), VALUES)
    zd.rechunk(zd.open(url, storage_options=given), f"{url}-2", chunks=(6, 2), max_mem="100 MB",
               storage_options=given, verify=True)  # fmt: skip
    later = zd.to_zarr(lazy + 1, f"{url}-3", storage_options=given, compute=False)
    assert SECRET.encode() not in cloudpickle.dumps(later.__dask_graph__())
    later.compute()
    assert np.array_equal(zd.open(f"{url}-3", storage_options=given)[...], VALUES + 1)


def test_a_client_that_comes_later(cluster, given, url):
    from distributed import Client

    zd.create_array(url, shape=(6, 10), chunks=(3, 5), dtype="f4", storage_options=given)[...] = (
        VALUES
    )
    lazy = zd.from_zarr(url, storage_options=given)
    array = zd.open(url, storage_options=given)
    with Client(cluster) as client:
        with pytest.raises(CredentialsMissingError, match=r"share_credentials\(client, x\)"):
            lazy.compute()
        with pytest.raises(CredentialsMissingError):
            client.submit(lambda one: one[...].sum(), array).result()
        zd.to_zarr(lazy, f"{url}-2", storage_options=given)  # a job hands over what it reads
        assert np.array_equal(lazy.compute(), VALUES)
        assert client.submit(lambda one: one[...].sum(), array).result() == VALUES.sum()


def test_by_hand_and_for_workers_that_come_later(cluster, given, url):
    from distributed import Client

    zd.create_array(url, shape=(6, 10), chunks=(3, 5), dtype="f4", storage_options=given)[...] = (
        VALUES
    )
    lazy = zd.from_zarr(url, storage_options=given)
    with Client(cluster) as client:
        zd.share_credentials(client, lazy)
        zd.share_credentials(client, url, storage_options=given)
        assert np.array_equal(lazy.compute(), VALUES)
        client.wait_for_workers(2)
        before = set(client.scheduler_info(n_workers=-1)["workers"])
        cluster.scale(3)
        client.wait_for_workers(3)
        (new,) = set(client.scheduler_info(n_workers=-1)["workers"]) - before
        total = client.compute(lazy.sum(), workers=[new], allow_other_workers=False).result()
        assert total == VALUES.sum()
        assert client.run(lambda: True, workers=[new]) == {new: True}
