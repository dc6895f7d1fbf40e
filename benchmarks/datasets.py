"""Twenty things that are done with a dataset, beside `xarray.open_zarr`: processor time and wall.

The dataset is opened anew in each run. The table is of processor time; a line below it is of wall
time, by pairs. `Climatology` is with flox where that is installed. Peaks of memory are those of
processes that do one of the workloads each (`python -m benchmarks.datasets PATH NAME WORKLOAD`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import dask
import numpy as np
import xarray as xr

import zarr_dask as zd
from benchmarks.measure import Case, Contender

__all__ = ["CASES", "WORKLOADS"]

TIMES, LAT, LON = 360, 180, 360
LAYOUTS = {
    "chunks": {"chunks": {"time": 72, "lat": 60, "lon": 90}},
    "shards": {
        "chunks": {"time": 12, "lat": 45, "lon": 90},
        "shards": {"time": 120, "lat": 180, "lon": 360},
    },
}
"""Objects of 1.6 MB, and shards of 31 MB with chunks of 0.2 MB."""
OPEN: dict[str, Callable[..., xr.Dataset]] = {
    "xarray.open_zarr": xr.open_zarr,
    "zarr_dask": zd.open_zarr,
}


def _points(ds: xr.Dataset) -> Any:
    at = np.random.default_rng(0)
    lat = xr.DataArray(at.integers(0, LAT, 200), dims="point")
    lon = xr.DataArray(at.integers(0, LON, 200), dims="point")
    return ds["t"].isel(time=slice(0, 300), lat=lat, lon=lon)


def _above(block: xr.DataArray) -> xr.DataArray:
    return block - block.mean("lon")


def _climatology(ds: xr.Dataset) -> Any:
    return ds["t"].groupby("time.month").mean()


WORKLOADS: dict[str, Callable[[xr.Dataset], Any]] = {
    "open": lambda ds: ds["time"],
    "point-series": lambda ds: ds["t"].isel(lat=91, lon=181),
    "one-step": lambda ds: ds["t"].isel(time=355),
    "box": lambda ds: (
        ds["t"].sel(lat=slice(-30, 30), lon=slice(100, 160)).isel(time=slice(90, 300))
    ),
    "lists": lambda ds: ds["t"].isel(time=range(0, TIMES, 30), lat=[3, 90, 150]),
    "points": _points,
    "mean-time": lambda ds: ds["t"].mean("time"),
    "mean-lat": lambda ds: ds["t"].mean("lat"),
    "mean-lon": lambda ds: ds["t"].mean("lon"),
    "mean-all": lambda ds: ds.mean(),
    "std": lambda ds: ds["t"].std(),
    "weighted": lambda ds: ds["t"].weighted(np.cos(np.deg2rad(ds["lat"]))).mean(("lat", "lon")),
    "masked": lambda ds: ds["t"].where(ds["t"] > 0).sum("time"),
    "climatology": _climatology,
    "anomaly": lambda ds: (ds["t"].groupby("time.month") - _climatology(ds)).std("time"),
    "resample": lambda ds: ds["t"].resample(time="MS").mean(),
    "rolling": lambda ds: ds["t"].rolling(time=5).mean(),
    "coarsen": lambda ds: ds["t"].coarsen(lat=4, lon=4).mean(),
    "difference": lambda ds: ds["t"].diff("time").max("time"),
    "map-blocks": lambda ds: ds["t"].map_blocks(_above, template=ds["t"]).mean(),
    "dataframe": lambda ds: ds["t"].isel(time=slice(0, 24)).to_dataframe()["t"].to_xarray(),
}


def make(path: Path, layout: str) -> None:
    """Write a dataset: a smooth field with noise that half compresses."""
    at = np.random.default_rng(0)
    times = np.datetime64("2000-01-01", "ns") + np.arange(TIMES) * np.timedelta64(1, "D")
    lat, lon = np.linspace(-89.5, 89.5, LAT), np.arange(LON) + 0.5
    smooth = np.sin(lat / 20)[:, None] * np.cos(lon / 30)
    noise = np.round(at.normal(size=(TIMES, LAT, LON)), 1)
    t = (("time", "lat", "lon"), (smooth + noise).astype("f4"))
    ds = xr.Dataset({"t": t}, {"time": times, "lat": lat, "lon": lon})
    zd.write_dataset(ds, path, **LAYOUTS[layout])


def _result(name: str, path: Path, workload: str) -> Any:
    return WORKLOADS[workload](OPEN[name](path)).compute()


@contextmanager
def _case(layout: str, workload: str, root: Path, threads: int) -> Iterator[Case]:
    path = root / f"{layout}.zarr"
    make(path, layout)
    wall: dict[str, list[float]] = {name: [] for name in OPEN}
    results: dict[str, Any] = {}

    def run(name: str) -> tuple[float, Any]:
        begun, used = time.perf_counter(), time.process_time()
        results[name] = _result(name, path, workload)
        wall[name].append(time.perf_counter() - begun)
        return time.process_time() - used, results[name]

    def check(found: Any) -> bool:
        xr.testing.assert_allclose(found[1], results["xarray.open_zarr"], rtol=1e-5, atol=1e-4)
        return True

    def summary() -> str:
        theirs, ours = wall.values()
        ratio = median(b / a for a, b in zip(theirs, ours, strict=True))
        return f"wall by pairs {ratio:.2f}"

    contenders = [
        Contender(
            name,
            partial(run, name),
            check,
            value=lambda found: found[0],
            count=partial(_peak, name, path, workload),
        )
        for name in OPEN
    ]
    title = f"processor time of {workload}, {layout}"
    with dask.config.set(scheduler="threads", num_workers=threads):
        yield Case(title, contenders, 6, reach="1.0", afterwards=summary)


def _peak(name: str, path: Path, workload: str) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.datasets", str(path), name, workload]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"MB at most": json.loads(done.stdout.splitlines()[-1])}


CASES = {
    f"dataset-{workload}-{layout}": partial(_case, layout, workload)
    for workload in WORKLOADS
    for layout in LAYOUTS
}

if __name__ == "__main__":
    _path, _name, _workload = sys.argv[1:]
    with dask.config.set(scheduler="threads", num_workers=2):
        _result(_name, Path(_path), _workload)
    _status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) // 1000 for line in _status if line.startswith("VmHWM")))
