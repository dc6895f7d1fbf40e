"""From a source cut into blocks to a lazy dask array.

One `Blockwise` layer of constant size: every task is dask's own ``getter`` on a small source that
is part of the task, so that dask pushes slices down into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import getter
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayBlockwiseDep

from zarr_dask._util.arguments import check_type
from zarr_dask.graph.prefetching_blocks import PrefetchingBlocks
from zarr_dask.graph.regions import BlockRegions
from zarr_dask.graph.requirements import check_backend
from zarr_dask.graph.sharing import share_with_current_client
from zarr_dask.graph.sources import Source, SupportsPrefetch, SupportsSubset
from zarr_dask.graph.write import WriteCollection
from zarr_dask.grid.grid import Blocks

__all__ = ["find_sources", "read_after", "read_ahead", "read_array", "read_per_block"]


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
