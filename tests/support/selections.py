"""Indices for Hypothesis, and what NumPy makes of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from zarr_dask.indexing.transform import IndexTransform, axes_of, positions_of


def slices(length):
    ends = st.none() | st.integers(-length - 2, length + 2)
    steps = st.none() | st.integers(-3, 3).filter(bool)
    return st.builds(slice, ends, ends, steps)


def positions(length, shape):
    count = int(np.prod(shape))
    inside = st.integers(-length, length - 1) if count else st.nothing()
    return st.lists(inside, min_size=count, max_size=count).map(
        lambda found: np.array(found, "i8").reshape(shape)
    )


def masks(shape):
    count = int(np.prod(shape))
    return st.lists(st.booleans(), min_size=count, max_size=count).map(
        lambda found: np.array(found, bool).reshape(shape)
    )


@st.composite
def numpy_keys(draw, shape, lists=True):
    """An index as ``array[...]`` takes it."""
    common = draw(st.sampled_from([(1,), (3,), (0,), (2, 2), (1, 3)]))
    items = []
    axis = 0
    while axis < len(shape):
        if draw(st.integers(0, 5)) == 0:
            items.append(None)
        kind = draw(st.sampled_from(["int", "slice", "list", "mask", "end"]))
        if kind == "end":
            break
        if kind == "int" and shape[axis]:
            items.append(draw(st.integers(-shape[axis], shape[axis] - 1)))
        elif kind == "list" and lists and (shape[axis] or common == (0,)):
            kept = common[draw(st.integers(0, len(common) - 1)) :]
            found = draw(positions(shape[axis], kept))
            items.append(found.tolist() if draw(st.booleans()) else found)
        elif kind == "mask" and lists and common == (3,) and shape[axis] >= 3:
            chosen = draw(st.permutations(range(shape[axis])))[:3]
            items.append(np.isin(np.arange(shape[axis]), chosen))
        else:
            items.append(draw(slices(shape[axis])))
        axis += 1
    else:
        if draw(st.booleans()):
            items.insert(draw(st.integers(0, len(items))), ...)
        return tuple(items)
    items.append(...)
    if axis < len(shape) and draw(st.booleans()):
        items.append(draw(slices(shape[-1])))
    return tuple(items)


@st.composite
def outer_keys(draw, shape):
    """An index as ``array.oindex[...]`` takes it."""
    items = []
    for length in shape:
        kind = draw(st.sampled_from(["int", "slice", "list", "mask"]))
        if kind == "int" and length:
            items.append(draw(st.integers(-length, length - 1)))
        elif kind == "list" and length:
            items.append(draw(positions(length, (draw(st.integers(0, 5)),))))
        elif kind == "mask":
            items.append(draw(masks((length,))))
        else:
            items.append(draw(slices(length)))
    return tuple(items)


@st.composite
def point_keys(draw, shape):
    """An index as ``array.vindex[...]`` takes it, of a list for every dimension, or a mask."""
    if not shape or 0 in shape or draw(st.integers(0, 3)) == 0:
        return draw(masks(shape)) if shape else ()
    common = draw(st.sampled_from([(1,), (4,), (0,), (2, 3), (7,)]))
    kept = [common[draw(st.integers(0, len(common) - 1)) :] for _ in shape]
    return tuple(draw(positions(n, one)) for n, one in zip(shape, kept, strict=True))


def outer(array, key):
    """What an orthogonal selection gives, one dimension after the other."""
    for axis in reversed(range(array.ndim)):
        array = array[(slice(None),) * axis + (key[axis],)]
    return array


def mesh(shape, key):
    """The index that NumPy understands for an orthogonal selection: all lists, shape kept."""
    return np.ix_(*(np.atleast_1d(np.arange(n)[one]) for n, one in zip(shape, key, strict=True)))


def evaluated(transform: IndexTransform, array):
    """What a transform takes, element by element."""
    index = []
    for one in transform.maps:
        own = axes_of(one)
        lengths = [n if axis in own else 1 for axis, n in enumerate(transform.shape)]
        index.append(positions_of(one, transform.shape).reshape(lengths))
    return np.broadcast_to(array[tuple(index)], transform.shape)
