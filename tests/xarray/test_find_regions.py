"""Regions found by labels, and regions for many jobs; what they hold is compared with xarray."""

from __future__ import annotations

import dask.array as da
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.xarray_roles import steps
from zarr_dask.errors import DatasetMismatchError, GridError, LabelNotFoundError


def globe(calendar="standard"):
    times = xr.date_range("1999-11-01", periods=90, freq="D", calendar=calendar)
    t = da.arange(90 * 6, chunks=60, dtype="f4").reshape(90, 6)
    lat = [50.0, 40.0, 30.0, 20.0, 10.0, 0.0]
    coordinates = {"time": times, "lat": lat, "name": ("lat", list("abcdef"))}
    return xr.Dataset({"t": (("time", "lat"), t)}, coordinates)


@pytest.mark.parametrize("calendar", ["standard", "360_day"])
@pytest.mark.parametrize(
    "labels",
    [
        {"time": slice("2000", "2000-01-10")},
        {"time": "1999-12"},
        {"time": slice(None, "1999-11-05"), "lat": slice(45, 15)},
        {"lat": 30},
    ],
)
def test_region_of_labels_is_what_xarray_selects(tmp_path, labels, calendar):
    pytest.importorskip("cftime")
    zd.write_dataset(globe(calendar), tmp_path / "a", chunks={"time": 10, "lat": 3})
    region = zd.find_region(tmp_path / "a", labels)
    zd.copy(tmp_path / "a", tmp_path / "b", region=region)
    kept = {k: [one] if isinstance(one, int) else one for k, one in labels.items()}
    expected = xr.open_zarr(tmp_path / "a").sel(kept)
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "b").load(), expected.load())


@pytest.mark.parametrize(
    ("labels", "error", "told"),
    [
        ({"time": slice("2031", None)}, LabelNotFoundError, "they go from 1999-11-01"),
        ({"lat": slice(11, 19)}, LabelNotFoundError, "from 50.0 to 0.0"),
        ({"time": slice("2000-01-05", "2000-01-02")}, LabelNotFoundError, "no labels from"),
        ({"lat": 31}, LabelNotFoundError, "no label 31"),
        ({"lat": "north"}, LabelNotFoundError, "no label 'north'"),
        ({"lat": slice(50, 0, 2)}, LabelNotFoundError, "no step"),
        ({"name": "a"}, DatasetMismatchError, "there are labels of"),
        ({"lon": 3}, DatasetMismatchError, "there are labels of"),
    ],
)
def test_labels_that_no_region_has_are_refused(labels, error, told):
    store = {}
    zd.write_dataset(globe(), store)
    with pytest.raises(error, match=told):
        zd.find_region(store, labels)


def test_the_ends_of_falling_labels_are_taken_in_either_order():
    store = {}
    zd.write_dataset(globe(), store)
    found = zd.find_region(store, {"lat": slice(10, 30)})
    assert found == zd.find_region(store, {"lat": slice(30, 10)})
    assert zd.open_dataset(store).isel(found)["lat"].values.tolist() == [30, 20, 10]


def test_labels_in_no_order_are_refused():
    store = {}
    zd.write_dataset(globe().isel(lat=[0, 2, 1, 3, 4, 5]), store)
    with pytest.raises(DatasetMismatchError, match="in no order"):
        zd.find_region(store, {"lat": slice(50, 10)})


@pytest.mark.parametrize("n", [1, 3, 7, 100])
def test_regions_cover_all_and_share_no_object(tmp_path, n):
    template = steps(0, 60)[["t"]]
    template["u"] = template["t"]
    zd.create_dataset(template, tmp_path / "a", chunks={"t": {"time": 4}, "u": {"time": 6}})
    found = zd.regions(tmp_path / "a", n)
    assert len(found) == min(n, 5)  # the borders that 4 and 6 have in common: 12, 24, ...
    for region in found:
        part = template.isel(region)[["t", "u"]].drop_vars(["lat", "lon"])
        zd.write_dataset(part, tmp_path / "a", region="auto", partial="refuse")
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "a").load(), template.load())


def test_regions_of_cells_of_any_length(tmp_path):
    blocks = da.zeros(59, chunks=(31, 28), dtype="f4")
    template = xr.Dataset({"t": ("time", blocks)})
    group = zd.create_dataset(template, tmp_path / "a", chunks={"t": {"time": (31, 28)}})
    assert zd.regions(group, 9) == [{"time": slice(0, 31)}, {"time": slice(31, 59)}]


def test_regions_that_cannot_be_are_refused():
    store = {}
    zd.write_dataset(steps(0, 20), store, chunks={"t": {"time": 4}, "n": {"time": 20}})
    with pytest.raises(GridError, match="partial='compare'"):
        zd.regions(store, 5)
    assert len(zd.regions(store, 5, variables=["t"])) == 5
    assert zd.regions(store, 2, dim="lat", variables=["t"]) == [{"lat": slice(0, 2)}]
    with pytest.raises(DatasetMismatchError, match="no variables"):
        zd.regions(store, 5, variables=["lat"])
    with pytest.raises(DatasetMismatchError, match="does not match"):
        zd.regions(store, 5, dim="depth")
    with pytest.raises(ValueError, match="n=0"):
        zd.regions(store, 0)


def test_regions_of_more_objects_than_can_be_listed():
    group = zd.create_group({})
    group.create_array("t", shape=(10**12,), dtype="f4", chunks=1, dimension_names=["x"])
    with pytest.raises(GridError, match="rechunk"):
        zd.regions(group, 5)


@pytest.mark.parametrize("labels", [{"lat": [10, 30]}, {"lat": {}}, None, "lat=10"], ids=repr)
def test_labels_that_are_no_region_are_typed_errors(labels):
    """pandas has an exception of its own for them."""
    zd.write_dataset(globe().isel(time=[0]), store := {})
    with pytest.raises(TypeError, match=r"labels.*expected a"):
        zd.find_region(store, labels)
    one = globe()["lat"][1]
    assert zd.find_region(store, {"lat": one}) == {"lat": slice(1, 2)}
