"""Warnings that point at the caller's own line, however deep in this package they arise."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

from zarr_dask.errors import ZarrDaskWarning

__all__ = ["warn"]

_PACKAGE = f"{Path(__file__).parent}/"


def warn(message: str, category: type[ZarrDaskWarning] = ZarrDaskWarning) -> None:
    """Warn at the first line outside this package that led here.

    Parameters
    ----------
    message
        What is odd, where, and what to do.
    category
        Which warning.
    """
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
