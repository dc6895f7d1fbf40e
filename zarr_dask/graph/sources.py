"""Protocols of the sources that read tasks index."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import Store

__all__ = ["Source", "SupportsPrefetch", "SupportsSubset"]


class Source(Protocol):
    """The object that read tasks index."""

    @property
    def shape(self) -> Shape:
        """Number of elements along each dimension."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        ...

    def __getitem__(self, key: Any) -> Any: ...


class SupportsSubset(Source, Protocol):
    """A source that is too large to be part of every task."""

    def within(self, region: tuple[slice, ...]) -> SupportsSubset:
        """Return a region of it, as another source."""
        ...


class SupportsPrefetch(Source, Protocol):
    """A source of which requests can be prefetched for other tasks."""

    @property
    def store(self) -> Store:
        """The store that holds the stored objects."""
        ...

    def reading_from(self, store: Store) -> SupportsPrefetch:
        """Return the same source, read from another store."""
        ...

    def key_of(self, region: Region) -> str | None:
        """Return the key of the only stored object of a region; None if there are several."""
        ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __dask_tokenize__(self) -> Any: ...
