"""TIFF and OME-TIFF files as images of OME-Zarr: pixels, metadata and memory."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections import Counter

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.ome_levels import check_levels, pixels
from zarr_dask.cli import main
from zarr_dask.errors import (
    DamagedValueError,
    MemoryBudgetError,
    MetadataError,
    MissingDependencyError,
    NodeNotFoundError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.ome.convert_tiff import tiff_image
from zarr_dask.ome.pyramid_task import PyramidTask

tifffile = pytest.importorskip("tifffile")

FACTS = {
    "axes": "TCZYX",
    "Name": "cells",
    "PhysicalSizeX": 0.2,
    "PhysicalSizeXUnit": "µm",
    "PhysicalSizeY": 200.0,
    "PhysicalSizeYUnit": "nm",
    "PhysicalSizeZ": 1.5,
    "PhysicalSizeZUnit": "µm",
    "TimeIncrement": 500.0,
    "TimeIncrementUnit": "ms",
    "Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 16711935]},
}
SHAPE = (2, 2, 3, 70, 90)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def put(path, values, **options):
    tifffile.imwrite(path, values, **{"ome": True, "metadata": FACTS, **options})
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"tile": (32, 48), "compression": "zlib"},
        {"rowsperstrip": 16, "compression": "lzw", "predictor": True},
        {"byteorder": ">", "bigtiff": True},
        {},
    ],
)
def test_pixels_and_metadata_of_ome_tiff(tmp_path, options):
    values = pixels(*SHAPE)
    src = put(tmp_path / "stack.ome.tif", values, **options)
    zd.ome.convert(src, tmp_path / "image", levels=3)
    plan = zd.ome.plan_write(
        values,
        {},
        axes="tczyx",
        scale=(500, 1, 1.5, 200, 0.2),
        levels=3,
        units=("millisecond", None, "micrometer", "nanometer", "micrometer"),
    )
    check_levels(tmp_path / "image", plan, values)
    image = zd.ome.open(tmp_path / "image")
    assert image.level(0).scale == (500, 1, 1.5, 200, 0.2)
    assert image.level(0).units[2:] == ("micrometer", "nanometer", "micrometer")
    assert image.multiscale.name == "cells"
    told = [(channel.label, channel.color) for channel in image.metadata.omero.channels]
    assert told == [("DAPI", "0000FF"), ("GFP", "00FF00")]


def test_pages_of_subresolution(tmp_path):
    """The finest level is read; the image gets levels of its own."""
    values = pixels(2, 64, 64)
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as writer:
        writer.write(values, subifds=1, tile=(32, 32), metadata={"axes": "ZYX"})
        writer.write(values[:, ::2, ::2], subfiletype=1, tile=(32, 32))
    zd.ome.convert(tmp_path / "a.ome.tif", tmp_path / "image", levels=1)
    np.testing.assert_array_equal(zd.ome.open(tmp_path / "image").level(0)[...], values)


def test_imagej_and_rgb(tmp_path):
    values = pixels(2, 3, 2, 20, 30)  # in the order of ImageJ: T Z C Y X
    facts = {"axes": "TZCYX", "spacing": 2.0, "unit": "um", "finterval": 0.5}
    tifffile.imwrite(tmp_path / "j.tif", values, imagej=True, resolution=(4, 5), metadata=facts)
    zd.ome.convert(tmp_path / "j.tif", tmp_path / "j", levels=2)
    image = zd.ome.open(tmp_path / "j")
    np.testing.assert_array_equal(image.level(0)[...], values.transpose(0, 2, 1, 3, 4))
    assert image.level(0).scale == (0.5, 1, 2, 0.2, 0.25)
    assert image.level(0).units == ("second", None, *["micrometer"] * 3)
    colours = pixels(40, 50, 3, dtype="u1")
    tifffile.imwrite(tmp_path / "rgb.tif", colours, photometric="rgb")
    zd.ome.convert(tmp_path / "rgb.tif", tmp_path / "rgb", channels=["r", "g", "b"], levels=2)
    np.testing.assert_array_equal(
        zd.ome.open(tmp_path / "rgb").level(0)[...], colours.transpose(2, 0, 1)
    )


@pytest.mark.parametrize("maxworkers", [1, 2])
def test_the_store_of_tifffile_decodes_in_the_thread_that_reads(tmp_path, monkeypatch, maxworkers):
    """The event loop of zarr-python would decode one chunk after the other."""
    values = pixels(2, 64, 64)
    tifffile.imwrite(tmp_path / "a.tif", values, tile=(16, 16), compression="zlib")
    with tifffile.imread(tmp_path / "a.tif", aszarr=True, maxworkers=maxworkers) as store:
        array = zd.open(store)
        looped, sync = [], zarr.core.sync.sync
        monkeypatch.setattr(
            zarr.core.sync, "sync", lambda *a, **k: looped.append(a) or sync(*a, **k)
        )
        np.testing.assert_array_equal(array[...], values)
    assert bool(looped) == (maxworkers > 1)


def test_the_store_of_tifffile_is_opened(tmp_path):
    """Though it refuses ranges of bytes."""
    values = pixels(2, 40, 50)
    tifffile.imwrite(tmp_path / "a.tif", values, tile=(16, 16))
    with tifffile.imread(tmp_path / "a.tif", aszarr=True) as store:
        array = zd.open(store)
        np.testing.assert_array_equal(array[...], values)
        np.testing.assert_array_equal(array[1, 3:30:4, 49], values[1, 3:30:4, 49])
        # a store of open files cannot be sent to other processes
        zd.ome.write(array.to_dask(), tmp_path / "b", axes="cyx")
        np.testing.assert_array_equal(zd.ome.open(tmp_path / "b").level(0)[...], values)


_IN_A_NEW_PROCESS = """
import sys, zarr_dask as zd
zd.ome.convert("a.ome.tif", "a.zarr", resume=True)
zd.ome.open("a.zarr", mode="r+").level(0)[0, 0, 0, :9] = 1
assert "zarr_dask.ome.job" in sys.modules
assert "dask.array" not in sys.modules
"""


def test_stored_pixels_do_not_wait_for_the_import_of_dask_array(tmp_path):
    put(tmp_path / "a.ome.tif", pixels(*SHAPE))
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_NEW_PROCESS],
        cwd=tmp_path,
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr


def test_other_processes_open_the_file(tmp_path):
    put(tmp_path / "a.ome.tif", pixels(*SHAPE))
    array, _ = tiff_image(tmp_path / "a.ome.tif", None, None)
    again = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(again[...], pixels(*SHAPE))


def test_what_is_stopped_goes_on(tmp_path):
    """Tasks whose stored objects are there are not run again."""
    src = put(tmp_path / "a.ome.tif", pixels(*SHAPE))
    seen = []

    def stop(step):
        seen.append(step)
        raise KeyboardInterrupt

    options = {"levels": 2, "chunks": (1, 1, 1, 32, 32), "max_mem": "30MB", "resume": True}
    with pytest.raises(KeyboardInterrupt):
        zd.ome.convert(src, tmp_path / "image", progress=stop, **options)
    report = zd.ome.convert(src, tmp_path / "image", **options)
    whole = zd.ome.convert(src, tmp_path / "whole", **options)
    assert 0 < report.objects < whole.objects
    for level in (0, 1):
        found, expected = (zd.ome.open(tmp_path / n).level(level) for n in ("image", "whole"))
        np.testing.assert_array_equal(found[...], expected[...])


def test_refused(tmp_path, monkeypatch):
    (tmp_path / "no.tif").write_bytes(b"none")
    with pytest.raises(StoreError, match="as TIFF"):
        zd.ome.convert(tmp_path / "no.tif", {})
    with pytest.raises(StoreError, match="cannot read"):
        zd.ome.convert(tmp_path / "absent.tif", {})
    tifffile.imwrite(tmp_path / "a.tif", pixels(3, 20, 20), metadata=None, photometric="minisblack")
    with pytest.raises(MetadataError, match="axes="):
        zd.ome.convert(tmp_path / "a.tif", {})
    store = {}
    zd.ome.convert(tmp_path / "a.tif", store, axes="zyx")
    assert zd.ome.open(store).axes == ("z", "y", "x")
    with tifffile.TiffWriter(tmp_path / "two.ome.tif") as writer:
        for size in (20, 30):
            writer.write(pixels(size, size), metadata={"axes": "YX", "Name": f"of {size}"})
    with pytest.raises(MetadataError, match="'of 20', 'of 30'"):
        zd.ome.convert(tmp_path / "two.ome.tif", {})
    store = {}
    zd.ome.convert(tmp_path / "two.ome.tif", store, series=1)
    assert zd.ome.open(store).multiscale.name == "of 30"
    with pytest.raises(MetadataError, match="one of the 2 images"):
        zd.ome.convert(tmp_path / "two.ome.tif", {}, series=2)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingDependencyError, match=r"zarr-dask\[tiff\]"):
        zd.ome.convert(tmp_path / "a.tif", {})


@pytest.mark.parametrize("text", ["<!DOCTYPE a [<!ENTITY b 'c'>]><OME/>", "<OME>"])
def test_metadata_of_strangers(tmp_path, text):
    """Entities, which may grow without end, are not read."""
    tifffile.imwrite(tmp_path / "a.ome.tif", pixels(20, 20), description=text, metadata=None)
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        monkey = type("File", (), {"ome_metadata": text, "series": file.series})
        from zarr_dask.ome.convert_tiff import _facts

        with pytest.raises(MetadataError, match="OME-XML"):
            _facts(monkey, 0, "a.ome.tif")


def test_command(tmp_path):
    src, dst = str(put(tmp_path / "a.ome.tif", pixels(*SHAPE))), str(tmp_path / "image")
    run = CliRunner().invoke
    found = run(main, ["ome", "convert", src, dst, "--dry-run"])
    assert found.exit_code == 0, found.output
    assert not (tmp_path / "image").exists()
    found = run(main, ["--quiet", "ome", "convert", src, dst, "--shards", "auto"])
    assert (found.exit_code, found.output) == (0, ""), found.output
    image = zd.ome.open(dst)
    assert image.level(0).array.shards is not None
    assert image.level(0).scale == (500, 1, 1.5, 200, 0.2)
    assert run(main, ["ome", "convert", src]).exit_code == 2
    found = run(main, ["ome", "convert", dst, str(tmp_path / "b"), "--series", "1"])
    assert found.exit_code == 2


SAMPLE = (
    '<WellSample ID="WellSample:{0}" Index="{0}" PositionX="{1}" PositionXUnit="mm" '
    'PositionY="{2}" PositionYUnit="µm"><ImageRef ID="Image:{3}"/></WellSample>'
)
WELL = '<Well ID="Well:{0}" Row="{0}" Column="{1}">{2}</Well>'
RUN = '<PlateAcquisition ID="PlateAcquisition:{0}" {1}>{2}</PlateAcquisition>'
PLATE = "".join(
    (
        '<Plate ID="Plate:0" Name="screen" Rows="2" Columns="3">',
        WELL.format(0, 1, SAMPLE.format(1, 0.025, 0, 1) + SAMPLE.format(0, 0, 0, 0)),
        WELL.format(1, 2, SAMPLE.format(2, 0, 20, 2)),
        RUN.format(
            0,
            'Name="run" StartTime="2020-01-01T00:00:00" MaximumFieldCount="2"',
            "".join(f'<WellSampleRef ID="WellSample:{i}"/>' for i in range(3)),
        ),
        "</Plate>",
    )
)
NO_RUN = PLATE.replace('Ref ID="WellSample:1', 'Ref ID="-')
"""One image is of no run."""


def put_plate(path, plate=PLATE):
    """Three images of a plate; the second field of the first well is named before the first."""
    fields = [pixels(2, 40, 50) + i for i in range(3)]
    facts = {"axes": "CYX", "Channel": {"Name": ["DAPI", "GFP"]}}
    facts |= {f"PhysicalSize{axis}{member}": told for axis in "XY" for member, told in SIZE.items()}
    with tifffile.TiffWriter(path, ome=True) as file:
        for values in fields:
            file.write(values, tile=(16, 16), metadata=facts)
    with tifffile.TiffFile(path) as file:
        head, end, rest = file.ome_metadata.partition("<Image")
    tifffile.tiffcomment(path, (head + plate + end + rest).encode())
    return fields


SIZE = {"": 0.5, "Unit": "µm"}


@pytest.mark.parametrize("by_command", [False, True])
def test_a_plate_becomes_a_plate(tmp_path, by_command):
    fields = put_plate(tmp_path / "p.ome.tif")
    if by_command:
        line = ["ome", "convert", f"{tmp_path}/p.ome.tif", f"{tmp_path}/plate"]
        found = CliRunner().invoke(main, line)
        assert found.exit_code == 0, found.output
    else:
        zd.ome.convert(tmp_path / "p.ome.tif", tmp_path / "plate")
    plate = zd.ome.open_plate(tmp_path / "plate")
    assert (plate.rows, plate.columns) == (("A", "B"), ("1", "2", "3"))
    assert plate.layout.name == "screen"
    assert [(run.id, run.name, run.start_time) for run in plate.layout.acquisitions] == [
        (0, "run", 1577836800)
    ]
    wanted = {("A/2", 0): (0, 0), ("A/2", 1): (0, 25), ("B/3", 0): (20, 0)}
    for ((well, number), place), values in zip(wanted.items(), fields, strict=True):
        image = plate[well].field(number)
        level = image.level(0)
        np.testing.assert_array_equal(level[...], values)
        assert level.scale == (1, 0.5, 0.5)
        assert level.translation == (0, *place)
        assert level.units == (None, "micrometer", "micrometer")
        assert [one.label for one in image.metadata.omero.channels] == ["DAPI", "GFP"]
    assert {well: len(plate[well]) for well in plate} == {"A/2": 2, "B/3": 1}
    assert zd.ome.validate(tmp_path / "plate", strict=True) == []


def test_one_image_of_a_plate(tmp_path):
    fields = put_plate(tmp_path / "p.ome.tif")
    zd.ome.convert(tmp_path / "p.ome.tif", tmp_path / "image", series=2)
    np.testing.assert_array_equal(zd.ome.open(tmp_path / "image").level(0)[...], fields[2])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (PLATE + PLATE, "series="),
        (PLATE.replace("Image:2", "Image:7"), "ImageRef: got 'Image:7'"),
        (PLATE.replace('Row="1"', 'Row="99999"'), "Well.Row: got '99999'"),
        (PLATE.replace('Rows="2"', 'Rows="99999"'), "Plate.Rows: got 99999"),
        (NO_RUN.replace("</Plate>", RUN.format(1, "", "") + "</Plate>"), "every image"),
    ],
)
def test_wrong_plates_are_refused(tmp_path, wrong, told):
    put_plate(tmp_path / "p.ome.tif", wrong)
    with pytest.raises(MetadataError, match=told):
        zd.ome.convert(tmp_path / "p.ome.tif", tmp_path / "plate")
    assert not (tmp_path / "plate").exists()


def test_positions_without_a_unit_of_length_are_none(tmp_path):
    put_plate(tmp_path / "p.ome.tif", NO_RUN.replace('"mm"', '"reference frame"'))
    zd.ome.convert(tmp_path / "p.ome.tif", tmp_path / "plate")
    plate = zd.ome.open_plate(tmp_path / "plate")
    assert plate.layout.acquisitions is None
    assert plate["A/2"].field(1).level(0).translation == (0, 0, 0)


def channels_of(tmp_path, values, **options):
    tifffile.imwrite(tmp_path / "a.tif", values, **options)
    zd.ome.convert(tmp_path / "a.tif", tmp_path / "image", overwrite=True)
    image = zd.ome.open(tmp_path / "image")
    assert zd.ome.validate(tmp_path / "image") == []
    return image.metadata.omero.channels


def test_colour_pictures_keep_their_colours(tmp_path):
    values = np.random.default_rng(1).integers(0, 256, (30, 40, 4), "u1")
    found = channels_of(tmp_path, values, photometric="rgb", extrasamples=["unassalpha"])
    assert [(one.label, one.color, one.active) for one in found] == [
        ("red", "FF0000", True),
        ("green", "00FF00", True),
        ("blue", "0000FF", True),
        ("alpha", "FFFFFF", False),
    ]
    seen = zd.ome.thumbnail(tmp_path / "image", size=40)
    np.testing.assert_array_equal(seen, values[..., :3])


def test_white_is_zero(tmp_path):
    values = np.random.default_rng(1).integers(0, 256, (30, 40), "u1")
    (found,) = channels_of(tmp_path, values, photometric="miniswhite")
    assert found.extra["inverted"]
    seen = zd.ome.thumbnail(tmp_path / "image", size=40)
    np.testing.assert_array_equal(seen, np.repeat(255 - values[..., None], 3, -1))


def test_colours_and_windows_of_imagej(tmp_path):
    ramp, none = np.arange(256, dtype="u1"), np.zeros(256, "u1")
    facts = {
        "axes": "CYX",
        "mode": "composite",
        "LUTs": [np.stack([none, ramp, none]), np.stack([ramp, none, ramp])],
        "Ranges": (10.0, 900.0, 5.0, 70.0),
    }
    found = channels_of(tmp_path, pixels(2, 30, 40), imagej=True, metadata=facts)
    assert [one.color for one in found] == ["00FF00", "FF00FF"]
    assert [(one.window.start, one.window.end) for one in found] == [(10, 900), (5, 70)]


@pytest.mark.parametrize(("unit", "scale"), [("CENTIMETER", (0.5, 0.25)), ("INCH", (1, 1))])
def test_sizes_of_pixels_in_tags(tmp_path, unit, scale):
    options = {"resolution": (40_000, 20_000), "resolutionunit": unit}
    tifffile.imwrite(tmp_path / "a.tif", pixels(30, 40), **options)
    zd.ome.convert(tmp_path / "a.tif", tmp_path / "image")
    level = zd.ome.open(tmp_path / "image").level(0)
    assert level.scale == scale
    assert level.units == (("micrometer",) * 2 if unit == "CENTIMETER" else (None, None))


def converted(path, **options):
    store = {}
    zd.ome.convert(path, store, **options)
    assert zd.ome.validate(store) == []
    return zd.ome.open(store)


@pytest.mark.parametrize(
    ("axes", "shape", "planar"),
    [
        ("CYXS", (2, 40, 50, 3), "contig"),
        ("CSYX", (2, 3, 40, 50), "separate"),
        ("TZCYXS", (2, 3, 2, 40, 50, 3), "contig"),
    ],
)
def test_channels_in_colour(tmp_path, axes, shape, planar):
    """Each colour of each channel is a channel."""
    values = pixels(*shape, dtype="u1")
    facts = {"axes": axes, "Channel": {"Name": ["H", "E"]}}
    options = {"photometric": "rgb", "planarconfig": planar, "ome": True, "metadata": facts}
    tifffile.imwrite(tmp_path / "a.ome.tif", values, **options)
    image = converted(tmp_path / "a.ome.tif", levels=2)
    wanted = np.moveaxis(values, (axes.index("C"), axes.index("S")), (-4, -3))
    if "Z" in axes:  # T Z Y X C S and the order of the image
        wanted = np.moveaxis(values, (2, 5), (1, 2))
    at = image.axes.index("c")
    wanted = wanted.reshape(*wanted.shape[:at], 6, *wanted.shape[at + 2 :])
    np.testing.assert_array_equal(image.level(0)[...], wanted)
    names = [f"{one} {colour}" for one in "HE" for colour in ("red", "green", "blue")]
    assert [one.label for one in image.metadata.omero.channels] == names


def test_dimensions_of_one_name_are_one_axis(tmp_path):
    values = pixels(2, 3, 20, 30)
    facts = {"axes": "QIYX"}
    tifffile.imwrite(tmp_path / "a.tif", values, metadata=facts, photometric="minisblack")
    image = converted(tmp_path / "a.tif", axes="ttyx")
    np.testing.assert_array_equal(image.level(0)[...], values.reshape(6, 20, 30))


@pytest.mark.parametrize("shape", [(30, 40), (3, 30, 40)])
@pytest.mark.parametrize(("scale", "dtype"), [(257, "u1"), (11, "u2")])
def test_colours_of_a_palette(tmp_path, shape, scale, dtype):
    values = pixels(*shape, dtype="u1")
    table = (np.random.default_rng(1).integers(0, 256, (3, 256)) * scale).astype("u2")
    facts = {"axes": "ZYX"[-len(shape) :]}
    options = {"photometric": "palette", "colormap": table, "metadata": facts}
    tifffile.imwrite(tmp_path / "a.tif", values, **options)
    image = converted(tmp_path / "a.tif")
    assert image.axes == ("c", *facts["axes"].lower())
    found = image.level(0)[...]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, table[:, values] // (257 if dtype == "u1" else 1))
    assert [one.label for one in image.metadata.omero.channels] == ["red", "green", "blue"]


def test_a_palette_of_one_colour_keeps_intensities(tmp_path):
    values, ramp = pixels(30, 40, dtype="u1"), np.arange(256, dtype="u2") * 257
    table = np.stack([ramp, 0 * ramp, ramp])
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="palette", colormap=table)
    image = converted(tmp_path / "a.tif")
    np.testing.assert_array_equal(image.level(0)[...], values)
    assert [one.color for one in image.metadata.omero.channels] == ["FF00FF"]
    table[0] = table[0, ::-1]  # of ImageJ, whose tables are those of a display
    facts = {"mode": "color", "LUTs": [(table >> 8).astype("u1")]}
    tifffile.imwrite(
        tmp_path / "j.tif", values, imagej=True, metadata=facts, colormap=table, photometric=3
    )
    np.testing.assert_array_equal(converted(tmp_path / "j.tif").level(0)[...], values)


LARGE = [
    {"shape": (3000, 1700), "dtype": ">u2"},
    {"shape": (2, 2500, 900), "dtype": "f4"},
    {"shape": (1500, 1301, 3), "dtype": "u1", "photometric": "rgb"},
    {"shape": (3, 2100, 2303), "dtype": "u1", "photometric": "rgb", "planarconfig": "separate"},
]


@pytest.mark.parametrize("of", LARGE, ids=lambda of: str(of["shape"]))
def test_rows_of_a_page_in_one_strip(tmp_path, of):
    """A page of any size is read row by row, and stored in blocks for viewers."""
    values = pixels(*of["shape"], dtype=of["dtype"])
    options = {name: told for name, told in of.items() if name not in ("shape", "dtype")}
    order = {"byteorder": ">"} if ">" in of["dtype"] else {}
    facts = {"axes": "ZYX"[-values.ndim :]} if not options else None
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values, rowsperstrip=1 << 20, metadata=facts, **order, **options)
    source, told = tiff_image(path, None, None)
    assert np.prod(source.chunks) * values.itemsize <= 1 << 22 < values.nbytes
    assert max(told["chunks"]) <= 1024
    wanted = np.moveaxis(values, -1, 0) if values.shape[-1] == 3 else values
    np.testing.assert_array_equal(source[..., 100:900:3, 77], wanted[..., 100:900:3, 77])
    image = converted(path, levels=2, max_mem="100MB")
    np.testing.assert_array_equal(image.level(0)[...], wanted)
    assert image.level(0).array.chunks == told["chunks"]


@pytest.fixture
def compressed_pages(tmp_path):
    """Pages that are decoded as a whole, so that not all threads have room for one."""
    values = pixels(6, 2000, 2100)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, values, compression="zlib", rowsperstrip=2000, metadata={"axes": "ZYX"})
    return path, values


def test_pages_in_one_strip_are_decoded_once_by_as_many_threads_as_have_room(
    tmp_path, compressed_pages, monkeypatch
):
    path, values = compressed_pages
    plain, at_once, seen = PyramidTask.__call__, Counter(), Counter()

    def counted(task, number):
        at_once["now"] += 1
        seen[at_once["now"], task.stage.first] += 1
        try:
            return plain(task, number)
        finally:
            at_once["now"] -= 1

    monkeypatch.setattr(PyramidTask, "__call__", counted)
    with dask.config.set(scheduler="threads", num_workers=4):
        plan = zd.ome.plan_convert(path, tmp_path / "a.zarr", levels=2, max_mem="125MB")
        assert plan.peak <= 125e6  # of 4 x 47 MB
        assert "(1.00 x)" in str(plan)
        plan.run()
    most = {first: max(count for count, of in seen if of == first) for _, first in seen}
    assert most[0] <= 2
    zd.ome.write(values, tmp_path / "b.zarr", axes="zyx", levels=2)
    for level in range(2):
        read, wanted = (zd.ome.open(tmp_path / name).level(level) for name in ("a.zarr", "b.zarr"))
        np.testing.assert_array_equal(read[...], wanted[...])


MEMORY = """
import json, sys
from pathlib import Path
import dask
import zarr_dask as zd

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

with dask.config.set(scheduler="threads", num_workers=2):
    zd.ome.convert("small.tif", "small.zarr")
    plan = zd.ome.plan_convert("wide.tif", "wide.zarr")
    Path("/proc/self/clear_refs").write_text("5")
    idle = memory("VmRSS")
    plan.run()
print(json.dumps([memory("VmHWM") - idle, plan.peak]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process has")
def test_wide_strips_take_the_memory_of_the_plan(tmp_path):
    noise = np.random.default_rng(0).normal(300, 20, (6144, 12000)).astype("u2")
    for name, values in ("small", noise[:256, :256]), ("wide", noise):
        tifffile.imwrite(tmp_path / f"{name}.tif", values, compression="lzw", rowsperstrip=64)
    command = [sys.executable, "-c", MEMORY]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    grown, peak = json.loads(done.stdout)
    assert grown <= peak


def test_what_has_little_room_besides_a_page_decodes_it_a_few_times(tmp_path):
    values = np.zeros((4096, 8192), "u2")
    values[1000:3000:7, 5000:] = 3
    tifffile.imwrite(tmp_path / "a.tif", values, compression="zlib", rowsperstrip=4096)
    with dask.config.set(scheduler="threads", num_workers=2):
        with pytest.raises(MemoryBudgetError, match="one task of level 0 would hold"):
            zd.ome.plan_convert(tmp_path / "a.tif", tmp_path / "a.zarr", max_mem="140MB")
        plan = zd.ome.plan_convert(tmp_path / "a.tif", tmp_path / "a.zarr", max_mem="155MB")
        assert 1 < float(re.search(r"\((\S+) x\)", str(plan))[1]) <= 16  # 64 in single chunks
        plan.run()
    np.testing.assert_array_equal(zd.ome.open(tmp_path / "a.zarr").level(0)[...], values)


def test_chunks_are_whole_tiles(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", pixels(1000, 1000), tile=(240, 240))
    assert tiff_image(tmp_path / "a.tif", None, None)[1]["chunks"] == (480, 960)


def test_pages_that_lie_in_other_files(tmp_path):
    """One image of two files; of a third page, in no file, the pixels are 0."""
    values, uuids = pixels(2, 40, 50), ["a" * 8, "b" * 8]
    block = (
        '<TiffData FirstT="{0}" IFD="0" PlaneCount="1"><UUID FileName="{0}.ome.tif">{1}</UUID>'
        "</TiffData>"
    )
    blocks = "".join(block.format(i, one) for i, one in enumerate(uuids))
    for i, one in enumerate(uuids):
        text = (
            f'<OME UUID="{one}"><Image ID="Image:0"><Pixels ID="Pixels:0" Type="uint16" SizeX="50" '
            'DimensionOrder="XYZCT" SizeY="40" SizeZ="1" SizeC="1" SizeT="3" PhysicalSizeX="2">'
            f'<Channel ID="Channel:0:0" SamplesPerPixel="1"/>{blocks}</Pixels></Image></OME>'
        )
        tifffile.imwrite(tmp_path / f"{i}.ome.tif", values[i], description=text, metadata=None)
    image = converted(tmp_path / "0.ome.tif")
    assert image.level(0).scale == (1, 1, 2)
    wanted = np.concatenate([values, np.zeros((1, 40, 50), "u2")])
    np.testing.assert_array_equal(image.level(0)[...], wanted)


def test_damaged_files(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels(300, 400), compression="zlib", rowsperstrip=100)
    with tifffile.TiffFile(path) as file:
        at = file.pages.first.dataoffsets[1]
    content = bytearray(path.read_bytes())
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a.tif, image 0: the strip or tile \(1, 0\)"):
        zd.ome.convert(path, {})
    tifffile.imwrite(path, pixels(300, 400))
    values, _ = tiff_image(path, None, None)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(StoreError, match="ends within the pixels"):
        values[...]
    path.write_bytes(b"II*\0" + bytes(12))
    with pytest.raises(MetadataError, match="none that tifffile finds"):
        zd.ome.convert(path, {})


CUT = {
    "ome": {"ome": True, "metadata": {"axes": "ZYX"}},
    "imagej": {"imagej": True, "metadata": {"axes": "ZYX"}},
    "tiles": {"tile": (64, 64)},
    "compressed": {"compression": "zlib"},
    "bigtiff": {"bigtiff": True, "byteorder": ">", "ome": True, "compression": "zlib"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [0.99, 0.5, 0.1])
@pytest.mark.parametrize("kind", CUT)
def test_a_file_that_is_cut_off_loses_no_page_in_silence(kind, part, tmp_path, caplog):
    """tifffile logs what it leaves out."""
    caplog.set_level("CRITICAL", "tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels(4, 200, 300), photometric="minisblack", **CUT[kind])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(DamagedValueError, match=r"is cut off: it has|cannot be decoded"):
        zd.ome.convert(path, tmp_path / "a.zarr", axes="zyx")
    with pytest.raises(NodeNotFoundError):
        zd.ome.open(tmp_path / "a.zarr")


def test_metadata_that_are_cut_off_are_no_other_metadata(tmp_path):
    path = tmp_path / "a.ome.tif"
    facts = {"axes": "YX", "PhysicalSizeX": 0.5}
    tifffile.imwrite(path, pixels(20, 30), ome=True, metadata=facts)
    tifffile.tiffcomment(path, tifffile.tiffcomment(path).replace("</OME>", "</OM"))
    with pytest.raises(MetadataError, match="OME-XML"):
        zd.ome.convert(path, {})


@pytest.mark.parametrize(
    "text",
    [
        "<!---->" * 64 + "<OMX",
        "<OME " * 200_000 + "OME>",
        "<OME>" + "<BinaryOnly " * 200_000 + "OME>",
    ],
    ids=["comments", "roots", "companions"],
)
def test_descriptions_of_strangers_are_looked_at_once(text, tmp_path):
    """Each way to divide comments would take a look of its own, each element one at all others."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels(20, 30), description=text, metadata=None)
    if "OME>" in text:
        with pytest.raises(MetadataError, match="OME-XML"):
            zd.ome.convert(path, tmp_path / "a.zarr")
        return
    zd.ome.convert(path, tmp_path / "a.zarr")
    np.testing.assert_array_equal(zd.ome.open(tmp_path / "a.zarr").level(0)[...], pixels(20, 30))


def put_companion(folder):
    """Two TIFF files of one plane each, whose OME-XML lies in a third file."""
    planes = np.arange(2 * 20 * 30, dtype="u2").reshape(2, 20, 30)
    whole = tifffile.OmeXml()
    whole.addimage("uint16", (2, 20, 30), (2, 1, 1, 20, 30, 1), axes="ZYX", PhysicalSizeX=0.5)
    text = whole.tostring()
    only = (
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{0}">'
        '<BinaryOnly MetadataFile="a.companion.ome" UUID="urn:uuid:c"/></OME>'
    )
    data = "".join(
        f'<TiffData IFD="0" PlaneCount="1" FirstZ="{z}" FirstC="0" FirstT="0">'
        f'<UUID FileName="{z}.ome.tif">urn:uuid:{z}</UUID></TiffData>'
        for z in range(2)
    )
    text = re.sub(r"<TiffData[^>]*/>|<TiffData.*?</TiffData>", data, text, count=1)
    text = re.sub(r'(<OME[^>]*?) UUID="[^"]*"', r"\1", text, count=1)
    text = text.replace("<OME ", '<OME UUID="urn:uuid:c" ', 1)
    (folder / "a.companion.ome").write_text(text)
    for z, plane in enumerate(planes):
        tifffile.imwrite(folder / f"{z}.ome.tif", plane, description=only.format(z), metadata=None)
    return planes


@pytest.mark.parametrize("name", ["0.ome.tif", "1.ome.tif", "a.companion.ome"])
def test_metadata_in_a_companion_file_are_read(tmp_path, name):
    planes = put_companion(tmp_path)
    image = converted(tmp_path / name)
    np.testing.assert_array_equal(image.level(0)[...].reshape(2, 20, 30), planes)
    assert image.axes[-3:] == ("z", "y", "x")
    assert image.level(0).scale[-1] == 0.5


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("0.ome.tif", "a.companion.ome"),
        ("0.ome.tif", "1.ome.tif"),
        ("a.companion.ome", "0.ome.tif"),
    ],
)
def test_absent_files_of_an_image_are_named(tmp_path, name, gone):
    put_companion(tmp_path)
    (tmp_path / gone).unlink()
    with pytest.raises(StoreError, match=f"names '{gone}', which is not beside it"):
        zd.ome.convert(str(tmp_path / name), str(tmp_path / "out.zarr"))
    assert not (tmp_path / "out.zarr").exists()


def test_files_that_name_each_other_for_metadata_are_refused(tmp_path):
    text = '<OME><BinaryOnly MetadataFile="{}.ome.tif" UUID="a"/></OME>'
    for one, other in ("ab", "ba"):
        tifffile.imwrite(
            tmp_path / f"{one}.ome.tif",
            pixels(40, 50),
            description=text.format(other),
            metadata=None,
        )
    with pytest.raises(StoreError, match=r"b\.ome\.tif has no OME-XML"):
        converted(tmp_path / "a.ome.tif")


def test_a_file_is_not_removed_with_the_group_around_it(tmp_path):
    file = put(tmp_path / "a.ome.tif", pixels(*SHAPE))
    zd.create_group(tmp_path)
    with pytest.raises(SourceIsTargetError, match=r"a\.ome\.tif is read"):
        zd.ome.convert(file, tmp_path, overwrite=True)
    assert file.exists()
