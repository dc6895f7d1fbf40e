"""Maps, one per day, become time series, one per place, in bounded memory.

The plan says what will be done before it is done; on a cluster, pass ``client=`` to `plan.run`.

    python examples/rechunk.py [FOLDER]
"""

import sys
import tempfile

import numpy as np

import zarr_dask as zd

SHAPE = (365, 180, 360)


def main(folder: str) -> None:
    maps = zd.create_array(
        f"{folder}/maps.zarr",
        shape=SHAPE,
        dtype="float32",
        chunks=(1, 180, 360),
        dimension_names=("time", "lat", "lon"),
        attributes={"units": "degC"},
        overwrite=True,
    )
    day = np.arange(SHAPE[0], dtype="float32")[:, None, None]
    latitude = np.linspace(-90, 90, SHAPE[1], dtype="float32")[:, None]
    maps[...] = 30 - abs(latitude) / 2 + 10 * np.sin(2 * np.pi * day / 365) * latitude / 90

    plan = zd.plan_rechunk(
        maps,
        f"{folder}/series.zarr",
        chunks={"time": -1, "lat": 20, "lon": 20},
        max_mem="200MB",
        overwrite=True,
    )
    print(plan)
    plan.run()

    series = zd.open_array(f"{folder}/series.zarr")
    year = series[:, 150, 10]
    print(f"one chunk holds a year at one place: {year.min():.1f} to {year.max():.1f} degC")
    print("equal:", np.array_equal(series[...], maps[...]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1] if len(sys.argv) > 1 else scratch)
