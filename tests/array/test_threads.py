"""Which threads read and write: the calling one alone where others would not help."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.threads import threads_at_work
from zarr_dask.stores import LocalStore, MemoryStore, mounts
from zarr_dask.stores.base import ReadPolicy

CHUNKS = 16
VALUES = np.arange(CHUNKS * 1000, dtype="f4").reshape(CHUNKS, 1000)


class Waiting(MemoryStore):
    """A store whose requests take their time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)


def as_if_near(monkeypatch, *, is_near) -> None:
    """Let folders lie in a file system of this host, or of another one."""
    monkeypatch.setattr(mounts, "is_on_this_host", lambda _: is_near)


def array_in(store, **options) -> zd.Array:
    return zd.create_array(store, "a", shape=VALUES.shape, dtype="f4", chunks=(1, 1000), **options)


@pytest.mark.parametrize("shards", [None, (4, 1000)])
@pytest.mark.parametrize("where", ["folder", "memory"])
def test_small_chunks_are_written_by_the_calling_thread(tmp_path, monkeypatch, where, shards):
    as_if_near(monkeypatch, is_near=True)
    array = array_in(LocalStore(tmp_path) if where == "folder" else MemoryStore(), shards=shards)
    found = threads_at_work(monkeypatch, "pieces", (1, 1000))
    array[...] = VALUES
    assert found == [threading.get_ident()] * CHUNKS
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("why", ["another host", "fsync", "requests", "slow codec", "asked for"])
def test_threads_write_together_where_they_wait_or_compute(tmp_path, monkeypatch, why):
    as_if_near(monkeypatch, is_near=why != "another host")
    store = Waiting() if why == "requests" else LocalStore(tmp_path, fsync=why == "fsync")
    array = array_in(store, codecs=["gzip" if why == "slow codec" else "zstd"])
    found = threads_at_work(monkeypatch, "pieces", (1, 1000), abreast=2)
    if why == "asked for":
        array.write((slice(CHUNKS), slice(1000)), VALUES, threads=2)
    else:
        array[...] = VALUES
    assert len(set(found)) >= 2
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("is_near", [True, False])
def test_small_chunks_are_read_together_behind_a_network(tmp_path, monkeypatch, is_near):
    as_if_near(monkeypatch, is_near=is_near)
    array = array_in(LocalStore(tmp_path))
    array[...] = VALUES
    found = threads_at_work(monkeypatch, "decode", (1, 1000), abreast=1 if is_near else 2)
    np.testing.assert_array_equal(array[...], VALUES)
    assert len(set(found)) == (1 if is_near else 2)
    assert len(found) == CHUNKS
