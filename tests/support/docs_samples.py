"""What a page of docs/ needs and does not make itself: names, and data in the current folder."""

import json
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd

NAMES = ("time", "lat", "lon")


def run():
    values = da.arange(10 * 12 * 14, chunks=-1).reshape(10, 12, 14).rechunk((5, 6, 7))
    zd.to_zarr(values, "run.zarr", "temperature", dimension_names=NAMES)


def shards():
    values = da.arange(10 * 12 * 14, chunks=-1).reshape(10, 12, 14)
    zd.to_zarr(
        values.rechunk((1, 6, 7)),
        "run.zarr",
        "temperature",
        chunks=(1, 3, 7),
        shards=(1, 6, 7),
        dimension_names=NAMES,
    )


def two_fields():
    field = da.ones((20, 8, 8), chunks=(1, 8, 8))
    zd.to_zarr([field, 2 * field], "run.zarr", ["u", "v"], dimension_names=NAMES)


def maps():
    zd.to_zarr(
        da.ones((200, 20, 8), chunks=(1, 20, 8), dtype="f4"), "maps.zarr", dimension_names=NAMES
    )


def era5(*urls):
    def prepare():
        for url in urls:
            days = np.arange(4)
            t = da.ones((4, 8, 8), chunks=(2, 8, 8), dtype="f4")
            units = {"units": "days since 2020-01-01"}
            zd.to_zarr([t, 280 * t], url, ["t", "t2m"], dimension_names=NAMES)
            zd.to_zarr(da.from_array(days), url, "time", dimension_names=["time"], attributes=units)
            zd.consolidate(url)

    return prepare


def old(*urls):
    def prepare():
        for url in urls:
            zd.to_zarr(da.arange(4, chunks=2), url, "a", format="v2")

    return prepare


def run_7():
    values = da.ones((4, 4), chunks=2)
    zd.to_zarr(values, "run-7.zarr", "a")


def pair():
    zd.to_zarr(da.ones(6, chunks=3), "a.zarr")
    zd.to_zarr(da.ones(6, chunks=2), "b.zarr")


def remote_array():
    zd.to_zarr(da.ones(4), "memory://docs/a.zarr", mode="w")


def image(*urls, **options):
    def prepare():
        pixels = np.arange(2 * 2 * 64 * 64, dtype="u2").reshape(2, 2, 64, 64)
        cells = (pixels[0] // 500).astype("u2")
        for url in urls:
            zd.ome.write(pixels, url, axes="czyx", scale={"y": 1.0, "x": 1.0}, levels=2, **options)
        return {"cells": cells}

    return prepare


def plate():
    pixels = np.ones((1, 64, 64), "u2")
    zd.ome.write_plate({"A/1": pixels, "B/3": pixels}, "plate.zarr", axes="cyx", version="0.4")


def array():
    zd.to_zarr(da.ones((64, 64), chunks=32, dtype="u2"), "array.zarr")


def repository():
    icechunk = pytest.importorskip("icechunk")
    maps()
    icechunk.Repository.create(icechunk.local_filesystem_storage("repo"))
    return {
        "repository": icechunk.Repository.create(icechunk.in_memory_storage()),
        "x": da.ones((8, 4), chunks=(2, 4)),
    }


def references():
    """Of a file that holds what a store would."""
    np.arange(6, dtype="<f4").tofile("raw.bin")
    document = {"zarr_format": 2, "shape": [6], "chunks": [3], "dtype": "<f4", "order": "C"}
    document |= dict.fromkeys(("compressor", "filters", "fill_value"))
    found = {
        ".zgroup": '{"zarr_format": 2}',
        "temperature/.zarray": json.dumps(document),
        "temperature/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}',
        "temperature/0": ["raw.bin", 0, 12],
        "temperature/1": ["raw.bin", 12, 12],
    }
    Path("refs.json").write_text(json.dumps({"version": 1, "refs": found}))
    arrow, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".parquet"))
    tables = Path("bucket/refs.parq")
    (tables / "temperature").mkdir(parents=True)
    documents = {key: json.loads(text) for key, text in found.items() if "/." in f"/{key}"}
    (tables / ".zmetadata").write_text(json.dumps({"metadata": documents, "record_size": 2}))
    place = {"path": [str(Path("raw.bin").resolve())] * 2, "offset": [0, 12], "size": [12, 12]}
    table = arrow.table({**place, "raw": arrow.array([None, None], arrow.binary())})
    parquet.write_table(table, tables / "temperature/refs.0.parq")


def scratch():
    Path("scratch").mkdir()


def scheduler():
    Path("scheduler.json").touch()


def datasets():
    xr = pytest.importorskip("xarray")
    pytest.importorskip("zarr_dask.xarray.accessor")

    def days(first, count):
        time = np.datetime64("2020-01-01") + np.arange(first, first + count)
        values = da.arange(count * 8, chunks=40).reshape(count, 8) + 8.0 * first
        return xr.Dataset({"t2m": (("time", "lat"), values)}, {"time": time.astype("M8[ns]")})

    ds = days(0, 31)
    named = {"ds": ds, "february": days(31, 29), "part": ds.isel(time=slice(3, 9))}
    return {**named, "template": days(0, 60)}


def stack():
    tifffile = pytest.importorskip("tifffile")
    values = np.arange(2 * 300 * 300, dtype="u2").reshape(2, 300, 300)
    tifffile.imwrite("stack.ome.tif", values, ome=True, metadata={"axes": "CYX"})


def files():
    """Make two NetCDF files that differ in nothing but their days."""
    whole = datasets()["ds"]
    whole.time.encoding["units"] = "days since 2020-01-01"
    Path("run").mkdir()
    for name, start in (("a", 0), ("b", 15)):
        ds = whole.isel(time=slice(start, start + 15))
        ds.to_netcdf(f"run/{name}.nc", engine="h5netcdf")


SAMPLES = {
    "howto/write-dataset.md": (datasets,),
    "reference/ingest.md": (files,),
    "reference/xarray-writing.md": (datasets,),
    "README": (files, stack),
    "index.md": (files, stack),
    "explanation/plans.md": (maps,),
    "howto/cluster.md": (scheduler,),
    "howto/compare.md": (pair,),
    "howto/consolidate.md": (run,),
    "howto/copy.md": (era5("era5.zarr"), run_7, old("old.zarr")),
    "howto/credentials.md": (era5("bucket/era5.zarr"),),
    "howto/icechunk.md": (repository,),
    "howto/memory.md": (maps,),
    "howto/migrate.md": (old("old.zarr", "older.zarr"),),
    "howto/object-stores.md": (era5("bucket/era5.zarr"),),
    "howto/ome-labels.md": (image("image.zarr"),),
    "howto/ome-look.md": (image("image.zarr"),),
    "howto/ome-tiff.md": (stack,),
    "howto/ome-versions.md": (image("image.zarr", version="0.4"), plate),
    "howto/ome-write.md": (array,),
    "howto/open.md": (run,),
    "howto/points.md": (shards,),
    "howto/rechunk-computed.md": (scratch,),
    "howto/rechunk.md": (maps, two_fields),
    "howto/references.md": (files, references),
    "howto/slurm.md": (maps,),
    "howto/unreliable-network.md": (remote_array,),
    "howto/verify.md": (run,),
    "howto/xarray.md": (era5("era5.zarr", "runs.zarr", "year-1.zarr", "year-2.zarr"),),
    "reference/dask.md": (run,),
    "reference/ome.md": (image("image.zarr"),),
    "reference/plan-files.md": (maps,),
    "reference/selecting.md": (run,),
}
"""Functions that prepare a page, by its name below docs/."""
