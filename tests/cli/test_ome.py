"""``zarr-dask ome convert`` and ``zarr-dask ome pyramid``, run as users do."""

from __future__ import annotations

import click
import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.ome_images import pixels, put_image
from zarr_dask.cli import main


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")


def run(*words, code=0):
    result = CliRunner().invoke(main, ["ome", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


COMMANDS = ["convert", "info", "pyramid", "thumbnail", "validate", "view"]


def test_every_command_has_a_short_help():
    group = main.get_command(click.Context(main), "ome")
    assert sorted(group.commands) == COMMANDS
    context = click.Context(group)
    for command in group.commands.values():
        assert not command.get_short_help_str(limit=60).endswith("..."), command.name
        assert command.get_help(context)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, run(command, "--help").splitlines())) <= 80


def test_a_thumbnail_is_png_by_its_name(tmp_path):
    put_image(tmp_path / "a", "", "0.4", pixels(4, 8, 8))
    assert "must end in .png" in run("thumbnail", tmp_path / "a", tmp_path / "a.jpg", code=2)
    assert "8 x 8 pixels" in run("thumbnail", tmp_path / "a", tmp_path / "a.PNG")


# --- convert --------------------------------------------------------------------------------------


def test_to_another_version(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    levels = put_image(old, "", "0.4", pixels(4, 8, 8))
    assert "(OME-Zarr 0.4 to 0.5)" in run("convert", old, "--dry-run")
    assert not list(old.rglob("zarr.json"))
    options = ("--chunks", "z=1,y=4", "--shards", "z=4,y=8", "--max-mem", "64MB")
    said = run("convert", old, new, *options)
    assert "s0: (4, 8, 8) uint16, chunks (4, 8, 8) -> (1, 4, 8) in shards (4, 8, 8)" in said
    assert "written anew: 3 arrays" in said
    image = zd.ome.open(new)
    assert (image.metadata.version, image.levels[0].array.shards) == ("0.5", (4, 8, 8))
    for level, values in zip(image.levels, levels, strict=True):
        np.testing.assert_array_equal(level.array[...], values)
    back = tmp_path / "back"
    assert "s0: shards: got 'sharding_indexed'" in run(
        "convert", new, back, "--to", "0.4", "--dry-run", code=3
    )
    assert "cannot be migrated" in run("convert", new, back, "--to", "0.4", code=3)
    assert run("convert", new, back, "--to", "0.4", "--chunks", "4", "--quiet") == ""
    assert zd.ome.open(back).metadata.version == "0.4"
    assert "pass DST" in run("convert", new, "--to", "0.4", code=2)
    run("convert", old, "--remove-old")
    assert zd.ome.open(old).metadata.version == "0.5"
    assert list(old.rglob(".z*")) == []


def test_codecs_on_the_way(tmp_path):
    levels = put_image(tmp_path / "old", "", "0.4", pixels(4, 8, 8))
    bloated = '[{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}]'
    cases = {"gzip": ["gzip"], "gzip,crc32c": ["gzip", "crc32c"], bloated: ["crc32c"]}
    for codecs, expected in cases.items():
        new = tmp_path / f"new-{len(codecs)}.zip"
        run("convert", tmp_path / "old", new, "--codecs", codecs, "--quiet")
        image = zd.ome.open(new)
        for level, values in zip(image.levels, levels, strict=True):
            np.testing.assert_array_equal(level.array[...], values)
            assert [codec.name for codec in level.array.meta.codecs.bytes] == expected
    words = ["convert", tmp_path / "old", tmp_path / "new"]
    assert "is not JSON" in run(*words, "--codecs", "[{", code=2)
    assert "exclude each other" in run(
        *words, "--chunks", "4", "--scheduler", "tcp://127.0.0.1:1", "--workers", "1", code=2
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_pixels_are_written_anew_by_workers(tmp_path):
    levels = put_image(tmp_path / "old", "", "0.4", pixels(4, 8, 8))
    words = ["convert", tmp_path / "old", tmp_path / "new", "--chunks", "4", "--workers", "2"]
    assert "written anew: 3 arrays" in run(*words)
    np.testing.assert_array_equal(zd.ome.open(tmp_path / "new").levels[1].array[...], levels[1])


# --- pyramid --------------------------------------------------------------------------------------


def halved(values):
    """Means of 2 x 2 pixels, rounded half to even; lengths must be even."""
    *rest, height, width = values.shape
    blocks = values.reshape(*rest, height // 2, 2, width // 2, 2).astype("f8")
    return np.rint(blocks.mean((-3, -1))).astype(values.dtype)


def test_an_array_becomes_an_image(tmp_path):
    values = pixels(2, 64, 48)
    array = zd.create_array(tmp_path / "a.zarr", shape=values.shape, dtype="u2", chunks=(1, 32, 32))
    array[...] = values
    words = ["pyramid", tmp_path / "a.zarr", tmp_path / "i.zarr", "--axes", "zyx"]
    words += ["--scale", "z=2,y=0.5,x=0.5", "--units", "y=micrometer,x=micrometer"]
    words += ["--translation", "0,1,2", "--name", "mine", "--levels", "3", "--factors", "1,2,2"]
    words += ["--chunks", "z=1,y=16,x=16", "--shards", "z=1,y=32,x=32", "--max-mem", "200MB"]
    said = run(*words, "--dry-run")
    assert "2: (2, 16, 12) uint16" in said
    assert not (tmp_path / "i.zarr").exists()
    assert "done: " in run(*words)
    image = zd.ome.open(tmp_path / "i.zarr")
    expected = [values, halved(values), halved(halved(values))]
    for level, wanted in zip(image.levels, expected, strict=True):
        np.testing.assert_array_equal(level.array[...], wanted)
    assert (image.levels[0].array.chunks, image.levels[0].array.shards) == (
        (1, 16, 16),
        (1, 32, 32),
    )
    assert image.levels[0].scale == (2.0, 0.5, 0.5)
    assert image.levels[0].translation == (0.0, 1.0, 2.0)
    assert image.levels[0].units == (None, "micrometer", "micrometer")
    assert image.multiscale.name == "mine"
    assert "exists" in run(*words, code=3)
    assert run(*words, "--overwrite", "--quiet") == ""
    archive = tmp_path / "i.zip"
    words[2] = archive
    run(*words, "--dry-run", "--overwrite")
    assert not archive.exists()
    run(*words, "--codecs", "gzip")
    before = archive.read_bytes()
    run(*words, "--dry-run", "--overwrite")
    assert archive.read_bytes() == before
    run("pyramid", archive)
    np.testing.assert_array_equal(zd.ome.open(archive).levels[2].array[...], expected[2])
    assert len(zd.ome.open(archive).levels) == 4


def test_an_image_gets_levels_with_labels_and_colours(tmp_path):
    x = pixels(2, 40, 30)
    channels = ["DAPI", {"label": "GFP", "color": "00FF00", "window": {"start": 3, "end": 9}}]
    cells = zd.ome.LabelImage(
        pixels(40, 30, dtype="i4"), colors={1: "FF0000"}, properties={1: {"a": 2}}
    )
    old = tmp_path / "old"
    zd.ome.write(x, old, axes="cyx", channels=channels, levels=1, labels={"cells": cells})
    run("pyramid", old, tmp_path / "new", "--to", "0.4", "--levels", "2", "--factors", "2")
    first, last = zd.ome.open(old), zd.ome.open(tmp_path / "new")
    assert last.metadata.version == "0.4"
    assert [level.shape for level in last.levels] == [(2, 40, 30), (2, 20, 15)]
    np.testing.assert_array_equal(last.levels[0].array[...], x)
    assert last.metadata.omero.channels == first.metadata.omero.channels
    labels = last.labels["cells"]
    np.testing.assert_array_equal(labels.levels[0].array[...], cells.values)
    assert set(np.unique(labels.levels[1].array[...])) <= set(cells.values.ravel())
    meaning = labels.metadata.image_label
    assert meaning.colors == first.labels["cells"].metadata.image_label.colors
    assert meaning.properties[0].extra == {"a": 2}
    assert zd.ome.validate(tmp_path / "new") == []


def test_a_level_is_added_where_no_place_is_given(tmp_path):
    values = pixels(2, 64, 48)
    labels = {"cells": zd.ome.LabelImage(pixels(64, 48, dtype="i4"), "yx")}
    zd.ome.write(values, tmp_path / "i", axes="zyx", levels=1, labels=labels)
    words = ["pyramid", tmp_path / "i", "--factors", "1,2,2"]
    assert "in 2 stored objects" in run(*words, "--dry-run")
    run(*words)
    image = zd.ome.open(tmp_path / "i")
    np.testing.assert_array_equal(image.levels[1].array[...], halved(values))
    assert len(image.labels["cells"].levels) == 2
    assert "--chunks, --version needs a DST" in run(
        "pyramid", tmp_path / "i", "--chunks", "4", "--to", "0.4", code=2
    )


def test_options_of_pyramid_that_do_not_fit(tmp_path):
    zd.create_array(tmp_path / "a", shape=(8, 8), dtype="u1")
    zd.create_group(tmp_path / "g").create_array("inner", shape=(8, 8), dtype="u1")
    place = tmp_path / "i"
    for words, says, code in (
        (["--scale", "y=1,2"], "mixes values", 2),
        (["--scale", "y=a"], "could not convert", 2),
        (["--levels", "0"], "at least 1", 2),
        (["--factors", "0"], "is not a length", 2),
        (["--scheduler", "tcp://127.0.0.1:1", "--workers", "1"], "exclude each other", 2),
        (["--axes", "zyx"], "2 axes, as the image has", 3),
    ):
        assert says in run("pyramid", tmp_path / "a", place, *words, code=code)
    assert "Arrays in it: inner" in run("pyramid", tmp_path / "g", place, code=3)
    assert not place.exists()


def test_info_of_storage_and_channels(tmp_path):
    url = tmp_path / "image"
    values = np.zeros((2, 40, 50), "u2")
    options = {"axes": "cyx", "chunks": (1, 8, 10), "shards": (1, 16, 20), "levels": 2}
    zd.ome.write(values, url, channels=[{"label": "DAPI", "color": "#0000FF"}, "GFP"], **options)
    found = run("info", url)
    assert "chunks of (1, 8, 10) in shards of (1, 16, 20)" in found
    assert "DAPI 0000FF, GFP" in found
    assert "8.00 kB decoded" in found
    shifted = {"translation": {"y": 2.5}, "units": {"y": "micrometer"}, "overwrite": True}
    zd.ome.write(values, url, **options, **shifted)
    assert "c 0, y 2.5 micrometer, x 0\n" in run("info", url)


def test_info_names_levels_by_their_paths(tmp_path):
    """As ngff-zarr lays them out: the last part of the paths is alike."""
    group = zd.create_group(tmp_path / "plate", attributes={})
    group.create_group("image")
    datasets = []
    for number, length in enumerate((8, 4)):
        path = f"scale{number}/image"
        zd.create_array(
            tmp_path / "plate", f"image/{path}", shape=(length, length), dtype="u1",
            dimension_names=("y", "x"), chunks=(4, 4),
        )  # fmt: skip
        steps = [{"type": "scale", "scale": [2**number] * 2}]
        datasets.append({"path": path, "coordinateTransformations": steps})
    axes = [{"name": name, "type": "space"} for name in "yx"]
    ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    zd.open_group(tmp_path / "plate", "image", mode="r+").update_attributes({"ome": ome})
    found = run("info", tmp_path / "plate", "image")
    assert " scale1/image: (4, 4), pixels of 2, 2" in found
    assert " scale0/image: chunks of (4, 4), " in found


def test_info_and_picture_of_a_group_of_images(tmp_path):
    """As bioformats2raw writes them: they are listed, and the first one is drawn."""
    attributes = {"ome": {"version": "0.5", "bioformats2raw.layout": 3}}
    zd.create_group(tmp_path / "raw", attributes=attributes)
    for number, size in enumerate((30, 40)):
        values = np.full((size, 20), number, "u1")
        zd.ome.write(values, tmp_path / "raw", str(number), axes="yx")
    found = run("info", tmp_path / "raw")
    assert "group of images" in found
    assert "(30, 20)" in found
    assert "(40, 20)" in found
    assert zd.ome.thumbnail(tmp_path / "raw").shape == (30, 20, 3)
