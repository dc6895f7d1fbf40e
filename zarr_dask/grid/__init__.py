"""Grids of chunks and stored objects, and how blocks of dask fall on them."""
