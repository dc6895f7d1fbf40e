"""Reading of array elements by xarray's lazy indexing."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing

from zarr_dask.array.array import Array
from zarr_dask.grid.grid import Shape
from zarr_dask.indexing.basic import parse_basic

__all__ = ["OBJECTS", "StoredArray", "dtype_of"]

OBJECTS = {"string": str, "bytes": bytes}
"""Data types whose elements are Python objects of one type."""


def dtype_of(array: Array) -> np.dtype[Any]:
    """Return the array's NumPy type; if elements are objects, marked with their type for xarray."""
    kind = OBJECTS.get(array.meta.data_type.name)
    if kind is None:
        return array.dtype
    marked: np.dtype[Any] = create_vlen_dtype(kind)  # type: ignore[no-untyped-call]
    return marked


class StoredArray(BackendArray):
    """An array as xarray reads it; it can be pickled, and read by many threads.

    The main thread of a program reads with all threads of its pool. Other threads, which belong to
    dask's schedulers and servers, read alone, and so do other processes.
    """

    def __init__(self, array: Array) -> None:
        self._array = array  # xarray inspects objects that have an attribute `array`
        self.shape = array.shape
        self.dtype = dtype_of(array)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._read(key, 1 if _is_worker() else None)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read as indexing does, in another thread."""
        return await asyncio.to_thread(self._read, key, None)

    def _read(self, key: indexing.ExplicitIndexer, threads: int | None) -> Any:
        def select(index: tuple[Any, ...]) -> Any:
            if isinstance(key, indexing.OuterIndexer):
                return self._array.lazy.oindex[index].read(threads=threads)
            if isinstance(key, indexing.VectorizedIndexer):
                return self._array.lazy.vindex[index].read(threads=threads)
            selection = parse_basic(index, self.shape)
            values = self._array.read(selection.region, threads=threads)
            return values[selection.finish]

        return indexing.explicit_indexing_adapter(
            _without_empty(key, self.shape), self.shape, indexing.IndexingSupport.VECTORIZED, select
        )


def _without_empty(key: indexing.ExplicitIndexer, shape: Shape) -> indexing.ExplicitIndexer:
    """Return the key with empty slices normalised: xarray fails on empty backward slices."""
    items = tuple(
        slice(0, 0, 1) if isinstance(item, slice) and not range(n)[item] else item
        for item, n in zip(key.tuple, shape, strict=True)
    )
    return type(key)(items)


def _is_worker() -> bool:
    """True if the work has already been divided among threads or processes."""
    is_main = threading.current_thread() is threading.main_thread()
    return not is_main or multiprocessing.parent_process() is not None
