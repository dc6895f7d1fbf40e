"""The accessor ``zd`` of datasets, arrays and trees of xarray: ``ds.zd.to_zarr(url)``."""

from __future__ import annotations

from typing import Any

import xarray as xr

from zarr_dask.xarray.plan import DatasetPlan
from zarr_dask.xarray.write import plan_dataset, write_dataset

__all__ = ["Accessor"]


@xr.register_datatree_accessor("zd")
@xr.register_dataarray_accessor("zd")
@xr.register_dataset_accessor("zd")
class Accessor:
    """Writes what it belongs to; made by xarray for each object.

    Parameters
    ----------
    held
        A Dataset, a DataArray or a DataTree.

    Examples
    --------
    >>> import xarray as xr, zarr_dask.xarray
    >>> store = {}
    >>> report = xr.Dataset({"a": ("x", [1, 2, 3])}).zd.to_zarr(store)
    >>> report.objects
    1
    """

    def __init__(self, held: Any) -> None:
        self._held = held

    def to_zarr(self, url: Any, group: str | None = None, **options: Any) -> Any:
        """Write it; see `zarr_dask.write_dataset`."""
        return write_dataset(self._held, url, group, **options)

    def plan(self, url: Any, group: str | None = None, **options: Any) -> DatasetPlan:
        """Plan to write it; see `zarr_dask.plan_dataset`."""
        return plan_dataset(self._held, url, group, **options)
