"""From a source cut into blocks to a lazy dask array.

One ``Blockwise`` layer of constant size: every task is dask's own ``getter`` on a small source that
is part of the task, so that dask pushes slices down into it.

For sources that are parts of shards, dask requests the source of each block that is needed while it
makes the tasks of a layer. So these blocks are known, whatever was culled from the graph, and the
indices of their shards are prefetched. In other processes tasks read without prefetching.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol
from weakref import ref

import dask.array as da
import numpy as np
from dask.array.core import getter
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayBlockwiseDep

from zarr_dask._util.arguments import check_type
from zarr_dask.graph.regions import BlockRegions
from zarr_dask.graph.requirements import check_backend
from zarr_dask.graph.sharing import share_with_current_client
from zarr_dask.graph.write import WriteCollection
from zarr_dask.grid.grid import Blocks, Region, Shape
from zarr_dask.stores.base import Store
from zarr_dask.stores.index_prefetch import IndexPrefetcher, Part

__all__ = [
    "PrefetchingBlocks",
    "Source",
    "SupportsPrefetch",
    "SupportsSubset",
    "find_sources",
    "read_after",
    "read_ahead",
    "read_array",
    "read_per_block",
]


class PerBlockSource(ArrayBlockwiseDep):
    """A source for each block, made on demand.

    Parameters
    ----------
    chunks
        Sizes of the blocks along each dimension.
    value
        The common source.
    token
        Identifies that source.
    """

    def __init__(self, chunks: Blocks, value: SupportsSubset, token: str) -> None:
        super().__init__(chunks)
        self.value = value
        self.token = token
        self._regions = BlockRegions(chunks, (0,) * len(chunks))

    def __getitem__(self, idx: tuple[int, ...]) -> SupportsSubset:
        return self.value.within(self._regions[idx])

    def __reduce__(self) -> tuple[Any, ...]:
        return _sources, (self._regions, self.value, self.token)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "PerBlockSource", self._regions.__dask_tokenize__(), self.token


def _sources(regions: BlockRegions, value: SupportsSubset, token: str) -> PerBlockSource:
    return PerBlockSource(regions.chunks, value, token)


def read_array(source: Source, blocks: Blocks, token: str, name: str | None = None) -> da.Array:
    """Return a lazy dask array over a source.

    Parameters
    ----------
    source
        The object to index; small when pickled, because it is part of every task.
    blocks
        Sizes of the blocks along each dimension.
    token
        Identifies this source, and changes with its metadata.
    name
        Name of the array in the graph; derived from the token by default.

    Raises
    ------
    TypeError
        If the name is not a text.
    """
    return _read_layer(source, blocks, token, name, (source, None))


def read_ahead(
    source: SupportsPrefetch, blocks: Blocks, token: str, name: str | None = None
) -> da.Array:
    """Return the same as `read_array`, with prefetch of shard indices."""
    ahead = PrefetchingBlocks(blocks, source)
    return _read_layer(source, blocks, token, name, (ahead, _indices(source)))


def read_per_block(
    source: SupportsSubset, blocks: Blocks, token: str, name: str | None = None
) -> da.Array:
    """Return the same as `read_array`, with a source for each task that covers only its block."""
    shares, everything = PerBlockSource(blocks, source, token), (slice(None),) * len(source.shape)
    return _read_layer(source, blocks, token, name, (shares, _indices(source)), (everything, None))


def read_after(write: WriteCollection, source: Source, blocks: Blocks, token: str) -> da.Array:
    """Return the same as `read_array`, of a source that a write in the same graph fills first."""
    check_backend()
    share_with_current_client(source)
    ((done, _),) = write.__dask_keys__()
    graph, dtype, indices = write.__dask_graph__(), source.dtype, _indices(source)
    regions = BlockRegions(blocks, (0,) * len(source.shape))
    name = f"zarr-read-{tokenize(token, regions, done)}"
    last = len(indices)  # the only output of the write is an argument of every task
    arguments = (source, None, regions, indices, done, (last,))
    layer = blockwise(
        _read_after, name, indices, *arguments, numblocks={done: (1,)}, _data_producer=True
    )
    layers = {**graph.layers, name: layer}
    dependencies = {**graph.dependencies, name: {done}}
    meta = np.empty((0,) * len(indices), dtype)
    return da.Array(HighLevelGraph(layers, dependencies), name, blocks, dtype=dtype, meta=meta)


def _read_after(source: Source, region: tuple[slice, ...], done: Any) -> Any:  # noqa: ARG001
    return getter(source, region)


_Argument = tuple[Any, tuple[int, ...] | None]
"""The argument of each task; one for each block if there are indices."""


def _indices(source: Source) -> tuple[int, ...]:
    return tuple(range(len(source.shape)))


def _read_layer(
    source: Source,
    blocks: Blocks,
    token: str,
    name: str | None,
    read: _Argument,
    index: _Argument | None = None,
) -> da.Array:
    """Return an array with one task for each block, which indexes the source by its region."""
    check_backend()
    check_type("name", name, str, "a text")
    share_with_current_client(source)
    shape, dtype, indices = source.shape, source.dtype, _indices(source)
    regions = BlockRegions(blocks, (0,) * len(shape))
    name = name or f"zarr-read-{tokenize(token, regions)}"
    arguments = (*read, *(index or (regions, indices)))
    layer = blockwise(getter, name, indices, *arguments, numblocks={}, _data_producer=True)
    graph = HighLevelGraph({name: layer}, {name: set()})
    return da.Array(graph, name, blocks, dtype=dtype, meta=np.empty((0,) * len(shape), dtype))


def find_sources(array: da.Array, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """Yield the sources of one type that a graph reads, layer by layer."""
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


class Source(Protocol):
    """The object that read tasks index."""

    @property
    def shape(self) -> Shape:
        """Number of elements along each dimension."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        ...

    def __getitem__(self, key: Any) -> Any: ...


class SupportsSubset(Source, Protocol):
    """A source that is too large to be part of every task."""

    def within(self, region: tuple[slice, ...]) -> SupportsSubset:
        """Return a region of it, as another source."""
        ...


class SupportsPrefetch(Source, Protocol):
    """A source of which requests can be prefetched for other tasks."""

    @property
    def store(self) -> Store:
        """The store that holds the stored objects."""
        ...

    def reading_from(self, store: Store) -> SupportsPrefetch:
        """Return the same source, read from another store."""
        ...

    def key_of(self, region: Region) -> str | None:
        """Return the key of the only stored object of a region; None if there are several."""
        ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    def __dask_tokenize__(self) -> Any: ...


class PrefetchingBlocks(ArrayBlockwiseDep):
    """The sources of the blocks, which share the prefetch for the blocks that follow.

    Parameters
    ----------
    chunks
        Sizes of the blocks along each dimension.
    value
        The common source.
    here
        True if its tasks run in this process; else each of them is given the source itself.
    """

    def __init__(self, chunks: Blocks, value: SupportsPrefetch, *, here: bool = True) -> None:
        super().__init__(chunks)
        self.value = value
        self._here = here
        self._regions = BlockRegions(chunks, (0,) * len(chunks))
        self._ahead: ref[IndexPrefetcher] | None = None

    def __getitem__(self, idx: Part) -> SupportsPrefetch | _AheadBlock:
        if not self._here:
            return self.value
        ahead = None if self._ahead is None else self._ahead()  # it lives as long as its tasks
        if ahead is None or ahead.expects(idx):  # or it has tasks of a graph that never ended
            ahead = IndexPrefetcher(self.value.store, self._key_of)
            self._ahead = ref(ahead)
        ahead.expect(idx)
        return _AheadBlock(self.value, ahead, idx)

    def _key_of(self, block: Part) -> str | None:
        return self.value.key_of(self._regions[block])

    def __reduce__(self) -> tuple[Any, ...]:
        return _elsewhere, (self._regions, self.value)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        regions, value = self._regions.__dask_tokenize__(), self.value.__dask_tokenize__()
        return "PrefetchingBlocks", regions, value


def _elsewhere(regions: BlockRegions, value: SupportsPrefetch) -> PrefetchingBlocks:
    return PrefetchingBlocks(regions.chunks, value, here=False)


class _AheadBlock:
    """The source for the task of one block; in another process it is the source itself."""

    __slots__ = ("_ahead", "_block", "_source")

    def __init__(self, source: SupportsPrefetch, ahead: IndexPrefetcher, block: Part) -> None:
        self._source, self._ahead, self._block = source, ahead, block

    def __getitem__(self, key: Any) -> Any:
        with self._ahead.reading(self._block) as store:
            return self._source.reading_from(store)[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return self._source.__reduce__()

    def __dask_tokenize__(self) -> Any:
        return self._source.__dask_tokenize__()
