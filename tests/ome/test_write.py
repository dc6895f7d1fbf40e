"""Images of OME-Zarr as they are written: every pixel of every level, and the metadata."""

from __future__ import annotations

import json
import zipfile
from itertools import product

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import zarr_dask as zd
from tests.support.ome_levels import ORACLES, blurred, check_levels, pixels, pyramid
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MemoryBudgetError,
    MetadataError,
    NodeExistsError,
    OmeMetadataWarning,
    OmeVersionError,
    SourceIsTargetError,
    ZarrDaskWarning,
)
from zarr_dask.ome import LabelImage, Method
from zarr_dask.ome.downsample import METHODS, downsample, gaussian_weights
from zarr_dask.stores import LocalStore, MemoryStore
from zarr_dask.stores.wrappers.base import Recording

INTEGERS = ["?", "u1", "i1", ">u2", "i2", "u4", ">i4", "i8", "u8"]
FLOATS = ["f2", ">f4", "f8"]

# --- coarser pixels, one by one -------------------------------------------------------------------


def made(values, factors, method):
    out = np.empty([-(-n // f) for n, f in zip(values.shape, factors, strict=True)], values.dtype)
    downsample(values, factors, METHODS[method], out)
    return out


@st.composite
def integer_pixels(draw):
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=2, max_size=4)))
    few = draw(st.booleans()) and dtype.kind != "b"  # else no value is met twice
    elements = st.integers(0, 3) if few else npst.from_dtype(dtype)
    values = draw(npst.arrays(dtype, shape, elements=elements))
    factors = tuple(draw(st.integers(1, 4)) for _ in shape)
    return values, factors


@pytest.mark.parametrize("method", ORACLES)
@settings(max_examples=60, deadline=None)
@given(pixels=integer_pixels())
def test_coarse_integers(method, pixels):
    values, factors = pixels
    found = made(values, factors, method)
    np.testing.assert_array_equal(found, ORACLES[method](values, factors))


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_coarse_floats(dtype, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=3)))
    width = np.dtype(dtype).itemsize * 8
    elements = st.floats(-1000, 1000, width=width)
    values = data.draw(npst.arrays(dtype, shape, elements=elements))
    factors = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    for method in ("max", "mode", "nearest"):
        np.testing.assert_array_equal(
            made(values, factors, method), ORACLES[method](values, factors)
        )
    eps = float(np.finfo(dtype).eps)
    expected = ORACLES["mean"](values, factors)
    np.testing.assert_allclose(made(values, factors, "mean"), expected, rtol=eps, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    factors=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    dtype=st.sampled_from(["u1", "i2", "f8"]),
)
def test_gaussian(shape, factors, dtype):
    values = np.random.default_rng(0).integers(0, 120, shape).astype(dtype)
    chosen = tuple(factors[: len(shape)])
    found, expected = made(values, chosen, "gaussian"), blurred(values, chosen)
    if values.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    else:  # a sum of floats may fall on either side of a half
        assert np.abs(found - expected).max() <= 1
        assert (found != expected).mean() < 0.2


def test_nan_and_ends():
    values = np.array([[np.nan, 1, 2, 3], [1, 1, np.inf, 3]], "f4")
    assert np.isnan(made(values, (2, 2), "mean")[0, 0])
    assert np.isnan(made(values, (2, 2), "max")[0, 0])
    assert made(values, (2, 2), "max")[0, 1] == np.inf
    assert made(values, (2, 2), "mode")[0, 0] == 1
    ends = np.array([[-(2**63), 2**63 - 1]], "i8")
    assert made(ends, (1, 1), "gaussian").tolist() == ends.tolist()
    assert made(np.full((2, 4), 2**64 - 1, "u8"), (2, 2), "mean").tolist() == [[2**64 - 1] * 2]


@pytest.mark.parametrize(
    ("method", "theirs"), [("mean", "mean"), ("max", "max"), ("nearest", "stride")]
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint64"])
def test_coarse_as_tensorstore(method, theirs, dtype):
    values = np.random.default_rng(3).integers(0, 200, (7, 31, 17)).astype(dtype)
    factors = (2, 3, 2)
    view = ts.downsample(ts.array(values), factors, theirs)
    np.testing.assert_array_equal(made(values, factors, method), view.read().result())


def test_gaussian_weights():
    for factor in range(2, 9):
        weights = gaussian_weights(factor)
        assert sum(weights) == pytest.approx(1)
        assert weights == pytest.approx(weights[::-1])


# --- whole images ---------------------------------------------------------------------------------


SOURCES = ["numpy", "graph", "blocks", "stored"]


def source(kind, values, tmp_path):
    """The same pixels as something else to read them from."""
    chunks = tuple(min(11, n) for n in values.shape)
    if kind == "numpy":
        return values
    if kind == "graph":
        return da.from_array(values, chunks=chunks)
    if kind == "stored":
        array = zd.create_array(
            tmp_path / "source", shape=values.shape, dtype=values.dtype, chunks=chunks
        )
        array[...] = values
        return array
    return da.from_array(values, chunks=chunks, inline_array=True)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("kind", SOURCES)
def test_sources(tmp_path, version, kind):
    values = pixels(2, 37, 41)
    url = tmp_path / "image.zarr"
    options = {"axes": "cyx", "version": version, "chunks": (1, 8, 8), "levels": 4}
    plan = zd.ome.plan_write(source(kind, values, tmp_path), url, **options)
    report = plan.run()
    assert report.objects == plan.objects
    check_levels(url, plan, values)
    image = zd.ome.open(url)
    assert [level.scale for level in image.levels] == [(1, 2**i, 2**i) for i in range(4)]
    assert image.levels[2].translation == (0, 1.5, 1.5)
    assert image.metadata.version == version


@pytest.mark.parametrize("shards", [None, (1, 16, 32), "auto"])
@pytest.mark.parametrize("method", ["mean", "mode", "nearest", "max"])
def test_methods_and_shards(tmp_path, method, shards):
    values = pixels(5, 50, 67, dtype=">i2")
    url = tmp_path / "image.zarr"
    options = {"axes": "zyx", "chunks": (1, 8, 16), "shards": shards, "method": method}
    factors = [(1, 2, 2), (2, 3, 2), (2, 2, 1)]
    plan = zd.ome.plan_write(values, url, factors=factors, **options)
    plan.run()
    check_levels(url, plan, values, method)
    stored = zd.open_array(url, "1")
    assert stored.shape == (5, 25, 34)
    assert (stored.shards is None) == (shards is None)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_layout(data):
    """Whatever shapes, chunks, blocks and memory: every level is what it should be."""
    shape = tuple(data.draw(st.lists(st.integers(1, 24), min_size=2, max_size=3), "shape"))
    chunks = tuple(data.draw(st.integers(1, 12), "chunk") for _ in shape)
    several = tuple(data.draw(st.integers(1, 3), "chunks in a shard") for _ in shape)
    shards = tuple(a * b for a, b in zip(chunks, several, strict=True))
    step = st.tuples(*(st.integers(1, 3) for _ in shape))
    factors = data.draw(st.lists(step, max_size=4), "factors")
    values = pixels(*shape, dtype=data.draw(st.sampled_from(["u1", "u2", "f4"])))
    kind = data.draw(st.sampled_from(["numpy", "graph", "blocks"]))
    blocks = tuple(data.draw(st.integers(1, 40), "block") for _ in shape)
    x = values if kind == "numpy" else da.from_array(values, blocks, inline_array=kind == "blocks")
    method = data.draw(st.sampled_from(["mean", "max", "nearest"]))
    store = MemoryStore({})
    plan = zd.ome.plan_write(
        x,
        store,
        axes="zyx"[-len(shape) :],
        chunks=chunks,
        shards=shards,
        factors=factors,
        method=method,
    )
    plan.run()
    image = zd.ome.open(store)
    for level, expected in zip(image.levels, pyramid(values, plan, method), strict=True):
        found = level.array[...]
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)
    assert zd.ome.validate(store) == []


@pytest.mark.parametrize("kind", SOURCES)
def test_gaussian_image(tmp_path, kind):
    values = pixels(45, 61, dtype="f8")
    url = tmp_path / "image.zarr"
    x = source(kind, values, tmp_path)
    zd.ome.write(x, url, axes="yx", chunks=8, levels=3, method="gaussian")
    expected = values
    for i in range(3):
        np.testing.assert_allclose(zarr.open_array(url, path=str(i))[...], expected, rtol=1e-12)
        expected = blurred(expected, (2, 2))


def test_a_function_with_a_footprint(tmp_path):
    def widest(fine, factors):
        """The largest pixel of each cell and one more around it."""
        low = [n - f - 1 for n, f in zip(fine.shape, factors, strict=True)]
        places = product(*(range(f + 2) for f in factors))
        steps = [
            fine[tuple(slice(i, i + n, f) for i, n, f in zip(place, low, factors, strict=True))]
            for place in places
        ]
        return np.max(steps, axis=0)

    values = pixels(30, 45)
    url = tmp_path / "image.zarr"
    method = Method("widest", widest, margin=1)
    plan = zd.ome.plan_write(values, url, axes="yx", chunks=8, levels=3, method=method)
    plan.run()
    expected = values
    for i in range(3):
        np.testing.assert_array_equal(zarr.open_array(url, path=str(i))[...], expected)
        counts = [-(-n // 2) for n in expected.shape]
        padded = np.pad(expected, [(1, 1 + (-n % 2)) for n in expected.shape], mode="edge")
        expected = np.array(
            [
                [padded[2 * i : 2 * i + 4, 2 * j : 2 * j + 4].max() for j in range(counts[1])]
                for i in range(counts[0])
            ]
        )
    assert zd.ome.open(url).multiscale.type == "widest"


def test_level_0_is_computed_once(tmp_path):
    seen = []

    def note(block, block_info=None):
        seen.append(tuple(a for a, _ in block_info[0]["array-location"]))
        return block

    zeros = da.zeros((96, 128), chunks=(16, 16), dtype="u2")
    meta = np.empty((0, 0), "u2")
    for x in (zeros, (zeros - zeros.mean()).astype("u2")):
        seen.clear()
        noted = x.map_blocks(note, dtype="u2", meta=meta)
        zd.ome.write(noted, tmp_path / x.name, axes="yx", chunks=16, shards=32, levels=3)
        assert len(seen) == len(set(seen)) == 48


def test_stored_level_0_is_read_once(tmp_path):
    stored = zd.create_array(MemoryStore(), shape=(128, 128), dtype="u2", chunks=(32, 32))
    stored[...] = pixels(128, 128)
    recording = Recording(stored.store)
    target = Recording(LocalStore(tmp_path / "image"))
    plan = zd.ome.plan_write(zd.open_array(recording), target, axes="yx", chunks=16, levels=4)
    assert plan.pyramids[0].stages[0].read == 128 * 128 * 2
    recording.clear()
    plan.run()
    read = {key: n for key, n in recording.per_key().items() if key.startswith("c/")}
    assert len(read) == 16
    assert set(read.values()) == {1}
    assert set(target.per_key("set").values()) == {1}
    check_levels(tmp_path / "image", plan, stored[...])


def test_memory_decides_how_many_levels_a_stage_has():
    x = da.zeros((4096, 4096), chunks=(256, 256), dtype="u2")
    plans = [
        zd.ome.plan_write(x, {}, axes="yx", chunks=256, levels=5, max_mem=size)
        for size in ("2GB", "80MB", "32MB")
    ]
    stages = [[stage.last for stage in plan.pyramids[0].stages] for plan in plans]
    assert all(stage[-1] == 4 for stage in stages)
    assert len(stages[0]) <= len(stages[1]) <= len(stages[2])
    assert all(plan.peak <= plan.max_mem for plan in plans)
    with pytest.raises(MemoryBudgetError, match="max_mem"):
        zd.ome.plan_write(x, {}, axes="yx", chunks=256, levels=5, max_mem="1MB")


def test_blocks_that_dask_regroups_are_counted_or_told(tmp_path):
    x = da.zeros((8, 2048, 2048), chunks=-1, dtype="u2")
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = zd.ome.plan_write(x, tmp_path / "a", axes="zyx", levels=2, max_mem="1GB")
        assert "regrouped" in str(plan)
        assert 2 * x.nbytes < plan.peak <= plan.max_mem
        with pytest.warns(ZarrDaskWarning, match="blocks of the dask array have up to 67.1 MB"):
            plan = zd.ome.plan_write(x, tmp_path / "a", axes="zyx", levels=2, max_mem="100MB")
    assert plan.peak <= plan.max_mem


def test_numbers_of_numpy_are_numbers():
    plan = zd.ome.plan_write(
        pixels(40, 40), {}, axes="yx", chunks=(np.int64(4), 4), shards=np.array([8, 8]),
        levels=np.int64(3), factors=np.int64(2), scale=np.array([0.5, 0.5]),
    )  # fmt: skip
    assert [(level.shape, level.shards) for level in plan.levels] == [
        ((40, 40), (8, 8)),
        ((20, 20), (8, 8)),
        ((10, 10), (8, 8)),
    ]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("codecs", ["gzip", ["gzip"]])
def test_codecs_by_name(version, codecs):
    plan = zd.ome.plan_write(pixels(4, 4), {}, axes="yx", version=version, codecs=codecs)
    assert [codec.name for codec in plan.levels[0].meta.codecs.bytes] == ["gzip"]


def test_plan_is_a_value(tmp_path):
    x = da.zeros((600, 700), chunks=(256, 256), dtype="u2")
    plan = zd.ome.plan_write(x, tmp_path / "image", axes="yx", chunks=256)
    assert "super-cell" in str(plan)
    assert plan.levels[1].shape == (300, 350)
    assert str(plan.to_json()).count("\n") < 200
    assert not (tmp_path / "image").exists()


# --- metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_metadata(tmp_path, version):
    url = tmp_path / "image.zarr"
    zd.ome.write(
        pixels(2, 3, 40, 60),
        url,
        axes="czyx",
        scale={"z": 2.0, "y": 0.5, "x": 0.5},
        translation={"y": 10},
        units={"z": "micrometer", "y": "micrometer", "x": "micrometer"},
        name="cells",
        channels=["nuclei", {"label": "membrane", "color": "#ff8800", "window": {"end": 99}}],
        version=version,
        chunks=(1, 1, 16, 16),
        levels=4,
    )
    image = zd.ome.open(url)
    assert image.multiscale.name == "cells"
    assert image.levels[0].units == (None, "micrometer", "micrometer", "micrometer")
    assert [level.scale for level in image.levels] == [
        (1, 2, 0.5, 0.5),
        (1, 2, 1, 1),
        (1, 2, 2, 2),
        (1, 4, 4, 4),
    ]
    assert image.levels[3].translation == (0, 1, 11.75, 1.75)
    assert [channel.label for channel in image.metadata.omero.channels] == ["nuclei", "membrane"]
    assert image.metadata.omero.channels[1].color == "ff8800"
    assert image.metadata.omero.channels[1].window.end == 99
    assert image.multiscale.type == "mean"
    assert zd.ome.validate(url, strict=True) == []


def test_nearest_pixels_stay_where_they_are(tmp_path):
    zd.ome.write(pixels(40, 60), tmp_path / "i", axes="yx", chunks=16, levels=3, method="nearest")
    assert all(level.translation == (0, 0) for level in zd.ome.open(tmp_path / "i").levels)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_labels(tmp_path, version):
    url = tmp_path / "image.zarr"
    values, cells_of = pixels(2, 3, 40, 61), pixels(3, 40, 61, dtype="i4") % 5
    labels = {
        "cells": LabelImage(cells_of, colors={1: "#ff0000", 2: (0, 255, 0)}, method="mode"),
        "all": da.from_array(pixels(2, 3, 40, 61, dtype="u1"), chunks=20),
    }
    plan = zd.ome.plan_write(
        values, url, axes="czyx", chunks=(1, 2, 16, 16), levels=3, labels=labels, version=version
    )
    plan.run()
    image = zd.ome.open(url)
    assert set(image.labels) == {"cells", "all"}
    check_levels(url, plan.pyramids[0], cells_of, "mode", "labels/cells")
    found = image.labels["cells"]
    assert [level.shape for level in found.levels] == [level.shape[1:] for level in image.levels]
    assert found.metadata.image_label.colors[0].rgba == (255, 0, 0, 255)
    (advice,) = zd.ome.validate(url, strict=True)
    assert advice.place == "labels/all: image-label.colors"


def test_colours_as_numbers_and_windows_as_two_of_them():
    store = {}
    channels = [{"color": (255, 136, 0), "window": (3, 99)}]
    zd.ome.write(pixels(4, 4), store, axes="yx", channels=channels)
    (channel,) = zd.ome.open(store).metadata.omero.channels
    assert (channel.color, channel.window.start, channel.window.end) == ("FF8800", 3, 99)
    assert zd.ome.validate(store) == []


# --- what is refused, before anything is written --------------------------------------------------

TWO = {"axes": "cyx", "channels": ["a"]}
OLD = {"chunks": 2, "shards": 4, "version": "0.4"}
WINDOW = {"channels": [{"window": {"start": "dark"}}]}
COLOUR = {"channels": [{"color": (1, 2, 256)}]}
DOCUMENT = {"labels": {".zarray": pixels(4, 4)}, "version": "0.4"}
FLAT = {"labels": {"a": np.zeros((4, 4))}}
SIX = {"axes": "abczyx"}
REFUSED = {
    "six dimensions": (lambda: pixels(1, 1, 1, 1, 4, 4), SIX, MetadataError, "2 to 5"),
    "one dimension": (lambda: pixels(4), {"axes": "x"}, MetadataError, "2 to 5"),
    "no axes": (lambda: pixels(4, 4, 4), {"axes": None}, MetadataError, "czyx"),
    "order": (lambda: pixels(4, 4, 4), {"axes": "yxc"}, MetadataError, "order"),
    "twice": (lambda: pixels(4, 4), {"axes": "yy"}, MetadataError, "unique"),
    "too few axes": (lambda: pixels(4, 4), {"axes": "zyx"}, MetadataError, "2 axes"),
    "scale": (lambda: pixels(4, 4), {"scale": (1, 2, 3)}, MetadataError, "scale"),
    "scale of 0": (lambda: pixels(4, 4), {"scale": (1, 0)}, MetadataError, "above 0"),
    "no such axis": (lambda: pixels(4, 4), {"scale": {"z": 2}}, MetadataError, "names of axes"),
    "version": (lambda: pixels(4, 4), {"version": "0.3"}, OmeVersionError, "0.3"),
    "method": (lambda: pixels(4, 4), {"method": "median"}, ValueError, "median"),
    "texts": (lambda: np.array([["a", "b"]]), {}, DataTypeError, "numbers"),
    "masked": (lambda: np.ma.ones((4, 4)), {}, DataTypeError, "masked"),
    "a list": (lambda: [[1, 2]], {}, DataTypeError, "list"),
    "levels": (lambda: pixels(4, 4), {"levels": 9}, GridError, "coarser"),
    "no levels": (lambda: pixels(4, 4), {"levels": 0}, GridError, "levels=0"),
    "factors": (lambda: pixels(4, 4), {"factors": (0, 2)}, GridError, "factors"),
    "chunks": (lambda: pixels(4, 4), {"chunks": (4, 4, 4)}, GridError, "chunks"),
    "shards": (lambda: pixels(4, 4), {"chunks": 2, "shards": 3}, GridError, "multiple"),
    "shards of 0.4": (lambda: pixels(9, 9), OLD, GridError, "shards"),
    "window": (lambda: pixels(4, 4), WINDOW, MetadataError, "numbers"),
    "label name": (lambda: pixels(4, 4), {"labels": {"..": pixels(4, 4)}}, MetadataError, "names"),
    "label document": (lambda: pixels(4, 4), DOCUMENT, MetadataError, "names"),
    "label path": (lambda: pixels(4, 4), {"labels": {"a/b": pixels(4, 4)}}, MetadataError, "'/'"),
    "no JSON": (
        lambda: pixels(4, 4),
        {"labels": {"a": LabelImage(pixels(4, 4), properties={1: {"k": {1, 2}}})}},
        MetadataError,
        "JSON",
    ),
    "channels": (lambda: pixels(2, 4, 4), TWO, MetadataError, "2 names"),
    "channel colour": (lambda: pixels(4, 4), COLOUR, MetadataError, "0 to 255"),
    "flat labels": (
        lambda: pixels(2, 2, 4, 4),
        {"axes": "tzyx", "labels": {"a": pixels(4, 4)}},
        MetadataError,
        "one for each dimension of the labels: axes=, such as 'yx'",
    ),
    "float labels": (lambda: pixels(4, 4), FLAT, DataTypeError, "integers"),
    "label shape": (lambda: pixels(4, 4), {"labels": {"a": pixels(4, 5)}}, GridError, "shape"),
    "mean of labels": (
        lambda: pixels(4, 4),
        {"labels": {"a": LabelImage(pixels(4, 4), method="mean")}},
        ValueError,
        "another label",
    ),
    "duplicate labels": (
        lambda: pixels(4, 4),
        {"labels": {"a": LabelImage(pixels(4, 4), colors=[(1, "#ff0000"), (1, "#00ff00")])}},
        MetadataError,
        "two objects",
    ),
    "colour": (
        lambda: pixels(4, 4),
        {"labels": {"a": LabelImage(pixels(4, 4), colors={1: (1, 2, 300)})}},
        MetadataError,
        "0 to 255",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case):
    values, options, error, words = REFUSED[case]
    url = tmp_path / "image.zarr"
    with pytest.raises(error, match=words):
        zd.ome.write(values(), url, **{"axes": "yx", **options})
    assert list(tmp_path.iterdir()) == []


def test_units_that_udunits_does_not_have(tmp_path):
    with pytest.warns(OmeMetadataWarning, match="furlong"):
        zd.ome.write(pixels(4, 4), tmp_path / "i", axes="yx", units=("furlong", "micron"))
    assert zd.ome.open(tmp_path / "i").levels[0].units == ("furlong", "micrometer")
    zd.ome.write(pixels(2, 4, 4), tmp_path / "j", axes="cyx", units="micrometer")
    assert zd.ome.open(tmp_path / "j").levels[0].units == (None, "micrometer", "micrometer")


@pytest.mark.parametrize("place", ["image.zarr", "image.zip"])
def test_what_is_there_stays_where_another_image_is_refused(tmp_path, place):
    url = tmp_path / place
    zd.ome.write(pixels(40, 40), url, axes="yx")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for values, options, error, words in REFUSED.values():
        with pytest.raises(error, match=words):
            zd.ome.write(values(), url, overwrite=True, **{"axes": "yx", **options})
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_what_is_there_stays(tmp_path):
    url = tmp_path / "image.zarr"
    zd.ome.write(pixels(40, 40), url, axes="yx", labels={"a": pixels(40, 40)})
    before = {path: path.read_bytes() for path in url.rglob("*") if path.is_file()}
    with pytest.raises(NodeExistsError):
        zd.ome.write(pixels(40, 40), url, axes="yx")
    with pytest.raises(SourceIsTargetError):
        zd.ome.write(zd.from_zarr(url, "0"), url, axes="yx", overwrite=True)
    with pytest.raises(SourceIsTargetError):
        zd.ome.write(zd.open_array(url, "0"), url, axes="yx", overwrite=True)
    assert before == {path: path.read_bytes() for path in url.rglob("*") if path.is_file()}
    zd.ome.write(pixels(20, 20), url, axes="yx", overwrite=True)
    assert zd.ome.open(url).levels[0].shape == (20, 20)
    assert not (url / "labels").exists()


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (1, 1), (3, 0, 4)])
def test_few_pixels(tmp_path, shape):
    url = tmp_path / "image.zarr"
    for x in (pixels(*shape), da.from_array(pixels(*shape), chunks=2)):
        zd.ome.write(x, url, axes="zyx"[-len(shape) :], overwrite=True)
        assert zd.ome.open(url).levels[0].array[...].shape == shape


def test_an_ozx_is_the_archive_that_it_is(tmp_path):
    values = pixels(30, 40)
    zd.ome.write(values, tmp_path / "image.ozx", axes="yx", levels=2)
    with zipfile.ZipFile(tmp_path / "image.ozx") as archive:
        assert "zarr.json" in archive.namelist()
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    image = zd.ome.open(tmp_path / "image.ozx")
    np.testing.assert_array_equal(image.level(0)[...], values)
    assert image.multiscale.name == "image"
    group = zarr.open_group(zarr.storage.ZipStore(tmp_path / "image.ozx", mode="r"), mode="r")
    np.testing.assert_array_equal(group["0"][...], values)


def order_of_entries(path) -> tuple[list[str], list[str], bytes]:
    """Return names in the directory of an archive, names as they lie in it, and its comment."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        found = archive.infolist()
    located = sorted(found, key=lambda entry: entry.header_offset)
    return (
        [entry.filename for entry in found],
        [entry.filename for entry in located],
        archive.comment,
    )


OZX = {"ome": {"version": "0.5", "zipFile": {"centralDirectory": {"jsonFirst": True}}}}


def test_metadata_come_first_in_an_ozx(tmp_path):
    path = tmp_path / "image.ozx"
    zd.ome.write(pixels(30, 40), path, axes="yx", levels=2)
    documents = ["zarr.json", "0/zarr.json", "1/zarr.json"]
    listed, located, comment = order_of_entries(path)
    assert listed[:3] == located[:3] == documents
    assert json.loads(comment) == OZX
    assert path.read_bytes()[30:39] == b"zarr.json"  # behind the first local header


def test_a_copy_to_an_ozx_says_what_it_is(tmp_path):
    zd.ome.write(pixels(30, 40), tmp_path / "image.zarr", axes="yx", levels=2)
    for name in ("copy.ozx", "copy.zip"):
        zd.copy(tmp_path / "image.zarr", tmp_path / name)
    zd.copy(tmp_path / "image.zarr" / "0", tmp_path / "plain.ozx")
    assert json.loads(order_of_entries(tmp_path / "copy.ozx")[2]) == OZX
    assert order_of_entries(tmp_path / "copy.zip")[2] == b""
    assert order_of_entries(tmp_path / "plain.ozx")[2] == b""


def test_large_metadata_of_an_ozx_follow_the_chunks(tmp_path):
    path = tmp_path / "image.ozx"
    attributes = {f"note {number}": "x" * 30_000 for number in range(3)}
    with zd.ZipWriter(path) as archive:
        group = zd.create_group(archive, attributes={"small": 1})
        for name in ("a", "b"):
            said = attributes if name == "a" else {}
            array = group.create_array(name, shape=(4,), chunks=2, dtype="i4", attributes=said)
            array[...] = [1, 2, 3, 4]
    listed, located, _ = order_of_entries(path)
    documents = ["zarr.json", "a/zarr.json", "b/zarr.json"]
    assert listed[:3] == documents
    assert [located[0], *located[-2:]] == documents
    group = zd.open(path)
    assert dict(group["a"].attrs) == attributes
    np.testing.assert_array_equal(group["b"][...], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("given", "chunks", "shards"),
    [
        ({"chunks": "32KiB"}, (1, 64, 64), None),
        ({"chunks": False}, (3, 300, 200), None),
        ({"chunks": "auto", "shards": "auto"}, (1, 512, 256), (1, 512, 256)),
        ({"chunks": (1, None, 50)}, (1, 300, 50), None),
        ({"chunks": {0: 2, "x": 50}, "shards": False}, (2, 512, 50), None),
        ({"shards": {"y": 150, "x": 100}}, (1, 150, 100), (1, 150, 100)),
        ({"chunks": 32, "shards": "64kB"}, (32, 32, 32), (32, 32, 32)),
        ({"chunks": 32, "shards": -1}, (32, 32, 32), (32, 320, 224)),
    ],
)
def test_grids_are_given_as_everywhere(given, chunks, shards):
    store = {}
    zd.ome.write(da.zeros((3, 300, 200), chunks=100), store, axes="cyx", **given)
    made = zd.open_array(store, "0")
    cut = tuple(map(min, chunks, made.shape))
    assert made.chunks == cut
    assert (made.shards is None) == (shards is None)
    if shards is not None:
        whole = (-(-n // c) * c for c, n in zip(cut, made.shape, strict=True))
        assert made.shards == tuple(map(min, shards, whole))


def test_chunks_of_numpy_that_do_not_divide_the_shards_are_refused():
    with pytest.raises(GridError, match="no multiples"):
        zd.ome.write(da.zeros((9, 9)), {}, axes="yx", chunks=np.array([2, 2]), shards=(3, 3))


def test_levels_have_chunks_of_one_size():
    with pytest.raises(GridError, match="all chunks of a level have one size"):
        zd.ome.write(da.zeros((4, 4)), {}, axes="yx", chunks=((1, 3), (2, 2)))


def test_rules_that_are_sentences_are_told_as_such(tmp_path):
    with pytest.raises(MetadataError, match=r"got '1 axes of type space'; 2 or 3 axes must be of"):
        zd.ome.write(np.zeros((4, 4), "u2"), tmp_path / "i", axes="cx")
