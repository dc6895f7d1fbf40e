"""What a graph reads is not written over, however deep it is hidden and whoever reads it."""

from __future__ import annotations

from functools import partial

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem

import zarr_dask as zd
from zarr_dask.errors import ManifestError, SourceIsTargetError
from zarr_dask.jobs.engine.find_sources import find_lazy_arrays
from zarr_dask.stores import LocalStore, MemoryStore
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.real_location import place_of_target
from zarr_dask.stores.wrappers.base import PrefixStore, Recording

SHAPE = (40, 40)
VALUES = np.arange(1600.0).reshape(SHAPE)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def read_part(block, array, region=np.s_[:20, :20]):
    return block + array[region]


def hidden_in_a_closure(place):
    array = zd.open_array(place)

    def add(block):
        return block + array[0, 0]

    return da.ones(SHAPE, chunks=20).map_blocks(add, dtype="f8", meta=np.empty((0, 0)))


MODULE: dict = {}


def hidden_in_a_variable_of_the_module(place):
    exec("def first(): return array[0, 0]\ndef add(block): return block + first()", MODULE)  # noqa: S102
    MODULE["array"] = zd.open_array(place)
    return da.ones(SHAPE, chunks=20).map_blocks(MODULE["add"], dtype="f8", meta=np.empty((0, 0)))


def below_a_folder_of_fsspec(place):
    folder = DirFileSystem(path=str(place.parent), fs=fsspec.filesystem("file"))
    wrapped = AsyncFileSystemWrapper(folder, asynchronous=True)
    store = zarr.storage.FsspecStore(wrapped, path=place.name)
    return da.from_array(zarr.open_array(store, mode="r"), chunks=20)


class Reader:
    """An object of the user's own that holds an array."""

    __slots__ = ("inner",)

    def __init__(self, array) -> None:
        self.inner = {"deep": [(array,)]}

    def read(self, block):
        return block + self.inner["deep"][0][0][0, 0]


@dask.delayed
def load(arrays, name):
    return np.asarray(arrays[name][0])


HIDDEN = {
    "an argument of map_blocks": lambda place: da.ones(SHAPE, chunks=20).map_blocks(
        read_part, zd.open_array(place), dtype="f8", meta=np.empty((0, 0))
    ),
    "a keyword of map_blocks": lambda place: da.ones(SHAPE, chunks=20).map_blocks(
        read_part, array=zd.open_array(place), dtype="f8", meta=np.empty((0, 0))
    ),
    "a partial function": lambda place: da.ones(SHAPE, chunks=20).map_blocks(
        partial(read_part, array=zd.open_array(place)), dtype="f8", meta=np.empty((0, 0))
    ),
    "a closure": hidden_in_a_closure,
    "a variable of the module": hidden_in_a_variable_of_the_module,
    "a mapping over files": lambda place: zd.from_zarr(fsspec.get_mapper(str(place))),
    "a folder of fsspec": below_a_folder_of_fsspec,
    "a method": lambda place: da.ones(SHAPE, chunks=20).map_blocks(
        Reader(zd.open_array(place)).read, dtype="f8", meta=np.empty((0, 0))
    ),
    "a list in a mapping of a delayed call": lambda place: da.from_delayed(
        load({"a": [zd.open_array(place)]}, "a"), SHAPE, "f8"
    ),
    "fused tasks": lambda place: dask.optimize((zd.from_zarr(place) + 1)[5:, ::2].T.rechunk(7))[0],
    "optimised, then used again": lambda place: (
        dask.optimize(zd.from_zarr(place).sum(axis=0))[0] + da.ones(SHAPE, chunks=20)
    ),
    "from_array": lambda place: da.from_array(zd.open_array(place), chunks=20) + 1,
    "from_array, inlined": lambda place: da.from_array(
        zd.open_array(place), chunks=20, inline_array=True
    ),
    "zarr-python": lambda place: da.from_array(zarr.open_array(str(place), mode="r"), chunks=20),
    "zarr-python through fsspec": lambda place: da.from_zarr(f"file://{place}") + 1,
    "zarr-python, inlined": lambda place: da.from_zarr(str(place), inline_array=True).rechunk(7),
    "stacked": lambda place: da.stack([da.ones(SHAPE), zd.from_zarr(place)]).sum(axis=0),
    "overlapped": lambda place: zd.from_zarr(place).map_overlap(np.sqrt, depth=1, dtype="f8"),
    "of no use": lambda place: da.where(da.zeros(SHAPE, chunks=20), zd.from_zarr(place), 1),
}


@pytest.mark.parametrize("way", HIDDEN)
def test_hidden_sources_are_found(tmp_path, way):
    place = tmp_path / "a"
    zd.create_array(place, shape=SHAPE, dtype="f8", chunks=(10, 20))[...] = VALUES
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    values = HIDDEN[way](place)
    with pytest.raises(SourceIsTargetError, match="lost"):
        zd.to_zarr(values, place, mode="w")
    assert before == {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    zd.to_zarr(values, tmp_path / "other")


def references(place, prefix):
    """What kerchunk says of an array: which bytes of which files its keys are."""
    found = {
        str(path.relative_to(place)): [f"{prefix}{path}", 0, path.stat().st_size]
        for path in place.rglob("*")
        if path.name != ".zarray" and path.is_file()
    }
    return {"version": 1, "refs": {".zarray": (place / ".zarray").read_text(), **found}}


THROUGH_REFERENCES = {
    "a URL": lambda fo: zd.from_zarr("reference://", storage_options={"fo": fo}),
    "a mapping": lambda fo: zd.from_zarr(fsspec.filesystem("reference", fo=fo).get_mapper("")),
    "zarr-python": lambda fo: da.from_zarr("reference://", storage_options={"fo": fo}),
}


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("way", THROUGH_REFERENCES)
def test_what_references_lead_to_is_read(tmp_path, way, prefix):
    place = tmp_path / "a"
    array = zd.create_array(place, shape=SHAPE, dtype="f8", chunks=(10, 20), format="v2")
    array[...] = VALUES
    values = THROUGH_REFERENCES[way](references(place, prefix))
    for target in (place, tmp_path):
        with pytest.raises(SourceIsTargetError, match="lost"):
            zd.plan_write(values + 1, target, mode="w")
    zd.plan_write(values + 1, tmp_path / "b")


@pytest.mark.parametrize("engine", ["zarr", "zarr_dask"])
@pytest.mark.parametrize("chunks", [{}, "auto"], ids=str)
def test_sources_below_xarray_are_found(tmp_path, engine, chunks):
    place = tmp_path / "data.zarr"
    xr.Dataset({"a": (("y", "x"), VALUES)}).to_zarr(place, consolidated=False)
    if engine == "zarr":
        read = xr.open_dataset(place, engine=engine, chunks=chunks, consolidated=False)
    else:
        read = zd.open_dataset(place, chunks=chunks)
    values = (read["a"] * 2).data
    assert isinstance(values, da.Array)
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(values, place, "a", mode="w")
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES)


def test_memory_that_is_read():
    values: dict = {}
    zd.create_array(values, "a", shape=SHAPE, dtype="f8", chunks=20)[...] = VALUES
    x = zd.from_zarr(values, "a") + 1
    for place in (values, MemoryStore.over(values), Recording(MemoryStore.over(values))):
        with pytest.raises(SourceIsTargetError):
            zd.to_zarr(x, place, "a", mode="w")
    zd.to_zarr(x, values, "b")


def test_memory_that_zarr_python_reads():
    values: dict = {}
    theirs = zarr.create_array(zarr.storage.MemoryStore(values), name="a", shape=(4,), dtype="f8")
    x = da.from_zarr(theirs) + 1
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(x, values, "a/b", mode="w")


def test_one_place_whatever_the_options():
    plain = FsspecStore.from_url("memory://guards/x", {})
    other = FsspecStore.from_url("memory://guards/x", {"skip_instance_cache": True})
    zd.create_array(plain, "a", shape=(4,), dtype="f8")[...] = 1
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(zd.from_zarr(other, "a") + 1, plain, "a", mode="w")
    theirs = da.from_zarr("memory://guards/x/a") + 1
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(theirs, plain, "a", mode="w")


def test_servers_are_told_apart():
    here, there = (
        FsspecStore("s3://bucket", f'{{"endpoint_url": "https://{name}.example"}}')
        for name in ("here", "there")
    )
    assert place_of_target(here, "a") != place_of_target(there, "a")
    assert place_of_target(here, "a") == place_of_target(
        FsspecStore(
            "s3://bucket/",
            '{"client_kwargs": {"endpoint_url": "https://here.example"}, "key": "k"}',
        ),
        "a",
    )


def test_parts_of_a_store_are_told_apart(tmp_path):
    store = LocalStore(str(tmp_path))
    zd.create_array(PrefixStore(store, "one/"), shape=(4,), dtype="f8")[...] = 1
    x = zd.from_zarr(PrefixStore(store, "one/")) + 1
    zd.to_zarr(x, PrefixStore(store, "two/"))
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(x, PrefixStore(store, "one/"), mode="w")


def test_a_graph_that_holds_much_else_is_walked_once(tmp_path):
    """Objects that hang on each other in a circle, and many of them."""
    array = zd.create_array(tmp_path, shape=SHAPE, dtype="f8", chunks=20)
    circle: list = [array]
    circle.append({"self": circle, "more": [Reader(circle) for _ in range(1000)]})
    values = da.ones(SHAPE, chunks=20).map_blocks(
        lambda block, held=circle: block, dtype="f8", meta=np.empty((0, 0))
    )
    assert list(find_lazy_arrays(values)) == [array]


def test_the_tasks_of_a_graph_are_never_too_many(tmp_path, monkeypatch):
    """Only what hangs on functions is looked into up to a bound."""
    monkeypatch.setattr("zarr_dask.jobs.engine.find_sources._MOST_OBJECTS", 50)
    zd.create_array(tmp_path, shape=SHAPE, dtype="f8", chunks=2)[...] = VALUES
    values = zd.from_zarr(tmp_path).rechunk((5, 40)) + da.ones(SHAPE, chunks=1)
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(values, tmp_path, mode="w")


def test_what_has_been_computed_is_no_source(tmp_path):
    zd.create_array(tmp_path, shape=SHAPE, dtype="f8", chunks=20)[...] = VALUES
    assert not list(find_lazy_arrays((zd.from_zarr(tmp_path) + 1).persist()))


def _files(folder):
    folder.mkdir()
    for number in range(2):
        xr.Dataset({"a": ("x", VALUES[number])}).to_netcdf(folder / f"{number}.nc")
    return sorted(folder.iterdir())


def _netcdf(file):
    opened = pytest.importorskip("netCDF4").Dataset(file)
    opened.set_auto_mask(False)
    return opened["a"]


READ = {
    "xarray": lambda files: xr.open_mfdataset(files, combine="nested", concat_dim="x")["a"].data,
    "h5netcdf": lambda files: xr.open_dataset(files[0], engine="h5netcdf", chunks={})["a"].data,
    "h5py": lambda files: da.from_array(pytest.importorskip("h5py").File(files[1])["a"], chunks=9),
    "netCDF4": lambda files: da.from_array(_netcdf(files[1]), chunks=9),
}


@pytest.mark.parametrize("way", READ)
def test_files_that_are_read_are_not_removed(tmp_path, way):
    """They were removed with the group around them."""
    files = _files(tmp_path / "run")
    values = READ[way](files)
    dataset = xr.Dataset({"a": ("x", values)})
    zd.write_dataset(dataset, tmp_path / "run")
    for write in (
        lambda: zd.to_zarr(values, tmp_path / "run", mode="w"),
        lambda: zd.to_zarr(values, tmp_path, overwrite=True),
        lambda: zd.write_dataset(dataset, tmp_path / "run", mode="w"),
        lambda: zd.write_dataset(dataset, tmp_path / "run", mode="swap"),
    ):
        with pytest.raises(SourceIsTargetError, match="would be removed"):
            write()
    assert all(file.exists() for file in files)
    zd.to_zarr(values, tmp_path / "b")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values.compute())


def test_a_manifest_takes_the_place_of_no_other_file(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("x,y\n1,2\n")
    with pytest.raises(ManifestError, match=r"table\.csv' names a file that is no manifest"):
        zd.to_zarr(da.ones(8, chunks=4), tmp_path / "a", manifest=str(table))
    assert table.read_text() == "x,y\n1,2\n"
    assert not (tmp_path / "a").exists()
    kept = tmp_path / "kept"
    kept.touch()
    for value in (1, 2):  # the manifest of an earlier job
        zd.to_zarr(da.full(8, value, chunks=4), tmp_path / "a", mode="w", manifest=str(kept))
    assert zd.verify(tmp_path / "a", manifest=str(kept)).ok
