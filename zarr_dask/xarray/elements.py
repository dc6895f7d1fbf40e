"""Elements of arrays as xarray's lazy indexing asks for them."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing

from zarr_dask.array import Array
from zarr_dask.grid import Shape
from zarr_dask.indexing import parse_basic

__all__ = ["OBJECTS", "StoredArray", "dtype_of"]

OBJECTS = {"string": str, "bytes": bytes}
"""Data types that are held as Python objects of one kind."""


def dtype_of(array: Array) -> np.dtype[Any]:
    """The array's NumPy type; where elements are objects, with the mark that tells xarray which."""
    kind = OBJECTS.get(array.meta.data_type.name)
    if kind is None:
        return array.dtype
    marked: np.dtype[Any] = create_vlen_dtype(kind)  # type: ignore[no-untyped-call]
    return marked


class StoredArray(BackendArray):
    """An array as xarray reads it; it can be pickled, and read by many threads.

    The main thread of a program reads with all threads of its pool. Threads of others, which are
    those of dask's schedulers and of servers, read by themselves, and so do other processes.
    """

    def __init__(self, array: Array) -> None:
        self._array = array  # xarray looks into what has an attribute `array`
        self.shape = array.shape
        self.dtype = dtype_of(array)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._read(key, 1 if _is_worker() else None)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """As indexing, in another thread."""
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
    """The key with other slices for those of no element, for which xarray fails backwards."""
    items = tuple(
        slice(0, 0, 1) if isinstance(item, slice) and not range(n)[item] else item
        for item, n in zip(key.tuple, shape, strict=True)
    )
    return type(key)(items)


def _is_worker() -> bool:
    """Whether somebody else has divided the work among threads or processes already."""
    is_main = threading.current_thread() is threading.main_thread()
    return not is_main or multiprocessing.parent_process() is not None
