"""States that a power cut may leave: the same call always resumes or begins anew.

A job runs in a child process that ends at its n-th renaming of a file. What the disk may hold then
follows from what was synced before: a file whose content was not is empty, and one whose name
was not is missing.
"""

import json
import os
from multiprocessing import get_context
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd

VALUES = np.arange(1, 97, dtype="i4").reshape(12, 8)
DONE = 7


class Disk:
    """Records what of a folder is on the disk, and ends the process at a renaming."""

    def __init__(self, folder: Path, last: int, log: Path) -> None:
        self.folder, self.last, self.log = str(folder), last, log
        self.contents: set[str] = set()
        self.pending: dict[str, dict] = {}
        self.renamed = 0
        self.fsync, self.replace = os.fsync, os.replace
        os.fsync, os.replace = self.synced, self.moved

    def synced(self, descriptor) -> None:
        self.fsync(descriptor)
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if Path(path).is_dir():
            for name in [one for one in self.pending if one.rpartition("/")[0] == path]:
                self.pending[name]["named"] = True
        else:
            self.contents.add(path)

    def moved(self, source, target, *, src_dir_fd=None, dst_dir_fd=None) -> None:
        if dst_dir_fd is not None:
            target = f"{Path(f'/proc/self/fd/{dst_dir_fd}').readlink()}/{target}"
        existed = Path(target).exists()
        self.replace(source, target, src_dir_fd=src_dir_fd)
        if target.startswith(self.folder):
            self.pending[target] = {
                "whole": source in self.contents,
                "named": False,
                "existed": existed,
            }
            self.renamed += 1
            if self.renamed == self.last:
                self.log.write_text(json.dumps(self.pending))
                os._exit(DONE)


def new(path):
    return zd.to_zarr(da.from_array(VALUES, chunks=(3, 8)), path, resume=True, chunks=(3, 8))


def append(path):
    more = da.from_array(VALUES[6:], chunks=(3, 8))
    return zd.to_zarr(more, path, append_dim=0, resume=True)


def replaced(path):
    values = da.from_array(VALUES, chunks=(3, 8))
    return zd.to_zarr(values, path, mode="w", resume=True, chunks=(3, 8))


def rechunked(path):
    source = path.parent / "source"
    return zd.rechunk(source, path, chunks=(12, 2), resume=True)


def half(path):
    zd.create_array(path, shape=(6, 8), dtype="i4", chunks=(3, 8))[...] = VALUES[:6]


def other(path):
    zd.create_array(path, shape=(5, 5), dtype="i2", chunks=(3, 3))[...] = 1


def source(path):
    zd.create_array(path.parent / "source", shape=(12, 8), dtype="i4", chunks=(3, 8))[...] = VALUES


JOBS = {new: None, append: half, replaced: other, rechunked: source}


def child(job, path, last, log):
    with dask.config.set(scheduler="sync"):
        Disk(path.parent, last, log)
        job(path)


def ended_at(job, path, last, log) -> bool:
    """Run a job to its n-th renaming; False if it has ended before."""
    process = get_context("fork").Process(target=child, args=(job, path, last, log))
    process.start()
    process.join()
    assert process.exitcode in {0, DONE}
    return process.exitcode == DONE


def lose(log: Path, loss: str) -> None:
    """Take from the disk what was not on it for sure."""
    for name, state in json.loads(log.read_text()).items():
        file = Path(name)
        if not file.exists():
            continue
        if loss == "empty" and not state["whole"]:
            file.write_bytes(b"")
        elif loss == "missing" and not state["named"] and not state["existed"]:
            file.unlink()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["empty", "missing"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_after_a_power_cut_the_same_call_ends_the_job(tmp_path, job, loss):
    _replay(tmp_path, job, loss, [2, 3, 5])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["empty", "missing"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_after_every_power_cut_the_same_call_ends_the_job(tmp_path, job, loss):
    _replay(tmp_path, job, loss, range(1, 60))


def _replay(folder, job, loss, lasts):
    tried = 0
    for last in lasts:
        path = folder / str(last) / "a.zarr"
        path.parent.mkdir()
        if JOBS[job]:
            JOBS[job](path)
        log = folder / f"{last}.json"
        if not ended_at(job, path, last, log):
            break
        lose(log, loss)
        with dask.config.set(scheduler="sync"):
            job(path)
        assert np.array_equal(zd.open_array(path)[...], VALUES), last
        tried += 1
    assert tried


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", [b"", b'{"format": "zarr-dask job 1", "kind": "wr', b"\0" * 300])
def test_a_record_of_a_job_that_a_power_cut_has_emptied_needs_no_hand(tmp_path, text):
    path, log = tmp_path / "a.zarr", tmp_path / "log.json"
    assert ended_at(new, path, 4, log)
    (record,) = tmp_path.rglob("job.json")
    record.write_bytes(text)
    with dask.config.set(scheduler="sync"):
        new(path)
    assert np.array_equal(zd.open_array(path)[...], VALUES)


def test_metadata_and_records_of_jobs_are_synced_and_data_are_not(tmp_path):
    path, log = tmp_path / "a.zarr", tmp_path / "log.json"
    assert ended_at(new, path, 4, log)
    found = json.loads(log.read_text())
    assert {Path(name).suffix == ".json" for name, one in found.items() if one["whole"]} == {True}
    assert {Path(name).suffix == ".json" for name, one in found.items() if not one["whole"]} == {
        False
    }
