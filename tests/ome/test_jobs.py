"""Jobs that write images: on clusters, in little memory, killed and resumed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.kill_roles import PATIENCE, kill, start, until
from tests.support.ome_levels import check_levels, pixels
from tests.support.ome_roles import BLOCK, OPTIONS, SHAPE, WORK, expected, source, write_image
from zarr_dask.errors import (
    NodeExistsError,
    NodeNotFoundError,
    ResumeError,
    StoreError,
    StoreOutOfReachError,
)
from zarr_dask.journal import Journal, default_place, open_journals
from zarr_dask.stores import LocalStore, MemoryStore
from zarr_dask.stores.wrappers.base import HookStore, Recording

BLOCKS = SHAPE[0] * (SHAPE[1] // BLOCK[1]) * (SHAPE[2] // BLOCK[2])


def journals(url):
    return open_journals(default_place(LocalStore(str(url)), ""))


# --- on a cluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "graph", "blocks", "stored"])
def test_on_a_cluster(tmp_path, client, kind):
    values = pixels(3, 100, 130)
    url = tmp_path / "image"
    x = {
        "numpy": lambda: values,
        "graph": lambda: da.from_array(values, chunks=(1, 40, 40)),
        "blocks": lambda: da.from_array(values, chunks=(1, 32, 32), inline_array=True),
        "stored": lambda: stored(values, tmp_path / "source"),
    }[kind]()
    steps = []
    plan = zd.ome.plan_write(x, url, axes="cyx", chunks=(1, 16, 16), shards=(1, 32, 32), levels=4)
    plan.run(progress=steps.append)
    check_levels(url, plan, values)
    assert sum(step.nbytes for step in steps) == plan.total


def stored(values, url):
    array = zd.create_array(url, shape=values.shape, dtype=values.dtype, chunks=(1, 50, 30))
    array[...] = values
    return array


def test_memory_of_this_process_is_out_of_reach(client):
    with pytest.raises(StoreOutOfReachError):
        zd.ome.write(pixels(9, 9), {}, axes="yx")


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_schedulers(tmp_path, scheduler):
    values = pixels(40, 50)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        plan = zd.ome.plan_write(values, tmp_path / "image", axes="yx", chunks=16, levels=3)
        plan.run()
    check_levels(tmp_path / "image", plan, values)


MEMORY = """
import json, sys
from pathlib import Path
import dask, dask.array as da, numpy as np
import zarr_dask as zd

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def noise(block_info=None):
    shape = [b - a for a, b in block_info[None]["array-location"]]
    return np.random.default_rng(1).integers(0, 999, shape, "u2")

def image(side, block):
    along = (block,) * (side // block)
    return da.map_blocks(noise, chunks=(along, along), dtype="u2")

url, method = sys.argv[1:]
with dask.config.set(scheduler="sync"):
    options = {"axes": "yx", "levels": 3, "method": method, "max_mem": "60MB"}
    zd.ome.write(image(256, 128), url + "-small", chunks=32, shards=128, **options)
    x = image(6144, 1024)
    plan = zd.ome.plan_write(x, url, chunks=256, shards=1024, **options)
    Path("/proc/self/clear_refs").write_text("5")
    idle = memory("VmRSS")
    plan.run()
print(json.dumps([memory("VmHWM") - idle, plan.peak, len(plan.pyramids[0].stages)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process has")
@pytest.mark.parametrize("method", [pytest.param("mean", marks=pytest.mark.slow), "gaussian"])
def test_memory(tmp_path, method):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "image"), method]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, peak, stages = json.loads(done.stdout.splitlines()[-1])
    assert grown <= peak <= 60e6
    assert stages == (1 if method == "mean" else 3)


# --- resuming -------------------------------------------------------------------------------------


class FailedError(Exception):
    """What a test lets go wrong."""


def failing_after(count, values):
    """The pixels as blocks of which all but some fail."""
    left = [count]

    def block(found):
        left[0] -= 1
        if left[0] < 0:
            raise FailedError
        return found

    x = da.from_array(values, chunks=(32, 32), inline_array=True)
    return x.map_blocks(block, dtype=values.dtype, meta=np.empty((0, 0), values.dtype))


def test_what_is_done_is_not_done_again(tmp_path):
    values = pixels(128, 160) + 1
    url = tmp_path / "image"
    options = {"axes": "yx", "chunks": 16, "levels": 3, "resume": "run-7", "max_mem": "20MB"}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(FailedError):
            zd.ome.write(failing_after(9, values), url, **options)
        with pytest.raises(NodeNotFoundError, match="resume='run-7'"):
            zd.ome.open(url)
        with pytest.raises(ResumeError, match="another job"):
            zd.ome.write(values, url, **{**options, "resume": "run-8"})
        recording = Recording(LocalStore(str(url)))
        zd.ome.write(failing_after(20 - 8, values), recording, **options)
    assert 0 < sum(recording.per_key("set").values()) < 80 + 20 + 6 + 4
    assert not journals(url)
    plan = zd.ome.plan_write(values, tmp_path / "other", axes="yx", chunks=16, levels=3)
    check_levels(url, plan, values)


def test_a_finished_job_answers_the_same_call(tmp_path):
    values, url = pixels(64, 64) + 1, tmp_path / "image"
    options = {"axes": "yx", "chunks": 16, "levels": 2, "labels": {"a": values}}
    first = zd.ome.write(values, url, **options, resume=True)
    again = zd.ome.write(values, url, **options, resume=True)
    assert again.already_done
    assert (again.objects, again.nbytes) == (first.objects, first.nbytes)
    with pytest.raises(NodeExistsError):  # another job
        zd.ome.write(values + 1, url, **options, resume=True)
    with pytest.raises(NodeExistsError):  # one that is not resumed
        zd.ome.write(values, url, **options)
    zd.ome.write(values + 1, url, **options, overwrite=True)
    with pytest.raises(NodeExistsError):  # what the first has written is gone
        zd.ome.write(values, url, **options, resume=True)
    assert not zd.ome.write(values, url, **options, resume=True, overwrite=True).already_done
    zd.delete(url)
    assert not zd.ome.write(values, url, **options, resume=True).already_done


@pytest.mark.parametrize("last", ["removes its journal", "removes its last file"])
def test_a_job_that_died_after_its_end(tmp_path, monkeypatch, last):
    values, url = pixels(64, 64) + 1, tmp_path / "image"
    options = {"axes": "yx", "chunks": 16, "levels": 2, "resume": True}

    def die(journal):
        if last == "removes its last file":
            removed(journal)
        raise FailedError

    removed = Journal.remove
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", die)
        with pytest.raises(FailedError):
            zd.ome.write(values, url, **options)
    report = zd.ome.write(values, url, **options)
    assert bool(report.already_done) == (last == "removes its last file")
    np.testing.assert_array_equal(zd.ome.open(url).level(0)[...], values)
    assert not journals(url)


def test_a_job_that_died_at_its_end(tmp_path):
    values = pixels(64, 64) + 1
    url = tmp_path / "image"

    class Dying(Recording):
        def set(self, key, buffers):
            if key == "zarr.json":
                raise FailedError
            super().set(key, buffers)

    options = {"axes": "yx", "chunks": 16, "levels": 2, "labels": {"a": values}, "resume": True}
    with pytest.raises(FailedError):
        zd.ome.write(values, Dying(LocalStore(str(url))), **options)
    assert (url / "labels" / "a" / "zarr.json").exists()
    with pytest.raises(NodeNotFoundError, match="resume=True"):
        zd.ome.open(url)
    recording = Recording(LocalStore(str(url)))
    zd.ome.write(values, recording, **options)
    assert not any("/c/" in key for key in recording.per_key("set"))
    assert zd.ome.validate(url) == []
    assert not journals(url)


def test_a_job_that_is_begun_anew(tmp_path):
    values = pixels(128, 160) + 1
    url = tmp_path / "image"
    with dask.config.set(scheduler="sync"):
        with pytest.raises(FailedError):
            zd.ome.write(failing_after(9, values), url, axes="yx", chunks=8, levels=3)
        assert len(journals(url)) == 1
        zd.ome.write(values[:50], url, axes="yx", chunks=16, levels=2)
    plan = zd.ome.plan_write(values[:50], tmp_path / "x", axes="yx", chunks=16, levels=2)
    check_levels(url, plan, values[:50])
    assert not journals(url)
    stored = {path.relative_to(url).as_posix() for path in url.rglob("c/*/*")}
    assert len(stored) == 4 * 10 + 2 * 5


def test_an_image_without_its_document_is_not_read_as_a_group(tmp_path):
    """The documents of its levels come before that of the image."""

    def fault(verb, key):
        if verb in {"set", "set_if"} and key == "image/zarr.json":
            raise StoreError("stopped")

    store = HookStore(LocalStore(str(tmp_path)), fault)
    given = {"path": "image", "axes": "yx", "chunks": 8, "levels": 2, "resume": True}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(StoreError, match="stopped"):
            zd.ome.write(pixels(16, 16), store, **given)
        assert (tmp_path / "image" / "0" / "zarr.json").exists()
        for path in (tmp_path / "image", tmp_path):
            with pytest.raises(NodeNotFoundError, match="resume=True"):
                zd.open_group(path, "" if path.name == "image" else "image")
        zd.ome.write(pixels(16, 16), tmp_path, **given)
    np.testing.assert_array_equal(
        zd.ome.open(tmp_path / "image").level(0).array[...], pixels(16, 16)
    )


def test_resume_needs_a_place():
    with pytest.raises(ResumeError, match="journal="):
        zd.ome.write(pixels(9, 9), MemoryStore({}), axes="yx", resume=True)


def test_a_journal_elsewhere(tmp_path):
    store = MemoryStore({})
    zd.ome.write(pixels(9, 9), store, axes="yx", resume=True, journal=tmp_path / "journal")
    assert zd.ome.open(store).levels[0].shape == (9, 9)


# --- killed ---------------------------------------------------------------------------------------


def play(root: Path, seed: int, *, shares: bool) -> None:
    """One round: write, kill at some moment, look, resume, compare."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    zd.create_array(root / "source", shape=SHAPE, dtype="u2", chunks=BLOCK)[...] = expected()
    after = draw.randrange(BLOCKS)
    client = start(write_image, str(root), shares)
    try:
        assert until(lambda: computed(root) >= after, client) or client.exitcode == 0
        wait([client.sentinel], timeout=draw.random() * WORK * (20 if after > BLOCKS * 0.7 else 3))
        kill(client)
        before = computed(root)
        document = root / "image" / "zarr.json"  # the last one: the image is whole then
        if journals(root / "image") and not document.exists():
            with pytest.raises(NodeNotFoundError, match="resume=True"):
                zd.open_group(root / "image")
        client = start(write_image, str(root), shares)
        client.join(PATIENCE)
        assert client.exitcode == 0
    finally:
        kill(client)
    assert before <= computed(root) <= BLOCKS + before
    with dask.config.set(scheduler="sync"):
        plan = zd.ome.plan_write(source(str(root), shares=False), root / "other", **OPTIONS)
    check_levels(root / "image", plan, expected())
    assert journals(root / "image") == []


def computed(root: Path) -> int:
    log = root / "log"
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def test_killed(tmp_path):
    seed = int(time.time())
    play(tmp_path, seed, shares=bool(seed % 2))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_killed_many_times(tmp_path, number):
    play(tmp_path, number, shares=bool(number % 2))
