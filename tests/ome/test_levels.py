"""Every level of written images against NumPy: each method, data type, number of axes, version."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.ome_levels import blurred, by_cell, exact_mean, most_frequent

DTYPES = ["?", "i1", "u1", ">u2", "i2", "u4", ">i4", "i8", ">u8", "f2", ">f4", "f8", "c8", ">c16"]
SHAPES = {2: (37, 23), 3: (5, 17, 11), 4: (2, 5, 9, 7), 5: (2, 3, 3, 7, 5)}


def least(pixels, factors):
    """A method of a user: the smallest pixel."""
    for axis, factor in enumerate(factors):
        cut = (*pixels.shape[:axis], -1, factor, *pixels.shape[axis + 1 :])
        pixels = pixels.reshape(cut).min(axis=axis + 1)
    return pixels


def mean(cell):
    if cell.dtype.kind != "c":
        return exact_mean(cell)
    return complex(cell.real.astype("f8").mean(), cell.imag.astype("f8").mean())


def weighted(values, factors):
    if values.dtype.kind == "c":
        return blurred(values.real, factors) + 1j * blurred(values.imag, factors)
    found = blurred(values, factors)
    return np.rint(found) if values.dtype.kind == "b" else found


ORACLES = {
    "mean": lambda x, f: by_cell(x, f, mean),
    "max": lambda x, f: by_cell(x, f, np.max),
    "mode": lambda x, f: by_cell(x, f, most_frequent),
    "nearest": lambda x, f: x[tuple(slice(None, None, n) for n in f)],
    "gaussian": weighted,
    "least": lambda x, f: by_cell(x, f, np.min),
}
METHODS = {name: least if name == "least" else name for name in ORACLES}


def numbers(dtype, shape):
    """Values over the whole range of a type; some of them several times."""
    dtype = np.dtype(dtype)
    draw = np.random.default_rng(11)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        values = draw.integers(ends.min, ends.max, shape, dtype.newbyteorder("="), endpoint=True)
    elif dtype.kind == "b":
        values = draw.integers(0, 2, shape)
    else:
        values = draw.normal(0, 1000, shape)
        if dtype.kind == "c":
            values = values + 1j * draw.normal(0, 1000, shape)
    values[..., ::3] = values[..., :1]
    return values.astype(dtype)


def check(found, expected, method):
    """Compare; only a sum of floats may differ in its last figures."""
    if found.dtype.kind in "fc" and method in {"mean", "gaussian"}:
        eps = float(np.finfo(found.dtype).eps)
        np.testing.assert_allclose(found, expected, rtol=8 * eps, atol=1e-9)
    elif method == "gaussian":  # it may fall on either side of a half
        np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=1e-12, atol=1)
    else:
        np.testing.assert_array_equal(found, expected)


def round_trip(url, dtype, method, ndim, version):
    values = numbers(dtype, SHAPES[ndim])
    plan = zd.ome.plan_write(
        values,
        url,
        axes="tczyx"[-ndim:],
        version=version,
        chunks=4,
        shards=8 if version == "0.5" and ndim % 2 else None,
        factors=[(1,) * (ndim - 2) + (2, 2), (1,) * (ndim - 2) + (2, 3)],
        method=METHODS[method],
    )
    plan.run()
    group = zarr.open_group(url, mode="r")
    np.testing.assert_array_equal(group["0"][...], values)
    for before, level, factors in zip("01", "12", plan.factors[1:], strict=True):
        fine, made = group[before][...], group[level][...]  # each follows from the one before
        assert made.dtype.newbyteorder("=") == values.dtype.newbyteorder("=")
        check(made, ORACLES[method](fine, factors), method)
    assert zd.ome.validate(url) == []
    assert zd.ome.open(url).metadata.version == version


PAIRS = list(product(DTYPES, ORACLES))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, id="-".join(pair), marks=pytest.mark.slow if n // 6 % 2 == n % 2 else ())
        for n, pair in enumerate(PAIRS)
    ],
)
def test_methods_and_data_types(tmp_path, number):
    dtype, method = PAIRS[number]
    ndim, version = 2 + (number + number // 6) % 4, ("0.4", "0.5")[number // 4 % 2]
    round_trip(tmp_path / "image", dtype, method, ndim, version)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("method", ORACLES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_combinations(tmp_path, dtype, method, version):
    for ndim in SHAPES:
        round_trip(tmp_path / str(ndim), dtype, method, ndim, version)
