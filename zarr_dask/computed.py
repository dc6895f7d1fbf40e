"""What others have computed, as NumPy arrays: what becomes of a block before it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarr_dask.errors import DataTypeError

__all__ = ["as_numpy"]


def as_numpy(block: Any, what: str) -> np.ndarray:
    """A block as a NumPy array.

    Parameters
    ----------
    block
        What a task or a rank has computed.
    what
        Names it, for messages.

    Raises
    ------
    DataTypeError
        If it is masked, or of a kind that does not become a NumPy array by itself.
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
