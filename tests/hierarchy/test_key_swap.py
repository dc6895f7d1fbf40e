"""``mode="swap"`` in an object store: the old version or the new one, whole, at every moment."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from itertools import count

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.object_stores import s3_server
from tests.support.running import running
from tests.support.scripts import Script
from tests.support.swap_ends import Stopped, die
from zarr_dask.errors import (
    AppendConflictError,
    ConsolidatedMetadataWarning,
    JobReplacedError,
    MetadataChangedError,
    NodeTypeError,
    ResumeError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.formats import concurrent_edit
from zarr_dask.formats.base import ChunkKeyEncoding
from zarr_dask.hierarchy import key_swap
from zarr_dask.hierarchy.key_swap import KeySwap
from zarr_dask.journal import Journal, NodeClaim, claim_node, lock
from zarr_dask.stores import open_store
from zarr_dask.stores.backends.obstore_requests import ObstoreRequests
from zarr_dask.stores.process_identity import Owner

VALUES = np.arange(5 * 4, dtype="i4").reshape(5, 4)
CHUNKS = (3, 2)
OBJECTS = 4
NUMBERS = count()


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
    """An array in a group with consolidated metadata."""
    url = f"s3://bucket/{next(NUMBERS)}.zarr"
    zd.to_zarr(da.from_array(VALUES, chunks=CHUNKS), url, "g/a", **options)
    zd.consolidate(url, **options)
    return url


def keys(place, options, below="g/a/"):
    return sorted(open_store(place, options["storage_options"]).list(below))


def names(place, options):
    """The names that stored objects have, without numbers."""
    found = (key.removeprefix("g/a/") for key in keys(place, options))
    return {"".join(c for c in name if not c.isdigit()) for name in found} - {"zarr.json"}


def beside(place, options):
    return [*open_store(f"{place}.zarr-dask", options["storage_options"]).list()]


def assert_only(place, options, expected, objects=OBJECTS):
    """See by all readers that one version is there, and nothing else."""
    for consolidated in (True, False):
        read = zd.ReadOptions(consolidated=consolidated)
        group = zd.open_group(place, read=read, **options)
        np.testing.assert_array_equal(group["g/a"][...], expected)
    np.testing.assert_array_equal(zd.open_array(f"{place}/g/a", **options)[...], expected)
    assert len(keys(place, options)) == objects + 1
    assert zd.verify(place, **options).ok
    assert beside(place, options) == []


def plus_one(place, options, **more):
    return zd.to_zarr(
        zd.from_zarr(place, "g/a", **options) + 1, place, "g/a", mode="swap", **options, **more
    )


# --- the instant ----------------------------------------------------------------------------------


def peer_reads(place, options, folder, *, consolidated):
    """Return what zarr-python reads, from a copy in local files."""
    store = open_store(place, options["storage_options"])
    for key in store.list():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(store.get(key))
    return zarr.open_group(folder, mode="r", use_consolidated=consolidated)["g/a"][...]


def test_zarr_python_reads_each_version(place, options, tmp_path):
    for number in (1, 2):
        plus_one(place, options)
        for consolidated in (True, False):
            folder = tmp_path / f"{number}-{consolidated}"
            found = peer_reads(place, options, folder, consolidated=consolidated)
            np.testing.assert_array_equal(found, VALUES + number)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
def test_versions_alternate_between_two_layouts_of_keys(place, options, backend):
    through = {"storage_options": {**options["storage_options"], "backend": backend}}
    for number, separator in enumerate("./.", 1):
        assert plus_one(place, through).objects == OBJECTS
        assert names(place, options) == {f"c{separator}{separator}"}
        assert_only(place, options, VALUES + number)


def test_readers_see_the_old_version_until_the_new_one_is_whole(place, options, monkeypatch):
    def look(*_, **__):
        for consolidated in (True, False):
            group = zd.open_group(place, read=zd.ReadOptions(consolidated=consolidated), **options)
            np.testing.assert_array_equal(group["g/a"][...], VALUES)

    def seen(block):
        look()
        return block + 1

    def show(swap, *given):
        look()
        assert len(keys(place, options)) == 2 * OBJECTS + 1
        true(swap, *given)

    true = KeySwap.show
    monkeypatch.setattr(KeySwap, "show", show)
    opened = zd.open_array(place, "g/a", **options)
    x = zd.from_zarr(place, "g/a", **options).map_blocks(seen, dtype="i4", meta=np.empty((0, 0)))
    zd.to_zarr(x, place, "g/a", mode="swap", **options)
    assert_only(place, options, VALUES + 1)
    with pytest.raises(MetadataChangedError, match="Open it again"):
        opened[...]


def test_consolidated_metadata_are_told_before_the_old_objects_go(place, options, monkeypatch):
    """Also where the array is named from within its hierarchy."""

    def remove(*given):
        group = zd.open_group(place, **options)
        assert group["g/a"].meta.chunk_key_encoding == ChunkKeyEncoding("default", ".")
        return true(*given)

    true = KeySwap._remove_others
    monkeypatch.setattr(KeySwap, "begin", lambda *_, **__: None)
    monkeypatch.setattr(KeySwap, "_remove_others", remove)
    x = da.from_array(VALUES + 1, chunks=CHUNKS)
    zd.to_zarr(x, f"{place}/g/a", mode="swap", **options)
    assert_only(place, options, VALUES + 1)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ((), (), "0"),
        ((4,), (), "0"),
        ((), (4,), "c.0"),  # `c` may be no folder where `c/0` lies
        ((4,), (4,), "c.0"),
        ((4,), (2, 3), "c.0.0"),
        ((2, 3, 2), (2,), "c.0"),
    ],
)
def test_arrays_of_any_number_of_dimensions(options, old, new, name):
    place = f"s3://bucket/{next(NUMBERS)}.zarr"
    zd.to_zarr(da.zeros(old, dtype="i2", chunks=-1) + 1, place, "g/a", **options)
    zd.to_zarr(da.zeros(new, chunks=-1) + 2, place, "g/a", mode="swap", **options)
    assert keys(place, options) == [f"g/a/{name}", "g/a/zarr.json"]
    found = zd.open_array(place, "g/a", **options)
    assert (found.shape, found.dtype) == (new, "f8")
    assert (found[...] == 2).all()


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ConsolidatedMetadataWarning")  # of attributes
def test_a_new_version_may_be_of_another_kind(place, options):
    x = da.ones((5, 5), chunks=5)
    given = {"shards": (6, 6), "chunks": (3, 3), "attributes": {"unit": "m"}}
    zd.open_array(place, "g/a", "r+", **options).attrs["old"] = 1
    zd.consolidate(place, **options)
    zd.to_zarr(x, place, "g/a", mode="swap", **given, **options)
    assert zd.open_array(place, "g/a", **options).attrs == {"unit": "m"}
    assert_only(place, options, np.ones((5, 5)), objects=1)


def test_where_there_is_no_array_yet_one_is_made(options):
    place = f"s3://bucket/{next(NUMBERS)}.zarr"
    zd.to_zarr(da.ones(4, chunks=2), place, "g/a", mode="swap", **options)
    assert keys(place, options) == ["g/a/c/0", "g/a/c/1", "g/a/zarr.json"]


def test_named_keys_are_taken_if_they_are_free(place, options):
    given = {"name": "v2", "separator": "/"}
    plus_one(place, options, chunk_key_encoding=given)
    assert names(place, options) == {"/"}
    assert_only(place, options, VALUES + 1)
    before = keys(place, options)
    with pytest.raises(StoreError, match="'0/0': leave chunk_key_encoding out"):
        plus_one(place, options, chunk_key_encoding=given)
    assert (keys(place, options), beside(place, options)) == (before, [])
    plus_one(place, options)
    assert names(place, options) == {"c//"}


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ConsolidatedMetadataWarning")  # of a new one
def test_several_arrays_and_one_that_is_computed_later(place, options):
    zd.to_zarr(da.ones(4, chunks=2), place, "g/b", **options)
    zd.consolidate(place, **options)
    x = zd.from_zarr(place, "g/a", **options) + 1
    y = da.zeros(4, chunks=2) + 3
    zd.to_zarr([x, y], place, ["g/a", "g/b"], mode="swap", **options)
    assert (zd.open_array(place, "g/b", **options)[...] == 3).all()
    assert_only(place, options, VALUES + 1)
    later = cloudpickle.loads(cloudpickle.dumps(plus_one(place, options, compute=False)))
    np.testing.assert_array_equal(zd.open_array(place, "g/a", **options)[...], VALUES + 1)
    later.compute()
    assert_only(place, options, VALUES + 2)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ZarrDaskWarning")  # of mixed formats
def test_what_cannot_be_swapped_is_refused_before_anything_is_written(place, options):
    x = da.ones((5, 4), chunks=3)
    zd.create_array(place, "v2", shape=(5, 4), dtype="f8", format="v2", **options)
    zd.create_array(place, "both", shape=(5, 4), dtype="f8", **options)
    zd.create_array(place, "one", shape=(5, 4), dtype="f8", format="v2", **options)
    store = open_store(place, options["storage_options"])
    store.set("both/.zarray", [store.get("one/.zarray")])
    before = keys(place, options, "")
    for path, format in [("v2", "v2"), ("v2", "v3"), ("g/a", "v2"), ("both", "v3")]:
        with pytest.raises(StoreError, match=r"of the formats v2"):
            zd.to_zarr(x, place, path, mode="swap", format=format, **options)
    with pytest.raises(NodeTypeError):
        zd.to_zarr(x, place, "g", mode="swap", **options)
    assert (keys(place, options, ""), beside(place, options)) == (before, [])


def test_a_place_without_claims_is_refused(server, options, monkeypatch):
    server.admin.create_bucket(Bucket="root")
    for url in ("s3://root", f"s3://bucket/{next(NUMBERS)}"):
        zd.create_array(url, shape=(4,), dtype="f8", **options)
        if url != "s3://root":
            monkeypatch.setattr(key_swap, "has_claims", lambda *_: False)
        before = keys(url, options, "")
        with pytest.raises(StoreError, match="no place beside it"):
            zd.to_zarr(da.ones(4), url, mode="swap", **options)
        assert keys(url, options, "") == before


def test_who_may_put_nothing_beside_the_hierarchy_is_refused(place, options, monkeypatch):
    from zarr_dask.jobs.write import start

    monkeypatch.setattr(start, "claim_node", lambda *_, **__: (None, False))
    before = keys(place, options)
    with pytest.raises(StoreError, match="nothing may be put beside"):
        plus_one(place, options)
    assert keys(place, options) == before


def test_a_version_before_the_last_is_not_read_where_the_next_one_is_written(place, options):
    """Its keys are those of the next one: blocks would be read that were written just now."""
    x = zd.from_zarr(place, "g/a", **options)
    plus_one(place, options)
    with pytest.raises(SourceIsTargetError, match="as it was before it was replaced"):
        zd.to_zarr(da.concatenate([x, x]), place, "g/a", mode="swap", **options)
    assert_only(place, options, VALUES + 1)


def test_the_note_about_what_was_removed_names_the_mode(place, options):
    x = da.from_array(VALUES, chunks=CHUNKS).map_blocks(die, dtype="i4", meta=np.empty((0, 0)))
    with pytest.raises(Stopped) as caught, pytest.warns(ConsolidatedMetadataWarning):
        zd.to_zarr(x, place, "g/a", mode="w", **options)
    assert "or pass mode='swap', to keep the old values" in caught.value.__notes__[0]


# --- failures -------------------------------------------------------------------------------------


def fail_after(number):
    """A function of blocks that fails at one of them."""
    done = count()

    def fail(block):
        if next(done) >= number:
            raise Stopped
        return block + 1

    return fail


def failing(place, options, number=2, resume=False):
    x = zd.from_zarr(place, "g/a", **options)
    x = x.map_blocks(fail_after(number), dtype="i4", meta=np.empty((0, 0), "i4"))
    with dask.config.set(scheduler="sync"):
        return zd.to_zarr(x, place, "g/a", mode="swap", resume=resume, **options)


def test_appends_wait_for_a_sweep_after_a_killed_job(place, options, monkeypatch):
    more = da.ones((1, 4), dtype="i4")
    with monkeypatch.context() as patched:
        patched.setattr(NodeClaim, "give_up", lambda *_, **__: None)
        with pytest.raises(Stopped):
            failing(place, options)
    with pytest.raises(AppendConflictError, match="written anew"):
        zd.to_zarr(more, place, "g/a", append=0, **options)
    with monkeypatch.context() as patched:
        patched.setattr(Owner, "is_gone", lambda _: True)
        assert zd.verify(place, sweep=True, **options).swept == 2
    with pytest.warns(ConsolidatedMetadataWarning):
        zd.to_zarr(more, place, "g/a", append=0, **options)
    assert zd.open_array(place, "g/a", **options).shape == (6, 4)


def test_a_job_that_fails_leaves_the_old_version(place, options):
    with pytest.raises(Stopped):
        failing(place, options)
    assert len(keys(place, options)) == OBJECTS + 1 + 2
    np.testing.assert_array_equal(zd.open_array(place, "g/a", **options)[...], VALUES)
    report = zd.verify(place, **options)
    assert [one.kind for one in report.findings] == ["orphan"] * 2
    assert "sweep=True" in report.findings[0].reason
    assert zd.verify(place, sweep=True, **options).swept == 2
    assert_only(place, options, VALUES)


def test_consolidated_metadata_of_a_job_that_was_killed_are_told_by_the_next(
    place, options, monkeypatch
):
    """They name the keys under which the next job writes."""
    with monkeypatch.context() as patched:
        patched.setattr(KeySwap, "end", die)
        with pytest.raises(Stopped):
            plus_one(place, options)
    with pytest.raises(Stopped):
        failing(place, options)
    np.testing.assert_array_equal(zd.open_group(place, **options)["g/a"][...], VALUES + 1)


def test_objects_of_a_job_that_failed_are_none_of_the_next(place, options):
    with pytest.raises(Stopped):
        failing(place, options)
    zd.to_zarr(da.zeros((5, 4), chunks=CHUNKS), place, "g/a", mode="swap", **options)
    assert_only(place, options, np.zeros((5, 4)), objects=0)  # all are fill values


@pytest.mark.parametrize("end", ["before the instant", "after it", "before the journal goes"])
def test_a_job_that_died_goes_on(place, options, monkeypatch, end):
    x = da.from_array(VALUES + 1, chunks=CHUNKS)

    def swap():
        return zd.to_zarr(x, place, "g/a", mode="swap", resume=True, **options)

    where = {
        "before the instant": (KeySwap, "show"),
        "after it": (KeySwap, "end"),
        "before the journal goes": (Journal, "remove"),
    }[end]
    with monkeypatch.context() as patched:
        patched.setattr(*where, die)
        with pytest.raises(Stopped):
            swap()
    is_shown = end != "before the instant"
    found = zd.open_array(place, "g/a", **options)[...]
    np.testing.assert_array_equal(found, VALUES + is_shown)
    left = keys(place, options)
    assert len(left) - 1 == (OBJECTS if end == "before the journal goes" else 2 * OBJECTS)
    assert zd.verify(place, sweep=True, **options).swept == 0
    assert keys(place, options) == left
    if is_shown:
        with pytest.raises(ResumeError, match="has put its array"):
            zd.to_zarr(x * 2, place, "g/a", mode="swap", resume=True, **options)
    assert swap().objects == 0
    assert_only(place, options, VALUES + 1)
    assert swap().objects == OBJECTS  # another job
    assert_only(place, options, VALUES + 1)


def test_a_job_that_stopped_on_the_way_goes_on(place, options):
    with pytest.raises(Stopped):
        failing(place, options, resume="run-7")
    assert failing(place, options, number=99, resume="run-7").objects == OBJECTS - 2
    assert_only(place, options, VALUES + 1)


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ConsolidatedMetadataWarning")  # of attributes
@pytest.mark.parametrize("kind", ["attributes", "length"])
def test_an_array_that_changes_meanwhile(place, options, monkeypatch, kind):
    """Attributes are those of the new version; what else others have made stays."""

    def show(swap, *given):
        if kind == "attributes":
            zd.open_array(place, "g/a", "r+", **options).attrs["more"] = 1
        else:
            store = open_store(place, options["storage_options"])
            document = json.loads(bytes(store.get("g/a/zarr.json")))
            store.set("g/a/zarr.json", [json.dumps({**document, "shape": [4, 4]}).encode()])
        true(swap, *given)

    true = KeySwap.show
    monkeypatch.setattr(KeySwap, "show", show)
    if kind == "attributes":
        plus_one(place, options)
        assert_only(place, options, VALUES + 1)
        return
    with pytest.raises(MetadataChangedError, match="by more than its attributes"):
        plus_one(place, options)
    np.testing.assert_array_equal(zd.open_array(place, "g/a", **options)[...], VALUES[:4])


def test_an_acknowledgement_that_is_lost_is_no_failure(place, options, monkeypatch):
    def put(*given):
        true(*given)
        monkeypatch.undo()
        return False  # as if another one had been faster

    true = concurrent_edit._put
    monkeypatch.setattr(concurrent_edit, "_put", put)
    plus_one(place, options)
    assert_only(place, options, VALUES + 1)


# --- claims ---------------------------------------------------------------------------------------


def test_a_later_job_has_the_array(place, options, clock):
    def earlier(stopped):
        x = da.full((5, 4), 5, chunks=CHUNKS)
        zd.to_zarr(x, place, "g/a", mode="swap", progress=stopped, **options)

    with running(earlier) as raised:
        with pytest.raises(AppendConflictError):
            zd.to_zarr(da.ones((1, 4), dtype="i4"), place, "g/a", append=0, **options)
        plus_one(place, options)
    assert isinstance(raised[0], JobReplacedError)
    assert clock
    assert_only(place, options, VALUES + 1)


def test_a_job_that_has_lost_the_array_shows_nothing(place, options, monkeypatch):
    """The later one takes the array when the earlier one is about to put its metadata."""

    def put(*given):
        monkeypatch.setattr(concurrent_edit, "_put", true)
        plus_one(place, options)
        return true(*given)

    true = concurrent_edit._put
    monkeypatch.setattr(concurrent_edit, "_put", put)
    with pytest.raises(JobReplacedError):
        zd.to_zarr(da.full((5, 4), 5, chunks=CHUNKS), place, "g/a", mode="swap", **options)
    assert_only(place, options, VALUES + 1)


def test_metadata_that_were_sent_before_the_array_was_lost_are_not_put(place, options, monkeypatch):
    """They arrive when the later job has begun, which has put some of its objects."""

    def begin(swap, claim, **given):
        true_begin(swap, claim, **given)
        if claim.was_others:
            late.append(true_put(*sent[0]))

    def put(*given):
        sent.append(given)
        with suppress(Stopped):
            failing(place, options)  # the later one, which begins
        return True

    sent, late = [], []
    true_begin, true_put = KeySwap.begin, concurrent_edit._put
    monkeypatch.setattr(KeySwap, "begin", begin)
    with monkeypatch.context() as patched:
        patched.setattr(concurrent_edit, "_put", put)
        with pytest.raises((JobReplacedError, MetadataChangedError)):
            zd.to_zarr(da.full((5, 4), 5, chunks=CHUNKS), place, "g/a", mode="swap", **options)
    assert late == [False]
    np.testing.assert_array_equal(zd.open_array(place, "g/a", **options)[...], VALUES)


def test_a_version_that_was_shown_since_a_swap_was_planned_is_seen(place, options):
    plan = zd.plan_write(da.zeros((5, 4), chunks=2), place, "g/a", mode="swap", **options)
    plus_one(place, options)
    with pytest.raises(MetadataChangedError):
        plan.run()
    assert_only(place, options, VALUES + 1)


def test_an_older_answer_of_the_service_is_not_believed(place, options, monkeypatch):
    """What that names is the version that has gone: its keys are those of the next one."""

    def get_tagged(store, key, *given):
        return older.pop() if key.endswith("zarr.json") and older else true(store, key, *given)

    true = ObstoreRequests.get_tagged
    store = open_store(place, options["storage_options"])
    older = [store.get_tagged("g/a/zarr.json")] * 2
    plan = zd.plan_write(da.zeros((5, 4), chunks=2), place, "g/a", mode="swap", **options)
    plus_one(place, options)
    monkeypatch.setattr(ObstoreRequests, "get_tagged", get_tagged)
    with pytest.raises(MetadataChangedError):
        plan.run()
    assert not older
    assert_only(place, options, VALUES + 1)


def test_the_objects_of_a_job_at_work_are_swept_by_nobody(place, options):
    def job(stopped):
        plus_one(place, options, progress=stopped)

    with running(job):
        for sweep in (False, True):
            report = zd.verify(place, sweep=sweep, **options)
            assert "orphan" in {one.kind for one in report.findings}
            assert report.swept == 0
    assert_only(place, options, VALUES + 1)


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ZarrDaskWarning")  # of mixed formats
def test_objects_of_an_array_of_another_format_are_swept_by_nobody(place, options):
    store = open_store(place, options["storage_options"])
    zd.create_array(place, "one", shape=(2, 2), dtype="f8", format="v2", **options)
    store.set("g/a/.zarray", [store.get("one/.zarray")])
    store.set("g/a/0.0", [b"1"])
    zd.verify(place, "g/a", sweep=True, **options)
    assert store.get("g/a/0.0") is not None


def test_a_claim_keeps_a_sweep_away(place, options):
    with pytest.raises(Stopped):
        failing(place, options)
    store = open_store(place, options["storage_options"])
    for path in ("g/a", "g"):  # of the array, and of a group that is being replaced
        claim, _ = claim_node(store, path, "another")
        assert zd.verify(place, sweep=True, **options).swept == 0
        claim.release()
    assert zd.verify(place, sweep=True, **options).swept == 2


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
@pytest.mark.timeout(900)
@pytest.mark.parametrize("resume", [False, True])
def test_the_last_request_of_a_process_may_be_any(options, monkeypatch, resume):
    x = da.from_array(VALUES + 1, chunks=CHUNKS)

    def swap(place):
        zd.to_zarr(x, place, "g/a", mode="swap", resume=resume, **options)

    for last in count():
        place = f"s3://bucket/{next(NUMBERS)}.zarr"
        zd.to_zarr(da.from_array(VALUES, chunks=CHUNKS), place, "g/a", **options)
        zd.consolidate(place, **options)
        with monkeypatch.context() as patched, dask.config.set(scheduler="sync"):
            requests = Requests(patched, last)
            with suppress(Stopped):
                swap(place)
        for consolidated in (True, False):
            read = zd.ReadOptions(consolidated=consolidated)
            found = zd.open_group(place, read=read, **options)["g/a"][...] - VALUES
            assert set(np.unique(found)) in ({0}, {1})
        swap(place)
        assert_only(place, options, VALUES + 1)
        if requests.made < last:
            break
    assert last > 2 * OBJECTS


# --- kills ----------------------------------------------------------------------------------------

JOB = """
import json, sys
import dask, zarr_dask as zd
from zarr_dask.journal import lock

options = {"storage_options": json.loads(sys.argv[2])}
dask.config.set(scheduler="sync")
print("ready", flush=True)
sys.stdin.readline()
lock._wait = lambda seconds: None  # nothing of a process that was killed is on its way
while True:
    x = zd.from_zarr(sys.argv[1], "g/a", **options) + 1
    zd.to_zarr(x, sys.argv[1], "g/a", mode="swap", **options)
"""


def kill_swaps(place, options, rounds):
    """Kill jobs at random moments; a reader polls, and sees one version or the next."""
    seed, last, begun = random.Random(5), 1, time.monotonic()
    plus_one(place, options)
    took = time.monotonic() - begun
    for _ in range(rounds):
        with Script(JOB, place, json.dumps(options["storage_options"])) as job:
            assert job.stdout.readline() == "ready\n"
            job.stdin.write("go\n")
            job.stdin.flush()
            ends = time.monotonic() + seed.uniform(0, 2 * took)  # the moment is what is tried
            while time.monotonic() < ends:
                last = look(place, options, last)
            job.kill()
            job.wait()
        last = look(place, options, last)
        versions = len(keys(place, options)) - 1
        assert OBJECTS <= versions <= 2 * OBJECTS, "each job removes what the last one has left"
    zd.verify(place, sweep=True, **options)
    plus_one(place, options)
    assert_only(place, options, VALUES + last + 1)


def look(place, options, last):
    """Return the number of the version that is read, which is whole, and none before the last."""
    for consolidated in (True, False):
        read = zd.ReadOptions(consolidated=consolidated)
        with suppress(MetadataChangedError):  # it was replaced while it was being read
            found = zd.open_group(place, read=read, **options)["g/a"][...] - VALUES
            assert (found == found[0, 0]).all(), "one version or the next, never a mixture"
            assert found[0, 0] >= last - consolidated, "consolidated metadata are told afterwards"
            last = max(last, int(found[0, 0]))
    return last


def test_a_killed_job_leaves_one_version_or_the_other(place, options):
    kill_swaps(place, options, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_killed_jobs_leave_one_version_or_the_other(place, options):
    kill_swaps(place, options, 100)
