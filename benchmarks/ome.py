"""An OME-Zarr pyramid of 8192 x 8192 x 16 uint16 (2 GiB) with shards, on two processes.

The same dask array, whose blocks are the shards, is written by each contender with four coarser
levels of means of 2 x 2 pixels. `SIDE` (``ZARR_DASK_BENCH_SIDE``) makes it smaller. ngff-zarr's
writer cannot be sent to a cluster; it runs on two threads of one process, which saves it the
transfers.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client

import zarr_dask as zd
from benchmarks.measure import Case, Contender
from benchmarks.rechunk import _cluster, memory_of_worker, reset_peak

__all__ = ["CASES"]

SIDE = int(os.environ.get("ZARR_DASK_BENCH_SIDE", "8192"))
DEPTH, BLOCK, CHUNK, LEVELS = 16, 1024, 128, 5
AXES = "zyx"


@lru_cache(maxsize=1)
def _tile() -> np.ndarray:
    """Noise of a camera: twelve bits, of which the lower ones do not compress."""
    noise = np.random.default_rng(1).normal(300, 20, (DEPTH, BLOCK, BLOCK))
    return noise.astype("u2")


def _fill(log: str, block_info=None) -> np.ndarray:
    """One block: noise on a slope; it leaves a line in a file where one is named."""
    ((_, _), (top, _), (left, _)) = block_info[None]["array-location"]
    if log:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{top} {left}\n".encode())
        os.close(descriptor)
    return _tile() + np.uint16((top + left) // 16)


def image(log: str = "") -> da.Array:
    """The pixels; each block is made by its own task alone."""
    along = (min(BLOCK, SIDE),) * max(SIDE // BLOCK, 1)
    return da.map_blocks(_fill, log, chunks=((DEPTH,), along, along), dtype="u2")


_CODECS = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {
        "name": "blosc",
        "configuration": {
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": 2,
            "blocksize": 0,
        },
    },
]
"""Those that ome-zarr is given, too; ngff-zarr takes its own."""


def _own(url: Path, x: da.Array) -> None:
    _plan(url, x).run()


def _plan(url: Path, x: da.Array) -> zd.ome.plan.ImageWritePlan:
    return zd.ome.plan_write(
        x,
        url,
        axes=AXES,
        chunks=(DEPTH, CHUNK, CHUNK),
        shards=(DEPTH, BLOCK, BLOCK),
        codecs=_CODECS,
        factors=(1, 2, 2),
        levels=LEVELS,
    )


def _ome_zarr(url: Path, x: da.Array) -> None:
    from ome_zarr.format import FormatV05
    from ome_zarr.scale import Methods
    from ome_zarr.writer import write_image
    from zarr.codecs import BloscCodec

    codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=2)
    write_image(
        x,
        str(url),
        axes=AXES,
        fmt=FormatV05(),
        scale_factors=[{"z": 1, "y": 2**i, "x": 2**i} for i in range(1, LEVELS)],
        method=Methods.LOCAL_MEAN,
        storage_options={
            "chunks": (DEPTH, CHUNK, CHUNK),
            "shards": (DEPTH, BLOCK, BLOCK),
            "compressors": [codec],
        },
    )


def _ngff_zarr(url: Path, x: da.Array) -> None:
    import ngff_zarr

    with dask.config.set(scheduler="threads", num_workers=2):
        found = ngff_zarr.to_multiscales(
            ngff_zarr.to_ngff_image(x, dims=list(AXES)),
            scale_factors=[{"z": 1, "y": 2**i, "x": 2**i} for i in range(1, LEVELS)],
            chunks={"z": DEPTH, "y": CHUNK, "x": CHUNK},
            method=ngff_zarr.Methods.DASK_BIN_SHRINK,
        )
        shards = {"z": 1, "y": BLOCK // CHUNK, "x": BLOCK // CHUNK}
        ngff_zarr.to_ngff_zarr(str(url), found, version="0.5", chunks_per_shard=shards)


WRITERS = {"zarr_dask": _own, "ome-zarr write_image": _ome_zarr, "ngff-zarr": _ngff_zarr}


def _is_right(url: Path, exact: bool) -> bool:
    """Whether a strip of each level is the mean of the one before; others may round otherwise."""
    group = zarr.open_group(url, mode="r")
    datasets = group.attrs["ome"]["multiscales"][0]["datasets"]
    levels = [group[one["path"]] for one in datasets]
    for fine, coarse in pairwise(levels):
        rows = min(256, fine.shape[1])
        strip = fine[:, :rows].astype("f8")
        means = strip.reshape(DEPTH, rows // 2, 2, -1, 2).mean(axis=(2, 4))
        found = coarse[:, : rows // 2]
        if np.abs(found - means).max() > (0.5 if exact else 1.0):
            return False
    return len(levels) == LEVELS


@contextmanager
def _case(root: Path, threads: int) -> Iterator[Case]:
    """Always on two worker processes of one thread each."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
    target = root / "image.zarr"

    def clear() -> None:
        shutil.rmtree(target, ignore_errors=True)

    def count(name: str) -> dict[str, int]:
        """How often the blocks of level 0 are computed."""
        log = root / "log"
        log.unlink(missing_ok=True)
        WRITERS[name](target, image(str(log)))
        made = log.read_bytes().splitlines()
        return {"blocks": len(set(made)), "computed": len(made)}

    with _cluster():
        contenders = [
            Contender(
                name,
                partial(write, target, image()),
                lambda _, name=name: _is_right(target, name == "zarr_dask"),
                clear,
                partial(count, name),
            )
            for name, write in WRITERS.items()
        ]
        title = f"OME-Zarr 0.5, {SIDE} x {SIDE} x {DEPTH} uint16, {LEVELS} levels, 2 processes"
        yield Case(
            title,
            contenders,
            2,
            single=True,
            unit="s",
            scale=1.0,
            reach="half the time of the others; each block computed once",
            afterwards=lambda: _peak(root),
        )


CASES = {"ome-pyramid": _case}


def _peak(root: Path) -> str:
    """What the workers' memory grew by, in new workers, beside what the plan says."""
    with _cluster() as client:
        _warm_up(client, root)
        idle = client.run(reset_peak)
        plan = _plan(root / "again.zarr", image())
        plan.run()
        peak = client.run(memory_of_worker, "VmHWM")
    grown = ", ".join(f"{(peak[one] - idle[one]) / 1e6:.0f} MB" for one in idle)
    return f"highest memory above idle: {grown}; by the plan {plan.peak / 1e6:.0f} MB"


def _warm_up(client: Client, root: Path) -> None:
    """What idle workers that have written an image before look like."""
    values = np.arange(256 * 256, dtype="u2").reshape(256, 256)
    x = da.from_array(values, chunks=64, inline_array=True)
    zd.ome.write(x, root / "small.zarr", axes="yx", chunks=32, levels=2, client=client)
    client.run(_tile)
