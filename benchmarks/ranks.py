"""What output costs the ranks of a simulation, beside files of other kinds, in one job of MPI.

    mpiexec -n 8 python -m benchmarks.ranks [--dir FOLDER] [--steps 40] [--rounds 3] [--only WORD]

In each step every rank puts its megabyte of 8 MiB. Times are of the processor, per step and rank,
waiting included; the throughput is that of the slowest rank. Chunk files, parallel HDF5 and
parallel netCDF-4 are written by C (`ranks_peers.c`), with what ``tools/servers.sh parallel-io``
installs, which goes with Open MPI; ADIOS2 by its wheel, which has no MPI: a file of each rank.
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
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from mpi4py import MPI

import zarr_dask as zd

COMM = MPI.COMM_WORLD
ROWS, COLUMNS = 512, 512
RAW = [{"name": "bytes", "configuration": {"endian": "little"}}]
PEERS = Path(__file__).with_name("ranks_peers.c")
SOURCE = Path(__file__).parents[1] / "examples/c/zd_rank.c"
SERVERS = Path(__file__).parents[1] / ".servers"
LIBRARIES = (
    *("libaec.so.0", "libsz.so.2", "libhdf5_openmpi.so.103", "libhdf5_openmpi_hl.so.100"),
    "libnetcdf_mpi.so.19",
)

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


@cache
def peers() -> ctypes.CDLL | None:
    """The peers in C, if their libraries are there and go with this MPI."""
    libraries = SERVERS / "parallel-io/usr/lib/x86_64-linux-gnu"
    if "Open MPI" not in MPI.Get_library_version() or not libraries.exists():
        return None
    for name in LIBRARIES:  # no search path: the folder has an Open MPI of its own
        ctypes.CDLL(str(libraries / name), ctypes.RTLD_GLOBAL)
    built = Path(tempfile.gettempdir(), f"ranks_peers-{os.getuid()}.so")
    if COMM.rank == 0:
        headers = [SERVERS / "openmpi/include", libraries / "netcdf/mpi/include"]
        headers += [SERVERS / "parallel-io/usr/include/hdf5/openmpi"]
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", built, PEERS]
        subprocess.run([*command, *(f"-I{folder}" for folder in headers)], check=True)
    COMM.barrier()
    return ctypes.CDLL(str(built))


@contextmanager
def chunk_files(folder: Path) -> Iterator[Put]:
    """Chunks under the keys of Zarr, written aside and renamed, and nothing else."""
    c, path = peers(), str(folder).encode()

    def put(step: int, block: np.ndarray) -> None:
        if c.chunk_put(path, step, COMM.rank, ctypes.c_void_p(block.ctypes.data), size):
            raise OSError("chunk_put")

    size = ctypes.c_size_t(ROWS * COLUMNS * 4)
    yield put


@contextmanager
def in_one_file(folder: Path, kind: str, *, collective: bool) -> Iterator[Put]:
    """One file of all ranks, a chunk for each step and rank: h5 for HDF5, nc for netCDF-4."""
    begin, write, end = (getattr(peers(), f"{kind}_{name}") for name in ("begin", "put", "end"))
    path, comm = str(folder / f"run.{kind}").encode(), ctypes.c_void_p(MPI._addressof(COMM))
    if begin(path, comm, COMM.size, ROWS, COLUMNS, int(collective)):
        raise OSError(f"{kind}_begin")

    def put(step: int, block: np.ndarray) -> None:
        if write(step, COMM.rank, ctypes.c_void_p(block.ctypes.data)):
            raise OSError(f"{kind}_put")

    yield put
    end()


@contextmanager
def adios2(folder: Path) -> Iterator[Put]:
    """A file of each rank by ADIOS2 without MPI."""
    import adios2

    with adios2.Stream(str(folder / f"{COMM.rank}.bp"), "w") as stream:

        def put(step: int, block: np.ndarray) -> None:
            stream.begin_step()
            stream.write("u", block, (ROWS, COLUMNS), (0, 0), (ROWS, COLUMNS))
            stream.end_step()

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
    found: dict[str, Callable[[Path], object]] = {
        "numpy.save": numpy_save,
        "files, renamed": renamed_files,
        "examples/c/zd_rank.c": c_files,
    }
    if peers() is not None:
        found["C, chunk files and rename"] = chunk_files
        for kind, label in {"h5": "HDF5", "nc": "netCDF-4"}.items():
            for how in ("independent", "collective"):
                found[f"{label}, {how}"] = partial(in_one_file, kind=kind, collective=how[0] == "c")
    if find_spec("adios2"):
        found["ADIOS2, a file of each rank"] = adios2
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
    parser.add_argument("--only", action="append", help="contenders whose name has this word")
    options = parser.parse_args()
    root = COMM.bcast(tempfile.mkdtemp(dir=options.dir) if COMM.rank == 0 else None)
    words = options.only or [""]
    chosen = {name: make for name, make in cases().items() if any(word in name for word in words)}
    found = {name: [] for name in chosen}
    for _ in range(options.rounds):  # in turn, so that all see the same machine
        for name, make in chosen.items():
            found[name].append(measure(make, Path(root, "one"), options.steps))
    if COMM.rank == 0:
        shutil.rmtree(root)
        print("| | CPU ms per step and rank | least | MB/s | most |\n|---|---|---|---|---|")
        for name, every in found.items():
            cpus, speeds = zip(*every, strict=True)
            print(f"| {name} | {median(cpus):.2f} | {min(cpus):.2f} ", end="")
            print(f"| {median(speeds):.0f} | {max(speeds):.0f} |")


if __name__ == "__main__":
    main()
