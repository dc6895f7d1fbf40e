"""Writing dask arrays: one task for each stored object, with plans, resuming and checks."""
