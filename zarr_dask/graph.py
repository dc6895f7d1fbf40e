"""From an index space cut into blocks to dask, and from dask to tasks that write.

Reading is one `Blockwise` layer of constant size: every task is dask's own ``getter`` on a small
source that is part of the task, so that dask pushes slices down into it. Writing is not a
`dask.array.Array` but a collection with one output key: a `Blockwise` of writing tasks, a tree
that merges what they return, and one last task that makes the result visible. Both keep their
form until the scheduler needs tasks. This module knows no array of this package: a source is
anything with ``shape``, ``dtype`` and ``__getitem__``, a target anything with the methods of
`Target`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, product
from math import prod
from typing import Any, Protocol

import cloudpickle
import dask.array as da
import numpy as np
from dask import config
from dask.array.core import Array as LayeredArray
from dask.array.core import getter, normalize_chunks
from dask.base import DaskMethodsMixin, tokenize
from dask.blockwise import Blockwise, blockwise, optimize_blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.layers import ArrayBlockwiseDep
from dask.task_spec import Task, TaskRef
from dask.threaded import get as threaded_get
from dask.utils import parse_bytes

from zarr_dask.blocks import bounded_blocks, cells_of, chunks_of, merged_blocks
from zarr_dask.errors import DaskBackendError, DataTypeError, GridError
from zarr_dask.gather import selected_blocks
from zarr_dask.grid import Blocks, Grid, Shape
from zarr_dask.selection import IndexTransform

__all__ = [
    "BlockRegions",
    "BlockWrites",
    "ComputedBlocks",
    "StoredWrite",
    "Target",
    "blocks_of",
    "blocks_of_selection",
    "check_backend",
    "checked_array",
    "computed_blocks",
    "cuts_objects",
    "has_separate_blocks",
    "join_writes",
    "read_array",
    "read_shares",
    "separate_writes",
    "sources_of",
    "write_array",
]


class Source(Protocol):
    """What read tasks index."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, key: Any) -> Any: ...


class DivisibleSource(Source, Protocol):
    """A source that is too large to be part of every task."""

    def within(self, region: tuple[slice, ...]) -> DivisibleSource:
        """A region of it, as another source."""
        ...


class BlockRegions(ArrayBlockwiseDep):
    """The region of each block, worked out when it is asked for.

    Parameters
    ----------
    chunks
        Sizes of the blocks along each dimension.
    origin
        Where the first block starts.
    """

    def __init__(self, chunks: Blocks, origin: Shape) -> None:
        super().__init__(chunks)
        self.origin = origin
        self._edges = [_edges(sizes) for sizes in chunks]

    def __getitem__(self, idx: tuple[int, ...]) -> tuple[slice, ...]:
        region = []
        for position, edge, start in zip(idx, self._edges, self.origin, strict=True):
            low, high = edge(position)
            region.append(slice(start + low, start + high, None))
        return tuple(region)

    def __reduce__(self) -> tuple[Any, ...]:
        return _regions, (tuple(map(_packed, self.chunks)), self.origin)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "BlockRegions", tuple(map(_packed, self.chunks)), self.origin


class BlockSources(ArrayBlockwiseDep):
    """For each block a source of its own, worked out when it is asked for.

    Parameters
    ----------
    chunks
        Sizes of the blocks along each dimension.
    value
        The source of all of them.
    token
        Tells that source from all others.
    """

    def __init__(self, chunks: Blocks, value: DivisibleSource, token: str) -> None:
        super().__init__(chunks)
        self.value = value
        self.token = token
        self._regions = BlockRegions(chunks, (0,) * len(chunks))

    def __getitem__(self, idx: tuple[int, ...]) -> DivisibleSource:
        return self.value.within(self._regions[idx])

    def __reduce__(self) -> tuple[Any, ...]:
        return _sources, (self._regions, self.value, self.token)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "BlockSources", self._regions.__dask_tokenize__(), self.token


def _sources(regions: BlockRegions, value: DivisibleSource, token: str) -> BlockSources:
    return BlockSources(regions.chunks, value, token)


def _packed(sizes: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Equal sizes with a shorter last one in three numbers."""
    if len(sizes) > 3 and len(set(sizes[:-1])) == 1:
        return "equal", (len(sizes), sizes[0], sizes[-1])
    return "listed", tuple(sizes)


def _unpacked(packed: tuple[str, tuple[int, ...]]) -> tuple[int, ...]:
    kind, numbers = packed
    if kind == "listed":
        return numbers
    count, size, last = numbers
    return (size,) * (count - 1) + (last,)


def _regions(packed: tuple[tuple[str, tuple[int, ...]], ...], origin: Shape) -> BlockRegions:
    return BlockRegions(tuple(map(_unpacked, packed)), origin)


def _edges(sizes: Sequence[int]) -> Callable[[int], tuple[int, int]]:
    kind, numbers = _packed(sizes)
    if kind == "equal":
        count, size, last = numbers
        return lambda i: (i * size, i * size + (last if i == count - 1 else size))
    starts = tuple(accumulate(numbers, initial=0))
    return lambda i: (starts[i], starts[i + 1])


def check_backend() -> None:
    """Refuse to make or take arrays of dask's array-expr backend, which has no layers.

    Raises
    ------
    DaskBackendError
        If it is turned on.
    """
    if da.Array is not LayeredArray:
        raise DaskBackendError(
            "dask's array-expr backend is turned on, whose arrays take no layers from other "
            "packages: dask.array.from_zarr and to_zarr do not work with it either. Set dask's "
            "configuration array.query-planning to False before dask.array is imported; or use "
            "the package dask-array, whose dask_array.from_array takes an open zarr_dask.Array."
        )


# --- reading --------------------------------------------------------------------------------------


def read_array(source: Source, blocks: Blocks, token: str, name: str | None = None) -> da.Array:
    """A lazy dask array over a source.

    Parameters
    ----------
    source
        What to index; small when pickled, because it is part of every task.
    blocks
        Sizes of the blocks along each dimension.
    token
        Tells this source from all others, now and after a change of its metadata.
    name
        Name of the array in the graph; made of the token by default.
    """
    return _read_layer(source, blocks, token, name, None)


def read_shares(
    source: DivisibleSource, blocks: Blocks, token: str, name: str | None = None
) -> da.Array:
    """As `read_array`, where each task is given a source of its own block only."""
    return _read_layer(source, blocks, token, name, BlockSources(blocks, source, token))


def _read_layer(
    source: Source, blocks: Blocks, token: str, name: str | None, shares: BlockSources | None
) -> da.Array:
    check_backend()
    shape, dtype = source.shape, source.dtype
    regions = BlockRegions(blocks, (0,) * len(shape))
    name = name or f"zarr-read-{tokenize(token, regions)}"
    indices = tuple(range(len(shape)))
    arguments = (
        (source, None, regions, indices)
        if shares is None
        else (shares, indices, (slice(None),) * len(shape), None)
    )
    layer = blockwise(getter, name, indices, *arguments, numblocks={}, _data_producer=True)
    graph = HighLevelGraph({name: layer}, {name: set()})
    return da.Array(graph, name, blocks, dtype=dtype, meta=np.empty((0,) * len(shape), dtype))


def blocks_of(
    chunks: Any, grid: Grid, chunk_shape: Shape, itemsize: int, names: Sequence[str | None]
) -> Blocks:
    """The blocks a reader asks for.

    Parameters
    ----------
    chunks
        None, ``"shards"``, ``"chunks"``, ``"auto"``, or what dask takes, dimensions by position or
        by name.
    grid
        The stored objects.
    chunk_shape
        Shape of what is decoded at once.
    itemsize
        Bytes of an element in memory; dask itself knows none for Python objects.
    names
        Of the dimensions; empty if they have none.

    Raises
    ------
    GridError
        If it names no blocks of this array.
    """
    if chunks is None:
        return bounded_blocks(grid, chunk_shape, itemsize, _bytes_of_auto())
    try:
        wanted = _along_each(chunks, names, grid.ndim)
        return _blocks_along(wanted, grid, chunk_shape, itemsize)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise GridError(
            f"chunks={chunks!r} gives no blocks of shape {grid.shape}: {error}"
        ) from error


def cuts_objects(chunks: Any, grid: Grid, chunk_shape: Shape, itemsize: int) -> bool:
    """Whether the blocks are parts of stored objects because nobody said how large they are to be.

    Many tasks then read one object each, and the index of a shard is worth keeping.
    """
    if chunks is not None or grid.largest_cell == chunk_shape:
        return False
    return prod(grid.largest_cell) * itemsize > _bytes_of_auto()


def blocks_of_selection(
    chunks: Any, transform: IndexTransform, grid: Grid, chunk_shape: Shape, itemsize: int
) -> Blocks:
    """The blocks that a reader of a selection asks for.

    Parameters
    ----------
    chunks
        None, ``"shards"`` and ``"chunks"``: what is selected of each such block of the array. All
        other forms say how to cut the selection; see `blocks_of`.
    transform
        The selection.
    grid, chunk_shape, itemsize
        Of the array.

    Raises
    ------
    GridError
        If it names no blocks of the selection.
    """
    if chunks is None and prod(grid.largest_cell) * itemsize <= _bytes_of_auto():
        return selected_blocks(transform, grid)
    if chunks is None or _text(chunks) in {"shards", "chunks"}:
        blocks = blocks_of(chunks, grid, chunk_shape, itemsize, ())
        return selected_blocks(transform, Grid.of(grid.shape, blocks))
    selected = Grid.of(transform.shape, selected_blocks(transform, grid))
    return blocks_of(chunks, selected, selected.largest_cell, itemsize, ())


def _along_each(chunks: Any, names: Sequence[str | None], ndim: int) -> tuple[Any, ...]:
    """What is wanted along each dimension."""
    if isinstance(chunks, Mapping):
        return _by_position(chunks, names, ndim)
    if isinstance(chunks, np.ndarray):
        chunks = chunks.tolist()
    if not isinstance(chunks, tuple | list):
        return (chunks,) * ndim
    if ndim == 1 and len(chunks) > 1 and not any(isinstance(one, str) for one in chunks):
        return (tuple(chunks),)  # dask takes the sizes of all blocks of one dimension so, too
    if len(chunks) != ndim:
        raise ValueError(f"expected one item for each of {ndim} dimensions.")
    return tuple(chunks)


def _blocks_along(wanted: tuple[Any, ...], grid: Grid, chunk_shape: Shape, itemsize: int) -> Blocks:
    """The blocks, from what is wanted along each dimension."""
    named: dict[str, Blocks] = {}
    if "shards" in map(_text, wanted):
        named["shards"] = cells_of(grid)
    if "chunks" in map(_text, wanted):
        named["chunks"] = chunks_of(grid, chunk_shape)
    limits = {axis: _byte_limit(one) for axis, one in enumerate(wanted) if _is_limit(one)}
    plain = tuple(
        named[one][axis] if _text(one) in named else (-1 if axis in limits else one)
        for axis, one in enumerate(wanted)
    )
    blocks = list(normalize_chunks(plain, grid.shape, dtype=np.dtype((np.void, itemsize))))
    if limits:
        fixed = prod(max(sizes) for axis, sizes in enumerate(blocks) if axis not in limits)
        budget = min(limits.values()) // max(fixed * itemsize, 1)
        extents = {axis: grid.shape[axis] for axis in limits}
        for axis, sizes in merged_blocks(grid, extents, budget).items():
            blocks[axis] = sizes
    return tuple(blocks)


def _text(one: Any) -> str:
    return one if isinstance(one, str) else ""


def _is_limit(one: Any) -> bool:
    return isinstance(one, str) and one not in {"shards", "chunks"}


def _byte_limit(text: str) -> int:
    """``"auto"``, or a number of bytes such as ``"64 MiB"``."""
    return _bytes_of_auto() if text == "auto" else int(parse_bytes(text))


def _bytes_of_auto() -> int:
    return int(parse_bytes(config.get("array.chunk-size")))


def _by_position(
    chunks: Mapping[Any, Any], names: Sequence[str | None], ndim: int
) -> tuple[Any, ...]:
    unknown = [key for key in chunks if key not in names and key not in range(-ndim, ndim)]
    if unknown:
        raise ValueError(
            f"{unknown} are no dimensions of the array; it has "
            f"{list(names) or f'{ndim} dimensions without names'}."
        )
    wanted: list[Any] = ["shards"] * ndim
    for key, value in chunks.items():
        axis = names.index(key) if key in names else key
        wanted[axis] = "shards" if value is None else value
    return tuple(wanted)


def sources_of(array: da.Array, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """The sources of one kind that a graph reads, layer by layer."""
    for layer in array.__dask_graph__().layers.values():
        for value in _literals(layer):
            candidate = getattr(value, "value", value)
            if isinstance(candidate, kind):
                yield candidate


def _literals(layer: Any) -> Iterator[Any]:
    for argument, index in getattr(layer, "indices", ()):
        if index is None:
            yield argument
    yield from getattr(layer, "io_deps", {}).values()
    task = getattr(layer, "task", None)
    if task is not None:
        yield from getattr(task, "args", ())
    if hasattr(layer, "mapping"):
        for item in layer.mapping.values():
            yield item
            yield from getattr(item, "args", ())


# --- writing --------------------------------------------------------------------------------------


def checked_array(array: Any) -> da.Array:
    """A dask array whose blocks have known sizes.

    Raises
    ------
    DataTypeError
        If it is something else.
    GridError
        If sizes are unknown.
    DaskBackendError
        If dask's array-expr backend is turned on.
    """
    check_backend()
    if not isinstance(array, da.Array):
        raise DataTypeError(
            f"expected a dask array, got {_kind(array)}; dask.array.from_array makes one of what "
            "has a shape, a data type and elements."
        )
    if any(np.isnan(size) for sizes in array.chunks for size in sizes):
        raise GridError(
            "the dask array has unknown chunk sizes, so that nothing can be planned; "
            "compute_chunk_sizes() finds them out."
        )
    return array


def _kind(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


class Target(Protocol):
    """What write tasks write to."""

    def write(self, block: np.ndarray, region: tuple[slice, ...]) -> Any:
        """Write the stored objects of a region; returns what is to be merged."""
        ...

    def merge(self, results: Sequence[Any]) -> Any:
        """What several writes have returned, as one."""
        ...

    def finish(self, result: Any) -> Any:
        """Make the result visible; returns what the user gets."""
        ...


def write_array(
    array: da.Array,
    target: Target,
    origin: Shape,
    token: str,
    only: Sequence[tuple[int, int]] | None = None,
    topic: str = "",
) -> StoredWrite:
    """The collection that writes every block of a dask array.

    Parameters
    ----------
    array
        Its blocks must be cut so that no stored object lies in two of them.
    target
        Where to write; small when pickled.
    origin
        Where the first block lies in the target.
    token
        Tells this write from others.
    only
        Which blocks to write, as first numbers and counts in the order of memory; all by default.
    topic
        Under which each task tells the clients of its cluster that it is done; "" for silence.
    """
    indices = tuple(range(array.ndim))
    write = f"zarr-write-{tokenize(array.name, token, origin)}"
    regions = BlockRegions(array.chunks, origin)
    layer = blockwise(
        _write_block,
        write,
        indices,
        array.name,
        indices,
        regions,
        indices,
        target,
        None,
        topic,
        None,
        token,
        None,
        numblocks={array.name: array.numblocks},
        dependencies=(),
    )
    merge = f"zarr-finish-{tokenize(array.name, token, origin)}"
    tree = MergeTree(merge, write, array.numblocks, target, only)
    if only is not None and not only:
        return StoredWrite(HighLevelGraph({merge: tree}, {merge: set()}), (merge, 0))
    graph = HighLevelGraph(
        {**array.__dask_graph__().layers, write: layer, merge: tree},
        {**array.__dask_graph__().dependencies, write: {array.name}, merge: {write}},
    )
    return StoredWrite(graph, (merge, 0))


def join_writes(
    writes: Sequence[StoredWrite], end: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> StoredWrite:
    """Several writes as one, whose ``compute()`` returns what theirs do, as a tuple.

    What they have in common is in the graph once. `end` is given that tuple when all are done.
    """
    outputs = [key for write in writes for key in write.__dask_keys__()]
    name = f"zarr-join-{tokenize(outputs)}"
    key = (name, 0)
    task = Task(key, _together, end, *map(TaskRef, outputs))
    graphs = [write.__dask_graph__() for write in writes]
    merged = HighLevelGraph.merge(*graphs)
    layers = {**merged.layers, name: MaterializedLayer({key: task})}
    return StoredWrite(
        HighLevelGraph(layers, {**merged.dependencies, name: {output[0] for output in outputs}}),
        key,
    )


def _together(end: Callable[[tuple[Any, ...]], tuple[Any, ...]], *results: Any) -> tuple[Any, ...]:
    return end(results)


def _write_block(
    block: np.ndarray, region: tuple[slice, ...], target: Target, topic: str, token: str
) -> Any:
    result = target.write(block, region)
    if topic:
        _tell(topic, (token, *(s.start for s in region)), np.asarray(block).nbytes)
    return result


def _tell(topic: str, task: tuple[str | int, ...], nbytes: int) -> None:
    """Log an event, which costs a task nothing, where it runs in a worker of a cluster."""
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        return
    worker.log_event(topic, {"task": task, "nbytes": nbytes})


def _merge(target: Target, *results: Any) -> Any:
    return target.merge(results)


def _finish(target: Target, *results: Any) -> Any:
    return target.finish(target.merge(results))


class BlockWrites:
    """The writing tasks of a graph whose blocks share no ancestor, each called by its number.

    Parameters
    ----------
    layer
        Makes all that a block needs; depends on no other layer.
    tree
        Says which blocks there are, and how their results are merged.
    """

    def __init__(self, layer: Blockwise, tree: MergeTree) -> None:
        self.layer = layer
        self.tree = tree

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockWrites, (self.layer, self.tree)

    @property
    def target(self) -> Target:
        """What is written to."""
        return self.tree.target

    @property
    def annotations(self) -> dict[str, Any]:
        """What the user has said of the tasks: retries, priority and so on."""
        return dict(self.layer.annotations or {})

    def __len__(self) -> int:
        return len(self._blocks)

    @cached_property
    def _blocks(self) -> Sequence[tuple[int, ...]]:
        return self.tree.blocks()

    def __call__(self, numbers: Iterable[int]) -> Any:
        """Run some of the tasks, one after the other, in this thread; merge their results."""
        keys = [(self.layer.output, *self._blocks[number]) for number in numbers]
        culled, _ = self.layer.cull(set(keys), ())
        return self.target.merge([culled[key]() for key in keys])


def has_separate_blocks(array: da.Array) -> bool:
    """Whether each block of an array is made by a task that needs no other one."""
    first = (array.name,) + (0,) * array.ndim
    graph = optimize_blockwise(array.__dask_graph__(), keys={first})
    return isinstance(graph.layers[array.name], Blockwise) and not graph.dependencies[array.name]


def separate_writes(write: StoredWrite) -> BlockWrites | None:
    """The tasks of a write that can be run one by one; None if blocks share ancestors.

    They can where every block is made from a store, or from nothing, by its own task alone. What
    is computed for several blocks (an average that is subtracted, an array in memory, a regrouping)
    would be computed again with each of them.
    """
    (key,) = write.__dask_keys__()
    graph = optimize_blockwise(write.__dask_graph__(), keys={key})
    tree = write.__dask_graph__().layers[key[0]]
    if not isinstance(tree, MergeTree) or graph.dependencies.get(tree.source) != set():
        return None
    layer = graph.layers[tree.source]
    if not isinstance(layer, Blockwise) or len(cloudpickle.dumps(layer)) > _LARGEST_LAYER:
        return None
    return BlockWrites(layer, tree)


_LARGEST_LAYER = 1 << 16
"""Bytes of a layer that goes with every task."""


class ComputedBlocks:
    """The blocks of an array that share no ancestor, computed by whoever asks for them.

    A task that needs several of them computes one after the other, in its own thread, and none of
    them passes between processes.

    Parameters
    ----------
    layer
        Makes all that a block needs; depends on no other layer.
    chunks
        Sizes of the blocks along each dimension.
    """

    def __init__(self, layer: Blockwise, chunks: Blocks) -> None:
        self.layer = layer
        self.chunks = chunks

    def __reduce__(self) -> tuple[Any, ...]:
        return _computed_blocks, (self.layer, tuple(map(_packed, self.chunks)))

    @cached_property
    def _grid(self) -> Grid:
        return Grid.of(tuple(map(sum, self.chunks)), self.chunks)

    def read(self, region: tuple[slice, ...]) -> np.ndarray:
        """A region; blocks that it meets only in part are computed as a whole.

        Raises
        ------
        GridError
            If a block has another shape than dask said.
        """
        parts = list(self._grid.parts(region))
        shape = tuple(s.stop - s.start for s in region)
        if len(parts) == 1 and parts[0].whole:
            return self._block(parts[0].coords)
        values: np.ndarray | None = None
        for part in parts:
            block = self._block(part.coords)[part.inside]
            if values is None:
                values = np.empty(shape, block.dtype)
            values[part.out] = block
        return np.empty(shape) if values is None else values

    def _block(self, coords: tuple[int, ...]) -> np.ndarray:
        key = (self.layer.output, *coords)
        culled, _ = self.layer.cull({key}, ())
        block = culled[key]()
        expected = tuple(sizes[i] for sizes, i in zip(self.chunks, coords, strict=True))
        if isinstance(block, np.ma.MaskedArray):
            raise DataTypeError(
                f"the block {coords} is masked, and a mask cannot be stored; fill it first "
                "(da.ma.filled)."
            )
        if np.shape(block) != expected:
            raise GridError(
                f"the block {coords} has the shape {np.shape(block)}, but dask said {expected}; "
                "give map_blocks the right chunks=."
            )
        return np.asarray(block)


def _computed_blocks(
    layer: Blockwise, packed: tuple[tuple[str, tuple[int, ...]], ...]
) -> ComputedBlocks:
    return ComputedBlocks(layer, tuple(map(_unpacked, packed)))


def computed_blocks(array: da.Array) -> ComputedBlocks | None:
    """The blocks of an array as what computes them one by one; None if they share ancestors."""
    first = (array.name,) + (0,) * array.ndim
    graph = optimize_blockwise(array.__dask_graph__(), keys={first})
    layer = graph.layers[array.name]
    if not isinstance(layer, Blockwise) or graph.dependencies[array.name]:
        return None
    if layer.annotations or len(cloudpickle.dumps(layer)) > _LARGEST_LAYER:
        return None
    return ComputedBlocks(layer, array.chunks)


class MergeTree(Layer):
    """Merges the results of many tasks, a few at a time, down to one output.

    The tasks exist only once somebody looks at them, which is in the scheduler.

    Parameters
    ----------
    name
        Of the layer; its output key is ``(name, 0)``.
    source
        Name of the layer whose results are merged.
    numblocks
        Its blocks along each dimension.
    target
        Says how to merge.
    only
        Which blocks there are results of; see `write_array`.
    """

    split = 32
    has_legacy_tasks = False

    def __init__(
        self,
        name: str,
        source: str,
        numblocks: Shape,
        target: Target,
        only: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.source = source
        self.numblocks = numblocks
        self.target = target
        self.only = only
        self._tasks: dict[Any, Task] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MergeTree, (self.name, self.source, self.numblocks, self.target, self.only)

    def is_materialized(self) -> bool:
        """Whether the tasks exist already."""
        return self._tasks is not None

    def get_output_keys(self) -> set[Any]:
        """The one key that others may ask for."""
        return {(self.name, 0)}

    @property
    def _dict(self) -> dict[Any, Task]:
        if self._tasks is None:
            self._tasks = dict(self._levels())
        return self._tasks

    def blocks(self) -> list[tuple[int, ...]]:
        """Coordinates of the blocks that there are results of."""
        return list(self._blocks())

    def _levels(self) -> Iterator[tuple[Any, Task]]:
        waiting: list[tuple[Any, ...]] = [(self.source, *block) for block in self.blocks()]
        level = 0
        while len(waiting) > self.split:
            merged: list[tuple[Any, ...]] = []
            for number, first in enumerate(range(0, len(waiting), self.split)):
                key = (f"{self.name}-{level}", number)
                members = map(TaskRef, waiting[first : first + self.split])
                yield key, Task(key, _merge, self.target, *members)
                merged.append(key)
            waiting, level = merged, level + 1
        key = (self.name, 0)
        yield key, Task(key, _finish, self.target, *map(TaskRef, waiting))

    def _blocks(self) -> Iterator[tuple[int, ...]]:
        if self.only is None:
            yield from product(*map(range, self.numblocks))
            return
        for first, count in self.only:
            for number in range(first, first + count):
                yield tuple(map(int, np.unravel_index(number, self.numblocks)))

    def __getitem__(self, key: Any) -> Task:
        return self._dict[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)


class StoredWrite(DaskMethodsMixin):
    """A write that is waiting to be computed.

    ``compute()`` runs it and returns what the target's ``finish`` does; ``persist()`` and
    `distributed`'s ``client.compute`` start it.
    """

    def __init__(self, graph: HighLevelGraph, key: tuple[str, int]) -> None:
        self._graph = graph
        self._key = key

    @property
    def dask(self) -> HighLevelGraph:
        """The graph, under the name that dask's own collections have for it."""
        return self._graph

    def __dask_graph__(self) -> HighLevelGraph:
        return self._graph

    def __dask_keys__(self) -> list[Any]:
        return [self._key]

    def __dask_layers__(self) -> tuple[str, ...]:
        return (self._key[0],)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("StoredWrite", self._key)

    @staticmethod
    def __dask_optimize__(graph: HighLevelGraph, keys: Any, **options: Any) -> HighLevelGraph:
        # keeps layers as they are: annotations survive, tasks are made by the scheduler
        wanted = set(flatten(keys))
        return optimize_blockwise(graph, keys=wanted).cull(wanted)

    __dask_scheduler__ = staticmethod(threaded_get)

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _only, ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuilt, (self._key,)


def _only(results: Sequence[Any]) -> Any:
    return results[0]


def _rebuilt(
    graph: Any, key: tuple[str, int], rename: Mapping[str, str] | None = None
) -> StoredWrite:
    name = (rename or {}).get(key[0], key[0])
    return StoredWrite(
        graph
        if isinstance(graph, HighLevelGraph)
        else HighLevelGraph.from_collections(name, graph),
        (name, key[1]),
    )
