"""Conformance kits, for stores of this package and of others; see `zarr_dask.testing.stores`."""
