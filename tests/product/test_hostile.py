"""Inputs that claim too much: a typed error within a second and 300 MiB, for each by name.

The attacks are in `tests/support/fuzz/named.py`. All of them run in one process whose memory is
limited.
"""

import json
import subprocess
import sys

import pytest

import zarr_dask as zd
from tests.support.fuzz.child import MEMORY, SECONDS
from tests.support.paths import ROOT

HARMLESS = (
    "v3 with a rectilinear grid of 2^62 chunks",  # that is no more than a grid
    *(".zattrs of UTF-16", "attrs of UTF-16"),  # Python's json reads it
    *(".zmetadata of", "consolidated metadata of"),  # it may do without
)
"""What needs no error, as long as it does no harm."""


@pytest.fixture(scope="module")
def results():
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.fuzz.named"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.timeout(300)  # the process that tries all of them, on a machine that others use
def test_a_typed_error_within_a_second_and_300_mib(results):
    expected = {"CorruptObjectError", "MetadataError", "UnknownDataTypeError", "UnknownGridError",
                "UnknownCodecError", "SelectionError", "NodeNotFoundError",
                "StoreError", "DamagedValueError"}  # fmt: skip
    assert len(results) > 300
    wrong = {
        name: (text, seconds, grown_mib)
        for name, (error, text, seconds, grown_mib) in results.items()
        if (error not in expected and not (name.startswith(HARMLESS) and text == "no error"))
        or seconds >= SECONDS
        or grown_mib >= MEMORY >> 20
    }
    assert wrong == {}


@pytest.mark.slow
def test_every_one_of_thousands_of_arrays_with_an_unknown_codec_is_named():
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}, {"name": "not-installed"}],
    }
    text = json.dumps(array).encode()
    store = {f"a{number}/zarr.json": text for number in range(6000)}
    zd.create_group(store)
    found = zd.inventory(store)
    told = [node for node in found.nodes if "not-installed" in json.dumps(node.to_json())]
    assert len(told) == 6000


@pytest.mark.parametrize("name", ["a{}", "b{}/a", pytest.param("a/{}", marks=pytest.mark.slow)])
def test_walking_tens_of_thousands_of_broken_nodes_is_refused(name):
    group = zd.open_group(consolidated({name.format(number): {} for number in range(90_000)}))
    with pytest.raises(zd.errors.MetadataError, match="more than 10000 nodes"):
        list(group.walk())


def test_more_consolidated_documents_than_real_ones_could_be_are_not_used():
    store = consolidated({f"a{number}": {} for number in range(200_000)})
    with pytest.warns(zd.errors.ConsolidatedMetadataWarning, match="'200000 documents'"):
        group = zd.open_group(store)
    assert list(group.walk()) == []
    store = consolidated(
        {"a": json.loads(consolidated({f"{n}": {} for n in range(150_000)})["zarr.json"])}
    )
    with pytest.warns(zd.errors.ConsolidatedMetadataWarning, match="'150001 documents'"):
        zd.open_group(store)


def consolidated(entries):
    known = {"kind": "inline", "must_understand": False, "metadata": entries}
    document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": known}
    return {"zarr.json": json.dumps(document).encode()}


def test_hundreds_of_thousands_of_filters_among_attributes_are_refused():
    store = {}
    zd.create_array(store, "a", shape=4, dtype="f4", chunks=2, format="v3draft-2022-05")
    document = json.loads(bytes(store["meta/root/a.array.json"]))
    document["attributes"] = {"filters": [{"id": "delta", "dtype": "<f4"}] * 300_000}
    store["meta/root/a.array.json"] = json.dumps(document).encode()
    with pytest.raises(zd.errors.MetadataError, match="300000 filters"):
        zd.open_array(store, "a")
