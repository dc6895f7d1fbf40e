"""Claims of appends, and what a process says of them when it ends."""

import json
import os

import pytest

import zarr_dask as zd
from zarr_dask.journal import claims
from zarr_dask.stores.patience import is_foreground
from zarr_dask.stores.process_identity import Owner


def test_a_process_that_ends_has_little_patience_with_a_store(monkeypatch):
    """A server that has gone must not hold it up for as long as a job waits."""
    seen = []

    class End:
        def acknowledge(self):
            seen.append(is_foreground())

    monkeypatch.setattr(claims, "_LEFT", {("store", "held"): (os.getpid(), End())})
    claims._acknowledge()
    assert seen == [True]


@pytest.mark.parametrize(
    "where", [("owner", "pid"), ("ended", "shape", 0), ("ended", "owner", "pid")]
)
def test_a_claim_with_endless_numbers_is_none_of_ours(where):
    """JSON as Python reads it has infinities, which are no integers."""
    ended = claims.EndedAppend((3,), "", {}, Owner.here(locked=False))
    document = json.loads(claims.ClaimRecord(("token",), ended=ended).to_json())
    holder = document
    for name in where[:-1]:
        holder = holder[name]
    holder[where[-1]] = float("inf")
    found = claims.ClaimRecord.parsed(json.dumps(document).encode())
    assert found is None or found.ended is None


def test_a_new_claim_cuts_no_file_off(tmp_path, monkeypatch):
    """A file that was cut off, even one without bytes, is synced by ext4 when it is closed."""
    array = zd.create_array(tmp_path / "a", shape=(0,), dtype="i4", chunks=2)
    cut, cut_off = [], os.ftruncate
    monkeypatch.setattr(os, "ftruncate", lambda *to: cut.append(to) or cut_off(*to))
    array.append([1, 2])
    assert not cut
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
