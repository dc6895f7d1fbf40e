"""`zd.rechunk` of dask arrays: written as their blocks come, then laid out anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.errors import (
    GridError,
    NodeExistsError,
    NodeNotFoundError,
    PlanError,
    ResumeError,
    SourceIsTargetError,
    ValuesDifferError,
)
from zarr_dask.jobs.write.staging import grids_between
from zarr_dask.stores import MemoryStore, Recording

SHAPE = (64, 40, 30)
VALUES = np.arange(64 * 40 * 30, dtype="f4").reshape(SHAPE)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def blocks(chunks=(4, 40, 30), counter=None):
    """A dask array that counts how often each block is computed."""

    def block(values, block_info=None):
        if counter is not None:
            counter.append(block_info[0]["chunk-location"])
        return values

    x = da.from_array(VALUES, chunks=chunks, name="values")
    return x.map_blocks(block, dtype="f4", meta=np.empty((0, 0, 0), "f4"))


def assert_right(place, chunks, folder) -> None:
    found = zarr.open_array(place, mode="r")
    np.testing.assert_array_equal(found[...], VALUES)
    assert found.chunks == chunks
    assert left_in(folder) == {place.name}


def test_blocks_that_fit_are_written_directly(tmp_path):
    computed = []
    plan = zd.plan_rechunk(blocks((8, 40, 30), computed), tmp_path / "a.zarr", chunks=(4, 20, 30))
    assert plan.direct
    assert "are written as they are" in str(plan)
    report = plan.run()
    assert report.rechunked is None
    assert len(computed) == 8
    assert_right(tmp_path / "a.zarr", (4, 20, 30), tmp_path)


@pytest.mark.parametrize("max_mem", ["1.4MB", "100MB"])
def test_blocks_that_do_not_fit_are_put_between(tmp_path, max_mem):
    computed, seen = [], []
    x = blocks((4, 40, 30), computed)
    plan = zd.plan_rechunk(x, tmp_path / "a.zarr", chunks=(-1, 10, 10), max_mem=max_mem)
    assert not plan.direct
    assert "array between" in str(plan)
    report = plan.run(progress=seen.append, verify=True)
    assert sorted(set(computed)) == sorted(computed)
    assert report.nbytes == VALUES.nbytes
    assert report.stored == zd.open_array(tmp_path / "a.zarr").nbytes_stored()
    assert_right(tmp_path / "a.zarr", (64, 10, 10), tmp_path)
    stages = 1 + len(plan.then.stages) + 1
    assert {step.stages for step in seen} == {stages}
    for stage in range(stages):
        assert sum(step.nbytes for step in seen if step.stage == stage) == VALUES.nbytes


def test_nothing_is_known_of_values_that_are_not_there_yet(tmp_path):
    """A sample of an array that is not there would say that it takes no bytes at all."""
    plan = zd.plan_rechunk(blocks(), tmp_path / "a.zarr", chunks=(-1, 10, 10))
    (stage,) = plan.then.stages
    assert stage.costs.read >= VALUES.nbytes
    assert stage.costs.stored >= VALUES.nbytes
    assert left_in(tmp_path) == set()


@pytest.mark.parametrize("chunks", [(4, 20, 30), (-1, 10, 10)])
def test_the_memory_of_blocks_is_stated(tmp_path, chunks):
    x = blocks((8, 40, 30))
    plan = zd.plan_rechunk(x, tmp_path / "a.zarr", chunks=chunks, threads=3, max_mem="100MB")
    alone = zd.plan_rechunk(x, tmp_path / "a.zarr", chunks=chunks, threads=1, max_mem="100MB")
    block = 8 * 40 * 30 * VALUES.itemsize
    assert block < alone.block_memory < 3 * block + (2 << 20)
    assert plan.block_memory == 3 * alone.block_memory
    for said in (str(plan), plan._repr_html_()):
        assert "per process for blocks" in said


def test_a_graph_has_no_plan_file_but_the_rest_has(tmp_path):
    """The refusal says how the blocks are stored first, and that works."""
    x = blocks()
    plan = zd.plan_rechunk(x, tmp_path / "a.zarr", chunks=(-1, 10, 10), max_mem="100MB")
    with pytest.raises(PlanError, match=r"zarr_dask\.to_zarr") as got:
        plan.to_json()
    said = str(got.value)
    first = said[said.index("zarr_dask.to_zarr") : said.index("; then ")]
    then = said[said.index("zarr_dask.plan_rechunk") : said.index(" is carried out")]
    places = {"x": x, "between": tmp_path / "m", "target": tmp_path / "t", "zarr_dask": zd}
    exec(first, places)  # noqa: S102  (the message is ours)
    document = eval(then, places)  # noqa: S307
    zd.load_plan(document).run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "t")[...], VALUES)
    assert zd.open_array(tmp_path / "t").chunks == (64, 10, 10)
    direct = zd.plan_rechunk(blocks((8, 40, 30)), tmp_path / "d", chunks=(4, 20, 30))
    with pytest.raises(PlanError, match="no rechunking"):
        direct.to_json()


def test_plans_are_drawn(tmp_path):
    plan = zd.plan_rechunk(blocks(), tmp_path / "a.zarr", chunks=(-1, 10, 10), max_mem="100MB")
    assert plan.plot().axes
    assert plan._repr_html_().count("<svg") == 3 * len(plan.then.stages)
    direct = zd.plan_rechunk(blocks((8, 40, 30)), tmp_path / "d", chunks=(4, 20, 30))
    assert direct.plot().axes
    assert "written as they are" in direct._repr_html_()
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_target():
    store = MemoryStore()
    zd.rechunk(
        blocks(), store, path="x/y", chunks=(8, 10, 10), shards=(32, 20, 30), codecs=["zstd"],
        dtype="i4",
    )  # fmt: skip
    new = zd.open_array(store, "x/y")
    assert (new.chunks, new.shards, new.dtype) == ((8, 10, 10), (32, 20, 30), "i4")
    np.testing.assert_array_equal(new[...], VALUES.astype("i4"))
    store = MemoryStore()
    zd.rechunk(blocks(), store, chunks={0: -1}, format="v2")
    assert (zd.open_array(store).format, zd.open_array(store).chunks) == ("v2", (64, 40, 30))


def test_odd_blocks(tmp_path):
    x = blocks(((10, 3, 51), (40,), (7, 23)))
    zd.rechunk(x, tmp_path / "a.zarr", chunks=(16, 20, 30), verify=True)
    assert_right(tmp_path / "a.zarr", (16, 20, 30), tmp_path)


def test_texts_and_few_elements():
    texts = np.array([["a", "bc"], ["", "def"]], dtype=object)
    store = MemoryStore()
    zd.rechunk(da.from_array(texts, chunks=(1, 2)), store, chunks=(2, 1))
    assert zd.open_array(store)[...].tolist() == texts.tolist()
    for values, chunks in ((np.zeros((0, 3)), (2, 2)), (np.array(5.0), ())):
        store = MemoryStore()
        zd.rechunk(da.from_array(values), store, chunks=chunks)
        np.testing.assert_array_equal(zd.open_array(store)[...], values)


def test_graphs_that_compute_something(tmp_path):
    x = blocks()
    mean = x - x.mean(axis=0)
    zd.rechunk(mean, tmp_path / "a.zarr", chunks=(-1, 8, 8), temp=tmp_path / "temp")
    np.testing.assert_allclose(zd.open_array(tmp_path / "a.zarr")[...], mean.compute(), rtol=1e-6)
    assert list((tmp_path / "temp").iterdir()) == []


def test_refusals(tmp_path):
    place = tmp_path / "a.zarr"
    array = zd.create_array(place, shape=SHAPE, dtype="f4", chunks=(4, 40, 30))
    array[...] = VALUES
    with pytest.raises(SourceIsTargetError):
        zd.rechunk(zd.from_zarr(place) + 1, place, chunks=(-1, 10, 10), overwrite=True)
    with pytest.raises(NodeExistsError):
        zd.rechunk(blocks(), place, chunks=(-1, 10, 10))
    with pytest.raises(ValueError, match="slice the dask array"):
        zd.rechunk(blocks(), tmp_path / "b.zarr", chunks=(-1, 10, 10), region=np.s_[:3])
    with pytest.raises(GridError, match="unknown chunk sizes"):
        zd.rechunk(blocks()[VALUES > 5], tmp_path / "b.zarr", chunks=(7,))
    with pytest.raises(ResumeError, match="temp="):
        zd.rechunk(blocks(), MemoryStore(), chunks=(-1, 10, 10), resume=True)
    unknown = blocks().map_blocks(lambda values, _: values, object(), dtype="f4")
    with pytest.raises(ResumeError, match="run-7"):
        zd.rechunk(unknown, tmp_path / "b.zarr", chunks=(-1, 10, 10), resume=True)
    assert left_in(tmp_path) == {"a.zarr"}
    zd.rechunk(zd.from_zarr(place) + 1, tmp_path / "b.zarr", chunks=(-1, 10, 10))
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES + 1)


def test_what_differs_does_not_become_visible():
    class Lying(Recording):
        def set(self, key, buffers):
            if key.endswith("c/0/1/1"):
                buffers = [bytes(b"".join(buffers))[::-1]]
            super().set(key, buffers)

    plain = [{"name": "bytes", "configuration": {"endian": "little"}}]
    for chunks in ((-1, 10, 10), (4, 10, 10)):  # the second one would be written directly
        target = Lying(MemoryStore())
        with pytest.raises(ValuesDifferError):
            zd.rechunk(blocks(), target, chunks=chunks, codecs=plain, verify=True)
        with pytest.raises(NodeNotFoundError):
            zd.open_array(target)


class StopError(Exception):
    """What ends a job in the middle."""


def stop_after(tasks: int):
    count = 0

    def progress(_) -> None:
        nonlocal count
        count += 1
        if count == tasks:
            raise StopError

    return progress


GRID = {"chunks": (-1, 10, 10), "max_mem": "1.4MB"}


def named(counter):
    """Blocks of which dask can tell that they are the same again; they count what is computed."""
    return da.from_array(VALUES, chunks=(4, 40, 30), name="values").map_blocks(
        Counted(counter), name="counted", dtype="f4", meta=np.empty((0, 0, 0), "f4")
    )


class Counted:
    """A function that is the same for dask whatever it has counted."""

    def __init__(self, counter) -> None:
        self.counter = counter

    def __call__(self, values):
        self.counter.append(1)
        return values

    def __dask_tokenize__(self):
        return "counted"


@pytest.mark.parametrize("resume", [True, "run-7"])
@pytest.mark.parametrize("steps", [3, 16, 18, 1000])
def test_the_same_call_goes_on(tmp_path, steps, resume):
    first, second = [], []
    total = 16 + sum(
        s.tasks for s in zd.plan_rechunk(named([]), tmp_path / "x", **GRID).then.stages
    )
    steps = min(steps, total)
    with pytest.raises(StopError):
        zd.rechunk(
            named(first), tmp_path / "a.zarr", resume=resume, progress=stop_after(steps), **GRID
        )
    with pytest.raises(NodeNotFoundError):
        zd.open_array(tmp_path / "a.zarr")
    zd.rechunk(named(second), tmp_path / "a.zarr", resume=resume, **GRID)
    assert len(second) <= 16 - min(steps, 16) + 1
    assert_right(tmp_path / "a.zarr", (64, 10, 10), tmp_path)


def test_blocks_that_fit_go_on_too(tmp_path):
    first, second = [], []
    grid = {"chunks": (4, 20, 30), "resume": True}
    with pytest.raises(StopError):
        zd.rechunk(named(first), tmp_path / "a.zarr", progress=stop_after(5), **grid)
    report = zd.rechunk(named(second), tmp_path / "a.zarr", **grid)
    assert report.rechunked is None
    assert len(second) <= 16 - 5 + 1
    assert_right(tmp_path / "a.zarr", (4, 20, 30), tmp_path)


def test_blocks_without_elements(tmp_path):
    x = da.from_array(VALUES, chunks=((30, 0, 34), (40,), (30,)))
    zd.rechunk(x, tmp_path / "a.zarr", chunks=(16, 20, 30), verify=True)
    assert_right(tmp_path / "a.zarr", (16, 20, 30), tmp_path)


def test_a_call_that_fails_leaves_nothing(tmp_path):
    for steps in (3, 18):
        with pytest.raises(StopError):
            zd.rechunk(blocks(), tmp_path / "a.zarr", progress=stop_after(steps), **GRID)
        left = {p.name for p in tmp_path.iterdir()}
        assert left <= {"a.zarr"}
        with pytest.raises(NodeNotFoundError) as error:
            zd.open_array(tmp_path / "a.zarr")
        assert "resume=True" not in str(error.value)


KILLED = """
import sys
import dask
import dask.array as da
import numpy as np
import zarr_dask as zd

x = da.arange(64 * 40 * 30, chunks=4 * 40 * 30, dtype="f4").reshape(64, 40, 30)
with dask.config.set(scheduler="sync"):
    zd.rechunk(
        x, sys.argv[1], chunks=(-1, 10, 10), max_mem="1.4MB", resume=True,
        progress=lambda step: print(step.stage, flush=True),
    )
"""


@pytest.mark.slow
def test_a_killed_process(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a.zarr")]
    for wanted in (2, 16):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(wanted):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
    subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert_right(tmp_path / "a.zarr", (64, 10, 10), tmp_path)


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    data=st.data(),
)
def test_grids_between_are_whole_blocks(lengths, data):
    sizes = [data.draw(st.integers(1, n)) for n in lengths]
    objects = tuple(data.draw(st.integers(1, n)) for n in lengths)
    cut = tuple(
        (size,) * (n // size) + ((n % size,) if n % size else ())
        for n, size in zip(lengths, sizes, strict=True)
    )
    chunks, shards = grids_between(cut, objects, 8)
    assert (shards or chunks) == tuple(sizes)
    assert all(size % chunk == 0 for size, chunk in zip(sizes, chunks, strict=True))
    if shards is not None:
        assert np.prod(chunks) * 8 >= 1 << 16
