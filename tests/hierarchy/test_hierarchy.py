"""One hierarchy in every kind of store, and what lies at one path twice."""

import json
import os
import shutil
import uuid

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.http_server import Files, WithoutRanges, serving
from zarr_dask.errors import ListingError, NodeExistsError, ZarrDaskWarning
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, open_store

VALUES = np.arange(60, dtype="<f4").reshape(6, 10)
PLACES = ["memory", "mapping", "directory", "zip", "zip in folder", "http", "plain http", "object"]
CAN_LIST = [place for place in PLACES if "http" not in place]


def build(store, format):
    group = zd.create_group(store, format=format, attributes={"title": "t"})
    options = {"shape": VALUES.shape, "dtype": "<f4"}
    group.create_array("a/plain", **options, chunks=(4, 3))[...] = VALUES
    group.create_array("a/fortran", **options, chunks=(2, 10), order="F")[...] = VALUES
    if format == "v3":
        group.create_array("shards", **options, chunks=(1, 5), shards=(3, 10))[...] = VALUES
    group.create_array("a/partly", **options, chunks=(3, 5), fill_value=-1)[:3] = VALUES[:3]


@pytest.fixture(params=["v2", "v3"])
def local(request, tmp_path):
    """A folder that holds the hierarchy."""
    folder = tmp_path / "h.zarr"
    build(folder, request.param)
    return folder


@pytest.fixture
def place(request, local, tmp_path):
    """The same in another kind of store."""
    source = LocalStore(str(local))
    values = {key: bytes(source.get(key)) for key in source.list()}
    if request.param == "memory":
        store = MemoryStore()
        store.values.update(values)
        yield store
    elif request.param == "mapping":
        yield values
    elif request.param == "directory":
        yield local
    elif request.param == "zip":
        yield shutil.make_archive(tmp_path / "within", "zip", local)
    elif request.param == "zip in folder":
        yield shutil.make_archive(tmp_path / "around", "zip", tmp_path, local.name)
    elif request.param == "object":
        store = open_store(f"memory://{uuid.uuid4()}/h.zarr")
        for key, value in values.items():
            store.set(key, [value])
        yield store
    else:
        handler = Files if request.param == "http" else WithoutRanges
        with serving(handler, {f"h.zarr/{key}": v for key, v in values.items()}) as (url, _):
            yield f"{url}/h.zarr"


def check_arrays(expected, open_one):
    for path, array in expected.arrays(recursive=True):
        found = open_one(path)
        assert (found.dtype, found.chunks, found.shards) == (
            array.dtype, array.chunks, array.shards,
        )  # fmt: skip
        assert found.attributes == array.attributes
        np.testing.assert_array_equal(found[...], array[...])
        np.testing.assert_array_equal(found[1:5, 2:7], array[1:5, 2:7])
        np.testing.assert_array_equal(found.to_dask().compute(scheduler="sync"), array[...])


@pytest.mark.conformance("C046")
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_equal_arrays_in_every_store(local, place):
    expected = zd.open_group(local)
    check_arrays(expected, lambda path: zd.open_array(place, path))
    group = zd.open_group(place)
    check_arrays(expected, lambda path: group[path])


@pytest.mark.conformance("C046")
@pytest.mark.parametrize("place", CAN_LIST, indirect=True)
def test_equal_hierarchies_in_stores_that_list(local, place):
    assert zd.open_group(place).tree() == zd.open_group(local).tree()


@pytest.mark.conformance("C046")
@pytest.mark.parametrize("place", ["http", "plain http"], indirect=True)
def test_without_a_listing(local, place):
    group = zd.open_group(place)
    assert group["a"].attributes == {}
    for look in (group.tree, lambda: list(group.walk()), lambda: list(group)):
        with pytest.raises(ListingError, match="consolidated metadata"):
            look()


@pytest.mark.conformance("C046")
@pytest.mark.parametrize("handler", [Files, WithoutRanges])
def test_consolidated_without_a_listing(local, handler):
    expected = zd.consolidate(local)
    source = LocalStore(str(local))
    values = {key: bytes(source.get(key)) for key in source.list()}
    with serving(handler, values) as (url, seen):
        group = zd.open_group(url)
        opened = len(seen)
        assert group.tree() == expected.tree()
        assert len(seen) == opened
        check_arrays(expected, dict(group.arrays(recursive=True)).__getitem__)


# --- twice at one path ----------------------------------------------------------------------------


@pytest.mark.conformance("C047")
@pytest.mark.parametrize("path", ["", "a/b"])
def test_v3_wins_over_v2_with_a_warning(path):
    store, older = MemoryStore(), MemoryStore()
    zd.create_array(older, path, shape=(2,), dtype="i1", fill_value=2, format="v2")
    zd.create_array(store, path, shape=(3,), dtype="i1", fill_value=3)
    store.values.update(older.values)
    with pytest.warns(UserWarning, match="documents of the formats v3, v2; v3 is used"):
        array = zd.open_array(store, path)
    assert array.format == "v3"
    assert array[...].tolist() == [3, 3, 3]
    assert zd.open_array(store, path, format="v2")[...].tolist() == [2, 2]


def test_an_array_wins_over_a_group_with_a_warning():
    store = MemoryStore()
    group = zd.create_group(store, format="v2")
    group.create_array("x", shape=(2,), dtype="i1", fill_value=2)
    store.values["x/.zgroup"] = json.dumps({"zarr_format": 2}).encode()
    with pytest.warns(UserWarning, match="both an array and a group"):
        assert zd.open(store, "x")[...].tolist() == [2, 2]
    with pytest.warns(UserWarning, match="both an array and a group"):
        assert [path for path, _ in group.arrays()] == ["x"]


# --- nodes above and below each other -------------------------------------------------------------

FORMATS_WITH_GROUPS = ["v2", "v3", "v3draft", "v3draft-2022-05"]


def with_array_below(format_name):
    """A store with an array at a/b and no document at a."""
    values = {}
    array = zd.create_array(values, "a/b", shape=(4,), dtype="i2", chunks=2, format=format_name)
    array[...] = 7
    for name in ("a/zarr.json", "a/.zgroup", "a/.zattrs"):
        values.pop(name, None)
    return values


@pytest.mark.parametrize("format_name", FORMATS_WITH_GROUPS)
def test_no_array_above_others(format_name):
    values = with_array_below(format_name)
    before = dict(values)
    options = {"shape": (4,), "dtype": "i2", "chunks": 2, "format": format_name}
    with pytest.raises(NodeExistsError, match="nodes lie below"):
        zd.create_array(values, "a", **options)
    with pytest.raises(NodeExistsError, match="nodes lie below"):
        zd.to_zarr(da.ones(4, chunks=2), values, "a", format=format_name)
    assert values == before
    zd.create_array(values, "a", overwrite=True, **options)
    assert not [key for key in values if "/b" in key]


@pytest.mark.parametrize("format_name", ["v3draft", "v3draft-2022-05"])
def test_deleting_an_array_leaves_whole_what_lies_below(format_name):
    values = {}
    options = {"shape": (4,), "dtype": "i2", "chunks": 2, "format": format_name}
    zd.create_array(values, "a", **options)[...] = 1
    above = {key: value for key, value in values.items() if key != "zarr.json"}
    for key in above:
        del values[key]
    zd.create_array(values, "a/b", **options)[...] = 7
    values.update(above)  # as another implementation may have written them
    zd.delete(values, "a")
    assert not above.keys() & values.keys()
    assert zd.open_array(values, "a/b")[...].tolist() == [7] * 4


@pytest.mark.parametrize("format_name", ["v1", "v2", "v3"])
@pytest.mark.parametrize("draft", ["v3draft", "v3draft-2022-05"])
def test_an_array_of_a_draft_on_disk_is_found_by_other_formats(draft, format_name, tmp_path):
    options = {"shape": 4, "dtype": "i2"}
    zd.create_array(tmp_path, "a", **options, format=draft)[...] = 1
    assert not (tmp_path / "a").exists()  # its document and its objects lie elsewhere
    with pytest.raises(NodeExistsError):
        zd.create_array(tmp_path, "a", **options, format=format_name)
    assert zd.open_array(tmp_path, "a")[...].tolist() == [1] * 4


@pytest.mark.parametrize("overwrite", [False, True])
def test_leftovers_of_a_killed_job_are_no_values(overwrite):
    values = {}
    zd.to_zarr(da.full((10,), 7, chunks=1), values, chunks=(1,))
    del values["zarr.json"]
    zd.to_zarr(da.full((5,), 1, chunks=1), values, chunks=(1,), overwrite=overwrite)
    grown = zd.open_array(values, mode="r+").resize(10)
    assert grown[...].tolist() == [1] * 5 + [0] * 5


@pytest.mark.parametrize("format_name", FORMATS_WITH_GROUPS)
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.MissingGroupWarning")
def test_a_group_without_a_document_gets_one_with_its_attributes(format_name):
    values = with_array_below(format_name)
    zd.open_group(values, "a", mode="r+").update_attributes({"x": 1}).update_attributes({"y": 2})
    assert zd.open_group(values, "a").attributes == {"x": 1, "y": 2}


@pytest.mark.parametrize("local", [False, True])
def test_a_group_that_appears_while_it_is_made_for_a_node_below_is_kept(local, tmp_path):
    inner = LocalStore(str(tmp_path / "h")) if local else MemoryStore()
    zd.create_group(inner)
    met = []

    def another_process(method, key):
        if method in {"set", "set_if"} and key == "g/zarr.json" and not met:
            met.append(key)
            zd.create_group(inner, "g", attributes={"title": "run 7"})

    zd.create_array(HookStore(inner, another_process), "g/a", shape=4, dtype="i4")
    assert met
    assert zd.open_group(inner, "g").attributes == {"title": "run 7"}
    assert zd.open_array(inner, "g/a").shape == (4,)


def test_a_copy_warns_of_a_folder_that_no_key_names(tmp_path):
    source, target = tmp_path / "s.zarr", tmp_path / "t.zarr"
    zd.create_group(source)
    for name in ("a", "b"):
        zd.create_array(source, name, shape=2, dtype="i4")[...] = 7
    try:
        (source / "b").rename(os.fsdecode(f"{source}/".encode() + b"b\xff"))
    except OSError:
        pytest.skip("this file system keeps names in Unicode")
    with pytest.warns(ZarrDaskWarning, match=r"s\.zarr holds 'b\\udcff', which is no name of a n"):
        zd.copy(source, target)
    assert [*zd.open_group(target)] == ["a"]


@pytest.mark.parametrize("old", [(), (4,), (4, 4), (4, 4, 4)], ids=len)
@pytest.mark.parametrize("new", [(), (6,), (6, 6)], ids=len)
@pytest.mark.parametrize("format", ["v2", "v3"])
def test_objects_of_an_array_whose_removal_was_stopped_are_in_no_ones_way(
    tmp_path, format, old, new
):
    """Its files stood where another number of dimensions needs folders, or the other way round."""
    keys = {"v2": {"name": "v2", "separator": "/"}, "v3": None}[format]
    options = {"dtype": "i4", "format": format, "chunk_key_encoding": keys}
    a = zd.create_array(tmp_path / "a", shape=old, chunks=2 if old else None, **options)
    a[...] = 7
    for name in ("zarr.json", ".zarray", ".zattrs"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    options |= {"chunks": 3 if new else None, "overwrite": True}
    again = zd.create_array(tmp_path / "a", shape=new, **options)
    assert (again[...] == 0).all()
    again[...] = 5
    assert (zd.open_array(tmp_path / "a")[...] == 5).all()
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
