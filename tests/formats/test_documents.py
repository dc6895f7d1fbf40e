"""What parsing a metadata document may take."""

import itertools
import json
import string
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import MetadataError
from zarr_dask.formats.documents import Limits, load_json, parse_json
from zarr_dask.stores import MemoryStore

ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1000, 1000],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100, 100]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0.0,
    "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    ],
    "attributes": {"units": "m", "standard_name": "sea_water_temperature", "valid_range": [0, 40]},
    "dimension_names": ["y", "x"],
}


def names(count):
    letters = itertools.product(string.ascii_letters, repeat=4)
    return ("".join(one) for one in itertools.islice(letters, count))


def listed(items):
    return f'{{"a":[{",".join(items)}]}}'


def group_of(entries):
    metadata = ",".join(f'"{name}":{entry}' for name, entry in entries.items())
    return (
        '{"zarr_format":3,"node_type":"group","consolidated_metadata":'
        f'{{"kind":"inline","must_understand":false,"metadata":{{{metadata}}}}}}}'
    )


COUNT = 20_000
DOCUMENTS = {
    "lists": listed(["[]"] * COUNT),
    "lists of one": listed(["[1]"] * COUNT),
    "objects": listed(["{}"] * COUNT),
    "objects of one": listed(['{"a":1}'] * COUNT),
    "objects of one of many names": listed(f'{{"{n}":"{n}"}}' for n in names(COUNT)),
    "objects of two": listed(f'{{"{n}":1000,"{n}x":2000}}' for n in names(COUNT)),
    "objects in objects": listed(['{"a":{"a":{"a":{}}}}'] * COUNT),
    "numbers": listed(["999"] * COUNT),
    "floats": listed(["1.5"] * COUNT),
    "large numbers": listed(["99999999999999999999"] * COUNT),
    "texts": listed(f'"{n}"' for n in names(COUNT)),
    "members": "{" + ",".join(f'"{n}":99999' for n in names(COUNT)) + "}",
    "members and more": "{" + ",".join(f'"{n}":{{"{n}x":{{}}}}' for n in names(COUNT)) + "}",
    "consolidated metadata": group_of({n: json.dumps(ARRAY) for n in names(1000)}),
    "a text": '{"a":"' + "x" * 500_000 + '"}',
    "a text beyond Latin-1": '{"a":"' + "x" * 500_000 + '\u2603"}',
    "a wide text": '{"a":"' + "x" * 500_000 + '\U0001f600"}',
    "a text with an escape": '{"a":"' + "x" * 500_000 + '\\u2603"}',
    "a wide text with an escape": '{"a":"' + "x" * 500_000 + '\\ud83d\\ude00"}',
    "a text of escapes": '{"a":"' + "\\n" * 300_000 + '"}',
    "UTF-16": listed(["[]"] * COUNT),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_takes_more_memory_than_is_said(name):
    text = DOCUMENTS[name].encode("utf-16" if name == "UTF-16" else "utf-8")
    with pytest.raises(ValueError, match="bytes of memory") as caught:
        parse_json(text, Limits(metadata_memory=1))
    needed = 1
    while True:  # the first bound that is not refused
        try:
            tracemalloc.start()
            document = parse_json(text, Limits(metadata_memory=needed))
            peak = tracemalloc.get_traced_memory()[1]
            break
        except ValueError as error:
            needed = int(str(error).split()[2])
        finally:
            tracemalloc.stop()
    assert document == json.loads(text)
    assert str(caught.value).startswith("at least")
    assert len(text) + peak <= needed
    assert needed <= 100 * len(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text('[]{}"\\\\ab\u00b5\U0001f600\x7f'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"a'), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_values_are_those_that_python_reads(document, escaped, indent):
    text = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()
    assert repr(parse_json(text, Limits())) == repr(json.loads(text))


@given(st.binary(max_size=30).map(lambda text: b'{"a":' + text + b"}"))
def test_texts_are_refused_or_mean_what_they_mean_to_python(text):
    try:
        expected = repr(json.loads(text, object_pairs_hook=_without_repetition))
    except (ValueError, RecursionError):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text, Limits())
    else:
        assert repr(parse_json(text, Limits())) == expected


def _without_repetition(members):
    if len(dict(members)) < len(members):
        raise ValueError("a name stands twice")
    return dict(members)


@pytest.mark.parametrize(
    "text",
    ['{"a": "\\ud800"}', '{"a": -Infinity, "b": NaN}', '{"a": -0.0, "b": 1e400}', '"a"', "-0"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_whatever_python_reads_is_read(text, encoding):
    assert repr(parse_json(text.encode(encoding), Limits())) == repr(json.loads(text))


@pytest.mark.parametrize("ending", ["", "\\ud800"])  # either parser
def test_names_that_stand_twice_are_refused(ending):
    text = f'{{"a": {{"b": 1, "c": "{ending}", "b": 1}}}}'.encode()
    with pytest.raises(MetadataError, match="'b' stands twice"):
        load_json(MemoryStore(), "zarr.json", text)
    assert parse_json(text, Limits(), strictly=False)["a"]["b"] == 1


@pytest.mark.parametrize("ending", ["", "\\ud800"])  # either parser
@pytest.mark.parametrize(("depth", "refused"), [(199, False), (203, True), (900, True)])
def test_documents_are_not_nested_deeper_than_what_copies_them_can_bear(ending, depth, refused):
    text = f'{{"a": {"[" * (depth - 1)}"{ending}"{"]" * (depth - 1)}}}'.encode()
    if not refused:
        assert load_json(MemoryStore(), "zarr.json", text)
        return
    with pytest.raises(MetadataError, match="nested at most 200 deep"):
        load_json(MemoryStore(), "zarr.json", text)


def test_the_error_names_the_limit():
    text = DOCUMENTS["lists"].encode()
    with pytest.raises(MetadataError, match=r"at least \d+ bytes of memory") as caught:
        load_json(MemoryStore(), "a/zarr.json", text, Limits(metadata_memory=1 << 20))
    assert "at most 1048576 (ReadOptions(limits=Limits(metadata_memory=...))" in str(caught.value)
    assert "zarr.json" in str(caught.value)


def test_documents_that_are_large_by_right_are_read():
    """Ten thousand arrays by default, and as many as there is memory for if a user says so."""
    text = group_of({n: json.dumps(ARRAY) for n in names(10_000)}).encode()
    group = zd.open_group(MemoryStore({"zarr.json": text}))
    assert len(group.meta.extra["consolidated_metadata"]["metadata"]) == 10_000
    few = zd.ReadOptions(limits=Limits(metadata_memory=1 << 26))
    store = MemoryStore({"zarr.json": text, **{f"{n}/zarr.json": b"{" for n in names(2)}})
    with pytest.raises(MetadataError, match="metadata_memory"):
        zd.open_group(store, read=few)
    values = json.dumps({"zarr_format": 2, "a": [[]] * 1_000_000}).encode()
    old = MemoryStore({".zgroup": b'{"zarr_format": 2}', ".zattrs": values})
    with pytest.raises(MetadataError, match="metadata_memory"):
        zd.open_group(old, read=few)
    assert len(zd.open_group(old).attributes["a"]) == 1_000_000
