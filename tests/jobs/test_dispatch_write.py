"""`to_zarr` and `plan_write` of groups, stored arrays and datasets."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd

NAMES = ("time", "x")


def group(url: Path) -> zd.Group:
    made = zd.create_group(url, attributes={"title": "run 7"})
    array = made.create_array(
        "t", shape=(6, 10), dtype="f4", chunks=(2, 5), dimension_names=NAMES, attributes={"u": "K"}
    )
    array[...] = np.arange(60).reshape(6, 10)
    made.create_group("empty")
    return made


def test_a_group_is_copied(tmp_path: Path) -> None:
    source = group(tmp_path / "g")
    plan = zd.plan_write(source, tmp_path / "h", "run", chunks={"time": -1}, max_mem="1GB")
    assert isinstance(plan, zd.CopyPlan)
    assert not (tmp_path / "h").exists()
    report = zd.to_zarr(source, tmp_path / "h", "run", chunks={"time": -1}, max_mem="1GB")
    assert report.nbytes == 240
    made = zd.open_group(tmp_path / "h", "run")
    assert made.attributes == {"title": "run 7"}
    assert sorted(made) == ["empty", "t"]
    assert made["t"].chunks == (6, 5)
    np.testing.assert_array_equal(made["t"][...], source["t"][...])


def test_modes_of_a_write_are_those_of_a_copy(tmp_path: Path) -> None:
    source = group(tmp_path / "g")
    zd.create_group(tmp_path / "h", attributes={"old": 1})
    with pytest.raises(zd.errors.NodeExistsError):
        zd.to_zarr(source, tmp_path / "h")
    zd.to_zarr(source, tmp_path / "h", mode="w")
    assert zd.open_group(tmp_path / "h").attributes == {"title": "run 7"}


@pytest.mark.parametrize("option", [{"mode": "r+"}, {"compute": False}, {"return_stored": True}])
def test_what_a_copy_cannot_do_is_refused(option: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        zd.to_zarr(group(tmp_path / "g"), tmp_path / "h", **option)
    assert not (tmp_path / "h").exists()


def test_a_stored_array_keeps_its_dimensions_and_attributes(tmp_path: Path) -> None:
    source = group(tmp_path / "g")["t"]
    zd.to_zarr(source, tmp_path / "a")
    made = zd.open_array(tmp_path / "a")
    assert (made.dimension_names, made.attributes) == (NAMES, {"u": "K"})
    zd.to_zarr(source, tmp_path / "b", dimension_names=("a", "b"), attributes={})
    made = zd.open_array(tmp_path / "b")
    assert (made.dimension_names, made.attributes) == (("a", "b"), {})


def test_a_dataset_is_planned_as_it_is_written(tmp_path: Path) -> None:
    ds = xr.Dataset({"t": (NAMES, da.zeros((6, 10), chunks=(2, 5)))})
    plan = zd.plan_write(ds, tmp_path / "d", chunks={"time": 3})
    assert plan.explain() == zd.plan_dataset(ds, tmp_path / "d", chunks={"time": 3}).explain()
