"""Measurements of labelled objects, against scikit-image, and their tables."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import zarr
from skimage.measure import label as components
from skimage.measure import regionprops

import zarr_dask as zd
from zarr_dask.errors import DataTypeError, GridError, MetadataError, NodeExistsError, StoreError
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.wrappers.base import HookStore


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def objects(*shape):
    found = components(np.random.default_rng(2).random(shape) > 0.6)
    return np.where(found, found * 3 + 70_000, 0).astype("u4")


def intensities(*shape, dtype="u2"):
    return (np.random.default_rng(1).random(shape) * 999).astype(dtype)


@pytest.mark.parametrize(
    ("axes", "shape", "dtype", "version"),
    [
        ("yx", (50, 61), "u2", "0.5"),
        ("zyx", (9, 30, 34), "f4", "0.4"),
        ("czyx", (2, 5, 30, 34), "i2", "0.5"),
        ("tcyx", (3, 2, 30, 34), "u1", "0.4"),
    ],
)
def test_as_regionprops(axes, shape, dtype, version):
    values = intensities(*shape, dtype=dtype)
    at = axes.replace("c", "")
    scale, place = {"y": 0.5, "x": 2.0}, {"x": 10.0}
    ids = objects(*(n for n, axis in zip(shape, axes, strict=True) if axis != "c"))
    channels = ["DAPI", "GFP"] if "c" in axes else None
    store = {}
    zd.ome.write(
        values,
        store,
        axes=axes,
        scale=scale,
        translation=place,
        version=version,
        channels=channels,
        labels={"cells": ids},
        chunks=(8,) * len(axes),
    )
    with dask.config.set(scheduler="threads"):
        found = zd.ome.measure(store, "cells")
    last = np.moveaxis(values, axes.index("c"), -1) if "c" in axes else values
    expected = regionprops(ids, last)
    np.testing.assert_array_equal(found.labels, [one.label for one in expected])
    columns = dict(found.columns)
    np.testing.assert_array_equal(columns.pop("area"), [one.area for one in expected])
    ndim = len(at)
    for i, axis in enumerate(at):
        middles = np.array([one.centroid[i] for one in expected])
        middles = place.get(axis, 0) + scale.get(axis, 1) * middles
        np.testing.assert_allclose(columns.pop(f"centroid_{axis}"), middles, rtol=1e-12)
        np.testing.assert_array_equal(columns.pop(f"start_{axis}"), [o.bbox[i] for o in expected])
        stops = [one.bbox[ndim + i] for one in expected]
        np.testing.assert_array_equal(columns.pop(f"stop_{axis}"), stops)
    for name, method in (
        ("mean", "intensity_mean"),
        ("min", "intensity_min"),
        ("max", "intensity_max"),
    ):
        told = np.array([getattr(one, method) for one in expected], float)
        for i, channel in enumerate(channels or [None]):
            column = columns.pop(f"{name}_{channel}" if channel else name)
            np.testing.assert_allclose(column, told[:, i] if channel else told, rtol=1e-6)
    assert columns == {}


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_the_table(tmp_path, version):
    """As zarr-python reads it: the elements that AnnData asks for, and what ngio asks for."""
    ids = objects(30, 40)
    options = {"axes": "yx", "labels": {"cells": ids}, "version": version}
    zd.ome.write(intensities(30, 40), tmp_path / "i", **options)
    found = zd.ome.measure(tmp_path / "i", "cells")
    table = zarr.open_group(tmp_path / "i/tables/cells", mode="r")
    assert dict(zarr.open_group(tmp_path / "i/tables", mode="r").attrs) == {"tables": ["cells"]}
    told = {
        name: (table[name] if name else table).attrs["encoding-type"]
        for name in ("", "X", "obs", "obs/label", "var", "var/name", "layers", "obsm", "uns")
    }
    assert [*told.values()] == [
        "anndata", "array", "dataframe", "string-array", "dataframe", "string-array",
        *["dict"] * 3,
    ]  # fmt: skip
    assert (table["obs"].attrs["_index"], table["var"].attrs["_index"]) == ("label", "name")
    assert [*table["obs/label"][:]] == [str(one) for one in np.unique(ids)[1:]]
    assert [*table["var/name"][:]] == list(found.columns)
    np.testing.assert_array_equal(table["X"][:], np.stack([*found.columns.values()], -1))
    assert table.attrs["region"] == {"path": "../labels/cells"}
    assert (table.attrs["type"], table.attrs["backend"]) == ("feature_table", "anndata")
    assert zd.ome.validate(tmp_path / "i") == []


def test_tables_are_listed_replaced_and_consolidated(tmp_path):
    url = tmp_path / "i"
    zd.ome.write(intensities(9, 9), url, axes="yx", labels={"cells": objects(9, 9)})
    zd.consolidate(url)
    zd.ome.measure(url, "cells", table="first")
    zd.ome.measure(url, "cells")
    with pytest.raises(NodeExistsError, match="overwrite=True"):
        zd.ome.measure(url, "cells")
    level = zd.ome.open(url, mode="r+").level(0)
    level[...] = 5
    zd.ome.measure(url, "cells", overwrite=True)
    group = zd.open_group(url)
    assert group["tables"].attributes["tables"] == ["first", "cells"]
    assert (group["tables/cells/X"][:, -1] == 5).all()
    assert not (group["tables/first/X"][:, -1] == 5).all()
    assert "tables/cells/X" in dict(group.arrays(recursive=True))


def test_a_table_is_seen_when_it_is_whole():
    """A table that was not completed is none, and is written anew."""
    store = MemoryStore()
    zd.ome.write(intensities(9, 9), store, axes="yx", labels={"cells": objects(9, 9)})
    before = set(store.list())
    for change in range(1, 30):
        seen = []

        def fault(verb, key, change=change, seen=seen):
            if verb.startswith("set"):
                seen.append(key)
                if len(seen) == change:
                    raise StoreError("stopped")

        for key in set(store.list()) - before:
            store.delete(key)
        try:
            zd.ome.measure(HookStore(store, fault), "cells")
        except StoreError:
            pass
        else:
            break
        whole = "tables/cells/zarr.json" in store.list()
        assert whole == (seen[-1] == "tables/zarr.json" and len(seen) > 2)
        found = zd.ome.measure(store, "cells", overwrite=whole)
        assert zd.open_group(store, "tables").attributes["tables"] == ["cells"]
        assert zd.open_group(store, "tables/cells")["X"].shape[0] == len(found)
    assert change > 10


def test_labels_of_one_channel_and_none():
    values = intensities(3, 20, 20)
    ids = objects(1, 20, 20)
    store = {}
    labels = {"one": zd.ome.LabelImage(ids, axes="cyx"), "none": np.zeros((20, 20), "u1")}
    zd.ome.write(values, store, axes="cyx", labels=labels, chunks=(1, 7, 7))
    found = zd.ome.measure(store, "one")
    np.testing.assert_array_equal(found.columns["area"], np.unique(ids, return_counts=True)[1][1:])
    means = [values[2][ids[0] == one].mean() for one in found.labels]
    np.testing.assert_allclose(found.columns["mean_2"], means)
    assert len(zd.ome.measure(store, "none")) == 0
    assert zd.open_group(store, "tables/none")["X"].shape == (0, len(found.columns))


def test_refused():
    store = {}
    zd.ome.write(intensities(2, 9, 9), store, axes="cyx", labels={"both": objects(2, 9, 9)})
    with pytest.raises(GridError, match="one label"):
        zd.ome.measure(store, "both")
    with pytest.raises(KeyError, match="no label image 'cells'"):
        zd.ome.measure(store, "cells")
    for name in ("", "..", "a/b"):
        with pytest.raises(MetadataError, match="name of a node"):
            zd.ome.measure(store, "both", table=name)
    waves = {}
    ids = {"cells": objects(9, 9)}
    zd.ome.write(intensities(9, 9).astype("c8"), waves, axes="yx", labels=ids, method="nearest")
    with pytest.raises(DataTypeError, match="complex64"):
        zd.ome.measure(waves, "cells")
    assert not any("tables" in key for key in [*store, *waves])
