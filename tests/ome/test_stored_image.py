"""Images and plates of OME-Zarr, written by zarr-python, read as dask arrays."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.ome_images import FORMATS, pixels, put_image, put_plate, wrapped
from tests.support.rfc2 import RFC2_ARRAY, RFC2_GROUP
from zarr_dask.cli import main
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MetadataError,
    NodeTypeError,
    OmeVersionError,
    SourceIsTargetError,
)
from zarr_dask.stores import MemoryStore


@pytest.fixture(params=["0.4", "0.5"])
def version(request):
    return request.param


@pytest.mark.conformance("C154")
def test_levels(tmp_path, version):
    scale = [{"type": "scale", "scale": [2, 1, 1]}]
    scale.append({"type": "translation", "translation": [1, 2, 3]})
    levels = put_image(tmp_path, "", version, pixels(9, 20, 17), coordinateTransformations=scale)
    image = zd.ome.open(tmp_path)
    assert image.metadata.version == version
    assert image.axes == ("z", "y", "x")
    assert [level.shape for level in image.levels] == [one.shape for one in levels]
    for i, (level, values) in enumerate(zip(image.levels, levels, strict=True)):
        lazy = level.to_dask()
        assert lazy.chunks == level.array.to_dask().chunks
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), values)
        size = 0.5 * 2**i
        shift = 0.25 * (2**i - 1)
        assert level.scale == (2 * size, size, size)
        assert level.translation == (2 * shift + 1, shift + 2, shift + 3)
        assert level.units == ("micrometer",) * 3
    assert image.levels[0].to_dask({"z": 1, "y": -1}).chunks[:2] == ((1,) * 9, (20,))
    assert "z: 9, y: 20, x: 17" in repr(image)


def test_the_level_that_is_fine_enough(tmp_path, version):
    put_image(tmp_path, "", version, pixels(8, 32, 32))
    image = zd.ome.open(tmp_path)

    def chosen(**wanted):
        return image.levels.index(image.level(**wanted))

    assert [chosen(pixel_size=size) for size in (0.1, 0.5, 0.9, 1, 1.99, 2, 50)] == [
        *(0, 0, 0, 1, 1, 2, 2)
    ]
    assert chosen(pixel_size={"z": 2, "x": 1}) == 1
    assert [chosen(shape=size) for size in (100, 32, 17, 16, 8, 1)] == [0, 0, 0, 1, 2, 2]
    assert chosen(shape={"z": 8}) == 0
    assert chosen(shape=(2, 16, 16)) == chosen(pixel_size=[9, 1, 1]) == 1
    for wrong in ({}, {"shape": 1, "pixel_size": 1}, {"shape": {"w": 1}}, {"shape": (8, 8)}):
        with pytest.raises(ValueError, match=r"expected one of|no axis 'w'|one number for each"):
            image.level(**wrong)


def test_labels_are_opened_one_by_one(tmp_path, version):
    put_image(tmp_path, "", version, pixels(4, 8, 8))
    assert dict(zd.ome.open(tmp_path).labels) == {}
    cells = put_image(tmp_path, "labels/cells", version, pixels(4, 8, 8, dtype="i4"))
    group = zarr.open_group(tmp_path, path="labels", mode="a", zarr_format=FORMATS[version])
    group.attrs.update(wrapped(version, {"labels": ["cells", "lost"]}))
    labels = zd.ome.open(tmp_path).labels
    assert list(labels) == ["cells", "lost"]
    np.testing.assert_array_equal(labels["cells"].to_dask(1).compute(scheduler="sync"), cells[1])
    with pytest.raises(KeyError, match=r"no label image 'nuclei'; it has 'cells', 'lost'"):
        labels["nuclei"]
    with pytest.raises(GridError, match="no level 7, it has 3"):
        labels["cells"].to_dask(level=7)
    with pytest.raises(zd.errors.NodeNotFoundError):
        labels["lost"]


def test_a_remote_store(tmp_path, version):
    fsspec = pytest.importorskip("fsspec")
    levels = put_image(tmp_path, "", version, pixels(4, 8, 8))
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), f"/ome-{version}", recursive=True)
    try:
        image = zd.ome.open(f"memory://ome-{version}")
        np.testing.assert_array_equal(image.to_dask(1).compute(scheduler="sync"), levels[1])
        assert zd.ome.validate(f"memory://ome-{version}") == []
    finally:
        memory.rm(f"/ome-{version}", recursive=True)


@pytest.mark.conformance("C155")
def test_0_5_is_read_where_0_4_lies_beside_it(tmp_path):
    put_image(tmp_path, "", "0.4", pixels(4, 8, 8))
    new = put_image(tmp_path, "", "0.5", pixels(4, 8, 8) + np.uint16(7))
    with pytest.warns(zd.errors.ZarrDaskWarning, match="v3 is used"):
        image = zd.ome.open(tmp_path)
    assert image.metadata.version == "0.5"
    np.testing.assert_array_equal(image.to_dask().compute(scheduler="sync"), new[0])


@pytest.mark.conformance("C156")
@pytest.mark.parametrize("encoding", ["default", "v2"])
def test_any_key_encoding_codec_and_shards(tmp_path, encoding):
    put_image(tmp_path, "", "0.5", pixels(4, 8, 8))
    values = pixels(4, 8, 8)
    array = zarr.create_array(
        tmp_path,
        name="s0",
        shape=values.shape,
        dtype="u2",
        chunks=(2, 4, 4),
        shards=(4, 8, 8),
        compressors=zarr.codecs.BloscCodec(cname="lz4"),
        chunk_key_encoding={"name": encoding, "separator": "."},
        dimension_names=["z", "y", "x"],
        overwrite=True,
    )
    array[...] = values
    image = zd.ome.open(tmp_path)
    np.testing.assert_array_equal(image.to_dask().compute(scheduler="sync"), values)
    assert zd.ome.validate(tmp_path) == []


@pytest.mark.conformance("C158")
@pytest.mark.filterwarnings("ignore:.*endian")
def test_the_example_of_rfc_2_opens_as_an_image():
    store = MemoryStore()
    store.set("zarr.json", [RFC2_GROUP.encode()])
    for path, length in (("1", 4096), ("2-2-1", 2048)):
        store.set(f"{path}/zarr.json", [RFC2_ARRAY.replace("4096", str(length)).encode()])
    image = zd.ome.open(store)
    assert image.axes == ("c", "x", "y", "z")
    assert image.levels[1].scale == (1.0, 22.48, 22.48, 28.0)
    assert image.to_dask()[0, 5, 7, ::500].compute(scheduler="sync").tolist() == [0] * 4
    assert zd.ome.validate(store) == []


# --- plates ---------------------------------------------------------------------------------------


def test_a_plate_and_its_mosaic(tmp_path, version):
    wells = {"A/1": pixels(8, 8), "A/3": pixels(6, 5) + np.uint16(100), "B/2": pixels(8, 8)}
    put_plate(tmp_path, version, wells, fields=("0", "1"))
    plate = zd.ome.open_plate(tmp_path)
    assert (plate.rows, plate.columns, list(plate)) == (("A", "B"), ("1", "2", "3"), list(wells))
    assert len(plate["A/3"]) == 2
    np.testing.assert_array_equal(
        plate["A/3"].field(1).to_dask().compute(scheduler="sync"), wells["A/3"] + 1
    )
    for level in (0, 1):
        side = 8 >> level
        expected = np.zeros((2 * side, 3 * side), "u2")
        for path, values in wells.items():
            part = values[:: 2**level, :: 2**level] + np.uint16(1)
            row, column = "AB".index(path[0]) * side, (int(path[2]) - 1) * side
            expected[row : row + part.shape[0], column : column + part.shape[1]] = part
        found = plate.mosaic(field=1, level=level)
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found.compute(scheduler="sync"), expected)
    assert [str(one) for one in zd.ome.validate(tmp_path)] == []
    with pytest.raises(IndexError, match="field 2"):
        plate["A/1"].field(2)
    with pytest.raises(KeyError, match="no well 'A1': expected ROW/COLUMN, of the rows A"):
        plate["A1"]
    assert repr(plate["A/1"]) == f"<zarr_dask.ome.Well {tmp_path}/A/1 2 fields>"
    with pytest.raises(GridError, match="no well has a field 2"):
        plate.mosaic(field=2)
    with pytest.raises(GridError, match="no level 3"):
        plate.mosaic(level=3)


def test_wells_are_not_opened_before_they_are_asked_for(tmp_path, version):
    put_plate(tmp_path, version, {"A/1": pixels(8, 8)})
    group = zarr.open_group(tmp_path, mode="a", zarr_format=FORMATS[version])
    attributes = dict(group.attrs)
    plate = attributes["ome"]["plate"] if version == "0.5" else attributes["plate"]
    plate["wells"].append({"path": "B/3", "rowIndex": 1, "columnIndex": 2})
    group.attrs.update(attributes)
    opened = zd.ome.open_plate(tmp_path)
    assert opened["A/1"].field().levels[0].shape == (8, 8)
    with pytest.raises(zd.errors.NodeNotFoundError):
        opened["B/3"]
    assert [one.place for one in zd.ome.validate(tmp_path)] == ["B/3"]


@pytest.mark.conformance("C150")
def test_images_tell_which_of_several_acquisitions_they_are_of(tmp_path):
    put_plate(tmp_path, "0.5", {"A/1": pixels(8, 8)}, fields=("0", "1"))
    group = zarr.open_group(tmp_path, mode="a")
    ome = group.attrs["ome"]
    ome["plate"]["acquisitions"] = [{"id": 1}, {"id": 2}]
    group.attrs["ome"] = ome
    well = zarr.open_group(tmp_path, path="A/1", mode="a")
    images = [{"path": "0", "acquisition": 3}, {"path": "1"}]
    well.attrs["ome"] = {"version": "0.5", "well": {"images": images}}
    assert [one.place for one in zd.ome.validate(tmp_path)] == [
        "A/1: well.images[0].acquisition",
        "A/1: well.images[1].acquisition",
    ]


@pytest.mark.conformance("C145")
def test_levels_have_as_many_dimensions_as_there_are_axes(tmp_path):
    put_image(tmp_path, "", "0.5", pixels(4, 8, 8))
    names = ["y", "x"]
    zarr.create_array(
        tmp_path, name="s1", shape=(4, 4), dtype="u2", dimension_names=names, overwrite=True
    )
    places = [one.place for one in zd.ome.validate(tmp_path)]
    assert places == ["s1: shape", "s1: dimension_names"]
    with pytest.raises(MetadataError, match="3 dimensions"):
        zd.ome.open(tmp_path)


def test_images_of_a_mosaic_are_alike(tmp_path):
    put_plate(tmp_path, "0.5", {"A/1": pixels(8, 8), "A/2": pixels(8, 8, dtype="f4")})
    with pytest.raises(DataTypeError, match=r"float32.*uint16|uint16.*float32"):
        zd.ome.open_plate(tmp_path).mosaic()


# --- what is refused ------------------------------------------------------------------------------


def test_a_collection_names_its_images(tmp_path, version):
    put_image(tmp_path, "0", version, pixels(4, 8, 8))
    put_image(tmp_path, "1", version, pixels(4, 8, 8))
    group = zarr.open_group(tmp_path, mode="a", zarr_format=FORMATS[version])
    group.attrs.update(wrapped(version, {"bioformats2raw.layout": 3}))
    with pytest.raises(NodeTypeError, match="several images, 0, 1"):
        zd.ome.open(tmp_path)
    inner = zarr.open_group(tmp_path, path="OME", mode="a", zarr_format=FORMATS[version])
    inner.attrs.update(wrapped(version, {"series": ["1", "0"]}))
    with pytest.raises(NodeTypeError, match="several images, 1, 0"):
        zd.ome.open(tmp_path)
    assert zd.ome.validate(tmp_path) == []
    assert zd.ome.open(tmp_path, "1").levels[0].shape == (4, 8, 8)


def test_what_is_no_image(tmp_path):
    put_image(tmp_path / "image", "", "0.5", pixels(4, 8, 8))
    with pytest.raises(NodeTypeError, match="no plate"):
        zd.ome.open_plate(tmp_path / "image")
    put_plate(tmp_path / "plate", "0.5", {"A/1": pixels(8, 8)})
    with pytest.raises(NodeTypeError, match="open_plate"):
        zd.ome.open(tmp_path / "plate")
    zarr.open_group(tmp_path / "plain", mode="w")
    with pytest.raises(MetadataError, match="OME-Zarr metadata"):
        zd.ome.open(tmp_path / "plain")
    newer = zarr.open_group(tmp_path / "newer", mode="w")
    newer.attrs["ome"] = {"version": "0.7rc0", "multiscales": []}
    with pytest.raises(OmeVersionError, match=r"0\.7rc0"):
        zd.ome.open(tmp_path / "newer")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "nothing"}, "the path of an array"),
        ({"coordinateTransformations": [{"type": "scale", "scale": [1]}]}, "finite number"),
        ({"coordinateTransformations": [{"type": "affine"}]}, "finite number"),
    ],
)
def test_levels_that_cannot_be_placed(tmp_path, change, says):
    put_image(tmp_path, "", "0.5", pixels(4, 8, 8))
    group = zarr.open_group(tmp_path, mode="a")
    ome = group.attrs["ome"]
    ome["multiscales"][0]["datasets"][1] |= change
    group.attrs["ome"] = ome
    with pytest.raises(MetadataError, match=says):
        zd.ome.open(tmp_path)


def test_importing_the_package_does_not_load_it():
    code = "import sys, zarr_dask; assert 'zarr_dask.ome' not in sys.modules; zarr_dask.ome.open"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- the command line -----------------------------------------------------------------------------


def run(*words, code=0):
    result = CliRunner().invoke(main, ["ome", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_info(tmp_path, version, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    put_image(tmp_path / "image", "", version, pixels(4, 8, 8))
    said = run("info", tmp_path / "image")
    assert f"version     {version}".split() in [line.split() for line in said.splitlines()]
    assert "s1: (2, 4, 4), pixels of 1 micrometer, 1 micrometer, 1 micrometer" in said
    put_plate(tmp_path / "plate", version, {"A/1": pixels(8, 8)})
    assert "A, B" in run("info", tmp_path / "plate")
    put_plate(tmp_path / "empty", version, {})
    run("info", tmp_path / "empty")


def test_validate(tmp_path, version, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    put_image(tmp_path, "", version, pixels(4, 8, 8))
    assert run("validate", tmp_path) == "valid\n"
    assert "should say more of the image" in run("validate", tmp_path, "--strict")
    zd.delete(tmp_path, "s2")
    said = run("validate", tmp_path, code=1)
    assert "s2: absent; multiscales[0].datasets[2].path must be that of an array" in said
    (one,) = json.loads(run("validate", tmp_path, "--json", code=1))["result"]
    assert (one["place"], one["found"], one["level"]) == ("s2", None, "must")
    assert "no Zarr array or group" in run("validate", tmp_path / "nothing", code=3)


def test_fields_of_a_well_at_their_positions(tmp_path):
    whole = np.random.default_rng(0).integers(1, 900, (2, 60, 80), "u2")
    places = [(y, x) for y in (0, 28) for x in (0, 38)]
    fields = [whole[:, y : y + 32, x : x + 42] for y, x in places]
    at = {f"A/1/{i}": {"y": y * 0.5, "x": 7 + x * 0.5} for i, (y, x) in enumerate(places)}
    more = {"axes": "cyx", "scale": (1, 0.5, 0.5), "chunks": (1, 16, 16), "levels": 2}
    method = {"method": "nearest"}
    wells = {"A/1": fields, "B/2": fields[0]}
    zd.ome.write_plate(wells, tmp_path / "p", positions=at, **more, **method)
    plate = zd.ome.open_plate(tmp_path / "p")
    for level, chunks in ((0, None), (1, None), (0, {"y": 60, "x": 7}), (1, (2, 9, -1))):
        expected = whole[:, :: 2**level, :: 2**level]
        found = plate["A/1"].mosaic(level, chunks)
        np.testing.assert_array_equal(found.compute(scheduler="sync"), expected)
        every = plate.mosaic(None, level, chunks).compute(scheduler="sync")
        height, width = expected.shape[1:]
        np.testing.assert_array_equal(every[:, :height, :width], expected)
        assert every.shape == (2, 2 * height, 2 * width)
    with pytest.raises(SourceIsTargetError):
        zd.ome.write(plate["A/1"].mosaic(), tmp_path / "p", "A/1/0", axes="cyx", overwrite=True)
    with pytest.raises(GridError, match="no level 2"):
        plate["A/1"].mosaic(2)


@pytest.mark.parametrize("far", [1e200, 1e6])
def test_mosaics_refused(tmp_path, far):
    values = [np.ones((20, 20), "u1")] * 2
    zd.ome.write_plate({"A/1": values}, tmp_path, axes="yx", positions={"A/1/1": {"x": far}})
    with pytest.raises(GridError, match="positions are wrong"):
        zd.ome.open_plate(tmp_path)["A/1"].mosaic()


def test_fields_of_unlike_pixels_are_no_mosaic(tmp_path):
    zd.ome.write(np.ones((20, 20), "u1"), tmp_path / "i", axes="yx", scale=(2, 2))
    wells = {"A/1": [np.ones((20, 20), "u1"), zd.ome.open(tmp_path / "i")]}
    zd.ome.write_plate(wells, tmp_path / "p")
    with pytest.raises(GridError, match="pixels of one size"):
        zd.ome.open_plate(tmp_path / "p")["A/1"].mosaic()


def test_wells_are_found_by_row_and_column_and_fields_by_number():
    store, values = {}, pixels(8, 8)
    zd.ome.write_plate({("A", 1): [values, values + 1], "B/2": values}, store, axes="yx")
    plate = zd.ome.open_plate(store)
    assert list(plate) == ["A/1", "B/2"]
    assert ("A", 1) in plate
    assert ("A", 2) not in plate
    fields = [image.level(0)[0, 0] for image in plate["A", "1"]]
    assert fields == [values[0, 0], values[0, 0] + 1]
    assert plate["A/1"][-1].level(0)[0, 0] == fields[1]
    with pytest.raises(IndexError, match="has 2"):
        plate["A/1"][2]
    with pytest.raises(KeyError, match="Did you mean 'A/1'"):
        plate["A1"]
    with pytest.raises(AttributeError, match="A plate is a mapping"):
        _ = plate.wells
    with pytest.raises(AttributeError, match="first image of a well"):
        _ = plate["A/1"].images
    with pytest.raises(MetadataError, match="each well once"):
        zd.ome.write_plate({("A", 1): values, "A/1": values}, {}, axes="yx")


def test_one_channel_takes_one_name():
    store = {}
    zd.ome.write(pixels(4, 4), store, axes="yx", channels="DAPI")
    assert [one.label for one in zd.ome.open(store).metadata.omero.channels] == ["DAPI"]
    with pytest.raises(MetadataError, match="2 names"):
        zd.ome.write(pixels(2, 4, 4), {}, axes="cyx", channels="DAPI")


@pytest.mark.parametrize("name", ["read", "mosaic", "open_image"])
def test_names_of_natural_calls_are_none_of_modules(name):
    """A module of the name would be found instead, and is not callable."""
    code = f"import zarr_dask.ome.serve, zarr_dask.ome.plates, zarr_dask as zd; zd.ome.{name}('a')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "AttributeError" in done.stderr
    assert "open(url)" in done.stderr or "open_plate(url).mosaic()" in done.stderr
