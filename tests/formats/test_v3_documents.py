"""Documents of Zarr v3: what is read, what is refused and by which error, what is written.

The documents here are text, put into a store by hand, so that nothing is judged by its own writer.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorstore as ts
import zarr

import zarr_dask as zd
from tests.support.rfc2 import RFC2_ARRAY, RFC2_GROUP
from zarr_dask.errors import (
    ABSENT,
    MetadataError,
    UnknownCodecError,
    UnknownDataTypeError,
    UnknownGridError,
)
from zarr_dask.stores import MemoryStore

ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [5],
    "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 7,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
MANDATORY = tuple(ARRAY)
GROUP = {"zarr_format": 3, "node_type": "group"}


def store_of(document=None, **changes) -> MemoryStore:
    """A store with one document; `...` removes a member."""
    members = {**(ARRAY if document is None else document), **changes}
    store = MemoryStore()
    text = json.dumps({name: value for name, value in members.items() if value is not ...})
    store.set("zarr.json", [text.encode()])
    return store


def opened(document=None, **changes):
    return zd.open(store_of(document, **changes))


def refused(document=None, **changes) -> MetadataError:
    with pytest.raises(MetadataError) as caught:
        opened(document, **changes)
    return caught.value


def written(node) -> dict:
    return json.loads(bytes(node.store.get("zarr.json")))


def rewritten(document=None, **changes) -> dict:
    """A document after a change of its attributes, without that change."""
    store = store_of(document, **changes)
    zd.open(store, mode="r+").update_attributes({"changed": True})
    again = json.loads(bytes(store.get("zarr.json")))
    del again["attributes"]["changed"]
    return again


# --- mandatory members --------------------------------------------------------------------------


@pytest.mark.conformance("C082")
@pytest.mark.parametrize("name", MANDATORY)
def test_each_mandatory_member_is_missed_by_its_name(name):
    error = refused(**{name: ...})
    assert [(problem.field, problem.found) for problem in error.problems] == [(name, ABSENT)]
    assert f"{name}: absent" in str(error)


@pytest.mark.conformance("C082")
def test_all_missing_members_are_named_in_one_error():
    error = refused(dict.fromkeys(MANDATORY, ...) | {"node_type": "array"})
    assert {problem.field for problem in error.problems} == set(MANDATORY) - {"node_type"}
    error = refused(node_type=..., codecs=..., fill_value=...)
    assert {problem.field for problem in error.problems} == {"node_type", "codecs", "fill_value"}
    assert len(refused({}).problems) == 2


@pytest.mark.conformance("C083")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("zarr_format", value) for value in (2, 4, "3", 3.0, True, None, [3])),
        *(("node_type", value) for value in ("Array", "dataset", "", None, 3, ["array"], {})),
    ],
)
@pytest.mark.parametrize("document", [ARRAY, GROUP], ids=["array", "group"])
def test_another_format_or_kind_of_node(document, name, value):
    (problem,) = refused(document, **{name: value}).problems
    assert (problem.field, problem.found) == (name, value)


def test_a_group_has_no_shape():
    assert [problem.field for problem in refused(node_type="group").problems] == [
        name for name in MANDATORY if name not in ("zarr_format", "node_type")
    ]


def test_more_dimensions_than_memory_can_have():
    many = [1] * 64
    grid = {"name": "regular", "configuration": {"chunk_shape": many}}
    assert "at most 63 dimensions" in str(refused(shape=many, chunk_grid=grid))


# --- what is not known --------------------------------------------------------------------------


@pytest.mark.conformance("C084")
@pytest.mark.parametrize("document", [ARRAY, GROUP], ids=["array", "group"])
@pytest.mark.parametrize(
    "value",
    [
        *(1, 0, "x", True, None, [], {}, [{"must_understand": False}]),
        {"name": "x"},
        *({"name": "x", "must_understand": value} for value in (True, "false", 0, None)),
    ],
)
def test_unknown_members_that_must_be_understood(document, value):
    (problem,) = refused(document, surprise=value).problems
    assert (problem.field, problem.found) == ("surprise", value)
    assert '"must_understand": false' in problem.expected


@pytest.mark.conformance("C084")
@pytest.mark.parametrize("document", [ARRAY, GROUP], ids=["array", "group"])
@pytest.mark.parametrize(
    "value",
    [
        {"must_understand": False},
        {"name": "x", "configuration": {"deep": [1, {"must_understand": True}]}}
        | {"must_understand": False},
    ],
)
def test_unknown_members_that_may_be_ignored_stay(document, value):
    assert opened(document, surprise=value).attributes == {}
    assert rewritten(document, surprise=value)["surprise"] == value


def test_what_drafts_left_over_is_named():
    (problem,) = refused(extensions=[]).problems
    assert problem.field == "extensions"
    assert "drafts of 2022" in problem.expected
    assert refused(GROUP, extensions=[]).problems == (problem,)


@pytest.mark.conformance("C085")
@pytest.mark.parametrize("must_understand", [{}, {"must_understand": False}])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("data_type", UnknownDataTypeError),
        ("chunk_grid", UnknownGridError),
        ("chunk_key_encoding", UnknownGridError),
    ],
)
def test_unknown_extensions_that_nobody_may_ignore(name, error, must_understand):
    caught = refused(**{name: {"name": "unheard.of"} | must_understand})
    assert type(caught) is error
    (problem,) = caught.problems
    assert problem.field.startswith(name)
    assert "unheard.of" in str(caught)


@pytest.mark.conformance("C126")
@pytest.mark.parametrize("transformers", [..., []])
def test_no_storage_transformers(transformers):
    assert opened(storage_transformers=transformers)[...].tolist() == [7] * 5


@pytest.mark.conformance("C126")
@pytest.mark.filterwarnings("ignore:storage_transformers")
@pytest.mark.parametrize(
    "transformer",
    ["x", {"name": "x"}, {"name": "x", "must_understand": True}, {}, 5, None, ["x"]],
)
def test_unknown_storage_transformers(transformer):
    harmless = {"name": "y", "must_understand": False}
    (problem,) = refused(storage_transformers=[harmless, transformer]).problems
    assert (problem.field, problem.found) == ("storage_transformers[1]", transformer)
    assert "storage_transformers" in str(refused(storage_transformers={}))


@pytest.mark.conformance("C126", "C086")
def test_storage_transformers_that_may_be_skipped():
    transformer = {"name": "x", "configuration": {"y": 1}, "must_understand": False}
    store = store_of(storage_transformers=[transformer])
    with pytest.warns(UserWarning, match=r"storage_transformers\[0\] is unknown, 'x'"):
        array = zd.open(store, mode="r+")
    assert array[...].tolist() == [7] * 5
    with pytest.raises(UnknownCodecError, match="storage transformer 'x'"):
        array[0] = 1
    with pytest.warns(UserWarning, match="skipped"):
        array.update_attributes({"a": 1})
    assert written(array)["storage_transformers"] == [transformer]
    assert set(store.values) == {"zarr.json"}


# --- forms of extensions ------------------------------------------------------------------------

FORMS = {
    "data_type": [
        "int16",
        {"name": "int16"},
        {"name": "int16", "configuration": {}},
        {"name": "int16", "must_understand": True},
        {"name": "int16", "must_understand": False},
    ],
    "chunk_grid": [
        ARRAY["chunk_grid"],
        ARRAY["chunk_grid"] | {"must_understand": True},
        ARRAY["chunk_grid"] | {"must_understand": False},
    ],
    "chunk_key_encoding": [
        "default",
        {"name": "default"},
        {"name": "default", "configuration": {}},
        {"name": "default", "configuration": {"separator": "/"}, "must_understand": False},
    ],
    "codecs": [
        [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"],
        [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        [
            {"name": "bytes", "configuration": {"endian": "little"}, "must_understand": True},
            {"name": "crc32c", "configuration": {}, "must_understand": False},
        ],
    ],
}


@pytest.mark.conformance("C086")
@pytest.mark.parametrize("name", FORMS)
def test_all_forms_of_an_extension_read_alike(name):
    arrays = []
    for form in FORMS[name]:
        store = store_of(**{name: form})
        checksum = b"" if name != "codecs" else bytes.fromhex("91d167b2")
        store.set("c/0", [np.array([1, 2], "<i2").tobytes() + checksum])
        arrays.append(zd.open(store))
    assert {tuple(array[...].tolist()) for array in arrays} == {(1, 2, 7, 7, 7)}
    assert len({repr(array.meta) for array in arrays}) == 1


@pytest.mark.conformance("C086")
def test_single_byte_arrays_of_bare_names_only():
    array = opened(data_type="uint8", chunk_key_encoding="v2", codecs=["bytes", "crc32c"])
    assert [codec.name for codec in array.codecs] == ["bytes", "crc32c"]
    assert array.key((2,)) == "2"


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("chunk_grid", "regular", "chunk_grid.configuration.chunk_shape"),
        ("chunk_grid", 5, "chunk_grid"),
        ("chunk_grid", [], "chunk_grid"),
        ("chunk_grid", {"configuration": {"chunk_shape": [2]}}, "chunk_grid.name"),
        ("chunk_grid", {"name": "regular", "configuration": []}, "chunk_grid.configuration"),
        ("chunk_grid", ARRAY["chunk_grid"] | {"must_understand": "no"}, "chunk_grid.must_understa"),
        ("chunk_grid", ARRAY["chunk_grid"] | {"chunk_shape": [2]}, "chunk_grid.chunk_shape"),
        ("chunk_key_encoding", {"name": 5}, "chunk_key_encoding.name"),
        ("chunk_key_encoding", {"name": "default", "separator": "."}, "chunk_key_encoding.separ"),
    ],
)
def test_malformed_extensions_are_located(name, value, place):
    (problem,) = refused(**{name: value}).problems
    assert problem.field.startswith(place)


@pytest.mark.conformance("C087")
def test_what_readers_of_3_0_understand_is_written():
    """Codecs, grid and key encoding as objects of name and configuration; nothing of 3.1."""
    sharded = zd.create_array(
        MemoryStore(), shape=(8, 8), dtype="f4", chunks=(2, 2), shards=(4, 4), order="F",
        codecs=["gzip", "crc32c"], chunk_key_encoding="v2", dimension_names=["y", None],
    )  # fmt: skip
    document = written(sharded)
    assert document["data_type"] == "float32"
    extensions = [document["chunk_grid"], document["chunk_key_encoding"], *document["codecs"]]
    inside = document["codecs"][0]["configuration"]
    extensions += [*inside["codecs"], *inside["index_codecs"]]
    assert len(extensions) == 9
    for extension in extensions:
        assert isinstance(extension, dict)
        assert set(extension) <= {"name", "configuration"}
        assert isinstance(extension["name"], str)
    assert "must_understand" not in json.dumps(document)
    assert "storage_transformers" not in document


@pytest.mark.conformance("C087")
def test_shorter_forms_are_written_out_on_a_change():
    again = rewritten(
        data_type={"name": "uint8"}, chunk_key_encoding="default", codecs=["bytes", "crc32c"]
    )
    assert again["data_type"] == "uint8"
    assert again["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
    assert again["codecs"] == [{"name": "bytes"}, {"name": "crc32c"}]


# --- names of dimensions ------------------------------------------------------------------------


@pytest.mark.conformance("C091")
@pytest.mark.parametrize(
    "names", [["x", "y"], [None, None], ["x", None], ["x", "x"], ["", ""], ["größe", "長さ"]]
)
@pytest.mark.filterwarnings("ignore:.*two dimensions have one name")
def test_names_of_dimensions(names):
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}
    array = opened(shape=[3, 3], chunk_grid=grid, dimension_names=names)
    assert array.dimension_names == tuple(names)
    again = rewritten(shape=[3, 3], chunk_grid=grid, dimension_names=names)
    assert again["dimension_names"] == names
    made = zd.create_array(MemoryStore(), shape=(3, 3), dtype="i1", dimension_names=names)
    assert written(made)["dimension_names"] == names


@pytest.mark.conformance("C091")
@pytest.mark.parametrize("names", [[], ["x", "y"], [None] * 3, "x", {"0": "x"}, [5], [["x"]]])
def test_names_of_dimensions_that_do_not_fit(names):
    (problem,) = refused(dimension_names=names).problems
    assert (problem.field, problem.found) == ("dimension_names", names)


def test_null_in_place_of_names_is_none():
    assert opened(dimension_names=None).dimension_names is None


def test_an_array_without_dimensions_may_name_all_of_them():
    grid = {"name": "regular", "configuration": {"chunk_shape": []}}
    assert opened(shape=[], chunk_grid=grid, dimension_names=[]).dimension_names == ()
    assert rewritten(shape=[], chunk_grid=grid, dimension_names=[])["dimension_names"] == []


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C092")
@pytest.mark.parametrize(
    ("encoding", "key", "key_0d"),
    [
        ("default", "c/1/23/45", "c"),
        ({"name": "default"}, "c/1/23/45", "c"),
        ({"name": "default", "configuration": {"separator": "/"}}, "c/1/23/45", "c"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.23.45", "c"),
        ("v2", "1.23.45", "0"),
        ({"name": "v2"}, "1.23.45", "0"),
        ({"name": "v2", "configuration": {}}, "1.23.45", "0"),
        ({"name": "v2", "configuration": {"separator": "."}}, "1.23.45", "0"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/23/45", "0"),
    ],
)
def test_keys(encoding, key, key_0d):
    one = np.array([1], "<i2").tobytes()
    for shape, where, coords in (([2, 24, 46], key, (1, 23, 45)), ([], key_0d, ())):
        grid = {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}}
        store = store_of(shape=shape, chunk_grid=grid, chunk_key_encoding=encoding)
        store.set(where, [one])
        array = zd.open(store)
        assert array.key(coords) == where
        assert array.meta.chunk_key_encoding.coords(where, len(shape)) == coords
        assert array[coords] == 1
        assert array.nbytes_stored() == 2


@pytest.mark.conformance("C092")
@pytest.mark.parametrize(
    "encoding",
    [
        {"name": "default", "configuration": {"separator": "-"}},
        {"name": "default", "configuration": {"separator": None}},
        {"name": "v2", "configuration": {"separator": ""}},
        {"name": "v2", "configuration": {"seperator": "/"}},
    ],
)
def test_keys_of_no_known_form(encoding):
    (problem,) = refused(chunk_key_encoding=encoding).problems
    assert problem.field.startswith("chunk_key_encoding.configuration.sep")


# --- regular grids ------------------------------------------------------------------------------


def grid(*cell):
    return {"name": "regular", "configuration": {"chunk_shape": list(cell)}}


def sharded(*inner, before=()):
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    configuration = {
        "chunk_shape": list(inner),
        "codecs": [little],
        "index_codecs": [little, {"name": "crc32c"}],
    }
    return [*before, {"name": "sharding_indexed", "configuration": configuration}]


@pytest.mark.conformance("C093")
def test_no_chunk_of_length_zero_is_written():
    for shape in ((0, 4), (4, 4)):
        with pytest.raises(zd.errors.GridError, match="at least 1"):
            zd.create_array(MemoryStore(), shape=shape, dtype="i2", chunks=(0, 2))
    array = zd.create_array(MemoryStore(), shape=(0, 4), dtype="i2")
    assert written(array)["chunk_grid"] == grid(1, 4)
    assert rewritten(shape=[0, 4], chunk_grid=grid(0, 2))["chunk_grid"] == grid(1, 2)


@pytest.mark.conformance("C093")
def test_a_chunk_of_length_zero_is_read_where_there_is_no_element():
    array = opened(shape=[0, 4], chunk_grid=grid(0, 2))
    assert array.write_chunks == (1, 2)
    assert array[...].shape == (0, 4)
    array = opened(shape=[0, 4], chunk_grid=grid(0, 4), codecs=sharded(3, 2))
    assert (array.write_chunks, array.chunks) == ((3, 4), (3, 2))
    transposed = {"name": "transpose", "configuration": {"order": [1, 0]}}
    codecs = sharded(2, 3, before=[transposed])
    array = opened(shape=[0, 4], chunk_grid=grid(0, 4), codecs=codecs)
    assert (array.write_chunks, array.chunks) == ((3, 4), (3, 2))
    nested = sharded(4, 4)
    nested[0]["configuration"]["codecs"] = sharded(2, 2)
    array = opened(shape=[0, 4], chunk_grid=grid(0, 4), codecs=nested)
    assert (array.write_chunks, array.chunks) == ((4, 4), (2, 2))


@pytest.mark.conformance("C093")
@pytest.mark.parametrize(
    ("shape", "cell", "codecs"),
    [
        ([4, 4], [0, 2], ARRAY["codecs"]),
        ([0, 4], [2, 0], ARRAY["codecs"]),
        ([1, 4], [0, 4], sharded(3, 2)),
        ([0, 4], [-1, 4], ARRAY["codecs"]),
        ([0, 4], [4, 4], sharded(0, 2)),
    ],
)
def test_other_chunks_of_length_zero(shape, cell, codecs):
    error = refused(shape=shape, chunk_grid=grid(*cell), codecs=codecs)
    assert isinstance(error, UnknownGridError)
    assert all(problem.field.endswith("chunk_shape") for problem in error.problems)


@pytest.mark.conformance("C094")
def test_edge_chunks_are_whole_and_padded_with_the_fill_value():
    store = MemoryStore()
    array = zd.create_array(store, shape=(3, 3), dtype="u1", chunks=2, fill_value=7, codecs=[])
    array[...] = np.arange(1, 10).reshape(3, 3)
    stored = {key: bytes(value).hex() for key, value in store.values.items() if key[0] == "c"}
    assert stored == {
        "c/0/0": "01020405", "c/0/1": "03070607", "c/1/0": "07080707", "c/1/1": "09070707",
    }  # fmt: skip
    # what stands outside the array does not matter to a reader
    store.set("c/1/1", [bytes.fromhex("09aabbcc")])
    assert zd.open(store)[...].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    store.set("c/1/1", [bytes.fromhex("09")])
    with pytest.raises(zd.errors.CorruptObjectError, match="c/1/1"):
        zd.open(store)[...]


@pytest.mark.conformance("C095")
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (0, 0)])
def test_no_dimensions_and_no_elements(shape, shards, tmp_path):
    grids = {"chunks": (2,) * len(shape), "shards": (4,) * len(shape)} if shards else {}
    values = np.full(shape, 5, "i4")
    array = zd.create_array(tmp_path, shape=shape, dtype="i4", fill_value=-1, **grids)
    assert array[...].tolist() == np.full(shape, -1).tolist()
    array[...] = values
    again = zd.open(tmp_path)
    assert (again.shape, again[...].tolist()) == (shape, values.tolist())
    assert sorted(array.store.list()) == (["zarr.json"] if shape else ["c", "zarr.json"])
    assert zarr.open_array(tmp_path, mode="r")[...].tolist() == values.tolist()
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}
    assert ts.open(spec).result().read().result().tolist() == values.tolist()


# --- attributes ---------------------------------------------------------------------------------

ATTRIBUTES = """{
    "zarr_conventions": [
        {"uuid": "d35379db-88df-4056-af3a-620245f8e347", "name": "multiscales"},
        {"schema_url": "https://example.org/s.json", "surprise": {"must_understand": true}}
    ],
    "multiscales": {"layout": [{"asset": "0", "transform": {"scale": [1.0, 0.1]}}]},
    "z first, a last": 1, "name": "größe", "長さ": "\\u00e9 \\ud83d\\ude00 \\ud800",
    "": [], "null": null, "true": true, "one": 1, "one point": 1.0, "minus": -0.0,
    "big": 123456789012345678901234567890, "small": 5e-324, "third": 0.3333333333333333,
    "not a number": NaN, "limits": [Infinity, -Infinity],
    "must_understand": true, "zarr_format": 2, "shape": "round",
    "deep": [[[[[[{"a": {"b": {"c": [null]}}}]]]]]],
    "a last": 0
}"""


@pytest.mark.conformance("C138")
@pytest.mark.parametrize("document", [ARRAY, GROUP], ids=["array", "group"])
def test_attributes_of_others_stay_as_they_are(document):
    store = store_of(document)
    text = json.dumps(document)[:-1] + ', "attributes": ' + ATTRIBUTES + "}"
    store.set("zarr.json", [text.encode()])
    node = zd.open(store, mode="r+")
    as_python = json.loads(ATTRIBUTES)
    assert repr(node.attributes) == repr(as_python)  # NaN, order, 1 and 1.0 count
    assert math.isnan(node.attributes["not a number"])
    node.update_attributes({"mine": 1})
    again = json.loads(bytes(store.get("zarr.json")))["attributes"]
    assert repr(again) == repr({**as_python, "mine": 1})
    assert repr(zd.open(store).attributes) == repr(again)


@pytest.mark.conformance("C138")
def test_attributes_of_ours_are_any_json(tmp_path):
    given = {"zarr_conventions": [{"spec_url": "x"}], "ö": [None, True, 1, 0.5, {"x": []}], "": ""}
    made = zd.create_array(tmp_path, shape=(1,), dtype="i1", attributes=given)
    assert made.attributes == zd.open(tmp_path).attributes == given
    assert zarr.open_array(tmp_path, mode="r").attrs.asdict() == given


@pytest.mark.conformance("C138")
@pytest.mark.parametrize("attributes", [[], "x", 5, None, True])
def test_attributes_are_an_object(attributes):
    (problem,) = refused(attributes=attributes).problems
    assert problem.field == "attributes"


# --- consolidated metadata, as far as one document goes ------------------------------------------


def test_consolidated_metadata_of_an_array():
    inline = {"kind": "inline", "metadata": {}}
    for value in (None, inline, inline | {"must_understand": True}):
        (problem,) = refused(consolidated_metadata=value).problems
        assert problem.field == "consolidated_metadata"
    ignorable = inline | {"must_understand": False}
    assert rewritten(consolidated_metadata=ignorable)["consolidated_metadata"] == ignorable


# --- hostile text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"zarr_format": 3, "node_type": "group", "node_type": "array"}',
        '{"zarr_format": 3, "node_type": "group", "attributes": {"a": [{"b": 1, "b": 1}]}}',
        '{"zarr_format": 3, "node_type": "group", "attributes": {}, "attributes": {}}',
    ],
)
def test_names_that_stand_twice(text):
    store = MemoryStore()
    store.set("zarr.json", [text.encode()])
    with pytest.raises(MetadataError, match="stands twice in one object"):
        zd.open(store)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff\xfe", b"null", b"[]", b"3", b'"x"', b"{", b'{"zarr_format": 3',
        b"[" * 100_000, b'{"a":' * 100_000, b'{"zarr_format": ' + b"9" * 5000 + b"}",
        b'{"zarr_format": 3, "node_type": "group", "x": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)  # fmt: skip
def test_text_that_is_no_document(text):
    store = MemoryStore()
    store.set("zarr.json", [text])
    with pytest.raises(MetadataError):
        zd.open(store)


# --- the examples of OME's RFC 2 ------------------------------------------------------------------


@pytest.mark.conformance("C158")
@pytest.mark.filterwarnings("ignore:.*endian")
def test_the_examples_of_rfc_2_open_as_written():
    store = MemoryStore()
    store.set("zarr.json", [RFC2_GROUP.encode()])
    store.set("1/zarr.json", [RFC2_ARRAY.encode()])
    group = zd.open(store)
    assert group.attributes == json.loads(RFC2_GROUP)["attributes"]
    array = group["1"]
    assert (array.shape, array.dtype) == ((1, 4096, 4096, 1536), np.dtype("u1"))
    assert (array.chunks, array.shards) == ((1, 32, 32, 32), (1, 1024, 1024, 1024))
    assert array.dimension_names == ("c", "x", "y", "z")
    assert array.key((0, 3, 3, 1)) == "1/c/0/3/3/1"
    assert array[0, 5, 7, ::500].tolist() == [0, 0, 0, 0]
