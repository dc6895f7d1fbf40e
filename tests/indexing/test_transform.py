"""Selections of selections, against NumPy."""

import pickle
from itertools import groupby

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support import selections
from zarr_dask.errors import SelectionError
from zarr_dask.grid.grid import Edges, Fixed, Grid
from zarr_dask.indexing.basic import has_lists
from zarr_dask.indexing.plan import SelectionPlan, blocks_of_selection_grid, output_index
from zarr_dask.indexing.transform import (
    IndexTransform,
    parse_blocks,
    parse_numpy,
    parse_outer,
    parse_points,
)

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)


def values(shape):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


@st.composite
def chains(draw):
    """An array, a few selections after each other, and what NumPy makes of them."""
    array = values(draw(shapes))
    transform, expected = IndexTransform.identity(array.shape), array
    for _ in range(draw(st.integers(1, 3))):
        shape = expected.shape
        kind = draw(st.sampled_from(["numpy", "outer", "points", "transpose"]))
        if kind == "numpy":
            key = draw(selections.numpy_keys(shape))
            following, expected = parse_numpy(key, shape), expected[key]
        elif kind == "outer":
            key = draw(selections.outer_keys(shape))
            following, expected = parse_outer(key, shape), selections.outer(expected, key)
        elif kind == "points":
            key = draw(selections.point_keys(shape))
            following, expected = parse_points(key, shape), expected[key]
        else:
            axes = draw(st.permutations(range(len(shape))))
            transform, expected = transform.transposed(axes), expected.transpose(axes)
            continue
        expected = np.asarray(expected)
        transform = transform.then(following)
    return array, transform, expected


@given(chains())
def test_selections_are_numpys(case):
    array, transform, expected = case
    assert transform.shape == expected.shape
    np.testing.assert_array_equal(selections.evaluated(transform, array), expected)


@st.composite
def grids(draw, shape):
    dimensions = []
    for n in shape:
        if draw(st.booleans()) or not n:
            dimensions.append(Fixed(draw(st.integers(1, 4)), n))
        else:
            sizes = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
            dimensions.append(Edges.of(sizes, n))
    return Grid(tuple(dimensions))


@given(chains(), st.data())
def test_pieces_make_the_selection(case, data):
    array, transform, expected = case
    grid = data.draw(grids(array.shape))
    chunk_shape = data.draw(st.none() | st.tuples(*(st.integers(1, 3) for _ in array.shape)))
    gathering = SelectionPlan(transform)
    gathered = np.full(gathering.shape, -1)
    sparse = data.draw(st.sampled_from([None, 0, 2, 100]))
    for taking in gathering.chunk_selections(grid, chunk_shape, sparse):
        stored = array[grid.region_of(taking.coords)]
        box = stored[taking.box]
        assert box.shape == tuple(len(range(s.start, s.stop, s.step)) for s in taking.box)
        if taking.exact:
            gathering.in_source_order(taking, gathered)[...] = box
        place = output_index(taking.out, gathered.shape)
        picked = gathering.picked(taking, box)
        if taking.exact:
            np.testing.assert_array_equal(gathered[place], picked)
        gathered[place] = picked
    if transform.size:
        np.testing.assert_array_equal(gathering.result(gathered), expected)
        np.testing.assert_array_equal(gathering.gathered(expected), gathered)


@given(chains(), st.data())
def test_whole_chunks_make_the_selection(case, data):
    array, transform, expected = case
    gathering = SelectionPlan(transform)
    assume(array.ndim and gathering.lists_only)
    lengths = st.tuples(*(st.integers(1, 3) for _ in array.shape))
    chunk_shape = data.draw(lengths)
    cell = tuple(map(int.__mul__, chunk_shape, data.draw(lengths)))
    padded = np.pad(array, [(0, n) for n in cell], constant_values=-9)
    gathered = np.full(gathering.shape, -1)
    seen = []
    for taken in gathering.whole_chunk_selections(Grid.regular(array.shape, cell), chunk_shape):
        first = [at * n + o for at, n, o in zip(taken.coords, cell, taken.origin, strict=True)]
        chunk = padded[tuple(slice(at, at + n) for at, n in zip(first, chunk_shape, strict=True))]
        gathered[output_index(taken.out, gathered.shape)] = chunk.reshape(-1)[taken.numbers]
        seen.append((taken.coords, taken.origin))
    assert len(set(seen)) == len(seen)
    assert [at for at, _ in seen] == sorted(at for at, _ in seen) or len(gathering.groups) > 1
    objects = [at for at, _ in groupby(seen, key=lambda pair: pair[0])]
    assert len(set(objects)) == len(objects), "a stored object is read once"
    if transform.size:
        np.testing.assert_array_equal(gathering.result(gathered), expected)


def test_coordinates_that_are_too_many_for_one_number():
    shape = (1 << 40, 1 << 40, 1 << 40)
    generator = np.random.default_rng(0)
    corners = generator.integers(0, 1 << 40, (4, 3))
    points = corners[generator.integers(0, 4, 50)] // 64 * 64 + generator.integers(0, 64, (50, 3))
    gathering = SelectionPlan(parse_points(tuple(points.T), shape))
    found = {}
    for taking in gathering.chunk_selections(Grid.regular(shape, (1024,) * 3), (64,) * 3):
        pick = taking.picks[0] or (0, 0, 0)
        inside = [side.start + at for side, at in zip(taking.box, pick, strict=True)]
        numbers = np.arange(50)[taking.out[0]]
        origin = [1024 * at for at in taking.coords]
        for row, number in zip(np.broadcast_arrays(*inside), range(3), strict=True):
            np.testing.assert_array_equal(origin[number] + row, points[numbers, number])
        found[taking.coords] = found.get(taking.coords, 0) + len(numbers)
    assert sum(found.values()) == 50
    assert len(found) == 4
    chunks = gathering.whole_chunk_selections(Grid.regular(shape, (1024,) * 3), (64,) * 3)
    for taken in chunks:
        numbers = np.arange(50)[taken.out[0]]
        first = [1024 * at + origin for at, origin in zip(taken.coords, taken.origin, strict=True)]
        inside = np.stack(np.unravel_index(taken.numbers, (64,) * 3), axis=1)
        np.testing.assert_array_equal(first + inside, points[numbers])


@given(chains(), st.data())
def test_blocks_cover_the_selection(case, data):
    array, transform, expected = case
    blocks = blocks_of_selection_grid(transform, data.draw(grids(array.shape)))
    assert tuple(map(sum, blocks)) == expected.shape
    for sizes, n in zip(blocks, expected.shape, strict=True):
        assert min(sizes) > 0 or sizes == (n,)
    region = tuple(slice(0, sizes[0]) for sizes in blocks)
    np.testing.assert_array_equal(
        selections.evaluated(transform.within(region), array), expected[region]
    )


@given(chains())
def test_tokens_follow_the_selection(case):
    _, transform, _ = case
    copy = pickle.loads(pickle.dumps(transform))
    assert copy.token == transform.token
    assert transform.then(IndexTransform.identity(transform.shape)).shape == transform.shape


def test_tokens_differ():
    keys = [np.s_[1:4], np.s_[1:5], np.s_[[1, 2, 3]], np.s_[[1, 3, 2]], np.s_[1], np.s_[1:4, None]]
    assert len({parse_numpy(key, (8,)).token for key in keys}) == len(keys)


def test_points_that_are_orthogonal_stay_so():
    """What np.ix_ makes is not a list of all its points."""
    key = np.ix_(range(100), range(0, 200, 2))
    maps = parse_points(key, (100, 200)).maps
    assert [one.positions.size for one in maps] == [100, 100]
    assert len(SelectionPlan(parse_points(key, (100, 200))).groups) == 2


def test_lists_do_not_alias_what_was_given():
    given_list = np.array([1, 2])
    transform = parse_outer((given_list,), (5,))
    given_list[0] = 4
    assert transform.maps[0].positions.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(7,), (0,), (3, 4), (3, 0, 2), (2, 3, 4)])
@pytest.mark.parametrize("arranged", [np.asarray, np.asfortranarray, np.flip])
def test_masks_select_what_is_true(shape, arranged):
    mask = arranged(np.random.default_rng(0).random(shape) < 0.5)
    found = [np.broadcast_to(one.positions, mask.sum()) for one in parse_numpy((mask,), shape).maps]
    assert [one.tolist() for one in found] == [one.tolist() for one in mask.nonzero()]


@pytest.mark.parametrize(
    ("parse", "key", "words"),
    [
        (parse_numpy, ([0, 4],), "index 4 is out of bounds for dimension 0 with 4 elements"),
        (parse_numpy, (0, [0, -6]), "index -6 is out of bounds for dimension 1 with 5"),
        (parse_numpy, ([1], [2], [3]), "3 indices for an array of 2 dimensions"),
        (parse_numpy, ([1, 2], [1, 2, 3]), r"shapes \(2,\), \(3,\) cannot be broadcast"),
        (parse_numpy, ([1.5],), "type float64"),
        (parse_numpy, ([[1], [2, 3]],), "is no array"),
        (parse_numpy, (np.ones((4, 4), bool),), r"mask of shape \(4, 4\) from dimension 0 on"),
        (parse_numpy, (np.ones(5, bool),), r"mask of shape \(5,\).* shape \(4,\)"),
        (parse_numpy, (np.ones((4, 5, 1), bool),), "3 indices for an array of 2"),
        (parse_numpy, (True,), "type bool"),
        (parse_numpy, ("a",), "'a' names no elements"),
        (parse_outer, ([[1, 2]],), "takes lists of one dimension"),
        (parse_outer, (np.ones((4, 5), bool),), "takes lists of one dimension"),
        (parse_points, ([9], [0]), "index 9 is out of bounds"),
        (parse_points, (slice(None, None, 0), [0]), "zero"),
    ],
)
def test_what_is_no_selection(parse, key, words):
    with pytest.raises(SelectionError, match=words):
        parse(key, (4, 5))


def test_lazy_arrays_are_no_index():
    import dask.array as da

    with pytest.raises(SelectionError, match="compute it first"):
        parse_numpy(da.ones(4, dtype=bool), (4,))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (0, np.s_[:3]),
        (-1, np.s_[9:]),
        (np.s_[1:3, ..., 1], np.s_[3:9, 4:8]),
        (np.s_[5:], np.s_[0:0]),
        ((), np.s_[:]),
    ],
)
def test_blocks_are_cells(key, expected):
    array = values((10, 9))
    transform = parse_blocks(key, Grid.regular((10, 9), (3, 4)))
    np.testing.assert_array_equal(selections.evaluated(transform, array), array[expected])


@pytest.mark.parametrize("key", [4, (0, 3), np.s_[::2], [0, 1], None, (0, 0, 0), 1.5])
def test_what_is_no_index_of_blocks(key):
    with pytest.raises(SelectionError):
        parse_blocks(key, Grid.regular((10, 9), (3, 4)))


def test_axes_are_a_permutation():
    transform = IndexTransform.identity((2, 3))
    assert transform.transposed((-1, 0)).shape == (3, 2)
    for axes in [(0,), (0, 0), (0, 2), (0, 1, 2)]:
        with pytest.raises(SelectionError, match="no permutation"):
            transform.transposed(axes)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (np.s_[1, ::2, None, ...], False),
        (np.s_[np.int64(1), np.array(2)], False),
        (np.s_[[1]], True),
        (np.s_[1, np.array([True])], True),
        (np.s_[[1, 2], 0], True),
        (np.s_[0, (1, 2)], True),
        (True, False),
    ],
)
def test_what_has_lists(key, expected):
    assert has_lists(key) is expected
