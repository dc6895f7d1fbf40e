"""Branches of Icechunk written by URL: each call is one commit, or leaves them as they were."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from zarr_dask import cli
from zarr_dask.errors import CommitConflictError, ReadOnlyError, StoreError

pytest.importorskip("icechunk")
zarr = pytest.importorskip("zarr")

VALUES = np.arange(24 * 20, dtype="f4").reshape(24, 20)
VERIFIED = zd.ReadOptions(verify=True)


@pytest.fixture
def url(repository, tmp_path):
    return f"icechunk://{tmp_path}/repo"


def messages(repository, branch="main"):
    """Messages of the commits after the first, newest first."""
    return [one.message for one in repository.ancestry(branch=branch)][:-1]


def stored(repository, path, branch="main"):
    """What zarr-python reads."""
    group = zarr.open_group(repository.readonly_session(branch).store, mode="r")
    return group[path][...]


def blocks(values=VALUES, meanwhile=None):
    """Blocks of 3 rows; `meanwhile` is called when the last one is computed."""

    def one(block, block_info=None):
        if meanwhile is not None and block_info[0]["chunk-location"][0] == 7:
            meanwhile()
        return block

    return da.from_array(values, chunks=(3, 20)).map_blocks(one, dtype=values.dtype)


def test_a_write_is_one_commit(repository, url):
    zd.to_zarr(blocks(), f"{url}@branch.main", "deep/a")
    assert messages(repository) == ["write deep/a"]
    assert np.array_equal(stored(repository, "deep/a"), VALUES)
    zd.to_zarr(blocks(VALUES + 1), url, "deep/a", append=0)
    zd.to_zarr(blocks()[:3], url, "deep/a", region={0: slice(24, 27)})
    assert messages(repository) == ["write deep/a"] * 3
    expected = np.concatenate([VALUES, VALUES[:3], VALUES[3:] + 1])
    assert np.array_equal(stored(repository, "deep/a"), expected)


def test_a_message_of_the_users(repository, url):
    zd.to_zarr([blocks(), blocks() + 1], url, ["a", "b"], storage_options={"message": "run 7"})
    assert messages(repository) == ["run 7"]
    assert np.array_equal(stored(repository, "b"), VALUES + 1)


def test_other_branches(repository, url):
    repository.create_branch("a.b", repository.lookup_branch("main"))
    zd.to_zarr(blocks(), f"{url}@branch.a.b", "a")
    assert (messages(repository), messages(repository, "a.b")) == ([], ["write a"])
    assert np.array_equal(stored(repository, "a", "a.b"), VALUES)


def test_every_function_that_writes(repository, url, tmp_path):
    array = zd.create_array(url, "made", data=VALUES, chunks=(3, 20))
    assert np.array_equal(array[...], VALUES)
    zd.create_group(url, "g", attributes={"title": "run"})
    zd.save(url, VALUES, path="saved")
    zd.delete(url, "saved")
    zd.rechunk(zd.open_array(url, "made"), url, path="laid", chunks=(24, 5), verify=True)
    dataset = xr.Dataset({"t": (("time", "x"), VALUES)}, {"time": np.arange(24)})
    zd.create_dataset(dataset.chunk(time=3), url, group="empty")
    zd.write_dataset(dataset.chunk(time=3), url, group="d")
    zd.write_dataset(dataset.assign_coords(time=np.arange(24, 48)), url, group="d", append="time")
    zd.ome.write(np.ones((64, 64), "u2"), url, "image", axes="yx", levels=2)
    copied = tmp_path / "copy.zarr"
    zd.copy(url, copied)
    zd.copy(copied, url, path="back")
    assert messages(repository) == [
        f"copy {', '.join(f'back/{one}' for one in ('d/t', 'd/time', 'empty/t', 'empty/time'))}, "
        "back/image/0 and 3 more",
        "write image",
        "write d/t, d/time",
        "write d/t, d/time",
        "write empty/time",
        "rechunk laid",
        "delete saved",
        "save saved",
        "create the group g",
        "create the array made",
    ]
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert group["laid"].chunks == (24, 5)
    assert np.array_equal(group["back/made"][...], VALUES)
    assert group["g"].attrs["title"] == "run"
    read = xr.open_zarr(repository.readonly_session("main").store, group="d", consolidated=False)
    assert read.sizes == {"time": 48, "x": 20}


def test_on_a_cluster(client, repository, url):
    zd.to_zarr(blocks(), url, "a")
    zd.rechunk(zd.open_array(url, "a"), url, path="b", chunks=(24, 5))
    assert messages(repository) == ["rechunk b", "write a"]
    assert np.array_equal(stored(repository, "b"), VALUES)


@pytest.mark.parametrize("how", [{}, {"append": 0}, {"mode": "r+"}])
def test_a_job_that_fails_commits_nothing(repository, url, how):
    if how:
        zd.to_zarr(blocks(), url, "a")
    before = repository.lookup_branch("main")

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        zd.to_zarr(blocks(VALUES + 1, fail), url, "a", **how)
    assert repository.lookup_branch("main") == before


@pytest.mark.parametrize("reference", ["tag.v1", "SNAPSHOT"])
@pytest.mark.parametrize("function", ["to_zarr", "create_array", "rechunk", "delete"])
def test_versions_that_never_change_are_refused(repository, url, reference, function):
    zd.to_zarr(blocks(), url, "a")
    repository.create_tag("v1", snapshot_id=repository.lookup_branch("main"))
    to = f"{url}@{reference.replace('SNAPSHOT', repository.lookup_branch('main'))}"
    calls = {
        "to_zarr": lambda: zd.to_zarr(blocks(), to, "b"),
        "create_array": lambda: zd.create_array(to, "b", shape=(2,), dtype="i1"),
        "rechunk": lambda: zd.rechunk(zd.open_array(to, "a"), to, path="b", chunks=(24, 5)),
        "delete": lambda: zd.delete(to, "a"),
    }
    with pytest.raises(ReadOnlyError, match=r"never changes.*@branch\.NAME"):
        calls[function]()
    with pytest.raises(StoreError, match=r"@branch\.other cannot be opened"):
        zd.to_zarr(blocks(), f"{url}@branch.other", "b")


def test_ranks_write_to_no_branch(repository, url):
    """Nor to a session, of which each rank would have a copy."""
    zd.create_group(url)
    arrays = {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 4)}}
    for place in (url, repository.writable_session("main").store):
        with pytest.raises(ReadOnlyError, match=r"folder or a bucket; zarr_dask\.copy"):
            zd.Writer.create(place, arrays, owners=zd.decompose((4,), (1,)))
    assert len(messages(repository)) == 1


def test_open_nodes_are_for_reading(repository, url):
    array = zd.create_array(url, "a", shape=(4,), dtype="i4")
    with pytest.raises(ReadOnlyError, match=r"one call.*session\.store"):
        array[...] = 1
    with pytest.raises(ReadOnlyError, match="functions that commit at their end"):
        zd.open_array(url, "a", mode="r+")[...] = 1
    with pytest.raises(ValueError, match="compute=False"):
        zd.to_zarr(blocks(), url, "b", compute=False)
    assert messages(repository) == ["create the array a"]


def test_a_branch_that_moves_meanwhile(repository, url):
    """Other objects go together; the same one is a conflict, and the others' commit stays."""
    zd.to_zarr(blocks(), url, "a")

    def other():
        session = repository.writable_session("main")
        zarr.open_group(session.store)["a"][:3] = 7
        session.commit("other")

    with dask.config.set(scheduler="sync"):
        zd.to_zarr(blocks(VALUES + 1, other)[3:], url, "a", region={0: slice(3, 24)})
    assert messages(repository)[:2] == ["write a", "other"]
    expected = VALUES + 1
    expected[:3] = 7
    assert np.array_equal(stored(repository, "a"), expected)
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(CommitConflictError, match=r"/a \(Chunk double update\).*Repeat"),
    ):
        zd.to_zarr(blocks(VALUES + 2, other), url, "a", mode="r+")
    assert messages(repository)[0] == "other"
    assert np.array_equal(stored(repository, "a"), expected)


def test_a_manifest_follows_its_commit(repository, url):
    """It says what the branch holds, also of what was refused."""
    zd.to_zarr(blocks(), url, "a", manifest=True)

    def other():
        session = repository.writable_session("main")
        zarr.open_group(session.store)["a"][21:] = VALUES[21:]
        session.commit("other")

    with dask.config.set(scheduler="sync"), pytest.raises(CommitConflictError):
        zd.to_zarr(blocks(VALUES + 2, other), url, "a", mode="r+", manifest=True)
    assert np.array_equal(zd.from_zarr(url, "a", read=VERIFIED).compute(), VALUES)
    zd.to_zarr(blocks(VALUES[:3] + 1), url, "a", region={0: slice(3)}, manifest=True)
    found = zd.from_zarr(url, "a", read=VERIFIED).compute()
    assert np.array_equal(found, np.concatenate([VALUES[:3] + 1, VALUES[3:]]))
    assert zd.verify(url, "a", manifest=True).ok


def test_commands(repository, url, tmp_path):
    zd.save(tmp_path / "s.zarr", t=VALUES)
    for words in (
        ["copy", str(tmp_path / "s.zarr"), url],
        ["rechunk", str(tmp_path / "s.zarr/t"), url, "--path", "laid", "--chunks", "24,5"],
    ):
        with pytest.raises(SystemExit, match="0"):
            cli.main([*words, "--quiet"])
    assert messages(repository) == ["rechunk laid", "copy t"]
    assert np.array_equal(stored(repository, "laid"), VALUES)


def test_a_command_names_an_array_in_a_repository_apart(repository, url, capfd):
    zd.to_zarr(blocks(), url, "a")
    with pytest.raises(SystemExit, match="0"):
        cli.main(["info", url, "a"])
    assert "shape" in capfd.readouterr().out
    with pytest.raises(SystemExit, match="3"):
        cli.main(["info", f"{url}/a"])
    assert "PATH after URL" in " ".join(capfd.readouterr().err.split())


def test_a_plan_for_a_branch_is_run_as_a_whole(repository, url, tmp_path, capsys):
    """Parts would be sessions of their own, of which each would be committed by itself."""
    zd.to_zarr(blocks(), url, "a")
    plan = zd.plan_rechunk(zd.open_array(url, "a"), url, path="b", chunks=(24, 5))
    (tmp_path / "plan.json").write_text(plan.to_json())
    with pytest.raises(SystemExit, match=r"[1-9]"):
        cli.main(["run", str(tmp_path / "plan.json")])
    assert messages(repository) == ["write a"]
    plan.run()
    assert np.array_equal(stored(repository, "b"), VALUES)
