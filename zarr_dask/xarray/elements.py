"""Reading of array elements by xarray's lazy indexing."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from inspect import signature
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.backends.zarr import encode_zarr_variable
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing

from zarr_dask.array.array import Array
from zarr_dask.grid.grid import Shape
from zarr_dask.indexing.basic import parse_basic

__all__ = ["OBJECTS", "TAKES_FORMAT", "StoredArray", "dtype_of"]

TAKES_FORMAT = "zarr_format" in signature(encode_zarr_variable).parameters
"""False for older releases of xarray, which know no arrays of StringDType."""
OBJECTS = {"string": str, "bytes": bytes}
"""Data types whose elements are Python objects of one type."""


def dtype_of(array: Array) -> np.dtype[Any]:
    """Return the array's type for xarray: texts are of `StringDType`, where xarray knows that.

    Other elements that are objects are marked with their type. So are texts of older formats: of
    others xarray makes texts of fixed length when it writes them there.
    """
    has_texts = TAKES_FORMAT and hasattr(np.dtypes, "StringDType")
    is_older = array.node_format.names_attribute is not None
    if array.meta.data_type.name == "string" and has_texts and not is_older:
        return np.dtype(np.dtypes.StringDType())
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

        found = indexing.explicit_indexing_adapter(
            _without_empty(key, self.shape), self.shape, indexing.IndexingSupport.VECTORIZED, select
        )
        return np.asarray(found).astype(self.dtype) if self.dtype.kind == "T" else found


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
