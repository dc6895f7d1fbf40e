"""Many files into one store, against what xarray makes of the same files."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.process_memory import status
from zarr_dask.cli import main
from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import (
    GridError,
    IngestError,
    JournalError,
    NodeExistsError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.jobs.ingest import survey as surveying
from zarr_dask.jobs.ingest.broken import BrokenList
from zarr_dask.jobs.ingest.file_store import FileArrays, header_of
from zarr_dask.jobs.ingest.netcdf3 import read_header
from zarr_dask.jobs.ingest.source_file import SourceFile
from zarr_dask.jobs.write.target import ArrayTarget
from zarr_dask.journal.journal import Journal
from zarr_dask.stores import MemoryStore

h5py = pytest.importorskip("h5py")
pytest.importorskip("netCDF4")

_WAYS = {  # how to write one dataset: engine, format, options
    "netcdf4": ("netcdf4", "NETCDF4", {"zlib": True, "shuffle": True, "chunksizes": (2, 4, 9)}),
    "checked": ("netcdf4", "NETCDF4", {"zlib": True, "fletcher32": True, "chunksizes": (3, 7, 5)}),
    "plain": ("netcdf4", "NETCDF4", {}),
    "h5netcdf": ("h5netcdf", "NETCDF4", {"zlib": True, "chunksizes": (1, 7, 9)}),
    "classic": ("scipy", "NETCDF3_CLASSIC", {}),
    "offset64": ("scipy", "NETCDF3_64BIT", {}),
    "cdf5": ("netcdf4", "NETCDF3_64BIT_DATA", {}),
}


def dataset(start: int, count: int, seed: int = 0) -> xr.Dataset:
    rng = np.random.default_rng([seed, start])
    values = rng.normal(size=(count, 7, 9)).astype("f4")
    packed = rng.integers(-100, 100, (count, 7, 9)).astype("i2")
    attrs = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(7)}
    days = {"units": "days since 2000-01-01", "calendar": "noleap"}
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), values, {"units": "K", "valid_range": [-1.5, 1.5]}),
            "p": (("time", "y", "x"), packed, attrs),
            "mask": (("y", "x"), np.arange(63, dtype="i1").reshape(7, 9)),
            "height": ((), 2.5, {"units": "m"}),
        },
        coords={
            "time": ("time", np.arange(start, start + count), days),
            "y": ("y", np.linspace(-90, 90, 7)),
        },
        attrs={"title": "run", "level": np.float32(3.5)},
    )


def write(
    folder: Path, counts: list[int], way: str = "netcdf4", unlimited: bool = True
) -> list[str]:
    engine, format, options = _WAYS[way]
    files, start = [], 0
    for number, count in enumerate(counts):
        files.append(str(folder / f"{number}.nc"))
        given = dict(options)
        if "chunksizes" in given and not unlimited:
            given["chunksizes"] = tuple(map(min, given["chunksizes"], (count, 7, 9)))
        encoding = {"t": given, "p": given} if given else {}
        names = ["time"] if unlimited else []
        dataset(start, count).to_netcdf(
            files[-1], engine=engine, format=format, unlimited_dims=names, encoding=encoding
        )
        start += count
    return files


def opened(files: list[str], **options) -> xr.Dataset:
    given = {"combine": "nested", "concat_dim": "time", "data_vars": "minimal"}
    given |= {"coords": "minimal", "compat": "override", "combine_attrs": "override", **options}
    with xr.open_mfdataset(files, **given) as found:
        return found.load()


def check(files: list[str], target: str, **options) -> None:
    xr.testing.assert_identical(zd.open_dataset(target).load(), opened(files, **options))


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unlimited", [True, False])
@pytest.mark.parametrize("way", _WAYS)
def test_files_of_every_writer_are_what_xarray_reads(tmp_path, way, unlimited):
    files = write(tmp_path, [5, 3, 4], way, unlimited)
    target = str(tmp_path / "out.zarr")
    report = zd.ingest(files, target, concat="time", chunks={"time": 6, "y": 4}, verify=True)
    assert report.nbytes > 0
    options = {"engine": _WAYS[way][0]}  # netCDF's library refuses records of scipy
    check(files, target, **options)
    with xr.open_zarr(target, consolidated=False) as found:
        xr.testing.assert_identical(found.load(), opened(files, **options))
    assert zd.open(target)["t"].chunks[:2] == (6, 4)


@pytest.mark.parametrize("codecs", [None, {"t": "gzip"}, "zlib"], ids=str)
def test_files_become_a_store_of_v2(tmp_path, codecs):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    zd.ingest(files[:2], target, concat="time", format="v2", codecs=codecs)
    zd.ingest(files, target, concat="time")
    with xr.open_zarr(target, zarr_format=2, consolidated=False) as found:
        xr.testing.assert_identical(found.load(), opened(files))
    there = zd.open(target)
    compressors = {name: there[name].codecs[-1].name for name in ("t", "mask")}
    default = {"t": "blosc", "mask": "zstd"}
    given = dict.fromkeys(default, "zlib") if codecs == "zlib" else codecs
    assert compressors == default | (given or {})


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_borders_of_files_need_not_be_those_of_chunks(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    values = [
        np.random.default_rng(n).integers(0, 9, (data.draw(st.integers(1, 7)), 4)).astype("i4")
        for n in range(data.draw(st.integers(1, 4)))
    ]
    files = []
    for number, one in enumerate(values):
        files.append(str(folder / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            chunk = (data.draw(st.integers(1, len(one))), data.draw(st.sampled_from([2, 3, 4])))
            how = data.draw(st.sampled_from([None, "gzip"]))
            made = file.create_dataset("a", data=one, chunks=chunk, compression=how)
            made.dims[0].label, made.dims[1].label = "n", "m"
    target: dict[str, bytes] = {}
    chunks = {"n": data.draw(st.integers(1, 12)), "m": data.draw(st.integers(1, 4))}
    zd.ingest(files, target, concat="n", chunks=chunks)
    np.testing.assert_array_equal(zd.open(target)["a"][...], np.concatenate(values))


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},  # read by the HDF5 library
        {"scaleoffset": 0},
        {"dtype": ">i4"},
        {"compression": 32015},  # Zstandard
        {"compression": 32004},  # LZ4 in blocks of HDF5's own, read by the HDF5 library
    ],
    ids=str,
)
def test_filters_of_hdf5_are_undone(tmp_path, options):
    pytest.importorskip("hdf5plugin")
    rng = np.random.default_rng(0)
    files, values = [], []
    for number in range(2):
        values.append(rng.integers(0, 1000, (50, 30)).astype(options.get("dtype", "i4")))
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            file.create_dataset("g/a", data=values[-1], chunks=(20, 30), **options)
    target: dict[str, bytes] = {}
    zd.ingest(files, target, concat="phony_dim_0", verify=True)
    np.testing.assert_array_equal(zd.open(target)["g/a"][...], np.concatenate(values))


_BLOSC = """
import dask
import h5py, hdf5plugin, numpy, sys
with h5py.File(sys.argv[1], "w") as file:
    values = numpy.arange(9000).reshape(90, 100)
    file.create_dataset("a", data=values, chunks=(20, 20), **hdf5plugin.Blosc())
"""


def test_blosc_of_hdf5_is_undone(tmp_path):
    pytest.importorskip("hdf5plugin")
    file = tmp_path / "a.h5"
    # in a process without netCDF4, whose plugins are for another HDF5 library
    environment = {k: v for k, v in os.environ.items() if k != "HDF5_PLUGIN_PATH"}
    subprocess.run([sys.executable, "-c", _BLOSC, file], check=True, env=environment)
    target: dict[str, bytes] = {}
    zd.ingest(file, target)
    np.testing.assert_array_equal(zd.open(target)["a"][...], np.arange(9000).reshape(90, 100))


def test_files_with_links_in_them_and_bytes_in_front_are_read(tmp_path):
    other, file = tmp_path / "other.h5", tmp_path / "a.mat"
    with h5py.File(other, "w") as made:
        made["secret"] = np.zeros(3)
    with h5py.File(file, "w", userblock_size=1024) as made:
        made["g/a"] = np.arange(30)
        made.create_dataset("b", data=np.arange(30), chunks=(7,), compression="gzip")
        made["g/again"] = made["g"]  # a group that lies in itself
        made["soft"] = h5py.SoftLink("/b")
        made["dead"] = h5py.SoftLink("/nowhere")
        made["elsewhere"] = h5py.ExternalLink(str(other), "/")
        made["round"] = h5py.SoftLink("/elsewhere/secret")
    target: dict[str, bytes] = {}
    notes = zd.plan_ingest(file, target).notes
    expected = "links to other files, or to nothing, are left out: dead, elsewhere, round"
    assert expected in notes
    zd.ingest(file, target, verify=True)
    found = zd.open(target)
    assert {*found} == {"b", "g", "soft"}
    for path in ("g/a", "b", "soft"):
        np.testing.assert_array_equal(found[path][...], np.arange(30))


def test_what_a_file_never_stored_is_its_fill_value(tmp_path):
    files = []
    for number, fill in enumerate([1.5, 2.5]):
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            made = file.create_dataset("a", (6, 4), "f4", chunks=(2, 4), fillvalue=fill)
            made[2:4] = number
            file.create_dataset("b", (6,), "f4", fillvalue=fill)
    target: dict[str, bytes] = {}
    zd.ingest(files, target, concat="phony_dim_0")
    column = [1.5, 1.5, 0, 0, 1.5, 1.5, 2.5, 2.5, 1, 1, 2.5, 2.5]
    np.testing.assert_array_equal(zd.open(target)["a"][:, 1], column)
    np.testing.assert_array_equal(zd.open(target)["b"][:], [1.5] * 6 + [2.5] * 6)


def test_groups_texts_and_characters_of_netcdf4(tmp_path):
    import netCDF4

    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.nc"))
        with netCDF4.Dataset(files[-1], "w") as file:
            file.createDimension("time", None)
            file.createDimension("length", 3)
            group = file.createGroup("ocean")
            group.title = "salt"
            group.createVariable("salt", "f8", ("time",))[:] = [number, number + 0.5]
            names = file.createVariable("names", str, ("time",))
            names[:] = np.array([f"a{number}", "ü"], object)
            file.createVariable("letters", "S1", ("time", "length"))[:] = [
                [*"abc"],
                [*"xyz"],
            ]
            file.createVariable("time", "i4", ("time",))[:] = [2 * number, 2 * number + 1]
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time")
    check(files, target)
    ocean = opened(files, group="ocean")
    xr.testing.assert_identical(zd.open_dataset(target, "ocean").load(), ocean)


@pytest.mark.parametrize("way", ["netcdf4", "classic"])
def test_files_without_a_record_are_passed_over(tmp_path, way):
    files, target = write(tmp_path, [3, 0, 2], way), str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", verify=True)
    check([files[0], files[2]], target, engine=_WAYS[way][0])


def test_records_that_a_variable_does_not_have_yet_are_its_fill_value(tmp_path):
    import netCDF4

    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.nc"))
        with netCDF4.Dataset(files[-1], "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", 3)
            file.createVariable("time", "i4", ("time",))[:] = np.arange(4) + 4 * number
            file.createVariable("never", "f4", ("time", "x"), zlib=True)
            late = file.createVariable("late", "i2", ("time", "x"), fill_value=np.int16(-9))
            late[:2] = number + 1
            file.createVariable("texts", str, ("time",))[:1] = np.array(["a"], object)
            group = file.createGroup("other")  # with a dimension of the same name
            group.createDimension("time", None)
            group.createVariable("b", "f8", ("time",))[:] = np.arange(7 - number)
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", chunks={"time": 3}, verify=True)
    check(files, target)
    other = opened(files, group="other")
    xr.testing.assert_identical(zd.open_dataset(target, "other").load(), other)


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_characters_with_a_fill_value_are_what_xarray_reads(tmp_path, format):
    import netCDF4

    files, target = [str(tmp_path / "a.nc")], str(tmp_path / "out.zarr")
    with netCDF4.Dataset(files[0], "w", format=format) as file:
        file.createDimension("time", 3)
        file.createDimension("length", 4)
        letters = file.createVariable("letters", "S1", ("time", "length"), fill_value="b")
        letters[:] = np.array([[*"abcd"]] * 3, "S1")
    zd.ingest(files, target, concat="time", verify=True)
    check(files, target)


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_CLASSIC"])
@pytest.mark.parametrize("name", [None, "length"])
def test_texts_of_each_file_may_have_another_length(tmp_path, format, name):
    """xarray makes characters as many as the longest text of a file has."""
    files = [str(tmp_path / f"{number}.nc") for number in range(3)]
    for number, (file, long) in enumerate(zip(files, ("bb", "dddd", ""), strict=True)):
        texts = np.array(["a", long, "ü", "c"])
        one = xr.Dataset({"w": (("time", "x"), [texts] * 2), "v": ("time", [1.0, 2.0])})
        one = one.assign_coords(time=[2 * number, 2 * number + 1], x=np.arange(4))
        given = {} if name is None else {"char_dim_name": name}
        given["dtype"] = "S1"
        one.to_netcdf(file, format=format, encoding={"w": given}, unlimited_dims=["time"])
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, chunks={name or "string4": 3, "time": 4}, verify=True)
    check(files, target)
    assert zd.open(target, "w").shape == (6, 4, 4)
    assert zd.open(target, "w").dimension_names[-1] == (name or "string4")
    zd.reference(files, str(tmp_path / "out.json"))
    found = zd.open_dataset(f"reference::{tmp_path}/out.json").load()
    xr.testing.assert_identical(found, opened(files))


@pytest.mark.parametrize("dtype", ["i2", "f8"])
def test_checksums_below_shuffled_bytes_are_undone(tmp_path, dtype):
    import netCDF4

    files = [str(tmp_path / "a.nc")]
    with netCDF4.Dataset(files[0], "w") as file:
        file.createDimension("time", 5)
        options = {"zlib": True, "shuffle": True, "fletcher32": True}
        file.createVariable("a", dtype, ("time",), **options)[:] = np.arange(5)
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", verify=True)
    check(files, target)


def test_a_dimension_that_no_file_has_is_new(tmp_path):
    files = write(tmp_path, [4])
    second = str(tmp_path / "1.nc")
    dataset(0, 4, seed=1).to_netcdf(second)
    files.append(second)
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="member", variables=["t", "time", "y"])
    options = {"concat_dim": "member", "data_vars": "all"}
    expected = opened(files, **options)[["t", "time", "y"]]
    xr.testing.assert_identical(zd.open_dataset(target).load(), expected)


# the engine leaves files that it has mapped to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_of_xarray_reads_what_this_package_does_not(tmp_path):
    files = write(tmp_path, [5, 3], "classic")
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", engine="scipy", verify=True)
    check(files, target, engine="scipy")


# --- differences ----------------------------------------------------------------------------------


def changed(folder: Path, number: int, change) -> list[str]:
    """Three files, of which one is changed."""
    files = write(folder, [5, 3, 4])
    with xr.open_dataset(files[number], decode_cf=False) as found:
        made = change(found.load())
    made.to_netcdf(files[number], unlimited_dims=["time"])
    return files


def refused(files, target, **options) -> IngestError:
    with pytest.raises(IngestError) as caught:
        zd.ingest(files, str(target), concat="time", **options)
    assert not target.exists()
    return caught.value


def test_other_units_of_time_are_converted_or_refused(tmp_path):
    def change(ds):
        ds["time"] = ("time", (ds.time.values - 5) * 24, {**ds.time.attrs})
        ds.time.attrs["units"] = "hours since 2000-01-06"
        return ds

    files, target = changed(tmp_path, 1, change), tmp_path / "out.zarr"
    error = refused(files, target, settle={"units": "stop"})
    (found,) = error.differences
    assert (found.kind, found.file, found.variable) == ("units", files[1], "time")
    assert "'convert'" in str(error)
    assert "hours since 2000-01-06" in str(error)
    told = "time is in other units in some files: converted to 'hours since 2000-01-01' (noleap)"
    assert told in " ".join(zd.plan_ingest(files, str(target), concat="time").notes)
    zd.ingest(files, str(target), concat="time", verify=True)
    check(files, str(target))
    assert zd.open(target)["time"].dtype == np.int64
    as_numbers = tmp_path / "numbers.zarr"
    zd.ingest(files, str(as_numbers), concat="time", settle={"units:time": "first"})
    assert zd.open(as_numbers)["time"].dtype == np.int64


@pytest.mark.parametrize("second", ["days since 2000-01-02", "seconds since 2000-01-01"])
@pytest.mark.parametrize(
    "encoding",
    [
        {"dtype": "i4", "_FillValue": np.int32(-9999)},
        {"dtype": "f8", "_FillValue": -9999.0},
        {"dtype": "f8", "_FillValue": -9999.0, "scale_factor": 0.5},
    ],
)
def test_missing_times_stay_missing_in_other_units(tmp_path, encoding, second):
    """The number that stands for them is no time, which would be some day of 1972."""
    times = np.array(["2000-01-03", "NaT", "2000-01-05"], "M8[ns]")
    for name, units in (("a.nc", "hours since 2000-01-01"), ("b.nc", second)):
        one = xr.Dataset({"v": ("x", times)})
        one.to_netcdf(tmp_path / name, encoding={"v": {"units": units, **encoding}})
    target = str(tmp_path / "out.zarr")
    zd.ingest(str(tmp_path / "*.nc"), target, concat="x", settle={"units": "convert"}, verify=True)
    np.testing.assert_array_equal(zd.open_dataset(target)["v"].to_numpy(), np.tile(times, 2))


@pytest.mark.parametrize("units", [("days", "days"), ("days", "minutes"), ("minutes", "days")])
@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]"])
def test_times_that_are_missing_without_a_mask_stay_missing(tmp_path, units, kind):
    """xarray stores NaT among integers as the least int64, which is not brought to other units."""
    times = np.array(["2020-01-03", "NaT", "2020-01-05"], "M8[ns]")
    values = times if kind == "M8[ns]" else times - times[0]
    for number, unit in enumerate(units):
        since = f" since 2020-01-0{number + 1}" if kind == "M8[ns]" else ""
        encoding = {"units": f"{unit}{since}", "dtype": "i8"}
        xr.Dataset({"v": ("x", values)}).to_netcdf(
            tmp_path / f"{number}.nc", encoding={"v": encoding}
        )
    target = str(tmp_path / "out.zarr")
    zd.ingest(str(tmp_path / "*.nc"), target, concat="x", verify=True)
    found = zd.open_dataset(target, decode_timedelta=True)["v"].to_numpy()
    np.testing.assert_array_equal(found, np.tile(values, 2))


def test_missing_times_among_integers_are_promoted_to_missing_floats(tmp_path):
    times = np.array(["2020-01-03", "NaT", "2020-01-05"], "M8[ns]")
    for number, dtype in enumerate(["f8", "i8"]):
        encoding = {"units": "days since 2020-01-01", "dtype": dtype}
        xr.Dataset({"v": ("x", times)}).to_netcdf(
            tmp_path / f"{number}.nc", encoding={"v": encoding}
        )
    target = str(tmp_path / "out.zarr")
    zd.ingest(str(tmp_path / "*.nc"), target, concat="x", settle={"dtype": "promote"})
    np.testing.assert_array_equal(zd.open_dataset(target)["v"].to_numpy(), np.tile(times, 2))


@pytest.mark.parametrize("first", [True, False])
def test_nan_as_a_mask_of_floats_is_no_packing(tmp_path, first):
    """xarray writes it beside floats unless it is told not to."""
    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for number, file in enumerate(files):
        given = {"_FillValue": np.nan if (number == 0) == first else None}
        dataset(4 * number, 4).to_netcdf(file, encoding={"t": given, "y": given})
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", verify=True)
    check(files, target)


def test_bounds_follow_the_choice_for_their_times(tmp_path):
    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for number, file in enumerate(files):
        since = {"units": f"days since 2020-01-0{number + 1}", "bounds": "ends"}
        times = np.array([10 * number, 10 * number + 1])
        one = xr.Dataset({"ends": (("time", "side"), np.stack([times, times + 1], axis=1))})
        one.assign_coords(time=("time", times, since)).to_netcdf(file)
    for settle, expected in (({}, [11, 12]), ({"units:time": "first"}, [10, 11])):
        target = tmp_path / f"{len(settle)}.zarr"
        zd.ingest(files, target, concat="time", settle=settle)
        assert zd.open(target, "time")[2:].tolist() == expected
        assert zd.open(target, "ends")[2:, 0].tolist() == expected


@pytest.mark.parametrize("ingest", [zd.ingest, zd.plan_ingest, zd.reference])
def test_a_dataset_is_no_list_of_files(tmp_path, ingest):
    """It would be taken as the list of its variables, or as an empty one."""
    with pytest.raises(TypeError, match="files is a Dataset: expected paths"):
        ingest(xr.Dataset(), tmp_path / "o")


def test_lengths_of_time_are_converted(tmp_path):
    """xarray takes the largest unit that holds all values of a file: those of files differ."""
    values = (
        np.array([1, 2], "m8[D]").astype("m8[ns]"),
        np.array([5, 7200], "m8[s]").astype("m8[ns]"),
    )
    files = [str(tmp_path / name) for name in ("a.nc", "b.nc")]
    for file, one in zip(files, values, strict=True):
        xr.Dataset({"v": ("x", one)}).to_netcdf(file)
    target = str(tmp_path / "out.zarr")
    zd.ingest(files[::-1], target, concat="x")
    found = zd.open_dataset(target, decode_timedelta=True)["v"].to_numpy()
    np.testing.assert_array_equal(found, np.concatenate(values[::-1]))


def test_lengths_of_time_that_others_have_written_are_converted_by_choice(tmp_path):
    files = [str(tmp_path / name) for name in ("a.nc", "b.nc")]
    for file, unit, value in zip(files, ("seconds", "days"), ([5, 7200], [1, 2]), strict=True):
        xr.Dataset({"v": ("x", value, {"units": unit})}).to_netcdf(file)
    target = str(tmp_path / "out.zarr")
    with pytest.raises(IngestError, match=r"'days', but 'seconds' in .*\n.*'convert'"):
        zd.ingest(files, target, concat="x")
    with pytest.raises(IngestError, match="'convert'"):
        zd.ingest(files, target, concat="x", settle={"units": "first"})
    zd.ingest(files, target, concat="x", settle={"units": "convert"})
    assert zd.open(target, "v")[...].tolist() == [5, 7200, 86400, 172800]


def test_a_time_that_would_become_the_missing_one_is_refused(tmp_path):
    for name, units in (("a.nc", "hours since 2000-01-01"), ("b.nc", "days since 2000-01-01")):
        one = xr.Dataset({"v": ("x", np.array([1, 3], "i4"), {"units": units})})
        one["v"].attrs["_FillValue"] = np.int32(72)
        one.to_netcdf(tmp_path / name)
    with pytest.raises(IngestError, match=r"v in .*b.nc has values that become \[72\]"):
        zd.ingest(str(tmp_path / "*.nc"), tmp_path / "o", concat="x", settle={"units": "convert"})


def test_times_and_other_units_are_settled_each_by_its_own_choice(tmp_path):
    """One choice for both would give wrong dates, since only times can be converted."""

    def change(ds):
        ds["time"] = ("time", (ds.time.values - 5) * 24, {**ds.time.attrs})
        ds.time.attrs["units"] = "hours since 2000-01-06"
        ds.t.attrs["units"] = "degC"
        return ds

    files, target = changed(tmp_path, 1, change), tmp_path / "out.zarr"
    expected = opened(files)
    error = str(refused(files, target, settle={"units": "stop"}))
    assert "settle={'units:t': ...} with 'first'" in error
    assert "settle={'units:time': ...} with 'convert'" in error
    assert "settle={'units': ...}" not in error
    assert [one.variable for one in refused(files, target).differences] == ["t"]
    settled = str(tmp_path / "settled.zarr")
    zd.ingest(files, settled, concat="time", settle={"units": "first"})
    xr.testing.assert_identical(zd.open_dataset(settled).load(), expected)  # times are not kept
    settle = {"units": "convert", "units:t": "first"}
    with pytest.raises(IngestError, match=r"settle names \['T'\], which no file has"):
        zd.plan_ingest(files, str(target), concat="time", settle=settle | {"units:T": "first"})
    zd.ingest(files, str(target), concat="time", settle=settle, verify=True)
    xr.testing.assert_identical(zd.open_dataset(str(target)).load(), expected)
    command = ["ingest", *files, str(tmp_path / "by-command.zarr"), "--concat", "time"]
    run = CliRunner().invoke(main, [*command, "--settle", "units=stop"])
    assert "--settle units:time=... with 'convert'" in " ".join(run.output.split())
    options = ["--settle", "units=convert", "--settle", "units:t=first"]
    assert CliRunner().invoke(main, command + options).exit_code == 0
    found = zd.open_dataset(str(tmp_path / "by-command.zarr")).load()
    xr.testing.assert_identical(found, expected)


def test_other_packing_is_refused_then_unpacked(tmp_path):
    def change(ds):
        ds.p.attrs["scale_factor"] = 0.25
        return ds

    files, target = changed(tmp_path, 2, change), tmp_path / "out.zarr"
    error = refused(files, target)
    assert [one.kind for one in error.differences] == ["packing"]
    zd.ingest(files, str(target), concat="time", settle={"packing": "unpack"})
    xr.testing.assert_identical(zd.open_dataset(str(target)).load(), opened(files))


def test_each_file_is_unpacked_with_the_digits_of_its_own_scale(tmp_path):
    """As xarray does: with 64 bits, a scale of 32 would give other values."""
    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for number, (file, kind) in enumerate(zip(files, (np.float32, np.float64), strict=True)):
        given = {"dtype": "i2", "scale_factor": kind(0.1), "_FillValue": np.int16(-1)}
        dataset(4 * number, 4).to_netcdf(file, encoding={"t": given})
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", settle={"packing": "unpack"}, verify=True)
    check(files, target)


def test_other_data_types_are_refused_then_promoted(tmp_path):
    def change(ds):
        return ds.assign(t=ds.t.astype("f8"))

    files, target = changed(tmp_path, 1, change), tmp_path / "out.zarr"
    assert [one.kind for one in refused(files, target).differences] == ["dtype"]
    zd.ingest(files, str(target), concat="time", settle={"dtype": "promote"})
    expected = opened(files)
    np.testing.assert_array_equal(zd.open(target)["t"][...], expected.t.values)
    assert zd.open(target)["t"].dtype == np.float64


@pytest.mark.parametrize("name", ["t", "p"])
def test_a_variable_that_a_file_lacks_is_refused_then_masked(tmp_path, name):
    files = changed(tmp_path, 1, lambda ds: ds.drop_vars(name))
    target = tmp_path / "out.zarr"
    (found,) = refused(files, target).differences
    assert (found.kind, found.file, found.variable) == ("missing", files[1], name)
    zd.ingest(files, str(target), concat="time", settle={"missing": "fill"}, verify=True)
    found = zd.open_dataset(str(target)).load()
    parts = [opened([one]) for one in files]
    assert np.isnan(found[name].values[5:8]).all()
    np.testing.assert_array_equal(found[name].values[:5], parts[0][name].values)
    np.testing.assert_array_equal(found[name].values[8:], parts[2][name].values)


def test_complex_numbers_that_a_file_lacks_are_nan(tmp_path):
    """Zero would be taken for a value; texts and bools have nothing else."""
    given = {"c": np.array([1 + 2j, 3], "c8"), "b": np.array([True, True])}
    stores = [f"{tmp_path}/{number}.zarr" for number in range(2)]
    for number, store in enumerate(stores):
        values = {"all": ("time", np.ones(2))}
        if number == 0:
            values |= {name: ("time", one) for name, one in given.items()}
        xr.Dataset(values, {"time": np.arange(2) + 2 * number}).to_zarr(store, zarr_format=2)
    settle = {"missing": "fill"}
    zd.ingest(stores, f"{tmp_path}/out.zarr", concat="time", settle=settle, verify=True)
    found = zd.open_dataset(f"{tmp_path}/out.zarr")
    np.testing.assert_array_equal(found.c.values, [1 + 2j, 3, np.nan, np.nan])
    np.testing.assert_array_equal(found.b.values, [True, True, False, False])


def test_other_values_of_a_coordinate_are_refused(tmp_path):
    files = changed(tmp_path, 1, lambda ds: ds.assign_coords(y=ds.y + 1))
    target = tmp_path / "out.zarr"
    (found,) = refused(files, target).differences
    assert (found.kind, found.file, found.variable) == ("values", files[1], "y")
    zd.ingest(files, str(target), concat="time", settle={"values": "first"})
    np.testing.assert_array_equal(zd.open(target)["y"][:], np.linspace(-90, 90, 7))


def test_another_shape_cannot_be_settled_but_left_out(tmp_path):
    files = changed(tmp_path, 1, lambda ds: ds.isel(x=slice(0, 5)))
    target = tmp_path / "out.zarr"
    kinds = {(one.kind, one.variable) for one in refused(files, target).differences}
    assert kinds == {("shape", "t"), ("shape", "p"), ("shape", "mask")}
    zd.ingest(files, str(target), concat="time", settle={"shape": "skip"})
    assert {*zd.open(target)} == {"time", "y", "height"}


def test_files_out_of_order_are_refused_then_sorted(tmp_path):
    files = write(tmp_path, [5, 3, 4])
    target = tmp_path / "out.zarr"
    mixed = [files[2], files[0], files[1]]
    assert [one.kind for one in refused(mixed, target).differences] == ["order"]
    zd.ingest(mixed, str(target), concat="time", order="coordinate")
    check(files, str(target))


def test_files_that_overlap_are_refused_and_gaps_are_told(tmp_path):
    files = write(tmp_path, [5, 3, 4])
    dataset(4, 3).to_netcdf(files[1])
    error = refused(files, tmp_path / "out.zarr")
    assert [(one.kind, one.file) for one in error.differences] == [("overlap", files[1])]
    dataset(5, 1).to_netcdf(files[1])
    plan = zd.plan_ingest(files, str(tmp_path / "out.zarr"), concat="time")
    assert any("a gap along time" in note for note in plan.notes)


def test_all_differences_are_listed_at_once(tmp_path):
    files = changed(tmp_path, 1, lambda ds: ds.drop_vars("t").assign_coords(y=ds.y * 2))
    with Path(files[2]).open("r+b") as file:
        file.truncate(3000)
    (tmp_path / "3.nc").write_bytes(b"<html>not found</html>")
    target = tmp_path / "out.zarr"
    error = refused([*files, str(tmp_path / "3.nc")], target)
    found = {(Path(one.file).name, one.kind, one.variable) for one in error.differences}
    assert found == {
        ("1.nc", "missing", "t"),
        ("1.nc", "values", "y"),
        ("2.nc", "unreadable", ""),
        ("3.nc", "unreadable", ""),
    }
    for one in error.differences:
        assert str(one) in str(error)
    settle = {"unreadable": "skip", "missing": "skip", "values": "skip"}
    zd.ingest([*files, str(tmp_path / "3.nc")], str(target), concat="time", settle=settle)
    assert zd.open(target)["p"].shape == (8, 7, 9)


def test_a_classic_file_that_is_cut_off_is_named(tmp_path):
    files = write(tmp_path, [5, 3, 4], "classic")
    size = Path(files[1]).stat().st_size
    with Path(files[1]).open("r+b") as file:
        file.truncate(size - 500)
    error = refused(files, tmp_path / "out.zarr")
    assert {(one.kind, one.file) for one in error.differences} == {("unsupported", files[1])}
    assert "cut off" in str(error)


def test_variables_of_netcdf3_that_overlap_are_refused(tmp_path):
    files = write(tmp_path, [3, 2], "classic")
    content = Path(files[1]).read_bytes()
    begin = read_header(content, len(content))[1]["y"].offset
    before, after = begin.to_bytes(4, "big"), (begin + 12).to_bytes(4, "big")
    assert content.count(before) == 1
    Path(files[1]).write_bytes(content.replace(before, after))
    assert "variables overlap" in str(refused(files, tmp_path / "out.zarr"))


def test_choices_that_do_not_exist_are_refused(tmp_path):
    files = write(tmp_path, [2])
    with pytest.raises(ValueError, match="expected one of unreadable"):
        zd.ingest(files, str(tmp_path / "out.zarr"), settle={"unit": "convert"})
    with pytest.raises(ValueError, match="if it is not about whole files"):
        zd.ingest(files, str(tmp_path / "out.zarr"), settle={"broken:t": "fill"})
    with pytest.raises(IngestError, match="which no file has; there are"):
        zd.ingest(files, str(tmp_path / "out.zarr"), variables=["salt"])
    with pytest.raises(IngestError, match="matches no file"):
        zd.ingest(str(tmp_path / "*.grib"), str(tmp_path / "out.zarr"))


def test_the_concatenation_is_told_where_files_differ_along_one_dimension(tmp_path):
    files = write(tmp_path, [5, 3])
    assert zd.plan_ingest(files, {}).concat == "time"
    dataset(0, 5).to_netcdf(files[1])
    with pytest.raises(IngestError, match="cannot be told"):
        zd.plan_ingest(files, {})
    later = dataset(0, 5)  # the same numbers of days, since another day
    later["time"].attrs["units"] = "days since 2001-01-01"
    later.to_netcdf(files[1])
    with pytest.raises(IngestError, match="units"):
        zd.plan_ingest(files, {}, settle={"units": "stop"})
    assert zd.plan_ingest(files, {}).concat == "time"


# --- jobs -----------------------------------------------------------------------------------------


def test_a_wider_type_of_a_later_file_is_not_put_down_to_files_that_were_not_named(tmp_path):
    files, target = write(tmp_path, [3, 3]), str(tmp_path / "out.zarr")
    zd.ingest(files[:1], target, concat="time")
    later = dataset(3, 3)
    later["time"] = later["time"].astype("i8")
    first = dataset(0, 3)
    first["time"] = first["time"].astype("i4")
    for ds, file in ((first, files[0]), (later, files[1])):
        Path(file).unlink()
        ds.to_netcdf(file)
    zd.ingest(files[:1], target, concat="time", overwrite=True)
    with pytest.raises(IngestError, match=r"has the data type int32.* overwrite=True to write all"):
        zd.ingest(files, target, concat="time", settle={"dtype": "promote"})
    assert zd.open_array(target, "time").shape == (3,)


def test_files_that_arrive_later_are_appended(tmp_path):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    zd.ingest(files[:1], target, concat="time", chunks={"time": 2})
    zd.ingest(files, target, concat="time", verify=True)
    check(files, target)
    plan = zd.plan_ingest(str(tmp_path / "*.nc"), target, concat="time")
    assert (plan.new_files, plan.tasks) == ((), 0)
    assert str(zd.ingest(files, target, concat="time")) == "all files are there already"
    with pytest.raises(GridError, match=r"chunks names \['tme'\].* Did you mean 'time'"):
        zd.ingest(files, target, concat="time", chunks={"tme": 2})
    with pytest.raises(IngestError, match=r"not where any of the files ends.* Name all files"):
        zd.ingest([files[1], files[2]], target, concat="time")
    other = dataset(12, 4)
    other["time"] = other["time"].astype("i2")
    other.to_netcdf(tmp_path / "other.nc")
    with pytest.raises(IngestError, match=r"time has the data type \w+, .* Name all files"):
        zd.ingest(str(tmp_path / "other.nc"), target, concat="time")
    (tmp_path / "other.nc").unlink()
    dataset(20, 4).to_netcdf(files[2])
    with pytest.raises(IngestError, match="it was not made of the first of these files"):
        zd.ingest(files, target, concat="time")


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_a_root_has_consolidated_metadata_that_follow_appends(tmp_path, format):
    files, target = write(tmp_path, [5, 3]), str(tmp_path / "out.zarr")
    zd.ingest(files[:1], target, concat="time", format=format)
    assert xr.open_zarr(target, consolidated=True).sizes["time"] == 5
    zd.ingest(files, target, concat="time")
    whole = xr.open_zarr(target, consolidated=True).load()
    xr.testing.assert_identical(whole, xr.open_zarr(target, consolidated=False).load())
    assert whole.sizes["time"] == 8


@pytest.mark.parametrize("resume", [False, True])
def test_an_append_that_died_between_two_lengths_is_ended(tmp_path, monkeypatch, resume):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    zd.ingest(files[:1], target, concat="time", chunks={"time": 2}, resume=resume)
    shown = []

    def show(one):
        if shown:
            raise OSError(28, "no space left")
        shown.append(real(one))

    real = ArrayTarget.show
    with monkeypatch.context() as patched:
        patched.setattr(ArrayTarget, "show", show)
        with pytest.raises(OSError, match="no space left"):
            zd.ingest(files[:2], target, concat="time", resume=resume)
    assert {one.shape[0] for _, one in zd.open_group(target).arrays() if one.ndim == 3} == {5}
    each = zd.open_group(target, read=zd.ReadOptions(consolidated=False))
    assert {each[name].shape[0] for name in ("t", "p", "time")} == {5, 8}
    zd.ingest(files[:2], target, concat="time", resume=resume)
    check(files[:2], target)
    zd.ingest(files, target, concat="time", resume=resume, verify=True)
    check(files, target)
    assert not list(tmp_path.rglob("commit*"))


@pytest.mark.parametrize("old", [0, 1], ids=["new", "append"])
def test_journals_that_a_failing_end_has_left_are_removed(tmp_path, monkeypatch, old):
    """The same call finds that all files are there."""
    files, target = write(tmp_path, [5, 3]), str(tmp_path / "out.zarr")
    if old:
        zd.ingest(files[:old], target, concat="time", chunks={"time": 2}, resume=True)

    def remove(journal):
        raise StoreError("the disk has gone")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", remove)
        with pytest.raises(StoreError, match="the disk has gone"):
            zd.ingest(files, target, concat="time", chunks={"time": 2}, resume=True)
    assert list(tmp_path.rglob("__job-*"))
    plan = zd.plan_ingest(files, target, concat="time", chunks={"time": 2})
    assert plan.new_files == ()
    report = zd.ingest(files, target, concat="time", chunks={"time": 2}, resume=True)
    assert str(report) == "all files are there already"
    check(files, target)
    assert not list(tmp_path.rglob("__job-*"))


def test_the_progress_of_the_survey_is_told(tmp_path, capsys):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    seen = []
    zd.plan_ingest(files, target, concat="time", progress=lambda *told: seen.append(told))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(TypeError, match="progress='bar': expected a function"):
        zd.plan_ingest(files, target, concat="time", progress="bar")
    assert "surveying" not in capsys.readouterr().err
    zd.ingest(files, target, concat="time", progress=True)
    told = capsys.readouterr().err
    assert "surveying" in told
    assert "3/3" in told


def test_the_survey_reads_new_files_only(tmp_path, monkeypatch):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    read = []
    real = surveying.header_of
    monkeypatch.setattr(surveying, "header_of", lambda p, e: read.append(p.url) or real(p, e))
    zd.ingest(files[:2], target, concat="time")
    kept = json.loads((tmp_path / "out.zarr.ingest.json").read_text())
    assert [Path(one["url"]).name for one in kept["files"]] == ["0.nc", "1.nc"]
    zd.ingest(files, target, concat="time")
    assert read == files
    (tmp_path / "out.zarr.ingest.json").write_text("[]")
    with pytest.raises(IngestError, match="no survey of files"):
        zd.plan_ingest(files, target, concat="time")


HOSTILE = {
    "size": lambda file: file.update(size="5"),
    "groups": lambda file: file.update(groups={"": {"a": {"dtype": "O", "value": 1}}}),
    "member": lambda file: file.update(more=1),
    "variables": lambda file: file.update(variables=[]),
    "dims": lambda file: file["variables"]["t"].update(dims=["time"]),
    "shape": lambda file: file["variables"]["t"].update(shape=[-5, 2, 3]),
    "a large shape": lambda file: file["variables"]["t"].update(shape=[10**30, 2, 3]),
    "objects": lambda file: file["variables"]["t"].update(dtype="|O"),
    "chunks": lambda file: file["variables"]["t"].update(chunks=[0, 0, 0]),
    "offset": lambda file: file["variables"]["t"].update(offset=-1),
    "layout": lambda file: file["variables"]["t"].update(layout="anything"),
    "filters": lambda file: file["variables"]["t"].update(filters=["zlib"]),
    "values": lambda file: file["variables"]["time"].update(values=[None] * 5),
    "attributes": lambda file: file["variables"]["t"].update(attrs={"a": {"dtype": "<f4"}}),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_survey_that_was_tampered_with_is_refused(tmp_path, change):
    files, target = write(tmp_path, [5]), tmp_path / "out.zarr"
    zd.plan_ingest(files, str(target), concat="time")
    survey = tmp_path / "out.zarr.ingest.json"
    kept = json.loads(survey.read_text())
    HOSTILE[change](kept["files"][0])
    fitting = crc32c(json.dumps(kept["files"]).encode())
    for checksum, says in ((kept["crc32c"], "its checksum does not fit"), (fitting, "")):
        survey.write_text(json.dumps({**kept, "crc32c": checksum}))
        with pytest.raises(IngestError, match=rf"is no survey of files .*{says}"):
            zd.ingest(files, str(target), concat="time")
    survey.write_text("[" * 100_000)
    with pytest.raises(IngestError, match="is no survey of files"):
        zd.ingest(files, str(target), concat="time")
    assert not target.exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "5", '{"file": 5}', '{"other": "a"}'])
def test_a_list_of_filled_chunks_that_was_tampered_with_is_refused(text):
    store = MemoryStore({"list/0.json": text.encode()})
    with pytest.raises(JournalError, match=r"list/0\.json names no chunk that was filled"):
        BrokenList(store, "list/").entries()


def test_a_file_that_changes_after_the_survey_is_refused(tmp_path):
    files = write(tmp_path, [5, 3])
    plan = zd.plan_ingest(files, str(tmp_path / "out.zarr"), concat="time")
    dataset(5, 3, seed=3).to_netcdf(files[1])
    with pytest.raises(IngestError, match=re.escape(f"{files[1]} has changed")):
        plan.run()


def test_a_chunk_that_does_not_decode_is_named_and_the_job_goes_on(tmp_path):
    files, target = [str(tmp_path / f"{n}.h5") for n in range(3)], tmp_path / "out.zarr"
    values = np.random.default_rng(0).integers(0, 99, (3, 4, 100, 100))
    for one, part in zip(files, values, strict=True):
        with h5py.File(one, "w") as file:
            made = file.create_dataset("t", data=part, chunks=(2, 50, 100), compression="gzip")
            made.dims[0].label = "time"
    before = Path(files[2]).stat()
    with h5py.File(files[2], "r") as file:
        info = file["t"].id.get_chunk_info(1)
    content = Path(files[2]).read_bytes()
    broken = bytearray(content)
    broken[info.byte_offset + 2 : info.byte_offset + info.size] = b"\0" * (info.size - 2)

    def put(data: bytes) -> None:
        Path(files[2]).write_bytes(data)
        os.utime(files[2], ns=(before.st_atime_ns, before.st_mtime_ns))

    put(bytes(broken))
    given = {"concat": "time", "chunks": {"time": 2}, "max_mem": "64MB"}
    in_order = dask.config.set(scheduler="synchronous")  # so that another task ends before
    what = rf"{files[2]}: t\[8:10, 50:100, 0:100\] cannot be read: .* settle="
    with in_order, pytest.raises(IngestError, match=what):
        zd.ingest(files, str(target), **given, resume=True)
    plan = zd.plan_ingest(files, str(tmp_path / "other.zarr"), **given).to_json()
    with in_order, pytest.raises(IngestError, match=what):
        zd.load_plan(plan).run()
    with pytest.raises(zd.errors.NodeNotFoundError):
        zd.open(target)
    put(content)
    report = zd.ingest(files, str(target), **given, resume=True)
    # how many tasks had ended before depends on their order
    assert report.tasks <= zd.plan_ingest(files, {}, **given).tasks
    np.testing.assert_array_equal(zd.open(target)["t"][...], np.concatenate(values))


def test_files_that_turn_out_broken_are_filled_and_listed_by_choice(tmp_path):
    files, target = [str(tmp_path / f"{n}.h5") for n in range(3)], tmp_path / "out.zarr"
    values = np.random.default_rng(0).integers(0, 99, (3, 4, 100, 100)).astype("f4")
    for one, part in zip(files, values, strict=True):
        with h5py.File(one, "w") as file:
            made = file.create_dataset("t", data=part, chunks=(2, 50, 100), compression="gzip")
            made.dims[0].label = "time"
    before = Path(files[1]).stat()
    with h5py.File(files[1], "r") as file:
        info = file["t"].id.get_chunk_info(1)  # the lower half of its first two steps
    broken = bytearray(Path(files[1]).read_bytes())
    broken[info.byte_offset + 2 : info.byte_offset + info.size] = b"\0" * (info.size - 2)
    Path(files[1]).write_bytes(bytes(broken))
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    given = {"concat": "time", "chunks": {"time": 3}, "settle": {"broken": "fill"}}

    report = zd.ingest(files[:2], str(target), **given, verify=True)
    (filled,) = report.broken
    assert (filled.file, filled.array, filled.region) == (files[1], "t", "4:6, 50:100, 0:100")
    assert "corrupt" in filled.found
    assert files[1] in str(report)
    expected = np.concatenate(values)
    expected[4:6, 50:100] = np.nan
    np.testing.assert_array_equal(zd.open(str(target))["t"][...], expected[:8])

    plan = zd.plan_ingest(files, str(target), **given)
    Path(files[2]).unlink()
    report = plan.run()
    assert {one.file for one in report.broken} == {files[2]}
    expected[8:] = np.nan
    np.testing.assert_array_equal(zd.open(str(target))["t"][...], expected)
    assert not [one for one in tmp_path.rglob("*") if "broken" in one.name]
    with pytest.raises(IngestError, match="give survey="):
        zd.plan_ingest(files[:2], {}, **given)


def test_appends_tell_their_progress(tmp_path):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    zd.ingest(files[:1], target, concat="time", chunks={"time": 2})
    seen = []
    plan = zd.plan_ingest(files, target, concat="time")
    plan.run(None, seen.append)
    assert sum(one.nbytes for one in seen) == seen[-1].total == plan.nbytes
    check(files, target)


def test_a_plan_in_a_file_is_done_in_parts(tmp_path):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    plan, wanted = str(tmp_path / "plan.json"), ["--concat", "time", "--chunks", "time=2,y=4"]

    def call(*words: str) -> None:
        run = CliRunner().invoke(main, list(words))
        assert run.exit_code == 0, run.output

    call("ingest", *files, target, *wanted, "--output", plan)
    assert not Path(target).exists()
    for part in ("1/2", "2/2"):
        call("run", plan, "--stage", "1", "--part", part)
    call("finish", plan, "--verify")
    check(files, target)
    with pytest.raises(zd.errors.PlanError, match="an append of files"):
        zd.plan_ingest(files, target, concat="time").to_json()
    other = zd.plan_ingest(files, str(tmp_path / "b.zarr"), concat="time").to_json()
    dataset(8, 4, seed=1).to_netcdf(files[2])
    zd.plan_ingest(files, str(tmp_path / "b.zarr"), concat="time")  # surveys them again
    with pytest.raises(zd.errors.PlanError, match="Make the plan again"):
        zd.load_plan(other)


def test_one_step_reads_one_file(tmp_path, monkeypatch):
    from zarr_dask.jobs.ingest.ingest import dataset_of
    from zarr_dask.jobs.ingest.source_file import SourceFile

    files = write(tmp_path, [4, 4, 4], "h5netcdf")
    store, _ = dataset_of(files, concat="time")
    read = []

    def recorded(real):
        return lambda self, *where: read.append(self.url) or real(self, *where)

    for name in ("read", "read_behind"):
        monkeypatch.setattr(SourceFile, name, recorded(getattr(SourceFile, name)))
    zd.open(store)["t"][5]
    assert read == [files[1]]


def test_a_cluster_ingests(tmp_path, client):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    zd.ingest(files[:2], target, concat="time", chunks={"time": 4}, client=client, verify=True)
    zd.ingest(files, target, concat="time", client=client)
    check(files, target)


# --- references -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["h5netcdf", "plain", "cdf5", "checked"])
def test_references_are_read_as_the_files_are(tmp_path, way):
    files = write(tmp_path, [6, 3, 3], way, unlimited=way == "cdf5")
    target = tmp_path / "refs.json"
    count = zd.reference(files, str(target), concat="time")
    assert count >= {"h5netcdf": 24, "plain": 8, "cdf5": 24, "checked": 16}[way]
    found = zd.open_dataset(f"reference::{target}").load()
    xr.testing.assert_equal(found, opened(files))
    assert found.t.attrs["units"] == "K"
    kept = tmp_path / "out.zarr"
    zd.copy(f"reference::{target}", str(kept))
    xr.testing.assert_equal(zd.open_dataset(str(kept)).load(), opened(files))


@pytest.mark.filterwarnings("ignore:variable 'p' has multiple fill values")
def test_several_masks_are_told_by_references(tmp_path):
    """A fill value of Zarr is one number, so they stay an attribute."""
    files, target = write(tmp_path, [2, 2], "h5netcdf"), tmp_path / "refs.json"
    with h5py.File(files[0]) as file:
        masks = file["p"][0, 0, :2]
    for one in files:
        with h5py.File(one, "r+") as file:
            for name in {"_FillValue", "missing_value"} & {*file["p"].attrs}:
                del file["p"].attrs[name]
            file["p"].attrs["_FillValue"] = masks
    zd.reference(files, str(target), concat="time")
    found, expected = zd.open_dataset(f"reference::{target}").load(), opened(files)
    assert np.isnan(expected.p).any()
    xr.testing.assert_equal(found, expected)


def test_what_references_cannot_tell_is_refused(tmp_path):
    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            made = file.create_dataset("a", data=np.ones((5, 600, 600)), chunks=(2, 600, 600))
            made.dims[0].label = "time"
    with pytest.raises(IngestError, match="a cannot be told by references"):
        zd.reference(files, str(tmp_path / "refs.json"), concat="time")
    assert not (tmp_path / "refs.json").exists()


# --- the front door -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["netcdf4", "classic"])
def test_opening_a_file_of_another_format_tells_what_reads_it(tmp_path, way):
    (file,) = write(tmp_path, [2], way)
    with pytest.raises(zd.errors.NodeNotFoundError, match=r"zarr_dask\.ingest writes it"):
        zd.open(file)
    (tmp_path / "a.tif").write_bytes(b"II*\0\0\0\0\0")
    with pytest.raises(zd.errors.NodeNotFoundError, match="tifffile reads it"):
        zd.open(tmp_path / "a.tif")


def test_the_command_ingests_and_appends(tmp_path):
    files, target = write(tmp_path, [5, 3, 4]), str(tmp_path / "out.zarr")
    common = ["--concat", "time", "--chunks", "time=6,y=7"]
    run = CliRunner().invoke(main, ["ingest", *files[:2], target, *common, "--dry-run"])
    assert run.exit_code == 0, run.output
    assert "ingest 2 files along time" in run.output
    assert not Path(target).exists()
    run = CliRunner().invoke(main, ["ingest", *files[:2], target, *common, "--quiet"])
    assert (run.exit_code, run.stdout) == (0, ""), run.output
    run = CliRunner().invoke(main, ["ingest", str(tmp_path / "*.nc"), target, *common, "--json"])
    assert json.loads(run.stdout)["result"]["files"] == 1
    check(files, target)
    run = CliRunner().invoke(main, ["ingest", *files, target, "--settle", "units=guess"])
    assert run.exit_code == 2
    assert "expected 'convert'" in run.output


def test_memory_for_chunks_that_are_cut_is_counted(tmp_path):
    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            made = file.create_dataset("a", (5, 100, 1000), "f8", chunks=(2, 100, 1000))
            made.dims[0].label = "time"
    given = {"concat": "time", "chunks": {"time": 1}, "threads": 1}
    whole = zd.plan_ingest(files[:1], {}, **given, max_mem="64MB")
    cut = zd.plan_ingest(files, {}, **given, max_mem="64MB")
    more = cut.copy.besides - whole.copy.besides - 3 * 2 * 100 * 1000 * 8
    assert 0 < more < 20_000  # what is known of a file
    assert cut.copy.peak > cut.copy.besides
    assert cut.copy.max_mem == 64_000_000
    with pytest.raises(zd.errors.MemoryBudgetError):
        zd.plan_ingest(files, {}, **given, max_mem="4MB")


@pytest.mark.parametrize(("texts", "least", "most"), [(True, 40, 60), (False, 25, 35)])
def test_what_a_worker_loads_with_its_first_task_is_counted(tmp_path, texts, least, most):
    """This process has loaded it when it planned; a plan in a file keeps it."""
    files = write(tmp_path, [2, 2])
    for one in files if texts else []:
        with h5py.File(one, "r+") as file:
            file["words"] = ["which only the HDF5 library reads"]
    here = zd.plan_ingest(files, f"{tmp_path}/a.zarr", concat="time", threads=2).copy
    with dask.config.set(scheduler="processes", num_workers=2):
        there = zd.plan_ingest(files, f"{tmp_path}/a.zarr", concat="time").copy
        with pytest.raises(zd.errors.MemoryBudgetError, match=r"Give more as max_mem="):
            zd.plan_ingest(files, f"{tmp_path}/a.zarr", concat="time", max_mem=least * 10**6)
        assert zd.load_plan(there.to_json()).peak == there.peak
    assert least * 10**6 < there.peak - here.peak < most * 10**6


def test_a_fresh_worker_grows_by_no_more_than_planned(tmp_path):
    """Libraries of its first task included."""
    distributed = pytest.importorskip("distributed")
    files = []
    for number in range(8):
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            given = {"chunks": (1, 256, 256), "compression": "gzip", "shuffle": True}
            made = file.create_dataset("a", (8, 512, 512), "f4", **given)
            made[:] = np.random.default_rng(number).integers(0, 999, made.shape)
            made.dims[0].label = "time"
    options = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="2GB", **options
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        idle = client.run(status, "VmRSS")
        plan = zd.plan_ingest(
            files, str(tmp_path / "a.zarr"), concat="time", chunks={"time": 16}, client=client
        )
        plan.run(client)
        peaks = client.run(status, "VmHWM")
    grown = max(peaks[worker] - idle[worker] for worker in idle)
    assert 0.6 * plan.copy.peak <= grown <= plan.copy.peak, str(plan)


def test_what_workers_know_of_each_file_is_counted(tmp_path):
    """Headers, and the places of chunks: of small chunks this is more than a task holds."""
    files = []
    for number in range(4):
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            made = file.create_dataset("a", (3000, 4), "f8", chunks=(1, 4))
            made[:] = number
            made.dims[0].label = "time"
    given = {"concat": "time", "chunks": {"time": 100}, "threads": 1}
    one, all_of_them = (zd.plan_ingest(some, {}, **given).copy for some in (files[:1], files))
    places = all_of_them.besides - one.besides
    place = SourceFile.of(shutil.copy(files[3], f"{tmp_path}/other.h5"), None)
    file = FileArrays(place, header_of(place, None))
    tracemalloc.start()
    file.chunk("a", (0, 0))
    of_a_file, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 3 * of_a_file < places < 6 * of_a_file
    assert all_of_them.peak > one.peak + places // 2


@pytest.mark.parametrize("stored_first", [False, True])
def test_whole_numbers_of_time_stay_whole_in_finer_units(tmp_path, stored_first):
    """As parts of days, minutes would be some nanoseconds off."""
    files = []
    for number, unit in enumerate(["days", "hours", "minutes"]):
        days = np.datetime64("2020-01-01", "ns") + np.timedelta64(7 * number, "D")
        times = days + np.arange(5) * np.timedelta64(1, {"days": "D", "hours": "h"}.get(unit, "m"))
        ends = np.stack([times, times + np.timedelta64(1, "D")], axis=1)
        one = xr.Dataset({"v": ("time", np.arange(5.0)), "ends": (("time", "side"), ends)})
        one = one.assign_coords(time=("time", times, {"bounds": "ends"}))
        as_stored = {"units": f"{unit} since 2020-01-0{number + 1}", "dtype": "i8"}
        files.append(str(tmp_path / f"{number}.nc"))
        one.to_netcdf(files[-1], encoding={"time": as_stored})
    target, settle = str(tmp_path / "out.zarr"), {"units": "convert"}
    if stored_first:
        zd.ingest(files[:1], target, concat="time")
        with pytest.raises(IngestError, match="data type int64, the files have float64"):
            zd.ingest(files, target, concat="time", settle=settle)
        zd.ingest(files[:2], target, concat="time", settle=settle, overwrite=True)
        with pytest.raises(IngestError, match="data type int64, the files have float64"):
            zd.ingest(files, target, concat="time", settle=settle)
        files.pop()
    zd.ingest(files, target, concat="time", settle=settle, verify=True)
    xr.testing.assert_equal(zd.open_dataset(target).load(), opened(files))
    unit = "hours" if stored_first else "minutes"
    assert zd.open(target, "time").attributes["units"] == f"{unit} since 2020-01-01"
    assert {zd.open(target, name).dtype for name in ("time", "ends")} == {np.dtype("i8")}


@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_hours_among_days_are_the_same_times(tmp_path, dtype):
    """As parts of days they would be some nanoseconds off."""
    values = np.datetime64("2020-01-01", "ns") + np.arange(5000) * np.timedelta64(1, "h")
    files = [str(tmp_path / name) for name in ("a.nc", "b.nc")]
    for file, unit, some in zip(files, ("days", "hours"), (values[:25:24], values), strict=True):
        units = {"units": f"{unit} since 1970-12-20", "dtype": dtype}
        xr.Dataset({"v": ("x", some)}).to_netcdf(file, encoding={"v": units})
    zd.ingest(files, tmp_path / "out.zarr", concat="x")
    found = zd.open_dataset(tmp_path / "out.zarr")["v"].to_numpy()
    np.testing.assert_array_equal(found, np.concatenate([values[:25:24], values]))


def test_files_that_arrive_later_are_appended_in_the_finer_units(tmp_path):
    files = []
    for number, unit in enumerate(["days", "hours", "days"]):
        times = np.datetime64("2020-01-01", "ns") + np.arange(3) * np.timedelta64(1, "h")
        times = times[: 3 if unit == "hours" else 1] + np.timedelta64(number, "D")
        one = xr.Dataset({"v": ("time", np.ones(len(times)))}, {"time": times})
        files.append(str(tmp_path / f"{number}.nc"))
        units = {"units": f"{unit} since 2020-01-01", "dtype": "i4"}
        one.to_netcdf(files[-1], encoding={"time": units})
    target, settle = tmp_path / "out.zarr", {"units": "convert"}
    zd.ingest(files[:2], target, settle=settle)
    assert zd.ingest(files, target, settle=settle, verify=True)
    assert zd.open(target, "time")[...].tolist() == [0, 24, 25, 26, 48]


def test_later_times_of_another_reference_date_have_the_stored_type(tmp_path):
    """The first file alone needs no conversion, so its times stay what they are."""
    files = []
    for number in range(3):
        days = np.datetime64("2020-01-01", "ns") + (3 * number + np.arange(3)) * np.timedelta64(
            1, "D"
        )
        one = xr.Dataset({"v": ("time", np.arange(3.0))}, {"time": days})
        files.append(str(tmp_path / f"{number}.nc"))
        units = {"units": f"days since {days[0]:.10}".replace("T", " "), "dtype": "i4"}
        one.to_netcdf(files[-1], encoding={"time": units})
    target = tmp_path / "out.zarr"
    for number in (1, 2, 3):
        zd.ingest(files[:number], target, concat="time")
    times = zd.open_array(target, "time")
    assert (times.dtype, times[...].tolist()) == ("i4", list(range(9)))
    days = np.arange(2**31 - 3, 2**31).astype("i4")
    one = one.assign_coords(time=("time", days, {"units": "days since 2021-01-01"}))
    one.to_netcdf(tmp_path / "9.nc")
    with pytest.raises(IngestError, match=r"9\.nc has values that int32 cannot hold"):
        zd.ingest([*files, str(tmp_path / "9.nc")], target, concat="time")
    assert zd.open_array(target, "time").shape == (9,)


@pytest.mark.parametrize("way", ["ingest", "plan", "append"])
def test_numbers_that_no_file_masks_stay_numbers_in_v2(tmp_path, way):
    """xarray takes the fill value for the mask before v3; NetCDF has one of its own."""
    import netCDF4

    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for number, file in enumerate(files):
        with netCDF4.Dataset(file, "w") as made:
            made.createDimension("t", None)
            for dtype in ("i8", "i1", "f4"):
                values = made.createVariable(dtype, dtype, ("t",), chunksizes=(2,))
                values.set_auto_mask(False)
                values[4:6] = [2**60 + 1 if dtype == "i8" else 0, number]
    target = tmp_path / "out.zarr"
    if way == "plan":
        zd.load_plan(zd.plan_ingest(files, target, concat="t", format="v2").to_json()).run()
    else:
        zd.ingest(files[: 1 if way == "append" else 2], target, concat="t", format="v2")
        zd.ingest(files, target, concat="t", format="v2")
    with xr.open_mfdataset(files, combine="nested", concat_dim="t") as wanted:
        for found in (xr.open_zarr(target, consolidated=False), zd.open_dataset(target)):
            xr.testing.assert_identical(found.load(), wanted.load())


def test_a_time_that_is_too_late_for_the_units_is_refused(tmp_path):
    for name, unit, value in (("a.nc", "nanoseconds", 1), ("b.nc", "days", 4_000_000)):
        one = xr.Dataset({"v": ("x", [value], {"units": f"{unit} since 2000-01-01"})})
        one.to_netcdf(tmp_path / name)
    with pytest.raises(IngestError, match="int64 cannot hold in the new units"):
        zd.ingest(str(tmp_path / "*.nc"), tmp_path / "o", concat="x", settle={"units": "convert"})


def test_hidden_files_of_a_folder_are_left_out(tmp_path):
    """A copy that goes on has such names, and the attributes of files that macOS keeps."""
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder, [2, 3])
    (folder / "._f0.nc").write_bytes(b"\0\5\x16\7")
    (folder / ".f9.nc").write_bytes(b"")
    zd.ingest(folder, tmp_path / "out.zarr")
    assert zd.open_dataset(tmp_path / "out.zarr").sizes["time"] == 5


def test_a_misspelt_dimension_is_asked_about(tmp_path):
    files = write(tmp_path, [2, 3])
    with pytest.raises(IngestError, match=r"No file has the dimension 'tmie'.*mean 'time'\?"):
        zd.ingest(files, tmp_path / "out.zarr", concat="tmie")


def test_a_file_that_is_compressed_as_a_whole_is_refused_with_what_decompresses_it(tmp_path):
    (file,) = write(tmp_path, [2])
    packed = tmp_path / "f.nc.gz"
    packed.write_bytes(gzip.compress(Path(file).read_bytes()))
    with pytest.raises(IngestError, match=r"f\.nc\.gz: is compressed with gzip .*gzip -d"):
        zd.ingest(packed, tmp_path / "o")
    with pytest.raises(TypeError, match=r"(?s)files has <xarray.*write_dataset"):
        zd.ingest([dataset(0, 1)], tmp_path / "o")


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_are_not_removed_with_the_store_around_them(tmp_path, overwrite):
    folder = tmp_path / "run"
    folder.mkdir()
    files = write(folder, [2, 3])
    if overwrite:
        zd.create_group(folder)
    zd.reference(files, tmp_path / "run.json", concat="time")
    for call in (
        lambda: zd.ingest(f"{folder}/*.nc", folder, concat="time", overwrite=overwrite),
        lambda: zd.copy(f"reference::{tmp_path / 'run.json'}", folder, overwrite=overwrite),
    ):
        with pytest.raises(SourceIsTargetError, match="one lies within the other"):
            call()
    with pytest.raises(NodeExistsError, match="no document of references"):
        zd.reference(files, files[0], concat="time")
    assert [xr.open_dataset(file).sizes["time"] for file in files] == [2, 3]


def test_a_pattern_does_not_match_the_store_that_it_fills(tmp_path):
    def make(number: int) -> None:
        days = xr.Dataset({"v": ("x", [number])}, {"x": [number]})
        zd.write_dataset(days, tmp_path / f"{number}.zarr")

    target = tmp_path / "all.zarr"
    for number in range(3):
        make(number)
        zd.ingest(str(tmp_path / "*.zarr"), target, concat="x")
        assert zd.open_dataset(target)["v"].values.tolist() == [*range(number + 1)]
    zd.ingest(tmp_path, target, concat="x")
    given = [str(tmp_path / "0.zarr"), str(target)]
    with pytest.raises(SourceIsTargetError):
        zd.ingest(given, target, concat="x", settle={"overlap": "keep"}, overwrite=True)
    assert zd.open_dataset(target)["v"].values.tolist() == [0, 1, 2]


def test_groups_of_files_are_not_the_place_in_the_store(tmp_path):
    with pytest.raises(
        TypeError, match=r"Groups of the files are kept.*variables=\['group/name'\]"
    ):
        zd.ingest(write(tmp_path, [2]), tmp_path / "out.zarr", group="ocean")
