"""Stores and paths of other libraries, as users hold them."""

from __future__ import annotations

import pickle
import sys
import types
from itertools import count

import boto3
import fsspec
import numpy as np
import obstore.fsspec
import obstore.store
import pytest
from aiobotocore.session import AioSession, get_session
from fsspec.implementations.dirfs import DirFileSystem
from obstore.auth.boto3 import Boto3CredentialProvider

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask.errors import StoreError
from zarr_dask.stores import open_store
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.locations import without_session

NUMBERS = count()


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def prefix():
    return f"given-{next(NUMBERS)}/a.zarr"


class Imitated:
    """A path of universal_pathlib, as far as it is looked at."""

    def __init__(self, text, **storage_options):
        self.text, self.storage_options = text, storage_options

    def __str__(self):
        return self.text


def config(server):
    return {
        "endpoint": server.endpoint,
        "access_key_id": server.key,
        "secret_access_key": server.secret,
        "region": "us-east-1",
    }


def of_obstore(server, prefix):
    client = {"allow_http": True}
    return obstore.store.S3Store("bucket", prefix=prefix, client_options=client, **config(server))


def of_obstore_fsspec(server, prefix):
    fs = obstore.fsspec.FsspecStore("s3", client_options={"allow_http": True}, **config(server))
    return fs.get_mapper(f"bucket/{prefix}")


def of_fsspec(server, prefix):
    return fsspec.filesystem("s3", **server.options).get_mapper(f"bucket/{prefix}")


def of_upath(server, prefix):
    return Imitated(f"s3://bucket/{prefix}", **server.options)


def of_a_folder_of_fsspec(server, prefix):
    folder, name = prefix.split("/")
    return DirFileSystem(f"bucket/{folder}", fsspec.filesystem("s3", **server.options)).get_mapper(
        name
    )


def of_a_session_of_s3fs(server, prefix):
    session = session_of_aiobotocore(server)
    client = server.options["client_kwargs"]
    fs = fsspec.filesystem("s3", session=session, client_kwargs=client, skip_instance_cache=True)
    return fs.get_mapper(f"bucket/{prefix}")


def of_a_session(server, prefix):
    session = boto3.Session(aws_access_key_id=server.key, aws_secret_access_key=server.secret)
    return obstore.store.S3Store(
        "bucket",
        prefix=prefix,
        endpoint=server.endpoint,
        region="us-east-1",
        client_options={"allow_http": True},
        credential_provider=Boto3CredentialProvider(session),
        conditional_put="etag",
    )


PLACES = [
    of_a_folder_of_fsspec,
    of_a_session,
    of_a_session_of_s3fs,
    of_obstore,
    of_obstore_fsspec,
    of_fsspec,
    of_upath,
]


@pytest.mark.parametrize("make", PLACES)
def test_what_names_a_place_is_the_place(server, prefix, make, monkeypatch):
    upath = types.ModuleType("upath")
    upath.UPath = Imitated
    monkeypatch.setitem(sys.modules, "upath", upath)
    place = make(server, prefix)
    array = zd.create_array(place, "x", shape=(4,), dtype="i4", chunks=2)
    array[...] = [1, 2, 3, 4]
    by_url = zd.open_array(f"s3://bucket/{prefix}", "x", storage_options=server.options)
    assert by_url[...].tolist() == zd.open_array(place, "x")[...].tolist() == [1, 2, 3, 4]
    store = open_store(place)
    assert isinstance(store, ObstoreStore | FsspecStore)
    assert store.url == f"s3://bucket/{prefix}"
    assert server.secret.encode() not in pickle.dumps(store)
    assert np.array_equal(array.to_dask().compute(scheduler="threads"), [1, 2, 3, 4])


def session_of_aiobotocore(server):
    session = get_session()
    session.set_credentials(server.key, server.secret)
    return session


def session_of_boto3(server):
    return boto3.Session(aws_access_key_id=server.key, aws_secret_access_key=server.secret)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("make", [session_of_aiobotocore, session_of_boto3])
def test_a_session_is_its_keys(server, prefix, make, backend):
    options = {**server.options, "session": make(server), "backend": backend}
    del options["key"], options["secret"]
    url = f"s3://bucket/{prefix}"
    array = zd.create_array(url, shape=4, dtype="i4", chunks=2, storage_options=options)
    array[...] = [1, 2, 3, 4]
    assert zd.open_array(url, storage_options=server.options)[...].tolist() == [1, 2, 3, 4]
    assert server.secret.encode() not in pickle.dumps(array)


def test_a_session_without_keys_is_its_profile(monkeypatch, tmp_path):
    (tmp_path / "config").write_text("[profile other]\nregion = us-west-2\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for session in (AioSession(profile="other"), boto3.Session(profile_name="other")):
        assert without_session({"session": session, "anon": False}) == {
            "profile": "other",
            "anon": False,
        }
    assert without_session({"session": get_session()}) == {}
    assert without_session({"session": 3}) == {"session": 3}


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_a_cache_of_fsspec_is_known_elsewhere(server, prefix, cache):
    """It can be pickled, as the memory of this process cannot."""
    given = {"target_protocol": "s3", "target_options": server.options}
    fs = fsspec.filesystem(cache, **given)
    by_url = zd.create_array(
        f"s3://bucket/{prefix}", shape=(4,), dtype="i4", chunks=2, storage_options=server.options
    )
    by_url[...] = [1, 2, 3, 4]
    store = open_store(fs.get_mapper(f"bucket/{prefix}"))
    assert store.url == f"{cache}::s3://bucket/{prefix}"
    assert zd.open_array(store)[...].tolist() == [1, 2, 3, 4]
    assert pickle.loads(pickle.dumps(store)).url == store.url
    assert zd.open_array(fs, f"bucket/{prefix}")[...].tolist() == [1, 2, 3, 4]


def credentials():
    return {"access_key_id": "key", "secret_access_key": "secret", "expires_at": None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"request_payer": True}, "it is called requester_pays"),
        ({"ServerSideEncryption": "AES256"}, "it is called server_side_encryption"),
        ({"acl": "private"}, "it is called s3_additional_kwargs={'ACL': ...}"),
        ({"colour": "red"}, "the storage option 'colour' is not known here"),
        ({"credential_provider": credentials, "backend": "fsspec"}, "is for obstore, and fsspec"),
        ({"credential_provider": credentials, "max_paths": 9}, "does not know the options ['max_"),
        (
            {"credential_provider": lambda: {"key": "k"}},
            "pass that, or give key",
        ),
    ],
)
def test_options_that_are_none_are_named_when_a_store_is_opened(options, words):
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket/a", {"region": "us-east-1", **options})
    assert words in str(caught.value)


def test_a_file_system_and_a_path(server, prefix, tmp_path):
    fs = fsspec.filesystem("s3", **server.options)
    zd.create_array(fs, f"bucket/{prefix}", shape=(3,), dtype="i4", fill_value=5)
    found = zd.open_array(f"s3://bucket/{prefix}", storage_options=server.options)
    assert found[...].tolist() == zd.open_array(fs, f"bucket/{prefix}")[...].tolist() == [5] * 3
    local = fsspec.filesystem("file")
    zd.create_array(local, f"{tmp_path}/a"[1:], shape=(3,), dtype="i4")
    assert isinstance(zd.open_array(tmp_path / "a").store.store, LocalStore)
    with pytest.raises(StoreError, match="names no place by itself: give path="):
        zd.open(fs)


def test_mappers_and_folders_of_files_are_files(tmp_path):
    local = fsspec.filesystem("file")
    folder = DirFileSystem(str(tmp_path), local)
    places = [
        (local.get_mapper(f"{tmp_path}/a"), ""),
        (folder.get_mapper("b"), ""),
        (folder, "c"),
        (local, f"{tmp_path}/d"),
    ]
    for place, path in places:
        zd.create_array(place, path, shape=(3,), dtype="i4", fill_value=5)
    for name in "abcd":
        assert isinstance(zd.open_array(tmp_path / name).store.store, LocalStore)
    assert isinstance(open_store(places[0][0]), LocalStore)
    assert isinstance(open_store(places[1][0]), LocalStore)


def test_files_and_memory_of_obstore(tmp_path):
    folder = obstore.store.LocalStore(tmp_path)
    zd.create_array(folder, "a", shape=(3,), dtype="i4", fill_value=5)
    assert zd.open_array(tmp_path / "a")[...].tolist() == [5] * 3
    memory = obstore.store.MemoryStore()
    zd.create_array(memory, "g/a", shape=(3,), dtype="i4", chunks=1)[...] = [1, 2, 3]
    assert bytes(memory.get("g/a/zarr.json").bytes()).startswith(b"{")
    assert zd.open_array(memory, "g/a")[...].tolist() == [1, 2, 3]
    assert isinstance(open_store(memory), MemoryStore)
    assert open_store(memory).identity == open_store(memory).identity
    assert list(zd.open_group(memory, "g")) == ["a"]
    zd.delete(memory, "g/a")
    left = [one["path"] for page in memory.list() for one in page]
    assert left == ["g/zarr.json", "zarr.json"]


def test_what_has_no_name_here_is_refused():
    given = {"bucket": "b", "region": "r", "skip_signature": True}
    odd = obstore.store.S3Store(**given, checksum_algorithm="SHA256")
    with pytest.raises(StoreError, match="given with \\['checksum_algorithm'\\]"):
        open_store(odd)
    asked = obstore.store.S3Store("b", region="r", credential_provider=lambda: None)
    with pytest.raises(StoreError, match="define a function at the top of a module"):
        open_store(asked)


def test_azure_google_and_http_of_obstore():
    azure = obstore.store.AzureStore("c", account_name="n", account_key="YWE=", prefix="p")
    store = open_store(azure)
    assert (store.url, store.settings()) == (
        "az://c/p",
        {"account_name": "n", "account_key": "YWE="},
    )
    store = open_store(obstore.store.GCSStore("b", skip_signature=True))
    assert (store.url, store.settings()) == ("gs://b", {"anon": True})
    store = open_store(obstore.store.HTTPStore.from_url("https://example.com/a"))
    assert (type(store), store.url) == (ObstoreStore, "https://example.com/a")


def test_a_repository_of_icechunk_is_its_main_branch(tmp_path):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    zd.create_array(session, "a", shape=(3,), dtype="i4", fill_value=5)
    session.commit("one")
    assert zd.open_array(repository, "a")[...].tolist() == [5] * 3
    with pytest.raises(PermissionError):
        zd.create_array(repository, "b", shape=(3,), dtype="i4")


def test_an_unknown_scheme_is_met_with_a_similar_one():
    with pytest.raises(StoreError, match=r"Protocol not known: htp\. Did you mean 'http'\?"):
        open_store("htp://x/y")
