"""Values to write that are no dask arrays yet: NumPy arrays, nested lists, and open arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.array.cells import CHUNK_BYTES, auto_chunks
from zarr_dask.array.create import given_values
from zarr_dask.array.view import View

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["are_several", "as_dask", "is_of_xarray"]


def are_several(given: Any) -> bool:
    """True for a list of arrays; nested lists of numbers or texts are one array."""
    return isinstance(given, list | tuple) and (not given or any(map(_is_array, given)))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Array | View) or hasattr(value, "__dask_graph__")


def as_dask(given: Any) -> da.Array | Any:
    """Return values as a dask array; what is neither values nor an open array is unchanged."""
    if isinstance(given, Array | View):
        return given.to_dask()
    if not isinstance(given, np.ndarray | np.generic | list | tuple | int | float | complex):
        return given
    from zarr_dask.graph import map_blocks

    values, _ = given_values(given)
    return map_blocks(values, auto_chunks(values.shape, values.itemsize, CHUNK_BYTES))


def is_of_xarray(values: object) -> bool:
    """True for objects with our accessor of xarray (`zarr_dask.xarray.accessor`)."""
    return getattr(type(values), "zd", None) is not None
