"""Appends that are gathered until stored objects are full.

One append after the other would read, change and write the last stored object again each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from zarr_dask.array.resize import append_region
from zarr_dask.errors import StoreError
from zarr_dask.grid.grid import Region, Shape

__all__ = ["AppendBatch"]

_MOST_HELD = 1 << 26
"""Bytes of elements that are held until a stored object is full."""


class AppendBatch:
    """Gathers elements that are appended to an array; safe from many threads.

    Parameters
    ----------
    shape
        Shape of the array.
    cells
        Length of stored objects along each dimension; 1 where each append is written at once.
    write
        Writes elements to a region of the array, which has grown to a shape.
    """

    def __init__(
        self, shape: Shape, cells: Shape, write: Callable[[Shape, Region, np.ndarray], None]
    ) -> None:
        self.shape = shape
        """Shape of the array with all that has been written."""
        self._cells, self._write = cells, write
        self._axis = 0
        self._held: list[np.ndarray] = []
        self._count = self._nbytes = 0
        self._lock = threading.Lock()
        self._failed: BaseException | None = None

    def append(self, values: np.ndarray, axis: int) -> None:
        """Add elements behind all others along a dimension.

        Raises
        ------
        GridError
            If the shapes do not fit together.
        StoreError
            If an earlier append of the batch has failed.
        """
        with self._lock:
            self._check()
            end, _ = append_region(self._end, values.shape, axis)
            axis %= len(end)
            if axis != self._axis:
                self._flush(self.shape[self._axis] + self._count)
                self._axis = axis
            self._held.append(values.copy())
            self._count += values.shape[axis]
            self._nbytes += values.nbytes
            full = end[axis] // self._cells[axis] * self._cells[axis]
            self._flush(end[axis] if self._nbytes > _MOST_HELD else full)

    def close(self) -> None:
        """Write the elements that are held.

        Raises
        ------
        StoreError
            If an append has failed, whose elements the array does not have.
        """
        with self._lock:
            self._check()
            self._flush(self.shape[self._axis] + self._count)

    @property
    def _end(self) -> Shape:
        axis = self._axis
        return (*self.shape[:axis], self.shape[axis] + self._count, *self.shape[axis + 1 :])

    def _check(self) -> None:
        if self._failed is not None:
            raise StoreError(
                f"an append of this batch has failed ({self._failed}): the array ends with the "
                f"elements that were written before, at the shape {self.shape}. Begin a new batch "
                "and append the others again."
            ) from self._failed

    def _flush(self, stop: int) -> None:
        """Write the elements that are held up to a position."""
        axis = self._axis
        begin = self.shape[axis]
        if stop <= begin or not self._held:
            return
        values = np.concatenate(self._held, axis) if len(self._held) > 1 else self._held[0]
        before = (slice(None),) * axis
        written = values[(*before, slice(stop - begin))]
        shape, region = append_region(self.shape, written.shape, axis)
        try:
            self._write(shape, region, written)
        except BaseException as error:
            self._failed = error
            raise
        rest = values[(*before, slice(stop - begin, None))]
        self._held = [rest.copy()] if rest.shape[axis] else []
        self._count, self._nbytes = rest.shape[axis], rest.nbytes
        self.shape = shape
