"""Zip archives as the target of jobs: of one process, in one go, or not at all."""

from __future__ import annotations

import zipfile

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError, StoreError, StoreOutOfReachError

VALUES = np.arange(1, 24 * 20 + 1, dtype="f4").reshape(24, 20)


@pytest.fixture
def hierarchy(tmp_path):
    group = zd.create_group(tmp_path / "s.zarr", attributes={"title": "run"})
    array = group.create_array(
        "deep/a", shape=(24, 20), chunks=(3, 20), dtype="f4", dimension_names=("y", "x")
    )
    array[...] = VALUES
    return group


def test_a_copy_becomes_an_archive(hierarchy, tmp_path):
    report = zd.copy(hierarchy, tmp_path / "b.zip", chunks={"y": -1, "x": 4}, verify=True)
    assert report.tasks
    found = zarr.open_group(zarr.storage.ZipStore(tmp_path / "b.zip", mode="r"), mode="r")
    assert np.array_equal(found["deep/a"][...], VALUES)
    assert found["deep/a"].chunks == (24, 4)
    assert found.attrs["title"] == "run"
    zd.copy(hierarchy, str(tmp_path / "b.zip"), path="more")  # the old entries stay
    assert zd.compare(zd.open(tmp_path / "b.zip")["more/deep/a"], VALUES)
    assert zd.open(tmp_path / "b.zip")["deep/a"].chunks == (24, 4)
    zd.copy(hierarchy, tmp_path / "b.zip", overwrite=True)
    assert sorted(p for p, _ in zd.open(tmp_path / "b.zip").arrays(recursive=True)) == ["deep/a"]
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert len(set(archive.namelist())) == len(archive.namelist())
        assert archive.testzip() is None
    assert {p.name for p in tmp_path.iterdir()} == {"b.zip", "s.zarr"}


def test_a_rechunking_becomes_an_archive(hierarchy, tmp_path):
    array = hierarchy["deep/a"]
    zd.rechunk(array, tmp_path / "b.zip", chunks=(24, 4), verify=True)
    assert np.array_equal(zd.open(tmp_path / "b.zip")[...], VALUES)
    zd.rechunk([array, array], tmp_path / "c.zip", path=["a", "b"], chunks=[(24, 4), (8, 8)])
    assert {path: one.chunks for path, one in zd.open(tmp_path / "c.zip").arrays()} == {
        "a": (24, 4),
        "b": (8, 8),
    }
    x = da.from_array(VALUES, chunks=(5, 20))
    zd.rechunk(x, tmp_path / "d.zip", path="x", chunks=(24, 4), max_mem="20MB", verify=True)
    assert np.array_equal(zd.open(tmp_path / "d.zip", "x")[...], VALUES)
    assert {p.name for p in tmp_path.iterdir()} == {"b.zip", "c.zip", "d.zip", "s.zarr"}


def test_stages_do_not_go_into_the_archive(tmp_path):
    values = np.arange(1, 2000 * 2000 + 1, dtype="f4").reshape(2000, 2000)
    source = zd.create_array(
        tmp_path / "s", shape=values.shape, chunks=(2000, 250), dtype="f4", codecs=["blosc"]
    )
    source[...] = values
    plan = zd.plan_rechunk(source, tmp_path / "b.zip", chunks=(250, 2000), max_mem="8MB", threads=1)
    assert len(plan.stages) > 1
    with dask.config.set(num_workers=1):
        plan.run()
    assert np.array_equal(zd.open(tmp_path / "b.zip")[...], values)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert len(archive.namelist()) == 9
    assert {p.name for p in tmp_path.iterdir()} == {"b.zip", "s"}


def test_an_image_becomes_an_archive(tmp_path):
    pixels = np.random.default_rng(1).integers(1, 999, (200, 300), dtype="u2")
    zd.ome.write(pixels, tmp_path / "i.zarr.zip", axes="yx", chunks=(64, 64), levels=3)
    image = zd.ome.open(tmp_path / "i.zarr.zip")
    assert image.group.attributes["ome"]["multiscales"][0]["name"] == "i"
    assert np.array_equal(image.levels[0].array[...], pixels)
    assert len(image.levels) == 3


def test_nothing_appears_of_a_job_that_fails(hierarchy, tmp_path):
    (tmp_path / "s.zarr/deep/a/c/2/0").write_bytes(b"no chunk")
    with pytest.raises(CorruptObjectError):
        zd.copy(hierarchy, tmp_path / "b.zip", chunks={"y": -1})
    with pytest.raises(CorruptObjectError):
        zd.rechunk(hierarchy["deep/a"], tmp_path / "b.zip", chunks=(24, 4))
    assert {p.name for p in tmp_path.iterdir()} == {"s.zarr"}


def test_archives_of_jobs_on_processes_are_refused(hierarchy, tmp_path):
    array = hierarchy["deep/a"]
    with dask.config.set(scheduler="processes"):
        for job in (
            lambda: zd.copy(hierarchy, tmp_path / "b.zip"),
            lambda: zd.rechunk(array, tmp_path / "b.zip", chunks=(24, 4)),
            lambda: zd.ome.write(VALUES, tmp_path / "b.zip", axes="yx"),
            lambda: zd.to_zarr(da.ones(4), tmp_path / "b.zip"),
        ):
            with pytest.raises(StoreOutOfReachError, match="compute with threads"):
                job()
    with pytest.raises(StoreError, match="one process"):
        zd.plan_copy(hierarchy, tmp_path / "b.zip").to_json()
    assert not (tmp_path / "b.zip").exists()


def test_one_archive_has_one_folder(hierarchy, tmp_path):
    array = hierarchy["deep/a"]
    places = [tmp_path / "b.zip/one", tmp_path / "b.zip/two"]
    with pytest.raises(StoreError, match="two folders"):
        zd.rechunk([array, array], places, chunks=(24, 4))
