"""Jobs that write to a branch of Icechunk are killed anywhere, and resumed by the same call."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask import cli
from zarr_dask.errors import (
    CommitConflictError,
    JobReplacedError,
    ManifestError,
    NodeExistsError,
    ResumeError,
)
from zarr_dask.jobs.engine import lifecycle
from zarr_dask.jobs.write import running
from zarr_dask.journal import receipts as gathering
from zarr_dask.stores.backends import icechunk_session

icechunk = pytest.importorskip("icechunk")
zarr = pytest.importorskip("zarr")

VALUES = np.arange(24 * 20, dtype="f4").reshape(24, 20)
CHILD = """
import os, signal, sys, threading
import dask, dask.array as da, numpy as np
import icechunk
import zarr_dask as zd
from zarr_dask.journal import receipts
from zarr_dask.journal.journal import Journal
from zarr_dask.stores.backends.icechunk_session import BranchSession

kind, moment, folder = sys.argv[1:]
os.environ["MOMENT"], os.environ["FOLDER"] = moment, folder  # no part of the graph
icechunk.set_logs_filter("error")
receipts._SHORT, receipts._MANY = 0.0, 4
url = f"icechunk://{folder}/repo@branch.main"
values = np.arange(24 * 20, dtype="f4").reshape(24, 20)
dask.config.set(scheduler="sync")

def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def before(owner, name):
    setattr(owner, name, die)

def after(owner, name):
    plain = getattr(owner, name)
    def both(self, *args, **options):
        plain(self, *args, **options)
        die()
    setattr(owner, name, both)

def one(block, block_info=None):
    number = block_info[0]["chunk-location"][0]
    with open(os.environ["FOLDER"] + "/done", "a") as file:
        print(number, file=file)
    if os.environ["MOMENT"] == "in a task" and number == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return block + 100

moments = {
    "before a commit": lambda: before(BranchSession, "_checkpoint"),
    "after a snapshot": lambda: before(BranchSession, "_make_branch"),
    "after a commit": lambda: after(BranchSession, "checkpoint"),
    "before the branch moves": lambda: before(BranchSession, "_moved"),
    "after the branch has moved": lambda: after(BranchSession, "_moved"),
    "before the job's branch goes": lambda: before(BranchSession, "discard"),
    "after the job's branch has gone": lambda: after(BranchSession, "discard"),
}
moments.get(moment, lambda: None)()
x = da.from_array(values, chunks=(3, 20)).map_blocks(one, dtype="f4")
if kind == "new":
    zd.to_zarr(x, url, "deep/a", resume=True)
elif kind == "region":
    zd.to_zarr(x, url, "deep/a", region={0: slice(0, 24)}, resume=True)
elif kind == "append":
    zd.to_zarr(x, url, "deep/a", append=0, resume=True)
elif kind == "dataset":
    import xarray as xr
    ds = xr.Dataset({"a": (("time", "x"), x)}, {"time": np.arange(24)})
    zd.write_dataset(ds, url, group="deep", resume=True)
elif kind == "rechunk":
    zd.rechunk(f"{folder}/s.zarr", url, path="deep/a", chunks=(3, 10), resume=True)
elif kind == "copy":
    zd.copy(f"{folder}/s.zarr", url, path="deep/a", resume=True)
"""
MOMENTS = [
    "in a task",
    "before a commit",
    "after a snapshot",
    "after a commit",
    "before the branch moves",
    "after the branch has moved",
    "before the job's branch goes",
    "after the job's branch has gone",
]


@pytest.fixture
def url(repository, tmp_path):
    return f"icechunk://{tmp_path}/repo@branch.main"


@pytest.fixture
def often(monkeypatch):
    """Let jobs commit after four stored objects."""
    monkeypatch.setattr(gathering, "_SHORT", 0.0)
    monkeypatch.setattr(gathering, "_MANY", 4)


def run(kind, moment, folder):
    """Run the job in a process of its own; returns whether it was killed."""
    script = folder / "job.py"
    script.write_text(CHILD)
    words = [sys.executable, str(script), kind, moment, str(folder)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr
    return ended.returncode != 0


def stored(repository, path, branch="main"):
    group = zarr.open_group(repository.readonly_session(branch).store, mode="r")
    return group[path][...]


def prepared(kind, url, folder):
    """Make what the job finds; returns what it leaves."""
    if kind in {"region", "append"}:
        zd.create_array(url, "deep/a", data=VALUES, chunks=(3, 20))
    if kind in {"rechunk", "copy"}:
        zd.create_array(folder / "s.zarr", data=VALUES + 100, chunks=(3, 20))
    return np.concatenate([VALUES, VALUES + 100]) if kind == "append" else VALUES + 100


def check_ended(repository, tmp_path, kind, expected):
    assert np.array_equal(stored(repository, "deep/a"), expected)
    assert repository.list_branches() == {"main"}
    assert not [*tmp_path.glob("repo@main.zarr-dask/**/__job-*")]
    messages = [one.message for one in repository.ancestry(branch="main")]
    assert len(messages) == 2 + (kind in {"region", "append"}), messages


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", ["new", "region", "append", "dataset", "rechunk", "copy"])
def test_a_killed_job_is_resumed(repository, url, tmp_path, kind, moment):
    expected = prepared(kind, url, tmp_path)
    before = repository.lookup_branch("main")
    killed = run(kind, moment, tmp_path)
    assert killed or kind in {"rechunk", "copy"}
    late = moment in MOMENTS[-3:]
    if killed and not late:
        assert repository.lookup_branch("main") == before  # readers have seen nothing
    run(kind, "", tmp_path)
    check_ended(repository, tmp_path, kind, expected)
    if kind not in {"rechunk", "copy"}:
        done = (tmp_path / "done").read_text().split()
        # a commit holds four objects or more, so that at most those since the last one are repeated
        assert 8 <= len(done) <= (8 if late or moment == "before the branch moves" else 13)
    if kind not in {"append", "region"}:  # these are written once more
        run(kind, "", tmp_path)  # a batch system may begin it once more
        check_ended(repository, tmp_path, kind, expected)


def slowly(values, meanwhile=None, at=7):
    """Blocks of 3 rows; `meanwhile` is called when one of them is computed."""

    def one(block, block_info=None):
        if meanwhile is not None and block_info[0]["chunk-location"][0] == at:
            meanwhile()
        return block

    return da.from_array(values, chunks=(3, 20)).map_blocks(one, dtype=values.dtype)


class StopError(Exception):
    """The end of a job in the middle."""


def broken(url, values=VALUES, repository_options=None, **options):
    """Begin a job that fails in its last block, after commits of its own."""

    def fail():
        if not broken.goes_on:
            raise StopError

    broken.goes_on = False
    x = slowly(values, fail, 1)
    with dask.config.set(scheduler="sync"), pytest.raises(StopError):
        zd.to_zarr(x, url, "a", storage_options=repository_options, resume="run", **options)
    broken.goes_on = True
    return x


def test_what_is_left_is_named_and_removed(repository, url, often, capsys):
    x = broken(url)
    (branch,) = repository.list_branches() - {"main"}
    with pytest.raises(SystemExit, match="1"):
        cli.main(["status", url])
    said = capsys.readouterr().out
    assert branch in said
    assert "not ended" in said
    zd.to_zarr(x, url, "a", resume=False)
    assert repository.list_branches() == {"main"}
    with pytest.raises(SystemExit, match="0"):
        cli.main(["status", url])
    assert np.array_equal(stored(repository, "a"), VALUES)


@pytest.mark.parametrize("how", [{}, {"region": {0: slice(3, 24)}}])
def test_the_branch_has_moved(repository, url, often, how):
    """What others have committed stays; what was written before the failure is copied behind it."""
    if how:
        zd.create_array(url, "a", data=VALUES, chunks=(3, 20))
    x = broken(url, VALUES[3:] + 100 if how else VALUES + 100, **how)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store)
    group.create_array("other", data=VALUES)
    if how:
        group["a"][:3] = 7
    session.commit("other")
    zd.to_zarr(x, url, "a", resume="run", **how)
    expected = VALUES + 100
    if how:
        expected[:3] = 7
    assert np.array_equal(stored(repository, "a"), expected)
    assert np.array_equal(stored(repository, "other"), VALUES)
    messages = [one.message for one in repository.ancestry(branch="main")]
    assert messages[:2] == ["write a", "other"]
    assert repository.list_branches() == {"main"}


def test_others_have_changed_the_same(repository, url, often):
    zd.create_array(url, "a", data=VALUES, chunks=(3, 20))
    region = {0: slice(0, 24)}
    x = broken(url, VALUES + 100, region=region)
    session = repository.writable_session("main")
    zarr.open_group(session.store)["a"][21:] = 7
    moved = session.commit("other")
    for _ in range(2):
        with pytest.raises(CommitConflictError, match=r"a \(the stored objects at \[\(7, 0\)\]\)"):
            zd.to_zarr(x, url, "a", region=region, resume="run")
        assert repository.lookup_branch("main") == moved
    zd.to_zarr(x, url, "a", region=region, resume=False)
    assert np.array_equal(stored(repository, "a"), VALUES + 100)
    assert repository.list_branches() == {"main"}


def test_another_process_goes_on_with_the_job(repository, url, often, monkeypatch):
    """Where no lock keeps them apart, the second commit finds the first, and its job stops."""
    x = broken(url)
    (branch,) = repository.list_branches() - {"main"}
    made = icechunk_session.BranchSession._amended

    def late(self, session, metadata):
        other = repository.writable_session(branch)
        other.amend("another process", metadata=metadata, allow_empty=True)
        return made(self, session, metadata)

    monkeypatch.setattr(icechunk_session.BranchSession, "_amended", late)
    with dask.config.set(scheduler="sync"), pytest.raises(JobReplacedError, match="goes on"):
        zd.to_zarr(x, url, "a", resume="run")
    assert [one.message for one in repository.ancestry(branch="main")] == ["Repository initialized"]


def test_the_same_call_twice_at_once(repository, url, often):
    """The second one waits, and finds all done."""
    reports = []

    def call():
        reports.append(zd.to_zarr(slowly(VALUES), url, "a", resume="run"))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(reports) == 2
    assert np.array_equal(stored(repository, "a"), VALUES)
    messages = [one.message for one in repository.ancestry(branch="main")]
    assert messages == ["write a", "Repository initialized"]


@pytest.mark.parametrize("kind", ["write", "rechunk", "copy", "ingest"])
def test_the_same_call_that_ends_before_it_is_waited_for(
    repository, url, tmp_path, often, monkeypatch, kind
):
    """The session was opened before the other call began, and its lock is free by now."""
    module = running if kind == "write" else lifecycle
    entered, calls = module.alone_at, []

    def call():
        if kind == "write":
            zd.to_zarr(da.from_array(VALUES, chunks=6), url, "a", resume="run")
        elif kind == "rechunk":
            zd.rechunk(tmp_path / "s.zarr", url, path="a", chunks=(3, 10), resume=True)
        elif kind == "copy":
            zd.copy(tmp_path / "s.zarr", url, path="a", resume=True)
        else:
            zd.ingest([tmp_path / "s.nc"], url, resume=True)

    def late(*args):
        if not calls:
            calls.append(args)
            call()
        return entered(*args)

    zd.create_array(tmp_path / "s.zarr", data=VALUES, chunks=(3, 20))
    xr.Dataset({"a": (("y", "x"), VALUES)}).to_netcdf(tmp_path / "s.nc", engine="h5netcdf")
    monkeypatch.setattr(module, "alone_at", late)
    call()
    assert np.array_equal(stored(repository, "a"), VALUES)
    messages = [one.message for one in repository.ancestry(branch="main")]
    assert len(messages) == 2, messages


@pytest.mark.parametrize("kind", ["write", "several", "dataset", "rechunk"])
def test_a_refused_commit_is_not_recorded_as_done(repository, url, tmp_path, monkeypatch, kind):
    """The same call is no success, though the metadata are there that it would have written."""
    committed = icechunk_session.BranchSession._committed

    def call(place, values, resume):
        x = da.from_array(values, chunks=(3, 20))
        if kind == "write":
            zd.to_zarr(x, place, "a", resume=resume)
        elif kind == "several":
            zd.to_zarr([x, x + 1], place, ["a", "b"], resume=resume)
        elif kind == "dataset":
            zd.write_dataset(xr.Dataset({"a": (("y", "x"), x)}), place, resume=resume)
        else:
            zd.create_array(tmp_path / "s.zarr", data=values, chunks=(3, 20), overwrite=True)
            zd.rechunk(tmp_path / "s.zarr", place, path="a", chunks=(3, 10), resume=bool(resume))

    def late(self, *args):
        monkeypatch.setattr(icechunk_session.BranchSession, "_committed", committed)
        session = repository.writable_session("main")
        call(session.store, VALUES + 100, False)
        session.commit("other")
        return committed(self, *args)

    monkeypatch.setattr(icechunk_session.BranchSession, "_committed", late)
    with pytest.raises(CommitConflictError):
        call(url, VALUES, "run")
    with pytest.raises((CommitConflictError, NodeExistsError)):
        call(url, VALUES, "run")
    assert np.array_equal(stored(repository, "a"), VALUES + 100)


def test_a_manifest_after_a_failure_behind_the_commit(repository, url, monkeypatch):
    """The same call writes it: the journal is removed later."""

    def fail(self):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(icechunk_session.BranchSession, "run_after", fail)
        with pytest.raises(StopError):
            zd.to_zarr(slowly(VALUES), url, "a", resume="run", manifest=True)
    assert np.array_equal(stored(repository, "a"), VALUES)
    with pytest.raises(ManifestError):
        zd.verify(url, "a", manifest=True)
    zd.to_zarr(slowly(VALUES), url, "a", resume="run", manifest=True)
    report = zd.verify(url, "a", manifest=True)
    assert report.ok
    assert report.objects["ok"] == 8
    messages = [one.message for one in repository.ancestry(branch="main")]
    assert messages == ["write a", "Repository initialized"]


@pytest.mark.parametrize("what", ["write", "several", "window", "regrouped", "rechunk"])
def test_on_a_cluster(client, repository, url, tmp_path, often, what, monkeypatch):
    """Forks are merged and committed while tasks run; the journal waits for the commits."""
    commits = []
    made = icechunk_session.BranchSession.checkpoint

    def checkpoint(self, name):
        made(self, name)
        commits.append(name)

    monkeypatch.setattr(icechunk_session.BranchSession, "checkpoint", checkpoint)
    monkeypatch.setattr("zarr_dask.jobs.engine.session_forks._SOON", 0.0)
    x = da.arange(24 * 20, dtype="f4", chunks=60).reshape(24, 20)
    if what == "write":
        zd.to_zarr(x, url, "a", resume=True)
    elif what == "several":
        zd.to_zarr([x, x + 1], url, ["a", "b"], resume=True)
        assert np.array_equal(stored(repository, "b"), VALUES + 1)
    elif what == "window":
        y = da.map_blocks(lambda block: block, da.ones((24, 20), chunks=(3, 20), dtype="f4"))
        zd.to_zarr(y, url, "a", resume=True, window=2)
    elif what == "regrouped":
        zd.to_zarr(x.rechunk((5, 7)), url, "a", chunks=(3, 20), resume=True)
    else:
        zd.create_array(tmp_path / "s.zarr", data=VALUES, chunks=(3, 20))
        zd.rechunk(tmp_path / "s.zarr", url, path="a", chunks=(3, 10), resume=True)
    expected = np.ones_like(VALUES) if what == "window" else VALUES
    assert np.array_equal(stored(repository, "a"), expected)
    assert commits
    assert repository.list_branches() == {"main"}


def test_in_an_object_store(often, monkeypatch):
    """The journal lies beside the repository there, too."""
    with s3_server() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.options["key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.options["secret"])
        options = {
            "endpoint_url": server.options["client_kwargs"]["endpoint_url"],
            "region": "us-east-1",
            "allow_http": True,
            "force_path_style": True,
        }
        storage = icechunk.s3_storage(bucket="bucket", prefix="r/repo", from_env=True, **options)
        repository = icechunk.Repository.create(storage)
        url = "icechunk+s3://bucket/r/repo@branch.main"
        x = broken(url, repository_options=options)
        assert len(repository.list_branches()) == 2
        beside = zd.stores.open_store("s3://bucket/r", server.options)
        jobs = [key for key in beside.list("repo@main.zarr-dask/a/") if "/__job-" in key]
        assert any(key.endswith("/job.json") for key in jobs)
        assert any("/receipts-commit-" in key for key in jobs)
        report = zd.to_zarr(x, url, "a", storage_options=options, resume="run")
        assert report.objects < 8
        assert repository.list_branches() == {"main"}
        assert np.array_equal(stored(repository, "a"), VALUES)


def test_a_session_of_the_users_own_is_refused(repository):
    session = repository.writable_session("main")
    with pytest.raises(ResumeError, match="by its URL"):
        zd.to_zarr(slowly(VALUES), session.store, "a", resume=True)


def test_images_are_not_resumed(repository, url):
    with pytest.raises(ResumeError, match="in one go"):
        zd.ome.write(VALUES, url, "i", axes="yx", resume=True)
