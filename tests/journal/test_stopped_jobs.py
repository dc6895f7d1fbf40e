"""Jobs on an object store that go on after a later one has taken their place: they put nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.object_stores import S3Server, s3_server
from tests.support.running import Stopped, running
from zarr_dask.errors import JobReplacedError, ListingError
from zarr_dask.journal import Journal, lock
from zarr_dask.journal.claims import ClaimRecord
from zarr_dask.journal.lock import HELD
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import Buffer, Listing, ReadPolicy
from zarr_dask.stores.open import open_store


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def stop_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the clock go on by seconds in which this process has done nothing."""
    passed = [0.0]
    now = lock._now
    monkeypatch.setattr(lock, "_now", lambda: now() + passed[0])

    def stop_for(seconds: float) -> None:
        passed[0] += seconds

    return stop_for


def ones() -> da.Array:
    return da.ones((8, 6), chunks=(1, 6))


class StoppingStore(MemoryStore):
    """A store that can stop its reader in the middle."""

    stops: Stopped | None = None

    def get(self, key: str) -> Buffer | None:
        if self.stops is not None and key.endswith("c/5/0"):
            self.stops(key)
        return super().get(key)


def stored_ones() -> zd.Array:
    source = zd.create_array(StoppingStore(), shape=(8, 6), dtype="f8", chunks=(1, 6))
    source[...] = 1
    return source


def write(url: str, stopped: Stopped, **options: Any) -> None:
    zd.to_zarr(ones(), url, progress=stopped, **options)


def write_resumably(url: str, stopped: Stopped, **options: Any) -> None:
    zd.to_zarr(ones(), url, resume="ones", progress=stopped, **options)


def rechunk(url: str, stopped: Stopped, **options: Any) -> None:
    source = stored_ones()
    to = {"target_options": options["storage_options"]}
    plan = zd.plan_rechunk(source, url, chunks=(1, 3), **to)
    source.store.stops = stopped
    plan.run()


def rechunk_resumably(url: str, stopped: Stopped, **options: Any) -> None:
    source = stored_ones()
    plan = zd.plan_rechunk(source, url, chunks=(1, 3), target_options=options["storage_options"])
    source.store.stops = stopped
    plan.run(resume=True)


def append_resumably(url: str, stopped: Stopped, **options: Any) -> None:
    zd.create_array(url, shape=(0, 6), dtype="f8", chunks=(1, 6), **options)
    zd.to_zarr(ones(), url, append=0, resume="ones", progress=stopped, **options)


RESUMABLE = {"append_resumably": append_resumably, "rechunk_resumably": rechunk_resumably}


def copy(url: str, stopped: Stopped, **options: Any) -> None:
    source = stored_ones()
    plan = zd.plan_copy(source, url, target_options=options["storage_options"])
    source.store.stops = stopped
    plan.run()


JOBS = {"write": write, "write_resumably": write_resumably, "rechunk": rechunk, "copy": copy}


@pytest.mark.parametrize("later", [2.0, 0.0])
@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_was_stopped_puts_nothing(
    kind: str, later: float, server: S3Server, stop_for: Callable[[float], None]
) -> None:
    url, options = f"s3://bucket/{kind}-{later}.zarr", {"storage_options": server.options}
    values = da.full((8, 6), later, chunks=(1, 6))
    with running(lambda stopped: JOBS[kind](url, stopped, **options)) as raised:
        stop_for(30)
        zd.to_zarr(values, url, mode="w", **options)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    np.testing.assert_array_equal(zd.open_array(url, **options)[...], np.full((8, 6), later))
    assert zd.verify(url, **options).ok


@pytest.mark.parametrize("kind", ["write_resumably", "rechunk", "copy"])
def test_a_job_that_was_stopped_before_it_kept_a_journal_leaves_none(
    kind: str, server: S3Server, stop_for: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = f"s3://bucket/bare-{kind}.zarr", {"storage_options": server.options}
    begin, stops = Journal.begin, list[Stopped]()

    def stopping(journal: Journal, *args: Any, **more: Any) -> None:
        if stops:
            stops.pop()("the journal")
        begin(journal, *args, **more)

    def run(stopped: Stopped) -> None:
        stops.append(stopped)
        JOBS[kind](url, Stopped.passing(), **options)

    monkeypatch.setattr(Journal, "begin", stopping)
    with running(run) as raised:
        stop_for(30)
        zd.to_zarr(da.full((8, 6), 2.0, chunks=(1, 6)), url, mode="w", **options)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    np.testing.assert_array_equal(zd.open_array(url, **options)[...], np.full((8, 6), 2.0))
    report = zd.verify(url, **options)
    assert report.ok, str(report)


class UnlistedStore(MemoryStore):
    """A far store that cannot list, as most HTTP servers."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)

    def list(self, prefix: str = "") -> Iterator[str]:
        raise ListingError(prefix)

    def list_dir(self, prefix: str = "") -> Listing:
        raise ListingError(prefix)


def test_a_store_that_cannot_list_is_written_to() -> None:
    """What an earlier job has left there cannot be known."""
    store = UnlistedStore()
    zd.to_zarr(ones(), store)
    np.testing.assert_array_equal(zd.open_array(store)[...], np.ones((8, 6)))


@pytest.mark.parametrize("kind", ["write_resumably", "append_resumably", "rechunk_resumably"])
def test_a_process_that_was_taken_for_dead_puts_nothing_beside_the_one_that_goes_on(
    kind: str, server: S3Server, stop_for: Callable[[float], None]
) -> None:
    """An equal call of another process goes on with the journal of this one."""
    name = f"dead-{kind}.zarr"
    url, options = f"s3://bucket/{name}", {"storage_options": server.options}
    store = open_store("s3://bucket", server.options)
    jobs = {**JOBS, **RESUMABLE}
    with running(lambda stopped: jobs[kind](url, stopped, **options)) as raised:
        (key,) = (one for one in store.list(f"{name}.zarr-dask/") if one.endswith(HELD))
        found = ClaimRecord.parsed(store.get(key))
        assert found is not None
        tokens = ("another",) if kind == "append_resumably" else found.tokens
        owner = replace(found.owner, host="another")
        claim = replace(found, owner=owner, tokens=tokens).to_json()
        store.set(key, [claim])
        before = sorted(store.list(f"{name}/"))
        stop_for(30)
    (error,) = raised
    assert isinstance(error, JobReplacedError)
    assert error.is_same_job
    assert bytes(store.get(key) or b"") == claim
    assert sorted(store.list(f"{name}/")) == before
    assert any(key.endswith("job.json") for key in store.list(f"{name}.zarr-dask/"))
