"""Conversion of computed blocks to NumPy arrays before they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarr_dask.errors import DataTypeError

__all__ = ["to_numpy"]


def to_numpy(block: Any, what: str) -> np.ndarray:
    """Return a block as a NumPy array.

    Parameters
    ----------
    block
        Result of a task or a rank.
    what
        Name of the block, for messages.

    Raises
    ------
    DataTypeError
        If it is masked, or of a type that is not converted to a NumPy array implicitly.
    """
    if isinstance(block, np.ma.MaskedArray):
        raise DataTypeError(
            f"{what} is masked, and a mask cannot be stored; fill it first (numpy.ma.filled, "
            "dask.array.ma.filled)."
        )
    try:
        return np.asarray(block)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"{type(block).__module__.partition('.')[0]}.{type(block).__qualname__}"
        raise DataTypeError(
            f"{what} is of the kind {kind}, which does not become a NumPy array ({error}). Convert "
            "it first, for instance by map_blocks with cupy.asnumpy or the todense of a sparse one."
        ) from error
