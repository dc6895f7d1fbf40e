"""Files that an engine of xarray reads: GRIB, HDF4, and whatever else has one; and Zarr."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from zarr_dask.errors import IngestError, MissingDependencyError
from zarr_dask.jobs.ingest.hdf5 import pieces
from zarr_dask.jobs.ingest.header import Variable, encoded
from zarr_dask.jobs.ingest.source_file import SourceFile

__all__ = ["ZARR", "Opened", "open_with"]

_FAILURES: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    EOFError,
)
"""Exceptions of engines about files."""


ZARR = "zarr_dask"
"""The engine of this package."""


class Opened:
    """A file that xarray has opened.

    Parameters
    ----------
    dataset
        The dataset, without the conventions applied.
    failures
        Exceptions of the engine.
    lock
        Held while values are read.
    """

    def __init__(
        self,
        dataset: Any,
        failures: tuple[type[Exception], ...],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._dataset = dataset
        self._failures = failures
        self._lock = lock

    def header(self) -> tuple[dict[str, dict[str, Any]], dict[str, Variable]]:
        """Return the attributes of the root group, and the variables."""
        variables = {str(name): _variable(one) for name, one in self._dataset.variables.items()}
        return {"": _attributes(self._dataset.attrs)}, variables

    def read(self, name: str, region: tuple[slice, ...]) -> np.ndarray:
        """Return a region of a variable; texts as objects, times as integers.

        Raises
        ------
        OSError
            If the engine cannot read it.
        """
        try:
            with self._lock:
                values = np.asarray(self._dataset.variables[name][region].values)
        except self._failures as error:
            raise OSError(str(error)) from error
        if values.dtype.kind in "mM":
            return values.astype(f"{values.dtype.kind}8[ns]").view("i8")
        return values.astype(object) if values.dtype.kind in "TU" else values


def open_with(engine: str, place: SourceFile) -> Opened:
    """Return a file opened by an engine of xarray.

    Parameters
    ----------
    engine
        Name of the engine, perhaps with options: ``"cfgrib:typeOfLevel=surface,level=0"``. Those of
        cfgrib are keys of messages.
    place
        Location of the file.

    Raises
    ------
    MissingDependencyError
        If xarray or the engine is not installed.
    IngestError
        If the engine cannot read it.
    """
    url = place.url
    try:
        import xarray as xr
    except ImportError:
        raise MissingDependencyError(
            f"{url} is read by xarray, which is not installed: pip install 'zarr-dask[xarray]'."
        ) from None
    name, options = _parsed(engine)
    if name not in xr.backends.list_engines():
        extra = " (pip install 'zarr-dask[grib]')" if name == "cfgrib" else ""
        raise MissingDependencyError(
            f"{url} needs xarray's engine {name!r}, which is not installed{extra}; there are "
            f"{', '.join(xr.backends.list_engines())}."
        )
    hint, failures, lock = "", _FAILURES, threading.Lock() if name != ZARR else nullcontext()
    if name == ZARR:
        options = {"storage_options": dict(place.options), **options}
    if name == "cfgrib":  # by default it leaves out what does not fit, and only logs that
        from gribapi.errors import GribInternalError

        failures = (*failures, GribInternalError)
        options = {"filter_by_keys": options, "errors": "raise"}
        hint = (
            " If its messages are of several kinds, choose some by their keys, as in "
            "engine='cfgrib:typeOfLevel=heightAboveGround,level=2'."
        )
    try:
        found = xr.open_dataset(
            url, engine=name, decode_cf=False, chunks=None, cache=False, **options
        )
    except failures as error:
        raise IngestError(
            f"{url}: xarray's engine {name!r} cannot read it ({error}).{hint}"
        ) from error
    return Opened(found, failures, lock)


def _parsed(engine: str) -> tuple[str, dict[str, Any]]:
    """Return the name of an engine and its options; numbers become integers.

    Raises
    ------
    IngestError
        If an option has no value.

    Examples
    --------
    >>> _parsed("cfgrib:typeOfLevel=surface,level=0")
    ('cfgrib', {'typeOfLevel': 'surface', 'level': 0})
    """
    name, _, text = engine.partition(":")
    pairs = [pair.partition("=") for pair in text.split(",") if text]
    if not all(key and value for key, _, value in pairs):
        raise IngestError(f"engine {engine!r}: expected NAME:KEY=VALUE,KEY=VALUE.")
    return name, {k: int(v) if re.fullmatch(r"-?\d+", v) else v for k, _, v in pairs}


def _variable(one: Any) -> Variable:
    dims, shape = tuple(map(str, one.dims)), tuple(map(int, one.shape))
    attrs = _attributes(one.attrs)
    dtype, unsupported = one.dtype, ""
    if dtype.kind in "mM":
        attrs["units"] = "nanoseconds since 1970-01-01" if dtype.kind == "M" else "nanoseconds"
        text = "<i8"
    elif dtype.kind in "OTU":
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
