"""Credentials are where they are needed, and nowhere else: every written byte and every text."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from itertools import count

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import tokenize

import zarr_dask as zd
from tests.support.object_stores import KEY, SECRET, s3_server
from zarr_dask.errors import CredentialsMissingError, StoreError
from zarr_dask.stores import RetryPolicy, open_store
from zarr_dask.stores.secrets import public_options, redacted

VALUES = np.arange(6 * 10, dtype="f4").reshape(6, 10)
NUMBERS = count()
BACKENDS = ["fsspec", "obstore"]


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(params=BACKENDS)
def options(request, server):
    return {**server.options, "backend": request.param}


@pytest.fixture
def url():
    return f"s3://bucket/{next(NUMBERS)}/a.zarr"


def assert_clean(*texts):
    for text in texts:
        data = text if isinstance(text, bytes) else str(text).encode()
        assert SECRET.encode() not in data, text
        assert KEY.encode() not in data, text


def everything_in(server):
    """All keys and values of the bucket."""
    for page in server.admin.get_paginator("list_objects_v2").paginate(Bucket="bucket"):
        for item in page.get("Contents", ()):
            yield item["Key"].encode()
            yield server.admin.get_object(Bucket="bucket", Key=item["Key"])["Body"].read()


def test_no_text_of_a_value_has_them(url, options):
    zd.create_group(url, storage_options=options)
    array = zd.create_array(
        url, "x", shape=(6, 10), chunks=(2, 5), dtype="f4", storage_options=options
    )
    group = zd.open(url, storage_options=options)
    lazy = array.to_dask()
    for value in (group, array, array.lazy[1:3], lazy, array.store):
        assert_clean(repr(value), str(value), getattr(value, "_repr_html_", str)())
    assert_clean(group.tree(), array.store.url, array.store.identity, tokenize(array.store))
    assert_clean(json.dumps([str(key) for key in lazy.__dask_graph__()]), lazy.name)
    layers = lazy.dask.layers
    assert_clean(*layers, *(repr(layer) for layer in layers.values()), repr(lazy.dask))
    assert_clean(*(layer._repr_html_() for layer in layers.values()), lazy.dask._repr_html_())


@pytest.mark.parametrize("killed", [False, True])
def test_no_written_byte_has_them(url, options, server, killed, tmp_path):
    """Documents, receipts, journals of jobs that ended and of one that did not, manifests."""

    def fail(block, block_info=None):
        if killed and block_info[None]["chunk-location"] == (1, 1):
            raise ZeroDivisionError
        return block

    x = da.from_array(VALUES, chunks=(3, 5)).map_blocks(fail, dtype="f4")
    manifest = tmp_path / "manifest"
    try:
        zd.to_zarr(x, url, storage_options=options, resume="job", manifest=manifest)
    except (ZeroDivisionError, StoreError):
        assert killed
    written = [*everything_in(server)]
    if not killed:
        written.append(manifest.read_bytes())
    assert len(written) > 4
    assert_clean(*written)


def test_no_plan_has_them(url, options, server, tmp_path):
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), url, storage_options=options)
    target = url.replace("a.zarr", "b.zarr")
    plan = zd.plan_rechunk(
        zd.open(url, storage_options=options),
        target,
        chunks=(6, 2),
        max_mem="100 MB",
        storage_options=options,
    )
    assert_clean(plan.to_json(), plan.explain(), repr(plan))
    write = zd.plan_write(
        da.zeros((6, 10)), url.replace("a.zarr", "c.zarr"), storage_options=options
    )
    assert_clean(write.to_json(), write.explain(), write._repr_html_())
    plan.run()
    assert np.array_equal(zd.open(target, storage_options=options)[...], VALUES)
    assert_clean(*everything_in(server))


@pytest.mark.parametrize("name", ["get", "set", "list"])
def test_no_error_has_them(server, options, name):
    store = open_store("s3://no-such-bucket/a", options)
    ask = {
        "get": lambda: store.get("a"),
        "set": lambda: store.set("a", [b"1"]),
        "list": store.list_dir,
    }
    with pytest.raises(StoreError) as caught:
        ask[name]()
    assert_clean("".join(traceback.format_exception(caught.value)))


def test_no_log_of_ours_has_them(url, options, caplog):
    """Not even at the finest level, in tasks that fail either."""
    caplog.set_level(logging.DEBUG)
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), url, storage_options=options)
    open_store(url, options).delete("c/0/0")
    array = zd.open(url, storage_options=options, read=zd.ReadOptions(missing="error"))
    with pytest.raises(FileNotFoundError) as caught:
        array.to_dask().compute()
    assert_clean("".join(traceback.format_exception(caught.value)))
    # the clients of the services log requests, with the name of the key and never its secret
    said = [record for record in caplog.records if record.name.startswith(("zarr_dask", "distrib"))]
    assert_clean(*(record.getMessage() for record in said))
    assert SECRET not in caplog.text


def test_other_credentials_are_no_other_place(url, options):
    """The next hour's token goes on with the same job and finds the same names."""
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), url, storage_options=options)
    later = {**options, "token": "the-token-of-the-next-hour"}
    names = {zd.from_zarr(url, storage_options=given).name for given in (options, later)}
    assert len(names) == 1
    elsewhere = {**options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    assert open_store(url, elsewhere).identity != open_store(url, options).identity


def test_graphs_have_none_where_the_environment_has_them(url, server, monkeypatch, options):
    """What a worker finds itself need not travel."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    public = {"endpoint_url": server.endpoint, "backend": options["backend"]}
    x = da.from_array(VALUES, chunks=(3, 5))
    zd.to_zarr(x, url, storage_options=public)
    lazy = zd.from_zarr(url, storage_options=public)
    later = zd.to_zarr(x, f"{url}/b", storage_options=public, compute=False, mode="w-")
    assert_clean(pickle.dumps(lazy), cloudpickle.dumps(later.__dask_graph__()))


def sent(server, options):
    """An array in a bucket, lazily, and a write of it that waits."""
    x = da.from_array(VALUES, chunks=(3, 5))
    url = f"s3://bucket/{next(NUMBERS)}/a.zarr"
    zd.to_zarr(x, url, storage_options=options)
    lazy = zd.from_zarr(url, storage_options=options)
    later = zd.to_zarr(lazy + 1, f"{url}-b", storage_options=options, compute=False)
    return zd.open(url, storage_options=options), lazy, later


def test_nothing_that_is_pickled_has_them(server, options):
    array, lazy, later = sent(server, options)
    assert_clean(cloudpickle.dumps(array), cloudpickle.dumps(array.lazy[1:]), pickle.dumps(lazy))
    assert_clean(cloudpickle.dumps(lazy.__dask_graph__()))
    assert_clean(cloudpickle.dumps(dict(lazy.__dask_graph__())))
    assert_clean(cloudpickle.dumps(later), cloudpickle.dumps(dict(later.__dask_graph__())))
    assert_clean(pickle.dumps(zd.credentials_initializer(lazy)))
    plan = zd.plan_rechunk(array, f"{array.store.url}-c", chunks=(6, 2), storage_options=options)
    assert_clean(cloudpickle.dumps(plan))


def test_pickles_are_whole_in_this_process(server, options):
    array, lazy, _ = sent(server, options)
    again = pickle.loads(pickle.dumps(array))
    assert again.store == array.store
    assert (again.token, again.store.identity) == (array.token, array.store.identity)
    assert np.array_equal(again[...], VALUES)
    assert np.array_equal(pickle.loads(cloudpickle.dumps(lazy)).compute(), VALUES)
    again = pickle.loads(pickle.dumps(again))  # once more


def in_a_fresh_process(code, *data):
    """What a program prints that unpickles the first of its inputs."""
    done = subprocess.run(
        [sys.executable, "-c", f"import pickle, sys\ndata = pickle.load(sys.stdin.buffer)\n{code}"],
        input=pickle.dumps(data),
        capture_output=True,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


UNKNOWN = """
from zarr_dask.errors import CredentialsMissingError
array = pickle.loads(data[0])
assert array.store.identity == data[1]
again = pickle.loads(pickle.dumps(array))
assert again.store == array.store
for one in (array, again):
    try:
        one[...]
    except CredentialsMissingError as error:
        print(error)
pickle.loads(data[2])()
"""


def test_a_process_that_lacks_them_says_so(server, options):
    array, lazy, _ = sent(server, options)
    initializer = pickle.dumps(zd.credentials_initializer(lazy))
    said = in_a_fresh_process(UNKNOWN, pickle.dumps(array), array.store.identity, initializer)
    assert said.count(array.store.url) == 2
    assert "share_credentials(client, x)" in said
    assert_clean(said)


def test_http_keeps_headers_and_the_query(http_value):
    store = http_value
    data = pickle.dumps(store)
    assert_clean(data)
    assert pickle.loads(data) == store
    said = in_a_fresh_process(
        "import pickle\nfrom zarr_dask.errors import CredentialsMissingError\n"
        "try:\n    pickle.loads(data[0]).get('a')\n"
        "except CredentialsMissingError as error:\n    print(error)",
        data,
    )
    assert "http://host/data" in said
    assert_clean(said)


@pytest.fixture
def http_value():
    return open_store(f"http://host/data?sig={SECRET}", {"headers": {"Authorization": KEY}})


@pytest.mark.slow  # processes that are started anew, with all that they import
def test_dask_processes_are_given_them(server, options):
    array, lazy, _ = sent(server, options)
    with dask.config.set(scheduler="processes", num_workers=1):
        with pytest.raises(CredentialsMissingError, match=r"multiprocessing\.initializer"):
            lazy.compute()
        with dask.config.set({"multiprocessing.initializer": zd.credentials_initializer(lazy)}):
            assert np.array_equal(lazy.compute(), VALUES)
        url = f"{array.store.url}-2"
        zd.to_zarr(lazy, url, storage_options=options)  # by itself
        zd.rechunk(array, f"{url}-3", chunks=(6, 2), max_mem="100 MB", storage_options=options)
    for path in (url, f"{url}-3"):
        assert np.array_equal(zd.open(path, storage_options=options)[...], VALUES)


def test_a_process_that_is_started_with_a_store_has_them(server):
    """By hand as multiprocessing does it: what is pickled for a child that is being started."""
    from multiprocessing.context import set_spawning_popen

    array, _, _ = sent(server, server.options)
    assert_clean(pickle.dumps(array))
    set_spawning_popen(object())
    try:
        data, initializer = pickle.dumps(array), pickle.dumps(zd.credentials_initializer(array))
    finally:
        set_spawning_popen(None)
    code = "array = pickle.loads(data[0])\nprint(int(array[...].sum()))"
    assert int(in_a_fresh_process(code, data)) == VALUES.sum()
    code = "pickle.loads(data[1])()\n" + code
    assert int(in_a_fresh_process(code, pickle.dumps(array), initializer)) == VALUES.sum()


@pytest.mark.slow  # processes that are started anew, with all that they import
def test_processes_find_credentials_in_their_environment(url, server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    public = {"endpoint_url": server.endpoint}
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), url, storage_options=public)
    anew = {"multiprocessing.context": "spawn"}  # a fork server has the environment of its start
    with dask.config.set({"scheduler": "processes", "num_workers": 1, **anew}):
        assert np.array_equal(zd.from_zarr(url, storage_options=public).compute(), VALUES)


def test_what_is_a_credential():
    options = {
        "anon": False,
        "account_key": "k",
        "sas_token": "t",
        "connection_string": "AccountKey=k",
        "client_kwargs": {"endpoint_url": "http://h", "aws_secret_access_key": "s"},
        "headers": {"Authorization": "Bearer"},
        "password": "p",
        "fo": "refs.json",
    }
    assert public_options(options) == {
        "anon": False,
        "client_kwargs": {"endpoint_url": "http://h"},
        "fo": "refs.json",
    }
    text = "the key k, AccountKey=secret-key; https://h/a?sig=b and more"
    said = redacted(text, {"connection_string": "AccountName=a;AccountKey=secret-key;"})
    assert said == "the key k, AccountKey=***; https://h/a and more"


def test_options_from_the_configuration_of_fsspec_do_not_travel(url, options, monkeypatch):
    from fsspec.config import conf

    own = {name: value for name, value in options.items() if name != "backend"}
    monkeypatch.setitem(conf, "s3", own)
    store = open_store(url, {"backend": options["backend"]})
    store.set("a", [b"1"])
    assert bytes(store.get("a")) == b"1"
    assert_clean(pickle.dumps(store))


def test_a_configuration_of_fsspec_that_changes_is_seen(url, options, monkeypatch):
    from fsspec.config import conf

    own = {name: value for name, value in options.items() if name != "backend"}
    closed = {"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"}
    given = {"backend": options["backend"], "retry": RetryPolicy(attempts=1)}
    monkeypatch.setitem(conf, "s3", {**own, "client_kwargs": closed})
    with pytest.raises(StoreError):
        open_store(url, given).get("a")
    monkeypatch.setitem(conf, "s3", own)
    assert open_store(url, given).get("a") is None


@pytest.mark.parametrize(
    "command",
    [
        "info",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("tree", "verify", "inventory")),
    ],
)
def test_the_command_line_takes_them_from_the_environment(url, options, command):
    """In words of fsspec; the backend is chosen by hand."""
    x = da.from_array(VALUES, chunks=(3, 5))
    zd.to_zarr(x, url, "x", storage_options=options)
    own = {name: value for name, value in options.items() if name != "backend"}
    done = subprocess.run(
        [sys.executable, "-m", "zarr_dask.cli", "--backend", options["backend"], command, url],
        env={**os.environ, "FSSPEC_S3": json.dumps(own)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_clean(done.stdout, done.stderr)
    if command == "info":
        assert options["backend"] in done.stdout
