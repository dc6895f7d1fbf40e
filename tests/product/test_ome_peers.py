"""OME-Zarr between this library and its peers: each reads what the others have written."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.ome_peers import by_models, by_ngff_zarr, by_ome_zarr, ngff_zarr, schema_problems
from zarr_dask.ome import from_attributes

ome_zarr_format = pytest.importorskip("ome_zarr.format")
ome_zarr_writer = pytest.importorskip("ome_zarr.writer")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*'version' field not specified",
    "ignore:::ome_zarr",
    "ignore:::ngff_zarr",
)


@pytest.fixture(params=["0.4", "0.5"])
def version(request):
    return request.param


FORMATS = {"0.4": "v2", "0.5": "v3"}
AXES = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    *({"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"),
]
CHANNEL = {
    "color": "00FF00",
    "window": {"min": 0, "max": 65535, "start": 10, "end": 900},
    "label": "green",
    "active": True,
}


def attributes_of(version, members):
    """As this library spells them: read into the model and written again."""
    attributes = {"ome": {"version": version, **members}} if version == "0.5" else members
    return from_attributes(attributes, version).to_attributes()


def put(root, path, version, values, *, more=(), shards=None):
    """Write an image of two levels with this library."""
    axes = AXES[-values.ndim :]
    levels = [values, values[..., ::2, ::2]]
    datasets = [
        {
            "path": str(i),
            "coordinateTransformations": [
                {"type": "scale", "scale": [1.0] * (values.ndim - 2) + [0.5 * 2**i] * 2},
                {"type": "translation", "translation": [0.0] * (values.ndim - 2) + [0.25 * i] * 2},
            ],
        }
        for i in range(2)
    ]
    told = {"version": "0.4"} if version == "0.4" else {}
    multiscale = {"name": "image", "axes": axes, "datasets": datasets, **told}
    members = {"multiscales": [multiscale], **dict(more)}
    group = zd.create_group(
        root, path, attributes=attributes_of(version, members), format=FORMATS[version]
    )
    for i, level in enumerate(levels):
        array = group.create_array(
            str(i),
            shape=level.shape,
            dtype=level.dtype,
            chunks=(1,) * (level.ndim - 2) + (8, 8),
            shards=shards,
            dimension_names=[axis["name"] for axis in axes] if version == "0.5" else None,
        )
        array[...] = level
    return levels


def numbers(*shape, dtype="u2"):
    return (np.arange(np.prod(shape)).reshape(shape) % 251).astype(dtype)


def same(found, expected):
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, values in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.compute(scheduler="sync"), values)


# --- what we write --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "shards"), [("0.4", None), ("0.5", None), ("0.5", (1, 1, 1, 16, 16))]
)
def test_peers_read_our_images(tmp_path, public_data, version, shards):
    more = {"omero": {"channels": [CHANNEL, CHANNEL | {"active": False}]}}
    values = numbers(2, 2, 3, 20, 17)
    levels = put(tmp_path, "", version, values, more=more, shards=shards)
    assert zd.ome.validate(tmp_path) == []
    assert schema_problems(public_data, tmp_path, version) == []
    assert by_models(tmp_path, version) == "Image"
    same(by_ome_zarr(tmp_path), levels)
    same(by_ngff_zarr(tmp_path), levels)


def test_peers_read_our_labels(tmp_path, public_data, version):
    put(tmp_path, "", version, numbers(3, 20, 17))
    told = {"version": version} if version == "0.4" else {}
    meaning = {
        "colors": [{"label-value": 1, "rgba": [255, 0, 0, 255]}],
        "properties": [{"label-value": 1, "area": 7}],
        "source": {"image": "../../"},
        **told,
    }
    names = attributes_of(version, {"labels": ["cells"]})
    zd.create_group(tmp_path, "labels", attributes=names, format=FORMATS[version])
    cells = numbers(3, 20, 17, dtype="i4")
    levels = put(tmp_path, "labels/cells", version, cells, more={"image-label": meaning})
    assert zd.ome.validate(tmp_path) == []
    assert schema_problems(public_data, tmp_path, version) == []
    assert by_models(tmp_path, version) == "Image"
    assert by_models(tmp_path / "labels", version) == "Labels"
    assert by_models(tmp_path / "labels" / "cells", version) == "ImageLabel"
    same(by_ome_zarr(tmp_path / "labels" / "cells"), levels)
    same(by_ngff_zarr(tmp_path / "labels" / "cells"), levels)


def test_peers_read_our_plates(tmp_path, public_data, version):
    wells = {"A/1": numbers(16, 16), "B/2": numbers(16, 16) + np.uint16(9)}
    plate = {
        "name": "p",
        "version": version,
        "rows": [{"name": "A"}, {"name": "B"}],
        "columns": [{"name": "1"}, {"name": "2"}],
        "wells": [
            {"path": "A/1", "rowIndex": 0, "columnIndex": 0},
            {"path": "B/2", "rowIndex": 1, "columnIndex": 1},
        ],
        "field_count": 1,
    }
    put_group = {"format": FORMATS[version]}
    zd.create_group(tmp_path, attributes=attributes_of(version, {"plate": plate}), **put_group)
    for path, values in wells.items():
        images = {"well": {"images": [{"path": "0"}], "version": version}}
        zd.create_group(tmp_path, path, attributes=attributes_of(version, images), **put_group)
        put(tmp_path, f"{path}/0", version, values)
    assert zd.ome.validate(tmp_path) == []
    assert schema_problems(public_data, tmp_path, version) == []
    assert by_models(tmp_path, version) == "HCS"
    mosaic = np.zeros((32, 32), "u2")
    mosaic[:16, :16], mosaic[16:, 16:] = wells.values()
    same(by_ome_zarr(tmp_path), [mosaic, mosaic[::2, ::2]])
    hcs = ngff_zarr.from_hcs_zarr(str(tmp_path), validate=True)
    image = hcs.get_well("B", "2").get_image(0)
    same([one.data for one in image.images], [wells["B/2"], wells["B/2"][::2, ::2]])


@pytest.mark.parametrize(("version", "shards"), [("0.4", None), ("0.5", (1, 1, 1, 64, 64))])
def test_peers_read_what_write_makes(tmp_path, public_data, version, shards):
    values = numbers(2, 2, 3, 70, 61)
    zd.ome.write(
        values,
        tmp_path,
        axes="tczyx",
        scale={"z": 2.0, "y": 0.5, "x": 0.5},
        translation={"z": 1.5},
        units={"t": "second", "z": "micrometer", "y": "micrometer", "x": "micrometer"},
        channels=["DAPI", {"label": "GFP", "color": "00FF00"}],
        version=version,
        chunks=(1, 1, 1, 16, 16),
        shards=shards,
        levels=3,
        labels={"cells": numbers(2, 3, 70, 61, dtype="i4")},
    )
    assert zd.ome.validate(tmp_path) == []
    assert schema_problems(public_data, tmp_path, version) == []
    levels = [level.array[...] for level in zd.ome.open(tmp_path).levels]
    np.testing.assert_array_equal(levels[0], values)
    cells = zd.ome.open(tmp_path).labels["cells"]
    for place, expected in (
        (tmp_path, levels),
        (tmp_path / "labels" / "cells", [level.array[...] for level in cells.levels]),
    ):
        same(by_ome_zarr(place), expected)
        same(by_ngff_zarr(place), expected)
    assert by_models(tmp_path, version) == "Image"
    assert by_models(tmp_path / "labels", version) == "Labels"
    assert by_models(tmp_path / "labels" / "cells", version) == "ImageLabel"
    first = ngff_zarr.from_ome_zarr(str(tmp_path), validate=True).images[0]
    assert (first.scale["y"], first.translation["z"]) == (0.5, 1.5)
    assert first.axes_units["x"] == "micrometer"
    thumbnail = zd.ome.thumbnail(tmp_path, size=32)
    assert thumbnail.shape[:2] == (32, 28)


@pytest.mark.parametrize("axes", ["yx", "cyx", "zyx", "tczyx"])
def test_peers_read_what_was_added(tmp_path, public_data, version, axes):
    """Fewer axes, labels and a level that came later, in both versions."""
    values = numbers(*(2, 2, 3, 36, 29)[-len(axes) :])
    cells = numbers(*(2, 3, 36, 29)[-len(axes.replace("c", "")) :], dtype="u1")
    zd.ome.write(values, tmp_path, axes=axes, version=version, levels=2, name="image")
    meaning = {"colors": {1: "#FF0000"}, "properties": {1: {"area": 7}}}
    zd.ome.write_labels(tmp_path, cells, "cells", **meaning)
    zd.ome.add_level(tmp_path)
    assert zd.ome.validate(tmp_path, strict=True) == []
    assert schema_problems(public_data, tmp_path, version) == []
    image = zd.ome.open(tmp_path)
    assert len(image.levels) == len(image.labels["cells"].levels) == 3
    for place, opened in ((tmp_path, image), (tmp_path / "labels/cells", image.labels["cells"])):
        expected = [level.array[...] for level in opened.levels]
        same(by_ome_zarr(place), expected)
        same(by_ngff_zarr(place), expected)
    assert by_models(tmp_path, version) == "Image"
    assert by_models(tmp_path / "labels", version) == "Labels"
    assert by_models(tmp_path / "labels" / "cells", version) == "ImageLabel"


def test_peers_read_plates_that_write_plate_makes(tmp_path, public_data, version):
    wells = {
        "A/1": [numbers(16, 16), numbers(16, 16) + np.uint16(1)],
        "B/2": [numbers(16, 16) + np.uint16(9)],
    }
    zd.ome.write_plate(wells, tmp_path, axes="yx", version=version, levels=2, name="p")
    assert zd.ome.validate(tmp_path) == []
    assert schema_problems(public_data, tmp_path, version) == []
    assert by_models(tmp_path, version) == "HCS"
    hcs = ngff_zarr.from_hcs_zarr(str(tmp_path), validate=True)
    for path, fields in wells.items():
        for number, values in enumerate(fields):
            image = hcs.get_well(*path.split("/")).get_image(number)
            np.testing.assert_array_equal(image.images[0].data, values)
    mosaic = zd.ome.open_plate(tmp_path).mosaic(level=1).compute(scheduler="sync")
    np.testing.assert_array_equal(by_ome_zarr(tmp_path)[1].compute(scheduler="sync"), mosaic)


# --- what they write ------------------------------------------------------------------------------


def format_of(version):
    return ome_zarr_format.format_from_version(version)


def test_images_and_labels_of_ome_zarr(tmp_path, version):
    values = numbers(2, 3, 32, 34)
    group = zarr.open_group(str(tmp_path), mode="w", zarr_format=2 if version == "0.4" else 3)
    options = {
        "fmt": format_of(version),
        "axes": AXES[1:],
        "scale": {"c": 1.0, "z": 2.0, "y": 0.5, "x": 0.5},
        "scale_factors": [2],
    }
    ome_zarr_writer.write_image(values, group, **options)
    cells = numbers(2, 3, 32, 34, dtype="i4")
    ome_zarr_writer.write_labels(cells, group, "cells", **options)
    image = zd.ome.open(tmp_path)
    assert image.metadata.version == version
    assert image.levels[0].scale == (1.0, 2.0, 0.5, 0.5)
    peer = by_ome_zarr(tmp_path)
    same([one.to_dask() for one in image.levels], [one.compute(scheduler="sync") for one in peer])
    same([image.to_dask()], [values])
    same([image.labels["cells"].to_dask()], [cells])
    # it leaves out a version that the specification demands
    broken = ["labels: ome.version"] if version == "0.5" else []
    assert [one.place for one in zd.ome.validate(tmp_path)] == broken


def test_plates_of_ome_zarr(tmp_path, version):
    group = zarr.open_group(str(tmp_path), mode="w", zarr_format=2 if version == "0.4" else 3)
    form = format_of(version)
    wells = {"A/1": numbers(16, 16), "B/2": numbers(16, 16) + np.uint16(9)}
    ome_zarr_writer.write_plate_metadata(group, ["A", "B"], ["1", "2"], [*wells], fmt=form)
    for path, values in wells.items():
        well = group.require_group(path)
        ome_zarr_writer.write_well_metadata(well, ["0"], fmt=form)
        image = well.require_group("0")
        ome_zarr_writer.write_image(values, image, fmt=form, axes="yx", scale_factors=[2])
    plate = zd.ome.open_plate(tmp_path)
    mosaic = np.zeros((32, 32), "u2")
    mosaic[:16, :16], mosaic[16:, 16:] = wells.values()
    same([plate.mosaic()], [mosaic])
    assert zd.ome.validate(tmp_path) == []


def test_images_of_ngff_zarr(tmp_path, version):
    values = numbers(3, 24, 30)
    image = ngff_zarr.to_ngff_image(
        values,
        dims=["z", "y", "x"],
        scale={"z": 2.0, "y": 0.5, "x": 0.5},
        translation={"z": 1.0, "y": 0.0, "x": 3.0},
        axes_units=dict.fromkeys("zyx", "micrometer"),
    )
    # one level: its ways to make more need a compiler at run time, or another package
    pyramid = ngff_zarr.to_multiscales(image, scale_factors=[], chunks=32)
    ngff_zarr.to_ome_zarr(str(tmp_path), pyramid, version=version)
    opened = zd.ome.open(tmp_path)
    assert opened.metadata.version == version
    assert opened.levels[0].scale == (2.0, 0.5, 0.5)
    assert opened.levels[0].translation == (1.0, 0.0, 3.0)
    assert opened.levels[0].units == ("micrometer",) * 3
    same([opened.to_dask()], [values])
    peer = by_ngff_zarr(tmp_path)
    same([one.to_dask() for one in opened.levels], [one.compute(scheduler="sync") for one in peer])
    assert zd.ome.validate(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.*infer_string")
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_anndata_reads_tables(tmp_path, version):
    anndata = pytest.importorskip("anndata", reason="anndata needs Python 3.12")
    cells = np.kron(np.arange(6, dtype="u4").reshape(2, 3), np.ones((9, 8), "u4"))
    values = np.arange(cells.size, dtype="u2").reshape(cells.shape)
    zd.ome.write(values, tmp_path / "i", axes="yx", labels={"cells": cells}, version=version)
    found = zd.ome.measure(tmp_path / "i", "cells")
    table = anndata.read_zarr(tmp_path / "i/tables/cells").to_df()
    assert [*table.index] == ["1", "2", "3", "4", "5"]
    assert [*table.columns] == list(found.columns)
    for name, column in found.columns.items():
        np.testing.assert_array_equal(table[name], column)
