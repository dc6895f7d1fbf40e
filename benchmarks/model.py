"""Does the cost model order the ways to lay an array out anew as runs do?

``python -m benchmarks.model`` carries out every alternative of some plans, each forced, on one
thread of this process, and prints predicted and measured seconds, the order of both, and what the
choice of the model costs compared with the best. ``--cpu`` measures processor time, which says
more on a machine that has other things to do. The values are those of `benchmarks.fields`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import dask
import numpy as np

import zarr_dask as zd
from benchmarks.fields import field

__all__ = ["JOBS", "Job", "Tried", "tried"]

MB = 10**6
N = 256  # 67 MB


@dataclass(frozen=True)
class Job:
    """A source, a target and a bound of memory."""

    name: str
    source: dict[str, Any]
    target: dict[str, Any]
    max_mem: int
    codec: str | None = "blosc"

    def codecs(self) -> list[Any] | None:
        """None for the default, which is blosc."""
        if self.codec == "blosc":
            return None
        if self.codec is None:
            return []
        level = {"zstd": {"level": 1, "checksum": False}, "gzip": {"level": 1}}[self.codec]
        return [{"name": self.codec, "configuration": level}]


SLABS = {"chunks": (1, N, N)}
THICK = {"chunks": (8, N, N)}
SERIES = {"chunks": (N, 16, 16)}
CUBES = {"chunks": (32, 32, 32)}
SHARDS = {"chunks": (16, 16, 16), "shards": (128, 64, 64)}
JOBS = [
    Job("slabs to series, 8 MB", SLABS, SERIES, 8 * MB),
    Job("slabs to series, 24 MB", SLABS, SERIES, 24 * MB),
    Job("slabs to series, zstd, 8 MB", SLABS, SERIES, 8 * MB, "zstd"),
    Job("slabs to series, zstd, 24 MB", SLABS, SERIES, 24 * MB, "zstd"),
    Job("slabs to series, gzip, 12 MB", SLABS, SERIES, 12 * MB, "gzip"),
    Job("slabs to series, uncompressed, 8 MB", SLABS, SERIES, 8 * MB, None),
    Job("thick slabs to series, 12 MB", THICK, SERIES, 12 * MB),
    Job("series to slabs, 8 MB", SERIES, SLABS, 8 * MB),
    Job("series to slabs, zstd, 12 MB", SERIES, SLABS, 12 * MB, "zstd"),
    Job("slabs to shards, 16 MB", SLABS, SHARDS, 16 * MB),
    Job("cubes to slabs, 8 MB", CUBES, SLABS, 8 * MB),
    Job("rows to columns, 12 MB", {"chunks": (N, 1, N)}, {"chunks": (N, N, 1)}, 12 * MB),
]


@dataclass(frozen=True)
class Tried:
    """One alternative: what was said, what was measured."""

    name: str
    predicted: float
    measured: float


def tried(job: Job, root: Path, rounds: int, clock: Callable[[], float]) -> list[Tried]:
    """Every alternative of a job, the one that the model chooses first."""
    values = field(512)[:N, :N, :N]
    old = zd.create_array(
        root / "a", shape=values.shape, dtype="f4", codecs=job.codecs(), **job.source
    )
    old[...] = values
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(
            root / "a", root / "b", max_mem=job.max_mem, overwrite=True, **job.target
        )
        best = [float("inf")] * len(plan.candidates)
        for _ in range(rounds + 1):  # the first warms up
            for number, way in enumerate(plan.candidates):
                begun = clock()
                replace(plan, stages=way.stages).run()
                best[number] = min(best[number], clock() - begun)
        if not np.array_equal(zd.open_array(root / "b")[...], values):
            raise RuntimeError(f"{job.name}: values are wrong")
    shutil.rmtree(root / "a")
    shutil.rmtree(root / "b")
    return [
        Tried(way.name, way.seconds, seconds)
        for way, seconds in zip(plan.candidates, best, strict=True)
    ]


def _in_order(ways: list[Tried]) -> tuple[int, int]:
    """Pairs of alternatives that both order alike, and all pairs that differ by a tenth or more."""
    pairs = [
        (a, b)
        for a, b in combinations(ways, 2)
        if max(a.measured, b.measured) > 1.1 * min(a.measured, b.measured)
    ]
    alike = [(a.predicted < b.predicted) == (a.measured < b.measured) for a, b in pairs]
    return sum(alike), len(pairs)


def main() -> None:
    """Print the table of docs/developers/scale.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model", description=__doc__)
    parser.add_argument("--only", default="", help="jobs whose name holds this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="processor time of this process")
    parser.add_argument("--dir", type=Path, help="where the data go; a temporary folder by default")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    alike = pairs = 0
    for job in JOBS:
        if options.only not in job.name:
            continue
        with tempfile.TemporaryDirectory(prefix="zarr-dask-model-", dir=options.dir) as folder:
            ways = tried(job, Path(folder), options.rounds, clock)
        fastest = min(way.measured for way in ways)
        print(f"\n{job.name}: the choice takes {ways[0].measured / fastest:.2f} x the best")
        for way in ways:
            print(
                f"  {way.name:<40} predicted {way.predicted:6.2f} s  measured {way.measured:6.2f} s"
            )
        one, of = _in_order(ways)
        alike, pairs = alike + one, pairs + of
        print(f"  {one} of {of} pairs in the same order", flush=True)
    print(f"\nall: {alike} of {pairs} pairs in the same order")


if __name__ == "__main__":
    main()
