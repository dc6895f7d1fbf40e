"""S3 through obstore and through fsspec, against a real server on loopback."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import fsspec
import fsspec.config
import numpy as np
import obstore
import obstore.store
import pytest
import zarr

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import KEY, SECRET, s3_server
from tests.support.unpickle import UNPICKLE
from zarr_dask.errors import (
    NodeNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from zarr_dask.stores import WHOLE, Range, open_store
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.base import etag_of, list_sizes
from zarr_dask.stores.config import from_config, to_config
from zarr_dask.stores.open import sibling_location
from zarr_dask.stores.option_mapping import to_obstore_config
from zarr_dask.testing.stores import StoreTests

BACKENDS = {"fsspec": FsspecStore, "obstore": ObstoreStore}
NUMBERS = count()


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def url():
    """A place in the bucket that no other test uses."""
    return f"s3://bucket/{next(NUMBERS)}/a.zarr"


@pytest.fixture(params=BACKENDS)
def options(request, server):
    """Options of the server, for each backend."""
    return {**server.options, "backend": request.param}


@pytest.fixture
def store(url, options):
    return open_store(url, options)


class TestObstore(StoreTests):
    @pytest.fixture
    def store(self, server, url):
        store = open_store(url, server.options)
        assert isinstance(store, ObstoreStore)
        return store


class TestFsspecS3(StoreTests):
    @pytest.fixture
    def store(self, server, url):
        store = open_store(url, {**server.options, "backend": "fsspec"})
        assert isinstance(store, FsspecStore)
        return store

    @pytest.mark.slow  # 600 requests; the same as above but for the backend
    def test_a_reader_sees_old_or_new(self, store):
        super().test_a_reader_sees_old_or_new(store)


# --- failures are no absence ----------------------------------------------------------------------

REQUESTS = {
    "get": lambda s: s.get("a"),
    "get_ranges": lambda s: s.get_ranges([("a", Range(0, 4)), ("b", WHOLE)]),
    "suffix": lambda s: s.get_ranges([("a", Range(-4))]),
    "set": lambda s: s.set("a", [b"1"]),
    "list": lambda s: list(s.list("a/")),
    "sizes": lambda s: list(list_sizes(s, "a/")),
    "list_dir": lambda s: s.list_dir("a/"),
    "size": lambda s: s.size("a"),
    "delete": lambda s: s.delete("a"),
    "delete_prefix": lambda s: s.delete_prefix("a/"),
}
CONDITIONAL = {
    "validator": lambda s: s.validator("a"),
    "get_tagged": lambda s: s.get_tagged("a"),
    "set_if": lambda s: s.set_if("a", [b"1"], None),
}


@pytest.mark.parametrize("request_", [*REQUESTS, *CONDITIONAL])
def test_a_bucket_that_is_not_there_is_an_error(options, request_):
    store = open_store("s3://no-such-bucket/a.zarr", options)
    said = r"s3://no-such-bucket/a\.zarr.*(NoSuchBucket|404|bucket does not exist)"
    with pytest.raises(StoreError, match=said) as caught:
        {**REQUESTS, **CONDITIONAL}[request_](store)
    assert "<Code>" not in str(caught.value)  # words for people, not the body of the response


def test_a_bucket_deleted_under_an_open_array_is_an_error(options, server):
    bucket = f"short-lived-{options['backend']}"
    server.admin.create_bucket(Bucket=bucket)
    array = zd.create_array(
        f"s3://{bucket}/a", shape=(4,), chunks=2, dtype="i4", storage_options=options
    )
    assert array[:].tolist() == [0] * 4  # there is a bucket, and there are no chunks in it
    server.admin.delete_object(Bucket=bucket, Key="a/zarr.json")
    server.admin.delete_bucket(Bucket=bucket)
    with pytest.raises(StoreError, match=r"NoSuchBucket|bucket does not exist"):
        array[:]


@pytest.fixture(params=["fsspec", "obstore"])
def opened_by_zarr_python(request, server):
    """A store of zarr-python for a bucket, and the bucket, which no other test uses."""
    bucket = f"zarr-python-{request.param}"
    server.admin.create_bucket(Bucket=bucket)
    if request.param == "fsspec":
        place = f"s3://{bucket}/a"
        return zarr.storage.FsspecStore.from_url(place, storage_options=server.options), bucket
    client = obstore.store.S3Store(
        bucket,
        prefix="a",
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id=server.key,
        secret_access_key=server.secret,
        client_options={"allow_http": True},
    )
    return zarr.storage.ObjectStore(client), bucket


def test_a_bucket_deleted_under_a_mapping_of_fsspec(server):
    """The mapping says that there is no such value, as it does of chunks that were left out."""
    bucket = f"mapped-{next(NUMBERS)}"
    server.admin.create_bucket(Bucket=bucket)
    mapping = fsspec.get_mapper(f"s3://{bucket}/a.zarr", **server.options)
    zarr.create_array(
        f"s3://{bucket}/a.zarr",
        shape=(4, 6),
        chunks=(2, 3),
        dtype="i4",
        storage_options=server.options,
    )[...] = 7
    array = zd.open(mapping)
    assert (array[...] == 7).all()
    zd.open(mapping, mode="r+")[0] = 8
    assert bytes(mapping["c/0/0"]) == bytes(open_store(mapping).get("c/0/0"))
    assert SECRET not in repr(open_store(mapping))
    for found in server.admin.list_objects_v2(Bucket=bucket)["Contents"]:
        server.admin.delete_object(Bucket=bucket, Key=found["Key"])
    with pytest.raises(NodeNotFoundError, match="was there when it was opened"):
        array[...]
    server.admin.delete_bucket(Bucket=bucket)
    with pytest.raises(StoreError, match="no such bucket"):
        array[...]


def test_a_bucket_deleted_under_a_store_of_zarr_python(opened_by_zarr_python, server):
    """zarr-python reads fill values then."""
    store, bucket = opened_by_zarr_python
    peer = zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4", fill_value=7)
    peer[:2] = 1
    array = zd.open_array(store)
    assert array[:].tolist() == [1, 1, 7, 7]
    assert list(array.store.list("nothing/")) == []
    for one in server.admin.list_objects_v2(Bucket=bucket)["Contents"]:
        server.admin.delete_object(Bucket=bucket, Key=one["Key"])
    server.admin.delete_bucket(Bucket=bucket)
    assert peer[:].tolist() == [7] * 4
    asked = (
        lambda: array[:],
        lambda: list(array.store.list("")),
        lambda: array.store.list_dir(""),
        lambda: array.store.size("c/0"),
    )
    for ask in asked:
        with pytest.raises(StoreError, match=r"NoSuchBucket|bucket does not exist"):
            ask()


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_vanished_server_is_an_error(request_):
    gone = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9"}
    store = open_store("s3://bucket/vanished", gone)
    with pytest.raises(StoreUnavailableError, match="s3://bucket/vanished") as caught:
        REQUESTS[request_](store)
    assert "error sending request" in str(caught.value)
    assert "given up after" in str(caught.value)  # at once, not after minutes of retries
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value.__cause__, Exception)


def test_messages_hold_no_secrets_and_no_internals(server):
    store = open_store("s3://no-such-bucket/a", server.options)
    with pytest.raises(StoreError) as caught:
        store.list_dir("")
    for said in (str(caught.value), str(caught.value.__cause__)):
        assert "Debug source" not in said
        assert "list-type" not in said  # queries of URLs may hold tokens
        assert SECRET not in said


def test_whoever_has_no_credentials_is_told_how_to_give_them(tmp_path):
    """By s3fs, in a process that finds none; nothing is asked of the network."""
    hidden = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "FSSPEC_"))}
    hidden |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "COLUMNS": "1000"}
    hidden["FSSPEC_S3_ENDPOINT_URL"] = "http://127.0.0.1:9"
    command = [sys.executable, "-m", "zarr_dask.cli", "--backend", "fsspec", "info", "s3://b/a"]
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Give credentials by the environment, a profile or --storage-option" in done.stderr
    assert "what is public is read with --anon" in done.stderr


def test_a_key_that_obstore_cannot_hold_is_refused(shared):
    with pytest.raises(StoreError, match="a"):
        shared.set("a\x01b", [b"1"])


# --- values ---------------------------------------------------------------------------------------


def test_a_value_of_many_parts(server, url):
    store = open_store(url, server.options)
    value = np.random.default_rng(1).bytes((1 << 25) + 12345)
    store.set("large", [value[:7], memoryview(value)[7 : 1 << 24], value[1 << 24 :]])
    assert store.size("large") == len(value)
    assert bytes(store.get("large")) == value
    tag = server.admin.head_object(Bucket="bucket", Key=f"{url[12:]}/large")["ETag"]
    assert tag.strip('"').endswith("-3")  # that is how S3 marks what came in three parts


def test_ranges_of_many_keys_side_by_side(store):
    values = {f"k{number}": bytes([number]) * (number + 1) for number in range(40)}
    for key, value in values.items():
        store.set(key, [value])
    asked = [(key, Range(-3)) for key in values] + [("nothing", Range(0, 2))]
    got = store.get_ranges(asked)
    assert [bytes(value) for value in got[:-1]] == [value[-3:] for value in values.values()]
    assert got[-1] is None


def test_listings_over_several_pages(server, url):
    store = open_store(url, server.options)
    for number in range(120):
        store.set(f"c/{number}", [b"12"])
    assert set(store.list("c/")) == {f"c/{number}" for number in range(120)}
    assert set(list_sizes(store, "c/")) == {(f"c/{number}", 2) for number in range(120)}
    assert len(store.list_dir("c/").keys) == 120
    store.delete_prefix("c/")
    assert list(store.list()) == []


def test_the_validator_changes_with_the_value(store):
    assert etag_of(store, "a") is None
    store.set("a", [b"1"])
    first = etag_of(store, "a")
    assert first is not None
    assert etag_of(store, "a") == first
    store.set("a", [b"2"])
    assert etag_of(store, "a") not in {first, None}


# --- conditions -----------------------------------------------------------------------------------


@pytest.fixture
def shared(server, url):
    return open_store(url, server.options)


@pytest.fixture(params=["obstore", "fsspec"])
def compared(request, server, url):
    return open_store(url, {**server.options, "backend": request.param})


def test_a_value_is_put_only_where_there_is_still_none(compared):
    value, tag = compared.get_tagged("a")
    assert (value, tag) == (None, None)
    assert compared.set_if("a", [b"1"], tag)
    assert not compared.set_if("a", [b"2"], tag)
    assert bytes(compared.get("a")) == b"1"


def test_a_value_is_put_only_over_the_one_that_was_read(compared):
    compared.set("a", [b"1"])
    value, tag = compared.get_tagged("a")
    assert bytes(value) == b"1"
    assert compared.set_if("a", [b"2", b"3"], tag)
    assert not compared.set_if("a", [b"4"], tag)
    assert bytes(compared.get("a")) == b"23"
    compared.delete("a")
    assert not compared.set_if("a", [b"5"], compared.get_tagged("b")[1] or tag)
    assert compared.get("a") is None


INCREMENT = """
import json, sys
from zarr_dask.stores import open_store
store = open_store(sys.argv[1], json.loads(sys.argv[2]))
done = 0
while done < 10:
    value, tag = store.get_tagged("counter")
    done += store.set_if("counter", [str(int(bytes(value or b"0")) + 1).encode()], tag)
"""


@pytest.mark.parametrize("backends", [("obstore", "obstore"), ("obstore", "fsspec")])
def test_two_processes_lose_no_increment(server, url, backends):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", INCREMENT, url, json.dumps({**server.options, "backend": one})]
        )
        for one in backends
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert bytes(open_store(url, server.options).get("counter")) == b"20"


def test_two_jobs_share_a_border_object(server, url):
    """Rows 0 to 9 and 10 to 19 meet in the middle of the second chunk of 8."""
    zd.create_array(url, shape=(20,), chunks=8, dtype="i4", storage_options=server.options)
    command = [sys.executable, "-c", COMPARE, url, json.dumps(server.options)]
    jobs = [subprocess.Popen([*command, str(part)]) for part in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
    got = zd.open(url, storage_options=server.options)[:]
    assert got.tolist() == [3] * 10 + [103] * 10


COMPARE = """
import json, sys
import dask.array as da, numpy as np
import zarr_dask as zd
url, options, part = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
for number in range(1, 4):
    values = da.from_array(np.full(10, 100 * part + number, "i4"), chunks=5)
    zd.to_zarr(
        values, url, region=(slice(10 * part, 10 * part + 10),), partial="compare",
        storage_options=options, compute=True,
    )
"""


DROPS_CONDITIONS = """
import json, sys
import s3fs
from zarr_dask.errors import ConditionalWriteError
from zarr_dask.stores import open_store
call = s3fs.S3FileSystem._call_s3

def old(fs, method, *given, **words):
    return call(fs, method, *given, **{k: v for k, v in words.items() if k != "IfMatch"})

s3fs.S3FileSystem._call_s3 = old
store = open_store(sys.argv[1], json.loads(sys.argv[2]))
try:
    store.check_conditional("a")
except ConditionalWriteError as error:
    print(error, list(store.list()))
"""


def test_a_botocore_that_knows_no_conditions_is_noticed(server, url):
    """s3fs leaves out what it does not know, so that the put is done whatever is there."""
    options = json.dumps({**server.options, "backend": "fsspec"})
    command = [sys.executable, "-c", DROPS_CONDITIONS, url, options]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "whose condition (If-Match) does not hold" in said
    assert said.endswith("[]\n")


# --- which backend, and what it shows -------------------------------------------------------------


def test_the_backend_is_chosen_and_shown(server, url):
    assert repr(open_store(url, server.options)) == f"ObstoreStore({url!r})"
    by_hand = open_store(url, {**server.options, "backend": "fsspec"})
    assert repr(by_hand) == f"FsspecStore({url!r})"
    # what obstore has no word for is fsspec's
    rest = open_store(url, {**server.options, "default_block_size": 1 << 20})
    assert isinstance(rest, FsspecStore)
    with pytest.raises(StoreError, match="default_block_size"):
        open_store(url, {**server.options, "default_block_size": 1, "backend": "obstore"})
    with pytest.raises(StoreError, match=r"'rust'.*'fsspec' or 'obstore'"):
        open_store(url, {"backend": "rust"})


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "r"}},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t", "region": "r"},
        ),
        (
            {"anon": True, "endpoint_url": "https://host/", "requester_pays": True},
            {
                "skip_signature": True,
                "endpoint": "https://host",
                "request_payer": True,
                "region": "us-east-1",
            },
        ),
        (
            {
                "client_kwargs": {
                    "aws_access_key_id": "k",
                    "aws_secret_access_key": "s",
                    "endpoint_url": "http://host",
                }
            },
            {
                "access_key_id": "k",
                "secret_access_key": "s",
                "endpoint": "http://host",
                "region": "us-east-1",
            },
        ),
        ({"anon": True}, {"skip_signature": True}),  # no region: S3 is asked for it
        ({"key": "k", "client_kwargs": {"region_name": "r"}}, None),
        ({"anon": True, "client_kwargs": {"region_name": "r", "verify": False}}, None),
    ],
    ids=["keys", "anonymous", "of the client", "no region", "half a key", "verify"],
)
def test_options_in_the_words_of_fsspec(options, want, monkeypatch):
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    found = to_obstore_config("s3://bucket/a", options)
    assert (None if found is None else found.config) == want


@pytest.mark.parametrize(
    ("url", "options", "want"),
    [
        (
            "gs://bucket/a",
            {"token": "anon"},
            {
                "skip_signature": True,
                "service_account_key": '{"client_email": "", "private_key": "", '
                '"private_key_id": "", "disable_oauth": true}',
            },
        ),
        (
            "gs://bucket/a",
            {"token": {"private_key": "1"}},
            {"service_account_key": '{"private_key": "1"}'},
        ),
        ("gs://bucket/a", {"token": {"refresh_token": "1"}}, None),  # of a user
        ("gs://bucket/a", {"token": "browser"}, None),
        ("gs://bucket/a", {"token": "cloud"}, {}),
        (
            "az://container/a",
            {"account_name": "n", "endpoint_url": "http://host/n/"},
            {"account_name": "n", "endpoint": "http://host/n"},
        ),
        (
            "az://container/a",
            {"account_name": "n", "account_key": "k"},
            {"account_name": "n", "account_key": "k"},
        ),
        ("az://container/a", {"connection_string": "x"}, None),
        ("az://container@host/a", {"account_name": "n"}, None),
        ("simplecache::s3://bucket/a", {}, None),
        ("sftp://host/a", {}, None),
    ],
)
def test_options_of_other_services(url, options, want, monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("AZURE_", "GOOGLE_", "GCE_", "K_SERVICE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    found = to_obstore_config(url, options)
    assert (None if found is None else found.config) == want


def test_without_credentials_of_google_it_is_read_as_nobody(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GCE_", "K_SERVICE", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    found = to_obstore_config("gs://bucket/a", {})
    assert found.config == to_obstore_config("gs://bucket/a", {"token": "anon"}).config


def test_credentials_of_google_that_the_machine_has(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    (tmp_path / "application_default_credentials.json").write_text("{}")
    assert to_obstore_config("gs://bucket/a", {}).config == {}
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost:1")
    assert to_obstore_config("gs://bucket/a", {}) is None  # which obstore does not look at


@pytest.mark.parametrize("backend", ["obstore", "fsspec", None])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"key": 5}, r"\['key'\] is of type int, expected a text"),
        ({"region": 5}, r"\['region'\] is of type int, expected a text"),
        ({"endpoint_url": ["http://host"]}, r"\['endpoint_url'\] is of type list, expected a text"),
        ({"client_kwargs": "x"}, r"\['client_kwargs'\] is of type str, expected an object"),
        ({"config_kwargs": 1}, r"\['config_kwargs'\] is of type int, expected an object"),
        ({"client_kwargs": {"region_name": 1}}, r"\['client_kwargs'\]\['region_name'\] is of type"),
        ({"session": object()}, r"\['session'\] is of type object.*Give a session of boto3"),
        ({"a": [1, b"2"]}, r"\['a'\]\[1\] is of type bytes, which cannot be sent"),
        ({3: 4}, "has the name 3, expected a text"),
    ],
)
def test_options_of_a_wrong_kind_are_named(url, given, says, backend):
    chosen = {} if backend is None else {"backend": backend}
    with pytest.raises(StoreError, match=says) as caught:
        open_store(url, {"secret": SECRET, **given, **chosen}).get("a")
    assert SECRET not in str(caught.value)


def test_configurations_of_fsspec_of_a_wrong_kind_are_named(url, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": 5})
    with pytest.raises(StoreError, match=r"configuration of 's3': .*\['endpoint_url'\] is of type"):
        open_store(url)


@pytest.mark.parametrize("client", [{"region_name": "us-east-1"}, {}])
@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"backend": "obstore"}, "have no profile 'nobody'"),
        ({"backend": "fsspec"}, r"profile \(nobody\) could not be found"),
        ({}, r"profile \(nobody\) could not be found"),
    ],
)
def test_a_profile_that_is_not_there(url, chosen, says, client):
    with pytest.raises(StoreError, match=says):
        open_store(url, {"profile": "nobody", "client_kwargs": client, **chosen}).get("a")


def test_clients_of_old_tokens_are_given_up(server, url):
    """A client of s3fs takes 13 MB, and a long job may get a new token every hour."""
    before = {id(one) for one in file_systems()}
    for number in range(60):
        FsspecStore.from_url(url, {**server.options, "token": f"token-{number}"})
    assert len([one for one in file_systems() if id(one) not in before]) < 30


def file_systems():
    from s3fs import S3FileSystem

    gc.collect()
    return [one for one in gc.get_objects() if type(one) is S3FileSystem]


def test_the_environment_chooses_where_there_is_a_choice(server, url, monkeypatch):
    monkeypatch.setenv("ZARR_DASK_BACKEND", "obstore")
    assert isinstance(open_store(url, server.options), ObstoreStore)
    for other in ("memory://a", "simplecache::memory://a"):
        assert open_store(other).get("a") is None
        with pytest.raises(StoreError, match=f"{other} cannot be served by obstore"):
            open_store(other, {"backend": "obstore"})


def test_what_obstore_cannot_do_is_named(url, server):
    options = {**server.options, "default_block_size": 1, "backend": "obstore"}
    options["client_kwargs"] = {**options["client_kwargs"], "verify": False}
    says = r"options \[\"client_kwargs\['verify'\]\", 'default_block_size'\] ask for"
    with pytest.raises(StoreError, match=says):
        open_store(url, options)


def test_a_profile_is_read_by_boto3(server, url, tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    file.write_text(f"[lab]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    store = open_store(url, {"profile": "lab", "endpoint_url": server.endpoint})
    assert isinstance(store, ObstoreStore)
    store.set("a", [b"1"])
    assert bytes(open_store(url, server.options).get("a")) == b"1"


def test_a_profile_says_where_the_service_is(server, url, tmp_path, monkeypatch):
    """As botocore has it, and with it s3fs: the requests of a user must not go to AWS instead."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n"
    )
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion=us-east-1\nendpoint_url={server.endpoint}\n"
        "[profile other]\nregion=us-east-1\n"
    )
    for backend in ("obstore", "fsspec"):
        store = open_store(url, {"profile": "lab", "backend": backend})
        store.set("a", [backend.encode()])
        assert bytes(open_store(url, server.options).get("a")) == backend.encode()
    options = {"client_kwargs": {"region_name": "r"}}
    assert "endpoint" not in to_obstore_config(url, {"profile": "other", **options}).config
    keys = {"key": "k", "secret": "s", **options}
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert to_obstore_config(url, keys).config["endpoint"] == server.endpoint


@pytest.mark.parametrize(
    ("given", "says"),
    [("access_key_id", "'access_key_id' is not known here: it is called key"),
     ("endpoint", "'endpoint' is not known here: it is called endpoint_url"),
     ("anonymous", "'anonymous' is not known here: it is called anon"),
     ("profile_name", "'profile_name' is not known here: it is called profile"),
     ("secret_key", "'secret_key' is not known here: it is called secret"),
     ("nonsense", "'nonsense' is not known here\\.$")],
)  # fmt: skip
def test_options_that_are_not_known_are_named(url, given, says):
    with pytest.raises(StoreError, match=says):
        open_store(url, {"anon": True, given: "x"}).get("a")


def test_nobody_to_go_in_as(url, monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    options = {"client_kwargs": {"region_name": "us-east-1"}, "backend": "obstore"}
    with pytest.raises(StoreError, match="no credentials were found"):
        open_store(url, options).get("a")


def test_who_waits_for_fsspec_is_not_for_users_to_say(server, url):
    for backend in ("obstore", "fsspec"):
        store = open_store(url, {**server.options, "asynchronous": True, "backend": backend})
        store.set("a", [b"1"])
        assert bytes(store.get("a")) == b"1"


def test_secrets_are_nowhere_to_be_seen(store):
    for shown in (repr(store), store.url, store.identity, json.dumps(to_config(store))):
        assert SECRET not in shown
        assert KEY not in shown


def test_a_described_store_is_opened_again(store, server):
    store.set("a", [b"1"])
    again = from_config(to_config(store), {"key": KEY, "secret": SECRET})
    assert isinstance(again, ObstoreStore)
    assert bytes(again.get("a")) == b"1"


def test_a_plan_in_a_file_from_a_folder_into_a_bucket(tmp_path, url, options, server):
    source = zd.create_array(tmp_path / "a.zarr", shape=(8, 8), dtype="i4", chunks=(1, 8))
    source[...] = np.arange(64).reshape(8, 8)
    plan = zd.plan_rechunk(source, url, chunks=(8, 1), storage_options=options)
    again = zd.load_plan(plan.to_json(), {"key": server.key, "secret": server.secret})
    again.run(verify=True)
    np.testing.assert_array_equal(
        zd.open_array(url, storage_options=options)[...], np.arange(64).reshape(8, 8)
    )


def test_the_place_beside(store):
    around, name = sibling_location(store, ".part")
    assert (type(around), name) == (type(store), "a.zarr.part")
    assert around.url == store.url.rpartition("/")[0]
    assert sibling_location(type(store)("s3://bucket", "{}"), ".part") is None


# --- processes ------------------------------------------------------------------------------------


def test_one_client_per_process_and_bucket(shared, server):
    copies = [pickle.loads(pickle.dumps(shared)) for _ in range(3)]
    other = open_store("s3://bucket/elsewhere", server.options)
    assert len({id(store._served().client()[1]) for store in (shared, *copies, other)}) == 1
    assert len(pickle.dumps(shared)) < 400


def test_a_store_in_another_process(server, store, monkeypatch):
    store.set("a", [b"found"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    public = json.dumps({"client_kwargs": server.options["client_kwargs"]})
    travels = type(store)(store.url, public)
    command = [sys.executable, "-c", UNPICKLE, pickle.dumps(travels).hex()]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == "value: found\n"


FORK = """
import json, os, signal, sys, warnings
import numpy as np
import zarr_dask as zd
from zarr_dask.stores import Range, open_store
warnings.simplefilter("ignore")
url, options, used = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "used"
array = None
if used:
    store = open_store(url, options)
    store.set("a", [b"12"])
    array = zd.create_array(f"{url}/x", shape=(8,), chunks=2, shards=4, dtype="i4",
                            storage_options=options)
    array[:4] = 1

def use():
    store = open_store(url, options)
    store.set("a", [b"12"])
    found = store.get_ranges([("a", Range(0)), ("a", Range(-1))])
    assert [bytes(value) for value in found] == [b"12", b"2"]
    assert (store.get("b"), store.size("a")) == (None, 2)
    if array is not None:
        array[4:] = 2
        assert array[...].tolist() == [1] * 4 + [2] * 4
        assert zd.open(f"{url}/x", storage_options=options)[3:5].tolist() == [1, 2]
        store.check_conditional("a")
        assert store.set_if("a", [b"12"], store.get_tagged("a")[1])
        assert not store.set_if("a", [b"12"], None)

def in_a_child(what):
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        status = 1
        try:
            what()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

in_a_child(use)
in_a_child(lambda: (use(), in_a_child(use)))
if used:
    assert bytes(store.get("a")) == b"12"
    assert store.set_if("a", [b"3"], store.get_tagged("a")[1])
print("done")
"""


@pytest.mark.parametrize("before", ["used", "unused"])
def test_after_a_fork(server, url, before):
    """The library's threads do not survive a fork: fsspec takes its place in the child."""
    command = [sys.executable, "-c", FORK, url, json.dumps(server.options), before]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


FORK_WITHOUT_FSSPEC = """
import os, sys
from zarr_dask.errors import StoreError
from zarr_dask.stores import open_store
store = open_store("s3://bucket/a", {"anon": True, "endpoint_url": "http://127.0.0.1:9"})
child = os.fork()
if child == 0:
    sys.modules["s3fs"] = None  # as where it is not installed
    try:
        store.get("a")
    except StoreError as error:
        print(error, flush=True)
        os._exit(2)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_after_a_fork_without_what_could_take_its_place():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK_WITHOUT_FSSPEC],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("\n2\n")
    assert "was forked from process" in done.stdout
    assert "'spawn'" in done.stdout


# --- with others ----------------------------------------------------------------------------------


def test_zarr_python_reads_what_is_written_and_back(server, url, options):
    import zarr
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    bucket = S3Store(
        "bucket",
        prefix=url[12:],
        endpoint=server.endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    foreign = ObjectStore(bucket)
    values = np.arange(60, dtype="f4").reshape(6, 10)
    group = zd.create_group(url, storage_options=options)
    ours = group.create_array(
        "ours", shape=values.shape, chunks=(2, 5), shards=(6, 5), dtype="f4", fill_value=-1
    )
    ours[...] = values
    assert np.array_equal(zarr.open_group(foreign, mode="r")["ours"][...], values)
    theirs = zarr.create_array(foreign, name="theirs", shape=(6, 10), chunks=(3, 5), dtype="f4")
    theirs[...] = values
    opened = zd.open(url, "theirs", storage_options=options)
    assert np.array_equal(opened[...], values)
    assert np.array_equal(opened[1:5, ::3], values[1:5, ::3])
    assert sorted(name for name, _ in zd.open(url, storage_options=options).children()) == [
        "ours",
        "theirs",
    ]


def test_the_cli_shows_where_an_array_is(server, url, monkeypatch, capsys):
    from zarr_dask.cli import main

    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    zd.create_array(url, shape=(3,), chunks=2, dtype="i4", storage_options=server.options)
    with pytest.raises(SystemExit) as ended:
        main(["info", url])
    assert not ended.value.code
    assert "obstore" in capsys.readouterr().out


def test_the_environment_is_read_again_when_it_has_changed(server, url, monkeypatch):
    """Whoever sets it after a first attempt that failed need not begin a new process."""
    zd.create_array(url, shape=(3,), chunks=2, dtype="i4", storage_options=server.options)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    options = {"backend": "obstore", "retry": {"attempts": 1}}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError):
        zd.open(url, storage_options=options)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    assert zd.open(url, storage_options=options).shape == (3,)


# --- conditions of gateways -----------------------------------------------------------------------


def test_a_gateway_that_wants_tags_without_quotes(server):
    """Ceph's answers 412 to a tag in quotes, whatever the value is."""
    url = f"s3://bucket/unquoted-{next(NUMBERS)}"
    with fault_proxy(server.endpoint, unquoted=True) as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        options = {**server.options, "client_kwargs": client, "backend": "obstore"}
        store = open_store(url, options)
        assert store.set_if("a", [b"1"], None)
        _, old = store.get_tagged("a")
        proxy.faults.counted()
        assert store.set_if("a", [b"2"], old)
        assert [one.method for one in proxy.faults.counted()] == ["PUT", "HEAD", "PUT"]
        _, tag = store.get_tagged("a")
        proxy.faults.counted()
        assert store.set_if("a", [b"3"], tag)
        assert not store.set_if("a", [b"4"], tag)
        assert not store.set_if("a", [b"4"], old)
        assert [one.method for one in proxy.faults.counted()] == ["PUT"] * 3
        assert bytes(store.get("a")) == b"3"
        group = zd.create_group(url, "g", storage_options=options)
        for number in range(20):
            zd.create_array(group, f"a{number}", shape=(3,), dtype="i4")
        group.update_attributes({"title": "a"})
        proxy.faults.counted()
        zd.consolidate(url, "g", storage_options=options)
        assert len(proxy.faults.counted()) < 60
        with ThreadPoolExecutor(4) as pool:
            done = [
                pool.submit(
                    zd.open_group(url, "g", "r+", storage_options=options).update_attributes,
                    {f"by-{number}": number},
                )
                for number in range(4)
            ]
            for one in done:
                one.result()
        found = zd.open_group(url, "g", "r+", storage_options=options)
        assert {*found.attributes} == {"title", *(f"by-{number}" for number in range(4))}


def test_a_service_that_knows_quotes_is_not_asked_twice(server):
    url = f"s3://bucket/quoted-{next(NUMBERS)}"
    with fault_proxy(server.endpoint) as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        store = open_store(url, {**server.options, "client_kwargs": client, "backend": "obstore"})
        store.set("a", [b"1"])
        _, old = store.get_tagged("a")
        store.set("a", [b"2"])
        assert not store.set_if("a", [b"3"], old)  # a conflict before it is known
        _, tag = store.get_tagged("a")
        assert store.set_if("a", [b"3"], tag)
        proxy.faults.counted()
        assert not store.set_if("a", [b"4"], tag)
        assert [one.method for one in proxy.faults.counted()] == ["PUT"]
        assert bytes(store.get("a")) == b"3"
