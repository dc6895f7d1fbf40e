"""Images that are taken plane by plane: readers see complete time points with all their levels."""

from __future__ import annotations

import random
import shutil
import signal
import time
from itertools import product

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.kill_roles import PATIENCE, kill, start, until
from tests.support.leftovers import left_in
from tests.support.ome_roles import TAKEN, acquire, acquire_until_grown, taken
from zarr_dask.errors import DataTypeError, GridError, MetadataError, StoreError
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrappers.base import HookStore

WRITTEN = {name: TAKEN[name] for name in ("chunks", "levels", "name")}


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def levels(url):
    return [level[...] for level in zd.ome.open(url).levels]


def check_equals(url, values):
    fresh = {}
    zd.ome.write(values, fresh, **WRITTEN)
    for found, expected in zip(levels(url), levels(fresh), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert zd.ome.validate(url) == []


def lengths(url):
    return {level.shape[0] for level in zd.ome.open(url).levels}


@pytest.mark.parametrize("options", [{}, {"shards": (2, 1, 4, 32, 48)}])
def test_planes_in_any_order(tmp_path, options):
    values = taken(3)
    url = tmp_path / "image"
    places = [*product(range(3), range(2), range(3))]
    random.Random(4).shuffle(places)
    with zd.ome.acquire(url, **TAKEN | options) as image:
        for t, c, z in places:
            image.put(values[t, c, z], t=t, c=c, z=z)
    assert image.done == 3
    check_equals(url, values)
    assert left_in(tmp_path) == {"image"}


def test_blocks_of_planes_and_what_is_missing(tmp_path, caplog):
    values = taken(2)
    url = tmp_path / "image"
    with zd.ome.acquire(url, **TAKEN) as image:
        image.put(values[0], t=0)
        image.put(values[1, :, 1], t=1, z=1)
        image.put(values[1, 0], t=1, c=0)
        assert image.missing(1) == [{"t": 1, "c": 1, "z": 0}, {"t": 1, "c": 1, "z": 2}]
    assert (lengths(url), image.missing(0)) == ({1}, [])
    assert image.waiting() == {1: 2}
    assert "image has 1 complete time points. Planes of 1 more are kept" in caplog.text
    assert "since t=1 lacks 2 planes" in caplog.text
    caplog.clear()
    with zd.ome.acquire(url, **TAKEN) as image:
        for place in image.missing(1):
            image.put(values[1, place["c"], place["z"]], **place)
    assert (image.waiting(), caplog.text) == ({}, "")
    check_equals(url, values)


def test_readers_at_any_moment(tmp_path):
    """Levels are of one length, and what they show is complete, at every change of a file."""
    values, seen = taken(2), []

    def look(verb, key):
        if verb in {"set", "set_if"} and (tmp_path / "image/zarr.json").exists():
            seen.append(lengths(tmp_path / "image"))

    store = HookStore(LocalStore(str(tmp_path / "image")), look)
    with zd.ome.acquire(store, **TAKEN) as image:
        for t in range(2):
            image.put(values[t], t=t)
    assert [one for one in seen if len(one) != 1] == []
    assert set().union(*seen) >= {0, 1}


def test_processes_take_a_channel_each(tmp_path):
    workers = [start(acquire, str(tmp_path / "image"), 3, -1, (c,)) for c in range(2)]
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]
    check_equals(tmp_path / "image", taken(3))
    assert left_in(tmp_path) == {"image"}


@pytest.mark.parametrize("changes", [16, 40])
def test_killed(tmp_path, changes):
    """A process that goes on gives the image of one that was not killed."""
    url = tmp_path / "image"
    client = start(acquire, str(url), 2, changes)
    client.join(PATIENCE)
    assert client.exitcode not in {0, None}
    assert len(lengths(url)) == 1
    acquire(str(url), 2)
    check_equals(url, taken(2))


def planes_put(url):
    """Number of planes that the image shows, or that are kept beside it."""
    kept = [*url.with_name(f"{url.name}.zarr-dask").glob("__acquire/*/*")]
    shown = max(lengths(url)) if (url / "zarr.json").exists() else 0
    return shown * 6 + len([path for path in kept if path.name[0].isdecimal()])


TIMES = 60


@pytest.mark.slow
def test_killed_many_times(tmp_path):
    seed = int(time.time())
    print(f"seed {seed}")
    draw, url, before = random.Random(seed), tmp_path / "image", 0
    expected = taken(TIMES)
    for _ in range(50):
        client = start(acquire, str(url), TIMES)
        try:
            wanted = planes_put(url) + draw.randrange(1, 5)
            until(lambda wanted=wanted: planes_put(url) >= wanted, client)
            time.sleep(draw.random() * 0.02)
        finally:
            kill(client)
        if not (url / "zarr.json").exists():
            continue
        found = lengths(url)
        assert len(found) == 1
        assert max(found) >= before
        before = max(found)
        np.testing.assert_array_equal(zd.ome.open(url).level(0)[...], expected[:before])
    acquire(str(url), TIMES)
    check_equals(url, expected)


def test_what_fails_in_the_background_is_told_and_tried_again(tmp_path):
    values, fails = taken(1), [True]

    def fault(verb, key):
        if fails[0] and verb == "set" and "/c/" in f"/{key}":
            raise StoreError("no room")

    store = HookStore(LocalStore(str(tmp_path / "image")), fault)
    image = zd.ome.acquire(store, **TAKEN)
    image.put(values[0], t=0)
    with pytest.raises(StoreError, match="no room"):
        image.close()
    fails[0] = False
    zd.ome.acquire(store, **TAKEN).close()
    check_equals(tmp_path / "image", values)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_time_point_whose_levels_did_not_all_grow_is_finished(tmp_path, level):
    values, fails = taken(2), [False]

    def fault(verb, key):
        if fails[0] and verb.startswith("set") and key == f"{level}/zarr.json":
            raise StoreError("no room")

    store = HookStore(LocalStore(str(tmp_path / "image")), fault)
    with zd.ome.acquire(store, **TAKEN) as image:
        image.put(values[0], t=0)
    fails[0] = True
    image = zd.ome.acquire(store, **TAKEN)
    image.put(values[1], t=1)
    with pytest.raises(StoreError, match="no room"):
        image.close()
    assert lengths(tmp_path / "image") == {1}
    fails[0] = False
    zd.ome.acquire(store, **TAKEN).close()
    assert lengths(tmp_path / "image") == {2}
    check_equals(tmp_path / "image", values)
    assert left_in(tmp_path) == {"image"}
    assert zd.verify(tmp_path / "image").ok


def test_an_acquisition_that_is_killed_at_its_end_leaves_nothing(tmp_path):
    """The process dies when all levels have grown: only the journal of the append is left."""
    url, values = tmp_path / "image", taken(1)
    acquire(str(url), 1, channels=(0,))
    client = start(acquire_until_grown, str(url))
    client.join(PATIENCE)
    assert (client.exitcode, lengths(url)) == (-signal.SIGKILL, {1})
    assert not zd.verify(url).ok
    shutil.copytree(tmp_path, tmp_path / "copy")
    zd.ome.acquire(url, **TAKEN).close()
    assert left_in(tmp_path) == {"image", "copy"}
    zd.verify(tmp_path / "copy/image", sweep=True)
    kept = (tmp_path / "copy").rglob("image.zarr-dask/**/*")
    assert {path.name for path in kept if path.is_file()} == {
        "0.0",
        "0.1",
        "0.2",
        "1.0",
        "1.1",
        "1.2",
        "README.txt",
    }
    for place in (url, tmp_path / "copy/image"):
        check_equals(place, values)
        assert zd.verify(place).ok


PLANE = taken(1)[0, 0, 0]


@pytest.mark.parametrize(
    ("pixels", "index", "error", "says"),
    [
        (PLANE, {"c": 0, "z": 0}, MetadataError, "position along 't'"),
        (PLANE, {"t": 0, "c": 2, "z": 0}, MetadataError, "below"),
        (PLANE, {"t": -1, "c": 0, "z": 0}, MetadataError, "position"),
        (PLANE, {"t": 0, "q": 0, "z": 0}, MetadataError, "below"),
        (PLANE[1:], {"t": 0, "c": 0, "z": 0}, GridError, "expected"),
        (PLANE.astype("f8"), {"t": 0, "c": 0, "z": 0}, DataTypeError, "astype"),
    ],
)
def test_planes_refused(pixels, index, error, says):
    with zd.ome.acquire({}, **TAKEN) as image, pytest.raises(error, match=says):
        image.put(pixels, **index)


def test_images_refused(tmp_path):
    url = tmp_path / "image"
    with pytest.raises(MetadataError, match="not space"):
        zd.ome.acquire(url, **TAKEN, axis="z")
    with pytest.raises(MetadataError, match="a length for each"):
        zd.ome.acquire(url, **TAKEN | {"shape": {"c": 2}})
    assert not url.exists()
    with zd.ome.acquire(url, **TAKEN) as image:
        image.put(taken(1)[0], t=0)
    with zd.ome.acquire(url, **TAKEN) as image, pytest.raises(GridError, match="is complete"):
        image.put(taken(1)[0], t=0)
    with pytest.raises(DataTypeError, match="not float32"):
        zd.ome.acquire(url, **TAKEN | {"dtype": "f4"})
    with pytest.raises(GridError, match="Choose another place"):
        zd.ome.acquire(url, **TAKEN | {"shape": TAKEN["shape"] | {"z": 9}})
