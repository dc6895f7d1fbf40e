"""Local files on NFS and FUSE, where other hosts and open files change what the system answers."""

import errno
import os

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import ObjectReplacedError, StoreError
from zarr_dask.stores import LocalStore
from zarr_dask.stores.base import Range


class Stale:
    """Calls of the system that answer ESTALE so many times, and then as they do."""

    def __init__(self, monkeypatch, name: str, times: float, when=lambda *_args, **_options: True):
        self.left, self._call, self._when = times, getattr(os, name), when
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args, **options):
        if self.left > 0 and self._when(*args, **options):
            self.left -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._call(*args, **options)


@pytest.fixture
def store(tmp_path):
    made = LocalStore(str(tmp_path))
    made.set("a/b", [b"0123456789"])
    return made


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda store: store.get("a/b"), b"0123456789"),
        (lambda store: store.get_start("a/b", 4), b"0123"),
        (lambda store: store.get_transient("a/b"), b"0123456789"),
        (lambda store: store.get_ranges([("a/b", Range(2, 5))])[0], b"234"),
    ],
    ids=["get", "get_start", "get_transient", "get_ranges"],
)
def test_a_value_that_was_replaced_is_opened_anew(store, monkeypatch, read, value, times):
    stale = Stale(monkeypatch, "pread", times)
    assert bytes(read(store)) == value
    assert stale.left == 0


def test_a_value_that_is_always_replaced_is_an_error(store, monkeypatch):
    Stale(monkeypatch, "pread", np.inf)
    with pytest.raises(ObjectReplacedError, match=r"'a/b'.*Another host has replaced or removed"):
        store.get("a/b")


@pytest.mark.parametrize("shards", [None, (8, 8)])
@pytest.mark.parametrize("name", ["pread", "preadv"])
@pytest.mark.parametrize("nth", range(4))
def test_arrays_are_read_as_they_are(tmp_path, monkeypatch, shards, name, nth):
    values = np.arange(64.0).reshape(8, 8)
    options = {"chunks": (4, 4), "shards": shards, "codecs": "bytes"}
    array = zd.create_array(tmp_path / "x", data=values, **options)
    calls = iter(range(1000))
    Stale(monkeypatch, name, 1, lambda *_args, **_options: next(calls) == nth)
    np.testing.assert_array_equal(array[1:7, 2:], values[1:7, 2:])


def test_a_folder_that_was_replaced_is_listed_anew(store, monkeypatch):
    stale = Stale(monkeypatch, "scandir", 2)
    assert list(store.list()) == ["a/b"]
    assert stale.left == 0


def test_a_folder_that_was_removed_is_made_again(store, monkeypatch):
    stale = Stale(
        monkeypatch, "open", 2, lambda *_args, dir_fd=None, **_options: dir_fd is not None
    )
    store.set("a/c/d", [b"new"])
    assert store.get("a/c/d") == b"new"
    assert stale.left == 0


# --- removed files that a process still has open --------------------------------------------------

REMOVED = ".nfs00000000012a4b6600000001"


@pytest.fixture
def in_use(store, tmp_path, monkeypatch):
    """A store with a removed file that cannot go, as the client of NFS shows it."""
    store.set("x/zarr.json", [b"{}"])
    store.set("x/c/1", [b"1"])
    (tmp_path / "x" / "c" / REMOVED).write_bytes(b"0")
    unlink = os.unlink

    def refuse(path, *args, **options):
        if os.fspath(path).endswith(REMOVED):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        unlink(path, *args, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    return store


def test_a_removed_file_is_no_value(in_use):
    assert list(in_use.list("x/")) == ["x/zarr.json", "x/c/1"]
    assert in_use.list_dir("x/c/").keys == ["x/c/1"]
    assert dict(in_use.list_sizes("x/")) == {"x/zarr.json": 2, "x/c/1": 1}


@pytest.mark.parametrize("prefix", ["x/", ""])
def test_a_removed_file_keeps_nothing_else_there(in_use, tmp_path, prefix):
    in_use.delete_prefix(prefix)
    assert list(in_use.list("x/")) == []
    left = [path.name for path in (tmp_path / "x").rglob("*") if path.is_file()]
    assert left == [REMOVED]
    in_use.set("x/c/2", [b"2"])
    assert in_use.get("x/c/2") == b"2"


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EACCES, errno.EIO])
def test_what_else_cannot_be_removed_is_an_error(store, monkeypatch, code):
    store.set("x/c/1", [b"1"])

    def refuse(path, *_args, **_options):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StoreError, match=r"could not delete 'x/'"):
        store.delete_prefix("x/")
    assert store.get("x/c/1") == b"1"
