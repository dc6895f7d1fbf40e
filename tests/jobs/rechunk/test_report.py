"""What a rechunking says of itself afterwards, against counting and against its plan."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import accumulate

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.settle import settled
from zarr_dask.errors import MemoryBudgetError, StoreUnavailableError
from zarr_dask.jobs.engine.report import RechunkReport
from zarr_dask.stores import HookStore, MemoryStore, Recording, Retrying, RetryPolicy

SHAPE = (24, 36)
VALUES = np.arange(1, 24 * 36 + 1, dtype="i4").reshape(SHAPE)
SHARDS = {"chunks": (4, 6), "shards": (12, 18)}
GRIDS = [{"chunks": (3, 36)}, {"chunks": (24, 5)}, {"chunks": (7, 7)}, SHARDS]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def made(store, values=VALUES, **options) -> zd.Array:
    array = zd.create_array(store, shape=values.shape, dtype=values.dtype, **options)
    array[...] = values
    return array


@pytest.mark.parametrize("target", GRIDS, ids=str)
@pytest.mark.parametrize("source", GRIDS, ids=str)
def test_the_report_has_counted_what_the_plan_has_predicted(tmp_path, source, target):
    old = made(tmp_path / "a", **source)
    plan = zd.plan_rechunk(old, tmp_path / "b", max_mem="8MB", **target)
    report = plan.run()
    for stage, planned in zip(report.stages, plan.stages, strict=True):
        assert stage.predicted == planned.costs
        assert stage.actual.decoded == stage.predicted.decoded
        assert stage.actual.written == stage.predicted.written
        assert stage.actual.reads == stage.predicted.reads
        assert stage.actual.writes == stage.predicted.writes
        assert stage.done == stage.tasks == planned.tasks
    assert report.stages[-1].actual.stored == report.stored
    assert report.bound == plan.peak
    assert report.repeated == 0


@st.composite
def cells(draw, extent: int):
    """Sizes of cells that differ, or one size, along a dimension."""
    if draw(st.booleans()):
        return draw(st.integers(1, extent))
    borders = draw(st.sets(st.integers(1, extent - 1), max_size=6))
    ends = [*sorted(borders), extent]
    return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))


@given(st.data())
def test_chunks_of_any_sizes_and_regions_are_predicted(data):
    shape = (24, 36)
    region = tuple(
        slice(a, b)
        for a, b in (
            sorted(data.draw(st.sets(st.integers(0, n), min_size=2, max_size=2))) for n in shape
        )
    )
    part = tuple(s.stop - s.start for s in region)
    old = tuple(data.draw(cells(n)) for n in shape)
    new = tuple(data.draw(cells(n)) if n > 1 else 1 for n in part)
    with dask.config.set(scheduler="sync"):
        source = made(MemoryStore(), chunks=old)
        plan = zd.plan_rechunk(
            source, MemoryStore(), chunks=new, region=region, max_mem="8MB", format="v3"
        )
        report = plan.run()
    for stage in report.stages:
        assert stage.actual.decoded == stage.predicted.decoded
        assert stage.actual.reads == stage.predicted.reads
        assert stage.done == stage.tasks
        assert not stage.estimated
    assert (zd.open_array(plan.target.store)[...] == VALUES[region]).all()


def test_bytes_of_texts_are_marked_as_estimates(tmp_path):
    source = zd.create_array(
        tmp_path / "a", shape=(100,), dtype="string", chunks=(10,), fill_value=""
    )
    source[...] = np.array(["abc"] * 100, object)
    plan = zd.plan_rechunk(source, tmp_path / "b", chunks=(50,))
    report = plan.run()
    assert "decodes about " in plan.explain()
    assert "(predicted about " in report.explain()
    assert report.to_json()["stages"][0]["estimated"] is True
    assert report.stages[0].actual.reads == report.stages[0].predicted.reads


@pytest.mark.parametrize("grid", [{"chunks": (6, 6)}, {"chunks": (3, 6), "shards": (6, 18)}])
def test_absent_pieces_are_counted_and_predictions_are_at_most(tmp_path, grid):
    """A shard without an object takes one request, not two; an absent chunk is not decoded."""
    values = VALUES.copy()
    values[:6] = values[6:9, :6] = 0
    old = made(tmp_path / "a", values, **grid)
    settled(old.store, "c/1/1")  # else what is absent is looked for again
    options = {"chunks": (24, 12), "codecs": ["zstd"]}
    with pytest.raises(MemoryBudgetError) as got:
        zd.rechunk(old, tmp_path / "b", max_mem=1, **options)
    report = zd.rechunk(old, tmp_path / "b", max_mem=got.value.needed, **options)
    (stage,) = report.stages
    assert stage.done == 3  # tasks that cut shards
    assert stage.absent > 0
    assert stage.actual.decoded < stage.predicted.decoded
    fewer = "at most " if "shards" in grid else ""  # an absent chunk is asked for once, too
    assert f"(predicted {fewer}{stage.predicted.requests:,})" in report.explain()
    assert ("absent pieces", f"{stage.absent:,}", "") in stage.rows()
    whole = zd.rechunk(made(tmp_path / "c", **grid), tmp_path / "d", chunks=(24, 12))
    assert whole.stages[0].absent == 0
    assert "at most" not in whole.explain().replace("at most by the plan", "")


def test_objects_of_fill_values_are_encoded_at_most(tmp_path):
    values = VALUES.copy()
    values[:12] = 0
    old = made(tmp_path / "a", values, chunks=(24, 36))
    (stage,) = zd.rechunk(old, tmp_path / "b", chunks=(12, 36)).stages
    rows = {name: said for name, _, said in stage.rows()}
    assert stage.actual.written == stage.predicted.written // 2
    assert rows["encoded"].startswith("at most ")
    assert not rows["decoded"].startswith("at most ")


def test_requests_for_parts_of_chunks_are_at_most(tmp_path):
    """A frame that is short is there with the first request; longer ones take two."""
    old = zd.create_array(
        tmp_path / "a", shape=(400, 400), dtype="f8", chunks=(400, 400), codecs=["blosc"]
    )
    old[...] = 1
    with pytest.raises(MemoryBudgetError) as got:
        zd.plan_rechunk(old, tmp_path / "b", chunks=(40, 40), max_mem=1)
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(40, 40), max_mem=got.value.needed)
    assert f"in at most {plan.costs.reads} requests" in plan.explain()
    (stage,) = plan.run().stages
    assert stage.requests_at_most
    assert stage.actual.reads < stage.predicted.reads


@given(st.data())
def test_requests_of_regions_of_shards_are_predicted(data):
    """Shards that a region cuts are read in part: their index is asked for first."""
    source = Recording(MemoryStore())
    chunks = tuple(data.draw(st.integers(1, 5)) for _ in SHAPE)
    shards = tuple(c * data.draw(st.integers(1, 3)) for c in chunks)
    old = made(source, chunks=chunks, shards=shards)
    bounds = [data.draw(st.tuples(st.integers(0, n), st.integers(0, n))) for n in SHAPE]
    region = tuple(slice(min(pair), max(pair)) for pair in bounds)
    wanted = tuple(data.draw(st.integers(1, 40)) for _ in SHAPE)
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(old, {}, region=region, chunks=wanted, max_mem="8MB")
        report = plan.run()
    (stage,) = report.stages
    assert stage.actual.reads == stage.predicted.reads
    assert stage.actual.decoded == stage.predicted.decoded


def test_a_nested_shard_is_asked_once_more():
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    index = [little, {"name": "crc32c"}]

    def sharding(shape, codecs):
        configuration = {"chunk_shape": shape, "codecs": codecs, "index_codecs": index}
        return {"name": "sharding_indexed", "configuration": configuration}

    codecs = [sharding([6, 6], [sharding([2, 3], [little])])]
    old = made({}, chunks=(12, 18), codecs=codecs)
    for wanted in ((24, 6), (5, 36), (12, 18)):
        plan = zd.plan_rechunk(old, {}, chunks=wanted, max_mem="8MB", codecs=["zstd"])
        (stage,) = plan.run().stages
        assert stage.actual.reads == stage.predicted.reads
        assert stage.actual.decoded == stage.predicted.decoded


def test_bytes_that_were_read_and_written_are_those_of_the_stores(tmp_path):
    old = made(tmp_path / "a", chunks=(3, 36), codecs=["zstd"])
    stored = old.nbytes_stored()
    report = zd.rechunk(old, tmp_path / "b", chunks=(24, 12), max_mem="8MB")
    (stage,) = report.stages
    assert stage.actual.read == stored * (stage.actual.decoded // old.nbytes)
    assert stage.actual.stored == zd.open_array(tmp_path / "b").nbytes_stored()


def test_progress_reaches_the_bytes_of_each_stage_whatever_lies_between(tmp_path):
    values = np.arange(512 * 32 * 32, dtype="f8").reshape(512, 32, 32)
    old = made(tmp_path / "a", values, chunks=(1, 32, 32))
    options = {"chunks": (-1, 4, 4), "max_mem": "1.9MB", "dtype": "f4"}
    plan = zd.plan_rechunk(old, tmp_path / "b", **options)
    assert len(plan.stages) > 1
    steps = []
    plan.run(progress=steps.append)
    for stage in range(len(plan.stages)):
        assert sum(one.nbytes for one in steps if one.stage == stage) == values.nbytes
        reached = list(accumulate(one.nbytes for one in steps if one.stage == stage))
        assert reached[-1] == steps[0].total


def test_a_run_that_goes_on_says_what_it_has_done_itself(tmp_path):
    old = made(tmp_path / "a", chunks=(3, 36))
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(24, 1), max_mem="1.12MB")

    class StopError(Exception):
        pass

    def stop(_) -> None:
        raise StopError

    with pytest.raises(StopError):
        plan.run(progress=stop)
    report = plan.run(resume=True)
    assert sum(stage.done for stage in report.stages) == report.tasks == plan.tasks - 1
    assert report.stored == zd.open_array(tmp_path / "b").nbytes_stored()


# --- of several arrays, and of dask arrays --------------------------------------------------------


def hierarchy(place) -> zd.Group:
    """Arrays that are laid out anew, copied as they are, and nearly empty."""
    group = zd.create_group(place)
    for name, chunks in (("a", (3, 36)), ("b", (24, 1))):
        array = group.create_array(
            name, shape=SHAPE, dtype="i4", chunks=chunks, dimension_names=("y", "x")
        )
        array[...] = VALUES
    sparse = group.create_array("sparse", shape=(10**6,), dtype="i1", chunks=10)
    for at in (3, 5, 777_777):
        sparse[at] = 1
    return group


def assert_counted(report) -> None:
    for stage in report.stages:
        assert stage.done == stage.tasks
        assert stage.actual.decoded == stage.predicted.decoded
        assert stage.actual.written == stage.predicted.written
        assert stage.actual.reads == stage.predicted.reads
        assert stage.actual.writes == stage.predicted.writes


def test_a_copy_has_counted_what_its_plan_has_predicted(tmp_path):
    hierarchy(tmp_path / "a")
    plan = zd.plan_copy(tmp_path / "a", tmp_path / "b", chunks={"x": 4}, max_mem="8MB")
    report = plan.run(verify=True)
    assert_counted(report)
    assert report.stages[0].predicted == plan.stages[0].costs
    assert report.stages[0].predicted_seconds == pytest.approx(plan.seconds)
    assert report.peak <= report.bound == plan.peak
    assert len(report.peaks) == 1
    stored = {one.target.rpartition("/")[2]: one.stored for one in report.arrays}
    for name, nbytes in stored.items():
        assert nbytes == zd.open_array(tmp_path / "b", name).nbytes_stored()
    assert report.stored == sum(stored.values()) == report.stages[0].actual.stored


def test_several_arrays_have_counted_what_was_predicted(tmp_path):
    group = hierarchy(tmp_path / "a")
    values = np.arange(512 * 32 * 32, dtype="f8").reshape(512, 32, 32)
    long = made(tmp_path / "l", values, chunks=(1, 32, 32))
    plan = zd.plan_rechunk(
        [group["a"], long], tmp_path / "b", path=["a", "l"], max_mem="1.9MB",
        chunks=[(24, 4), (-1, 4, 4)], dtype=[None, "f4"],
    )  # fmt: skip
    seen = []
    report = plan.run(progress=seen.append)
    assert len(report.stages) == 2
    assert_counted(report)
    for stage, total in enumerate(plan.totals):  # what lies between has a narrower data type
        assert sum(one.nbytes for one in seen if one.stage == stage) == total
    assert [one.tasks for one in report.arrays] == [member.tasks for member in plan.plans]


def test_absent_objects_are_requests_that_were_predicted():
    source = Recording(MemoryStore())
    array = zd.create_array(source, shape=(64,), dtype="i1", chunks=1)
    array[::3] = 1
    array[:3] = 0
    plan = zd.plan_copy(array, {})
    source.clear()
    report = plan.run()
    assert_counted(report)
    asked = [one for one in source.requests if one.method == "get" and one.key.startswith("c/")]
    assert len(asked) == report.stages[0].predicted.reads == 64
    assert report.stages[0].predicted.writes == 21


def test_a_dask_array_has_counted_what_was_predicted(tmp_path):
    x = da.from_array(VALUES, chunks=(3, 36))
    report = zd.rechunk(x, tmp_path / "b", chunks=(24, 4), max_mem="8MB")
    assert_counted(report)
    assert len(report.stages) == 2
    assert report.stages[0].actual.stored == VALUES.nbytes
    assert report.stages[0].tasks == 8
    assert report.peak <= report.bound
    assert "blocks, as they come" in report.explain()
    direct = zd.rechunk(x, tmp_path / "c", chunks=(1, 36))
    assert_counted(direct)
    assert direct.stages[0].actual.stored == zd.open_array(tmp_path / "c").nbytes_stored()
    assert direct.bound == 0


def test_all_reports_are_shown_and_told(tmp_path):
    group = hierarchy(tmp_path / "a")
    x = da.from_array(VALUES, chunks=(3, 36))
    reports = (
        zd.rechunk(group["a"], {}, chunks=(24, 4)),
        zd.copy(group, {}, chunks={"x": 4}),
        zd.rechunk(x, {}, chunks=(24, 4), max_mem="8MB"),
        zd.rechunk(x, {}, chunks=(1, 36)),
    )
    for report in reports:
        text, html = report.explain(), report._repr_html_()
        for word in ("tasks", "time", "decoded", "stored", "requests", "predicted", "once more"):
            assert word in text
            assert word in html
        told = json.loads(json.dumps(report.to_json()))
        assert told["nbytes"] == report.nbytes
        assert told["stored"] == report.stored
        assert told["memory"]["bound"] == report.bound
        assert [one["name"] for one in told["stages"]] == report.names()
        assert all(one["actual"].keys() == one["predicted"].keys() for one in told["stages"])
    assert "/sparse" in reports[1].explain()


class Failing:
    """Lets some requests of stores fail, and counts them."""

    def __init__(self) -> None:
        self.requests = self.failed = 0

    def fail(self, method: str, key: str) -> None:
        self.requests += method in {"get", "set"}  # a listing with sizes would never end
        if method in {"get", "set"} and self.requests % 3 == 0:
            self.failed += 1
            raise StoreUnavailableError(f"{method} {key}")

    def store(self) -> Retrying:
        patient = RetryPolicy(attempts=20, wait=0, longest_wait=0)
        return Retrying(HookStore(MemoryStore(), self.fail), patient)


JOBS = {
    "an array": lambda source, target: zd.rechunk(source["a"], target, chunks=(24, 4)),
    "stages": lambda source, target: zd.rechunk(
        source["long"], target, chunks=(-1, 4, 4), max_mem="1.55MB", temp=target
    ),
    "several": lambda source, target: zd.rechunk(
        [source["a"], source["b"]], target, path=["a", "b"], chunks=(4, 4), verify=True
    ),
    "a copy": lambda source, target: zd.copy(source, target, chunks={"x": 4}, verify=True),
    "blocks": lambda _, target: zd.rechunk(
        da.from_array(VALUES, chunks=(3, 36)),
        target,
        chunks=(24, 4),
        max_mem="8MB",
        path="p",
        temp=target,
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_requests_that_were_tried_again_are_counted(job):
    failing = Failing()
    source = hierarchy(failing.store())
    values = np.arange(512 * 32 * 32, dtype="f4").reshape(512, 32, 32)
    long = source.create_array("long", shape=values.shape, dtype="f4", chunks=(8, 32, 32))
    long[...] = values
    target = failing.store()
    begun = failing.failed
    report = JOBS[job](source, target)
    failed = failing.failed - begun
    in_tasks = sum(stage.retried for stage in report.stages)
    assert 0 < in_tasks <= report.retried <= failed
    for shown in (report.explain(), report._repr_html_()):
        assert "requests tried again" in shown
        assert f"{report.retried:,}" in shown
    told = report.to_json()
    assert told["retried"] == report.retried
    assert [one["retried"] for one in told["stages"]] == [one.retried for one in report.stages]


def test_each_request_that_was_tried_again_is_counted_once():
    failing = Failing()
    source = hierarchy(failing.store())
    for plan in (
        zd.plan_rechunk(source["a"], failing.store(), chunks=(24, 4)),
        zd.plan_copy(source, failing.store(), chunks={"x": 4}),
    ):
        begun = failing.failed
        assert plan.run(verify=True).retried == failing.failed - begun > 0
        begun = failing.failed
    written = zd.to_zarr(da.from_array(VALUES, chunks=(3, 36)), failing.store(), overwrite=True)
    assert written.retried > 0
    assert f"{written.retried} requests tried again" in str(written)
    assert zd.to_zarr(da.from_array(VALUES, chunks=(3, 36)), {}).retried == 0


def test_reports_of_many_processes_stay_short():
    peaks = {f"host:{number}": number for number in range(1000)}
    report = RechunkReport(nbytes=1, stored=1, objects=1, seconds=1.0, bound=2000, peaks=peaks)
    assert len(report.explain().splitlines()) < 20
    assert "of 1000 processes" in report.explain()
    assert report.peak == 999


def test_memory_is_looked_at_in_each_process(tmp_path):
    values = np.random.default_rng(0).random((64, 256, 256))
    old = made(tmp_path / "a", values, chunks=(4, 256, 256))
    report = zd.rechunk(old, tmp_path / "b", chunks=(64, 64, 64), max_mem="60MB")
    (peak,) = report.peaks.values()
    assert peak == report.peak
    assert 0 < peak <= report.bound


def test_it_can_be_printed_and_shown(tmp_path):
    report = zd.rechunk(made(tmp_path / "a", chunks=(3, 36)), tmp_path / "b", chunks=(24, 4))
    text, html = report.explain(), report._repr_html_()
    for word in ("stage 1 of 1", "decoded", "requests", "predicted", "memory above idle"):
        assert word in text
        assert word in html
    assert str(report) in text
    assert html.startswith("<table>")


def test_bars_for_each_stage(tmp_path, capsys):
    values = np.arange(512 * 32 * 32, dtype="f4").reshape(512, 32, 32)
    old = made(tmp_path / "a", values, chunks=(1, 32, 32), codecs=["blosc"])
    options = {"chunks": (-1, 4, 4), "max_mem": "1.55MB"}
    zd.rechunk(old, tmp_path / "b", progress=True, **options)
    shown = capsys.readouterr().err
    assert shown.count("100%") == 2
    assert "stage 1 of 2" in shown
    assert "stage 2 of 2" in shown


@pytest.mark.parametrize("names", [("time", "x<y>"), None])
def test_a_plan_in_a_notebook(tmp_path, names):
    old = made(tmp_path / "a", chunks=(1, 36), dimension_names=names)
    html = zd.plan_rechunk(old, tmp_path / "b", chunks=(24, 1), max_mem="8MB")._repr_html_()
    assert html.count("<svg") == 3
    assert html.count("<line") == 23 + 35  # one border less than there are rows, and columns
    assert "requests" in html
    assert "8.00 MB" in html
    assert "<y>" not in html
    assert ("x&lt;y&gt;" in html) == (names is not None)
    fine = zd.create_array(tmp_path / "f", shape=(10**6, 4), dtype="f4", chunks=(1, 4))
    plan = zd.plan_rechunk(fine, tmp_path / "g", chunks=(10**6, 1), max_mem="40MB")
    assert len(plan._repr_html_()) < 20_000
    scalar = zd.create_array(tmp_path / "s", shape=(), dtype="f4")
    assert "one element" in zd.plan_rechunk(scalar, tmp_path / "t", chunks=())._repr_html_()


FIRST_JOB = """
import sys
import dask
import numpy as np
import zarr_dask as zd
maps = zd.create_array(sys.argv[1] + "/maps", shape=(120, 64, 64), dtype="f4", chunks=(1, 64, 64))
maps[...] = np.random.default_rng(0).normal(size=maps.shape)
with dask.config.set(scheduler="sync"):
    plan = zd.plan_rechunk(maps, sys.argv[1] + "/series", chunks=(-1, 32, 32), threads=1)
    report = plan.run()
print(report.peak, report.bound)
"""


def test_libraries_that_the_first_task_loads_are_no_memory_of_tasks(tmp_path):
    """They are larger than the boxes of a small job, and stay."""
    command = [sys.executable, "-c", FIRST_JOB, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, bound = map(int, done.stdout.split())
    assert 0 < peak <= bound
