"""Tasks that read parts of shards, whose indices are prefetched.

While dask makes the tasks of a layer, it requests the source of each block that is needed. So these
blocks are known, whatever was culled from the graph. In a process other than that in which they
were made, tasks read without prefetching.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from dask.layers import ArrayBlockwiseDep

from zarr_dask.graph.regions import BlockRegions
from zarr_dask.graph.sources import SupportsPrefetch
from zarr_dask.grid.grid import Blocks
from zarr_dask.stores.index_prefetch import IndexPrefetcher, Part

__all__ = ["PrefetchingBlocks"]


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
