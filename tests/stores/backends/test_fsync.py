"""What a process remembers of folders that are on the disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from unittest import mock

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import StoreError
from zarr_dask.stores import LocalStore, streaming_put
from zarr_dask.stores.backends import posix_io as fsync


@pytest.fixture
def synced() -> Iterator[list[str]]:
    """Folders that are synced, in a process that knows of none."""
    seen: list[str] = []
    memory = (fsync._KNOWN, fsync._BELOW, fsync._REAL)
    known, below, real = (mock.patch.dict(one, clear=True) for one in memory)
    with known, below, real, mock.patch.object(fsync, "fsync_folder", seen.append):
        yield seen


def names(seen: list[str], root: Path) -> set[str]:
    found = {os.path.relpath(one, root) for one in seen if Path(one).is_relative_to(root)}
    seen.clear()
    return found


def test_folders_are_synced_once_and_again_after_they_are_forgotten(
    tmp_path: Path, synced: list[str]
) -> None:
    root = tmp_path.resolve()
    for name in ("g/a/c", "g/ab", "g/b"):
        (root / name).mkdir(parents=True)
        fsync.fsync_names(str(root / name), str(root))
    assert names(synced, root) == {".", "g", "g/a", "g/a/c", "g/ab", "g/b"}
    fsync.fsync_names(str(root / "g/a/c"), str(root))
    assert names(synced, root) == {"g/a/c"}
    fsync.forget_folders(str(root / "g/a"))
    assert not [one for one in fsync._KNOWN if one.startswith(f"{root}/g/a/")]
    fsync.fsync_names(str(root / "g/ab"), str(root))
    assert names(synced, root) == {"g/ab"}  # a name that begins alike
    fsync.fsync_names(str(root / "g/a/c"), str(root))
    assert names(synced, root) == {"g/a/c", "g/a", "g"}
    fsync.forget_folders(str(root))
    assert not [one for one in fsync._KNOWN if one.startswith(str(root))]


def test_forgetting_looks_at_no_other_folders(tmp_path: Path, synced: list[str]) -> None:
    for number in range(300):
        (tmp_path / f"{number}").mkdir()
        fsync.fsync_names(str(tmp_path / f"{number}"), str(tmp_path))
    with mock.patch.object(fsync, "_KNOWN", mock.MagicMock(wraps=fsync._KNOWN)) as known:
        fsync.forget_folders(str(tmp_path / "7"))
    assert [call[0] for call in known.method_calls] == ["pop"]
    known.__iter__.assert_not_called()
    shutil.rmtree(tmp_path / "7")
    assert len([one for one in fsync._KNOWN if one.startswith(f"{tmp_path.resolve()}/")]) == 299


def test_a_folder_that_was_made_anew_is_synced_by_the_name_it_had(tmp_path, synced) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    fsync.fsync_names(str(folder), str(tmp_path))
    assert names(synced, tmp_path) == {"g", "."}
    fsync.fsync_names(str(folder), str(tmp_path))
    assert names(synced, tmp_path) == {"g"}
    folder.rename(tmp_path / "old")  # so that the new one has another inode
    folder.mkdir()
    fsync.fsync_names(str(folder), str(tmp_path))
    assert names(synced, tmp_path) == {"g", "."}


@pytest.mark.parametrize("shards", [None, 4])
def test_objects_of_one_call_are_synced_side_by_side(tmp_path, monkeypatch, shards):
    """A disk syncs many files in the time of one, also where there are few cores."""
    together = Barrier(8, timeout=30)
    fsync = os.fsync

    def counted(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            together.wait()
        fsync(descriptor)

    length = 16 * (shards or 1)
    array = zd.create_array(
        LocalStore(str(tmp_path / "array"), fsync=True),
        shape=length,
        chunks=1,
        shards=shards,
        dtype="i4",
    )
    monkeypatch.setattr(os, "fsync", counted)
    array[...] = np.arange(length) + 1
    monkeypatch.undo()
    assert array[...].tolist() == [*range(1, length + 1)]


def test_a_folder_is_synced_once_for_all_objects_of_a_call(tmp_path, monkeypatch):
    array = zd.create_array(
        LocalStore(str(tmp_path / "array"), fsync=True), shape=16, chunks=1, dtype="i4"
    )
    array[...] = 1
    counted, fsync = [], os.fsync

    def count(descriptor):
        counted.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", count)
    array[...] = 2
    assert (counted.count(False), counted.count(True)) == (16, 1)
    array[...] = 0  # which removes all objects
    assert (counted.count(False), counted.count(True)) == (16, 2)


def test_a_folder_that_cannot_be_synced_is_an_error_of_the_call(tmp_path, monkeypatch):
    array = zd.create_array(
        LocalStore(str(tmp_path / "array"), fsync=True), shape=16, chunks=1, dtype="i4"
    )

    def fail(folder, root):
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    monkeypatch.setattr(streaming_put, "fsync_names", fail)
    with pytest.raises(StoreError, match=r"could not sync the folder .*array/c: Input"):
        array[...] = 1


def test_a_large_value_is_put_piece_by_piece_beside_small_ones(tmp_path):
    """It would have to be held as a whole for a queue."""
    store = LocalStore(str(tmp_path / "array"), fsync=True)
    array = zd.create_array(
        store, shape=5 << 20, chunks=1 << 20, shards=5 << 20, dtype="u1", codecs="bytes"
    )
    with mock.patch.object(LocalStore, "set_pieces", autospec=True) as put:
        put.side_effect = lambda *given: [bytes(piece) for piece in given[2]]
        array[...] = 1
    assert put.call_count == 1
    array[...] = np.arange(5 << 20, dtype="u1")
    assert (array[...] == np.arange(5 << 20, dtype="u1")).all()


def test_a_disk_that_is_full_fails_the_call_that_syncs(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    array = zd.create_array(
        LocalStore(str(tmp_path / "array"), fsync=True), shape=16, chunks=1, dtype="i4"
    )
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        array[...] = 1
    monkeypatch.undo()
    assert [*array.store.list("c/")] == []
