"""Datasets that are written, appended to and made, and what a reader sees of them meanwhile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import zarr_dask as zd
import zarr_dask.xarray.accessor
from tests.support.xarray_kills import is_half_way, read
from tests.support.xarray_roles import killed, steps, together
from zarr_dask.errors import (
    AppendConflictError,
    CopyError,
    DatasetMismatchError,
    DataTypeError,
    JournalError,
    LabelNotFoundError,
    ManifestMismatchError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    PartialWriteError,
    ReadOnlyError,
    ResumeError,
    SourceIsTargetError,
    StoreError,
    ValuesDifferError,
    ZarrDaskWarning,
)
from zarr_dask.hierarchy import growing
from zarr_dask.jobs.write.commit import GroupCommit, finish_commit
from zarr_dask.stores import LocalStore, MemoryStore, Recording
from zarr_dask.stores.wrapper import StoreWrapper
from zarr_dask.xarray import dataset_planner

pytestmark = [
    pytest.mark.filterwarnings("ignore::xarray.coding.common.SerializationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore:The data type"),
]
FORMATS = ["v2", "v3"]


def identical(place, expected, **options):
    for consolidated in (True, False):
        with xr.open_zarr(place, consolidated=consolidated, **options) as found:
            xr.testing.assert_identical(found.load(), expected.load())


def hard():
    """Variables of all kinds that xarray encodes."""
    times = pd.date_range("2000-01-01", periods=4).to_numpy().astype("M8[ns]")
    gap = times.copy()
    gap[1] = "NaT"
    x = ("time",)
    packed = xr.Variable(x, [1.5, np.nan, 2.5, 3.0])
    packed.encoding = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -1}
    masked = xr.Variable(x, [1.0, np.nan, 3.0, 4.0], encoding={"dtype": "i4", "_FillValue": -9})
    masked.attrs = {"valid_min": np.nan, "valid_range": [-np.inf, 4.0]}  # no JSON, but xarray's
    char = xr.Variable(x, np.array([b"ab", b"c", b"", b"xyz"]))
    others = {}
    if find_spec("cftime"):
        days = xr.date_range("2000-02-28", periods=4, calendar="360_day", use_cftime=True)
        others["cf"] = (x, days.to_numpy())
    blocks = da.arange(24, chunks=8, dtype="f4").reshape(4, 6)
    return xr.Dataset(
        {
            "blocks": (("time", "x"), blocks, {"standard_name": "a", "list": [1, 2]}),
            "packed": packed,
            "masked": masked,
            "strings": (x, np.array(["a", "ü", "", "long text"], dtype=object)),
            "fixed": (x, np.array(["a", "bc", "", "def"])),
            "bytes": char,
            "bools": (x, np.array([True, False, True, True])),
            **others,
            "gap": (x, gap),
            "delta": (x, times - times[0]),
            "scalar": ((), 3.5),
            "complex": (x, np.array([1 + 2j, 0, -1j, 4])),
            "empty": (("none", "x"), np.zeros((0, 6), "i4")),
            "big": (x, np.arange(4, dtype=">i4")),
            "time_bnds": (("time", "b"), np.stack([times, times + np.timedelta64(1, "D")], 1)),
        },
        coords={
            "time": ("time", times, {"bounds": "time_bnds"}),
            "label": (("x",), list("uvwxyz")),
        },
        attrs={"count": np.int32(3), "text": "ü"},
    )


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_new_dataset_reads_as_that_of_xarray(tmp_path, format):
    ds = hard()
    ds.to_zarr(tmp_path / "theirs", zarr_format=int(format[1]))
    zd.write_dataset(ds, tmp_path / "ours", format=format)
    for consolidated in (True, False):
        ours = xr.open_zarr(tmp_path / "ours", consolidated=consolidated)
        theirs = xr.open_zarr(tmp_path / "theirs", consolidated=consolidated)
        xr.testing.assert_identical(ours.load(), theirs.load())
    xr.testing.assert_identical(zd.open_dataset(tmp_path / "ours").load(), ours)


@pytest.mark.parametrize("format", FORMATS)
def test_metadata_are_those_of_xarray(tmp_path, format):
    ds = hard()
    ds.to_zarr(tmp_path / "theirs", zarr_format=int(format[1]))
    zd.write_dataset(ds, tmp_path / "ours", format=format)
    names = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
    theirs = {
        str(file.relative_to(tmp_path / "theirs")): json.loads(file.read_text())
        for file in (tmp_path / "theirs").rglob("*")
        if file.name in names
    }
    for name, document in theirs.items():
        ours = json.loads((tmp_path / "ours" / name).read_text())
        assert essential(ours) == essential(document), name


def essential(document):
    """A document without empty fields, which zarr-python writes, and without byte orders.

    zarr-python's v3 turns big-endian numbers around; ours are stored as they are.
    """
    if isinstance(document, list):
        return [essential(one) for one in document]
    if not isinstance(document, dict):
        return document
    kept = {k: essential(v) for k, v in document.items() if k != "endian"}
    return {k: v for k, v in kept.items() if v not in ([], {}) or k in {"attributes", "shape"}}


@pytest.mark.parametrize("job", ["v2 to v3", "v3 to v2", "migrated"])
def test_other_formats_mean_the_same_to_xarray(tmp_path, job):
    ds = hard()
    ds["zero"] = ds["masked"].copy()
    ds["zero"].encoding = {"dtype": "u1", "_FillValue": 0}
    ds["crs"] = ((), 0, {"grid_mapping_name": "latitude_longitude"})
    ds["start"] = ((), ds["time"].to_numpy()[0])  # no days after itself
    ds["char"] = (
        ("time", "length"),
        np.array([[b"a", b"b"], [b"c", b""], [b"", b"d"], [b"", b""]]),
    )
    old, new = tmp_path / "old", tmp_path / "new"
    ds.to_zarr(old, zarr_format=3 if job == "v3 to v2" else 2)
    before = xr.open_zarr(old).load()
    if job == "migrated":
        zd.migrate(old, remove_old=True)
        new = old
    else:
        zd.copy(old, new, format=job[-2:])
    identical(new, before)


@pytest.mark.parametrize("format", FORMATS)
def test_rechunked_group_means_the_same_to_xarray(tmp_path, format):
    old, new, part = (tmp_path / name for name in ("old", "new", "part"))
    zd.write_dataset(hard(), old, format=format)
    before = xr.open_zarr(old).load()
    grids = {"x": 3, "blocks": {"time": 4}, "packed": {"time": 3}}
    plan = zd.plan_rechunk(str(old), new, chunks=grids)
    assert not new.exists()
    plan.run()
    identical(new, before)
    after = {name: array.chunks for name, array in zd.open_group(new).arrays()}
    assert (after["blocks"], after["packed"], after["masked"]) == ((4, 3), (3,), (4,))
    assert zd.compare(old, new).equal
    assert zd.verify(new, deep="decode").ok
    region = zd.find_region(old, {"time": slice("2000-01-02", "2000-01-03")})
    zd.rechunk(zd.open_group(old), part, chunks=grids, region=region, verify=True)
    identical(part, before.isel(region))


def test_sharded_dataset_reads_as_that_of_xarray(tmp_path):
    ds = hard()[["blocks", "time"]].chunk(time=4, x=6)
    encoding = {"blocks": {"chunks": (2, 3), "shards": (4, 6)}}
    ds.to_zarr(tmp_path / "theirs", encoding=encoding)
    zd.write_dataset(ds, tmp_path / "ours", encoding=encoding)
    identical(tmp_path / "ours", xr.open_zarr(tmp_path / "theirs"))
    assert zd.open_array(tmp_path / "ours", "blocks").shards == (4, 6)


def test_variables_of_all_kinds_in_shards_read_as_those_of_xarray(tmp_path):
    ds = hard()
    ds["blocks"] = ds["blocks"].chunk(-1)  # xarray refuses others
    encoding = {
        name: {"chunks": (2,) * one.ndim, "shards": tuple(4 if n < 6 else 6 for n in one.shape)}
        for name, one in ds.variables.items()
        if one.ndim and one.size
    }
    ds.to_zarr(tmp_path / "theirs", encoding=encoding)
    zd.write_dataset(ds, tmp_path / "ours", encoding=encoding)
    identical(tmp_path / "ours", xr.open_zarr(tmp_path / "theirs"))
    for name, array in zd.open_group(tmp_path / "ours").arrays():
        assert (array.shards is None) == (name not in encoding), name


def test_what_was_read_is_written_with_its_layout(tmp_path):
    place = tmp_path / "a"
    zd.write_dataset(steps(0, 8), place, shards={"time": 4, "lat": 2, "lon": 3}, chunks={"time": 2})
    read = zd.open_dataset(place)
    zd.write_dataset(read, tmp_path / "b")
    assert zd.open_array(tmp_path / "b", "t").shards == (4, 2, 3)
    for odd in (read.isel(time=slice(1, 6)), read.chunk(time=3), read.isel(time=[0, 7])):
        zd.write_dataset(odd, tmp_path / "b", mode="w")  # inherited grids never stand against it
        identical(tmp_path / "b", odd)


def test_grids_by_dimension_and_by_variable(tmp_path):
    zd.write_dataset(steps(0, 8), tmp_path / "a", chunks={"time": 3, "lon": -1})
    assert zd.open_array(tmp_path / "a", "t").chunks == (3, 2, 3)
    zd.write_dataset(steps(0, 8), tmp_path / "b", chunks={"t": {"lat": 1}, "n": {"time": 5}})
    assert zd.open_array(tmp_path / "b", "t").chunks == (2, 1, 3)
    assert zd.open_array(tmp_path / "b", "n").chunks == (5,)


def test_data_arrays_and_trees(tmp_path):
    array = steps(0, 4)["t"]
    zd.write_dataset(array, tmp_path / "a")
    xr.testing.assert_identical(xr.open_dataarray(tmp_path / "a", engine="zarr"), array)
    zd.write_dataset(array.rename(None), tmp_path / "b")
    found = xr.open_dataarray(tmp_path / "b", engine="zarr")
    xr.testing.assert_identical(found, array.rename(None))
    nodes = {"/": steps(0, 4), "/a": steps(0, 4, value=1), "/b/c": steps(0, 4)}
    tree = xr.DataTree.from_dict(nodes)
    zd.write_dataset(tree, tmp_path / "t")
    xr.testing.assert_identical(xr.open_datatree(tmp_path / "t", engine="zarr"), tree)


def test_documents_of_a_tree_end_with_that_of_its_root(tmp_path):
    store = Recording(MemoryStore())
    nodes = {"/": steps(0, 4), "/a": steps(0, 4), "/b": steps(0, 4), "/b/c": steps(0, 4)}
    zd.write_dataset(xr.DataTree.from_dict(nodes), store, "up/here")
    puts = [one.key.removeprefix("up/") for one in store.requests if one.method == "set"]
    groups = [f"{path}zarr.json" for path in ("here/b/c/", "here/b/", "here/a/", "here/")]
    assert [key for key in puts if key in groups] == groups
    assert [key for key in puts if key.startswith("here/")][-1] == "here/zarr.json"


def test_group_below_a_new_root(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "a", "one/two")
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "a", group="one/two").load(), steps(0, 4))
    zd.write_dataset(steps(0, 2), tmp_path / "a", "three")  # known to the consolidated metadata
    assert set(xr.open_datatree(tmp_path / "a", engine="zarr").children) == {"one", "three"}


def test_accessors_and_to_zarr_write_datasets(tmp_path):
    steps(0, 4).zd.to_zarr(tmp_path / "a")
    identical(tmp_path / "a", steps(0, 4))
    assert steps(0, 4)["t"].zd.plan(tmp_path / "b").tasks == 5
    zd.to_zarr(steps(0, 4), tmp_path / "b")
    identical(tmp_path / "b", steps(0, 4))


def test_plan_writes_nothing_and_tells_each_array(tmp_path):
    plan = zd.plan_dataset(steps(0, 4), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert plan.names == ("t", "n", "time", "lat", "lon")
    assert len(json.loads(plan.to_json())["arrays"]) == 5
    assert plan.run().nbytes == plan.nbytes
    identical(tmp_path / "a", steps(0, 4))


def test_manifests_tell_what_has_become_of_stored_objects(tmp_path):
    place, read = tmp_path / "a", zd.ReadOptions(verify=True)
    zd.write_dataset(steps(0, 4), place, manifest=True, sha256=True)
    steps(4, 8).zd.to_zarr(place, append_dim="time", manifest=True)
    assert zd.verify(place, deep="receipts", manifest=True).ok
    xr.testing.assert_identical(zd.open_zarr(place, read=read).load(), steps(0, 8).load())
    older, damaged = (next((place / "t").rglob(f"c/{n}/0/0")) for n in (0, 3))
    damaged.write_bytes(older.read_bytes())
    assert not zd.verify(place, deep="receipts", manifest=True).ok
    with pytest.raises(ManifestMismatchError, match="is not what its manifest says"):
        zd.open_zarr(place, read=read).load()
    with pytest.raises(ValueError, match="each variable of a dataset"):
        zd.write_dataset(steps(0, 4), tmp_path / "b", manifest="b.manifest")


@dataclass(frozen=True)
class Forgetful(StoreWrapper):
    """A store that acknowledges values of one array, and keeps none."""

    def set(self, key, buffers):
        if not key.startswith("t/c/"):
            self.store.set(key, buffers)


def test_objects_that_the_store_has_lost_are_told_on_demand():
    store = Forgetful(MemoryStore())
    with pytest.raises(StoreError, match="no such object"):
        zd.write_dataset(steps(1, 4), store, confirm=True)
    with pytest.raises(NodeNotFoundError):
        zd.open_dataset(store)


@dataclass(frozen=True)
class Stale(StoreWrapper):
    """A store that acknowledges the objects of one array, and keeps those that it has."""

    def set(self, key, buffers):
        if not key.startswith("t/c/") or self.store.get(key) is None:
            self.store.set(key, buffers)


@pytest.mark.parametrize("chunks", [None, {"time": 3}, {"time": 3, "lat": 1}])
def test_what_is_read_back_is_compared_with_what_was_computed(chunks):
    store = MemoryStore()
    given = {"chunks": chunks, "verify": True}
    plan = zd.plan_dataset(steps(1, 4), store, **given)
    assert plan.requests["read"] == plan.requests["write"] == plan.objects
    zd.write_dataset(steps(1, 4), store, **given)
    zd.write_dataset(steps(4, 6), store, append="time", verify=True)
    xr.testing.assert_identical(zd.open_dataset(store).load(), steps(1, 6).load())
    with pytest.raises(
        ValuesDifferError, match=r"/t does not hold [^\n]*\n  - \(\d, \d, \d\): [3-7]\.0 and [1-5]"
    ):
        zd.write_dataset(steps(3, 8), Stale(store), mode="a", **given)
    one = steps(3, 4, value=-1).isel(lat=[1], lon=[2])
    with pytest.raises(ValuesDifferError, match="1 elements differ"):
        zd.write_dataset(one, Stale(store), region="auto", partial="own", verify=True)


def test_an_append_that_is_not_kept_stays_invisible():
    store = MemoryStore()
    zd.write_dataset(steps(0, 4), store)
    store.set("t/c/2/0/0", [bytes(store.get("t/c/1/0/0"))])  # of a job that was stopped
    with pytest.raises(ValuesDifferError, match=r"\(4, 0, 0\): 4\.0 and 2\.0"):
        zd.write_dataset(steps(4, 6), Stale(store), append="time", verify=True)
    xr.testing.assert_identical(zd.open_dataset(store).load(), steps(0, 4).load())


@pytest.mark.parametrize(
    ("call", "wrong", "meant"),
    [
        (zd.open_dataset, "decode_time", "decode_times"),
        (zd.open_datatree, "consolidate", "consolidated"),
        (zd.open_zarr, "drop_variable", "drop_variables"),
        (zd.open_mfdataset, "combin", "combine"),
        (steps(0, 1).zd.to_zarr, "append_dims", "append_dim"),
        (steps(0, 1).zd.plan, "zarr_fromat", "zarr_format"),
    ],
)
def test_misspelt_keywords_are_told(tmp_path, call, wrong, meant):
    with pytest.raises(TypeError, match=f"takes no '{wrong}'. Did you mean '{meant}'"):
        call(tmp_path / "a", **{wrong: None})
    assert not (tmp_path / "a").exists()


def test_words_of_xarray_mean_the_same(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "a", zarr_format=2, append_dim=None)
    zd.create_dataset(steps(0, 4), tmp_path / "b", zarr_format=2)
    for place in (tmp_path / "a", tmp_path / "b"):
        assert zd.open_dataset(store=place).sizes == steps(0, 4).sizes
        assert (place / ".zgroup").exists()


def test_shared_inputs_are_computed_once(tmp_path):
    counts = []

    def counted(block):
        counts.append(1)
        return block

    x = da.ones((4, 2), chunks=(1, 2)).map_blocks(counted, dtype="f8", meta=np.empty((0, 0)))
    ds = xr.Dataset({"a": (("x", "y"), x), "b": (("x", "y"), x + 1)})
    with dask.config.set(scheduler="synchronous"):
        zd.write_dataset(ds, tmp_path / "a")
    assert len(counts) == 4


def test_existing_dataset_is_kept_unless_replaced(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "a")
    with pytest.raises(NodeExistsError, match="mode='w' to replace it"):
        zd.write_dataset(steps(0, 2), tmp_path / "a")
    identical(tmp_path / "a", steps(0, 4))
    zd.write_dataset(steps(0, 2).drop_vars("n"), tmp_path / "a", mode="w")
    identical(tmp_path / "a", steps(0, 2).drop_vars("n"))


def test_own_source_is_not_written_over(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "a")
    for opened in (zd.open_dataset(tmp_path / "a"), xr.open_zarr(tmp_path / "a")):
        with pytest.raises(SourceIsTargetError):
            zd.write_dataset(opened + 1, tmp_path / "a", mode="w")
        renamed = (opened + 1).rename({"t": "other"}).drop_vars("n")
        with pytest.raises(SourceIsTargetError):  # what it reads would be removed with the group
            zd.write_dataset(renamed, tmp_path / "a", mode="w")
    identical(tmp_path / "a", steps(0, 4))


@pytest.mark.parametrize("owner", ["group", "variable"])
def test_attributes_without_json_are_refused_before_anything_is_removed(tmp_path, owner):
    zd.write_dataset(steps(0, 4), tmp_path / "a")
    before = contents(tmp_path)
    wrong = steps(0, 4).load()
    (wrong if owner == "group" else wrong["t"]).attrs["bad"] = xr.DataArray()
    with pytest.raises(DataTypeError, match="'bad' of the"):
        zd.write_dataset(wrong, tmp_path / "a", mode="w")
    assert contents(tmp_path) == before


def test_groups_keep_attributes_that_are_no_json(tmp_path):
    """xarray writes NaN; it is in the way of no later change."""
    ds = steps(0, 4).load().assign_attrs(n=np.nan, big=[np.inf])
    ds.to_zarr(tmp_path / "a", zarr_format=3)
    zd.open(tmp_path / "a", mode="r+").attrs["new"] = 1
    zd.consolidate(tmp_path / "a")
    identical(tmp_path / "a", ds.assign_attrs(new=1))
    more = steps(4, 6).load().assign_attrs(other=np.nan, n=np.nan)
    zd.write_dataset(more, tmp_path / "a", append="time")
    identical(tmp_path / "a", steps(0, 6).assign_attrs(ds.attrs).assign_attrs(new=1, other=np.nan))
    with pytest.raises(MetadataError, match="finite numbers"):
        zd.open(tmp_path / "a", mode="r+").attrs["bad"] = np.nan


@pytest.mark.parametrize("job", ["write", "copy"])
def test_attribute_that_v2_keeps_for_names_of_dimensions_is_not_lost(tmp_path, job):
    """xarray shows it in v3, and replaces it in v2."""
    ds = xr.Dataset({"a": ("x", [1.0, 2.0], {"_ARRAY_DIMENSIONS": "mine", "_nc_note": "kept"})})
    zd.write_dataset(ds, tmp_path / "a")
    identical(tmp_path / "a", ds)
    xr.testing.assert_identical(zd.open_dataset(tmp_path / "a").load(), ds)
    before = contents(tmp_path)
    jobs = {
        "write": lambda: zd.write_dataset(ds, tmp_path / "b", format="v2"),
        "copy": lambda: zd.copy(tmp_path / "a", tmp_path / "b", format="v2"),
    }
    with pytest.raises((CopyError, MetadataError), match=r"attributes\._ARRAY_DIMENSIONS"):
        jobs[job]()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("how", ["append", "region", "a"])
@pytest.mark.parametrize(
    ("encoding", "value", "told"),
    [
        ({"dtype": "i1"}, 200, "-128"),
        ({"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}, 1e3, "scale_factor=0.5"),
        ({"dtype": "u1"}, -1, "255"),
        ({"dtype": "i2"}, np.nan, "_FillValue"),
        ({"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, 256, "255"),
        ({"dtype": "i8"}, 2.0**63, "9.2"),
        ({"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}, -0.5, "stores as -1, its mark"),
        (
            {"dtype": "u1", "scale_factor": -0.5, "add_offset": 2.0, "_FillValue": 9},
            -2.7,
            "stores as 9",
        ),
        (
            {"dtype": "i1", "_Unsigned": "true", "scale_factor": 0.5, "_FillValue": -1},
            127.5,
            "stores as 255",
        ),
    ],
)
def test_numbers_that_the_encoding_cannot_hold_are_refused(
    tmp_path, encoding, value, told, how, in_memory
):
    old = xr.Dataset({"a": ("x", np.array([1.0, 0.0]))})
    old["a"].encoding = encoding
    zd.write_dataset(old, tmp_path / "a")
    values = np.array([1.0, value])
    new = xr.Dataset({"a": ("x", values if in_memory else da.from_array(values, chunks=1))})
    options = {"append": {"append": "x"}, "region": {"region": {"x": slice(0, 2)}}}
    options |= {"a": {"mode": "a"}}
    with pytest.raises(DatasetMismatchError, match=told):
        zd.write_dataset(new, tmp_path / "a", **options[how])
    assert xr.open_zarr(tmp_path / "a")["a"].to_numpy()[1:].tolist() == [0]
    zd.write_dataset(new.fillna(0).clip(0, 100) * 0 + 1, tmp_path / "a", **options[how])
    assert xr.open_zarr(tmp_path / "a")["a"].to_numpy()[-2:].tolist() == [1, 1]


@pytest.mark.parametrize("in_memory", [True, False])
def test_times_that_the_encoding_cannot_hold_are_refused(tmp_path, in_memory):
    """xarray wraps them around: 2000 becomes 1863, and NaT becomes 1900."""
    times = pd.date_range("2000-01-01", periods=4).to_numpy().astype("M8[ns]")
    gap = np.where(np.arange(4) == 1, np.datetime64("NaT", "ns"), times)
    hours, seconds = (
        {"units": f"{u} since 1900-01-01", "dtype": "i4"} for u in ("hours", "seconds")
    )
    wrong = {
        "wrapped": (times, seconds),
        "lacks": (gap, hours),
        "long": (times - times[0], {"units": "seconds", "dtype": "i2"}),
    }
    right = {
        "times": (times, hours),
        "gap": (gap, {**hours, "_FillValue": -1}),
        "delta": (times - times[0], {"units": "hours", "dtype": "i2"}),
    }
    for name, (values, encoding) in {**wrong, **right}.items():
        ds = xr.Dataset({name: ("x", values, {}, encoding)})
        ds = ds if in_memory else ds.chunk(x=2)
        if name in right:
            zd.write_dataset(ds, tmp_path / name)
            assert xr.open_zarr(tmp_path / name)[name].encoding["dtype"] == encoding["dtype"]
            identical(tmp_path / name, ds)
        else:
            with pytest.raises(DatasetMismatchError, match=f"the times of '{name}' are numbers"):
                zd.write_dataset(ds, tmp_path / name)
            with pytest.raises(NodeNotFoundError):
                zd.open(tmp_path / name)


def test_appended_blocks_that_are_checked_have_tokens(tmp_path):
    old = xr.Dataset({"a": ("x", np.array([1, 2], "i2"))}, {"x": [0, 1]})
    new = xr.Dataset({"a": ("x", da.arange(2, chunks=1, dtype="i8"))}, {"x": [2, 3]})
    zd.write_dataset(old, tmp_path / "a")
    zd.write_dataset(new, tmp_path / "a", append="x", resume=True)
    assert zd.write_dataset(new, tmp_path / "a", append="x", resume=True).is_repeated
    with pytest.raises(DatasetMismatchError, match="32768"):
        zd.write_dataset(new.assign(x=[4, 5]) + 2**15, tmp_path / "a", append="x", resume=True)
    zd.write_dataset(new.assign(x=[4, 5]) + 2**15, tmp_path / "a", append="x", casting="unsafe")
    assert xr.open_zarr(tmp_path / "a")["a"].to_numpy().tolist() == [
        1,
        2,
        0,
        1,
        -(2**15),
        -(2**15) + 1,
    ]


@pytest.mark.parametrize(
    ("stored", "given"),
    [("f8", "c16"), ("f8", "M8[ns]"), ("M8[ns]", "f8"), ("U3", "f8"), ("f8", "U3"), ("?", "f8")],
)
def test_values_of_another_kind_are_refused(tmp_path, stored, given):
    zd.write_dataset(xr.Dataset({"a": ("x", np.ones(2).astype(stored))}), tmp_path / "a")
    new = xr.Dataset({"a": ("x", np.ones(2).astype(given))})
    with pytest.raises(DatasetMismatchError, match="'a': it is stored as"):
        zd.write_dataset(new, tmp_path / "a", mode="a")


@pytest.mark.parametrize("format", [2, 3])
def test_append_where_missing_values_are_nan(tmp_path, format):
    ds = xr.Dataset({"a": ("x", [1.0, np.nan])}, {"x": [0, 1]})
    ds["a"].encoding = {"_FillValue": np.nan, "missing_value": np.nan}
    ds.to_zarr(tmp_path / "a", zarr_format=format)
    zd.write_dataset(ds.assign_coords(x=[2, 3]), tmp_path / "a", append="x")
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "a")["a"], [1.0, np.nan] * 2)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    "options", [{"append": "x"}, {"mode": "a"}, {"region": {"x": slice(0, 2)}}]
)
@pytest.mark.parametrize("masked", [False, True])
def test_fractions_are_not_rounded_to_stored_integers(tmp_path, options, in_memory, masked):
    """xarray rounds them without a word."""
    encoding = {"a": {"_FillValue": -9}} if masked else None
    zd.write_dataset(xr.Dataset({"a": ("x", [1, 2])}), tmp_path / "a", encoding=encoding)
    new = xr.Dataset({"a": ("x", [1.5, 3.0])})
    whole = new.round()
    if not in_memory:
        new, whole = new.chunk(x=1), whole.chunk(x=1)
    with pytest.raises(DatasetMismatchError, match=r"'a' is stored as int64.* such as 1\.5"):
        zd.write_dataset(new, tmp_path / "a", **options)
    assert xr.open_zarr(tmp_path / "a")["a"].to_numpy().tolist() == [1, 2]
    zd.write_dataset(whole, tmp_path / "a", **options)
    assert xr.open_zarr(tmp_path / "a")["a"].to_numpy()[-2:].tolist() == [2, 3]
    zd.write_dataset(new, tmp_path / "a", mode="a-", casting="unsafe", region={"x": slice(0, 2)})
    assert xr.open_zarr(tmp_path / "a")["a"].to_numpy()[:2].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("ds", "told"),
    [
        (xr.Dataset({"a/b": ("x", [1])}), "another group"),
        (xr.Dataset({"a": ((0,), [1])}), "dimension 0"),
    ],
)
def test_names_that_no_reader_finds_again_are_refused(tmp_path, ds, told):
    with pytest.raises((TypeError, ValueError), match=told):
        zd.write_dataset(ds, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_blocks_of_missing_times_are_refused_where_a_calendar_takes_none(
    tmp_path, calendar, in_memory
):
    """Errors of xarray for them are about truth values of empty arrays."""
    times = np.array(["2000-01-01", "2000-01-02", "NaT", "NaT"], "M8[ns]")
    ds = xr.Dataset({"v": ("x", times[2:] if in_memory else times)})
    ds = ds if in_memory else ds.chunk(x=2)
    units = {"units": "days since 2000-01-01", "dtype": "f8"}
    encoding = {"v": {"calendar": calendar, **units}}
    with pytest.raises(DatasetMismatchError, match="'v' has nothing but NaT in a block"):
        zd.write_dataset(ds, tmp_path / "a", encoding=encoding)
    zd.write_dataset(
        ds, tmp_path / "a", encoding={"v": {**units, "calendar": "proleptic_gregorian"}}
    )
    assert xr.open_zarr(tmp_path / "a")["v"].equals(ds["v"])


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ({"units": "fortnights since 1990-01-01"}, "does not know 'fortnights'"),
        ({"units": "days since 2000-01-01"}, "both the units and dtype"),
        ({"calendar": "noleap"}, "no units"),
    ],
)
def test_encodings_that_xarray_refuses_are_those_of_a_variable(tmp_path, encoding, told):
    ds = xr.Dataset({"v": ("x", pd.date_range("2000", periods=4))})
    ds = ds if "fort" in told else ds.chunk(x=2)
    with pytest.raises(DatasetMismatchError, match=f"'v'.*{told}"):
        zd.write_dataset(ds, tmp_path / "a", encoding={"v": encoding})
    assert not (tmp_path / "a").exists()


def test_fill_values_that_a_type_cannot_have_are_those_of_a_variable(tmp_path):
    ds = xr.Dataset({"v": ("x", np.array(["a", "b"], object))})
    with pytest.raises(DataTypeError, match=r"'v' is stored as object.*'none'"):
        zd.write_dataset(ds, tmp_path / "a", encoding={"v": {"_FillValue": "none"}})
    assert not (tmp_path / "a").exists()


def test_cells_that_are_no_integers_are_refused(tmp_path):
    ds = steps(0, 4)
    ds["t"].encoding["chunks"] = (2, 1.5, 3)
    with pytest.raises(TypeError, match="integers"):
        zd.write_dataset(ds, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_new_variables_and_values_in_place(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "a")
    more = steps(0, 4)[["t"]].rename(t="u")
    zd.write_dataset(more, tmp_path / "a", mode="a")
    identical(tmp_path / "a", steps(0, 4).merge(more))
    zd.write_dataset(steps(0, 4, value=7)[["t"]], tmp_path / "a", mode="r+")
    identical(tmp_path / "a", steps(0, 4).merge(more).assign(t=steps(0, 4, value=7)["t"]))
    with pytest.raises(DatasetMismatchError):
        zd.write_dataset(more.rename(u="w"), tmp_path / "a", mode="r+")
    with pytest.raises(DatasetMismatchError):
        zd.write_dataset(steps(0, 5), tmp_path / "a", mode="a")


def test_compute_later_makes_arrays_first(tmp_path):
    written = zd.write_dataset(steps(0, 4), tmp_path / "a", compute=False)
    found = xr.open_zarr(tmp_path / "a").load()
    assert np.isnan(found["t"]).all()
    xr.testing.assert_identical(found.drop_vars("t"), steps(0, 4).drop_vars("t"))
    written.compute()
    identical(tmp_path / "a", steps(0, 4))


# --- appending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_append_is_what_xarray_concatenates(tmp_path, format):
    zd.write_dataset(steps(0, 5), tmp_path / "a", format=format)
    zd.write_dataset(steps(5, 9), tmp_path / "a", append="time")
    zd.write_dataset(steps(9, 12, size=3), tmp_path / "a", append_dim="time")
    identical(tmp_path / "a", steps(0, 12))
    assert not (tmp_path / "a.zarr-dask").exists()


def test_append_to_a_dataset_of_xarray(tmp_path):
    steps(0, 5, size=5).to_zarr(tmp_path / "a")
    zd.write_dataset(steps(5, 9), tmp_path / "a", append="time")
    identical(tmp_path / "a", steps(0, 9))


def test_append_without_consolidated_metadata_makes_none(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a", consolidated=False)
    zd.write_dataset(steps(5, 9), tmp_path / "a", append="time")
    assert "consolidated_metadata" not in json.loads((tmp_path / "a/zarr.json").read_text())
    xr.testing.assert_identical(
        xr.open_zarr(tmp_path / "a", consolidated=False).load(), steps(0, 9)
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda ds: ds.isel(lat=slice(None, None, -1)), "'lat'"),
        (lambda ds: ds.drop_vars("t"), "lacks"),
        (lambda ds: ds.drop_vars("time"), "labels cannot be"),
        (lambda ds: ds.isel(lon=slice(2)), "'lon'|'t'"),
        (lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(1, "h")), "exactly"),
        (lambda ds: ds.assign_coords(time=ds.time - np.timedelta64(90, "D")), "in order"),
        (lambda ds: ds.assign_coords(time=ds.time - np.timedelta64(1, "D")), "already"),
        (lambda ds: ds.assign_coords(time=ds.time[[0, 1, 1, 3]].values), "twice"),
        (lambda ds: ds.assign(extra=ds["n"]), "extra"),
        (lambda ds: ds.assign(n=("lat", [1, 2])), "dimension names"),
    ],
)
def test_append_that_would_corrupt_is_refused(tmp_path, change, told):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    before = contents(tmp_path)
    with pytest.raises(DatasetMismatchError, match=told):
        zd.write_dataset(change(steps(5, 9)), tmp_path / "a", append="time")
    assert contents(tmp_path) == before


def contents(place):
    return {
        str(file.relative_to(place)): file.read_bytes()
        for file in sorted(Path(place).rglob("*"))
        if file.is_file()
    }


@pytest.mark.filterwarnings("ignore:Duplicate dimension names")
@pytest.mark.filterwarnings("ignore:.*two dimensions have one name")
def test_append_along_a_dimension_that_a_variable_has_twice_is_refused(tmp_path):
    ds = xr.Dataset({"cov": (("x", "x"), np.ones((3, 3)))})
    zd.write_dataset(ds, tmp_path / "a")
    with pytest.raises(DatasetMismatchError, match="more than once"):
        zd.write_dataset(ds, tmp_path / "a", append="x")
    identical(tmp_path / "a", ds)


def test_missing_variables_are_filled_on_demand(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    lacking = steps(5, 9).drop_vars("t")
    zd.write_dataset(lacking, tmp_path / "a", append="time", missing="fill")
    expected = steps(0, 9).load()
    expected["t"][5:] = np.nan
    identical(tmp_path / "a", expected)
    with pytest.raises(DatasetMismatchError, match="no value of int16"):
        zd.write_dataset(steps(9, 12).drop_vars("n"), tmp_path / "a", append="time", missing="fill")


def test_repeated_append_appends_nothing(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    zd.write_dataset(steps(5, 9), tmp_path / "a", append="time")
    with pytest.warns(ZarrDaskWarning, match="nothing was written"):
        assert zd.write_dataset(steps(5, 9), tmp_path / "a", append="time").is_repeated
    assert zd.write_dataset(steps(5, 9), tmp_path / "a", append="time", resume=True).is_repeated
    identical(tmp_path / "a", steps(0, 9))


def test_overlap_is_replaced_on_demand(tmp_path):
    zd.write_dataset(steps(0, 6), tmp_path / "a")
    zd.write_dataset(steps(4, 9, value=7), tmp_path / "a", append="time", overlap="replace")
    expected = steps(0, 9).load()
    expected["t"][4:] = 7
    identical(tmp_path / "a", expected)
    zd.write_dataset(steps(7, 9, value=8), tmp_path / "a", append="time", overlap="replace")
    expected["t"][7:] = 8
    identical(tmp_path / "a", expected)
    zd.write_dataset(steps(7, 9), tmp_path / "a", append="time", overlap="allow")
    assert xr.open_zarr(tmp_path / "a").sizes["time"] == 11


def test_other_units_are_converted(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    more = steps(5, 9)
    more["time"].encoding = {"units": "hours since 1990-01-01", "dtype": "f8"}
    zd.write_dataset(more, tmp_path / "a", append="time")
    identical(tmp_path / "a", steps(0, 9))


@pytest.mark.skipif(not find_spec("cftime"), reason="calendars need cftime")
def test_dates_are_appended_in_the_stored_calendar(tmp_path):
    noleap = xr.date_range("2000-02-27", periods=3, calendar="noleap", use_cftime=True)
    plain = pd.date_range("2000-03-02", periods=2)
    for name, chunk in (("memory", {}), ("blocks", {"time": 1})):
        ds = xr.Dataset({"t": ("time", [1, 2, 3]), "s": ("time", noleap)}, {"time": noleap})
        zd.write_dataset(ds, tmp_path / name)
        more = xr.Dataset({"t": ("time", [4, 5]), "s": ("time", plain)}, {"time": plain})
        zd.write_dataset(more.chunk(chunk) if chunk else more, tmp_path / name, append="time")
        all_of = xr.date_range("2000-02-27", periods=5, calendar="noleap", use_cftime=True)
        expected = xr.Dataset({"t": ("time", range(1, 6)), "s": ("time", all_of)})
        identical(tmp_path / name, expected.assign_coords(time=all_of))
    leap = more.assign_coords(time=pd.date_range("2004-02-28", periods=2))
    before = contents(tmp_path)
    with pytest.raises((DatasetMismatchError, ValueError)):
        zd.write_dataset(leap, tmp_path / "memory", append="time")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", ["U", "O", "T"])
@pytest.mark.parametrize("how", ["append", "region", "a", "modified"])
def test_the_ends_of_longer_texts_are_not_cut_off(tmp_path, how, kind, in_memory):
    """xarray casts to the encoded type without a look."""
    zd.write_dataset(xr.Dataset({"v": ("t", np.array(["x", "y"]))}), tmp_path / "a")
    of = {"U": None, "O": object, "T": np.dtypes.StringDType()}[kind]
    options = {
        "append": {"append_dim": "t"},
        "region": {"region": {"t": slice(0, 2)}, "mode": "r+"},
        "a": {"mode": "a"},
        "modified": {},
    }[how]
    for texts, fits in ((["b", "äöü"], False), (["b", "ü"], True)):
        values = np.array(texts, of)
        new = xr.Dataset({"v": ("t", values if in_memory else da.from_array(values, chunks=1))})
        if how == "modified":
            new["v"].encoding = dict(xr.open_zarr(tmp_path / "a")["v"].encoding)
        target = tmp_path / ("b" if how == "modified" else "a")
        if fits:
            zd.write_dataset(new, target, **options)
            assert list(map(str, xr.open_zarr(target)["v"].to_numpy()[-2:])) == texts
        else:
            with pytest.raises(DatasetMismatchError, match="Mismatched dtypes for variable 'v'"):
                zd.write_dataset(new, target, **options)


@pytest.mark.parametrize("units", ["seconds", "milliseconds"])
def test_parts_of_units_are_appended(tmp_path, units):
    """xarray decodes such numbers in place, and so changes those that are compared."""
    durations = np.array([500, 1500, 2500, 3500], "m8[us]")
    ds = xr.Dataset({"v": ("t", durations)}, {"t": range(4)})
    encoding = {"v": {"units": units, "dtype": "f8"}}
    zd.write_dataset(ds.isel(t=slice(0, 2)), tmp_path / "a", encoding=encoding)
    zd.write_dataset(ds.isel(t=slice(2, 4)), tmp_path / "a", append_dim="t")
    found = xr.open_zarr(tmp_path / "a", decode_timedelta=True)
    assert found["v"].astype("m8[us]").equals(ds["v"])


def test_longer_texts_are_not_cut_off(tmp_path):
    def named(*names):
        return xr.Dataset({"name": ("x", np.array(names))})

    zd.write_dataset(named("a", "bc"), tmp_path / "a")
    zd.write_dataset(named("d"), tmp_path / "a", append="x")
    with pytest.raises(DatasetMismatchError, match="cut off"):
        zd.write_dataset(named("long"), tmp_path / "a", append="x")
    assert xr.open_zarr(tmp_path / "a")["name"].to_numpy().tolist() == ["a", "bc", "d"]


def test_append_in_any_blocks(tmp_path):
    """What xarray refuses six times: rows of issue 22's table."""
    year = steps(0, 95, size=10)
    for ds in (year.isel(time=slice(3, 95)), year.chunk(time=25), year.chunk(time=(31, 28, 31, 5))):
        zd.write_dataset(ds, tmp_path / "a", mode="w")
        identical(tmp_path / "a", ds)
    zd.write_dataset(year, tmp_path / "a", mode="w")
    zd.write_dataset(steps(95, 115, size=20), tmp_path / "a", append="time")
    identical(tmp_path / "a", steps(0, 115))


def test_second_append_at_the_same_time_is_refused(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    begun, ended = threading.Event(), threading.Event()

    def slow(block):
        begun.set()
        assert ended.wait(30)
        return block

    first = steps(5, 9)
    t = first["t"].data.map_blocks(slow, dtype="f4", meta=np.empty((0, 0, 0), "f4"))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            zd.write_dataset,
            first.assign(t=(first["t"].dims, t, {"units": "K"})),
            tmp_path / "a",
            append="time",
        )
        assert begun.wait(30)
        with pytest.raises(AppendConflictError):
            zd.write_dataset(steps(5, 7, value=3), tmp_path / "a", append="time")
        identical(tmp_path / "a", steps(0, 5))
        ended.set()
        run.result()
    identical(tmp_path / "a", steps(0, 9))


def test_an_append_while_another_is_planned_is_noticed(tmp_path, monkeypatch):
    """The other's labels come later than those that this one has compared with."""
    zd.write_dataset(steps(0, 5), tmp_path)
    plain = dataset_planner.plan_growth

    def slow(*args):
        growth = plain(*args)
        monkeypatch.undo()
        zd.write_dataset(steps(9, 12), tmp_path, append="time")
        return growth

    monkeypatch.setattr(dataset_planner, "plan_growth", slow)
    with pytest.raises(AppendConflictError, match="another one has ended meanwhile"):
        zd.write_dataset(steps(5, 9), tmp_path, append="time")
    expected = xr.concat([steps(0, 5), steps(9, 12)], "time", data_vars="minimal")
    identical(tmp_path, expected)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_appends_of_two_processes_at_once_end_as_one_after_the_other(tmp_path, times):
    for number in range(times):
        place = tmp_path / str(number)
        zd.write_dataset(steps(0, 5), place)
        ends = [(5, 9), (9, 12)]
        errors = together([(place, *days, [], {"append": "time"}) for days in ends])
        refused = {"AppendConflictError", "DatasetMismatchError", "MetadataChangedError"}
        assert set(errors) <= {None, *refused}
        done = [steps(*days) for days, error in zip(ends, errors, strict=True) if error is None]
        assert done  # at least one of them
        identical(place, xr.concat([steps(0, 5), *done], "time", data_vars="minimal"))


def test_append_that_is_computed_later(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    later = zd.write_dataset(steps(5, 9), tmp_path / "a", append="time", compute=False)
    identical(tmp_path / "a", steps(0, 5))
    later.compute()
    identical(tmp_path / "a", steps(0, 9))
    assert not (tmp_path / "a.zarr-dask").exists()


def test_second_append_waits_on_demand(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    begun = threading.Event()
    first = steps(5, 9)

    def slow(block):
        begun.set()
        time.sleep(0.2)
        return block

    t = first["t"].data.map_blocks(slow, dtype="f4", meta=np.empty((0, 0, 0), "f4"))
    with ThreadPoolExecutor(1) as pool:
        ds = first.assign(t=(first["t"].dims, t, {"units": "K"}))
        run = pool.submit(zd.write_dataset, ds, tmp_path / "a", append="time")
        assert begun.wait(30)
        zd.write_dataset(steps(9, 12), tmp_path / "a", append="time", on_conflict="wait")
        run.result()
    identical(tmp_path / "a", steps(0, 12))


def test_stale_plan_of_an_append_is_refused(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    plans = [zd.plan_dataset(steps(5, 9), tmp_path / "a", append="time") for _ in range(2)]
    plans[0].run()
    with pytest.raises(zd.errors.MetadataChangedError):
        plans[1].run()
    identical(tmp_path / "a", steps(0, 9))


# --- processes that are killed --------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_dataset_of_a_killed_process_is_not_visible(tmp_path, format):
    place = tmp_path / "a"
    killed(place, 0, 8, dies_at=2, options={"format": format})
    assert any(place.rglob("*"))  # something was written
    for consolidated in (None, True, False):
        with pytest.raises((FileNotFoundError, KeyError, ValueError)):
            xr.open_zarr(place, consolidated=consolidated)
    with pytest.raises(NodeNotFoundError):
        zd.open_dataset(place)
    zd.write_dataset(steps(0, 8), place, format=format)
    identical(place, steps(0, 8))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dies", [{"shown": True}, {"ends": 0}, {"ends": 1}, {"ends": 4}])
def test_a_dataset_that_is_visible_stays_so_when_its_job_is_ended(tmp_path, format, dies):
    place = tmp_path / "a"
    options = {"format": format, "resume": True}
    killed(place, 0, 8, **dies, options=options)
    before = xr.open_zarr(place, consolidated=True).load()
    assert not zd.verify(place).ok  # its journal is there
    zd.write_dataset(steps(0, 8), place, **options)
    xr.testing.assert_identical(xr.open_zarr(place, consolidated=True).load(), before)
    identical(place, steps(0, 8))
    assert zd.verify(place).ok


def test_a_dataset_that_was_made_is_not_made_again(tmp_path):
    place, options = tmp_path / "a", {"resume": True}
    first = zd.write_dataset(steps(0, 8), place, **options)
    zd.open(place, mode="r+").update_attributes({"title": "mine"})
    plan = zd.plan_dataset(steps(0, 8), place, **options)
    assert "the same job ended" in plan.explain()
    assert "visible together" not in plan.explain()
    again = zd.write_dataset(steps(0, 8), place, **options)
    assert str(again).count("already done at ") == len(again.variables) == len(first.variables)
    assert (again.objects, again.nbytes) == (first.objects, first.nbytes)
    identical(place, steps(0, 8).assign_attrs(title="mine"))
    for another in (steps(0, 8, value=1), steps(0, 8).assign(more=3)):
        with pytest.raises(NodeExistsError):
            zd.write_dataset(another, place, **options)
    (place / "zarr.json").unlink()  # arrays alone are no dataset
    zd.write_dataset(steps(0, 8), place, **options)
    identical(place, steps(0, 8))


def test_arrays_that_a_killed_process_has_left_are_no_group(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "a", "b")
    (tmp_path / "a" / "b" / "zarr.json").unlink()
    zd.write_dataset(steps(0, 4), tmp_path / "a", "b", mode="w")  # without a warning
    (tmp_path / "a" / "b" / "t" / ".zarr-dask-0000000000000000.tmp").touch()  # its lock
    assert zd.verify(tmp_path / "a").ok


def test_killed_append_leaves_the_old_dataset_and_is_resumed(tmp_path):
    place = tmp_path / "a"
    zd.write_dataset(steps(0, 5), place)
    killed(place, 5, 13, dies_at=1, options={"append": "time", "resume": "run"})
    identical(place, steps(0, 5))
    plan = zd.plan_dataset(steps(5, 13), place, append="time", resume="run")
    assert "resumes the job" in plan.explain()
    plan.run()
    identical(place, steps(0, 13))
    assert zd.verify(place).ok


def test_killed_append_is_begun_anew(tmp_path):
    place = tmp_path / "a"
    zd.write_dataset(steps(0, 5), place)
    killed(place, 5, 13, dies_at=1, options={"append": "time"})
    zd.write_dataset(steps(5, 9), place, append="time")
    identical(place, steps(0, 9))
    assert not (tmp_path / "a.zarr-dask").exists()


@pytest.mark.parametrize(("after", "resume"), [(0, True), (1, True), (2, False)])
def test_append_killed_while_it_is_shown_ends_by_itself(tmp_path, after, resume):
    place = tmp_path / "a"
    zd.write_dataset(steps(0, 5), place)
    killed(place, 5, 9, shows=after, options={"append": "time", "resume": resume})
    xr.testing.assert_identical(xr.open_zarr(place, consolidated=True).load(), steps(0, 5))
    with pytest.raises(ResumeError):
        zd.plan_dataset(steps(9, 12), place, append="time")
    if resume:
        assert zd.write_dataset(steps(5, 9), place, append="time", resume=True).is_repeated
        identical(place, steps(0, 9))
    zd.write_dataset(steps(9, 12), place, append="time")
    identical(place, steps(0, 12))
    assert not (tmp_path / "a.zarr-dask").exists()


@pytest.mark.parametrize("shows", [1, 2])
def test_a_reader_sees_no_half_of_an_append_that_is_shown(tmp_path, monkeypatch, shows):
    place = tmp_path / "a"
    for group in ("", "b"):
        zd.write_dataset(steps(0, 5), place, group)
        killed(place / group, 5, 9, shows=shows, options={"append": "time"})
    assert zd.open_dataset(place, consolidated=False).load().identical(steps(0, 5).load())
    (found,) = zd.open_datatree(place, consolidated=False).children.values()
    assert found.to_dataset().load().identical(steps(0, 5).load())

    def ends(store, path):
        finish_commit(LocalStore(place), path, zd.open_group(store, path).node_format)
        return {}

    monkeypatch.setattr(growing, "growing_lengths", ends)
    assert zd.open_dataset(place, consolidated=False).load().identical(steps(0, 9).load())


def test_a_reader_beside_appends_of_its_process_sees_all_of_them_or_none(tmp_path):
    zd.write_dataset(steps(0, 5), tmp_path / "a")
    ends = threading.Event()

    def look():
        seen = []
        while not ends.is_set():
            seen.append(zd.open_dataset(tmp_path / "a", consolidated=False).sizes["time"])
        return seen

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            for day in range(5, 25):
                zd.write_dataset(steps(day, day + 1), tmp_path / "a", append="time")
        finally:
            ends.set()
    assert looking.result() == sorted(looking.result())


@pytest.mark.parametrize(
    "pair",
    [
        [[5], []],
        [[5], [9, 9]],
        [[5.0], [9]],
        [[-5], [9]],
        [[9], [5]],
        [[5], [float("inf")]],
        [[5], [10**30]],
        ["5", "9"],
        [None, [9]],
    ],
    ids=str,
)
def test_what_says_that_an_append_is_shown_was_tampered_with(tmp_path, pair):
    place = tmp_path / "a"
    zd.write_dataset(steps(0, 5), place)
    killed(place, 5, 9, shows=1, options={"append": "time", "resume": True})
    record = tmp_path / "a.zarr-dask/__append/commit.json"
    kept = json.loads(record.read_text())
    kept["arrays"]["time"] = pair
    record.write_text(json.dumps(kept))
    for resume in (True, False):
        with pytest.raises(JournalError, match="is not what an append leaves there"):
            zd.write_dataset(steps(5, 9), place, append="time", resume=resume)


ANOTHER = da.ones((6, 2, 3), dtype="f4")
NAMES = {"dimension_names": ["time", "lat", "lon"]}
GONE = {
    "overwritten": lambda _, *at: zd.to_zarr(ANOTHER, *at, mode="w", **NAMES),
    "swapped": lambda _, *at: zd.to_zarr(ANOTHER, *at, mode="swap", **NAMES),
    "made anew": lambda _, *at: zd.create_array(
        *at, shape=(6, 2, 3), dtype="f4", overwrite=True, **NAMES
    ),
    "removed by others": lambda place, *at: (
        shutil.rmtree(place / "t"),
        zd.to_zarr(ANOTHER, *at, **NAMES),
    ),
    "deleted": lambda _, *at: zd.delete(*at),
    "renamed": lambda place, *_: zd.open_group(place, mode="r+").rename("t", "u"),
}
"""Ways in which the array t of a dataset goes, or becomes another one."""


@pytest.mark.parametrize("around", [False, True], ids=["itself", "the group around"])
@pytest.mark.parametrize("mode", ["w", "a"])
def test_what_replaces_a_group_grows_by_no_append_that_died_there(tmp_path, mode, around):
    """The record that it was to become longer counted for the next arrays of these names."""
    group = "g" if around else ""
    zd.write_dataset(steps(0, 5), tmp_path / "a", group)
    killed(tmp_path / "a" / group, 5, 9, shows=1, options={"append": "time"})
    assert [*tmp_path.rglob("commit.json")]
    if mode == "a":
        zd.create_group(tmp_path / "a", overwrite=True)
    elif around:
        zd.write_dataset(xr.Dataset({"other": ("x", [1])}), tmp_path / "a", mode="w")
    zd.write_dataset(steps(0, 5), tmp_path / "a", group, mode=mode)
    assert not [*tmp_path.rglob("commit.json")]
    zd.write_dataset(steps(5, 6), tmp_path / "a", group, append="time")
    assert zd.open_dataset(tmp_path / "a", group=group).load().identical(steps(0, 6).load())


@pytest.mark.parametrize("deep", [True, False], ids=["from the root", "by its name"])
@pytest.mark.parametrize("how", GONE)
@pytest.mark.filterwarnings("ignore:.* the consolidated metadata of")
def test_what_replaces_an_array_grows_by_no_append_that_died_in_its_group(tmp_path, how, deep):
    """It got three times of fill values."""
    place, at = tmp_path / "a", (tmp_path / "a", "t") if deep else (tmp_path / "a/t", "")
    zd.write_dataset(steps(0, 6), place)
    killed(place, 6, 9, shows=0, options={"append": "time"})
    GONE[how](place, *at)
    with pytest.raises(DatasetMismatchError):
        zd.write_dataset(steps(6, 9), place, append="time")
    lengths = {name: array.shape[0] for name, array in zd.open_group(place).arrays()}
    name = {"deleted": "n", "renamed": "u"}.get(how, "t")
    assert lengths == {"lat": 2, "lon": 3, "time": 9, "n": 9, name: 9 if name == "n" else 6}
    assert not [*tmp_path.rglob("commit.json")]


def test_append_without_labels_killed_while_it_is_shown_is_resumed(tmp_path):
    place = tmp_path / "a"
    zd.write_dataset(steps(0, 5).drop_vars("time"), place)
    options = {"append": "time", "resume": True}
    killed(place, 5, 9, shows=1, drops=["time"], options=options)
    more = steps(5, 9).drop_vars("time")
    zd.write_dataset(more, place, append="time", resume=True)
    identical(place, steps(0, 9).drop_vars("time"))


def test_killed_region_leaves_each_object_old_or_new(tmp_path):
    place, old, new = tmp_path / "a", steps(0, 12, value=-1).load(), steps(0, 12).load()
    zd.write_dataset(old, place)
    options = {"region": "auto"}
    killed(place, 0, 12, dies_at=0, drops=["lat", "lon"], options=options)
    found = read(place)
    assert is_half_way(found, old, new)
    assert not found.identical(new)
    zd.write_dataset(steps(0, 12).drop_vars(["lat", "lon"]), place, **options)
    identical(place, new)


# --- regions and templates ------------------------------------------------------------------------


def test_template_then_regions_by_label(tmp_path):
    place = tmp_path / "a"
    zd.create_dataset(steps(0, 20, size=10), place, chunks={"time": 10})
    made = xr.open_zarr(place)
    assert np.isnan(made["t"]).all()
    for first in range(0, 20, 10):
        part = steps(0, 20).isel(time=slice(first, first + 10))
        zd.write_dataset(part[["t", "n"]], place, region="auto", partial="refuse")
    identical(place, steps(0, 20))


def test_template_makes_no_graph(tmp_path):
    x = da.zeros((35_040, 100, 100), chunks=(1, 100, 100))
    template = xr.Dataset({"t": (("time", "y", "x"), x)}, coords={"y": np.arange(100)})
    zd.create_dataset(template, tmp_path / "warm")
    begun = time.process_time()
    zd.create_dataset(template, tmp_path / "a")
    assert time.process_time() - begun < 1  # xarray takes 5 s; the rest is for a busy machine


def test_regions_leave_all_metadata_alone(tmp_path):
    """Thousands of jobs at once would put the same consolidated metadata again and again."""
    store = Recording(MemoryStore())
    zd.create_dataset(steps(0, 20, size=10), store)
    store.clear()
    part = steps(0, 20).isel(time=slice(10, 20))[["t"]]
    zd.write_dataset(part, store, region="auto", partial="refuse")
    put = {one.key for one in store.requests if one.method.startswith("set")}
    assert put == {"t/c/1/0/0"}
    assert float(zd.open_dataset(store)["t"][15, 0, 0]) == 15.0
    zd.write_dataset(steps(20, 30), store, append="time")
    assert zd.open_dataset(store).sizes["time"] == 30  # an append still renews them


def test_regions_that_share_objects_lose_nothing(tmp_path):
    place = tmp_path / "a"
    zd.create_dataset(steps(0, 100, size=10), place)
    parts = [steps(0, 100).isel(time=slice(n, n + 5)).load() for n in range(0, 100, 5)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: zd.write_dataset(part[["t", "n"]], place, region="auto"), parts))
    identical(place, steps(0, 100))


@pytest.mark.parametrize(
    ("processes", "times"), [(3, 1), pytest.param(20, 20, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(900)
def test_processes_that_share_objects_lose_nothing(tmp_path, processes, times):
    for number in range(times):
        place = tmp_path / str(number)
        days = 7 * processes
        zd.create_dataset(steps(0, days, size=10), place)
        options = {"region": "auto", "partial": "compare"}
        parts = [(first, first + 7) for first in range(0, days, 7)]  # objects are of 10 days
        jobs = [(place, *part, ["lat", "lon"], options) for part in parts]
        assert together(jobs) == [None] * processes
        identical(place, steps(0, days))


def test_region_that_cuts_objects_is_refused_on_demand(tmp_path):
    zd.write_dataset(steps(0, 10, size=10), tmp_path / "a")
    part = steps(0, 10, value=5).isel(time=slice(3, 8))[["t"]].drop_vars(["lat", "lon"])
    with pytest.raises(PartialWriteError):
        zd.write_dataset(part, tmp_path / "a", region="auto", partial="refuse")
    identical(tmp_path / "a", steps(0, 10))
    with_labels = part.drop_vars("time")
    zd.write_dataset(with_labels, tmp_path / "a", region={"time": slice(3, 8)})
    expected = steps(0, 10).load()
    expected["t"][3:8] = 5
    identical(tmp_path / "a", expected)


def test_region_by_position_changes_no_labels(tmp_path):
    """xarray writes values under labels of others."""
    zd.write_dataset(steps(0, 10, size=10), tmp_path / "a")
    part = steps(0, 10, value=5).isel(time=slice(3, 5))[["t"]].drop_vars(["lat", "lon"])
    for wrong in (slice(4, 6), slice(-3, -1)):
        with pytest.raises(DatasetMismatchError, match="labels of 'time' are not those of the"):
            zd.write_dataset(part, tmp_path / "a", region={"time": wrong})
    with pytest.raises(DatasetMismatchError, match="different dimension sizes"):
        zd.write_dataset(part, tmp_path / "a", region={"time": slice(3, 6)})
    identical(tmp_path / "a", steps(0, 10))
    plan = zd.plan_dataset(part, tmp_path / "a", region={"time": slice(-7, -5)})
    assert list(plan.names) == ["t"]
    plan.run()
    expected = steps(0, 10).load()
    expected["t"][3:5] = 5
    identical(tmp_path / "a", expected)
    others = part.assign_coords(time=part["time"] + np.timedelta64(90, "D")).drop_indexes("time")
    zd.write_dataset(others, tmp_path / "a", region={"time": slice(3, 5)})
    assert xr.open_zarr(tmp_path / "a")["time"][3] == others["time"][0]


def test_labels_that_are_not_there_are_refused(tmp_path):
    zd.write_dataset(steps(0, 10), tmp_path / "a")
    with pytest.raises(LabelNotFoundError, match="Not all values"):
        zd.write_dataset(steps(9, 11)[["t"]], tmp_path / "a", region="auto")
    with pytest.raises(LabelNotFoundError, match="append= alone"):
        zd.write_dataset(steps(10, 12), tmp_path / "a", append="time", region="auto")
    with pytest.raises(ValueError, match="both say where"):
        zd.write_dataset(steps(0, 2)[["t"]], tmp_path / "a", append="time", region={"time": "auto"})
    apart = steps(0, 10).isel(time=[1, 3])[["t"]]
    with pytest.raises(DatasetMismatchError, match="non-contiguous"):
        zd.write_dataset(apart, tmp_path / "a", region="auto")
    identical(tmp_path / "a", steps(0, 10))


# --- several arrays of dask -----------------------------------------------------------------------


def test_each_array_has_its_own_description(tmp_path):
    x = da.ones((4, 6), chunks=(2, 6))
    each = [
        {"chunks": (4, 3), "fill_value": -1, "dimension_names": ["a", "b"]},
        {"attributes": {"units": "m"}, "shards": (4, 6), "chunks": (2, 3)},
    ]
    zd.to_zarr([x, x + 1], tmp_path / "a", ["x", "y"], each=each)
    one, other = (zd.open_array(tmp_path / "a", name) for name in "xy")
    assert (one.chunks, one.fill_value, one.dimension_names) == ((4, 3), -1, ("a", "b"))
    assert (other.shards, other.attributes) == ((4, 6), {"units": "m"})
    with pytest.raises(ValueError, match="1 items for 2"):
        zd.plan_write([x, x], tmp_path / "b", ["x", "y"], each=[{}])
    with pytest.raises(TypeError, match="format"):
        zd.plan_write([x, x], tmp_path / "b", ["x", "y"], each=[{}, {"format": "v2"}])
    with pytest.raises(TypeError, match="several"):
        zd.plan_write(x, tmp_path / "b", each=[{}])


# --- opening --------------------------------------------------------------------------------------


def test_stores_are_opened_in_the_words_of_xarray(tmp_path):
    zd.write_dataset(steps(0, 4), tmp_path / "0.zarr")
    zd.write_dataset(steps(4, 9), tmp_path / "1.zarr", format="v2")
    one = zd.open_zarr(tmp_path / "1.zarr", zarr_format=2)
    assert one["t"].chunks[0] == (2, 2, 1)
    xr.testing.assert_identical(one.load(), steps(4, 9))
    for paths in (str(tmp_path / "*.zarr"), [tmp_path / "0.zarr", tmp_path / "1.zarr"]):
        found = zd.open_mfdataset(paths, data_vars="all", compat="no_conflicts", join="outer")
        assert found["t"].chunks[0] == (2, 2, 2, 2, 1)
        xr.testing.assert_identical(found.load(), steps(0, 9))


def test_accessor_compares_and_describes(tmp_path):
    steps(0, 4).zd.to_zarr(tmp_path / "a")
    assert steps(0, 4).zd.compare(tmp_path / "a") == {}
    other = steps(0, 4, value=3).drop_vars("n").assign_attrs(title="others")
    found = other.zd.compare(tmp_path / "a")
    assert found == {"": "attributes", "t": "values", "n": "missing"}
    assert "(2, 2, 3)" in zd.open_dataset(tmp_path / "a").zd.info()
    with_values = steps(0, 4).assign_attrs(n=np.nan, levels=np.array([1.0, 2.0]))
    with_values.zd.to_zarr(tmp_path / "b")
    assert zd.open_dataset(tmp_path / "b").zd.compare(tmp_path / "b") == {}
    assert with_values.assign_attrs(levels=np.zeros(2)).zd.compare(tmp_path / "b").keys() == {""}


def test_a_dataset_whose_job_has_not_ended_is_not_opened_and_says_so(tmp_path):
    def fail(block):
        raise RuntimeError

    lost = da.ones(8, chunks=4).map_blocks(fail, dtype="f8", meta=np.empty(0))
    ds = xr.Dataset({"salt": ("x", lost)}, {"x": np.arange(8)})
    for resume in (True, False):
        with pytest.raises(RuntimeError):
            zd.write_dataset(ds, tmp_path / "a.zarr", resume=resume)
        for opened in (zd.open, zd.open_dataset):
            with pytest.raises(
                zd.errors.NodeNotFoundError, match=r"has not ended.*: salt, x\. .*res"
            ):
                opened(tmp_path / "a.zarr")
    with pytest.raises(zd.errors.NodeNotFoundError, match="Check the path"):
        zd.open(tmp_path / "b.zarr")


@pytest.mark.parametrize(
    "imports",
    [
        "import xarray as xr, zarr_dask as zd",
        "import zarr_dask as zd, xarray as xr; zd.from_zarr",
        "import xarray as xr, zarr_dask.xarray.accessor",
    ],
)
def test_datasets_have_the_accessor_once_both_packages_are_imported(imports):
    code = f"{imports}; print(xr.Dataset({{'a': ('x', [1])}}).zd.to_zarr({{}}).objects)"
    command = [sys.executable, "-W", "error::Warning", "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1\n"


def test_a_group_that_is_open_for_reading_is_refused():
    store = {}
    ds = xr.Dataset({"t": ("x", np.arange(3.0))}, {"x": np.arange(3)})
    zd.write_dataset(ds, store)
    more = ds.assign_coords(x=np.arange(3, 6))
    with pytest.raises(ReadOnlyError, match=r"is open for reading only; open it with mode='r\+'"):
        zd.write_dataset(more, zd.open(store), append="x")
    zd.write_dataset(more, zd.open(store, mode="r+"), append="x")
    assert zd.open_zarr(store).sizes == {"x": 6}


@pytest.mark.parametrize("mode", ["a", "w-"])
def test_what_to_do_with_arrays_without_a_group_is_said_in_words_of_the_call(tmp_path, mode):
    zd.create_array(tmp_path / "g" / "t", shape=(3,), dtype="i8")
    with pytest.raises(NodeExistsError, match="mode='w'") as told:
        zd.write_dataset(steps(0, 3), tmp_path / "g", mode=mode)
    assert "overwrite" not in str(told.value)
    zd.write_dataset(steps(0, 3), tmp_path / "g", mode="w")


@pytest.mark.parametrize("lost", ["gone", "garbled"])
def test_a_journal_that_is_lost_before_the_end_is_no_success(tmp_path, monkeypatch, lost):
    """As a store that answers falsely shows it: nothing may be left out in silence."""
    show, place = GroupCommit.show, tmp_path / "a.zarr"

    def losing(self, targets):
        for journal in tmp_path.rglob("b/*/job.json"):
            journal.unlink() if lost == "gone" else journal.write_text("<html>")
        show(self, targets)

    one = xr.Dataset({name: ("t", da.arange(6, chunks=2)) for name in "ab"})
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, "show", losing)
        with pytest.raises(ResumeError, match="its journal has gone"):
            zd.write_dataset(one, place, resume=True)
    zd.write_dataset(one, place, mode="w")
    monkeypatch.setattr(GroupCommit, "show", losing)
    zd.write_dataset(one, place, append="t", resume=True)
    assert zd.open_array(place, "a").shape == zd.open_array(place, "b").shape == (12,)


@pytest.mark.parametrize("values", [np.arange(3), np.ones(3, bool)])
def test_packings_that_xarray_cannot_apply_are_typed_errors(values):
    """NumPy's error names neither the variable nor its encoding."""
    dataset = xr.Dataset({"v": ("x", values)})
    with pytest.raises(DataTypeError, match=r"'v' of .* cannot be encoded: .*\{'scale_factor': 2"):
        zd.write_dataset(dataset, store := {}, encoding={"v": {"scale_factor": 2}})
    assert not store


@pytest.mark.parametrize("values", [np.array(["ab", "x"]), np.array([b"ab", b"x"])])
def test_missing_values_with_which_xarray_cannot_open_the_dataset_are_refused(values):
    dataset = xr.Dataset({"v": ("x", values)})
    encoding = {"v": {"_FillValue": values[1]}}
    with pytest.raises(DataTypeError, match=r"'v' is stored as .* xarray cannot read in v3"):
        zd.write_dataset(dataset, store := {}, encoding=encoding)
    assert not store
    zd.write_dataset(dataset, store, encoding=encoding, format="v2")
    assert zd.open_array(store, "v")[0] == values[0]


def _failing(block):
    if block.max() > 1:
        raise RuntimeError("no such calibration")
    return block


@pytest.mark.parametrize("is_array", [False, True])
def test_an_error_says_that_what_is_replaced_has_gone(tmp_path, is_array):
    values = da.arange(4, chunks=1).map_blocks(_failing, dtype="i8", meta=np.empty(0, "i8"))
    old, new = (xr.Dataset({"v": ("x", one)}) for one in (da.zeros(4, "i8", chunks=1), values))
    place = tmp_path / "a.zarr"
    zd.write_dataset(old, place, consolidated=False)
    write = (
        (lambda **keywords: zd.to_zarr(values, place / "v", **keywords))
        if is_array
        else lambda **keywords: zd.write_dataset(new, place, **keywords)
    )
    with pytest.raises(RuntimeError, match="calibration") as caught:
        write(mode="w")
    (note,) = caught.value.__notes__
    assert f"{place}{'/v' if is_array else ''} before" in note
    with pytest.raises(RuntimeError, match="calibration") as caught:
        zd.write_dataset(new, tmp_path / "b.zarr")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("gap", [None, np.nan])
def test_missing_texts_become_empty_ones_with_a_warning(format, gap):
    dataset = xr.Dataset({"s": ("x", np.array(["a", gap, "b"], object))})
    with pytest.warns(ZarrDaskWarning, match="'s' has 1 missing value among its texts"):
        zd.write_dataset(dataset, store := {}, format=format)
    assert zd.open_dataset(store)["s"].to_numpy().tolist() == ["a", "", "b"]
    whole = xr.Dataset({"s": ("x", np.array(["a", ""], object)), "t": ("x", [np.nan, 1.0])})
    with warnings.catch_warnings(action="error"):
        zd.write_dataset(whole, {}, format=format)
