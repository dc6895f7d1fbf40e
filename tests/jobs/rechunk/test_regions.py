"""Laying a region of an array out anew."""

from __future__ import annotations

from itertools import product
from math import prod

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import CopyError, GridError, SelectionError
from zarr_dask.grid.grid import Edges, Fixed, Grid
from zarr_dask.stores import MemoryStore, Recording


@st.composite
def windows(draw, extent: int):
    start = draw(st.integers(0, extent))
    return start, draw(st.integers(start, extent))


@given(st.data())
def test_cells_of_a_window(data):
    if data.draw(st.booleans()):
        extent = data.draw(st.integers(0, 40))
        whole = Fixed(data.draw(st.integers(1, 45)), extent)
    else:
        sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
        extent = sum(sizes) - data.draw(st.integers(0, sizes[-1] - 1))
        whole = Edges.of(sizes, extent)
    start, stop = data.draw(windows(extent))
    window = whole.window(start, stop)
    cell_of = [number for number, size in enumerate(whole.lengths) for _ in range(size)]
    met = cell_of[start:stop]
    want = tuple(met.count(number) for number in sorted(set(met)))
    assert window.extent == stop - start
    assert window.lengths == want


@given(st.data())
def test_any_region_of_any_grid(data):
    shape = tuple(data.draw(st.integers(1, 14)) for _ in range(data.draw(st.integers(1, 2))))
    chunks = tuple(data.draw(st.integers(1, n + 2)) for n in shape)
    factors = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    shards = tuple(c * f for c, f in zip(chunks, factors, strict=True))
    sharded = data.draw(st.booleans())
    values = np.arange(1, prod(shape) + 1, dtype="u2").reshape(shape)
    recording = Recording(MemoryStore())
    source = zd.create_array(
        recording,
        shape=shape,
        dtype="u2",
        chunks=chunks,
        shards=shards if sharded else None,
        codecs=[],
    )
    source[...] = values
    pairs = [data.draw(windows(n)) for n in shape]
    region = tuple(slice(*pair) for pair in pairs)
    target = MemoryStore()
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(source, target, chunks=5, region=region, max_mem="64MB")
        recording.clear()
        plan.run()
    new = zd.open_array(target)
    assert new.chunks == (5,) * len(shape)
    np.testing.assert_array_equal(new[...], values[region])
    if not sharded:
        (stage,) = plan.stages
        assert recording.per_key("get").total() == plan.costs.reads
        decoded = sum(
            source.meta.grid.count_parts(
                tuple(
                    slice(r.start + s.start, r.stop + s.start, 1)
                    for r, s in zip(stage.boxes.region_of(coords), region, strict=True)
                )
            )
            for coords in product(*map(range, stage.boxes.counts))
        )
        assert plan.costs.decoded == decoded * prod(chunks) * 2


def test_what_stays_begins_anew():
    source = zd.create_array(
        MemoryStore(), shape=(20, 9), dtype="u1", chunks=((5, 3, 12), 4), dimension_names=("y", "x")
    )
    values = np.arange(180, dtype="u1").reshape(20, 9)
    source[...] = values
    target = MemoryStore()
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(source, target, region=(slice(2, 15), slice(3, 9)), format="v3")
        assert "[2:15, 3:9]" in str(plan)
        plan.run()
    new = zd.open_array(target)
    assert new.meta.grid == Grid((Edges.of((3, 3, 7), 13), Fixed(4, 6)))
    assert new.dimension_names == ("y", "x")
    np.testing.assert_array_equal(new[...], values[2:15, 3:9])


def test_a_region_through_an_intermediate_array(tmp_path):
    shape = (515, 64, 64)
    values = np.arange(prod(shape), dtype="f4").reshape(shape)
    source = zd.create_array(tmp_path / "a.zarr", shape=shape, dtype="f4", chunks=(1, 64, 64))
    source[...] = values
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(
            source,
            tmp_path / "b.zarr",
            chunks=(-1, 4, 4),
            region=slice(3, 515),
            max_mem="2.2MB",
        )
        assert len(plan.stages) > 1
        assert zd.load_plan(plan.to_json()).region == plan.region
        plan.run()
    new = zd.open_array(tmp_path / "b.zarr")
    assert new.chunks == (512, 4, 4)
    np.testing.assert_array_equal(new[...], values[3:])


def test_regions_with_steps_are_refused():
    source = zd.create_array({}, shape=(20,), dtype="u1", chunks=5)
    with pytest.raises(GridError, match="has steps"):
        zd.rechunk(source, {}, chunks=4, region=slice(0, 20, 2))


@given(st.data())
def test_decoded_bytes_of_chunks_of_differing_sizes(data):
    sizes = [data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)) for _ in range(2)]
    shape = tuple(map(sum, sizes))
    source = zd.create_array(MemoryStore(), shape=shape, dtype="u2", chunks=sizes, codecs=[])
    source[...] = np.arange(1, prod(shape) + 1, dtype="u2").reshape(shape)
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(source, MemoryStore(), chunks=4, max_mem="64MB")
    (stage,) = plan.stages
    decoded = 0
    for coords in product(*map(range, stage.boxes.counts)):
        for part in source.meta.grid.parts(stage.boxes.region_of(coords)):
            decoded += prod(source.meta.grid.shape_of(part.coords)) * 2
    assert plan.costs.decoded == decoded


@pytest.mark.parametrize(
    ("region", "index"),
    [
        ({"t": slice(3, 7)}, np.s_[3:7]),
        ({"x": slice(-4, None), 0: 2}, np.s_[2:3, :, -4:]),
        ((slice(1, 5), 2), np.s_[1:5, 2:3]),
        ((..., -1), np.s_[..., -1:]),
        (7, np.s_[7:8]),
        (np.int64(-1), np.s_[-1:]),
        ({}, np.s_[...]),
        ((slice(5, 100),), np.s_[5:]),
        ((slice(12, 12), slice(0)), np.s_[:0, :0]),
    ],
    ids=str,
)
def test_regions_by_name_and_by_number(region, index):
    values = np.arange(10 * 6 * 8).reshape(10, 6, 8)
    source = zd.create_array(
        {}, shape=values.shape, dtype="i8", chunks=4, dimension_names=("t", "y", "x")
    )
    source[...] = values
    for job in (zd.rechunk, zd.copy):
        target = {}
        job(source, target, region=region, chunks=3)
        np.testing.assert_array_equal(zd.open_array(target)[...], values[index])


@pytest.mark.parametrize("region", [10, -11, (0, 6), (0, 0, 0, 0), {"z": slice(1)}, {3: slice(1)}])
def test_regions_that_are_none(region):
    source = zd.create_array(
        {}, shape=(10, 6, 8), dtype="i8", chunks=4, dimension_names=("t", "y", "x")
    )
    for plan in (zd.plan_rechunk, zd.plan_copy):
        with pytest.raises((GridError, SelectionError)):
            plan(source, {}, region=region, chunks=3)


@pytest.mark.parametrize(
    ("region", "says"),
    [
        ({"t": slice(100, 200)}, "100:200 .*'t'.* 10 elements"),
        ({"y": slice(6, None)}, "6: .*'y'.* 6 elements"),
        ((..., slice(5, 2)), "5:2 .*'x'.* 8 elements"),
        (slice(None, -10), ":-10 .*'t'"),
    ],
)
def test_regions_that_hold_nothing(region, says):
    """NumPy would cut them to nothing, and the copy would be empty."""
    source = zd.create_array(
        {}, shape=(10, 6, 8), dtype="i8", chunks=4, dimension_names=("t", "y", "x")
    )
    for plan in (zd.plan_rechunk, zd.plan_copy):
        with pytest.raises(SelectionError, match=says):
            plan(source, {}, region=region)


def test_regions_of_what_is_empty():
    source = zd.create_array({}, shape=(0, 3), dtype="i8", chunks=4)
    assert zd.plan_rechunk(source, {}, region=slice(2, 5), chunks=2).target.shape == (0, 3)


@pytest.mark.filterwarnings("ignore:.*two dimensions have one name")
def test_no_dimension_is_named_twice():
    source = zd.create_array(
        {}, shape=(20, 6, 6), dtype="i8", chunks=4, dimension_names=("time", "x", "x")
    )
    for what, one, other in (("region", slice(10), slice(5, 6)), ("chunks", 10, 5)):
        for plan in (zd.plan_rechunk, zd.plan_copy):
            with pytest.raises(GridError, match=rf"{what} names .* twice, as 'time' and as 0"):
                plan(source, {}, **{what: {"time": one, 0: other}})
            with pytest.raises(GridError, match=rf"{what} names 'x', which 2 dimensions"):
                plan(source, {}, **{what: {"x": one}})
    with pytest.raises(GridError, match=r"shards names .* twice"):
        zd.plan_rechunk(source, {}, chunks=2, shards={0: 4, "time": 8})


def test_a_region_of_a_hierarchy():
    """Arrays that lack the dimension are copied whole, and as they are stored."""
    group = zd.create_group({}, attributes={"title": "run"})
    values = {"v": (("t", "x"), np.arange(60.0).reshape(10, 6)), "t": (("t",), np.arange(10.0))}
    values["x"] = (("x",), np.arange(6.0))
    for name, (dimensions, content) in values.items():
        array = group.create_array(
            name, shape=content.shape, dtype="f8", chunks=4, dimension_names=dimensions
        )
        array[...] = content
    target = {}
    plan = zd.plan_copy(group, target, region={"t": slice(3, 8)})
    assert {one.target.path: type(one).__name__ for one in plan.members}["x"] == "RawCopyPlan"
    plan.run(verify=True)
    copied = zd.open_group(target)
    assert copied.attributes == {"title": "run"}
    np.testing.assert_array_equal(copied["v"][...], values["v"][1][3:8])
    np.testing.assert_array_equal(copied["t"][...], values["t"][1][3:8])
    np.testing.assert_array_equal(copied["x"][...], values["x"][1])
    for wrong, says in (({"z": slice(2)}, "no array"), (np.s_[3:8], "by names of dimensions")):
        with pytest.raises(GridError, match=says):
            zd.plan_copy(group, {}, region=wrong)
    with pytest.raises(CopyError, match="10:12 holds nothing") as got:
        zd.plan_copy(group, {}, region={"t": slice(10, 12)})
    assert [name for name, _ in got.value.refusals] == ["t", "v"]
