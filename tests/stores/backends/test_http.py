"""HTTP: what servers answer, well and badly."""

import contextlib
import os
import pickle

import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.http_server import Files, WithoutRanges, serving
from zarr_dask.errors import (
    ListingError,
    MetadataError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.formats.base import read_documents
from zarr_dask.stores import MemoryStore, Range, Store, open_store
from zarr_dask.stores.backends.http import HTTPStore
from zarr_dask.stores.retry import RetryPolicy

VALUES = {"a/b": b"0123456789", "empty": b"", "a/ü +%?#&/日本": b"unicode", "top": b"t"}
RANGES = [
    *(Range(0), Range(2, 5), Range(3, None), Range(-4), Range(-100), Range(0, 0), Range(5, 5)),
    *(Range(8, 100), Range(100, 200), Range(100), Range(0, 10), Range(0, 9), Range(1, 10)),
]


def in_memory():
    store = MemoryStore()
    store.values.update(VALUES)
    return store


@pytest.fixture(params=[Files, WithoutRanges])
def store(request):
    with serving(request.param, {f"served/{key}": value for key, value in VALUES.items()}) as found:
        yield open_store(f"{found[0]}/served/")


def test_values(store):
    assert isinstance(store, Store)
    for key, value in VALUES.items():
        assert store.get(key) == store.get_transient(key) == value
        assert store.size(key) == len(value)
    for key in ("a", "b", "TOP", "a/ü +%?#&"):  # some of them are folders
        assert store.get(key) is None
        assert store.size(key) is None


@pytest.mark.parametrize("wanted", RANGES)
def test_ranges_are_those_of_a_slice(store, wanted):
    requests = [(key, wanted) for key in ["a/b", "top", "empty", "nothing"]]
    assert store.get_ranges(requests) == in_memory().get_ranges(requests)
    assert store.get_ranges(requests[:1]) == in_memory().get_ranges(requests[:1])


def test_what_http_cannot(store):
    for change in (
        lambda: store.set("a", [b""]),
        lambda: store.delete("a"),
        lambda: store.delete_prefix("a/"),
        lambda: zd.create_array(store, shape=(1,), dtype="i1"),
        lambda: zd.create_group(store, "g"),
    ):
        with pytest.raises(ReadOnlyError):
            change()
    for look in (lambda: store.list("a/"), lambda: store.list_dir("a/")):
        with pytest.raises(ListingError, match="HTTP has no listing"):
            look()
    with pytest.raises(StoreKeyError):
        store.get("../x")


def test_only_what_is_wanted_is_asked_for():
    with serving(Files, {"x": bytes(1000)}) as (url, seen):
        store = open_store(url)
        store.get_ranges([("x", Range(10, 20)), ("x", Range(-5))])
        assert sorted(seen) == [("GET", "x", "bytes=-5"), ("GET", "x", "bytes=10-19")]


def test_pickles_without_its_connections(store):
    store.get("top")
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert again.get("top") == b"t"


def test_a_child_after_a_fork_has_connections_of_its_own(store):
    store.get("top")
    child = os.fork()
    if not child:
        os._exit(0 if store.get("a/b") == VALUES["a/b"] else 1)
    assert store.get("top") == b"t"
    assert os.waitpid(child, 0)[1] == 0


class Odd(Files):
    """Behaves as the name of what is asked for says."""

    def do_GET(self):  # noqa: C901, N802
        path = self.path.partition("?")[0]
        name = path.rsplit("/", 1)[-1]
        if name.isdigit():
            self.answer(int(name))
        elif name == "moved":
            self.answer(302, headers=[("Location", "/here?token=1")])
        elif name == "here":
            self.answer(200, b"found" if self.path.endswith("?token=1") else b"")
        elif name == "round":
            self.answer(302, headers=[("Location", "/round")])
        elif name == "file":
            self.answer(302, headers=[("Location", "file:///etc/passwd")])
        elif name == "packed":
            self.answer(200, b"?", [("Content-Encoding", "gzip")])
        elif name == "short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
        elif name == "elsewhere":
            self.answer(206, b"01", [("Content-Range", "bytes 7-8/10")])
        elif name == "untold":
            self.answer(206, b"01")
        elif name == "hangup":
            self.close_connection = True
        elif name == "secret":
            known = self.headers.get("Authorization") == "Bearer x" and self.path.endswith("?key=1")
            self.answer(200 if known else 401)
        else:
            self.answer(404)

    do_HEAD = do_GET  # noqa: N815


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("500", "answers 500 Internal Server Error"),
        ("403", "answers 403 Forbidden"),
        ("204", "answers 204"),
        ("416", "answers 416"),
        ("299", "answers 299"),
        ("round", "more than 5 redirects"),
        ("file", "which is not HTTP"),
        ("packed", "encoded as 'gzip'"),
        ("short", "IncompleteRead"),
        ("hangup", "could not read"),
        ("untold", "answers 206"),
    ],
)
def test_failures_are_no_absence(key, says):
    with serving(Odd, {}) as (url, _):
        store = open_store(url, {"retry": RetryPolicy(attempts=3, wait=0.01)})
        with pytest.raises(StoreError, match=says):
            store.get(key)
        with pytest.raises(StoreError, match=says):
            store.get_ranges([(key, Range(0)), ("404", Range(0))])


def test_other_answers():
    with serving(Odd, {}) as (url, _):
        store = open_store(url)
        assert store.get("moved") == b"found"
        assert store.get("404") is store.get("410") is None
        for key in ("elsewhere", "untold"):
            with pytest.raises(StoreError, match=r"asked for .*3"):
                store.get_ranges([(key, Range(3, 5))])
        assert store.get("moved") == b"found"


def test_headers_and_tokens_are_sent_and_not_shown():
    with serving(Odd, {}) as (url, _):
        store = open_store(f"{url}?key=1", {"headers": {"Authorization": "Bearer x"}})
        assert store.get("secret") == b""
        for text in (store.url, store.identity, repr(store)):
            assert "Bearer" not in text
            assert "key=1" not in text
        assert store.identity != open_store(url).identity
        with pytest.raises(StoreError, match="401"):
            open_store(url).get("secret")


class NoEnds(Files):
    """Knows no ranges from the end, and says so by the status that is asked for."""

    def answer_part(self, value, wanted):
        if wanted[1]:
            super().answer_part(value, wanted)
        else:
            self.answer(int(self.path.rsplit("/", 2)[1]))

    do_HEAD = Files.do_GET  # noqa: N815


@pytest.mark.parametrize("status", [400, 416, 500, 501])
def test_servers_that_know_no_ranges_from_the_end(status):
    values = {f"{status}/a": bytes(range(100)), f"{status}/short": b"12", f"{status}/empty": b""}
    with serving(NoEnds, values) as (url, seen):
        store = open_store(f"{url}/{status}", {"retry": None})
        wanted = [(key, Range(-7)) for key in ("a", "short", "empty", "no")]
        assert store.get_ranges(wanted) == [bytes(range(93, 100)), b"12", b"", None]
        assert ("GET", f"{status}/a", "bytes=93-99") in seen
    with serving(Odd, {}) as (url, _), pytest.raises(StoreError, match=f"answers {status}"):
        open_store(url, {"retry": None}).get_ranges([(f"{status}", Range(-7))])


class Endless(Files):
    """Ignores ranges and does not say how much it sends, nor stop."""

    def do_GET(self):  # noqa: N802
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(bytes(1 << 16))


def test_answers_without_end_are_read_as_far_as_wanted():
    with serving(Endless, {}) as (url, _):
        store = open_store(url, {"largest": 1 << 20})
        assert store.get_ranges([("x", Range(5, 9))]) == [bytes(4)]
        for wanted in (Range(0), Range(-5), Range(0, 1 << 30)):
            with pytest.raises(StoreError, match=r"more than 1048576 bytes.*'largest'"):
                store.get_ranges([("x", wanted)])
        options = zd.ReadOptions(limits=zd.Limits(metadata_bytes=1000))
        with pytest.raises(MetadataError, match="at most 1000 bytes"):
            read_documents(store, ["zarr.json"], options.limits)


def test_values_larger_than_the_bound_are_refused():
    with serving(Files, {"x": bytes(1000)}) as (url, _):
        assert open_store(url, {"largest": 1000}).get("x") == bytes(1000)
        assert open_store(url, {"largest": 999}).get_ranges([("x", Range(-3))]) == [bytes(3)]
        with pytest.raises(StoreError, match="more than 999 bytes"):
            open_store(url, {"largest": 999}).get("x")


def test_nobody_is_there():
    with serving(Odd, {}) as (url, _):
        pass
    with pytest.raises(StoreError, match="could not read"):
        zd.open(url)


@pytest.mark.parametrize("options", [{"heder": {}}, {"client_kwargs": {}}])
def test_unknown_options(options):
    with pytest.raises(StoreError, match="not taken"):
        open_store("http://localhost/x", options)
    with pytest.raises(StoreError, match=r"not taken by http://localhost/x: HTTP takes"):
        open_store("http://me:hunter2@localhost/x?signature=1", options)
    with pytest.raises(StoreError, match="names no host"):
        HTTPStore.from_url("http:///x", {})


def test_nodes_that_are_not_there(store):
    with pytest.raises(NodeNotFoundError):
        zd.open(store, "nothing")


@pytest.mark.parametrize("format", ["v3", "v2"])
def test_groups_below_consolidated_metadata(format):
    """Nothing can be listed, and only the root knows what there is."""
    values = {}
    zd.create_group(values, format=format)
    for path in ("ocean/salt", "ocean/deep/temp"):
        array = zd.create_array(
            values, path, shape=(4,), dtype="i4", chunks=2, dimension_names=["x"], format=format
        )
        array[...] = [1, 2, 3, 4]
    zd.consolidate(values)
    with serving(Files, {f"r/{key}": bytes(value) for key, value in values.items()}) as (url, _):
        group = zd.open(f"{url}/r", "ocean")
        assert [path for path, _ in group.arrays(recursive=True)] == ["deep/temp", "salt"]
        assert group["deep"]["temp"][1] == 2
        assert [path for path, _ in group["deep"].arrays()] == ["temp"]
        options = {"engine": "zarr_dask", "group": "ocean"}
        assert xr.open_dataset(f"{url}/r", **options).salt.values.tolist() == [1, 2, 3, 4]
        tree = xr.open_datatree(f"{url}/r", **options)
        assert tree["deep/temp"].values.tolist() == [1, 2, 3, 4]
        bare = zd.open(f"{url}/r", "ocean", read=zd.ReadOptions(consolidated=False))
        with pytest.raises(ListingError, match="consolidate"):
            list(bare.arrays())


def test_archives_have_a_name_of_their_own(tmp_path):
    array = zd.create_array({}, shape=(4,), dtype="i4", chunks=2)
    array[...] = [1, 2, 3, 4]
    zd.to_zarr(array.to_dask(), tmp_path / "a.zip")
    with serving(Files, {"a.zip": (tmp_path / "a.zip").read_bytes()}) as (url, _):
        with pytest.raises(NodeNotFoundError, match=f"is read as 'zip::{url}/a.zip'"):
            zd.open(f"{url}/a.zip")
        assert zd.open_array(f"zip::{url}/a.zip")[...].tolist() == [1, 2, 3, 4]
    with (
        serving(Files, {"refs.json": b"{}"}) as (url, _),
        pytest.raises(NodeNotFoundError, match=f"are read as 'reference::{url}/refs.json'"),
    ):
        zd.open(f"{url}/refs.json")
    (tmp_path / "refs.json").write_text("{}")
    with pytest.raises(NodeNotFoundError, match=r"are read as 'reference::/.*refs\.json'"):
        zd.open(tmp_path / "refs.json")
    (tmp_path / "a.nc").write_bytes(b"CDF")
    with pytest.raises(NodeNotFoundError, match=r"a\.nc is a file, and no zip archive"):
        zd.open(tmp_path / "a.nc")


def test_no_index_is_no_empty_folder():
    """Through fsspec, whose file system says that there is nothing where it is shown nothing."""
    values = {}
    zd.create_array(values, "a", shape=(4,), dtype="i4", chunks=2)[...] = [1, 2, 3, 4]
    with serving(Files, {f"r/{key}": bytes(value) for key, value in values.items()}) as (url, _):
        options = {"backend": "fsspec"}
        array = zd.open_array(f"{url}/r", "a", storage_options=options)
        assert array[...].tolist() == [1, 2, 3, 4]
        group = zd.open_group(f"{url}/r", storage_options=options)
        for ask in (group.tree, array.nbytes_stored, lambda: zd.verify(group)):
            with pytest.raises(ListingError, match="no index"):
                ask()


class WithoutIndex(Files):
    """Forbids to list folders, as nginx does."""

    def do_GET(self):  # noqa: N802
        path = self.path.strip("/")
        if path not in self.values and any(key.startswith(f"{path}/") for key in self.values):
            self.answer(403, b"<html>forbidden</html>")
        else:
            super().do_GET()

    do_HEAD = do_GET  # noqa: N815


@pytest.mark.parametrize("backend", [None, "fsspec", "obstore"])
def test_servers_that_forbid_to_list(tmp_path, backend):
    values = {}
    zd.create_array(values, "ocean/t", shape=(4,), dtype="i4", chunks=2)[...] = [1, 2, 3, 4]
    bare = {f"bare/{key}": bytes(value) for key, value in values.items()}
    zd.consolidate(values)
    served = bare | {f"r/{key}": bytes(value) for key, value in values.items()}
    options = {"backend": backend} if backend else None
    with serving(WithoutIndex, served) as (url, _):
        group = zd.open_group(f"{url}/r", storage_options=options)
        assert "t  (4,)" in str(group.tree())
        zd.copy(f"{url}/r", tmp_path / "r.zarr", storage_options=options, verify=True)
        assert zd.open_array(tmp_path / "r.zarr", "ocean/t")[...].tolist() == [1, 2, 3, 4]
        with pytest.raises(ListingError, match="consolidate"):
            zd.open_group(f"{url}/bare", storage_options=options).tree()
