"""Images in TIFF files as arrays of Zarr, which tifffile serves tile by tile or strip by strip.

tifffile's own stores hold an open file, so that no other process can have them. This one is the
path and the number of the image: each process opens the file once.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from zarr_dask.errors import MissingDependencyError, StoreError
from zarr_dask.stores.backends.zarr_python import ZarrPythonStore
from zarr_dask.stores.wrappers.base import ReadOnly

__all__ = ["open_tiff", "tiff_store"]

_MOST_OPEN = 8
"""Number of files that a process keeps open."""
_MOST_SERVED = 256
"""Number of images in them that it keeps."""


@dataclass(frozen=True, eq=False)
class TiffStore(ZarrPythonStore):
    """One image of a TIFF file."""

    path: str
    series: int
    version: tuple[int, int]
    """Size and time of the file when it was opened first."""

    @property
    def url(self) -> str:
        """The path of the file."""
        return self.path

    @property
    def identity(self) -> str:
        """The path of the file, its version, and the number of the image."""
        size, time = self.version
        return f"tiff:{self.path}:{size}:{time}:{self.series}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.path, self.series, self.version)


def open_tiff(path: str) -> Any:
    """Return a file as tifffile's ``TiffFile``, to be closed by the caller.

    Raises
    ------
    MissingDependencyError
        If tifffile is not installed.
    StoreError
        If it cannot be read as TIFF.
    """
    try:
        import tifffile
    except ImportError:
        raise MissingDependencyError(
            "TIFF files are read by tifffile, which is not installed: "
            "pip install 'zarr-dask[tiff]'."
        ) from None
    try:
        return tifffile.TiffFile(path)
    except (OSError, tifffile.TiffFileError) as error:
        raise StoreError(f"cannot read {path} as TIFF: {error}") from error


def tiff_store(path: str, series: int) -> ReadOnly:
    """Return an image of a TIFF file as a store with one array at its root.

    Raises
    ------
    MissingDependencyError
        If tifffile or zarr is not installed.
    StoreError
        If the file cannot be read as TIFF.
    """
    whole = os.path.realpath(path)
    try:
        told = Path(whole).stat()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return ReadOnly(_opened(whole, series, (told.st_size, told.st_mtime_ns)))


@lru_cache(_MOST_SERVED)
def _opened(path: str, series: int, version: tuple[int, int]) -> TiffStore:
    try:
        served = _file(path, version).series[series].aszarr(level=0)
    except ImportError as error:
        raise MissingDependencyError(
            f"tifffile reads images through zarr ({error}): pip install 'zarr-dask[tiff]'."
        ) from error
    return TiffStore(served, path, series, version)


@lru_cache(_MOST_OPEN)
def _file(path: str, version: tuple[int, int]) -> Any:  # noqa: ARG001  (another version is another file)
    file = open_tiff(path)
    weakref.finalize(file, file.filehandle.close)
    return file
