"""File systems of fsspec besides those of object stores: archives, references, caches, SFTP."""

from __future__ import annotations

import json
import pickle
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import dask
import dask.array as da
import fsspec
import numpy as np
import obstore.store
import pytest
import zarr

import zarr_dask as zd
from tests.support import object_stores
from tests.support.http_server import Files, serving
from zarr_dask.errors import (
    ListingError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreError,
    StoreOutOfReachError,
)
from zarr_dask.stores import Range, open_store
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.config import to_config
from zarr_dask.stores.url_secrets import split_credentials
from zarr_dask.testing.stores import StoreTests, as_bytes

VALUES = np.arange(6 * 10, dtype="f4").reshape(6, 10)
NUMBERS = count()

pytestmark = [
    # fsspec's cache of blocks leaves the closing of its files to the garbage collection
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def s3():
    with object_stores.s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def sftp(tmp_path_factory):
    with object_stores.sftp_server(tmp_path_factory.mktemp("sftp")) as server:
        yield server


class TestSFTP(StoreTests):
    atomic = False

    @pytest.fixture
    def store(self, sftp):
        store = open_store(f"{sftp.root}/{next(NUMBERS)}/a.zarr", sftp.options)
        assert isinstance(store, FsspecStore)
        return store


def test_a_repository_is_no_password():
    github = "github://owner:repository@main/a.zarr"
    assert split_credentials(github) == (github, {})
    with pytest.raises(StoreError, match="password"):
        split_credentials("s3://key:secret@bucket/a.zarr")


def test_a_password_in_a_url_is_not_shown(sftp):
    url = sftp.root.replace("//", f"//zarr:{object_stores.SECRET}@")
    options = {name: sftp.options[name] for name in ("port", "known_hosts")}
    store = open_store(f"{url}/{next(NUMBERS)}", options)
    store.set("a", [b"1"])
    assert as_bytes(store.get("a")) == b"1"
    for shown in (repr(store), store.url, store.identity, json.dumps(to_config(store))):
        assert object_stores.SECRET not in shown


def test_a_wrong_password_is_an_error(sftp):
    options = {**sftp.options, "password": "another-secret"}
    with pytest.raises(StoreError, match="sftp://127") as caught:
        open_store(f"{sftp.root}/wrong", options)
    assert "another-secret" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 500, None], ids=str)
def test_a_failure_that_fsspec_calls_an_absence_is_none(status):
    """Of HTTP it says so whatever the server answers, where it looks for the size of a value."""

    class Failing(Files):
        def do_GET(self):  # noqa: N802
            if not self.path.startswith("/c/"):
                super().do_GET()
            elif status is None:
                self.close_connection = True
            else:
                self.answer(status)

        do_HEAD = do_GET  # noqa: N815

    values = {}
    array = zd.create_array(values, shape=(8,), dtype="i4", chunks=(2,), shards=(8,), fill_value=7)
    array[...] = 1
    retry = {"attempts": 2, "wait": 0.001}
    with serving(Failing, values) as (url, _):
        array = zd.open_array(url, storage_options={"backend": "fsspec", "retry": retry})
        for ask in (
            lambda: array[:2],
            lambda: array[:],
            lambda: array.store.size("c/0"),
            lambda: array.store.get_ranges([("c/0", Range(-4)), ("c/0", Range(3, 3))]),
        ):
            with pytest.raises(StoreError):
                ask()
        peer = zd.open_array(zarr.storage.FsspecStore.from_url(url, read_only=True))
        for ask in (lambda: peer[:2], lambda: peer[:]):
            with pytest.raises(StoreError):
                ask()
    del values["c/0"]
    with serving(Files, values) as (url, _):
        peer = zd.open_array(zarr.storage.FsspecStore.from_url(url, read_only=True))
        assert peer[:2].tolist() == [7, 7]
        array = zd.open_array(url, storage_options={"backend": "fsspec", "retry": retry})
        assert array[:2].tolist() == [7, 7]


def test_what_no_index_shows_is_not_taken_for_removed():
    """The file system says that there is no such folder, which counted as removed."""
    with serving(Files, {"a/c/0": b"1", "a/zarr.json": b"{}"}) as (url, _):
        store = open_store(url, {"backend": "fsspec"})
        for prefix in ("a/", ""):
            with pytest.raises(ListingError, match="shows no index"):
                store.delete_prefix(prefix)


def test_the_end_of_a_value_whose_length_is_not_told():
    class Silent(Files):
        def answer(self, status, body=b"", headers=()):
            self.send_response(status)
            self.send_header("Connection", "close")
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.close_connection = True

    with serving(Silent, {"a": b"0123456789"}) as (url, _):
        store = open_store(url, {"backend": "fsspec"})
        assert store.size("a") == 10
        assert [*map(bytes, store.get_ranges([("a", Range(-4)), ("a", Range(2, 5))]))] == [
            b"6789",
            b"234",
        ]


# --- archives, references and caches --------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sharded array as an archive and in one file, with references to its parts."""
    folder = tmp_path_factory.mktemp("files")
    blocks = da.from_array(VALUES, chunks=(3, 5))
    zd.to_zarr(blocks, folder / "x.zip", shards=(3, 5), chunks=(1, 5))
    (folder / "raw").write_bytes(b"head" + VALUES.tobytes())
    return folder


def references(raw):
    document = {
        "zarr_format": 2,
        "shape": [6, 10],
        "chunks": [3, 10],
        "dtype": "<f4",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
    }
    chunks = {"0.0": [raw, 4, 120], "1.0": [raw, 124, 120]}
    return {"version": 1, "refs": {".zarray": json.dumps(document), **chunks}}


@pytest.fixture(scope="module")
def places(folder, s3):
    """URLs and options, by name."""
    options = s3.options
    s3.admin.upload_file(str(folder / "x.zip"), "bucket", "x.zip")
    s3.admin.upload_file(str(folder / "raw"), "bucket", "raw")
    blocks = da.from_array(VALUES, chunks=(3, 5))
    where = {"shards": (3, 5), "chunks": (1, 5), "storage_options": options}
    zd.to_zarr(blocks, "s3://bucket/x.zarr", **where)
    (folder / "references.json").write_text(json.dumps(references(f"file://{folder}/raw")))
    remote = {"remote_protocol": "s3", "remote_options": options}
    cached = {
        name: (
            f"{name}::s3://bucket/x.zarr",
            {"s3": options, name: {"cache_storage": str(folder / name)}},
        )
        for name in ("simplecache", "filecache", "blockcache")
    }
    return cached | {
        "zip of a file": (f"zip::file://{folder}/x.zip", {}),
        "zip of a bucket": ("zip::s3://bucket/x.zip", {"s3": options}),
        "references in a file": (
            "reference://",
            {"fo": str(folder / "references.json"), "remote_protocol": "file"},
        ),
        "references to a bucket": ("reference://", {"fo": references("s3://bucket/raw"), **remote}),
    }


KINDS = [
    *("simplecache", "filecache", "blockcache", "zip of a file", "zip of a bucket"),
    *("references in a file", "references to a bucket"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_chains_are_read(places, kind):
    url, options = places[kind]
    array = zd.open(url, storage_options=options)
    assert np.array_equal(array[...], VALUES)
    assert np.array_equal(array[1:5, ::3], VALUES[1:5, ::3])
    lazy = zd.from_zarr(url, storage_options=options)
    assert np.array_equal(lazy[2:, 1:].compute(scheduler="threads"), VALUES[2:, 1:])
    store = open_store(url, options)
    assert store.get("nothing") is None
    assert store.get_ranges([("nothing", Range(-3)), ("nothing", Range(2, 4))]) == [None, None]
    for shown in (repr(store), store.url, store.identity):
        assert object_stores.SECRET not in shown


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "cache" not in kind])
def test_what_would_not_be_written_is_refused(places, kind):
    url, options = places[kind]
    store = open_store(url, options)
    for change in (
        lambda: store.set("a", [b"1"]),
        lambda: store.delete("0.0"),
        lambda: store.delete_prefix(""),
    ):
        with pytest.raises(ReadOnlyError):
            change()
    assert np.array_equal(zd.open(url, storage_options=options)[...], VALUES)


def test_options_of_a_chain_are_named_by_scheme(s3, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    flat = {"client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    with pytest.raises(StoreError, match=r"zip::s3://bucket/x\.zip.*named by scheme"):
        open_store("zip::s3://bucket/x.zip", flat)


IN_MEMORY = {
    "URL": lambda name: f"memory://{name}",
    "chain": lambda name: f"simplecache::memory://{name}",
    "zarr-python's": lambda name: zarr.storage.FsspecStore.from_url(f"memory://{name}"),
    "obstore's": lambda _: zarr.storage.ObjectStore(obstore.store.MemoryStore()),
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_memory_is_of_one_process(kind):
    """Elsewhere it is empty: what is missing would be fill values, what is written lost."""
    place = IN_MEMORY[kind](f"one-process-{next(NUMBERS)}")
    source = place.rpartition("::")[2] if kind == "chain" else place
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), source, "a")
    read = zd.from_zarr(place, "a")
    assert np.array_equal(read.compute(scheduler="threads"), VALUES)
    again = pickle.dumps(open_store(place)) if kind != "obstore's" else None
    assert again is None or pickle.loads(again).get("a/zarr.json") is not None
    with pytest.raises(StoreError, match=r"is in the memory of another process|lives in this"):
        read.compute(scheduler="processes", num_workers=1)
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(StoreOutOfReachError, match="what it writes would be lost"),
    ):
        zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), place, "b")
    with pytest.raises(NodeNotFoundError):
        zd.open(source, "b")


def test_a_remote_archive_of_another_kind(s3, tmp_path):
    """Deflated, with names that lead elsewhere: fsspec's archives are read entry by entry."""
    path = tmp_path / "odd.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/zarr.json", b"{}" * 50)
        archive.writestr("../../outside", b"1")
    s3.admin.upload_file(str(path), "bucket", "odd.zip")
    store = open_store("zip::s3://bucket/odd.zip", {"s3": s3.options})
    assert as_bytes(store.get("a/zarr.json")) == b"{}" * 50
    assert as_bytes(store.get_ranges([("a/zarr.json", Range(3, 6))])[0]) == b"}{}"
    with pytest.raises(StoreError):
        store.get("../../outside")


def test_an_archive_is_asked_by_one_thread_at_a_time(folder, monkeypatch):
    """In Python 3.13.0 two at a time read bytes of other chunks, whose checksums are right."""
    store = open_store(f"zip::file://{folder}/x.zip", {})
    busy, met = threading.Lock(), threading.Event()
    original = type(store.file_system()).cat_file

    def alone(self, *args, **kwargs):
        if not busy.acquire(blocking=False):
            met.set()
            return original(self, *args, **kwargs)
        met.wait(0.1)  # for a thread that does not wait for its turn
        try:
            return original(self, *args, **kwargs)
        finally:
            busy.release()

    monkeypatch.setattr(type(store.file_system()), "cat_file", alone)
    array = zd.open(f"zip::file://{folder}/x.zip")
    with ThreadPoolExecutor(4) as threads:
        rows = list(threads.map(lambda row: array[row], range(6)))
    assert not met.is_set()
    np.testing.assert_array_equal(rows, VALUES)


def test_what_is_missing_is_said_in_our_words_where_fsspec_serves(monkeypatch):
    pytest.importorskip("adlfs")
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match=r"give storage_options=\{'account_name': .*\(adlfs: "):
        open_store("az://c/a")


@pytest.mark.parametrize("name", ["x*", "x?", "x[ab]"])
@pytest.mark.parametrize("how", ["node", "hierarchy", "rename"])
def test_removals_take_no_name_for_a_pattern(name, how):
    """File systems with folders of their own did, and removed what their `rm` found for it."""
    root = f"memory://pattern-{how}"
    removed, kept = (f"{root}/{name}", f"{root}/xa") if how == "hierarchy" else (root, root)
    paths = ("", "") if how == "hierarchy" else (name, "xa")
    for url, path in zip((removed, kept), paths, strict=True):
        zd.create_group(url, path)
        zd.create_array(url, f"{path}/y".lstrip("/"), data=[1, 2], overwrite=True)
    if how == "rename":
        zd.open_group(root, mode="r+").rename(name, "z")
        assert zd.open_array(root, "z/y")[:].tolist() == [1, 2]
    else:
        zd.delete(removed, paths[0])
    with pytest.raises(NodeNotFoundError):
        zd.open(removed, paths[0])
    assert zd.open_array(kept, f"{paths[1]}/y".lstrip("/"))[:].tolist() == [1, 2]
    files = fsspec.filesystem("memory").find(f"{root.removeprefix('memory:/')}", withdirs=True)
    assert not [one for one in files if f"/{name}" in one]
    zd.delete(kept)
