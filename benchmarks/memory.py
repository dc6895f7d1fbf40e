"""Peak memory of reading one block, each contender in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

import zarr_dask as zd
from benchmarks.fields import LayoutCase, field
from benchmarks.measure import Case, Contender

__all__ = ["CASES", "OPEN", "SCRIPT"]

N, BLOCK = 512, 256

OPEN = {
    "zarr_dask": "import zarr_dask as zd; opened = zd.from_zarr",
    "dask + zarr-python": """
import zarr, dask.array as da

def opened(path):
    stored = zarr.open_array(path, mode="r")
    return da.from_zarr(stored, chunks=stored.shards or stored.chunks)
""",
}
SCRIPT = """
import json, sys
from pathlib import Path

path, small, side = sys.argv[1], sys.argv[2], int(sys.argv[3])

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

{open}
opened(small).compute(scheduler="sync")  # all is imported, and codecs have their tables
array = opened(path)
Path("/proc/self/clear_refs").write_text("5")
idle = memory("VmRSS")
kept = array[:side, :side, :side].persist(scheduler="sync")  # compute() would copy the one block
block = dict(kept.__dask_graph__())[(kept.name, 0, 0, 0)]
print(json.dumps([memory("VmHWM") - idle, float(block.sum(dtype="f8"))]))
"""


@contextmanager
def _case(layout: LayoutCase, root: Path, threads: int) -> Iterator[Case]:
    path = root / "field.zarr"
    values = field(N)
    shard = None if layout.shard is None else (layout.shard,) * 3
    made = zd.create_array(
        path, shape=values.shape, dtype="f4", codecs=layout.codecs, chunks=(layout.chunk,) * 3,
        shards=shard,
    )  # fmt: skip
    made[...] = values
    small = zd.create_array(root / "small.zarr", shape=(8,), dtype="f4", codecs=layout.codecs)
    small[...] = 1
    expected = values[:BLOCK, :BLOCK, :BLOCK].sum(dtype="f8")

    def run(name: str) -> list[float]:
        script = SCRIPT.format(open=OPEN[name])
        command = [sys.executable, "-c", script, str(path), str(root / "small.zarr"), str(BLOCK)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    def check(found: object) -> bool:
        return bool(np.isclose(found[1], expected, rtol=1e-12))

    def value(found: object) -> float:
        return found[0]

    objects = sorted((path / "c").rglob("*"), key=lambda file: file.stat().st_size)
    block, largest = 4 * BLOCK**3 / 1e6, objects[-1].stat().st_size / 1e6
    contenders = [Contender(name, partial(run, name), check, value=value) for name in OPEN]
    title = f"peak memory of one {BLOCK}^3 float32 block above idle, {layout.name}"
    reach = f"{block + largest + 10:.0f} MB: the block, one stored object and 10 MB"
    yield Case(title, contenders, 2, unit="MB", scale=1e-6, reach=reach)


CASES: dict[str, Callable] = {
    f"memory-{layout.slug}": partial(_case, layout)
    for layout in (
        LayoutCase("blosc, 32^3 chunks in 256^3 shards", "blosc", 32, 256),
        LayoutCase("zstd, 256^3 chunks", "zstd", 256, None),
    )
}
