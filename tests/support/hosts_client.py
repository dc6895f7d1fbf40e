"""A client on the host of the scheduler: to_zarr, rechunk and from_zarr with some workers.

python -m tests.support.hosts_client FOLDER WORKERS
"""

from __future__ import annotations

import sys
import time

import dask.array as da
import numpy as np
from distributed import Client

import zarr_dask as zd
from tests.support.hosts import ADDRESS


def slowly(block):
    time.sleep(0.1)
    return block + 1


def main(folder, workers):
    with Client(ADDRESS, timeout=30) as client:
        client.wait_for_workers(int(workers), timeout=40)
        print("begins", flush=True)
        x = da.arange(8000, chunks=100).map_blocks(slowly)
        told = []

        def progress(done):
            if done and not told:
                told.append(done)
                print("runs", flush=True)

        zd.to_zarr(x, f"{folder}/x.zarr", resume=True, progress=progress)
        zd.rechunk(f"{folder}/x.zarr", f"{folder}/y.zarr", chunks=(1000,), client=client)
        values = zd.from_zarr(f"{folder}/y.zarr").compute()
        assert np.array_equal(values, np.arange(1, 8001))
        print("right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
