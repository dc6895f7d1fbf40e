"""``mode="swap"`` of datasets: the old one or the new one, whole, at every moment."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.swap_ends import EXCHANGES, Stopped, die
from tests.support.xarray_roles import killed, steps
from zarr_dask.errors import (
    AppendConflictError,
    JobRunningError,
    NodeNotFoundError,
    NodeTypeError,
    ResumeError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.jobs.write.commit import GroupCommit, has_unfinished_commit
from zarr_dask.journal import Journal
from zarr_dask.journal import swap as swap_module
from zarr_dask.stores import LocalStore

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


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
    zd.write_dataset(steps(0, 6), root)
    return root


def beside(root: Path) -> list[str]:
    return sorted(p.name for p in root.parent.iterdir() if p != root)


def assert_only(root: Path, ds: xr.Dataset, group: str | None = None) -> None:
    for consolidated in (True, False):
        found = xr.open_zarr(root, group=group, consolidated=consolidated)
        xr.testing.assert_identical(found.load(), ds.load())
    assert beside(root) == []
    assert not list(root.rglob(".zarr-dask-*"))


COMPUTED = []


def noted(block):
    COMPUTED.append(block.shape)
    return block


def stop_after(count):
    """A function of blocks that stops at one."""

    def stop(block):
        if len(COMPUTED) >= count:
            raise Stopped
        return noted(block)

    return stop


def with_blocks(ds, function=noted):
    t = ds["t"].data.map_blocks(function, dtype="f4", meta=np.empty((0, 0, 0), "f4"))
    return ds.assign(t=(ds["t"].dims, t, ds["t"].attrs))


@pytest.fixture
def computed():
    COMPUTED.clear()
    return COMPUTED


def test_a_dataset_is_computed_from_itself(place, way):
    ds = zd.open_dataset(place, chunks={}) + 1
    wanted = ds.load(scheduler="sync")
    plan = zd.plan_dataset(zd.open_dataset(place, chunks={}) + 1, place, mode="swap")
    assert "written beside the old group" in str(plan)
    assert beside(place) == []
    plan.run()
    assert_only(place, wanted)
    with pytest.raises(SourceIsTargetError, match=r"mode='swap'"):
        zd.write_dataset(zd.open_dataset(place, chunks={}) + 1, place, mode="w")


def test_variables_may_be_made_of_each_other(place, way):
    ds = zd.open_dataset(place, chunks={})
    ds = ds.assign(n=ds["t"].sum(["lat", "lon"]), m=ds["t"] * 2, t=ds["t"] + ds["n"])
    wanted = ds.load(scheduler="sync").copy()
    ds = zd.open_dataset(place, chunks={})
    new = ds.assign(n=ds["t"].sum(["lat", "lon"]), m=ds["t"] * 2, t=ds["t"] + ds["n"])
    with pytest.raises(SourceIsTargetError):
        zd.write_dataset(new, place, mode="w")
    zd.write_dataset(new, place, mode="swap")
    assert_only(place, wanted)


def test_variables_that_are_not_in_the_new_one_go(place, way):
    zd.write_dataset(steps(2, 5).drop_vars("n"), place, mode="swap", format="v2")
    assert_only(place, steps(2, 5).drop_vars("n"))
    assert not (place / "n").exists()


def test_the_old_dataset_is_there_until_the_end(place):
    seen = []

    def look(block):
        seen.append(xr.open_zarr(place).load().identical(steps(0, 6).load()))
        return block

    zd.write_dataset(with_blocks(steps(3, 12), look), place, mode="swap")
    assert seen == [True] * 5
    assert_only(place, steps(3, 12))


def test_a_call_that_has_removed_the_old_one_tells_of_the_mode(place, computed):
    with pytest.raises(Stopped) as caught:
        zd.write_dataset(with_blocks(steps(6, 12), stop_after(2)), place, mode="w")
    assert "or pass mode='swap', to keep the old values" in caught.value.__notes__[0]


@pytest.mark.parametrize("resume", [False, "run-7"])
def test_a_failed_job_leaves_the_old_dataset(place, computed, resume):
    with pytest.raises(Stopped):
        zd.write_dataset(
            with_blocks(steps(6, 12), stop_after(2)), place, mode="swap", resume=resume
        )
    assert xr.open_zarr(place).load().identical(steps(0, 6).load())
    assert bool(beside(place)) == bool(resume)
    zd.write_dataset(steps(6, 12), place, mode="swap")
    assert_only(place, steps(6, 12))


def test_a_job_that_is_computed_later(place, way):
    later = zd.write_dataset(
        zd.open_dataset(place, chunks={}) * 2, place, mode="swap", compute=False
    )
    assert xr.open_zarr(place).load().identical(steps(0, 6).load())
    later.compute()
    assert xr.open_zarr(place)["t"].max() == 10
    later.compute()  # a worker has died after the end: it writes once more, and puts it nowhere
    assert xr.open_zarr(place)["t"].max() == 10
    assert beside(place) == []


def test_a_group_of_a_larger_store(place, way):
    zd.write_dataset(steps(0, 4), place, "a/b")
    zd.consolidate(place)
    zd.write_dataset(steps(0, 9), place, "a/b", mode="swap")
    assert_only(place, steps(0, 9), "a/b")
    assert xr.open_zarr(place).load().identical(steps(0, 6).load())


def test_a_tree_and_an_array(place, way):
    tree = xr.DataTree.from_dict({"/": steps(0, 3), "/c": steps(0, 3)})
    tree.zd.to_zarr(place, mode="swap")
    with xr.open_datatree(place, engine="zarr") as found:
        assert found.identical(tree.load())
    steps(0, 3)["t"].zd.to_zarr(place, mode="swap")
    assert list(xr.open_zarr(place)) == ["t"]
    zd.create_dataset(steps(0, 3), place, mode="swap")
    assert np.isnan(xr.open_zarr(place)["t"]).all()
    zd.write_dataset(xr.Dataset(attrs={"title": "none"}), place, mode="swap")
    assert_only(place, xr.Dataset(attrs={"title": "none"}))


def test_where_nothing_is_a_dataset_is_created(tmp_path):
    zd.write_dataset(steps(0, 3), tmp_path / "new", mode="swap")
    assert_only(tmp_path / "new", steps(0, 3))


def test_what_cannot_be_swapped(place):
    store = {}
    zd.write_dataset(steps(0, 3), store)
    with pytest.raises(StoreError, match="local files"):
        zd.write_dataset(steps(0, 3), store, mode="swap")
    with pytest.raises(NodeTypeError):
        zd.write_dataset(steps(0, 3), place, "t", mode="swap")
    for options in ({"region": "auto"}, {"append": "time"}):
        with pytest.raises(ValueError, match="mode='swap' was given"):
            zd.write_dataset(steps(0, 3), place, mode="swap", **options)
    assert_only(place, steps(0, 6))


def test_an_open_array_of_the_old_dataset_gives_no_values_of_the_new_one(place):
    old = zd.open_dataset(place, chunks={})
    zd.write_dataset(steps(0, 4).drop_vars("n"), place, mode="swap", chunks={"time": 4})
    with pytest.raises(NodeNotFoundError):
        old["n"].compute()


# --- others ---------------------------------------------------------------------------------------


def test_others_are_kept_away(place):
    tried = []

    def attempt(block):
        for options in ({"append": "time"}, {"mode": "w"}, {"mode": "swap"}):
            with pytest.raises((AppendConflictError, JobRunningError)):
                zd.write_dataset(steps(6, 8), place, **options)
            assert xr.open_zarr(place).load().identical(steps(0, 6).load())
            tried.append(options)
        return block

    zd.write_dataset(with_blocks(steps(0, 2), attempt), place, mode="swap")
    assert len(tried) == 3
    assert_only(place, steps(0, 2))


def test_an_append_that_died_is_ended_first(place):
    """Its record would make the arrays of the new dataset longer."""
    killed(place, 6, 9, shows=1, options={"append": "time"})
    assert has_unfinished_commit(LocalStore(place), "")
    with pytest.raises(ResumeError, match="died while it made"):
        zd.plan_dataset(steps(0, 6), place, mode="swap")
    zd.write_dataset(steps(0, 6), place, mode="swap")
    zd.write_dataset(steps(6, 7), place, append="time")
    assert_only(place, steps(0, 7))


# --- going on -------------------------------------------------------------------------------------


ENDS = {
    **EXCHANGES,
    "before metadata above": (GroupCommit, "consolidate", die),
    "before the journals go": (Journal, "remove", die),
}


@pytest.mark.parametrize("group", [None, "a/b"])
@pytest.mark.parametrize("when", ENDS)
def test_a_swap_that_dies_at_its_end_is_not_done_twice(
    place, way, monkeypatch, computed, when, group
):
    zd.write_dataset(steps(0, 6), place, "a/b")
    zd.consolidate(place)
    ds = with_blocks(steps(0, 10))
    with monkeypatch.context() as patch:
        patch.setattr(*ENDS[when])
        with pytest.raises(Stopped):
            zd.write_dataset(ds, place, group, mode="swap", resume=True)
    computed.clear()
    report = zd.write_dataset(ds, place, group, mode="swap", resume=True)
    assert sum(one.objects for one in report.variables.values()) == 0
    assert not computed
    assert_only(place, steps(0, 10), group)


def test_a_swap_that_died_goes_on(place, way, computed):
    def call(function, **options):
        ds = with_blocks(zd.open_dataset(place, chunks={}), function)
        return zd.write_dataset(ds, place, mode="swap", resume="run-7", **options)

    with pytest.raises(Stopped):
        call(stop_after(1))
    (folder, journals) = beside(place)
    assert (folder[:11], journals) == (".data.zarr.", "data.zarr.zarr-dask")
    report = zd.verify(place, sweep=True)
    assert report.swept == 0
    assert {"journal", "temporary"} == {one.kind for one in report.findings}
    computed.clear()
    assert call(noted).variables["t"].objects == 2
    assert len(computed) == 2
    assert_only(place, steps(0, 6))


def test_what_nobody_resumes_goes(place, computed):
    with pytest.raises(Stopped):
        zd.write_dataset(with_blocks(steps(0, 4), stop_after(1)), place, mode="swap", resume="a")
    with pytest.raises(ResumeError, match="resume="):
        zd.write_dataset(steps(0, 4), place, mode="swap", resume="b")
    with pytest.raises(ResumeError, match="mode="):
        zd.to_zarr(da.zeros((4, 2, 3), "f4"), place, "t", mode="swap", resume="a")
    zd.write_dataset(steps(0, 4), place, mode="swap")
    assert_only(place, steps(0, 4))


def test_a_folder_of_a_killed_job_is_removed_by_the_next_one(place):
    killed(place, 0, 4, dies_at=1, options={"mode": "swap"})
    assert xr.open_zarr(place).load().identical(steps(0, 6).load())
    (finding,) = zd.verify(place).findings
    assert "was killed" in finding.reason
    zd.write_dataset(steps(0, 4), place, mode="swap")
    assert_only(place, steps(0, 4))


@pytest.mark.parametrize("name", ["lon", "t"])  # the first journal that goes, and the last one
@pytest.mark.parametrize("mode", ["swap", "w"])
def test_nothing_stays_of_a_job_that_died_while_a_journal_went(place, monkeypatch, mode, name):
    removes, prefix = LocalStore.delete_prefix, f"data.zarr.zarr-dask/{name}/__job-"

    def remove(store, key):
        is_one = key.startswith(prefix) and store.size(f"{key}held") is not None
        return die() if is_one else removes(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_prefix", remove)
        with pytest.raises(Stopped):
            zd.write_dataset(steps(0, 4), place, mode=mode, resume=True)
    assert list(place.parent.rglob("held"))
    zd.write_dataset(steps(0, 4), place, mode=mode, resume=True)
    assert not list(place.parent.rglob("held"))
    assert xr.open_zarr(place).load().identical(steps(0, 4).load())


@pytest.mark.parametrize("hook", ["shown", "ends"])
def test_a_killed_job_that_has_put_the_new_dataset_in_its_place_leaves_nothing(place, hook):
    options = {"mode": "swap", "resume": True}
    at = {"shown": True} if hook == "shown" else {"ends": 1}
    killed(place, 0, 4, options=options, **at)
    report = zd.write_dataset(steps(0, 4), place, **options)
    assert all(one.already_done or not one.objects for one in report.variables.values())
    assert_only(place, steps(0, 4))
