"""Every store and every wrapper keeps the same promises: `StoreTests` runs on each of them."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import dask.array as da
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.unpickle import UNPICKLE
from zarr_dask.errors import (
    LocationTypeError,
    ReadOnlyError,
    StoreArgumentError,
    StoreError,
    StoreKeyError,
    ZarrDaskError,
)
from zarr_dask.journal import remove_empty_folders
from zarr_dask.stores import (
    WHOLE,
    HookStore,
    LocalStore,
    MemoryStore,
    Range,
    ReadOnly,
    Recording,
    Store,
    open_store,
)
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.base import ReadPolicy, check_key, coalesce, read_ranges
from zarr_dask.stores.open import sibling_location
from zarr_dask.testing.stores import VALUE, StoreTests


def nothing(method: str, key: str) -> None:
    """Do nothing before a request."""


@given(st.text(alphabet=["a", ".", "/", "\\", "\0", "é", "\ud800"], max_size=9))
def test_keys_are_names_joined_by_slashes(key):
    names = key.split("/")
    bad = any(name in {"", ".", ".."} for name in names) or {"\\", "\0", "\ud800"} & set(key)
    if bad:
        with pytest.raises(StoreKeyError):
            check_key(key)
    else:
        check_key(key)


class TestLocalStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(str(tmp_path / "root"))


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestMemoryStoreOverMapping(StoreTests):
    @pytest.fixture
    def store(self):
        return open_store({})


class TestFsspecMemory(StoreTests):
    @pytest.fixture
    def store(self, request):
        from fsspec.implementations.memory import MemoryFileSystem

        name = f"/zarr-dask-tests/{os.getpid()}/{request.node.name}".replace("[", "-").rstrip("]")
        name = "".join(c if c.isalnum() or c in "/-" else "_" for c in name)
        store = open_store(f"memory:/{name}")
        store.delete_prefix("")
        yield store
        store.delete_prefix("")
        MemoryFileSystem().pseudo_dirs[:] = [""]


class TestFsspecLocal(StoreTests):
    """Fsspec's own access to files, as other file systems of it are used."""

    atomic = False

    @pytest.fixture
    def store(self, tmp_path):
        return FsspecStore.from_url(f"file://{tmp_path}/root", {"auto_mkdir": True})


class TestRecording(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return Recording(LocalStore(str(tmp_path)))


class TestFaulty(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return HookStore(LocalStore(str(tmp_path)), nothing)


class TestReadOnly:
    @pytest.fixture
    def store(self):
        inner = MemoryStore()
        inner.set("a/b", [VALUE])
        return ReadOnly(inner)

    def test_reads(self, store):
        assert store.get("a/b") == VALUE
        assert store.get_ranges([("a/b", Range(-3))]) == [VALUE[-3:]]
        assert list(store.list()) == ["a/b"]
        assert store.list_dir() == ([], ["a/"])
        assert store.size("a/b") == 20
        assert store.url == store.store.url

    @pytest.mark.parametrize(
        "change",
        [
            lambda s: s.set("a/b", [b"1"]),
            lambda s: s.set("new", [b"1"]),
            lambda s: s.delete("a/b"),
            lambda s: s.delete("nothing"),
            lambda s: s.delete_prefix("a/"),
            lambda s: s.delete_prefix(""),
        ],
        ids=["set", "set new", "delete", "delete nothing", "delete_prefix", "delete all"],
    )
    def test_refuses_every_change(self, store, change):
        with pytest.raises(ReadOnlyError, match="reading only") as caught:
            change(store)
        assert isinstance(caught.value, PermissionError)
        assert dict(store.store.values) == {"a/b": VALUE}


# --- wrappers -------------------------------------------------------------------------------------

REQUESTS = {
    "get": lambda s: s.get("a"),
    "get_ranges": lambda s: s.get_ranges([("a", WHOLE)]),
    "set": lambda s: s.set("a", [b""]),
    "delete": lambda s: s.delete("a"),
    "delete_prefix": lambda s: s.delete_prefix("a/"),
    "list": lambda s: list(s.list("a/")),
    "list_dir": lambda s: s.list_dir("a/"),
    "size": lambda s: s.size("a"),
}


@pytest.mark.parametrize("method", REQUESTS)
def test_recording_writes_down_every_request(method):
    store = Recording(MemoryStore())
    REQUESTS[method](store)
    assert sum(store.batches.values()) == 1
    assert len(store.requests) == 1
    assert store.requests[0].key in {"a", "a/"}
    store.clear()
    assert not store.requests
    assert not store.batches


def test_recording_counts_ranges_one_by_one():
    store = Recording(MemoryStore({"a": VALUE}))
    store.get_ranges([("a", Range(0, 2)), ("a", Range(5, 7)), ("b", Range(0, 2))])
    assert store.per_key() == {"a": 2, "b": 1}
    assert store.batches == {"get_ranges": 1}


@pytest.mark.parametrize("method", REQUESTS)
def test_faulty_fails_ahead_of_every_request(method):
    inner = MemoryStore({"a": VALUE, "a/b": VALUE})

    def fail(name: str, key: str) -> None:
        raise StoreError(f"{name} {key}")

    store = HookStore(inner, fail)
    with pytest.raises(StoreError):
        REQUESTS[method](store)
    assert dict(inner.values) == {"a": VALUE, "a/b": VALUE}


# --- local files ----------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path):
    return LocalStore(str(tmp_path / "root"))


def files_of(store: LocalStore) -> set[str]:
    """Everything on disk, what listings leave out included."""
    return {str(p.relative_to(store.root)) for p in Path(store.root).rglob("*") if p.is_file()}


def test_temporary_files_are_not_listed(local):
    local.set("a/b", [b"1"])
    Path(local.root, "a", ".zarr-dask-0123456789abcdef.tmp").write_bytes(b"half")
    Path(local.root, "a", ".b.tmp").write_bytes(b"somebody's own")
    assert set(local.list()) == {"a/b", "a/.b.tmp"}
    assert local.list_dir("a/").keys == ["a/.b.tmp", "a/b"]
    local.delete_prefix("a/")
    assert files_of(local) == set()


@pytest.mark.parametrize("prefix", ["a/", ""])
def test_a_prefix_is_deleted_while_another_adds_and_removes_below_it(local, monkeypatch, prefix):
    for number in range(4):
        local.set(f"a/{number}/x", [b"1"])
    rmdir, unlink, raced = os.rmdir, os.unlink, []

    def added_first(path, *, dir_fd=None):
        if path == "2" and "added" not in raced:
            raced.append("added")
            Path(local.root, "a/2/late").write_bytes(b"2")
        rmdir(path, dir_fd=dir_fd)

    def gone_first(path, *, dir_fd=None):
        unlink(path, dir_fd=dir_fd)
        if path == "x" and "gone" not in raced:
            raced.append("gone")
            raise FileNotFoundError(errno.ENOENT, "another process was faster")

    monkeypatch.setattr(os, "rmdir", added_first)
    monkeypatch.setattr(os, "unlink", gone_first)
    local.delete_prefix(prefix)
    assert sorted(raced) == ["added", "gone"]
    assert files_of(local) == set()


def test_a_failed_write_leaves_the_old_value_and_nothing_else(local, monkeypatch):
    local.set("a", [b"old"])
    write = os.writev

    def full(descriptor, buffers):
        write(descriptor, [buffers[0][:1]])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(StoreError, match=r"'a'.*No space left.*Free some space") as caught:
        local.set("a", [b"new"])
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.undo()
    assert local.get("a") == b"old"
    assert files_of(local) == {"a"}


def test_a_disk_that_is_full_between_pieces(tmp_path):
    """The old value stays, nothing else does, and the error is one of the store."""
    program = f"""
import os, resource, signal
from zarr_dask.errors import StoreError
from zarr_dask.stores import LocalStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
store = LocalStore({str(tmp_path)!r})
store.set("a", [b"old"])
for size in (1000, 100_000):
    try:
        store.set_pieces("a", (bytes(size) for _ in range(1000)))
    except StoreError as error:
        print("refused:", "could not write 'a'" in str(error))
print(store.get("a"), os.listdir({str(tmp_path)!r}))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["refused: True", "refused: True", "b'old' ['a']"], done


def test_short_writes_are_continued(local, monkeypatch):
    write = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: write(fd, [buffers[0][:7]]))
    local.set("a", [VALUE, b"", VALUE[::-1]])
    assert local.get("a") == VALUE + VALUE[::-1]


def test_short_reads_are_continued(local, monkeypatch):
    local.set("a", [VALUE])
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, start: read(fd, min(count, 3), start))
    assert local.get("a") == VALUE
    assert local.get_ranges([("a", Range(-9)), ("a", Range(2, 19))]) == [VALUE[-9:], VALUE[2:19]]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_read_error_is_no_absence(local, monkeypatch, code):
    local.set("a", [VALUE])

    def broken(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pread", broken)
    for read in (local.get, lambda key: local.get_ranges([(key, Range(0, 4))])):
        with pytest.raises(StoreError, match="'a'") as caught:
            read("a")
        assert local.root in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)


def test_a_loop_of_links_is_no_absence(local):
    local.set("b", [b"1"])
    Path(local.root, "a").symlink_to("a")
    for read in (local.get, lambda key: local.get_ranges([(key, WHOLE)]), local.size):
        with pytest.raises(StoreError, match="'a'"):
            read("a")
    Path(local.root, "gone").symlink_to("nowhere")  # as git-annex leaves them
    for read in (local.get, lambda key: local.get_ranges([(key, WHOLE)]), local.size):
        with pytest.raises(StoreError, match=r"'gone'.*link to a file that is not there"):
            read("gone")
    assert sorted(local.list()) == ["a", "b", "gone"]
    assert list(local.list_sizes()) == [("b", 1)]
    assert local.list_dir().prefixes == []
    local.set("a", [b"22"])  # in the place of the link
    assert local.get("a") == b"22"


def test_missing_permissions_are_no_absence(local):
    if os.geteuid() == 0:
        pytest.skip("the superuser may read everything")
    local.set("a/b", [b"1"])
    folder = Path(local.root, "a")
    folder.chmod(0)
    try:
        for request in (
            partial(local.get, "a/b"),
            partial(local.get_ranges, [("a/b", WHOLE)]),
            partial(local.size, "a/b"),
            partial(local.list_dir, "a/"),
            partial(local.set, "a/b", [b"2"]),
            partial(local.delete, "a/b"),
            partial(local.delete_prefix, "a/"),
        ):
            with pytest.raises(StoreError, match=r"[Pp]ermission"):
                request()
    finally:
        folder.chmod(0o700)
    assert local.get("a/b") == b"1"


def test_values_do_not_lie_below_values(local):
    local.set("a", [b"1"])
    assert local.get("a/b") is None
    assert local.size("a/b") is None
    local.delete("a/b")
    local.delete_prefix("a/b/")
    assert local.list_dir("a/") == ([], [])
    with pytest.raises(StoreError, match="'a/b'"):
        local.set("a/b", [b"2"])
    local.set("c/d", [b"3"])
    with pytest.raises(StoreError, match="'c'"):
        local.set("c", [b"4"])
    assert files_of(local) == {"a", "c/d"}


@pytest.mark.parametrize("name", ["n" * 250, "\u00e4" * 120], ids=["ascii", "two bytes each"])
def test_long_names(local, name):
    local.set(name, [b"1"])
    assert local.get(name) == b"1"
    assert list(local.list()) == [name]


def test_names_that_the_system_cannot_encode(local):
    with pytest.raises(ZarrDaskError):
        local.set("a\ud800", [b"1"])


def test_fsync_reaches_the_file_before_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def note_replace(old, new, **options):
        done.append("rename")
        replace(old, new, **options)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    root = tmp_path.resolve()
    open_store(root).set("a/b", [b"1"])
    assert done == ["rename"]
    done.clear()
    store = open_store(root, {"fsync": True})
    assert store.fsync
    store.set("a/b", [b"2"])
    file, renamed, folder = done[:3]
    assert file.endswith(".tmp")
    assert renamed == "rename"
    assert folder == str(root / "a")
    assert str(root) in done[3:]  # whoever has made the folder
    assert store.get("a/b") == b"2"
    done.clear()
    store.set("a/b", [b"3"])
    assert len(done) == 3  # what leads to it is there for good
    done.clear()
    store.set("new/folders/b", [b"3"])  # a file is lost with a folder that nothing remembers
    assert done[0].endswith(".tmp")
    assert done[1:] == ["rename", *(str(root / one) for one in ("new/folders", "new", ""))]


class Disk:
    """Which names would be there after a power cut: those that were put there, and their folders.

    What a file system may do besides, such as putting more there, is not counted on. Nothing goes
    to the real disk, which takes seconds where other tests keep it busy.
    """

    def __init__(self, monkeypatch, root: Path) -> None:
        self.names: set[tuple[str, int]] = {(str(root), root.stat().st_ino)}
        self._root = root
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            gone = {one for one in self.names if Path(one[0]).parent == path}
            present = {(str(one), one.stat().st_ino) for one in path.iterdir()}
            self.names = (self.names - gone) | present

    def has(self, path: Path) -> bool:
        leading = [one for one in (path, *path.parents) if one.is_relative_to(self._root)]
        return all((str(one), one.stat().st_ino) in self.names for one in leading)


def test_what_two_write_into_one_new_folder_survives_a_power_cut(tmp_path, monkeypatch):
    """The second finds a folder that the first has made, but not put onto the disk yet."""
    root = tmp_path.resolve()
    disk = Disk(monkeypatch, root)
    store = LocalStore(str(root / "a.zarr"), fsync=True)
    made, go_on = threading.Event(), threading.Event()
    mkdir = os.mkdir

    def slow(*args, **options):
        mkdir(*args, **options)
        if args[0] == "0":  # the last of them
            made.set()
            assert go_on.wait(20)

    monkeypatch.setattr(os, "mkdir", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(store.set, "c/0/0", [b"1"])
        assert made.wait(20)
        store.set("c/0/1", [b"2"])
        kept = disk.has(root / "a.zarr/c/0/1")
        go_on.set()
        first.result()
    assert kept
    assert disk.has(root / "a.zarr/c/0/0")


@pytest.mark.parametrize("remove", ["c/", "", "rmdir"])
def test_a_folder_that_is_made_again_survives_a_power_cut(tmp_path, monkeypatch, remove):
    """It may have the inode of the one that was removed."""
    root = tmp_path.resolve()
    disk = Disk(monkeypatch, root)
    store = LocalStore(str(root / "a.zarr"), fsync=True)
    for _ in range(5):
        store.set("c/0/0", [b"1"])
        assert disk.has(root / "a.zarr/c/0/0")
        if remove == "rmdir":
            store.delete("c/0/0")
            remove_empty_folders(store, "c/0/")
        else:
            store.delete_prefix(remove)


def test_what_is_removed_elsewhere_costs_no_sync_of_other_folders(tmp_path, monkeypatch):
    root = tmp_path.resolve()
    store = LocalStore(str(root / "a.zarr"), fsync=True)
    store.set("a/0", [b"1"])
    store.set("b/0", [b"1"])
    store.delete_prefix("b/")
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda one: synced.append(Path(f"/proc/self/fd/{one}").readlink())
    )
    store.set("a/1", [b"1"])
    assert synced[1:] == [root / "a.zarr/a"]  # the first is the value itself


def test_what_was_deleted_does_not_come_back_after_a_power_cut(tmp_path, monkeypatch):
    root = tmp_path.resolve()
    disk = Disk(monkeypatch, root)
    store = LocalStore(str(root / "a.zarr"), fsync=True)

    def names():
        start = f"{root}/a.zarr/"
        return {name.removeprefix(start) for name, _ in disk.names if name.startswith(start)}

    for number in range(3):
        store.set(f"c/{number}", [b"1"])
    store.delete("c/1")
    below = {name for name in names() if name.startswith("c/")}
    assert below == {"c/0", "c/2"}
    assert store.move_prefix("c/", "d/e/")
    store.set("d/e/3", [b"1"])
    assert disk.has(root / "a.zarr/d/e/3")
    assert "c" not in names()
    store.delete_prefix("d/")
    assert "d" not in names()


def test_all_is_removed_beside_another_process_that_removes_some_of_it(local, monkeypatch):
    for key in ("a/0", "b/0", "c/0", "d"):
        local.set(key, [b"1"])

    def walk_late(name, *args, walk=os.fwalk, **options):
        shutil.rmtree(f"{local.root}/{name}")
        return walk(name, *args, **options)

    monkeypatch.setattr(os, "fwalk", walk_late)
    local.delete_prefix("")
    assert list(local.list()) == []


def test_folders_that_others_remove_while_files_are_put_in_them(local):
    """As the journals of jobs do that end beside each other."""
    count = 300

    def work(number):
        for _ in range(count):
            local.set(f"j/a/{number}/k", [b"1"])
            local.delete(f"j/a/{number}/k")
            remove_empty_folders(local, f"j/a/{number}/")
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]


WRITER = """
import sys
from zarr_dask.stores import LocalStore
store = LocalStore(sys.argv[1])
values = [bytes([letter]) * (1 << 20) for letter in b"ab"]
number = 0
while True:
    store.set("k", [values[number % 2]] * (1 + number % 2))
    print(number, flush=True)
    number += 1
"""


def test_a_killed_writer_leaves_the_old_or_the_new_value(local):
    whole = {b"a" * (1 << 20), b"b" * (1 << 21)}
    for writes in (1, 2, 4, 7):
        command = [sys.executable, "-c", WRITER, local.root]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            for _ in range(writes):
                assert process.stdout.readline()
            process.kill()
        assert local.get("k") in whole
        assert list(local.list()) == ["k"]
        assert local.list_dir() == (["k"], [])
    local.set("k", [b"after"])
    assert local.get("k") == b"after"


# --- memory, other processes ----------------------------------------------------------------------


def in_another_process(store: Store) -> str:
    command = [sys.executable, "-c", UNPICKLE, pickle.dumps(store).hex()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_memory_store_is_not_in_another_process():
    store = MemoryStore({"a": b"1"})
    said = in_another_process(store)
    assert said.startswith("StoreError:")
    assert "another process" in said


@pytest.mark.parametrize("kind", ["local", "fsspec", "recording"])
def test_files_are_the_same_in_another_process(tmp_path, kind):
    store = {
        "local": LocalStore(str(tmp_path)),
        "fsspec": FsspecStore.from_url(f"file://{tmp_path}", {}),
        "recording": Recording(ReadOnly(LocalStore(str(tmp_path)))),
    }[kind]
    Path(tmp_path, "a").write_bytes(b"found")
    assert in_another_process(store) == "value: found\n"


def test_one_mapping_is_one_store():
    values: dict[str, bytes] = {}
    store = open_store(values)
    assert open_store(values) is store
    assert open_store({}) is not store
    assert pickle.loads(pickle.dumps(store)) is store


# --- from what users give -------------------------------------------------------------------------


def test_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = f"{tmp_path}/a b.zarr"
    for place in (
        root,
        "a b.zarr",
        "./x/../a b.zarr/",
        Path("a b.zarr"),
        f"file://{tmp_path}/a%20b.zarr",
        f"FILE://{tmp_path}/a%20b.zarr",
        f"file://localhost{tmp_path}/a%20b.zarr",
    ):
        assert open_store(place) == LocalStore(root)
    store = MemoryStore()
    assert open_store(store) is store
    assert isinstance(open_store("memory://somewhere"), FsspecStore)


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        (5, {}, "does not name a store"),
        (None, {}, "does not name a store"),
        ("nosuchscheme://bucket/a", {}, "nosuchscheme"),
        (Path("s3://bucket/a"), {}, "give a text, 's3://bucket/a'"),
        ("s3://", {}, "s3://NAME/PATH"),
        ("/data/a", {"anon": True}, "anon"),
        ({}, {"fsync": True}, "fsync"),
        (MemoryStore(), {"anon": True}, "anon"),
    ],
    ids=[
        "number",
        "None",
        "scheme",
        "slash",
        "bucket",
        "local option",
        "mapping option",
        "store option",
    ],
)
def test_places_that_are_none(place, options, says):
    with pytest.raises((StoreError, LocationTypeError), match=says):
        open_store(place, options)


def test_chains_end_in_paths_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("a b.zip", "w") as archive:
        archive.writestr("folder/value", b"1")
    places = ("zip::a b.zip", f"zip::{tmp_path}/a b.zip", "zip://::a b.zip", "simplecache::a b.zip")
    for place in places[:3]:
        store = open_store(place)
        assert bytes(store.get("folder/value")) == b"1"
        assert store.url.endswith(f"::file://{tmp_path}/a b.zip")  # whatever the folder is then
    assert open_store(places[3]).url == f"simplecache::file://{tmp_path}/a b.zip"
    assert bytes(open_store("dir://folder::zip::a b.zip").get("value")) == b"1"
    LocalStore(str(tmp_path)).set("folder/value", [b"22"])
    below = open_store(f"dir://folder::file://{tmp_path}")  # says it is asynchronous, and is not
    assert below.get_ranges([("value", Range(1)), ("none", WHOLE)]) == [b"2", None]
    assert not Path("zip:").exists()


def test_files_with_two_colons_in_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store("run::7.zarr") == LocalStore(f"{tmp_path}/run::7.zarr")
    Path("zip::7.zarr").mkdir()
    assert open_store("zip::7.zarr") == LocalStore(f"{tmp_path}/zip::7.zarr")


@pytest.mark.parametrize(
    "url",
    ["http://[::1]:8000/a.zarr", "http://host/a::b", "https://host/zip::a", "s3://bucket/a::b"],
)
def test_services_with_two_colons_in_their_urls(url):
    assert open_store(url).url == url
    assert open_store(url.upper()[:4] + url[4:]).url == url


@pytest.mark.parametrize("name", ["n" * 250, "a\\b.zarr"], ids=["long", "backslash"])
def test_folders_that_have_no_place_beside_them(tmp_path, name):
    x = da.ones(4, chunks=2)
    zd.to_zarr(x, tmp_path / name)
    assert zd.from_zarr(tmp_path / name).sum().compute(scheduler="sync") == 4
    assert sibling_location(LocalStore(str(tmp_path / name)), ".zarr-dask") is None


def test_the_place_beside(tmp_path):
    assert sibling_location(LocalStore("/data/a.zarr", fsync=True), ".part") == (
        LocalStore("/data", fsync=True),
        "a.zarr.part",
    )
    assert sibling_location(LocalStore("/"), ".part") is None
    assert sibling_location(MemoryStore(), ".part") is None


def test_options_are_not_shown():
    store = FsspecStore.from_url("memory://x", {"skip_instance_cache": True})
    assert "skip" not in repr(store)


def test_a_write_into_nowhere_is_not_swallowed(tmp_path):
    store = FsspecStore.from_url(f"file://{tmp_path}", {})
    with pytest.raises(StoreError, match="a/b"):
        store.set("a/b", [b"1"])  # fsspec makes no folders unless it is told to


def test_a_write_into_a_lost_bucket_is_not_swallowed():
    from fsspec.implementations.memory import MemoryFileSystem

    store = open_store("memory://zarr-dask-tests/lost")
    with pytest.MonkeyPatch.context() as patch:

        def lost(*args, **kwargs):
            raise FileNotFoundError("the bucket does not exist")

        patch.setattr(MemoryFileSystem, "pipe_file", lost)
        with pytest.raises(StoreError, match="bucket"):
            store.set("a", [b"1"])


@pytest.mark.parametrize("error", [PermissionError, TimeoutError, OSError, ConnectionResetError])
def test_a_remote_error_is_no_absence(error):
    from fsspec.implementations.memory import MemoryFileSystem

    store = open_store("memory://zarr-dask-tests/broken", {"retry": {"wait": 0.001, "attempts": 3}})
    with pytest.MonkeyPatch.context() as patch:

        def broken(*args, **kwargs):
            raise error("no answer")

        patch.setattr(MemoryFileSystem, "cat_file", broken)
        for read in (store.get, lambda key: store.get_ranges([(key, WHOLE)])):
            with pytest.raises(StoreError, match="no answer") as caught:
                read("a")
            assert isinstance(caught.value.__cause__, error)


# --- ranges ---------------------------------------------------------------------------------------

OFFSETS = st.integers(0, 60)


@given(
    st.binary(max_size=50),
    st.lists(st.tuples(OFFSETS, OFFSETS).map(lambda t: Range(min(t), max(t))), min_size=1),
    st.integers(0, 20),
    st.integers(1, 40),
)
def test_coalesced_ranges_hold_the_same_bytes(value, ranges, gap, largest):
    joint, places = coalesce(ranges, ReadPolicy(gap, largest))
    assert len(joint) <= len(ranges)
    for wanted, (which, offset) in zip(ranges, places, strict=True):
        fetched = value[joint[which].start : joint[which].stop]
        length = wanted.stop - wanted.start
        assert fetched[offset : offset + length] == value[wanted.start : wanted.stop]
    widest = max(wanted.stop - wanted.start for wanted in ranges)
    assert all(item.stop - item.start <= max(largest, widest) for item in joint)


@given(st.binary(min_size=1, max_size=50), st.data())
def test_ranges_of_one_value(value, data):
    end = st.integers(0, len(value))
    pairs = st.tuples(end, end).map(lambda t: Range(min(t), max(t)))
    suffixes = st.integers(-60, -1).map(Range)
    ranges = data.draw(st.lists(pairs | suffixes, min_size=1, max_size=8))
    got = read_ranges(MemoryStore({"a": value}), "a", ranges)
    assert [bytes(view) for view in got] == [value[r.start : r.stop] for r in ranges]
    assert read_ranges(MemoryStore(), "a", ranges) is None


def test_the_option_of_fsspec_that_makes_folders_is_taken_for_local_files(tmp_path):
    store = open_store(f"file://{tmp_path}/a/b.zarr", {"auto_mkdir": True})
    store.set("c/0", [b"1"])
    assert (tmp_path / "a" / "b.zarr" / "c" / "0").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"a": 1}, "the value of 'a' is of the type int"),
        ({"a": "text"}, "the value of 'a' is of the type str"),
        ({3: b"1"}, "the key 3 is of the type int"),
    ],
)
def test_mappings_of_something_else_are_no_stores(values, said):
    with pytest.raises(StoreError, match=said):
        zd.inventory(values)


def test_a_relative_path_in_a_folder_that_has_gone_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(StoreArgumentError, match=r"'x\.zarr' is relative to the working directory"):
        open_store("x.zarr")
    assert isinstance(open_store(str(tmp_path)), LocalStore)
