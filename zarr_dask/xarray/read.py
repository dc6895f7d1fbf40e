"""Opening datasets in the words of xarray: one store, or many as one dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from glob import glob
from pathlib import Path
from typing import Any, Literal, Unpack

import xarray as xr

from zarr_dask._util.keywords import takes_habits
from zarr_dask.errors import NodeNotFoundError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.hierarchy.group import Group
from zarr_dask.stores.open import Location
from zarr_dask.xarray import OpenOptions, ZarrDaskBackend, open_dataset

__all__ = ["open_mfdataset", "open_zarr"]


class OpenManyOptions(OpenOptions, total=False):
    """Keywords of `xarray.open_mfdataset` that are handed on to it."""

    attrs_file: Any
    combine: Literal["by_coords", "nested"]
    combine_attrs: Any
    compat: Any
    concat_dim: Any
    coords: Any
    data_vars: Any
    errors: Literal["ignore", "raise", "warn"]
    join: Any
    parallel: bool
    preprocess: Callable[[xr.Dataset], xr.Dataset] | None


@takes_habits(tuple(OpenOptions.__annotations__), url="store", path="group")
def open_zarr(
    store: Location | Group,
    group: str | None = None,
    chunks: Any = "auto",
    *,
    zarr_format: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    consolidated: bool | None = None,
    **options: Unpack[OpenOptions],
) -> xr.Dataset:
    """Open a group as `xarray.open_zarr` does; the same as `zarr_dask.open_dataset`.

    Parameters
    ----------
    store, group
        The group.
    chunks
        As for `zarr_dask.open_dataset`; ``"auto"`` is the default there, ``"pieces"``.
    zarr_format
        2 or 3; detected by default.
    storage_options, read, consolidated, options
        As for `zarr_dask.open_dataset`.

    Examples
    --------
    >>> import xarray as xr
    >>> import zarr_dask as zd
    >>> store = {}
    >>> _ = zd.write_dataset(xr.Dataset({"a": ("x", [1, 2, 3])}), store)
    >>> zd.open_zarr(store)["a"].to_numpy().tolist()
    [1, 2, 3]
    """
    return open_dataset(
        store,
        group,
        "pieces" if isinstance(chunks, str) and chunks == "auto" else chunks,
        format=None if zarr_format is None else f"v{zarr_format}",
        storage_options=storage_options,
        read=read,
        consolidated=consolidated,
        **options,
    )


@takes_habits(tuple(OpenManyOptions.__annotations__), url="paths", path="group")
def open_mfdataset(
    paths: str | Iterable[Any],
    chunks: Any = "objects",
    *,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    consolidated: bool | None = None,
    **options: Unpack[OpenManyOptions],
) -> xr.Dataset:
    """Open several stores as one lazy dataset, as `xarray.open_mfdataset` does.

    Parameters
    ----------
    paths
        Paths or URLs, or a pattern of local paths such as ``"runs/*.zarr"``.
    chunks
        ``"objects"`` for one stored object per block, or what `xarray.open_mfdataset` takes.
    group, storage_options, read, consolidated
        As for `zarr_dask.open_dataset`, for each store.
    options
        Options of ``xarray.open_mfdataset``: ``combine``, ``concat_dim``, ``preprocess``,
        ``parallel``, ``join`` and so on.

    Raises
    ------
    NodeNotFoundError
        If a pattern matches no local path.
    """
    if isinstance(paths, str) and "://" not in paths and not glob(str(Path(paths).expanduser())):  # noqa: PTH207
        raise NodeNotFoundError(paths, [], "The pattern matches no local path.")
    return xr.open_mfdataset(
        paths,  # type: ignore[arg-type]  # xarray takes more than it says
        chunks={} if isinstance(chunks, str) and chunks == "objects" else chunks,
        engine=ZarrDaskBackend,
        inline_array=True,
        group=group,
        storage_options=storage_options,
        read=read,
        consolidated=consolidated,
        **options,
    )
