"""Several arrays in one plan: one submission, one journal, one bound of memory, one end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.cli import main
from zarr_dask.errors import (
    MemoryBudgetError,
    NodeExistsError,
    NodeNotFoundError,
    PlanError,
    ResumeError,
    SourceIsTargetError,
    ValuesDifferError,
)
from zarr_dask.jobs.copy.raw_copy import RawCopyPlan
from zarr_dask.jobs.engine.job import BoundJob
from zarr_dask.jobs.rechunk import rechunk as rechunking
from zarr_dask.stores import MemoryStore, Recording, real_location

SHAPE = (512, 32, 32)
TEMPERATURE = np.arange(512 * 32 * 32, dtype="f4").reshape(SHAPE)
STATION = np.arange(300, dtype="i2").reshape(20, 15)
GRIDS = [(-1, 4, 4), (5, 15)]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[zd.Array]:
    place = tmp_path_factory.mktemp("source") / "a.zarr"
    made = []
    for path, values, chunks in (
        ("t", TEMPERATURE, (1, 32, 32)),
        ("s", STATION, (20, 3)),
    ):
        options = {"dtype": values.dtype, "chunks": chunks, "codecs": ["blosc"]}
        array = zd.create_array(place, path, shape=values.shape, **options)
        array[...] = values
        made.append(array)
    return made


def assert_right(place, paths=("t", "s")) -> None:
    for path, values, chunks in zip(paths, (TEMPERATURE, STATION), GRIDS, strict=True):
        found = zarr.open_array(str(place), path=path, mode="r")
        np.testing.assert_array_equal(found[...], values)
        assert found.chunks == tuple(
            n if c == -1 else c for n, c in zip(values.shape, chunks, strict=True)
        )


def planned(sources, place, **options):
    options = {"max_mem": "1.55MB", **options}
    return zd.plan_rechunk(sources, place, path=["t", "s"], chunks=GRIDS, **options)


def test_one_plan(sources, tmp_path):
    plan = planned(sources, tmp_path / "b.zarr")
    assert [len(one.stages) for one in plan.plans] == [2, 1]
    assert plan.tasks == sum(one.tasks for one in plan.plans)
    assert plan.peak <= plan.max_mem
    assert "2 arrays" in str(plan)
    seen = []
    report = plan.run(progress=seen.append)
    assert_right(tmp_path / "b.zarr")
    assert report.tasks == plan.tasks == len(seen)
    assert [one.nbytes for one in report.arrays] == [TEMPERATURE.nbytes, STATION.nbytes]
    assert report.stored == sum(
        zd.open_array(tmp_path / "b.zarr", path).nbytes_stored() for path in ("t", "s")
    )
    assert left_in(tmp_path) == {"b.zarr"}
    for stage in (0, 1):
        steps = [step for step in seen if step.stage == stage]
        assert sum(step.nbytes for step in steps) == steps[0].total


def test_targets_of_their_own(sources):
    targets = [MemoryStore(), MemoryStore()]
    zd.rechunk(sources, targets, chunks=GRIDS, dtype=[None, "i4"], verify=True)
    assert zd.open_array(targets[1]).dtype == "i4"
    np.testing.assert_array_equal(zd.open_array(targets[0])[...], TEMPERATURE)
    np.testing.assert_array_equal(zd.open_array(targets[1])[...], STATION)


def test_wrong_arguments(sources, tmp_path):
    with pytest.raises(ValueError, match="chunks has 3 items for 2 arrays"):
        zd.plan_rechunk(sources, tmp_path / "b", path=["t", "s"], chunks=[1, 2, 3])
    with pytest.raises(ValueError, match="empty"):
        zd.plan_rechunk([], tmp_path / "b", chunks=[])
    with pytest.raises(NodeExistsError, match="place of its own"):
        zd.plan_rechunk(sources, tmp_path / "b", chunks=GRIDS)
    places = [tmp_path / "b", sources[0].store]
    with pytest.raises(SourceIsTargetError):
        zd.plan_rechunk(sources, places, path=["", "t"], chunks=GRIDS, overwrite=True)
    with pytest.raises(MemoryBudgetError):
        zd.plan_rechunk(sources, tmp_path / "b", path=["t", "s"], chunks=GRIDS, max_mem="1MB")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("how", ["arrays", "a group", "blocks"])
def test_the_memory_that_is_named_suffices_for_all(tmp_path, how):
    """The first array needs less than the second one."""
    lengths = {"a": (8, 256), "b": (64, 4096), "c": (8, 512)}
    for name, shape in lengths.items():
        zd.create_array(
            tmp_path / "g",
            name,
            shape=shape,
            dtype="f8",
            chunks=(1, -1),
            dimension_names=("t", "x"),
        )
    arrays = [zd.open_array(tmp_path / "g", name) for name in lengths]

    def planned(max_mem: int):
        grids = {"chunks": {"t": -1}, "max_mem": max_mem}
        if how == "a group":
            return zd.plan_rechunk(zd.open_group(tmp_path / "g"), tmp_path / "b", **grids)
        if how == "arrays":
            return zd.plan_rechunk(arrays, tmp_path / "b", path=list(lengths), **grids)
        values = [zd.from_zarr(one) for one in arrays]
        each = [{"chunks": one.shape} for one in arrays]
        return zd.plan_write(values, tmp_path / "b", list(lengths), each=each, max_mem=max_mem)

    with pytest.raises(MemoryBudgetError, match=r"max_mem(=| \(to )[\d,]+") as caught:
        planned(1_060_000)
    assert planned(caught.value.needed)
    assert f"{caught.value.needed:,}" in str(caught.value)


def test_nothing_is_visible_before_everything_is(sources, tmp_path):
    plan = planned(sources, tmp_path / "b.zarr")
    seen = []

    def look(_) -> None:
        for path in ("t", "s"):
            with pytest.raises(NodeNotFoundError):
                zd.open_array(tmp_path / "b.zarr", path)
            seen.append(path)

    plan.run(progress=look)
    assert len(seen) == 2 * plan.tasks
    assert_right(tmp_path / "b.zarr")


class StopError(Exception):
    """What ends a job in the middle."""


@pytest.mark.parametrize("share", [0.1, 0.6, 1])
def test_what_is_done_is_not_done_again(sources, tmp_path, share):
    plan = planned(sources, tmp_path / "b.zarr")
    before, count = max(int(plan.tasks * share), 1), 0

    def stop(_) -> None:
        nonlocal count
        count += 1
        if count == before:
            raise StopError

    with pytest.raises(StopError):
        plan.run(progress=stop, resume=True)
    with pytest.raises(NodeNotFoundError):
        zd.open_array(tmp_path / "b.zarr", "t")
    report = planned(sources, tmp_path / "b.zarr").run(resume=True)
    assert report.tasks == plan.tasks - before
    assert_right(tmp_path / "b.zarr")
    assert left_in(tmp_path) == {"b.zarr"}


def test_a_job_that_died_between_two_ends(sources, tmp_path, monkeypatch):
    """One target is visible, the other one not: the same call ends it."""
    from zarr_dask.jobs.rechunk.job import RechunkJob

    publish, count = RechunkJob.publish, 0

    def die(job) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise StopError
        publish(job)

    with monkeypatch.context() as patch:
        patch.setattr(RechunkJob, "publish", die)
        with pytest.raises(StopError):
            planned(sources, tmp_path / "b.zarr").run()
    options = {"chunks": GRIDS, "max_mem": "1.55MB", "resume": True}
    report = zd.rechunk(sources, tmp_path / "b.zarr", path=["t", "s"], **options)
    assert report.tasks == 0
    assert_right(tmp_path / "b.zarr")
    assert left_in(tmp_path) == {"b.zarr"}


def test_one_that_differs_keeps_all_invisible(sources):
    class Lying(Recording):
        def set(self, key, buffers):
            if key.endswith("s/c/1/0"):
                buffers = [bytes(b"".join(buffers))[::-1]]
            super().set(key, buffers)

    plain = [{"name": "bytes", "configuration": {"endian": "little"}}]
    target = Lying(MemoryStore())
    with pytest.raises(ValuesDifferError, match=r"/s does not hold"):
        zd.rechunk(sources, target, path=["t", "s"], chunks=GRIDS, codecs=plain, verify=True)
    for path in ("t", "s"):
        with pytest.raises(NodeNotFoundError):
            zd.open_array(target, path)


KILLED = """
import sys
import dask
import zarr_dask as zd

source, target = sys.argv[1:]
arrays = [zd.open_array(source, path) for path in ("t", "s")]
options = {"path": ["t", "s"], "chunks": [(-1, 4, 4), (5, 15)], "max_mem": "1.55MB"}
with dask.config.set(scheduler="sync"):
    zd.rechunk(
        arrays, target, progress=lambda _: print("done", flush=True), resume=True, **options
    )
"""


@pytest.mark.slow
def test_a_killed_process(sources, tmp_path):
    target = tmp_path / "b.zarr"
    command = [sys.executable, "-c", KILLED, sources[0].store.root, str(target)]
    for wanted in (1, 9):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(wanted):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
    last = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    tasks = planned(sources, tmp_path / "c.zarr").tasks
    assert len(last.stdout.splitlines()) <= tasks - 10
    assert_right(target)
    assert left_in(tmp_path) == {"b.zarr"}


def cli(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_plan_files(sources, tmp_path):
    plan = planned(sources, tmp_path / "b.zarr", threads=1)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    again = zd.load_plan(file.read_text())
    assert [one.stages for one in again.plans] == [one.stages for one in plan.plans]
    assert again.token == plan.token
    assert "not begun" in cli("status", file, code=1)
    for number, _ in enumerate(plan.stages, 1):
        for part in ("1/2", "2/2"):
            cli("run", file, "--stage", number, "--part", part)
    assert "all tasks are done" in cli("status", file, code=1)
    with pytest.raises(NodeNotFoundError):
        zd.open_array(tmp_path / "b.zarr", "t")
    assert "--array=1-" in cli("script", file, "--slurm")
    assert "is finished" in cli("finish", file, "--verify")
    assert_right(tmp_path / "b.zarr")
    assert "finished" in cli("status", file)
    assert "finished already" in cli("run", file)


@pytest.mark.parametrize("max_mem", ["1.55MB", "8MB"])
def test_comparing_at_the_end_is_done_on_as_many_threads_as_fit(
    sources, tmp_path, max_mem, monkeypatch
):
    plan = planned(sources, tmp_path / "b.zarr", threads=1, max_mem=max_mem)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    for number, _ in enumerate(plan.stages, 1):
        cli("run", file, "--stage", number)
    here = []
    monkeypatch.setattr("zarr_dask.jobs.engine.execute.cpu_count", lambda: 2)
    ask = type(plan).comparisons
    monkeypatch.setattr(
        type(plan), "comparisons", lambda one, threads: here.append(threads) or ask(one, threads)
    )
    (tmp_path / "b.zarr" / "s" / "c" / "1" / "0").unlink()
    assert "is not complete" in cli("finish", file, "--verify", code=3)
    cli("run", file, "--stage", 1)
    if max_mem == "1.55MB":
        refused = cli("finish", file, "--verify", "--threads", 2, code=3)
        assert "use fewer threads" in refused
        here.clear()
    assert "is finished" in cli("finish", file, "--verify")
    assert here == ([2, 1] if max_mem == "1.55MB" else [2])
    assert_right(tmp_path / "b.zarr")


def test_wrong_usage_of_finish(sources, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(planned(sources, tmp_path / "b.zarr", threads=1).to_json())
    assert "are for --verify" in cli("finish", file, "--threads", 2, code=2)
    both = ("--threads", 2, "--workers", 1)
    assert "exclude each other" in cli("finish", file, "--verify", *both, code=2)
    assert "has not been begun" in cli("finish", file, code=3)


def test_pictures_of_several_arrays(sources, tmp_path):
    plan = planned(sources, tmp_path / "b.zarr")
    html = plan._repr_html_()
    assert html.count("<svg") == 3 * sum(len(one.stages) for one in plan.plans)
    for said in ("rechunk 2 arrays", "requests", "1.55 MB", "in 2 stages"):
        assert said in html
    figure = plan.plot()
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert sum("of all arrays" in title for title in titles) == 2
    assert sum(title.startswith(("t\n", "s\n")) for title in titles) == 3
    figure.savefig(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_of_one_dimension_are_lines(tmp_path):
    line = zd.create_array(tmp_path / "l", shape=(60,), dtype="i4", chunks=(6,))
    alone = zd.plan_rechunk(line, {}, chunks=15).plot().axes[0]
    joint = zd.plan_rechunk([line, line], {}, path=["a", "b"], chunks=15).plot().axes[0]
    for axis in (alone, joint):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("dimension 0", "")
        bottom, top = axis.get_ylim()
        assert 0 <= abs(bottom - top) < 2
        assert list(axis.get_yticks()) == []


def test_pictures_of_many_arrays_stay_small(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=(64, 64), dtype="i4", chunks=(1, 64))
    scalar = zd.create_array(tmp_path / "s", shape=(), dtype="i4")
    empty = zd.create_array(tmp_path / "e", shape=(0, 3), dtype="i4", chunks=(1, 3))
    many = [array] * 210 + [scalar, empty]
    paths = [f"<{n}>" for n in range(212)]
    plan = zd.plan_rechunk(many, {}, path=paths, dtype="i8", threads=1)
    html = plan._repr_html_()
    assert len(html) < 150_000
    assert "and 12 smaller ones" in html
    assert "<0>" not in html
    assert len(plan.plot().axes) == 7
    odd = zd.plan_rechunk([scalar, empty], {}, path=["s", "e"], dtype="i8", threads=1)
    assert "one element" in odd._repr_html_()
    assert len(odd.plot().axes) == 3


def test_plans_of_strangers(sources, tmp_path):
    document = json.loads(planned(sources, tmp_path / "b.zarr").to_json())
    for change, said in (
        ({"arrays": []}, "no arrays"),
        ({"run_id": "x"}, "32 hexadecimal"),
        ({"max_mem": 1000}, "more than its max_mem"),
        ({"arrays": [document["arrays"][0]] * 2}, "place of its own"),
        ({"arrays": 7}, "missing or wrong"),
    ):
        with pytest.raises((PlanError, NodeExistsError), match=said):
            zd.load_plan(json.dumps({**document, **change}))


def test_bound_of_a_process_is_that_of_its_largest_tasks(sources, tmp_path):
    plan = zd.plan_rechunk(
        sources, tmp_path / "b.zarr", path=["t", "s"], chunks=GRIDS, threads=2, max_mem="10MB"
    )
    stage = plan.stages[0]
    each = sorted((part.memory(1) for part in stage.parts for _ in range(2)), reverse=True)
    assert stage.memory(2) <= sum(each[:2])
    assert stage.memory(2) >= max(part.memory(2) for part in stage.parts)
    assert isinstance(plan.bound("0" * 32, None), BoundJob)


def test_a_journal_lies_in_none_of_the_targets(sources, tmp_path):
    targets = [tmp_path / "t.zarr", tmp_path / "s.zarr"]
    for target in targets:
        with pytest.raises(ResumeError, match="inside of"):
            zd.rechunk(sources, targets, chunks=GRIDS, journal=target / "jobs")
    assert not any(target.exists() for target in targets)


def test_work_besides_the_bytes_grows_with_the_number_of_arrays_only(tmp_path, monkeypatch):
    """Each array is asked as often, whatever the number of the others."""

    def asked(count: int) -> float:
        store = MemoryStore()
        for number in range(count):
            array = zd.create_array(store, f"a{number}", shape=(4, 4), dtype="i2", chunks=(4, 4))
            array[...] = number
        calls = 0

        def stages(plan):
            nonlocal calls
            calls += 1
            return own.fget(plan)

        own = RawCopyPlan.stages
        place = real_location.place_of_target

        def located(*node):
            nonlocal calls
            calls += 1
            return place(*node)

        with monkeypatch.context() as patch:
            patch.setattr(RawCopyPlan, "stages", property(stages))
            patch.setattr(real_location, "place_of_target", located)
            patch.setattr(rechunking, "place_of_target", located)
            zd.copy(zd.open_group(store), tmp_path / f"copy-{count}")
            arrays = [zd.open_array(store, f"a{n}") for n in range(count)]
            paths = [f"a{n}" for n in range(count)]
            zd.rechunk(arrays, tmp_path / f"rechunked-{count}", path=paths, chunks=(2, 2))
        return calls / count

    assert asked(60) <= asked(15) + 1
