"""Open nodes, of zarr-python and our own, as places of all functions that take one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from zarr_dask.errors import ConsolidatedMetadataWarning, NodeExistsError, ReadOnlyError, StoreError
from zarr_dask.formats import detect
from zarr_dask.formats.documents import looking_once
from zarr_dask.hierarchy.locate import parent_format
from zarr_dask.stores import LocalStore
from zarr_dask.stores.real_location import blocking_file

VALUES = np.arange(12, dtype="i4").reshape(3, 4)
OUTPUT = {"u": {"shape": (4,), "dtype": "f4"}}


@pytest.fixture
def root(tmp_path) -> str:
    """A group, with the array "b/x" in a group "b"."""
    where = str(tmp_path / "a.zarr")
    zarr.create_group(where).create_array(
        "b/x", data=VALUES, chunks=(2, 2), dimension_names=("t", "x")
    )
    return where


def of_zarr_python(root: str, path: str = "b") -> Any:
    return zarr.open(root, path=path, mode="r+")


def of_our_own(root: str, path: str = "b") -> Any:
    return zd.open(root, path, mode="r+")


WRITES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "create_array": (lambda g: zd.create_array(g, "n", shape=4, dtype="i4"), "b/n"),
    "create_group": (lambda g: zd.create_group(g, "n"), "b/n"),
    "to_zarr": (lambda g: zd.to_zarr(da.from_array(VALUES), g, "n"), "b/n"),
    "rechunk": (lambda g: zd.rechunk(g["x"], g, path="n", chunks=(3, 1)), "b/n"),
    "several": (lambda g: zd.rechunk([g["x"]], g, path=["n"], chunks=[(3, 1)]), "b/n"),
    "copy": (lambda g: zd.copy(g["x"], g, path="n"), "b/n"),
    "ome.write": (lambda g: zd.ome.write(da.from_array(VALUES), g, "n", axes="yx"), "b/n/0"),
    "Writer": (lambda g: zd.Writer.create(g, OUTPUT), "b/u"),
}


@pytest.mark.parametrize("opened", [of_zarr_python, of_our_own])
@pytest.mark.parametrize("name", WRITES)
def test_nodes_are_written_into(root, opened, name):
    write, made = WRITES[name]
    write(opened(root))
    assert sorted({"b", "b/x", made} - set(_members(root))) == []


def _members(root: str) -> list[str]:
    return [path for path, _ in zarr.open_group(root, mode="r").members(max_depth=None)]


@pytest.mark.parametrize("name", WRITES)
def test_nodes_opened_for_reading_are_not_written_into(root, name):
    before = _members(root)
    for group in (zd.open(root, "b"), zarr.open_group(root, path="b", mode="r")):
        with pytest.raises(ReadOnlyError):
            WRITES[name][0](group)
        assert _members(root) == before


@pytest.mark.parametrize("opened", [of_zarr_python, of_our_own])
def test_nodes_are_read_and_changed(root, opened):
    survey = zd.inventory(opened(root))
    assert [node.path for node in survey.nodes] == ["", "x"]
    assert [node.path for node in zd.inventory(opened(root, "b/x")).nodes] == [""]
    assert zd.open_dataset(opened(root))["x"].values.tolist() == VALUES.tolist()
    assert zd.from_zarr(opened(root), "x").compute().tolist() == VALUES.tolist()
    zd.consolidate(opened(root))
    found = zarr.open_group(root, path="b", mode="r")
    assert list(found.metadata.consolidated_metadata.metadata) == ["x"]
    with pytest.warns(ConsolidatedMetadataWarning):
        zd.delete(opened(root), "x")
    assert _members(root) == ["b"]


@pytest.mark.parametrize("opened", [of_zarr_python, of_our_own])
def test_outputs_of_simulations_lie_in_nodes(root, opened):
    with zd.Writer.create(opened(root), OUTPUT) as writer:
        assert writer.ranks == 1
    with zd.Writer.attach(opened(root), 0) as writer:
        writer.write_step(0, {"u": np.ones(4, "f4")})
    assert zd.Writer.attach(opened(root)).publish(flush=True) == 1
    assert zarr.open(root, path="b/u", mode="r")[...].tolist() == [[1.0] * 4]
    zd.Writer.abandon(opened(root))
    assert zd.verify(root).ok


@pytest.mark.parametrize("opened", [of_zarr_python, of_our_own])
def test_nodes_are_migrated(tmp_path, opened):
    old = str(tmp_path / "old.zarr")
    group = zarr.create_group(old, zarr_format=2)
    group.create_array("b/x", data=VALUES)
    new, into = str(tmp_path / "new.zarr"), str(tmp_path / "into.zarr")
    zd.migrate(opened(old), new)
    assert _members(new) == ["x"]  # what is copied is the node
    zarr.create_group(into).create_group("c")
    zd.migrate(opened(old), opened(into, "c"))
    assert sorted(_members(into)) == ["c", "c/x"]
    zd.migrate(opened(old))
    assert zarr.open(old, path="b/x", mode="r", zarr_format=3)[...].tolist() == VALUES.tolist()


def test_nodes_take_no_options_and_arrays_hold_no_nodes(root):
    with pytest.raises(StoreError, match="not taken"):
        zd.create_group(of_our_own(root), "n", storage_options={"anon": True})
    for opened in (of_zarr_python, of_our_own):
        with pytest.raises(NodeExistsError, match="would lie inside the array"):
            zd.create_group(opened(root, "b/x"), "n")


def test_a_new_array_in_files_takes_few_looks(tmp_path, monkeypatch):
    """In a missing folder no file is opened, and each node is looked at a few times at most."""
    zd.create_array(tmp_path / "a.zarr", shape=(4,), dtype="i2")  # modules are imported by now
    opened = []
    monkeypatch.setattr(
        os, "open", lambda *a, _open=os.open, **k: opened.append(a) or _open(*a, **k)
    )
    zd.create_array(tmp_path / "new" / "b.zarr", shape=(4,), dtype="i2")
    assert len(opened) <= 30


def test_the_root_of_the_file_system_is_a_place_as_any_other():
    assert blocking_file(LocalStore("/"), "") is None
    assert blocking_file(LocalStore("/"), "dev/null/x") == "/dev/null"
    assert parent_format(LocalStore("/"), "") == "v3"


def test_an_append_opens_few_files_and_resolves_its_path_once(tmp_path, monkeypatch):
    """One real path, and two opens for each of the document, the object and the locks."""
    array = zd.create_array(tmp_path / "a.zarr", shape=(0, 2), dtype="i2", chunks=(1, 2))
    array.append([[1, 2]])  # what is looked up once for a process is known by now
    calls = {"open": 0, "realpath": 0}

    def counted(module, name):
        call = getattr(module, name)

        def noted(*args, **options):
            calls[name] += 1
            return call(*args, **options)

        monkeypatch.setattr(module, name, noted)

    counted(os, "open")
    counted(os.path, "realpath")
    array.append([[3, 4]])
    assert calls["realpath"] <= 2
    assert calls["open"] <= 28
    assert array[...].tolist() == [[1, 2], [3, 4]]


def test_creating_and_appending_look_at_the_folder_around_once(tmp_path, monkeypatch) -> None:
    looked_at: list[str] = []
    formats_at = detect.formats_at

    def noted(store: Any, path: str) -> Any:
        looked_at.extend([path] * (store.url == str(tmp_path)))
        return formats_at(store, path)

    monkeypatch.setattr(detect, "formats_at", noted)
    array = zd.create_array(tmp_path / "a", shape=(0, 2), dtype="i1", chunks=(1, 2))
    assert looked_at == [""]
    array.append([[1, 2]])
    assert looked_at == [""] * 2
    with looking_once(), looking_once():  # the outer one counts
        detect.nodes_around(LocalStore(str(tmp_path)))
    assert looked_at == [""] * 3
    assert array[...].tolist() == [[1, 2]]


def test_array_in_new_folder_is_created_without_looking_into_it(tmp_path, monkeypatch):
    listed: list[str] = []
    opened: list[str] = []

    def count(names: list[str], call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *rest, **more: [names.append(str(path)), call(path, *rest, **more)][1]

    zd.create_array(tmp_path / "other" / "a", shape=(2,), dtype="i1")
    monkeypatch.setattr(os, "scandir", count(listed, os.scandir))
    monkeypatch.setattr(os, "open", count(opened, os.open))
    zd.create_array(tmp_path / "new" / "a", shape=(2,), dtype="i1")
    assert not listed
    looks = {f"{tmp_path}/new/a/{name}" for name in ("zarr.json", ".zarray", "meta")}
    found = [name for name in opened if name in looks]
    assert found == [f"{tmp_path}/new/a/zarr.json"]  # whether another process has made it
