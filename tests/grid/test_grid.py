"""The chunk arithmetic, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_dask.errors import GridError
from zarr_dask.grid.dimension import overlaps
from zarr_dask.grid.grid import Edges, Fixed, Grid, cells_overlapping, intersect_chunks


@st.composite
def dimensions(draw):
    extent = draw(st.integers(0, 30))
    if draw(st.booleans()):
        return Fixed(draw(st.integers(1, 35)), extent)
    edges = [draw(st.integers(1, 12))]
    while sum(edges) < extent:
        edges.append(draw(st.integers(1, 12)))
    return Edges.of(edges + draw(st.lists(st.integers(1, 3), max_size=2)), extent)


@st.composite
def dimensions_and_slices(draw):
    dimension = draw(dimensions())
    start = draw(st.integers(0, dimension.extent))
    stop = draw(st.integers(start, dimension.extent))
    return dimension, slice(start, stop, draw(st.integers(1, 9)))


@given(dimensions_and_slices())
def test_spans_take_every_selected_element_once_and_in_order(case):
    dimension, selected = case
    elements = np.arange(dimension.extent)
    result = np.full(len(elements[selected]), -1)
    for span in intersect_chunks(dimension, selected):
        start = dimension.start(span.coord)
        cell = elements[start : start + dimension.size_of(span.coord)]
        result[span.out] = cell[span.inside]
        assert span.whole == (len(cell[span.inside]) == len(cell))
    np.testing.assert_array_equal(result, elements[selected])


@given(st.lists(dimensions(), max_size=3), st.data())
def test_parts_cover_a_region(cuts, data):
    grid = Grid(tuple(cuts))
    array = np.arange(np.prod(grid.shape, dtype=int)).reshape(grid.shape)
    region = []
    for extent in grid.shape:
        start = data.draw(st.integers(0, extent))
        region.append(slice(start, data.draw(st.integers(start, extent)), 1))
    region = tuple(region)
    result = np.full_like(array[region], -1)
    parts = list(grid.parts(region))
    for part in parts:
        cell = array[grid.region_of(part.coords)]
        result[part.out] = cell[part.inside]
    np.testing.assert_array_equal(result, array[region])
    assert len(parts) == grid.count_parts(region) == len({part.coords for part in parts})


@given(dimensions(), st.data())
def test_aligned_blocks_share_no_cell_and_keep_their_sum(dimension, data):
    sizes = []
    while sum(sizes) < dimension.extent:
        sizes.append(min(data.draw(st.integers(1, 12)), dimension.extent - sum(sizes)))
    sizes = tuple(sizes) or (0,)
    (aligned,) = Grid((dimension,)).align([sizes])
    assert sum(aligned) == sum(sizes)
    borders = np.cumsum(aligned)[:-1]
    assert all(dimension.is_boundary(int(border)) for border in borders)
    if all(dimension.is_boundary(int(border)) for border in np.cumsum(sizes)[:-1]):
        assert aligned == sizes  # blocks that fit are left alone


def test_align_from_an_origin_inside_a_cell():
    grid = Grid.regular((100,), (30,))
    assert grid.align([(15, 15, 40)], origin=(20,)) == ((10, 60),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fixed(0, 4), "cells of 0"),
        (lambda: Edges.of((2, 1), 4), r"\(2, 1\), \(1, 1\)\) .* reach to 3"),
        (lambda: Edges.of((2, 0, 3), 4), "at least one element"),
        (lambda: Edges(((2, 0),), 0), "0 cells of 2"),
        (lambda: Edges.of((2,), -1), "-1 elements"),
        (lambda: Edges(((1 << 62, 2),), 4), "stay below"),
        (lambda: Grid.regular((4, 4), (2,)), "one length per dimension"),
    ],
)
def test_grids_that_cannot_be(make, words):
    with pytest.raises(GridError, match=words):
        make()


def test_a_grid_of_no_dimensions_has_one_cell():
    grid = Grid(())
    assert (grid.ncells, grid.everything) == (1, ())
    assert [part.whole for part in grid.parts(())] == [True]


@given(dimensions_and_slices())
def test_cells_of_a_slice_are_found_without_listing(case):
    dimension, selected = case
    selected = slice(selected.start, selected.stop, 1)
    listed = [span.coord for span in intersect_chunks(dimension, selected)]
    assert list(cells_overlapping(dimension, selected)) == listed


@pytest.mark.parametrize("extent", [0, 1, 7, 24, 61])
@pytest.mark.parametrize("last", [False, True])
def test_overlaps_are_those_of_every_pair(extent, last):
    """Against all pairs of intervals, one by one."""
    edges = [Edges.of(sizes, extent) for sizes in ([3, 50, 8], [1] * 20 + [41], [61])]
    for cells in (Fixed(4, extent), Fixed(7, extent), *edges):
        for intervals in (Fixed(6, extent), Fixed(4, extent), Fixed(100, extent), *edges):
            every, whole = [], []
            for cell in range(cells.count):
                start, stop = cells.start(cell), min(cells.start(cell + 1), extent)
                for other in range(intervals.count):
                    a, b = intervals.start(other), intervals.start(other + 1)
                    common = min(b, stop) - max(a, start)
                    if common > 0:
                        every.append(common)
                        goes_on = last and stop == extent
                        whole += [common] * (common == stop - start and not goes_on)
            found = overlaps(cells, intervals, last=last)
            assert [sorted(one.elements()) for one in found] == [sorted(every), sorted(whole)]
