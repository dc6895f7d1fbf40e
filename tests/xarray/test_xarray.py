"""xarray over our arrays: names, masks, encodings, indexing, blocks; as xarray's own backend."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import pickle
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.paths import ROOT
from zarr_dask.errors import ChunkMissingError, MetadataError, NodeNotFoundError
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import ReadPolicy
from zarr_dask.stores.wrappers.base import Recording
from zarr_dask.xarray import EarlyZarrBackend, ZarrDaskBackend

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
    pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated"),
]


def opened(url, **options):
    return xr.open_dataset(url, engine=ZarrDaskBackend, **options)


def weather():
    rng = np.random.default_rng(5)
    time = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(6, "h")
    temperature = rng.normal(280, 10, (6, 4, 5)).round(2)
    temperature[2, 1, 3] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), temperature, {"units": "K"}),
            "station": ("lat", np.array(["Aachen", "Ölüdeniz", "", "東京"], dtype=object)),
            "code": ("lat", np.array([b"ab", b"c", b"", b"def"], dtype="S3")),
            "flag": (("lat", "lon"), rng.integers(0, 2, (4, 5)).astype(bool)),
            "wave": ("lon", rng.normal(size=5) + 1j * rng.normal(size=5)),
            "crs": ((), 7, {"grid_mapping_name": "latitude_longitude"}),
            "lag": ("time", np.arange(6).astype("timedelta64[s]").astype("timedelta64[ns]")),
        },
        coords={
            "time": time,
            "lat": [50.0, 51, 52, 53],
            "lon": ("lon", [5.0, 6, 7, 8, 9], {"units": "degrees_east"}),
            "area": (("lat", "lon"), rng.random((4, 5))),
        },
        attrs={"title": "a test", "history": ["one", "two"]},
    )


@pytest.fixture(scope="module", params=[2, 3])
def stored(request, tmp_path_factory):
    """A dataset as xarray writes it: packed, masked, compressed, sharded where there are shards."""
    path = tmp_path_factory.mktemp("xarray") / "weather.zarr"
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    layout = {"chunks": (2, 4, 5)}
    if request.param == 3:
        layout = {"chunks": (1, 2, 5), "shards": (4, 4, 5)}
    weather().to_zarr(path, zarr_format=request.param, encoding={"t2m": {**packed, **layout}})
    return path


# --- datasets -------------------------------------------------------------------------------------


def test_the_entry_point_names_the_backend():
    project = ROOT / "pyproject.toml"
    points = tomllib.loads(project.read_text())["project"]["entry-points"]["xarray.backends"]
    backends = {"early_zarr": EarlyZarrBackend, "zarr_dask": ZarrDaskBackend}
    assert points == {name: f"{one.__module__}:{one.__name__}" for name, one in backends.items()}
    assert min([*points, "zarr"]) == "early_zarr"  # the order in which xarray asks


def test_hierarchies_that_zarr_python_cannot_read_are_guessed(tmp_path):
    mine = EarlyZarrBackend()
    for format in ("v1", "v2", "v3", "v3draft", "v3draft-2022-05"):
        place = tmp_path / f"{format}.zarr"
        path = "" if format == "v1" else "t"
        zd.create_array(place, path, data=[1, 2], format=format, dimension_names=["x"])
        assert mine.guess_can_open(place) == mine.guess_can_open(f"{place}/")
        assert mine.guess_can_open(place) == (format not in {"v2", "v3"})
    assert mine.open_dataset(place)["t"].to_numpy().tolist() == [1, 2]
    for other in ("s3://bucket/a.zarr", tmp_path, tmp_path / "none.zarr", place / "zarr.json", 3):
        assert not mine.guess_can_open(other)


def test_what_is_read_is_what_xarray_reads(stored):
    with xr.open_zarr(stored, chunks=None) as expected:
        actual = opened(stored)
        is_older = zd.open(stored).format == "v2"  # to which xarray writes texts of fixed length
        xr.testing.assert_identical(actual, expected)
        xr.testing.assert_identical(actual.load(), expected.load())
        assert {n: v.dtype for n, v in actual.variables.items()} == {
            n: np.dtype(object) if v.dtype.kind == "T" and is_older else v.dtype
            for n, v in expected.variables.items()
        }
    np.testing.assert_allclose(actual.t2m, weather().t2m, atol=0.006)
    assert np.isnan(actual.t2m[2, 1, 3])


@pytest.mark.parametrize(
    "options",
    [
        {"decode_cf": False},
        {"mask_and_scale": False},
        {"decode_times": False, "decode_timedelta": False},
        {"decode_coords": "all"},
        {"drop_variables": ["t2m", "station"]},
        {"drop_variables": "code", "concat_characters": False},
    ],
    ids=str,
)
def test_decoding_is_xarrays(stored, options):
    with xr.open_zarr(stored, chunks=None, **options) as expected:
        xr.testing.assert_identical(opened(stored, **options), expected)
        blocks = options | {"chunks": {}}
        xr.testing.assert_identical(opened(stored, **blocks).compute(), expected.load())


def test_encoding_says_how_it_is_stored(stored):
    encoding = opened(stored).t2m.encoding
    with xr.open_zarr(stored, chunks=None) as expected:
        theirs = expected.t2m.encoding
    for name in ("chunks", "shards", "dtype", "scale_factor", "add_offset", "_FillValue"):
        assert encoding[name] == theirs[name], name
    sharded = encoding["shards"] is not None
    assert encoding["preferred_chunks"] == {"time": 4 if sharded else 2, "lat": 4, "lon": 5}
    assert encoding["compressors"]


def test_what_was_read_is_written_again_with_its_encoding(stored, tmp_path):
    dataset = opened(stored)
    before = zd.open(stored)["t2m"]
    dataset.to_zarr(tmp_path / "again", zarr_format=2 if before.format == "v2" else 3)
    xr.testing.assert_identical(opened(tmp_path / "again"), opened(stored))
    after = zd.open(tmp_path / "again")["t2m"]
    assert (after.chunks, after.shards, after.codecs) == (
        before.chunks,
        before.shards,
        before.codecs,
    )


def test_places(stored):
    expected = opened(stored)
    group = zd.open(stored)
    for place in (str(stored), f"file://{stored}", group):
        xr.testing.assert_identical(opened(place), expected)
    assert opened(stored).encoding["source"] == str(stored)
    assert opened(group).encoding["source"] == group.where
    xr.testing.assert_identical(xr.open_dataset(group), expected)  # an open group needs no engine


def test_the_keywords_that_xarray_passes_on():
    for function in (ZarrDaskBackend.open_dataset, ZarrDaskBackend.open_groups_as_dict):
        given = tuple(inspect.signature(function).parameters)[2:]
        assert given == ZarrDaskBackend.open_dataset_parameters


def test_which_places_are_ours():
    guess = ZarrDaskBackend().guess_can_open
    assert all(map(guess, ["a.zarr", "s3://b/a.zarr/", Path("a.zarr"), "a.zarr.zip"]))
    assert not any(map(guess, ["a.nc", "a", Path("a.zip"), b"CDF\x01", 3, "a.zarr/b"]))


def test_nothing_there(tmp_path):
    with pytest.raises(NodeNotFoundError):
        opened(tmp_path / "nothing.zarr")
    with pytest.raises(FileNotFoundError):
        zd.open_dataset(tmp_path / "nothing.zarr")


@pytest.mark.parametrize("format", [2, 3])
def test_groups_below(tmp_path, format):
    deep = xr.Dataset({"a": ("x", [1, 2])}, attrs={"level": 2})
    deep.to_zarr(tmp_path / "h", group="one/two", zarr_format=format, consolidated=False)
    for group in ("one/two", "/one/two", "one/two/"):
        xr.testing.assert_identical(opened(tmp_path / "h", group=group).load(), deep)
    assert not opened(tmp_path / "h").variables


def test_trees(tmp_path):
    tree = xr.DataTree.from_dict(
        {
            "/": weather()[["t2m"]],
            "/fine": xr.Dataset({"depth": ("z", [1.0, 2.0])}, attrs={"kind": "fine"}),
            "/fine/er": xr.Dataset({"salt": (("z", "lat"), np.ones((2, 4)))}),
            "/empty": xr.Dataset(),
        }
    )
    tree.to_zarr(tmp_path / "tree.zarr", zarr_format=3)
    for found in (
        xr.open_datatree(tmp_path / "tree.zarr", engine=ZarrDaskBackend),
        zd.open_datatree(tmp_path / "tree.zarr"),
        zd.open_datatree(zd.open(tmp_path / "tree.zarr"), chunks=None),
    ):
        xr.testing.assert_identical(found.load(), tree)
    assert zd.open_datatree(tmp_path / "tree.zarr", "fine").groups == ("/", "/er")
    parts = xr.open_groups(tmp_path / "tree.zarr", engine=ZarrDaskBackend)
    assert sorted(parts) == ["/", "/empty", "/fine", "/fine/er"]


def test_consolidated_metadata_are_one_request(tmp_path):
    weather().to_zarr(tmp_path / "c", zarr_format=2, consolidated=True)
    requests = {}
    for consolidated in (None, False):
        store = Recording(zd.open(tmp_path / "c").store)
        opened(store, consolidated=consolidated, drop_variables=["time", "lat", "lon"])
        requests[consolidated] = len(store.requests)
    assert requests[None] < requests[False]


@pytest.mark.parametrize("format", [2, 3])
def test_consolidated_metadata_that_are_out_of_date_are_not_asked(tmp_path, format):
    place = tmp_path / "c.zarr"
    values = xr.Dataset({"a": ("x", np.arange(4.0)), "b": ("x", np.ones(4))})
    values.to_zarr(place, zarr_format=format, consolidated=True)
    for name in values:
        zarr.open_array(f"{place}/{name}").append(np.arange(4.0))
    expected = xr.open_zarr(place, consolidated=False).load()
    assert expected.sizes["x"] == 8
    for url in (place, zd.open(place)):
        for found in (
            opened(url, consolidated=False),
            zd.open_dataset(url, consolidated=False),
            zd.open_datatree(url, consolidated=False).to_dataset(),
        ):
            xr.testing.assert_identical(found.load(), expected)
    assert zd.open_dataset(place).sizes["x"] == 4


@pytest.mark.parametrize("consolidated", [None, False, True])
def test_a_group_is_read_as_it_was_opened(tmp_path, consolidated):
    values = xr.Dataset({"a": ("x", np.arange(4.0) + 1)})
    xr.DataTree.from_dict({"g": values}).to_zarr(tmp_path / "c.zarr")
    (tmp_path / "c.zarr" / "g" / "a" / "c" / "0").unlink()
    group = zd.open(tmp_path / "c.zarr", read=zd.ReadOptions(missing="error"))
    for found in (
        zd.open_dataset(group, "g", consolidated=consolidated),
        opened(group, group="g", consolidated=consolidated),
        zd.open_datatree(group, consolidated=consolidated)["g"],
        zd.open_dataset(group["g"], consolidated=consolidated),
    ):
        with pytest.raises(ChunkMissingError):
            found["a"].load()


# --- names of dimensions --------------------------------------------------------------------------


def nczarr(place, name, references):
    """An array as the netCDF library has written it over the years."""
    document = {
        "zarr_format": 2,
        "shape": [2, 3],
        "dtype": "<i4",
        "chunks": [2, 3],
        "fill_value": -1,
        "order": "C",
        "compressor": None,
        "filters": None,
    }
    attributes = {"units": "m", "_NCProperties": "version=2"}
    (attributes if place == "attributes" else document)[name] = references
    return {
        ".zgroup": b'{"zarr_format": 2, "_NCZARR_GROUP": {"dims": {"y": 2, "x": 3}}}',
        ".zattrs": b'{"_nczarr_superblock": {"version": "2.0.0"}, "title": "t"}',
        "v/.zarray": json.dumps(document).encode(),
        "v/.zattrs": json.dumps(attributes).encode(),
        "v/0.0": np.array([[1, 2, 3], [4, -1, 6]], "<i4").tobytes(),
    }


@pytest.mark.parametrize(
    ("place", "name", "references"),
    [
        ("document", "_NCZARR_ARRAY", {"dimrefs": ["/y", "/x"], "storage": "chunked"}),
        ("attributes", "_nczarr_array", {"dimrefs": ["/y", "/deeper/x"]}),
        ("attributes", "_nczarr_array", {"dimension_references": ["/y", "/x"]}),
    ],
)
def test_nczarr_names_dimensions_by_their_paths(place, name, references):
    found = opened(nczarr(place, name, references))
    expected = xr.Dataset(
        {"v": (("y", "x"), [[1.0, 2, 3], [4, np.nan, 6]], {"units": "m"})}, attrs={"title": "t"}
    )
    xr.testing.assert_identical(found.load(), expected)


@pytest.mark.parametrize("references", [[], ["/_scalar_"]])
def test_scalars_of_nczarr_are_arrays_of_one_element(references):
    values = nczarr("attributes", "_nczarr_array", {"dimension_references": references})
    document = json.loads(values["v/.zarray"])
    values["v/.zarray"] = json.dumps({**document, "shape": [1], "chunks": [1]}).encode()
    values["v/0"] = np.array([5], "<i4").tobytes()
    found = opened(values)
    assert (found.v.dims, found.v.values.tolist()) == (("_scalar_",), [5])


@pytest.mark.parametrize(
    "attributes",
    [{"_ARRAY_DIMENSIONS": ["y", "x"]}, {"_nczarr_array": {"dimension_references": ["/y", "/x"]}}],
)
def test_v3_that_was_made_of_v2_has_its_names_in_attributes(attributes):
    """As ``zarr migrate v3`` of zarr-python leaves it."""
    values = {}
    zd.create_group(values)
    zd.create_array(
        values, "v", shape=(2, 3), dtype="i4", chunks=2, attributes={**attributes, "units": "m"}
    )
    found = opened(values)
    assert (found.v.dims, found.v.attrs) == (("y", "x"), {"units": "m"})
    assert zd.open_array(values, "v").dimension_names is None  # v3 itself knows of none


@pytest.mark.parametrize("names", [["y"], "yx", ["y", 1]])
def test_names_that_are_none_are_shown(names):
    values = {}
    zd.create_group(values, format="v2")
    made = {"shape": (2, 3), "dtype": "i4", "format": "v2"}
    zd.create_array(values, "v", attributes={"_ARRAY_DIMENSIONS": names}, **made)
    with pytest.raises(MetadataError, match=rf"_ARRAY_DIMENSIONS: got {re.escape(repr(names))}"):
        opened(values)


@pytest.mark.parametrize("references", [["/y"], "/y/x", [1, 2], None, {"dimrefs": 3}])
def test_nczarr_that_names_nothing_is_no_reason_to_fail(references):
    values = nczarr("attributes", "_nczarr_array", references)
    assert zd.open_array(values, "v").dimension_names is None
    with pytest.raises(MetadataError, match=r"_ARRAY_DIMENSIONS.*drop_variables"):
        opened(values)
    assert not opened(values, drop_variables="v").variables


@pytest.mark.parametrize("names", [None, ["x", None]])
def test_dimensions_need_names(names):
    values = {}
    zd.create_array(values, "good", shape=(2,), dtype="i4", dimension_names=["x"])
    zd.create_array(values, "scalar", shape=(), dtype="i4")
    zd.create_array(values, "bad", shape=(2, 2), dtype="i4", dimension_names=names)
    with pytest.raises(MetadataError, match="dimension_names") as failure:
        opened(values)
    assert "/bad" in str(failure.value)
    assert set(opened(values, drop_variables="bad").variables) == {"good", "scalar"}


def test_documents_that_are_wrong():
    values = {}
    zd.create_array(values, "good", shape=(2,), dtype="i4", dimension_names=["x"])
    values["wrong/zarr.json"] = b'{"zarr_format": 3, "node_type": "array", "shape": [2]}'
    with pytest.raises(MetadataError, match="wrong"):
        opened(values)
    assert set(opened(values, drop_variables="wrong").variables) == {"good"}


def test_every_format_has_names():
    for format in ("v2", "v3", "v3draft"):
        values = {}
        zd.create_group(values, format=format)
        group = zd.open_group(values, mode="r+")
        array = group.create_array("v", shape=(2, 3), dtype="i2", dimension_names=["y", "x"])
        array[...] = [[1, 2, 3], [4, 5, 6]]
        found = opened(values, use_zarr_fill_value_as_mask=False)
        assert found.v.dims == ("y", "x"), format
        assert found.v.values.tolist() == [[1, 2, 3], [4, 5, 6]]
        assert found.v.dtype == np.int16
        assert found.v.attrs == {}


def test_arrays_without_a_name(tmp_path):
    array = xr.DataArray(np.arange(3), dims="x")
    array.to_zarr(tmp_path / "a.zarr", consolidated=False)
    with xr.open_dataarray(tmp_path / "a.zarr", engine=ZarrDaskBackend) as found:
        xr.testing.assert_identical(found, array)


# --- missing values -------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, True, False])
@pytest.mark.parametrize("format", [2, 3])
def test_fill_values_and_masks(format, mask):
    values = {}
    group = zd.create_group(values, format=f"v{format}")
    array = group.create_array("v", shape=(3,), dtype="i4", fill_value=-1, dimension_names=["x"])
    array[...] = [1, -1, 3]
    found = opened(values, use_zarr_fill_value_as_mask=mask)
    if mask or (mask is None and format == 2):
        np.testing.assert_array_equal(found.v, [1, np.nan, 3])
        assert found.v.encoding["_FillValue"] == -1
    else:
        assert found.v.values.tolist() == [1, -1, 3]
        assert found.v.encoding.get("fill_value") == (-1 if format == 3 else None)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("f4", -9999.0),
        ("f8", np.nan),
        ("i2", -5),
        ("u1", 255),
        ("c16", 1 + 2j),
        ("f4", np.inf),
    ],
    ids=str,
)
def test_fill_values_of_v3_as_xarray_packs_them(tmp_path, dtype, fill):
    data = np.array([fill, fill]).astype(dtype)
    dataset = xr.Dataset({"v": ("x", data, {"_FillValue": data.dtype.type(fill)})})
    dataset.to_zarr(tmp_path / "a", zarr_format=3)
    raw = opened(tmp_path / "a", mask_and_scale=False).v.attrs["_FillValue"]
    np.testing.assert_array_equal(raw, fill)
    with xr.open_zarr(tmp_path / "a", chunks=None) as expected:
        xr.testing.assert_identical(opened(tmp_path / "a"), expected)


@pytest.mark.parametrize("attribute", [-9999, -9999.0, "NaN", "not base64", [1], None])
def test_fill_values_of_v3_as_others_write_them(attribute):
    values = {}
    more = {"attributes": {"_FillValue": attribute}, "dimension_names": ["x"]}
    zd.create_array(values, "v", shape=(2,), dtype="f4", **more)[...] = [1, -9999]
    raw = opened(values, decode_cf=False).v.attrs["_FillValue"]
    np.testing.assert_array_equal(raw, np.nan if attribute == "NaN" else attribute)
    if isinstance(attribute, int | float):
        np.testing.assert_array_equal(opened(values).v, [1, np.nan])


# --- elements -------------------------------------------------------------------------------------


def test_texts_and_byte_strings_of_any_length():
    values = {}
    for name, dtype, data in (("t", str, ["a", "", "日本"]), ("b", bytes, [b"\0", b"", b"xyz"])):
        array = zd.create_array(values, name, shape=(3,), dtype=dtype, dimension_names=["x"])
        array[...] = data
        found = opened(values)[name]
        assert found.dtype.kind == {"t": "T", "b": "O"}[name]
        assert xr.coding.strings.check_vlen_dtype(found.dtype) in {None, bytes}
        assert found.values.tolist() == data
        assert opened(values, chunks={})[name].compute().values.tolist() == data


INDEX = st.one_of(
    st.integers(-4, 3),
    st.slices(4),
    st.lists(st.integers(-4, 3), max_size=6).map(np.array).filter(lambda a: a.dtype.kind == "i"),
    st.lists(st.booleans(), min_size=4, max_size=4).map(np.array),
)
CUBE = np.arange(64).reshape(4, 4, 4)


@pytest.fixture(scope="module")
def cube():
    values = {}
    options = {"shape": (4, 4, 4), "dtype": "i8", "chunks": (1, 2, 2), "shards": (2, 4, 2)}
    zd.create_array(values, "v", **options, dimension_names=["z", "y", "x"])[...] = CUBE
    return opened(values).v, zd.open_dataset(values).v


@given(z=INDEX, y=INDEX, x=INDEX, again=st.one_of(st.none(), INDEX))
def test_lazy_orthogonal_indexing(cube, z, y, x, again):
    expected = xr.DataArray(CUBE, dims=("z", "y", "x"))
    for array in cube:
        mine, theirs = array.variable[z, y, x], expected.variable[z, y, x]
        if again is not None and "z" in mine.dims and mine.sizes["z"] == 4:
            mine, theirs = mine.isel(z=again), theirs.isel(z=again)
        assert mine.dims == theirs.dims
        np.testing.assert_array_equal(mine.values, theirs.values)


@given(
    points=st.lists(st.tuples(*[st.integers(-4, 3)] * 3), min_size=1, max_size=8),
    dims=st.sampled_from([("z", "y"), ("z", "x"), ("z", "y", "x"), ("x",)]),
)
def test_lazy_pointwise_indexing(cube, points, dims):
    expected = xr.DataArray(CUBE, dims=("z", "y", "x"))
    chosen = {d: xr.DataArray([p["zyx".index(d)] for p in points], dims="point") for d in dims}
    for array in cube:
        xr.testing.assert_identical(
            array.isel(chosen).load(), expected.isel(chosen).rename(array.name)
        )


def test_only_what_is_chosen_is_read(tmp_path):
    options = {"shape": (100, 100), "dtype": "f8", "chunks": (10, 10)}
    zd.create_array(tmp_path / "a", "v", **options, dimension_names=["y", "x"])[...] = 1
    store = Recording(zd.open(tmp_path / "a").store)
    for chunks in (None, "objects"):
        array = zd.open_dataset(store, chunks=chunks).v
        store.requests.clear()
        assert array[5, 7:15].compute().sum().item() == 8
        assert len(store.requests) == 2
    array = zd.open_dataset(store, chunks=None).v
    points = {name: xr.DataArray([5, 95], dims="point") for name in ("y", "x")}
    for chosen in ({"y": [95, 5], "x": 7}, {"y": slice(None, None, -90), "x": 7}, points):
        store.requests.clear()
        assert array.isel(chosen).load().sum().item() == 2
        assert len(store.requests) == 2


def test_reading_in_an_event_loop(stored):
    async def load():
        return await opened(stored).load_async()

    xr.testing.assert_identical(asyncio.run(load()), opened(stored).load())


def test_pickles(stored):
    dataset = opened(stored)
    again = pickle.loads(pickle.dumps(dataset))
    xr.testing.assert_identical(again, dataset)
    lazy = zd.open_dataset(stored)
    xr.testing.assert_identical(pickle.loads(pickle.dumps(lazy)).compute(), dataset.load())


def test_many_threads_read_one_variable(stored):
    variable = opened(stored, mask_and_scale=False).t2m.variable
    expected = variable.values
    with ThreadPoolExecutor(8) as threads:
        rows = list(threads.map(lambda n: variable[n % 6].values, range(48)))
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(row, expected[number % 6])


def test_on_a_cluster(stored, client):
    expected = opened(stored).load()
    xr.testing.assert_identical(zd.open_dataset(stored).compute(), expected)
    mean = zd.open_dataset(stored).t2m.mean("time").compute()
    xr.testing.assert_allclose(mean, expected.t2m.mean("time"))


# --- blocks ---------------------------------------------------------------------------------------


def test_blocks_are_stored_objects():
    values = {}
    more = {"dtype": "i2", "dimension_names": ["y", "x"]}
    zd.create_array(values, "sharded", shape=(8, 6), chunks=(2, 2), shards=(4, 6), **more)
    zd.create_array(values, "uneven", shape=(8, 6), chunks=((1, 3, 4), 2), **more)
    zd.create_array(
        values, "empty", shape=(0, 6), chunks=(2, 2), dtype="i2", dimension_names=["z", "x"]
    )
    dataset = opened(values, chunks={})
    assert dataset.sharded.chunks == ((4, 4), (6,))
    assert dataset.sharded.encoding["chunks"] == (2, 2)
    assert dataset.uneven.chunks == ((1, 3, 4), (2, 2, 2))
    assert dataset.uneven.encoding["chunks"] == ((1, 3, 4), 2)
    assert dataset.empty.shape == (0, 6)
    assert opened(values, chunks={"y": 8}).sharded.chunks == ((8,), (6,))
    assert zd.open_dataset(values, chunks="auto").sharded.chunks == ((8,), (6,))
    assert zd.open_dataset(values, chunks=None).sharded.chunks is None
    for cutting in ({"y": 3}, {"x": 2}):  # 2 would cut no chunk, but the shard
        with pytest.warns(UserWarning, match="separate the stored chunks"):
            opened(values, chunks=cutting, drop_variables=["uneven", "empty"])


@pytest.mark.parametrize(
    ("size", "block"),
    [("10MB", (16, 32, 64)), ("64KiB", (8, 32, 64)), ("10kB", (1, 32, 64)), ("5kB", (1, 16, 64))],
)
def test_blocks_of_a_size_divide_shards(tmp_path, size, block):
    values = np.arange(40 * 40 * 64, dtype="f4").reshape(40, 40, 64)
    a = zd.create_array(
        tmp_path,
        "t",
        shape=values.shape,
        dtype="f4",
        chunks=(1, 8, 16),
        shards=(16, 32, 64),
        dimension_names=["t", "y", "x"],
    )
    a[...] = values
    ds = zd.open_dataset(tmp_path, chunks=size)
    assert ds["t"].data.chunksize == block
    np.testing.assert_array_equal(ds["t"].to_numpy(), values)
    assert ds["t"].encoding["shards"] == (16, 32, 64)
    tree = zd.open_datatree(tmp_path, chunks=size)
    assert tree["t"].data.chunksize == block
    with pytest.raises(ValueError, match="is not a size"):
        zd.open_dataset(tmp_path, chunks="small")


def test_large_shards_are_divided_by_default(tmp_path, monkeypatch):
    shape = (4096, 1024)  # 32 MB
    options = {"chunks": (128, 1024), "dtype": "f8", "dimension_names": ["y", "x"]}
    zd.create_array(tmp_path, "t", shape=shape, shards=shape, **options)
    zd.create_array(tmp_path, "g/t", shape=shape, shards=shape, **options)
    for ds in (zd.open_dataset(tmp_path), zd.open_datatree(tmp_path)["g"], zd.open_zarr(tmp_path)):
        assert ds["t"].data.chunksize == (256, 1024)  # 2 MB: 4.2 MB would be more than 4 MB
    for ds in (zd.open_dataset(tmp_path, chunks="objects"), opened(tmp_path, chunks={})):
        assert ds["t"].data.chunksize == shape
    monkeypatch.setattr("zarr_dask.xarray.is_remote", lambda _: True)
    assert zd.open_dataset(tmp_path)["t"].data.chunksize == shape


def test_small_objects_of_a_remote_store_are_read_16_at_a_time():
    class Far(MemoryStore):
        coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=32)

    for store, blocks in ((Far(), (16,) * 6 + (4,)), (MemoryStore(), (6,) * 16 + (4,))):
        options = {"shape": (100, 8), "chunks": (1, 8), "dtype": "f4"}
        zd.create_array(store, "t", **options, dimension_names=["time", "x"])
        assert zd.open_dataset(store)["t"].chunks == (blocks, (8,))


PEAK = """
import sys
import dask, xarray as xr, zarr_dask as zd
dask.config.set(scheduler="threads", num_workers=2)
t = {"ours": zd.open_dataset, "theirs": xr.open_zarr}[sys.argv[1]](sys.argv[2])["t"]
(t.mean("time") if sys.argv[3] == "mean" else t.std()).compute()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("job", ["mean", "std"])
def test_reductions_over_shards_peak_as_those_of_xarray(tmp_path, job):
    shape, shard = (200, 512, 512), (50, 512, 512)  # 52 MB
    options = {"chunks": (10, 128, 128), "shards": shard, "dimension_names": ["time", "y", "x"]}
    array = zd.create_array(tmp_path / "a", "t", shape=shape, dtype="f4", **options)
    for first in range(0, 200, 50):
        array[first : first + 50] = np.random.default_rng(first).normal(size=shard)
    zd.consolidate(tmp_path / "a")

    def peak(who):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, who, str(tmp_path / "a"), job],
            capture_output=True,
            check=True,
        )
        return int(done.stdout)

    assert peak("ours") <= 1.3 * peak("theirs")


def test_an_element_of_a_million_chunks_takes_one_block(tmp_path):
    options = {"shape": (10_000, 10_000), "dtype": "i1", "chunks": (10, 10)}
    zd.create_array(tmp_path / "a", "v", **options, dimension_names=["y", "x"])[5, 5] = 3
    array = zd.open_dataset(tmp_path / "a", chunks="objects").v
    assert array.data.npartitions == 1_000_000
    graph = array.data.__dask_graph__()
    assert [type(layer).__name__ for layer in graph.layers.values()] == ["Blockwise"]
    assert not any(layer.is_materialized() for layer in graph.layers.values())
    assert len(pickle.dumps(graph)) < 16_000
    one = array[5, 5]
    assert len(dict(dask.optimize(one.data)[0].__dask_graph__())) <= 2
    assert one.compute().item() == 3
    assert not any(layer.is_materialized() for layer in graph.layers.values())


def test_names_in_the_graph_tell_the_metadata(tmp_path):
    def name():
        return zd.open_dataset(tmp_path / "a").v.data.name

    options = {"shape": (4,), "dtype": "i2", "dimension_names": ["x"]}
    zd.create_array(tmp_path / "a", "v", **options)
    first = name()
    assert name() == first
    zd.create_array(tmp_path / "a", "v", **options, fill_value=3, overwrite=True)
    assert name() != first


def test_variables_of_zarr_python_and_xarray_are_read_alike(tmp_path):
    root = zarr.create_group(tmp_path / "z", zarr_format=3)
    shape = {"shape": (7, 9), "chunks": (2, 3), "shards": (4, 9), "dtype": "f4"}
    array = root.create_array("v", **shape, dimension_names=["y", "x"], fill_value=np.nan)
    array[1:5, 2:] = np.arange(28).reshape(4, 7)
    np.testing.assert_array_equal(opened(tmp_path / "z").v, array[...])
    np.testing.assert_array_equal(zd.open_dataset(tmp_path / "z").v, array[...])


@pytest.mark.parametrize("layout", [{}, {"shards": {"t": 20, "y": 20, "x": 20}}])
def test_small_objects_are_merged_alike_in_all_variables(layout):
    """Blocks of at most 4 MB, so that operations have fewer tasks than stored objects."""
    dims, shape = ("t", "y", "x"), (800, 100, 100)
    variables = {
        "large": (dims, da.zeros(shape, "f8", chunks=(20, 100, 100))),
        "small": (dims, da.ones(shape, "f4", chunks=(20, 100, 100))),
        "mask": (dims[1:], np.zeros(shape[1:], "i1")),
        "name": ("x", np.array(["a"] * 100, object)),
    }
    store = {}
    chunks = {"t": 10, "y": 20, "x": 20}
    ds = xr.Dataset(variables)
    given = {key: {"large": one, "small": one} for key, one in layout.items()}
    zd.write_dataset(ds, store, chunks=chunks, **given)
    found, whole = zd.open_dataset(store), zd.open_dataset(store, chunks="objects")
    assert found.chunks.keys() == set(dims)  # those of all variables are the same
    assert 16 <= found["large"].data.npartitions < whole["large"].data.npartitions / 8
    for name in variables:
        block, unit = found[name].data.chunksize, whole[name].data.chunksize
        assert all(size % one == 0 or size == 100 for size, one in zip(block, unit, strict=True))
        assert math.prod(block) * whole[name].dtype.itemsize <= 4_000_000
        assert found[name].encoding["chunks"] == whole[name].encoding["chunks"]
    xr.testing.assert_identical(found.load(), whole.load())


def test_large_objects_are_not_merged(tmp_path):
    x = da.zeros((40, 250, 1000), "f4", chunks=(2, 250, 1000))  # 2 MB
    mask = da.zeros((250, 1000), "i1", chunks=(250, 1000))
    zd.write_dataset(xr.Dataset({"t": (("t", "y", "x"), x), "m": (("y", "x"), mask)}), tmp_path)
    found = zd.open_dataset(tmp_path)
    assert found["t"].data.npartitions == 20
    assert zd.open_dataset(tmp_path, chunks="16MB")["t"].data.npartitions == 20  # 16 at least


@pytest.mark.parametrize("opens", [zd.open_dataset, zd.open_datatree])
def test_a_dimension_with_several_lengths_is_named(opens):
    store = {}
    for name, shape in (("a", (4, 6)), ("b", (4,)), ("c", (3, 5))):
        names = ["y", "x"][: len(shape)] if name != "c" else ["z", "x"]
        zd.create_array(store, f"g/{name}", shape=shape, dtype="i4", dimension_names=names)
    with pytest.raises(MetadataError, match=r"g/c.*\n.*got 5, expected 6, .* of 'x' in 'a'"):
        opens(store, "g")
    assert opens(store, "g", drop_variables=["c"])["b"].shape == (4,)


@pytest.mark.parametrize("chunks", ["pieces", None, {}])
def test_a_scalar_of_a_child_does_not_become_the_coordinate_of_its_parent(chunks):
    """xarray.open_datatree takes the inherited one, if it makes dask arrays."""
    parent = xr.Dataset({"t": ("time", np.arange(3.0))}, {"time": np.arange(3)})
    tree = xr.DataTree.from_dict({"/a": parent, "/a/b": parent.isel(time=1)})
    zd.write_dataset(tree, store := {})
    found = zd.open_datatree(store, chunks=chunks)
    assert found["/a/b/time"].shape == ()
    assert found.load().identical(tree)
