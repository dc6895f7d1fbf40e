"""References that are parsed when they are asked for are those that `json.loads` returns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_dask.stores.backends import lazy_references
from zarr_dask.stores.backends.lazy_references import JsonReferences, LazyObject, load_lazily

SPACE = st.sampled_from(["", "", "", " ", "\n  ", "\t", "\r\n", "\f"])
NAMES = ["v/0.0", "v/0.1", "v/.zarray", ".zgroup", "refs", "version", "é", r"a\"b", r"\ud83d\ude00"]
NAME = st.sampled_from([f'"{name}"' for name in NAMES])
URLS = ["s3://b/a.nc", "/x", "{{u}}", "é", r"\u00e9", r"a\\", "base64:AA==", ""]
URL = st.sampled_from([f'"{url}"' for url in URLS])
NUMBERS = ["0", "1", "40000", "-1", "01", "1.0", "1e3", "9" * 30, "NaN", "null"]
NUMBER = st.sampled_from(NUMBERS)
PLACE = st.builds("[{}{}{},{}{}{},{}]".format, SPACE, URL, SPACE, SPACE, NUMBER, SPACE, NUMBER)
USUAL = st.builds('["/run/{}.nc", {}, {}]'.format, *[st.integers(0, 9**9)] * 3)
ODD = ['["/x"]', "[]", "{}", r'{"a": [1, {"b": "\u0000"}]}', '"tab\t"', "tru", "[1,]"]
OTHER = st.one_of(URL, NUMBER, PLACE, st.sampled_from(ODD))


@st.composite
def objects(draw: Any, values: st.SearchStrategy[str]) -> str:
    """An object with any white space, and at times without a mark."""
    members = draw(st.lists(st.tuples(NAME, values), max_size=12))
    text = ",".join(
        f"{draw(SPACE)}{name}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}"
        for name, value in members
    )
    return f"{draw(SPACE)}{{{text or draw(SPACE)}}}{draw(SPACE)}"


MEMBERS = objects(st.one_of(USUAL, USUAL, USUAL, OTHER))
DOCUMENTS = st.one_of(MEMBERS, objects(st.one_of(USUAL, OTHER, MEMBERS)), OTHER)


def outcome(load: Any, data: bytes) -> str:
    """The result as text, or the type of the error."""
    try:
        return json.dumps(load(data), sort_keys=True, default=dict)
    except (ValueError, RecursionError) as error:
        return type(error).__name__


@given(DOCUMENTS, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
def test_any_document_is_what_json_makes_of_it(text, encoding):
    data = text.encode(encoding, "surrogatepass" if encoding != "latin-1" else "replace")
    assert outcome(load_lazily, data) == outcome(json.loads, data)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ["b", 0, 0], "a": "c", "e": 0}',
        '{"a": "c", "a": ["b", 0, 0], "e": 0}',
        '{"a": ["b", 0, 0], "a": "c", "a": ["d", 1, 1], "e": 0}',
        '{"a": ["b", 0, 0], "a": ["d", 1, 1], "e": 0}',
        '{"a": ["b", 0, 0],}',
        '{"a": ["b", 0, 0], "c": 12} 3',
        '{"a": ["b", 0, 0], "c": 1234567890.5e1}',
        '{"a": ["b", 00, 0], "c": 1}',
        '{"a": ["b", -1, 0], "c": 1}',
        '{"a": ["b\t", 1, 0], "c": 1}',
        '{"a": ["ééééé", 1, 0], "ééé": "ééééé", "c": 1}',
        b'{"a": ["\xe9", 0, 0], "c": 1}',
        b'{"\xe9": 3, "c": 1}',
        b'{"\xed\xa0\x80": ["b", 0, 0], "c": 1}',
        '{"refs": {"a": ["b", 0, 0], "refs": {}}, "version": 1}',
        "",
        "{",
    ],
)
def test_odd_documents_are_what_json_makes_of_them(monkeypatch, text):
    monkeypatch.setattr(lazy_references, "_WINDOW", 5)
    data = text if isinstance(text, bytes) else text.encode()
    assert outcome(load_lazily, data) == outcome(json.loads, data)
    if outcome(json.loads, data).startswith("{"):
        assert len(load_lazily(data)) == len(json.loads(data))


@given(MEMBERS, st.data())
def test_any_damaged_document_is_what_json_makes_of_it(text, draw):
    data = bytearray(f'{{"version": 1, "refs": {text}}}'.encode())
    marks = st.sampled_from([b"", b'"', b"\\", b",", b"}", b"[", b"\xff"])
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at : at + 1] = draw.draw(marks)
    assert outcome(load_lazily, bytes(data)) == outcome(json.loads, bytes(data))


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":"), (",\n ", " : ")])
def test_names_and_values_lie_where_they_were_found(monkeypatch, separators):
    """More of them than are taken at a time, and values that go on behind a window."""
    monkeypatch.setattr(lazy_references, "_PIECE", 7)
    monkeypatch.setattr(lazy_references, "_WINDOW", 5)
    refs: dict[str, Any] = {f"v/{n}": [f"/run/{n // 10}.nc", 9**n, n] for n in range(19)}
    refs |= {"v/.zarray": '{"é": "\\"}'} | {f"w/{n}": ["é" * n, n, n] for n in range(20)}
    text = json.dumps({"refs": refs, "version": 1}, ensure_ascii=False, separators=separators)
    found = load_lazily(text.encode())
    assert isinstance(found["refs"], LazyObject)
    assert len(found["refs"].others) == 2  # the last member has no comma behind it
    assert dict(found["refs"]) == refs
    assert len(found["refs"]) == len(refs)
    assert "v/19" not in found["refs"]
    numbers = {name: refs[name][-1] for name in refs if name not in found["refs"].others}
    assert dict(found["refs"].last_numbers(list(refs))) == numbers
    assert found["refs"].last_numbers(["v/.zarray"]) == []


def test_a_document_of_other_members_is_parsed_as_a_whole(monkeypatch):
    monkeypatch.setattr(lazy_references, "_MOST_OTHERS", 3)
    refs = {str(n): "text" for n in range(9)}
    assert load_lazily(json.dumps(refs).encode()) == refs
    assert type(load_lazily(json.dumps(refs).encode())) is dict


@pytest.mark.parametrize("space", ["", " ", "\n\t "])
@given(st.lists(st.tuples(st.text("a]", max_size=3), st.integers(0, 10**18 - 1)), min_size=1))
def test_numbers_at_the_ends_of_values_are_those_that_json_reads(space, values):
    usual = [f'"{n}": ["{url}", 0, {end}{space}]' for n, (url, end) in enumerate(values)]
    text = f'{{"refs": {{"]": "]", {", ".join(usual)}, "last": "]"}}}}'
    found = load_lazily(text.encode())["refs"]
    assert [*found.others] == ["]", "last"]
    expected = {name: value[2] for name, value in json.loads(text)["refs"].items() if value != "]"}
    assert dict(found.last_numbers([*found])) == expected


def test_folders_are_listed():
    refs: dict[str, Any] = {".zgroup": "{}", "a/b/.zarray": "{}", "a/b/0": ["/x", 0, 8]}
    found = JsonReferences(refs | {"a/b/1": ["/x"], "c/.zgroup": {"zarr_format": 2}}, "memory")
    assert found.ls("", detail=False) == [".zgroup", "a", "c"]
    assert found.ls("a") == [{"name": "a/b", "type": "directory", "size": 0}]
    sizes = {one["name"]: one["size"] for one in found.ls("a/b/")}
    assert sizes == {"a/b/.zarray": 2, "a/b/0": 8, "a/b/1": None}
    assert {*found.listdir()} == {"", "a", "a/b", "c"}
    assert dict(found.items())["c/.zgroup"] == '{"zarr_format": 2}'
    with pytest.raises(KeyError):
        found.ls("b")
