"""Mounts whose locks are known to one host alone: what stands in for locks, and what is fenced.

One party of each test sees such a mount, as if through FUSE: it does not trust locks. The other one
sees the same files with locks that it trusts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from errno import EACCES, ENOENT
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.hanging_write import HANGING
from tests.support.leftovers import left_in
from tests.support.paths import ROOT
from tests.support.scripts import Script
from zarr_dask.errors import (
    AppendConflictError,
    ConditionalWriteError,
    JobReplacedError,
    JobRunningError,
    RankError,
)
from zarr_dask.jobs.engine.resume import ResumePlan
from zarr_dask.stores import LocalStore, mounts
from zarr_dask.stores import file_lock as exclusive
from zarr_dask.stores.file_lock import RecordTakenError, has_shared_locks, make_record
from zarr_dask.stores.mounts import Mount, parse_mounts
from zarr_dask.stores.process_identity import Owner

UNTRUSTED = """
import os, sys
from zarr_dask.stores import file_lock
file_lock._KNOWN.update(dict.fromkeys([os.stat(sys.argv[1]).st_dev], False))
"""
ELSEWHERE = Owner("elsewhere", "k", "t", 1, "1", "0123", locked=False)


def start(code: str, *arguments: object, trusts: bool) -> Script:
    return Script(("import sys\n" if trusts else UNTRUSTED) + code, *arguments)


def distrust(monkeypatch, folder) -> None:
    monkeypatch.setattr(exclusive, "_KNOWN", {Path(folder).stat().st_dev: False})


# --- which mounts ---------------------------------------------------------------------------------


def test_only_file_systems_of_this_host_are_behind_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(mounts, "_MOUNT_OF", {})
    device, mount = tmp_path.stat().st_dev, Mount("nfs4", frozenset())
    monkeypatch.setattr(mounts, "mount_of", lambda _: mount)
    assert not mounts.is_on_this_host(str(tmp_path))
    assert {device: mount} == mounts._MOUNT_OF
    mount = Mount("ext4", frozenset())
    assert not mounts.is_on_this_host(str(tmp_path))  # which is looked up once
    mounts._MOUNT_OF.clear()
    assert mounts.is_on_this_host(str(tmp_path))
    assert not mounts.is_on_this_host(str(tmp_path / "absent"))


@pytest.mark.parametrize(("kind", "looks"), [("fuse.bindfs", 3), ("fuse", 3), ("ext4", 1)])
@pytest.mark.parametrize("call", ["open", "lstat"])
def test_only_fuse_is_asked_again_for_what_seems_to_be_missing(
    tmp_path, monkeypatch, kind, looks, call
):
    (tmp_path / "a").write_bytes(b"value")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(mounts, "_HIDES", {})
    monkeypatch.setattr(mounts, "_MOUNT_OF", {tmp_path.stat().st_dev: Mount(kind, frozenset())})
    store, asked, original = LocalStore(str(tmp_path)), [], getattr(os, call)

    def hidden(path, *rest, **options):
        if str(path).endswith("/a"):
            asked.append(path)
            if len(asked) < 3:
                raise FileNotFoundError(2, "No such file or directory")
        return original(path, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, hidden)
        found = store.get("a") if call == "open" else store.size("a")
    assert len(asked) == looks
    assert found == (None if looks == 1 else {"open": b"value", "lstat": 5}[call])
    assert store.get("b") is None
    assert store.size("b") is None
    assert LocalStore(str(tmp_path / "none")).get("b") is None
    assert list(mounts._HIDES) == [str(tmp_path)]  # what is not there may be mounted later


def test_what_fuse_mixes_of_two_values_is_read_again(tmp_path, monkeypatch):
    """The size of the old value, and the bytes of the one that has just replaced it."""
    root = str(tmp_path)
    reads = iter([b"new va", b"new value", b"new value"])
    monkeypatch.setattr(mounts, "_HIDES", {root: True})
    monkeypatch.setattr(LocalStore, "get_ranges", lambda *_: [next(reads)])
    assert LocalStore(root).get_tagged("a") == (b"new value", b"new value")


@pytest.mark.parametrize(
    ("kind", "options", "shared"),
    [
        ("ext4", "rw", True),
        ("xfs", "rw", True),
        ("btrfs", "rw,subvol=/", True),
        ("tmpfs", "rw", True),
        ("overlay", "rw,lowerdir=/a", True),
        ("zfs", "rw", True),
        ("nfs4", "rw,vers=4.2,local_lock=none", True),
        ("nfs", "rw,vers=3,local_lock=all", False),
        ("nfs", "rw,nolock,local_lock=none", False),
        ("lustre", "rw,flock", True),
        ("lustre", "rw,localflock", False),
        ("lustre", "rw", False),
        ("cifs", "rw", True),
        ("cifs", "rw,nobrl", False),
        ("fuse", "rw", False),
        ("fuse.sshfs", "rw", False),
        ("fuseblk", "rw", False),
        ("9p", "rw", False),
        ("virtiofs", "rw", False),
        ("never heard of", "rw", False),
    ],
)
def test_which_mounts_share_their_locks(kind, options, shared):
    assert Mount(kind, frozenset(options.split(","))).has_shared_locks is shared


def test_a_table_of_mounts_with_odd_lines():
    table = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n\nnonsense\n2 1 0:5 / /m rw a:1 b:2 - fuse x rw,nolock\n"
    )
    assert parse_mounts(table) == {
        1: Mount("ext4", frozenset({"rw"})),
        2: Mount("fuse", frozenset({"rw", "nolock"})),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="mounts are looked up on Linux")
@pytest.mark.parametrize(("kind", "shared"), [("ext4", True), ("fuse.bindfs", False)])
def test_a_folder_is_found_in_the_table_once(tmp_path, monkeypatch, kind, shared):
    table = re.sub(r" - \S+", f" - {kind}", Path(mounts._MOUNTS).read_text("utf-8"))
    fake = tmp_path / "mountinfo"
    fake.write_text(table, "utf-8")
    monkeypatch.setattr(mounts, "_MOUNTS", str(fake))
    monkeypatch.setattr(exclusive, "_KNOWN", {})
    with fake.open() as file:
        assert has_shared_locks(file.fileno()) is shared
        fake.unlink()
        assert has_shared_locks(file.fileno()) is shared


def test_one_module_asks_for_locks():
    found = [
        path.name
        for path in (ROOT / "zarr_dask").rglob("*.py")
        if re.search(
            r"^\s*(import|from) (fcntl|msvcrt)|import_module\(",
            path.read_text("utf-8"),
            re.MULTILINE,
        )
        and re.search("fcntl|msvcrt", path.read_text("utf-8"))
    ]
    assert found == ["file_lock.py"]


# --- records --------------------------------------------------------------------------------------


def test_a_record_is_of_one_process_and_goes(tmp_path):
    path = str(tmp_path / "r")
    record = make_record(path, locked=False)
    assert record.is_ours()
    with pytest.raises(RecordTakenError, match=re.escape(path)):
        make_record(path, locked=True)
    record.remove()
    assert not list(tmp_path.iterdir())


def test_a_record_that_another_has_replaced_is_left_alone(tmp_path):
    record = make_record(str(tmp_path / "r"), locked=False)
    (tmp_path / "r").write_bytes(ELSEWHERE.to_json())
    assert not record.is_ours()
    record.remove()
    assert Owner.parse((tmp_path / "r").read_bytes()) == ELSEWHERE


def test_the_record_of_a_process_that_was_killed_is_taken_away(tmp_path):
    code = "from zarr_dask.stores.file_lock import make_record\n"
    code += "make_record(sys.argv[1] + '/r', locked=False); os._exit(9)"
    start(code, tmp_path, trusts=False).close()
    assert (tmp_path / "r").exists()
    make_record(str(tmp_path / "r"), locked=False).remove()
    assert not list(tmp_path.iterdir())


def test_a_number_of_a_process_that_came_again(tmp_path):
    here = Owner.here(locked=False)
    later = Owner(**{**json.loads(here.to_json()), "began": "1"})
    rebooted = Owner(**{**json.loads(here.to_json()), "kernel": "another"})
    assert not here.is_gone()
    if here.began:
        assert later.is_gone()
    if here.kernel and here.machine:
        assert rebooted.is_gone()
    assert not ELSEWHERE.is_gone()


@pytest.mark.parametrize("machine", ["", "another"])
def test_a_process_of_another_host_of_the_same_name_is_not_taken_for_dead(machine):
    """Machines that are all called localhost; it may be the number of no process here, too."""
    here = json.loads(Owner.here(locked=False).to_json())
    there = Owner(**{**here, "kernel": "another", "machine": machine, "pid": 1 << 22})
    assert not there.is_gone()
    assert not there.is_running()


def test_a_process_that_is_stopped_or_killed_is_not_waited_for() -> None:
    """Also before its parent has asked for its exit code."""
    is_told = Path("/proc/self/stat").exists()
    with subprocess.Popen(["sleep", "60"]) as killed:
        there = Owner(
            **{**json.loads(Owner.here(locked=False).to_json()), "pid": killed.pid, "began": ""}
        )
        assert there.is_another_at_work()
        killed.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, killed.pid, os.WSTOPPED | os.WNOWAIT)
        assert there.is_running()
        assert there.is_another_at_work() != is_told
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        assert there.is_gone() == is_told


ENDLESS = ELSEWHERE.to_json().replace(b'"pid": 1', b'"pid": Infinity')


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'{"pid": "x"}', b"\xff", b"[" * 5000, ENDLESS]
)
def test_a_record_that_names_nobody(text):
    assert Owner.parse(text) is None


def put_stranger(path, what):
    """Put something in the place of a record that no job has made."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link to itself":
        path.symlink_to(path.name)
    elif what == "link out":
        path.symlink_to(path.parent / "victim")
        (path.parent / "victim").write_bytes(Owner.here(locked=False).to_json())
    else:
        path.touch()
        os.truncate(path, 1 << 40)


STRANGERS = ["pipe", "folder", "link to itself", "link out", "file of 1 TiB"]


@pytest.mark.parametrize("what", STRANGERS)
def test_what_a_stranger_has_put_for_a_record_names_nobody(what, tmp_path, monkeypatch):
    monkeypatch.setattr(exclusive, "_SETTLED", 0.05)
    put_stranger(tmp_path / "r", what)
    assert exclusive.owner_of(str(tmp_path / "r")) is None
    with pytest.raises(RecordTakenError):
        make_record(str(tmp_path / "r"), locked=False)


@pytest.mark.parametrize("what", STRANGERS)
def test_what_a_stranger_has_put_for_the_record_of_a_job_is_in_nobodys_way(what, tmp_path):
    job = start(WRITE, tmp_path, trusts=True)
    assert job.stdout.readline() == "here\n"
    job.kill()
    job.close()
    (record,) = tmp_path.glob("a.zarr-dask/*/held-*")
    record.unlink()
    put_stranger(record, what)
    zd.to_zarr(da.ones((8,), chunks=2, dtype="i4"), tmp_path / "a", mode="w")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], 1)


# --- objects that several jobs change -------------------------------------------------------------


COUNT = """
from zarr_dask.stores import LocalStore
store = LocalStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(150):
    while True:
        value, tag = store.get_tagged("c/0")
        if store.set_if("c/0", [str(int(bytes(value)) + 1).encode()], tag):
            break
"""


def test_two_that_do_not_see_each_others_locks_lose_nothing(tmp_path):
    LocalStore(str(tmp_path)).set("c/0", [b"0"])
    both = [start(COUNT, tmp_path, trusts=trusts) for trusts in (True, False)]
    for one in both:
        assert one.stdout.readline() == "ready\n"
    for one in both:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in both:
        assert one.wait() == 0
        one.close()
    assert (tmp_path / "c" / "0").read_bytes() == b"300"
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["0"]


@pytest.mark.parametrize("trusts", [False, True])
def test_a_record_of_another_host_is_named(tmp_path, monkeypatch, trusts):
    if not trusts:
        distrust(monkeypatch, tmp_path)
    monkeypatch.setattr(exclusive, "_PATIENCE", 0.02)
    store = LocalStore(str(tmp_path))
    store.set("c/0", [b"0"])
    record = tmp_path / "c" / ".zarr-dask-0000000000000000.tmp"
    record.write_bytes(ELSEWHERE.to_json())
    with pytest.raises(ConditionalWriteError, match=re.escape(str(record))):
        store.set_if("c/0", [b"1"], store.get_tagged("c/0")[1])
    assert store.get("c/0") == b"0"
    assert list(store.list()) == ["c/0"]
    record.unlink()
    assert store.set_if("c/0", [b"1"], store.get_tagged("c/0")[1])


def test_who_has_lost_the_record_puts_nothing(tmp_path, monkeypatch):
    distrust(monkeypatch, tmp_path)
    store = LocalStore(str(tmp_path))
    store.set("c/0", [b"0"])
    _, tag = store.get_tagged("c/0")
    has = LocalStore._has

    def look_and_lose(self, key, expected):
        (tmp_path / "c" / ".zarr-dask-0000000000000000.tmp").unlink()
        return has(self, key, expected)

    monkeypatch.setattr(LocalStore, "_has", look_and_lose)
    with pytest.raises(ConditionalWriteError, match="was at work"):
        store.set_if("c/0", [b"1"], tag)
    assert store.get("c/0") == b"0"


# --- jobs -----------------------------------------------------------------------------------------


WRITE = f"""{HANGING}
zd.to_zarr(x, sys.argv[1] + "/a", mode="w")
"""


@pytest.mark.parametrize("trusts", [False, True])
def test_a_job_that_hangs_behind_another_mount(tmp_path, monkeypatch, trusts):
    job = start(WRITE, tmp_path, trusts=trusts)
    assert job.stdout.readline() == "here\n"
    if trusts:
        distrust(monkeypatch, tmp_path)
    os.kill(job.pid, signal.SIGSTOP)
    with pytest.raises(JobRunningError, match=f"process {job.pid} on"):
        zd.to_zarr(da.zeros((8,), chunks=2, dtype="i4") + 2, tmp_path / "a", mode="w")
    os.kill(job.pid, signal.SIGCONT)
    job.kill()
    job.close()
    zd.to_zarr(da.zeros((8,), chunks=2, dtype="i4") + 2, tmp_path / "a", mode="w")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], 2)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_job_of_another_host_is_named(tmp_path):
    job = start(WRITE, tmp_path, trusts=False)
    assert job.stdout.readline() == "here\n"
    job.kill()
    job.close()
    (record,) = tmp_path.glob("a.zarr-dask/*/held-*")
    record.write_bytes(ELSEWHERE.to_json())
    x = da.zeros((8,), chunks=2, dtype="i4")
    with pytest.raises(JobRunningError, match=re.escape(str(record))):
        zd.to_zarr(x, tmp_path / "a", mode="w")
    record.unlink()
    zd.to_zarr(x, tmp_path / "a", mode="w")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("grid", [{"chunks": (2,)}, {"chunks": (1,), "shards": (2,)}])
def test_a_job_that_wakes_after_another_has_ended_puts_nothing(tmp_path, monkeypatch, resume, grid):
    """Its record was removed by hand, because it was thought dead."""
    distrust(monkeypatch, tmp_path)
    later = da.full((8,), 2, chunks=2, dtype="i4")

    def block(values, block_info=None):
        if block_info[0]["chunk-location"] == (2,):
            (record,) = tmp_path.glob("a.zarr-dask/*/held-*")
            record.unlink()
            zd.to_zarr(later, tmp_path / "a", mode="w", **grid)
        return values

    x = da.ones((8,), chunks=2, dtype="i4").map_blocks(block, dtype="i4", name="sleeper")
    replaced = pytest.raises(JobReplacedError, match=r"a\.zarr-dask")
    with dask.config.set(scheduler="synchronous"), replaced:
        zd.to_zarr(x, tmp_path / "a", mode="w", resume=resume, **grid)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], 2)


def test_a_rechunking_that_wakes_after_another_has_ended_puts_nothing(tmp_path, monkeypatch):
    distrust(monkeypatch, tmp_path)
    source = zd.create_array(tmp_path / "s", shape=(8,), dtype="i4", chunks=(2,))
    source[...] = np.ones(8, "i4")
    read, asked = LocalStore.get, []

    def interfere(self, key):
        if key.endswith("job.json") and not asked and list(tmp_path.glob("t.zarr-dask/*/held-*")):
            asked.append(key)
            for record in tmp_path.glob("t.zarr-dask/*/held-*"):
                record.unlink()
            zd.to_zarr(da.full((8,), 2, chunks=4, dtype="i4"), tmp_path / "t", mode="w")
        return read(self, key)

    monkeypatch.setattr(LocalStore, "get", interfere)
    # one task at a time: another one may look while neither job has anything to show
    with dask.config.set(scheduler="synchronous"), pytest.raises(JobReplacedError):
        zd.rechunk(tmp_path / "s", tmp_path / "t", chunks=(4,), max_mem="10MB")
    assert asked
    np.testing.assert_array_equal(zd.open_array(tmp_path / "t")[...], 2)


# --- claims ---------------------------------------------------------------------------------------


APPEND = """
import dask, numpy as np, zarr_dask as zd
array = zd.open_array(sys.argv[1] + "/a", mode="r+")
from zarr_dask.journal import claimed
with claimed(array.store, array.path):
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("trusts", [False, True])
def test_an_append_behind_another_mount_has_the_end_of_the_array(tmp_path, monkeypatch, trusts):
    """Neither party sees the locks of the other one, but both see its record."""
    array = zd.create_array(tmp_path / "a", shape=(4,), dtype="i4", chunks=(2,))
    job = start(APPEND, tmp_path, trusts=trusts)
    assert job.stdout.readline() == "here\n"
    if trusts:
        distrust(monkeypatch, tmp_path)
    with pytest.raises(AppendConflictError, match=f"process {job.pid} on"):
        array.append(np.ones(2, "i4"))
    with pytest.raises(JobRunningError, match=f"process {job.pid} on"):
        zd.to_zarr(da.ones(4, chunks=2, dtype="i4"), tmp_path / "a", mode="w")
    assert zd.open_array(tmp_path / "a").shape == (4,)
    job.kill()
    job.close()
    zd.open_array(tmp_path / "a", mode="r+").append(np.ones(2, "i4"))
    assert zd.open_array(tmp_path / "a")[...].tolist() == [0, 0, 0, 0, 1, 1]
    assert left_in(tmp_path) == {"a"}


def test_a_claim_that_failed_is_no_claim_only_where_nothing_may_be_put(tmp_path, monkeypatch):
    """A folder that FUSE shows though it is gone, and a record that another process keeps."""
    array = zd.create_array(tmp_path / "a", shape=(2,), dtype="i4", chunks=(2,))
    distrust(monkeypatch, tmp_path)
    store = LocalStore(str(tmp_path))
    gone, refused = (store.failed("write", "held", OSError(one, "")) for one in (ENOENT, EACCES))
    gone.__cause__, refused.__cause__ = OSError(ENOENT, ""), OSError(EACCES, "")

    def appending(error):
        put = LocalStore.set_if

        def put_if(self, key, buffers, tag):
            if key.endswith("held"):
                raise error
            return put(self, key, buffers, tag)

        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "set_if", put_if)
            array.append(np.ones(2, "i4"))

    for error in (gone, ConditionalWriteError("held by another host")):
        with pytest.raises(type(error)):
            appending(error)
    assert zd.open_array(tmp_path / "a").shape == (2,)
    appending(refused)
    assert zd.open_array(tmp_path / "a").shape == (4,)


def test_a_claim_whose_maker_died_before_it_wrote_is_nobodys(tmp_path, monkeypatch):
    array = zd.create_array(tmp_path / "a", shape=(2,), dtype="i4", chunks=(2,))
    (tmp_path / "a.zarr-dask" / "__append").mkdir(parents=True)
    (tmp_path / "a.zarr-dask" / "__append" / "held").touch()
    distrust(monkeypatch, tmp_path)
    array.append(np.ones(2, "i4"))
    assert array[...].tolist() == [0, 0, 1, 1]
    assert left_in(tmp_path) == {"a"}


def test_a_new_array_is_begun_by_one_party_at_a_time(tmp_path, monkeypatch):
    """Between a look for other jobs and the record of its own, a job has a claim."""
    found = []
    begin = ResumePlan.begin

    def begin_and_look(self, *args, **options):
        monkeypatch.setattr(ResumePlan, "begin", begin)
        script = "import zarr_dask as zd, dask.array as da\n" + OTHER
        with start(script, tmp_path, trusts=True) as other:
            found.append(other.stdout.read())
        return begin(self, *args, **options)

    distrust(monkeypatch, tmp_path)
    monkeypatch.setattr(ResumePlan, "begin", begin_and_look)
    zd.to_zarr(da.ones(4, chunks=2, dtype="i4"), tmp_path / "a", mode="w")
    assert found in (["JobRunningError\n"], ["AppendConflictError\n"])
    assert zd.open_array(tmp_path / "a")[...].tolist() == [1] * 4
    assert left_in(tmp_path) == {"a"}


OTHER = """
try:
    zd.to_zarr(da.zeros(4, chunks=2, dtype="i4"), sys.argv[1] + "/a", mode="w")
    print("done")
except zd.errors.ZarrDaskError as error:
    print(type(error).__name__)
"""


# --- ranks ----------------------------------------------------------------------------------------


ATTACH = """
import zarr_dask as zd
with zd.Writer.attach(sys.argv[1] + "/run", rank=0) as writer:
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("trusts", [False, True])
def test_one_process_is_a_rank_whatever_mounts_are_between(tmp_path, monkeypatch, trusts):
    arrays = {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 2)}}
    zd.Writer.create(tmp_path / "run", arrays, owners=zd.decompose((4,), (2,)))
    rank = start(ATTACH, tmp_path, trusts=trusts)
    assert rank.stdout.readline() == "here\n"
    if trusts:
        distrust(monkeypatch, tmp_path)
    with pytest.raises(RankError, match=f"process {rank.pid} on"):
        zd.Writer.attach(tmp_path / "run", rank=0)
    with pytest.raises(RankError, match="rank-0"):
        zd.Writer.abandon(tmp_path / "run")
    rank.kill()
    rank.close()
    with zd.Writer.attach(tmp_path / "run", rank=0) as writer:
        writer.write_step(0, {"u": np.ones(2, "f4")})
    assert not list(tmp_path.glob("run.zarr-dask/**/held-*"))


def test_a_rank_that_has_lost_its_record_adds_nothing(tmp_path, monkeypatch):
    distrust(monkeypatch, tmp_path)
    zd.Writer.create(tmp_path / "run", {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 4)}})
    with zd.Writer.attach(tmp_path / "run", rank=0) as writer:
        writer.write_step(0, {"u": np.ones(4, "f4")})
        (record,) = tmp_path.glob("run.zarr-dask/**/held-rank-0")
        record.write_bytes(ELSEWHERE.to_json())
        with pytest.raises(RankError, match="held-rank-0"):
            writer.write_step(1, {"u": np.ones(4, "f4")})
        record.write_bytes(writer._appender.holding.owner.to_json())  # so that it can be closed
        assert zd.Writer.attach(tmp_path / "run").stored() == 1


# --- systems without such locks -------------------------------------------------------------------


WITHOUT = """
import sys
sys.modules["fcntl"] = None
import numpy as np, dask.array as da, zarr_dask as zd
place = sys.argv[1]
a = zd.create_array(place + "/a", shape=(8,), dtype="i4", chunks=(4,))
a[...] = np.arange(8)
zd.to_zarr(da.full((2,), 9, dtype="i4"), a, region=np.s_[1:3], partial="compare")
zd.to_zarr(da.ones((8,), chunks=4), place + "/b", mode="w", resume=True)
zd.to_zarr(da.zeros((8,), chunks=4), place + "/b", mode="swap")
zd.Writer.create(place + "/run", {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 4)}})
with zd.Writer.attach(place + "/run", rank=0) as writer:
    writer.write_step(0, {"u": np.ones(4, "f4")})
    try:
        zd.Writer.attach(place + "/run", rank=0)
    except zd.errors.RankError:
        print("refused")
zd.Writer.attach(place + "/run").finish()
print(zd.open_array(place + "/a")[...].tolist(), float(zd.open_array(place + "/b")[...].sum()))
print(zd.open_array(place + "/run/u").shape)
"""


def test_a_system_without_locks(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert found.stdout.splitlines() == ["refused", "[0, 9, 9, 3, 4, 5, 6, 7] 0.0", "(1, 4)"], (
        found.stderr
    )
    assert left_in(tmp_path) == {"a", "b", "run"}


WITHOUT_FOLDERS = """
import asyncio, dask.array as da, distributed, numpy as np
import os, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource")))
hidden = "fork register_at_fork pread preadv pwritev O_DIRECTORY O_CLOEXEC O_NOFOLLOW O_NONBLOCK"
for name in hidden.split():
    if hasattr(os, name):
        delattr(os, name)
os.supports_dir_fd = set()
import zarr_dask as zd
store = {}
zd.to_zarr(da.ones((8, 8), chunks=4), store, "a", shards=(8, 8), chunks=(2, 2))
zd.open(store, "a", mode="r+").append([[2.0] * 8])
print(float(zd.from_zarr(store, "a").sum()), zd.verify(store, deep="decode").ok)
try:
    zd.to_zarr(da.ones(3), sys.argv[1] + "/a")
except zd.errors.StoreError as error:
    print(str(error)[:47])
"""


def test_a_system_without_calls_relative_to_a_folder(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_FOLDERS, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    said = ["80.0 True", "local files are not supported on this system (l"]
    assert found.stdout.splitlines() == said, found.stderr
    assert not list(tmp_path.iterdir())
