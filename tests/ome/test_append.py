"""Appending to images: all levels and label images grow together, whatever happens meanwhile."""

from __future__ import annotations

import json
from itertools import count

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.ome_levels import pixels
from zarr_dask.errors import (
    AppendConflictError,
    DataTypeError,
    GridError,
    MetadataError,
    NodeNotFoundError,
    StoreError,
)
from zarr_dask.journal import claimed
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrappers.base import HookStore

SHAPE = (5, 2, 13, 18)
OPTIONS = {"axes": "tcyx", "chunks": (2, 1, 8, 8), "levels": 3}


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def cells(values):
    return (values[..., 0, :, :] % 7).astype("u1")


def labelled(values):
    return {"cells": zd.ome.LabelImage(cells(values), "tyx", method="mode")}


def contents(root):
    """All files by path, but without the white space of JSON."""
    return {
        str(path.relative_to(root)): json.loads(text) if path.suffix == ".json" else text
        for path, text in ((path, path.read_bytes()) for path in root.rglob("*") if path.is_file())
    }


@pytest.mark.parametrize("options", [{}, {"version": "0.4"}, {"shards": (2, 2, 16, 16)}])
def test_the_result_equals_a_write_of_everything(tmp_path, options):
    values = pixels(*SHAPE)
    zd.ome.write(values[:2], tmp_path / "image", labels=labelled(values[:2]), **OPTIONS | options)
    zd.ome.append(tmp_path / "image", values[2], labels={"cells": cells(values[2])})
    rest = da.from_array(values[3:], chunks=(1, 1, 5, 18))
    zd.ome.append(tmp_path / "image", rest, "t", labels={"cells": cells(values[3:])})
    zd.ome.write(
        values, tmp_path / "fresh", name="image", labels=labelled(values), **OPTIONS | options
    )
    found, expected = contents(tmp_path / "image"), contents(tmp_path / "fresh")
    assert found.keys() == expected.keys()
    assert not [name for name in found if found[name] != expected[name]]
    assert zd.ome.validate(tmp_path / "image") == []
    assert {path.name for path in tmp_path.iterdir()} == {"image", "fresh"}


@pytest.mark.parametrize("ending", ["ozx", "zip"])
def test_an_archive_is_appended_to(tmp_path, ending):
    place, values = tmp_path / f"image.{ending}", np.arange(128, dtype="u1").reshape(2, 8, 8)
    zd.ome.write(values, place, axes="tyx")
    zd.ome.append(place, values + 1)
    image = zd.ome.open(place)
    np.testing.assert_array_equal(image.levels[0].array[2:], values + 1)
    assert zd.ome.validate(place) == []
    with pytest.raises(NodeNotFoundError):
        zd.ome.append(tmp_path / f"none.{ending}", values)
    assert [one.name for one in tmp_path.iterdir()] == [place.name]


def test_an_axis_that_is_downsampled(tmp_path):
    """The last coarse pixel, of an incomplete cell until now, is made again."""
    values = pixels(9, 20, 20)
    options = {"axes": "zyx", "chunks": (4, 8, 8), "levels": 3, "factors": 2, "name": "image"}
    zd.ome.write(values[:5], tmp_path / "image", **options)
    zd.ome.append(tmp_path / "image", values[5:], "z")
    zd.ome.write(values, tmp_path / "fresh", **options)
    for made, fresh in zip(
        zd.ome.open(tmp_path / "image").levels, zd.ome.open(tmp_path / "fresh").levels, strict=True
    ):
        np.testing.assert_array_equal(made[...], fresh[...])


def test_labels_that_are_not_given_are_background(tmp_path):
    values = pixels(*SHAPE)
    zd.ome.write(values, tmp_path, labels=labelled(values), **OPTIONS)
    zd.consolidate(tmp_path)
    zd.ome.append(tmp_path, values[0])
    image = zd.ome.open(tmp_path)
    assert [level.shape[0] for level in (*image.levels, *image.labels["cells"].levels)] == [6] * 6
    assert not image.labels["cells"].level(0)[5].any()
    assert zd.open_group(tmp_path).stale() == []
    assert zarr.open_consolidated(tmp_path)["labels/cells/2"].shape[0] == 6


def stopping(root, changes):
    """A store that fails after so many changes, as if the process had been killed."""
    left = [changes]

    def fault(verb, _):
        if verb in {"set", "set_if", "delete"}:
            left[0] -= 1
            if left[0] < 0:
                raise StoreError("stopped")

    return HookStore(LocalStore(str(root)), fault)


def lengths(url):
    image = zd.ome.open(url)
    found = {level.shape[0] for level in image.levels}
    return found, {level.shape[0] for level in image.labels["cells"].levels}


def test_stopped_anywhere_and_repeated(tmp_path):
    """Readers see equal lengths; the same call gives the bytes of one that was not stopped."""
    values = pixels(3, 1, 9, 10)
    for name in ("whole", "base"):
        zd.ome.write(values[:2], tmp_path / name, name="x", labels=labelled(values[:2]), **OPTIONS)
    label = {"cells": cells(values[2])}
    zd.ome.append(tmp_path / "whole", values[2], labels=label)
    expected = contents(tmp_path / "whole")
    before = contents(tmp_path / "base")
    for changes in count():
        root = tmp_path / f"n{changes}"
        copy(tmp_path / "base", root)
        try:
            zd.ome.append(stopping(root, changes), values[2], labels=label, resume=True)
        except StoreError:
            assert [len(found) for found in lengths(root)] == [1, 1]
            assert zd.ome.validate(root) == []
            zd.ome.append(LocalStore(str(root)), values[2], labels=label, resume=True)
        else:
            break
        assert contents(root) == expected, changes
    assert changes > 12
    assert contents(tmp_path / "base") == before


def copy(source, target):
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


def test_readers_see_levels_of_one_length(tmp_path):
    """At every change of a file, also between those of the lengths."""
    values = pixels(*SHAPE)
    zd.ome.write(values, tmp_path, labels=labelled(values), **OPTIONS)
    seen = []

    def look(verb, key):
        if verb in {"set", "set_if"}:
            seen.append((key, *lengths(tmp_path)))

    zd.ome.append(HookStore(LocalStore(str(tmp_path)), look), values[:2])
    assert {len(found) for _, *both in seen for found in both} == {1}
    documents = [key for key, *_ in seen if key.endswith("zarr.json")]
    assert len(documents) == 6
    assert lengths(tmp_path) == ({7}, {7})


def test_refused_before_anything_is_written(tmp_path):
    values = pixels(*SHAPE)
    channels = {"channels": ["a", "b"], "labels": labelled(values)}
    zd.ome.write(values, tmp_path / "image", **OPTIONS, **channels)
    before = contents(tmp_path / "image")
    url = tmp_path / "image"
    with pytest.raises(GridError):
        zd.ome.append(url, values[:, :1])
    with pytest.raises(DataTypeError, match=r"astype\('uint16'\) if that is meant\.$"):
        zd.ome.append(url, values.astype("f8"))
    with pytest.raises(DataTypeError, match=r"cells.0 holds uint.*if that is meant\.$"):
        zd.ome.append(url, values, labels={"cells": values[:, 0].astype("f8")})
    with pytest.raises(MetadataError, match="one of the axes"):
        zd.ome.append(url, values, "z")
    with pytest.raises(MetadataError, match="display settings"):
        zd.ome.append(url, values[:, :1], "c")
    with pytest.raises(MetadataError, match="nuclei"):
        zd.ome.append(url, values, labels={"nuclei": values[:, 0]})
    with (
        claimed(LocalStore(str(url)), ""),
        pytest.raises(AppendConflictError, match="under way"),
    ):
        zd.ome.append(url, values)
    assert contents(url) == before
    zd.open_array(url, "0", "r+").append(values[:1], 0)
    with pytest.raises(GridError, match="same extent along 't'"):
        zd.ome.append(url, values)
