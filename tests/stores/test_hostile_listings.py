"""Services whose listings say what cannot be: a typed error at once, and nothing is believed."""

from __future__ import annotations

import json
from itertools import count
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.object_stores import AZURE_ACCOUNT, connection_string
from zarr_dask.errors import StoreError
from zarr_dask.stores.open import open_store

pytest.importorskip("s3fs")
pytest.importorskip("obstore")

GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
VALUES = {"bucket/g/zarr.json": GROUP, "bucket/g/a/zarr.json": GROUP, "bucket/g/a/c/0": b"value"}
SIZES = {
    "negative": "-5",
    "large": str(1 << 63),
    "long": "9" * 5000,
    "no number": "NaN",
    "none": "",
}
OUTSIDE = {"beside": "gg/b/zarr.json", "above": "zarr.json", "at the root": "/g/b/zarr.json"}
PAGES = ("one token", "new tokens", "no token", "empty", "repeated")
OF_S3FS = ("large", "no token", "empty", "at the root")
"""Lies that the library behind obstore takes in, or hides."""
MOST_REQUESTS = 1000
"""Requests of one call: of pages that are empty 256 are taken, and obstore gathers 1,000 keys."""
ENDLESS, OF_FOLDERS = ("one token", "new tokens"), ("list_dir", "members", "tree")
CALLS = {
    "list": lambda store: list(store.list()),
    "list_sizes": lambda store: list(store.list_sizes()),
    "list_dir": lambda store: store.list_dir(),
    "members": lambda store: list(zd.open_group(store)),
    "tree": lambda store: str(zd.open_group(store).tree()),
    "delete": lambda store: store.delete_prefix(""),
}


class Lying(Files):
    """A bucket whose listings lie."""

    lie = ""
    numbers = count()

    def do_GET(self):  # noqa: N802
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" not in asked:
            super().do_GET()
            return
        self.seen.append(("LIST", self.path, None))
        body = self.page(*(asked.get(name, [""])[0] for name in ("prefix", "delimiter")))
        self.answer(200, body.encode(), [("Content-Type", "application/xml")])

    def page(self, prefix, delimiter):
        lie, keys = self.lie, [key.removeprefix("bucket/") for key in self.values]
        keys = [key for key in keys if key.startswith(prefix)]
        names = [key.removeprefix(prefix) for key in keys]
        folders = {f"{prefix}{name.partition('/')[0]}/" for name in names if "/" in name}
        if delimiter:
            keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
        if lie == "a folder's object":
            keys = [prefix, *keys]
        if lie in OUTSIDE:
            keys.append(OUTSIDE[lie])
        new = f"{next(self.numbers)}"
        token = {"one token": "a", "new tokens": new, "empty": new}.get(lie)
        if lie == "empty":
            keys, folders = [], set()
        if lie == "repeated":
            keys += [f"{prefix}x"] * 1000
        more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        is_cut = "true" if token or lie == "no token" else "false"
        told = [f"<IsTruncated>{is_cut}</IsTruncated>{more}"]
        size = SIZES.get(lie, "5")
        told += [f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>{REST}" for key in keys]
        if delimiter:
            told += [f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in folders]
        return f"<ListBucketResult>{''.join(told)}</ListBucketResult>"


REST = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>1</ETag></Contents>"


@pytest.fixture(params=["fsspec", "obstore"])
def backend(request):
    return request.param


def opened(endpoint, backend):
    client = {"endpoint_url": endpoint.rstrip("/"), "region_name": "us-east-1"}
    retry = {"attempts": 2, "wait": 0.01}
    given = {"key": "k", "secret": "s", "client_kwargs": client, "backend": backend}
    return open_store("s3://bucket/g", {**given, "retry": retry})


class LyingFiles(MemoryFileSystem):
    """A file system of another kind whose listings lie."""

    protocol = "lying"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    told: ClassVar[dict[str, object]] = {}

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **_):
        return self.told if detail else list(self.told)


@pytest.mark.parametrize("size", [-5, 1 << 63, "9" * 5000, "many", float("nan"), float("inf"), []])
def test_sizes_of_other_file_systems_are_checked(size, monkeypatch):
    register_implementation("lying", LyingFiles, clobber=True)
    store = open_store("lying://g", {"backend": "fsspec"})
    store.set("a", [b"value"])
    _, root = store._file_system()
    monkeypatch.setattr(LyingFiles, "told", {f"{root}/a": {"size": size, "type": "file"}})
    with pytest.raises(StoreError, match="is no number of bytes"):
        list(store.list_sizes())
    monkeypatch.setattr(LyingFiles, "told", {f"{root}/a": {"size": 5, "type": "file"}})
    assert list(store.list_sizes()) == [("a", 5)]
    monkeypatch.setattr(LyingFiles, "told", {f"elsewhere{root}/a": {"size": 5, "type": "file"}})
    for call in (store.list, store.list_sizes):
        with pytest.raises(StoreError, match="does not lie there"):
            list(call())


@pytest.mark.parametrize("lie", [*SIZES, *OUTSIDE, *PAGES])
def test_a_listing_that_lies_is_a_typed_error(backend, lie):
    if backend == "obstore" and lie in OF_S3FS:
        pytest.skip("the library says nothing of it")
    with serving(type("Handler", (Lying,), {"lie": lie}), VALUES) as (endpoint, seen):
        store = opened(endpoint, backend)
        for name, call in CALLS.items():
            if backend == "obstore" and lie in ENDLESS and name in OF_FOLDERS:
                continue  # the library gathers all pages before it gives any away
            before = len(seen)
            with pytest.raises(StoreError, match="could not list"):
                call(store)
            assert len(seen) - before <= MOST_REQUESTS
        assert {method for method, *_ in seen} <= {"GET", "HEAD", "LIST"}


def test_an_object_that_some_tools_make_of_a_folder_is_none(backend):
    handler = type("Handler", (Lying,), {"lie": "a folder's object"})
    with serving(handler, VALUES) as (endpoint, _):
        store = opened(endpoint, backend)
        assert sorted(store.list()) == ["a/c/0", "a/zarr.json", "zarr.json"]
        assert store.list_dir() == (["zarr.json"], ["a/"])
        assert list(zd.open_group(store)) == ["a"]


UPLOADS = {
    "one marker": ("a", "a"),
    "new markers": ("a", "{new}"),
    "no marker": (None, None),
    "empty": ("{new}", "{new}"),
    "no time": (None, None),
    "beside": (None, None),
}
"""By lie, the markers that a page of unfinished uploads names."""


class LyingUploads(Lying):
    """A bucket whose listings of unfinished uploads lie."""

    def page(self, prefix, delimiter):
        new, lie = f"{next(self.numbers)}", self.lie
        key, upload = (text and text.format(new=new) for text in UPLOADS.get(lie, (None, None)))
        told = f"<NextKeyMarker>{key}</NextKeyMarker>" if key else ""
        told += f"<NextUploadIdMarker>{upload}</NextUploadIdMarker>" if upload else ""
        is_cut = "true" if key or lie == "no marker" else "false"
        time = "soon" if lie == "no time" else "2026-01-01T00:00:00.000Z"
        at = "gg/c/0" if lie == "beside" else f"{prefix}c/0"
        one = f"<Key>{at}</Key><UploadId>u</UploadId><Initiated>{time}</Initiated>"
        one = "" if lie == "empty" else f"<Upload>{one}</Upload>"
        told += f"<IsTruncated>{is_cut}</IsTruncated>{one}"
        return f"<ListMultipartUploadsResult>{told}</ListMultipartUploadsResult>"

    def do_GET(self):  # noqa: N802
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" not in asked:
            super().do_GET()
            return
        self.seen.append(("LIST", self.path, None))
        body = self.page(asked.get("prefix", [""])[0], "")
        self.answer(200, body.encode(), [("Content-Type", "application/xml")])


@pytest.mark.parametrize("lie", [*UPLOADS, ""])
def test_a_listing_of_unfinished_uploads_that_lies_is_a_typed_error(backend, lie):
    with serving(type("Handler", (LyingUploads,), {"lie": lie}), VALUES) as (endpoint, seen):
        store = opened(endpoint, backend)
        if not lie:
            ((key, upload, _),) = store.list_uploads("")
            assert (key, upload) == ("c/0", "u")
            return
        with pytest.raises(StoreError, match="could not list"):
            store.list_uploads("")
        assert len(seen) <= MOST_REQUESTS


AZURE_SIZES = {"long": "9" * 5000, "float": "5.5", "no number": "NaN", "negative": "-5"}
AZURE_KEYS = {
    "dots": ["g/../other/zarr.json"],
    "repeated": ["g/x", "g/x"],
    "beside": ["gg/x"],
}
AZURE_PAGES = ("one token", "new tokens", "empty")
AZURE_ANSWERS = {"html": b"<html>Welcome</html>", "no text": b"\xff\xfe{"}


class LyingAzure(Files):
    """A container whose listings lie, and which takes note of what is deleted."""

    lie = ""
    numbers = count()

    def do_GET(self):  # noqa: N802
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if asked.get("comp") != ["list"]:
            super().do_GET()
            return
        given = (asked.get(name, [""])[0] for name in ("prefix", "delimiter"))
        body = AZURE_ANSWERS.get(self.lie) or self.page(*given).encode()
        self.answer(200, body, [("Content-Type", "application/xml")])

    def do_DELETE(self):  # noqa: N802
        self.seen.append((self.command, self.path, None))
        self.answer(202)

    def listed(self, prefix, delimiter):
        """The keys of a page, and the folders that lie right below its prefix."""
        self.seen.append(("LIST", self.path, None))
        keys = [*(key.removeprefix("bucket/") for key in VALUES), *AZURE_KEYS.get(self.lie, ())]
        keys = [key for key in keys if key.startswith(prefix) or self.lie == "beside"]
        names = [key.removeprefix(prefix) for key in keys]
        folders = {f"{prefix}{name.partition('/')[0]}/" for name in names if "/" in name}
        if delimiter:
            keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
        return keys, folders

    def page(self, prefix, delimiter):
        keys, folders = self.listed(prefix, delimiter)
        size = AZURE_SIZES.get(self.lie, "5")
        time = "Thu, 01 Jan 2026 00:00:00 GMT"
        told = [
            f"<Blob><Name>{escape(key)}</Name><Properties><Creation-Time>{time}</Creation-Time>"
            f"<Last-Modified>{time}</Last-Modified><Etag>1</Etag><Content-Length>{size}"
            "</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for key in keys
        ]
        folders |= {""} if self.lie == "no name" else set()
        if delimiter:
            told += [f"<BlobPrefix><Name>{one}</Name></BlobPrefix>" for one in folders]
        told = [] if self.lie == "empty" else told
        new = f"{next(self.numbers)}"
        marker = {"one token": "a", "new tokens": new, "empty": new}.get(self.lie, "")
        return (
            f'<EnumerationResults ServiceEndpoint="http://x/" ContainerName="bucket"><Prefix>'
            f"{prefix}</Prefix><Blobs>{''.join(told)}</Blobs><NextMarker>{marker}</NextMarker>"
            "</EnumerationResults>"
        )


def test_a_folder_of_azure_without_a_name_is_a_typed_error():
    with serving(type("Handler", (LyingAzure,), {"lie": "no name"}), {}) as (endpoint, _):
        store = opened_azure(endpoint, "fsspec")
        for call in OF_FOLDERS:
            with pytest.raises(StoreError, match="could not list"):
                CALLS[call](store)


def opened_azure(endpoint, backend, path="/g"):
    if backend == "fsspec":
        pytest.importorskip("adlfs")
    told = connection_string(f"{endpoint}/{AZURE_ACCOUNT}")
    given = {"connection_string": told, "backend": backend}
    return open_store(f"az://bucket{path}", {**given, "retry": {"attempts": 2, "wait": 0.01}})


@pytest.mark.parametrize("lie", [*AZURE_SIZES, *AZURE_KEYS, *AZURE_ANSWERS, *AZURE_PAGES])
def test_what_a_listing_of_azure_must_not_say_is_a_typed_error(backend, lie):
    calls = {"list", "list_sizes", "delete"}
    if backend == "fsspec" and lie != "beside":
        calls |= {"list_dir"}
    if backend == "obstore" and lie == "empty":
        pytest.skip("the library asks for the next page without end, and says nothing of it")
    with serving(type("Handler", (LyingAzure,), {"lie": lie}), {}) as (endpoint, seen):
        store = opened_azure(endpoint, backend)
        for call in sorted(calls):
            before = len(seen)
            with pytest.raises(StoreError, match="could not list"):
                CALLS[call](store)
            assert len(seen) - before <= MOST_REQUESTS
        assert not [one for one in seen if one[0] == "DELETE"]


GOOGLE_SIZES = {"long": "9" * 5000, "float": "5.5", "no number": "NaN", "negative": "-5"}
GOOGLE_ANSWERS = {"html": b"<html>Welcome</html>", "no text": b"\xff\xfe{", "no object": b"[]"}


class LyingGoogle(LyingAzure):
    """A bucket of Google's whose listings lie."""

    def do_GET(self):  # noqa: N802
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        given = (asked.get(name, [""])[0] for name in ("prefix", "delimiter"))
        body = GOOGLE_ANSWERS.get(self.lie) or self.page(*given).encode()
        self.answer(200, body, [("Content-Type", "application/json")])

    def page(self, prefix, delimiter):
        keys, folders = self.listed(prefix, delimiter)
        size = GOOGLE_SIZES.get(self.lie, "5")
        items = [{"name": key, "bucket": "bucket", "size": size} for key in keys]
        told = {"items": items, "prefixes": sorted(folders) if delimiter else []}
        told = {} if self.lie == "empty" else told
        new = f"{next(self.numbers)}"
        token = {"one token": "a", "new tokens": new, "empty": new}.get(self.lie)
        return json.dumps({"kind": "storage#objects", "nextPageToken": token, **told})


@pytest.mark.parametrize("lie", [*GOOGLE_SIZES, *AZURE_KEYS, *GOOGLE_ANSWERS, *AZURE_PAGES])
def test_what_a_listing_of_google_must_not_say_is_a_typed_error(lie):
    pytest.importorskip("gcsfs")
    with serving(type("Handler", (LyingGoogle,), {"lie": lie}), {}) as (endpoint, seen):
        given = {"token": "anon", "endpoint_url": endpoint.rstrip("/"), "backend": "fsspec"}
        store = open_store("gs://bucket/g", {**given, "retry": {"attempts": 2, "wait": 0.01}})
        for call in ("list", "list_sizes", "delete", *(["list_dir"] if lie != "beside" else [])):
            before = len(seen)
            with pytest.raises(StoreError, match="could not list"):
                CALLS[call](store)
            assert len(seen) - before <= MOST_REQUESTS
        assert not [one for one in seen if one[0] == "DELETE"]


@pytest.mark.parametrize("path", ["", "/g"])
def test_all_that_is_deleted_from_azure_are_objects_that_are_listed(path):
    """Its library would delete the container as well, or an object that is named as the folder."""
    with serving(LyingAzure, {}) as (endpoint, seen):
        opened_azure(endpoint, "fsspec", path).delete_prefix("")
        deleted = {at.partition("?")[0] for method, at, _ in seen if method == "DELETE"}
    assert deleted == {f"/{AZURE_ACCOUNT}/{key}" for key in VALUES}
