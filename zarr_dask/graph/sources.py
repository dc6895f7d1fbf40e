"""What read tasks index: anything with ``shape``, ``dtype`` and ``__getitem__``."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from zarr_dask.grid import Region, Shape
from zarr_dask.stores.base import Store

__all__ = ["AheadSource", "DivisibleSource", "Source"]


class Source(Protocol):
    """What read tasks index."""

    @property
    def shape(self) -> Shape:
        """Elements along each dimension."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        ...

    def __getitem__(self, key: Any) -> Any: ...


class DivisibleSource(Source, Protocol):
    """A source that is too large to be part of every task."""

    def within(self, region: tuple[slice, ...]) -> DivisibleSource:
        """A region of it, as another source."""
        ...


class AheadSource(Source, Protocol):
    """A source of which other tasks' requests can be sent before their turn comes."""

    @property
    def store(self) -> Store:
        """Where the stored objects are."""
        ...

    def reading_from(self, store: Store) -> AheadSource:
        """The same source, read from another store."""
        ...

    def key_of(self, region: Region) -> str | None:
        """The one stored object that a region lies in; None if there are several."""
        ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __dask_tokenize__(self) -> Any: ...
