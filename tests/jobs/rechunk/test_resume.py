"""Rechunkings that die go on with what is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import dask
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.leftovers import left_in
from tests.support.scripts import Script, run_script
from zarr_dask.errors import NodeExistsError, NodeNotFoundError, ResumeError, StoreError
from zarr_dask.jobs.engine import lifecycle
from zarr_dask.jobs.engine.lifecycle import join_job
from zarr_dask.jobs.rechunk.job import RechunkJob
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording

SHAPE = (512, 32, 32)
VALUES = np.arange(512 * 32 * 32, dtype="f4").reshape(SHAPE)
DIRECT = {"chunks": (-1, 8, 8), "max_mem": "1.8MB"}
STAGED = {"chunks": (-1, 4, 4), "max_mem": "1.55MB"}


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> zd.Array:
    place = tmp_path_factory.mktemp("source") / "a.zarr"
    options = {"chunks": (1, 32, 32), "codecs": ["blosc"]}
    array = zd.create_array(place, shape=SHAPE, dtype="f4", **options)
    array[...] = VALUES
    return array


class StopError(Exception):
    """What ends a job in the middle."""


def stop_after(tasks: int):
    """A progress that ends the job after so many tasks."""
    count = 0

    def progress(_) -> None:
        nonlocal count
        count += 1
        if count == tasks:
            raise StopError

    return progress


@pytest.mark.parametrize("options", [DIRECT, STAGED], ids=["direct", "staged"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_what_is_done_is_not_done_again(source, tmp_path, options, share):
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **options)
    assert (len(plan.stages) > 1) == (options is STAGED)
    before = max(int(plan.tasks * share), 1)
    with pytest.raises(StopError):
        plan.run(progress=stop_after(before), resume=True)
    with pytest.raises(NodeNotFoundError, match="resume=True"):
        zd.open(tmp_path / "b.zarr")
    report = zd.rechunk(source, tmp_path / "b.zarr", resume=True, **options)
    assert report.tasks == plan.tasks - before
    new = zd.open_array(tmp_path / "b.zarr")
    np.testing.assert_array_equal(new[...], VALUES)
    assert report.stored == new.nbytes_stored()
    assert left_in(tmp_path) == {"b.zarr"}


def test_another_number_of_workers_goes_on_with_the_objects_that_are_there(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **DIRECT)
    with pytest.raises(StopError):
        plan.run(progress=stop_after(2), resume=True)
    other = zd.plan_rechunk(source, tmp_path / "b.zarr", **{**DIRECT, "max_mem": "2MB"})
    assert other.stages != plan.stages
    written = {path for path in (tmp_path / "b.zarr").rglob("*") if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in written}
    recording = Recording(LocalStore(str(tmp_path / "b.zarr")))
    report = replace(other, target=replace(other.target, store=recording)).run(resume=True)
    assert report.tasks == other.tasks - 1  # of one row of objects, which both had as a task
    assert len(recording.per_key("set")) < 16 + 1
    assert any(path.stat().st_mtime_ns == times[path] for path in written)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


def test_objects_that_are_gone_or_cut_are_written_again(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **DIRECT)
    with pytest.raises(StopError):
        plan.run(progress=stop_after(plan.tasks), resume=True)
    objects = sorted((tmp_path / "b.zarr" / "c").rglob("[0-9]"))
    files = [path for path in objects if path.is_file()]
    files[0].unlink()
    files[-1].write_bytes(b"cut")
    plan.run(resume=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


def test_without_resume_nothing_is_taken_over(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **STAGED)
    with pytest.raises(StopError):
        plan.run(progress=stop_after(plan.tasks - 1), resume=True)
    report = zd.plan_rechunk(source, tmp_path / "b.zarr", **STAGED).run()
    assert report.tasks == plan.tasks
    assert left_in(tmp_path) == {"b.zarr"}


def test_memory_has_no_place_for_a_journal(source, tmp_path):
    target = MemoryStore()
    with pytest.raises(ResumeError, match="journal="):
        zd.rechunk(source, target, resume=True, **DIRECT)
    plan = zd.plan_rechunk(source, target, **DIRECT)
    place = tmp_path / "journal"
    with pytest.raises(StopError):
        plan.run(progress=stop_after(2), journal=place)
    report = plan.run(resume=True, journal=place)
    assert report.tasks == plan.tasks - 2
    np.testing.assert_array_equal(zd.open_array(target)[...], VALUES)


def test_a_full_disk(source, tmp_path):
    full = True

    def before(method: str, key: str) -> None:
        if full and method == "set" and key.startswith("c/0/2"):
            raise StoreError("no space left on device")

    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **DIRECT)
    store = HookStore(plan.target.store, before)
    plan = replace(plan, target=replace(plan.target, store=store))
    with pytest.raises(StoreError, match="no space"):
        plan.run()
    full = False
    plan.run(resume=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


KILLED = """
import sys
import dask
import zarr_dask as zd

source, target, scheduler, staged = sys.argv[1:]
options = {"chunks": (-1, 4, 4), "max_mem": "1.55MB" if staged == "staged" else "40MB"}
with dask.config.set(scheduler="sync"):
    # a run that was killed after its target became visible may be followed by another one
    tasks = zd.plan_rechunk(source, target, overwrite=True, **options).tasks
    done = 0
    def progress(_):
        global done
        done += 1
        print(done, tasks, flush=True)
    zd.rechunk(source, target, progress=progress, resume=True, **options)
"""


@pytest.mark.parametrize("staged", [pytest.param("direct", marks=pytest.mark.slow), "staged"])
def test_a_killed_process(source, tmp_path, staged):
    target = tmp_path / "b.zarr"
    command = (KILLED, source.store.root, target, "sync", staged)
    done, told = 0, ""
    for _ in range(3):
        with Script(*command) as process:
            line = process.stdout.readline()
            if line:
                process.kill()
            rest = process.stdout.read()
        told = told or line
        done += len([line, *rest.splitlines()]) if line else 0
    _, finished = run_script(*command)
    tasks = int(told.split()[1])
    np.testing.assert_array_equal(zd.open_array(target)[...], VALUES)
    # each kill costs at most the task that was running and the one that was not yet told of
    assert done + len(finished.splitlines()) <= tasks + 3
    assert left_in(tmp_path) == {"b.zarr"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_job_that_died_when_its_target_was_visible(source, tmp_path, monkeypatch, overwrite):
    def die(_) -> None:
        raise StopError

    options = {**STAGED, "overwrite": overwrite}
    with monkeypatch.context() as patch:
        patch.setattr(RechunkJob, "remove_intermediates", die)
        with pytest.raises(StopError):
            zd.rechunk(source, tmp_path / "b.zarr", **options)
    assert len(list(tmp_path.iterdir())) > 1
    assert zd.rechunk(source, tmp_path / "b.zarr", resume=True, **options).tasks == 0
    assert left_in(tmp_path) == {"b.zarr"}
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


@pytest.mark.parametrize("stages", [DIRECT, STAGED], ids=["direct", "staged"])
def test_what_another_job_has_put_there_meanwhile_is_not_taken_over(source, tmp_path, stages):
    options = {**stages, "codecs": []}  # stored objects of equal sizes
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **options)
    text = plan.to_json()
    with pytest.raises(StopError):
        plan.run(progress=stop_after(plan.tasks - 1), resume=True)
    peer = zarr.create_array(
        tmp_path / "b.zarr", shape=SHAPE, chunks=plan.target.chunks, dtype="f4", compressors=None
    )
    peer[...] = 7
    with pytest.raises(NodeExistsError):
        zd.rechunk(source, tmp_path / "b.zarr", resume=True, **options)
    with pytest.raises(NodeExistsError):
        join_job(replace(zd.load_plan(text), overwrite=False).as_job())
    assert (peer[...] == 7).all()
    report = zd.rechunk(source, tmp_path / "b.zarr", resume=True, overwrite=True, **options)
    assert report.tasks == plan.tasks
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


# --- parts ----------------------------------------------------------------------------------------


def test_processes_that_begin_together_make_one_job(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", **STAGED)
    text = plan.to_json()
    jobs = [join_job(zd.load_plan(text).as_job()) for _ in range(3)]
    assert len({job.run_id for job in jobs}) == 1
    with pytest.raises(ResumeError, match="is not complete"):
        jobs[0].finish()
    for number, stage in enumerate(plan.stages):
        for task in range(stage.tasks):
            jobs[task % 3].stage(number).copy(task)
    jobs[1].finish()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)
    assert left_in(tmp_path) == {"b.zarr"}


def test_two_runs_of_a_plan_are_told_apart(source, tmp_path):
    one, other = (zd.plan_rechunk(source, tmp_path / "b.zarr", **DIRECT) for _ in range(2))
    join_job(one.as_job())
    with pytest.raises(ResumeError, match="another run"):
        join_job(other.as_job())


@pytest.mark.parametrize("elsewhere", [False, True], ids=["beside", "journal"])
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_plans_of_other_values_are_not_mixed(source, tmp_path, several, elsewhere):
    """Their stored objects have equal sizes, by which receipts are told to hold."""
    other = zd.create_array(tmp_path / "other.zarr", shape=SHAPE, dtype="f4", chunks=(1, 32, 32))
    other[...] = VALUES * 2
    journal = tmp_path / "journals" if elsewhere else None
    options = {"chunks": (-1, 8, 8), "codecs": [], "max_mem": "40MB"}
    group = tmp_path / "b.zarr"
    one = zd.plan_rechunk(source, group, path="b", **options)
    if several:
        two = zd.plan_rechunk([other, other], group, path=["b", "c"], **options)
    else:
        two = zd.plan_rechunk(other, group, path="b", **options)
    begun = join_job(one.as_job(), journal)
    begun.stage(0).copy(0)
    if not (several and elsewhere):  # jobs of other homes have other journals there
        with pytest.raises(ResumeError, match="values of both could be mixed"):
            join_job(two.as_job(), journal)
    for number in begun.missing(0):
        begun.stage(0).copy(number)
    begun.finish()
    np.testing.assert_array_equal(zd.open_array(group, "b")[...], VALUES)


def test_a_task_that_is_told_to_stop_ends_with_the_object_at_hand(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=(-1, 8, 8), max_mem="40MB")
    job = join_job(plan.as_job())
    asked = []
    copied = job.stage(0).copy(0, lambda: asked.append(1) or len(asked) > 3)
    assert copied.objects == 3
    assert len(job.jobs[0].done(0)) == 3
    plan.run(resume=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


def test_a_second_caller_waits_for_the_first_and_returns_its_report(source, tmp_path, monkeypatch):
    waits, told, lock, count = Event(), [], lifecycle.folder_lock, 0

    def entered(folder):
        nonlocal count
        count += 1
        return lock(folder)

    def warn(*said):
        told.append(said)
        waits.set()

    monkeypatch.setattr(lifecycle, "folder_lock", entered)
    monkeypatch.setattr(lifecycle._LOG, "warning", warn)

    def rechunk(progress=None):
        return zd.rechunk(source, tmp_path / "b.zarr", resume=True, progress=progress, **STAGED)

    with ThreadPoolExecutor(1) as pool:
        second = []

        def begin_another(_) -> None:
            if not second:
                monkeypatch.setattr(lifecycle, "_SILENT", 0.0)  # for the second one
                second.append(pool.submit(rechunk))
                assert waits.wait(60)

        first = rechunk(begin_another)
        later = second[0].result()
    assert count == 2
    ((_, said),) = told
    assert said == f"{tmp_path / 'b.zarr'}: waiting for the process that works on the same job"
    assert sum(stage.tasks for stage in first.stages) == first.tasks
    assert later.tasks == 0
    assert later.stored == first.stored
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)
    assert left_in(tmp_path) == {"b.zarr"}


def fail_in_stage(number: int):
    def progress(told: zd.Progress) -> None:
        if told.stage == number:
            raise StopError

    return progress


@pytest.mark.parametrize("resume", [False, True])
def test_only_a_job_that_can_go_on_leaves_its_intermediate_array(source, tmp_path, resume):
    with pytest.raises(StopError):
        zd.rechunk(source, tmp_path / "b.zarr", progress=fail_in_stage(1), resume=resume, **STAGED)
    left = [p.name for p in tmp_path.iterdir() if "temporary" in p.name]
    assert len(left) == resume
    report = zd.rechunk(source, tmp_path / "b.zarr", resume=True, **STAGED)
    assert (report.stages[0].done == 0) == resume
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)
    assert left_in(tmp_path) == {"b.zarr"}


def test_a_lost_object_of_an_intermediate_array_is_not_filled(source, tmp_path):
    def lose(told: zd.Progress) -> None:
        if told.stage == 1:
            for file in tmp_path.glob("*temporary*/*/c*"):
                file.unlink()

    with pytest.raises(StoreError, match="it writes again what is missing") as caught:
        zd.rechunk(source, tmp_path / "b.zarr", progress=lose, resume=True, **STAGED)
    assert 'missing="fill"' not in str(caught.value)
    zd.rechunk(source, tmp_path / "b.zarr", resume=True, **STAGED)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)
