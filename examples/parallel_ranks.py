"""Several processes write one array at the same time, and none waits for another.

A shard is one stored object. Each rank here owns whole shards, so that no two ranks ever touch the
same object: this is how the ranks of a simulation write their blocks. Only the one process that
creates the array writes metadata.

    python examples/parallel_ranks.py [FOLDER]
"""

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

import zarr_dask as zd

RANKS = 4
SHAPE = (1024, 512)
SHARD = (128, 512)


def write_rows(url: str, rank: int) -> int:
    array = zd.open_array(url, mode="r+")
    share = SHAPE[0] // RANKS
    rows = slice(rank * share, (rank + 1) * share)
    values = np.full((share, SHAPE[1]), rank, dtype="float32")
    array[rows] = values
    return values.nbytes


def main(folder: str) -> None:
    url = f"{folder}/ranks.zarr"
    zd.create_array(
        url, shape=SHAPE, dtype="float32", chunks=(64, 64), shards=SHARD, overwrite=True
    )
    with ProcessPoolExecutor(RANKS, mp_context=get_context("spawn")) as pool:
        written = sum(pool.map(write_rows, [url] * RANKS, range(RANKS)))

    array = zd.open_array(url)
    expected = np.repeat(np.arange(RANKS), SHAPE[0] // RANKS)
    print(f"{RANKS} ranks wrote {written:,} bytes into {url}, {array.nbytes_stored():,} stored")
    print("every row holds its rank:", np.array_equal(array[:, 0], expected))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1] if len(sys.argv) > 1 else scratch)
