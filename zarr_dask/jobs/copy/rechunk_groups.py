"""Rechunking of groups: copies with other grids, under the names `rechunk` and `plan_rechunk`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.group import open as open_node
from zarr_dask.jobs.copy import copy as copies
from zarr_dask.jobs.engine.map_regions import is_dask
from zarr_dask.jobs.rechunk import rechunk as arrays

__all__ = ["plan_rechunk", "rechunk"]

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = {
    "target": "dst",
    "target_store": "dst",
    "target_chunks": "chunks",
    "temp_store": "temp",
    "storage_options": "target_options",
}
"""Keywords of a rechunking, as a copy calls them."""


def _also_groups(of_arrays: F, of_groups: Callable[..., Any]) -> F:
    """Let a function that rechunks arrays take a group as well."""

    @wraps(of_arrays)
    def call(*args: Any, **options: Any) -> Any:
        source, *others = args or (options.pop("source", None),)
        opened = source is None or isinstance(source, Array | list | tuple | np.ndarray)
        if opened or is_dask(source):
            return of_arrays(source, *others, **options)
        node = open_node(source)
        if not isinstance(node, Group):
            return of_arrays(node, *others, **options)
        return of_groups(
            node, *others, **{_NAMES.get(name, name): one for name, one in options.items()}
        )

    return cast("F", call)


plan_rechunk = _also_groups(arrays.plan_rechunk, copies.plan_copy)
rechunk = _also_groups(arrays.rechunk, copies.copy)
