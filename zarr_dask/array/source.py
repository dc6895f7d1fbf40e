"""An array, or a selection of it, as the tasks of a graph see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zarr_dask.array.view import SelectedArray, read_selection
from zarr_dask.formats.base import ReadOptions
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.indexing.basic import has_lists, parse_basic
from zarr_dask.indexing.plan import SelectionPlan
from zarr_dask.indexing.transform import IndexTransform, parse_numpy
from zarr_dask.stores.base import Store
from zarr_dask.stores.index_prefetch import can_read_ahead
from zarr_dask.stores.patience import in_task

__all__ = ["ArraySource", "SourceArray"]


class SourceArray(SelectedArray, Protocol):
    """Interface that a source needs of its array."""

    def read(
        self, region: Any = None, out: np.ndarray | None = None, threads: int | None = None
    ) -> np.ndarray:
        """Read a region as a NumPy array."""
        ...

    @property
    def options(self) -> ReadOptions:
        """Options for reading."""
        ...

    def reading_from(self, store: Store) -> SourceArray:
        """Return the same array, read from another store."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Source that read tasks index, each in its own thread; made by `Array.source`."""

    array: SourceArray
    """The array without metadata that reading does not need: attributes and names of dimensions."""
    token: str
    """Token of the array with all its metadata, and of the selection; see `Array.token`."""
    transform: IndexTransform | None = None
    """Selection of the array; None for the whole array."""

    @property
    def shape(self) -> Shape:
        """Elements along each dimension."""
        return self.array.shape if self.transform is None else self.transform.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def within(self, region: Region) -> ArraySource:
        """Return a region of it as a source."""
        transform = self.transform or IndexTransform.identity(self.shape)
        return ArraySource(self.array, self.token, transform.within(region))

    # --- reading ahead ----------------------------------------------------------------------------

    @property
    def reads_ahead(self) -> bool:
        """True if it is worth prefetching the indices of shards."""
        array = self.array
        in_shards = array.meta.largest_bound().partial
        options = array.options
        if options.index_cache or options.verify or options.consistent:
            return False
        return in_shards and can_read_ahead(array.store)

    @property
    def store(self) -> Store:
        """Store that holds the stored objects."""
        return self.array.store

    def reading_from(self, store: Store) -> ArraySource:
        """Return the same source, read from another store."""
        return ArraySource(self.array.reading_from(store), self.token, self.transform)

    def key_of(self, region: Region) -> str | None:
        """Return the key of the single stored object that holds a region; None if several do."""
        wanted: Region | None = region
        if self.transform is not None:
            wanted = SelectionPlan(self.transform.within(region)).region
        only = None if wanted is None else self.array.meta.grid.single_chunk(wanted)
        return None if only is None else self.array.reader.key_of(only[0])

    # --- methods that tasks call
    # -------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """Return elements by NumPy's indexing."""
        with in_task():
            return self._read(key)

    def _read(self, key: Any) -> Any:
        if self.transform is not None:
            selected = self.transform.then(parse_numpy(key, self.shape))
            return read_selection(self.array, selected, threads=1)
        if has_lists(key):
            return read_selection(self.array, parse_numpy(key, self.shape), threads=1)
        selection = parse_basic(key, self.shape)
        values = self.array.read(selection.region, threads=1)
        return values if selection.plain else values[selection.finish]

    def __reduce__(self) -> tuple[Any, ...]:
        more = () if self.transform is None else (self.transform,)
        return ArraySource, (self.array, self.token, *more)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "zarr_dask.ArraySource", self.token
