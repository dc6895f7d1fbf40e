"""Inputs that claim too much: a typed error within a second and 300 MiB, for each by name.

The attacks are in `tests/fuzz/named.py`; all of them run in one process whose memory is limited.
"""

import json
import subprocess
import sys

import pytest

import zarr_dask as zd
from tests.conftest import ROOT
from tests.fuzz.child import MEMORY, SECONDS
from tests.fuzz.named import CASES

HARMLESS = {
    "v3 with a rectilinear grid of 2^62 chunks",  # that is no more than a grid
    *(".zattrs of UTF-16", "attrs of UTF-16"),  # Python's json reads it
    *(name for name in CASES if name.startswith(".zmetadata of")),  # it may do without
}
"""What needs no error, as long as it does no harm."""


@pytest.fixture(scope="module")
def results():
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.named"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_typed_error_within_a_second_and_300_mib(results, name):
    error, text, seconds, grown_mib = results[name]
    expected = {"CorruptObjectError", "MetadataError", "UnknownDataTypeError", "UnknownGridError",
                "UnknownCodecError", "SelectionError", "NodeNotFoundError"}  # fmt: skip
    assert error in expected or (name in HARMLESS and text == "no error"), text
    assert seconds < SECONDS
    assert grown_mib < MEMORY >> 20


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
    found = zd.survey(store)
    told = [node for node in found.nodes if "not-installed" in json.dumps(node.to_json())]
    assert len(told) == 6000


def test_walking_hundreds_of_thousands_of_broken_nodes_is_refused():
    entries = {f"a{number}": {} for number in range(200_000)}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": entries}
    document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated}
    group = zd.open_group({"zarr.json": json.dumps(document).encode()})
    with pytest.raises(zd.errors.MetadataError, match="more than 50000 nodes"):
        list(group.arrays())
