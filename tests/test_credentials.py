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
from tests.object_stores import KEY, SECRET, s3_server
from zarr_dask.errors import StoreError
from zarr_dask.stores import open_store
from zarr_dask.stores.credentials import redacted, without_credentials

VALUES = np.arange(6 * 10, dtype="f4").reshape(6, 10)
NUMBERS = count()
BACKENDS = ["fsspec", "obstore"]

pytestmark = pytest.mark.xdist_group("credentials")


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


@pytest.mark.slow  # processes that are started anew, with all that they import
def test_processes_find_credentials_in_their_environment(url, server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    public = {"endpoint_url": server.endpoint}
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), url, storage_options=public)
    with dask.config.set(scheduler="processes", num_workers=1):
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
    assert without_credentials(options) == {
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


@pytest.mark.parametrize(
    "command",
    [
        "info",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("tree", "verify", "survey")),
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
