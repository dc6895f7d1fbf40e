"""Uploads in parts that were begun and not ended: found and removed, with and without an array."""

from __future__ import annotations

import pytest

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask.errors import MissingDependencyError, NodeNotFoundError, ZarrDaskWarning
from zarr_dask.jobs.verify import orphans
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.wrappers.base import PrefixStore


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture(params=["obstore", "fsspec"])
def options(server, request):
    return {**server.options, "backend": request.param}


@pytest.fixture
def place(server, request):
    """A prefix with an unfinished upload below it, and one beside it."""
    prefix = f"uploads-{abs(hash(request.node.nodeid))}"
    for key in (f"{prefix}/a/c/0", f"{prefix}/ab"):
        begun = server.admin.create_multipart_upload(Bucket="bucket", Key=key)
        given = {"Bucket": "bucket", "Key": key, "UploadId": begun["UploadId"]}
        server.admin.upload_part(**given, PartNumber=1, Body=b"0" * 10)
    return prefix


def left(server, prefix):
    found = server.admin.list_multipart_uploads(Bucket="bucket", Prefix=prefix)
    return [one["Key"].removeprefix(f"{prefix}/") for one in found.get("Uploads", ())]


@pytest.mark.parametrize("there", [False, True], ids=["no array", "array"])
def test_old_uploads_are_removed_and_young_ones_listed(server, options, place, there, monkeypatch):
    url = f"s3://bucket/{place}/a"
    if there:
        zd.create_array(url, shape=(3,), dtype="i4", storage_options=options)[...] = 1
    monkeypatch.setattr(orphans, "_OLD", 1e10)  # the server's uploads are of 2010
    report = zd.verify(url, sweep=True, storage_options=options)
    (found,) = report.findings
    assert (found.kind, found.key, report.swept) == ("temporary", "c/0", 0)
    assert "unfinished upload" in found.reason
    assert left(server, place) == ["a/c/0", "ab"]
    monkeypatch.setattr(orphans, "_OLD", -3600.0)
    report = zd.verify(url, sweep=True, storage_options=options)
    assert (report.ok, report.swept) == (True, 1)
    assert left(server, place) == ["ab"]
    if there:
        assert zd.verify(url, sweep=True, storage_options=options).ok
    else:
        with pytest.raises(NodeNotFoundError):
            zd.verify(url, sweep=True, storage_options=options)


def test_a_part_of_a_store(server, options, place, monkeypatch):
    monkeypatch.setattr(orphans, "_OLD", -3600.0)
    root = zd.stores.open_store("s3://bucket", options)
    assert zd.verify(PrefixStore(root, f"{place}/"), "a", sweep=True).swept == 1
    assert left(server, place) == ["ab"]


def test_what_lists_uploads_may_be_missing(server, place, monkeypatch):
    url, options = f"s3://bucket/{place}/a", {**server.options, "backend": "obstore"}
    zd.create_array(url, shape=(3,), dtype="i4", storage_options=options)
    assert zd.verify(url, storage_options=options).ok

    def absent(self):
        raise MissingDependencyError("no s3fs")

    monkeypatch.setattr(ObstoreStore, "_by_fsspec", absent)
    with pytest.warns(ZarrDaskWarning, match=r"unfinished uploads could not be .*no s3fs"):
        assert zd.verify(url, sweep=True, storage_options=options).ok


def test_memory_has_no_uploads():
    store = MemoryStore()
    zd.create_array(store, shape=(3,), dtype="i4")
    assert zd.verify(store, sweep=True).ok
