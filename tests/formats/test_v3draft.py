"""The v3 draft: the text of December 2022 and the layout of May 2022, byte for byte."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from itertools import product

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask import errors
from zarr_dask.stores import MemoryStore, Recording

DRAFT, MAY = "v3draft", "v3draft-2022-05"
CODECS = "https://purl.org/zarr/spec/codecs"
CORE = "https://purl.org/zarr/spec/core/3.0"
OF_MAY = "https://purl.org/zarr/spec/protocol/core/3.0"
JSON = {"type": "json", "metadata_key_suffix": ".json"}
ENTRY = {"zarr_format": CORE, "metadata_encoding": JSON, "extensions": []}
ENTRY_OF_MAY = {
    "zarr_format": OF_MAY,
    "metadata_encoding": OF_MAY,
    "metadata_key_suffix": ".json",
    "extensions": [],
}
ARRAY = {
    "shape": [4],
    "data_type": "uint8",
    "chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "/"},
    "chunk_memory_layout": "C",
    "fill_value": 9,
    "extensions": [],
    "attributes": {},
}
ARRAY_OF_MAY = ARRAY | {"data_type": "u1"}


def hierarchy(documents, data=None, entry=ENTRY):
    """A store with these documents and stored objects."""
    store = {key: json.dumps(document).encode() for key, document in documents.items()}
    if entry is not None:
        store["zarr.json"] = json.dumps(entry).encode()
    return store | (data or {})


def one_array(data=None, entry=ENTRY, **members):
    """The array ``a`` of December 2022, its members changed or (None) left out."""
    document = {k: v for k, v in (ARRAY | members).items() if v is not ABSENT}
    return hierarchy({"meta/a.array.json": document}, data, entry)


def array_of_may(data=None, **members):
    return hierarchy({"meta/root/a.array.json": ARRAY_OF_MAY | members}, data, ENTRY_OF_MAY)


ABSENT = object()


def values(store, path="a", **options):
    return zd.open_array(store, path, read=zd.ReadOptions(**options))[...].tolist()


# --- the entry point ------------------------------------------------------------------------------


@pytest.mark.conformance("C048")
def test_without_an_entry_point_there_is_no_hierarchy():
    store = one_array(entry=None)
    with pytest.raises(errors.NodeNotFoundError, match=r"zarr\.json"):
        zd.open(store, "a", format=DRAFT)
    for path in ("a", ""):
        with pytest.raises(errors.NodeNotFoundError):
            zd.open(store, path)
    assert values(store | hierarchy({})) == [9, 9, 9, 9]


@pytest.mark.conformance("C048")
def test_a_hierarchy_is_opened_at_its_root(tmp_path):
    zd.create_array(tmp_path, "b/a", shape=(4,), dtype="u1", format=DRAFT)
    assert zd.open(tmp_path, "b/a").shape == (4,)
    with pytest.raises(errors.NodeNotFoundError, match=r"root.*path= names the node"):
        zd.open(tmp_path / "meta", "b/a", format=DRAFT)


@pytest.mark.conformance("C049")
@pytest.mark.parametrize("entry", [ENTRY, ENTRY_OF_MAY], ids=[DRAFT, MAY])
@pytest.mark.parametrize("member", ["zarr_format", "metadata_encoding", "extensions"])
def test_the_entry_point_needs_its_members(entry, member):
    store = one_array(entry={k: v for k, v in entry.items() if k != member})
    for format in (None, DRAFT):
        with pytest.raises((errors.MetadataError, errors.NodeNotFoundError), match=r"zarr\.json"):
            zd.open(store, "a", format=format)
    with pytest.raises(errors.MetadataError) as caught:
        zd.open(store)
    assert [problem.field for problem in caught.value.problems] == [member]


@pytest.mark.conformance("C049")
@pytest.mark.parametrize(
    ("version", "is_read"),
    [
        (CORE, True),
        (OF_MAY, True),
        ("https://purl.org/zarr/spec/core/3.1", True),
        ("http://example.org/another/3", True),
        ("https://purl.org/zarr/spec/core/2.0", False),
        ("https://purl.org/zarr/spec/core/4.0", False),
        ("https://purl.org/zarr/spec/core/30", False),
        ("3.0", False),
        (3, False),
        (None, False),
    ],
)
def test_major_version_3_is_read(version, is_read):
    store = one_array(entry=ENTRY | {"zarr_format": version})
    if is_read:
        assert values(store) == [9, 9, 9, 9]
        return
    with pytest.raises(errors.MetadataError, match="zarr_format"):
        zd.open(store, "a")


@pytest.mark.conformance("C050")
@pytest.mark.parametrize(
    "encoding",
    [
        {"type": "msgpack", "metadata_key_suffix": ".msgpack"},
        {"extension": "http://example.org/m", "type": "m", "metadata_key_suffix": ".m"},
        {"extension": "http://example.org/m", "type": "json", "metadata_key_suffix": ".json"},
        {"metadata_key_suffix": ".json"},
        {"type": "json", "metadata_key_suffix": "/../a"},
        {"type": "json", "metadata_key_suffix": 7},
        "application/msgpack",
        7,
        [],
        None,
    ],
)
def test_other_encodings_are_refused(encoding):
    store = one_array(entry=ENTRY | {"metadata_encoding": encoding})
    for path in ("", "a"):
        with pytest.raises(errors.MetadataError, match="metadata_encoding"):
            zd.open(store, path)


@pytest.mark.conformance("C051")
@pytest.mark.parametrize("suffix", ["", ".txt", "-x"])
@pytest.mark.parametrize("root", ["", "root/"])
def test_another_suffix_of_keys(suffix, root):
    entry = (
        ENTRY_OF_MAY | {"metadata_key_suffix": suffix}
        if root
        else ENTRY | {"metadata_encoding": {"type": "json", "metadata_key_suffix": suffix}}
    )
    document = ARRAY_OF_MAY if root else ARRAY
    store = hierarchy(
        {
            f"meta/{root}a/b.array{suffix}": document,
            f"meta/{root}g.group{suffix}": {"attributes": {"x": 1}},
        },
        {f"data/{root}a/b/c0": b"\1\2"},
        entry,
    )
    group = zd.open_group(store, mode="r+")
    assert list(group) == ["a", "g"]
    assert group["g"].attributes == {"x": 1}
    assert group["a/b"][...].tolist() == [1, 2, 9, 9]
    before = set(store)
    group.create_array("c/d", shape=(1,), dtype="u1", codecs=[])[...] = 7
    zd.create_group(store, "c/e", format=group.format)
    assert set(store) - before == {
        f"meta/{root}c/d.array{suffix}",
        f"data/{root}c/d/c0",
        f"meta/{root}c/e.group{suffix}",
    }
    group["g"].update_attributes({"y": 2})
    assert json.loads(store[f"meta/{root}g.group{suffix}"]) == {"attributes": {"x": 1, "y": 2}}


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.conformance("C052")
@pytest.mark.parametrize(
    ("format", "path", "document", "data"),
    [
        (DRAFT, "", "meta/array.json", "data/c1/0"),
        (DRAFT, "foo/baz", "meta/foo/baz.array.json", "data/foo/baz/c1/0"),
        (MAY, "", "meta/root.array.json", "data/root/c1/0"),
        (MAY, "foo/baz", "meta/root/foo/baz.array.json", "data/root/foo/baz/c1/0"),
    ],
)
def test_keys_of_arrays(format, path, document, data):
    store = {}
    array = zd.create_array(store, path, shape=(2, 2), dtype="u1", chunks=1, format=format)
    array[1, 0] = 5
    assert set(store) == {"zarr.json", document, data}
    assert zd.open_array(store, path)[...].tolist() == [[0, 0], [5, 0]]


@pytest.mark.conformance("C052")
@pytest.mark.parametrize(
    ("format", "path", "document"),
    [
        (DRAFT, "", "meta/group.json"),
        (DRAFT, "foo/bar", "meta/foo/bar.group.json"),
        (MAY, "", "meta/root.group.json"),
        (MAY, "foo/bar", "meta/root/foo/bar.group.json"),
    ],
)
def test_keys_of_groups(format, path, document):
    store = {}
    zd.create_group(store, path, format=format, attributes={"spam": "ham"})
    assert set(store) == {"zarr.json", document}
    assert json.loads(store[document]) == {"attributes": {"spam": "ham"}}
    assert zd.open_group(store, path).attributes == {"spam": "ham"}


@pytest.mark.conformance("C053")
@pytest.mark.parametrize("encoding", [OF_MAY, CORE, "application/json"])
def test_the_layout_of_may_is_found_out(encoding):
    store = array_of_may({"data/root/a/c1": b"\1\2"})
    store["zarr.json"] = json.dumps(ENTRY_OF_MAY | {"metadata_encoding": encoding}).encode()
    array = zd.open_array(store, "a")
    assert array.format == MAY
    assert array[...].tolist() == [9, 9, 1, 2]
    assert zd.open_array(one_array(), "a").format == DRAFT


@pytest.mark.conformance("C054")
@pytest.mark.parametrize(
    ("shape", "index", "separator", "key"),
    [
        ((2, 24, 46), (1, 23, 45), "/", "c1/23/45"),
        ((2, 24, 46), (1, 23, 45), ".", "c1.23.45"),
        ((6,), (5,), "/", "c5"),
        ((6,), (5,), ".", "c5"),
        ((), (), "/", "c"),
        ((), (), ".", "c"),
    ],
)
@pytest.mark.parametrize(("format", "prefix"), [(DRAFT, "data/a/"), (MAY, "data/root/a/")])
def test_chunk_keys(shape, index, separator, key, format, prefix):
    store = {}
    if format == MAY and not shape:
        key = "c0"  # see below
    array = zd.create_array(
        store, "a", shape=shape, dtype="u1", chunks=(1,) * len(shape), codecs=[], format=format,
        chunk_key_encoding={"name": "draft", "separator": separator},
    )  # fmt: skip
    array[index] = 7
    assert {k: bytes(v) for k, v in store.items() if k.startswith("data/")} == {prefix + key: b"\7"}
    assert zd.open_array(store, "a")[index] == 7
    assert array.meta.chunk_key_encoding.coords(key, len(shape)) == index
    assert array.meta.chunk_key_encoding.coords(f"c/{key[1:]}", len(shape)) is None


def test_the_one_key_of_an_array_of_may_without_dimensions():
    """The text says c, zarr-python 2 writes and reads c0."""
    document = ARRAY_OF_MAY | {
        "shape": [],
        "chunk_grid": {"type": "regular", "chunk_shape": [], "separator": "/"},
    }
    for key in ("c", "c0"):
        store = hierarchy(
            {"meta/root/a.array.json": document}, {f"data/root/a/{key}": b"\5"}, ENTRY_OF_MAY
        )
        array = zd.open_array(store, "a", mode="r+")
        assert array[()] == 5
        array[()] = 6
        assert store[f"data/root/a/{key}"] == b"\6"
        assert len(store) == 3
    new = {}
    zd.create_array(new, "a", shape=(), dtype="u1", codecs=[], format=MAY)[()] = 7
    assert new["data/root/a/c0"] == b"\7"


@pytest.mark.parametrize("format", ["v3", "v2", "v1"])
def test_other_formats_have_no_such_keys(format):
    with pytest.raises(errors.MetadataError, match="chunk_key_encoding"):
        zd.create_array({}, shape=1, dtype="u1", format=format, chunk_key_encoding="draft")
    for draft in (DRAFT, MAY):
        with pytest.raises(errors.MetadataError, match="chunk_key_encoding"):
            zd.create_array({}, shape=1, dtype="u1", format=draft, chunk_key_encoding="default")


# --- documents ------------------------------------------------------------------------------------


@pytest.mark.conformance("C055")
@pytest.mark.parametrize("member", ["zarr_format", "node_type", "compressor", "dimension_names"])
def test_unknown_members_of_arrays_are_refused(member):
    with pytest.raises(errors.MetadataError, match=member):
        zd.open(one_array(**{member: None}), "a")
    assert values(one_array(dimension_separator=".")) == [9] * 4  # zarr-python 2 repeats it
    assert values(array_of_may(another="x")) == [9] * 4  # May 2022 has no such rule


@pytest.mark.parametrize("member", sorted(ARRAY.keys() - {"extensions", "chunk_memory_layout"}))
def test_arrays_need_their_members(member):
    with pytest.raises(errors.MetadataError) as caught:
        zd.open(one_array(**{member: ABSENT}), "a")
    assert [problem.field for problem in caught.value.problems] == [member]


@pytest.mark.conformance("C056")
@pytest.mark.parametrize("place", ["entry", "array", "array of May"])
def test_extensions_that_must_be_understood(place):
    def store(**members):
        extensions = [{"extension": "http://example.org/foo", **members}]
        if place == "entry":
            return one_array(entry=ENTRY | {"extensions": extensions})
        if place == "array":
            return one_array(extensions=extensions)
        return array_of_may(extensions=extensions)

    assert values(store(must_understand=False, configuration={"foo": "bar"})) == [9] * 4
    for wrong in ({"must_understand": True}, {"must_understand": "false"}, {}):
        with pytest.raises(errors.MetadataError, match="must_understand"):
            zd.open(store(**wrong), "a")


def test_extensions_of_an_array_are_kept():
    extensions = [{"extension": "http://example.org/foo", "must_understand": False}]
    store = one_array(extensions=extensions)
    zd.open_array(store, "a", mode="r+").update_attributes({"x": 1})
    assert json.loads(store["meta/a.array.json"])["extensions"] == extensions


# --- the hierarchy --------------------------------------------------------------------------------


@pytest.mark.conformance("C057")
@pytest.mark.parametrize(("root", "entry"), [("", ENTRY), ("root/", ENTRY_OF_MAY)])
def test_what_has_something_below_is_a_group(root, entry):
    store = hierarchy({f"meta/{root}a/b/c.group.json": {"attributes": {}}}, entry=entry)
    for path in ("", "a", "a/b", "a/b/c"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert zd.open_group(store, path).attributes == {}
    for path in ("b", "a/c", "a/b/c/d", "a/b/c.group.json"):
        with pytest.raises(errors.NodeNotFoundError):
            zd.open(store, path)


@pytest.mark.conformance("C058")
@pytest.mark.parametrize(("format", "key"), [(DRAFT, "meta/a/b/c"), (MAY, "meta/root/a/b/c")])
def test_groups_above_a_node_get_no_documents(format, key):
    store, other = {}, {}
    zd.create_array(store, "a/b/c", shape=(1,), dtype="u1", format=format)
    assert set(store) == {"zarr.json", f"{key}.array.json"}
    zd.create_group(other, "a/b/c", format=format)
    assert set(other) == {"zarr.json", f"{key}.group.json"}


def test_a_group_may_be_given_a_document():
    store = {}
    zd.create_array(store, "a/b", shape=(1,), dtype="u1", format=DRAFT)[...] = 3
    zd.create_group(store, "a", format=DRAFT, attributes={"x": 1})
    assert zd.open_group(store, "a").attributes == {"x": 1}
    assert zd.open_array(store, "a/b")[0] == 3
    with pytest.raises(errors.NodeExistsError):
        zd.create_group(store, "a", format=DRAFT)


@pytest.mark.conformance("C059")
def test_order_of_the_test_for_a_node():
    group = {"attributes": {}}
    documents = {
        "meta/a.array.json": ARRAY,
        "meta/a.group.json": group,
        "meta/a/b.group.json": group,
    }
    found = []
    with pytest.warns(errors.ZarrDaskWarning, match="both an array and a group"):
        zd.open(hierarchy(documents), "a")
    while documents:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = zd.open(hierarchy(documents), "a")
        found.append((type(node).__name__, getattr(node.meta, "implicit", False)))
        documents.pop(next(iter(documents)))
    assert found == [("Array", False), ("Group", False), ("Group", True)]
    recording = Recording(MemoryStore(hierarchy({"meta/a/b.group.json": group})))
    zd.open(recording, "a", format=DRAFT)
    asked = [(request.method, request.key) for request in recording.requests]
    assert asked[-3:] == [
        ("get", "meta/a.array.json"),
        ("get", "meta/a.group.json"),
        ("list_dir", "meta/a/"),
    ]


@pytest.mark.conformance("C060")
@pytest.mark.parametrize(("root", "entry"), [("", ENTRY), ("root/", ENTRY_OF_MAY)])
def test_children(root, entry):
    """The example of the text, with the key that it means."""
    group, array = {"attributes": {}}, ARRAY if not root else ARRAY_OF_MAY
    store = MemoryStore(
        hierarchy(
            {
                f"meta/{root}foo/bar.group.json": group,
                f"meta/{root}foo/bar/x.group.json": group,
                f"meta/{root}foo/baz/qux.array.json": array,
                f"meta/{root}top.array.json": array,
                f"meta/{root}foo/readme.txt": {},
            },
            entry=entry,
        )
    )
    recording = Recording(store)
    root_group = zd.open_group(recording)
    assert list(root_group) == ["foo", "top"]
    assert list(root_group["foo"]) == ["bar", "baz"]
    kinds = {path: type(node).__name__ for path, node in root_group.walk()}
    assert kinds == {
        "foo": "Group",
        "foo/bar": "Group",
        "foo/bar/x": "Group",
        "foo/baz": "Group",
        "foo/baz/qux": "Array",
        "top": "Array",
    }
    assert not [request.key for request in recording.requests if "//" in request.key]


@pytest.mark.conformance("C061")
@pytest.mark.parametrize("format", [DRAFT, MAY])
def test_names_of_nodes(format):
    for name in ("é", "a b", "a:b", "a*", "...", "ä/b", "b/....", "\u0130"):
        for create in (
            zd.create_group,
            lambda *a, **o: zd.create_array(*a, **o, shape=1, dtype="u1"),
        ):
            with pytest.raises(errors.StoreKeyError):
                create({}, name, format=format)
    for name in ("a-Z_0.9", "__a", "zarr.json", ".a", "a" * 255):
        store = {}
        zd.create_group(store, name, format=format)
        assert list(zd.open_group(store)) == [name]
    assert zd.create_group({}, "a" * 256, format=DRAFT)
    with pytest.raises(errors.StoreKeyError):
        zd.create_group({}, "a" * 256, format=MAY)
    node_format = zd.create_group({}, format=format).node_format
    assert not node_format.is_node_name("")


@pytest.mark.conformance("C071")
@pytest.mark.parametrize(("root", "entry"), [("", ENTRY), ("root/", ENTRY_OF_MAY)])
def test_erasing(root, entry):
    group, array = {"attributes": {}}, ARRAY if not root else ARRAY_OF_MAY
    below = {
        f"meta/{root}g/a.array.json": array,
        f"meta/{root}g/a.b.array.json": array,
        f"meta/{root}g/a/x.group.json": group,
        f"meta/{root}g.group.json": group,
        f"meta/{root}gg.array.json": array,
    }
    data = {f"data/{root}{path}/c{n}": b"\1\2" for path in ("g/a", "g/a.b", "gg") for n in range(2)}
    store = hierarchy(below, data, entry)
    before = set(store)
    zd.delete(store, "g/a")
    assert before - set(store) == {
        f"meta/{root}g/a.array.json",
        f"data/{root}g/a/c0",
        f"data/{root}g/a/c1",
    }
    zd.delete(store, "g/a")  # a group now, by what lies below
    assert f"meta/{root}g/a/x.group.json" not in store
    zd.delete(store, "g")
    assert set(store) == {
        "zarr.json",
        f"meta/{root}gg.array.json",
        f"data/{root}gg/c0",
        f"data/{root}gg/c1",
    }


def test_overwriting_and_renaming():
    store = {}
    zd.create_array(store, "g/a", shape=(4,), dtype="u1", chunks=2, format=DRAFT)[...] = 1
    zd.create_array(store, "g/b", shape=(4,), dtype="u1", chunks=2, format=DRAFT)[...] = 2
    with pytest.raises(errors.NodeExistsError):
        zd.create_array(store, "g/a", shape=(2,), dtype="u1", format=DRAFT)
    zd.create_array(store, "g/a", shape=(2,), dtype="u1", format=DRAFT, overwrite=True)
    assert values(store, "g/a") == [0, 0]
    root = zd.open_group(store, mode="r+")
    root.rename("g", "h/i")
    assert dict(root.arrays(recursive=True)).keys() == {"h/i/a", "h/i/b"}
    assert values(store, "h/i/b") == [2, 2, 2, 2]
    assert not [key for key in store if "/g" in key]
    zd.create_array(store, "h", shape=(2,), dtype="u1", format=DRAFT, overwrite=True)
    assert not [key for key in store if key.startswith(("meta/h/", "data/h/"))]


@pytest.mark.parametrize("other", ["v3", "v2", MAY])
def test_hierarchies_of_two_kinds_do_not_mix(other):
    store = {}
    zd.create_array(store, "a", shape=(1,), dtype="u1", format=DRAFT)[...] = 5
    before = dict(store)
    with pytest.raises(errors.NodeExistsError):
        zd.create_group(store, format=other)
    assert store == before
    if other != "v2":
        reverse = {}
        zd.create_array(reverse, "b", shape=(1,), dtype="u1", format=other)
        before = dict(reverse)
        with pytest.raises(errors.NodeExistsError, match="format"):
            zd.create_array(reverse, "a", shape=(1,), dtype="u1", format=DRAFT)
        assert reverse == before
    zd.create_group(store, format=other, overwrite=True)
    assert zd.open_group(store).format == other
    assert list(zd.open_group(store)) == []


@pytest.mark.parametrize("entry", [ENTRY, ENTRY_OF_MAY | {"extensions": 7}, {"zarr_format": "x"}])
@pytest.mark.parametrize("format", [DRAFT, MAY, "v3"])
def test_a_root_is_replaced_whatever_it_was(entry, format):
    store = hierarchy({"meta/a.array.json": ARRAY}, {"data/a/c0": b"12"}, entry)
    store["zarr.json"] = json.dumps(entry).encode()
    with pytest.raises((errors.NodeExistsError, errors.MetadataError)):
        zd.create_array(store, shape=2, dtype="u1", format="v3" if format == DRAFT else format)
    zd.create_array(store, shape=2, dtype="u1", format=format, overwrite=True)[...] = 7
    assert len(store) == (2 if format == "v3" else 3)
    array = zd.open_array(store)
    assert (array.format, array[...].tolist()) == (format, [7, 7])


def test_documents_of_two_formats_at_the_root():
    store = one_array() | {".zgroup": b'{"zarr_format": 2}'}
    with pytest.warns(errors.ZarrDaskWarning, match="documents of another format"):
        assert zd.open(store).format == DRAFT
    assert zd.open(store, format="v2").format == "v2"


def test_other_formats_pay_nothing():
    """The root is asked only where nothing was found at the path."""
    recording = Recording(MemoryStore())
    zd.create_array(recording, "a/b", shape=(1,), dtype="u1")
    recording.clear()
    zd.open(recording, "a/b")
    assert "zarr.json" not in recording.per_key()
    assert sum(recording.batches.values()) == 1
    recording.clear()
    zd.open(recording)
    assert sum(recording.batches.values()) == 1


# --- data types -----------------------------------------------------------------------------------

CORE_TYPES = {
    "bool": "?",
    **{f"{sign}int{8 * n}": f"{sign[:1] or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)},
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "complex64": "c8",
    "complex128": "c16",
    "r8": "V1",
    "r24": "V3",
    "r128": "V16",
}
NAMES_OF_MAY = {
    "bool": "?",
    "i1": "i1",
    "u1": "u1",
    **{f"{o}{kind}{n}": f"{o}{kind}{n}" for o in "<>" for kind in "iuf" for n in (2, 4, 8)},
    "r16": "V2",
}


def sample(dtype, n=5):
    raw = np.random.default_rng(3).bytes(n * np.dtype(dtype).itemsize)
    if np.dtype(dtype).kind == "b":
        return np.array([byte % 2 for byte in raw], dtype)
    return np.frombuffer(raw, dtype)


@pytest.mark.conformance("C062", "C069")
@pytest.mark.parametrize("name", CORE_TYPES)
def test_core_types(name):
    """Read from little-endian bytes, and written as such, without codecs."""
    stored = sample(np.dtype(CORE_TYPES[name]).newbyteorder("<"))
    zero = {"b": False, "c": [0, 0], "V": f"0x{'00' * stored.itemsize}"}.get(stored.dtype.kind, 0)
    store = one_array(
        {"data/a/c0": stored.tobytes()},
        shape=[5], data_type=name, fill_value=zero,
        chunk_grid={"type": "regular", "chunk_shape": [5], "separator": "/"},
    )  # fmt: skip
    array = zd.open_array(store, "a")
    native = stored.astype(stored.dtype.newbyteorder("="))
    assert array.dtype == native.dtype
    assert array[...].tobytes() == native.tobytes()
    again = {}
    made = zd.create_array(
        again, "a", shape=5, dtype=array.dtype, chunks=5, codecs=[], format=DRAFT
    )
    made[...] = native
    assert again["data/a/c0"] == stored.tobytes()
    document = json.loads(again["meta/a.array.json"])
    assert document["data_type"] == name
    assert document["codecs"] == []
    assert document["fill_value"] == zero


@pytest.mark.conformance("C062")
@pytest.mark.parametrize("name", NAMES_OF_MAY)
@pytest.mark.parametrize("document", ["2022-05", "2022-12"])
def test_names_of_may(name, document):
    stored = sample(NAMES_OF_MAY[name], 2)
    zero = {"b": False, "V": "0x0000"}.get(stored.dtype.kind, 0)
    members = {"data_type": name, "fill_value": zero}
    if document == "2022-05":
        store = array_of_may({"data/root/a/c0": stored.tobytes()}, **members)
    else:
        store = one_array({"data/a/c0": stored.tobytes()}, **members)
    array = zd.open_array(store, "a")
    assert array.dtype == stored.dtype.newbyteorder("=")
    assert array[:2].tobytes() == stored.astype(array.dtype).tobytes()


@pytest.mark.parametrize(
    "name",
    [
        "r7",
        "r0",
        "r012",
        "r99999999999",
        "float128",
        "<f16",
        "f8",
        "|i2",
        "int",
        8,
        True,
        None,
        ["<f8"],
    ],
)
def test_other_types_are_refused(name):
    with pytest.raises(errors.MetadataError, match="data_type"):
        zd.open(one_array(data_type=name), "a")


def endian(order):
    return {"type": f"{CODECS}/endian/1.0", "configuration": {"endian": order}}


@pytest.mark.conformance("C063")
@pytest.mark.parametrize(
    ("name", "codecs", "order"),
    [
        ("float64", [], "<"),
        ("<f8", [], "<"),
        (">f8", [], ">"),
        ("float64", [endian("big")], ">"),
        ("float64", [endian("little")], "<"),
        ("<f8", [endian("little")], "<"),
        (">f8", [endian("big")], ">"),
        (">f8", [endian("little")], None),
        ("<f8", [endian("big")], None),
    ],
)
def test_byte_order(name, codecs, order):
    store = one_array(data_type=name, codecs=codecs, fill_value=0)
    if order is None:
        with pytest.raises(errors.MetadataError, match="byte order"):
            zd.open(store, "a")
        return
    store["data/a/c0"] = np.array([1.5, -2], f"{order}f8").tobytes()
    assert values(store) == [1.5, -2, 0, 0]


UNKNOWN = {"extension": "http://example.org/decimal/1.0", "type": "decimal16"}


@pytest.mark.conformance("C064")
def test_fallbacks_are_for_those_who_ask():
    data = {"data/a/c0": b"\1\0\2\0"}
    store = one_array(
        data, data_type=UNKNOWN | {"fallback": ["decimal", "r7", "int16", "r16"]}, fill_value=7
    )
    with pytest.raises(errors.UnknownDataTypeError, match="fallback_dtypes=True"):
        zd.open(store, "a")
    with pytest.warns(errors.ZarrDaskWarning, match="decimal16.*int16"):
        assert values(store, fallback_dtypes=True) == [1, 2, 7, 7]
    raw = one_array(data, data_type=UNKNOWN | {"fallback": "r16"}, fill_value="1.5")
    with pytest.warns(errors.ZarrDaskWarning, match="decimal16"):
        assert values(raw, fallback_dtypes=True) == [b"\1\0", b"\2\0", b"\0\0", b"\0\0"]
    for fallback in ({}, {"fallback": None}, {"fallback": []}, {"fallback": ["x", 7]}):
        with pytest.raises(errors.UnknownDataTypeError):
            values(one_array(data, data_type=UNKNOWN | fallback), fallback_dtypes=True)


@pytest.mark.parametrize(
    ("make", "key"), [(one_array, "meta/a.array.json"), (array_of_may, "meta/root/a.array.json")]
)
@pytest.mark.parametrize("fill", [7, "1.5"])
@pytest.mark.filterwarnings("ignore:.*decimal16")
def test_what_is_read_as_a_fallback_keeps_its_own_type_and_fill_value(make, key, fill):
    store = make(data_type=UNKNOWN | {"fallback": ">i2"}, fill_value=fill)
    before = json.loads(store[key])
    options = zd.ReadOptions(fallback_dtypes=True)
    array = zd.open_array(store, "a", mode="r+", read=options)
    array = array.update_attributes({"new": 1}).resize(9)
    after = json.loads(store[key])
    for name in ("data_type", "fill_value", "chunk_grid", "chunk_memory_layout"):
        assert after[name] == before[name]
    assert after.get("codecs", []) == before.get("codecs", [])
    assert (after["shape"], after["attributes"]["new"]) == ([9], 1)
    stored = dict(store)
    with pytest.raises(errors.UnknownCodecError, match="decimal16"):
        array[0] = 1
    with pytest.raises(errors.UnknownCodecError, match="decimal16"):
        array.resize(1, prune=True)
    with pytest.raises(errors.MigrationError, match=r"decimal16.*fallback"):
        zd.migrate(store, {}, read=options)
    assert store == stored


def test_a_known_extension_needs_no_fallback():
    """The second example of the text, whose null is forbidden by its prose."""
    extension = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
    store = one_array(
        {"data/a/c0": np.array([1, 2], "<i8").tobytes()},
        data_type={"extension": extension, "type": "<M8[ns]", "fallback": "<i8"},
        codecs=[{"type": f"{CODECS}/gzip/1.0", "configuration": {"level": 1}}],
        fill_value=3,
    )
    store["data/a/c0"] = zlib_gzip(store["data/a/c0"])
    array = zd.open_array(store, "a")
    assert array.dtype == "M8[ns]"
    assert array[...].astype("i8").tolist() == [1, 2, 3, 3]


def zlib_gzip(raw):
    import gzip

    return gzip.compress(raw)


EXTENSIONS = {
    "M8[ns]": ("<M8[ns]", "int64"),
    ">m8[25s]": (">m8[25s]", "r64"),
    "S3": ("|S3", "r24"),
    "U2": ("<U2", "r64"),
    ">U2": (">U2", "r64"),
    "<i4,>f8": ([["f0", "<i4"], ["f1", ">f8"]], "r96"),
    "u1,(2,)<i2": ([["f0", "|u1"], ["f1", "<i2", [2]]], "r40"),
}


@pytest.mark.parametrize("dtype", EXTENSIONS)
@pytest.mark.parametrize("format", [DRAFT, MAY])
def test_types_of_extensions(dtype, format):
    stored = np.dtype(dtype)
    wanted = (
        sample(stored) if stored.kind != "U" else np.array(["a", "\u00e9b", "", "cd", "e"], stored)
    )
    store = {}
    array = zd.create_array(store, "a", shape=5, dtype=stored, chunks=2, codecs=[], format=format)
    array[...] = wanted
    again = zd.open_array(store, "a")
    assert again[...].tobytes() == wanted.astype(again.dtype).tobytes()
    data = [store[again.key((n,))] for n in range(3)]
    assert b"".join(data)[: wanted.nbytes] == wanted.tobytes()
    document = json.loads(store[again.node_format.node_keys("a")[0]])
    name, fallback = EXTENSIONS[dtype]
    assert document["data_type"]["type"] == name
    assert document["data_type"].get("fallback") == (fallback if format == DRAFT else None)
    assert "endian" not in json.dumps(document)  # the type says it
    assert zd.open_array(store, "a").meta.codecs == array.meta.codecs


# --- fill values ----------------------------------------------------------------------------------

NAN = float("nan")


def fill_bits(name, value, **options):
    store = one_array(data_type=name, fill_value=value)
    array = zd.open_array(store, "a", read=zd.ReadOptions(**options))
    return array[0].tobytes()[::-1].hex()


@pytest.mark.conformance("C065")
@pytest.mark.parametrize(
    ("name", "value", "bits"),
    [
        ("float32", "NaN", "7fc00000"),
        ("float64", "NaN", "7ff8000000000000"),
        ("float32", "+Infinity", "7f800000"),
        ("float32", "Infinity", "7f800000"),
        ("float32", "-Infinity", "ff800000"),
        ("float32", "0x7fc00001", "7fc00001"),
        ("float32", "0x00000000", "00000000"),
        ("float32", "0b" + "1" * 9 + "0" * 22 + "1", "ff800001"),
        ("float16", "0x7e01", "7e01"),
        ("float16", "0b1000000000000000", "8000"),
        ("float64", "0x7FF8000000000123", "7ff8000000000123"),
        ("float32", -0.0, "80000000"),
        ("float32", 1, "3f800000"),
        ("r16", "0x0102", "0201"),
        ("r16", "0b0000000100000010", "0201"),
        ("r16", "AQI=", "0201"),
        ("complex64", ["NaN", "0xff800001"], "ff8000017fc00000"),
    ],
)
def test_fill_values(name, value, bits):
    assert fill_bits(name, value) == bits


@pytest.mark.conformance("C065")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float32", "0x7fc0000"),
        ("float32", "0x07fc00001"),
        ("float32", "0b1"),
        ("float32", "0b" + "0" * 33),
        ("float32", "0x"),
        ("float32", "nan"),
        ("float32", "inf"),
        ("float32", "1.5"),
        ("float32", True),
        ("float32", [1]),
        ("r16", "0x01"),
        ("r16", "0x010203"),
        ("r16", 1),
        ("bool", 0),
        ("bool", "false"),
        ("complex64", [1, 2, 3]),
    ],
)
def test_wrong_fill_values(name, value):
    with pytest.raises(errors.MetadataError, match="fill_value"):
        zd.open(one_array(data_type=name, fill_value=value), "a")


@pytest.mark.conformance("C065")
@pytest.mark.parametrize(
    ("value", "written"),
    [
        (NAN, "NaN"),
        (np.inf, "+Infinity"),
        (-np.inf, "-Infinity"),
        (np.array(0x7FC00001, "u4").view("f4"), "0x7fc00001"),
        (1.5, 1.5),
    ],
)
def test_written_fill_values(value, written):
    store = {}
    zd.create_array(store, "a", shape=1, dtype="f4", fill_value=value, format=DRAFT)
    assert json.loads(store["meta/a.array.json"])["fill_value"] == written
    bits = np.asarray(value, "f4").tobytes()
    assert zd.open_array(store, "a")[0].tobytes() == bits


@pytest.mark.conformance("C066")
@pytest.mark.parametrize("name", ["uint8", "float32", "bool", "complex64", "r16"])
def test_null_is_read_as_zero_and_never_written(name):
    store = one_array(data_type=name, fill_value=None)
    with pytest.warns(errors.ZarrDaskWarning, match="fill_value is null"):
        array = zd.open_array(store, "a", mode="r+")
    assert not any(array[...].tobytes())
    with pytest.warns(errors.ZarrDaskWarning, match="null"):
        array.update_attributes({"x": 1})
    assert json.loads(store["meta/a.array.json"])["fill_value"] is not None
    zd.open_array(store, "a")  # without a warning
    for format in (DRAFT, MAY):
        with pytest.raises(errors.DataTypeError, match="fill_value=None"):
            zd.create_array({}, shape=1, dtype="u1", fill_value=None, format=format)
    assert values(array_of_may(fill_value=None)) == [0] * 4  # May 2022 allows it


@pytest.mark.conformance("C067")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("uint8", value) for value in (1.0, 1.5, -1, 256, True, "1", "0x01")),
        ("int8", 128),
        ("int64", 1 << 63),
        ("uint64", 1 << 64),
        ("uint64", 1e2),
    ],
)
def test_integer_fill_values(name, value):
    with pytest.raises(errors.MetadataError, match="fill_value"):
        zd.open(one_array(data_type=name, fill_value=value), "a")
    assert fill_bits("uint64", (1 << 64) - 1) == "f" * 16
    assert fill_bits("int64", -(1 << 63)) == "8" + "0" * 15


# --- chunks ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C068")
@pytest.mark.parametrize("format", [DRAFT, MAY])
def test_layout_f(format):
    store = {}
    array = zd.create_array(
        store, "a", shape=(2, 3), dtype="i4", chunks=(2, 3), codecs=[], order="F", format=format
    )
    array[...] = np.arange(6).reshape(2, 3)
    (key,) = [key for key in store if key.startswith("data/")]
    assert np.frombuffer(store[key], "<i4").tolist() == [0, 3, 1, 4, 2, 5]
    document = json.loads(store[array.node_format.node_keys("a")[0]])
    assert document["chunk_memory_layout"] == "F"
    again = zd.open_array(store, "a")
    assert again[...].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert again[1, 1:].tolist() == [4, 5]


@pytest.mark.conformance("C068")
def test_layout_f_of_three_dimensions():
    """All dimensions are reversed, before the first codec."""
    wanted = np.arange(24, dtype="u1").reshape(2, 3, 4)
    grid = {"type": "regular", "chunk_shape": [2, 3, 4], "separator": "."}
    store = one_array(
        {"data/a/c0.0.0": wanted.tobytes("F")},
        shape=[2, 3, 4], chunk_grid=grid, chunk_memory_layout="F",
    )  # fmt: skip
    assert values(store) == wanted.tolist()


def transpose(order, name="transpose"):
    return {"type": f"{CODECS}/{name}/1.0", "configuration": {"order": order}}


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize(
    ("order", "axes"), [([2, 0, 1], (2, 0, 1)), ("C", (0, 1, 2)), ("F", (2, 1, 0))]
)
@pytest.mark.parametrize("swap", ["before", "after", None])
@pytest.mark.parametrize("name", ["transpose", "endian"])
def test_transpose_and_endian_in_any_order(layout, order, axes, swap, name):
    """What 'endian' made is taken apart element by element, and put together elsewhere."""
    wanted = np.arange(24, dtype="i4").reshape(2, 3, 4)
    moved = (wanted if layout == "C" else wanted.T).transpose(axes)
    codecs = [transpose(order, name)]
    if swap is not None:
        codecs.insert(0 if swap == "before" else 1, endian("big"))
    store = one_array(
        {"data/a/c0/0/0": moved.astype(">i4" if swap else "<i4").tobytes()},
        shape=[2, 3, 4],
        data_type="int32",
        chunk_grid={"type": "regular", "chunk_shape": [2, 3, 4], "separator": "/"},
        chunk_memory_layout=layout,
        codecs=codecs,
    )
    assert values(store) == wanted.tolist()


def gzip_codec(**members):
    return {"type": f"{CODECS}/gzip/1.0", "configuration": {"level": 1}} | members


@pytest.mark.parametrize(
    ("codecs", "error"),
    [
        ([gzip_codec(), endian("big")], errors.MetadataError),
        ([gzip_codec(), transpose([0])], errors.MetadataError),
        ([endian("big"), endian("big")], errors.MetadataError),
        ([endian("middle")], errors.MetadataError),
        ([transpose([0, 0])], errors.MetadataError),
        ([transpose("A")], errors.MetadataError),
        ([gzip_codec(type="gzip")], errors.UnknownCodecError),
        ([gzip_codec(type=f"{CODECS}/jpeg/1.0")], errors.UnknownCodecError),
        ([gzip_codec(type="https://example.org/codecs/gzip/1.0")], errors.UnknownCodecError),
        ([gzip_codec(type=7)], errors.MetadataError),
        ([gzip_codec(configuration=[])], errors.MetadataError),
        ([gzip_codec(configuration={"level": 10})], errors.MetadataError),
        ([gzip_codec(configuration={"level": 1, "x": 1})], errors.MetadataError),
        ([gzip_codec(x=1)], errors.MetadataError),
        (["gzip"], errors.MetadataError),
        ({}, errors.MetadataError),
    ],
)
def test_wrong_codecs(codecs, error):
    with pytest.raises(error, match="codecs"):
        zd.open(one_array(codecs=codecs), "a")


VALUES = np.arange(100, 116, dtype="i4").reshape(4, 4)


def blosc_frame(shuffle, typesize=4, cname="zstd"):
    from numcodecs.blosc import compress

    raw = VALUES.view(f"u{typesize}")
    return compress(raw, cname.encode(), 5, shuffle)


@pytest.mark.conformance("C070")
@pytest.mark.parametrize(
    "uri",
    [
        "https://purl.org/zarr/spec/codecs/{}/1.0",
        "https://purl.org/zarr/spec/codec/{}/1.0",
        "https://purl.org/zarr/spec/codec/{}",
        "http://purl.org/zarr/spec/codecs/{}",
    ],
)
@pytest.mark.parametrize("name", ["gzip", "blosc", "endian"])
def test_codecs_by_uri(uri, name):
    configuration, raw = {
        "gzip": ({"level": 4}, zlib_gzip(VALUES.astype("<i4").tobytes())),
        "blosc": (
            {"cname": "zstd", "clevel": 5, "shuffle": 1, "blocksize": 0},
            blosc_frame(1),
        ),
        "endian": ({"endian": "big"}, VALUES.astype(">i4").tobytes()),
    }[name]
    for key in ("type", "codec"):
        codec = {key: uri.format(name), "configuration": configuration}
        store = one_array(
            {"data/a/c0/0": raw}, shape=[4, 4], data_type="int32", codecs=[codec],
            chunk_grid={"type": "regular", "chunk_shape": [4, 4], "separator": "/"},
        )  # fmt: skip
        assert values(store) == VALUES.tolist()


@pytest.mark.conformance("C070")
@pytest.mark.parametrize("shuffle", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", ["i4", "u1"])
def test_blosc_takes_its_item_size_from_the_elements(shuffle, dtype):
    """Header bytes: flags (bit 0 shuffled by bytes, bit 2 by bits), then the item size."""
    codec = {
        "type": f"{CODECS}/blosc/1.0",
        "configuration": {"cname": "lz4", "clevel": 5, "shuffle": shuffle, "blocksize": 0},
    }
    store = {}
    array = zd.create_array(
        store, "a", shape=(64, 64), dtype=dtype, chunks=(64, 64), codecs=[codec], format=DRAFT
    )
    wanted = np.arange(4096).reshape(64, 64).astype(dtype)
    array[...] = wanted
    assert json.loads(store["meta/a.array.json"])["codecs"] == [codec]
    flags, typesize = store["data/a/c0/0"][2:4]
    itemsize = np.dtype(dtype).itemsize
    effective = (2 if itemsize == 1 else 1) if shuffle == -1 else shuffle
    assert flags & 0b101 == {0: 0, 1: 1, 2: 4}[effective]
    assert typesize == itemsize
    assert zd.open_array(store, "a")[...].tolist() == wanted.tolist()


@pytest.mark.conformance("C070")
def test_written_codecs():
    store = {}
    codecs = ["gzip", {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 3}}]
    array = zd.create_array(store, "a", shape=4, dtype=">i4", chunks=4, codecs=codecs, format=DRAFT)
    array[...] = [1, 2, 3, 4]
    assert json.loads(store["meta/a.array.json"])["codecs"] == [
        {"type": f"{CODECS}/endian/1.0", "configuration": {"endian": "big"}},
        {"type": f"{CODECS}/gzip/1.0", "configuration": {"level": 5}},
        {
            "type": f"{CODECS}/blosc/1.0",
            "configuration": {"cname": "zstd", "clevel": 3, "shuffle": 1, "blocksize": 0},
        },
    ]
    assert values(store) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "swap",
    [
        {"type": f"{CODECS}/endian/1.0", "configuration": {"endian": "big"}},
        {"name": "bytes", "configuration": {"endian": "big"}},
    ],
)
@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
@pytest.mark.parametrize(("format", "prefix"), [(DRAFT, "data/a/"), (MAY, "data/root/a/")])
def test_a_byte_order_among_the_codecs(swap, dtype, format, prefix):
    store = {}
    array = zd.create_array(
        store, "a", shape=2, dtype=dtype, chunks=2, codecs=[swap], format=format
    )
    array[...] = [1, 2]
    assert bytes(store[f"{prefix}c0"]) == bytes([0, 0, 0, 1, 0, 0, 0, 2])
    assert values(store) == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"codecs": ["zstd"]},
        {"codecs": ["crc32c"]},
        {"codecs": [{"id": "delta", "dtype": "<i4"}]},
        {"dtype": "string"},
        {"dtype": "int4"},
        {"codecs": [{"name": "transpose", "configuration": {"order": [0]}}]},
    ],
)
def test_what_the_draft_cannot_say(options):
    with pytest.raises(errors.MetadataError):
        zd.create_array({}, **{"shape": 4, "dtype": "i4", "format": DRAFT} | options)


@pytest.mark.parametrize("format", [DRAFT, MAY])
def test_edge_chunks_are_whole(format):
    store = {}
    array = zd.create_array(
        store, "a", shape=3, dtype="u1", chunks=2, codecs=[], fill_value=9, format=format
    )
    array[...] = [1, 2, 3]
    data = {key.rsplit("/")[-1]: bytes(v) for key, v in store.items() if key.startswith("data/")}
    assert data == {"c0": b"\1\2", "c1": b"\3\x09"}


def test_filters_among_the_attributes():
    filters = [{"id": "delta", "dtype": "<i4"}]
    store = {}
    array = zd.create_array(
        store, "a", shape=(2, 3), dtype="i4", chunks=(2, 3), codecs=filters, order="F",
        attributes={"unit": "m"}, format=MAY,
    )  # fmt: skip
    array[...] = np.arange(6).reshape(2, 3)
    assert np.frombuffer(store["data/root/a/c0/0"], "<i4").tolist() == [0, 3, -2, 3, -2, 3]
    written = json.loads(store["meta/root/a.array.json"])["attributes"]
    assert written == {"unit": "m", "filters": [{"id": "delta", "dtype": "<i4"}]}
    again = zd.open_array(store, "a")
    assert again.attributes == {"unit": "m"}
    assert again[...].tolist() == [[0, 1, 2], [3, 4, 5]]
    for attribute in (filters, "mine"):
        with pytest.raises(errors.MetadataError, match=r"attributes\.filters"):
            zd.create_array(
                {}, shape=1, dtype="i4", codecs=filters, attributes={"filters": attribute},
                format=MAY,
            )  # fmt: skip
    mine = zd.create_array({}, shape=1, dtype="i4", attributes={"filters": "mine"}, format=MAY)
    assert zd.open_array(mine.store).attributes == {"filters": "mine"}


# --- shards ---------------------------------------------------------------------------------------

GOLDEN_SHARD = bytes.fromhex("0708030405060102") + struct.pack("<8Q", 6, 2, 2, 2, 4, 2, 0, 2)
SHARDING = "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0"
SHARDING_OF_MAY = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"


def transformer(counts, uri=SHARDING):
    configuration = {"chunks_per_shard": counts}
    return {"extension": uri, "type": "indexed", "configuration": configuration}


def sharded_store(data, transformers, shape=(4, 4), separator=".", chunk=(1, 2)):
    grid = {"type": "regular", "chunk_shape": list(chunk), "separator": separator}
    return one_array(
        data, shape=list(shape), chunk_grid=grid, storage_transformers=transformers, fill_value=0
    )


@pytest.mark.conformance("C076")
@pytest.mark.parametrize(
    "uri",
    [
        SHARDING,
        "https://purl.org/zarr/spec/extensions/storage-transformers/sharding/1.0",
        SHARDING_OF_MAY,
        "http://purl.org/zarr/spec/storage-transformers/sharding/1.0",
    ],
)
def test_golden_shard(uri):
    assert len(GOLDEN_SHARD) == 72
    store = sharded_store({"data/a/c0.0": GOLDEN_SHARD}, [transformer([2, 2], uri)])
    array = zd.open_array(store, "a")
    assert array.chunks == (1, 2)
    assert array.shards == (2, 4)
    assert array[...].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [0] * 4, [0] * 4]
    assert array[1, 1:3].tolist() == [6, 7]


@pytest.mark.conformance("C076")
@pytest.mark.parametrize(("format", "uri"), [(DRAFT, SHARDING), (MAY, SHARDING_OF_MAY)])
def test_written_shard(format, uri):
    store = {}
    array = zd.create_array(
        store, "a", shape=(2, 4), dtype="u1", chunks=(1, 2), shards=(2, 4), codecs=[],
        fill_value=0, format=format,
    )  # fmt: skip
    array[...] = [[1, 2, 3, 4], [0, 0, 7, 8]]
    (key,) = [key for key in store if key.startswith("data/")]
    absent = (1 << 64) - 1
    index = struct.pack("<8Q", 0, 2, 2, 2, absent, absent, 4, 2)
    assert bytes(store[key]) == bytes([1, 2, 3, 4, 7, 8]) + index
    document = json.loads(store[array.node_format.node_keys("a")[0]])
    assert document["storage_transformers"] == [transformer([2, 2], uri)]
    assert document["chunk_grid"]["chunk_shape"] == [1, 2]
    again = zd.open_array(store, "a")
    assert again[...].tolist() == array[...].tolist()
    assert again.meta.codecs == array.meta.codecs


@pytest.mark.conformance("C077")
def test_the_index_covers_chunks_outside_the_array():
    absent = (1 << 64) - 1
    index = [(absent, absent)] * 6
    index[0], index[1] = (0, 2), (2, 2)  # of 2 x 3 chunks, one and a half are in the array
    raw = bytes([1, 2, 3, 4]) + b"".join(struct.pack("<QQ", *pair) for pair in index)
    store = sharded_store({"data/a/c0.0": raw}, [transformer([2, 3])], shape=(1, 3))
    assert values(store) == [[1, 2, 3]]
    store["data/a/c0.0"] = raw[:-64]
    with pytest.raises(errors.CorruptObjectError):
        values(store)
    again = {}
    zd.create_array(
        again, "a", shape=(1, 3), dtype="u1", chunks=(1, 2), shards=(2, 6), codecs=[],
        format=DRAFT,
    )[...] = 5  # fmt: skip
    assert len(again["data/a/c0/0"]) == 2 * 2 + 6 * 16


@pytest.mark.conformance("C078")
@pytest.mark.parametrize("separator", ["/", "."])
def test_keys_of_shards(separator):
    """The example of the text: chunk (96, 18) of 32 x 2 chunks to a shard."""
    store = {}
    array = zd.create_array(
        store, "a", shape=(97, 19), dtype="u1", chunks=(1, 1), shards=(32, 2), codecs=[],
        format=DRAFT, chunk_key_encoding={"name": "draft", "separator": separator},
    )  # fmt: skip
    array[96, 18] = 7
    assert [key for key in store if key.startswith("data/")] == [f"data/a/c3{separator}9"]
    assert zd.open_array(store, "a")[96, 18] == 7


def test_shards_of_shards():
    """The first transformer is nearest the array."""
    store = sharded_store({}, [transformer([2, 1]), transformer([1, 2])])
    array = zd.open_array(store, "a", mode="r+")
    assert array.shards == (2, 4)
    array[...] = np.arange(16).reshape(4, 4)
    before = json.loads(store["meta/a.array.json"])
    array.update_attributes({"x": 1})
    document = json.loads(store["meta/a.array.json"])
    assert document["storage_transformers"] == before["storage_transformers"]
    assert values(store) == np.arange(16).reshape(4, 4).tolist()
    inner = 2 * 2 + 2 * 16
    assert len(store["data/a/c0.0"]) == 2 * inner + 2 * 16


@pytest.mark.parametrize(
    "transformers",
    [
        [transformer([2])],
        [transformer([0, 2])],
        [transformer([2, -1])],
        [transformer(2)],
        [transformer([2, 2.0])],
        [transformer([2, 2]) | {"type": "other"}],
        [transformer([2, 2], "http://example.org/cache")],
        [{}],
        ["sharding"],
        {},
        [transformer([2, 2])] * 33,
    ],
)
def test_wrong_storage_transformers(transformers):
    with pytest.raises(errors.MetadataError, match="storage_transformers"):
        zd.open(sharded_store({}, transformers), "a")


def test_jobs_on_drafts():
    """Writing, reading and rechunking through dask, shards included."""
    import dask.array as da

    wanted = np.arange(64, dtype="f4").reshape(8, 8)
    blocks = da.from_array(wanted, chunks=(4, 4))
    for format, shards in product((DRAFT, MAY), (None, (4, 8))):
        store, other = MemoryStore(), MemoryStore()
        zd.to_zarr(blocks, store, "g/a", chunks=(2, 4), shards=shards, format=format)
        array = zd.open_array(store, "g/a")
        assert (array.format, array.shards) == (format, shards)
        np.testing.assert_array_equal(array[...], wanted)
        zd.rechunk(array, other, path="b", chunks=(4, 2), shards=shards and (8, 4))
        again = zd.open_array(other, "b")
        assert (again.format, again.chunks) == (format, (4, 2))
        np.testing.assert_array_equal(again[...], wanted)


@pytest.mark.parametrize("format", [DRAFT, MAY])
@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_arrays_change_their_shape_and_travel(format, shards):
    store = MemoryStore()
    array = zd.create_array(
        store, "g/a", shape=(5, 3), dtype="u1", chunks=(2, 2), shards=shards, format=format
    )
    array[...] = 7
    array.resize((2, 5))
    again = pickle.loads(pickle.dumps(zd.open_array(store, "g/a")))
    assert again[...].tolist() == [[7, 7, 7, 0, 0]] * 2
    assert again.format == format


# --- hostile documents ----------------------------------------------------------------------------

NASTY = [
    None, True, 0, -1, 1 << 70, -(1 << 70), 1.5, float("inf"), "", "x", "0x", "\ud800", "a" * 5000,
    [], [[]], [None], [1, "x"], [1 << 62, 1 << 62], {}, {"type": {}}, {"type": [["a", "<f8"]] * 9},
    {"extension": 1, "type": ["x"]}, {"codec": "x"}, [{"extension": "x"}], [{}] * 40,
]  # fmt: skip


def places(value, path=()):
    """Paths of everything in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


def changed(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


FULL = ARRAY | {
    "shape": [4, 4],
    "chunk_grid": {"type": "regular", "chunk_shape": [1, 2], "separator": "/"},
    "codecs": [endian("little"), transpose([1, 0]), gzip_codec()],
    "storage_transformers": [transformer([2, 2])],
    "extensions": [{"extension": "http://example.org", "must_understand": False}],
}
FULL_OF_MAY = ARRAY_OF_MAY | {
    "data_type": {"extension": "x", "type": [["a", "<i4"], ["b", "<f8", [2]]], "fallback": None},
    "compressor": {
        "codec": f"{CODECS}/blosc/1.0",
        "configuration": {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    },
    "fill_value": None,
    "attributes": {"filters": [{"id": "delta", "dtype": "<i4"}]},
}


@pytest.mark.parametrize("document", [FULL, FULL_OF_MAY, ENTRY, ENTRY_OF_MAY])
def test_wrong_values_anywhere(document):
    """Whatever stands at any place: a typed error, or an array that can be read."""
    is_entry = "metadata_encoding" in document
    of_may = document in (FULL_OF_MAY, ENTRY_OF_MAY)
    key = "zarr.json" if is_entry else f"meta/{'root/' if of_may else ''}a.array.json"
    whole = array_of_may() if of_may else one_array()
    for path, value in product(places(document), NASTY):
        store = whole | {key: json.dumps(changed(document, path, value)).encode()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                array = zd.open_array(store, "a", read=zd.ReadOptions(fallback_dtypes=True))
                array[(slice(2),) * array.ndim]
            except errors.ZarrDaskError:
                continue


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}']
)
def test_documents_that_are_no_objects(text):
    for key in ("meta/a.array.json", "meta/g.group.json"):
        store = one_array() | {key: text}
        with pytest.raises(errors.MetadataError):
            zd.open(store, key[5])
    with pytest.raises(errors.ZarrDaskError):
        zd.open(one_array() | {"zarr.json": text}, "a")
