"""Reads of one version of an array, whatever is written meanwhile (`ReadOptions.consistent`)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.object_stores import S3Server, s3_server
from zarr_dask.array import object_versions as versions
from zarr_dask.errors import ArrayChangedError, StoreError
from zarr_dask.stores import Recording, open_store

SHAPE = (6, 8)
VALUES = np.arange(48, dtype="i4").reshape(SHAPE) + 1
CONSISTENT = zd.ReadOptions(consistent=True)
LAYOUTS: dict[str, Any] = {
    "chunks": {"chunks": (2, 8)},
    "shards": {"chunks": (2, 2), "shards": (2, 8)},
    "plain": {"chunks": (2, 8), "codecs": ["bytes"]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["local", "obstore", "fsspec"])
def place(request, tmp_path_factory) -> tuple[str, dict[str, Any] | None]:
    if request.param == "local":
        return str(tmp_path_factory.mktemp("versions")), None
    server = request.getfixturevalue("server")
    name = request.node.name.replace("[", "-").replace("]", "")
    return f"s3://bucket/{name}", {**server.options, "backend": request.param}


@pytest.fixture(params=LAYOUTS)
def array(request, place) -> zd.Array:
    url, options = place
    found = zd.create_array(
        f"{url}/a.zarr", shape=SHAPE, dtype="i4", storage_options=options, **LAYOUTS[request.param]
    )
    found[:4] = VALUES[:4]  # the last object is absent
    return found


def opened(array: zd.Array, read: zd.ReadOptions = CONSISTENT) -> zd.Array:
    return zd.open_array(array.store, array.path, read=read)


def expected() -> np.ndarray:
    return np.concatenate([VALUES[:4], np.zeros((2, 8), "i4")])


def test_what_has_not_changed_is_read(array: zd.Array) -> None:
    found = opened(array)
    np.testing.assert_array_equal(found[...], expected())
    np.testing.assert_array_equal(found[1:3, 2:5], expected()[1:3, 2:5])
    np.testing.assert_array_equal(found[[0, 3, 5], 1], expected()[[0, 3, 5], 1])
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(zd.from_zarr(found).compute(), expected())


CHANGES = {
    "replaced": lambda array: array.__setitem__(slice(2, 4), 7),
    "put": lambda array: array.__setitem__(slice(4, 6), 7),
    "removed": lambda array: array.__setitem__(slice(2, 4), 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_read_that_meets_another_version_is_an_error(change: str, array: zd.Array) -> None:
    found = opened(array)
    np.testing.assert_array_equal(found[:2], expected()[:2])
    CHANGES[change](array)
    np.testing.assert_array_equal(found[:2], expected()[:2])  # as it was
    with pytest.raises(ArrayChangedError, match=change):
        found[...]
    with pytest.raises(ArrayChangedError, match=change):
        found[4:, 1] if change == "put" else found[2:4, 1]
    assert opened(array)[...].shape == SHAPE


def test_tasks_of_one_graph_read_one_version(array: zd.Array) -> None:
    """Some of them before a change, and the others after it."""
    lazy = zd.from_zarr(opened(array), chunks=(2, 8))
    with dask.config.set(scheduler="sync"):
        lazy.blocks[0].compute()
        array[2:4] = 7
        with pytest.raises(ArrayChangedError):
            lazy.compute()


def test_a_process_that_comes_later_sees_the_same_versions_or_none(
    array: zd.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(opened(array))
    monkeypatch.setattr(versions, "_KNOWN", type(versions._KNOWN)())
    np.testing.assert_array_equal(pickle.loads(sent)[...], expected())
    array[:2] = 7
    monkeypatch.setattr(versions, "_KNOWN", type(versions._KNOWN)())
    with pytest.raises(ArrayChangedError, match="Open it again"):
        pickle.loads(sent)[4:]  # has not changed, but this process cannot know


def test_a_version_that_was_named_is_opened_or_nothing(array: zd.Array) -> None:
    named = opened(array).options
    np.testing.assert_array_equal(opened(array, named)[...], expected())
    array[:2] = 7
    versions._KNOWN.clear()
    with pytest.raises(ArrayChangedError):
        opened(array, named)[...]


def test_arrays_of_a_group_are_of_the_moment_when_they_are_opened(place) -> None:
    url, options = place
    group = zd.create_group(f"{url}/g.zarr", storage_options=options)
    array = group.create_array("a", data=VALUES, chunks=(2, 8))
    found = zd.open_group(f"{url}/g.zarr", storage_options=options, read=CONSISTENT)["a"]
    array[0] = 7
    with pytest.raises(ArrayChangedError):
        found[...]


def test_a_file_that_is_written_again_with_the_same_bytes_is_another_version(tmp_path) -> None:
    array = zd.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(2, 8))
    found = opened(array)
    file = tmp_path / "a.zarr" / "c" / "0" / "0"
    file.with_name("new").write_bytes(file.read_bytes())
    file.with_name("new").replace(file)
    with pytest.raises(ArrayChangedError):
        found[0]


def test_a_store_without_tags_is_refused() -> None:
    values: dict[str, bytes] = {}
    zd.create_array(values, data=VALUES)
    with pytest.raises(StoreError, match="consistent=True"):
        zd.open_array(values, read=CONSISTENT)


def test_what_is_copied_is_compared(tmp_path) -> None:
    array = zd.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(2, 8))
    found = opened(array)
    array[0] = 7
    with pytest.raises(ArrayChangedError):
        zd.copy(found, tmp_path / "b.zarr")
    with pytest.raises(ArrayChangedError):
        zd.to_zarr(da.from_array(found, chunks=(2, 8)), tmp_path / "c.zarr")


def test_a_listing_tells_all_tags(server: S3Server) -> None:
    """One at opening; then requests on condition of the tags, which cost nothing besides."""
    options = {**server.options, "backend": "obstore"}
    array = zd.create_array(
        "s3://bucket/counted.zarr", data=VALUES, chunks=(1, 8), storage_options=options
    )
    store = Recording(open_store("s3://bucket/counted.zarr", options))
    plain, found = (zd.open_array(store, read=read) for read in (None, CONSISTENT))
    store.requests.clear()
    np.testing.assert_array_equal(plain[...], VALUES)
    without = len(store.requests)
    store.requests.clear()
    np.testing.assert_array_equal(found[...], VALUES)
    assert len(store.requests) == without
    array[5] = 7
    with pytest.raises(ArrayChangedError):
        found[...]


@pytest.mark.parametrize("given", [1, None])
def test_other_values_of_the_option_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="consistent"):
        zd.ReadOptions(consistent=given)
