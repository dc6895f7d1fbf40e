"""Deleting and renaming a node while another changes its metadata: one of the two orders."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.errors import (
    MetadataChangedError,
    NodeExistsError,
    NodeNotFoundError,
    ZarrDaskError,
)
from zarr_dask.hierarchy import edit
from zarr_dask.journal import default_place
from zarr_dask.journal.lock import lock_job
from zarr_dask.stores import LocalStore, MemoryStore

VALUES = np.arange(1, 13, dtype="i4")


CONDITIONS = {"local": ("_has", 1), "memory": ("get", 2)}
"""The method by which a store looks whether a condition holds, and which of its calls that is."""


def store_of(kind: str, folder) -> LocalStore | MemoryStore:
    return LocalStore(str(folder / "h.zarr")) if kind == "local" else MemoryStore()


def array_in(store, path: str) -> zd.Array:
    array = zd.create_array(store, path, shape=VALUES.shape, dtype="i4", chunks=4)
    array[...] = VALUES
    return zd.open_array(store, path, mode="r+")


@pytest.mark.parametrize("path", ["", "a"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_node_deleted_during_an_update_of_its_attributes_is_gone(
    tmp_path, monkeypatch, kind, path
):
    store = store_of(kind, tmp_path)
    if path:
        zd.create_group(store)
    array = array_in(store, path)
    look, looks = CONDITIONS[kind]
    true, key = getattr(type(store), look), f"{path}/zarr.json".lstrip("/")
    looked, deletes = [], threading.Event()

    def delete():
        deletes.set()
        zd.delete(store, path)

    def looking(self, asked, *tag):
        value = true(self, asked, *tag)
        if asked == key and threading.current_thread() is threading.main_thread():
            looked.append(asked)
            if len(looked) == looks:  # the condition holds; what it lets be put comes next
                running.append(pool.submit(delete))
                assert deletes.wait(20)
                wait_a_little(running[0])
        return value

    running = []
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(type(store), look, looking)
        array.update_attributes({"x": 1})
        running[0].result(20)
    assert list(store.list(f"{path}/".lstrip("/"))) == []
    with pytest.raises(NodeNotFoundError):
        zd.open(store, path)


def wait_a_little(future) -> None:
    """Let a deletion end that nothing holds up."""
    with suppress(TimeoutError):
        future.result(0.3)


def test_a_node_renamed_during_an_update_of_its_attributes_is_not_there_twice(
    tmp_path, monkeypatch
):
    store = store_of("local", tmp_path)
    zd.create_group(store)
    array = array_in(store, "a")
    true, looked = LocalStore._has, []

    def has(self, asked, tag):
        value = true(self, asked, tag)
        if asked == "a/zarr.json" and not looked:
            looked.append(asked)
            zd.open_group(store, mode="r+").rename("a", "b")
        return value

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "_has", has)
        with pytest.raises(MetadataChangedError):
            array.update_attributes({"x": 1})
    assert not (tmp_path / "h.zarr" / "a").exists()
    renamed = zd.open_array(store, "b")
    assert renamed.attributes == {}
    np.testing.assert_array_equal(renamed[...], VALUES)


def _updates(root: str, began) -> None:
    began.wait(20)
    for number in range(400):
        try:
            zd.open_array(root, "a", mode="r+").update_attributes({"x": number})
        except ZarrDaskError:
            continue  # it was not there, or has gone since


@pytest.mark.slow
def test_two_processes_that_delete_and_update_leave_whole_nodes_or_none(tmp_path):
    store = store_of("local", tmp_path)
    zd.create_group(store)
    context = get_context("spawn")
    began = context.Event()
    process = context.Process(target=_updates, args=(store.root, began))
    process.start()
    try:
        began.set()
        while process.is_alive():
            array_in(store, "a")
            zd.delete(store, "a")
            with pytest.raises(NodeNotFoundError):
                zd.open(store, "a")
            array_in(store, "a")
            np.testing.assert_array_equal(zd.open_array(store, "a")[...], VALUES)
            zd.delete(store, "a")
    finally:
        process.join()
    assert process.exitcode == 0
    assert left_in(tmp_path) == {"h.zarr"}


def test_a_node_that_is_removed_right_after_it_was_renamed_is_returned(tmp_path, monkeypatch):
    root = zd.create_group(tmp_path)
    root.create_array("a", shape=2, dtype="i4", attributes={"id": 1})
    unseen = edit.warn_stale_consolidated

    def another_process(*args: Any) -> None:
        if (tmp_path / "b").exists():
            zd.delete(tmp_path, "b")
        unseen(*args)

    monkeypatch.setattr(edit, "warn_stale_consolidated", another_process)
    assert root.rename("a", "b").attributes["id"] == 1


def test_a_node_that_is_migrated_when_it_is_renamed_is_returned_in_its_new_format(tmp_path):
    """The group was opened before, and is of the old format."""
    root = str(tmp_path / "h.zarr")
    group = zd.create_group(root, format="v2")
    zd.create_array(group, "a", data=VALUES, chunks=4)
    zd.migrate(root, remove_old=True)
    renamed = group.rename("a", "b")
    assert (renamed.path, renamed.format, renamed[...].tolist()) == ("b", "v3", VALUES.tolist())
    assert list(zd.open_group(root)) == ["b"]


def test_renaming_waits_until_what_was_there_has_been_removed(tmp_path, monkeypatch):
    root = zd.create_group(tmp_path)
    for name in "ab":
        root.create_array(name, shape=2, dtype="i4")[...] = 1
    renamed: list[zd.Array | zd.Group] = []
    renaming = threading.Thread(target=lambda: renamed.append(root.rename("a", "b")))
    removed = edit._remove_objects

    def slowly(*args: Any) -> None:
        renaming.start()
        renaming.join(0.2)  # it has to wait
        removed(*args)

    monkeypatch.setattr(edit, "_remove_objects", slowly)
    zd.delete(tmp_path, "b")
    renaming.join()
    assert [one.path for one in renamed] == ["b"]


@pytest.mark.parametrize("index", [slice(0, 4), [1, 3]])
def test_values_that_come_too_late_for_an_array_that_is_renamed_are_refused(
    tmp_path, monkeypatch, index
):
    store = LocalStore(str(tmp_path))
    root = zd.create_group(store)
    array, true = array_in(store, "a"), LocalStore.set

    def renamed_before(self, key, parts, *args, **options):
        monkeypatch.undo()
        root.rename("a", "b")
        return true(self, key, parts, *args, **options)

    monkeypatch.setattr(LocalStore, "set", renamed_before)
    with pytest.raises(NodeNotFoundError, match="came too late"):
        array[index] = 7
    np.testing.assert_array_equal(root["b"][...], VALUES)


def test_values_that_go_with_an_array_that_is_renamed_are_written(tmp_path, monkeypatch):
    store = LocalStore(str(tmp_path))
    root = zd.create_group(store)
    array, true = array_in(store, "a"), LocalStore.set

    def renamed_after(self, key, parts, *args, **options):
        monkeypatch.undo()
        true(self, key, parts, *args, **options)
        root.rename("a", "b")

    monkeypatch.setattr(LocalStore, "set", renamed_after)
    array[:4] = 7
    assert root["b"][3] == 7


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_attributes_are_given_to_an_array_that_others_have_made_longer(tmp_path, form):
    other = zd.create_array(tmp_path / "a", shape=(2,), dtype="i4", chunks=2, format=form)
    array = pickle.loads(pickle.dumps(other))  # as in another process
    other.append(np.ones(3, "i4"))
    array.update_attributes({"x": 1})
    assert array.shape == (5,)
    found = zd.open_array(tmp_path / "a")
    assert (found.shape, found.attributes) == ((5,), {"x": 1})
    other = pickle.loads(pickle.dumps(array))
    array.resize((1,))
    other.update_attributes({"y": 2})
    found = zd.open_array(tmp_path / "a")
    assert (found.shape, found.attributes) == ((1,), {"x": 1, "y": 2})


@pytest.mark.parametrize("changed", [{"chunks": 3}, {"dtype": "i8"}, {"fill_value": 1}])
def test_attributes_are_not_given_to_another_array(tmp_path, changed):
    same = {"shape": (6,), "dtype": "i4", "chunks": 2}
    array = pickle.loads(pickle.dumps(zd.create_array(tmp_path / "a", **same)))
    zd.create_array(tmp_path / "a", **{**same, **changed}, overwrite=True)
    with pytest.raises(MetadataChangedError, match="Open it again"):
        array.update_attributes({"x": 1})
    assert zd.open_array(tmp_path / "a").attributes == {}


def test_attributes_are_given_to_a_group_that_others_have_consolidated(tmp_path):
    other = zd.create_group(tmp_path / "g")
    zd.create_array(tmp_path / "g", "a", shape=(2,), dtype="i4")
    group = pickle.loads(pickle.dumps(other))  # as in another process
    zd.consolidate(tmp_path / "g")
    group.update_attributes({"x": 1})
    found = zd.open_group(tmp_path / "g")
    assert (found.attributes, found.stale()) == ({"x": 1}, [])
    assert "consolidated_metadata" in (tmp_path / "g" / "zarr.json").read_text()
    zd.delete(tmp_path / "g")
    with pytest.raises(MetadataChangedError, match="Open it again"):
        group.update_attributes({"x": 2})


@pytest.mark.parametrize("call", ["rename", "delete"])
def test_a_job_that_begins_when_its_node_goes_is_no_reason_to_refuse_that(
    tmp_path, monkeypatch, call
):
    """It holds its journal when the node has gone already, and finds none."""
    group = zd.create_group(tmp_path / "h.zarr")
    array_in(group.store, "a")
    true, held = edit.discard_journals, []

    def discard(store, path, *args, **options):
        place, name = default_place(store, path), f"__job-{0:016x}/"
        (tmp_path / "h.zarr.zarr-dask/a" / name).mkdir(parents=True)
        held.append(lock_job(place.store, f"{place.prefix}{name}"))
        true(store, path, *args, **options)

    monkeypatch.setattr(edit, "discard_journals", discard)
    if call == "rename":
        group.rename("a", "b")
        np.testing.assert_array_equal(group["b"][...], VALUES)
    else:
        zd.delete(group.store, "a")
        assert not (tmp_path / "h.zarr/a").exists()
    assert held
    assert "a" not in group
    held[0].close()


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_new_node_that_comes_too_late_does_not_give_its_attributes_to_the_other_one(
    tmp_path, monkeypatch, kind
):
    """Formats v1 and v2 have documents of their own for attributes, which are put first."""
    store = store_of(kind, tmp_path)
    zd.create_group(store, format="v2", attributes={"id": 0})
    zd.create_array(store, "a", shape=3, dtype="i4", format="v2", attributes={"id": 1})
    true = edit.put_new_node

    def late(*args, **options):
        zd.open_group(store, mode="r+").rename("a", "b")
        true(*args, **options)

    monkeypatch.setattr(edit, "put_new_node", late)
    with pytest.raises(NodeExistsError):
        zd.create_array(store, "b", shape=3, dtype="i4", format="v2", attributes={"id": 2})
    assert zd.open_array(store, "b").attributes == {"id": 1}


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_values_of_an_array_that_another_job_has_just_made_are_no_leftovers(
    tmp_path, monkeypatch, form
):
    """The second one has found nothing there, and makes room when the first one has ended."""
    path = tmp_path / "h.zarr"
    zd.create_group(path, format=form)
    values = da.from_array(VALUES, chunks=4)
    true = edit.make_room_for_node

    def late(*args, **options):
        monkeypatch.setattr(edit, "make_room_for_node", true)
        reserved = true(*args, **options)
        zd.to_zarr(values, path, "a", format=form)
        return reserved._replace(emptied=frozenset())

    monkeypatch.setattr(edit, "make_room_for_node", late)
    with pytest.raises(NodeExistsError):
        zd.create_array(path, "a", shape=VALUES.shape, dtype="i4", chunks=4, format=form)
    np.testing.assert_array_equal(zd.open_array(path, "a")[...], VALUES)
