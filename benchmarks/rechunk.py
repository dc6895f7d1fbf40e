"""(4, 512, 512) to (512, 32, 32) on two processes: 512 MiB of float32, blosc-lz4."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from operator import truediv
from pathlib import Path
from statistics import median

import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster
from numcodecs import blosc
from zarr.codecs import BloscCodec

import zarr_dask as zd
from benchmarks.fields import field
from benchmarks.measure import Case, Contender

__all__ = ["CASES", "memory_of_worker", "reset_peak", "warm_up"]

N, MAX_MEM, STRIP = 512, "256MB", 128
_CODEC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4",
        "clevel": 5,
        "shuffle": "shuffle",
        "typesize": 4,
        "blocksize": 0,
    },
}


@contextmanager
def _case(root: Path, threads: int) -> Iterator[Case]:
    """Always on two worker processes of one thread each."""
    logging.getLogger("distributed").setLevel(logging.ERROR)  # p2p reports every shuffle
    title = f"rechunk {N}^3 float32 (4,512,512) -> (512,32,32), 2 processes, max_mem {MAX_MEM}"
    values = field(N)
    source = root / "source.zarr"
    made = zd.create_array(
        source, shape=values.shape, dtype="f4", chunks=(4, N, N), codecs=[_CODEC]
    )
    made[...] = values
    # the floor's processes come first: those of a cluster return freed memory at once, which costs
    with get_context("forkserver").Pool(2) as pool, _cluster() as client:
        pool.map(abs, range(2))
        contenders = _contenders(source, root / "target.zarr", values, client, pool)

        def afterwards() -> str:
            _, own, p2p, _ = contenders
            longer = median(map(truediv, p2p.results, own.results))
            return (
                f"p2p takes {longer:.1f} times as long as zarr_dask (to reach: 5), pair by pair; "
                f"highest memory above idle: {_peak(source, root)}"
            )

        reach = "1.40 x floor"
        yield Case(title, contenders, 3, reach=reach, afterwards=afterwards)


CASES = {"rechunk": _case}


@contextmanager
def _cluster() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit="4GB",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _contenders(source: Path, target: Path, values: np.ndarray, client: Client, pool) -> list:
    def clear() -> None:
        shutil.rmtree(target, ignore_errors=True)

    def check(_: object) -> bool:
        return bool(np.array_equal(zarr.open_array(target, mode="r")[...], values))

    def floor() -> None:
        zd.create_array(target, shape=values.shape, dtype="f4", chunks=(N, 32, 32), codecs=[_CODEC])
        strips = [(source, target, y) for y in range(0, N, STRIP)]
        pool.starmap(_copy_strip, strips, chunksize=1)

    def own() -> None:
        zd.rechunk(source, target, chunks=(N, 32, 32), max_mem=MAX_MEM, client=client)

    def peer(method: str) -> None:
        array = da.from_zarr(zarr.open_array(source, mode="r")).rechunk((N, 32, 32), method=method)
        codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
        array.to_zarr(str(target), compressors=codec)

    return [
        Contender("floor", floor, check, clear),
        Contender("zarr_dask", own, check, clear),
        Contender("dask p2p + to_zarr", lambda: peer("p2p"), check, clear),
        Contender("dask tasks + to_zarr", lambda: peer("tasks"), check, clear),
    ]


def _copy_strip(source: Path, target: Path, start: int) -> None:
    """One strip of (512, 128, 512): decode every source chunk, keep a part, write the targets."""
    strip = np.empty((N, STRIP, N), "f4")
    scratch = np.empty((4, N, N), "f4")
    for t in range(0, N, 4):
        blosc.decompress((source / f"c/{t // 4}/0/0").read_bytes(), scratch)
        strip[t : t + 4] = scratch[:, start : start + STRIP]
    for y in range(0, STRIP, 32):
        for x in range(0, N, 32):
            body = np.ascontiguousarray(strip[:, y : y + 32, x : x + 32])
            path = target / f"c/0/{(start + y) // 32}/{x // 32}"
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.part")
            temporary.write_bytes(blosc.compress(body, b"lz4", 5, 1, 0))
            temporary.replace(path)


def _peak(source: Path, root: Path) -> str:
    """What the workers' memory grew by during one more run, in new workers."""
    with _cluster() as client:
        client.run(warm_up, str(source))
        idle = client.run(reset_peak)
        zd.rechunk(source, root / "again.zarr", chunks=(N, 32, 32), max_mem=MAX_MEM, client=client)
        peak = client.run(memory_of_worker, "VmHWM")
    grown = [peak[worker] - idle[worker] for worker in idle]
    return ", ".join(f"{nbytes / 1e6:.0f} MB" for nbytes in grown)


def warm_up(source: str) -> None:
    """What an idle worker with the package imported looks like."""
    import zarr_dask.jobs

    zarr_dask.open_array(source)


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return memory_of_worker("VmRSS")


def memory_of_worker(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
