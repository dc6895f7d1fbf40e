"""Verification of a rechunking: source and target are compared box by box.

The expected values are a region of the source, in the data type of the target. A task holds a box
of both, within the memory limit of the plan's other tasks. Boxes may cut stored objects of the
target if whole ones of both sides do not fit. The comparison runs before the target becomes
visible, so that no reader ever finds a wrong one.

NaN equals NaN, and zeros of both signs are equal. Lossy codecs make a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from zarr_dask._util.buffers import task_memory_scope
from zarr_dask.array.array import Array
from zarr_dask.errors import MemoryBudgetError, ValuesDifferError
from zarr_dask.grid.grid import Grid, Region, Shape, translate_region
from zarr_dask.jobs.engine.block_diff import BlockDiff, differing
from zarr_dask.jobs.engine.cost_model import KEPT_AT_MOST, OVERHEAD, Layout, StagePlan
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.predict import left_for_tasks, needed_for_tasks
from zarr_dask.jobs.rechunk.copy_task import cast_to_target
from zarr_dask.stores.retry import counting_retries

__all__ = ["CopyVerification", "RegionDiff", "boxes_to_match"]

_LIKED = 1 << 23
"""Preferred bytes of a box: enough for a task."""


@dataclass(frozen=True, slots=True)
class RegionDiff:
    """Result of the comparison of one box."""

    nbytes: int
    """Decoded bytes of the box in the source."""
    found: BlockDiff
    retried: int = 0
    """Requests that were retried."""


@dataclass(frozen=True)
class CopyVerification:
    """A comparison of two arrays; called with the number of a task."""

    source: Array
    target: Array
    origin: Shape
    """First element of the source that was copied."""
    boxes: Grid
    """Boxes of the target, one for each task."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the tasks."""
        return range(self.boxes.ncells)

    def __call__(self, number: int) -> RegionDiff:
        """Compare one box."""
        region = self.boxes.region_of(self.boxes.coords_of(number))
        place = "compared with", self.target.where
        with task_memory_scope(place), counting_retries() as retries:
            values, nbytes = self._wanted(region)
            stored = self.target.read(region, threads=1)
        first = translate_region(region, self.origin)
        found = differing(values, stored, tuple(s.start for s in first), equal_nan=True)
        return RegionDiff(nbytes, found, retries.count)

    def _wanted(self, region: Region) -> tuple[np.ndarray, int]:
        """Return the expected values of the target, and their bytes in the source."""
        values = self.source.read(translate_region(region, self.origin), threads=1)
        return cast_to_target(self.target, values, self.source, region), values.nbytes

    def check(self, results: Sequence[RegionDiff]) -> None:
        """Refuse a target that differs from the source.

        Raises
        ------
        ValuesDifferError
            If there are differences; the error names the first elements.
        """
        total = BlockDiff()
        for one in results:
            total.add(one.found)
        if total.differing:
            places = self.source.where, self.target.where
            raise ValuesDifferError(*places, total.differing, total.named())


def boxes_to_match(source: Layout, target: Layout, max_mem: int, threads: int = 1) -> Grid:
    """Return the boxes to compare, so that a task holds no more than its share of the memory.

    Parameters
    ----------
    source, target
        Layouts of the two arrays.
    max_mem
        Maximum bytes that one process may hold above its size when idle.
    threads
        Number of threads that share them.

    Raises
    ------
    MemoryBudgetError
        If not even one element of both fits.
    """
    budget = left_for_tasks(max_mem) // threads
    box = target.object_shape
    while (peak := _held(source, target, box)) > budget:
        if max(box, default=1) == 1:
            enough = needed_for_tasks(peak * threads)
            raise MemoryBudgetError(
                f"a task may hold {format_bytes(budget)}, but to compare what it copies takes "
                f"{format_bytes(peak)}: raise max_mem (to {enough:,} for processes of "
                f"{pluralize(threads, 'thread')}), use fewer threads per process, or leave "
                "verify=True out.",
                needed=enough,
            )
        box = _halved(box)
    if box != target.object_shape:
        return Grid.regular(target.grid.shape, box)
    return StagePlan(source, target, _grown(source, target, box, budget)).boxes


def _held(source: Layout, target: Layout, box: Shape) -> int:
    """Return the bytes held while comparing a box: both sides in one data type, and buffers."""
    elements = prod(box)
    both = elements * (target.itemsize + max(source.itemsize, target.itemsize))
    reading = max(
        prod(_met(side, box)) * side.itemsize
        + side.memory.decode_workspace
        + side.memory.decoder_state
        for side in (source, target)
    )
    return both + reading + min(KEPT_AT_MOST, both // 4) + OVERHEAD


def _met(side: Layout, box: Shape) -> Iterator[int]:
    """Yield the lengths of a stored object that a box overlaps, in whole chunks."""
    for stored, length, chunk in zip(side.object_shape, box, side.chunk, strict=True):
        yield min(stored, -(-length // chunk) * chunk + chunk)


def _halved(box: Shape) -> Shape:
    """Return the box with half the length along its longest dimension."""
    longest = max(range(len(box)), key=box.__getitem__)
    return tuple(-(-n // 2) if axis == longest else n for axis, n in enumerate(box))


def _grown(source: Layout, target: Layout, box: Shape, budget: int) -> Shape:
    """Return a larger box of whole stored objects, for which less of the source is decoded twice.

    It is doubled along the dimension that saves most, as long as it fits and saves something; small
    boxes are doubled even if it saves nothing.
    """

    def decoded(box: Shape) -> int:
        return StagePlan(source, target, box).costs.decoded

    while True:
        doubled = (
            tuple(2 * n if one == axis else n for one, n in enumerate(box))
            for axis in reversed(range(len(box)))
            if box[axis] < target.grid.shape[axis]
        )
        fitting = [one for one in doubled if _held(source, target, one) <= budget]
        best = min(fitting, key=decoded, default=None)
        small = prod(box) * source.itemsize < _LIKED
        if best is None or (decoded(best) >= decoded(box) and not small):
            return box
        box = best
