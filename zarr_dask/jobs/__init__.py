"""Jobs: plans as values, and what runs them on dask."""

from zarr_dask.jobs.read import from_zarr
from zarr_dask.jobs.rechunk import plan_rechunk, rechunk
from zarr_dask.jobs.write import plan_write, to_zarr

__all__ = ["from_zarr", "plan_rechunk", "plan_write", "rechunk", "to_zarr"]
