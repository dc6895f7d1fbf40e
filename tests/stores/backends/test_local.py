"""Local files on NFS, whose server answers ESTALE for what another host has replaced or removed."""

import errno
import os

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import ObjectReplacedError
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
