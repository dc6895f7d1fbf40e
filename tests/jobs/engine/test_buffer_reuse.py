"""The memory of boxes is handed on within a stage, and no more of it is kept than tasks ran."""

from __future__ import annotations

import mmap
import weakref
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from zarr_dask.jobs.engine import rss as boxes

F4 = np.dtype("f4")
MB = 1 << 18
"""Elements of four bytes in a MiB."""


@pytest.fixture
def made(monkeypatch):
    """Sizes of the boxes that are in memory, in the order in which they were made."""
    return watched(monkeypatch.setattr)


def watched(replace):
    """As `made`, by whatever replaces the function that makes them."""
    alive: dict[int, int] = {}
    original = boxes.mmap_empty

    def lasting(shape, dtype):
        memory = original(shape, dtype)
        number = max(alive, default=0) + 1
        alive[number] = memory.nbytes
        weakref.finalize(memory.base if memory.base is not None else memory, alive.pop, number)
        return memory

    replace(boxes, "mmap_empty", lasting)
    return alive


def test_the_next_task_of_a_stage_gets_the_memory_of_one_that_has_ended(made):
    with boxes.reuse_buffer("a", (4 * MB,), F4):
        with boxes.reuse_buffer("a", (3 * MB,), F4) as values:
            where = values.ctypes.data
        with boxes.reuse_buffer("a", (2, MB), F4) as values:
            assert values.ctypes.data == where
            assert values.shape == (2, MB)
        assert sorted(made.values()) == [12 * MB, 16 * MB]
    del values
    assert not made


def test_a_box_that_is_too_small_goes_before_a_larger_one_is_made(made):
    with boxes.reuse_buffer("a", (2 * MB,), F4):
        with boxes.reuse_buffer("a", (MB,), F4):
            pass
        with boxes.reuse_buffer("a", (3 * MB,), F4):
            assert sorted(made.values()) == [8 * MB, 12 * MB]


def test_another_stage_gets_no_memory_and_does_not_add_to_it(made):
    with boxes.reuse_buffer("a", (2 * MB,), F4):
        with boxes.reuse_buffer("a", (3 * MB,), F4):
            pass
        with boxes.reuse_buffer("b", (MB,), F4):
            assert sorted(made.values()) == [4 * MB, 8 * MB]


def test_a_task_that_fails_leaves_nothing(made):
    with pytest.raises(MemoryError), boxes.reuse_buffer("a", (MB,), F4):
        raise MemoryError
    assert not made


@pytest.mark.parametrize("dtype", [np.dtype("O"), np.dtype("S0"), np.dtype("c16")])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,)])
def test_small_boxes_and_boxes_of_objects_are_arrays_like_any_other(made, shape, dtype):
    with boxes.reuse_buffer("a", shape, dtype) as values:
        assert (values.shape, values.dtype) == (shape, np.empty(0, dtype).dtype)
    assert not made


class Tasks(RuleBasedStateMachine):
    """Tasks of several stages begin and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.alive = watched(self.patch.setattr)
        self.running: list[tuple[ExitStack, str, np.ndarray, int]] = []
        self.most = 0
        self.count = 0

    @rule(stage=st.sampled_from("ab"), size=st.integers(1, 4))
    def begin(self, stage, size):
        stack = ExitStack()
        values = stack.enter_context(boxes.reuse_buffer(stage, (size * MB,), F4))
        self.count += 1
        values[:: mmap.PAGESIZE] = self.count
        self.running.append((stack, stage, values, self.count))
        self.most = max(self.most, len(self.running))
        assert len(self.alive) <= self.most

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100))
    def end(self, which):
        stack, _, values, number = self.running.pop(which % len(self.running))
        assert (values[:: mmap.PAGESIZE] == number).all()  # nobody else works in it
        del values
        stack.close()
        assert len(self.alive) <= self.most
        if not self.running:
            assert not self.alive
            self.most = 0

    def teardown(self):
        for stack, *_ in self.running:
            stack.close()
        self.patch.undo()


def test_tasks_in_any_order_share_no_memory_and_keep_little():
    run_state_machine_as_test(Tasks, settings=settings(max_examples=30, deadline=None))
