"""Sources of pixels, and planning of a pyramid from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.warnings import warn
from zarr_dask.array.array import Array
from zarr_dask.errors import DataTypeError, MemoryBudgetError, SourceIsTargetError
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.engine import Workers, find_workers
from zarr_dask.jobs.engine.map_regions import is_dask
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.predict import memory_budget
from zarr_dask.jobs.write.checks import check_not_read
from zarr_dask.ome.downsample import Method
from zarr_dask.ome.pyramid import BlockedSource, PyramidStage, blocked, plan_stages
from zarr_dask.ome.pyramid_plan import PixelSource, PyramidPlan
from zarr_dask.stores.backends.zarr_python import place_in_zarr_python
from zarr_dask.stores.base import Store
from zarr_dask.stores.real_location import source_at_target

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Budget", "check_source_not_target", "checked_pixels", "make_pyramid_plan"]

_LIKED = 1 << 25


@dataclass(frozen=True)
class Budget:
    """Memory and threads that a plan is made for."""

    max_mem: int
    workers: Workers

    @staticmethod
    def of(max_mem: str | int | None, client: Client | None) -> Budget:
        """Return the given limit, or that of the workers, with their threads."""
        workers = find_workers(client)
        return Budget(memory_budget(max_mem, workers), workers)


def checked_pixels(values: Any, where: str) -> Array | np.ndarray | Any:
    """Return values that can be the pixels of an image: numbers, as a supported array type.

    Raises
    ------
    DataTypeError
        If they are of another type.
    GridError
        If they are a dask array with blocks of unknown sizes.
    """
    if not isinstance(values, Array) and place_in_zarr_python(values) is not None:
        values = open_array(values)
    if is_dask(values):
        from zarr_dask.graph import checked_array

        values = checked_array(values)
    elif isinstance(values, np.ma.MaskedArray):
        raise DataTypeError(f"{where}: masked pixels cannot be stored; fill them first.")
    elif not isinstance(values, Array | np.ndarray):
        hint = (
            f" zarr_dask.open({str(values)!r}) opens one."
            if isinstance(values, str | PathLike)
            else ""
        )
        raise DataTypeError(
            f"{where}: expected pixels as a dask array, a NumPy array, a DataArray of xarray or a "
            f"zarr_dask.Array, got {type(values).__module__}.{type(values).__qualname__}.{hint}"
        )
    if values.dtype.kind not in "biufc":
        raise DataTypeError(
            f"{where}: pixels are numbers, and {values.dtype} is not a type of numbers."
        )
    return values


def check_source_not_target(values: Any, store: Store, path: str) -> None:
    """Raise if a job would overwrite its source.

    Raises
    ------
    SourceIsTargetError
        If the target equals the location of the pixels, or one lies within the other.
    """
    if isinstance(values, Array):
        read = source_at_target((values.store, values.path), (store, path))
        if read is not None:
            raise SourceIsTargetError(
                f"{read} is read, and lies where {store.url}/{path} would be written: "
                "pixels would be lost. Write to another place, or add levels to an image that "
                "exists with zarr_dask.ome.add_level."
            )
    elif is_dask(values):
        check_not_read(values, store, path)


def make_pyramid_plan(
    values: Any,
    arrays: tuple[Array, ...],
    factors: Sequence[Shape],
    method: Method,
    budget: Budget,
    changed: Region | None = None,
) -> PyramidPlan:
    """Plan a pyramid; its tasks read the pixels themselves if possible.

    Parameters
    ----------
    values
        Result of `checked_pixels`.
    arrays
        The levels to write.
    factors
        Factors of each of them against the one before, of the first against the values.
    method
        Method of downsampling.
    budget
        Memory and threads.
    changed
        Pixels of a stored array that have changed, so that only what is made of them is written.

    Raises
    ------
    MemoryBudgetError
        If there is not enough memory for one stored object.
    """
    threads = budget.workers.threads

    def stages(source: BlockedSource) -> tuple[PyramidStage, ...]:
        narrow = changed is not None
        return plan_stages(
            source, arrays, factors, method, budget.max_mem, budget.workers, narrow=narrow
        )

    factors = tuple(factors)
    if isinstance(values, Array):
        made_of = stages(blocked(values))
        return PyramidPlan(PixelSource(values), arrays, factors, method, made_of, changed)
    itemsize = values.dtype.itemsize
    single = (1,) * values.ndim
    plain = BlockedSource(values.shape, itemsize, single, single)
    if isinstance(values, np.ndarray):
        # other processes get super-cells through a graph
        source = replace(plain, whole=not budget.workers.in_this_process)
        return PyramidPlan(PixelSource(values), arrays, factors, method, stages(source))
    pixels = _computed(values)
    made: tuple[PyramidStage, ...] | None = None
    if pixels.blocks is not None:
        unit = tuple(sizes[0] if sizes else 1 for sizes in values.chunks)
        working = prod(unit) * itemsize
        try:
            made = stages(
                BlockedSource(values.shape, itemsize, unit, unit, never_cut=True, working=working)
            )
        except MemoryBudgetError:
            made = None
    if made is not None and _is_busy(made[0], itemsize, threads):
        return PyramidPlan(pixels, arrays, factors, method, made)
    try:
        others = stages(replace(plain, whole=True))
    except MemoryBudgetError:
        if made is None:
            raise
        others = made
    reads_again = made is not None and others[0].last == 0 < made[0].last
    if made is not None and (reads_again or made[0].tasks >= others[0].tasks):
        return PyramidPlan(pixels, arrays, factors, method, made)
    counted = (_with_blocks(others[0], values, budget), *others[1:])
    return PyramidPlan(PixelSource(values), arrays, factors, method, counted)


def _with_blocks(stage: PyramidStage, values: Any, budget: Budget) -> PyramidStage:
    """Return a stage whose tasks also hold a block of a graph, or warn if there is no room."""
    block = prod(values.chunksize) * values.dtype.itemsize
    threads = pluralize(budget.workers.threads_per_process, "thread")
    counted = replace(stage, peak=stage.peak + block)
    if counted.peak * budget.workers.threads_per_process <= budget.max_mem:
        return counted
    room, beside = format_bytes(budget.max_mem), format_bytes(stage.peak)
    warn(
        f"blocks of the dask array have up to {format_bytes(block)}, which Dask holds beside the "
        f"{beside} of each task: more than max_mem={room} for {threads} per process. Read the "
        "image in smaller blocks (chunk_dims= of bioio, chunks= of dask), or run fewer threads."
    )
    return stage


def _is_busy(stage: PyramidStage, itemsize: int, threads: int) -> bool:
    return prod(stage.cell) * itemsize <= _LIKED or stage.tasks >= 2 * threads


def _computed(values: Any) -> PixelSource:
    """Return a dask array, with its blocks if they are independent and of one size."""
    from zarr_dask.graph import computed_blocks

    regular = all(
        len(sizes) < 2 or (len(set(sizes[:-1])) == 1 and 0 < sizes[-1] <= sizes[0])
        for sizes in values.chunks
    )
    blocks = computed_blocks(values) if regular and values.npartitions else None
    return PixelSource(values, blocks)
