"""OME-Zarr metadata: the published suites and examples, and rules that their schemas miss."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest
import zarr

import zarr_dask as zd
from tests.support.ome_images import pixels, put_plate
from zarr_dask.errors import MetadataError, MixedFormatsWarning, OmeVersionError
from zarr_dask.ome import from_attributes, validate_attributes
from zarr_dask.stores import MemoryStore, Recording

SUITES = ("image", "label", "plate", "well", "strict_image", "strict_label", "strict_plate")
WHY = {
    "duplicate_axes": "unique",
    "missing_space_axes": "type space",
    "invalid_transformation_type": "translation",
    "missing_scale": "exactly one scale",
    "too_many_axes": "2 to 5 axes",
    "invalid_channels_color": "hexadecimal",
    "missing_axes_name": "must have a name",
    "invalid_axes_count": "2 to 5 axes",
    "one_space_axes": "type space",
    "invalid_path": "path of an array",
    "invalid_multiscales_transformations": "list of numbers",
    "missing_transformations": "one scale",
    "no_datasets": "at least one dataset",
    "missing_datasets": "at least one dataset",
    "missing_axes": "list of axes",
    "invalid_axis_type": "type space",
    "invalid_version": "version",
    "duplicate_scale": "exactly one scale",
    "no_axes": "2 to 5 axes",
    "too_many_space_axes": "type space",
    "no_multiscales": "at least one multiscale",
    "invalid_channels_window": "numbers min, max, start and end",
    "empty_transformations": "one scale",
    "missing_path": "path of an array",
    "empty_colors": "at least one",
    "empty_properties": "at least one",
    "colors_no_label_value": "label-value",
    "properties_no_label_value": "label-value",
    "colors_rgba_length": "four integers",
    "colors_rgba_type": "four integers",
    "colors_duplicate": "no label-value",
    "missing_rows": "rows",
    "empty_rows": "rows",
    "missing_columns": "columns",
    "empty_columns": "columns",
    "duplicate_columns": "unique",
    "duplicate_rows": "unique",
    "missing_wells": "one well",
    "empty_wells": "one well",
    "duplicate_wells": "twice",
    "missing_column_name": "letters and digits",
    "missing_row_name": "letters and digits",
    "missing_well_path": "a row and a column",
    "missing_well_rowIndex": "counted from 0",
    "missing_well_columnIndex": "counted from 0",
    "well_1group": "a row and a column",
    "well_3groups": "a row and a column",
    "non_alphanumeric_column": "letters and digits",
    "well_path_has_column_before_row": "must have the path",
    "missing_acquisition_id": "an id",
    "non_integer_acquisition_id": "id",
    "negative_acquisition_id": "an id",
    "non_integer_acquisition_maximumfieldcount": "above 0",
    "acquisition_zero_maximumfieldcount": "above 0",
    "acquisition_noninteger_starttime": "seconds since 1970",
    "acquisition_negative_starttime": "seconds since 1970",
    "acquisition_noninteger_endtime": "seconds since 1970",
    "negative_endtime": "seconds since 1970",
    "zero_field_count": "above 0",
    "empty_images": "image",
    "duplicate_images": "image",
    "no_version": "should be '0.4'",
    "no_colors": "colours",
    "missing_name": "name",
    "missing_version": "should be '0.4'",
    "missing_acquisition_name": "an acquisition should tell it",
    "missing_acquisition_maximumfieldcount": "an acquisition should tell it",
}
"""What must be said of the cases that are refused. Two cases share the name ``duplicate_rows``:
one is about columns."""


def cases(public_data: Path, version: str, suite: str) -> list[dict]:
    path = public_data / f"ngff_{version}" / "tests" / f"{suite}_suite.json"
    return json.loads(path.read_text())["tests"]


@pytest.mark.conformance("C153", "C144", "C146", "C148", "C149", "C150", "C152")
@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("suite", [*SUITES, "strict_well"])
def test_the_published_suites(public_data, version, suite):
    kind = suite.removeprefix("strict_")
    strict = suite.startswith("strict")
    for case in cases(public_data, version, suite):
        name = case["formerly"]
        found = validate_attributes(case["data"], version, kind, strict=strict)
        said = "\n".join(map(str, found))
        if case["valid"]:
            assert not found, (name, said)
        else:
            assert found, name
            if version == "0.5" and "ome" not in case["data"]:  # three cases lack it altogether
                below = {"ome": {"version": "0.5", **case["data"]}}
                said = "\n".join(map(str, validate_attributes(below, version, kind)))
            assert WHY[name.rpartition("/")[2].removesuffix(".json")] in said, (name, said)


def without_comments(path: Path) -> dict:
    return json.loads(re.sub(r"(?m)(^|\s)//.*$", "", path.read_text()))


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_the_published_examples_are_valid_and_survive_a_round_trip(public_data, version):
    paths = sorted((public_data / f"ngff_{version}" / "examples").glob("*/*.json"))
    documents = {path: without_comments(path) for path in paths if path.name[0] != "."}
    assert len(documents) >= 8
    for path, document in documents.items():
        attributes = document.get("attributes", document)
        if not attributes:
            continue
        assert validate_attributes(attributes, version) == [], path
        assert from_attributes(attributes, version).to_attributes() == attributes, path


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_what_the_suites_hold_survives_a_round_trip(public_data, version):
    for suite in SUITES:
        for case in cases(public_data, version, suite):
            if case["valid"]:
                assert from_attributes(case["data"]).to_attributes() == case["data"]


@pytest.mark.parametrize(
    ("suite", "name", "place", "level"),
    [
        # numbers for two of three axes
        (
            "image",
            "valid/mismatch_axes_units.json",
            "multiscales[0].datasets[0].coordinateTransformations[0].scale",
            "must",
        ),
        # the column first, as no suite of 0.5 has it any more
        ("strict_plate", "plate/strict_no_acquisitions", "plate.wells[0].path", "should"),
    ],
)
def test_what_a_suite_takes_and_the_text_does_not(public_data, suite, name, place, level):
    """In a hierarchy it is told."""
    (case,) = [one for one in cases(public_data, "0.4", suite) if one["formerly"] == name]
    group = zd.create_group({}, attributes=case["data"], format="v2")
    found = {one.place: one.level for one in zd.ome.validate(group, strict=True)}
    assert found[place] == level


# --- rules that schemas miss ----------------------------------------------------------------------


def image(**changes) -> dict:
    axes = [{"name": n, "type": t} for n, t in zip("tczyx", KINDS, strict=True)]
    scale = {"type": "scale", "scale": [1, 1, 2.0, 0.5, 0.5]}
    shift = {"type": "translation", "translation": [0, 0, 0, 0.25, 0.25]}
    coarse = {"type": "scale", "scale": [1, 1, 2.0, 1, 1]}
    datasets = [
        {"path": "0", "coordinateTransformations": [scale, shift]},
        {"path": "1", "coordinateTransformations": [coarse]},
    ]
    return {"axes": axes, "datasets": datasets, **changes}


KINDS = ("time", "channel", "space", "space", "space")


def said_of(multiscale: dict, **more) -> str:
    attributes = {"ome": {"version": "0.5", "multiscales": [multiscale], **more}}
    return "\n".join(map(str, validate_attributes(attributes)))


def test_an_image_that_follows_all_rules():
    assert said_of(image()) == ""


@pytest.mark.conformance("C144")
@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (("channel", "time", "space", "space", "space"), "order time, channel"),
        (("time", "space", "channel", "space", "space"), "order time, channel"),
        (("time", "time", "space", "space", "space"), "at most one axis may be of type time"),
        (
            ("channel", "angle", "space", "space", "space"),
            "at most one axis may be of type channel",
        ),
        (("time", "channel", "angle", "space", "space"), "at most one axis may be of type channel"),
        (("time", "space", "space", "space", "space"), "2 or 3 axes"),
    ],
)
def test_types_of_axes(kinds, says):
    axes = [{"name": n, "type": t} for n, t in zip("abcde", kinds, strict=True)]
    assert says in said_of(image(axes=axes))


@pytest.mark.conformance("C144")
def test_names_of_axes_are_unique_though_their_types_differ():
    axes = [{"name": n, "type": t} for n, t in zip("tczzx", KINDS, strict=True)]
    assert "multiscales[0].axes[3].name: 'z'; names of axes must be unique" in said_of(
        image(axes=axes)
    )


@pytest.mark.conformance("C146")
@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([("translation", 5), ("scale", 5)], "scale must stand before the translation"),
        ([("scale", 4)], "a scale must have one number for each of the 5 axes"),
        ([("scale", 5), ("translation", 4)], "a translation must have one number"),
        ([("scale", 5), ("translation", 5), ("translation", 5)], "at most one translation"),
        ([("scale", 5), ("identity", 0)], "must be 'scale' or 'translation'"),
    ],
)
def test_transformations(steps, says):
    changed = image()
    values = [{"type": kind, kind: [1] * count} for kind, count in steps]
    changed["datasets"][0]["coordinateTransformations"] = values
    assert says in said_of(changed)
    assert "multiscales[0].datasets[0].coordinateTransformations" in said_of(changed)


@pytest.mark.parametrize("kind", ["scale", "translation"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_numbers_without_a_size(kind, number):
    """Some writers put NaN in JSON; opening such an image fails, so validation names it."""
    changed = image()
    steps = changed["datasets"][0]["coordinateTransformations"]
    next(one for one in steps if one["type"] == kind)[kind] = [1, 1, number, 0.5, 0.5]
    assert f"a {kind} must be of finite numbers" in said_of(changed)


@pytest.mark.conformance("C145")
def test_levels_are_listed_from_the_finest():
    turned = image()
    turned["datasets"].reverse()
    assert "multiscales[0].datasets[1]" in said_of(turned)
    assert "highest resolution to the lowest" in said_of(turned)


def test_levels_are_arrays_of_their_own():
    twice = image()
    twice["datasets"][1]["path"] = twice["datasets"][0]["path"]
    attributes = {"ome": {"version": "0.5", "multiscales": [twice]}}
    found = validate_attributes(attributes, strict=True)
    places = [one.place for one in found if one.rule == "each level should be an array of its own"]
    assert places == ["multiscales[0].datasets[1].path"]


@pytest.mark.conformance("C141")
def test_metadata_of_0_5_lie_below_ome():
    attributes = {"version": "0.5", "multiscales": [image()]}
    found = validate_attributes(attributes, "0.5", "image")
    assert [(one.place, one.level) for one in found] == [("ome", "must")]
    found = validate_attributes({"ome": {"multiscales": [image()]}}, "0.5")
    assert [one.place for one in found] == ["ome.version"]


@pytest.mark.conformance("C151")
@pytest.mark.parametrize("value", ["3", 3.0, 2, True])
def test_the_layout_of_bioformats2raw(value):
    layout = {"ome": {"version": "0.5", "bioformats2raw.layout": value}}
    assert "must be the number 3" in str(validate_attributes(layout)[0])


def test_units_of_udunits_are_recommended():
    named = image()
    named["axes"][4]["unit"] = "micron"
    attributes = {"ome": {"version": "0.5", "multiscales": [named]}}
    assert validate_attributes(attributes) == []
    found = {one.place: one.level for one in validate_attributes(attributes, strict=True)}
    assert found["multiscales[0].axes[4].unit"] == "should"


def test_axes_of_stacked_planes_should_be_z_y_x():
    turned = image(axes=[{"name": n, "type": t} for n, t in zip("tcxyz", KINDS, strict=True)])
    attributes = {"ome": {"version": "0.5", "multiscales": [turned]}}
    assert validate_attributes(attributes) == []
    found = {one.place: one.level for one in validate_attributes(attributes, strict=True)}
    assert found["multiscales[0].axes"] == "should"


def test_names_that_are_one_file_on_some_systems():
    plate = {
        "rows": [{"name": "A"}, {"name": "a"}],
        "columns": [{"name": "1"}],
        "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}],
    }
    attributes = {"ome": {"version": "0.5", "plate": plate}}
    assert validate_attributes(attributes) == []
    found = [one.place for one in validate_attributes(attributes, strict=True)]
    assert "plate.rows[1].name" in found


def test_a_plate_whose_wells_do_not_match():
    plate = {
        "rows": [{"name": "A"}, {"name": "B"}],
        "columns": [{"name": "1"}],
        "wells": [
            {"path": "A/1", "rowIndex": 1, "columnIndex": 0},
            {"path": "B/1", "rowIndex": 2, "columnIndex": 0},
        ],
        "acquisitions": [{"id": 1}, {"id": 1}],
    }
    found = validate_attributes({"ome": {"version": "0.5", "plate": plate}})
    plate["acquisitions"] = [{"id": 1, "starttime": 9, "endtime": 3}]
    later = validate_attributes({"ome": {"version": "0.5", "plate": plate}}, strict=True)
    told = "plate.acquisitions[0].endtime: 3; endtime should not be below starttime, 9 (should)"
    assert told in map(str, later)
    assert [one.place for one in found] == [
        "plate.wells[0].path",
        "plate.wells[1].rowIndex",
        "plate.acquisitions[1].id",
    ]


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [[]], [{}], [None], {"x": [{}]}])
@pytest.mark.parametrize(
    "name", ["multiscales", "omero", "labels", "image-label", "plate", "well", "series"]
)
def test_no_json_breaks_the_validator(name, value):
    validate_attributes({"ome": {"version": "0.5", name: value}}, strict=True)
    for inner in ("axes", "datasets", "channels", "colors", "rows", "wells", "images", "name"):
        holder = {inner: value, "rows": [{"name": value}], "columns": [{"name": "A"}]}
        for members in (holder, [holder]):
            validate_attributes({"ome": {"version": "0.5", name: members}}, strict=True)


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.conformance("C159")
@pytest.mark.parametrize(
    ("attributes", "version"),
    [
        ({"ome": {"version": "0.7rc0", "multiscales": []}}, "0.7rc0"),
        ({"ome": {"version": None, "multiscales": []}}, "None"),
        ({"ome": {"multiscales": [{"coordinateSystems": []}]}}, "0.6 or newer"),
        ({"multiscales": [{"version": "0.1", "datasets": [{"path": "0"}]}]}, "0.1"),
        ({"multiscales": [{"datasets": [{"path": "0"}]}]}, "0.2 or older"),
        ({"multiscales": [{"axes": ["y", "x"], "datasets": [{"path": "0"}]}]}, "0.3"),
    ],
)
def test_other_versions_are_named(attributes, version):
    for read in (from_attributes, validate_attributes):
        with pytest.raises(OmeVersionError) as caught:
            read(attributes)
        assert caught.value.version == version
        assert "0.4 and 0.5" in str(caught.value)


@pytest.mark.conformance("C155")
def test_0_5_goes_before_0_4():
    old = {"version": "0.4", **image()}
    both = {"ome": {"version": "0.5", "multiscales": [image()]}, "multiscales": [old]}
    found = from_attributes(both)
    assert found.version == "0.5"
    assert found.to_attributes() == both


def test_what_lies_below_ome_without_a_version_is_of_0_5():
    assert from_attributes({"ome": {"labels": ["cells"]}}).version == "0.5"
    (broken,) = validate_attributes({"ome": {"labels": ["cells"]}})
    assert (broken.place, broken.rule) == ("ome.version", "must be '0.5'")


def test_a_version_that_is_a_number():
    with pytest.raises(MetadataError, match=r"ome\.version: got 0\.5, expected '0\.5', a string"):
        from_attributes({"ome": {"version": 0.5, "labels": []}})


def test_a_version_that_is_not_the_one_asked_for():
    with pytest.raises(OmeVersionError, match=r"of version 0\.6rc0.* is 0\.5\."):
        from_attributes({"ome": {"version": "0.6rc0", "labels": []}}, "0.5")


def test_a_collection_with_an_image_that_cannot_be_read():
    store = stored()
    holder = {"ome": {"version": "0.5", "bioformats2raw.layout": 3}}
    collection = {"zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"}).encode()}
    collection |= {f"0/{key}": value for key, value in store.items()}
    zd.open_group(collection, mode="r+").update_attributes(holder)
    assert zd.ome.validate(collection) == []
    collection["1/zarr.json"] = b"{}"
    assert zd.ome.validate(collection) == []  # what no metadata name is no image


def test_what_is_no_ome_zarr():
    with pytest.raises(MetadataError, match="OME-Zarr metadata of a group"):
        from_attributes({"title": "run 7"})


def test_what_cannot_be_opened_is_told():
    broken = deepcopy(image())
    del broken["datasets"][1]["path"]
    with pytest.raises(MetadataError) as caught:
        from_attributes({"ome": {"version": "0.5", "multiscales": [broken]}})
    assert [one.field for one in caught.value.problems] == ["multiscales[0].datasets[1].path"]


def test_members_of_the_wrong_kind_are_kept():
    odd = image(name=7, mine={"a": [1, None]}, type=None)
    attributes = {"ome": {"version": "0.5", "multiscales": [odd], "omero": [], "x": 1}, "y": [2]}
    found = from_attributes(attributes)
    assert (found.omero, found.multiscales[0].name) == (None, None)
    assert found.to_attributes() == attributes


# --- hierarchies ----------------------------------------------------------------------------------


def stored(version: str = "0.5", labels_dtype: str = "u2", **changes) -> dict:
    """An image of two levels with one label image, as a mapping of keys to bytes."""
    zarr_format = {"0.4": "v2", "0.5": "v3"}[version]
    store: dict = {}
    names = changes.get("names", ("y", "x"))
    axes = [{"name": n, "type": "space", "unit": "micrometer"} for n in "yx"]
    datasets = [
        {"path": str(i), "coordinateTransformations": [{"type": "scale", "scale": [2**i, 2**i]}]}
        for i in range(2)
    ]

    def put(path, members, dtype=None, count=2):
        wrapped = {"ome": {"version": version, **members}} if version == "0.5" else members
        zd.create_group(store, path, attributes=wrapped, format=zarr_format)
        for i in range(count if dtype else 0):
            named = {"dimension_names": names} if version == "0.5" else {}
            zd.create_array(
                store,
                f"{path}/{i}".lstrip("/"),
                shape=(8 >> i, 6 >> i),
                dtype=dtype,
                chunks=4,
                format=zarr_format,
                **named,
            )

    def pyramid(count=2):
        one = {"axes": axes, "datasets": datasets[:count]}
        return [one | ({"version": version} if version == "0.4" else {})]

    put("", {"multiscales": pyramid()}, "f4")
    put("labels", {"labels": ["cells"]})
    count = changes.get("label_levels", 2)
    label = {"multiscales": pyramid(count), "image-label": {"colors": [{"label-value": 1}]}}
    put("labels/cells", label, labels_dtype, count)
    return store


@pytest.mark.conformance("C154")
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_hierarchy_that_follows_all_rules(version):
    assert [str(one) for one in zd.ome.validate(stored(version))] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"names": ("x", "y")},
            "0: dimension_names: ('x', 'y'); dimension_names must be those of the axes",
            marks=pytest.mark.conformance("C143"),
        ),
        pytest.param(
            {"labels_dtype": "f4"},
            "labels/cells/0: data type: 'float32'; the values of a label image must be integers",
            marks=pytest.mark.conformance("C147"),
        ),
        pytest.param(
            {"label_levels": 1},
            "a label image must have as many levels as its image, 2",
            marks=pytest.mark.conformance("C147"),
        ),
    ],
)
def test_what_is_wrong_between_nodes(changes, says):
    assert says in "\n".join(map(str, zd.ome.validate(stored(**changes))))


@pytest.mark.conformance("C142")
def test_versions_that_differ_within_a_hierarchy():
    store = stored()
    group = zd.open_group(store, "labels", mode="r+")
    group.update_attributes({"ome": {"version": "0.4", "labels": ["cells"]}})
    assert [str(one) for one in zd.ome.validate(store)] == [
        "labels: version: '0.4'; all metadata of a hierarchy must be of one version, "
        "here 0.5 (must)"
    ]


def test_arrays_of_the_other_zarr_format():
    store = stored()
    zd.delete(store, "1")
    with pytest.warns(MixedFormatsWarning):
        zd.create_array(store, "1", shape=(4, 3), dtype="f4", format="v2")
    assert [one.place for one in zd.ome.validate(store)] == ["1"]  # the group does not hold it


def test_label_images_that_are_not_listed():
    store = stored()
    zd.open_group(store, "labels", mode="r+").update_attributes(
        {"ome": {"version": "0.5", "labels": []}}
    )
    assert zd.ome.validate(store) == []
    found = [one for one in zd.ome.validate(store, strict=True) if one.place == "labels: labels"]
    assert [(one.found, one.level) for one in found] == [("cells", "should")]


def test_groups_between_labels_have_no_metadata():
    store = stored()
    names = {"ome": {"version": "0.5", "labels": ["old/cells"]}}
    zd.open_group(store, "labels", mode="r+").rename("cells", "old/cells")
    zd.open_group(store, "labels", mode="r+").update_attributes(names)
    assert zd.ome.validate(store) == []
    zd.open_group(store, "labels/old", mode="r+").update_attributes(names)
    (found,) = zd.ome.validate(store)
    assert (found.place, found.level) == ("labels/old", "must")
    assert "must have no metadata" in found.rule


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_wells_and_images_that_nobody_lists(tmp_path, version):
    put_plate(tmp_path, version, {"A/1": pixels(8, 8), "A/2": pixels(8, 8)}, fields=("0", "1"))
    assert not listed_problems(tmp_path)
    plate = zd.open(tmp_path, mode="r+")
    told = plate.attrs if version == "0.4" else plate.attrs["ome"]
    changed = {**told["plate"], "wells": told["plate"]["wells"][:1]}
    plate.attrs.update(
        {"plate": changed} if version == "0.4" else {"ome": {**told, "plate": changed}}
    )
    well = plate["A/1"]
    told = well.attrs if version == "0.4" else well.attrs["ome"]
    changed = {**told["well"], "images": told["well"]["images"][1:]}
    well.attrs.update({"well": changed} if version == "0.4" else {"ome": {**told, "well": changed}})
    assert listed_problems(tmp_path) == [
        ("A: plate.wells", "2", "should"),
        ("A/1: well.images", "0", "should"),
    ]


def listed_problems(path) -> list[tuple[str, object, str]]:
    found = zd.ome.validate(path, strict=True)
    return [(one.place, one.found, one.level) for one in found if "be listed" in one.rule]


def test_wells_with_more_images_than_their_plate_tells(tmp_path):
    put_plate(tmp_path, "0.5", {"A/1": pixels(8, 8)}, fields=("0", "1"))
    group = zarr.open_group(tmp_path, mode="a")
    ome = group.attrs["ome"]
    ome["plate"] |= {"field_count": 1, "acquisitions": [{"id": 1, "maximumfieldcount": 1}]}
    group.attrs["ome"] = ome
    images = [{"path": "0", "acquisition": 1}, {"path": "1", "acquisition": 1}]
    well = zarr.open_group(tmp_path, path="A/1", mode="a")
    well.attrs["ome"] = {"version": "0.5", "well": {"images": images}}
    assert [(one.place, one.found) for one in zd.ome.validate(tmp_path)] == [
        ("A/1: well.images", 2),
        ("A/1: well.images of acquisition 1", 2),
    ]


@pytest.mark.parametrize("path", ["", ".", "../cells", "a/" * 1000, "nothing", "/", "cells/.."])
def test_paths_that_lead_elsewhere_or_in_circles(path):
    store = stored()
    group = zd.open_group(store, "labels", mode="r+")
    group.update_attributes({"ome": {"version": "0.5", "labels": [path]}})
    zd.ome.validate(store, strict=True)
    zd.ome.validate(store, "labels", strict=True)


def test_an_array_that_is_missing():
    store = stored()
    zd.delete(store, "1")
    assert "datasets[1].path must be that of an array" in str(zd.ome.validate(store)[0])


def changed(store, path="", version="0.5", **members):
    """Replace members of the metadata of a group; a function gets the present value."""
    group = zd.open_group(store, path, mode="r+")
    ome = json.loads(json.dumps(group.attributes["ome"]))
    for name, value in members.items():
        key = name.replace("_", "-")
        ome[key] = value(ome[key]) if callable(value) else value
    group.update_attributes({"ome": ome})
    return store


def with_scale(*scales):
    def change(multiscales):
        for dataset, scale in zip(multiscales[0]["datasets"], scales, strict=True):
            dataset["coordinateTransformations"][0]["scale"] = scale
        return multiscales

    return change


def with_path(path):
    def change(multiscales):
        multiscales[0]["datasets"][0]["path"] = path
        return multiscales

    return change


def with_axes(*axes, **more):
    def change(multiscales):
        return [multiscales[0] | {"axes": list(axes)} | more]

    return change


def without_axes(multiscales):
    return [{"datasets": multiscales[0]["datasets"], "coordinateSystems": [{"name": "a"}]}]


def rotated(multiscales):
    multiscales[0]["datasets"][0]["coordinateTransformations"].append({"type": "rotation"})
    return multiscales


def float_level(store):
    zd.create_array(
        store, "1", shape=(4, 3), dtype="f8", dimension_names=("y", "x"), overwrite=True
    )
    return store


def longer_level(store):
    zd.open_array(store, "0", mode="r+").resize((10, 6))
    return store


def with_window(**limits):
    return {"color": "FF0000", "window": {"min": 0, "max": 9, **limits}}


X = {"name": "x", "type": "space"}


@pytest.mark.parametrize(
    ("make", "says", "level"),
    [
        (
            lambda store: changed(store, multiscales=with_scale([0, 1], [2, 2])),
            "must not be 0",
            "must",
        ),
        (
            lambda store: changed(store, multiscales=with_scale([1, 1], [1, 1])),
            "same extent as the one before",
            "must",
        ),
        (
            lambda store: changed(store, multiscales=with_path("/0")),
            "datasets[0].path: '/0'; the path of an array must be relative to its group",
            "must",
        ),
        (
            lambda store: changed(store, multiscales=with_scale([1, -1], [2, -2])),
            "datasets[0].coordinateTransformations[0].scale: [1, -1]; the size of a pixel should",
            "should",
        ),
        (
            lambda store: changed(store, omero={"channels": [with_window(start=9, end=3)]}),
            "window.end: 3; end should not be below start, 9",
            "should",
        ),
        (longer_level, "same extent as the one before", "must"),
        (float_level, "'float64'; all levels should have one data type, here float32", "should"),
        (
            lambda store: changed(
                store,
                multiscales=with_axes({"name": "y", "type": "channel"}, X),
                omero={"channels": []},
            ),
            "settings of each of the 8 channels",
            "should",
        ),
        (
            lambda store: changed(
                store, "labels/cells", image_label={"source": {"image": "../../other"}}
            ),
            "source.image: '../../other'; must be the relative path",
            "must",
        ),
        (
            lambda store: changed(
                store, "labels/cells", image_label={"source": {"image": "/image.zarr"}}
            ),
            "source.image: '/image.zarr'; must be the relative path",
            "must",
        ),
        (
            lambda store: changed(store, multiscales=with_axes({"name": "y", "type": "spce"}, X)),
            "'spce' may be meant as 'space'",
            "must",
        ),
        (
            lambda store: changed(
                store, multiscales=with_axes({"name": "c", "type": "channel"}, X | {"type": "spce"})
            ),
            "none; 'spce' may be meant as 'space'",
            "must",
        ),
        (lambda store: changed(store, multiscales=without_axes), "OME-Zarr 0.6 (RFC-5)", "must"),
        (
            lambda store: changed(
                store, multiscales=with_axes(X | {"name": "y"}, X, coordinateSystems=[])
            ),
            "OME-Zarr 0.6 (RFC-5)",
            "should",
        ),
        (lambda store: changed(store, multiscales=rotated), "'rotation' belongs to", "must"),
    ],
)
def test_values_that_cannot_be_right(make, says, level):
    store = make(stored())
    found = zd.ome.validate(store, strict=True)
    assert [one.level for one in found if says in str(one)] == [level], "\n".join(map(str, found))


def test_a_label_image_of_an_image_further_up():
    """Validated alone, it names an image that is not below what is validated."""
    assert zd.ome.validate(stored(), "labels/cells") == []


def test_an_acquisition_that_the_plate_does_not_list(tmp_path):
    put_plate(tmp_path, "0.5", {"A/1": pixels(8, 8)})
    group = zd.open_group(tmp_path, "A/1", mode="r+")
    images = [{"path": "0", "acquisition": 3}]
    group.update_attributes({"ome": {"version": "0.5", "well": {"images": images}}})
    assert "acquisition: 3; must be the id" in "\n".join(map(str, zd.ome.validate(tmp_path)))


def test_a_plate_that_lists_many_wells_that_are_not_there_is_read_once():
    """Its metadata may be large: to read them once more for each well takes minutes."""
    values = {}
    paths = [*(f"R{n}/{n}" for n in range(30)), *["A/1"] * 30]
    wells = [{"path": path, "rowIndex": 0, "columnIndex": 0} for path in paths]
    plate = {"rows": [{"name": "A"}], "columns": [{"name": "1"}], "wells": wells}
    zd.create_group(values, attributes={"ome": {"version": "0.5", "plate": plate}})
    log = Recording(MemoryStore(values))
    found = zd.ome.validate(log)
    missing = [one.place for one in found if "must list the paths of groups" in one.rule]
    assert missing == [*(f"R{n}/{n}" for n in range(30)), "A/1"]
    assert log.per_key("get")["zarr.json"] <= 2
