"""Claims of appends, and what a process says of them when it ends."""

import json
import os
import shutil
from resource import RUSAGE_SELF, getrusage

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask.errors import AppendConflictError, JournalError, MetadataError
from zarr_dask.journal import claims, open_outputs
from zarr_dask.stores.open import open_store
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
    document["crc32"] = claims._checksum({k: v for k, v in document.items() if k != "crc32"})
    found = claims.ClaimRecord.parsed(json.dumps(document).encode())
    assert found is None or found.ended is None


def test_an_emptied_record_in_an_object_store_is_not_passed_over():
    """A process that is killed leaves none: an object is put as a whole."""
    with s3_server() as server:
        store = open_store(f"{server.root}/a", server.options)
        end = claims.end_of_array(store, "", "token", "job")
        end.claim()
        end.note_ended((6,), {})
        text = end.store.get(f"{end.prefix}held")
        assert claims.ended_append(store, "", "job", (6,), was_awaited=True)
        for left in (b"", text[:20]):
            end.store.set(f"{end.prefix}held", [left])
            with pytest.raises(JournalError, match="held is not what an append leaves there"):
                claims.ended_append(store, "", "job", (6,))
        end.store.delete(f"{end.prefix}held")
        assert claims.ended_append(store, "", "job", (6,)) is None


@pytest.mark.parametrize("resume", [True, False])
def test_a_record_with_holes_is_not_read_to_its_end(tmp_path, resume):
    """It costs who has made it nothing, and whoever reads it 3 GiB."""
    array = zd.create_array(tmp_path / "a", shape=(0,), dtype="i4", chunks=2)
    held = tmp_path / "a.zarr-dask/__append/held"
    held.parent.mkdir(parents=True)
    with held.open("wb") as file:
        file.truncate(3 << 30)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    more = da.from_array(np.ones(2, "i4"), chunks=2, name="more")
    zd.to_zarr(more, tmp_path / "a", append_dim=0, resume=resume)
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 300 << 10
    np.testing.assert_array_equal(zd.open_array(array.store)[...], [1, 1])
    assert not held.exists() or held.stat().st_size < 1 << 20


def test_a_record_of_an_output_with_holes_is_not_read_to_its_end(tmp_path):
    array = zd.create_array(tmp_path / "g", "a", shape=(4,), dtype="i4", chunks=2)
    record = tmp_path / "g.zarr-dask" / open_outputs.OUTPUT
    record.parent.mkdir(parents=True)
    with record.open("wb") as file:
        file.truncate(3 << 30)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    for call in (lambda: array.append([1]), lambda: zd.delete(tmp_path / "g", "a")):
        with pytest.raises(MetadataError, match=r"output\.json"):
            call()
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_a_new_claim_cuts_no_file_off(tmp_path, monkeypatch):
    """A file that was cut off, even one without bytes, is synced by ext4 when it is closed."""
    array = zd.create_array(tmp_path / "a", shape=(0,), dtype="i4", chunks=2)
    cut, cut_off = [], os.ftruncate
    monkeypatch.setattr(os, "ftruncate", lambda *to: cut.append(to) or cut_off(*to))
    array.append([1, 2])
    assert not cut
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_record_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """The lock of a file that has no name any more keeps nobody away."""
    store = open_store(tmp_path / "a")
    zd.create_array(store, shape=(0,), dtype="i4", chunks=2)
    first = claims.end_of_array(store, "", "first")
    held, opened = [first.claim()], claims.open_in

    def open_and_leave(*to):
        descriptor = opened(*to)
        while held:
            first.leave(claim=held[0])
            held.pop().close()
        return descriptor

    monkeypatch.setattr(claims, "open_in", open_and_leave)
    second = claims.end_of_array(store, "", "second").claim()
    assert not held
    with pytest.raises(AppendConflictError):
        claims.end_of_array(store, "", "third").claim()
    second.close()


def test_an_append_that_ends_locks_no_folder(tmp_path, monkeypatch):
    """It has the record to itself, which it removes."""
    store = open_store(tmp_path / "a")
    zd.create_array(store, shape=(0,), dtype="i4", chunks=2)
    end = claims.end_of_array(store, "", "token")
    claim = end.claim()
    monkeypatch.setattr(claims, "folder_lock", None)
    end.leave(claim=claim)
    claim.close()
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_an_append_makes_its_folder_again_that_goes_when_it_is_locked(tmp_path, monkeypatch):
    """A rename or removal of the array, which ends, takes it along."""
    store = open_store(tmp_path / "a")
    zd.create_array(store, shape=(0,), dtype="i4", chunks=2)
    folder, opened, gone = tmp_path / "a.zarr-dask" / "__append", claims.open_in, []

    def open_in(*args):
        if not gone:
            gone.append(shutil.rmtree(folder))
        return opened(*args)

    monkeypatch.setattr(claims, "open_in", open_in)
    end = claims.end_of_array(store, "", "token")
    claim = end.claim()
    assert (folder / "held").is_file()
    end.leave(claim=claim)
    claim.close()


def test_a_record_that_another_has_put_in_the_place_stays(tmp_path):
    """Removed by hand, and made again by the next append: it is not the first one's."""
    store = open_store(tmp_path / "a")
    zd.create_array(store, shape=(0,), dtype="i4", chunks=2)
    end = claims.end_of_array(store, "", "token")
    claim = end.claim()
    record = tmp_path / "a.zarr-dask" / "__append" / "held"
    record.unlink()
    record.write_text("of another")
    end.leave(claim=claim)
    claim.close()
    assert record.read_text() == "of another"
