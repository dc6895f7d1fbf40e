"""The public `copy`, `rechunk` and their plans: each takes sources of every kind.

A stored array or group is copied, a rechunked group is a copy with other grids. Dask arrays and
arrays in memory are written, datasets of xarray too. The other way round see
`zarr_dask.jobs.dispatch_write`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.array.view import View
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import options_of_both
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.jobs.copy import copy as copies
from zarr_dask.jobs.engine.grid_arguments import parse_region_argument
from zarr_dask.jobs.engine.map_regions import is_dask
from zarr_dask.jobs.rechunk import rechunk as arrays
from zarr_dask.jobs.write.request import is_of_xarray
from zarr_dask.jobs.write.running import WritePlan
from zarr_dask.jobs.write.write import plan_write

__all__ = ["copy", "plan_copy", "plan_rechunk", "rechunk"]

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = {
    "target": "dst",
    "target_store": "dst",
    "target_chunks": "chunks",
    "temp_store": "temp",
}
"""Keywords of a rechunking, as a copy calls them."""
_SOURCES = {"source": "src", "target": "dst", "zarr_format": "format", "component": "path"}
"""Other keywords of a copy."""


def _any_rechunked(of_arrays: F, of_groups: Callable[..., Any], *, runs: bool) -> F:
    """Let a function that rechunks arrays take groups and datasets as well."""

    @wraps(of_arrays)
    def call(*args: Any, **options: Any) -> Any:
        source, *others = args or (options.pop("source", None),)
        if is_of_xarray(source):
            return _dataset(source, *others, runs=runs, **_renamed(options, _NAMES))
        opened = source is None or isinstance(source, Array | list | tuple | np.ndarray)
        if opened or is_dask(source):
            return of_arrays(source, *others, **options)
        given = (options.pop(name, None) for name in ("storage_options", "target_options"))
        own, options["target_options"] = options_of_both(source, *given)
        node = open_node(source, storage_options=own, read=options.get("read"))
        if not isinstance(node, Group):
            return of_arrays(node, *others, **options)
        return of_groups(node, *others, **_renamed(options, _NAMES))

    return cast("F", call)


def _any_copied(of_nodes: F, *, runs: bool) -> F:
    """Let a function that copies nodes take values and datasets as well."""

    @wraps(of_nodes)
    def call(*args: Any, **options: Any) -> Any:
        options = _renamed(options, _SOURCES)
        source, *others = args or (options.pop("src", None),)
        if is_of_xarray(source):
            return _dataset(source, *others, runs=runs, **options)
        if is_dask(source) or isinstance(source, np.ndarray | View):
            return _values(source, *others, runs=runs, **options)
        return of_nodes(source, *others, **options)

    return cast("F", call)


def _renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): given for name, given in options.items()}


def _values(
    values: Any,
    dst: Any,
    *,
    runs: bool,
    path: str = "",
    region: Any = None,
    dtype: Any = None,
    client: Any = None,
    progress: Any = None,
    **options: Any,
) -> Any:
    """Write values that are not stored yet."""
    if region is not None:
        values = values[parse_region_argument(region, values.shape, (), "the array")]
    if dtype is not None:
        values = values.astype(dtype)
    storage_options = _taken(options)
    plan: WritePlan = plan_write(values, dst, path or None, storage_options, **options)
    return plan.run(client, progress) if runs else plan


def _dataset(
    dataset: Any,
    dst: Any,
    *,
    runs: bool,
    path: str = "",
    region: Any = None,
    overwrite: bool = False,
    **options: Any,
) -> Any:
    """Write a dataset, an array or a tree of xarray."""
    if region is not None:
        dataset = dataset.isel(region)
    storage_options = _taken(options)
    write = dataset.zd.to_zarr if runs else dataset.zd.plan
    mode = "w" if overwrite else None
    return write(dst, mode, path or None, storage_options=storage_options, **options)


def _taken(options: dict[str, Any]) -> Mapping[str, Any] | None:
    """Take the options of the target's store, and arguments without a value, out of the others."""
    for name in [name for name, given in options.items() if given is None]:
        del options[name]
    own: Mapping[str, Any] | None = options.pop("storage_options", None)
    return cast("Mapping[str, Any] | None", options.pop("target_options", own))


plan_copy = _any_copied(copies.plan_copy, runs=False)
copy = _any_copied(copies.copy, runs=True)
plan_rechunk = _any_rechunked(arrays.plan_rechunk, copies.plan_copy, runs=False)
rechunk = _any_rechunked(arrays.rechunk, copies.copy, runs=True)
