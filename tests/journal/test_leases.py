"""Renewals of claims, and the looks of others at them."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from zarr_dask.errors import StoreError
from zarr_dask.journal import claims, leases
from zarr_dask.journal.leases import Leases, Renewal, Watch
from zarr_dask.stores.process_identity import Owner

HERE = Owner.here(locked=False)
ELSEWHERE = replace(HERE, host="another")
TIME = "2026-11-28T01:02:03+00:00"


@pytest.fixture
def clock(monkeypatch):
    """The time of a watch, to be moved."""
    now = [1000.0]
    monkeypatch.setattr(leases, "monotonic", lambda: now[0])
    monkeypatch.setattr(leases, "_DEAD", {})
    return now


def test_a_process_is_dead_if_its_record_does_not_change_for_half_a_minute(clock):
    watch, renewal = Watch(), Renewal.of(ELSEWHERE, TIME)
    for _ in range(30):
        assert not watch.has_expired(renewal)
        clock[0] += 1
    assert not watch.has_expired(renewal)
    clock[0] += 1
    assert watch.has_expired(renewal)
    other_record = Renewal.of(replace(ELSEWHERE, token=f"{ELSEWHERE.token}2"), TIME)
    assert other_record.was_last  # which is not waited for in turn
    assert not Renewal.of(ELSEWHERE, "2026-11-28T01:02:34+00:00").was_last
    assert not Renewal.of(replace(ELSEWHERE, pid=1), TIME).was_last


def test_time_without_looks_does_not_count(clock):
    watch, renewal = Watch(), Renewal.of(ELSEWHERE, TIME)
    assert not watch.has_expired(renewal)
    for _ in range(4):  # an outage, in which nothing could be renewed either
        clock[0] += 29
        assert not watch.has_expired(renewal)


def test_only_recent_renewals_of_another_host_are_waited_for():
    def record(**fields):
        return claims.ClaimRecord(("token",), "job", **{"owner": ELSEWHERE, **fields})

    def before(**ago):
        return (datetime.now(UTC) - timedelta(**ago)).isoformat()

    assert record(renewed=before(minutes=20)).is_same_elsewhere("job")
    assert record(renewed=before(minutes=-20)).is_same_elsewhere("job")  # its clock is ahead
    assert not record(renewed=before(minutes=70)).is_same_elsewhere("job")
    assert not record().is_same_elsewhere("job")  # none
    assert not record(renewed="soon").is_same_elsewhere("job")
    assert not record(renewed=before(), given_up=True).is_same_elsewhere("job")
    assert not record(renewed=before()).is_same_elsewhere("another job")
    assert not record(renewed=before(), owner=HERE).is_same_elsewhere("job")


def test_claims_are_renewed_until_they_end(monkeypatch):
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.01)
    renewed, rounds = threading.Semaphore(0), iter([True, StoreError("gone"), True, False])
    found = Leases()

    def renew():
        result = next(rounds)
        renewed.release()
        if isinstance(result, StoreError):
            raise result
        return result

    found.begin(("job",), "first", renew)
    (thread,) = (one for one in threading.enumerate() if one.name == "renewals")
    found.begin(("job",), "second", pytest.fail)  # one claim of each job is enough
    found.end(("job",), "second")
    assert not found.is_free(("job",))
    for _ in range(4):
        assert renewed.acquire(timeout=10)
    thread.join(10)  # after the last claim has ended
    assert not thread.is_alive()
    assert found.is_free(("job",))
