"""From a source cut into blocks to a lazy dask array.

One `Blockwise` layer of constant size: every task is dask's own ``getter`` on a small source that
is part of the task, so that dask pushes slices down into it. A source is anything with ``shape``,
``dtype`` and ``__getitem__``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import dask.array as da
import numpy as np
from dask.array.core import getter
from dask.base import tokenize
from dask.blockwise import blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayBlockwiseDep

from zarr_dask.flags import check_given
from zarr_dask.graph.checks import check_backend
from zarr_dask.graph.regions import BlockRegions
from zarr_dask.graph.sharing import share_with_current_client
from zarr_dask.grid import Blocks, Shape

__all__ = ["DivisibleSource", "Source", "read_array", "read_shares", "sources_of"]


class Source(Protocol):
    """What read tasks index."""

    @property
    def shape(self) -> Shape:
        """Elements along each dimension."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        ...

    def __getitem__(self, key: Any) -> Any: ...


class DivisibleSource(Source, Protocol):
    """A source that is too large to be part of every task."""

    def within(self, region: tuple[slice, ...]) -> DivisibleSource:
        """A region of it, as another source."""
        ...


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

    Raises
    ------
    TypeError
        If the name is no text.
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
    check_given("name", name, str, "a text")
    share_with_current_client(source)
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
