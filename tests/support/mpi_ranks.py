"""A rank of a job of MPI: the simulation of `ranks`, and what shall happen to it.

mpiexec -n RANKS python -m tests.support.mpi_ranks URL STEPS [raise=RANK.STEP] [kill=RANK.STEP]
    [gather] [from=STEP run=NAME]
"""

from __future__ import annotations

import os
import signal
import sys

from mpi4py import MPI

import zarr_dask as zd
from tests.support.ranks import field


def main(url, steps, *modes):
    comm = MPI.COMM_WORLD
    options = dict(mode.partition("=")[::2] for mode in modes)
    gather = comm if "gather" in options else None
    first = int(options["from"]) if "from" in options else None
    run = options.get("run")
    with zd.Writer.attach(url, comm.rank, first, run=run, gather=gather) as writer:
        region = writer.region("u")
        for step in range(writer.next_step, int(steps)):
            here = f"{comm.rank}.{step}"
            if options.get("raise") == here:
                raise ValueError("no convergence")
            if options.get("kill") == here:
                os.kill(os.getpid(), signal.SIGKILL)
            block = field(step, region)
            writer.write_step(step, {"u": block, "v": -block, "time": step / 4})


if __name__ == "__main__":
    main(*sys.argv[1:])
