"""Outages at random moments of writes, rechunkings, copies, checks and reads: all end right.

The moments and the kinds are drawn from the number of the test, and all of it is told: what waits
is logged by the client, also of tasks on a cluster, and reports count it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from urllib.parse import urlsplit

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support import object_stores
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import free_port, s3_server
from zarr_dask.stores import open_store

NUMBERS = count()
VALUES = np.arange(96 * 40, dtype="i4").reshape(96, 40)
KINDS = ("refused", "hung", "reset before", "unavailable", "throttled", "failed", "bad gateway")


@pytest.fixture(scope="module")
def moto():
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def ceph(tmp_path_factory):
    from tests.support.ceph import ceph_server

    with ceph_server(tmp_path_factory.mktemp("ceph")) as running:
        yield running


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    with object_stores.azure_server(tmp_path_factory.mktemp("azurite")) as running:
        yield running


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
    with object_stores.gcs_server(tmp_path_factory.mktemp("gcs")) as running:
        yield running


@pytest.fixture
def server(request):
    return request.getfixturevalue(request.param)


def through(server, port, backend):
    """The options of a server, by the way of a proxy's port."""
    origin, options = server.endpoint, server.options
    at = origin.replace(f":{urlsplit(origin).port}", f":{port}")
    if "connection_string" in options:
        options = {"connection_string": options["connection_string"].replace(origin, at)}
    elif "endpoint_url" in options:
        options = {**options, "endpoint_url": at}
    else:
        options = {**options, "client_kwargs": {**options["client_kwargs"], "endpoint_url": at}}
    return {**options, "backend": backend}


class Outages:
    """A proxy that fails in one way, again and again, while a job is running."""

    def __init__(self, upstream, draw, seconds, kinds):
        self.upstream, self.port, self.stack = upstream, free_port(), ExitStack()
        self.draw, self.seconds, self.kinds = draw, seconds, kinds
        self.happened = []
        self.faults = None
        self.open()

    def open(self):
        proxy = fault_proxy(self.upstream, self.port, hang=self.seconds)
        self.faults = self.stack.enter_context(proxy).faults

    @contextmanager
    def during(self, after):
        """Fail once in the context, some seconds after it has begun; end when all is well again."""
        kind = self.draw.choice(self.kinds)

        def fail():
            time.sleep(after)
            if kind == "refused":
                self.faults.rate, self.faults.kinds = 1.0, {"reset before": 1}
                self.stack.close()
                time.sleep(self.seconds)
                self.open()
            else:
                self.faults.rate, self.faults.kinds = 1.0, {kind: 1}
                time.sleep(self.seconds)
                self.faults.rate = 0.0
            self.happened.append(kind)

        failing = threading.Thread(target=fail)
        failing.start()
        yield
        failing.join()


def slow_block(block):
    time.sleep(0.1)
    return block


def work(server, backend, draw, seconds, client, kinds=KINDS) -> Iterator[str]:
    """Yield what was done, each with an outage in its middle."""
    upstream = urlsplit(server.endpoint)
    outages = Outages(f"http://{upstream.netloc}", draw, seconds, kinds)
    options = through(server, outages.port, backend)
    own = {**server.options, "backend": backend}
    url = f"{server.root}/outages-{next(NUMBERS)}"
    lazy = da.from_array(VALUES, chunks=(4, 40)).map_blocks(slow_block, meta=VALUES[:0])
    with outages.stack:
        assert open_store(url, options).size("nothing") is None  # an address that is right
        with outages.during(draw.uniform(0.1, 1)):
            report = zd.to_zarr(lazy, f"{url}/a", resume=True, storage_options=options)
        assert report.retried or seconds < 1
        yield f"written, {outages.happened[-1]}"
        source = zd.open_array(f"{url}/a", storage_options=options)
        plan = zd.plan_rechunk(source, f"{url}/b", chunks=(96, 2), storage_options=options)
        with outages.during(draw.uniform(0, 0.2)):
            plan.run(client)
        yield f"rechunked, {outages.happened[-1]}"
        both = {"storage_options": options, "target_options": options}
        plan = zd.plan_copy(f"{url}/b", f"{url}/c", **both)
        with outages.during(draw.uniform(0, 0.2)):
            plan.run(client)
        yield f"copied, {outages.happened[-1]}"
        with outages.during(draw.uniform(0, 0.2)):
            report = zd.verify(f"{url}/c", storage_options=options)
        assert report.ok
        yield f"verified, {outages.happened[-1]}"
        found = zd.from_zarr(f"{url}/c", storage_options=options, chunks=(96, 2))
        with outages.during(draw.uniform(0, 0.1)):
            time.sleep(0.1)
            values = found.map_blocks(slow_block, meta=VALUES[:0]).compute()
        assert np.array_equal(values, VALUES)
        yield f"read, {outages.happened[-1]}"
    direct = zd.open_array(f"{url}/c", storage_options=own)
    assert np.array_equal(direct[...], VALUES)


def places(*names):
    return pytest.mark.parametrize(
        ("server", "backend"),
        [tuple(name.split()) for name in names],
        ids=[name.replace(" ", "-") for name in names],
        indirect=["server"],
    )


def check_told(caplog, seconds):
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sum("waiting for a service: " in one for one in told) >= seconds // 10


@pytest.mark.slow
@places("moto obstore", "azurite obstore", "azurite fsspec", "gcs fsspec")
def test_short_outages_on_threads(server, backend):
    with dask.config.set(scheduler="threads", num_workers=2):
        done = [
            *work(server, backend, random.Random(1), 0.4, None, ("unavailable", "reset before"))
        ]
    assert len(done) == 5


@pytest.mark.slow
@pytest.mark.timeout(300)
@places("moto obstore", "ceph fsspec", "azurite obstore", "azurite fsspec", "gcs fsspec")
def test_outages_of_10_s_on_threads(server, backend, caplog):
    caplog.set_level(logging.INFO, "zarr_dask")
    with dask.config.set(scheduler="threads", num_workers=2):
        assert len([*work(server, backend, random.Random(0), 10, None)]) == 5
    check_told(caplog, 40)


@pytest.mark.slow
@pytest.mark.timeout(300)
@places("ceph obstore", "moto fsspec", "azurite fsspec")
def test_outages_of_10_s_on_a_cluster(server, backend, client, caplog):
    caplog.set_level(logging.INFO, "zarr_dask")
    assert len([*work(server, backend, random.Random(10), 10, client)]) == 5
    check_told(caplog, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
@places("ceph obstore", "moto fsspec")
def test_outages_of_60_s_on_threads(server, backend, caplog):
    caplog.set_level(logging.INFO, "zarr_dask")
    with dask.config.set(scheduler="threads", num_workers=2):
        assert len([*work(server, backend, random.Random(2), 60, None)]) == 5
    check_told(caplog, 240)


@pytest.mark.slow
@pytest.mark.timeout(900)
@places("moto obstore", "ceph fsspec")
def test_outages_of_60_s_on_a_cluster(server, backend, client, caplog):
    caplog.set_level(logging.INFO, "zarr_dask")
    assert len([*work(server, backend, random.Random(3), 60, client)]) == 5
    check_told(caplog, 120)
