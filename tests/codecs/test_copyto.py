"""Copying rows as single elements: the same as what NumPy does element by element."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_dask.codecs import chunk_batches as rows
from zarr_dask.codecs.chunk_batches import fast_copyto

DTYPES = ["u1", ">i2", "f4", "<f8", "c16", "M8[s]", "S3", "U2", "V5", "?", "O"]
LAYOUTS = ["whole", "part", "every other", "columns first", "turned", "broadcast"]


def laid_out(shape, dtype, layout):
    """Memory of a shape, as one finds it in a larger array."""
    if layout == "part":
        wide = np.zeros(tuple(n + 3 for n in shape), dtype)
        return wide[tuple(slice(1, n + 1) for n in shape)]
    if layout == "every other":
        return np.zeros(tuple(2 * n for n in shape), dtype)[tuple(np.s_[::2] for _ in shape)]
    if layout == "columns first":
        return np.zeros(shape, dtype, order="F")
    if layout == "turned":
        return np.zeros(shape, dtype)[..., ::-1]
    return np.zeros(shape, dtype)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    st.sampled_from(DTYPES),
    st.sampled_from(LAYOUTS),
    st.sampled_from(LAYOUTS[:-1]),
    st.sampled_from([None, "<f8"]),
)
def test_rows_are_put_as_numpy_puts_elements(shape, dtype, layout, target_layout, other):
    values = np.random.default_rng(0).integers(0, 256, 1 << 16, "u1")
    elements = laid_out(shape, dtype, layout)
    plain = values[: elements.size].reshape(shape)
    elements[...] = plain.astype("i8").astype(dtype) if dtype[-1] != "5" else plain.astype("V5")
    if layout == "broadcast":
        elements = np.broadcast_to(elements[:1], shape) if shape[0] else elements
    if other and elements.dtype.kind in "uif":
        dtype = other
    into, want = laid_out(shape, dtype, target_layout), laid_out(shape, dtype, target_layout)
    want[...] = elements
    with mock.patch.object(rows, "_MANY", 0):
        fast_copyto(elements, into=into)
    np.testing.assert_array_equal(into, want)
    whole = into if into.base is None else into.base
    assert np.array_equal(whole, want if want.base is None else want.base), "beside it, too"


def test_many_short_rows_of_a_chunk():
    box = np.arange(64 * 40 * 70, dtype="i4").reshape(64, 40, 70)
    part = np.zeros((64, 8, 32), "i4")
    fast_copyto(box[:, 8:16, 32:64], into=part)
    np.testing.assert_array_equal(part, box[:, 8:16, 32:64])
    with pytest.raises(ValueError, match="broadcast"):
        fast_copyto(box, into=part)
