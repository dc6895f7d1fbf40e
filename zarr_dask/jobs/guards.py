"""What may not be written: places that a graph still reads lazily."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from zarr_dask.array import Array, ArraySource
from zarr_dask.errors import SourceIsTargetError
from zarr_dask.stores.base import Store
from zarr_dask.stores.urls import overlap, real_place

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["check_not_read"]


def check_not_read(values: da.Array, store: Store, path: str) -> None:
    """Refuse to write over what the graph reads lazily."""
    from zarr_dask.graph import sources_of

    place = real_place(store, path)
    zarr = sys.modules.get("zarr")  # whoever reads through zarr-python has imported it
    foreign = () if zarr is None else (zarr.Array,)
    for source in sources_of(values, (ArraySource, Array, *foreign)):
        read = _place_of(source)
        if read is not None and overlap(read, place):
            raise SourceIsTargetError(
                f"the dask array reads {read}, which would be written: values would be lost "
                "before they are read. Write to another place, and replace the array by it "
                "afterwards."
            )


def _place_of(source: Any) -> str | None:
    """Where a source lies; None for an array of zarr-python that is in no folder."""
    if isinstance(source, ArraySource):
        source = source.array
    if isinstance(source, Array):
        return real_place(source.store, source.path)
    root = getattr(source.store, "root", None) or getattr(source.store, "path", None)
    return None if root is None else f"{os.path.realpath(root)}/{source.path}".rstrip("/")
