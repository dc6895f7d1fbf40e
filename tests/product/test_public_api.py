"""Calls that users try first, coming from NumPy, dask, xarray, zarr-python, h5py and rechunker.

Each works as the habit expects, or is refused with a message that says what to write instead.
"""

from __future__ import annotations

import copy
import inspect
import json
import operator
import pickle
import re
import shutil
from collections.abc import MutableMapping
from dataclasses import fields
from datetime import datetime

import dask
import dask.array as da
import numcodecs
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import zarr_dask as zd
from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.jobs.write.request import WriteKeywords, WriteOptions
from zarr_dask.jobs.write.zarr_python_kwargs import ZarrPythonOptions
from zarr_dask.ome.write import ImageKeywords

# --- results as truth values ----------------------------------------------------------------------


def test_a_report_is_true_only_if_nothing_is_wrong():
    store = {}
    zd.create_array(store, shape=(8,), dtype="i4", chunks=2)[:4] = 1
    report = zd.verify(store)
    assert report
    assert report.ok
    assert "2 stored objects present; contents not read" in str(report).splitlines()[0]
    assert "lost objects cannot be told" in str(report)
    store["c/0"] = b"xy"
    damaged = zd.verify(store, deep="decode")
    assert not damaged
    assert not damaged.ok
    assert "every chunk decoded" in str(damaged).splitlines()[0]


def test_with_receipts_absent_objects_are_judged(tmp_path):
    manifest = tmp_path / "manifest.jsonl"
    zd.to_zarr(da.ones(8, chunks=2), tmp_path / "a.zarr", manifest=manifest)
    assert zd.verify(tmp_path / "a.zarr", manifest=manifest)
    (tmp_path / "a.zarr" / "c" / "1").unlink()
    report = zd.verify(tmp_path / "a.zarr", manifest=manifest)
    assert not report
    assert "cannot be told" not in str(report)
    assert "cannot be told" in str(zd.verify(tmp_path / "a.zarr"))


def test_results_are_one_line_in_a_console_and_text_in_a_notebook(tmp_path):
    x = da.ones((4, 4), chunks=2)
    url = tmp_path / "a.zarr"
    results = [
        zd.plan_write(x, url),
        zd.to_zarr(x, url),
        zd.verify(url),
        zd.compare(url, url),
        zd.inventory(url),
        zd.plan_rechunk(url, tmp_path / "b.zarr", chunks=4),
        zd.rechunk(url, tmp_path / "b.zarr", chunks=4),
        zd.plan_copy(url, tmp_path / "c.zarr"),
        zd.copy(url, tmp_path / "c.zarr"),
    ]
    for one in results:
        assert repr(one).startswith(f"<{type(one).__name__}: ")
        assert "\n" not in repr(one)
        assert len(repr(one)) < 200
        assert str(one).splitlines()[0][:20] in repr(one)
        assert one._repr_html_().startswith("<")


def results_of_public_functions():
    """Yield the name of each class of this package that a public function is said to return."""
    for module in (zd, zd.ome):
        for name in module.__all__:
            returned = getattr(getattr(module, name), "__annotations__", {}).get("return", "")
            for word in re.findall(r"\w+(?:Plan|Report|Migration)\b", str(returned)):
                if word != "AnyPlan":
                    yield word


def test_results_of_public_functions_are_public_and_short():
    found = set(results_of_public_functions())
    assert {"IngestPlan", "AppendReport", "DatasetPlan", "ImageWritePlan", "OmeMigration"} <= found
    for name in found:
        of_images = name.startswith(("Image", "Ome"))
        assert issubclass(getattr(zd.ome if of_images else zd, name), InWords), name


def test_completion_shows_what_users_need(tmp_path):
    x = da.ones((4, 4), chunks=2)
    plan, array = zd.plan_write(x, tmp_path / "a.zarr"), zd.array([1])
    shown = {name for name in dir(plan) if not name.startswith("_")}
    assert {"run", "explain", "memory", "tasks", "requests", "price", "to_json"} <= shown
    assert not shown & {"at_once", "withdraw", "panel", "prefetched", "begun"}
    shown = {name for name in dir(array) if not name.startswith("_")}
    assert {"shape", "attrs", "to_dask", "append", "oindex"} <= shown
    assert not shown & {"check_no_output", "reading_from", "source", "token", "reader", "cast"}
    assert array.token  # hidden, not removed
    with pytest.raises(AttributeError, match="absent"):
        hides("absent")(type(plan))


# --- handles follow their node --------------------------------------------------------------------


def test_handles_follow_their_array(tmp_path):
    a = zd.create_array(tmp_path, "a", shape=(2, 3), dtype="i4", chunks=(2, 3))
    b = zd.open(tmp_path / "a", mode="r+")
    lazy, view, packed = a.to_dask(), a.lazy, pickle.dumps(a)
    tokens = {a.token}
    assert a.append([[1, 1, 1]]) is a
    tokens.add(a.token)
    assert a.shape == b.shape == pickle.loads(pickle.dumps(b)).shape == (3, 3)
    b[:] = 5
    assert (a[...] == 5).all()
    assert lazy.shape == view.shape == pickle.loads(packed).shape == (2, 3)
    assert (lazy.compute() == 5).all()
    zd.to_zarr(da.ones((2, 3), dtype="i4"), tmp_path, "a", append=0)
    assert a.shape == b.shape == (5, 3)
    assert a.resize((1, 3)) is a
    assert b[...].tolist() == [[5, 5, 5]]
    tokens.add(a.token)
    assert len(tokens) == 3
    assert len({a, b}) == 2
    with pytest.raises(TypeError, match="one tuple"):
        a.resize(3, 3)


def test_a_plan_does_not_follow(tmp_path):
    a = zd.create_array(tmp_path, shape=(2, 3), dtype="f8", chunks=(2, 3))
    plan = zd.plan_write(da.ones((2, 3)), a)
    a.append(np.zeros((2, 3)))
    assert plan.target.shape == (2, 3)


@pytest.mark.parametrize("kind", ["array", "group"])
def test_attributes_are_written(kind):
    store = {}
    options = {"shape": 3, "dtype": "i2"} if kind == "array" else {}
    node = getattr(zd, f"create_{kind}")(store, attributes={"x": [1, {"y": 2}]}, **options)
    other = zd.open(store)
    node.attrs["units"] = "m"
    node.attrs.update(title="t", n=np.int64(3))
    expected = {"x": [1, {"y": 2}], "units": "m", "title": "t", "n": 3}
    assert node.attrs == other.attrs == zd.open(store).attributes == expected
    del node.attrs["units"]
    assert node.attrs.pop("title") == "t"
    assert dict(other.attrs) == zd.open(store).attrs.asdict() == {"x": [1, {"y": 2}], "n": 3}
    assert json.loads(json.dumps(node.attributes)) == node.attributes
    assert type(copy.deepcopy(node.attributes)) is dict
    with pytest.raises(KeyError):
        del node.attrs["no"]
    with pytest.raises(zd.errors.ReadOnlyError):
        other.attrs["a"] = 1
    node.attrs.clear()
    assert not zd.open(store).attrs


def test_a_change_that_would_be_lost_is_refused():
    a = zd.create_array({}, shape=3, dtype="i2", attributes={"x": [1, {"y": 2}]})
    for change in (
        lambda: a.attributes.update(u=1),
        lambda: a.attributes.__setitem__("u", 1),
        lambda: a.attributes["x"].append(1),
        lambda: a.attrs["x"][1].update(y=3),
        lambda: a.attrs["x"].__setitem__(0, 3),
    ):
        with pytest.raises(TypeError, match=r"node\.attrs\['units'\] = 'm'"):
            change()


# --- groups are mappings --------------------------------------------------------------------------


def test_a_group_is_a_mapping():
    group = zd.open({}, mode="a")
    assert isinstance(group, MutableMapping)
    assert group
    assert len(group) == 0
    group["x"] = np.arange(3)
    group["t"] = ["a", "bc"]
    group.update(s=5.0, u=[1, 2])
    group.require_group("below/deep")["y"] = np.ones((2, 3))
    assert list(group) == list(group.keys()) == sorted(["x", "t", "s", "u", "below"])
    assert [type(node).__name__ for node in group.values()] == ["Group"] + 4 * ["Array"]
    assert dict(group.items()).keys() == dict(group).keys()
    assert group["t"][...].tolist() == ["a", "bc"]
    assert group["s"][()] == 5
    assert group["below"]["deep/y"].shape == (2, 3)
    assert group.get("nope", 7) == 7
    assert group._ipython_key_completions_() == list(group)
    assert group.setdefault("x", [1]).shape == (3,)
    assert group.members(max_depth=None)[-1][0] == "x"
    del group["x"]
    assert group.pop("u")
    assert group.array_keys() == ["s", "t"]
    assert group.group_keys() == ["below"]
    assert {group: 1}[group] == 1
    assert group != zd.open(group.store, mode="r+")
    group.clear()
    assert not list(group)


def test_keys_that_name_no_node():
    group = zd.create_group({})
    group["temp"] = [1.0]
    for key in ("tmp", "../x", "", 0, None, b"temp", ("temp",), "temp/x"):
        assert (key in group) is (key == "")
    with pytest.raises(KeyError, match=r"no 'tmp/zarr.json'.*has 'temp'.*Did you mean 'temp'"):
        group["tmp"]
    for key in ("../x", 0):
        with pytest.raises(KeyError, match="names no node"):
            group[key]
    assert group.get("../x") is group.get(0) is None
    for index in (slice(None), ..., (0, 1)):
        with pytest.raises(TypeError, match=r"group\['name'\]\[...\]"):
            group[index]
    with pytest.raises(KeyError):
        del group["tmp"]


@pytest.mark.parametrize(
    ("value", "instead"), [(da.ones(3), "to_zarr"), (zd.array([1]), "copy")], ids=["dask", "node"]
)
def test_what_a_group_does_not_take_says_what_does(value, instead):
    group = zd.create_group({})
    with pytest.raises(TypeError, match=instead):
        group["y"] = value
    assert "y" not in group


def test_assignment_replaces_nothing():
    group = zd.create_group({})
    group["x"] = [1, 2]
    with pytest.raises(zd.errors.NodeExistsError):
        group["x"] = [3]
    assert group["x"][...].tolist() == [1, 2]


# --- creating -------------------------------------------------------------------------------------


def test_open_creates():
    store = {}
    assert isinstance(zd.open(store, mode="a"), zd.Group)
    assert zd.open(store, "a", mode="w-", shape=4, dtype="f4", chunks=2).chunks == (2,)
    assert zd.open(store, "a", mode="a", shape=(4,), dtype="f4").shape == (4,)
    zd.open(store, "a", mode="r+")[:] = 3
    assert zd.open(store, "a", mode="w", shape=4, dtype="f4")[...].tolist() == [0] * 4
    assert zd.open_group(store, "g", mode="w", attributes={"n": 1}).attrs["n"] == 1
    assert zd.open_array(store, "b", mode="a", data=[1, 2])[...].tolist() == [1, 2]
    for options, error, says in (
        ({"path": "a", "mode": "w-", "shape": 4, "dtype": "f4"}, FileExistsError, "exists"),
        ({"path": "a", "mode": "a", "shape": 5, "dtype": "f4"}, FileExistsError, r"not \(5,\)"),
        ({"path": "a", "shape": 5}, TypeError, "mode='a', 'w' or 'w-'"),
        ({"path": "a", "mode": "x"}, ValueError, "Use 'w-'"),
        ({"path": "c", "mode": "w", "dtype": "f4"}, TypeError, "needs shape="),
        ({"path": "g", "mode": "a", "shape": 5}, TypeError, "is a group"),
    ):
        with pytest.raises(error, match=says):
            zd.open(store, **options)
    with pytest.raises(TypeError, match="shape="):
        zd.open_array(store, "c", mode="w")


def test_values_are_written_before_the_array_is_seen(tmp_path):
    from zarr_dask.stores import LocalStore, Recording

    store = Recording(LocalStore(str(tmp_path)))
    zd.create_array(store, data=np.arange(4), chunks=2)
    puts = [one for one in store.requests if one.method in {"set", "set_if"}]
    written = [one.key for one in puts if "zarr" in one.key or one.key.startswith("c/")]
    assert written[-1] == "zarr.json"
    assert zd.load(tmp_path).tolist() == [0, 1, 2, 3]


def test_values_that_cannot_be_held_leave_nothing():
    store = {}
    with pytest.raises(zd.errors.DataTypeError):
        zd.create_array(store, data=["a", "b"], dtype="f4")
    with pytest.raises(zd.errors.GridError, match="shape"):
        zd.create_array(store, data=np.ones(3), shape=4)
    assert not store


def test_arrays_in_one_call(tmp_path):
    assert zd.array([[1, 2]])[...].tolist() == [[1, 2]]
    assert zd.zeros(3)[...].tolist() == zd.empty(3)[...].tolist() == [0, 0, 0]
    assert zd.ones((1, 2), dtype="i2")[...].tolist() == [[1, 1]]
    assert zd.full(2, 7.5)[...].tolist() == [7.5, 7.5]
    like = zd.ones((6, 4), tmp_path / "a.zarr", chunks=2, dtype="i2")
    for made, value in (
        (zd.zeros_like(like), 0),
        (zd.empty_like(like), 0),
        (zd.ones_like(like), 1),
        (zd.full_like(like, 5), 5),
    ):
        assert (made.shape, made.chunks, made.dtype) == ((6, 4), (2, 2), np.dtype("i2"))
        assert (made[...] == value).all()
    assert zd.zeros_like(np.ones((2, 3), "u1"), chunks=1).dtype == np.uint8
    zd.save(tmp_path / "b.zarr", salt=[1.0], depth=np.arange(3))
    assert zd.load(tmp_path / "b.zarr")["depth"].tolist() == [0, 1, 2]
    zd.save(tmp_path / "c.zarr", [1, 2, 3])
    assert zd.load(tmp_path / "c.zarr").tolist() == [1, 2, 3]
    zd.save({}, [1], [2])
    with pytest.raises(FileExistsError):
        zd.save(tmp_path / "c.zarr", [1])


@pytest.mark.parametrize("function", ["create_array", "to_zarr", "rechunk"])
@pytest.mark.parametrize(
    ("grids", "chunks", "shards"),
    [
        ({"chunks": -1}, (100, 200), None),
        ({"chunks": False}, (100, 200), None),
        ({"chunks": (-1, 5)}, (100, 5), None),
        ({"chunks": "10kB"}, (50, 50), None),
        ({"chunks": {"x": 7, "y": 20}}, (20, 7), None),
        ({"chunks": 30, "shards": False}, (30, 30), None),
        ({"chunks": 25, "shards": "40kB"}, (25, 25), (100, 100)),
        ({"chunks": 25, "shards": "auto"}, (25, 25), (100, 200)),
        ({"chunks": 25, "shards": {"y": -1, "x": 50}}, (25, 25), (100, 50)),
        ({"chunks": "4kB", "shards": (50, 100)}, (25, 25), (50, 100)),
    ],
    ids=str,
)
def test_one_language_for_grids(function, grids, chunks, shards):
    x = da.ones((100, 200), chunks=(50, 50), dtype="f4")
    if function == "create_array":
        made = zd.create_array(
            {}, shape=(100, 200), dtype="f4", dimension_names=["y", "x"], **grids
        )
    elif function == "to_zarr":
        zd.to_zarr(x, target := {}, dimension_names=["y", "x"], **grids)
        made = zd.open(target)
    else:
        source = zd.create_array({}, data=np.ones((100, 200), "f4"), dimension_names=["y", "x"])
        zd.rechunk(source, target := {}, **grids)
        made = zd.open(target)
        assert (made[...] == 1).all()
    assert (made.chunks, made.shards) == (chunks, shards)


@pytest.mark.parametrize(
    ("codecs", "name"),
    [
        (numcodecs.Zstd(3), "zstd"),
        ([numcodecs.LZ4()], "numcodecs.lz4"),
        ([zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec(level=4)], "zstd"),
        (numcodecs.Blosc("zstd"), "blosc"),
        ("zstd", "zstd"),
        ({"id": "zlib", "level": 3}, "numcodecs.zlib"),
    ],
    ids=str,
)
def test_codecs_of_other_libraries(codecs, name):
    made = zd.create_array({}, data=np.arange(100), codecs=codecs)
    assert made.codecs[-1].name == name
    assert made[...].tolist() == list(range(100))
    zd.to_zarr(da.arange(100), target := {}, codecs=codecs)
    assert zd.open(target).codecs[-1].name == name


@pytest.mark.parametrize(
    ("codec", "meant"), [("zst", "zstd"), ("lz4", "numcodecs.lz4"), ("Gzip", "gzip")]
)
def test_a_codec_that_is_meant(codec, meant):
    with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
        zd.create_array({}, shape=3, dtype="i4", codecs=codec)


@pytest.mark.parametrize("format", [2, "2", "v2"], ids=repr)
def test_formats_by_number(format):
    assert zd.create_array(store := {}, shape=3, dtype="i4", format=format).format == "v2"
    assert zd.open(store, zarr_format=2).format == zd.open(store, format=format).format == "v2"


# --- names of other libraries ---------------------------------------------------------------------


def test_names_of_zarr_python():
    a = zd.create_array({}, "x/y", shape=(10, 20), dtype="f4", chunks=5, shards=10)
    a[:3] = 1
    assert (a.name, a.basename) == ("/x/y", "y")
    assert a.url.endswith("/x/y")
    assert (a.nchunks, a.cdata_shape, a.nchunks_initialized) == (8, (2, 4), 8)
    assert "(5, 5)" in str(a.info)
    assert a.get_basic_selection((0, slice(2))).tolist() == [1, 1]
    assert a.get_orthogonal_selection(([0, 9], [1])).tolist() == [[1], [0]]
    assert a.get_coordinate_selection(([0, 9], [1, 1])).tolist() == [1, 0]
    assert a.get_block_selection((0, 1)).shape == (10, 10)
    a.set_basic_selection((slice(None), 0), 4)
    a.set_orthogonal_selection(([0], [1]), 5)
    a.set_coordinate_selection(([1], [1]), 6)
    assert a[:2, :2].tolist() == [[4, 5], [4, 6]]
    out = np.empty(2, "f4")
    assert a.get_basic_selection((0, slice(2)), out=out) is out
    with zd.open(a.store) as group:
        assert group.name == "/"
        assert "v3" in str(group.info)
        group.close()


@pytest.mark.parametrize(
    "name", ["mean", "T", "astype", "compute", "compressors", "shap", "isel", "mode"]
)
def test_attributes_that_an_array_has_not(name):
    a = zd.zeros(3)
    assert not hasattr(a, name)
    with pytest.raises(AttributeError, match=rf"zarr_dask.Array has no '{name}'\. \w"):
        getattr(a, name)


@pytest.mark.parametrize(
    "name", ["read_zarr", "open_consolidated", "group", "tree", "consolidate_metadata", "verfy"]
)
def test_functions_that_the_package_has_not(name):
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'\. \w"):
        getattr(zd, name)


def test_only_public_names_are_shown():
    shown = [name for name in dir(zd) if not name.startswith("__")]
    assert shown == sorted(zd.__all__)
    for name in shown:
        assert getattr(zd, name).__doc__


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: zd.open({}, mod="r"), "mode"),
        (lambda: zd.create_array({}, shape=3, dtype="f4", dim_names=["x"]), "dimension_names"),
        (lambda: zd.create_array({}, shape=3, dtype="f4", chunck=3), "chunks"),
        (lambda: zd.create_group({}, attribute={}), "attributes"),
    ],
    ids=["mod", "dim_names", "chunck", "attribute"],
)
def test_a_keyword_that_is_meant(call, meant):
    with pytest.raises(TypeError, match=f"Did you mean '{meant}'"):
        call()


def test_two_names_of_one_thing():
    zd.create_array(store := {}, "a", shape=3, dtype="f4", dims=["x"], attrs={"n": 1})
    assert zd.open(store, component="a").dimension_names == ("x",)
    with pytest.raises(TypeError, match="two names of one thing"):
        zd.open(store, component="a", path="a")


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [None, 5, b"a.zarr", ["a.zarr", "b.zarr"]], ids=str)
def test_what_names_no_place_is_a_type_error(place):
    with pytest.raises(TypeError, match="does not name a store") as caught:
        zd.open(place)
    assert not isinstance(caught.value, OSError)


def test_a_file_of_another_format(tmp_path):
    (tmp_path / "a.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(FileNotFoundError, match=r"xarray\.open_dataset"):
        zd.open(tmp_path / "a.nc")
    zd.create_group(tmp_path / "temp.zarr")
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'temp\.zarr'"):
        zd.open(tmp_path / "tmp.zarr")


def test_versions(capsys):
    zd.show_versions()
    shown = capsys.readouterr().out
    assert f"numpy          {np.__version__}" in shown


# --- writing --------------------------------------------------------------------------------------


def test_values_that_are_no_dask_arrays_are_written():
    for values in (np.arange(4), [1, 2, 3], [[1, 2], [3, 4]], 5.5, ["a", "bc"]):
        zd.to_zarr(values, store := {})
        assert zd.load(store).tolist() == np.asarray(values).tolist()
    source = zd.array([1, 2, 3, 4])
    zd.to_zarr(source, store := {}, path="a")
    zd.to_zarr(source.lazy[1:3], store, "b")
    assert [values.tolist() for values in zd.load(store).values()] == [[1, 2, 3, 4], [2, 3]]
    reports = zd.to_zarr([da.ones(3), np.ones(2)], {}, ["a", "b"])
    assert [report.objects for report in reports] == [1, 1]


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"chuncks": 5}, "Did you mean 'chunks'"),
        ({"regoin": np.s_[:5]}, "Did you mean 'region'"),
        ({"write_empty_chunks": True}, "fill value are never stored"),
        ({"consolidated": True}, "zarr_dask.consolidate"),
        ({"safe_chunks": True}, "Did you mean 'partial'"),
        ({"path": "a", "component": "b"}, "two names of one thing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "says",
)
def test_keywords_of_a_write_that_are_meant(keywords, says):
    with pytest.raises(TypeError, match=says):
        zd.to_zarr(da.ones(10), {}, **keywords)


def test_names_of_dask_and_xarray_for_a_write():
    zd.to_zarr(da.ones(4), store := {}, path="a", dims=["t"], attrs={"n": 1}, zarr_format=3)
    zd.to_zarr(da.ones(4), store, path="a", append_dim="t")
    made = zd.open(store, "a")
    assert (made.shape, made.dimension_names, made.attributes) == ((8,), ("t",), {"n": 1})
    assert zd.from_zarr(store, path="a").shape == (8,)


def test_a_region_replaces_nothing(tmp_path):
    zd.to_zarr(da.ones(10, chunks=5), tmp_path / "a.zarr")
    for mode in ("w", "w-"):
        with pytest.raises(ValueError, match="mode='r\\+'"):
            zd.to_zarr(da.zeros(5), tmp_path / "a.zarr", region=np.s_[:5], mode=mode)
    assert zd.load(tmp_path / "a.zarr").sum() == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"append": 0}, "first piece"),
        ({"region": np.s_[:2]}, "create_array"),
        ({"mode": "r+"}, "leave it out"),
    ],
    ids=["append", "region", "mode"],
)
def test_where_nothing_is_yet(options, says):
    with pytest.raises(FileNotFoundError, match=says):
        zd.to_zarr(da.ones(2), {}, **options)


def test_names_of_rechunker():
    source = zd.array(np.arange(8), chunks=2)
    zd.rechunk(source, target_store=(store := {}), target_chunks=4, max_mem="1GB")
    assert zd.open(store).chunks == (4,)
    with pytest.raises(TypeError, match="Did you mean 'max_mem'"):
        zd.rechunk(source, {}, chunks=4, max_memory="1GB")


def test_a_job_that_has_ended_answers_the_same_call(tmp_path):
    url = tmp_path / "x.zarr"
    x = da.ones((8, 8), chunks=4)
    first = zd.to_zarr(x, url, resume=True)
    written = (url / "zarr.json").stat().st_mtime_ns
    again = zd.to_zarr(x, url, resume=True)
    assert str(again).startswith("already done at ")
    assert (again.objects, again.stored) == (first.objects, first.stored)
    assert (url / "zarr.json").stat().st_mtime_ns == written
    assert "nothing is left to do" in str(zd.plan_write(x, url, resume=True))
    with pytest.raises(FileExistsError):
        zd.to_zarr(x + 1, url, resume=True)
    anew = zd.to_zarr(x, url, resume=True, overwrite=True)
    assert not anew.already_done
    zd.create_array(url, data=np.zeros((8, 8)), overwrite=True)
    with pytest.raises(FileExistsError):
        zd.to_zarr(x, url, resume=True)


def test_the_folder_beside_says_what_it_is(tmp_path):
    def fails(block):
        raise ValueError("a block that fails")

    x = da.ones((8, 8), chunks=4)
    with pytest.raises(ValueError, match="fails"):
        zd.to_zarr(x.map_blocks(fails, dtype="f8"), tmp_path / "x.zarr")
    readme = tmp_path / "x.zarr.zarr-dask" / "README.txt"
    assert "May it be removed?" in readme.read_text()
    zd.to_zarr(x, tmp_path / "x.zarr", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


# --- help -----------------------------------------------------------------------------------------


def functions():
    return [name for name in zd.__all__ if inspect.isfunction(getattr(zd, name))]


@pytest.mark.parametrize("name", functions())
def test_help_explains_every_argument(name):
    function = getattr(zd, name)
    doc = inspect.getdoc(function)
    explained = _explanations(doc)
    for parameter in inspect.signature(function).parameters.values():
        if name in {"zeros", "empty", "ones", "zeros_like", "empty_like", "ones_like"}:
            continue
        stars = {"VAR_KEYWORD": "**", "VAR_POSITIONAL": "*"}.get(parameter.kind.name, "")
        said = explained.get(f"{stars}{parameter.name}", explained.get(parameter.name, ""))
        assert len(said) > 9, parameter.name
        if not stars:
            assert not re.match(r"As for `\w+`\.$", said), parameter.name


def _explanations(doc):
    """The text of each parameter of a numpydoc docstring."""
    found, names = {}, []
    for line in doc.partition("Parameters\n----------\n")[2].splitlines():
        if not line.strip():
            break
        if line.startswith(" "):
            for one in names:
                found[one] = f"{found[one]} {line.strip()}".strip()
        else:
            names = [part.strip() for part in line.split(",")]
            found |= dict.fromkeys(names, "")
    return found


@pytest.mark.parametrize(
    ("path", "inside"), [("data.zarr/a", "a"), ("a", "a"), ("data.zarr", ""), ("", "")]
)
def test_archives_with_and_without_the_folder_of_their_entries(tmp_path, path, inside):
    zd.create_group(tmp_path / "data.zarr")["a"] = [1, 2]
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path, "data.zarr")
    node = zd.open(tmp_path / "x.zip", path)
    assert node.path == inside
    assert list(node) == (["a"] if inside == "" else [1, 2])
    assert zd.open(f"{tmp_path}/x.zip/data.zarr/{inside}".rstrip("/")).attributes == {}


# --- small things ---------------------------------------------------------------------------------


def test_a_text_is_no_index():
    with pytest.raises(IndexError, match="not a group"):
        zd.zeros(3)["temp"]


def test_a_dimension_that_is_meant():
    zd.to_zarr([[1.0]], store := {}, dims=["time", "x"])
    with pytest.raises(ValueError, match="Did you mean 'time'"):
        zd.to_zarr([[1.0]], store, append="tim")
    with pytest.raises(ValueError, match=r"it has \['time', 'x'\]\. Did you mean 'time'"):
        zd.to_zarr([[1.0]], store, region={"tme": slice(0, 1)})


def test_a_digest_of_an_array_in_a_group():
    zd.save(store := {}, a=[1, 2])
    assert (
        zd.digest(store, "a") == zd.digest(zd.open(store), path="a") == zd.digest(np.array([1, 2]))
    )


def test_what_is_logged(tmp_path, caplog):
    with caplog.at_level("INFO", logger="zarr_dask"):
        zd.to_zarr(da.ones(4), tmp_path / "a.zarr")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["begin", "written"]
    assert "a.zarr" in caplog.records[1].message


def test_short_words_for_selectors_and_comparisons():
    a = zd.zeros(3)
    assert len(repr(a.oindex)) < 200
    assert "with a dask array" in str(zd.compare(a, da.zeros(3)))


def test_handles_follow_what_another_process_has_appended(tmp_path):
    a = zd.create_array(tmp_path / "a.zarr", shape=(2,), dtype="f8", chunks=2)
    with dask.config.set(scheduler="processes", num_workers=1):
        zd.to_zarr(da.ones(2), a, append=0)
    assert a.shape == (4,)
    assert a[2:].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("Array", "open_array"), ("Group", "open_group"), ("View", "lazy"), ("Writer", "attach")],
)
def test_types_that_functions_make_are_not_called(name, instead):
    with pytest.raises(TypeError, match=rf"zarr_dask\..*{instead}"):
        getattr(zd, name)("o.zarr")


def test_operators_say_what_reads():
    array = zd.array(np.arange(4))
    for call in (
        lambda: array + 1,
        lambda: 1 - array,
        lambda: -array,
        lambda: array > 0,
        lambda: array.__eq__(3),
    ):
        with pytest.raises(TypeError, match=r"array\[\.\.\.\].*to_dask"):
            call()
    ones = np.ones(4)
    for sum_ in (array + ones, ones + array, array + da.ones(4), da.ones(4) + array):
        np.testing.assert_array_equal(sum_, np.arange(4) + 1)
    np.testing.assert_array_equal(array * np.float64(2) == ones * 2, [False, True, False, False])
    assert array != zd.array(np.arange(4))
    assert {array: 1}[array] == 1
    assert float(zd.array(2.5)) == int(zd.array(2)) + 0.5


def test_a_node_that_is_meant_by_a_path():
    store = {}
    zd.save(store, temp=[1.0], salt=[2.0])
    with pytest.raises(FileNotFoundError, match=r"has 'salt', 'temp'\. Did you mean 'temp'"):
        zd.from_zarr(store, "tmp")
    with pytest.raises(FileNotFoundError, match="no Zarr array or group"):
        zd.open({}, "tmp")


@pytest.mark.parametrize("call", [{"url": "htp://host/a"}, {"storage_options": {"anon": True}}])
def test_what_no_store_takes_is_a_value_error(tmp_path, call):
    with pytest.raises(ValueError, match=r"anon|Did you mean 'http'") as caught:
        zd.open(**{"url": tmp_path, **call})
    assert isinstance(caught.value, OSError)


def test_an_attribute_that_is_no_json_is_named():
    with pytest.raises(ValueError, match=r"attributes\.when: .*isoformat"):
        zd.create_group({}, attributes={"n": 1, "when": datetime(2020, 1, 1)})  # noqa: DTZ001


def test_a_node_opened_for_reading_says_how_to_write():
    with pytest.raises(PermissionError, match=r"mode='r\+'"):
        zd.open(zd.zeros(3).store)[0] = 1


def test_a_migration_to_the_same_format_says_so():
    store = zd.create_group({}).store
    assert str(zd.plan_migration(store)).endswith("nothing to do: it is v3 already")


@pytest.mark.parametrize("job", ["rechunk", "copy"])
def test_rechunkings_and_copies_that_have_ended_answer_the_same_call(tmp_path, job):
    def run(**options):
        if job == "rechunk":
            return zd.rechunk(tmp_path / "a", tmp_path / "b", chunks=8, resume=True, **options)
        return zd.copy(tmp_path / "a", tmp_path / "b", resume=True, **options)

    zd.array(np.arange(64), tmp_path / "a", chunks=4)
    first = run()
    again = run()
    assert (first.already_done, again.tasks, again.stored) == ("", 0, first.stored)
    assert str(again).startswith("already done at ")
    assert not run(overwrite=True).already_done
    zd.delete(tmp_path / "b")
    assert not run().already_done
    assert zd.load(tmp_path / "b").tolist() == list(range(64))


def test_an_option_of_a_write_is_in_one_place():
    options = {field.name for field in fields(WriteOptions)}
    assert set(WriteKeywords.__annotations__) == options | set(ZarrPythonOptions.__annotations__)
    for function in (zd.plan_write, zd.to_zarr):
        assert options < set(inspect.signature(function).parameters)


def test_options_that_mean_nothing_to_datasets_are_refused():
    with pytest.raises(TypeError, match="fill_value"):
        zd.to_zarr(xr.Dataset({"a": ("x", [1])}), {}, fill_value=1)


def test_values_that_cannot_be_saved_leave_nothing():
    store = {}
    with pytest.raises(TypeError, match="not a text"):
        zd.save(store, a=[1], b=object())
    assert store == {}


MASKED = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])
MASKED_WRITES = {
    "to_zarr": lambda store: zd.to_zarr(MASKED, store),
    "save": lambda store: zd.save(store, MASKED),
    "create_array": lambda store: zd.create_group(store).create_array("a", data=MASKED),
    "write": lambda store: zd.zeros(3, store, dtype="f4").write(slice(0, 3), MASKED),
    "append": lambda store: zd.zeros(3, store, dtype="f4").append(MASKED),
    "assignment": lambda store: operator.setitem(zd.zeros(3, store), ..., MASKED),
    "oindex": lambda store: operator.setitem(zd.zeros(3, store).oindex, [2, 1, 0], MASKED),
}


@pytest.mark.parametrize("name", MASKED_WRITES)
def test_masked_values_are_refused(name):
    store = {}
    with pytest.raises(zd.errors.DataTypeError, match=r"1 elements are masked.*filled"):
        MASKED_WRITES[name](store)
    assert not any("c/" in key for key in store)
    whole = np.ma.masked_array([1.0, 2.0])
    assert zd.create_array({}, data=whole)[...].tolist() == [1.0, 2.0]


def test_images_take_all_keywords_of_their_plan():
    own = {*inspect.signature(zd.ome.write).parameters} - {"progress", "resume", "journal"}
    planned = {*inspect.signature(zd.ome.plan_write).parameters}
    assert own | {*ImageKeywords.__annotations__} == planned | {"options"}


def test_arrays_of_a_group_take_the_name_as_zarr_python_does():
    group = zd.create_group({})
    assert group.create_array(name="a", shape=3, dtype="i4", dims=["x"]).path == "a"
    assert group.require_array(name="a", shape=3, dtype="i4").dimension_names == ("x",)
    assert group.create_group(name="g", attrs={"u": 1}).attributes == {"u": 1}


MEANT = {
    "a mode by position": (lambda: zd.open({}, "r+"), FileNotFoundError, r"mode='r\+'"),
    "a path as values": (lambda: zd.to_zarr("a.zarr", {}), TypeError, r"zarr_dask\.copy"),
    "a mapping": (lambda: zd.to_zarr({"a": da.ones(2)}, {}), TypeError, "component="),
    "a series": (lambda: zd.to_zarr(pd.Series([1.0]), {}), TypeError, "to_numpy"),
    "one place for two": (lambda: zd.to_zarr([da.ones(1)] * 2, {}), FileExistsError, "component="),
    "arguments by position": (
        lambda: zd.create_array({}, (2,), "f4"),
        TypeError,
        r"url, path by position; name .* shape=",
    ),
    "the location first": (lambda: zd.zeros("a.zarr", (3,)), TypeError, "the shape comes first"),
    "a shape by name after it": (
        lambda: zd.ones("a.zarr", shape=3),
        TypeError,
        "the shape comes first",
    ),
    "a mode for a new array": (
        lambda: zd.create_array({}, shape=3, dtype="i4", mode="w"),
        TypeError,
        "mean 'overwrite'",
    ),
    "a location that is an array": (
        lambda: zd.save(np.ones(3), "a.zarr"),
        TypeError,
        r"to_zarr\(array, url\)",
    ),
    "options of an array that is saved": (
        lambda: zd.save({}, np.ones(3), chunks=2),
        TypeError,
        "options of create_array",
    ),
    "a region of a dataset for an array": (
        lambda: zd.to_zarr(da.ones(2), zd.zeros(2).store, region="auto"),
        IndexError,
        "write_dataset",
    ),
    "a typo for an image": (
        lambda: zd.ome.write(np.ones((4, 4)), {}, axis="yx"),
        TypeError,
        "mean 'axes'",
    ),
    "a mapping as values": (
        lambda: zd.create_array({}, data={"a": 1}),
        TypeError,
        r"save\(url, \*\*values\)",
    ),
    "a data type for a write": (
        lambda: zd.to_zarr(da.ones(2), {}, dtype="f4"),
        TypeError,
        "astype",
    ),
    "a shape by position in a group": (
        lambda: zd.create_group({}).create_array("a", (2,), "f4"),
        TypeError,
        "takes path by position",
    ),
    "a format as target": (lambda: zd.migrate({}, "v2"), ValueError, "format='v2'"),
    "a node as attribute": (lambda: zd.create_group({}).temp, AttributeError, r"group\['temp'\]"),
    "h5py's maxshape": (
        lambda: zd.create_array({}, shape=1, dtype="f4", maxshape=None),
        TypeError,
        "may grow",
    ),
    "no codec": (
        lambda: zd.create_array({}, shape=1, dtype="f4", codecs="none"),
        ValueError,
        r"codecs=\[\]",
    ),
    "threads of a run": (
        lambda: zd.rechunk(zd.zeros(3), {}, chunks=2, threads=2),
        TypeError,
        "num_workers",
    ),
    "a choice": (lambda: zd.to_zarr(da.ones(1), {}, mode="r"), ValueError, "Did you mean 'r"),
}


@pytest.mark.parametrize(("call", "error", "says"), MEANT.values(), ids=MEANT)
def test_mistakes_say_what_is_meant(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_rechunk_takes_options_of_both_places(tmp_path):
    zd.save(tmp_path / "a.zarr", np.arange(8))
    options = {"fsync": False}
    read = zd.ReadOptions(missing="error")
    both = {"storage_options": options, "target_options": options, "read": read}
    report = zd.rechunk(
        tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=4, model=zd.CostModel(), **both
    )
    assert report.objects == 2
    assert zd.copy(tmp_path / "b.zarr", {}, read=read).objects == 2
    with pytest.raises(ValueError, match="anon"):
        zd.rechunk(tmp_path / "a.zarr", {}, chunks=4, storage_options={"anon": True})


def test_codecs_are_classes():
    codecs = [zd.codecs.Zstd(level=5), zd.codecs.Crc32c()]
    array = zd.create_array({}, shape=4, dtype="i2", codecs=codecs)
    assert array.codecs[1:] == tuple(codecs)
    assert {"Blosc", "BytesCodec", "Gzip"} < set(dir(zd.codecs))
    with pytest.raises(AttributeError, match="Zst2"):
        _ = zd.codecs.Zst2


def test_help_explains_each_argument_of_a_write():
    said = zd.to_zarr.__doc__
    assert "As for `plan_write`" not in said
    for name in ("region", "mode", "partial", "resume"):
        (lines,) = re.findall(rf"(?m)^{name}\n((?:    .*\n)+)", said)
        assert len(lines.split()) > 5, name
