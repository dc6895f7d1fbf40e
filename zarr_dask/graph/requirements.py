"""Requirements for dask arrays that are to be written."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array as LayeredArray
from dask.array.utils import meta_from_array

from zarr_dask.errors import DaskBackendError, DataTypeError, GridError

__all__ = ["check_backend", "checked_array", "map_blocks"]


def check_backend() -> None:
    """Raise if dask's array-expr backend is on, whose arrays have no layers.

    Raises
    ------
    DaskBackendError
        If it is on.
    """
    if da.Array is not LayeredArray:
        raise DaskBackendError(
            "dask's array-expr backend is turned on, whose arrays take no layers from other "
            "packages: dask.array.from_zarr and to_zarr do not work with it either. Set dask's "
            "configuration array.query-planning to False before dask.array is imported; or use "
            "the package dask-array, whose dask_array.from_array takes an open zarr_dask.Array."
        )


def map_blocks(values: np.ndarray, chunks: tuple[int, ...]) -> da.Array:
    """Return values in memory as a dask array of blocks of a shape.

    Raises
    ------
    DaskBackendError
        If dask's array-expr backend is turned on.
    """
    check_backend()
    return da.from_array(values, chunks=chunks)


def checked_array(array: Any) -> da.Array:
    """Return a dask array whose blocks have known sizes.

    Raises
    ------
    DataTypeError
        If it is something else, or its blocks are masked.
    GridError
        If sizes are unknown.
    DaskBackendError
        If dask's array-expr backend is turned on.
    """
    check_backend()
    if not isinstance(array, da.Array):
        hint = "dask.array.from_array makes one of what has a shape, a data type and elements."
        if isinstance(getattr(array, "data", None), da.Array):  # xarray's
            hint = "its .data is one."
        elif hasattr(array, "data_vars"):
            hint = "zarr_dask.write_dataset writes it; here the .data of one variable is written."
        elif isinstance(array, str | PathLike):
            hint = (
                "zarr_dask.copy(source, target) copies what is stored, and "
                "zarr_dask.from_zarr(source) opens it as a dask array."
            )
        elif isinstance(array, Mapping):
            hint = (
                "several are written as to_zarr([x, y], url, component=['x', 'y']), those in "
                "memory also as zarr_dask.save(url, x=x, y=y)."
            )
        elif hasattr(array, "to_numpy"):
            hint = "its to_numpy() is an array that can be written."
        raise DataTypeError(f"expected a dask array, got {_kind(array)}; {hint}")
    if isinstance(meta_from_array(array), np.ma.MaskedArray):
        raise DataTypeError(
            "the dask array is masked, and a mask cannot be stored; fill it first "
            "(dask.array.ma.filled)."
        )
    if any(np.isnan(size) for sizes in array.chunks for size in sizes):
        raise GridError(
            "the dask array has unknown chunk sizes, so that nothing can be planned; "
            "compute_chunk_sizes() finds them out."
        )
    return array


def _kind(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
