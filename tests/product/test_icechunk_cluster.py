"""Sessions of Icechunk written by other processes: each task to a fork, and all are merged."""

from __future__ import annotations

import os
import signal

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import zarr_dask as zd
from zarr_dask.errors import (
    MemoryBudgetError,
    NodeNotFoundError,
    ReadOnlyError,
    ResumeError,
    StoreOutOfReachError,
)

pytest.importorskip("icechunk")
zarr = pytest.importorskip("zarr")

VALUES = np.arange(24 * 20, dtype="f4").reshape(24, 20)


@pytest.fixture
def session(repository):
    return repository.writable_session("main")


def committed(repository, session, path):
    """What zarr-python reads of an array after the commit."""
    session.commit("written")
    store = repository.readonly_session("main").store
    return zarr.open_group(store, mode="r")[path][...]


def test_a_new_array(client, repository, session):
    report = zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), session.store, "a/b")
    assert (report.objects, report.nbytes) == (32, VALUES.nbytes)
    with pytest.raises(NodeNotFoundError):
        zd.open(repository.readonly_session("main").store)
    assert np.array_equal(zd.open_array(session.store, "a/b")[...], VALUES)
    assert np.array_equal(committed(repository, session, "a/b"), VALUES)


def test_blocks_that_do_not_fit_the_shards(client, repository, session):
    x = da.from_array(VALUES, chunks=(5, 7))
    plan = zd.plan_write(x, session.store, "a", chunks=(4, 5), shards=(8, 10))
    assert plan.regrouped
    plan.run(window=None)
    assert np.array_equal(committed(repository, session, "a"), VALUES)


def test_tasks_in_windows(client, repository, session):
    x = da.ones((24, 20), chunks=(3, 5), dtype="f4")
    zd.to_zarr(x, session.store, "a", window=4)
    assert np.array_equal(committed(repository, session, "a"), np.ones((24, 20)))


def test_several_arrays(client, repository, session):
    x = da.from_array(VALUES, chunks=(6, 10))
    reports = zd.to_zarr([x, x + 1], session.store, ["a", "b"])
    assert [report.objects for report in reports] == [8, 8]
    session.commit("both")
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert np.array_equal(group["a"][...], VALUES)
    assert np.array_equal(group["b"][...], VALUES + 1)


def test_what_was_changed_before_stays(client, repository, session):
    """Forks of a session with changes: each brings its own back, not what it began with."""
    zd.create_array(session.store, "a", shape=(24, 20), chunks=(3, 5), dtype="f4")[...] = 7
    rows = slice(6, 12)
    zd.to_zarr(
        da.from_array(VALUES[rows], chunks=(3, 5)), session.store, "a", region=(rows, slice(None))
    )
    expected = np.full_like(VALUES, 7)
    expected[rows] = VALUES[rows]
    assert np.array_equal(committed(repository, session, "a"), expected)


def test_an_array_grows(client, repository, session):
    zd.to_zarr(da.from_array(VALUES[:10], chunks=(4, 5)), session.store, "a", attributes={"u": "K"})
    session.commit("first")
    session = repository.writable_session("main")
    zd.to_zarr(da.from_array(VALUES[10:], chunks=(4, 5)), session.store, "a", append=0)
    assert zd.open_array(session.store, "a").attributes == {"u": "K"}
    assert zd.open_array(repository.readonly_session("main").store, "a").shape == (10, 20)
    assert np.array_equal(committed(repository, session, "a"), VALUES)


def test_objects_of_fill_values_are_deleted(client, repository, session):
    zd.to_zarr(da.from_array(VALUES + 1, chunks=(6, 10)), session.store, "a")
    session.commit("first")
    session = repository.writable_session("main")
    report = zd.to_zarr(
        da.zeros((24, 20), chunks=(6, 10), dtype="f4"), session.store, "a", mode="r+"
    )
    assert report.empty == 8
    assert not committed(repository, session, "a").any()
    array = zd.open_array(repository.readonly_session("main").store, "a")
    assert not list(array.store.list("a/c/"))


def test_rechunk_and_copy(client, repository, session, tmp_path):
    group = zd.create_group(tmp_path / "s.zarr", attributes={"title": "run"})
    names = ("y", "x")
    array = group.create_array(
        "deep/a", shape=(24, 20), chunks=(3, 20), dtype="f4", dimension_names=names
    )
    array[...] = VALUES
    zd.rechunk(array, session.store, path="r", chunks=(24, 4), verify=True)
    zd.copy(group, session.store, path="moved", verify=True)
    zd.copy(group, session.store, path="laid", chunks={"y": -1, "x": 4}, verify=True)
    session.commit("copied")
    found = zarr.open_group(repository.readonly_session("main").store, mode="r")
    for path in ("r", "moved/deep/a", "laid/deep/a"):
        assert np.array_equal(found[path][...], VALUES), path
    assert found["moved"].attrs["title"] == "run"
    assert found["laid/deep/a"].chunks == (24, 4)


def test_out_of_a_session_into_itself(client, repository, session):
    """What was not committed is read by tasks elsewhere as well."""
    zd.to_zarr(da.from_array(VALUES, chunks=(3, 20)), session.store, "a")
    x = zd.from_zarr(session.store, "a")
    assert float(x.sum().compute()) == VALUES.sum()
    zd.to_zarr(x + 1, session.store, "b", chunks=(24, 4))
    zd.rechunk(zd.open_array(session.store, "a"), session.store, path="c", chunks=(24, 4))
    session.commit("all")
    found = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert np.array_equal(found["b"][...], VALUES + 1)
    assert np.array_equal(found["c"][...], VALUES)


@pytest.mark.parametrize("as_dask", [False, True])
def test_an_image(client, repository, session, as_dask):
    pixels = np.random.default_rng(1).integers(1, 999, (200, 300), dtype="u2")
    x = da.from_array(pixels, chunks=(64, 64)).rechunk((100, 100)) if as_dask else pixels
    zd.ome.write(x, session.store, "i", axes="yx", chunks=(64, 64), levels=3, method="max")
    session.commit("image")
    found = zarr.open_group(repository.readonly_session("main").store, mode="r")["i"]
    assert np.array_equal(found["0"][...], pixels)
    assert np.array_equal(found["2"][...], pixels.reshape(50, 4, 75, 4).max((1, 3)))
    assert len(found.attrs["ome"]["multiscales"][0]["datasets"]) == 3


def test_a_job_that_fails_leaves_nothing(client, repository, session):
    zd.to_zarr(da.from_array(VALUES[:12], chunks=(3, 20)), session.store, "old")
    session.commit("old")
    session = repository.writable_session("main")

    def broken(block, block_info=None):
        if block_info[0]["chunk-location"][0] == 2:
            raise ZeroDivisionError
        return block

    x = da.from_array(VALUES, chunks=(3, 20)).map_blocks(broken, dtype="f4")
    with pytest.raises(ZeroDivisionError):
        zd.to_zarr(x, session.store, "new")
    with pytest.raises(ZeroDivisionError):
        zd.to_zarr(x[:12], session.store, "old", append=0)
    with pytest.raises(ZeroDivisionError):
        zd.to_zarr(x[:12], session.store, "old", mode="r+")
    assert [path for path, _ in zd.open(session.store).arrays()] == ["old"]
    assert np.array_equal(zd.open_array(session.store, "old")[...], VALUES[:12])


@pytest.mark.slow  # they take seconds to start
def test_dasks_own_processes(repository, session):
    x = da.from_array(VALUES, chunks=(12, 20))
    with dask.config.set(scheduler="processes", num_workers=1):
        zd.to_zarr(x, session.store, "a")
    assert np.array_equal(committed(repository, session, "a"), VALUES)


@pytest.mark.slow
def test_a_worker_that_is_killed(make_cluster, repository, session, tmp_path):
    """Its tasks are run again, those included whose results it held."""
    once = tmp_path / "killed"

    def killing(block, block_info=None):
        if block_info[0]["chunk-location"] == (5, 1) and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    x = da.from_array(VALUES, chunks=(3, 5)).map_blocks(killing, dtype="f4")
    with Client(make_cluster(n_workers=2)) as client:
        zd.plan_write(x, session.store, "a").run(client)
    assert once.exists()
    assert np.array_equal(committed(repository, session, "a"), VALUES)


# --- refusals -------------------------------------------------------------------------------------


def test_what_a_task_of_the_users_own_writes_is_refused(client, session):
    """It would be lost: nobody merges it."""
    array = zd.create_array(session.store, "a", shape=(4,), chunks=2, dtype="i4")

    def write(array):
        array[:2] = 1

    with pytest.raises(ReadOnlyError):
        client.submit(write, array).result()
    assert client.submit(lambda array: array[...].tolist(), array).result() == [0, 0, 0, 0]


def test_a_collection_is_refused(client, session):
    x = da.from_array(VALUES, chunks=(3, 5))
    with pytest.raises(StoreOutOfReachError, match="compute=False"):
        zd.to_zarr(x, session.store, "a", compute=False)
    with pytest.raises(NodeNotFoundError):
        zd.open(session.store)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_nothing_is_resumed(session, tmp_path, elsewhere):
    journal = tmp_path / "journal" if elsewhere else None
    x = da.from_array(VALUES, chunks=(3, 5))
    with pytest.raises(ResumeError, match="commit"):
        zd.to_zarr(x, session.store, "a", resume=True, journal=journal)
    zd.to_zarr(x, tmp_path / "s.zarr")
    with pytest.raises(ResumeError, match="commit"):
        zd.rechunk(tmp_path / "s.zarr", session.store, chunks=(24, 4), resume=True, journal=journal)
    with pytest.raises(ResumeError, match="commit"):
        zd.ome.write(VALUES, session.store, axes="yx", resume=True, journal=journal)


def test_a_manifest(client, repository, session, tmp_path):
    x = da.from_array(VALUES + 1, chunks=(6, 10))
    zd.to_zarr(x, session.store, "a", journal=tmp_path / "journal", manifest=tmp_path / "m")
    session.commit("written")
    store = repository.readonly_session("main").store
    manifest = zd.Manifest.read(tmp_path / "m")
    assert len(manifest.objects) == 9  # with the document
    assert zd.verify(store, "a", manifest=manifest).ok


def test_stages_need_a_place_between(client, repository, session, tmp_path):
    values = np.arange(2000 * 2000, dtype="f4").reshape(2000, 2000)
    source = zd.create_array(
        tmp_path / "s", shape=values.shape, chunks=(2000, 250), dtype="f4", codecs=["blosc"]
    )
    source[...] = values
    wanted = {"chunks": (250, 2000), "max_mem": "8MB"}
    with pytest.raises(MemoryBudgetError):  # an array between takes more memory in a far store
        zd.plan_rechunk(source, session.store, **wanted)
    plan = zd.plan_rechunk(source, session.store, path="a", temp=tmp_path / "temp", **wanted)
    assert len(plan.stages) > 1
    plan.run()
    assert np.array_equal(committed(repository, session, "a"), values)
