"""References in JSON: what fsspec makes of templates and generators, without running programs."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import StoreError
from zarr_dask.stores.backends import json_references
from zarr_dask.stores.backends.json_references import reference_options
from zarr_dask.stores.open import open_store

reference = pytest.importorskip("fsspec.implementations.reference")
pytest.importorskip("jinja2")

ARRAY = {"zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "<i4", "compressor": None}
ARRAY |= {"filters": None, "fill_value": -1, "order": "C"}
SPECIFIED = {
    "version": 1,
    "templates": {"u": "server.domain/path", "f": "{{c}}", "g": "{{ d }}/{{ '%02d' % n }}"},
    "gen": [
        {
            "key": "gen_key{{i}}",
            "url": "http://{{u}}_{{i}}",
            "offset": "{{(i + 1) * 1000}}",
            "length": "1000",
            "dimensions": {"i": {"stop": 5}},
        },
        {
            "key": "x/{{ (i - 1) // 2 }}.{{ j % 7 }}",
            "url": '{{ "%03d" | format(i) }}-{{ "%d" % -j }}',
            "dimensions": {"i": {"start": 1, "stop": 9, "step": 2}, "j": [3, 5, 1]},
        },
    ],
    "refs": {
        "key0": "data",
        "key1": ["http://target_url", 10000, 100],
        "key2": ["http://{{u}}", 10000, 100],
        "key3": ["http://{{f(c='text')}}", 10000, 100],
        "key4": ["{{ u }}{{ g(d=u, n=7) }}"],
        "key5": {"zarr_format": 2},
        "key6": "base64:AAAA",
    },
}
"""The example of the specification, and more."""


def written_out(document, **options):
    return dict(reference_options("", {"fo": document, **options})["fo"])


def of_fsspec(document, **options):
    found = reference.ReferenceFileSystem(
        document,
        simple_templates=False,
        skip_instance_cache=True,
        remote_protocol="file",
        **options,
    ).references
    return {
        key: base64.b64decode(value[7:]) if str(value).startswith("base64:") else value
        for key, value in found.items()
    }


@pytest.mark.parametrize("options", [{}, {"template_overrides": {"u": "elsewhere"}}])
def test_templates_and_generators_are_what_fsspec_makes_of_them(options):
    copied = json.loads(json.dumps(SPECIFIED))
    found = written_out(SPECIFIED, **options)
    assert found == of_fsspec(copied, **options)
    assert len(found) == 7 + 5 + 12


def test_generated_chunks_are_read(tmp_path):
    np.arange(6, dtype="<i4").tofile(tmp_path / "raw")
    gen = {"key": "a/{{i}}", "url": "{{u}}/raw", "offset": "{{ 8 * i }}", "length": "8"}
    gen["dimensions"] = {"i": {"stop": 3}}
    document = {"version": 1, "templates": {"u": str(tmp_path)}, "gen": [gen]}
    document["refs"] = {"a/.zarray": json.dumps(ARRAY)}
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(document))
    np.testing.assert_array_equal(zd.open_array(f"reference::{path}", "a")[...], np.arange(6))


PROGRAMS = {
    "a call": "{{ open('/etc/passwd') }}",
    "an attribute": "{{ u.__class__ }}",
    "an unknown name": "{{ v }}",
    "a subscript": "{{ u[0] }}",
    "a filter": "{{ u | upper }}",
    "a power": "{{ 9 ** 9 }}",
    "a repeated text": "{{ u * 99 }}",
    "a wide format": "{{ '%999d' % 1 }}",
    "a statement": "{% for a in b %}{% endfor %}",
    "a comment": "{# a #}{{u}}",
    "no end": "{{ u",
    "no expression": "{{ u + }}",
    "a long one": "{{ " + "1+" * 200 + "1 }}",
    "a shift": "{{ 1 << 9 }}",
    "a long result": "{{u}}" * 500,
    "a division by zero": "{{ '%d' % (1 // 0) }}",
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("place", ["refs", "gen", "templates"])
def test_programs_are_refused(tmp_path, kind, place):
    text = PROGRAMS[kind]
    document = {"version": 1, "templates": {"u": "/data"}, "refs": {"a/.zarray": json.dumps(ARRAY)}}
    if place == "refs":
        document["refs"]["a/0"] = [text + "{{u}}", 0, 8]
    elif place == "gen":
        document["gen"] = [{"key": "a/0", "url": text, "dimensions": {"i": [1]}}]
    else:
        document["templates"]["w"] = text
        document["refs"]["a/0"] = ["{{ w() }}", 0, 8]
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=rf"{path} have .*(save_json|anew)"):
        zd.open_array(f"reference::{path}", "a")


GENERATORS = {
    "no dimensions": {"key": "a", "url": "b"},
    "an offset alone": {"key": "a", "url": "b", "offset": "1", "dimensions": {"i": [1]}},
    "too many": {"key": "a", "url": "b", "dimensions": {"i": {"stop": 10**6}, "j": [1, 2]}},
    "more than any": {"key": "a", "url": "b", "dimensions": {"i": {"stop": 10**30}}},
    "a step of 0": {"key": "a", "url": "b", "dimensions": {"i": {"stop": 2, "step": 0}}},
    "a name of a template": {"key": "a", "url": "b", "dimensions": {"u": [1]}},
    "a length that is none": {
        "key": "a",
        "url": "b",
        "dimensions": {"i": [1]},
        "offset": "0",
        "length": "{{u}}",
    },
    "values that are none": {"key": "a", "url": "b", "dimensions": {"i": [1.5]}},
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_that_cannot_be_meant_are_errors(kind):
    document = {"version": 1, "templates": {"u": "x"}, "gen": [GENERATORS[kind]]}
    with pytest.raises(StoreError, match=r"'gen'|malformed"):
        zd.open("reference://", storage_options={"fo": document})


@pytest.mark.parametrize("way", ["gzip", "zstd"])
def test_compressed_documents_are_read(tmp_path, monkeypatch, way):
    compress = gzip.compress if way == "gzip" else pytest.importorskip("zstandard").compress
    np.arange(6, dtype="<i4").tofile(tmp_path / "raw")
    refs = {"a/.zarray": json.dumps({**ARRAY, "chunks": [6]}), "a/0": [f"{tmp_path}/raw", 0, 24]}
    path = tmp_path / "refs.json.packed"
    path.write_bytes(compress(json.dumps(refs).encode()))
    np.testing.assert_array_equal(zd.open_array(f"reference::{path}", "a")[...], np.arange(6))
    monkeypatch.setattr(json_references, "_MOST_BYTES", 100)
    path.write_bytes(compress(b" " * 101 + b"{}"))
    with pytest.raises(StoreError, match="more than 100 bytes"):
        zd.open_array(f"reference::{path}", "a")


def test_a_long_template_that_is_named_often_fills_no_memory():
    refs = {"version": 1, "templates": {"u": "x" * 1_000_000}, "refs": {"a": ["{{u}}" * 1000]}}
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="characters"):
            reference_options("", {"fo": refs})
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_texts_in_base64_have_the_size_of_their_bytes():
    refs = {"a": "base64:AQIDBA==", "b": "text"}
    store = open_store("reference://", {"fo": refs})
    assert dict(store.list_sizes("")) == {"a": 4, "b": 4}
    assert bytes(store.get("a")) == b"\1\2\3\4"


@pytest.mark.parametrize(
    "entry",
    [
        ["{raw}", -8, 8],
        ["{raw}", 0, -1],
        ["{raw}", 0],
        ["{raw}", 0.0, 8.0],
        [3, 0, 8],
        ["{raw}", 0, "8"],
        ["{raw}", 0, [8]],
        [None],
        [3.0],
        [],
        None,
        5,
    ],
)
def test_places_that_cannot_be_are_errors(tmp_path, entry):
    """Also where nothing is read: what is copied, counted or verified must not miss a chunk."""
    np.arange(6, dtype="<i4").tofile(tmp_path / "raw")
    if isinstance(entry, list):
        entry = [str(tmp_path / "raw") if one == "{raw}" else one for one in entry]
    refs = {".zgroup": '{"zarr_format":2}', "a/.zarray": json.dumps(ARRAY), "a/0": entry}
    options = {"storage_options": {"fo": refs}}
    for use in (
        lambda: zd.open_array("reference://", "a", **options)[...],
        lambda: zd.copy("reference://", {}, **options),
        lambda: zd.inventory("reference://", **options),
        lambda: zd.verify("reference://", **options),
    ):
        with pytest.raises(StoreError, match=r"a malformed entry"):
            use()


def test_a_place_without_a_url_is_an_error():
    refs = {"a/.zarray": json.dumps(ARRAY), "a/0": [None, 0, 8]}
    with pytest.raises(StoreError, match=r"a malformed entry for 'a/0' \(no URL\)"):
        zd.open_array("reference://", "a", storage_options={"fo": refs})[...]


@pytest.mark.parametrize("value", ["base64:AQ!ID", "base64:A"])
def test_base64_that_is_none_is_an_error(value):
    refs = {"a/.zarray": json.dumps(ARRAY), "a/0": value}
    with pytest.raises(StoreError, match="malformed"):
        zd.open_array("reference://", "a", storage_options={"fo": refs})[...]


def test_references_lead_to_several_services(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    np.arange(6, dtype="<i4").tofile(tmp_path / "raw")
    fsspec.filesystem("memory").pipe_file("/several/raw", np.arange(9, dtype="<i4").tobytes())
    refs = {"a/.zarray": json.dumps(ARRAY), "a/0": [f"file://{tmp_path}/raw", 0, 8]}
    refs |= {"a/1": ["memory://several/raw", 8, 8], "a/2": [f"{tmp_path}/raw", 16, 8]}
    found = zd.open_array("reference://", "a", storage_options={"fo": refs})[...]
    np.testing.assert_array_equal(found, np.arange(6))


def test_a_version_is_said():
    with pytest.raises(StoreError, match="'refs' in a document without 'version'"):
        zd.open("reference://", storage_options={"fo": {"refs": {".zgroup": "{}"}}})


def test_a_path_in_front_of_a_document_is_kept_and_its_targets_confined(tmp_path):
    np.arange(6, dtype="<i4").tofile(tmp_path / "raw")
    refs = {"a/.zarray": json.dumps({**ARRAY, "chunks": [6]}), "a/0": [f"{tmp_path}/raw", 0, 24]}
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    found = zd.open_array(f"reference://a::{tmp_path}/refs.json")[...]
    np.testing.assert_array_equal(found, np.arange(6))
