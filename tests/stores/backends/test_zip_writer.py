"""Zip archives that are written: once, whole or not at all, and read by others."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.scripts import Script
from zarr_dask.errors import (
    NodeExistsError,
    ReadOnlyError,
    StoreError,
    StoreOutOfReachError,
    WrittenOnceError,
)
from zarr_dask.stores import Range, ZipStore, ZipWriter, open_store
from zarr_dask.stores.backends.zip_format import ZipEntry, directory, end_of_directory, local_header
from zarr_dask.testing.stores import StoreTests

VALUES = np.arange(6 * 10, dtype="f4").reshape(6, 10)


class TestZipWriter(StoreTests):
    rewrites = False

    @pytest.fixture
    def store(self, tmp_path):
        with ZipWriter(tmp_path / "x.zip") as writer:
            yield writer


class TestZipWriterThatAdds(StoreTests):
    rewrites = False

    @pytest.fixture
    def store(self, tmp_path):
        ZipWriter(tmp_path / "x.zip").close()
        with ZipWriter(tmp_path / "x.zip", "a") as writer:
            yield writer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.zip"


def leftovers(path):
    return [one.name for one in path.parent.iterdir() if one != path]


# --- others read it -------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text("aé/Δb", min_size=1).filter(lambda k: all(k.split("/"))), st.binary(), max_size=9
    )
)
def test_python_reads_every_entry(tmp_path_factory, values):
    keys = set(values)
    values = {k: v for k, v in values.items() if not any(o.startswith(f"{k}/") for o in keys)}
    path = tmp_path_factory.mktemp("zip") / "x.zip"
    with ZipWriter(path) as writer:
        for key, value in values.items():
            writer.set(key, [value[:3], value[3:]])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == values
    assert {key: bytes(open_store(path).get(key)) for key in values} == values


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_zarr_python_reads_what_dask_writes(path, format):
    import zarr

    x = da.from_array(VALUES, chunks=(3, 5))
    report = zd.to_zarr(x, path, "a/b", format=format)
    assert report.objects == 4
    store = zarr.storage.ZipStore(path, mode="r")
    assert np.array_equal(zarr.open_array(store, path="a/b", mode="r")[...], VALUES)
    store.close()
    assert np.array_equal(zd.from_zarr(path, "a/b").compute(), VALUES)
    assert leftovers(path) == []


def test_tensorstore_reads_it(path):
    import tensorstore

    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, shards=(3, 5), chunks=(1, 5))
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "zip", "base": path.as_uri()},
    }
    assert np.array_equal(tensorstore.open(spec).result().read().result(), VALUES)


# --- written once ---------------------------------------------------------------------------------


def test_a_second_value_is_refused_and_the_same_one_is_not(path):
    with ZipWriter(path) as writer:
        writer.set("c/0", [b"12"])
        writer.set("c/0", [b"1", b"2"])  # a task that was run again
        with pytest.raises(WrittenOnceError, match=r"'c/0'.*x\.zip"):
            writer.set("c/0", [b"13"])
        with pytest.raises(WrittenOnceError):
            writer.delete("c/0")
        with pytest.raises(WrittenOnceError):
            writer.delete_prefix("c/")
        assert bytes(writer.get("c/0")) == b"12"
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["c/0"]


def test_documents_change_until_the_end_and_are_there_once(path):
    with ZipWriter(path) as writer:
        group = zd.create_group(writer)
        group.update_attributes({"a": 1})
        group.create_array("x", shape=(4,), chunks=2, dtype="i4", attributes={"b": 2})[...] = 5
        zd.create_group(writer, "y")
        zd.delete(writer, "y")
        zd.consolidate(writer)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert sorted(names) == ["x/c/0", "x/c/1", "x/zarr.json", "zarr.json"]
    group = zd.open(path)
    assert group.attributes == {"a": 1}
    assert group["x"][:].tolist() == [5] * 4


def test_nothing_is_there_before_the_end(path):
    with ZipWriter(path) as writer:
        writer.set("c/0", [b"1"])
        assert not path.exists()
        assert bytes(writer.get_ranges([("c/0", Range(-1))])[0]) == b"1"
    assert bytes(writer.get("c/0")) == b"1"  # of the archive that it has become
    assert [*writer.list()] == ["c/0"]
    with pytest.raises(StoreError, match="closed"):
        writer.set("c/1", [b"1"])


def test_an_error_leaves_nothing(path):
    writer = ZipWriter(path)
    with pytest.raises(ZeroDivisionError), writer:  # noqa: PT012
        writer.set("c/0", [b"1"])
        raise ZeroDivisionError
    assert leftovers(path) == []
    assert not path.exists()
    with pytest.raises(StoreError, match="given up"):
        writer.get("c/0")


def test_a_writer_that_nobody_closes_leaves_nothing(path):
    writer = ZipWriter(path)
    writer.set("c/0", [b"1"])
    assert len(leftovers(path)) == 1
    del writer
    assert leftovers(path) == []


def test_a_failing_job_leaves_nothing(path):
    def fail(block):
        raise ZeroDivisionError

    x = da.ones(4, chunks=2).map_blocks(fail, dtype="f8", meta=np.empty(0))
    with pytest.raises(ZeroDivisionError):
        zd.to_zarr(x, path)
    assert leftovers(path) == []
    assert not path.exists()


# --- what is there already ------------------------------------------------------------------------


def test_adding_keeps_what_is_there(path):
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, "a")
    before = zd.open(path)
    zd.to_zarr(da.from_array(-VALUES, chunks=(3, 5)), path, "b")
    assert np.array_equal(zd.open(path)["a"][...], VALUES)
    assert np.array_equal(zd.open(path)["b"][...], -VALUES)
    with pytest.raises(StoreError, match="replaced or changed"):  # it is another file now
        before["a"][...]
    with pytest.raises(NodeExistsError):
        zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, "a")
    with pytest.raises(WrittenOnceError):
        zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, "a", overwrite=True)
    with zipfile.ZipFile(path) as archive:
        assert len(set(archive.namelist())) == len(archive.namelist())


def test_adding_to_the_archive_of_another_tool(tmp_path):
    path = tmp_path / "x.zip"
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), tmp_path / "run.zarr", "a")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(tmp_path.rglob("*")):
            if file.is_file() and file != path:
                archive.write(file, str(file.relative_to(tmp_path)))
    zd.to_zarr(da.from_array(-VALUES, chunks=(3, 5)), path, "b")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert "run.zarr/b/zarr.json" in archive.namelist()
    assert np.array_equal(zd.open(path)["a"][...], VALUES)
    assert np.array_equal(zd.open(path)["b"][...], -VALUES)


def test_a_region_of_chunks_that_are_not_there_yet(path):
    with ZipWriter(path) as writer:
        zd.create_array(writer, shape=(6, 10), chunks=(3, 5), dtype="f4")
    for rows in (slice(0, 3), slice(3, 6)):
        x = da.from_array(VALUES[rows], chunks=(3, 5))
        zd.to_zarr(x, path, region=(rows, slice(0, 10)))
    assert np.array_equal(zd.open(path)[...], VALUES)
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, append=0)
    assert np.array_equal(zd.open(path)[6:], VALUES)
    with pytest.raises(WrittenOnceError):
        zd.to_zarr(da.ones((3, 10), chunks=(3, 5), dtype="f4"), path, region=np.s_[0:3, :])
    assert np.array_equal(zd.open(path)[:6], VALUES)


def test_an_archive_is_replaced_at_once(path):
    zd.to_zarr(da.zeros((6, 10), chunks=3), path, "a")
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, mode="w")
    assert np.array_equal(zd.open(path)[...], VALUES)
    with pytest.raises(NodeExistsError):
        ZipWriter(path)
    with pytest.raises(NodeExistsError, match="folder"):
        ZipWriter(path.parent, "w")


def test_of_two_writers_one_fails(path):
    one, other = ZipWriter(path), ZipWriter(path)
    one.set("a", [b"1"])
    other.set("a", [b"2"])
    one.close()
    with pytest.raises(StoreError, match="appeared"):
        other.close()
    assert bytes(open_store(path).get("a")) == b"1"
    one, other = ZipWriter(path, "a"), ZipWriter(path, "a")
    one.set("b", [b"1"])
    other.set("b", [b"2"])
    one.close()
    with pytest.raises(StoreError, match="changed"):
        other.close()
    assert bytes(open_store(path).get("b")) == b"1"
    assert leftovers(path) == []


@pytest.mark.parametrize(
    "change",
    [
        zd.create_group,
        lambda path: zd.create_array(path, shape=(1,), dtype="i4"),
        lambda path: zd.open(path, mode="r+").update_attributes({"a": 1}),
    ],
    ids=["group", "array", "attributes"],
)
def test_single_changes_need_a_writer(tmp_path, change):
    path = tmp_path / "x.zip"
    with ZipWriter(path) as writer:
        zd.create_group(writer)
    content = path.read_bytes()
    with pytest.raises((ReadOnlyError, NodeExistsError)):
        change(path)
    assert path.read_bytes() == content


# --- one process ----------------------------------------------------------------------------------


def test_threads_write_at_the_same_time(path):
    values = {f"c/{number}": os.urandom(number * 500) for number in range(60)}
    with ZipWriter(path, fsync=True) as writer, ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda key: writer.set(key, [values[key]]), values):
            pass
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == values


def test_dask_processes_are_refused(path):
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(StoreOutOfReachError, match="this process alone"),
    ):
        zd.to_zarr(da.ones(4, chunks=2), path)
    assert not path.exists()


def test_another_process_is_refused(path):
    with ZipWriter(path) as writer:
        writer.set("c/0", [b"1"])
        assert pickle.loads(pickle.dumps(writer)) is writer
        script = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])).set('a', [b'1'])"
        command = [sys.executable, "-c", script, pickle.dumps(writer).hex()]
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "StoreOutOfReachError" in failed.stderr
        assert "one process alone" in failed.stderr
    again = pickle.loads(pickle.dumps(writer))
    assert isinstance(again, ZipStore)
    assert bytes(again.get("c/0")) == b"1"


def test_a_child_after_a_fork_can_neither_write_nor_remove(path):
    writer = ZipWriter(path)
    writer.set("c/0", [b"1"])
    child = os.fork()
    if not child:
        try:
            writer.set("c/1", [b"2"])
        except StoreOutOfReachError:
            writer.discard()
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    writer.close()
    assert [*open_store(path).list()] == ["c/0"]


def test_what_is_returned_is_read_from_the_archive(path):
    x = da.from_array(VALUES, chunks=(3, 5))
    stored = zd.to_zarr(x, path, return_stored=True)
    assert np.array_equal(stored.compute(), VALUES)
    with pytest.raises(ValueError, match="compute=False"):
        zd.to_zarr(x, path.with_name("y.zip"), compute=False)
    with ZipWriter(path, "w") as writer:
        later = zd.to_zarr(x, writer, compute=False)
        later.compute(scheduler="threads")
    assert np.array_equal(zd.open(path)[...], VALUES)


KILLED = """
import sys
import numpy as np
from zarr_dask.stores import ZipWriter
writer = ZipWriter(sys.argv[1], sys.argv[2])
for number in range(10_000):
    writer.set(f"c/{number}", [bytes(20_000)])
    print(number, flush=True)
"""


@pytest.mark.parametrize("mode", ["x", "a"])
def test_a_killed_writer_leaves_no_archive_or_the_old_one(path, mode):
    if mode == "a":
        zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, "old")
    with Script(KILLED, path, mode) as process:
        for _ in range(3):
            assert process.stdout.readline()
        process.kill()
    (left,) = leftovers(path)
    assert left.startswith(".zarr-dask-")
    with pytest.raises(zipfile.BadZipFile):
        zipfile.ZipFile(path.parent / left)
    if mode == "a":
        assert np.array_equal(zd.open(path)["old"][...], VALUES)
    else:
        assert not path.exists()
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), path, "again")
    assert np.array_equal(zd.open(path)["again"][...], VALUES)
    assert [one.key for one in zd.verify(path).findings] == [left]
    os.utime(path.parent / left, (0, 0))
    assert zd.verify(path, sweep=True).ok
    assert leftovers(path) == []


# --- large ----------------------------------------------------------------------------------------


@pytest.mark.slow  # some seconds in Python's own zipfile
def test_more_entries_than_a_small_archive_can_have(tmp_path):
    path = tmp_path / "x.zip"
    header = local_header("0", 0, 0)
    listed = directory(ZipEntry(str(number), 0, 0, 0, 0) for number in range(66_000))
    end = end_of_directory(66_000, len(listed), len(header))
    path.write_bytes(header + listed + end)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 66_000
        assert archive.read("0") == b""
    assert open_store(path).size("65999") == 0


def test_large_numbers_are_read_by_python(tmp_path, monkeypatch):
    """Offsets beyond 4 GiB, in a file with a hole."""
    path = tmp_path / "x.zip"
    start = 5 << 30
    header = local_header("b", 3, 0x352441C2)
    with path.open("wb") as file:
        file.seek(start)
        file.write(header + b"abc")
        members = [ZipEntry("b", start, 3, 3, 0x352441C2)]
        listed = directory(members)
        at = file.tell()
        file.write(listed + end_of_directory(1, len(listed), at))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("b") == b"abc"
    assert bytes(open_store(path).get("b")) == b"abc"


@pytest.mark.slow
def test_a_value_beyond_four_gib(path):
    piece = bytes(1 << 28)
    with ZipWriter(path) as writer:
        writer.set("a", [piece] * 17)
        writer.set("b", [b"123"])
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a").file_size == 17 << 28
        assert archive.read("b") == b"123"
    store = open_store(path)
    assert bytes(store.get_ranges([("a", Range(-2))])[0]) == b"\0\0"
    assert bytes(store.get("b")) == b"123"


def test_a_full_disk_is_an_error_and_leaves_nothing(path, monkeypatch):
    def full(descriptor, buffers, start):
        raise OSError(28, "No space left on device")

    with ZipWriter(path) as writer:
        writer.set("a", [b"1"])
        with monkeypatch.context() as patch:
            patch.setattr("zarr_dask.stores.backends.zip_writer.write_at", full)
            with pytest.raises(StoreError, match="No space left"):
                writer.set("b", [b"2"])
        writer.set("b", [b"3"])  # again, with space
    assert bytes(open_store(path).get("b")) == b"3"
    writer = ZipWriter(path, "w")
    writer.set("a", [b"new"])
    with monkeypatch.context() as patch:
        patch.setattr("zarr_dask.stores.backends.zip_writer.write_at", full)
        with pytest.raises(StoreError, match="No space left"):
            writer.close()
    assert bytes(open_store(path).get("a")) == b"1"
    assert leftovers(path) == []


def test_readers_during_the_change_see_one_archive(path):
    zd.to_zarr(da.zeros((6, 10), chunks=(3, 5)), path)
    done = threading.Event()

    def rewrite():
        for number in range(1, 12):
            zd.to_zarr(da.full((6, 10), float(number), chunks=(3, 5)), path, mode="w")
        done.set()

    thread = threading.Thread(target=rewrite)
    thread.start()
    read = 0
    try:
        while not done.is_set():
            with suppress(StoreError):  # it changed while it was open
                assert len(np.unique(zd.open(path)[...])) == 1
                read += 1
    finally:
        thread.join()
    assert read


def test_copies_and_rechunkings_end_in_an_archive(tmp_path, path):
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), tmp_path / "a.zarr")
    with ZipWriter(path) as writer:
        zd.copy(tmp_path / "a.zarr", writer)
    assert np.array_equal(zd.open(path)[...], VALUES)
    with ZipWriter(path, "w") as writer:
        zd.rechunk(tmp_path / "a.zarr", writer, chunks=(6, 2))
    assert zd.open(path).chunks == (6, 2)
    assert np.array_equal(zd.open(path)[...], VALUES)
