"""Parts, projections and levels of images keep their place, channels and label images."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.ome_levels import pixels
from zarr_dask.errors import GridError, MetadataError, SelectionError, ZarrDaskWarning

VALUES = pixels(3, 2, 9, 40, 50)
CELLS = pixels(3, 9, 40, 50)
ONE_CHANNEL = pixels(3, 1, 9, 40, 50)
OPTIONS = {
    "axes": "tczyx",
    "scale": (1, 1, 2.0, 0.5, 0.25),
    "translation": (0, 0, 10.0, 3.0, 0),
    "units": {"z": "micrometer", "y": "micrometer", "x": "micrometer", "t": "second"},
    "channels": [{"label": "a", "color": "FF0000"}, {"label": "b", "color": "00FF00"}],
    "chunks": (1, 1, 4, 16, 16),
    "levels": 2,
}


@pytest.fixture
def image():
    """An image with two label images, one of them with a channel axis."""
    cells = zd.ome.LabelImage(CELLS, colors={7: (1, 2, 3, 4)}, properties={7: {"kind": "x"}})
    labels = {"cells": cells, "one": zd.ome.LabelImage(ONE_CHANNEL)}
    store = {}
    with dask.config.set(scheduler="sync"):
        zd.ome.write(VALUES, store, labels=labels, **OPTIONS)
        yield zd.ome.open(store)


def written(given):
    store = {}
    zd.ome.write(given, store, levels=1)
    assert zd.ome.validate(store) == []
    return zd.ome.open(store)


def names(image):
    return [(one.label, one.color) for one in image.metadata.omero.channels]


def check_cells(image, expected):
    cells = image.labels["cells"]
    np.testing.assert_array_equal(cells.level(0)[...], expected)
    meaning = cells.metadata.image_label
    assert [(one.value, one.rgba) for one in meaning.colors] == [(7, (1, 2, 3, 4))]
    assert [dict(one.extra) for one in meaning.properties] == [{"kind": "x"}]
    assert cells.level(0).scale == tuple(
        size for size, axis in zip(image.level(0).scale, image.axes, strict=True) if axis != "c"
    )


def test_a_part(image):
    made = written(image.crop(t=1, z=slice(2, 7), y=slice(-30, None), c=slice(1, 2)))
    level = made.level(0)
    np.testing.assert_array_equal(level[...], VALUES[1, 1:2, 2:7, -30:])
    assert made.axes == ("c", "z", "y", "x")
    assert (level.scale, level.translation) == ((1, 2, 0.5, 0.25), (1, 14, 8, 0))
    assert level.units == (None, "micrometer", "micrometer", "micrometer")
    assert names(made) == [("b", "00FF00")]
    check_cells(made, CELLS[1, 2:7, -30:])
    np.testing.assert_array_equal(made.labels["one"].level(0)[...], ONE_CHANNEL[1, :, 2:7, -30:])


def test_one_channel(image):
    made = written(image.crop(c="b"))
    np.testing.assert_array_equal(made.level(0)[...], VALUES[:, 1])
    made = written(image.crop(c=1))
    assert (made.axes, names(made)) == (("t", "z", "y", "x"), [("b", "00FF00")])
    np.testing.assert_array_equal(made.labels["one"].level(0)[...], ONE_CHANNEL[:, 0])


def test_a_projection(image):
    made = written(image.crop(t=slice(0, 1)).max("z"))
    np.testing.assert_array_equal(made.level(0)[...], VALUES[:1].max(2))
    assert made.level(0).scale == (1, 1, 0.5, 0.25)
    assert names(made) == [("a", "FF0000"), ("b", "00FF00")]
    check_cells(made, CELLS[:1].max(1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_level(image, number):
    given = [image.level(number), image.pixels(number), *([image] if number == 0 else [])]
    for made in map(written, given):
        level = made.level(0)
        np.testing.assert_array_equal(level[...], image.level(number)[...])
        assert (level.scale, level.units) == (image.level(number).scale, image.level(0).units)
        assert level.translation == image.level(number).translation
        check_cells(made, image.labels["cells"].level(number)[...])


def test_what_is_given_takes_precedence(image):
    store = {}
    zd.ome.write(image, store, labels={}, scale=(1, 1, 3, 1, 1), channels=["x", "y"])
    made = zd.ome.open(store)
    assert (made.level(0).scale[2], list(made.labels)) == (3, [])
    assert [one.label for one in made.metadata.omero.channels] == ["x", "y"]


def test_refused(image):
    with pytest.raises(MetadataError, match="one of the axes"):
        image.crop(q=1)
    with pytest.raises(GridError, match="step 1"):
        image.crop(y=slice(0, 9, 2))
    for nothing in (slice(20, 10), slice(5000, None), slice(3, 3)):
        with pytest.raises(GridError, match=r"no pixel lies there, the image has \{'x': "):
            image.crop(x=nothing)
    for axis in "cz":
        with pytest.raises(MetadataError, match="the label of a channel, of which there are"):
            image.crop(**{axis: "B"})
    with pytest.raises(SelectionError):
        image.crop(t=3)
    with pytest.raises(MetadataError, match="space or time"):
        image.max("c")


def test_numpy_takes_pixels_but_no_image(image):
    part = image.crop(c=0, y=slice(3, 9))
    np.testing.assert_array_equal(np.asarray(part), VALUES[:, 0, :, 3:9])
    assert np.asarray(part, "f4").dtype == np.float32
    with pytest.raises(TypeError, match="several levels"):
        np.asarray(image)


def test_the_version_of_a_location_is_refused():
    with pytest.raises(TypeError, match="attributes of a group"):
        zd.ome.detect_version("image.zarr")


def data_array(**coords):
    return xr.DataArray(VALUES[0], dims=("c", "z", "y", "x"), coords=coords)


def test_coordinates_of_a_data_array_are_its_place(recwarn):
    rows = xr.DataArray(3 + np.arange(40) * 0.1, dims="y", attrs={"units": "um"})
    given = data_array(c=["DAPI", "GFP"], z=np.arange(9) * 2 + 10, y=rows)
    image = written(given)
    np.testing.assert_allclose(image.levels[0].scale, (1, 2, 0.1, 1))
    assert image.levels[0].translation == (0, 10, 3, 0)
    assert [axis.unit for axis in image.multiscale.axes] == [None, None, "micrometer", None]
    assert [one.label for one in image.metadata.omero.channels] == ["DAPI", "GFP"]
    assert not recwarn.list
    store = {}
    zd.ome.write(given, store, scale={"z": 5}, channels=["a", "b"], levels=1)  # arguments go first
    image = zd.ome.open(store)
    assert image.levels[0].scale == (1, 5, 1, 1)
    assert [one.label for one in image.metadata.omero.channels] == ["a", "b"]


@pytest.mark.parametrize("rows", [np.arange(40.0)[::-1], np.arange(40.0) ** 2, np.zeros(40)])
def test_coordinates_without_equal_steps_are_told(rows):
    with pytest.warns(ZarrDaskWarning, match="'y' of the pixels does not rise by equal steps"):
        image = written(data_array(y=rows))
    assert image.levels[0].scale == (1, 1, 1, 1)


def test_coordinates_of_the_fields_of_a_plate_are_their_places():
    rows = ("y", 3 + np.arange(40) * 0.5, {"units": "um"})
    store = {}
    zd.ome.write_plate({"A/1": data_array(y=rows)}, store, levels=1)
    field = zd.ome.open(store, "A/1/0")
    assert (field.levels[0].scale[2], field.levels[0].translation[2]) == (0.5, 3)
    assert field.multiscale.axes[2].unit == "micrometer"
