"""Claims to the locations of new nodes: which of two jobs has one, and what the other one does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
import zarr_dask.ome
from tests.support.object_stores import S3Server, s3_server
from tests.support.running import running
from zarr_dask.errors import (
    AppendConflictError,
    JobReplacedError,
    JobRunningError,
    MetadataChangedError,
    NodeExistsError,
    NodeNotFoundError,
    ResumeError,
    ZarrDaskError,
)
from zarr_dask.hierarchy import create_node, edit
from zarr_dask.jobs.engine.job import BoundJob
from zarr_dask.jobs.write import target
from zarr_dask.journal import NodeClaim, claim_node, leases, lock
from zarr_dask.journal.claims import ClaimRecord, EndedAppend
from zarr_dask.journal.leases import now_in_utc
from zarr_dask.ome.image_lifecycle import PyramidJob
from zarr_dask.stores import open_store
from zarr_dask.stores.backends import obstore_requests
from zarr_dask.stores.backends.obstore_requests import ObstoreRequests
from zarr_dask.stores.process_identity import Owner

HELD = "__append/held"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Clock:
    """A clock that goes on when somebody waits."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def now(self) -> float:
        return sum(self.waited)

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lock, "_now", clock.now)
    monkeypatch.setattr(lock, "_wait", clock.wait)
    return clock


def claimed(server: S3Server, name: str, token: str) -> tuple[NodeClaim, bool]:
    store = open_store(f"s3://bucket/{name}", storage_options=server.options)
    claim, was_others = claim_node(store, "a", token)
    assert claim is not None
    return claim, was_others


def beside(server: S3Server, name: str) -> list[str]:
    return sorted(open_store(f"s3://bucket/{name}.zarr-dask", server.options).list())


def test_a_claim_is_created_once_and_removed(server: S3Server, clock: Clock) -> None:
    claim, was_others = claimed(server, "once.zarr", "one")
    assert not was_others
    assert beside(server, "once.zarr") == [f"a/{HELD}"]
    assert claimed(server, "once.zarr", "one") == (claim, False)  # a part of the same job
    claim.release()
    assert beside(server, "once.zarr") == []
    assert clock.waited == []


def test_a_later_job_waits_until_the_earlier_one_looks_again(
    server: S3Server, clock: Clock
) -> None:
    earlier, _ = claimed(server, "later.zarr", "one")
    earlier.fence()
    later, was_others = claimed(server, "later.zarr", "two")
    assert was_others
    assert clock.now() > lock.INTERVAL
    with pytest.raises(JobReplacedError, match=HELD):
        earlier.fence()
    with pytest.raises(JobReplacedError):
        earlier.release()
    earlier.give_up(leaves_journal=False)  # is not its own to remove
    later.fence()
    later.release()


def test_a_third_job_is_told_of_while_the_second_waits(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed(server, "third.zarr", "one")

    def wait(_: float) -> None:
        monkeypatch.setattr(lock, "_wait", lambda _: None)
        claimed(server, "third.zarr", "three")

    monkeypatch.setattr(lock, "_wait", wait)
    with pytest.raises(JobReplacedError):
        claimed(server, "third.zarr", "two")


@pytest.mark.parametrize("leaves_journal", [False, True])
def test_a_job_that_failed_in_good_order_is_not_waited_for(
    leaves_journal: bool, server: S3Server, clock: Clock
) -> None:
    name = f"failed-{leaves_journal}.zarr"
    claimed(server, name, "one")[0].give_up(leaves_journal=leaves_journal)
    assert bool(beside(server, name)) == leaves_journal
    again, was_others = claimed(server, name, "one")
    assert not was_others  # it goes on
    again.give_up(leaves_journal=leaves_journal)
    claim, was_others = claimed(server, name, "two")
    assert was_others == leaves_journal
    assert clock.waited == []
    claim.release()


def test_what_a_stranger_has_put_there_is_replaced(server: S3Server) -> None:
    store = open_store("s3://bucket/stranger.zarr.zarr-dask", server.options)
    for text in (b"", b"[", b"[]", b'{"format": "zarr-dask claim 1"}', b"\xff" * 70):
        store.set(f"a/{HELD}", [text])
        claim, was_others = claimed(server, "stranger.zarr", "one")
        assert was_others
        claim.release()


def test_an_append_is_kept_away_while_an_array_is_replaced(server: S3Server) -> None:
    url, options = "s3://bucket/append.zarr", {"storage_options": server.options}
    zd.to_zarr(da.ones((4, 4), chunks=(2, 4)), url, "a", **options)
    claim, _ = claimed(server, "append.zarr", "one")
    with pytest.raises(AppendConflictError, match="written anew"):
        zd.to_zarr(da.ones((2, 4)), url, "a", append=0, **options)
    claim.release()


# --- jobs -----------------------------------------------------------------------------------------

N = 6


def values(number: int) -> da.Array:
    return da.full((N, 4), float(number), chunks=(1, 4))


def write(url: str, number: int, options, progress=None, resume=False) -> None:
    name = f"run-{number}" if resume else False
    zd.to_zarr(
        values(number), url, mode="w", storage_options=options, progress=progress, resume=name
    )


def write_planned(url: str, number: int, options, progress=None, resume=False) -> None:
    name = f"run-{number}" if resume else False
    plan = zd.plan_write(values(number), url, mode="w", storage_options=options, resume=name)
    plan.run(progress=progress)


def write_dataset(url: str, number: int, options, progress=None, resume=False) -> None:
    name = f"run-{number}" if resume else False
    zd.write_dataset(
        xr.Dataset({"a": (("y", "x"), values(number))}), url, mode="w", storage_options=options,
        progress=progress, resume=name,
    )  # fmt: skip


def source(number: int) -> zd.Array:
    array = zd.create_array({}, shape=(N, 4), dtype="f8", chunks=(1, 4))
    array[...] = number
    return array


def rechunk(url: str, number: int, options, progress=None, resume=False) -> None:
    to = {"overwrite": True, "target_options": options}
    plan = zd.plan_rechunk(source(number), url, chunks=(1, 2), **to)
    plan.run(progress=progress, resume=resume)


def copy(url: str, number: int, options, progress=None, resume=False) -> None:
    plan = zd.plan_copy(source(number), url, overwrite=True, target_options=options)
    plan.run(progress=progress, resume=resume)


def write_image(url: str, number: int, options, progress=None, resume=False) -> None:
    given = {"axes": "yx", "chunks": (1, 4), "levels": 1, "overwrite": True}
    plan = zd.ome.plan_write(values(number), url, storage_options=options, **given)
    plan.run(progress=progress, resume=f"run-{number}" if resume else False)


JOBS = {
    "image": write_image,
    "write": write,
    "write_planned": write_planned,
    "write_dataset": write_dataset,
    "rechunk": rechunk,
    "copy": copy,
}


def stored(url: str, options) -> set[float]:
    node = zd.open(url, storage_options=options)
    array = node if isinstance(node, zd.Array) else node[next(iter(node))]
    return set(np.unique(array[...]).tolist())


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("kind", JOBS)
def test_of_two_jobs_at_once_the_later_one_has_the_array(
    kind: str, resume: bool, server: S3Server, clock: Clock
) -> None:
    """The earlier one has put some objects, and relies on what it has seen a moment ago."""
    url = f"s3://bucket/two-{kind}-{resume}.zarr"
    job = JOBS[kind]
    with running(lambda stopped: job(url, 1, server.options, stopped, resume)) as raised:
        job(url, 2, server.options)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    assert stored(url, server.options) == {2.0}
    assert clock.waited
    assert not [key for key in beside(server, url[12:]) if key.endswith("held")]


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_ends_between_the_plan_and_the_start_of_another_is_seen(
    kind: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one had found the place empty: it may not write between the objects there."""
    url, job, take = f"s3://bucket/between-{kind}.zarr", JOBS[kind], NodeClaim.take

    def take_late(claim: NodeClaim) -> bool:
        monkeypatch.setattr(NodeClaim, "take", take)
        job(url, 1, server.options)
        return take(claim)

    monkeypatch.setattr(NodeClaim, "take", take_late)
    job(url, 2, server.options)
    assert stored(url, server.options) == {2.0}


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_objects_that_the_later_job_leaves_out_are_not_of_the_earlier_one(
    mode: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one ended when the later one had planned, whose values are fill values."""
    url, take = f"s3://bucket/empty-{mode}.zarr", NodeClaim.take
    options = {"storage_options": server.options}

    def take_late(claim: NodeClaim) -> bool:
        monkeypatch.setattr(NodeClaim, "take", take)
        zd.to_zarr(values(1), url, **options)
        return take(claim)

    monkeypatch.setattr(NodeClaim, "take", take_late)
    if mode == "w":
        zd.to_zarr(values(0), url, mode="w", **options)
        assert stored(url, server.options) == {0.0}
    else:
        with pytest.raises(NodeExistsError):
            zd.to_zarr(values(0), url, mode="w-", **options)
        assert stored(url, server.options) == {1.0}


def test_a_job_that_loses_its_claim_when_its_document_is_there_does_not_succeed(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://bucket/end.zarr", {"storage_options": server.options}
    put = target.put_new_node

    def put_late(*args: Any, **keywords: Any) -> None:
        put(*args, **keywords)
        _, was_others = claim_node(open_store(url, server.options), "", "later")
        assert was_others

    monkeypatch.setattr(target, "put_new_node", put_late)
    with pytest.raises(JobReplacedError):
        zd.to_zarr(values(1), url, mode="w", **options)
    assert beside(server, "end.zarr") == [HELD]  # of the later one


def test_a_collection_that_is_computed_later_has_its_place(server: S3Server) -> None:
    """Two are made before the first is computed: it is the earlier job then."""
    url, options = "s3://bucket/collection.zarr", {"storage_options": server.options}
    given = {"mode": "w", "compute": False, **options}
    with dask.config.set(scheduler="sync"):
        first, second = (zd.to_zarr(values(number), url, **given) for number in (1, 2))
        with pytest.raises(JobReplacedError):
            first.compute()
        second.compute()
    assert stored(url, server.options) == {2.0}
    assert beside(server, "collection.zarr") == []


def test_threads_that_replace_one_array_do_not_mix_values(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real clock
    monkeypatch.setattr(lock, "INTERVAL", 0.2)
    monkeypatch.setattr(lock, "_LATE", 0.3)
    url = "s3://bucket/threads.zarr"
    told: dict[int, ZarrDaskError | None] = {}

    def run(number: int) -> None:
        try:
            write(url, number, server.options)
            told[number] = None
        except ZarrDaskError as error:
            told[number] = error

    for _ in range(4):
        threads = [Thread(target=run, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        ended = {float(number) for number, error in told.items() if error is None}
        assert len(told) == 3
        assert ended
        found = stored(url, server.options)
        assert len(found) == 1
        assert found <= ended
        told.clear()
    assert beside(server, "threads.zarr") == []


def test_an_array_that_is_made_where_a_job_is_at_work_gets_none_of_its_values(
    server: S3Server, clock: Clock
) -> None:
    url, options = "s3://bucket/made.zarr", {"storage_options": server.options}
    with running(lambda stopped: write(url, 1, server.options, stopped)) as raised:
        zd.create_array(url, shape=(N, 4), dtype="f8", chunks=(1, 4), **options)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    assert stored(url, server.options) == {0.0}
    assert clock.waited
    assert beside(server, "made.zarr") == []


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("key", "same_size"), [("c/2/0", False), ("c/2/0", True), ("c/9/0", False)]
)
def test_what_lands_later_than_it_may_is_found_before_the_array_is_visible(
    key: str,
    same_size: bool,
    resume: bool,
    server: S3Server,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A put of the earlier job, over an object of the later one, and one that it leaves out."""
    url, options = f"s3://bucket/landed-{key[2]}-{resume}-{same_size}.zarr", server.options
    store = open_store(url, options)
    claim_node(store, "", "earlier")
    name = "run" if resume else False
    x = da.concatenate([values(2), da.zeros((6, 4), chunks=(1, 4))])
    given = {"storage_options": options, "resume": name, "mode": "w"}
    with monkeypatch.context() as patch:
        finish = target.ArrayTarget.finish

        def finish_late(self: Any, result: Any) -> Any:
            of_earlier = bytes(store.size(key) or 0) if same_size else b"of another size"
            store.set(key, [of_earlier])
            return finish(self, result)

        patch.setattr(target.ArrayTarget, "finish", finish_late)
        with pytest.raises(JobRunningError, match="landed"):
            zd.to_zarr(x, url, **given)
    assert store.get("zarr.json") is None
    if not resume:
        claim_node(store, "", "earlier")
    zd.to_zarr(x, url, **given)
    np.testing.assert_array_equal(zd.open_array(url, storage_options=options)[...], x)


@pytest.mark.parametrize("kind", ["rechunk", "copy", "image"])
def test_what_lands_on_objects_with_receipts_is_found_and_written_anew(
    kind: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size, after the receipts, before the job ends; the same call mends it."""
    source, url = f"{tmp_path}/from.zarr", f"s3://bucket/into-{kind}.zarr"
    options = {"storage_options": server.options}
    x = da.random.default_rng(7).random((8, 8), chunks=(4, 4)).persist()
    zd.to_zarr(x, source)
    held = zd.open_array(source)
    made = url if kind != "image" else f"{url}/0"
    store = open_store(url, server.options)

    def run() -> None:
        if kind == "rechunk":
            zd.rechunk(held, url, chunks=(8, 2), resume=True, **options)
        elif kind == "copy":
            zd.copy(held, url, resume=True, **options)
        else:
            zd.ome.write(x, url, axes="yx", chunks=(4, 4), resume=True, **options)

    with monkeypatch.context() as patch:
        where = PyramidJob if kind == "image" else BoundJob
        finish = where.finish

        def finish_late(job: Any, *report: Any) -> None:
            keys = [key for key in store.list() if "c/" in key]
            store.set(keys[-1], [bytes(store.size(keys[-1]))])
            finish(job, *report)

        patch.setattr(where, "finish", finish_late)
        with pytest.raises(ResumeError, match="not complete"):
            run()
    run()
    np.testing.assert_array_equal(zd.open_array(made, **options)[...], x)


def create_array(url: str, options) -> None:
    zd.create_array(url, shape=(N, 4), dtype="f8", chunks=(1, 4), storage_options=options)


def replace_array(url: str, options) -> None:
    given = {"shape": (N, 4), "dtype": "f8", "chunks": (1, 4), "overwrite": True}
    zd.create_array(url, storage_options=options, **given)


def open_array(url: str, options) -> None:
    given = {"mode": "w", "shape": (N, 4), "dtype": "f8", "chunks": (1, 4)}
    zd.open_array(url, storage_options=options, **given)


def save(url: str, options) -> None:
    zd.save(url, np.zeros((N, 4)), overwrite=True, storage_options=options)


@pytest.mark.parametrize("make", [create_array, replace_array, open_array, save])
@pytest.mark.parametrize("was_there", [False, True])
def test_an_array_that_is_made_where_a_job_has_put_nothing_yet_gets_none_of_its_values(
    make, was_there: bool, server: S3Server, clock: Clock
) -> None:
    """The job has removed what was there: that there is no object tells nothing."""
    url, options = f"s3://bucket/early-{make.__name__}-{was_there}.zarr", server.options
    if was_there:
        create_array(url, options)
    with dask.config.set(scheduler="sync"):
        job = zd.to_zarr(values(1), url, mode="w", compute=False, storage_options=options)
        make(url, options)
        assert clock.waited
        with pytest.raises(JobReplacedError):
            job.compute()
    assert stored(url, options) == {0.0}
    assert beside(server, url[12:]) == []


def test_a_job_is_stopped_by_an_output_of_a_simulation_that_has_its_array(
    server: S3Server, clock: Clock
) -> None:
    url, options = "s3://bucket/output.zarr", server.options
    zd.create_group(url, storage_options=options)
    with dask.config.set(scheduler="sync"):
        job = zd.to_zarr(values(1), url, "a", mode="w", compute=False, storage_options=options)
        arrays = {"a": {"shape": (4,), "dtype": "f8"}}
        owners = zd.decompose((4,), (1,))
        zd.Writer.create(url, arrays, owners=owners, storage_options=options)
        assert clock.waited
        with pytest.raises(JobReplacedError):
            job.compute()
    assert zd.open_array(url, "a", storage_options=options).shape == (0, 4)
    assert "a/__append/held" not in beside(server, url[12:])


@pytest.mark.parametrize("progressed", [False, True])
def test_a_job_is_stopped_by_a_template_that_has_its_array(
    progressed: bool, server: S3Server, clock: Clock
) -> None:
    url, options = f"s3://bucket/template-{progressed}.zarr", server.options
    zd.create_group(url, storage_options=options)
    template = xr.Dataset({"a": (("y", "x"), da.zeros((N, 4), chunks=(1, 4)))})
    with dask.config.set(scheduler="sync"):
        job = zd.to_zarr(values(1), url, "a", mode="w", compute=False, storage_options=options)
        if progressed:  # one of its objects
            open_store(url, options).set("a/c/0/0", [b"of the job"])
        zd.create_dataset(template, url, mode="a", storage_options=options)
        assert clock.waited
        with pytest.raises(JobReplacedError):
            job.compute()
    found = zd.open_array(url, "a", storage_options=options)
    assert np.isnan(found[...]).all()  # the fill value of a template
    assert "a/__append/held" not in beside(server, url[12:])


def test_an_array_that_may_not_be_made_stops_no_job(server: S3Server, clock: Clock) -> None:
    url, options = "s3://bucket/refused.zarr", server.options
    create_array(url, options)
    claim, _ = claim_node(open_store(url, server.options), "", "of a job that is about to begin")
    assert claim is not None
    with pytest.raises(NodeExistsError):
        create_array(url, options)
    claim.check()
    assert not clock.waited
    claim.release()


def test_a_create_that_was_stopped_puts_no_document_where_a_later_job_is_at_work(
    server: S3Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://bucket/stopped.zarr", server.options
    put = edit.put_new_node

    def put_late(*args: Any, **keywords: Any) -> None:
        monkeypatch.setattr(edit, "put_new_node", put)
        claim_node(open_store(url, server.options), "", "later")
        put(*args, **keywords)

    monkeypatch.setattr(edit, "put_new_node", put_late)
    with pytest.raises(JobReplacedError):
        create_array(url, options)
    assert not list(open_store(url, options).list())


def test_values_of_a_create_are_not_put_among_those_of_a_later_job(
    server: S3Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://bucket/filling.zarr", server.options
    fill = create_node._fill

    def fill_late(*args: Any) -> None:
        write(url, 2, server.options)
        fill(*args)

    monkeypatch.setattr(create_node, "_fill", fill_late)
    with pytest.raises(JobReplacedError):
        zd.create_array(url, data=np.ones((N, 4)), chunks=(1, 4), storage_options=options)
    assert stored(url, options) == {2.0}


# --- claims of dead jobs --------------------------------------------------------------------------

DEAD = replace(Owner.here(locked=False), began="1")
ELSEWHERE = replace(DEAD, host="elsewhere")
LONG_AGO = "2001-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("record", "becomes"),
    [
        (ClaimRecord(("t",), owner=DEAD, makes=True), "removed"),
        (ClaimRecord(("t",), owner=ELSEWHERE, makes=True, given_up=True), "removed"),
        (ClaimRecord(("t",), owner=DEAD, begun=LONG_AGO), "removed"),
        (ClaimRecord(("t",), owner=DEAD, alone=True), "removed"),
        (ClaimRecord(("t",), alone=True), "kept"),
        (ClaimRecord(("t",), owner=DEAD), "named"),
        (ClaimRecord(("t",), owner=ELSEWHERE, makes=True), "named"),
        (ClaimRecord(("t",), makes=True), "kept"),
        (ClaimRecord(("t",), ended=EndedAppend((3,), LONG_AGO, {}, DEAD), owner=DEAD), "kept"),
    ],
)
def test_claims_of_dead_jobs_are_swept(
    record: ClaimRecord, becomes: str, server: S3Server, clock: Clock
) -> None:
    url, options = "s3://bucket/swept.zarr", server.options
    zd.create_array(url, "a", shape=4, dtype="i4", overwrite=True, storage_options=options)
    store = open_store(f"{url}.zarr-dask", options)
    store.set(f"a/{HELD}", [record.to_json()])
    assert zd.verify(url, storage_options=options).ok
    for path in ("a", ""):
        store.set(f"a/{HELD}", [record.to_json()])
        report = zd.verify(url, path, storage_options=options, sweep=True)
        assert [str(DEAD) in one or record.given_up for one in report.claims] == [True] * (
            becomes == "removed"
        )
        assert [one.key for one in report.findings] == [f"{store.url}/a/{HELD}"] * (
            becomes == "named"
        )
        assert (store.get(f"a/{HELD}") is None) == (becomes == "removed")
        assert all(one in str(report) for one in report.claims)
    assert sum(clock.waited) >= 6 or becomes != "removed"


@pytest.mark.parametrize("owner", [DEAD, ELSEWHERE, Owner.here(locked=False)])
@pytest.mark.parametrize(("alone", "job"), [(True, ""), (False, ""), (True, "can be resumed")])
def test_an_append_takes_over_what_a_process_has_left_that_ran_all_of_another_one(
    owner: Owner, alone: bool, job: str, server: S3Server, clock: Clock
) -> None:
    url, options = "s3://bucket/dead.zarr", server.options
    array = zd.create_array(url, "a", shape=2, dtype="i4", chunks=2, storage_options=options)
    record = ClaimRecord(("t",), job, owner=owner, alone=alone)
    open_store(f"{url}.zarr-dask", options).set(f"a/{HELD}", [record.to_json()])
    if alone and owner is DEAD and not job:
        array.append(np.ones(3, "i4"))
        assert array[...].tolist() == [0, 0, 1, 1, 1]
        assert sum(clock.waited) >= 3  # what it had sent may land until then
    else:
        with pytest.raises(AppendConflictError, match="under way"):
            array.append(np.ones(3, "i4"))
    zd.delete(url, storage_options=options)


RENEWED = ClaimRecord(("t",), "can be resumed", renewed=now_in_utc())


@pytest.mark.parametrize("append", ["Array.append", "to_zarr"])
@pytest.mark.parametrize(("owner", "how"), [(DEAD, "error"), (DEAD, "wait"), (ELSEWHERE, "wait")])
def test_an_append_takes_over_what_a_killed_one_has_left_that_can_be_resumed(
    append: str, owner: Owner, how: str, server: S3Server, clock: Clock, monkeypatch: Any
) -> None:
    """As on local files; one of another host is known to be dead if it renews nothing."""
    monkeypatch.setattr(leases, "_EXPIRES", 1.0)
    owner = replace(owner, pid=owner.pid + len(append + how))  # which no test has seen to be dead
    url, options = "s3://bucket/renewed.zarr", server.options
    array = zd.create_array(url, "a", shape=2, dtype="i4", chunks=2, storage_options=options)
    store = open_store(f"{url}.zarr-dask", options)
    store.set(f"a/{HELD}", [replace(RENEWED, owner=owner).to_json()])
    if owner.host == ELSEWHERE.host:
        with pytest.raises(AppendConflictError, match=r"repeat its call with the same resume="):
            array.append(np.ones(3, "i4"))
    if append == "to_zarr":
        more = {"append": 0, "on_conflict": how, "storage_options": options}
        zd.to_zarr(da.ones(3, chunks=2, dtype="i4"), url, "a", **more)
        array = zd.open_array(url, "a", storage_options=options)
    else:
        array.append(np.ones(3, "i4"), on_conflict=how)
    assert array[...].tolist() == [0, 0, 1, 1, 1]
    assert sum(clock.waited) >= 3  # what it had sent may land until then
    zd.delete(url, storage_options=options)


def test_a_job_that_makes_an_array_keeps_appends_away_though_it_has_been_killed(
    server: S3Server,
) -> None:
    url, options = "s3://bucket/making.zarr", server.options
    array = zd.create_array(url, "a", shape=2, dtype="i4", chunks=2, storage_options=options)
    store = open_store(f"{url}.zarr-dask", options)
    store.set(f"a/{HELD}", [replace(RENEWED, owner=DEAD, makes=True).to_json()])
    with pytest.raises(AppendConflictError, match="is being written anew"):
        array.append(np.ones(3, "i4"))
    zd.delete(url, storage_options=options)


@pytest.mark.parametrize("ended", [False, True])
def test_an_append_that_was_taken_for_dead_puts_nothing_more(
    ended: bool, server: S3Server, clock: Clock
) -> None:
    """Another one has taken its place, and may have ended since, which leaves no claim."""
    url, options = "s3://bucket/late.zarr", server.options
    zd.create_array(url, "a", shape=2, dtype="i4", chunks=2, storage_options=options)
    store = open_store(f"{url}.zarr-dask", options)

    def values(block: np.ndarray) -> np.ndarray:
        other = zd.open_array(url, "a", mode="r+", storage_options=options)
        if len(other) > 2:
            return block
        found = ClaimRecord.parsed(store.get(f"a/{HELD}"))
        store.set(f"a/{HELD}", [replace(found, owner=DEAD).to_json()])
        other.append(np.full(8, 9, "i4"))
        if not ended:
            store.set(f"a/{HELD}", [replace(RENEWED, job="of another one").to_json()])
        clock.wait(2)
        return block

    late = da.ones(4, chunks=2, dtype="i4").map_blocks(values, dtype="i4", meta=np.empty(0, "i4"))
    wanted = MetadataChangedError if ended else JobReplacedError
    with dask.config.set(scheduler="sync"), pytest.raises(wanted):
        zd.to_zarr(late, url, "a", append=0, resume="late", storage_options=options)
    array = zd.open_array(url, "a", storage_options=options)
    assert array[...].tolist() == [0, 0, *[9] * 8]
    zd.delete(url, storage_options=options)


@pytest.mark.parametrize("record", [ClaimRecord(("t",), owner=DEAD, makes=True), None])
def test_a_removal_that_was_killed_at_its_end_is_ended_by_the_same_call(
    record: ClaimRecord | None, server: S3Server
) -> None:
    """Its claim is all that is left, and keeps others away from nodes below; a living one stays."""
    url, options = "s3://bucket/removed.zarr", server.options
    zd.create_group(url, overwrite=True, storage_options=options)
    store = open_store(f"{url}.zarr-dask", options)
    living = ClaimRecord(("t",), makes=True)
    store.set(f"g/{HELD}", [(record or living).to_json()])
    with pytest.raises(NodeNotFoundError):
        zd.delete(url, "g", storage_options=options)
    assert (store.get(f"g/{HELD}") is None) == (record is not None)
    store.delete(f"g/{HELD}")
    zd.create_array(url, "g/a", shape=4, dtype="i4", storage_options=options)
    zd.open_group(url, storage_options=options, mode="r+").delete("g")


def test_claims_beside_a_journal_and_those_of_later_jobs_are_not_swept(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://bucket/resumable.zarr", server.options
    store = open_store(f"{url}.zarr-dask", options)
    zd.create_array(url, "a", shape=4, dtype="i4", overwrite=True, storage_options=options)
    record = ClaimRecord(("t",), owner=DEAD, makes=True)
    store.set(f"a/{HELD}", [record.to_json()])
    store.set("a/__job-1/job.json", [b"{}"])
    assert zd.verify(url, storage_options=options, sweep=True).claims == ()
    store.delete("a/__job-1/job.json")

    def take_over(_: float) -> None:
        claimed(server, "resumable.zarr", "later")

    monkeypatch.setattr(lock, "_wait", take_over)
    zd.verify(url, storage_options=options, sweep=True)
    found = ClaimRecord.parsed(store.get(f"a/{HELD}"))
    assert found is not None
    assert found.tokens == ("later",)
    store.delete(f"a/{HELD}")


# --- above and below ------------------------------------------------------------------------------


def replace_group(url: str, options) -> None:
    zd.create_group(url, "g", overwrite=True, storage_options=options)


def delete_group(url: str, options) -> None:
    zd.delete(url, "g", storage_options=options)


def rename_group(url: str, options) -> None:
    zd.open_group(url, mode="r+", storage_options=options).rename("g", "h")


def write_group(url: str, options) -> None:
    ds = xr.Dataset({"b": ("x", np.arange(3))})
    zd.write_dataset(ds, f"{url}/g", mode="w", storage_options=options)


@pytest.mark.parametrize("change", [replace_group, delete_group, rename_group, write_group])
def test_a_job_below_what_is_removed_does_not_succeed(
    change, server: S3Server, clock: Clock
) -> None:
    """Some of its objects are gone."""
    url, options = f"s3://bucket/below-{change.__name__}.zarr", server.options
    zd.create_group(url, "g", storage_options=options)

    def write_below(stopped: Any) -> None:
        zd.to_zarr(values(1), f"{url}/g/a", storage_options=options, progress=stopped)

    with running(write_below) as raised:
        change(url, options)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    assert clock.waited
    assert "a" not in zd.open_group(url, storage_options=options).get("g", {})
    assert not [key for key in beside(server, url[12:]) if key.endswith("held")]


@pytest.mark.parametrize("change", [delete_group, rename_group])
def test_what_was_stopped_while_it_removes_or_copies_leaves_a_later_job_alone(
    change, server: S3Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = f"s3://bucket/late-{change.__name__}.zarr", server.options
    zd.create_group(url, "g", storage_options=options)
    create_array(f"{url}/g/a", options)
    end_below = edit.end_claims_below

    def end_late(store: Any, path: str) -> None:
        end_below(store, path)
        monkeypatch.setattr(edit, "end_claims_below", end_below)
        ds = xr.Dataset({"b": ("x", np.arange(3))})
        zd.write_dataset(ds, f"{url}/g", mode="w", storage_options=options)

    monkeypatch.setattr(edit, "end_claims_below", end_late)
    with pytest.raises(JobReplacedError):
        change(url, options)
    group = zd.open_group(url, storage_options=options)
    assert list(group) == ["g"]
    np.testing.assert_array_equal(group["g/b"][...], np.arange(3))


@pytest.mark.parametrize(
    "change",
    [zd.delete, lambda group, path: group.rename(path, "c")],
    ids=["delete", "rename"],
)
def test_a_removal_that_was_stopped_is_completed_by_the_one_that_stopped_it(
    change, server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It had removed the metadata; its node cannot be put back where objects lie."""
    url, options = f"s3://bucket/halfway-{request.node.callspec.id}.zarr", server.options
    group = zd.create_group(url, storage_options=options)
    zd.to_zarr(values(1), f"{url}/a", storage_options=options)
    claiming = edit.claiming_nodes

    def stop(*_: Any) -> None:
        raise JobReplacedError("by the one that claims now")

    def claim_late(store: Any, *paths: str) -> Any:
        monkeypatch.setattr(edit, "claiming_nodes", claiming)
        with monkeypatch.context() as patched:
            patched.setattr(edit, "_remove_objects", stop)
            with pytest.raises(JobReplacedError):
                group.rename("a", "b")
        assert list(open_store(url, options).list("a/"))
        return claiming(store, *paths)

    monkeypatch.setattr(edit, "claiming_nodes", claim_late)
    with pytest.raises(NodeNotFoundError):
        change(group, "a")
    assert not list(open_store(url, options).list("a/"))
    np.testing.assert_array_equal(group.rename("b", "a")[...], values(1))
    assert beside(server, url[12:]) == []


@pytest.mark.parametrize("is_local", [True, False])
def test_a_rename_takes_the_place_of_what_a_stopped_job_has_left(
    is_local: bool, server: S3Server, clock: Clock, tmp_path: Path
) -> None:
    """As a new array does: nobody could have removed it but by a new array."""
    url = str(tmp_path / "left.zarr") if is_local else "s3://bucket/renamed-onto.zarr"
    options = None if is_local else server.options
    group = zd.create_group(url, storage_options=options)
    zd.to_zarr(values(1), f"{url}/a", storage_options=options)
    store = open_store(url, options)
    store.set("b/c/7/0", [b"put by a job after it was replaced"])
    store.set("b/notes.txt", [b"of a user"])
    with pytest.raises(NodeExistsError, match=r"b/notes\.txt"):
        group.rename("a", "b")
    store.delete("b/notes.txt")
    beside = open_store(f"{url}.zarr-dask", options)
    beside.set(f"b/{HELD}", [ClaimRecord(("of a job",), makes=True).to_json()])
    with pytest.raises(NodeExistsError, match="b/c/7/0"):
        group.rename("a", "b")
    beside.delete(f"b/{HELD}")
    np.testing.assert_array_equal(group.rename("a", "b")[...], values(1))
    assert store.get("b/c/7/0") != b"put by a job after it was replaced"


def test_a_rename_whose_copy_is_replaced_ends_what_it_began(
    server: S3Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects without metadata would be left, which nobody looks for."""
    url, options = "s3://bucket/replaced-copy.zarr", server.options
    group = zd.create_group(url, storage_options=options)
    zd.to_zarr(values(1), f"{url}/a", storage_options=options)
    remove = edit._remove_objects

    def remove_late(*args: Any) -> None:
        monkeypatch.setattr(edit, "_remove_objects", remove)
        zd.to_zarr(values(2), f"{url}/b", mode="w", storage_options=options)
        remove(*args)

    monkeypatch.setattr(edit, "_remove_objects", remove_late)
    with pytest.raises(JobReplacedError):
        group.rename("a", "b")
    assert not list(open_store(url, options).list("a/"))
    np.testing.assert_array_equal(group["b"][...], values(2))
    assert beside(server, url[12:]) == []


@pytest.mark.parametrize("change", [delete_group, replace_group, rename_group, write_group])
def test_what_was_stopped_between_two_batches_of_deletes_leaves_a_later_job_alone(
    change, server: S3Server, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys were listed before the later job put its own objects there."""
    url, options = f"s3://bucket/batch-{change.__name__}.zarr", server.options
    zd.create_group(url, "g", storage_options=options)
    zd.to_zarr(values(1), f"{url}/g/a", storage_options=options)
    monkeypatch.setattr(obstore_requests, "_BATCH", 2)
    delete = ObstoreRequests._delete_all

    def delete_late(self: Any, prefix: str, keys: Any) -> None:
        delete(self, prefix, keys)
        monkeypatch.setattr(ObstoreRequests, "_delete_all", delete)
        zd.write_dataset(later, f"{url}/g", mode="w", storage_options=options)

    later = xr.Dataset({"a": (("y", "x"), values(2).compute())}).chunk(y=1)
    monkeypatch.setattr(ObstoreRequests, "_delete_all", delete_late)
    with pytest.raises(JobReplacedError):
        change(url, options)
    group = zd.open_group(url, storage_options=options)
    np.testing.assert_array_equal(group["g/a"][...], values(2))


@pytest.mark.parametrize("kind", ["create", *JOBS])
def test_nothing_is_made_below_what_a_job_is_replacing(kind: str, server: S3Server) -> None:
    url, options = f"s3://bucket/above-{kind}.zarr", server.options
    zd.create_group(url, "g", storage_options=options)
    claim, _ = claim_node(open_store(url, server.options), "g", "of a job")
    assert claim is not None
    make: dict[str, Any] = {**JOBS, "create": lambda url, _, options: create_array(url, options)}
    with pytest.raises(JobRunningError, match="g/__append/held"):
        make[kind](f"{url}/g/a", 1, options)
    claim.release()
    assert beside(server, url[12:]) == []


def test_what_a_job_has_written_is_no_leftover_once_it_has_ended(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended after its objects were taken for leftovers of a job that had died."""
    url, options = "s3://bucket/leftover.zarr", {"storage_options": server.options}
    open_store(url, server.options).set("c/0/0", [b"of a job that has died"])
    take = NodeClaim.take_if_free

    def take_late(claim: NodeClaim) -> bool:
        monkeypatch.setattr(NodeClaim, "take_if_free", take)
        write(url, 1, server.options)
        return take(claim)

    monkeypatch.setattr(NodeClaim, "take_if_free", take_late)
    with pytest.raises(NodeExistsError):
        zd.create_array(url, shape=(N, 4), dtype="f8", chunks=(1, 4), **options)
    assert stored(url, server.options) == {1.0}


# --- looks of many threads ------------------------------------------------------------------------


class Look:
    """A look that ends when `free` is set."""

    def __init__(self, error=None):
        self.error, self.begun = error, 0
        self.entered, self.free = threading.Event(), threading.Event()

    def __call__(self):
        self.begun += 1
        self.entered.set()
        assert self.free.wait(20)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, JobReplacedError("later")])
def test_threads_share_a_look_and_its_error(error):
    looks, look = lock.JobLooks(), Look(error)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(looks.now_and_then, ("job",), look)
        assert look.entered.wait(20)
        others = [pool.submit(looks.now_and_then, ("job",), look) for _ in range(7)]
        wait(others, timeout=0.2)  # in which each would have begun a look of its own
        assert look.begun == 1
        look.free.set()
        assert {one.exception(20) for one in (first, *others)} == {error}


def test_a_look_that_began_long_before_is_no_look(monkeypatch):
    looks, look, times = lock.JobLooks(), Look(), iter([0.0, 5.0])
    monkeypatch.setattr(lock, "_now", lambda: next(times))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(looks.now_and_then, ("job",), look)
        assert look.entered.wait(20)
        second = pool.submit(looks.now_and_then, ("job",), look)
        wait([second], timeout=0.1)
        look.free.set()
        first.result(20)
        second.result(20)
    assert look.begun == 2
