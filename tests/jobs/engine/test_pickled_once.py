"""Functions of many tasks: each is pickled once, and unpickled once by each process."""

from __future__ import annotations

import pickle

import dask
import pytest

from zarr_dask.jobs.engine import find_workers, run_tasks
from zarr_dask.jobs.engine.job import calls_of_arrays
from zarr_dask.jobs.engine.pickled_once import PickledOnce


class Counted:
    """A function that counts in this process how often it is pickled and unpickled."""

    pickled = 0
    unpickled = 0

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __getstate__(self) -> int:
        Counted.pickled += 1
        return self.factor

    def __setstate__(self, factor: int) -> None:
        Counted.unpickled += 1
        self.factor = factor

    def __call__(self, number: int) -> int:
        return number * self.factor


@pytest.fixture(autouse=True)
def _from_zero(monkeypatch):
    monkeypatch.setattr(Counted, "pickled", 0)
    monkeypatch.setattr(Counted, "unpickled", 0)


def test_it_is_pickled_once_and_unpickled_where_it_is_called():
    function = PickledOnce(Counted(31))
    texts = [pickle.dumps(function) for _ in range(3)]
    assert Counted.pickled == 1
    on_the_way = [pickle.loads(pickle.dumps(pickle.loads(text))) for text in texts]
    assert (Counted.pickled, Counted.unpickled) == (1, 0)
    assert [one(n) for n, one in enumerate(on_the_way)] == [0, 31, 62]
    assert (Counted.pickled, Counted.unpickled) == (1, 1)


def test_on_a_cluster_the_function_of_each_array_is_pickled_once(client):
    functions = [Counted(1), Counted(100)]
    tasks = ((array, functions[array], n) for array in (0, 1) for n in range(20))
    found: list[tuple[int, int]] = []
    run_tasks(*calls_of_arrays(tasks), find_workers(client), found.append, "counted")
    expected = [(array, n * (1, 100)[array]) for array in (0, 1) for n in range(20)]
    assert sorted(found) == expected
    # its scheduler, which is in this process, hands it on as it is
    assert (Counted.pickled, Counted.unpickled) == (2, 0)


def test_on_processes_the_tasks_of_an_array_do_not_hold_the_other_arrays():
    tasks = [(array, Counted(array), 1) for array in range(20)]
    found: list[tuple[int, int]] = []
    with dask.config.set(scheduler="processes", num_workers=1):
        run_tasks(*calls_of_arrays(tasks), find_workers(None), found.append, "counted")
    assert sorted(found) == [(array, array) for array in range(20)]
    assert Counted.pickled == 20
