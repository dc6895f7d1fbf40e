"""`copy` and `rechunk` of every kind of source: stored, computed, in memory, of xarray."""

from __future__ import annotations

import re
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.errors import ValuesDifferError

VALUES = np.arange(60.0).reshape(6, 10)


def lazy() -> da.Array:
    return da.from_array(VALUES, chunks=(2, 5))


def dataset() -> xr.Dataset:
    return xr.Dataset({"t": (("time", "x"), lazy()), "x": ("x", np.arange(10))})


def test_a_dask_array_is_copied_as_it_is_written(tmp_path: Path) -> None:
    plan = zd.plan_copy(lazy(), tmp_path / "a", chunks=(3, 10), max_mem="100MB")
    assert (
        plan.explain()
        == zd.plan_write(lazy(), tmp_path / "a", chunks=(3, 10), max_mem="100MB").explain()
    )
    assert not (tmp_path / "a").exists()
    report = zd.copy(lazy(), tmp_path / "a", chunks=(3, 10), max_mem="100MB")
    assert report.objects == 2
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], VALUES)
    with pytest.raises(zd.errors.NodeExistsError):
        zd.copy(lazy(), tmp_path / "a")
    zd.copy(lazy() + 1, tmp_path / "a", overwrite=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], VALUES + 1)


def test_options_of_a_copy_apply_to_a_dask_array(tmp_path: Path) -> None:
    seen: list[object] = []
    zd.copy(
        lazy(),
        tmp_path,
        component="g/a",
        region=(slice(2, 6), slice(0, 7)),
        dtype="f4",
        zarr_format="v2",
        progress=seen.append,
        resume=True,
    )
    made = zd.open_array(tmp_path, "g/a")
    assert (made.format, made.dtype) == ("v2", np.dtype("f4"))
    np.testing.assert_array_equal(made[...], VALUES[2:6, :7])
    assert seen


@pytest.mark.parametrize("chunks", [None, (4, 3)])
def test_a_copy_of_a_dask_array_is_compared_with_what_was_computed(
    tmp_path: Path, chunks: tuple[int, int] | None
) -> None:
    lossy = [{"name": "numcodecs.bitround", "configuration": {"keepbits": 2}}, "bytes", "zstd"]
    with pytest.raises(ValuesDifferError, match="does not hold what the dask array holds") as seen:
        zd.copy(lazy(), {}, chunks=chunks, codecs=lossy, verify=True)
    told = re.findall(r"\((\d), (\d)\): (\S+) and (\S+)", str(seen.value))
    assert told  # of the block that is compared first
    for row, column, computed, stored in told:
        assert float(computed) == VALUES[int(row), int(column)] != float(stored)
    zd.copy(lazy(), tmp_path / "a", chunks=chunks, codecs="zstd", verify=True)
    made = zd.open_array(tmp_path / "a")
    assert made.chunks == (chunks or (2, 5))
    assert made.codecs[1].name == "zstd"
    np.testing.assert_array_equal(made[...], VALUES)
    assert left_in(tmp_path) == {"a"}


def test_values_in_memory_are_copied() -> None:
    target: dict[str, bytes] = {}
    zd.copy(VALUES, target, chunks=(3, 10))
    np.testing.assert_array_equal(zd.open_array(target)[...], VALUES)


@pytest.mark.parametrize("function", [zd.copy, zd.rechunk])
def test_a_dataset_is_written(function: object, tmp_path: Path) -> None:
    function(dataset(), tmp_path / "d", chunks={"time": 3}, path="run")
    made = xr.open_zarr(tmp_path / "d" / "run", consolidated=False)
    xr.testing.assert_equal(made.load(), dataset().load())
    assert zd.open_array(tmp_path / "d", "run/t").chunks[0] == 3
    function(dataset() + 1, tmp_path / "d", chunks={"time": 3}, path="run", overwrite=True)
    assert float(zd.open_array(tmp_path / "d", "run/t")[0, 0]) == 1.0


def test_a_region_of_a_dataset_is_copied(tmp_path: Path) -> None:
    zd.copy(dataset(), tmp_path / "d", region={"time": slice(0, 2)}, format="v2")
    made = zd.open_group(tmp_path / "d")
    assert (made.format, made["t"].shape) == ("v2", (2, 10))


def test_plans_of_datasets_write_nothing(tmp_path: Path) -> None:
    for plan in (zd.plan_copy, zd.plan_rechunk):
        assert plan(dataset(), tmp_path / "d", chunks={"time": 3}).objects > 0
    assert not (tmp_path / "d").exists()


def test_options_about_stored_arrays_are_refused_for_values() -> None:
    with pytest.raises(TypeError, match="model"):
        zd.copy(lazy(), {}, model=zd.CostModel())
    with pytest.raises(TypeError, match="reed"):
        zd.copy(lazy(), {}, reed=zd.ReadOptions())
