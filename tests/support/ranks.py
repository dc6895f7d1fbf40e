"""A simulation of many processes: each rank is forked from this one, which imports no dask.

    python ranks.py URL STEPS [publish] [gather] [flush] [mortal=SEED]

Ranks that are killed are started again, as a batch system would. Each says its number on the
standard output when it begins. With ``publish`` one more process makes steps visible as
they come; with ``gather`` ranks send pieces of their blocks to each other; with ``flush`` every
step is stored, and made visible, before its stored objects are whole. With ``mortal`` the kernel
kills each rank twice, wherever it is.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections import Counter
from functools import partial

import numpy as np

import zarr_dask as zd

SHAPE = (64, 32)


def field(step, region=(slice(None), slice(None))):
    """A step: a function of its number, nowhere the fill value."""
    values = 1 + 4096 * step + np.arange(SHAPE[0] * SHAPE[1], dtype="f4").reshape(SHAPE)
    return values[region]


def simulate(url, rank, steps, comm=None, flush=False):
    with zd.Writer.attach(url, rank=rank, gather=comm) as writer:
        region = writer.region("u")
        for step in range(writer.next_step, steps):
            block = field(step, region)
            writer.write_step(step, {"u": block, "v": -block, "time": step / 4}, flush=flush)


def publish(url, steps, flush):
    writer = zd.Writer.attach(url)
    while writer.publish(flush=flush) < steps:
        pass


class Pipes:
    """A communicator over pipes, one for each pair of processes; what mpi4py has, and no more."""

    def __init__(self, size):
        from multiprocessing import Pipe

        self.size = size
        self.rank = -1
        self._ends = {(a, b): Pipe(duplex=False) for a in range(size) for b in range(size)}

    def of(self, rank):
        self.rank = rank
        return self

    def send(self, obj, dest, tag=0):
        self._ends[self.rank, dest][1].send((tag, obj))

    def recv(self, buf=None, source=0, tag=0):
        found, obj = self._ends[source, self.rank][0].recv()
        assert found == tag
        return obj


def mortal(function, seed):
    """Run until some processor time is used up, and die then, or at the end."""
    signal.setitimer(signal.ITIMER_PROF, random.Random(seed).uniform(0.001, 0.03))
    function()
    os.kill(os.getpid(), signal.SIGKILL)


def forked(function):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    finally:  # a child must not go on with what its parent would do next
        if status:
            traceback.print_exc()
        os._exit(status)


def main(url, steps, *modes):
    assert "dask" not in sys.modules
    options = dict(mode.partition("=")[::2] for mode in modes)
    ranks = zd.Writer.attach(url).ranks
    comm = Pipes(ranks) if "gather" in options else None
    flush = "flush" in options
    lives = Counter()

    def start(rank):
        if rank < 0:
            return forked(partial(publish, url, steps, flush))
        lives[rank] += 1
        os.write(1, f"{rank}\n".encode())
        run = partial(simulate, url, rank, steps, comm and comm.of(rank), flush)
        if "mortal" in options and lives[rank] <= 2:
            run = partial(mortal, run, f"{options['mortal']} {rank} {lives[rank]}")
        return forked(run)

    first = -1 if "publish" in options else 0
    running = {start(rank): rank for rank in range(first, ranks)}
    while running:
        pid, status = os.wait()
        rank = running.pop(pid)
        if os.WIFSIGNALED(status):
            running[start(rank)] = rank
        elif status:
            sys.exit(f"rank {rank} failed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
