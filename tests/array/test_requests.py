"""How often a store is asked: requests are what remote data cost."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.layouts import LAYOUTS, SHAPE, VALUES, Exact, Far
from zarr_dask.stores import MemoryStore, Range, Recording
from zarr_dask.stores.base import ReadPolicy


def written(layout: str, store: MemoryStore | None = None) -> tuple[Recording, zd.Array]:
    """An array of `VALUES` in a store that begins to record now."""
    store = MemoryStore() if store is None else store
    options = {"dtype": "int32", "fill_value": 0, **LAYOUTS[layout]}
    zd.create_array(store, "a", shape=SHAPE, **options)[...] = VALUES
    recording = Recording(store)
    array = zd.open_array(recording, "a", mode="r+", format=options.get("format", "v3"))
    recording.clear()
    return recording, array


def data_keys(array: zd.Array) -> set[str]:
    grid = array.meta.grid
    return {
        f"a/{array.meta.chunk_key_encoding.key(part.coords)}"
        for part in grid.parts(grid.everything)
    }


def end_keys(array: zd.Array) -> set[str]:
    """Keys of the objects that the end of the array cuts, which an append may be changing."""
    grid = array.meta.grid
    return {
        array.key(part.coords) for part in grid.parts(grid.everything) if grid.cuts(part.coords)
    }


def counts(recording: Recording, method: str = "get") -> set[int]:
    return set(recording.per_key(method).values())


# --- opening ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "format", "keys"),
    [
        ("v3", "v3", ["zarr.json"]),
        ("v2", "v2", [".zarray", ".zattrs"]),
        ("v3", None, ["zarr.json", ".zarray", ".zattrs", ".zgroup"]),
        ("v2", None, ["zarr.json", ".zarray", ".zattrs", ".zgroup"]),
    ],
)
@pytest.mark.parametrize("path", ["", "a"])
def test_opening_an_array(layout, format, keys, path):
    store = MemoryStore()
    zd.create_array(store, path, shape=SHAPE, dtype="int32", **LAYOUTS[layout])
    for opener in (zd.open, zd.open_array):
        recording = Recording(store)
        opener(recording, path, format=format)
        prefix = f"{path}/" if path else ""
        assert recording.per_key() == {f"{prefix}{key}": 1 for key in keys}
        assert sum(recording.batches.values()) == 1


@pytest.mark.parametrize(
    ("version", "format", "batches"),
    [("v3", "v3", 1), ("v3", None, 1), ("v2", None, 2), ("v2", "v2", 3)],
)
def test_opening_a_group(version, format, batches):
    # the last one of v2 looks for consolidated metadata
    recording = Recording(MemoryStore())
    zd.create_group(recording, format=version, attributes={"title": "run 7"})
    recording.clear()
    assert zd.open_group(recording, format=format).attributes == {"title": "run 7"}
    assert sum(recording.batches.values()) == batches
    assert counts(recording) == {1}


class Dear(MemoryStore):
    """A store each request to which takes its time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)


V2_KEYS = [".zarray", ".zattrs", ".zgroup", ".zmetadata"]


@pytest.mark.parametrize(
    ("format", "wanted", "keys", "batches"),
    [
        ("v3", None, ["zarr.json"], 1),
        ("v3", "v3", ["zarr.json"], 1),
        ("v2", None, ["zarr.json", *V2_KEYS, "meta", "attrs"], 2),
        ("v2", "v2", V2_KEYS, 1),
    ],
)
def test_opening_where_requests_are_dear(format, wanted, keys, batches):
    store = Dear()
    zd.create_group(store, "a", format=format, attributes={"title": "run 7"})
    recording = Recording(store)
    opened = zd.open_group(recording, "a", format=wanted)
    assert (opened.attributes, opened.format) == ({"title": "run 7"}, format)
    root = {"zarr.json"} if "meta" in keys else set()  # of a draft, for all that is known
    assert recording.per_key() == dict.fromkeys({*root, *(f"a/{key}" for key in keys)}, 1)
    assert sum(recording.batches.values()) == batches


@pytest.mark.parametrize("format", ["v1", "v3draft", "v3draft-2022-05"])
def test_formats_that_hardly_anyone_has_where_requests_are_dear(format):
    store = Dear()
    zd.create_array(store, "a", shape=(4,), dtype="i4", format=format)
    for recording in (Recording(store), Recording(MemoryStore(store.values))):
        assert zd.open(recording, "a").format == format
        assert sum(recording.batches.values()) == (2 if format == "v1" else 3)


def test_several_formats_side_by_side_are_noticed_where_requests_cost_nothing():
    store = MemoryStore()
    for format in ("v2", "v3"):
        zd.create_array(made := MemoryStore(), shape=(4,), dtype="i4", format=format)
        store.values.update(made.values)
    with pytest.warns(UserWarning, match="v3 is used"):
        assert zd.open(store).format == "v3"
    assert zd.open(Dear(store.values)).format == "v3"  # a warning would be an error
    assert zd.open(Dear(store.values), format="v2").format == "v2"


def test_asking_for_nothing_where_requests_are_dear():
    recording = Recording(Dear())
    with pytest.raises(zd.errors.NodeNotFoundError):
        zd.open(recording, "a/b")
    # the second batch is for what hardly anyone has; nothing lies below it either
    assert recording.batches == {"get_ranges": 2, "list_dir": 1}
    names = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata", "meta", "attrs")
    assert recording.per_key() == {"zarr.json": 1} | {f"a/b/{name}": 1 for name in names}


def test_opening_reads_no_data():
    recording, array = written("shards")
    lazy = zd.from_zarr(array) + 1
    assert lazy.shape == SHAPE
    assert array.nbytes == VALUES.nbytes
    assert recording.requests == []


# --- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, None])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_read_is_one_request_per_stored_object(layout, threads):
    recording, array = written(layout)
    np.testing.assert_array_equal(array.read(threads=threads), VALUES)
    assert recording.per_key() == dict.fromkeys(data_keys(array), 1)
    assert {request.method for request in recording.requests} == {"get"}


@pytest.mark.parametrize("layout", ["v2", "v3", "v3 uncompressed", "shards in gzip"])
def test_part_of_a_chunk_is_one_request(layout):
    recording, array = written(layout)
    np.testing.assert_array_equal(array[1:3, 2], VALUES[1:3, 2])
    assert list(recording.per_key().values()) == [1]


@pytest.mark.parametrize("layout", ["shards", "shards, index first", "shards over the edge"])
@pytest.mark.parametrize("gap", [Far, Exact])
@pytest.mark.parametrize(
    "selection",
    [
        np.s_[0, 0],
        np.s_[1, 1:3],
        np.s_[:3, :5],
        np.s_[2:4, 2:4],
        np.s_[1:4:2, ::7],
    ],
    ids=str,
)
def test_part_of_a_shard_is_two_requests(layout, gap, selection):
    recording, array = written(layout, gap())
    np.testing.assert_array_equal(array[selection], VALUES[selection])
    index = array.codecs[0].configuration()["index_location"]
    for key in recording.per_key():
        first, *others = [r.range for r in recording.requests if r.key == key]
        assert first.start < 0 if index == "end" else first.start == 0
        assert others
        if gap is Far:
            assert len(others) == 1  # the index, then all chunks at once


def test_chunks_side_by_side_are_one_request():
    recording, array = written("shards", Exact())
    array[0:2, 0:8]  # a row of chunks, which lie one after the other
    assert recording.per_key() == {"a/c/0/0": 2}
    recording.clear()
    array[0:4, 0:2]  # a column of chunks: the first ones of two rows
    assert recording.per_key() == {"a/c/0/0": 3}
    assert recording.batches["get_ranges"] == 2


def test_bytes_in_vain_are_bounded():
    recording, array = written("shards", Exact())
    array[0, 0]
    asked = [r.range for r in recording.requests]
    assert asked[0] == Range(-(8 * 16 + 4))
    assert asked[1].stop - asked[1].start < len(recording.store.values["a/c/0/0"]) // 4


def test_part_of_a_nested_shard_is_one_request_per_level():
    recording, array = written("nested shards", Far())
    assert array[0, 0] == VALUES[0, 0]
    assert recording.per_key() == {"a/c/0/0": 3}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_absent_object_is_one_request_and_the_document_another(layout):
    recording = Recording(MemoryStore())
    options = {"dtype": "int32", **LAYOUTS[layout]}
    array = zd.create_array(recording, "a", shape=SHAPE, **options)
    recording.clear()
    document = array.node_format.node_keys("a")[0]
    assert array[0, 0] == 0
    assert recording.per_key() == {array.key((0, 0)): 1, document: 1}
    recording.clear()
    assert not array[...].any()
    assert recording.per_key() == dict.fromkeys([*data_keys(array), document], 1)


def test_two_reads_are_two_requests():
    """Nothing is kept: another process may have written meanwhile."""
    recording, array = written("v3")
    array[0, 0]
    array[0, 0]
    assert recording.per_key() == {"a/c/0/0": 2}


def test_what_is_not_selected_is_not_read():
    recording, array = written("v3")
    array[4:8, 3:9]
    assert set(recording.per_key()) == {"a/c/1/0", "a/c/1/1", "a/c/1/2"}
    recording.clear()
    array[5:5]
    array[..., 3:3]
    assert recording.requests == []


# --- reading through dask ---------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dask_reads_each_stored_object_once(layout):
    recording, array = written(layout)
    lazy = zd.from_zarr(array)
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), VALUES)
    assert recording.per_key() == dict.fromkeys(data_keys(array), 1)


def test_dask_reads_what_a_slice_needs():
    recording, array = written("shards", Far())
    lazy = zd.from_zarr(array)[0:2, 0:2]
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), VALUES[0:2, 0:2])
    assert recording.per_key() == {"a/c/0/0": 2}


def test_blocks_of_many_objects_read_each_once():
    recording, array = written("v3")
    zd.from_zarr(array, chunks=(12, 8)).compute(scheduler="sync")
    assert recording.per_key() == dict.fromkeys(data_keys(array), 1)


# --- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_write_reads_nothing_but_what_the_end_cuts(layout):
    recording, array = written(layout)
    array[...] = VALUES + 1
    ends = end_keys(array)
    assert bool(ends) == ("over the edge" in layout)
    assert recording.per_key("set") == dict.fromkeys(data_keys(array) - ends, 1)
    assert recording.per_key("get") == recording.per_key("set_if") == dict.fromkeys(ends, 1)
    assert {request.method for request in recording.requests} <= {"set", "get", "set_if"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_part_of_an_object_is_read_and_written_once(layout):
    recording, array = written(layout)
    array[1, 1] = 7
    (key,) = recording.per_key("set")
    assert [(r.method, r.key) for r in recording.requests] == [("get", key), ("set", key)]


def test_fill_values_are_deleted_once():
    recording, array = written("v3")
    array[...] = 0
    assert recording.per_key("delete") == dict.fromkeys(data_keys(array), 1)
    assert {request.method for request in recording.requests} == {"delete"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_zarr_sets_each_key_once(layout):
    recording = Recording(MemoryStore())
    options = {"codecs": None, **LAYOUTS[layout]}
    with dask.config.set(scheduler="sync"):
        zd.to_zarr(da.from_array(VALUES, chunks=(5, 3)), recording, "a", **options)
    array = zd.open_array(recording.store, "a")
    np.testing.assert_array_equal(array[...], VALUES)
    documents = {k for k in recording.store.values if k.rsplit("/", 1)[-1][0] in ".z"}
    written = recording.per_key("set") + recording.per_key("set_if")  # groups above, if absent
    assert written == dict.fromkeys(data_keys(array) | documents, 1)
    assert not set(recording.per_key("get")) & data_keys(array)


def test_updating_attributes_reads_and_writes_one_document():
    recording, array = written("v3")
    array.update_attributes({"units": "m"})
    assert recording.per_key("set_if") == {"a/zarr.json": 1}
    assert recording.per_key() == {"a/zarr.json": 1, "zarr.json": 1}  # consolidated metadata?
    assert len(recording.requests) == 3
