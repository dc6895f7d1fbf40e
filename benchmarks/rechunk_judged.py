"""Rechunking with little memory, into shards, on many threads, and plans of many chunks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import zarr_dask as zd
from benchmarks.fields import field
from benchmarks.measure import Case, Contender
from benchmarks.rechunk import memory_of_worker, reset_peak, warm_up

__all__ = ["CASES"]

LIMIT = 350 << 20
LARGE = 16384
MANY = (40_000, 4000, 4000)


@contextmanager
def _cluster(workers: int, threads: int, limit: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=limit,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


class Run:
    """A rechunking on a cluster, and what it took of memory.

    Parameters
    ----------
    client
        Of the cluster.
    source, target, options
        As for `zarr_dask.rechunk`.
    """

    def __init__(self, client: Any, source: Path, target: Path, **options: Any) -> None:
        self.client, self.source, self.target, self.options = client, source, target, options
        self.peaks: list[int] = []
        self.plan: Any = None
        self.report: Any = None

    def clear(self) -> None:
        """Remove the target, and begin the peak of the workers anew."""
        shutil.rmtree(self.target, ignore_errors=True)
        self.client.run(warm_up, str(self.source))
        self.idle = self.client.run(reset_peak)

    def __call__(self) -> int:
        self.plan = zd.plan_rechunk(self.source, self.target, client=self.client, **self.options)
        self.report = self.plan.run(self.client)
        found = self.client.run(memory_of_worker, "VmHWM")
        self.peaks.append(max(found[worker] - self.idle[worker] for worker in found))
        return max(self.peaks)

    def check(self, _: object) -> bool:
        """Whether the values are equal, and each object was written once."""
        old, new = zd.open_array(self.source), zd.open_array(self.target)
        step = max(old.shape[0] // 16, 1)
        parts = (np.s_[start : start + step] for start in range(0, old.shape[0], step))
        once = self.report.stages[-1].actual.writes == new.meta.grid.ncells
        return once and all(np.array_equal(old[part], new[part]) for part in parts)

    def said(self) -> str:
        """Memory, requests and decoded bytes: what was planned and what was counted."""
        actual = [stage.actual for stage in self.report.stages]
        costs = self.plan.costs
        return (
            f"highest memory above idle {max(self.peaks) / 1e6:.0f} MB, by the plan "
            f"{self.plan.peak / 1e6:.0f} MB, max_mem {self.plan.max_mem / 1e6:.0f} MB; "
            f"{len(actual)} stages; requests {sum(one.requests for one in actual)} of "
            f"{costs.requests}, decoded {sum(one.decoded for one in actual) / 1e6:.0f} MB of "
            f"{costs.decoded / 1e6:.0f} MB; {self.report.repeated} tasks begun once more"
        )


@contextmanager
def _all_to_all(root: Path, threads: int) -> Iterator[Case]:
    """1 GiB; it takes 2 GiB on the disk, and as much again between the stages."""
    source = zd.create_array(root / "source", shape=(LARGE, LARGE), dtype="f4", chunks=(512, LARGE))
    block = field(512)[:32].reshape(512, LARGE)
    for start in range(0, LARGE, 512):
        source[start : start + 512] = block + start
    with _cluster(2, 1, LIMIT) as client:
        run = Run(client, root / "source", root / "target", chunks=(LARGE, 512))
        title = "1 GiB float32 (512, 16384) -> (16384, 512), 2 workers of 350 MiB"
        own = Contender("zarr_dask", run, run.check, run.clear)
        yield Case(title, [own], 2, reach="done", afterwards=run.said)


@contextmanager
def _into_shards(root: Path, threads: int) -> Iterator[Case]:
    values = field(512)
    source = zd.create_array(root / "source", shape=values.shape, dtype="f4", chunks=(16, 512, 512))
    source[...] = values
    grids = {"chunks": (64, 64, 64), "shards": (512, 128, 128), "max_mem": "256MB"}
    with _cluster(2, 1, 4 * 10**9) as client:
        run = Run(client, root / "source", root / "target", **grids)
        title = "512 MiB float32 (16, 512, 512) -> shards (512, 128, 128) of (64, 64, 64)"
        own = Contender("zarr_dask", run, run.check, run.clear)
        yield Case(title, [own], 3, reach="each shard written once", afterwards=run.said)


@contextmanager
def _four_threads(root: Path, threads: int) -> Iterator[Case]:
    values = field(512)
    source = zd.create_array(root / "source", shape=values.shape, dtype="f4", chunks=(4, 512, 512))
    source[...] = values
    with _cluster(1, 4, 4 * 10**9) as client:
        run = Run(client, root / "source", root / "target", chunks=(512, 32, 32), max_mem="256MB")
        own = Contender("zarr_dask", run, run.check, run.clear, value=float)
        yield Case(
            "highest memory above idle of a worker with 4 threads, max_mem 256 MB",
            [own],
            3,
            unit="MB",
            scale=1e-6,
            reach="256 MB",
            afterwards=run.said,
        )


@contextmanager
def _many(chunks: tuple[int, ...], memory: str, root: Path, threads: int) -> Iterator[Case]:
    source = zd.create_array(root / "source", shape=MANY, dtype="f4", chunks=(1, *MANY[1:]))
    grids = {"chunks": chunks, "max_mem": memory, "threads": 1}

    def run() -> Any:
        return zd.plan_rechunk(source, root / "target", **grids)

    def count() -> dict[str, int]:
        plan = run()
        objects = max(stage.target.grid.ncells for stage in plan.stages)
        return {
            "stages": len(plan.stages),
            "objects": objects,
            "bytes of JSON": len(plan.to_json()),
        }

    own = Contender("zarr_dask", run, lambda plan: len(plan.to_json()) <= 20_000, count=count)
    yield Case(f"plan {MANY} to chunks of {chunks}", [own], 5, reach="1000 ms, 20 kB")


CASES = {
    "rechunk-all-to-all": _all_to_all,
    "rechunk-into-shards": _into_shards,
    "rechunk-4-threads": _four_threads,
    "plan-ten-million": partial(_many, (40, 40, 40), "4GB"),
    "plan-ten-million-staged": partial(_many, (40, 40, 40), "400MB"),
}
