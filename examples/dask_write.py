"""A Dask array is written into shards that its blocks do not fit, and nothing is lost.

`dask.array.to_zarr` would let several tasks write one shard, and lose values, without a warning.
Here blocks are regrouped so that every stored object has exactly one task that writes it.

    python examples/dask_write.py [FOLDER]
"""

import sys
import tempfile

import dask.array as da

import zarr_dask as zd


def main(folder: str) -> None:
    url = f"{folder}/ones.zarr"
    values = da.ones((400, 400), chunks=50)
    zd.to_zarr(values, url, chunks=(40, 40), shards=(200, 200), overwrite=True)

    back = zd.from_zarr(url)
    print(f"{values.chunksize} blocks were written into {zd.open_array(url).shards} shards")
    print(f"read back in {back.chunksize} blocks, lost: {int((back != 1).sum().compute())} values")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(sys.argv[1] if len(sys.argv) > 1 else scratch)
