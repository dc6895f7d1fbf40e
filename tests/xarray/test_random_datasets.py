"""Random datasets that are made, appended to and written over: each as xarray itself writes it."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import zarr_dask as zd

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.coding.common.SerializationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore:The data type"),
]
TEXTS = ["a", "ü", "", "long text"]


def values_of_any_kind(rng, shape):
    """Values, and encodings that hold them."""
    kind = rng.integers(10)
    if kind < 2:
        values = rng.integers(-20, 20, shape) / 2
        values[rng.random(shape) < 0.3] = np.nan
        packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": 99}
        return values, packed if kind else {}
    if kind == 2:
        return rng.integers(0, 100, shape).astype(rng.choice(["u1", "i8", ">i4"])), {}
    if kind == 3:
        return rng.random(shape) < 0.5, {}
    if kind == 4:
        return rng.normal(size=shape) + 1j * rng.normal(size=shape), {}
    if kind == 5:
        return rng.choice(TEXTS, shape).astype(rng.choice(["U9", "O"])), {}
    if kind == 6:
        return rng.choice([b"a", b"xyz", b""], shape).astype("S3"), {}
    spans = rng.integers(0, 2000, shape).astype("m8[h]").astype("m8[ns]")
    if kind == 7:
        return spans, {}
    times = np.datetime64("2000-01-01", "ns") + spans
    times[rng.random(shape) < 0.3] = "NaT"
    return times, {"units": "hours since 1990-01-01", "dtype": "f8"} if kind == 8 else {}


def blocks_of(rng, length):
    cuts = rng.choice(np.arange(1, length), rng.integers(0, length), replace=False)
    return tuple(int(size) for size in np.diff([0, *sorted(cuts), length]))


def random_dataset(rng):
    """A dataset whose blocks have odd shapes; the same of xarray's has its values in memory."""
    lengths = {"time": int(rng.integers(2, 8)), "x": int(rng.integers(1, 5)), "y": 2}
    variables = {}
    for name in "abcd"[: rng.integers(1, 5)]:
        dims = [str(dim) for dim in rng.permutation(list(lengths)) if rng.random() < 0.7]
        shape = tuple(lengths[dim] for dim in dims)
        values, encoding = values_of_any_kind(rng, shape) if dims else (np.float64(3), {})
        if dims and rng.random() < 0.6:
            values = da.from_array(values, chunks=tuple(blocks_of(rng, n) for n in shape))
        if dims and rng.random() < 0.3:
            encoding = {**encoding, "chunks": tuple(int(rng.integers(1, n + 1)) for n in shape)}
        attributes = {"note": [1, "ü", None]} if rng.random() < 0.3 else {}
        variables[name] = xr.Variable(dims, values, attributes, encoding)
    coords = {"time": pd.date_range("2000", periods=lengths["time"]), "x": range(lengths["x"])}
    used = {dim for one in variables.values() for dim in one.dims}
    coords = {dim: labels for dim, labels in coords.items() if dim in used and rng.random() < 0.8}
    return xr.Dataset(variables, coords, {"n": 3})


def same(mine, theirs):
    with xr.open_zarr(mine) as found, xr.open_zarr(theirs) as expected:
        xr.testing.assert_identical(found.load(), expected.load())
        xr.testing.assert_identical(zd.open_dataset(mine).load(), expected)


@pytest.mark.parametrize("seed", range(24))
def test_random_datasets_are_written_as_xarray_writes_them(tmp_path, seed):
    rng = np.random.default_rng(seed)
    ds, mine, theirs = random_dataset(rng), tmp_path / "mine", tmp_path / "theirs"
    version = int(rng.choice([2, 3]))
    with dask.config.set(scheduler="synchronous"):
        ds.compute().to_zarr(theirs, zarr_format=version)
        zd.write_dataset(ds, mine, zarr_format=version)
        same(mine, theirs)
        if "time" not in ds.dims:
            return
        part = ds.isel(time=slice(0, int(rng.integers(1, ds.sizes["time"] + 1))))
        more = part.copy()
        if "time" in ds.coords:
            more["time"] = more["time"] + np.timedelta64(ds.sizes["time"], "D")
        more.compute().to_zarr(theirs, append_dim="time")
        zd.write_dataset(more, mine, append="time", zarr_format=version)
        same(mine, theirs)
        fixed = [name for name, one in part.variables.items() if "time" not in one.dims]
        turned = part.drop_vars(fixed)
        turned = turned.roll(time=1)
        region = {"time": slice(1, 1 + part.sizes["time"])}
        turned.drop_vars("time", errors="ignore").compute().to_zarr(theirs, region=region)
        zd.write_dataset(turned.drop_vars("time", errors="ignore"), mine, region=region)
        same(mine, theirs)


def test_texts_of_v2_that_xarray_reads_are_written_again(tmp_path):
    ds = xr.Dataset({"s": ("x", np.array(["a", "bb"], object))})
    ds.to_zarr(tmp_path / "old", zarr_format=2)
    with xr.open_zarr(tmp_path / "old") as found:
        zd.write_dataset(found, tmp_path / "new", zarr_format=2)
        zd.write_dataset(found, tmp_path / "third")
    same(tmp_path / "new", tmp_path / "old")
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "third").load(), ds)
