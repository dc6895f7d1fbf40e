"""``mode="swap"``: the old array or the new one, whole, at every moment."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.scripts import Script, run_script
from tests.support.swap_ends import EXCHANGES, Stopped, die
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    MixedFormatsWarning,
    NodeTypeError,
    ResumeError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.journal import Journal
from zarr_dask.journal import swap as swap_module
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.process_identity import Owner, number_of_process

VALUES = np.arange(240, dtype="int32").reshape(12, 20)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(params=["exchange", "two renames"])
def way(request, monkeypatch):
    if request.param == "two renames":
        monkeypatch.setattr(swap_module, "_exchanged", lambda new, old: False)
    return request.param


@pytest.fixture
def place(tmp_path):
    root = tmp_path / "data.zarr"
    zd.create_array(root, "a", shape=VALUES.shape, dtype="i4", chunks=(4, 5))[...] = VALUES
    zd.create_array(root, "b", shape=(3,), dtype="i4")[...] = 7
    return root


def beside(root: Path) -> list[str]:
    return sorted(p.name for p in root.parent.iterdir() if p != root)


def assert_only(root: Path, values) -> None:
    np.testing.assert_array_equal(zd.open_array(root, "a")[...], values)
    assert beside(root) == []
    assert not list(root.rglob(".zarr-dask-*"))
    assert (zd.open_array(root, "b")[...] == 7).all()


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_an_array_is_computed_from_itself(place, way, scheduler):
    with dask.config.set(scheduler=scheduler):
        x = zd.from_zarr(place, "a")
        plan = zd.plan_write(x * 2 - x.mean(axis=0).astype("i4"), place, "a", mode="swap")
        assert "place" in str(plan)
        assert beside(place) == []
        plan.run()
    assert_only(place, VALUES * 2 - VALUES.mean(axis=0).astype("i4"))


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.MixedFormatsWarning")
def test_another_grid_another_format(place, way):
    x = zd.from_zarr(place, "a") + 1
    zd.to_zarr(x, place, "a", mode="swap", chunks=(3, 20), format="v2")
    assert zd.open_array(place, "a").format == "v2"
    assert not (place / "a" / "zarr.json").exists()
    assert_only(place, VALUES + 1)


def test_the_root(tmp_path, way):
    zd.create_array(tmp_path / "x", shape=VALUES.shape, dtype="i4", chunks=(4, 5))[...] = VALUES
    (tmp_path / "link").symlink_to(tmp_path / "x")
    zd.to_zarr(zd.from_zarr(tmp_path / "link") + 1, tmp_path / "link", mode="swap")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "x")[...], VALUES + 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "x"]
    assert (tmp_path / "link").is_symlink()


def test_consolidated_metadata_that_are_out_of_date_by_it_are_told_of(tmp_path, recwarn):
    x = da.arange(8, chunks=4)
    zd.to_zarr([x, x], tmp_path, ["a", "b"])
    zd.consolidate(tmp_path)
    zd.to_zarr(zd.from_zarr(tmp_path, "a") * 2, tmp_path, "a", mode="swap")
    assert not recwarn.list
    assert zd.open(tmp_path)["a"][...].tolist() == list(range(0, 16, 2))
    with pytest.warns(ConsolidatedMetadataWarning, match="zarr_dask.consolidate"):
        zd.to_zarr(x[:4], tmp_path, "a", mode="swap")


def test_an_array_that_its_group_will_not_show_is_told_of(tmp_path, recwarn):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    group.create_array("x", data=VALUES)
    zd.to_zarr(da.zeros(3, chunks=3), tmp_path / "a.zarr", "x", mode="swap", format="v2")
    assert list(zarr.open_group(tmp_path / "a.zarr").array_keys()) == ["x"]
    assert not [w for w in recwarn if w.category is MixedFormatsWarning]
    with pytest.warns(MixedFormatsWarning, match=r"Pass format='v2'"):
        zd.to_zarr(da.zeros(3, chunks=3), tmp_path / "a.zarr", "x", mode="swap", format="v3")


def test_where_nothing_is_an_array_is_created(tmp_path):
    zd.to_zarr(da.ones((4, 4)), tmp_path / "new", "a", mode="swap")
    assert (zd.open_array(tmp_path / "new", "a")[...] == 1).all()


def test_the_old_array_is_there_until_the_end(place):
    seen = []

    def look(block):
        seen.append(zd.open_array(place, "a")[...])
        return block + 1

    x = zd.from_zarr(place, "a").map_blocks(look, dtype="i4", meta=np.empty((0, 0), "i4"))
    zd.to_zarr(x, place, "a", mode="swap")
    assert len(seen) == 12
    assert all((values == VALUES).all() for values in seen)
    assert_only(place, VALUES + 1)


def test_a_failed_job_leaves_the_old_array(place):
    def fail(block, block_id):
        if block_id == (2, 3):
            raise RuntimeError("no such luck")
        return block

    x = zd.from_zarr(place, "a").map_blocks(fail, dtype="i4", meta=np.empty((0, 0), "i4"))
    with pytest.raises(RuntimeError, match="luck"):
        zd.to_zarr(x, place, "a", mode="swap")
    assert_only(place, VALUES)


def test_a_job_that_cannot_look_for_its_mark_fails(place, monkeypatch):
    """It took the new array for the old one, removed it, and was acknowledged."""
    end = swap_module.AtomicReplace.end

    def fail(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def end_without_files(swap):
        with monkeypatch.context() as patched:
            patched.setattr(swap_module, "open_in", fail)
            end(swap)

    with monkeypatch.context() as patched:
        patched.setattr(swap_module.AtomicReplace, "end", end_without_files)
        with pytest.raises(StoreError, match=r"could not take the place of .* Too many open files"):
            zd.to_zarr(zd.from_zarr(place, "a") + 1, place, "a", mode="swap")
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES)
    zd.to_zarr(zd.from_zarr(place, "a") + 1, place, "a", mode="swap")
    assert_only(place, VALUES + 1)


def test_the_last_task_may_run_again(place, way):
    """A worker dies after the exchange, and everything it has returned is lost."""
    later = zd.to_zarr(zd.from_zarr(place, "a") + 1, place, "a", mode="swap", compute=False)
    later.compute()
    assert_only(place, VALUES + 1)
    later.compute()  # writes the new one plus one, and does not put it anywhere
    assert_only(place, VALUES + 1)


def test_what_cannot_be_swapped(place, tmp_path):
    x = da.ones((4, 4))
    with pytest.raises(NodeTypeError):
        zd.to_zarr(x, place, mode="swap")
    store = MemoryStore()
    zd.create_array(store, shape=(4, 4), dtype="f8")
    with pytest.raises(StoreError, match="local files"):
        zd.to_zarr(x, store, mode="swap")
    zd.create_array(tmp_path / "draft", "a", shape=(4, 4), dtype="f8", format="v3draft")
    with pytest.raises(StoreError, match="one folder"):
        zd.to_zarr(x, tmp_path / "draft", "a", mode="swap", format="v3draft")
    for options in ({"region": np.s_[0:4]}, {"append": 0}):
        with pytest.raises(ValueError, match="swap"):
            zd.to_zarr(x, place, "a", mode="swap", **options)
    with pytest.raises(ValueError, match="swap"):
        zd.to_zarr(x, zd.open_array(place, "a", mode="r+"), mode="swap")
    y = zd.from_zarr(place, "a") + 1
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr([y, y], place, ["a", "c"], mode="swap")
    shown = {p.name for p in tmp_path.iterdir()}
    assert shown == {"data.zarr", "draft"}
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES)


def test_a_group_that_goes_while_a_swap_is_planned_is_no_other_file_system(place, monkeypatch):
    zd.create_array(place, "g/x", shape=(4,), dtype="i4", chunks=2)
    true = swap_module.check_no_link

    def look(store, path):
        true(store, path)
        zd.delete(place, "g")

    monkeypatch.setattr(swap_module, "check_no_link", look)
    with pytest.raises(StoreError, match="could not take the place"):
        zd.to_zarr(da.ones(4, chunks=2, dtype="i4"), place, "g/x", mode="swap")
    zd.verify(place, sweep=True)
    assert beside(place) == []


def test_a_mark_tells_old_from_new_after_each_step(place):
    """The steps of the end, stopped after each of them, and gone through again."""
    for steps in range(4):
        old = zd.open_array(place, "a")[...]
        plan = zd.plan_write(da.from_array(old + 1), place, "a", mode="swap")
        assert plan.swap is not None
        plan.swap.begin(held=False)
        zd.to_zarr(da.from_array(old + 1), plan.swap.store, mode="w")
        Path(plan.swap.beside, f".zarr-dask-{plan.swap.token}.tmp").touch()
        if steps > 0:
            swap_module._exchange(plan.swap.beside, plan.swap.place)
        if steps > 1:
            plan.swap.remove()
        if steps > 2:
            Path(plan.swap.place, f".zarr-dask-{plan.swap.token}.tmp").unlink()
        plan.swap.end()
        plan.swap.forget()
        assert_only(place, old + 1)


NUMBER = """
from zarr_dask.stores.process_identity import number_of_process
print(number_of_process())
"""


@pytest.mark.parametrize("mark", [None, b""], ids=["no mark", "an empty mark"])
def test_a_folder_of_a_job_that_died_before_it_wrote_its_mark_is_removed(place, mark):
    gone, living = int(run_script(NUMBER)[1]), number_of_process()
    folders = []
    for number in (gone, living):
        token = f"{number:016x}"
        folders.append(place.parent / f".{place.name}.zarr-dask-{token}.swap.new{number:010x}")
        folders[-1].mkdir()
        if mark is not None:
            Path(folders[-1], f".zarr-dask-{token}.tmp").write_bytes(mark)
    zd.to_zarr(zd.from_zarr(place, "a") + 1, place, "a", mode="swap")
    assert [folder.exists() for folder in folders] == [False, True]


JOB = """
import sys
import dask, zarr_dask as zd

dask.config.set(scheduler="sync")
print("ready", flush=True)
sys.stdin.readline()
while True:
    zd.to_zarr(zd.from_zarr(sys.argv[1], "a") + 1, sys.argv[1], "a", mode="swap")
"""


def kill_swaps(place: Path, rounds: int) -> None:
    seed = random.Random(5)
    for _ in range(rounds):
        with Script(JOB, place) as job:
            assert job.stdout.readline() == "ready\n"
            job.stdin.write("go\n")
            job.stdin.flush()
            time.sleep(seed.uniform(0.02, 0.3))  # the moment of the kill is what is tried
            job.kill()
        values = zd.open_array(place, "a")[...] - VALUES
        assert (values == values[0, 0]).all()  # one array or the other, never a mixture
        left = [name for name in beside(place) if name != f"{place.name}.zarr-dask"]
        assert len(left) <= 1, "each job removes what the one before it has left"
        found = claims(place)
        locks = [name for name in found if name.endswith(".tmp")]  # killed while it held the lock
        assert len(locks) <= 1, "the lock of the claim's folder goes with the claim"
        assert len(found) - len(locks) <= 1, "and takes its claim over"
    zd.verify(place, sweep=True)
    assert claims(place) == []


def claims(place: Path) -> list[str]:
    """Claims that lie beside a hierarchy, and whatever else but a text that says what it is."""
    folder = Path(f"{place}.zarr-dask")
    found = (str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in found if not name.startswith("README"))


def test_a_killed_job_leaves_one_array_or_the_other(place):
    kill_swaps(place, 4)


HELD = """
import sys, time
import dask, zarr_dask as zd

def wait(block):
    print("writing", flush=True)
    sys.stdin.readline()
    return block

dask.config.set(scheduler="sync")
x = zd.from_zarr(sys.argv[1], "a").map_blocks(wait, dtype="i4", meta=zd.open(sys.argv[1])["a"][:0])
zd.to_zarr(x, sys.argv[1], "a", mode="swap")
"""


@pytest.mark.parametrize("sweeper", ["verify", "the next job"])
def test_what_a_killed_job_leaves_is_removed_but_not_what_a_living_one_writes(place, sweeper):
    def sweep():
        if sweeper == "verify":
            return zd.verify(place, sweep=True)
        zd.to_zarr(zd.from_zarr(place, "b"), place, "b", mode="swap")
        return None

    with Script(HELD, place) as job:
        assert job.stdout.readline() == "writing\n"
        (folder,) = [name for name in beside(place) if name.endswith(".swap")]
        left = beside(place)
        sweep()
        assert beside(place) == left
        assert zd.verify(place).ok
        job.kill()
    (finding,) = zd.verify(place).findings
    assert finding.kind == "temporary"
    assert "was killed" in finding.reason
    report = sweep()
    assert folder not in beside(place)
    if report is not None:
        assert report.swept == 1
        assert beside(place) == []  # nor a claim
    zd.open_array(place, "a", mode="r+").resize(VALUES.shape)  # takes over a claim to it
    assert_only(place, VALUES)


def test_what_another_host_may_be_writing_is_left_alone(place, monkeypatch):
    plan = zd.plan_write(zd.from_zarr(place, "a") + 1, place, "a", mode="swap")
    with monkeypatch.context() as patch:
        other = Owner("elsewhere", "", "", 1, "", "0123", locked=True)
        patch.setattr(Owner, "here", staticmethod(lambda *, locked: other))
        plan.swap.begin(held=True).close()
    later = zd.to_zarr(zd.from_zarr(place, "b"), place, "b", mode="swap", compute=False)
    assert len(beside(place)) == 2
    (finding, _) = zd.verify(place, sweep=True).findings
    assert "nobody here knows" in finding.reason
    later.compute()
    assert len(beside(place)) == 1
    plan.swap.remove()
    assert_only(place, VALUES)


def test_several_swaps_that_fail_leave_nothing(place):
    def fail(block):
        raise RuntimeError("no such luck")

    x = zd.from_zarr(place, "a").map_blocks(fail, dtype="i4", meta=np.empty((0, 0), "i4"))
    with pytest.raises(RuntimeError, match="luck"):
        zd.to_zarr([x, zd.from_zarr(place, "b")], place, ["a", "b"], mode="swap")
    assert_only(place, VALUES)


@pytest.mark.slow
def test_a_killed_job_leaves_one_array_or_the_other_100_times(place):
    kill_swaps(place, 100)


# --- going on -------------------------------------------------------------------------------------


COMPUTED = []


def noted(block):
    COMPUTED.append(block.shape)
    return block + 1


def stop_after(count):
    """A function of blocks that stops at one."""

    def stop(block):
        if len(COMPUTED) >= count:
            raise Stopped
        return noted(block)

    return stop


def swapping(place, function=noted, x=None, **options):
    x = zd.from_zarr(place, "a") if x is None else x
    x = x.map_blocks(function, dtype="i4", meta=np.empty((0, 0), "i4"))
    return zd.to_zarr(x, place, "a", mode="swap", **options)


@pytest.fixture
def computed():
    COMPUTED.clear()
    return COMPUTED


def test_a_swap_that_died_goes_on(place, way, computed):
    with pytest.raises(Stopped):
        swapping(place, stop_after(7), resume="run-7")
    (folder, journal) = beside(place)
    assert (folder[:11], journal) == (".data.zarr.", "data.zarr.zarr-dask")
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES)
    computed.clear()
    report = swapping(place, resume="run-7", manifest=place.parent / "m")
    assert (report.objects, len(computed)) == (5, 5)
    manifest = zd.Manifest.read(place.parent / "m")
    (place.parent / "m").unlink()
    assert_only(place, VALUES + 1)
    assert {"a/zarr.json", "a/c/0/0"} < {one.key for one in manifest.objects}
    assert zd.verify(place, deep="receipts", manifest=manifest).ok


@pytest.mark.parametrize("compute", [True, False])
def test_what_can_be_resumed_is_swept_by_nobody(place, computed, compute):
    later = swapping(place, stop_after(7), resume="run-7", compute=False)
    with pytest.raises(Stopped):
        later.compute() if not compute else swapping(place, stop_after(7), resume="run-7")
    zd.to_zarr(zd.from_zarr(place, "b"), place, "b", mode="swap")
    report = zd.verify(place, sweep=True)
    assert report.swept == 0
    assert sorted(one.kind for one in report.findings) == ["journal", "temporary"]
    assert any("resume=" in one.reason for one in report.findings)
    computed.clear()
    assert swapping(place, resume="run-7").objects == 12 - 7
    assert_only(place, VALUES + 1)


@pytest.mark.parametrize("after", ["a new job", "the node was removed", "another mode"])
def test_what_nobody_resumes_goes(place, computed, after):
    with pytest.raises(Stopped):
        swapping(place, stop_after(7), resume="run-7")
    if after == "a new job":
        swapping(place)
        assert_only(place, VALUES + 1)
    elif after == "another mode":
        x = da.zeros((2, 2))
        with pytest.raises(ResumeError, match=r"resume=True|mode="):
            zd.to_zarr(x, place, "a", mode="w", resume=True)
        with pytest.raises(ResumeError, match="mode="):
            zd.to_zarr(da.ones_like(VALUES), place, "a", mode="r+", resume="run-7")
        zd.to_zarr(da.from_array(VALUES), place, "a", mode="w")
        assert zd.verify(place, sweep=True).swept == 1
        assert_only(place, VALUES)
    else:
        zd.delete(place, "a")
        zd.create_array(place, "a", shape=(3,), dtype="i4")[...] = 7
        zd.to_zarr(zd.from_zarr(place, "b"), place, "b", mode="swap")
        assert_only(place, np.full(3, 7))


ENDS = {
    **EXCHANGES,
    "before the journal goes": (Journal, "remove", die),
}


def swap_and_die(monkeypatch, when, place, **options):
    with monkeypatch.context() as patch:
        patch.setattr(*ENDS[when])
        with pytest.raises(Stopped):
            swapping(place, resume=True, **options)


@pytest.mark.parametrize("when", ENDS)
def test_a_swap_that_dies_at_its_end_is_not_done_twice(place, way, monkeypatch, computed, when):
    x = da.from_array(VALUES, chunks=(4, 5))  # after one rename nothing is there to be read
    swap_and_die(monkeypatch, when, place, x=x)
    computed.clear()
    assert swapping(place, x=x, resume=True).objects == 0
    assert not computed
    assert_only(place, VALUES + 1)
    swapping(place, resume=True)  # another job
    assert_only(place, VALUES + 2)


def test_after_the_exchange_another_graph_is_no_reason_to_begin_again(place, monkeypatch, computed):
    """It reads the array itself, which has other chunks by now."""
    swap_and_die(monkeypatch, "before the journal goes", place, chunks=(3, 20))
    computed.clear()
    with pytest.raises(ResumeError, match="the new one by now"):
        swapping(place, resume=True, chunks=(3, 20))
    assert not computed
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES + 1)
    swapping(place, chunks=(3, 20))
    assert_only(place, VALUES + 2)


def test_several_swaps_end_together(place, monkeypatch, computed):
    def both(**options):
        sources = [zd.from_zarr(place, name) for name in "ab"]
        values = [
            x.map_blocks(noted, dtype="i4", meta=np.empty((0,) * x.ndim, "i4")) for x in sources
        ]
        return zd.to_zarr(values, place, ["a", "b"], mode="swap", **options)

    done = []

    def end(swap, original=swap_module.AtomicReplace.end):
        if done:
            raise Stopped
        done.append(swap)
        original(swap)

    with monkeypatch.context() as patch:
        patch.setattr(swap_module.AtomicReplace, "end", end)
        with pytest.raises(Stopped):
            both(resume=True)
    computed.clear()
    assert [report.objects for report in both(resume=True)] == [0, 0]
    assert not computed
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES + 1)
    assert (zd.open_array(place, "b")[...] == 8).all()
    assert beside(place) == []


RESUMED = """
import os, signal, sys
import dask, numpy as np, zarr_dask as zd

place, log, last = sys.argv[1], sys.argv[2], int(sys.argv[3])

def noted(block):
    with open(log, "a") as file:
        file.write("block\\n")
    if len(open(log).readlines()) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return block + 1

dask.config.set(scheduler="sync")
x = zd.from_zarr(place, "a").map_blocks(noted, dtype="i4", meta=np.empty((0, 0), "i4"))
zd.to_zarr(x, place, "a", mode="swap", resume="run-7")
"""


def test_a_killed_swap_goes_on(place, tmp_path):
    log = tmp_path / "log"

    def run(last):
        return run_script(RESUMED, place, log, last)[0]

    assert run(8) == -signal.SIGKILL
    np.testing.assert_array_equal(zd.open_array(place, "a")[...], VALUES)
    assert run(0) == 0
    assert len(log.read_text().splitlines()) == 8 + 12 - 7
    log.unlink()
    assert_only(place, VALUES + 1)


@pytest.mark.parametrize("value", [0, 7, "", "text"])
def test_an_array_without_dimensions_is_swapped(tmp_path, value):
    """As a truth value, an array is read: here the old object, with the codecs of the new one."""
    zd.create_array(tmp_path / "a", data=np.array(value), codecs="zstd")
    zd.to_zarr(zd.from_zarr(tmp_path / "a"), tmp_path / "a", mode="swap", codecs="gzip")
    assert zd.open_array(tmp_path / "a")[...] == value
