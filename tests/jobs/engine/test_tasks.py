"""Many similar tasks on a cluster: short calls are sent several at a time."""

from __future__ import annotations

from collections import Counter
from operator import neg

import pytest

from zarr_dask.jobs.engine.tasks import _OneByOne, _ShortCalls, run_tasks
from zarr_dask.jobs.engine.workers import find_workers


def test_calls_are_put_together_as_far_as_they_are_short():
    calls = _ShortCalls(iter(range(200)))
    assert [next(calls), next(calls)] == [(0,), (1,)]  # nothing is known yet
    for seconds, number in ((0.0029, 10), (0.012, 2), (0.03, 1), (3.0, 1), (0.0, 64)):
        for _ in range(7):
            calls.note(seconds)
        calls.note(seconds / 2)  # a short one between long ones is no measure
        assert len(next(calls)) == number
    assert [number for some in calls for number in some] == list(range(80, 200))


def test_calls_are_done_one_by_one():
    results, seconds = _OneByOne(neg)((1, 2))
    assert results == [-1, -2]
    assert 0 <= seconds < 10


def test_few_tasks_are_sent_for_many_short_calls(monkeypatch):
    """It takes dask as long to send a task as to decode a megabyte."""
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 2}
    sent, begun, results = Counter(), Counter(), []
    with distributed.Client(**options, dashboard_address=None) as client:
        submit = client.submit

        def counted(*args, **kwargs):
            sent.update(["tasks"])
            return submit(*args, **kwargs)

        monkeypatch.setattr(client, "submit", counted)
        workers = find_workers(client)
        run_tasks(neg, range(300), workers, results.append, "t", lambda _: begun.update(["calls"]))
    assert sorted(results) == sorted(map(neg, range(300)))
    assert begun["calls"] == 300  # each is told of by itself
    assert sent["tasks"] < 100
