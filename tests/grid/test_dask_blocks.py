"""Blocks of lazy arrays: whole stored objects, merged or cut only where that is asked for."""

from itertools import accumulate
from math import prod

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import GridError
from zarr_dask.grid.dask_blocks import (
    bounded_blocks,
    merged_blocks,
    one_block_per_chunk,
    one_block_per_object,
)
from zarr_dask.grid.grid import Edges, Fixed, Grid

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@st.composite
def grids(draw):
    """A grid of one to three dimensions of both kinds, and a chunk shape that divides its cells."""
    dimensions, chunk = [], []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 4))
        chunk.append(size)
        if draw(st.booleans()):
            dimensions.append(Fixed(size * draw(st.integers(1, 5)), draw(st.integers(1, 60))))
        else:
            cells = [size * count for count in draw(sizes)]
            dimensions.append(Edges.of(cells, sum(cells) - draw(st.integers(0, cells[-1] - 1))))
    return Grid(tuple(dimensions)), tuple(chunk)


def borders(lengths):
    return set(accumulate(lengths, initial=0))


@given(grids(), st.integers(1, 4000))
def test_merged_blocks_cut_no_object_and_keep_the_budget(case, budget):
    grid, _ = case
    cells = one_block_per_object(grid)
    merged = merged_blocks(grid, dict(enumerate(grid.shape)), budget)
    for axis, lengths in merged.items():
        assert sum(lengths) == grid.shape[axis]
        assert borders(lengths) <= borders(cells[axis])
    largest = prod(max(lengths) for lengths in merged.values())
    assert largest <= budget or all(
        max(merged[axis]) <= grid.largest_cell[axis] for axis in range(grid.ndim)
    )


@given(grids(), st.integers(1, 4000))
def test_bounded_blocks_are_whole_chunks_of_one_object(case, limit):
    grid, chunk = case
    blocks = bounded_blocks(grid, chunk, 1, limit)
    cells, chunks = one_block_per_object(grid), one_block_per_chunk(grid, chunk)
    if prod(grid.largest_cell) <= limit:
        assert blocks == cells
    for axis, lengths in enumerate(blocks):
        assert sum(lengths) == grid.shape[axis]
        assert borders(cells[axis]) <= borders(lengths) <= borders(chunks[axis])
    if prod(chunk) <= limit:
        assert prod(map(max, blocks)) <= limit


def test_merged_blocks_grow_about_evenly():
    with dask.config.set({"array.chunk-size": "1 MiB"}):
        array = zd.create_array({}, shape=(5000, 5000), dtype="f4", chunks=(50, 100))
        x = zd.from_zarr(array, chunks="auto")
    assert x.chunksize == (650, 400)


def test_objects_larger_than_the_limit_are_not_cut_by_auto():
    array = zd.create_array({}, shape=(256, 64), dtype="f8", chunks=8, shards=64)
    with dask.config.set({"array.chunk-size": "1 kiB"}):
        assert zd.from_zarr(array, chunks="auto").chunks == ((64,) * 4, (64,))
        assert zd.from_zarr(array, chunks=(-1, "auto")).chunks == ((256,), (64,))
    assert zd.from_zarr(array, chunks="64 KiB").chunks == ((128, 128), (64,))


@pytest.fixture
def months():
    """A rectilinear array: an object per month, three days in a chunk of the other dimension."""
    days = [31, 28, 31, 30, 31, 30]
    values = np.arange(181 * 12, dtype="i4").reshape(181, 12)
    array = zd.create_array(
        {}, shape=values.shape, dtype="i4", chunks=(days, 3), dimension_names=("day", "x")
    )
    array[...] = values
    return array, values, tuple(days)


@pytest.mark.parametrize("chunks", [None, "shards", "chunks", {"x": 3}, ("chunks", 3)])
def test_rectilinear_grids_give_irregular_blocks(months, chunks):
    array, values, days = months
    x = zd.from_zarr(array, chunks=chunks)
    assert x.chunks == (days, (3, 3, 3, 3))
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_rectilinear_grids_are_merged_at_their_edges(months):
    array, values, _ = months
    with dask.config.set({"array.chunk-size": f"{62 * 12 * 4} B"}):
        x = zd.from_zarr(array, chunks={"day": "auto", "x": -1})
    assert x.chunks == ((59, 61, 61), (12,))
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values)


def test_chunks_of_rectilinear_shards():
    array = zd.create_array({}, shape=(12,), dtype="i4", chunks=2, shards=([4, 6, 2],))
    assert zd.from_zarr(array).chunks == ((4, 6, 2),)
    assert zd.from_zarr(array, chunks="chunks").chunks == ((2,) * 6,)
    with dask.config.set({"array.chunk-size": "16 B"}):
        assert zd.from_zarr(array).chunks == ((2,) * 6,)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((5, 5, 2), ((5, 5, 2),)),
        ([6, 6], ((6, 6),)),
        ({-1: 5}, ((5, 5, 2),)),
        ({0: None}, ((4, 4, 4),)),
        (((7, 5),), ((7, 5),)),
        (-1, ((12,),)),
        (("auto",), ((12,),)),
    ],
)
def test_forms_for_one_dimension(chunks, expected):
    array = zd.create_array({}, shape=(12,), dtype="i4", chunks=4)
    assert zd.from_zarr(array, chunks=chunks).chunks == expected


def test_arrays_without_dimensions_or_elements():
    scalar = zd.create_array({}, shape=(), dtype="i4")
    empty = zd.create_array({}, shape=(0, 5), dtype="i4", chunks=2)
    for chunks in (None, "auto", "chunks", "shards"):
        assert zd.from_zarr(scalar, chunks=chunks).chunks == ()
        x = zd.from_zarr(empty, chunks=chunks)
        assert x.shape == (0, 5)
        assert x.compute(scheduler="sync").shape == (0, 5)


def test_more_blocks_than_can_be_listed():
    array = zd.create_array({}, shape=(1 << 40,), dtype="i1", chunks=1 << 20, shards=1 << 30)
    assert zd.from_zarr(array).numblocks == (1 << 13,)
    assert zd.from_zarr(array, chunks="chunks").numblocks == (1 << 20,)
    fine = zd.create_array({}, shape=(1 << 40,), dtype="i1", chunks=1)
    for chunks in (None, "chunks", 1, (5,), {0: np.int64(7)}):
        with pytest.raises(GridError, match="more than a dask array can list"):
            zd.from_zarr(fine, chunks=chunks)
    with pytest.raises(GridError, match="more than a dask array can list"):
        fine.lazy[::-2].to_dask()
    assert fine.lazy[: 1 << 10].to_dask().numblocks == (1 << 10,)
    assert zd.from_zarr(fine, chunks="auto").numblocks == (1 << 13,)


@pytest.mark.parametrize(
    "chunks", [-5, (-5,), ((-1, 5),), ((5, -1),), {0: -3}, 0, (0,), {0: 0}, 1.5, "nope", ((1, 2),)]
)
def test_sizes_that_are_none(chunks):
    array = zd.create_array({}, shape=(4,), dtype="i1", chunks=2)
    with pytest.raises(GridError, match="gives no blocks"):
        array.to_dask(chunks)
