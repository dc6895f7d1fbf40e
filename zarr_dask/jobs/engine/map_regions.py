"""Processing arrays box by box, with boxes that do not cut stored objects.

`boxes_for` divides the index space of arrays of one shape. Where memory allows it, no stored object
of any array lies in two boxes, so each is decoded once. `run_boxes` calls a function on the values
of each box, on dask's schedulers or a cluster; a dask array's own blocks are its boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import lcm, prod
from random import Random
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.threads import run_concurrently
from zarr_dask.array.array import Array
from zarr_dask.grid.grid import Dimension, Fixed, Grid, Region, Shape
from zarr_dask.jobs.engine import compute, find_workers, run_tasks

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["boxes_for", "is_dask", "run_boxes", "sampled"]

_LIKED = 1 << 25
"""Preferred bytes of a box: enough for a task, little for a worker."""
_MOST = 1 << 27
"""Maximum bytes of a box that is not a single stored object."""
_SEED = 20_260_101


def boxes_for(shape: Shape, dtype: np.dtype[Any], arrays: Sequence[Array]) -> Grid:
    """Return boxes that cut no stored object of these arrays, if such boxes fit in little memory.

    If only large boxes fit the stored objects of all arrays, the boxes fit the array with the
    largest ones.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(9000, 9000), dtype="f4", chunks=(1000, 300))
    >>> b = zd.create_array({}, shape=(9000, 9000), dtype="f4", chunks=(300, 400))
    >>> boxes_for(a.shape, a.dtype, [a, b]).largest_cell
    (3000, 2400)
    """
    sizes = [one.meta.data_type.typical_itemsize for one in arrays]
    itemsize = max([*sizes, np.dtype(dtype).itemsize])
    if not arrays:
        return _grown(Grid(tuple(Fixed(1, n) for n in shape)), itemsize)
    grids = [one.meta.grid for one in arrays]
    common = Grid(tuple(_common([g.dimensions[axis] for g in grids]) for axis in range(len(shape))))
    if prod(common.largest_cell) * itemsize > _MOST:
        common = max(grids, key=lambda grid: prod(grid.largest_cell))
    return _grown(common, itemsize)


def _common(dimensions: Sequence[Dimension]) -> Dimension:
    """Return cells whose borders are borders of all of these dimensions."""
    extent = dimensions[0].extent
    fixed = [one.size for one in dimensions if isinstance(one, Fixed)]
    if len(fixed) == len(dimensions):
        return Fixed(min(lcm(*fixed), max(extent, 1)), extent)
    listed = next(one for one in dimensions if not isinstance(one, Fixed))
    borders = [0, *accumulate(listed.lengths)]
    shared = [at for at in borders if all(one.is_boundary(at) for one in dimensions)]
    cells = tuple(b - a for a, b in pairwise(shared)) or (0,)
    return Grid.of((extent,), (cells,)).dimensions[0]


def _grown(grid: Grid, itemsize: int) -> Grid:
    """Return a grid of merged neighbouring boxes, grown along the fastest dimension first."""
    dimensions = list(grid.dimensions)
    nbytes = max(prod(grid.largest_cell) * itemsize, 1)
    for axis in reversed(range(grid.ndim)):
        one = dimensions[axis]
        factor = min(_LIKED // nbytes, one.count)
        if factor > 1:
            dimensions[axis] = one.groups(one.largest * factor)
            nbytes = nbytes // one.largest * dimensions[axis].largest
    return Grid(tuple(dimensions))


def sampled(count: int, sample: float | None) -> tuple[int, ...] | None:
    """Return the numbers of some boxes, always the same ones; None for all of them.

    Parameters
    ----------
    count
        Number of boxes.
    sample
        A fraction of them (a float, at most 1.0), or a number of them (an int); at least one is
        chosen.

    Raises
    ------
    ValueError
        If it is neither.

    Examples
    --------
    >>> len(sampled(100, 0.1)), len(sampled(100, 7)), sampled(100, None)
    (10, 7, None)
    """
    if sample is None:
        return None
    given: Any = sample  # from users, so of any type
    is_fraction = not isinstance(given, int)
    if not isinstance(given, int | float) or not given > 0 or (is_fraction and given > 1):
        raise ValueError(
            f"sample={sample!r}: expected a fraction up to 1.0, or a number of blocks."
        )
    wanted = min(max(round(count * sample if is_fraction else sample), 1), count)
    return tuple(sorted(Random(_SEED).sample(range(count), wanted)))  # noqa: S311  (no secret)


@dataclass(frozen=True)
class _MapTask:
    """Callable for task number n: read a box and call the function on it."""

    function: Callable[..., Any]
    source: Any
    other: Any
    boxes: Grid
    numbers: tuple[int, ...] | None

    def __call__(self, number: int) -> Any:
        cell = number if self.numbers is None else self.numbers[number]
        region = self.boxes.region_of(self.boxes.coords_of(cell))
        if self.other is None:
            return self.function(_read_box(self.source, region), region)
        both = (self.source, self.other)
        reads = [partial(_read_box, one, region) for one in both]
        # what is far is waited for, so both at once; what is near is decoded, one after the other
        values = run_concurrently(*reads) if all(map(_is_far, both)) else [read() for read in reads]
        return self.function(values[0], region, values[1])


def _is_far(source: Any) -> bool:
    return isinstance(source, Array) and source.store.coalescing.max_concurrent_requests > 1


def _read_box(source: Any, region: Region) -> np.ndarray:
    """Return a region of a stored array or of a NumPy array."""
    if isinstance(source, Array):
        return source.read(region, threads=1)
    values: np.ndarray = np.asarray(source)
    return values[region] if region else values


def is_dask(array: object) -> bool:
    """True if this is a dask array; dask is not imported."""
    return hasattr(array, "__dask_graph__") and hasattr(array, "chunks")


def run_boxes(
    function: Callable[..., Any],
    source: Any,
    boxes: Grid,
    on_result: Callable[[Any], None],
    client: Client | None,
    name: str,
    numbers: tuple[int, ...] | None = None,
    other: Any = None,
) -> None:
    """Call ``function(values, region)`` for every box, in any order.

    With `other`, call ``function(values, region, values_of_other)``.

    Parameters
    ----------
    function
        Can be pickled; returns little.
    source
        A stored array, a NumPy array, or a dask array, whose own blocks are the boxes.
    boxes
        The boxes; ignored for a dask array.
    on_result
        Called with the result of each call.
    client
        A cluster; by default the current client, or else dask's configured scheduler.
    name
        Name of the tasks.
    numbers
        Numbers of the boxes to process; all by default.
    other
        A stored array or a NumPy array of the same shape.
    """
    if is_dask(source):
        for result in _run_dask(function, source, other, client):
            on_result(result)
        return
    job = _MapTask(function, source, other, boxes, numbers)
    count = boxes.ncells if numbers is None else len(numbers)
    if count:
        run_tasks(job, range(count), find_workers(client), on_result, name)


@dataclass(frozen=True)
class _Gather:
    """Stand-in for a write target: collects the function's result for each block."""

    function: Callable[..., Any]
    other: Any

    def write(self, block: np.ndarray, region: Region) -> list[Any]:
        """Return the result of the function for a block."""
        others = () if self.other is None else (_read_box(self.other, region),)
        return [self.function(np.asarray(block), region, *others)]

    def merge(self, results: Sequence[list[Any]]) -> list[Any]:
        """Return all results as one list."""
        return [one for result in results for one in result]

    def finish(self, result: list[Any]) -> list[Any]:
        """Return the results unchanged."""
        return result


def _run_dask(
    function: Callable[..., Any], array: Any, other: Any, client: Client | None
) -> list[Any]:
    from zarr_dask.graph import checked_array, write_array

    known = checked_array(array)
    gather = write_array(known, _Gather(function, other), (0,) * known.ndim, token_hex(8))
    layers = [name for name in gather.__dask_graph__().layers if name.startswith("zarr-write-")]
    results: list[Any] = compute(gather, find_workers(client), layers)
    return results
