"""Versions of the package, of what it uses, and of the system, for reports of problems."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["show_versions", "versions"]

_PACKAGES = (
    "zarr-dask", "numpy", "dask", "distributed", "numcodecs", "fsspec", "s3fs", "gcsfs", "adlfs",
    "aiohttp", "obstore", "zarr", "xarray", "icechunk", "kerchunk", "ml-dtypes", "isal", "blosc2",
    "google-crc32c", "zfpy", "pcodec", "matplotlib", "rich",
)  # fmt: skip


def versions() -> dict[str, str | None]:
    """Return versions by name; None for what is not installed.

    Examples
    --------
    >>> versions()["numpy"] is not None
    True
    """
    found: dict[str, str | None] = {
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def show_versions() -> None:
    """Print versions of the package, of what it can use, and of the system.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.show_versions()  # doctest: +ELLIPSIS
    python         3...
    """
    for name, found in versions().items():
        print(f"{name:<13}  {found or '-'}")  # noqa: T201  (printing is what it is for)
