"""A network and a service that fail: what is tried again, what is not, and that nothing is wrong.

A proxy stands between the client and a real server and does to requests what its seed says. Nothing
of the client is replaced.
"""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.fault_proxy import FAULTS, Faults, fault_proxy
from tests.support.http_server import Files, serving
from tests.support.object_stores import s3_server
from zarr_dask.errors import (
    CorruptObjectError,
    ObjectReplacedError,
    StoreError,
    StoreUnavailableError,
)
from zarr_dask.stores import HookStore, MemoryStore, Range, Retrying, RetryPolicy, open_store
from zarr_dask.stores.config import from_config, to_config
from zarr_dask.stores.retry import _BUDGET, NEVER, call_with_retries, parse_retry_policy

QUICK = RetryPolicy(attempts=20, wait=0.002, longest_wait=0.05, timeout=5, budget=10_000)
VALUE = bytes(range(256)) * 40
NUMBERS = count()


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server):
    with fault_proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def faults(proxy):
    """What the proxy does, which is nothing before and after a test."""
    fresh = Faults()
    proxy.faults.__dict__.update({**fresh.__dict__, "lock": proxy.faults.lock})
    yield proxy.faults
    proxy.faults.rate = 0
    _BUDGET.forget()


@pytest.fixture(params=["obstore", "fsspec"])
def options(request, server, proxy):
    client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
    return {**server.options, "client_kwargs": client, "backend": request.param, "retry": QUICK}


@pytest.fixture
def url():
    return f"s3://bucket/faults-{next(NUMBERS)}"


@pytest.fixture
def store(url, options, faults):
    return open_store(url, options)


# --- one request ----------------------------------------------------------------------------------

REQUESTS = {
    "get": (lambda s: bytes(s.get("c/a")), VALUE),
    "ranges": (
        lambda s: [bytes(v) for v in s.get_ranges([("c/a", Range(3, 500)), ("c/a", Range(-7))])],
        [VALUE[3:500], VALUE[-7:]],
    ),
    "absent": (lambda s: (s.get("no"), s.get_ranges([("no", Range(2, 3))])), (None, [None])),
    "set": (lambda s: (s.set("c/b", [b"1", b"2"]), bytes(s.get("c/b")))[1], b"12"),
    "delete": (lambda s: (s.delete("c/a"), s.delete("no"), s.get("c/a"))[2], None),
    "delete_prefix": (lambda s: (s.delete_prefix("c/"), s.get("c/a"))[1], None),
    "list": (lambda s: [*s.list()], ["c/a"]),
    "list_dir": (lambda s: tuple(s.list_dir()), ([], ["c/"])),
    "size": (lambda s: s.size("c/a"), len(VALUE)),
}


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "shortened"])
def test_what_fails_is_tried_again(store, faults, kind):
    for ask, want in REQUESTS.values():
        store.set("c/a", [VALUE])
        faults.rate, faults.kinds, faults.times = 1.0, {kind: 1}, 1
        assert ask(store) == want
        faults.rate = 0.0
    assert faults.happened[kind] == len(REQUESTS)


def test_a_part_that_is_too_short_is_fetched_again(store, faults):
    store.set("c/a", [VALUE])
    faults.rate, faults.kinds, faults.times = 1.0, {"shortened": 1}, 2
    ask, want = REQUESTS["ranges"]
    assert ask(store) == want
    assert faults.happened["shortened"] == 2


def test_what_a_gateway_says_is_no_absence(store, faults):
    """A 404 that is not the service's own: the value is there, as its listing says."""
    keys = ("c/a", "c/0", "c/10", "c/b/zarr.json")
    for key in keys:
        store.set(key, [VALUE])
    faults.rate, faults.kinds, faults.methods = 1.0, {"astray": 1}, "GET"
    faults.only = "bucket/faults"  # values, not listings
    for key in keys:
        faults.times = 2
        assert bytes(store.get(key)) == VALUE
        assert faults.times == 0
        faults.times = 2
        assert bytes(store.get_ranges([(key, Range(-7))])[0]) == VALUE[-7:]
    faults.times = 1 << 60
    assert store.get("c/1") is None
    patient = open_store(store.url, {**store.settings(), "retry": {"attempts": 2, "wait": 0.01}})
    with pytest.raises(StoreUnavailableError, match=r"could not read 'c/0' .*the service lists it"):
        patient.get("c/0")
    faults.only = ""
    for key in ("c/0", "no"):
        with pytest.raises(StoreError, match=rf"could not read '{key}'"):
            patient.get(key)


def test_a_large_value_is_put_in_parts_that_are_tried_again(store, faults, options):
    value = np.random.default_rng(1).bytes((1 << 25) + 54321)
    in_parts = options["backend"] == "obstore"  # s3fs puts it at once
    faults.rate, faults.times, faults.only = 1.0, 2, "partNumber" if in_parts else "large"
    faults.kinds = {"reset before": 1, "unavailable": 1, "failed": 1}
    store.set("large", [value[:1234], value[1234:]])
    faults.rate = 0.0
    assert faults.happened.total() == 2
    assert bytes(store.get("large")) == value


def test_what_the_service_asks_for_is_obeyed(url, options, faults):
    if options["backend"] == "obstore":
        pytest.skip("obstore does not show headers of refusals")
    store = open_store(url, options)
    store.set("c/a", [VALUE])
    faults.rate, faults.kinds, faults.times, faults.retry_after = 1.0, {"throttled": 1}, 1, "1"
    begun = time.monotonic()
    assert bytes(store.get("c/a")) == VALUE
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize("request_", ["get", "ranges", "set", "list", "size"])
def test_a_service_that_stays_unavailable_is_an_error_in_bounded_time(
    url, options, faults, request_
):
    policy = RetryPolicy(attempts=3, wait=0.001, longest_wait=0.01)
    store = open_store(url, {**options, "retry": policy})
    open_store(url, options).set("c/a", [VALUE])
    faults.counted()
    faults.rate, faults.kinds = 1.0, {"unavailable": 1}
    with pytest.raises(StoreUnavailableError, match=url) as caught:
        REQUESTS[request_][0](store)
    assert caught.value.throttled
    assert any(said in str(caught.value) for said in ("request rate", "503", "Unavailable"))
    made = len(faults.counted())  # of two ranges the other one may still be on its way
    assert made == 3 or (request_ == "ranges" and made <= 6)


@pytest.mark.parametrize("policy", [{"seconds": 0.2}, {"budget": 2}])
def test_seconds_and_the_budget_of_the_process_are_bounds(url, options, faults, policy):
    store = open_store(url, {**options, "retry": {"attempts": 100, "wait": 0.01, **policy}})
    faults.rate, faults.kinds = 1.0, {"failed": 1}
    with pytest.raises(StoreUnavailableError, match="given up"):
        store.size("c/a")
    if "budget" in policy:
        faults.counted()
        with pytest.raises(StoreUnavailableError, match="2 retries of this process"):
            store.size("c/a")
        assert len(faults.counted()) == 1  # no retry is left
        faults.rate = 0.0
        for _ in range(3):  # requests that succeed bring them back
            assert store.size("c/a") is None
        faults.rate, faults.times = 1.0, 1
        assert store.size("c/a") is None


@contextmanager
def silent_server():
    """A port where connections are taken and nothing is ever said."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield listening.getsockname()[1]


def test_a_server_that_says_nothing_is_an_error_in_bounded_time(options):
    with silent_server() as port:
        client = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        policy = {"attempts": 2, "wait": 0.01, "timeout": 0.3}
        given = {**options, "client_kwargs": client, "retry": policy}
        store = open_store("s3://bucket/silent", given)
        for ask in (lambda: store.get("a"), lambda: store.set("a", [b"1"])):
            with pytest.raises(StoreUnavailableError, match=r"s3://bucket/silent.*2 attempts"):
                ask()


def test_a_large_value_may_take_longer_than_an_answer(options):
    class Slow(Files):
        def do_PUT(self):  # noqa: N802
            left = int(self.headers["Content-Length"])
            while left:
                left -= len(self.rfile.read(min(left, 1 << 19)))
                time.sleep(0.2)  # a slow line: four times as long as an answer may take
            self.answer(200, headers=[("ETag", '"1"')])

    with serving(Slow, {}) as (endpoint, _):
        client = {"endpoint_url": endpoint.rstrip("/"), "region_name": "us-east-1"}
        policy = {"attempts": 1, "timeout": 0.25}
        given = {**options, "client_kwargs": client, "retry": policy}
        open_store("s3://bucket/slow", given).set("a", [bytes(5 << 19)])


def test_wrong_credentials_are_an_error_at_once(options, faults):
    """The server of the other tests checks no signatures; a refusal is replayed."""
    refusal = (
        b"<Error><Code>InvalidAccessKeyId</Code><Message>The AWS Access Key Id you provided does "
        b"not exist in our records.</Message></Error>"
    )

    class Refusing(Files):
        def do_GET(self):  # noqa: N802
            self.seen.append((self.command, self.path, None))
            self.answer(403, refusal, [("Content-Type", "application/xml")])

        def do_PUT(self):  # noqa: N802
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    with serving(Refusing, {}) as (endpoint, seen):
        client = {"endpoint_url": endpoint.rstrip("/"), "region_name": "us-east-1"}
        store = open_store("s3://bucket/refused", {**options, "client_kwargs": client})
        for ask in (lambda: store.get("a"), lambda: store.set("a", [b"1"])):
            before = len(seen)
            with pytest.raises(StoreError, match="s3://bucket/refused") as caught:
                ask()
            assert not isinstance(caught.value, StoreUnavailableError)
            assert "not exist in our records" in str(caught.value)
            assert options["secret"] not in str(caught.value)
            assert len(seen) - before == 1


# --- HTTP -----------------------------------------------------------------------------------------


def test_http_tries_again(faults):
    with serving(Files, {"c/a": VALUE}) as (upstream, _), fault_proxy(upstream) as proxy:
        store = open_store(proxy.endpoint, {"retry": QUICK})
        for kind in FAULTS:
            proxy.faults.rate, proxy.faults.kinds, proxy.faults.times = 1.0, {kind: 1}, 2
            proxy.faults.shortened = "/c/" if kind == "shortened" else "nowhere"
            got = store.get_ranges([("c/a", Range(3, 500)), ("c/a", Range(-7))])
            assert [bytes(one) for one in got] == [VALUE[3:500], VALUE[-7:]]
            assert proxy.faults.happened[kind] == 2


# --- what reports say of it -----------------------------------------------------------------------

REFUSALS = {"throttled": 1, "unavailable": 1, "failed": 1}
"""Of what else there is, the libraries' connections try some again by themselves."""


def test_reports_count_the_requests_that_were_tried_again(url, options, faults):
    values = np.random.default_rng(3).integers(0, 9, (40, 60), "i4")
    store = open_store(url, options)
    old = zd.create_array(store, "a", shape=values.shape, dtype="i4", chunks=(8, 60))
    old[...] = values
    plan = zd.plan_rechunk(old, store, path="b", chunks=(40, 10), max_mem="8MB")
    faults.happened.clear()
    faults.rate, faults.kinds, faults.seed = 0.3, REFUSALS, 7
    scheduler = "processes" if options["backend"] == "obstore" else "threads"
    with dask.config.set(scheduler=scheduler, num_workers=2):
        report = plan.run(verify=True)
    faults.rate = 0.0
    happened = faults.happened.total()
    assert any(stage.retried for stage in report.stages)
    assert report.retried == happened > 0
    assert np.array_equal(zd.open_array(store, "b")[...], values)


# --- around other stores --------------------------------------------------------------------------


def failing(store, times):
    left = iter(range(times))

    def fail(method, key):
        if next(left, None) is not None:
            raise StoreUnavailableError(f"{method} {key}")

    return HookStore(store, fail)


def test_any_store_can_be_made_to_try_again():
    inner = MemoryStore({"a": b"0123", "b/c": b"4"})
    for ask, want in (
        (lambda s: s.get("a"), b"0123"),
        (lambda s: s.get_ranges([("a", Range(1, 2)), ("b/c", Range(0))]), [b"1", b"4"]),
        (lambda s: [*s.list()], ["a", "b/c"]),
        (lambda s: s.list_dir().prefixes, ["b/"]),
        (lambda s: s.size("a"), 4),
        (lambda s: (s.set("d", [b"1"]), s.get("d"))[1], b"1"),
        (lambda s: (s.delete("d"), s.get("d"))[1], None),
        (lambda s: (s.delete_prefix("d/"), s.get("d"))[1], None),
    ):
        assert ask(Retrying(failing(inner, 3), QUICK)) == want
        with pytest.raises(StoreUnavailableError):
            ask(Retrying(failing(inner, 100), RetryPolicy(attempts=3, wait=0)))
        with pytest.raises(StoreUnavailableError):
            ask(Retrying(failing(inner, 1), NEVER))
    _BUDGET.forget()


def test_a_store_with_retries_of_its_own_is_given_the_policy(store):
    patient = RetryPolicy(attempts=3)
    assert Retrying(store, patient).store.policy == patient
    assert Retrying(store, patient).policy == NEVER


def test_only_what_may_pass_is_tried_again():
    calls = []

    def refused():
        calls.append(1)
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        call_with_retries(QUICK, refused)
    assert len(calls) == 1


def test_policies(store, options):
    assert parse_retry_policy({"attempts": 3}) == RetryPolicy(attempts=3)
    assert parse_retry_policy(None) == parse_retry_policy(False) == NEVER
    for wrong in ({"attempts": 0}, {"tries": 1}, 3, {"wait": -1}, {"timeout": 0}):
        with pytest.raises(StoreError, match="retry"):
            parse_retry_policy(wrong)
    again = from_config(to_config(store), {k: options[k] for k in ("key", "secret")})
    assert again.policy == QUICK
    with pytest.raises(StoreError, match="retry"):
        open_store("somewhere", {"retry": None})


# --- lost answers ---------------------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_is_no_conflict(server, proxy, url, faults):
    client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
    store = open_store(url, {**server.options, "client_kwargs": client, "retry": QUICK})
    faults.rate, faults.kinds, faults.methods, faults.times = 1.0, {"reset after": 1}, "PUT", 1
    assert store.set_if("a", [b"1", b"2"], None)
    _, tag = store.get_tagged("a")
    faults.times = 1
    assert store.set_if("a", [b"3"], tag)
    assert faults.happened["reset after"] == 2
    faults.times = 1
    assert not store.set_if("a", [b"4"], tag)  # somebody has put "3"
    faults.times = 1
    assert not store.set_if("a", [b"5"], None)
    assert bytes(store.get("a")) == b"3"


# --- a load ---------------------------------------------------------------------------------------


def load(url, options, faults, most, seconds):
    """Threads that write, read, count and list until so many faults have happened."""
    shape, threads = (64, 60), 4
    array = zd.create_array(
        url,
        "a",
        shape=shape,
        chunks=(4, 10),
        shards=(16, 20),
        dtype="i4",
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        storage_options=options,
    )
    store = open_store(url, options)
    lazy = array.to_dask(chunks=(16, 10))  # halves of shards, whose indices are read ahead
    conditional = options["backend"] == "obstore"
    counted = [0] * threads
    end = time.monotonic() + seconds
    longest = []

    def work(number):
        rows = slice(16 * number, 16 * number + 16)
        random = np.random.default_rng([faults.seed, number])
        expected = np.zeros((16, 60), "i4")
        while faults.happened.total() < most:
            assert time.monotonic() < end, "it does not go on"
            begun = time.monotonic()
            column = 20 * int(random.integers(3))
            values = random.integers(0, 1 << 30, (16, 20), "i4")
            array[rows, column : column + 20] = values
            expected[:, column : column + 20] = values
            y, x = int(random.integers(16)), int(random.integers(60))
            assert np.array_equal(array[16 * number + y, x:], expected[y, x:])
            assert np.array_equal(array[rows], expected)
            assert np.array_equal(lazy[rows].compute(scheduler="sync"), expected)
            if conditional:
                done = False
                while not done and time.monotonic() < end:
                    value, tag = store.get_tagged("counts")
                    counts = {**json.loads(bytes(value or b"{}")), str(number): counted[number] + 1}
                    done = store.set_if("counts", [json.dumps(counts).encode()], tag)
                counted[number] += 1
            key = f"keys/{number}"
            store.set(key, [key.encode()])
            assert key in [*store.list("keys/")]
            store.delete(key)
            assert store.size(key) is None
            longest.append(time.monotonic() - begun)
        return rows, expected

    with ThreadPoolExecutor(threads) as pool:
        written = [*pool.map(work, range(threads))]
    faults.rate = 0.0
    for rows, expected in written:
        assert np.array_equal(array[rows], expected)
    if conditional:
        assert json.loads(bytes(store.get("counts"))) == {str(n): c for n, c in enumerate(counted)}
    assert set(faults.happened) == set(FAULTS)
    return max(longest)


def test_a_load_with_faults(url, options, faults):
    faults.rate, faults.seed = 0.2, 1
    load(url, options, faults, 150, 50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_faults(url, options, faults):
    """Nothing is lost, nothing is wrong, and nobody waits for ever."""
    faults.rate, faults.seed = 0.25, 7
    longest = load(url, options, faults, 10_000, 3000)
    print(f"{faults.happened.total()} faults, {longest:.1f} s for about ten requests at most")
    assert longest < 60


# --- objects that are replaced while they are read ------------------------------------------------

LENGTH = 1 << 16
INDEXED = {"shape": LENGTH, "chunks": 4096, "shards": LENGTH, "dtype": "i4", "fill_value": 7}
LAST = slice(LENGTH - 40, LENGTH - 30)


def replacing(store, path, times):
    """The store, with the object of an array replaced behind the back of each reading of an index.

    Codecs without checksums, so that nothing but its tag tells one object from the other.
    """
    plain = [{"name": "bytes", "configuration": {"endian": "little"}}]
    old, new = (np.full(LENGTH, n, "i4") for n in (1, 2))
    new[: 15 * 4096] = 7  # its chunks lie elsewhere
    array = zd.create_array(store, path, **INDEXED, codecs=plain)
    array[...] = new
    (key,) = (key for key in store.list() if "/c/" in key)
    values = {"new": bytes(store.get(key))}
    array[...] = old
    values["old"] = bytes(store.get(key))
    left = iter([*["new", "old"] * 20][:times])
    asked = count()

    def before(method, at):
        # before the second request of each reading, which is the one for chunks
        if at == key and method == "get" and next(asked) % 2:
            with_what = next(left, None)
            if with_what is not None:
                store.set(key, [values[with_what]])

    return zd.open(HookStore(store, before), path), new


@pytest.mark.parametrize("way", ["one", "many"])
@pytest.mark.parametrize("times", [0, 1, 20])
def test_a_replaced_object_is_read_as_a_whole(store, way, times):
    array, new = replacing(store, "replaced", times)
    want = new if times else np.ones(LENGTH, "i4")
    read = {
        "one": lambda: array[LAST],
        "many": lambda: array.oindex[[3, LENGTH - 9]],
    }[way]
    if times == 20:
        with pytest.raises(ObjectReplacedError, match="replaced each time"):
            read()
    else:
        assert np.array_equal(read(), want[[3, LENGTH - 9]] if way == "many" else want[LAST])


def test_many_replaced_objects_are_read_as_wholes(store):
    """Two objects at once; one of them is replaced between its index and its chunks."""
    array = zd.create_array(store, "two", shape=2 * LENGTH, chunks=8192, shards=LENGTH, dtype="i4")
    array[...] = 1
    seen = []

    def hook(method, key):
        seen.append(key)
        if "/c/1" in key and seen.count(key) == 2:
            array[LENGTH:] = np.arange(LENGTH)

    got = zd.open(HookStore(store, hook), "two")[LENGTH - 4 : LENGTH + 8]
    assert got.tolist() == [1] * 4 + [*range(8)]


def test_an_object_that_is_deleted_while_it_is_read_is_an_error(store):
    array = zd.create_array(store, "gone", **INDEXED)
    array[...] = 1
    (key,) = (key for key in store.list() if "/c/" in key)
    seen = []

    def hook(method, at):
        seen.append(at)
        if at == key and seen.count(key) == 2:
            store.delete(key)

    array = zd.open(HookStore(store, hook), "gone")
    with pytest.raises(CorruptObjectError, match="removed while it was being read"):
        array[LAST]
    assert array[LAST].tolist() == [7] * 10


class Lying(Files):
    """An S3 server whose answers to ranges are not what was asked for."""

    lie = "first bytes"

    def do_GET(self):  # noqa: N802
        told = self.headers.get("Range", "")
        body = VALUE
        if told and self.lie == "first bytes":  # as s3rver does for the last ones
            nbytes = int(told[7:]) if told.startswith("bytes=-") else 10
            self.partial(VALUE[:nbytes], 0)
        elif told and self.lie == "another size":
            self.partial(VALUE[3:7], 3)
        else:  # as a server that knows no ranges does
            self.answer(200, body, [("ETag", '"1"'), ("Last-Modified", DATE)])

    def do_HEAD(self):  # noqa: N802
        self.answer(200, VALUE, [("ETag", '"1"'), ("Last-Modified", DATE)])

    def partial(self, body, first):
        told = f"bytes {first}-{first + len(body) - 1}/{len(VALUE)}"
        headers = [("Content-Range", told), ("ETag", '"1"'), ("Last-Modified", DATE)]
        self.answer(206, body, headers)


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize("backend", ["obstore", "fsspec", "http"])
@pytest.mark.parametrize("lie", ["first bytes", "another size", "everything"])
def test_answers_to_ranges_are_checked(server, backend, lie):
    handler = type("Handler", (Lying,), {"lie": lie})
    with serving(handler, {}) as (endpoint, _):
        if backend == "http":
            store = open_store(endpoint)
        else:
            client = {"endpoint_url": endpoint.rstrip("/"), "region_name": "us-east-1"}
            given = {**server.options, "client_kwargs": client, "backend": backend}
            store = open_store("s3://bucket", given)
        assert bytes(store.get("a")) == VALUE
        for wanted in (Range(-5), Range(3, 20), Range(20, None)):
            try:
                (got,) = store.get_ranges([("a", wanted)])
            except StoreError:
                assert lie != "everything" or backend == "obstore"
            else:
                assert bytes(got) == VALUE[wanted.start : wanted.stop]
                assert lie == "everything"


def test_a_listing_that_never_ends_is_an_error(store, faults):
    for number in range(40):  # obstore gathers a thousand before it gives them away
        store.set(f"a/{number}", [b"value"])
    faults.rate, faults.kinds, faults.only = 1, {"endless": 1}, "list-type=2"
    with pytest.raises(StoreError, match="sends the same page again"):
        list(store.list("a/"))
    faults.rate = 0
    assert len(list(store.list("a/"))) == 40
