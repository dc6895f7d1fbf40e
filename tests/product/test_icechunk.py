"""Sessions of Icechunk: stores of zarr-python that commit what was written, or nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from zarr_dask import cli
from zarr_dask.errors import NodeNotFoundError, ReadOnlyError, StoreError, StoreOutOfReachError

icechunk = pytest.importorskip("icechunk")

VALUES = np.arange(6 * 10, dtype="f4").reshape(6, 10)


@pytest.fixture
def repository():
    return icechunk.Repository.create(icechunk.in_memory_storage())


@pytest.fixture
def written(repository):
    session = repository.writable_session("main")
    zd.to_zarr(
        da.from_array(VALUES, chunks=(3, 5)), session.store, "a/b", dimension_names=["x", "y"]
    )
    session.commit("a")
    return repository


def test_what_dask_writes_is_there_after_the_commit(written):
    session = written.readonly_session("main")
    assert np.array_equal(zd.from_zarr(session.store, "a/b").compute(), VALUES)
    array = zd.open(session.store, "a/b")
    assert np.array_equal(array[1:5, ::3], VALUES[1:5, ::3])
    assert array.dimension_names == ("x", "y")
    group = zd.open(session.store)
    assert [path for path, _ in group.arrays(recursive=True)] == ["a/b"]
    with pytest.raises(NodeNotFoundError):
        zd.open(session.store, "nothing")


def test_a_session_is_its_store(written):
    session = written.writable_session("main")
    assert np.array_equal(zd.from_zarr(session, "a/b").compute(), VALUES)
    zd.to_zarr(da.ones(4, chunks=2), session, "c")
    session.commit("c")
    reader = written.readonly_session("main")
    assert zd.open_array(reader, "c")[...].tolist() == [1] * 4
    with pytest.raises(ReadOnlyError):
        zd.to_zarr(da.ones(4, chunks=2), reader, "d")


@pytest.mark.parametrize("wrapped", [False, True])
def test_nodes_with_the_name_of_the_folder_of_chunks(repository, tmp_path, wrapped):
    """Icechunk takes "c" for a value of the node above, wherever that is asked for."""
    from zarr.storage import WrapperStore

    session = repository.writable_session("main")
    scalar = np.float32(3)
    for path in ("c", "g/c", "g/d"):
        zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), session.store, path)
    zd.create_array(session.store, "g/scalar", shape=(), dtype="f4")[...] = scalar
    session.commit("c")
    store = repository.readonly_session("main").store
    store = WrapperStore(store) if wrapped else store
    names = ["c", "g/c", "g/d", "g/scalar"]
    assert sorted(path for path, _ in zd.open(store).arrays(recursive=True)) == names
    assert zd.verify(store).ok
    zd.copy(store, tmp_path / "whole.zarr")
    whole = zarr.open_group(tmp_path / "whole.zarr", mode="r")
    assert all(np.array_equal(whole[path][...], VALUES) for path in names[:3])
    assert whole["g/scalar"][...] == scalar
    again = repository.writable_session("main")
    zd.copy(tmp_path / "whole.zarr", again.store, overwrite=True)
    assert np.array_equal(zarr.open_group(again.store, mode="r")["g/c"][...], VALUES)


def test_zarr_python_reads_it(written):
    import zarr

    group = zarr.open_group(written.readonly_session("main").store, mode="r")
    assert np.array_equal(group["a/b"][...], VALUES)


def test_what_is_not_committed_is_not_there(written):
    session = written.writable_session("main")
    array = zd.open_array(session.store, "a/b", mode="r+")
    array[0:3] = 0
    zd.to_zarr(da.ones((3, 10), chunks=(3, 5), dtype="f4"), session.store, "a/b", append=0)
    assert zd.open(session.store, "a/b").shape == (9, 10)
    assert np.array_equal(zd.open(written.readonly_session("main").store, "a/b")[...], VALUES)
    session.commit("more")
    array = zd.open(written.readonly_session("main").store, "a/b")
    assert np.array_equal(array[6:], np.ones((3, 10)))
    assert not array[:3].any()


def test_stored_objects_are_listed_and_copied(written, tmp_path):
    """Icechunk lists below nodes, and what is asked for is below an array."""
    store = written.readonly_session("main").store
    array = zd.open_array(store, "a/b")
    keys = ["a/b/c/0/0", "a/b/c/0/1", "a/b/c/1/0", "a/b/c/1/1"]
    assert sorted(array.store.list("a/b/c/")) == keys
    assert sorted(array.store.list("a/b/c/1/")) == keys[2:]
    assert list(array.store.list("nothing/at/all/")) == []
    assert zd.copy(store, tmp_path / "copy.zarr", verify=True).tasks
    assert np.array_equal(zd.open(tmp_path / "copy.zarr", "a/b")[...], VALUES)
    assert zd.verify(store).ok


def test_a_session_for_reading_refuses(written):
    session = written.readonly_session("main")
    with pytest.raises(ReadOnlyError):
        zd.create_group(session.store, "new")


@pytest.mark.parametrize("forked", [False, True])
def test_other_processes_are_refused(written, forked):
    """They have no way to what is in the memory of this one."""
    session = written.writable_session("main")
    store = session.fork().store if forked else session.store
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(StoreOutOfReachError, match="threads"),
    ):
        zd.to_zarr(da.from_array(VALUES, chunks=(3, 5)), store, "c")


def test_forks_are_merged_by_their_owner(written):
    """Each process of a user's own writes regions of whole chunks into its fork."""
    session = written.writable_session("main")
    zd.create_array(session.store, "c", shape=(6, 10), chunks=(3, 5), dtype="f4")
    session.commit("c")
    session = written.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for number, fork in enumerate(forks):
        rows = slice(3 * number, 3 * number + 3)
        x = da.from_array(VALUES[rows], chunks=(3, 5))
        zd.to_zarr(x, fork.store, "c", region=(rows, slice(0, 10)))
    session.merge(*forks)
    session.commit("both")
    assert np.array_equal(zd.open(written.readonly_session("main").store, "c")[...], VALUES)


@pytest.mark.parametrize("verb", ["set", "get"])
def test_many_requests_are_in_flight(repository, monkeypatch, verb):
    """Each waits for others; a thread for each core would have two."""
    x = da.from_array(np.arange(32.0), chunks=2) + 1
    session = repository.writable_session("main")
    zd.to_zarr(x, session.store, "x")
    at_once, most, enough = 0, 0, asyncio.Event()
    plain = getattr(icechunk.IcechunkStore, verb)

    async def waiting(self, key, *values, **options):
        nonlocal at_once, most
        if "/c/" not in key:
            return await plain(self, key, *values, **options)
        at_once += 1
        most = max(most, at_once)
        if at_once >= 8:
            enough.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), 2)
        at_once -= 1
        return await plain(self, key, *values, **options)

    monkeypatch.setattr(icechunk.IcechunkStore, verb, waiting)
    if verb == "set":
        zd.to_zarr(x, session.store, "x", overwrite=True)
    else:
        assert zd.open_array(session.store, "x")[...].tolist() == list(range(1, 33))
    assert most >= 8


def test_branches_tags_and_snapshots_have_urls(tmp_path):
    """In the library and the command line; a URL is for reading."""
    folder = tmp_path / "repo"
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    snapshots = []
    for number in (1, 2):
        session = repository.writable_session("main")
        zd.to_zarr(da.full(4, number, chunks=2), session.store, "x", overwrite=True)
        snapshots.append(session.commit(str(number)))
    repository.create_tag("v1", snapshot_id=snapshots[0])
    repository.create_branch("a.b", snapshot_id=snapshots[0])
    expected = {
        "": 2,
        "@branch.main": 2,
        "@branch.a.b": 1,
        "@tag.v1": 1,
        f"@{snapshots[0]}": 1,
        f"@{snapshots[1]}": 2,
    }
    for reference, value in expected.items():
        array = zd.open_array(f"icechunk://{folder}{reference}", "x")
        assert array[...].tolist() == [value] * 4, reference
    url = f"icechunk://{folder}@tag.v1"
    assert zd.from_zarr(url, "x").sum().compute() == 4
    with pytest.raises(SystemExit, match="0"):
        cli.main(["copy", url, str(tmp_path / "copy.zarr"), "--quiet"])
    assert zd.open(tmp_path / "copy.zarr")["x"][...].tolist() == [1] * 4
    with pytest.raises(ReadOnlyError):
        zd.to_zarr(da.ones(4), url, "y")
    with pytest.raises(StoreError, match=r"@branch\.other cannot be opened"):
        zd.open(f"icechunk://{folder}@branch.other")
    with pytest.raises(StoreError, match="cannot be opened"):
        zd.open(f"icechunk://{tmp_path}/nothing")
    with pytest.raises(StoreError, match="unknown storage_options secret_access_key"):
        zd.open("icechunk+s3://b/repo", storage_options={"secret_access_key": "hidden"})
    for short in ("icechunk:repo", "icechunk://repo"):
        with pytest.raises(StoreError, match="slashes"):
            zd.to_zarr(da.ones(4), short, "y")


def test_plans_keep_the_snapshot_of_a_url(tmp_path):
    """Also if the branch has moved when the plan is run, in another process."""
    folder = tmp_path / "repo"
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    snapshots = []
    for number in (1, 2):
        session = repository.writable_session("main")
        zd.to_zarr(da.full((4, 4), number, chunks=2), session.store, "x", overwrite=True)
        snapshots.append(session.commit(str(number)))
        if number == 1:
            array = zd.open_array(f"icechunk://{folder}", "x")
            plan = zd.plan_rechunk(array, tmp_path / "copy.zarr", chunks=(4, 1))
            (tmp_path / "plan.json").write_text(plan.to_json())
    assert array.store.url == f"icechunk://{folder}@{snapshots[0]}"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["run", str(tmp_path / "plan.json")])
    with pytest.raises(SystemExit, match="0"):
        cli.main(["finish", str(tmp_path / "plan.json")])
    assert zd.open_array(tmp_path / "copy.zarr")[...].tolist() == [[1] * 4] * 4


@pytest.mark.parametrize("command", ["info", "tree", "ls", "verify", "inventory", "digest"])
def test_commands_take_urls(tmp_path, command, capsys):
    folder = tmp_path / "repo"
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    zd.to_zarr(da.ones((4, 4), chunks=2), session.store, "x")
    repository.create_tag("v1", snapshot_id=session.commit("1"))
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, f"icechunk://{folder}@tag.v1"])
    assert "IcechunkStore" not in capsys.readouterr().out


def test_virtual_chunks_are_read_where_they_lie(tmp_path):
    """Those of a file of NetCDF, say; the session has been told which places it may read."""
    xr = pytest.importorskip("xarray")
    VALUES.tofile(tmp_path / "raw")
    place = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place, store))
    access = {place: icechunk.credentials.LocalFileSystemAccess}
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(f"{tmp_path}/repo"),
        config=config,
        authorize_virtual_chunk_access=access,
    )
    session = repository.writable_session("main")
    zd.create_array(
        session.store,
        "a",
        shape=(6, 10),
        chunks=(2, 10),
        dtype="f4",
        codecs=["bytes"],
        dimension_names=["x", "y"],
    )
    for number in range(3):
        session.store.set_virtual_ref(
            f"a/c/{number}/0", f"{place}raw", offset=80 * number, length=80
        )
    session.commit("virtual")
    reader = repository.readonly_session("main")
    assert np.array_equal(zd.from_zarr(reader, "a").compute(), VALUES)
    with xr.open_zarr(reader.store, consolidated=False) as expected:
        xr.testing.assert_identical(zd.open_dataset(reader.store).load(), expected.load())
    zd.copy(reader.store, f"{tmp_path}/copy.zarr")
    assert np.array_equal(zd.open(f"{tmp_path}/copy.zarr")["a"].read(), VALUES)
    with pytest.raises(StoreError, match="authorize the virtual chunk container"):
        zd.from_zarr(f"icechunk://{tmp_path}/repo", "a").compute()
