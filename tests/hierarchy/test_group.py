"""The hierarchy: opening, creating, walking."""

import errno
import json
import os
import pickle
import random
import zipfile

import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from zarr_dask.errors import (
    GridError,
    MetadataError,
    MissingGroupWarning,
    MixedFormatsWarning,
    NodeExistsError,
    NodeNotFoundError,
    NodeTypeError,
    ReadOnlyError,
    StoreError,
    StoreKeyError,
    ZarrDaskError,
)
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording, open_store
from zarr_dask.stores.backends import zip as zip_module


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


def test_numpy_makes_no_array_of_the_names_of_a_group(root):
    with pytest.raises(TypeError, match="is a group, which has no values"):
        np.asarray(root)


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
    with pytest.raises(ValueError, match="mode='x'"):
        zd.open(root.store, mode="x")


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
    options = {"shape": (9,), "dtype": "i1", "format": other, "overwrite": True}
    with pytest.warns(MixedFormatsWarning, match=f"is of format {other}, the group at"):
        array = zd.create_array(root.store, "a", **options)
    assert zd.open(root.store, "a").shape == array.shape  # one format only: no warning


@pytest.mark.parametrize("where", ["a.zarr", "far"])
@pytest.mark.parametrize("outer", ["v2", "v3"])
def test_what_is_new_has_the_format_of_the_group_around_it(tmp_path, outer, where):
    """As the group of zarr-python would make it; without warnings, which are errors here."""
    place = tmp_path / where if where == "a.zarr" else MemoryStore()
    zd.create_group(place, format=outer)
    zd.create_group(place, "b/c")
    zd.create_array(place, "b/c/x", shape=3, dtype="i4")
    zd.to_zarr(da.ones(3), place, "b/y")
    zd.rechunk(da.ones(3), place, path="b/z", chunks=2)
    expected = {"b", "b/c", "b/c/x", "b/y", "b/z"}
    if where == "a.zarr":  # the store begins in the group
        zd.to_zarr(da.ones(3), f"{place}/b/v")
        zd.create_group(place / "w")
        expected |= {"b/v", "w"}
        theirs = zarr.open_group(str(place), mode="r", zarr_format=int(outer[1]))
        assert {path for path, _ in theirs.members(max_depth=None)} == expected
    found = zd.open_group(place, format=outer)
    assert {path for path, _ in found.walk()} == expected


def test_the_folder_of_a_store_that_is_deleted_stays(tmp_path, monkeypatch):
    """It may be the current one, which a process cannot do without."""
    monkeypatch.chdir(tmp_path)
    zd.create_array(".", "b/x", shape=3, dtype="i4")[...] = 1
    zd.delete(".")
    assert list(tmp_path.iterdir()) == []
    zd.create_array(".", "b/x", shape=3, dtype="i4")


def test_a_format_that_is_named_wins(tmp_path):
    zd.create_group(tmp_path, format="v2")
    with pytest.warns(MixedFormatsWarning, match="Pass format='v2'"):
        zd.to_zarr(da.ones(3), tmp_path, "x", format="v3")
    assert zd.open(tmp_path, "x").format == "v3"
    with pytest.raises(GridError, match="'v2' has no shards"):
        zd.to_zarr(da.ones(4), tmp_path, "y", shards=4, chunks=2)


@pytest.mark.parametrize("path", ["../x", "a/../b", "."])
def test_paths_stay_inside(root, path):
    with pytest.raises(StoreKeyError):
        root.create_group(path)
    with pytest.raises(StoreKeyError):
        zd.open(root.store, path)


@pytest.mark.parametrize("path", [0, False, 3])
def test_a_number_is_no_path(root, path):
    with pytest.raises(StoreKeyError, match="expected a text"):
        root[path]


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


# --- names and paths ------------------------------------------------------------------------------


@pytest.mark.conformance("C034")
@pytest.mark.parametrize(
    "path", ["p/q/r", "/p/q/r", "p/q/r/", "//p//q///r//", "p\\q\\r", "\\p/q\\r"]
)
def test_spellings_of_one_path(root, path):
    root.create_array(path, shape=(2,), dtype="i1", chunks=2)[...] = 7
    assert root["p"]["q"]["r"][0] == 7
    assert root[path].path == zd.open(root.store, path).path == "p/q/r"
    assert not [key for key in root.store.values if "\\" in key or "//" in key or key[0] == "/"]


@pytest.mark.conformance("C035")
@pytest.mark.parametrize("path", [".", "..", "a/./b", "x/../b", "\\..\\b", "x//..//b", "../b/"])
@pytest.mark.parametrize("action", ["open", "array", "group", "item", "delete", "rename", "to"])
def test_no_path_leads_elsewhere(root, path, action):
    before = dict(root.store.values)
    act = {
        "open": lambda: zd.open(root.store, path),
        "array": lambda: root.create_array(path, shape=(1,), dtype="i1"),
        "group": lambda: zd.create_group(root.store, path, format=root.format),
        "item": lambda: root[path],
        "delete": lambda: root.delete(path),
        "rename": lambda: root.rename(path, "z"),
        "to": lambda: root.rename("a", path),
    }[action]
    with pytest.raises(StoreKeyError):
        act()
    assert root.store.values == before


@pytest.mark.conformance("C036")
@pytest.mark.parametrize("create", ["array", "group"])
def test_groups_above_in_v2(create):
    store = MemoryStore()
    if create == "array":
        zd.create_array(store, "a/b/c", shape=(1,), dtype="i1", format="v2")
    else:
        zd.create_group(store, "a/b/c", format="v2")
    for key in (".zgroup", "a/.zgroup", "a/b/.zgroup"):
        assert json.loads(store.values[key]) == {"zarr_format": 2}


@pytest.mark.conformance("C039")
def test_members_are_direct_children(root):
    assert [name for name, _ in root.children()] == ["a", "x"]
    assert list(root) == ["a", "x"]
    assert [name for name, _ in root["x"].children()] == ["empty", "y"]
    assert [name for name, _ in root["x/y"].children()] == ["b"]


@pytest.mark.conformance("C088")
@pytest.mark.parametrize("name", ["...", "....", "__a", "__", "__zarr", "zarr.json"])
@pytest.mark.parametrize("action", ["array", "group", "above", "renamed"])
def test_names_that_no_node_may_have(name, action):
    group = zd.create_group(MemoryStore())
    group.create_group("a")
    before = dict(group.store.values)
    act = {
        "array": lambda: group.create_array(name, shape=(1,), dtype="i1"),
        "group": lambda: group.create_group(f"a/{name}"),
        "above": lambda: group.create_group(f"{name}/b"),
        "renamed": lambda: group.rename("a", name),
    }[action]
    with pytest.raises(StoreKeyError):
        act()
    assert group.store.values == before


@pytest.mark.conformance("C088")
def test_a_name_with_a_slash_is_a_path_and_an_empty_one_no_child():
    group = zd.create_group(MemoryStore())
    assert group.create_group("a/b").path == "a/b"
    assert isinstance(group["a"], zd.Group)
    with pytest.raises(NodeExistsError):
        group.create_group("")  # the empty name is no child: it is the group itself


@pytest.mark.conformance("C089")
def test_names_kept_for_other_uses_are_no_children():
    group = zd.create_group(MemoryStore())
    group.create_group("a/_b")
    for key in [key for key in group.store.values if key.startswith("a/")]:
        group.store.values[f"__{key}"] = group.store.values[f"a/__{key}"] = group.store.values[key]
    assert [path for path, _ in group.walk()] == ["a", "a/_b"]
    assert "__" not in group.tree()


NAMES = [
    "\u00c5",
    "A\u030a",
    "日本 語",
    "\u00e9",
    "e\u0301",
    "E",
    "e",
    "🦓",
    "a+b %20",
    "naïve?*:<>|",
]


@pytest.mark.conformance("C090")
@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("place", ["memory", "local"])
def test_names_are_what_they_are(tmp_path, place, format):
    store = MemoryStore() if place == "memory" else tmp_path / "h"
    group = zd.create_group(store, format=format)
    for number, name in enumerate(NAMES):
        options = {"shape": (1,), "dtype": "i1", "fill_value": number}
        group.create_array(f"{name}/{name}", **options)
    assert list(group) == sorted(NAMES)
    for number, name in enumerate(NAMES):
        assert group[name][name][0] == number
    with pytest.raises(NodeNotFoundError):
        zd.open(store, "É")  # not the small one


# --- walking --------------------------------------------------------------------------------------


def large(format: str) -> MemoryStore:
    """Groups on three levels with arrays of many stored objects."""
    store = MemoryStore()
    for group in ("", "g0/", "g1/", "g1/h/"):
        for name in ("a", "b"):
            options = {"shape": (100,), "dtype": "u1", "chunks": 1, "format": format}
            zd.create_array(store, f"{group}{name}", **options)[...] = 1
    return store


def looks(group):
    return (
        lambda: list(group.arrays(recursive=True)),
        group.tree,
        lambda: list(group.walk()),
    )


@pytest.mark.parametrize(("format", "documents"), [("v2", 2), ("v3", 1)])
@pytest.mark.parametrize("kind", ["memory", "mapping"])
def test_a_walk_is_one_listing_where_it_costs_no_more_than_a_folder(format, documents, kind):
    store = large(format)
    recording = Recording(open_store(store.values) if kind == "mapping" else store)
    group = zd.open_group(recording, format=format)
    nodes = 11  # below the root
    for look in looks(group):
        recording.clear()
        look()
        assert [one.key for one in recording.requests if one.method == "list"] == [""]
        assert set(recording.per_key().values()) == {1}  # and what is not there not at all
        assert len(recording.per_key()) == nodes * documents
        assert recording.batches == {"list": 1, "get_ranges": 3}  # one batch per level
    recording.clear()
    below = dict(zd.open_group(group, "g1").walk())
    assert list(below) == ["a", "b", "h", "h/a", "h/b"]
    assert [one.key for one in recording.requests if one.method == "list"] == ["g1/"]


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_a_walk_of_an_archive_opens_it_for_documents_only(format, tmp_path, monkeypatch):
    """Its directory is in memory, by folder: neither read again nor gone through."""
    with zipfile.ZipFile(tmp_path / "h.zip", "w") as archive:
        for key, value in large(format).values.items():
            archive.writestr(key, value)
    recording = Recording(open_store(tmp_path / "h.zip"))
    group = zd.open_group(recording, format=format)
    opened = []
    monkeypatch.setattr(
        zip_module.os, "open", lambda *a, _open=os.open: opened.append(a) or _open(*a)
    )
    for look in looks(group):
        recording.clear()
        opened.clear()
        look()
        assert recording.batches == {"list_dir": 4, "get_ranges": 3}
        assert len(opened) == 3


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_a_walk_of_consolidated_metadata_asks_for_nothing(format):
    store = large(format)
    expected = dict(zd.open_group(store).walk())
    zd.consolidate(store)
    recording = Recording(store)
    group = zd.open_group(recording, format=format)
    assert set(recording.per_key().values()) == {1}
    for look in looks(group):
        recording.clear()
        look()
        assert recording.requests == []
    assert [path for path, _ in group.walk()] == list(expected)


class Folders(MemoryStore):
    """A store where a listing of everything would cost more than one of a folder."""

    has_cheap_recursive_listing = False


@pytest.mark.parametrize("format", ["v2", "v3", "v3draft", "v3draft-2022-05"])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ZarrDaskWarning")
def test_one_listing_finds_what_many_find(format, seed):
    """Nodes below arrays, groups without documents, folders of chunks, names that are none."""
    chance = random.Random(seed)
    store = MemoryStore()
    names = ["a", "b", "c", "0", "1", "__x", ".x", "zarr.json", "é"]
    zd.create_group(store, format=format)
    roots = set(store.values)
    for _ in range(12):
        path = "/".join(chance.choices(names[:2] + ["0", "é"][: chance.randrange(3)], k=3))
        try:
            if chance.random() < 0.5:
                zd.create_group(store, path, format=format)
            else:
                options = {"shape": (2,), "dtype": "u1", "chunks": 1, "format": format}
                zd.create_array(store, path, **options)[...] = 1
        except ZarrDaskError:
            continue  # below an array, or a name that the draft does not allow
    for key in list(store.values):
        draw = chance.random()
        if key not in roots and draw < 0.2:
            del store.values[key]
        elif key not in roots and draw < 0.3:
            store.values[key] = b"{"
        elif draw < 0.5:
            store.values["/".join([*key.split("/")[:-1], *chance.choices(names, k=2)])] = b"{}"
    folders = Folders(store.values)
    asked = zd.ReadOptions(walk_by_full_listing=True)
    at_once, by_folder, on_demand = (
        zd.open_group(Recording(one), format=format, read=options)
        for one, options in ((store, None), (folders, None), (folders, asked))
    )
    assert repr_of(at_once) == repr_of(by_folder) == repr_of(on_demand)
    assert at_once.store.store.batches["list"] >= 1
    assert by_folder.store.store.batches["list"] == 0
    assert on_demand.store.store.batches["list"] >= 1


@pytest.mark.parametrize("format", ["v2", "v3", "v3draft", "v3draft-2022-05"])
def test_files_are_walked_by_one_listing_where_that_is_asked_for(tmp_path, format):
    for path in ("a", "a/b", "c"):
        zd.create_group(tmp_path, path, format=format)
        options = {"shape": (4,), "dtype": "u1", "chunks": 1, "format": format}
        zd.create_array(tmp_path, f"{path}/x", **options)[...] = 1
    if "draft" not in format:
        (tmp_path / "a" / "above").symlink_to(tmp_path, target_is_directory=True)
    asked = zd.ReadOptions(walk_by_full_listing=True)
    recording = Recording(LocalStore(str(tmp_path)))
    group = zd.open_group(recording, format=format, read=asked)
    recording.clear()
    walked = repr_of(group)
    assert recording.batches["list"] == 1
    assert recording.batches["list_dir"] == 0
    by_folder = repr_of(zd.open_group(tmp_path, format=format))
    by_folder.pop("a/above", None)  # a link to a group above is left out of a listing of everything
    assert walked == by_folder
    assert set(walked) == {"a", "a/b", "a/b/x", "a/x", "c", "c/x"}


def repr_of(group):
    return {
        path: type(node).__name__ if isinstance(node, Exception) else repr(node.meta)
        for path, node in group.walk()
    }


@pytest.mark.parametrize("first", [b"", b"{"])
def test_of_a_large_document_with_holes_a_walk_reads_the_start_only(first):
    """A few bytes on disk would cost a read of 60 MB, and of twelve such documents a second."""
    store = MemoryStore()
    zd.create_group(store)
    zd.create_group(store, "large", attributes={"text": "a" * 3_000_000})
    store.set("holes/zarr.json", [first + bytes(3_000_000)])
    recording = Recording(store)
    group = zd.open_group(recording)
    recording.clear()
    nodes = dict(group.walk())
    assert isinstance(nodes["holes"], MetadataError)
    assert len(nodes["large"].attrs["text"]) == 3_000_000
    assert recording.per_key() == {"holes/zarr.json": 1, "large/zarr.json": 2}
    (asked,) = (one.range for one in recording.requests if one.key == "holes/zarr.json")
    assert asked.stop <= 1 << 20


@pytest.mark.parametrize(("format", "documents"), [("v2", 3), ("v3", 1)])
def test_a_walk_costs_what_the_groups_cost(format, documents):
    recording = Recording(Folders(large(format).values))
    group = zd.open_group(recording, format=format)
    nodes = 11  # below the root
    for look in looks(group):
        recording.clear()
        look()
        asked = [request.key for request in recording.requests if request.method == "list_dir"]
        assert sorted(asked) == ["", "g0/", "g1/", "g1/h/"]  # never the folder of an array
        assert sum(recording.per_key().values()) == nodes * documents
        assert recording.batches == {"list_dir": 4, "get_ranges": 3}  # one batch per level


def test_looking_at_one_level_costs_one_listing_and_one_batch():
    recording = Recording(large("v3"))
    group = zd.open_group(recording, format="v3")
    recording.clear()
    assert [name for name, _ in group.arrays()] == ["a", "b"]
    assert recording.batches == {"list_dir": 1, "get_ranges": 1}
    assert len(recording.per_key()) == 4


def test_a_wide_group_is_read_in_batches(monkeypatch):
    monkeypatch.setattr("zarr_dask.hierarchy.walk._KEYS_PER_BATCH", 4)
    recording = Recording(large("v3"))
    group = zd.open_group(recording, format="v3")
    recording.clear()
    assert len(list(group.walk())) == 11
    assert recording.batches["get_ranges"] == 4  # 4 nodes, 5 and 2


def test_a_walk_names_what_cannot_be_read(root):
    document = ".zarray" if root.format == "v2" else "zarr.json"
    root.store.values[f"x/y/b/{document}"] = b"{"
    below = dict(root.walk())
    assert list(below) == ["a", "x", "x/empty", "x/y", "x/y/b"]
    assert isinstance(below["x/y/b"], MetadataError)
    assert f"b  cannot be read: {document}" in root.tree()
    assert [name for name, _ in root.arrays()] == ["a"]
    with pytest.raises(MetadataError):
        list(root.arrays(recursive=True))


def test_a_document_too_large_is_one_node_that_cannot_be_read(root):
    options = zd.ReadOptions(limits=zd.Limits(metadata_bytes=2000))
    root["x/y/b"].update_attributes({"long": "x" * 2000})
    below = dict(zd.open_group(root.store, read=options).walk())
    assert isinstance(below["x/y/b"], MetadataError)
    assert isinstance(below["x/y"], zd.Group)


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_links_that_lead_back_are_not_followed(tmp_path, format):
    group = zd.create_group(tmp_path / "h", format=format)
    group.create_array("g/a", shape=(1,), dtype="i1")
    (tmp_path / "h" / "g" / "up").symlink_to(tmp_path / "h")
    (tmp_path / "h" / "g" / "self").symlink_to(".")
    (tmp_path / "h" / "other").symlink_to("g")
    expected = ["g", "g/a", "g/self", "g/up", "other", "other/a", "other/self", "other/up"]
    assert [path for path, _ in group.walk()] == expected
    assert group.tree().count("\n") == len(expected)


def test_deep_hierarchies(root):
    path = "/".join(["d"] * 500)
    key = {"v2": ".zgroup", "v3": "zarr.json"}[root.format]
    document = root.store.values[f"x/{key}"]
    for depth in range(1, 501):
        root.store.values[f"{path[: 2 * depth]}{key}" if depth < 1500 else f"{path}/{key}"] = (
            document
        )
    tree = root.tree()
    assert tree.count("\n") == 504
    assert tree._repr_html_().count("<ul>") == tree._repr_html_().count("</ul>") == 501


# --- groups without a document --------------------------------------------------------------------


def without(root, path):
    """The hierarchy without the documents of a group."""
    for key in (".zgroup", ".zattrs", "zarr.json"):
        root.store.values.pop(f"{path}/{key}", None)
    return root


@pytest.mark.conformance("C081")
def test_every_group_above_gets_a_document_and_may_lack_it():
    store = MemoryStore()
    zd.create_array(store, "p/q/r", shape=(2,), dtype="i1", fill_value=3)
    for path in ("", "p/", "p/q/"):
        document = json.loads(store.values[f"{path}zarr.json"])
        assert (document["zarr_format"], document["node_type"]) == (3, "group")
    for missing in ("p/q/zarr.json", "p/zarr.json", "zarr.json"):
        del store.values[missing]
        assert zd.open_array(store, "p/q/r")[...].tolist() == [3, 3]


@pytest.mark.conformance("C081")
def test_a_group_without_a_document(root):
    without(root, "x")
    with pytest.warns(MissingGroupWarning, match="no metadata document but nodes below it"):
        group = zd.open_group(root.store, "x")
    assert group.format == root.format
    assert group.attributes == {}
    assert [path for path, _ in group.walk()] == ["empty", "y", "y/b"]
    with pytest.warns(MissingGroupWarning, match="/x has no metadata document"):
        assert [path for path, _ in root.groups(recursive=True)] == ["x", "x/empty", "x/y"]
    with pytest.warns(MissingGroupWarning, match="/x has no metadata document"):
        assert [name for name, _ in root.children()] == ["a", "x"]
    zd.create_group(root.store, "x", format=root.format)  # puts the document there
    assert list(zd.open_group(root.store, "x")) == ["empty", "y"]


def test_two_levels_without_documents(root):
    without(without(root, "x"), "x/y")
    root.delete("x/empty")
    with pytest.warns(MissingGroupWarning) as warned:
        assert [path for path, _ in root.walk()] == ["a", "x", "x/y", "x/y/b"]
    assert len(warned) == 2
    with pytest.warns(MissingGroupWarning):
        assert isinstance(root["x"], zd.Group)


@pytest.mark.parametrize("separator", [".", "/"])
def test_an_array_that_is_being_written_is_no_group(root, separator):
    array = root.create_array(
        "new", shape=(9, 9), dtype="i1", chunks=1, chunk_key_encoding={"separator": separator}
    )
    array[...] = 1
    for key in (".zarray", ".zattrs", "zarr.json"):
        root.store.values.pop(f"new/{key}", None)
    recording = Recording(root.store)
    group = zd.open_group(recording, format=root.format)
    recording.clear()
    assert list(iter(group)) == ["a", "x"]  # list(group) would ask for the length as well
    assert recording.batches["list_dir"] == 2  # the group and the folder, not those of its chunks
    with pytest.raises(NodeNotFoundError):
        zd.open(root.store, "new")


# --- deleting and renaming ------------------------------------------------------------------------


def test_deleting(root):
    root["x/y/b"][...] = 1
    root.delete("x/y/b")
    assert not [key for key in root.store.values if key.startswith("x/y/b")]
    root.delete("x")
    assert [path for path, _ in root.walk()] == ["a"]
    with pytest.raises(NodeNotFoundError, match="Nothing was changed"):
        root.delete("x")
    with pytest.raises(StoreKeyError, match="names no node below"):
        root.delete("")
    zd.delete(root.store)
    assert root.store.values == {}


def test_what_a_stopped_removal_has_left_is_removed_by_the_next_one(root):
    root["x/y/b"][...] = 1
    for key in [key for key in root.store.values if key in {"x/zarr.json", "x/.zgroup"}]:
        del root.store.values[key]
    root.delete("x")
    assert [path for path, _ in root.walk()] == ["a"]
    assert not [key for key in root.store.values if key.startswith("x/")]


def test_nodes_below_no_hierarchy_are_not_removed():
    store = MemoryStore()
    zd.create_array(store, "data/a", shape=(2,), dtype="i1")
    for key in ("zarr.json", "data/zarr.json"):
        store.delete(key)
    for path, below in (("", "data"), ("data", "data/a")):
        with pytest.raises(NodeNotFoundError, match=f"in '{below}' and maybe others"):
            zd.delete(store, path)
    assert "data/a/zarr.json" in store.values


def test_documents_go_first():
    recording = Recording(large("v3"))
    zd.delete(recording, "g1")
    changes = [request for request in recording.requests if request.method.startswith("delete")]
    assert [(c.method, c.key) for c in changes] == [
        ("delete", "g1/zarr.json"), ("delete_prefix", "g1/"),
    ]  # fmt: skip


def test_deleting_leaves_other_nodes_alone():
    group = zd.create_group(MemoryStore())
    for path in ("a", "data/a/b", "meta/a/b", "ab", "meta/root/a"):
        group.create_group(path)
    group.delete("a")
    left = ["ab", "data", "data/a", "data/a/b", "meta", "meta/a", "meta/a/b", "meta/root"]
    assert [path for path, _ in group.walk()] == [*left, "meta/root/a"]


def test_renaming(root):
    root["x/y/b"][...] = [[1, 2], [3, 4]]
    bytes_before = {
        key.removeprefix("x/"): value
        for key, value in root.store.values.items()
        if key.startswith("x/")
    }
    moved = root.rename("x", "p/q")
    assert isinstance(moved, zd.Group)
    assert moved.path == "p/q"
    assert root["p/q/y/b"][...].tolist() == [[1, 2], [3, 4]]
    assert {
        key.removeprefix("p/q/"): value
        for key, value in root.store.values.items()
        if key.startswith("p/q/")
    } == bytes_before
    assert [path for path, _ in root.walk()] == ["a", "p", "p/q", "p/q/empty", "p/q/y", "p/q/y/b"]
    assert root.rename("p/q/y/b", "b")[...].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("a", "x", NodeExistsError),
        ("a", "x/y/b", NodeExistsError),
        ("a", "x/y/b/inside", NodeExistsError),
        ("x", "x/y/z", NodeExistsError),
        ("x/y", "x", NodeExistsError),
        ("a", "a", NodeExistsError),
        ("a", "notes", NodeExistsError),
        ("nothing", "z", NodeNotFoundError),
        ("", "z", StoreKeyError),
        ("a", "", StoreKeyError),
        ("a", "...", StoreKeyError),
    ],
)
def test_renaming_that_is_refused(root, old, new, error):
    root.store.values["notes/today.txt"] = b"not ours"
    before = dict(root.store.values)
    with pytest.raises(error):
        root.rename(old, new)
    assert root.store.values == before


def test_a_node_that_is_seen_while_it_is_renamed_is_whole():
    store = large("v3")
    expected = zd.open_array(store, "g1/h/a")[...].tolist()
    seen = []

    def look(method, key):
        if method == "set" and key.endswith("zarr.json"):
            seen.append(key)
            assert sum(k.startswith("g2/") and "zarr.json" not in k for k in store.values) == 400
        if method.startswith("delete"):
            assert zd.open_array(store, "g2/h/a")[...].tolist() == expected

    zd.open_group(HookStore(store, look), mode="r+").rename("g1", "g2")
    assert seen[-1] == "g2/zarr.json"
    assert seen.index("g2/h/zarr.json") > seen.index("g2/h/b/zarr.json")
    assert not [key for key in store.values if key.startswith("g1/")]


@pytest.mark.parametrize("fails_at", ["g2/a/c/50", "g2/a/zarr.json", "g2/zarr.json"])
def test_a_renaming_that_fails_leaves_the_node_where_it_is(fails_at):
    store = large("v3")
    before = dict(store.values)

    def fail(method, key):
        if method == "set" and key == fails_at:
            raise StoreError("no space left")

    with pytest.raises(StoreError, match="no space left"):
        zd.open_group(HookStore(store, fail), mode="r+").rename("g1", "g2")
    assert store.values == before


@pytest.mark.parametrize("format", ["v2", "v3", "v3draft"])
@pytest.mark.parametrize("can_move", [True, False])
def test_renaming_folders(tmp_path, monkeypatch, format, can_move):
    """A local folder is renamed as a whole where that can be done, else copied."""
    if not can_move:

        def refuse(old, new, **options):
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(os, "rename", refuse)
    group = zd.create_group(tmp_path / "h", format=format)
    group.create_array("x/y/b", shape=(3,), dtype="i1", chunks=1)[...] = [1, 2, 3]
    group.create_group("p")
    file = next((tmp_path / "h").rglob("b/**/*2"))
    number = file.stat().st_ino
    group.rename("x/y", "p/q/r")
    assert [path for path, _ in group.walk()] == ["p", "p/q", "p/q/r", "p/q/r/b", "x"][
        : 4 if format == "v3draft" else 5
    ]  # in the draft a group is what has something below it
    assert group["p/q/r/b"][...].tolist() == [1, 2, 3]
    moved = next((tmp_path / "h").rglob("b/**/*2"))
    assert (moved.stat().st_ino == number) == (can_move and format != "v3draft")
    with pytest.raises(NodeExistsError):
        group.rename("p/q", "p/q/r/b/c")


def test_what_is_open_for_reading_stays_as_it_is(root):
    before = dict(root.store.values)
    group = zd.open_group(root.store)
    for act in (
        lambda: group.delete("a"),
        lambda: group.rename("a", "z"),
        lambda: zd.delete(group.store, "a"),
    ):
        with pytest.raises(ReadOnlyError):
            act()
    assert root.store.values == before


# --- pictures -------------------------------------------------------------------------------------


def test_a_tree_is_text_and_html(root):
    root.create_group("<script>alert(1)</script>")
    root.create_group("line\nbreak\x1b[2J")
    tree = root.tree()
    assert str(tree) == repr(tree) == "\n".join(tree.splitlines())
    assert "├── <script>alert(1)<" in tree.replace("└", "├")
    assert "line\\nbreak\\x1b[2J" in tree
    html = tree._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;" in html
    assert html.count("<li>") == html.count("</li>") == len(dict(root.walk()))
    assert pickle.loads(pickle.dumps(tree))._repr_html_() == html


def test_nodes_in_a_notebook(root):
    root["a"].update_attributes({"<b>": 1})
    html = root["a"]._repr_html_()
    assert "<td>(4,)</td>" in html
    assert "&lt;b&gt;" in html
    named = root.create_array("n", shape=(4, 2), dtype="i1", dimension_names=["<i>", None])
    assert "<td>(&lt;i&gt;: 4, 2)</td>" in named._repr_html_()
    assert "<td>title</td>" in root._repr_html_()


def test_what_is_opened_below_a_node_is_read_as_that():
    values = {}
    zd.create_array(values, "a/x", shape=(4,), dtype="i4", chunks=2)
    group = zd.open_group(values, "a", read=zd.ReadOptions(missing="error"))
    for again in (zd.open(group)["x"], zd.open(group, "x"), zd.open(zd.open(group, "x"))):
        with pytest.raises(zd.errors.ChunkMissingError):
            again[...]
    with pytest.raises(zd.errors.ChunkMissingError):
        zd.from_zarr(group, "x").compute()
    assert not zd.open(group, "x", read=zd.ReadOptions())[...].any()
