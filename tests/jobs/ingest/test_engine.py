"""Zarr hierarchies become one store, as files do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import IngestError

xr = pytest.importorskip("xarray")

LAYOUTS = {
    "v2": {"format": "v2"},
    "v3": {},
    "shards": {"chunks": {"time": 1, "y": 4}, "shards": {"time": 2, "y": 8}},
}


def part(start: int, count: int) -> xr.Dataset:
    rng = np.random.default_rng(start)
    values = rng.normal(size=(count, 8))
    values[:, ::3] = np.nan
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -9999}
    days = {"units": "days since 2000-01-01", "dtype": "i4", "calendar": "noleap"}
    time = xr.date_range("2000-01-01", periods=start + count, calendar="noleap", use_cftime=True)
    found = xr.Dataset(
        {
            "t": (("time", "y"), values, {"units": "K"}),
            "u": (("time", "y"), values.astype("f4")),
            "station": (("time",), np.array([f"s{n}" for n in range(count)], object)),
            "mask": ("y", np.arange(8) % 2 == 0),
        },
        coords={"time": time[start:], "y": np.linspace(0.0, 1.0, 8)},
        attrs={"title": "run"},
    )
    found.t.encoding, found.time.encoding = packing, days
    return found


def write(folder, layout: str, counts=(4, 3, 5), end: str = ".zarr") -> list[str]:
    urls, start = [], 0
    for number, count in enumerate(counts):
        urls.append(f"{folder}/part{number}{end}")
        zd.write_dataset(part(start, count), urls[-1], **LAYOUTS[layout])
        start += count
    return urls


def joined(urls: list[str]) -> xr.Dataset:
    options = {"combine": "nested", "concat_dim": "time", "data_vars": "minimal"}
    options |= {"coords": "minimal", "compat": "override", "combine_attrs": "override"}
    return xr.open_mfdataset(urls, engine="zarr_dask", **options).load()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hierarchies_are_what_xarray_reads(tmp_path, layout):
    urls = write(tmp_path, layout)
    zd.ingest(f"{tmp_path}/part*.zarr", f"{tmp_path}/all", concat="time")
    xr.testing.assert_identical(zd.open_dataset(f"{tmp_path}/all").load(), joined(urls))


def test_archives_and_folders_of_hierarchies_are_taken(tmp_path):
    (tmp_path / "zips").mkdir()
    urls = write(tmp_path, "v3")
    for number, url in enumerate(urls):
        zd.copy(url, f"{tmp_path}/zips/part{number}.zip")
    zd.ingest(f"{tmp_path}/zips/*.zip", f"{tmp_path}/of-zips", concat="time", survey=False)
    zd.ingest(str(tmp_path), f"{tmp_path}/of-folder", concat="time", survey=False)
    for name in ("of-zips", "of-folder"):
        xr.testing.assert_identical(zd.open_dataset(f"{tmp_path}/{name}").load(), joined(urls))


def test_later_hierarchies_are_appended_by_the_same_call(tmp_path):
    urls, target = write(tmp_path, "v3"), f"{tmp_path}/all"
    zd.ingest(urls[:2], target, concat="time", chunks={"time": 2})
    assert str(zd.ingest(urls, target, concat="time")).startswith("appended 1 file")
    xr.testing.assert_identical(zd.open_dataset(target).load(), joined(urls))


def test_a_hierarchy_that_has_changed_since_the_survey_is_refused(tmp_path):
    urls = write(tmp_path, "v3")
    plan = zd.plan_ingest(urls, f"{tmp_path}/all", concat="time", max_mem="1GB")
    zd.open(f"{urls[1]}/u", mode="r+")[0] = 5
    with pytest.raises(IngestError, match=r"part1\.zarr has changed since it was surveyed"):
        plan.run()
    assert not Path(tmp_path, "all", "zarr.json").exists()


def test_remote_hierarchies_are_found_by_a_pattern(tmp_path):
    urls = write("memory://ingest-of-zarr", "v3")
    write("memory://ingest-of-zarr", "v3", (2,), end=".other")
    zd.ingest("memory://ingest-of-zarr/part*.zarr", f"{tmp_path}/all", concat="time")
    expected = xr.concat([zd.open_dataset(url) for url in urls], "time", data_vars="minimal")
    xr.testing.assert_equal(zd.open_dataset(f"{tmp_path}/all").load(), expected.load())


def test_a_location_that_holds_an_array_is_named(tmp_path):
    zd.save(f"{tmp_path}/a.zarr", np.arange(3))
    with pytest.raises(IngestError, match=r"a\.zarr.*is an array, not a group"):
        zd.plan_ingest(f"{tmp_path}/a.zarr", f"{tmp_path}/all")


def test_large_values_that_an_engine_reads_are_no_references(tmp_path):
    zd.to_zarr(np.zeros(1 << 18), f"{tmp_path}/a.zarr", "a", dimension_names=["x"])
    with pytest.raises(IngestError, match="a cannot be told by references: the engine 'zarr_dask'"):
        zd.reference([f"{tmp_path}/a.zarr"], f"{tmp_path}/refs.json")
