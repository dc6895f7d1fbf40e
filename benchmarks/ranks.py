"""What output costs the ranks of a simulation, beside files of other kinds, in one job of MPI.

    mpiexec -n 8 python -m benchmarks.ranks [--dir FOLDER] [--steps 40] [--rounds 3]

In each step every rank puts its megabyte of 8 MiB. Times are of the processor, per step and rank,
waiting included; the throughput is that of the slowest rank. Parallel HDF5 needs an h5py that was
built with MPI.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from mpi4py import MPI

import zarr_dask as zd

COMM = MPI.COMM_WORLD
ROWS, COLUMNS = 512, 512
RAW = [{"name": "bytes", "configuration": {"endian": "little"}}]
SOURCE = Path(__file__).parents[1] / "examples/c/zd_rank.c"

Put = Callable[[int, np.ndarray], object]


@contextmanager
def numpy_save(folder: Path) -> Iterator[Put]:
    """One file for each step and rank."""
    yield lambda step, block: np.save(folder / f"{COMM.rank}-{step}.npy", block)


@contextmanager
def renamed_files(folder: Path) -> Iterator[Put]:
    """The system calls of a program in C: one file, under another name until it is whole."""

    def put(step: int, block: np.ndarray) -> None:
        path = f"{folder}/{COMM.rank}-{step}"
        descriptor = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, block.data)
        os.close(descriptor)
        Path(f"{path}.tmp").rename(path)

    yield put


@contextmanager
def c_files(folder: Path) -> Iterator[Put]:
    """The reference in C, of whole chunks: written aside, renamed, with receipts."""
    if COMM.rank == 0:
        create(folder, 1, gather=False)
        library = [f"{folder}/zd_rank.so", str(SOURCE)]
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", *library], check=True)
    COMM.barrier()
    c = ctypes.CDLL(f"{folder}/zd_rank.so")
    c.zd_attach.restype = ctypes.c_void_p
    rank = ctypes.c_void_p(c.zd_attach(str(folder / "run.zarr").encode(), b"", COMM.rank, 0))
    coords = (ctypes.c_long * 2)(COMM.rank, 0)

    def put(step: int, block: np.ndarray) -> None:
        data = (ctypes.c_void_p * 1)(block.ctypes.data)
        numbers = map(ctypes.c_long, (step, step, step + 1))
        size = ctypes.c_size_t(block.nbytes)
        if c.zd_write(rank, b"u", *numbers, 1, 2, coords, data, size):
            raise OSError("zd_write")

    yield put
    c.zd_detach(rank)


@contextmanager
def hdf5(folder: Path, *, collective: bool) -> Iterator[Put]:
    """Parallel HDF5, a chunk for each step and rank."""
    import h5py

    with h5py.File(folder / "run.h5", "w", driver="mpio", comm=COMM) as file:
        shape, chunks = (1000, COMM.size * ROWS, COLUMNS), (1, ROWS, COLUMNS)
        u = file.create_dataset("u", shape, "f4", chunks=chunks)
        rows = slice(COMM.rank * ROWS, (COMM.rank + 1) * ROWS)

        def put(step: int, block: np.ndarray) -> None:
            with u.collective if collective else ExitStack():
                u[step, rows] = block

        yield put


def create(folder: Path, steps: int, *, gather: bool) -> None:
    """Make an output whose stored objects have some steps, of a rank or of all."""
    shape = (COMM.size * ROWS, COLUMNS)
    spec = {"shape": shape, "dtype": "f4", "chunks": (1, ROWS, COLUMNS), "codecs": RAW}
    spec |= {"shards": (steps, *shape)} if gather else {"chunks": (steps, ROWS, COLUMNS)}
    owners = zd.decompose(shape, (COMM.size, 1))
    zd.Writer.create(str(folder / "run.zarr"), {"u": spec}, owners=owners, gather=gather)


@contextmanager
def writer(folder: Path, *, steps: int, gather: bool) -> Iterator[Put]:
    """The Writer, with some steps in a stored object."""
    if COMM.rank == 0:
        create(folder, steps, gather=gather)
    COMM.barrier()
    comm = COMM if gather else None
    with zd.Writer.attach(str(folder / "run.zarr"), COMM.rank, gather=comm) as attached:
        yield lambda step, block: attached.write_step(step, {"u": block})


def cases() -> dict[str, Callable[[Path], object]]:
    """The contenders, by their names."""
    import h5py

    found: dict[str, Callable[[Path], object]] = {
        "numpy.save": numpy_save,
        "files, renamed": renamed_files,
        "examples/c/zd_rank.c": c_files,
    }
    if h5py.get_config().mpi:
        for kind in ("independent", "collective"):
            found[f"HDF5, {kind}"] = lambda folder, kind=kind: hdf5(
                folder, collective=kind == "collective"
            )
    for gather in (False, True):
        for steps in (1, 10):
            name = f"Writer{', gather' * gather}, {steps} per object"
            found[name] = lambda folder, steps=steps, gather=gather: writer(
                folder, steps=steps, gather=gather
            )
    return found


def measure(make: Callable[[Path], object], folder: Path, steps: int) -> tuple[float, float]:
    """Milliseconds of the processor per step and rank, and megabytes per second."""
    if COMM.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    COMM.barrier()
    block = np.random.default_rng(COMM.rank).random((ROWS, COLUMNS)).astype("f4")
    with make(folder) as put:
        COMM.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        for step in range(steps):
            put(step, block)
        cpu, took = time.process_time() - cpu, time.perf_counter() - begin
    every = COMM.allreduce(cpu) / COMM.size / steps * 1000
    slowest = COMM.allreduce(took, MPI.MAX)
    return every, COMM.size * steps * block.nbytes / slowest / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root = COMM.bcast(tempfile.mkdtemp(dir=options.dir) if COMM.rank == 0 else None)
    found = {name: [] for name in cases()}
    for _ in range(options.rounds):  # in turn, so that all see the same machine
        for name, make in cases().items():
            found[name].append(measure(make, Path(root, "one"), options.steps))
    if COMM.rank == 0:
        shutil.rmtree(root)
        print("| | CPU ms per step and rank | MB/s |\n|---|---|---|")
        for name, every in found.items():
            cpu, speed = (median(one) for one in zip(*every, strict=True))
            print(f"| {name} | {cpu:.2f} | {speed:.0f} |")


if __name__ == "__main__":
    main()
