"""Copying elements between arrays that have their rows in one piece."""

from __future__ import annotations

import numpy as np

__all__ = ["put"]

_MANY = 1 << 15  # bytes: 3 us to find out how to copy are little beside that
_LONGEST = (1 << 31) - 1  # bytes of what NumPy takes for one element


def put(elements: np.ndarray, into: np.ndarray) -> None:
    """As ``into[...] = elements``, of which NumPy takes up to twice the time for short rows.

    It copies a row element by element; told that a row is one element, it copies it at once.

    Examples
    --------
    >>> values = np.arange(1 << 16, dtype="f4").reshape(-1, 64)
    >>> part = np.empty((1024, 16), "f4")
    >>> put(values[:, 16:32], into=part)
    >>> bool((part == values[:, 16:32]).all())
    True
    """
    if elements.nbytes >= _MANY and _have_rows(elements, into):
        row = np.dtype((np.void, elements.shape[-1] * elements.itemsize))
        into.view(row)[...] = elements.view(row)
    else:
        into[...] = elements


def _have_rows(elements: np.ndarray, into: np.ndarray) -> bool:
    """Whether both have rows of the same elements, each in one piece."""
    return (
        elements.ndim > 1
        and elements.shape == into.shape
        and 1 < elements.shape[-1] <= _LONGEST // elements.itemsize
        and elements.strides[-1] == elements.itemsize == into.strides[-1]
        and elements.dtype == into.dtype
        and not elements.dtype.hasobject
        and elements.dtype.kind != "T"  # texts of any length, which are somewhere else
    )
