"""What is refused leaves everything as it was, in the place that was named and around it."""

from __future__ import annotations

import shutil

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import NodeExistsError, ResumeError, StoreError, ZarrDaskError

X = da.ones((8, 8), chunks=4)
STEP = {"u": {"shape": (4, 4), "dtype": "f4", "chunks": (1, 2, 2)}}


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    """Arrays, a group, a file and a link to nothing."""
    folder = tmp_path_factory.mktemp("furnished")
    zd.to_zarr(X * 3, folder / "array.zarr", shards=(4, 4), chunks=(2, 2))
    zd.to_zarr([X, X + 1], folder / "group.zarr", ["u", "v"])
    zd.to_zarr([X, X + 1], folder / "source.zarr", ["u", "v"])
    (folder / "file").write_text("of somebody")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("nowhere")
    return folder


@pytest.fixture
def place(furnished, tmp_path, monkeypatch):
    """A copy of all that as the current folder."""
    shutil.copytree(furnished, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def state(folder):
    """All names, with what files hold and when they and folders were changed."""
    return {
        path.relative_to(folder).as_posix(): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
    }


def refused(folder, call, error=ZarrDaskError, match=None):
    before = state(folder)
    with pytest.raises(error, match=match):
        call()
    assert state(folder) == before


WRITES = {
    "to_zarr": lambda url, **options: zd.to_zarr(X, url, **options),
    "of two": lambda url, **options: zd.to_zarr([X, X], ["free.zarr", url], **options),
    "lazily": lambda url, **options: zd.to_zarr(X, url, compute=False, **options),
    "plan_write": lambda url, **options: zd.plan_write(X, url, **options),
    "rechunk": lambda url, **options: zd.rechunk("array.zarr", url, chunks=(4, 2), **options),
    "rechunk dask": lambda url, **options: zd.rechunk(X, url, chunks=(3, 3), **options),
    "copy": lambda url, **options: zd.copy("source.zarr", url, **options),
    "create_array": lambda url: zd.create_array(url, shape=(3,), dtype="f4"),
    "create_group": zd.create_group,
    "Writer": lambda url: zd.Writer.create(url, STEP, owners=zd.decompose((4, 4), (2, 2))),
}


@pytest.mark.parametrize("url", ["file", "file/below", "file/deep/below", "link", "link/below"])
@pytest.mark.parametrize("way", WRITES)
def test_a_file_is_no_place_for_an_array(place, way, url):
    refused(place, lambda: WRITES[way](url), NodeExistsError, "is a file, or a link")


@pytest.mark.parametrize(
    "options", [{"mode": "w"}, {"mode": "w-"}, {"mode": "swap"}, {"overwrite": True}]
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_no_place_whatever_the_mode(place, options, resume):
    write = WRITES["to_zarr"]
    refused(place, lambda: write("file", resume=resume, **options), NodeExistsError)
    named = {"component": "file", "resume": resume, **options}
    refused(place, lambda: write(".", **named), NodeExistsError)


@pytest.mark.parametrize("way", WRITES)
def test_there_is_no_node_in_an_array_that_the_path_leads_into(place, way):
    for url in ("group.zarr/u/inner", "group.zarr/u/deep/inner"):
        refused(place, lambda url=url: WRITES[way](url), NodeExistsError, "inside the array")


@pytest.mark.parametrize("way", ["to_zarr", "rechunk", "rechunk dask", "copy"])
def test_a_journal_without_a_place_costs_no_array(place, way):
    zd.to_zarr(X, "old.zarr")

    def write():
        WRITES[way]("old.zarr", overwrite=True, journal="file/journal")

    refused(place, write, StoreError, "journal= needs a folder")


def test_output_of_a_simulation_with_a_journal_without_a_place(place):
    def create():
        owners = zd.decompose((4, 4), (2, 2))
        zd.Writer.create("run.zarr", STEP, owners=owners, journal="file")

    refused(place, create, StoreError, "journal= needs a folder")


@pytest.mark.parametrize("way", ["to_zarr", "rechunk", "rechunk dask", "copy", "ome", "Writer"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_journal_is_no_part_of_what_is_written(place, way, below):
    ways = WRITES | {
        "ome": lambda url, **options: zd.ome.write(X, url, axes="yx", **options),
        "Writer": lambda url, **options: zd.Writer.create(url, STEP, **options),
    }
    call = ways[way]
    refused(place, lambda: call("free.zarr", journal=f"free.zarr{below}"), ResumeError, "inside of")


@pytest.mark.parametrize("manifest", ["folder", "file/manifest", "array.zarr"])
def test_a_manifest_without_a_place_is_refused_at_once(place, manifest):
    refused(place, lambda: zd.to_zarr(X, "free.zarr", manifest=manifest), StoreError, "manifest=")


@pytest.mark.parametrize(
    "options",
    [{"progress": "yes"}, {"window": 0}, {"window": 4, "chunks": (3, 3)}],
)
def test_how_to_run_it_is_checked_before_an_array_is_replaced(place, options):
    error = (ValueError, TypeError)
    refused(place, lambda: zd.to_zarr(X, "array.zarr", mode="w", **options), error)


def test_of_several_arrays_none_is_written(place):
    def write(seconds, **options):
        refused(place, lambda: zd.to_zarr([X, X], ["free.zarr", seconds], **options))

    for options in ({}, {"resume": True}, {"journal": "journals"}, {"compute": False}):
        write("array.zarr", **options)
        write("free.zarr", **options)
        write("free.zarr/below", **options)
        write("file", **options)


def test_links_to_folders_are_places(place):
    (place / "short").symlink_to(place / "folder")
    zd.to_zarr(X, "short/array.zarr")
    zd.to_zarr(X, "short", "below", journal="short/journal", manifest="short/manifest")
    shutil.rmtree("short/array.zarr")
    np.testing.assert_array_equal(zd.open_array("folder", "below")[...], 1)
