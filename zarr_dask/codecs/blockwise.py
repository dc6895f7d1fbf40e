"""Elementwise functions, applied block by block so that temporary arrays stay in the CPU cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["map_blocks"]

_BLOCK = 1 << 16  # elements


def map_blocks(
    function: Callable[[np.ndarray], np.ndarray],
    array: np.ndarray,
    before: np.dtype[Any],
    after: np.dtype[Any],
) -> np.ndarray:
    """Return a new array, in C order, of a function's results for the elements.

    Parameters
    ----------
    function
        Takes a 1-d array of `before` with at least one element and returns one of `after`.
    array
        Of any shape and layout.
    before, after
        Types of the elements.

    Examples
    --------
    >>> f8, i8 = np.dtype("f8"), np.dtype("i8")
    >>> map_blocks(lambda values: np.rint(values), np.array([[0.4], [1.6]]), f8, i8)
    array([[0],
           [2]])
    """
    flat = np.ascontiguousarray(array, dtype=before).reshape(-1)
    result = np.empty(flat.size, after)
    for first in range(0, flat.size, _BLOCK):
        block = slice(first, first + _BLOCK)
        result[block] = function(flat[block])
    return result.reshape(array.shape)
