"""Any document: what we write parses back, and what someone has damaged is refused by its place."""

from __future__ import annotations

import copy
import json
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.dtypes import bits_of
from zarr_dask.errors import MetadataError
from zarr_dask.stores import MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:.*two dimensions have one name")
NUMBERS = (
    "bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
OTHERS = (
    "string", "bytes", "M8[10us]", "m8[D]", "<U3", "|S4", "|V3", "bfloat16", "float8_e5m2", "int4",
    [("a", "<i2"), ("b", [("c", "<f8"), ("d", "?")])],
)  # fmt: skip
CODECS: tuple[Any, ...] = (
    None,
    [],
    ["gzip", "crc32c"],
    [{"name": "zstd", "configuration": {"level": -3, "checksum": True}}],
    [{"name": "blosc", "configuration": {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle"}}],
)
KEYS = ("default", "v2", {"name": "default", "separator": "."}, {"name": "v2", "separator": "/"})

text = st.text(max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@st.composite
def arrays(draw):
    """An array of any kind that we can create."""
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.lists(st.integers(0, 20), min_size=ndim, max_size=ndim)))
    inner = tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    outer = tuple(n * draw(st.integers(1, 3)) for n in inner)
    rectilinear = tuple(
        tuple(m * draw(st.integers(1, 5)) for _ in range(-(-max(n, 1) // m)))
        for n, m in zip(shape, inner, strict=True)
    )
    grids = draw(
        st.sampled_from(
            [
                {"chunks": inner},
                {"chunks": rectilinear},
                {"chunks": inner, "shards": outer},
                {"chunks": inner, "shards": rectilinear},
            ]
        )
    )
    dtype: Any = draw(st.sampled_from(NUMBERS + OTHERS))
    fill: dict[str, Any] = {}
    if dtype in NUMBERS and dtype != "bool":
        size = np.dtype(dtype).itemsize
        fill["fill_value"] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype)[0]
    names = draw(st.none() | st.lists(st.none() | text, min_size=ndim, max_size=ndim))
    return zd.create_array(
        MemoryStore(),
        shape=shape,
        dtype=dtype,
        codecs=draw(st.sampled_from(CODECS)) if dtype in NUMBERS else None,
        dimension_names=names,
        attributes=draw(st.dictionaries(text, json_values, max_size=3)),
        order=draw(st.sampled_from("CF")),
        chunk_key_encoding=draw(st.sampled_from(KEYS)),
        **grids,
        **fill,
    )


def facts(meta) -> tuple:
    """Everything that metadata say, to be compared."""
    return (
        meta.grid, meta.data_type, bits_of(meta.fill_value), meta.codecs, meta.chunk_key_encoding,
        meta.attributes, meta.dimension_names, meta.extra,
    )  # fmt: skip


@given(arrays())
def test_what_is_written_is_read(array):
    again = zd.open(array.store)
    assert facts(again.meta) == facts(array.meta)
    documents = again.node_format.documents
    assert documents(again.meta, "") == documents(array.meta, "")


@given(arrays())
def test_only_strict_json_of_3_0_is_written(array):
    def refuse(token):
        raise AssertionError(token)

    document = json.loads(bytes(array.store.get("zarr.json")), parse_constant=refuse)
    assert type(document["data_type"]) in (str, dict)
    for member in ("chunk_grid", "chunk_key_encoding", *range(len(document["codecs"]))):
        extension = document["codecs"][member] if isinstance(member, int) else document[member]
        assert set(extension) <= {"name", "configuration"}


# --- damage ---------------------------------------------------------------------------------------


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Paths of everything in a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += places(item, (*path, number))
    return found


hostile = json_values | st.sampled_from(
    [
        -1, 0, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**400, -(1 << 63), 1.0, 1e308, True, [], {},
        [0], [1], [[1, 1]], [1 << 62] * 3, [-1], [None], "default", "v2", "bytes", "regular",
        "rectilinear", "sharding_indexed", "transpose", {"name": "bytes"},
        {"must_understand": False}, {"name": "x", "must_understand": False}, "NaN", "0x7fc00000",
        [[[[[[[[1]]]]]]]], "int8", "uint8", "float32", "string", "r16", {"name": "struct"},
        [1] * 70,
    ]
).map(copy.deepcopy)  # fmt: skip


@st.composite
def damaged(draw):
    """A document with one to three places changed, and which top members these are in."""
    document = json.loads(bytes(draw(arrays()).store.get("zarr.json")))
    touched = set()
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(document)))
        touched.add(path[0])
        parent: Any = document
        for step in path[:-1]:
            parent = parent[step]
        action = draw(st.sampled_from(["replace", "remove", "add", "swap"]))
        if action == "replace":
            parent[path[-1]] = draw(hostile)
        elif action == "remove":
            del parent[path[-1]]
        elif action == "swap":
            other: Any = document
            for step in draw(st.sampled_from(places(document))):
                other = other[step]
            parent[path[-1]] = copy.deepcopy(other)
        elif isinstance(parent, dict):
            name = draw(text)
            parent[name] = draw(hostile)
            if parent is document:
                touched.add(name)
        else:
            parent.append(draw(hostile))
        if not document:
            break
    return document, touched


NAMED = re.compile(r"^[^.\[]*")
TOGETHER = {"shape", "data_type", "chunk_grid", "codecs", "fill_value", "dimension_names"}
"""Members that must fit each other: damage to one may show at another."""
PLACES = {"zarr_format", "node_type", "chunk_key_encoding", "attributes", "chunk shape"}


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(damaged())
def test_damage_is_refused_by_its_place_or_harmless(case):
    document, touched = case
    store = MemoryStore()
    store.set("zarr.json", [json.dumps(document).encode()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps that may be skipped
        node = opened(store)
        if isinstance(node, MetadataError):
            check_places(node, touched)
        else:
            check_rewriting(node, document)


def opened(store):
    try:
        return zd.open(store, mode="r+")
    except MetadataError as error:
        return error


def check_places(error, touched):
    assert error.problems
    assert len(str(error)) < 100_000
    for problem in error.problems:
        top = NAMED.match(problem.field)[0]
        assert {top, problem.field} & (touched | TOGETHER | PLACES), problem.field


def check_rewriting(node, document):
    """What could be read stays what it is when the document is written anew."""
    assert repr(node)
    node.update_attributes({"more": 1})
    again = zd.open(node.store)
    assert again.attributes == {**document.get("attributes", {}), "more": 1}
    if isinstance(node, zd.Array):
        without = {"attributes": {}}
        assert facts(replace(again.meta, **without)) == facts(replace(node.meta, **without))
