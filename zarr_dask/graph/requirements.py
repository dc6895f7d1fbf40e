"""Requirements for dask arrays that are to be written, and the packages that their tasks need."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any

import dask.array as da
import numpy as np
from cloudpickle import list_registry_pickle_by_value
from dask.array.core import Array as LayeredArray
from dask.array.utils import meta_from_array
from dask.blockwise import Blockwise
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from zarr_dask.errors import DaskBackendError, DataTypeError, GridError

__all__ = ["check_backend", "checked_array", "map_blocks", "packages_of"]


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
        raise DataTypeError(f"expected a dask array, got {_kind(array)}; {_written_by(array)}")
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


def _written_by(array: Any) -> str:
    """Return what to call with something that is no dask array."""
    if isinstance(getattr(array, "data", None), da.Array):  # xarray's
        return "its .data is one."
    if isinstance(array, Delayed):  # before others: it has any attribute that is asked for
        return "dask.array.from_delayed(value, shape, dtype) makes one of it."
    if hasattr(array, "data_vars"):
        return "zarr_dask.write_dataset writes it; here the .data of one variable is written."
    if isinstance(array, str | PathLike):
        return (
            "the array comes first, as in to_zarr(array, url). zarr_dask.copy(source, target) "
            "copies what is stored, zarr_dask.from_zarr(source) opens it as a dask array."
        )
    if isinstance(array, Mapping):
        return (
            "several are written as to_zarr([x, y], url, component=['x', 'y']), those in "
            "memory also as zarr_dask.save(url, x=x, y=y)."
        )
    if hasattr(array, "to_dask_array"):  # dask's, of tables
        return "its to_dask_array(lengths=True) is one."
    if hasattr(array, "to_numpy"):
        return "its to_numpy() is an array that can be written."
    if isinstance(array, Iterable) and not hasattr(array, "dtype"):
        return "numpy.array(list(values)) makes an array of numbers."
    if _kind(array) == "zarr.Array":
        return "zarr_dask.copy(array, url) copies it, zarr_dask.open(array) opens it here."
    return "dask.array.from_array makes one of what has a shape, a data type and elements."


def _kind(value: Any) -> str:
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"


_DEEPEST = 8
"""Maximum depth of containers in a task that are looked into."""
_MOST_ITEMS = 32
"""Maximum number of their items."""
_REDUCE = ("__reduce_ex__", "__reduce__")
_EVERYWHERE = sys.stdlib_module_names | {
    "__main__",
    "__mp_main__",
    "dask",
    "distributed",
    "numpy",
    "tlz",
    "toolz",
}
"""Modules that every worker has."""


def packages_of(graph: HighLevelGraph) -> set[str]:
    """Return the top-level names of modules that functions of the graph are of.

    One task of each layer is looked at. Left out are modules that every worker has, and functions
    that are sent by value.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> packages_of(da.ones((4, 4)).map_blocks(np.sqrt).dask)
    set()
    """
    found = {_package(function) for layer in graph.layers.values() for function in _of(layer)}
    return found - _EVERYWHERE - {"", "zarr_dask"}


def _of(layer: Mapping[Any, Any]) -> Iterator[Any]:
    if isinstance(layer, Blockwise):
        yield from _functions(layer.task)
    elif isinstance(layer, dict) or getattr(layer, "is_materialized", bool)():
        yield from _functions(next(iter(layer.values()), None))


def _functions(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the functions, classes and instances in a task."""
    if depth > _DEEPEST:
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple | set):
        inner = value
    elif isinstance(value, partial):
        inner = (value.func, value.args, value.keywords)
    elif type(value).__module__.partition(".")[0] == "dask":  # its tasks and containers
        inner = [getattr(value, name, None) for name in ("func", "args", "kwargs", "value")]
    else:
        yield value
    for one in islice(inner, _MOST_ITEMS):
        yield from _functions(one, depth + 1)


def _package(value: Any) -> str:
    """Return the top-level module that must be imported to load a value; "" for none.

    Functions that cannot be found by their names, and those of registered modules, are sent by
    value.
    """
    named = value
    if not hasattr(value, "__qualname__"):
        named = type(value)
        own = (getattr(named, name) is getattr(object, name) for name in _REDUCE)
        if not all(own):
            return ""  # it says itself how it is loaded
    module, path = getattr(named, "__module__", None), getattr(named, "__qualname__", "")
    if not isinstance(module, str) or module not in sys.modules:
        return ""
    by_name: Any = sys.modules[module]
    for name in path.split("."):
        by_name = getattr(by_name, name, None)
    package = module.partition(".")[0]
    by_value = {one.partition(".")[0] for one in list_registry_pickle_by_value()}
    return package if by_name is named and package not in by_value else ""
