"""Labels computed by blocks: one id for each object, as if the image were one block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dask
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, generate_binary_structure
from scipy.ndimage import label as components

import zarr_dask as zd
from tests.support.kill_roles import PATIENCE, start
from tests.support.leftovers import left_in
from tests.support.ome_levels import check_levels
from zarr_dask.errors import DataTypeError, GridError, MetadataError, NodeExistsError


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def blobs(*shape, width=2.0):
    noise = np.random.default_rng(3).standard_normal(shape)
    return (gaussian_filter(noise, width) * 1000 + 500).clip(0, 1000).astype("u2")


def bright(pixels):
    return components(pixels > 530)[0]


def same_objects(found, expected):
    """Check that labels differ in their ids only, which are 1, 2, ..."""
    pairs = np.unique(np.stack([found.ravel(), expected.ravel()], -1), axis=0)
    assert len(pairs) == len(np.unique(found)) == len(np.unique(expected))
    assert (0, 0) in set(map(tuple, pairs.tolist()))
    np.testing.assert_array_equal(np.unique(found), np.arange(len(pairs)))


@pytest.mark.parametrize(
    ("axes", "shape", "blocks"),
    [("yx", (90, 110), {"y": 32, "x": 40}), ("zyx", (13, 40, 45), {"z": 5, "y": 16})],
)
def test_components_of_an_image(tmp_path, axes, shape, blocks):
    values = blobs(*shape)
    zd.ome.write(values, tmp_path / "image", axes=axes, chunks=(16,) * len(axes), levels=2)
    plan = zd.ome.plan_write(values, {}, axes=axes, chunks=(16,) * len(axes), levels=2)
    zd.ome.label(tmp_path / "image", bright, "cells", blocks=blocks)
    cells = zd.ome.open(tmp_path / "image").labels["cells"]
    same_objects(cells.level(0)[...], bright(values))
    check_levels(tmp_path / "image/labels/cells", plan, cells.level(0)[...], "mode")
    assert zd.ome.validate(tmp_path / "image") == []
    assert left_in(tmp_path) == {"image"}


def killed(pixels):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("overlap", [1, 3, {"y": 2, "x": 5}])
@pytest.mark.parametrize(
    ("axes", "shape", "blocks", "neighbours"),
    [
        ("yx", (90, 100), {"y": 20, "x": 30}, 1),
        ("yx", (90, 100), {"y": 20, "x": 30}, 2),
        ("zyx", (10, 40, 40), {"z": 10, "y": 16, "x": 20}, 3),
    ],
)
def test_objects_that_wind_through_many_blocks(axes, shape, blocks, neighbours, overlap):
    """Each block joins other parts of an object, at none of which it has half of the neighbour."""
    values = (np.random.default_rng(3).random(shape) > 0.55).astype("u1")
    touching = generate_binary_structure(len(shape), neighbours)
    store = {}
    zd.ome.write(values, store, axes=axes, levels=1)
    zd.ome.label(
        store,
        lambda pixels: components(pixels, touching)[0],
        "cells",
        overlap=overlap,
        blocks=blocks,
    )
    found = zd.ome.open(store).labels["cells"].level(0)[...]
    same_objects(found, components(values, touching)[0])


@pytest.mark.parametrize("overlap", [0, {"x": 3}])
@pytest.mark.parametrize("connectivity", [1, 2, 3])
def test_objects_that_touch_at_corners_across_borders(connectivity, overlap):
    """As within a block, where the function decides it."""
    structure = generate_binary_structure(3, connectivity)
    values = (np.random.default_rng(5).random((9, 10, 11)) < 0.2).astype("u1")
    zd.ome.write(values, store := {}, axes="zyx", chunks=(9, 10, 11))
    zd.ome.label(
        store,
        lambda pixels: components(pixels, structure)[0],
        "cells",
        blocks={"z": 3, "y": 4, "x": 5},
        overlap=overlap,
        connectivity=connectivity,
    )
    found = zd.ome.open(store).labels["cells"].level(0)[...]
    same_objects(found, components(values, structure)[0])


@pytest.mark.parametrize("connectivity", [0, 3, True, 1.5, "full"])
def test_what_is_no_connectivity(connectivity):
    zd.ome.write(np.zeros((4, 4), "u1"), store := {}, axes="yx")
    with pytest.raises(MetadataError, match=r"connectivity: got .*expected a number from 1 to 2"):
        zd.ome.label(store, bright, connectivity=connectivity)


def test_what_a_killed_process_has_left_is_named_and_removed(tmp_path):
    url, other = tmp_path / "image", tmp_path / "other"
    values = blobs(40, 50)
    for place in (url, other):
        zd.ome.write(values, place, axes="yx", chunks=(16, 16), levels=2)
        client = start(zd.ome.label, str(place), killed)
        client.join(PATIENCE)
        assert client.exitcode == -signal.SIGKILL
    (left,) = tmp_path.glob("image.zarr-dask-labels-*")
    (finding,) = zd.verify(url).findings
    assert (finding.kind, finding.key) == ("temporary", left.name)
    assert "of a process that was killed" in finding.reason
    zd.ome.label(url, bright)
    assert zd.verify(other, sweep=True).ok
    assert left_in(tmp_path) == {"image", "other"}


def test_a_link_in_the_place_of_an_intermediate_array_is_not_followed(tmp_path):
    zd.ome.write(blobs(40, 50), tmp_path / "image", axes="yx", chunks=(16, 16), levels=2)
    name = "from zarr_dask.stores.key_names import token_of_process as name; print(name())"
    token = subprocess.check_output([sys.executable, "-c", name], text=True).strip()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").touch()
    (tmp_path / f"image.zarr-dask-labels-{token}").symlink_to(tmp_path / "victim")
    zd.ome.label(tmp_path / "image", bright)
    (finding,) = zd.verify(tmp_path / "image", sweep=True).findings
    assert finding.key == f"image.zarr-dask-labels-{token}"
    assert (tmp_path / "victim/file").exists()


def test_ids_do_not_depend_on_the_scheduler():
    values = blobs(60, 70)
    found = []
    for scheduler in ("sync", "threads"):
        store = {}
        zd.ome.write(values, store, axes="yx", chunks=(16, 16))
        with dask.config.set(scheduler=scheduler):
            zd.ome.label(store, bright, overlap=3, blocks={"y": 16, "x": 16})
        found.append(zd.ome.open(store).labels["labels"].level(0)[...])
    np.testing.assert_array_equal(*found)


def discs(pixels):
    """Labels of bright discs, each around its own centre, so that neighbours stay apart."""
    y, x = np.nonzero(pixels == 9)
    labels = np.zeros(pixels.shape, "i4")
    rows, columns = np.indices(pixels.shape)
    for number, centre in enumerate(zip(y, x, strict=True), 1):
        labels[np.hypot(rows - centre[0], columns - centre[1]) <= 4.6] = number
    return labels


@pytest.mark.parametrize("overlap", [10, {"y": 10, "x": 12}])
def test_neighbours_that_touch_stay_apart(overlap):
    """Each object is seen whole from both sides of a border, and has one id."""
    pixels = np.zeros((64, 96), "u1")
    pixels[5::10, 5::10] = 9
    store = {}
    zd.ome.write(pixels, store, axes="yx", chunks=(16, 16))
    zd.ome.label(store, discs, overlap=overlap, blocks={"y": 16, "x": 32})
    same_objects(zd.ome.open(store).labels["labels"].level(0)[...], discs(pixels))


def test_time_points_and_channels():
    """Each time point has objects of its own; a channel is chosen by its label or number."""
    values = np.stack([np.stack([blobs(40, 50) * 0, blobs(40, 50)])] * 2)
    store = {}
    names = [{"label": "dark"}, {"label": "nuclei"}]
    zd.ome.write(values, store, axes="tcyx", chunks=(1, 1, 16, 16), channels=names)
    expected = np.stack([bright(values[0, 1])] * 2).astype("u4")
    expected[1][expected[1] > 0] += expected[0].max()
    chosen = {"nuclei": "nuclei", "number": 1}
    for name, channel in chosen.items():
        zd.ome.label(store, bright, name, channel=channel, blocks={"y": 16, "x": 16})
    zd.ome.label(store, lambda x: bright(x[1]), "all", blocks={"y": 16, "x": 16})
    labels = zd.ome.open(store).labels
    for name in (*chosen, "all"):
        assert labels[name].axes == ("t", "y", "x")
        same_objects(labels[name].level(0)[...], expected)


def test_nothing_to_label():
    store = {}
    zd.ome.write(np.zeros((30, 30), "u2"), store, axes="yx", chunks=(16, 16))
    zd.ome.label(store, bright)
    assert not zd.ome.open(store).labels["labels"].level(0)[...].any()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"overlap": 20}, GridError, "more than a block of 16"),
        ({"overlap": {"t": 1}}, MetadataError, "axes of space"),
        ({"channel": 0}, MetadataError, "channel"),
        ({"blocks": {"y": 0}}, MetadataError, "integers from 1"),
        ({"method": "mean"}, ValueError, "another label"),
        ({"name": "a/b"}, MetadataError, "without"),
        ({"name": "there"}, NodeExistsError, "there"),
        ({"function": lambda x: x * 1.0}, DataTypeError, "integers"),
        ({"function": lambda x: x.astype("i4") - 5}, DataTypeError, "0 is the least"),
        ({"function": lambda x: x[:3]}, GridError, "expected"),
    ],
)
def test_refused_with_nothing_left(tmp_path, options, error, says):
    zd.ome.write(blobs(40, 40), tmp_path / "image", axes="yx", chunks=(16, 16))
    zd.ome.write_labels(tmp_path / "image", np.ones((40, 40), "u1"), "there")
    function = options.pop("function", bright)
    blocks = {"y": 16, "x": 16} | options.pop("blocks", {})
    with pytest.raises(error, match=says):
        zd.ome.label(tmp_path / "image", function, **{"blocks": blocks, "name": "n"} | options)
    assert left_in(tmp_path) == {"image"}
    assert list(zd.ome.open(tmp_path / "image").labels) == ["there"]
    assert left_in(tmp_path / "image/labels") == {"there", "zarr.json"}
