"""Documents of February 2023: one zarr.json per node, in the words of the draft."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask import errors

CODECS = "https://purl.org/zarr/spec/codecs"
GZIP = {"type": f"{CODECS}/gzip/1.0", "configuration": {"level": 1}}

OF_9_FEBRUARY = {
    "zarr_format": "https://purl.org/zarr/spec/v3#array",
    "shape": [4, 3],
    "dimension_names": ["rows", "columns"],
    "data_type": "<f8",
    "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "/"},
    "codecs": [GZIP],
    "fill_value": "NaN",
    "extensions": [],
    "attributes": {"foo": 42},
}
OF_21_FEBRUARY = OF_9_FEBRUARY | {
    "zarr_format": 3,
    "node_type": "array",
    "chunk_grid": {
        "name": "regular",
        "configuration": {"chunk_shape": [2, 3], "separator": "/"},
    },
    "codecs": [{"type": "gzip", "configuration": {"level": 1}}],
}
GROUP = {"zarr_format": "https://purl.org/zarr/spec/v3#group", "attributes": {"spam": "ham"}}
VALUES = np.arange(12, dtype="f8").reshape(4, 3)


def store_of(document, rows=VALUES[2:], group=GROUP, key="a/c/1/0"):
    return {
        "zarr.json": json.dumps(group).encode(),
        "a/zarr.json": json.dumps(document).encode(),
        key: gzip.compress(rows.tobytes()),
    }


@pytest.mark.parametrize("document", [OF_9_FEBRUARY, OF_21_FEBRUARY])
def test_the_examples_of_the_texts(document):
    store = store_of(document)
    root = zd.open_group(store)
    assert root.attributes == {"spam": "ham"}
    array = root["a"]
    assert array.format == "v3"
    assert array.attributes == {"foo": 42}
    assert array.dimension_names == ("rows", "columns")
    assert np.isnan(array[:2]).all()
    assert array[2:].tolist() == VALUES[2:].tolist()


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"chunk_memory_layout": "F"}, VALUES[2:].T),
        ({"data_type": ">f8"}, VALUES[2:].astype(">f8")),
        ({"data_type": "float64", "fill_value": "+Infinity"}, VALUES[2:]),
        ({"codecs": [{"name": "transpose", "configuration": {"order": "F"}}, GZIP]}, VALUES[2:].T),
        (
            {"codecs": [{"name": "endian", "configuration": {"endian": "big"}}, GZIP],
             "data_type": "float64"},
            VALUES[2:].astype(">f8"),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("document", [OF_9_FEBRUARY, OF_21_FEBRUARY])
def test_members_of_the_draft(document, changes, rows):
    store = store_of(document | changes, np.ascontiguousarray(rows))
    assert zd.open_array(store, "a")[2:].tolist() == VALUES[2:].tolist()


def test_the_final_form_is_written():
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
    codecs = [{"type": f"{CODECS}/blosc/1.0", "configuration": blosc}]
    grid = {"type": "regular", "chunk_shape": [2, 3], "separator": "."}
    store = store_of(OF_9_FEBRUARY | {"codecs": codecs, "chunk_grid": grid})
    array = zd.open_array(store, "a", mode="r+")
    array[:2] = VALUES[:2]
    assert "a/c.0.0" in store
    array.update_attributes({"bar": "apples"})
    written = json.loads(store["a/zarr.json"])
    assert (written["zarr_format"], written["node_type"]) == (3, "array")
    assert written["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "."}}
    assert written["codecs"] == [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "blosc", "configuration": blosc | {"shuffle": "shuffle", "typesize": 8}},
    ]
    again = zd.open_array(store, "a")
    assert again[:2].tolist() == VALUES[:2].tolist()
    assert again.attributes == {"foo": 42, "bar": "apples"}
    assert again.dimension_names == ("rows", "columns")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data_type": "decimal"}, "data_type"),
        ({"dimension_names": ["rows"]}, "dimension_names"),
        ({"dimension_names": "rows"}, "dimension_names"),
        ({"codecs": [{}]}, "codecs[0].type"),
        ({"codecs": "gzip"}, "codecs"),
        ({"chunk_grid": {"type": "irregular", "separator": "/"}}, "chunk_grid.type"),
        ({"extensions": [{"extension": "x", "must_understand": True}]}, "must_understand"),
        ({"surprise": 1}, "surprise"),
        ({"zarr_format": "https://purl.org/zarr/spec/v3#store"}, "zarr_format"),
        ({"shape": None}, "shape"),
    ],
)
def test_wrong_documents(changes, field):
    with pytest.raises(errors.MetadataError) as caught:
        zd.open(store_of(OF_9_FEBRUARY | changes), "a")
    assert any(field in problem.field for problem in caught.value.problems)


def test_final_documents_are_judged_by_the_final_text():
    final = OF_21_FEBRUARY | {"chunk_key_encoding": {"name": "default"}}
    with pytest.raises(errors.MetadataError, match="extensions"):
        zd.open(store_of(final), "a")
