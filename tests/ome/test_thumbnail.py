"""Small pictures of images, against NumPy and Pillow; images and plates in notebooks."""

from __future__ import annotations

import io
import re
import sys
from base64 import b64decode

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

import zarr_dask as zd
from zarr_dask.cli import main
from zarr_dask.errors import DataTypeError, GridError, MissingDependencyError
from zarr_dask.ome.plate_picture import mosaic_picture
from zarr_dask.ome.png import png
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.wrappers.base import Recording


def window(start, end):
    return {"min": 0, "max": 65535, "start": start, "end": end}


def image(values, axes, *, levels=1, omero=None, store=None, scale=None, chunks=None, **more):
    """An image in memory; each level takes every second element along y and x."""
    kinds = {"t": "time", "c": "channel"}
    listed = [{"name": name, "type": kinds.get(name, "space")} for name in axes]
    datasets = []
    for i in range(levels):
        sizes = [s * (2**i if n in "yx" else 1) for n, s in zip(axes, scale or [1.0] * 9)]  # noqa: B905
        steps = [{"type": "scale", "scale": sizes}]
        datasets.append({"path": str(i), "coordinateTransformations": steps})
    ome = {"version": "0.5", "multiscales": [{"axes": listed, "datasets": datasets}], **more}
    if omero is not None:
        ome["omero"] = omero
    group = zd.create_group(MemoryStore() if store is None else store, attributes={"ome": ome})
    for i in range(levels):
        step = tuple(slice(None, None, 2**i if name in "yx" else 1) for name in axes)
        level = values[step]
        array = group.create_array(
            str(i),
            shape=level.shape,
            dtype=level.dtype,
            chunks=chunks or tuple(max(n, 1) for n in level.shape),
            dimension_names=list(axes),
        )
        array[...] = level
    return zd.ome.open(group)


def random(*shape, dtype="u2", high=1000):
    return np.random.default_rng(7).integers(0, high, shape).astype(dtype)


def block_means(plane, height, width):
    """Means of blocks of one size, the plain way."""
    h, w = plane.shape[0] // height, plane.shape[1] // width
    return plane.reshape(height, h, width, w).mean((1, 3))


# --- PNG ------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_pillow_reads_our_png(height, width, chance):
    pixels = np.frombuffer(chance.randbytes(height * width * 3), "u1").reshape(height, width, 3)
    with Pillow.open(io.BytesIO(png(pixels))) as read:
        assert (read.format, read.mode) == ("PNG", "RGB")
        np.testing.assert_array_equal(np.asarray(read), pixels)


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 2), "u1"), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), "u1")]
)
def test_what_is_no_picture(wrong):
    with pytest.raises(ValueError, match="expected uint8"):
        png(wrong)


def test_pictures_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"zarr-dask\[ome\]"):
        png(np.zeros((2, 2, 3), "u1"))


# --- what is shown --------------------------------------------------------------------------------


def test_channels_in_their_colours():
    values = random(2, 4, 3, 64, 32)  # t, c, z, y, x
    omero = {
        "channels": [
            {"color": "FF0000", "window": window(0, 500), "active": True},
            {"color": "00FF00", "window": window(100, 900), "inverted": True},
            {"color": "0000FF", "window": window(0, 10), "active": False},
            {"color": "FFFFFF", "window": window(900, 1000), "active": True},
        ],
        "rdefs": {"defaultT": 1, "model": "color"},
    }
    expected = np.zeros((32, 16, 3))
    for channel, colour, low, high, inverted in (
        (0, (1, 0, 0), 0, 500, False),
        (1, (0, 1, 0), 100, 900, True),
        (3, (1, 1, 1), 900, 1000, False),
    ):
        plane = block_means(values[1, channel].max(0).astype("f8"), 32, 16)
        share = np.clip((plane - low) / (high - low), 0, 1)
        expected += (1 - share if inverted else share)[..., None] * np.array(colour)
    found = zd.ome.thumbnail(image(values, "tczyx", omero=omero), size=32)
    np.testing.assert_array_equal(found, np.rint(np.clip(expected, 0, 1) * 255))
    omero["rdefs"]["model"] = "greyscale"
    grey = zd.ome.thumbnail(image(values, "tczyx", omero=omero), size=32)
    first = np.clip(block_means(values[1, 0].max(0).astype("f8"), 32, 16) / 500, 0, 1)
    np.testing.assert_array_equal(grey, np.rint(first * 255)[..., None].repeat(3, 2))


def test_without_display_settings_each_channel_is_stretched():
    values = random(64, 64)
    found = zd.ome.thumbnail(image(values, "yx"), size=64)
    low, high = np.percentile(values, [1, 99])
    expected = np.rint(np.clip((values - low) / (high - low), 0, 1) * 255)
    np.testing.assert_array_equal(found, expected[..., None].repeat(3, 2))
    red, green, blue = (np.zeros((64, 64, 3), "u1") for _ in range(3))
    for n, one in enumerate((red, green, blue)):
        one[..., n] = found[..., 0]
    three = image(np.stack([values] * 3), "cyx")
    np.testing.assert_array_equal(zd.ome.thumbnail(three, size=64), red + green + blue)


@pytest.mark.parametrize(("low", "high", "chosen"), [(0, 65535, False), (0, 65534, True)])
def test_a_window_of_all_integers_is_none(low, high, chosen):
    values = random(64, 64).astype("u2")
    omero = {"channels": [{"color": "FFFFFF", "window": window(low, high)}]}
    found = zd.ome.thumbnail(image(values, "yx", omero=omero), size=64)
    plain = zd.ome.thumbnail(image(values, "yx"), size=64)
    assert np.array_equal(found, plain) is not chosen
    written = {}
    zd.ome.write(values, written, axes="yx", channels=["nuclei"])
    assert np.array_equal(zd.ome.thumbnail(written, size=64), plain)


def test_axes_in_another_order():
    values = random(2, 8, 16, 5)  # c, x, y, z: as in the example of RFC-2
    omero = {"channels": [{"color": "FFFFFF", "window": window(0, 1000)}]}
    found = zd.ome.thumbnail(image(values, "cxyz", omero=omero), size=16)
    expected = np.rint(values[0].max(-1).T / 1000 * 255)
    np.testing.assert_array_equal(found[..., 0], expected)


@pytest.mark.parametrize("dtype", ["bool", "i1", ">u4", "f2", ">f8", "c8", "bfloat16", "u8"])
def test_any_numbers(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    values = random(16, 16, dtype="i1", high=100)
    group = image(values, "yx").group
    made = zd.create_array({}, shape=(16, 16), dtype=dtype)
    made[...] = values.astype(made.dtype)
    again = image(made[...], "yx")
    found = zd.ome.thumbnail(again, size=16)
    if dtype != "bool":
        np.testing.assert_array_equal(found, zd.ome.thumbnail(group, size=16))
    assert found.max() == 255


def test_what_is_no_number_counts_least():
    values = np.ones((2, 8, 8), "f4")
    values[0, :4] = np.nan
    values[:, 0] = np.nan
    values[1, 1] = 2
    values[1, 2] = np.inf
    omero = {"channels": [{"color": "FFFFFF", "window": window(0, 2)}]}
    found = zd.ome.thumbnail(image(values, "zyx", omero=omero), size=8)[..., 0]
    assert found[:4, 0].tolist() == [0, 255, 0, 128]


def test_labels_in_their_colours():
    values = np.zeros((16, 16), "i4")
    values[:8], values[8:, 8:] = 3, 70000
    colors = [{"label-value": 3, "rgba": [255, 128, 0, 128]}, {"label-value": 5}]
    found = zd.ome.thumbnail(image(values, "yx", **{"image-label": {"colors": colors}}), size=8)
    assert found[0, 0].tolist() == [128, 64, 0]
    assert found[7, 0].tolist() == [0, 0, 0]
    assert found[7, 7].any()
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 3  # never a mean of labels


@pytest.mark.parametrize(
    ("shape", "scale", "expected"),
    [
        ((100, 50), (1, 1), (64, 32)),
        ((50, 100), (2, 1), (64, 64)),
        ((100, 50), (1e-9, 1), (64, 32)),  # nobody has such pixels
        ((10, 5), (1, 1), (10, 5)),
        ((1, 3000), (1, 1), (1, 64)),
        ((0, 7), (1, 1), (1, 1)),
    ],
)
def test_the_proportions_are_those_of_the_image(shape, scale, expected):
    found = zd.ome.thumbnail(image(np.zeros(shape, "u1"), "yx", scale=list(scale)), size=64)
    assert found.shape == (*expected, 3)
    assert not found.any()


# --- what is read ---------------------------------------------------------------------------------


def requested(store):
    return {one.key for one in store.requests if not one.key.endswith(".json")}


def test_the_smallest_level_that_is_large_enough():
    for size, level in ((64, "1"), (65, "0"), (1000, "0"), (32, "2"), (8, "2")):
        store = Recording(MemoryStore())
        opened = image(random(128, 96), "yx", levels=3, store=store)
        store.requests.clear()
        zd.ome.thumbnail(opened, size=size)
        assert {key.partition("/")[0] for key in requested(store)} == {level}


@pytest.mark.parametrize(("axes", "shape"), [("yx", (640, 640)), ("zyx", (100, 64, 64))])
def test_work_is_bounded_without_a_pyramid(axes, shape):
    store = Recording(MemoryStore())
    chunk = (16,) * 2 if len(shape) == 2 else (1, 16, 16)
    values = random(*shape)
    opened = image(values, axes, store=store, chunks=chunk)
    store.requests.clear()
    found = zd.ome.thumbnail(opened, size=64, max_bytes=40 << 16)  # a chunk counts as 64 KiB
    assert found.shape == (64, 64, 3)
    assert found.any()
    keys = requested(store)
    assert 20 < len(keys) <= 40
    # at equal distances, so that all of the image is seen
    rows = sorted({int(key.split("/")[2]) for key in keys})
    assert rows[0] <= shape[0] // chunk[0] * 0.25
    assert rows[-1] >= shape[0] // chunk[0] * 0.75


def test_a_sampled_picture_looks_like_the_image():
    y, x = np.mgrid[:1024, :1024]
    values = (x + y).astype("u2")
    omero = {"channels": [{"color": "FFFFFF", "window": window(0, 2048)}]}
    opened = image(values, "yx", chunks=(32, 32), omero=omero)
    whole = zd.ome.thumbnail(opened, size=64).astype(int)
    some = zd.ome.thumbnail(opened, size=64, max_bytes=48 << 16).astype(int)
    assert abs(whole - some).max() <= 20  # a chunk is 8 of 255


def test_a_stored_object_that_can_only_be_decoded_whole():
    store = Recording(MemoryStore())
    values = random(64, 64)
    group = image(values, "yx", store=store).group
    zd.delete(store, "0")
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    array = zd.create_array(
        store,
        "0",
        shape=(64, 64),
        dtype="u2",
        chunks=(8, 8),
        codecs=codecs,
        dimension_names=["y", "x"],
    )
    array[...] = values
    assert zd.ome.thumbnail(zd.ome.open(group), size=8, max_bytes=1).shape == (8, 8, 3)


# --- hostile metadata -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "omero",
    [
        {"channels": []},
        {"channels": [{"color": "red", "window": window(5, 5)}]},
        {"channels": [{"color": "#00ff00ff", "window": window(10**400, -(10**400))}]},
        {"channels": [{"active": False}], "rdefs": {"defaultT": 10**9, "model": 7}},
        {"channels": [{"color": "FF0000"}] * 1000},
        {"channels": [{}], "rdefs": "x"},
    ],
)
def test_display_settings_that_nobody_can_follow(omero):
    found = zd.ome.thumbnail(image(random(2, 1, 16, 16), "tcyx", omero=omero), size=16)
    assert found.shape == (16, 16, 3)


def test_what_has_no_picture():
    one = image(np.zeros((4, 4), "M8[s]"), "yx")
    with pytest.raises(DataTypeError, match="made of numbers"):
        zd.ome.thumbnail(one)
    with pytest.raises(GridError, match="two sides"):
        zd.ome.thumbnail(image(np.zeros(4, "u1"), "x"))
    for size in (0, 5000):
        with pytest.raises(ValueError, match="from 1 to 4096"):
            zd.ome.thumbnail(one, size=size)


# --- notebooks ------------------------------------------------------------------------------------


def test_an_image_in_a_notebook():
    omero = {"channels": [{"color": "FFFFFF", "label": "<script>", "window": window(0, 1000)}]}
    opened = image(random(1, 64, 32), "cyx", omero=omero, levels=2)
    html = opened._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "level 1" in html
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    with Pillow.open(io.BytesIO(b64decode(data))) as read:
        np.testing.assert_array_equal(np.asarray(read), zd.ome.thumbnail(opened, size=192))
    store = MemoryStore()
    broken = image(random(64, 32), "yx", store=store)
    store.set("0/c/0/0", [b"broken"])
    assert "no picture: " in broken._repr_html_()


def test_a_plate_in_a_notebook():
    lines = {"rows": [{"name": "A"}, {"name": "<b>"}], "columns": [{"name": "1"}]}
    wells = [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}]
    plate = {**lines, "wells": wells, "name": "p", "field_count": 2}
    attributes = {"ome": {"version": "0.5", "plate": plate}}
    html = zd.ome.open_plate(zd.create_group({}, attributes=attributes))._repr_html_()
    assert html.count("●") == 1
    assert "&lt;b&gt;" in html
    assert "1 in 2 rows and 1 columns" in html
    assert "no picture: none of 1 wells has an image" in html


def lit(well):
    """An image with the same values in all wells but for one pixel."""
    values = np.zeros((2, 40, 60), "u2")
    values[:, :, :30] = 100 + 10 * well
    return values


def test_a_picture_of_a_plate(tmp_path):
    window = {"start": 0, "end": 255}
    channels = [
        {"label": "a", "color": "FF0000", "window": window},
        {"label": "b", "active": False},
    ]
    wells = {"B/2": lit(0), "B/4": [lit(1), lit(9)], "D/3": lit(2)}
    rows, columns = list("ABCDE"), list("12345")
    zd.ome.write_plate(
        wells, tmp_path / "p", axes="cyx", channels=channels, rows=rows, columns=columns, levels=2
    )
    plate = zd.ome.open_plate(tmp_path / "p")
    found = zd.ome.thumbnail(plate, size=96)
    # three rows and columns with tiles of 21 x 31 pixels, and a line between them
    assert found.shape == (3 * 22 - 1, 3 * 32 - 1, 3)
    assert [found[at] for at in ((10, 5, 0), (10, 69, 0), (54, 37, 0))] == [100, 110, 120]
    assert found[10, 25, 0] == 0
    assert set(found[10, 32:63].ravel()) == {32}  # no well
    html = plate._repr_html_()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    with Pillow.open(io.BytesIO(b64decode(data))) as read:
        np.testing.assert_array_equal(np.asarray(read), zd.ome.thumbnail(plate, size=384))
    zd.delete(tmp_path / "p", "B/4/0")  # the others are shown
    assert zd.ome.thumbnail(tmp_path / "p", size=96).any()


def test_a_picture_of_a_large_plate_shows_some_wells():
    seen = []

    def tile(path, side, budget):
        seen.append(path)
        return np.full((side, side, 3), 200, "u1")

    wells = {f"{row}/{column}": (row, column) for row in range(32) for column in range(48)}
    found = mosaic_picture(wells, tile, size=384, max_bytes=1 << 20)
    assert max(found.shape) <= 384
    assert 48 <= len(seen) <= 96
    assert max(mosaic_picture(wells, tile, size=3, max_bytes=1 << 20).shape[:2]) <= 3
    far = {"a": (0, 0), "b": (10**12, -(10**12))}
    assert mosaic_picture(far, tile, size=64, max_bytes=1).shape == (64 - 1, 64 - 1, 3)


# --- the command line -----------------------------------------------------------------------------


def run(*words, code=0):
    result = CliRunner().invoke(main, ["ome", "thumbnail", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command(tmp_path):
    opened = image(random(64, 32), "yx", store=str(tmp_path / "a.zarr"))
    assert run(tmp_path / "a.zarr", tmp_path / "a.png", "--size", "32").endswith("16 x 32 pixels\n")
    with Pillow.open(tmp_path / "a.png") as read:
        np.testing.assert_array_equal(np.asarray(read), zd.ome.thumbnail(opened, size=32))
    run(tmp_path / "a.zarr", tmp_path / "nothing" / "a.png", code=3)
    plate = {"rows": [], "columns": [], "wells": []}
    zd.create_group(tmp_path / "p.zarr", attributes={"ome": {"version": "0.5", "plate": plate}})
    said = run(tmp_path / "p.zarr", tmp_path / "p.png", code=3)
    assert "none of 0 wells has an image" in " ".join(said.split())
    zd.ome.write_plate({"A/1": random(32, 32)}, tmp_path / "q.zarr", axes="yx")
    assert run(tmp_path / "q.zarr", tmp_path / "q.png").endswith("32 x 32 pixels\n")


def placed(path, **options):
    """A plate whose second well has four overlapping fields of one picture, each at its place."""
    whole = random(60, 80, high=900)
    places = [(y, x) for y in (0, 28) for x in (0, 38)]
    fields = [whole[y : y + 32, x : x + 42] for y, x in places]
    at = {f"B/2/{i}": {"y": y * 0.5, "x": x * 0.5} for i, (y, x) in enumerate(places)}
    wells = {"A/1": whole[:32, :42], "B/2": fields}
    zd.ome.write_plate(wells, path, axes="yx", scale=(0.5, 0.5), positions=at, **options)
    return whole


def test_fields_are_drawn_at_their_positions(tmp_path):
    settings = {"window": window(0, 900), "color": "FFFFFF"}
    whole = placed(tmp_path / "p", channels=[settings], levels=2)
    one = image(whole, "yx", omero={"channels": [{**settings, "active": True}]})
    expected = zd.ome.thumbnail(one, size=80)
    found = zd.ome.thumbnail(tmp_path / "p", "B/2", size=80)
    np.testing.assert_array_equal(found, expected)
    assert zd.ome.thumbnail(tmp_path / "p", "B/2", size=4000).shape == (60, 80, 3)
    sheet = zd.ome.thumbnail(tmp_path / "p", size=162)
    np.testing.assert_array_equal(sheet[-60:, -80:], expected)
    np.testing.assert_array_equal(sheet[:32, :42], expected[:32, :42])


def test_fields_without_windows_are_stretched_together(tmp_path):
    whole = placed(tmp_path / "p")
    found = zd.ome.thumbnail(tmp_path / "p", "B/2", size=80)
    np.testing.assert_array_equal(found, zd.ome.thumbnail(image(whole, "yx"), size=80))


@pytest.mark.parametrize(
    "moved", [{"x": 0.0}, {"x": 1e300, "y": -1e300}, {"y": 1e299}, {"x": 5e-324}]
)
def test_positions_that_say_nothing(tmp_path, moved):
    """All fields at one place are several runs; a picture never takes more than its size."""
    zd.ome.write_plate(
        {"A/1": [random(20, 30), 0 * random(20, 30)]},
        tmp_path,
        axes="yx",
        positions={"A/1/1": moved},
    )
    assert max(zd.ome.thumbnail(tmp_path, size=64).shape) <= 64


def test_info_says_where_fields_lie(tmp_path):
    placed(tmp_path / "p", units="micrometer")
    found = CliRunner().invoke(main, ["ome", "info", f"{tmp_path}/p", "B/2"])
    assert "1: (32, 42) at y 0 micrometer, x 19 micrometer" in found.output
    found = CliRunner().invoke(main, ["ome", "info", f"{tmp_path}/p"])
    assert "A/1/0: (32, 42) at y 0 micrometer, x 0 micrometer" in found.output
