"""Levels of a pyramid, computed pixel by pixel, and images compared with them."""

from __future__ import annotations

from itertools import product

import numpy as np
import zarr

import zarr_dask as zd


def cells(values, factors):
    """Index of each coarse pixel, and the fine ones of its cell."""
    counts = [-(-n // f) for n, f in zip(values.shape, factors, strict=True)]
    for index in product(*map(range, counts)):
        region = tuple(slice(i * f, (i + 1) * f) for i, f in zip(index, factors, strict=True))
        yield index, values[region].ravel()


def by_cell(values, factors, function):
    counts = tuple(-(-n // f) for n, f in zip(values.shape, factors, strict=True))
    out = np.empty(counts, values.dtype)
    for index, cell in cells(values, factors):
        out[index] = function(cell)
    return out


def exact_mean(cell):
    if cell.dtype.kind == "b":
        return exact_mean(cell.astype("u1")) == 1
    if cell.dtype.kind in "iu":
        doubled, count = 2 * sum(map(int, cell)), len(cell)
        low, rest = divmod(doubled, 2 * count)
        return low + (rest > count or (rest == count and low % 2 == 1))
    return np.mean(cell.astype("f8")).astype(cell.dtype)


def most_frequent(cell):
    values, counts = np.unique(cell, return_counts=True)
    return values[counts.argmax()]


def blurred(values, factors):
    """The weighted mean along each axis, from the formula."""
    made = values.astype("f8")
    for axis, factor in enumerate(factors):
        if factor == 1:
            continue
        length = made.shape[axis]
        slices = []
        for i in range(-(-length // factor)):
            centre = i * factor + (factor - 1) / 2
            near = [p for p in range(-99, 199) if abs(p - centre) <= factor]
            weights = np.exp([-(((p - centre) / (factor / 3)) ** 2) / 2 for p in near])
            taken = np.clip(near, 0, length - 1)
            whole = -(-length // factor) * factor
            assert near[0] >= -whole
            slices.append(np.tensordot(weights / weights.sum(), made.take(taken, axis), (0, axis)))
        made = np.stack(slices, axis)
    return np.rint(made) if values.dtype.kind in "iu" else made


ORACLES = {
    "mean": lambda x, f: by_cell(x, f, exact_mean),
    "max": lambda x, f: by_cell(x, f, np.max),
    "mode": lambda x, f: by_cell(x, f, most_frequent),
    "nearest": lambda x, f: x[tuple(slice(None, None, n) for n in f)],
}


def pyramid(values, plan, method="mean"):
    """All levels by an independent computation."""
    levels = [values]
    for factors in plan.factors[1:]:
        levels.append(ORACLES[method](levels[-1], factors))
    return levels


def check_levels(url, plan, values, method="mean", path=""):
    """Compare every level with what it should be, as zarr-python reads it."""
    group = zarr.open_group(url, mode="r", path=path)
    for i, expected in enumerate(pyramid(values, plan, method)):
        np.testing.assert_array_equal(group[str(i)][...], expected)
    assert zd.ome.validate(url, path) == []


def pixels(*shape, dtype="u2"):
    return np.random.default_rng(7).integers(0, 120, shape).astype(dtype)
