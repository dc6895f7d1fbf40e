"""Labels and levels that are added to images of OME-Zarr, and plates."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.kill_roles import PATIENCE, start
from tests.support.ome_images import put_image
from tests.support.ome_levels import ORACLES, check_levels, pixels
from tests.support.ome_roles import write_labels
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MetadataChangedError,
    MetadataError,
    NodeExistsError,
    OmeVersionError,
    ReadOnlyError,
)
from zarr_dask.ome.model import Acquisition
from zarr_dask.stores import LocalStore, MemoryStore, ReadOnly
from zarr_dask.stores.wrappers.base import HookStore


@pytest.fixture(params=["0.4", "0.5"])
def version(request):
    return request.param


@pytest.fixture
def image(tmp_path, version):
    url = tmp_path / "image.zarr"
    zd.ome.write(
        pixels(2, 5, 50, 67),
        url,
        axes="czyx",
        chunks=(1, 3, 32, 32),
        levels=3,
        scale=(1, 2, 0.5, 0.5),
        version=version,
    )
    return url


def files(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["nearest", "mode", "max"])
def test_labels_of_an_image(image, method):
    labels = pixels(5, 50, 67, dtype="u4") % 9
    plan = zd.ome.plan_write_labels(image, labels, "cells", colors={1: "#123456"}, method=method)
    plan.run()
    check_levels(image, plan, labels, method, "labels/cells")
    found = zd.ome.open(image).labels["cells"]
    assert found.axes == ("z", "y", "x")
    assert found.levels[2].scale == (2, 2, 2)
    assert zd.ome.validate(image) == []
    zd.ome.write_labels(image, da.from_array(labels, chunks=20), "more")
    assert list(zd.ome.open(image).labels) == ["cells", "more"]
    with pytest.raises(NodeExistsError):
        zd.ome.write_labels(image, labels, "more")
    zd.ome.write_labels(image, labels + 1, "more", overwrite=True)
    assert list(zd.ome.open(image).labels) == ["cells", "more"]
    assert zd.open_array(image, "labels/more/0")[0, 0, 0] == labels[0, 0, 0] + 1
    assert zd.ome.validate(image) == []


def test_labels_of_an_image_of_another_writer(tmp_path, version):
    """Its levels leave out the last pixels of odd sizes."""
    url = tmp_path / "image.zarr"
    put_image(url, "", version, pixels(9, 21, 18))
    group = zarr.open_group(url, mode="r+")
    for i, shape in enumerate([(9, 21, 18), (4, 10, 9), (2, 5, 4)]):
        named = {"dimension_names": list("zyx")} if version == "0.5" else {}
        group.create_array(
            f"s{i}", shape=shape, dtype="u2", chunks=(2, 8, 8), overwrite=True, **named
        )
    labels = pixels(9, 21, 18, dtype="i8")
    zd.ome.write_labels(url, labels, "cells")
    found = [zarr.open_array(url, path=f"labels/cells/{i}")[...] for i in range(3)]
    np.testing.assert_array_equal(found[1], labels[:8:2, :20:2, ::2])
    np.testing.assert_array_equal(found[2], found[1][::2, ::2, :8:2])


def test_consolidated_metadata_follow(image):
    """As those that ngff-zarr writes: who reads them sees what was added."""
    zd.consolidate(image)
    labels = pixels(5, 50, 67, dtype="u1")
    zd.ome.write_labels(image, labels, "a")
    zd.ome.write_labels(image, labels, "b")
    zd.ome.add_level(image)
    assert zd.open_group(image).stale() == []
    opened = zd.ome.open(image)
    assert list(opened.labels) == ["a", "b"]
    assert len(opened.levels) == len(opened.labels["b"].levels) == 4
    assert zd.ome.validate(image) == []
    consolidated = zarr.open_consolidated(image)
    assert consolidated["labels/b/3"].shape == opened.labels["b"].levels[3].shape


def test_labels_that_are_added_at_the_same_time(image):
    """Somebody else lists a label image between our look at the list and our change of it."""
    flat = image.with_name("flat")
    zd.ome.write(pixels(8, 8), flat, axes="yx", version=zd.ome.open(image).metadata.version)
    zd.ome.write_labels(flat, pixels(8, 8), "first")
    others = iter(["second", "third"])

    def meanwhile(verb, key):
        name = next(others, None) if verb == "set_if" else None
        if name is not None:
            zd.ome.write_labels(flat, pixels(8, 8), name)

    zd.ome.write_labels(HookStore(LocalStore(str(flat)), meanwhile), pixels(8, 8), "last")
    assert list(zd.ome.open(flat).labels) == ["first", "second", "third", "last"]
    assert zd.ome.validate(flat) == []


@pytest.mark.parametrize("version", [pytest.param("0.4", marks=pytest.mark.slow), "0.5"])
def test_labels_of_several_processes(tmp_path, version):
    zd.ome.write(pixels(8, 8), tmp_path / "i", axes="yx", version=version)
    zd.consolidate(tmp_path / "i")
    processes = [start(write_labels, str(tmp_path / "i"), first, 3) for first in (0, 100, 200)]
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    names = {f"cells-{first + i}" for first in (0, 100, 200) for i in range(3)}
    assert set(zd.ome.open(tmp_path / "i").labels) == names
    assert zd.open_group(tmp_path / "i").stale() == []
    assert zd.ome.validate(tmp_path / "i") == []


def test_labels_and_a_level_at_the_same_time(tmp_path):
    """Nothing is listed that would not fit the rest."""
    cells = pixels(8, 8, dtype="u1")

    def meanwhile(act):
        """A store where something else is added before the first document of this job."""
        once = iter([act])

        def fault(verb, key):
            if verb == "set" and key.endswith("zarr.json"):
                for other in once:
                    other()

        return HookStore(LocalStore(str(tmp_path / "i")), fault)

    zd.ome.write(pixels(8, 8), tmp_path / "i", axes="yx", levels=1)
    zd.ome.write_labels(tmp_path / "i", cells, "first")
    with pytest.raises(MetadataChangedError, match="2 levels"):
        zd.ome.write_labels(meanwhile(lambda: zd.ome.add_level(tmp_path / "i")), cells, "second")
    assert zd.ome.validate(tmp_path / "i") == []
    zd.ome.write_labels(tmp_path / "i", cells, "second", overwrite=True)
    assert len(zd.ome.open(tmp_path / "i").labels["second"].levels) == 2
    with pytest.raises(MetadataChangedError, match="label images third"):
        zd.ome.add_level(meanwhile(lambda: zd.ome.write_labels(tmp_path / "i", cells, "third")))
    assert zd.ome.validate(tmp_path / "i") == []
    zd.ome.add_level(tmp_path / "i", overwrite=True)
    assert [len(one.levels) for one in zd.ome.open(tmp_path / "i").labels.values()] == [3] * 3
    assert zd.ome.validate(tmp_path / "i") == []


LABELS = {
    "floats": (lambda: np.zeros((5, 50, 67)), {}, DataTypeError, "integers"),
    "flags": (lambda: np.zeros((5, 50, 67), bool), {}, DataTypeError, "integers"),
    "shape": (lambda: pixels(5, 50, 66), {}, GridError, "shape"),
    "axes": (lambda: pixels(5, 50, 67), {"axes": "yxz"}, MetadataError, "order"),
    "no such axis": (
        lambda: pixels(5, 50, 67),
        {"axes": "tyx"},
        MetadataError,
        "axes of the image",
    ),
    "dimensions": (lambda: pixels(50, 67), {}, MetadataError, "2 axes"),
    "mean": (lambda: pixels(5, 50, 67), {"method": "mean"}, ValueError, "another label"),
    "twice": (
        lambda: pixels(5, 50, 67),
        {"properties": [(1, {"a": 1}), (1, {"a": 2})]},
        MetadataError,
        "two objects",
    ),
    "name": (lambda: pixels(5, 50, 67), {"name": "a/b"}, MetadataError, "without '/'"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_refused(image, case):
    values, options, error, words = LABELS[case]
    before = files(image)
    with pytest.raises(error, match=words):
        zd.ome.write_labels(image, values(), **{"name": "cells", **options})
    assert files(image) == before


# --- levels ---------------------------------------------------------------------------------------


def test_one_more_level(image):
    labels = pixels(5, 50, 67, dtype="u1") % 3
    zd.ome.write_labels(image, labels, "cells", method="mode")
    plan = zd.ome.plan_add_level(image, factors={"y": 2, "x": 3})
    before = [zd.open_array(image, path)[...] for path in ("2", "labels/cells/2")]
    plan.run()
    for i, method in enumerate(("mean", "mode")):
        path = ("3", "labels/cells/3")[i]
        factors = (1, 1, 2, 3)[i:]
        expected = ORACLES[method](before[i], factors)
        np.testing.assert_array_equal(zarr.open_array(image, path=path)[...], expected)
    found = zd.ome.open(image)
    assert len(found.levels) == len(found.labels["cells"].levels) == 4
    third, fourth = found.levels[2:]
    assert fourth.scale == (1, third.scale[1], third.scale[2] * 2, third.scale[3] * 3)
    assert fourth.translation[3] == third.translation[3] + third.scale[3]
    assert zd.ome.validate(image) == []


def test_levels_one_by_one_are_those_of_one_pass(tmp_path, version):
    values = pixels(60, 90, dtype="f4")
    options = {"axes": "yx", "chunks": 16, "shards": None, "version": version}
    zd.ome.write(values, tmp_path / "one", levels=4, **options)
    zd.ome.write(values, tmp_path / "more", levels=1, **options)
    for _ in range(3):
        zd.ome.add_level(tmp_path / "more")
    one, more = (zd.ome.open(tmp_path / name) for name in ("one", "more"))
    for a, b in zip(one.levels, more.levels, strict=True):
        np.testing.assert_array_equal(a.array[...], b.array[...])
        assert (a.scale, a.translation, a.array.chunks) == (b.scale, b.translation, b.array.chunks)
    assert zd.ome.validate(tmp_path / "more") == []


def test_a_level_of_an_image_of_another_writer(tmp_path, version):
    levels = put_image(tmp_path, "", version, pixels(16, 32, 32))
    zd.ome.add_level(tmp_path, factors=2)
    np.testing.assert_array_equal(
        zarr.open_array(tmp_path, path="s3")[...], ORACLES["mean"](levels[-1], (2, 2, 2))
    )
    assert zd.ome.open(tmp_path).levels[3].array.attributes == zd.open(tmp_path, "s2").attributes


def test_shards_of_a_new_level(tmp_path):
    url = tmp_path / "image"
    zd.ome.write(pixels(70, 90), url, axes="yx", chunks=8, shards=32, levels=1)
    zd.ome.add_level(url)
    assert zd.open_array(url, "1").shards == (32, 32)
    for _ in range(2):
        zd.ome.add_level(url)
    assert zd.open_array(url, "3").shards == (16, 16)
    assert zd.ome.validate(url) == []


def test_levels_refused(tmp_path):
    url = tmp_path / "image"
    zd.ome.write(pixels(4, 4), url, axes="yx", levels=3)
    before = files(url)
    with pytest.raises(GridError, match="coarser"):
        zd.ome.add_level(url)
    zd.create_array(url, "3", shape=(2,), dtype="u1")
    with pytest.raises(GridError):
        zd.ome.add_level(url, factors=(1, 1))
    assert {path: files(url)[path] for path in before} == before
    with pytest.raises(ReadOnlyError):
        zd.ome.add_level(ReadOnly(LocalStore(str(url))))


def test_a_level_of_another_pyramid_is_never_replaced(tmp_path):
    url = tmp_path / "image"
    zd.ome.write(pixels(40, 40), url, axes="yx", levels=2)
    group = zd.open_group(url, mode="r+")
    ome = group.attributes["ome"].copy()
    (both,) = ome["multiscales"]
    first, second = both["datasets"]
    first["path"] = "//0/"  # slashes that nobody needs
    ome["multiscales"] = [
        both | {"datasets": [one], "name": one["path"]} for one in (first, second)
    ]
    group.update_attributes({"ome": ome})
    before = files(url)
    with pytest.raises(NodeExistsError, match="'1' is listed already"):
        zd.ome.add_level(url, overwrite=True)
    assert files(url) == before


def test_a_level_whose_place_is_taken(tmp_path):
    url = tmp_path / "image"
    zd.ome.write(pixels(40, 40), url, axes="yx", levels=2)
    zd.create_array(url, "2", shape=(2,), dtype="u1")
    before = files(url)
    with pytest.raises(NodeExistsError):
        zd.ome.add_level(url)
    assert files(url) == before


# --- plates ---------------------------------------------------------------------------------------


def test_plate(tmp_path, version):
    wells = {
        "B/10": pixels(2, 40, 50),
        "A/2": [da.from_array(pixels(2, 40, 50) + i, chunks=20) for i in range(2)],
        "AA/1": pixels(2, 30, 50),
    }
    plan = zd.ome.plan_write_plate(
        wells, tmp_path / "plate", axes="cyx", levels=2, chunks=(1, 16, 16), version=version,
        columns=["1", "2", "10", "11"], name="screen",
    )  # fmt: skip
    plan.run()
    plate = zd.ome.open_plate(tmp_path / "plate")
    assert plate.rows == ("A", "B", "AA")
    assert plate.columns == ("1", "2", "10", "11")
    assert plate.places == {"B/10": (1, 2), "A/2": (0, 1), "AA/1": (2, 0)}
    for well, given in wells.items():
        for number, values in enumerate(given if isinstance(given, list) else [given]):
            found = plate[well].field(number)
            np.testing.assert_array_equal(found.levels[0].array[...], np.asarray(values))
            expected = ORACLES["mean"](np.asarray(values), (1, 2, 2))
            np.testing.assert_array_equal(found.levels[1].array[...], expected)
    assert plate.mosaic(level=1).shape == (2, 3 * 20, 4 * 25)
    assert zd.ome.validate(tmp_path / "plate", strict=True) == []


def test_acquisitions(version):
    store = MemoryStore({})
    wells = {"A/1": {1: pixels(8, 8), 2: [pixels(8, 8)] * 2}}
    zd.ome.write_plate(wells, store, axes="yx", acquisitions=[1, Acquisition(2, "late")])
    plate = zd.ome.open_plate(store)
    assert [image.acquisition for image in plate["A/1"].fields.images] == [1, 2, 2]
    assert plate.layout.acquisitions[1].name == "late"
    assert plate.layout.field_count == 3
    assert zd.ome.validate(store) == []


PLATES = {
    "names": ({"A1": pixels(4, 4)}, {}, MetadataError, "row/column"),
    "signs": ({"A/#1": pixels(4, 4)}, {}, MetadataError, "digits"),
    "nothing": ({}, {}, MetadataError, "at least one well"),
    "no image": ({"A/1": []}, {}, MetadataError, "at least one image"),
    "data type": ({"A/1": pixels(4, 4), "A/2": pixels(4, 4, dtype="u1")}, {}, DataTypeError, "A/2"),
    "shape": ({"A/1": pixels(2, 4, 4), "A/2": pixels(3, 4, 4)}, {}, GridError, "A/2"),
    "dimensions": ({"A/1": pixels(4, 4), "A/2": pixels(3, 4, 4)}, {}, GridError, "A/2"),
    "row": ({"C/1": pixels(4, 4)}, {"rows": ["A", "B"]}, MetadataError, "C of wells"),
    "row twice": ({"A/1": pixels(4, 4)}, {"rows": ["A", "A"]}, MetadataError, "unique"),
    "acquisition": (
        {"A/1": {3: pixels(4, 4)}},
        {"acquisitions": [1, 2]},
        MetadataError,
        "3",
    ),
    "untold acquisition": (
        {"A/1": pixels(4, 4)},
        {"acquisitions": [1, 2]},
        MetadataError,
        "several acquisitions",
    ),
    "untold among several": (
        {"A/1": pixels(4, 4), "B/1": {1: pixels(4, 4), 2: pixels(4, 4)}},
        {},
        MetadataError,
        r"wells\.A/1/0.*several acquisitions",
    ),
    "acquisition twice": (
        {"A/1": {1: pixels(4, 4)}},
        {"acquisitions": [1, 1]},
        MetadataError,
        "unique",
    ),
    "version": ({"A/1": pixels(4, 4)}, {"version": "0.1"}, OmeVersionError, "0.1"),
}


@pytest.mark.parametrize("case", PLATES)
def test_plates_refused(tmp_path, case):
    wells, options, error, words = PLATES[case]
    with pytest.raises(error, match=words):
        zd.ome.write_plate(wells, tmp_path / "plate", **{"axes": "zyx"[-2:], **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [
        ("image", "cells", np.ones((4, 4), "u1")),
        (np.ones((4, 4), "u1"), "image", "cells"),
        ("image", "labels", "cells"),
    ],
    ids=["name before labels", "labels before image", "path for labels"],
)
@pytest.mark.parametrize("add", [zd.ome.write_labels, zd.ome.plan_write_labels])
def test_arguments_that_have_changed_places_are_named(add, given):
    """As a user of `write`, which takes the pixels first, may give them."""
    with pytest.raises(TypeError, match="The order is: where the image is, the labels, their name"):
        add(*given)


def test_labels_with_one_channel_for_all(image, version):
    """As ome-zarr-py writes them, with all axes of the image."""
    labels = pixels(1, 5, 50, 67, dtype="u4") % 9
    plan = zd.ome.plan_write_labels(image, labels, "cells", method="mode")
    plan.run()
    check_levels(image, plan, labels, "mode", "labels/cells")
    label = zd.ome.open(image).labels["cells"]
    assert label.axes == ("c", "z", "y", "x")
    assert zd.ome.validate(image) == []
    copied = {"cells": zd.ome.LabelImage(label.levels[0].array, label.axes)}
    store = {}
    pixels_of_image = zd.open_array(image, "0")
    zd.ome.write(pixels_of_image, store, axes="czyx", levels=2, labels=copied, version=version)
    assert zd.ome.open(store).labels["cells"].levels[1].shape[0] == 1
    with pytest.raises(GridError):
        zd.ome.write_labels(image, labels.repeat(3, 0), "more")
    with pytest.raises(GridError):
        zd.ome.write_labels(image, labels[:, :1], "more")


def test_fields_of_a_plate_have_positions_and_what_images_bring(tmp_path):
    zd.ome.write(
        pixels(40, 50), tmp_path / "i", axes="yx", scale=(2, 2), channels=["DAPI"], units="meter"
    )
    part = zd.ome.open(tmp_path / "i").crop(y=slice(10, 30))
    wells = {"A/1": [part, pixels(20, 50)]}
    zd.ome.write_plate(wells, tmp_path / "p", positions={"A/1/1": {"x": 7}})
    fields = zd.ome.open_plate(tmp_path / "p")["A/1"]
    first, second = fields.field(0), fields.field(1)
    assert (first.level(0).scale, first.level(0).translation) == ((2, 2), (20, 0))
    assert (second.level(0).scale, second.level(0).translation) == ((1, 1), (0, 7))
    assert first.metadata.omero.channels[0].label == "DAPI"
    assert (first.level(0).units, second.metadata.omero) == (("meter", "meter"), None)
    np.testing.assert_array_equal(first.level(0)[...], pixels(40, 50)[10:30])
    with pytest.raises(MetadataError, match="such as 'A/1/0'"):
        zd.ome.write_plate(wells, tmp_path / "q", positions={"A/1/2": {"x": 7}})
