"""Basic indexing, against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import zarr_dask as zd
from zarr_dask.errors import GridError, SelectionError
from zarr_dask.indexing.basic import checked_region, checked_shape, parse_basic

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)


@st.composite
def arrays_and_indices(draw):
    shape = draw(shapes)
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return array, draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=8))


@given(arrays_and_indices())
def test_region_and_finish_are_the_index(case):
    array, index = case
    selection = parse_basic(index, array.shape)
    region = array[selection.region]
    assert region.shape == selection.region_shape
    np.testing.assert_array_equal(region[selection.finish], array[index])
    assert selection.shape == np.shape(array[index])
    if selection.plain:
        np.testing.assert_array_equal(region, array[index])


@given(arrays_and_indices(), st.data())
def test_spread_puts_values_where_numpy_does(case, data):
    array, index = case
    selection = parse_basic(index, array.shape)
    shape = [n if data.draw(st.booleans()) else 1 for n in selection.shape]
    keep = data.draw(st.integers(0, len(shape)))
    value = np.arange(np.prod(shape[keep:], dtype=int)).reshape(shape[keep:]) + 1000
    expected, written = array.copy(), array.copy()
    expected[index] = value
    written[selection.region] = selection.spread(value)
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (4, "index 4 is out of bounds for dimension 0 with 4 elements"),
        ((0, -6), "index -6 is out of bounds for dimension 1"),
        ((0, 0, 0), "3 indices for an array of 2 dimensions"),
        ((..., ...), "one Ellipsis"),
        (slice(None, None, 0), "zero"),
        (slice("a"), "slice"),
        (1.5, "type float in dimension 0"),
        ([1, 2], "type list"),
        (np.array([True, False, True, True]), "type ndarray"),
        (True, "type bool"),
    ],
)
def test_what_is_no_basic_index(index, words):
    with pytest.raises(SelectionError, match=words):
        parse_basic(index, (4, 5))


def test_numpy_integers_are_integers():
    assert parse_basic((np.int64(-1), np.array(2)), (4, 5)).region == (
        slice(3, 4, 1),
        slice(2, 3, 1),
    )


def test_regions_keep_every_dimension():
    assert checked_region(None, (4, 5)) == (slice(0, 4, 1), slice(0, 5, 1))
    for region in (1, (slice(None, None, -1),), None, (None, slice(None))):
        if region is not None:
            with pytest.raises(SelectionError, match="positive step"):
                checked_region(region, (4, 5))


@pytest.mark.parametrize("shape", [(2, 0), (2,), "ab", 2.5, (2.0, 3)])
def test_shapes_that_are_none(shape):
    with pytest.raises(GridError, match="chunks="):
        checked_shape(shape, 2, "chunks")


@pytest.mark.parametrize("values", [[1, 2], [[1], [2], [3]], np.zeros((0,))])
def test_values_that_do_not_fit_a_selection(values):
    array = zd.create_array({}, shape=(5,), dtype="i2", chunks=2)
    for write in (
        lambda: array.__setitem__(slice(0, 3), values),
        lambda: array.__setitem__([0, 1, 2], values),
        lambda: array.oindex.__setitem__([0, 1, 2], values),
    ):
        with pytest.raises(GridError, match=r"could not be broadcast to the shape \(3,\)"):
            write()
