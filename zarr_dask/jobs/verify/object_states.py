"""States of the stored objects of an array, as `zarr_dask.verify` finds them.

Of an array that claims many more objects than there are, which a few bytes of metadata can do, only
those that are not absent take memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from zarr_dask.grid.grid import Shape
from zarr_dask.jobs.verify.scan import STATES

__all__ = ["ObjectStates"]

_ABSENT = STATES.index("absent")
_SMALL = 1 << 24
"""Most objects of an array that have a byte each, however many of them are absent."""
_SPARSE = 256
"""Least number of objects for one that is looked at, whose state takes about so many bytes."""


class ObjectStates:
    """The state of each stored object, by its number; absent unless known otherwise.

    Parameters
    ----------
    counts
        Stored objects along each dimension.
    known
        Number of those that are going to be looked at.

    Examples
    --------
    >>> states = ObjectStates((1 << 20, 1 << 10), known=2)
    >>> states.put([5, 7], bytes([0, 3]))
    >>> states[5], states[6], states.tally()[:4]
    (0, 2, [1, 0, 1073741822, 1])
    """

    __slots__ = ("_codes", "counts")  # there is one for each of many small arrays

    def __init__(self, counts: Shape, known: int) -> None:
        self.counts = counts
        size = prod(counts)
        is_sparse = size > _SMALL and known < size // _SPARSE
        self._codes: bytearray | dict[int, int] = {} if is_sparse else bytearray([_ABSENT]) * size

    @staticmethod
    def of(codes: np.ndarray) -> ObjectStates:
        """Return the states of objects whose indices in `STATES` are in an array of their shape."""
        states = ObjectStates(codes.shape, codes.size)
        states._codes = bytearray(codes.astype(np.uint8).tobytes())
        return states

    @property
    def size(self) -> int:
        """Number of objects."""
        return prod(self.counts)

    def put(self, cells: Sequence[int], codes: bytes) -> None:
        """Set the states of some objects."""
        if isinstance(self._codes, dict):
            self._codes.update(zip(cells, codes, strict=True))
        else:
            np.frombuffer(self._codes, np.uint8)[cells] = np.frombuffer(codes, np.uint8)

    def __getitem__(self, cell: int) -> int:
        if isinstance(self._codes, dict):
            return self._codes.get(cell, _ABSENT)
        return self._codes[cell]

    def __setitem__(self, cell: int, code: int) -> None:
        self.put([cell], bytes([code]))

    def absent(self) -> Iterator[int]:
        """Yield the numbers of the absent objects."""
        if isinstance(self._codes, dict):
            yield from (cell for cell in range(self.size) if self[cell] == _ABSENT)
            return
        cell = self._codes.find(_ABSENT)
        while cell >= 0:
            yield cell
            cell = self._codes.find(_ABSENT, cell + 1)

    def tally(self) -> list[int]:
        """Return the number of objects in each of `STATES`."""
        if isinstance(self._codes, dict):
            known = Counter(self._codes.values())
            known[_ABSENT] += self.size - len(self._codes)
            return [known[code] for code in range(len(STATES))]
        return [self._codes.count(code) for code in range(len(STATES))]

    def codes(self) -> np.ndarray:
        """Return the index in `STATES` of each object, in the shape of the grid."""
        if not isinstance(self._codes, dict):
            return np.frombuffer(self._codes, np.uint8).reshape(self.counts)
        found = np.full(self.size, _ABSENT, np.uint8)
        found[[*self._codes]] = [*self._codes.values()]
        return found.reshape(self.counts)

    def image(self, rows: int, columns: int) -> np.ndarray:
        """Return the worst states in at most this many rows and columns.

        They show the last two dimensions, with the others overlaid.
        """
        if not isinstance(self._codes, dict):
            return _binned(_flat(self.codes()), rows, columns)
        height, width = (1, *self.counts)[-2:]
        numbers = np.fromiter(self._codes, np.int64, len(self._codes))
        row, row_sizes = _bins(numbers // width % height, height, rows)
        column, column_sizes = _bins(numbers % width, width, columns)
        overlaid = self.size // (height * width)
        worst = np.zeros((len(row_sizes), len(column_sizes)), np.uint8)
        known = np.zeros(worst.shape, np.int64)
        np.maximum.at(worst, (row, column), [*self._codes.values()])
        np.add.at(known, (row, column), 1)
        has_absent = known < overlaid * np.outer(row_sizes, column_sizes)
        return np.where(has_absent, np.maximum(worst, _ABSENT), worst)


def _bins(indices: np.ndarray, length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bin of each index along one axis, and the lengths of all bins."""
    starts = _starts(length, most)
    return np.searchsorted(starts, indices, "right") - 1, np.diff(starts, append=length)


def _starts(length: int, most: int) -> np.ndarray:
    return np.linspace(0, length, min(most, length), endpoint=False).astype(np.int64)


def _flat(states: np.ndarray) -> np.ndarray:
    """Return the worst states along all dimensions but the last two."""
    while states.ndim > 2:
        states = states.max(axis=0) if len(states) else np.zeros(states.shape[1:], states.dtype)
    return np.atleast_2d(states)


def _binned(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return at most this many rows and columns, with the worst state of each bin."""
    for axis, most in enumerate((rows, columns)):
        length = image.shape[axis]
        if length > most:
            image = np.maximum.reduceat(image, _starts(length, most), axis=axis)
    return image
