"""Keywords of the functions that open and create nodes, and the peers' names for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

__all__ = [
    "NEW_ARRAY",
    "NEW_ARRAY_HABITS",
    "OPEN_HABITS",
    "CreateOptions",
    "LayoutOptions",
    "NewArrayOptions",
]


class LayoutOptions(TypedDict, total=False):
    """Keywords that say how a new array is stored; see `zarr_dask.create_array`."""

    chunks: Any
    shards: Any
    codecs: Any
    dimension_names: Any
    attributes: Mapping[str, Any] | None
    order: Literal["C", "F"]
    chunk_key_encoding: Any


class NewArrayOptions(LayoutOptions, total=False):
    """Keywords that say what a new array is like; see `zarr_dask.create_array`."""

    fill_value: Any


class CreateOptions(NewArrayOptions, total=False):
    """Keywords of `create_array` that methods of a group and `open` pass on."""

    shape: Any
    dtype: Any
    data: Any
    overwrite: bool


NEW_ARRAY = tuple(CreateOptions.__annotations__)
OPEN_HABITS = {"component": "path", "name": "path", "store": "url", "zarr_format": "format"}
NEW_ARRAY_HABITS = {
    "attrs": "attributes",
    "compressor": "codecs",
    "compressors": "codecs",
    "dims": "dimension_names",
}
"""Names of zarr-python, xarray and dask for arguments of this package."""
