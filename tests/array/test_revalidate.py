"""Absence is a value only while the document of the array stands, for every road that reads."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from time import time_ns

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.array import reader
from zarr_dask.array.revalidate import Shown
from zarr_dask.errors import (
    CorruptObjectError,
    MetadataChangedError,
    NodeNotFoundError,
    ResumeError,
    StoreOutOfReachError,
)
from zarr_dask.jobs.copy.raw_copy import RawCopyJob
from zarr_dask.jobs.engine.lifecycle import start_job
from zarr_dask.jobs.engine.visibility import BoundedSet
from zarr_dask.jobs.verify.scan import CellRuns, ObjectScan
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording, open_store
from zarr_dask.stores.base import etag_of

HERE = Path("/proc/self/cwd")
needs_proc = pytest.mark.skipif(not HERE.exists(), reason="a path that each process sees its own")

KINDS = {
    "v3": {"chunks": (2, 2)},
    "shards": {"chunks": (1, 1), "shards": (2, 2)},
    "v2": {"chunks": (2, 2), "format": "v2"},
    "v1": {"chunks": (2, 2), "format": "v1"},
    "draft": {"chunks": (2, 2), "format": "v3draft-2022-05"},
}

ROADS = {
    "index": lambda a: a[...],
    "element": lambda a: a[0, 0],
    "read": lambda a: a.read(np.s_[1:3, 1:3]),
    "out": lambda a: a.read(out=np.empty((4, 4), a.dtype)),
    "lists": lambda a: a.oindex[[0, 3], [1, 2]],
    "points": lambda a: a.vindex[[0, 3], [1, 2]],
    "view": lambda a: a.lazy[::-1].read(),
    "lazy": lambda a: a.to_dask().compute(scheduler="sync"),
    "lazy view": lambda a: a.lazy[[3, 0]].to_dask().compute(scheduler="sync"),
    "travelled": lambda a: pickle.loads(pickle.dumps(a))[...],
    "digest": zd.digest,
    "compare": lambda a: zd.compare(a, zd.create_array({}, shape=(4, 4), dtype="i4", chunks=2)),
    "rechunk": lambda a: zd.rechunk(a, {}, chunks=(4, 1)),
}


def whole(store, kind: str = "v3") -> zd.Array:
    made = zd.create_array(store, "a", shape=(4, 4), dtype="i4", **KINDS[kind])
    made[...] = 5
    return zd.open_array(store, "a", format=made.format)


@pytest.mark.parametrize("road", ROADS)
def test_a_deleted_array_is_no_array_of_fill_values(tmp_path, road):
    array = whole(tmp_path)
    zd.delete(tmp_path, "a")
    with pytest.raises(NodeNotFoundError, match=f"process {os.getpid()} on ") as caught:
        ROADS[road](array)
    assert caught.value.looked_for == ("a/zarr.json",)


@pytest.mark.parametrize(
    "plan",
    [
        lambda a: zd.plan_rechunk(a, {}, chunks=(4, 1)),
        lambda a: zd.plan_copy(a, {}),
        lambda a: zd.plan_write(zd.from_zarr(a) * 2, {}),
    ],
    ids=["rechunk", "copy", "write"],
)
def test_a_source_that_goes_between_plan_and_run(tmp_path, plan):
    planned = plan(whole(tmp_path))
    zd.delete(tmp_path, "a")
    with pytest.raises(NodeNotFoundError):
        planned.run()


def test_a_part_of_a_source_that_goes_while_it_is_copied(tmp_path):
    """Its objects are listed, and have gone when their task begins."""
    plan = zd.plan_copy(whole(tmp_path), {}).members[0]
    job = RawCopyJob(plan, "", None)
    assert job.missing(0)
    zd.delete(tmp_path, "a")
    with pytest.raises(NodeNotFoundError):
        job.stage(0).copy(0)


@pytest.mark.parametrize("depth", ["index", "receipts", "decode"])
def test_objects_that_go_while_they_are_verified(tmp_path, depth):
    array = whole(tmp_path)
    zd.delete(tmp_path, "a")
    with pytest.raises(NodeNotFoundError):
        ObjectScan((array,), (CellRuns(((0, 4),)),), depth)(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("local", [True, False])
def test_a_deleted_array_of_every_format(tmp_path, kind, local):
    array = whole(tmp_path if local else MemoryStore(), kind)
    assert (array[...] == 5).all()
    zd.delete(array.store.store, "a")
    with pytest.raises(NodeNotFoundError):
        array[1:, 1:]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_never_written_has_the_fill_value(tmp_path, kind):
    for store in (tmp_path, MemoryStore()):
        made = zd.create_array(store, "a", shape=(4, 4), dtype="i4", fill_value=3, **KINDS[kind])
        assert (made[...] == 3).all()
        array = zd.open_array(store, "a", format=made.format)
        for road in ("index", "read", "lists", "view", "lazy", "travelled"):
            if road != "travelled" or isinstance(array.store.store, LocalStore):
                assert (ROADS[road](array) == 3).all()


def test_an_answer_that_there_is_nothing_at_all():
    class Lying(MemoryStore):
        lies = False

        def get(self, key):
            return None if self.lies else super().get(key)

        get_transient = get

        def get_ranges(self, requests):
            return [None] * len(requests) if self.lies else super().get_ranges(requests)

    store = Lying()
    array = whole(store)
    store.lies = True
    with pytest.raises(NodeNotFoundError):
        array[...]


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": (4, 4)},
        {"chunks": (2, 2), "codecs": ["gzip"]},
        {"chunks": (2, 2), "dtype": "i8"},
        {"chunks": (2, 2), "fill_value": 7},
        {"chunks": (2, 2), "shape": (3, 4)},
        {"chunks": (2,), "shape": (4,)},
    ],
)
def test_another_array_in_its_place(tmp_path, change):
    array = whole(tmp_path)
    zd.create_array(tmp_path, "a", overwrite=True, **{"shape": (4, 4), "dtype": "i4", **change})
    with pytest.raises(MetadataChangedError, match="Open it again"):
        array[...]


def test_a_process_that_has_seen_the_array_before_it_was_replaced(tmp_path):
    """As a worker that lives on while its client replaces an array and opens the new one."""
    old = pickle.loads(pickle.dumps(whole(tmp_path)))
    assert (old[...] == 5).all()
    made = zd.create_array(tmp_path, "a", shape=(4, 4), dtype="i4", chunks=(4, 1), overwrite=True)
    made[...] = 7
    new = pickle.loads(pickle.dumps(made))
    assert (new[...] == 7).all()
    with pytest.raises(MetadataChangedError, match="Open it again"):
        pickle.loads(pickle.dumps(old))[...]


def test_a_group_in_its_place(tmp_path):
    array = whole(tmp_path)
    zd.create_group(tmp_path, "a", overwrite=True)
    with pytest.raises(MetadataChangedError, match="now no array"):
        array[...]


def test_bytes_of_another_array_are_not_called_corrupt(tmp_path):
    array = whole(tmp_path)
    other = zd.create_array(
        tmp_path, "a", overwrite=True, shape=(4, 4), dtype="i4", chunks=(2, 2), codecs=[]
    )
    other[...] = 7
    with pytest.raises(MetadataChangedError) as caught:
        array[...]
    assert isinstance(caught.value.__cause__, CorruptObjectError)


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_may_change_and_arrays_may_grow(tmp_path, kind):
    made = zd.create_array(tmp_path, "a", shape=(4, 4), dtype="i4", **KINDS[kind])
    array = zd.open_array(tmp_path, "a", format=made.format)
    made.update_attributes({"units": "K"}).resize((8, 4))
    elsewhere = pickle.loads(pickle.dumps(array))  # follows no change of this process
    assert array.shape == elsewhere.shape == (8, 4)
    assert not array[...].any()
    made = zd.open_array(tmp_path, "a", mode="r+", format=made.format).resize((2, 4))
    assert array[...].shape == (2, 4)
    with pytest.raises(MetadataChangedError, match=r"now shape \(2, 4\)"):
        elsewhere[...]


def test_declared_sizes_may_go_on(tmp_path):
    made = zd.create_array(tmp_path, "a", shape=(6,), dtype="i4", chunks=([2, 4],))
    array = zd.open_array(tmp_path, "a")
    made.resize((15,))
    assert not array[...].any()
    zd.create_array(tmp_path, "a", shape=(6,), dtype="i4", chunks=([4, 2],), overwrite=True)
    with pytest.raises(MetadataChangedError):
        array[...]


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_consolidated_metadata_alone_say_that_it_is_there(tmp_path, format):
    zd.create_group(tmp_path, format=format)
    zd.create_array(tmp_path, "a", shape=(4, 4), dtype="i4", chunks=(2, 2), format=format)
    zd.consolidate(tmp_path)
    array = zd.open_group(tmp_path)["a"]
    (tmp_path / "a" / {"v2": ".zarray", "v3": "zarr.json"}[format]).unlink()
    assert array.shown == Shown("")
    assert not array[...].any()
    assert not pickle.loads(pickle.dumps(array))[...].any()
    (tmp_path / {"v2": ".zmetadata", "v3": "zarr.json"}[format]).unlink()
    with pytest.raises(NodeNotFoundError):
        array[...]


def test_to_ask_again_is_a_look_at_a_file(tmp_path):
    zd.create_array(tmp_path, "a", shape=(4, 4), dtype="i4", chunks=(2, 2))
    recording = Recording(LocalStore(tmp_path))
    array = zd.open_array(recording, "a")
    while etag_of(recording, "a/zarr.json") is None:  # of a file that has just changed
        array[0, 0]
    array[0, 0]
    recording.clear()
    array[0, 0]
    assert recording.per_key() == {"a/c/0/0": 1}
    zd.open_array(tmp_path, "a", mode="r+").update_attributes({"units": "K"})
    recording.clear()
    array[0, 0]
    assert recording.per_key() == {"a/c/0/0": 1, "a/zarr.json": 1}


def test_a_part_of_an_object_is_not_completed_where_the_array_has_gone(tmp_path):
    whole(tmp_path)
    array = zd.open_array(tmp_path, "a", mode="r+")
    zd.delete(tmp_path, "a")
    for write in (
        lambda: array.__setitem__((0, 0), 1),
        lambda: array.oindex.__setitem__(([0, 3], [0, 3]), 1),
        lambda: zd.to_zarr(
            da.ones((1, 1), dtype="i4"), array, region=np.s_[0:1, 0:1], partial="own"
        ),
    ):
        with pytest.raises((NodeNotFoundError, MetadataChangedError)):
            write()
    assert not list(tmp_path.rglob("c/*"))


# --- other processes ------------------------------------------------------------------------------

RUN = "import pickle, sys; task = pickle.load(sys.stdin.buffer); print(task[:4, :4].sum())"


@needs_proc
def test_a_process_that_does_not_see_the_store(tmp_path, monkeypatch):
    """What it is given lies below its own working folder: only there does it see it."""
    seen, unseen = tmp_path / "seen", tmp_path / "unseen"
    seen.mkdir()
    unseen.mkdir()
    monkeypatch.chdir(seen)
    whole(str(HERE / "s.zarr"))
    lazy = zd.from_zarr(str(HERE / "s.zarr"), "a")
    (source,) = (dep.array for dep in _sources(lazy))
    task = pickle.dumps(source)

    def run(folder: Path) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", RUN]
        env = {**os.environ, "PYTHONPATH": str(Path(zd.__file__).parents[1])}
        return subprocess.run(
            command, input=task, cwd=folder, env=env, capture_output=True, check=False
        )

    assert run(seen).stdout.split() == [b"80"]
    blind = run(unseen)
    assert blind.returncode
    assert b"NodeNotFoundError" in blind.stderr
    assert b"does not see the store" in blind.stderr


def _sources(lazy: da.Array):
    from zarr_dask.array.source import ArraySource
    from zarr_dask.graph import find_sources

    return find_sources(lazy, ArraySource)


def test_a_process_sees_another_array_before_it_reads(tmp_path):
    """All objects are there, and decode: only the document tells."""
    array = whole(tmp_path)
    task = pickle.dumps(array)
    other = zd.create_array(
        tmp_path, "a", overwrite=True, shape=(4, 4), dtype="u4", chunks=(2, 2), fill_value=0
    )
    other[...] = 7
    with pytest.raises(MetadataChangedError):
        pickle.loads(task)[...]


# --- what is written ------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder that this process sees as its own, and one for those that do not."""
    seen, unseen = tmp_path / "seen", tmp_path / "unseen"
    for folder in (seen, unseen):
        folder.mkdir()
    monkeypatch.chdir(seen)
    return seen, unseen


@needs_proc
@pytest.mark.parametrize(
    "job",
    [
        lambda a: a.to_dask().sum().compute(),
        lambda a: zd.to_zarr(a.to_dask() * 3, "out.zarr"),
        lambda a: zd.rechunk(a, "out.zarr", chunks=(4, 8)),
        lambda a: zd.rechunk(a, "out.zarr", chunks=(4, 8), verify=True),
        lambda a: zd.copy(a, "out.zarr"),
        lambda a: zd.compare(a, zd.create_array("zeros.zarr", shape=(8, 8), dtype="i4", chunks=2)),
        lambda a: zd.verify(a, deep="decode"),
    ],
    ids=["sum", "write", "rechunk", "rechunk and verify", "copy", "compare", "verify"],
)
def test_workers_that_do_not_see_the_source(folders, client, job):
    seen, _ = folders
    _set_folders(client, folders, 2)
    made = zd.create_array(str(HERE / "s.zarr"), shape=(8, 8), dtype="i4", chunks=(2, 2))
    made[...] = 5
    array = zd.open_array(str(HERE / "s.zarr"))
    with pytest.raises(NodeNotFoundError, match="does not see the store"):
        job(array)
    assert not (seen / "out.zarr" / "zarr.json").exists()


@needs_proc
@pytest.mark.parametrize("blind", [1, 2])
def test_workers_that_do_not_see_the_target(folders, client, blind):
    """The journal is seen by them here: it lies where links lead to."""
    seen, _ = folders
    _set_folders(client, folders, blind)
    try:
        zd.to_zarr(da.ones((8, 8), dtype="i4", chunks=2), str(HERE / "t.zarr"))
    except (StoreOutOfReachError, ResumeError):
        assert not (seen / "t.zarr" / "zarr.json").exists()
    else:  # the other worker has done it all
        assert blind == 1
        assert (zd.open_array(seen / "t.zarr")[...] == 1).all()


def _set_folders(client, folders, blind: int) -> None:
    for number, worker in enumerate(sorted(client.scheduler_info()["workers"])):
        client.run(os.chdir, str(folders[number < blind]), workers=[worker])


def test_a_task_that_does_not_see_its_job(tmp_path, monkeypatch):
    """To it the folder is empty, as on another host."""
    root = tmp_path / "host"
    root.mkdir()
    plan = zd.plan_write(da.ones((4, 4), dtype="i4", chunks=2), root / "t.zarr")
    tasks = plan.collection()
    monkeypatch.setattr("zarr_dask.jobs.engine.visibility._SEEN", BoundedSet())
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreOutOfReachError, match=f"process {os.getpid()} on "):
        tasks.compute(scheduler="sync")
    assert not root.exists()


def test_a_rechunking_task_that_does_not_see_its_job(tmp_path, monkeypatch):
    root = tmp_path / "host"
    root.mkdir()
    source = whole(tmp_path / "source")
    plan = zd.plan_rechunk(source, root / "t.zarr", chunks=(4, 1))
    stage = start_job(plan.as_job()).stage(0)
    monkeypatch.setattr("zarr_dask.jobs.engine.visibility._SEEN", BoundedSet())
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreOutOfReachError, match=f"process {os.getpid()} on "):
        stage.copy(0)
    assert not root.exists()


def test_a_task_that_runs_again_after_the_end(tmp_path, monkeypatch):
    plan = zd.plan_write(da.ones((4, 4), dtype="i4", chunks=2), tmp_path / "t.zarr")
    tasks = plan.collection()
    for _ in range(2):
        monkeypatch.setattr("zarr_dask.jobs.engine.visibility._SEEN", BoundedSet())
        tasks.compute(scheduler="sync")
    assert (zd.open_array(tmp_path / "t.zarr")[...] == 1).all()


def test_a_task_that_does_not_see_what_takes_the_place(tmp_path, monkeypatch):
    root = tmp_path / "host"
    zd.to_zarr(da.zeros((4, 4), dtype="i4", chunks=2), root / "t.zarr")
    values = da.ones((4, 4), dtype="i4", chunks=2)
    tasks = zd.plan_write(values, root / "t.zarr", mode="swap").collection()
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreOutOfReachError, match=f"process {os.getpid()} on "):
        tasks.compute(scheduler="sync")
    assert not root.exists()
    (tmp_path / "elsewhere").rename(root)
    for _ in range(2):  # and again after the end
        monkeypatch.setattr("zarr_dask.jobs.engine.visibility._SEEN", BoundedSet())
        tasks.compute(scheduler="sync")
    assert (zd.open_array(root / "t.zarr")[...] == 1).all()


@needs_proc
def test_an_array_that_the_client_does_not_see(folders, client):
    """Its workers have written all of it, elsewhere, and keep their journal where it sees it."""
    seen, unseen = folders
    _set_folders(client, folders, 2)
    with pytest.raises(StoreOutOfReachError, match="does not see it"):
        zd.to_zarr(da.ones((8, 8), dtype="i4", chunks=2), str(HERE / "t.zarr"))
    assert (unseen / "t.zarr" / "zarr.json").exists()
    assert not (seen / "t.zarr" / "zarr.json").exists()


def _failing(block):
    raise RuntimeError("no such calibration")


def test_an_array_that_a_failed_job_has_removed_is_not_read_as_fill_values(tmp_path):
    """Consolidated metadata still name it: they are written anew when a job has succeeded."""
    zd.create_group(tmp_path / "g")
    zd.to_zarr(da.ones(6, chunks=2), tmp_path / "g" / "a")
    zd.consolidate(tmp_path / "g")
    assert zd.open(tmp_path / "g")["a"].shown == Shown("")
    values = da.ones(6, chunks=2).map_blocks(_failing, dtype="f8", meta=np.empty(0))
    with (
        pytest.raises(RuntimeError, match="calibration"),
        pytest.warns(zd.errors.ConsolidatedMetadataWarning),
    ):
        zd.to_zarr(values, tmp_path / "g" / "a", mode="w")
    for read in (
        lambda: zd.open(tmp_path / "g")["a"][...],
        zd.open(tmp_path / "g")["a"].to_dask().compute,
    ):
        with pytest.raises(NodeNotFoundError, match="began to create it"):
            read()


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize(
    "change", [zd.delete, lambda url, path: zd.open(url, mode="r+").rename(path, "b")]
)
def test_an_array_that_was_removed_is_not_read_as_fill_values(tmp_path, format, change):
    """Whatever outdated consolidated metadata say, of which a warning tells who removes it."""
    zd.create_group(tmp_path, format=format)
    zd.create_array(tmp_path, "a", data=[1, 2, 3])
    zd.consolidate(tmp_path)
    with pytest.warns(zd.errors.ConsolidatedMetadataWarning):
        change(tmp_path, "a")
    array = zd.open(tmp_path)["a"]
    assert array.shown == Shown("")
    for read in (lambda: array[...], array.to_dask().compute):
        with pytest.raises(NodeNotFoundError, match="not even a folder"):
            read()


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_an_array_whose_objects_were_removed_is_not_read_as_fill_values(format):
    """In a store without folders: other nodes tell that those here have documents."""
    store = MemoryStore()
    zd.create_group(store, format=format)
    for name in "abcdefgh":
        zd.create_array(store, name, data=[1, 2, 3])
    zd.consolidate(store)
    for name in "bc":
        store.delete_prefix(f"{name}/")
    array = zd.open(store)["b"]
    assert array.shown == Shown("")
    for read in (lambda: array[...], array.to_dask().compute):
        with pytest.raises(NodeNotFoundError, match="documents of their own, and it has none"):
            read()
    assert zd.open(store)["a"][...].tolist() == [1, 2, 3]


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_a_hierarchy_with_nothing_but_consolidated_metadata_has_fill_values(format):
    store = MemoryStore()
    zd.create_group(store, format=format)
    for name in "ab":
        zd.create_array(store, name, shape=3, dtype="i4", fill_value=7)
    zd.consolidate(store)
    for name in "ab":
        store.delete_prefix(f"{name}/")
    assert zd.open(store)["a"][...].tolist() == [7, 7, 7]


class Away(HookStore):
    """Local files of which a folder is moved away, and back, while the first object is asked for.

    Others moved it twice, and the document is there when a reader looks at it again.
    """

    def get_start(self, key, nbytes):
        self.__dict__.setdefault("asked", []).append(key)
        if len(self.asked) > 1:
            return super().get_start(key, nbytes)
        folder = Path(self.store.root, "g")
        folder.rename(folder.with_name("elsewhere"))
        try:
            return super().get_start(key, nbytes)
        finally:
            folder.with_name("elsewhere").rename(folder)


@pytest.fixture(params=["g", "g/a"])
def moving(request, tmp_path):
    """An array that is moved, or a group with it, and what it holds."""
    stored = zd.create_array(tmp_path, request.param, shape=6, dtype="i4", chunks=2)
    stored[...] = np.arange(1, 7)
    store = Away(open_store(tmp_path), lambda *_: None)
    return zd.open_array(store, request.param, mode="r+")


@pytest.mark.parametrize("selection", [np.s_[:], np.s_[0], np.s_[[0, 3, 5]]])
def test_what_is_missing_while_an_array_is_moved_and_moved_back_is_no_fill_value(moving, selection):
    values = moving.vindex[selection] if isinstance(selection, list) else moving[selection]
    np.testing.assert_array_equal(values, np.arange(1, 7)[selection])


def test_a_part_is_not_written_over_an_object_that_was_moved_and_moved_back(moving):
    moving[0] = 9
    assert moving[...].tolist() == [9, 2, 3, 4, 5, 6]


def test_an_absent_object_of_an_array_that_stays_is_looked_for_once(tmp_path, monkeypatch):
    zd.create_array(tmp_path, "g", shape=6, dtype="i4", chunks=2)
    monkeypatch.setattr(reader, "time_ns", lambda: time_ns() + 10**9)  # long after it was made
    asked = []
    store = HookStore(open_store(tmp_path), lambda how, key: asked.append(key))
    array = zd.open_array(store, "g")
    assert array[...].tolist() == [0] * 6
    assert [asked.count(f"g/c/{n}") for n in range(3)] == [1] * 3
