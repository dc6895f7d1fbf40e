"""Keywords of the functions that create arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

__all__ = ["LayoutOptions", "NewArrayOptions"]


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
