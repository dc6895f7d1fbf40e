"""One task on several threads: it decodes an array once that fits into the memory of a process."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.jobs.engine.predict import CostModel
from zarr_dask.jobs.plan_file import load_plan
from zarr_dask.jobs.rechunk import planner
from zarr_dask.jobs.rechunk import rechunk as rechunking
from zarr_dask.stores import MemoryStore, Recording
from zarr_dask.stores.base import ReadPolicy

VALUES = np.random.default_rng(0).integers(0, 99, (2200, 2100), "i4")


class Remote(MemoryStore):
    """A store that wants to be asked for many values at a time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 40, max_concurrent_requests=64)


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Four threads, whatever the machine has."""
    monkeypatch.setattr(rechunking, "cpu_count", lambda: 4)
    monkeypatch.setattr("zarr_dask._util.threads.cpu_count", lambda: 4)
    with dask.config.set(scheduler="threads", num_workers=4):
        yield


@pytest.fixture(params=["files", "remote"])
def source(request, tmp_path):
    store = tmp_path / "a" if request.param == "files" else Remote()
    array = zd.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(40, 2100))
    array[...] = VALUES
    array[:40] = 0  # an object that is not there
    return array


def expected() -> np.ndarray:
    values = VALUES.copy()
    values[:40] = 0
    return values


@pytest.mark.parametrize("dtype", [None, "f8"])
def test_rows_become_columns_in_one_task(source, tmp_path, dtype):
    recording = Recording(source.store)
    array = zd.open_array(recording)
    few = CostModel(task=1.0)  # so that few tasks are preferred, whatever else
    plan = zd.plan_rechunk(array, tmp_path / "b", chunks=(2200, 70), dtype=dtype, model=few)
    (stage,) = plan.stages
    assert (stage.tasks, stage.threads) == (1, 4)
    assert "1 task of (2200, 2100) on 4 threads" in plan.explain()
    assert "4 threads), 1 task at a time" in plan.explain()
    assert stage.costs.decoded == VALUES.nbytes
    recording.clear()
    report = plan.run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], expected())
    (stage,) = report.stages
    assert stage.actual.decoded == stage.predicted.decoded - 40 * 2100 * 4  # one is absent
    assert stage.actual.reads == stage.predicted.reads == 55
    assert stage.actual.writes == 30
    keys = recording.per_key()
    assert {count for key, count in keys.items() if key.startswith("c/")} == {1}
    assert report.peak <= plan.peak


def test_it_takes_all_memory_of_the_process_and_no_more(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b", chunks=(2200, 70), max_mem="120MB")
    assert [stage.threads for stage in plan.stages] == [4]
    assert VALUES.nbytes < plan.peak <= plan.max_mem
    less = zd.plan_rechunk(source, tmp_path / "b", chunks=(2200, 70), max_mem=plan.peak - 1)
    assert all(stage.threads == 1 and stage.tasks > 1 for stage in less.stages)
    assert less.peak < plan.peak


def test_several_processes_or_arrays_share_none(source, tmp_path):
    given = {"chunks": (2200, 70)}
    plans = [
        zd.plan_rechunk(source, tmp_path / "b", threads=4, **given),  # of a part of a batch job
        zd.plan_rechunk([source, source], [tmp_path / "b", tmp_path / "c"], **given),
    ]
    with dask.config.set(scheduler="sync"):
        plans.append(zd.plan_rechunk(source, tmp_path / "b", **given))
    for plan in plans:
        assert [stage.threads for stage in plan.stages] == [1]
    assert plans[0].stages[0].tasks > 1


def test_several_tasks_are_better_if_they_take_about_as_long(source, tmp_path):
    plan = zd.plan_rechunk(source, tmp_path / "b", chunks=(40, 700))
    assert plan.stages[0].tasks > 1, "each source object is read once anyhow"
    slow = CostModel(task=1.0)
    found = zd.plan_rechunk(source, tmp_path / "b", chunks=(40, 700), model=slow)
    assert found.stages[0].threads == 4
    assert found.seconds < planner._MUCH_LESS * found.candidates[1].seconds


def test_a_plan_file_keeps_the_threads(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=VALUES.shape, dtype="i4", chunks=(40, 2100))
    array[...] = VALUES
    plan = zd.plan_rechunk(array, tmp_path / "b", chunks=(2200, 70))
    again = load_plan(plan.to_json())
    assert again.stages == plan.stages
    assert again.stages[0].threads == 4
    again.run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], VALUES)


def test_a_failing_object_ends_the_task(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=VALUES.shape, dtype="i4", chunks=(40, 2100))
    array[...] = VALUES
    stored = tmp_path / "a" / "c" / "7" / "0"
    stored.write_bytes(stored.read_bytes()[:-9])
    with pytest.raises(zd.errors.CorruptObjectError, match="c/7/0"):
        zd.rechunk(array, tmp_path / "b", chunks=(2200, 70))
    with pytest.raises(zd.errors.NodeNotFoundError):
        zd.open(tmp_path / "b")
