"""The formats that conventions for contents prescribe."""

from __future__ import annotations

from collections.abc import Mapping

from zarr_dask.formats.base import Format
from zarr_dask.formats.v2 import V2
from zarr_dask.formats.v3 import V3

__all__ = ["OME_ZARR"]

OME_ZARR: Mapping[str, Format] = {"0.4": V2, "0.5": V3}
"""The format of each version of OME-Zarr."""
