"""Images of OME-Zarr 0.6 (RFC-5): read by axes, scales and translations, and never written."""

from __future__ import annotations

import warnings
from copy import deepcopy

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.ome_levels import pixels
from zarr_dask.errors import MetadataError, OmeMetadataWarning, OmeVersionError

VALUES = pixels(4, 40, 48)


def by_ngff_zarr(root):
    """An image of 0.6 with two levels, as ngff-zarr writes it."""
    ngff_zarr = pytest.importorskip("ngff_zarr")
    image = ngff_zarr.to_ngff_image(
        VALUES,
        dims=["z", "y", "x"],
        scale={"z": 2.0, "y": 0.5, "x": 0.25},
        translation={"z": 1.0, "y": 2.0, "x": 3.0},
        axes_units={"z": "micrometer", "y": "micrometer", "x": "micrometer"},
    )
    with warnings.catch_warnings(action="ignore"):  # itkwasm, which it uses, sets shapes
        made = ngff_zarr.to_multiscales(image, scale_factors=[2], chunks=16)
        ngff_zarr.to_ngff_zarr(str(root), made, version="0.6")


def test_an_image_of_ngff_zarr(tmp_path):
    by_ngff_zarr(tmp_path / "image")
    with pytest.warns(OmeMetadataWarning, match=r"0\.6"):
        image = zd.ome.open(tmp_path / "image")
    first, second = image.levels
    np.testing.assert_array_equal(first[...], VALUES)
    assert image.axes == ("z", "y", "x")
    assert (first.scale, first.translation) == ((2, 0.5, 0.25), (1, 2, 3))
    assert second.scale == (4, 1, 0.5)
    assert set(first.units) == {"micrometer"}
    zd.ome.write(image, tmp_path / "copy")
    assert zd.ome.open(tmp_path / "copy").metadata.version == "0.5"
    assert zd.ome.open(tmp_path / "copy").level(0).translation == (1, 2, 3)


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.OmeMetadataWarning")
def test_it_is_not_written(tmp_path):
    by_ngff_zarr(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for change in (
        lambda: zd.ome.write_labels(tmp_path, VALUES, "cells"),
        lambda: zd.ome.open(tmp_path, mode="r+"),
        lambda: zd.ome.append(tmp_path, VALUES, "z"),
        lambda: zd.ome.from_attributes(zd.open_group(tmp_path).attributes).to_attributes(),
    ):
        with pytest.raises(OmeVersionError, match=r"open reads images of 0\.6"):
            change()
    assert {path: path.read_bytes() for path in before} == before


AXES = [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
STEP = {
    "type": "sequence",
    "input": {"path": "0"},
    "output": {"name": "physical"},
    "transformations": [
        {"type": "scale", "scale": [2, 3]},
        {"type": "translation", "translation": [10, 20]},
    ],
}


def opened(version="0.6", **change):
    systems = [{"name": "array", "axes": []}, {"name": "physical", "axes": AXES}]
    level = {"path": "0", "coordinateTransformations": [deepcopy(STEP) | change]}
    image = {"coordinateSystems": systems, "datasets": [level], "name": "a"}
    group = zd.create_group({}, attributes={"ome": {"version": version, "multiscales": [image]}})
    group.create_array("0", shape=(4, 5), dtype="u2")
    return zd.ome.open(group).level(0)


@pytest.mark.parametrize(
    ("change", "scale", "translation"),
    [
        ({}, (2, 3), (10, 20)),
        ({"version": "0.6rc0"}, (2, 3), (10, 20)),
        ({"type": "identity"}, (1, 1), (0, 0)),
        ({"type": "scale", "scale": [5, 6]}, (5, 6), (0, 0)),
        ({"output": "physical"}, (2, 3), (10, 20)),
        (
            {"transformations": [*reversed(STEP["transformations"]), {"type": "identity"}]},
            (2, 3),
            (20, 60),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.OmeMetadataWarning")
def test_transformations(change, scale, translation):
    level = opened(**change)
    assert (level.scale, level.translation) == (scale, translation)
    assert (level.axes, level.units) == (("y", "x"), ("micrometer", "micrometer"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "affine", "affine": [[1, 0, 0], [0, 1, 0]]}, "scales and translations"),
        ({"type": "scale", "scale": [1, 2, 3]}, "of 2 numbers"),
        ({"type": "scale", "scale": "x"}, "scales and translations"),
        ({"type": ["scale"]}, "scales and translations"),
        ({"transformations": {}}, "scales and translations"),
        ({"transformations": [3]}, "scales and translations"),
        ({"output": {"name": "elsewhere"}}, "a coordinate system with axes"),
        ({"output": {"name": "array"}}, "2 dimensions|numbers|axes"),
        ({"output": None}, "a coordinate system with axes"),
    ],
)
def test_what_cannot_be_read_is_named(change, says):
    with pytest.raises(MetadataError, match=says):
        opened(**change)
