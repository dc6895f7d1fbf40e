"""States that a power cut may leave: the same call always resumes or begins anew.

Without ``fsync``, data of a job that has ended may be lost, as those of any program. With it, what
is visible after a power cut is whole, and what a call has acknowledged is there.
"""

import json
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.power_cuts import LOSSES, cut, has_forgotten_job, lose
from tests.support.small_jobs import JOBS
from zarr_dask.stores import LocalStore

pytestmark = pytest.mark.filterwarnings("ignore")
SYNCED = {"fsync": True}
BEHIND = {"append_dataset", "append_files", "append_image", "dataset", "ingest", "swap"} | {
    "swap_dataset"
}
"""Jobs that show several nodes one after the other, and do not look again at what is shown."""


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def replay(folder: Path, name: str, loss: str, lasts) -> None:
    """Cut the power at some changes of names, and repeat the call each time.

    Values are there then, but for those of `BEHIND` that had been visible before, and were lost.
    """
    job, tried = JOBS[name], 0
    for last in lasts:
        place, log = folder / str(last), folder / f"{last}.json"
        job.prepare(place)
        if not cut(job.run, place, last, log) or has_forgotten_job(log):
            break
        was_visible = job.is_visible(place)
        lose(place, log, loss, seed=last)
        job.run(place)
        if not was_visible or name not in BEHIND:
            job.check_values(place)
        tried += 1
    assert tried


def replay_synced(folder: Path, name: str, loss: str, lasts) -> None:
    """The same with fsync, up to the end of the call; what a reader sees is whole each time."""
    job = JOBS[name]
    run = partial(job.run, options=SYNCED)
    for last in lasts:
        place, log = folder / str(last), folder / f"{last}.json"
        job.prepare(place)
        has_ended = not cut(run, place, last, log)
        lose(place, log, loss, seed=last)
        if has_ended:
            job.check_values(place)
            return
        job.check_nothing_half_done(place)
        run(place)
        job.check_values(place)


@pytest.mark.parametrize("name", JOBS)
def test_after_a_power_cut_the_same_call_ends_the_job(tmp_path, name):
    replay(tmp_path, name, "names", [1, 9])


@pytest.mark.parametrize("name", ["write", "append"])
def test_after_lost_content_the_same_call_ends_the_job(tmp_path, name):
    replay(tmp_path, name, "content", [5])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", JOBS)
def test_after_some_power_cuts_the_same_call_ends_the_job(tmp_path, name, loss):
    replay(tmp_path, name, loss, [1, 5, 10, 13])


@pytest.mark.slow
@pytest.mark.timeout(550)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", JOBS)
def test_after_every_power_cut_the_same_call_ends_the_job(tmp_path, name, loss):
    replay(tmp_path, name, loss, count(1))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", JOBS)
def test_what_was_acknowledged_with_fsync_survives_a_power_cut(tmp_path, name, loss):
    replay_synced(tmp_path, name, loss, [4, 1000])


@pytest.mark.slow
@pytest.mark.timeout(550)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", JOBS)
def test_with_fsync_no_power_cut_leaves_what_is_half_done(tmp_path, name, loss):
    replay_synced(tmp_path, name, loss, count(1))


def _array(place: Path) -> zd.Array:
    return zd.open_array(LocalStore(str(place / "a"), fsync=True), mode="r+")


def _assign(place: Path) -> None:
    _array(place)[...] = 2


def _remove(place: Path) -> None:
    _array(place)[...] = 0


def _append(place: Path) -> None:
    _array(place).append(np.full((4, 4, 4), 3, "i4"))


def _store_blocks(place: Path) -> None:
    blocks = da.full((4, 4, 4), 2, chunks=(4, 4, 2), dtype="i4")
    zd.to_zarr(blocks, _array(place), region=(slice(0, 4),) * 3)


CALLS = {_assign: [2] * 4, _remove: [0] * 4, _append: [1] * 4 + [3] * 4, _store_blocks: [2] * 4}
"""Calls that put many objects in many folders, and the values that they leave."""


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("call", CALLS)
def test_objects_of_one_call_in_many_folders_survive_a_power_cut(tmp_path, call, loss):
    place, log = tmp_path / "place", tmp_path / "log.json"
    zd.create_array(place / "a", data=np.ones((4, 4, 4), "i4"), chunks=2)
    if call is _store_blocks:
        shutil.rmtree(place / "a" / "c")
    assert not cut(call, place, 10_000, log)
    lose(place, log, loss)
    assert zd.open_array(place / "a")[:, 0, 0].tolist() == CALLS[call]
    assert (zd.open_array(place / "a")[...] == np.array(CALLS[call])[:, None, None]).all()


@pytest.mark.parametrize("text", [b"", b'{"format": "zarr-dask job 1", "kind": "wr', b"\0" * 300])
def test_a_record_of_a_job_that_a_power_cut_has_emptied_needs_no_hand(tmp_path, text):
    place = tmp_path / "1"
    JOBS["write"].prepare(place)
    assert cut(JOBS["write"].run, place, 4, tmp_path / "log.json")
    (record,) = tmp_path.rglob("job.json")
    record.write_bytes(text)
    JOBS["write"].run(place)
    JOBS["write"].check_values(place)


def test_metadata_and_records_of_jobs_are_synced_and_data_are_not(tmp_path):
    place, log = tmp_path / "1", tmp_path / "log.json"
    JOBS["write"].prepare(place)
    assert cut(JOBS["write"].run, place, 8, log)
    known = json.loads(log.read_text())
    files = [path for path in place.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    synced = {path for path in files if path.stat().st_ino in known["whole"]}
    assert {path.suffix for path in synced} == {".json"}
    assert {path.suffix == ".json" for path in {*files} - synced} == {False}
