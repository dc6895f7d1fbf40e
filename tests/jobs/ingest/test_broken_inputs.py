"""Two hundred inputs that are broken or do not fit: named before anything is written."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from zarr_dask.errors import GridError, IngestError, MemoryBudgetError

pytest.importorskip("netCDF4")
h5py = pytest.importorskip("h5py")

_WRITERS = {
    "hdf5": {
        "engine": "netcdf4",
        "format": "NETCDF4",
        "encoding": {"t": {"zlib": True, "chunksizes": (2, 7, 9)}},
    },
    "h5netcdf": {"engine": "h5netcdf"},
    "classic": {"engine": "scipy", "format": "NETCDF3_CLASSIC"},
    "cdf5": {"engine": "netcdf4", "format": "NETCDF3_64BIT_DATA"},
}
_STRANGERS = {
    "empty": b"",
    "page": b"<!DOCTYPE html><html><body>404 not found</body></html>",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n",
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0",
    "zip": b"PK\3\4" + bytes(40),
    "json": b"{}",
    "zeros": bytes(5000),
    "tiff": b"II*\0\0\0\0\0",
    "hdf4": b"\x0e\x03\x13\x01" + bytes(40),
    "text": b"time,t\n0,1\n",
}


def dataset(start: int) -> xr.Dataset:
    rng = np.random.default_rng(start)
    days = {"units": "days since 2000-01-01", "calendar": "noleap"}
    packed = {"scale_factor": 0.5, "add_offset": 1.0}
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), rng.normal(size=(4, 7, 9)).astype("f4"), {"units": "K"}),
            "p": (("time", "y"), rng.integers(0, 9, (4, 7)).astype("i2"), packed),
            "mask": ("y", np.arange(7, dtype="i2")),
        },
        coords={
            "time": ("time", np.arange(start, start + 4).astype("f8"), days),
            "y": ("y", np.arange(7.0)),
        },
    )


def changes() -> Iterator[tuple[str, str, xr.Dataset]]:
    """Yield kind, variable, and a second file that does not fit the first one."""
    good = dataset(4)
    for name in ("t", "p", "mask", "y"):
        yield "missing" if name in "tp" else "", name, good.drop_vars(name)
    yield "dims", "t", good.assign(t=good.t.transpose("time", "x", "y"))
    yield "dims", "p", good.assign(p=good.p.rename(y="z"))
    yield "shape", "t", good.isel(x=slice(0, 5))
    yield "shape", "y", good.isel(y=slice(0, 5))
    for dtype in ("f8", "i4", "i2"):
        yield "dtype", "t", good.assign(t=good.t.astype(dtype, keep_attrs=True))
    yield "values", "y", good.assign_coords(y=good.y + 1)
    yield "values", "mask", good.assign(mask=good.mask * 2)
    yield "values", "mask", good.assign(mask=good.mask.astype("i4"))
    yield "values", "y", good.isel(y=slice(None, None, -1))
    for name, attribute, value in (
        ("mask", "scale_factor", 0.5),
        ("mask", "add_offset", 1.0),
        ("mask", "_Unsigned", "true"),
        ("mask", "units", "km"),
        ("y", "units", "days since 2000-01-01"),
    ):
        made = good.copy(deep=True)
        made[name].attrs[attribute] = value
        yield "values", name, made
    for name, attribute, value, kind in (
        ("t", "units", "degC", "units"),
        ("time", "units", "days since 1999-01-01", "order"),
        ("time", "units", "hours since 2000-01-01", "overlap"),
        ("time", "units", "months since 2000-01-01", "units"),
        ("time", "calendar", "360_day", "units"),
        ("p", "scale_factor", 0.25, "packing"),
        ("p", "add_offset", 2.0, "packing"),
        ("p", "_FillValue", np.int16(3), "packing"),
        ("p", "missing_value", np.int16(3), "packing"),
    ):
        made = good.copy(deep=True)
        made[name].attrs[attribute] = value
        yield kind, name, made
    for shift, kind in ((-1, "overlap"), (-4, "overlap"), (-40, "order")):
        yield kind, "time", good.assign_coords(time=good.time + shift)
    yield "order", "time", good.isel(time=[1, 0, 2, 3])
    yield "order", "time", good.isel(time=[0, 0, 1, 2])
    yield "order", "time", good.isel(time=[0, 0, 0, 0])
    for value in (np.nan, np.inf):
        yield "order", "time", good.assign_coords(time=good.time.where(good.time != 5, value))


def refusal(files: list[str]) -> IngestError:
    """Return the error of files of which the second is broken; nothing has been written."""
    target = Path(files[0]).parent / "out.zarr"
    with pytest.raises(IngestError) as caught:
        zd.ingest(files, str(target), concat="time")
    assert not target.exists()
    assert files[1] in str(caught.value)
    assert "-> settle=" in str(caught.value)
    assert files[1] in {one.file for one in caught.value.differences}
    return caught.value


def files_in(folder: Path, **options) -> list[str]:
    files = [str(folder / f"{number}.nc") for number in range(3)]
    for number, file in enumerate(files):
        dataset(4 * number).to_netcdf(file, unlimited_dims=["time"], **options)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("way", _WRITERS)
def test_a_file_that_is_cut_off_is_named(tmp_path, way):
    files = files_in(tmp_path, **_WRITERS[way])
    whole = Path(files[1]).read_bytes()
    some = np.random.default_rng(0).integers(0, len(whole) - 4, 30).tolist()
    for length in (1, 4, 8, 100, len(whole) // 2, len(whole) - 4, *some):
        Path(files[1]).write_bytes(whole[:length])
        refusal(files)


@pytest.mark.slow
def test_a_file_of_another_kind_is_named(tmp_path):
    files = files_in(tmp_path)
    for content in _STRANGERS.values():
        Path(files[1]).write_bytes(content)
        assert [one.kind for one in refusal(files).differences] == ["unreadable"]
    Path(files[1]).unlink()
    assert "is not there" in str(refusal(files))
    Path(files[1]).symlink_to(files[1])
    refusal(files)
    Path(files[1]).unlink()
    Path(files[1]).symlink_to(tmp_path / "nowhere")
    refusal(files)


@pytest.mark.slow
@pytest.mark.parametrize("way", _WRITERS)
def test_a_file_that_does_not_fit_is_named_with_its_variable(tmp_path, way):
    given = {k: v for k, v in _WRITERS[way].items() if k != "encoding"}
    files = files_in(tmp_path, **given)
    for kind, name, made in changes():
        made.to_netcdf(files[1], unlimited_dims=["time"], **given)
        if kind:
            found = refusal(files).differences
            assert (kind, name) in {(one.kind, one.variable) for one in found}
        else:  # a variable without the concatenation need not be in every file
            plan = zd.plan_ingest(files, str(tmp_path / "out.zarr"), concat="time")
            assert f"{name} is not in {files[1]}: the values of {files[0]} stay" in plan.notes


# --- damage within HDF5 files ---------------------------------------------------------------------


def chunk_of(data: bytes, mask: int = 0):
    """A change of one chunk of 504 bytes, as it is stored."""
    return lambda file: file["t"].id.write_direct_chunk((0, 0, 0), data, mask)


def attribute(name: str, key: str, value):
    return lambda file: file[name].attrs.__setitem__(key, value)


def typed(dtype):
    def change(file):
        del file["mask"]
        file.create_dataset("mask", (7,), dtype)

    return change


def group_in_place(file):
    del file["mask"]
    file["mask/v"] = np.zeros(4)


def huge_chunks(file):
    file.create_dataset("huge", (10**5, 10**5), "f8", chunks=(20_000, 20_000))


ODD = {
    "a bomb": (chunk_of(zlib.compress(bytes(1 << 23), 9)), "t", "unsupported"),
    "a short chunk": (chunk_of(zlib.compress(bytes(500))), "t", "unsupported"),
    "a long chunk": (chunk_of(zlib.compress(bytes(508))), "t", "unsupported"),
    "a chunk without filters": (chunk_of(bytes(496), 3), "t", "unsupported"),
    "a stream that is cut off": (chunk_of(zlib.compress(bytes(504))[:-6]), "t", "unsupported"),
    "no stream": (chunk_of(b"\xff" * 100), "t", "unsupported"),
    "a scale that is text": (attribute("p", "scale_factor", "0.5"), "p", "packing"),
    "several scales": (attribute("p", "scale_factor", [0.5, 0.5]), "p", "packing"),
    "no scale": (attribute("p", "scale_factor", np.nan), "p", "packing"),
    "an endless offset": (attribute("p", "add_offset", np.inf), "p", "packing"),
    "a mask that is text": (attribute("p", "_FillValue", "x"), "p", "packing"),
    "a mask out of range": (attribute("p", "_FillValue", 1e30), "p", "packing"),
    "a mask between": (attribute("p", "_FillValue", 0.5), "p", "packing"),
    "a calendar that is a number": (attribute("time", "calendar", 3), "time", "units"),
    "units that are numbers": (attribute("time", "units", [1, 2]), "time", "units"),
    "a data type of records": (typed([("a", "i4"), ("b", "f4")]), "mask", "unsupported"),
    "a data type of references": (typed(h5py.ref_dtype), "mask", "unsupported"),
    "a name of a document": (
        lambda file: file.__setitem__("zarr.json", np.zeros(3)),
        "zarr.json",
        "unsupported",
    ),
    "a name with a backslash": (
        lambda file: file.__setitem__("a\\b", np.zeros(3)),
        "a\\b",
        "unsupported",
    ),
    "a group that is an array elsewhere": (group_in_place, "mask/v", "unsupported"),
    "a dimension that was deleted": (lambda file: file.__delitem__("x"), "t", "unsupported"),
    "chunks larger than any reader takes": (huge_chunks, "huge", "unsupported"),
    "values of another file": (
        lambda file: file.create_dataset("e", (7,), "i2", external=[("/etc/passwd", 0, 14)]),
        "e",
        "unsupported",
    ),
}


@pytest.mark.parametrize("way", ODD)
def test_odd_contents_are_named_with_their_variable(tmp_path, way):
    change, name, kind = ODD[way]
    files = files_in(tmp_path, **{**_WRITERS["hdf5"], "engine": "h5netcdf", "format": None})
    with h5py.File(files[1], "r+") as file:
        change(file)
    found = refusal(files).differences
    assert (kind, name) in {(one.kind, one.variable) for one in found}


def test_a_damaged_index_of_chunks_is_named_with_its_variable(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf", encoding={"t": {"chunksizes": (2, 7, 9)}})
    data = bytearray(Path(files[1]).read_bytes())
    at = data.index(b"TREE\1")  # of chunks; those of groups begin with 0
    data[at + 4 : at + 40] = b"\xee" * 36
    Path(files[1]).write_bytes(data)
    found = refusal(files).differences
    assert {one.kind for one in found} == {"unsupported"}
    assert all(one.variable for one in found)


def test_names_that_are_no_text_are_refused(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    with h5py.File(files[1], "r+") as file:
        file[b"a\xffb"] = np.zeros(3)
        file[b"g\xff/v"] = np.zeros(3)
    found = refusal(files).differences
    assert [(one.kind, one.variable) for one in found] == [
        ("unsupported", "a\udcffb"),
        ("unsupported", "g\udcff/v"),
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"II*\0\x08\0\0\0", "is a TIFF file, which holds an image: zarr_dask.ome.convert writes"),
        (b"MM\0+\0\x08\0\0", "is a TIFF file, which holds an image: zarr_dask.ome.convert writes"),
        (b'{"version": 1}', "is JSON. If it holds references, zarr_dask.open_dataset"),
    ],
)
def test_files_of_other_calls_are_sent_there(tmp_path, content, found):
    files = files_in(tmp_path, engine="h5netcdf")
    Path(files[1]).write_bytes(content)
    assert f"{files[1]}: {found}" in str(refusal(files))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_are_not_waited_for(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    Path(files[1]).unlink()
    os.mkfifo(files[1])
    assert "is a pipe, socket or device" in str(refusal(files))


def test_the_file_of_an_engine_is_named_once(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    (tmp_path / "1.zarr").mkdir()
    files[1] = str(tmp_path / "1.zarr")
    assert f"  {files[1]}: xarray's engine" in str(refusal(files))


def test_files_that_end_at_once_are_empty(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    Path(files[1]).write_bytes(b"")
    assert f"{files[1]}: is empty. Fetch it again" in str(refusal(files))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "cannot be read .*No such file"),
        (b"\xff\xfe", "cannot be read .*codec"),
        (b" \n", "is empty"),
    ],
)
def test_a_list_of_files_that_is_none_is_named(tmp_path, content, found):
    listed = tmp_path / "files.txt"
    if content is not None:
        listed.write_bytes(content)
    with pytest.raises(IngestError, match=rf"files\.txt, the list of files, {found}"):
        zd.ingest(f"@{listed}", str(tmp_path / "out.zarr"))


@pytest.mark.parametrize(
    ("options", "error", "found"),
    [
        ({"concat": 3}, TypeError, "concat=3: expected the name of a dimension"),
        ({"order": "size"}, ValueError, "order='size': expected one of 'given', 'name'"),
        ({"variables": "time"}, TypeError, r"variables='time': expected .* \['time'\]"),
        ({"chunks": 5}, GridError, "chunks=5: expected lengths by name"),
    ],
)
def test_arguments_of_another_kind_are_refused(tmp_path, options, error, found):
    files = files_in(tmp_path, engine="h5netcdf")
    with pytest.raises(error, match=found):
        zd.ingest(files, str(tmp_path / "out.zarr"), **options)


@pytest.mark.parametrize("way", ["a mask out of range", "a scale that is text"])
def test_odd_packing_of_all_files_is_named(tmp_path, way):
    """These masks would be zeros, and such scales cannot be applied by any reader."""
    files = files_in(tmp_path, engine="h5netcdf")
    for one in files:
        with h5py.File(one, "r+") as file:
            ODD[way][0](file)
    assert {one.file for one in refusal(files).differences} == {*files}
    target = str(tmp_path / "out.zarr")
    zd.ingest(files, target, concat="time", settle={"packing": "skip"})
    assert "p" not in zd.open_dataset(target)


def test_masks_of_unsigned_numbers_are_kept(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    for one in files:
        with h5py.File(one, "r+") as file:
            file["p"].attrs.update({"_Unsigned": "true", "_FillValue": np.int32(65535)})
    plan = zd.plan_ingest(files, str(tmp_path / "out.zarr"), concat="time")
    assert plan.tasks


def test_a_variable_that_one_file_has_is_named_with_that_file(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    dataset(4).assign(more=("time", np.zeros(4))).to_netcdf(
        files[1], engine="h5netcdf", unlimited_dims=["time"]
    )
    with pytest.raises(IngestError, match=rf"0\.nc: more: is not in the file, but in {files[1]}"):
        zd.ingest(files, str(tmp_path / "out.zarr"), concat="time")


def test_a_variable_too_large_for_memory_is_named(tmp_path):
    files = files_in(tmp_path, engine="h5netcdf")
    with h5py.File(files[1], "r+") as file:
        file.create_dataset("huge", (10**9, 10**6), "f8", chunks=(10**4, 10**4))
    with pytest.raises(MemoryBudgetError, match="huge: a stored object of"):
        zd.ingest(files, str(tmp_path / "out.zarr"), concat="time")


def test_what_equal_numbers_mean_is_compared(tmp_path):
    """Of a variable without the concatenation, whose first file's values stay."""
    files = files_in(tmp_path, engine="h5netcdf")
    for one, attribute, value in (
        (0, "units", "days since 2000-01-01"),
        (2, "units", "days since 2000-1-1 00:00"),
        (2, "_FillValue", -1.0),
    ):
        with h5py.File(files[one], "r+") as file:
            file["y"].attrs[attribute] = value
    (found,) = refusal(files).differences
    assert found.found == f"has the units None, but 'days since 2000-01-01' in {files[0]}"
    with h5py.File(files[1], "r+") as file:
        file["y"][:] = np.arange(7.0)[::-1]
    assert "it runs the other way" in str(refusal(files))
    plan = zd.plan_ingest([files[0], files[2]], str(tmp_path / "out.zarr"), concat="time")
    assert "attributes of y differ (_FillValue): the first file's stay" in plan.notes
