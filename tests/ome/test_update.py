"""Coarser levels after pixels of level 0 have changed: equal to those of a fresh write."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import time

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.ome_levels import pixels
from tests.support.scripts import Script
from zarr_dask.errors import (
    GridError,
    MemoryBudgetError,
    MetadataError,
    ReadOnlyError,
    SelectionError,
    StoreError,
)
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrappers.base import HookStore

SHAPE = (3, 2, 29, 37)
OPTIONS = {"axes": "tcyx", "chunks": (1, 1, 8, 8), "levels": 4}
REGIONS = [
    (slice(1, 2), slice(0, 1), slice(3, 20), slice(30, 31)),
    (slice(0, 3), slice(1, 2), slice(28, 29), slice(33, 37)),
    (slice(2, 3), slice(0, 2), slice(0, 29), slice(0, 37)),
]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def write(url, values, **options):
    given = {**OPTIONS, **options}
    labels = {"cells": zd.ome.LabelImage((values[:, 0] % 7).astype("u1"), "tyx", method="mode")}
    zd.ome.write(values, url, labels=labels, **given)


def objects(root):
    """All stored objects by path."""
    if isinstance(root, dict):
        return {
            k: bytes(v)
            for k, v in root.items()
            if not k.endswith((".json", ".zarray", ".zattrs", ".zgroup"))
        }
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith((".z", "zarr.json"))
    }


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"method": "mean"},
        {"method": "gaussian", "version": "0.4"},
        {"method": "max", "shards": (1, 2, 16, 16)},
        {"method": "nearest", "factors": {"y": 3, "x": 2}, "chunks": (2, 1, 5, 7)},
    ],
    ids=lambda options: options["method"],
)
def test_levels_equal_those_of_a_fresh_write(region, options):
    values, image, fresh = pixels(*SHAPE), {}, {}
    write(image, values, **options)
    values[region] = values[region] * 3 + 1
    zd.open_array(image, "0", "r+")[region] = values[region]
    zd.open_array(image, "labels/cells/0", "r+")[...] = (values[:, 0] % 7).astype("u1")
    zd.ome.update(image, region)
    write(fresh, values, **options)
    assert objects(image) == objects(fresh)


def test_pixels_are_assigned():
    """Levels of the image follow, and levels of a label image from its own."""
    values, stored, fresh, both = pixels(*SHAPE), {}, {}, {}
    write(stored, values)
    image = zd.ome.open(stored, mode="r+")
    image.level(0)[1, :, 5:9, -4:] = 7
    image.labels["cells"].level(0)[1, [2, 28]] = 3
    values[1, :, 5:9, -4:] = 7
    assert (image.level(0)[...] == values).all()
    zd.ome.write(values, fresh, **OPTIONS)
    written = objects(stored)
    assert {k: v for k, v in written.items() if "labels" not in k} == objects(fresh)
    cells = image.labels["cells"].level(0)[...]
    anew = zd.ome.LabelImage(cells, "tyx", method="mode")
    zd.ome.write(values, both, labels={"cells": anew}, **OPTIONS)
    assert written == objects(both)


def test_only_affected_objects_are_written(tmp_path):
    write(tmp_path / "image", pixels(*SHAPE))
    written = []

    def note(verb, key):
        if verb == "set":
            written.append(key)

    store = HookStore(LocalStore(str(tmp_path / "image")), note)
    plan = zd.ome.plan_update(store, {"t": 1, "c": 0, "y": slice(3, 20), "x": slice(30, 31)})
    plan.run()
    expected = {f"1/c/1/0/{y}/1" for y in (0, 1)} | {"2/c/1/0/0/0", "3/c/1/0/0/0"}
    expected |= {f"labels/cells/1/c/1/{y}/1" for y in (0, 1)}
    expected |= {f"labels/cells/{level}/c/1/0/0" for level in (2, 3)}
    assert sorted(written) == sorted(expected)
    assert plan.objects == len(expected)
    assert "update the coarser levels" in plan.explain()


def assign(url, t):
    with dask.config.set(scheduler="sync"):
        level = zd.ome.open(url, mode="r+").level(0)
        for y in range(0, 32, 8):
            level[t, 0, y : y + 8] = 100 * t + y


def test_processes_update_one_image(tmp_path):
    """They share the stored objects of coarser levels, and no change is lost."""
    values = pixels(2, 1, 32, 32)
    options = {"axes": "tcyx", "chunks": (1, 1, 8, 32), "levels": 3}
    options["factors"] = {"t": 2, "y": 2, "x": 2}
    zd.ome.write(values, tmp_path / "image", **options)
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=assign, args=(tmp_path / "image", t)) for t in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    zd.ome.write(zd.open_array(tmp_path / "image", "0")[...], tmp_path / "fresh", **options)
    assert objects(tmp_path / "image") == objects(tmp_path / "fresh")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["fresh", "image"]


@pytest.mark.parametrize("options", [{}, {"shards": (1, 1, 16, 16)}], ids=["chunks", "shards"])
def test_stopped_before_each_change(tmp_path, options):
    values, region = pixels(2, 1, 29, 37), (1, 0, slice(3, 20), slice(30, 37))
    write(tmp_path / "base", values, **options)
    values[region] = 9
    zd.ome.write(values, tmp_path / "fresh", **OPTIONS | options)
    stops = 0
    for left in range(100):
        url = tmp_path / f"n{left}" / "image"
        shutil.copytree(tmp_path / "base", url)
        changes = iter([None] * left)

        def fault(verb, _, changes=changes):
            if verb in {"set", "set_if", "delete"} and next(changes, verb):
                raise StoreError("stopped")

        try:
            zd.ome.open(HookStore(LocalStore(str(url)), fault), mode="r+").level(0)[region] = 9
        except StoreError:
            stops += 1
        else:
            break
        zd.ome.open(url, mode="r+").level(0)[region] = 9
        found = {k: v for k, v in objects(url).items() if not k.startswith("labels")}
        assert found == objects(tmp_path / "fresh")
        assert [path.name for path in url.parent.iterdir()] == ["image"]
    assert stops > 5


UPDATE = """
import sys
import dask, numpy as np, zarr_dask as zd
with dask.config.set(scheduler="sync"):
    level = zd.ome.open(sys.argv[1], mode="r+").level(0)
    print("begun", flush=True)
    level[100:800, 50:950] = np.full((700, 900), int(sys.argv[2]), "u2")
    print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_many_times(tmp_path):
    """Whenever a process is killed, the same assignment gives the levels of a fresh write."""
    seed = int(time.time())
    print(f"seed {seed}")
    draw, values = random.Random(seed), pixels(1000, 1000)
    options = {"axes": "yx", "chunks": (64, 64), "levels": 4}
    zd.ome.write(values, tmp_path / "image", **options)
    with Script(UPDATE, tmp_path / "image", 0) as script:  # how long it takes here
        assert script.stdout.readline() == "begun\n"
        begun = time.monotonic()
        assert script.stdout.readline() == "done\n"
        lasts = time.monotonic() - begun
    killed = 0
    for number in range(50):
        with Script(UPDATE, tmp_path / "image", number) as script:
            assert script.stdout.readline() == "begun\n"
            time.sleep(draw.random() * lasts)
            script.kill()
            killed += script.stdout.readline() != "done\n"
        values[100:800, 50:950] = number
        if number % 5 == 4:
            zd.ome.open(tmp_path / "image", mode="r+").level(0)[100:800, 50:950] = number
            zd.ome.write(values, tmp_path / "fresh", **options, overwrite=True)
            assert objects(tmp_path / "image") == objects(tmp_path / "fresh")
    assert killed >= 25
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "image"]


def test_refused_before_anything_is_written(tmp_path):
    write(tmp_path / "image", pixels(*SHAPE))
    before = objects(tmp_path / "image")
    with pytest.raises(ReadOnlyError, match=r"mode='r\+'"):
        zd.ome.open(tmp_path / "image").level(0)[...] = 1
    image = zd.ome.open(tmp_path / "image", mode="r+")
    with pytest.raises(GridError, match="coarser level"):
        image.level(1)[...] = 1
    with pytest.raises(GridError, match="no level 4"):
        image.level(4)
    with pytest.raises(GridError, match="'q'"):
        zd.ome.update(tmp_path / "image", {"q": 1})
    with pytest.raises(SelectionError):
        zd.ome.update(tmp_path / "image", {"t": slice(8, 9)})
    with pytest.raises(MemoryBudgetError):
        zd.ome.update(tmp_path / "image", max_mem="1kB")
    zd.open_array(tmp_path / "image", "1", "r+").resize((3, 2, 17, 60))
    image = zd.ome.open(tmp_path / "image", mode="r+")
    with pytest.raises(GridError, match="whole cells"):
        image.level(0)[...] = 1
    assert objects(tmp_path / "image") == before


def test_levels_of_an_unknown_method(tmp_path):
    """They are not made by another method than the others, unless it is named."""
    values = pixels(32, 32)
    zd.ome.write(values, tmp_path / "image", axes="yx", levels=2)
    group = zd.open_group(tmp_path / "image", mode="r+")
    ome = json.loads(json.dumps(group.attributes["ome"]))
    ome["multiscales"][0]["type"] = "itkwasm_bin_shrink"
    group.update_attributes({"ome": ome})
    image = zd.ome.open(tmp_path / "image", mode="r+")
    with pytest.raises(MetadataError, match=r"itkwasm_bin_shrink.*method="):
        image.level(0)[...] = 0
    np.testing.assert_array_equal(image.level(0)[...], values)
    image.levels[0].array[...] = 9
    zd.ome.update(tmp_path / "image", method="max")
    assert (zd.ome.open(tmp_path / "image").level(1)[...] == 9).all()
