"""Quirks of files that other programs have written: the values are those that xarray reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from zarr_dask.errors import IngestError
from zarr_dask.jobs.engine.plan import format_bytes

netcdf = pytest.importorskip("netCDF4")
h5py = pytest.importorskip("h5py")


@pytest.fixture
def file(tmp_path) -> str:
    return str(tmp_path / "a.nc")


def ingested(file: str, **options) -> xr.Dataset:
    zd.ingest([file], f"{file}.zarr", survey=False, verify=True, **options)
    with xr.open_zarr(f"{file}.zarr", consolidated=False) as found:
        return found.load()


def referenced(file: str) -> xr.Dataset:
    zd.reference([file], f"{file}.json")
    return zd.open_dataset(f"reference::{file}.json").load()


def check(file: str) -> None:
    """Compare copy and references with what xarray reads."""
    with xr.open_dataset(file) as expected:
        xr.testing.assert_identical(ingested(file), expected.load())
        xr.testing.assert_identical(referenced(file), expected.load())


def test_names_of_netcdf3_that_count_their_end(file):
    xr.Dataset({"yy": ("nn", np.arange(4))}, attrs={"aa": 1}).to_netcdf(
        file, engine="scipy", format="NETCDF3_CLASSIC"
    )
    with xr.open_dataset(file) as found:
        expected = found.load()
    data = Path(file).read_bytes()
    for name in (b"yy", b"nn", b"aa"):
        assert b"\0\0\0\2" + name in data
        data = data.replace(b"\0\0\0\2" + name, b"\0\0\0\3" + name)
    Path(file).write_bytes(data)
    xr.testing.assert_identical(ingested(file), expected)
    xr.testing.assert_identical(referenced(file), expected)


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_characters_with_a_fill_value(file, format):
    with netcdf.Dataset(file, "w", format=format) as made:
        made.createDimension("n", 3)
        made.createDimension("length", 4)
        letters = made.createVariable("letters", "S1", ("n", "length"), fill_value=b"x")
        letters[:2] = np.array([[*"abcd"], [*"axyz"]], "S1")
    check(file)


@pytest.mark.filterwarnings("ignore:variable 'p' has non-conforming")
@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_a_mask_of_integers_that_is_nan_masks_nothing(file, name):
    packed = {"scale_factor": 0.5, "add_offset": 1.0}
    xr.Dataset({"p": ("x", np.arange(5, dtype="i2"), packed)}).to_netcdf(file, engine="h5netcdf")
    with h5py.File(file, "r+") as made:
        made["p"].attrs[name] = np.nan
    check(file)
    plan = zd.plan_ingest([file], f"{file}.2.zarr")
    assert f"p: {name} is NaN and masks no int16: left out" in plan.notes


def test_attributes_that_are_not_finite(file):
    with netcdf.Dataset(file, "w") as made:
        made.createDimension("x", 3)
        one = made.createVariable("a", "f4", ("x",))
        one[:] = [1, np.nan, 3]
        one.missing_value = np.float32(np.nan)
        one.valid_max = np.float32(np.inf)
        one.valid_range = np.array([-np.inf, np.nan])
        made.level = np.nan
    check(file)


@pytest.mark.parametrize("options", [{}, {"zlib": True, "shuffle": True, "chunksizes": (2, 5)}])
@pytest.mark.parametrize("dtype", ["i2", "i4", "f4", "f8"])
def test_values_that_were_never_written(file, dtype, options):
    """HDF5 reads its fill value there, which is no mask without the attribute `_FillValue`."""
    with netcdf.Dataset(file, "w") as made:
        made.createDimension("y", 4)
        made.createDimension("x", 5)
        made.createVariable("never", dtype, ("y", "x"), **options)
        made.createVariable("single", dtype, ())
        made.createVariable("masked", dtype, ("y", "x"), fill_value=7, **options)
        made.createVariable("partly", dtype, ("y", "x"), **options)[:2] = np.ones((2, 5))
    check(file)


def test_a_fill_value_of_hdf5_that_is_not_the_mask(file):
    with h5py.File(file, "w") as made:
        for name, fill in (("zeros", 0), ("nines", 9), ("masked", 5)):
            one = made.create_dataset(name, (6,), "f4", chunks=(3,), fillvalue=fill)
            one[:3] = [1, 5, 9]
            one.attrs["_FillValue"] = np.float32(5)
    check(file)


def test_each_file_has_its_own_value_where_nothing_was_written(tmp_path):
    files = [str(tmp_path / f"{number}.h5") for number in range(3)]
    for number, one in enumerate(files):
        with h5py.File(one, "w") as made:
            for name, chunks in (("a", (2,)), ("b", None)):
                data = made.create_dataset(name, (6,), "f4", chunks=chunks, fillvalue=number)
                data.dims[0].label = "x"
            made["a"][:2] = 7
    zd.reference(files, str(tmp_path / "refs.json"), concat="x")
    found = zd.open_dataset(f"reference::{tmp_path}/refs.json")
    assert found.a.values.tolist() == [7, 7, 0, 0, 0, 0, 7, 7, 1, 1, 1, 1, 7, 7, 2, 2, 2, 2]
    assert found.b.values.tolist() == [0] * 6 + [1] * 6 + [2] * 6


def test_texts_of_any_length(file):
    texts = np.array(["a", "", "\u00e9\u6f22", "dd"], object)
    made = xr.Dataset(
        {"a": (("n", "m"), texts.reshape(2, 2))}, {"n": np.array(["x", "yy"], object)}
    )
    made.to_netcdf(file)
    check(file)
    with h5py.File(file, "w") as large:
        large["a"] = np.full(1 << 17, "a", h5py.string_dtype())
    with pytest.raises(IngestError, match=r"more than 1\.05 MB of texts"):
        zd.reference([file], f"{file}.json")


def _integer(offset: int, precision: int):
    made = h5py.h5t.STD_I16LE.copy()
    made.set_precision(precision)
    made.set_offset(offset)
    return made, np.array([1, 2, -3, 100], "i2")


def _short_float():
    made = h5py.h5t.IEEE_F16LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_ebias(127)
    return made, np.array([1, 2, -3, 100], "f4")


def _text(padding: int):
    made = h5py.h5t.C_S1.copy()
    made.set_size(4)
    made.set_strpad(padding)
    return made, np.array([b"a", b"bc", b"", b"def"], "S4")


@pytest.mark.parametrize("chunks", [None, (2,)])
@pytest.mark.parametrize(
    ("stored", "values"),
    [
        _integer(2, 10),
        _integer(0, 12),
        _short_float(),
        _text(h5py.h5t.STR_SPACEPAD),
        _text(h5py.h5t.STR_NULLTERM),  # with something behind the zero
    ],
)
def test_elements_that_lie_otherwise_than_in_numpy(file, stored, values, chunks):
    """Unused bits, other floats, and texts that are padded with blanks."""
    with h5py.File(file, "w") as made:
        options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks:
            options.set_chunk(chunks)
            options.set_deflate(1)
        space = h5py.h5s.create_simple(values.shape)
        written = h5py.h5d.create(made.id, b"a", stored, space, options)
        written.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
        made["a"].dims[0].label = "x"
    if values.dtype.kind == "S" and not chunks:
        content = Path(file).read_bytes()
        Path(file).write_bytes(content.replace(b"a\0\0\0bc", b"a\0zzbc"))
    zd.ingest([file], f"{file}.zarr", verify=True)
    assert np.array_equal(zd.open(f"{file}.zarr")["a"].read(), values)
    zd.reference([file], f"{file}.json")
    assert np.array_equal(zd.from_zarr(f"reference::{file}.json", "a").compute(), values)


def test_large_chunks_that_were_never_written_are_no_references(file):
    with h5py.File(file, "w") as made:
        made.create_dataset("a", (1 << 20,), "f4", chunks=(1 << 18,), fillvalue=9)[0] = 1
    with pytest.raises(IngestError, match="a cannot be told by references"):
        zd.reference([file], f"{file}.json")


def test_attributes_of_compound_types_are_left_out(file):
    pair = np.array([(1, 2.0), (3, 4.0)], [("a", "f4"), ("b", "f8")])
    xr.Dataset({"v": ("x", np.arange(3))}, attrs={"title": "run"}).to_netcdf(file)
    with xr.open_dataset(file) as found:
        expected = found.load()
    with h5py.File(file, "r+") as made:
        for at in (made, made["v"]):
            at.attrs["pair"], at.attrs["pairs"] = pair[0], pair
    for _ in range(2):  # the second is told by the survey of the first
        plan = zd.plan_ingest([file], f"{file}.zarr")
        assert "left out: /@pair, /@pairs, v@pair, v@pairs" in str(plan)
    xr.testing.assert_identical(ingested(file), expected)
    xr.testing.assert_identical(referenced(file), expected)


def test_a_variable_that_is_called_like_a_dimension_of_another(file):
    with netcdf.Dataset(file, "w") as made:
        made.createDimension("x", 2)
        made.createDimension("y", 5)
        made.createVariable("y", "f4", ("x", "y"), zlib=True)[:] = np.arange(10).reshape(2, 5)
        made.createVariable("a", "f4", ("x", "y"))[:] = 1
    with h5py.File(file) as made:
        assert "_nc4_non_coord_y" in made
    check(file)


def test_the_library_is_asked_once_for_the_name_of_a_dimension(file, monkeypatch):
    """It goes through the whole file for each: 2,000 variables took minutes."""
    many = {f"a{number}": ("x", np.arange(3)) for number in range(20)}
    xr.Dataset(many, {"x": [1, 2, 3]}).to_netcdf(file)
    asked = []
    get_name = h5py.h5r.get_name
    monkeypatch.setattr(h5py.h5r, "get_name", lambda *one: asked.append(one) or get_name(*one))
    check(file)
    assert len(asked) == 2  # a copy and references


def test_a_plan_says_so_where_most_was_never_written(file):
    with h5py.File(file, "w") as made:
        made.create_dataset("a", (1 << 20, 1 << 10), "f8", chunks=(1 << 10, 1 << 10))
    held = format_bytes(Path(file).stat().st_size)
    plan = zd.plan_ingest([file], f"{file}.zarr")
    assert f"the files declare 8.59 GB of values and hold {held}" in str(plan)
    with h5py.File(file, "w") as made:
        made.create_dataset("a", (1 << 20,), "f8", chunks=(1 << 10,))
    assert "declare" not in str(zd.plan_ingest([file], f"{file}.zarr"))


_STORED = {  # how HDF5 may store four elements: data type, values, options
    "enumeration": (h5py.enum_dtype({"A": 0, "B": 1}, "i1"), [0, 1, 0, 1], {}),
    "truth": (bool, [True, False, True, True], {}),
    "half": ("f2", [1.5, -2, 0, 3], {}),
    "big": (">u8", [2**63 + 1, 0, 1, 2], {"chunks": (3,), "shuffle": True}),
    "offset": ("i4", [7, 8, 9, 10], {"scaleoffset": 4, "chunks": (2,)}),
    "decimal": ("f4", [7.25, 8, 9, 10], {"scaleoffset": 2, "chunks": (2,)}),
    "lzf": ("i4", [7, 8, 9, 10], {"compression": "lzf", "chunks": (2,)}),
    "checked": ("i4", [7, 8, 9, 10], {"fletcher32": True, "shuffle": True, "chunks": (3,)}),
    "fixed": ("S5", [b"ab", b"", b"abcde", b"x"], {}),
    "any": (h5py.string_dtype(), ["déjà", "", "b", "c"], {"chunks": (3,)}),
    "a b": ("f4", [1, 2, 3, 4], {}),
    "a.b": ("f4", [1, 2, 3, 4], {}),
    "a%2Fb": ("f4", [1, 2, 3, 4], {}),
    "a\nb": ("f4", [1, 2, 3, 4], {}),
    "a*?": ("f4", [1, 2, 3, 4], {}),
    "c": ("f4", [1, 2, 3, 4], {}),
    "😀é": ("f4", [1, 2, 3, 4], {}),
    "n" * 200: ("f4", [1, 2, 3, 4], {}),
    "unwritten": ("f4", None, {"fillvalue": 9.5, "chunks": (2,)}),
}
_ATTRIBUTES = {
    "empty": np.array([], "f4"),
    "texts": ["a", "b"],
    "no text": "",
    "largest": np.uint64(2**64 - 1),
    "nan": np.nan,
    "truth": np.True_,
    "coordinates": "nowhere",
    "cell_methods": "time: mean",
    "valid_range": np.array([0, 1], "f4"),
}


def test_what_hdf5_may_hold_is_what_xarray_reads(tmp_path):
    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for one in files:
        with h5py.File(one, "w") as made:
            made["time"] = np.arange(4.0) + 4 * files.index(one)
            made["time"].make_scale("time")
            for name, (dtype, values, options) in _STORED.items():
                variable = made.create_dataset(name, (4,), dtype, **options)
                variable.dims[0].attach_scale(made["time"])
                if values is not None:
                    variable[...] = np.array(values, object if name == "any" else None)
            made["again"] = made["lzf"]
            made["soft"] = h5py.SoftLink("/half")
            for name, value in _ATTRIBUTES.items():
                made["half"].attrs[name] = value
    given = {"combine": "nested", "concat_dim": "time", "engine": "h5netcdf", "coords": "minimal"}
    with xr.open_mfdataset(files, data_vars="minimal", compat="override", **given) as found:
        expected = found.load()
    zd.ingest(files, f"{tmp_path}/a.zarr", concat="time", verify=True)
    zd.reference(files, f"{tmp_path}/a.json", concat="time")
    for url in (f"{tmp_path}/a.zarr", f"reference::{tmp_path}/a.json"):
        read = zd.open_dataset(url).load()
        xr.testing.assert_equal(read, expected)
        for name, value in _ATTRIBUTES.items():
            np.testing.assert_array_equal(read["half"].attrs.get(name, "nowhere"), value)
