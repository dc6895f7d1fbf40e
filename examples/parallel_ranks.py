"""The ranks of a simulation write its output; none waits for another, and none needs dask.

Each rank puts its block of every step. Stored objects hold several steps, so that a rank gathers
them in its memory and writes an object once. Readers see the steps that all ranks have stored.

    python examples/parallel_ranks.py [FOLDER]
    mpiexec -n 4 python examples/parallel_ranks.py FOLDER mpi

The second way needs mpi4py. There the ranks exchange edges of their blocks as well, so that a
stored object may hold the blocks of several ranks.
"""

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

import zarr_dask as zd

RANKS = (2, 2)
SHAPE = (256, 512)
STEPS = 20
STEPS_PER_OBJECT = 8


def create(url: str, *, gather: bool) -> zd.Writer:
    """Say once what the output is; nobody else touches its metadata."""
    shards = (STEPS_PER_OBJECT, *(SHAPE if gather else (128, 256)))
    arrays = {
        "wave": {
            "shape": SHAPE,
            "dtype": "float32",
            "chunks": (1, 64, 64),
            "shards": shards,
            "dimension_names": ("time", "y", "x"),
        },
        "time": {"shape": (), "dtype": "float64", "dimension_names": ["time"]},
        "x": {"values": np.linspace(0, 1, SHAPE[1]), "dimension_names": ["x"]},
    }
    owners = zd.decompose(SHAPE, RANKS)
    return zd.Writer.create(url, arrays, owners=owners, gather=gather, overwrite=True)


def wave(step, region):
    y, x = np.ogrid[region]
    return np.sin(0.02 * x + 0.05 * y - 0.3 * step).astype("float32")


def simulate(url: str, rank: int, comm=None) -> None:
    with zd.Writer.attach(url, rank=rank, gather=comm) as writer:
        region = writer.region("wave")
        for step in range(writer.next_step, STEPS):  # after a crash: where this rank was
            writer.write_step(step, {"wave": wave(step, region), "time": 0.5 * step})


def check(url: str, writer: zd.Writer) -> None:
    whole = writer.publish()
    print(f"{writer.ranks} ranks: {whole} steps are in whole stored objects and can be seen")
    print(f"with the last objects, which are not whole, {writer.publish(flush=True)} steps")
    array = zd.open(url)["wave"]
    everything = tuple(slice(0, n) for n in SHAPE)
    expected = np.stack([wave(step, everything) for step in range(STEPS)])
    print(f"shards of {array.shards}, every value right:", np.array_equal(array[...], expected))


def with_processes(url: str) -> None:
    writer = create(url, gather=False)
    with ProcessPoolExecutor(writer.ranks, mp_context=get_context("spawn")) as pool:
        list(pool.map(simulate, [url] * writer.ranks, range(writer.ranks)))
    check(url, writer)


def with_mpi(url: str) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    writer = create(url, gather=True) if comm.rank == 0 else None
    comm.barrier()
    simulate(url, comm.rank, comm)
    comm.barrier()
    if writer is not None:
        check(url, writer)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[1] if len(sys.argv) > 1 else scratch
        (with_mpi if "mpi" in sys.argv[2:] else with_processes)(f"{folder}/ranks.zarr")
