"""`verify=True`: a rechunking ends with a comparison of what it has read and written."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.cli import main
from zarr_dask.errors import MemoryBudgetError, NodeNotFoundError, ValuesDifferError
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.rechunk.verify_copy import boxes_to_match
from zarr_dask.stores import MemoryStore, Recording

VALUES = np.arange(24 * 30, dtype="f4").reshape(24, 30)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def made(values=VALUES, store=None, **options) -> zd.Array:
    options = {"dtype": values.dtype, "chunks": (4, 30), **options}
    array = zd.create_array(store or MemoryStore(), shape=values.shape, **options)
    array[...] = values
    return array


class Lying(Recording):
    """A store that keeps other values than those it is given in one object."""

    def set(self, key, buffers):
        if key.endswith("c/1/2"):
            values = np.frombuffer(b"".join(buffers), "<f4").copy()
            values[7] += 1
            buffers = [values.tobytes()]
        super().set(key, buffers)


PLAIN = [{"name": "bytes", "configuration": {"endian": "little"}}]
LYING = {"chunks": (6, 5), "codecs": PLAIN}


def test_a_target_that_differs_does_not_become_visible():
    target = Lying(MemoryStore())
    with pytest.raises(
        ValuesDifferError, match=r"1 elements differ.*\n  - \(7, 12\): 222.0"
    ) as got:
        zd.rechunk(made(), target, verify=True, **LYING)
    assert got.value.first == (((7, 12), "222.0", "223.0"),)
    with pytest.raises(NodeNotFoundError):
        zd.open_array(target)
    zd.rechunk(made(), target, **LYING)  # nobody looks
    assert np.count_nonzero(zd.open_array(target)[...] != VALUES) == 1


def test_coordinates_are_those_of_the_source():
    with pytest.raises(ValuesDifferError) as got:
        zd.rechunk(made(), Lying(MemoryStore()), verify=True, region=np.s_[3:, 10:], **LYING)
    assert [at for at, _, _ in got.value.first] == [(6 + 3 + 1, 10 + 10 + 2)]


def test_a_target_that_is_right_is_compared_and_becomes_visible():
    target, seen = MemoryStore(), []
    zd.rechunk(made(), target, chunks=(24, 3), verify=True, progress=seen.append)
    np.testing.assert_array_equal(zd.open_array(target)[...], VALUES)
    assert sum(step.nbytes for step in seen if step.stage == 1) == VALUES.nbytes
    assert {step.stages for step in seen if step.stage == 1} == {2}


def test_what_was_converted_is_compared():
    values = np.array([1.7, -2.9, np.nan, 100.0])
    target = MemoryStore()
    zd.rechunk(made(values[[0, 1, 3]], chunks=2), target, chunks=3, dtype="i1", verify=True)
    assert zd.open_array(target)[...].tolist() == [1, -2, 100]
    target = MemoryStore()
    zd.rechunk(made(values, chunks=2), target, chunks=3, dtype="f4", verify=True)
    np.testing.assert_array_equal(zd.open_array(target)[...], values.astype("f4"))


def test_codecs_that_lose_something_make_a_difference():
    lossy = [{"name": "numcodecs.bitround", "configuration": {"keepbits": 2}}, *PLAIN]
    with pytest.raises(ValuesDifferError, match="codecs lose something"):
        zd.rechunk(made(VALUES), MemoryStore(), codecs=lossy, verify=True)


@pytest.mark.parametrize(
    "values",
    [np.array(5), np.zeros((0, 3)), np.array([["a", "bcd"], ["", "e"]], dtype=object)],
    ids=["0-d", "empty", "texts"],
)
def test_odd_arrays(values):
    dtype = "string" if values.dtype == object else values.dtype
    source = made(values, chunks=(1,) * values.ndim, dtype=dtype)
    target = MemoryStore()
    chunks = {"chunks": (2,) * values.ndim} if values.ndim else {"codecs": PLAIN}
    zd.rechunk(source, target, verify=True, **chunks)
    np.testing.assert_array_equal(zd.open_array(target)[...], values)


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
def test_boxes_keep_the_bound_and_are_compared_once(shape, data):
    grids = [tuple(data.draw(st.integers(1, n)) for n in shape) for _ in range(2)]
    a, b = (layout_of(zd.create_array({}, shape=shape, dtype="f8", chunks=grid)) for grid in grids)
    budget = data.draw(st.integers(1_050_000, 1_500_000))
    try:
        boxes = boxes_to_match(a, b, budget)
    except MemoryBudgetError:
        return
    assert boxes.shape == shape
    held = 2 * 8 * int(np.prod(boxes.largest_cell))
    assert held + max(a.object_bytes, b.object_bytes) <= budget


def test_boxes_may_cut_stored_objects_of_the_target():
    wide = {"shape": (512, 512), "dtype": "f8", "codecs": ["blosc"]}
    source = layout_of(zd.create_array({}, chunks=(1, 512), **wide))
    target = layout_of(zd.create_array({}, chunks=(512, 512), **wide))
    boxes = boxes_to_match(source, target, 9_000_000)
    assert boxes.ncells > 1
    assert boxes_to_match(source, target, 90_000_000).ncells == 1
    with pytest.raises(MemoryBudgetError, match="verify=True"):
        boxes_to_match(source, target, 2_000_000)


def test_what_is_copied_can_be_compared_within_the_same_memory(tmp_path):
    """Chunks that are not compressed are compared as they are read."""
    values = np.random.default_rng(0).random(19_000)
    source = made(values, tmp_path / "a", chunks=16_900, codecs=PLAIN)
    options = {"chunks": 1012, "threads": 1}
    with pytest.raises(MemoryBudgetError) as got:
        zd.plan_rechunk(source, tmp_path / "b", max_mem=1, **options)
    plan = zd.plan_rechunk(source, tmp_path / "b", max_mem=got.value.needed, **options)
    plan.run(verify=True)


def test_a_refusal_names_the_memory_that_suffices():
    source, target = (
        layout_of(zd.create_array({}, shape=9000, dtype="f8", chunks=n)) for n in (9000, 400)
    )
    with pytest.raises(MemoryBudgetError, match="2 threads") as got:
        boxes_to_match(source, target, 2_000_000, threads=2)
    needed = got.value.needed
    assert f"{needed:,}" in str(got.value)
    boxes_to_match(source, target, needed, threads=2)
    with pytest.raises(MemoryBudgetError):
        boxes_to_match(source, target, needed - 2, threads=2)


def cli(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_commands(tmp_path):
    made(store=str(tmp_path / "a.zarr"), codecs=PLAIN)
    said = cli("rechunk", tmp_path / "a.zarr", tmp_path / "b.zarr", "--chunks=6,5", "--verify")
    assert "comparing: 100 %" in said
    plan = tmp_path / "plan.json"
    cli("plan", tmp_path / "a.zarr", tmp_path / "c.zarr", "--chunks=6,5", "-o", plan)
    cli("run", plan, "--stage", 1)
    stored = tmp_path / "c.zarr" / "c" / "1" / "2"
    right = stored.read_bytes()
    stored.write_bytes(right[::-1])  # as long as its receipt says
    assert "does not hold" in cli("finish", plan, "--verify", code=3)
    assert "not begun" not in cli("status", plan, code=1)
    stored.write_bytes(right)
    assert "is finished" in cli("finish", plan, "--verify")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "c.zarr")[...], VALUES)
    assert "give it to finish" in cli("run", plan, "--stage", 1, "--verify", code=2)
    again = tmp_path / "again.json"
    cli("plan", tmp_path / "a.zarr", tmp_path / "d.zarr", "--chunks=6,5", "-o", again)
    cli("run", again, "--verify")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "d.zarr")[...], VALUES)
