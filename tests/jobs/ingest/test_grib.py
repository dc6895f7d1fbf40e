"""GRIB files become one store, through cfgrib."""

from __future__ import annotations

import os

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import IngestError, MissingDependencyError

xr = pytest.importorskip("xarray")
pytest.importorskip("cfgrib")
eccodes = pytest.importorskip("eccodes")

SURFACE = "regular_ll_sfc_grib2"
PRESSURE = "regular_ll_pl_grib2"


def message(file, sample: str, *, masked: bool = False, **keys) -> None:
    """Append one message of random values, of which every seventh may be masked."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    for name, value in keys.items():
        eccodes.codes_set(handle, name, value)
    rng = np.random.default_rng([keys["dataDate"], keys.get("level", 0)])
    values = rng.normal(270, 5, eccodes.codes_get(handle, "numberOfPoints"))
    if masked:
        eccodes.codes_set(handle, "bitmapPresent", 1)
        values[::7] = eccodes.codes_get(handle, "missingValue")
    eccodes.codes_set_values(handle, values)
    eccodes.codes_write(handle, file)
    eccodes.codes_release(handle)


def write(path) -> list[str]:
    """Three days of forecasts on two levels, one file a day."""
    files = []
    for day in (20200101, 20200102, 20200103):
        files.append(str(path / f"{day}.grib"))
        with open(files[-1], "wb") as file:  # noqa: PTH123
            for level in (500, 850):
                for step in (0, 6, 12):
                    common = {"dataDate": day, "level": level, "stepRange": str(step)}
                    message(file, PRESSURE, shortName="t", **common)
                    message(file, PRESSURE, shortName="u", masked=True, **common)
    return files


def test_grib_files_are_what_xarray_reads(tmp_path):
    files = write(tmp_path)
    target = str(tmp_path / "out.zarr")
    zd.ingest(files[:2], target, concat="time", verify=True)
    zd.ingest(files, target, concat="time", verify=True)  # the third is appended
    found = zd.open_dataset(target).load()
    assert found.sizes == {
        "time": 3,
        "step": 3,
        "isobaricInhPa": 2,
        "latitude": 31,
        "longitude": 16,
    }
    with xr.open_mfdataset(
        files,
        engine="cfgrib",
        combine="nested",
        concat_dim="time",
        data_vars="minimal",
        coords=["valid_time"],
        compat="override",
    ) as opened:
        expected = opened.load()
    for one in (found, expected):
        one.attrs.pop("history")  # the time of opening
    xr.testing.assert_identical(found, expected)
    assert np.isnan(found.u).sum() == 3 * 3 * 2 * -(-31 * 16 // 7)


def test_messages_that_make_no_dataset_are_refused_then_chosen(tmp_path):
    file, target = str(tmp_path / "a.grib"), tmp_path / "out.zarr"
    with open(file, "wb") as opened:  # noqa: PTH123
        for level, name in ((2, "2t"), (10, "10u")):
            where = {"typeOfLevel": "heightAboveGround", "level": level}
            message(opened, SURFACE, dataDate=20200101, shortName=name, **where)
    with pytest.raises(IngestError, match=r"heightAboveGround(?s:.*)choose some by their keys"):
        zd.ingest([file], str(target), concat="time")
    assert not target.exists()
    engine = "cfgrib:typeOfLevel=heightAboveGround,level=10"
    zd.ingest([file], str(target), concat="time", engine=engine)
    found = zd.open_dataset(str(target))
    assert {*found.data_vars} == {"u10"}
    with pytest.raises(IngestError, match="expected NAME:KEY=VALUE"):
        zd.ingest([file], str(tmp_path / "b.zarr"), engine="cfgrib:level")


def test_a_file_that_is_cut_off_is_named(tmp_path):
    files = write(tmp_path)
    with open(files[1], "r+b") as file:  # noqa: PTH123
        file.truncate(400)
    with pytest.raises(IngestError, match=r"20200102\.grib"):
        zd.ingest(files, str(tmp_path / "out.zarr"), concat="time")
    assert not (tmp_path / "out.zarr").exists()


def test_a_message_that_does_not_decode_is_named(tmp_path):
    """It is found when it is read: cfgrib keeps an index beside the file."""
    files = write(tmp_path)
    plan = zd.plan_ingest(files, str(tmp_path / "out.zarr"), concat="time")
    times = (tmp_path / "20200102.grib").stat()
    with open(files[1], "r+b") as file:  # noqa: PTH123
        file.write(bytes(times.st_size))
    os.utime(files[1], ns=(times.st_atime_ns, times.st_mtime_ns))  # damage of a disk
    with pytest.raises(IngestError, match=r"20200102\.grib"):
        plan.run()


def test_the_extra_is_named(tmp_path, monkeypatch):
    files = write(tmp_path)
    monkeypatch.setattr(xr.backends, "list_engines", dict)
    with pytest.raises(MissingDependencyError, match=r"zarr-dask\[grib\]"):
        zd.ingest(files, str(tmp_path / "out.zarr"), concat="time")
