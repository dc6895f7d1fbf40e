"""The beginning of scripts that write an array, and hang before the third of its four blocks."""

HANGING = """
import sys, dask, dask.array as da, zarr_dask as zd
def block(b, block_info=None):
    if block_info[0]["chunk-location"] == (2,):
        print("here", flush=True)
        sys.stdin.readline()
    return b
x = da.ones((8,), chunks=2, dtype="i4").map_blocks(block, dtype="i4")
dask.config.set(scheduler="synchronous")
"""
"""Makes ``x``; says "here" when it hangs, until there is a line to read."""
