"""Files that an engine of xarray reads: GRIB, HDF4, Zarr, and whatever else has one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarr_dask.errors import IngestError, MissingDependencyError
from zarr_dask.jobs.ingest.hdf5 import pieces
from zarr_dask.jobs.ingest.header import Variable, encoded

__all__ = ["Opened", "open_with"]


class Opened:
    """A file that xarray has opened; read by one thread at a time.

    Parameters
    ----------
    dataset
        The dataset, without the conventions applied.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._lock = threading.Lock()

    def header(self) -> tuple[dict[str, dict[str, Any]], dict[str, Variable]]:
        """Return the attributes of the root group, and the variables."""
        variables = {str(name): _variable(one) for name, one in self._dataset.variables.items()}
        return {"": _attributes(self._dataset.attrs)}, variables

    def read(self, name: str, region: tuple[slice, ...]) -> np.ndarray:
        """Return a region of a variable; texts as objects, times as integers."""
        with self._lock:
            values = np.asarray(self._dataset.variables[name][region].values)
        if values.dtype.kind in "mM":
            return values.astype(f"{values.dtype.kind}8[ns]").view("i8")
        return values.astype(object) if values.dtype.kind == "U" else values


def open_with(engine: str, url: str) -> Opened:
    """Return a file opened by an engine of xarray.

    Raises
    ------
    MissingDependencyError
        If xarray or the engine is not installed.
    IngestError
        If the engine cannot read it.
    """
    try:
        import xarray as xr
    except ImportError:
        raise MissingDependencyError(
            f"{url} is read by xarray, which is not installed: pip install 'zarr-dask[xarray]'."
        ) from None
    if engine not in xr.backends.list_engines():
        raise MissingDependencyError(
            f"{url} needs xarray's engine {engine!r}, which is not installed; there are "
            f"{', '.join(xr.backends.list_engines())}."
        )
    try:
        return Opened(
            xr.open_dataset(url, engine=engine, decode_cf=False, chunks=None, cache=False)
        )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise IngestError(f"{url}: xarray's engine {engine!r} cannot read it ({error}).") from error


def _variable(one: Any) -> Variable:
    dims, shape = tuple(map(str, one.dims)), tuple(map(int, one.shape))
    attrs = _attributes(one.attrs)
    dtype, unsupported = one.dtype, ""
    if dtype.kind in "mM":
        attrs["units"] = "nanoseconds since 1970-01-01" if dtype.kind == "M" else "nanoseconds"
        text = "<i8"
    elif dtype.kind in "OU":
        text = "string"
    elif dtype.kind in "iufcbS":
        text = dtype.str
    else:
        text, unsupported = "|u1", f"has the data type {dtype}"
    preferred = one.encoding.get("preferred_chunks")
    if isinstance(preferred, Mapping) and all(isinstance(preferred.get(d), int) for d in dims):
        chunks = tuple(max(preferred[name], 1) for name in dims)
    else:
        chunks = pieces(shape, 16 if text == "string" else np.dtype(text).itemsize)
    return Variable(dims, shape, text, attrs, "values", chunks, unsupported=unsupported)


def _attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): encoded(v) for k, v in attrs.items() if not str(k).lower().startswith("_nc")}
