"""Reading a stored array as a dask array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.formats.base import ReadOptions
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["from_zarr"]


@takes_habits(path="component", group="component")
def from_zarr(
    url: Location | Array,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    chunks: Any = None,
    name: str | None = None,
    inline_array: bool = True,  # noqa: ARG001  (dask's keyword; the source is always inlined)
    read: ReadOptions | None = None,
) -> da.Array:
    """Return an array in a store as a lazy dask array.

    Parameters
    ----------
    url
        A path, a URL, a store, a mapping, or an open `Array`.
    component
        Path below it.
    storage_options
        Options of the store.
    chunks
        Blocks; by default one stored object each, or several of a remote store (see
        `Array.to_dask`).
    name
        Name of the array in the graph; by default derived from the array and its metadata.
    inline_array
        Accepted for compatibility with ``dask.array.from_zarr``; it makes no difference here.
    read
        How to read.

    Raises
    ------
    NodeNotFoundError
        If there is no array.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 8), dtype="f4", chunks=(2, 2), shards=(4, 4))
    >>> zd.from_zarr(a).chunks, zd.from_zarr(a, chunks="chunks").numblocks
    (((4, 4), (4, 4)), (4, 4))
    """
    if isinstance(url, Array) and not (component or read or storage_options):
        return url.to_dask(chunks, name=name)
    return open_array(url, component or "", "r", None, storage_options, read).to_dask(
        chunks, name=name
    )
