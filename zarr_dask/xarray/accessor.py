"""The accessor ``zd`` of datasets, arrays and trees of xarray: ``ds.zd.to_zarr(url)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Unpack

import dask
import xarray as xr

from zarr_dask._util.keywords import did_you_mean, takes_habits
from zarr_dask.jobs.write.dataset_keywords import DatasetPlanOptions, DatasetWriteOptions
from zarr_dask.xarray import open_dataset
from zarr_dask.xarray.plan import DatasetPlan
from zarr_dask.xarray.write import as_dataset, plan_dataset, write_dataset

__all__ = ["Accessor"]


class Accessor:
    """Writes what it belongs to; made by xarray for each object.

    Parameters
    ----------
    held
        A Dataset, a DataArray or a DataTree.

    Examples
    --------
    >>> import xarray as xr, zarr_dask
    >>> store = {}
    >>> report = xr.Dataset({"a": ("x", [1, 2, 3])}).zd.to_zarr(store)
    >>> report.objects
    1
    """

    def __init__(self, held: Any) -> None:
        self._held = held

    def __repr__(self) -> str:
        kind, names = type(self._held).__name__, ", ".join(_METHODS)
        return f"<zarr_dask of a {kind}: {names}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        hint = _INSTEAD.get(name) or f"It has {', '.join(_METHODS)}.{did_you_mean(name, _METHODS)}"
        raise AttributeError(f"the accessor zd has no {name!r}. {hint}")

    @takes_habits(tuple(DatasetWriteOptions.__annotations__), url="store", path="group")
    def to_zarr(
        self,
        store: Any,
        mode: Any = None,
        group: str | None = None,
        encoding: Mapping[str, Any] | None = None,
        **options: Unpack[DatasetWriteOptions],
    ) -> Any:
        """Write it; takes what `xarray.Dataset.to_zarr` and `zarr_dask.write_dataset` take.

        ``safe_chunks`` and ``align_chunks`` change nothing: blocks are regrouped where they do not
        fit the stored objects, and no object has two writers. Nor does ``write_empty_chunks``:
        objects full of the fill value are left out. With ``compute=False`` a `dask.delayed.Delayed`
        is returned, as xarray returns it.

        Raises
        ------
        TypeError
            For options of xarray that have no meaning here.
        """
        known = _without_words_of_xarray(options)
        written = write_dataset(self._held, store, group, mode=mode, encoding=encoding, **known)
        return written if known.get("compute", True) else dask.delayed(written)

    @takes_habits(tuple(DatasetPlanOptions.__annotations__), url="store", path="group")
    def plan(
        self,
        store: Any,
        mode: Any = None,
        group: str | None = None,
        encoding: Mapping[str, Any] | None = None,
        **options: Unpack[DatasetPlanOptions],
    ) -> DatasetPlan:
        """Plan to write it; takes what `to_zarr` takes."""
        known = _without_words_of_xarray(options)
        return plan_dataset(self._held, store, group, mode=mode, encoding=encoding, **known)

    def compare(self, url: Any, group: str | None = None, **options: Any) -> dict[str, str]:
        """Compare a dataset with a stored one.

        Parameters
        ----------
        url, group
            The stored dataset.
        options
            As for `zarr_dask.open_dataset`.

        Returns
        -------
        dict
            What differs, by name of the variable; "" is the dataset itself. Empty if nothing does.

        Examples
        --------
        >>> import xarray as xr, zarr_dask
        >>> store, ds = {}, xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [3, 4])})
        >>> _ = ds.zd.to_zarr(store)
        >>> ds.zd.compare(store), ds.assign(b=ds.a).zd.compare(store)
        ({}, {'b': 'values'})
        """
        if isinstance(self._held, xr.DataTree):
            raise TypeError(
                "a tree is compared node by node: tree[path].to_dataset().zd.compare(url, path)."
            )
        held, other = self._dataset(), open_dataset(url, group, **options)
        own, theirs = (xr.Dataset(attrs=one.attrs) for one in (held, other))
        found = {} if own.identical(theirs) else {"": "attributes"}
        names = dict.fromkeys([*held.variables, *other.variables])
        differences = {str(name): _difference(name, held, other) for name in names}
        return found | {name: one for name, one in differences.items() if one}

    def _dataset(self) -> Any:
        """Return what is held, an array as the dataset that is written of it."""
        return as_dataset(self._held) if isinstance(self._held, xr.DataArray) else self._held

    def info(self) -> str:
        """Return the arrays of a dataset, with the grids that they were read with."""
        lines = [f"{'variable':<20} {'type':<12} {'shape':<24} {'chunks':<20} shards"]
        for name, one in self._dataset().variables.items():
            chunks, shards = (one.encoding.get(key) for key in ("chunks", "shards"))
            cells = " ".join(f"{cell!s:<20}" for cell in (chunks or "", shards or ""))
            lines.append(f"{name!s:<20} {one.dtype!s:<12} {one.shape!s:<24} {cells}".rstrip())
        return "\n".join(lines)


def _difference(name: Any, one: xr.Dataset, other: xr.Dataset) -> str:
    if name not in one.variables or name not in other.variables:
        return "missing"
    a, b = one.variables[name], other.variables[name]
    if (a.dims, a.shape) != (b.dims, b.shape):
        return "dimensions"
    if not a.equals(b):  # type: ignore[no-untyped-call]
        return "values"
    is_same = a.identical(b)  # type: ignore[no-untyped-call]
    return "" if is_same else "attributes"


def _without_words_of_xarray(given: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in given.items() if key not in _WITHOUT_EFFECT}
    version = options.pop("zarr_format", None)
    if version is not None:
        options["format"] = f"v{version}"
    if options.pop("chunkmanager_store_kwargs", None):
        raise TypeError("chunkmanager_store_kwargs= has no meaning here; leave it out.")
    return options


_METHODS = ("compare", "info", "plan", "to_zarr")
_INSTEAD = {
    **dict.fromkeys(("dump", "save", "store", "write"), ".zd.to_zarr(url) writes it."),
    **dict.fromkeys(("check", "validate", "verify"), "zarr_dask.verify(url) does it."),
    "append": ".zd.to_zarr(url, append_dim='time') appends.",
    "open": "zarr_dask.open_dataset(url) opens what is stored.",
    "rechunk": "zarr_dask.rechunk(ds, url, chunks={'time': -1}) writes it in other chunks.",
}
"""Names that the accessor does not have, and what to call instead."""
_WITHOUT_EFFECT = {"safe_chunks", "align_chunks", "write_empty_chunks"}
