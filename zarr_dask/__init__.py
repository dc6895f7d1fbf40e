"""Zarr arrays as lazy dask arrays, and parallel writes that lose nothing.

>>> import zarr_dask as zd
>>> a = zd.create_array({}, shape=(6, 4), dtype="int32", chunks=(2, 4))
>>> a[...] = 7
>>> int(a.to_dask().sum().compute())
168
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from zarr_dask import errors
from zarr_dask.array.array import Array
from zarr_dask.array.view import View
from zarr_dask.formats.base import Limits, ReadOptions
from zarr_dask.hierarchy.group import (
    Group,
    consolidate,
    create_array,
    create_group,
    delete,
    open,  # noqa: A004  (zd.open, as users expect)
    open_array,
    open_group,
)
from zarr_dask.journal.manifest import Manifest
from zarr_dask.stores.backends.zip_writer import ZipWriter

if TYPE_CHECKING:
    from zarr_dask import ome
    from zarr_dask.jobs.copy.copy import copy, plan_copy
    from zarr_dask.jobs.engine.credentials import credentials_of, share_credentials
    from zarr_dask.jobs.inventory.inventory import survey
    from zarr_dask.jobs.migrate.migrate import migrate, plan_migration
    from zarr_dask.jobs.plan_file import load_plan
    from zarr_dask.jobs.read import from_zarr
    from zarr_dask.jobs.rechunk.cost_model import CostModel
    from zarr_dask.jobs.rechunk.rechunk import plan_rechunk, rechunk
    from zarr_dask.jobs.simulation.decomposition import owners
    from zarr_dask.jobs.simulation.writer import Writer
    from zarr_dask.jobs.verify.compare import compare
    from zarr_dask.jobs.verify.digest import digest
    from zarr_dask.jobs.verify.verify import verify
    from zarr_dask.jobs.write.write import plan_write, to_zarr
    from zarr_dask.xarray import open_dataset, open_datatree
    from zarr_dask.xarray.read import open_mfdataset, open_zarr
    from zarr_dask.xarray.write import create_dataset, plan_dataset, write_dataset

try:
    __version__ = version("zarr-dask")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0"

__all__ = [
    "Array",
    "CostModel",
    "Group",
    "Limits",
    "Manifest",
    "ReadOptions",
    "View",
    "Writer",
    "ZipWriter",
    "compare",
    "consolidate",
    "copy",
    "create_array",
    "create_dataset",
    "create_group",
    "credentials_of",
    "delete",
    "digest",
    "errors",
    "from_zarr",
    "load_plan",
    "migrate",
    "ome",
    "open",
    "open_array",
    "open_dataset",
    "open_datatree",
    "open_group",
    "open_mfdataset",
    "open_zarr",
    "owners",
    "plan_copy",
    "plan_dataset",
    "plan_migration",
    "plan_rechunk",
    "plan_write",
    "rechunk",
    "share_credentials",
    "survey",
    "to_zarr",
    "verify",
    "write_dataset",
]

_JOBS = {
    "CostModel": "zarr_dask.jobs.rechunk.cost_model",
    "compare": "zarr_dask.jobs.verify.compare",
    "copy": "zarr_dask.jobs.copy.copy",
    "credentials_of": "zarr_dask.jobs.engine.credentials",
    "digest": "zarr_dask.jobs.verify.digest",
    "Writer": "zarr_dask.jobs.simulation.writer",
    "from_zarr": "zarr_dask.jobs.read",
    "migrate": "zarr_dask.jobs.migrate.migrate",
    "create_dataset": "zarr_dask.xarray.write",
    "open_dataset": "zarr_dask.xarray",
    "plan_dataset": "zarr_dask.xarray.write",
    "write_dataset": "zarr_dask.xarray.write",
    "open_datatree": "zarr_dask.xarray",
    "open_mfdataset": "zarr_dask.xarray.read",
    "open_zarr": "zarr_dask.xarray.read",
    "owners": "zarr_dask.jobs.simulation.decomposition",
    "plan_copy": "zarr_dask.jobs.copy.copy",
    "plan_migration": "zarr_dask.jobs.migrate.migrate",
    "load_plan": "zarr_dask.jobs.plan_file",
    "plan_rechunk": "zarr_dask.jobs.rechunk.rechunk",
    "plan_write": "zarr_dask.jobs.write.write",
    "rechunk": "zarr_dask.jobs.rechunk.rechunk",
    "share_credentials": "zarr_dask.jobs.engine.credentials",
    "survey": "zarr_dask.jobs.inventory.inventory",
    "to_zarr": "zarr_dask.jobs.write.write",
    "verify": "zarr_dask.jobs.verify.verify",
}


def __getattr__(name: str) -> Any:
    """Import jobs when they are first used: they need dask, reading does not."""
    if name == "to_zarr" and "xarray" in sys.modules:
        import_module("zarr_dask.xarray.accessor")  # by which datasets are written
    if name in _JOBS:
        return getattr(import_module(_JOBS[name]), name)
    if name == "ome":
        return import_module("zarr_dask.ome")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
