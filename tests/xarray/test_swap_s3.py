"""``mode="swap"`` of datasets in an object store: the old one or the new one, whole."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import count

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.object_stores import azure_server, s3_server
from tests.support.running import running
from tests.support.swap_ends import Stopped, die
from tests.support.xarray_roles import begin_changes, killed, steps
from zarr_dask.errors import (
    AppendConflictError,
    JobReplacedError,
    JobRunningError,
    MetadataChangedError,
    NodeNotFoundError,
    ResumeError,
    SourceIsTargetError,
    StoreError,
    ZarrDaskError,
)
from zarr_dask.hierarchy import key_swap
from zarr_dask.hierarchy.key_swap import KeySwap
from zarr_dask.journal import Journal, lock
from zarr_dask.journal.group_changes import VersionChange, change_at
from zarr_dask.stores import open_store
from zarr_dask.stores.backends.obstore_requests import ObstoreRequests
from zarr_dask.stores.process_identity import Owner

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")

NUMBERS = count()
VARIABLES = 5


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server


@pytest.fixture
def options(server):
    return {"storage_options": server.options}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that goes on when somebody waits."""
    waited = []
    monkeypatch.setattr(lock, "_now", lambda: sum(waited))
    monkeypatch.setattr(lock, "_wait", waited.append)
    return waited


@pytest.fixture
def place(options):
    url = f"s3://bucket/{next(NUMBERS)}.zarr"
    zd.write_dataset(steps(0, 6), url, **options)
    return url


def keys(place, options, below=""):
    return sorted(open_store(place, options["storage_options"]).list(below))


def beside(place, options):
    return [*open_store(f"{place}.zarr-dask", options["storage_options"]).list()]


def peer(place, options, group=None, consolidated=True):
    """The dataset as xarray reads it through zarr-python."""
    given = {**options["storage_options"], "use_listings_cache": False}
    found = xr.open_zarr(place, group=group, consolidated=consolidated, storage_options=given)
    return found.load()


def assert_only(place, options, ds, group=None, objects=None):
    """See by all readers that one dataset is there, and nothing else."""
    for consolidated in (True, False):
        xr.testing.assert_identical(peer(place, options, group, consolidated), ds.load())
        found = zd.open_dataset(place, group=group, consolidated=consolidated, **options)
        xr.testing.assert_identical(found.load(), ds.load())
    below = "" if group is None else f"{group}/"
    count = sum(one.endswith("zarr.json") for one in keys(place, options, below))
    assert count == len(ds.variables) + 1
    if objects is not None:
        assert len(keys(place, options, below)) == objects + count
    assert zd.verify(place, **options).ok
    assert beside(place, options) == []


def plus(place, options, number=1, **more):
    ds = zd.open_dataset(place, chunks={}, **options) + number
    return zd.write_dataset(ds, place, mode="swap", **options, **more)


def whole(place, options):
    """The dataset that readers of consolidated metadata see."""
    one, other = peer(place, options), zd.open_dataset(place, **options).load()
    xr.testing.assert_identical(one, other)
    return one


# --- the instant ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_a_dataset_is_computed_from_itself(place, options, backend):
    through = {"storage_options": {**options["storage_options"], "backend": backend}}
    wanted = zd.open_dataset(place, **options).load()
    for number in range(1, 4):
        wanted = wanted + 1
        report = plus(place, through)
        assert report.objects == VARIABLES + 2
        assert_only(place, options, wanted, objects=VARIABLES + 2)
        assert len({key for key in keys(place, options) if "c." in key}) == 7 * (number % 2)


def test_variables_may_be_made_of_each_other(place, options):
    ds = zd.open_dataset(place, chunks={}, **options)
    ds["t"] = ds["t"] + ds["n"]
    wanted = ds.load(scheduler="sync").copy()
    zd.write_dataset(
        zd.open_dataset(place, chunks={}, **options).assign(t=ds["t"]),
        place,
        mode="swap",
        **options,
    )
    assert_only(place, options, wanted)


def test_readers_see_the_old_dataset_until_the_new_one_is_whole(place, options, monkeypatch):
    seen = []

    def look(swap, *given):
        xr.testing.assert_identical(whole(place, options), steps(0, 6).load())
        assert len(keys(place, options)) == 2 * (VARIABLES + 2) + VARIABLES + 1 - 1
        seen.append(true(swap, *given))
        xr.testing.assert_identical(whole(place, options), steps(2, 6).load())

    true = KeySwap.show
    monkeypatch.setattr(KeySwap, "show", look)
    zd.write_dataset(steps(2, 6), place, mode="swap", **options)
    assert seen
    assert_only(place, options, steps(2, 6))


def test_fill_values_are_read_before_the_documents_of_variables_are_put(
    place, options, monkeypatch
):
    """A chunk that is not there is looked for in the group, which shows the array already."""

    def look(swap, store, texts, fence):
        xr.testing.assert_identical(whole(place, options), new.load())
        true(swap, store, texts, fence)

    new = (steps(0, 3).drop_vars("n") * np.nan).assign(more=("time", da.zeros(3, chunks=1)))
    true = KeySwap.show_below
    monkeypatch.setattr(KeySwap, "show_below", look)
    zd.write_dataset(new, place, mode="swap", **options)
    assert_only(place, options, new)


def test_a_dataset_that_was_opened_before_gives_no_values_of_another_one(place, options):
    old = zd.open_dataset(place, chunks={}, **options)
    zd.write_dataset(steps(0, 6).drop_vars("n") + 1, place, mode="swap", **options)
    for name in ("t", "n"):
        with pytest.raises((MetadataChangedError, NodeNotFoundError)):
            old[name].compute()


def test_variables_and_groups_that_are_not_in_the_new_one_go(place, options):
    zd.write_dataset(steps(0, 3), place, "below", **options)
    zd.consolidate(place, **options)
    new = steps(2, 5).drop_vars("n").assign(m=("time", da.arange(3, chunks=1)))
    new.attrs["title"] = "others"
    zd.write_dataset(new, place, mode="swap", **options)
    assert_only(place, options, new)


def test_a_group_of_a_larger_store(place, options):
    zd.write_dataset(steps(0, 4), place, "a/b", **options)
    with pytest.raises(StoreError, match=r"zarr_dask.consolidate writes those of the group 'a/b'"):
        zd.write_dataset(steps(0, 9), place, "a/b", mode="swap", **options)
    for path in ("a/b", ""):
        zd.consolidate(place, path, **options)
    zd.write_dataset(steps(0, 9), place, "a/b", mode="swap", **options)
    assert_only(place, options, steps(0, 9), "a/b")
    zd.write_dataset(steps(0, 4), f"{place}/a/b", mode="swap", **options)
    assert_only(place, options, steps(0, 4), "a/b")
    assert peer(place, options).identical(steps(0, 6).load())
    group = zd.open_group(place, **options)
    assert group["a/b/t"].shape == (4, 2, 3)
    assert not group.stale()


def test_a_tree_and_an_array(place, options):
    tree = xr.DataTree.from_dict({"/": steps(0, 3), "/c": steps(0, 3)})
    for _ in range(2):
        tree.zd.to_zarr(place, mode="swap", **options)
        found = zd.open_dataset(place, group="c", **options)["t"]
        np.testing.assert_array_equal(found, steps(0, 3)["t"])
        assert peer(place, options).identical(steps(0, 3).load())
    steps(0, 3)["t"].zd.to_zarr(place, mode="swap", **options)
    assert list(peer(place, options)) == ["t"]
    zd.to_zarr(steps(0, 3), place, mode="swap", **options)
    zd.create_dataset(steps(0, 3), place, mode="swap", **options)
    assert np.isnan(peer(place, options)["t"]).all()
    zd.write_dataset(xr.Dataset(attrs={"title": "none"}), place, mode="swap", **options)
    assert_only(place, options, xr.Dataset(attrs={"title": "none"}), objects=0)


def test_what_is_computed_later(place, options):
    ds = zd.open_dataset(place, chunks={}, **options) + 1
    wanted = ds.load(scheduler="sync").copy()
    ds = zd.open_dataset(place, chunks={}, **options) + 1
    later = zd.write_dataset(ds, place, mode="swap", compute=False, **options)
    later = cloudpickle.loads(cloudpickle.dumps(later))
    assert peer(place, options).identical(steps(0, 6).load())
    later.compute()
    assert_only(place, options, wanted)


def test_where_nothing_is_a_dataset_is_created(options):
    place = f"s3://bucket/{next(NUMBERS)}.zarr"
    zd.write_dataset(steps(0, 3), place, mode="swap", **options)
    assert_only(place, options, steps(0, 3))


def test_what_cannot_be_swapped_is_refused_before_anything_is_written(place, options, monkeypatch):
    plain, second = (f"s3://bucket/{next(NUMBERS)}.zarr" for _ in range(2))
    zd.write_dataset(steps(0, 3), plain, consolidated=False, **options)
    zd.write_dataset(steps(0, 3), second, format="v2", **options)
    zd.write_dataset(steps(0, 3), place, "x", **options)
    zd.consolidate(place, **options)
    before = [keys(one, options) for one in (place, plain, second)]
    for where, given, match in (
        (plain, {}, "has no consolidated metadata"),
        (second, {}, "of the formats v2, v3"),
        (second, {"format": "v2"}, "of the formats v2"),
        (place, {"format": "v2"}, "of the formats v2, v3"),
    ):
        with pytest.raises(StoreError, match=match):
            zd.write_dataset(steps(0, 3), where, mode="swap", **given, **options)
    with pytest.raises(ValueError, match="consolidated=False"):
        zd.write_dataset(steps(0, 3), place, mode="swap", consolidated=False, **options)
    with pytest.raises(StoreError, match="'x' is a group in one version"):
        zd.write_dataset(steps(0, 3).assign(x=3), place, mode="swap", **options)
    monkeypatch.setattr(key_swap, "has_claims", lambda *_: False)
    with pytest.raises(StoreError, match="no conditional writes"):
        zd.write_dataset(steps(0, 3), place, mode="swap", **options)
    assert [keys(one, options) for one in (place, plain, second)] == before
    assert beside(place, options) == []


def test_a_version_before_the_last_is_not_read_where_the_next_one_is_written(place, options):
    old = zd.open_dataset(place, chunks={}, **options)
    plus(place, options)
    new = zd.open_dataset(place, chunks={}, **options)
    for ds in (old, new.assign(t=old["t"] + 1), new.assign(t=new["t"] + old["n"])):
        with pytest.raises(SourceIsTargetError, match="as it was before it was replaced"):
            zd.write_dataset(ds, place, mode="swap", **options)


def test_consolidated_metadata_that_are_out_of_date_are_brought_up_to_date_first(place, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zd.to_zarr(da.ones(4, chunks=2), place, "more", **options)
        zd.open_array(place, "n", "r+", **options).attrs["new"] = 1
        zd.open_array(place, "n", "r+", **options).resize(4)
        zd.to_zarr(da.ones(6, chunks=2), place, "n", mode="swap", **options)
    zd.write_dataset(
        steps(0, 2).assign(more=("x", da.zeros(4, chunks=2) + 3)), place, mode="swap", **options
    )
    assert_only(place, options, steps(0, 2).assign(more=("x", da.zeros(4, chunks=2) + 3)))


# --- others ---------------------------------------------------------------------------------------


def test_others_are_kept_away(place, options):
    def swap(stopped):
        zd.write_dataset(steps(3, 9), place, mode="swap", progress=stopped, **options)

    with running(swap):
        for given in ({"append": "time"}, {"append": "time", "resume": True}):
            with pytest.raises(AppendConflictError):
                zd.write_dataset(steps(6, 8), place, **given, **options)
        with pytest.raises(AppendConflictError, match="written anew"):
            zd.to_zarr(da.ones(2, chunks=2, dtype="i2"), place, "n", append=0, **options)
        for path in ("n", "new"):
            with pytest.raises(JobRunningError, match="lies below a node"):
                zd.to_zarr(da.ones(2, chunks=2), place, path, mode="swap", **options)
        xr.testing.assert_identical(whole(place, options), steps(0, 6).load())
    assert_only(place, options, steps(3, 9))


def test_of_two_swaps_the_later_one_has_the_dataset(place, options, clock):
    def earlier(stopped):
        zd.write_dataset(steps(3, 9), place, mode="swap", progress=stopped, **options)

    with running(earlier) as raised:
        zd.write_dataset(steps(0, 2), place, mode="swap", **options)
    assert isinstance(raised[0], JobReplacedError)
    assert clock
    assert_only(place, options, steps(0, 2))


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ConsolidatedMetadataWarning")
@pytest.mark.parametrize("path", [None, "n"])
def test_a_swap_beside_an_append_is_refused(place, options, path):
    def append(stopped):
        if path is None:
            zd.write_dataset(steps(6, 9), place, append="time", progress=stopped, **options)
        else:
            more = da.ones(2, chunks=2, dtype="i2")
            zd.to_zarr(more, place, path, append=0, progress=stopped, **options)

    with running(append):
        before = keys(place, options)
        with pytest.raises(AppendConflictError, match="is under way"):
            zd.write_dataset(steps(0, 2), place, mode="swap", **options)
        assert keys(place, options) == before
    if path is None:
        assert_only(place, options, steps(0, 9))
    zd.write_dataset(steps(0, 2), place, mode="swap", **options)
    assert_only(place, options, steps(0, 2))


def test_an_append_that_has_ended_since_a_swap_was_planned_is_seen(place, options):
    plan = zd.plan_dataset(steps(0, 2), place, mode="swap", **options)
    zd.write_dataset(steps(6, 9), place, append="time", **options)
    with pytest.raises(MetadataChangedError, match="not what it was"):
        plan.run()
    assert_only(place, options, steps(0, 9))


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ConsolidatedMetadataWarning")
def test_attributes_that_change_meanwhile_are_those_of_the_new_version(place, options):
    def swap(stopped):
        zd.write_dataset(steps(3, 9), place, mode="swap", progress=stopped, **options)

    with running(swap):
        zd.open_array(place, "t", "r+", **options).attrs["more"] = 1
        zd.open_group(place, mode="r+", **options).attrs["more"] = 1
        zd.consolidate(place, **options)
    assert_only(place, options, steps(3, 9))


# --- failures -------------------------------------------------------------------------------------


ENDS = {
    "before the instant": (KeySwap, "show"),
    "before the documents of variables": (KeySwap, "show_below"),
    "before the old objects go": (KeySwap, "end"),
    "before the record goes": (VersionChange, "remove"),
    "before the journals go": (Journal, "remove"),
}


def swapped_until(place, options, monkeypatch, when, resume=False, dies=True):
    """Swap in a job that fails at its end; return True if the new version is shown."""
    with monkeypatch.context() as patch:
        patch.setattr(*ENDS[when], die)
        if dies:  # nothing is given up by the dead
            patch.setattr(key_swap.NodeClaim, "give_up", lambda *_, **__: None)
        with pytest.raises(Stopped):
            zd.write_dataset(steps(0, 10), place, mode="swap", resume=resume, **options)
    is_shown = when != "before the instant"
    wanted = steps(0, 10) if is_shown else steps(0, 6)
    xr.testing.assert_identical(whole(place, options), wanted.load())
    return is_shown


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("when", [*ENDS][:-1])
def test_the_next_swap_ends_what_is_left(place, options, monkeypatch, when, dies):
    swapped_until(place, options, monkeypatch, when, dies=dies)
    zd.write_dataset(steps(2, 4), place, mode="swap", **options)
    assert_only(place, options, steps(2, 4), objects=VARIABLES)


@pytest.mark.parametrize("when", ENDS)
def test_the_same_call_goes_on(place, options, monkeypatch, when):
    is_shown = swapped_until(place, options, monkeypatch, when, resume=True)
    if is_shown:
        with suppress(ResumeError):  # of the record
            zd.plan_dataset(steps(2, 4), place, mode="swap", resume=True, **options)
    assert zd.write_dataset(steps(0, 10), place, mode="swap", resume=True, **options).objects == 0
    assert_only(place, options, steps(0, 10))
    assert zd.write_dataset(steps(0, 10), place, mode="swap", resume=True, **options).objects > 0
    assert_only(place, options, steps(0, 10))


@pytest.mark.parametrize("when", [*ENDS][:-1])
@pytest.mark.parametrize("what", ["sweep", "append", "region"])
def test_others_end_what_is_left_or_are_refused(place, options, monkeypatch, when, what):
    is_shown = swapped_until(place, options, monkeypatch, when)
    is_recorded = isinstance(
        change_at(open_store(place, options["storage_options"]), ""), VersionChange
    )
    assert is_recorded
    more = steps(10, 12) if is_shown else steps(6, 8)
    if what == "region":
        piece = (steps(2, 4) + 0).drop_vars(["lat", "lon"])
        if when == "before the documents of variables":
            with pytest.raises(JobRunningError, match="is being replaced"):
                zd.write_dataset(piece, place, region="auto", **options)
        return
    if what == "append":
        with pytest.raises(AppendConflictError):
            zd.write_dataset(more, place, append="time", **options)
    with monkeypatch.context() as patch:
        patch.setattr(Owner, "is_gone", lambda _: True)
        if what == "append":
            with suppress(AppendConflictError):  # nothing is left but a claim, which is swept
                zd.write_dataset(more, place, append="time", **options)
        zd.verify(place, sweep=True, **options)
    wanted = steps(0, 10) if is_shown else steps(0, 6)
    found = whole(place, options)
    if found.sizes["time"] == wanted.sizes["time"]:
        xr.testing.assert_identical(found, wanted.load())
        zd.write_dataset(more, place, append="time", **options)
    assert_only(place, options, steps(0, 12 if is_shown else 8))


def test_what_is_left_of_a_swap_counts_for_nothing_that_takes_the_place(
    place, options, monkeypatch
):
    swapped_until(place, options, monkeypatch, "before the documents of variables")
    zd.write_dataset(steps(0, 3), place, mode="w", **options)
    assert_only(place, options, steps(0, 3))


def show_group_in_part(place, options, monkeypatch):
    """Leave a swap of a group below that died before the documents of its variables were put."""
    zd.write_dataset(steps(0, 6), place, "g", **options)
    for path in ("g", ""):
        zd.consolidate(place, path, **options)
    with monkeypatch.context() as patch:
        patch.setattr(KeySwap, "show_below", die)
        with pytest.raises(Stopped):
            zd.write_dataset(steps(0, 9), place, "g", mode="swap", **options)


def test_a_group_that_is_shown_in_part_is_not_renamed(place, options, monkeypatch):
    show_group_in_part(place, options, monkeypatch)
    with pytest.raises(JobRunningError, match="is being replaced"):
        zd.open_group(place, mode="r+", **options).rename("g", "h")
    zd.write_dataset(steps(0, 2), place, "g", mode="swap", **options)
    assert_only(place, options, steps(0, 2), "g")


@pytest.mark.parametrize("creates", [False, True])
def test_what_is_left_of_a_group_below_is_ended_first(place, options, monkeypatch, creates):
    show_group_in_part(place, options, monkeypatch)
    if creates:
        zd.create_dataset(steps(0, 3).load(), place, mode="swap", **options)
    else:
        tree = xr.DataTree.from_dict({"/": steps(0, 3), "/g": steps(0, 3)})
        tree.zd.to_zarr(place, mode="swap", **options)
        assert peer(place, options, "g").sizes["time"] == 3
    xr.testing.assert_identical(whole(place, options), steps(0, 3).load())
    assert zd.verify(place, **options).ok
    assert beside(place, options) == []


def test_objects_of_a_job_that_was_killed_are_none_of_the_next(place, options):
    killed(place, 2, 8, dies_at=1, options={"mode": "swap", **options})
    assert len(keys(place, options, "t/")) > 4
    with pytest.raises(AppendConflictError):
        zd.to_zarr(da.ones(2, chunks=2, dtype="i2"), place, "n", append=0, **options)
    xr.testing.assert_identical(whole(place, options), steps(0, 6).load())
    new = steps(0, 6) * np.nan
    zd.write_dataset(new, place, mode="swap", **options)
    assert_only(place, options, new)


def test_a_job_that_stopped_on_the_way_goes_on(place, options):
    def stop(block):
        if len(done) > 1:
            raise Stopped
        done.append(block)
        return block

    def swap(function):
        ds = steps(2, 8)
        t = ds["t"].data.map_blocks(function, dtype="f4", meta=np.empty((0, 0, 0), "f4"))
        given = {"mode": "swap", "resume": "run-7", **options}
        with dask.config.set(scheduler="sync"):
            return zd.write_dataset(ds.assign(t=(ds["t"].dims, t, ds["t"].attrs)), place, **given)

    done = []
    with pytest.raises(Stopped):
        swap(stop)
    xr.testing.assert_identical(whole(place, options), steps(0, 6).load())
    assert swap(lambda block: block).variables["t"].objects == 1
    assert_only(place, options, steps(2, 8))


class Requests:
    """The changes that a process asks a store for, of which it makes only the first ones."""

    def __init__(self, patched, last):
        self.made, self.last = 0, last
        for name in ("set", "set_if", "delete"):
            patched.setattr(ObstoreRequests, name, self.counted(getattr(ObstoreRequests, name)))

    def counted(self, change):
        def counting(*given):
            if self.made >= self.last:
                raise Stopped
            self.made += 1
            return change(*given)

        return counting


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("resume", [False, True])
def test_the_last_request_of_a_process_may_be_any(options, monkeypatch, resume):
    old = steps(0, 4).drop_vars("lat")
    new = steps(1, 3).assign(m=("time", da.arange(2, chunks=1))).drop_vars(["n", "lat"])
    for last in count():
        place = f"s3://bucket/{next(NUMBERS)}.zarr"
        zd.write_dataset(old, place, **options)
        with monkeypatch.context() as patched, dask.config.set(scheduler="sync"):
            requests = Requests(patched, last)
            with suppress(Stopped, ZarrDaskError):
                zd.write_dataset(new, place, mode="swap", resume=resume, **options)
        found = whole(place, options)
        assert found.identical(old.load()) or found.identical(new.load())
        for given in ({"resume": resume}, {}):
            zd.write_dataset(new, place, mode="swap", **given, **options)
        assert_only(place, options, new)
        if requests.made < last:
            break
    assert last > 20


def test_requests_of_a_swap(place, options, monkeypatch):
    """Listings of the group and of what lies beside, and some requests for each variable."""
    asked = []

    def counted(name):
        true = getattr(ObstoreRequests, name)

        def count_one(*given):
            asked.append((name, given[1]))
            return true(*given)

        monkeypatch.setattr(ObstoreRequests, name, count_one)

    for name in ("set", "set_if", "delete", "get_tagged"):
        counted(name)
    zd.write_dataset(steps(0, 6), place, mode="swap", **options)
    documents = [name for name, key in asked if key.endswith("zarr.json")]
    assert documents.count("set_if") <= 2 + VARIABLES
    claims = [name for name, key in asked if key.endswith("held")]
    assert claims.count("set_if") == 1 + VARIABLES


# --- elsewhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_on_azure(tmp_path, monkeypatch, backend):
    with azure_server(tmp_path) as server:
        options = {"storage_options": {**server.options, "backend": backend}}
        place = f"{server.root}/a.zarr"
        zd.write_dataset(steps(0, 6), place, **options)
        for _ in range(2):
            plus(place, options)
        xr.testing.assert_identical(whole_on_azure(place, options), (steps(0, 6) + 2).load())
        with monkeypatch.context() as patch:
            patch.setattr(KeySwap, "show_below", die)
            with pytest.raises(Stopped):
                zd.write_dataset(steps(0, 10), place, mode="swap", resume=True, **options)
        xr.testing.assert_identical(whole_on_azure(place, options), steps(0, 10).load())
        zd.write_dataset(steps(0, 10), place, mode="swap", resume=True, **options)
        zd.write_dataset(steps(10, 12), place, append="time", **options)
        for consolidated in (True, False):
            found = zd.open_dataset(place, consolidated=consolidated, **options)
            xr.testing.assert_identical(found.load(), steps(0, 12).load())
        assert zd.verify(place, **options).ok
        assert beside(place, options) == []


def whole_on_azure(place, options):
    return zd.open_dataset(place, **options).load()


def document(place, options):
    return bytes(open_store(place, options["storage_options"]).get("zarr.json"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_a_reader_beside_random_changes_sees_whole_datasets(place, options, seed):
    """Each dataset has a title of its own, so that the same metadata are the same version."""
    jobs = [
        begin_changes(place, count, 10 * seed, swaps, options)
        for count, swaps in ((15, 0.9), (40, 0.05))  # of two that swap, the earlier one ends
    ]
    seen = set()
    while any(job.is_alive() for job in jobs):
        for read in (peer, lambda *given: zd.open_dataset(*given[:1], **given[1]).load()):
            before, found, told = document(place, options), None, None
            try:
                found = read(place, options)
            except (ZarrDaskError, FileNotFoundError, ValueError) as error:
                told = error
            if document(place, options) != before:
                continue  # it was replaced while it was being read
            assert told is None
            title = found.attrs["title"]
            first, days = map(int, title.split()[2:]) if title != "days" else (0, 6)
            wanted = steps(0, 400).isel(time=found["n"].values)
            assert found.drop_attrs().identical(wanted.load().drop_attrs())
            assert found["n"].values[:days].tolist() == [*range(first, first + days)]
            seen.add(title)
    assert [job.exitcode for job in jobs] == [0, 0]
    assert len(seen) > 1
    zd.write_dataset(steps(3, 9), place, mode="swap", **options)
    assert whole(place, options).identical(steps(3, 9).load())
    assert len(keys(place, options)) == VARIABLES + 2 + VARIABLES + 1
    assert zd.verify(place, **options).ok
