"""Laying an array out anew, within a bound of memory, on any of dask's schedulers.

`plan_rechunk` says everything that will be done; `RechunkPlan.run` does it. The target's
metadata document is written last: until then no reader can take the target for whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array import Array
from zarr_dask.create import plain_chain, regridded
from zarr_dask.errors import GridError, MemoryBudgetError, SourceIsTargetError
from zarr_dask.formats.base import ArrayMeta, ChunkKeys, ReadOptions, normalise_path, prefix_of
from zarr_dask.formats.detect import format_for_new
from zarr_dask.grid import Cells, Fixed
from zarr_dask.group import open_array
from zarr_dask.hierarchy import check_place, prepare_array_place, put_documents
from zarr_dask.jobs.plan import Costs, counted, format_bytes, parse_bytes
from zarr_dask.jobs.planner import Alternative, alternatives
from zarr_dask.jobs.plot import plot_rechunk
from zarr_dask.jobs.run import Workers, find_workers, run_tasks
from zarr_dask.jobs.speeds import speeds_of
from zarr_dask.jobs.stages import CostModel, Layout, StagePlan
from zarr_dask.scratch import keeping_freed_memory
from zarr_dask.stores.base import Store
from zarr_dask.stores.urls import Location, beside, open_store, overlap, real_place

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

__all__ = ["Progress", "RechunkPlan", "RechunkReport", "plan_rechunk", "rechunk"]

_DEFAULT_MEMORY = 10**9
_SHARE_OF_LIMIT = 0.6  # of a worker's memory limit; dask begins to spill at about that


@dataclass(frozen=True, slots=True)
class Progress:
    """One more task is done."""

    stage: int
    """Which stage, from 0."""
    stages: int
    """How many there are."""
    nbytes: int
    """Bytes of the array that the task has copied."""
    total: int
    """Bytes of the array."""


@dataclass(frozen=True)
class Stage:
    """One pass over the array, bound to what it reads and writes."""

    plan: StagePlan
    source: Array
    target: Array

    def copy(self, number: int) -> Copied:
        """Copy one box: read it whole, write its stored objects one by one."""
        with keeping_freed_memory():
            return self._copy(number)

    def _copy(self, number: int) -> Copied:
        boxes = self.plan.boxes
        region = boxes.region_of([int(i) for i in np.unravel_index(number, boxes.counts)])
        values = self.source.read(region, threads=1)
        written = 0
        objects = 0
        for part in self.target.meta.grid.parts(region):
            written += self.target.write_part(part, values)
            objects += 1
        return Copied(values.nbytes, written, objects)


@dataclass(frozen=True, slots=True)
class Copied:
    """What one task has done."""

    nbytes: int
    """Decoded bytes copied."""
    stored: int
    """Encoded bytes written."""
    objects: int
    """Stored objects that were written, or left out because they hold fill values only."""


@dataclass(frozen=True, slots=True)
class RechunkReport:
    """What a rechunking has done."""

    nbytes: int
    """Decoded bytes of the array."""
    stored: int
    """Encoded bytes of the target."""
    objects: int
    """Stored objects of the target."""
    tasks: int
    seconds: float

    def __str__(self) -> str:
        rate = format_bytes(self.nbytes / self.seconds) if self.seconds else "-"
        return (
            f"{format_bytes(self.nbytes)} in {self.objects} stored objects "
            f"({format_bytes(self.stored)}) by {self.tasks} tasks in {self.seconds:.1f} s "
            f"({rate}/s)"
        )


@dataclass(frozen=True)
class RechunkPlan:
    """Everything that a rechunking will do; made by `plan_rechunk`."""

    source: Array
    target: Array
    """As it will be; it does not exist yet."""
    stages: tuple[StagePlan, ...]
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    threads: int
    """Tasks that run at the same time."""
    threads_per_process: int
    overwrite: bool = False
    temp: Location | None = None
    ways: tuple[Alternative, ...] = ()
    """All that were costed, the chosen one first."""

    @property
    def tasks(self) -> int:
        """Number of tasks of all stages."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def peak(self) -> int:
        """Bytes that one process holds at most."""
        return max(stage.peak for stage in self.stages) * self.threads_per_process

    @property
    def costs(self) -> Costs:
        """What all stages together do."""
        return sum((stage.costs for stage in self.stages), Costs())

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        source, target = self.source, self.target
        how = "directly" if len(self.stages) == 1 else f"in {len(self.stages)} stages"
        lines = [
            f"rechunk {source.where}",
            f"     to {target.where}",
            f"  array   {source.shape} {source.meta.data_type.label}, "
            f"{format_bytes(source.nbytes)}",
            f"  chunks  {_grids(source)} -> {_grids(target)}",
            f"  memory  {format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process "
            f"({counted(self.threads_per_process, 'thread')}), "
            f"{counted(self.threads, 'task')} at a time",
            f"  copied  {how}, by {counted(self.tasks, 'task')}",
        ]
        for number, stage in enumerate(self.stages):
            costs = stage.costs
            lines.append(
                f"  stage {number + 1}: {counted(stage.tasks, 'task')} of {stage.box}, "
                f"{format_bytes(stage.peak)} each; decodes {format_bytes(costs.decoded)} "
                f"({costs.decoded / max(source.nbytes, 1):.1f} x the array) in {costs.reads} "
                f"requests, writes {format_bytes(costs.written)} in {costs.writes} "
                f"objects of {stage.target.object_shape}"
            )
        return "\n".join([*lines, *self._reasons()])

    def _reasons(self) -> list[str]:
        """Why these stages: what the other ways would cost."""
        if len(self.ways) < 2:
            return []
        chosen, *others = self.ways
        said = (
            f"{way.name} {_duration(way.seconds)}, "
            f"{format_bytes(sum(stage.costs.decoded for stage in way.stages))} decoded, "
            f"{sum(stage.costs.reads + stage.costs.writes for stage in way.stages):,} requests"
            for way in others
        )
        took = f"  why     {chosen.name}: {_duration(chosen.seconds)} by the model; others: "
        return [took + "; ".join(said)]

    def plot(self) -> Figure:
        """The grids of all stages as a matplotlib figure.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        title = (
            f"{self.source.shape} {self.source.meta.data_type.label}, "
            f"{format_bytes(self.source.nbytes)}: "
            f"{format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process"
        )
        return plot_rechunk(self.stages, self.source.dimension_names, title)

    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> RechunkReport:
        """Do it.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task.

        Raises
        ------
        NodeExistsError
            If the target has come into being since the plan was made.
        CorruptObjectError, StoreError
            If the source cannot be read or the target not be written. No metadata document of
            the target is there then.
        """
        begun = perf_counter()
        workers = find_workers(client)
        self._check_memory(workers)
        target, node_format = self.target, self.target.node_format
        arrays = [self.source, *self._intermediates(), target]
        prepare_array_place(
            target.store, target.path, node_format, target.meta, overwrite=self.overwrite
        )
        done: list[Copied] = []
        try:
            for number, plan in enumerate(self.stages):
                stage = Stage(plan, arrays[number], arrays[number + 1])
                done = []
                on_result = partial(self._note, number, done, progress)
                run_tasks(stage.copy, plan.tasks, workers, on_result, f"zarr-copy-{number + 1}")
        finally:
            for intermediate in arrays[1:-1]:
                intermediate.store.delete_prefix(prefix_of(intermediate.path))
        put_documents(target.store, node_format.documents(target.meta, target.path))
        return RechunkReport(
            nbytes=self.source.nbytes,
            stored=sum(copied.stored for copied in done),
            objects=sum(copied.objects for copied in done),
            tasks=self.tasks,
            seconds=perf_counter() - begun,
        )

    def _check_memory(self, workers: Workers) -> None:
        """Refuse to run where more tasks share a process than the plan was made for."""
        needed = max(stage.peak for stage in self.stages) * workers.threads_per_process
        if needed > self.max_mem:
            raise MemoryBudgetError(
                f"the plan was made for {counted(self.threads_per_process, 'thread')} per process; "
                f"{workers.threads_per_process} would hold {format_bytes(needed)}, more than "
                f"max_mem={format_bytes(self.max_mem)}. Make the plan again for these workers."
            )

    def _note(
        self,
        stage: int,
        done: list[Copied],
        progress: Callable[[Progress], None] | None,
        copied: Copied,
    ) -> None:
        done.append(copied)
        if progress is not None:
            progress(Progress(stage, len(self.stages), copied.nbytes, self.source.nbytes))

    def _intermediates(self) -> list[Array]:
        """An array between each stage and the next; it never has a metadata document."""
        made = []
        for number, stage in enumerate(self.stages[:-1]):
            store, path = self._temporary_place(number)
            meta = ArrayMeta(
                stage.target.grid,
                self.source.meta.data_type,
                None,
                plain_chain(self.source.meta),
                ChunkKeys("default", "/"),
            )
            strict = ReadOptions(missing="error")  # every object of it was written
            made.append(Array(store, path, meta, self.target.node_format, strict))
        return made

    def _temporary_place(self, number: int) -> tuple[Store, str]:
        name = f"zarr-dask-temporary-{token_hex(6)}-{number + 1}"
        if self.temp is not None:
            return open_store(self.temp), name
        return beside(self.target.store, f".{name}") or (self.target.store, f".{name}")


def _duration(seconds: float) -> str:
    """A time for people, with as many digits as a model is worth."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.2g} s"


def _grids(array: Array) -> str:
    return f"{array.chunks}" + (f" in shards {array.shards}" if array.shards else "")


# --- making a plan --------------------------------------------------------------------------------


def plan_rechunk(
    source: Location | Array,
    target: Location,
    *,
    chunks: Any = None,
    shards: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    path: str = "",
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    model: CostModel | None = None,
) -> RechunkPlan:
    """Plan how to lay an array out anew; nothing is written.

    Parameters
    ----------
    source
        The array, or where it is.
    target
        Where the new one will be.
    chunks
        Shape of its chunks: lengths by position, or by name or position of the dimension in a
        mapping; -1 is the whole dimension. What is not given stays as it is. The sizes of all
        chunks may stand for the length along a dimension, as for `zarr_dask.create_array`.
    shards
        Shape of its shards, in the same forms; none by default.
    max_mem
        Bytes that one process may hold above its size when idle, such as ``"2GB"``. By default
        what the workers' memory limit leaves, or 1 GB.
    temp
        Where to put intermediate data if there must be any; beside the target by default.
    overwrite
        Replace what is at the target.
    path
        Path of the target below its store.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    storage_options
        Options of the target's store.
    model
        How long things take, for choosing.

    Raises
    ------
    GridError
        If the grids do not fit the array.
    SourceIsTargetError
        If the target is the source, or one lies within the other.
    NodeExistsError
        If there is something at the target.
    MemoryBudgetError
        If `max_mem` is too small for one stored object of the target.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64, 64), dtype="f4", chunks=(1, 64, 64))
    >>> plan = zd.plan_rechunk(a, {}, chunks=(-1, 16, 16), max_mem="8MB")
    >>> plan.target.chunks, len(plan.stages)
    ((8, 16, 16), 1)
    """
    array = source if isinstance(source, Array) else open_array(source)
    store, below = open_store(target, storage_options), normalise_path(path)
    new_chunks, new_shards = _new_grids(array, chunks, shards)
    node_format = format_for_new(store, array.format, below)
    meta = regridded(array.meta, node_format, new_chunks, new_shards)
    made = Array(store, below, meta, node_format)
    node_format.documents(meta, below)  # raises where the format cannot say it
    _check_apart(array, made)
    if temp is not None:
        open_store(temp)  # raises where it cannot be had
    check_place(store, below, node_format, overwrite=overwrite)
    workers = find_workers(client)
    memory = _memory(max_mem, workers)
    ways = alternatives(
        _layout(array),
        _layout(made),
        memory // workers.threads_per_process,
        workers.threads,
        model or CostModel(),
    )
    return RechunkPlan(
        source=array,
        target=made,
        stages=ways[0].stages,
        max_mem=memory,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        overwrite=overwrite,
        temp=temp,
        ways=tuple(ways),
    )


def rechunk(
    source: Location | Array,
    target: Location,
    *,
    chunks: Any = None,
    shards: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    path: str = "",
    client: Client | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RechunkReport:
    """Lay an array out anew within a bound of memory: `plan_rechunk`, then run.

    Parameters
    ----------
    source, target, chunks, shards, max_mem, temp, overwrite, path, client, storage_options
        As for `plan_rechunk`.
    progress
        Called after each task.

    Raises
    ------
    ZarrDaskError
        As `plan_rechunk` and `RechunkPlan.run`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64), dtype="f4", chunks=(1, 64))
    >>> a[...] = 2
    >>> target = {}
    >>> zd.rechunk(a, target, chunks=(8, 16)).objects
    4
    >>> float(zd.open_array(target)[...].sum())
    1024.0
    """
    plan = plan_rechunk(
        source,
        target,
        chunks=chunks,
        shards=shards,
        max_mem=max_mem,
        temp=temp,
        overwrite=overwrite,
        path=path,
        client=client,
        storage_options=storage_options,
    )
    return plan.run(client, progress)


def _layout(array: Array) -> Layout:
    grid = array.meta.grid
    bound = array.meta.largest_bound()
    chunk = array.chunks if bound.partial else grid.largest_cell
    itemsize = array.meta.data_type.typical_itemsize
    return Layout(grid, chunk, itemsize, bound.working, *speeds_of(array.meta.codecs))


def _memory(max_mem: str | int | None, workers: Workers) -> int:
    if max_mem is not None:
        return parse_bytes(max_mem)
    if workers.memory_limit is not None:
        return int(workers.memory_limit * _SHARE_OF_LIMIT)
    return _DEFAULT_MEMORY


def _new_grids(array: Array, chunks: Any, shards: Any) -> tuple[Cells | None, Cells | None]:
    if chunks is None and shards is None:
        raise GridError("neither chunks nor shards are given: there is nothing to change.")
    stored = _stored_cells(array)
    present = stored if array.shards is None else array.chunks
    new_chunks = None if chunks is None else _cells(array, chunks, present, "chunks")
    if shards is None:
        return new_chunks, None
    base = new_chunks or array.chunks if array.shards is None else stored
    cells = _cells(array, shards, base, "shards")
    if new_chunks is not None:  # a whole dimension is a whole number of chunks
        cells = tuple(
            -(-length // chunk) * chunk
            if isinstance(length, int) and isinstance(chunk, int) and length == extent
            else length
            for length, chunk, extent in zip(cells, new_chunks, array.shape, strict=True)
        )
    return new_chunks, cells


def _stored_cells(array: Array) -> Cells:
    """The size of stored objects along each dimension, or the sizes where they differ."""
    return tuple(
        dimension.size if isinstance(dimension, Fixed) else dimension.lengths or 1
        for dimension in array.meta.grid.dimensions
    )


def _cells(array: Array, given: Any, present: Cells, what: str) -> Cells:
    """Lengths or sizes by position or by name, -1 for a whole dimension."""
    names = array.dimension_names or (None,) * array.ndim
    if isinstance(given, Mapping):
        known = [*(n for n in names if n is not None), *range(array.ndim)]
        unknown = [key for key in given if key not in known]
        if unknown:
            raise GridError(
                f"{what} names {unknown}, which are no dimensions of {array.where}; it has {known}."
            )
        by_axis = {names.index(key) if isinstance(key, str) else key: v for key, v in given.items()}
        items: Sequence[Any] = [by_axis.get(axis, present[axis]) for axis in range(array.ndim)]
    elif isinstance(given, int | np.integer):
        items = [given] * array.ndim
    else:
        items = list(given)
    if len(items) != array.ndim or not all(map(_is_cell, items)):
        raise GridError(
            f"{what}={given!r}: expected {array.ndim} lengths of at least 1, or -1 for a whole "
            f"dimension, or the sizes of all of them, for the shape {array.shape}."
        )
    return tuple(
        tuple(map(int, item))
        if isinstance(item, Sequence)
        else (max(extent, 1) if item == -1 else int(item))
        for item, extent in zip(items, array.shape, strict=True)
    )


def _is_cell(item: Any) -> bool:
    """Whether an item is a length, -1, or the sizes of all cells of a dimension."""
    if isinstance(item, Sequence) and not isinstance(item, str):
        return len(item) > 0 and all(_is_length(size) and size >= 0 for size in item)
    return _is_length(item) and (item == -1 or item >= 1)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_apart(source: Array, target: Array) -> None:
    """Refuse a target that is, holds or lies within the source."""
    if overlap(real_place(source.store, source.path), real_place(target.store, target.path)):
        raise SourceIsTargetError(
            f"the target {target.where} is the source, or one lies within the other, so that "
            "writing would destroy what is still to be read. Choose another target, and replace "
            "the source by it afterwards."
        )
