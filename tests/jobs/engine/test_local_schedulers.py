"""Jobs on dask's own processes."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError

VALUES = np.random.default_rng(0).random((128, 96, 96)).astype("f4")


@pytest.fixture
def source(tmp_path) -> zd.Array:
    array = zd.create_array(
        tmp_path / "s", shape=VALUES.shape, dtype="f4", chunks=(1, 96, 96), codecs=["zstd"]
    )
    array[...] = VALUES
    return array


def test_all_stages_use_the_same_processes(source, tmp_path):
    with dask.config.set(scheduler="processes", num_workers=1):
        report = zd.rechunk(source, tmp_path / "t", chunks=(128, 4, 4), max_mem="2MB", verify=True)
    assert len(report.stages) > 1
    assert len(report.peaks) == 1  # by process
    assert np.array_equal(zd.open_array(tmp_path / "t")[...], VALUES)


def test_processes_have_ended_when_a_job_has_failed(source, tmp_path):
    (tmp_path / "s/c/9/0/0").write_bytes(b"no chunk")
    with (
        dask.config.set(scheduler="processes", num_workers=2),
        pytest.raises(CorruptObjectError),
    ):
        zd.rechunk(source, tmp_path / "t", chunks=(128, 4, 4), max_mem="2MB")
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"s", "t", "t.zarr-dask"}  # no intermediate array, and no task that goes on
    with pytest.raises(zd.errors.NodeNotFoundError):
        zd.open_array(tmp_path / "t")


@pytest.mark.filterwarnings("error")
def test_an_initializer_of_the_user_is_called_in_the_processes(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"multiprocessing.initializer": _leave_a_mark}
    with dask.config.set(scheduler="processes", num_workers=1, **settings):
        zd.rechunk(source, tmp_path / "t", chunks=(128, 48, 48))
    assert (tmp_path / "mark").exists()


def _leave_a_mark() -> None:
    with open("mark", "w") as file:  # noqa: PTH123
        file.write("called")
