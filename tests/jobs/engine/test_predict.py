"""Memory of a process and of its tasks: what one allows the other needs."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from zarr_dask.jobs.engine import predict
from zarr_dask.jobs.engine.predict import OBJECTS, left_for_tasks, needed_for_tasks
from zarr_dask.jobs.engine.workers import Workers

MB = 1 << 20


@given(st.integers(1, 1 << 36))
@example(2 * MB)
@example(2 * MB + OBJECTS)
@example(2 * MB + 2 * OBJECTS)
@example(32 * MB)
@example(33 * MB)
def test_what_tasks_need_is_left_for_them_and_what_is_left_is_no_more(nbytes):
    assert left_for_tasks(needed_for_tasks(nbytes)) >= nbytes
    assert needed_for_tasks(left_for_tasks(nbytes)) <= nbytes


def test_python_objects_count_unless_tasks_are_tiny():
    assert needed_for_tasks(MB) == MB
    assert needed_for_tasks(4 * MB) == 4 * MB + OBJECTS


def test_budgets_stay_below_what_the_machine_leaves_the_process(monkeypatch):
    monkeypatch.setattr(predict, "memory_limit", lambda: 300 << 20)
    threads, processes = Workers(None, 2, 2), Workers(None, 2, 1)
    assert predict.machine_memory() == 300 << 20
    assert predict.memory_budget(None, threads) == 150 << 20
    assert predict.memory_budget("200MB", threads) == 200_000_000
    assert predict.JobBudget.of(None, threads).max_mem == 150 << 20
    assert predict.JobBudget.of(None, processes).max_mem == 75 << 20
