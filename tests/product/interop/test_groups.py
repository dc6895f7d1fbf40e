"""Hierarchies: zarr-python's read by us, ours by zarr-python and tensorstore."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import tensorstore as ts
import zarr

import zarr_dask as zd
from tests.support.interop.seen import bits

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])

ARRAYS = {
    "x": np.arange(6, dtype="<i2").reshape(2, 3),
    "a/y": np.linspace(0, 1, 7),
    "a/b/z": np.array([True, False]),
}


def _theirs(path, zarr_format):
    """A root, a group with attributes, one without, three arrays at three depths."""
    root = zarr.create_group(path, zarr_format=zarr_format, attributes={"title": "root", "n": [1]})
    a = root.create_group("a", attributes={"title": "a"})
    a.create_group("b")
    root.create_group("empty")
    for name, values in ARRAYS.items():
        array = root.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=tuple(max(1, size - 1) for size in values.shape),
            attributes={"long_name": name},
            **({"dimension_names": list("pq"[: values.ndim])} if zarr_format == 3 else {}),
        )
        array[...] = values
    return root


def _consolidate(path, zarr_format):
    with warnings.catch_warnings():
        # Its remark that the specification (of before July 2026) does not know this of v3.
        warnings.filterwarnings(
            "ignore", "Consolidated metadata is currently not part", category=UserWarning
        )
        zarr.consolidate_metadata(path, zarr_format=zarr_format)


def _check(root, zarr_format):
    assert dict(root.attributes) == {"title": "root", "n": [1]}
    assert dict(root["a"].attributes) == {"title": "a"}
    assert dict(root["a/b"].attributes) == {}
    assert sorted(path for path, _ in root.groups()) == ["a", "empty"]
    assert sorted(path for path, _ in root.arrays()) == ["x"]
    assert sorted(path for path, _ in root.groups(recursive=True)) == ["a", "a/b", "empty"]
    assert sorted(path for path, _ in root.arrays(recursive=True)) == sorted(ARRAYS)
    for name, values in ARRAYS.items():
        array = root[name]
        assert isinstance(array, zd.Array)
        assert bits(array[...]) == bits(values)
        assert dict(array.attributes) == {"long_name": name}
        names = tuple("pq"[: values.ndim]) if zarr_format == 3 else None
        assert array.dimension_names == names
    assert all(name.rsplit("/")[-1] in str(root.tree()) for name in [*ARRAYS, "empty"])


@FORMATS
def test_a_hierarchy_of_zarr_python(zarr_format, place):
    _theirs(place, zarr_format)
    _check(zd.open_group(place), zarr_format)
    _check(zd.open(place), zarr_format)
    assert bits(zd.open(place, "a/y")[...]) == bits(ARRAYS["a/y"])
    assert bits(zd.open_array(place / "a" / "b" / "z")[...]) == bits(ARRAYS["a/b/z"])
    assert dict(zd.open_group(place, "a").attributes) == {"title": "a"}


@FORMATS
def test_a_consolidated_hierarchy_of_zarr_python(zarr_format, place):
    _theirs(place, zarr_format)
    _consolidate(place, zarr_format)
    _check(zd.open_group(place), zarr_format)
    _check(zd.open(place), zarr_format)


@FORMATS
def test_a_consolidated_subgroup(zarr_format, place):
    """The documents of nodes inside a consolidated group open by themselves too."""
    _theirs(place, zarr_format)
    _consolidate(place, zarr_format)
    group = zd.open_group(place, "a")
    assert sorted(path for path, _ in group.arrays(recursive=True)) == ["b/z", "y"]
    assert bits(group["b/z"][...]) == bits(ARRAYS["a/b/z"])


@FORMATS
def test_attributes_of_any_json(zarr_format, place):
    attributes = {
        "text": "ünïcode \u2603 \U0001f600",
        "numbers": [0, -1, 2**53 + 1, 0.1, 1e300, -0.5],
        "constants": [None, True, False],
        "nested": {"a": {"b": [{"c": []}]}},
        "zarr_conventions": [{"name": "x", "uuid": "d35379db-88df-4056-af3a-620245f8e347"}],
        "": 0,
    }
    zarr.create_group(place / "theirs", zarr_format=zarr_format, attributes=attributes)
    assert dict(zd.open_group(place / "theirs").attributes) == attributes
    zd.create_group(place / "ours", format=f"v{zarr_format}", attributes=attributes)
    assert zarr.open_group(place / "ours", mode="r").attrs.asdict() == attributes


@FORMATS
def test_special_floats_in_attributes(zarr_format, place):
    """zarr-python writes bare NaN and Infinity, which JSON does not have."""
    zarr.create_group(place, zarr_format=zarr_format, attributes={"x": [np.inf, -np.inf, np.nan]})
    seen = dict(zd.open_group(place).attributes)["x"]
    assert seen[:2] == [np.inf, -np.inf]
    assert np.isnan(seen[2])


@FORMATS
def test_our_hierarchy_in_zarr_python(zarr_format, place):
    root = zd.create_group(place, format=f"v{zarr_format}", attributes={"title": "root"})
    root.create_group("empty", attributes={"k": 1})
    for name, values in ARRAYS.items():
        array = root.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=1, attributes={"long_name": name}
        )
        array[...] = values
    theirs = zarr.open_group(place, mode="r", zarr_format=zarr_format)
    assert theirs.attrs.asdict() == {"title": "root"}
    members = dict(theirs.members(max_depth=None))
    assert sorted(members) == sorted(["a", "a/b", "empty", *ARRAYS])
    assert members["empty"].attrs.asdict() == {"k": 1}
    for name, values in ARRAYS.items():
        assert bits(members[name][...]) == bits(values)
        assert members[name].attrs.asdict() == {"long_name": name}
        driver = "zarr3" if zarr_format == 3 else "zarr"
        kvstore = {"driver": "file", "path": f"{place}/{name}/"}
        seen = ts.open({"driver": driver, "kvstore": kvstore}, open=True).result().read().result()
        assert bits(seen) == bits(values)


@FORMATS
def test_our_array_below_groups_that_do_not_exist(zarr_format, place):
    """Every ancestor gets its document."""
    array = zd.create_array(place, "p/q/r", shape=3, dtype="u1", format=f"v{zarr_format}")
    array[...] = [1, 2, 3]
    theirs = zarr.open_group(place, mode="r", zarr_format=zarr_format)
    assert sorted(path for path, _ in theirs.members(max_depth=None)) == ["p", "p/q", "p/q/r"]
    assert theirs["p/q/r"][...].tolist() == [1, 2, 3]


@FORMATS
def test_our_array_inside_a_hierarchy_of_zarr_python(zarr_format, place):
    _theirs(place, zarr_format)
    group = zd.open_group(place, mode="r+")
    array = group.create_array("a/new", shape=(2, 2), dtype=">f4", fill_value=-1)
    array[0] = 5
    seen = zarr.open_group(place, mode="r", zarr_format=zarr_format)["a/new"]
    assert seen[...].tolist() == [[5, 5], [-1, -1]]
    root = zarr.open_group(place, mode="r", zarr_format=zarr_format)
    assert root.attrs.asdict() == {"title": "root", "n": [1]}


@FORMATS
def test_our_attribute_update_keeps_what_zarr_python_wrote(zarr_format, place):
    root = _theirs(place, zarr_format)
    zd.open_array(place, "x", mode="r+").update_attributes({"units": "m"})
    seen = zarr.open_array(place, path="x", mode="r", zarr_format=zarr_format)
    assert seen.attrs.asdict() == {"long_name": "x", "units": "m"}
    assert bits(seen[...]) == bits(ARRAYS["x"])
    assert seen.metadata.to_dict()["shape"] == root["x"].metadata.to_dict()["shape"]


def test_names_outside_ascii(place):
    root = zarr.create_group(place, zarr_format=3)
    root.create_array("größe/Å", shape=1, dtype="i4")[...] = 9
    assert zd.open(place, "größe/Å")[0] == 9
    assert [path for path, _ in zd.open_group(place).groups()] == ["größe"]


def test_v3_documents_are_the_widely_readable_form(place):
    """Objects for codecs and grids, no ``must_understand``: what readers of 3.0 know."""
    zd.create_array(place, shape=(4, 4), dtype="f4", chunks=(2, 2), shards=(4, 4))
    document = json.loads((place / "zarr.json").read_text())
    assert isinstance(document["data_type"], str)
    assert all(isinstance(codec, dict) for codec in document["codecs"])
    inside = document["codecs"][0]["configuration"]
    assert all(isinstance(codec, dict) for codec in [*inside["codecs"], *inside["index_codecs"]])
    assert isinstance(document["chunk_grid"], dict)
    assert isinstance(document["chunk_key_encoding"], dict)
    assert "must_understand" not in json.dumps(document)


def test_v3_is_taken_where_both_versions_stand(place):
    """zarr-python does so too, and warns of it as we do."""
    zarr.create_array(place, shape=2, dtype="i4", zarr_format=2)[...] = 2
    zarr.create_array(place, shape=2, dtype="i4", zarr_format=3)[...] = 3
    with pytest.warns(UserWarning, match=r"zarr\.json"):
        assert zarr.open_array(place, mode="r")[0] == 3
    with pytest.warns(UserWarning, match="v3 is used"):
        assert zd.open_array(place)[0] == 3
    assert zd.open_array(place, format="v2")[0] == 2
    assert zd.open_array(place, format="v3")[0] == 3
