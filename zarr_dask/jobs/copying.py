"""Copying one stage of a rechunking, task by task.

A task reads a box of the source and writes the stored objects of the target that lie in it, one
after the other; what it does depends on its number only. Where the data types differ the values
are converted, and a number that the new one cannot hold is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarr_dask.array import Array
from zarr_dask.errors import DataTypeError
from zarr_dask.grid import Region, Shape, shifted
from zarr_dask.jobs.plan import format_region
from zarr_dask.jobs.stages import StagePlan
from zarr_dask.scratch import keeping_freed_memory

__all__ = ["Copied", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One pass over the array, bound to what it reads and writes."""

    plan: StagePlan
    source: Array
    target: Array
    origin: Shape
    """First element of the source that is copied."""

    def copy(self, number: int) -> Copied:
        """Copy one box: read it whole, write its stored objects one by one."""
        with keeping_freed_memory():
            return self._copy(number)

    def _copy(self, number: int) -> Copied:
        boxes = self.plan.boxes
        region = boxes.region_of([int(i) for i in np.unravel_index(number, boxes.counts)])
        values = self.source.read(shifted(region, self.origin), threads=1)
        if self.source.meta.data_type != self.target.meta.data_type:
            values = self._converted(values, region)
        written = 0
        objects = 0
        for part in self.target.meta.grid.parts(region):
            written += self.target.write_part(part, values)
            objects += 1
        return Copied(values.nbytes, written, objects)

    def _converted(self, values: np.ndarray, region: Region) -> np.ndarray:
        """The values in the data type of the target; fractions may go, numbers may not wrap."""
        target = self.target
        held = target.meta.data_type.holds(values.dtype)
        if not held and target.dtype.kind in "iu" and values.dtype.kind in "iufb" and values.size:
            bounds = np.iinfo(target.dtype)
            low, high = values.min(), values.max()
            if not (low >= bounds.min and high <= bounds.max):  # NaN is in no range
                raise self._not_held(f"values from {low} to {high}", region)
        try:
            with np.errstate(over="raise"):
                return target.cast(values)
        except FloatingPointError as error:
            raise self._not_held("values that would become infinite", region) from error

    def _not_held(self, what: str, region: Region) -> DataTypeError:
        return DataTypeError(
            f"{self.source.where} has {what} in the region {format_region(region)}, which "
            f"{self.target.meta.data_type.label} cannot hold. Choose a wider dtype."
        )


@dataclass(frozen=True, slots=True)
class Copied:
    """What one task has done."""

    nbytes: int
    """Decoded bytes copied."""
    stored: int
    """Encoded bytes written."""
    objects: int
    """Stored objects that were written, or left out because they hold fill values only."""
