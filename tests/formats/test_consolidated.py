"""Consolidated metadata: read, written, compared with what the store holds."""

import json
import pickle
import shutil
import warnings

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    MetadataError,
    MissingGroupWarning,
    NodeNotFoundError,
    NodeTypeError,
    ReadOnlyError,
)
from zarr_dask.formats.consolidated import Consolidated
from zarr_dask.stores import HookStore, MemoryStore, Recording

FORMATS = ["v2", "v3"]
DOCUMENT_NAMES = {".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json"}
PATHS = ["a", "a/b", "a/b/x", "e", "y", "é"]


def hierarchy(store, format):
    group = zd.create_group(store, format=format, attributes={"title": "t"})
    options = {"shape": (4,), "dtype": "<i4", "chunks": 2}
    group.create_array("a/b/x", **options, attributes={"unit": "m"})[...] = [1, 2, 3, 4]
    group.create_array("y", **options, dimension_names=["time"])[...] = 7
    group.create_array("é", **options)
    group.create_group("e")
    return group


@pytest.fixture(params=FORMATS)
def store(request):
    store = MemoryStore()
    hierarchy(store, request.param)
    zd.consolidate(store)
    return store


def key_of(store):
    return ".zmetadata" if ".zmetadata" in store.values else "zarr.json"


def asked(recording):
    """Documents that were asked for since, and listings."""
    keys = [r.key for r in recording.requests if r.key.rpartition("/")[2] in DOCUMENT_NAMES]
    return keys + [r.key for r in recording.requests if r.method.startswith("list")]


def check_no_further_request(store, paths=PATHS):
    """The hierarchy is seen as it is, with one look at the store."""
    recording = Recording(store)
    group = zd.open_group(recording)
    assert set(asked(recording)) <= {*DOCUMENT_NAMES, "meta", "attrs"}
    recording.clear()
    assert [path for path, _ in group.walk()] == paths
    assert group.tree().count("\n") == len(paths)
    assert list(group) == [path for path in paths if "/" not in path]
    assert group["a"]["b/x"].attributes == {"unit": "m"}
    assert zd.open(group, "a/b/x")[...].tolist() == [1, 2, 3, 4]
    assert asked(recording) == []
    return group


# --- reading --------------------------------------------------------------------------------------


def test_opening_costs_no_further_request(store):
    group = check_no_further_request(store)
    assert group.attributes == {"title": "t"}


def test_an_open_group_is_opened_again(store):
    group = zd.open_group(zd.open_group(store))
    assert group.attributes == {"title": "t"}
    assert [path for path, _ in group.arrays()] == ["y", "é"]


def test_opening_is_one_batch_and_for_v2_one_document_more(store):
    recording = Recording(store)
    zd.open_group(recording)
    v2 = key_of(store) == ".zmetadata"
    assert recording.batches == {"get_ranges": 2 if v2 else 1}


def test_warnings_point_at_the_line_of_the_caller(store):
    group = zd.open_group(store, mode="r+")
    for change in (
        lambda: group.create_group("n"),
        lambda: group["n"].update_attributes({"k": 1}),
        lambda: group.delete("n"),
        lambda: zd.create_group(store, "m", format=group.format),
    ):
        with pytest.warns(ConsolidatedMetadataWarning) as warned:
            change()
        assert [one.filename for one in warned] == [__file__]


ZARR_2 = {  # as zarr 2.18.7 writes it, chunks and fill values besides
    "metadata": {
        ".zattrs": {"title": "t"},
        ".zgroup": {"zarr_format": 2},
        "a/.zgroup": {"zarr_format": 2},
        "a/b/.zgroup": {"zarr_format": 2},
        "a/b/x/.zarray": {
            "chunks": [2],
            "compressor": None,
            "dtype": "<i4",
            "fill_value": 0,
            "filters": None,
            "order": "C",
            "shape": [4],
            "zarr_format": 2,
        },
        "a/b/x/.zattrs": {"unit": "m"},
    },
    "zarr_consolidated_format": 1,
}


def as_zarr_3(document):
    """As zarr-python 3.x writes it: consolidated metadata, but empty, in the groups below."""
    nested = {"metadata": {}, "must_understand": False, "kind": "inline"}
    return {
        "metadata": {
            key: {**entry, "consolidated_metadata": nested} if key.endswith("/.zgroup") else entry
            for key, entry in document["metadata"].items()
        },
        "zarr_consolidated_format": 1,
    }


@pytest.mark.conformance("C043")
@pytest.mark.parametrize("writer", ["zarr 2", "zarr 3"])
def test_zmetadata_of_both_zarr_pythons(writer):
    store = MemoryStore()
    for key, entry in ZARR_2["metadata"].items():
        store.values[key] = json.dumps(entry).encode()
    document = ZARR_2 if writer == "zarr 2" else as_zarr_3(ZARR_2)
    store.values[".zmetadata"] = json.dumps(document).encode()
    for number in range(2):
        pair = [2 * number + 1, 2 * number + 2]
        store.values[f"a/b/x/{number}"] = np.array(pair, "<i4").tobytes()
    group = check_no_further_request(store, ["a", "a/b", "a/b/x"])
    assert group["a"].attributes == {}
    assert group.stale() == []


@pytest.mark.conformance("C137")
@pytest.mark.parametrize("format", [2, 3])
def test_what_zarr_python_consolidates(format):
    store = MemoryStore()
    hierarchy(store, f"v{format}")
    peer = zarr.storage.MemoryStore(
        {key: zarr.core.buffer.cpu.Buffer.from_bytes(v) for key, v in store.values.items()}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(peer, zarr_format=format)
    store.values |= {key: value.to_bytes() for key, value in peer._store_dict.items()}
    group = check_no_further_request(store)
    assert isinstance(group.store, Consolidated)
    assert group.stale() == []


def test_groups_nested_in_each_other_as_zarr_python_3_0_did():
    store = MemoryStore()
    hierarchy(store, "v3")

    def entry(path, below=None):
        document = json.loads(store.values[f"{path}/zarr.json"])
        if below is not None:
            document["consolidated_metadata"] = inline(below)
        return document

    def inline(below):
        return {"kind": "inline", "must_understand": False, "metadata": below}

    b = entry("a/b", {"x": entry("a/b/x")})
    below = {"a": entry("a", {"b": b}), "e": entry("e", {}), "y": entry("y"), "é": entry("é")}
    root = {**json.loads(store.values["zarr.json"]), "consolidated_metadata": inline(below)}
    store.values["zarr.json"] = json.dumps(root).encode()
    check_no_further_request(store)


def test_the_draft_of_may_2022_as_zarr_2_consolidated_it():
    store = MemoryStore()
    group = zd.create_group(store, "a", format="v3draft-2022-05", attributes={"n": 1})
    array = group.create_array("b/x", shape=(4,), dtype="<i4", chunks=2)
    array[...] = [1, 2, 3, 4]
    entries = {key: json.loads(v) for key, v in store.values.items() if key.endswith(".json")}
    document = {"metadata": entries, "zarr_consolidated_format": 1}
    store.values["meta/root/consolidated/.zmetadata"] = json.dumps(document).encode()
    recording = Recording(store)
    root = zd.open_group(recording)
    recording.clear()
    assert [path for path, _ in root.walk()] == ["a", "a/b", "a/b/x"]
    assert root["a"].attributes == {"n": 1}
    assert recording.requests == []
    assert root["a/b/x"][...].tolist() == [1, 2, 3, 4]
    with pytest.raises(MetadataError, match="format v2 or v3"):
        zd.consolidate(store)


def test_below_a_path(store):
    prefix = "deep/er/"
    store.values = {f"{prefix}{key}": value for key, value in store.values.items()}
    recording = Recording(store)
    group = zd.open_group(recording, "deep/er")
    recording.clear()
    assert [path for path, _ in group.walk()] == PATHS
    assert zd.open_array(group, "a/b/x").path == "deep/er/a/b/x"
    assert asked(recording) == []


@pytest.mark.conformance("C137")
def test_they_can_be_switched_off(store):
    before = dict(store.values)
    with pytest.warns(ConsolidatedMetadataWarning):
        zd.create_array(store, "new", shape=(1,), dtype="i1", format=zd.open(store).format)
    assert "new" not in list(zd.open_group(store))
    group = zd.open_group(store, read=zd.ReadOptions(consolidated=False))
    assert list(group) == ["a", "e", "new", "y", "é"]
    for mode in ("r+", "a"):
        assert list(zd.open_group(store, mode=mode)) == ["a", "e", "new", "y", "é"]
    assert store.values.items() >= before.items()


def test_what_they_lack_is_looked_for_in_the_store(store):
    group = zd.open_group(store)
    with pytest.warns(ConsolidatedMetadataWarning, match="has changed, the consolidated"):
        zd.create_array(store, "a/new", shape=(1,), dtype="i1", format=group.format)
    with pytest.warns(ConsolidatedMetadataWarning, match="is not in the consolidated metadata"):
        assert group["a/new"].shape == (1,)
    with pytest.raises(NodeNotFoundError):
        group["nothing"]
    assert "nothing" not in group


def test_arrays_do_not_carry_them(store):
    group = zd.open_group(store)
    assert isinstance(group.store, Consolidated)
    for array in (group["a/b/x"], group["a"]["b"]["x"], dict(group.arrays(True))["a/b/x"]):
        assert not isinstance(array.store, Consolidated)
        with pytest.raises(ReadOnlyError):
            array[...] = 1
        assert array.token == zd.open_array(store, "a/b/x").token
    assert len(pickle.dumps(group["y"])) < 2500
    again = pickle.loads(pickle.dumps(group))
    assert [path for path, _ in again.walk()] == PATHS


def test_listing_of_chunks_is_that_of_the_store(store):
    assert zd.open_group(store)["a/b/x"].nbytes_stored() > 0


@pytest.mark.parametrize(
    "broken",
    [
        [],
        3,
        {},
        {"kind": "elsewhere", "metadata": {}},
        {"kind": "inline", "metadata": []},
        {"kind": "inline", "metadata": {"a": 3}},
        {"zarr_consolidated_format": 2, "metadata": {}},
        {"zarr_consolidated_format": 1, "metadata": {".zgroup": None}},
        {"zarr_consolidated_format": 1},
    ],
)
def test_those_that_cannot_be_used_are_not(store, broken):
    if key_of(store) == ".zmetadata":
        store.values[".zmetadata"] = json.dumps(broken).encode()
    else:
        root = {**json.loads(store.values["zarr.json"]), "consolidated_metadata": broken}
        if not isinstance(broken, dict):
            store.values["zarr.json"] = json.dumps(root).encode()
            with pytest.raises(MetadataError, match="consolidated_metadata"):
                zd.open(store)
            return
        store.values["zarr.json"] = json.dumps(root).encode()
    with pytest.warns(ConsolidatedMetadataWarning, match="are not used"):
        group = zd.open_group(store)
    assert [path for path, _ in group.walk()] == PATHS


def test_documents_that_are_nested_too_deeply(store):
    key = key_of(store)
    document = json.loads(store.values[key])
    v2 = key == ".zmetadata"
    entries = (document if v2 else document["consolidated_metadata"])["metadata"]
    name = "y/.zattrs" if v2 else "y"
    text = json.dumps(document)
    for depth in (100, 900, 2000, 20_000, 200_000):
        entries[name] = {**entries[name], "deep": "DEEP"}
        text = json.dumps(document).replace('"DEEP"', "[" * depth + "]" * depth)
        store.values[key] = text.encode()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConsolidatedMetadataWarning)
                found = dict(zd.open_group(store).walk())
        except MetadataError:
            assert depth > 100
        else:
            assert list(found) == PATHS


def test_keys_that_lead_elsewhere_are_left_out(store):
    key = key_of(store)
    document = json.loads(store.values[key])
    v2 = key == ".zmetadata"
    entries = (document if v2 else document["consolidated_metadata"])["metadata"]
    for name in ("../x", "a/../y", "/", "", "x//y", "__x", "nul\0"):
        entries[f"{name}/.zgroup" if v2 else name] = entries["a/.zgroup" if v2 else "a"]
    store.values[key] = json.dumps(document).encode()
    group = zd.open_group(store)
    assert [path for path, _ in group.walk() if not path.startswith("__")] == PATHS


def test_they_are_bounded(store):
    limits = zd.Limits(metadata_bytes=len(store.values[key_of(store)]) - 1)
    options = zd.ReadOptions(limits=limits)
    if key_of(store) == "zarr.json":
        with pytest.raises(MetadataError, match="at most"):
            zd.open(store, read=options)
        return
    with pytest.warns(ConsolidatedMetadataWarning, match="at most"):
        group = zd.open_group(store, read=options)
    assert [path for path, _ in group.walk()] == PATHS


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.conformance("C137")
def test_the_form_of_v3():
    store = MemoryStore()
    hierarchy(store, "v3")
    before = json.loads(store.values["zarr.json"])
    group = zd.consolidate(store)
    root = json.loads(store.values["zarr.json"])
    recorded = root.pop("consolidated_metadata")
    assert root == before
    assert (recorded["kind"], recorded["must_understand"]) == ("inline", False)
    assert list(recorded["metadata"]) == ["a", "e", "y", "é", "a/b", "a/b/x"]
    assert recorded["metadata"]["a/b/x"] == json.loads(store.values["a/b/x/zarr.json"])
    empty = {"kind": "inline", "must_understand": False, "metadata": {}}
    assert recorded["metadata"]["e"]["consolidated_metadata"] == empty
    assert group.attributes == {"title": "t"}


@pytest.mark.conformance("C137")
def test_zarr_python_reads_ours(tmp_path):
    hierarchy(tmp_path / "h", "v3")
    zd.consolidate(tmp_path / "h")
    for document in (tmp_path / "h").glob("*/**/zarr.json"):
        document.unlink()  # so that nothing else can be read
    peer = zarr.open_consolidated(tmp_path / "h", zarr_format=3)
    assert sorted(path for path, _ in peer.members(max_depth=None)) == PATHS
    assert peer["a/b/x"][...].tolist() == [1, 2, 3, 4]
    assert dict(peer["a"]["b"]["x"].attrs) == {"unit": "m"}


@pytest.mark.conformance("C044")
def test_the_form_of_v2():
    store = MemoryStore()
    hierarchy(store, "v2")
    store.delete("e/.zattrs")
    zd.consolidate(store)
    document = json.loads(store.values[".zmetadata"])
    # what zarr 2's ConsolidatedMetadataStore asks for
    assert document.keys() == {"zarr_consolidated_format", "metadata"}
    assert document["zarr_consolidated_format"] == 1
    expected = {
        key: json.loads(value)
        for key, value in store.values.items()
        if key.rpartition("/")[2] in {".zarray", ".zgroup", ".zattrs"}
    }
    assert document["metadata"] == expected


@pytest.mark.conformance("C044")
def test_zarr_python_and_xarray_read_ours_in_v2(tmp_path):
    group = zd.create_group(tmp_path / "h", format="v2", attributes={"title": "t"})
    options = {"shape": (4,), "dtype": "<f8", "chunks": 2, "dimension_names": ["time"]}
    group.create_array("y", **options)[...] = [1, 2, 3, 4]
    group.create_array("sub/x", **options)[...] = [5, 6, 7, 8]
    zd.consolidate(tmp_path / "h")
    for name in (".zarray", ".zattrs", ".zgroup"):
        for document in (tmp_path / "h").glob(f"*/**/{name}"):
            document.unlink()
    peer = zarr.open_consolidated(tmp_path / "h", zarr_format=2)
    assert sorted(path for path, _ in peer.members(max_depth=None)) == ["sub", "sub/x", "y"]
    assert peer["sub/x"][...].tolist() == [5, 6, 7, 8]
    with xarray.open_zarr(tmp_path / "h", consolidated=True, zarr_format=2, chunks=None) as dataset:
        assert dataset.attrs == {"title": "t"}
        assert dataset["y"].dims == ("time",)
        assert dataset["y"].values.tolist() == [1, 2, 3, 4]


@pytest.mark.conformance("C137")
def test_xarray_reads_ours_in_v3(tmp_path):
    group = zd.create_group(tmp_path / "h")
    options = {"shape": (2,), "dtype": "<f8", "chunks": 2, "dimension_names": ["time"]}
    group.create_array("y", **options)[...] = [1, 2]
    zd.consolidate(tmp_path / "h")
    (tmp_path / "h" / "y" / "zarr.json").unlink()
    with xarray.open_zarr(tmp_path / "h", consolidated=True, chunks=None) as dataset:
        assert dataset["y"].values.tolist() == [1, 2]


def test_what_xarray_writes(tmp_path):
    dataset = xarray.Dataset({"y": ("time", [1.0, 2.0])}, attrs={"title": "t"})
    for format in (2, 3):
        place = tmp_path / str(format)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset.to_zarr(place, zarr_format=format, consolidated=True)
        for document in [*place.glob("y/.z*"), *place.glob("y/zarr.json")]:
            document.unlink()
        assert zd.open_group(place)["y"][...].tolist() == [1, 2]


@pytest.mark.parametrize("format", FORMATS)
def test_of_a_group_below(format):
    store = MemoryStore()
    hierarchy(store, format)
    zd.consolidate(store, "a")
    recording = Recording(store)
    group = zd.open_group(recording, "a")
    recording.clear()
    assert [path for path, _ in group.walk()] == ["b", "b/x"]
    assert asked(recording) == []
    assert not isinstance(zd.open_group(store).store, Consolidated)


def test_again(store):
    first = dict(store.values)
    zd.consolidate(store)
    assert store.values == first


@pytest.mark.parametrize("format", FORMATS)
def test_groups_without_a_document_get_an_entry(format):
    store = MemoryStore()
    hierarchy(store, format)
    for key in ("a/zarr.json", "a/.zgroup", "a/.zattrs"):
        store.delete(key)
    zd.consolidate(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingGroupWarning)
        assert [path for path, _ in zd.open_group(store).walk()] == PATHS
    assert zd.open_group(store).stale() == []


def test_nodes_that_we_cannot_read_are_kept_as_they_are(store):
    name = "zarr.json" if key_of(store) == "zarr.json" else ".zarray"
    document = {**json.loads(store.values[f"y/{name}"]), "shape": "strange"}
    store.values[f"y/{name}"] = json.dumps(document).encode()
    group = zd.consolidate(store)
    assert "y  cannot be read" in group.tree()
    store.values[f"y/{name}"] = b"{"
    with pytest.raises(MetadataError, match="y/"):
        zd.consolidate(store)


def test_what_has_none(tmp_path):
    store = MemoryStore()
    zd.create_array(store, shape=(1,), dtype="i1")
    with pytest.raises(NodeTypeError):
        zd.consolidate(store)
    with pytest.raises(NodeNotFoundError):
        zd.consolidate(tmp_path)


def test_too_large_to_be_read(monkeypatch):
    store = MemoryStore()
    hierarchy(store, "v3")
    before = dict(store.values)
    monkeypatch.setattr("zarr_dask.formats.consolidated._MOST_BYTES", 1000)
    with pytest.raises(MetadataError, match="at most 1000 bytes"):
        zd.consolidate(store)
    assert store.values == before


# --- out of date ----------------------------------------------------------------------------------


def test_stale(store):
    group = zd.open_group(store)
    assert group.stale() == []
    change = zd.open_group(store, mode="r+")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConsolidatedMetadataWarning)
        change["a/b/x"].update_attributes({"unit": "km"})
        change.delete("e")
        change.create_group("new/er")
    assert group.stale() == change.stale() == ["a/b/x", "e", "new", "new/er"]
    zd.consolidate(store)
    assert group.stale() == []
    assert zd.open_group(store, "a").stale() == []  # has none


@pytest.mark.parametrize("change", ["create", "group", "delete", "rename", "attributes", "to_zarr"])
def test_every_change_below_warns(store, change):
    group = zd.open_group(store, mode="r+")
    array = group["a/b/x"]
    values = np.arange(4)
    act = {
        "create": lambda: group.create_array("a/n", shape=(1,), dtype="i1"),
        "group": lambda: group.create_group("n"),
        "delete": lambda: group.delete("y"),
        "rename": lambda: group.rename("e", "f"),
        "attributes": lambda: array.update_attributes({"k": 1}),
        "to_zarr": lambda: zd.to_zarr(
            zd.from_zarr(array), store, "z", **({"zarr_format": 2} if group.format == "v2" else {})
        ),
    }[change]
    with pytest.warns(ConsolidatedMetadataWarning, match="have not: whoever reads those sees"):
        act()
    assert group.stale()
    zd.consolidate(store)
    array[...] = values  # chunks are not described: no warning
    assert zd.open_group(store)["a/b/x"][...].tolist() == values.tolist()


@pytest.mark.parametrize("inner", ["m", "m/a"])
@pytest.mark.parametrize("node_format", ["v2", "v3"])
@pytest.mark.parametrize("change", ["resize", "append", "attributes", "to_zarr"])
def test_groups_that_local_files_lie_in_are_looked_at(tmp_path, node_format, inner, change):
    """An array that is opened by its own path is described by the group above all the same."""
    group = zd.create_group(tmp_path / "g.zarr", format=node_format)
    group.create_array("m/a", shape=(8,), dtype="i4", chunks=4)
    zd.consolidate(tmp_path / "g.zarr")
    path = "m/a".removeprefix(inner).strip("/")
    array = zd.open_array(tmp_path / "g.zarr" / inner, path, mode="r+")
    ones = np.ones(4, "i4")
    act = {
        "resize": lambda: array.resize((4,)),
        "append": lambda: array.append(ones, 0),
        "attributes": lambda: array.update_attributes({"k": 1}),
        "to_zarr": lambda: zd.to_zarr(da.from_array(ones), array, append=0),
    }[change]
    with pytest.warns(ConsolidatedMetadataWarning, match=r"of \S*g\.zarr have not: whoever"):
        act()
    assert zd.open_group(tmp_path / "g.zarr").stale() == ["m/a"]


def test_folders_above_that_are_no_groups_are_nobodys(tmp_path, recwarn):
    zd.create_group(tmp_path).create_array("old", shape=(8,), dtype="i4")
    zd.consolidate(tmp_path)
    array = zd.create_array(tmp_path / "no group" / "a", shape=(8,), dtype="i4", chunks=4)
    array.resize((4,))
    assert [str(one.message) for one in recwarn] == []


def test_attributes_of_the_group_itself(store):
    group = zd.open_group(store, mode="r+")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        group.update_attributes({"title": "other"})
    v2 = key_of(store) == ".zmetadata"
    assert len(warned) == v2  # v3 has them in the document itself
    assert group.stale() == ([""] if v2 else [])
    assert zd.open_group(store).attributes["title"] == "other"


def test_a_new_hierarchy_has_none(tmp_path):
    hierarchy(tmp_path / "h", "v2")
    zd.consolidate(tmp_path / "h")
    zd.create_group(tmp_path / "h", format="v2", overwrite=True)
    assert list(zd.open_group(tmp_path / "h")) == []
    assert not (tmp_path / "h" / ".zmetadata").exists()


def test_a_store_that_cannot_list(store):
    def refuse(method, key):
        if method.startswith("list"):
            raise zd.errors.ListingError("no listing here")

    group = zd.open_group(HookStore(store, refuse))
    assert [path for path, _ in group.walk()] == PATHS
    assert group["y"][...].tolist() == [7, 7, 7, 7]


# --- stores that others published -----------------------------------------------------------------


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_published_stores(public_data, tmp_path, version):
    shutil.copytree(public_data / "zarrita_js" / version / "data.zarr", tmp_path / "h")
    plain = zd.ReadOptions(consolidated=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [path for path, _ in zd.open_group(tmp_path / "h", read=plain).walk()]
        zd.consolidate(tmp_path / "h")
        found = [path for path, _ in zd.open_group(tmp_path / "h").walk()]
    assert found == expected
    assert len(found) > 20


# --- documents with parts changed at random -------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


def places(document, path=()):
    """Paths of all parts of a JSON document."""
    yield path
    items = enumerate(document) if isinstance(document, list) else ()
    for name, value in document.items() if isinstance(document, dict) else items:
        yield from places(value, (*path, name))


def changed(document, path, value):
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
def test_wrong_ones_are_read_or_refused(format, data):
    store = MemoryStore()
    hierarchy(store, format)
    zd.consolidate(store)
    document = json.loads(store.values[key_of(store)])
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = changed(document, path, data.draw(ANYTHING))
    store.values[key_of(store)] = json.dumps(document).encode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            group = zd.open(store)
            if isinstance(group, zd.Group):
                assert group.tree()
                group.stale()
        except zd.errors.ZarrDaskError:
            pass
