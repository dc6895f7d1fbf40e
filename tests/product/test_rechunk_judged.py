"""The judged cases of rechunking that need no cluster: shards, growth, many chunks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import ROOT
from zarr_dask.errors import MetadataError
from zarr_dask.stores import LocalStore, Recording

MB = 1_000_000


def smooth(region: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Values that compress well and differ everywhere along each dimension."""
    ramps = np.ogrid[tuple(region)]
    scale = [1.0, 3.0, 7.0]
    return sum((ramp * s for ramp, s in zip(ramps, scale, strict=True)), np.zeros(())).astype("f4")


def slabs_at(place: Path, shape: tuple[int, int, int], chunk: tuple[int, int, int]) -> zd.Array:
    array = zd.create_array(place, shape=shape, dtype="f4", chunks=chunk)
    steps = [range(0, n, c) for n, c in zip(shape, chunk, strict=True)]
    for corner in product(*steps):
        region = tuple(
            slice(a, min(a + c, n)) for a, c, n in zip(corner, chunk, shape, strict=True)
        )
        array[region] = smooth(region, shape)
    return array


def test_each_target_shard_is_written_once(tmp_path):
    """A quarter of the judged lengths along each dimension."""
    shape = (128, 128, 128)
    old = slabs_at(tmp_path / "a", shape, (4, 128, 128))
    target = Recording(LocalStore(str(tmp_path / "b")))
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = zd.plan_rechunk(
            old, target, chunks=(16, 16, 16), shards=(128, 32, 32), max_mem="14MB"
        )
        report = plan.run()
    written = target.per_key("set")
    assert len(written) == 16
    assert target.per_key("set_if").total() == 1  # the document
    assert set(written.values()) == {1}
    assert report.objects == report.stages[-1].actual.writes == 16
    assert report.stages[-1].actual.written == old.nbytes
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], old[...])


PEAK = """
import json, re, sys
from pathlib import Path
import dask
import zarr_dask as zd

def memory(name):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\\s+(\\d+) kB", text)[1]) * 1024

source, target, small = sys.argv[1:]
grids = {"chunks": (64, 64, 64), "shards": (512, 128, 128)}
with dask.config.set(scheduler="threads", num_workers=2):
    zd.rechunk(small, target + ".small", chunks=(8, 64, 64), max_mem="16MB")
    plan = zd.plan_rechunk(source, target, max_mem="1GB", **grids)
    Path("/proc/self/clear_refs").write_text("5")
    idle = memory("VmRSS")
    report = plan.run()
    peak = memory("VmHWM") - idle
actual = [stage.actual for stage in report.stages]
print(json.dumps({
    "peak": peak, "bound": plan.peak, "seconds": report.seconds,
    "decoded": sum(one.decoded for one in actual), "written": sum(one.written for one in actual),
    "requests": sum(one.requests for one in actual),
    "predicted": [plan.costs.decoded, plan.costs.requests], "stages": len(actual),
}))
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_eight_times_the_array_is_eight_times_the_work_in_the_same_memory(tmp_path):
    """1 GiB and 8 GiB of (16, 512, 512) into shards of (512, 128, 128)."""
    slabs_at(tmp_path / "small", (64, 64, 64), (16, 64, 64))
    found = {}
    for name, shape in {"1 GiB": (512, 512, 1024), "8 GiB": (512, 2048, 2048)}.items():
        slabs_at(tmp_path / "a", shape, (16, 512, 512))
        command = [sys.executable, "-c", PEAK, *(str(tmp_path / n) for n in ("a", "b", "small"))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(done.stdout.splitlines()[-1])
        new = zd.open_array(tmp_path / "b")
        for x in range(0, shape[2], 256):
            region = np.s_[0:512, 128:256, x : x + 256]
            assert (new[region] == smooth(region, shape)).all()
        for place in ("a", "b", "b.small"):
            zd.delete(tmp_path / place)
    print(found)
    one, eight = found.values()
    for work in ("decoded", "written", "requests"):
        assert eight[work] == 8 * one[work]
    for each in found.values():
        assert [each["decoded"], each["requests"]] == each["predicted"]
        assert each["peak"] <= each["bound"]
    assert abs(eight["peak"] / one["peak"] - 1) <= 0.1


# --- many chunks --------------------------------------------------------------------------------

MANY = (40_000, 4000, 4000)


def unwritten(place: Path, shape: tuple[int, ...], chunk: tuple[int, ...], **options) -> zd.Array:
    return zd.create_array(place, shape=shape, dtype="f4", chunks=chunk, **options)


@pytest.mark.parametrize(
    ("memory", "staged"), [("4GB", False), ("1GB", True)], ids=["directly", "in stages"]
)
def test_a_plan_of_ten_million_chunks_is_a_small_document(tmp_path, memory, staged):
    old = unwritten(tmp_path / "a", MANY, (1, 4000, 4000))
    chunks = (4000, 20, 20) if staged else (40, 40, 40)
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=chunks, max_mem=memory, threads=1)
    counts = [stage.target.grid.ncells for stage in plan.stages]
    assert max(counts) >= (10**5 if staged else 10**7)
    assert (len(plan.stages) > 1) == staged
    text = plan.to_json()
    assert len(text) <= 20_000
    assert zd.load_plan(text).stages == plan.stages
    assert re.search(r"stage 1: [\d,]+ tasks", plan.explain())
    with pytest.raises(MetadataError):
        zd.plan_rechunk(old, tmp_path / "c", chunks=chunks, codecs=["nothing"], max_mem=memory)
