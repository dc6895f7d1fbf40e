"""Reads that are compared with a manifest: what was damaged, lost or exchanged is found."""

from __future__ import annotations

import shutil

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.layouts import LAYOUTS, VALUES, Exact
from zarr_dask.cli import main
from zarr_dask.errors import ManifestError, ManifestMismatchError
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import ReadPolicy

VERIFYING = zd.ReadOptions(verify=True)
CODECS = {"uncompressed": {"codecs": []}, "default": {}, "in shards": {"shards": (4, 16)}}


class Remote(Exact):
    """A store that is asked for many values at a time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 40, max_concurrent_requests=64)


@pytest.fixture(params=CODECS)
def written(request, tmp_path):
    """An array of four stored objects at least, one of them left out as it holds fill values."""
    options = {"chunks": (4, 4), **CODECS[request.param]}
    values = VALUES.copy()
    values[8:] = 0
    x = da.from_array(values, chunks=(4, 16))
    zd.to_zarr(x, tmp_path / "a.zarr", "x", manifest=True, **options)
    return zd.open_array(tmp_path / "a.zarr", "x", "r+", read=VERIFYING), values


def reads(array):
    yield lambda: array[...]
    yield lambda: array[1, 2]
    yield lambda: array.oindex[[0, 1], [2, 3]]
    yield lambda: np.asarray(array.lazy[0:2])
    yield lambda: array.to_dask().compute(scheduler="sync")
    yield lambda: array.to_dask(chunks=(2, 2))[:2, :2].compute(scheduler="sync")


def check_found(array, key, words):
    for read in reads(array):
        with pytest.raises(ManifestMismatchError, match=words) as caught:
            read()
        assert caught.value.key == key
        assert caught.value.coords == ((0, 0),)


def test_what_is_whole_is_read(written):
    array, values = written
    assert np.array_equal(array[...], values)
    assert np.array_equal(array.to_dask().compute(scheduler="sync"), values)
    assert array[1, 2] == values[1, 2]
    assert np.array_equal(array.oindex[[9, 1], [2, 3]], values[np.ix_([9, 1], [2, 3])])


def test_lost_and_swapped_and_stale_and_damaged_objects_are_found(written):
    array, _ = written
    first, other = (array.key(at) for at in ((0, 0), (1, 0)))
    value, another = (bytes(array.store.get(key)) for key in (first, other))
    array.store.delete(first)
    check_found(array, first, "it is absent")
    array.store.set(first, [another])
    check_found(array, first, "receipt says")
    array.store.set(first, [value])
    assert array[0, 0] == VALUES[0, 0]
    plain = zd.open_array(array.store, "x", "r+")
    plain[0, 0] = 77
    check_found(array, first, "receipt says")
    array.store.set(first, [value[:-1] + bytes([value[-1] ^ 1])])
    check_found(array, first, "receipt says")
    array.store.set(first, [value + b"more"])
    check_found(array, first, "more than")
    array.store.set(first, [value])
    array.store.set(array.key((2, 0)), [value])
    with pytest.raises(ManifestMismatchError, match="left out on purpose"):
        array[8, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [MemoryStore, Remote])
def test_every_layout_in_near_and_far_stores(tmp_path, layout, kind):
    store, place = kind(), str(tmp_path / "x.manifest")
    zd.to_zarr(
        da.from_array(VALUES, chunks=-1), store, journal=tmp_path / "jobs", manifest=place,
        **LAYOUTS[layout],
    )  # fmt: skip
    array = zd.open_array(store, mode="r+", read=zd.ReadOptions(verify=place))
    assert np.array_equal(array[...], VALUES)
    assert np.array_equal(array[1:3, 2:9:3], VALUES[1:3, 2:9:3])
    keys = sorted(array.stored_keys())
    plain = zd.open_array(store, mode="r+")
    plain[-1, -1] = 5
    with pytest.raises(ManifestMismatchError) as caught:
        array[...]
    assert caught.value.key == array.key([n - 1 for n in array.meta.grid.counts])
    store.set(keys[0], [b""])
    with pytest.raises(ManifestMismatchError):
        array[0, 0]


def test_an_object_of_which_the_manifest_says_nothing_is_refused(tmp_path):
    array = zd.create_array(tmp_path / "a.zarr", shape=8, chunks=4, dtype="i2")
    read = VERIFYING
    with pytest.raises(ManifestError, match="there is no manifest"):
        zd.open_array(tmp_path / "a.zarr", read=read)[...]
    zd.to_zarr(da.arange(4, dtype="i2"), array, region=slice(0, 4), manifest=True)
    array = zd.open_array(tmp_path / "a.zarr", read=read)
    assert array[:4].tolist() == [0, 1, 2, 3]
    with pytest.raises(ManifestError, match="does not list the stored object 'c/1'"):
        array[4]
    with pytest.raises(ManifestError, match="no place beside it"):
        zd.open_array({**_root()}, read=read)[...]


def _root():
    store = {}
    zd.create_array(store, shape=1, dtype="i2", chunks=1)
    return store


def test_the_manifest_beside_an_array_is_of_all_jobs_that_keep_one(tmp_path):
    place, x = tmp_path / "a.zarr", da.arange(8, chunks=4)
    zd.create_group(place)
    zd.to_zarr(x, place, "g/x", manifest=True)
    inside = zd.open_array(place / "g" / "x", read=VERIFYING)
    zd.to_zarr(x + 8, place, "g/x", append=0, manifest=True)
    zd.to_zarr(x[:4] + 100, place, "g/x", region=slice(4, 8), manifest=True)
    expected = [0, 1, 2, 3, 100, 101, 102, 103, *range(8, 16)]
    for array in (
        zd.open_array(place, "g/x", read=VERIFYING),
        zd.open_array(place / "g" / "x", read=VERIFYING),
        zd.open_group(place / "g", read=VERIFYING)["x"],
    ):
        assert array[...].tolist() == expected
    assert inside[:4].tolist() == [0, 1, 2, 3]
    assert zd.verify(place, deep="decode", manifest=True).ok
    assert zd.verify(place / "g", "x", deep="receipts", manifest=True).ok
    (place / "g" / "x" / "c" / "3").unlink()
    report = zd.verify(place / "g", deep="index", manifest=True)
    assert [(one.kind, one.key) for one in report.findings] == [("absent", "x/c/3")]
    zd.to_zarr(x, place, "g/x", mode="w", overwrite=True)
    with pytest.raises(ManifestError, match="there is no manifest"):
        zd.open_array(place, "g/x", read=VERIFYING)[...]


def test_several_arrays_and_swaps_keep_manifests(tmp_path):
    place, x = tmp_path / "a.zarr", da.arange(8, chunks=4)
    zd.to_zarr([x, x + 1], place, ["x", "y"], manifest=True)
    zd.to_zarr(x + 2, place, "x", mode="swap", manifest=True)
    assert zd.open_array(place, "x", read=VERIFYING)[...].tolist() == list(range(2, 10))
    assert zd.open_array(place, "y", read=VERIFYING)[...].tolist() == list(range(1, 9))
    assert zd.verify(place, deep="receipts", manifest=True).ok


def test_jobs_that_read_such_an_array_do_not_take_what_differs(written, tmp_path):
    array, values = written
    zd.copy(array, tmp_path / "copied.zarr")
    assert np.array_equal(zd.open_array(tmp_path / "copied.zarr")[...], values)
    key = array.key((0, 0))
    array.store.set(key, [bytes(array.store.get(array.key((1, 0))))])
    for job in (
        lambda: zd.copy(array, tmp_path / "again.zarr"),
        lambda: zd.rechunk(array, tmp_path / "other.zarr", chunks=(12, 2), max_mem="100MB"),
        lambda: zd.digest(array),
        lambda: zd.compare(array, tmp_path / "copied.zarr"),
    ):
        with dask.config.set(scheduler="sync"), pytest.raises(ManifestMismatchError):
            job()


def test_a_manifest_that_is_replaced_is_read_again(tmp_path):
    place, x = tmp_path / "a.zarr", da.arange(8, chunks=4)
    zd.to_zarr(x, place, manifest=tmp_path / "m")
    read = zd.ReadOptions(verify=tmp_path / "m")
    assert zd.open_array(place, read=read)[7] == 7
    zd.to_zarr(x + 1, place, mode="w", overwrite=True, manifest=tmp_path / "m")
    assert zd.open_array(place, read=read)[7] == 8
    shutil.copytree(place, tmp_path / "b.zarr")
    assert zd.open_array(tmp_path / "b.zarr", read=read)[7] == 8


@pytest.mark.parametrize("wrong", [1, "", b"m", ["m"], None])
def test_values_that_name_no_manifest_are_refused(wrong):
    with pytest.raises(TypeError, match=r"verify=.*: expected True, False, a path or a URL"):
        zd.ReadOptions(verify=wrong)


def test_relative_paths_mean_the_same_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read = zd.ReadOptions(verify="x.manifest")
    assert read.verify == str(tmp_path / "x.manifest")


def test_the_command_line_reads_and_verifies(tmp_path):
    place = str(tmp_path / "a.zarr")
    zd.to_zarr(da.arange(8, chunks=4), place, manifest=True)
    kept = str(tmp_path / "a.zarr.zarr-dask" / "__manifest")
    calls = [
        ["head", place, "--verify"],
        ["digest", place, "--verify"],
        ["head", place, "--manifest", kept],
        ["verify", place, "--deep", "receipts", "--kept"],
    ]
    for call in calls:
        assert CliRunner().invoke(main, call).exit_code == 0, call
    (tmp_path / "a.zarr" / "c" / "0").unlink()
    for call in calls:
        done = CliRunner().invoke(main, call)
        assert done.exit_code != 0, call
        assert "c/0" in done.output, call


def test_datasets_are_verified(tmp_path):
    xr = pytest.importorskip("xarray")
    place = tmp_path / "a.zarr"
    zd.to_zarr(
        da.arange(8, chunks=4), place, "x", manifest=True, dimension_names=["t"], fill_value=-1
    )
    ds = zd.open_dataset(str(place), read=VERIFYING)
    assert isinstance(ds, xr.Dataset)
    assert ds["x"].values.tolist() == list(range(8))
    (place / "x" / "c" / "1").unlink()
    with dask.config.set(scheduler="sync"), pytest.raises(ManifestMismatchError):
        zd.open_dataset(str(place), read=VERIFYING)["x"].values  # noqa: B018
