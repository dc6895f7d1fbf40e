"""The look at the workers of a cluster before a job begins."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from contextlib import contextmanager
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import WorkerSetupError, ZarrDaskWarning
from zarr_dask.jobs.engine import probe
from zarr_dask.stores import LocalStore

pytestmark = pytest.mark.cluster

WITHOUT_THE_PACKAGE = """
import asyncio, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "zarr_dask":
            raise ModuleNotFoundError("No module named 'zarr_dask'", name="zarr_dask")

sys.meta_path.insert(0, Hidden())
from distributed import Worker

async def work():
    async with Worker(sys.argv[1], nthreads=1, dashboard=False) as worker:
        await worker.finished()

asyncio.run(work())
"""


@contextmanager
def worker_without_the_package(client):
    before = len(client.scheduler_info(n_workers=-1)["workers"])
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, client.scheduler.address]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            client.wait_for_workers(before + 1, timeout=40)
            yield
        finally:
            process.kill()
    deadline = time.monotonic() + 30
    while len(client.scheduler_info(n_workers=-1)["workers"]) > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_without_the_package_is_named_at_once(client, tmp_path):
    x = da.ones((8, 8), chunks=4)
    zd.create_array(tmp_path / "a.zarr", shape=(8, 8), dtype="f4", chunks=(2, 8))[...] = 1
    with worker_without_the_package(client):
        for job in (
            lambda: zd.to_zarr(x, tmp_path / "x.zarr"),
            lambda: zd.rechunk(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=(8, 2)),
        ):
            begun = time.monotonic()
            with pytest.raises(WorkerSetupError, match=r"1 of 3 workers .*No module named"):
                job()
            assert time.monotonic() - begun < 20  # it hung for more than a minute
    assert {one.name for one in tmp_path.iterdir()} == {"a.zarr"}
    zd.to_zarr(x, tmp_path / "x.zarr")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "x.zarr")[...], 1)


def test_workers_are_asked_once_for_a_folder(client, tmp_path, monkeypatch):
    asked = []
    ask = probe._ask

    def counting(*arguments):
        asked.append(arguments)
        return ask(*arguments)

    monkeypatch.setattr(probe, "_ask", counting)
    for name in ("a", "b"):
        zd.to_zarr(da.ones(4, chunks=2), tmp_path / f"{name}.zarr")
    assert len(asked) == 1
    with dask.config.set(scheduler="threads"):
        zd.to_zarr(da.ones(4, chunks=2), tmp_path / "c.zarr")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seen": "/"}, "do not see the folder"),
        ({"writable": False}, "may not write to"),
    ],
)
def test_folders_that_a_worker_cannot_use(client, tmp_path, monkeypatch, change, says):
    ask = probe._ask

    def answers(*arguments):
        found = ask(*arguments)
        last = max(found)
        folders = tuple(replace(one, **change) for one in found[last].folders)
        return {**found, last: replace(found[last], folders=folders)}

    monkeypatch.setattr(probe, "_ask", answers)
    with pytest.raises(WorkerSetupError, match=f"1 of 2 workers {says} "):
        probe.check_workers(client, [(LocalStore(str(tmp_path / "a.zarr")), "")])


def test_another_version(client, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_release", lambda: "999.1")
    with pytest.raises(WorkerSetupError, match=r"2 of 2 .* another version .*999\.1"):
        probe.check_workers(client, [(LocalStore(str(tmp_path / "a.zarr")), "")])


def test_too_little_room_is_warned_of(client, tmp_path):
    store = LocalStore(str(tmp_path / "a.zarr"))
    with pytest.warns(ZarrDaskWarning, match="free, and about 1000 PB will be written"):
        probe.check_workers(client, [(store, "")], nbytes=10**18)
    store = LocalStore(str(tmp_path / "b" / "a.zarr"))
    with pytest.warns(ZarrDaskWarning, match="files, and .* stored objects"):
        probe.check_workers(client, [(store, "")], files=1 << 62)


def test_workers_that_do_not_answer(client, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_PATIENCE", 0.2)
    monkeypatch.setattr(probe, "local_path", lambda *_: None)
    monkeypatch.setattr(probe, "_look", lambda *_: time.sleep(2))
    with pytest.warns(ZarrDaskWarning, match="2 of 2 workers have not answered within 0 s: tcp"):
        probe.check_workers(client, [(LocalStore(str(tmp_path)), "")])


def test_packages_that_the_graph_needs_are_asked_for(client, tmp_path, monkeypatch):
    module = types.ModuleType("tools_of_this_process_alone")
    exec("def double(block): return 2 * block", module.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, module.__name__, module)
    x = da.ones((8, 8), chunks=4).map_blocks(module.double, dtype="f8")
    begun = time.monotonic()
    for job in (
        lambda: zd.to_zarr(x, tmp_path / "x.zarr"),
        lambda: zd.to_zarr(x + 1, tmp_path / "x.zarr", chunks=(8, 2)),
        lambda: zd.rechunk(x, tmp_path / "x.zarr", chunks=(8, 2)),
    ):
        with pytest.raises(WorkerSetupError, match="2 of 2 workers cannot import tools_of_this"):
            job()
    assert time.monotonic() - begun < 20  # it hung for ever
    assert list(tmp_path.iterdir()) == []


class OfTheClient:
    """A function that needs a module which is nowhere."""

    def __call__(self, block):
        return block

    def __reduce__(self):
        return __import__, ("tools_of_nobody",)


def test_a_graph_that_the_scheduler_cannot_load_is_named(client, tmp_path):
    x = da.ones((8, 8), chunks=4).map_blocks(OfTheClient(), dtype="f8")
    with pytest.raises(WorkerSetupError, match="ModuleNotFoundError: No module named 'tools_of"):
        zd.to_zarr(x, tmp_path / "x.zarr")
    assert not (tmp_path / "x.zarr").exists()
