"""Blocks that cross stored objects: in the graph or through an array between, within a budget."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from threading import Event
from weakref import finalize

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import xarray as xr
from dask.callbacks import Callback
from hypothesis import assume, given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.kill_roles import PATIENCE, start
from tests.support.leftovers import left_in
from tests.support.process_memory import begin_peak, status
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.jobs.engine import Workers
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.engine.predict import CostModel, JobBudget
from zarr_dask.jobs.write.regroup import ways, written_blocks
from zarr_dask.jobs.write.staging import plan_staging

MAPS = (120, 60, 80)
VALUES = np.random.default_rng(0).random(MAPS)


@pytest.fixture(autouse=True)
def two_threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def maps() -> da.Array:
    return da.from_array(VALUES, chunks=(7, 60, 80))


@st.composite
def cuts(draw, length):
    borders = sorted({0, length, *draw(st.lists(st.integers(1, max(length - 1, 1)), max_size=4))})
    return tuple(b - a for a, b in pairwise([n for n in borders if n <= length]))


@given(st.data())
def test_any_blocks_into_any_grid_in_every_way(data):
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    chunks = tuple(data.draw(st.integers(1, n + 2)) for n in shape)
    values = np.arange(1, np.prod(shape) + 1).reshape(shape)
    blocks = tuple(data.draw(cuts(n)) for n in shape)
    plan = zd.plan_write(da.from_array(values, chunks=blocks), {}, chunks=chunks, max_mem="100MB")
    assert plan.memory.process <= 100_000_000
    assert len(plan.ways) == (2 if plan.regrouped else 1)
    for way in plan.ways:
        assert tuple(map(sum, way.blocks)) == shape
        assert plan.target.meta.grid.align(way.blocks) == way.blocks
        target = {}
        made = zd.plan_write(plan.values, target, chunks=chunks, max_mem="100MB")
        report = replace(made, ways=(way,), blocks=way.blocks).run()
        assert report.objects == made.objects
        assert (zd.open_array(target)[...] == values).all()
        assert not [key for key in target if "blocks" in key]


@given(st.data())
def test_no_plan_holds_more_than_the_budget(data):
    shape = data.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=3).map(tuple))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    assume(4 * np.prod(chunks) < 1 << 31)  # a compressor takes no more
    blocks = tuple(data.draw(cuts(n)) for n in shape)
    max_mem = data.draw(st.integers(1 << 21, 1 << 34))
    x = da.zeros(shape, chunks=blocks, dtype="f4")
    try:
        plan = zd.plan_write(x, {}, chunks=chunks, codecs=["zstd"], max_mem=max_mem)
    except MemoryBudgetError:
        assert max_mem < 4 * x.nbytes + 8 * np.prod(chunks) * 4 + (64 << 20)
        return
    assert plan.memory.process <= max_mem
    assert plan.memory.task <= plan.memory.process
    assert plan.target.meta.grid.align(plan.blocks) == plan.blocks


def test_maps_into_time_series_have_a_task_for_each_object(tmp_path):
    x = da.zeros((8760, 721, 1440), chunks=(24, 721, 1440), dtype="f4")
    plan = zd.plan_write(x, tmp_path / "a", chunks=(8760, 103, 96), max_mem="4GB")
    assert (plan.objects, plan.tasks, plan.staged) == (105, 105, True)
    assert plan.memory.process < 4_000_000_000
    text = str(plan)
    assert "through an array between: " in text
    assert "in the graph: 3" in text  # GB
    assert "memory  " in text


def test_what_waits_is_what_borders_in_common_need():
    def waiting(blocks, chunks):
        x = da.zeros((400, 400), chunks=blocks)
        plan = zd.plan_write(x, {}, chunks=chunks, max_mem="1GB")
        return next(way.waiting for way in plan.ways if way.way == "graph")

    with dask.config.set(scheduler="sync"):
        assert waiting((50, 400), (100, 400)) == 100 * 400 * 8
        assert waiting((1, 400), (400, 1)) == 400 * 400 * 8
        assert waiting((75, 400), (100, 400)) == 150 * 400 * 8


class Alive:
    """Bytes of the blocks of an array that exist, also of those that only pieces are needed of."""

    def __init__(self):
        self.now = self.most = 0

    def block(self, like):
        made = np.ones(like.shape, like.dtype)
        self.now += made.nbytes
        self.most = max(self.most, self.now)
        finalize(made, self.gone, made.nbytes)
        return made

    def gone(self, nbytes):
        self.now -= nbytes


@pytest.mark.parametrize(
    ("blocks", "chunks"),
    [
        ((7, 30), (6, 30)),
        ((70, 30), (8, 10)),
        ((40, 30), (7, 30)),
        ((300, 3), (5, 30)),  # dask would put steps between
    ],
)
def test_no_more_blocks_wait_than_the_plan_states(tmp_path, blocks, chunks):
    alive = Alive()
    x = da.map_blocks(alive.block, da.zeros((300, 30), chunks=blocks), dtype="f8")
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_write(x, tmp_path / "a", chunks=chunks)
        little = JobBudget(Workers(None, 1, 1), 1, True)
        aligned = plan.target.meta.grid.align(x.chunks)
        values = written_blocks(x, plan.target, plan.region, aligned)
        (way,) = ways(values, little, CostModel(), None)
        assert len(way.blocks[0]) * len(way.blocks[1]) > 33
        ran: list[str] = []
        with Callback(pretask=lambda key, *_: ran.append(str(key[0]))):
            replace(plan, ways=(way,), blocks=way.blocks).run()
    merged = sum(name.startswith("rechunk-merge") for name in ran)
    assert merged <= len(way.blocks[0]) * len(way.blocks[1])
    assert alive.now == 0
    assert alive.most <= way.waiting
    assert (zd.open_array(tmp_path / "a")[...] == 1).all()


def test_of_two_ways_the_faster_one_that_fits_is_taken():
    x = da.zeros((100_000, 1000), chunks=(1000, 1000), dtype="f4")
    plan = zd.plan_write(x, {}, chunks=(100_000, 10), max_mem="10GB")
    values = written_blocks(x, plan.target, plan.region, plan.target.meta.grid.align(x.chunks))
    between = layout_of(plan_staging(x, plan.target, None)[1])
    many, few = (JobBudget(Workers(None, 2, 2), n, True) for n in (10**10, 3 * 10**8))
    slow = CostModel(request=1.0)
    for budget, model, chosen in (
        (many, CostModel(), "graph"),
        (many, slow, "graph"),
        (few, slow, "staged"),
    ):
        assert ways(values, budget, model, between)[0].way == chosen
    assert ways(values, few, CostModel(), None)[0].process > few.max_mem
    crumbs = da.zeros((60_000, 1000), chunks=(1, 1000), dtype="f4")
    plan = zd.plan_write(crumbs, {}, chunks=(60_000, 10), max_mem="10GB")
    assert plan.staged  # though all of them could wait in memory


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("resume", [False, "run-1"])
def test_through_an_array_between(tmp_path, compute, resume):
    x = maps()
    plan = zd.plan_write(x, tmp_path / "a", chunks=(120, 13, 9), max_mem="7MB", resume=resume)
    assert plan.staged
    report = plan.run() if compute else plan.collection().compute()
    assert report.objects == plan.objects
    assert (zd.open_array(tmp_path / "a")[...] == VALUES).all()
    assert left_in(tmp_path) == {"a"}


def test_regions_and_appends(tmp_path):
    x = maps()
    zd.to_zarr(x, tmp_path / "a", chunks=(120, 13, 9), max_mem="7MB")
    plan = zd.plan_write(x + 1, tmp_path / "a", append=0, max_mem="8MB")
    assert plan.staged
    plan.run()
    assert (zd.open_array(tmp_path / "a")[...] == np.concatenate([VALUES, VALUES + 1])).all()
    part = (slice(0, 120), slice(13, 39), slice(9, 80))
    plan = zd.plan_write(x[part] - 1, tmp_path / "a", region=part, max_mem="5MB")
    assert plan.staged
    plan.run()
    assert (zd.open_array(tmp_path / "a")[part] == VALUES[part] - 1).all()
    assert left_in(tmp_path) == {"a"}


@pytest.mark.parametrize("compute", [True, False])
def test_several_arrays_compute_what_they_share_once(tmp_path, compute):
    count = []

    def counted(block):
        count.append(block.shape)
        return block

    x = maps().map_blocks(counted, dtype=float, meta=np.empty((0, 0, 0)))
    plan = zd.plan_write([x, x + 1], tmp_path, ["a", "b"], chunks=(120, 13, 9), max_mem="7MB")
    assert all(one.staged for one in plan.plans)
    _ = plan.run() if compute else plan.collection().compute()
    assert len(count) == x.npartitions
    assert (zd.open_array(tmp_path / "b")[...] == VALUES + 1).all()
    assert not list(tmp_path.glob("**/*blocks*"))


def test_blocks_of_several_arrays_wait_within_one_budget(tmp_path):
    x, y = maps(), maps() * 2
    alone = zd.plan_write(x, tmp_path / "a", chunks=(120, 13, 9), max_mem="60MB")
    assert not alone.staged
    most = int(alone.memory.process * 1.5)
    plan = zd.plan_write([x, y], tmp_path, ["a", "b"], chunks=(120, 13, 9), max_mem=most)
    assert sorted(one.staged for one in plan.plans) == [False, True]
    assert plan.process_memory <= most


def test_several_arrays_are_refused_where_all_would_wait_and_nothing_can_lie_between(monkeypatch):
    """Each alone fits the budget, and there is no place for an array between."""
    monkeypatch.setattr("zarr_dask.jobs.write.write._between", lambda *_: (None, None))
    x, y = maps(), maps() * 2
    alone = zd.plan_write(x, {}, chunks=(120, 13, 9), max_mem="60MB").memory.process
    options = {"path": ["a", "b"], "chunks": (120, 13, 9)}
    with pytest.raises(MemoryBudgetError, match="2 arrays at a time") as got:
        zd.plan_write([x, y], {}, max_mem=alone, **options)
    needed = got.value.needed
    assert f"max_mem={needed:,}" in str(got.value)
    assert alone < needed <= 2 * alone
    plan = zd.plan_write([x, y], {}, max_mem=needed, **options)
    assert plan.process_memory == needed
    assert "all arrays together: " in str(plan)


def test_a_dataset_has_a_budget(tmp_path):
    ds = xr.Dataset({"t": (("time", "y", "x"), maps())})
    plan = zd.plan_dataset(ds, tmp_path / "d", chunks={"time": -1, "y": 13, "x": 9}, max_mem="7MB")
    assert "array between" in str(plan)
    zd.write_dataset(ds, tmp_path / "d", chunks={"time": -1, "y": 13, "x": 9}, max_mem="7MB")
    assert (zd.open_array(tmp_path / "d", "t")[...] == VALUES).all()


def test_texts_and_casts_go_through_an_array_between(tmp_path):
    texts = np.array([str(n) for n in range(2000)], object).reshape(40, 50)
    x = da.from_array(texts, chunks=(1, 50))
    for values, options in ((x, {"chunks": (40, 3)}), (maps()[:40, :50, 0], {"chunks": (40, 3)})):
        plan = zd.plan_write(values, tmp_path / "a", overwrite=True, max_mem="50MB", **options)
        staged = plan.with_array_between()
        assert staged.staged
        staged.run()
        assert (zd.open_array(tmp_path / "a")[...] == values.compute()).all()
    zd.create_array(tmp_path / "f", shape=(40, 50), dtype="f4", chunks=(40, 3))
    plan = zd.plan_write(values, tmp_path / "f", mode="r+", casting="same_kind", max_mem="50MB")
    plan.with_array_between().run()
    assert (zd.open_array(tmp_path / "f")[...] == values.compute().astype("f4")).all()


def test_too_small_a_budget_is_refused_with_numbers(tmp_path):
    with pytest.raises(
        MemoryBudgetError, match=r"in the graph: .* through an array between: "
    ) as e:
        zd.to_zarr(maps(), tmp_path / "a", chunks=MAPS, max_mem="3MB")
    enough = int(str(e.value).split("Give max_mem=")[1].split(" ")[0].replace(",", ""))
    assert not list(tmp_path.iterdir())
    zd.to_zarr(maps(), tmp_path / "a", chunks=MAPS, max_mem=enough)
    with pytest.raises(MemoryBudgetError, match="smaller blocks"):
        zd.to_zarr(maps(), tmp_path / "b", max_mem="1MB")


def killed(block):
    os.kill(os.getpid(), signal.SIGKILL)


def write_killed(path):
    broken = maps().map_blocks(killed, dtype=float, meta=np.empty((0, 0, 0)))
    with dask.config.set(scheduler="sync"):
        zd.to_zarr(broken, path, chunks=(120, 13, 9), max_mem="7MB")


def test_the_array_between_of_a_killed_process_is_swept(tmp_path):
    client = start(write_killed, tmp_path / "a")
    client.join(PATIENCE)
    assert client.exitcode == -signal.SIGKILL
    (left,) = tmp_path.glob("a.zarr-dask-blocks-*")
    zd.to_zarr(maps(), tmp_path / "a", chunks=(120, 13, 9))
    (finding,) = zd.verify(tmp_path / "a").findings
    assert (finding.kind, finding.key) == ("temporary", left.name)
    assert zd.verify(tmp_path / "a", sweep=True).swept == 1
    assert left_in(tmp_path) == {"a"}


@pytest.mark.parametrize("resume", [False, "run-1"])
def test_a_failure_leaves_nothing_but_what_can_be_resumed(tmp_path, resume):
    count, broken = [], [True]

    def counted(block, block_id):
        if broken and block_id[0] == 15:
            raise RuntimeError("no such day")
        count.append(block_id)
        return block

    x = maps().map_blocks(counted, dtype=float, meta=np.empty((0, 0, 0)))

    def write():
        options = {"chunks": (120, 13, 9), "max_mem": "7MB", "resume": resume}
        return zd.to_zarr(x, tmp_path / "a", **options)

    with pytest.raises(RuntimeError, match="no such day"):
        write()
    assert any(tmp_path.glob("*zarr-dask-blocks-*")) == bool(resume)
    done, _ = len(count), broken.pop()
    assert done
    write()
    assert len(count) == x.npartitions + (0 if resume else done)
    assert (zd.open_array(tmp_path / "a")[...] == VALUES).all()
    assert left_in(tmp_path) == {"a"}


def test_a_second_caller_waits_for_the_first_and_returns_its_report(tmp_path):
    begun, planned, count = Event(), Event(), []

    def gated(block):
        count.append(block.shape)
        begun.set()
        assert planned.wait(60)
        return block

    x = maps().map_blocks(gated, dtype=float, meta=np.empty((0, 0, 0)))
    options = {"chunks": (120, 13, 9), "max_mem": "7MB", "resume": "run-1"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(zd.to_zarr, x, tmp_path / "a", **options)
        assert begun.wait(60)
        second = zd.plan_write(x, tmp_path / "a", **options)
        planned.set()
        report = second.run()
        assert report.already_done
        assert replace(report, already_done="") == first.result()
    assert len(count) == x.npartitions
    assert (zd.open_array(tmp_path / "a")[...] == VALUES).all()
    assert left_in(tmp_path) == {"a"}


def test_the_array_between_goes_where_it_is_told(tmp_path):
    (tmp_path / "scratch").mkdir()
    seen = []

    def look(step):
        seen.append(len(list((tmp_path / "scratch").iterdir())))

    options = {"chunks": (120, 13, 9), "max_mem": "7MB", "temp": tmp_path / "scratch"}
    zd.to_zarr(maps(), tmp_path / "a", progress=look, **options)
    assert max(seen) == 1
    assert not list((tmp_path / "scratch").iterdir())


def map_of(block_info=None):
    info = block_info[None]
    made = np.empty(info["chunk-shape"], "f4")
    np.random.default_rng(info["chunk-location"]).random(out=made, dtype="f4")
    return made


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("shape", "chunks", "max_mem", "way"),
    [
        ((480, 361, 720), (480, 32, 32), None, "staged"),
        ((480, 361, 720), (480, 32, 32), "120MB", "staged"),
        ((480, 361, 720), (50, 361, 720), "1GB", "graph"),
    ],
)
def test_workers_hold_what_the_plan_states(tmp_path, shape, chunks, max_mem, way):
    limit = "400MB" if way == "staged" else "1600MB"
    workers = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": limit}
    workers |= {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with (
        distributed.LocalCluster(**workers) as cluster,
        distributed.Client(cluster) as client,
    ):
        blocks = da.core.normalize_chunks((24, *shape[1:]), shape)
        meta = np.empty((0, 0, 0), "f4")
        x = da.map_blocks(map_of, chunks=blocks, dtype="f4", meta=meta)
        zd.to_zarr(da.zeros((100, 100), chunks=(20, 100)), tmp_path / "warm", chunks=(100, 10))
        plan = zd.plan_write(x, tmp_path / "a", chunks=chunks, max_mem=max_mem)
        assert plan.memory.way == way
        idle = client.run(begin_peak)
        plan.run()
        peaks = client.run(status, "VmHWM")
        held = max(peaks[worker] - idle[worker] for worker in idle)
        assert 0.4 * plan.memory.process <= held <= plan.memory.process, str(plan)
    stored = zd.open_array(tmp_path / "a")
    for number in (0, x.numblocks[0] // 2, x.numblocks[0] - 1):
        values = x.blocks[number].compute(scheduler="sync")
        assert (stored[24 * number : 24 * number + len(values)] == values).all()
    assert left_in(tmp_path) == {"a", "warm"}


def test_a_plan_says_in_three_lines_why_blocks_are_written_so(tmp_path):
    x = da.zeros((20_000, 2000), chunks=(100, 2000), dtype="f4")

    def reasons(**options) -> list[str]:
        lines = zd.plan_write(x, tmp_path / "a", **options).explain().splitlines()
        first = next(n for n, line in enumerate(lines) if line.startswith("  why "))
        return lines[first : first + 3]

    fast = reasons(chunks=(20_000, 10), max_mem="4GB")
    assert fast[0].startswith("  why     in the graph: ")
    assert fast[1].startswith("          rather than through an array between: ")
    assert fast[2].endswith("times as long by the cost model")
    small = reasons(chunks=(20_000, 10), max_mem="60MB")
    assert small[0].startswith("  why     through an array between: ")
    assert small[2] == "          which is more than the 60.0 MB there are"
    assert reasons(chunks=(100, 2000))[0] == "  why     no two blocks share a stored object"
