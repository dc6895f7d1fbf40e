"""What the planner says of a petabyte: which plan, how long, how many requests, what breaks first.

Only arithmetic: nothing is read or written. ``python -m benchmarks.scale`` prints the table of
docs/developers/scale.md.
"""

from __future__ import annotations

from dataclasses import replace

from zarr_dask.grid.grid import Grid, Shape
from zarr_dask.jobs.engine.cost_model import Layout, StagePlan
from zarr_dask.jobs.engine.plan import format_bytes
from zarr_dask.jobs.engine.predict import CostModel, seconds
from zarr_dask.jobs.rechunk.planner import alternatives

STORE = CostModel(
    request=0.03, read=90e6, write=60e6, limit=50_000, listing=1e-4, task=5e-3, schedule=6e-4
)
"""An object store in the same region, spread over some prefixes; per thread."""
RATIO = 0.5  # stored bytes per decoded byte
CODEC = {"decode": 3.0e9, "encode": 0.6e9, "ratio": RATIO, "in_flight": 48 << 20}
BETWEEN = (
    {"decode": 16e9, "encode": 30e9, "in_flight": 48 << 20},
    {
        "decode": 4.2e9,
        "encode": 2.2e9,
        "ratio": 0.6,
        "compressed": True,
        "in_flight": 48 << 20,
    },  # blosc-lz4
)
"""How intermediate arrays may be encoded."""
MEMORY = 6 * 10**9  # per worker process of one thread

JOBS: dict[str, tuple[Shape, Shape, tuple[Shape, Shape]]] = {
    "maps to series": (
        (350_000, 16_000, 45_000),
        (1, 2000, 2500),
        ((8760, 50, 50), (17_520, 100, 100)),
    ),
    "frames to cubes": (
        (1_000_000, 16_384, 16_384),
        (1, 4096, 4096),
        ((64, 128, 128), (512, 512, 512)),
    ),
}


def layouts(job: str) -> tuple[Layout, Layout]:
    """Source and target of a job of about a petabyte, of float32 values."""
    shape, chunk, (inner, shard) = JOBS[job]
    source = Layout(Grid.regular(shape, chunk), chunk, 4, **CODEC)
    return source, Layout(Grid.regular(shape, shard), inner, 4, **CODEC)


def limits(stage: StagePlan, threads: int, model: CostModel) -> dict[str, float]:
    """Seconds of a stage, if only one thing took time."""
    without = replace(model, schedule=0.0, limit=float("inf"))
    requests = stage.costs.reads + stage.costs.writes
    return {
        "work of the workers": seconds(stage, threads, without),
        "tasks through one scheduler": stage.tasks * model.schedule,
        "requests that the store answers": requests / model.limit,
    }


def main() -> None:
    """Print the plans for some numbers of workers."""
    for job in JOBS:
        source, target = layouts(job)
        total = float(source.grid.shape[0]) * source.grid.shape[1] * source.grid.shape[2] * 4
        print(f"\n{job}: {source.grid.shape} float32, {format_bytes(total)}")
        print(f"  {source.chunk} -> {target.chunk} in shards {target.object_shape}")
        for workers in (100, 1000, 10_000):
            between = [Layout(target.grid, target.object_shape, 4, **how) for how in BETWEEN]
            ways = alternatives(source, target, MEMORY, workers, STORE, between)
            best = ways[0]
            others = ", ".join(f"{way.name} {way.seconds / 3600:.1f} h" for way in ways[1:])
            print(f"  {workers:>6,} workers: {best.name}, {best.seconds / 3600:.1f} h ({others})")
            for number, stage in enumerate(best.stages, 1):
                costs = stage.costs
                bounds = limits(stage, workers, STORE)
                slowest = max(bounds, key=bounds.__getitem__)
                print(
                    f"     stage {number}: {stage.tasks:,} tasks of {stage.box}, "
                    f"{format_bytes(stage.peak)} each; {costs.reads + costs.writes:,} requests, "
                    f"decodes {format_bytes(costs.decoded)}; bound by the {slowest}"
                )


if __name__ == "__main__":
    main()
