"""The accessor ``zd`` of xarray's objects, there before anything of datasets is imported."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["register_accessor"]


def register_accessor() -> None:
    """Give datasets, arrays and trees of xarray ``.zd``, if xarray has been imported."""
    xarray = sys.modules.get("xarray")
    for name in ("Dataset", "DataArray", "DataTree"):
        kind = getattr(xarray, name, None)  # absent while xarray is being imported
        if kind is not None and not hasattr(kind, "zd"):
            getattr(xarray, f"register_{name.lower()}_accessor")("zd")(_accessor)


def _accessor(held: Any) -> Any:
    """Return what writes, plans and compares a dataset, an array or a tree of xarray."""
    return import_module("zarr_dask.xarray.accessor").Accessor(held)
