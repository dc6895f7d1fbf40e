"""Scalars and fill values, bit by bit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zarr_dask.dtypes import (
    CORE_NAMES,
    float_from_json,
    float_to_json,
    full_of,
    is_full_of,
    scalar,
)

FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]


@given(st.sampled_from(FLOATS), st.data())
def test_every_bit_pattern_of_a_float_survives_json(dtype, data):
    bits = data.draw(st.integers(0, 2 ** (8 * dtype.itemsize) - 1))
    value = np.array(bits, f"u{dtype.itemsize}").view(dtype)
    assert float_from_json(float_to_json(value), dtype).tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("text", "bits"), [("NaN", 0x7FC00000), ("0x7fc00001", 0x7FC00001), ("-Infinity", 0xFF800000)]
)
def test_names_and_bit_patterns(text, bits):
    assert float_from_json(text, np.dtype("f4")).view("u4") == bits


@pytest.mark.parametrize(
    "value", ["+Infinity", "nan", "0x1", "0x7fc000000", "1.5", True, None, [1]]
)
def test_what_is_no_float(value):
    with pytest.raises(ValueError, match="is"):
        float_from_json(value, np.dtype("f4"))


@pytest.mark.parametrize("name", CORE_NAMES)
def test_full_of_is_full_of(name):
    dtype = CORE_NAMES[name]
    for fill in (scalar(0, dtype), scalar(1, dtype)):
        array = full_of((70, 90), dtype, fill)
        assert is_full_of(array, fill)
        assert is_full_of(array[::2, 1::3], fill)
        array[-1, -1] = not fill
        assert not is_full_of(array, fill)
        deep = full_of((3, 4, 5), dtype, fill)
        deep[0, 0, -1] = not fill  # in the first row
        assert not is_full_of(deep[:, ::2], fill)
        assert is_full_of(deep[1:], fill)


def test_fill_is_compared_by_bits():
    zero, negative = np.array(0.0), np.array(-0.0)
    assert not is_full_of(np.full(10_000, negative), zero)
    assert not is_full_of(np.append(np.zeros(10_000), negative), zero)
    nan = np.array(0x7FF8000000000001, "u8").view("f8")
    assert is_full_of(np.full(5, nan), nan)
    assert not is_full_of(np.full(5, np.nan), nan)
    pair = np.full((), complex(0, -0.0))
    assert not is_full_of(np.zeros(4, complex), pair)
    assert is_full_of(np.full((3, 3), pair), pair)


@given(hnp.arrays(hnp.floating_dtypes(endianness="="), hnp.array_shapes(max_dims=2)))
def test_is_full_of_agrees_with_bytes(array):
    first = np.array(array[(0,) * array.ndim])
    expected = array.tobytes() == first.tobytes() * array.size
    assert is_full_of(array, first) == expected


@pytest.mark.parametrize(
    ("value", "name", "error"),
    [
        (256, "uint8", OverflowError),
        (1.5, "int8", TypeError),
        ("x", "int8", TypeError),
        (2, "bool", ValueError),
        ("x", "float32", ValueError),
    ],
)
def test_scalars_that_do_not_fit(value, name, error):
    with pytest.raises(error):
        scalar(value, CORE_NAMES[name])


def test_scalars_keep_their_bits():
    nan = np.array(0x7FC00123, "u4").view("f4")
    assert scalar(nan, np.dtype("f4")).view("u4") == 0x7FC00123
    assert scalar(2.0, np.dtype("i4")) == 2
    assert math.isinf(scalar(1e300, np.dtype("f4")))
