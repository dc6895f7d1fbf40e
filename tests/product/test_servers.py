"""Real storage servers on loopback: the same promises on all of them, through each backend."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support import object_stores
from tests.support.interop import ours, tensorstore_peer, zarr_python
from tests.support.interop.cases import data, matrix
from tests.support.interop.check import check
from tests.support.interop.refusals import shared
from zarr_dask.errors import (
    ConditionalWriteError,
    ListingError,
    NodeNotFoundError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.stores import Range, open_store
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.config import to_config
from zarr_dask.testing.stores import RANGES, StoreTests, as_bytes

BACKENDS = {"fsspec": FsspecStore, "obstore": ObstoreStore}
NUMBERS = count()

pytestmark = [
    # aiohttp's word on values of some megabytes
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]


@pytest.fixture(scope="module")
def moto():
    with object_stores.s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    with object_stores.azure_server(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
    with object_stores.gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    with object_stores.nginx_server(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture(scope="module")
def ceph(tmp_path_factory):
    from tests.support.ceph import ceph_server

    with ceph_server(tmp_path_factory.mktemp("ceph")) as server:
        yield server


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory):
    with object_stores.seaweedfs_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


class OnAService(StoreTests):
    backend: str
    service: str

    @pytest.fixture
    def store(self, request):
        server = request.getfixturevalue(self.service)
        store = open_store(
            f"{server.root}/{next(NUMBERS)}/a.zarr", {**server.options, "backend": self.backend}
        )
        assert isinstance(store, BACKENDS[self.backend])
        return store


class TestAzureObstore(OnAService):
    backend, service = "obstore", "azurite"


class TestAzureFsspec(OnAService):
    backend, service = "fsspec", "azurite"

    @pytest.mark.slow  # hundreds of requests; the same as above but for the backend
    def test_a_reader_sees_old_or_new(self, store):
        super().test_a_reader_sees_old_or_new(store)


class TestGoogleFsspec(OnAService):
    backend, service = "fsspec", "gcs"


class TestHTTPObstore(OnAService):
    """A server that takes and deletes values, and lists nothing."""

    backend, service, lists = "obstore", "nginx", False

    def test_a_folder_is_no_value(self, store):
        """The server shows folders as pages, which obstore, sent there, does not read."""
        store.set("a/b", [b"1"])
        once = open_store(store.url, {"backend": "obstore", "retry": None})
        with pytest.raises(StoreError, match="could not read 'a'"):
            once.get("a")


class TestCephObstore(OnAService):
    backend, service = "obstore", "ceph"
    pytestmark = pytest.mark.slow


class TestCephFsspec(OnAService):
    backend, service = "fsspec", "ceph"
    pytestmark = pytest.mark.slow


class TestSeaweedObstore(OnAService):
    backend, service = "obstore", "seaweedfs"
    pytestmark = pytest.mark.slow


class TestSeaweedFsspec(OnAService):
    backend, service = "fsspec", "seaweedfs"
    pytestmark = pytest.mark.slow


# --- with others ----------------------------------------------------------------------------------

VALUES = np.arange(6 * 10, dtype="f4").reshape(6, 10)


def places(*more: tuple[str, str], quick: tuple[str, ...] | None = None) -> list:
    """Each server with each backend that can write to it and list; `more` are others.

    Those that are not `quick`, by default all on Ceph, are for when there is time.
    """
    found = [(name, backend) for name in ("azurite", "ceph") for backend in BACKENDS]
    found += [("gcs", "fsspec"), *more]

    def marks(one):
        is_quick = one[0] != "ceph" if quick is None else "-".join(one) in quick
        return [] if is_quick else [pytest.mark.slow]

    return [pytest.param(one, marks=marks(one), id="-".join(one)) for one in found]


MOTO = [("moto", backend) for backend in BACKENDS]  # most about it is in test_stores_s3.py
NGINX = ("nginx", "obstore")  # which lists nothing


@pytest.fixture
def place(request):
    """A URL and the options that it needs."""
    name, backend = request.param
    server = request.getfixturevalue(name)
    return f"{server.root}/{next(NUMBERS)}/a.zarr", {**server.options, "backend": backend}


def of_zarr_python(url, options):
    """The place as a store of zarr-python, through the same library."""
    import zarr
    from obstore import store as clients

    told = {"client_options": {"allow_http": True}}
    if url.startswith("http"):
        return zarr.storage.ObjectStore(clients.HTTPStore.from_url(url, **told))
    bucket, _, prefix = url.partition("//")[2].partition("/")
    if url.startswith("az:") and options["backend"] == "obstore":
        told |= {
            "account_name": object_stores.AZURE_ACCOUNT,
            "account_key": object_stores.AZURE_KEY,
            "endpoint": options["connection_string"].partition("BlobEndpoint=")[2].rstrip(";"),
        }
        return zarr.storage.ObjectStore(clients.AzureStore(bucket, prefix=prefix, **told))
    theirs = {name: value for name, value in options.items() if name != "backend"}
    return zarr.storage.FsspecStore.from_url(url, storage_options=theirs)


def of_tensorstore(url, options, monkeypatch):
    """The place in tensorstore's words; it has no words for Azure, and only reads over HTTP."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme == "http":
        return {"driver": "http", "base_url": f"http://{bucket}", "path": f"/{path}/"}
    if scheme == "gs":
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", options["endpoint_url"])
        return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    return {
        "driver": "s3",
        "bucket": bucket,
        "path": f"{path}/",
        "endpoint": options["client_kwargs"]["endpoint_url"],
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "environment"},
    }


MATRIX = matrix()
FEW, MANY = 700, 100
"""Of so many cases of the matrix one is tried, where there is little time and where there is."""
QUICK = ("moto-obstore", "azurite-obstore", "nginx-obstore", "gcs-fsspec")


def subsets(peer: str) -> list:
    """Places and a part of the matrix that the peer can write and read, which differs by place."""
    written = {case.id for case in shared(MATRIX, peer, "write")}
    cases = [case for case in shared(MATRIX, peer, "read") if case.id in written]
    return [
        pytest.param(
            one.values[0],
            cases[number * 31 :: every],
            marks=one.marks if every == FEW else [pytest.mark.slow],
            id=f"{one.id}-{len(cases[number * 31 :: every])}",
        )
        for every in (FEW, MANY)
        for number, one in enumerate(places(*MOTO, NGINX, quick=QUICK))
    ]


@pytest.mark.parametrize(("place", "cases"), subsets("zarr-python"), indirect=["place"])
def test_the_matrix_through_zarr_python(place, cases):
    """What is written there is read by either as on a disk (tests/product/interop), bit for bit."""
    url, options = place
    for number, case in enumerate(cases):
        ours_at, theirs_at = f"{url}/{number}/ours", f"{url}/{number}/theirs"
        ours.write(case, open_store(ours_at, options), data(case))
        check(case, zarr_python.read(case, of_zarr_python(ours_at, options)))
        zarr_python.write(case, of_zarr_python(theirs_at, options), data(case))
        check(case, ours.read(case, open_store(theirs_at, options)))


@pytest.mark.parametrize(("place", "cases"), subsets("tensorstore"), indirect=["place"])
def test_the_matrix_through_tensorstore(place, cases, monkeypatch):
    url, options = place
    if url.startswith("az:"):
        pytest.skip("tensorstore has no driver for Azure")
    for number, case in enumerate(cases):
        ours_at, theirs_at = f"{url}/{number}/ours", f"{url}/{number}/theirs"
        ours.write(case, open_store(ours_at, options), data(case))
        theirs = of_tensorstore(ours_at, options, monkeypatch)
        check(case, tensorstore_peer.read(case, theirs))
        if theirs["driver"] != "http":  # it only reads there
            theirs = of_tensorstore(theirs_at, options, monkeypatch)
            tensorstore_peer.write(case, theirs, data(case))
            seen = ours.read(case, open_store(theirs_at, options))
            check(case, seen, attributes=case.format in tensorstore_peer.WRITES_ATTRIBUTES)


@pytest.mark.parametrize("place", places(), indirect=True)
def test_zarr_python_reads_a_hierarchy_and_back(place):
    import zarr

    url, options = place
    group = zd.create_group(url, storage_options=options)
    array = group.create_array("ours", shape=(6, 10), chunks=(2, 5), shards=(6, 5), dtype="f4")
    array[...] = VALUES
    foreign = of_zarr_python(url, options)
    assert np.array_equal(zarr.open_group(foreign, mode="r")["ours"][...], VALUES)
    written = zarr.create_array(
        foreign, name="theirs", shape=(6, 10), chunks=(3, 5), shards=(6, 5), dtype="f4"
    )
    written[...] = VALUES
    opened = zd.open(url, "theirs", storage_options=options)
    assert np.array_equal(opened[...], VALUES)
    assert np.array_equal(opened[1:5, ::3], VALUES[1:5, ::3])  # the end of a shard, and parts
    names = sorted(name for name, _ in zd.open(url, storage_options=options).children())
    assert names == ["ours", "theirs"]


@pytest.mark.parametrize("place", places(), indirect=True)
def test_dask_writes_and_reads(place):
    url, options = place
    x = da.from_array(VALUES, chunks=(3, 5))
    zd.to_zarr(x, url, shards=(3, 5), chunks=(1, 5), storage_options=options, resume="job")
    again = zd.from_zarr(url, storage_options=options)
    assert np.array_equal(again[:, 2:7].compute(scheduler="threads"), VALUES[:, 2:7])
    assert zd.verify(url, storage_options=options).ok


@pytest.mark.parametrize(
    "place", places(*MOTO, quick=("moto-obstore", "azurite-obstore")), indirect=True
)
def test_what_a_job_keeps_in_the_same_service(place):
    """The options of the target are those of journals, manifests and arrays between."""
    url, options = place
    journal, manifest, temp = (f"{url}-{name}" for name in ("journal", "manifest", "temp"))
    x = da.from_array(VALUES + 1, chunks=(3, 5))
    zd.to_zarr(x, url, storage_options=options, resume="job", journal=journal, manifest=manifest)
    assert len(zd.Manifest.read(manifest, options).objects) == 5
    assert zd.verify(url, storage_options=options, manifest=manifest).ok
    array = zd.open_array(url, storage_options=options)
    digest = zd.digest(array, manifest=manifest)
    assert zd.Manifest.read(manifest, options).digest == digest
    plan = zd.plan_rechunk(
        array, f"{url}-2", chunks=(6, 1), temp=temp, storage_options=options, threads=1
    )
    plan.run(journal=journal)
    zd.copy(array, f"{url}-3", target_options=options, journal=journal, resume=True)
    assert zd.compare(array, zd.open(f"{url}-3", storage_options=options))
    left = {key.partition("/")[0] for key in open_store(url.rpartition("/")[0], options).list()}
    assert left == {"a.zarr", "a.zarr-2", "a.zarr-3", "a.zarr-manifest", "a.zarr-journal"}


def test_a_server_without_listing_is_written(nginx):
    """Nothing can be resumed there, but everything can be written by its name."""
    url, options = f"{nginx.root}/{next(NUMBERS)}/a.zarr", {"backend": "obstore"}
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), url, storage_options=options)
    array = zd.open_array(url, storage_options=options)
    zd.rechunk(array, f"{url}-2", chunks=(6, 2), storage_options=options, verify=True)
    zd.copy(array, f"{url}-3", target_options=options, verify=True)
    for name in (f"{url}-2", f"{url}-3"):
        assert np.array_equal(zd.open_array(name, storage_options=options)[...], VALUES)
    with pytest.raises(ListingError):
        zd.to_zarr(da.from_array(VALUES), f"{url}-4", storage_options=options, resume=True)


@pytest.mark.parametrize("place", places(), indirect=True)
def test_both_backends_understand_the_same_options(place):
    url, options = place
    open_store(url, options).set("a", [b"1"])
    for backend in BACKENDS:
        if not url.startswith("gs:") or backend == "fsspec":
            assert as_bytes(open_store(url, {**options, "backend": backend}).get("a")) == b"1"


AZURE_OPTIONS = {
    "connection string": lambda endpoint: {
        "connection_string": object_stores.connection_string(endpoint)
    },
    "endpoint": lambda endpoint: {
        "account_name": object_stores.AZURE_ACCOUNT,
        "account_key": object_stores.AZURE_KEY,
        "endpoint_url": endpoint,
    },
    "endpoint with a slash": lambda endpoint: {
        "account_name": object_stores.AZURE_ACCOUNT,
        "account_key": object_stores.AZURE_KEY,
        "endpoint_url": f"{endpoint}/",
    },
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", AZURE_OPTIONS)
def test_azure_in_each_way(azurite, how, backend):
    options = {**AZURE_OPTIONS[how](azurite.endpoint), "backend": backend}
    store = open_store(f"az://bucket/{next(NUMBERS)}", options)
    store.set("a", [b"123"])
    assert as_bytes(store.get_ranges([("a", Range(-2))])[0]) == b"23"
    assert_without_secrets(store)


@pytest.mark.parametrize("backend", BACKENDS)
def test_azure_by_the_environment(azurite, backend, monkeypatch):
    told = object_stores.connection_string(azurite.endpoint)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", told)
    store = open_store(f"az://bucket/{next(NUMBERS)}", {"backend": backend})
    store.set("a", [b"123"])
    assert as_bytes(store.get("a")) == b"123"


def test_what_adlfs_would_write_and_fail_then_is_refused_before(azurite):
    """It takes the first name below the container for a host, which may have no such brackets."""
    root = f"run[{next(NUMBERS)}]"
    options = {**azurite.options, "backend": "fsspec"}
    with pytest.raises(StoreKeyError, match="brackets"):
        zd.to_zarr(da.ones(4, chunks=2), f"az://bucket/{root}", storage_options=options)
    assert [*open_store(f"az://bucket/{root}", options).list()] == []
    zd.to_zarr(da.ones(4, chunks=2), f"az://bucket/a/{root}", storage_options=options)
    assert zd.open(f"az://bucket/a/{root}", storage_options=options)[...].all()


def test_a_public_container_over_http(azurite):
    """It answers 500 to ranges from the end, where indices of shards are."""
    from azure.storage.blob import BlobServiceClient

    admin = BlobServiceClient.from_connection_string(
        object_stores.connection_string(azurite.endpoint)
    )
    with admin:
        admin.create_container("public", public_access="blob")
    zd.to_zarr(
        da.from_array(VALUES),
        "az://public/a.zarr",
        chunks=(2, 5),
        shards=(6, 10),
        storage_options=azurite.options,
    )
    array = zd.open(f"{azurite.endpoint}/public/a.zarr")
    assert array.chunks == (2, 5)
    assert np.array_equal(array[1:4, ::3], VALUES[1:4, ::3])


def test_obstore_reads_what_gcsfs_has_written(gcs):
    """The server does not know the requests by which obstore writes and lists."""
    url = f"gs://bucket/{next(NUMBERS)}"
    array = zd.create_array(
        url,
        shape=(6, 10),
        shards=(6, 5),
        chunks=(2, 5),
        dtype="f4",
        storage_options={**gcs.options, "backend": "fsspec"},
    )
    array[...] = VALUES
    store = open_store(url, {**gcs.options, "backend": "obstore"})
    assert store.get("zarr.json") is not None
    assert np.array_equal(zd.open(store)[1:5, ::3], VALUES[1:5, ::3])


def assert_without_secrets(store):
    shown = (repr(store), str(store), store.url, store.identity, json.dumps(to_config(store)))
    assert not any(object_stores.AZURE_KEY in text for text in shown)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_credentials_are_an_error_at_once(azurite, backend):
    wrong = base64.b64encode(b"a-wrong-key-that-nobody-may-see!").decode()
    options = {
        "account_name": object_stores.AZURE_ACCOUNT,
        "account_key": wrong,
        "endpoint_url": azurite.endpoint,
        "backend": backend,
    }
    store = open_store("az://bucket/a.zarr", options)
    for ask in (lambda: store.get("zarr.json"), store.list_dir, lambda: store.size("a")):
        with pytest.raises(StoreError, match=r"az://bucket/a\.zarr") as caught:
            ask()
        assert wrong not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("place", places(), indirect=True)
def test_a_bucket_that_is_not_there_is_an_error(place):
    url, options = place
    store = open_store(f"{url.partition('//')[0]}//nothing-here/a.zarr", options)
    asked = {
        "value": lambda: store.get("a"),
        "part": lambda: store.get_ranges([("a", Range(2, 4))]),
        "end": lambda: store.get_ranges([("a", Range(-4))]),
        "size": lambda: store.size("a"),
        "folder": store.list_dir,
        "all": lambda: list(store.list()),
        "set": lambda: store.set("a", [b"1"]),
    }
    for name, ask in asked.items():
        with pytest.raises(StoreError, match=r"//nothing-here/a\.zarr"):
            pytest.fail(f"{name}: {ask()}")


# --- killed ---------------------------------------------------------------------------------------

KILLED = """
import json, sys, warnings
import dask, dask.array as da
import numpy as np
import zarr_dask as zd
from zarr_dask.journal import receipts
from zarr_dask.stores import open_store
warnings.simplefilter("ignore")
receipts._LONG = 0.0  # no receipt waits for others
what, url, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def value():
    store, number = open_store(url, options), 0
    while True:
        store.set("k", [bytes([97 + number % 2]) * (1 << 20)] * (1 + number % 2))
        print(number, flush=True)
        number += 1

def assignment():
    array, number = zd.open_array(url, mode="r+", storage_options=options), 1
    while True:
        array[...] = number
        print(number, flush=True)
        number += 1

def said(block):
    print("block", flush=True)
    return block + 1

def job():
    x = da.zeros((8, 60), chunks=(1, 20), dtype="f4").map_blocks(said, dtype="f4")
    with dask.config.set(scheduler="synchronous"):
        zd.to_zarr(x, url, storage_options=options, resume=False if "http" in url else "job")

{"value": value, "assignment": assignment, "job": job}[what]()
"""


def writers(*quick: str) -> list:
    return places(*MOTO, NGINX, quick=quick)


def killed(what, place, lines):
    """Run a writer in a process of its own, and kill it when it has said so many lines."""
    url, options = place
    command = [sys.executable, "-c", KILLED, what, url, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
    assert all(said)
    return len([*said, *filter(None, rest)])


@pytest.mark.parametrize("place", writers("moto-obstore"), indirect=True)
def test_a_killed_writer_leaves_the_old_or_the_new_value(place):
    whole = {b"a" * (1 << 20), b"b" * (1 << 21)}
    killed("value", place, 2)
    store = open_store(*place)
    assert as_bytes(store.get("k")) in whole
    if not place[0].startswith("http"):
        assert list(store.list()) == ["k"]


@pytest.mark.parametrize("place", writers("nginx-obstore"), indirect=True)
def test_a_killed_assignment_leaves_old_or_new_objects(place):
    url, options = place
    array = zd.create_array(url, shape=(8, 60), chunks=(4, 20), dtype="i4", storage_options=options)
    rounds = killed("assignment", place, 3)
    found = array[...]
    for rows in (found[:4], found[4:]):
        for cell in (rows[:, :20], rows[:, 20:40], rows[:, 40:]):
            assert cell.min() == cell.max() in {rounds, rounds + 1}


@pytest.mark.parametrize("place", writers("azurite-obstore"), indirect=True)
def test_a_killed_job_is_no_array_and_is_resumed(place):
    url, options = place
    killed("job", place, 6)
    with pytest.raises(NodeNotFoundError):
        zd.open(url, storage_options=options)
    can_list = not url.startswith("http")
    x = da.zeros((8, 60), chunks=(1, 20), dtype="f4") + 1
    report = zd.to_zarr(x, url, storage_options=options, resume="job" if can_list else False)
    assert report.objects <= 20 if can_list else report.objects == 24  # 4 were there
    assert np.array_equal(zd.open(url, storage_options=options)[...], np.ones((8, 60)))
    if can_list:
        assert zd.verify(url, storage_options=options).ok


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "obstore", "fsspec"])
def test_a_hierarchy_without_listing_is_read_from_consolidated_metadata(nginx, backend):
    url = f"{nginx.root}/{next(NUMBERS)}/a.zarr"
    written = open_store(url, {"backend": "obstore"})
    group = zd.create_group(written)
    array = group.create_array("b/c", shape=(6, 10), chunks=(2, 5), shards=(6, 5), dtype="f4")
    array[...] = VALUES
    keys = ("zarr.json", "b/zarr.json", "b/c/zarr.json")  # what is not listed cannot be walked
    documents = {key: as_bytes(written.get(key)) for key in keys}
    zd.consolidate(documents)
    written.set("zarr.json", [documents["zarr.json"]])
    opened = zd.open(url, storage_options={"backend": backend} if backend else None)
    assert [path for path, _ in opened.arrays(recursive=True)] == ["b/c"]
    assert np.array_equal(opened["b/c"][1:5, ::3], VALUES[1:5, ::3])


# --- servers that misbehave -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def rclone(tmp_path_factory):
    with object_stores.rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="module")
def s3rver(tmp_path_factory):
    with object_stores.s3rver_server(tmp_path_factory.mktemp("s3rver")) as server:
        yield server


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["rclone", "s3rver"])
def test_wrong_answers_are_no_data(request, name, backend, monkeypatch):
    """A range with status 200, or the beginning in place of the end: the truth or an error."""
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    server = request.getfixturevalue(name)
    url = f"s3://bucket/{next(NUMBERS)}"
    options = {**server.options, "backend": backend, "retry": None}
    store = open_store(url, options)
    value = bytes(range(100))
    store.set("a", [value])
    assert as_bytes(store.get("a")) == value
    outcomes = {}
    for wanted in (*RANGES, Range(40, 60), Range(-30)):
        try:
            got = as_bytes(store.get_ranges([("a", wanted)])[0])
        except StoreError:
            outcomes[wanted] = "refused"
        else:
            assert got == value[wanted.start : wanted.stop], wanted
            outcomes[wanted] = "read"
    assert "read" in outcomes.values()
    try:
        array = zd.create_array(
            url,
            "b",
            shape=(6, 10),
            chunks=(2, 5),
            shards=(6, 5),
            dtype="f4",
            storage_options=options,
        )
        array[...] = VALUES
        read = zd.open(url, "b", storage_options=options)[1:5, ::3]
    except StoreError:
        assert "refused" in outcomes.values()
    else:
        assert np.array_equal(read, VALUES[1:5, ::3])


def test_a_service_that_mistakes_the_source_of_a_copy_copies_nothing(s3rver):
    """s3rver takes what is quoted of `$HOME` for the name of another array, which is there too."""
    source, target = (f"s3://bucket/{next(NUMBERS)}" for _ in range(2))
    options = {"storage_options": s3rver.options}
    values = {"$HOME": 1, "%24HOME": 2, "a&b=c": 3, "x": 4}
    zd.create_group(source, **options)
    for name, value in values.items():
        zd.create_array(source, name, shape=(4,), chunks=2, dtype="i4", **options)[...] = value
    zd.copy(source, target, target_options=s3rver.options, **options)
    got = {name: set(zd.open(target, name, **options)[...].tolist()) for name in values}
    assert got == {name: {value} for name, value in values.items()}


@pytest.mark.parametrize("place", places(*MOTO), indirect=True)
def test_a_value_that_others_have_put_is_not_replaced(place):
    store = open_store(*place)
    store.check_conditional("a")
    assert store.set_if("a", [b"first"], None)
    assert not store.set_if("a", [b"second"], None)
    value, tag = store.get_tagged("a")
    assert as_bytes(value) == b"first"
    assert store.set_if("a", [b"third"], tag)
    assert not store.set_if("a", [b"fourth"], tag)
    assert as_bytes(store.get("a")) == b"third"
    tag = store.get_tagged("a")[1]
    store.delete("a")
    assert not store.set_if("a", [b"fifth"], tag)
    assert store.get_tagged("a") == (None, None)
    store.set("empty", [b""])
    assert store.get_tagged("empty")[0] == b""


@pytest.mark.parametrize("place", places(*MOTO), indirect=True)
def test_parts_are_of_the_version_that_was_asked_for(place):
    store = open_store(*place)
    key, value = "a #?%+& b", bytes(range(100))
    store.set(key, [value])
    tag = store.get_versions([(key, Range(0), None)])[0].tag
    assert tag == store.validator(key)
    wanted = [Range(2, 4), Range(-3), Range(4), Range(3, 3), Range(100, 102), Range(-300)]
    for given in (None, tag):
        found = store.get_versions([(key, one, given) for one in wanted])
        assert [as_bytes(one.content) for one in found] == [value[a:b] for a, b in wanted]
    store.set(key, [value[::-1]])
    assert [one.content for one in store.get_versions([(key, one, tag) for one in wanted])] == [
        None
    ] * len(wanted)
    assert [*store.get_versions([("none", Range(0), None)])] == [None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_service_that_ignores_conditions_is_one_without(s3rver, backend):
    """It would say to each of two writers that its put was the only one."""
    url = f"s3://bucket/{next(NUMBERS)}"
    options = {**s3rver.options, "backend": backend}
    store = open_store(url, options)
    with pytest.raises(ConditionalWriteError, match="does not hold"):
        store.check_conditional("a")
    assert not list(store.list())
    zd.create_array(url, shape=(20,), chunks=8, dtype="i4", storage_options=options)
    part = {"region": (slice(0, 10),), "partial": "compare", "storage_options": options}
    with pytest.raises(ConditionalWriteError, match="does not hold"):
        zd.to_zarr(da.ones(10, dtype="i4"), url, **part)

    # opened before, since who reads while s3rver replaces a value gets a part of it
    arrays = [zd.open_array(url, mode="r+", storage_options=options) for _ in range(8)]

    def change(number):
        arrays[number].attrs[f"name {number}"] = number

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(change, range(8))]
    assert len(zd.open_array(url, storage_options=options).attributes) == 8
