"""An array, or a selection of it, as the tasks of a graph see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zarr_dask.formats.base import ReadOptions
from zarr_dask.gather import Gathering
from zarr_dask.grid import Region, Shape
from zarr_dask.indexing import parse_basic
from zarr_dask.selection import IndexTransform, has_lists, parse_numpy
from zarr_dask.stores.ahead import can_read_ahead
from zarr_dask.stores.base import Store
from zarr_dask.views import SelectedArray, read_selection

__all__ = ["ArraySource", "SourceArray"]


class SourceArray(SelectedArray, Protocol):
    """What a source needs to know of its array."""

    def read(
        self, region: Any = None, out: np.ndarray | None = None, threads: int | None = None
    ) -> np.ndarray:
        """A region as a NumPy array."""
        ...

    @property
    def options(self) -> ReadOptions:
        """How to read."""
        ...

    def reading_from(self, store: Store) -> SourceArray:
        """The same array, read from another store."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """What read tasks index: each reads in its own thread; made by `Array.source`."""

    array: SourceArray
    """The array without what is not needed to read it: attributes and names of dimensions."""
    token: str
    """That of the array with all it has, and of the selection; see `Array.token`."""
    transform: IndexTransform | None = None
    """What of the array; None for everything."""

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
        """A region of it as a source."""
        transform = self.transform or IndexTransform.identity(self.shape)
        return ArraySource(self.array, self.token, transform.within(region))

    # --- reading ahead ----------------------------------------------------------------------------

    @property
    def reads_ahead(self) -> bool:
        """Whether it is worth to ask for indices of shards before they are needed."""
        array = self.array
        in_shards = array.meta.largest_bound().partial
        return in_shards and not array.options.index_cache and can_read_ahead(array.store)

    @property
    def store(self) -> Store:
        """Where the stored objects are."""
        return self.array.store

    def reading_from(self, store: Store) -> ArraySource:
        """The same source, read from another store."""
        return ArraySource(self.array.reading_from(store), self.token, self.transform)

    def key_of(self, region: Region) -> str | None:
        """The one stored object that a region of it lies in; None if there are several."""
        wanted: Region | None = region
        if self.transform is not None:
            wanted = Gathering(self.transform.within(region)).region
        only = None if wanted is None else self.array.meta.grid.only_cell(wanted)
        return None if only is None else self.array.reader.key_of(only[0])

    # --- what tasks do ----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """Elements by NumPy's indexing."""
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
