"""References lead only where they may."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError, StoreError
from zarr_dask.stores.backends.reference_targets import check_target

REMOTE = "https://example.org/refs.json"


@pytest.mark.parametrize(
    ("target", "places", "allowed"),
    [
        ("s3://bucket/a.nc", None, True),
        ("https://other.org/a.nc", None, True),
        ("https://example.org/a.nc", None, True),
        ("/etc/passwd", None, False),
        ("file:///etc/passwd", None, False),
        ("local:///etc/passwd", None, False),
        ("http://127.0.0.1/a", None, False),
        ("http://[::1]:8080/a", None, False),
        ("http://10.1.2.3/a", None, False),
        ("http://169.254.169.254/latest/meta-data", None, False),
        ("http://localhost/a", None, False),
        ("http://10.1.2.3/run/a", ["http://10.1.2.3/run"], True),
        ("http://10.1.2.3/run/../b", ["http://10.1.2.3/run"], False),
        ("s3://bucket/running/a.nc", ["s3://bucket/run"], False),
        ("file:///data/run/a.nc", ["/data/run/"], True),
        ("file:///data/run/%2e%2e/a.nc", ["/data/run/"], False),
    ],
)
def test_targets_of_a_remote_document(target, places, allowed):
    if allowed:
        check_target(target, REMOTE, places)
    else:
        with pytest.raises(StoreError, match="reference_places"):
            check_target(target, REMOTE, places)


@pytest.fixture
def served(tmp_path):
    """A document on a web server, and in a file, that leads to a file of this machine."""
    np.arange(6, dtype="<i4").tofile(tmp_path / "raw")
    array = {"zarr_format": 2, "shape": [6], "chunks": [6], "dtype": "<i4", "compressor": None}
    array |= {"filters": None, "fill_value": 0, "order": "C"}
    refs = {"a/.zarray": json.dumps(array), "a/0": [f"file://{tmp_path}/raw", 0, 24]}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"reference::http://127.0.0.1:{server.server_port}/refs.json"
        server.shutdown()


def test_a_remote_document_does_not_lead_to_files_of_this_machine(served, tmp_path):
    pytest.importorskip("aiohttp")
    array = zd.open_array(served, "a")
    with pytest.raises(StoreError, match="a file of this machine"):
        array[...]
    with pytest.raises(StoreError, match="a file of this machine"):
        array[1:3]
    named = {"reference_places": [str(tmp_path)]}
    values = zd.open_array(served, "a", storage_options=named)[...]
    np.testing.assert_array_equal(values, np.arange(6))


def test_a_document_of_the_users_own_leads_where_it_says(served, tmp_path):
    place = f"reference::{tmp_path}/refs.json"
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], np.arange(6))
    elsewhere = {"reference_places": [str(tmp_path / "other")]}
    with pytest.raises(StoreError, match="which is in none of"):
        zd.open_array(place, "a", storage_options=elsewhere)[...]


def test_a_document_that_is_written_again_is_read_again(tmp_path):
    array = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "compressor": None}
    array |= {"filters": None, "fill_value": 0, "order": "C"}
    for text in ("ab", "cde"):
        refs = {"a/.zarray": json.dumps(array), "a/0": text[-2:]}
        (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs, "x": text}))
        found = zd.open_array(f"reference::{tmp_path}/refs.json", "a")[...]
        assert found.tobytes() == text[-2:].encode()


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1, "templates": {"u": "{{ x }}"}, "refs": {"c/0": ["{{u.__globals__}}", 0, 1]}},
        {"version": 1, "templates": {"u": "{% for i in range(9) %}{% endfor %}{{1}}"}, "refs": {}},
        {"version": 1, "refs": [1]},
        {"version": 2, "refs": {}},
        {"c/0": [{"a": 1}]},
        [1],
    ],
)
def test_documents_that_are_none_are_errors_of_the_store(document, tmp_path):
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"malformed|programs of their author"):
        zd.open_array("reference://", storage_options={"fo": str(path)})


@pytest.mark.parametrize("places", [None, ["/data"]])
@pytest.mark.parametrize(
    "entry",
    [["a"] * 9, [], 3, "base64:x", ["/data/\ud800", 0, 1], ["/data/\0", 0, 1], ["s3://[x", 0, 1]],
)
def test_malformed_entries_are_errors_of_the_store(entry, places, tmp_path):
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"zarr.json": json.dumps(document), "c/0": entry}))
    options = {"fo": str(path)} | ({} if places is None else {"reference_places": places})
    with pytest.raises((StoreError, CorruptObjectError)):
        zd.open_array("reference://", storage_options=options)[...]
