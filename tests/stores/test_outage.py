"""Outages: jobs outlast them, calls in the foreground do not wait, mistakes are told at once."""

from __future__ import annotations

import logging
import re
import threading
import time
import types
from contextlib import ExitStack, contextmanager
from itertools import count

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import free_port, s3_server
from zarr_dask._util import threads
from zarr_dask.errors import AccessDeniedError, StoreUnavailableError
from zarr_dask.jobs.engine.progress_bars import _wait_column
from zarr_dask.stores import RetryPolicy, open_store
from zarr_dask.stores.patience import SERVICES, Services, in_foreground, in_task
from zarr_dask.stores.retry import DEFAULT, FOREGROUND

NUMBERS = count()
VALUES = np.arange(48 * 40, dtype="i4").reshape(48, 40)


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def backend(request):
    return request.param


def options_at(server, port, backend, **more):
    client = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
    return {**server.options, "client_kwargs": client, "backend": backend, **more}


def new_url():
    return f"s3://bucket/outage-{next(NUMBERS)}"


class Door:
    """A proxy that can be closed, so that connections to its port are refused, and opened again."""

    def __init__(self, upstream):
        self.upstream, self.port, self.stack = upstream, free_port(), None

    def open(self):
        self.stack = ExitStack()
        self.faults = self.stack.enter_context(fault_proxy(self.upstream, self.port)).faults

    def close(self):
        # connections that are kept say no more than a server that is gone
        self.faults.rate, self.faults.kinds = 1.0, {"reset before": 1}
        self.stack.close()

    @contextmanager
    def closed_for(self, seconds):
        self.close()
        timer = threading.Timer(seconds, self.open)
        timer.start()
        yield
        timer.join()


@pytest.fixture
def door(server):
    one = Door(server.endpoint)
    one.open()
    yield one
    one.close()


# --- outages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.5, pytest.param(10, marks=pytest.mark.slow)])
def test_a_job_outlasts_a_server_that_is_gone(server, door, backend, seconds):
    url, options = new_url(), options_at(server, door.port, backend)
    begun = threading.Event()

    def slowly(block):
        begun.set()
        time.sleep(0.05)
        return block

    def go_away():
        begun.wait(20)
        with door.closed_for(seconds):
            pass

    lazy = da.from_array(VALUES, chunks=(8, 40)).map_blocks(slowly, meta=VALUES[:0])
    going = threading.Thread(target=go_away)
    going.start()
    with dask.config.set(scheduler="threads", num_workers=2):
        report = zd.to_zarr(lazy, url, chunks=(8, 40), storage_options=options)
    going.join()
    assert report.retried
    array = zd.open_array(url, storage_options=options)
    with door.closed_for(seconds), dask.config.set(scheduler="threads"):
        assert np.array_equal(array.to_dask().compute(), VALUES)


def slow_block(block):
    time.sleep(0.5)
    return block


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_on_a_cluster_outlasts_a_server_that_is_gone(server, door):
    """Also where the first request of a worker meets the outage."""
    distributed = pytest.importorskip("distributed")
    url, options = new_url(), options_at(server, door.port, "obstore")
    lazy = da.from_array(VALUES, chunks=(2, 40)).map_blocks(slow_block, meta=VALUES[:0])
    cluster = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.Client(**cluster) as client:

        def go_away():
            prefix = f"{url.removeprefix('s3://bucket/')}/c/"
            while not server.admin.list_objects_v2(Bucket="bucket", Prefix=prefix)["KeyCount"]:
                time.sleep(0.05)
            with door.closed_for(5):
                pass

        going = threading.Thread(target=go_away)
        going.start()
        report = zd.to_zarr(lazy, url, chunks=(2, 40), storage_options=options)
        going.join()
        assert report.objects == 24
        assert report.retried
        array = zd.open_array(url, storage_options=options)
        with door.closed_for(5):
            assert np.array_equal(array.to_dask().compute(), VALUES)
        new = f"{url}-new"
        plan = zd.plan_rechunk(array, new, chunks=(48, 4), storage_options=options)
        with door.closed_for(5):
            plan.run(client=client)
        assert np.array_equal(zd.open_array(new, storage_options=options)[...], VALUES)


@pytest.mark.parametrize(
    "kind",
    [
        "hung",
        "unavailable",
        *[pytest.param(k, marks=pytest.mark.slow) for k in ("reset before", "failed")],
        pytest.param("bad gateway", marks=pytest.mark.slow),
    ],
)
def test_a_task_outlasts_failures_of_every_kind(server, backend, kind):
    with fault_proxy(server.endpoint, hang=0.5) as proxy:
        store = open_store(new_url(), options_at(server, proxy.port, backend))
        store.set("a", [b"1"])
        proxy.faults.rate, proxy.faults.kinds = 1.0, {kind: 1}
        timer = threading.Timer(0.7, lambda: setattr(proxy.faults, "rate", 0.0))
        timer.start()
        with in_task():
            assert bytes(store.get("a")) == b"1"
        timer.join()
        assert proxy.faults.happened[kind]


def test_a_call_in_the_foreground_does_not_wait_for_long(server, door, backend, monkeypatch):
    assert FOREGROUND.seconds <= 6
    shorter = RetryPolicy(attempts=4, seconds=1)
    monkeypatch.setattr("zarr_dask.stores.retry.FOREGROUND", shorter)
    url, options = new_url(), options_at(server, door.port, backend)
    zd.create_array(url, shape=(3,), dtype="i4", storage_options=options)
    door.close()
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match=r"given up after [1-4] attempts"):
        zd.open(url, storage_options=options)
    assert time.monotonic() - begun < 6
    door.open()


def test_a_given_policy_is_obeyed_in_every_term(server, door, backend):
    url = new_url()
    few = {"attempts": 3, "wait": 0.01}
    patient = {"attempts": 50, "seconds": 300, "longest_wait": 0.2}
    open_store(url, options_at(server, door.port, backend)).set("a", [b"1"])
    door.close()
    with in_foreground():
        for policy in (few, {**few, "attempts": 4}):
            store = open_store(url, options_at(server, door.port, backend, retry=policy))
            with pytest.raises(StoreUnavailableError, match=f"after {policy['attempts']} attempts"):
                store.get("a")
        store = open_store(url, options_at(server, door.port, backend, retry=patient))
        opening = threading.Timer(1, door.open)
        opening.start()
        assert bytes(store.get("a")) == b"1"
        opening.join()


def test_waiting_is_told(server, door, caplog, monkeypatch):
    monkeypatch.setattr("zarr_dask.stores.patience._SILENT", 0.3)
    monkeypatch.setattr(SERVICES, "_warned", float("-inf"))
    caplog.set_level(logging.DEBUG, "zarr_dask")
    url, options = new_url(), options_at(server, door.port, "obstore")
    store = open_store(url, options)
    store.set("a", [b"1"])
    seen = []

    def look():
        while not seen or not seen[-1]:
            seen.append(SERVICES.waiting)
            time.sleep(0.01)

    looking = threading.Thread(target=look)
    looking.start()
    with door.closed_for(1.2), in_task():
        assert bytes(store.get("a")) == b"1"
    looking.join(20)
    assert seen[-1] >= 0.1
    assert SERVICES.waiting == 0
    told = [one for one in caplog.records if one.name == "zarr_dask"]
    (warning,) = (one for one in told if one.levelno == logging.WARNING)
    assert url in warning.getMessage()
    assert "the next one in" in warning.getMessage()
    assert "responds again, after" in told[-1].getMessage()
    assert options["secret"] not in caplog.text


def test_waits_of_other_processes_are_told_here(caplog, monkeypatch):
    services = Services()
    monkeypatch.setattr("zarr_dask.jobs.engine.progress_bars.SERVICES", services)
    task = types.SimpleNamespace(finished=False)
    services.hear("waiting for a service: it is busy", 8.0)
    services.hear("waiting for a service: it is still busy", 9.0)
    assert services.waiting >= 9
    assert re.fullmatch("waiting [0-9]+ s for a service", _wait_column().render(task).plain)
    services.hear("", 9.0)
    assert services.waiting == 0
    assert _wait_column().render(task).plain == ""
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert told == ["in a worker: waiting for a service: it is busy"]  # at most every five seconds


def test_a_report_counts_what_was_tried_again_before_the_tasks(server, backend):
    url = new_url()
    with fault_proxy(server.endpoint) as proxy:
        options = options_at(server, proxy.port, backend)
        open_store(url, options).get("a")
        proxy.faults.rate, proxy.faults.kinds, proxy.faults.times = 1.0, {"unavailable": 1}, 2
        report = zd.to_zarr(da.ones(4, chunks=2), url, storage_options=options)
    assert proxy.faults.happened == {"unavailable": 2}
    assert report.retried >= 2
    assert report.waited > 0


# --- requests in flight ---------------------------------------------------------------------------


def test_a_busy_service_gets_fewer_requests_at_a_time(server, backend, monkeypatch):
    monkeypatch.setattr(threads, "_EASE", 0.0)
    monkeypatch.setattr(threads, "_IN_FLIGHT", flight := threads._InFlight())
    policy = RetryPolicy(wait=0.001, longest_wait=0.002)
    with fault_proxy(server.endpoint) as proxy:
        store = open_store(new_url(), options_at(server, proxy.port, backend, retry=policy))
        store.set("a", [b"1"])
        before = flight.limit
        proxy.faults.rate, proxy.faults.kinds, proxy.faults.times = 1.0, {"unavailable": 1}, 3
        store.get("a")
        fewest = flight.limit
        assert fewest <= before / 8 + 1
        for _ in range(20):
            store.get("a")
        assert fewest + 3 < flight.limit <= flight.most


def test_more_requests_are_in_flight_where_each_takes_long():
    flight = threads._InFlight()
    assert flight.most == threads.MAX_CONCURRENT_REQUESTS
    for _ in range(3000):
        flight.give_back(flight.take(1), 0.2)
    assert flight.most == int(flight.limit) == threads.MOST_AT_ONCE
    flight.give_back(flight.take(1), 0.001)
    assert flight.most == int(flight.limit) == threads.MAX_CONCURRENT_REQUESTS


def test_the_number_of_requests_in_flight_is_a_setting(monkeypatch):
    monkeypatch.setenv(threads.REQUESTS, "7")
    flight = threads._InFlight()
    flight.give_back(flight.take(1), 0.2)
    assert flight.most == int(flight.limit) == 7
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv(threads.REQUESTS, wrong)
        with pytest.raises(ValueError, match=threads.REQUESTS):
            threads._InFlight()


def test_a_refusal_is_a_permission_error(server, backend):
    with fault_proxy(server.endpoint, rate=1.0, kinds={"denied": 1}) as proxy:
        store = open_store(new_url(), options_at(server, proxy.port, backend))
        with pytest.raises(PermissionError) as caught:
            store.get("a")
        assert isinstance(caught.value, AccessDeniedError)
        assert len(proxy.faults.seen) <= 2


def test_the_default_policy_outlasts_a_minute():
    waits = [min(DEFAULT.wait * 2**n, DEFAULT.longest_wait) for n in range(DEFAULT.attempts)]
    assert DEFAULT.seconds >= 120
    assert sum(waits) / 2 > 120  # half of each is random


def test_a_job_is_as_patient_as_its_tasks_where_it_opens_nodes(server, door, monkeypatch):
    monkeypatch.setattr("zarr_dask.stores.retry.FOREGROUND", RetryPolicy(attempts=1, seconds=0.1))
    url, options = new_url(), options_at(server, door.port, "obstore")
    zd.create_array(url, shape=(3,), dtype="i4", storage_options=options)[...] = 1
    with door.closed_for(0.4):
        assert zd.verify(url, storage_options=options).ok
    both = {"storage_options": options, "target_options": options}
    with door.closed_for(0.4):
        zd.copy(url, f"{url}-copy", **both)
    with door.closed_for(0.4):
        assert zd.compare(url, f"{url}-copy", storage_options=options).equal
