"""The accessor ``zd`` of datasets, arrays and trees of xarray: ``ds.zd.to_zarr(url)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from zarr_dask.xarray.plan import DatasetPlan
from zarr_dask.xarray.write import plan_dataset, write_dataset

__all__ = ["Accessor"]


@xr.register_datatree_accessor("zd")  # type: ignore[no-untyped-call]
@xr.register_dataarray_accessor("zd")  # type: ignore[no-untyped-call]
@xr.register_dataset_accessor("zd")  # type: ignore[no-untyped-call]
class Accessor:
    """Writes what it belongs to; made by xarray for each object.

    Parameters
    ----------
    held
        A Dataset, a DataArray or a DataTree.

    Examples
    --------
    >>> import xarray as xr, zarr_dask.xarray
    >>> store = {}
    >>> report = xr.Dataset({"a": ("x", [1, 2, 3])}).zd.to_zarr(store)
    >>> report.objects
    1
    """

    def __init__(self, held: Any) -> None:
        self._held = held

    def to_zarr(
        self,
        store: Any,
        mode: Any = None,
        group: str | None = None,
        encoding: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Write it; takes what `xarray.Dataset.to_zarr` and `zarr_dask.write_dataset` take.

        ``safe_chunks`` and ``align_chunks`` change nothing: blocks are regrouped where they do not
        fit the stored objects, and no object has two writers. Nor does ``write_empty_chunks``:
        objects full of the fill value are left out.

        Raises
        ------
        TypeError
            For options of xarray that have no meaning here.
        """
        options = _without_words_of_xarray(options)
        return write_dataset(self._held, store, group, mode=mode, encoding=encoding, **options)

    def plan(
        self,
        store: Any,
        mode: Any = None,
        group: str | None = None,
        encoding: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DatasetPlan:
        """Plan to write it; takes what `to_zarr` takes."""
        options = _without_words_of_xarray(options)
        return plan_dataset(self._held, store, group, mode=mode, encoding=encoding, **options)


def _without_words_of_xarray(options: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
    version = options.pop("zarr_format", None)
    if version is not None:
        options["format"] = f"v{version}"
    if options.pop("chunkmanager_store_kwargs", None):
        raise TypeError("chunkmanager_store_kwargs= has no meaning here; leave it out.")
    return options


_WITHOUT_EFFECT = {"safe_chunks", "align_chunks", "write_empty_chunks"}
