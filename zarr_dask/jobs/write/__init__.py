"""Writing dask arrays: one task for each stored object, planned, resumed, guarded."""
