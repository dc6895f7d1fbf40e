"""The hierarchy: opening, creating, walking."""

import json

import pytest

import zarr_dask as zd
from zarr_dask.errors import (
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    StoreKeyError,
)
from zarr_dask.stores import MemoryStore


@pytest.fixture(params=["v2", "v3"])
def root(request):
    group = zd.create_group(MemoryStore(), attributes={"title": "t"}, format=request.param)
    group.create_array("a", shape=(4,), dtype="i4", chunks=2)
    group.create_array("x/y/b", shape=(2, 2), dtype="f8", chunks=1, attributes={"n": 1})
    group.create_group("x/empty")
    return group


def test_walking(root):
    assert [name for name, _ in root.arrays()] == ["a"]
    assert [name for name, _ in root.groups()] == ["x"]
    assert [path for path, _ in root.arrays(recursive=True)] == ["a", "x/y/b"]
    assert [path for path, _ in root.groups(recursive=True)] == ["x", "x/empty", "x/y"]
    assert root["x/y/b"].attributes == {"n": 1}
    assert root["x"]["y"]["b"].shape == (2, 2)
    assert "x/y" in root
    assert "nope" not in root
    assert root.attributes == {"title": "t"}


def test_tree(root):
    assert root.tree().splitlines() == [
        "/",
        "├── a  (4,) int32, chunks (2,)",
        "└── x/",
        "    ├── empty/",
        "    └── y/",
        "        └── b  (2, 2) float64, chunks (1, 1)",
    ]


def test_chunks_are_no_nodes(root):
    root["a"][...] = 1
    root["x/y/b"][...] = 1
    assert len(list(root.arrays(recursive=True))) == 2
    assert len(list(root.groups(recursive=True))) == 3


def test_every_group_above_is_created():
    for name, document in (("v2", ".zgroup"), ("v3", "zarr.json")):
        store = MemoryStore()
        zd.create_array(store, "p/q/r", shape=(1,), dtype="i1", format=name)
        for path in ("", "p/", "p/q/"):
            assert isinstance(zd.open(store, path), zd.Group)
            assert json.loads(store.values[f"{path}{document}"])["zarr_format"] == int(name[1])


def test_opening_what_is_something_else(root):
    with pytest.raises(NodeTypeError, match="is a group, not an array"):
        zd.open_array(root.store)
    with pytest.raises(NodeTypeError, match="is an array, not a group"):
        zd.open_group(root.store, "a")
    with pytest.raises(NodeNotFoundError, match=r"nothing.*'nothing/zarr.json'"):
        zd.open(root.store, "nothing")
    with pytest.raises(ValueError, match="mode='w'"):
        zd.open(root.store, mode="w")


def test_no_node_inside_an_array(root):
    with pytest.raises(NodeExistsError, match="inside the array"):
        root.create_array("a/b", shape=(1,), dtype="i1")
    with pytest.raises(NodeExistsError, match="exists already"):
        root.create_group("x")


def test_overwriting_replaces_all_below(root):
    root["x/y/b"][...] = 1
    zd.create_array(root.store, "x", shape=(1,), dtype="i1", format=root.format, overwrite=True)
    assert [key for key in root.store.values if key.startswith("x/y")] == []
    assert root["x"].shape == (1,)


def test_overwriting_a_node_of_another_format(root):
    other = "v2" if root.format == "v3" else "v3"
    array = zd.create_array(root.store, "a", shape=(9,), dtype="i1", format=other, overwrite=True)
    assert zd.open(root.store, "a").shape == array.shape  # one format only: no warning


@pytest.mark.parametrize("path", ["../x", "a/../b", "."])
def test_paths_stay_inside(root, path):
    with pytest.raises(StoreKeyError):
        root.create_group(path)
    with pytest.raises(StoreKeyError):
        zd.open(root.store, path)


def test_paths_are_normalised(root):
    assert root["/x//y/b/"].path == "x/y/b"


def test_two_formats_in_one_place(root):
    store = MemoryStore()
    zd.create_array(store, shape=(2,), dtype="i1", format="v2")
    other = MemoryStore()
    zd.create_array(other, shape=(3,), dtype="i1", format="v3")
    store.values.update(other.values)
    with pytest.warns(UserWarning, match="documents of the formats v3, v2; v3 is used"):
        assert zd.open(store).shape == (3,)
    assert zd.open(store, format="v2").shape == (2,)


def test_updated_attributes(root):
    changed = root.update_attributes({"more": [1, None]})
    assert zd.open_group(root.store).attributes == changed.attributes == {
        "title": "t", "more": [1, None],
    }  # fmt: skip


def test_unknown_members_survive_a_change():
    store = MemoryStore()
    zd.create_array(store, shape=(2,), dtype="i1")
    document = json.loads(store.values["zarr.json"])
    document["vendor"] = {"must_understand": False, "x": [1]}
    store.values["zarr.json"] = json.dumps(document).encode()
    zd.open_array(store, mode="r+").update_attributes({"a": 1})
    assert json.loads(store.values["zarr.json"])["vendor"] == document["vendor"]
    document["vendor"] = 3
    store.values["zarr.json"] = json.dumps(document).encode()
    with pytest.raises(MetadataError, match="vendor: got 3"):
        zd.open(store)


def test_new_attributes_leave_other_documents_as_they_are():
    store = MemoryStore()
    zd.create_array(store, shape=(2,), dtype="<i4", format="v2")
    document = json.loads(store.values[".zarray"])
    document |= {"order": "F", "filters": [{"id": "zlib", "level": 1}], "compressor": None}
    document["_NCZARR_ARRAY"] = {"dimrefs": ["/x"]}
    text = store.values[".zarray"] = json.dumps(document).encode()
    array = zd.open_array(store, mode="r+").update_attributes({"unit": "m"})
    assert store.values[".zarray"] == text
    assert zd.open_array(store).attributes == array.attributes == {"unit": "m"}


def test_objects_of_a_job_that_never_finished_are_no_values():
    store = MemoryStore()
    zd.create_array(store, "a", shape=(4,), dtype="i4", chunks=2)[...] = 7
    store.delete("a/zarr.json")
    assert (zd.create_array(store, "a", shape=(4,), dtype="i4", chunks=2)[...] == 0).all()
