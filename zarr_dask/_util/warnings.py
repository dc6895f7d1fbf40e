"""Warnings that point at the caller's own line, however deep in this package they are raised."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from zarr_dask.errors import ZarrDaskWarning

__all__ = ["warn", "without_warnings"]

# a context manager that decorates a function calls it from contextlib
_PASSED_OVER = (f"{Path(__file__).parent.parent}/", contextlib.__file__)
_SILENT: ContextVar[bool] = ContextVar("_SILENT", default=False)


def warn(message: str, category: type[ZarrDaskWarning] = ZarrDaskWarning) -> None:
    """Warn at the innermost line outside this package that led here.

    Parameters
    ----------
    message
        The irregularity, its location, and the remedy.
    category
        Class of the warning.
    """
    if _SILENT.get():
        return
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence `warn` in this context: what is read again was warned of when it was opened."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)
