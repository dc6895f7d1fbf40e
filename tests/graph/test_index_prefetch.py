"""Indices of shards that are asked for before the tasks that need them."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.object_stores import s3_server
from zarr_dask.array.source import ArraySource
from zarr_dask.errors import ChunkMissingError, StoreError
from zarr_dask.graph import read_array
from zarr_dask.stores import Recording, open_store
from zarr_dask.stores.base import IndexRange, ReadPolicy
from zarr_dask.stores.index_prefetch import IndexPrefetcher
from zarr_dask.stores.wrapper import StoreWrapper

SHAPE, SHARD, CHUNK = (24, 36), (6, 12), (2, 3)
VALUES = np.arange(1, 1 + 24 * 36, dtype="i4").reshape(SHAPE)
PARTS = 24
"""Halves of the 12 shards."""
WAIT = 30  # seconds after which something does not happen any more


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


BACKENDS = pytest.mark.parametrize("backend", ["obstore", "fsspec"])


@pytest.fixture(autouse=True)
def shards_like_large_ones(monkeypatch):
    """Parts of these small shards are asked for as if shards were large: the index comes first."""
    monkeypatch.setattr(ReadPolicy, "worth_a_round_trip", 0)


@pytest.fixture
def backend():
    """What asks the service where a test does not say so."""
    return "obstore"


@pytest.fixture
def store(request, server, backend):
    """A store on S3 with an array of shards in it."""
    name = f"{server.root}/{request.node.name}"
    made = open_store(name, {**server.options, "backend": backend})
    array = zd.create_array(
        made, shape=SHAPE, chunks=CHUNK, shards=SHARD, dtype="i4", overwrite=True
    )
    array[...] = VALUES
    return made


def halves(store, **options):
    """The halves of all shards, and what is asked for when they are read."""
    recording = Recording(store)
    array = zd.open_array(recording, **options)
    recording.clear()
    return array.to_dask(chunks=(SHARD[0], SHARD[1] // 2)), recording


def asked(recording, ranges=(IndexRange,)):
    """How often the index of each shard was asked for."""
    return Counter(one.key for one in recording.requests if isinstance(one.range, ranges))


def threads(number):
    return dask.config.set(scheduler="threads" if number else "sync", num_workers=number or 1)


@dataclass(frozen=True)
class Gate(StoreWrapper):
    """Lets indices through when so many are asked for at a time."""

    most: int
    state: threading.Condition = field(default_factory=threading.Condition)
    arrived: list[str] = field(default_factory=list)

    def get_versions(self, requests):
        if isinstance(requests[0][1], IndexRange):
            with self.state:
                self.arrived.append(requests[0][0])
                self.state.notify_all()
                assert self.state.wait_for(lambda: len(self.arrived) >= self.most, WAIT)
        return self.store.get_versions(requests)


# --- how much is asked for ------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("number", [0, 2, 8])
def test_no_more_is_asked_for(store, number):
    x, recording = halves(store)
    with threads(number):
        np.testing.assert_array_equal(x.compute(), VALUES)
    indices = asked(recording)
    assert set(indices.values()) <= {1, 2}  # parts of a shard may share its index
    assert len(recording.requests) == indices.total() + PARTS  # a run of chunks for each


def test_parts_of_a_shard_share_its_index(store):
    recording = Recording(store)
    x = zd.open_array(recording).to_dask(chunks=(2, 12))  # three of each shard
    recording.clear()
    with threads(0):
        np.testing.assert_array_equal(x.compute(), VALUES)
    assert len(asked(recording)) == 12
    assert asked(recording).total() <= 12 + 2


@BACKENDS
def test_later_tasks_find_their_indices_on_the_way(store):
    """One thread that reads part by part: without reading ahead nobody else would ask."""
    gate = Gate(store, 9)
    with threads(0):
        found = zd.open_array(gate).to_dask(chunks=(6, 6)).compute()
    np.testing.assert_array_equal(found, VALUES)
    assert 12 <= len(gate.arrived) <= PARTS


GRAPHS = {
    "sum": lambda x: x.sum(),
    "mean along the first axis": lambda x: x.mean(axis=0),
    "slices": lambda x: x[3:20:2, 5],
    "transposed": lambda x: x.T + 1,
    "both": lambda x: da.concatenate([x[:12], x[12:] * 2]),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_whatever_is_made_of_it_has_its_values(store, graph):
    x, recording = halves(store)
    with threads(2):
        np.testing.assert_allclose(graph(x).compute(), graph(da.from_array(VALUES)).compute())
    assert max(asked(recording).values()) <= 2


def test_neighbours_are_read_with_it(store):
    x, _ = halves(store)
    with threads(2):
        found = x.map_overlap(lambda block: block + 1, depth=1, boundary="none").compute()
    np.testing.assert_array_equal(found, VALUES + 1)


def test_views_read_ahead_too(store):
    gate = Gate(store, 9)
    view = zd.open_array(gate).lazy[::-1, ::2]
    with threads(0):
        np.testing.assert_array_equal(view.to_dask(chunks=(6, 3)).compute(), VALUES[::-1, ::2])


def test_blocks_that_dask_makes_smaller_than_shards_read_ahead(store):
    """Elsewhere they keep the index of their shard, which here would have to be asked about."""
    gate = Gate(store, 9)
    with dask.config.set({"array.chunk-size": "200B"}), threads(0):
        x = zd.open_array(gate).to_dask()
        assert x.npartitions > 12
        np.testing.assert_array_equal(x.compute(), VALUES)


def test_tasks_that_run_once_more_read_ahead_once_more(store):
    x, recording = halves(store)
    (x,) = dask.optimize(x)
    for _ in range(2):
        recording.clear()
        with threads(2):
            np.testing.assert_array_equal(x.compute(), VALUES)
        assert 12 <= asked(recording).total() <= PARTS
        assert len(recording.requests) == asked(recording).total() + PARTS


def test_a_part_of_a_graph_asks_for_nothing_else(store):
    x, recording = halves(store)
    with threads(2):
        np.testing.assert_array_equal(x[:6].compute(), VALUES[:6])
    assert {one.key for one in recording.requests} == {"c/0/0", "c/0/1", "c/0/2"}
    assert asked(recording).total() <= 6


def test_whole_shards_have_no_index_that_is_asked_for(store):
    recording = Recording(store)
    array = zd.open_array(recording)
    recording.clear()
    with threads(2):
        np.testing.assert_array_equal(array.to_dask()[:, :30].compute(), VALUES[:, :30])
    wasted = 8 + 8  # of the third column half of each shard is read, of all others everything
    assert 4 <= asked(recording).total() <= 4 + wasted
    before = len(recording.requests)
    with threads(2):
        np.testing.assert_array_equal(array.to_dask().compute(), VALUES)
    assert len(recording.requests) == before + 12


@BACKENDS
def test_where_values_are_absent_it_ends(store):
    for row in range(4):
        for column in range(3):
            store.delete(f"c/{row}/{column}")
    x, recording = halves(store)
    with threads(2):
        assert not x.compute().any()
    indices = [one for one in recording.requests if one.key != "zarr.json"]
    assert len(indices) <= PARTS + 2 * 8
    assert len(recording.requests) - len(indices) <= PARTS  # is the array still there?


def test_missing_values_are_named(store):
    store.delete("c/2/1")
    x, _ = halves(store, read=zd.ReadOptions(missing="error"))
    with threads(2), pytest.raises(ChunkMissingError, match="c/2/1"):
        x.compute()


# --- what is replaced meanwhile -------------------------------------------------------------------


def read_while_written(store, write):
    """Read all halves in one thread, and write as soon as the first has been read.

    By then the indices of eight others are here: the gate lets none through before.
    """
    gate, written = Gate(store, 9), []

    def rewrite(block):
        if not written:
            written.append(True)
            write(zd.open_array(store, mode="r+"))
        return block

    x = zd.open_array(gate).to_dask(chunks=(6, 6))
    with threads(0):
        found = x.map_blocks(rewrite, dtype="i4", meta=x._meta).compute()
    assert len(gate.arrived) >= 12
    return cut(found)


def cut(values):
    """The halves of all shards."""
    return values.reshape(4, 6, 6, 6).swapaxes(1, 2).reshape(PARTS, 6, 6)


HOLES = np.where(np.arange(36) % 12 < 3, 0, VALUES + 5)  # the first chunks of each row are absent


@BACKENDS
@pytest.mark.parametrize("fresh", [VALUES + 1000, HOLES], ids=["as many", "fewer chunks"])
def test_what_is_written_before_a_task_begins_is_read(store, fresh):
    """Whatever was asked for ahead: old indices are not used for new chunks."""

    def write(array):
        array[...] = fresh

    found = read_while_written(store, write)
    old = [np.array_equal(*pair) for pair in zip(found, cut(VALUES), strict=True)]
    new = [np.array_equal(*pair) for pair in zip(found, cut(fresh), strict=True)]
    assert (sum(old), sum(new)) == (1, PARTS - 1)


@BACKENDS
def test_what_was_absent_and_is_written_before_a_task_begins_is_read(store):
    """Indices that have no chunk of what is wanted: nobody would ask for one."""
    left = np.arange(36) % 12 < 6
    zd.open_array(store, mode="r+")[...] = np.where(left, VALUES, 0)

    def write(array):
        array[...] = VALUES

    found = read_while_written(store, write)
    new = [np.array_equal(*pair) for pair in zip(found, cut(VALUES), strict=True)]
    assert sum(new) >= PARTS - 1


# --- failures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failing(StoreWrapper):
    """Fails for whoever asks in another thread than tasks do."""

    def get_versions(self, requests):
        if threading.current_thread() is not threading.main_thread():
            raise StoreError("not here")
        return self.store.get_versions(requests)


@BACKENDS
def test_what_fails_ahead_is_asked_for_by_the_task(store):
    with threads(0):
        found = zd.open_array(Failing(store)).to_dask(chunks=(6, 6)).compute()
    np.testing.assert_array_equal(found, VALUES)


def test_a_failed_task_ends_it(store):
    x, recording = halves(store)

    def fail(block):
        raise RuntimeError("enough")

    with threads(0), pytest.raises(RuntimeError, match="enough"):
        x.map_blocks(fail, dtype="i4", meta=x._meta).compute()
    assert asked(recording).total() <= 1 + 16
    with threads(2):
        np.testing.assert_array_equal(x.compute(), VALUES)


def test_a_lost_bucket_is_an_error(server):
    server.admin.create_bucket(Bucket="lost")
    store = open_store("s3://lost/a", server.options)
    array = zd.create_array(store, shape=SHAPE, chunks=CHUNK, shards=SHARD, dtype="i4")
    array[...] = VALUES
    x = array.to_dask(chunks=(6, 6))
    for key in store.list():
        store.delete(key)
    server.admin.delete_bucket(Bucket="lost")
    with threads(2), pytest.raises(StoreError, match="NoSuchBucket"):
        x.compute()


# --- where tasks go -------------------------------------------------------------------------------


@BACKENDS
def test_tasks_for_other_processes_read_by_themselves(store):
    array = zd.open_array(store)
    x = array.to_dask(chunks=(6, 6))
    (layer,) = x.dask.layers.values()
    there = cloudpickle.loads(cloudpickle.dumps(layer))
    (task, *_) = there.values()
    assert any(isinstance(getattr(one, "value", None), ArraySource) for one in task.args)
    here = next(iter(dict(layer).values()))
    again = pickle.loads(pickle.dumps(here))
    assert any(isinstance(getattr(one, "value", None), ArraySource) for one in again.args)
    assert len(pickle.dumps(here)) < 2500
    know = {"multiprocessing.initializer": zd.credentials_initializer(x)}
    with dask.config.set(scheduler="processes", num_workers=2, **know):
        np.testing.assert_array_equal(x[:12].compute(), VALUES[:12])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_reads_by_itself(server):
    store = open_store(f"{server.root}/forked", {**server.options, "backend": "fsspec"})
    array = zd.create_array(store, shape=SHAPE, chunks=CHUNK, shards=SHARD, dtype="i4")
    array[...] = VALUES
    gate = Gate(store, 9)
    (x,) = dask.optimize(zd.open_array(gate).to_dask(chunks=(6, 6)))
    with threads(0):
        x.blocks[0, 0].compute()
        child = os.fork()
        if not child:  # pragma: no cover
            os._exit(0 if np.array_equal(x.compute(), VALUES) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_arrays_at_hand_are_read_as_before(tmp_path):
    for place in (tmp_path, {}):
        array = zd.create_array(place, shape=SHAPE, chunks=CHUNK, shards=SHARD, dtype="i4")
        (layer,) = array.to_dask(chunks=(6, 6)).dask.layers.values()
        assert any(isinstance(value, ArraySource) for value, _ in layer.indices)


def test_graphs_stay_as_small(server):
    """Compared with those of tasks that read by themselves, of any number of blocks."""
    for number in (10, 1000):
        store = open_store(f"{server.root}/large{number}", server.options)
        array = zd.create_array(store, shape=(12 * number,), chunks=(3,), shards=(12,), dtype="i4")
        ahead = array.to_dask(chunks=6)
        plain = read_array(array.source(None), ahead.chunks, array.token)
        assert ahead.name == plain.name
        sizes = [len(cloudpickle.dumps(x.dask)) for x in (ahead, plain)]
        assert sizes[0] <= sizes[1] + 200


def test_nothing_is_held_when_tasks_are_gone(store):
    array = zd.open_array(store)
    x = array.to_dask(chunks=(6, 6))
    with threads(2):
        assert x[6:].sum().compute() == VALUES[6:].sum()  # of all blocks dask would keep tasks
    gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, IndexPrefetcher)]
    assert not [one for one in held if one._store == array.store]
    assert x.shape == SHAPE  # which is here all the time


def test_services_without_tags_are_asked_by_tasks():
    """Over HTTP from a server that says nothing by which values could be told apart."""
    values: dict[str, bytes] = {}
    zd.create_array(values, shape=SHAPE, chunks=CHUNK, shards=SHARD, dtype="i4")[...] = VALUES
    with serving(Files, values) as (url, seen):
        x = zd.open_array(url, format="v3").to_dask(chunks=(6, 6))
        del seen[:]
        with threads(2):
            np.testing.assert_array_equal(x.compute(), VALUES)
        gets = [method for method, *_ in seen].count("GET")
        assert gets <= 2 * PARTS + 8 + 1


def test_many_arrays_at_a_time(store):
    """Each has its own parts; none waits for another one's."""
    xs = [halves(store)[0] for _ in range(6)]
    with threads(8):
        found = dask.compute(*xs)
    for one in found:
        np.testing.assert_array_equal(one, VALUES)


def test_both_formats_of_a_key_are_found(server):
    """Below a path, in a group, with another separator."""
    group = zd.create_group(f"{server.root}/deep", storage_options=server.options, overwrite=True)
    array = group.create_array(
        "b/c",
        shape=SHAPE,
        chunks=CHUNK,
        shards=SHARD,
        dtype="i4",
        chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
    )
    array[...] = VALUES
    gate = Gate(open_store(f"{server.root}/deep", server.options), 9)
    with threads(0):
        found = zd.open_array(gate, "b/c").to_dask(chunks=(6, 6)).compute()
    np.testing.assert_array_equal(found, VALUES)
    assert set(gate.arrived) == {f"b/c/{i}.{j}" for i in range(4) for j in range(3)}


def test_every_part_is_read_once_however_many_dimensions(server):
    values = np.arange(1, 1 + 4**5, dtype="i2").reshape((4,) * 5)
    store = open_store(f"{server.root}/five", server.options)
    array = zd.create_array(
        store, shape=values.shape, chunks=(1, 1, 2, 4, 4), shards=(1, 2, 4, 4, 4), dtype="i2"
    )
    array[...] = values
    recording = Recording(store)
    x = zd.open_array(recording).to_dask(chunks=(1, 1, 4, 4, 4))
    recording.clear()
    with threads(2):
        np.testing.assert_array_equal(x.compute(), values)
    assert set(asked(recording).values()) <= {1, 2}
    sums = partial(np.sum, dtype="i8")
    assert sums(values) == x.sum(dtype="i8").compute(scheduler="threads")
