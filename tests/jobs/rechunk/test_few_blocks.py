"""Tasks that need a few blocks of large chunks: they hold these, and whole chunks one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partialmethod
from threading import Lock

import numpy as np
import pytest
import tensorstore as ts

import zarr_dask as zd
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.stores import LocalStore

SHAPE = (300, 256, 256)
CHUNKS = (128, 128, 256)
THREADS = 8
MB = 10**6


def blosc(typesize=4, **given):
    configuration = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "blocksize": 0}
    return {"name": "blosc", "configuration": configuration | given | {"typesize": typesize}}


def made(place, codecs, *, dtype="f4", order="C"):
    """An array of 16 MB chunks, those at its end cut off."""
    transposed = [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}]
    array = zd.create_array(
        place,
        shape=SHAPE,
        chunks=CHUNKS,
        dtype=dtype,
        codecs=[*(transposed if order == "F" else []), *codecs],
    )
    array[...] = np.arange(np.prod(SHAPE), dtype=dtype).reshape(SHAPE)
    return array


def plan_of(array, place, chunks=(10, 256, 256), max_mem=THREADS * 48 * MB):
    return zd.plan_rechunk(array, place, chunks=chunks, max_mem=max_mem, threads=THREADS)


@pytest.mark.parametrize("dtype", ["<f4", ">i4"])
def test_tasks_hold_the_rows_that_they_need(tmp_path, dtype):
    array = made(tmp_path / "a", [blosc()], dtype=dtype)
    plan = plan_of(array, tmp_path / "b")
    (stage,) = plan.stages
    assert stage.sparing
    chunk = np.prod(CHUNKS) * 4
    assert plan.peak < THREADS * stage.peak - (THREADS - 1) * chunk
    assert plan.peak > stage.peak, "one of them may hold a whole chunk"
    report = plan.run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], array[...])
    assert report.stages[0].actual.decoded == plan.costs.decoded


@pytest.mark.parametrize(
    ("codecs", "order"),
    [([blosc(3)], "C"), ([blosc(cname="zstd", blocksize=1 << 27)], "C"), ([blosc()], "F")],
)
def test_chunks_of_which_no_part_is_read_count_whole(tmp_path, codecs, order):
    array = made(tmp_path / "a", codecs, order=order)
    plan = plan_of(array, tmp_path / "b", max_mem=THREADS * 80 * MB)
    assert not any(stage.sparing for stage in plan.stages)
    assert plan.stages[0].memory(2) == 2 * plan.stages[0].peak


@pytest.mark.parametrize("box", [(64, 256, 256), (10, 256, 256), (300, 5, 256), (1, 1, 256)])
def test_what_is_held_of_a_chunk(tmp_path, box):
    """Rows of all columns, and a block on either side; nothing is gained for more than half."""
    source = layout_of(zd.create_array({}, shape=SHAPE, chunks=CHUNKS, dtype="f4"))
    assert source.part(box) is None, "not in a file"
    local = zd.create_array(tmp_path, shape=SHAPE, chunks=CHUNKS, dtype="f4", codecs=[blosc()])
    source = layout_of(local)
    expected = min(box[0], 128) * 128 * 256 * 4 + 2 * source.partial_decode_nbytes
    assert source.part(box) == (expected if box[0] < 64 else None)
    target = layout_of(zd.create_array({}, shape=SHAPE, chunks=box, dtype="f4"))
    plan = StagePlan(source, target, box)
    assert plan.memory(1) == plan.peak
    assert plan.memory(2) <= 2 * plan.peak


def test_pieces_of_a_small_chunk_are_no_more_than_the_chunk(tmp_path):
    """Two pieces of a MiB would be more than these chunks, and than the budget of each task."""
    local = zd.create_array(tmp_path, shape=(250_000,), dtype="f4", codecs=[blosc()])
    source = layout_of(local)
    plan = StagePlan(source, layout_of(zd.create_array({}, shape=(250_000,), dtype="f4")), (2000,))
    assert plan.sparing
    assert plan.memory(2) <= 2 * plan.peak


class Decoding:
    """How many threads hold the bytes of whole chunks at a time."""

    def __init__(self) -> None:
        self.most = self._now = self.calls = 0
        self._lock = Lock()

    def __call__(self, codec, buffer, out):
        with self._lock:
            self._now += 1
            self.calls += 1
            self.most = max(self.most, self._now)
        try:
            self.original(codec, buffer, out)
        finally:
            with self._lock:
                self._now -= 1

    original = staticmethod(Blosc.decode_into)


def unexpected(place):
    """Chunks that end within an element of three bytes, which the document does not say.

    One does not: that in the middle, which plans look at.
    """
    made(place, [blosc(3)])
    values = (np.arange(np.prod(SHAPE)) // 1000 % 77).astype("f4").reshape(SHAPE)
    kvstore = {"driver": "file", "path": str(place)}
    ts.open({"driver": "zarr3", "kvstore": kvstore}).result().write(values).result()
    document = place / "zarr.json"
    document.write_text(document.read_text().replace('"typesize": 3', '"typesize": 4'))
    array = zd.open_array(LocalStore(str(place)), mode="r+")
    array[128:256, 128:] = values[128:256, 128:]
    return array, values


@pytest.mark.slow
def test_chunks_that_are_not_as_expected_are_held_one_at_a_time(tmp_path, monkeypatch):
    array, values = unexpected(tmp_path / "a")
    plan = plan_of(array, tmp_path / "b")
    assert plan.stages[0].sparing
    decoding = Decoding()
    monkeypatch.setattr(Blosc, "decode_into", partialmethod(decoding))
    report = plan.run()
    assert decoding.most == 1
    assert decoding.calls >= plan.tasks
    assert report.stages[0].actual.decoded == plan.costs.decoded, (
        "what was begun in vain does not count"
    )
    monkeypatch.undo()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values)


FORKED = """
import os, sys, threading
import zarr_dask as zd
from zarr_dask.codecs.compress.blosc import Blosc

source, target = sys.argv[1:]
original, decoding, ended = Blosc.decode_into, threading.Event(), threading.Event()

def wait(codec, buffer, out):
    decoding.set()
    ended.wait()
    original(codec, buffer, out)

plans = [zd.plan_rechunk(source, target + n, chunks=(10, 256, 256), max_mem="48MB", threads=1)
         for n in "12"]
assert all(plan.stages[0].sparing for plan in plans)
Blosc.decode_into = wait
other = threading.Thread(target=plans[0].run)
other.start()
decoding.wait()
child = os.fork()  # while a task holds a whole chunk
if child == 0:
    Blosc.decode_into = original
    plans[1].run()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ended.set()
other.join()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_whole_chunks_are_held_in_a_child_of_a_process_that_holds_one(tmp_path):
    _, values = unexpected(tmp_path / "a")
    command = [sys.executable, "-c", FORKED, str(tmp_path / "a"), str(tmp_path / "b")]
    subprocess.run(command, check=True, timeout=50, env=os.environ | {"DASK_SCHEDULER": "sync"})
    for number in "12":
        np.testing.assert_array_equal(zd.open_array(tmp_path / f"b{number}")[...], values)


def test_damage_is_found_where_parts_are_read(tmp_path):
    made(tmp_path / "a", [blosc()])
    stored = tmp_path / "a/c/1/1/0"
    content = bytearray(stored.read_bytes())
    content[40_000:60_000] = bytes(20_000)
    stored.write_bytes(content)
    plan = plan_of(zd.open_array(tmp_path / "a"), tmp_path / "b")
    assert plan.stages[0].sparing
    with pytest.raises(zd.errors.CorruptObjectError, match=r"c/1/1/0"):
        plan.run()


def test_absent_chunks_are_fill_values(tmp_path):
    array = made(tmp_path / "a", [blosc()])
    (tmp_path / "a/c/0/1/0").unlink()
    plan = plan_of(array, tmp_path / "b")
    assert plan.stages[0].sparing
    plan.run()
    found = zd.open_array(tmp_path / "b")[...]
    assert not found[:128, 128:].any()
    np.testing.assert_array_equal(found, array[...])
