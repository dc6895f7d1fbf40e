"""Stored objects that are written while a migration gives them other keys."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import MetadataChangedError
from zarr_dask.jobs.migrate import copies
from zarr_dask.stores import HookStore, MemoryStore, open_store

VALUES = np.arange(1, 9, dtype="i4")


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path):
    made = open_store(str(tmp_path / "old.zarr")) if request.param == "files" else MemoryStore({})
    plain = {"shape": 8, "dtype": "<i4", "chunks": 2, "codecs": []}
    zd.create_array(made, "c", format="v2", **plain)[...] = VALUES
    return made


def old_array(store):
    return zd.open_array(store, "c", mode="r+", format="v2")


def new_values(store):
    return zd.open_array(store, "c", format="v3")[...]


def before(store, call, key):
    """A store that makes a call once, right before a value is put."""
    left = [call]

    def hook(operation, at):
        if left and operation == "set" and at == key:
            left.pop()()

    return HookStore(store, hook)


def after(store, call, key):
    """A store that makes a call once, right after a value was put."""
    left = [call]

    class After(HookStore):
        def set(self, at, buffers):
            super().set(at, buffers)
            if left and at == key:
                left.pop()()

    return After(store, lambda *_: None)


WRITES = {
    "changed": (0, 7),
    "removed": (0, 0),
    "another": (6, 5),
}


@pytest.mark.parametrize("when", [before, after])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_around_the_new_metadata_is_in_the_copy(store, when, write):
    if write == "another":
        old_array(store)[6:] = 0  # so that the object is not there yet
    start, value = WRITES[write]
    array, wanted = old_array(store), old_array(store)[...]
    wanted[start : start + 2] = value

    def put():
        try:
            array[start : start + 2] = value
        except MetadataChangedError:
            assert when is after

    zd.migrate(when(store, put, "c/zarr.json"), data="rename")
    np.testing.assert_array_equal(new_values(store), wanted)


@pytest.mark.parametrize("start", [0, 2])
def test_what_was_written_through_the_new_metadata_is_not_replaced(store, start):
    array = old_array(store)

    def both():
        zd.open_array(store, "c", mode="r+", format="v3")[0:2] = 70
        for number in {start // 2, 3}:
            store.set(f"c/{number}", [np.full(2, 7, "<i4").tobytes()])

    migrating = after(store, both, "c/zarr.json")
    if start:
        zd.migrate(migrating, data="rename")
        assert new_values(store).tolist() == [70, 70, 7, 7, 5, 6, 7, 7]
        return
    with pytest.raises(MetadataChangedError, match=r"c/0 was written .* copy 'c/c/0'"):
        zd.migrate(migrating, data="rename", remove_old=True)
    assert new_values(store).tolist() == [70, 70, 3, 4, 5, 6, 7, 7]  # the last was copied again
    assert array[:2].tolist() == [7, 7]


def test_a_removed_object_that_was_written_through_the_new_metadata_stays(store):
    def both():
        zd.open_array(store, "c", mode="r+", format="v3")[0:2] = 70
        store.delete("c/0")

    with pytest.raises(MetadataChangedError, match="c/0 was written"):
        zd.migrate(after(store, both, "c/zarr.json"), data="rename")
    assert new_values(store)[:2].tolist() == [70, 70]


def test_old_objects_that_do_not_stop_to_change_end_the_migration(store, monkeypatch):
    monkeypatch.setattr(copies, "_ROUNDS", 3)
    number = iter(range(100))

    def write(operation, at):
        if operation == "list" and at.startswith("c"):
            store.set("c/0", [np.full(2, next(number), "<i4").tobytes()])

    with pytest.raises(MetadataChangedError, match="again and again"):
        zd.migrate(HookStore(store, write), data="rename")
    assert store.size("c/zarr.json") is None


@pytest.mark.parametrize("way", ["assignment", "to_zarr"])
def test_a_write_of_the_old_objects_after_the_migration_is_refused(tmp_path, way):
    """It is seen by readers of the old format alone; the migration may have copied it before."""
    where = str(tmp_path / "a.zarr")
    array = zd.create_array(where, shape=8, dtype="i4", chunks=2, format="v2")
    plan = zd.plan_write(da.ones(2, chunks=2, dtype="i4"), array, region=np.s_[:2])
    zd.migrate(where, data="rename")

    calls = {"assignment": lambda: array.__setitem__(np.s_[:2], 1), "to_zarr": plan.run}
    with dask.config.set(scheduler="sync"), pytest.raises(MetadataChangedError, match="other keys"):
        calls[way]()


def test_a_write_beside_new_metadata_with_the_same_objects_is_seen_through_both(tmp_path):
    where = str(tmp_path / "a.zarr")
    array = zd.create_array(where, shape=8, dtype="i4", chunks=2, format="v2")
    zd.migrate(where)
    array[:2] = 1
    assert zd.open_array(where, format="v3")[:2].tolist() == [1, 1]


def test_metadata_that_are_withdrawn_take_no_change_of_others_with_them(tmp_path):
    """The old ones have changed, so that the new ones go, unless somebody has changed these."""
    store = open_store(str(tmp_path / "old.zarr"))
    zd.create_array(store, "c", shape=8, dtype="i4", chunks=2, format="v2")

    def both():
        zd.open_array(store, "c", mode="r+", format="v3").update_attributes({"new": 1})
        store.set("c/.zattrs", [b'{"old": 1}'])

    with pytest.raises(MetadataChangedError):
        zd.migrate(after(store, both, "c/zarr.json"), data="rename")
    assert zd.open_array(store, "c", format="v3").attributes == {"new": 1}
